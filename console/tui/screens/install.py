"""A new queue: which design, with which options, and the SQL before it runs."""

from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import Input

from console import catalog, engines
from console.actions import install as installing
from console.catalog import Queue, installed_queue
from console.designs import Design, Option, designs_on
from console.engines import Product
from console.errors import ConsoleError, UsageError
from console.rights import Rights
from console.tui import jobs
from console.tui.desk import Desk
from console.tui.dialogs.command import show_twin
from console.tui.dialogs.install_plan import InstallPlanDialog
from console.tui.places import Place
from console.tui.screens.live import LiveScreen
from console.tui.text import plain, said
from console.tui.widgets.field import Field
from console.tui.widgets.fitting import Wish
from console.tui.widgets.keyed_table import Cell
from console.tui.widgets.list_table import ListTable
from console.tui.widgets.paragraph import Paragraph
from console.tui.widgets.screen_head import ScreenHead
from console.tui.widgets.tones import tone

_WISHES = (Wish("design", "design", least=7, most=10), Wish("title", "", least=20, most=36))
_OPTIONS = (
    *("order", "dequeue", "size", "in_hand", "conversation", "activation"),
    *("payload", "max_bytes", "archive_at_pop", "notify"),
)
"""Of all designs; what only one of them has stands first."""
_WIDE = 110


@dataclass(frozen=True)
class Wanted:
    """What the form says: where, and which queue."""

    place: Place | None
    """None: only the SQL is wanted."""
    product: Product
    queue: Queue

    @property
    def words(self) -> list[str]:
        """As options of the command line: what is not a default."""
        found = []
        for option in self.queue.design.options_on(self.product.name):
            value = self.queue.options[option.name]
            if value != option.default:
                found += ["--option", f"{option.name}={value}"]
        if self.queue.schema != self.product.default_schema:
            found += ["--schema", self.queue.schema]
        if self.place is None:
            found += ["--print", "--engine", self.product.name]
        return found


class InstallScreen(LiveScreen):
    """Nothing is sent before the plan, with its SQL, was read and confirmed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "go_on", "the SQL", tooltip="check it, and show the SQL before it runs"),
        Binding("o", "command_line", "command line", show=False, tooltip="the same elsewhere"),
    ]

    def __init__(self, desk: Desk, connection: str = "") -> None:
        super().__init__(desk)
        self._first = connection or next(iter(desk.places), "")
        self._error = ""
        self._checking = False

    def body(self) -> ComposeResult:
        """The designs; beside them what the chosen one is, and the form."""
        yield ScreenHead(id="install-head", classes="head")
        with Horizontal(id="install"):
            yield ListTable(_WISHES, ("title",), id="designs")
            with VerticalScroll(id="install-form", can_focus=False):
                yield Paragraph(id="advice")
                yield Field("name", help="one word or any; taken whole, never split at dots")
                wheres = [(name, name) for name in self.desk.places]
                wheres += [(f"/{one}", f"only the SQL, for {one}") for one in engines.PRODUCTS]
                first = self._first if self._first in self.desk.places else wheres[0][0]
                yield Field("connection", choices=wheres, value=first)
                yield Field("schema")
                for name in _OPTIONS:
                    option = _any_option(name)
                    yield Field(name, choices=_choices(option), value=option.default)

    def on_mount(self) -> None:
        """The designs have the keys."""
        super().on_mount()
        self._place_chosen()
        self.set_focus(self.query_one("#designs"))

    # What is chosen.

    @property
    def place(self) -> Place | None:
        """The connection; None where only the SQL is wanted."""
        return self.desk.places.get(self._field("connection").value)

    @property
    def product(self) -> Product:
        """The engine."""
        place = self.place
        if place is not None:
            return place.database.product
        return engines.product(self._field("connection").value.removeprefix("/"))

    @property
    def design(self) -> Design:
        """The design under the cursor."""
        here = designs_on(self.product.name)
        return here.get(
            self.query_one("#designs", ListTable).cursor_key or "", next(iter(here.values()))
        )

    def _field(self, name: str) -> Field:
        return self.query_one(f"#field-{name}", Field)

    def wanted(self) -> Wanted | None:
        """What the form says; None, with each field saying what is wrong in it, where it cannot be
        so."""
        product, of = self.product, self.design
        given = {}
        for option in of.options_on(product.name):
            field = self._field(option.name)
            try:
                given[option.name] = option.check(field.value)
                field.complain("")
            except UsageError as error:
                field.complain(f"{error.what} {error.next_step}")
        name, schema = self._field("name"), self._field("schema")
        complete = {**{o.name: o.default for o in of.options_on(product.name)}, **given}
        queue = installed_queue(schema.value or product.default_schema, name.value, of, complete)
        self._check_names(product, queue)
        self._error = ""
        try:
            of.complete_options(given, product.name)
        except UsageError as error:
            self._error = said(error)
        fields = [name, schema, *(self._field(o.name) for o in of.options_on(product.name))]
        if self._error or any(field.is_wrong for field in fields):
            return None
        return Wanted(self.place, product, queue)

    def _check_names(self, product: Product, queue: Queue) -> None:
        for field, name in (("name", queue.name), ("schema", queue.schema)):
            # Each by itself: the other one's may be wrong too.
            probe = Queue(
                queue.schema if field == "schema" else product.default_schema,
                queue.name if field == "name" else "q",
                queue.design,
                queue.options,
                queue.roles,
            )
            wrong = ""
            try:
                catalog.check_names(product, probe)
            except UsageError as error:
                wrong = f"{error.what} {error.why}".strip()
            if field == "name" and not name and not self._field("name").touched:
                wrong = ""
            self._field(field).complain(wrong)

    # How it is drawn.

    def draw_body(self, now: float, *, paused: bool) -> None:  # noqa: ARG002  # the base's
        """The head says where, and what stands in the way."""
        table = self.query_one("#designs", ListTable)
        table.styles.width = 40 if self.app.size.width >= _WIDE else 12
        table.show_rows(
            {
                name: {"design": Cell(name, "strong"), "title": Cell(of.title, "quiet")}
                for name, of in designs_on(self.product.name).items()
            }
        )
        self._draw_head(now)

    def _draw_head(self, now: float) -> None:
        head = self.query_one("#install-head", ScreenHead)
        line = Text()
        line.append("Install a queue", tone(head, "strong"))
        place = self.place
        if place is None:
            line.append(f"   only the SQL, for {self.product.title}", tone(head, "quiet"))
        else:
            line.append(f" on {plain(place.name)}", tone(head, "quiet"))
            if is_production(self.desk, place, now):
                line.append("  ")
                line.append(" PRODUCTION ", tone(head, "production"))
            if place.rights < Rights.ADMIN:
                words = (
                    f"   {place.rights.word}: it can be planned here, not run (that wants admin)"
                )
                line.append(words, tone(head, "warning"))
        if self._checking:
            line.append("   looking at the names there ...", tone(head, "quiet"))
        else:
            # A field has Enter for itself: the footer does not tell of it there.
            line.append("   Enter: the SQL · Tab: next field", tone(head, "quiet"))
        head.draw(line, self._error)

    def _design_chosen(self) -> None:
        of = self.design
        advice = self.query_one("#advice", Paragraph)
        text = Text()
        text.append(f"{of.name}: {of.title}", tone(advice, "strong"))
        text.append(f"  {plain(of.source)}\n", tone(advice, "quiet"))
        text.append(of.advice)
        advice.say(text)
        here = {option.name: option for option in of.options_on(self.product.name)}
        for name in _OPTIONS:
            field, option = self._field(name), here.get(name)
            field.display = option is not None
            if option is None:
                continue
            keeps = field.touched and _takes(option, field.value)
            value = field.value if keeps else option.default
            words = option.summary if option.choices else f"{option.summary}: {option.range}"
            field.offer(value, _choices(option), words)
        self.wanted()

    def _place_chosen(self) -> None:
        product = self.product
        schema = self._field("schema")
        if not schema.touched:
            schema.value = product.default_schema
        self.draw()
        self._design_chosen()

    def on_keyed_table_cursor_moved(self) -> None:
        """Another design: its own words, its own options."""
        self._design_chosen()
        self._draw_head(self.desk.clock.monotonic())

    def on_field_changed(self, event: Field.Changed) -> None:
        """Said at once, and by the field that it is about."""
        if event.field.field_name == "connection":
            self._place_chosen()
        self.wanted()
        self._draw_head(self.desk.clock.monotonic())

    # Going on.

    def action_go_on(self) -> None:
        """From the designs to the form; from the form to the plan."""
        if self.focused is self.query_one("#designs"):
            self.set_focus(self._field("name").control)
            return
        name = self._field("name")
        name.touched = True
        wanted = self.wanted()
        self._draw_head(self.desk.clock.monotonic())
        if wanted is None:
            wrong = [one for one in self.query(Field) if one.is_wrong and one.display]
            if wrong:
                self.set_focus(wrong[0].control)
            return
        place = wanted.place
        if place is None or place.rights < Rights.ADMIN:
            self._show_plan(wanted)
        elif not self._checking:
            self._checking = True
            self._draw_head(self.desk.clock.monotonic())
            database = place.database
            jobs.start(
                self,
                lambda: installing.check(database, wanted.queue),
                lambda _: self._show_plan(wanted),
                self._refused,
            )

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter in a field goes on, as elsewhere."""
        event.stop()
        self.action_go_on()

    def _show_plan(self, wanted: Wanted) -> None:
        self._checking = False
        self._draw_head(self.desk.clock.monotonic())
        place = wanted.place
        production = place is not None and is_production(
            self.desk, place, self.desk.clock.monotonic()
        )
        self.app.push_screen(
            InstallPlanDialog(self.desk, place, wanted.product, wanted.queue, production=production)
        )

    def _refused(self, error: ConsoleError) -> None:
        self._checking = False
        if "schema" in error.what and "queue" not in error.what and "name" not in error.what:
            self._field("schema").complain(" ".join(str(error).splitlines()))
        elif isinstance(error, UsageError) and "name" in error.what:
            self._field("name").complain(f"{error.what} {error.why}".strip())
            self.set_focus(self._field("name").control)
        else:
            self._error = said(error)
        self._draw_head(self.desk.clock.monotonic())

    def action_command_line(self) -> None:
        """What does the same on the command line."""
        wanted = self.wanted()
        if wanted is None:
            return
        queue = wanted.queue
        words = [*wanted.words, queue.design.name, queue.name]
        show_twin(self, wanted.place, "install", None, words)


def _any_option(name: str) -> Option:
    every = [
        o for engine in engines.PRODUCTS for d in designs_on(engine).values() for o in d.options
    ]
    return next(option for option in every if option.name == name)


def _choices(option: Option) -> list[tuple[str, str]] | None:
    return [(value, value) for value in option.choices] or None


def _takes(option: Option, value: str) -> bool:
    try:
        option.check(value)
    except UsageError:
        return False
    return True


def is_production(desk: Desk, place: Place, now: float) -> bool:
    """Whether the connection is marked so, or its database's own catalog."""
    views = desk.board.connections(now)
    return place.production or any(v.production for v in views if v.name == plain(place.name))
