"""The judge of a round: sound rounds pass, and every planted fault is found."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.designs import Order
from console.load.call_log import DAMAGED, NUMBERS, CallLog
from console.load.round_figures import LeftRow, RoundVerdict, judge

Popped = list[tuple[int, list[int]]]
"""(consumer, codes) of each pop."""


def summed(codes: Iterable[int]) -> list[LeftRow]:
    """As the statement `left` counts them."""
    of_one: dict[int, list[int]] = {}
    for code in codes:
        of_one.setdefault(DAMAGED if code < 0 else code // NUMBERS, []).append(code % NUMBERS)
    return [
        LeftRow(p, len(ns), len(set(ns)), str(sum(ns)), str(sum(n * n for n in ns)))
        for p, ns in sorted(of_one.items())
    ]


def verdict(
    stored: Sequence[int],
    popped: Popped,
    left: Sequence[int],
    order: Order = Order.LAX,
    *,
    pushes_in_doubt: Sequence[tuple[int, int]] = (),
    pops_in_doubt: int = 0,
) -> RoundVerdict:
    """Of a round in which producer p stored stored[p] messages."""
    call_log = CallLog(pushes_in_doubt=list(pushes_in_doubt), pops_in_doubt=pops_in_doubt)
    for producer, count in enumerate(stored):
        call_log.pushes.add(0, producer, count, 1)
    for consumer, codes in popped:
        call_log.pops.add(0, consumer, len(codes), 1)
    codes = [code for _, some in popped for code in some]
    return judge(call_log, codes, summed(left), lambda: left, order)


@st.composite
def rounds(draw: st.DrawFn) -> tuple[list[int], Popped, list[int]]:
    """A sound one: what each producer stored, the pops in order, what is left."""
    stored = draw(st.lists(st.integers(0, 12), min_size=1, max_size=4))
    taken = [draw(st.integers(0, count)) for count in stored]
    turns = [p for p, count in enumerate(taken) for _ in range(count)]
    numbers: Counter[int] = Counter()
    popped: Popped = []
    for producer in draw(st.permutations(turns)):
        code = producer * NUMBERS + numbers[producer]
        numbers[producer] += 1
        consumer = draw(st.integers(0, 2))
        if popped and popped[-1][0] == consumer and draw(st.booleans()):
            popped[-1][1].append(code)
        else:
            popped.append((consumer, [code]))
    left = [p * NUMBERS + n for p, count in enumerate(stored) for n in range(taken[p], count)]
    return stored, popped, left


def faultless(count: int) -> RoundVerdict:
    return RoundVerdict(count, 0, 0, 0, 0, 0, 0, 0)


@given(rounds(), st.sampled_from(Order))
def test_a_sound_round_is_ok(found: tuple[list[int], Popped, list[int]], order: Order) -> None:
    stored, popped, left = found
    judged = verdict(stored, popped, left, order)
    taken = sum(len(codes) for _, codes in popped)
    expected = replace(faultless(sum(stored)), popped=taken, left=len(left))
    assert judged == expected
    assert judged.ok


@given(rounds(), st.data())
def test_each_planted_fault_is_counted(
    found: tuple[list[int], Popped, list[int]], data: st.DataObject
) -> None:
    """Messages removed, and others duplicated, popped or left."""
    stored, popped, left = found
    everything = [code for _, codes in popped for code in codes] + left
    lost = (
        set(data.draw(st.lists(st.sampled_from(everything), unique=True))) if everything else set()
    )
    again = [code for code in everything if code not in lost and data.draw(st.booleans())]
    popped = [(consumer, [c for c in codes if c not in lost]) for consumer, codes in popped]
    left = [code for code in left if code not in lost]
    for code in again:
        if data.draw(st.booleans()):
            left.append(code)
        else:
            popped.append((9, [code]))
    judged = verdict(stored, popped, left, Order.NONE)
    assert (judged.lost, judged.doubled, judged.damaged) == (len(lost), len(again), 0)
    assert judged.ok == (not lost and not again)


@given(rounds(), st.integers(1, 3), st.booleans())
def test_damaged_and_never_pushed_messages_are_counted_as_damaged(
    found: tuple[list[int], Popped, list[int]], count: int, never: bool
) -> None:
    stored, popped, left = found
    forged = [99 * NUMBERS + n if never else DAMAGED for n in range(count)]
    for judged in (
        verdict(stored, [*popped, (0, forged)], left),
        verdict(stored, popped, [*left, *forged]),
    ):
        assert (judged.damaged, judged.lost, judged.doubled) == (count, 0, 0)
        assert not judged.ok


def test_two_lost_and_two_doubled_messages_do_not_cancel_out() -> None:
    """Numbers 0 and 3 are there twice, 1 and 2 not at all: the sums are those of 0 to 3."""
    judged = verdict([4], [], [0, 0, 3, 3])
    assert (judged.lost, judged.doubled) == (2, 2)


@pytest.mark.parametrize("order", Order)
def test_an_older_message_after_a_newer_one_is_out_of_order(order: Order) -> None:
    popped: Popped = [(0, [1]), (1, [3]), (0, [0, 2]), (1, [NUMBERS])]
    judged = verdict([4, 1], popped, [], order)
    breach = order in {Order.LAX, Order.STRICT, Order.DUE}
    assert (judged.out_of_order, judged.ok) == (int(breach), not breach)


@given(rounds(), st.integers(0, 4), st.integers(0, 4))
def test_messages_in_doubt_are_neither_lost_nor_damaged(
    found: tuple[list[int], Popped, list[int]], arrived: int, vanished: int
) -> None:
    """A push of 4 of which some arrived, and pops of at most 4 messages that took some."""
    stored, popped, left = found
    begun = [stored[0] + n for n in range(4)]
    remaining, gone = left[vanished:], len(left[:vanished])
    judged = verdict(
        stored,
        [*popped, (0, begun[:arrived])],
        remaining,
        Order.NONE,
        pushes_in_doubt=[(0, 4)],
        pops_in_doubt=4,
    )
    assert (judged.lost, judged.doubled, judged.damaged) == (0, 0, 0)
    assert judged.in_doubt == 4 - arrived + gone


def test_missing_messages_beyond_those_in_doubt_are_lost() -> None:
    judged = verdict([5], [(0, [0])], [], pops_in_doubt=3)
    assert (judged.lost, judged.in_doubt) == (1, 3)


def test_a_message_that_one_of_several_readers_lacks_is_lost() -> None:
    good = verdict([2], [(0, [0, 1])], [])
    bad = verdict([2], [(1, [0])], [])
    both = RoundVerdict.together([good, bad])
    assert (both.pushed, both.popped, both.lost, both.ok) == (4, 3, 1, False)
    assert RoundVerdict.together([good, good]).ok
