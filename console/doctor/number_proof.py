"""Which numbers of a ring are lost and which are still in use.

PostgreSQL: read the next numbers, see which open transactions have drawn any, wait for these to
end, read the state. A number drawn before the first step and not there in the last one never will
be: that needs no grace period, no evidence of a crash, and stops no session.

SQL Server does not show who has drawn a number. There a number is lost if it looks lost twice, a
grace period apart, and every transaction that may have drawn it has ended between the two. Every
procedure of a ring locks its configuration before it draws, until its transaction ends: so a
caller who drew before the first read is a transaction that is older than it and holds a lock of
the ring. Where this login cannot see those transactions, nothing is proven.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from console import sql
from console.actions.relay import Blocker
from console.doctor.context import CheckContext
from console.formats import numbered

if TYPE_CHECKING:
    from sqlalchemy import Connection


_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 0.1
_SHOWN_RANGES = 100
GRACE_SECONDS = 1.0
"""At least this long between the two reads: the lock views are not of one moment."""
_AGE_TOLERANCE = 0.1
"""The server's transaction times are only exact to a few milliseconds."""


class Side(StrEnum):
    PUSH = "push"
    POP = "pop"


class LostKind(StrEnum):
    """What may have become of a number: see `lost` in ring/repair.sql."""

    ORPHAN = "orphan"
    SPENT = "spent"
    VOID = "void"
    HOLE = "hole"
    PARKED_HOLE = "parked_hole"

    @property
    def side(self) -> Side:
        """Whose open transactions have to end before it is proven."""
        return Side.PUSH if self in {LostKind.HOLE, LostKind.PARKED_HOLE} else Side.POP


@dataclass(frozen=True)
class SequencePositions:
    next_push: int
    next_pop: int


@dataclass(frozen=True)
class Drawer:
    """An open transaction that has drawn a number, or may have."""

    side: str
    holder: str
    """Identifies it; empty: it represents all that this login may not see."""
    pid: int | None
    user_name: str | None
    application_name: str | None
    client_address: str | None
    state: str | None
    transaction_seconds: float | None
    prepared_transaction: str | None

    @property
    def line(self) -> str:
        if not self.holder:
            return "transactions that this login may not see"
        fields = {name: value for name, value in vars(self).items() if name not in _KEY}
        return Blocker(**fields).line


_KEY = {"side", "holder"}


@dataclass(frozen=True)
class NumberRange:
    """Consecutive numbers with the same fate."""

    kind: str
    first: int
    last: int
    since: datetime | None
    """The oldest push of an orphan; the oldest parking of a number."""
    before_at: datetime | None
    """When the number before them was used; None: not known any more."""
    after_at: datetime | None

    @property
    def count(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True)
class Proof:
    """Numbers below which everything is decided, unless an open transaction prevents it."""

    drawn_push: int
    drawn_pop: int
    drawers: tuple[Drawer, ...] = ()
    """Still open when the patience ran out."""

    def within(self, earlier: Proof) -> Proof:
        """Of the numbers that both decide."""
        drawn_push = min(self.drawn_push, earlier.drawn_push)
        return replace(
            self, drawn_push=drawn_push, drawn_pop=min(self.drawn_pop, earlier.drawn_pop)
        )

    def drawers_of(self, side: Side) -> tuple[Drawer, ...]:
        return tuple(drawer for drawer in self.drawers if drawer.side == side)


@dataclass(frozen=True)
class LostNumbers:
    """What is proven lost, and what may still be in use."""

    proof: Proof = Proof(0, 0)
    proven: Mapping[LostKind, tuple[NumberRange, ...]] = field(default_factory=dict)
    in_progress: Mapping[Side, tuple[NumberRange, ...]] = field(default_factory=dict)

    def unseen(self) -> list[str]:
        return [
            f"{numbered(total(ranges), f'{side} number')} ({format_ranges(ranges)}) may be held by "
            + "; ".join(drawer.line for drawer in self.proof.drawers_of(side))
            for side, ranges in self.in_progress.items()
            if ranges
        ]


def next_numbers(context: CheckContext) -> SequencePositions:
    (now,) = context.query_unlimited(SequencePositions, "next_numbers")
    return now


def prove(context: CheckContext, sides: Iterable[Side] = tuple(Side)) -> Proof:
    """Wait until those who have drawn by now have ended, for as long as the patience lasts."""
    drawn = next_numbers(context)
    return Proof(drawn.next_push, drawn.next_pop, _wait_for_drawers(context, set(sides)))


def find_lost_numbers(context: CheckContext) -> LostNumbers:
    """It waits for open transactions only if something looks lost."""
    drawn = next_numbers(context)
    proof = Proof(drawn.next_push, drawn.next_pop)
    first = _read(context, proof)
    if not first:
        return classify(proof, ())
    # What a side shows only in the second read was not drawn in time to be waited for.
    sides = {LostKind(numbers.kind).side for numbers in first}
    if context.has("drawing_transactions"):
        proof = prove(context, sides)
        second = [
            numbers for numbers in _read(context, proof) if LostKind(numbers.kind).side in sides
        ]
        return classify(proof, second)
    proof = replace(proof, drawers=_wait_for_drawers(context, sides))
    return classify(proof, in_both(first, _read(context, proof)))


def classify(proof: Proof, lost: Sequence[NumberRange]) -> LostNumbers:
    """What looks lost is proven where no open transaction may hold it, else in progress."""
    proven: dict[LostKind, tuple[NumberRange, ...]] = {}
    in_progress: dict[Side, tuple[NumberRange, ...]] = {}
    for kind in LostKind:
        ranges = tuple(numbers for numbers in lost if numbers.kind == kind)
        if proof.drawers_of(kind.side):
            in_progress[kind.side] = in_progress.get(kind.side, ()) + ranges
        else:
            proven[kind] = ranges
    return LostNumbers(proof, proven, in_progress)


@contextmanager
def without_relay(context: CheckContext) -> Iterator[Connection]:
    """A transaction that keeps relays out, for statements that read the whole ring."""
    with context.transaction() as connection:
        design, scope = context.queue.design.name, context.queue.scope(connection)
        sql.values(connection, int, f"{design}.wait_for_relay", scope)  # never returns a row
        if sql.has(connection, f"{design}.disable_jit"):
            sql.values(connection, str, f"{design}.disable_jit", scope)
        yield connection


def _read(context: CheckContext, proof: Proof) -> list[NumberRange]:
    with without_relay(context) as connection:
        return context.fetch(
            connection, NumberRange, "lost", drawn_push=proof.drawn_push, drawn_pop=proof.drawn_pop
        )


def _wait_for_drawers(context: CheckContext, sides: set[Side]) -> tuple[Drawer, ...]:
    """Those that are still open in the end."""
    patience, pause = context.patience_seconds, context.pause
    if context.has("drawing_transactions"):

        def drawers() -> list[Drawer]:
            open_now = context.query_unlimited(Drawer, "drawing_transactions")
            return [drawer for drawer in open_now if drawer.side in sides]

        return tuple(wait_for_drawers(drawers, patience, pause))
    left = wait_for_blockers(lambda: context.query_unlimited(Blocker, "blockers"), patience, pause)
    # No lock shows from which sequence a blocker drew.
    return tuple(
        Drawer(side, "" if blocker.pid is None else str(blocker.pid), **vars(blocker))
        for side in sides
        for blocker in left
    )


def wait_for_drawers(
    open_now: Callable[[], Sequence[Drawer]],
    seconds: float,
    pause: Callable[[float], None] = time.sleep,
) -> list[Drawer]:
    """Those of the first read that are still open at the last."""
    deadline = time.monotonic() + seconds
    pause_seconds = _FIRST_PAUSE
    left = list(open_now())
    while left and time.monotonic() < deadline:
        pause(pause_seconds)
        pause_seconds = min(pause_seconds * 1.5, _LONGEST_PAUSE)
        before = {(drawer.side, drawer.holder) for drawer in left}
        left = [found for found in open_now() if (found.side, found.holder) in before]
    return left


def wait_for_blockers(
    open_now: Callable[[], Sequence[Blocker]],
    seconds: float,
    pause: Callable[[float], None] = time.sleep,
) -> list[Blocker]:
    """Those open at the start and still open at the end: at least a grace period later."""
    began = time.monotonic()
    while True:
        waited = time.monotonic() - began
        left = [blocker for blocker in open_now() if was_open(blocker, waited)]
        if waited >= (max(seconds, GRACE_SECONDS) if left else GRACE_SECONDS):
            return left
        if any(map(_hidden, left)):
            return left  # waiting would not help
        pause(_LONGEST_PAUSE)


def was_open(blocker: Blocker, waited_seconds: float) -> bool:
    """Whether the transaction may have begun before the wait did."""
    age = blocker.transaction_seconds
    return age is None or age >= waited_seconds - _AGE_TOLERANCE


def _hidden(blocker: Blocker) -> bool:
    """Whether the row represents all transactions that this login may not see."""
    return blocker.pid is None and blocker.prepared_transaction is None


def in_both(first: Sequence[NumberRange], second: Sequence[NumberRange]) -> list[NumberRange]:
    """The ranges of the second read, limited to numbers that looked lost in the first one too.

    A number may be of another kind by then: a hole is parked once a pop has drawn it, a consumed
    number is an orphan once its message is there. It is the same loss, on the same side.
    """
    found: list[NumberRange] = []
    for side in Side:
        before = _joined(numbers for numbers in first if LostKind(numbers.kind).side is side)
        for one in second:
            if LostKind(one.kind).side is side:
                found += _clipped(one, before)
    return sorted(found, key=lambda numbers: (numbers.kind, numbers.first))


def _joined(ranges: Iterable[NumberRange]) -> list[tuple[int, int]]:
    """First and last numbers, in order; ranges that touch are one."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted((numbers.first, numbers.last) for numbers in ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return joined


def _clipped(lost: NumberRange, limits: Sequence[tuple[int, int]]) -> list[NumberRange]:
    """The parts of a range that are within the limits; times only at the range's own ends."""
    parts = []
    for first, last in limits:
        low, high = max(lost.first, first), min(lost.last, last)
        if low <= high:
            before = lost.before_at if low == lost.first else None
            after = lost.after_at if high == lost.last else None
            parts.append(NumberRange(lost.kind, low, high, lost.since, before, after))
    return parts


def total(ranges: Iterable[NumberRange]) -> int:
    return sum(numbers.count for numbers in ranges)


def format_ranges(ranges: Sequence[NumberRange], most: int = 5) -> str:
    """`507-527, 530, and 16 more`."""
    texts = [str(r.first) if r.count == 1 else f"{r.first}-{r.last}" for r in ranges[:most]]
    if len(ranges) > most:
        texts.append(f"and {total(ranges[most:]):,} more")
    return ", ".join(texts)


def ranges_evidence(ranges: Sequence[NumberRange]) -> dict[str, object]:
    """How many, and the first hundred ranges as pairs of first and last."""
    evidence: dict[str, object] = {
        "count": total(ranges),
        "numbers": [[numbers.first, numbers.last] for numbers in ranges[:_SHOWN_RANGES]],
    }
    if len(ranges) > _SHOWN_RANGES:
        evidence["runs_not_shown"] = len(ranges) - _SHOWN_RANGES
    return evidence
