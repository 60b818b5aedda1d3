"""What all dialogs have in common. The application's own keys end at a modal screen."""

from typing import Any, ClassVar, TypeVar, cast

from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, Screen

Answer = TypeVar("Answer")


class DismissedOnce:
    """Of a screen. Keys may wait for one that is gone: a second Enter shall not close the next."""

    def dismiss(self, result: Any = None) -> AwaitComplete:
        """As Textual's; nothing where another screen is on top."""
        screen = cast("Screen[Any]", self)
        if screen.app.screen is not screen:
            return AwaitComplete()
        return Screen.dismiss(screen, result)


class Dialog(DismissedOnce, ModalScreen[Answer]):
    """Over the screen that opened it, and never changed by a refresh."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "app.help", "help", show=False, tooltip="this page"),
    ]
