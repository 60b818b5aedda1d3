"""A table that is a queue already: which one, of which design, which column plays which role.

Or what a library keeps in it: a preset knows its columns, and asks for a name and which queue.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.widgets import Input

from console.actions import adopt as adopting
from console.actions import adoptable, libraries
from console.actions.adoptable import Column, Preview, Table
from console.actions.libraries import Found
from console.catalog import Queue
from console.designs import DESIGNS, LIBRARIES, Design, designs_on
from console.engines import Database
from console.errors import ConsoleError
from console.rights import Rights
from console.tui import jobs
from console.tui.desk import Desk
from console.tui.dialogs.command import show_twin
from console.tui.dialogs.confirm import ConfirmDialog
from console.tui.jobs import Question
from console.tui.screens.install import is_production
from console.tui.screens.live import LiveScreen
from console.tui.text import plain, said
from console.tui.widgets.adopt_preview import AdoptPreview
from console.tui.widgets.adoptable_table import AdoptableTable, Tables
from console.tui.widgets.field import Field
from console.tui.widgets.paragraph import Paragraph
from console.tui.widgets.screen_head import ScreenHead
from console.tui.widgets.tones import tone

_TYPED = {"push_sequence", "pop_sequence", "size"}
"""Roles that no column plays."""
_ROLES = tuple(adoptable.WHAT_ROLES_ARE)
_NONE = "-"
_LIBRARY_FIELDS = ("only", "called")
"""What a preset asks for, in place of roles."""
_WIDE = 120


class AdoptScreen(LiveScreen):
    """First the list of tables; Enter on one opens its form. Nothing in the table is touched."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", key_display="/", priority=True, tooltip="by name"),
        Binding("enter", "go_on", "choose", tooltip="choose the table; then adopt it"),
        Binding("f", "forget", "forget", show=False, tooltip="forget one that was adopted"),
        Binding("o", "command_line", "command line", show=False, tooltip="the same elsewhere"),
    ]

    FILTERS: ClassVar[tuple[tuple[str, str], ...]] = (("/ jobs", "jobs in the schema or name"),)

    def __init__(self, desk: Desk, connection: str = "") -> None:
        super().__init__(desk)
        self._place = desk.places.get(connection or next(iter(desk.places), ""))
        self._tables: Tables | None = None
        self._table: Table | None = None
        self._columns: tuple[Column, ...] = ()
        self._preview: Preview | None = None
        self._error = ""
        self._question: Question[Preview] = Question(self, self.show_preview, self._failed)

    def body(self) -> ComposeResult:
        """The tables; or the form of one, with what it gives."""
        yield ScreenHead(id="adopt-head", classes="head")
        yield Paragraph(id="adopt-words", classes="empty")
        yield AdoptableTable(id="tables")
        yield Input(id="filter", placeholder="a part of the name")
        with Container(id="adopt"):
            with VerticalScroll(id="adopt-form", can_focus=False):
                designs = [(name, name) for name in self._designs]
                yield Field("design", choices=designs, value="claim", prefix="role")
                yield Field("only", "queue", choices=[(_NONE, "all of them")], prefix="role")
                yield Field("called", "name", prefix="role")
                for role in _ROLES:
                    typed = role in _TYPED
                    choices = None if typed else [(_NONE, "none")]
                    yield Field(role, choices=choices, prefix="role")
            with VerticalScroll(id="adopt-preview"):
                yield AdoptPreview(id="adopt-told")

    @property
    def _designs(self) -> Mapping[str, Design]:
        if self._place is None:
            return DESIGNS
        here = designs_on(self._place.database.product.name)
        return {name: of for name, of in here.items() if not of.waits_itself}

    def on_mount(self) -> None:
        """The tables are asked for at once."""
        for hidden in ("#filter", "#adopt", "#adopt-words"):
            self.query_one(hidden).display = False
        self.set_focus(self.query_one("#tables"))
        super().on_mount()
        self._look()

    def _look(self) -> None:
        place = self._place
        if place is None:
            return
        database = place.database

        def look() -> Tables:
            return Tables(
                tuple(adoptable.tables(database)),
                tuple(adoptable.adopted(database)),
                tuple(libraries.discover(database)),
            )

        jobs.start(self, look, self.show_tables, self._failed)

    def show_tables(self, tables: Tables) -> None:
        """The tables, as they came."""
        self._tables, self._error = tables, ""
        self.draw()

    def _failed(self, error: ConsoleError) -> None:
        self._error = said(error)
        self.draw()

    # How it is drawn.

    def draw_body(self, now: float, *, paused: bool) -> None:  # noqa: ARG002  # the base's
        """The list, or the form."""
        choosing = self._table is None
        self.query_one("#tables").display = choosing
        form = self.query_one("#adopt")
        form.display = not choosing
        form.set_class(self.app.size.width >= _WIDE, "-wide")
        self._draw_head(now)
        if choosing:
            self._draw_tables()
        else:
            self._draw_preview()

    def _draw_head(self, now: float) -> None:
        head = self.query_one("#adopt-head", ScreenHead)
        line = Text()
        line.append("Adopt a table" if self._table is None else "Adopt ", tone(head, "strong"))
        if self._table is not None:
            line.append(plain(f"{self._table.schema}.{self._table.name}"), tone(head, "strong"))
        place = self._place
        if place is None:
            line.append("   there is no connection here", tone(head, "warning"))
        else:
            line.append(f" on {plain(place.name)}", tone(head, "quiet"))
            if is_production(self.desk, place, now):
                line.append("  ")
                line.append(" PRODUCTION ", tone(head, "production"))
            if place.rights < Rights.ADMIN:
                words = f"   {place.rights.word}: it can be tried here; adopting wants admin"
                line.append(words, tone(head, "warning"))
            if self._table is not None:
                # A field has Enter for itself: the footer does not tell of it there.
                line.append("   Enter: adopt · Tab: next field", tone(head, "quiet"))
        head.draw(line, self._error)

    def _draw_tables(self) -> None:
        wanted = self.query_one("#filter", Input).value.casefold()
        table = self.query_one(AdoptableTable)
        table.show_tables(self._tables or Tables(), wanted)
        empty = self.query_one("#adopt-words", Paragraph)
        words = ""
        if not table.keys and not self._error:
            words = "Looking at the tables ..." if self._tables is None else "No table matches."
            if self._tables is not None and not wanted:
                words = "There is no table here that could be adopted and that this login may read."
        empty.say(Text(words))
        empty.display = bool(words)
        table.display = not words

    def show_preview(self, preview: Preview) -> None:
        """What the table is as that queue."""
        self._preview = preview
        self._draw_preview()

    def _draw_preview(self) -> None:
        self.query_one(AdoptPreview).draw(self._missing(), self._preview)

    # The form.

    def _field(self, name: str) -> Field:
        return self.query_one(f"#role-{name}", Field)

    @property
    def design(self) -> Design:
        """The design that is chosen; or the library, whose preset is."""
        name = self._field("design").value
        return LIBRARIES.get(name) or DESIGNS[name]

    @property
    def _found(self) -> Found | None:
        """What a library with a preset keeps in the chosen table."""
        if self._table is None or self._tables is None:
            return None
        return self._tables.library_of(self._table)

    @property
    def called(self) -> str:
        """The name that the queue of a preset shall have."""
        return self._field("called").value.strip()

    @property
    def part(self) -> str:
        """The one queue of a library that is meant; empty: all that its table has."""
        value = self._field("only").value
        return "" if value == _NONE else value

    @property
    def roles(self) -> dict[str, str]:
        """Role -> column, as the form has it; those that are not mapped are left out."""
        if self.design.library:
            return {}
        found = {role: self._field(role).value for role in adoptable.roles_of(self.design)}
        return {role: column for role, column in found.items() if column not in {"", _NONE}}

    def _missing(self) -> list[str]:
        of, roles = self.design, self.roles
        if of.library:
            return [] if self.called else ["called"]
        every = adoptable.roles_of(of)
        return [role for role in every if adoptable.is_needed(of, role) and role not in roles]

    def show_columns(self, columns: Sequence[Column]) -> None:
        """The chosen table's columns: each role gets the one that is likely its own."""
        self._columns = tuple(columns)
        self._error = ""
        if (found := self._found) is not None:
            self._offer_preset(found)
        elif self.design.library:
            self._field("design").value = "claim"
        self._design_chosen()
        self.set_focus(self._field("design").control)

    def _offer_preset(self, found: Found) -> None:
        """What the library keeps there: all of it first, under the name of its table."""
        self._field("design").offer(found.of.name, [(n, n) for n in self._choices])
        every = [(name, name) for name in found.queues]
        if found.table.queue is None:
            every = [(_NONE, "all of them"), *every]
        self._field("only").offer(every[0][0], every, "which of those that it keeps there")
        called = self._field("called")
        name = found.table.queue or found.table.table
        called.offer(name, None, "what the queue is called here")
        called.touched = False

    def _design_chosen(self) -> None:
        of = self.design
        self._field("design").offer(of.name, [(n, n) for n in self._choices], of.summary)
        for name in _LIBRARY_FIELDS:
            self._field(name).display = bool(of.library)
        if of.library:
            for role in _ROLES:
                self._field(role).display = False
            self._preset_changed()
            return
        guessed = adoptable.guess(of, self._columns)
        choices = [(_NONE, "none"), *((c.name, f"{c.name} {c.type}") for c in self._columns)]
        shown = adoptable.roles_of(of)
        for role in _ROLES:
            field = self._field(role)
            field.display = role in shown
            if role in _TYPED:
                field.offer(field.value, None, adoptable.WHAT_ROLES_ARE[role])
            else:
                field.offer(guessed.get(role, _NONE), choices)
        self._mapping_changed()

    @property
    def _choices(self) -> list[str]:
        """The designs; before them the library's own, where the table is one's."""
        found = self._found
        return [*([found.of.name] if found else []), *self._designs]

    def _preset_changed(self) -> None:
        place, found = self._place, self._found
        called, part = self.called, self.part
        self._field("called").complain("" if called else "the queue wants a name")
        self._preview = None
        if place is not None and found is not None and called:
            masks, database = place.masks, place.database
            self._question.ask(
                lambda: adoptable.preview_of_library(database, found, called, part, masks)
            )
        self._draw_preview()

    def _mapping_changed(self) -> None:
        of, roles = self.design, self.roles
        for role in adoptable.roles_of(of):
            field = self._field(role)
            words = adoptable.WHAT_ROLES_ARE[role]
            if role not in roles and role in adoptable.WITHOUT:
                words += f" · without it: {adoptable.WITHOUT[role]}"
            value = field.value
            field.explain(words)
            needed = adoptable.is_needed(of, role) and role not in roles
            field.complain(f"{of.name} cannot do without it: {words}" if needed else "")
            if role == "size" and value and not value.isdecimal():
                field.complain(f"a whole number, not {value!r}")
        self._preview = None
        place, table = self._place, self._table
        if place is not None and table is not None and not self._missing():
            queue = adoptable.candidate(table, of, roles)
            masks = place.masks
            self._question.ask(lambda: adoptable.preview(place.database, queue, masks))
        self._draw_preview()

    def on_field_changed(self, event: Field.Changed) -> None:
        """Another mapping, another preview."""
        if event.field.field_name == "design":
            self._design_chosen()
        elif self.design.library:
            if event.field.field_name == "only" and not self._field("called").touched:
                whole = "" if self._table is None else self._table.name
                self._field("called").value = self.part or whole
            self._preset_changed()
        else:
            self._mapping_changed()

    # Keys.

    def check_action(
        self,
        action: str,
        parameters: tuple[object, ...],  # noqa: ARG002  # Textual's signature
    ) -> bool | None:
        """While something is typed, keys are letters; a list has a filter, a form has none."""
        if action == "filter":
            return self._table is None and not isinstance(self.focused, Input)
        if action == "forget":
            return self._table is None
        return True

    def action_filter(self) -> None:
        """Only the tables with that in their names."""
        line = self.query_one("#filter", Input)
        line.display = True
        self.set_focus(line)

    def on_input_changed(self, event: Input.Changed) -> None:
        """The list follows every letter."""
        if event.input.id == "filter":
            self._draw_tables()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter keeps the filter; in the form it goes on."""
        event.stop()
        if event.input.id == "filter":
            self.query_one("#filter").display = False
            self.set_focus(self.query_one("#tables"))
        else:
            self.action_go_on()

    def action_go_on(self) -> None:
        """Choose the table; or ask whether to adopt it."""
        if self._table is None:
            self._choose()
            return
        missing = self._missing()
        if missing:
            self.set_focus(self._field(missing[0]).control)
            return
        place = self._place
        if place is None or place.rights < Rights.ADMIN:
            self._error = "Adopting wants the right admin."
            self.draw()
            return
        table, of = self._table, self.design
        database = place.database
        name, lines, adopt = self._mapped(database, table, of)
        lines = [
            f"{table.schema}.{table.name} on {place.name} becomes a queue of the design {of.name}.",
            "Nothing in it is touched; its own callers go on.",
            "",
            *lines,
        ]
        production = is_production(self.desk, place, self.desk.clock.monotonic())
        dialog = ConfirmDialog("Adopt", lines, name, by_name=production)

        def answered(yes: bool | None) -> None:  # noqa: FBT001  # Textual's way
            if yes:
                jobs.start(self, adopt, self.adopted, self._failed)

        self.app.push_screen(dialog, answered)

    def _mapped(
        self, database: Database, table: Table, of: Design
    ) -> tuple[str, list[str], Callable[[], Queue]]:
        """The queue's name, what the form says of it, and how it is adopted."""
        if of.library:
            called, part = self.called, self.part
            lines = [f"  name            {called}", f"  queue           {part or 'all of them'}"]
            return (
                called,
                lines,
                lambda: adopting.adopt_library(
                    database, of, called, schema=table.schema, table=table.name, part=part
                ),
            )
        roles = self.roles
        lines = [f"  {role:<16}{column}" for role, column in roles.items()]
        return (
            table.name,
            lines,
            lambda: adopting.adopt(database, table.schema, table.name, of, roles),
        )

    def _choose(self) -> None:
        chosen = self.query_one(AdoptableTable).table
        place = self._place
        if chosen is None or place is None:
            return
        self._table = chosen
        self.draw()
        self.refresh_bindings()
        database = place.database
        jobs.start(
            self, lambda: adoptable.columns(database, chosen), self.show_columns, self._failed
        )

    def adopted(self, queue: Queue) -> None:
        """It is a queue now: there it is."""
        self.desk.look_now()
        place = self._place
        ways = self.ways
        self.app.pop_screen()
        self.app.notify(plain(f"{queue.label} is a queue of the console now."), markup=False)
        if place is not None:
            ways.open_queue((place.name, queue.schema, queue.name))

    def action_forget(self) -> None:
        """The form of forget, for one that was adopted."""
        queue = self.query_one(AdoptableTable).adopted
        if queue is not None and self._place is not None:
            self.ways.open_action((self._place.name, queue.schema, queue.name), "forget")

    def action_out(self) -> None:
        """From the form to the list, from the list out."""
        line = self.query_one("#filter", Input)
        if self._table is not None:
            self._table, self._preview, self._error = None, None, ""
            self.draw()
            self.set_focus(self.query_one("#tables"))
            self.refresh_bindings()
            self._look()
        elif line.display or line.value:
            line.value = ""
            line.display = False
            self.set_focus(self.query_one("#tables"))
            self._draw_tables()
        else:
            super().action_out()

    def action_command_line(self) -> None:
        """What does the same on the command line."""
        if self._table is None:
            return
        if self.design.library:
            words = ["--schema", self._table.schema, "--table", self._table.name]
            words += ["--preset", self.design.name]
            words += [*(["--queue", self.part] if self.part else []), self.called]
        else:
            words = ["--schema", self._table.schema, "--design", self.design.name]
            for role, column in self.roles.items():
                words += ["--map", f"{role}={column}"]
            words.append(self._table.name)
        show_twin(self, self._place, "adopt", None, words)
