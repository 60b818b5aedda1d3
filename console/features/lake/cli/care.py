"""Care of a lake: compact, expire, erase, lake. Without Spark."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from console.catalog.audit import Outcome
from console.cli.context import Call, aligned
from console.cli.planned import carry_out
from console.errors import UsageError
from console.features.history.rollup_files import default_lake
from console.features.lake.cli.progress import LaunchedJob, about, job, progress
from console.formats import bare_moment, megabytes, plain
from console.plan import Result
from console.verbs.parameters import Parameter

if TYPE_CHECKING:
    from console.features.lake.lake import Lake
    from console.features.lake.maintenance.contents import LakeContents
    from console.features.lake.maintenance.removal import QueueFiles
    from console.features.lake.table import MessagesTable


_QUEUES = Parameter(
    "queue", "Only this queue; repeatable.", multiple=True, metavar="Q", dest="queues"
)


def _opened(lake: str | None) -> "Lake":
    from console.features.lake.lake import Lake  # noqa: PLC0415  # slow to import

    opened = Lake(lake or default_lake())
    about(lake=opened.location)
    return opened


def _table(lake: str | None) -> "MessagesTable":
    """UsageError where the lake has none."""
    from console.features.lake.table import MessagesTable, no_table  # noqa: PLC0415  # slow to import

    opened = _opened(lake)
    if (table := MessagesTable.open(opened)) is None:
        raise no_table(opened)
    return table


@job("lake", kind=LaunchedJob)
def show_lake(call: Call, lake: str | None) -> None:
    """Show what a lake has: queues, rows, days, files to compact, the last plan.

    \b
    Examples:
      dbq-console pipeline lake
      dbq-console pipeline lake --lake /srv/lake --json
    """
    from console.features.lake.maintenance.contents import contents  # noqa: PLC0415  # slow to import

    opened = _opened(lake)
    found = contents(opened)
    value = {
        "lake": opened.location,
        "tables": [table.as_json() for table in found.tables],
        "queues": [queue.as_json() for queue in found.queues],
    }
    call.answer(value, [f"{opened.location}:", *_lines(call, found)])


def _lines(call: Call, lake_contents: "LakeContents") -> list[str]:
    of_tables = ("table", "rows", "files", "size")
    tables = [
        (
            table_contents.name,
            f"{table_contents.rows:,}",
            f"{table_contents.files:,}",
            megabytes(table_contents.size),
        )
        for table_contents in lake_contents.tables
    ]
    lines = aligned([of_tables, *tables], left=1)
    if not lake_contents.queues:
        return lines
    head = ("connection", "queue", "first day", "last day", "last plan")
    figures = ("rows", "days", "size", "files", "to compact")
    cells = [
        (
            plain(queue_contents.of.connection),
            plain(queue_contents.of.label),
            queue_contents.days[0],
            queue_contents.days[-1],
            ""
            if queue_contents.last_plan_at is None
            else bare_moment(queue_contents.last_plan_at, call.zone),
            f"{queue_contents.of.rows:,}",
            f"{len(queue_contents.days):,}",
            megabytes(queue_contents.size),
            f"{len(queue_contents.of.files):,}",
            f"{queue_contents.to_compact:,}",
        )
        for queue_contents in lake_contents.queues
    ]
    return [*lines, "", *aligned([(*head, *figures), *cells], left=5)]


@job("compact")
def compact(call: Call, lake: str | None, keep: float, yes: str | None, *, dry_run: bool) -> None:
    """Merge a lake's small files, and remove those that nobody reads any more.

    Rows stay as they are. What expire and erase took out is gone for good once their files are
    removed. Files that killed runs left are removed after 7 days.

    \b
    Examples:
      dbq-console pipeline compact --dry-run
      dbq-console pipeline compact --lake s3://bucket/lake --yes
    """
    from console.features.lake.maintenance import compact as job  # noqa: PLC0415  # slow to import

    opened = _opened(lake)
    small = job.find(opened, keep)

    def run() -> Result:
        with progress(call, "compact", "files") as on_progress:
            done = job.compact(
                small,
                lambda files, rows: on_progress(
                    "merge", done=files, of=small.files, rows=rows, size=0
                ),
            )
        return Result(Outcome.DONE, tuple(done.lines()), done=done.merged, data=done.as_json())

    carry_out(call, job.plan(small, run), yes, dry_run=dry_run)


@job("expire", _QUEUES)
def expire(
    call: Call,
    *,
    lake: str | None,
    source: str | None,
    queues: Sequence[str],
    older: float | None,
    yes: str | None,
    dry_run: bool,
) -> None:
    """Take days out of a lake that are older than their queue keeps them.

    Of the connection's queues, or of those given. Whole days in UTC, by when their messages were
    archived. They are gone for good once pipeline compact has removed their files.

    \b
    Examples:
      dbq-console pipeline expire --older 2y --dry-run
      dbq-console pipeline expire --older 90d --queue mail --yes mail
    """
    from console.features.lake.maintenance import expire as job  # noqa: PLC0415  # slow to import
    from console.features.lake.maintenance.removal import selected  # noqa: PLC0415

    database = call.database(job.VERB)
    table = _table(lake)
    about(database=database)
    found = selected(table, source or database.label, call.schema, queues)

    def age(one: "QueueFiles") -> float | None:
        return call.expires_after(one.queue) if older is None else older

    days = job.find(table, found, age, database.label)
    if older is None and not any(call.expires_after(one.queue) for one in found):
        raise UsageError(
            "Nothing says how long messages are kept.",
            next_step='Give --older T, or set expire = "2y" for a queue or its connection in the '
            "configuration.",
        )
    plan = job.plan(database, days, production=call.production(database))
    carry_out(call, plan, yes, dry_run=dry_run or not days.rows)


@job("erase", _QUEUES, private=("--filter",))
def erase(
    call: Call,
    *,
    lake: str | None,
    source: str | None,
    queues: Sequence[str],
    ids: Sequence[str],
    words: Sequence[str],
    yes: str | None,
    dry_run: bool,
) -> None:
    """Take single messages, or all about somebody, out of a lake.

    Of the connection's queues, or of those given. Every file is searched; those with such messages
    are written again without them. They are gone for good once pipeline compact has removed the
    old files. The audit keeps texts of error, title and payload as SHA-256 only.

    \b
    Examples:
      dbq-console pipeline erase --queue mail --id 4711 --dry-run
      dbq-console pipeline erase --filter 'payload~"customer": 42}' --yes
    """
    from console.features.lake.filters import parse_filters  # noqa: PLC0415  # slow to import
    from console.features.lake.maintenance import erase as job  # noqa: PLC0415
    from console.features.lake.maintenance.removal import guarded, selected  # noqa: PLC0415

    filters = parse_filters([*(f"id={one}" for one in ids), *words])
    if not filters:
        raise UsageError("erase needs --id or --filter.")
    if any(one.is_id for one in filters) and len(queues) != 1:
        raise UsageError("An id is of one queue.", next_step="Name it with --queue.")
    database = call.database(job.VERB)
    table = _table(lake)
    about(database=database)
    found = selected(table, source or database.label, call.schema, queues)
    with progress(call, "erase", "files") as on_progress:
        matching = job.find(
            table,
            filters,
            found,
            database.label,
            lambda done, of, rows: on_progress("search", done=done, of=of, rows=rows, size=0),
        )
    if not matching.rows and not dry_run:
        # What a run is about to bring is not in the table yet.
        with guarded(database, found):
            pass
    plan = job.plan(database, matching, production=call.production(database))
    carry_out(call, plan, yes, dry_run=dry_run or not matching.rows)
