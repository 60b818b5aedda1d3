"""The forecast without Spark: laws of its parts, and later weeks compared with it."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.features.history import forecast_files
from console.features.history.forecast_files import HOURS, LEAST_DAYS, LEAST_WEEKS, WEEKS
from console.features.lake.rollup import forecast
from tests.pipeline import weekly
from tests.pipeline.weekly import BEGIN, NOISES, SHAPES, Numbers

PRAGUE = "Europe/Prague"

values = st.lists(
    st.lists(st.none() | st.floats(0, 1e9), min_size=5, max_size=5), min_size=1, max_size=12
).map(lambda rows: np.array([[np.nan if v is None else v for v in row] for row in rows]))


@given(values)
def test_medians_are_those_of_the_known_values(table: Numbers) -> None:
    for found, row in zip(forecast.medians(table), table, strict=True):
        known = row[~np.isnan(row)]
        assert np.isnan(found) if not len(known) else found == pytest.approx(np.median(known))


@given(values, st.permutations(range(5)))
def test_a_band_contains_its_median_and_does_not_depend_on_the_order_of_weeks(
    table: Numbers, order: list[int]
) -> None:
    bands = forecast.bands(table)
    known = np.count_nonzero(~np.isnan(table), axis=1)
    assert (np.isnan(bands).any(axis=1) == (known < LEAST_WEEKS)).all()
    low, median, high = bands[known >= LEAST_WEEKS].T
    assert (low <= median).all()
    assert (median <= high).all()
    np.testing.assert_allclose(forecast.bands(table[:, order]), bands, rtol=1e-9)


@given(st.integers(1, 1_000), st.integers(LEAST_WEEKS, WEEKS))
def test_values_that_never_vary_have_a_band_without_width(level: int, number: int) -> None:
    bands = forecast.bands(np.full((HOURS, number), float(level)))
    assert (bands == level).all()


def table_of(*arrays: Numbers, zone: str = "UTC", **more: Any) -> tuple[list[dict[str, Any]], Any]:
    return rows_and_summary(weekly.hours(*arrays, **more), zone)


def rows_and_summary(hours: pa.Table, zone: str) -> tuple[list[dict[str, Any]], Any]:
    """The rows of hours of one queue, and what its rows say of all."""
    rows = forecast.table_of(hours, zone).to_pylist()
    summary = {name: rows[0][name] for name in ("days", "weeks", "last_day", "zone")}
    return [row for row in rows if row["hour"] is not None], summary


def measured(shape: str, noise: str, number: int, seed: int) -> tuple[float, float, float]:
    """For the next week: the share of its hours within the band, the width of the band relative to
    the noise's, and the error of the median relative to that of the last week's values."""
    *past, actual = weekly.weeks(shape, noise, number + 1, seed)
    rows, summary = table_of(np.array(past))
    assert summary["weeks"] == number
    low, median, high = (
        np.array([row[f"pushes_{bound}"] for row in rows]) for bound in forecast_files.BOUNDS
    )
    simulated = weekly.weeks(shape, noise, 400, seed + 1_000)
    own = np.percentile(simulated, 95, axis=0) - np.percentile(simulated, 5, axis=0)
    inside = (low <= actual) & (actual <= high)
    off = [float(np.abs(actual - one).mean()) for one in (median, past[-1])]
    return float(inside.mean()), float((high - low).sum() / own.sum()), off[0] / off[1]


WEEK_COUNTS = [*(pytest.param(n, marks=pytest.mark.long) for n in (LEAST_WEEKS, 5)), WEEKS]


@pytest.mark.parametrize("number", WEEK_COUNTS)
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_band_contains_about_90_percent_of_the_next_week(
    shape: str, noise: str, number: int, long: bool
) -> None:
    seeds = range(20) if long else [1]
    array = np.array([measured(shape, noise, number, seed) for seed in seeds])
    inside, width, off = array.mean(axis=0)
    least = array[:, 0].min()
    print(f"{shape}, {noise}, {number}: {inside:.1%}, at least {least:.1%}, {width:.2f}, {off:.2f}")
    low, high = (0.88, 0.95) if long else (0.85, 0.97)
    assert low <= inside <= high
    assert width <= 1.5
    assert off < 1


@pytest.mark.parametrize("shape", ["office hours", "weekend batch"])
def test_quiet_hours_and_busy_hours_have_separate_bands(shape: str) -> None:
    """Separate from the noise of others: 15 % of 80,000 would hide any change of 40."""
    rows, _ = table_of(weekly.weeks(shape, "in proportion", WEEKS, 2))
    low, _, high = (
        np.array([row[f"pushes_{bound}"] for row in rows]) for bound in forecast_files.BOUNDS
    )
    actual = weekly.weeks(shape, "in proportion", 400, 1_002)
    own = np.percentile(actual, 95, axis=0) - np.percentile(actual, 5, axis=0)
    busy = SHAPES[shape] > 1_000
    for hours in (busy, ~busy):
        inside = ((low <= actual) & (actual <= high))[:, hours].mean()
        assert 0.80 <= inside <= 0.97
        assert (high - low)[hours].sum() <= 1.5 * own[hours].sum()


def test_one_bad_day_does_not_widen_the_band() -> None:
    usual = weekly.weeks("day and night", "by chance", WEEKS, 3)
    bad = usual.copy()
    bad[2, 24:36] *= 10
    widths = [
        np.mean([row["pushes_high"] - row["pushes_low"] for row in table_of(ndarray)[0]])
        for ndarray in (usual, bad)
    ]
    assert widths[1] < 1.1 * widths[0]


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(("number", "least"), [(4, 0), (5, 35), (WEEKS, 40)])
def test_growth_is_found_where_it_is_certain_and_only_there(
    number: int, least: int, noise: str
) -> None:
    tables = [weekly.weeks("day and night", noise, number, seed) for seed in range(40)]
    for factor in (1.06, 0.94):
        grown = [table * factor ** np.arange(number)[:, None] for table in tables]
        found = [forecast.growth(table.T) for table in grown]
        assert sum(one == pytest.approx(factor, abs=0.04) for one in found) >= least
    steady = [forecast.growth(table.T) for table in tables]
    assert sum(one != 1.0 for one in steady) <= 4, "one in 40 by chance"
    assert steady == pytest.approx([1.0] * 40, abs=0.01)


@pytest.mark.parametrize("value", [0.0, np.nan])
def test_what_is_idle_or_unknown_does_not_grow(value: float) -> None:
    assert forecast.growth(np.full((HOURS, WEEKS), value)) == 1.0


# -- hours of the week


def test_hours_of_the_week_follow_local_time_when_clocks_change() -> None:
    """Office hours in Prague over the change to summer time, by its zone and by UTC."""
    zone = forecast_files.zone_named(PRAGUE)
    number = (WEEKS + 2) * HOURS
    begins = [BEGIN + timedelta(hours=at) for at in range(number)]
    shape = SHAPES["office hours"]
    level = np.array([shape[forecast_files.week_and_hour(at, zone)[1]] for at in begins])
    counts = weekly.by_chance(np.random.default_rng(5), level)
    # Summer time begins in the last night of the ninth week; the tenth is checked.
    past, actual = counts[: 9 * HOURS], counts[9 * HOURS :]
    share_inside = {}
    for name in (PRAGUE, "UTC"):
        rows, _ = table_of(past, zone=name)
        named_zone = forecast_files.zone_named(name)
        hours_of_week = [
            forecast_files.week_and_hour(at, named_zone)[1] for at in begins[9 * HOURS :]
        ]
        inside = [
            rows[hour]["pushes_low"] <= value <= rows[hour]["pushes_high"]
            for hour, value in zip(hours_of_week, actual, strict=True)
        ]
        share_inside[name] = sum(inside) / len(inside)
    assert 0.85 <= share_inside[PRAGUE] <= 0.97
    assert share_inside["UTC"] < 0.75


def test_a_repeated_local_hour_counts_as_one_and_a_skipped_one_is_missing() -> None:
    zone = forecast_files.zone_named(PRAGUE)
    autumn = datetime(2026, 10, 25, tzinfo=UTC)
    twice = [forecast_files.week_and_hour(autumn + timedelta(hours=at), zone) for at in (0, 1)]
    assert twice[0] == twice[1]
    begin = datetime(2026, 10, 5, tzinfo=UTC) - timedelta(hours=2)  # Monday, 00:00 there
    counts = np.repeat([10.0, 20.0, 10.0], HOURS)
    counts = np.append(counts, 10.0)  # the additional hour of that week
    second = (autumn - begin) // timedelta(hours=1) + 1
    counts[second] = 20.0
    rows, _ = table_of(counts, zone=PRAGUE, begin=begin)
    assert len(rows) == HOURS
    assert {row["pushes_median"] for row in rows if row["hour"] != twice[0][1]} == {10.0}
    assert rows[twice[0][1]]["pushes_median"] == 15.0  # of 10, 20, and of 10 and 20 in one week
    spring = datetime(2026, 3, 29, tzinfo=UTC)
    sunday = [forecast_files.week_and_hour(spring + timedelta(hours=at), zone)[1] for at in (0, 1)]
    assert [at % 24 for at in sunday] == [1, 3]
    rows, summary = table_of(
        np.full(3 * HOURS, 7.0), zone=PRAGUE, begin=spring - timedelta(days=20)
    )
    assert rows[6 * 24 + 2]["pushes_median"] is None  # known in two of three weeks
    assert rows[6 * 24 + 3]["pushes_median"] == 7.0
    assert summary["days"] == LEAST_DAYS + 1


# -- what is unknown


def test_fewer_than_three_weeks_have_no_forecast() -> None:
    rows, summary = table_of(np.full(20 * 24, 10.0))
    assert rows == []
    last = date(2026, 2, 14)
    assert summary == {"days": 20, "weeks": None, "last_day": last, "zone": "UTC"}
    rows, summary = table_of(np.full(21 * 24, 10.0))
    assert len(rows) == HOURS
    assert (summary["days"], summary["weeks"]) == (LEAST_DAYS, LEAST_WEEKS)


def test_an_hour_without_samples_is_not_taken_for_zero() -> None:
    counts = weekly.weeks("flat", "by chance", WEEKS, 7)
    counts[1:5] = np.nan  # a month without a recorder
    counts[5, 40:60] = np.nan
    counts[5:, 80] = np.nan
    rows, summary = table_of(counts)
    medians = [row["pushes_median"] for row in rows]
    assert medians[80] is None
    assert all(4_500 < median < 5_500 for median in medians if median is not None)
    assert sum(median is None for median in medians) == 1
    assert summary["weeks"] == 4


def test_an_hour_sampled_for_less_than_half_of_it_is_unknown() -> None:
    hours = weekly.hours(np.full(4 * HOURS, 10.0))
    weight = [1_799_000_000 if at % HOURS == 5 else 1_800_000_000 for at in range(4 * HOURS)]
    at = hours.column_names.index("push_per_second_weight")
    half = hours.set_column(at, "push_per_second_weight", [weight])
    rows = forecast.table_of(half, "UTC").to_pylist()
    assert rows[5]["pushes_median"] is None
    assert rows[6]["pushes_median"] == 20.0  # ten in half an hour
    assert rows[5]["pops_median"] == 10.0


def test_pushes_are_forecast_even_if_pops_are_not_counted() -> None:
    hours = weekly.hours(np.full(4 * HOURS, 10.0))
    at = hours.column_names.index("pop_per_second_weight")
    pushed = hours.set_column(at, "pop_per_second_weight", [[0] * 4 * HOURS])
    rows = forecast.table_of(pushed, "UTC").to_pylist()
    assert {row["pushes_median"] for row in rows} == {10.0}
    assert {row["pops_median"] for row in rows} == {row["net_high"] for row in rows} == {None}


def test_a_counter_that_was_reset_makes_no_negative_rate() -> None:
    pushes = weekly.weeks("few", "by chance", WEEKS, 9)
    pushes[3, 10:30] = -1e6
    rows, _ = table_of(pushes)
    assert all(row[f"{n}_low"] >= 0 for row in rows for n in ("pushes", "pops"))
    assert all(row["pushes_median"] <= 10 for row in rows)
    pushes[:, 10] = -1e6  # unknown rather than zero
    assert table_of(pushes)[0][10]["pushes_median"] is None
