"""A list as a value: what is read, its columns and texts, its JSON.

The command line prints it, the tables of the screens show it; neither knows what is in it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, tzinfo
from enum import Enum
from functools import cached_property
from threading import Event
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rich.cells import cell_len, set_cell_size

from console import catalog, clock
from console.catalog import Queue
from console.config import Settings
from console.engines import Database
from console.errors import UsageError
from console.formats import UNKNOWN, bare_moment, moment, numbered, offset, plain, short_moment
from console.monitor.limits import ThresholdsOf, defaults_of
from console.verbs.parameters import Parameter

if TYPE_CHECKING:
    from console.monitor.message import Masks

Row = TypeVar("Row")
Result = TypeVar("Result")
Value = TypeVar("Value")
Part = tuple[str, str]
"""A text, safe to show, and the name of its style; empty: the usual one."""
Line = Sequence[Part]
WIDTH = 80
"""Of a plain terminal."""


def or_unknown(value: Value | None, form: Callable[[Value], str], unknown: str = UNKNOWN) -> str:
    return unknown if value is None else form(value)


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column: `value` returns the text of a row."""

    name: str
    title: str
    value: Callable[[Row], str] = field(compare=False)
    style: str | Callable[[Row], str] = field(default="", compare=False)
    min_width: int = 1
    """It is dropped rather than made narrower."""
    max_width: int = 40
    align_right: bool = False
    first_char_style: Callable[[Row], str] | None = field(default=None, compare=False)
    fit_value: Callable[[Row, int], str] | None = field(default=None, compare=False)
    """The text in at most this many cells, where truncating its end would not do."""
    sort_key: Callable[[Row], Any] | None = field(default=None, compare=False)
    """What it is sorted by, None last; by default its text."""
    at: Callable[[Row], datetime | None] | None = field(default=None, compare=False)
    """The time that it shows, if it is one."""

    def exported(self, row: Row) -> str:
        """For a file: a time in full, as in JSON."""
        when = None if self.at is None else self.at(row)
        return self.value(row) if when is None else when.astimezone(UTC).isoformat()

    def key(self, row: Row) -> Any:
        by = self.sort_key or self.at
        return (self.value(row).casefold() or None) if by is None else by(row)


@dataclass(frozen=True)
class Display:
    """Where a list is shown."""

    zone: tzinfo | None
    now: datetime

    def time(self, at: datetime | None, unknown: str = UNKNOWN) -> str:
        return or_unknown(at, lambda at: short_moment(at, self.zone), unknown)

    def moment(self, at: datetime | None) -> str:
        return or_unknown(at, lambda at: moment(at, self.zone))

    def time_column(
        self,
        name: str,
        title: str,
        at: Callable[[Row], datetime | None],
        style: str = "",
        unknown: str = UNKNOWN,
    ) -> Column[Row]:
        return Column(name, title, lambda row: self.time(at(row), unknown), style, 14, 14, at=at)


@dataclass(frozen=True)
class Source:
    """What a list is read from; nothing is connected to before it is used."""

    connect: Callable[[], Database]
    schema: str | None = None
    name: str | None = None
    """The queue's."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Of the list's parameters."""
    masks: "Masks" = ()
    thresholds_of: ThresholdsOf = defaults_of
    settings_of: Callable[[str], Settings] = lambda _: Settings(())
    """The settings of the queue of that name."""
    on_wait: Callable[[str], None] = lambda _: None
    """Gets a line that says what takes time, before it does."""

    stop: Event = field(default_factory=Event)
    """What samples ends early when it is set, with what it has."""

    def sleep(self, seconds: float) -> None:
        """Or less, until `stop` is set."""
        clock.sleep(seconds, self.stop)

    @cached_property
    def database(self) -> Database:
        return self.connect()

    @cached_property
    def queue(self) -> Queue:
        """The one that is named. UsageError."""
        if self.name is None:
            raise UsageError("Which queue?", next_step="Name it.")
        return catalog.look_up(self.database, self.name, self.schema)

    @cached_property
    def queues(self) -> list[Queue]:
        """The one that is named, else all."""
        if self.name is not None:
            return [self.queue]
        return [one for one in catalog.in_use(self.database) if self.schema in (None, one.schema)]


def no_database() -> Database:
    """For lists that are about none."""
    raise UsageError("This list is about no database.")


class Subject(Enum):
    """What a list is about."""

    QUEUE = "queue"
    DATABASE = "database"
    """Or one of its queues."""
    MACHINE = "machine"


@dataclass(frozen=True)
class View(Generic[Result, Row]):
    """A list. Texts of rows are safe to show: untrusted ones are escaped by its functions."""

    name: str
    help: str
    read: Callable[[Source], Result]
    """In a thread of its own on the screens. ConsoleError."""
    rows: Callable[[Result], Mapping[str, Row]]
    """By a key that stays the same when it is read again."""
    columns: Callable[[Display], Sequence[Column[Row]]]
    subject: Subject = Subject.QUEUE
    parameters: tuple[Parameter, ...] = ()
    empty: str = ""
    """What is shown instead of no rows."""
    summary: Callable[[Result, Display], Sequence[Line]] | None = None
    """The lines above the table; by default its number of rows."""
    detail: Callable[[Row, Display], Sequence[Part]] | None = None
    """All that is known about a row."""
    text: Callable[[Result, Display], Iterable[str]] | None = None
    """What is printed without --json; by default the summary and the table."""
    json: Callable[[Result], Mapping[str, object]] | None = None
    """By default the fields of the rows, under the list's name."""
    drop_order: tuple[str, ...] = ()
    """The columns dropped if there is no room, the least important first."""
    removed_column: str = ""
    """The one that says of a row that it is no longer in the list."""
    stops: bool = False
    """Whether its reading heeds `Source.stop`."""
    printed: tuple[str, ...] = ()
    """The columns that are printed; empty: all."""

    @property
    def title(self) -> str:
        return f"{self.name[:1].upper()}{self.name[1:]}".replace("-", " ")

    def summary_lines(self, result: Result, display: Display) -> Sequence[Line]:
        if self.summary is not None:
            return self.summary(result, display)
        rows = self.rows(result)
        return [[(numbered(len(rows), "row") if rows else self.empty, "strong" if rows else "")]]

    def details(self, row: Row, display: Display) -> Sequence[Part]:
        if self.detail is not None:
            return self.detail(row, display)
        texts = ((column.title, column.value(row)) for column in self.columns(display))
        return [("  ".join(f"{title} {text}" for title, text in texts if text), "")]

    def lines(self, result: Result, display: Display) -> Iterable[str]:
        if self.text is not None:
            return self.text(result, display)
        rows = self.rows(result)
        head = ["".join(text for text, _ in line) for line in self.summary_lines(result, display)]
        return [*head, *(self.table(rows.values(), display) if rows else ())]

    def table(
        self,
        rows: Iterable[Row],
        display: Display,
        below: Callable[[Row], Iterable[str]] = lambda _: (),
    ) -> Iterator[str]:
        """The printed columns, titles first; `below`: the lines under a row."""
        columns = [column for column in self.columns(display) if self.is_printed(column)]
        if self.printed:
            columns.sort(key=lambda column: self.printed.index(column.name))
        return aligned(columns, [*rows], display.zone, below)

    def is_printed(self, column: Column[Row]) -> bool:
        return column.name in self.printed if self.printed else bool(column.title)

    def as_json(self, result: Result) -> Mapping[str, object]:
        if self.json is not None:
            return self.json(result)
        rows = self.rows(result).values()
        return {self.name: [as_json(row) for row in rows]}

    def default_values(self) -> dict[str, Any]:
        """Of the parameters, as without any option."""
        return {
            parameter.key: False
            if parameter.is_flag
            else parameter.value_of(parameter.default)
            if parameter.default
            else None
            for parameter in self.parameters
        }


def as_json(row: Any) -> dict[str, object]:
    """The fields of a dataclass; times in ISO 8601, UTC."""
    values = {field.name: getattr(row, field.name) for field in fields(row)}
    return {
        name: value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value
        for name, value in values.items()
    }


def aligned(
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    zone: tzinfo | None,
    below: Callable[[Row], Iterable[str]] = lambda _: (),
    width: int | None = None,
    gap: str = "  ",
) -> Iterator[str]:
    """A table as text. The offset of times is in the title where it is the same for all of them.

    `width`: the last columns are left out if they do not fit.
    """
    texts = [_texts(column, rows, zone) for column in columns]
    widths = [max(map(cell_len, column)) for column in texts]
    while width is not None and sum(widths) + len(gap) * (len(widths) - 1) > width:
        del widths[-1]
    for at, row in enumerate(zip(*texts, strict=True)):
        cells = zip(row, widths, columns, strict=False)
        yield gap.join(_padded(cell, room, column) for cell, room, column in cells).rstrip()
        if at:
            yield from below(rows[at - 1])


def cut(text: str, room: int = WIDTH) -> str:
    """The text, cut to fit, with "…" if it was cut."""
    return text if cell_len(text) <= room else set_cell_size(text, room - 1).rstrip() + "…"


def _padded(text: str, width: int, column: Column[Any]) -> str:
    space = " " * (width - cell_len(text))
    return space + text if column.align_right else set_cell_size(text, width)


def _texts(column: Column[Row], rows: Sequence[Row], zone: tzinfo | None) -> list[str]:
    """The title, then the cells."""
    if column.at is None:
        return [column.title, *(plain(column.value(row)) for row in rows)]
    times = [column.at(row) for row in rows]
    offsets = {offset(at, zone) for at in times if at is not None}
    shared = offsets.pop() if len(offsets) == 1 else ""
    form = bare_moment if shared else moment
    cells = (or_unknown(at, lambda at: form(at, zone)) for at in times)
    return [f"{column.title} {shared}".rstrip(), *cells]


@dataclass(frozen=True)
class Search:
    """What is typed after `/`: options, with which the list is read again, and words that its lines
    contain."""

    options: tuple[tuple[Parameter, str], ...] = ()
    words: tuple[str, ...] = ()

    @property
    def values(self) -> dict[str, Any]:
        return {one.key: one.is_flag or one.value_of(text) for one, text in self.options}

    @property
    def command_words(self) -> list[str]:
        """The options of the command line, which has no free words."""
        words = ([f"--{one.name}", *([] if one.is_flag else [text])] for one, text in self.options)
        return [word for option in words for word in option]


def parse(view: View[Any, Any], text: str) -> Search:
    """`operator=ann running words`. UsageError for a wrong value."""
    parameters = {one.name: one for one in view.parameters}
    options: dict[str, tuple[Parameter, str]] = {}
    words = []
    for word in text.split():
        name, equals, value = word.partition("=")
        parameter = parameters.get(name)
        if parameter is not None and parameter.is_flag is not bool(equals):
            if value or parameter.is_flag:
                parameter.check(value)
                options[name] = parameter, value
        elif not equals or value:
            words.append(word.casefold())
    return Search(tuple(options.values()), tuple(words))
