"""The terminal, which obeys what is written to it, and may go away: a window closed, a line cut.

Textual writes in a thread of its own, through a queue that is not endless. Where a write fails that
thread dies, and a console that ends waits for it for ever, with all that it holds open.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO

from rich.segment import Segment
from textual.app import App
from textual.color import Color
from textual.drivers.linux_driver import LinuxDriver
from textual.filter import LineFilter


class Harmless(LineFilter):
    """What a terminal would obey is not drawn, wherever it came from: a field's text, a paste.

    Screens make visible what they show (`console.formats.plain`); this is for what they forgot.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002
        """The same where nothing is to be left out: it takes no room."""
        if all(segment.text.isprintable() for segment in segments):
            return segments
        return [
            Segment(_OBEYED.sub(_instead, text), style, control)
            for text, style, control in segments
        ]


_OBEYED = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def _instead(sign: re.Match[str]) -> str:
    """As wide, that is nothing; what is no Unicode cannot be written at all."""
    return "\ufffd" if sign[0] >= "\ud800" else ""


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
