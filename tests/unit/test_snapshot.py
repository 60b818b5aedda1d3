"""From samples to figures: estimated, unknown and absent ones, and rates that are never wrong."""

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.catalog import Queue, installed_queue
from console.designs import DESIGNS, Flow
from console.features.presets.designs import LIBRARIES
from console.figures import COUNTED
from console.monitor.owners import Claim, Evidence, Holder
from console.monitor.rates import Rates, RateWindow, StatusRow, _Total
from console.monitor.sample import QueueSample
from console.monitor.snapshot import QueueSnapshot, snapshot

COLUMNS: dict[str, Any] = {field.name: None for field in fields(StatusRow)}
COUNTERS = dict.fromkeys(("rows_estimated", "inserted", "updated", "deleted"), 0)
NOTHING = StatusRow(**COLUMNS | COUNTERS | {"schema": "public", "queue": "q", "ready": 0})
RING = replace(NOTHING, next_push=1, next_pop=1, base=1, capacity=100)


def queue(design: str, **options: str) -> Queue:
    definition = DESIGNS[design]
    return installed_queue("public", "q", definition, definition.complete_options(options))


def test_errors_that_a_library_keeps_in_another_table_are_not_said_to_be_impossible() -> None:
    jobs = installed_queue("public", "jobs", LIBRARIES["laravel"], {})
    of = {
        one.design.name: snapshot(QueueSample(one, NOTHING), "here")
        for one in (queue("fifo"), jobs)
    }
    assert {name: seen.text_of("errors") for name, seen in of.items()} == {
        "fifo": "·",
        "laravel": "?",
    }
    assert {name: seen.text_of("done") for name, seen in of.items()} == dict.fromkeys(of, "·")
    assert all("errors" not in seen.unknown for seen in of.values()), "check has no limit of it"


def test_a_field_that_the_design_lacks_is_null_but_not_unknown() -> None:
    result = snapshot(QueueSample(queue("fifo"), replace(NOTHING, ready=3, age_seconds=1.0)), "c")
    assert (result.claimed, result.stuck, result.gap, result.capacity) == (None, None, None, None)
    assert set(result.unknown) == {"push_per_second", "pop_per_second", "holders"}


@pytest.mark.parametrize("design", DESIGNS)
def test_unreadable_figures_are_unknown_and_never_zero(design: str) -> None:
    result = snapshot(QueueSample(queue(design), None, "no right to read it"), "c")
    figures = {name: value for name, value in result.as_json().items() if name in result.unknown}
    assert "ready" in figures
    assert set(figures.values()) == {None}
    assert result.problem == "no right to read it"


def test_an_empty_queue_has_no_age_and_a_heap_s_age_is_unknown() -> None:
    assert "age_seconds" not in snapshot(QueueSample(queue("fifo"), NOTHING), "c").unknown
    heap = replace(NOTHING, ready=1)
    assert "age_seconds" in snapshot(QueueSample(queue("heap"), heap), "c").unknown


def test_above_the_counting_bound_depth_is_an_estimate_of_at_least_the_bound() -> None:
    many = replace(NOTHING, ready=COUNTED + 1, rows_estimated=2_000_000)
    result = snapshot(QueueSample(queue("fifo"), many), "c")
    assert (result.ready, result.estimated) == (2_000_000, ("ready",))
    stale = replace(many, rows_estimated=17)
    assert snapshot(QueueSample(queue("fifo"), stale), "c").ready == COUNTED
    exact = replace(NOTHING, ready=COUNTED)
    assert snapshot(QueueSample(queue("fifo"), exact), "c").estimated == ()


def test_an_estimate_excludes_rows_counted_in_other_states() -> None:
    row = replace(
        NOTHING,
        ready=5,
        claimed=7,
        stuck=2,
        errors=1,
        done=COUNTED + 1,
        rows_estimated=50_013,
        age_seconds=1.0,
    )
    result = snapshot(QueueSample(queue("status"), row), "c")
    assert (result.ready, result.claimed, result.errors, result.done) == (5, 7, 1, 50_000)
    assert result.estimated == ("done",)


def test_a_ring_s_gap_is_exact_and_its_depth_an_estimate_where_it_is_large() -> None:
    row = replace(RING, ready=4_900, next_push=15_001, next_pop=10_001, capacity=20_000)
    result = snapshot(QueueSample(queue("ring"), replace(row, age_seconds=1.0)), "c")
    assert (result.ready, result.gap, result.capacity, result.estimated) == (
        4_900,
        5_000,
        20_000,
        (),
    )
    uncounted = replace(row, ready=None, next_push=30_001, age_seconds=1.0)
    result = snapshot(QueueSample(queue("ring"), uncounted), "c")
    assert (result.ready, result.gap, result.estimated) == (20_000, 20_000, ("ready",))


def rates(flow: Flow, *rows: StatusRow | None, counts_rows: bool = True) -> list[Rates]:
    window = RateWindow(flow)
    return [window.add(float(at), row, counts_rows=counts_rows) for at, row in enumerate(rows)]


def test_a_server_that_counts_no_rows_has_unknown_rates() -> None:
    assert rates(Flow.DELETED, NOTHING, NOTHING, counts_rows=False)[1] == Rates(None, None)
    ring = rates(Flow.NUMBERS, RING, replace(RING, next_push=3), counts_rows=False)
    assert ring[1] == Rates(2.0, 0.0)


@given(st.lists(st.sampled_from(["push", "pop", "complete", "fail", "release"]), max_size=40))
def test_pops_of_kept_rows_are_derived_from_updates_deletes_and_claims(events: list[str]) -> None:
    """The law behind Flow.CLAIMED: whatever happens to the claims, each pop counts once."""
    claimed = updated = deleted = inserted = pops = errors = 0
    ready = 100
    for event in events:
        inserted += event == "push"
        ready += event == "push"
        if event == "pop":
            pops, claimed, updated, ready = pops + 1, claimed + 1, updated + 1, ready - 1
        elif event != "push" and claimed:
            claimed -= 1
            ready += event == "release"
            errors += event == "fail"
            deleted += event == "complete"
            updated += event in {"fail", "release"}
    counted = replace(NOTHING, inserted=inserted, updated=updated, deleted=deleted)
    row = replace(counted, ready=ready, claimed=claimed, errors=errors, stuck=0)
    _, found = rates(Flow.CLAIMED, replace(NOTHING, claimed=0, ready=100, errors=0), row)
    assert found == Rates(inserted, pops)


def test_too_many_claims_to_count_leave_the_pop_rate_unknown() -> None:
    many = replace(NOTHING, claimed=COUNTED + 1, updated=50_000)
    assert rates(Flow.CLAIMED, many, many)[1] == Rates(0.0, None)


def a_ring(**figures: object) -> QueueSnapshot:
    row = replace(RING, next_push=1_001, next_pop=1, ready=1_000, capacity=5_000, age_seconds=1.0)
    result = snapshot(QueueSample(queue("ring"), row), "c", Rates(50.0, 30.0))
    return replace(result, **figures)  # type: ignore[arg-type]


def test_time_to_full_and_the_time_gained_by_a_resize() -> None:
    result = a_ring(filling_per_second=(10.0, 40.0))
    assert result.full_in_seconds == 200.0
    assert result.full_in_range_seconds == (100.0, 400.0)
    assert result.resize_buys_seconds(10_000) == 250.0
    assert a_ring(gap=5_000).full_in_seconds == 0.0
    may_never = a_ring(filling_per_second=(-5.0, 45.0))
    assert may_never.full_in_range_seconds[1] is None


@pytest.mark.parametrize(
    "figures",
    [{"push_per_second": None}, {"pop_per_second": 50.0}, {"pop_per_second": 60.0}, {"gap": None}],
)
def test_a_ring_that_does_not_fill_or_has_unknown_figures_has_no_time_to_full(
    figures: dict[str, object],
) -> None:
    result = a_ring(**figures)
    assert (result.full_in_seconds, result.resize_buys_seconds(10_000)) == (None, None)


def test_the_range_of_a_ring_s_fill_rate_contains_its_mean() -> None:
    window = RateWindow(Flow.NUMBERS)
    for at, pushed in enumerate([0, 100, 220, 300, 420]):
        rates = window.add(
            float(at), replace(RING, next_push=1 + pushed, next_pop=1 + 50 * at), counts_rows=True
        )
    assert rates.net == 55.0
    assert rates.net_range is not None
    low, high = rates.net_range
    assert 30.0 < low < 55.0 < high < 80.0
    two = RateWindow(Flow.NUMBERS)
    two.add(0.0, RING, counts_rows=True)
    assert two.add(1.0, RING, counts_rows=True).net_range is None


def test_rows_that_came_or_went_uncounted_make_a_rate_unknown_and_not_zero() -> None:
    first = replace(NOTHING, ready=5, inserted=10, deleted=5)
    more = rates(Flow.DELETED, first, replace(first, ready=8))[1]
    assert more == Rates(None, 0.0)
    fewer = rates(Flow.DELETED, first, replace(first, ready=1))[1]
    assert fewer == Rates(0.0, None)
    moved = rates(Flow.CLAIMED, replace(first, claimed=0), replace(first, ready=4, claimed=1))[1]
    assert moved.push == 0.0


def test_holders_are_counted_even_if_the_queue_cannot_be_read() -> None:
    holders = tuple(
        Holder(pid, None, None, None, seconds, None, seconds)
        for pid, seconds in ((7, 40.0), (8, None))
    )
    result = snapshot(QueueSample(queue("fifo"), None, "locked", holders=holders), "c")
    assert (result.holders, result.held_seconds, len(result.held_by)) == (2, 40.0, 2)
    assert "holders" not in result.unknown


def test_several_deep_states_without_an_estimate_are_unknown() -> None:
    row = replace(NOTHING, ready=COUNTED + 1, done=COUNTED + 1, claimed=0, rows_estimated=10**6)
    result = snapshot(QueueSample(queue("status"), row), "c")
    assert (result.ready, result.done, result.estimated) == (None, None, ())
    assert {"ready", "done"} <= set(result.unknown)
    estimated = QueueSample(queue("status"), row, estimates={"ready": 25_000.4, "done": 9.0})
    result = snapshot(estimated, "c")
    assert (result.ready, result.done) == (25_000, COUNTED)
    assert result.estimated == ("ready", "done")


def test_too_many_stuck_claims_to_count_are_estimated_as_all_claims() -> None:
    row = replace(NOTHING, ready=0, claimed=COUNTED + 1, stuck=COUNTED + 1, errors=0)
    result = snapshot(QueueSample(queue("claim"), row, estimates={"claimed": 70_000.0}), "c")
    assert (result.claimed, result.stuck, result.estimated) == (
        70_000,
        70_000,
        ("claimed", "stuck"),
    )


def test_the_json_object_is_plain_data() -> None:
    claim = Claim("7", 3.0, "pid=1 start=x", 1, "pid=1 start=x", owner=Evidence.ALIVE)
    sample = QueueSample(queue("claim"), replace(NOTHING, claimed=1), claims=(claim,), holders=())
    content = json.loads(json.dumps(snapshot(sample, "c").as_json()))
    assert content["claims"][0]["owner"] == "alive"
    assert content["held_by"] == []


SECONDS = 10.0
UNKNOWN = Rates(None, None)
STEP = st.tuples(
    st.floats(0.1, 30.0),
    st.sampled_from(["flow", "idle", "reset", "missed", "unreadable"]),
    st.integers(1, 1000),
    st.integers(0, 1000),
)


STEPS_OF_A_QUEUE = st.lists(
    st.tuples(st.sampled_from(["push", "pop", "undone push", "undone pop"]), st.integers(0, 300)),
    max_size=30,
)


def row(flow: Flow, pushes: int, pops: int, base: int) -> StatusRow:
    if flow is Flow.NUMBERS:
        return replace(RING, next_push=pushes, next_pop=pops, base=base)
    there = pushes - pops
    ready = min(there, COUNTED + 1)
    return replace(NOTHING, inserted=pushes, deleted=pops, ready=ready, rows_estimated=there)


def unreadable(flow: Flow) -> StatusRow:
    """The queue was sampled, its counters could not be read."""
    if flow is Flow.NUMBERS:
        return replace(RING, next_push=None, next_pop=None)
    return replace(NOTHING, inserted=None, updated=None, deleted=None)


@given(st.sampled_from([Flow.DELETED, Flow.NUMBERS]), st.lists(STEP, max_size=30))
def test_rates_are_computed_between_two_resets_of_the_counters(
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
            # Numbers are moved up by a relay; an engine's counters restart at zero.
            base += 1
            pushes, pops = (pushes + 7, pops + 7) if flow is Flow.NUMBERS else (0, 0)
            life = []
        elif event == "flow":
            pushes += more_pushes
            pops = min(pops + more_pops, pushes)
        rates = window.add(now, row(flow, pushes, pops, base), counts_rows=True)
        if not life:
            assert rates == UNKNOWN
        else:
            assert rates.push is not None
            assert rates.pop is not None
            # From the latest sample that is as old as the window, or the oldest one.
            at, first_pushes, first_pops = next(
                (earlier for earlier in reversed(life) if now - earlier[0] >= SECONDS), life[0]
            )
            assert abs(rates.push - (pushes - first_pushes) / (now - at)) < 1e-6
            assert abs(rates.pop - (pops - first_pops) / (now - at)) < 1e-6
            if event == "flow":
                assert rates.push > 0
        life.append((now, pushes, pops))


def test_rates_restart_when_a_counter_becomes_readable() -> None:
    window = RateWindow(Flow.DELETED)
    incomplete = replace(NOTHING, updated=None)
    assert window.add(0.0, incomplete, counts_rows=True) == UNKNOWN
    assert window.add(1.0, NOTHING, counts_rows=True) == UNKNOWN
    pushed = replace(NOTHING, inserted=3, ready=3)
    assert window.add(2.0, pushed, counts_rows=True) == Rates(3.0, 0.0)


@given(STEPS_OF_A_QUEUE, st.booleans(), st.integers(0, 900))
def test_rates_are_of_what_was_committed(
    steps: list[tuple[str, int]], estimated: bool, held: int
) -> None:
    """Whatever is rolled back on one side, the engine counts it and the rates do not; the other
    side is exact too."""
    window = RateWindow(Flow.DELETED, 1e9)
    inserted, deleted, pushed, popped = held, 0, 0, 0
    sides = {kind for kind, _ in steps if kind.startswith("undo")}
    for second, (kind, most) in enumerate([("push", 0), *steps]):
        number = min(most, held) if "pop" in kind else most
        if kind in {"push", "undone push"}:
            inserted += number
        else:
            deleted += number
        if kind == "push":
            pushed, held = pushed + number, held + number
        elif kind == "pop":
            popped, held = popped + number, held - number
        ready = COUNTED + 1 if estimated else min(held, COUNTED + 1)
        one = replace(NOTHING, inserted=inserted, deleted=deleted, ready=ready, rows_estimated=held)
        rates = window.add(float(second), one, counts_rows=True)
    if len(sides) < 2:
        assert (rates.pushed, rates.popped) == (pushed, popped)
    else:
        assert (rates.pushed or 0) >= pushed
        assert (rates.popped or 0) >= popped


def test_two_samples_at_the_same_moment_have_no_rates() -> None:
    window = RateWindow(Flow.NUMBERS)
    window.add(1.0, RING, counts_rows=True)
    assert window.add(1.0, replace(RING, next_push=9), counts_rows=True) == UNKNOWN


STEPS = st.lists(st.one_of(st.integers(0, 50), st.sampled_from(["reset", "missed"])), max_size=30)


@given(STEPS)
def test_a_total_counts_every_observed_push_and_never_falls(steps: list[int | str]) -> None:
    window = RateWindow(Flow.NUMBERS)
    base, number, expected = 1, 1, 0
    last: float | None = None
    begun = False
    for now, step in enumerate(steps):
        sampled: StatusRow | None = None
        if step == "reset":  # a relay: numbers are moved, not drawn
            base, number, begun = base + 1, number + 1_000, True
            sampled = replace(RING, next_push=number, base=base)
        elif step == "missed":
            begun = False
        elif isinstance(step, int):
            number += step
            expected += step if begun else 0
            begun = True
            sampled = replace(RING, next_push=number, base=base)
        pushed = window.add(float(now), sampled, counts_rows=True).pushed
        assert pushed == (None if sampled is None else expected)
        assert pushed is None or last is None or pushed >= last
        last = pushed if pushed is not None else last


def test_a_count_that_falls_back_is_not_counted_twice() -> None:
    total = _Total()
    counts = [10.0, 12.0, 11.5, 12.0, 13.0, None, 14.0]
    assert [total.add(count, restarted=False) for count in counts] == [0, 2, 2, 2, 3, None, 4]
    assert total.add(5.0, restarted=True) == 4
    assert total.add(6.0, restarted=False) == 5
