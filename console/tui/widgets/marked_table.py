"""A table in which rows are marked, by key, for what is to be done with them together."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message

from console.tui.widgets.keyed_table import Cell, Cells, KeyedTable, TableColumn

MARK_WIDTH = 3
"""What the column of the marks takes of a line."""
_MARK = TableColumn("mark", "", 1)


class MarkedTable(KeyedTable):
    """Its first column says which rows are marked. Marks stay on their keys, as the cursor does."""

    DEFAULT_CLASSES = "listed"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("x", "mark", "mark", tooltip="mark the row, or take its mark away"),
        Binding("X", "mark_to", "range", show=False, tooltip="mark all from the last mark to here"),
        Binding("shift+down", "mark_on(1)", "range down", show=False, tooltip="mark, going down"),
        Binding("shift+up", "mark_on(-1)", "range up", show=False, tooltip="mark, going up"),
        Binding("asterisk", "mark_all", "all", show=False, key_display="*", tooltip="all matching"),
    ]

    class MarksChanged(Message):
        """The operator has marked something else."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  # Textual's own name
        super().__init__(id=id)
        self._marks: set[str] = set()
        self._last_mark: str | None = None
        self.all_matching = False
        """Whether all that match are meant, those too that were not loaded."""
        self._bare_cells_of: Callable[[str], Cells] = lambda _: ()

    @property
    def marks(self) -> tuple[str, ...]:
        """The keys of the marked rows, from the top."""
        return tuple(key for key in self.keys if key in self._marks)

    @property
    def meant(self) -> tuple[str, ...]:
        """What an action is for: the marked rows, else the one under the cursor."""
        if self._marks:
            return self.marks
        return () if self.cursor_key is None else (self.cursor_key,)

    def show(
        self,
        columns: Sequence[TableColumn],
        keys: Sequence[str],
        cells_of: Callable[[str], Cells],
    ) -> None:
        """As a KeyedTable does; the column of the marks comes before the given ones."""
        self._marks.intersection_update(keys)
        self._bare_cells_of = cells_of
        super().show((_MARK, *columns), keys, self._marked_cells)

    def _marked_cells(self, key: str) -> Cells:
        cells = self._bare_cells_of(key)
        if self.all_matching or key in self._marks:
            # The mark tells it; that the whole row stands out lets one see how far it goes.
            cells = tuple(replace(cell, tone=cell.tone or "strong") for cell in cells)
            return (Cell("■", "sorted"), *cells)
        return (Cell(""), *cells)

    def clear_marks(self) -> None:
        """Nothing is marked any more."""
        self._change(set(), all_matching=False)

    def _change(self, marks: set[str], *, all_matching: bool = False) -> None:
        self._marks, self.all_matching = marks, all_matching
        self._in_sight = {}
        self.refresh()
        self.post_message(self.MarksChanged())

    def action_mark(self) -> None:
        """Mark the row, or take its mark away, and go on."""
        key = self.cursor_key
        if key is not None:
            self._last_mark = key
            self._change(self._marks ^ {key})
            self.action_move(1)

    def action_mark_to(self) -> None:
        """Mark all rows from the last one that was marked to this."""
        if self.cursor_key is None:
            return
        first = self._places.get(self._last_mark or "", self.cursor_row)
        low, high = sorted((first, self.cursor_row))
        self._last_mark = self.cursor_key
        self._change(self._marks | set(self.keys[low : high + 1]))

    def action_mark_on(self, rows: int) -> None:
        """Mark the row, go on, and mark that one too."""
        if self.cursor_key is None:
            return
        before = self.cursor_key
        self.action_move(rows)
        self._last_mark = self.cursor_key
        self._change(self._marks | {before, self.cursor_key})

    def action_mark_all(self) -> None:
        """All that match, or nothing again."""
        self._change(set(), all_matching=not self.all_matching)
