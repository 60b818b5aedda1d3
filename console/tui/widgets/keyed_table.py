"""A table whose cursor is a key, not an index: it stays on its row when rows come, go or move.

Only the visible rows are drawn. Textual's DataTable keeps the cursor's index when rows move, and
measures each cell that changes: it took seconds to sort 500 queues.
"""

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
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

from console.tui.text import shorten, style_of
from console.views.view import Column, Row

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
class ColumnLayout(Generic[Row]):
    """A column in the current layout."""

    column: Column[Row]
    width: int
    title: str
    sorted: bool = False

    @property
    def name(self) -> str:
        return self.column.name


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
    shown = [column for column in columns if (column.title if empty else widest[column.name])]
    wanted = {
        column.name: min(column.max_width, max(widest[column.name], cell_len(column.title)))
        for column in shown
    }
    widths = {column.name: max(column.min_width, wanted[column.name]) for column in shown}
    least = {column.name: min(column.min_width, widths[column.name]) for column in shown}
    for lost in drop_order:
        if total_width(shown, least) <= room:
            break
        shown = [column for column in shown if column.name != lost]
    names = [column.name for column in shown]
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
    return [ColumnLayout(column, widths[column.name], column.title) for column in shown]


def total_width(columns: Sequence[Column[Any]], widths: Mapping[str, int]) -> int:
    return sum(widths[column.name] + PADDING for column in columns)


def cell_of(column: Column[Row], row: Row, width: int) -> Cell:
    text = column.value(row) if column.fit_value is None else column.fit_value(row, width)
    style = column.style if isinstance(column.style, str) else column.style(row)
    first = "" if column.first_char_style is None else column.first_char_style(row)
    return Cell(text, style, first)


LEFT = "left"
"""Shown in a row that is no longer in the list."""
_SCROLL_BAR = 1
Cells = tuple[Cell, ...]


class KeyedTable(Generic[Row], ScrollView, can_focus=True, inherit_bindings=False):
    """Rows by key, in the columns that fit, under a line of titles."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"keyed-table--header", "keyed-table--cursor"}
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
        names = (column_layout.name for column_layout in self.laid_out)
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
            sum(column_layout.width + PADDING for column_layout in self.laid_out),
            len(self.keys) + self.HEADER_LINES,
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
        cells = (
            cell_of(column_layout.column, row, column_layout.width)
            for column_layout in self.laid_out
        )
        if key not in self.removed or not self._removed_column:
            return tuple(cells)
        names = (column_layout.name for column_layout in self.laid_out)
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
            cells = tuple(
                Cell(column_layout.title, "sorted" if column_layout.sorted else "")
                for column_layout in self.laid_out
            )
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
        for column_layout, cell in zip(self.laid_out, cells, strict=True):
            text = shorten(cell.text, column_layout.width)
            space = " " * (column_layout.width - cell_len(text))
            before, after = (space, "") if column_layout.column.align_right else ("", space)
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
        for column_layout in self.laid_out:
            right += column_layout.width + PADDING
            if event.x < right:
                self.post_message(self.TitleClicked(column_layout.name))
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


def sort_rows(rows: Sequence[T], key_of: Callable[[T], Any], *, descending: bool) -> list[T]:
    """A stable sort; rows without a key come last."""
    keys = [(key_of(row), row) for row in rows]
    known = sorted(
        ((key, row) for key, row in keys if key is not None),
        key=operator.itemgetter(0),
        reverse=descending,
    )
    return [row for _, row in known] + [row for key, row in keys if key is None]


def title_with_arrow(title: str, width: int, *, descending: bool) -> str:
    """Of the column that the rows are sorted by, where it has room."""
    arrow = "▼" if descending else "▲"
    if not title or len(title) >= width:
        return title
    return f"{title} {arrow}" if len(title) + 1 < width else f"{title}{arrow}"


_MARK: ColumnLayout[Any] = ColumnLayout(Column("marked", "", lambda _: ""), 1, "")


class MarkedTable(KeyedTable[Row]):
    """Rows can be marked, sorted by a column, filtered by words.

    Marks stay on their keys, as the cursor does.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("x", "mark", "mark", tooltip="mark or unmark the row"),
        Binding(
            "X", "mark_to", "range", show=False, tooltip="mark all rows from the last mark to here"
        ),
        Binding("shift+down", "mark_on(1)", "range down", show=False, tooltip="mark, going down"),
        Binding("shift+up", "mark_on(-1)", "range up", show=False, tooltip="mark, going up"),
        Binding("asterisk", "mark_all", "all", show=False, key_display="*", tooltip="all matching"),
    ]

    class MarksChanged(Message):
        """The operator changed the marks."""

    ALWAYS_MARKED: ClassVar[bool] = True
    """Whether there is a column for marks without any."""
    all_matching = False
    """Whether all matching messages are selected, including those not loaded."""
    sort_column = ""
    """Empty: in the order in which they were read."""
    descending = False
    words: tuple[str, ...] = ()
    """Only rows that contain all of them, in lower case, are shown."""
    details: Callable[[Any], str] | None = None
    """What else is searched for the words."""
    _read: Mapping[str, Row] | None = None
    """All rows, shown or not."""
    _marks: frozenset[str] = frozenset()
    _last_mark: str | None = None

    @property
    def marks(self) -> tuple[str, ...]:
        return tuple(key for key in self.keys if key in self._marks)

    @property
    def selected_keys(self) -> tuple[str, ...]:
        """What an action applies to: the marked rows, else the one under the cursor."""
        if self._marks:
            return self.marks
        return () if self.cursor_key is None else (self.cursor_key,)

    @property
    def selected_rows(self) -> list[Row]:
        return [self.rows[key] for key in self.selected_keys]

    @property
    def marked_or_all(self) -> list[Row]:
        """What is exported."""
        return self.selected_rows if self._marks else [*self.rows.values()]

    @property
    def pinned_keys(self) -> set[str | None]:
        return {*super().pinned_keys, *self.marks}

    def show(self, rows: Mapping[str, Row], *, keep: bool = False) -> None:
        """As in a KeyedTable; rows that are gone lose their marks."""
        self._read = rows
        super().show(self._arranged(rows, self.pinned_keys if keep else ()), keep=keep)
        self._marks = self._marks.intersection(self.keys)

    def _arranged(self, rows: Mapping[str, Row], held: Collection[str | None]) -> Mapping[str, Row]:
        """`held`: keys of rows that stay although they contain the words no longer."""
        shown = {key: row for key, row in rows.items() if key in held or self._contains_words(row)}
        column = next((one for one in self.columns if one.name == self.sort_column), None)
        if column is None:
            return dict(reversed(shown.items())) if self.descending else shown
        key_of = column.key
        return dict(
            sort_rows([*shown.items()], lambda it: key_of(it[1]), descending=self.descending)
        )

    def _contains_words(self, row: Row) -> bool:
        if not self.words:
            return True
        cells = " ".join(column.value(row) for column in self.columns)
        text = f"{cells} {self.details(row) if self.details else ''}".casefold()
        return all(word in text for word in self.words)

    def filter_by(self, words: tuple[str, ...]) -> None:
        if words != self.words:
            self.words = words
            self.show(self._read or {})

    def sort_by(self, name: str) -> None:
        """Sort by a column; if it is the sort column, reverse it. Empty: as they were read."""
        self.descending = name == self.sort_column and not self.descending
        self.sort_column = name
        self.show(self._read or {}, keep=bool(self.removed))

    def sort_next(self) -> None:
        names = [
            "",
            *(column_layout.name for column_layout in self.laid_out if column_layout.title),
        ]
        at = names.index(self.sort_column) if self.sort_column in names else 0
        self.descending = False
        self.sort_by(names[(at + 1) % len(names)])

    @property
    def _shows_marks(self) -> bool:
        return self.ALWAYS_MARKED or bool(self._marks) or self.all_matching

    def lay_out(self, room: int) -> Sequence[ColumnLayout[Row]]:
        marks = (_MARK,) if self._shows_marks else ()
        columns = super().lay_out(
            room - total_width([column_layout.column for column_layout in marks], {"marked": 1})
        )
        return (*marks, *map(self._with_arrow, columns))

    def _with_arrow(self, column_layout: ColumnLayout[Row]) -> ColumnLayout[Row]:
        if not self.sort_column or column_layout.name != self.sort_column:
            return column_layout
        title = title_with_arrow(
            column_layout.title, column_layout.width, descending=self.descending
        )
        return replace(column_layout, title=title, sorted=True)

    def build_cells(self, key: str) -> Cells:
        if not self._shows_marks:
            return super().build_cells(key)
        none, *cells = super().build_cells(key)
        if self.all_matching or key in self._marks:
            # The whole row is highlighted too, which shows the extent of a range.
            strong = (replace(cell, style=cell.style or "strong") for cell in cells)
            return (Cell("■", "sorted"), *strong)
        return (none, *cells)

    def clear_marks(self) -> None:
        self._change(frozenset(), all_matching=False)

    def _change(self, marks: frozenset[str], *, all_matching: bool = False) -> None:
        self._marks, self.all_matching = marks, all_matching
        if self.ALWAYS_MARKED:
            self._visible_cells = {}
            self.refresh()
        else:
            self.draw()
        self.post_message(self.MarksChanged())

    def action_mark(self) -> None:
        key = self.cursor_key
        if key is not None:
            self._last_mark = key
            self._change(self._marks ^ {key})
            self.action_move(1)

    def action_mark_to(self) -> None:
        if self.cursor_key is None:
            return
        first = self._row_index.get(self._last_mark or "", self.cursor_row)
        low, high = sorted((first, self.cursor_row))
        self._last_mark = self.cursor_key
        self._change(self._marks | set(self.keys[low : high + 1]))

    def action_mark_on(self, rows: int) -> None:
        if self.cursor_key is None:
            return
        before = self.cursor_key
        self.action_move(rows)
        self._last_mark = self.cursor_key
        self._change(self._marks | {before, self.cursor_key})

    def action_mark_all(self) -> None:
        """All messages of a search, also those not loaded. With words only the rows that are shown:
        an action does not know the words."""
        if self.words or not self.ALWAYS_MARKED:
            self._change(frozenset(self.keys) - (self._marks if self.marks == self.keys else set()))
        else:
            self._change(frozenset(), all_matching=not self.all_matching)


class ListTable(MarkedTable[Row]):
    """Marks say what is copied and exported: seldom needed, and shown only then."""

    ALWAYS_MARKED: ClassVar[bool] = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("x", "mark", "mark or unmark the row", show=False)
    ]


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
