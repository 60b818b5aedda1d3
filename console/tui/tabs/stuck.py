"""The tab Stuck of a queue: claims, sessions that hold rows, and whether they are connected."""

from collections.abc import Sequence
from typing import Any, ClassVar

from textual.binding import Binding, BindingType

from console.tui.tabs.tab import ListTab
from console.tui.widgets.keyed_table import MarkedTable
from console.views.stuck import VIEW, QueueHolders
from console.views.view import View


class StuckTab(ListTab[QueueHolders]):
    """Claims with the evidence about their owners; sessions that hold rows, where a pop deletes."""

    VIEW: ClassVar[View[Any, Any]] = VIEW
    NAME: ClassVar[str] = "stuck"
    TITLE: ClassVar[str] = "Stuck"
    PACE_SECONDS: ClassVar[float] = 2.0
    COMMAND: ClassVar[Sequence[str]] = ("stuck",)
    COPIED: ClassVar[str] = "copied who holds it"
    KEEPS_ROWS: ClassVar[bool] = True
    TABLE: ClassVar[type[MarkedTable[Any]]] = MarkedTable
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "act", "actions", tooltip="act on these claims, or terminate this session"),
        Binding(
            "f", "free", "release gone", tooltip="release all claims whose consumer disconnected"
        ),
    ]

    def check_action(self, action: str, parameters: object) -> bool | None:
        if action == "free" and self.result is not None and self.result.claims is None:
            return False
        return super().check_action(action, parameters)

    def action_act(self) -> None:
        """Act on these claims, or terminate the session under the cursor."""
        if self.table.all_matching:
            self.navigator.open_actions(self.key, ["state=claimed"])
            return
        rows = self.table.selected_rows
        sessions = [row.session for row in rows if row.session is not None]
        ids = [f"id={row.claim.id}" for row in rows if row.claim is not None]
        if ids:
            self.navigator.open_actions(self.key, ids, "claimed")
        elif len(sessions) == 1:
            self.navigator.open_action(self.key, "end-session", session=str(sessions[0].key))
        elif sessions:
            self.notify("One session is terminated at a time: clear the marks.", markup=False)

    def action_free(self) -> None:
        self.navigator.open_action(self.key, "release")
