"""One action as the audit has it, whole, and how what it did is undone or gone on with."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from console.actions.audit import Entry
from console.errors import UsageError
from console.monitor import filters
from console.tui.desk import Desk
from console.tui.dialogs.dialog import Dialog
from console.tui.text import plain
from console.tui.widgets.audit_table import Line

_TAKES = {"purge", "archive"}
"""Verbs whose messages lie in the archive."""
_GOES_ON = {"requeue", "release", "purge", "archive", "restore"}
"""Verbs that do the rest when they are planned again with the same filters."""
_UNFINISHED = {"interrupted", "stopped", "failed"}
_FORMS = re.compile(r" (?=(?:state|older|newer|id|claimed_by|limit|keep-newest)=|error~|payload\.)")


class AuditEntryDialog(Dialog[None]):
    """Nothing in it can change any more."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "dismiss", "close", show=False, tooltip="close"),
        Binding("a", "follow", "follow up", tooltip="open the form that undoes it or goes on"),
        Binding("y", "copy", "copy", show=False, tooltip="copy the text"),
        Binding("down,j", "scroll(1)", "down", show=False),
        Binding("up,k", "scroll(-1)", "up", show=False),
    ]

    def __init__(self, desk: Desk, line: Line, connection: str) -> None:
        """`connection`: as the console calls it, which need not be how the audit does."""
        super().__init__()
        self._desk = desk
        self._line = line
        self._connection = connection

    def compose(self) -> ComposeResult:
        """One panel that scrolls where the terminal is small."""
        with VerticalScroll(id="audit-entry", classes="dialog") as panel:
            panel.border_title = f"Action {self._line.entry.action_id}"
            follow = follow_up(self._line)
            panel.border_subtitle = (
                "a opens the form · Escape closes" if follow else "Escape closes"
            )
            yield Static(self._table())
            yield Static(Text(self._next_words()), id="audit-next")

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True, style="bold")
        table.add_column()
        for name, words in facts(self._desk, self._line).items():
            table.add_row(Text(name), Text(words))
        return table

    def _next_words(self) -> str:
        follow = follow_up(self._line)
        return "" if follow is None else f"\n{follow.words}"

    def action_follow(self) -> None:
        """Open the form of what comes after it; that plans before it does anything."""
        follow = follow_up(self._line)
        if follow is None:
            return
        entry = self._line.entry
        ways, key = self._desk.ways, (self._connection, entry.schema, entry.queue)
        self.app.pop_screen()
        ways.open_action(key, follow.verb, follow.filters, **follow.options)

    def action_copy(self) -> None:
        """Copy what it says."""
        pairs = facts(self._desk, self._line).items()
        self.app.copy_to_clipboard("\n".join(f"{name}: {words}" for name, words in pairs))
        self.notify("Copied.")

    def action_scroll(self, lines: int) -> None:
        """A line down or up."""
        self.query_one("#audit-entry").scroll_relative(y=lines, animate=False, immediate=True)


@dataclass(frozen=True)
class FollowUp:
    """What can be done about an action: which form, with which fields."""

    verb: str
    words: str
    filters: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)


def follow_up(line: Line) -> FollowUp | None:
    """What undoes the action, or goes on with it; None: nothing that the console knows."""
    entry = line.entry
    if line.outcome in _UNFINISHED and entry.verb in _GOES_ON:
        words = filters_of(entry)
        told = f" with {' '.join(words)}" if words else ""
        return FollowUp(
            entry.verb,
            f"It did not come to its end. What it did is done; {entry.verb} again{told} does the "
            "rest.",
            words,
        )
    if entry.verb in _TAKES and entry.done:
        return FollowUp(
            "restore",
            f"What it took lies in the archive: restore --action {entry.action_id} brings it back.",
            options={"action": str(entry.action_id)},
        )
    return None


def filters_of(entry: Entry) -> tuple[str, ...]:
    """The filters of an action, one by one; none where the audit's line cannot be read back."""
    words = tuple(_FORMS.split(entry.filters)) if entry.filters else ()
    try:
        filters.parse(words)
    except UsageError:  # an older console's words need not be this one's
        return ()
    return words


def facts(desk: Desk, line: Line) -> dict[str, str]:
    """Everything that the audit has of it, safe to show."""
    entry = line.entry

    def moment(at: datetime | None) -> str:
        return "" if at is None else desk.moment(at)

    told = {
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
        "left alone": line.left,
        "detail": entry.detail,
    }
    return {name: plain(words) for name, words in told.items() if words}
