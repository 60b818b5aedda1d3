"""Who waits for what and for whom: of one queue, or of a whole connection."""

import time
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical

from console import catalog
from console.errors import ConsoleError
from console.formats import clock, duration, numbered
from console.monitor import wait_words as words
from console.monitor.waits import Wait, WaitReport, watch
from console.tui.board import Key
from console.tui.desk import Desk
from console.tui.dialogs.command import show_twin
from console.tui.jobs import Question
from console.tui.places import Place
from console.tui.tabs.keys import take_keys
from console.tui.text import plain
from console.tui.widgets.telling import say, told
from console.tui.widgets.tones import tone
from console.tui.widgets.waits_table import LOOKS, Past, WaitsChart, WaitsTable, key_of, past_of
from console.tui.widgets.waits_tree import WaitsTree
from console.tui.widgets.words import Words

LOOK_SECONDS = 2.0
"""How long one look lasts; it samples a few times a second."""
_REST_SECONDS = 1.5
_CHART_FROM = 26
"""With fewer lines than these the chart would take what the lists need."""
_QUEUE_LINES = 12
"""So many more has the screen of a queue above it."""
_SMALL = 14
"""In fewer lines than these the words stand back for the lists."""
_PAUSE_SECONDS = 0.05


class WaitsPane(Vertical):
    """Looks for two seconds at a time, in a thread, while it is in sight."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "act", "end session", tooltip="end the session under the cursor"),
        Binding("r", "look_again", "now", show=False, tooltip="look again now"),
        Binding("y", "copy", "copy", show=False, tooltip="copy what stands below"),
        Binding("o", "twin", "command", show=False, tooltip="the command line that shows the same"),
    ]

    _at: datetime | None = None
    """When it was looked at."""

    def __init__(self, desk: Desk, connection: str, key: Key | None = None) -> None:
        """`key`: the one queue; None: all of the connection, and the server."""
        super().__init__()
        self.desk = desk
        self.connection = connection
        self.key = key
        self.report: WaitReport | None = None
        self.paused = False
        self._past: deque[Past] = deque(maxlen=LOOKS)
        self._names: dict[str, str] = {}
        self._error: ConsoleError | None = None
        self._rests_until = 0.0
        self._ended = False
        self._question: Question[WaitReport] = Question(self, self.show_report, self.fail)

    def compose(self) -> ComposeResult:
        """How it went, the waits, who waits for whom, and what that means."""
        yield Words(classes="pane-head", id="waits-head")
        yield WaitsChart()
        yield WaitsTable()
        yield WaitsTree()
        yield Words(classes="pane-detail", id="waits-detail")

    def on_mount(self) -> None:
        """Nothing is known yet."""
        self.query_one(WaitsChart).display = False
        self.draw(paused=self.paused)
        take_keys(self, self.query_one(WaitsTable))

    def on_unmount(self) -> None:
        """A look that is under way ends soon."""
        self._ended = True

    @property
    def place(self) -> Place | None:
        """The connection."""
        return self.desk.places.get(self.connection)

    # What is asked, and what comes of it.

    def look(self) -> None:
        """Look for a while, unless it is being done."""
        rested = self.desk.clock.monotonic() >= self._rests_until
        if rested and not self.paused and not self._question.under_way:
            self._ask()

    def _ask(self) -> None:
        place = self.place
        if place is None:
            return
        key = self.key

        def work() -> WaitReport:
            return watch(
                place.database,
                [place.find(key[1], key[2])] if key else catalog.in_use(place.database),
                seconds=LOOK_SECONDS,
                sleep=self._sleep,
                asked_to_end=lambda: self._ended,
            )

        self._question.ask(work, wait=False)
        self.draw(paused=self.paused)

    def _sleep(self, seconds: float) -> None:
        """In the job's thread: not for longer than the screen is there."""
        until = time.monotonic() + seconds
        while not self._ended and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _PAUSE_SECONDS))

    def show_report(self, report: WaitReport) -> None:
        """What a while of looking showed."""
        self._rest()
        self.report, self._error, self._at = report, None, self.desk.clock.utc()
        waits = self.waits
        self._past.append(past_of(waits) if report.samples else None)
        self._names |= {key_of(wait): plain(words.name_of(wait)) for wait in waits}
        self.query_one(WaitsTable).show_waits(waits, [*self._past])
        self.query_one(WaitsTree).show_activity(report.activity)
        self.query_one(WaitsChart).show_past([*self._past], self._names)
        self.draw(paused=self.paused)

    def fail(self, error: ConsoleError) -> None:
        """What was seen before stays, with when that was."""
        self._rest()
        self._error = error
        self._past.append(None)
        self.draw(paused=self.paused)

    def _rest(self) -> None:
        """Between two looks the server has its peace; all queues at once are the dearer look."""
        seconds = _REST_SECONDS if self.key else 2 * _REST_SECONDS
        self._rests_until = self.desk.clock.monotonic() + seconds

    @property
    def waits(self) -> list[Wait]:
        """Those of the queue, or of the server with all that is there."""
        if self.report is None:
            return []
        if self.key is None:
            return [wait for wait in self.report.waits if wait.queue is None]
        _, schema, name = self.key
        return [
            wait
            for wait in self.report.waits
            if wait.queue is not None and (wait.queue.schema, wait.queue.name) == (schema, name)
        ]

    # What is drawn.

    def draw(self, *, paused: bool) -> None:
        """The words; the lists change only when a look has come."""
        self.paused = paused
        if not self.is_mounted or not self.query("#waits-head"):
            return
        head = self.query_one("#waits-head", Words)
        lines = [self._summary(head)]
        if self.report is not None:
            lines += [
                Text(plain(line), tone(head, "quiet"), no_wrap=True)
                for line in words.horizon(self.report)
                if self.report.samples and not self._is_small
            ]
            lines += [
                Text(f"Not seen: {plain(why)}", tone(head, "warning"))
                for why in self.report.missing.values()
            ]
        if self._error is not None:
            lines.append(told(head, self._error))
        say(head, lines)
        self._draw_detail()
        chart = self.query_one(WaitsChart)
        enough = self.app.size.height >= _CHART_FROM + (_QUEUE_LINES if self.key else 0)
        chart.display = bool(enough and self._past)
        waits = len(self.waits)
        table = self.query_one(WaitsTable)
        # Who waits for whom takes the rest.
        table.styles.height = min(waits + 1, max(3, self.size.height // 3))

    @property
    def _is_small(self) -> bool:
        return self.size.height < _SMALL

    def _summary(self, head: Words) -> Text:
        line = Text(no_wrap=True)
        report = self.report
        if report is None:
            line.append("" if self._error else "Looking ...", tone(head, "quiet"))
            return line
        if report.samples:
            trees = report.activity.trees
            if trees:
                waiting = numbered(report.activity.waiting, "session")
                verb = "waits" if report.activity.waiting == 1 else "wait"
                line.append(f"{waiting} {verb} for another", tone(head, "warning"))
                seen = f" (in {report.samples_with_waiters} of {report.samples} looks)"
                line.append(seen, tone(head, "quiet"))
            else:
                line.append("Nobody waits for another session.", tone(head, "good"))
        if self._at is not None:
            line.append(f"   as of {clock(self._at, self.desk.zone)}", tone(head, "quiet"))
        looks = f"   {numbered(report.samples, 'look')} in {duration(report.seconds)}"
        line.append(looks, tone(head, "quiet"))
        return line

    def _draw_detail(self) -> None:
        detail = self.query_one("#waits-detail", Words)
        parts = self._detail()
        detail.display = bool(parts)
        detail.styles.max_height = 3 if self._is_small else 6
        detail.say(Text.assemble(*((text, tone(detail, name)) for text, name in parts)))

    def _detail(self) -> list[tuple[str, str]]:
        """What is known of the line under the cursor: words, each with a tone."""
        tree, table = self.query_one(WaitsTree), self.query_one(WaitsTable)
        session, wait = tree.session, table.wait
        if session is not None and (tree.has_focus or wait is None):
            said = [
                (f"{plain(words.title(session))}  ", "strong"),
                (plain(f"{words.who(session)}; {words.doing(session)}"), ""),
            ]
            if session.locks:
                said.append((f"\nlocks {plain(words.locks(session))}", "quiet"))
            if session.query:
                said.append((f"\n{plain(words.statement(session))}", "quiet"))
            return said
        if wait is None:
            return []
        means = wait.meaning or "Nothing is known of this wait."
        return [
            (f"{plain(words.name_of(wait))}  {words.amount(wait)}\n", "strong"),
            (plain(means), ""),
        ]

    def on_keyed_table_cursor_moved(self) -> None:
        """The words below are of the line under the cursor."""
        self._draw_detail()

    def on_descendant_focus(self) -> None:
        """The words below are of the list that has the keys."""
        if self.query("#waits-detail"):
            self._draw_detail()

    # What the operator does.

    def action_act(self) -> None:
        """End the session under the cursor, for the queue that it has to do with."""
        session = self.query_one(WaitsTree).session
        if session is None:
            self.notify("No session is under the cursor.", markup=False)
            return
        key = self.key or self._queue_of(session.queues)
        if key is None:
            self.notify("This session has nothing to do with any queue.", markup=False)
            return
        self.desk.ways.open_action(key, "end-session", session=str(session.key))

    def _queue_of(self, queues: Sequence[tuple[str, str]]) -> Key | None:
        """The queue that a session touches, else one that somebody who waits for it touches."""
        activity = self.report.activity if self.report else None
        if not queues and activity is not None:
            session = self.query_one(WaitsTree).session
            waiters = (s for s in activity.sessions if session and session.key in s.blocked_by)
            queues = [queue for waiter in waiters for queue in waiter.queues]
        return (self.connection, *queues[0]) if queues else None

    def action_look_again(self) -> None:
        """Look again now."""
        self.desk.look_now()
        if not self._question.under_way:
            self._ask()

    def action_copy(self) -> None:
        """What stands below, to the clipboard."""
        if parts := self._detail():
            self.app.copy_to_clipboard("".join(text for text, _ in parts))
            self.notify("copied", markup=False)

    def action_twin(self) -> None:
        """The command line that shows the same."""
        show_twin(self, self.place, "waits", self.key)
