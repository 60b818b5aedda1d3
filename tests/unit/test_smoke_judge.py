"""What the smoke test says of logs that no sound queue would give: nothing passes unseen."""

import random
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.actions import smoke
from console.actions.pop import Message
from console.actions.smoke import SmokeResult, payload_of
from console.catalog import Queue, installed_queue
from console.designs import DESIGNS, Order

EXPECTED = smoke._EXPECTED
CLEAN = {"lost": 0, "doubled": 0, "damaged": 0, "out_of_order": 0, "unfinished": 0}


def queue(design: str = "fifo", **options: str) -> Queue:
    of = DESIGNS[design]
    return installed_queue("s", "q", of, of.complete_options(options))


def message(of: Queue, number: int) -> Message:
    return Message(str(number + 1), payload_of(number, of), datetime.now(UTC), 1)


def sound(of: Queue) -> smoke._Log:
    """What a sound queue gives: everything once, in order, the consumers taking turns."""
    log = smoke._Log(pushed=EXPECTED)
    for number in range(EXPECTED):
        consumer = -1 if number < smoke._SEQUENTIAL else number % smoke._CONSUMERS
        log.popped.append((consumer, message(of, number)))
    return log


def judged(of: Queue, log: smoke._Log, out_of_order: int = 0) -> SmokeResult:
    return smoke._judge(of, "name", log, out_of_order)


def faults(result: SmokeResult) -> dict[str, int]:
    """What it found, without what is 0."""
    return {name: getattr(result, name) for name in CLEAN if getattr(result, name)}


KINDS = [
    queue(design, payload=payload, **options)
    for design, options in [(d, {}) for d in DESIGNS]
    + [("fifo", {"order": "strict"}), ("fifo", {"max_bytes": "8"}), ("ring", {"max_bytes": "63"})]
    for payload in ("text", "json", "bytes")
]
EACH = pytest.mark.parametrize("of", KINDS, ids=lambda of: f"{of.design.name} {of.options}")


@EACH
def test_a_sound_log_passes(of: Queue) -> None:
    result = judged(of, sound(of))
    assert (result.ok, faults(result)) == (True, {})
    assert (result.queue, result.design, result.messages) == ("name", of.design.name, EXPECTED)


@EACH
def test_payloads_are_different_fit_and_are_known_again(of: Queue) -> None:
    payloads = [payload_of(number, of) for number in range(EXPECTED)]
    assert len(set(payloads)) == EXPECTED
    assert [smoke.number_of(payload, of) for payload in payloads] == list(range(EXPECTED))
    limit = of.options["max_bytes"]
    if limit != "unlimited":
        sizes = [len(p if isinstance(p, bytes) else p.encode()) for p in payloads]
        assert max(sizes) <= int(limit)


@EACH
def test_a_lost_message_is_seen(of: Queue) -> None:
    for at in (0, smoke._SEQUENTIAL, EXPECTED - 1):
        log = sound(of)
        del log.popped[at]
        result = judged(of, log)
        assert (result.ok, faults(result)) == (False, {"lost": 1})


@EACH
def test_a_doubled_message_is_seen(of: Queue) -> None:
    log = sound(of)
    log.popped.append(log.popped[-1])
    result = judged(of, log)
    assert (result.ok, result.doubled) == (False, 1)


@EACH
def test_a_damaged_message_is_seen_as_damaged_and_as_lost(of: Queue) -> None:
    whole = payload_of(100, of)
    longer = whole + b"0" if isinstance(whole, bytes) else whole + "0"
    for damaged in (whole[:-1], longer, whole[:0]):
        log = sound(of)
        consumer, sent = log.popped[100]
        log.popped[100] = (consumer, replace(sent, payload=damaged))
        found = faults(judged(of, log))
        # One that is short enough may pass for another message, which then came twice.
        assert found.pop("lost") == 1
        assert found.pop("damaged", 0) + found.pop("doubled", 0) == 1


def swapped(of: Queue, first: int, second: int) -> smoke._Log:
    log = sound(of)
    log.popped[first], log.popped[second] = log.popped[second], log.popped[first]
    return log


def same_consumer(of: Queue) -> smoke._Log:
    """Two messages of one producer that one consumer got the wrong way round."""
    at = smoke._SEQUENTIAL + 10
    return swapped(of, at, at + smoke._CONSUMERS)


@EACH
def test_messages_out_of_order_are_seen_where_an_order_is_promised(of: Queue) -> None:
    promises = of.design.order_with(of.options) in {Order.LAX, Order.STRICT, Order.DUE}
    result = judged(of, same_consumer(of))
    assert (result.ok, bool(result.out_of_order)) == (not promises, promises)


def test_a_strict_order_holds_across_consumers_a_lax_one_does_not() -> None:
    at = smoke._SEQUENTIAL + 10
    strict, lax = queue(order="strict"), queue()
    assert faults(judged(strict, swapped(strict, at, at + 1))) == {"out_of_order": 1}
    assert judged(lax, swapped(lax, at, at + 1)).ok


def _producer(sent: Message, of: Queue) -> int:
    return (smoke.number_of(sent.payload, of) - smoke._SEQUENTIAL) // smoke._MESSAGES_EACH


def test_the_order_of_different_producers_is_free_where_it_is_lax() -> None:
    lax = queue()
    log = sound(lax)
    middle = [one for one in log.popped if one[0] == 0]
    half = len(middle) // 2
    log.popped = [one for one in log.popped if one[0] != 0] + middle[half:] + middle[:half]
    assert len({_producer(m, lax) for _, m in middle[half:]}) == 2
    # Only of the producer whose messages lie on both sides of the cut do some come too late.
    cut = min(_producer(m, lax) for _, m in middle[half:])
    late = [m for _, m in middle[:half] if _producer(m, lax) == cut]
    assert faults(judged(lax, log)) == {"out_of_order": len(late)}


def test_what_the_sequential_part_saw_counts() -> None:
    of = queue()
    assert faults(judged(of, sound(of), out_of_order=3)) == {"out_of_order": 3}


def test_lost_claims_and_failed_calls_are_not_ok() -> None:
    of = queue("claim")
    log = sound(of)
    log.unfinished = 1
    assert faults(judged(of, log)) == {"unfinished": 1}
    log = sound(of)
    log.errors.append("Could not push.")
    result = judged(of, log)
    assert (result.ok, result.errors) == (False, ("Could not push.",))


@EACH
def test_a_message_that_nobody_pushed_is_damaged(of: Queue) -> None:
    log = sound(of)
    log.popped.append((0, message(of, EXPECTED)))
    assert faults(judged(of, log))["damaged"] == 1


def test_nothing_at_all_is_all_lost() -> None:
    assert faults(judged(queue(), smoke._Log())) == {"lost": EXPECTED}


@given(st.integers(0, 2**32), st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
def test_every_fault_is_counted(seed: int, lost: int, doubled: int, damaged: int) -> None:
    of, dice = queue("heap"), random.Random(seed)
    log = sound(of)
    dice.shuffle(log.popped)
    bad = [(c, replace(m, payload="x")) for c, m in log.popped[:damaged]]
    kept = log.popped[damaged + lost :]
    log.popped = bad + kept + dice.choices(kept, k=doubled)
    dice.shuffle(log.popped)
    expected = {"lost": lost + damaged, "doubled": doubled, "damaged": damaged}
    assert faults(judged(of, log)) == {name: count for name, count in expected.items() if count}


@given(st.lists(st.floats(0, 10), min_size=2, max_size=200))
def test_latencies_rise_and_lie_between_the_least_and_the_most(seconds: list[float]) -> None:
    found = smoke.latency_of(seconds)
    assert min(seconds) * 1000 - 0.01 <= found.p50 <= found.p95 <= found.p99
    assert found.p99 <= max(seconds) * 1000 + 0.01
