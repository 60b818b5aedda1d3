"""One action in the audit, and the form that undoes or continues it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

from textual.binding import Binding, BindingType

from console.catalog.audit import Entry
from console.errors import UsageError
from console.monitor import filters
from console.tui.context import Context
from console.tui.dialogs.dialog import FactsDialog
from console.tui.text import plain
from console.verbs import get_verb
from console.verbs.index import VERBS
from console.views.audit import AuditRow

_UNFINISHED = {"interrupted", "stopped", "failed"}
_FILTER_STARTS = re.compile(
    r" (?=(?:state|older|newer|id|claimed_by|limit|keep-newest)=|error~|payload\.)"
)


class AuditEntryDialog(FactsDialog):
    """All details of an action, and its follow-up."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "follow", "follow up", tooltip="open the form that undoes or continues it")
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
    verb = get_verb(entry.verb) if entry.verb in VERBS else None
    if verb is None:
        return None
    if line.outcome in _UNFINISHED and verb.repeatable:
        words = filters_of(entry)
        filtered = f" with {' '.join(words)}" if words else ""
        return FollowUp(
            entry.verb,
            "It did not finish. What it did stays done; "
            f"{entry.verb} again{filtered} does the rest.",
            words,
        )
    if verb.archives and entry.done:
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
