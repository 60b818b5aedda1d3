"""Fields of forms, the word that confirms, and the verb that is suggested first."""

from textual.app import ComposeResult

from console.plan import Confirmation
from console.tui.dialogs.verbs import suggested
from console.tui.widgets.field import Field, Form
from console.verbs.parameters import BATCH, CANARY, FILTER
from tests.tui.opened import Plain

CHOICES = [("a", "the first"), ("b", "the second")]


class Forms(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.changed: list[str] = []

    def compose(self) -> ComposeResult:
        with Form(id="form", hint="Enter makes the plan."):
            yield Field("which", choices=CHOICES, help="one of two")

    def on_field_changed(self, event: Field.Changed) -> None:
        self.changed.append(event.field.field_name)


async def test_text_flag_and_choice_are_fields_of_one_form() -> None:
    app = Forms()
    async with app.run_test(size=(80, 24)) as pilot:
        form = app.query_one(Form)
        form.add_fields([FILTER, BATCH, CANARY], {"filter": "state=error"})
        await pilot.pause()
        assert app.changed == []
        fields = ("filter", "batch", "canary", "which")
        assert sorted(form.values) == sorted(fields)
        assert [form.values[name] for name in fields] == ["state=error", BATCH.default, "", "a"]
        form.focus_first()
        assert not form["filter"].has_error
        form["canary"].focus_control()
        await pilot.press("space")
        form["which"].focus_control()
        await pilot.press("right")
        assert (form["canary"].value, form["which"].value) == ("yes", "b")
        assert app.changed == ["canary", "which"]
        # An invalid value is reported under its field, which has the focus.
        form["batch"].value = "none"
        assert not form.check()
        assert app.focused is form["batch"].control
        form["batch"].value = "5"
        assert form.check()


def test_only_the_expected_word_confirms() -> None:
    for word, requires_name, confirms in (
        ("y", False, True),
        ("YES ", False, True),
        ("mail", False, True),
        ("y", True, False),
        ("mail", True, True),
        ("mails", True, False),
        ("", False, False),
        (" ", True, False),
    ):
        assert (Confirmation("mail", requires_name).error_for(word) == "") == confirms, word


def test_the_selected_state_suggests_a_verb_before_the_queues_figures_do() -> None:
    for stuck, errors, state, verb in (
        (3, 5, "", "release"),
        (0, 5, "", "requeue"),
        (None, None, "", ""),
        (3, 5, "error", "requeue"),
        (3, 5, "done", "archive"),
        (3, 5, "ready", ""),
        (0, 5, "claimed", "release"),
    ):
        assert suggested(stuck, errors, state) == verb
