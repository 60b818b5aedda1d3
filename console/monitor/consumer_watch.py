"""Finds the consumers and producers of a queue by their sessions, locks and claims.

A session is recognized by its locks on the queue, its last statement or a claim that names it, and
then stays known while it is connected. If no claim names it, its last pop and its rate are unknown.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from console import sql
from console.catalog import Kind, Queue
from console.clock import utc
from console.engines import Database, Product
from console.errors import ConnectionFailedError, ConsoleError, RefusedError
from console.monitor.activity import SAMPLE_TIMEOUT_SECONDS, Objects, document, find_objects
from console.monitor.consumers import Consumer, Consumers
from console.monitor.owners import owner_of
from console.monitor.rates import QueueName, key_of
from console.monitor.sample_queries import groups, limit_transaction
from console.monitor.statement_text import (
    POP,
    PUSH,
    actions_in,
    call_pattern,
    called_names,
    has_own_table,
)

MOST = 1_000
"""Claims of a queue, and sessions, that are read at most."""
_WINDOW_SECONDS = 60.0
"""The claims of this time tell how pops are shared among consumers."""
_LEAST_SECONDS = 0.001
_SHOWN = 20
"""Sessions of a consumer that are named."""
_PAUSE_SECONDS = 0.1
_PAUSE = 19
"""A pause is at least this many times as long as the sample before it."""


@dataclass(frozen=True)
class ClientRow:
    """A session, as `activity.clients` returns it. None: nothing, or hidden."""

    session_id: int
    session: str | None
    user_name: str | None
    application_name: str | None
    host: str | None
    connected_seconds: float | None = None
    statement_seconds: float | None = None
    query: str | None = None
    relations: Any = None


@dataclass(frozen=True)
class ClaimantRow:
    """The claims of one name, as a design's `consumers` returns them."""

    schema: str
    queue: str
    claimed_by: str | None
    claims: int
    popped_at: datetime | None
    recent: int
    recent_seconds: float
    rows_read: int


_Identity = tuple[str | None, str | None, str | None, str | None]
"""Name, program, host, user; only the name if the session of claims is not known."""
_NO_SESSION = (None, None, None)


@dataclass
class _Session:
    row: ClientRow
    since: datetime | None
    names: set[str | None] = field(default_factory=set)
    does: set[str] = field(default_factory=set)
    last_call: datetime | None = None

    @property
    def identities(self) -> list[_Identity]:
        """Several, if it pops under several names."""
        row = self.row
        names = self.names or {None}
        return [(n or row.application_name, row.application_name, row.host, row.user_name)
                for n in names]  # fmt: skip


@dataclass
class _Claims:
    claims: int = 0
    recent: int = 0
    recent_seconds: float = 0.0


@dataclass
class _QueueState:
    sessions: dict[str, _Session] = field(default_factory=dict)
    closed: dict[str, _Session] = field(default_factory=dict)
    """Closed sessions that left claims."""
    popped: dict[_Identity, datetime] = field(default_factory=dict)
    """The last pop of each."""
    samples: deque[tuple[datetime, dict[_Identity, _Claims]]] = field(default_factory=deque)


_NO_CLAIMS: Mapping[QueueName, Sequence[ClaimantRow]] = {}


class ConsumerWatch:
    """Samples the consumers of a database's queues, and remembers them while they are connected."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._objects: dict[tuple[QueueName, ...], Objects] = {}
        self._known: defaultdict[QueueName, _QueueState] = defaultdict(_QueueState)
        self._hidden = ""
        """Why the server refuses to show sessions."""

    def recall(self, queue: Queue, recorded: Iterable[Consumer]) -> None:
        """Recognize the sessions of consumers that were recorded before."""
        sessions = self._known[key_of(queue)].sessions
        for consumer in recorded:
            for identity in consumer.identities:
                row = ClientRow(0, identity, consumer.user, consumer.program, consumer.host)
                names = {consumer.name} - {consumer.program}
                sessions[identity] = _Session(
                    row, consumer.since, names, set(consumer.does), consumer.last_call
                )

    def sample(
        self, queues: Sequence[Queue], pop_rates: Mapping[QueueName, float | None]
    ) -> dict[QueueName, Consumers]:
        """In two statements; `pop_rates`: those of the queues that are known. ConsoleError."""
        claimants, problems, at = self._claimants(queues)
        self.sample_sessions(queues, claimants)
        lacking = self._database.capabilities.missing
        hidden = lacking.get("waits") or lacking.get("sessions") or self._hidden
        found = {}
        for queue in queues:
            key = key_of(queue)
            over = sum(row.claims for row in claimants[key]) >= MOST
            self._update_claims(queue, claimants[key], at)
            seen = self._consumers(queue, pop_rates.get(key), over=over)
            missing = _missing(queue, hidden, problems.get(key, ""))
            found[key] = Consumers(queue, at, tuple(sorted(seen, key=_order)), missing)
        return found

    def sample_sessions_for(self, queues: Sequence[Queue], seconds: float) -> int:
        """Sample sessions for that long, in a twentieth of the time; how often. ConsoleError."""
        ends_at, samples = time.monotonic() + seconds, 0
        while (left := ends_at - time.monotonic()) > 0:
            began = time.monotonic()
            self.sample_sessions(queues)
            samples += 1
            time.sleep(min(left, max(_PAUSE_SECONDS, _PAUSE * (time.monotonic() - began))))
        return samples

    def sample_sessions(
        self,
        queues: Sequence[Queue],
        claimants: Mapping[QueueName, Sequence[ClaimantRow]] = _NO_CLAIMS,
    ) -> None:
        """Sessions alone: calls of a millisecond are only seen by chance. ConsoleError.

        `claimants`: as just read from claims.
        """
        if "waits" in self._database.capabilities.missing:
            return
        keys = tuple(map(key_of, queues))
        objects = self._objects.get(keys)
        if objects is None or objects.queues != tuple(queues):
            objects = self._objects[keys] = find_objects(self._database, queues)
        try:
            clients, at = self._clients(queues, claimants, objects)
        except RefusedError as error:
            self._hidden = error.why or error.what
            return
        for queue in queues:
            self._update_sessions(queue, claimants.get(key_of(queue), ()), clients, objects, at)

    def _claimants(
        self, queues: Sequence[Queue]
    ) -> tuple[dict[QueueName, list[ClaimantRow]], dict[QueueName, str], datetime]:
        """By queue; why some could not be read; and the time, by the database's clock."""
        product = self._database.product
        wanted = [queue for queue in queues if names_claims(queue, product)]
        found: dict[QueueName, list[ClaimantRow]] = {key_of(queue): [] for queue in queues}
        problems: dict[QueueName, str] = {}
        at = utc()
        for group in groups(wanted, product) if wanted else [()]:
            parts = [
                sql.part(
                    f"{q.design.name}.consumers", product.dialect, q.scope_of("consumers", product)
                )
                for q in group
            ]
            try:
                with self._database.transaction("read who claimed", read_only=True) as connection:
                    at = (
                        limit_transaction(connection, self._database, SAMPLE_TIMEOUT_SECONDS).now
                        or at
                    )
                    for row in sql.union(connection, ClaimantRow, parts) if parts else ():
                        found[row.schema, row.queue].append(row)
            except ConnectionFailedError:
                raise
            except ConsoleError as error:
                problems |= {key_of(queue): error.why or error.what for queue in group}
        return found, problems, at

    def _clients(
        self,
        queues: Sequence[Queue],
        claimants: Mapping[QueueName, Sequence[ClaimantRow]],
        objects: Objects,
    ) -> tuple[list[ClientRow], datetime]:
        product = self._database.product
        sessions = {name for queue in queues for name in self._known[key_of(queue)].sessions}
        for queue in queues:
            owners = (owner_of(row.claimed_by, queue) for row in claimants.get(key_of(queue), ()))
            sessions |= {owner.session for owner in owners if owner is not None}
        names = {name.lower() for queue in queues for name in called_names(product, queue)}
        with self._database.transaction("read the sessions", read_only=True) as connection:
            at = limit_transaction(connection, self._database, SAMPLE_TIMEOUT_SECONDS).now or utc()
            rows = sql.rows(
                connection,
                ClientRow,
                "activity.clients",
                relations=product.array(objects.ids(advisory=False)),
                sessions=product.array(sorted(sessions)),
                names=product.array(sorted(names)),
            )
        return rows, at

    def _update_sessions(
        self,
        queue: Queue,
        claimants: Sequence[ClaimantRow],
        clients: Sequence[ClientRow],
        objects: Objects,
        at: datetime,
    ) -> None:
        known = self._known[key_of(queue)]
        claimed: defaultdict[str, set[str | None]] = defaultdict(set)
        for claimant in claimants:
            if (
                not _names_no_session(queue)
                and (owner := owner_of(claimant.claimed_by)) is not None
            ):
                claimed[owner.session].add(owner.consumer)
        statement = call_pattern(self._database.product, queue)
        sessions: dict[str, _Session] = {}
        for row in clients:
            name = row.session or str(row.session_id)
            does = actions_in(statement, queue, row.query)
            queues_of_locks = [q for i in document(row.relations) for q in objects.queues_of(i)]
            locks = key_of(queue) in queues_of_locks and has_own_table(queue)
            if does or locks or name in claimed or name in known.sessions:
                one = known.sessions.get(name) or _Session(row, _before(at, row.connected_seconds))
                one.row = row
                one.names |= claimed.get(name, set()) - {None}
                one.does |= does | ({POP} if name in claimed else set())
                one.last_call = _before(at, row.statement_seconds) if does else one.last_call
                sessions[name] = one
        before = {**known.closed, **known.sessions}
        known.closed = {
            n: session for n, session in before.items() if n in claimed and n not in sessions
        }
        known.sessions = sessions

    def _update_claims(self, queue: Queue, claimants: Sequence[ClaimantRow], at: datetime) -> None:
        known = self._known[key_of(queue)]
        claims: defaultdict[_Identity, _Claims] = defaultdict(_Claims)
        for claimant in claimants:
            who, there = _claimant(claimant, queue, known)
            if popped := claimant.popped_at:
                known.popped[who] = max(popped, known.popped.get(who, popped))
            claims[who].claims += claimant.claims
            if not there and not keeps_done(queue):
                continue  # a closed session pops no more
            claims[who].recent += claimant.recent
            claims[who].recent_seconds += claimant.recent_seconds
        known.samples.append((at, claims))
        while at - known.samples[0][0] > timedelta(seconds=_WINDOW_SECONDS):
            known.samples.popleft()
        day = at - timedelta(days=1)
        known.popped = {who: when for who, when in known.popped.items() if when > day}

    def _consumers(self, queue: Queue, pop_rate: float | None, *, over: bool) -> Iterator[Consumer]:
        """`over`: there are more claims than were read."""
        known = self._known[key_of(queue)]
        shares = _shares([claims for _, claims in known.samples], keeps=keeps_done(queue))
        newest = known.samples[-1][1]
        sessions: defaultdict[_Identity, list[_Session]] = defaultdict(list)
        for one in known.sessions.values():
            for who in one.identities:
                sessions[who].append(one)
        for who in {*sessions, *newest}:
            # Its claims, and those of its name by sessions that are no longer known.
            bare = (who[0], *_NO_SESSION)
            alone = sum(other[0] == who[0] for other in sessions) == 1
            if who == bare and who not in sessions and alone:
                continue
            whose = {who, bare} if alone and who[0] is not None else {who}
            popped = [known.popped[one] for one in whose if one in known.popped]
            does = {POP} if popped else set()
            for session in sessions[who]:
                does |= session.does
            share = sum(shares.get(one, 0.0) for one in whose)
            why = _why_not(queue, does, self._database.product)
            rate = share * pop_rate if share and pop_rate is not None else None
            consumer = Consumer(
                *(who[0], tuple(sorted(does)), *who[1:]),
                sessions=len({one.row.session_id for one in sessions[who]}),
                since=min((one.since for one in sessions[who] if one.since), default=None),
                last_pop=max(popped, default=None),
                last_call=max((s.last_call for s in sessions[who] if s.last_call), default=None),
                messages_per_second=rate,
                identities=tuple(sorted(filter(None, (s.row.session for s in sessions[who]))))[
                    :_SHOWN
                ],
                claims=None if why else sum(newest[w].claims for w in whose if w in newest),
            )
            yield _with_reasons(consumer, queue, why, seen=bool(share), over=over)


def _claimant(row: ClaimantRow, queue: Queue, known: _QueueState) -> tuple[_Identity, bool]:
    """The claimant's identity, and whether it may still pop."""
    owner = None if _names_no_session(queue) else owner_of(row.claimed_by)
    if owner is None:
        return (row.claimed_by, *_NO_SESSION), True
    there = owner.session in known.sessions
    session = known.sessions.get(owner.session) or known.closed.get(owner.session)
    if session is None:
        return (owner.consumer, *_NO_SESSION), False
    of = session.row
    name = owner.consumer or of.application_name
    return (name, of.application_name, of.host, of.user_name), there


def _shares(
    samples: Sequence[Mapping[_Identity, _Claims]], *, keeps: bool
) -> dict[_Identity, float]:
    """Each consumer's share of the queue's pops in the last minute.

    `keeps`: rows of done messages stay and are counted. Otherwise longer claims are seen more
    often, so the weight is the number of claims at a time divided by their mean age.
    """
    weights: dict[_Identity, float] = {}
    if keeps:
        weights = {who: float(claims.recent) for who, claims in samples[-1].items()}
    else:
        for who in {who for sample in samples for who in sample}:
            seen = [sample[who] for sample in samples if who in sample]
            count = sum(claims.recent for claims in seen)
            seconds = max(sum(claims.recent_seconds for claims in seen), count * _LEAST_SECONDS)
            weights[who] = count * count / seconds if count else 0.0
    total = sum(weights.values())
    return {who: weight / total for who, weight in weights.items()} if total else {}


def _with_reasons(
    consumer: Consumer, queue: Queue, why: str, *, seen: bool, over: bool
) -> Consumer:
    """`why` no claim can name it; `seen`: a claim of the last minute does."""
    unknown = {}
    if consumer.last_pop is None:
        unknown["last_pop"] = why or "none of its claims has been seen yet"
    if consumer.messages_per_second is None:
        unknown["messages_per_second"] = why or (
            "how many messages per second are popped from the queue is not known yet"
            if seen
            else "no claim by any of its sessions was seen in the last minute"
        )
    if why:
        unknown["claims"] = why
    if not consumer.sessions and _names_no_session(queue):
        unknown["sessions"] = "its claims name no session of the server"
    if consumer.name is None:
        unknown["name"] = (
            "it gives no name: neither when it pops, nor as application_name"
            if consumer.sessions
            else "its session has ended, and its claims give no name"
        )
    if not consumer.does:
        unknown["does"] = "it locks rows; no statement of its own that pops or pushes was seen"
    rated = ("messages_per_second",) if consumer.messages_per_second is not None else ()
    return replace(
        consumer,
        sessions=None if "sessions" in unknown else consumer.sessions,
        estimated=(*rated, "claims") if over and consumer.claims is not None else rated,
        unknown=unknown,
    )


def _order(consumer: Consumer) -> tuple[object, ...]:
    """Consumers first, then by name; those without a name last."""
    return (
        POP not in consumer.does,
        consumer.name is None,
        consumer.name or "",
        str(consumer.identity),
    )


def names_claims(queue: Queue, product: Product) -> bool:
    """Whether claims of the queue name their claimant."""
    claims = "claimed" in queue.states and sql.has(product, f"{queue.design.name}.consumers")
    mapped = queue.kind is Kind.INSTALLED or "claimed_by" in queue.roles
    return claims and mapped and not queue.not_readable


def keeps_done(queue: Queue) -> bool:
    """Whether the rows of all pops of the last minute are still there."""
    return "done" in queue.states and queue.kind is Kind.INSTALLED


def _names_no_session(queue: Queue) -> bool:
    """Whether its claims name something else than server sessions."""
    return bool(queue.design.library) or queue.kind is not Kind.INSTALLED


def _why_not(queue: Queue, does: Iterable[str], product: Product) -> str:
    """Why no claim can name them; empty: claims can."""
    if set(does) == {PUSH}:
        return "no row says who pushed it"
    if "claimed" not in queue.states:
        return f"a pop of {queue.design.name} ends its message: no claim is left to name a consumer"
    if queue.row_filter is not None:
        return queue.row_filter.problem
    if not names_claims(queue, product):
        return "no column is mapped that says who claimed a message"
    return ""


def _missing(queue: Queue, hidden: str, problem: str) -> dict[str, str]:
    missing = {}
    if hidden:
        missing["sessions"] = hidden
    elif not has_own_table(queue):
        missing["sessions"] = (
            f"{queue.table} has messages of several queues: locks and statements do not show from "
            "which one a session pops"
        )
    if problem:
        missing["claims"] = problem
    return missing


def _before(at: datetime, seconds: float | None) -> datetime | None:
    return None if seconds is None else at - timedelta(seconds=max(0.0, seconds))
