"""Messages that lie in a queue, taken hold of by their keys and acted on, one batch a transaction.

The SQL is `queries/<engine>/actions.sql`. A batch first holds the rows that are still what was
chosen, skipping those in other hands, and then acts on exactly these.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from console import sql
from console.actions.choosing import Candidates, Choice
from console.actions.ledger import Ledger
from console.catalog import Kind, Queue
from console.designs import Flow, Order
from console.engines import Database, Session
from console.monitor.filters import Filters
from console.monitor.message import Message
from console.monitor.walked import Source

if TYPE_CHECKING:
    from console.actions.plan import Plan

CHANGED = "popped, changed or in other hands meanwhile"
"""Why a message was skipped."""


class Shelf(StrEnum):
    """Where a queue's rows lie."""

    TABLE = "table"
    SLOTS = "slots"
    """A ring's: emptied, never deleted."""
    IN_HAND = "in_hand"
    """What was popped from a ring and is not finished."""


_IN_HAND_COLUMNS = {
    **{name: name for name in ("id", "payload", "pushed_at", "attempts")},
    **{name: name for name in ("claimed_at", "claimed_by", "done_at")},
    "error": "errors",
}
_COUNTED = 10_000
_KEY_TYPES = {"bigint": "int8", "integer": "int4", "smallint": "int2", "uuid": "uuid"}
"""An adopted table's id: its type by the name that may stand in quotes; others compare as text."""


@dataclass(frozen=True)
class _HeldRow:
    place: str
    id: str | None
    state: str | None
    attempts: int | None


@dataclass(frozen=True)
class Moved:
    """What a batch's statement did, from which its ledger is made."""

    taken_out: int
    put_in: int


@dataclass(frozen=True)
class Standing:
    """How a queue stands to which messages shall go."""

    ready: int
    """Counted to 10,001. Of a ring, those whose numbers were purged too."""
    room: int | None
    """So many more a ring takes."""
    voids: int | None
    """So many more after a relay."""

    @property
    def count(self) -> str:
        """How many are ready, in words."""
        return _counted(self.ready - (self.voids or 0))

    def needs(self, count: int) -> tuple[list[str], list[str]]:
        """What a push of so many needs: as a consequence, or as an obstacle."""
        if self.room is None:
            return [], []
        needs = f"needs {count:,} slots, {self.room:,} are free"
        if count <= self.room:
            return [needs], []
        if self.voids:
            needs += f"; a relay frees {_counted(self.voids)} more, whose messages were purged"
        return [], [needs]


def _counted(number: int) -> str:
    return f"{number:,}" if number <= _COUNTED else f"more than {_COUNTED:,}"


@dataclass(frozen=True)
class Held:
    """Rows of one shelf that this transaction has locked, in one state."""

    shelf: Shelf
    state: str
    places: tuple[str, ...]
    ids: tuple[str | None, ...]


def shelf_of(queue: Queue, message: Message) -> Shelf:
    """Where the message lies."""
    if queue.design.flow is not Flow.NUMBERS:
        return Shelf.TABLE
    return Shelf.IN_HAND if message.number is None else Shelf.SLOTS


def scope(source: Source, shelf: Shelf, **conditions: str) -> sql.Scope:
    """What the statements of actions.sql are rendered with."""
    queue = source.queue
    plain = queue.scope(source.product)
    roles = dict(plain.roles)
    values = dict(plain.values)
    installed = queue.kind is Kind.INSTALLED
    beside = queue.design.table_suffix != "" and installed
    if shelf is Shelf.IN_HAND:
        roles = dict(_IN_HAND_COLUMNS)
        values["table"] = f"{queue.name}_in_hand"
    values["key_type"] = _KEY_TYPES.get(source.id_type, "text") if not installed else source.id_type
    options = {
        **plain.options,
        "payload": source.payload or "text",
        "shelf": shelf.value,
        "payload_beside": "yes" if beside else "no",
        "titled": "yes" if installed and "status" in queue.roles else "no",
        **conditions,
    }
    return sql.Scope(values, options, roles)


def statement(source: Source, name: str) -> sql.Statement:
    """One of actions.sql; of a queue that a library keeps, of that library's own file."""
    file = source.queue.design.name if source.queue.design.library else "actions"
    return sql.statements(source.product.name, file)[name]


@dataclass(frozen=True)
class _Rule:
    problem: str | None


def against_the_rule(session: Session, source: Source) -> list[str]:
    """Why the library's own way to make a message ready is not open here; nothing: it is."""
    if not source.queue.design.library:
        return []
    with session.transaction("look for the library's own function") as connection:
        rule = statement(source, "rule")
        (found,) = sql.fetch(connection, _Rule, rule, source.queue.scope(source.product))
    return [found.problem] if found.problem else []


def standing(connection: Connection, source: Source) -> Standing:
    """How the queue stands now."""
    within = scope(source, Shelf.TABLE)
    (found,) = sql.fetch(connection, Standing, statement(source, "standing"), within)
    return found


def hold(
    connection: Connection, source: Source, chosen: Sequence[Message]
) -> tuple[list[Held], int]:
    """Lock those that are still as they were chosen; and how many are not, or are in other hands.

    Nothing is waited for. The rows come by shelf and state, each in the order of the choice.
    """
    held: list[Held] = []
    skipped = len(chosen)
    for shelf, messages in by_shelf(source.queue, chosen):
        keys = {key_of(source.queue, shelf, message): message for message in messages}
        rows = sql.fetch(
            connection,
            _HeldRow,
            statement(source, "hold"),
            scope(source, shelf),
            keys=source.product.array(list(keys)),
            due=source.product.array([due_of(message) for message in messages]),
        )
        by_id = {message.id: message for message in messages}
        order = {message.id: at for at, message in enumerate(messages)}
        same: dict[str, list[_HeldRow]] = defaultdict(list)
        for row in rows:
            message = by_id.get(row.id) if row.id is not None else keys.get(row.place)
            if message is not None and _is_still(row, message):
                same[message.state].append(row)
                skipped -= 1
        for state, some in same.items():
            some.sort(key=lambda row: order.get(row.id, 0))
            places, ids = tuple(row.place for row in some), tuple(row.id for row in some)
            held.append(Held(shelf, state, places, ids))
    return held, skipped


def _is_still(row: _HeldRow, message: Message) -> bool:
    """Attempts rise with every pop: with the state they tell one claim or failure from the next."""
    return row.state in {None, message.state} and row.attempts in {None, message.attempts}


def by_shelf(queue: Queue, chosen: Sequence[Message]) -> Iterator[tuple[Shelf, Sequence[Message]]]:
    """The messages of each shelf."""
    found: Mapping[Shelf, list[Message]] = defaultdict(list)
    for message in chosen:
        found[shelf_of(queue, message)].append(message)
    yield from found.items()


def key_of(queue: Queue, shelf: Shelf, message: Message) -> str:
    """What `hold` finds the message by: its place in a heap, its number in a ring, else its id."""
    if shelf is Shelf.SLOTS:
        return str(message.number)
    if queue.design.order is Order.NONE and message.key:
        return message.key.split(",", 2)[2]
    return message.id or ""


def due_of(message: Message) -> str:
    """The first half of the key in a queue by due time, as the server wrote it."""
    place = message.key.split(",", 2)
    return place[1] if len(place) == 3 else ""


class RowMover:
    """A verb that does the same to every row that it holds: one statement of actions.sql."""

    verb = ""
    states: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    wants_name = False
    aged = "in that state"
    statement = ""
    """Its name in actions.sql."""

    def __init__(self, source: Source, *, detail: str = "", **conditions: str) -> None:
        """`conditions` are what the statement's `-- when` asks for besides queue and shelf."""
        self._source = source
        self._conditions = conditions
        self.detail = detail
        self.states = tuple(state for state in self.states if state in source.queue.states)
        self.allowed = tuple(state for state in self.allowed if state in source.queue.states)

    @property
    def source(self) -> Source:
        """The queue, and what its ids and payloads are."""
        return self._source

    def choice(
        self,
        database: Database,
        session: Session,
        filters: Filters,
        states: Sequence[str],
        cutoff: datetime,
    ) -> Candidates:
        """Where the queue's messages lie, oldest first."""
        return Choice(database, session, self._source, filters, states, cutoff)

    def consider(self, session: Session, chosen: Sequence[Message]) -> Mapping[str, list[Message]]:
        """Leaves none alone."""
        del session, chosen
        return {}

    def consequence(self, session: Session, plan: "Plan") -> tuple[list[str], list[str]]:
        """Nothing that would not be known."""
        del session, plan
        return [], []

    def bound(self, action_id: int) -> dict[str, object]:
        """What the statement binds besides the rows."""
        del action_id
        return {}

    def script(self) -> str:
        """The statement as it runs on each batch, for the shelf that most rows lie on."""
        ring = self._source.queue.design.flow is Flow.NUMBERS
        shelf = Shelf.TABLE
        if ring:
            shelf = Shelf.SLOTS if "ready" in self.states else Shelf.IN_HAND
        within = scope(self._source, shelf, **self._conditions)
        return sql.script(self._statement, self._source.product.dialect, within)

    @property
    def _statement(self) -> sql.Statement:
        return statement(self._source, self.statement)

    def act(self, connection: Connection, chosen: Sequence[Message], action_id: int) -> Ledger:
        """One batch, in the caller's transaction."""
        self._source.pass_gate(connection)
        held, skipped = hold(connection, self._source, chosen)
        ledger = Ledger(selected=skipped, skipped={CHANGED: skipped} if skipped else {})
        for some in held:
            ledger += self._move(connection, some, action_id)
        return ledger

    def _move(self, connection: Connection, held: Held, action_id: int) -> Ledger:
        (moved,) = sql.fetch(
            connection,
            Moved,
            self._statement,
            scope(self._source, held.shelf, **self._conditions),
            places=self._source.product.array(list(held.places)),
            state=held.state,
            **self.bound(action_id),
        )
        # A library's own rule may leave some where they are.
        stayed = len(held.places) - moved.taken_out
        why = self._source.queue.design.stays
        failed = {why: stayed} if stayed > 0 and why else {}
        return Ledger(len(held.places), moved.taken_out, moved.put_in, failed=failed)

    def stops(self, ledger: Ledger) -> str:
        """Goes on whatever comes."""
        del ledger
        return ""
