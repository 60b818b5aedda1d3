"""What to expect of each hour of the week, from the hour tables of the last weeks.

A few weeks are too few for quantiles of a single hour. So the centre is the hour's own median, and
the spread is estimated from all hours of a queue together. Each value is compared with the median
of the *other* weeks, as next week's value will be. Noise grows as a power of the level (Taylor's
law): 0.5 for random arrivals, 1 for proportional variation. The likeliest power is used, and
distances are pooled in units of it.
"""

import uuid
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from console import forecast_files, rollup_files
from console.forecast_files import BAND_PERCENT, BOUNDS, HOURS, LEAST_DAYS, LEAST_WEEKS, WEEKS
from console.pipeline.lake import DamagedError, Lake
from console.pipeline.rollup.tables import Numbers, numbers, ranks
from console.pipeline.spark import Item, Tasks

pq: Any = pyarrow.parquet

_POWERS = np.linspace(0.0, 1.5, 31)
_LEAST_KNOWN = forecast_files.HOUR_SECONDS * 1_000_000 // 2
"""Microseconds recorded of an hour; with less it is unknown, not zero."""
_QUEUE = ("schema", "queue")
_RATES = dict(zip(("pushes", "pops"), rollup_files.RATES, strict=True))
_SUMS = ("weight", "total")
_READ = ("begin", *_QUEUE, *(f"{rate}_{of}" for rate in _RATES.values() for of in _SUMS))


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


def expected(week: Numbers, hour: Numbers, of: Mapping[str, Numbers]) -> dict[str, Numbers]:
    """The bands of `pushes`, `pops` and `net` of one queue, a row per hour of the week.

    `of`: pushes and pops by recorded hour, NaN where unknown; `week` and `hour`: when each was.
    """
    # Below zero: a counter that was reset, or a damaged file.
    counts = {name: np.where(value >= 0, value, np.nan) for name, value in of.items()}
    tables = {name: _by_week(week, hour, value) for name, value in counts.items()}
    tables["net"] = _by_week(week, hour, counts["pushes"] - counts["pops"])
    flow = medians(tables["pushes"])
    result = {name: bands(table, flow if name == "net" else None) for name, table in tables.items()}
    for name in _RATES:
        result[name] = np.maximum(result[name], 0.0)
    return result


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


def table_of(hours: pa.Table, zone_name: str) -> tuple[pa.Table, list[dict[str, Any]]]:
    """From an hour table: the forecasts, and for each queue how much was recorded."""
    zone = forecast_files.zone_named(zone_name)
    rank, names = ranks(hours, _QUEUE)
    begins, which = np.unique(numbers(hours.column("begin")), return_inverse=True)
    times = [datetime.fromtimestamp(int(one) / 1e6, UTC) for one in begins]
    weeks_and_hours = [forecast_files.week_and_hour(one, zone) for one in times]
    weeks, of_week = np.array(weeks_and_hours, np.int64).reshape(-1, 2).T
    days = np.array([one.astimezone(zone).toordinal() for one in times], np.int64)
    counts = {name: _messages(hours, rate) for name, rate in _RATES.items()}
    unknown = np.isnan(counts["pushes"]) & np.isnan(counts["pops"])
    forecasts: list[pa.Table] = []
    queues: list[dict[str, Any]] = []
    order = np.argsort(rank, kind="stable")
    by_queue = np.split(order, np.searchsorted(rank[order], np.arange(1, names.num_rows)))
    for queue, rows in zip(names.to_pylist(), by_queue, strict=False):
        recorded = np.unique(days[which[rows[~unknown[rows]]]])
        last = date.fromordinal(int(recorded[-1])).isoformat() if len(recorded) else None
        queues.append({**queue, "days": len(recorded), "last_day": last})
        if len(recorded) < LEAST_DAYS:
            continue
        at = which[rows]
        bounds = expected(weeks[at], of_week[at], {n: v[rows] for n, v in counts.items()})
        queues[-1]["weeks"] = len(recorded) // 7
        forecasts.append(_rows(queue, bounds))
    return pa.concat_tables(forecasts) if forecasts else _schema().empty_table(), queues


def _messages(hours: pa.Table, rate: str) -> Numbers:
    """Per hour, from the recorded part of it; NaN where that is too little."""
    weight, total = (
        hours.column(f"{rate}_{of}").cast(pa.float64()).to_numpy(zero_copy_only=False)
        for of in _SUMS
    )
    enough = np.nan_to_num(weight) >= _LEAST_KNOWN
    per_second: Numbers = np.divide(total, weight, out=np.full(len(weight), np.nan), where=enough)
    return np.asarray(per_second * (forecast_files.HOUR_SECONDS / rollup_files.SCALES[rate]))


def _rows(queue: Mapping[str, str], expected: Mapping[str, Numbers]) -> pa.Table:
    columns: dict[str, Any] = {name: pa.array([text] * HOURS) for name, text in queue.items()}
    columns["hour"] = pa.array(np.arange(HOURS))
    for measure, bounds in expected.items():
        for at, bound in enumerate(BOUNDS):
            columns[f"{measure}_{bound}"] = pa.array(bounds[:, at], from_pandas=True)
    return pa.table([columns[field.name] for field in _schema()], _schema())


def _schema() -> pa.Schema:
    figures = [(name, pa.float64()) for name in forecast_files.COLUMNS]
    texts = [(name, pa.string()) for name in _QUEUE]
    return pa.schema([*texts, ("hour", pa.int64()), *figures])


# -- what reads and writes


def update(tasks: Tasks, lake: Lake, zones: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """Make the forecasts of these connections; by connection, how many queues have one."""
    items = [{"lake": lake.location, "connection": c, "zone": z} for c, z in sorted(zones.items())]
    done = tasks.run(forecast, items)
    return {one["connection"]: one["queues"] for one in done}


def out_of_date(lake: Lake, zones: Mapping[str, str]) -> set[str]:
    """The connections without a forecast, or with one for another zone."""
    return {one for one, zone in zones.items() if _manifest(lake, one).get("zone") != zone}


def forecast(item: Item) -> dict[str, Any]:
    """The task: replace one connection's table."""
    lake, connection = Lake(item["lake"]), item["connection"]
    table, queues = table_of(_hours(lake, connection), item["zone"])
    folder, before = forecast_files.folder(connection), _manifest(lake, connection).get("file")
    name = f"{uuid.uuid4().hex}.parquet"
    with lake.writing(f"{folder}/{name}") as file:
        pq.write_table(table, file, compression="zstd")
    lake.write_json(
        forecast_files.manifest(connection),
        {"at": datetime.now(UTC).isoformat(), "zone": item["zone"], "file": name, "queues": queues},
    )
    # A reader of the previous manifest still finds the file that it names.
    lake.remove_unlisted(folder, {f"{folder}/{one}" for one in (name, before)})
    known = sum("weeks" in one for one in queues)
    counts = {"known": known, "too_short": len(queues) - known}
    return {"rows": table.num_rows, "connection": connection, "queues": counts}


def _manifest(lake: Lake, connection: str) -> dict[str, Any]:
    try:
        return lake.read_json(forecast_files.manifest(connection))
    except (FileNotFoundError, DamagedError):
        return {}


def _hours(lake: Lake, connection: str) -> pa.Table:
    """The hour table of the last weeks and the current day."""
    names = lake.names(rollup_files.manifests(connection))
    days = sorted(date.fromisoformat(name[len("date=") : -len(".json")]) for name in names)
    tables = []
    for day in days:
        if day >= days[-1] - timedelta(days=7 * WEEKS):
            for path in _files(lake, connection, day):
                with lake.reading(path) as file:
                    tables.append(pq.read_table(file, columns=list(_READ)).cast(_read_schema()))
    return pa.concat_tables([*tables, _read_schema().empty_table()])


def _files(lake: Lake, connection: str, day: date) -> list[str]:
    """Of a day's hour table: those in its manifest. Where it lists none (written by renames), all
    in the folder; elsewhere others there may be old, or not yet published."""
    folder = f"{rollup_files.folder('hour', 'samples', connection)}/date={day}"
    files = lake.read_json(rollup_files.manifest(connection, day)).get("files")
    if files is None:
        return lake.data_files(folder)
    return [path for path in files.get("samples", ()) if path.startswith(f"{folder}/")]


def _read_schema() -> pa.Schema:
    types = {"begin": pa.timestamp("us", tz="UTC"), **dict.fromkeys(_QUEUE, pa.string())}
    return pa.schema([(name, types.get(name, pa.int64())) for name in _READ])
