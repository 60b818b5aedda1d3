"""One line of a form: its name, what stands in it, and what that means or what is wrong."""

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import Input

from console.tui.text import plain, shorten
from console.tui.widgets.paragraph import Paragraph
from console.tui.widgets.tones import tone
from console.tui.widgets.words import Words


class Chooser(Words, can_focus=True):
    """One of a few, on one line; those that have no room are reached by moving on."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "step(-1)", "the one before", show=False),
        Binding("right,l,space", "step(1)", "the next one", show=False),
    ]

    class Chosen(Message):
        """The operator has chosen another one."""

    def __init__(self, values: Sequence[tuple[str, str]] = (), value: str = "") -> None:
        """`values`: each with the words for it."""
        super().__init__()
        self._values = tuple(values)
        self.value = value or (values[0][0] if values else "")

    def offer(self, values: Sequence[tuple[str, str]], value: str) -> None:
        """From now on one of these."""
        self._values, self.value = tuple(values), value
        self._draw()

    def choose(self, value: str) -> None:
        """Take this one."""
        self.value = value
        self._draw()

    def on_mount(self) -> None:
        """Draw what it was made with."""
        self._draw()

    def on_resize(self) -> None:
        """Another width shows more or less of them."""
        self._draw()

    def on_focus(self) -> None:
        """The keys are here now."""
        self._draw()

    def on_blur(self) -> None:
        """The keys are elsewhere."""
        self._draw()

    @property
    def _at(self) -> int:
        values = [value for value, _ in self._values]
        return values.index(self.value) if self.value in values else 0

    def _draw(self) -> None:
        if not self.is_attached:
            return
        width = max(10, self.size.width or 40)
        words = [shorten(plain(words), width - 6) for _, words in self._values]
        line = Text(no_wrap=True)
        first = last = self._at
        room = width - cell_len(words[self._at]) - 8 if words else 0
        while words:
            # As many neighbours as there is room for, to the right first.
            if last + 1 < len(words) and cell_len(words[last + 1]) + 4 <= room:
                last += 1
                room -= cell_len(words[last]) + 4
            elif first > 0 and cell_len(words[first - 1]) + 4 <= room:
                first -= 1
                room -= cell_len(words[first]) + 4
            else:
                break
        line.append("‹ " if first else "", tone(self, "quiet"))  # noqa: RUF001
        for at in range(first, last + 1 if words else first):
            chosen = at == self._at
            mark = "●" if chosen else "○"
            style = tone(self, "strong" if chosen else "quiet")
            if chosen and self.has_focus:
                style += tone(self, "sorted")
            line.append(f"{mark} {words[at]}", style)
            line.append("  ")
        line.append("›" if last + 1 < len(words) else " ", tone(self, "quiet"))  # noqa: RUF001
        self.say(line)

    def action_step(self, step: int) -> None:
        """The next one, or the one before; behind the last comes the first."""
        if self._values:
            self.choose(self._values[(self._at + step) % len(self._values)][0])
            self.post_message(self.Chosen())

    def on_click(self, event: events.Click) -> None:
        """A click moves on."""
        del event
        self.focus()
        self.action_step(1)


class Field(Vertical):
    """What stands in it is `value`; `complain` says in words what is wrong with that."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "app.focus_previous", "the field before", show=False),
        Binding("down", "app.focus_next", "the next field", show=False),
    ]

    class Changed(Message):
        """Something else stands in it."""

        def __init__(self, field: "Field") -> None:
            super().__init__()
            self.field = field

    def __init__(
        self,
        name: str,
        title: str = "",
        *,
        value: str = "",
        choices: Sequence[tuple[str, str]] | None = None,
        help: str = "",  # noqa: A002  # what it is
        placeholder: str = "",
        hidden: bool = False,
        prefix: str = "field",
    ) -> None:
        """`choices`: values with their words, for one of a few; `hidden`: typed unseen."""
        super().__init__(id=f"{prefix}-{name}", classes="form-field")
        self.field_name = name
        self._title = title or name
        self._help = help
        self._wrong = ""
        self._control: Chooser | Input
        if choices is None:
            self._control = Input(value, placeholder=placeholder, password=hidden, compact=True)
        else:
            self._control = Chooser(choices, value)
        self._given = value
        """What the console itself has put there."""
        self.touched = False
        """Whether the operator has changed it."""

    def compose(self) -> ComposeResult:
        """Two lines, or one."""
        with Horizontal(classes="form-line"):
            yield Words(Text(plain(self._title)), classes="form-name")
            yield self._control
        yield Paragraph(classes="form-help")

    def on_mount(self) -> None:
        """Say what it means."""
        self._draw()

    @property
    def value(self) -> str:
        """What stands in it."""
        return self._control.value

    @value.setter
    def value(self, value: str) -> None:
        if isinstance(self._control, Chooser):
            self._control.choose(value)
        else:
            self._given = value
            self._control.value = value

    @property
    def control(self) -> Chooser | Input:
        """What has the keys."""
        return self._control

    def offer(
        self,
        value: str,
        choices: Sequence[tuple[str, str]] | None = None,
        help: str = "",  # noqa: A002
    ) -> None:
        """Another thing to say by the same name."""
        self._help = help
        if isinstance(self._control, Chooser) and choices is not None:
            self._control.offer(choices, value)
        else:
            self.value = value
        self._draw()

    def explain(self, help: str) -> None:  # noqa: A002
        """Another meaning of the same thing."""
        if help != self._help:
            self._help = help
            self._draw()

    def complain(self, wrong: str) -> None:
        """Say what is wrong, in place of what it means; empty: nothing is."""
        if wrong != self._wrong:
            self._wrong = wrong
            self._draw()

    @property
    def is_wrong(self) -> bool:
        """Whether it was complained about."""
        return bool(self._wrong)

    def _draw(self) -> None:
        if not self.is_attached:
            return
        words = self.query_one(".form-help", Paragraph)
        if self._wrong:
            words.say(Text(f"✖ {plain(self._wrong)}", tone(words, "critical")))
        else:
            words.say(Text(plain(self._help), tone(words, "quiet")))
        words.display = bool(self._wrong or self._help)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Something was typed."""
        event.stop()
        if self.touched or event.value != self._given:
            self.touched = True
            self.post_message(self.Changed(self))

    def on_chooser_chosen(self, event: Chooser.Chosen) -> None:
        """Another one was chosen."""
        event.stop()
        self.touched = True
        self.post_message(self.Changed(self))
