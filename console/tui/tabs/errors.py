"""The tab Errors of a queue: its errors in groups, each of which opens to its messages."""

from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from console.errors import ConsoleError
from console.formats import ESTIMATE, count, numbered, short_moment
from console.monitor.errors import (
    ErrorGroup,
    ErrorGroups,
    attempts_range,
    error_groups,
    filters_of,
)
from console.tui.context import Context
from console.tui.findings import QueueKey
from console.tui.open_connection import OpenConnection
from console.tui.tabs.messages import MessagesTab
from console.tui.tabs.tab import TableTab
from console.tui.text import TextView, plain, style_of
from console.tui.views import QueueView
from console.tui.widgets.keyed_table import Column, KeyedTable, or_unknown

_GROUPS = "back to the groups"


class ErrorsTab(TableTab[ErrorGroups]):
    """The most frequent group first."""

    NAME: ClassVar[str] = "errors"
    TITLE: ClassVar[str] = "Errors"
    SHORT_TITLE: ClassVar[str] = "Errs"
    COMMAND: ClassVar[Sequence[str]] = ("errors",)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close_group", _GROUPS, show=False, priority=True),
        Binding("q", "close_group", _GROUPS, show=False),
        Binding("enter", "open_group", "open", tooltip="the messages of this group"),
        Binding("a", "act", "actions", tooltip="act on all errors of this group"),
        Binding("y", "copy", "copy the sample of this group", show=False),
    ]

    def __init__(self, context: Context, key: QueueKey) -> None:
        super().__init__(context, key)
        self.pane = MessagesTab(context, key, ("state=error",))
        self.pane.display = False
        columns: tuple[Column[ErrorGroup], ...] = (
            Column("count", "errors", self._count, "strong", 6, 12, align_right=True),
            Column("first", "first", lambda group: self._time(group.first_at), "quiet", 14, 14),
            Column("last", "last", lambda group: self._time(group.last_at), "", 14, 14),
            Column("tries", "attempts", attempts_range, "quiet", 8, 8, align_right=True),
            Column("wording", "group", _wording, "", 40, 400),
        )
        self.table = KeyedTable(columns, ("tries", "first"), id="groups")

    @property
    def command(self) -> Sequence[str]:
        return self.pane.command if self.is_open else self.COMMAND

    @classmethod
    def unavailable(cls, view: QueueView) -> str:
        snapshot = view.snapshot
        if snapshot.problem or snapshot.errors is not None or "errors" in snapshot.unknown:
            return ""
        return f"The design {snapshot.design} keeps no errors: that is up to its consumers."

    def compose(self) -> ComposeResult:
        yield from super().compose()
        yield self.pane

    @property
    def group(self) -> ErrorGroup | None:
        return self.table.row

    @property
    def is_open(self) -> bool:
        return bool(self.pane.display)

    def poll(self) -> None:
        if self.is_open:
            self.pane.poll()
        else:
            super().poll()

    def read(self, conn: OpenConnection) -> ErrorGroups:
        return error_groups(conn.database, conn.find(*self.key[1:]), masks=conn.masks)

    def refresh_now(self) -> None:
        if self.is_open:
            self.pane.refresh_now()
        else:
            super().refresh_now()

    def show(self, result: ErrorGroups) -> None:
        self.table.show({group.key: group for group in result.groups}, keep=True)

    def draw(self, view: QueueView | None, *, paused: bool) -> None:
        self.pane.draw(view, paused=paused)
        super().draw(view, paused=paused)

    @property
    def shown_error(self) -> ConsoleError | None:
        """None while the messages of a group are shown: their pane has its own errors."""
        return None if self.is_open else self.error

    def summary(self, head: TextView, result: ErrorGroups) -> list[Text]:
        strong, line = style_of(head, "strong"), Text(no_wrap=True)
        if self.is_open:
            return [line.append("" if self.group is None else _wording(self.group), strong)]
        if not result.counted:
            line.append("No errors.", style_of(head, "good"))
        else:
            groups = numbered(len(result.groups), "group") + " at least" * bool(result.ungrouped)
            line.append(f"{numbered(result.counted, 'error')} in {groups}", strong)
        if not result.complete:
            line.append(", the newest; older ones were not counted", style_of(head, "warning"))
        self.append_time(line, "  ")
        return [line]

    def detail(self) -> list[tuple[str, str]]:
        group = self.group
        if group is None or self.is_open:
            return []
        sample = plain(" ".join(group.sample.split())) or "(no text)"
        of = "" if group.sample_id is None else f", message {plain(group.sample_id)}"
        return [(f"newest{of}: ", "quiet"), (sample, "")]

    def check_action(self, action: str, _parameters: object) -> bool | None:
        if not self.is_mounted:
            return True
        if action == "close_group":
            # In its messages Escape first undoes typing, marks and filters.
            return self.is_open and not (self.pane.typing or self.pane.narrowed)
        return not self.is_open or action not in {"open_group", "act", "copy"}

    def action_open_group(self) -> None:
        group = self.group
        if group is None:
            return
        self.table.display = False
        self.pane.display = True
        self.pane.open(filters_of(group).words)
        self.screen.set_focus(self.pane.table)
        self.draw_texts()

    def action_close_group(self) -> None:
        self.pane.display = False
        self.table.display = True
        self.screen.set_focus(self.table)
        self.draw_texts()

    def action_act(self) -> None:
        if (group := self.group) is not None:
            self.navigator.open_actions(self.key, filters_of(group).words)

    def action_copy(self) -> None:
        if (group := self.group) is not None:
            self.app.copy_to_clipboard(plain(group.sample))
            self.notify("copied the sample", markup=False)

    def _count(self, group: ErrorGroup) -> str:
        """0 for a group whose errors are gone: its row stays while the cursor is on it."""
        exact = self.result is not None and self.result.complete
        number = 0 if group.key in self.table.removed else group.count
        return ("" if exact else ESTIMATE) + count(number)

    def _time(self, at: datetime | None) -> str:
        return or_unknown(at, lambda at: short_moment(at, self.context.zone))


def _wording(group: ErrorGroup) -> str:
    return plain(group.wording) or "(no text)"
