"""Text on a screen: safe, shortened, styled by meaning, and redrawn only when it changes."""

from collections.abc import Sequence
from typing import Protocol, cast

from rich.cells import cell_len, set_cell_size
from rich.style import Style
from rich.text import Text
from textual.widget import Widget
from textual.widgets import Input, Static

from console import formats
from console.config.values import COLORS
from console.errors import ConsoleError
from console.monitor.limits import Severity


class _Styled(Protocol):
    """The app, as far as texts need it."""

    def style_named(self, name: str) -> Style: ...


_BARS = "▁▂▃▄▅▆▇█"

plain = formats.plain
first_line = formats.first_line


def describe_error(error: ConsoleError) -> str:
    """What could not be done, why, and what to do next; safe to show."""
    return "\n".join(map(plain, str(error).splitlines()))


def sentence(text: str) -> str:
    """`no rights` becomes `No rights.`"""
    return f"{text[:1].upper()}{text[1:]}."


def shorten(text: str, width: int) -> str:
    """At most `width` cells; what is cut off is marked with an ellipsis."""
    if cell_len(text) <= width:
        return text
    if width <= 1:
        return "…"[:width]
    return set_cell_size(text, width - 1).rstrip(" …") + "…"


whole_seconds = formats.whole_seconds


def sparkline(values: Sequence[int | None]) -> str:
    """One bar per value, from 0 to the highest. None is a gap; only 0 gets the lowest bar."""
    highest = max((value for value in values if value is not None), default=0)

    def bar(value: int | None) -> str:
        if value is None:
            return " "
        if value <= 0 or highest <= 0:
            return _BARS[0]
        return _BARS[max(1, round(value / highest * (len(_BARS) - 1)))]

    return "".join(map(bar, values))


STYLE_NAMES = (
    "good",
    "critical",
    "warning",
    "quiet",
    "stale",
    "trend",
    "sorted",
    "strong",
    "production",
    "paused",
    "group",
    *(f"mark-{color}" for color in COLORS),
)

SEVERITY_STYLES = {Severity.WARNING: "warning", Severity.CRITICAL: "critical"}
"""Other severities have no style."""

MARK = "▌"
"""Precedes a connection's name, in the connection's colour."""


def style_of(widget: Widget, name: str) -> Style:
    """The style of this name in the style sheet; by default on the widget's own background."""
    if not name:
        return Style.null()
    return cast("_Styled", widget.app).style_named(name)


def mark_style(color: str) -> str:
    """The style name of a connection's mark; empty without a colour."""
    return f"mark-{color}" if color else ""


class TextView(Static):
    """Data, never markup. The screen is laid out again only when the number of lines changes."""

    _shown = Text()

    def set_text(self, text: Text) -> None:
        if text != self._shown:
            lines = (text.plain.count("\n"), self._shown.plain.count("\n"))
            self._shown = text
            self.update(text, layout=lines[0] != lines[1])

    @property
    def plain_text(self) -> str:
        """What is shown, without styles."""
        return self._shown.plain


class Paragraph(TextView):
    """Text that wraps: any change may need another height."""

    DEFAULT_CSS = "Paragraph { width: 100%; height: auto; }"

    def set_text(self, text: Text) -> None:
        if text != self._shown:
            self._shown = text
            self.update(text, layout=True)


def error_text(widget: Widget, error: ConsoleError) -> Text:
    """What failed, why, and what to do next, on as many lines as needed."""
    text = Text(plain(error.what), style_of(widget, "critical"))
    for part in (error.why, error.next_step):
        for line in part.splitlines():
            text.append(f"\n{plain(line)}", style_of(widget, "quiet"))
    return text


def show_lines(view: TextView, lines: Sequence[Text]) -> None:
    """Show these lines; those with `no_wrap` are truncated at the screen's edge."""
    width = max(20, view.app.size.width - 2)
    for line in lines:
        if line.no_wrap:
            line.truncate(width, overflow="ellipsis")
    view.set_text(Text("\n").join(lines))


def show_parts(view: TextView, parts: Sequence[tuple[str, str]]) -> None:
    """Show these (text, style name) pairs on one line."""
    view.set_text(Text.assemble(*((text, style_of(view, name)) for text, name in parts)))


def open_input(line: Input, text: str) -> None:
    """Show this input line with this text and focus it at once: focus() is deferred, and the next
    keys would go to the old widget."""
    line.value = text
    line.display = True
    line.cursor_position = len(text)
    line.screen.set_focus(line)
    line.screen.refresh_bindings()
