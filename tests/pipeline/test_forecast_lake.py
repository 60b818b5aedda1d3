"""From what was recorded to what is expected: through the rollup, the lake, and the verbs."""

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
from console.pipeline.rollup import forecast as making
from console.pipeline.rollup import job
from tests.cli.calls import call
from tests.local_tasks import LocalTasks
from tests.pipeline import weekly
from tests.pipeline.recorded import sample, write
from tests.pipeline.weekly import BEGIN

HOURS = forecast_files.HOURS


def rolled_up(root: Path, lake: Lake, zone: str = "UTC") -> dict[str, dict[str, int]]:
    made = job.rollup(lambda: nullcontext(LocalTasks()), lake, [str(root)], zone_of=lambda _: zone)
    return made.forecasts


def put(lake: Lake, seen: weekly.Numbers, begin: datetime = BEGIN) -> None:
    """Tables of `prod`, as if these had been rolled up."""
    table = weekly.hours(seen, begin=begin)
    days = np.array([row.date() for row in table.column("begin").to_pylist()])
    for day in sorted(set(days)):
        for width in ("minute", "hour"):
            folder = rollup_files.folder(width, "samples", "prod")
            with lake.writing(f"{folder}/date={day}/rollup.parquet") as file:
                pq.write_table(table.filter(days == day), file)  # type: ignore[no-untyped-call]
        lake.write_json(
            rollup_files.manifest("prod", day), {"state": "done", "segments": {"samples": ["gone"]}}
        )


def made(lake: Lake, zone: str = "UTC") -> dict[str, Any]:
    return making.forecast({"lake": lake.location, "connection": "prod", "zone": zone})


def read(lake: Lake) -> reader.Forecast:
    return reader.read(lake.location, "prod", "public", "orders")


def test_a_recording_becomes_a_forecast(tmp_path: Path, lake: Lake) -> None:
    """Four weeks, sampled every ten minutes: the recorder's files, the rollup, the forecast."""
    root = tmp_path / "recordings"
    seen = weekly.weeks("day and night", "by chance", 5, 4)
    popped = weekly.by_chance(np.random.default_rng(5), seen)
    pushes, pops = seen.reshape(-1, 24), popped.reshape(-1, 24)
    weekly.record(root, pushes[:28], pops[:28])
    assert rolled_up(root, lake) == {"prod": {"known": 1, "too_short": 0}}
    known = read(lake)
    assert (known.weeks, known.days, known.why) == (4, 28, "")
    begin = BEGIN + timedelta(days=28)
    hours = list(known.between(begin, begin + timedelta(days=7)))
    assert [at for at, _ in hours] == [begin + timedelta(hours=at) for at in range(HOURS)]
    inside = {
        name: np.mean(
            [value in getattr(one, name) for (_, one), value in zip(hours, of, strict=True)]
        )
        for name, of in (("pushes", seen[4]), ("pops", popped[4]), ("net", seen[4] - popped[4]))
    }
    assert all(0.85 <= part <= 0.97 for part in inside.values()), inside
    # Nothing new: nothing is done, and no task is begun.
    before = lake.read_json(forecast_files.manifest("prod"))
    assert rolled_up(root, lake) == {}
    # A day more: the forecast is made anew, and the table before it stays for who is reading.
    weekly.record(root, pushes[28:29], pops[28:29], begin)
    assert rolled_up(root, lake)["prod"]["known"] == 1
    assert read(lake).days == 29
    # In another zone it is another forecast.
    rolled_up(root, lake, "Europe/Prague")
    assert forecast_files.name_of(read(lake).zone) == "Europe/Prague"
    files = lake.data_files(forecast_files.folder("prod"))
    assert len(files) == 2
    assert before["file"] not in {path.rpartition("/")[2] for path in files}


def test_a_table_without_its_manifest_is_not_seen(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(lake, np.full(4 * HOURS, 10.0))
    made(lake)
    first = read(lake).at(BEGIN)
    put(lake, np.full(4 * HOURS, 99.0))
    monkeypatch.setattr(Lake, "write_json", lambda *_, **__: 1 / 0)  # cut off before its last step
    with pytest.raises(ZeroDivisionError):
        made(lake)
    assert read(lake).at(BEGIN) == first
    monkeypatch.undo()
    made(lake)
    assert read(lake).at(BEGIN).pushes == reader.Band(99.0, 99.0, 99.0)
    # What the cut left behind is taken away; the table of the last manifest is kept.
    assert len(lake.data_files(forecast_files.folder("prod"))) == 2


def test_what_is_damaged_says_nothing(lake: Lake) -> None:
    put(lake, np.full(4 * HOURS, 10.0))
    made(lake)
    path = Path(lake.location) / forecast_files.manifest("prod")
    told = json.loads(path.read_text())
    odd = json.dumps({**told, "queues": [{**told["queues"][0], "last_day": "x"}]})
    for wrong in ("{", "[]", json.dumps({**told, "zone": "Nowhere/At all"}), json.dumps({}), odd):
        path.write_text(wrong)
        assert not read(lake).hours
        assert "pipeline rollup" in read(lake).why
    path.write_text(json.dumps({**told, "file": "../../../etc/passwd"}))
    assert "damaged" in read(lake).why
    path.write_text("{")
    made(lake)  # whatever it was, it is made anew
    assert read(lake).hours


def test_too_little_says_how_much_there_is_and_when_it_is_enough(lake: Lake) -> None:
    put(lake, np.full(12 * 24, 10.0))
    assert made(lake)["queues"] == {"known": 0, "too_short": 1}
    assert read(lake).why == (
        "no forecast: 12 days of history, 21 are needed; with one a day recorded and rolled up "
        "there are enough on 2026-02-15"
    )


def test_the_last_hour_is_weighed_as_a_rollup_weighs_it(tmp_path: Path, lake: Lake) -> None:
    root, begin = tmp_path / "recordings", weekly.BEGIN
    at = (begin - sample(0)["at"]).total_seconds()
    # Idle for most of the hour and looked at seldom, then a burst that is looked at often.
    looks = [sample(at + s, push_per_second=0.0, pop_per_second=None) for s in range(-60, 3000, 60)]
    looks += [
        sample(at + s, push_per_second=100.0, pop_per_second=None) for s in range(3000, 3600, 2)
    ]
    looks += [{**one, "queue": "rare"} for one in looks[:3]]
    write(root, SAMPLES, *sorted(looks, key=lambda one: one["at"]))
    seen = seen_in_hour(root, None, "prod", begin)
    assert seen.keys() == {("public", "orders")}
    assert seen["public", "orders"] == {"pushes": pytest.approx(60_000, rel=0.1)}
    job.rollup(lambda: nullcontext(LocalTasks()), lake, [str(root)])
    of_lake = seen_in_hour(tmp_path / "gone", lake.location, "prod", begin)
    assert of_lake["public", "orders"] == {"pushes": pytest.approx(60_000, rel=0.1)}


# -- the command line


@pytest.fixture
def recorded_until_now(tmp_path: Path) -> Iterator[list[str]]:
    """Six weeks up to this hour in a lake, and what `history` is told of it."""
    now = reader.hour_of(datetime.now(UTC))
    place = tmp_path / "its lake"
    begin = now - timedelta(hours=6 * HOURS)
    put(Lake(place), weekly.weeks("day and night", "by chance", 6, 1), begin)
    made(Lake(place))
    yield ["--lake", str(place), "--recordings", str(tmp_path / "none")]
    shutil.rmtree(place)


def test_history_tells_what_to_expect(recorded_until_now: list[str]) -> None:
    words = ("history", "orders", *recorded_until_now, "--since", "24h")
    assert call(*words, "--json").json["forecast"] is None
    told = call(*words, "--forecast", "24h", "--json").json["forecast"]
    assert (told["zone"], told["weeks"] >= 6, told["why"]) == ("UTC", True, "")
    assert 48 <= len(told["hours"]) <= 49  # behind the past ones, and beyond them
    assert list(told["hours"][0]) == ["at", *forecast_files.COLUMNS]
    for one in told["hours"]:
        assert 0 <= one["pushes_low"] < one["pushes_median"] < one["pushes_high"]
    lines = call(*words, "--forecast", "3h").text.splitlines()
    place = next(at for at, line in enumerate(lines) if "expected from" in line)
    assert 4 <= len(lines[place:]) - 1 <= 5
    assert "the median of the same hours of the last" in lines[-1]
    plot = call(*words, "--forecast", "24h", "--plot").text
    for what in ("pushes a second (", "pops a second (", "░", "▒"):
        assert what in plot
    plain = call(*words, "--plot").text
    assert "messages a second" in plain
    assert "░" not in plain
    assert call(*words, "--forecast", "8d").status == 2
    assert call(*words, "--forecast", "1h", "--csv").status == 2


def test_history_says_why_nothing_is_expected(tmp_path: Path) -> None:
    now = reader.hour_of(datetime.now(UTC))
    lake = Lake(tmp_path / "lake")
    put(lake, np.full(5 * 24, 10.0), now - timedelta(days=5))
    words = ["history", "orders", "--lake", lake.location, "--recordings", str(tmp_path / "none")]
    found = call(*words, "--forecast", "24h")
    assert found.text.splitlines()[-1].startswith("no forecast: dbq-console pipeline rollup makes")
    made(lake)
    told = call(*words, "--forecast", "24h", "--json").json["forecast"]
    assert told["hours"] == []
    assert "days of history, 21 are needed" in told["why"]
    plot = call(*words, "--forecast", "24h", "--plot")
    assert "messages a second" in plot.text
    assert told["why"] in plot.err


def test_the_zone_is_what_is_said_else_the_connections() -> None:
    from console.cli.pipeline import _zones  # noqa: PLC0415

    prague = SimpleNamespace(label="prod", display_zone=forecast_files.zone_named("Europe/Prague"))
    configured = SimpleNamespace(profiles=lambda _: [prague])
    of: Any = SimpleNamespace(profile=None, configuration=configured, command_line=None)
    assert [_zones(of, None)(name) for name in ("prod", "gone")] == ["Europe/Prague", "UTC"]
    assert _zones(of, "Asia/Kolkata")("prod") == "Asia/Kolkata"
    refused = call("pipeline", "rollup", "--zone", "Nowhere/At all")
    assert refused.status == 2
    assert "no time zone 'Nowhere/At all' is known here" in refused.err
