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

from console.filters import Saved

_MARKS = ("orange", "yellow", "cyan", "blue", "purple", "pink", "grey")
"""Colours that themes have only for marks."""


def _theme(name: str, *, marks: str, variables: Mapping[str, str], **colors: Any) -> Theme:
    """`marks`: a colour for each of _MARKS; red and green are those of an error and of success."""
    of_marks = dict(zip(_MARKS, marks.split(), strict=True))
    of_marks |= {"red": colors["error"], "green": colors["success"]}
    return Theme(
        name=name,
        accent=colors["primary"],
        surface=colors["background"],
        variables={**variables, **{f"mark-{mark}": color for mark, color in of_marks.items()}},
        **colors,
    )


DARK = _theme(
    "dark",
    primary="#5aa9d6",
    secondary="#7f9bb0",
    foreground="#d0d6dc",
    background="#12161b",
    panel="#1c232b",
    success="#7fb77e",
    warning="#e0af52",
    error="#f0696b",
    dark=True,
    # Secondary text stays readable.
    variables={"quiet": "#8d98a3", "faint": "#6b7681", "trend": "#4f7f9f", "cursor": "#26475b"},
    marks="#ee9450 #e3cf5a #55c5cc #6a9df2 #b593f0 #ee8dc4 #98a2ad",
)
LIGHT = _theme(
    "light",
    primary="#1f6a99",
    secondary="#4d6475",
    foreground="#1c232b",
    background="#f7f8f9",
    panel="#e6eaee",
    success="#2c7a2b",
    warning="#8a5a00",
    error="#b3191c",
    dark=False,
    variables={"quiet": "#55606b", "faint": "#6b7681", "trend": "#2f6f97", "cursor": "#bcd9ea"},
    marks="#b85c00 #8a7200 #00767d #1f5fb3 #6d3fb3 #b0287a #6b7681",
)
CONTRAST = _theme(
    "contrast",
    primary="#00d7ff",
    secondary="#ffffff",
    foreground="#ffffff",
    background="#000000",
    panel="#1a1a1a",
    success="#00ff5f",
    warning="#ffd700",
    error="#ff5f5f",
    dark=True,
    variables={"quiet": "#d0d0d0", "faint": "#b0b0b0", "trend": "#00d7ff", "cursor": "#005f87"},
    marks="#ffaf00 #ffff5f #00ffff #5fafff #d787ff #ff87d7 #c0c0c0",
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
            Segment(_CONTROL_CHARS.sub(_replacement, text), style, control)
            for text, style, control in segments
        ]


_CONTROL_CHARS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def _replacement(sign: re.Match[str]) -> str:
    """Nothing, as its width is 0; surrogates, which cannot be written, become U+FFFD."""
    return "\ufffd" if sign[0] >= "\ud800" else ""


class TerminalDriver(LinuxDriver):
    """Textual's own, but the console exits when its terminal is gone."""

    def __init__(self, app: App[Any], **given: Any) -> None:
        super().__init__(app, **given)
        self._file: Any = GuardedFile(self._file, self._exit_app)

    def _exit_app(self) -> None:
        # A closed event loop means that it has exited already.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._app.exit)


class GuardedFile:
    """Calls `on_failure` at the first failed write; later writes are dropped."""

    def __init__(self, file: TextIO, on_failure: Callable[[], None]) -> None:
        self._file = file
        self._on_failure = on_failure
        self._failed = False

    def fileno(self) -> int:
        return self._file.fileno()

    def write(self, text: str) -> None:
        self._try(lambda: self._file.write(text))

    def flush(self) -> None:
        self._try(self._file.flush)

    def _try(self, work: Callable[[], object]) -> None:
        if self._failed:
            return
        try:
            work()
        except OSError:
            self._failed = True
            self._on_failure()
