"""The handover of the last hours, of all queues of all connections or of one, as Markdown."""

from collections.abc import Callable
from functools import partial
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Markdown

from console.engines import Database
from console.errors import ConsoleError
from console.features.why.handover import Handover, handover, markdown, together
from console.tui.context import Context
from console.tui.dialogs.dialog import show_equivalent_command
from console.tui.jobs import LatestQuery
from console.tui.open_connection import OpenConnection
from console.tui.screens.live import OUT, LiveScreen
from console.tui.text import TextView, error_text, plain, style_of

_SPANS = (("8h", 8 * 3600.0), ("12h", 12 * 3600.0), ("24h", 24 * 3600.0))


class HandoverScreen(LiveScreen):
    """Read once, and again when asked: it is to be read in peace."""

    BINDINGS: ClassVar[list[BindingType]] = [
        OUT,
        Binding("z", "span", "span", tooltip="the last 8, 12 or 24 hours"),
        Binding("y", "copy", "copy", tooltip="copy it as Markdown, for a channel"),
        Binding("o", "equivalent", "the equivalent command line", show=False),
        Binding("down,j", "scroll(1)", "down", show=False),
        Binding("up,k", "scroll(-1)", "up", show=False),
    ]

    def __init__(self, context: Context, connection: str = "") -> None:
        super().__init__(context)
        self.connection = connection
        self.text = ""
        self._span = 0
        self._fetch: LatestQuery[list[Handover]] = LatestQuery(self, self.show, self._failed)

    def body(self) -> ComposeResult:
        yield TextView(classes="pane-head", id="handover-head")
        with VerticalScroll(id="handover"):
            yield Markdown(open_links=False)

    def on_mount(self) -> None:
        self.reload()

    def action_refresh_now(self) -> None:
        super().action_refresh_now()
        self.reload()

    def reload(self) -> None:
        root, now = self.context.recordings_root, self.context.clock.utc()
        known = self.context.connections
        names = [self.connection] if self.connection else [feed.name for feed in self.context.feeds]
        seconds = _SPANS[self._span][1]

        jobs = [
            partial(handover, root, name, _database(known.get(name)), seconds, now)
            for name in names
        ]
        self._head("reading recordings and audits ...")
        self._fetch.submit(lambda: together(jobs))

    def show(self, found: list[Handover]) -> None:
        self.text = markdown(found, self.context.zone)
        self._head("z span   y copy   r read again")
        self.query_one(Markdown).update(self.text)

    def _failed(self, error: ConsoleError) -> None:
        head = self.query_one("#handover-head", TextView)
        head.set_text(error_text(head, error))

    def _head(self, words: str) -> None:
        head = self.query_one("#handover-head", TextView)
        of = f" of {plain(self.connection)}" if self.connection else ""
        line = Text(f"Handover{of}, the last {_SPANS[self._span][0]}", style_of(head, "strong"))
        line.append(f"   {words}", style_of(head, "quiet"))
        head.set_text(line)

    def action_span(self) -> None:
        self._span = (self._span + 1) % len(_SPANS)
        self.reload()

    def action_copy(self) -> None:
        self.app.copy_to_clipboard(self.text)
        self.notify("copied", markup=False)

    def action_equivalent(self) -> None:
        conn = self.context.connections.get(self.connection)
        show_equivalent_command(self, conn, "report", None, ["--since", _SPANS[self._span][0]])

    def action_scroll(self, lines: int) -> None:
        panel = self.query_one("#handover", VerticalScroll)
        panel.scroll_relative(y=lines, animate=False, immediate=True)


def _database(conn: OpenConnection | None) -> Callable[[], Database] | None:
    return None if conn is None else partial(getattr, conn, "database")
