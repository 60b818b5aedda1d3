"""The terminal user interface: draws what the monitor sees, and asks no database itself."""

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, tzinfo
from pathlib import Path

from console.catalog import STUCK_AFTER_SECONDS
from console.config import Profile
from console.engines import Database
from console.errors import ConsoleError, UsageError
from console.monitor.limits import DEFAULTS, ThresholdsOf
from console.rights import Rights
from console.tui.app import ConsoleApp
from console.tui.feed import Clock, Feed, SamplerFeed
from console.tui.opening import Opening, free_name, open_profile
from console.tui.places import Place, url_words
from console.tui.replay import open_replay
from console.tui.themes import DEFAULT_TASTE, Taste

__all__ = [
    "Clock",
    "ConsoleApp",
    "Feed",
    "SamplerFeed",
    "Taste",
    "require_terminal",
    "run",
    "run_profiles",
    "run_replay",
]


_LOG = logging.getLogger(__name__)


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
    recordings: Path | None = None,
    taste: Taste = DEFAULT_TASTE,
) -> None:
    """Open the console on these databases and return when the operator quits.

    `recordings`: the folder to which what is seen is recorded; None: nothing is. UsageError
    without a terminal.
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
    app = ConsoleApp(
        feeds,
        places=places,
        banner=banner,
        rights=rights.word,
        thresholds=thresholds,
        recordings=recordings,
        taste=taste,
    )
    _run(app)


def run_profiles(
    profiles: Sequence[Profile],
    *,
    config_path: Path | None,
    zone: tzinfo | None = UTC,
    recordings: Path | None = None,
    taste: Taste = DEFAULT_TASTE,
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
        recordings=recordings,
        taste=taste,
    )
    _run(app)


def run_replay(
    root: Path,
    at: str | None,
    *,
    zone: tzinfo | None = UTC,
    thresholds: Mapping[str, ThresholdsOf] | None = None,
    taste: Taste = DEFAULT_TASTE,
) -> None:
    """Open the console on the recordings in a folder, at a time (`03:00`, or ISO).

    UsageError without a terminal, or such a folder; NothingRecordedError where there is nothing.
    """
    from console.tui.replay_app import ReplayApp  # noqa: PLC0415  # for this only

    replay = open_replay(root, at, zone, time.monotonic)
    require_terminal()
    _run(ReplayApp(replay, zone=zone, thresholds=thresholds, taste=taste))


def _run(app: ConsoleApp) -> None:
    # What libraries log, and how a thread without its database ends, is nothing for the terminal.
    logging.getLogger().addHandler(logging.NullHandler())
    threading.excepthook = _log_thread
    app.run()
    with contextlib.suppress(KeyboardInterrupt):
        app.desk.running.wait(_narrate)
        if app.desk.recordings is not None:
            app.desk.recordings.wait()
    if app.return_code:
        raise ConsoleError("The console ended because of a mistake of its own; see above.")


def _log_thread(end: threading.ExceptHookArgs) -> None:
    if end.exc_value is not None:
        _LOG.error("a thread has ended", exc_info=end.exc_value)


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
