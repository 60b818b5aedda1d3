"""What a bench measures, under which load, and on which scratch queues.

The bench leaves nothing in a database. What a killed one leaves behind, the next one drops."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from console import catalog, sql
from console.catalog import Kind, Queue
from console.designs import Order
from console.engines import Database
from console.load.round_figures import LeftRow

if TYPE_CHECKING:
    from sqlalchemy import Connection, TextClause


@dataclass(frozen=True)
class Load:
    producers: int = 16
    consumers: int = 16
    payload: int = 300
    """Bytes of a message."""
    seconds: float = 10.0
    warmup_seconds: float = 2.0
    rounds: int = 3
    room: int = 0
    """Producers wait while so many messages are in the queue. 0: never, as in Kejser's article, but
    for a full ring."""
    held_xmin: bool = False
    """An old transaction is open during each round."""
    with_console: bool = False
    """Each round is run twice: without a console, and with one that samples every second."""


ROOM = 1000
"""The default with several readers, for all together: if one of several rings got full, the others
would have messages that it lacks."""

PREFIX = "dbq_bench_"
"""Of its queues' and schemas' names, followed by the run's token."""

APPLICATION = "dbq-bench "
"""Of its sessions' names, followed by the token: queues are in use while such a session lives."""

PROOF_PREFIX = "dbq_prove_"
PROOF_APPLICATION = "dbq-prove "
"""The same for `prove`."""

_TOKEN_BYTES = 4


def new_token() -> str:
    """For all names of one run."""
    return secrets.token_hex(_TOKEN_BYTES)


def token_of(name: str, prefix: str = PREFIX) -> str | None:
    """Of the run that a queue or schema belongs to; None: to none."""
    if not name.startswith(prefix):
        return None
    return name[len(prefix) : len(prefix) + 2 * _TOKEN_BYTES]


def live_tokens(connection: Connection) -> set[str]:
    """Of the runs that have a session. Read them after what runs have made: one that begins
    meanwhile connects before it makes anything."""
    return {name.split()[1] for name in sql.values(connection, str, "bench.live_sessions")}


def application_name(token: str) -> str:
    """Of the session that lives as long as the run."""
    return APPLICATION + token


def load_application_name(token: str) -> str:
    """Of the sessions that push and pop."""
    return f"{application_name(token)} load"


@dataclass(frozen=True)
class Reader:
    """The queue of consumers that share its messages."""

    database: Database
    settings: Mapping[str, object]
    """For their driver, as JSON: `WorkerRound.task.settings`."""
    scope: sql.Scope
    held: str = "held"
    """The statement that selects the payloads of unfinished messages."""

    def left(self, filler: bytes) -> list[LeftRow]:
        """Its unfinished messages, by producer."""
        with self._counting("bench.left") as (connection, counted):
            return sql.rows(connection, LeftRow, counted, filler=filler.decode())

    def left_codes(self, filler: bytes) -> list[int]:
        """The same, message by message."""
        with self._counting("bench.left_codes") as (connection, codes):
            return sql.values(connection, int, codes, filler=filler.decode())

    @contextmanager
    def _counting(self, of: str) -> Iterator[tuple[Connection, TextClause]]:
        steps = [("held", f"bench.{self.held}"), ("codes", "bench.codes")]
        with self.database.transaction("count what is left", read_only=True) as connection:
            yield connection, sql.piped(steps, of, connection.dialect, self.scope)


@dataclass(frozen=True)
class ScratchQueue:
    """The queue of one round."""

    schema: str
    tables: Sequence[str]
    """All names that its tables can have, for their activity and size."""
    readers: Sequence[Reader]
    """Several where each message is for several."""
    settings: Mapping[str, object]
    """For the producers' driver."""


@dataclass(frozen=True)
class Candidate:
    name: str
    """In results: `ring`, `ring size=100000`, `procrastinate`."""
    design: str
    """Or the peer's name."""
    batch: int
    driver: str
    """`module:function` for the worker processes; takes a `WorkerRound`."""
    order: Order = Order.NONE
    options: Mapping[str, str] = field(default_factory=dict, hash=False)
    peer: bool = False
    carries: bool = True
    """Whether it carries messages; the floor does not."""
    readers: int = 1
    """How many get each message."""


class QueueProvider(Protocol):
    """Creates the queues of one kind of candidates."""

    def scratch(self, candidate: Candidate, payload: int) -> AbstractContextManager[ScratchQueue]:
        """A new queue for payloads of so many bytes; dropped when the context ends."""
        ...


@dataclass(frozen=True)
class Leftovers:
    """Of earlier runs that no longer have a session."""

    queues: tuple[Queue, ...]
    schemas: tuple[str, ...]
    in_use: tuple[str, ...]
    """Names that belong to a running bench, or may do so."""


def find_leftovers(database: Database, prefix: str = PREFIX) -> Leftovers:
    with database.transaction("find what earlier runs left", read_only=True) as connection:
        schemas = sql.values(connection, str, "bench.schemas")
        known = catalog.queues(connection)
        alive = live_tokens(connection)
    queues = [q for q in known if token_of(q.name, prefix) and q.kind is Kind.INSTALLED]
    # A login that cannot see all sessions cannot know that one has ended.
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
    leftovers: Leftovers,
    uninstall: Callable[[Database, Queue], None],
    report: Callable[[str], None],
    what: str = "bench",
) -> None:
    """Remove and report them. `what`: the verb that created them."""
    for queue in leftovers.queues:
        report(f"An earlier {what} left the queue {queue.label} behind: it is dropped.")
        uninstall(database, queue)
    for schema in leftovers.schemas:
        report(f"An earlier {what} left the schema {schema} behind: it is dropped.")
        drop_schema(database, schema)
    for name in leftovers.in_use:
        report(f"{name} belongs to a {what} that may still be running: it is skipped.")


@contextmanager
def scratch_schema(database: Database, schema: str) -> Iterator[None]:
    """A schema for one round, dropped with all that is in it."""
    try:
        with database.transaction("make a schema for the bench") as connection:
            sql.run(connection, "bench.make_schema", sql.Scope({"schema": schema}))
        yield
    finally:
        # Also if creating it was interrupted: its name is this run's alone.
        drop_schema(database, schema)


def drop_schema(database: Database, schema: str) -> None:
    """With all that is in it, if it exists."""
    with database.transaction("drop a schema of the bench") as connection:
        sql.run(connection, "bench.drop_schema", sql.Scope({"schema": schema}))
