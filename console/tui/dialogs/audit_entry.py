"""One action in the audit, and the form that undoes or continues it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

from textual.binding import Binding, BindingType

from console.audit import Entry, Outcome
from console.errors import UsageError
from console.formats import duration, short_moment
from console.monitor import filters
from console.tui.context import Context
from console.tui.dialogs.dialog import FactsDialog
from console.tui.text import plain
from console.tui.widgets.keyed_table import Column, KeyedTable

_DROP_ORDER = ("detail", "action", "took", "planned", "not_done", "operator", "connection", "done")
_MARKS = {"failed": "✖", "refused": "✖", "interrupted": "!", "stopped": "!", "running": "▶"}
_STYLES = {"failed": "critical", "refused": "critical", "interrupted": "warning"}


@dataclass(frozen=True)
class AuditRow:
    """One action of one connection."""

    entry: Entry
    alive: bool | None = None
    """For an unfinished action: whether its session still exists."""
    connection: str = ""
    """Its name, if there are several."""

    @property
    def key(self) -> str:
        """The row key. Action ids are unique per database only."""
        return repr((self.connection, self.entry.action_id))

    @property
    def outcome(self) -> str:
        """How it ended; the audit alone cannot tell that an action was interrupted."""
        if self.entry.outcome != Outcome.RUNNING.value:
            return self.entry.outcome
        return {False: "interrupted", None: "running?", True: "running"}[self.alive]

    @property
    def counts(self) -> str:
        entry = self.entry
        if entry.planned:
            return f"{entry.done:,} of {entry.planned:,}"
        return f"{entry.done:,}" if entry.done else ""

    @property
    def not_done(self) -> str:
        """What was skipped or failed."""
        kinds = ((self.entry.skipped, "skipped"), (self.entry.failed, "failed"))
        return ", ".join(f"{count:,} {word}" for count, word in kinds if count)

    @property
    def took(self) -> str:
        """From its beginning to its last batch."""
        seconds = (self.entry.last_at - self.entry.started_at).total_seconds()
        return duration(max(0.0, seconds))


def audit_table(context: Context, *, id: str, queues: bool = True) -> KeyedTable[AuditRow]:  # noqa: A002
    """A table of actions; `queues`: with the queue of each."""

    def when(line: AuditRow) -> str:
        return short_moment(line.entry.started_at, context.zone)

    def queue(line: AuditRow) -> str:
        entry = line.entry
        return plain(f"{entry.schema}.{entry.queue}") if queues and entry.queue else ""

    columns: tuple[Column[AuditRow], ...] = (
        Column("mark", "", lambda line: _MARKS.get(line.outcome, ""), _mark_style, max_width=1),
        Column("when", "when", when, "quiet", 14, 14),
        Column("verb", "verb", lambda line: plain(line.entry.verb), "strong", 7, 12),
        Column("connection", "connection", lambda line: plain(line.connection), "quiet", 8, 24),
        Column("queue", "queue", queue, "", 14, 40),
        Column("outcome", "outcome", lambda line: plain(line.outcome), _style, 11, 12),
        Column("done", "done", _done, "", 6, 14, align_right=True),
        Column("planned", "planned", _planned, "quiet", 7, 14, align_right=True),
        Column("not_done", "skipped", lambda line: line.not_done, _not_done_style, 10, 28),
        Column("took", "took", lambda line: line.took, "quiet", 9, 10, align_right=True),
        Column("operator", "by", lambda line: plain(line.entry.operator), "", 8, 26),
        Column(
            "action", "no.", lambda line: str(line.entry.action_id), "quiet", 3, 8, align_right=True
        ),
        Column("detail", "about", _about, "quiet", 10, 120),
    )
    return KeyedTable(columns, _DROP_ORDER, id=id)


def _style(line: AuditRow) -> str:
    return _STYLES.get(line.outcome, "")


def _mark_style(line: AuditRow) -> str:
    return _style(line) or "quiet"


def _not_done_style(line: AuditRow) -> str:
    return "warning" if line.entry.failed else "quiet"


def _done(line: AuditRow) -> str:
    return f"{line.entry.done:,}" if line.entry.planned or line.entry.done else ""


def _planned(line: AuditRow) -> str:
    return f"{line.entry.planned:,}" if line.entry.planned else ""


def _about(line: AuditRow) -> str:
    return "  ".join(plain(text) for text in (line.entry.filters, line.entry.detail) if text)


_ARCHIVING = {"purge", "archive"}
"""Verbs that move messages to the archive."""
_RESUMABLE = {"requeue", "release", "purge", "archive", "restore"}
"""Verbs that finish the rest if planned again with the same filters."""
_UNFINISHED = {"interrupted", "stopped", "failed"}
_FILTER_STARTS = re.compile(
    r" (?=(?:state|older|newer|id|claimed_by|limit|keep-newest)=|error~|payload\.)"
)


class AuditEntryDialog(FactsDialog):
    """All details of an action, and its follow-up."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "follow", "follow up", tooltip="open the form that undoes or continues it"),
    ]

    def __init__(self, context: Context, line: AuditRow, connection: str) -> None:
        """`connection`: its name in this console, which may differ from the audit's."""
        self._app_context = context
        self._entry = line.entry
        self._follow = follow = follow_up(line)
        self._connection = connection
        super().__init__(
            f"Action {line.entry.action_id}",
            facts(context, line),
            note="" if follow is None else follow.text,
            keys="a opens the form · Escape closes" if follow else "Escape closes",
        )

    def action_follow(self) -> None:
        """Open the form of the follow-up, which plans first."""
        follow, entry = self._follow, self._entry
        if follow is None or not self.close():
            return
        self._app_context.navigator.open_action(
            (self._connection, entry.schema, entry.queue),
            follow.verb,
            follow.filters,
            **follow.options,
        )


@dataclass(frozen=True)
class FollowUp:
    """A form that undoes or continues an action, with its fields."""

    verb: str
    text: str
    filters: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)


def follow_up(line: AuditRow) -> FollowUp | None:
    """What undoes or continues the action, if anything."""
    entry = line.entry
    if line.outcome in _UNFINISHED and entry.verb in _RESUMABLE:
        words = filters_of(entry)
        filtered = f" with {' '.join(words)}" if words else ""
        return FollowUp(
            entry.verb,
            "It did not finish. What it did stays done; "
            f"{entry.verb} again{filtered} does the rest.",
            words,
        )
    if entry.verb in _ARCHIVING and entry.done:
        return FollowUp(
            "restore",
            f"What it took is in the archive: restore --action {entry.action_id} brings it back.",
            options={"action": str(entry.action_id)},
        )
    return None


def filters_of(entry: Entry) -> tuple[str, ...]:
    """The filters of an action; empty if they cannot be parsed."""
    words = tuple(_FILTER_STARTS.split(entry.filters)) if entry.filters else ()
    try:
        filters.parse(words)
    except UsageError:  # written by an older console
        return ()
    return words


def facts(context: Context, line: AuditRow) -> dict[str, str]:
    """All details, safe to show."""
    entry = line.entry

    def moment(at: datetime | None) -> str:
        return "" if at is None else context.moment(at)

    values = {
        "verb": entry.verb,
        "queue": f"{entry.schema}.{entry.queue}",
        "outcome": line.outcome,
        "began": moment(entry.started_at),
        "last batch": moment(entry.last_at),
        "ended": moment(entry.ended_at),
        "took": line.took,
        "operator": entry.operator,
        "as": entry.database_user,
        "session": entry.session,
        "connection": entry.connection,
        "filters": entry.filters,
        "cut-off": moment(entry.cutoff),
        "planned": f"{entry.planned:,}" if entry.planned else "",
        "selected": f"{entry.selected:,}" if entry.planned else "",
        "done": line.counts,
        "skipped": line.not_done,
        "detail": entry.detail,
    }
    return {name: plain(text) for name, text in values.items() if text}
