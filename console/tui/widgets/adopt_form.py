"""What a table is to be adopted as: design and roles, or a preset; what it would look like so."""

from collections.abc import Mapping, Sequence

from rich.text import Text
from textual.app import ComposeResult
from textual.message import Message as Event

from console import formats
from console.actions import adopt
from console.actions.adopt import CandidateTable, Preview
from console.actions.libraries import DiscoveredTable
from console.designs import DESIGNS, Design, presets
from console.monitor.filters import line_of, words_of
from console.monitor.message import Message
from console.relations import Column
from console.tui.text import Paragraph, describe_error, plain, shorten, style_of
from console.tui.widgets.field import Field, Form

_FIGURES = ("ready", "age_seconds", "claimed", "stuck", "errors", "done", "scheduled")


class AdoptPreview(Paragraph):
    """Says what is still wanted, before anything is asked of the table."""

    def draw(self, missing: Sequence[str], preview: Preview | None) -> None:
        """`missing`: the roles that the design cannot do without; None: it is being asked."""
        text = Text()
        if missing:
            text.append(f"Still missing: {', '.join(missing)}.\n", style_of(self, "warning"))
        elif preview is None:
            text.append("Reading its rows ...\n", style_of(self, "quiet"))
        else:
            self._append(text, preview)
        self.set_text(text)

    def _append(self, text: Text, preview: Preview) -> None:
        for error in preview.errors:
            text.append(
                f"✖ {' '.join(describe_error(error).splitlines())}\n", style_of(self, "critical")
            )
        if preview.messages or not preview.errors:
            text.append("As a queue, its first messages are:\n", style_of(self, "strong"))
        width = max(20, (self.size.width or self.app.size.width) - 4)
        for message in preview.messages:
            text.append(f"  {shorten(_message_text(message), width)}\n")
        if not preview.messages and not preview.errors:
            text.append(
                "  none; the table is empty, or no row has a state\n", style_of(self, "quiet")
            )
        figures = preview.figures
        if figures is not None:
            text.append("Figures: ", style_of(self, "strong"))
            shown = [(n.removesuffix("_seconds"), figures.text_of(n)) for n in _FIGURES]
            kept = [f"{name} {value}" for name, value in shown if value != formats.NOT_APPLICABLE]
            text.append("  ".join(kept) + "\n")
            if figures.problem:
                text.append(f"✖ {plain(figures.problem)}\n", style_of(self, "critical"))
        able, unable = adopt.verbs(preview.queue)
        text.append("Verbs: ", style_of(self, "strong"))
        text.append("  ".join(able) + "\n")
        for verb, why in unable.items():
            text.append(f"  no {verb}: {why}\n", style_of(self, "quiet"))


def _message_text(message: Message) -> str:
    """One row of the preview; safe to show."""
    payload = message.payload
    body = payload.hex(" ") if isinstance(payload, bytes) else payload or ""
    age = formats.UNKNOWN if message.age_seconds is None else formats.duration(message.age_seconds)
    parts = [message.id or formats.UNKNOWN, message.state, age]
    if message.error:
        parts.append(f"error: {message.error}")
    return plain("  ".join((*parts, body)))


_TYPED = {"push_sequence", "pop_sequence", "size"}
"""Roles that no column has."""
_ROLES = tuple(adopt.WHAT_ROLES_ARE)
_NONE = "-"
_LIBRARY_FIELDS = ("only", "called")
"""What a preset asks for, in place of roles."""


class AdoptForm(Form):
    """Each role says what it is, and what its absence costs."""

    class Mapped(Event):
        """It says something else now."""

    def __init__(self, designs: Sequence[str]) -> None:
        """`designs`: those that a table can be of here."""
        super().__init__(id="adopt-form")
        self._designs = designs
        self.table: CandidateTable | None = None
        self.found: DiscoveredTable | None = None
        """What a library with a preset keeps in it."""
        self._columns: Sequence[Column] = ()

    def compose(self) -> ComposeResult:
        """Fields for all; those of the design are in sight."""
        yield Field("design", choices=[(name, name) for name in self._designs], value="claim")
        yield Field("only", "queue", choices=[(_NONE, "all of them")])
        yield Field("called", "name")
        for role in _ROLES:
            yield Field(role, choices=None if role in _TYPED else [(_NONE, "none")])

    @property
    def design(self) -> Design:
        """The design that is chosen; or the library, whose preset is."""
        name = self["design"].value
        return presets().get(name) or DESIGNS[name]

    @property
    def called(self) -> str:
        """The name that the queue of a preset shall have."""
        return self["called"].value.strip()

    @property
    def part(self) -> str:
        """The one queue of a library that is meant; empty: all that its table has."""
        value = self["only"].value
        return "" if value == _NONE else value

    @property
    def roles(self) -> dict[str, str]:
        """Role -> column, as the form has it; those that are not mapped are left out."""
        if self.design.library:
            return {}
        found = {role: self[role].value for role in adopt.roles_of(self.design)}
        return {role: column for role, column in found.items() if column not in {"", _NONE}}

    @property
    def missing(self) -> list[str]:
        of, roles = self.design, self.roles
        if of.library:
            return [] if self.called else ["called"]
        every = adopt.roles_of(of)
        return [role for role in every if adopt.is_needed(of, role) and role not in roles]

    def show(
        self,
        table: CandidateTable,
        found: DiscoveredTable | None,
        columns: Sequence[Column],
        begins: Mapping[str, str],
    ) -> None:
        """A table: each role gets the column that is likely its own, or that `begins` names."""
        self.table, self.found, self._columns = table, found, columns
        if found is not None:
            self._offer_preset(found)
        elif self.design.library:
            self["design"].value = "claim"
        if (named := begins.get("design", "")) in self._choices:
            self["design"].value = named
        self._design_chosen()
        for pair in words_of(begins.get("map", "")):
            role, _, column = pair.partition("=")
            if role in _ROLES:
                self[role].value = column
        if not self.design.library:
            self._mapping_changed()

    def _offer_preset(self, found: DiscoveredTable) -> None:
        """What the library keeps there: all of it first, under the name of its table."""
        self["design"].set_value(found.of.name, [(n, n) for n in self._choices])
        every = [(name, name) for name in found.queues]
        if found.table.queue is None:
            every = [(_NONE, "all of them"), *every]
        self["only"].set_value(every[0][0], every, "which of the queues in the table")
        called = self["called"]
        name = found.table.queue or found.table.table
        called.set_value(name, None, "the queue's name in this console")
        called.touched = False

    def _design_chosen(self) -> None:
        of = self.design
        self["design"].set_value(of.name, [(n, n) for n in self._choices], of.summary)
        for name in _LIBRARY_FIELDS:
            self[name].display = bool(of.library)
        if of.library:
            for role in _ROLES:
                self[role].display = False
            self._preset_changed()
            return
        guessed = adopt.guess(of, self._columns)
        choices = [(_NONE, "none"), *((c.name, f"{c.name} {c.type}") for c in self._columns)]
        shown = adopt.roles_of(of)
        for role in _ROLES:
            field = self[role]
            field.display = role in shown
            if role in _TYPED:
                field.set_value(field.value, None, adopt.WHAT_ROLES_ARE[role])
            else:
                field.set_value(guessed.get(role, _NONE), choices)
        self._mapping_changed()

    @property
    def _choices(self) -> list[str]:
        """The designs; before them the library's own, where the table is one's."""
        found = self.found
        return [*([found.of.name] if found else []), *self._designs]

    def _preset_changed(self) -> None:
        self["called"].show_error("" if self.called else "the queue needs a name")
        self.post_message(self.Mapped())

    def _mapping_changed(self) -> None:
        of, roles = self.design, self.roles
        for role in adopt.roles_of(of):
            field = self[role]
            words = adopt.WHAT_ROLES_ARE[role]
            if role not in roles and role in adopt.WITHOUT:
                words += f" · without it: {adopt.WITHOUT[role]}"
            value = field.value
            field.set_help(words)
            needed = adopt.is_needed(of, role) and role not in roles
            field.show_error(f"{of.name} needs it: {words}" if needed else "")
            if role == "size" and value and not value.isdecimal():
                field.show_error(f"a whole number, not {value!r}")
        self.post_message(self.Mapped())

    def on_field_changed(self, event: Field.Changed) -> None:
        event.stop()
        if event.field.field_name == "design":
            self._design_chosen()
        elif self.design.library:
            if event.field.field_name == "only" and not self["called"].touched:
                whole = "" if self.table is None else self.table.name
                self["called"].value = self.part or whole
            self._preset_changed()
        else:
            self._mapping_changed()

    @property
    def values(self) -> dict[str, str]:
        table, of = self.table, self.design
        if table is None:
            return {}
        if of.library:
            only = {"queue": self.part, "table": table.name}
            return {"name": self.called, "preset": of.name, **only}
        roles = line_of([f"{role}={column}" for role, column in self.roles.items()])
        return {"name": table.name, "design": of.name, "map": roles}
