"""A ring's slots as data: ranges by state."""

from collections.abc import Iterator
from dataclasses import dataclass

from console.catalog import Queue
from console.doctor.look import looking
from console.doctor.ring_causes import Life
from console.doctor.ring_grace import prove
from console.doctor.ring_proof import Side, gated
from console.engines import Database
from console.errors import RefusedError


@dataclass(frozen=True)
class Missing:
    """Slots in a row that have no row."""

    first: int
    last: int


@dataclass(frozen=True)
class _Extent:
    first: int | None
    last: int | None
    slots: int


@dataclass(frozen=True)
class SlotRange:
    """Slots in a row in one state."""

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


def slot_map(database: Database, queue: Queue, *, patience_seconds: float = 0.5) -> list[SlotRange]:
    """The ranges of `whole_map`."""
    return list(whole_map(database, queue, patience_seconds=patience_seconds).ranges)


def whole_map(database: Database, queue: Queue, *, patience_seconds: float = 0.5) -> SlotMap:
    """The ring's slots, in their order; a slot without a row is `missing`.

    Numbers whose callers are still open after `patience_seconds` count as under way. RefusedError
    on a standby.
    """
    with looking(database, queue, patience_seconds=patience_seconds) as look:
        (life,) = look.ask(Life, "life")
        if life.recovering:
            raise RefusedError(
                f"Could not map the slots of {queue.name!r}.",
                why="A standby does not know where its primary's sequences stand.",
                next_step="Ask the primary.",
            )
        proof = prove(look)
        with gated(look) as connection:
            found = look.fetch(
                connection,
                SlotRange,
                "slot_map",
                drawn_pop=0 if proof.in_the_way(Side.POP) else proof.drawn_pop,
                drawn_push=0 if proof.in_the_way(Side.PUSH) else proof.drawn_push,
            )
            (extent,) = look.fetch(connection, _Extent, "extent")
    next_push = None if extent.last is None else extent.last + 1
    ranges = tuple(_with_gaps(found, extent.slots))
    return SlotMap(ranges, extent.slots, extent.first, next_push)


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
