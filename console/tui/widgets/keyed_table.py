"""A table whose cursor is a key, not an index: it stays on its row when rows come, go or move.

Only the visible rows are drawn. Textual's DataTable keeps the cursor's index when rows move, and
measures each cell that changes: it took seconds to sort 500 queues.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from console.formats import UNKNOWN
from console.tui.text import shorten, style_of

Row = TypeVar("Row")
Value = TypeVar("Value")
T = TypeVar("T")

PADDING = 2
"""Cells that a column takes besides its width: a blank on either side."""


@dataclass(frozen=True)
class Cell:
    """One cell: data, never markup. `style` is one of `STYLE_NAMES`."""

    text: str
    style: str = ""
    first_char_style: str = ""
    """Empty: the same style."""


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column: `value` returns the text of a row."""

    name: str
    title: str
    value: Callable[[Row], str] = field(compare=False)
    style: str | Callable[[Row], str] = field(default="", compare=False)
    min_width: int = 1
    """It is dropped rather than made narrower."""
    max_width: int = 40
    align_right: bool = False
    first_char_style: Callable[[Row], str] | None = field(default=None, compare=False)
    fit_value: Callable[[Row, int], str] | None = field(default=None, compare=False)
    """The text in at most this many cells, where truncating its end would not do."""

    def cell(self, row: Row, width: int) -> Cell:
        text = self.value(row) if self.fit_value is None else self.fit_value(row, width)
        style = self.style if isinstance(self.style, str) else self.style(row)
        return Cell(
            text, style, "" if self.first_char_style is None else self.first_char_style(row)
        )


@dataclass(frozen=True)
class ColumnLayout(Generic[Row]):
    """A column in the current layout."""

    column: Column[Row]
    width: int
    title: str
    sorted: bool = False

    @property
    def name(self) -> str:
        return self.column.name


def or_unknown(value: Value | None, form: Callable[[Value], str], unknown: str = UNKNOWN) -> str:
    return unknown if value is None else form(value)


def fit(
    columns: Sequence[Column[Row]],
    widest: Mapping[str, int],
    room: int,
    drop_order: Sequence[str] = (),
) -> list[ColumnLayout[Row]]:
    """The columns that fit into `room` cells, with their widths. Empty columns are dropped first.

    `widest`: the cells of each column's longest text. The column with most to spare is narrowed
    first; what is left over goes to the narrowed columns, then to the last one.
    """
    empty = not any(widest.values())
    shown = [one for one in columns if (one.title if empty else widest[one.name])]
    wanted = {
        one.name: min(one.max_width, max(widest[one.name], cell_len(one.title))) for one in shown
    }
    widths = {one.name: max(one.min_width, wanted[one.name]) for one in shown}
    least = {one.name: min(one.min_width, widths[one.name]) for one in shown}
    for lost in drop_order:
        if total_width(shown, least) <= room:
            break
        shown = [one for one in shown if one.name != lost]
    names = [one.name for one in shown]
    while names and (over := total_width(shown, widths) - room) > 0:
        name = max(names, key=lambda name: widths[name] - least[name])
        if widths[name] == least[name]:
            break
        widths[name] -= min(over, max(1, (widths[name] - least[name]) // 2))
    for name in names:
        spare = room - total_width(shown, widths)
        widths[name] += max(0, min(spare, wanted[name] - widths[name]))
    if names:
        widths[names[-1]] += max(0, room - total_width(shown, widths))
    return [ColumnLayout(one, widths[one.name], one.title) for one in shown]


def total_width(columns: Sequence[Column[Any]], widths: Mapping[str, int]) -> int:
    return sum(widths[one.name] + PADDING for one in columns)


LEFT = "left"
"""Shown in a row that is no longer in the list."""
_SCROLL_BAR = 1
Cells = tuple[Cell, ...]


class KeyedTable(Generic[Row], ScrollView, can_focus=True, inherit_bindings=False):
    """Rows by key, in the columns that fit, under a line of titles."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
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

    HEADER_LINES: ClassVar[int] = 1

    class CursorMoved(Message):
        """The operator moved to another row."""

    class AtEnd(Message):
        """The operator moved down from the last row: there may be more rows to load."""

    class TitleClicked(Message):
        """The operator clicked on a column's title."""

        def __init__(self, column: str) -> None:
            super().__init__()
            self.column = column

    def __init__(
        self,
        columns: Sequence[Column[Row]] = (),
        drop_order: Sequence[str] = (),
        *,
        removed_column: str = "",
        id: str | None = None,  # noqa: A002  # Textual's own name
    ) -> None:
        """`drop_order`: the columns dropped if there is no room, the least important first.
        `removed_column`: the one that says of a row that it is no longer in the list."""
        super().__init__(id=id)
        self.columns = columns
        self.laid_out: tuple[ColumnLayout[Row], ...] = ()
        """The columns that fit now."""
        self.rows: Mapping[str, Row] = {}
        """By key, from the top."""
        self.removed: frozenset[str] = frozenset()
        """The keys of rows that are kept although they are no longer in the list."""
        self.keys: tuple[str, ...] = ()
        """The keys of the rows, from the top."""
        self._drop_order = drop_order
        self._removed_column = removed_column
        self._row_index: dict[str, int] = {}
        self._cursor: str | None = None
        self._visible_cells: dict[str, Cells] = {}
        self._base = Style.null()

    @property
    def cursor_key(self) -> str | None:
        """The key of the row under the cursor: what an action applies to."""
        return self._cursor

    @property
    def row(self) -> Row | None:
        return self.rows.get(self._cursor or "")

    @property
    def cursor_row(self) -> int:
        return self._row_index.get(self._cursor or "", 0)

    @property
    def pinned_keys(self) -> set[str | None]:
        return {self._cursor}

    def cells(self, key: str) -> dict[str, Cell]:
        names = (one.name for one in self.laid_out)
        return dict(zip(names, self._cells(key), strict=True))

    def show(self, rows: Mapping[str, Row], *, keep: bool = False) -> None:
        """Show these rows in this order.

        The cursor stays on its key. If that is gone, the cursor stays at its index; or, with
        `keep`, the pinned rows stay in the table as last seen.
        """
        order = merge_keys([*rows], self.keys, self.pinned_keys) if keep else [*rows]
        self.removed = frozenset(order) - rows.keys()
        self.rows = {key: rows[key] if key in rows else self.rows[key] for key in order}
        self.draw()

    def in_shown_order(self, rows: Sequence[T], key: Callable[[T], str]) -> list[T]:
        """The rows in the order in which they are shown now; new ones, in their order, below."""
        return sorted(rows, key=lambda row: self._row_index.get(key(row), len(self._row_index)))

    def draw(self) -> None:
        """Lay out the same rows for the current columns and width."""
        at, top = self.cursor_row, self.scroll_offset.y
        before = (self.laid_out, self.keys, self._visible_cells)
        self.keys = tuple(self.rows)
        self._row_index = {key: index for index, key in enumerate(self.keys)}
        self._visible_cells = {}
        self.laid_out = tuple(self.lay_out((self.size.width or self.app.size.width) - _SCROLL_BAR))
        if self._cursor not in self._row_index:
            self._cursor = self.keys[min(at, len(self.keys) - 1)] if self.keys else None
        self.virtual_size = Size(
            sum(one.width + PADDING for one in self.laid_out), len(self.keys) + self.HEADER_LINES
        )
        if top and self.cursor_row != at:
            # Whatever changes above it, the row stays at its line on the screen.
            self.scroll_to(y=top + self.cursor_row - at, animate=False, immediate=True)
        elif self.cursor_row != at:
            self._scroll_to_cursor()
        self._refresh_what_changed(*before, top)

    def lay_out(self, room: int) -> Sequence[ColumnLayout[Row]]:
        return fit(self.columns, self.widest(), room, self._drop_order)

    def widest(self) -> dict[str, int]:
        """The width in cells of each column's longest text."""
        return {
            column.name: max((cell_len(self._text(column, key)) for key in self.keys), default=0)
            for column in self.columns
        }

    def _text(self, column: Column[Row], key: str) -> str:
        left = key in self.removed and column.name == self._removed_column
        return LEFT if left else column.value(self.rows[key])

    def build_cells(self, key: str) -> Cells:
        row = self.rows[key]
        cells = (one.column.cell(row, one.width) for one in self.laid_out)
        if key not in self.removed or not self._removed_column:
            return tuple(cells)
        names = (one.name for one in self.laid_out)
        return tuple(
            replace(cell, text=LEFT if name == self._removed_column else cell.text, style="stale")
            for name, cell in zip(names, cells, strict=True)
        )

    def _refresh_what_changed(
        self,
        laid_out: tuple[ColumnLayout[Row], ...],
        keys: tuple[str, ...],
        in_sight: dict[str, Cells],
        top: int,
    ) -> None:
        """Refresh only rows that differ, for slow terminals; all if rows or columns moved."""
        if laid_out != self.laid_out or keys != self.keys or top != self.scroll_offset.y:
            self.refresh()
            return
        for line, key in enumerate(
            self.keys[top : top + self._rows_in_sight], start=self.HEADER_LINES
        ):
            if in_sight.get(key) != self._cells(key):
                self.refresh(Region(0, line, self.size.width, 1))

    def _cells(self, key: str) -> Cells:
        if key not in self._visible_cells:
            self._visible_cells[key] = self.build_cells(key)
        return self._visible_cells[key]

    @property
    def _rows_in_sight(self) -> int:
        return max(1, self.scrollable_content_region.height - self.HEADER_LINES)

    # Drawing.

    def render_lines(self, crop: Region) -> list[Strip]:
        """The base style is looked up once, not for each line."""
        self._base = self.rich_style
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        """The titles on the first line, wherever it is scrolled to; then the rows."""
        left, top = self.scroll_offset
        width = self.scrollable_content_region.width
        base = self._base
        if y < self.HEADER_LINES:
            base += self.get_component_rich_style("keyed-table--header", partial=True)
            cells = tuple(Cell(one.title, "sorted" if one.sorted else "") for one in self.laid_out)
            return self._strip(cells, base, left, width)
        index = top + y - self.HEADER_LINES
        if index >= len(self.keys):
            return Strip.blank(width, base)
        key = self.keys[index]
        if key == self._cursor:
            base += self.get_component_rich_style("keyed-table--cursor", partial=True)
        return self._strip(self._cells(key), base, left, width)

    def _strip(self, cells: Cells, base: Style, left: int, width: int) -> Strip:
        segments = []
        for one, cell in zip(self.laid_out, cells, strict=True):
            text = shorten(cell.text, one.width)
            space = " " * (one.width - cell_len(text))
            before, after = (space, "") if one.column.align_right else ("", space)
            if not cell.first_char_style and not cell.style:
                segments.append(Segment(f" {before}{text}{after} ", base))
                continue
            segments.append(Segment(" " + before, base))
            if cell.first_char_style:
                segments.append(Segment(text[:1], base + style_of(self, cell.first_char_style)))
                text = text[1:]
            segments.append(Segment(text, base + style_of(self, cell.style)))
            segments.append(Segment(after + " ", base))
        strip = Strip(segments).crop(left, left + width)
        return strip.extend_cell_length(width, base)

    # Moving.

    def move_cursor(self, row: int) -> None:
        """Move the cursor to the row of this index, or the nearest one."""
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
        """So a key press repaints two lines only."""
        line = row - self.scroll_offset.y + self.HEADER_LINES
        if self.HEADER_LINES <= line < self.size.height:
            self.refresh(Region(0, line, self.size.width, 1))

    def _scroll_to_cursor(self) -> None:
        row, top, rows = self.cursor_row, self.scroll_offset.y, self._rows_in_sight
        if not top <= row < top + rows:
            y = row if row < top else row - rows + 1
            self.scroll_to(y=y, animate=False, immediate=True)

    def on_resize(self) -> None:
        """The columns that fit may change, and the cursor must stay visible."""
        self.draw()
        self._scroll_to_cursor()

    def on_click(self, event: events.Click) -> None:
        if event.y >= self.HEADER_LINES:
            index = self.scroll_offset.y + event.y - self.HEADER_LINES
            if index < len(self.keys):
                self.move_cursor(index)
            return
        right = -self.scroll_offset.x
        for one in self.laid_out:
            right += one.width + PADDING
            if event.x < right:
                self.post_message(self.TitleClicked(one.name))
                return

    def action_move(self, rows: int) -> None:
        self._request_more(rows)
        self.move_cursor(self.cursor_row + rows)

    def action_page(self, pages: int) -> None:
        self._request_more(pages)
        self.move_cursor(self.cursor_row + pages * self._rows_in_sight)

    def _request_more(self, step: int) -> None:
        if step > 0 and self.keys and self.cursor_row == len(self.keys) - 1:
            self.post_message(self.AtEnd())

    def action_first(self) -> None:
        self.move_cursor(0)

    def action_last(self) -> None:
        self.move_cursor(len(self.keys) - 1)


def merge_keys(
    now: Sequence[str], before: Sequence[str], held: Collection[str | None]
) -> list[str]:
    """The new keys, and the held old ones that are gone, at their old positions.

    Otherwise the next key press would hit whatever moved under the cursor.
    """
    current = set(now)
    below: dict[str | None, list[str]] = {}
    last: str | None = None
    for key in before:
        if key in current:
            last = key
        elif key in held:
            below.setdefault(last, []).append(key)
    order = list(below.get(None, ()))
    for key in now:
        order += [key, *below.get(key, ())]
    return order
