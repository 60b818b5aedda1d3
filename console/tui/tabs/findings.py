"""The tab Findings of a queue: each finding with its evidence, and what was not examined."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from console.doctor.finding import countdown
from console.tui.context import Context
from console.tui.findings import QueueKey, full_soon
from console.tui.tabs.tab import QueueTab
from console.tui.text import TextView, first_line, plain, show_lines, style_of, whole_seconds
from console.tui.views import QueueView
from console.tui.widgets.browser import LIST_KEYS, Browser
from console.tui.widgets.keyed_table import PADDING, ColumnLayout, KeyedTable
from console.views.doctor import VIEW, FindingView, by_key, lasted_text, summary_style
from console.views.view import Column, View


class FindingLines(Static):
    """A finding in full."""

    def draw(
        self,
        view: FindingView,
        context: Context,
        *,
        details: bool = True,
        evidence: bool = True,
        allowed: bool = True,
    ) -> None:
        """`allowed`: whether its repair may be done here (else grey)."""
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True, style=style_of(self, "quiet"))
        table.add_column(overflow="fold")
        rows = list(self._details(view, context.moment, allowed=allowed)) if details else []
        rows += self._evidence(view, context) if evidence else []
        for head, text in rows:
            table.add_row(Text(head), text)
        self.update(table)

    def _details(
        self, view: FindingView, moment: Callable[[datetime], str], *, allowed: bool
    ) -> Iterator[tuple[str, Text]]:
        yield view.level.word, Text(view.text, style_of(self, view.style))
        if view.silenced is not None:
            yield view.silenced.state, Text(plain(view.silenced.words))
        yield "since", Text(since_text(view, moment))
        if view.explanation:
            yield "error", Text(view.explanation)
        finding = view.finding
        if finding is None:
            return
        for head, text in (("cause", finding.cause), ("consequence", finding.consequence)):
            if text:
                yield head, Text(plain(text))
        if finding.repair is not None:
            needs = f"  (needs {finding.repair.rights.word})"
            grey = style_of(self, "" if allowed else "quiet")
            yield "repair", Text(plain(finding.repair.summary) + needs, grey)
            if finding.command:
                yield "command", Text(plain(finding.command))
        else:
            yield "repair", Text("\n".join(map(plain, finding.judgement_text.splitlines())))
        if finding.runbook:
            yield "runbook", Text(plain(finding.runbook))

    def _evidence(self, view: FindingView, context: Context) -> Iterator[tuple[str, Text]]:
        lines = [] if view.finding is None else view.finding.evidence_lines
        if lines and view.diagnosed_seconds_ago is not None:
            at = context.clock.utc() - timedelta(seconds=view.diagnosed_seconds_ago)
            lines.insert(0, f"as of {context.moment(at)}")
        head = "evidence"
        for line in lines:
            yield head, Text(plain(line), style_of(self, "quiet"))
            head = ""


def since_text(view: FindingView, moment: Callable[[datetime], str]) -> str:
    """`2026-03-29 01:58:11 UTC, for 15 min 56 s`."""
    lasted = "" if view.since_seconds is None else f"for {whole_seconds(view.since_seconds)}"
    if view.at_least:
        lasted += " or longer: it was there at this console's first sample"
    if view.finding is not None and view.finding.since is not None:
        return f"{moment(view.finding.since)}, {lasted}"
    return lasted or "not known"


_LONGEST_LABEL = 24
_LEAST_SUMMARY = 30
_LEAST_ROOM = 20
_INSIDE = " › "  # noqa: RUF001  # not a greater-than sign: it separates two names


def _queue(view: FindingView) -> str:
    is_of_queue = view.connection_label and view.queue_key is not None
    return f"{view.connection_label}{_INSIDE}{view.label}" if is_of_queue else view.label


_MARK = Column[FindingView]("mark", "", lambda v: v.mark, lambda v: v.style)
_QUEUE = Column[FindingView]("queue", "", _queue)
_SUMMARY = Column[FindingView]("summary", "", lambda v: v.text, summary_style)
_SINCE = Column[FindingView]("since", "", lasted_text, "quiet", align_right=True)
_REPAIR = Column[FindingView]("repair", "", lambda v: v.repair_text, "quiet")


class FindingsTable(KeyedTable[FindingView]):
    """A table without column titles."""

    HEADER_LINES = 0

    def __init__(self, *, id: str) -> None:  # noqa: A002  # Textual's own name
        super().__init__((_QUEUE, _SUMMARY, _SINCE, _REPAIR), id=id)
        self.stays_on_top = False
        """While it has no focus: the most severe finding is in sight, and the first for Tab."""

    def show_findings(self, views: Sequence[FindingView], *, keep_order: bool = False) -> None:
        """`keep_order`: those that are shown keep their lines, as far as the others allow."""
        if keep_order:
            views = self.in_shown_order(views, lambda view: repr(view.key))
        self.show({repr(view.key): view for view in views})
        if self.stays_on_top:
            self.move_cursor(0)
            self.scroll_to(y=0, animate=False, immediate=True)

    def lay_out(self, room: int) -> Sequence[ColumnLayout[FindingView]]:
        """The repair is dropped first; the summary always stays."""
        width, widest = max(room, _LEAST_ROOM), self.widest()
        queue = min(widest["queue"], _LONGEST_LABEL, max(8, width // 5))
        widths = {_MARK: 1, _QUEUE: queue, _SUMMARY: 0, _SINCE: widest["since"]}
        left = width - sum(one + PADDING for one in widths.values())
        repair_width = 0
        if widest["repair"]:
            repair_width = min(
                widest["repair"], left - PADDING - min(widest["summary"], left * 3 // 5)
            )
            repair_width = (
                repair_width if repair_width >= min(widest["repair"], _LEAST_SUMMARY) else 0
            )
        widths[_SUMMARY] = max(1, left - (repair_width + PADDING if repair_width else 0))
        if repair_width:
            widths[_REPAIR] = repair_width
        return [ColumnLayout(column, width, "") for column, width in widths.items()]


class FindingsTab(QueueTab, Browser):
    """Shows the findings in the store; queries nothing itself."""

    VIEW: ClassVar[View[Any, Any]] = VIEW
    NAME: ClassVar[str] = "findings"
    TITLE: ClassVar[str] = "Findings"
    SHORT_TITLE: ClassVar[str] = "Find"
    COMMAND: ClassVar[Sequence[str]] = ("doctor",)
    BINDINGS: ClassVar[list[BindingType]] = [
        *LIST_KEYS,
        Binding("enter", "open", "open", tooltip="the finding: its evidence, and what repairs it"),
    ]

    def __init__(self, context: Context, key: QueueKey) -> None:
        super().__init__(context, key)
        self.table = self.new_table()
        self._view: QueueView | None = None

    def compose(self) -> ComposeResult:
        yield TextView(id="finding-head")
        yield self.table
        with VerticalScroll(id="finding-scroll"):
            yield FindingLines(id="finding-lines")
        yield self.hidden_filter()

    def draw(self, view: QueueView | None, *, paused: bool) -> None:
        """The findings stay while the screen is paused, and when the queue no longer exists."""
        if view is None or paused or not self.is_composed:
            return
        self._view, table = view, self.table
        table.columns = self.columns
        table.show(by_key(view.findings))
        table.display = bool(view.findings)
        lines = len(view.findings) + table.HEADER_LINES
        table.styles.height = min(lines, max(3, self.size.height // 3))
        self.draw_texts()

    @property
    def finding(self) -> FindingView | None:
        return self.table.row

    def draw_texts(self) -> None:
        finding, view = self.finding, self._view
        self.query_one("#finding-scroll").display = finding is not None
        if finding is not None:
            self.query_one(FindingLines).draw(finding, self.context)
        if view is None:
            return
        head = self.query_one("#finding-head", TextView)
        first, *others = (Text(text, style_of(head, name)) for text, name in self._summary(view))
        self.append_filter(first, head)
        self.append_marks(first, head)
        show_lines(head, [first, *others])

    def _summary(self, view: QueueView) -> Iterator[tuple[str, str]]:
        diagnosis = view.diagnosis
        if view.examining:
            yield "The doctor is at work ...", "strong"
        if diagnosis is None:
            yield "The doctor has not examined this queue yet. d starts it.", "quiet"
            return
        ago = whole_seconds(view.examined_seconds or 0.0)
        if not view.findings:
            if soon := full_soon(view.full_in_seconds):
                yield f"Nothing found: the doctor ran {ago} ago. But it is {soon}.", "warning"
            elif diagnosis.healthy:
                yield f"All clear: the doctor examined everything {ago} ago.", "good"
            else:
                words = (
                    f"Nothing found. The doctor ran {ago} ago, but could not examine everything."
                )
                yield words, ""
        else:
            yield f"The doctor ran {ago} ago.", "quiet"
        for why in diagnosis.unseen:
            if why == diagnosis.pending and view.next_examination_seconds is not None:
                yield countdown(view.next_examination_seconds), "quiet"
                continue
            yield f"? not examined: {first_line(why)}", "warning"

    def on_keyed_table_cursor_moved(self, event: KeyedTable.CursorMoved) -> None:
        event.stop()
        self.draw_texts()

    def on_marked_table_marks_changed(self) -> None:
        self.draw_texts()
        self.refresh_bindings()

    def action_open(self) -> None:
        finding = self.finding
        if finding is not None:
            self.navigator.open_finding(finding)
