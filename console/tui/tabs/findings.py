"""What the doctor says of a queue: each finding with its evidence, and what was not looked at."""

from collections.abc import Iterator
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll

from console.tui.board import Key, QueueView
from console.tui.desk import Desk
from console.tui.findings import FindingView
from console.tui.tabs.tab import QueueTab
from console.tui.text import first_line, whole_seconds
from console.tui.widgets.finding_lines import FindingLines
from console.tui.widgets.findings_table import FindingsTable
from console.tui.widgets.keyed_table import KeyedTable
from console.tui.widgets.tones import tone
from console.tui.widgets.words import Words


class FindingsTab(QueueTab):
    """It asks nothing: the doctor looks for the whole console, and the board has his word."""

    NAME: ClassVar[str] = "findings"
    TITLE: ClassVar[str] = "Findings"
    TWIN: ClassVar[str] = "doctor"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open", tooltip="the finding: its evidence, and what mends it"),
    ]

    def __init__(self, desk: Desk, key: Key) -> None:
        super().__init__(desk, key)
        self._views: tuple[FindingView, ...] = ()

    def compose(self) -> ComposeResult:
        """From the top: how the look was, the findings, the one under the cursor."""
        yield Words(id="finding-head")
        yield FindingsTable(id="finding-list")
        with VerticalScroll(id="finding-scroll"):
            yield FindingLines(id="finding-lines")

    def draw(self, view: QueueView | None, *, paused: bool) -> None:
        """What was found stays as it is while the screen is paused, and where the queue is gone."""
        if view is None or paused or not self.is_whole:
            return
        self._views = view.findings
        table = self.query_one(FindingsTable)
        table.display = bool(self._views)
        table.styles.height = min(len(self._views), max(2, self.size.height // 3))
        table.draw(self._views, max(20, self.app.size.width - 1), queues=False)
        self.query_one("#finding-head", Words).say(self._head(view))
        self._draw_lines()

    @property
    def finding(self) -> FindingView | None:
        """The one under the cursor."""
        return self.query_one(FindingsTable).view

    def _draw_lines(self) -> None:
        found = self.finding
        self.query_one("#finding-scroll").display = found is not None
        if found is not None:
            self.query_one(FindingLines).draw(found, self.desk.moment)

    def _head(self, view: QueueView) -> Text:
        head = Text()
        for words, mood in self._told(view):
            head.append("\n" if head else "")
            head.append(words, tone(self.query_one("#finding-head"), mood))
        return head

    def _told(self, view: QueueView) -> Iterator[tuple[str, str]]:
        diagnosis = view.diagnosis
        if diagnosis is None:
            yield "The doctor has not looked at this queue yet. d asks him to.", "quiet"
            return
        when = whole_seconds(view.examined_seconds or 0.0)
        if not view.findings:
            if diagnosis.healthy:
                yield f"All clear: the doctor looked at everything {when} ago.", "good"
            else:
                yield f"Nothing found. The doctor looked {when} ago, not at everything.", ""
        else:
            yield f"The doctor looked {when} ago.", "quiet"
        for why in diagnosis.unseen:
            yield f"? not looked at: {first_line(why)}", "warning"

    def on_keyed_table_cursor_moved(self, event: KeyedTable.CursorMoved) -> None:
        """Another one is under the cursor."""
        event.stop()
        self._draw_lines()

    def action_open(self) -> None:
        """The finding, and what mends it."""
        found = self.finding
        if found is not None:
            self.ways.open_finding(found)
