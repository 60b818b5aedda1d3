"""Queues that keep what was popped: claims and their owners, and states that are contradictory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from console.actions.requeue import live_sessions
from console.catalog import Kind, Queue
from console.designs import Flow
from console.doctor import states
from console.doctor.context import CheckContext, CheckGroup, counted, first_few
from console.doctor.finding import Code, Finding
from console.doctor.repairs import release_claims
from console.doctor.row_scan import scan_rows
from console.formats import duration
from console.monitor.limits import Severity
from console.monitor.owners import Evidence, Owner, claimant_evidence, owner_of
from console.monitor.scans import Scan, scans_of

_WHAT = "claims and their owners"
_SHOWN = 10

_OF_ITS_LIBRARY = (
    "release is not available for this queue: its library takes claims back by its own rules"
)

GONE = Code(
    "claims_gone",
    Severity.WARNING,
    "claims whose consumer disconnected",
    judgement=_OF_ITS_LIBRARY,
    repair="release (doctor --fix)",
)
ALIVE = Code(
    "claims_alive",
    Severity.WARNING,
    "claims for longer than the threshold, whose owner is alive",
    judgement=_OF_ITS_LIBRARY,
    repair="release --force, with a filter for their age",
)
UNKNOWN = Code(
    "claims_unknown",
    Severity.WARNING,
    "claims for longer than the threshold, whose owner is unknown",
    judgement=_OF_ITS_LIBRARY,
    repair="release --unknown",
)
NOBODY = Code(
    "claims_nobody",
    Severity.WARNING,
    "claims for longer than the threshold that name no consumer",
    judgement=_OF_ITS_LIBRARY,
    repair="release --unknown",
)


def applies(queue: Queue) -> bool:
    return "claimed" in queue.states and queue.finishes and queue.design.shape != "broker"


def scans(queue: Queue) -> list[Scan]:
    """The ways through all messages that are kept when they are popped."""
    of_a_ring = queue.design.flow is Flow.NUMBERS and queue.kind is Kind.INSTALLED
    return [scan for scan in scans_of(queue) if scan.in_hand == of_a_ring]


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
    """The claims of one owner, after a check of that owner."""

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
        return [id_ for _, id_ in self.row.oldest[: self.count]]


def _claims(context: CheckContext) -> Iterator[Finding]:
    if context.is_standby(_WHAT) or context.queue.design.claims_expire:
        return
    if "claimed_at" not in context.queue.roles and context.queue.design.flow is not Flow.NUMBERS:
        context.unseen.append("claims: no column has their time")
        return
    for view in context.queue.views:
        with context.viewed_as(view):
            found = list(_of_view(context))
        yield from (one.for_subscriber(view.subscriber) for one in found)


def _of_view(context: CheckContext) -> Iterator[Finding]:
    owned = _owned(context)
    named = [one for one in owned if one.row.claimed_by is not None or not _names(context.queue)]
    of = {
        evidence: [one for one in named if one.evidence is evidence and one.count]
        for evidence in Evidence
    }
    if gone := of[Evidence.GONE]:
        yield _gone(context, gone)
    if alive := of[Evidence.ALIVE]:
        yield _alive(context, alive)
    if unknown := of[Evidence.UNKNOWN]:
        yield _unknown(context, unknown)
    if nobody := [one for one in owned if one not in named and one.count]:
        yield _nobody(context, nobody)


def _names(queue: Queue) -> bool:
    """Whether a claim has to name its claimant."""
    return queue.kind is Kind.INSTALLED


def _owned(context: CheckContext) -> list[_Owned]:
    """The claims by owner.

    They are read again after the check of the owners: one who finished and left between the two
    has no claims any more, and one who is gone does not come back.
    """
    owners = [owner_of(row.claimed_by, context.queue) for row in _read(context)]
    sessions = [None if owner is None else owner.session for owner in owners]
    if not sessions:
        return []
    with context.transaction() as connection:
        limit = context.thresholds.stuck_after_seconds
        told = claimant_evidence(connection, context.queue, sessions, limit)
    found = []
    for row in _read(context):
        owner = owner_of(row.claimed_by, context.queue)
        session = None if owner is None else owner.session
        if session is not None and session not in sessions:
            continue
        found.append(_Owned(row, owner, told.get(session or "", Evidence.UNKNOWN)))
    return found


def _read(context: CheckContext) -> list[_Claims]:
    """Without those that have no payload: these are told, and set aside, by themselves."""
    stuck_after = context.thresholds.stuck_after_seconds
    found: dict[str | None, _Claims] = {}
    for scan in scans(context.queue):
        if scan.state != "claimed":
            continue
        for row in scan_rows(context, _WHAT, scan, ClaimedRow, "claimed"):
            if not row.half:
                owner = found.setdefault(row.claimed_by, _Claims(row.claimed_by))
                owner.add(row, stuck_after)
    for owner in found.values():
        owner.sort()
    return list(found.values())


def _finding(
    context: CheckContext,
    code: Code,
    owned: Sequence[_Owned],
    words: str,
    how: str,
    cause: str,
    consequence: str,
    **evidence: object,
) -> Finding:
    """A finding on the claims of some owners; `words` follow their number, `how` release names
    them."""
    queue, limit = context.queue, context.thresholds.stuck_after_seconds
    count = sum(one.count for one in owned)
    return Finding(
        code,
        f"{counted(count, 'claim')} {words}",
        evidence=evidence or _evidence(owned),
        cause=cause,
        consequence=consequence,
        for_seconds=_oldest(owned),
        # A library takes them back itself.
        repair=release_claims(queue, count, limit, how) if "release" in queue.verbs else None,
    )


def _evidence(owned: Sequence[_Owned], **more: object) -> dict[str, object]:
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
        **more,
    }


def _oldest(owned: Sequence[_Owned]) -> float:
    return max((one.row.oldest_seconds or 0.0 for one in owned), default=0.0)


def _limit(context: CheckContext) -> str:
    return duration(context.thresholds.stuck_after_seconds)


def _gone(context: CheckContext, owned: Sequence[_Owned]) -> Finding:
    bound = sum(one.count for one in owned if one.owner is not None and one.owner.bound)
    return _finding(
        context,
        GONE,
        owned,
        f"whose consumer disconnected, the oldest for {duration(_oldest(owned))}",
        "gone",
        "their consumers died or disconnected without complete or fail; a claim counts if it was "
        f"bound to its session, or is older than {_limit(context)}",
        f"no consumer works on these messages, and {_left(context.queue)}",
        **_evidence(owned, bound=bound),
    )


def _alive(context: CheckContext, owned: Sequence[_Owned]) -> Finding:
    who = _living(context, owned)
    words = first_few(who, most=1) or _there(context.queue)
    return _finding(
        context,
        ALIVE,
        owned,
        f"for longer than {_limit(context)}, by {words}",
        "alive",
        "their consumers still work on them, hang, or have forgotten them",
        _kept(context.queue),
        **_evidence(owned, sessions="; ".join(who)),
    )


def _unknown(context: CheckContext, owned: Sequence[_Owned]) -> Finding:
    return _finding(
        context,
        UNKNOWN,
        owned,
        f"for longer than {_limit(context)}; it is not known whether their owners live",
        "unknown",
        _who(context.queue, owned),
        _kept(context.queue),
    )


def _nobody(context: CheckContext, owned: Sequence[_Owned]) -> Finding:
    """Whoever claimed them by hand may be at work on the young ones, as with any other claim."""
    return _finding(
        context,
        NOBODY,
        owned,
        f"for longer than {_limit(context)} without a consumer's name",
        "unknown",
        "they were claimed without the queue's own functions",
        "whether anybody works on them is not known",
        count=sum(one.count for one in owned),
        ids=[id_ for one in owned for id_ in one.ids][:_SHOWN],
        oldest_seconds=_oldest(owned),
    )


def _left(queue: Queue) -> str:
    """What becomes of claims that nobody works on."""
    return queue.design.left_claims or "no pop returns them"


def _kept(queue: Queue) -> str:
    """What becomes of claims that somebody may be at work on."""
    if queue.design.left_claims:
        return f"if their workers are dead, {queue.design.left_claims}"
    return "no pop returns these messages until they are completed, failed or released"


def _there(queue: Queue) -> str:
    return "workers whose heartbeat is recent" if queue.design.library else "connected sessions"


def _who(queue: Queue, owned: Sequence[_Owned]) -> str:
    names = [one.row.claimed_by for one in owned if one.row.claimed_by]
    if queue.design.library and names:
        return (
            f"{first_few(names, most=3)}: only {queue.design.library} knows whether these workers "
            "are alive"
        )
    return "the server does not know who claimed them, or hides it from this login"


def _living(context: CheckContext, owned: Sequence[_Owned]) -> list[str]:
    sessions = sorted({one.owner.session for one in owned if one.owner is not None})
    with context.transaction() as connection:
        rows = live_sessions(connection, sessions[:_SHOWN])
    return [row.line for row in rows]


CHECKS = CheckGroup(
    (states.STATUS, GONE, ALIVE, UNKNOWN, NOBODY, states.ILLEGAL),
    {
        _WHAT: _claims,
        states.WHAT: states.examine,
    },
    applies,
)
