"""The terminal, which may go away: a window that is closed, a line that is cut.

Textual writes in a thread of its own, through a queue that is not endless. Where a write fails that
thread dies, and a console that ends waits for it for ever, with all that it holds open.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO

from textual.app import App
from textual.drivers.linux_driver import LinuxDriver


class TerminalDriver(LinuxDriver):
    """Textual's own; where its terminal is gone the console ends, as if it had been told to."""

    def __init__(self, app: App[Any], **given: Any) -> None:
        super().__init__(app, **given)
        self._file: Any = Written(self._file, self._gone)

    def _gone(self) -> None:
        # Where the loop is closed, it has ended.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._app.exit)


class Written:
    """A file to write to. The first write that fails is told, and all that follow go nowhere."""

    def __init__(self, file: TextIO, gone: Callable[[], None]) -> None:
        self._file = file
        self._tell = gone
        self._gone = False

    def fileno(self) -> int:
        """The file's own."""
        return self._file.fileno()

    def write(self, text: str) -> None:
        """As a file's."""
        self._try(lambda: self._file.write(text))

    def flush(self) -> None:
        """As a file's."""
        self._try(self._file.flush)

    def _try(self, work: Callable[[], object]) -> None:
        if self._gone:
            return
        try:
            work()
        except OSError:
            self._gone = True
            self._tell()
