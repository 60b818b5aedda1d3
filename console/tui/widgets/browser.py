"""What every list on a screen can do: it is filtered, sorted, copied and exported."""

from collections.abc import Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Input

from console.actions.export import write_csv
from console.formats import numbered
from console.tui.context import Context
from console.tui.jobs import start_job
from console.tui.text import first_line, open_input, plain, style_of
from console.tui.widgets.keyed_table import KeyedTable, ListTable, MarkedTable
from console.views.view import Column, View


def filter_keys(tooltip: str, *, show: bool = True) -> list[BindingType]:
    """They have priority, so that what is typed right after them goes to the focused widget."""
    return [
        Binding("slash", "filter", "filter", show, "/", priority=True, tooltip=tooltip),
        Binding("enter", "keep_filter", "keep it", priority=True),
        Binding("escape", "clear_filter", "all", priority=True),
    ]


class Filtered(Widget):
    """A table with the filter line `#filter`; its keys are `filter_keys`."""

    @property
    def listed(self) -> Widget:
        """The table that is filtered."""
        raise NotImplementedError

    @property
    def filter_input(self) -> Input:
        return self.query_one("#filter", Input)

    @property
    def is_filtered(self) -> bool:
        return bool(self.filter_input.value)

    def check_action(self, action: str, _parameters: object) -> bool | None:
        # Asked for each key of the footer: a `query` visits all widgets each time, this remembers.
        line = self.query_one_optional("#filter", Input)
        if line is None:
            return True
        typing = bool(line.display)
        if action == "clear_filter":
            return typing or self.is_filtered
        if action == "keep_filter":
            return typing
        return not typing

    def action_filter(self) -> None:
        open_input(self.filter_input, self.filter_input.value)

    def action_keep_filter(self) -> None:
        self.screen.set_focus(self.listed)
        self.filter_input.display = False
        self.screen.refresh_bindings()

    def action_clear_filter(self) -> None:
        self.filter_input.value = ""
        self.action_keep_filter()


SORT = "sort by the next column, or as it was read"
SORT_KEYS: tuple[BindingType, ...] = (
    Binding("s", "sort", SORT, show=False),
    Binding("S", "reverse", "reverse sort", show=False),
)
COPY_KEYS: tuple[BindingType, ...] = (
    Binding("y", "copy", "copy the row, or the marked ones", show=False),
    Binding("E", "export", "write the list, or the marked rows, to a CSV file", show=False),
)


class Exporting(Widget):
    """What writes rows to files."""

    context: Context

    def export(
        self, name: str, rows: Sequence[Any], columns: Sequence[Column[Any]], rest: str = ""
    ) -> None:
        """To a new file; `rest`: what is not in it."""
        titled = [column for column in columns if column.title]
        cells: list[dict[str, object]] = [
            {column.title: column.exported(row) for column in titled} for row in rows
        ]
        file = f"{name}-{self.context.clock.utc():%Y%m%dT%H%M%SZ}.csv"
        many = numbered(len(rows), "row")
        start_job(
            self,
            lambda: write_csv(file, cells),
            lambda path: self.notify(f"{many} in {plain(str(path))}{rest}", markup=False),
            lambda error: self.notify(first_line(str(error)), severity="error", markup=False),
        )


class Browser(Filtered, Exporting):
    """A list of the screens: the table of a `View`."""

    VIEW: ClassVar[View[Any, Any]]
    TABLE: ClassVar[type[MarkedTable[Any]]] = ListTable
    FORMS: ClassVar[str] = "words that the lines contain"
    """What can be typed after `/`."""
    COPIED: ClassVar[str] = "copied"
    """The notification after copying."""
    table: MarkedTable[Any]

    @property
    def columns(self) -> Sequence[Column[Any]]:
        return self.VIEW.columns(self.context.display)

    def new_table(self) -> MarkedTable[Any]:
        drop_order, removed = self.VIEW.drop_order, self.VIEW.removed_column
        table = self.TABLE(self.columns, drop_order, removed_column=removed, id=self.VIEW.name)
        table.details = self.text_of
        return table

    def hidden_filter(self) -> Input:
        line = Input(id="filter", placeholder=self.FORMS)
        line.display = False
        return line

    @property
    def is_filtered(self) -> bool:
        return super().is_filtered or bool(self.table.marks or self.table.all_matching)

    def action_clear_filter(self) -> None:
        """Also what is marked."""
        self.table.clear_marks()
        super().action_clear_filter()

    @property
    def listed(self) -> MarkedTable[Any]:
        """The table that the keys apply to."""
        return self.table

    def draw_texts(self) -> None:
        """Show the texts around the table."""
        raise NotImplementedError

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.search(event.value)
        self.draw_texts()
        self.screen.refresh_bindings()

    def search(self, text: str) -> None:
        """As it is typed after `/`."""
        self.table.filter_by(tuple(text.casefold().split()))

    def append_filter(self, line: Text, widget: Widget) -> None:
        """Add to the line how many of the rows are shown."""
        if self.table.words:
            line.append(
                f"   filter {plain(self.filter_input.value.strip())}", style_of(widget, "strong")
            )
            line.append(f": {numbered(len(self.table.keys), 'row')}")

    def append_marks(self, line: Text, widget: Widget) -> None:
        if marks := self.table.marks:
            line.append(f"   {len(marks)} marked", style_of(widget, "sorted"))

    def on_keyed_table_title_clicked(self, event: KeyedTable.TitleClicked) -> None:
        event.stop()
        self.listed.sort_by(event.column)

    def action_sort(self) -> None:
        self.listed.sort_next()

    def action_reverse(self) -> None:
        self.listed.sort_by(self.listed.sort_column)

    def text_of(self, row: Any) -> str:
        """What is copied of a row, and searched."""
        return "".join(text for text, _ in self.VIEW.details(row, self.context.display))

    def action_copy(self) -> None:
        if texts := [self.text_of(row) for row in self.listed.selected_rows]:
            self.app.copy_to_clipboard("\n".join(texts))
            self.notify(self.COPIED, markup=False)

    def action_export(self) -> None:
        self.export(self.VIEW.name, self.listed.marked_or_all, self.listed.columns)


LIST_KEYS: tuple[BindingType, ...] = (
    *filter_keys(Browser.FORMS, show=False),
    Binding("q", "clear_filter", "clear the marks and the filter", show=False),
    *SORT_KEYS,
    *COPY_KEYS,
)
"""Of a list in a tab."""
