"""A screen of one thing to do: its form, the plan, the confirmation, the run, the result.

Nothing changes before a plan was confirmed; what runs then goes on whatever is on the screen.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import ClassVar, TypeVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input

from console.errors import ConsoleError
from console.tui.context import Context
from console.tui.dialogs.verbs import acting_lines, view_of
from console.tui.findings import QueueKey
from console.tui.jobs import ActionRun, Work, start_job
from console.tui.screens.live import LiveScreen
from console.tui.text import TextView, describe_error, plain
from console.tui.widgets.field import Form
from console.tui.widgets.plan_pane import Confirmation, PlanPane
from console.verbs.parameters import Parameter

T = TypeVar("T")

_FOLLOW_SECONDS = 0.25


class Stage(Enum):
    """Where the operator is; the value is the part of the screen that is then in sight."""

    NOTHING = "nothing"
    """There is no form, or none yet."""
    CHOOSING = "choosing"
    """What it is to be about is chosen."""
    FORM = "form"
    PLANNING = "planning"
    PLAN = "plan"
    RUNNING = "progress"
    RESULT = "result"


class FormScreen(LiveScreen):
    """Fields have the focus as soon as there are any; keys that move it come before all others, so
    that what is typed right after them goes the new way."""

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
        Binding("o", "command", "command line", show=False, tooltip="the equivalent command line"),
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
    """Where a key means something, by its action; others mean something everywhere."""
    PARTS: ClassVar[Mapping[Stage, tuple[str, ...]]] = {}
    """What is in sight at a stage, where that is not the part of its name."""
    HINT: ClassVar[str] = (
        "Enter makes the plan; that changes nothing. Tab: next field. Space: tick. Escape: back."
    )

    def __init__(
        self, context: Context, key: QueueKey | None = None, running: ActionRun | None = None
    ) -> None:
        """`key`: the queue that it is about, captured now, whatever is refreshed since; `running`:
        one that is under way, to go back to."""
        super().__init__(context)
        self.key = key
        self.running = running
        self.stage = Stage.NOTHING
        self.confirmation: Confirmation | None = None
        self._asked = 0

    def body(self) -> ComposeResult:
        """One part for each stage; one of them is in sight."""
        yield TextView(id="action-head")
        yield TextView(id="nothing")
        yield from self.compose_form()
        yield TextView(id="planning")
        yield PlanPane(id="plan")
        yield from self.compose_progress()
        yield TextView(id="problem")

    def compose_form(self) -> ComposeResult:
        """The form, and what stands beside it: all of it in `#form`."""
        with Form(id="form", hint=self.HINT):
            yield from self.compose_fields()

    def compose_fields(self) -> ComposeResult:
        """Fields that are always there; others are offered when it is known which there are."""
        yield from ()

    def compose_progress(self) -> ComposeResult:
        """What shows how far it is, and what came of it; for screens in which something runs."""
        yield from ()

    def on_mount(self) -> None:
        """Nothing is in sight before it is known what there is."""
        self.show_problem()
        self.show_stage(Stage.NOTHING)
        self.every(_FOLLOW_SECONDS, self.update_progress)
        self.show_first_stage()

    def show_first_stage(self) -> None:
        """Offer the form, or follow what runs already."""

    # What is in sight.

    def show_stage(self, stage: Stage) -> None:
        self.stage = stage
        shown = self.PARTS.get(stage, (stage.value,))
        for one in Stage:
            self.query(f"#{one.value}").set(display=one.value in shown)
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
        """What went wrong: what, why, what next. None: nothing did."""
        problem = self.query_one("#problem", TextView)
        problem.display = error is not None
        problem.set_text(Text("" if error is None else f"✖ {describe_error(error)}"))

    def close_form(self, words: str, error: ConsoleError | None = None) -> None:
        """There is no form, for this reason."""
        self.query_one("#nothing", TextView).set_text(Text(words))
        self.show_problem(error)
        self.show_stage(Stage.NOTHING)

    def head(self, what: str) -> Text:
        """What it is, about which queue; and who else is at that, while it can still be left."""
        line = Text(what, "bold")
        if self.key is not None:
            connection, schema, name = map(plain, self.key)
            line.append(f" {schema}.{name}").append(f" on {connection}", "not bold")
            if self.stage in {Stage.FORM, Stage.PLANNING, Stage.PLAN}:
                for one in acting_lines(view_of(self.context, self.key)):
                    line.append(f"\n{one}", "bold")
        return line

    def update_progress(self) -> None:
        """See how far it is; called again and again."""

    @property
    def shown_action(self) -> int:
        """The number of the action that this screen shows itself."""
        return 0 if self.running is None else self.running.number

    @property
    def runs(self) -> bool:
        return self.running is not None and self.running.active

    # The form.

    @property
    def form(self) -> Form:
        return self.query_one(Form)

    def show_fields(self, parameters: Sequence[Parameter], texts: Mapping[str, str]) -> None:
        """These fields. In sight only with the keys in them: what is typed at once goes there."""
        self.form.add_fields(parameters, texts)
        self.after_refresh(self.show_stage, Stage.FORM)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter in a field plans; in the confirmation it begins."""
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
        """Make the plan of what the form says."""

    def make_plan(self, work: Callable[[], T], show: Callable[[T], None], words: str) -> None:
        """In a thread, until `show` has it; Escape leads back."""
        self.show_problem()
        self.discard_pending_results()
        self.query_one("#planning", TextView).set_text(
            Text(f"{words} ... Escape: back to the form.")
        )
        start_job(self, work, self.if_current(show), self.if_current(self.plan_failed))
        self.show_stage(Stage.PLANNING)

    def discard_pending_results(self) -> None:
        """From here on an answer to an earlier question is for nobody."""
        self._asked += 1

    def if_current(self, then: Callable[[T], None]) -> Callable[[T], None]:
        """`then`, for as long as what is asked now is what was asked last."""
        number = self._asked

        def answered(found: T) -> None:
            if number == self._asked:
                then(found)

        return answered

    def plan_failed(self, error: ConsoleError) -> None:
        self.back_to_form()
        self.show_problem(error)

    def back_to_form(self) -> None:
        """To the form; out of it where it has no fields."""
        self.discard_pending_results()
        self.confirmation = None
        if self.form.fields:
            self.show_problem()
            self.show_stage(Stage.FORM)
        else:
            self.close_form("Nothing was changed.")

    def ask_to_confirm(self, confirmation: Confirmation) -> None:
        """The plan is drawn: to be read, then confirmed or not."""
        self.confirmation = confirmation
        self.query_one(PlanPane).show_prompt(confirmation)
        self.show_stage(Stage.PLAN)

    def confirm(self, word: str) -> None:
        wanted = self.confirmation
        if self.stage is not Stage.PLAN or wanted is None or wanted.blocked_reason:
            return
        if wrong := wanted.error_for(word) or self.blocked_reason:
            self.query_one(PlanPane).show_prompt(wanted, wrong)
            return
        self.confirmation = None  # once, however often Enter is pressed
        self.begin()

    @property
    def blocked_reason(self) -> str:
        """Why nothing can be begun at this moment; empty: it can."""
        view = None if self.key is None else view_of(self.context, self.key)
        if view is not None and view.unreachable:
            return "The connection gives no new figures: nothing is started until it does."
        return ""

    def begin(self) -> None:
        """It was confirmed."""

    def run_in_console(
        self, key: QueueKey, verb: str, work: Work, over: Callable[[ActionRun], None]
    ) -> None:
        """Begin it in this console; `over` is called when it has ended."""
        now = self.context.clock.monotonic()
        self.running = self.context.action_runs.start(self.app, key, verb, work, now, over)
        self.show_stage(Stage.RUNNING)

    # The ways.

    def action_command(self) -> None:
        """The same on the command line."""

    def action_scroll(self, way: str) -> None:
        """The plan, while the keys go to the confirmation; or the form, or the result."""
        ids = {Stage.PLAN: ".plan-part", Stage.RESULT: "#result", Stage.FORM: "#form"}
        for part in self.query(ids.get(self.stage, "#none")):
            getattr(part, f"scroll_{way}")(animate=False)

    def check_action(self, action: str, parameters: object) -> bool | None:  # noqa: ARG002
        """Each key where it means something."""
        return self.stage in self.STAGES.get(action, Stage)

    def action_out(self) -> None:
        if self.stage in {Stage.PLANNING, Stage.PLAN} and self.form.fields:
            self.back_to_form()
        else:
            self.discard_pending_results()
            super().action_out()
