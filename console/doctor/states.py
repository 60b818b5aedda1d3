"""States of rows that are none, or that the row's other columns contradict."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from console import sql
from console.catalog import Kind
from console.doctor.context import CheckContext, counted, first_few
from console.doctor.finding import Code, Finding
from console.doctor.row_scan import scan_rows
from console.monitor.limits import Severity
from console.monitor.scans import By, Scan, scans_of

WHAT = "states of rows"
_SHOWN = 10

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
class ContradictionRow:
    key_time: str | None
    key_id: str
    position: int
    looked: int
    id: str | None
    contradicts: bool


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
        "claimed without a time",
        "they never count as stuck, so no release takes them",
    ),
    "error_undated": ("in error without a time", "no filter of errors by age finds them"),
    "done_undated": ("done without a time", "no archive by age takes them"),
    "done_with_error": ("done with an error", "one of the two is wrong"),
    "error_unclaimed": (
        "in error but not claimed",
        "a pop takes them, and they count both as errors and as ready",
    ),
}
"""A contradiction -> what it is, and what comes of it."""
_OF_STATE = {
    ("claim", "error"): "error_unclaimed",
    ("status", "done"): "done_with_error",
    ("split", "done"): "done_with_error",
}
"""Design and state -> what may be wrong with a row in it that has its time."""


def examine(context: CheckContext) -> Iterator[Finding]:
    queue = context.queue
    rowed = queue.design.shape in {"status", "split"} or (
        queue.design.shape == "claim" and queue.kind is Kind.INSTALLED
    )
    if not rowed:
        return
    unknown = _unknown_states(context)
    if unknown.count:
        yield Finding(
            STATUS,
            f"{counted(unknown.count, 'row')} with an invalid status",
            evidence=unknown.evidence,
            cause="it was written without the queue's own functions",
            consequence="no pop returns them, and no verb of the console takes them",
            judgement=_with_sql(context, STATUS),
        )
    found = _contradictions(context) if queue.kind is Kind.INSTALLED else {}
    if found:
        words = [f"{counted(one.count, 'row')} {_WRONG[name][0]}" for name, one in found.items()]
        yield Finding(
            ILLEGAL,
            first_few(words),
            evidence={name: wrong.evidence for name, wrong in found.items()},
            cause="they were changed without the queue's own functions",
            consequence="; ".join(_WRONG[name][1] for name in found),
            judgement=_with_sql(context, ILLEGAL),
        )


def _with_sql(context: CheckContext, code: Code) -> str:
    """Why it wants judgement, and on the lines below what to judge by."""
    product = context.database.product
    text = sql.script(
        f"{context.queue.design.name}.{code.name}",
        product.dialect,
        context.queue.scope(product),
    )
    return f"{code.judgement}\n{sql.plain(text)}"


def _unknown_states(context: CheckContext) -> _Wrong:
    """All rows are examined, unless a CHECK of the table rules them out."""
    found = _Wrong()
    if "status" not in context.queue.roles:
        return found
    if not context.is_true("status_check"):
        scan = Scan("any", By.ID)
        for row in scan_rows(context, WHAT, scan, ContradictionRow, "contradictions"):
            if row.contradicts:
                found.add(row)
    return found


def _contradictions(context: CheckContext) -> dict[str, _Wrong]:
    found: dict[str, _Wrong] = {}
    for scan in scans_of(context.queue):
        of_state = _OF_STATE.get((context.queue.design.shape, scan.state))
        if scan.dated and of_state is None:
            continue
        for row in scan_rows(context, WHAT, scan, ContradictionRow, "contradictions"):
            if not scan.dated:
                found.setdefault(f"{scan.state}_undated", _Wrong()).add(row)
            if of_state is not None and row.contradicts:
                found.setdefault(of_state, _Wrong()).add(row)
    return found
