"""The form that adopts a table: its design and roles, or a preset; and a preview of the queue."""

from collections.abc import Mapping, Sequence

from rich.text import Text
from textual.app import ComposeResult
from textual.message import Message as Event

from console import formats
from console.catalog.relations import Column
from console.designs import DESIGNS, Design, presets
from console.designs.model import CONSUMERS
from console.features.presets import adopt
from console.features.presets.adopt import CandidateQueue, CandidateTable
from console.features.presets.discovery import DiscoveredTable
from console.figures import SHOWN
from console.filters import line_of, words_of
from console.monitor.message import Message
from console.tui.text import Paragraph, describe_error, plain, shorten, style_of
from console.tui.widgets.field import Field, Form


class AdoptPreview(Paragraph):
    """Says what is still missing; then shows the table as a queue."""

    def draw(self, missing: Sequence[str], preview: CandidateQueue | None) -> None:
        """`missing`: roles that the design requires; `preview`: None while it is being read."""
        text = Text()
        if missing:
            text.append(f"Still missing: {', '.join(missing)}.\n", style_of(self, "warning"))
        elif preview is None:
            text.append("Reading its rows ...\n", style_of(self, "quiet"))
        else:
            self._append(text, preview)
        self.set_text(text)

    def _append(self, text: Text, preview: CandidateQueue) -> None:
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
            shown = [(of.title, figures.text_of(of.name)) for of in SHOWN if of.rows_read]
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
"""Roles whose values are typed, as they are not columns."""
_ROLES = tuple(adopt.WHAT_ROLES_ARE)
_NONE = "-"
_LIBRARY_FIELDS = ("only", "called")
"""The fields of a preset, in place of roles."""


class AdoptForm(Form):
    """Each role says what it is, and what is lost without it."""

    class Mapped(Event):
        """Its values have changed."""

    def __init__(self, designs: Sequence[str]) -> None:
        """`designs`: those that a table can have on this engine."""
        super().__init__(id="adopt-form")
        self._designs = designs
        self.table: CandidateTable | None = None
        self.discovered: DiscoveredTable | None = None
        """The library's queues in it, if a library with a preset made it."""
        self._columns: Sequence[Column] = ()

    def compose(self) -> ComposeResult:
        """Fields for all designs; those of the chosen one are visible."""
        yield Field("design", choices=[(name, name) for name in self._designs], value="claim")
        yield Field("only", "queue", choices=[(_NONE, "all of them")])
        yield Field("called", "name")
        for role in _ROLES:
            yield Field(role, choices=None if role in _TYPED else [(_NONE, "none")])
        yield Field(
            CONSUMERS.name, choices=[(c, c) for c in CONSUMERS.choices], value=CONSUMERS.default
        )

    @property
    def design(self) -> Design:
        """The chosen design, or that of the chosen library's preset."""
        name = self["design"].value
        return presets().get(name) or DESIGNS[name]

    @property
    def called(self) -> str:
        """The name for the queue of a preset."""
        return self["called"].value.strip()

    @property
    def part(self) -> str:
        """The chosen queue of a library's table; empty: all of them."""
        value = self["only"].value
        return "" if value == _NONE else value

    @property
    def roles(self) -> dict[str, str]:
        """Role -> column, without the roles that are not mapped."""
        if self.design.library:
            return {}
        mapped = {role: self[role].value for role in adopt.roles_of(self.design)}
        return {role: column for role, column in mapped.items() if column not in {"", _NONE}}

    @property
    def missing(self) -> list[str]:
        of, roles = self.design, self.roles
        if of.library:
            return [] if self.called else ["name"]
        every = adopt.roles_of(of)
        return [role for role in every if adopt.is_needed(of, role) and role not in roles]

    def show(
        self,
        table: CandidateTable,
        discovered: DiscoveredTable | None,
        columns: Sequence[Column],
        initial: Mapping[str, str],
    ) -> None:
        """Show a table: each role gets its most likely column, or the one in `initial`."""
        self.table, self.discovered, self._columns = table, discovered, columns
        if discovered is not None:
            self._offer_preset(discovered)
        elif self.design.library:
            self["design"].value = "claim"
        if (named := initial.get("design", "")) in self._choices:
            self["design"].value = named
        self._design_chosen()
        for pair in words_of(initial.get("map", "")):
            role, _, column = pair.partition("=")
            if role in _ROLES:
                self[role].value = column
        if (consumers := initial.get(CONSUMERS.name, "")) in CONSUMERS.choices:
            self[CONSUMERS.name].value = consumers
        if not self.design.library:
            self._mapping_changed()

    def _offer_preset(self, discovered: DiscoveredTable) -> None:
        """Offer the library's queues: first all of them, under the table's name."""
        self["design"].set_value(discovered.of.name, [(n, n) for n in self._choices])
        every = [(name, name) for name in discovered.queues]
        if discovered.table.queue is None:
            every = [(_NONE, "all of them"), *every]
        self["only"].set_value(every[0][0], every, "which of the queues in the table")
        called = self["called"]
        name = discovered.table.queue or discovered.table.table
        called.set_value(name, None, "the queue's name in this console")
        called.touched = False

    def _design_chosen(self) -> None:
        of = self.design
        self["design"].set_value(of.name, [(n, n) for n in self._choices], of.summary)
        for name in _LIBRARY_FIELDS:
            self[name].display = bool(of.library)
        self[CONSUMERS.name].display = self._asks_consumers
        self[CONSUMERS.name].set_help(CONSUMERS.summary)
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
    def _asks_consumers(self) -> bool:
        return not self.design.library and self.design.has_option(CONSUMERS.name)

    @property
    def _choices(self) -> list[str]:
        """The designs; first the library's own, if a library made the table."""
        discovered = self.discovered
        return [*([discovered.of.name] if discovered else []), *self._designs]

    def _preset_changed(self) -> None:
        self["called"].show_error("" if self.called else "the queue needs a name")
        self.post_message(self.Mapped())

    def _mapping_changed(self) -> None:
        of, roles = self.design, self.roles
        for role in adopt.roles_of(of):
            field = self[role]
            help_text = adopt.WHAT_ROLES_ARE[role]
            if role not in roles and role in adopt.WITHOUT:
                help_text += f" · without it: {adopt.WITHOUT[role]}"
            value = field.value
            field.set_help(help_text)
            needed = adopt.is_needed(of, role) and role not in roles
            field.show_error(f"{of.name} needs it: {help_text}" if needed else "")
            if role == "size" and value and not value.isdecimal():
                field.show_error(f"a whole number, not {value!r}")
        self.post_message(self.Mapped())

    def on_field_changed(self, event: Field.Changed) -> None:
        event.stop()
        if event.field.field_name == "design":
            self._design_chosen()
        elif self.design.library:
            if event.field.field_name == "only" and not self["called"].touched:
                table_name = "" if self.table is None else self.table.name
                self["called"].value = self.part or table_name
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
        values = {"name": table.name, "design": of.name, "map": roles}
        if self._asks_consumers:
            values[CONSUMERS.name] = self[CONSUMERS.name].value
        return values
