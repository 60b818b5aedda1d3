"""A ring's slots as data: ranges by state."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from console.actions.relay import Blocker
from console.catalog import Queue
from console.doctor import lost_numbers
from console.doctor.context import CheckContext, check_context
from console.doctor.lost_numbers import (
    Drawer,
    LostKind,
    LostNumbers,
    NumberRange,
    Proof,
    ServerHistory,
    Side,
    without_relay,
)
from console.engines import Database
from console.errors import RefusedError

# The ring's proof on SQL Server (DESIGN section 5): two checks, a grace apart.
#
# What looks lost is lost where it does so twice, and whoever may have drawn it has ended between
# the looks. Every procedure of a ring locks its configuration before it draws, to the end of its
# transaction: so who has drawn before the first check, and goes on, is a transaction that is
# older than that check and holds a lock of the ring. Where this login cannot see those, nothing
# is proven.
#
# `drawing_transactions`, where the engine has it, proves more: see `lost_numbers`. No grace then.

GRACE_SECONDS = 1.0
"""Between the checks, however fast everybody ends: the views of locks are not of one moment."""
_PAUSE = 0.1
_TICK = 0.1
"""The server's times of transactions are no finer than a few milliseconds; so much is enough."""


def prove(context: CheckContext, sides: Iterable[Side] = tuple(Side)) -> Proof:
    if context.has("drawing_transactions"):
        return lost_numbers.prove(context, sides)
    drawn = lost_numbers.next_numbers(context)
    return Proof(drawn.next_push, drawn.next_pop, _drawers(context, sides))


def find_lost_numbers(context: CheckContext) -> LostNumbers:
    if context.has("drawing_transactions"):
        return lost_numbers.find_lost_numbers(context)
    drawn = lost_numbers.next_numbers(context)
    proof = Proof(drawn.next_push, drawn.next_pop)
    first = _read(context, proof)
    if not first:
        return lost_numbers.classify(proof, ())
    drawers = _drawers(context, {LostKind(run.kind).side for run in first})
    proof = replace(proof, drawers=drawers)
    return lost_numbers.classify(proof, in_both(first, _read(context, proof)))


def _drawers(context: CheckContext, sides: Iterable[Side]) -> tuple[Drawer, ...]:
    """Who is still open after the wait. Of which sequence somebody drew, no lock tells."""
    left = _outwait(
        lambda: context.ask(Blocker, "blockers"),
        context.patience_seconds,
        context.pause,
    )
    return tuple(_drawer(side, blocker) for side in sides for blocker in left)


def _read(context: CheckContext, proof: Proof) -> list[NumberRange]:
    with lost_numbers.without_relay(context) as connection:
        return context.fetch(
            connection, NumberRange, "lost", drawn_push=proof.drawn_push, drawn_pop=proof.drawn_pop
        )


def _outwait(
    open_now: Callable[[], Sequence[Blocker]],
    patience_seconds: float,
    wait: Callable[[float], None] = time.sleep,
) -> list[Blocker]:
    """Those that were open at the beginning and are still there at the end; a grace is waited for
    at least, whatever the patience."""
    began = time.monotonic()
    while True:
        waited = time.monotonic() - began
        left = [one for one in open_now() if was_open(one, waited)]
        if waited >= (max(patience_seconds, GRACE_SECONDS) if left else GRACE_SECONDS):
            return left
        if any(map(_hidden, left)):
            return left
        wait(_PAUSE)


def was_open(blocker: Blocker, waited_seconds: float) -> bool:
    """Whether the transaction may have begun before the wait did; of unknown age it may."""
    age = blocker.transaction_seconds
    return age is None or age >= waited_seconds - _TICK


def _hidden(blocker: Blocker) -> bool:
    """The row that stands for all that this login does not see: waiting tells nothing."""
    return blocker.pid is None and blocker.prepared_transaction is None


def _drawer(side: Side, blocker: Blocker) -> Drawer:
    holder = "" if blocker.pid is None else str(blocker.pid)
    return Drawer(side, holder, **vars(blocker))


def in_both(first: Sequence[NumberRange], second: Sequence[NumberRange]) -> list[NumberRange]:
    """The runs of the second look, as far as their numbers looked lost in the first one too.

    A number may be another kind by then: a hole is parked once a pop has drawn it, a consumed
    number is an orphan once its message is there. It is the same loss, of the same side.
    """
    found: list[NumberRange] = []
    for side in Side:
        before = _joined(run for run in first if LostKind(run.kind).side is side)
        for run in second:
            if LostKind(run.kind).side is side:
                found += _clipped(run, before)
    return sorted(found, key=lambda run: (run.kind, run.first))


def _joined(runs: Iterable[NumberRange]) -> list[tuple[int, int]]:
    """First and last numbers of chunks, in order, none of which touches another."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted((run.first, run.last) for run in runs):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return joined


def _clipped(run: NumberRange, chunks: Sequence[tuple[int, int]]) -> list[NumberRange]:
    """The parts of the run that lie in one of the chunks; times around it only at its ends."""
    parts = []
    for first, last in chunks:
        low, high = max(run.first, first), min(run.last, last)
        if low <= high:
            before = run.before_at if low == run.first else None
            after = run.after_at if high == run.last else None
            parts.append(NumberRange(run.kind, low, high, run.since, before, after))
    return parts


@dataclass(frozen=True)
class Structure:
    next_push: int
    next_pop: int
    size: int
    base: int
    slots: int
    outside: int
    live: int
    misplaced: int
    miscounted: int
    below_base: int
    highest: int
    parked: int
    voids: int
    voids_ahead: int
    """Void numbers that no pop has drawn yet."""
    highest_parked: int
    highest_void: int
    parked_seconds: float | None
    """How long the oldest parked number is parked."""

    @property
    def gap(self) -> int:
        return self.next_push - self.next_pop

    @property
    def broken(self) -> int:
        """How many contradictions its slots have; one slot may have several."""
        return self.misplaced + self.miscounted + self.below_base

    @property
    def behind(self) -> dict[str, int]:
        """Numbers in use that a sequence has not reached, by what they are of."""
        return self.pushes_behind | self.pops_behind

    @property
    def pushes_behind(self) -> dict[str, int]:
        numbers = {
            "highest_message": self.highest,
            "highest_void": self.highest_void,
            "base": self.base - 1,
        }
        return {name: n for name, n in numbers.items() if n >= self.next_push}

    @property
    def pops_behind(self) -> dict[str, int]:
        numbers = {"highest_parked": self.highest_parked, "base_of_pops": self.base - 1}
        return {name: n for name, n in numbers.items() if n >= self.next_pop}


@dataclass(frozen=True)
class Missing:
    first: int
    last: int


@dataclass(frozen=True)
class _Extent:
    first: int | None
    last: int | None
    slots: int


@dataclass(frozen=True)
class SlotRange:
    first_slot: int
    last_slot: int
    state: str
    """See `slot_map` in ring.sql."""
    count: int
    first_number: int | None
    last_number: int | None


@dataclass(frozen=True)
class SlotMap:
    """A whole ring: its slots in their order, and where its two sequences stand."""

    ranges: tuple[SlotRange, ...]
    capacity: int
    next_pop: int | None
    """The number that the next pop draws; None: hidden from this login."""
    next_push: int | None
    subscriber: str = ""
    """As whom it is seen."""
    subscribers: tuple[SlotMap, ...] = ()
    """Of a ring that has some: as each has it. The whole is then as the slowest has it."""


def slot_map(database: Database, queue: Queue, *, patience_seconds: float = 0.5) -> list[SlotRange]:
    return list(read_slot_map(database, queue, patience_seconds=patience_seconds).ranges)


def read_slot_map(database: Database, queue: Queue, *, patience_seconds: float = 0.5) -> SlotMap:
    """The ring's slots, in their order; a slot without a row is `missing`.

    Numbers whose callers are still open after `patience_seconds` count as under way. RefusedError
    on a standby.
    """
    if queue.subscribers and not queue.subscriber:
        patience_seconds /= len(queue.subscribers)
        maps = tuple(
            read_slot_map(database, one, patience_seconds=patience_seconds) for one in queue.views
        )
        known = [one for one in maps if one.next_pop is not None]
        slowest = min(known or maps, key=lambda one: one.next_pop or 0)
        return replace(slowest, subscribers=maps)
    with check_context(database, queue, patience_seconds=patience_seconds) as context:
        (life,) = context.ask(ServerHistory, "life")
        if life.recovering:
            raise RefusedError(
                f"Could not map the slots of {queue.name!r}.",
                why="A standby does not know where its primary's sequences stand.",
                next_step="Connect to the primary.",
            )
        proof = prove(context)
        with without_relay(context) as connection:
            found = context.fetch(
                connection,
                SlotRange,
                "slot_map",
                drawn_pop=0 if proof.in_the_way(Side.POP) else proof.drawn_pop,
                drawn_push=0 if proof.in_the_way(Side.PUSH) else proof.drawn_push,
            )
            (extent,) = context.fetch(connection, _Extent, "extent")
    next_push = None if extent.last is None else extent.last + 1
    ranges = tuple(_with_gaps(found, extent.slots))
    return SlotMap(ranges, extent.slots, extent.first, next_push, queue.subscriber)


def _with_gaps(found: list[SlotRange], size: int) -> Iterator[SlotRange]:
    following = 0
    for slots in found:
        if following < min(slots.first_slot, size):
            yield _missing(following, min(slots.first_slot, size) - 1)
        yield slots
        # Slots outside the ring are shown, but between them nothing is missing.
        following = max(following, slots.last_slot + 1)
    if following < size:
        yield _missing(following, size - 1)


def _missing(first: int, last: int) -> SlotRange:
    return SlotRange(first, last, "missing", last - first + 1, None, None)
