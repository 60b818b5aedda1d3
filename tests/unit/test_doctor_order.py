"""The order verifier: inversions are counted, and judged by the design's order."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from console.designs import Order
from console.designs.order import Pop, judge

NOW = datetime(2026, 3, 29, 1, 0, tzinfo=UTC)
NUMBERS = st.lists(st.integers(0, 1000), unique=True)
PUSHES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)))
"""Numbers, possibly repeated, and the seconds of their pushes."""


def second(after: float) -> datetime:
    return NOW + timedelta(seconds=after)


@given(PUSHES)
def test_inversions_are_those_found_by_comparing_all_pairs(pushes: list[tuple[int, int]]) -> None:
    log = [Pop(n, second(at)) for n, at in pushes]
    verdict = judge(log, Order.STRICT)
    overtakers = [
        [b for b in log[:at] if b.number > a.number and b.pushed_at >= a.pushed_at]  # type: ignore[operator]
        for at, a in enumerate(log)
    ]
    expected = [(a, len(by), by[0]) for a, by in zip(log, overtakers, strict=True) if by]
    assert [(one.pop, one.by, one.first) for one in verdict.overtaken] == expected
    assert verdict.farthest == max(map(len, overtakers), default=0)
    assert verdict.kept == (not expected)
    assert verdict.pops == len(pushes)


@given(NUMBERS)
def test_without_times_the_numbers_decide(numbers: list[int]) -> None:
    assert judge([Pop(n) for n in numbers], Order.STRICT).kept == (numbers == sorted(numbers))


@given(NUMBERS)
def test_overtaking_is_no_breach_of_a_lax_order(numbers: list[int]) -> None:
    log = [Pop(n) for n in numbers]
    for order in (Order.LAX, Order.NUMBERS):
        assert judge(log, order).kept
        assert judge(log, order).overtaken == judge(log, Order.STRICT).overtaken
    for order in (Order.LIFO, Order.NONE, Order.SESSIONS, Order.DUE):
        assert judge(log, order).overtaken == ()


def test_a_restarted_numbering_is_no_inversion() -> None:
    old = [Pop(n, second(n)) for n in range(100, 110)]
    new = [Pop(n, second(200 + n)) for n in range(10)]
    assert judge([*old, *new], Order.STRICT).kept
    assert not judge([*new, *old], Order.NUMBERS).overtaken
    assert not judge([*old[1:], *new, old[0]], Order.STRICT).kept


def test_an_overtaken_message_is_late_since_its_first_overtaker() -> None:
    log = [Pop(5, popped_at=second(1)), Pop(6, popped_at=second(2)), Pop(4, popped_at=second(9))]
    (overtaken,) = judge(log, Order.LAX).overtaken
    assert (overtaken.pop.number, overtaken.by, overtaken.first.number, overtaken.late_seconds) == (
        4,
        2,
        5,
        8.0,
    )
    (undated,) = judge([Pop(5), Pop(4)], Order.LAX).overtaken
    assert undated.late_seconds == 0


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(-100, 100))), st.integers(0, 50))
def test_pops_before_the_due_time_are_early(pops: list[tuple[int, int]], tolerance: int) -> None:
    log = [Pop(n, None, NOW, second(late)) for n, late in pops]
    verdict = judge(log, Order.DUE, timedelta(seconds=tolerance))
    assert len(verdict.early) == sum(late > tolerance for _, late in pops)
    assert verdict.kept == (not verdict.early)
    assert not judge(log, Order.STRICT).early
