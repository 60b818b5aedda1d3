"""What is known of connections and queues, what their figures say, and what a filter finds."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.errors import BusyError, ConnectionFailedError
from console.monitor.limits import DEFAULTS, Limits, Severity, Thresholds, judge
from console.monitor.sampler import Reading
from console.monitor.snapshot import QueueSnapshot
from console.tui.findings import full_in_seconds, queue_findings
from console.tui.store import Store
from console.tui.views import Link, parse
from console.tui.widgets.queue_detail import limit_words, pieces
from tests.tui.feeds import broken, nine, queue

LOST = ConnectionFailedError("Could not look.", why="connection refused\nIs it running?")


def reading(*queues: QueueSnapshot, production: bool = False) -> Reading:
    return Reading("any", queues, latency_seconds=0.004, production=production)


def test_a_connection_is_opening_until_it_answers() -> None:
    store = Store({"a": 1.0}, now=0)
    assert store.connections(3)[0].link is Link.OPENING
    assert store.connections(3)[0].since_seconds == 3
    store.add_reading("a", reading(queue("q"), production=True), at=3)
    (view,) = store.connections(3.5)
    assert (view.link, view.since_seconds, view.production) == (Link.ALIVE, 0, True)


def test_a_lost_connection_counts_from_its_last_answer_and_to_its_next_try() -> None:
    store = Store({"a": 1.0}, now=0)
    store.add_reading("a", reading(queue("q")), at=10)
    store.add_reading("a", Reading("any", error=LOST, retry_seconds=8), at=12)
    (view,) = store.connections(15)
    assert (view.link, view.level) == (Link.LOST, Severity.CRITICAL)
    assert (view.since_seconds, view.retry_in_seconds) == (5, 5)
    assert view.why == "connection refused"
    (row,) = store.queues(15)
    assert (row.stale_seconds, row.unreachable, row.level) == (5, True, Severity.CRITICAL)
    assert store.connections(99)[0].retry_in_seconds == 0


def test_it_comes_back_by_itself() -> None:
    store = Store({"a": 1.0}, now=0)
    store.add_reading("a", Reading("any", error=LOST, retry_seconds=8), at=1)
    assert not store.connections(2)[0].ever_answered
    store.add_reading("a", reading(queue("q")), at=9)
    assert store.connections(9)[0].link is Link.ALIVE
    assert store.connections(9)[0].why == ""
    assert store.queues(9)[0].stale_seconds is None


def test_an_error_that_is_no_lost_connection_has_another_word() -> None:
    store = Store({"a": 1.0}, now=0)
    busy = BusyError("Could not look.", why="canceling statement due to statement timeout")
    store.add_reading("a", Reading("any", error=busy, retry_seconds=1), at=1)
    assert store.connections(1)[0].link is Link.FAILING


def test_a_sampler_that_says_nothing_makes_its_figures_stale() -> None:
    store = Store({"a": 10.0}, now=0)
    store.add_reading("a", reading(queue("q")), at=0)
    assert store.connections(15)[0].link is Link.ALIVE
    assert store.queues(15)[0].stale_seconds is None
    assert store.connections(15.1)[0].link is Link.SILENT
    assert store.queues(16)[0].stale_seconds == 16
    assert not store.queues(16)[0].unreachable


def test_one_connections_trouble_is_not_the_others() -> None:
    store = Store({"a": 1.0, "b": 1.0}, now=0)
    store.add_reading("a", reading(queue("q")), at=1)
    store.add_reading("b", reading(queue("q")), at=1)
    store.add_reading("b", Reading("any", error=LOST, retry_seconds=8), at=2)
    a, b = store.queues(3)
    assert (a.stale_seconds, b.stale_seconds) == (None, 2)
    assert a.key != b.key
    assert (a.connection_label, b.connection_label) == ("a", "b")


def test_a_name_alone_is_enough_unless_two_schemas_have_it() -> None:
    store = Store({"a": 1.0}, now=0)
    namesakes = [replace(queue("q"), schema=schema) for schema in ("public", "x.y")]
    store.add_reading("a", reading(*namesakes, queue("other")), at=1)
    assert [view.label for view in store.queues(1)] == ["public.q", "x.y.q", "other"]
    assert len({view.key for view in store.queues(1)}) == 3


def test_a_dropped_queue_goes() -> None:
    store = Store({"a": 1.0}, now=0)
    store.add_reading("a", reading(queue("q"), queue("r")), at=1)
    store.add_reading("a", reading(queue("r")), at=2)
    assert [view.label for view in store.queues(2)] == ["r"]


def test_a_trend_keeps_the_most_of_each_five_seconds_and_its_gaps() -> None:
    store = Store({"a": 1.0}, now=0)
    for at, ready in ((100, 3), (102, 9), (104, 4), (106, None), (110, 5)):
        store.add_reading("a", reading(queue("q", ready=ready)), at=at)
    store.add_reading("a", Reading("any", error=LOST, retry_seconds=8), at=111)
    (view,) = store.queues(121)
    assert view.trend[-6:] == (None, 9, None, 5, None, None)


def found(text: str) -> set[str]:
    store = Store({"prod": 1.0}, now=0)
    odd = (queue('od"d; name', "fifo"), queue("a:b", "stack"))
    store.add_reading("prod", Reading("prod", (*nine(), *odd)), at=0)
    wanted = parse(text)
    return {view.snapshot.queue for view in store.queues(0) if wanted.matches(view)}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("MAIL", {"mail"}),
        ("ring", {"orders"}),
        ("design:ring", {"orders"}),
        ("queue:re", {"reminders", "reports"}),
        ("re stat", {"reports"}),
        ("state:warning", {"mail", "orders", "reports"}),
        ("errors:>0", {"mail", "reports"}),
        ("errors:>11 errors:<13", {"reports"}),
        ("ready:>=9412", {"mail", "orders"}),
        ("ready:17", {"imports"}),
        ("push/s:>100", {"orders"}),
        ("connection:stage", set()),
        ('"d; n"', {'od"d; name'}),
        ("a:b", {"a:b"}),
        ("ready:many", set()),
        ('queue:"bill', {"billing"}),
    ],
)
def test_what_a_filter_finds(text: str, names: set[str]) -> None:
    assert found(text) == names


def test_a_critical_queue_is_found_by_its_state() -> None:
    store = Store({"prod": 1.0}, now=0)
    full = queue("full", "ring", gap=10, capacity=10)
    store.add_reading("prod", Reading("prod", (full, *nine())), at=0)
    wanted = parse("state:critical")
    assert [view.label for view in store.queues(0) if wanted.matches(view)] == ["full"]


def test_no_filter_hides_nothing() -> None:
    assert not parse("  ")
    assert len(found("")) == 11


@given(st.text())
def test_whatever_is_typed_is_a_filter(text: str) -> None:
    found(text)


Said = list[tuple[Severity, str]]


def said(snapshot: QueueSnapshot, thresholds: Thresholds = DEFAULTS) -> Said:
    """What the figures alone say, the gravest first."""
    found = queue_findings(("a", "public", "q"), snapshot, judge(snapshot, thresholds), None)
    return [(one.level, one.summary) for one in found]


@pytest.mark.parametrize(
    ("figures", "level", "reason"),
    [
        ({"stuck": 14}, Severity.WARNING, "14 stuck"),
        ({"errors": 9}, Severity.OK, None),
        ({"errors": 10}, Severity.WARNING, "10 in error (limit 10)"),
        ({"errors": 100, "ready": 901}, Severity.OK, None),
        ({"errors": 101, "ready": 901}, Severity.WARNING, "101 in error (limit 101)"),
        ({"gap": 90, "capacity": 100}, Severity.WARNING, "90 % full"),
        ({"gap": 100, "capacity": 100}, Severity.CRITICAL, "full: it takes no more pushes"),
        ({"gap": -3, "capacity": 100}, Severity.OK, None),
    ],
)
def test_one_reason(figures: dict[str, Any], level: Severity, reason: str | None) -> None:
    assert said(queue("q", **figures)) == ([(level, reason)] if reason else [])


def test_the_gravest_reason_comes_first() -> None:
    assert said(queue("q", errors=20, stuck=1, gap=100, capacity=100)) == [
        (Severity.CRITICAL, "full: it takes no more pushes"),
        (Severity.WARNING, "1 stuck"),
        (Severity.WARNING, "20 in error (limit 10)"),
    ]


def test_a_queue_that_cannot_be_looked_at_says_why() -> None:
    why = "permission denied for table q"
    assert said(broken("q", "fifo", why)) == [(Severity.WARNING, f"cannot be sampled: {why}")]


def test_marks_differ_without_colour() -> None:
    assert [level.mark for level in Severity] == [" ", "·", "?", "!", "✖"]


@pytest.mark.parametrize(
    ("push", "pop", "gap", "seconds"),
    [
        (812.0, 640.0, 4_840, 30.0),
        (640.0, 812.0, 4_840, None),
        (640.0, 640.0, 4_840, None),
        (None, 640.0, 4_840, None),
        (640.0, 640.0, 10_000, 0.0),
    ],
)
def test_time_to_full(
    push: float | None, pop: float | None, gap: int, seconds: float | None
) -> None:
    ring = queue("r", "ring", push_per_second=push, pop_per_second=pop, gap=gap, capacity=10_000)
    assert full_in_seconds(ring) == seconds
    assert full_in_seconds(queue("f", push_per_second=9.0, pop_per_second=1.0)) is None


def test_what_is_not_known_is_told_so_and_why() -> None:
    unknown = queue(
        "q",
        ready=None,
        age_seconds=None,
        unknown=("ready", "age_seconds", "holders"),
        slow=("age_seconds",),
    )
    told = {name: words for name, words, _ in pieces(unknown, DEFAULTS, 80)}
    assert told["ready"] == told["writers"] == "?"
    assert told["age"] == "? (too slow to read)"
    assert "gap" not in told


def test_limits_are_told_in_the_units_of_their_figures() -> None:
    thresholds = replace(
        DEFAULTS,
        depth=Limits(10_000, 50_000),
        age_seconds=Limits(critical=60.0),
        errors_share=Limits(),
    )
    told = list(limit_words(queue("q", errors=0), thresholds))
    assert told == ["10,000 ready (critical 50,000)", "oldest 1 min is critical"]
