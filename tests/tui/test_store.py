"""What is known of connections and queues, from the readings as they come."""

from dataclasses import replace

from console.errors import BusyError, ConnectionFailedError
from console.monitor.limits import Severity
from console.monitor.sampler import Reading
from console.monitor.snapshot import QueueSnapshot
from console.tui.store import Store
from console.tui.views import Link
from tests.tui.feeds import queue

LOST = ConnectionFailedError("Could not look.", why="connection refused\nIs it running?")


def reading(*queues: QueueSnapshot, production: bool = False) -> Reading:
    return Reading("any", queues, latency_seconds=0.004, production=production)


def test_a_connection_is_opening_until_it_answers() -> None:
    store = Store({"a": 1.0}, now=0)
    assert store.connections(3)[0].link is Link.OPENING
    assert store.connections(3)[0].since_seconds == 3
    store.take("a", reading(queue("q"), production=True), at=3)
    (view,) = store.connections(3.5)
    assert (view.link, view.since_seconds, view.production) == (Link.ALIVE, 0, True)


def test_a_lost_connection_counts_from_its_last_answer_and_to_its_next_try() -> None:
    store = Store({"a": 1.0}, now=0)
    store.take("a", reading(queue("q")), at=10)
    store.take("a", Reading("any", error=LOST, retry_seconds=8), at=12)
    (view,) = store.connections(15)
    assert (view.link, view.level) == (Link.LOST, Severity.CRITICAL)
    assert (view.since_seconds, view.retry_in_seconds) == (5, 5)
    assert view.why == "connection refused"
    (row,) = store.queues(15)
    assert (row.stale_seconds, row.unreachable, row.level) == (5, True, Severity.CRITICAL)
    assert store.connections(99)[0].retry_in_seconds == 0


def test_it_comes_back_by_itself() -> None:
    store = Store({"a": 1.0}, now=0)
    store.take("a", Reading("any", error=LOST, retry_seconds=8), at=1)
    assert not store.connections(2)[0].ever_answered
    store.take("a", reading(queue("q")), at=9)
    assert store.connections(9)[0].link is Link.ALIVE
    assert store.connections(9)[0].why == ""
    assert store.queues(9)[0].stale_seconds is None


def test_an_error_that_is_no_lost_connection_has_another_word() -> None:
    store = Store({"a": 1.0}, now=0)
    busy = BusyError("Could not look.", why="canceling statement due to statement timeout")
    store.take("a", Reading("any", error=busy, retry_seconds=1), at=1)
    assert store.connections(1)[0].link is Link.FAILING


def test_a_sampler_that_says_nothing_makes_its_figures_stale() -> None:
    store = Store({"a": 10.0}, now=0)
    store.take("a", reading(queue("q")), at=0)
    assert store.connections(15)[0].link is Link.ALIVE
    assert store.queues(15)[0].stale_seconds is None
    assert store.connections(15.1)[0].link is Link.SILENT
    assert store.queues(16)[0].stale_seconds == 16
    assert not store.queues(16)[0].unreachable


def test_one_connections_trouble_is_not_the_others() -> None:
    store = Store({"a": 1.0, "b": 1.0}, now=0)
    store.take("a", reading(queue("q")), at=1)
    store.take("b", reading(queue("q")), at=1)
    store.take("b", Reading("any", error=LOST, retry_seconds=8), at=2)
    a, b = store.queues(3)
    assert (a.stale_seconds, b.stale_seconds) == (None, 2)
    assert a.key != b.key
    assert (a.place, b.place) == ("a", "b")


def test_a_name_alone_is_enough_unless_two_schemas_have_it() -> None:
    store = Store({"a": 1.0}, now=0)
    namesakes = [replace(queue("q"), schema=schema) for schema in ("public", "x.y")]
    store.take("a", reading(*namesakes, queue("other")), at=1)
    assert [view.label for view in store.queues(1)] == ["public.q", "x.y.q", "other"]
    assert len({view.key for view in store.queues(1)}) == 3


def test_a_dropped_queue_goes() -> None:
    store = Store({"a": 1.0}, now=0)
    store.take("a", reading(queue("q"), queue("r")), at=1)
    store.take("a", reading(queue("r")), at=2)
    assert [view.label for view in store.queues(2)] == ["r"]


def test_a_trend_keeps_the_most_of_each_five_seconds_and_its_gaps() -> None:
    store = Store({"a": 1.0}, now=0)
    for at, ready in ((100, 3), (102, 9), (104, 4), (106, None), (110, 5)):
        store.take("a", reading(queue("q", ready=ready)), at=at)
    store.take("a", Reading("any", error=LOST, retry_seconds=8), at=111)
    (view,) = store.queues(121)
    assert view.trend[-6:] == (None, 9, None, 5, None, None)
