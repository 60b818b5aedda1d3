"""Which of a plan's reserved rows the table has: row by row, with every value.

Asked wherever the database and the table may differ about a plan: after a killed run, after either
was restored to an earlier moment, where a copy of the database writes into the same lake.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import ne
from typing import Any

import pyarrow as pa
import pyarrow.dataset

from console.catalog import Queue
from console.engines import Database
from console.features.lake.archive import export
from console.features.lake.archive import plan as planning
from console.features.lake.archive.files import SCHEMA, conform, members, pc
from console.features.lake.archive.plan import LakePlan, Part
from console.features.lake.lake import DamagedError, Lake
from console.features.lake.table import MessagesTable, queue_value

dataset: Any = pyarrow.dataset
_PART_ROWS = 20_000


@dataclass
class Comparison:
    held: int = 0
    """Reserved rows that the table has, with the same values."""
    absent: list[int] = field(default_factory=list)
    """The keys of the others, those included that are no longer in the archive."""


def compare(
    database: Database, queue: Queue, lake: Lake, table: MessagesTable, plan: LakePlan
) -> Comparison:
    """DamagedError where a row is there with other values, or a file cannot be read."""
    with database.transaction("read the plan of the archive", read_only=True) as connection:
        dates = planning.reserved(connection, plan).dates
        parts = planning.parts(connection, plan, _PART_ROWS)
        others = planning.others(connection, queue)
    files = table.files(queue_value(queue.schema, queue.name), dates=dates)
    comparison = Comparison()
    if not files:
        for part in parts:
            comparison.absent += _keys(database, plan, part)
        return comparison
    with _readable(lake):
        rows = dataset.dataset(
            [lake.path(file.path) for file in files],
            schema=SCHEMA,
            format="parquet",
            filesystem=lake.filesystem,
        )
    with export.reader(database.product.name, export.url_for_tasks(database)) as source:
        for part in parts:
            item = export.item(database.product, queue, "", lake, plan, part, others)
            here = _table(conform(b, item["kind"]) for b in source.batches(item["rows"]))
            there = _read(lake, rows, part)
            held = _held(lake, here, there)
            comparison.held += len(held)
            comparison.absent += [key for key in _keys(database, plan, part) if key not in held]
    return comparison


def _keys(database: Database, plan: LakePlan, part: Part) -> list[int]:
    with database.transaction("read the plan of the archive", read_only=True) as connection:
        return planning.keys(connection, plan, part)


def _table(batches: Iterator[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(list(batches), SCHEMA)


def _read(lake: Lake, rows: Any, part: Part) -> pa.Table:
    key = pc.field("archive_id")
    with _readable(lake):
        return rows.to_table(filter=(key > part.after) & (key <= part.last))


@contextmanager
def _readable(lake: Lake) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise DamagedError(
            f"The rows of the lake {lake.location} cannot be read, to compare them.",
            why=str(error).splitlines()[0],
            next_step="Nothing more is deleted. Put the file back from a backup of the lake. "
            "Without one, take it out of the table (FSCK REPAIR TABLE, or repair() in Python) and "
            "run it again: what it had of this plan is still in the database.",
        ) from error


def _held(lake: Lake, here: pa.Table, there: pa.Table) -> set[int]:
    """The keys of the rows that are in both."""
    positions = dict(zip(_keys_of(there), range(there.num_rows), strict=True))
    pairs = [(at, positions[key]) for at, key in enumerate(_keys_of(here)) if key in positions]
    if not pairs:
        return set()
    ours, theirs = (pa.array(one) for one in zip(*pairs, strict=True))
    rows, others = here.take(ours), there.take(theirs)
    for name in SCHEMA.names:
        at = _first_difference(name, rows.column(name), others.column(name))
        if at is not None:
            raise DamagedError(
                f"The lake {lake.location} has another {name} for the row "
                f"{rows.column('archive_id')[at]} of the archive.",
                why="A row of the same key and time is in both, with different values.",
                next_step="Nothing was deleted. Find out which one is right before you go on.",
            )
    return set(rows.column("archive_id").to_pylist())


def _keys_of(rows: pa.Table) -> list[tuple[int, int]]:
    keys = rows.column("archive_id").to_pylist()
    times = rows.column("archived_at").cast(pa.int64()).to_pylist()
    return list(zip(keys, times, strict=True))


def _first_difference(name: str, ours: pa.ChunkedArray, theirs: pa.ChunkedArray) -> int | None:
    if ours.equals(theirs):
        return None
    differs = _lacks if name == "more" else ne
    pairs = zip(ours.to_pylist(), theirs.to_pylist(), strict=True)
    return next((at for at, (one, other) in enumerate(pairs) if differs(one, other)), None)


def _lacks(ours: str | None, theirs: str | None) -> bool:
    """Of `more`: whether the lake lacks something. A column that was added since, and is null, or
    was dropped since, is no difference."""
    there = dict(members(theirs or "{}"))
    here = members(ours or "{}")
    return any(there.get(name, "null") != value for name, value in here)
