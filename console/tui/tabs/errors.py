"""The tab Errors of a queue: its errors by kind, each of which opens to its messages."""

from dataclasses import replace
from datetime import datetime
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from console.errors import ConsoleError
from console.formats import ESTIMATE, UNKNOWN, clock, count, numbered
from console.monitor.errors import (
    ErrorGroup,
    ErrorGroups,
    also_matching,
    error_groups,
    filters_of,
)
from console.monitor.message_words import tried
from console.tui.board import Key, QueueView
from console.tui.desk import Desk
from console.tui.dialogs.command import show_twin
from console.tui.jobs import Question
from console.tui.tabs.keys import DETAIL_FROM, take_keys
from console.tui.tabs.message_pane import MessagePane
from console.tui.tabs.pace import Pace
from console.tui.tabs.tab import QueueTab
from console.tui.text import plain
from console.tui.widgets.fitting import Wish
from console.tui.widgets.keeping import keys_with
from console.tui.widgets.keyed_table import Cell
from console.tui.widgets.list_table import ListTable
from console.tui.widgets.telling import say, told
from console.tui.widgets.tones import tone
from console.tui.widgets.words import Words

_WISHES = (
    Wish("count", "errors", least=6, most=12, right=True),
    Wish("first", "first", least=14, most=14),
    Wish("last", "last", least=14, most=14),
    Wish("tries", "tries", least=5, most=8, right=True),
    Wish("wording", "kind", least=40, most=400),
)
_LOST_FIRST = ("tries", "first")
_KINDS = "back to the kinds"


class ErrorsTab(QueueTab):
    """The most frequent kind first."""

    NAME: ClassVar[str] = "errors"
    TITLE: ClassVar[str] = "Errors"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close_group", "kinds", show=False, priority=True, tooltip=_KINDS),
        Binding("q", "close_group", "kinds", show=False, tooltip=_KINDS),
        Binding("enter", "open_group", "open", tooltip="the messages of this kind"),
        Binding("a", "act", "actions", tooltip="act on all errors of this kind"),
        Binding("r", "look_again", "now", show=False, tooltip="count again now"),
        Binding("y", "copy", "copy", show=False, tooltip="copy the sample of this kind"),
        Binding("o", "twin", "command", show=False, tooltip="the command line that shows the same"),
    ]

    _groups: dict[str, ErrorGroup]
    _at: datetime | None = None
    """When they were counted."""

    def __init__(self, desk: Desk, key: Key) -> None:
        super().__init__(desk, key)
        self.found: ErrorGroups | None = None
        self.pane = MessagePane(desk, key, ("state=error",))
        self.pane.display = False
        self._groups = {}
        self._error: ConsoleError | None = None
        self._paused = False
        self._pace = Pace(desk.clock.monotonic, 5.0)
        self._question: Question[ErrorGroups] = Question(self, self.show_groups, self.fail)

    @classmethod
    def applies(cls, view: QueueView) -> bool:
        """Where a message can fail."""
        snapshot = view.snapshot
        return snapshot.errors is not None or "errors" in snapshot.unknown

    def compose(self) -> ComposeResult:
        """The kinds, and in their place the messages of one."""
        yield Words(classes="pane-head", id="errors-head")
        yield GroupTable()
        yield Words(classes="pane-detail", id="errors-detail")
        yield self.pane

    def on_mount(self) -> None:
        """The kinds come first."""
        self._draw()
        take_keys(self, self.table)

    @property
    def table(self) -> "GroupTable":
        """The kinds."""
        return self.query_one(GroupTable)

    @property
    def group(self) -> ErrorGroup | None:
        """The kind under the cursor."""
        return self._groups.get(self.table.cursor_key or "")

    @property
    def is_open(self) -> bool:
        """Whether the messages of a kind are in sight."""
        return bool(self.pane.display)

    # What is asked, and what comes of it.

    def look(self) -> None:
        """Count again, where that is cheap; or see what has become of the messages in sight."""
        if self.is_open:
            self.pane.look()
        elif self._pace.due and not self._paused:
            self._ask(wait=False)

    def _ask(self, *, wait: bool = True) -> None:
        place = self.place
        if place is None or (not wait and self._question.under_way):
            return
        _, schema, name = self.key

        def work() -> ErrorGroups:
            return error_groups(place.database, place.find(schema, name), masks=place.masks)

        self._pace.asked()
        self._question.ask(work, wait=wait)
        self._draw()

    def show_groups(self, found: ErrorGroups) -> None:
        """They are counted."""
        self._pace.answered()
        self.found, self._error, self._at = found, None, self.desk.clock.utc()
        groups = {group.wording: group for group in found.groups}
        order = keys_with([*groups], [*self._groups], {self.table.cursor_key})
        # A kind that is gone stays, with none of it, while the cursor is there.
        self._groups = {
            key: groups.get(key) or replace(self._groups[key], count=0) for key in order
        }
        self.table.show_groups(self._groups, self.desk, complete=found.complete)
        self._draw()

    def fail(self, error: ConsoleError) -> None:
        """What was counted before stays, with when that was."""
        self._pace.answered()
        self._error = error
        self._draw()

    # What is drawn.

    def draw(self, view: QueueView | None, *, paused: bool) -> None:
        """The board has something new."""
        self._paused = paused
        self.pane.draw(view, paused=paused)
        if self.is_mounted:
            self._draw()

    def _draw(self) -> None:
        if not self.query("#errors-head"):
            return
        head = self.query_one("#errors-head", Words)
        lines = [self._opened_line(head) if self.is_open else self._summary(head)]
        if self._error is not None and not self.is_open:
            lines.append(told(head, self._error))
        say(head, lines)
        detail = self.query_one("#errors-detail", Words)
        room = self.app.size.height >= DETAIL_FROM
        detail.display = room and not self.is_open and self.group is not None
        detail.say(self._sample(detail))

    def _summary(self, head: Words) -> Text:
        found = self.found
        line = Text(no_wrap=True)
        if found is None:
            line.append("Counting ..." if self._question.under_way else "", tone(head, "quiet"))
            return line
        if not found.counted:
            line.append("No errors.", tone(head, "good"))
        else:
            at_least = " at least" if found.ungrouped else ""
            line.append(f"{numbered(found.counted, 'error')} of ", tone(head, "strong"))
            line.append(f"{numbered(len(found.groups), 'kind')}{at_least}", tone(head, "strong"))
        if not found.complete:
            line.append(", the newest; older ones were not counted", tone(head, "warning"))
        if self._at is not None:
            line.append(f"  as of {clock(self._at, self.desk.zone)}", tone(head, "quiet"))
        return line

    def _opened_line(self, head: Words) -> Text:
        line = Text(no_wrap=True)
        group = self.group
        if group is not None and self.found is not None:
            others = also_matching(group, self.found.groups)
            line.append(plain(group.wording) or "(no text)", tone(head, "strong"))
            if others:
                many = sum(other.count for other in others)
                words = f"  with {numbered(many, 'error')} of {numbered(len(others), 'kind')} more"
                line.append(words, tone(head, "warning"))
        return line

    def _sample(self, detail: Words) -> Text:
        group = self.group
        if group is None:
            return Text()
        sample = plain(" ".join(group.sample.split())) or "(no text)"
        of = "" if group.sample_id is None else f", message {plain(group.sample_id)}"
        said = Text(f"newest{of}: ", tone(detail, "quiet"))
        return said.append(sample, tone(detail, ""))

    def on_keyed_table_cursor_moved(self) -> None:
        """The sample is that of the kind under the cursor."""
        self._draw()

    # What the operator does.

    def check_action(
        self,
        action: str,
        parameters: tuple[object, ...],  # noqa: ARG002  # Textual's signature
    ) -> bool | None:
        """While the messages of a kind are in sight the keys are theirs."""
        if not self.is_mounted:
            return True
        if action == "close_group":
            # Escape takes back what is typed, marked or filtered there first.
            return self.is_open and not (self.pane.typing or self.pane.narrowed)
        return not self.is_open or action not in {"open_group", "act", "look_again", "copy", "twin"}

    def action_open_group(self) -> None:
        """The messages of the kind under the cursor."""
        group = self.group
        if group is None:
            return
        self.table.display = False
        self.pane.display = True
        self.pane.open(filters_of(group).words)
        self.screen.set_focus(self.pane.table)
        self._draw()

    def action_close_group(self) -> None:
        """The kinds again."""
        self.pane.display = False
        self.table.display = True
        self.screen.set_focus(self.table)
        self._draw()

    def action_act(self) -> None:
        """Act on all errors of the kind under the cursor."""
        if (group := self.group) is not None:
            self.ways.open_actions(self.key, filters_of(group).words)

    def action_look_again(self) -> None:
        """Count again now."""
        self.desk.look_now()
        self._ask()

    def action_copy(self) -> None:
        """The sample of the kind under the cursor, to the clipboard."""
        if (group := self.group) is not None:
            self.app.copy_to_clipboard(plain(group.sample))
            self.notify("copied the sample", markup=False)

    def action_twin(self) -> None:
        """The command line that shows the same."""
        show_twin(self, self.place, "errors", self.key)


class GroupTable(ListTable):
    """Kinds of errors, by their wording."""

    def __init__(self) -> None:
        super().__init__(_WISHES, _LOST_FIRST, id="groups")

    def show_groups(self, groups: dict[str, ErrorGroup], desk: Desk, *, complete: bool) -> None:
        """Show these, in this order."""
        self.show_rows(
            {
                key: {
                    "count": Cell(("" if complete else ESTIMATE) + count(group.count), "strong"),
                    "first": Cell(_time(group.first_at, desk), "quiet"),
                    "last": Cell(_time(group.last_at, desk)),
                    "tries": Cell(tried(group), "quiet"),
                    "wording": Cell(plain(group.wording) or "(no text)"),
                }
                for key, group in groups.items()
            }
        )


def _time(at: datetime | None, desk: Desk) -> str:
    return UNKNOWN if at is None else f"{at.astimezone(desk.zone):%m-%d %H:%M:%S}"
