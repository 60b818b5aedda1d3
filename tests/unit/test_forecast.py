"""Forecasts: when a ring is full, the bands of charts, what is unusual."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console import clock
from console.doctor.context import CheckContext
from console.features.history import checks as unusual
from console.features.history import forecast
from console.features.history.forecast import Band, Expected, Forecast, full_after
from console.features.history.forecast_files import HOUR_SECONDS, HOURS
from console.features.history.traffic import TrafficForecasts
from console.monitor.sample import QueueSample
from console.monitor.snapshot import Filling, QueueSnapshot, snapshot
from tests.unit.test_snapshot import NOTHING, queue

NOW = datetime(2026, 3, 23, 9, 20, tzinfo=UTC)
"""A Monday."""

growths = st.lists(st.tuples(st.floats(1, 7200), st.floats(-1e6, 1e6)), max_size=30)


def levels(gap: float, hours: Sequence[tuple[float, float]]) -> list[float]:
    """The level after each hour, never below empty."""
    found = []
    for seconds, growth in hours:
        gap = max(0.0, gap + growth * seconds / HOUR_SECONDS)
        found.append(gap)
    return found


@given(st.floats(1, 1e6), st.floats(0, 1), growths)
def test_a_ring_is_full_when_its_level_first_reaches_its_capacity(
    capacity: float, share: float, hours: list[tuple[float, float]]
) -> None:
    gap = share * capacity * 0.999
    found = full_after(capacity, gap, hours)
    after = levels(gap, hours)
    full = [at for at, level in enumerate(after) if level >= capacity]
    assert (found is None) == (not full)
    if found is not None:
        begin = sum(seconds for seconds, _ in hours[: full[0]])
        assert begin <= found <= begin + hours[full[0]][0] * (1 + 1e-9)
        before = ([gap, *after])[full[0]]
        grown = before + hours[full[0]][1] * (found - begin) / HOUR_SECONDS
        assert grown == pytest.approx(capacity)


@given(st.floats(1, 1e6), growths, st.floats(0, 0.9), st.floats(0, 0.09))
def test_a_ring_with_less_room_is_full_no_later(
    capacity: float, hours: list[tuple[float, float]], share: float, more: float
) -> None:
    one, other = (full_after(capacity, capacity * part, hours) for part in (share, share + more))
    if one is not None:
        assert other is not None
        assert other <= one * (1 + 1e-9) + 1e-6


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_constant_rate_gives_the_same_time_as_a_present_rate(capacity: int, growth: int) -> None:
    hours = [(3600.0, float(growth))] * (capacity // growth + 1)
    assert full_after(capacity, 0, hours) == pytest.approx(capacity / growth * 3600)


def test_an_unknown_hour_ends_the_forecast() -> None:
    assert full_after(100, 0, [(3600, 50.0), (3600, None), (3600, 50.0)]) is None
    assert full_after(100, 60, [(3600, 50.0), (3600, None)]) == pytest.approx(0.8 * 3600)


def band(median: float, width: float = 0.1) -> Band:
    return Band(median * (1 - width), median, median * (1 + width))


def hour(pushes: float, pops: float, noise: float = 0.0) -> Expected:
    net = pushes - pops
    return Expected(band(pushes), band(pops), Band(net - noise, net, net + noise))


def expected(by_hour: dict[int, Expected], rest: Expected) -> Forecast:
    return Forecast({at: by_hour.get(at, rest) for at in range(HOURS)}, UTC, 8, 56, NOW)


EVEN = hour(1_000, 1_000)
# On Mondays from 10 to 14 it grows by 500 an hour.
MONDAYS = expected(dict.fromkeys(range(10, 14), hour(1_500, 1_000)), EVEN)


def ring(gap: int = 0, capacity: int = 1_000, **figures: Any) -> QueueSnapshot:
    row = replace(NOTHING, next_push=gap + 1, next_pop=1, base=1, capacity=capacity, ready=gap)
    return replace(snapshot(QueueSample(queue("ring"), row), "prod"), **figures)


def test_full_in_is_calculated_at_mondays_rate() -> None:
    filling = MONDAYS.filling(ring(), NOW)
    assert filling is not None
    # 40 minutes to ten o'clock, then two hours at 500 an hour.
    assert (filling.seconds, filling.day) == (2 * 3600 + 2400, "Monday")
    assert filling.text == "at Monday's rate: 02:40"
    later = MONDAYS.filling(ring(), NOW + timedelta(days=1))
    assert later is not None
    assert later.text == "at Monday's rate: 6 d 02:40"
    assert Filling(13_170, "Monday").text == "at Monday's rate: 03:40"  # rounded up


def test_a_forecast_is_used_only_if_the_present_rate_does_not_fill_the_ring_sooner() -> None:
    within = ring(push_per_second=1.0, pop_per_second=0.5)  # full in 33 min
    assert MONDAYS.filling(within, NOW) is None
    assert MONDAYS.with_filling(within, NOW) is within
    draining = ring(push_per_second=0.5, pop_per_second=1.0)
    slowly = ring(push_per_second=1.0, pop_per_second=0.9)
    for one in (ring(), draining, slowly):
        assert MONDAYS.with_filling(one, NOW).as_json()["full_in_expected"] == {
            "seconds": 9600.0,
            "day": "Monday",
        }
    assert MONDAYS.filling(ring(1_000), NOW) is None  # already full
    assert MONDAYS.filling(replace(ring(), gap=None), NOW) is None
    fifo = snapshot(QueueSample(queue("fifo"), NOTHING), "prod")
    assert MONDAYS.filling(fifo, NOW) is None
    assert Forecast().filling(ring(), NOW) is None
    assert ring().as_json()["full_in_expected"] is None


def test_a_forecast_expires_14_days_after_the_last_rollup() -> None:
    for days, usable in ((14, True), (15, False)):
        known = replace(MONDAYS, last_day=(NOW - timedelta(days=days)).date())
        assert (known.filling(ring(), NOW) is not None) == usable
        assert known.bands("pushes", NOW, NOW + timedelta(hours=1))  # history shows its date


def test_growth_within_the_noise_fills_no_ring() -> None:
    # A thousandth more is pushed than popped in each hour: within the error of the rates.
    assert expected({}, hour(100_000, 99_900)).filling(ring(), NOW) is None
    # More on average, but not in nine weeks of ten.
    assert expected({}, hour(1_000, 900, noise=150)).filling(ring(), NOW) is None
    assert expected({}, hour(1_000, 900, noise=50)).filling(ring(), NOW) is not None
    # A decrease is always believed.
    assert hour(1_000, 1_001, noise=500).growth == -1


def test_hours_with_too_few_samples_are_omitted() -> None:
    gaps = expected({12: Expected()}, hour(1_000, 990, noise=0))
    assert gaps.filling(ring(), NOW) is None
    assert [at.hour for at, _ in gaps.between(NOW, NOW + timedelta(hours=4))] == [9, 10, 11, 13]


@pytest.mark.parametrize("size", [(20, 10), (160, 40)])
def test_a_band_is_marked_in_the_cells_that_it_touches(size: tuple[int, int]) -> None:
    bands = MONDAYS.bands("pushes", NOW, NOW + timedelta(hours=8))
    begin = NOW.timestamp()
    area, line = forecast.cells(bands, begin, begin + 8 * 3600, 1.0, size)
    half, up = 4 * 3600 / size[0], 1.0 / size[1]
    for x, y in zip(*area, strict=True):
        ends = (MONDAYS.at(datetime.fromtimestamp(at, UTC)).pushes for at in (x - half, x + half))
        near = [end for end in ends if end is not None]
        assert min(one.low for one in near) / 3600 - up <= y
        assert max(one.high for one in near) / 3600 + up >= y
    assert len(line[0]) == size[0]
    assert {round(y * 3600) for y in line[1]} >= {1_000, 1_500}


# -- the doctor's note


def unusual_hours(
    figures: dict[str, float], forecast_of_queue: Forecast = MONDAYS, **more: Any
) -> list[Any]:
    usual = TrafficForecasts("prod", lake=None, **more)
    ring_queue = queue("ring")
    usual.forecasts = {(ring_queue.schema, ring_queue.name): forecast_of_queue}
    usual._hour = forecast.hour_of(clock.utc()) - timedelta(hours=1)
    usual._seen = {(ring_queue.schema, ring_queue.name): figures}
    nothing: Any = None
    return list(
        unusual._check_last_hour(CheckContext(nothing, nothing, ring_queue, forecasts=usual))
    )


def test_an_hour_outside_its_band_is_unusual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "utc", lambda: NOW + timedelta(hours=2))
    assert unusual_hours({"pushes": 1_400, "pops": 1_000}) == []
    assert unusual_hours({}) == []
    assert unusual_hours({"pushes": 9_000}, Forecast(why="12 days")) == []
    assert unusual_hours({"pushes": 9_000}, Forecast({10: Expected()})) == []
    (one,) = unusual_hours({"pushes": 9_000, "pops": 1_000})
    assert one.summary == (
        "9,000 pushes instead of the usual 1,350 to 1,650 in the hour from 10:00 on a Monday"
    )
    assert (one.code.name, one.code.severity.word, one.repair) == ("unusual", "note", None)
    assert one.evidence == {
        "hour": "2026-03-23T10:00:00+00:00",
        "hour_of_week": "Monday 10:00 UTC",
        "pushes_seen": 9_000,
        "pushes_low": 1_350,
        "pushes_median": 1_500,
        "pushes_high": 1_650,
        "band_percent": 90,
        "weeks": 8,
    }
    assert "history" in one.judgement_text
    (both,) = unusual_hours({"pushes": 0, "pops": 0})
    assert both.summary.startswith(
        "0 pushes instead of the usual 1,350 to 1,650, 0 pops instead of the usual 900"
    )
