"""Queues that libraries keep in this database: found by their own tables, and named for `adopt`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from console import catalog, sql
from console.actions import own_fragments
from console.catalog import Kind, Queue
from console.designs import Design, own
from console.designs import presets as every_preset
from console.engines import Database
from console.errors import ConsoleError, UsageError

if TYPE_CHECKING:
    from sqlalchemy import Connection


@dataclass(frozen=True)
class LibraryTable:
    """What every `find` returns: a table in which a library keeps jobs of its."""

    schema: str
    table: str
    beside: str | None
    """The table of its that says more: events, a log, the names of tasks."""
    queue: str | None
    """The one queue that it is; None: it has several."""


@dataclass(frozen=True)
class DiscoveredTable:
    """A library's table, and what is known of it here."""

    of: Design
    table: LibraryTable
    queues: tuple[str, ...]
    """The names of those that it keeps there, as far as they have messages: at most 100."""
    adopted: tuple[Queue, ...]

    @property
    def key(self) -> tuple[str, str]:
        """Schema and table."""
        return (self.table.schema, self.table.table)

    @property
    def name(self) -> str:
        """What it is called where it is adopted as a whole."""
        return self.table.table if self.table.queue is None else self.table.queue

    @property
    def commands(self) -> list[str]:
        """How each of the queues that are not adopted yet is, and all of them together."""
        met = {queue.part for queue in self.adopted}
        wanted = [name for name in self.queues if name not in met]
        parts = [_command(self, name, ["--queue", name]) for name in wanted]
        if self.table.queue is not None:
            return parts
        whole = [] if "" in met else [_command(self, self.table.table, [])]
        return whole + parts

    def as_json(self) -> dict[str, object]:
        """Keys as they are documented."""
        return {
            "preset": self.of.name,
            "library": self.of.library,
            "schema": self.table.schema,
            "table": self.table.table,
            "queues": list(self.queues),
            "file": self.of.file or None,
            "trusted": self.of.trusted,
            "adopted": [
                {"queue": queue.name, "only": queue.part or None} for queue in self.adopted
            ],
            "commands": self.commands,
        }


def _command(found: DiscoveredTable, name: str, words: Sequence[str]) -> str:
    where = ["--schema", found.table.schema, "--table", found.table.table]
    if found.table.queue is not None:
        where = []
    words = ["adopt", "--preset", found.of.name, *where, *words, "--", name]
    if not name.startswith("-"):
        words.remove("--")
    return shlex.join(["dbq-console", *words])


def presets(engine: str) -> dict[str, Design]:
    """Those that can be in databases of the engine."""
    return {name: of for name, of in every_preset().items() if engine in of.engines}


def preset(name: str, engine: str) -> Design:
    """The library of that name, which the engine must have; else UsageError."""
    known = every_preset()
    of = known.get(name)
    if of is None:
        mine = own.of_name(name)
        if mine is not None:
            mine.require()
        raise UsageError(f"There is no preset {name!r}.", next_step=f"Presets: {', '.join(known)}.")
    if engine not in of.engines:
        raise UsageError(
            f"There is no preset {name!r} for {engine}.",
            why=f"{name} keeps its queues in {', '.join(of.engines)} only.",
            next_step="Adopt a table of another kind with --design and --map.",
        )
    return of


def discover(database: Database) -> list[DiscoveredTable]:
    """Every table of a library that has a preset, by library, schema and name. Waits."""
    every = presets(database.product.name)
    if not every:
        return []
    with database.transaction("look for queues of libraries", read_only=True) as connection:
        known = catalog.queues(connection)
        there = _recognised(connection, every.values())
        found = [
            (of, one) for of in every.values() if of.name in there for one in _find(connection, of)
        ]
    return [_known(database, of, table, known) for of, table in found]


def _recognised(connection: Connection, every: Iterable[Design]) -> set[str]:
    """Those of which there is a table: most databases have one of them, or none."""
    by = [{"name": of.name, **of.found_by} for of in every]
    columns = sorted({column for one in by for column in cast("list[str]", one["columns"])})
    return set(
        sql.values(connection, str, "preset.recognised", presets=json.dumps(by), columns=columns)
    )


def _find(connection: Connection, of: Design) -> list[LibraryTable]:
    scope = sql.Scope({"design": of.name})
    return sql.rows(connection, LibraryTable, f"{of.name}.find", scope, **of.found_by)


def _known(
    database: Database, of: Design, table: LibraryTable, known: Sequence[Queue]
) -> DiscoveredTable:
    adopted = tuple(
        queue
        for queue in known
        if (queue.schema, queue.table) == (table.schema, table.table)
        and queue.kind is Kind.ADOPTED
        and queue.design is of
    )
    names = (table.queue,) if table.queue is not None else _names(database, of, table)
    return DiscoveredTable(of, table, names, adopted)


def _names(database: Database, of: Design, table: LibraryTable) -> tuple[str, ...]:
    """None where they cannot be read: that the table is there is known all the same."""
    scope = queue_of(of, table, table.table, "").scope(database.product)
    try:
        with database.transaction("list the queues of a library", read_only=True) as connection:
            return tuple(sql.values(connection, str, f"{of.name}.queues", scope))
    except ConsoleError:
        return ()


def queue_of(of: Design, table: LibraryTable, name: str, part: str) -> Queue:
    """The queue that it would be, with all roles that the library has in its newest version."""
    options = {"table": table.table, "beside": table.beside or "", "only": part}
    options["sha256"] = of.sha256
    given = {option: value for option, value in options.items() if value}
    return Queue(table.schema, name, of, given, dict(of.roles), kind=Kind.ADOPTED)


def candidate(
    connection: Connection, of: Design, table: LibraryTable, name: str, part: str
) -> Queue:
    """The same with the roles of the version that is there. UsageError where it is none of ours."""
    there = {
        column.name
        for relation in (table.table, table.beside or "")
        for column in catalog.columns(connection, table.schema, relation)
    }
    if table.queue is None and table.beside is None:
        raise UsageError(
            f"The table {table.table!r} in schema {table.schema!r} lacks parts of {of.name}'s.",
            why=f"What {of.library} keeps next to it is missing, or this login may not see it.",
        )
    whole = queue_of(of, table, name, table.queue or part)
    roles = {role: column for role, column in of.roles.items() if column in there}
    queue = Queue(whole.schema, name, of, whole.options, roles, kind=Kind.ADOPTED)
    if of.file and (mine := own.of_name(of.name)) and mine.parsed:
        own_fragments.require(connection, queue, mine.parsed)
    return queue


@dataclass(frozen=True)
class _Near:
    schema: str
    table: str
    lacking: list[str]


def _nearest(connection: Connection, of: Design) -> str:
    """Which tables are most like those that a preset looks for, and what each lacks, in words."""
    columns = of.found_by["columns"]
    found = sql.rows(connection, _Near, f"{of.name}.nearest", columns=columns)
    told = (
        f"{one.schema}.{one.table} "
        + (f"lacks {', '.join(one.lacking)}" if one.lacking else "has them, by another name")
        for one in found
    )
    return "".join(f"\n{line}" for line in told)


def choose(
    connection: Connection,
    of: Design,
    *,
    schema: str | None = None,
    table: str | None = None,
    part: str = "",
) -> LibraryTable:
    """The one table that is meant. UsageError where there is none, or several."""
    every = _find(connection, of)
    found = [
        one
        for one in every
        if schema in (None, one.schema)
        and table in (None, one.table)
        and (one.queue is None or one.queue == part.lower())
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"There are {len(found)} tables of {of.name}.",
            why=", ".join(f"{one.schema}.{one.table}" for one in found),
            next_step="Say which with --schema and --table.",
        )
    what = f"queue {part!r} of {of.name}" if of.table_each else f"table of {of.name}"
    where = f" in schema {schema!r}" if schema else ""
    met = ", ".join(f"{one.schema}.{one.table}" for one in every[:10])
    raise UsageError(
        f"There is no {what}{where} that this login may read.",
        why=f"The search was for the columns that {of.library} has."
        + (f" Found: {met}." if met else "")
        + (_nearest(connection, of) if of.file and not every else ""),
        next_step="See what is there with: dbq-console discover",
    )
