"""A finding whole: what proves it, what mends it, the plan of that, and doing it.

Nothing acts before its plan was shown. What is mended is what the dialog was opened on.
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
from console.tui.board import ConnectionView, Link, QueueView
from console.tui.desk import Desk
from console.tui.dialogs.dialog import Dialog
from console.tui.findings import FindingView
from console.tui.places import Place
from console.tui.text import plain, said
from console.tui.widgets.finding_lines import FindingLines
from console.tui.widgets.tones import tone
from console.tui.widgets.words import Words

_TABS = {
    "error_burst": "errors",
    "poison": "errors",
    "stuck": "stuck",
    "rows_held": "waits",
    "prepared_forgotten": "waits",
}
"""Code -> the tab of the queue that shows more of it."""
_LOOK_SECONDS = 0.25


class Phase(Enum):
    """How far it is."""

    NOTHING = "nothing here mends it by itself"
    REFUSED = "not allowed"
    PLANNING = "planning"
    PLANNED = "planned"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class FindingDialog(Dialog[None]):
    """Opened on one finding, and never changed by a refresh."""

    AUTO_FOCUS = ""
    """A line that is not there yet shall not take the keys."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "out", "close", show=False, tooltip="close; what runs goes on"),
        Binding("y", "mend", "mend", tooltip="do what the plan says"),
        Binding("o", "command", "command", tooltip="copy it as a command line"),
        Binding("enter", "queue", "queue", tooltip="open the queue where more of it is shown"),
        Binding("a", "actions", "actions", tooltip="what can be done with the queue"),
        Binding("d", "examine", "doctor", tooltip="let the doctor look at the queue now"),
        Binding("down,j", "scroll(1)", "down", show=False),
        Binding("up,k", "scroll(-1)", "up", show=False),
        Binding("pagedown,ctrl+f", "scroll(10)", "page down", show=False),
        Binding("pageup,ctrl+b", "scroll(-10)", "page up", show=False),
    ]

    def __init__(self, desk: Desk, finding: FindingView) -> None:
        super().__init__()
        self.desk = desk
        self.finding = finding
        self.phase = Phase.NOTHING
        self._lines: Sequence[str] = ()
        """Of the plan; then what was done."""
        self._why = ""
        self._ended_at = 0.0

    @property
    def repair(self) -> Repair | None:
        """What mends it."""
        return None if self.finding.finding is None else self.finding.finding.repair

    @property
    def place(self) -> Place | None:
        """Its connection."""
        return self.desk.places.get(self.finding.connection)

    def compose(self) -> ComposeResult:
        """What is known, which scrolls; under it what can be done."""
        with Vertical(id="finding") as panel:
            view = self.finding
            queue = f"{view.place} › {view.label}" if view.place else view.label  # noqa: RUF001
            panel.border_title = Text(queue)
            panel.border_subtitle = Text(view.code)
            with VerticalScroll(id="finding-scroll", can_focus=False):
                yield FindingLines(id="finding-lines")
                yield Words(id="finding-plan")
                yield FindingLines(id="finding-evidence")
            yield Words(id="finding-ask")
            yield Input(id="finding-name")

    def on_mount(self) -> None:
        """The plan is made at once: it changes nothing."""
        evidence = self.query_one("#finding-evidence", FindingLines)
        evidence.draw(self.finding, self.desk.moment, words=False)
        self.query_one("#finding-name").display = False
        self._plan()
        self.set_interval(_LOOK_SECONDS, self._look_again)

    # What can be done.

    @property
    def connection(self) -> ConnectionView | None:
        """How its connection is now."""
        now = self.desk.clock.monotonic()
        name = plain(self.finding.connection)
        found = (view for view in self.desk.board.connections(now) if view.name == name)
        return next(found, None)

    @property
    def wants_name(self) -> bool:
        """Whether the queue's name has to be typed."""
        view = self.connection
        production = view is not None and view.production
        return production or (self.repair is not None and self.repair.wants_name)

    def _refusal(self, repair: Repair, place: Place) -> str:
        """Why it is not to be done now; nothing where it is."""
        view = self.connection
        if view is not None and view.link not in {Link.ALIVE, Link.OPENING}:
            return "The connection gives no answer: nothing is done on old figures."
        if place.rights < repair.rights:
            needs, has = repair.rights.word, place.rights.word
            return f"It needs the rights {needs}; this connection has {has}."
        if place.database.read_only:
            return "This connection is read-only."
        return ""

    def _plan(self) -> None:
        repair, place = self.repair, self.place
        if repair is None or place is None:
            self._say(Phase.NOTHING)
            return
        if why := self._refusal(repair, place):
            self._say(Phase.REFUSED, why=why)
            return
        self._say(Phase.PLANNING)
        database = place.database
        jobs.start(self, lambda: repair.plan(database), self.show_plan, self._failed)

    def show_plan(self, lines: Sequence[str]) -> None:
        """The plan has come: now it may be confirmed."""
        self._say(Phase.PLANNED, lines)
        if self.wants_name and self.finding.queue_key is not None:
            line = self.query_one("#finding-name", Input)
            line.placeholder = f"the queue's name: {self.finding.queue_key[2]}"
            line.display = True
            self.set_focus(line)
            self._fit()

    def _failed(self, error: ConsoleError) -> None:
        self._ended_at = self.desk.clock.monotonic()
        self._say(Phase.FAILED, why=said(error))

    def action_mend(self) -> None:
        """Do what the plan says, which has been shown."""
        if self.phase is Phase.PLANNED and not self.wants_name:
            self._run()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """The name, where it has to be typed."""
        event.stop()
        key = self.finding.queue_key
        if self.phase is not Phase.PLANNED or key is None:
            return
        if event.value == key[2]:
            self._run()
        else:
            self._say(Phase.PLANNED, self._lines, why="That is not the queue's name.")

    def _run(self) -> None:
        repair, place = self.repair, self.place
        if repair is None or place is None:
            return
        if why := self._refusal(repair, place):
            self._say(Phase.REFUSED, why=why)
            return
        self.query_one("#finding-name").display = False
        self.set_focus(None)
        self._say(Phase.RUNNING, self._lines)
        database, app = place.database, self.app
        words = f"{self.finding.label}: {plain(repair.summary)}"

        # It goes on and tells its end, whether this dialog is there or not.
        def done(lines: Sequence[str]) -> None:
            self.desk.ways.examine(self.finding.queue_key)
            if self.is_attached:
                self._ended_at = self.desk.clock.monotonic()
                self._say(Phase.DONE, lines)
            else:
                app.notify(f"{words}: done", markup=False)

        def failed(error: ConsoleError) -> None:
            if self.is_attached:
                self._failed(error)
            else:
                app.notify(f"{words}: {said(error)}", severity="error", markup=False, timeout=30)

        jobs.start(app, lambda: repair.run(database), done, failed)

    # What is said.

    def _say(self, phase: Phase, lines: Sequence[str] = (), why: str = "") -> None:
        self.phase, self._lines, self._why = phase, lines, why
        self.query_one("#finding-lines", FindingLines).draw(
            self.finding,
            self.desk.moment,
            evidence=False,
            allowed=phase is not Phase.REFUSED,
        )
        words = self.query_one("#finding-plan", Words)
        plan = Text()
        if phase in {Phase.PLANNED, Phase.RUNNING, Phase.DONE}:
            head = "what was done" if phase is Phase.DONE else "the plan"
            plan.append(f"\n{head}\n", tone(words, "quiet"))
        plan.append("".join(f"{plain(line)}\n" for line in lines))
        words.say(plan)
        self._ask()

    def _ask(self, more: str = "") -> None:
        ask = self.query_one("#finding-ask", Words)
        words, mood = self._words()
        line = Text(words, tone(ask, mood))
        if self._why and self.phase is Phase.PLANNED:
            line.append(f"  {self._why}", tone(ask, "warning"))
        if more:
            line.append(f"  {more}", tone(ask, "strong"))
        line.append(f"\n{self._keys()}", tone(ask, "quiet"))
        ask.say(line)
        self.refresh_bindings()
        self._fit()

    def _fit(self) -> None:
        """What can be done stays in sight, however much there is to read."""
        frame, below = 4, 3 + int(self.query_one("#finding-name").display)
        below += max(0, self.query_one("#finding-ask", Words).said.count("\n") - 1)
        most = max(2, self.app.size.height - frame - below)
        self.query_one("#finding-scroll").styles.max_height = most

    def on_resize(self) -> None:
        """Another size has other room."""
        self._fit()

    def _words(self) -> tuple[str, str]:
        """What stands at the bottom, and its tone."""
        confirm = "Type the queue's name and Enter to do it." if self.wants_name else "y does it."
        return {
            Phase.NOTHING: (self._nothing(), "quiet"),
            Phase.REFUSED: (f"Not here: {self._why}", "warning"),
            Phase.PLANNING: ("The plan is being made ...", "quiet"),
            Phase.PLANNED: (confirm, "strong"),
            Phase.RUNNING: ("It runs ...", "strong"),
            Phase.DONE: ("Done. The doctor looks again ...", "good"),
            Phase.FAILED: (self._why, "critical"),
        }[self.phase]

    def _nothing(self) -> str:
        if self.finding.queue_key is None:
            return "The console goes on trying by itself."
        if self.finding.finding is None:
            return "So say the figures; the doctor has not explained it yet."
        return "Nothing mends it without somebody's judgement."

    def _keys(self) -> str:
        keys = [] if self.finding.queue_key is None else ["Enter opens the queue", "a actions"]
        if self.command:
            keys.append("o copies the command line")
        closes = "Escape closes, it goes on" if self.phase is Phase.RUNNING else "Escape closes"
        return " · ".join([*keys, closes])

    def _look_again(self) -> None:
        """What was refused may be allowed again; what was done has the doctor's word on it."""
        repair, place = self.repair, self.place
        if self.phase is Phase.REFUSED and repair and place and not self._refusal(repair, place):
            self._plan()
        if self.phase is not Phase.DONE:
            return
        now = self.desk.clock.monotonic()
        view = self._queue(now)
        if view is None or view.examined_seconds is None:
            return
        if now - view.examined_seconds <= self._ended_at:
            return
        still = next((one for one in view.findings if one.key == self.finding.key), None)
        ask = self.query_one("#finding-ask", Words)
        words = "Done, and the doctor finds it no more."
        if still is not None:
            words = f"Done; the doctor still finds: {still.summary}"
        line = Text(words, tone(ask, "good" if still is None else "warning"))
        ask.say(line.append(f"\n{self._keys()}", tone(ask, "quiet")))

    def _queue(self, now: float) -> QueueView | None:
        views = self.desk.board.queues(now)
        return next((view for view in views if view.key == self.finding.queue_key), None)

    # Keys.

    @property
    def command(self) -> str:
        """The twin on the command line; empty: there is none."""
        repair, place, key = self.repair, self.place, self.finding.queue_key
        if repair is None or place is None or key is None:
            return ""
        words = repair.command
        if not words and repair.unattended:
            words = shlex.join(["dbq-console", "doctor", key[2], "--fix", "--schema", key[1]])
        return f"{words} {shlex.join(place.words)}".strip() if words else ""

    def action_command(self) -> None:
        """Copy it. It plans only: --yes is the operator's to add."""
        if self.command:
            self.app.copy_to_clipboard(self.command)
            self.notify(f"Copied: {self.command}", markup=False)

    def action_queue(self) -> None:
        """Where more of it is to be seen."""
        key = self.finding.queue_key
        if key is not None and self.phase is not Phase.RUNNING:
            self.app.pop_screen()
            which = self.finding.key[4]
            tab = which if which in _TABS.values() else _TABS.get(self.finding.code, "findings")
            self.desk.ways.open_queue(key, tab)

    def action_actions(self) -> None:
        """What can be done with the queue, where the finding itself offers nothing."""
        key = self.finding.queue_key
        if key is not None and self.phase is not Phase.RUNNING:
            self.app.pop_screen()
            self.desk.ways.open_actions(key)

    def action_examine(self) -> None:
        """Let the doctor look now."""
        self.desk.ways.examine(self.finding.queue_key)
        self.notify("The doctor looks.")

    def action_out(self) -> None:
        """Close. What runs goes on, and tells its end."""
        self.app.pop_screen()
        if self.phase is Phase.RUNNING:
            self.app.notify("It goes on in the background.")

    def action_scroll(self, lines: int) -> None:
        """Some lines down, or up."""
        scroll = self.query_one("#finding-scroll")
        scroll.scroll_relative(y=lines, animate=False, immediate=True)
