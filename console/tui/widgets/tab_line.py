"""The line of a screen's tabs: which there are, by their digits, and which is in sight."""

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from console.tui.widgets.tones import TONE_CLASSES, tone
from console.tui.widgets.words import Words


class TabLine(Words, can_focus=True):
    """One line, whatever the width: titles are lost before digits are."""

    COMPONENT_CLASSES: ClassVar[set[str]] = TONE_CLASSES | {"tab-line--chosen"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "step(-1)", "tab before", show=False),
        Binding("right,l", "step(1)", "next tab", show=False),
    ]

    class Chosen(Message):
        """The operator wants another tab in sight."""

        def __init__(self, place: int) -> None:
            super().__init__()
            self.place = place
            """From 0."""

    def __init__(self) -> None:
        super().__init__(id="tab-line")
        self._titles: tuple[str, ...] = ()
        self._chosen = 0
        self._ends: list[int] = []

    def draw(self, titles: Sequence[str], chosen: int) -> None:
        """Say them."""
        self._titles, self._chosen = tuple(titles), chosen
        width = max(1, self.app.size.width - 2)
        texts = [f" {number} {title} " for number, title in enumerate(titles, start=1)]
        if sum(map(len, texts)) > width:
            texts = [f"{number} {title} " for number, title in enumerate(titles, start=1)]
        if sum(map(len, texts)) > width:
            texts = [
                f"{place + 1} {title} " if place == chosen else f"{place + 1} "
                for place, title in enumerate(titles)
            ]
        line = Text(no_wrap=True)
        self._ends = []
        mark = self.get_component_rich_style("tab-line--chosen", partial=True)
        for place, text in enumerate(texts):
            line.append(text, mark if place == chosen else tone(self, "quiet"))
            self._ends.append(line.cell_len)
        self.say(line)

    def action_step(self, tabs: int) -> None:
        """The tab before, or the next; round the ends."""
        if self._titles:
            self.post_message(self.Chosen((self._chosen + tabs) % len(self._titles)))

    def on_click(self, event: events.Click) -> None:
        """A click chooses the tab under it."""
        place = next((p for p, end in enumerate(self._ends) if event.x - 1 < end), None)
        if place is not None:
            self.post_message(self.Chosen(place))
