"""Upgrade a queue: what is installed becomes what this console installs; messages stay.

One transaction, under traffic: who is in a function of the old version ends it, and calls the new
one the next time. Tables are only locked where they lack a column.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from sqlalchemy import Connection

from console import sql
from console.actions import audit, shipped
from console.actions.insist import insist
from console.actions.ledger import ImbalanceError
from console.catalog import INTERFACE_VERSION, Kind, Queue
from console.engines import Database, Product
from console.errors import RefusedError, UsageError


class How(StrEnum):
    """How something that is installed differs from what is shipped."""

    MISSING = "missing"
    OTHER = "other"
    """Its text: of an older version, or changed by hand."""
    CALLED_OTHERWISE = "called otherwise"
    """Its arguments or its result, so callers see another function."""
    HIDDEN = "hidden"
    """This login may not see its text."""
    OLDER = "older"


@dataclass(frozen=True)
class Difference:
    """One thing that is not as this console installs it."""

    kind: str
    """`function`, `column`, `table`, `catalog` or `version`."""
    name: str
    how: How
    installed: str = ""
    shipped: str = ""
    """Both texts, where there are two."""
    mendable: bool = True
    """Whether an upgrade makes it alike."""

    @property
    def line(self) -> str:
        """In words."""
        words = {
            How.MISSING: "is missing" if self.mendable else "is missing, and nothing can fill it",
            How.OTHER: "differs from what is shipped",
            How.CALLED_OTHERWISE: f"is {self.installed}, shipped is {self.shipped}",
            How.HIDDEN: "cannot be compared: this login may not see its text",
            How.OLDER: f"is {self.installed}, this console installs {self.shipped}",
        }
        return f"{self.kind} {self.name} {words[self.how]}"


@dataclass(frozen=True)
class UpgradePlan:
    """What an upgrade would make alike."""

    queue: Queue
    differences: tuple[Difference, ...]

    @property
    def needed(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.differences)

    @property
    def changed_by_hand(self) -> bool:
        """Whether code differs although the catalog says that it is of this version."""
        same = self.queue.version == INTERFACE_VERSION
        return same and any(d.how in {How.OTHER, How.CALLED_OTHERWISE} for d in self.differences)

    def lines(self) -> list[str]:
        """The plan in words."""
        if not self.differences:
            return [f"upgrade {self.queue.label}: nothing to do, it is as this console installs it"]
        lines = [f"upgrade {self.queue.label} (design {self.queue.design.name}), one transaction:"]
        lines += [f"  {difference.line}" for difference in self.differences]
        if self.changed_by_hand:
            lines.append("  its version is this console's: somebody changed it by hand")
        if any(difference.kind == "column" for difference in self.differences):
            lines.append("  tables that lack a column are locked for a moment, once they are free")
        return [*lines, "  messages are not touched; callers go on"]

    def as_json(self) -> dict[str, object]:
        """Keys as they are documented."""
        return {
            "queue": self.queue.name,
            "schema": self.queue.schema,
            "version": self.queue.version,
            "shipped_version": INTERFACE_VERSION,
            "needed": self.needed,
            "changed_by_hand": self.changed_by_hand,
            "differences": [asdict(difference) for difference in self.differences],
        }


@dataclass(frozen=True)
class Installed:
    """One function (procedure) as the server has it; `body`: None where that is hidden."""

    name: str
    id: str
    signature: str
    settings: str
    body: str | None


@dataclass(frozen=True)
class _Column:
    name: str
    type: str


@dataclass(frozen=True)
class _Caller:
    name: str
    role: str | None


def plan(database: Database, queue: Queue) -> UpgradePlan:
    """Compare. Changes nothing."""
    _require_ours(queue)
    return UpgradePlan(queue, tuple(differences(database, queue)))


def differences(database: Database, queue: Queue) -> list[Difference]:
    """What is not as this console installs it; none of an adopted queue, whose code is not ours."""
    doing = f"compare the queue {queue.name!r} with what is shipped"
    with database.transaction(doing, read_only=True) as connection:
        return _differences(connection, database.product, queue)


def upgrade(database: Database, queue: Queue) -> UpgradePlan:
    """Make them alike; what was different before. Nothing to do is no error.

    BusyError where traffic leaves no moment to lock a table that lacks a column.
    """
    _require_ours(queue)
    subject = audit.Subject.of(database, queue, "upgrade")
    return insist(lambda: _upgrade_once(database, queue, subject))


def _require_ours(queue: Queue) -> None:
    if queue.kind is Kind.ADOPTED:
        raise UsageError(
            f"The queue {queue.name!r} was adopted, not installed.",
            why="Its table and what works on it are somebody else's: there is nothing to upgrade.",
        )
    if queue.version > INTERFACE_VERSION:
        raise RefusedError(
            f"The queue {queue.name!r} has version {queue.version}, newer than this console's.",
            why=f"This console installs version {INTERFACE_VERSION} and would put it back.",
            next_step="Use the newer console.",
        )


def _differences(connection: Connection, product: Product, queue: Queue) -> list[Difference]:
    if queue.kind is Kind.ADOPTED:
        return []
    found = [*_columns(connection, product, queue), *_code(connection, product, queue)]
    found += _catalog(connection, product)
    if queue.version != INTERFACE_VERSION:
        versions = (str(queue.version), str(INTERFACE_VERSION))
        found.append(Difference("version", queue.name, How.OLDER, *versions))
    return found


def _code(connection: Connection, product: Product, queue: Queue) -> list[Difference]:
    wanted = {code.name: code for code in shipped.code(product, queue)}
    there: dict[str, list[Installed]] = {name: [] for name in wanted}
    for row in installed_code(connection, product, queue, list(wanted)):
        there[row.name].append(row)
    found = []
    for name, code in wanted.items():
        if not there[name]:
            found.append(Difference("function", name, How.MISSING, shipped=code.body))
        found += [d for row in there[name] if (d := _compared(product, row, code))]
    return found


def _compared(product: Product, row: Installed, code: shipped.Code) -> Difference | None:
    if row.body is None:
        return Difference("function", row.name, How.HIDDEN)
    if row.signature != code.signature:
        texts = (row.signature, code.signature)
        return Difference("function", row.name, How.CALLED_OTHERWISE, *texts)
    body = body_of(product, row)
    if body == code.body:
        return None
    return Difference("function", row.name, How.OTHER, body or "", code.body)


def body_of(product: Product, row: Installed) -> str | None:
    """What it does, as `shipped.Code` has it."""
    if row.body is None:
        return None
    if product.name == "mssql":
        made = shipped.code_of(product, row.body)
        return made[0].body if made else row.body
    return shipped.body_of(row.settings.split("\n") if row.settings else [], row.body)


def installed_code(
    connection: Connection, product: Product, queue: Queue, names: Sequence[str]
) -> list[Installed]:
    """What the server has under these names."""
    return sql.fetch(
        connection,
        Installed,
        sql.statements(product.name, "upgrade")["installed_code"],
        sql.Scope(),
        schema=queue.schema,
        names=product.array(names),
    )


def _columns(connection: Connection, product: Product, queue: Queue) -> list[Difference]:
    wanted = shipped.columns(product, queue)
    missing = _missing(connection, product, queue.schema, wanted)
    absent = {table for table, lacking in missing.items() if lacking is None}
    found = [Difference("table", name, How.MISSING, mendable=False) for name in sorted(absent)]
    for column in wanted:
        if column.name in (missing[column.table] or ()):
            name = f"{column.table}.{column.name}"
            found.append(Difference("column", name, How.MISSING, mendable=column.mendable))
    return found


def _catalog(connection: Connection, product: Product) -> list[Difference]:
    """What the console's own tables lack."""
    missing = _missing(connection, product, "dbq", shipped.catalog_columns(product))
    return [
        Difference("catalog", f"dbq.{table}", How.MISSING)
        if lacking is None
        else Difference("catalog", f"dbq.{table}.{name}", How.MISSING)
        for table, lacking in missing.items()
        for name in (lacking if lacking is not None else [""])
    ]


def _missing(
    connection: Connection, product: Product, schema: str, wanted: Sequence[shipped.Column]
) -> dict[str, list[str] | None]:
    """Table -> the columns that it lacks; None: it is not there at all."""
    statement = sql.statements(product.name, "catalog")["columns"]
    found: dict[str, list[str] | None] = {}
    for table in dict.fromkeys(column.table for column in wanted):
        rows = sql.fetch(connection, _Column, statement, sql.Scope(), schema=schema, table=table)
        there = {row.name for row in rows}
        names = [column.name for column in wanted if column.table == table]
        found[table] = [name for name in names if name not in there] if there else None
    return found


def _upgrade_once(database: Database, queue: Queue, subject: audit.Subject) -> UpgradePlan:
    product = database.product
    doing = f"upgrade the queue {queue.name!r}"
    with database.transaction(doing) as connection:
        before = _differences(connection, product, queue)
        if not before:
            return UpgradePlan(queue, ())
        _mend_catalog(connection, product, before)
    with audit.recorded(database, doing, subject) as act:
        connection = act.connection
        sql.run_script(connection, sql.statements(product.name, "catalog")["lock"], sql.Scope())
        planned = UpgradePlan(queue, tuple(_differences(connection, product, queue)))
        _require_mendable(planned)
        _add_columns(connection, product, queue, planned.differences)
        if queue.kind is Kind.INSTALLED:
            _replace_code(connection, product, queue, planned.differences)
            rights = sql.statements(product.name, "roles")["queue"]
            sql.run_script(connection, rights, queue.scope(product))
        scope = queue.scope(product, version=str(INTERFACE_VERSION))
        sql.run_script(connection, sql.statements(product.name, "catalog")["renew"], scope)
        _require_alike(connection, product, queue)
        act.detail = "; ".join(difference.line for difference in before)
    return UpgradePlan(queue, tuple(before))


def _mend_catalog(connection: Connection, product: Product, found: Sequence[Difference]) -> None:
    """First, and kept whatever comes of the queue: without it nothing could be recorded."""
    lacking = {difference.name for difference in found if difference.kind == "catalog"}
    if not lacking:
        return
    audit.make_catalog(connection, product)
    for column in shipped.catalog_columns(product):
        if f"dbq.{column.table}.{column.name}" in lacking:
            connection.exec_driver_sql(column.statement)


def _require_mendable(planned: UpgradePlan) -> None:
    beyond = [difference for difference in planned.differences if not difference.mendable]
    if beyond:
        raise RefusedError(
            f"The queue {planned.queue.name!r} cannot be upgraded.",
            why="; ".join(difference.line for difference in beyond) + ".",
            next_step="Restore what is missing, or drain the queue and install it anew.",
        )


def _add_columns(
    connection: Connection, product: Product, queue: Queue, found: Sequence[Difference]
) -> None:
    lacking = {difference.name for difference in found if difference.kind == "column"}
    if not lacking:
        return
    if queue.kind is Kind.INSTALLED:
        # In the order in which callers lock, so that nobody waits for somebody who waits for us.
        lock = sql.statements(product.name, "common")["lock_all"]
        sql.run_script(connection, lock, queue.scope(product))
    added = [c for c in shipped.columns(product, queue) if f"{c.table}.{c.name}" in lacking]
    for column in added:
        _run(connection, column.statement)
    for statement in dict.fromkeys(
        text for column in added for text in shipped.indexes_on(product, queue, column)
    ):
        _run(connection, statement)


def _run(connection: Connection, text: str) -> None:
    connection.exec_driver_sql(
        f"/* dbq upgrade */ {text}", execution_options={"no_parameters": True}
    )


def _replace_code(
    connection: Connection, product: Product, queue: Queue, found: Sequence[Difference]
) -> None:
    scripts = sql.statements(product.name, "upgrade")
    names = [d.name for d in found if d.how is How.CALLED_OTHERWISE]
    callers: list[_Caller] = []
    if names:
        where = {"schema": queue.schema, "names": product.array(names)}
        callers = sql.fetch(connection, _Caller, scripts["callers"], sql.Scope(), **where)
        for row in installed_code(connection, product, queue, names):
            sql.run_script(connection, scripts["drop_code"], sql.Scope({"function": row.id}))
    for script in _functions(product, queue):
        sql.run_script(connection, script, queue.scope(product))
    for caller in callers:
        script = scripts["close_code" if caller.role is None else "let_call"]
        values = {"schema": queue.schema, "function": caller.name, "role": caller.role or ""}
        sql.run_script(connection, script, sql.Scope(values))


def _functions(product: Product, queue: Queue) -> list[sql.Statement]:
    scripts = [sql.statements(product.name, queue.design.name)["functions"]]
    if queue.options.get("notify") == "on":
        scripts.append(sql.statements(product.name, "common")["wait_functions"])
    return scripts


def _require_alike(connection: Connection, product: Product, queue: Queue) -> None:
    """Undoes all of it where something is still different: an event trigger may have meddled."""
    left = [
        difference
        for difference in _differences(connection, product, queue)
        if difference.kind != "version" and difference.how is not How.HIDDEN
    ]
    if left:
        raise ImbalanceError(
            f"The queue {queue.name!r} was not upgraded: all of it was undone.",
            why="; ".join(difference.line for difference in left) + ".",
            next_step="See whether something in this database changes what is created.",
        )
