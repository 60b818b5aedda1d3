"""Installed code that differs from what is shipped; and the indexes and keys that a queue's tables
should have, read from the script that creates them."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from console import sql
from console.actions import maintain_plan, shipped, upgrade
from console.actions.upgrade import Difference, How
from console.catalog import INTERFACE_VERSION, Kind, Queue
from console.doctor import repairs
from console.doctor.context import CheckContext, CheckGroup, first_few, texts
from console.doctor.finding import Code, Finding
from console.engines import Product
from console.monitor.limits import Severity

_SHOWN_LENGTH = 2_000
"""Of a definition that differs."""

CODE_MISSING = Code(
    "code_missing",
    Severity.CRITICAL,
    "a function or table of the queue is missing, or a function has another signature",
    judgement="restore a missing table or column from a backup, or reinstall the queue",
    repair="upgrade",
)
CODE_CHANGED = Code(
    "code_changed",
    Severity.WARNING,
    "installed code was modified locally: it differs from what this console installs",
    repair="upgrade",
)
CODE_OLDER = Code(
    "code_older",
    Severity.NOTE,
    "the queue's version differs from this console's",
    judgement="a newer console installed it: use that one",
    repair="upgrade",
)


def _check_code(context: CheckContext) -> Iterator[Finding]:
    queue = context.queue
    found = upgrade.differences(context.database, queue)
    if queue.version > INTERFACE_VERSION:
        yield Finding(
            CODE_OLDER,
            f"the queue has version {queue.version}, this console {INTERFACE_VERSION}",
            evidence={"version": queue.version, "shipped_version": INTERFACE_VERSION},
            cause="a newer console installed it",
            consequence="this console may not know all of it: use the newer console",
        )
        return
    hidden = [one for one in found if one.how is How.HIDDEN]
    context.unseen.extend(one.line for one in hidden)
    found = [one for one in found if one not in hidden and one.how is not How.NOT_PAUSED]
    plan = upgrade.UpgradePlan(queue, tuple(found))
    missing = [
        one for one in found if _breaks_callers(one, older=queue.version != INTERFACE_VERSION)
    ]
    by_hand = plan.changed_by_hand
    changed = [one for one in found if one not in missing and by_hand and one.kind == "function"]
    older = [one for one in found if one not in missing and one not in changed]
    for code, differences, cause, consequence in (
        (
            CODE_MISSING,
            missing,
            "dropped or replaced by hand, or lost in a restore",
            "its callers fail, or get other results than they expect",
        ),
        (
            CODE_CHANGED,
            changed,
            "it was changed after it was installed",
            "what the design promises may no longer hold: order, locks, what a pop skips",
        ),
        (
            CODE_OLDER,
            older,
            "an older console installed it",
            "its functions work as they did in that version",
        ),
    ):
        if differences:
            yield Finding(
                code,
                first_few([one.line for one in differences], most=5),
                evidence={"differences": [_evidence(one) for one in differences]},
                cause=cause,
                consequence=consequence,
                repair=repairs.upgrade(queue, by_hand=by_hand)
                if all(one.repairable for one in found)
                else None,
            )


def _breaks_callers(one: Difference, *, older: bool) -> bool:
    """An older version may lack what a newer one has, or have other signatures."""
    if one.kind in {"catalog", "version"}:
        return False
    if one.how is How.MISSING:
        return not older or not one.repairable
    return one.how is How.OTHER_SIGNATURE and not older


def _evidence(one: Difference) -> dict[str, object]:
    found: dict[str, object] = {"kind": one.kind, "name": one.name, "how": one.how.value}
    if one.installed:
        found |= {
            "installed": one.installed[:_SHOWN_LENGTH],
            "shipped": one.shipped[:_SHOWN_LENGTH],
        }
    return found


@dataclass(frozen=True)
class ShippedIndex:
    table: str
    columns: tuple[str, ...]
    condition: str
    is_key: bool
    statement: str
    """Creates it; empty for a key, which its table's statement creates."""
    is_primary: bool = False

    @property
    def label(self) -> str:
        where = f" where {self.condition}" if self.condition else ""
        return f"{self.table} ({', '.join(self.columns)}){where}"


@dataclass(frozen=True)
class Index:
    table_name: str
    name: str
    columns: Any
    condition: str | None
    is_unique: bool
    valid: bool
    being_built: bool

    def matches(self, shipped: ShippedIndex) -> bool:
        return (
            self.table_name == shipped.table
            and [normalized(column) for column in texts(self.columns)]
            == [normalized(c) for c in shipped.columns]
            and normalized(self.condition or "") == normalized(shipped.condition)
            and (self.is_unique or not shipped.is_key)
        )

    def enforces(self, shipped: ShippedIndex) -> bool:
        """Whether it keeps the ids unique: a leftover of an interrupted statement does not."""
        return self.matches(shipped) and (self.valid or not _LEFTOVER.search(self.name))


_KEY_INDEX = "_key_made"
"""Suffix of the index of which a key is made, until it is the key."""
_LEFTOVER = re.compile(rf"{_KEY_INDEX}$|_ccnew\d*$")
# Names as either engine quotes them, and what only one of them writes.
_IDENT = r'(?:"(?:[^"]|"")*"|\[(?:[^\]]|\]\])*\])'
_TABLE = re.compile(
    rf"CREATE (?:UNLOGGED )?TABLE {_IDENT}\.(?P<name>{_IDENT}) \(\n(?P<columns>.*?)\n\)",
    re.DOTALL,
)
_COLUMN_KEY = re.compile(
    r"^\s*(?P<columns>[a-z]\w*) .*\b(?P<kind>PRIMARY KEY|UNIQUE)\b", re.MULTILINE
)
_TABLE_KEY = re.compile(
    rf"^\s*(?:CONSTRAINT {_IDENT} )?(?P<kind>PRIMARY KEY|UNIQUE)(?: (?:NON)?CLUSTERED)? "
    r"\((?P<columns>[^)]+)\)",
    re.MULTILINE,
)
_INDEX = re.compile(
    rf"^CREATE (?:NONCLUSTERED )?INDEX (?:{_IDENT} )?ON {_IDENT}\.(?P<name>{_IDENT}) "
    r"\((?P<columns>.*?)\)(?:\s+INCLUDE \([^)]*\))?(?:\s+WHERE (?P<condition>[^;]*?))?"
    r"(?:\s+WITH \([^)]*\))?;$",
    re.MULTILINE,
)


def shipped_indexes(product: Product, queue: Queue) -> list[ShippedIndex]:
    text = _script(product, queue)
    return list(_keys(text)) + [
        ShippedIndex(
            _unquoted(found["name"]),
            tuple(found["columns"].split(", ")),
            found["condition"] or "",
            is_key=False,
            statement=found[0],
        )
        for found in _INDEX.finditer(text)
    ]


def shipped_tables(product: Product, queue: Queue) -> list[tuple[str, str]]:
    found = _TABLE.finditer(_script(product, queue))
    return [(_unquoted(table["name"]), table["columns"]) for table in found]


def _script(product: Product, queue: Queue) -> str:
    return "\n".join(
        batch
        for script in shipped.tables_of(product, queue)
        for batch in sql.batches(script, product.dialect, queue.scope(product))
    )


def _keys(text: str) -> Iterator[ShippedIndex]:
    for table in _TABLE.finditer(text):
        name = _unquoted(table["name"])
        for kind in (_COLUMN_KEY, _TABLE_KEY):
            for found in kind.finditer(table["columns"]):
                columns = tuple(found["columns"].split(", "))
                primary = found["kind"] == "PRIMARY KEY"
                yield ShippedIndex(name, columns, "", is_key=True, statement="", is_primary=primary)


def installed_indexes(context: CheckContext, tables: Sequence[str]) -> list[Index]:
    names = context.database.product.array(sorted(set(tables)))
    return context.query(Index, "indexes", schema=context.queue.schema, tables=names)


def key_step(product: Product, schema: str, one: ShippedIndex) -> maintain_plan.MaintainStep:
    """Creates a key of one or two columns, online as far as possible (PostgreSQL)."""
    made = f"{one.table}{_KEY_INDEX}"
    column, second = (*one.columns, "")[:2]
    values = {"schema": schema, "relation": one.table, "index": made}
    values |= {"column": column, "second": second}
    values["constraint"] = f"{one.table}_pkey" if one.is_primary else f"{one.table}_key"
    kind = "primary" if one.is_primary else "unique"
    scope = sql.Scope(values, {"columns": str(len(one.columns)), "key": kind})

    def text(name: str) -> str:
        return sql.plain(sql.script(f"maintenance.{name}", product.dialect, scope))

    return maintain_plan.MaintainStep(
        "ADD KEY",
        one.table,
        f"it is missing: {one.label}",
        (text("drop_leftover"), text("make_unique"), text("make_key")),
        always=text("drop_leftover"),  # the key that is made of it has another name
    )


class _OfTable(Protocol):
    @property
    def table(self) -> str: ...


Part = TypeVar("Part", bound=_OfTable)


def with_existing_table(context: CheckContext, missing: Sequence[Part]) -> list[Part]:
    """Those whose table exists: a missing table is a finding of its own."""
    if not missing:
        return []
    measures = maintain_plan.measure(context.database, context.queue)
    there = {table.name for table in measures.tables}
    return [one for one in missing if one.table in there]


def normalized(text: str) -> str:
    """Without what the server writes differently from the script: brackets, quotes, blanks."""
    return re.sub(r'[\s()"\[\]]', "", text).lower()


def _unquoted(name: str) -> str:
    return name[1:-1].replace(name[-1] * 2, name[-1])


CHECKS = CheckGroup(
    (CODE_MISSING, CODE_CHANGED, CODE_OLDER),
    {"installed code": _check_code},
    lambda queue: queue.kind is Kind.INSTALLED,
)
