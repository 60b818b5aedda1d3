"""The terminal user interface: draws what the monitor sees, and asks no database itself."""

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, tzinfo
from pathlib import Path

from console.catalog import STUCK_AFTER_SECONDS
from console.config import Profile
from console.engines import Database
from console.errors import ConsoleError, UsageError
from console.monitor.limits import DEFAULTS
from console.rights import Rights
from console.tui.app import ConsoleApp
from console.tui.feed import Clock, Feed, SamplerFeed
from console.tui.opening import Opening, free_name, open_profile
from console.tui.places import Place, url_words

__all__ = [
    "Clock",
    "ConsoleApp",
    "Feed",
    "SamplerFeed",
    "require_terminal",
    "run",
    "run_profiles",
]


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
    rights: Rights = Rights.ADMIN,
) -> None:
    """Open the console on these databases and return when the operator quits.

    UsageError without a terminal.
    """
    require_terminal()
    names = _names(databases)
    limits = replace(DEFAULTS, stuck_after_seconds=stuck_after_seconds)
    places = [
        Place(name, database, rights, lambda _: limits, words=url_words(database))
        for database, name in zip(databases, names, strict=True)
    ]
    feeds = [
        SamplerFeed(
            database,
            interval_seconds=interval_seconds,
            stuck_after_seconds=stuck_after_seconds,
            name=name,
        )
        for database, name in zip(databases, names, strict=True)
    ]
    thresholds = {place.name: place.thresholds_of for place in places}
    _run(ConsoleApp(feeds, places=places, banner=banner, rights=rights.word, thresholds=thresholds))


def run_profiles(
    profiles: Sequence[Profile], *, config_path: Path | None, zone: tzinfo | None = UTC
) -> None:
    """Open the console on these connections and return when the operator quits.

    Without any it shows how to get some, and the configuration's path. `zone` is the clock's where
    the profiles have several. UsageError without a terminal; ConnectionFailedError where a profile
    does not even tell its engine.
    """
    require_terminal()
    opened: list[Opening] = []
    for profile in profiles:
        opened.append(open_profile(profile, [one.place.name for one in opened]))
    zones = {profile.display_zone for profile in profiles}
    app = ConsoleApp(
        [one.feed for one in opened],
        places=[one.place for one in opened],
        rights={one.place.name: one.rights for one in opened},
        production={one.place.name for one in opened if one.place.production},
        thresholds={one.place.name: one.thresholds for one in opened},
        zone=zones.pop() if len(zones) == 1 else zone,
        config_path=config_path,
    )
    _run(app)


def _run(app: ConsoleApp) -> None:
    app.run()
    with contextlib.suppress(KeyboardInterrupt):
        app.desk.running.wait(_narrate)
    if app.return_code:
        raise ConsoleError("The console ended because of a mistake of its own; see above.")


def _narrate(line: str) -> None:
    """The terminal is given back by now, or gone."""
    with contextlib.suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def _names(databases: Sequence[Database]) -> list[str]:
    """Their labels, numbered where two connections have the same."""
    names: list[str] = []
    for database in databases:
        names.append(free_name(database.label, names))
    return names
