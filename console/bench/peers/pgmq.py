"""pgmq, where its extension (or its plain SQL) is on the server, or this login may create it.

Single messages by `pgmq.send` and `pgmq.pop`, which deletes what it returns, as most designs do.
In batches by `send_batch`, `read` (unseen by others for 30 seconds) and `delete`. The calls go
through the same driver as the designs' functions, prepared. Tables are logged (`pgmq.create`).
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from console import sql
from console.bench.contestant import Contestant, Scratch
from console.bench.names import APPLICATION, PREFIX, token_of
from console.bench.peers.scratch import ScratchPeer
from console.bench.queues import LIBPQ, call_text
from console.designs import Order
from console.engines import Database

NAME = "pgmq"
_SCHEMA = "pgmq"
_DRIVER = f"{LIBPQ}:run_queue"
_SINGLE = {"push": "pgmq_send", "pop": "pgmq_pop"}
_BATCH = {"push_many": "pgmq_send_batch", "pop_many": "pgmq_read", "complete_many": "pgmq_delete"}


@dataclass(frozen=True)
class _There:
    installed: bool
    has_schema: bool
    creatable: bool


@dataclass(frozen=True)
class _Name:
    name: str


class Pgmq:
    """The peer."""

    name = NAME

    def lacking(self, database: Database) -> str:
        """Why it cannot take part; empty where it can."""
        if database.product.name != "postgresql":
            return "It is for PostgreSQL."
        there = _there(database)
        if there.installed or there.creatable:
            return ""
        return "Its extension is not on this server, or this login may not create it."

    def contestant(self, batch: int) -> Contestant:
        """As one that takes part. Its documentation promises no order but with its FIFO groups."""
        return Contestant(NAME, NAME, batch, _DRIVER, order=Order.NONE, peer=True)

    @contextmanager
    def scratch(self, database: Database, token: str, batch: int) -> Iterator[Scratch]:
        """A queue of its own, for one round; also the extension, where it is not there yet."""
        queue = f"{PREFIX}{token}_{NAME}"
        with ExitStack() as at_the_end:
            there = _there(database)
            if not there.installed:
                if not there.has_schema:
                    at_the_end.callback(_run, database, "drop_pgmq_schema")
                at_the_end.callback(_run, database, "drop_pgmq")
                _run(database, "create_pgmq")
            _drop_dead(database)
            at_the_end.callback(_drop, database, queue)
            _run(database, "create_pgmq_queue", queue)
            yield ScratchPeer(
                database,
                "held_pgmq",
                _scope(queue),
                _SCHEMA,
                [f"q_{queue}"],
                {
                    "calls": _calls(database, queue, batch),
                    "finishes": batch > 1,
                    "id_type": "bigint",
                },
            )


def _there(database: Database) -> _There:
    statement = sql.statements(database.product.name, "bench")["pgmq_there"]
    with database.transaction("look for pgmq", read_only=True) as connection:
        (found,) = sql.fetch(connection, _There, statement, sql.Scope())
    return found


def _calls(database: Database, queue: str, batch: int) -> dict[str, str]:
    known = sql.statements(database.product.name, "bench")
    dialect = database.product.dialect
    names = _SINGLE if batch == 1 else _BATCH
    return {
        call: call_text(sql.query(known[name], dialect, _scope(queue)), _DRIVER)
        for call, name in names.items()
    }


def _drop_dead(database: Database) -> None:
    """Queues of benches that were killed. Who cannot see all sessions cannot tell."""
    if not database.capabilities.sees_all_sessions:
        return
    known = sql.statements(database.product.name, "bench")
    with database.transaction("look for pgmq's queues", read_only=True) as connection:
        living = sql.fetch(connection, _Name, known["living"], sql.Scope())
        queues = sql.fetch(connection, _Name, known["pgmq_queues"], sql.Scope())
    alive = {row.name.removeprefix(APPLICATION).split()[0] for row in living}
    for row in queues:
        if token_of(row.name) not in alive:
            _drop(database, row.name)


def _drop(database: Database, queue: str) -> None:
    _run(database, "drop_pgmq_queue", queue)


def _run(database: Database, name: str, queue: str = "") -> None:
    statement = sql.statements(database.product.name, "bench")[name]
    with database.transaction("set up pgmq for the bench") as connection:
        sql.run_script(connection, statement, _scope(queue))


def _scope(queue: str) -> sql.Scope:
    return sql.Scope({"queue": queue})
