"""The demo's traffic and faults, and the texts of its messages."""

import json
import random
import signal
import threading

import pytest

from console.designs import designs_on
from console.engines import product
from console.features.demo import child, plan
from console.features.demo.traffic import error_text, payload


def test_the_demo_has_one_queue_of_every_design() -> None:
    assert sorted(demo_queue.design for demo_queue in plan.DEMO_QUEUES) == sorted(
        designs_on("postgresql")
    )
    assert len({demo_queue.name for demo_queue in plan.DEMO_QUEUES}) == len(plan.DEMO_QUEUES)


def test_capacity_is_never_below_half_of_the_traffic() -> None:
    for demo_queue in plan.DEMO_QUEUES:
        for now in (tenths / 10 for tenths in range(0, 6000, 5)):
            assert demo_queue.capacity_at(now) >= demo_queue.rate_at(now) / 2 > 0, (
                demo_queue.name,
                now,
            )


def test_every_temporary_fault_begins_early_and_ends() -> None:
    temporary = [
        demo_queue.rush or demo_queue.slowness
        for demo_queue in plan.DEMO_QUEUES
        if demo_queue.rush or demo_queue.slowness
    ]
    for fault in (*temporary, plan.HOLDING):
        assert fault is not None
        assert not fault.is_on(0)
        assert any(fault.is_on(tenths / 10) for tenths in range(50))
        assert fault.lasting_seconds <= fault.every_seconds / 2


def test_a_rush_fills_the_ring() -> None:
    (ring,) = (demo_queue for demo_queue in plan.DEMO_QUEUES if demo_queue.design == "ring")
    assert ring.rush is not None
    surplus = (ring.rush_rate - ring.capacity) * ring.rush.lasting_seconds
    assert surplus > 2 * int(ring.options["size"])


def test_held_rows_are_in_a_fifo_queue_with_lax_order() -> None:
    (demo_queue,) = (
        demo_queue for demo_queue in plan.DEMO_QUEUES if demo_queue.name == plan.HELD_QUEUE
    )
    assert demo_queue.design == "fifo"
    assert demo_queue.queue(product("postgresql")).options["order"] == "lax"


def test_a_queue_has_at_most_fifty_broken_messages() -> None:
    assert plan.ERRORS_AT_MOST + plan.KILLED_AT_MOST * plan.CLAIMS_OF_KILLED <= 50


def test_payloads_are_small_json() -> None:
    for demo_queue in plan.DEMO_QUEUES:
        chance = random.Random(1)
        texts = [payload(demo_queue.name, number, chance) for number in range(100)]
        assert [json.loads(text)["id"] for text in texts] == list(range(100))
        assert max(len(text.encode()) for text in texts) < 300


@pytest.mark.parametrize("queue", plan.FAILING_QUEUES)
def test_error_texts_have_few_kinds_and_many_details(queue: str) -> None:
    chance = random.Random(1)
    texts = {error_text(queue, str(number), chance) for number in range(50)}
    assert len(texts) > 40
    assert len({text[:5] for text in texts}) <= 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_noted_signal_only_sets_its_event(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with child.signals_noted() as event:
        signal.raise_signal(number)
        assert event.is_set()
    assert signal.getsignal(number) == before


def test_a_deferred_signal_takes_effect_afterwards() -> None:
    finished = False

    def interrupted() -> None:
        nonlocal finished
        with child.signals_deferred():
            signal.raise_signal(signal.SIGINT)
            finished = True

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert finished


def test_a_deferred_signal_is_noted_by_the_outer_context() -> None:
    with child.signals_noted() as outer:
        with child.signals_deferred() as inner:
            signal.raise_signal(signal.SIGINT)
            assert inner.is_set()
            assert not outer.is_set()
        assert outer.is_set()


def test_signal_handlers_are_unchanged_outside_the_main_thread() -> None:
    events: list[bool] = []

    def defer() -> None:
        with child.signals_deferred() as event:
            events.append(event.is_set())

    thread = threading.Thread(target=defer)
    thread.start()
    thread.join()
    assert events == [False]
