"""Walking through all messages of a state, a stretch at a time, by whatever index leads to them."""

from collections.abc import Iterator
from typing import Protocol, TypeVar

from console import sql
from console.doctor import stretches
from console.doctor.checks import LOCK_SECONDS, STATEMENT_SECONDS
from console.doctor.look import Look
from console.doctor.stretches import Bound
from console.monitor.asking import be_careful
from console.monitor.walked import Ask, Source, query, values_of
from console.monitor.walks import Key, Walk


class Placed(Protocol):
    """A row that tells its place in the walk, and how many its stretch has."""

    @property
    def key_time(self) -> str | None: ...
    @property
    def key_id(self) -> str: ...
    @property
    def position(self) -> int: ...
    @property
    def looked(self) -> int: ...


Row = TypeVar("Row", bound=Placed)


def walked(
    look: Look, what: str, walk: Walk, row_type: type[Row], last: str, **values: object
) -> Iterator[Row]:
    """The rows that the statement `last` of common.sql tells of a walk.

    Those of each stretch end with its last one, whatever that is. What lies behind the bounds is
    told in `unseen`.
    """
    bound = Bound(look.patience_seconds)
    key: Key | None = None
    while True:
        rows = page(look, walk, key, row_type, last, **values)
        yield from rows
        at = max(rows, key=lambda row: row.position, default=None)
        if at is None or at.looked < stretches.STRETCH:
            return
        key = Key(walk.name, at.key_time or "", at.key_id, walk.dated)
        if not bound.goes_on(at.looked):
            state = f" of those that are {walk.state}" if walk.state else ""
            look.unseen.append(f"{what}: {bound.told} looked at{state}, the others not")
            return


def page(
    look: Look, walk: Walk, after: Key | None, row_type: type[Row], last: str, **values: object
) -> list[Row]:
    """One stretch of a walk."""
    with look.moment() as connection:
        source = Source.of(connection, look.database.product, look.queue)
        be_careful(connection, look.database, STATEMENT_SECONDS, LOCK_SECONDS)
        source.pass_gate(connection)
        ask = Ask(walk, look=stretches.STRETCH, after=after)
        result = connection.execute(query(source, ask, last), values_of(source, ask) | values)
        return sql.rows_of(result.keys(), result.fetchall(), row_type, f"common.{last}")
