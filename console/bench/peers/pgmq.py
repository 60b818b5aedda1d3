"""pgmq, where its extension (or its plain SQL) is on the server, or this login may create it.

Two peers: `pgmq` takes by `pgmq.pop`, which deletes what it returns, as most designs do;
`pgmq-read` by `pgmq.read` (unseen by others for 30 seconds) and `pgmq.delete`, in two transactions,
as `claim` does. The calls go through the same driver as the designs' functions, prepared. Tables
are logged (`pgmq.create`).
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from console import sql
from console.bench.candidate import PREFIX, Candidate, Scratch, living_tokens, token_of
from console.bench.peers.shared import ScratchPeer
from console.bench.queues import LIBPQ, call_text
from console.designs import Order
from console.engines import Database

_LIBRARY = "pgmq"
_SCHEMA = "pgmq"
_DRIVER = f"{LIBPQ}:run_queue"
_PUSHES = {"push": "pgmq_send", "push_many": "pgmq_send_batch"}
POPS: Mapping[str, str] = {"pop": "pgmq_pop", "pop_many": "pgmq_pop_many"}
READS: Mapping[str, str] = {
    "pop": "pgmq_read",
    "pop_many": "pgmq_read_many",
    "complete": "pgmq_delete",
    "complete_many": "pgmq_delete_many",
}


@dataclass(frozen=True)
class _There:
    installed: bool
    pops_many: bool
    """Where it is installed: whether its `pop` takes more than one message."""
    has_schema: bool
    creatable: bool


@dataclass(frozen=True)
class Pgmq:
    """One of the two."""

    name: str
    takes: Mapping[str, str]
    """The statements that take messages, by call: POPS or READS."""
    library: str = _LIBRARY

    def lacking(self, database: Database) -> str:
        """Why it cannot take part; empty where it can."""
        there = _there(database)
        if there.installed and not there.pops_many:
            return "Its pgmq.pop takes one message a call: update the extension (1.13 takes more)."
        if there.installed or there.creatable:
            return ""
        return "Its extension is not on this server, or this login may not create it."

    def candidate(self, batch: int) -> Candidate:
        """As one that takes part. Its documentation promises no order but with its FIFO groups."""
        return Candidate(self.name, self.name, batch, _DRIVER, order=Order.NONE, peer=True)

    @contextmanager
    def scratch(self, database: Database, token: str) -> Iterator[Scratch]:
        """A queue of its own, for one round; also the extension, where it is not there yet."""
        queue = f"{PREFIX}{token}_{_LIBRARY}"
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
                    "calls": _calls(database, queue, {**_PUSHES, **self.takes}),
                    "finishes": "complete" in self.takes,
                    "id_type": "bigint",
                },
            )


def _there(database: Database) -> _There:
    with database.transaction("look for pgmq", read_only=True) as connection:
        return sql.row(connection, _There, "bench.pgmq_there")


def _calls(database: Database, queue: str, names: Mapping[str, str]) -> dict[str, str]:
    dialect = database.product.dialect
    return {
        call: call_text(sql.query(f"bench.{name}", dialect, _scope(queue)), _DRIVER)
        for call, name in names.items()
    }


def _drop_dead(database: Database) -> None:
    """Queues of benches that were killed. Who cannot see all sessions cannot tell."""
    if not database.capabilities.sees_all_sessions:
        return
    with database.transaction("look for pgmq's queues", read_only=True) as connection:
        living = sql.values(connection, str, "bench.living")
        queues = sql.values(connection, str, "bench.pgmq_queues")
    alive = living_tokens(living)
    for queue in queues:
        if token_of(queue) not in alive:
            _drop(database, queue)


def _drop(database: Database, queue: str) -> None:
    _run(database, "drop_pgmq_queue", queue)


def _run(database: Database, name: str, queue: str = "") -> None:
    with database.transaction("set up pgmq for the bench") as connection:
        sql.run(connection, f"bench.{name}", _scope(queue))


def _scope(queue: str) -> sql.Scope:
    return sql.Scope({"queue": queue})
