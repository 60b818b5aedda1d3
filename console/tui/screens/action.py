"""One verb on one queue: its form, the plan, the confirmation, the progress, the result.

Nothing changes before a plan was confirmed; what runs then goes on whatever is on the screen.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Input

from console.actions.work import Asked, Planned, Site
from console.actions.works import planned as plan_of
from console.actions.works import why_not
from console.catalog import Queue
from console.errors import ConsoleError, RefusedError
from console.tui.actions.command import command
from console.tui.actions.fields import BY_VERB, line_of
from console.tui.board import Key
from console.tui.desk import Desk
from console.tui.dialogs.command import CommandDialog
from console.tui.dialogs.verbs import acting_lines, view_of
from console.tui.jobs import start
from console.tui.running import Running
from console.tui.screens.form import FormScreen
from console.tui.text import plain, said
from console.tui.widgets.action_form import ActionForm
from console.tui.widgets.lines import Lines
from console.tui.widgets.plan_pane import PlanPane
from console.tui.widgets.progress_view import ProgressView

_STEP_SECONDS = 0.25


class Stage(Enum):
    """Where the operator is; the value is the part of the screen that is then in sight."""

    LOOKING = "nothing"
    FORM = "form"
    PLANNING = "planning"
    PLAN = "plan"
    RUNNING = "progress"
    OVER = "result"


_AT: Mapping[str, frozenset[Stage]] = {
    "go": frozenset({Stage.FORM}),
    "command": frozenset({Stage.FORM, Stage.PLAN, Stage.RUNNING, Stage.OVER}),
    "hold": frozenset({Stage.RUNNING}),
    "stop": frozenset({Stage.RUNNING}),
    "leave": frozenset({Stage.RUNNING}),
    "again": frozenset({Stage.OVER}),
    "copy": frozenset({Stage.OVER}),
}


class ActionScreen(FormScreen):
    """The queue is the one whose key was captured when this opened, whatever is refreshed since."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "go", "plan", tooltip="make the plan; that changes nothing"),
        Binding("p", "hold", "pause / go on", tooltip="pause after this batch, or go on"),
        Binding("s", "stop", "stop", tooltip="stop after this batch; the rest is untouched"),
        Binding("b", "leave", "background", tooltip="leave it running in the background"),
        Binding("a", "again", "plan again", tooltip="plan it anew, for what is left"),
        Binding("y", "copy", "copy", show=False, tooltip="copy the result"),
        Binding("o", "command", "command line", show=False, tooltip="the command line's twin"),
        Binding("ctrl+o", "command", "command line", tooltip="the command line's twin, copied"),
        Binding("up", "scroll('up')", "up", show=False),
        Binding("down", "scroll('down')", "down", show=False),
        Binding("pageup", "scroll('page_up')", "page up", show=False),
        Binding("pagedown", "scroll('page_down')", "page down", show=False),
    ]

    def __init__(  # what a form begins with, or an action that runs already
        self,
        desk: Desk,
        key: Key,
        verb: str,
        words: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        running: Running | None = None,
    ) -> None:
        """`options` are the form's other fields, by the command line's names."""
        super().__init__(desk)
        self._key = key
        self._form = BY_VERB[verb]
        self._said = {n.replace("_", "-"): text for n, text in (options or {}).items() if text}
        if words:
            self._said["filter"] = line_of(tuple(words))
        self._queue: Queue | None = None
        self.stage = Stage.LOOKING
        self.planned: Planned | None = None
        self.running = running
        self._counted = 0

    def body(self) -> ComposeResult:
        """One part for each stage; one of them is in sight."""
        yield Lines(id="action-head")
        yield Lines(id="nothing")
        yield ActionForm(id="form")
        yield Lines(id="planning")
        yield PlanPane(id="plan")
        yield ProgressView(id="progress")
        with VerticalScroll(id="result"):
            yield Lines(id="result-words")
        yield Lines(id="problem")

    def on_mount(self) -> None:
        """Look the queue up, or follow what runs."""
        self._say()
        if self.running is not None:
            planned = self.running.planned
            self.planned = planned if isinstance(planned, Planned) else None
            self._turn(Stage.RUNNING)
        else:
            self._turn(Stage.LOOKING)
            self.query_one("#nothing", Lines).say(Text("Looking the queue up ..."))
            self._look_up()
        super().on_mount()
        self.set_interval(_STEP_SECONDS, self.follow)

    # What is in sight.

    def _turn(self, stage: Stage) -> None:
        self.stage = stage
        for one in Stage:
            self.query_one(f"#{one.value}").display = one is stage
        if stage is Stage.OVER:
            self.query_one("#result").focus()
        elif stage not in {Stage.FORM, Stage.PLAN}:
            self.set_focus(None)
        self.refresh_bindings()
        self.draw()

    def _say(self, error: ConsoleError | None = None) -> None:
        """What went wrong: what, why, what next. None: nothing did."""
        problem = self.query_one("#problem", Lines)
        problem.display = error is not None
        problem.say(Text("" if error is None else said(error)))

    def draw_body(self, now: float, *, paused: bool) -> None:
        """Who else is at the queue, and how far this is."""
        del paused
        head = Text(f"{self._form.verb} {plain(self._key[1])}.{plain(self._key[2])}", "bold")
        head.append(f" on {plain(self._key[0])}", "not bold")
        if self.stage in {Stage.FORM, Stage.PLANNING, Stage.PLAN}:
            for line in acting_lines(view_of(self.desk, self._key)):
                head.append(f"\n{line}", "bold")
        self.query_one("#action-head", Lines).say(head)
        if self.running is not None and self.stage is Stage.RUNNING:
            self.query_one(ProgressView).draw(self.running, now)

    def follow(self) -> None:
        """Count along while a plan is made; see how far it is, and when it has ended."""
        if self.stage is Stage.PLANNING:
            counted = f", {self._counted:,} counted" if self._counted else ""
            words = f"Making the plan{counted} ... Escape: back to the form."
            self.query_one("#planning", Lines).say(Text(words))
        if self.running is None or self.stage is not Stage.RUNNING or not self.is_seen:
            return
        self.query_one(ProgressView).draw(self.running, self.desk.clock.monotonic())
        if not self.running.runs:
            self._show_end(self.running)

    @property
    def followed(self) -> int:
        """The number of the action that this screen shows itself."""
        return 0 if self.running is None else self.running.number

    # The form.

    def _look_up(self) -> None:
        place = self.desk.place(self._key)
        if place is None:
            why = self.desk.nothing_behind
            self._end_looking(RefusedError(why))
            return
        _, schema, name = self._key
        start(self, lambda: place.find(schema, name), self.show_form, self._end_looking)

    def _end_looking(self, error: ConsoleError) -> None:
        self.query_one("#nothing", Lines).say(Text("Nothing was changed."))
        self._say(error)

    def show_form(self, queue: Queue) -> None:
        """What can be said of this verb on such a queue; where that is nothing, its plan."""
        self._queue = queue
        why = why_not(queue, self._form.verb)
        if why:
            what = f"{self._form.verb} is not for the queue {queue.name!r}."
            self._end_looking(RefusedError(what, why=f"{why[:1].upper()}{why[1:]}."))
            return
        fields = self._form.fields_for(queue)
        if fields:
            self._fields.offer(fields, self._said)
            self.call_after_refresh(self._enter_form)
        else:
            self._plan()

    def _enter_form(self) -> None:
        """In sight only with the keys in it: what is typed at once goes there."""
        self._turn(Stage.FORM)
        self._fields.enter()

    @property
    def _fields(self) -> ActionForm:
        return self.query_one(ActionForm)

    @property
    def said(self) -> dict[str, str]:
        """What stands in the fields now."""
        return self._fields.said

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter in a field plans; in the confirmation it begins."""
        if event.input.id == "confirm":
            self._confirm(event.value)
        else:
            self.action_go()

    def action_go(self) -> None:
        """Plan what the form says, if it can be read."""
        if self.stage is Stage.FORM and self._fields.check():
            self._plan()

    # The plan.

    def _plan(self) -> None:
        place, queue = self.desk.place(self._key), self._queue
        if place is None or queue is None:
            return
        try:
            asked = self._form.asked(self.said, self.desk.filters(self._key))
        except ConsoleError as error:
            self._say(error)
            return
        self._say()
        self.ask_anew()
        self._counted = 0
        site = Site(place.database, queue, place.rights, place.thresholds_of, place.masks)

        def counted(so_far: int) -> None:
            self._counted = so_far

        start(
            self,
            lambda: _planned(site, asked, counted),
            self.still_asked(self.show_plan),
            self.still_asked(self._fail),
        )
        self._turn(Stage.PLANNING)

    def _fail(self, error: ConsoleError) -> None:
        """Back to the form, with the reason."""
        self._say(error)
        self._back()

    def _back(self) -> None:
        """To the form; out of it where it has no fields."""
        self.ask_anew()
        self.planned = None
        if self._fields.rows:
            self._enter_form()
        else:
            self._turn(Stage.LOOKING)
            self.query_one("#nothing", Lines).say(Text("Nothing was changed."))

    def show_plan(self, planned: Planned) -> None:
        """To be read, then confirmed or not."""
        place = self.desk.place(self._key)
        production = place is not None and place.production
        self.planned = replace(planned, by_name=planned.by_name or production)
        pane = self.query_one(PlanPane)
        pane.draw(self.planned, () if place is None else place.masks)
        self._turn(Stage.PLAN)
        pane.enter()

    def _confirm(self, word: str) -> None:
        planned = self.planned
        if self.stage is not Stage.PLAN or planned is None or not planned.needed:
            return
        pane = self.query_one(PlanPane)
        if not planned.confirmed_by(word):
            pane.ask(planned, f"{word!r} is not it." if word else "Nothing is typed.")
            return
        view = view_of(self.desk, self._key)
        if view is not None and view.unreachable:
            why = "The connection gives no new figures: nothing is begun until it does."
            pane.ask(planned, why)
            return
        try:
            planned.require_possible()
        except ConsoleError as error:
            self._say(error)
            return
        now = self.desk.clock.monotonic()
        runs, over = self.desk.running, _over(self.app, self.desk)
        self.running = runs.start(self.app, self._key, self._form.verb, planned, now, over)
        self._turn(Stage.RUNNING)

    # What runs.

    def action_hold(self) -> None:
        """Pause after the batch that runs, or go on."""
        if self.running is not None:
            control = self.running.control
            if control.paused:
                control.resume()
            else:
                control.pause()
            self.follow()

    def action_stop(self) -> None:
        """After the batch that runs."""
        if self.running is not None:
            self.running.control.stop()
            self.follow()

    def action_leave(self) -> None:
        """It goes on by itself: the line at the bottom of every screen tells."""
        self._close()

    def _show_end(self, running: Running) -> None:
        running.seen = True
        text = Text()
        if running.error is not None:
            lines = str(running.error).splitlines()
            text.append(f"{running.name}: FAILED\n\n", "bold")
            if running.told is not None and running.told.ledger is not None:
                text.append(f"{running.told.ledger.out:,} were done and counted before that.\n\n")
        else:
            lines = [] if running.ended is None else list(running.ended.lines)
        for line in lines:
            text.append(f"{plain(line)}\n")
        text.append("\na: plan it anew, for what is left   Escape: out", "dim")
        self.query_one("#result-words", Lines).say(text)
        self._turn(Stage.OVER)

    def action_again(self) -> None:
        """The same form, for a new plan: what is done already is no longer in it."""
        self.running = None
        if self._queue is None:
            self._turn(Stage.LOOKING)
            self._look_up()
        elif self._fields.rows:
            self._enter_form()
        else:
            self._plan()

    def action_copy(self) -> None:
        """The result, for the ticket."""
        self.app.copy_to_clipboard(self.query_one("#result-words", Lines).said)
        self.notify("copied", timeout=2)

    # The ways.

    def action_command(self) -> None:
        """The same on the command line."""
        place = self.desk.place(self._key)
        if place is None:
            return
        _, schema, name = self._key
        if self._queue is not None and not self._fields.check():
            return
        yes = None
        if self.planned is not None and self.stage is not Stage.FORM:
            yes = name if self.planned.by_name else ""
        line = command(self._form, place.words, schema, name, self.said or self._said, yes)
        plans = self._form.confirmed and yes is None
        words = "It prints the plan and changes nothing: --yes is not in it yet." if plans else ""
        self.app.push_screen(CommandDialog(line, words))

    def action_scroll(self, way: str) -> None:
        """The plan, while the keys go to the confirmation; or the form, or the result."""
        ids = {Stage.PLAN: "#plan-scroll", Stage.OVER: "#result", Stage.FORM: "#form"}
        if self.stage in ids:
            getattr(self.query_one(ids[self.stage]), f"scroll_{way}")(animate=False)

    def check_action(
        self,
        action: str,
        parameters: tuple[object, ...],  # noqa: ARG002  # Textual's signature
    ) -> bool | None:
        """Each key where it means something."""
        return self.stage in _AT.get(action, frozenset(Stage))

    def action_out(self) -> None:
        """One level out: from a plan to its form; of what runs, which goes on."""
        if self.stage in {Stage.PLANNING, Stage.PLAN} and self._fields.rows:
            self._say()
            self._back()
        elif self.stage is Stage.RUNNING:
            self.action_leave()
        else:
            self._close()

    def _close(self) -> None:
        self.ask_anew()
        if len(self.app.screen_stack) > 1:
            self.app.pop_screen()


def _planned(site: Site, asked: Asked, counted: Callable[[int], None]) -> Planned:
    if asked.verb == "doctor":
        from console.doctor import fixing  # noqa: PLC0415  # its families are loaded when wanted

        return fixing.planned(site)
    return plan_of(site, asked, counted)


def _over(app: App[None], desk: Desk) -> Callable[[Running], None]:
    """After an action the sampler and the doctor look again, whoever is on the screen."""

    def over(running: Running) -> None:
        for screen in app.screen_stack:
            if isinstance(screen, ActionScreen):
                screen.follow()
        desk.look_now()
        if running.planned.verb not in {"uninstall", "forget"}:
            desk.ways.examine(running.key)

    return over
