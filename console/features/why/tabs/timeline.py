"""What happened to it, in order of time.

Of the last two hours, of eight, or of a day.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from textual.binding import Binding, BindingType

from console.features.history.points import ACTION, FINDING, NOTE
from console.features.why.events import UNATTENDED, Event
from console.features.why.explain import Timeline, Where
from console.features.why.views.timeline import VIEW
from console.tui.context import Context
from console.tui.dialogs.audit_entry import AuditEntryDialog
from console.tui.findings import QueueKey
from console.tui.open_connection import OpenConnection
from console.tui.tabs.tab import ListTab
from console.views.audit import AuditRow
from console.views.view import Source, View, no_database

_SPANS = (("2h", 7200.0), ("8h", 8 * 3600.0), ("24h", 86_400.0))


class RecordedTab(ListTab[Any]):
    """A list of what was recorded; with a database, also of its audit."""

    EVERY_SECONDS: ClassVar[float] = 20.0
    PACE_SECONDS: ClassVar[float] = 20.0

    def reload(self, *, wait: bool = True) -> None:
        conn = self.conn
        self.fetch.submit(lambda: self.read(conn), wait=wait)

    def source(self, conn: OpenConnection | None) -> Source:
        connection, schema, name = self.key
        database = None if conn is None else lambda: conn.database
        of_queue = Where(self.context.recordings_root, connection, schema, name, database)
        return Source(no_database, values={"where": of_queue, "now": self.context.clock.utc()})


class TimelineTab(RecordedTab):
    """The newest first; Enter opens what a line is about."""

    NAME: ClassVar[str] = "timeline"
    TITLE: ClassVar[str] = "Timeline"
    SHORT_TITLE: ClassVar[str] = "Time"
    VIEW: ClassVar[View[Any, Any]] = VIEW
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open", tooltip="what the line is about"),
        Binding("z", "span", "span", tooltip="the last 2, 8 or 24 hours"),
    ]

    def __init__(self, context: Context, key: QueueKey) -> None:
        super().__init__(context, key)
        self._span = 0
        self.result: Timeline | None = None

    @property
    def command(self) -> Sequence[str]:
        return "timeline", "--since", _SPANS[self._span][0]

    def source(self, conn: OpenConnection | None) -> Source:
        source = super().source(conn)
        return Source(no_database, values={**source.values, "seconds": _SPANS[self._span][1]})

    def action_span(self) -> None:
        self._span = (self._span + 1) % len(_SPANS)
        self.reload()

    def action_open(self) -> None:
        event: Event | None = self.table.row
        if event is None or self.result is None:
            return
        if event.kind == FINDING and (found := self._finding(event.name)):
            self.navigator.open_finding(found)
        elif event.kind in {ACTION, UNATTENDED, NOTE}:
            entry = self.result.catalog.entries.get(event.action_id or 0)
            if entry is None:
                self.navigator.open_audit(self.key[0], self.key)
            else:
                dialog = AuditEntryDialog(self.context, AuditRow(entry), self.key[0])
                self.app.push_screen(dialog)
        else:
            self.navigator.open_queue(self.key, event.opens or "history")

    def _finding(self, code: str) -> Any:
        """The one that the doctor still has."""
        found = self.context.store.findings(self.context.clock.monotonic())
        mine = (one for one in found if one.queue_key == self.key and one.code == code)
        return next(mine, None)


TAB = TimelineTab
