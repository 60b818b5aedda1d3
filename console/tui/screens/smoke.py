"""A queue's design proven here: every message of a scratch queue checked, live."""

from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll

from console import formats
from console.actions import smoke
from console.actions.audit import Outcome, Subject
from console.actions.execute import Control
from console.actions.smoke_live import smoke_live
from console.actions.work import Ended, Planned, Tell, Told
from console.catalog import Queue
from console.errors import ConsoleError, RefusedError
from console.rights import Rights
from console.tui import jobs
from console.tui.board import Key
from console.tui.desk import Desk
from console.tui.dialogs.command import show_twin
from console.tui.places import Place
from console.tui.running import Running
from console.tui.screens.live import LiveScreen
from console.tui.text import plain, said, sparkline
from console.tui.widgets.field import Field
from console.tui.widgets.paragraph import Paragraph
from console.tui.widgets.screen_head import ScreenHead
from console.tui.widgets.tones import tone
from console.tui.widgets.words import Words

_HOW = (("beside", "beside it, on a scratch queue"), ("live", "through the queue itself (--live)"))
_WORDS = {
    "beside": "A scratch queue of the same design and options: 3 producers and 3 consumers, every "
    "message checked for coming once, whole and in the order that is promised. The queue itself "
    "is not touched; the scratch queue goes at the end.",
    "live": "The queue itself, only where it is drained: each message is pushed and popped in one "
    "transaction, so that no consumer ever sees it.",
}
_SAMPLES = 240


class Trial:
    """One smoke test that runs, or ran. Its thread writes; the screen only reads."""

    def __init__(self) -> None:
        self.progress: smoke.Progress | None = None
        self.result: smoke.SmokeResult | None = None
        self.rates: deque[int] = deque(maxlen=_SAMPLES)
        """Messages a second through, in each tenth of a second."""
        self._last = (0.0, 0)

    def take(self, now: smoke.Progress) -> None:
        """How far it is."""
        seconds, popped = self._last
        if now.seconds - seconds >= 0.1:
            self.rates.append(round((now.popped - popped) / (now.seconds - seconds)))
            self._last = (now.seconds, now.popped)
        self.progress = now

    def work(self, place: Place, queue: Queue, *, live: bool) -> Planned:
        """The test as any other work that runs in this console."""

        def do(control: Control, tell: Tell) -> Ended:
            def heard(now: smoke.Progress) -> None:
                self.take(now)
                tell(Told(now.popped, now.total, "smoke test"))

            test = smoke_live if live else smoke.smoke_queue
            try:
                self.result = test(place.database, queue, control=control, tell=heard)
            except smoke.StoppedError as error:
                return Ended(Outcome.STOPPED, tuple(str(error).splitlines()))
            good = "ok" if self.result.ok else "NOT OK"
            outcome = Outcome.DONE if self.result.ok else Outcome.FAILED
            return Ended(outcome, (f"{good}: {self.result.messages:,} messages",))

        subject = Subject.of(place.database, queue, "smoke")
        return SmokeWork(subject, queue, (), by_name=False, do=do, trial=self)


@dataclass(frozen=True)
class SmokeWork(Planned):
    """A smoke test among what runs in this console."""

    trial: Trial = field(default_factory=Trial)


class SmokeScreen(LiveScreen):
    """Left alone it goes on; a line at the bottom of the other screens says so."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "begin", "begin", tooltip="begin the test"),
        Binding("s,t", "stop", "stop", tooltip="stop it; its scratch queue goes"),
        Binding("o", "command_line", "command line", show=False, tooltip="the same elsewhere"),
    ]

    def __init__(self, desk: Desk, key: Key, running: Running | None = None) -> None:
        """`running`: one that is under way, to go back to."""
        super().__init__(desk)
        self.key = key
        self._place = desk.place(key)
        self._trial: Trial | None = None
        self._test = running
        if running is not None and isinstance(running.planned, SmokeWork):
            self._trial = running.planned.trial
        self._asked = False
        self._error = ""

    def body(self) -> ComposeResult:
        """What would be done; how far it is; what came of it."""
        yield ScreenHead(id="smoke-head", classes="head")
        with VerticalScroll(id="smoke"):
            yield Field("how", "test", choices=_HOW, value="beside", help=_WORDS["beside"])
            yield Paragraph(id="smoke-told")

    def on_mount(self) -> None:
        """The choice has the keys."""
        super().on_mount()
        self.set_focus(self.query_one(Field).control)
        self.set_interval(0.2, self._tick)

    @property
    def runs(self) -> bool:
        """Whether one is under way."""
        return self._asked or (self._test is not None and self._test.runs)

    def _tick(self) -> None:
        if self.runs and self.is_seen:
            self._draw_told()

    def draw_body(self, now: float, *, paused: bool) -> None:  # noqa: ARG002  # the base's
        """The head, and what is known of the test."""
        head = self.query_one("#smoke-head", ScreenHead)
        line = Text()
        line.append("Smoke test", tone(head, "strong"))
        line.append(f" of {plain(self.key[1])}.{plain(self.key[2])}")
        line.append(f" on {plain(self.key[0])}", tone(head, "quiet"))
        if why := self._why_not():
            line.append(f"   {why}", tone(head, "warning"))
        head.draw(line)
        how = self.query_one(Field)
        how.display = not self.runs
        how.explain("" if self._trial is not None else _WORDS[how.value])
        self.refresh_bindings()
        self._draw_told()

    @property
    def followed(self) -> int:
        """The test that it shows itself."""
        return 0 if self._test is None else self._test.number

    def check_action(
        self,
        action: str,
        parameters: tuple[object, ...],  # noqa: ARG002  # Textual's signature
    ) -> bool | None:
        """What runs can be stopped, what does not can be begun."""
        if action in {"begin", "stop"}:
            return self.runs == (action == "stop")
        return True

    def _why_not(self) -> str:
        if self._place is None:
            return "there is no such connection here"
        if self._place.rights < Rights.ADMIN:
            return f"it needs the right admin; this connection has {self._place.rights.word}"
        return ""

    def _draw_told(self) -> None:
        words = self.query_one("#smoke-told", Paragraph)
        text = Text()
        trial, running = self._trial, self._test
        error = self._error
        if running is not None and running.error is not None:
            error = said(running.error)
        if error:
            text.append(f"✖ {error}\n\n", tone(words, "critical"))
        elif trial is not None and trial.result is not None:
            _append_result(text, words, trial.result)
        elif running is not None and running.ended is not None:
            text.append("\n".join(running.ended.lines) + "\n\n", tone(words, "warning"))
        elif self.runs:
            state = "Stopping" if running is not None and running.control.stopped else "Running"
            text.append(f"{state} ...\n\n", tone(words, "strong"))
        if trial is not None and trial.progress is not None:
            _append_progress(text, words, trial, max(10, self.app.size.width - 24))
        if self.runs:
            text.append("\ns stops it. Escape leaves it to run.", tone(words, "quiet"))
        elif not self._why_not():
            again = "again" if trial is not None else "begins"
            text.append(f"\nEnter {again}.", tone(words, "quiet"))
        words.say(text)

    def on_field_changed(self, event: Field.Changed) -> None:
        """Each way has its own words."""
        event.field.offer(event.field.value, _HOW, _WORDS[event.field.value])

    def action_begin(self) -> None:
        """Find the queue, then test it."""
        place = self._place
        if self.runs or place is None:
            return
        self._trial, self._test, self._error = None, None, ""
        if self._why_not():
            self._failed(RefusedError("The smoke test was not begun.", why=f"{self._why_not()}."))
            return
        self._asked = True
        live = self.query_one(Field).value == "live"
        _, schema, name = self.key
        jobs.start(
            self,
            lambda: place.find(schema, name),
            lambda queue: self._begin(place, queue, live=live),
            self._failed,
        )
        self.draw()

    def _begin(self, place: Place, queue: Queue, *, live: bool) -> None:
        self._asked = False
        self._trial = trial = Trial()
        self._test = self.desk.running.start(
            self.app,
            self.key,
            "smoke",
            trial.work(place, queue, live=live),
            self.desk.clock.monotonic(),
            self._over,
        )
        self.draw()

    def _over(self, running: Running) -> None:
        running.seen = running is self._test and self.is_seen
        if self.is_attached:
            self.draw()

    def _failed(self, error: ConsoleError) -> None:
        self._asked = False
        self._error = said(error)
        self.draw()

    def show(self, trial: Trial, running: Running | None = None) -> None:
        """What is known of a test."""
        self._trial, self._test = trial, running
        self.draw()

    def action_stop(self) -> None:
        """After the call that each of its threads is in."""
        if self._test is not None:
            self._test.control.stop()
            self._draw_told()

    def action_command_line(self) -> None:
        """What does the same on the command line."""
        live = ["--live"] if self.query_one(Field).value == "live" else []
        show_twin(self, self._place, "smoke", self.key, live)


def _append_progress(text: Text, words: Words, trial: Trial, room: int) -> None:
    now = trial.progress
    if now is None:
        return
    cells = min(40, room)
    full = min(cells, round(cells * now.popped / max(1, now.total)))
    text.append(f"  {'messages':<12}")
    text.append("█" * full, tone(words, "good"))
    text.append("░" * (cells - full), tone(words, "quiet"))
    text.append(f"  {now.popped:,} of {now.total:,}\n")
    rates = list(trial.rates)
    through = now.popped / now.seconds if now.seconds else 0.0
    text.append(f"  {'throughput':<12}{formats.rate(through)} messages/s")
    text.append(f"  in {formats.duration(now.seconds)}\n")
    if rates:
        text.append(f"  {'':<12}")
        text.append(f"{sparkline(rates[-cells:])}\n", tone(words, "trend"))
    for name, latency in (("push", now.push_ms), ("pop", now.pop_ms)):
        if latency.p99:
            figures = f"p50 {latency.p50:.2f}   p95 {latency.p95:.2f}   p99 {latency.p99:.2f} ms"
            text.append(f"  {name:<12}{figures}\n")


def _append_result(text: Text, words: Words, result: smoke.SmokeResult) -> None:
    good = result.ok
    text.append("ok" if good else "✖ NOT OK", tone(words, "good" if good else "critical"))
    text.append(f"   {result.design}, {result.messages:,} messages, order {result.order}\n\n")
    figures = {
        "lost": result.lost,
        "doubled": result.doubled,
        "damaged": result.damaged,
        "out of order": result.out_of_order,
        "claims lost": result.unfinished,
    }
    for name, count in figures.items():
        text.append(f"  {name:<14}")
        text.append(f"{count:,}\n", tone(words, "critical" if count else "good"))
    for error in result.errors:
        text.append(f"  ✖ {' '.join(map(plain, error.splitlines()))}\n", tone(words, "critical"))
    text.append("\n")
    if not good:
        text.append(
            "The design did not keep its promise here. Do not use it before why is known.\n\n"
        )
