"""The runs of the pipeline on this machine: how far each is, what became of it."""

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from console.errors import ConsoleError
from console.formats import numbered
from console.pipeline import launch
from console.pipeline import runs as keeping
from console.pipeline.runs import Found, Run
from console.tui.desk import Desk
from console.tui.dialogs.command import CommandDialog
from console.tui.dialogs.confirm import ConfirmDialog
from console.tui.dialogs.run_entry import RunDialog
from console.tui.jobs import Question, start
from console.tui.screens.live import LiveScreen
from console.tui.text import first_line, plain, said
from console.tui.widgets.paragraph import Paragraph
from console.tui.widgets.runs_table import RunsTable
from console.tui.widgets.screen_head import ScreenHead
from console.tui.widgets.tones import tone

_EVERY_SECONDS = 1.0
_NONE_YET = (
    "Nothing has been run on this machine yet.\n\n"
    "The jobs on archives and history, each a process of its own:\n\n"
    "    :pipeline archive QUEUE     its archive into a lake of Parquet files\n"
    "    :pipeline replay QUEUE      out of the lake into the queue again\n"
    "    :pipeline verify QUEUE      lost, doubled, out of order\n"
    "    :pipeline rollup            minutes, hours and days of the recordings"
)


class RunsScreen(LiveScreen):
    """The newest first; Enter shows one whole. What runs goes on when the console ends."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "result", tooltip="show the run whole, with its result"),
        Binding("s", "stop", "stop", tooltip="ask the run to end; the same command goes on later"),
        Binding("n", "rollup", "rollup", show=False, tooltip="begin a rollup of the recordings"),
        Binding("o", "command_line", "command line", show=False, tooltip="the same elsewhere"),
    ]

    def __init__(self, desk: Desk, id_: str = "") -> None:
        """`id_`: the run on which the cursor is to begin."""
        super().__init__(desk)
        self._wanted = id_
        self._found: Found | None = None
        self._error = ""
        self._question: Question[Found] = Question(self, self.show, self._failed)

    def body(self) -> ComposeResult:
        """What is shown, the runs, or that there are none."""
        yield ScreenHead(id="runs-head", classes="head")
        yield RunsTable(id="runs")
        yield Paragraph(id="runs-words", classes="empty")
        yield Paragraph(id="runs-detail", classes="pane-detail")

    def on_mount(self) -> None:
        """The table has the keys."""
        self.query_one("#runs-words").display = False
        self.set_focus(self.query_one(RunsTable))
        super().on_mount()
        self.look()
        self.set_interval(_EVERY_SECONDS, self._look_again)

    def look(self) -> None:
        """Read the files, in a thread."""
        self._question.ask(lambda: keeping.read(keeping.folder()), wait=False)

    def _look_again(self) -> None:
        if self.is_seen and self.paused_at is None:
            self.look()

    def show(self, found: Found) -> None:
        """What the files say."""
        if self.paused_at is None or self._found is None:
            self._found, self._error = found, ""
            self._draw_runs()

    def _failed(self, error: ConsoleError) -> None:
        self._error = said(error)
        self._draw_runs()

    def draw_body(self, now: float, *, paused: bool) -> None:  # noqa: ARG002  # the base's
        """The words; the runs are drawn as they come."""
        self._draw_runs()

    def _draw_runs(self) -> None:
        table = self.query_one(RunsTable)
        table.zone = self.desk.zone
        found = self._found or Found()
        table.show_runs(found.runs, self.desk.clock.utc())
        if self._wanted and table.go_to(self._wanted):
            self._wanted = ""
        words = self.query_one("#runs-words", Paragraph)
        words.say(Text(_NONE_YET if self._found is not None else "Reading the runs ..."))
        words.display = not found.runs
        table.display = bool(found.runs)
        if found.runs and self.focused is None:
            self.set_focus(table)
        self._draw_head(found)
        self._draw_detail()
        self.refresh_bindings()

    def _draw_detail(self) -> None:
        """What the run under the cursor says, which a narrow table has no room for."""
        detail, run = self.query_one("#runs-detail", Paragraph), self._run
        detail.display = run is not None
        if run is not None:
            error = " ".join(run.error.get(part, "") for part in ("what", "why"))
            words = run.told or "It has not said yet how far it is." if run.runs else error.strip()
            last = f"{run.outcome.value}; before that: {run.told or 'nothing'}"
            line = Text(plain(words or " ".join(run.lines[:1]) or last))
            line.append(f"\n{plain(launch.line(run.words))}", tone(detail, "quiet"))
            detail.say(line)

    def on_keyed_table_cursor_moved(self) -> None:
        """Another run says something else."""
        self._draw_detail()
        self.refresh_bindings()

    def _draw_head(self, found: Found) -> None:
        head = self.query_one("#runs-head", ScreenHead)
        line = Text()
        if self.paused_at is not None:
            line.append(" PAUSED ", tone(head, "paused"))
            line.append(" ")
        line.append("Pipeline runs", tone(head, "strong"))
        line.append(" on this machine", tone(head, "quiet"))
        going = sum(run.runs for run in found.runs)
        line.append(f"   {numbered(len(found.runs), 'run')}")
        if going:
            line.append(f", {going} running", tone(head, "good"))
        if found.unreadable:
            words = f"   {numbered(found.unreadable, 'file')} cannot be read"
            line.append(words, tone(head, "warning"))
        head.draw(line, self._error)

    # Keys.

    @property
    def _run(self) -> Run | None:
        return self.query_one(RunsTable).run_here if self.is_mounted else None

    def check_action(
        self,
        action: str,
        parameters: tuple[object, ...],  # noqa: ARG002  # Textual's signature
    ) -> bool | None:
        """Only what runs can be asked to end."""
        if action == "stop":
            run = self._run
            return run is not None and run.runs
        return True

    def action_look_now(self) -> None:
        """Look at everything now, at the runs too."""
        super().action_look_now()
        self.look()

    def action_open(self) -> None:
        """Show the run under the cursor whole."""
        run = self._run
        if run is not None:
            start(
                self,
                lambda: launch.said(run.id, "err"),
                lambda words: self._open(run, words),
                self._failed,
            )

    def _open(self, run: Run, words: str) -> None:
        if self.app.screen is self:
            self.app.push_screen(RunDialog(self.desk, run, words))

    def action_stop(self) -> None:
        """Ask first: the run under the cursor is the one that is meant, whatever comes."""
        run = self._run
        if run is None:
            return
        name = f"pipeline {run.verb} {run.queue}".strip()
        lines = [
            f"{name}, begun {self.desk.moment(run.began_at)}, process {run.pid}",
            run.told or "It has not said yet how far it is.",
            "",
            "It ends by itself, with everything that it has done. The same command later goes on.",
        ]
        dialog = ConfirmDialog("Ask it to end", lines, run.verb, by_name=False)
        self.app.push_screen(dialog, lambda yes: self._stop(run) if yes else None)

    def _stop(self, run: Run) -> None:
        start(self, lambda: keeping.stop(run), lambda _: self._asked(run), self._not_stopped)

    def _asked(self, run: Run) -> None:
        self.notify(f"{plain(run.verb)} was asked to end.", markup=False)
        self.look()

    def _not_stopped(self, error: ConsoleError) -> None:
        self.notify(first_line(str(error)), severity="error", markup=False)
        self.look()

    def action_rollup(self) -> None:
        """The form of a rollup: it is about no queue."""
        self.ways.open_pipeline("rollup")

    def action_command_line(self) -> None:
        """What lists the same on the command line."""
        self.app.push_screen(CommandDialog("dbq-console pipeline runs"))
