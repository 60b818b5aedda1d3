"""From recordings to forecasts: through the rollup, the lake, and the verbs."""

import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from console.features.history import forecast as reader
from console.features.history import forecast_files
from console.features.history.segments import SAMPLES
from console.features.history.traffic import seen_in_hour
from console.features.lake.lake import Lake
from console.features.lake.rollup import forecast as forecast_job
from console.features.lake.rollup import job
from console.features.lake.rollup.table import ForecastTable, RollupTable
from console.features.lake.spark import Tasks
from tests.cli.calls import call
from tests.pipeline import weekly
from tests.pipeline.recorded import put_days, sample, write
from tests.pipeline.weekly import BEGIN
from tests.tools.local_tasks import LocalTasks

pytestmark = pytest.mark.slow

HOURS = forecast_files.HOURS


def rolled_up(root: Path, lake: Lake, zone: str = "UTC") -> dict[str, dict[str, int]]:
    result = job.rollup(
        lambda: nullcontext(LocalTasks()), lake, [str(root)], zone_of=lambda _: zone
    )
    return result.forecasts


def put_rollups(lake: Lake, counts: weekly.Numbers, begin: datetime = BEGIN) -> None:
    """Write rollups of `prod`, as if these counts had been rolled up."""
    table = weekly.hours(counts, begin=begin)
    dates = np.array([row.date() for row in table.column("begin").to_pylist()])
    by_day = {day: table.filter(pa.array(dates == day)) for day in sorted(set(dates))}
    tables = {
        day: {("samples", width): rows for width in ("minute", "hour")}
        for day, rows in by_day.items()
    }
    put_days(lake, tables, "gone")


def make_forecast(lake: Lake, zone: str = "UTC", tasks: Tasks | None = None) -> dict[str, int]:
    rollups = RollupTable.open(lake)
    assert rollups is not None
    return forecast_job.update(tasks or LocalTasks(), rollups, {"prod": zone})["prod"]


def read(lake: Lake) -> reader.Forecast:
    return reader.read(lake.location, "prod", "public", "orders")


def test_a_recording_becomes_a_forecast(tmp_path: Path, lake: Lake) -> None:
    """Four weeks, sampled every ten minutes: the recorder's files, the rollup, the forecast."""
    root = tmp_path / "recordings"
    pushed = weekly.weeks("day and night", "by chance", 5, 4)
    popped = weekly.by_chance(np.random.default_rng(5), pushed)
    pushes, pops = pushed.reshape(-1, 24), popped.reshape(-1, 24)
    weekly.record(root, pushes[:28], pops[:28])
    assert rolled_up(root, lake) == {"prod": {"known": 1, "too_short": 0}}
    known = read(lake)
    assert (known.weeks, known.days, known.why) == (4, 28, "")
    begin = BEGIN + timedelta(days=28)
    hours = list(known.between(begin, begin + timedelta(days=7)))
    assert [at for at, _ in hours] == [begin + timedelta(hours=at) for at in range(HOURS)]
    inside = {
        name: np.mean(
            [
                value in getattr(expected, name)
                for (_, expected), value in zip(hours, counts, strict=True)
            ]
        )
        for name, counts in (
            ("pushes", pushed[4]),
            ("pops", popped[4]),
            ("net", pushed[4] - popped[4]),
        )
    }
    assert all(0.85 <= part <= 0.97 for part in inside.values()), inside
    # Nothing new: nothing is done, and no task is begun.
    before = files(lake)
    assert rolled_up(root, lake) == {}
    assert files(lake) == before
    # One more day: the forecast is made again.
    weekly.record(root, pushes[28:29], pops[28:29], begin)
    assert rolled_up(root, lake)["prod"]["known"] == 1
    assert read(lake).days == 29
    # In another zone it is another forecast.
    rolled_up(root, lake, "Europe/Prague")
    assert forecast_files.name_of(read(lake).zone) == "Europe/Prague"
    assert len(files(lake)) == 1


def files(lake: Lake) -> list[str]:
    """Of the forecasts in force."""
    table = ForecastTable.open(lake)
    return [] if table is None else [file.path for file in table.entries()]


def test_a_damaged_forecast_is_not_used_and_is_made_again(tmp_path: Path, lake: Lake) -> None:
    root = tmp_path / "recordings"
    pushes = np.full((21, 24), 10.0)
    weekly.record(root, pushes, pushes)
    rolled_up(root, lake)
    assert read(lake).hours
    for damage in (Path.unlink, lambda path: path.write_bytes(b"PAR1")):
        damage(Path(lake.path(files(lake)[0])))
        assert not read(lake).hours
        rolled_up(root, lake)
        assert read(lake).hours


@pytest.mark.parametrize("noise", weekly.NOISES)
def test_a_forecast_follows_growth(lake: Lake, noise: str) -> None:
    """6 % a week: in the week after it, as well as over its end."""
    random, number = np.random.default_rng(8), forecast_files.WEEKS
    grown = 1.06 ** np.arange(number + 1)[:, None] * weekly.SHAPES["day and night"]
    counts = weekly.NOISES[noise](random, grown)
    put_rollups(lake, counts[:number])
    make_forecast(lake)
    known, hours = read(lake), counts.ravel()
    assert known.growth == pytest.approx(1.06, abs=0.01)
    for first in range((number - 1) * HOURS, number * HOURS + 100, 10):
        seen = [
            hours[at] in (known.at(BEGIN + timedelta(hours=at)).pushes or ())
            for at in range(first, first + 49)
        ]
        assert sum(seen) >= 40
    ends = range(number * HOURS - 24, number * HOURS + 25)
    seen = [hours[at] in (known.at(BEGIN + timedelta(hours=at)).pushes or ()) for at in ends]
    assert sum(seen) >= 44


def test_too_short_a_history_says_its_length_and_when_it_will_be_enough(lake: Lake) -> None:
    put_rollups(lake, np.full(12 * 24, 10.0))
    assert make_forecast(lake) == {"known": 0, "too_short": 1}
    assert read(lake).why == (
        "no forecast: 12 days of history, 21 are needed; if every day is recorded and rolled "
        "up, there are enough on 2026-02-15"
    )


def test_the_last_hour_is_weighted_as_in_a_rollup(tmp_path: Path, lake: Lake) -> None:
    root, begin = tmp_path / "recordings", weekly.BEGIN
    at = (begin - sample(0)["at"]).total_seconds()
    # Idle for most of the hour and rarely sampled, then a burst that is sampled often.
    samples = [
        sample(at + s, push_per_second=0.0, pop_per_second=None) for s in range(-60, 3000, 60)
    ]
    samples += [
        sample(at + s, push_per_second=100.0, pop_per_second=None) for s in range(3000, 3600, 2)
    ]
    samples += [{**one, "queue": "rare"} for one in samples[:3]]
    write(root, SAMPLES, *sorted(samples, key=lambda one: one["at"]))
    counts = seen_in_hour(root, None, "prod", begin)
    assert counts.keys() == {("public", "orders")}
    assert counts["public", "orders"] == {"pushes": pytest.approx(60_000, rel=0.1)}
    job.rollup(lambda: nullcontext(LocalTasks()), lake, [str(root)])
    of_lake = seen_in_hour(tmp_path / "gone", lake.location, "prod", begin)
    assert of_lake["public", "orders"] == {"pushes": pytest.approx(60_000, rel=0.1)}


# -- the command line


@pytest.fixture
def recorded_until_now(tmp_path: Path) -> Iterator[list[str]]:
    """Six weeks up to this hour in a lake, and the options of `history` for it."""
    now = reader.hour_of(datetime.now(UTC))
    folder = tmp_path / "its lake"
    begin = now - timedelta(hours=6 * HOURS)
    put_rollups(Lake(folder), weekly.weeks("day and night", "by chance", 6, 1), begin)
    make_forecast(Lake(folder))
    yield ["--lake", str(folder), "--recordings", str(tmp_path / "none")]
    shutil.rmtree(folder)


def test_history_shows_the_forecast(recorded_until_now: list[str]) -> None:
    words = ("history", "orders", *recorded_until_now, "--since", "24h")
    assert call(*words, "--json").json["forecast"] is None
    forecast = call(*words, "--forecast", "24h", "--json").json["forecast"]
    assert (forecast["zone"], forecast["weeks"] >= 6, forecast["why"]) == ("UTC", True, "")
    assert 48 <= len(forecast["hours"]) <= 49  # for the past ones, and the next ones
    assert list(forecast["hours"][0]) == ["at", *forecast_files.COLUMNS]
    for one in forecast["hours"]:
        assert 0 <= one["pushes_low"] < one["pushes_median"] < one["pushes_high"]
    lines = call(*words, "--forecast", "3h").text.splitlines()
    start = next(at for at, line in enumerate(lines) if "expected from" in line)
    assert 4 <= len(lines[start:]) - 1 <= 5
    assert "the median of the same hours of the last" in lines[-1]
    plot = call(*words, "--forecast", "24h", "--plot").text
    for what in ("pushes a second (", "pops a second (", "░", "▒"):
        assert what in plot
    plain = call(*words, "--plot").text
    assert "messages a second" in plain
    assert "░" not in plain
    assert call(*words, "--forecast", "8d").status == 2
    assert call(*words, "--forecast", "1h", "--csv").status == 2


def test_history_says_why_there_is_no_forecast(tmp_path: Path) -> None:
    now = reader.hour_of(datetime.now(UTC))
    lake = Lake(tmp_path / "lake")
    put_rollups(lake, np.full(5 * 24, 10.0), now - timedelta(days=5))
    words = ["history", "orders", "--lake", lake.location, "--recordings", str(tmp_path / "none")]
    answer = call(*words, "--forecast", "24h")
    assert answer.text.splitlines()[-1].startswith("no forecast: dbq-console pipeline rollup makes")
    make_forecast(lake)
    forecast = call(*words, "--forecast", "24h", "--json").json["forecast"]
    assert forecast["hours"] == []
    assert "days of history, 21 are needed" in forecast["why"]
    plot = call(*words, "--forecast", "24h", "--plot")
    assert "messages a second" in plot.text
    assert forecast["why"] in plot.err


def test_the_zone_is_the_option_or_else_the_connections() -> None:
    from console.features.lake.cli.jobs import _zones  # noqa: PLC0415

    prague = SimpleNamespace(label="prod", display_zone=forecast_files.zone_named("Europe/Prague"))
    configured = SimpleNamespace(profiles=lambda _: [prague])
    context: Any = SimpleNamespace(profile=None, configuration=configured, command_line=None)
    assert [_zones(context, None)(name) for name in ("prod", "gone")] == ["Europe/Prague", "UTC"]
    assert _zones(context, "Asia/Kolkata")("prod") == "Asia/Kolkata"
    call("pipeline", "rollup", "--zone", "Nowhere/At all").failed(
        2, "the time zone 'Nowhere/At all' is not known here"
    )
