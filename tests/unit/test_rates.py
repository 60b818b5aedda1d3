"""Rates over a window: whatever the counters do, no false zero and nothing negative."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from console.designs import Flow
from console.monitor.figures import Rates, RateWindow, StatusRow, _Total
from tests.unit.test_snapshot import NOTHING, RING

SECONDS = 10.0
UNKNOWN = Rates(None, None)
STEP = st.tuples(
    st.floats(0.1, 30.0),
    st.sampled_from(["flow", "idle", "reset", "missed", "unreadable"]),
    st.integers(1, 1000),
    st.integers(0, 1000),
)


def row(flow: Flow, pushes: int, pops: int, base: int) -> StatusRow:
    if flow is Flow.NUMBERS:
        return replace(RING, next_push=pushes, next_pop=pops, base=base)
    return replace(NOTHING, inserted=pushes, deleted=pops)


def unreadable(flow: Flow) -> StatusRow:
    """The queue was seen, its counters were not."""
    if flow is Flow.NUMBERS:
        return replace(RING, next_push=None, next_pop=None)
    return replace(NOTHING, inserted=None, updated=None, deleted=None)


@given(st.sampled_from([Flow.DELETED, Flow.NUMBERS]), st.lists(STEP, max_size=30))
def test_rates_tell_the_flow_of_one_life_of_the_counters(
    flow: Flow, steps: list[tuple[float, str, int, int]]
) -> None:
    window = RateWindow(flow, SECONDS)
    now, pushes, pops, base = 0.0, 5000, 5000, 1
    life: list[tuple[float, int, int]] = []
    for elapsed, event, more_pushes, more_pops in steps:
        now += elapsed
        if event == "missed":
            assert window.add(now, None, counts_rows=True) == UNKNOWN
            life = []
            continue
        if event == "unreadable":
            assert window.add(now, unreadable(flow), counts_rows=True) == UNKNOWN
            life = []
            continue
        if event == "reset" and (flow is Flow.NUMBERS or pushes or pops):
            # Numbers are moved up by a relay; an engine's counters begin at nothing.
            base += 1
            pushes, pops = (pushes + 7, pops + 7) if flow is Flow.NUMBERS else (0, 0)
            life = []
        elif event == "flow":
            pushes, pops = pushes + more_pushes, pops + more_pops
        rates = window.add(now, row(flow, pushes, pops, base), counts_rows=True)
        if not life:
            assert rates == UNKNOWN
        else:
            assert rates.push is not None
            assert rates.pop is not None
            # From the latest sample that is as old as the window, or the oldest one.
            at, first_pushes, first_pops = next(
                (seen for seen in reversed(life) if now - seen[0] >= SECONDS), life[0]
            )
            assert abs(rates.push - (pushes - first_pushes) / (now - at)) < 1e-6
            assert abs(rates.pop - (pops - first_pops) / (now - at)) < 1e-6
            if event == "flow":
                assert rates.push > 0
        life.append((now, pushes, pops))


def test_a_counter_that_was_not_readable_before_begins_a_new_life() -> None:
    window = RateWindow(Flow.DELETED)
    unseen = replace(NOTHING, updated=None)
    assert window.add(0.0, unseen, counts_rows=True) == UNKNOWN
    assert window.add(1.0, NOTHING, counts_rows=True) == UNKNOWN
    assert window.add(2.0, replace(NOTHING, inserted=3), counts_rows=True) == Rates(3.0, 0.0)


def test_two_looks_at_the_same_moment_have_no_rates() -> None:
    window = RateWindow(Flow.NUMBERS)
    window.add(1.0, RING, counts_rows=True)
    assert window.add(1.0, replace(RING, next_push=9), counts_rows=True) == UNKNOWN


STEPS = st.lists(st.one_of(st.integers(0, 50), st.sampled_from(["reset", "missed"])), max_size=30)


@given(STEPS)
def test_a_total_has_every_push_that_was_seen_and_never_falls(steps: list[int | str]) -> None:
    window = RateWindow(Flow.NUMBERS)
    base, number, expected = 1, 1, 0
    last: float | None = None
    begun = False
    for now, step in enumerate(steps):
        seen: StatusRow | None = None
        if step == "reset":  # a relay: numbers are moved, not drawn
            base, number, begun = base + 1, number + 1_000, True
            seen = replace(RING, next_push=number, base=base)
        elif step == "missed":
            begun = False
        elif isinstance(step, int):
            number += step
            expected += step if begun else 0
            begun = True
            seen = replace(RING, next_push=number, base=base)
        found = window.add(float(now), seen, counts_rows=True).pushed
        assert found == (None if seen is None else expected)
        assert found is None or last is None or found >= last
        last = found if found is not None else last


def test_a_count_that_trails_is_not_counted_twice() -> None:
    total = _Total()
    counts = [10.0, 12.0, 11.5, 12.0, 13.0, None, 14.0]
    assert [total.add(count, restarted=False) for count in counts] == [0, 2, 2, 2, 3, None, 4]
    assert total.add(5.0, restarted=True) == 4
    assert total.add(6.0, restarted=False) == 5
