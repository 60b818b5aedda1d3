"""Other queues in tables, under the same load and checks.

procrastinate.py  through its public interface, configured as its documentation advises
pgqueuer.py       the same

These are packages of the extra [bench], each in a schema of its own; pgmq is a server extension,
and two peers. Each gets as many connections for its work as the designs do, and is dropped after
the round."""

import asyncio
import importlib
import importlib.util
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import URL

from console import sql
from console.designs import Order
from console.engines import Database, product
from console.errors import UsageError
from console.features.bench.candidate import (
    PREFIX,
    Candidate,
    Reader,
    ScratchQueue,
    live_tokens,
    load_application_name,
    scratch_schema,
    token_of,
)
from console.features.bench.queues import LIBPQ, call_text
from console.load.worker_round import WorkerRound


@dataclass(frozen=True)
class Library:
    """A package. Its module here has `install`, and `run` for the worker processes."""

    name: str
    needs: tuple[str, ...]
    """Packages to import."""
    order: Order
    """As its documentation promises."""
    tables: tuple[str, ...]
    """That its calls write."""

    @property
    def _module(self) -> str:
        return f"{__package__}.{self.name}"

    def why_unavailable(self, database: Database) -> str:  # noqa: ARG002  # of the protocol
        """Empty: it is available."""
        if not all(importlib.util.find_spec(package) for package in self.needs):
            return "It is not installed. Install it: pip install 'dbq-console[bench]'"
        return ""

    def candidate(self, batch: int) -> Candidate:
        driver = f"{self._module}:run"
        return Candidate(self.name, self.name, batch, driver, order=self.order, peer=True)

    @contextmanager
    def scratch(self, database: Database, token: str) -> Iterator[ScratchQueue]:
        schema = f"{PREFIX}{token}_{self.name}"
        with scratch_schema(database, schema):
            # Needs the extra, and takes a moment.
            peer = importlib.import_module(self._module)
            peer.install(
                url_in_schema(database.complete_url(), schema), load_application_name(token)
            )
            scope, settings = sql.Scope({"schema": schema}), {"schema": schema}
            reader = Reader(database, settings, scope, f"held_{self.name}")
            yield ScratchQueue(schema, self.tables, [reader], settings)


PROCRASTINATE = Library(
    "procrastinate", ("procrastinate",), Order.LAX, ("procrastinate_jobs", "procrastinate_events")
)
PGQUEUER = Library("pgqueuer", ("pgqueuer", "asyncpg"), Order.NONE, ("pgqueuer", "pgqueuer_log"))


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
class _Availability:
    installed: bool
    pops_many: bool
    """Where it is installed: whether its `pop` takes more than one message."""
    has_schema: bool
    creatable: bool


@dataclass(frozen=True)
class Pgmq:
    """pgmq, where its extension (or its plain SQL) is on the server, or this login may create it.

    Two peers: `pgmq` pops with `pgmq.pop`, which deletes what it returns, as most designs do;
    `pgmq-read` with `pgmq.read` (invisible to others for 30 seconds) and `pgmq.delete`, in two
    transactions, as `claim` does. Calls are prepared, in the same driver as the designs'. Tables
    are logged (`pgmq.create`).
    """

    name: str
    takes: Mapping[str, str]
    """The statements that pop, by call: POPS or READS."""

    def why_unavailable(self, database: Database) -> str:
        """Empty: it is available."""
        pgmq = _availability(database)
        if pgmq.installed and not pgmq.pops_many:
            return "Its pgmq.pop takes one message a call: update the extension (1.13 takes more)."
        if pgmq.installed or pgmq.creatable:
            return ""
        return "Its extension is not on this server, or this login may not create it."

    def candidate(self, batch: int) -> Candidate:
        """Its documentation promises an order only within its FIFO groups."""
        return Candidate(self.name, self.name, batch, _DRIVER, order=Order.NONE, peer=True)

    @contextmanager
    def scratch(self, database: Database, token: str) -> Iterator[ScratchQueue]:
        """A queue, and also the extension if it is not there yet."""
        queue = f"{PREFIX}{token}_{_LIBRARY}"
        with ExitStack() as at_the_end:
            pgmq = _availability(database)
            if not pgmq.installed:
                if not pgmq.has_schema:
                    at_the_end.callback(_run, database, "drop_pgmq_schema")
                at_the_end.callback(_run, database, "drop_pgmq")
                _run(database, "create_pgmq")
            _drop_dead(database)
            at_the_end.callback(_drop, database, queue)
            _run(database, "create_pgmq_queue", queue)
            settings = {
                "calls": _calls(database, queue, {**_PUSHES, **self.takes}),
                "finishes": "complete" in self.takes,
                "id_type": "bigint",
            }
            reader = Reader(database, settings, _scope(queue), "held_pgmq")
            yield ScratchQueue(_SCHEMA, [f"q_{queue}"], [reader], settings)


def _availability(database: Database) -> _Availability:
    with database.transaction("look for pgmq", read_only=True) as connection:
        return sql.row(connection, _Availability, "bench.pgmq_available")


def _calls(database: Database, queue: str, names: Mapping[str, str]) -> dict[str, str]:
    dialect = database.product.dialect
    return {
        call: call_text(sql.query(f"bench.{name}", dialect, _scope(queue)), _DRIVER)
        for call, name in names.items()
    }


def _drop_dead(database: Database) -> None:
    """Queues of killed benches, if this login can see all sessions."""
    if not database.capabilities.sees_all_sessions:
        return
    with database.transaction("look for pgmq's queues", read_only=True) as connection:
        queues = sql.values(connection, str, "bench.pgmq_queues")
        alive = live_tokens(connection)
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


_ALL: tuple[Library | Pgmq, ...] = (
    PROCRASTINATE,
    PGQUEUER,
    Pgmq("pgmq", POPS),
    Pgmq("pgmq-read", READS),
)
_PEERS: Mapping[str, Library | Pgmq] = {peer.name: peer for peer in _ALL}

NAMES: Sequence[str] = tuple(_PEERS)

ENGINE = "postgresql"
"""All keep their queues there."""


def why_unavailable(name: str, database: Database) -> str:
    """Empty: it is available."""
    if database.product.name != ENGINE:
        return f"It is for {product(ENGINE).title}."
    return _PEERS[name].why_unavailable(database)


def candidate(name: str, batch: int) -> Candidate:
    """UsageError for an unknown name."""
    if name not in _PEERS:
        raise UsageError(f"There is no peer {name!r}.", next_step=f"Peers: {', '.join(NAMES)}.")
    return _PEERS[name].candidate(batch)


class PeerQueues:
    """Creates the peers' queues."""

    def __init__(self, database: Database, token: str) -> None:
        self._database = database
        self._token = token

    def scratch(self, candidate: Candidate, payload: int) -> AbstractContextManager[ScratchQueue]:  # noqa: ARG002
        return _PEERS[candidate.design].scratch(self._database, self._token)


# Shared by the drivers.

_POLL_SECONDS = 0.02
_LOST = ("08", "57P")
"""Prefixes of SQLSTATEs: the connection was lost, or closed by the server."""


def url_in_schema(url: URL, schema: str) -> URL:
    """With this schema as the search path."""
    given = url.query.get("options", "")
    options = given if isinstance(given, str) else " ".join(given)
    return url.update_query_dict({"options": f"{options} -c search_path={schema}".strip()})


def run_loop(
    work: Callable[[WorkerRound], Coroutine[Any, Any, None]], worker_round: WorkerRound
) -> None:
    """In uvloop, which pgqueuer uses, where it is installed."""
    try:
        import uvloop  # noqa: PLC0415
    except ImportError:
        asyncio.run(work(worker_round))
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work(worker_round))


async def until_over(worker_round: WorkerRound, workers: list[asyncio.Task[None]]) -> None:
    """Until the round ends, or all workers have."""
    pending = set(workers)
    while pending and not worker_round.finished():
        _, pending = await asyncio.wait(pending, timeout=_POLL_SECONDS)


def is_lost(error: BaseException) -> bool:
    """Whether the call is in doubt; else the server rolled it back."""
    state = getattr(error, "sqlstate", None)
    return not isinstance(state, str) or state.startswith(_LOST)
