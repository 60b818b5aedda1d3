"""What a look tells of one queue, as the statements in `queries/` return it."""

from dataclasses import dataclass

from console.catalog import Queue

COUNTED = 10_000
"""Rows of a state are counted up to here; one more than this says: there are more."""

STATES = ("ready", "scheduled", "claimed", "errors", "done")
"""The counts that exclude each other."""

FIGURES = ("ready", "age_seconds", "scheduled", "claimed", "stuck", "errors", "done")
"""What is read from the queue's own table, and so may be dear: those likely to be so first."""

Key = tuple[str, str]
"""Schema and name: one queue of a database."""


def key_of(queue: Queue) -> Key:
    """What stays the same from look to look."""
    return (queue.schema, queue.name)


@dataclass(frozen=True)
class StatusRow:
    """What every `status` statement returns. None: the design has it not, or it is not known."""

    schema: str
    queue: str
    ready: int | None
    scheduled: int | None
    claimed: int | None
    stuck: int | None
    errors: int | None
    done: int | None
    age_seconds: float | None
    rows_estimated: int | None
    inserted: int | None
    updated: int | None
    deleted: int | None
    next_push: int | None
    next_pop: int | None
    base: int | None
    capacity: int | None

    @property
    def gap(self) -> int | None:
        """The push/pop sequence gap of a ring."""
        if self.next_push is None or self.next_pop is None:
            return None
        return self.next_push - self.next_pop

    def over(self) -> tuple[str, ...]:
        """The states that have more rows than are counted. A ring's depth is its gap: not that."""
        counts = {state: getattr(self, state) for state in STATES}
        if self.capacity is not None:
            del counts["ready"]
        return tuple(state for state, count in counts.items() if count and count > COUNTED)

    def uncounted(self) -> int:
        """About how many rows those states have together, by the engine's statistics."""
        over = self.over()
        states = STATES if self.capacity is None else STATES[1:]
        counted = sum(getattr(self, state) or 0 for state in states if state not in over)
        return (self.rows_estimated or 0) - counted
