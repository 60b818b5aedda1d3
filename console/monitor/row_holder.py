"""A session that holds rows of a queue: how long, and what identifies it."""

from console.formats import duration_between, is_one_duration

SessionKey = int | str
"""A session's id, or the name of a prepared transaction, which has no session."""


class RowHolder:
    """How long a session has held its rows, as far as the server can tell."""

    held_at_least_seconds: float | None
    held_at_most_seconds: float | None

    @property
    def held_seconds(self) -> float | None:
        """At most, or if that is not known at least; None: not known."""
        longest = self.held_at_most_seconds
        return self.held_at_least_seconds if longest is None else longest

    @property
    def held_for(self) -> str:
        return duration_between(self.held_at_least_seconds, self.held_at_most_seconds)

    @property
    def held_exactly_seconds(self) -> float | None:
        """None: not known to the second."""
        least, most = self.held_at_least_seconds, self.held_at_most_seconds
        return most if is_one_duration(least, most) else None
