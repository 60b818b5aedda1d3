"""Where the screens' readings go, and what they show instead of connections.

A feature makes both, in its package `recordings`: `Recordings`, and `replay`, the application on a
folder of recordings.
"""

from collections.abc import Sequence
from datetime import tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from console import features
from console.doctor.finding import Diagnosis
from console.monitor.past import without_past
from console.monitor.sampler import Reading
from console.tui.open_connection import OpenConnection

if TYPE_CHECKING:
    from textual.app import App


class ConnectionRecorder(Protocol):
    """Of one connection. Called in the threads of its feed and its doctor."""

    def on_reading(self, reading: Reading, /) -> None: ...

    def add_diagnoses(self, diagnoses: Sequence[Diagnosis], /) -> None: ...


class Recordings(Protocol):
    """The recorders of a console, which share one folder."""

    @property
    def root(self) -> Path: ...

    def add(self, conn: OpenConnection, /) -> ConnectionRecorder | None:
        """Add a connection; None: it is configured not to be recorded."""

    def get(self, name: str, /) -> ConnectionRecorder | None: ...

    def status(self, name: str, /) -> str:
        """Of a connection, for display; safe to show."""
        ...

    @property
    def problem(self) -> str:
        """The first connection that is not recorded although it should be, and why."""
        ...

    def stop(self) -> None:
        """Without waiting."""

    def wait(self, seconds: float, /) -> None:
        """For at most that long, until everything is written."""


class Replay(Protocol):
    """A recording that is played."""

    @property
    def root(self) -> Path: ...

    def toggle(self) -> None:
        """Pause, or play on."""

    def corner_text(self, zone: tzinfo | None, /) -> str:
        """The end of the first line."""
        ...

    def line(self, zone: tzinfo | None, width: int, /) -> str:
        """The last line."""
        ...


def recordings_in(root: Path | None, slower: float) -> Recordings | None:
    """None: nothing is recorded. `slower`: everything costlier than samples is done less often."""
    made: Recordings | None = None
    if root is not None and (package := _package()) is not None:
        made = package.Recordings(root, slower=slower)
    return made


def replay_in(root: Path, at: str | None, **options: Any) -> "App[Any]":
    """The console on the recordings in a folder, at a time (`03:00`, or ISO). UsageError."""
    if (package := _package()) is None:
        raise without_past("--replay")
    app: App[Any] = package.replay(root, at, **options)
    return app


def _package() -> Any | None:
    return next(iter(features.modules("recordings")), None)
