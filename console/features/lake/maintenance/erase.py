"""Erase: take single messages out of the lake, by id or filter; other rows stay as they are."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from console.catalog.audit import Subject
from console.engines import Database
from console.features.lake.filters import ArchiveFilter, matches
from console.features.lake.maintenance.removal import (
    QueueFiles,
    final_words,
    guarded,
    queues_of,
    removal_plan,
    subject_of,
    take_out,
)
from console.features.lake.maintenance.rewrite import at_once, changed_meanwhile, read, rewrite
from console.features.lake.table import LakeFile, MessagesTable
from console.formats import numbered, plain
from console.plan import Plan

VERB = "pipeline erase"
OnFile = Callable[[int, int, int], object]
"""Gets the files done, their number, and the rows searched."""


@dataclass(frozen=True)
class MatchingRows:
    """The rows of a lake that match, by file."""

    table: MessagesTable
    filters: tuple[ArchiveFilter, ...]
    queues: Sequence[QueueFiles]
    """All that was searched."""
    found: dict[str, int]
    """By path: rows that match, of the files that have any."""
    own: str
    """The connection at hand."""

    @property
    def final(self) -> list[str]:
        return final_words((queue.connection for queue in self.queues if self.of(queue)), self.own)

    @property
    def rows(self) -> int:
        return sum(self.found.values())

    def of(self, queue: QueueFiles) -> int:
        """Rows of this queue."""
        return sum(self.found.get(file.path, 0) for file in queue.files)


def plan(database: Database, matching: MatchingRows, *, production: bool) -> Plan:
    words = plain(" ".join(archive_filter.word for archive_filter in matching.filters))
    files = sum(len(queue.files) for queue in matching.queues)
    having = [(queue, rows) for queue in matching.queues if (rows := matching.of(queue))]
    lake = matching.table.lake.location
    lines = [
        f"{VERB}: {numbered(matching.rows, 'row')} of {plain(lake)} that match "
        f"{words}; {numbered(files, 'file')} searched, {len(matching.found):,} are written again"
    ]
    lines += [
        f"  {plain(queue.label)} of {plain(queue.connection)}: {numbered(rows, 'row')}"
        for queue, rows in having
    ]
    if matching.rows:
        lines += [
            *matching.final,
            "  what a database still has of them stays there (purge), and the copy of a library's "
            "queue brings it back",
        ]
    data = {
        "verb": VERB,
        "lake": lake,
        "filters": [archive_filter.word for archive_filter in matching.filters],
        "rows": matching.rows,
        "queues": [
            {
                "connection": queue.connection,
                "schema": queue.schema,
                "queue": queue.queue,
                "rows": matching.of(queue),
            }
            for queue in matching.queues
        ],
    }
    queues = [queue for queue, _ in having]
    take = partial(erase, database, matching)
    subject = Subject(VERB, "", "", database.label)
    return removal_plan(subject, lines, take, data, matching.rows, queues, production=production)


def find(
    table: MessagesTable,
    filters: Sequence[ArchiveFilter],
    queues: Sequence[QueueFiles],
    own: str,
    on_progress: OnFile = lambda *_: None,
) -> MatchingRows:
    """Searches every file of the queues. DamagedError for one that cannot be read."""
    files = [file for queue in queues for file in queue.files]
    match = _search(table, filters, files, on_progress)
    return MatchingRows(table, tuple(filters), queues, match, own)


def _search(
    table: MessagesTable,
    filters: Sequence[ArchiveFilter],
    files: Sequence[LakeFile],
    on_progress: OnFile,
) -> dict[str, int]:
    def count(file: LakeFile) -> int:
        return sum(matches(batch, filters).true_count for batch in read(table.lake, file))

    search: dict[str, int] = {}
    searched = 0
    with at_once(table.lake) as threads:
        for at, (file, rows) in enumerate(zip(files, threads.map(count, files), strict=True), 1):
            if rows:
                search[file.path] = rows
            searched += file.rows
            on_progress(at, len(files), searched)
    return search


def erase(database: Database, matching: MatchingRows) -> list[str]:
    """Queue by queue, each a commit with its audit. What was done, in lines."""
    lines: list[str] = []
    with guarded(database, matching.queues):
        matching = _again(matching)
        for queue in matching.queues:
            if rows := matching.of(queue):
                _erase_of(database, matching, queue, rows)
                lines.append(f"{queue.label}: {numbered(rows, 'row')} erased")
    return [*lines, *matching.final]


def _again(matching: MatchingRows) -> MatchingRows:
    """With the files that came after the plan: of a last run, or of a compaction."""
    table = MessagesTable.open(matching.table.lake)
    if table is None:
        raise changed_meanwhile(matching.table.lake)
    wanted = {(queue_files.connection, queue_files.label) for queue_files in matching.queues}
    queues = [
        queue_files
        for queue_files in queues_of(table)
        if (queue_files.connection, queue_files.label) in wanted
    ]
    searched = {file.path for queue in matching.queues for file in queue.files}
    newer = [file for queue in queues for file in queue.files if file.path not in searched]
    found = matching.found | _search(table, matching.filters, newer, lambda *_: None)
    return replace(matching, table=table, queues=queues, found=found)


def _erase_of(database: Database, matching: MatchingRows, queue: QueueFiles, rows: int) -> None:
    table, dropped = matching.table, partial(matches, filters=matching.filters)
    affected = [file for file in queue.files if file.path in matching.found]
    with at_once(table.lake) as threads:
        done = list(threads.map(lambda file: rewrite(table.lake, [file], dropped), affected))
    removed = [file.path for rewritten in done for file in rewritten.sources]
    added = [rewritten.entry for rewritten in done if rewritten.entry is not None]
    detail = f"rows out of {table.lake.location}"
    subject = subject_of(VERB, queue, database, rows, detail)
    subject = replace(
        subject, filters=[_audited(archive_filter) for archive_filter in matching.filters]
    )
    take_out(database, table, subject, lambda by: table.exchange(removed, added, by))


_PERSONAL = {"error", "title", "payload", "more"}


def _audited(archive_filter: ArchiveFilter) -> str:
    """Whom the erased rows were about is not to be read for ever in the audit. Who knows the text
    can compare its SHA-256."""
    if archive_filter.field not in _PERSONAL:
        return archive_filter.word
    digest = hashlib.sha256(archive_filter.value.encode()).hexdigest()
    return f"{archive_filter.field}{archive_filter.operator}sha256:{digest}"
