"""When a ring is full by what its hours usually have: in the overview, and in its figures."""

from dataclasses import replace
from datetime import UTC, datetime

from console.catalog import installed_queue
from console.designs import design
from console.doctor.finding import Diagnosis
from console.forecast_files import HOURS
from console.monitor.limits import DEFAULTS
from console.monitor.recording.forecast import Band, Expected, Forecast
from console.monitor.sampler import Reading
from console.monitor.snapshot import QueueSnapshot
from console.tui.store import Store
from console.tui.views import QueueView
from console.tui.widgets.queue_columns import COLUMNS
from console.tui.widgets.queue_detail import pieces
from tests.tui.feeds import queue

NOW = datetime(2026, 3, 23, 9, 20, tzinfo=UTC)
"""A Monday."""
HOUR = Expected(Band(900, 1_000, 1_100), Band(400, 500, 600), Band(400, 500, 600))
KNOWN = Forecast(dict.fromkeys(range(HOURS), HOUR), UTC, 8, 56, NOW)
RING = installed_queue("public", "orders", design("ring"), {})


def view(seen: QueueSnapshot, known: Forecast | None, at: float = 10.0) -> QueueView:
    """What the store makes of a sample, and of what the doctor knows since 10 s."""
    store = Store({"prod": 1.0}, 0.0)
    store.take("prod", Reading("prod", (seen,)), 0.0)
    store.take_diagnoses("prod", [Diagnosis(RING, (), forecast=known)], 0.0, NOW, next_seconds=30.0)
    store.take("prod", Reading("prod", (replace(seen, ready=1),)), at)
    (found,) = store.queues(at)
    return found


def told(of: QueueView) -> tuple[str, str]:
    """The column of the overview, and the figures of the queue's own screen."""
    (column,) = (one for one in COLUMNS if one.name == "full_in")
    figures = {name: words for name, words, _ in pieces(of.snapshot, DEFAULTS, 160)}
    return column.cell(of, column.least).text, figures.get("full in", figures.get("filling", ""))


def ring(push: float | None, pop: float | None) -> QueueSnapshot:
    return queue("orders", "ring", gap=0, capacity=2_000, push_per_second=push, pop_per_second=pop)


def test_a_ring_that_does_not_fill_now_says_when_it_usually_would() -> None:
    draining = ring(0.1, 0.4)
    assert told(view(draining, None)) == ("not filling", "no")
    assert told(view(draining, Forecast(why="12 days"))) == ("not filling", "no")
    assert told(view(draining, KNOWN)) == ("≈4 h", "at Monday's rate: 04:00")
    assert told(view(ring(None, None), KNOWN)) == ("≈4 h", "at Monday's rate: 04:00")


def test_what_the_present_rate_says_is_never_lost() -> None:
    soon, slowly = ring(2.0, 1.0), ring(0.2, 0.1)
    assert told(view(soon, KNOWN)) == told(view(soon, None)) == ("≈33 min 20 s", "≈33 min 20 s")
    assert told(view(slowly, None))[1] == "≈5 h 33 min"
    assert told(view(slowly, KNOWN)) == ("≈4 h", "≈5 h 33 min; at Monday's rate: 04:00")
