"""A payload on the screen: only the rows in sight are drawn, however many there are."""

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from console.errors import ConsoleError
from console.tui.jobs import Question
from console.tui.payloads import Form, Row, Shown, form_of, shown
from console.tui.widgets.tones import TONE_CLASSES


class PayloadView(ScrollView, can_focus=True, inherit_bindings=False):
    """Give it a payload; it is laid out in a thread, and again for another width."""

    COMPONENT_CLASSES: ClassVar[set[str]] = TONE_CLASSES | {"payload-view--cursor"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "one row up", show=False),
        Binding("down,j", "move(1)", "one row down", show=False),
        Binding("pageup,ctrl+b", "page(-1)", "one page up", show=False),
        Binding("pagedown,ctrl+f", "page(1)", "one page down", show=False),
        Binding("home,g", "go(0)", "first row", show=False),
        Binding("end,G", "go(-1)", "last row", show=False),
        Binding("enter", "fold", "fold", show=False, tooltip="fold an object, or open it again"),
        Binding("v", "form(1)", "json/text/hex", tooltip="as JSON, text or hex"),
        Binding("V", "form(-1)", "form back", show=False, tooltip="the form before"),
    ]

    class LaidOut(Message):
        """It is on the screen."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  # Textual's own name
        super().__init__(id=id)
        self.payload: str | bytes | None = None
        self.cut = False
        self.form = Form.TEXT
        """As it is wanted; see `shown` for what could be had."""
        self.shown: Shown | None = None
        self.cursor = 0
        """The row of the cursor."""
        self._folds: set[int] = set()
        self._question: Question[Shown] = Question(self, self.show_rows, self._failed)
        self._width = 0

    @property
    def rows(self) -> Sequence[Row]:
        """What is on the screen."""
        return self.shown.rows if self.shown else ()

    @property
    def laying_out(self) -> bool:
        """Whether another lay-out is under way."""
        return self._question.under_way

    def show_payload(self, payload: str | bytes, *, cut: bool) -> None:
        """Show this; more of the same, if there was some before."""
        if self.payload is None:
            self.form = form_of(payload)
        self.payload, self.cut = payload, cut
        self._lay_out()

    def _lay_out(self) -> None:
        payload, form, cut, closed = self.payload, self.form, self.cut, frozenset(self._folds)
        self._width = width = self.scrollable_content_region.width
        if payload is not None and width > 0:
            self._question.ask(lambda: shown(payload, form, width, cut=cut, closed=closed))

    def show_rows(self, found: Shown) -> None:
        """They are laid out."""
        line = self.rows[self.cursor].line if self.cursor < len(self.rows) else 0
        same = self.shown is not None and self.shown.form is found.form
        self.shown = found
        self.virtual_size = Size(self._width, len(found.rows))
        self.cursor = min(self.cursor, len(found.rows) - 1)
        if same and found.form is not Form.HEX:
            # In another width the cursor stays on its line.
            self.cursor = _row_of(found.rows, line)
        elif not same:
            self.cursor = 0
        self._to_cursor()
        self.refresh()
        self.post_message(self.LaidOut())

    def _failed(self, error: ConsoleError) -> None:
        self.show_rows(Shown(self.form, [Row("?", 0)], error.what))

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
        """Another width has other rows."""
        if self.scrollable_content_region.width != self._width:
            self._lay_out()

    # How it is moved about.

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
        """Some rows down, or up."""
        self.action_go(max(0, self.cursor + rows))

    def action_page(self, pages: int) -> None:
        """Some pages down, or up."""
        self.action_move(pages * max(1, self.scrollable_content_region.height))

    def action_form(self, step: int) -> None:
        """In the next form."""
        forms = list(Form)
        self.form = forms[(forms.index(self.form) + step) % len(forms)]
        self._lay_out()

    def action_fold(self) -> None:
        """Fold the object or array under the cursor, or open it again."""
        if self.shown is None or self.cursor >= len(self.rows):
            return
        line = self.rows[self.cursor].line
        if line in self.shown.ends:
            self._folds ^= {line}
            self._lay_out()

    def check_action(
        self,
        action: str,
        parameters: tuple[object, ...],  # noqa: ARG002  # Textual's signature
    ) -> bool | None:
        """Without a payload there is nothing to fold: Enter means to load it."""
        return self.payload is not None or action not in {"fold", "form"}


def _row_of(rows: Sequence[Row], line: int) -> int:
    """The first row of a line, else of the one before it; rows are in the order of their lines."""
    low, high = 0, len(rows)
    while low < high:
        middle = (low + high) // 2
        if rows[middle].line < line:
            low = middle + 1
        else:
            high = middle
    return min(low, max(0, len(rows) - 1))
