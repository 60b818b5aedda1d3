"""What was repaired without a person, and what is left to one since it was found too often."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta

from console.catalog import audit
from console.doctor.context import CheckContext, CheckGroup, command
from console.doctor.finding import Code, Finding
from console.features.unattended import audited
from console.features.unattended.policy import REPAIRABLE, Past, Stop
from console.formats import numbered
from console.monitor.limits import Severity

_DAY = timedelta(days=1)
_NOUNS = {kind.key: kind.noun for kind in REPAIRABLE}

RECUR = Code(
    "repairs_recur",
    Severity.WARNING,
    "a recorder has stopped repairing: it came back too often, or was more than the policy allows",
    judgement="find out what keeps breaking it, a consumer that dies for instance; an action or a "
    "note on the queue lets the recorder go on",
)
REPAIRED = Code(
    "repaired_unattended",
    Severity.NOTE,
    "what recorders have repaired by themselves within a day, by the policy of the configuration",
    judgement="whether that number is usual here; each is in the audit, with what it was about",
)


def _check(context: CheckContext) -> Iterator[Finding]:
    with context.limited_transaction() as connection:
        if not audited.may_have(connection, context.queue):
            return
        past = audited.read(connection, context.queue, _DAY.total_seconds())
    for entry, stop in past.stops.values():
        yield _recurring(context, entry, stop)
    if repairs := [one for one in past.within(_DAY) if one.rows]:
        yield _repaired(repairs)


def _recurring(context: CheckContext, entry: audit.Entry, stop: Stop) -> Finding:
    until = "" if stop.lasts else ", or for the next hour"
    again = "something keeps causing them, which a repair would only hide"
    return Finding(
        RECUR,
        f"{stop.kind} are no longer repaired automatically: {stop.reason}",
        evidence={
            "kind": stop.kind,
            "reason": stop.reason,
            "stopped_at": entry.started_at.isoformat(),
            "recorder": entry.operator,
        },
        cause=again if stop.lasts else "the policy allows no more in an hour",
        consequence=f"they wait for a person{until}",
        since=entry.started_at,
        judgement=f"{RECUR.judgement}: {command(context.queue, 'audit')}",
    )


def _repaired(repairs: Sequence[Past]) -> Finding:
    rows = Counter[str]()
    for one in repairs:
        rows[one.kind] += one.rows
    parts = (numbered(count, _NOUNS.get(kind, "row")) for kind, count in rows.items())
    first, last = min(one.at for one in repairs), max(one.at for one in repairs)
    return Finding(
        REPAIRED,
        f"repaired automatically: {', '.join(parts)}, in {numbered(len(repairs), 'repair')} since "
        f"{first:%H:%M} UTC",
        evidence={**rows, "repairs": len(repairs), "last_at": last.isoformat()},
        cause="the policy of the configuration allows it",
        consequence="none: each was proven twice",
        since=first,
    )


CHECKS = CheckGroup((RECUR, REPAIRED), {"repairs without a person": _check})
CHECK_GROUPS = (CHECKS,)
