"""The store: connections, queues, findings of their figures, filters; the history invents nothing,
keeps gaps and is bounded in memory."""

import struct
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.errors import BusyError, ConnectionFailedError
from console.figures import FIGURES
from console.monitor.limits import DEFAULTS, Limits, Severity, Thresholds, judge
from console.monitor.sampler import Reading
from console.monitor.snapshot import QueueSnapshot
from console.tui.findings import full_in_seconds, queue_findings
from console.tui.series import SPANS, ChartSpan, Run, Series
from console.tui.store import Store, Traits
from console.tui.views import Link, QueueView, parse
from console.tui.widgets.queue_detail import limit_texts, pieces
from console.tui.widgets.queue_groups import Group, connection_groups, group_lines
from tests.tui.feeds import AT_TWO, PAUSE, broken, nine_queues, queue

LOST = ConnectionFailedError("Could not look.", why="connection refused\nIs it running?")


def reading(*queues: QueueSnapshot, **more: Any) -> Reading:
    return Reading("any", queues, latency_seconds=0.004, **more)


def test_a_connection_is_opening_until_it_answers() -> None:
    store = Store({"a": 1.0}, now=0)
    assert store.connections(3)[0].link is Link.OPENING
    assert store.connections(3)[0].since_seconds == 3
    store.add_reading("a", reading(queue("q"), production=True), at=3)
    (view,) = store.connections(3.5)
    assert (view.link, view.since_seconds, view.production) == (Link.ALIVE, 0, True)


def test_a_lost_connection_counts_since_its_last_answer_and_until_its_next_try() -> None:
    store = Store({"a": 1.0}, now=0)
    store.add_reading("a", Reading("any", error=LOST, retry_seconds=8), at=1)
    assert not store.connections(2)[0].ever_answered
    store.add_reading("a", reading(queue("q")), at=10)
    store.add_reading("a", Reading("any", error=LOST, retry_seconds=8), at=12)
    (view,) = store.connections(15)
    assert (view.link, view.level) == (Link.LOST, Severity.CRITICAL)
    assert (view.since_seconds, view.retry_in_seconds) == (5, 5)
    assert view.why == "connection refused"
    (row,) = store.queues(15)
    assert (row.stale_seconds, row.unreachable, row.level) == (5, True, Severity.CRITICAL)
    assert store.connections(99)[0].retry_in_seconds == 0
    store.add_reading("a", reading(queue("q")), at=99)
    assert (store.connections(99)[0].link, store.connections(99)[0].why) == (Link.ALIVE, "")
    assert store.queues(99)[0].stale_seconds is None


def test_an_error_other_than_a_lost_connection_has_its_own_state() -> None:
    store = Store({"a": 1.0}, now=0)
    busy = BusyError("Could not look.", why="canceling statement due to statement timeout")
    store.add_reading("a", Reading("any", error=busy, retry_seconds=1), at=1)
    assert store.connections(1)[0].link is Link.FAILING


def test_the_figures_of_a_silent_sampler_become_stale() -> None:
    store = Store({"a": 10.0}, now=0)
    store.add_reading("a", reading(queue("q")), at=0)
    assert store.connections(15)[0].link is Link.ALIVE
    assert store.queues(15)[0].stale_seconds is None
    assert store.connections(15.1)[0].link is Link.SILENT
    assert store.queues(16)[0].stale_seconds == 16
    assert not store.queues(16)[0].unreachable


def test_a_lost_connection_does_not_affect_the_others() -> None:
    store = Store({"a": 1.0, "b": 1.0}, now=0)
    store.add_reading("a", reading(queue("q")), at=1)
    store.add_reading("b", reading(queue("q")), at=1)
    store.add_reading("b", Reading("any", error=LOST, retry_seconds=8), at=2)
    a, b = store.queues(3)
    assert (a.stale_seconds, b.stale_seconds) == (None, 2)
    assert a.key != b.key
    assert (a.connection_label, b.connection_label) == ("a", "b")


def test_a_queues_label_has_its_schema_only_if_two_schemas_have_the_name() -> None:
    store = Store({"a": 1.0}, now=0)
    same_name = [replace(queue("q"), schema=schema) for schema in ("public", "x.y")]
    store.add_reading("a", reading(*same_name, queue("other")), at=1)
    assert [view.label for view in store.queues(1)] == ["public.q", "x.y.q", "other"]
    assert len({view.key for view in store.queues(1)}) == 3


def test_a_trend_keeps_the_maximum_of_each_five_seconds_and_its_gaps() -> None:
    store = Store({"a": 1.0}, now=0)
    for at, ready in ((100, 3), (102, 9), (104, 4), (106, None), (110, 5)):
        store.add_reading("a", reading(queue("q", ready=ready)), at=at)
    store.add_reading("a", Reading("any", error=LOST, retry_seconds=8), at=111)
    (view,) = store.queues(121)
    assert view.trend[-6:] == (None, 9, None, 5, None, None)


def found(text: str) -> set[str]:
    store = Store({"prod": 1.0}, now=0)
    odd = (queue('od"d; name', "fifo"), queue("a:b", "stack"))
    store.add_reading("prod", Reading("prod", (*nine_queues(), *odd)), at=0)
    pattern = parse(text)
    return {view.snapshot.queue for view in store.queues(0) if pattern.matches(view)}


def test_filters_match_words_designs_states_and_figures() -> None:
    expected = {
        "MAIL": {"mail"},
        "ring": {"orders"},
        "design=ring": {"orders"},
        "queue~re": {"reminders", "reports"},
        "re stat": {"reports"},
        "state=warning": {"mail", "orders", "reports"},
        "errors>0": {"mail", "reports"},
        "errors>11 errors<13": {"reports"},
        "ready>=9412": {"mail", "orders"},
        "ready=17": {"imports"},
        "push/s>100": {"orders"},
        "connection=stage": set(),
        '"d; n"': {'od"d; name'},
        "a:b": {"a:b"},
        "ready=many": set(),
        'queue~"bill': {"billing"},
    }
    assert {text: found(text) for text in expected} == expected


def test_an_empty_filter_hides_nothing() -> None:
    assert not parse("  ")
    assert len(found("")) == 11


@given(st.text())
def test_any_text_is_a_valid_filter(text: str) -> None:
    assert found(text) <= found("")


FigureFindings = list[tuple[Severity, str]]


def findings_of(snapshot: QueueSnapshot, thresholds: Thresholds = DEFAULTS) -> FigureFindings:
    """The findings of the figures alone, the most severe first."""
    finding_views = queue_findings(
        ("a", "public", "q"), snapshot, judge(snapshot, thresholds), None
    )
    return [(finding_view.level, finding_view.summary) for finding_view in finding_views]


def test_each_figure_beyond_its_limit_is_a_finding() -> None:
    cases: list[tuple[dict[str, Any], Severity, str | None]] = [
        ({"stuck": 14}, Severity.WARNING, "14 stuck"),
        ({"errors": 9}, Severity.OK, None),
        ({"errors": 10}, Severity.WARNING, "10 in error (limit 10)"),
        ({"errors": 100, "ready": 901}, Severity.OK, None),
        ({"errors": 101, "ready": 901}, Severity.WARNING, "101 in error (limit 101)"),
        ({"gap": 90, "capacity": 100}, Severity.WARNING, "90 % full"),
        ({"gap": 100, "capacity": 100}, Severity.CRITICAL, "full: it takes no more pushes"),
        ({"gap": -3, "capacity": 100}, Severity.OK, None),
    ]
    for figures, level, reason in cases:
        assert findings_of(queue("q", **figures)) == ([(level, reason)] if reason else []), figures


def test_the_most_severe_finding_comes_first() -> None:
    assert findings_of(queue("q", errors=20, stuck=1, gap=100, capacity=100)) == [
        (Severity.CRITICAL, "full: it takes no more pushes"),
        (Severity.WARNING, "1 stuck"),
        (Severity.WARNING, "20 in error (limit 10)"),
    ]


def test_a_queue_that_cannot_be_sampled_says_why() -> None:
    why = "permission denied for table q"
    assert findings_of(broken("q", "fifo", why)) == [
        (Severity.WARNING, f"cannot be sampled: {why}")
    ]


def test_the_marks_of_severities_differ_without_colour() -> None:
    assert [level.mark for level in Severity] == [" ", "·", "?", "!", "✖"]


def test_the_time_until_a_ring_is_full_follows_from_its_gap_and_rates() -> None:
    for push, pop, gap, seconds in (
        (812.0, 640.0, 4_840, 30.0),
        (640.0, 812.0, 4_840, None),
        (640.0, 640.0, 4_840, None),
        (None, 640.0, 4_840, None),
        (640.0, 640.0, 10_000, 0.0),
    ):
        rates = {"push_per_second": push, "pop_per_second": pop}
        assert full_in_seconds(queue("r", "ring", **rates, gap=gap, capacity=10_000)) == seconds
    assert full_in_seconds(queue("f", push_per_second=9.0, pop_per_second=1.0)) is None


def test_unknown_figures_are_shown_as_such_with_the_reason() -> None:
    unknown = queue(
        "q",
        ready=None,
        age_seconds=None,
        unknown=("ready", "age_seconds", "holders"),
        slow=("age_seconds",),
    )
    shown = {name: words for name, words, _ in pieces(unknown, DEFAULTS, 80)}
    assert shown["ready"] == shown["writers"] == "?"
    assert shown["age"] == "? (too slow to read)"
    assert "gap" not in shown


def test_limits_are_shown_in_the_units_of_their_figures() -> None:
    thresholds = DEFAULTS.with_limits(
        depth=Limits(10_000, 50_000), age=Limits(critical=60.0), errors_share=Limits()
    )
    shown = list(limit_texts(queue("q", errors=0), thresholds))
    assert shown == ["10,000 ready (critical 50,000)", "oldest 1 min is critical"]


KEY = ("a", "public", "q")
RAW, HOUR, DAY = SPANS


def lost() -> Reading:
    return Reading("any", error=LOST, retry_seconds=1.0)


def filled(samples: Sequence[tuple[float, int | None]], interval: float = 1.0) -> Series:
    series = Series()
    for at, ready in samples:
        series.add("a", reading(queue("q", ready=ready)), at, interval)
    return series


def values(runs: tuple[Run, ...]) -> list[float]:
    return [value for run in runs for _, value in run]


def single(value: float) -> float:
    """The value as a float of four bytes."""
    found: float = struct.unpack("f", struct.pack("f", value))[0]
    return found


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[float, int | None, bool]]:
    """Samples: their time, what was ready (None: unknown), whether they failed."""
    steps = draw(
        st.lists(
            st.tuples(st.floats(0.05, 4000.0), st.none() | st.integers(0, 10**7), st.booleans()),
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
        sampled = lost() if fails else reading(queue("q", ready=ready, push_per_second=ready))
        series.add("a", sampled, at, 1.0)
    return series


@settings(max_examples=50)
@given(histories(), st.sampled_from(SPANS))
def test_a_point_is_the_maximum_or_the_mean_of_the_samples_in_its_cell(
    history: list[tuple[float, int | None, bool]], span: ChartSpan
) -> None:
    series, now = played(history), history[-1][0]
    by_cell: dict[int, list[float]] = {}
    for at, ready, fails in history:
        if not fails and ready is not None and span.cell(at) > span.cell(now) - span.cells:
            by_cell.setdefault(span.cell(at), []).append(float(ready))
    for figure, expected in (("ready", max), ("push_per_second", lambda v: sum(v) / len(v))):
        points = [point for run in series.runs(KEY, figure, span, now) for point in run]
        assert [span.cell(at) for at, _ in points] == sorted(by_cell)
        for at, value in points:
            assert value == pytest.approx(expected(by_cell[span.cell(at)]), rel=1e-5, abs=1e-5)


@settings(max_examples=50)
@given(histories(), st.sampled_from(SPANS))
def test_points_are_joined_only_if_no_sample_between_is_missing_unknown_or_failed(
    history: list[tuple[float, int | None, bool]], span: ChartSpan
) -> None:
    """In other words: every gap that is longer than a cell stays one."""
    series, now = played(history), history[-1][0]
    samples = [(at, ready) for at, ready, fails in history if not fails]
    for run in series.runs(KEY, "ready", span, now):
        for (before, _), (after, _) in pairwise(run):
            first, last = span.cell(before), span.cell(after)
            between = [ready for at, ready in samples if first < span.cell(at) < last]
            assert not between, "a look between them told nothing"
            last_sample = max(at for at, _ in samples if span.cell(at) == first)
            assert span.cell(last_sample + 3.0) >= last, "the next look came too late"
            fails = [at for at, _, fails in history if fails and first < span.cell(at) < last]
            assert not fails, "a look between them failed"


@settings(max_examples=50)
@given(st.lists(st.floats(0.5, 3600.0), max_size=40), st.floats(0.0, 200_000.0))
def test_no_point_is_older_than_the_span_or_in_the_future(
    pauses: list[float], later: float
) -> None:
    at, samples = 0.0, []
    for pause in pauses:
        at += pause
        samples.append((at, 1))
    series, now = filled(samples), at + later
    for span in SPANS:
        for run in series.runs(KEY, "ready", span, now):
            for moment, _ in run:
                assert now - span.seconds - span.step <= moment <= now + span.step


@pytest.mark.parametrize("interval", [0.5, 1.0, 5.0, 60.0])
@pytest.mark.parametrize("idle", [False, True])
def test_samples_at_their_intervals_are_one_run(interval: float, *, idle: bool) -> None:
    """An idle database is sampled less often than its interval says."""
    count = int(600 / interval) + 2
    series = Series()
    for n in range(count):
        sampled = reading(queue("q", ready=n), next_seconds=interval if idle else None)
        series.add("a", sampled, 1000 + n * interval, 0.5 if idle else interval)
    now = 1000 + (count - 1) * interval
    for span in SPANS:
        (run,) = series.runs(KEY, "ready", span, now)
        assert len(run) == len({span.cell(at) for at, _ in run})
        assert run[-1][1] == count - 1


def test_missed_unknown_and_failed_samples_are_gaps_and_never_zero() -> None:
    for samples, expected in (
        ([(1000, 5), (1001, 6), (1010, 7), (1011, 8)], [[5, 6], [7, 8]]),
        ([(1000, 5), (1001, None), (1002, 6)], [[5], [6]]),
    ):
        series = filled(samples)
        assert [values((run,)) for run in series.runs(KEY, "ready", RAW, 1012)] == expected
    (latency,) = series.latency("a", RAW, 1003)
    assert [value for _, value in latency] == [single(0.004)] * 3
    store = Store({"a": 1.0}, now=0)
    answered = reading(queue("q"))
    for at, sampled in ((1000, answered), (1000.6, lost()), (1001.2, answered)):
        store.add_reading("a", sampled, at)
    series = store.series
    assert len(series.runs(KEY, "ready", RAW, 1002)) == len(series.latency("a", RAW, 1002)) == 2


def test_a_queue_that_is_missing_for_a_time_has_a_gap_and_keeps_its_history() -> None:
    series = filled([(1000, 5)])
    series.add("a", reading(queue("other")), 1001, 1.0)
    assert series.sampled_at(KEY) == 1000
    assert values(series.runs(KEY, "ready", RAW, 1001)) == [5]
    series.add("a", reading(queue("q", ready=6)), 1002, 1.0)
    assert [values((run,)) for run in series.runs(KEY, "ready", RAW, 1003)] == [[5], [6]]


def test_only_the_last_of_many_short_lived_queues_are_remembered() -> None:
    series = Series()
    for n in range(200):
        series.add("a", reading(queue(f"scratch {n}")), 1000.0 + n, 1.0)
    remembered = [
        n for n in range(200) if series.sampled_at(("a", "public", f"scratch {n}")) is not None
    ]
    assert 199 in remembered
    assert len(remembered) <= 21


def test_the_history_of_a_ring_has_its_gap_and_of_others_the_age_of_the_oldest() -> None:
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


def test_a_term_that_there_is_not_is_named() -> None:
    assert parse("erors>0 mail").problem.startswith("erors>0: fields are queue, design")
    assert "age>soon" in parse("age>soon").problem
    assert [parse(text).problem for text in ("age>5m", "age>300", "mail", "design=x")] == [""] * 4
    assert found("age>0s") == found("age>0")


def test_what_is_kept_of_the_queues_is_what_they_would_be_now() -> None:
    """And a connection without news is not made anew."""
    store = Store({"a": 5.0, "b": 5.0}, now=0)

    def made(now: float) -> list[QueueView]:
        found = list(store.queues(now))
        assert found == [store.queue(view.key, now) for view in found]
        return found

    store.add_reading("a", reading(queue("q")), at=1)
    store.add_reading("b", reading(queue("q"), broken("sick", "fifo", "locked")), at=1)
    first = made(1)
    assert first[2].findings
    assert all(now is then for now, then in zip(made(2)[:2], first, strict=False))
    store.add_reading("b", reading(queue("q", ready=9)), at=3)
    second = made(3)
    assert (second[0] is first[0], second[1].snapshot.ready) == (True, 9)
    assert made(6)[0].trend != first[0].trend
    store.mark_examining("a")
    assert made(6)[0].examining
    assert made(15)[0].stale_seconds == 14
    store.add_reading("a", reading(), at=16)
    assert [view.key[0] for view in made(16)] == ["b"]


def test_a_pause_grows_older_where_nothing_else_happens() -> None:
    store, lines = Store({"a": 60.0}, now=0), dict[str, Group]()
    for at in (0.0, 60.0):
        paused = queue("q", decisions=(PAUSE,), moment=AT_TWO + timedelta(seconds=at))
        store.add_reading("a", reading(paused), at=at)
        connections = {view.name: view for view in store.connections(0.0)}
        (line,) = connection_groups(connections, store.queues(at), lambda _: True, lines)
        assert line.queues[0].snapshot.marks == paused.marks
        lines = {"a": line}


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.none() | st.integers(0, 20_000), st.booleans()),
        max_size=12,
    )
)
def test_the_totals_of_connections_add_up_to_those_of_their_group(
    rows: Sequence[tuple[str, int | None, bool]],
) -> None:
    """As if all its queues were of one; those of a silent connection are not in them."""
    store = Store(dict.fromkeys("abcd", 1.0), 0.0, {name: Traits(group="g") for name in "abcd"})
    for name in "abcd":
        queues = [
            queue(
                f"q{number}",
                ready=ready,
                unknown=("ready",) if ready is None else (),
                estimated=("ready",) if estimated and ready else (),
            )
            for number, (of, ready, estimated) in enumerate(rows)
            if of == name
        ]
        store.add_reading(name, reading(*queues), at=1.0 if name == "d" else 20.0)
    views, connections = store.queues(21.0), {view.name: view for view in store.connections(21.0)}
    lines = list(connection_groups(connections, views, lambda _: True))
    (group,) = group_lines(connections, lines)
    fresh = tuple(view for view in views if view.connection != "d")
    flat = Group("all", (connections["a"],), fresh, "a")
    assert set(group.counted) == set(fresh)
    for figure in FIGURES:
        assert group.number(figure.name) == flat.number(figure.name)
    assert group.total("ready") == flat.total("ready")
    assert group.trend(12) == flat.trend(12)
    levels = [view.level for view in views] + [view.level for view in connections.values()]
    assert group.level == max(levels)
