"""One table of all queues: which are shown, in which order, in as many columns as there is room."""

from collections.abc import Sequence

from rich.cells import cell_len

from console.tui.board import Key, QueueView
from console.tui.filters import Filter
from console.tui.widgets.keyed_table import Cell, KeyedTable
from console.tui.widgets.queue_columns import COLUMNS, SORTABLE, layout, ordered

_SCROLLBAR = 1
_UNBOUNDED = 1000


class QueueTable(KeyedTable):
    """Give it views by `views`; sort and filter it; ask it which queue the cursor is on."""

    def __init__(self) -> None:
        super().__init__(id="queues")
        self.views: tuple[QueueView, ...] = ()
        """All queues, shown or not."""
        self.filter = Filter()
        self.sort_column = SORTABLE[0]
        self.descending = SORTABLE[0].descending
        self._widest: dict[str, int] = {}
        self._by_key: dict[str, QueueView] = {}

    @property
    def shown(self) -> list[QueueView]:
        """The queues that the filter lets through, in the order of the table."""
        found = [view for view in self.views if self.filter.matches(view)]
        return ordered(found, self.sort_column, descending=self.descending)

    @property
    def queue_key(self) -> Key | None:
        """The queue under the cursor."""
        view = self.view
        return view.key if view is not None else None

    @property
    def view(self) -> QueueView | None:
        """The queue under the cursor, as it is drawn."""
        return self._by_key.get(self.cursor_key or "")

    def draw(self, views: Sequence[QueueView] | None = None) -> None:
        """Draw these queues, or those of before in another order, filter or width."""
        if views is not None:
            self.views = tuple(views)
        self._measure()
        columns = layout(
            self.app.size.width - _SCROLLBAR,
            self._widest,
            self.sort_column.name,
            descending=self.descending,
        )
        shown = {_row_key(view.key): view for view in self.shown}
        self._by_key = shown

        def cells_of(key: str) -> tuple[Cell, ...]:
            return tuple(column.cell(shown[key], laid_out.width) for column, laid_out in columns)

        self.show([laid_out for _, laid_out in columns], list(shown), cells_of)

    def _measure(self) -> None:
        """Columns only ever grow, so that nothing jumps to and fro with the figures."""
        for column in COLUMNS:
            if column.name in {"state", "trend"}:
                continue
            texts = (column.cell(view, _UNBOUNDED).text for view in self.views)
            widest = max(map(cell_len, texts), default=0)
            self._widest[column.name] = max(self._widest.get(column.name, 0), widest)

    def sort_next(self) -> None:
        """Sort by the next column that is in sight."""
        in_sight = {column.name for column in self.columns} | {self.sort_column.name}
        columns = [column for column in SORTABLE if column.name in in_sight]
        self.sort_by(columns[(columns.index(self.sort_column) + 1) % len(columns)].name)

    def sort_by(self, name: str) -> None:
        """Sort by a column the way that tells more; by the same one again, the other way round."""
        column = next((column for column in SORTABLE if column.name == name), None)
        if column is None:
            return
        same = column is self.sort_column
        self.descending = not self.descending if same else column.descending
        self.sort_column = column
        self.draw()

    def reverse(self) -> None:
        """Turn the order round."""
        self.sort_by(self.sort_column.name)

    def on_resize(self) -> None:
        """Another width has other columns."""
        self._widest.clear()
        self.draw()
        super().on_resize()


def _row_key(key: Key) -> str:
    """One string; repr keeps different keys different whatever the names are."""
    return repr(key)
