"""Whether every message came once, whole, and in the order that was promised."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import mul

from console.bench.contestant import LeftRow
from console.bench.journal import Journal
from console.bench.message import DAMAGED, NUMBERS
from console.designs import Order

_KEPT_BY_EACH = {Order.LAX, Order.STRICT, Order.DUE}
"""Of these, what one consumer gets of one producer has to be in the order of that one's pushes. A
ring promises the order of its numbers: a number that was parked comes late. The others none."""


@dataclass(frozen=True)
class Verdict:
    """What became of the messages of a round. All but the first three should be 0."""

    pushed: int
    """Stored, as the answers to the pushes say."""
    popped: int
    left: int
    """In the queue when the clock ended."""
    lost: int
    doubled: int
    damaged: int
    """Came, or are left, otherwise than they were pushed, or were never pushed at all."""
    out_of_order: int
    """Against the promise."""
    in_doubt: int
    """Of which nobody knows: in calls whose answer was lost with its connection."""

    @property
    def ok(self) -> bool:
        """Nothing wrong that is known for certain."""
        return not (self.lost or self.doubled or self.damaged or self.out_of_order)


def judge(
    journal: Journal,
    codes: Sequence[int],
    left: Sequence[LeftRow],
    left_codes: Callable[[], Iterable[int]],
    order: Order,
) -> Verdict:
    """Judge a round. `codes`: of the messages that were popped, in the order of `journal.heads`.

    `left_codes` is asked only where the sums of what is left do not come out.
    """
    stored: Counter[int] = Counter()
    for producer, messages in zip(journal.pushes.client, journal.pushes.messages, strict=True):
        stored[producer] += messages
    doubt: Counter[int] = Counter()
    for producer, messages in journal.pushes_in_doubt:
        doubt[producer] += messages
    counted = _Popped(codes)
    if doubt or not _comes_out(stored, counted, left):
        lost, doubled, damaged, in_doubt = _one_by_one(
            stored, doubt, journal.pops_in_doubt, counted, list(left_codes())
        )
    else:
        lost = doubled = damaged = 0
        in_doubt = 0
    return Verdict(
        pushed=stored.total(),
        popped=len(codes),
        left=sum(row.messages for row in left),
        lost=lost,
        doubled=doubled,
        damaged=damaged,
        out_of_order=_out_of_order(journal, codes) if order in _KEPT_BY_EACH else 0,
        in_doubt=in_doubt,
    )


class _Popped:
    """What was popped, as it is, and summed up by producer."""

    def __init__(self, codes: Sequence[int]) -> None:
        self.codes = codes
        self.different = set(codes)
        self.damaged = DAMAGED in self.different
        self.messages: Counter[int] = Counter()
        self.numbers: Counter[int] = Counter()
        self.squares: Counter[int] = Counter()
        ordered = sorted(self.different - {DAMAGED})
        begin = 0
        while begin < len(ordered):
            producer = ordered[begin] // NUMBERS
            first = producer * NUMBERS
            end = bisect_left(ordered, first + NUMBERS)
            numbers = [code - first for code in ordered[begin:end]]
            self.messages[producer] = len(numbers)
            self.numbers[producer] = sum(numbers)
            self.squares[producer] = sum(map(mul, numbers, numbers))
            begin = end


def _comes_out(stored: Mapping[int, int], popped: _Popped, left: Sequence[LeftRow]) -> bool:
    """Whether popped and left are together what was pushed, as far as sums can tell.

    Numbers of which count, sum and sum of squares agree with those that are missing are those.
    """
    if popped.damaged or len(popped.different) != len(popped.codes):
        return False
    remaining = {row.producer: row for row in left}
    if DAMAGED in remaining or (set(popped.messages) | set(remaining)) - set(stored):
        return False
    for producer, count in stored.items():
        row = remaining.get(producer, LeftRow(producer, 0, 0, "0", "0"))
        if row.different != row.messages or row.messages != count - popped.messages[producer]:
            return False
        numbers = count * (count - 1) // 2 - popped.numbers[producer]
        squares = (count - 1) * count * (2 * count - 1) // 6 - popped.squares[producer]
        if (numbers, squares) != (int(row.numbers), int(row.squares)):
            return False
    return True


def _one_by_one(
    stored: Mapping[int, int],
    doubt: Mapping[int, int],
    pops_in_doubt: int,
    popped: _Popped,
    left: Sequence[int],
) -> tuple[int, int, int, int]:
    """(lost, doubled, damaged, in doubt), each message looked at."""
    seen = Counter(popped.codes) + Counter(left)
    damaged = seen.pop(DAMAGED, 0)
    doubled = missing = in_doubt = 0
    for code, times in seen.items():
        producer, number = divmod(code, NUMBERS)
        if number >= stored.get(producer, 0) + doubt.get(producer, 0):
            damaged += times
        else:
            doubled += times - 1
    for producer, count in stored.items():
        first = producer * NUMBERS
        missing += sum(first + number not in seen for number in range(count))
    # A damaged one is there, though nobody can tell which it was.
    missing = max(0, missing - damaged)
    for producer, count in doubt.items():
        first = producer * NUMBERS + stored.get(producer, 0)
        in_doubt += sum(first + number not in seen for number in range(count))
    maybe_popped = min(missing, pops_in_doubt)
    return missing - maybe_popped, doubled, damaged, in_doubt + maybe_popped


def _out_of_order(journal: Journal, codes: Sequence[int]) -> int:
    """Messages that one consumer got after a later one of the same producer."""
    last: dict[tuple[int, int], int] = {}
    wrong = place = 0
    for client, messages in zip(journal.pops.client, journal.pops.messages, strict=True):
        for code in codes[place : place + messages]:
            key = (client, code // NUMBERS)
            if code < last.get(key, DAMAGED):
                wrong += 1
            else:
                last[key] = code
        place += messages
    return wrong
