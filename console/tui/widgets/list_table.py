"""A plain list: rows of cells by key, in columns that fit."""

from collections.abc import Mapping, Sequence

from console.tui.widgets.fitting import Wish, fit
from console.tui.widgets.keyed_table import Cell, KeyedTable


class ListTable(KeyedTable):
    """Give it rows by `show_rows`; ask it what the cursor is on by `cursor_key`."""

    DEFAULT_CLASSES = "listed"
    TAKEN = 1
    """Cells of its width that no column has: the scroll bar."""

    def __init__(
        self,
        wishes: Sequence[Wish],
        lost_first: Sequence[str] = (),
        *,
        id: str | None = None,  # noqa: A002
    ) -> None:
        super().__init__(id=id)
        self._wishes = wishes
        self._lost_first = lost_first
        self._rows: Mapping[str, Mapping[str, Cell]] = {}

    def show_rows(self, rows: Mapping[str, Mapping[str, Cell]]) -> None:
        """Show these, in this order."""
        self._rows = rows
        width = (self.size.width or self.app.size.width) - self.TAKEN
        columns = fit(self._wishes, rows.values(), width, self._lost_first)

        def cells_of(key: str) -> tuple[Cell, ...]:
            return tuple(rows[key][column.name] for column in columns)

        self.show(columns, list(rows), cells_of)

    def on_resize(self) -> None:
        """Another width has other columns."""
        self.show_rows(self._rows)
        super().on_resize()
