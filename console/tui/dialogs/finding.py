"""A finding in detail: its evidence, its repair, the plan, and running it.

Nothing runs before its plan was shown. The repair is that of the finding as it was opened.
"""

import shlex
from collections.abc import Sequence
from enum import Enum
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Input

from console.doctor.finding import Repair
from console.errors import ConsoleError
from console.tui import jobs
from console.tui.context import Context
from console.tui.dialogs.dialog import Dialog
from console.tui.findings import FindingView
from console.tui.open_connection import OpenConnection, why_not_allowed
from console.tui.tabs.findings import FindingLines
from console.tui.text import TextView, describe_error, plain, sentence, style_of
from console.tui.views import ConnectionView, Link, QueueView

_TABS = {
    "error_burst": "errors",
    "poison": "errors",
    "stuck": "stuck",
    "rows_held": "waits",
    "prepared_forgotten": "waits",
}
"""Code -> the queue's tab with more on it."""
_CHECK_SECONDS = 0.25


class Phase(Enum):
    """The stage of the repair."""

    NOTHING = "nothing here repairs it automatically"
    REFUSED = "not allowed"
    PLANNING = "planning"
    PLANNED = "planned"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class FindingDialog(Dialog[None]):
    """Shows one finding, and is never changed by a refresh."""

    AUTO_FOCUS = ""
    """The hidden input must not get the focus."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "escape,q", "out", "close", show=False, tooltip="close; a running repair continues"
        ),
        Binding("y", "repair", "repair", tooltip="do what the plan says"),
        Binding("o", "command", "command", tooltip="copy it as a command line"),
        Binding("enter", "queue", "queue", tooltip="open the queue at the tab that shows more"),
        Binding("a", "actions", "actions", tooltip="what can be done with the queue"),
        Binding("s", "silence('silence')", "silence", tooltip="for a time, without notifications"),
        Binding("c", "silence('ack')", "ack", tooltip="acknowledge it, until it ends or worsens"),
        Binding("x", "silence('unsilence')", "unsilence", tooltip="end its silence"),
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
        self.phase = Phase.NOTHING
        self._lines: Sequence[str] = ()
        """The plan's, then the result's."""
        self._why = ""
        self._finished_at = 0.0

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
                yield TextView(id="finding-plan")
                yield FindingLines(id="finding-evidence")
            yield TextView(id="finding-prompt")
            yield Input(id="finding-name")

    def on_mount(self) -> None:
        """Make the plan at once: it changes nothing."""
        evidence = self.query_one("#finding-evidence", FindingLines)
        evidence.draw(self.finding, self.context, details=False)
        self.query_one("#finding-name").display = False
        self._plan()
        self.every(_CHECK_SECONDS, self._recheck)

    # The repair.

    @property
    def connection(self) -> ConnectionView | None:
        now = self.context.clock.monotonic()
        name = plain(self.finding.connection)
        views = (view for view in self.context.store.connections(now) if view.name == name)
        return next(views, None)

    @property
    def requires_name(self) -> bool:
        """Whether the queue's name has to be typed."""
        view = self.connection
        production = view is not None and view.production
        return production or (self.repair is not None and self.repair.requires_name)

    def _refusal(self, repair: Repair, conn: OpenConnection) -> str:
        """Why it must not run now; empty if it may."""
        view = self.connection
        if view is not None and view.link not in {Link.ALIVE, Link.OPENING}:
            return "The connection does not answer: nothing is done on old figures."
        if why := why_not_allowed(conn, repair.rights):
            return sentence(why)
        if conn.database.read_only:
            return "This connection is read-only."
        return ""

    def _plan(self) -> None:
        repair, conn = self.repair, self.conn
        if repair is None or conn is None:
            self._show_phase(Phase.NOTHING)
            return
        if why := self._refusal(repair, conn):
            self._show_phase(Phase.REFUSED, why=why)
            return
        self._show_phase(Phase.PLANNING)
        database = conn.database
        jobs.start_job(self, lambda: repair.plan(database), self.show_plan, self._failed)

    def show_plan(self, lines: Sequence[str]) -> None:
        self._show_phase(Phase.PLANNED, lines)
        if self.requires_name and self.finding.queue_key is not None:
            line = self.query_one("#finding-name", Input)
            line.placeholder = f"the queue's name: {self.finding.queue_key[2]}"
            line.display = True
            self.set_focus(line)
            self._fit()

    def _failed(self, error: ConsoleError) -> None:
        self._finished_at = self.context.clock.monotonic()
        self._show_phase(Phase.FAILED, why=describe_error(error))

    def action_repair(self) -> None:
        """Run the plan that is shown."""
        if self.phase is Phase.PLANNED and not self.requires_name:
            self._run()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        key = self.finding.queue_key
        if self.phase is not Phase.PLANNED or key is None:
            return
        if event.value == key[2]:
            self._run()
        else:
            self._show_phase(Phase.PLANNED, self._lines, why="That is not the queue's name.")

    def _run(self) -> None:
        repair, conn = self.repair, self.conn
        if repair is None or conn is None:
            return
        if why := self._refusal(repair, conn):
            self._show_phase(Phase.REFUSED, why=why)
            return
        self.query_one("#finding-name").display = False
        self.set_focus(None)
        self._show_phase(Phase.RUNNING, self._lines)
        database, app = conn.database, self.app
        title = f"{self.finding.label}: {plain(repair.summary)}"

        # The result is reported even if this dialog was closed.
        def done(lines: Sequence[str]) -> None:
            self.context.navigator.examine(self.finding.queue_key)
            if self.is_attached:
                self._finished_at = self.context.clock.monotonic()
                self._show_phase(Phase.DONE, lines)
            else:
                app.notify(f"{title}: done", markup=False)

        def failed(error: ConsoleError) -> None:
            if self.is_attached:
                self._failed(error)
            else:
                app.notify(
                    f"{title}: {describe_error(error)}", severity="error", markup=False, timeout=30
                )

        jobs.start_job(app, lambda: repair.run(database), done, failed)

    # Drawing.

    def _show_phase(self, phase: Phase, lines: Sequence[str] = (), why: str = "") -> None:
        self.phase, self._lines, self._why = phase, lines, why
        self.query_one("#finding-lines", FindingLines).draw(
            self.finding,
            self.context,
            evidence=False,
            allowed=phase is not Phase.REFUSED,
        )
        view = self.query_one("#finding-plan", TextView)
        plan = Text()
        if phase in {Phase.PLANNED, Phase.RUNNING, Phase.DONE}:
            head = "what was done" if phase is Phase.DONE else "the plan"
            plan.append(f"\n{head}\n", style_of(view, "quiet"))
        plan.append("".join(f"{plain(line)}\n" for line in lines))
        view.set_text(plan)
        self._draw_prompt()

    def _draw_prompt(self) -> None:
        prompt = self.query_one("#finding-prompt", TextView)
        text, style = self._prompt_text()
        line = Text(text, style_of(prompt, style))
        if self._why and self.phase is Phase.PLANNED:
            line.append(f"  {self._why}", style_of(prompt, "warning"))
        line.append(f"\n{self._keys()}", style_of(prompt, "quiet"))
        prompt.set_text(line)
        self.refresh_bindings()
        self._fit()

    def _fit(self) -> None:
        """The prompt stays visible, however long the details are."""
        frame, below = 4, 3 + int(self.query_one("#finding-name").display)
        below += max(0, self.query_one("#finding-prompt", TextView).plain_text.count("\n") - 1)
        most = max(2, self.app.size.height - frame - below)
        self.query_one("#finding-scroll").styles.max_height = most

    def on_resize(self) -> None:
        self._fit()

    def _prompt_text(self) -> tuple[str, str]:
        """The line at the bottom, and its style."""
        confirm = (
            "Type the queue's name and press Enter to run it."
            if self.requires_name
            else "y runs it."
        )
        return {
            Phase.NOTHING: (self._why_nothing(), "quiet"),
            Phase.REFUSED: (f"Not here: {self._why}", "warning"),
            Phase.PLANNING: ("Making the plan ...", "quiet"),
            Phase.PLANNED: (confirm, "strong"),
            Phase.RUNNING: ("Running ...", "strong"),
            Phase.DONE: ("Done. The doctor is examining it again ...", "good"),
            Phase.FAILED: (self._why, "critical"),
        }[self.phase]

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
        closes = "Escape closes; it goes on" if self.phase is Phase.RUNNING else "Escape closes"
        return " · ".join([*keys, closes])

    def _recheck(self) -> None:
        """A refused repair may be possible by now; after a repair, show the doctor's new result."""
        repair, conn = self.repair, self.conn
        if self.phase is Phase.REFUSED and repair and conn and not self._refusal(repair, conn):
            self._plan()
        if self.phase is not Phase.DONE:
            return
        now = self.context.clock.monotonic()
        view = self._queue(now)
        if view is None or view.examined_seconds is None:
            return
        if now - view.examined_seconds <= self._finished_at:
            return
        still = next((one for one in view.findings if one.key == self.finding.key), None)
        prompt = self.query_one("#finding-prompt", TextView)
        text = "Done; the doctor no longer finds it."
        if still is not None:
            text = f"Done; the doctor still finds: {still.summary}"
        line = Text(text, style_of(prompt, "good" if still is None else "warning"))
        prompt.set_text(line.append(f"\n{self._keys()}", style_of(prompt, "quiet")))

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
        if key is not None and self.phase is not Phase.RUNNING and self.close():
            which = self.finding.key[4]
            tab = which if which in _TABS.values() else _TABS.get(self.finding.code, "findings")
            self.context.navigator.open_queue(key, tab)

    def action_actions(self) -> None:
        """The verbs of the queue, in case the finding has no repair."""
        key = self.finding.queue_key
        if key is not None and self.phase is not Phase.RUNNING and self.close():
            self.context.navigator.open_actions(key)

    def action_silence(self, verb: str) -> None:
        key = self.finding.queue_key
        if key is not None and self.phase is not Phase.RUNNING and self.close():
            self.context.navigator.open_action(key, verb, code=self._silence_code(verb))

    def _silence_code(self, verb: str) -> str:
        """Its current silence may cover more than this finding."""
        by = self.finding.silenced
        return by.code if by is not None and verb == "unsilence" else self.finding.silence_code

    def action_examine(self) -> None:
        self.context.navigator.examine(self.finding.queue_key)
        self.notify("The doctor is at work.")

    def action_out(self) -> None:
        """Close. A running repair continues, and its result is notified."""
        if self.close() and self.phase is Phase.RUNNING:
            self.app.notify("It continues in the background.")

    def action_scroll(self, lines: int) -> None:
        scroll = self.query_one("#finding-scroll")
        scroll.scroll_relative(y=lines, animate=False, immediate=True)
