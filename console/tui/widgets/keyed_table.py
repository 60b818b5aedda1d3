"""A table whose cursor is a key, not a line: the operator's row stays his, whatever comes.

It draws the rows in sight and nothing else. Textual's DataTable keeps the cursor's index when rows
move, and measures each cell that changes: 500 queues took it seconds to sort (the house measured).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from console.tui.text import shorten
from console.tui.widgets.tones import TONE_CLASSES, tone


@dataclass(frozen=True)
class Cell:
    """What one cell shows: data, never markup. `tone` is a name of `tones`."""

    text: str
    tone: str = ""
    mark: str = ""
    """The tone of its first sign, where that is one of its own."""


@dataclass(frozen=True)
class TableColumn:
    """One column as it is laid out now; a blank on either side comes to its width."""

    name: str
    title: str
    width: int
    right: bool = False
    sorted: bool = False


Cells = tuple[Cell, ...]


class KeyedTable(ScrollView, can_focus=True, inherit_bindings=False):
    """Rows by key, under one line of titles. `show` is called with whatever there is now."""

    COMPONENT_CLASSES: ClassVar[set[str]] = TONE_CLASSES | {
        "keyed-table--header",
        "keyed-table--cursor",
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "one row up", show=False),
        Binding("down,j", "move(1)", "one row down", show=False),
        Binding("pageup,ctrl+b", "page(-1)", "one page up", show=False),
        Binding("pagedown,ctrl+f", "page(1)", "one page down", show=False),
        Binding("home,g", "first", "first row", show=False),
        Binding("end,G", "last", "last row", show=False),
        Binding("left,h", "scroll_left", "scroll to the left", show=False),
        Binding("right,l", "scroll_right", "scroll to the right", show=False),
    ]

    HEAD: ClassVar[int] = 1
    """Lines of titles."""

    class CursorMoved(Message):
        """The operator has gone to another row."""

    class TitleClicked(Message):
        """The operator has clicked on a column's title."""

        def __init__(self, column: str) -> None:
            super().__init__()
            self.column = column

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  # Textual's own name
        super().__init__(id=id)
        self.columns: tuple[TableColumn, ...] = ()
        self.keys: tuple[str, ...] = ()
        """The keys of the rows, from the top."""
        self._places: dict[str, int] = {}
        self._cursor: str | None = None
        self._cells_of: Callable[[str], Cells] = lambda _: ()
        self._in_sight: dict[str, Cells] = {}

    @property
    def cursor_key(self) -> str | None:
        """The key of the row under the cursor: what an action would hit."""
        return self._cursor

    @property
    def cursor_row(self) -> int:
        """Where that row is now, from 0."""
        return self._places.get(self._cursor or "", 0)

    def cells(self, key: str) -> dict[str, Cell]:
        """The cells of a row as they are drawn, by the column's name."""
        names = (column.name for column in self.columns)
        return dict(zip(names, self._cells(key), strict=True))

    def show(
        self,
        columns: Sequence[TableColumn],
        keys: Sequence[str],
        cells_of: Callable[[str], Cells],
    ) -> None:
        """Show these rows in this order; `cells_of` is asked for those in sight, as they come.

        The cursor stays on its key. If that is gone, it stays at its line, on what is there now.
        """
        at, top = self.cursor_row, self.scroll_offset.y
        before = (self.columns, self.keys, self._in_sight)
        self.columns, self.keys, self._cells_of = tuple(columns), tuple(keys), cells_of
        self._places = {key: place for place, key in enumerate(self.keys)}
        self._in_sight = {}
        if self._cursor not in self._places:
            self._cursor = self.keys[min(at, len(self.keys) - 1)] if self.keys else None
        self.virtual_size = Size(
            sum(column.width + 2 for column in self.columns), len(self.keys) + self.HEAD
        )
        if top and self.cursor_row != at:
            # What is above it may come and go: the row stays at its line on the screen.
            self.scroll_to(y=top + self.cursor_row - at, animate=False, immediate=True)
        elif self.cursor_row != at:
            self._scroll_to_cursor()
        self._refresh_what_changed(*before, top)

    def _refresh_what_changed(
        self,
        columns: tuple[TableColumn, ...],
        keys: tuple[str, ...],
        in_sight: dict[str, Cells],
        top: int,
    ) -> None:
        """A slow line gets only the rows that differ; moved rows and columns are drawn anew."""
        if columns != self.columns or keys != self.keys or top != self.scroll_offset.y:
            self.refresh()
            return
        for line, key in enumerate(self.keys[top : top + self._rows_in_sight], start=self.HEAD):
            if in_sight.get(key) != self._cells(key):
                self.refresh(Region(0, line, self.size.width, 1))

    def _cells(self, key: str) -> Cells:
        if key not in self._in_sight:
            self._in_sight[key] = self._cells_of(key)
        return self._in_sight[key]

    @property
    def _rows_in_sight(self) -> int:
        return max(1, self.scrollable_content_region.height - self.HEAD)

    # How it is drawn.

    def render_line(self, y: int) -> Strip:
        """The titles on the first line, whatever is scrolled; then the rows."""
        left, top = self.scroll_offset
        width = self.scrollable_content_region.width
        base = self.rich_style
        if y < self.HEAD:
            base += self.get_component_rich_style("keyed-table--header", partial=True)
            cells = tuple(Cell(c.title, "sorted" if c.sorted else "") for c in self.columns)
            return self._strip(cells, base, left, width)
        place = top + y - self.HEAD
        if place >= len(self.keys):
            return Strip.blank(width, base)
        key = self.keys[place]
        if key == self._cursor:
            base += self.get_component_rich_style("keyed-table--cursor", partial=True)
        return self._strip(self._cells(key), base, left, width)

    def _strip(self, cells: Cells, base: Style, left: int, width: int) -> Strip:
        segments = []
        for column, cell in zip(self.columns, cells, strict=True):
            text = shorten(cell.text, column.width)
            space = " " * (column.width - cell_len(text))
            before, after = (space, "") if column.right else ("", space)
            segments.append(Segment(" " + before, base))
            if cell.mark:
                segments.append(Segment(text[:1], base + tone(self, cell.mark)))
                text = text[1:]
            segments.append(Segment(text, base + tone(self, cell.tone)))
            segments.append(Segment(after + " ", base))
        strip = Strip(segments).crop(left, left + width)
        return strip.extend_cell_length(width, base)

    # How it is moved about.

    def move_cursor(self, row: int) -> None:
        """Put the cursor on a row, or as near to it as there is one."""
        if not self.keys:
            return
        key = self.keys[max(0, min(row, len(self.keys) - 1))]
        if key != self._cursor:
            self._refresh_row(self.cursor_row)
            self._cursor = key
            self._refresh_row(self.cursor_row)
            self.post_message(self.CursorMoved())
        self._scroll_to_cursor()

    def _refresh_row(self, row: int) -> None:
        """A key paints two lines and no more."""
        line = row - self.scroll_offset.y + self.HEAD
        if self.HEAD <= line < self.size.height:
            self.refresh(Region(0, line, self.size.width, 1))

    def _scroll_to_cursor(self) -> None:
        row, top, rows = self.cursor_row, self.scroll_offset.y, self._rows_in_sight
        if not top <= row < top + rows:
            y = row if row < top else row - rows + 1
            self.scroll_to(y=y, animate=False, immediate=True)

    def on_resize(self) -> None:
        """In a smaller window the cursor is still in sight."""
        self._scroll_to_cursor()

    def on_click(self, event: events.Click) -> None:
        """A click goes to a row, or names a column."""
        if event.y >= self.HEAD:
            place = self.scroll_offset.y + event.y - self.HEAD
            if place < len(self.keys):
                self.move_cursor(place)
            return
        right = -self.scroll_offset.x
        for column in self.columns:
            right += column.width + 2
            if event.x < right:
                self.post_message(self.TitleClicked(column.name))
                return

    def action_move(self, rows: int) -> None:
        """Some rows down, or up."""
        self.move_cursor(self.cursor_row + rows)

    def action_page(self, pages: int) -> None:
        """Some pages down, or up."""
        self.move_cursor(self.cursor_row + pages * self._rows_in_sight)

    def action_first(self) -> None:
        """To the first row."""
        self.move_cursor(0)

    def action_last(self) -> None:
        """To the last row."""
        self.move_cursor(len(self.keys) - 1)
