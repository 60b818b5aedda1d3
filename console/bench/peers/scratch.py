"""A peer's queue of one round, counted as the designs' are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from console import sql
from console.bench.contestant import LeftRow
from console.engines import Database


@dataclass(frozen=True)
class _Code:
    code: int


@dataclass(frozen=True)
class ScratchPeer:
    """As long as the context that made it is open."""

    database: Database
    held: str
    """The statement that selects the payloads of what no consumer finished."""
    scope: sql.Scope
    schema: str
    tables: Sequence[str]
    settings: Mapping[str, object]

    def left(self, filler: bytes) -> list[LeftRow]:
        """Counted and checked in the database."""
        return self._of_codes("left", LeftRow, filler)

    def left_codes(self, filler: bytes) -> list[int]:
        """Each of them."""
        return [row.code for row in self._of_codes("left_codes", _Code, filler)]

    def _of_codes(self, name: str, row_type: type[sql.Row], filler: bytes) -> list[sql.Row]:
        product = self.database.product
        known = sql.statements(product.name, "bench")
        steps = [("held", known[self.held]), ("codes", known["codes"])]
        query = sql.piped(steps, known[name], product.dialect, self.scope)
        with self.database.transaction("count what is left", read_only=True) as connection:
            result = connection.execute(query, {"filler": filler.decode()})
            return sql.rows_of(result.keys(), result.fetchall(), row_type, known[name].label)
