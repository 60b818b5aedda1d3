"""The structure of a ring: its slots as ranges by state, and its sequences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from console.catalog import Queue, require_rows
from console.doctor.context import check_context
from console.doctor.number_proof import Side, prove, without_relay
from console.engines import Database
from console.errors import RefusedError
from console.monitor.scans import Extent


@dataclass(frozen=True)
class Structure:
    """One row about the whole ring: see `structure` in ring/repair.sql."""

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
    """For how long the oldest parked number has been parked."""

    @property
    def gap(self) -> int:
        return self.next_push - self.next_pop

    @property
    def contradictions(self) -> int:
        """Of its slots; one slot may have several."""
        return self.misplaced + self.miscounted + self.below_base

    @property
    def behind(self) -> dict[str, int]:
        """Numbers in use that a sequence has not reached, by what they belong to."""
        pushed = {
            "highest_message": self.highest,
            "highest_void": self.highest_void,
            "base": self.base - 1,
        }
        return {name: n for name, n in pushed.items() if n >= self.next_push} | self.pops_behind

    @property
    def pops_behind(self) -> dict[str, int]:
        popped = {"highest_parked": self.highest_parked, "base_of_pops": self.base - 1}
        return {name: n for name, n in popped.items() if n >= self.next_pop}


@dataclass(frozen=True)
class SlotRange:
    first_slot: int
    last_slot: int
    state: str
    """See `slot_map` in ring/monitor.sql; `missing`: without a row."""
    count: int
    first_number: int | None
    last_number: int | None


@dataclass(frozen=True)
class SlotMap:
    """A whole ring: its slots in order, and its two sequences."""

    ranges: tuple[SlotRange, ...]
    capacity: int
    next_pop: int | None
    """The number that the next pop draws; None: hidden from this login."""
    next_push: int | None
    subscriber: str = ""
    """Whose view it is."""
    subscribers: tuple[SlotMap, ...] = ()
    """The views of all subscribers, if there are any. The map itself is the slowest one's."""


def read_slot_map(database: Database, queue: Queue, *, patience_seconds: float = 0.5) -> SlotMap:
    """Numbers whose callers are still open after `patience_seconds` count as in progress.

    RefusedError on a standby, and where slots may be hidden.
    """
    require_rows(queue)
    if queue.subscribers and not queue.subscriber:
        patience_seconds /= len(queue.subscribers)
        maps = tuple(
            read_slot_map(database, view, patience_seconds=patience_seconds) for view in queue.views
        )
        known = [slot_map for slot_map in maps if slot_map.next_pop is not None]
        slowest = min(known or maps, key=lambda slot_map: slot_map.next_pop or 0)
        return replace(slowest, subscribers=maps)
    with check_context(database, queue, patience_seconds=patience_seconds) as context:
        if context.is_true("recovering"):
            raise RefusedError(
                f"Could not map the slots of {queue.name!r}.",
                why="A standby does not know its primary's sequences.",
                next_step="Connect to the primary.",
            )
        proof = prove(context)
        with without_relay(context) as connection:
            slots = context.fetch(
                connection,
                SlotRange,
                "slot_map",
                drawn_pop=0 if proof.drawers_of(Side.POP) else proof.drawn_pop,
                drawn_push=0 if proof.drawers_of(Side.PUSH) else proof.drawn_push,
            )
            (extent,) = context.fetch(connection, Extent, "extent")
    next_push = None if extent.last is None else extent.last + 1
    size = extent.slots or 0
    return SlotMap(tuple(_with_gaps(slots, size)), size, extent.first, next_push, queue.subscriber)


def _with_gaps(found: list[SlotRange], size: int) -> Iterator[SlotRange]:
    following = 0
    for slots in found:
        if following < min(slots.first_slot, size):
            yield _missing(following, min(slots.first_slot, size) - 1)
        yield slots
        # Slots outside the ring are shown, but nothing is missing between them.
        following = max(following, slots.last_slot + 1)
    if following < size:
        yield _missing(following, size - 1)


def _missing(first: int, last: int) -> SlotRange:
    return SlotRange(first, last, "missing", last - first + 1, None, None)
