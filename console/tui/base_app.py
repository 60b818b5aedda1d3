"""What is done once for the whole application, so that a paint is cheap."""

import gc
import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from rich.style import Style
from textual.app import App
from textual.screen import Screen

from console.tui.text import NAMES


class BaseApp(App[None]):
    """Its style sheet says what tones look like: as component classes of every widget they were
    looked up again at each restyling, which was a third of what opening a queue cost."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"tone--{name}" for name in NAMES}
    _tones: Mapping[str, Style] = MappingProxyType({})
    _prepared = False

    def notify_style_update(self) -> None:
        """Another theme has other tones."""
        self._tones = {}
        super().notify_style_update()

    def tone(self, name: str) -> Style:
        if not self._component_styles:
            self.stylesheet.apply(self)  # it is styled after the first of its widgets
        if name not in self._tones:
            style = self.get_component_styles(f"tone--{name}").partial_rich_style
            self._tones = {**self._tones, name: style}
        return self._tones[name]

    @property
    def _background_screens(self) -> list[Screen[Any]]:
        """Textual takes what an opaque screen covers for its background, and paints the whole of
        both at each message that comes to the covered one."""
        opaque = self.screen.styles.background.a == 1
        return [] if opaque else super()._background_screens

    def prepare(self) -> None:
        """Once there are figures on the screen: load what is opened next while nobody waits."""
        if not self._prepared and not self.is_headless:
            self._prepared = True
            threading.Thread(target=_prepare, daemon=True).start()


def _prepare() -> None:
    import console.tui.screens.queue  # noqa: F401, PLC0415  # not before the first figures

    # What was imported is no garbage: to look at all of it takes the collector 60 ms, in which no
    # key is painted.
    gc.freeze()
