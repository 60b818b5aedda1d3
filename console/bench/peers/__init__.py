"""Other queues in tables that anybody can install, under the same load and the same checks.

procrastinate.py  through its public interface, set as its documentation advises (see there)
pgqueuer.py       the same
pgmq.py           an extension of the server: where it is there, or can be created
libraries.py      what the first two have in common: packages of the extra [bench]

Each gets as many connections for its work as the designs do, and what it made goes after the round.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from console.bench.contestant import Contestant, Scratch
from console.bench.peers.libraries import PGQUEUER, PROCRASTINATE
from console.bench.peers.pgmq import Pgmq
from console.engines import Database
from console.errors import UsageError


class _Peer(Protocol):
    @property
    def name(self) -> str: ...

    def lacking(self, database: Database) -> str: ...

    def contestant(self, batch: int) -> Contestant: ...

    def scratch(
        self, database: Database, token: str, batch: int
    ) -> AbstractContextManager[Scratch]: ...


_ALL: tuple[_Peer, ...] = (PROCRASTINATE, PGQUEUER, Pgmq())
_PEERS: Mapping[str, _Peer] = {peer.name: peer for peer in _ALL}

NAMES: Sequence[str] = tuple(_PEERS)
"""Those that the bench knows."""


def lacking(name: str, database: Database) -> str:
    """Why it cannot take part here; empty where it can."""
    return _PEERS[name].lacking(database)


def contestant(name: str, batch: int) -> Contestant:
    """As one that takes part. UsageError for a name that is not known."""
    if name not in _PEERS:
        raise UsageError(f"There is no peer {name!r}.", next_step=f"Peers: {', '.join(NAMES)}.")
    return _PEERS[name].contestant(batch)


class Peers:
    """Where peers get their queues."""

    def __init__(self, database: Database, token: str) -> None:
        self._database = database
        self._token = token

    def scratch(self, contestant: Contestant, payload: int) -> AbstractContextManager[Scratch]:  # noqa: ARG002
        """One queue, for one round."""
        return _PEERS[contestant.design].scratch(self._database, self._token, contestant.batch)
