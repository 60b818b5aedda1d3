"""Messages of split queues without a payload, and messages popped too often.

Rows without a payload and payloads without a row are searched for from the newest id down.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from console import sql
from console.catalog import Kind, Queue
from console.designs import Flow
from console.doctor import claims, row_scan
from console.doctor.context import CheckContext, CheckGroup, command, counted, first_few
from console.doctor.finding import Code, Finding
from console.doctor.repairs import IncompleteMessages, MarkAsErrors, incomplete_messages
from console.doctor.row_scan import SHOWN_IDS, CountedRow, RowTally, scan_rows
from console.monitor.limits import Severity
from console.monitor.message import pages
from console.monitor.scans import Scan

Row = TypeVar("Row", IncompleteMessages, "OrphanedPayloads")

_WHAT = "messages without their payload"
_ORPHANED = "payloads without a message"
_CAUSE = "a row of one of the two tables was deleted by hand, or only one of them was restored"

PAYLOAD_MISSING = Code(
    "payload_missing",
    Severity.CRITICAL,
    "rows of a split queue without a payload, ready or in a stuck claim: a pop returns nothing for "
    "them",
    repair="doctor --fix: it marks these rows as errors",
)
PAYLOAD_LOST = Code(
    "payload_lost",
    Severity.NOTE,
    "rows of a split queue in other states have no payload",
    judgement="only a backup has the payload: insert it, or delete the rows",
)
PAYLOAD_ORPHANED = Code(
    "payload_alone",
    Severity.NOTE,
    "payloads of a split queue that belong to no message",
    judgement="they may belong to lost messages: examine them before you delete them",
)


def applies(queue: Queue) -> bool:
    return queue.design.shape == "split" and queue.kind is Kind.INSTALLED


@dataclass(frozen=True)
class OrphanedPayloads:
    rows_read: int
    lowest: int | None
    orphaned: int
    orphaned_ids: Any


@dataclass
class _Found:
    count: int = 0
    ids: list[str] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)
    """The newest id of each chunk that has such rows."""

    def add(self, count: int, ids: Any, newest: int) -> None:
        if count:
            self.count += count
            self.ids = (self.ids + sql.texts(ids))[:SHOWN_IDS]
            self.chunks.append(newest)


def _check_payloads(context: CheckContext) -> Iterator[Finding]:
    queue = context.queue
    if not context.can_query(_WHAT, "missing_payloads"):
        return
    ready, stuck, kept = _Found(), _Found(), _Found()
    for newest, row in _scan(context, _WHAT, _incomplete):
        ready.add(row.ready, row.ready_ids, newest)
        stuck.add(row.stuck, row.stuck_ids, newest)
        kept.add(row.kept, row.kept_ids, newest)
    if ready.count or stuck.count:
        yield _missing(context, ready, stuck)
    if kept.count:
        yield Finding(
            PAYLOAD_LOST,
            f"{counted(kept.count, 'row')} without a payload, neither ready nor stuck",
            evidence={"count": kept.count, "ids": kept.ids},
            cause=_CAUSE,
            consequence="they cannot be archived or requeued, having no payload. Insert "
            f'the payload into "{queue.name}_data" from a backup, or delete the rows',
        )


def _missing(context: CheckContext, ready: _Found, stuck: _Found) -> Finding:
    single = context.queue.options.get("dequeue") == "single"
    states = {"ready": ready, "claimed": stuck}
    by_state = [f"{one.count:,} {state}" for state, one in states.items() if one.count]
    ids = [*ready.ids, *stuck.ids][:SHOWN_IDS]
    count = ready.count + stuck.count
    return Finding(
        PAYLOAD_MISSING,
        f"{counted(count, 'row')} without a payload ({', '.join(by_state)}): "
        + first_few(ids, most=3, between=", "),
        evidence={
            "count": count,
            "ids": ids,
            **{state: {"count": one.count, "ids": one.ids} for state, one in states.items()},
        },
        cause=_CAUSE,
        consequence="a pop that meets one at the head returns nothing, as if the queue were "
        "empty, and everything behind it waits; the payload is lost unless a backup has it"
        if single
        else "a pop claims such a row and returns nothing for it, and no release frees the claim; "
        "the payload is lost unless a backup has it",
        repair=MarkAsErrors(
            context.queue,
            count,
            context.thresholds.stuck_after_seconds,
            tuple(dict.fromkeys(sorted((*ready.chunks, *stuck.chunks), reverse=True))),
        ),
    )


def _incomplete(context: CheckContext, newest: int) -> IncompleteMessages:
    with context.limited_transaction() as connection:
        messages, _ = incomplete_messages(
            connection,
            context.queue,
            context.thresholds.stuck_after_seconds,
            newest=newest,
            most=row_scan.CHUNK_ROWS,
        )
    return messages


def _check_orphaned(context: CheckContext) -> Iterator[Finding]:
    if not context.can_query(_ORPHANED, "orphaned_payloads"):
        return
    orphaned = _Found()

    def chunk(context: CheckContext, newest: int) -> OrphanedPayloads:
        (row,) = context.query(
            OrphanedPayloads, "orphaned_payloads", newest=newest, most=row_scan.CHUNK_ROWS
        )
        return row

    for newest, row in _scan(context, _ORPHANED, chunk):
        orphaned.add(row.orphaned, row.orphaned_ids, newest)
    if orphaned.count:
        yield Finding(
            PAYLOAD_ORPHANED,
            f"{counted(orphaned.count, 'payload')} without a message",
            evidence={"count": orphaned.count, "ids": orphaned.ids},
            cause=_CAUSE,
            consequence="they take up space and no verb sees them",
        )


def _scan(
    context: CheckContext, what: str, chunk: Callable[[CheckContext, int], Row]
) -> Iterator[tuple[int, Row]]:
    def read(newest: int) -> tuple[int, Row]:
        return newest, chunk(context, newest)

    def after(found: tuple[int, Row]) -> tuple[int, int | None]:
        rows_read, lowest = found[1].rows_read, found[1].lowest
        return rows_read, None if rows_read < row_scan.CHUNK_ROWS or lowest is None else lowest - 1

    bound, lowest = row_scan.bound_of(context), row_scan.NEWEST
    for newest, row in pages(row_scan.NEWEST, read, after, bound):
        yield newest, row
        lowest = lowest if row.lowest is None else row.lowest
    if bound.met:
        context.unseen.append(
            f"{what}: {row_scan.describe(bound)}; those up to id {lowest - 1} were not"
        )


PAYLOAD_CHECKS = CheckGroup(
    (PAYLOAD_MISSING, PAYLOAD_LOST, PAYLOAD_ORPHANED),
    {_WHAT: _check_payloads, _ORPHANED: _check_orphaned},
    applies,
)


# Poison messages: all messages that are not done are read, by their indexes.

LEAST_ATTEMPTS = 5
"""After this many pops the message is more likely at fault than its consumers."""
_TOO_OFTEN = "messages popped too often"
_UNDONE = ("ready", "claimed", "error")

POISON = Code(
    "poison",
    Severity.WARNING,
    f"messages that were popped {LEAST_ATTEMPTS} times or more and are not done",
    judgement="the message or its consumer is at fault: read its error, then move it to another "
    "queue, or purge it",
)


@dataclass(frozen=True)
class AttemptsRow(CountedRow):
    attempts: int | None


@dataclass
class _Tally(RowTally):
    most_attempts: int = 0


def _check_poison(context: CheckContext) -> Iterator[Finding]:
    queue = context.queue
    if "attempts" not in queue.roles and queue.design.flow is not Flow.NUMBERS:
        context.unseen.append(f"{_TOO_OFTEN}: no column counts the attempts")
        return
    states: dict[str, _Tally] = {}
    for scan in undone_scans(queue):
        for row in _retried(context, scan):
            tally = states.setdefault(scan.state, _Tally())
            tally.add(row.id)
            tally.most_attempts = max(tally.most_attempts, row.attempts or 0)
    if not states:
        return
    total = sum(tally.count for tally in states.values())
    most = max(tally.most_attempts for tally in states.values())
    by_state = ", ".join(f"{tally.count:,} {name}" for name, tally in states.items())
    yield Finding(
        POISON,
        f"{counted(total, 'message')} popped {LEAST_ATTEMPTS} times or more, one {most} times "
        f"({by_state})",
        evidence={name: vars(tally) for name, tally in states.items()},
        cause="each attempt ended with the consumer's death, a release or an error: most likely "
        "the message is at fault",
        consequence="they waste a consumer's time again and again",
        judgement="the message or its consumer is at fault; its error: "
        f"{command(queue, 'errors')}. {_advice(queue)}",
    )


def _advice(queue: Queue) -> str:
    if why := queue.refusal("purge"):
        return why
    to_other = command(queue, "requeue", "--to", "OTHER", "--filter", "id=ID")
    return f"requeue them to another queue ({to_other}), or purge them"


def undone_scans(queue: Queue) -> list[Scan]:
    return [scan for scan in claims.scans(queue) if scan.state in _UNDONE]


def _retried(context: CheckContext, scan: Scan) -> Iterator[AttemptsRow]:
    rows = scan_rows(context, _TOO_OFTEN, scan, AttemptsRow, "retried", least=LEAST_ATTEMPTS)
    return (row for row in rows if (row.attempts or 0) >= LEAST_ATTEMPTS)


ATTEMPT_CHECKS = CheckGroup(
    (POISON,), {_TOO_OFTEN: lambda context: context.for_each_view(_check_poison)}, claims.applies
)
