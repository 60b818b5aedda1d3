"""A few lines of text that are drawn again only when they say something else."""

from rich.text import Text
from textual.widgets import Static


class Lines(Static):
    """Data, never markup. Only another number of lines lays the whole screen out again."""

    _said = Text()

    def say(self, text: Text) -> None:
        """Show this from now on."""
        if text != self._said:
            lines = (text.plain.count("\n"), self._said.plain.count("\n"))
            self._said = text
            self.update(text, layout=lines[0] != lines[1])

    @property
    def said(self) -> str:
        """What is shown, without its colours."""
        return self._said.plain
