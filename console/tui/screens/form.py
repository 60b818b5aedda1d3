"""The base of screens that do something: form, plan, confirmation, run, result.

Nothing changes before a plan is confirmed. A run goes on when its screen is left.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import ClassVar, TypeVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Input

from console.errors import ConsoleError
from console.plan import Confirmation, Plan
from console.tui.context import Context
from console.tui.dialogs.verbs import acting_lines, view_of
from console.tui.findings import QueueKey
from console.tui.jobs import ActionRun, start_job
from console.tui.screens.live import LiveScreen
from console.tui.text import TextView, describe_error, plain
from console.tui.widgets.field import Form
from console.tui.widgets.plan_pane import PlanPane
from console.verbs.parameters import Parameter

T = TypeVar("T")

_PROGRESS_SECONDS = 0.25


class Stage(Enum):
    """The value is the id of the part of the screen that is shown."""

    NOTHING = "nothing"
    """No form (yet)."""
    CHOOSING = "choosing"
    """A table is being chosen."""
    FORM = "form"
    PLANNING = "planning"
    PLAN = "plan"
    RUNNING = "progress"
    RESULT = "result"


class FormScreen(LiveScreen):
    """Keys that move the focus have priority, so that what is typed right after them goes to the
    new field."""

    AUTO_FOCUS = ""
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012  # Textual has it as an instance's
        (0, "-narrow"),
        (70, "-normal"),
        (120, "-broad"),
    ]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "app.focus_next", "next field", show=False, priority=True),
        Binding("shift+tab", "app.focus_previous", "previous field", show=False, priority=True),
        Binding("enter", "go", "plan", tooltip="make the plan; that changes nothing"),
        Binding("o", "command", "the equivalent command line", show=False),
        Binding("ctrl+o", "command", "command line", tooltip="copy the equivalent command line"),
        Binding("up", "scroll('up')", "up", show=False),
        Binding("down", "scroll('down')", "down", show=False),
        Binding("pageup", "scroll('page_up')", "page up", show=False),
        Binding("pagedown", "scroll('page_down')", "page down", show=False),
    ]
    STAGES: ClassVar[Mapping[str, frozenset[Stage]]] = {
        "go": frozenset({Stage.FORM}),
        "command": frozenset(Stage) - {Stage.NOTHING},
    }
    """The stages in which an action is enabled; other actions always are."""
    PARTS: ClassVar[Mapping[Stage, tuple[str, ...]]] = {}
    """The parts shown in a stage, where they differ from the one that it names."""
    HINT: ClassVar[str] = (
        "Enter makes the plan; that changes nothing. Tab: next field. Space: tick. Escape: back."
    )

    def __init__(
        self, context: Context, key: QueueKey | None = None, running: ActionRun | None = None
    ) -> None:
        """`key`: the queue; `running`: a run to go back to."""
        super().__init__(context)
        self.key = key
        self.running = running
        self.stage = Stage.NOTHING
        self.confirmation: Confirmation | None = None
        self._request = 0

    @classmethod
    def of_run(cls, context: Context, running: ActionRun) -> Screen[None]:
        """A screen of a run that this screen started."""
        return cls(context, running=running)

    def body(self) -> ComposeResult:
        yield TextView(id="action-head")
        yield TextView(id="nothing")
        yield from self.compose_form()
        yield TextView(id="planning")
        yield PlanPane(id="plan")
        yield from self.compose_progress()
        yield TextView(id="problem")

    def compose_form(self) -> ComposeResult:
        """The form and what is beside it, in `#form`."""
        with Form(id="form", hint=self.HINT):
            yield from self.compose_fields()

    def compose_fields(self) -> ComposeResult:
        """The fixed fields; `show_fields` adds others."""
        yield from ()

    def compose_progress(self) -> ComposeResult:
        """`#progress` and `#result`, on screens that run something."""
        yield from ()

    def on_mount(self) -> None:
        self.show_problem()
        self.show_stage(Stage.NOTHING)
        self.every(_PROGRESS_SECONDS, self.update_progress)
        self.show_first_stage()

    def show_first_stage(self) -> None:
        if self.running is None:
            self.show_form()
        else:
            self.show_stage(Stage.RUNNING)
            self.after_refresh(self.update_progress)

    def show_form(self) -> None:
        """Show the form, or why there is none."""

    def show_stage(self, stage: Stage) -> None:
        self.stage = stage
        shown = self.PARTS.get(stage, (stage.value,))
        for part in (one.value for one in Stage):
            self.query(f"#{part}").set(display=part in shown)
        self.focus_stage()
        self.refresh_bindings()
        self.draw()

    def focus_stage(self) -> None:
        if self.stage is Stage.FORM:
            self.form.focus_first()
        elif self.stage is Stage.PLAN:
            self.query_one(PlanPane).focus_input()
        else:
            self.set_focus(None)

    def show_problem(self, error: ConsoleError | None = None) -> None:
        """None: hide it."""
        problem = self.query_one("#problem", TextView)
        problem.display = error is not None
        problem.set_text(Text("" if error is None else f"✖ {describe_error(error)}"))

    def close_form(self, text: str, error: ConsoleError | None = None) -> None:
        """Show this text instead of a form."""
        self.query_one("#nothing", TextView).set_text(Text(text))
        self.show_problem(error)
        self.show_stage(Stage.NOTHING)

    def head(self, what: str) -> Text:
        """The verb, its queue and, before the run, who else is acting on that queue."""
        line = Text(what, "bold")
        if self.key is not None:
            connection, schema, name = map(plain, self.key)
            line.append(f" {schema}.{name}").append(f" on {connection}", "not bold")
            if self.stage in {Stage.FORM, Stage.PLANNING, Stage.PLAN}:
                for acting_line in acting_lines(view_of(self.context, self.key)):
                    line.append(f"\n{acting_line}", "bold")
        return line

    def update_progress(self) -> None:
        """Called a few times a second."""
        run = self.running
        if run is None or not self.is_in_sight:
            return
        if not run.active:
            if self.stage is not Stage.RESULT:
                run.result_shown = True
                self.show_outcome(run)
        elif self.stage is Stage.RUNNING:
            self.draw()
        else:
            self.show_stage(Stage.RUNNING)

    def show_outcome(self, run: ActionRun) -> None:  # noqa: ARG002  # used by subclasses
        self.show_stage(Stage.RESULT)

    @property
    def shown_action(self) -> int:
        return 0 if self.running is None else self.running.number

    @property
    def runs(self) -> bool:
        return self.running is not None and self.running.active

    # The form.

    @property
    def form(self) -> Form:
        return self.query_one(Form)

    def show_fields(self, parameters: Sequence[Parameter], texts: Mapping[str, str]) -> None:
        self.form.add_fields(parameters, texts)
        # Only once they can be focused, so that keys typed ahead go there.
        self.after_refresh(self.show_stage, Stage.FORM)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if event.input.id == "confirm":
            self.confirm(event.value)
        else:
            self.action_go()

    def action_go(self) -> None:
        if self.stage is Stage.FORM and self.form.check():
            self.plan()

    # The plan.

    def plan(self) -> None:
        """Plan what the form says."""

    def make_plan(self, work: Callable[[], T], show: Callable[[T], None], doing: str) -> None:
        self.show_problem()
        self.discard_pending_results()
        self.query_one("#planning", TextView).set_text(
            Text(f"{doing} ... Escape: back to the form.")
        )
        start_job(self, work, self.if_current(show), self.if_current(self.plan_failed))
        self.show_stage(Stage.PLANNING)

    def discard_pending_results(self) -> None:
        """Ignore the result of any job that was started before."""
        self._request += 1

    def if_current(self, then: Callable[[T], None]) -> Callable[[T], None]:
        """`then`, unless the results have been discarded by the time it is called."""
        request = self._request

        def call(result: T) -> None:
            if request == self._request:
                then(result)

        return call

    def plan_failed(self, error: ConsoleError) -> None:
        self.back_to_form()
        self.show_problem(error)

    def back_to_form(self) -> None:
        self.discard_pending_results()
        self.confirmation = None
        if self.form.fields:
            self.show_problem()
            self.show_stage(Stage.FORM)
        else:
            self.close_form("Nothing was changed.")

    def ask_to_confirm(self, confirmation: Confirmation) -> None:
        self.confirmation = confirmation
        self.query_one(PlanPane).show_prompt(confirmation)
        self.show_stage(Stage.PLAN)

    def confirm(self, word: str) -> None:
        confirmation = self.confirmation
        if self.stage is not Stage.PLAN or confirmation is None or confirmation.blocked_reason:
            return
        if wrong := confirmation.error_for(word) or self.blocked_reason:
            self.query_one(PlanPane).show_prompt(confirmation, wrong)
            return
        self.confirmation = None  # once, however often Enter is pressed
        self.begin()

    @property
    def blocked_reason(self) -> str:
        """Why nothing can be started now; empty: it can."""
        view = None if self.key is None else view_of(self.context, self.key)
        if view is not None and view.unreachable:
            return "The connection gives no new figures: nothing is started until it does."
        return ""

    def begin(self) -> None:
        """Start what was confirmed."""

    def run_in_console(
        self, key: QueueKey, verb: str, plan: Plan, on_finished: Callable[[ActionRun], None]
    ) -> None:
        now = self.context.clock.monotonic()
        self.running = self.context.action_runs.start(
            self.app, key, verb, plan, now, on_finished, partial(self.of_run, self.context)
        )
        self.show_stage(Stage.RUNNING)

    def action_command(self) -> None:
        """Show the equivalent command line."""

    def action_scroll(self, direction: str) -> None:
        ids = {Stage.PLAN: ".plan-part", Stage.RESULT: "#result", Stage.FORM: "#form"}
        for part in self.query(ids.get(self.stage, "#none")):
            getattr(part, f"scroll_{direction}")(animate=False)

    def check_action(self, action: str, parameters: object) -> bool | None:  # noqa: ARG002
        return self.stage in self.STAGES.get(action, Stage)

    def action_out(self) -> None:
        if self.stage in {Stage.PLANNING, Stage.PLAN} and self.form.fields:
            self.back_to_form()
        else:
            self.discard_pending_results()
            super().action_out()
