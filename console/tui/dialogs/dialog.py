"""What all dialogs have in common: help. The application's own keys end at a modal screen."""

from typing import ClassVar, TypeVar

from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

Answer = TypeVar("Answer")


class Dialog(ModalScreen[Answer]):
    """Over the screen that opened it, and never changed by a refresh."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "app.help", "help", show=False, tooltip="this page"),
    ]
