"""Whose the claims are, and who holds rows of a queue in an open transaction."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection

from console import sql
from console.catalog import Acting, Queue
from console.engines import Database, Product
from console.monitor.figures import Key, key_of
from console.monitor.memory import Memory

SHOWN = 10
"""Claims and holders of a queue that a snapshot names: the oldest."""

_CLAIMED_BY = re.compile(
    r"(?P<session>\w+=\S+ \w+=\S+)(?P<bound> bound)?(?: consumer=(?P<consumer>.*))?", re.DOTALL
)


class Evidence(StrEnum):
    """What the server says of the session that claimed. A consumer may rightly have left it."""

    GONE = "gone"
    ALIVE = "alive"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Claim:
    """One message that is claimed, and its owner."""

    id: str
    claimed_seconds: float | None
    claimed_by: str | None
    """As the row has it; `session`, `bound` and `consumer` are read from it where it is ours."""
    attempts: int | None
    session: str | None = None
    bound: bool = False
    """It ends with its session: a session that is gone proves that the claim is nobody's."""
    consumer: str | None = None
    owner: Evidence = Evidence.UNKNOWN


@dataclass(frozen=True)
class Owner:
    """What our own `claimed_by` tells."""

    session: str
    bound: bool
    consumer: str | None


@dataclass(frozen=True)
class Holder:
    """One open transaction that has written in a queue, or is about to."""

    session: str
    user_name: str | None
    application_name: str | None
    state: str | None
    transaction_seconds: float | None
    """None: not known, for lack of rights."""


@dataclass(frozen=True)
class _ClaimRow:
    schema: str
    queue: str
    id: str
    claimed_seconds: float | None
    claimed_by: str | None
    attempts: int | None


@dataclass(frozen=True)
class _HolderRow:
    schema: str
    relation: str
    session: str
    user_name: str | None
    application_name: str | None
    state: str | None
    transaction_seconds: float | None


@dataclass(frozen=True)
class _OwnerRow:
    session: str
    owner: str


def claims(
    connection: Connection, database: Database, queues: Sequence[Queue], memory: Memory
) -> dict[Key, tuple[Claim, ...]]:
    """The oldest claims of each queue, the oldest first. Queues that have none are left out."""
    product = database.product
    parts = [
        memory.part(product, queue, sql.statements(product.name, queue.design.name)["claims"], {})
        for queue in queues
    ]
    found: dict[Key, list[Claim]] = defaultdict(list)
    of_key = {key_of(queue): queue for queue in queues}
    for row in sql.fetch_union(connection, _ClaimRow, parts):
        key = (row.schema, row.queue)
        found[key].append(_claim(row, of_key[key]))
    evidence = evidence_of(
        connection,
        product,
        (c.session for key, cs in found.items() for c in cs if not of_key[key].design.library),
    )
    told = {
        key: evidence_of(connection, product, (c.session for c in cs), of_key[key])
        for key, cs in found.items()
        if of_key[key].design.library
    }
    return {
        key: tuple(
            _with_evidence(claim, told.get(key, evidence))
            for claim in sorted(some, key=_oldest_first)
        )
        for key, some in found.items()
    }


def owner_of(claimed_by: str | None, queue: Queue | None = None) -> Owner | None:
    """Read from a row's `claimed_by`; None where that is not ours.

    Of a queue that a library keeps, the library's worker: what it claimed ends with it.
    """
    if queue is not None and queue.design.library:
        return Owner(claimed_by, bound=True, consumer=None) if claimed_by else None
    ours = _CLAIMED_BY.fullmatch(claimed_by or "")
    if ours is None:
        return None
    return Owner(ours["session"], ours["bound"] is not None, ours["consumer"])


def _claim(row: _ClaimRow, queue: Queue) -> Claim:
    owner = owner_of(row.claimed_by, queue)
    claim = (row.id, row.claimed_seconds, row.claimed_by, row.attempts)
    if owner is None:
        return Claim(*claim)
    return Claim(*claim, owner.session, owner.bound, owner.consumer)


def _oldest_first(claim: Claim) -> float:
    return -(claim.claimed_seconds or 0.0)


def evidence_of(
    connection: Connection,
    product: Product,
    found: Iterable[str | None],
    queue: Queue | None = None,
) -> Mapping[str, Evidence]:
    """What the server says of each of the sessions, as `claimed_by` names them.

    Of workers that claimed from a library's queue, what their heartbeats say, where they have any.
    """
    sessions = sorted({session for session in found if session is not None})
    of_library = queue is not None and queue.design.library
    asked = sql.statements(product.name, queue.design.name if queue and of_library else "server")
    scope = queue.scope(product) if queue and of_library else sql.Scope()
    if not sessions or "owners" not in asked:
        return {}
    rows = sql.fetch(
        connection, _OwnerRow, asked["owners"], scope, sessions=product.array(sessions)
    )
    return {row.session: Evidence(row.owner) for row in rows}


def still_there(connection: Connection, product: Product, acting: Sequence[Acting]) -> list[Acting]:
    """Those whose session is not gone: what was cut off is no longer going on."""
    if not acting:
        return []
    evidence = evidence_of(connection, product, [one.session for one in acting])
    return [one for one in acting if evidence.get(one.session) is not Evidence.GONE]


def _with_evidence(claim: Claim, evidence: Mapping[str, Evidence]) -> Claim:
    owner = evidence.get(claim.session or "", Evidence.UNKNOWN)
    return Claim(**{**vars(claim), "owner": owner})


def holders(
    connection: Connection, database: Database, queues: Sequence[Queue]
) -> dict[Key, tuple[Holder, ...]]:
    """The open transactions that write in each queue, the oldest first; else no queue at all."""
    server = sql.statements(database.product.name, "server")
    if "holders" not in server:
        return {}
    by_table: dict[tuple[str, str], list[Key]] = defaultdict(list)
    for queue in queues:  # a library keeps several in one table
        by_table[queue.schema, queue.table].append(key_of(queue))
    found: dict[Key, list[Holder]] = {key_of(queue): [] for queue in queues}
    for row in sql.fetch(connection, _HolderRow, server["holders"], sql.Scope()):
        for key in by_table.get((row.schema, row.relation), ()):
            found[key].append(
                Holder(
                    row.session,
                    row.user_name,
                    row.application_name,
                    row.state,
                    row.transaction_seconds,
                )
            )
    return {key: tuple(sorted(some, key=_longest_first)) for key, some in found.items()}


def _longest_first(holder: Holder) -> float:
    return -(holder.transaction_seconds or 0.0)
