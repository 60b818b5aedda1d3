"""Themes; and the terminal, which may be closed, or misused by control characters.

Textual writes in a thread of its own, through a bounded queue. If a write fails that thread dies,
and an exiting console would wait for it forever.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TextIO

from rich.segment import Segment
from textual.app import App
from textual.color import Color
from textual.drivers.linux_driver import LinuxDriver
from textual.filter import LineFilter
from textual.theme import Theme

from console.monitor.filters import Saved

DARK = Theme(
    name="dark",
    primary="#5aa9d6",
    secondary="#7f9bb0",
    accent="#5aa9d6",
    foreground="#d0d6dc",
    background="#12161b",
    surface="#12161b",
    panel="#1c232b",
    success="#7fb77e",
    warning="#e0af52",
    error="#f0696b",
    dark=True,
    # Secondary text stays readable.
    variables={
        "quiet": "#8d98a3",
        "faint": "#6b7681",
        "trend": "#4f7f9f",
        "cursor": "#26475b",
        "mark-red": "#f0696b",
        "mark-orange": "#ee9450",
        "mark-yellow": "#e3cf5a",
        "mark-green": "#7fb77e",
        "mark-cyan": "#55c5cc",
        "mark-blue": "#6a9df2",
        "mark-purple": "#b593f0",
        "mark-pink": "#ee8dc4",
        "mark-grey": "#98a2ad",
    },
)
LIGHT = Theme(
    name="light",
    primary="#1f6a99",
    secondary="#4d6475",
    accent="#1f6a99",
    foreground="#1c232b",
    background="#f7f8f9",
    surface="#f7f8f9",
    panel="#e6eaee",
    success="#2c7a2b",
    warning="#8a5a00",
    error="#b3191c",
    dark=False,
    variables={
        "quiet": "#55606b",
        "faint": "#6b7681",
        "trend": "#2f6f97",
        "cursor": "#bcd9ea",
        "mark-red": "#b3191c",
        "mark-orange": "#b85c00",
        "mark-yellow": "#8a7200",
        "mark-green": "#2c7a2b",
        "mark-cyan": "#00767d",
        "mark-blue": "#1f5fb3",
        "mark-purple": "#6d3fb3",
        "mark-pink": "#b0287a",
        "mark-grey": "#6b7681",
    },
)
CONTRAST = Theme(
    name="contrast",
    primary="#00d7ff",
    secondary="#ffffff",
    accent="#00d7ff",
    foreground="#ffffff",
    background="#000000",
    surface="#000000",
    panel="#1a1a1a",
    success="#00ff5f",
    warning="#ffd700",
    error="#ff5f5f",
    dark=True,
    variables={
        "quiet": "#d0d0d0",
        "faint": "#b0b0b0",
        "trend": "#00d7ff",
        "cursor": "#005f87",
        "mark-red": "#ff5f5f",
        "mark-orange": "#ffaf00",
        "mark-yellow": "#ffff5f",
        "mark-green": "#00ff5f",
        "mark-cyan": "#00ffff",
        "mark-blue": "#5fafff",
        "mark-purple": "#d787ff",
        "mark-pink": "#ff87d7",
        "mark-grey": "#c0c0c0",
    },
)
THEMES = (DARK, LIGHT, CONTRAST)


@dataclass(frozen=True)
class Appearance:
    """The configured look of the screens."""

    theme: str = DARK.name
    colors: Mapping[str, str] = field(default_factory=dict)
    """Connection -> the colour of its mark; ignored without colours."""
    saved: Saved = field(default_factory=Saved)
    """The saved filters."""


DEFAULT_APPEARANCE = Appearance()


class ControlCharFilter(LineFilter):
    """Drops control characters from everything drawn, including input fields.

    Screens make them visible (`console.formats.plain`); this is the safety net.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002
        """The usual case, nothing to drop, is fast."""
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
    """Nothing, as its width is 0; surrogates, which cannot be written, become U+FFFD."""
    return "\ufffd" if sign[0] >= "\ud800" else ""


class TerminalDriver(LinuxDriver):
    """Textual's own, but the console exits when its terminal is gone."""

    def __init__(self, app: App[Any], **given: Any) -> None:
        super().__init__(app, **given)
        self._file: Any = GuardedFile(self._file, self._gone)

    def _gone(self) -> None:
        # A closed event loop means that it has exited already.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._app.exit)


class GuardedFile:
    """Calls `gone` at the first failed write; later writes are dropped."""

    def __init__(self, file: TextIO, gone: Callable[[], None]) -> None:
        self._file = file
        self._tell = gone
        self._gone = False

    def fileno(self) -> int:
        return self._file.fileno()

    def write(self, text: str) -> None:
        self._try(lambda: self._file.write(text))

    def flush(self) -> None:
        self._try(self._file.flush)

    def _try(self, work: Callable[[], object]) -> None:
        if self._gone:
            return
        try:
            work()
        except OSError:
            self._gone = True
            self._tell()
