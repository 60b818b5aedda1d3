"""The log file of this user's console: failures, and with --log-level info all calls.

It contains only the console's own text: no driver message (which may repeat a payload), no
statement, value or argument. Exceptions are logged with type and stack, without their text.
"""

import fcntl
import logging
import os
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import TracebackType
from typing import IO

from console import state
from console.errors import ConsoleError, UsageError
from console.formats import plain

MOST_BYTES = 2 * 2**20
KEPT = 5
"""Rotated files, besides the current one."""
_OURS = "console"


def default_path() -> Path:
    """Where the file is, unless the configuration names another."""
    return state.folder() / "dbq-console.log"


@contextmanager
def logging_to_file(level: str | None) -> Iterator[None]:
    """Send this package's log to the file; `level` overrides the configuration."""
    path, effective = _settings(level)
    if path is None:
        yield
        return
    handler = LogFile(path)
    logger = logging.getLogger(_OURS)
    before = logger.level
    logger.setLevel(effective.upper())
    handler.setLevel(effective.upper())
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        handler.close()


def _settings(level: str | None) -> tuple[Path | None, str]:
    from console import config  # noqa: PLC0415  # a verb imports what it uses
    from console.config import LOG_FILE, LOG_LEVEL  # noqa: PLC0415

    try:
        settings = config.load().defaults
    except ConsoleError:  # reported by the verb that needs it
        return _or_none(None), level or LOG_LEVEL.default
    return _or_none(settings[LOG_FILE]), level or settings[LOG_LEVEL]


def _or_none(named: str | None) -> Path | None:
    from console.config.values import OFF  # noqa: PLC0415  # a verb imports what it uses

    if named == OFF:
        return None
    try:
        return default_path() if named is None else Path(named).expanduser()
    except RuntimeError:  # a user without a home
        return None


def error_text(error: ConsoleError) -> str:
    """An error for the log, without `why` (the driver's text) and arguments (of a UsageError)."""
    words = "" if isinstance(error, UsageError) else f": {error.what}"
    # A name may contain bytes that are not text, which could not be written.
    return f"{type(error).__name__}{words}".encode(errors="backslashreplace").decode()


class LogFile(RotatingFileHandler):
    """A file that several processes may write at once; failures to write are ignored."""

    def __init__(self, path: Path, *, most_bytes: int = MOST_BYTES, kept: int = KEPT) -> None:
        super().__init__(path, maxBytes=most_bytes, backupCount=kept, encoding="utf-8", delay=True)
        self.setFormatter(_Line())

    def _open(self) -> IO[str]:  # type: ignore[override]  # typeshed names a class of its own
        """Readable by this user only."""
        Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True, mode=0o700)

        def private(path: str, flags: int) -> int:
            return os.open(path, flags, 0o600)

        return open(self.baseFilename, self.mode, encoding=self.encoding, opener=private)

    def emit(self, record: logging.LogRecord) -> None:
        """Write to the current file of that name: another process may have rotated it."""
        if self.stream is not None and self._moved():
            self.stream.close()
            self.stream = None
        super().emit(record)

    def doRollover(self) -> None:  # noqa: N802  # the standard library's name
        """Rotate, unless another process has done so."""
        with _alone(Path(f"{self.baseFilename}.lock")):
            if not self._moved():
                super().doRollover()

    def _moved(self) -> bool:
        if self.stream is None:
            return True
        try:
            there, ours = os.stat(self.baseFilename), os.fstat(self.stream.fileno())  # noqa: PTH116
        except FileNotFoundError:
            return True
        return (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """On a full disk, say, the call continues without a log."""


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class _Line(logging.Formatter):
    """One line per record, without control characters."""

    converter = staticmethod(time.gmtime)
    default_msec_format = "%s.%03dZ"
    default_time_format = "%Y-%m-%dT%H:%M:%S"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return plain(super().format(record))

    def formatException(  # noqa: N802
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None]
        | tuple[None, None, None],
    ) -> str:
        """The chain of exceptions: types and stacks, no texts."""
        parts = []
        error = ei[1]
        while error is not None:
            frames = traceback.extract_tb(error.__traceback__)
            stack = " < ".join(
                f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
                for frame in reversed(frames)
            )
            parts.append(f"{type(error).__name__} at {stack}")
            error = error.__cause__ or error.__context__
        return "; after ".join(parts)
