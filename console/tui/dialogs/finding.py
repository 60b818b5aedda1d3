"""A finding in detail: its evidence, and its repair, which is planned on the screen of its verb.

The repair is that of the finding as it was opened.
"""

import shlex
from typing import ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll

from console.doctor.finding import Repair
from console.tui.context import Context
from console.tui.dialogs.dialog import Dialog
from console.tui.open_connection import OpenConnection, why_not_allowed
from console.tui.tabs.findings import FindingLines
from console.tui.text import TextView, plain, sentence, style_of
from console.tui.views import ConnectionView, Link, QueueView
from console.views.doctor import FindingView

_TABS = {
    "error_burst": "errors",
    "poison": "errors",
    "stuck": "stuck",
    "rows_held": "waits",
    "prepared_forgotten": "waits",
}
"""Code -> the queue's tab with more on it."""
_CHECK_SECONDS = 0.25


class FindingDialog(Dialog[None]):
    """Shows one finding, and is never changed by a refresh."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "out", "close", show=False, tooltip="close"),
        Binding("r", "repair", "repair", tooltip="show the plan of its repair"),
        Binding("o", "command", "command", tooltip="copy it as a command line"),
        Binding("enter", "queue", "queue", tooltip="open the queue at the tab that shows more"),
        Binding("a", "actions", "actions", tooltip="what can be done with the queue"),
        Binding("s", "silence('silence')", "silence", tooltip="for a time, without notifications"),
        Binding("c", "silence('ack')", "ack", tooltip="acknowledge it, until it ends or worsens"),
        Binding("x", "unsilence", "unsilence", tooltip="end its silence"),
        Binding("d", "examine", "doctor", tooltip="let the doctor examine the queue now"),
        Binding("down,j", "scroll(1)", "down", show=False),
        Binding("up,k", "scroll(-1)", "up", show=False),
        Binding("pagedown,ctrl+f", "scroll(10)", "page down", show=False),
        Binding("pageup,ctrl+b", "scroll(-10)", "page up", show=False),
    ]

    def __init__(self, context: Context, finding: FindingView) -> None:
        super().__init__()
        self.context = context
        self.finding = finding
        self._planned_at: float | None = None
        """When the plan of its repair was opened last."""

    @property
    def repair(self) -> Repair | None:
        return None if self.finding.finding is None else self.finding.finding.repair

    @property
    def conn(self) -> OpenConnection | None:
        return self.context.connections.get(self.finding.connection)

    def compose(self) -> ComposeResult:
        """The details, which scroll; below them what can be done."""
        with Vertical(id="finding") as panel:
            view = self.finding
            where = f"{view.connection_label} › " if view.connection_label else ""  # noqa: RUF001
            panel.border_title = Text(where + view.label)
            panel.border_subtitle = Text(view.code)
            with VerticalScroll(id="finding-scroll", can_focus=False):
                yield FindingLines(id="finding-lines")
                yield FindingLines(id="finding-evidence")
            yield TextView(id="finding-prompt")

    def on_mount(self) -> None:
        allowed = not self._refusal
        lines = self.query_one("#finding-lines", FindingLines)
        lines.draw(self.finding, self.context, evidence=False, allowed=allowed)
        evidence = self.query_one("#finding-evidence", FindingLines)
        evidence.draw(self.finding, self.context, details=False)
        self._draw_prompt()
        self.every(_CHECK_SECONDS, self._draw_prompt)

    # The repair.

    @property
    def connection(self) -> ConnectionView | None:
        now = self.context.clock.monotonic()
        name = plain(self.finding.connection)
        views = (view for view in self.context.store.connections(now) if view.name == name)
        return next(views, None)

    @property
    def _refusal(self) -> str:
        """Why the repair must not run now; empty if it may, or there is none."""
        repair, conn, view = self.repair, self.conn, self.connection
        if repair is None or conn is None:
            return ""
        if view is not None and view.link not in {Link.ALIVE, Link.OPENING}:
            return "The connection does not answer: nothing is done on old figures."
        if why := why_not_allowed(conn, repair.rights):
            return sentence(why)
        return "This connection is read-only." if conn.database.read_only else ""

    def action_repair(self) -> None:
        repair, key, of = self.repair, self.finding.queue_key, self.finding.finding
        if repair is None or key is None or of is None or self.conn is None or self._refusal:
            return
        self._planned_at = self.context.clock.monotonic()
        self.context.navigator.open_planned(key, repair.verb, of.repair_texts)

    # Drawing.

    def _draw_prompt(self) -> None:
        """A refused repair may be possible by now; and one that ran has removed the finding."""
        prompt = self.query_one("#finding-prompt", TextView)
        text, style = self._prompt_text()
        line = Text(text, style_of(prompt, style))
        line.append(f"\n{self._keys()}", style_of(prompt, "quiet"))
        if line.plain != prompt.plain_text:
            prompt.set_text(line)
            self.refresh_bindings()
            self._fit()

    def _fit(self) -> None:
        """The prompt stays visible, however long the details are."""
        frame, width = 5, max(1, self.app.size.width - 6)
        lines = self.query_one("#finding-prompt", TextView).plain_text.split("\n")
        below = sum(max(1, -(-cell_len(line) // width)) for line in lines)
        most = max(2, self.app.size.height - frame - below)
        self.query_one("#finding-scroll").styles.max_height = most

    def on_resize(self) -> None:
        self._fit()

    def _prompt_text(self) -> tuple[str, str]:
        """The line at the bottom, and its style."""
        if self.repair is None or self.conn is None:
            return self._why_nothing(), "quiet"
        if self._refusal:
            return f"Not here: {self._refusal}", "warning"
        now = self.context.clock.monotonic()
        view, planned_at = self._queue(now), self._planned_at
        if view is None or view.examined_seconds is None or planned_at is None:
            return "r shows the plan of its repair, to be confirmed there.", "strong"
        if now - view.examined_seconds <= planned_at:
            return "The doctor is examining it again ...", "quiet"
        still = next(
            (
                finding_view
                for finding_view in view.findings
                if finding_view.key == self.finding.key
            ),
            None,
        )
        if still is None:
            return "The doctor no longer finds it.", "good"
        return f"The doctor still finds: {still.summary}", "warning"

    def _why_nothing(self) -> str:
        if self.finding.queue_key is None:
            return "The console keeps trying."
        if self.finding.finding is None:
            return "The figures say so; the doctor has not explained it yet."
        lines = self.finding.finding.judgement_text.splitlines()[:1]
        return plain(f"It {lines[0]}.") if lines else ""

    def _keys(self) -> str:
        keys = [] if self.finding.queue_key is None else ["Enter opens the queue", "a actions"]
        if keys:
            silenced = self.finding.silenced is not None
            keys.append("x unsilence" if silenced else "s silence · c ack")
        if self.command:
            keys.append("o copies the command line")
        return " · ".join([*keys, "Escape closes"])

    def _queue(self, now: float) -> QueueView | None:
        key = self.finding.queue_key
        return None if key is None else self.context.store.queue(key, now)

    # Keys.

    @property
    def command(self) -> str:
        """The equivalent command line, or empty."""
        repair, conn, key = self.repair, self.conn, self.finding.queue_key
        if repair is None or conn is None or key is None:
            return ""
        finding = self.finding.finding
        command = (finding.command if finding is not None else "") or repair.command
        return f"{command} {shlex.join(conn.cli_options)}".strip() if command else ""

    def action_command(self) -> None:
        """Copy it, without --yes: it only plans."""
        if self.command:
            self.app.copy_to_clipboard(self.command)
            self.notify(f"Copied: {self.command}", markup=False)

    def action_queue(self) -> None:
        key = self.finding.queue_key
        if key is not None and self.close():
            which = self.finding.key[4]
            tab = which if which in _TABS.values() else _TABS.get(self.finding.code, "findings")
            self.context.navigator.open_queue(key, tab)

    def action_actions(self) -> None:
        """The verbs of the queue, in case the finding has no repair."""
        key = self.finding.queue_key
        if key is not None and self.close():
            self.context.navigator.open_actions(key)

    def action_silence(self, verb: str) -> None:
        key = self.finding.queue_key
        if key is not None and self.close():
            self.context.navigator.open_action(key, verb, code=self.finding.silence_code)

    def action_unsilence(self) -> None:
        """Its current silence may cover more than this finding."""
        key, by = self.finding.queue_key, self.finding.silenced
        if key is not None and self.close():
            code = self.finding.silence_code if by is None else by.code
            self.context.navigator.open_action(key, "unsilence", code=code)

    def action_examine(self) -> None:
        self.context.navigator.examine(self.finding.queue_key)
        self.notify("The doctor is at work.")

    def action_out(self) -> None:
        self.close()

    def action_scroll(self, lines: int) -> None:
        scroll = self.query_one("#finding-scroll")
        scroll.scroll_relative(y=lines, animate=False, immediate=True)
