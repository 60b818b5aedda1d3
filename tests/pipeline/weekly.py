"""Artificial weeks of traffic: a shape that repeats, with known noise."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from console.features.history import forecast_files
from console.features.history.segments import SAMPLES
from console.figures import POP, PUSH
from tests.pipeline.recorded import write

RATES = (PUSH.name, POP.name)
BEGIN = datetime(2026, 1, 26, tzinfo=UTC)
"""A Monday. Eight weeks later it is 2026-03-23, and summer time begins in Europe that Sunday."""
Numbers = np.ndarray[Any, Any]

_HOUR = np.arange(forecast_files.HOURS)
_DAY, _OF_DAY = _HOUR // 24, _HOUR % 24
SHAPES: Mapping[str, Numbers] = {
    "flat": np.full(forecast_files.HOURS, 5_000.0),
    "office hours": np.where(
        (_DAY < 5) & (_OF_DAY >= 8) & (_OF_DAY < 18),
        20_000 * np.exp(-(((_OF_DAY - 13) / 4.0) ** 2)),
        300.0,
    ),
    "weekend batch": np.where((_DAY == 5) & (_OF_DAY >= 2) & (_OF_DAY < 14), 80_000.0, 40.0),
    "day and night": 3_000 + 2_500 * np.sin(2 * np.pi * (_OF_DAY - 9) / 24),
    "few": np.full(forecast_files.HOURS, 3.0),
}
"""Expected messages in each hour of the week."""


def by_chance(random: np.random.Generator, level: Numbers) -> Numbers:
    """Independent arrivals."""
    return random.poisson(level).astype(float)


def in_proportion(random: np.random.Generator, level: Numbers) -> Numbers:
    """Levels that vary by 15 %, and arrivals by chance."""
    return by_chance(random, level * random.lognormal(0.0, 0.15, level.shape))


NOISES: Mapping[str, Callable[[np.random.Generator, Numbers], Numbers]] = {
    "by chance": by_chance,
    "in proportion": in_proportion,
}


def weeks(shape: str, noise: str, number: int, seed: int) -> Numbers:
    """Messages of each hour, one row per week."""
    random = np.random.default_rng(seed)
    return NOISES[noise](random, np.tile(SHAPES[shape], (number, 1)))


def hours(
    pushes: Numbers, pops: Numbers | None = None, *, begin: datetime = BEGIN, queue: str = "orders"
) -> pa.Table:
    """An hour table of these, one hour after the other; NaN is an hour without samples."""
    rows = []
    for number, value in enumerate(pushes.ravel()):
        popped = value if pops is None else pops.ravel()[number]
        counts = dict(zip(RATES, (value, popped), strict=True))
        if np.isnan(value):
            continue
        row = {"begin": begin + timedelta(hours=number), "schema": "public", "queue": queue}
        for rate, messages in counts.items():
            row[f"{rate}_weight"] = 3_600_000_000
            row[f"{rate}_total"] = round(messages * 1_000_000)
            row[f"{rate}_avg"] = messages / 3600
        rows.append(row)
    kinds = {"begin": pa.timestamp("us", "UTC"), "schema": pa.string(), "queue": pa.string()}
    names = ("begin", "schema", "queue")
    sums = [(f"{r}_{part}", pa.int64()) for r in RATES for part in ("weight", "total")]
    means = [(f"{rate}_avg", pa.float64()) for rate in RATES]
    schema = pa.schema([*((name, kinds[name]) for name in names), *sums, *means])
    return pa.Table.from_pylist(rows, schema)


def record(root: Path, pushes: Numbers, pops: Numbers, begin: datetime = BEGIN) -> None:
    """The same as a recorder would have sampled it every 10 minutes, a segment per day."""
    for day, (pushed, popped) in enumerate(zip(pushes, pops, strict=True)):
        rows = []
        for number in range(24 * 6):
            hour, at = number // 6, begin + timedelta(days=day, minutes=10 * number)
            rates = {"push_per_second": pushed[hour] / 3600, "pop_per_second": popped[hour] / 3600}
            one = {"at": at, "schema": "public", "queue": "orders", "design": "fifo"}
            rows.append({**one, **rates, "next_seconds": 600.0})
        write(root, SAMPLES, *rows)
