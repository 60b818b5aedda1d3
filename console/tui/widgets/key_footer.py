"""The line of keys at the bottom of every screen."""

from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget

if TYPE_CHECKING:
    from textual.binding import Binding


class KeyFooter(Widget):
    """As Textual's footer, which has a widget for each key: these were laid out, styled and painted
    again at each opening and each step of the focus, at a third of what the rest of a screen took.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {"key-footer--key", "key-footer--hover"}
    DEFAULT_CSS = """
    KeyFooter {
        dock: bottom; height: 1; background: $footer-background;
        color: $footer-description-foreground;
        .key-footer--key { color: $footer-key-foreground; text-style: bold; }
        .key-footer--hover { background: $block-hover-background; }
    }
    """
    ALLOW_SELECT = False

    def __init__(self) -> None:
        super().__init__()
        self._shown: tuple[tuple[Binding, bool, str], ...] = ()
        """Each with whether it works now, and what it does in more words."""
        self._hovered: int | None = None

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self.bindings_changed)
        self.bindings_changed(self.screen)

    def on_unmount(self) -> None:
        self.screen.bindings_updated_signal.unsubscribe(self)

    def bindings_changed(self, screen: Screen[object]) -> None:
        """A screen that follows a database asks for it at every sample."""
        if screen.app.app_focus and screen is self.screen:
            # Of several keys for one thing the first.
            by_action: dict[str, tuple[Binding, bool, str]] = {}
            for _, binding, works, tooltip in screen.active_bindings.values():
                if binding.show:
                    by_action.setdefault(binding.action, (binding, works, tooltip))
            shown = tuple(by_action.values())
            if shown != self._shown:
                self._shown = shown
                self.refresh()

    @property
    def words(self) -> list[tuple[str, str]]:
        """Each key as it is shown, and what it does, with their blanks."""
        shown = (one[0] for one in self._shown)
        return [(f" {self.app.get_key_display(one)} ", f"{one.description} ") for one in shown]

    def render_line(self, y: int) -> Strip:  # noqa: ARG002  # there is one
        base, segments = self.rich_style, list[Segment]()
        for place, ((key, does), (_, works, _)) in enumerate(
            zip(self.words, self._shown, strict=True)
        ):
            style = base if works else base + Style(dim=True)
            if place == self._hovered:
                style += self.get_component_rich_style("key-footer--hover", partial=True)
            bold = self.get_component_rich_style("key-footer--key", partial=True)
            segments += [Segment(key, style + bold), Segment(does, style)]
        return Strip(segments).adjust_cell_length(self.size.width, base)

    def _at(self, x: int) -> int | None:
        end = 0
        for place, (key, does) in enumerate(self.words):
            end += cell_len(key) + cell_len(does)
            if x < end:
                return place
        return None

    def on_mouse_down(self, event: events.MouseDown) -> None:
        if (place := self._at(event.x)) is not None:
            binding, works, _ = self._shown[place]
            if works:
                self.app.simulate_key(binding.key)
            else:
                self.app.bell()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        self._hover(self._at(event.x))

    def on_leave(self) -> None:
        self._hover(None)

    def _hover(self, place: int | None) -> None:
        if place != self._hovered:
            self._hovered = place
            self.tooltip = None if place is None else self._shown[place][2] or None
            self.refresh()
