"""In queues that keep popped messages: claims whose consumers are gone or unknown, and rows whose
status is invalid, or contradicted by their other columns."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from console import sql
from console.actions.requeue import live_sessions
from console.catalog import Kind, Queue
from console.designs import Flow
from console.doctor.context import CheckContext, CheckGroup, counted, first_few
from console.doctor.finding import Code, Finding
from console.doctor.repairs import release_claims
from console.doctor.row_scan import CountedRow, RowTally, scan_rows
from console.formats import duration
from console.monitor.limits import Severity
from console.monitor.owners import (
    Evidence,
    Owner,
    claimant_evidence,
    consumers_are_direct,
    owner_of,
)
from console.monitor.scans import By, Scan, scans_of

_WHAT = "claims and their owners"
_SHOWN = 10

_OF_ITS_LIBRARY = (
    "release is not available for this queue: its library reclaims messages by its own rules"
)

SAY_DIRECT = (
    'consumers = "direct" in the profile, or --option consumers=direct when the queue is installed '
    "or adopted"
)
"""How an operator says that a session which is gone has lost its claims."""

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


UNSAID = Code(
    "consumers_unsaid",
    Severity.NOTE,
    "it is not said whether consumers connect directly: only bound claims can be proven gone",
    judgement="only whoever runs the consumers knows whether a pooler is between. If none is: "
    + SAY_DIRECT,
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
    session_state: Evidence

    @property
    def left(self) -> bool:
        """Whether their owner bound them to its session, which is gone."""
        return self.evidence is Evidence.GONE and self.owner is not None and self.owner.bound

    @property
    def count(self) -> int:
        """How many of them `release` would release."""
        return self.row.claims if self.left else self.row.old

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


def _check_consumers(context: CheckContext) -> Iterator[Finding]:
    queue = context.queue
    with context.transaction() as connection:
        direct = consumers_are_direct(connection, queue)
    if not direct and not queue.design.claims_expire and _names_owners(queue):
        yield Finding(
            UNSAID,
            "whether its consumers connect directly is not said",
            evidence={},
            cause="neither the queue's catalog entry nor the connection's profile says so",
            consequence="behind a pooler a session that is gone proves nothing about its consumer: "
            "a claim that is not bound to its session is released only by an operator",
        )


def _names_owners(queue: Queue) -> bool:
    return queue.kind is Kind.INSTALLED or "claimed_by" in queue.roles


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
        owners_now = claimant_evidence(connection, context.queue, sessions, limit)
    owneds = []
    for row in _read(context):
        owner = owner_of(row.claimed_by, context.queue)
        session = None if owner is None else owner.session
        if session is not None and session not in sessions:
            continue
        owneds.append(_Owned(row, owner, owners_now.of(owner), owners_now.session_of(owner)))
    return owneds


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
    bound = {one.row.claimed_by: one.ids for one in owned if one.row.claimed_by and one.left}
    return Finding(
        code,
        f"{counted(count, 'claim')} {summary}",
        evidence=evidence or _evidence(owned),
        cause=cause,
        consequence=consequence,
        for_seconds=_oldest(owned),
        repair=release_claims(queue, limit, owner_state, bound)
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
    bound = sum(one.count for one in owned if one.left)
    left = context.queue.design.left_claims or "no pop returns them"
    return _finding(
        context,
        GONE,
        owned,
        f"whose consumer disconnected, the oldest for {duration(_oldest(owned))}",
        "gone",
        "their consumers died or disconnected without complete or fail; claims count if they were "
        f"bound to their session, or are older than {_limit(context)}",
        f"no consumer works on these messages, and {left}",
        **_evidence(owned, bound=bound),
    )


def _alive(context: CheckContext, owned: Sequence[_Owned]) -> Finding:
    named = sorted({one.owner.session for one in owned if one.owner is not None})
    with context.transaction() as connection:
        sessions = [row.line for row in live_sessions(connection, named[:_SHOWN])]
    workers = "workers whose heartbeat is recent"
    others = workers if context.queue.design.library else "connected sessions"
    who = first_few(sessions, most=1) or others
    return _finding(
        context,
        ALIVE,
        owned,
        f"older than {_limit(context)}, by {who}",
        "alive",
        "their consumers still work on them, hang, or never finished them",
        _consequence(context.queue),
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
        _consequence(context.queue),
    )


def _unnamed(context: CheckContext, owned: Sequence[_Owned]) -> Finding:
    """Young ones do not count: whoever claimed them by hand may be working on them."""
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


def _consequence(queue: Queue) -> str:
    """What happens to claims that a consumer may be working on."""
    if queue.design.left_claims:
        return f"if their workers are dead, {queue.design.left_claims}"
    return "no pop returns these messages until they are completed, failed or released"


def _why_unknown(queue: Queue, owned: Sequence[_Owned]) -> str:
    names = [one.row.claimed_by for one in owned if one.row.claimed_by]
    if queue.design.library and names:
        return (
            f"{first_few(names, most=3)}: only {queue.design.library_name} knows whether these "
            "workers are alive"
        )
    if any(one.session_state is Evidence.GONE for one in owned):
        return (
            "their sessions have ended, which proves nothing about consumers that connect through "
            f"a pooler: it ends sessions when it likes. If they connect directly: {SAY_DIRECT}"
        )
    return "the server does not know who claimed them, or hides it from this login"


# The states of rows.

_STATES = "states of rows"

STATUS = Code(
    "status_unknown",
    Severity.WARNING,
    "rows with an invalid status: no verb sees them",
    judgement="what they were meant to be is not known: set each to 0 (it is popped) or to 4 (an "
    "error, which verbs accept), or delete it",
)
ILLEGAL = Code(
    "state_illegal",
    Severity.WARNING,
    "rows whose columns contradict their state: claimed or in error without a time, done with an "
    "error",
    judgement="only their writer knows which of the contradicting columns is right",
)


@dataclass(frozen=True)
class ContradictionRow(CountedRow):
    contradicts: bool


_CONTRADICTIONS: Mapping[str, tuple[str, str]] = {
    "claimed_undated": (
        "claimed without a time",
        "they never count as stuck, so no release frees them",
    ),
    "error_undated": ("in error without a time", "no filter of errors by age finds them"),
    "done_undated": ("done without a time", "no archive by age takes them"),
    "done_with_error": ("done with an error", "one of the two is wrong"),
    "error_unclaimed": (
        "in error but not claimed",
        "a pop takes them, and they count both as errors and as ready",
    ),
}
"""A contradiction -> its description, and its consequence."""
_BY_STATE = {
    ("claim", "error"): "error_unclaimed",
    ("status", "done"): "done_with_error",
    ("split", "done"): "done_with_error",
}
"""Design shape and state -> what may be wrong with a row that has its time."""


def _check_states(context: CheckContext) -> Iterator[Finding]:
    queue = context.queue
    has_states = queue.design.shape in {"status", "split"} or (
        queue.design.shape == "claim" and queue.kind is Kind.INSTALLED
    )
    if not has_states:
        return
    unknown = _unknown_states(context)
    if unknown.count:
        yield Finding(
            STATUS,
            f"{counted(unknown.count, 'row')} with an invalid status",
            evidence=vars(unknown),
            cause="it was written without the queue's own functions",
            consequence="no pop returns them, and no verb of the console sees them",
            judgement=_with_sql(context, STATUS),
        )
    found = _contradictions(context) if queue.kind is Kind.INSTALLED else {}
    if found:
        texts = [
            f"{counted(tally.count, 'row')} {_CONTRADICTIONS[name][0]}"
            for name, tally in found.items()
        ]
        yield Finding(
            ILLEGAL,
            first_few(texts),
            evidence={name: vars(rows) for name, rows in found.items()},
            cause="they were changed without the queue's own functions",
            consequence="; ".join(_CONTRADICTIONS[name][1] for name in found),
            judgement=_with_sql(context, ILLEGAL),
        )


def _with_sql(context: CheckContext, code: Code) -> str:
    """Why it needs judgement, and below that the SQL to judge by."""
    product = context.database.product
    text = sql.script(
        f"{context.queue.design.name}.{code.name}", product.dialect, context.queue.scope(product)
    )
    return f"{code.judgement}\n{sql.plain(text)}"


def _unknown_states(context: CheckContext) -> RowTally:
    """All rows are read, unless a CHECK of the table rules such states out."""
    tally = RowTally()
    if "status" not in context.queue.roles:
        return tally
    if not context.is_true("status_check"):
        scan = Scan("any", By.ID)
        for row in scan_rows(context, _STATES, scan, ContradictionRow, "contradictions"):
            if row.contradicts:
                tally.add(row.id)
    return tally


def _contradictions(context: CheckContext) -> dict[str, RowTally]:
    contradictions: dict[str, RowTally] = {}
    for scan in scans_of(context.queue):
        of_state = _BY_STATE.get((context.queue.design.shape, scan.state))
        if scan.dated and of_state is None:
            continue
        for row in scan_rows(context, _STATES, scan, ContradictionRow, "contradictions"):
            if not scan.dated:
                contradictions.setdefault(f"{scan.state}_undated", RowTally()).add(row.id)
            if of_state is not None and row.contradicts:
                contradictions.setdefault(of_state, RowTally()).add(row.id)
    return contradictions


CHECKS = CheckGroup(
    (STATUS, GONE, ALIVE, UNKNOWN, UNNAMED, UNSAID, ILLEGAL),
    {"how consumers connect": _check_consumers, _WHAT: _check_claims, _STATES: _check_states},
    applies,
)
