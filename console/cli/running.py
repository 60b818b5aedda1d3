"""Verbs that run something: smoke, demo."""

import sys
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from console import engines
from console.actions import smoke as smoking
from console.actions.smoke_live import smoke_live
from console.cli.context import Call, Rights, verb_options
from console.cli.looking import table
from console.cli.streams import narrate
from console.config import THEME, load
from console.designs import design as find_design
from console.errors import ConsoleError, UsageError

if TYPE_CHECKING:
    from console.tui import Taste


@click.command()
@click.argument("name", required=False)
@click.option("--design", metavar="D", help="Test a design with its default options instead.")
@click.option("--live", is_flag=True, help="Through the queue itself, only if it is drained.")
@verb_options
def smoke(call: Call, name: str | None, design: str | None, live: bool) -> None:
    """Prove a queue's design here: a scratch queue of the same options, every message checked.

    The queue itself is not touched. With --live it is, where it is drained: each message is pushed
    and popped in one transaction, so that no consumer ever sees it. Exit 1: something is not as the
    design promises.

    \b
    Examples:
      dbq-console smoke orders
      dbq-console smoke orders --live
      dbq-console smoke --design ring
    """
    if (name is None) == (design is None):
        raise UsageError("smoke wants the name of a queue, or --design D.")
    if live and name is None:
        raise UsageError("--live goes with the name of a queue.")
    database = call.database(Rights.ADMIN, "smoke")
    if design is not None:
        of = find_design(design, database.product.name)
        result = smoking.smoke_design(database, call.schema_for(database), of)
    else:
        queue = call.find(database, name or "")
        test = smoke_live if live else smoking.smoke_queue
        result = test(database, queue)
    push, pop = result.push_ms, result.pop_ms
    lines = [
        f"{'ok' if result.ok else 'NOT OK'}: {result.design}, {result.messages:,} messages, "
        f"order {result.order}",
        f"  lost {result.lost}, doubled {result.doubled}, damaged {result.damaged}, "
        f"out of order {result.out_of_order}, claims lost {result.unfinished}",
        f"  push ms  p50 {push.p50:.2f}  p95 {push.p95:.2f}  p99 {push.p99:.2f}",
        f"  pop  ms  p50 {pop.p50:.2f}  p95 {pop.p95:.2f}  p99 {pop.p99:.2f}",
        *(f"  error: {error}" for error in result.errors),
    ]
    call.answer({**asdict(result), "ok": result.ok}, lines)
    if not result.ok:
        sys.exit(1)


@click.command()
@click.option("--headless", is_flag=True, help="Without a screen: the status at the end.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=20.0,
    help="With --headless: how long, from the first traffic.",
)
@verb_options
def demo(call: Call, headless: bool, seconds: float) -> None:
    """A real server with one queue of every design, live traffic with faults, the console on it.

    Needs the extra [demo]. Nothing is left when it ends, however it ends.

    \b
    Examples:
      dbq-console demo
      dbq-console demo --headless --seconds 20 --json
    """
    from console.demo import Demo, run_headless  # noqa: PLC0415  # verbs shall start at once

    if headless:
        queues = run_headless(seconds)
        call.answer({"queues": [queue.as_json() for queue in queues]}, table(queues))
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
            banner="a PostgreSQL of its own: everything goes when you quit",
            recordings=running.recordings,
            taste=_taste(),
        )


def _taste() -> "Taste":
    """The theme of the configuration; the demo goes on whatever else is wrong there."""
    from console.tui import Taste  # noqa: PLC0415

    with suppress(ConsoleError):
        return Taste(load().defaults[THEME])
    return Taste()


COMMANDS = (smoke, demo)
