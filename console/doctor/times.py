"""Messages whose time no clock can have written: milliseconds taken for seconds, infinity."""

from collections.abc import Iterator
from dataclasses import dataclass

from console.designs import Flow
from console.doctor.context import CheckContext, CheckGroup, command, counted
from console.doctor.finding import Code, Finding
from console.doctor.repairs import VerbRepair
from console.monitor.limits import Severity

OUT_OF_RANGE = Code(
    "time_out_of_range",
    Severity.WARNING,
    "messages with a push or due time outside the years 1 to 9999, among the first 10,000",
    judgement="only you know the time that was meant",
)


@dataclass(frozen=True)
class _FarTime:
    id: str | None
    far_due: bool
    found: int


def _check_times(context: CheckContext) -> Iterator[Finding]:
    if not context.has("far_times"):
        return
    with context.limited_transaction() as connection:
        rows = context.fetch(connection, _FarTime, "far_times")
    if not rows:
        return
    queue, ids = context.queue, [row.id for row in rows if row.id is not None]
    words = tuple(f"--filter=id={row.id}" for row in rows if row.far_due and row.id is not None)
    repair = None
    if words and "reschedule" in queue.verbs:
        words = (*words, "--in", "0s")
        repair = VerbRepair(queue, "reschedule", words, "make these messages due now (reschedule)")
    yield Finding(
        OUT_OF_RANGE,
        f"{counted(rows[0].found, 'message')} with a time outside the years 1 to 9999",
        evidence={"messages": rows[0].found, "ids": ids},
        cause="whoever pushed them took milliseconds for seconds, or left a default",
        consequence="a due time far ahead never comes, and their age is not known",
        repair=repair,
        command=command(queue, "reschedule", *words) if repair else "",
    )


CHECKS = CheckGroup(
    (OUT_OF_RANGE,),
    {"times out of range": _check_times},
    lambda queue: (
        queue.design.flow is not Flow.NUMBERS and bool({"pushed_at", "due_at"} & queue.roles.keys())
    ),
)
