"""The audit of all connections, of one, or of a queue."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widgets import Input

from console.errors import ConsoleError, UsageError
from console.formats import numbered
from console.tui.context import Context
from console.tui.dialogs.audit_entry import AuditEntryDialog
from console.tui.dialogs.dialog import show_equivalent_command
from console.tui.findings import QueueKey
from console.tui.jobs import LatestQuery
from console.tui.open_connection import OpenConnection
from console.tui.screens.live import OUT, PolledScreen, ScreenHead
from console.tui.tabs.tab import ListTab
from console.tui.text import TextView, describe_error, first_line, plain, style_of, whole_seconds
from console.tui.widgets.browser import COPY_KEYS, SORT_KEYS, Browser, filter_keys
from console.views.audit import VIEW, AuditRow, read
from console.views.view import Column, Part, Search, Source, View, parse

_MOST = 200


class AuditTab(ListTab[Sequence[AuditRow]]):
    """The console's actions on the queue, the newest first."""

    VIEW: ClassVar[View[Any, Any]] = VIEW
    NAME: ClassVar[str] = "audit"
    TITLE: ClassVar[str] = "Audit"
    COMMAND: ClassVar[Sequence[str]] = ("audit",)
    EVERY_SECONDS: ClassVar[float] = 3.0
    PACE_SECONDS: ClassVar[float] = 0.0
    PAUSE: ClassVar[float] = 0
    VALUES: ClassVar[Mapping[str, Any]] = {"limit": _MOST}
    BINDINGS: ClassVar[list[BindingType]] = [
        *filter_keys(Browser.FORMS, show=False),
        Binding("enter", "open", "whole", tooltip="show the whole action, and what undoes it"),
    ]

    @property
    def columns(self) -> Sequence[Column[AuditRow]]:
        return [column for column in super().columns if column.name != "queue"]

    def draw_texts(self) -> None:
        self.table.display = bool(self.result)
        super().draw_texts()

    def summary(self, head: TextView, result: Sequence[AuditRow]) -> list[Text]:
        count = numbered(len(result), "action")
        if len(result) == _MOST:
            count = f"the newest {_MOST:,} actions"
        text = f"{count}   A: all of them, with a filter"
        if not result:
            text = "The console has not done anything to this queue yet."
        line = Text(text, style_of(head, "quiet"))
        self.append_filter(line, head)
        return [line]

    def detail(self) -> Sequence[Part]:
        """Enter shows it."""
        return []

    def action_open(self) -> None:
        line = self.table.row
        if line is not None:
            self.app.push_screen(AuditEntryDialog(self.context, line, self.key[0]))


_LIMIT = 500
"""The newest of each connection."""
_FORMS = "verb=purge  operator=ann  since=1d  running, or any words"


@dataclass(frozen=True)
class AuditEntries:
    lines: tuple[AuditRow, ...] = ()
    errors: tuple[tuple[str, ConsoleError], ...] = ()
    full: bool = False
    """Whether there are older ones."""


def read_all(
    connections: Sequence[OpenConnection], search: Search, key: QueueKey | None = None
) -> AuditEntries:
    """Waits for each connection in turn."""
    lines: list[AuditRow] = []
    errors = []
    full, several = False, len(connections) > 1
    schema, name = (None, None) if key is None else key[1:]
    values = {**VIEW.default_values(), "limit": _LIMIT, **search.values}
    for conn in connections:
        source = Source(partial(attrgetter("database"), conn), schema, name, values)
        try:
            result = read(source, conn.name if several else "")
        except ConsoleError as error:
            errors.append((conn.name, error))
            continue
        full = full or len(result) >= values["limit"]
        lines += result
    lines.sort(key=lambda line: line.entry.started_at, reverse=True)
    return AuditEntries(tuple(lines), tuple(errors), full)


class AuditScreen(PolledScreen):
    """The newest first."""

    VIEW: ClassVar[View[Any, Any]] = VIEW
    BINDINGS: ClassVar[list[BindingType]] = [
        *filter_keys(_FORMS),
        *SORT_KEYS,
        *COPY_KEYS,
        OUT,
        Binding("enter", "open", "whole", tooltip="show the whole action, and what undoes it"),
        Binding("o", "command_line", "the equivalent command line", show=False),
    ]

    FORMS: ClassVar[str] = _FORMS
    FILTERS: ClassVar[tuple[tuple[str, str], ...]] = (
        ("/ verb=purge", "also operator=ann since=1d running"),
        ("/ words", "that the lines contain"),
    )

    def __init__(self, context: Context, connection: str = "", key: QueueKey | None = None) -> None:
        self._key = key
        super().__init__(context)
        name = connection or (key[0] if key is not None else "")
        self._connections = [
            open_connection
            for open_connection in context.connections.values()
            if name in {"", open_connection.name}
        ]
        self._search = Search()
        self._filter_error = ""
        self._audit_entries: AuditEntries | None = None
        self._read_at = 0.0
        self._fetch: LatestQuery[AuditEntries] = LatestQuery(self, self.show, self._failed)

    @property
    def columns(self) -> Sequence[Column[AuditRow]]:
        columns = super().columns
        return [column for column in columns if self._key is None or column.name != "queue"]

    def reload(self) -> None:
        connections, search, key = list(self._connections), self._search, self._key
        self._fetch.submit(lambda: read_all(connections, search, key))

    def show(self, result: AuditEntries) -> None:
        if self.paused_at is not None and self._audit_entries is not None:
            return
        # The last entries of a connection that fails now stay.
        failed = {name for name, _ in result.errors}
        kept = (
            []
            if self._audit_entries is None
            else [x for x in self._audit_entries.lines if x.connection in failed]
        )
        if result.errors and len(self._connections) == 1 and self._audit_entries is not None:
            kept = list(self._audit_entries.lines)
        if not result.errors:
            self._read_at = self.context.clock.monotonic()
        lines = sorted([*result.lines, *kept], key=lambda x: x.entry.started_at, reverse=True)
        self._audit_entries = AuditEntries(tuple(lines), result.errors, result.full)
        self.draw_texts()

    def _failed(self, error: ConsoleError) -> None:
        self.show(AuditEntries(errors=(("", error),)))

    def draw_texts(self) -> None:
        rows = VIEW.rows(self._audit_entries.lines if self._audit_entries else ())
        self.show_rows(rows, self._why_empty())
        self._draw_head(len(self.table.keys))

    def _draw_head(self, shown: int) -> None:
        head = self.query_one("#audit-head", ScreenHead)
        line = self.paused_head(head, "Audit")
        line.append(f" of {self._subject}", style_of(head, "quiet"))
        if self._audit_entries is not None:
            more = "the newest " if self._audit_entries.full else ""
            line.append(f"   {more}{numbered(shown, 'action')}")
        if text := self.query_one("#filter", Input).value:
            line.append(f"   that match {plain(text)}", style_of(head, "strong"))
        if self._filter_error:
            line.append(f"   {plain(self._filter_error)}", style_of(head, "critical"))
        for name, error in self._audit_entries.errors if self._audit_entries else ():
            age = whole_seconds(max(0.0, self.context.clock.monotonic() - self._read_at))
            old = f", {age} old" if self._read_at else ""
            where = f"{plain(name)}: " if name and len(self._connections) > 1 else ""
            line.append(
                f"   {where}{first_line(error.why or error.what)}{old}", style_of(head, "critical")
            )
        head.draw(line)

    @property
    def _subject(self) -> str:
        if self._key is not None:
            return plain(f"{self._key[1]}.{self._key[2]} on {self._key[0]}")
        if len(self._connections) == 1:
            return plain(self._connections[0].name)
        return f"{len(self._connections)} connections"

    def _why_empty(self) -> str:
        if not self._connections:
            return "There is no connection whose audit could be read."
        if self._audit_entries is None:
            return "Reading the audit ..."
        if self._audit_entries.errors:
            return "\n\n".join(describe_error(error) for _, error in self._audit_entries.errors)
        if self._search != Search():
            return "No action matches. Escape shows all."
        return (
            "No actions here yet.\n\n"
            "Every action of this console and of the command line is listed here:\n"
            "who, when, what, how many. Never a payload."
        )

    # Keys.

    def search(self, text: str) -> None:
        try:
            search, self._filter_error = parse(VIEW, text), ""
        except UsageError as error:
            search, self._filter_error = self._search, first_line(error.what)
        before, self._search = self._search, search
        if before.options != search.options:
            self.reload()
        self.table.filter_by(search.words)

    def action_open(self) -> None:
        line = self.table.row
        if line is not None:
            connection = line.connection or (self._connections[0].name if self._connections else "")
            self.app.push_screen(AuditEntryDialog(self.context, line, connection))

    def action_command_line(self) -> None:
        conn = self._connections[0] if self._connections else None
        show_equivalent_command(self, conn, "audit", self._key, self._search.command_words)
