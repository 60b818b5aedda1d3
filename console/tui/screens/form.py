"""A screen that begins with a form: its keys, and one question to a thread at a time."""

from collections.abc import Callable
from typing import ClassVar, TypeVar

from textual.binding import Binding, BindingType

from console.tui.desk import Desk
from console.tui.screens.live import LiveScreen

T = TypeVar("T")


class FormScreen(LiveScreen):
    """Fields have the focus as soon as there are any; keys that move it come before all others, so
    that what is typed right after them goes the new way."""

    AUTO_FOCUS = ""
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012  # Textual has it as an instance's
        (0, "-narrow"),
        (70, "-normal"),
        (120, "-broad"),
    ]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "app.focus_next", "next field", show=False, priority=True),
        Binding("shift+tab", "app.focus_previous", "field before", show=False, priority=True),
    ]

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._asked = 0

    def ask_anew(self) -> None:
        """From here on an answer to an earlier question is for nobody."""
        self._asked += 1

    def still_asked(self, then: Callable[[T], None]) -> Callable[[T], None]:
        """`then`, for as long as what is asked now is what was asked last."""
        number = self._asked

        def answered(found: T) -> None:
            if number == self._asked:
                then(found)

        return answered
