"""Pauses that last too long or no longer hold; and acknowledgements that end by themselves: with
their finding, or when it becomes more severe."""

import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

from console import sql
from console.actions import pause
from console.catalog.decisions import Decision
from console.doctor.context import CheckContext, CheckGroup, command
from console.doctor.finding import Code, Diagnosis, Finding
from console.doctor.repairs import resume, upgrade
from console.engines import Database
from console.errors import ConsoleError
from console.formats import count, duration
from console.monitor.limits import LIMIT, LIMIT_CRITICAL, Severity, acknowledged_severity, is_about
from console.monitor.snapshot import QueueSnapshot

OVERDUE = Code(
    "pause_overdue",
    Severity.WARNING,
    "a queue has been paused for longer than intended",
    repair="resume",
)
UNDONE = Code(
    "pause_undone",
    Severity.WARNING,
    "a paused queue pops or pushes again: a function was replaced, or the library resumed it",
    repair="upgrade, which pauses it again; then resume",
)
ELSEWHERE = Code(
    "paused_elsewhere", Severity.WARNING, "a library's own tools have paused the queue"
)


def _check_pause(context: CheckContext) -> Iterator[Finding]:
    queue, seen = context.queue, context.snapshot
    if seen is None:
        return
    if queue.design.paused:
        yield from _check_library(context, seen)
    if (paused := seen.paused) is None:
        return
    evidence: dict[str, object] = {**paused.as_json(), "ready": seen.ready}
    estimated = ("ready",) if "ready" in seen.estimated else ()
    if paused.until is not None and paused.until < context.now:
        lasted = (context.now - paused.since).total_seconds()
        meant = (paused.until - paused.since).total_seconds()
        yield Finding(
            OVERDUE,
            f"paused by {paused.operator} for {duration(lasted)}, intended for {duration(meant)}"
            + _waiting(seen),
            evidence=evidence,
            estimated=estimated,
            cause=paused.reason or "it has not been resumed",
            consequence="pops return nothing until it is resumed",
            since=paused.until,
            repair=resume(queue),
        )
    with context.transaction() as connection:
        replaced = pause.replaced_functions(connection, queue)
    if replaced:
        yield Finding(
            UNDONE,
            f"paused by {paused.operator}, but {', '.join(replaced)} was replaced since",
            evidence=evidence | {"functions": replaced},
            estimated=estimated,
            cause="it was recreated by hand, or by a console that does not know pauses",
            consequence="messages are popped although it is paused, and resume refuses; upgrade "
            f"pauses it again, then: {command(queue, 'resume')}",
            repair=upgrade(queue, by_hand=True),
        )


def _check_library(context: CheckContext, seen: QueueSnapshot) -> Iterator[Finding]:
    """The library's own tools pause and resume too, without a record here."""
    queue, library = context.queue, context.queue.design.library_name
    with context.transaction() as connection:
        there = pause.paused_by_library(connection, queue)
    if there and seen.paused is None:
        yield Finding(
            ELSEWHERE,
            f"paused by a tool of {library}{_waiting(seen)}",
            evidence={"paused_queues": len(there), "ready": seen.ready},
            cause="it was paused there; the library does not record by whom or why",
            consequence="its workers take nothing until it is resumed",
            judgement="find out who paused it; a pause and a resume here end it: "
            f"{command(queue, 'pause')}; {command(queue, 'resume')}",
            since=min(there),
        )
    elif seen.paused is not None and not there:
        yield Finding(
            UNDONE,
            f"paused by {seen.paused.operator}, but a tool of {library} has resumed it",
            evidence={**seen.paused.as_json(), "ready": seen.ready},
            cause="its own tools do not know of the pause here",
            consequence="messages are taken although it is paused here",
            repair=resume(queue),
        )


def _waiting(seen: QueueSnapshot) -> str:
    if not seen.ready:
        return ""
    oldest = "" if seen.age_seconds is None else f", the oldest for {duration(seen.age_seconds)}"
    return f"; {count(seen.ready, estimated='ready' in seen.estimated)} ready{oldest}"


CHECKS = CheckGroup((OVERDUE, UNDONE, ELSEWHERE), {"its pause": _check_pause})


_LOG = logging.getLogger(__name__)


def finished_acknowledgements(
    silences: Sequence[Decision], findings: Sequence[Finding], unproven: Callable[[str], bool]
) -> Iterator[tuple[Decision, str]]:
    """Acknowledgements of a queue that end now, and why: `ended`, `worsened`.

    `unproven`: whether there may still be a finding of that code.
    """
    for decision in silences:
        if decision.kind != "acknowledge":
            continue
        code, _, which = decision.code.partition(":")
        worse = LIMIT_CRITICAL if code == LIMIT else code
        about = [it for it in findings if it.code.name in {code, worse}]
        about = [it for it in about if not which or it.subject == which]
        if any(it.code.severity > acknowledged_severity(decision) for it in about):
            yield decision, "worsened"
        elif not any(is_about(decision, it.code.name, it.subject) for it in about) and not unproven(
            code
        ):
            yield decision, "ended"


def end_acknowledgements(database: Database, diagnoses: Sequence[Diagnosis]) -> None:
    """Record it; if that fails, the next diagnosis tries again."""
    ended = [it for diagnosis in diagnoses for it in diagnosis.finished_decisions]
    if not ended:
        return
    try:
        with database.transaction("end acknowledgements") as connection:
            for decision, why in ended:
                sql.values(
                    connection,
                    datetime,
                    "catalog.silence_end",
                    kind=decision.kind,
                    code=decision.code,
                    schema=decision.schema,
                    queue=decision.queue,
                    by=why,
                )
    except ConsoleError as error:
        _LOG.info("%s: acknowledgements were not ended: %s", database.label, error)
