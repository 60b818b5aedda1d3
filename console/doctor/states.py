"""Rows whose status is invalid, or contradicted by their other columns."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from console import sql
from console.catalog import Kind
from console.doctor.context import CheckContext, counted, first_few
from console.doctor.finding import Code, Finding
from console.doctor.row_scan import CountedRow, RowTally, scan_rows
from console.monitor.limits import Severity
from console.monitor.scans import By, Scan, scans_of

WHAT = "states of rows"

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


def check_states(context: CheckContext) -> Iterator[Finding]:
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
            f"{counted(one.count, 'row')} {_CONTRADICTIONS[name][0]}" for name, one in found.items()
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
        f"{context.queue.design.name}.{code.name}",
        product.dialect,
        context.queue.scope(product),
    )
    return f"{code.judgement}\n{sql.plain(text)}"


def _unknown_states(context: CheckContext) -> RowTally:
    """All rows are read, unless a CHECK of the table rules such states out."""
    found = RowTally()
    if "status" not in context.queue.roles:
        return found
    if not context.is_true("status_check"):
        scan = Scan("any", By.ID)
        for row in scan_rows(context, WHAT, scan, ContradictionRow, "contradictions"):
            if row.contradicts:
                found.add(row.id)
    return found


def _contradictions(context: CheckContext) -> dict[str, RowTally]:
    found: dict[str, RowTally] = {}
    for scan in scans_of(context.queue):
        of_state = _BY_STATE.get((context.queue.design.shape, scan.state))
        if scan.dated and of_state is None:
            continue
        for row in scan_rows(context, WHAT, scan, ContradictionRow, "contradictions"):
            if not scan.dated:
                found.setdefault(f"{scan.state}_undated", RowTally()).add(row.id)
            if of_state is not None and row.contradicts:
                found.setdefault(of_state, RowTally()).add(row.id)
    return found
