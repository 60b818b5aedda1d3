"""The fields of one verb, checked one by one."""

from collections.abc import Mapping, Sequence

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from console.tui.actions.fields import Field
from console.tui.widgets.field_row import FieldRow

_HINT = "Enter makes the plan; that changes nothing. Tab: next field. Space ticks. Escape: out."


class ActionForm(VerticalScroll, can_focus=False):
    """What stands in it is text; only the fields themselves take keys."""

    def compose(self) -> ComposeResult:
        """The fields come when it is known which a queue has."""
        yield Vertical(id="fields")
        yield Static(Text(_HINT), id="hint", classes="quiet")

    def offer(self, fields: Sequence[Field], said: Mapping[str, str]) -> None:
        """These fields, with what is said in them to begin with."""
        rows = [FieldRow(field, said.get(field.name, "")) for field in fields]
        self.query_one("#fields").mount(*rows)

    @property
    def rows(self) -> list[FieldRow]:
        """One for each field."""
        return list(self.query(FieldRow))

    @property
    def said(self) -> dict[str, str]:
        """What stands in the fields now."""
        return {row.field.name: row.said for row in self.rows}

    def check(self) -> bool:
        """Whether all can be read; where not, the first that cannot has the keys."""
        wrong = [row for row in self.rows if not row.check()]
        if wrong:
            wrong[0].enter()
        return not wrong

    def enter(self) -> None:
        """Let the keys go to the first field."""
        self.rows[0].enter()
