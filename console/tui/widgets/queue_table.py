"""The table of all queues, sorted, filtered, grouped and folded."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rich.cells import cell_len

from console.tui.findings import QueueKey
from console.tui.views import ConnectionView, Filter, QueueView
from console.tui.widgets.keyed_table import Cells, ColumnLayout, KeyedTable, cell_of, sort_rows
from console.tui.widgets.queue_columns import COLUMNS, SORTABLE, QueueColumn, layout
from console.tui.widgets.queue_groups import (
    CONNECTIONS,
    QUEUES,
    Folding,
    Group,
    connection_groups,
    group_lines,
)

_INDENT = "  "
_WIDEST_NAME = 60
"""The reason why a connection does not answer may be long."""


class QueueTable(KeyedTable[QueueView | Group]):
    """Rows are queues, and the group lines above them."""

    def __init__(self, *, grouped: bool = False) -> None:
        """`grouped`: start with one line per connection, all folded."""
        super().__init__(COLUMNS, id="queues")  # type: ignore[arg-type]  # `cells_of` is its own
        self.views: tuple[QueueView, ...] = ()
        """All queues, shown or not."""
        self.connections: Mapping[str, ConnectionView] = {}
        self.filter = Filter()
        self.sort_column = SORTABLE[0]
        self.descending = SORTABLE[0].descending
        self.grouped = grouped
        """Whether queues are grouped under a line for their connection."""
        self.count = 0
        """How many queues match the filter, folded or not."""
        self._keeps_order = False
        self._by_connection: Mapping[str, Group] = {}
        """The line of each connection as last drawn."""
        self._folding = Folding(CONNECTIONS if grouped else QUEUES)
        self._widest: dict[str, int] = {}
        self._measured = 0
        """The number of queues when all were last measured."""

    @property
    def shown(self) -> list[QueueView]:
        """The queues that match the filter and are not folded, in the table's order."""
        return [line for line in self._lines(self.matching).values() if isinstance(line, QueueView)]

    @property
    def queue_key(self) -> QueueKey | None:
        view = self.view
        return view.key if view is not None else None

    @property
    def view(self) -> QueueView | None:
        """The queue under the cursor; None on a group line."""
        return self.row if isinstance(self.row, QueueView) else None

    @property
    def group(self) -> Group | None:
        """The group under the cursor; None on a queue."""
        return self.row if isinstance(self.row, Group) else None

    def show_queues(
        self,
        views: Sequence[QueueView] | None = None,
        connections: Mapping[str, ConnectionView] | None = None,
        *,
        keep_order: bool = False,
    ) -> None:
        """`keep_order`: new figures move no row, whatever the sort column."""
        self._keeps_order = keep_order
        if views is not None:
            self.views = tuple(views)
        if connections is not None:
            self.connections = connections
        self._folding.filtered = bool(self.filter)
        matching = self.matching
        self.count = len(matching)
        self.show(self._lines(matching))

    @property
    def matching(self) -> Sequence[QueueView]:
        """Those that match the filter, folded or not, unsorted."""
        if not self.filter:
            return self.views
        return [view for view in self.views if self.filter.matches(view)]

    def _lines(self, matching: Sequence[QueueView]) -> dict[str, QueueView | Group]:
        """By key, from the top: queues and group lines."""
        if not self.grouped:
            return {_row_key(view): view for view in self._ordered(matching)}
        before = self._by_connection
        every = list(connection_groups(self.connections, matching, self.filter.names, before))
        self._by_connection = {group.connection: group for group in every}
        below: dict[str, list[Group]] = {}
        for group in every:
            below.setdefault(group.under, []).append(group)
        lines: dict[str, QueueView | Group] = {}
        top = [*group_lines(self.connections, every), *below.get("", ())]
        for first in self._ordered_groups(top):
            lines[first.key] = first
            inner = [first] if first.connection else []
            if not first.connection and self._folding.is_open(first):
                inner = self._ordered_groups(below[first.key])
            for conn in inner:
                lines[conn.key] = conn
                if self._folding.is_open(conn):
                    lines |= {_row_key(view): view for view in self._ordered(conn.queues)}
        return lines

    def _ordered(self, views: Sequence[QueueView]) -> list[QueueView]:
        ordered = sort_rows(views, self.sort_column.sort_key, descending=self.descending)
        return self.in_shown_order(ordered, _row_key) if self._keeps_order else ordered

    def _ordered_groups(self, groups: Sequence[Group]) -> list[Group]:
        column = self.sort_column
        ordered = sort_rows(
            groups, lambda group: group.sort_value(column), descending=self.descending
        )
        return (
            self.in_shown_order(ordered, lambda group: group.key) if self._keeps_order else ordered
        )

    def toggle_fold(self) -> None:
        """Fold or unfold the group under the cursor."""
        if (group := self.group) is not None:
            self._folding.toggle(group)
            self.show_queues()

    def fold_all(self) -> None:
        """Fold or unfold all groups. If the cursor's queue gets hidden, it moves to its group."""
        view = self.view
        groups_above = () if view is None or not self.connections else self._groups_above(view)
        if self.grouped:
            several = (
                len({connection_view.group for connection_view in self.connections.values()}) > 1
            )
            self._folding.step(groups=several)
        else:
            self.grouped = True
            self._folding.fold(CONNECTIONS)
        self.show_queues()
        if view is not None and _row_key(view) not in self.rows:
            self.move_cursor(self.keys.index(next(key for key in groups_above if key in self.rows)))

    def _groups_above(self, view: QueueView) -> tuple[str, ...]:
        """The keys of the groups above it, the nearest first."""
        (group,) = connection_groups(
            {view.connection: self.connections[view.connection]}, [view], bool
        )
        return group.key, group.under

    def build_cells(self, key: str) -> Cells:
        row = self.rows[key]
        if isinstance(row, Group):
            folded = not self._folding.is_open(row)
            return tuple(row.cell(_column(one), one.width, folded=folded) for one in self.laid_out)
        if self.grouped:
            indent = _INDENT * (1 + bool(self.connections[row.connection].group))
            row = replace(row, connection_label="", label=indent + row.label)
        return tuple(cell_of(one.column, row, one.width) for one in self.laid_out)

    def lay_out(self, room: int) -> Sequence[ColumnLayout[QueueView | Group]]:
        """With an arrow in the title of the sort column."""
        folded = bool(self.rows) and all(isinstance(row, Group) for row in self.rows.values())
        return layout(  # type: ignore[return-value]  # as above
            room, self.widest(), self.sort_column.name, descending=self.descending, folded=folded
        )

    def widest(self) -> dict[str, int]:
        """Columns only ever grow, so that they do not jump with the figures.

        All queues are measured when their number changes, otherwise the visible ones.
        """
        top = self.scroll_offset.y
        in_sight = [self.rows[key] for key in self.keys[top : top + self.size.height]]
        views: Sequence[QueueView] = self.views
        if len(views) == self._measured:
            views = [queue_view for queue_view in in_sight if isinstance(queue_view, QueueView)]
        self._measured = len(self.views)
        groups = [group for group in in_sight if isinstance(group, Group)]
        for column in COLUMNS:
            if column.name not in {"state", "trend"}:
                texts = [column.value(view) for view in views]
                texts += [group.text(column, _WIDEST_NAME) for group in groups]
                widest = max(map(cell_len, texts), default=0)
                self._widest[column.name] = max(self._widest.get(column.name, 0), widest)
        return self._widest

    def sort_next(self) -> None:
        in_sight = {column.name for column in self.laid_out} | {self.sort_column.name}
        columns = [column for column in SORTABLE if column.name in in_sight]
        self.sort_by(columns[(columns.index(self.sort_column) + 1) % len(columns)].name)

    def sort_by(self, name: str) -> None:
        """Sort by a column, in its default direction; if it is the sort column, reverse it."""
        column = next((column for column in SORTABLE if column.name == name), None)
        if column is None:
            return
        same = column is self.sort_column
        self.descending = not self.descending if same else column.descending
        self.sort_column = column
        self.show_queues()

    def reverse(self) -> None:
        self.sort_by(self.sort_column.name)

    def toggle_grouping(self) -> None:
        """Group the queues by connection, or show them in one list."""
        self.grouped = not self.grouped
        self.show_queues()

    def on_resize(self) -> None:
        """In another width columns may be narrower again. The base's handler draws them."""
        self._widest.clear()
        self._measured = 0


def _row_key(view: QueueView) -> str:
    return repr(view.key)


def _column(one: ColumnLayout[QueueView | Group]) -> QueueColumn:
    assert isinstance(one.column, QueueColumn)  # noqa: S101  # they all are
    return one.column
