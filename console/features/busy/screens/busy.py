"""Who works on what now, over all queues of all connections."""

from dataclasses import replace
from typing import Any, ClassVar

from textual.binding import Binding, BindingType

from console.features.busy.views.busy import VIEW, BusyRow, rows_of
from console.tui.context import Context
from console.tui.screens.live import OUT, PolledScreen, ScreenHead
from console.tui.text import Paragraph, show_parts, style_of
from console.tui.widgets.browser import COPY_KEYS, SORT_KEYS, Browser, filter_keys
from console.views.view import View


class BusyScreen(PolledScreen):
    """The longest held first; Enter opens the message, or the waits of the queue."""

    EVERY_SECONDS: ClassVar[float] = 1.0
    VIEW: ClassVar[View[Any, Any]] = VIEW
    BINDINGS: ClassVar[list[BindingType]] = [
        *filter_keys(Browser.FORMS, show=False),
        *SORT_KEYS,
        *COPY_KEYS,
        OUT,
        Binding("enter", "open", "message", tooltip="the message, or what holds the rows"),
    ]

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._rows: list[BusyRow] = []

    def reload(self) -> None:
        """The samples are in the store."""
        self.draw_texts()

    def draw_texts(self) -> None:
        if self.paused_at is None or not self.table.rows:
            now = self.context.clock.monotonic()
            queues = self.context.store.queues(now)
            self._rows = rows_of(replace(view.snapshot, connection=view.key[0]) for view in queues)
        self.show_rows(VIEW.rows(self._rows), VIEW.empty)
        head = self.query_one(f"#{VIEW.name}-head", ScreenHead)
        line = self.paused_head(head, "Busy now")
        for text, style in VIEW.summary_lines(self._rows, self.context.display)[0]:
            line.append(f"   {text}", style_of(head, style))
        self.append_filter(line, head)
        head.draw(line)
        self._draw_detail()

    def _draw_detail(self) -> None:
        detail, row = self.query_one(".pane-detail", Paragraph), self.table.row
        detail.display = row is not None
        if row is not None:
            show_parts(detail, VIEW.details(row, self.context.display))

    def on_keyed_table_cursor_moved(self) -> None:
        self._draw_detail()

    def action_open(self) -> None:
        row: BusyRow | None = self.table.row
        if row is None:
            return
        key = (row.connection, row.schema, row.queue)
        if row.message is not None:
            self.navigator.open_messages(key, [f"id={row.message}"])
        else:
            self.navigator.open_queue(key, "stuck")
