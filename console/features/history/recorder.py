"""Writes records to segments in a thread of its own, so that samples and screens do not wait."""

import contextlib
import fcntl
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from console import state
from console.errors import ConsoleError, RefusedError
from console.features.history import segments
from console.features.history.segments import KINDS, RecordKind, Row
from console.monitor.sampler import Reading

# A segment is sealed by a process of its own, `python -m console.features.history.recorder`: with
# pyarrow and tens of thousands of lines it would block a console, and keep its memory.

_SECONDS = 300.0


def start_sealing(root: Path, connection: str, path: Path, lock: int) -> "subprocess.Popen[str]":
    """The process outlives this one, and holds the lock while it runs. OSError."""
    # -P: the user's folder may have another project's "console".
    arguments = [sys.executable, "-P", "-m", __name__, str(root), connection, str(path)]
    return subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        pass_fds=(lock,),
        start_new_session=True,
    )


def torn_lines(child: "subprocess.Popen[str]") -> int:
    try:
        output, _ = child.communicate(timeout=_SECONDS)
    except subprocess.TimeoutExpired as error:
        child.kill()
        child.wait()
        raise OSError(None, "it took too long") from error
    if child.returncode:
        raise OSError(None, output.strip() or f"its process ended with {child.returncode}")
    return int(output)


def main() -> None:
    """Seal the segment of the command line; prints the torn lines, or the error."""
    with contextlib.suppress(OSError):
        os.nice(10)
    # The process that started it may have ended, and with it the pipe.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    root, connection, path = sys.argv[1:]
    try:
        torn = segments.seal(Path(root), connection, Path(path)).torn
        segments.merge(Path(root), connection, past_days(_now()))
    except OSError as error:
        print(error.strerror or error)
        sys.exit(1)
    print(torn)


SEGMENT_SECONDS = 300.0
SEGMENT_BYTES = 32 * 2**20
"""The longest time of a segment, and its largest size."""
KEEP_SECONDS = 30 * 86_400.0
MOST_BYTES = 2 * 2**30
_RETRY_SECONDS = 5.0
_SEALING = threading.BoundedSemaphore(2)
"""Segments of all connections that are sealed at the same time."""
_WAITING = 1_000
"""Batches that may wait for a slow disk; others are dropped and counted."""


@dataclass(frozen=True)
class Bounds:
    segment_seconds: float = SEGMENT_SECONDS
    segment_bytes: int = SEGMENT_BYTES
    keep_seconds: float = KEEP_SECONDS
    most_bytes: int = MOST_BYTES


def folder() -> Path:
    return state.folder() / "recordings"


def _now() -> datetime:
    return datetime.now(UTC)


def past_days(now: datetime) -> date:
    """Before this day all is sealed, and who reads open segments has read them."""
    return (now - timedelta(hours=1)).date()


class Recorder:
    """The only one of its connection on this machine. Once created it never raises, and `add` never
    waits."""

    def __init__(
        self,
        root: Path,
        connection: str,
        bounds: Bounds | None = None,
        *,
        now: Callable[[], datetime] = _now,
        apart: bool = False,
    ) -> None:
        """RefusedError: the connection is recorded already; ConsoleError: the folder cannot be
        written. `apart`: segments are sealed by a process of their own."""
        self.connection = connection
        self._root = root
        self._bounds = bounds or Bounds()
        self._now = now
        self._apart = apart
        self.problem = ""
        """Why nothing is recorded at present; empty: it is."""
        self.dropped = 0
        self.torn = 0
        """Lines that a crash cut off in earlier segments."""
        self._lock = _locked(root, connection)
        self._batches: queue.Queue[tuple[RecordKind, tuple[Row, ...]] | None] = queue.Queue(
            _WAITING
        )
        self._ended = threading.Event()
        self._segment: segments.Segment | None = None
        self._opened_at = 0.0
        self._retry_at = 0.0
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def reading(self, reading: Reading) -> None:
        """Record a sample: its queues, or that it failed."""
        at = self._now()
        self.add(segments.LINKS, [segments.link(reading, at)])
        if reading.error is None:
            self.add(segments.SAMPLES, segments.samples(reading, at))

    def add(self, kind: RecordKind, rows: Iterable[Row]) -> None:
        batch = tuple(rows)
        if not batch:
            return
        try:
            self._batches.put_nowait((kind, batch))
        except queue.Full:
            self._failed("the disk is too slow")

    def close(self, timeout_seconds: float = 10.0) -> None:
        """Write what waits, seal the segment and release the connection."""
        self.end()
        self._thread.join(timeout_seconds)

    def end(self) -> None:
        """Close without waiting."""
        self._ended.set()
        with suppress(queue.Full):
            self._batches.put_nowait(None)  # only to wake it

    def _run(self) -> None:
        try:
            self._seal_open_segments()
            while (batch := self._next()) is not None:
                if batch:
                    self._write(*batch)
                self._close_when_due()
            self._close_segment()
        finally:
            os.close(self._lock)

    def _next(self) -> tuple[RecordKind, tuple[Row, ...]] | tuple[()] | None:
        """The next batch; (): none for a while; None: the end."""
        try:
            return self._batches.get(timeout=1.0)
        except queue.Empty:
            return None if self._ended.is_set() else ()

    def _write(self, kind: RecordKind, rows: tuple[Row, ...]) -> None:
        if time.monotonic() < self._retry_at:
            self.dropped += 1
            return
        try:
            if self._segment is None:
                self._segment = segments.Segment(self._root, self.connection, self._now())
                self._opened_at = time.monotonic()
            self._segment.write(kind, rows)
        except Exception as error:  # noqa: BLE001  # the thread has to go on
            self._failed(_reason(error))
            self._retry_at = time.monotonic() + _RETRY_SECONDS
            self._prune()
        else:
            self.problem = ""

    def _failed(self, why: str) -> None:
        self.dropped += 1
        self.problem = f"not recorded: {why}"

    def _close_when_due(self) -> None:
        if self._segment is None:
            return
        old = time.monotonic() - self._opened_at >= self._bounds.segment_seconds
        if old or self._segment.bytes >= self._bounds.segment_bytes:
            self._close_segment()

    def _close_segment(self) -> None:
        segment, self._segment = self._segment, None
        if segment is None:
            return
        try:
            segment.leave()
        except OSError as error:  # the next recorder seals what reached the disk
            self.problem = f"a segment could not be closed: {_reason(error)}"
        else:
            self._seal(segment.path)
        self._prune()

    def _seal_open_segments(self) -> None:
        with suppress(OSError):
            segments.remove_drafts(self._root, self.connection)
        for path in segments.open_segments(self._root, self.connection):
            self._seal(path)
        self._prune()

    def _seal(self, path: Path) -> None:
        """What cannot be sealed stays open: the next recorder tries again."""
        try:
            if self._apart:
                with _SEALING:
                    # It holds the lock too, which keeps other recorders away.
                    sealing = start_sealing(self._root, self.connection, path, self._lock)
                    self.torn += torn_lines(sealing)
            else:
                self.torn += segments.seal(self._root, self.connection, path).torn
                segments.merge(self._root, self.connection, past_days(self._now()))
        except Exception as error:  # noqa: BLE001  # pyarrow's too: the thread has to go on
            self.problem = f"a segment could not be closed: {_reason(error)}"

    def _prune(self) -> None:
        """Remove what is too old, then the oldest, until the rest is small enough."""
        with suppress(OSError):
            prune(self._root, self.connection, self._bounds, self._now())


def prune(root: Path, connection: str, bounds: Bounds, now: datetime) -> int:
    """How many files were removed. OSError."""
    found = sorted(
        (day, path)
        for kind in KINDS.values()
        for day, path in segments.closed(root, kind, connection)
    )
    first = (now - timedelta(seconds=bounds.keep_seconds)).date()
    sizes = {path: path.stat().st_size for _, path in found}
    total = sum(sizes.values())
    removed = 0
    for day, path in found:
        if day >= first and total <= bounds.most_bytes:
            break
        path.unlink()
        total -= sizes[path]
        removed += 1
        with suppress(OSError):
            path.parent.rmdir()  # where that was the last of its day
    return removed


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _locked(root: Path, connection: str) -> int:
    """A descriptor that holds the connection's lock while it is open."""
    folder = segments.open_folder(root, connection)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConsoleError(
            "Could not record.",
            why=f"{folder}: {_reason(error)}",
            next_step="Choose another folder with --recordings.",
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise RefusedError(
            f"The connection {connection!r} is already being recorded.",
            why=f"Another console of this machine holds {folder / 'lock'}.",
        ) from error
    return descriptor


if __name__ == "__main__":
    main()
