"""What a sampler remembers of earlier samples: what was slow, is deep, or failed."""

from dataclasses import replace

import pytest

from console.catalog import Queue, installed_queue
from console.designs import DESIGNS
from console.engines import product
from console.figures import COUNTED
from console.monitor.memory import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    RECOUNT_EVERY,
    SURELY_DEEP,
    Memory,
)
from console.monitor.rates import MAY_BE_SLOW
from tests.unit.test_snapshot import NOTHING, queue

FIFO = queue("fifo")
DEEP = replace(NOTHING, ready=COUNTED + 1)
MANY = {"ready": 5e6, "scheduled": None, "claimed": None, "errors": None, "done": None}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def named(name: str) -> Queue:
    design = DESIGNS["fifo"]
    return installed_queue("public", name, design, design.complete_options({}))


def test_a_slow_figure_is_left_out_for_longer_and_longer() -> None:
    clock = Clock()
    memory = Memory(clock)
    pause = FIRST_PAUSE_SECONDS
    while pause < LONGEST_PAUSE_SECONDS:
        memory.was_slow(FIFO, "age_seconds")
        assert memory.left_out(FIFO) == {"age_seconds"}
        clock.now += pause - 0.01
        assert memory.due(FIFO) == ()
        clock.now += 0.02
        assert memory.due(FIFO) == ("age_seconds",)
        assert memory.left_out(FIFO) == {"age_seconds"}  # it is tried alone
        pause *= 2
    memory.was_slow(FIFO, "age_seconds")
    clock.now += LONGEST_PAUSE_SECONDS
    assert memory.due(FIFO) == ("age_seconds",)
    memory.was_quick(FIFO, ["age_seconds"])
    assert memory.left_out(FIFO) == set()
    memory.was_slow(FIFO, "age_seconds")
    clock.now += FIRST_PAUSE_SECONDS
    assert memory.due(FIFO) == ("age_seconds",)


def test_a_figure_that_may_be_slow_is_due_at_once() -> None:
    memory = Memory(Clock())
    memory.may_be_slow(FIFO, MAY_BE_SLOW)
    assert memory.due(FIFO) == MAY_BE_SLOW
    assert memory.never_tried(FIFO)
    memory.may_be_slow(FIFO, MAY_BE_SLOW, tried=True)
    assert not memory.never_tried(FIFO)
    assert memory.due(FIFO) == MAY_BE_SLOW


def test_a_figure_that_was_slow_is_unknown_and_never_a_zero() -> None:
    memory = Memory(Clock())
    memory.was_slow(FIFO, "ready")
    assert memory.complete(FIFO, NOTHING).ready is None


def test_a_deep_state_is_counted_again_in_one_of_ten_samples() -> None:
    memory = Memory()
    counted = []
    for _ in range(3 * RECOUNT_EVERY):
        counted.append("ready" not in memory.left_out(FIFO))
        row = memory.complete(FIFO, DEEP if counted[-1] else NOTHING)
        assert row.ready == COUNTED + 1
        memory.keep_deep(FIFO, row, MANY)
    assert counted == [at % RECOUNT_EVERY == 0 for at in range(3 * RECOUNT_EVERY)]


def test_barely_deep_states_are_counted_in_every_sample() -> None:
    memory = Memory()
    barely_deep = {**MANY, "ready": SURELY_DEEP - 1.0}
    assert memory.keep_deep(FIFO, DEEP, barely_deep)
    assert memory.left_out(FIFO) == set()
    assert memory.keep_deep(FIFO, DEEP, MANY)
    assert memory.left_out(FIFO) == {"ready"}
    # It was left out of this sample, and has to be counted before it is shown.
    assert not memory.keep_deep(FIFO, memory.complete(FIFO, NOTHING), barely_deep)
    assert memory.left_out(FIFO) == set()


def test_stuck_messages_are_left_out_with_claimed_ones() -> None:
    memory = Memory()
    status = queue("status")
    row = replace(NOTHING, claimed=COUNTED + 1, stuck=COUNTED + 1, errors=3, done=0)
    memory.keep_deep(status, row, {**MANY, "claimed": 1e6})
    assert memory.left_out(status) == {"claimed", "stuck"}
    completed = memory.complete(status, replace(row, claimed=0, stuck=0))
    assert (completed.claimed, completed.stuck, completed.errors) == (COUNTED + 1, COUNTED + 1, 3)


def test_a_failed_queue_is_sampled_apart_until_it_works_again() -> None:
    memory = Memory()
    queue, two = named("one"), named("two")
    keys = {("public", "one"), ("public", "two")}
    memory.set_apart(queue, "dropped")
    memory.set_apart(two, "locked")
    memory.set_apart(queue, "dropped again")
    assert list(memory.apart(keys).items()) == [
        (("public", "two"), "locked"),
        (("public", "one"), "dropped again"),
    ]
    memory.rejoin(two)
    assert memory.apart(keys) == {("public", "one"): "dropped again"}


def test_a_removed_queue_is_forgotten() -> None:
    memory = Memory(Clock())
    queue, two = named("one"), named("two")
    for each in (queue, two):
        memory.was_slow(each, "ready")
        memory.set_apart(each, "no")
        memory.keep_deep(each, DEEP, MANY)
    memory.keep([two])
    assert memory.left_out(queue) == set()
    assert memory.left_out(two) == {"ready"}
    assert list(memory.apart({("public", "one"), ("public", "two")})) == [("public", "two")]


@pytest.mark.parametrize("changed", ["values", "queue"])
def test_a_statement_is_rendered_again_only_where_something_changed(changed: str) -> None:

    memory = Memory()
    postgresql = product("postgresql")
    first = memory.part(postgresql, FIFO, "status", {})
    assert memory.part(postgresql, queue("fifo"), "status", {}) is first
    other = queue("fifo", order="strict") if changed == "queue" else FIFO
    values = {"ready_limit": "0"} if changed == "values" else {}
    changed_part = memory.part(postgresql, other, "status", values)
    assert changed_part is not first
    assert (changed_part.text != first.text) == (changed == "values")
