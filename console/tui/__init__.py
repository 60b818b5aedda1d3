"""The terminal user interface: draws what the monitor sees, and asks no database itself."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, tzinfo
from pathlib import Path

from console.catalog import STUCK_AFTER_SECONDS
from console.config import Profile
from console.engines import Database
from console.errors import ConsoleError, UsageError
from console.monitor.limits import DEFAULTS
from console.rights import Login, Rights, Standing
from console.tui.app import ConsoleApp
from console.tui.feed import Clock, Feed, SamplerFeed
from console.tui.places import Place, place_of, url_words

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
    databases = [profile.open() for profile in profiles]
    names = _names(databases)
    each = list(zip(profiles, databases, names, strict=True))
    feeds = [
        SamplerFeed(
            database,
            interval_seconds=profile.interval_seconds,
            stuck_after_seconds=profile.stuck_after_seconds,
            name=name,
        )
        for profile, database, name in each
    ]
    zones = {profile.display_zone for profile in profiles}
    app = ConsoleApp(
        feeds,
        places=[place_of(profile, database, name) for profile, database, name in each],
        rights={name: _rights_words(profile, database) for profile, database, name in each},
        production={name for profile, _, name in each if profile.production},
        thresholds={name: profile.thresholds for profile, _, name in each},
        zone=zones.pop() if len(zones) == 1 else zone,
        config_path=config_path,
    )
    _run(app)


def _rights_words(profile: Profile, database: Database) -> Callable[[Login | None], str]:
    transactions = bool(database.product.read_only_options)
    return lambda login: Standing(profile.rights, login, transactions=transactions).words


def _run(app: ConsoleApp) -> None:
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
