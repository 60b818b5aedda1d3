"""Messages that are never due: milliseconds taken for seconds, infinity."""

from collections.abc import Iterator
from dataclasses import dataclass

from console.doctor.context import CheckContext, CheckGroup, command, counted
from console.doctor.finding import Code, Finding
from console.doctor.repairs import VerbRepair
from console.monitor.limits import Severity

OUT_OF_RANGE = Code(
    "time_out_of_range",
    Severity.WARNING,
    "messages that are due after the year 9999: never",
    judgement="only you know the time that was meant",
)


@dataclass(frozen=True)
class _FarTime:
    id: str | None
    found: int


def _check_times(context: CheckContext) -> Iterator[Finding]:
    if not context.has("far_times"):
        return
    with context.limited_transaction() as connection:
        rows = context.fetch(connection, _FarTime, "far_times")
    if not rows:
        return
    queue, ids = context.queue, [row.id for row in rows if row.id is not None]
    words = tuple(f"--filter=id={one}" for one in ids)
    repair = None
    if words and "reschedule" in queue.verbs:
        words = (*words, "--in", "0s")
        repair = VerbRepair(queue, "reschedule", words, "make these messages due now (reschedule)")
    yield Finding(
        OUT_OF_RANGE,
        f"{counted(rows[0].found, 'message')} due after the year 9999",
        evidence={"messages": rows[0].found, "ids": ids},
        cause="whoever pushed them took milliseconds for seconds, or meant never",
        consequence="no pop returns them",
        repair=repair,
        command=command(queue, "reschedule", *words) if repair else "",
    )


CHECKS = CheckGroup(
    (OUT_OF_RANGE,),
    {"times out of range": _check_times},
    lambda queue: "due_at" in queue.roles,
)
