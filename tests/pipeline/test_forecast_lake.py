"""From recordings to forecasts: through the rollup, the lake, and the verbs."""

import json
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from console import forecast_files, rollup_files
from console.doctor.unusual import seen_in_hour
from console.monitor.recording import forecast as reader
from console.monitor.recording.segments import SAMPLES
from console.pipeline.lake import Lake
from console.pipeline.rollup import forecast as forecast_job
from console.pipeline.rollup import job
from tests.cli.calls import call
from tests.local_tasks import LocalTasks
from tests.pipeline import weekly
from tests.pipeline.recorded import sample, write
from tests.pipeline.weekly import BEGIN

HOURS = forecast_files.HOURS


def rolled_up(root: Path, lake: Lake, zone: str = "UTC") -> dict[str, dict[str, int]]:
    result = job.rollup(
        lambda: nullcontext(LocalTasks()), lake, [str(root)], zone_of=lambda _: zone
    )
    return result.forecasts


def put_rollups(lake: Lake, counts: weekly.Numbers, begin: datetime = BEGIN) -> None:
    """Write tables of `prod`, as if these counts had been rolled up."""
    table = weekly.hours(counts, begin=begin)
    days = np.array([row.date() for row in table.column("begin").to_pylist()])
    for day in sorted(set(days)):
        for width in ("minute", "hour"):
            folder = rollup_files.folder(width, "samples", "prod")
            with lake.writing(f"{folder}/date={day}/rollup.parquet") as file:
                pq.write_table(table.filter(days == day), file)  # type: ignore[no-untyped-call]
        lake.write_json(
            rollup_files.manifest("prod", day), {"state": "done", "segments": {"samples": ["gone"]}}
        )


def make_forecast(lake: Lake, zone: str = "UTC") -> dict[str, Any]:
    return forecast_job.forecast({"lake": lake.location, "connection": "prod", "zone": zone})


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
            [value in getattr(one, name) for (_, one), value in zip(hours, counts, strict=True)]
        )
        for name, counts in (
            ("pushes", pushed[4]),
            ("pops", popped[4]),
            ("net", pushed[4] - popped[4]),
        )
    }
    assert all(0.85 <= part <= 0.97 for part in inside.values()), inside
    # Nothing new: nothing is done, and no task is begun.
    before = lake.read_json(forecast_files.manifest("prod"))
    assert rolled_up(root, lake) == {}
    # One more day: the forecast is made again, and the table before it stays for its readers.
    weekly.record(root, pushes[28:29], pops[28:29], begin)
    assert rolled_up(root, lake)["prod"]["known"] == 1
    assert read(lake).days == 29
    # In another zone it is another forecast.
    rolled_up(root, lake, "Europe/Prague")
    assert forecast_files.name_of(read(lake).zone) == "Europe/Prague"
    files = lake.data_files(forecast_files.folder("prod"))
    assert len(files) == 2
    assert before["file"] not in {path.rpartition("/")[2] for path in files}


def test_a_table_without_its_manifest_is_not_read(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_rollups(lake, np.full(4 * HOURS, 10.0))
    make_forecast(lake)
    first = read(lake).at(BEGIN)
    put_rollups(lake, np.full(4 * HOURS, 99.0))
    monkeypatch.setattr(
        Lake, "write_json", lambda *_, **__: 1 / 0
    )  # interrupted before its last step
    with pytest.raises(ZeroDivisionError):
        make_forecast(lake)
    assert read(lake).at(BEGIN) == first
    monkeypatch.undo()
    make_forecast(lake)
    assert read(lake).at(BEGIN).pushes == reader.Band(99.0, 99.0, 99.0)
    # The table of the interrupted run is removed; that of the last manifest is kept.
    assert len(lake.data_files(forecast_files.folder("prod"))) == 2


def test_a_damaged_forecast_is_not_used_and_can_be_made_again(lake: Lake) -> None:
    put_rollups(lake, np.full(4 * HOURS, 10.0))
    make_forecast(lake)
    path = Path(lake.location) / forecast_files.manifest("prod")
    manifest = json.loads(path.read_text())
    odd = json.dumps({**manifest, "queues": [{**manifest["queues"][0], "last_day": "x"}]})
    for wrong in (
        "{",
        "[]",
        json.dumps({**manifest, "zone": "Nowhere/At all"}),
        json.dumps({}),
        odd,
    ):
        path.write_text(wrong)
        assert not read(lake).hours
        assert "pipeline rollup" in read(lake).why
    path.write_text(json.dumps({**manifest, "file": "../../../etc/passwd"}))
    assert "damaged" in read(lake).why
    path.write_text("{")
    make_forecast(lake)  # it is made again
    assert read(lake).hours


def test_too_short_a_history_says_its_length_and_when_it_will_be_enough(lake: Lake) -> None:
    put_rollups(lake, np.full(12 * 24, 10.0))
    assert make_forecast(lake)["queues"] == {"known": 0, "too_short": 1}
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
    found = call(*words, "--forecast", "24h")
    assert found.text.splitlines()[-1].startswith("no forecast: dbq-console pipeline rollup makes")
    make_forecast(lake)
    forecast = call(*words, "--forecast", "24h", "--json").json["forecast"]
    assert forecast["hours"] == []
    assert "days of history, 21 are needed" in forecast["why"]
    plot = call(*words, "--forecast", "24h", "--plot")
    assert "messages a second" in plot.text
    assert forecast["why"] in plot.err


def test_the_zone_is_the_option_or_else_the_connections() -> None:
    from console.cli.pipeline import _zones  # noqa: PLC0415

    prague = SimpleNamespace(label="prod", display_zone=forecast_files.zone_named("Europe/Prague"))
    configured = SimpleNamespace(profiles=lambda _: [prague])
    context: Any = SimpleNamespace(profile=None, configuration=configured, command_line=None)
    assert [_zones(context, None)(name) for name in ("prod", "gone")] == ["Europe/Prague", "UTC"]
    assert _zones(context, "Asia/Kolkata")("prod") == "Asia/Kolkata"
    refused = call("pipeline", "rollup", "--zone", "Nowhere/At all")
    assert refused.status == 2
    assert "the time zone 'Nowhere/At all' is not known here" in refused.err
