"""Upgrade a queue to what this console installs; messages stay.

One transaction, under traffic: calls of an old function end as they began. Tables are locked only
where they lack a column.

Also here: a queue's code as its server has it, beside what this console would install.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from console import sql
from console.actions import indexes, maintain, maintenance, pause, shipped, short_locks
from console.actions.short_locks import retry_while_busy
from console.catalog import INTERFACE_VERSION, Kind, Queue, audit, decisions, lookups, relations
from console.catalog.audit import ImbalanceError, Outcome
from console.engines import Database, Product, product_of
from console.errors import BusyError, ConsoleError, RefusedError, UsageError
from console.plan import Plan, Result, queue_plan, single_step

if TYPE_CHECKING:
    from sqlalchemy import Connection


class How(StrEnum):
    """How an installed object differs from the shipped one."""

    MISSING = "missing"
    OTHER = "other"
    """Its text: of an older version, or modified locally."""
    OTHER_SIGNATURE = "called otherwise"
    HIDDEN = "hidden"
    """This login may not see its text."""
    OLDER = "older"
    LARGE = "large"
    """A sequence's cache, of which a crash or a fail-over skips the rest."""
    NOT_PAUSED = "pops"
    """The queue is paused, and the function has been replaced since."""


_UNDER_LOCK = {"column", "default", "sequence", "cache"}
"""Kinds of differences that are removed while nobody holds the queue's tables."""


@dataclass(frozen=True)
class Difference:
    kind: str
    """`function`, `column`, `default` (of one), `table`, `sequence`, `cache` (of one), `index`,
    `key`, `catalog` or `version`."""
    name: str
    how: How
    installed: str = ""
    shipped: str = ""
    repairable: bool = True
    """Whether an upgrade can remove the difference."""

    def as_json(self) -> dict[str, object]:
        return asdict(self)

    @property
    def line(self) -> str:
        texts = {
            How.MISSING: "is missing"
            if self.repairable
            else "is missing, and its values cannot be restored",
            How.OTHER: "differs from what is shipped"
            if self.kind != "default"
            else f"is {self.installed or 'missing'}, shipped is {self.shipped or 'none'}",
            How.OTHER_SIGNATURE: f"is {self.installed}, shipped is {self.shipped}",
            How.HIDDEN: "cannot be compared: this login may not see its text",
            How.LARGE: "is larger than this version's: a crash or a fail-over skips the rest of it",
            How.NOT_PAUSED: "was replaced while the queue was paused, and is no longer paused",
            How.OLDER: f"is {self.installed}, this console installs {self.shipped}",
        }
        return f"{self.kind} {self.name} {texts[self.how]}"


def changed_by_hand(queue: Queue, differences: Sequence[Difference]) -> bool:
    """Whether code differs although it is of this version by the catalog."""
    same = queue.version == INTERFACE_VERSION
    return same and any(d.how in {How.OTHER, How.OTHER_SIGNATURE} for d in differences)


@dataclass(frozen=True)
class _Caller:
    name: str
    role: str | None


def plan(database: Database, queue: Queue) -> Plan:
    _require_ours(queue)
    found = differences(database, queue)
    triggers: list[str] = []
    if found and queue.kind is Kind.INSTALLED and sql.has(database.product, _TRIGGERS):
        with database.transaction("read the table's triggers", read_only=True) as connection:
            triggers = sql.values(connection, str, _TRIGGERS, queue.scope(connection))
    return queue_plan(
        database,
        queue,
        "upgrade",
        _lines(queue, found, triggers),
        single_step(upgrade, database, queue),
        needed=bool(found),
        count=len(found),
        stoppable=False,
        data=_as_json(queue, found, triggers),
    )


def _lines(queue: Queue, differences: Sequence[Difference], triggers: Sequence[str]) -> list[str]:
    """`triggers`: of others on its table, that will run under the search path of the new
    functions."""
    if not differences:
        return [f"upgrade {queue.label}: nothing to do, it matches what this console installs"]
    lines = [f"upgrade {queue.label} (design {queue.design.name}), one transaction:"]
    lines += [f"  {difference.line}" for difference in differences]
    if changed_by_hand(queue, differences):
        lines.append("  its version is this console's: modified locally")
    lines += [
        f"  trigger {name} runs with search_path = pg_catalog, pg_temp: names in its function "
        "need their schema, or the function a SET search_path"
        for name in triggers
    ]
    if any(difference.kind in _UNDER_LOCK for difference in differences):
        lines.append("  its tables are locked for a moment, once no one holds them")
        lines.append(short_locks.LINE)
    return [*lines, "  messages are not touched; callers continue"]


def _as_json(
    queue: Queue, differences: Sequence[Difference], triggers: Sequence[str] = ()
) -> dict[str, object]:
    return {
        "queue": queue.name,
        "schema": queue.schema,
        "version": queue.version,
        "shipped_version": INTERFACE_VERSION,
        "needed": bool(differences),
        "changed_by_hand": changed_by_hand(queue, differences),
        "differences": [difference.as_json() for difference in differences],
        "triggers": list(triggers),
    }


_TRIGGERS = "upgrade.bare_triggers"


def differences(database: Database, queue: Queue) -> list[Difference]:
    """Differences from what this console installs; none of an adopted queue."""
    doing = f"compare the queue {queue.name!r} with what this console installs"
    with database.transaction(doing, read_only=True) as connection:
        return differences_in(connection, queue)


def upgrade(database: Database, queue: Queue) -> Result:
    """Remove the differences; its data are those of before. Nothing to do is no error.

    BusyError where a table that lacks a column cannot be locked under traffic.
    """
    _require_ours(queue)
    subject = audit.Subject.of(database, queue, "upgrade")
    before = retry_while_busy(lambda: _upgrade_once(database, queue, subject))
    lines = [f"upgraded {queue.label}"] if before else _lines(queue, (), ())
    data = _as_json(queue, before)
    return Result(Outcome.DONE, tuple(lines), done=int(bool(before)), data=data)


def _require_ours(queue: Queue) -> None:
    if queue.kind is Kind.ADOPTED:
        raise UsageError(
            f"The queue {queue.name!r} was adopted, not installed.",
            why="Its table and the code around it belong to other programs: there is nothing to "
            "upgrade.",
        )
    if queue.version > INTERFACE_VERSION:
        raise RefusedError(
            f"The queue {queue.name!r} has version {queue.version}, newer than this console's.",
            why=f"This console installs version {INTERFACE_VERSION} and would downgrade it.",
            next_step="Use the newer console.",
        )


def differences_in(connection: Connection, queue: Queue) -> list[Difference]:
    """The same, in a transaction."""
    if queue.kind is Kind.ADOPTED:
        return []
    catalog = lookups.once("catalog", lambda: _catalog(connection))
    if any(difference.name.startswith("dbq.pause") for difference in catalog):
        return catalog  # whether the queue is paused, and with what code, is not known yet
    if not catalog:
        lookups.prepare("pauses", lambda: decisions.pauses(connection))
    wanted = shipped.columns(product_of(connection), queue)
    differences = [*_columns(connection, queue.schema, wanted), *_sequences(connection, queue)]
    differences += _code(connection, queue)
    with_columns = _indexes_of(product_of(connection), queue, differences)
    lacking = indexes.missing(connection, queue)
    differences += [_index(index) for index in lacking if index.statement not in with_columns]
    differences += catalog
    if queue.version != INTERFACE_VERSION:
        versions = (str(queue.version), str(INTERFACE_VERSION))
        differences.append(Difference("version", queue.name, How.OLDER, *versions))
    return differences


def _index(index: indexes.ShippedIndex) -> Difference:
    return Difference("key" if index.is_key else "index", index.label, How.MISSING)


@dataclass(frozen=True)
class _Compared:
    """A function that this console would install, and one of its name on the server."""

    shipped: shipped.Routine
    installed: pause.InstalledRoutine | None
    body: str | None
    """The installed one; None: missing, or hidden from this login."""
    how: How | None
    """None: no difference."""


def _compared(connection: Connection, queue: Queue) -> Iterator[_Compared]:
    product = product_of(connection)
    wanted = {code.name: code for code in shipped.code(product, queue)}
    rows = pause.installed_code(connection, queue, list(wanted)) if wanted else []
    for name, code in wanted.items():
        there = [row for row in rows if row.name == name]
        if not there:
            yield _Compared(code, None, None, How.MISSING)
        for row in there:
            how = None
            if (body := body_of(product, row)) is None:
                how = How.HIDDEN
            elif row.signature != code.signature:
                how = How.OTHER_SIGNATURE
            elif body != code.body:
                how = How.OTHER
            yield _Compared(code, row, body, how)


def _code(connection: Connection, queue: Queue) -> list[Difference]:
    differences = []
    for compared in _compared(connection, queue):
        signature = "" if compared.installed is None else compared.installed.signature
        texts = {
            How.MISSING: ("", compared.shipped.body),
            How.OTHER_SIGNATURE: (signature, compared.shipped.signature),
            How.OTHER: (compared.body or "", compared.shipped.body),
        }
        if compared.how is not None:
            both = texts.get(compared.how, ("", ""))
            differences.append(Difference("function", compared.shipped.name, compared.how, *both))
    named = {difference.name for difference in differences}
    replaced = [name for name in pause.replaced_functions(connection, queue) if name not in named]
    return differences + [Difference("function", name, How.NOT_PAUSED) for name in replaced]


def body_of(product: Product, row: pause.InstalledRoutine) -> str | None:
    """Its body, comparable with `shipped.Routine`'s."""
    if row.body is None:
        return None
    if product.keeps_definitions:
        made = shipped.code_of(product, row.body)
        return made[0].body if made else row.body
    return shipped.body_of(row.settings.split("\n") if row.settings else [], row.body)


def _columns(
    connection: Connection, schema: str, wanted: Sequence[shipped.ShippedColumn]
) -> Iterator[Difference]:
    """Tables and columns that are missing, and other defaults."""
    tables = dict.fromkeys(column.table for column in wanted)
    rows = relations.columns(connection, schema, *tables)
    for table in tables:
        there = {row.name: row for row in rows if row.table_name == table}
        if not there:
            yield Difference("table", table, How.MISSING, repairable=False)
            continue
        if any(row.default_text is None for row in there.values()):
            yield Difference("default", f"{table}.*", How.HIDDEN)
        for column in wanted:
            if column.table != table:
                continue
            name = f"{table}.{column.name}"
            row = there.get(column.name)
            if row is None:
                yield Difference("column", name, How.MISSING, repairable=column.repairable)
            elif row.default_text is not None and not column.has_default(row.default_text):
                yield Difference("default", name, How.OTHER, row.default_text, column.default)


def _sequences(connection: Connection, queue: Queue) -> list[Difference]:
    """Sequences that a queue of an older version lacks, and caches that it has too large."""
    wanted = shipped.added_sequences(product_of(connection), queue)
    rows = relations.named(connection, queue.schema, wanted) if wanted else []
    there = {row.name for row in rows}
    differences = [
        Difference("sequence", name, How.MISSING) for name in wanted if name not in there
    ]
    caches = f"{queue.design.name}.large_caches"
    if queue.kind is Kind.INSTALLED and sql.has(connection, caches):
        large = sql.values(connection, str, caches, queue.scope(connection))
        differences += [Difference("cache", name, How.LARGE) for name in large]
    return differences


def _catalog(connection: Connection) -> list[Difference]:
    product = product_of(connection)
    differences = [
        replace(
            difference,
            kind="catalog",
            name=f"dbq.{difference.name}",
            repairable=difference.kind == "table" or difference.repairable,
        )
        for difference in _columns(connection, "dbq", shipped.catalog_columns(product))
        if difference.how is not How.HIDDEN
    ]
    # Those of a table that is missing are missing with it.
    if any(difference.how is How.MISSING for difference in differences):
        return differences
    differences += [*_catalog_indexes(connection), *_catalog_code(connection)]
    if not decisions.catalog_contents(connection).guarded:
        differences.append(Difference("catalog", "dbq.check_action", How.MISSING))
    return differences


def _catalog_indexes(connection: Connection) -> list[Difference]:
    names = shipped.catalog_indexes(product_of(connection))
    there = {row.name for row in relations.named(connection, "dbq", names)} if names else ()
    return [Difference("catalog", f"dbq.{n}", How.MISSING) for n in names if n not in there]


def _catalog_code(connection: Connection) -> list[Difference]:
    product = product_of(connection)
    code = {routine.name: routine for routine in shipped.catalog_code(product)}
    if not code:
        return []
    where = {"schema": "dbq", "names": product.array(list(code))}
    rows = sql.rows(connection, pause.InstalledRoutine, "upgrade.installed_code", **where)
    bodies = {row.name: body_of(product, row) or "" for row in rows}
    return [
        Difference("catalog", f"dbq.{name}", How.OTHER, body, code[name].body)
        for name, body in bodies.items()
        if body != code[name].body
    ]


def _upgrade_once(database: Database, queue: Queue, subject: audit.Subject) -> Sequence[Difference]:
    """The differences of before."""
    product = database.product
    doing = f"upgrade the queue {queue.name!r}"
    with database.transaction(doing) as connection:
        before = differences_in(connection, queue)
        if not before:
            return ()
        _require_repairable(queue, before)
    if any(difference.kind in _LATER for difference in before):
        database.require_own_session(f"create the indexes of {queue.name!r}")
    if any(difference.kind == "catalog" for difference in before):
        try:
            with database.transaction("complete this database's catalog") as connection:
                _repair_catalog(connection, before)
        except BusyError:
            raise
        except RefusedError as error:
            error.next_step = audit.CATALOGS_OWNER
            raise
    with audit.recorded(database, doing, subject) as act:
        connection = act.connection
        sql.run(connection, "catalog.lock")
        now = differences_in(connection, queue)
        _require_repairable(queue, now)
        paused = pause.suspend(connection, queue)
        _lock(connection, queue, now)
        _add_sequences(connection, queue, now)
        _alter_columns(connection, queue.schema, shipped.columns(product, queue), now)
        for statement in _indexes_of(product, queue, now):
            _run(connection, statement)
        if queue.kind is Kind.INSTALLED:
            _replace_code(connection, queue, now)
            sql.run(connection, "roles.queue", queue.scope(product))
        scope = queue.scope(product, version=str(INTERFACE_VERSION))
        sql.run(connection, "catalog.renew", scope)
        if paused is not None:
            pause.reapply(connection, queue, push=paused)
        _require_alike(connection, queue)
        act.detail = "; ".join(difference.line for difference in before)
    _create_indexes(database, queue)
    return before


def _create_indexes(database: Database, queue: Queue) -> None:
    """While callers continue, each on its own."""
    with database.transaction("list missing indexes", read_only=True) as connection:
        missing = indexes.missing(connection, queue)
    if database.product.key_by_hand:
        missing = [index for index in missing if not index.is_key]
    if not missing:
        return
    steps = indexes.steps(database, queue, missing)
    measures = maintenance.measure(database, queue)
    done = maintain.maintain(database, maintenance.Maintenance(queue, measures, steps))
    if done.outcome is not Outcome.DONE:
        raise ConsoleError(
            f"The queue {queue.name!r} was upgraded, but not all of its indexes exist.",
            why=done.problem,
            next_step=f"See what the doctor says: dbq-console doctor {queue.name}",
        )


def _repair_catalog(connection: Connection, differences: Sequence[Difference]) -> None:
    """In a transaction of its own, committed first: nothing could be recorded without it."""
    sql.run(connection, "catalog.lock")
    columns = shipped.catalog_columns(product_of(connection))
    _alter_columns(connection, "dbq", columns, differences)  # before the indexes on them
    audit.complete_catalog(connection)


def _require_repairable(queue: Queue, differences: Sequence[Difference]) -> None:
    beyond = [difference for difference in differences if not difference.repairable]
    if beyond:
        raise RefusedError(
            f"The queue {queue.name!r} cannot be upgraded.",
            why="; ".join(difference.line for difference in beyond) + ".",
            next_step="Restore that column from a backup of the database."
            if any(difference.kind == "catalog" for difference in beyond)
            else "Restore what is missing, or drain the queue and reinstall it.",
        )


def _lock(connection: Connection, queue: Queue, differences: Sequence[Difference]) -> None:
    tables_change = any(difference.kind in _UNDER_LOCK for difference in differences)
    if tables_change and queue.kind is Kind.INSTALLED:
        # In the order in which callers lock, against deadlocks.
        sql.run(connection, "common.lock_all", queue.scope(connection))


def _add_sequences(connection: Connection, queue: Queue, differences: Sequence[Difference]) -> None:
    if any(difference.kind == "sequence" for difference in differences):
        for script in shipped.added(product_of(connection), queue):
            sql.run(connection, script, queue.scope(connection))
    if any(difference.kind == "cache" for difference in differences):
        sql.run(connection, f"{queue.design.name}.uncache", queue.scope(connection))


def _alter_columns(
    connection: Connection,
    schema: str,
    columns: Sequence[shipped.ShippedColumn],
    differences: Sequence[Difference],
) -> None:
    """Add those that are missing, and give the others their defaults."""
    prefix = "dbq." if schema == "dbq" else ""
    how = {d.name: d.how for d in differences if d.kind in {"catalog", "column", "default"}}
    for column in columns:
        match how.get(f"{prefix}{column.table}.{column.name}"):
            case How.MISSING:
                _run(connection, column.statement)
            case How.OTHER:
                names = {"table": column.table, "column": column.name, "default": column.default}
                sql.run(connection, "upgrade.set_default", sql.Scope({"schema": schema, **names}))


def _indexes_of(product: Product, queue: Queue, differences: Sequence[Difference]) -> list[str]:
    """The statements that create the indexes that lack because their columns do: with these, and
    so not while callers continue."""
    lacking = {difference.name for difference in differences if difference.kind == "column"}
    columns = [c for c in shipped.columns(product, queue) if f"{c.table}.{c.name}" in lacking]
    texts = (text for column in columns for text in shipped.indexes_on(product, queue, column))
    return list(dict.fromkeys(texts))


def _run(connection: Connection, text: str) -> None:
    connection.exec_driver_sql(
        f"/* dbq upgrade */ {text}", execution_options={"no_parameters": True}
    )


def _replace_code(connection: Connection, queue: Queue, differences: Sequence[Difference]) -> None:
    product = product_of(connection)
    names = [d.name for d in differences if d.how is How.OTHER_SIGNATURE]
    callers: list[_Caller] = []
    if names:
        where = {"schema": queue.schema, "names": product.array(names)}
        callers = sql.rows(connection, _Caller, "upgrade.callers", **where)
        for row in pause.installed_code(connection, queue, names):
            sql.run(connection, "upgrade.drop_code", sql.Scope({"function": row.id}))
    for script in shipped.code_scripts(queue):
        sql.run(connection, script, queue.scope(connection))
    for caller in callers:
        script = "upgrade.close_code" if caller.role is None else "upgrade.grant_execute"
        values = {"schema": queue.schema, "function": caller.name, "role": caller.role or ""}
        sql.run(connection, script, sql.Scope(values))


def _require_alike(connection: Connection, queue: Queue) -> None:
    """ImbalanceError, which undoes all, where something still differs, by an event trigger say."""
    left = [
        difference
        for difference in differences_in(connection, queue)
        if difference.kind not in {"version", *_LATER} and difference.how is not How.HIDDEN
    ]
    if left:
        raise ImbalanceError(
            f"The queue {queue.name!r} was not upgraded: all of it was undone.",
            why="; ".join(difference.line for difference in left) + ".",
            next_step="Check whether a trigger in this database changes what is created.",
        )


_LATER = {"index", "key"}
"""Created after the others, without a lock."""


@dataclass(frozen=True)
class InstalledObject:
    kind: str
    """`function` or `table`."""
    name: str
    installed: str | None
    """Its text; None: missing, or hidden from this login."""
    shipped: str | None = None
    """What this console would install, where the texts differ."""
    how: How | None = None
    """None: no difference, or nothing to compare with."""


def parts(database: Database, queue: Queue) -> tuple[InstalledObject, ...]:
    """Functions, then tables, as scripts; of an adopted queue only its table."""
    with database.transaction(f"read the code of {queue.name!r}", read_only=True) as connection:
        return (*_functions(connection, queue), *_tables(connection, queue))


def _functions(connection: Connection, queue: Queue) -> Iterator[InstalledObject]:
    for compared in _compared(connection, queue):
        code, row = compared.shipped, compared.installed
        would, text = _text(code.name, code.signature, code.body), None
        if row is not None and compared.body is not None:
            text = _text(row.name, row.signature, compared.body)
        yield InstalledObject(
            "function", code.name, text, would if compared.how else None, compared.how
        )


def _text(name: str, signature: str, body: str) -> str:
    """The signature is empty where the body includes it."""
    return f"{name}{signature}\n{body}" if signature else f"{name} {body}"


def _tables(connection: Connection, queue: Queue) -> Iterator[InstalledObject]:
    wanted: dict[str, list[shipped.ShippedColumn]] = {}
    for column in shipped.columns(product_of(connection), queue):
        wanted.setdefault(column.table, []).append(column)
    tables = dict.fromkeys((queue.table, *wanted))
    there = relations.columns(connection, queue.schema, *tables)
    for table in tables:
        of_it = [column for column in there if column.table_name == table]
        yield _table(table, of_it, wanted.get(table, []))


def _table(
    table: str, there: Sequence[relations.Column], wanted: Sequence[shipped.ShippedColumn]
) -> InstalledObject:
    """Columns are compared by name: scripts and servers spell their types differently."""
    names = {column.name for column in there}
    lacking = [column for column in wanted if column.name not in names]
    installed = "\n".join(f"{column.name} {column.type}" for column in there)
    if not there:
        return InstalledObject("table", table, None, _definitions(wanted), How.MISSING)
    if lacking:
        return InstalledObject(
            "table", table, installed, f"{installed}\n{_definitions(lacking)}", How.OLDER
        )
    return InstalledObject("table", table, installed)


def _definitions(columns: Sequence[shipped.ShippedColumn]) -> str:
    return "\n".join(f"{column.name} {column.definition}" for column in columns)
