"""Delete finished jobs that the lake has, by the library's own rule.

A job is deleted only where a committed file has its row with every value, and only in the version
that was compared: what anybody has written to since stays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from console import sql
from console.catalog import audit, decisions
from console.catalog.audit import Ledger, Subject
from console.engines import Database
from console.engines.database import retry_transient
from console.errors import RefusedError
from console.features.lake import leases
from console.features.lake.archive import export, files
from console.features.lake.archive.finished import JobKey, Source, keys_of, lake_batches
from console.features.lake.lake import Lake
from console.features.lake.table import MessagesTable, queue_value
from console.formats import numbered, plain

VERB = "pipeline archive"
"""In the audit."""
ROUND_ROWS = 200_000
"""Compared at a time: their keys are in memory."""
BATCH = 1_000
"""Rows a transaction."""
DIFFERENT = "the lake has it with other values: it was changed after it had finished"
ABSENT = "the lake does not have it"
CHANGED = "changed or deleted by others meanwhile"


@dataclass(frozen=True)
class PrunableJobs:
    """The finished jobs that `--prune` may delete."""

    rule: str
    before: datetime
    rows: int
    """That the rule allows, whether the lake has them or not."""

    @property
    def line(self) -> str:
        return (
            f"  then deletes what {plain(self.rule)} would delete, of what the lake has: at most "
            f"{numbered(self.rows, 'job')}, finished up to {self.before:%Y-%m-%d %H:%M:%S} UTC"
        )

    def as_json(self) -> dict[str, Any]:
        return {"rule": self.rule, "before": str(self.before), "rows": self.rows}


def find(database: Database, source: Source, older: float) -> PrunableJobs:
    """`older`: seconds since a job finished, besides what the rule says. RefusedError without a
    rule."""
    of = source.queue.design
    if not of.prunes:
        raise RefusedError(
            f"Nothing can be pruned of {source.queue.name!r}.",
            why=f"No rule is known by which {of.library or of.title} deletes finished jobs itself.",
            next_step="Copy without --prune, and let the library delete them.",
        )
    with database.transaction("read the server's clock", read_only=True) as connection:
        now = sql.value(connection, datetime, "pipeline.server_time").astimezone(UTC)
    try:
        before = now - timedelta(seconds=older)
    except OverflowError:
        before = datetime.min.replace(tzinfo=UTC)
    values = {"pruned": "yes", "before": before.isoformat()}
    with export.reader(database.product.name, export.url_for_tasks(database)) as opened:
        found = opened.one(source.text(database, "finished_count", **values))
    rule = f"{of.library_name} by {of.prunes}"
    return PrunableJobs(rule, before, 0 if found is None else int(found[0]))


def prune(
    database: Database,
    source: Source,
    jobs: PrunableJobs,
    lake: Lake,
    lease: leases.RunLease,
    on_progress: Callable[[int], object],
) -> tuple[int, dict[str, int]]:
    """How many jobs were deleted, and why others stay."""
    detail = f"what {jobs.rule} deletes, and {lake.location} has"
    subject = Subject.of(database, source.queue, VERB, detail)
    subject = replace(subject, planned=jobs.rows, cutoff=jobs.before)
    with database.transaction("begin an action") as connection:
        decisions.require_unprotected(connection, subject.schema, subject.queue, "prune")
        action_id = audit.begin(connection, subject)
    outcome, deleted = "failed", 0
    try:
        while True:
            one = _Round(database, source, lake, jobs.before)
            deleted += one.delete(action_id, lease, lambda rows: on_progress(deleted + rows))  # noqa: B023
            if one.read < ROUND_ROWS or not one.held:
                break
        outcome = "done"
    except KeyboardInterrupt:
        outcome = "stopped"
        raise
    finally:
        with database.transaction("end an action") as connection:
            audit.end(connection, action_id, outcome, detail)
    return deleted, {why: count for why, count in one.kept.items() if count}


@dataclass(frozen=True)
class _Job:
    digest: bytes
    place: str
    version: str


class _Round:
    """Some of the jobs that the rule deletes, and which of them the lake has."""

    def __init__(self, database: Database, source: Source, lake: Lake, before: datetime) -> None:
        self._database = database
        self._source = source
        jobs, days = self._read(before)
        self.read = len(jobs)
        self.held: list[_Job] = []
        different = set()
        for key, digest in _in_lake(source, lake, days):
            if (job := jobs.get(key)) is None:
                continue
            if job.digest == digest:
                self.held.append(jobs.pop(key))
                different.discard(key)
            else:
                different.add(key)
        absent = len(jobs) - len(different)
        self.kept = {DIFFERENT: len(different), ABSENT: absent, CHANGED: 0}

    def _read(self, before: datetime) -> tuple[dict[JobKey, _Job], set[str]]:
        database, source = self._database, self._source
        values = {"pruned": "yes", "before": before.isoformat(), "most": str(ROUND_ROWS)}
        text = source.text(database, "finished_rows", **values)
        jobs: dict[JobKey, _Job] = {}
        days: set[str] = set()
        with export.reader(database.product.name, export.url_for_tasks(database)) as opened:
            for batch in opened.batches(text):
                rows = files.conform(batch, source.kind)
                where = [batch.column(name).to_pylist() for name in ("place", "version")]
                found = zip(_digests(rows), *where, strict=True)
                jobs |= dict(zip(keys_of(rows), (_Job(*one) for one in found), strict=True))
                days |= {str(day) for day in files.dates(rows).to_pylist()}
        return jobs, days

    def delete(
        self, action_id: int, lease: leases.RunLease, on_progress: Callable[[int], object]
    ) -> int:
        deleted = 0
        for at in range(0, len(self.held), BATCH):
            some = self.held[at : at + BATCH]
            deleted += retry_transient(lambda of=some: self._delete(action_id, lease, of))  # type: ignore[misc]
            on_progress(deleted)
        self.kept[CHANGED] = len(self.held) - deleted
        return deleted

    def _delete(self, action_id: int, lease: leases.RunLease, jobs: Sequence[_Job]) -> int:
        source, array = self._source, self._database.product.array
        with self._database.transaction("delete what the lake has") as connection:
            lease.renew(connection)
            rows = sql.value(
                connection,
                int,
                f"{source.queue.design.name}.prune",
                source.queue.scope(connection),
                locations=array([job.place for job in jobs]),
                versions=array([f"{job.place} {job.version}" for job in jobs]),
            )
            gone = len(jobs) - rows
            ledger = Ledger(len(jobs), rows, rows, {CHANGED: gone} if gone else {})
            audit.batch(connection, action_id, ledger)
        return rows


def _in_lake(source: Source, lake: Lake, days: set[str]) -> Any:
    """The key and the digest of each row of these days."""
    table = MessagesTable.open(lake)
    queue = queue_value(source.queue.schema, source.queue.name)
    files = [] if table is None else table.files(queue, source.label)
    paths = [file.path for file in files if file.date in days]
    for batch in lake_batches(lake, paths) if paths else ():
        yield from zip(keys_of(batch), _digests(batch), strict=True)


def _digests(rows: pa.RecordBatch) -> list[bytes]:
    """Of each row, of all its values."""
    columns = [
        (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
        for column in rows.columns
    ]
    return [
        hashlib.blake2b(repr(values).encode("utf-8", "surrogatepass"), digest_size=16).digest()
        for values in zip(*columns, strict=True)
    ]
