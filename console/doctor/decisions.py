"""What came of an operator's decision: a pause that lasts too long, or holds no longer."""

from collections.abc import Iterator

from console.actions import pause
from console.doctor.examination import Examination, Family, command
from console.doctor.finding import Code, Finding
from console.doctor.repairs import resume, upgrade
from console.formats import count, duration
from console.monitor.limits import Severity
from console.monitor.snapshot import QueueSnapshot

OVERDUE = Code(
    "pause_overdue",
    Severity.WARNING,
    "a queue is paused for longer than it was meant to be",
    repair="resume",
)
UNDONE = Code(
    "pause_undone",
    Severity.WARNING,
    "a function of a paused queue was replaced: it pops, or pushes, again",
    repair="upgrade, which pauses it again; then resume",
)


def _pause(examination: Examination) -> Iterator[Finding]:
    queue, seen = examination.queue, examination.snapshot
    if seen is None or (paused := seen.paused) is None:
        return
    evidence: dict[str, object] = {**paused.as_json(), "ready": seen.ready}
    estimated = ("ready",) if "ready" in seen.estimated else ()
    if paused.until is not None and paused.until < examination.now:
        lasted = (examination.now - paused.since).total_seconds()
        meant = (paused.until - paused.since).total_seconds()
        yield Finding(
            OVERDUE,
            f"paused by {paused.operator} for {duration(lasted)}, {duration(meant)} was meant"
            + _waiting(seen),
            evidence=evidence,
            estimated=estimated,
            cause=paused.reason or "nobody has resumed it",
            consequence="its pops find nothing until somebody resumes it",
            since=paused.until,
            repair=resume(queue),
        )
    with examination.moment() as connection:
        replaced = pause.undone(connection, queue)
    if replaced:
        yield Finding(
            UNDONE,
            f"paused by {paused.operator}, but {', '.join(replaced)} was replaced since",
            evidence=evidence | {"functions": replaced},
            estimated=estimated,
            cause="it was created anew by hand, or by a console that knows no pause",
            consequence="messages are taken although it is paused, and resume refuses; upgrade "
            f"pauses it again, then: {command(queue, 'resume')}",
            repair=upgrade(queue, by_hand=True),
        )


def _waiting(seen: QueueSnapshot) -> str:
    """What a pause does to the queue is no finding of its own."""
    if not seen.ready:
        return ""
    oldest = "" if seen.age_seconds is None else f", the oldest for {duration(seen.age_seconds)}"
    return f"; {count(seen.ready, estimated='ready' in seen.estimated)} ready{oldest}"


FAMILY = Family("decisions", (OVERDUE, UNDONE), {"its pause": _pause})
