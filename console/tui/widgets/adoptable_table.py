"""The tables of a database: those that could be adopted, and those that were."""

from dataclasses import dataclass

from console import formats
from console.actions.adoptable import Table
from console.actions.libraries import Found
from console.catalog import Queue
from console.tui.text import plain
from console.tui.widgets.fitting import Wish
from console.tui.widgets.keyed_table import Cell
from console.tui.widgets.list_table import ListTable

_WISHES = (
    Wish("schema", "schema", least=6, most=20),
    Wish("name", "table", least=12, most=60),
    Wish("rows", "rows", least=6, most=12, right=True),
    Wish("state", "", least=8, most=40),
)


@dataclass(frozen=True)
class Tables:
    """What a database has: tables that are no queue yet, and those that were adopted."""

    free: tuple[Table, ...] = ()
    adopted: tuple[Queue, ...] = ()
    found: tuple[Found, ...] = ()
    """Those that a library keeps queues in."""

    def library_of(self, table: Table) -> Found | None:
        """Whose it is, where a library made it that has a preset."""
        place = (table.schema, table.name)
        return next((one for one in self.found if one.key == place), None)


class AdoptableTable(ListTable):
    """Ask it for the table, or the adopted queue, under the cursor."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  # Textual's own name
        super().__init__(_WISHES, ("state",), id=id)
        self._found = Tables()

    def show_tables(self, found: Tables, wanted: str) -> None:
        """Show those with that in their names."""
        self._found = found
        rows: dict[str, dict[str, Cell]] = {}
        for table in found.free:
            if wanted in f"{table.schema}.{table.name}".casefold():
                count = table.rows_estimated
                known = count is not None
                rows[_key(table)] = {
                    "schema": Cell(plain(table.schema), "quiet"),
                    "name": Cell(plain(table.name)),
                    "rows": Cell(
                        formats.count(count or 0, estimated=True) if known else formats.UNKNOWN
                    ),
                    "state": Cell(_made_by(found.library_of(table))),
                }
        for queue in found.adopted:
            if wanted in f"{queue.schema}.{queue.name}".casefold():
                rows[_key(queue)] = {
                    "schema": Cell(plain(queue.schema), "quiet"),
                    "name": Cell(plain(queue.name), "quiet"),
                    "rows": Cell(""),
                    "state": Cell(_adopted_as(queue), "quiet"),
                }
        self.show_rows(rows)

    @property
    def table(self) -> Table | None:
        """The table under the cursor, if it could be adopted."""
        return next((one for one in self._found.free if _key(one) == self.cursor_key), None)

    @property
    def adopted(self) -> Queue | None:
        """The queue under the cursor, if it was adopted."""
        return next((one for one in self._found.adopted if _key(one) == self.cursor_key), None)


def _made_by(found: Found | None) -> str:
    return "" if found is None else f"queues of {found.of.name}"


def _adopted_as(queue: Queue) -> str:
    only = f", only {plain(queue.part)}" if queue.part else ""
    return f"adopted as {queue.design.name}{only} (f forgets)"


def _key(one: Table | Queue) -> str:
    return repr((one.schema, one.name))
