"""The terminal user interface: draws what the monitor sees, and asks no database itself."""

import sys
from collections.abc import Sequence
from pathlib import Path

from console.catalog import STUCK_AFTER_SECONDS
from console.engines import Database
from console.errors import ConsoleError, UsageError
from console.tui.app import ConsoleApp
from console.tui.feed import Clock, Feed, SamplerFeed

__all__ = ["Clock", "ConsoleApp", "Feed", "SamplerFeed", "require_terminal", "run"]


def require_terminal() -> None:
    """UsageError, on one line, where there is no terminal to draw on (Textual draws on stderr)."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            "The console needs a terminal: stdin and stderr must be one. "
            "Without one: dbq-console status"
        )


def run(
    databases: Sequence[Database],
    *,
    interval_seconds: float = 1.0,
    stuck_after_seconds: float = STUCK_AFTER_SECONDS,
    banner: str = "",
    rights: str = "",
    config_path: Path | None = None,
) -> None:
    """Open the console on these databases and return when the operator quits.

    `rights` is the word on each connection's line. UsageError without a terminal.
    """
    require_terminal()
    feeds = [
        SamplerFeed(
            database,
            interval_seconds=interval_seconds,
            stuck_after_seconds=stuck_after_seconds,
            name=name,
        )
        for database, name in zip(databases, _names(databases), strict=True)
    ]
    app = ConsoleApp(feeds, banner=banner, rights=rights, config_path=config_path)
    app.run()
    if app.return_code:
        raise ConsoleError("The console ended because of a mistake of its own; see above.")


def _names(databases: Sequence[Database]) -> list[str]:
    """Their labels, numbered where two connections have the same."""
    names: list[str] = []
    for database in databases:
        name, number = database.label, 1
        while name in names:
            number += 1
            name = f"{database.label} ({number})"
        names.append(name)
    return names
