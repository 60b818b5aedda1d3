"""The laws of the history: nothing is invented, gaps stay gaps, memory is bounded."""

import struct
import tracemalloc
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.errors import ConnectionFailedError
from console.monitor.sampler import Reading
from console.monitor.snapshot import QueueSnapshot
from console.tui.series import SPANS, ChartSpan, Run, Series
from console.tui.store import Store
from tests.tui.feeds import queue

KEY = ("a", "public", "q")
RAW, HOUR, DAY = SPANS
LOST = ConnectionFailedError("Could not look.", why="connection refused")


def reading(*queues: QueueSnapshot, next_seconds: float | None = None) -> Reading:
    return Reading("any", queues, latency_seconds=0.004, next_seconds=next_seconds)


def lost() -> Reading:
    return Reading("any", error=LOST, retry_seconds=1.0)


def filled(looks: Sequence[tuple[float, int | None]], interval: float = 1.0) -> Series:
    series = Series()
    for at, ready in looks:
        series.add("a", reading(queue("q", ready=ready)), at, interval)
    return series


def values(runs: tuple[Run, ...]) -> list[float]:
    return [value for run in runs for _, value in run]


def single(value: float) -> float:
    """As four bytes keep it."""
    found: float = struct.unpack("f", struct.pack("f", value))[0]
    return found


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[float, int | None, bool]]:
    """Looks: how long after the one before, what was ready (None: not known), whether it failed."""
    steps = draw(
        st.lists(
            st.tuples(
                st.floats(0.05, 4000.0),
                st.none() | st.integers(0, 10**7),
                st.booleans(),
            ),
            min_size=1,
            max_size=60,
        )
    )
    at, found = draw(st.floats(0.0, 10_000.0)), []
    for pause, ready, fails in steps:
        at += pause
        found.append((at, ready, fails and draw(st.booleans())))
    return found


def played(history: Sequence[tuple[float, int | None, bool]]) -> Series:
    series = Series()
    for at, ready, fails in history:
        told = lost() if fails else reading(queue("q", ready=ready, push_per_second=ready))
        series.add("a", told, at, 1.0)
    return series


@settings(max_examples=50)
@given(histories(), st.sampled_from(SPANS))
def test_a_point_is_the_most_or_the_mean_of_what_was_seen_in_its_cell(
    history: list[tuple[float, int | None, bool]], span: ChartSpan
) -> None:
    series, now = played(history), history[-1][0]
    seen: dict[int, list[float]] = {}
    for at, ready, fails in history:
        if not fails and ready is not None and span.cell(at) > span.cell(now) - span.cells:
            seen.setdefault(span.cell(at), []).append(float(ready))
    for figure, expected in (("ready", max), ("push_per_second", lambda v: sum(v) / len(v))):
        points = [point for run in series.runs(KEY, figure, span, now) for point in run]
        assert [span.cell(at) for at, _ in points] == sorted(seen)
        for at, value in points:
            assert value == pytest.approx(expected(seen[span.cell(at)]), rel=1e-5, abs=1e-5)


@settings(max_examples=50)
@given(histories(), st.sampled_from(SPANS))
def test_points_are_joined_only_where_no_look_between_them_was_missed_or_told_nothing(
    history: list[tuple[float, int | None, bool]], span: ChartSpan
) -> None:
    """Seen from the other side: every gap that is longer than a cell stays one."""
    series, now = played(history), history[-1][0]
    looks = [(at, ready) for at, ready, fails in history if not fails]
    for run in series.runs(KEY, "ready", span, now):
        for (before, _), (after, _) in pairwise(run):
            first, last = span.cell(before), span.cell(after)
            between = [ready for at, ready in looks if first < span.cell(at) < last]
            assert not between, "a look between them told nothing"
            left = max(at for at, _ in looks if span.cell(at) == first)
            assert span.cell(left + 3.0) >= last, "the next look came too late"
            fails = [at for at, _, fails in history if fails and first < span.cell(at) < last]
            assert not fails, "a look between them failed"


@settings(max_examples=50)
@given(st.lists(st.floats(0.5, 3600.0), max_size=40), st.floats(0.0, 200_000.0))
def test_what_is_older_than_the_span_is_gone_and_nothing_comes_from_the_future(
    pauses: list[float], later: float
) -> None:
    at, looks = 0.0, []
    for pause in pauses:
        at += pause
        looks.append((at, 1))
    series, now = filled(looks), at + later
    for span in SPANS:
        for run in series.runs(KEY, "ready", span, now):
            for moment, _ in run:
                assert now - span.seconds - span.step <= moment <= now + span.step


@pytest.mark.parametrize("interval", [0.5, 1.0, 2.0, 5.0, 60.0])
def test_looks_that_come_as_they_are_meant_to_are_one_run(interval: float) -> None:
    count = int(600 / interval) + 2
    series = filled([(1000 + n * interval, n) for n in range(count)], interval)
    now = 1000 + (count - 1) * interval
    for span in SPANS:
        (run,) = series.runs(KEY, "ready", span, now)
        assert len(run) == len({span.cell(at) for at, _ in run})
        assert run[-1][1] == count - 1


def test_an_idle_database_that_is_looked_at_less_often_has_no_gaps() -> None:
    series = Series()
    for n in range(20):
        series.add("a", reading(queue("q", ready=0), next_seconds=5.0), 1000 + 5.0 * n, 1.0)
    (run,) = series.runs(KEY, "ready", RAW, 1096)
    assert len(run) == 20


def test_a_missed_look_is_a_gap_and_never_a_zero() -> None:
    series = filled([(1000, 5), (1001, 6), (1010, 7), (1011, 8)])
    runs = series.runs(KEY, "ready", RAW, 1012)
    assert [values((run,)) for run in runs] == [[5, 6], [7, 8]]


def test_a_failed_look_is_a_gap_however_short() -> None:
    series = filled([(1000, 5)])
    series.add("a", lost(), 1000.6, 1.0)
    series.add("a", reading(queue("q", ready=6)), 1001.2, 1.0)
    assert len(series.runs(KEY, "ready", RAW, 1002)) == 2
    assert len(series.latency("a", RAW, 1002)) == 2


def test_an_unknown_figure_is_a_gap_of_its_own() -> None:
    series = filled([(1000, 5), (1001, None), (1002, 6)])
    assert [values((run,)) for run in series.runs(KEY, "ready", RAW, 1003)] == [[5], [6]]
    (latency,) = series.latency("a", RAW, 1003)
    assert [value for _, value in latency] == [single(0.004)] * 3


def test_a_queue_that_was_away_has_a_gap_and_keeps_what_was_before() -> None:
    series = filled([(1000, 5)])
    series.add("a", reading(queue("other")), 1001, 1.0)
    assert series.seen_at(KEY) == 1000
    assert values(series.runs(KEY, "ready", RAW, 1001)) == [5]
    series.add("a", reading(queue("q", ready=6)), 1002, 1.0)
    assert [values((run,)) for run in series.runs(KEY, "ready", RAW, 1003)] == [[5], [6]]


def test_of_queues_that_come_and_go_only_the_last_are_remembered() -> None:
    series = Series()
    for n in range(200):
        series.add("a", reading(queue(f"scratch {n}")), 1000.0 + n, 1.0)
    left = [n for n in range(200) if series.seen_at(("a", "public", f"scratch {n}")) is not None]
    assert 199 in left
    assert len(left) <= 21


def test_a_ring_has_its_gap_and_others_the_age_of_the_oldest() -> None:
    series = Series()
    both = (queue("r", "ring", gap=7, capacity=10, age_seconds=3.0), queue("f", age_seconds=2.0))
    series.add("a", reading(*both), 1000, 1.0)
    assert values(series.runs(("a", "public", "r"), "gap", RAW, 1001)) == [7]
    assert values(series.runs(("a", "public", "f"), "age_seconds", RAW, 1001)) == [2]
    assert series.runs(("a", "public", "f"), "gap", RAW, 1001) == ()


def test_500_queues_fit_into_15_megabytes_whatever_the_time() -> None:
    many = [queue(f"q{n}", "ring", ready=n, gap=n, capacity=9) for n in range(500)]
    tracemalloc.start()
    try:
        series = Series()
        for at in (1000.0, 5000.0, 100_000.0):
            series.add("a", reading(*many), at, 1.0)
        assert tracemalloc.get_traced_memory()[0] < 15_000_000
    finally:
        tracemalloc.stop()


def test_the_store_keeps_the_history_whatever_screen_is_open() -> None:
    store = Store({"a": 1.0}, now=0)
    store.add_reading("a", reading(queue("q", ready=3)), at=10)
    store.add_reading("a", lost(), at=11)
    store.add_reading("a", reading(queue("q", ready=4)), at=12)
    assert [values((run,)) for run in store.series.runs(KEY, "ready", RAW, 13)] == [[3], [4]]
