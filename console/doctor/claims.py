"""Claims whose consumers are gone or unknown, in queues that keep popped messages."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from console.actions.requeue import live_sessions
from console.catalog import Kind, Queue
from console.designs import Flow
from console.doctor import states
from console.doctor.context import CheckContext, CheckGroup, counted, first_few
from console.doctor.finding import Code, Finding
from console.doctor.repairs import release_claims
from console.doctor.row_scan import CountedRow, scan_rows
from console.formats import duration
from console.monitor.limits import Severity
from console.monitor.owners import Evidence, Owner, claimant_evidence, owner_of
from console.monitor.scans import Scan, scans_of

_WHAT = "claims and their owners"
_SHOWN = 10

_OF_ITS_LIBRARY = (
    "release is not available for this queue: its library reclaims messages by its own rules"
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
    "claims older than the threshold, whose owner is alive",
    judgement=_OF_ITS_LIBRARY,
    repair="release --force, with a filter for their age",
)
UNKNOWN = Code(
    "claims_unknown",
    Severity.WARNING,
    "claims older than the threshold, whose owner is unknown",
    judgement=_OF_ITS_LIBRARY,
    repair="release --unknown",
)
UNNAMED = Code(
    "claims_nobody",
    Severity.WARNING,
    "claims older than the threshold that name no consumer",
    judgement=_OF_ITS_LIBRARY,
    repair="release --unknown",
)


def applies(queue: Queue) -> bool:
    return "claimed" in queue.states and queue.finishes and queue.design.shape != "broker"


def scans(queue: Queue) -> list[Scan]:
    """The scans of all messages that are kept when popped."""
    of_a_ring = queue.design.flow is Flow.NUMBERS and queue.kind is Kind.INSTALLED
    return [scan for scan in scans_of(queue) if scan.in_hand == of_a_ring]


@dataclass(frozen=True)
class ClaimedRow(CountedRow):
    """A claim: the row of the statement `claimed`."""

    claimed_by: str | None
    half: bool
    seconds: float | None


@dataclass
class _Claims:
    claimed_by: str | None
    claims: int = 0
    old: int = 0
    oldest: list[tuple[float, str]] = field(default_factory=list)
    """Age and id of the oldest ones, the oldest first."""

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
    """The claims of one owner, with the evidence about that owner."""

    row: _Claims
    owner: Owner | None
    evidence: Evidence

    @property
    def count(self) -> int:
        """How many of them `release` would release."""
        bound = self.owner is not None and self.owner.bound
        if self.evidence is Evidence.GONE and bound:
            return self.row.claims
        return self.row.old

    @property
    def ids(self) -> list[str]:
        return [id_ for _, id_ in self.row.oldest[: self.count]]


def _check_claims(context: CheckContext) -> Iterator[Finding]:
    if context.is_standby(_WHAT) or context.queue.design.claims_expire:
        return
    if "claimed_at" not in context.queue.roles and context.queue.design.flow is not Flow.NUMBERS:
        context.unseen.append("claims: no column has their time")
        return
    yield from context.for_each_view(_check_owners)


def _check_owners(context: CheckContext) -> Iterator[Finding]:
    # In an installed queue every claim names its consumer.
    names_consumers = context.queue.kind is Kind.INSTALLED
    named: dict[Evidence, list[_Owned]] = {evidence: [] for evidence in Evidence}
    unnamed: list[_Owned] = []
    for one in _owned(context):
        if one.count:
            has_name = one.row.claimed_by is not None or not names_consumers
            (named[one.evidence] if has_name else unnamed).append(one)
    for owned, finding in (
        (named[Evidence.GONE], _gone),
        (named[Evidence.ALIVE], _alive),
        (named[Evidence.UNKNOWN], _unknown),
        (unnamed, _unnamed),
    ):
        if owned:
            yield finding(context, owned)


def _owned(context: CheckContext) -> list[_Owned]:
    """The claims by owner.

    They are read again after the check of the owners: an owner that finished and disconnected in
    between has no claims any more, and one that is gone does not come back.
    """
    owners = [owner_of(row.claimed_by, context.queue) for row in _read(context)]
    sessions = [None if owner is None else owner.session for owner in owners]
    if not sessions:
        return []
    with context.transaction() as connection:
        limit = context.thresholds.stuck_after_seconds
        evidence = claimant_evidence(connection, context.queue, sessions, limit)
    found = []
    for row in _read(context):
        owner = owner_of(row.claimed_by, context.queue)
        session = None if owner is None else owner.session
        if session is not None and session not in sessions:
            continue
        found.append(_Owned(row, owner, evidence.get(session or "", Evidence.UNKNOWN)))
    return found


def _read(context: CheckContext) -> list[_Claims]:
    """Without claims that lack a payload: these are a finding of their own."""
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
    summary: str,
    owner_state: str,
    cause: str,
    consequence: str,
    **evidence: object,
) -> Finding:
    """`summary` follows the number of claims; `owner_state` as `release_claims` names them."""
    queue, limit = context.queue, context.thresholds.stuck_after_seconds
    count = sum(one.count for one in owned)
    return Finding(
        code,
        f"{counted(count, 'claim')} {summary}",
        evidence=evidence or _evidence(owned),
        cause=cause,
        consequence=consequence,
        for_seconds=_oldest(owned),
        repair=release_claims(queue, count, limit, owner_state)
        if "release" in queue.verbs
        else None,
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
        "their consumers died or disconnected without complete or fail; claims count if they were "
        f"bound to their session, or are older than {_limit(context)}",
        f"no consumer works on these messages, and {_left(context.queue)}",
        **_evidence(owned, bound=bound),
    )


def _alive(context: CheckContext, owned: Sequence[_Owned]) -> Finding:
    sessions = _live_sessions(context, owned)
    who = first_few(sessions, most=1) or _alive_owners(context.queue)
    return _finding(
        context,
        ALIVE,
        owned,
        f"older than {_limit(context)}, by {who}",
        "alive",
        "their consumers still work on them, hang, or never finished them",
        _kept(context.queue),
        **_evidence(owned, sessions="; ".join(sessions)),
    )


def _unknown(context: CheckContext, owned: Sequence[_Owned]) -> Finding:
    return _finding(
        context,
        UNKNOWN,
        owned,
        f"older than {_limit(context)}; whether their owners are alive is not known",
        "unknown",
        _why_unknown(context.queue, owned),
        _kept(context.queue),
    )


def _unnamed(context: CheckContext, owned: Sequence[_Owned]) -> Finding:
    """Young ones do not count: whoever claimed them by hand may be at work on them."""
    return _finding(
        context,
        UNNAMED,
        owned,
        f"older than {_limit(context)} without a consumer's name",
        "unknown",
        "they were claimed without the queue's own functions",
        "whether a consumer works on them is not known",
        count=sum(one.count for one in owned),
        ids=[id_ for one in owned for id_ in one.ids][:_SHOWN],
        oldest_seconds=_oldest(owned),
    )


def _left(queue: Queue) -> str:
    """What happens to claims without a consumer."""
    return queue.design.left_claims or "no pop returns them"


def _kept(queue: Queue) -> str:
    """What happens to claims that a consumer may be working on."""
    if queue.design.left_claims:
        return f"if their workers are dead, {queue.design.left_claims}"
    return "no pop returns these messages until they are completed, failed or released"


def _alive_owners(queue: Queue) -> str:
    return "workers whose heartbeat is recent" if queue.design.library else "connected sessions"


def _why_unknown(queue: Queue, owned: Sequence[_Owned]) -> str:
    names = [one.row.claimed_by for one in owned if one.row.claimed_by]
    if queue.design.library and names:
        return (
            f"{first_few(names, most=3)}: only {queue.design.library} knows whether these workers "
            "are alive"
        )
    return "the server does not know who claimed them, or hides it from this login"


def _live_sessions(context: CheckContext, owned: Sequence[_Owned]) -> list[str]:
    sessions = sorted({one.owner.session for one in owned if one.owner is not None})
    with context.transaction() as connection:
        rows = live_sessions(connection, sessions[:_SHOWN])
    return [row.line for row in rows]


CHECKS = CheckGroup(
    (states.STATUS, GONE, ALIVE, UNKNOWN, UNNAMED, states.ILLEGAL),
    {
        _WHAT: _check_claims,
        states.WHAT: states.check_states,
    },
    applies,
)
