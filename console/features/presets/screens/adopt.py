"""Adopts a table as a queue: its design and the roles of its columns.

For a library's table a preset knows both; the form only has a name and a choice of its queues.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical, VerticalScroll
from textual.widgets import Input

from console import formats
from console.catalog import Queue
from console.catalog.relations import Column
from console.designs import DESIGNS, Design, designs_on
from console.errors import RefusedError, UsageError
from console.features.presets import adopt, discovery
from console.features.presets.adopt import CandidateQueue, CandidateTable
from console.features.presets.discovery import DiscoveredTable
from console.features.presets.screens.adopt_form import AdoptForm, AdoptPreview
from console.features.presets.verbs import ADOPT, adopt_plan
from console.tui import jobs
from console.tui.context import Context
from console.tui.dialogs.dialog import show_equivalent_command
from console.tui.jobs import ActionRun, LatestQuery
from console.tui.screens.form import Stage
from console.tui.screens.install import connection_text, is_production
from console.tui.screens.planned import PlannedScreen
from console.tui.text import Paragraph, TextView, plain, style_of
from console.tui.widgets.keyed_table import KeyedTable
from console.verbs.verb import values_from_texts, words_from_texts
from console.views.view import Column as Shown
from console.views.view import or_unknown

_WIDE = 120


@dataclass(frozen=True)
class Tables:
    free: tuple[CandidateTable, ...] = ()
    adopted: tuple[Queue, ...] = ()
    from_libraries: tuple[DiscoveredTable, ...] = ()
    """Tables in which a library keeps queues."""

    def library_of(self, table: CandidateTable) -> DiscoveredTable | None:
        """None if no library with a preset made the table."""
        key = (table.schema, table.name)
        return next(
            (
                discovered_table
                for discovered_table in self.from_libraries
                if discovered_table.key == key
            ),
            None,
        )


class AdoptScreen(PlannedScreen):
    """A list of tables, then the form of one. Adopting changes nothing in the table."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", key_display="/", priority=True, tooltip="by name"),
        Binding("enter", "go", "choose", tooltip="choose the table, then adopt it"),
        Binding("f", "forget", "forget an adopted one", show=False),
    ]
    STAGES: ClassVar[Mapping[str, frozenset[Stage]]] = {
        **PlannedScreen.STAGES,
        "go": frozenset({Stage.CHOOSING, Stage.FORM}),
        "filter": frozenset({Stage.CHOOSING}),
        "forget": frozenset({Stage.CHOOSING}),
        "command": frozenset({Stage.FORM, Stage.PLAN}),
        "pause_run": frozenset(),
        "stop": frozenset(),
        "again": frozenset(),
    }
    AGAIN_HINT = ""
    FILTERS: ClassVar[tuple[tuple[str, str], ...]] = (("/ jobs", "jobs in the schema or name"),)
    verb = ADOPT

    def __init__(
        self,
        context: Context,
        connection: str = "",
        options: Mapping[str, str] | None = None,
        running: ActionRun | None = None,
    ) -> None:
        """`options`: the verb's, by the command line's names."""
        super().__init__(context, None if running is None else running.key, running)
        if running is not None:
            connection = running.key[0]
        self._conn = context.connections.get(connection or next(iter(context.connections), ""))
        self._initial = dict(options or {})
        self._tables: Tables | None = None
        columns: tuple[Shown[CandidateTable | Queue], ...] = (
            Shown("schema", "schema", lambda one: plain(one.schema), "quiet", 6, 20),
            Shown("name", "table", lambda one: plain(one.name), _if_adopted, 12, 60),
            Shown("rows", "rows", _rows, "", 6, 12, align_right=True),
            Shown("state", "", self._state, _if_adopted, 8, 40),
        )
        self.table = KeyedTable(columns, ("state",), id="tables")
        self._table: CandidateTable | None = None
        self._preview: CandidateQueue | None = None
        self._previewed: object = None
        """The form's values that the preview is for."""
        self._fetch: LatestQuery[CandidateQueue] = LatestQuery(
            self, self.show_preview, self.show_problem
        )

    def compose_form(self) -> ComposeResult:
        with Vertical(id="choosing"):
            yield Paragraph(id="adopt-empty", classes="empty")
            yield self.table
            yield Input(id="filter", placeholder="part of the name")
        with Container(id="form"):
            yield AdoptForm([*self._designs])
            with VerticalScroll(id="adopt-preview"):
                yield AdoptPreview(id="adopt-preview-text")

    @property
    def _designs(self) -> Mapping[str, Design]:
        if self._conn is None:
            return DESIGNS
        designs = designs_on(self._conn.database.product.name)
        return {name: of for name, of in designs.items() if not of.waits_itself}

    def show_form(self) -> None:
        self.query_one("#filter").display = False
        self.query_one("#adopt-empty").display = False
        self.show_stage(Stage.CHOOSING)
        self._load_tables()

    def focus_stage(self) -> None:
        if self.stage is Stage.CHOOSING:
            self.set_focus(self.table)
        else:
            super().focus_stage()

    def _load_tables(self) -> None:
        conn = self._conn
        if conn is None:
            return
        database = conn.database

        def read() -> Tables:
            return Tables(
                tuple(adopt.tables(database)),
                tuple(adopt.adopted(database)),
                tuple(discovery.discover(database)),
            )

        jobs.start_job(self, read, self.show_tables, self.show_problem)

    def show_tables(self, tables: Tables) -> None:
        """Also open the form of the table that the command line named."""
        self._tables = tables
        self.show_problem()
        self.draw()
        named = self._initial.get("table") or self._initial.get("name")
        for table in tables.free:
            if table.name == named and self.stage is Stage.CHOOSING:
                self._choose(table)
                return
        if named and self.stage is Stage.CHOOSING:
            self.show_problem(
                UsageError(f"There is no table {named!r} here that could be adopted.")
            )

    def draw_body(self, now: float, *, paused: bool) -> None:
        super().draw_body(now, paused=paused)
        self.query_one("#form").set_class(self.app.size.width >= _WIDE, "-wide")
        self._draw_head(now)
        if self.stage is Stage.CHOOSING:
            self._draw_tables()
        elif self.stage is Stage.FORM:
            self._draw_preview()

    def _draw_head(self, now: float) -> None:
        head, table, conn = self.query_one("#action-head", TextView), self._table, self._conn
        line = Text("Adopt a table" if table is None else "Adopt ", style_of(head, "strong"))
        if table is not None:
            line.append(plain(f"{table.schema}.{table.name}"), style_of(head, "strong"))
        if conn is None:
            line.append("   there is no connection here", style_of(head, "warning"))
        else:
            without = "adopting needs admin"
            line.append_text(connection_text(self.context, head, conn, now, without))
            if self.stage is Stage.FORM:
                # While a field has the focus, Enter is not in the footer.
                keys = "   Enter: adopt · Tab: next field"
                if line.cell_len + len(keys) > self.app.size.width - 2:
                    keys = "   Enter: adopt"
                line.append(keys, style_of(head, "quiet"))
        line.truncate(max(20, self.app.size.width - 2), overflow="ellipsis")
        head.set_text(line)

    def _draw_tables(self) -> None:
        wanted = self.query_one("#filter", Input).value.casefold()
        table, tables = self.table, self._tables or Tables()
        every: list[CandidateTable | Queue] = [*tables.free, *tables.adopted]
        table.show(
            {
                repr((one.schema, one.name)): one
                for one in every
                if wanted in f"{one.schema}.{one.name}".casefold()
            }
        )
        empty = self.query_one("#adopt-empty", Paragraph)
        reason = ""
        if not table.keys and not self.query_one("#problem").display:
            reason = "Reading the tables ..." if self._tables is None else "No table matches."
            if self._tables is not None and not wanted:
                reason = (
                    "There is no table here that this login may read and that could be adopted."
                )
        empty.set_text(Text(reason))
        empty.display = bool(reason)
        table.display = not reason

    def _state(self, one: CandidateTable | Queue) -> str:
        if isinstance(one, Queue):
            only = f", only {plain(one.part)}" if one.part else ""
            return f"adopted as {one.design.name}{only} (f forgets)"
        library = (self._tables or Tables()).library_of(one)
        return "" if library is None else f"queues of {library.of.name}"

    def show_preview(self, preview: CandidateQueue) -> None:
        self._preview = preview
        self._draw_preview()

    def _draw_preview(self) -> None:
        self.query_one(AdoptPreview).draw(self.form.missing, self._preview)

    @property
    def form(self) -> AdoptForm:
        return self.query_one(AdoptForm)

    def show_columns(self, columns: Sequence[Column]) -> None:
        table = self._table
        if table is None or self._tables is None:
            return
        self.show_problem()
        self.show_stage(Stage.FORM)
        self.form.show(table, self._tables.library_of(table), columns, self._initial)
        self._initial, self._previewed = {}, None
        self.on_adopt_form_mapped()

    def on_adopt_form_mapped(self) -> None:
        """Read a new preview, if the values have changed."""
        conn, form, table = self._conn, self.form, self._table
        values = (form.design, form.roles, form.called, form.part)
        if values == self._previewed:
            return
        self._preview, self._previewed = None, values
        if conn is not None and table is not None and not form.missing:
            database, masks, discovered = conn.database, conn.masks, form.discovered
            queue = adopt.candidate(table, form.design, form.roles)
            called, part = form.called, form.part
            if discovered is not None and form.design.library:
                self._fetch.submit(
                    lambda: adopt.preview_of_library(database, discovered, called, part, masks)
                )
            else:
                self._fetch.submit(lambda: adopt.preview(database, queue, masks))
        self._draw_preview()

    def check_action(self, action: str, parameters: object) -> bool | None:
        if action == "filter" and isinstance(self.focused, Input):
            return False
        return super().check_action(action, parameters)

    def action_filter(self) -> None:
        line = self.query_one("#filter", Input)
        line.display = True
        self.set_focus(line)

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.id == "filter":
            self._draw_tables()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input.id == "filter":
            event.prevent_default()
            event.stop()
            self.query_one("#filter").display = False
            self.set_focus(self.table)

    def action_go(self) -> None:
        chosen = self.table.row
        if self.stage is Stage.CHOOSING and isinstance(chosen, CandidateTable):
            self._choose(chosen)
        elif self.stage is Stage.FORM:
            if missing := self.form.missing:
                self.form[missing[0]].focus_control()
            else:
                self.plan()

    def _choose(self, table: CandidateTable) -> None:
        conn = self._conn
        if conn is None:
            return
        self._table = table
        self.draw()
        database = conn.database
        jobs.start_job(
            self, lambda: adopt.columns(database, table), self.show_columns, self.show_problem
        )

    def plan(self) -> None:
        conn, table, form = self._conn, self._table, self.form
        right = ADOPT.right({})
        if conn is None or table is None or conn.rights < right:
            self.show_problem(RefusedError(f"Adopting needs the right {right.word}."))
            return
        try:
            adopt.require_trusted(form.design)
        except RefusedError as error:
            self.show_problem(error)
            return
        mapping = form.roles.items()
        queue = adopt.candidate(table, form.design, form.roles)
        if form.discovered is not None and form.design.library:
            queue = discovery.queue_of(form.design, form.discovered.table, form.called, form.part)
            mapping = {"name": form.called, "queue": form.part or "all of them"}.items()
        self.key = (conn.name, table.schema, queue.name)
        lines = [f"  {what:<16}{value}" for what, value in mapping]
        planned = adopt_plan(
            conn.database, queue, table, values_from_texts(ADOPT, form.values), lines
        )
        production = is_production(self.context, conn, self.context.clock.monotonic())
        self.present_plan(planned, conn, production=production)

    def show_outcome(self, running: ActionRun) -> None:
        """Open the adopted queue; if it failed, show why."""
        key = running.key
        if running.error is not None or running.result is None:
            super().show_outcome(running)
            return
        label = plain(".".join(key[1:]))
        self.app.notify(f"{label} is now a queue of the console.", markup=False)
        navigator = self.navigator
        if self.close():
            navigator.open_queue(key)
        else:
            super().show_outcome(running)

    def action_forget(self) -> None:
        queue = self.table.row
        if isinstance(queue, Queue) and self._conn is not None:
            self.navigator.open_action((self._conn.name, queue.schema, queue.name), "forget")

    def action_out(self) -> None:
        """From the plan to the form, to the list, and out."""
        line = self.query_one("#filter", Input)
        if self.stage is Stage.FORM or (self.stage is Stage.CHOOSING and self._table is not None):
            self._table, self._preview = None, None
            self.show_problem()
            self.show_stage(Stage.CHOOSING)
            self._load_tables()
        elif self.stage is Stage.CHOOSING and (line.display or line.value):
            line.value = ""
            line.display = False
            self.set_focus(self.table)
            self._draw_tables()
        else:
            super().action_out()

    def action_command(self) -> None:
        if self._table is not None:
            words = ["--schema", self._table.schema, *words_from_texts(ADOPT, self.form.values)]
            show_equivalent_command(self, self._conn, ADOPT.name, None, words)


def _if_adopted(one: CandidateTable | Queue) -> str:
    return "quiet" if isinstance(one, Queue) else ""


def _rows(table: CandidateTable | Queue) -> str:
    if isinstance(table, Queue):
        return ""
    return or_unknown(table.rows_estimated, lambda rows: formats.count(rows, estimated=True))
