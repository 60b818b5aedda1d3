"""One statement over a walk: a design's `messages`, `looked` of common.sql, what is wanted of it.

The three are joined to one, so that a DBA sees one statement with exactly the conditions that were
asked for; every value is bound.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar
from uuid import UUID

from sqlalchemy import Connection, TextClause

from console import sql
from console.catalog import Kind, Queue
from console.engines import Database, Product
from console.errors import UsageError
from console.monitor.asking import be_careful
from console.monitor.filters import MOST_PAYLOAD_FILTERS, NOTHING, Filters
from console.monitor.walks import SINCE, By, Key, Walk

Row = TypeVar("Row")

STATEMENT_SECONDS = 5.0
"""The time-out of one statement over a walk."""
CONDITIONS: Mapping[str, tuple[str, ...]] = {
    "walk": (
        *("ready", "scheduled", "claimed", "error", "done"),
        *("any", "in_hand", "parked", "numbers"),
    ),
    "sorted": (
        *("no", "id_up", "id_down"),
        *("time_up", "time_down", "undated_up", "undated_down"),
    ),
    "start": ("beginning", "after", "exactly"),
    "by_age": ("walk", "row"),
    **dict.fromkeys(("body", "with_payload"), ("yes", "no")),
    **dict.fromkeys(("by_cutoff", "by_older", "by_newer", "by_id", "by_error"), ("yes", "no")),
    **dict.fromkeys(("by_claimed_by", "by_payload"), ("yes", "no")),
    **dict.fromkeys((f"by_payload_{n + 1}" for n in range(MOST_PAYLOAD_FILTERS)), ("yes", "no")),
}
"""What the statements over a walk may ask for in `-- when`, beside a queue's own options."""
_EVERYTHING = 2**31 - 1
_INTEGER_BITS = {
    **dict.fromkeys(("tinyint", "smallint"), 15),
    **dict.fromkeys(("int", "integer"), 31),
    **dict.fromkeys(("bigint", "int8"), 63),
}


@dataclass(frozen=True)
class Extent:
    """The ends of what a walk by stretches goes through; None where they cannot be told."""

    first: int | None
    last: int | None
    slots: int | None


@dataclass(frozen=True)
class _Column:
    name: str
    type: str


@dataclass(frozen=True)
class Source:
    """A queue whose messages are read, and of what types its ids and payloads are."""

    product: Product
    queue: Queue
    payload: str
    """text, json or bytes; empty: nothing tells the payload."""
    id_type: str

    @classmethod
    def of(cls, connection: Connection, product: Product, queue: Queue) -> "Source":
        """Asks the server only where the table is somebody else's."""
        if queue.kind is Kind.INSTALLED:
            id_type = product.id_types[queue.design.id_type]
            return cls(product, queue, queue.options["payload"], id_type)
        columns = sql.statements(product.name, "catalog")["columns"]
        values = {"schema": queue.schema, "table": queue.table}
        types = {
            column.name: column.type
            for column in sql.fetch(connection, _Column, columns, sql.Scope(), **values)
        }
        body = queue.roles.get("payload")
        kind = "" if body is None else _kind(types.get(body, ""), product)
        return cls(product, queue, kind, types.get(queue.roles.get("id", ""), ""))

    @property
    def statements(self) -> Mapping[str, sql.Statement]:
        """Those of the design's own file."""
        return sql.statements(self.product.name, self.queue.design.name)

    def begin(self, connection: Connection, database: Database) -> None:
        """What comes first in a transaction that looks at messages."""
        be_careful(connection, database, STATEMENT_SECONDS)
        self.pass_gate(connection)

    def pass_gate(self, connection: Connection) -> None:
        """What comes first in any transaction at a ring: it waits while a relay runs.

        Of a library's table: its functions find each other by the search path.
        """
        ours = self.queue.kind is Kind.INSTALLED or self.queue.design.library
        if "gate" in self.statements and ours:
            gate = sql.query(self.statements["gate"], connection.dialect, self._scope())
            connection.execute(gate)

    def extent(self, connection: Connection) -> Extent:
        """The ends of its walk by stretches."""
        (found,) = sql.fetch(connection, Extent, self.statements["extent"], self._scope())
        return found

    def _scope(self) -> sql.Scope:
        return self.queue.scope(self.product)

    def id_of(self, text: str) -> str:
        """The text in the form that ids have here. UsageError where none can be it."""
        bits = _INTEGER_BITS.get(self.id_type)
        if bits is not None:
            if _INTEGER.fullmatch(text) and -(2**bits) <= int(text) < 2**bits:
                return str(int(text))
            wanted = "numbers"
        elif self.id_type in _UUIDS:
            try:
                return _UUIDS[self.id_type](str(UUID(text)))
            except ValueError:
                wanted = "uuids"
        else:
            return text
        raise UsageError(f"{text!r} is no id of the queue {self.queue.name!r}: these are {wanted}.")

    def known(self, filters: Filters) -> Filters:
        """The same with ids in the form that they have here, each once."""
        return replace(filters, ids=tuple(dict.fromkeys(map(self.id_of, filters.ids))))

    def check(self, walk: Walk, key: Key) -> None:
        """UsageError where the key can be no message's of the walk."""
        if not key.id:
            return
        if walk.by is By.PLACE or (walk.by is By.TIME and not self.id_type):
            fits = _PLACE.fullmatch(key.id)
        elif walk.by in {By.ARRIVAL, By.NUMBER}:
            fits = _INTEGER.fullmatch(key.id)
        else:
            self.id_of(key.id)
            return
        if not fits:
            raise UsageError(f"{key.text!r} is no place in the queue {self.queue.name!r}.")


_UUIDS: Mapping[str, Callable[[str], str]] = {"uuid": str.lower, "uniqueidentifier": str.upper}
"""As each engine writes them out."""
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_PLACE = re.compile(r"\([0-9]{1,10},[0-9]{1,5}\)")


def _kind(column: str, product: Product) -> str:
    """What payload a column of somebody else's holds, by its type."""
    kinds = {"json": "json", "binary": "bytes", "image": "bytes"}
    for kind in ("text", "bytes", "json"):  # where JSON is kept as text, text may be JSON
        kinds[product.payload_types[kind].partition("(")[0]] = kind
    return kinds.get(column.partition("(")[0], "text")


@dataclass(frozen=True)
class Ask:
    """What is asked of one walk."""

    walk: Walk
    look: int = _EVERYTHING
    """At most so many messages are read."""
    n: int = _EVERYTHING
    """At most so many of those that match come back."""
    after: Key | None = None
    exactly: bool = False
    """The message at `after` itself."""
    reverse: bool = False
    filters: Filters = NOTHING
    moment: datetime | None = None
    """Ages are measured from then, and what came into its state later is left out. None: now."""
    payload_length: int | None = None
    """So much of each payload; None: nothing of it."""
    error_length: int = 1000
    stretch: tuple[int, int] | None = None
    """The first and the last number or page; of numbers, those of one lap."""
    slots: int | None = None

    @property
    def down(self) -> bool:
        """Whether it goes from the other end."""
        return self.walk.newest_first != self.reverse


def fetch(
    connection: Connection, source: Source, ask: Ask, row_type: type[Row], last: str
) -> list[Row]:
    """The rows of one ask, through the statement `last` of common.sql."""
    result = connection.execute(query(source, ask, last), values_of(source, ask))
    return sql.rows_of(result.keys(), result.fetchall(), row_type, f"common.{last}")


def query(source: Source, ask: Ask, last: str) -> TextClause:
    """The whole statement of one ask."""
    common = sql.statements(source.product.name, "common")
    steps = [("walked", source.statements[ask.walk.statement]), ("looked", common["looked"])]
    return sql.piped(steps, common[last], source.product.dialect, scope_of(source, ask))


def scope_of(source: Source, ask: Ask) -> sql.Scope:
    """The conditions and names that the statements of one ask are rendered with."""
    queue, walk, filters = source.queue, ask.walk, ask.filters
    scope = queue.scope(source.product)
    roles = walk.roles(queue)
    body = ask.payload_length is not None
    beside = queue.design.table_suffix != "" and queue.kind is Kind.INSTALLED
    known = source.payload != ""
    conditions = {
        "walk": walk.name,
        "sorted": _sorted(ask),
        "start": "beginning" if ask.after is None else "exactly" if ask.exactly else "after",
        "payload": source.payload or "text",
        "body": _yes(body and known),
        "with_payload": _yes(known and (body or bool(filters.payload) or not beside)),
        "by_age": "walk" if walk.by_age else "row",
        "by_cutoff": _yes(ask.moment is not None),
        "by_older": _yes(filters.older is not None),
        "by_newer": _yes(filters.newer is not None),
        "by_id": _yes(bool(filters.ids) and not ask.exactly),
        "by_error": _yes(bool(filters.errors)),
        "by_claimed_by": _yes(filters.claimed_by is not None),
        "by_payload": _yes(bool(filters.payload)),
    }
    values = {**scope.values, "since": roles.get(SINCE.get(walk.state, ""), "")}
    for number in range(1, MOST_PAYLOAD_FILTERS + 1):
        conditions[f"by_payload_{number}"] = _yes(number <= len(filters.payload))
    for number, equals in enumerate(filters.payload, 1):
        values[f"payload_path_{number}"] = equals.json_path
    return sql.Scope(values, {**scope.options, **conditions}, roles)


def _sorted(ask: Ask) -> str:
    if ask.walk.by is By.PLACE and ask.stretch is None:
        return "no"
    by = "time" if ask.walk.by is By.TIME else "id" if ask.walk.dated else "undated"
    return f"{by}_{'down' if ask.down else 'up'}"


def values_of(source: Source, ask: Ask) -> dict[str, object]:
    """Everything that a statement may bind; what its text does not name is not sent."""
    filters = ask.filters
    first, last = ask.stretch or (0, 0)
    slots = ask.slots or 1
    equals = [
        {"path": [str(step) for step in one.path], "value": one.value} for one in filters.payload
    ]
    return {
        "look": ask.look,
        "n": ask.n,
        "after_id": ask.after.id if ask.after else None,
        "after_time": ask.after.time if ask.after else None,
        "first": first,
        "last": last,
        "first_slot": first % slots,
        "last_slot": last % slots,
        "payload_length": ask.payload_length,
        "error_length": ask.error_length,
        "moment": ask.moment,
        **_seconds("older", filters.older),
        **_seconds("newer", filters.newer),
        "id": filters.id,
        "errors": source.product.array(filters.errors),
        "claimed_by": filters.claimed_by,
        "payload_equals": json.dumps(equals, ensure_ascii=False),
        **{f"payload_value_{n}": one.value for n, one in enumerate(filters.payload, 1)},
    }


def _seconds(name: str, seconds: float | None) -> dict[str, object]:
    """An interval as one number, and in the whole numbers that SQL Server's DATEADD takes."""
    whole, rest = divmod(seconds or 0.0, 1)
    return {name: seconds, f"{name}_s": int(whole), f"{name}_us": round(rest * 1e6)}


def _yes(condition: object) -> str:
    return "yes" if condition else "no"
