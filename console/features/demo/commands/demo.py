"""Start a server with queues, traffic and faults, and open the console on it.

The server is a real PostgreSQL with a queue of each design. Needs the extra [demo]. Everything
is deleted at the end, however it ends.

\b
Examples:
  dbq-console demo
  dbq-console demo --headless --seconds 20 --json
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import click

from console import engines
from console.cli.context import Call
from console.cli.lists import answer
from console.cli.streams import narrate
from console.config import THEME, load
from console.errors import ConsoleError
from console.verbs.command import Command
from console.verbs.parameters import Parameter
from console.views.status import VIEW, SampledQueues

if TYPE_CHECKING:
    from console.tui import Appearance


def _run(call: Call, headless: bool, seconds: float) -> None:
    from console.features.demo.running import Demo, run_headless  # noqa: PLC0415  # slow to import

    if headless:
        queues = run_headless(seconds, narrate)
        answer(call, VIEW, SampledQueues(queues))
        return
    from console import tui  # noqa: PLC0415

    tui.require_terminal()
    narrate("Starting a PostgreSQL server and the traffic of the demo...")
    with Demo() as running:
        database = engines.open_database(running.url, label="demo")
        stuck_after = running.stuck_after_seconds
        tui.run(
            [database],
            stuck_after_seconds=stuck_after,
            banner="its own PostgreSQL: everything is deleted when you quit",
            recordings=running.recordings,
            appearance=_appearance(),
        )


def _appearance() -> Appearance:
    """The theme of the configuration, whose mistakes are ignored."""
    from console.tui import Appearance  # noqa: PLC0415

    with suppress(ConsoleError):
        return Appearance(load().defaults[THEME])
    return Appearance()


_PARAMETERS = (
    Parameter("headless", "No screens; print the status at the end.", is_flag=True),
    Parameter(
        "seconds",
        "With --headless: how long, from the first traffic on.",
        click.FloatRange(min=1),
        default="20",
    ),
)
COMMAND = Command("demo", _run, __doc__, _PARAMETERS)
