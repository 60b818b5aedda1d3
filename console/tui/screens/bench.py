"""How fast each design is on a server: the form, the load as it goes, the comparison."""

import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Input

from console import formats
from console.bench import drawing
from console.bench.load import Load
from console.bench.results import comparisons
from console.bench.words import as_json, checked, compared_lines, load_in_words, waits
from console.errors import ConsoleError, RefusedError
from console.tui.actions import bench as offered
from console.tui.bench import BenchWork, Course, Prospect, prospect, wanted, why_not
from console.tui.desk import Desk
from console.tui.dialogs.command import show_twin
from console.tui.dialogs.confirm import ConfirmDialog
from console.tui.jobs import start
from console.tui.running import Running
from console.tui.saving import save, suggestion
from console.tui.screens.form import FormScreen
from console.tui.series import Span
from console.tui.text import plain, said, sentence, whole_seconds
from console.tui.widgets.action_form import ActionForm
from console.tui.widgets.bench_table import BenchTable, label, ms
from console.tui.widgets.charts import RATES, Chart, Curve, Drawing, Moment
from console.tui.widgets.lines import Lines
from console.tui.widgets.paragraph import Paragraph
from console.tui.widgets.screen_head import ScreenHead
from console.tui.widgets.tones import tone

_TICK_SECONDS = 0.5
_LEAST_SPAN_SECONDS = 20.0
_ROOM_FOR_ALL = 36
"""Lines of a screen on which the chart stays beside the comparison."""
_MANY_NAMES = 12


class Stage(Enum):
    """Where the operator is."""

    REFUSED = "refused"
    FORM = "form"
    ASKING = "asking"
    RUN = "run"
    """It runs, or has ended."""


class BenchScreen(FormScreen):
    """The load is made by processes of their own; this one only shows how they get on."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "go", "look", tooltip="say what it would do; that changes nothing"),
        Binding("s,t", "stop", "stop", tooltip="stop it; its scratch queues go"),
        Binding("w", "save", "write", tooltip="write the report to a file: .svg or .json"),
        Binding("n", "again", "again", tooltip="the form once more"),
        Binding("ctrl+o,o", "command", "command", tooltip="the command line's twin, copied"),
    ]

    def __init__(
        self,
        desk: Desk,
        connection: str,
        options: Mapping[str, str] | None = None,
        running: Running | None = None,
    ) -> None:
        """`options` are the form's fields; `running`: one to go back to."""
        super().__init__(desk)
        self.stage = Stage.REFUSED
        self._connection = connection
        self._place = desk.places.get(connection)
        self._said: dict[str, str] = dict(options or {})
        self._bench = running
        self._course: Course | None = None
        if running is not None and isinstance(running.planned, BenchWork):
            self._course = running.planned.course
        self._error = ""

    def body(self) -> ComposeResult:
        """The form; then how it goes, and what came of it."""
        yield ScreenHead(id="bench-head", classes="head")
        yield ActionForm(id="form")
        with Vertical(id="bench-run"):
            yield Chart()
            yield BenchTable(id="bench-table")
            with VerticalScroll(id="bench-told"):
                yield Paragraph(id="bench-words")
        yield Input(id="bench-file", compact=True)
        yield Lines(id="problem")

    def on_mount(self) -> None:
        """The form, the bench that there is, or why there is none."""
        self.query_one("#bench-file").display = False
        super().on_mount()
        self._turn(Stage.RUN if self._course is not None else Stage.REFUSED)
        self.set_interval(_TICK_SECONDS, self._tick)
        if self._course is not None:
            self._see()
        elif why := why_not(self._place):
            self._fail(RefusedError("No bench can be begun here.", why=sentence(why)))
        else:
            self._form.offer(offered.FORM.fields, self._said)
            self.call_after_refresh(self._enter_form)

    # What is in sight.

    @property
    def _form(self) -> ActionForm:
        return self.query_one("#form", ActionForm)

    @property
    def runs(self) -> bool:
        """Whether one is under way."""
        return self._bench is not None and self._bench.runs

    @property
    def followed(self) -> int:
        """The bench that it shows itself."""
        return 0 if self._bench is None else self._bench.number

    def _turn(self, stage: Stage) -> None:
        self.stage = stage
        self._form.display = stage in {Stage.FORM, Stage.ASKING}
        self.query_one("#bench-run").display = stage is Stage.RUN
        if stage is Stage.RUN:
            self._enter_run()
        elif stage is not Stage.FORM:
            self.set_focus(None)
        self.refresh_bindings()
        self.draw()

    def _enter_run(self) -> None:
        """At the end the arrows are for the words, which a small screen has no room for."""
        self.set_focus(self.query_one(BenchTable if self.runs else "#bench-told"))

    def _enter_form(self) -> None:
        self._turn(Stage.FORM)
        self._form.enter()

    def _fail(self, error: ConsoleError) -> None:
        self._error = said(error)
        if self.stage is Stage.ASKING:
            self._enter_form()
        self.draw()

    def _tick(self) -> None:
        if self.stage is Stage.RUN and self.runs and self.is_seen:
            self.draw()

    def draw_body(self, now: float, *, paused: bool) -> None:
        """The head, and what is known of the bench."""
        problem = self.query_one("#problem", Lines)
        running = self._bench
        error = self._error
        if not error and running is not None and running.error is not None:
            error = said(running.error)
        problem.display = bool(error)
        problem.say(Text(f"✖ {error}" if error else ""))
        self._draw_head()
        course = self._course
        if self.stage is Stage.RUN and course is not None and not (paused and self.runs):
            self._draw_chart(course, now)
            self.query_one(BenchTable).show_course(course)
            self._draw_words(course)

    def _draw_head(self) -> None:
        head = self.query_one("#bench-head", ScreenHead)
        line = Text()
        if self.paused_at is not None:
            line.append(" PAUSED ", tone(head, "paused"))
            line.append(" ")
        line.append("Bench", tone(head, "strong"))
        line.append(f" on {plain(self._connection)}", tone(head, "quiet"))
        if self.stage is Stage.ASKING:
            line.append("   asking the database who can take part ...", tone(head, "warning"))
        elif self.stage is Stage.RUN and self._course is not None:
            words, mood = self._state(self._course)
            line.append(f"   {words}", tone(head, mood))
        head.draw(line)

    def _state(self, course: Course) -> tuple[str, str]:
        """How far it is, in one line."""
        running = self._bench
        if running is not None and running.ended is not None:
            lines, good = running.ended.lines, course.whole
            ok = good and all(result.ok for result in course.results)
            return " ".join(lines), "good" if ok else "warning" if not good else "critical"
        if running is None or not running.runs:
            return "it broke off; its queues are dropped", "critical"
        if running.control.stopped:
            return "stopping; its queues are dropped ...", "warning"
        whose, left = course.next, course.seconds_left()
        if whose is None or left is None:
            return "ends ..." if course.done else "begins ...", "strong"
        return (
            f"{label(whose[0])}, round {whose[1]} of {course.load.rounds}; "
            f"{course.done} of {course.total} rounds, about {whole_seconds(left)} left",
            "strong",
        )

    def _draw_chart(self, course: Course, now: float) -> None:
        chart = self.query_one(Chart)
        height = self.app.size.height
        chart.display = self.runs or height >= _ROOM_FOR_ALL
        chart.styles.height = max(6, height // 3)
        told = self.query_one("#bench-told")
        told.styles.height = "1fr" if course.over else "auto"
        table = self.query_one(BenchTable)
        most = max(2, height // 2 - 4) if course.over else 1000
        table.styles.height = min(most, len(course.contestants) + 1) if course.over else "1fr"
        if not chart.display:
            return
        end = now if course.ended_at is None else course.ended_at
        runs = course.points
        began = runs[0][0][0] if runs and runs[0] else end
        span = Span("", max(_LEAST_SPAN_SECONDS, end - began + 1), 1.0)
        live = course.live
        words: list[tuple[str, str]] = [("messages/s", "strong")]
        if live is not None:
            second = f"second {live.second + 1}" if live.second >= 0 else "warming up"
            words.append((f" {live.messages_per_second:,.0f}", ""))
            words.append((f"   {label(live.contestant)}, {second}", "quiet"))
            if (took := live.pop_ms) is not None:
                cuts = f"p50 {ms(took.p50)}  p95 {ms(took.p95)}  p99 {ms(took.p99)} ms"
                words.append((f"   pop {cuts}", "quiet"))
        utc = self.desk.clock.utc() - timedelta(seconds=now - end)
        moment = Moment(end, utc, self.desk.zone)
        chart.show(Drawing(tuple(words), (Curve(runs, "trend"),), RATES, span, moment), "")

    def _draw_words(self, course: Course) -> None:
        words = self.query_one("#bench-words", Paragraph)
        text = Text()
        results = course.results
        if course.over and results:
            for line in checked(results):
                bad = line.startswith(("NOT OK", "in doubt", "error"))
                text.append(f"{line}\n", tone(words, "critical" if bad else "good"))
            text.append("\n")
            for line in compared_lines(comparisons(results)):
                text.append(f"{line}\n")
            for line in waits(results):
                text.append(f"{line}\n", tone(words, "quiet"))
        for line in course.said:
            text.append(f"{' '.join(map(plain, line.splitlines()))}\n", tone(words, "warning"))
        text.append(f"{load_in_words(course.load)}\n", tone(words, "quiet"))
        if course.about is not None and (course.over or self.app.size.height >= _ROOM_FOR_ALL):
            text.append("\n".join(map(plain, course.about.lines)) + "\n", tone(words, "quiet"))
        if course.about is not None and course.about.durable is False:
            unsafe = "This server does not write durably: the figures are too good.\n"
            text.append(unsafe, tone(words, "warning"))
        writes = "w writes the report. " if results else ""
        keys = f"{writes}n: the form again." if course.over else _WHILE_IT_RUNS
        text.append(keys, tone(words, "quiet"))
        words.say(text)

    def check_action(
        self,
        action: str,
        parameters: tuple[object, ...],  # noqa: ARG002  # Textual's signature
    ) -> bool | None:
        """Each key where it means something."""
        shows = self.stage is Stage.RUN
        match action:
            case "go":
                return self.stage is Stage.FORM
            case "stop":
                return shows and self.runs
            case "save":
                return shows and not self.runs and bool(self._course and self._course.results)
            case "again":
                return shows and not self.runs
            case "command":
                return self.stage is not Stage.REFUSED
        return True

    # The beginning.

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter in a field asks; in the line for the file it writes."""
        event.stop()
        if event.input.id == "bench-file":
            self._write(event.value.strip())
        else:
            self.action_go()

    def action_go(self) -> None:
        """Ask who can take part; then say what it would do."""
        place = self._place
        if self.stage is not Stage.FORM or place is None or not self._form.check():
            return
        self._error, self._said = "", self._form.said
        try:
            who, load = wanted(self._said)
        except ConsoleError as error:
            self._fail(error)
            return
        self.ask_anew()
        self._turn(Stage.ASKING)
        start(
            self,
            lambda: prospect(place, who, load),
            self.still_asked(lambda found: self._ask(found, Course(who, load, self._clock))),
            self.still_asked(self._fail),
        )

    @property
    def _clock(self) -> Callable[[], float]:
        return self.desk.clock.monotonic

    def _ask(self, found: Prospect, course: Course) -> None:
        """Load is what others feel: nothing begins by a single key."""
        self._enter_form()
        if self.app.screen is not self:
            return
        lines = what_it_does(self._connection, found, course.load)
        dialog = ConfirmDialog("Bench", lines, self._connection, by_name=found.production)
        self.app.push_screen(dialog, lambda yes: self._begin(course) if yes else None)

    def _begin(self, course: Course) -> None:
        place = self._place
        if place is None or self.runs:
            return
        self._course = course
        key = (self._connection, "", self._connection)
        self._bench = self.desk.running.start(
            self.app, key, "bench", course.work(place), self._clock(), self._over
        )
        self._turn(Stage.RUN)

    def _over(self, running: Running) -> None:
        if self.is_attached and running is self._bench:
            self._see()
            self._turn(Stage.RUN)

    def _see(self) -> None:
        """Somebody sees how it ended."""
        if self._bench is not None and not self._bench.runs:
            self._bench.seen = self.is_seen

    def on_screen_resume(self) -> None:
        """It is in sight again, perhaps with its end."""
        super().on_screen_resume()
        self._see()

    # The end.

    def action_stop(self) -> None:
        """At once: the round that runs does not count, and its queue goes."""
        if self._bench is not None and self.runs:
            self._bench.control.stop()
            self.draw()

    def action_again(self) -> None:
        """The form, as it was filled in."""
        self._bench = self._course = None
        self._error = ""
        if not self._form.rows:
            self._form.offer(offered.FORM.fields, self._said)
        self.call_after_refresh(self._enter_form)

    def action_command(self) -> None:
        """The same on the command line."""
        filled = self._form.said if self._form.rows else self._said
        show_twin(self, self._place, "bench", None, offered.words(filled))

    def action_save(self) -> None:
        """Ask where to write the report."""
        line = self.query_one("#bench-file", Input)
        stamp = f"{self.desk.clock.utc():%Y%m%d-%H%M%S}"
        line.value = str(suggestion("bench", f"{self._connection}-{stamp}", "svg"))
        line.display = True
        line.cursor_position = len(line.value)
        self.set_focus(line)

    def _write(self, name: str) -> None:
        self._close_line()
        course = self._course
        if not name or course is None or course.about is None:
            return
        path = Path(name)
        start(
            self, lambda: save(path, report(course, path.suffix)), self._written(path), self._fail
        )

    def _written(self, path: Path) -> Callable[[int], None]:
        return lambda size: self.notify(
            f"{formats.count(size)} bytes are in {plain(str(path))}", markup=False
        )

    def _close_line(self) -> None:
        self.query_one("#bench-file").display = False
        self._enter_run()
        self._error = ""

    def action_out(self) -> None:
        """What runs is stopped first; a question is taken back; then one level out."""
        if self.query_one("#bench-file").display:
            self._close_line()
        elif self.stage is Stage.ASKING:
            self.ask_anew()
            self._enter_form()
        elif self.runs and self._bench is not None and not self._bench.control.stopped:
            self.action_stop()
        else:
            super().action_out()


_WHILE_IT_RUNS = (
    "s or Escape stops it, and its queues are dropped. It goes on while you look elsewhere (:)."
)


def what_it_does(connection: str, found: Prospect, load: Load) -> list[str]:
    """To be read before it begins."""
    names = ", ".join(found.labels[:_MANY_NAMES])
    more = len(found.labels) - _MANY_NAMES
    rounds = formats.numbered(load.rounds, "round")
    return [
        *(["PRODUCTION database", ""] if found.production else []),
        f"{load.producers} connections push and {load.consumers} pop as fast as {connection} can: "
        "it takes all that the server can give. Whoever else works there will feel it.",
        "",
        f"{rounds} of each: {names}{f' and {more} more' if more > 0 else ''}.",
        f"It takes about {formats.duration(found.seconds)}.",
        "Every round is on a scratch queue of its own (dbq_bench_...), dropped when it is over. "
        "No other queue is touched.",
        *(["One transaction stays open: the server clears nothing away."] * load.held_xmin),
        *(line for words in found.left_out for line in ["", *words.splitlines()]),
    ]


def report(course: Course, suffix: str) -> str:
    """What a file of that name gets: the object of `bench --json`, or a picture."""
    about, results = course.about, course.results
    if about is None:
        return ""
    if suffix.lower() == ".json":
        return json.dumps(as_json(about, course.load, results), ensure_ascii=False) + "\n"
    load = load_in_words(course.load)
    return drawing.report(about, load, results, comparisons(results))
