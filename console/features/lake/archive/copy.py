"""Copy the finished jobs of a library's tables into the lake; nothing is deleted here.

Jobs finish in any order, and those of an open transaction are there only once it commits, with a
time since its beginning. So a run reads all that finished since the last run's oldest transaction
began, less OVERLAP_SECONDS for the clocks of clients, and leaves out what the table has already, by
id, attempt and time of finishing. That moment is in the table, set by the commit of the rows.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset

from console import sql
from console.catalog import Queue
from console.catalog.audit import Subject
from console.errors import RefusedError
from console.features.lake import leases
from console.features.lake.archive import export, files, prune
from console.features.lake.archive.export import Export, TaskReader
from console.features.lake.archive.files import conform
from console.features.lake.archive.finished import (
    ALWAYS,
    EPOCH,
    JobKey,
    Source,
    keys_of,
    lake_batches,
    source_of,
)
from console.features.lake.archive.prune import PrunableJobs
from console.features.lake.lake import DamagedError, Lake
from console.features.lake.progress import PhaseProgress, no_progress
from console.features.lake.table import MessagesTable, queue_value
from console.formats import duration, numbered, plain
from console.plan import Plan, Result, job_plan

if TYPE_CHECKING:
    from console.engines import Database
    from console.features.lake.spark import Item, Security, Tasks

dataset: Any = pyarrow.dataset

VERB = "pipeline archive --copy"


@dataclass(frozen=True)
class FinishedJobs:
    """What a run would read of a library's queue, and delete."""

    source: Source
    lake: str
    since: str
    rows: int
    detached: int = 0
    """Former partitions that are read as a whole."""
    prune: PrunableJobs | None = None
    """None: nothing is deleted."""

    @property
    def queue(self) -> Queue:
        return self.source.queue


def plan(
    database: Database,
    jobs: FinishedJobs,
    run: Callable[[], Result],
    spark: Security,
    *,
    production: bool,
) -> Plan:
    """Of what it deletes, many need the name."""
    queue, since, pruned = jobs.queue, jobs.since, jobs.prune
    table = plain(f"{queue.schema}.{queue.table}")
    lines = [
        f"{VERB} {plain(queue.label)}: {numbered(jobs.rows, 'finished job')} of {table} in "
        f"{plain(jobs.source.label)} into {plain(jobs.lake)}"
    ]
    if since != ALWAYS:
        lines.append(f"  finished since {since[:19]} UTC; those in the lake are left out")
    if jobs.detached:
        lines.append(f"  and {numbered(jobs.detached, 'detached partition')}, each as a whole")
    lines += ["  nothing is deleted" if pruned is None else pruned.line, f"  {spark.line}"]
    data = {
        "verb": VERB,
        "queue": queue.name,
        "schema": queue.schema,
        "table": queue.table,
        "lake": jobs.lake,
        "since": None if since == ALWAYS else since,
        "rows": jobs.rows,
        "detached": jobs.detached,
        "prune": None if pruned is None else pruned.as_json(),
        "spark": spark.as_json(),
    }
    subject, count = Subject.of(database, queue, VERB), 0 if pruned is None else pruned.rows
    return job_plan(subject, lines, run, data, queue=queue, rows=count, production=production)


@dataclass(frozen=True)
class _Oldest:
    began_at: datetime | None


@dataclass
class CopyResult:
    exported: int = 0
    in_lake_before: int = 0
    files: int = 0
    bytes: int = 0
    size: int = 0
    until: str | None = None
    """The next run reads from here, less the overlap; null: all again."""
    held_back: str = ""
    """Why it is not later."""
    deleted: int | None = None
    """None: it was not asked for."""
    kept: dict[str, int] = field(default_factory=dict)
    """Why rows were not deleted that the library's rule allows."""
    next_step: str = ""
    """For those that the lake lacks."""
    seconds: dict[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "seconds": {k: round(v, 3) for k, v in self.seconds.items()}}

    def lines(self) -> list[str]:
        phases = ", ".join(f"{name} {duration(took)}" for name, took in self.seconds.items())
        read = self.exported + self.in_lake_before
        lines = [
            f"copied {self.exported:,} of {read:,} finished jobs read, the others were in the "
            f"lake; {self.files:,} files, {self.bytes:,} bytes of payload",
            f"  {phases}",
        ]
        if self.held_back:
            lines.append(f"  the next run reads {self.until or 'all'} again: {self.held_back}")
        if self.deleted is not None:
            lines.append(f"  deleted {self.deleted:,} jobs that the lake has")
            lines += [f"  left {count:,}: {why}" for why, count in self.kept.items()]
            lines += [f"  {self.next_step}"] if self.next_step else []
        return lines


def find(database: Database, queue: Queue, lake: Lake, older: float | None = None) -> FinishedJobs:
    """What a run would read, and with `older` delete: what finished so many seconds ago. Nothing is
    written."""
    source = source_of(database, queue)
    table = MessagesTable.open(lake)
    since = source.since(table)
    counts = [{"since": since}, *({"only": name} for name in source.left(table))]
    texts = [source.text(database, "finished_count", **values) for values in counts]
    with export.reader(database.product.name, export.url_for_tasks(database)) as opened:
        found = [opened.one(text) for text in texts]
    rows = sum(int(one[0]) for one in found if one is not None)
    pruned = None if older is None else prune.find(database, source, older)
    return FinishedJobs(source, lake.location, since, rows, len(counts) - 1, pruned)


def copy(
    database: Database,
    jobs: FinishedJobs,
    lake: Lake,
    tasks: Tasks,
    *,
    on_progress: PhaseProgress = no_progress,
) -> CopyResult:
    """Then prune, if it is wanted. RefusedError where another run is working on the queue."""
    queue = jobs.queue
    name = leases.lease_name("run", queue)
    with leases.held(database, name, leases.already_running(queue)) as lease:
        result = _Copy(database, jobs.source, lake, lease, on_progress).run(tasks)
        if jobs.prune is not None:
            began = time.monotonic()
            result.deleted, result.kept = prune.prune(
                database,
                jobs.source,
                jobs.prune,
                lake,
                lease,
                lambda rows: on_progress("delete", done=0, of=1, rows=rows, size=0),
            )
            result.seconds["delete"] = time.monotonic() - began
            if prune.ABSENT in result.kept:
                words = f"{shlex.quote(queue.name)} --copy --lake {shlex.quote(lake.location)}"
                result.next_step = (
                    "A further run copies what was committed since this one read the table: "
                    f"dbq-console pipeline archive {words} What the lake lacks then was "
                    "taken out of it (expire, erase), or written more than an hour after its time "
                    "of finishing: only its library deletes that."
                )
    return result


class _Copy:
    """One run: read, write, verify, commit."""

    def __init__(
        self,
        database: Database,
        source: Source,
        lake: Lake,
        lease: leases.RunLease,
        on_progress: PhaseProgress,
    ) -> None:
        self._database = database
        self._source = source
        self._lake = lake
        self._lease = lease
        self._on_progress = on_progress
        self._result = CopyResult()

    def run(self, tasks: Tasks) -> CopyResult:
        result = self._result
        table = MessagesTable.open(self._lake) or MessagesTable.create(self._lake)
        # Before the rows are read: what commits later began, at the earliest, then.
        until = self._until(table)
        began = time.monotonic()
        progress = partial(self._on_progress, "export")
        left = self._source.left(table)
        items = [
            self._item(table, self._source.since(table)),
            *(self._item(table, ALWAYS, only=name) for name in left),
        ]
        done = tasks.run(copy_rows, items, progress, at_once=1)
        result.seconds["export"] = time.monotonic() - began
        result.in_lake_before = sum(one["held"] for one in done)
        if found := [entry for one in done for entry in one["files"]]:
            self._verify(found, tasks)
        if found or left:
            self._commit(table, found, until, left)
        return result

    def _until(self, table: MessagesTable) -> int:
        """Of what finished up to here nothing is still to come: microseconds; 0: not known."""
        with self._database.transaction("read its transactions", read_only=True) as connection:
            began = sql.row(connection, _Oldest, "copy.oldest_transaction").began_at
            prepared = sql.value(connection, int, "copy.prepared_transactions")
        before = table.last_serial(f"{self._source.application}/until")
        if began is None:
            self._result.held_back = (
                "this login does not see since when others' transactions are open; it needs "
                "GRANT pg_read_all_stats"
            )
        elif prepared:
            self._result.held_back = (
                f"{numbered(prepared, 'prepared transaction')} may have finished jobs at any time"
            )
        until = before if began is None or prepared else max(before, _micros(began))
        if until:
            self._result.until = f"{EPOCH + timedelta(microseconds=until):%Y-%m-%d %H:%M:%S} UTC"
        return until

    def _item(self, table: MessagesTable, since: str, **only: str) -> Item:
        source, database = self._source, self._database
        queue = queue_value(source.queue.schema, source.queue.name)
        serial = table.last_serial(source.application) + 1
        dates = [("", "~")]
        if since != ALWAYS:
            dates = [(since[:10], "~"), *[(f"{EPOCH:%Y-%m-%d}",) * 2] * (since[:4] > "1970")]
        paths = {file.path for of in dates for file in table.files(queue, source.label, of)}
        return {
            "engine": database.product.name,
            "url": export.url_for_tasks(database),
            "lake": self._lake.location,
            "connection": source.label,
            "queue": queue,
            "stem": f"copy-{source.database.split('/')[2][:8]}-{serial:06}",
            "kind": source.kind,
            "since": since,
            "rows": source.text(database, "finished_rows", since=since, **only),
            "keys": source.text(database, "finished_rows", since=since, what="keys", **only),
            "held_in": sorted(paths),
        }

    def _verify(self, entries: Sequence[Mapping[str, Any]], tasks: Tasks) -> None:
        began = time.monotonic()
        items = [{"lake": self._lake.location, "files": [dict(entry)]} for entry in entries]
        found = tasks.run(files.verify, items, partial(self._on_progress, "verify"))
        self._result.seconds["verify"] = time.monotonic() - began
        if wrong := [why for one in found for why in one["wrong"]]:
            raise DamagedError(
                f"{len(wrong)} of {len(entries)} files are not in the lake as they were written.",
                why=str(wrong[0]),
                next_step="Nothing was committed. Check the lake's disk, then run it again.",
            )

    def _commit(
        self,
        table: MessagesTable,
        entries: Sequence[dict[str, Any]],
        until: int,
        detached: Sequence[str],
    ) -> None:
        self._lease.require()
        application = self._source.application
        serial = table.last_serial(application) + 1
        versions = {f"{application}/until": until} if until else {}
        versions |= {self._source.detached_application(name): 1 for name in detached}
        if not table.commit(application, serial, entries, self._source.described, versions):
            raise RefusedError(
                f"Another run has copied {self._source.queue.name!r} into the lake meanwhile.",
                why="A copy of this database, or of this run, writes into the same lake.",
                next_step="Nothing was doubled. Run it again: it goes on from there.",
            )
        result = self._result
        result.exported = sum(entry["rows"] for entry in entries)
        result.files = len(entries)
        result.bytes = sum(entry["bytes"] for entry in entries)
        result.size = sum(entry["size"] for entry in entries)


def _micros(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


# -- the task


def copy_rows(item: Item) -> dict[str, Any]:
    """The task: writes files of the rows that the lake lacks; `held`: how many it has."""
    with export.reader(item["engine"], item["url"]) as source:
        held = _held(item, source)
        before = 0

        def new() -> Iterator[pa.RecordBatch]:
            nonlocal before
            for batch in source.batches(item["rows"]):
                rows = batch
                if held:
                    lacks = pa.array([key not in held for key in keys_of(batch)], pa.bool_())
                    rows = batch.filter(lacks)
                before += batch.num_rows - rows.num_rows
                if rows.num_rows:
                    yield conform(rows, item["kind"])

        done = Export(item).run(new())
    return {**done, "held": before}


def _held(item: Item, source: TaskReader) -> set[JobKey]:
    """Those of the finished jobs that the lake has. As many are in memory as finished since."""
    if not item["held_in"]:
        return set()
    here = {key for batch in source.batches(item["keys"]) for key in keys_of(batch)}
    lake = Lake(item["lake"])
    return {
        key
        for batch in lake_batches(lake, item["held_in"], ["id", "attempts", "archived_at"])
        for key in keys_of(batch)
        if key in here
    }
