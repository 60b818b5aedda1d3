"""One table of all queues: which are shown, in which order, in as many columns as there is room."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rich.cells import cell_len

from console.tui.board import Key, QueueView
from console.tui.filters import Filter
from console.tui.text import plain
from console.tui.widgets.keyed_table import Cell, KeyedTable, TableColumn
from console.tui.widgets.queue_columns import (
    COLUMNS,
    SORTABLE,
    QueueColumn,
    group_cell,
    layout,
    ordered,
)

_SCROLLBAR = 1
_UNBOUNDED = 1000
_INDENT = "  "


class QueueTable(KeyedTable):
    """Give it views by `views`; sort and filter it; ask it which queue the cursor is on."""

    def __init__(self) -> None:
        super().__init__(id="queues")
        self.views: tuple[QueueView, ...] = ()
        """All queues, shown or not."""
        self.filter = Filter()
        self.sort_column = SORTABLE[0]
        self.descending = SORTABLE[0].descending
        self.grouped = False
        """Whether the queues of each connection stand together, under a line of their own."""
        self._widest: dict[str, int] = {}
        self._measured = 0
        """How many queues there were when all of them were measured."""
        self._by_key: dict[str, QueueView] = {}
        self._heads: dict[str, str] = {}
        """The line over each group -> its connection."""

    @property
    def shown(self) -> list[QueueView]:
        """The queues that the filter lets through, in the order of the table."""
        found = [view for view in self.views if self.filter.matches(view)]
        found = ordered(found, self.sort_column, descending=self.descending)
        return (
            [view for group in _groups(found).values() for view in group] if self.grouped else found
        )

    @property
    def count(self) -> int:
        """How many queues are in the table."""
        return len(self._by_key)

    @property
    def queue_key(self) -> Key | None:
        """The queue under the cursor."""
        view = self.view
        return view.key if view is not None else None

    @property
    def view(self) -> QueueView | None:
        """The queue under the cursor, as it is drawn; None on the line of a connection."""
        return self._by_key.get(self.cursor_key or "")

    @property
    def connection(self) -> str | None:
        """The connection under the cursor, or that of the queue there."""
        view = self.view
        return view.connection if view is not None else self._heads.get(self.cursor_key or "")

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
        shown = self.shown
        self._by_key = {_row_key(view.key): view for view in shown}
        groups = _groups(shown) if self.grouped else {}
        self._heads = {repr((connection,)): connection for connection in groups}
        keys = list(self._by_key)
        if self.grouped:
            keys = [
                key
                for head, connection in self._heads.items()
                for key in (head, *(_row_key(view.key) for view in groups[connection]))
            ]

        def cells_of(key: str) -> tuple[Cell, ...]:
            if connection := self._heads.get(key):
                views, name = groups[connection], plain(connection)
                return tuple(group_cell(column, name, views) for column, _ in columns)
            return self._cells_of_queue(self._by_key[key], columns)

        self.show([laid_out for _, laid_out in columns], keys, cells_of)

    def _cells_of_queue(
        self, view: QueueView, columns: Sequence[tuple[QueueColumn, TableColumn]]
    ) -> tuple[Cell, ...]:
        if self.grouped:
            view = replace(view, place="", label=_INDENT + view.label)
        return tuple(column.cell(view, laid_out.width) for column, laid_out in columns)

    def _measure(self) -> None:
        """Columns only ever grow, so that nothing jumps to and fro with the figures.

        Of very many queues those in sight are measured, and all when there are others.
        """
        views: Sequence[QueueView] = self.views
        if len(views) == self._measured:
            top = self.scroll_offset.y
            in_sight = self.keys[top : top + self.size.height]
            wanted = {view.key for key in in_sight if (view := self._by_key.get(key))}
            views = [view for view in views if view.key in wanted]
        self._measured = len(self.views)
        for column in COLUMNS:
            if column.name in {"state", "trend"}:
                continue
            texts = (column.cell(view, _UNBOUNDED).text for view in views)
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

    def group(self) -> None:
        """Put the queues of each connection together, or let them go again."""
        self.grouped = not self.grouped
        self.draw()

    def on_resize(self) -> None:
        """Another width has other columns."""
        self._widest.clear()
        self._measured = 0
        self.draw()
        super().on_resize()


def _groups(views: Sequence[QueueView]) -> Mapping[str, list[QueueView]]:
    """By connection, in the order of their names."""
    found: dict[str, list[QueueView]] = {name: [] for name in sorted({v.connection for v in views})}
    for view in views:
        found[view.connection].append(view)
    return found


def _row_key(key: Key) -> str:
    """One string; repr keeps different keys different whatever the names are."""
    return repr(key)
