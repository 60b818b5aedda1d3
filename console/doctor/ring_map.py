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
    first: int
    last: int
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


def slot_map(database: Database, queue: Queue, *, patience_seconds: float = 0.5) -> list[SlotRange]:
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
    return list(_with_gaps(found, extent.slots))


def _with_gaps(found: list[SlotRange], size: int) -> Iterator[SlotRange]:
    following = 0
    for slots in found:
        if slots.first_slot > following:
            yield _missing(following, min(slots.first_slot, size) - 1)
        yield slots
        following = slots.last_slot + 1
    if following < size:
        yield _missing(following, size - 1)


def _missing(first: int, last: int) -> SlotRange:
    return SlotRange(first, last, "missing", last - first + 1, None, None)
