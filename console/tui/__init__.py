"""The terminal user interface: draws what the monitor sees, and asks no database itself."""

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Any

# A key is painted in two frames, the row under the cursor and what is told of it: at Textual's 60
# a second the other one comes 17 ms later. Read when Textual is imported.
os.environ["TEXTUAL_FPS"] = os.environ.get("TEXTUAL_FPS", "120")

from console.catalog import STUCK_AFTER_SECONDS
from console.config import Profile
from console.engines import Database
from console.errors import ConsoleError, UsageError
from console.monitor.limits import DEFAULTS, ThresholdsOf
from console.monitor.sampler import Sampler, WorkLimiter
from console.rights import Rights
from console.tui.app import ConsoleApp
from console.tui.context import FEW_CONNECTIONS, Clock, Feed, Setup
from console.tui.open_connection import (
    OpenConnection,
    PendingConnection,
    free_name,
    open_profile,
    url_options,
)
from console.tui.terminal import DEFAULT_APPEARANCE, Appearance

__all__ = [
    "Appearance",
    "Clock",
    "ConsoleApp",
    "Feed",
    "app_on",
    "require_terminal",
    "run",
    "run_profiles",
    "run_replay",
]


_LOG = logging.getLogger(__name__)
_AT_ONCE = 12
"""Connections that are opened or sampled at the same time..."""
_TURN_SECONDS = 2.0
"""... where each of them takes no longer; one that does keeps nobody waiting."""


def require_terminal() -> None:
    """UsageError, on one line, where there is no terminal to draw on (Textual draws on stderr)."""
    if (kind := os.environ.get("TERM", "").lower()) in {"dumb", "unknown"}:
        raise UsageError(
            f"The console needs a terminal that can move its cursor, and TERM is {kind}. "
            "Without one: dbq-console status"
        )
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
    appearance: Appearance = DEFAULT_APPEARANCE,
) -> None:
    """Open the console on these databases and return when the operator quits.

    `recordings`: the folder to which what is seen is recorded; None: nothing is. UsageError
    without a terminal.
    """
    require_terminal()
    names = _names(databases)
    limits = replace(DEFAULTS, stuck_after_seconds=stuck_after_seconds)
    connections = [
        OpenConnection(name, database, rights, lambda _: limits, cli_options=url_options(database))
        for database, name in zip(databases, names, strict=True)
    ]
    feeds = [
        Sampler(
            database,
            interval_seconds=interval_seconds,
            stuck_after_seconds=stuck_after_seconds,
            name=name,
        )
        for database, name in zip(databases, names, strict=True)
    ]
    thresholds = {conn.name: conn.thresholds_of for conn in connections}
    setup = Setup(
        connections,
        banner=banner,
        rights=rights.word,
        thresholds=thresholds,
        recordings=recordings,
        appearance=appearance,
    )
    _run(ConsoleApp(feeds, setup))


def run_profiles(profiles: Sequence[Profile], **how: Any) -> None:
    """Open the console on these connections, as `app_on` says, and return when the operator quits.

    UsageError without a terminal, and what `app_on` raises.
    """
    require_terminal()
    _run(app_on(profiles, **how))


def app_on(
    profiles: Sequence[Profile],
    *,
    config_path: Path | None,
    zone: tzinfo | None = UTC,
    recordings: Path | None = None,
    appearance: Appearance = DEFAULT_APPEARANCE,
    by_group: bool = False,
) -> ConsoleApp:
    """The console on these connections; without any it shows how to get some, and the
    configuration's path.

    `zone` is the clock's where the profiles have several; `by_group`: it begins with a line for
    each connection. UsageError; ConnectionFailedError where a profile does not tell its engine.
    """
    opened: list[PendingConnection] = []
    turns = WorkLimiter(_AT_ONCE, _TURN_SECONDS)
    for profile in profiles:
        opened.append(open_profile(profile, [one.conn.name for one in opened], turns))
    zones = {profile.display_zone for profile in profiles}
    setup = Setup(
        [one.conn for one in opened],
        rights={one.conn.name: one.rights for one in opened},
        production={one.conn.name for one in opened if one.conn.production},
        thresholds={one.conn.name: one.conn.thresholds_of for one in opened},
        zone=zones.pop() if len(zones) == 1 else zone,
        config_path=config_path,
        recordings=recordings,
        appearance=appearance,
        by_group=by_group or len(opened) > FEW_CONNECTIONS,
    )
    return ConsoleApp([one.feed for one in opened], setup)


def run_replay(
    root: Path,
    at: str | None,
    *,
    zone: tzinfo | None = UTC,
    thresholds: Mapping[str, ThresholdsOf] | None = None,
    groups: Mapping[str, str] | None = None,
    appearance: Appearance = DEFAULT_APPEARANCE,
) -> None:
    """Open the console on the recordings in a folder, at a time (`03:00`, or ISO).

    UsageError without a terminal, or such a folder; NothingRecordedError where there is nothing.
    """
    from console.tui.replay import ReplayApp, open_replay  # noqa: PLC0415  # for this only

    replay = open_replay(root, at, zone, time.monotonic)
    require_terminal()
    app = ReplayApp(replay, zone=zone, thresholds=thresholds, groups=groups, appearance=appearance)
    _run(app)


def _run(app: ConsoleApp) -> None:
    # What libraries log, and how a thread without its database ends, is nothing for the terminal.
    logging.getLogger().addHandler(logging.NullHandler())
    threading.excepthook = _log_thread
    app.run()
    with contextlib.suppress(KeyboardInterrupt):
        app.context.action_runs.wait(_narrate)
        if app.context.recordings is not None:
            app.context.recordings.wait()
    if app.return_code:
        raise ConsoleError("The console ended because of a defect of its own; see above.")


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
