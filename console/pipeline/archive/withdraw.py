"""Out of the lake again: exported rows that were not there to be deleted.

Somebody restored them meanwhile, or holds them. Afterwards the files of a range have exactly what
its plan deleted. Done again, it does nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from console.pipeline import rows
from console.pipeline.archive.delete import file_keys
from console.pipeline.archive.export import range_manifest
from console.pipeline.archive.files import Writer, batches
from console.pipeline.archive.plan import ARCHIVE, Plan, Range
from console.pipeline.archive.verify import read_sum
from console.pipeline.arrow import pc, pq
from console.pipeline.lake import Lake


def withdraw(
    lake: Lake,
    plan: Plan,
    part: Range,
    manifest: Mapping[str, Any],
    deleted: set[int],
    require: Callable[[], None],
) -> Mapping[str, Any]:
    """The range's manifest, whose files have what was deleted and no more.

    `require` raises where the run may no longer write: it is asked before each change.
    """
    if manifest["rows"] == len(deleted):
        return manifest
    files: list[dict[str, Any]] = []
    for file in manifest["files"]:
        path = file["path"]
        keys = file_keys(lake, path, part.source)
        if keys.keys() - deleted:
            require()
            sums = _rewrite(lake, path, part.source, deleted, plan.payload_kind)
        elif len(keys) == file["rows"]:
            sums = rows.Sum.of_json(file)
        else:
            sums = read_sum(
                lake, path, plan.payload_kind
            )  # a run was killed when it had been rewritten
        if sums.rows:
            files.append({"path": path, "size": lake.size(path), **sums.as_json()})
    told = range_manifest(plan, part, files)
    require()
    lake.write_json(plan.range_path(part.number), told)
    return told


def _rewrite(lake: Lake, path: str, source: str, deleted: set[int], kind: str) -> rows.Sum:
    """The file with those rows only, in place of it."""
    key = "archive_id" if source == ARCHIVE else "id"
    type_of = rows.SCHEMA.field(key).type
    wanted = pa.array([str(k) if source != ARCHIVE else k for k in sorted(deleted)], type_of)
    with (
        lake.reading(path) as opened,
        pq.ParquetFile(opened) as file,
        lake.writing(path) as written,
        Writer(written, kind) as writer,
    ):
        for batch in batches(file):
            writer.write(batch.filter(pc.is_in(batch.column(key), value_set=wanted)))
    return writer.sum
