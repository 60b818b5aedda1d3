"""One message: its data, its error, and its payload once the operator asks for it."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Input

from console.actions.export import Revealed, reveal
from console.catalog import Queue
from console.errors import ConsoleError, RefusedError
from console.formats import UNKNOWN, count
from console.monitor import errors
from console.monitor.message import Masks, Message
from console.monitor.messages import follow
from console.monitor.owners import Evidence, evidence
from console.tui.context import Context
from console.tui.dialogs.dialog import RevealDialog, show_equivalent_command
from console.tui.findings import QueueKey
from console.tui.jobs import start_job
from console.tui.open_connection import OpenConnection
from console.tui.payloads import PayloadForm, save, suggested_path
from console.tui.screens.live import LiveScreen
from console.tui.tabs.tab import PacedQuery
from console.tui.text import TextView, error_text, open_input, plain, show_lines, style_of
from console.tui.widgets.messages import MessageHead, PayloadView

FIRST_BYTES = 64 * 1024
"""How much of a payload is read at first; each time more is read, it is eight times as much."""
MOST_BYTES = 32 * 1024 * 1024
"""The most that is shown."""
_MOST_TO_SAVE = 256 * 1024 * 1024
_MOST_TO_COPY = 64 * 1024
"""Terminals accept no more."""
_NOW: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "error": ("requeue", {}),
    "claimed": ("release", {}),
    "scheduled": ("reschedule", {"in": "0s"}),
}
"""State -> the verb after which such a message can be popped, and its parameters."""
_EXTENSIONS = {PayloadForm.JSON: "json", PayloadForm.TEXT: "txt", PayloadForm.HEX: "bin"}


@dataclass(frozen=True)
class ReadMessage:
    message: Message | None
    """None: it no longer exists."""
    owner: Evidence | None = None
    """None: it is not claimed."""
    payload_bytes: int | None = None
    """How much of the payload was requested, if any."""
    revealed: bool = False
    only_locally: bool = False


class MessageScreen(LiveScreen):
    """Follows its message from state to state."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,p", "load", "payload", key_display="⏎", tooltip="read the payload"),
        Binding("m", "more", "more", tooltip="read more of the payload"),
        Binding("R", "reveal", "reveal", tooltip="show masked values; the audit records that"),
        Binding("a", "act", "actions", tooltip="what can be done with this message"),
        Binding("n", "now", "run now", tooltip="plan to have it popped again, or at once"),
        Binding("y", "copy", "copy", tooltip="copy the payload, or the id until it is loaded"),
        Binding("i", "copy_id", "copy the id", show=False),
        Binding("w,Y", "save", "write the whole payload to a file", show=False),
        Binding("o", "equivalent", "the equivalent command line", show=False),
    ]

    def __init__(self, context: Context, key: QueueKey, message_key: str) -> None:
        """`message_key`: as in a page of messages."""
        super().__init__(context)
        self.key = key
        self.message_key = message_key
        self.message: Message | None = None
        """As last read."""
        self.gone = False
        self.revealed = False
        self.payload_bytes = 0
        self._owner: Evidence | None = None
        self._read_at = 0.0
        self._wants_payload = False
        self._note = ""
        self._error: ConsoleError | None = None
        self._fetch: PacedQuery[ReadMessage] = PacedQuery(
            self, self.show_result, self.show_error, context.clock.monotonic, 2.0
        )

    def body(self) -> ComposeResult:
        yield MessageHead()
        with VerticalScroll(id="message-error"):
            yield TextView(id="message-error-text")
        yield PayloadView(id="payload")
        yield TextView(id="message-foot")
        yield Input(id="message-file", classes="pane-filter")

    def on_mount(self) -> None:
        self.query_one("#message-file").display = False
        self.query_one("#message-error").display = False
        self.set_focus(self.view)
        self._load()

    @property
    def view(self) -> PayloadView:
        return self.query_one(PayloadView)

    @property
    def conn(self) -> OpenConnection | None:
        return self.context.conn(self.key)

    @property
    def masks(self) -> Masks:
        return () if self.revealed or self.conn is None else self.conn.masks

    def _load(self, payload_bytes: int | None = None, *, wait: bool = True) -> None:
        conn = self.conn
        if conn is None:
            return
        key, masks = self.message_key, self.masks

        def work() -> ReadMessage:
            queue = conn.find(*self.key[1:])
            message = follow(conn.database, queue, key, payload_bytes=payload_bytes, masks=masks)
            return ReadMessage(message, _owner(conn, queue, message), payload_bytes)

        self._fetch.submit(work, wait=wait)
        self._draw_foot()

    def show_result(self, result: ReadMessage) -> None:
        self._error = None
        message = result.message
        self.gone = message is None
        if result.revealed:
            self.revealed = True
            local = "Only this machine's audit has it: the database's could not be written."
            self._note = f"Revealed. {local if result.only_locally else 'The audit has it.'}"
        if message is not None:
            if message.payload_bytes is None and self.message is not None:
                # For JSON it is known only when the payload is read.
                message = replace(message, payload_bytes=self.message.payload_bytes)
            self.message, self._owner = message, result.owner
            self._read_at = self.context.clock.monotonic()
            self.message_key = message.key or self.message_key
            if result.payload_bytes is not None:
                self.payload_bytes = result.payload_bytes
                self._show_payload(message)
        self.draw()
        self.refresh_bindings()

    def _show_payload(self, message: Message) -> None:
        if message.payload is None:
            self._note = "Its payload is not known."
            return
        self.view.show_payload(message.payload, cut=message.payload_cut)

    def show_error(self, error: ConsoleError) -> None:
        self._error = error
        self._draw_foot()

    def draw_body(self, now: float, *, paused: bool) -> None:  # noqa: ARG002  # the base's
        if not paused and self._fetch.due:
            self._load(wait=False)
        self._draw_head()
        self._draw_error()
        self._draw_foot()

    def _draw_head(self) -> None:
        head = self.query_one(MessageHead)
        state = "gone" if self.gone else "masks off" if self.revealed else ""
        message = self.message
        if message is not None and message.age_seconds is not None and not self.gone:
            # It goes on between two readings, and where they fail; what is frozen or gone stays.
            until = self.context.clock.monotonic() if self.paused_at is None else self.paused_at
            passed = max(0.0, until - self._read_at)
            message = replace(message, age_seconds=message.age_seconds + passed)
        head.draw(self.context, self.key, self.message_key, message, self._owner, state)

    def _draw_error(self) -> None:
        panel = self.query_one("#message-error")
        text = self.query_one("#message-error-text", TextView)
        error = self.message.error if self.message else None
        history = (self.message.history if self.message else None) or ()
        panel.display = error is not None or bool(history)
        shown = Text()
        if error is not None:
            cut = "\n(cut off here)" if self.message and self.message.error_cut else ""
            lines = "\n".join(map(plain, error.splitlines())) + cut
            shown.append(f"error  {lines}\n", style_of(text, "warning"))
        for past in history:
            shown.append(
                f"{plain(errors.past_attempt(past, self.context.zone))}\n", style_of(text, "quiet")
            )
        shown.rstrip()
        text.set_text(shown)

    def _draw_foot(self) -> None:
        if not self.query("#message-foot"):
            return
        foot = self.query_one("#message-foot", TextView)
        lines = [self._payload_line(foot)]
        if self._error is not None:
            lines.append(error_text(foot, self._error))
        show_lines(foot, lines)

    def _payload_line(self, foot: TextView) -> Text:
        line = Text(no_wrap=True)
        view = self.view
        if view.payload is None:
            reading = self._fetch.busy and self._wants_payload
            words = "Reading the payload ..." if reading else "Enter reads the payload."
            line.append("All of it is shown." if self.gone else words)
        else:
            shown = view.layout_result
            line.append(shown.form.value if shown else "laying out ...", style_of(foot, "strong"))
            if view.laying_out and shown:
                line.append("  laying out ...", style_of(foot, "quiet"))
            if shown and shown.problem:
                line.append(f"  {plain(shown.problem)}", style_of(foot, "warning"))
            if view.cut:
                total = self.message.payload_bytes if self.message else None
                of = "" if total is None else f" of {count(total)}"
                line.append(f"  the first {count(self.payload_bytes)} bytes{of}")
                more = "; m reads more" if self.payload_bytes < MOST_BYTES else "; w writes it all"
                line.append(more, style_of(foot, "strong"))
        if self.conn is not None and self.conn.masks and not self.revealed:
            line.append("  masks on, R reveals", style_of(foot, "quiet"))
        if self._note:
            line.append(f"  {plain(self._note)}", style_of(foot, "strong"))
        return line

    def on_payload_view_laid_out(self) -> None:
        self._draw_foot()
        self.refresh_bindings()

    def check_action(self, action: str, _parameters: object) -> bool | None:
        if not self.is_mounted or not self.query("#message-file"):
            return True
        if action == "more":
            return self.view.payload is not None and self.view.cut
        if action == "now":
            message = None if self.gone else self.message
            return message is not None and message.id is not None and message.state in _NOW
        if action == "load":
            return self.view.payload is None
        if action == "reveal":
            return self.conn is not None and bool(self.conn.masks) and not self.revealed
        return True

    def action_load(self) -> None:
        self._wants_payload = True
        self._load(FIRST_BYTES)

    def action_more(self) -> None:
        if self.payload_bytes < MOST_BYTES:
            self._load(min(8 * self.payload_bytes, MOST_BYTES))

    def action_refresh_now(self) -> None:
        super().action_refresh_now()
        self._load(self.payload_bytes or None)

    def action_reveal(self) -> None:
        name = (self.message.id if self.message else None) or self.message_key
        self.app.push_screen(RevealDialog(f"{self.key[1]}.{self.key[2]}", name), self._confirmed)

    def _confirmed(self, answer: bool | None) -> None:  # noqa: FBT001  # Textual's callback
        conn = self.conn
        if not answer or conn is None:
            return
        key, size = self.message_key, self.payload_bytes or FIRST_BYTES

        def work() -> ReadMessage:
            queue = conn.find(*self.key[1:])
            revealed: Revealed = reveal(
                conn.database, queue, key, rights=conn.rights, payload_bytes=size
            )
            owner = _owner(conn, queue, revealed.message)
            return ReadMessage(
                revealed.message, owner, size, revealed=True, only_locally=revealed.only_locally
            )

        start_job(self, work, self.show_result, self.show_error)

    def action_act(self) -> None:
        if self.message is None or self.message.id is None:
            self._notify_plain("Its id is not known.")
            return
        self.navigator.open_actions(self.key, [f"id={self.message.id}"], self.message.state)

    def action_now(self) -> None:
        if self.message is not None:
            verb, fields = _NOW[self.message.state]
            self.navigator.open_action(self.key, verb, [f"id={self.message.id}"], **fields)

    def action_copy(self) -> None:
        """The payload as it is shown, masks included; the id until it is loaded."""
        payload = self.view.payload
        if payload is None:
            self.action_copy_id()
            return
        encoding = " in base64" if isinstance(payload, bytes) else ""
        text = base64.b64encode(payload).decode() if isinstance(payload, bytes) else payload
        if len(text.encode(errors="replace")) > _MOST_TO_COPY:
            self._notify_plain("Too long for a terminal's clipboard: w writes it to a file.")
            return
        self.app.copy_to_clipboard(text)
        part = "the beginning of the payload" if self.view.cut else "the payload"
        self._notify_plain(f"copied {part}{encoding}")

    def action_copy_id(self) -> None:
        if self.message is not None and self.message.id is not None:
            self.app.copy_to_clipboard(self.message.id)
            self._notify_plain(f"copied {plain(self.message.id)}")

    def action_equivalent(self) -> None:
        name = (self.message.id if self.message else None) or UNKNOWN
        words = ["--filter", f"id={name}", "--payload", *(["--reveal"] if self.revealed else [])]
        show_equivalent_command(self, self.conn, "messages", self.key, words)

    def action_save(self) -> None:
        name = (self.message.id if self.message else None) or "message"
        extension = _EXTENSIONS[
            self.view.layout_result.form if self.view.layout_result else PayloadForm.TEXT
        ]
        path = suggested_path(self.key[2], name, extension)
        open_input(self.query_one("#message-file", Input), str(path))

    def action_out(self) -> None:
        if self.query_one("#message-file").display:
            self._close_line()
        else:
            super().action_out()

    def _close_line(self) -> None:
        self.query_one("#message-file").display = False
        self.set_focus(self.view)
        self.refresh_bindings()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Read the whole payload again and write it, masked as it is on the screen."""
        self._close_line()
        conn = self.conn
        if conn is None or not event.value.strip():
            return
        path, key, masks = Path(event.value.strip()), self.message_key, self.masks

        def work() -> str:
            queue = conn.find(*self.key[1:])
            message = follow(conn.database, queue, key, payload_bytes=_MOST_TO_SAVE, masks=masks)
            if message is None or message.payload is None:
                raise RefusedError("Nothing was written.", why="The message no longer exists.")
            size = save(path, message.payload)
            cut = ", its beginning" if message.payload_cut else ""
            return f"{count(size)} bytes{cut} are in {path}" + (", masked" if masks else "")

        self._note = "writing ..."
        self._draw_foot()
        start_job(self, work, self._saved, self._not_saved)

    def _saved(self, message: str) -> None:
        self._note = ""
        self._notify_plain(message)
        self._draw_foot()

    def _not_saved(self, error: ConsoleError) -> None:
        self._note = ""
        self.show_error(error)

    def _notify_plain(self, text: str) -> None:
        self.notify(text, markup=False)


def _owner(conn: OpenConnection, queue: Queue, message: Message | None) -> Evidence | None:
    if message is None or message.claimed_by is None:
        return None
    limit = conn.thresholds_of(queue.name).stuck_after_seconds
    return evidence(conn.database, queue, message.claimed_by, limit)
