"""The audit of all connections, of one, or of a queue."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Input

from console import audit
from console.audit import EntryFilter
from console.errors import ConsoleError, UsageError
from console.formats import numbered, parse_duration
from console.monitor import owners
from console.tui.context import Context
from console.tui.dialogs.audit_entry import AuditEntryDialog, AuditRow, audit_table
from console.tui.dialogs.dialog import show_equivalent_command
from console.tui.findings import QueueKey
from console.tui.jobs import LatestQuery
from console.tui.open_connection import OpenConnection
from console.tui.screens.live import FilteredScreen, PolledScreen, ScreenHead, filter_keys
from console.tui.tabs.tab import ReadingTab
from console.tui.text import (
    Paragraph,
    TextView,
    describe_error,
    first_line,
    plain,
    style_of,
    whole_seconds,
)

_MOST = 200


class AuditTab(ReadingTab[list[AuditRow]]):
    """The console's actions on the queue, the newest first."""

    NAME: ClassVar[str] = "audit"
    TITLE: ClassVar[str] = "Audit"
    COMMAND: ClassVar[Sequence[str]] = ("audit",)
    EVERY_SECONDS: ClassVar[float] = 3.0
    PACE_SECONDS: ClassVar[float] = 0.0
    PAUSE: ClassVar[float] = 0
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "whole", tooltip="show the whole action, and what undoes it"),
    ]

    def __init__(self, context: Context, key: QueueKey) -> None:
        super().__init__(context, key)
        self.table = audit_table(context, id="queue-audit", queues=False)

    def compose(self) -> ComposeResult:
        yield TextView(id="queue-audit-head")
        yield self.table

    def read(self, conn: OpenConnection) -> list[AuditRow]:
        return _entries(conn, AuditSearch().entry_filter(self.key), _MOST)

    def draw_texts(self) -> None:
        # The table too: durations grow, and the time zone may have been changed.
        if self.result is not None:
            self.table.show({line.key: line for line in self.result})
        self.table.display = bool(self.result)
        head = self.query_one("#queue-audit-head", TextView)
        self.draw_head(head, "Reading the audit ...", partial(self._summary, head))

    def _summary(self, head: TextView, lines: Sequence[AuditRow]) -> Text:
        count = numbered(len(lines), "action")
        if len(lines) == _MOST:
            count = f"the newest {_MOST:,} actions"
        text = f"{count}   A: all of them, with a filter"
        if not lines:
            text = "The console has not done anything to this queue yet."
        return Text(text, style_of(head, "quiet"))

    def action_open(self) -> None:
        line = self.table.row
        if line is not None:
            self.app.push_screen(AuditEntryDialog(self.context, line, self.key[0]))


_LIMIT = 500
"""The newest of each connection."""
_FORMS = "verb:purge  operator:ann  since:1d  running, or any words"


@dataclass(frozen=True)
class AuditSearch:
    """The filter: the database applies it, except for the words."""

    verb: str | None = None
    operator: str | None = None
    since: float | None = None
    running: bool = False
    words: tuple[str, ...] = ()

    def entry_filter(self, key: QueueKey | None) -> EntryFilter:
        schema, name = (None, None) if key is None else key[1:]
        return EntryFilter(schema, name, self.verb, self.operator, self.since, self.running)

    def matches(self, line: AuditRow) -> bool:
        entry = line.entry
        text = f"{line.connection} {line.outcome} {entry.verb} {entry.schema}.{entry.queue} "
        text += f"{entry.operator} {entry.database_user} {entry.filters} {entry.detail} "
        text = (text + str(entry.action_id)).casefold()
        return all(word in text for word in self.words)


def parse(text: str) -> AuditSearch:
    """UsageError for a wrong duration."""
    verb = operator = since = None
    running = False
    words = []
    for word in text.split():
        name, colon, value = word.partition(":")
        if colon and not value:
            continue  # it is still being typed
        if colon and name == "verb":
            verb = value
        elif colon and name == "operator":
            operator = value
        elif colon and name == "since":
            since = parse_duration(value)
        elif word == "running":
            running = True
        else:
            words.append(word.casefold())
    return AuditSearch(verb, operator, since, running, tuple(words))


@dataclass(frozen=True)
class AuditEntries:
    lines: tuple[AuditRow, ...] = ()
    errors: tuple[tuple[str, ConsoleError], ...] = ()
    full: bool = False
    """Whether there are older ones."""


def read_all(
    connections: Sequence[OpenConnection], search: AuditSearch, key: QueueKey | None = None
) -> AuditEntries:
    """Waits for each connection in turn."""
    lines: list[AuditRow] = []
    errors = []
    full, several = False, len(connections) > 1
    for conn in connections:
        try:
            result = _entries(conn, search.entry_filter(key), _LIMIT, conn.name if several else "")
        except ConsoleError as error:
            errors.append((conn.name, error))
            continue
        full = full or len(result) >= _LIMIT
        lines += result
    lines.sort(key=lambda line: line.entry.started_at, reverse=True)
    return AuditEntries(tuple(lines), tuple(errors), full)


def _entries(
    conn: OpenConnection, wanted: EntryFilter, most: int, label: str = ""
) -> list[AuditRow]:
    """The newest, with whether unfinished ones are still running."""
    with conn.database.transaction("read the audit", read_only=True) as connection:
        entries = audit.entries(connection, wanted, most)
        alive = owners.alive(connection, entries)
    return [AuditRow(entry, alive.get(entry.action_id), label) for entry in entries]


class AuditScreen(PolledScreen, FilteredScreen):
    """The newest first."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *filter_keys(_FORMS),
        Binding("enter", "open", "whole", tooltip="show the whole action, and what undoes it"),
        Binding("o", "command_line", "the equivalent command line", show=False),
    ]

    FILTERS: ClassVar[tuple[tuple[str, str], ...]] = (
        ("/ verb:purge", "also operator:ann since:1d running"),
        ("/ words", "that the lines contain"),
    )

    def __init__(self, context: Context, connection: str = "", key: QueueKey | None = None) -> None:
        super().__init__(context)
        self._key = key
        self.table = audit_table(context, id="audit", queues=key is None)
        name = connection or (key[0] if key is not None else "")
        self._connections = [one for one in context.connections.values() if name in {"", one.name}]
        self._search = AuditSearch()
        self._filter_error = ""
        self._audit_entries: AuditEntries | None = None
        self._read_at = 0.0
        self._fetch: LatestQuery[AuditEntries] = LatestQuery(self, self.show, self._failed)

    def body(self) -> ComposeResult:
        yield ScreenHead(id="audit-head", classes="head")
        yield self.table
        yield Paragraph(id="audit-empty", classes="empty")
        yield Input(id="filter", placeholder=_FORMS)

    def on_mount(self) -> None:
        self.query_one("#filter").display = False

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
        self._draw_lines()

    def _failed(self, error: ConsoleError) -> None:
        self.show(AuditEntries(errors=(("", error),)))

    def draw_body(self, now: float, *, paused: bool) -> None:  # noqa: ARG002  # the base's
        self._draw_lines()

    def _draw_lines(self) -> None:
        result = self._audit_entries or AuditEntries()
        shown = [line for line in result.lines if self._search.matches(line)]
        self._draw_head(len(shown))
        self.show_rows({line.key: line for line in shown}, self._why_empty())

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
        if self._search != AuditSearch():
            return "No action matches. Escape shows all."
        return (
            "No actions here yet.\n\n"
            "Every action of this console and of the command line is listed here:\n"
            "who, when, what, how many. Never a payload."
        )

    # Keys.

    @property
    def listed(self) -> Widget:
        return self.table

    def on_input_changed(self, event: Input.Changed) -> None:
        try:
            search, self._filter_error = parse(event.value), ""
        except UsageError as error:
            search, self._filter_error = self._search, error.what
        before, self._search = self._search, search
        if before.entry_filter(None) != search.entry_filter(None):
            self.reload()
        self._draw_lines()
        self.refresh_bindings()

    def action_open(self) -> None:
        line = self.table.row
        if line is not None:
            connection = line.connection or (self._connections[0].name if self._connections else "")
            self.app.push_screen(AuditEntryDialog(self.context, line, connection))

    def action_command_line(self) -> None:
        conn = self._connections[0] if self._connections else None
        show_equivalent_command(self, conn, "audit", self._key, command_words(self._search))


def command_words(search: AuditSearch) -> list[str]:
    """The options of the command line, which has no free words."""
    result = ["--verb", search.verb] if search.verb else []
    result += ["--operator", search.operator] if search.operator else []
    result += ["--since", f"{search.since:g}s"] if search.since is not None else []
    return [*result, "--running"] if search.running else result
