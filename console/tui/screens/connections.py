"""The connections: how each is, what it may do, where it is configured; and how to get one."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from console import config, formats
from console.engines import Capabilities
from console.errors import ConsoleError
from console.monitor.login import probe
from console.rights import Login, Standing
from console.tui import jobs
from console.tui.board import ConnectionView
from console.tui.desk import Desk
from console.tui.dialogs.connection_form import ConnectionFormDialog
from console.tui.opening import Opening, open_profile
from console.tui.places import Place
from console.tui.screens.live import LiveScreen
from console.tui.text import plain, said, whole_seconds
from console.tui.widgets.fitting import Wish
from console.tui.widgets.keyed_table import Cell
from console.tui.widgets.list_table import ListTable
from console.tui.widgets.paragraph import Paragraph
from console.tui.widgets.queue_columns import marked
from console.tui.widgets.screen_head import ScreenHead
from console.tui.widgets.tones import MARK, tone

_WORDS = """\
No connection is configured.

Open one database:

    dbq-console --url postgresql+psycopg://user@host:5432/database

or put that URL into the environment:

    export DBQ_URL=postgresql+psycopg://user@host:5432/database

Try it first, on a server and queues of its own:

    dbq-console demo"""
_WISHES = (
    Wish("mark", "", most=1),
    Wish("name", "connection", least=12, most=40),
    Wish("state", "state", least=9, most=16),
    Wish("latency", "latency", least=7, most=8, right=True),
    Wish("rights", "rights", least=9, most=44),
    Wish("production", "", least=10, most=10),
    Wish("version", "server", least=10, most=24),
    Wish("login", "login", least=6, most=24),
    Wish("origin", "configured in", least=10, most=60),
)
_LOST_FIRST = ("origin", "login", "version", "latency")
_MARKS = {0: "●", 1: "!", 2: "✖"}
_TONES = {0: "good", 1: "warning", 2: "critical"}


@dataclass(frozen=True)
class Tested:
    """What a test of a connection found."""

    capabilities: Capabilities
    login: Login | None
    seconds: float
    """To connect and ask."""


def test(place: Place) -> Tested:
    """Connect, and ask what the login can do. Waits; ConsoleError."""
    database = place.database
    database.probe_again()
    began = time.monotonic()
    capabilities = database.capabilities
    return Tested(capabilities, probe(database, []), time.monotonic() - began)


class ConnectionsScreen(LiveScreen):
    """Without any it shows an example and where they are kept."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "add", "new", tooltip="write a new connection to the file and open it"),
        Binding("t,enter", "test", "test", tooltip="connect, and see what the login can do"),
        Binding("L", "log_in", "log in", show=False, tooltip="type its password"),
    ]

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._told: dict[str, Tested | ConsoleError | None] = {}
        """What a test found; None: it is under way."""
        self._error = ""

    def body(self) -> ComposeResult:
        """The connections, and the one under the cursor; or one panel."""
        yield ScreenHead(id="connections-head", classes="head")
        yield ListTable(_WISHES, _LOST_FIRST, id="connection-table")
        yield Paragraph(id="connection-told")
        yield Paragraph(id="welcome")

    def on_mount(self) -> None:
        """The table has the keys."""
        self.query_one("#welcome").border_title = "dbq-console"
        super().on_mount()
        if self.desk.feeds:
            self.set_focus(self.query_one("#connection-table"))

    def draw_body(self, now: float, *, paused: bool) -> None:  # noqa: ARG002  # the base's
        """What there is."""
        some = bool(self.desk.feeds)
        for name in ("#connections", "#connections-head", "#connection-table", "#connection-told"):
            self.query_one(name).display = some
        welcome = self.query_one("#welcome", Paragraph)
        welcome.display = not some
        if not some:
            self._draw_welcome(welcome)
            return
        head = self.query_one("#connections-head", ScreenHead)
        line = Text("Connections", tone(head, "strong"))
        if self.desk.config_path is not None:
            line.append(f"   kept in {plain(str(self.desk.config_path))}", tone(head, "quiet"))
        head.draw(line, self._error)
        names = [feed.name for feed in self.desk.feeds]
        views = dict(zip(names, self.desk.board.connections(now), strict=True))
        self.query_one("#connection-table", ListTable).show_rows(
            {name: self._row(name, view) for name, view in views.items()}
        )
        self._draw_told(views)

    def _draw_welcome(self, welcome: Paragraph) -> None:
        text = Text(_WORDS)
        if self.desk.config_path is not None:
            path = plain(str(self.desk.config_path))
            text.append(f"\n\nConnections are kept in:\n\n    {path}\n\n")
            text.append("n writes a new one there.")
        if self._error:
            text.append(f"\n\n✖ {self._error}", tone(welcome, "critical"))
        welcome.say(text)

    def _row(self, name: str, view: ConnectionView) -> dict[str, Cell]:
        place = self.desk.places.get(name)
        known = place.database.known_capabilities if place is not None else None
        level = int(view.level)
        state = view.link.value
        if place is not None and place.credentials is not None and place.credentials.wants_typing:
            state = "log in (L)"
        latency = view.latency_seconds
        return {
            "mark": Cell(_MARKS[level], _TONES[level]),
            "name": marked(Cell(view.name, "strong"), view.color),
            "state": Cell(state, "" if level == 0 else _TONES[level]),
            "latency": Cell(
                formats.UNKNOWN if latency is None else formats.duration(latency), "quiet"
            ),
            "rights": Cell(view.rights),
            "production": Cell("PRODUCTION" if view.production else "", "critical"),
            "version": Cell(
                formats.UNKNOWN if known is None else plain(_server(place, known)), "quiet"
            ),
            "login": Cell(formats.UNKNOWN if known is None else plain(known.database_user)),
            "origin": Cell("" if place is None else plain(place.origin), "quiet"),
        }

    def _draw_told(self, views: dict[str, ConnectionView]) -> None:
        told = self.query_one("#connection-told", Paragraph)
        told.styles.max_height = max(3, self.app.size.height - 12)
        name = self.query_one("#connection-table", ListTable).cursor_key or ""
        place, view = self.desk.places.get(name), views.get(name)
        text = Text()
        if view is not None:
            if view.color:
                text.append(MARK, tone(told, f"mark-{view.color}"))
            text.append(view.name, tone(told, "strong"))
            if place is not None:
                where = place.url or " ".join(place.words[1:])
                text.append(f"  {plain(where)}", tone(told, "quiet"))
            if view.why:
                words = f"\n{view.link.value}: {view.why}"
                if view.retry_in_seconds is not None:
                    words += f"; again in {whole_seconds(view.retry_in_seconds)}"
                text.append(words, tone(told, "critical"))
            if place is not None:
                self._append_facts(text, told, place, view)
        told.say(text)

    def _append_facts(
        self, text: Text, told: Paragraph, place: Place, view: ConnectionView
    ) -> None:
        if place.origin:
            text.append(f"\nconfigured: {plain(place.origin)}")
        if place.credentials is not None and place.credentials.kind:
            text.append(f"\npassword: {place.credentials.kind}")
        if not isinstance(self._told.get(place.name), Tested):
            text.append(f"\nrights: {view.rights or place.rights.word}")
        if self.desk.recordings is not None:
            text.append(f"\n{self.desk.recordings.words(place.name)}")
        if place.name not in self._told:
            text.append(
                "\nt tests it: connects, and asks what the login can do", tone(told, "quiet")
            )
            return
        found = self._told[place.name]
        if found is None:
            text.append("\ntesting ...", tone(told, "quiet"))
        elif isinstance(found, ConsoleError):
            text.append(f"\n✖ {said(found)}", tone(told, "critical"))
        else:
            _append_tested(text, told, place, found)

    def on_keyed_table_cursor_moved(self) -> None:
        """Another connection."""
        self.draw()

    # Keys.

    @property
    def _chosen(self) -> Place | None:
        key = self.query_one("#connection-table", ListTable).cursor_key
        return self.desk.places.get(key or "")

    def check_action(
        self,
        action: str,
        parameters: tuple[object, ...],  # noqa: ARG002  # Textual's signature
    ) -> bool | None:
        """What needs a connection is not offered without one."""
        if action in {"test", "pause", "interval"}:
            return bool(self.desk.feeds)
        return self.desk.config_path is not None if action == "add" else True

    def action_test(self) -> None:
        """Connect and ask, in a thread."""
        place = self._chosen
        if place is None or self._told.get(place.name, self) is None:
            return
        self._told[place.name] = None
        self.draw()

        def tell(found: Tested | ConsoleError) -> None:
            self.show_tested(place.name, found)

        jobs.start(self, lambda: test(place), tell, tell)

    def show_tested(self, name: str, found: Tested | ConsoleError) -> None:
        """What a test found."""
        self._told[name] = found
        self.draw()

    def action_log_in(self) -> None:
        """Type its password, again if need be."""
        place = self._chosen
        if place is None:
            return
        if place.credentials is None or not place.credentials.is_typed:
            self.notify("Its password is not typed: nothing is to be logged in.")
            return
        self.ways.log_in(place.name)

    def action_add(self) -> None:
        """The form of a new one."""
        path = self.desk.config_path
        if path is not None:
            self.app.push_screen(ConnectionFormDialog(path), self._written)

    def _written(self, name: str | None) -> None:
        path = self.desk.config_path
        if not name or path is None:
            return
        taken = list(self.desk.places)
        jobs.start(self, lambda: _open(path, name, taken), self._opened, self._failed)

    def _opened(self, opening: Opening) -> None:
        self._error = ""
        self.ways.add_connection(opening)
        self.notify(plain(f"{opening.place.name} is opened."), markup=False)
        if self.is_attached:
            self.draw()

    def _failed(self, error: ConsoleError) -> None:
        self._error = said(error)
        self.draw()


def _open(path: Path, name: str, taken: list[str]) -> Opening:
    """The profile of that name as the file has it now."""
    found = config.load({**os.environ, "DBQ_CONFIG": str(path)})
    profile = next(one for one in found.profiles() if one.name == name)
    return open_profile(profile, taken)


def _server(place: Place | None, known: Capabilities) -> str:
    title = place.database.product.title if place is not None else ""
    return f"{title} {known.server_version}"


def _append_tested(text: Text, told: Paragraph, place: Place, found: Tested) -> None:
    known = found.capabilities
    text.append("\n● it answers", tone(told, "good"))
    text.append(f" in {formats.duration(found.seconds)}: {plain(_server(place, known))}, ")
    text.append(f"database {plain(known.database)}, login {plain(known.database_user)}")
    transactions = bool(place.database.product.read_only_options)
    standing = Standing(place.rights, found.login, transactions=transactions)
    text.append(f"\n  rights: {standing.words}")
    if found.login is not None:
        can = ", ".join(found.login.can) or "only look"
        text.append(f"\n  its login could: {can}")
    if known.read_only:
        text.append("\n  the server takes no writes", tone(told, "warning"))
    for what, why in known.missing.items():
        text.append(f"\n  {plain(what)}: {plain(why)}", tone(told, "warning"))
