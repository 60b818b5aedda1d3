"""The tab Audit of a queue: what was done to it last, by whom, and what is under way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from console.actions import audit
from console.actions.audit import Entry, Wanted
from console.engines import Database
from console.errors import ConsoleError
from console.formats import numbered
from console.tui.board import Key, QueueView
from console.tui.desk import Desk
from console.tui.dialogs.audit_entry import AuditEntryDialog
from console.tui.jobs import Question
from console.tui.tabs.tab import QueueTab
from console.tui.text import said, whole_seconds
from console.tui.widgets.audit_table import AuditTable
from console.tui.widgets.tones import tone
from console.tui.widgets.words import Words

_MOST = 200


@dataclass(frozen=True)
class Found:
    """The newest entries, and of those that have not ended whether they still run."""

    entries: Sequence[Entry]
    alive: Mapping[int, bool | None]


def find(database: Database, schema: str, name: str) -> Found:
    """What the database's audit has of a queue, also of one that is gone."""
    with database.transaction("read the audit", read_only=True) as connection:
        wanted = Wanted(schema=schema, queue=name)
        entries = audit.entries(connection, database.product, wanted, _MOST)
        return Found(entries, audit.alive(connection, database.product, entries))


class AuditTab(QueueTab):
    """The newest first; what is running says so, and what was cut off too."""

    NAME: ClassVar[str] = "audit"
    TITLE: ClassVar[str] = "Audit"
    TWIN: ClassVar[str] = "audit"
    EVERY_SECONDS: ClassVar[float] = 3.0
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "whole", tooltip="show the action whole, and what undoes it"),
    ]

    def __init__(self, desk: Desk, key: Key) -> None:
        super().__init__(desk, key)
        self.found: Found | None = None
        self._found_at = 0.0
        self._error: ConsoleError | None = None
        self._question: Question[Found] = Question(self, self.show_found, self.fail)

    def compose(self) -> ComposeResult:
        """What there is, and where it comes from."""
        yield Words(id="queue-audit-head")
        yield AuditTable(id="queue-audit", queues=False)

    def on_mount(self) -> None:
        """Nothing is known yet."""
        self._draw_words()

    def look(self) -> None:
        """Read the audit."""
        place, (_, schema, name) = self.place, self.key
        if place is not None:
            self._question.ask(lambda: find(place.database, schema, name), wait=False)

    def show_found(self, found: Found) -> None:
        """What was done, as it was read a moment ago."""
        self.found, self._found_at = found, self.desk.clock.monotonic()
        self._error = None
        if self.is_whole:
            self._show()

    def fail(self, error: ConsoleError) -> None:
        """What was read last stays, with its age."""
        self._error = error
        if self.is_whole:
            self._draw_words()

    def draw(self, view: QueueView | None, *, paused: bool) -> None:  # noqa: ARG002
        """Times run on, and may be shown in another zone now."""
        if self.is_whole and not paused:
            self._show()

    def _show(self) -> None:
        table = self.query_one(AuditTable)
        table.zone = self.desk.zone
        if self.found is not None:
            table.show_entries(self.found.entries, self.found.alive)
        table.display = bool(self.found and self.found.entries)
        self._draw_words()

    def _draw_words(self) -> None:
        head = self.query_one("#queue-audit-head", Words)
        if self._error is not None:
            old = ""
            if self.found is not None:
                age = whole_seconds(self.desk.clock.monotonic() - self._found_at)
                old = f"as it was {age} ago: "
            head.say(Text(old + said(self._error), tone(head, "critical")))
        elif self.found is None:
            head.say(Text("Reading the audit ...", tone(head, "quiet")))
        else:
            head.say(Text(self._told(self.found.entries), tone(head, "quiet")))

    def _told(self, entries: Sequence[Entry]) -> str:
        if not entries:
            return "Nobody has done anything to this queue by the console yet."
        newest = f"the newest {_MOST:,} actions" if len(entries) == _MOST else ""
        count = newest or numbered(len(entries), "action")
        return f"{count}   A: all of them, with a filter"

    def action_open(self) -> None:
        """Show the action under the cursor whole."""
        line = self.query_one(AuditTable).line
        if line is not None:
            self.app.push_screen(AuditEntryDialog(self.desk, line, self.key[0]))
