"""What expire and erase have in common: whose rows, which run must not be at work, the audit."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from console import catalog
from console.catalog import audit
from console.catalog.audit import ActionRecord, Ledger, Outcome, Subject
from console.engines import Database
from console.errors import ConsoleError, RefusedError, UsageError
from console.features.lake import leases
from console.features.lake.archive import plan as planning
from console.features.lake.maintenance.compact import KEPT_SECONDS
from console.features.lake.maintenance.rewrite import changed_meanwhile
from console.features.lake.table import LakeFile, MessagesTable, names_of
from console.formats import plain
from console.plan import Plan, Result, job_plan


@dataclass(frozen=True)
class QueueFiles:
    """What the table has of a queue."""

    connection: str
    schema: str
    queue: str
    files: tuple[LakeFile, ...]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def label(self) -> str:
        return f"{self.schema}.{self.queue}"


def removal_plan(
    subject: Subject,
    lines: Sequence[str],
    take: Callable[[], Sequence[str]],
    data: Mapping[str, Any],
    rows: int,
    queues: Sequence[QueueFiles],
    *,
    production: bool,
) -> Plan:
    """About the queue that loses rows; of several, about their connection. `take`: returns what
    was done, in lines."""

    def run() -> Result:
        return Result(Outcome.DONE, tuple(take()), done=rows)

    about = ("connection", subject.connection)
    if len(queues) == 1:
        about = ("queue", queues[0].queue)
    return job_plan(subject, lines, run, data, about=about, rows=rows, production=production)


def queues_of(table: MessagesTable, connection: str | None = None) -> list[QueueFiles]:
    """Those of a connection, or of all."""
    found: dict[tuple[str, str], list[LakeFile]] = {}
    for file in table.all_files():
        if connection in {None, file.connection}:
            found.setdefault((file.connection, file.queue), []).append(file)
    return [
        QueueFiles(of, *names_of(value), tuple(files))
        for (of, value), files in sorted(found.items())
    ]


def selected(
    table: MessagesTable, connection: str, schema: str | None, names: Sequence[str]
) -> list[QueueFiles]:
    """The queues of these names, or all. UsageError for a name that the lake does not have."""
    queues = queues_of(table, connection)
    found = [
        queue_files
        for queue_files in queues
        if (not names or queue_files.queue in names or queue_files.label in names)
        and schema in {None, queue_files.schema}
    ]
    if not found and not names:
        has = sorted({queue_files.connection for queue_files in queues_of(table)})
        raise UsageError(
            f"The lake {table.lake.location} has nothing of the connection {connection}.",
            why=f"It has: {', '.join(has) or 'nothing'}.",
            next_step="Name one of those with --from.",
        )
    if missing := [
        n
        for n in names
        if all(n not in {queue_files.queue, queue_files.label} for queue_files in found)
    ]:
        raise UsageError(
            f"The lake {table.lake.location} has nothing of {', '.join(map(repr, missing))}.",
            why=f"Of the connection {connection} it has: "
            f"{', '.join(queue_files.label for queue_files in queues) or 'nothing'}.",
            next_step="See what it has: dbq-console pipeline lake; name its connection with --from",
        )
    return found


@contextmanager
def guarded(database: Database, queues: Sequence[QueueFiles]) -> Iterator[None]:
    """No run archives these queues meanwhile. RefusedError where one does, or where a plan is not
    finished: what is taken out of the lake would be exported again."""
    with database.transaction("read the catalog") as connection:
        audit.prepare_lakes(connection)
    with ExitStack() as stack:
        for one in queues:
            if one.connection != database.label:
                continue  # nobody here knows what runs there: the plan says so
            try:
                queue = catalog.look_up(database, one.queue, one.schema, any_design=True)
            except UsageError:
                continue  # its archive outlives it
            name, refusal = leases.lease_name("run", queue), leases.already_running(queue)
            stack.enter_context(leases.held(database, name, refusal))
            with database.transaction("read the plan of the archive", read_only=True) as it:
                plan = planning.find(it, queue)
            if plan is not None and plan.unfinished:
                raise RefusedError(
                    f"The archive of {queue.name!r} has an unfinished plan.",
                    why="What is taken out of the lake now could come back with it.",
                    next_step=f"Finish it first: dbq-console pipeline archive "
                    f"{shlex.quote(one.queue)}",
                )
        yield


def take_out(
    database: Database,
    table: MessagesTable,
    subject: Subject,
    exchange: Callable[[dict[str, str]], bool],
) -> None:
    """With its audit. `exchange`: of the table, with what is kept with the commit. RefusedError
    where others were quicker."""
    with database.transaction("begin an action") as connection:
        record = ActionRecord.begin(connection, subject)
    outcome = Outcome.FAILED
    try:
        by = {"verb": subject.verb, "operator": audit.operator(), "action": str(record.action_id)}
        if not exchange(by):
            raise changed_meanwhile(table.lake)
        outcome = Outcome.DONE
    finally:
        rows = subject.planned if outcome is Outcome.DONE else 0
        ledger = Ledger(subject.planned, rows, rows)
        with suppress(ConsoleError), database.transaction("end an action") as connection:
            record.batch(connection, ledger)
            record.end(connection, outcome)
        record.log_locally(outcome, ledger)


def subject_of(verb: str, of: QueueFiles, database: Database, rows: int, detail: str) -> Subject:
    """Of another connection's archive it is not in the audit of the queue of that name here."""
    if of.connection == database.label:
        subject = Subject(verb, of.schema, of.queue, of.connection, detail=detail)
    else:
        subject = Subject(verb, "", "", of.connection, detail=f"{of.label}: {detail}")
    return replace(subject, planned=rows)


def final_words(connections: Iterable[str], own: str) -> list[str]:
    """When rows that were taken out are gone for good, and what could bring them back. `own`: this
    connection."""
    at = datetime.now(UTC) + timedelta(seconds=KEPT_SECONDS)
    lines = [
        "  older versions of the table have them until pipeline compact runs after "
        f"{at:%Y-%m-%d %H:%M} UTC; at once: pipeline compact --keep 0s",
        "  files of killed runs, which no version names, may have them for 7 days",
    ]
    if others := sorted(set(connections) - {own}):
        lines.append(
            f"  of {plain(', '.join(others))}: not known here whether an archive run there is "
            "unfinished, which would bring them back; the audit of this database has it"
        )
    return lines
