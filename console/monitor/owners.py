"""The owners of claims, the open transactions that hold rows of a queue, and the server's evidence
about both."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from console import sql
from console.catalog import Acting, Queue, object_names
from console.engines import CONSUMERS, Database, product_of
from console.monitor.memory import Memory
from console.monitor.rates import QueueName, age_as_of, key_of
from console.monitor.row_holder import RowHolder, SessionKey

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from console.catalog import audit


DIRECT = "direct"
"""How consumers connect, in a catalog entry or a profile: each with a session of its own."""

SHOWN = 10
"""The oldest claims and holders of a queue, which a snapshot names."""

_CLAIMED_BY = re.compile(
    r"(?P<session>\w+=\S+ \w+=\S+)(?P<bound> bound)?(?: consumer=(?P<consumer>.*))?", re.DOTALL
)


class Evidence(StrEnum):
    """Whether whoever claimed still can work on it."""

    GONE = "gone"
    ALIVE = "alive"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Claim:
    id: str
    claimed_seconds: float | None
    claimed_by: str | None
    """As in the row; `session`, `bound` and `consumer` are parsed from it if it is ours."""
    attempts: int | None
    session: str | None = None
    bound: bool = False
    """It ends with its session: if that is gone, the claim has no owner."""
    consumer: str | None = None
    owner: Evidence = Evidence.UNKNOWN
    session_state: Evidence = Evidence.UNKNOWN
    """Of the session alone: one that is gone proves nothing about a consumer behind a pooler."""

    def as_of(self, lag: timedelta) -> Claim:
        return replace(self, claimed_seconds=age_as_of(self.claimed_seconds, lag))


@dataclass(frozen=True)
class Owner:
    session: str
    bound: bool
    consumer: str | None


@dataclass(frozen=True)
class Owners:
    """The server's evidence about the sessions that claimed, and what it proves.

    A pooler ends sessions when it likes, while their consumers work on. So the end of a session
    proves something only where the claim is bound to it, or its consumers connect directly.
    """

    sessions: Mapping[str, Evidence]
    direct: bool

    def of(self, owner: Owner | None) -> Evidence:
        """What is proven of a claim's owner."""
        evidence = self.session_of(owner)
        proves = self.direct or (owner is not None and owner.bound)
        return Evidence.UNKNOWN if evidence is Evidence.GONE and not proves else evidence

    def session_of(self, owner: Owner | None) -> Evidence:
        """What is known of the session alone."""
        return self.sessions.get("" if owner is None else owner.session, Evidence.UNKNOWN)


@dataclass(frozen=True)
class Holder(RowHolder):
    session: SessionKey
    user_name: str | None
    application_name: str | None
    state: str | None
    transaction_seconds: float | None
    """None: not known for lack of rights."""
    held_at_least_seconds: float | None = None
    held_at_most_seconds: float | None = None


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
    session_id: int | None
    prepared_transaction: str | None
    user_name: str | None
    application_name: str | None
    state: str | None
    transaction_seconds: float | None
    held_at_least_seconds: float | None
    held_at_most_seconds: float | None


_COPIED = {one.name for one in fields(Holder)} & {one.name for one in fields(_HolderRow)}


@dataclass(frozen=True)
class _OwnerRow:
    session: str
    owner: str


def claims(
    connection: Connection,
    database: Database,
    queues: Sequence[Queue],
    memory: Memory,
    stuck_after: Callable[[Queue], float],
) -> dict[QueueName, tuple[Claim, ...]]:
    """The oldest claims of each queue that has some, the oldest first."""
    parts = [memory.part(database.product, queue, "claims", {}) for queue in queues]
    found: dict[QueueName, list[Claim]] = defaultdict(list)
    of_key = {key_of(queue): queue for queue in queues}
    for row in sql.union(connection, _ClaimRow, parts):
        key = (row.schema, row.queue)
        values = (row.id, row.claimed_seconds, row.claimed_by, row.attempts)
        found[key].append(_claim(of_key[key], *values))
    sessions = session_evidence(
        connection,
        (c.session for key, cs in found.items() for c in cs if not of_key[key].design.library),
    )
    owners = {
        key: claimant_evidence(connection, queue, (c.session for c in cs), stuck_after(queue))
        if (queue := of_key[key]).design.library
        else Owners(sessions, consumers_are_direct(connection, queue))
        for key, cs in found.items()
    }
    return {
        key: tuple(
            _with_evidence(claim, owners[key])
            for claim in sorted(some, key=lambda claim: -(claim.claimed_seconds or 0.0))
        )
        for key, some in found.items()
    }


def consumers_are_direct(connection: Connection, queue: Queue) -> bool:
    return are_direct(queue, connection.get_execution_options().get(CONSUMERS))


def are_direct(queue: Queue, of_connection: str | None) -> bool:
    """Whether the queue's consumers each have a session of their own, by the word of its catalog
    entry or of the connection's profile. A library's workers are known by their heartbeats."""
    said = queue.options.get("consumers"), of_connection
    return DIRECT in said or bool(queue.design.library)


def owner_of(claimed_by: str | None, queue: Queue | None = None) -> Owner | None:
    """Parsed from a row's `claimed_by`; None if that is not ours. For a library's queue it is the
    library's worker, whose claims end with it."""
    if queue is not None and queue.design.library:
        return Owner(claimed_by, bound=True, consumer=None) if claimed_by else None
    ours = _CLAIMED_BY.fullmatch(claimed_by or "")
    if ours is None:
        return None
    return Owner(ours["session"], ours["bound"] is not None, ours["consumer"])


def _claim(
    queue: Queue, id_: str, seconds: float | None, claimed_by: str | None, attempts: int | None
) -> Claim:
    claim = Claim(id_, seconds, claimed_by, attempts)
    if (owner := owner_of(claimed_by, queue)) is None:
        return claim
    return replace(claim, session=owner.session, bound=owner.bound, consumer=owner.consumer)


def session_evidence(connection: Connection, found: Iterable[str | None]) -> Mapping[str, Evidence]:
    """Evidence about sessions that our `claimed_by` names.

    A transaction that has read sessions before sees none that began since: then the statement
    `doctor.forget_sessions` goes first.
    """
    return _evidence(connection, "server", sql.NOTHING, found)


def claimant_evidence(
    connection: Connection, queue: Queue, found: Iterable[str | None], stuck_after_seconds: float
) -> Owners:
    """Evidence about the queue's claimants, as `owner_of` names them. A library's worker is gone if
    it had no heartbeat for as long as its claims take to be stuck."""
    direct = consumers_are_direct(connection, queue)
    if not queue.design.library:
        return Owners(session_evidence(connection, found), direct)
    scope = queue.scope(connection, stuck_after_seconds=str(stuck_after_seconds))
    return Owners(_evidence(connection, queue.design.name, scope, found), direct)


def _evidence(
    connection: Connection, file: str, scope: sql.Scope, found: Iterable[str | None]
) -> Mapping[str, Evidence]:
    sessions = sorted({session for session in found if session is not None})
    if not sessions or not sql.has(connection, f"{file}.owners"):
        return {}
    array = product_of(connection).array(sessions)
    rows = sql.rows(connection, _OwnerRow, f"{file}.owners", scope, sessions=array)
    return {row.session: Evidence(row.owner) for row in rows}


def in_progress(connection: Connection, acting: Sequence[Acting]) -> list[Acting]:
    """Those whose session is not gone: an interrupted action is not in progress."""
    if not acting:
        return []
    evidence = session_evidence(connection, [one.session for one in acting])
    return [one for one in acting if evidence.get(one.session) is not Evidence.GONE]


def alive(connection: Connection, entries: Sequence[audit.Entry]) -> Mapping[int, bool | None]:
    """By action_id: whether the session of an unfinished action is alive; None: not known."""
    running = [entry for entry in entries if entry.ended_at is None]
    evidence = session_evidence(connection, [entry.session for entry in running])
    known = {Evidence.ALIVE: True, Evidence.GONE: False}
    return {
        entry.action_id: known.get(evidence.get(entry.session, Evidence.UNKNOWN))
        for entry in running
    }


def _with_evidence(claim: Claim, owners: Owners) -> Claim:
    owner = None
    if claim.session is not None:
        owner = Owner(claim.session, claim.bound, claim.consumer)
    return replace(claim, owner=owners.of(owner), session_state=owners.session_of(owner))


def holders(
    connection: Connection, database: Database, queues: Sequence[Queue]
) -> dict[QueueName, tuple[Holder, ...]]:
    """The open transactions that hold rows of each queue, the longest first."""
    if not sql.has(connection, "server.holders"):
        return {}
    found: dict[QueueName, dict[SessionKey, Holder]] = {key_of(queue): {} for queue in queues}
    rows = sql.rows(connection, _HolderRow, "server.holders")
    by_table: dict[tuple[str, str], list[QueueName]] = defaultdict(list)
    for queue in queues if rows else ():  # a library keeps several in one table
        for name in object_names.with_rows(database.product, queue):
            by_table[queue.schema, name].append(key_of(queue))
    for row in rows:
        session = row.session_id if row.prepared_transaction is None else row.prepared_transaction
        if session is None:
            raise TypeError("a holder has neither an id nor a name")
        holder = Holder(session, **{name: getattr(row, name) for name in _COPIED})
        for key in by_table.get((row.schema, row.relation), ()):
            found[key][session] = holder  # once, in however many tables of the queue
    return {
        key: tuple(sorted(some.values(), key=lambda holder: -(holder.held_seconds or 0.0)))
        for key, some in found.items()
    }


MOST = 200
"""Claims that are examined at most."""


@dataclass(frozen=True)
class Claims:
    claims: tuple[Claim, ...]
    more: bool
    """Whether there are more, younger claims."""


def claims_with_evidence(database: Database, queue: Queue, stuck_after_seconds: float) -> Claims:
    """The oldest claims with evidence. UsageError: the queue has no claims."""
    from console.monitor.filters import Filters  # noqa: PLC0415  # a verb imports what it uses
    from console.monitor.messages import read_page  # noqa: PLC0415

    page = read_page(database, queue, Filters(state="claimed"), limit=MOST)
    claims = [
        _claim(queue, message.id or "", message.age_seconds, message.claimed_by, message.attempts)
        for message in page.messages
    ]
    with database.transaction("read the owners of claims", read_only=True) as connection:
        sessions = (claim.session for claim in claims)
        owners = claimant_evidence(connection, queue, sessions, stuck_after_seconds)
    found = (_with_evidence(claim, owners) for claim in claims)
    return Claims(tuple(found), page.next is not None or not page.complete)


def evidence(
    database: Database, queue: Queue, claimed_by: str | None, stuck_after_seconds: float
) -> Evidence:
    owner = owner_of(claimed_by, queue)
    if owner is None:
        return Evidence.UNKNOWN
    with database.transaction("read the owner of a claim", read_only=True) as connection:
        owners = claimant_evidence(connection, queue, [owner.session], stuck_after_seconds)
    return owners.of(owner)
