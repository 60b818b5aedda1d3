"""The log file of this user's console: what went wrong, and with --log-level info what was called.

Only the console's own words are in it: never what a driver says (it may repeat a payload), never a
statement, a value or an argument. Of an exception it has the kind and the places, not the text.
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
"""So many files of earlier lines, besides the one that is written."""
_OURS = "console"


def place() -> Path:
    """Where the file is, unless the configuration names another."""
    return state.folder() / "dbq-console.log"


@contextmanager
def logging_to_file(level: str | None) -> Iterator[None]:
    """Let what this package logs go to the file, as `level` or the configuration says."""
    path, wanted = _settled(level)
    if path is None:
        yield
        return
    handler = LogFile(path)
    logger = logging.getLogger(_OURS)
    before = logger.level
    logger.setLevel(wanted.upper())
    handler.setLevel(wanted.upper())
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        handler.close()


def _settled(level: str | None) -> tuple[Path | None, str]:
    from console import config  # noqa: PLC0415  # a verb imports what it uses
    from console.config import LOG_FILE, LOG_LEVEL  # noqa: PLC0415

    try:
        settings = config.load().defaults
    except ConsoleError:  # the verb that needs it says what is wrong with it
        return _or_none(None), level or LOG_LEVEL.default
    return _or_none(settings[LOG_FILE]), level or settings[LOG_LEVEL]


def _or_none(named: str | None) -> Path | None:
    from console.config.kinds import OFF  # noqa: PLC0415  # a verb imports what it uses

    if named == OFF:
        return None
    try:
        return place() if named is None else Path(named).expanduser()
    except RuntimeError:  # a user without a home
        return None


def told(error: ConsoleError) -> str:
    """An error in a line of the log: `why` is the driver's, and wrong use repeats what was said."""
    words = "" if isinstance(error, UsageError) else f": {error.what}"
    # A name may hold bytes that are no text, which no file could take.
    return f"{type(error).__name__}{words}".encode(errors="backslashreplace").decode()


class LogFile(RotatingFileHandler):
    """Several processes may write it at once; one that cannot be written disturbs nobody."""

    def __init__(self, path: Path, *, most_bytes: int = MOST_BYTES, kept: int = KEPT) -> None:
        super().__init__(path, maxBytes=most_bytes, backupCount=kept, encoding="utf-8", delay=True)
        self.setFormatter(_Line())

    def _open(self) -> IO[str]:  # type: ignore[override]  # typeshed names a class of its own
        """Nobody else on this machine shall read it."""
        Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True, mode=0o700)

        def private(path: str, flags: int) -> int:
            return os.open(path, flags, 0o600)

        return open(self.baseFilename, self.mode, encoding=self.encoding, opener=private)

    def emit(self, record: logging.LogRecord) -> None:
        """Write it, to the file that has the name now: another process may have put it away."""
        if self.stream is not None and self._moved():
            self.stream.close()
            self.stream = None
        super().emit(record)

    def doRollover(self) -> None:  # noqa: N802  # the standard library's name
        """Put the file away; of several processes that want to, the first one does."""
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
        """A full disk or a closed folder: what is done here goes on without a log."""


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class _Line(logging.Formatter):
    """One record, one line; nothing in it moves a cursor."""

    converter = staticmethod(time.gmtime)
    default_msec_format = "%s.%03dZ"
    default_time_format = "%Y-%m-%dT%H:%M:%S"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        return plain(super().format(record))

    def formatException(  # noqa: N802
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None]
        | tuple[None, None, None],
    ) -> str:
        """The chain of exceptions: kinds and places, no texts."""
        parts = []
        error = ei[1]
        while error is not None:
            frames = traceback.extract_tb(error.__traceback__)
            places = " < ".join(
                f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
                for frame in reversed(frames)
            )
            parts.append(f"{type(error).__name__} at {places}")
            error = error.__cause__ or error.__context__
        return "; after ".join(parts)
