"""What takes part in a bench, under which load, and in which schema of its own.

The bench leaves nothing in a database, however it ends; what a killed one left, the next drops."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from console import catalog, sql
from console.catalog import Kind, Queue
from console.designs import Order
from console.engines import Database

if TYPE_CHECKING:
    from sqlalchemy import Connection, TextClause


@dataclass(frozen=True)
class Load:
    """How much of what."""

    producers: int = 16
    consumers: int = 16
    payload: int = 300
    """Bytes of a message."""
    seconds: float = 10.0
    warmup_seconds: float = 2.0
    rounds: int = 3
    room: int = 0
    """Producers wait while so many messages are in the queue. 0: never, as in Kejser's article; a
    full ring makes them wait all the same."""
    held_xmin: bool = False
    """One old transaction is open during each round."""
    with_console: bool = False
    """Each round is done twice: without the console, and with one that samples every second."""


ROOM = 1000
"""Deliveries that wait, of all readers together, where the load says nothing: if one of several
rings got full, others would have a message that it has not."""

PREFIX = "dbq_bench_"
"""Of the names of its queues and schemas; then comes the bench's token."""

APPLICATION = "dbq-bench "
"""Of its sessions' names; then comes the token too: whose session lives, whose queues live."""

PROOF_PREFIX = "dbq_prove_"
PROOF_APPLICATION = "dbq-prove "
"""The same for `prove`."""

_TOKEN_BYTES = 4


def new_token() -> str:
    """What one run has in all its names."""
    return secrets.token_hex(_TOKEN_BYTES)


def token_of(name: str, prefix: str = PREFIX) -> str | None:
    """The token in the name of a queue or a schema; None: it is not of such a run."""
    if not name.startswith(prefix):
        return None
    return name[len(prefix) : len(prefix) + 2 * _TOKEN_BYTES]


def live_tokens(sessions: Iterable[str]) -> set[str]:
    """Of the runs whose sessions have these names."""
    return {name.split()[1] for name in sessions}


def application_name(token: str) -> str:
    """Of the session that is there as long as the run is."""
    return APPLICATION + token


def load_application_name(token: str) -> str:
    """Of the sessions that push and pop."""
    return f"{application_name(token)} load"


@dataclass(frozen=True)
class LeftRow:
    """What is left in a queue of one producer's messages; producer -1: what is damaged."""

    producer: int
    messages: int
    different: int
    numbers: str
    """The sum of their numbers, in digits."""
    squares: str
    """The sum of the squares of their numbers, in digits."""


@dataclass(frozen=True)
class Reader:
    """A queue as those consumers have it who share its messages."""

    database: Database
    settings: Mapping[str, object]
    """What their driver needs, as JSON: `WorkerRound.task.settings`."""
    scope: sql.Scope
    held: str = "held"
    """The statement that selects the payloads of what no consumer finished."""

    def left(self, filler: bytes) -> list[LeftRow]:
        """What is still in it that no consumer finished: one set-based query."""
        with self._counting("bench.left") as (connection, counted):
            return sql.rows(connection, LeftRow, counted, filler=filler.decode())

    def left_codes(self, filler: bytes) -> list[int]:
        """The same, message by message: asked only where the sums do not come out."""
        with self._counting("bench.left_codes") as (connection, codes):
            return sql.values(connection, int, codes, filler=filler.decode())

    @contextmanager
    def _counting(self, of: str) -> Iterator[tuple[Connection, TextClause]]:
        steps = [("held", f"bench.{self.held}"), ("codes", "bench.codes")]
        with self.database.transaction("count what is left", read_only=True) as connection:
            yield connection, sql.piped(steps, of, connection.dialect, self.scope)


@dataclass(frozen=True)
class ScratchQueue:
    """A queue of one round, as long as its context is open."""

    schema: str
    """Where its tables are; all in a schema whose name begins with `dbq_bench_`, or listed."""
    tables: Sequence[str]
    """All names that they can have, for the pages and rows that were touched."""
    readers: Sequence[Reader]
    """What each consumer reads from: one, or as many as each message is for."""
    settings: Mapping[str, object]
    """What the producers' driver needs."""


@dataclass(frozen=True)
class Candidate:
    """Who takes part. Every round is on a queue that `QueueProvider.scratch` makes for it alone."""

    name: str
    """Of a row in the table: `ring`, `ring size=100000`, `procrastinate`."""
    design: str
    """The design, or the peer's name."""
    batch: int
    driver: str
    """`module:function` that a worker process runs: it takes a `WorkerRound`."""
    order: Order = Order.NONE
    options: Mapping[str, str] = field(default_factory=dict, hash=False)
    peer: bool = False
    carries: bool = True
    """Whether messages go through; the floor's rows do not."""
    readers: int = 1
    """How many get each message: so many deliveries it has."""


class QueueProvider(Protocol):
    """Where candidates of one kind get their queues."""

    def scratch(self, candidate: Candidate, payload: int) -> AbstractContextManager[ScratchQueue]:
        """Make a queue for payloads of so many bytes; it goes with the context, however it ends."""
        ...


@dataclass(frozen=True)
class Leftovers:
    """What earlier runs left, of which no session is there any more; and what may be in use."""

    queues: tuple[Queue, ...]
    schemas: tuple[str, ...]
    in_use: tuple[str, ...]
    """Names of what belongs to one that runs, or of which nobody can tell."""


def find_leftovers(database: Database, prefix: str = PREFIX) -> Leftovers:
    """Look for them, by the prefix of their names."""
    with database.transaction("find what earlier runs left", read_only=True) as connection:
        living = sql.values(connection, str, "bench.live_sessions")
        schemas = sql.values(connection, str, "bench.schemas")
        known = catalog.queues(connection)
    alive = live_tokens(living)
    queues = [q for q in known if token_of(q.name, prefix) and q.kind is Kind.INSTALLED]
    # Who cannot see all sessions cannot tell that one is gone.
    names = [
        *(queue.name for queue in queues),
        *(schema for schema in schemas if token_of(schema, prefix)),
    ]
    sees = database.capabilities.sees_all_sessions
    dead = {name for name in names if sees and token_of(name, prefix) not in alive}
    return Leftovers(
        tuple(queue for queue in queues if queue.name in dead),
        tuple(name for name in schemas if name in dead),
        tuple(name for name in names if name not in dead),
    )


def drop_leftovers(
    database: Database,
    found: Leftovers,
    uninstall: Callable[[Database, Queue], None],
    tell: Callable[[str], None],
    what: str = "bench",
) -> None:
    """Remove what is nobody's, and say so. `what`: what made it."""
    for queue in found.queues:
        tell(f"An earlier {what} left the queue {queue.label} behind: it is dropped.")
        uninstall(database, queue)
    for schema in found.schemas:
        tell(f"An earlier {what} left the schema {schema} behind: it is dropped.")
        drop_schema(database, schema)
    for name in found.in_use:
        tell(f"{name} belongs to a {what} that may still be running: it is skipped.")


@contextmanager
def scratch_schema(database: Database, schema: str) -> Iterator[None]:
    """A schema for one round; all that is in it goes with the context."""
    try:
        with database.transaction("make a schema for the bench") as connection:
            sql.run(connection, "bench.make_schema", sql.Scope({"schema": schema}))
        yield
    finally:
        # Also after an interrupt whose answer was lost: there is nothing of anybody else's in it.
        drop_schema(database, schema)


def drop_schema(database: Database, schema: str) -> None:
    """With all that is in it; nothing where it is not there."""
    with database.transaction("drop a schema of the bench") as connection:
        sql.run(connection, "bench.drop_schema", sql.Scope({"schema": schema}))
