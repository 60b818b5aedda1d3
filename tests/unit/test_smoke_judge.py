"""The smoke test's verdict on logs that no sound queue would produce: no fault is missed."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.actions import smoke
from console.actions.smoke_result import SmokeResult, latency_of, number_of, payload_of
from console.catalog import Queue, installed_queue
from console.designs import DESIGNS, Order
from console.load.call_log import CallLog

EXPECTED = smoke._expected()
CLEAN = {"lost": 0, "doubled": 0, "damaged": 0, "out_of_order": 0, "unfinished": 0}


def queue(design: str = "fifo", **options: str) -> Queue:
    definition = DESIGNS[design]
    return installed_queue("s", "q", definition, definition.complete_options(options))


@dataclass
class Observed:
    """What the threads observed: (consumer, id, payload) of each pop, in their order."""

    popped: list[tuple[int, int, bytes]] = field(default_factory=list)
    pushed: bool = True
    unfinished: int = 0
    errors: list[str] = field(default_factory=list)


def payload(tested: Queue, number: int) -> bytes:
    found = payload_of(number, tested)
    return found if isinstance(found, bytes) else found.encode()


def sound(tested: Queue) -> Observed:
    """The log of a sound queue: everything once, in order, the consumers taking turns."""
    numbers = [*range(EXPECTED)]
    if tested.design.order_with(tested.options) is Order.LIFO:
        numbers[: smoke._SEQUENTIAL] = numbers[: smoke._SEQUENTIAL][::-1]
    observed = Observed()
    for at, number in enumerate(numbers):
        consumer = 0 if at < smoke._SEQUENTIAL else 1 + at % smoke._CONSUMERS
        observed.popped.append((consumer, at + 1, payload(tested, number)))
    return observed


def judged(tested: Queue, observed: Observed) -> SmokeResult:
    log = CallLog(unfinished=observed.unfinished, errors=observed.errors)
    if observed.pushed:
        log.pushes.add(1, 0, smoke._SEQUENTIAL, 1)
        for producer in range(smoke._PRODUCERS):
            log.pushes.add(1, producer + 1, smoke._MESSAGES_EACH, 1)
    messages = smoke._Messages(tested)
    for consumer, _, sent in observed.popped:
        log.pops.add(1, consumer, 1, 1)
        log.heads += messages.head_of(sent)
    ids = [str(id_) for consumer, id_, _ in observed.popped if consumer]
    return smoke.judge_round(tested, "name", log, ids)


def faults(result: SmokeResult) -> dict[str, int]:
    """The faults that it counted."""
    return {name: getattr(result, name) for name in CLEAN if getattr(result, name)}


KINDS = [
    *map(queue, DESIGNS),
    *(queue(order="strict"), queue(max_bytes="8"), queue("ring", max_bytes="63")),
]


def swapped(tested: Queue, first: int, second: int) -> Observed:
    """Two messages swapped; the consumers unchanged."""
    log = sound(tested)
    (a, *one), (b, *other) = log.popped[first], log.popped[second]
    log.popped[first], log.popped[second] = (a, *other), (b, *one)  # type: ignore[assignment]
    return log


@pytest.mark.parametrize(
    "tested", KINDS, ids=lambda tested: f"{tested.design.name} {tested.options}"
)
def test_each_fault_is_detected_and_a_sound_log_passes(tested: Queue) -> None:
    result = judged(tested, sound(tested))
    assert (result.ok, faults(result)) == (True, {})
    assert (result.queue, result.design, result.messages) == ("name", tested.design.name, EXPECTED)
    for at in (0, smoke._SEQUENTIAL, EXPECTED - 1):
        log = sound(tested)
        del log.popped[at]
        result = judged(tested, log)
        assert (result.ok, faults(result)) == (False, {"lost": 1})
    log = sound(tested)
    log.popped.append(log.popped[-1])
    result = judged(tested, log)
    assert (result.ok, result.doubled) == (False, 1)
    intact = payload(tested, 100)
    for damaged in (intact[:-1], intact + b"0", intact[:0]):
        log = sound(tested)
        at = next(at for at, one in enumerate(log.popped) if one[2] == intact)
        log.popped[at] = (*log.popped[at][:2], damaged)
        # A truncated payload may equal another message's, which is then doubled.
        assert faults(judged(tested, log)) in ({"damaged": 1}, {"lost": 1, "doubled": 1})
    log = sound(tested)  # and one that nobody pushed
    log.popped.append((1, EXPECTED + 1, payload(tested, EXPECTED)))
    assert faults(judged(tested, log))["damaged"] == 1
    # Two messages of one producer that one consumer got in the wrong order.
    at = smoke._SEQUENTIAL + 10
    promises = tested.design.order_with(tested.options) in {Order.LAX, Order.STRICT, Order.DUE}
    result = judged(tested, swapped(tested, at, at + smoke._CONSUMERS))
    assert (result.ok, bool(result.out_of_order)) == (not promises, promises)


@pytest.mark.parametrize("kind", ["text", "json", "bytes"])
def test_payloads_are_distinct_fit_the_limit_and_can_be_identified(kind: str) -> None:
    for one in KINDS:
        tested = queue(one.design.name, **{**one.options, "payload": kind})
        payloads = [payload_of(number, tested) for number in range(EXPECTED)]
        assert len(set(payloads)) == EXPECTED
        assert [number_of(payload, tested) for payload in payloads] == list(range(EXPECTED))
        limit = tested.options["max_bytes"]
        sizes = [len(p if isinstance(p, bytes) else p.encode()) for p in payloads]
        assert limit == "unlimited" or max(sizes) <= int(limit)
        assert judged(tested, sound(tested)).ok


def test_a_strict_order_holds_across_consumers_a_lax_one_does_not() -> None:
    at = smoke._SEQUENTIAL + 10
    strict, lax = queue(order="strict"), queue()
    assert faults(judged(strict, swapped(strict, at, at + 1))) == {"out_of_order": 1}
    assert judged(lax, swapped(lax, at, at + 1)).ok


def test_a_lax_order_allows_any_order_of_different_producers() -> None:
    lax = queue()
    log = sound(lax)
    middle = [one for one in log.popped if one[0] == 1]
    half = len(middle) // 2
    log.popped = [one for one in log.popped if one[0] != 1] + middle[half:] + middle[:half]

    def producer(one: tuple[int, int, bytes]) -> int:
        return int(smoke._Messages(lax).head_of(one[2])[8:12])

    assert len({producer(one) for one in middle[half:]}) == 2
    # Only the producer with messages on both sides of the cut has some that come too late.
    cut = min(producer(one) for one in middle[half:])
    late = [one for one in middle[:half] if producer(one) == cut]
    assert faults(judged(lax, log)) == {"out_of_order": len(late)}


@pytest.mark.parametrize("design", ["heap", "ring", "fifo", "naive"])
def test_disorder_in_the_sequential_part_counts(design: str) -> None:
    tested = queue(design)
    promises = tested.design.order_with(tested.options) is not Order.NONE
    assert bool(judged(tested, swapped(tested, 3, 4)).out_of_order) == promises


def test_lost_claims_and_failed_calls_are_not_ok() -> None:
    tested = queue("claim")
    log = sound(tested)
    log.unfinished = 1
    assert faults(judged(tested, log)) == {"unfinished": 1}
    log = sound(tested)
    log.errors.append("Could not push.")
    result = judged(tested, log)
    assert (result.ok, result.errors) == (False, ("Could not push.",))


def test_an_empty_log_means_all_messages_are_lost() -> None:
    assert faults(judged(queue(), Observed())) == {"lost": EXPECTED}
    assert faults(judged(queue(), Observed(pushed=False))) == {"lost": EXPECTED}


@given(st.integers(0, 2**32), st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
def test_every_fault_is_counted(seed: int, lost: int, doubled: int, damaged: int) -> None:
    tested, dice = queue("heap"), random.Random(seed)
    log = sound(tested)
    dice.shuffle(log.popped)
    bad = [(c, id_, b"x") for c, id_, _ in log.popped[:damaged]]
    kept = log.popped[damaged + lost :]
    log.popped = bad + kept + dice.choices(kept, k=doubled)
    dice.shuffle(log.popped)
    expected = {"lost": lost, "doubled": doubled, "damaged": damaged}
    assert faults(judged(tested, log)) == {name: count for name, count in expected.items() if count}


@given(st.lists(st.integers(0, 10_000_000), min_size=2, max_size=200))
def test_latency_percentiles_rise_between_minimum_and_maximum(microseconds: list[int]) -> None:
    found = latency_of(microseconds)
    assert min(microseconds) / 1000 - 0.01 <= found.p50 <= found.p95 <= found.p99
    assert found.p99 <= max(microseconds) / 1000 + 0.01
