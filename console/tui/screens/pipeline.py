"""A job of the pipeline: its form, its plan, the confirmation; then it is a process of its own.

The plan is what the verb itself says with --dry-run. The run makes it anew when it begins.
"""

from collections.abc import Mapping
from enum import Enum
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Input

from console.errors import ConsoleError, RefusedError
from console.pipeline import launch
from console.pipeline.launch import Job, Plan
from console.tui.actions import pipeline as jobs
from console.tui.board import Key
from console.tui.desk import Desk
from console.tui.dialogs.command import CommandDialog
from console.tui.dialogs.verbs import acting_lines, view_of
from console.tui.jobs import start
from console.tui.screens.form import FormScreen
from console.tui.text import plain, said, sentence
from console.tui.widgets.action_form import ActionForm
from console.tui.widgets.lines import Lines
from console.tui.widgets.paragraph import Paragraph


class Stage(Enum):
    """Where the operator is; the value is the part of the screen that is then in sight."""

    REFUSED = "nothing"
    FORM = "form"
    PLANNING = "planning"
    PLAN = "job-plan"


class PipelineScreen(FormScreen):
    """The queue is the one whose key was captured when this opened, whatever is refreshed since."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "go", "plan", tooltip="make the plan; that changes nothing"),
        Binding("ctrl+o", "command", "command line", tooltip="the command line's twin, copied"),
        Binding("up", "scroll('up')", "up", show=False),
        Binding("down", "scroll('down')", "down", show=False),
        Binding("pageup", "scroll('page_up')", "page up", show=False),
        Binding("pagedown", "scroll('page_down')", "page down", show=False),
    ]

    def __init__(
        self,
        desk: Desk,
        verb: str,
        key: Key | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """`options` are the form's fields, by the command line's names."""
        super().__init__(desk)
        self._key = key if verb in jobs.ABOUT_A_QUEUE else None
        self._place = None if self._key is None else desk.place(self._key)
        self._form = jobs.BY_VERB[verb]
        self._begins = dict(options or {})
        recorded = desk.recordings
        if verb == "rollup" and recorded is not None:
            self._begins.setdefault("recordings", str(recorded.root))
        self.stage = Stage.REFUSED
        self._plan: Plan | None = None
        self._job: Job | None = None

    @property
    def verb(self) -> str:
        """Of the pipeline."""
        return self._form.verb

    def body(self) -> ComposeResult:
        """One part for each stage; one of them is in sight."""
        yield Lines(id="action-head")
        yield Lines(id="nothing")
        yield ActionForm(id="form")
        yield Lines(id="planning")
        with VerticalScroll(id="job-plan"):
            yield Paragraph(id="job-plan-words")
            yield Lines(id="ask")
            yield Input(id="confirm", placeholder="type it here", compact=True)
        yield Lines(id="problem")

    def on_mount(self) -> None:
        """The form, or why there is none."""
        self._say()
        self._turn(Stage.REFUSED)
        super().on_mount()
        try:
            if why := jobs.why_not(self.verb, self._place):
                raise RefusedError(f"pipeline {self.verb} cannot be begun here.", why=sentence(why))
            jobs.require_extra()
        except ConsoleError as error:
            self.query_one("#nothing", Lines).say(Text("Nothing was begun."))
            self._say(error)
            return
        self._fields.offer(self._form.fields, self._begins)
        self.call_after_refresh(self._enter_form)

    # What is in sight.

    def _turn(self, stage: Stage) -> None:
        self.stage = stage
        for one in Stage:
            self.query_one(f"#{one.value}").display = one is stage
        if stage in {Stage.REFUSED, Stage.PLANNING}:
            self.set_focus(None)
        self.refresh_bindings()
        self.draw()

    def _say(self, error: ConsoleError | None = None) -> None:
        problem = self.query_one("#problem", Lines)
        problem.display = error is not None
        problem.say(Text("" if error is None else said(error)))

    def draw_body(self, now: float, *, paused: bool) -> None:
        """What it is about, and who else is at the queue."""
        del now, paused
        head = Text(f"pipeline {self.verb}", "bold")
        if self._key is not None:
            head.append(f" {plain(self._key[1])}.{plain(self._key[2])}")
            head.append(f" on {plain(self._key[0])}", "not bold")
            for line in acting_lines(view_of(self.desk, self._key)):
                head.append(f"\n{line}", "bold")
        head.append(f"   {self._form.summary}", "not bold dim")
        self.query_one("#action-head", Lines).say(head)

    @property
    def _fields(self) -> ActionForm:
        return self.query_one(ActionForm)

    def _enter_form(self) -> None:
        self._turn(Stage.FORM)
        self._fields.enter()

    # The plan.

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter in a field plans; in the confirmation it begins."""
        event.stop()
        if event.input.id == "confirm":
            self._confirm(event.value.strip())
        else:
            self.action_go()

    def action_go(self) -> None:
        """Plan what the form says, if it can be read."""
        if self.stage is not Stage.FORM or not self._fields.check():
            return
        self._say()
        self.ask_anew()
        verb, said_, place, key = self.verb, self._fields.said, self._place, self._key
        if self._form.confirmed:

            def work() -> tuple[Job, list[str]]:
                made = jobs.job(verb, said_, place, key)
                self._plan = Plan(jobs.with_option(made, "--dry-run"))
                return made, self._plan.ask()
        else:

            def work() -> tuple[Job, list[str]]:
                made = jobs.job(verb, said_, place, key)
                return made, [jobs.DOES[verb]]

        words = "Making the plan ... Escape: back to the form."
        self.query_one("#planning", Lines).say(Text(words))
        self._turn(Stage.PLANNING)
        start(
            self,
            work,
            self.still_asked(lambda found: self.show_plan(*found)),
            self.still_asked(self._fail),
        )

    def _fail(self, error: ConsoleError) -> None:
        self._back()
        self._say(error)

    def _back(self) -> None:
        self.ask_anew()
        self._cut_off()
        self._say()
        self._enter_form()

    def _cut_off(self) -> None:
        if self._plan is not None:
            self._plan.cut_off()
            self._plan = None

    def show_plan(self, job: Job, lines: list[str]) -> None:
        """To be read, then confirmed or not."""
        self._plan, self._job = None, job
        text = Text("\n".join(map(plain, lines)))
        text.append(
            "\n\nIt runs as a process of its own, also when this console ends; the list of runs "
            "shows how far it is, and stops it.",
            "dim",
        )
        if self._form.confirmed:
            text.append(" It makes its plan anew when it begins.", "dim")
        self.query_one("#job-plan-words", Paragraph).say(text)
        self.query_one("#confirm", Input).value = ""
        self._ask()
        self._turn(Stage.PLAN)
        self.set_focus(self.query_one("#confirm", Input))

    @property
    def _word(self) -> str:
        """What confirms it."""
        return self._key[2] if self._form.confirmed and self._key is not None else "y"

    def _ask(self, wrong: str = "") -> None:
        name = "the queue's name, " if self._form.confirmed else ""
        words = f"To begin it, type {name}{plain(self._word)} and Enter. Escape: back."
        self.query_one("#ask", Lines).say(Text(f"✖ {plain(wrong)}\n{words}" if wrong else words))

    def _confirm(self, word: str) -> None:
        job = self._job
        if self.stage is not Stage.PLAN or job is None:
            return
        if word != self._word:
            self._ask(f"{word!r} is not it." if word else "Nothing is typed.")
            return
        view = None if self._key is None else view_of(self.desk, self._key)
        if self._form.confirmed and view is not None and view.unreachable:
            self._ask("The connection gives no new figures: nothing is begun until it does.")
            return
        self._job = None  # once, however often Enter is pressed
        wanted = jobs.confirmed(job) if self._form.confirmed else job
        start(self, lambda: launch.start(wanted), self._begun, self._fail)

    def _begun(self, id_: str) -> None:
        """To the list, in place of this."""
        self._close()
        self.ways.open_runs(id_)

    # The ways.

    def action_command(self) -> None:
        """The same on the command line."""
        if self.stage is Stage.REFUSED or not self._fields.check():
            return
        try:
            line = jobs.twin(self.verb, self._fields.said, self._place, self._key)
        except ConsoleError as error:
            self._say(error)
            return
        words = "Without --yes it prints the plan and changes nothing."
        self.app.push_screen(CommandDialog(line, words if self._form.confirmed else ""))

    def action_scroll(self, way: str) -> None:
        """The plan, while the confirmation has the keys."""
        if self.stage is Stage.PLAN:
            getattr(self.query_one("#job-plan"), f"scroll_{way}")(animate=False)

    def check_action(
        self,
        action: str,
        parameters: tuple[object, ...],  # noqa: ARG002  # Textual's signature
    ) -> bool | None:
        """Each key where it means something."""
        if action == "go":
            return self.stage is Stage.FORM
        return self.stage is not Stage.REFUSED if action == "command" else True

    def action_out(self) -> None:
        """From a plan to its form; from the form one level out."""
        if self.stage in {Stage.PLANNING, Stage.PLAN}:
            self._back()
        else:
            self._close()

    def _close(self) -> None:
        self.ask_anew()
        self._cut_off()
        if len(self.app.screen_stack) > 1:
            self.app.pop_screen()
