"""pipeline archive: of one queue, or of all of a connection, a group or a fleet with one Spark; and
the copy of a library's finished jobs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from console.catalog import Kind, Queue
from console.catalog.audit import Outcome, Subject
from console.cli.context import Call
from console.cli.planned import carry_out, confirmed
from console.cli.several import exit_status_of, profiles_of
from console.cli.streams import narrate
from console.engines import Database
from console.errors import ConsoleError
from console.features.lake import spark
from console.features.lake.archive import copy, job
from console.features.lake.archive.job import ArchiveResult, RowsToArchive
from console.features.lake.archive.plan import ArchiveRequest
from console.features.lake.cli.progress import progress
from console.features.lake.lake import Lake
from console.plan import Plan, Result, job_plan

if TYPE_CHECKING:
    from console.features.lake.spark import Tasks

_NOTHING = (
    "nothing to archive: purged and archived messages stay for a time, for restore (--retention)"
)


@dataclass(frozen=True)
class Archiving:
    """Into which lake rows go, and by what."""

    call: Call
    lake: Lake
    master: str | None
    connections: int
    shared: bool

    @property
    def security(self) -> spark.Security:
        return spark.security(self.master)

    @contextmanager
    def tasks(self, name: str) -> Iterator[Tasks]:
        if self.shared:
            self.lake.open_to_group()
        with spark.tasks(name, self.master) as tasks:
            yield tasks

    def archive(
        self, database: Database, rows: RowsToArchive, label: str, tasks: Tasks
    ) -> list[ArchiveResult]:
        """`label`: of its progress."""
        with progress(self.call, f"archive {label}", total=rows.rows) as on_progress:
            return job.archive(
                database,
                rows,
                self.lake,
                tasks,
                on_progress=on_progress,
                connections=self.connections,
                cores=spark.tasks_at_once(self.master, self.connections),
            )


def archive(
    how: Archiving,
    database: Database,
    queue: Queue,
    ages: Mapping[str, Any],
    yes: str | None,
    *,
    dry_run: bool,
) -> None:
    """The rows of one queue. `ages`: older and retention."""
    rows = job.find(database, queue, how.lake, ArchiveRequest(**ages))

    def run() -> Result:
        with how.tasks(f"{job.VERB} {queue.name}") as tasks:
            done = how.archive(database, rows, queue.name, tasks)
        result = total_of(done)
        lines = tuple(line for archive_result in done for line in archive_result.lines())
        return Result(Outcome.DONE, lines, done=result["exported"], data=result)

    production = how.call.production(database)
    plan = job.plan(database, rows, run, how.security, production=production)
    nothing = not rows.rows and rows.unfinished is None
    carry_out(how.call, plan, yes, dry_run=dry_run or nothing)


def copy_jobs(
    how: Archiving,
    database: Database,
    queue: Queue,
    older: float | None,
    yes: str | None,
    *,
    dry_run: bool,
) -> None:
    """With `older` prune those that finished so many seconds ago."""
    jobs = copy.find(database, queue, how.lake, older)

    def run() -> Result:
        with (
            how.tasks(f"{copy.VERB} {queue.name}") as tasks,
            progress(how.call, f"copy {queue.name}") as on_progress,
        ):
            done = copy.copy(database, jobs, how.lake, tasks, on_progress=on_progress)
        return Result(Outcome.DONE, tuple(done.lines()), done=done.exported, data=done.as_json())

    production = how.call.production(database)
    plan = copy.plan(database, jobs, run, how.security, production=production)
    # Without --prune nothing is deleted, so nothing has to be confirmed.
    carry_out(how.call, plan, yes, dry_run=dry_run, confirm=dry_run or older is not None)


@dataclass
class _Queues:
    """What there is to do, and what could not be done."""

    planned: list[tuple[Database, RowsToArchive]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)

    def failed(self, label: str, error: ConsoleError) -> None:
        self.problems.append(f"{label}: {' '.join(str(error).splitlines())}")
        self.statuses.append(error.exit_status)


def archive_all(
    how: Archiving,
    ages: Mapping[str, Any],
    *,
    group: str | None,
    fleet: str | None,
    yes: str | None,
    dry_run: bool,
) -> None:
    """One queue that cannot be archived stops none of the others. Exit: 3 where a connection
    failed, else the highest of all."""
    queues, call = _Queues(), how.call
    calls = _connections(call, group, fleet)
    for one in calls:
        _find_rows(one, how.lake, ages, queues, alone=len(calls) == 1)
    name = group or fleet or next((db.label for db, _ in queues.planned), "")
    whose = "group" if group else "fleet" if fleet else "connection"
    plan = _plan(how, queues, (whose, name))
    if confirmed(call, plan, yes, dry_run=dry_run or not queues.planned):
        if not call.json:
            narrate("\n".join(plan.lines))
        result = plan.run_to_end()
        call.answer(result.data, result.lines)
    if queues.statuses:
        sys.exit(exit_status_of(queues.statuses))


def _connections(call: Call, group: str | None, fleet: str | None) -> list[Call]:
    if group is None and fleet is None:
        return [call]
    names = [profile.name for profile in profiles_of(call, group, fleet)]
    return [replace(call, command_line=replace(call.command_line, profile=name)) for name in names]


def _find_rows(
    call: Call, lake: Lake, ages: Mapping[str, Any], queues: _Queues, *, alone: bool
) -> None:
    try:
        database = call.database(job.VERB)
        known = call.queues(database)
    except ConsoleError as error:
        if alone:
            raise
        queues.failed(call.command_line.profile or "", error)
        return
    for queue in known:
        older = ages["older"]
        older = call.archived_after(queue.name) if older is None else older
        if queue.kind is not Kind.INSTALLED or older is None:
            continue
        request = ArchiveRequest(older=older, retention=ages["retention"])
        try:
            rows = job.find(database, queue, lake, request)
        except ConsoleError as error:
            queues.failed(f"{database.label}: {queue.label}", error)
            continue
        if rows.rows or rows.unfinished is not None:
            queues.planned.append((database, rows))


def _plan(how: Archiving, queues: _Queues, about: tuple[str, str]) -> Plan:
    lines = [line for _, rows in queues.planned for line in rows.lines()]
    lines += [how.security.line] if queues.planned else []
    return job_plan(
        Subject(job.VERB, "", "", about[1]),
        [*lines, *queues.problems] or [_NOTHING],
        partial(_archive_each, how, queues),
        {
            "queues": [_as_json(database, rows) for database, rows in queues.planned],
            "problems": queues.problems,
        },
        about=about,
        rows=sum(rows.rows for _, rows in queues.planned),
        production=any(how.call.production(database) for database, _ in queues.planned),
    )


def _as_json(database: Database, rows: RowsToArchive) -> dict[str, Any]:
    return {"connection": database.label, **rows.as_json()}


def _archive_each(how: Archiving, queues: _Queues) -> Result:
    values: list[dict[str, Any]] = []
    lines: list[str] = []
    with how.tasks(job.VERB) as tasks:
        for database, rows in queues.planned:
            label = f"{database.label}: {rows.queue.label}"
            try:
                done = how.archive(database, rows, label, tasks)
            except ConsoleError as error:
                queues.failed(label, error)
                continue
            values.append(_as_json(database, rows) | {"result": total_of(done)})
            lines += [
                f"{label}:",
                *(f"  {line}" for archive_result in done for line in archive_result.lines()),
            ]
    data = {
        "queues": values,
        "problems": queues.problems,
        "done": sum(one["result"]["exported"] for one in values),
    }
    return Result(Outcome.DONE, (*lines, *queues.problems), data=data)


def total_of(done: Sequence[ArchiveResult]) -> dict[str, Any]:
    """All plans that a run carried out, and their totals."""
    figures = ("exported", "deleted", "in_lake_before", "files", "bytes")
    total = {
        figure: sum(getattr(archive_result, figure) for archive_result in done)
        for figure in figures
    }
    last = done[-1] if done else None
    return {
        "plan": None if last is None else last.plan,
        **total,
        "rows_per_second": {} if last is None else last.rows_per_second,
        "plans": [archive_result.as_json() for archive_result in done],
    }
