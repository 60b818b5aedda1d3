"""While the console runs it records: a recorder for each connection, fed by the feeds' threads.

The event loop only reads the status and stops it. `replay` is the console on what was recorded.
"""

import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any

from console.doctor.finding import Diagnosis
from console.errors import ConsoleError, RefusedError
from console.features.history.recorder import SEGMENT_SECONDS, Bounds, Recorder
from console.features.history.segments import CONSUMERS, FINDINGS
from console.monitor.sampler import Reading
from console.tui.open_connection import OpenConnection
from console.tui.text import first_line

if TYPE_CHECKING:
    from console.features.history.recording import WaitsAndActions
    from console.tui.app import ConsoleApp

RETRY_SECONDS = 30.0
"""Another console may stop recording the connection; a full disk may be cleared."""


class ConnectionRecorder:
    """Records one connection, from its first reading on."""

    def __init__(
        self,
        root: Path,
        conn: OpenConnection,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        slower: float = 1.0,
    ) -> None:
        """`slower`: the factor by which everything costlier than samples is done less often."""
        self._root = root
        self._conn = conn
        self._slower = slower
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._stopped = False
        self._recorder: Recorder | None = None
        self._waits_and_actions: WaitsAndActions | None = None
        self._why_not = ""
        self._recorded_elsewhere = False
        self._retry_at = 0.0

    # In the threads of the feed and the doctor.

    def on_reading(self, reading: Reading) -> None:
        with self._lock:
            if not self._stopped and self._recorder is None and self._monotonic() >= self._retry_at:
                self._open()
            waits_and_actions = self._waits_and_actions
        if waits_and_actions is not None:
            waits_and_actions.sampled(reading)

    def add_diagnoses(self, diagnoses: Sequence[Diagnosis]) -> None:
        """Record findings and consumers."""
        from console.features.history.recording import consumers, findings  # noqa: PLC0415  # as below

        recorder = self._recorder
        if recorder is not None:
            at = datetime.now(UTC)
            recorder.add(FINDINGS, findings(diagnoses, at))
            recorder.add(CONSUMERS, consumers(diagnoses, at))

    def _open(self) -> None:
        # Imported in the feed's thread, so that the console starts at once.
        from console.features.history.recording import WaitsAndActions  # noqa: PLC0415

        self._retry_at = self._monotonic() + RETRY_SECONDS
        conn = self._conn
        try:
            bounds = Bounds(segment_seconds=SEGMENT_SECONDS * self._slower)
            recorder = Recorder(self._root, conn.name, bounds, apart=True)
        except RefusedError:
            self._recorded_elsewhere, self._why_not = True, ""
            return
        except ConsoleError as error:
            # The cause first: of a long path the end is cut off.
            path_text, _, why = (error.why or error.what).rpartition(": ")
            self._recorded_elsewhere, self._why_not = False, f"not recorded: {why}: {path_text}"
            return
        self._recorded_elsewhere, self._why_not = False, ""
        # Readings and findings come from the console's watcher.
        waits_and_actions = WaitsAndActions(conn.database, recorder, slower=self._slower)
        waits_and_actions.start()
        self._recorder, self._waits_and_actions = recorder, waits_and_actions
        if self._stopped:
            self.stop()

    # In any thread.

    @property
    def problem(self) -> str:
        """Why nothing is recorded although it should be: one safe line; or empty."""
        recorder = self._recorder
        return first_line(recorder.problem if recorder is not None else self._why_not)

    @property
    def status(self) -> str:
        """For display; safe to show."""
        if self._recorded_elsewhere:
            return "recorded by another console"
        if self.problem:
            return self.problem
        return "not recorded yet" if self._recorder is None else f"recorded to {self._root}"

    def stop(self) -> None:
        """Stop recording, without waiting."""
        # Not even for the lock: its holder may be waiting for a disk.
        self._stopped = True
        waits_and_actions, recorder = self._waits_and_actions, self._recorder
        if waits_and_actions is not None:
            waits_and_actions.stop()
        if recorder is not None:
            recorder.end()

    def wait(self, until: float) -> None:
        """Wait until its segment is closed, or until then; the next recorder closes the rest."""
        recorder = self._recorder
        if recorder is not None:
            recorder.close(max(0.0, until - time.monotonic()))


class Recordings:
    """The recorders of a console, which share one folder."""

    def __init__(self, root: Path, *, slower: float = 1.0) -> None:
        self.root = root
        self._slower = slower
        self._by_name: dict[str, ConnectionRecorder] = {}

    def add(self, conn: OpenConnection) -> ConnectionRecorder | None:
        """Add a connection; None: it is configured not to be recorded."""
        if not conn.record:
            return None
        self._by_name[conn.name] = ConnectionRecorder(self.root, conn, slower=self._slower)
        return self._by_name[conn.name]

    def get(self, name: str) -> ConnectionRecorder | None:
        return self._by_name.get(name)

    def status(self, name: str) -> str:
        recorder = self.get(name)
        return "not recorded: record = false" if recorder is None else recorder.status

    @property
    def problem(self) -> str:
        """The first connection that is not recorded although it should be, and why."""
        for name, one in self._by_name.items():
            if one.problem:
                return f"{first_line(name)}: {one.problem}"
        return ""

    def stop(self) -> None:
        for recorder in self._by_name.values():
            recorder.stop()

    def wait(self, seconds: float) -> None:
        """Wait for all segments to be closed."""
        until = time.monotonic() + seconds
        for recorder in self._by_name.values():
            recorder.wait(until)


def replay(root: Path, at: str | None, *, zone: tzinfo | None = UTC, **setup: Any) -> "ConsoleApp":
    """The console on the recordings in a folder, at a time (`03:00`, or ISO).

    `setup`: as of `ReplayApp`. UsageError without such a folder; NothingRecordedError if it has no
    recording.
    """
    from console.features.history.recordings.player import open_replay  # noqa: PLC0415
    from console.features.history.recordings.replay_app import ReplayApp  # noqa: PLC0415

    return ReplayApp(open_replay(root, at, zone, time.monotonic), zone=zone, **setup)
