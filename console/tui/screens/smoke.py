"""The smoke test of a queue's design: every message of a scratch queue is checked, live."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen

from console import formats
from console.actions import smoke
from console.actions.smoke_live import smoke_live
from console.actions.smoke_result import SmokeProgress, SmokeResult, StoppedError
from console.catalog import Queue
from console.catalog.audit import Outcome, Subject
from console.errors import RefusedError
from console.plan import Control, OnProgress, Plan, Progress, Result
from console.tui.context import Context
from console.tui.dialogs.dialog import show_equivalent_command
from console.tui.findings import QueueKey
from console.tui.jobs import ActionRun
from console.tui.open_connection import OpenConnection, why_not_allowed
from console.tui.screens.form import FormScreen, Stage
from console.tui.text import Paragraph, TextView, describe_error, plain, sparkline, style_of
from console.tui.widgets.field import Field
from console.verbs.queues import SMOKE
from console.verbs.verb import words_from_texts

_HOW = (("beside", "on a scratch queue"), ("live", "through the queue itself (--live)"))
_HELP = {
    "beside": "A scratch queue of the same design and options: 3 producers and 3 consumers, every "
    "message is checked: once, unchanged, in the promised order. The queue itself is not touched; "
    "the scratch queue is dropped at the end.",
    "live": "The queue itself, only if it is drained: each message is pushed and popped in one "
    "transaction, so that no consumer ever sees it.",
}
_SAMPLES = 240


class Trial:
    """One smoke test. Its thread writes this; the screen only reads it."""

    def __init__(self) -> None:
        self.progress: SmokeProgress | None = None
        self.result: SmokeResult | None = None
        self.rates: deque[int] = deque(maxlen=_SAMPLES)
        """Messages per second, for each tenth of a second."""
        self._last = (0.0, 0)

    def take(self, now: SmokeProgress) -> None:
        seconds, popped = self._last
        if now.seconds - seconds >= 0.1:
            self.rates.append(round((now.popped - popped) / (now.seconds - seconds)))
            self._last = (now.seconds, now.popped)
        self.progress = now

    def work(self, conn: OpenConnection, queue: Queue, *, live: bool) -> Plan:
        def run(control: Control, on_progress: OnProgress) -> Result:
            def take(now: SmokeProgress) -> None:
                self.take(now)
                on_progress(Progress(now.popped, now.total, "smoke test"))

            test = smoke_live if live else smoke.smoke_queue
            try:
                self.result = test(conn.database, queue, control=control, on_progress=take)
            except StoppedError as error:
                return Result(Outcome.STOPPED, tuple(str(error).splitlines()))
            ok = self.result.ok
            count = formats.numbered(self.result.messages, "message")
            return Result(
                Outcome.DONE if ok else Outcome.FAILED, (f"{'ok' if ok else 'NOT OK'}: {count}",)
            )

        subject = Subject.of(conn.database, queue, "smoke")
        return SmokeWork(subject, queue, (), requires_name=False, run=run, trial=self)


@dataclass(frozen=True)
class SmokeWork(Plan):
    trial: Trial = field(default_factory=Trial)


class SmokeScreen(FormScreen):
    """The form stays visible above the result, for another test."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "go", "begin", tooltip="start the test"),
        Binding("s,t", "stop", "stop", tooltip="stop it; its scratch queue is dropped"),
    ]
    STAGES: ClassVar[Mapping[str, frozenset[Stage]]] = {
        **FormScreen.STAGES,
        "go": frozenset({Stage.FORM, Stage.RESULT}),
        "stop": frozenset({Stage.RUNNING}),
    }
    PARTS: ClassVar[Mapping[Stage, tuple[str, ...]]] = {
        Stage.FORM: ("form", "progress"),
        Stage.RESULT: ("form", "progress"),
    }
    HINT = ""

    @classmethod
    def of_run(cls, context: Context, running: ActionRun) -> Screen[None]:
        return cls(context, running.key, running=running)

    def __init__(
        self,
        context: Context,
        key: QueueKey,
        options: Mapping[str, str] | None = None,
        running: ActionRun | None = None,
    ) -> None:
        super().__init__(context, key, running)
        self._how = "live" if (options or {}).get("live") else "beside"
        self._key = key
        self._conn = context.conn(key)
        self._trial: Trial | None = None
        if running is not None and isinstance(running.plan, SmokeWork):
            self._trial = running.plan.trial

    def compose_fields(self) -> ComposeResult:
        yield Field("how", "test", choices=_HOW, value=self._how, help=_HELP[self._how])

    def compose_progress(self) -> ComposeResult:
        with VerticalScroll(id="progress"):
            yield Paragraph(id="smoke-report")

    def show_form(self) -> None:
        self.show_stage(Stage.FORM)

    def focus_stage(self) -> None:
        super().focus_stage()
        if self.stage is Stage.RESULT:
            self.form.focus_first()

    def draw_body(self, now: float, *, paused: bool) -> None:
        del now, paused
        head = self.head("Smoke test of")
        if why := self._why_not:
            view = self.query_one("#action-head", TextView)
            head.append(f"   {why}", style_of(view, "warning"))
        self.query_one("#action-head", TextView).set_text(head)
        how = self.form["how"]
        how.set_help("" if self._trial is not None else _HELP[how.value])
        self._draw_report()

    @property
    def _why_not(self) -> str:
        return why_not_allowed(self._conn, SMOKE.right({}))

    def _draw_report(self) -> None:
        view = self.query_one("#smoke-report", Paragraph)
        text = Text()
        trial, running, error = self._trial, self.running, ""
        if running is not None and running.error is not None:
            error = describe_error(running.error)
        if error:
            text.append(f"✖ {error}\n\n", style_of(view, "critical"))
        elif trial is not None and trial.result is not None:
            _append_result(text, view, trial.result)
        elif running is not None and running.result is not None:
            text.append("\n".join(running.result.lines) + "\n\n", style_of(view, "warning"))
        elif self.runs:
            state = "Stopping" if running is not None and running.control.stopped else "Running"
            text.append(f"{state} ...\n\n", style_of(view, "strong"))
        if trial is not None and trial.progress is not None:
            _append_progress(text, view, trial, max(10, self.app.size.width - 24))
        if self.runs:
            text.append("\ns stops it. Escape leaves it running.", style_of(view, "quiet"))
        elif not self._why_not:
            effect = "again" if trial is not None else "begins"
            text.append(f"\nEnter {effect}.", style_of(view, "quiet"))
        view.set_text(text)

    def on_field_changed(self, event: Field.Changed) -> None:
        event.field.set_value(event.field.value, _HOW, _HELP[event.field.value])

    def action_go(self) -> None:
        if self.stage in {Stage.FORM, Stage.RESULT}:
            self.plan()

    def plan(self) -> None:
        """Start at once: neither a scratch queue nor a drained one can lose anything."""
        conn = self._conn
        self._trial, self.running = None, None
        if conn is None or self._why_not:
            self.show_problem(
                RefusedError("The smoke test was not started.", why=f"{self._why_not}.")
            )
            return
        live = self.form["how"].value == "live"

        def begin(queue: Queue) -> None:
            self._trial = trial = Trial()
            work = trial.work(conn, queue, live=live)
            self.run_in_console(self._key, "smoke", work, lambda _: self.update_progress())

        self.make_plan(lambda: conn.find(*self._key[1:]), begin, "Looking up the queue")

    def action_stop(self) -> None:
        if self.running is not None:
            self.running.control.stop()
            self._draw_report()

    def action_command(self) -> None:
        texts = {"live": "yes"} if self.form["how"].value == "live" else {}
        show_equivalent_command(
            self, self._conn, SMOKE.name, self.key, words_from_texts(SMOKE, texts)
        )


def _append_progress(text: Text, view: TextView, trial: Trial, room: int) -> None:
    now = trial.progress
    if now is None:
        return
    cells = min(40, room)
    full = min(cells, round(cells * now.popped / max(1, now.total)))
    text.append(f"  {'messages':<12}")
    text.append("█" * full, style_of(view, "good"))
    text.append("░" * (cells - full), style_of(view, "quiet"))
    text.append(f"  {now.popped:,} of {now.total:,}\n")
    rates = list(trial.rates)
    through = now.popped / now.seconds if now.seconds else 0.0
    text.append(f"  {'throughput':<12}{formats.rate(through)} messages/s")
    text.append(f"  in {formats.duration(now.seconds)}\n")
    if rates:
        text.append(f"  {'':<12}")
        text.append(f"{sparkline(rates[-cells:])}\n", style_of(view, "trend"))
    for name, latency in (("push", now.push_ms), ("pop", now.pop_ms)):
        if latency.p99:
            figures = f"p50 {latency.p50:.2f}   p95 {latency.p95:.2f}   p99 {latency.p99:.2f} ms"
            text.append(f"  {name:<12}{figures}\n")


def _append_result(text: Text, view: TextView, result: SmokeResult) -> None:
    good = result.ok
    each = f", each to {', '.join(result.subscribers)}" if result.subscribers else ""
    text.append("ok" if good else "✖ NOT OK", style_of(view, "good" if good else "critical"))
    text.append(
        f"   {result.design}, {formats.numbered(result.messages, 'message')}{each}, order "
        f"{result.order}\n\n"
    )
    figures = {
        "lost": result.lost,
        "doubled": result.doubled,
        "damaged": result.damaged,
        "out of order": result.out_of_order,
        "claims lost": result.unfinished,
    }
    for name, count in figures.items():
        text.append(f"  {name:<14}")
        text.append(f"{count:,}\n", style_of(view, "critical" if count else "good"))
    for error in result.errors:
        text.append(f"  ✖ {' '.join(map(plain, error.splitlines()))}\n", style_of(view, "critical"))
    text.append("\n")
    if not good:
        text.append(
            "The design did not keep its promise here. Do not use it until you know why.\n\n"
        )
