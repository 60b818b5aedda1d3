"""The screens of verbs that have a plan, which is run in this console."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen

from console.catalog import Queue, look_up
from console.engines import Product
from console.errors import ConsoleError, RefusedError
from console.filters import line_of
from console.plan import Plan
from console.tui.context import Context
from console.tui.dialogs.dialog import CommandDialog
from console.tui.findings import QueueKey
from console.tui.jobs import ActionRun, start_job
from console.tui.open_connection import OpenConnection
from console.tui.screens.form import FormScreen, Stage
from console.tui.text import TextView, plain
from console.tui.widgets.plan_pane import PlanPane, ProgressView
from console.verbs import get_verb
from console.verbs.command import Command
from console.verbs.verb import Target, Verb, equivalent_command, values_from_texts


class PlannedScreen(FormScreen):
    """`key` is known once there is a plan."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "p", "pause_run", "pause / continue", tooltip="pause after this batch, or continue"
        ),
        Binding("s", "stop", "stop", tooltip="stop after this batch; the rest stays untouched"),
        Binding("b", "leave", "background", tooltip="leave it running in the background"),
        Binding("a", "again", "plan again", tooltip="plan again, for what is left"),
        Binding("y", "copy", "copy the result", show=False),
    ]
    STAGES: ClassVar[Mapping[str, frozenset[Stage]]] = {
        **FormScreen.STAGES,
        "pause_run": frozenset({Stage.RUNNING}),
        "stop": frozenset({Stage.RUNNING}),
        "leave": frozenset({Stage.RUNNING}),
        "again": frozenset({Stage.RESULT}),
        "copy": frozenset({Stage.RESULT}),
    }
    AGAIN_HINT: ClassVar[str] = "a: plan again, for what is left   "
    verb: Command
    planned: Plan | None = None

    def compose_progress(self) -> ComposeResult:
        yield ProgressView(id="progress")
        with VerticalScroll(id="result"):
            yield TextView(id="result-text")

    def show_first_stage(self) -> None:
        if self.running is not None:
            self.planned = self.running.plan
        super().show_first_stage()

    def focus_stage(self) -> None:
        super().focus_stage()
        if self.stage is Stage.RESULT:
            self.query_one("#result").focus()

    def draw_body(self, now: float, *, paused: bool) -> None:
        del paused
        if self.running is not None and self.stage is Stage.RUNNING:
            self.query_one(ProgressView).draw(self.running, now)

    # The plan.

    def back_to_form(self) -> None:
        self.planned = None
        super().back_to_form()

    def present_plan(
        self,
        planned: Plan,
        conn: OpenConnection | None,
        *,
        production: bool,
        product: Product | None = None,
    ) -> None:
        """`product`: for whose client the SQL is, if it is a complete script."""
        self.planned = planned = replace(planned, requires_name=planned.requires_name or production)
        masks = () if conn is None else conn.masks
        lines = planned.lines_beside_sample or planned.lines
        self.query_one(PlanPane).draw(lines, planned.sample, planned.sql, masks, product)
        closed = "" if planned.needed else "There is nothing to do."
        if planned.obstacles:
            closed = "It cannot be done as planned."
        self.ask_to_confirm(replace(planned.confirmation, blocked_reason=closed))

    def begin(self) -> None:
        if self.planned is not None and self.key is not None:
            on_finished = _on_finished(self.app, self.context, self.verb)
            self.run_in_console(self.key, self.verb.name, self.planned, on_finished)

    def action_pause_run(self) -> None:
        if self.running is not None:
            control = self.running.control
            if control.paused:
                control.resume()
            else:
                control.pause()
            self.update_progress()

    def action_stop(self) -> None:
        if self.running is not None:
            self.running.control.stop()
            self.update_progress()

    def action_leave(self) -> None:
        self.action_out()

    def show_outcome(self, running: ActionRun) -> None:
        text = Text()
        if running.error is not None:
            lines = str(running.error).splitlines()
            text.append(f"{running.name}: FAILED\n\n", "bold")
            if running.progress is not None and running.progress.ledger is not None:
                text.append(
                    f"{running.progress.ledger.out:,} were done and counted before that.\n\n"
                )
        else:
            lines = [] if running.result is None else list(running.result.lines)
        for line in lines:
            text.append(f"{plain(line)}\n")
        text.append(f"\n{'' if self._queue_removed else self.AGAIN_HINT}Escape: back", "dim")
        self.query_one("#result-text", TextView).set_text(text)
        self.show_stage(Stage.RESULT)

    def action_again(self) -> None:
        self.running = None
        if self.form.fields:
            self.show_stage(Stage.FORM)
        else:
            self.show_form()

    @property
    def _queue_removed(self) -> bool:
        """Whether the run left no queue to plan for."""
        result = None if self.running is None else self.running.result
        return result is not None and result.queue_removed

    def action_copy(self) -> None:
        self.app.copy_to_clipboard(self.query_one("#result-text", TextView).plain_text)
        self.notify("copied", timeout=2)

    def check_action(self, action: str, parameters: object) -> bool | None:
        if action == "again" and self._queue_removed:
            return False
        return super().check_action(action, parameters)


def _on_finished(app: App[None], context: Context, verb: Command) -> Callable[[ActionRun], None]:
    """After an action the sampler and the doctor read again, whatever screen is open."""

    def on_finished(running: ActionRun) -> None:
        for screen in app.screen_stack:
            if isinstance(screen, PlannedScreen):
                screen.update_progress()
        context.sample_now()
        if verb.examined_after:
            context.navigator.examine(running.key)

    return on_finished


class ActionScreen(PlannedScreen):
    """A verb for one queue; its fields depend on the queue's design."""

    verb: Verb

    @classmethod
    def of_run(cls, context: Context, running: ActionRun) -> Screen[None]:
        return cls(context, running.key, running.verb, running=running)

    def __init__(
        self,
        context: Context,
        key: QueueKey,
        verb: str,
        words: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        running: ActionRun | None = None,
        *,
        queue: Queue | None = None,
        at_once: bool = False,
    ) -> None:
        """`words`: filters; `options`: the other fields, by the command line's names; `queue`: that
        of `key`, if it was looked up already; `at_once`: the plan is made without a wait for the
        form, to which Escape goes back."""
        super().__init__(context, key, running)
        self._key = key
        self.verb = get_verb(verb)
        self._initial = {n.replace("_", "-"): text for n, text in (options or {}).items() if text}
        if any(parameter.name == "id" and parameter.multiple for parameter in self.verb.parameters):
            # The verb takes single messages, no filters.
            ids = [word.removeprefix("id=") for word in words if word.startswith("id=")]
            self._initial |= {"id": line_of(ids)} if ids else {}
        elif words:
            self._initial["filter"] = line_of(words)
        self._queue = queue
        self._at_once = at_once
        self._counted = 0

    def draw_body(self, now: float, *, paused: bool) -> None:
        self.query_one("#action-head", TextView).set_text(self.head(self.verb.name))
        super().draw_body(now, paused=paused)

    def update_progress(self) -> None:
        if self.stage is Stage.PLANNING:
            counted = f", {self._counted:,} counted" if self._counted else ""
            words = f"Making the plan{counted} ... Escape: back to the form."
            self.query_one("#planning", TextView).set_text(Text(words))
        super().update_progress()

    def show_form(self) -> None:
        if self._queue is not None:
            self.show_form_for(self._queue)
            return
        conn = self.context.conn(self._key)
        if conn is None:
            self._refuse(RefusedError(self.context.why_no_database))
            return
        self.close_form("Looking up the queue ...")
        _, schema, name = self._key
        find = partial(look_up, conn.database, name, schema, any_design=True)
        start_job(self, find, self.show_form_for, self._refuse)

    def _refuse(self, error: ConsoleError) -> None:
        self.close_form("Nothing was changed.", error)

    def show_form_for(self, queue: Queue) -> None:
        """Show its fields; if it has none, the plan."""
        self._queue = queue
        why = self.verb.unavailable(queue)
        if why:
            what = f"{self.verb.name} is not available for the queue {queue.name!r}."
            self._refuse(RefusedError(what, why=f"{why[:1].upper()}{why[1:]}."))
        elif fields := self.verb.parameters_for(queue):
            self.show_fields(fields, self._initial)
            if self._at_once:
                self.after_refresh(self.action_go)
        else:
            self.plan()

    # The plan.

    def plan(self) -> None:
        conn, queue = self.context.conn(self._key), self._queue
        if conn is None or queue is None:
            return
        try:
            given = values_from_texts(self.verb, self.form.values)
        except ConsoleError as error:
            self.show_problem(error)
            return
        self._counted = 0

        def counted(so_far: int) -> None:
            self._counted = so_far

        target = Target(
            conn.database,
            queue,
            conn.rights,
            conn.thresholds_of,
            conn.masks,
            self.context.filters(self._key),
            counted,
        )
        work = partial(self.verb.plan, target, given)
        self.make_plan(work, self.show_plan, "Making the plan")

    def show_plan(self, planned: Plan) -> None:
        conn = self.context.conn(self._key)
        self.present_plan(planned, conn, production=conn is not None and conn.production)

    def action_command(self) -> None:
        conn = self.context.conn(self._key)
        if conn is None or (self._queue is not None and not self.form.check()):
            return
        _, schema, name = self._key
        yes = None
        if self.planned is not None and self.stage is not Stage.FORM:
            yes = name if self.planned.requires_name else ""
        texts = self.form.values or self._initial
        line = equivalent_command(self.verb, conn.cli_options, schema, name, texts, yes)
        plans = self.verb.confirmed and yes is None
        words = "Without --yes it prints the plan and changes nothing." if plans else ""
        self.app.push_screen(CommandDialog(line, words))
