"""Queues that keep what was popped: claims and their owners, and states that are contradictory."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from console import sql
from console.actions.release import living
from console.actions.rows import Shelf, scope
from console.catalog import Kind, Queue
from console.designs import Flow
from console.doctor.checks import ago, ask, checked, counted, follows, some
from console.doctor.finding import Code, Finding, Severity
from console.doctor.look import Look
from console.doctor.repairs import ReleaseClaims
from console.doctor.walking import walked
from console.engines import Product
from console.formats import duration
from console.monitor.owners import Evidence, Owner, evidence_of, owner_of
from console.monitor.walked import Source
from console.monitor.walks import By, Walk, walks_of

_WHAT = "claims and their owners"
_STATES = "states of rows"
_SHOWN = 10

STATUS = Code(
    "status_unknown", Severity.WARNING, "rows whose status is none of 0 to 4: no verb sees them"
)
GONE = Code("claims_gone", Severity.WARNING, "claims whose owner is gone")
ALIVE = Code(
    "claims_alive", Severity.WARNING, "claims for longer than the threshold, whose owner is alive"
)
UNKNOWN = Code(
    "claims_unknown",
    Severity.WARNING,
    "claims for longer than the threshold, of whose owner nobody can tell",
)
NOBODY = Code(
    "claims_nobody",
    Severity.WARNING,
    "claims for longer than the threshold that name no claimant",
)
ILLEGAL = Code(
    "state_illegal",
    Severity.WARNING,
    "rows whose columns contradict their state: claimed or in error without a time, done with an "
    "error",
)

CODES: tuple[Code, ...] = (STATUS, GONE, ALIVE, UNKNOWN, NOBODY, ILLEGAL)


def applies(queue: Queue) -> bool:
    """Whether it keeps what was popped."""
    return "claimed" in queue.states and queue.finishes and queue.design.shape != "broker"


def examine(look: Look) -> Iterator[Finding]:
    """Every finding; what cannot be told goes to `look.unseen`."""
    if not applies(look.queue):
        return
    yield from checked(look, _WHAT, _claims)
    yield from checked(look, _STATES, _illegal)


IN_HAND = {"errors_lately"}
"""The statements of doctor.sql that are about rows that were popped, wherever these lie."""


def scope_of(product: Product, queue: Queue) -> sql.Scope:
    """Where the rows lie that were popped: a ring's in its own table for that."""
    if queue.design.flow is Flow.NUMBERS:
        id_type = product.id_types[queue.design.id_type]
        source = Source(product, queue, queue.options.get("payload", "text"), id_type)
        return scope(source, Shelf.IN_HAND)
    return queue.scope(product)


def walks(queue: Queue) -> list[Walk]:
    """The ways through all messages that are kept when they are popped."""
    of_a_ring = queue.design.flow is Flow.NUMBERS and queue.kind is Kind.INSTALLED
    return [walk for walk in walks_of(queue) if walk.in_hand == of_a_ring]


@dataclass(frozen=True)
class ClaimedRow:
    """What the statement `claimed` returns: one claim."""

    key_time: str | None
    key_id: str
    position: int
    looked: int
    id: str | None
    claimed_by: str | None
    half: bool
    seconds: float | None


@dataclass
class _Claims:
    """Those of one owner."""

    claimed_by: str | None
    claims: int = 0
    old: int = 0
    oldest: list[tuple[float, str]] = field(default_factory=list)
    """How old, and the id, of the oldest: the oldest first."""

    def add(self, row: ClaimedRow, stuck_after: float) -> None:
        self.claims += 1
        self.old += row.seconds is not None and row.seconds >= stuck_after
        self.oldest.append((row.seconds or 0.0, row.id or "?"))
        if len(self.oldest) > 2 * _SHOWN:
            self.sort()

    def sort(self) -> None:
        self.oldest = sorted(self.oldest, key=lambda one: -one[0])[:_SHOWN]

    @property
    def oldest_seconds(self) -> float | None:
        return self.oldest[0][0] if self.oldest else None


@dataclass(frozen=True)
class _Owned:
    """The claims of one owner, after a look at him."""

    row: _Claims
    owner: Owner | None
    evidence: Evidence

    @property
    def count(self) -> int:
        """How many of them `release` would let go, by its own rules."""
        bound = self.owner is not None and self.owner.bound
        if self.evidence is Evidence.GONE and bound:
            return self.row.claims
        return self.row.old

    @property
    def ids(self) -> list[str]:
        """The oldest of those."""
        return [id_ for _, id_ in self.row.oldest[: self.count]]


def _claims(look: Look) -> Iterator[Finding]:
    if follows(look, _WHAT):
        return
    if "claimed_at" not in look.queue.roles and look.queue.design.flow is not Flow.NUMBERS:
        look.unseen.append("claims: no column tells since when they are")
        return
    owned = _owned(look)
    named = [one for one in owned if one.row.claimed_by is not None or not _names(look.queue)]
    gone = [one for one in named if one.evidence is Evidence.GONE and one.count]
    alive = [one for one in named if one.evidence is Evidence.ALIVE and one.count]
    unknown = [one for one in named if one.evidence is Evidence.UNKNOWN and one.count]
    nobody = [one for one in owned if one not in named and one.count]
    if gone:
        yield _gone(look, gone)
    if alive:
        yield _alive(look, alive)
    if unknown:
        yield _unknown(look, unknown)
    if nobody:
        yield _nobody(look, nobody)


def _names(queue: Queue) -> bool:
    """Whether a claim has to name its claimant."""
    return queue.kind is Kind.INSTALLED


def _owned(look: Look) -> list[_Owned]:
    """The claims by owner.

    They are read again after the look at the owners: one who finished and left between the two
    has no claims any more, and one who is gone does not come back.
    """
    product = look.database.product
    owners = [owner_of(row.claimed_by, look.queue) for row in _read(look)]
    sessions = [None if owner is None else owner.session for owner in owners]
    if not sessions:
        return []
    with look.moment() as connection:
        told = evidence_of(connection, product, sessions, look.queue)
    found = []
    for row in _read(look):
        owner = owner_of(row.claimed_by, look.queue)
        session = None if owner is None else owner.session
        if session is not None and session not in sessions:
            continue
        found.append(_Owned(row, owner, told.get(session or "", Evidence.UNKNOWN)))
    return found


def _read(look: Look) -> list[_Claims]:
    """Without those that have no payload: these are told, and set aside, by themselves."""
    stuck_after = look.thresholds.stuck_after_seconds
    found: dict[str | None, _Claims] = {}
    for walk in walks(look.queue):
        if walk.state != "claimed":
            continue
        for row in walked(look, _WHAT, walk, ClaimedRow, "claimed"):
            if not row.half:
                owner = found.setdefault(row.claimed_by, _Claims(row.claimed_by))
                owner.add(row, stuck_after)
    for owner in found.values():
        owner.sort()
    return list(found.values())


def _evidence(owned: Sequence[_Owned]) -> dict[str, object]:
    shown = sorted(owned, key=lambda one: -(one.row.oldest_seconds or 0.0))[:_SHOWN]
    return {
        "claims": sum(one.count for one in owned),
        "owners": len(owned),
        "by_owner": [
            {
                "claimed_by": one.row.claimed_by,
                "claims": one.count,
                "oldest_seconds": one.row.oldest_seconds,
                "ids": one.ids,
            }
            for one in shown
        ],
    }


def _oldest(owned: Sequence[_Owned]) -> float:
    return max((one.row.oldest_seconds or 0.0 for one in owned), default=0.0)


def _repair(look: Look, owned: Sequence[_Owned], how: str) -> ReleaseClaims | None:
    if "release" not in look.queue.verbs:
        return None  # a library that takes them back itself
    count = sum(one.count for one in owned)
    return ReleaseClaims(look.queue, count, look.thresholds.stuck_after_seconds, how)


def _gone(look: Look, owned: Sequence[_Owned]) -> Finding:
    count, oldest = sum(one.count for one in owned), _oldest(owned)
    bound = sum(one.count for one in owned if one.owner is not None and one.owner.bound)
    limit = duration(look.thresholds.stuck_after_seconds)
    return Finding(
        GONE,
        f"{counted(count, 'claim')} whose owner is gone, the oldest for {duration(oldest)}",
        evidence=_evidence(owned) | {"bound": bound},
        cause="their consumers died or left without complete or fail; a claim counts if it was "
        f"bound to its session, or is older than {limit}",
        consequence="nobody works on these messages, and no pop returns them",
        since=ago(oldest),
        repair=_repair(look, owned, "gone"),
    )


def _alive(look: Look, owned: Sequence[_Owned]) -> Finding:
    count, oldest = sum(one.count for one in owned), _oldest(owned)
    who = _living(look, owned)
    return Finding(
        ALIVE,
        f"{counted(count, 'claim')} for longer than "
        f"{duration(look.thresholds.stuck_after_seconds)}, by "
        f"{some(who, most=1) or 'sessions that are there'}",
        evidence=_evidence(owned) | {"sessions": "; ".join(who)},
        cause="their consumers still work on them, hang, or took them and forgot them",
        consequence="no pop returns these messages until they are completed, failed or released",
        since=ago(oldest),
        repair=_repair(look, owned, "alive"),
    )


def _living(look: Look, owned: Sequence[_Owned]) -> list[str]:
    """Who and where they are."""
    sessions = sorted({one.owner.session for one in owned if one.owner is not None})
    with look.moment() as connection:
        rows = living(connection, look.database.product, sessions[:_SHOWN])
    return [row.line for row in rows]


def _unknown(look: Look, owned: Sequence[_Owned]) -> Finding:
    count, oldest = sum(one.count for one in owned), _oldest(owned)
    return Finding(
        UNKNOWN,
        f"{counted(count, 'claim')} for longer than "
        f"{duration(look.thresholds.stuck_after_seconds)}; nobody can tell whether their owners "
        "live",
        evidence=_evidence(owned),
        cause="who claimed them is not known to the server, or hidden from this login",
        consequence="no pop returns these messages until they are completed, failed or released",
        since=ago(oldest),
        repair=_repair(look, owned, "unknown"),
    )


def _nobody(look: Look, owned: Sequence[_Owned]) -> Finding:
    """Whoever claimed them by hand may be at work on the young ones, as with any other claim."""
    count, oldest = sum(one.count for one in owned), _oldest(owned)
    ids = [id_ for one in owned for id_ in one.ids]
    limit = duration(look.thresholds.stuck_after_seconds)
    return Finding(
        NOBODY,
        f"{counted(count, 'claim')} for longer than {limit} without a claimant",
        evidence={"count": count, "ids": ids[:_SHOWN], "oldest_seconds": oldest},
        cause="something else than the queue's own functions claimed them",
        consequence="nobody can tell whether somebody works on them",
        since=ago(oldest),
        repair=_repair(look, owned, "unknown"),
    )


@dataclass(frozen=True)
class ContradictionRow:
    """What the statement `contradictions` returns."""

    key_time: str | None
    key_id: str
    position: int
    looked: int
    id: str | None
    contradicts: bool


@dataclass(frozen=True)
class _Check:
    rules_out: bool


@dataclass
class _Wrong:
    count: int = 0
    ids: list[str] = field(default_factory=list)

    def add(self, row: ContradictionRow) -> None:
        self.count += 1
        if len(self.ids) < _SHOWN:
            self.ids.append(row.id or "?")

    @property
    def evidence(self) -> dict[str, object]:
        return {"count": self.count, "ids": self.ids}


_WRONG: Mapping[str, tuple[str, str]] = {
    "claimed_undated": (
        "claimed, and no time says since when",
        "they never count as stuck, so no release takes them",
    ),
    "error_undated": ("in error without a time", "no look at errors by their age finds them"),
    "done_undated": ("done without a time", "no archive by age takes them"),
    "done_with_error": ("done with an error", "one of the two is not true"),
    "error_unclaimed": (
        "in error and not claimed",
        "a pop takes them, and they count as error and as ready",
    ),
}
"""A contradiction -> what it is, and what comes of it."""
_OF_STATE = {
    ("claim", "error"): "error_unclaimed",
    ("status", "done"): "done_with_error",
    ("split", "done"): "done_with_error",
}
"""Design and state -> what may be wrong with a row in it that has its time."""


def _illegal(look: Look) -> Iterator[Finding]:
    queue = look.queue
    rowed = queue.design.shape in {"status", "split"} or (
        queue.design.shape == "claim" and queue.kind is Kind.INSTALLED
    )
    if not rowed:
        return
    unknown = _unknown_states(look)
    if unknown.count:
        yield Finding(
            STATUS,
            f"{counted(unknown.count, 'row')} with a status that is none of 0 to 4",
            evidence=unknown.evidence,
            cause="something else than the queue's own functions wrote it",
            consequence="no pop returns them, and no verb of the console takes them",
        )
    found = _contradictions(look) if queue.kind is Kind.INSTALLED else {}
    if found:
        words = [f"{counted(one.count, 'row')} {_WRONG[name][0]}" for name, one in found.items()]
        yield Finding(
            ILLEGAL,
            some(words),
            evidence={name: wrong.evidence for name, wrong in found.items()},
            cause="something else than the queue's own functions changed them",
            consequence="; ".join(_WRONG[name][1] for name in found),
        )


def _unknown_states(look: Look) -> _Wrong:
    """All rows are looked at, unless a CHECK of the table rules them out."""
    found = _Wrong()
    if "status" not in look.queue.roles:
        return found
    (check,) = ask(look, _Check, "status_check")
    if not check.rules_out:
        walk = Walk("any", By.ID)
        for row in walked(look, _STATES, walk, ContradictionRow, "contradictions"):
            if row.contradicts:
                found.add(row)
    return found


def _contradictions(look: Look) -> dict[str, _Wrong]:
    """By what is wrong; in the order of the walks."""
    found: dict[str, _Wrong] = {}
    for walk in walks_of(look.queue):
        of_state = _OF_STATE.get((look.queue.design.shape, walk.state))
        if walk.dated and of_state is None:
            continue
        for row in walked(look, _STATES, walk, ContradictionRow, "contradictions"):
            if not walk.dated:
                found.setdefault(f"{walk.state}_undated", _Wrong()).add(row)
            if of_state is not None and row.contradicts:
                found.setdefault(of_state, _Wrong()).add(row)
    return found
