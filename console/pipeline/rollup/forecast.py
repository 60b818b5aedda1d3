"""What to expect of each hour of the week, from the hour tables of the last weeks.

A few weeks are too few for quantiles of an hour by itself: of three values no two hold 90 %. So the
middle is the hour's own median, and how far values lie from it all hours of a queue tell together.
Each value is compared with the median of the *other* weeks, as next week's will be. Noise grows
with the level as a power of it (Taylor's law): half of it for arrivals by chance, all of it for
what varies in proportion. The likeliest power is taken, and distances in units of it are pooled.
"""

import uuid
from collections.abc import Mapping, Sequence
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
"""An hour of which less was seen, in microseconds, is not known: a gap is no zero."""
_QUEUE = ("schema", "queue")
_RATES = dict(zip(("pushes", "pops"), rollup_files.RATES, strict=True))
_SUMS = ("weight", "total")
_READ = ("begin", *_QUEUE, *(f"{rate}_{of}" for rate in _RATES.values() for of in _SUMS))


# -- pure: hours of the week as rows, weeks as columns, NaN where nothing is known


def medians(values: Numbers) -> Numbers:
    """Of each row; NaN of one without a value."""
    ordered = np.sort(values, axis=1)  # NaN last
    count = np.count_nonzero(~np.isnan(values), axis=1)
    lower, upper = np.maximum(count - 1, 0) // 2, count // 2
    upper = np.minimum(upper, values.shape[1] - 1)
    rows = np.arange(len(values))
    found: Numbers = (ordered[rows, lower] + ordered[rows, upper]) / 2
    return np.where(count > 0, found, np.nan)


def bands(values: Numbers, levels: Numbers | None = None) -> Numbers:
    """Low, median and high of each row; NaN where fewer than LEAST_WEEKS values are known.

    `levels`: with what the noise of a row grows, where that is not its own median.
    """
    seen = np.count_nonzero(~np.isnan(values), axis=1)
    middle = np.where(seen >= LEAST_WEEKS, medians(values), np.nan)
    level = np.maximum(np.abs(middle if levels is None else levels), 1.0)
    others = [medians(np.delete(values, week, axis=1)) for week in range(values.shape[1])]
    apart = values - np.stack(others, axis=1)
    # A row in which never anything happened tells nothing of the noise of others.
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
    """Of the level, by which the noise grows: the likeliest, its distances being Laplace's."""
    logs = np.log(level)
    cost = [np.log(np.mean(apart / level**b) + 1e-12) + b * np.mean(logs) for b in _POWERS]
    return float(_POWERS[int(np.argmin(cost))])


def expected(week: Numbers, hour: Numbers, of: Mapping[str, Numbers]) -> dict[str, Numbers]:
    """The bands of `pushes`, `pops` and `net` of one queue, a row an hour of the week.

    `of`: pushes and pops of the hours that were seen, NaN where not known, beside the number of
    the `week` and the `hour` of it in which each was.
    """
    # What is below zero is no count: a counter that began anew, or a damaged file.
    counts = {name: np.where(value >= 0, value, np.nan) for name, value in of.items()}
    tables = {name: _by_week(week, hour, value) for name, value in counts.items()}
    tables["net"] = _by_week(week, hour, counts["pushes"] - counts["pops"])
    flow = medians(tables["pushes"])
    found = {name: bands(table, flow if name == "net" else None) for name, table in tables.items()}
    for name in _RATES:
        found[name] = np.maximum(found[name], 0.0)
    return found


def _by_week(week: Numbers, hour: Numbers, value: Numbers) -> Numbers:
    """A row an hour, a column a week; the mean where a clock that is put back shows one twice."""
    known = ~np.isnan(value)
    place = np.unique(week, return_inverse=True)[1][known], hour[known]
    shape = (max(1, len(np.unique(week))), HOURS)
    total, count = np.zeros(shape), np.zeros(shape)
    np.add.at(total, place, value[known])
    np.add.at(count, place, 1)
    found: Numbers = np.where(count > 0, total / np.maximum(count, 1), np.nan).T
    return found


def table_of(hours: pa.Table, zone_name: str) -> tuple[pa.Table, list[dict[str, Any]]]:
    """Of an hour table of some weeks the forecast of each queue, and how much there is of it."""
    zone = forecast_files.zone_named(zone_name)
    place, names = ranks(hours, _QUEUE)
    begins, which = np.unique(numbers(hours.column("begin")), return_inverse=True)
    moments = [datetime.fromtimestamp(int(one) / 1e6, UTC) for one in begins]
    places = [forecast_files.week_and_hour(one, zone) for one in moments]
    weeks, of_week = np.array(places, np.int64).reshape(-1, 2).T
    days = np.array([one.astimezone(zone).toordinal() for one in moments], np.int64)
    counts = {name: _messages(hours, rate) for name, rate in _RATES.items()}
    unknown = np.isnan(counts["pushes"]) & np.isnan(counts["pops"])
    made: list[pa.Table] = []
    told: list[dict[str, Any]] = []
    order = np.argsort(place, kind="stable")
    of_each = np.split(order, np.searchsorted(place[order], np.arange(1, names.num_rows)))
    for queue, mine in zip(names.to_pylist(), of_each, strict=False):
        known = mine[~unknown[mine]]
        seen = np.unique(days[which[known]])
        last = date.fromordinal(int(seen[-1])).isoformat() if len(seen) else None
        told.append({**queue, "days": len(seen), "last_day": last})
        if len(seen) < LEAST_DAYS:
            continue
        at = which[mine]
        found = expected(weeks[at], of_week[at], {n: v[mine] for n, v in counts.items()})
        told[-1]["weeks"] = len(seen) // 7
        made.append(_rows(queue, found))
    return pa.concat_tables(made) if made else _schema().empty_table(), told


def _messages(hours: pa.Table, rate: str) -> Numbers:
    """An hour's, from what was seen of it; NaN where that is too little."""
    weight, total = (
        hours.column(f"{rate}_{of}").cast(pa.float64()).to_numpy(zero_copy_only=False)
        for of in _SUMS
    )
    enough = np.nan_to_num(weight) >= _LEAST_KNOWN
    per_second: Numbers = np.divide(total, weight, out=np.full(len(weight), np.nan), where=enough)
    return np.asarray(per_second * (forecast_files.HOUR_SECONDS / rollup_files.SCALES[rate]))


def _rows(queue: Mapping[str, str], found: Mapping[str, Numbers]) -> pa.Table:
    columns: dict[str, Any] = {name: pa.array([text] * HOURS) for name, text in queue.items()}
    columns["hour"] = pa.array(np.arange(HOURS))
    for measure, bounds in found.items():
        for at, bound in enumerate(BOUNDS):
            columns[f"{measure}_{bound}"] = pa.array(bounds[:, at], from_pandas=True)
    return pa.table([columns[field.name] for field in _schema()], _schema())


def _schema() -> pa.Schema:
    figures = [(name, pa.float64()) for name in forecast_files.COLUMNS]
    texts = [(name, pa.string()) for name in _QUEUE]
    return pa.schema([*texts, ("hour", pa.int64()), *figures])


# -- what reads and writes


def update(tasks: Tasks, lake: Lake, zones: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """Make the forecasts of these connections anew, by the zones; how many queues have one."""
    items = [{"lake": lake.location, "connection": c, "zone": z} for c, z in sorted(zones.items())]
    done = tasks.run(forecast, items)
    return {one["connection"]: one["queues"] for one in done}


def out_of_date(lake: Lake, zones: Mapping[str, str]) -> set[str]:
    """Those of the connections that have no forecast, or one by another zone."""
    return {one for one, zone in zones.items() if _manifest(lake, one).get("zone") != zone}


def forecast(item: Item) -> dict[str, Any]:
    """The task: one connection's table in place of the one before."""
    lake, connection = Lake(item["lake"]), item["connection"]
    table, told = table_of(_hours(lake, connection), item["zone"])
    folder, before = forecast_files.folder(connection), _manifest(lake, connection).get("file")
    name = f"{uuid.uuid4().hex}.parquet"
    with lake.writing(f"{folder}/{name}") as file:
        pq.write_table(table, file, compression="zstd")
    lake.write_json(
        forecast_files.manifest(connection),
        {"at": datetime.now(UTC).isoformat(), "zone": item["zone"], "file": name, "queues": told},
    )
    # Whoever has just read the manifest before this one still finds what it names.
    lake.remove_unlisted(folder, {f"{folder}/{one}" for one in (name, before)})
    known = sum("weeks" in one for one in told)
    queues = {"known": known, "too_short": len(told) - known}
    return {"rows": table.num_rows, "connection": connection, "queues": queues}


def _manifest(lake: Lake, connection: str) -> dict[str, Any]:
    try:
        return lake.read_json(forecast_files.manifest(connection))
    except (FileNotFoundError, DamagedError):
        return {}  # it is made anew


def _hours(lake: Lake, connection: str) -> pa.Table:
    """The rows of the last weeks."""
    names = lake.names(rollup_files.manifests(connection))
    days = sorted(date.fromisoformat(name[len("date=") : -len(".json")]) for name in names)
    found = [_day(lake, connection, day) for day in _last(days)]
    return pa.concat_tables([*found, _read_schema().empty_table()])


def _last(days: Sequence[date]) -> list[date]:
    """Those of the last weeks, and the day that is under way."""
    return [day for day in days if day >= days[-1] - timedelta(days=7 * WEEKS)]


def _day(lake: Lake, connection: str, day: date) -> pa.Table:
    found = []
    for path in _files(lake, connection, day):
        with lake.reading(path) as file:
            found.append(pq.read_table(file, columns=list(_READ)).cast(_read_schema()))
    return pa.concat_tables([*found, _read_schema().empty_table()])


def _files(lake: Lake, connection: str, day: date) -> list[str]:
    """Of a day's hour table: what its manifest names, for beside that others may lie, older or not
    yet published; where it names none what is in the folder, by renames."""
    folder = f"{rollup_files.folder('hour', 'samples', connection)}/date={day}"
    files = lake.read_json(rollup_files.manifest(connection, day)).get("files")
    if files is None:
        return lake.data_files(folder)
    return [path for path in files.get("samples", ()) if path.startswith(f"{folder}/")]


def _read_schema() -> pa.Schema:
    types = {"begin": pa.timestamp("us", tz="UTC"), **dict.fromkeys(_QUEUE, pa.string())}
    return pa.schema([(name, types.get(name, pa.int64())) for name in _READ])
