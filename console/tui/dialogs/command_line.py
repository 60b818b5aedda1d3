"""The line behind `:`, at the bottom of the screen."""

from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input

from console.errors import ConsoleError
from console.tui import commands
from console.tui.commands import Site
from console.tui.completion import completions
from console.tui.dialogs.dialog import Dialog
from console.tui.text import plain, said
from console.tui.widgets.paragraph import Paragraph
from console.tui.widgets.tones import tone

_SHOWN = 12


class CommandLineDialog(Dialog[None]):
    """Enter does it, Escape leaves it; what is wrong is answered above the line."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "leave", show=False),
        Binding("tab", "complete(1)", "complete", show=False, priority=True),
        Binding("shift+tab", "complete(-1)", "the one before", show=False, priority=True),
        Binding("up", "remember(-1)", "the line before", show=False),
        Binding("down", "remember(1)", "the next line", show=False),
    ]

    def __init__(self, site: Site, text: str = "") -> None:
        super().__init__()
        self._site = site
        self._text = text
        self._offered: list[str] = []
        self._at = -1
        self._past = len(site.desk.history)

    def compose(self) -> ComposeResult:
        """What could be typed, and the line."""
        with Vertical(id="command-line"):
            yield Paragraph(id="command-words")
            yield Input(self._text, id="command-input", compact=True, select_on_focus=False)

    def on_mount(self) -> None:
        """The line has the keys."""
        line = self.query_one(Input)
        self.set_focus(line)
        line.cursor_position = len(line.value)
        self._offer()

    def on_key(self, event: events.Key) -> None:
        """What was typed before the line was there goes into it all the same."""
        line = self.query_one(Input)
        if self.focused is not line and event.is_printable and event.character:
            event.stop()
            line.insert_text_at_cursor(event.character)

    def _offer(self) -> None:
        line = self.query_one(Input).value
        self._offered, self._at = completions(self._site, line), -1
        self._say()

    def _say(self) -> None:
        words = self.query_one("#command-words", Paragraph)
        line = self.query_one(Input).value
        text = Text()
        names = [one.rpartition(" ")[2] for one in self._offered]
        first = max(0, self._at - _SHOWN + 1)
        for at, name in enumerate(names[first : first + _SHOWN], start=first):
            text.append(plain(name), tone(words, "sorted" if at == self._at else "quiet"))
            text.append("  ")
        if len(names) > first + _SHOWN:
            text.append(f"+ {len(names) - first - _SHOWN}", tone(words, "quiet"))
        command = commands.BY_NAME.get(line.split(" ")[0])
        if command is not None:
            text.append("\n" if text else "")
            text.append(f":{command.name} {command.usage}", tone(words, "strong"))
            text.append(f"   {command.summary}", tone(words, "quiet"))
        words.say(text)

    def on_input_changed(self) -> None:
        """What fits what was typed so far."""
        self._offer()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Do it, or say what is wrong with it."""
        event.stop()
        line = event.value.strip()
        if not line:
            self.app.pop_screen()
            return
        history = self._site.desk.history
        if not history or history[-1] != line:
            history.append(line)
        # First this is gone: where the command goes shall not lie under it.
        self.app.pop_screen()
        try:
            commands.run(self._site, line)
        except ConsoleError as error:
            again = CommandLineDialog(self._site, line)
            self.app.push_screen(again)
            again.call_after_refresh(again.answer, error)

    def answer(self, error: ConsoleError) -> None:
        """What is wrong with the line."""
        words = self.query_one("#command-words", Paragraph)
        words.say(Text(" ".join(said(error).splitlines()), tone(words, "critical")))

    def action_complete(self, step: int) -> None:
        """The next of what it could become."""
        if not self._offered:
            return
        self._at = (self._at + step) % len(self._offered) if self._at >= 0 else min(0, step - 1)
        self._at %= len(self._offered)
        alone = len(self._offered) == 1
        self._put(self._offered[self._at] + (" " if alone else ""))
        if alone:
            self._offer()
        else:
            self._say()

    def _put(self, text: str) -> None:
        line = self.query_one(Input)
        with line.prevent(Input.Changed):
            line.value = text
        line.cursor_position = len(text)

    def action_remember(self, step: int) -> None:
        """A line that was typed before."""
        history = self._site.desk.history
        self._past = max(0, min(len(history), self._past + step))
        self._put(history[self._past] if self._past < len(history) else "")
        self._offer()
