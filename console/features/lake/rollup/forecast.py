"""What to expect of each hour of the week, from the hour tables of the last weeks.

A few weeks are too few for quantiles of a single hour. So the centre is the hour's own median, and
the spread is estimated from all hours of a queue together. Each value is compared with the median
of the *other* weeks, as next week's value will be. Noise grows as a power of the level (Taylor's
law): 0.5 for random arrivals, 1 for proportional variation. The likeliest power is used, and
distances are pooled in units of it.

Traffic that certainly grows or shrinks is first brought to the level of the last week.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from console.features.history import forecast_files, rollup_files
from console.features.history.forecast_files import (
    BAND_PERCENT,
    BOUNDS,
    HOURS,
    LEAST_DAYS,
    LEAST_WEEKS,
    WEEKS,
)
from console.features.history.rollup_files import QUEUE
from console.features.lake.lake import DamagedError, Lake
from console.features.lake.rollup.table import ForecastTable, PartitionFile, RollupTable, read
from console.features.lake.rollup.tables import Numbers, numbers, ranks
from console.features.lake.spark import Item, Tasks
from console.figures import FORECASTS

_CERTAIN = 2.2
"""Standard deviations of Kendall's statistic."""
_POWERS = np.linspace(0.0, 1.5, 31)
_LEAST_KNOWN = forecast_files.HOUR_SECONDS * 1_000_000 // 2
"""Microseconds recorded of an hour; with less it is unknown, not zero."""
_SUMS = ("weight", "total")
_READ = ("begin", *QUEUE, *(f"{rate}_{of}" for rate in FORECASTS.values() for of in _SUMS))


# -- pure: hours of the week as rows, weeks as columns, NaN where unknown


def medians(values: Numbers) -> Numbers:
    """By row; NaN for a row without values."""
    ordered = np.sort(values, axis=1)  # NaN last
    count = np.count_nonzero(~np.isnan(values), axis=1)
    lower, upper = np.maximum(count - 1, 0) // 2, count // 2
    upper = np.minimum(upper, values.shape[1] - 1)
    rows = np.arange(len(values))
    middle: Numbers = (ordered[rows, lower] + ordered[rows, upper]) / 2
    return np.where(count > 0, middle, np.nan)


def bands(values: Numbers, levels: Numbers | None = None) -> Numbers:
    """Low, median and high by row; NaN where fewer than LEAST_WEEKS values are known.

    `levels`: the level that a row's noise grows with, if not its median.
    """
    seen = np.count_nonzero(~np.isnan(values), axis=1)
    middle = np.where(seen >= LEAST_WEEKS, medians(values), np.nan)
    level = np.maximum(np.abs(middle if levels is None else levels), 1.0)
    others = [medians(np.delete(values, week, axis=1)) for week in range(values.shape[1])]
    apart = values - np.stack(others, axis=1)
    # A row of zeros says nothing about the noise of others.
    busy = np.nan_to_num(np.abs(values)).max(axis=1, initial=0.0) > 0
    row, _ = known = np.nonzero(~np.isnan(apart) & (~np.isnan(middle) & busy)[:, None])
    if not len(row):
        return np.stack([middle] * len(BOUNDS), axis=1)
    power = _power(np.abs(apart[known]), level[row])
    tail = (100 - BAND_PERCENT) / 2
    least, most = np.percentile(apart[known] / level[row] ** power, (tail, 100 - tail))
    noise = np.where(busy, level**power, 0.0)
    low, high = middle + min(least, 0.0) * noise, middle + max(most, 0.0) * noise
    return np.stack([low, middle, high], axis=1)


def _power(apart: Numbers, level: Numbers) -> float:
    """The likeliest power of the level, for Laplace-distributed distances."""
    logs = np.log(level)
    cost = [np.log(np.mean(apart / level**b) + 1e-12) + b * np.mean(logs) for b in _POWERS]
    return float(_POWERS[int(np.argmin(cost))])


def growth(table: Numbers) -> float:
    """By which factor a week's values are those of the week before; 1: no trend is certain.

    `table`: a column per week. A week's level is the median of its values relative to their rows'
    medians; a trend is certain if so many pairs of weeks agree on it as by chance one table in 40
    (Kendall's test), and its slope is the median of theirs (Theil and Sen).
    """
    middle = medians(table)
    busy = np.nan_to_num(middle) > 0
    if not busy.any():
        return 1.0
    levels = medians((table[busy] / middle[busy, None]).T)
    known = np.flatnonzero(np.nan_to_num(levels) > 0)
    earlier, later = (known[at] for at in np.triu_indices(len(known), 1))
    if not len(earlier):
        return 1.0
    slopes = np.log(levels[later] / levels[earlier]) / (later - earlier)
    number = len(known)
    spread = math.sqrt(number * (number - 1) * (2 * number + 5) / 18)
    certain = abs(np.sign(slopes).sum()) >= _CERTAIN * spread
    return float(np.exp(np.median(slopes))) if certain else 1.0


def expected(
    week: Numbers, hour: Numbers, of: Mapping[str, Numbers]
) -> tuple[dict[str, Numbers], float]:
    """The bands of `pushes`, `pops` and `net` of one queue, a row per hour of the week; and by what
    factor they grow each week after the last one.

    `of`: pushes and pops by recorded hour, NaN where unknown; `week` and `hour`: when each was.
    """
    # Below zero: a counter that was reset, or a damaged file.
    counts = {name: np.where(value >= 0, value, np.nan) for name, value in of.items()}
    some = counts["pushes" if np.nan_to_num(counts["pushes"]).any() else "pops"]
    factor = growth(_by_week(week, hour, some))
    counts = {name: value * factor ** (week.max() - week) for name, value in counts.items()}
    tables = {name: _by_week(week, hour, value) for name, value in counts.items()}
    tables["net"] = _by_week(week, hour, counts["pushes"] - counts["pops"])
    flow = medians(tables["pushes"])
    result = {name: bands(table, flow if name == "net" else None) for name, table in tables.items()}
    for name in FORECASTS:
        result[name] = np.maximum(result[name], 0.0)
    return result, factor


def _by_week(week: Numbers, hour: Numbers, value: Numbers) -> Numbers:
    """A row per hour, a column per week; the mean where a clock set back repeats an hour."""
    known = ~np.isnan(value)
    cells = np.unique(week, return_inverse=True)[1][known], hour[known]
    shape = (max(1, len(np.unique(week))), HOURS)
    total, count = np.zeros(shape), np.zeros(shape)
    np.add.at(total, cells, value[known])
    np.add.at(count, cells, 1)
    table: Numbers = np.where(count > 0, total / np.maximum(count, 1), np.nan).T
    return table


def table_of(hours: pa.Table, zone_name: str) -> pa.Table:
    """From an hour table the forecasts: of a queue with too few days one row, without an hour."""
    zone = forecast_files.zone_named(zone_name)
    rank, names = ranks(hours, QUEUE)
    begins, which = np.unique(numbers(hours.column("begin")), return_inverse=True)
    times = [datetime.fromtimestamp(int(begin) / 1e6, UTC) for begin in begins]
    weeks_and_hours = [forecast_files.week_and_hour(moment, zone) for moment in times]
    weeks, of_week = np.array(weeks_and_hours, np.int64).reshape(-1, 2).T
    days = np.array([moment.astimezone(zone).toordinal() for moment in times], np.int64)
    counts = {name: _messages(hours, rate) for name, rate in FORECASTS.items()}
    unknown = np.isnan(counts["pushes"]) & np.isnan(counts["pops"])
    forecasts = [_schema().empty_table()]
    order = np.argsort(rank, kind="stable")
    by_queue = np.split(order, np.searchsorted(rank[order], np.arange(1, names.num_rows)))
    for queue, rows in zip(names.to_pylist(), by_queue, strict=False):
        recorded = np.unique(days[which[rows[~unknown[rows]]]])
        last = date.fromordinal(int(recorded[-1])) if len(recorded) else None
        known = {**queue, "days": len(recorded), "last_day": last, "zone": zone_name}
        if len(recorded) < LEAST_DAYS:
            forecasts.append(pa.Table.from_pylist([known], _schema()))
            continue
        at = which[rows]
        bounds, factor = expected(weeks[at], of_week[at], {n: v[rows] for n, v in counts.items()})
        known |= {"weeks": len(recorded) // 7, "week": int(weeks[at].max()), "growth": factor}
        forecasts.append(_rows(known, bounds))
    return pa.concat_tables(forecasts)


def _messages(hours: pa.Table, rate: str) -> Numbers:
    """Per hour, from the recorded part of it; NaN where that is too little."""
    weight, total = (
        hours.column(f"{rate}_{of}").cast(pa.float64()).to_numpy(zero_copy_only=False)
        for of in _SUMS
    )
    enough = np.nan_to_num(weight) >= _LEAST_KNOWN
    per_second: Numbers = np.divide(total, weight, out=np.full(len(weight), np.nan), where=enough)
    return np.asarray(per_second * (forecast_files.HOUR_SECONDS / rollup_files.MEANS[rate].scale))


def _rows(queue: Mapping[str, Any], expected: Mapping[str, Numbers]) -> pa.Table:
    columns: dict[str, Any] = {name: pa.array([value] * HOURS) for name, value in queue.items()}
    columns["hour"] = pa.array(np.arange(HOURS))
    for measure, bounds in expected.items():
        for at, bound in enumerate(BOUNDS):
            columns[f"{measure}_{bound}"] = pa.array(bounds[:, at], from_pandas=True)
    return pa.table([columns[field.name].cast(field.type) for field in _schema()], _schema())


def _schema() -> pa.Schema:
    """Without the time when it was made."""
    columns = forecast_files.columns()
    return columns.remove(columns.get_field_index("made_at"))


# -- what reads and writes


def update(
    tasks: Tasks, rollups: RollupTable, zones: Mapping[str, str]
) -> dict[str, dict[str, int]]:
    """Make the forecasts of these connections, in one commit; by connection, how many queues have
    one."""
    lake = rollups.lake
    table = ForecastTable.open(lake) or ForecastTable.create(lake)
    items = [
        {"lake": lake.location, "connection": one, "zone": zone, "hours": _hours_of(rollups, one)}
        for one, zone in sorted(zones.items())
    ]
    done = tasks.run(forecast, items)
    files = [file for one in done for file in one["files"]]
    table.replace("dbq-console/forecast", [("connection", "in", sorted(zones))], files)
    return {one["connection"]: one["queues"] for one in done}


def out_of_date(rollups: RollupTable, zones: Mapping[str, str]) -> set[str]:
    """The connections that have hours, and no forecast or one for another zone."""
    lake = rollups.lake
    table = ForecastTable.open(lake)
    made = {}
    for file in () if table is None else table.entries():
        if (connection := file.partition["connection"]) in zones:
            with suppress(DamagedError):
                made[connection] = set(read(lake, file.path, ["zone"]).column(0).to_pylist())
    out = {one for one, zone in zones.items() if made.get(one) != {zone}}
    return {one for one in out if _hours_of(rollups, one)}


def forecast(item: Item) -> dict[str, Any]:
    """The task: write one connection's forecast."""
    lake, connection = Lake(item["lake"]), item["connection"]
    hours = [read(lake, path, list(_READ)).cast(_read_schema()) for path in item["hours"]]
    table = table_of(pa.concat_tables([*hours, _read_schema().empty_table()]), item["zone"])
    made = pa.repeat(pa.scalar(datetime.now(UTC)), table.num_rows)
    partition = {"connection": connection}
    with PartitionFile(lake, ForecastTable.FOLDER, partition, "forecast") as file:
        if table.num_rows:
            file.put(table.append_column("made_at", made))
    queues = table.select(["schema", "queue", "weeks"]).group_by(["schema", "queue"])
    known = queues.aggregate([("weeks", "max")]).column("weeks_max")
    counts = {"known": len(known) - known.null_count, "too_short": known.null_count}
    files = [file.entry()] if file.rows else []
    return {"rows": table.num_rows, "connection": connection, "queues": counts, "files": files}


def _hours_of(rollups: RollupTable, connection: str) -> list[str]:
    """The files of its hours of the last weeks and the current day."""
    of = {"connection": connection, "kind": "samples", "width": "hour"}
    files = [file for file in rollups.entries() if of.items() <= file.partition.items()]
    days = {file.path: date.fromisoformat(file.partition["date"]) for file in files}
    first = max(days.values(), default=date.max) - timedelta(days=7 * WEEKS)
    return [path for path, day in days.items() if day >= first]


def _read_schema() -> pa.Schema:
    columns = rollup_files.columns()
    return pa.schema([columns.field(name) for name in _READ])
