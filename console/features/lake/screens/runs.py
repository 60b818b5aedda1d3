"""The runs of the pipeline on this machine."""

import json
from typing import Any, ClassVar

from textual.binding import Binding, BindingType

from console import formats
from console.errors import ConsoleError
from console.features.lake import launch
from console.features.lake import runs as pipeline_runs
from console.features.lake.runs import Run, RunList, RunOutcome
from console.features.lake.runs_view import VIEW, read, size
from console.features.lake.verbs import BY_NAME
from console.formats import numbered, row_rate
from console.tui.context import Context
from console.tui.dialogs.dialog import CommandDialog, ConfirmDialog, FactsDialog
from console.tui.jobs import LatestQuery, start_job
from console.tui.screens.live import OUT, PolledScreen, ScreenHead
from console.tui.text import Paragraph, describe_error, first_line, plain, show_parts, style_of
from console.tui.widgets.browser import COPY_KEYS, SORT, Browser, filter_keys
from console.views.view import Source, View, no_database

_CAN_BE_REPEATED = {RunOutcome.SILENT, RunOutcome.STOPPED}
_HINTS = {
    RunOutcome.SILENT: "It or its machine was killed.",
    RunOutcome.STOPPED: "It was asked to end, and did.",
    RunOutcome.ELSEWHERE: "It began on another machine: only that one knows whether it is running.",
}
_STDERR_LINES = 20


class RunDialog(FactsDialog):
    """A run, with its result."""

    PANEL: ClassVar[str] = "run-entry"

    def __init__(self, context: Context, run: Run, stderr: str = "") -> None:
        """`stderr`: its end."""
        super().__init__(f"pipeline {plain(run.verb)}", facts(context, run), parts_of(run, stderr))


def parts_of(run: Run, stderr: str) -> list[str]:
    """Its messages, why it ended, its result; safe to show."""
    last = [] if run.lines or not stderr else stderr.splitlines()[-_STDERR_LINES:]
    result = "" if run.result is None else json.dumps(run.result, indent=2, ensure_ascii=False)
    hint = _HINTS.get(run.outcome, "")
    if run.outcome in _CAN_BE_REPEATED:
        job = BY_NAME.get(run.verb)
        again = "continues where it stopped"
        if job is not None and not job.continues:
            again = "starts it again"
        hint = f"{hint} The same command {again}."
    parts = ["\n".join(run.lines), "\n".join(last), hint, result]
    return ["\n".join(map(plain, part.splitlines())) for part in parts if part]


def facts(context: Context, run: Run) -> dict[str, str]:
    now = context.clock.utc()
    seconds, speed = run.seconds(now), run.rows_per_second(now)
    ended = "" if run.ended_at is None else context.moment(run.ended_at)
    last = (
        "" if run.progress_at is None else f"{run.progress}   ({context.moment(run.progress_at)})"
    )
    values = {
        "outcome": run.outcome.value + ("" if run.status is None else f" (exit {run.status})"),
        "what": run.error.get("what", ""),
        "why": run.error.get("why", ""),
        "what next": run.error.get("next_step", ""),
        "queue": run.queue,
        "connection": run.connection,
        "lake": run.lake,
        "began": context.moment(run.began_at),
        "ended": ended,
        "took": "" if seconds is None else formats.duration(seconds),
        "rows": run.moved,
        "size": size(run.bytes),
        "rows/s": "" if speed is None else row_rate(speed),
        "last message": last,
        "by": f"{run.user}@{run.host}, process {run.pid}",
        "command": launch.command_line(run.words),
    }
    return {name: plain(" ".join(text.splitlines())) for name, text in values.items() if text}


_NONE_YET = (
    "No job has been run on this machine yet.\n\n"
    "The jobs on archives and history, each a separate process:\n\n"
    "    :pipeline archive QUEUE     its archive into a Delta Lake table\n"
    "    :pipeline replay QUEUE      from the lake back into the queue\n"
    "    :pipeline verify QUEUE      lost, duplicated, out of order\n"
    "    :pipeline expire QUEUE      old days out of the lake\n"
    "    :pipeline erase QUEUE       single messages out of the lake\n"
    "    :pipeline rollup            minutes, hours and days of the recordings\n"
    "    :pipeline compact           merges the lake's small files\n"
    "    :pipeline lake              what the lake has"
)


class RunsScreen(PolledScreen):
    """The newest first. A run is a process of its own, which outlives the console."""

    EVERY_SECONDS: ClassVar[float] = 1.0
    VIEW: ClassVar[View[Any, Any]] = VIEW
    BINDINGS: ClassVar[list[BindingType]] = [
        *filter_keys(Browser.FORMS, show=False),
        *COPY_KEYS,
        OUT,
        Binding("enter", "open", "result", tooltip="show the whole run, with its result"),
        Binding(
            "s", "stop", "stop", tooltip="ask the run to end; the same command continues later"
        ),
        Binding("S", "sort", SORT, show=False),
        Binding("n", "rollup", "start a rollup of the recordings", show=False),
        Binding("o", "command_line", "the equivalent command line", show=False),
    ]

    def __init__(self, context: Context, id_: str = "") -> None:
        """`id_`: the run under the cursor at first."""
        super().__init__(context)
        self._initial_id = id_
        self._run_list: RunList | None = None
        self._error = ""
        self._fetch: LatestQuery[RunList] = LatestQuery(self, self.show, self._failed)

    def reload(self) -> None:
        self._fetch.submit(lambda: read(Source(no_database)), wait=False)

    def show(self, run_list: RunList) -> None:
        if self.paused_at is None or self._run_list is None:
            self._run_list, self._error = run_list, ""
            self.draw_texts()

    def _failed(self, error: ConsoleError) -> None:
        self._error = describe_error(error)
        self.draw_texts()

    def draw_texts(self) -> None:
        table, run_list = self.table, self._run_list or RunList()
        why_empty = "No run matches. Escape shows all." if run_list.runs else _NONE_YET
        why_empty = "Reading the runs ..." if self._run_list is None else why_empty
        self.show_rows(VIEW.rows(run_list), why_empty)
        if self._initial_id in table.keys:
            table.move_cursor(table.keys.index(self._initial_id))
            self._initial_id = ""
        self._draw_head(run_list)
        self._draw_detail()
        self.refresh_bindings()

    def _draw_detail(self) -> None:
        detail, run = self.query_one("#runs-detail", Paragraph), self._run
        detail.display = run is not None
        if run is not None:
            show_parts(detail, VIEW.details(run, self.context.display))

    def on_keyed_table_cursor_moved(self) -> None:
        self._draw_detail()
        self.refresh_bindings()

    def _draw_head(self, run_list: RunList) -> None:
        head = self.query_one("#runs-head", ScreenHead)
        line = self.paused_head(head, "Pipeline runs")
        line.append(" on this machine", style_of(head, "quiet"))
        line.append("   ")
        for text, style in VIEW.summary_lines(run_list, self.context.display)[0]:
            line.append(text, style_of(head, style))
        self.append_filter(line, head)
        if run_list.unreadable:
            text = f"   {numbered(run_list.unreadable, 'file')} cannot be read"
            line.append(text, style_of(head, "warning"))
        head.draw(line, self._error)

    # Keys.

    @property
    def _run(self) -> Run | None:
        return self.table.row

    def check_action(self, action: str, parameters: object) -> bool | None:
        if action == "stop" and not (self._run is not None and self._run.running):
            return False
        return super().check_action(action, parameters)

    def action_open(self) -> None:
        run = self._run
        if run is not None:
            start_job(
                self,
                lambda: launch.tail(run.id, "err"),
                lambda stderr: self._open(run, stderr),
                self._failed,
            )

    def _open(self, run: Run, stderr: str) -> None:
        if self.app.screen is self:
            self.app.push_screen(RunDialog(self.context, run, stderr))

    def action_stop(self) -> None:
        run = self._run
        if run is None:
            return
        name = f"pipeline {run.verb} {run.queue}".strip()
        lines = [
            f"{name}, begun {self.context.moment(run.began_at)}, process {run.pid}",
            run.progress or "No progress reported yet.",
            "",
            "It stops at a safe point; what it has done is kept. The same command continues it "
            "later.",
        ]
        dialog = ConfirmDialog("Ask it to end", lines, run.verb)
        self.app.push_screen(dialog, lambda yes: self._stop(run) if yes else None)

    def _stop(self, run: Run) -> None:
        start_job(
            self, lambda: pipeline_runs.stop(run), lambda _: self._stopping(run), self._not_stopped
        )

    def _stopping(self, run: Run) -> None:
        self.notify(f"{plain(run.verb)} was asked to end.", markup=False)
        self.reload()

    def _not_stopped(self, error: ConsoleError) -> None:
        self.notify(first_line(str(error)), severity="error", markup=False)
        self.reload()

    def action_rollup(self) -> None:
        self.navigator.run_command("pipeline rollup")

    def action_command_line(self) -> None:
        self.app.push_screen(CommandDialog("dbq-console pipeline runs"))


def open_runs(context: Context, id_: str = "") -> None:
    """The runs on this machine; `id_`: where the cursor starts."""
    if isinstance(context.navigator.screen, RunsScreen):
        # Opened from the form of a rollup, for example: Escape must not lead through it twice.
        context.navigator.pop_screen()
    context.navigator.push_screen(RunsScreen(context, id_))
