"""Compact: merge small files of a day, and remove the files that nobody reads any more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from console import audit
from console.errors import RefusedError
from console.formats import duration, megabytes, numbered, plain
from console.pipeline.maintenance.rewrite import at_once, none_dropped, rewrite
from console.pipeline.table import LakeFile, MessagesTable

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
    ordered = sorted(small, key=lambda file: (*_partition(file), file.first, file.path))
    found: list[list[LakeFile]] = []
    for _, of_day in groupby(ordered, key=_partition):
        room = 0
        for file in of_day:
            if file.size > room:
                found.append([])
                room = _LARGEST
            found[-1].append(file)
            room -= file.size
    return [group for group in found if len(group) > 1]


def _partition(file: LakeFile) -> tuple[str, str, str]:
    return file.connection, file.queue, file.date


@dataclass(frozen=True)
class CompactPreview:
    table: MessagesTable
    groups: Sequence[Sequence[LakeFile]]
    kept_seconds: float

    @property
    def files(self) -> int:
        return sum(map(len, self.groups))

    @property
    def size(self) -> int:
        return sum(file.size for group in self.groups for file in group)

    def lines(self) -> list[str]:
        lake = plain(self.table.lake.location)
        before = datetime.now(UTC) - timedelta(seconds=self.kept_seconds)
        return [
            f"{VERB}: {numbered(self.files, 'small file')} of {lake} ({megabytes(self.size)}) "
            f"into {len(self.groups):,}",
            f"  files that no reader needs since {before:%Y-%m-%d %H:%M} UTC are removed: an "
            f"older version of the table than {duration(self.kept_seconds)} can no longer be read",
        ]

    def as_json(self) -> dict[str, Any]:
        """The stable object of `--json`."""
        return {
            "verb": VERB,
            "lake": self.table.lake.location,
            "files": self.files,
            "into": len(self.groups),
            "bytes": self.size,
            "keep_seconds": self.kept_seconds,
        }


@dataclass(frozen=True)
class CompactResult:
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
    offered: CompactPreview, on_progress: Callable[[int, int], object] = lambda *_: None
) -> CompactResult:
    """RefusedError where somebody else takes these files out at the same time."""
    table, merged, into, rows = offered.table, 0, 0, 0
    by = {"verb": VERB, "operator": audit.operator()}
    with at_once(table.lake) as threads:
        for at in range(0, len(offered.groups), _GROUPS_A_COMMIT):
            few = offered.groups[at : at + _GROUPS_A_COMMIT]
            done = list(threads.map(lambda of: rewrite(table.lake, of, none_dropped), few))
            removed = [file.path for one in done for file in one.sources]
            added = [one.entry for one in done if one.entry is not None]
            if not table.exchange(removed, added, by, data_change=False):
                raise changed_meanwhile(table)
            merged, into = merged + len(removed), into + len(added)
            rows += sum(entry["rows"] for entry in added)
            on_progress(merged, rows)
    return CompactResult(merged, into, rows, table.vacuum(offered.kept_seconds))


def changed_meanwhile(table: MessagesTable) -> RefusedError:
    return RefusedError(
        f"Another run took files out of the table in {table.lake.location} meanwhile.",
        why="It compacts it, expires or erases rows.",
        next_step="Nothing of this was changed. Wait until it has ended, then run it again.",
    )
