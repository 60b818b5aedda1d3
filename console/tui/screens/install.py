"""Installs a queue: its design, its options, and the SQL before it runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal

from console import engines
from console.actions import install as installing
from console.catalog import Queue, installed_queue, object_names
from console.catalog.audit import Outcome, Subject, log_locally
from console.designs import Design, Option, designs_on
from console.engines import Product
from console.errors import ConsoleError, UsageError
from console.filters import line_of, words_of
from console.plan import Confirmation
from console.tui.context import Context
from console.tui.dialogs.dialog import show_equivalent_command
from console.tui.jobs import ActionRun
from console.tui.open_connection import OpenConnection
from console.tui.screens.form import Stage
from console.tui.screens.planned import PlannedScreen
from console.tui.text import Paragraph, TextView, plain, style_of
from console.tui.widgets.field import Field, Form
from console.tui.widgets.keyed_table import KeyedTable
from console.tui.widgets.plan_pane import PlanPane
from console.verbs.queues import INSTALL, install_plan
from console.verbs.verb import words_from_texts
from console.views.view import Column

_COLUMNS: tuple[Column[Design], ...] = (
    Column("design", "design", lambda of: of.name, "strong", 7, 10),
    Column("title", "", lambda of: of.title, "quiet", 20, 36),
)
_OPTIONS = (
    *(
        "order",
        "dequeue",
        "size",
        "in_hand",
        "content",
        "partitions",
        "subscribers",
        "history",
        "consumers",
    ),
    *("conversation", "activation"),
    *("payload", "max_bytes", "archive_at_pop", "notify"),
)
"""Of all designs; those that only one design has come first."""
_WIDE = 110
_FIRST = "fifo"
"""The design that most queues need; it is first in the list."""
_WITHOUT_ADMIN = "you can plan it here; installing needs admin"
_SQL_ONLY = "/"
"""Precedes an engine's name in the field for the connection."""


@dataclass(frozen=True)
class InstallRequest:
    conn: OpenConnection | None
    """None: only the SQL is shown."""
    product: Product
    queue: Queue

    @property
    def refused(self) -> str:
        """Why it cannot be run here; empty: it can."""
        if self.conn is None:
            return f"For {self.product.title}'s own client; it is one transaction."
        if self.conn.rights >= (right := INSTALL.right({})):
            return ""
        return (
            f"{plain(self.conn.name)} is {self.conn.rights.word}: installing needs {right.word}. "
            "Copy the SQL for somebody who has that right."
        )

    @property
    def words(self) -> list[str]:
        """The arguments of the command line that are not defaults."""
        queue, of = self.queue, self.queue.design
        defaults = {o.name: of.option_with(o.name, queue.options).default for o in of.options}
        given = [f"{n}={value}" for n, value in queue.options.items() if value != defaults[n]]
        texts = {"design": of.name, "name": queue.name, "option": line_of(given)}
        if self.conn is None:
            texts |= {"print": "yes", "engine": self.product.name}
        usual_schema = queue.schema == self.product.default_schema
        return [
            *([] if usual_schema else ["--schema", queue.schema]),
            *words_from_texts(INSTALL, texts),
        ]


class InstallScreen(PlannedScreen):
    """The plan shows the whole script."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "go", "the SQL", tooltip="check it, and show the SQL before it runs"),
        Binding("enter", "smoke", "smoke test", tooltip="after the installation"),
    ]
    STAGES: ClassVar[Mapping[str, frozenset[Stage]]] = {
        **PlannedScreen.STAGES,
        "smoke": frozenset({Stage.RESULT}),
        "pause_run": frozenset(),
        "stop": frozenset(),
    }
    AGAIN_HINT = "a: another queue   "
    verb = INSTALL

    def __init__(
        self,
        context: Context,
        connection: str = "",
        options: Mapping[str, str] | None = None,
        running: ActionRun | None = None,
    ) -> None:
        """`options`: the verb's, by the command line's names."""
        super().__init__(context, None if running is None else running.key, running)
        initial = dict(options or {})
        if initial.get("print"):
            connection = f"{_SQL_ONLY}{initial.get('engine', next(iter(engines.PRODUCTS)))}"
        targets = [(name, name) for name in context.connections]
        targets += [(f"{_SQL_ONLY}{e}", f"only the SQL, for {e}") for e in engines.PRODUCTS]
        self._targets = targets
        self._target = connection if connection in dict(targets) else targets[0][0]
        self._initial = initial
        self.table = KeyedTable(_COLUMNS, ("title",), id="designs")

    def compose_form(self) -> ComposeResult:
        with Horizontal(id="form"):
            yield self.table
            with Form(id="install-form"):
                yield Paragraph(id="advice")
                name = self._initial.get("name", "")
                name_help = "any name; taken whole, never split at dots"
                yield Field("name", value=name, help=name_help, check=self._check_name)
                yield Field("connection", choices=self._targets, value=self._target)
                yield Field("schema", check=self._check_schema)
                for option in map(_any_option, _OPTIONS):
                    yield Field(
                        option.name,
                        choices=_choices(option),
                        value=option.default,
                        check=self._check_option(option.name),
                    )

    def show_form(self) -> None:
        self.show_stage(Stage.FORM)
        self._connection_chosen()
        self._fill()
        self.set_focus(self.table)

    def _fill(self) -> None:
        """Fill in the options given on the command line."""
        keys = [*self._designs]
        if (named := self._initial.get("design", "")) in keys:
            self.table.move_cursor(keys.index(named))
            self._design_chosen()
        for pair in words_of(self._initial.get("option", "")):
            name, _, value = pair.partition("=")
            if name in _OPTIONS:
                self.form[name].value = value
                self.form[name].touched = True

    def focus_stage(self) -> None:
        if self.stage is Stage.FORM:
            self.form["name"].focus_control()
        else:
            super().focus_stage()

    @property
    def conn(self) -> OpenConnection | None:
        """None where only the SQL is shown."""
        return self.context.connections.get(self.form["connection"].value)

    @property
    def product(self) -> Product:
        conn = self.conn
        if conn is not None:
            return conn.database.product
        return engines.product(self.form["connection"].value.removeprefix(_SQL_ONLY))

    @property
    def design(self) -> Design:
        return self._designs.get(self.table.cursor_key or _FIRST, self._designs[_FIRST])

    @property
    def _designs(self) -> dict[str, Design]:
        designs = designs_on(self.product.name)
        return {_FIRST: designs[_FIRST], **designs}

    @property
    def _options(self) -> dict[str, Option]:
        """Those of the design on this engine."""
        return {option.name: option for option in self.design.options_on(self.product.name)}

    def install_request(self) -> InstallRequest | None:
        """None if a field is invalid; the field then says why."""
        self.show_problem()
        for field in self.form.fields:
            if field.display and (field.field_name != "name" or field.touched or field.value):
                field.check()
        if any(field.has_error for field in self.form.fields if field.display):
            return None
        try:
            return InstallRequest(self.conn, self.product, self._queue())
        except UsageError as error:
            self.show_problem(error)
            return None

    def _queue(self) -> Queue:
        of, product = self.design, self.product
        shown = {name: self.form[name].value for name in self._options}
        given = {name: v for name, v in shown.items() if v != self._options[name].default}
        options = of.complete_options(given, product.name)
        schema = self.form["schema"].value or product.default_schema
        return installed_queue(schema, self.form["name"].value, of, options)

    def _check_name(self, name: str) -> None:
        self._check_names(self.product.default_schema, name)

    def _check_schema(self, schema: str) -> None:
        # Without the name, which may be wrong too.
        self._check_names(schema or self.product.default_schema, "q")

    def _check_names(self, schema: str, name: str) -> None:
        of, product = self.design, self.product
        queue = installed_queue(schema, name, of, of.complete_options({}, product.name))
        try:
            object_names.check(product, queue)
        except UsageError as error:
            raise UsageError(error.what, why=error.why) from error

    def _check_option(self, name: str) -> Callable[[str], None]:
        return lambda value: None if name not in self._options else self._check_value(name, value)

    def _check_value(self, name: str, value: str) -> None:
        try:
            content = self.form["content"].value if "content" in self._options else ""
            self.design.option_with(name, {"content": content}).check(value)
        except UsageError as error:
            raise UsageError(error.what, next_step=error.next_step) from error

    def draw_body(self, now: float, *, paused: bool) -> None:
        super().draw_body(now, paused=paused)
        self.table.styles.width = 40 if self.app.size.width >= _WIDE else 12
        self.table.show(self._designs)
        head = self.query_one("#action-head", TextView)
        line = Text()
        line.append("Install a queue", style_of(head, "strong"))
        conn = self.conn
        if conn is None:
            line.append(f"   only the SQL, for {self.product.title}", style_of(head, "quiet"))
        else:
            line.append_text(connection_text(self.context, head, conn, now, _WITHOUT_ADMIN))
        if self.stage is Stage.FORM:
            # While a field has the focus, Enter is not in the footer.
            line.append("   Enter: the SQL · Tab: next field", style_of(head, "quiet"))
        elif self.stage is Stage.PLAN:
            line.append("   Tab: to the SQL and back · y copies it", style_of(head, "quiet"))
        line.truncate(max(20, self.app.size.width - 2), overflow="ellipsis")
        head.set_text(line)

    def _design_chosen(self) -> None:
        of, options = self.design, self._options
        advice = self.query_one("#advice", Paragraph)
        text = Text()
        text.append(f"{of.name}: {of.title}", style_of(advice, "strong"))
        text.append(f"  {plain(of.source)}\n", style_of(advice, "quiet"))
        text.append(of.advice)
        advice.set_text(text)
        for name in _OPTIONS:
            field, option = self.form[name], options.get(name)
            field.display = option is not None
            if option is None:
                continue
            keeps = field.touched and _is_valid(option, field.value)
            value = field.value if keeps else option.default
            help_ = option.summary if option.choices else f"{option.summary}: {option.range}"
            field.set_value(value, _choices(option), help_)
        self.install_request()

    def _connection_chosen(self) -> None:
        schema = self.form["schema"]
        if not schema.touched:
            schema.value = self.product.default_schema
        self.draw()
        self._design_chosen()

    def on_keyed_table_cursor_moved(self) -> None:
        self._design_chosen()
        self.draw()

    def on_field_changed(self, event: Field.Changed) -> None:
        if event.field.field_name == "connection":
            self._connection_chosen()
        self.install_request()
        self.draw()

    def action_go(self) -> None:
        if self.stage is not Stage.FORM:
            return
        if self.focused is self.table:
            self.form["name"].focus_control()
            return
        self.form["name"].touched = True
        if self.install_request() is None:
            self.form.focus_first_error()
        else:
            self.plan()

    def plan(self) -> None:
        """Show the SQL; if it can be run here, after checking that the names are free."""
        request = self.install_request()
        if request is None:
            return
        conn = request.conn
        if conn is None or request.refused:
            script = installing.script(request.product, request.queue)
            self.query_one(PlanPane).draw([request.refused], sql=script, product=request.product)
            self.ask_to_confirm(
                Confirmation(
                    request.queue.name, requires_name=False, blocked_reason=request.refused
                )
            )
            return
        database, queue = conn.database, request.queue
        self.make_plan(
            lambda: installing.check(database, queue),
            lambda _: self.show_plan(request),
            "Checking which names are taken",
        )

    def show_plan(self, request: InstallRequest) -> None:
        conn, queue = request.conn, request.queue
        if conn is None:
            return
        self.key = (conn.name, queue.schema, queue.name)
        production = is_production(self.context, conn, self.context.clock.monotonic())
        planned = install_plan(conn.database, queue, production=production)
        self.present_plan(planned, conn, production=production, product=request.product)

    def plan_failed(self, error: ConsoleError) -> None:
        """Show the error at the field that it is about."""
        self.back_to_form()
        about = error.about if isinstance(error, UsageError) else ""
        if about == "schema":
            self.form["schema"].show_error(" ".join(str(error).splitlines()))
        elif about == "name":
            self.form["name"].show_error(f"{error.what} {error.why}".strip())
            self.form["name"].focus_control()
        else:
            self.show_problem(error)

    def show_outcome(self, running: ActionRun) -> None:
        """A failed installation left nothing behind: back to the form."""
        if running.error is not None and self.form["name"].value:
            self.running = None
            self.plan_failed(running.error)
            return
        super().show_outcome(running)
        if running.error is None:
            done = Text(f"Installed {plain('.'.join(running.key[1:]))}. ")
            done.append("Enter smoke-tests it: on a scratch queue of the same design and options.")
            done.append(f"\n\n{self.AGAIN_HINT}Escape: back", "dim")
            self.query_one("#result-text", TextView).set_text(done)

    def action_smoke(self) -> None:
        key, navigator = self.key, self.navigator
        if key is None or self.running is None or self.running.error is not None:
            return
        if self.close():
            navigator.open_smoke(key)

    def action_out(self) -> None:
        """A refused plan is audited, as on the command line."""
        request = (
            self.install_request() if self.stage is Stage.PLAN and self.planned is None else None
        )
        if request is not None and request.conn is not None:
            subject = Subject.of(request.conn.database, request.queue, "install")
            has = request.conn.rights.word
            log_locally(subject, Outcome.REFUSED, detail=f"This connection has {has}.")
        super().action_out()

    def action_command(self) -> None:
        request = self.install_request()
        if request is not None:
            show_equivalent_command(self, request.conn, INSTALL.name, None, request.words)


def _any_option(name: str) -> Option:
    every = [
        o for engine in engines.PRODUCTS for d in designs_on(engine).values() for o in d.options
    ]
    return next(option for option in every if option.name == name)


def _choices(option: Option) -> list[tuple[str, str]] | None:
    return [(value, value) for value in option.choices] or None


def _is_valid(option: Option, value: str) -> bool:
    try:
        option.check(value)
    except UsageError:
        return False
    return True


def connection_text(
    context: Context, head: TextView, conn: OpenConnection, now: float, without: str
) -> Text:
    """The connection in a form's title; `without`: a note for a login without the right."""
    line = Text(f" on {plain(conn.name)}", style_of(head, "quiet"))
    if is_production(context, conn, now):
        line.append("  ").append(" PRODUCTION ", style_of(head, "production"))
    if conn.rights < INSTALL.right({}):
        line.append(f"   {conn.rights.word}: {without}", style_of(head, "warning"))
    return line


def is_production(context: Context, conn: OpenConnection, now: float) -> bool:
    """By the connection's profile or by the database's catalog."""
    views = context.store.connections(now)
    return conn.production or any(v.production for v in views if v.name == plain(conn.name))
