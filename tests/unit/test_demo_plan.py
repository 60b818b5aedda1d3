"""What the demo promises of its traffic and faults, and the words of its messages."""

import json
import random
import signal
import threading

import pytest

from console.demo import child, plan
from console.demo.traffic import error_text, payload
from console.designs import designs_on
from console.engines import product


def test_one_queue_of_every_design() -> None:
    assert sorted(lane.design for lane in plan.DEMO_QUEUES) == sorted(designs_on("postgresql"))
    assert len({lane.name for lane in plan.DEMO_QUEUES}) == len(plan.DEMO_QUEUES)


def test_half_of_the_traffic_flows_at_any_time() -> None:
    for lane in plan.DEMO_QUEUES:
        for now in (tenths / 10 for tenths in range(0, 6000, 5)):
            assert lane.capacity_at(now) >= lane.rate_at(now) / 2 > 0, (lane.name, now)


def test_every_passing_fault_begins_early_and_ends() -> None:
    passing = [
        lane.rush or lane.slowness for lane in plan.DEMO_QUEUES if lane.rush or lane.slowness
    ]
    for fault in (*passing, plan.HOLDING):
        assert fault is not None
        assert not fault.is_on(0)
        assert any(fault.is_on(tenths / 10) for tenths in range(50))
        assert fault.lasting_seconds <= fault.every_seconds / 2


def test_rush_fills_the_ring() -> None:
    (ring,) = (lane for lane in plan.DEMO_QUEUES if lane.design == "ring")
    assert ring.rush is not None
    surplus = (ring.rush_rate - ring.capacity) * ring.rush.lasting_seconds
    assert surplus > 2 * int(ring.options["size"])


def test_held_rows_are_of_a_fifo_that_skips_them() -> None:
    (lane,) = (lane for lane in plan.DEMO_QUEUES if lane.name == plan.HELD_QUEUE)
    assert lane.design == "fifo"
    assert lane.queue(product("postgresql")).options["order"] == "lax"


def test_no_more_than_fifty_broken_messages_a_queue() -> None:
    assert plan.ERRORS_AT_MOST + plan.KILLED_AT_MOST * plan.CLAIMS_OF_KILLED <= 50


def test_payloads_are_small_json() -> None:
    for lane in plan.DEMO_QUEUES:
        chance = random.Random(1)
        texts = [payload(lane.name, number, chance) for number in range(100)]
        assert [json.loads(text)["id"] for text in texts] == list(range(100))
        assert max(len(text.encode()) for text in texts) < 300


@pytest.mark.parametrize("queue", plan.FAILING_QUEUES)
def test_errors_are_of_a_few_kinds_with_other_details_each(queue: str) -> None:
    chance = random.Random(1)
    texts = {error_text(queue, str(number), chance) for number in range(50)}
    assert len(texts) > 40
    assert len({text[:5] for text in texts}) <= 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_noted_signal_only_sets_the_event(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with child.signals_noted() as event:
        signal.raise_signal(number)
        assert event.is_set()
    assert signal.getsignal(number) == before


def test_held_signal_takes_effect_afterwards() -> None:
    finished = False

    def signals_deferred() -> None:
        nonlocal finished
        with child.signals_deferred():
            signal.raise_signal(signal.SIGINT)
            finished = True

    with pytest.raises(KeyboardInterrupt):
        signals_deferred()
    assert finished


def test_held_signal_is_noted_outside() -> None:
    with child.signals_noted() as outer:
        with child.signals_deferred() as inner:
            signal.raise_signal(signal.SIGINT)
            assert inner.is_set()
            assert not outer.is_set()
        assert outer.is_set()


def test_signals_are_left_alone_outside_the_main_thread() -> None:
    seen: list[bool] = []

    def hold() -> None:
        with child.signals_deferred() as event:
            seen.append(event.is_set())

    thread = threading.Thread(target=hold)
    thread.start()
    thread.join()
    assert seen == [False]
