"""Write the rows of files again, into one new file: merged, or without those to be erased."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pyarrow as pa

from console.errors import ConsoleError, RefusedError
from console.features.lake.archive import files
from console.features.lake.archive.files import SCHEMA, Writer, pc, pq
from console.features.lake.lake import DamagedError, Lake
from console.features.lake.table import LakeFile, MessagesTable, folder_of

Dropped = Callable[[pa.RecordBatch], pa.Array]
"""Whether each row of a batch is left out; never null."""


@dataclass(frozen=True)
class Rewritten:
    sources: tuple[LakeFile, ...]
    entry: dict[str, Any] | None
    """Of the new file; None: no row is left."""
    dropped: int


def none_dropped(batch: pa.RecordBatch) -> pa.Array:
    return pa.repeat(pa.scalar(value=False), batch.num_rows)


def rewrite(lake: Lake, sources: Sequence[LakeFile], dropped: Dropped) -> Rewritten:
    """The new file of files of one partition, read back. DamagedError where one of those is not
    what the table says, or the new one not what was written."""
    partition = {name: getattr(sources[0], name) for name in ("connection", "queue", "date")}
    path = f"{folder_of(**partition)}/rewritten-{uuid4().hex[:12]}.parquet"
    count = 0
    with lake.writing(path) as opened, Writer(opened) as writer:
        for batch in (batch for source in sources for batch in read(lake, source)):
            out = dropped(batch)
            kept = batch.filter(pc.invert(out))
            count += batch.num_rows - kept.num_rows
            writer.write(kept)
    if not writer.digest.rows:
        lake.remove(path)
        return Rewritten(tuple(sources), None, count)
    entry = writer.entry(path, partition)
    if wrong := files.verify({"lake": lake.location, "files": [entry]})["wrong"]:
        raise DamagedError(
            "A file is not in the lake as it was written.",
            why=str(wrong[0]),
            next_step="Nothing was changed. Check the lake's disk, then run it again.",
        )
    return Rewritten(tuple(sources), entry, count)


def read(lake: Lake, source: LakeFile) -> Iterator[pa.RecordBatch]:
    """The rows of a file, in the columns of this console. DamagedError."""
    rows = 0
    try:
        with (
            lake.reading(source.path) as opened,
            pq.ParquetFile(opened, page_checksum_verification=True) as file,
        ):
            _require_our_columns(source, file.schema_arrow.names)
            for batch in files.batches(file):
                rows += batch.num_rows
                columns = [_column(batch, field) for field in SCHEMA]
                yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    except (RefusedError, DamagedError):
        raise
    except FileNotFoundError as error:
        table = MessagesTable.open(lake)
        if table is None or source.path not in {file.path for file in table.all_files()}:
            raise changed_meanwhile(lake) from error
        raise _unreadable(source, "It is missing.") from error
    except (OSError, ValueError, pa.ArrowException, ConsoleError) as error:
        why = error.why if isinstance(error, ConsoleError) else str(error).splitlines()[0]
        raise _unreadable(source, why) from error
    if rows != source.rows:
        raise _unreadable(source, f"It has {rows:,} rows; the table says {source.rows:,}.")


def _require_our_columns(source: LakeFile, names: Sequence[str]) -> None:
    if others := set(names) - set(SCHEMA.names):
        raise DamagedError(
            f"{source.path} has columns of others: {', '.join(sorted(others))}.",
            next_step="Nothing was changed. What wrote it can rewrite it with them: use its "
            "OPTIMIZE or DELETE.",
        )


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    if field.name not in batch.schema.names:
        return pa.nulls(batch.num_rows, field.type)
    return batch.column(field.name).cast(field.type)


def _unreadable(source: LakeFile, why: str) -> ConsoleError:
    return DamagedError(
        f"{source.path} is not what the table says.",
        why=why,
        next_step="Nothing was changed. Put the file back from a backup of the lake; without one, "
        "take it out of the table (FSCK REPAIR TABLE, or repair() in Python).",
    )


def at_once(lake: Lake) -> ThreadPoolExecutor:
    """Arrow reads, compresses and writes without Python's lock."""
    return ThreadPoolExecutor(min(8, (os.cpu_count() or 1) + 2 * (not lake.can_replace)), "lake")


def changed_meanwhile(lake: Lake) -> RefusedError:
    return RefusedError(
        f"Another run took files out of the table in {lake.location} meanwhile.",
        why="It compacts it, expires or erases rows.",
        next_step="Nothing of this was changed. Wait until it has ended, then run it again.",
    )
