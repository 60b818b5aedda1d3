"""Text that wraps: as high as it needs, whatever the width."""

from rich.text import Text

from console.tui.widgets.words import Words


class Paragraph(Words):
    """Other words may need another height, even with as many line ends."""

    DEFAULT_CSS = "Paragraph { width: 100%; height: auto; }"

    def say(self, text: Text) -> None:
        """Show this from now on."""
        if text != self._said:
            self._said = text
            self.update(text, layout=True)
