"""Checks a preset against the tables of a database, for `preset check`. Changes nothing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from console import sql
from console.actions.rows import Storage, scope
from console.catalog import Queue
from console.engines import Database
from console.errors import TooSlowError
from console.features.presets import discovery, own_fragments
from console.features.presets.designs.own import OwnPreset
from console.features.presets.designs.own_file import STATES, OwnFile
from console.features.presets.own_fragments import Fragment, StatesRow
from console.formats import numbered
from console.monitor.sample_queries import limit_transaction
from console.monitor.scan_query import MessageSource

if TYPE_CHECKING:
    from sqlalchemy import Connection

MOST_ROWS = 1_000_000
"""Rows that are counted by state, at most."""
SECONDS = 30.0
"""For that count; for reading the rows of one state, a sixth of it."""


@dataclass(frozen=True)
class Size:
    rows: int | None
    pages: int | None


@dataclass(frozen=True)
class Cost:
    """What a sample reads for one figure, at the table's present depth."""

    figure: str
    scan: str
    """As the server says it: `Index Scan using jobs_state`, `Seq Scan`."""
    pages: int | None
    """None, like `rows`: it took too long."""
    rows: int | None
    """Found, at most 10,001."""

    @property
    def text(self) -> str:
        if self.pages is None:
            return f"{self.figure}: {self.scan}: it took too long, the figure will be ?"
        return (
            f"{self.figure}: {self.scan}, {numbered(self.pages, 'page')} for "
            f"{numbered(self.rows or 0, 'row')}"
        )


@dataclass(frozen=True)
class Check:
    queue: Queue
    size: Size
    fragments: tuple[Fragment, ...]
    states: tuple[StatesRow, ...] | None
    """None: not counted."""
    costs: tuple[Cost, ...]
    sent: dict[str, str]
    """Verb -> the SQL that it runs on each batch."""
    problems: tuple[str, ...]

    @property
    def rows_read(self) -> int:
        return sum(state.rows for state in self.states or ())

    @property
    def as_json(self) -> dict[str, object]:
        found = self.states or ()
        return {
            "schema": self.queue.schema,
            "table": self.queue.table,
            "rows_estimated": self.size.rows,
            "pages": self.size.pages,
            "fragments": [asdict(fragment) for fragment in self.fragments],
            "states": None
            if self.states is None
            else {
                "rows_read": self.rows_read,
                "in_one": {o.states: o.rows for o in found if o.states and not o.several},
                "in_several": [asdict(one) for one in found if one.several],
                "in_none": [asdict(one) for one in found if not one.states],
            },
            "cost": [asdict(cost) for cost in self.costs],
            "sql": self.sent,
            "problems": list(self.problems),
        }


def check(
    database: Database, preset: OwnPreset, *, schema: str | None = None, table: str | None = None
) -> Check:
    """Check the preset against its table. Blocking. UsageError where there is none, or several."""
    of, file = preset.require(), preset.parsed
    assert file is not None  # noqa: S101  # a file that has a design was parsed
    discovery.require_engine(of, database.product.name)
    doing = f"check the preset {of.name!r}"
    with database.transaction(doing, read_only=True) as connection:
        _, library_table = discovery.choose(connection, of, schema=schema, table=table)
        queue = discovery.queue_of(of, library_table, library_table.table, "")
        size = sql.row(connection, Size, f"{of.name}.size", queue.scope(connection))
        checked = tuple(own_fragments.fragments(connection, queue, file))
        problems = [
            f"{fragment.name}: {fragment.problem}" for fragment in checked if fragment.problem
        ]
        sent = {} if problems else _sent(connection, queue, file)
    if problems:
        return Check(queue, size, checked, None, (), sent, tuple(problems))
    states: tuple[StatesRow, ...] | None = None
    try:
        with database.transaction(doing, read_only=True) as connection:
            limit_transaction(connection, database, SECONDS)
            states = tuple(own_fragments.count_states(connection, queue, MOST_ROWS))
        problems = [
            own_fragments.overlap(states_row) for states_row in states if states_row.several
        ]
    except TooSlowError as error:
        problems = [f"its states could not be counted: {error.why}"]
    costs = tuple(
        _cost(database, queue, state, doing) for state in STATES if f"is_{state}" in file.written
    )
    return Check(queue, size, checked, states, costs, sent, tuple(problems))


def _sent(connection: Connection, queue: Queue, file: OwnFile) -> dict[str, str]:
    source = MessageSource.of(connection, queue)
    sent = {}
    for verb in file.sets:
        within = scope(source, Storage.TABLE, verb=verb)
        text = sql.script(source.statement_name("make_ready"), connection.dialect, within)
        sent[verb] = sql.UNTRUSTED.sub("", text).strip()
    return sent


def _cost(database: Database, queue: Queue, state: str, doing: str) -> Cost:
    """As the sampler's statement reads: by an index where there is one."""
    plan: list[Any] = []
    try:
        with database.transaction(doing, read_only=True) as connection:
            limit_transaction(connection, database, SECONDS / 6)
            statement = own_fragments.fragment_statement(
                connection, queue, "planned", f"is_{state}"
            )
            plan = sql.value(connection, list, *statement)
            statement = own_fragments.fragment_statement(
                connection, queue, "read_for", f"is_{state}"
            )
            run = sql.value(connection, list, *statement)
    except TooSlowError:
        return Cost(state, _scan(plan, queue), None, None)
    top = run[0]["Plan"]
    pages = top["Shared Hit Blocks"] + top["Shared Read Blocks"]
    return Cost(state, _scan(run, queue), pages, int(top["Actual Rows"]))


def _scan(plan: list[Any], queue: Queue) -> str:
    """How the table is read, by the innermost node."""
    scan = "no plan"
    for node in own_fragments.nodes(plan):
        if index := node.get("Index Name"):
            scan = f"{node['Node Type']} using {index}"
        elif node.get("Relation Name") == queue.table:
            scan = str(node["Node Type"])
    return scan
