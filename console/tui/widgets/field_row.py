"""One field of a form: its name, what is said, what it means, and what is wrong with it."""

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Input, Static

from console.errors import UsageError
from console.tui.actions.fields import Field, Kind
from console.tui.text import plain
from console.tui.widgets.lines import Lines


class Tick(Static, can_focus=True):
    """On or off by Space or a click; Enter is the form's. A letter tells which, not a colour."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "turn", "on or off", show=False, tooltip="tick, or not"),
    ]

    def __init__(self, *, value: bool) -> None:
        super().__init__()
        self.value = value

    def render(self) -> Text:
        """As in a terminal everywhere."""
        return Text("[x]" if self.value else "[ ]")

    def action_turn(self) -> None:
        """The other way."""
        self.value = not self.value
        self.refresh()

    def on_click(self) -> None:
        """The mouse does the same."""
        self.action_turn()


class FieldRow(Vertical):
    """What is said in it is text; of a flag "yes" or nothing."""

    def __init__(self, field: Field, said: str = "") -> None:
        super().__init__(classes="field")
        self.field = field
        self._begins = said
        if field.kind is Kind.FILTERS:
            self.add_class("-wide")

    def compose(self) -> ComposeResult:
        """The filters' own words are long: they stand below them."""
        flag = self.field.kind is Kind.FLAG
        with Horizontal():
            yield Static(Text(self.field.name.replace("-", " ")), classes="field-name")
            if flag:
                yield Tick(value=bool(self._begins))
            else:
                # What was filled in shall not go with the first key that is pressed.
                yield Input(
                    self._begins or self.field.default,
                    compact=True,
                    select_on_focus=not self._begins,
                )
            if self.field.kind is not Kind.FILTERS:
                yield Static(Text(self.field.summary), classes="field-words")
        if self.field.kind is Kind.FILTERS:
            yield Static(Text(self.field.summary), classes="field-words")
        yield Lines(classes="field-problem")

    def on_mount(self) -> None:
        """There is nothing wrong yet."""
        self.query_one(".field-problem").display = False

    @property
    def said(self) -> str:
        """What stands in it now."""
        if self.field.kind is Kind.FLAG:
            return "yes" if self.query_one(Tick).value else ""
        return self.query_one(Input).value

    def check(self) -> bool:
        """Whether it can stand so; where not, the reason stands under it."""
        why = ""
        try:
            self.field.check(self.said)
        except UsageError as error:
            why = " ".join(part for part in (error.what, error.why, error.next_step) if part)
        problem = self.query_one(".field-problem", Lines)
        problem.display = bool(why)
        problem.say(Text(f"✖ {plain(why)}" if why else ""))
        return not why

    def enter(self) -> None:
        """Let the keys go here."""
        # At once: focus() would let the next keys go the old way.
        self.screen.set_focus(self.query_one(Tick if self.field.kind is Kind.FLAG else Input))
