"""Queues of libraries in this database, found by the libraries' tables: discover and adopt."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from console import catalog, sql
from console.catalog import Kind, Queue, relations
from console.designs import Design, presets
from console.engines import Database, product_of
from console.errors import ConsoleError, UsageError
from console.features.presets import own_fragments
from console.features.presets.designs import own

if TYPE_CHECKING:
    from sqlalchemy import Connection


@dataclass(frozen=True)
class LibraryTable:
    """A row of a preset's `find`: a table in which a library keeps its jobs."""

    schema: str
    table: str
    beside: str | None
    """A second table of the library: events, a log, the names of tasks."""
    queue: str | None
    """Its only queue; None: it may have several."""

    @property
    def complete(self) -> bool:
        return self.queue is not None or self.beside is not None


@dataclass(frozen=True)
class DiscoveredTable:
    of: Design
    table: LibraryTable
    version: str | None
    """As the library records it; None: it records none, or this login may not read it."""
    queues: tuple[str, ...]
    """The names of its queues with messages, at most 100."""
    adopted: tuple[Queue, ...]

    @property
    def key(self) -> tuple[str, str]:
        return (self.table.schema, self.table.table)

    @property
    def name(self) -> str:
        """Its name if adopted as a whole."""
        return self.table.table if self.table.queue is None else self.table.queue

    @property
    def commands(self) -> list[str]:
        """The commands that adopt all of it, and each queue, as far as not adopted yet."""
        known = {queue.part for queue in self.adopted}
        parts = [
            _command(self, name, ["--queue", name]) for name in self.queues if name not in known
        ]
        if self.table.queue is not None:
            return parts
        complete = [] if "" in known else [_command(self, self.table.table, [])]
        return complete + parts

    def as_json(self) -> dict[str, object]:
        return {
            "preset": self.of.name,
            "library": self.of.library,
            "version": self.version,
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


def _command(table: DiscoveredTable, name: str, words: Sequence[str]) -> str:
    where = ["--schema", table.table.schema, "--table", table.table.table]
    if table.table.queue is not None:
        where = []
    words = ["adopt", "--preset", table.of.name, *where, *words, "--", name]
    if not name.startswith("-"):
        words.remove("--")
    return shlex.join(["dbq-console", *words])


def preset(name: str, engine: str) -> Design:
    """UsageError where the engine has no preset of that name."""
    known = presets()
    if name not in known:
        if (mine := own.of_name(name)) is not None:
            mine.require()
        raise UsageError(f"There is no preset {name!r}.", next_step=f"Presets: {', '.join(known)}.")
    require_engine(known[name], engine)
    return presets(engine)[name]


def require_engine(of: Design, engine: str) -> None:
    """UsageError where the preset is for another one."""
    there = ", ".join(of.engines)
    if engine not in of.engines:
        raise UsageError(
            f"There is no preset {of.name!r} for {engine}.",
            why=f"Your own presets can only be for {there}."
            if of.file
            else f"{of.name} keeps its queues in {there} only.",
            next_step="Adopt the table with the design it resembles most, which monitors it and "
            "acts on it by general rules: dbq-console adopt TABLE --design D --map ROLE=COLUMN",
        )


def discover(database: Database) -> list[DiscoveredTable]:
    """Every table of a library with a preset, by library, schema and name. Blocking."""
    every = presets(database.product.name)
    if not every:
        return []
    with database.transaction("find queues of libraries", read_only=True) as connection:
        known = catalog.queues(connection)
        recognised = _recognised(connection, every.values())
        found: list[tuple[Design, LibraryTable]] = []
        for there in sorted(recognised, key=lambda one: every[one.name].older != ""):
            of, where = every[there.name], (there.schema, there.table)
            if of.older and any(
                newer.name == of.older
                and library_table.complete
                and (library_table.schema, library_table.table) == where
                for newer, library_table in found
            ):
                continue
            tables = _find(connection, of, schema=there.schema, table=there.table)
            found += [
                (of, library_table)
                for library_table in tables
                if (library_table.schema, library_table.table) == where
            ]
    of_its_version = [one for one in found if not _is_of_another_version(*one, found)]
    of_its_version.sort(key=lambda one: (one[0].name, one[1].schema, one[1].table))
    return [_discovered(database, of, table, known) for of, table in of_its_version]


def _is_of_another_version(
    of: Design, table: LibraryTable, found: Sequence[tuple[Design, LibraryTable]]
) -> bool:
    """Whether the same table is that of a newer version or, if it lacks what that version has
    beside it, of an older one."""
    same = [
        (other, library_table)
        for other, library_table in found
        if (library_table.schema, library_table.table) == (table.schema, table.table)
        and other is not of
    ]
    if of.older:
        return any(
            other.name == of.older and library_table.complete for other, library_table in same
        )
    return not table.complete and any(other.older == of.name for other, _ in same)


@dataclass(frozen=True)
class _Recognised:
    name: str
    schema: str
    table: str


def _recognised(connection: Connection, every: Collection[Design]) -> list[_Recognised]:
    """Tables with a library's name and columns. The only query that reads the whole catalog: all
    others are about one table."""
    by = [
        {"name": of.name, "rarest_column": _rarest_column(of, every), **of.found_by} for of in every
    ]
    rarest = product_of(connection).array(sorted({str(one["rarest_column"]) for one in by}))
    presets_ = json.dumps(by)
    return sql.rows(
        connection, _Recognised, "preset.recognised", presets=presets_, rarest_columns=rarest
    )


_LONG = 10


def _rarest_column(of: Design, every: Collection[Design]) -> str:
    """The column that the fewest other tables are likely to have: the one with the longest name. Of
    several versions, one that most of them have: the fewer columns are searched for, the better."""
    versions = [
        _columns(design)
        for design in every
        if (design.older or design.name) == (of.older or of.name)
    ]

    def rarity(column: str) -> tuple[int, int]:
        having = sum(column in columns for columns in versions)
        return (having if len(column) >= _LONG else 0, len(column))

    return max(_columns(of), key=rarity)


def _columns(of: Design) -> list[str]:
    return cast("list[str]", of.found_by["columns"])


def _find(connection: Connection, of: Design, **where: str) -> list[LibraryTable]:
    scope = sql.Scope({"design": of.name})
    columns = product_of(connection).array(_columns(of))
    bound = {**of.found_by, **where, "columns": columns}
    return sql.rows(connection, LibraryTable, f"{of.name}.find", scope, **bound)


def _discovered(
    database: Database, of: Design, table: LibraryTable, known: Sequence[Queue]
) -> DiscoveredTable:
    adopted = tuple(
        queue
        for queue in known
        if (queue.schema, queue.table) == (table.schema, table.table)
        and queue.kind is Kind.ADOPTED
        and queue.design is of
    )
    scope = queue_of(of, table, table.table, "").scope(database.product)
    names: Sequence[str | None] = (table.queue,)
    if table.queue is None:
        names = _read_if_allowed(database, f"{of.name}.queues", scope)
    version = next(iter(_read_if_allowed(database, f"{of.name}.version", scope)), None)
    return DiscoveredTable(of, table, version, tuple(filter(None, names)), adopted)


def _read_if_allowed(database: Database, statement: str, scope: sql.Scope) -> list[str | None]:
    """Empty where this login may not read it."""
    try:
        with database.transaction("read a library's table", read_only=True) as connection:
            return sql.values(connection, str | None, statement, scope)
    except ConsoleError:
        return []


def queue_of(of: Design, table: LibraryTable, name: str, part: str) -> Queue:
    """The table as a queue, with the roles of the library's newest version."""
    options = {"table": table.table, "beside": table.beside or "", "only": part}
    options["sha256"] = of.sha256
    given = {option: value for option, value in options.items() if value}
    return Queue(table.schema, name, of, given, dict(of.roles), kind=Kind.ADOPTED)


def candidate(
    connection: Connection, of: Design, table: LibraryTable, name: str, part: str
) -> Queue:
    """The same with the roles of the installed version. UsageError where that lacks parts."""
    both = relations.columns(connection, table.schema, table.table, table.beside or "")
    there = {column.name for column in both}
    if not table.complete:
        raise UsageError(
            f"The table {table.table!r} in schema {table.schema!r} lacks parts of {of.name}.",
            why=f"What {of.library} has next to it is missing, or this login may not see it.",
        )
    newest = queue_of(of, table, name, table.queue or part)
    roles = {role: column for role, column in of.roles.items() if column in there}
    queue = Queue(newest.schema, name, of, newest.options, roles, kind=Kind.ADOPTED)
    if of.file and (mine := own.of_name(of.name)) and mine.parsed:
        own_fragments.require(connection, queue, mine.parsed)
    return queue


@dataclass(frozen=True)
class _SimilarTable:
    schema: str
    table: str
    lacking: list[str]


def _nearest(connection: Connection, of: Design) -> str:
    """The tables most like those of the preset, and the columns that each lacks: a line each."""
    columns = of.found_by["columns"]
    tables = sql.rows(connection, _SimilarTable, f"{of.name}.nearest", columns=columns)
    return "".join(
        f"\n{table.schema}.{table.table} "
        + (f"lacks {', '.join(table.lacking)}" if table.lacking else "has them, under another name")
        for table in tables
    )


def choose(
    connection: Connection,
    of: Design,
    *,
    schema: str | None = None,
    table: str | None = None,
    part: str = "",
) -> tuple[Design, LibraryTable]:
    """The only table that fits, of this version or of an older one. UsageError where there is none,
    or several."""
    every = _find(connection, of)
    versions = [
        of,
        *(design for design in presets(of.engines[0]).values() if design.older == of.name),
    ]
    pairs = [
        (version, library_table)
        for version in versions
        for library_table in _find(connection, version)
    ]
    found = [
        (version, library_table)
        for version, library_table in pairs
        if not _is_of_another_version(version, library_table, pairs)
        and schema in (None, library_table.schema)
        and table in (None, library_table.table)
        and (library_table.queue is None or library_table.queue == part.lower())
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"There are {len(found)} tables of {of.name}.",
            why=", ".join(
                f"{library_table.schema}.{library_table.table}" for _, library_table in found
            ),
            next_step="Say which with --schema and --table.",
        )
    what = f"queue {part!r} of {of.name}" if of.table_each else f"table of {of.name}"
    where = f" in schema {schema!r}" if schema else ""
    others = ", ".join(
        f"{library_table.schema}.{library_table.table}" for library_table in every[:10]
    )
    raise UsageError(
        f"There is no {what}{where} that this login may read.",
        why=f"The search was for the columns that {of.library} has."
        + (f" Found: {others}." if others else "")
        + (_nearest(connection, of) if of.file and not every else ""),
        next_step="See what is there with: dbq-console discover",
    )
