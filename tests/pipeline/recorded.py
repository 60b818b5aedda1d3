"""Artificial recordings, in the recorder's format, and rollups."""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from console.features.history import rollup_files, segments
from console.features.history.segments import SAMPLES, RecordKind
from console.features.lake.lake import Lake
from console.features.lake.rollup.table import RollupTable, file_of, read

BEGIN = datetime(2026, 3, 28, tzinfo=UTC)
SEGMENT_SECONDS = 300


def write(root: Path, kind: RecordKind, *rows: Mapping[str, Any], connection: str = "prod") -> None:
    """Write rows as one closed segment, one file per day."""
    segment = segments.Segment(root, connection, min(row["at"] for row in rows))
    segment.write(kind, rows)
    segment.close()


def sample(seconds: float, **figures: Any) -> dict[str, Any]:
    """A sample of `orders`, this many seconds after BEGIN."""
    at = BEGIN + timedelta(seconds=seconds)
    return {"at": at, "schema": "public", "queue": "orders", "design": "ring", **figures}


Tables = Mapping[tuple[str, str], pa.Table]
"""By kind and width."""


def segments_table(*names: str) -> pa.Table:
    """Of a day that was made of these segments of samples."""
    count = len(names)
    columns = {"segment_kind": ["samples"] * count, "segment": names, "damaged": [False] * count}
    return pa.table(columns)


def put_days(
    lake: Lake, days: Mapping[date, Tables], *names: str, connection: str = "prod"
) -> None:
    """Commit rollups as if they were made of these segments."""
    table = RollupTable.open(lake) or RollupTable.create(lake)
    files = []
    for day, tables in days.items():
        made = {**tables, (rollup_files.SEGMENTS, "day"): segments_table(*names)}
        for (kind, width), rows in made.items():
            with file_of(lake, connection, day.isoformat(), kind, width) as file:
                file.put(rows)
            files.append(file.entry())
    dates = [day.isoformat() for day in days]
    table.replace("tests", [("connection", "=", connection), ("date", "in", dates)], files)


def all_rows(lake: Lake) -> dict[tuple[str, ...], list[dict[str, Any]]]:
    """All rows of the rollups, by connection, date, kind and width."""
    found: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    table = RollupTable.open(lake)
    for file in () if table is None else table.entries():
        key = tuple(file.partition[name] for name in rollup_files.PARTITIONS)
        found[key] = found.get(key, []) + read(lake, file.path).to_pylist()
    return found


def fill(root: Path, *, days: int, queues: int, step_seconds: float, seed: int = 1) -> int:
    """Write a recording of `prod` with realistic figures; its number of samples."""
    random = np.random.default_rng(seed)
    times = int(SEGMENT_SECONDS / step_seconds)
    rows = 0
    for number in range(days * 86_400 // SEGMENT_SECONDS):
        start = BEGIN + timedelta(seconds=number * SEGMENT_SECONDS)
        folder = root / SAMPLES.name / rollup_files.connection_part("prod") / f"date={start.date()}"
        folder.mkdir(parents=True, exist_ok=True)
        table = _table(start, times, queues, step_seconds, random)
        path = folder / f"{start:%Y%m%dT%H%M%S}.000000Z-{number:08x}.parquet"
        pq.write_table(table, path)  # type: ignore[no-untyped-call]
        rows += table.num_rows
    return rows


def _table(
    start: datetime, times: int, queues: int, step_seconds: float, random: np.random.Generator
) -> pa.Table:
    size = times * queues
    micros = int(start.timestamp() * 1_000_000) + np.repeat(
        (np.arange(times) * step_seconds * 1_000_000).astype("int64"), queues
    )
    names = np.tile([f"queue {number}" for number in range(queues)], times)
    latency = np.repeat(random.lognormal(-5, 0.6, times), queues)
    counts: Sequence[str] = ("ready", "scheduled", "claimed", "stuck", "errors", "done", "gap")
    columns = {
        "at": pa.array(micros, pa.timestamp("us", tz="UTC")),
        "schema": pa.array(["public"] * size),
        "queue": pa.array(names),
        "design": pa.array(["fifo"] * size),
        "latency_seconds": pa.array(latency),
        "push_per_second": pa.array(random.gamma(2, 50, size)),
        "pop_per_second": pa.array(random.gamma(2, 50, size)),
        "age_seconds": pa.array(random.exponential(20, size)),
        **{name: pa.array(random.poisson(1000, size), pa.int64()) for name in counts},
    }
    schema = segments.schema(SAMPLES)
    arrays = [
        columns[field.name].cast(field.type)
        if field.name in columns
        else pa.nulls(size, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)
