"""Writes what was seen to segments, in a thread of its own: neither a sample nor a screen waits."""

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
from datetime import UTC, datetime, timedelta
from pathlib import Path

from console import state
from console.errors import ConsoleError, RefusedError
from console.monitor.recording import segments
from console.monitor.recording.segments import KINDS, RecordKind, Row
from console.monitor.sampler import Reading

# Closes a segment in a process of its own: `python -m console.monitor.recording.recorder`.
#
# Tens of thousands of lines are read and pyarrow is loaded for it. A console that did that
# itself
# would stand still meanwhile, and never give the memory back.

_SECONDS = 300.0


def start(root: Path, connection: str, path: Path, lock: int) -> "subprocess.Popen[str]":
    """Begin; the process outlives this one, and holds the lock as long as it runs. OSError."""
    # -P: not the folder in which the user is; another project's "console" may lie there.
    words = [sys.executable, "-P", "-m", __name__, str(root), connection, str(path)]
    return subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        pass_fds=(lock,),
        start_new_session=True,
    )


def outcome(child: "subprocess.Popen[str]") -> int:
    """How many lines were torn. OSError."""
    try:
        told, _ = child.communicate(timeout=_SECONDS)
    except subprocess.TimeoutExpired as error:
        child.kill()
        child.wait()
        raise OSError(None, "it took too long") from error
    if child.returncode:
        raise OSError(None, told.strip() or f"its process ended with {child.returncode}")
    return int(told)


def main() -> None:
    """Close the one that the command line names; what came of it on stdout."""
    with contextlib.suppress(OSError):
        os.nice(10)
    # Whoever started it may be gone by now, and its end of the pipe.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    root, connection, path = sys.argv[1:]
    try:
        torn = segments.seal(Path(root), connection, Path(path)).torn
    except OSError as error:
        print(error.strerror or error)
        sys.exit(1)
    print(torn)


if __name__ == "__main__":
    main()


SEGMENT_SECONDS = 300.0
SEGMENT_BYTES = 32 * 2**20
"""A segment is closed after so long, or when it is so large."""
KEEP_SECONDS = 30 * 86_400.0
MOST_BYTES = 2 * 2**30
_RETRY_SECONDS = 5.0
_SEALING = threading.BoundedSemaphore(2)
"""So many segments are closed at the same time, of however many connections."""
_WAITING = 1_000
"""So many batches may wait for a slow disk; what comes then is dropped, and told."""


@dataclass(frozen=True)
class Bounds:
    """How much is kept: segments, days, bytes of one connection."""

    segment_seconds: float = SEGMENT_SECONDS
    segment_bytes: int = SEGMENT_BYTES
    keep_seconds: float = KEEP_SECONDS
    most_bytes: int = MOST_BYTES


def folder() -> Path:
    return state.folder() / "recordings"


def _now() -> datetime:
    return datetime.now(UTC)


class Recorder:
    """The only one of its connection on this machine, from `open` to `close`. Never raises after.

    Whoever hands it something is never kept waiting.
    """

    def __init__(
        self,
        root: Path,
        connection: str,
        bounds: Bounds | None = None,
        *,
        now: Callable[[], datetime] = _now,
        apart: bool = False,
    ) -> None:
        """RefusedError where another records the connection already; ConsoleError for a folder
        that cannot be written.

        `apart`: segments are closed by a process of their own, which takes neither the time nor
        the memory of this one, and goes on when this one ends.
        """
        self.connection = connection
        self._root = root
        self._bounds = bounds or Bounds()
        self._now = now
        self._apart = apart
        self.problem = ""
        """Why nothing is recorded just now, in words; empty: it is."""
        self.dropped = 0
        """Batches that could not be written."""
        self.torn = 0
        """Lines that a crash had cut off, found in segments that were left."""
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
        """Keep a sample: its queues, or that it failed."""
        at = self._now()
        self.add(segments.LINKS, [segments.link(reading, at)])
        if reading.error is None:
            self.add(segments.SAMPLES, segments.samples(reading, at))

    def add(self, kind: RecordKind, rows: Iterable[Row]) -> None:
        """Keep rows of a kind, in any thread."""
        batch = tuple(rows)
        if not batch:
            return
        try:
            self._batches.put_nowait((kind, batch))
        except queue.Full:
            self._failed("the disk is too slow")

    def close(self, timeout_seconds: float = 10.0) -> None:
        """Write what waits, close the segment, let the connection go. Waits so long at most."""
        self.end()
        self._thread.join(timeout_seconds)

    def end(self) -> None:
        """The same without waiting for it."""
        self._ended.set()
        with suppress(queue.Full):
            self._batches.put_nowait(None)  # it only makes it quicker

    def _run(self) -> None:
        try:
            self._close_leftovers()
            while (batch := self._next()) is not None:
                if batch:
                    self._write(*batch)
                self._close_when_due()
            self._close_segment()
        finally:
            os.close(self._lock)

    def _next(self) -> tuple[RecordKind, tuple[Row, ...]] | tuple[()] | None:
        """The next batch; () where none comes for a while; None at the end."""
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
        except OSError as error:
            self._failed(_words(error))
            self._retry_at = time.monotonic() + _RETRY_SECONDS
            self._make_room()
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
            self._seal(segment.path)
        except OSError as error:
            # It stays as lines; whoever comes next closes it.
            self.problem = f"a segment could not be closed: {_words(error)}"
        self._make_room()

    def _close_leftovers(self) -> None:
        with suppress(OSError):
            segments.remove_drafts(self._root, self.connection)
        for path in segments.open_segments(self._root, self.connection):
            try:
                self.torn += self._seal(path)
            except OSError as error:
                self.problem = f"a segment could not be closed: {_words(error)}"
        self._make_room()

    def _seal(self, path: Path) -> int:
        """How many lines of it were torn. OSError."""
        if not self._apart:
            return segments.seal(self._root, self.connection, path).torn
        with _SEALING:
            # It holds the lock too: whoever comes next does not find it at work.
            return outcome(start(self._root, self.connection, path, self._lock))

    def _make_room(self) -> None:
        """Let go of what is too old, then of the oldest, until the rest is within its bytes."""
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


def _words(error: OSError) -> str:
    return error.strerror or str(error)


def _locked(root: Path, connection: str) -> int:
    """The descriptor that holds the connection's lock for as long as it is open."""
    place = segments.open_folder(root, connection)
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(place / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConsoleError(
            "Could not record.",
            why=f"{place}: {_words(error)}",
            next_step="Choose another folder with --recordings.",
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise RefusedError(
            f"The connection {connection!r} is recorded already.",
            why=f"Another console of this machine holds {place / 'lock'}.",
        ) from error
    return descriptor
