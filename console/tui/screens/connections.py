"""The connections: their state and rights, where they are configured, and a form for a new one."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input

from console import config, formats
from console.config import file_writer
from console.config.file_writer import WrongFieldError
from console.engines import TRANSPORT, Capabilities
from console.errors import ConsoleError, UsageError
from console.monitor.limits import Severity
from console.rights import BY_WORD, ConnectionRights
from console.tui import jobs
from console.tui.context import Context
from console.tui.dialogs.dialog import Dialog
from console.tui.open_connection import (
    ConnectionTest,
    OpenConnection,
    PendingConnection,
    open_profile,
)
from console.tui.screens.live import LiveScreen, ScreenHead
from console.tui.text import (
    MARK,
    SEVERITY_STYLES,
    Paragraph,
    describe_error,
    mark_style,
    plain,
    style_of,
    whole_seconds,
)
from console.tui.views import ConnectionView
from console.tui.widgets.field import Field, Form
from console.tui.widgets.keyed_table import KeyedTable
from console.views.view import Column, or_unknown

_SOURCES = {
    "": ("left to the driver", "~/.pgpass, a service file, or none"),
    "prompt": ("typed", "typed in here, hidden, each time the console opens"),
    "env": ("environment", "the environment variable that holds it"),
    "keyring": ("keyring", "SERVICE/USER in the system's keyring (needs dbq-console[keyring])"),
    "command": (
        "command",
        "a program that prints it as its first line, such as: pass show db1/orders",
    ),
}
"""Where a password comes from: its name in the form and the help beside it."""
_RIGHTS_HELP = {
    "read-only": "only read; the console itself refuses everything else",
    "operator": "act on messages: requeue, release, purge, archive, restore, maintain",
    "admin": "also install, adopt, resize, upgrade, uninstall",
}


class ConnectionFormDialog(Dialog[str]):
    """Returns the name of the profile that was written."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss('')", "cancel; nothing is written", show=False),
        Binding("enter", "write", "write it to the file", show=False),
    ]

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def compose(self) -> ComposeResult:
        """What every profile needs; the rest can be added to the file by hand."""
        with Form(id="connection-form") as panel:
            panel.add_class("dialog")
            panel.border_title = "A new connection"
            panel.border_subtitle = "Enter writes it · Escape: nothing is written"
            yield Field("name", help="its name for --profile")
            yield Field(
                "url",
                placeholder="postgresql+psycopg://user@host:5432/database",
                help="without a password; ${env:NAME} is allowed in any part",
            )
            sources = [(source, name) for source, (name, _) in _SOURCES.items()]
            yield Field("password", choices=sources, help=_SOURCES[""][1])
            yield Field("source", "", help="")
            rights = [(word, word) for word in BY_WORD]
            yield Field("rights", choices=rights, help=_RIGHTS_HELP["read-only"])
            production = [("no", "no"), ("yes", "yes: shown everywhere, stricter confirmations")]
            yield Field("production", choices=production)
            yield Paragraph(Text(f"Written to {plain(str(self._path))}"), id="form-note")

    def on_mount(self) -> None:
        self._form["source"].display = False
        self._form.focus_first()

    @property
    def _form(self) -> Form:
        return self.query_one(Form)

    @property
    def values(self) -> dict[str, object]:
        result: dict[str, object] = {"url": self._form["url"].value.strip()}
        source, text = self._form["password"].value, self._form["source"].value.strip()
        if source == "prompt":
            result["password"] = source
        elif source == "env":
            result["password"] = f"${{env:{text}}}"
        elif source:
            result["password"] = f"{source}:{text}"
        result["rights"] = self._form["rights"].value
        if self._form["production"].value == "yes":
            result["production"] = True
        return result

    def on_field_changed(self, event: Field.Changed) -> None:
        field, value = event.field, event.field.value
        if field.field_name == "password":
            field.set_help(_SOURCES[value][1])
            self._form["source"].display = value in {"env", "keyring", "command"}
        if field.field_name == "rights":
            field.set_help(_RIGHTS_HELP[value])
        self._check()

    def _check(self, *, all_fields: bool = False) -> bool:
        """Whether it can be written. `all_fields`: untouched ones show their errors too."""
        wrong: dict[str, str] = {}
        try:
            file_writer.check_name(self._form["name"].value.strip())
        except WrongFieldError as error:
            wrong["name"] = error.text
        for key, value in self.values.items():
            try:
                file_writer.check({key: value})
            except WrongFieldError as error:
                name = "source" if key == "password" and value != "prompt" else key
                wrong[name] = error.text
        for name in ("name", "url", "source"):
            field = self._form[name]
            detail = field.touched or all_fields
            field.show_error(wrong.get(name, "") if detail and field.display else "")
        return not wrong

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_write()

    def action_write(self) -> None:
        if not self._check(all_fields=True):
            self._form.focus_first_error()
            return
        name = self._form["name"].value.strip()
        try:
            file_writer.add_profile(self._path, name, self.values)
        except WrongFieldError as error:
            self._form["name" if error.key == "name" else "url"].show_error(error.text)
        except UsageError as error:
            note = self.query_one("#form-note", Paragraph)
            note.set_text(Text(describe_error(error), style_of(note, "critical")))
        else:
            self.dismiss(name)


_WELCOME = """\
No connection is configured.

Open one database:

    dbq-console --url postgresql+psycopg://user@host:5432/database

or set that URL in the environment:

    export DBQ_URL=postgresql+psycopg://user@host:5432/database

Try it first, on a server and queues of its own:

    dbq-console demo"""
_DROP_ORDER = ("origin", "login", "version", "latency")


@dataclass(frozen=True)
class Line:
    """A connection in the table."""

    view: ConnectionView
    conn: OpenConnection | None

    @property
    def capabilities(self) -> Capabilities | None:
        return None if self.conn is None else self.conn.database.known_capabilities

    @property
    def origin(self) -> str:
        return "" if self.conn is None else plain(self.conn.origin)


def _name(line: Line) -> str:
    return (MARK if line.view.color else "") + line.view.name


def _latency(line: Line) -> str:
    return or_unknown(line.view.latency_seconds, formats.duration)


def _state(line: Line) -> str:
    credentials = None if line.conn is None else line.conn.credentials
    needs_typing = credentials is not None and credentials.needs_typing
    return "log in (L)" if needs_typing else line.view.link.value


def _mark(line: Line) -> str:
    level = line.view.level
    return "●" if level is Severity.OK else level.mark


def _style(line: Line) -> str:
    return SEVERITY_STYLES.get(line.view.level, "")


def _version(line: Line) -> str:
    return or_unknown(line.capabilities, lambda server: plain(_server(line.conn, server)))


def _login(line: Line) -> str:
    return or_unknown(line.capabilities, lambda server: plain(server.database_user))


_COLUMNS: tuple[Column[Line], ...] = (
    Column("mark", "", _mark, lambda one: _style(one) or "good", max_width=1),
    Column(
        "name",
        "connection",
        _name,
        "strong",
        12,
        40,
        first_char_style=lambda one: mark_style(one.view.color),
    ),
    Column("state", "state", _state, _style, 9, 16),
    Column("latency", "latency", _latency, "quiet", 7, 8, align_right=True),
    Column("rights", "rights", lambda one: one.view.rights, "", 9, 44),
    Column("production", "", lambda one: one.view.production * "PRODUCTION", "critical", 10, 10),
    Column("version", "server", _version, "quiet", 10, 24),
    Column("login", "login", _login, "", 6, 24),
    Column("origin", "configured in", lambda one: one.origin, "quiet", 10, 60),
)


class ConnectionsScreen(LiveScreen):
    """Without any connection it shows an example, and where they are kept."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "add", "new", tooltip="add a connection to the file and open it"),
        Binding("t,enter", "test", "test", tooltip="connect, and see the login's rights"),
        Binding("L", "log_in", "type in its password", show=False),
    ]

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._test_results: dict[str, ConnectionTest | ConsoleError | None] = {}
        """What a test found; None: it is under way."""
        self._error = ""
        self.table = KeyedTable(_COLUMNS, _DROP_ORDER, id="connection-table")

    def body(self) -> ComposeResult:
        yield ScreenHead(id="connections-head", classes="head")
        yield self.table
        yield Paragraph(id="connection-detail")
        yield Paragraph(id="welcome")

    def on_mount(self) -> None:
        self.query_one("#welcome").border_title = "dbq-console"
        if self.context.feeds:
            self.set_focus(self.table)

    def draw_body(self, now: float, *, paused: bool) -> None:  # noqa: ARG002  # the base's
        has_feeds = bool(self.context.feeds)
        for name in (
            "#connections",
            "#connections-head",
            "#connection-table",
            "#connection-detail",
        ):
            self.query_one(name).display = has_feeds
        welcome = self.query_one("#welcome", Paragraph)
        welcome.display = not has_feeds
        if not has_feeds:
            self._draw_welcome(welcome)
            return
        head = self.query_one("#connections-head", ScreenHead)
        line = Text("Connections", style_of(head, "strong"))
        if self.context.config_path is not None:
            line.append(
                f"   kept in {plain(str(self.context.config_path))}", style_of(head, "quiet")
            )
        head.draw(line, self._error)
        names, connections = [feed.name for feed in self.context.feeds], self.context.connections
        views = dict(zip(names, self.context.store.connections(now), strict=True))
        self.table.show({name: Line(view, connections.get(name)) for name, view in views.items()})
        self._draw_test_result()

    def _draw_welcome(self, welcome: Paragraph) -> None:
        text = Text(_WELCOME)
        if self.context.config_path is not None:
            path = plain(str(self.context.config_path))
            text.append(f"\n\nConnections are kept in:\n\n    {path}\n\n")
            text.append("n writes a new one there.")
        if self._error:
            text.append(f"\n\n✖ {self._error}", style_of(welcome, "critical"))
        welcome.set_text(text)

    def _draw_test_result(self) -> None:
        detail = self.query_one("#connection-detail", Paragraph)
        detail.styles.max_height = max(3, self.app.size.height - 12)
        text = Text()
        if (line := self.table.row) is not None:
            conn, view = line.conn, line.view
            if view.color:
                text.append(MARK, style_of(detail, mark_style(view.color)))
            text.append(view.name, style_of(detail, "strong"))
            if conn is not None:
                where = conn.url or " ".join(conn.cli_options[1:])
                text.append(f"  {plain(where)}", style_of(detail, "quiet"))
            if view.why:
                words = f"\n{view.link.value}: {view.why}"
                if view.retry_in_seconds is not None:
                    words += f"; again in {whole_seconds(view.retry_in_seconds)}"
                text.append(words, style_of(detail, "critical"))
            if conn is not None:
                self._append_facts(text, detail, conn, view)
        detail.set_text(text)

    def _append_facts(
        self, text: Text, detail: Paragraph, conn: OpenConnection, view: ConnectionView
    ) -> None:
        if conn.origin:
            text.append(f"\nconfigured: {plain(conn.origin)}")
        if conn.credentials is not None and conn.credentials.kind:
            text.append(f"\npassword: {conn.credentials.kind}")
        if not isinstance(self._test_results.get(conn.name), ConnectionTest):
            text.append(f"\nrights: {view.rights or conn.rights.word}")
        if self.context.recordings is not None:
            text.append(f"\n{self.context.recordings.status(conn.name)}")
        if conn.name not in self._test_results:
            text.append(
                "\nt tests it: connects, and reads the login's rights", style_of(detail, "quiet")
            )
            return
        result = self._test_results[conn.name]
        if result is None:
            text.append("\ntesting ...", style_of(detail, "quiet"))
        elif isinstance(result, ConsoleError):
            text.append(f"\n✖ {describe_error(result)}", style_of(detail, "critical"))
        else:
            _append_test_result(text, detail, conn, result)

    def on_keyed_table_cursor_moved(self) -> None:
        self.draw()

    @property
    def _chosen(self) -> OpenConnection | None:
        return self.context.connections.get(self.table.cursor_key or "")

    def check_action(self, action: str, _parameters: object) -> bool | None:
        if action in {"test", "pause", "interval"}:
            return bool(self.context.feeds)
        return self.context.config_path is not None if action == "add" else True

    def action_test(self) -> None:
        conn = self._chosen
        if conn is None or self._test_results.get(conn.name, self) is None:
            return
        self._test_results[conn.name] = None
        self.draw()

        def show(result: ConnectionTest | ConsoleError) -> None:
            self.show_test_result(conn.name, result)

        jobs.start_job(self, conn.test, show, show)

    def show_test_result(self, name: str, result: ConnectionTest | ConsoleError) -> None:
        self._test_results[name] = result
        self.draw()

    def action_log_in(self) -> None:
        conn = self._chosen
        if conn is None:
            return
        if conn.credentials is None or not conn.credentials.is_typed:
            self.notify("Its password is not typed in: no login is needed.")
            return
        self.navigator.log_in(conn.name)

    def action_add(self) -> None:
        path = self.context.config_path
        if path is not None:
            self.app.push_screen(ConnectionFormDialog(path), self._written)

    def _written(self, name: str | None) -> None:
        path = self.context.config_path
        if not name or path is None:
            return
        taken = list(self.context.connections)
        jobs.start_job(self, lambda: _open(path, name, taken), self._opened, self._failed)

    def _opened(self, opening: PendingConnection) -> None:
        self._error = ""
        self.navigator.add_connection(opening)
        self.notify(plain(f"Opening {opening.conn.name}."), markup=False)
        if self.is_attached:
            self.draw()

    def _failed(self, error: ConsoleError) -> None:
        self._error = describe_error(error)
        self.draw()


def _open(path: Path, name: str, taken: list[str]) -> PendingConnection:
    """The profile of that name, from the file."""
    result = config.load({**os.environ, "DBQ_CONFIG": str(path)})
    return open_profile(result.profile(name), taken)


def _server(conn: OpenConnection | None, known: Capabilities) -> str:
    title = conn.database.product.title if conn is not None else ""
    return f"{title} {known.server_version}"


def _append_test_result(
    text: Text, detail: Paragraph, conn: OpenConnection, result: ConnectionTest
) -> None:
    known = result.capabilities
    text.append("\n● it answers", style_of(detail, "good"))
    text.append(f" in {formats.duration(result.seconds)}: {plain(_server(conn, known))}, ")
    text.append(f"database {plain(known.database)}, login {plain(known.database_user)}")
    transactions = bool(conn.database.product.read_only_options)
    rights = ConnectionRights(conn.rights, result.login, transactions=transactions)
    text.append(f"\n  rights: {rights.words}")
    if result.login is not None:
        can = ", ".join(result.login.can) or "only read"
        text.append(f"\n  its login could: {can}")
    if protection := known.facts.get(TRANSPORT):
        text.append(f"\n  encryption: {plain(protection)}")
    if known.read_only:
        text.append("\n  the server accepts no writes", style_of(detail, "warning"))
    for what, why in known.missing.items():
        text.append(f"\n  {plain(what)}: {plain(why)}", style_of(detail, "warning"))
