"""Other queues in tables that anybody can install, under the same load and the same checks.

procrastinate.py  through its public interface, set as its documentation advises (see there)
pgqueuer.py       the same
pgmq.py           an extension of the server: where it is there, or can be created; two peers

The first two are packages of the extra [bench], each in a schema of its own, that goes whole. Each
gets as many connections for its work as the designs do, and what it made goes after the round."""

import importlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from console import sql
from console.bench.candidate import PREFIX, Candidate, Scratch, load_name, schema_of_its_own
from console.bench.peers.pgmq import POPS, READS, Pgmq
from console.bench.peers.shared import ScratchPeer, url_in_schema
from console.designs import LIBRARIES, Order
from console.engines import Database, product
from console.errors import UsageError


@dataclass(frozen=True)
class Library:
    """One of them. Its module here has `install`, and `run` for the worker processes."""

    name: str
    needs: tuple[str, ...]
    """What has to be there to import."""
    order: Order
    """That its documentation promises."""
    tables: tuple[str, ...]
    """Those that its calls write."""

    @property
    def library(self) -> str:
        """As `LIBRARIES` names it."""
        return self.name

    @property
    def _module(self) -> str:
        return f"{__package__}.{self.name}"

    def lacking(self, database: Database) -> str:  # noqa: ARG002  # of the protocol
        """Why it cannot take part; empty where it can."""
        if not all(importlib.util.find_spec(package) for package in self.needs):
            return "It is not installed. Install it: pip install 'dbq-console[bench]'"
        return ""

    def candidate(self, batch: int) -> Candidate:
        """As one that takes part."""
        driver = f"{self._module}:run"
        return Candidate(self.name, self.name, batch, driver, order=self.order, peer=True)

    @contextmanager
    def scratch(self, database: Database, token: str) -> Iterator[Scratch]:
        """Its tables, for one round."""
        schema = f"{PREFIX}{token}_{self.name}"
        with schema_of_its_own(database, schema):
            # Imported here: it is there only with the extra, and takes a moment.
            peer = importlib.import_module(self._module)
            peer.install(url_in_schema(database.complete_url(), schema), load_name(token))
            yield ScratchPeer(
                database,
                f"held_{self.name}",
                sql.Scope({"schema": schema}),
                schema,
                self.tables,
                {"schema": schema},
            )


PROCRASTINATE = Library(
    "procrastinate",
    ("procrastinate",),
    Order.LAX,
    ("procrastinate_jobs", "procrastinate_events"),
)
PGQUEUER = Library("pgqueuer", ("pgqueuer", "asyncpg"), Order.NONE, ("pgqueuer", "pgqueuer_log"))


class _Peer(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def library(self) -> str: ...

    def lacking(self, database: Database) -> str: ...

    def candidate(self, batch: int) -> Candidate: ...

    def scratch(self, database: Database, token: str) -> AbstractContextManager[Scratch]: ...


_ALL: tuple[_Peer, ...] = (PROCRASTINATE, PGQUEUER, Pgmq("pgmq", POPS), Pgmq("pgmq-read", READS))
_PEERS: Mapping[str, _Peer] = {peer.name: peer for peer in _ALL}

NAMES: Sequence[str] = tuple(_PEERS)
"""Those that the bench knows."""


def lacking(name: str, database: Database) -> str:
    """Why it cannot take part here; empty where it can."""
    engines = LIBRARIES[_PEERS[name].library].engines
    if database.product.name not in engines:
        return f"It is for {', '.join(product(engine).title for engine in engines)}."
    return _PEERS[name].lacking(database)


def candidate(name: str, batch: int) -> Candidate:
    """As one that takes part. UsageError for a name that is not known."""
    if name not in _PEERS:
        raise UsageError(f"There is no peer {name!r}.", next_step=f"Peers: {', '.join(NAMES)}.")
    return _PEERS[name].candidate(batch)


class Peers:
    """Where peers get their queues."""

    def __init__(self, database: Database, token: str) -> None:
        self._database = database
        self._token = token

    def scratch(self, candidate: Candidate, payload: int) -> AbstractContextManager[Scratch]:  # noqa: ARG002
        """One queue, for one round."""
        return _PEERS[candidate.design].scratch(self._database, self._token)
