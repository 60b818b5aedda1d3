"""Expire: take days out of the lake that are older than their queue's age."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import partial

from console.catalog.audit import Subject
from console.engines import Database
from console.features.lake.maintenance.removal import (
    QueueFiles,
    final_words,
    guarded,
    removal_plan,
    subject_of,
    take_out,
)
from console.features.lake.table import MessagesTable
from console.formats import duration, megabytes, numbered, plain
from console.plan import Plan

VERB = "pipeline expire"


@dataclass(frozen=True)
class Expiring:
    """The files of a queue whose days are over."""

    of: QueueFiles
    older_seconds: float
    before: date
    """Days before this one (UTC) are taken out."""

    @property
    def size(self) -> int:
        return sum(file.size for file in self.of.files)


@dataclass(frozen=True)
class OldDays:
    """The days of a lake that are over, by queue."""

    table: MessagesTable
    queues: Sequence[Expiring]
    own: str
    """The connection at hand."""

    @property
    def final(self) -> list[str]:
        return final_words((queue.of.connection for queue in self.queues), self.own)

    @property
    def rows(self) -> int:
        return sum(queue.of.rows for queue in self.queues)


def plan(database: Database, days: OldDays, *, production: bool) -> Plan:
    lake = days.table.lake.location
    lines = [f"{VERB}: takes {numbered(days.rows, 'row')} out of {plain(lake)}"]
    lines += [
        f"  {plain(expiring.of.label)} of {plain(expiring.of.connection)}: "
        f"{numbered(expiring.of.rows, 'row')} of {numbered(len(_days(expiring)), 'day')} before "
        f"{expiring.before} ({duration(expiring.older_seconds)}), {megabytes(expiring.size)}"
        for expiring in days.queues
    ]
    data = {
        "verb": VERB,
        "lake": lake,
        "rows": days.rows,
        "queues": [
            {
                "connection": expiring.of.connection,
                "schema": expiring.of.schema,
                "queue": expiring.of.queue,
                "before": str(expiring.before),
                "rows": expiring.of.rows,
                "days": len(_days(expiring)),
                "files": len(expiring.of.files),
                "bytes": expiring.size,
            }
            for expiring in days.queues
        ],
    }
    lines += days.final if days.queues else []
    queues = [expiring.of for expiring in days.queues]
    take = partial(expire, database, days)
    subject = Subject(VERB, "", "", database.label)
    return removal_plan(subject, lines, take, data, days.rows, queues, production=production)


def _days(expiring: Expiring) -> set[str]:
    return {file.date for file in expiring.of.files}


def find(
    table: MessagesTable,
    queues: Sequence[QueueFiles],
    older: Callable[[QueueFiles], float | None],
    own: str,
) -> OldDays:
    """`older`: the age in seconds, None: the queue is left alone."""
    expirings: list[Expiring] = []
    for queue in queues:
        if (seconds := older(queue)) is None:
            continue
        before = _day_before(seconds)
        files = tuple(file for file in queue.files if file.date < str(before))
        if files:
            expirings.append(Expiring(replace(queue, files=files), seconds, before))
    return OldDays(table, expirings, own)


def _day_before(seconds: float) -> date:
    try:
        return (datetime.now(UTC) - timedelta(seconds=seconds)).date()
    except OverflowError:
        return date.min


def expire(database: Database, days: OldDays) -> list[str]:
    """Queue by queue, each a commit with its audit. What was done, in lines."""
    table, lines = days.table, []
    with guarded(database, [queue.of for queue in days.queues]):
        for expiring in days.queues:
            detail = f"days before {expiring.before} out of {table.lake.location}"
            subject = subject_of(VERB, expiring.of, database, expiring.of.rows, detail)
            paths = [file.path for file in expiring.of.files]
            take_out(database, table, subject, partial(table.exchange, paths, []))
            lines.append(f"{expiring.of.label}: {numbered(expiring.of.rows, 'row')} taken out")
    return [*lines, *days.final]
