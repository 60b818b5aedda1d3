"""Verbs of the pipeline. archive, rollup, replay and verify have Spark in this process."""

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date
from typing import TYPE_CHECKING, Any

from console.catalog.audit import Outcome
from console.cli.command import FLEET, GROUP, NAME, OPTIONAL_NAME
from console.cli.context import Call
from console.cli.planned import carry_out
from console.designs import Order
from console.errors import ConsoleError, UsageError
from console.features.history.forecast_files import name_of, zone_named
from console.features.history.recorder import folder
from console.features.history.rollup_files import default_lake
from console.features.lake.cli.progress import about, job, progress
from console.plan import Result
from console.verbs.parameters import Parameter

if TYPE_CHECKING:
    from console.features.lake.rollup.job import Days


@job("rollup")
def rollup(
    call: Call,
    recordings: Sequence[str],
    lake: str | None,
    shared: bool,
    days: str | None,
    zone: str | None,
    master: str | None,
) -> None:
    """Aggregate recordings by minute, hour and day, and compute a forecast.

    A day is computed from all its segments and replaces that day in the lake; days without new
    data, or with segments deleted since, are kept. Percentiles are within 1 % of the value at their
    rank, for hours and days as for minutes. The forecast of each hour of the week is based on the
    last 8 weeks, at least 3: history --forecast shows it.

    \b
    Examples:
      dbq-console pipeline rollup
      dbq-console pipeline rollup --recordings /srv/a --recordings /srv/b --lake /srv/lake
      dbq-console pipeline rollup --days 2026-03-28..2026-03-29
    """
    from console.features.lake.lake import Lake  # noqa: PLC0415  # slow to import
    from console.features.lake.rollup import job  # noqa: PLC0415
    from console.features.lake.spark import tasks  # noqa: PLC0415

    zone_of = _zones(call, zone)
    opened = Lake(lake or default_lake())
    about(lake=opened.location)
    if shared:
        opened.open_to_group()
    with progress(call, "rollup", "days") as on_progress:
        result = job.rollup(
            lambda: tasks("rollup", master),
            opened,
            list(recordings) or [str(folder())],
            None if days is None else _days(days),
            on_progress=on_progress,
            zone_of=zone_of,
        )
    call.answer(result.as_json(), result.lines())


def _zones(call: Call, zone: str | None) -> Callable[[str], str]:
    """From a connection's label to the name of its time zone."""
    if zone is not None:
        try:
            zone_named(zone)
        except ValueError as error:
            raise UsageError(f"{zone!r} is not a time zone.", why=str(error)) from error
        return lambda _: zone
    known = {} if call.profile is None else {call.profile.label: call.zone}
    with suppress(ConsoleError):  # recordings outlive their configuration
        known |= {
            profile.label: profile.display_zone
            for profile in call.configuration.profiles(call.command_line)
        }
    return lambda connection: name_of(known.get(connection, UTC))


def _days(text: str) -> "Days":
    from console.features.lake.rollup.job import Days  # noqa: PLC0415

    first, _, last = text.partition("..")
    try:
        days = Days(date.fromisoformat(first), date.fromisoformat(last or first))
    except ValueError as error:
        raise UsageError(
            f"{text!r} is not a day or a range of days.",
            why=str(error),
            next_step="Examples: 2026-03-28, 2026-03-01..2026-03-31.",
        ) from error
    if days.last < days.first:
        raise UsageError(f"{text!r}: the last day is before the first.")
    return days


@job("verify", OPTIONAL_NAME)
def verify(  # noqa: PLR0913  # a verb's options
    call: Call,
    *,
    name: str | None,
    push_log: str | None,
    pop_log: str | None,
    lake: str | None,
    source: str | None,
    order: str | None,
    left: int,
    master: str | None,
) -> None:
    """Compare logs of pushes and pops: lost, doubled, damaged, out of order.

    Logs are Parquet, .csv with a header or .jsonl, with the columns id, number, at, due_at,
    checksum, of which only id is required; number rises with each push, in a log of pops with each
    pop. Without --pop-log, the pops that archive_at_pop brought into the lake are used. Exit 1: a
    guarantee of the design is broken.

    \b
    Examples:
      dbq-console pipeline verify --push-log pushed.parquet --pop-log popped.parquet --order strict
      dbq-console pipeline verify orders --lake /srv/lake --push-log pushed/
    """
    if pop_log is None and name is None:
        raise UsageError("verify needs a --pop-log, or the NAME of a queue with pops in a lake.")
    from console.features.lake import verify as job  # noqa: PLC0415
    from console.features.lake.frames import read_archive  # noqa: PLC0415
    from console.features.lake.lake import Lake  # noqa: PLC0415  # slow to import
    from console.features.lake.spark import session  # noqa: PLC0415
    from console.features.lake.table import find_archive  # noqa: PLC0415

    promised = _order(call, name, order)
    opened = None if pop_log is not None else Lake(lake or default_lake())
    of = None if opened is None else find_archive(opened, source, call.schema, name or "")
    about(lake="" if opened is None else opened.location)
    with session("verify", master) as spark:
        pushes = None if push_log is None else job.read_log(spark, push_log)
        if opened is not None and of is not None:
            pops = job.pops_of_archive(
                read_archive(spark, opened, of, job.ARCHIVE_COLUMNS), numbered=pushes is None
            )
        else:
            pops = job.read_log(spark, str(pop_log))
        found = job.verify(spark, pushes, pops, promised, left=left)
    call.answer(found.as_json(), found.lines())
    if found.broken:
        sys.exit(1)


def _order(call: Call, name: str | None, order: str | None) -> Order:
    """The guaranteed order: the option's, or the queue's."""
    if order is not None:
        return Order(order)
    if name is None or call.profile is None:
        raise UsageError(
            "The guaranteed order is not known.",
            next_step="Give it with --order, or name the queue and its database.",
        )
    database = call.database("pipeline verify")
    about(database=database)
    queue = call.find(database, name)
    return queue.design.order_with(queue.options)


@job("replay", NAME, private=("--filter",))
def replay(  # noqa: PLR0913  # a verb's options
    call: Call,
    *,
    name: str,
    lake: str | None,
    source: str | None,
    to: str | None,
    words: Sequence[str],
    master: str | None,
    yes: str | None,
    dry_run: bool,
) -> None:
    """Push archived messages from a lake into a queue again, each once, even if interrupted.

    They are pushed in the archive's order, as new messages. Popped or done messages were delivered,
    so they are included only by --filter reason=pop or state=done. A second run repeats none.

    \b
    Examples:
      dbq-console pipeline replay mail --lake /srv/lake --filter 'error~time-out' --dry-run
      dbq-console pipeline replay mail --lake /srv/lake --filter since=2026-03-28 --yes mail
    """
    from console.features.lake import frames as selection  # noqa: PLC0415
    from console.features.lake import replay as job  # noqa: PLC0415
    from console.features.lake.filters import parse_filters  # noqa: PLC0415
    from console.features.lake.lake import Lake  # noqa: PLC0415  # slow to import
    from console.features.lake.spark import security, session  # noqa: PLC0415
    from console.features.lake.table import find_archive  # noqa: PLC0415

    filters = parse_filters(words)
    database = call.database(job.VERB)
    queue = call.find(database, to or name)
    opened = Lake(lake or default_lake())
    about(database=database, queue=queue.name, lake=opened.location)
    of = find_archive(opened, source, call.schema, name)
    job.require_target(queue)
    with session(f"replay {name}", master) as spark:
        meant = selection.matching(selection.read_archive(spark, opened, of), filters)
        found = job.find(queue, opened, of, words, meant)

        def run() -> Result:
            rows = selection.in_archive_order(selection.with_message_key(meant)).toLocalIterator(
                prefetchPartitions=True
            )
            with progress(call, f"replay {name}", "messages") as on_progress:
                done = job.replay(
                    database,
                    found,
                    rows,
                    on_progress=lambda n: on_progress(
                        "push", done=n, of=found.count, rows=n, size=0
                    ),
                )
            lines = tuple(done.lines())
            return Result(Outcome.DONE, lines, done=done.pushed, data=done.as_json())

        production = call.production(database)
        plan = job.plan(database, found, run, security(master), production=production)
        carry_out(call, plan, yes, dry_run=dry_run or not found.count)


@job(
    "archive",
    OPTIONAL_NAME,
    Parameter(
        "all",
        "All queues of the connection, each by its `archive` in the configuration.",
        is_flag=True,
        dest="all_queues",
    ),
    replace(GROUP, help="All queues of this group's connections."),
    replace(FLEET, help="All queues of this fleet's connections."),
    Parameter("copy", "Of a library's queue: copy its finished jobs.", is_flag=True, dest="copies"),
    Parameter(
        "prune",
        "With --copy: then delete copied jobs that the library would delete itself.",
        is_flag=True,
    ),
)
def archive(  # noqa: PLR0913  # a verb's options
    call: Call,
    *,
    name: str | None,
    all_queues: bool,
    group: str | None,
    fleet: str | None,
    lake: str | None,
    shared: bool,
    master: str | None,
    connections: int,
    cancel: bool,
    copies: bool,
    prune: bool,
    yes: str | None,
    dry_run: bool,
    **ages: Any,
) -> None:
    """Drain a queue's archive into a Delta Lake table: written, read back, and only then deleted.

    Rows are reserved first: restore leaves those alone. If it is interrupted anywhere, the next run
    continues; nothing is lost or stored twice. Done messages of a queue go into its archive with
    the verb archive. Any engine that knows Delta Lake reads the table `messages` of the lake.

    --copy takes the finished jobs of an adopted library's queue instead, each once over all runs,
    and deletes nothing; --prune deletes those of them that the library itself would, by its rule.

    \b
    Examples:
      dbq-console pipeline archive jobs --lake /srv/lake --dry-run
      dbq-console pipeline archive jobs --lake /srv/lake --older 1d --yes jobs
      dbq-console pipeline archive --all --lake /srv/lake --yes
      dbq-console pipeline archive --fleet shops --lake s3://bucket/lake --yes shops
      dbq-console pipeline archive oban --copy --lake /srv/lake
    """
    several = all_queues or group is not None or fleet is not None
    if several == (name is not None) or (several and cancel):
        raise UsageError(
            "archive takes the name of a queue, or --all, --group or --fleet.",
            why="--cancel is for one queue." if cancel else "",
        )
    if (prune and not copies) or (copies and (several or cancel)):
        raise UsageError("--prune goes with --copy, and --copy with the name of one queue.")
    from console.features.lake.archive import job  # noqa: PLC0415
    from console.features.lake.cli import archiving  # noqa: PLC0415
    from console.features.lake.lake import Lake  # noqa: PLC0415  # slow to import

    opened = Lake(lake or default_lake())
    how = archiving.Archiving(call, opened, master, connections, shared)
    if name is None:
        about(lake=opened.location)
        archiving.archive_all(how, ages, group=group, fleet=fleet, yes=yes, dry_run=dry_run)
        return
    database = call.database(job.VERB)
    queue = call.find(database, name)
    about(database=database, lake=opened.location)
    if copies:
        older = (ages["older"] or 0.0) if prune else None
        archiving.copy_jobs(how, database, queue, older, yes, dry_run=dry_run)
    elif cancel:
        plan = job.plan_cancel(database, queue, opened, production=call.production(database))
        carry_out(call, plan, yes, dry_run=dry_run)
    else:
        if ages["older"] is None:
            ages["older"] = call.archived_after(queue.name) or 0.0
        archiving.archive(how, database, queue, ages, yes, dry_run=dry_run)
