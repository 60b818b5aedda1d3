"""Compares how fast each design is on a server."""

import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import Screen
from textual.widgets import Input

from console import formats
from console.errors import ConsoleError, RefusedError
from console.features.bench.report import (
    as_json,
    comparison_lines,
    describe_load,
    svg,
    verdict_lines,
    wait_lines,
)
from console.features.bench.results import comparisons
from console.features.bench.screens.run import (
    COLUMNS,
    DROP_ORDER,
    BenchRun,
    BenchWork,
    label,
    lines_of,
    ms,
    plan_bench,
)
from console.features.bench.verbs import BENCH, bench_request
from console.tui.context import Context
from console.tui.dialogs.dialog import show_equivalent_command
from console.tui.jobs import ActionRun, start_job
from console.tui.open_connection import why_not_allowed
from console.tui.payloads import save, suggested_path
from console.tui.screens.form import FormScreen, Stage
from console.tui.series import ChartSpan
from console.tui.text import (
    Paragraph,
    TextView,
    open_input,
    plain,
    sentence,
    style_of,
    whole_seconds,
)
from console.tui.widgets.charts import RATES, Chart, ChartTime, Curve, Drawing
from console.tui.widgets.keyed_table import KeyedTable
from console.tui.widgets.plan_pane import PlanPane
from console.verbs.verb import values_from_texts, words_from_texts

_LEAST_SPAN_SECONDS = 20.0
_ROOM_FOR_ALL = 36
"""Lines of a screen on which the chart stays beside the comparison."""


class BenchScreen(FormScreen):
    """Shows the progress of the processes that make the load, then the comparison."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s,t", "stop", "stop", tooltip="stop it; its scratch queues are dropped"),
        Binding("w", "save", "write", tooltip="write the report to a file: .svg or .json"),
        Binding("n", "again", "again", tooltip="back to the form"),
    ]
    STAGES: ClassVar[Mapping[str, frozenset[Stage]]] = {
        **FormScreen.STAGES,
        "stop": frozenset({Stage.RUNNING}),
        "save": frozenset({Stage.RESULT}),
        "again": frozenset({Stage.RESULT}),
    }
    PARTS: ClassVar[Mapping[Stage, tuple[str, ...]]] = {Stage.RESULT: ("progress",)}

    @classmethod
    def of_run(cls, context: Context, running: ActionRun) -> Screen[None]:
        return cls(context, running.key[0], running=running)

    def __init__(
        self,
        context: Context,
        connection: str,
        options: Mapping[str, str] | None = None,
        running: ActionRun | None = None,
    ) -> None:
        super().__init__(context, running=running)
        self._connection = connection
        self._conn = context.connections.get(connection)
        self._texts: dict[str, str] = dict(options or {})
        self._bench_run: BenchRun | None = None
        if running is not None and isinstance(running.plan, BenchWork):
            self._bench_run = running.plan.bench_run
        self._planned: BenchWork | None = None
        self.table = KeyedTable(COLUMNS, DROP_ORDER, id="bench-table")

    def compose_progress(self) -> ComposeResult:
        with Vertical(id="progress"):
            yield Chart()
            yield self.table
            with VerticalScroll(id="bench-report"):
                yield Paragraph(id="bench-text")
        yield Input(id="bench-file", compact=True)

    def on_mount(self) -> None:
        self.query_one("#bench-file").display = False

    def show_form(self) -> None:
        if why := why_not_allowed(self._conn, BENCH.right({})):
            error = RefusedError("No bench can be started here.", why=sentence(why))
            self.close_form("Nothing was started.", error)
        else:
            self.show_fields(BENCH.parameters, self._texts)

    def focus_stage(self) -> None:
        """The arrow keys scroll the texts at the end, for which a small screen has no room."""
        super().focus_stage()
        if self.stage in {Stage.RUNNING, Stage.RESULT}:
            self.set_focus(self.table if self.runs else self.query_one("#bench-report"))

    def show_outcome(self, run: ActionRun) -> None:
        self.show_problem(run.error)
        super().show_outcome(run)

    def draw_body(self, now: float, *, paused: bool) -> None:
        self._draw_head()
        bench_run = self._bench_run
        if self._shows_run and bench_run is not None and not (paused and self.runs):
            self._draw_chart(bench_run, now)
            self.table.show(lines_of(bench_run))
            self._draw_report(bench_run)

    def _draw_head(self) -> None:
        head = self.query_one("#action-head", TextView)
        line = self.paused_head(head, "Bench")
        line.append(f" on {plain(self._connection)}", style_of(head, "quiet"))
        if self._shows_run and self._bench_run is not None:
            state, style = self._state(self._bench_run)
            line.append(f"   {state}", style_of(head, style))
        line.truncate(max(20, self.app.size.width - 2), overflow="ellipsis")
        head.set_text(line)

    @property
    def _shows_run(self) -> bool:
        return self.stage in {Stage.RUNNING, Stage.RESULT}

    def _state(self, bench_run: BenchRun) -> tuple[str, str]:
        running = self.running
        if running is not None and running.result is not None:
            lines, good = running.result.lines, bench_run.complete
            ok = good and all(result.ok for result in bench_run.results)
            return " ".join(lines), "good" if ok else "warning" if not good else "critical"
        if running is None or not running.active:
            return "it was interrupted; its queues are dropped", "critical"
        if running.control.stopped:
            return "stopping; its queues are dropped ...", "warning"
        next_round, left = bench_run.next_round, bench_run.seconds_left()
        if next_round is None or left is None:
            return "ending ..." if bench_run.done else "starting ...", "strong"
        return (
            f"{label(next_round[0])}, round {next_round[1]} of {bench_run.load.rounds}; "
            f"{bench_run.done} of {bench_run.total} rounds, about {whole_seconds(left)} left",
            "strong",
        )

    def _draw_chart(self, bench_run: BenchRun, now: float) -> None:
        chart = self.query_one(Chart)
        height = self.app.size.height
        chart.display = self.runs or height >= _ROOM_FOR_ALL
        chart.styles.height = max(6, height // 3)
        panel = self.query_one("#bench-report")
        panel.styles.height = "1fr" if bench_run.finished else "auto"
        most = max(2, height // 2 - 4) if bench_run.finished else 1000
        self.table.styles.height = (
            min(most, len(bench_run.candidates) + 1) if bench_run.finished else "1fr"
        )
        if not chart.display:
            return
        end = now if bench_run.ended_at is None else bench_run.ended_at
        runs = bench_run.points
        began = runs[0][0][0] if runs and runs[0] else end
        span = ChartSpan("", max(_LEAST_SPAN_SECONDS, end - began + 1), 1.0)
        live = bench_run.live
        title: list[tuple[str, str]] = [("messages/s", "strong")]
        if live is not None:
            second = f"second {live.second + 1}" if live.second >= 0 else "warming up"
            title.append((f" {live.messages_per_second:,.0f}", ""))
            title.append((f"   {label(live.candidate)}, {second}", "quiet"))
            if (took := live.pop_ms) is not None:
                cuts = f"p50 {ms(took.p50)}  p95 {ms(took.p95)}  p99 {ms(took.p99)} ms"
                title.append((f"   pop {cuts}", "quiet"))
        utc = self.context.clock.utc() - timedelta(seconds=now - end)
        moment = ChartTime(end, utc, self.context.zone)
        chart.show(Drawing(tuple(title), (Curve(runs, "trend"),), RATES, span, moment), "")

    def _draw_report(self, bench_run: BenchRun) -> None:
        panel = self.query_one("#bench-text", Paragraph)
        text = Text()
        results = bench_run.results
        if bench_run.finished and results:
            for line in verdict_lines(results):
                bad = line.startswith(("NOT OK", "in doubt", "error"))
                text.append(f"{line}\n", style_of(panel, "critical" if bad else "good"))
            text.append("\n")
            for line in comparison_lines(comparisons(results)):
                text.append(f"{line}\n")
            for line in wait_lines(results):
                text.append(f"{line}\n", style_of(panel, "quiet"))
        for line in bench_run.messages:
            text.append(f"{' '.join(map(plain, line.splitlines()))}\n", style_of(panel, "warning"))
        text.append(f"{describe_load(bench_run.load)}\n", style_of(panel, "quiet"))
        if bench_run.environment is not None and (
            bench_run.finished or self.app.size.height >= _ROOM_FOR_ALL
        ):
            text.append(
                "\n".join(map(plain, bench_run.environment.lines)) + "\n", style_of(panel, "quiet")
            )
        if bench_run.environment is not None and bench_run.environment.durable is False:
            unsafe = "This server does not write durably: real figures are lower.\n"
            text.append(unsafe, style_of(panel, "warning"))
        writes = "w writes the report. " if results else ""
        keys = f"{writes}n: the form again." if bench_run.finished else _WHILE_IT_RUNS
        text.append(keys, style_of(panel, "quiet"))
        panel.set_text(text)

    def check_action(self, action: str, parameters: object) -> bool | None:
        if action == "save" and not (self._bench_run and self._bench_run.results):
            return False
        return super().check_action(action, parameters)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input.id == "bench-file":
            self._write(event.value.strip())

    def plan(self) -> None:
        conn = self._conn
        if conn is None:
            return
        self._texts = self.form.values
        try:
            request, load = bench_request(values_from_texts(BENCH, self._texts))
        except ConsoleError as error:
            self.show_problem(error)
            return
        bench_run = BenchRun(request, load, self.context.clock.monotonic)
        self.make_plan(
            lambda: plan_bench(conn, bench_run),
            self._show_plan,
            "Checking which designs can take part",
        )

    def _show_plan(self, planned: BenchWork) -> None:
        self._planned = planned
        self.query_one(PlanPane).draw(planned.lines)
        self.ask_to_confirm(planned.confirmation)

    def begin(self) -> None:
        planned = self._planned
        if planned is None or self.runs:
            return
        self._bench_run = planned.bench_run
        key = (self._connection, "", self._connection)
        self.run_in_console(key, "bench", planned, lambda _: self.update_progress())

    # The end.

    def action_stop(self) -> None:
        """At once: the current round does not count, and its queue is dropped."""
        if self.running is not None and self.runs:
            self.running.control.stop()
            self.draw()

    def action_again(self) -> None:
        self.running = self._bench_run = None
        self.show_problem()
        if self.form.fields:
            self.show_stage(Stage.FORM)
        else:
            self.show_fields(BENCH.parameters, self._texts)

    def action_command(self) -> None:
        texts = self.form.values or self._texts
        show_equivalent_command(self, self._conn, "bench", None, words_from_texts(BENCH, texts))

    def action_save(self) -> None:
        stamp = f"{self.context.clock.utc():%Y%m%d-%H%M%S}"
        path = suggested_path("bench", f"{self._connection}-{stamp}", "svg")
        open_input(self.query_one("#bench-file", Input), str(path))

    def _write(self, name: str) -> None:
        self._close_line()
        bench_run = self._bench_run
        if not name or bench_run is None or bench_run.environment is None:
            return
        path = Path(name)
        start_job(
            self,
            lambda: save(path, report(bench_run, path.suffix)),
            self._written(path),
            self.show_problem,
        )

    def _written(self, path: Path) -> Callable[[int], None]:
        return lambda size: self.notify(
            f"{formats.count(size)} bytes are in {plain(str(path))}", markup=False
        )

    def _close_line(self) -> None:
        self.query_one("#bench-file").display = False
        self.focus_stage()

    def action_out(self) -> None:
        """Close the file line, or stop the run, or leave the screen."""
        if self.query_one("#bench-file").display:
            self._close_line()
        elif self.running is not None and self.runs and not self.running.control.stopped:
            self.action_stop()
        else:
            super().action_out()


_WHILE_IT_RUNS = (
    "s or Escape stops it, and its queues are dropped. It goes on while you use other screens (:)."
)


def report(bench_run: BenchRun, suffix: str) -> str:
    """The object of `bench --json`, or a picture."""
    environment, results = bench_run.environment, bench_run.results
    if environment is None:
        return ""
    if suffix.lower() == ".json":
        return json.dumps(as_json(environment, bench_run.load, results), ensure_ascii=False) + "\n"
    load = describe_load(bench_run.load)
    return svg(environment, load, results, comparisons(results))
