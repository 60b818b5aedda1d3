"""Messages on the screen: a table with marked rows, and the head and payload of one message."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message as Event
from textual.scroll_view import ScrollView
from textual.strip import Strip

from console.errors import ConsoleError
from console.formats import UNKNOWN, count, duration
from console.monitor.errors import claimant
from console.monitor.message import Message
from console.monitor.owners import Evidence
from console.tui.context import Context
from console.tui.findings import QueueKey
from console.tui.jobs import LatestQuery
from console.tui.payloads import PayloadForm, PayloadLayout, PayloadRow, best_form, lay_out
from console.tui.text import TextView, plain, show_lines, style_of

_WIDE = 100
"""From this width on the times are on one line."""
_OWNERS = {Evidence.GONE: "critical", Evidence.ALIVE: "good"}


class MessageHead(TextView):
    """A few lines about one message."""

    def __init__(self) -> None:
        super().__init__(id="message-head")

    def draw(
        self,
        context: Context,
        key: QueueKey,
        message_key: str,
        message: Message | None,
        owner: Evidence | None,
        state: str,
    ) -> None:
        """`message`: as last read; `state`: gone, masks off, or empty."""
        title = Text(no_wrap=True)
        title.append(plain(f"{key[1]}.{key[2]}"), style_of(self, "quiet"))
        name = message_key.rsplit(",", maxsplit=1)[-1] if message is None else message.id or UNKNOWN
        title.append(f"  message {plain(name)}", style_of(self, "strong"))
        gone = state == "gone"
        if message is None:
            text = "  gone: popped, purged or archived" if gone else "  Reading ..."
            title.append(text, style_of(self, "critical" if gone else "quiet"))
            show_lines(self, [title])
            return
        if gone:
            title.append("  GONE; as it was last seen", style_of(self, "critical"))
        elif state:
            title.append(f"  {state}", style_of(self, "warning"))
        lines = [title, self._state(message), self._times(context, message)]
        if message.claimed_by is not None:
            lines.append(self._owner(message, owner))
        if message.title:
            lines.append(Text(f"title {plain(message.title)}", no_wrap=True))
        show_lines(self, lines)

    def _state(self, message: Message) -> Text:
        style = style_of(self, "warning" if message.state == "error" else "strong")
        line = Text(message.state, style, no_wrap=True)
        if message.age_seconds is not None:
            line.append(f" for {duration(max(message.age_seconds, 0.0))}")
        facts = [] if message.attempts is None else [f"attempts {message.attempts}"]
        if message.number is not None:
            facts.append(f"number {message.number:,}")
        if message.slot is not None:
            facts.append(f"slot {message.slot:,}")
        size = message.payload_bytes
        facts.append(f"payload {UNKNOWN if size is None else count(size)} bytes")
        return Text.assemble(line, "   " + "   ".join(facts), no_wrap=True)

    def _times(self, context: Context, message: Message) -> Text:
        times = (
            ("pushed", message.pushed_at),
            ("due", message.due_at),
            ("claimed", message.claimed_at),
            ("ended", message.done_at),
        )
        known = [f"{name} {context.moment(at)}" for name, at in times if at is not None]
        no_wrap = self.app.size.width >= _WIDE
        return Text("   ".join(known), style_of(self, "quiet"), no_wrap=no_wrap)

    def _owner(self, message: Message, owner: Evidence | None) -> Text:
        line = Text(no_wrap=True)
        if owner is not None:
            line.append(f"owner {owner.value}  ", style_of(self, _OWNERS.get(owner, "quiet")))
        return line.append(f"claimed by {plain(claimant(message.claimed_by))}")


class PayloadView(ScrollView, can_focus=True, inherit_bindings=False):
    """Shows a payload. It is laid out in a thread, and again if the width changes."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"payload-view--cursor"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "one row up", show=False),
        Binding("down,j", "move(1)", "one row down", show=False),
        Binding("pageup,ctrl+b", "page(-1)", "one page up", show=False),
        Binding("pagedown,ctrl+f", "page(1)", "one page down", show=False),
        Binding("home,g", "go(0)", "first row", show=False),
        Binding("end,G", "go(-1)", "last row", show=False),
        Binding("enter", "fold", "fold", show=False, tooltip="fold or unfold an object"),
        Binding("v", "form(1)", "json/text/hex", tooltip="as JSON, text or hex"),
        Binding("V", "form(-1)", "previous form", show=False, tooltip="the previous form"),
    ]

    class LaidOut(Event):
        """It is on the screen."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  # Textual's own name
        super().__init__(id=id)
        self.payload: str | bytes | None = None
        self.cut = False
        self.form = PayloadForm.TEXT
        """As requested; `layout_result` has the actual form."""
        self.layout_result: PayloadLayout | None = None
        self.cursor = 0
        """The row of the cursor."""
        self._folds: set[int] = set()
        self._layout_query: LatestQuery[PayloadLayout] = LatestQuery(
            self, self.show_rows, self._failed
        )
        self._width = 0

    @property
    def rows(self) -> Sequence[PayloadRow]:
        return self.layout_result.rows if self.layout_result else ()

    @property
    def laying_out(self) -> bool:
        return self._layout_query.busy

    def show_payload(self, payload: str | bytes, *, cut: bool) -> None:
        """Show this; more of the same, if there was some before."""
        if self.payload is None:
            self.form = best_form(payload)
        self.payload, self.cut = payload, cut
        self._lay_out()

    def _lay_out(self) -> None:
        payload, form, cut, closed = self.payload, self.form, self.cut, frozenset(self._folds)
        self._width = width = self.scrollable_content_region.width
        if payload is not None and width > 0:
            self._layout_query.submit(lambda: lay_out(payload, form, width, cut=cut, closed=closed))

    def show_rows(self, layout: PayloadLayout) -> None:
        line = self.rows[self.cursor].line if self.cursor < len(self.rows) else 0
        same = self.layout_result is not None and self.layout_result.form is layout.form
        self.layout_result = layout
        self.virtual_size = Size(self._width, len(layout.rows))
        self.cursor = min(self.cursor, len(layout.rows) - 1)
        if same and layout.form is not PayloadForm.HEX:
            # After a change of width the cursor stays on its line.
            self.cursor = _row_of(layout.rows, line)
        elif not same:
            self.cursor = 0
        self._to_cursor()
        self.refresh()
        self.post_message(self.LaidOut())

    def _failed(self, error: ConsoleError) -> None:
        self.show_rows(PayloadLayout(self.form, [PayloadRow("?", 0)], error.what))

    def render_line(self, y: int) -> Strip:
        """One row; the cursor's stands out while the view has the keys."""
        at = self.scroll_offset.y + y
        width = self.scrollable_content_region.width
        base = self.rich_style
        if at >= len(self.rows):
            return Strip.blank(width, base)
        if at == self.cursor and self.has_focus:
            base += self.get_component_rich_style("payload-view--cursor", partial=True)
        return Strip([Segment(self.rows[at].text, base)]).adjust_cell_length(width, base)

    def on_resize(self) -> None:
        if self.scrollable_content_region.width != self._width:
            self._lay_out()

    # Moving.

    def _to_cursor(self) -> None:
        top, height = self.scroll_offset.y, max(1, self.scrollable_content_region.height)
        if not top <= self.cursor < top + height:
            y = self.cursor if self.cursor < top else self.cursor - height + 1
            self.scroll_to(y=y, animate=False, immediate=True)

    def action_go(self, row: int) -> None:
        """To a row; -1 is the last."""
        if self.rows:
            last = len(self.rows) - 1
            self.cursor = last if row < 0 else min(row, last)
            self._to_cursor()
            self.refresh()

    def action_move(self, rows: int) -> None:
        self.action_go(max(0, self.cursor + rows))

    def action_page(self, pages: int) -> None:
        self.action_move(pages * max(1, self.scrollable_content_region.height))

    def action_form(self, step: int) -> None:
        forms = list(PayloadForm)
        self.form = forms[(forms.index(self.form) + step) % len(forms)]
        self._lay_out()

    def action_fold(self) -> None:
        if self.layout_result is None or self.cursor >= len(self.rows):
            return
        line = self.rows[self.cursor].line
        if line in self.layout_result.ends:
            self._folds ^= {line}
            self._lay_out()

    def check_action(self, action: str, _parameters: object) -> bool | None:
        """Without a payload Enter loads it instead."""
        return self.payload is not None or action not in {"fold", "form"}


def _row_of(rows: Sequence[PayloadRow], line: int) -> int:
    """The first row of a line, else of the one before it; rows are in the order of their lines."""
    return min(bisect_left(rows, line, key=lambda row: row.line), max(0, len(rows) - 1))
