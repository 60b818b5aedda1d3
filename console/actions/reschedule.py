"""Reschedule: give messages of a queue by due time another one. The old one is not kept."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from console import sql
from console.actions.availability import require_verb
from console.actions.message_action import RowAction
from console.actions.rows import Selection, SelectionCriteria, Storage, scope
from console.actions.selected import SelectedMessages
from console.engines import Session
from console.errors import UsageError
from console.formats import duration, numbered
from console.monitor.message import Message
from console.monitor.scan_query import MessageSource

THE_SAME = "due at that time already"
_COUNTED = 10_000


class Reschedule(RowAction):
    """All to one time: `at`, or `in_seconds` after the cut-off."""

    verb = "reschedule"
    states = ("ready", "scheduled")
    allowed = ("ready", "scheduled")
    statement = "reschedule"
    sets = ("due_at",)

    def __init__(
        self, source: MessageSource, *, at: datetime | None = None, in_seconds: float | None = None
    ) -> None:
        """UsageError where the queue has no such verb, or not exactly one of the two is given."""
        require_verb(source.queue, self.verb)
        if (at is None) == (in_seconds is None):
            raise UsageError(
                "A due time is missing." if at is None else "--at and --in exclude each other.",
                next_step="Give either --at TIME or --in DURATION.",
            )
        super().__init__(source)
        self._in_seconds = in_seconds
        self._due = at
        self._earlier = 0
        """Chosen messages that were due before the new time."""

    def select(self, criteria: SelectionCriteria) -> Selection:
        """Rounds the due time up to a whole second, which every column type keeps."""
        criteria.filters.without(self.verb, keep_newest="It is for actions that remove messages.")
        if self._in_seconds is not None:
            try:
                self._due = criteria.cutoff + timedelta(seconds=self._in_seconds)
            except OverflowError:
                raise UsageError("That is beyond the year 9999.") from None
        if self._due is not None and self._due.microsecond:
            self._due = self._due.replace(microsecond=0) + timedelta(seconds=1)
        self.detail = f"to {self._due:%Y-%m-%d %H:%M:%S} UTC"
        self._earlier = 0
        return super().select(criteria)

    def excluded(self, session: Session, chosen: Sequence[Message]) -> Mapping[str, list[Message]]:
        """Messages due at that time already: the search meets again what it has moved ahead."""
        del session
        same = [one for one in chosen if one.due_at == self._due]
        for message in chosen:
            if message.due_at is not None and self._due is not None and message.due_at < self._due:
                self._earlier += 1
        return {THE_SAME: same} if same else {}

    def consequences(
        self, session: Session, selected: SelectedMessages
    ) -> tuple[list[str], list[str]]:
        doing = f"count what is due in {self.source.queue.name!r}"
        with session.transaction(doing) as connection:
            self.source.wait_for_relay(connection)
            before = sql.value(
                connection,
                int,
                self.source.statement_name("due_before"),
                scope(self.source, Storage.TABLE),
                **self.bound(0),
            )
        others = numbered(max(0, before - self._earlier), "other message")
        if before > _COUNTED:
            others = f"{_COUNTED:,} messages or more, of which some may be these"
        late = 0.0 if self._due is None else (self._due - selected.cutoff).total_seconds()
        when = f"in {duration(late)}" if late > 0 else "which is in the past: due at once"
        return [
            f"they are due {self.detail.removeprefix('to ')}, {when}",
            f"they run after {others} due before that, in the order of their ids",
            "the due times that they had before are not kept",
        ], []

    def bound(self, action_id: int) -> dict[str, object]:
        del action_id
        return {"due_time": self._due}
