"""pipeline archive of all queues of a connection, a group or a fleet, with one Spark."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from console.actions.message_plan import MANY_MESSAGES
from console.audit import Outcome, Subject
from console.catalog import Kind, every_queue
from console.cli.context import Call
from console.cli.pipeline_progress import progress
from console.cli.planned import confirmed
from console.cli.several import exit_status_of, profiles_of
from console.cli.streams import narrate
from console.engines import Database
from console.errors import ConsoleError
from console.pipeline import spark
from console.pipeline.archive import job
from console.pipeline.archive.job import ArchivePreview, ArchiveResult
from console.pipeline.archive.plan import ArchiveRequest
from console.pipeline.lake import Lake
from console.verbs.verb import Plan, Result, single_step

_NOTHING = (
    "nothing to archive: purged and archived messages stay for a time, for restore (--retention)"
)


@dataclass
class _Queues:
    """What there is to do, and what could not be done."""

    planned: list[tuple[Database, ArchivePreview]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)

    def failed(self, label: str, error: ConsoleError) -> None:
        self.problems.append(f"{label}: {' '.join(str(error).splitlines())}")
        self.statuses.append(error.exit_status)

    @property
    def rows(self) -> int:
        return sum(offered.rows for _, offered in self.planned)


def archive_all(  # noqa: PLR0913  # a verb's options
    call: Call,
    lake: Lake,
    *,
    group: str | None,
    fleet: str | None,
    ages: Mapping[str, Any],
    master: str | None,
    connections: int,
    shared: bool,
    yes: str | None,
    dry_run: bool,
) -> None:
    """One queue that cannot be archived stops none of the others. Exit: 3 where a connection
    failed, else the highest of all."""
    found = _Queues()
    connections_of = _connections(call, group, fleet)
    for one in connections_of:
        _plan(one, lake, ages, found, alone=len(connections_of) == 1)
    name = group or fleet or next((db.label for db, _ in found.planned), "")
    whose = "group" if group else "fleet" if fleet else "connection"
    run = partial(_run, call, found, lake, master, connections, shared=shared)
    plan = _plan_of(call, found, (whose, name), master, run)
    if confirmed(call, plan, yes, dry_run=dry_run or not found.planned):
        if not call.json:
            narrate("\n".join(plan.lines))
        result = plan.run_to_end()
        call.answer(result.data, result.lines)
    if found.statuses:
        sys.exit(exit_status_of(found.statuses))


def _connections(call: Call, group: str | None, fleet: str | None) -> list[Call]:
    if group is None and fleet is None:
        return [call]
    names = [profile.name for profile in profiles_of(call, group, fleet)]
    return [replace(call, command_line=replace(call.command_line, profile=name)) for name in names]


def _plan(call: Call, lake: Lake, ages: Mapping[str, Any], found: _Queues, *, alone: bool) -> None:
    try:
        database = call.database(job.VERB)
        queues = call.queues(database)
    except ConsoleError as error:
        if alone:
            raise
        found.failed(call.command_line.profile or "", error)
        return
    for queue in queues:
        older = ages["older"]
        older = call.archived_after(queue.name) if older is None else older
        if queue.kind is not Kind.INSTALLED or older is None:
            continue
        request = ArchiveRequest(older=older, retention=ages["retention"])
        try:
            offered = job.preview(database, queue, lake, request)
        except ConsoleError as error:
            found.failed(f"{database.label}: {queue.label}", error)
            continue
        if offered.rows or offered.unfinished is not None:
            found.planned.append((database, offered))


def _plan_of(
    call: Call,
    found: _Queues,
    about: tuple[str, str],
    master: str | None,
    run: Callable[[], Result],
) -> Plan:
    """`about`: as of `Plan`."""
    lines = [line for _, offered in found.planned for line in offered.lines()]
    lines += [spark.security(master).line, *found.problems] if found.planned else found.problems
    production = any(call.production(database) for database, _ in found.planned)
    return Plan(
        Subject(job.VERB, "", "", about[1]),
        every_queue(),
        tuple(lines or [_NOTHING]),
        requires_name=found.rows > MANY_MESSAGES or production,
        run=single_step(run),
        data={
            "queues": [_of(database, offered) for database, offered in found.planned],
            "problems": found.problems,
        },
        about=about,
    )


def _of(database: Database, offered: ArchivePreview) -> dict[str, Any]:
    return {"connection": database.label, **offered.as_json()}


def _run(
    call: Call,
    found: _Queues,
    lake: Lake,
    master: str | None,
    connections: int,
    *,
    shared: bool,
) -> Result:
    if shared:
        lake.open_to_group()
    done: list[dict[str, Any]] = []
    lines: list[str] = []
    with spark.tasks(job.VERB, master) as spreading:
        for database, offered in found.planned:
            label = f"{database.label}: {offered.queue.label}"
            try:
                with progress(call, f"archive {label}", total=offered.rows) as on_progress:
                    plans = job.archive(
                        database,
                        offered,
                        lake,
                        spreading,
                        on_progress=on_progress,
                        connections=connections,
                        cores=spark.tasks_at_once(master, connections),
                    )
            except ConsoleError as error:
                found.failed(label, error)
                continue
            done.append(_of(database, offered) | {"result": total_of(plans)})
            lines += [f"{label}:", *(f"  {line}" for one in plans for line in one.lines())]
    value = {
        "queues": done,
        "problems": found.problems,
        "done": sum(one["result"]["exported"] for one in done),
    }
    return Result(Outcome.DONE, (*lines, *found.problems), data=value)


def total_of(done: Sequence[ArchiveResult]) -> dict[str, Any]:
    """All plans that a run carried out, and their totals."""
    figures = ("exported", "deleted", "in_lake_before", "files", "bytes")
    total = {figure: sum(getattr(one, figure) for one in done) for figure in figures}
    last = done[-1] if done else None
    return {
        "plan": None if last is None else last.plan,
        **total,
        "rows_per_second": {} if last is None else last.rows_per_second,
        "plans": [one.as_json() for one in done],
    }
