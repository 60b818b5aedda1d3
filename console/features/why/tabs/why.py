"""Why it is not as usual: what changed, and what may have caused it."""

from collections.abc import Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType

from console.features.why.explain import Explanation
from console.features.why.tabs.timeline import RecordedTab
from console.features.why.views.why import VIEW
from console.tui.open_connection import OpenConnection
from console.tui.text import TextView
from console.views.view import Source, View, no_database

_SMALL, _FEW = 32, 3
"""A screen of fewer lines has so many above the causes."""


class WhyTab(RecordedTab):
    """The likeliest cause first; Enter opens the tab that shows it."""

    NAME: ClassVar[str] = "why"
    TITLE: ClassVar[str] = "Why"
    VIEW: ClassVar[View[Any, Any]] = VIEW
    COMMAND: ClassVar[Sequence[str]] = ("why",)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open", tooltip="the tab that shows it")
    ]

    def source(self, conn: OpenConnection | None) -> Source:
        values = super().source(conn).values
        return Source(no_database, values={**values, "at": values["now"]})

    def draw_texts(self) -> None:
        self.table.display = self.result is not None and bool(self.result.causes)
        super().draw_texts()

    def summary(self, head: TextView, result: Explanation) -> list[Text]:
        """A small screen has the causes rather than every figure."""
        lines = super().summary(head, result)
        return lines[:_FEW] if self.app.size.height < _SMALL and result.causes else lines

    def action_open(self) -> None:
        if self.table.row is not None:
            _, cause = self.table.row
            self.navigator.open_queue(self.key, cause.opens)


TAB = WhyTab
