"""Findings that an operator has silenced or acknowledged: they are shown, and count as no problem.

A silence holds until its time; an acknowledgement until the finding ends, or is graver than it was.
"""

from collections.abc import Sequence

from console.catalog import Queue
from console.decisions import Decision
from console.monitor.limits import Exceeded, Severity
from console.monitor.owners import Claim

LIMIT, LIMIT_CRITICAL = "limit_reached", "limit_critical"


def of_queue(decisions: Sequence[Decision], queue: Queue) -> tuple[Decision, ...]:
    """Those about findings of the queue; of no queue's name: about every queue."""
    here = {("", ""), (queue.schema, queue.name)}
    return tuple(one for one in decisions if one.code and (one.schema, one.queue) in here)


def named(one: Decision, code: str, which: str = "") -> bool:
    """Whether it is about the code; `which` of several, as `limit_reached:depth` names it."""
    return one.code in {code, f"{code}:{which}"}


def silencing(
    decisions: Sequence[Decision], code: str, level: Severity, which: str = ""
) -> Decision | None:
    """What silences a finding that is as grave as that; None: nothing does."""
    found = (one for one in decisions if named(one, code, which))
    return next((one for one in found if one.kind == "silence" or level <= graveness(one)), None)


def graveness(acknowledged: Decision) -> Severity:
    known = {one.word: one for one in Severity}
    return known.get(acknowledged.severity, Severity.OK)


def limit_code(level: Severity) -> str:
    return LIMIT_CRITICAL if level is Severity.CRITICAL else LIMIT


def of_limit(decisions: Sequence[Decision], one: Exceeded) -> Decision | None:
    codes = {limit_code(one.level)}
    if one.figure == "gap_share":  # how full a ring of ours is has codes of its own
        codes.add("full" if one.value >= 1 else "filling")
    found = (silencing(decisions, code, one.level, one.figure) for code in sorted(codes))
    return next(filter(None, found), None)


def of_stuck(
    decisions: Sequence[Decision], stuck: int | None, oldest_first: Sequence[Claim] | None
) -> Decision | None:
    """What silences stuck claims, where every sort of them that is known is silenced."""
    codes = {_code(claim) for claim in (oldest_first or ())[: stuck or 0]}
    found = [silencing(decisions, code, Severity.WARNING) for code in sorted(codes)]
    return found[0] if found and all(found) else None


def _code(claim: Claim) -> str:
    return f"claims_{claim.owner}" if claim.claimed_by else "claims_nobody"
