"""Forms and their fields: a text, a choice, or a flag."""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.validation import ValidationResult, Validator
from textual.widget import Widget
from textual.widgets import Checkbox, Input, Static

from console.errors import UsageError
from console.tui.text import Paragraph, TextView, plain, shorten, style_of
from console.verbs.parameters import Parameter

LabeledValues = Sequence[tuple[str, str]]
"""(value, label) pairs."""


class Chooser(Widget, can_focus=True):
    """A choice on one line; values that do not fit are reached by moving on."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "step(-1)", "previous", show=False),
        Binding("right,l,space", "step(1)", "next", show=False),
    ]
    choices: reactive[LabeledValues] = reactive[LabeledValues](())
    value = reactive("")

    class Changed(Message):
        """The operator chose another value."""

    def __init__(self, choices: LabeledValues, value: str = "") -> None:
        super().__init__()
        self.choices = tuple(choices)
        self.value = value or (choices[0][0] if choices else "")

    @property
    def _at(self) -> int:
        values = [value for value, _ in self.choices]
        return values.index(self.value) if self.value in values else 0

    def render(self) -> Text:
        """The current value and as many neighbours as fit, those to the right first."""
        width = max(10, self.size.width or 40)
        labels = [shorten(plain(label), width - 6) for _, label in self.choices]
        line = Text(no_wrap=True)
        first = last = self._at
        room = width - cell_len(labels[self._at]) - 8 if labels else 0
        while labels:
            if last + 1 < len(labels) and cell_len(labels[last + 1]) + 4 <= room:
                last += 1
                room -= cell_len(labels[last]) + 4
            elif first > 0 and cell_len(labels[first - 1]) + 4 <= room:
                first -= 1
                room -= cell_len(labels[first]) + 4
            else:
                break
        line.append("‹ " if first else "", style_of(self, "quiet"))  # noqa: RUF001
        for at in range(first, last + 1 if labels else first):
            chosen = at == self._at
            style = style_of(self, "strong" if chosen else "quiet")
            if chosen and self.has_focus:
                style += style_of(self, "sorted")
            line.append(f"{'●' if chosen else '○'} {labels[at]}", style)
            line.append("  ")
        line.append("›" if last + 1 < len(labels) else " ", style_of(self, "quiet"))  # noqa: RUF001
        return line

    def action_step(self, step: int) -> None:
        """To the next value or the previous one; the first follows the last."""
        if self.choices:
            self.value = self.choices[(self._at + step) % len(self.choices)][0]
            self.post_message(self.Changed())

    def on_click(self) -> None:
        self.focus()
        self.action_step(1)


class Flag(Checkbox, inherit_bindings=False):
    """Toggled by Space or a click; Enter is the form's. It needs no colour."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "toggle_button", "on or off", show=False, tooltip="tick or untick")
    ]

    def render(self) -> Content:
        return Content("[x]" if self.value else "[ ]")


class Check(Validator):
    """A text is invalid if the check raises UsageError."""

    def __init__(self, check: Callable[[str], None]) -> None:
        super().__init__()
        self._check = check

    def validate(self, value: str) -> ValidationResult:
        """The failure is the error's text on one line."""
        try:
            self._check(value)
        except UsageError as error:
            parts = (error.what, error.why, error.next_step)
            return self.failure(" ".join(part for part in parts if part))
        return self.success()


class Field(Vertical):
    """A label, a control and a help line. `value` is its text; for a flag "yes" or empty."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "app.focus_previous", "the previous field", show=False),
        Binding("down", "app.focus_next", "the next field", show=False),
    ]

    class Changed(Message):
        """The operator changed it."""

        def __init__(self, field: "Field") -> None:
            super().__init__()
            self.field = field

    def __init__(
        self,
        name: str,
        title: str = "",
        *,
        value: str = "",
        choices: LabeledValues | None = None,
        help: str = "",  # noqa: A002  # its plain name
        placeholder: str = "",
        check: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`choices`: for a Chooser. `check` raises UsageError for an invalid text."""
        super().__init__(id=f"field-{name}", classes="field")
        self.field_name = name
        self._title = title or name
        self._help = help
        self._error_text = ""
        self.control: Chooser | Flag | Input
        if choices is None:
            self.control = Input(
                value,
                placeholder=placeholder,
                compact=True,
                validators=[Check(check)],
                validate_on=(),
            )
        else:
            self.control = Chooser(choices, value)
        self._program_value = value
        """The last value set by the program."""
        self.touched = False
        """Whether the operator changed it."""

    @classmethod
    def for_parameter(cls, parameter: Parameter, text: str = "") -> "Field":
        """For a verb's parameter; its help is shown beside it unless that is too long."""
        field = cls(parameter.name, parameter.name.replace("-", " "), help=parameter.help)
        field.add_class("-wide" if parameter.multiple else "-beside")
        field._program_value = text or parameter.default
        if parameter.is_flag:
            field.control = Flag(value=bool(text), compact=True)
        else:
            # Or the first key press would replace a prefilled text.
            field.control = Input(
                field._program_value,
                compact=True,
                select_on_focus=not text,
                validators=[Check(parameter.check)],
                validate_on=(),
            )
        return field

    def compose(self) -> ComposeResult:
        with Horizontal(classes="field-line"):
            yield TextView(Text(plain(self._title)), classes="field-name")
            yield self.control
            if self._beside:
                yield Static(Text(self._help), classes="field-side-help")
        yield Paragraph(classes="field-help")

    def on_mount(self) -> None:
        self._draw()

    @property
    def _beside(self) -> bool:
        return self.has_class("-beside")

    @property
    def value(self) -> str:
        if isinstance(self.control, Flag):
            return "yes" if self.control.value else ""
        return self.control.value

    @value.setter
    def value(self, value: str) -> None:
        self._program_value = value
        if isinstance(self.control, Flag):
            self.control.value = bool(value)
        else:
            self.control.value = value

    def set_value(self, value: str, choices: LabeledValues | None = None, help: str = "") -> None:  # noqa: A002
        if isinstance(self.control, Chooser) and choices is not None:
            self.control.choices = tuple(choices)
        self.value = value
        self.set_help(help)

    def set_help(self, help: str) -> None:  # noqa: A002
        if help != self._help:
            self._help = help
            self._draw()

    def show_error(self, error: str) -> None:
        """Show an error in place of the help; empty: none."""
        if error != self._error_text:
            self._error_text = error
            self._draw()

    def check(self) -> bool:
        """Validate it; an error is shown below the field."""
        result = self.control.validate(self.value) if isinstance(self.control, Input) else None
        self.show_error(" ".join(result.failure_descriptions) if result else "")
        return not self.has_error

    @property
    def has_error(self) -> bool:
        return bool(self._error_text)

    def focus_control(self) -> None:
        # At once: focus() is deferred, and the next keys would go to the old widget.
        self.screen.set_focus(self.control)

    def _draw(self) -> None:
        if not self.is_attached:
            return
        paragraph = self.query_one(".field-help", Paragraph)
        help_ = "" if self._beside else self._help
        if self._error_text:
            paragraph.set_text(
                Text(f"✖ {plain(self._error_text)}", style_of(paragraph, "critical"))
            )
        else:
            paragraph.set_text(Text(plain(help_), style_of(paragraph, "quiet")))
        paragraph.display = bool(self._error_text or help_)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        if self.touched or event.value != self._program_value:
            self._change()

    def on_chooser_changed(self, event: Chooser.Changed) -> None:
        event.stop()
        self._change()

    def on_checkbox_changed(self, event: Checkbox.Changed) -> None:
        event.stop()
        self._change()

    def _change(self) -> None:
        self.touched = True
        self.post_message(self.Changed(self))


class Form(VerticalScroll, can_focus=False):
    """A column of fields."""

    def __init__(self, *, id: str, hint: str = "") -> None:  # noqa: A002
        """`hint`: a line below the fields."""
        super().__init__(id=id)
        self._hint = hint

    def compose(self) -> ComposeResult:
        if self._hint:
            yield Static(Text(self._hint), id="hint", classes="quiet")

    def add_fields(self, parameters: Sequence[Parameter], texts: Mapping[str, str]) -> None:
        """Add a field for each parameter, with its initial text."""
        fields = [
            Field.for_parameter(parameter, texts.get(parameter.name, ""))
            for parameter in parameters
        ]
        self.mount(*fields, before=0)

    @property
    def fields(self) -> list[Field]:
        return list(self.query(Field))

    def __getitem__(self, name: str) -> Field:
        return self.query_one(f"#field-{name}", Field)

    @property
    def values(self) -> dict[str, str]:
        return {field.field_name: field.value for field in self.fields}

    def check(self) -> bool:
        """Validate all visible fields; the first invalid one gets the focus."""
        for field in self.fields:
            if field.display:
                field.check()
        return not self.focus_first_error()

    def focus_first(self) -> None:
        self.fields[0].focus_control()

    def focus_first_error(self) -> bool:
        """Focus the first invalid field; whether there is one."""
        wrong = [field for field in self.fields if field.has_error and field.display]
        if wrong:
            wrong[0].focus_control()
        return bool(wrong)
