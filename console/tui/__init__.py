"""The terminal user interface: it draws snapshots and never queries a database itself."""

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Any

# A key press is painted in two frames, the row under the cursor and its details: at Textual's
# default of 60 a second the second one comes 17 ms later. Read when Textual is imported.
os.environ["TEXTUAL_FPS"] = os.environ.get("TEXTUAL_FPS", "120")

from console.catalog import STUCK_AFTER_SECONDS
from console.config import Profile
from console.engines import Database
from console.errors import ConsoleError, UsageError
from console.monitor.limits import DEFAULTS
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
from console.tui.recordings import replay_in
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
"""How many connections are opened or sampled at the same time..."""
_TURN_SECONDS = 2.0
"""... unless one takes longer than this: then it no longer counts."""
_RECORDED_SECONDS = 0.5
"""How long a console that quits waits for its recordings."""


def require_terminal() -> None:
    """UsageError without a terminal to draw on (Textual draws on stderr)."""
    if (kind := os.environ.get("TERM", "").lower()) in {"dumb", "unknown"}:
        raise UsageError(
            f"The console needs a terminal that can move its cursor, but TERM is {kind}. "
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

    `recordings`: the folder to record to; None: nothing is recorded. UsageError without a
    terminal.
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


def run_profiles(profiles: Sequence[Profile], **options: Any) -> None:
    """Open the console on these connections, as `app_on` says, and return when the operator quits.

    UsageError without a terminal, and what `app_on` raises.
    """
    require_terminal()
    _run(app_on(profiles, **options))


def app_on(
    profiles: Sequence[Profile],
    *,
    config_path: Path | None,
    zone: tzinfo | None = UTC,
    recordings: Path | None = None,
    appearance: Appearance = DEFAULT_APPEARANCE,
    by_group: bool = False,
) -> ConsoleApp:
    """The console on these connections; without any it shows how to add one.

    `zone`: for the clock, if the profiles have several; `by_group`: start with one line per
    connection. UsageError; ConnectionFailedError if a profile does not name its engine.
    """
    opened: list[PendingConnection] = []
    turns = WorkLimiter(_AT_ONCE, _TURN_SECONDS)
    for profile in profiles:
        opened.append(open_profile(profile, [connection.conn.name for connection in opened], turns))
    zones = {profile.display_zone for profile in profiles}
    setup = Setup(
        [connection.conn for connection in opened],
        rights={connection.conn.name: connection.rights for connection in opened},
        production={connection.conn.name for connection in opened if connection.conn.production},
        thresholds={connection.conn.name: connection.conn.thresholds_of for connection in opened},
        zone=zones.pop() if len(zones) == 1 else zone,
        config_path=config_path,
        recordings=recordings,
        appearance=appearance,
        by_group=by_group or len(opened) > FEW_CONNECTIONS,
    )
    return ConsoleApp([connection.feed for connection in opened], setup)


def run_replay(root: Path, at: str | None, **options: Any) -> None:
    """Open the console on the recordings in a folder, as `replay_in` says.

    UsageError without a terminal, and what `replay_in` raises.
    """
    app = replay_in(root, at, **options)
    assert isinstance(app, ConsoleApp)  # noqa: S101  # of the feature, which extends it
    require_terminal()
    _run(app)


def _run(app: ConsoleApp) -> None:
    # Logs of libraries and tracebacks of threads must not reach the terminal.
    logging.getLogger().addHandler(logging.NullHandler())
    threading.excepthook = _log_thread
    app.run()
    with contextlib.suppress(KeyboardInterrupt):
        app.context.action_runs.wait(_print_to_stderr)
        if app.context.recordings is not None:
            app.context.recordings.wait(_RECORDED_SECONDS)
    if app.return_code:
        raise ConsoleError("The console ended because of an internal error; see above.")


def _log_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None:
        _LOG.error("a thread has failed", exc_info=args.exc_value)


def _print_to_stderr(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def _names(databases: Sequence[Database]) -> list[str]:
    """Their labels, numbered if several have the same."""
    names: list[str] = []
    for database in databases:
        names.append(free_name(database.label, names))
    return names
