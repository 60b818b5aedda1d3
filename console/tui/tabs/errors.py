"""The tab Errors of a queue: its errors in groups, each of which opens to its messages."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from console.designs import recorded
from console.errors import ConsoleError
from console.formats import ESTIMATE, count
from console.monitor.errors import ErrorGroup, ErrorGroups, filters_of
from console.tui.context import Context
from console.tui.findings import QueueKey
from console.tui.tabs.messages import MessagesTab
from console.tui.tabs.tab import ListTab
from console.tui.text import TextView, plain, style_of
from console.tui.views import QueueView
from console.tui.widgets.browser import Browser, filter_keys
from console.views.errors import VIEW, wording
from console.views.view import Column, Part, View

_GROUPS = "back to the groups"


class ErrorsTab(ListTab[ErrorGroups]):
    """The most frequent group first."""

    VIEW: ClassVar[View[Any, Any]] = VIEW
    NAME: ClassVar[str] = "errors"
    TITLE: ClassVar[str] = "Errors"
    SHORT_TITLE: ClassVar[str] = "Errs"
    COMMAND: ClassVar[Sequence[str]] = ("errors",)
    COPIED: ClassVar[str] = "copied the sample"
    KEEPS_ROWS: ClassVar[bool] = True
    BINDINGS: ClassVar[list[BindingType]] = [
        *filter_keys(Browser.FORMS, show=False),
        Binding("escape", "close_group", _GROUPS, show=False, priority=True),
        Binding("q", "close_group", _GROUPS, show=False),
        Binding("q", "clear_filter", "clear the marks and the filter", show=False),
        Binding("enter", "open_group", "open", tooltip="the messages of this group"),
        Binding("a", "act", "actions", tooltip="act on all errors of this group"),
    ]

    def __init__(self, context: Context, key: QueueKey) -> None:
        super().__init__(context, key)
        self.pane = MessagesTab(context, key, ("state=error",))
        self.pane.display = False

    @property
    def columns(self) -> Sequence[Column[ErrorGroup]]:
        """With 0 for a group whose errors are gone: its row stays while the cursor is on it."""
        first, *others = super().columns
        return (replace(first, value=self._count), *others)

    @property
    def command(self) -> Sequence[str]:
        return self.pane.command if self.is_open else self.COMMAND

    @classmethod
    def unavailable(cls, view: QueueView) -> str:
        snapshot = view.snapshot
        if snapshot.problem or snapshot.errors is not None or "errors" in snapshot.unknown:
            return ""
        if why := recorded(snapshot.design).errors_elsewhere:
            return f"{why}."
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

    def refresh_now(self) -> None:
        if self.is_open:
            self.pane.refresh_now()
        else:
            super().refresh_now()

    def draw(self, view: QueueView | None, *, paused: bool) -> None:
        self.pane.draw(view, paused=paused)
        super().draw(view, paused=paused)

    @property
    def shown_error(self) -> ConsoleError | None:
        """None while the messages of a group are shown: their pane has its own errors."""
        return None if self.is_open else self.error

    def summary(self, head: TextView, result: ErrorGroups) -> list[Text]:
        if not self.is_open:
            return super().summary(head, result)
        words = "" if self.group is None else wording(self.group)
        return [Text(words, style_of(head, "strong"), no_wrap=True)]

    def detail(self) -> Sequence[Part]:
        return [] if self.is_open else super().detail()

    def text_of(self, row: ErrorGroup) -> str:
        return plain(row.sample)

    def check_action(self, action: str, parameters: object) -> bool | None:
        if not self.is_mounted:
            return True
        if action == "close_group":
            # In its messages Escape first undoes typing, marks and filters.
            return self.is_open and not (self.pane.typing or self.pane.narrowed)
        return not self.is_open and super().check_action(action, parameters)

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

    def _count(self, group: ErrorGroup) -> str:
        exact = self.result is not None and self.result.complete
        number = 0 if group.key in self.table.removed else group.count
        return ("" if exact else ESTIMATE) + count(number)
