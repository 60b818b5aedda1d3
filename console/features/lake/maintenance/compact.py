"""Compact: merge small files of a day, and remove the files that nobody reads any more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby

from console.catalog import audit
from console.catalog.audit import Subject
from console.features.lake.delta import LakeTable
from console.features.lake.lake import Lake
from console.features.lake.maintenance.rewrite import (
    at_once,
    changed_meanwhile,
    none_dropped,
    rewrite,
)
from console.features.lake.rollup.table import ForecastTable, RollupTable
from console.features.lake.table import LakeFile, MessagesTable, no_table
from console.formats import duration, megabytes, numbered, plain
from console.plan import Plan, Result, job_plan

VERB = "pipeline compact"
KEPT_SECONDS = 7 * 86_400.0
SMALL = 64 * 2**20
"""Bytes below which a file is merged with others of its day."""
_LARGEST = 256 * 2**20
"""Bytes of a merged file, before compression of what they have in common."""
_GROUPS_A_COMMIT = 64


def groups(files: Iterable[LakeFile]) -> list[list[LakeFile]]:
    """The files that are merged into one each."""
    small = (file for file in files if file.size < SMALL)
    ordered = sorted(small, key=lambda file: (*_partition(file), file.path))
    lake_files: list[list[LakeFile]] = []
    for _, of_day in groupby(ordered, key=_partition):
        room = 0
        for file in of_day:
            if file.size > room:
                lake_files.append([])
                room = _LARGEST
            lake_files[-1].append(file)
            room -= file.size
    return [group for group in lake_files if len(group) > 1]


def _partition(file: LakeFile) -> tuple[str, str, str]:
    return file.connection, file.queue, file.date


def find(lake: Lake, kept_seconds: float) -> SmallFiles:
    """What compact would merge. DamagedError."""
    tables = tables_of(lake)
    messages = [table for table in tables if isinstance(table, MessagesTable)]
    files = groups(messages[0].all_files()) if messages else []
    return SmallFiles(lake, tables, files, kept_seconds)


def tables_of(lake: Lake) -> list[LakeTable]:
    """Those that the lake has. UsageError without any."""
    known: tuple[type[LakeTable], ...] = (MessagesTable, RollupTable, ForecastTable)
    if tables := [table for table in (of.open(lake) for of in known) if table is not None]:
        return tables
    raise no_table(lake)


@dataclass(frozen=True)
class SmallFiles:
    """The files of a lake that are merged, and how long those stay that nobody reads."""

    lake: Lake
    tables: Sequence[LakeTable]
    """All of the lake."""
    groups: Sequence[Sequence[LakeFile]]
    kept_seconds: float

    @property
    def messages(self) -> MessagesTable:
        """Whose files are merged: days of rollups and forecasts have one file each."""
        return next(table for table in self.tables if isinstance(table, MessagesTable))

    @property
    def files(self) -> int:
        return sum(map(len, self.groups))

    @property
    def size(self) -> int:
        return sum(file.size for group in self.groups for file in group)


def plan(small: SmallFiles, run: Callable[[], Result]) -> Plan:
    lake, kept = small.lake.location, small.kept_seconds
    before = datetime.now(UTC) - timedelta(seconds=kept)
    lines = [
        f"{VERB}: {numbered(small.files, 'small file')} of {plain(lake)} ({megabytes(small.size)}) "
        f"into {len(small.groups):,}",
        f"  files that no reader needs since {before:%Y-%m-%d %H:%M} UTC are removed: an "
        f"older version of the table than {duration(kept)} can no longer be read",
    ]
    data = {
        "verb": VERB,
        "lake": lake,
        "files": small.files,
        "into": len(small.groups),
        "bytes": small.size,
        "keep_seconds": kept,
    }
    return job_plan(Subject(VERB, "", "", ""), lines, run, data, about=("lake", lake))


@dataclass(frozen=True)
class Compacted:
    merged: int
    into: int
    rows: int
    removed: int

    def lines(self) -> list[str]:
        return [
            f"{numbered(self.merged, 'file')} with {numbered(self.rows, 'row')} merged into "
            f"{self.into:,}; {numbered(self.removed, 'file')} removed that nobody reads"
        ]

    def as_json(self) -> dict[str, int]:
        """The stable object of `--json`."""
        return dict(vars(self))


def compact(
    small: SmallFiles, on_progress: Callable[[int, int], object] = lambda *_: None
) -> Compacted:
    """RefusedError where somebody else takes these files out at the same time."""
    lake, merged, into, rows = small.lake, 0, 0, 0
    by = {"verb": VERB, "operator": audit.operator()}
    gone = _vacuum(small)  # first, so that there is room for the others
    with at_once(lake) as threads:
        for at in range(0, len(small.groups), _GROUPS_A_COMMIT):
            few = small.groups[at : at + _GROUPS_A_COMMIT]
            done = list(threads.map(lambda of: rewrite(lake, of, none_dropped), few))
            removed = [file.path for rewritten in done for file in rewritten.sources]
            added = [rewritten.entry for rewritten in done if rewritten.entry is not None]
            if not small.messages.exchange(removed, added, by):
                raise changed_meanwhile(lake)
            merged, into = merged + len(removed), into + len(added)
            rows += sum(entry["rows"] for entry in added)
            on_progress(merged, rows)
    gone += _vacuum(small)
    for table in small.tables:
        table.checkpoint()
    return Compacted(merged, into, rows, gone)


def _vacuum(small: SmallFiles) -> int:
    return sum(table.vacuum(small.kept_seconds) for table in small.tables)
