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
from console.monitor.message_count import Group
from console.monitor.scan_query import MessageSource
from console.monitor.scans import Grouping

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
        return super().select(criteria)

    grouping = Grouping.BY_DUE

    @property
    def group_limit(self) -> datetime | None:
        return self._due

    def group_of(self, message: Message) -> Group:
        if message.due_at is None or self._due is None:
            return Group(side=None)
        return Group(side=(message.due_at > self._due) - (message.due_at < self._due))

    def groups_excluded(self, session: Session, groups: Sequence[Group]) -> Mapping[Group, str]:
        """Messages due at that time already: the search meets again what it has moved ahead."""
        del session
        return {group: THE_SAME for group in groups if group.side == 0}

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
        others = numbered(
            max(0, before - selected.by_group.get(Group(side=-1), 0)), "other message"
        )
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
