"""What a lake has: queues, rows, days, bytes, files to compact, the last plan."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

from console.features.lake.delta import LakeTable
from console.features.lake.lake import Lake
from console.features.lake.maintenance.compact import groups, tables_of
from console.features.lake.maintenance.removal import QueueFiles, queues_of
from console.features.lake.table import MessagesTable, queue_value

_COMMITS = 1_000
"""How far back the last plan of a queue is looked for: each is a request to an object store."""


@dataclass(frozen=True)
class QueueContents:
    of: QueueFiles
    last_plan: int | None
    """Its serial; None: not among the last commits."""
    last_plan_at: datetime | None

    @property
    def days(self) -> list[str]:
        return sorted({file.date for file in self.of.files})

    @property
    def size(self) -> int:
        return sum(file.size for file in self.of.files)

    @property
    def to_compact(self) -> int:
        return sum(map(len, groups(self.of.files)))

    def as_json(self) -> dict[str, Any]:
        """The stable object of `--json`."""
        at = self.last_plan_at
        return {
            "connection": self.of.connection,
            "schema": self.of.schema,
            "queue": self.of.queue,
            "rows": self.of.rows,
            "days": len(self.days),
            "first_day": self.days[0],
            "last_day": self.days[-1],
            "files": len(self.of.files),
            "files_to_compact": self.to_compact,
            "bytes": self.size,
            "last_plan": self.last_plan,
            "last_plan_at": None if at is None else at.isoformat(),
        }


@dataclass(frozen=True)
class TableContents:
    name: str
    id: str
    rows: int
    files: int
    size: int

    @classmethod
    def of(cls, table: LakeTable) -> Self:
        files = table.entries()
        rows, size = sum(file.rows for file in files), sum(file.size for file in files)
        return cls(table.FOLDER, table.id, rows, len(files), size)

    def as_json(self) -> dict[str, Any]:
        """The stable object of `--json`."""
        figures = {"rows": self.rows, "files": self.files, "bytes": self.size}
        return {"name": self.name, "id": self.id, **figures}


@dataclass(frozen=True)
class LakeContents:
    tables: list[TableContents]
    queues: list[QueueContents]


def contents(lake: Lake) -> LakeContents:
    """UsageError for a lake without tables."""
    tables = tables_of(lake)
    queues = [
        queue_contents
        for table in tables
        if isinstance(table, MessagesTable)
        for queue_contents in _queues(table)
    ]
    return LakeContents([TableContents.of(table) for table in tables], queues)


def _queues(table: MessagesTable) -> list[QueueContents]:
    plans: dict[tuple[str, str], tuple[int, datetime]] = {}
    for commit in table.history(_COMMITS):
        if "serial" in commit and "connection" in commit:
            at = datetime.fromtimestamp(commit["timestamp"] / 1_000, UTC)
            queue = commit["application"].split("/", 2)[-1]
            plans.setdefault((commit["connection"], queue), (int(commit["serial"]), at))
    queue_contents: list[QueueContents] = []
    for queue_files in queues_of(table):
        plan = plans.get(
            (queue_files.connection, queue_value(queue_files.schema, queue_files.queue)),
            (None, None),
        )
        queue_contents.append(QueueContents(queue_files, *plan))
    return queue_contents
