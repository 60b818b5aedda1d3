"""The order verifier: inversions are counted, and judged by what the design promises."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from console.designs import Order
from console.doctor.order import Pop, judge

NOW = datetime(2026, 3, 29, 1, 0, tzinfo=UTC)
NUMBERS = st.lists(st.integers(0, 1000), unique=True)


@given(NUMBERS)
def test_what_is_in_order_has_no_inversion(numbers: list[int]) -> None:
    verdict = judge([Pop(n) for n in sorted(numbers)], Order.STRICT)
    assert (verdict.inversions, verdict.farthest, verdict.kept) == (0, 0, True)
    assert verdict.pops == len(numbers)


@given(NUMBERS)
def test_inversions_are_those_that_a_look_at_all_pairs_finds(numbers: list[int]) -> None:
    verdict = judge([Pop(n) for n in numbers], Order.STRICT)
    by = [sum(before > n for before in numbers[:at]) for at, n in enumerate(numbers)]
    assert verdict.inversions == sum(overtaken > 0 for overtaken in by)
    assert verdict.farthest == max(by, default=0)
    assert verdict.kept == (numbers == sorted(numbers))
    broken = [n for n, overtaken in zip(numbers, by, strict=True) if overtaken]
    assert verdict.first == (broken[0] if broken else None)


@given(NUMBERS)
def test_a_lax_order_is_told_and_no_breach(numbers: list[int]) -> None:
    assert judge([Pop(n) for n in numbers], Order.LAX).kept
    assert judge([Pop(n) for n in numbers], Order.LIFO).inversions == 0


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(-100, 100))))
def test_a_message_is_never_popped_before_it_is_due(pops: list[tuple[int, int]]) -> None:
    log = [Pop(n, NOW, NOW + timedelta(seconds=late)) for n, late in pops]
    verdict = judge(log, Order.DUE)
    assert verdict.early == sum(late > 0 for _, late in pops)
    assert verdict.kept == (verdict.early == 0)
