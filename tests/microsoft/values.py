"""Queries, conditions and values of T-SQL, read from syntax trees: see `interpreter`."""
# ruff: noqa: N802 - methods are named as ScriptDom's classes

import hashlib
import json
import math
import operator
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any

from tests.microsoft.server import Index, Row, Session, WaitsError
from tests.microsoft.trees import Node

Rows = Mapping[str, Row]
"""The current row of each table in a query, by the table's alias."""
Steps = Generator[None, None, Any]

ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Subtract": operator.sub,
    "Multiply": operator.mul,
    "Modulo": lambda a, b: int(math.fmod(a, b)),
    "Divide": lambda a, b: int(a / b),
    "Equals": lambda _, b: b,
}
_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "Equals": operator.eq,
    "NotEqualToBrackets": operator.ne,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqualTo": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqualTo": operator.le,
}
_SUBQUERIES = {"ScalarSubquery", "ExistsPredicate"}
_AGGREGATES: Mapping[str, Callable[[list[Any]], Any]] = {
    "COUNT": len,
    "COUNT_BIG": len,
    "MIN": lambda values: min(values, default=None),
    "MAX": lambda values: max(values, default=None),
}


def _substring(text: Any, first: int, length: int) -> Any:
    assert length >= 0, "Invalid length parameter passed to the LEFT or SUBSTRING function (537)"
    return text[first - 1 : first - 1 + length]


_MICROSECONDS = {"microsecond": 1, "millisecond": 1000, "second": 10**6, "minute": 60 * 10**6}
_UNITS = {*_MICROSECONDS, "tzoffset"}
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "CONCAT": lambda *values: "".join("" if v is None else str(v) for v in values),
    "QUOTENAME": lambda name: f"[{name}]",
    "OBJECT_ID": lambda name, *_: re.findall(r"\[(\w+)\]", name)[-1],
    "DATALENGTH": lambda value: len(value) * (1 if isinstance(value, bytes) else 2),
    "ISJSON": lambda _: 1,
    "REPLICATE": lambda text, _: text,
    "LEN": lambda text: len(text.rstrip(" ")),
    "REVERSE": lambda text: text[::-1],
    "RTRIM": lambda text: text.rstrip(" "),
    "LEFT": lambda text, length: text[:length],
    "CHARINDEX": lambda part, text: text.find(part) + 1,
    "SUBSTRING": _substring,
    "HASHBYTES": lambda _, text: hashlib.sha256(text.encode("utf-16-le")).digest(),
    "DB_ID": lambda: 5,
    "NCHAR": chr,
    "DATEPART": lambda _, __: 0,
    "DATEADD": lambda unit, count, time: time + count * _MICROSECONDS[unit],
}


class Values:
    """Evaluates queries on the variables of a call and on the tables."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._values: dict[str, Any] = {}
        self._tables: dict[str, list[Row]] = {}
        """Variables that are tables."""
        self._named: dict[str, list[Row]] = {}
        """Common table expressions."""
        self._locked: dict[Any, Callable[[], None]] = {}
        """Releases the locks of the statement, by key."""
        self._written = ""
        """The alias of the table that the statement writes to."""
        self._rowcount = 0
        self._identity: int | None = None
        """SCOPE_IDENTITY()."""
        self._touches = False
        """Whether the statement has touched a table or a sequence."""
        self.read: list[str] = []
        """The tables that were read, in this order."""

    def _require_configuration(self, what: str) -> None:
        """The configuration is read before anything else, and its lock lasts."""
        has_some = "orders_config" in self._session.server.keys
        assert not has_some or "orders_config" in self.read, f"{what} before the configuration"

    def _waiting(self, attempt: Callable[[], Any]) -> Steps:
        """Its result, when nobody holds what it needs."""
        while True:
            try:
                result = attempt()
            except WaitsError as error:
                self._session.wait_for(error)
                yield
            else:
                self._session.waits_for = None
                return result

    def _derived(self, query: Node, outer: Rows, *, positions: bool = False) -> Steps:
        """The rows of a query, by the names of its columns or by their positions."""
        if query["$type"] == "BinaryQueryExpression":
            both = yield from self._derived(query["FirstQueryExpression"], outer)
            first = list(both[0]) if both else []
            for row in (yield from self._derived(query["SecondQueryExpression"], outer)):
                both.append(dict(zip(first or row, row.values(), strict=True)))
            distinct = {tuple(row.values()): row for row in both}
            return both if query["All"] else list(distinct.values())
        found = []
        for rows in (yield from self._query(query, outer)):
            values = yield from self._each(query["SelectElements"], rows)
            names = range(len(values)) if positions else map(named_as, query["SelectElements"])
            found.append(dict(zip(names, values, strict=True)))
        return found

    def _query(self, query: Node, outer: Rows) -> Steps:
        """The rows of FROM, after WHERE, ORDER BY and TOP."""
        sources = query.get("FromClause", {}).get("TableReferences", [])
        if "TopRowFilter" in query and hints_of(sources) & {"UpdLock"}:
            return (yield from self._scan(sources[0], query, outer))
        found = yield from self._joined(sources, conjuncts(query.get("WhereClause")), outer)
        if "GroupByClause" in query:
            return (yield from self._groups(found, query["GroupByClause"]))
        if _is_aggregated(query):
            return [{**outer, "": {"group": found}}]
        found = [{**rows, "": {"group": found}} for rows in found]
        if "OrderByClause" in query:
            found = yield from self._sorted(found, query["OrderByClause"])
        if "TopRowFilter" in query:
            found = found[: (yield from self._value(query["TopRowFilter"]["Expression"], outer))]
        return found

    def _groups(self, found: list[Rows], by: Node) -> Steps:
        """One row of each group, with the others."""
        groups: dict[tuple[Any, ...], list[Rows]] = {}
        for rows in found:
            columns = [one["Expression"] for one in by["GroupingSpecifications"]]
            groups.setdefault(tuple((yield from self._each(columns, rows))), []).append(rows)
        return [{**group[0], "": {"group": group}} for group in groups.values()]

    def _scan(self, table: Node, query: Node, outer: Rows, alias: str = "") -> Steps:
        """The first rows of one table in the order of an index, each locked before it is read.

        It ends at the last row it needs (rule: row-goal). `query` may be a DELETE.
        """
        session, name, hints = self._session, last(table["SchemaObject"]), hints_of([table])
        alias, skips = alias or alias_of(table), "ReadPast" in hints
        limit = yield from self._value(query["TopRowFilter"]["Expression"], outer)
        self._touches = True
        self.read.append(name)
        named = [v["Value"] for one in table["TableHints"] for v in index_values(one)]
        index = session.server.indexes[named[0]] if named else None
        by = query.get("OrderByClause", {}).get("OrderByElements", [])
        columns = tuple(column_of(one["Expression"]) for one in by)
        assert not index or index.columns[: len(columns)] == columns, "an order without an index"
        sign = -1 if any(one["SortOrder"] == "Descending" for one in by) else 1
        conditions = conjuncts(query.get("WhereClause"))
        found: list[Rows] = []
        position: Any = None
        while len(found) < limit:
            ahead = yield from self._ahead(name, columns, index, sign, position)
            if not ahead:
                if "HoldLock" in hints:
                    yield from self._waiting(partial(session.hold_range, named[0], None))
                break
            position, (where, key) = ahead
            lock = partial(session.lock, name, key, skips=skips)
            if not (release := (yield from self._waiting(lock))):
                continue
            if "HoldLock" in hints:
                session.hold_range(named[0], where)
            yield
            stored = session.read(name, key, skips=skips, dirty=False)
            rows = {**outer, alias: Stored(name, stored or {})}
            if stored is not None and (yield from self._all(conditions, rows)):
                found.append(rows)
            elif "HoldLock" not in hints:
                release()
        return found

    def _ahead(self, table: str, columns: Any, index: Index | None, sign: int, after: Any) -> Steps:
        """The next row of an index after a position: its position, its place and key."""
        rows = []
        for (where, key), versions in self._session.positions(table, columns):
            # A heap has no order, so any will do (rule: heap-order).
            by = tuple(sign * one for one in where) if columns else (key[0] * 7919 % 101, key[0])
            if after is not None and by <= after:
                continue
            in_index = index is None or index.filter is None
            for row in versions:
                if index and index.filter and not in_index:
                    in_index = yield from self._value(index.filter, {"": row})
            if in_index:
                rows.append((by, (where, key)))
        return min(rows, default=None)

    def _sorted(self, found: list[Rows], by: Node) -> Steps:
        keyed = []
        for position, rows in enumerate(found):
            key = []
            for one in by["OrderByElements"]:
                value = (yield from self._value(one["Expression"], rows)) or 0
                key.append(-value if one["SortOrder"] == "Descending" else value)
            keyed.append((key, position))
        return [found[position] for _, position in sorted(keyed)]

    def _joined(self, sources: Sequence[Node], conditions: list[Node], outer: Rows) -> Steps:
        found: list[Rows] = [outer]
        for source in sources:
            wider = []
            for rows in found:
                wider += yield from self._source(source, rows, conditions)
            found = wider
        matching = []
        for rows in found:
            if (yield from self._all(conditions, rows)):
                matching.append(rows)  # noqa: PERF401 - it yields between them
        return matching

    def _all(self, conditions: Sequence[Node], rows: Rows) -> Steps:
        for condition in conditions:
            if not (yield from self._value(condition, rows)):
                return False
        return True

    def _source(  # noqa: C901
        self, node: Node, rows: Rows, conditions: list[Node]
    ) -> Steps:
        """The rows, joined with those of this table."""
        kind = node["$type"]
        if kind in {"QualifiedJoin", "UnqualifiedJoin"}:
            on = conjuncts(node)
            found = []
            outer = node.get("QualifiedJoinType") == "LeftOuter"
            for first in (yield from self._source(node["FirstTableReference"], rows, conditions)):
                second = node["SecondTableReference"]
                matches = []
                for both in (
                    yield from self._source(second, first, on if outer else [*conditions, *on])
                ):
                    if (yield from self._all(on, both)):
                        matches.append(both)  # noqa: PERF401
                found += matches or ([{**first, alias_of(second): _Row()}] if outer else [])
            return found
        alias = alias_of(node)
        if kind == "QueryDerivedTable":
            own = yield from self._derived(node["QueryExpression"], rows)
        elif kind == "VariableTableReference":
            own = self._tables[node["Variable"]["Name"]]
        elif kind == "OpenJsonTableReference":
            given = json.loads((yield from self._value(node["Variable"], rows)) or "[]")
            own = [{"key": key, "value": value} for key, value in enumerate(given)]
            if node.get("SchemaDeclarationItems"):
                own = [_Row(value) for value in given]
        elif kind == "InlineDerivedTable":
            own = yield from self._rows_of_values(node, rows)
        elif last(node["SchemaObject"]) in self._named:
            own = self._named[last(node["SchemaObject"])]
        else:
            own = yield from self._stored(node, rows, conditions)
        return [{**rows, alias: row} for row in own]

    def _rows_of_values(self, node: Node, rows: Rows) -> Steps:
        names, found = [column["Value"] for column in node["Columns"]], []
        for row in node["RowValues"]:
            values = yield from self._each(row["ColumnValues"], rows)
            found.append(dict(zip(names, values, strict=True)))
        return found

    def _stored(  # noqa: C901
        self, node: Node, rows: Rows, conditions: list[Node]
    ) -> Steps:
        """The rows of a table that match and are not skipped, locked if necessary."""
        name, alias, session = last(node["SchemaObject"]), alias_of(node), self._session
        self._touches = True
        if name == "sequences":
            found = []
            for sequence in session.server.sequences:
                yield
                row = {"object_id": sequence, "current_value": session.server.sequences[sequence]}
                found.append(row)
            return found
        if name == "dm_exec_sessions":
            row = {"session_id": session.number, "login_time": 0, "transaction_isolation_level": 2}
            return [row]
        hints = {one["HintKind"] for one in node["TableHints"]}
        if "RepeatableRead" in hints:
            session.hold(name)
        if hints & {"TabLockX", "XLock"}:
            session.lock_table(name)
        if name in {"conversation_endpoints", "transmission_queue"}:
            hints.add("NoLock")  # no view waits for a conversation
        self.read.append(name)
        columns = set(session.server.keys[name])
        key_conditions = [
            condition for condition in conditions if _is_about(condition, alias, columns, rows)
        ]
        written = alias == self._written or "UpdLock" in hints
        found = []
        for key in session.all_keys(name):
            key_columns = dict(zip(session.server.keys[name], key, strict=True))
            if not (yield from self._all(key_conditions, {**rows, alias: key_columns})):
                continue
            if written:
                lock = partial(session.lock, name, key, skips="ReadPast" in hints)
                release = yield from self._waiting(lock)
                if release is None:
                    continue
                self._locked[key] = release
            yield
            read = partial(session.read, name, key, skips="ReadPast" in hints)
            stored = yield from self._waiting(partial(read, dirty="NoLock" in hints))
            if stored is not None:
                found.append(Stored(name, stored))
        return found

    def _each(self, nodes: Sequence[Node], rows: Rows) -> Steps:
        """Their values, in order."""
        values = []
        for node in nodes:
            selected = node["$type"] == "SelectScalarExpression"
            values.append((yield from self._value(node["Expression"] if selected else node, rows)))
        return values

    # Values and conditions: None is NULL, and unknown.

    def _value(self, node: Node, rows: Rows | None = None) -> Steps:
        kind = node["$type"]
        if kind == "IntegerLiteral":
            return int(node["Value"])
        if kind == "StringLiteral":
            return node["Value"]
        if kind == "NullLiteral":
            return None
        if kind == "VariableReference":
            return self._values[node["Name"]]
        return (yield from getattr(self, f"_{kind}")(node, rows or {}))

    def _ColumnReferenceExpression(self, node: Node, rows: Rows) -> Steps:
        yield from ()
        *alias, column = (one["Value"] for one in node["MultiPartIdentifier"]["Identifiers"])
        if not alias and column in _UNITS:
            return column
        if alias:
            return rows[alias[0]][column]
        return next(row[column] for row in reversed(list(rows.values())) if column in row)

    def _GlobalVariableExpression(self, node: Node, _: Rows) -> Steps:
        yield from ()
        return {"@@ROWCOUNT": self._rowcount, "@@SPID": self._session.number}[node["Name"]]

    def _UnaryExpression(self, node: Node, rows: Rows) -> Steps:
        value = yield from self._value(node["Expression"], rows)
        return -value if node["UnaryExpressionType"] == "Negative" else value

    def _ParenthesisExpression(self, node: Node, rows: Rows) -> Steps:
        return (yield from self._value(node["Expression"], rows))

    _BooleanParenthesisExpression = _ParenthesisExpression

    def _BinaryExpression(self, node: Node, rows: Rows) -> Steps:
        first = yield from self._value(node["FirstExpression"], rows)
        second = yield from self._value(node["SecondExpression"], rows)
        if None in (first, second):
            return None
        return ARITHMETIC[node["BinaryExpressionType"]](first, second)

    def _BooleanComparisonExpression(self, node: Node, rows: Rows) -> Steps:
        first = yield from self._value(node["FirstExpression"], rows)
        second = yield from self._value(node["SecondExpression"], rows)
        return None if None in (first, second) else _COMPARED[node["ComparisonType"]](first, second)

    def _BooleanTernaryExpression(self, node: Node, rows: Rows) -> Steps:
        value = yield from self._value(node["FirstExpression"], rows)
        low = yield from self._value(node["SecondExpression"], rows)
        high = yield from self._value(node["ThirdExpression"], rows)
        return None if None in (value, low, high) else low <= value <= high

    def _BooleanBinaryExpression(self, node: Node, rows: Rows) -> Steps:
        decides = node["BinaryExpressionType"] == "Or"
        first = yield from self._value(node["FirstExpression"], rows)
        second = yield from self._value(node["SecondExpression"], rows)
        if decides in (first, second):
            return decides
        return None if None in (first, second) else not decides

    def _BooleanNotExpression(self, node: Node, rows: Rows) -> Steps:
        found = yield from self._value(node["Expression"], rows)
        return None if found is None else not found

    def _BooleanIsNullExpression(self, node: Node, rows: Rows) -> Steps:
        return ((yield from self._value(node["Expression"], rows)) is None) != node["IsNot"]

    def _InPredicate(self, node: Node, rows: Rows) -> Steps:
        value = yield from self._value(node["Expression"], rows)
        if "Subquery" in node:
            query = node["Subquery"]["QueryExpression"]
            found = yield from self._derived(query, rows, positions=True)
            values = [row[0] for row in found]
        else:
            values = yield from self._each(node["Values"], rows)
        if value is not None and value in values:
            return not node["NotDefined"]
        return None if value is None or None in values else node["NotDefined"]

    def _LikePredicate(self, node: Node, rows: Rows) -> Steps:
        value = yield from self._value(node["FirstExpression"], rows)
        pattern = yield from self._value(node["SecondExpression"], rows)
        parts = re.split(r"(%|_|\[[^\]]+\])", pattern)
        regex = "".join(
            {"%": ".*", "_": "."}.get(part)
            or (part.replace("[[", r"[\[") if at % 2 else re.escape(part))
            for at, part in enumerate(parts)
        )
        return None if value is None else re.fullmatch(regex, value.rstrip(" "), re.S) is not None

    def _ExistsPredicate(self, node: Node, rows: Rows) -> Steps:
        return bool((yield from self._query(node["Subquery"]["QueryExpression"], rows)))

    def _ScalarSubquery(self, node: Node, rows: Rows) -> Steps:
        yield
        found = yield from self._derived(node["QueryExpression"], rows, positions=True)
        assert len(found) <= 1, "a subquery of more than one value (512)"
        return found[0][0] if found else None

    def _CastCall(self, node: Node, rows: Rows) -> Steps:
        value = yield from self._value(node["Parameter"], rows)
        kind = node["DataType"].get("SqlDataTypeOption", "")
        if "Binary" in kind and isinstance(value, int):
            (length,) = node["DataType"]["Parameters"]
            return value.to_bytes(int(length["Value"]))
        if "Binary" in kind and isinstance(value, str):
            return value.encode("utf-16-le")
        if isinstance(value, bytes) and "Binary" not in kind:
            is_text = kind == "NVarChar"
            return value.decode("utf-16-le") if is_text else int.from_bytes(value, signed=True)
        return int(value) if isinstance(value, str) and value.lstrip("-").isdigit() else value

    def _TryCastCall(self, node: Node, rows: Rows) -> Steps:
        value = yield from self._value(node["Parameter"], rows)
        return int(value) if str(value).isdigit() else None

    def _CoalesceExpression(self, node: Node, rows: Rows) -> Steps:
        for one in node["Expressions"]:
            if (value := (yield from self._value(one, rows))) is not None:
                return value
        return None

    def _NullIfExpression(self, node: Node, rows: Rows) -> Steps:
        value = yield from self._value(node["FirstExpression"], rows)
        return None if value == (yield from self._value(node["SecondExpression"], rows)) else value

    def _SearchedCaseExpression(self, node: Node, rows: Rows) -> Steps:
        simple = "InputExpression" in node
        operand = (yield from self._value(node["InputExpression"], rows)) if simple else True
        for one in node["WhenClauses"]:
            if operand == (yield from self._value(one["WhenExpression"], rows)):
                return (yield from self._value(one["ThenExpression"], rows))
        if "ElseExpression" not in node:
            return None
        return (yield from self._value(node["ElseExpression"], rows))

    _SimpleCaseExpression = _SearchedCaseExpression

    def _NextValueForExpression(self, node: Node, _: Rows) -> Steps:
        self._require_configuration("a number is drawn")
        self._touches = True
        yield
        return self._session.draw(last(node["SequenceName"]))

    def _FunctionCall(self, node: Node, rows: Rows) -> Steps:
        name = node["FunctionName"]["Value"].upper()
        if name == "ROW_NUMBER":
            by = node["OverClause"]["OrderByClause"]
            in_order = yield from self._sorted(rows[""]["group"], by)
            own = {alias: row for alias, row in rows.items() if alias}
            return 1 + next(
                position
                for position, other in enumerate(in_order)
                if {alias: row for alias, row in other.items() if alias} == own
            )
        if name in _AGGREGATES:
            (what,) = node["Parameters"]
            values: list[Any] = []
            for other in rows[""]["group"]:
                is_row = what.get("ColumnType") == "Wildcard"
                values.append(1 if is_row else (yield from self._value(what, other)))
            return _AGGREGATES[name]([value for value in values if value is not None])
        server = self._session.server
        if name in {"SYSUTCDATETIME", "SYSDATETIMEOFFSET", "NEWSEQUENTIALID", "NEWID"}:
            return server.now() if name.startswith("SYS") else server.draw("ids")
        if name == "SCOPE_IDENTITY":
            return self._identity
        if name == "OBJECT_DEFINITION":
            (one,) = yield from self._each(node["Parameters"], rows)
            return server.definitions.get(one)
        return FUNCTIONS[name](*(yield from self._each(node["Parameters"], rows)))

    def _ConvertCall(self, node: Node, rows: Rows) -> Steps:
        value = yield from self._value(node["Parameter"], rows)
        return value.hex().upper() if isinstance(value, bytes) else str(value)

    def _TryConvertCall(self, node: Node, rows: Rows) -> Steps:
        """Of hexadecimal digits, to binary."""
        value = yield from self._value(node["Parameter"], rows)
        try:
            return bytes.fromhex(value)
        except ValueError:
            return None


class _Row(dict[str, Any]):
    """A column without a value is NULL; that each column exists, the binder checks."""

    def __missing__(self, _: str) -> None:
        return None


class Stored(_Row):
    """A row, and the name of its table."""

    def __init__(self, table: str, row: Row) -> None:
        super().__init__(row)
        self.table = table


def hints_of(sources: Sequence[Node]) -> set[str]:
    """The hints of a query's only table."""
    return {one["HintKind"] for node in sources[:1] for one in node.get("TableHints", [])}


def index_values(hint: Node) -> list[Node]:
    """The names in INDEX (...)."""
    return [one["Identifier"] for one in hint.get("IndexValues", [])]


def last(name: Node) -> str:
    last: str = name["Identifiers"][-1]["Value"]
    return last


def column_of(node: Node) -> str:
    return last(node["MultiPartIdentifier"])


def alias_of(node: Node) -> str:
    if "Alias" in node:
        alias: str = node["Alias"]["Value"]
        return alias
    return node["Variable"]["Name"] if "Variable" in node else last(node["SchemaObject"])


def tables_in(sources: Sequence[Node]) -> list[Node]:
    """The tables in FROM."""
    found = []
    for source in sources:
        joined = [
            source[name]
            for name in ("FirstTableReference", "SecondTableReference")
            if name in source
        ]
        found += tables_in(joined) if joined else [source]
    return found


def named_as(element: Node) -> str:
    if "ColumnName" in element:
        name: str = element["ColumnName"]["Value"]
        return name
    return column_of(element["Expression"])


def conjuncts(node: Node | None) -> list[Node]:
    """The conditions that AND joins."""
    condition = (node or {}).get("SearchCondition")
    parts, found = [condition] if condition else [], []
    while parts:
        part = parts.pop(0)
        if part.get("BinaryExpressionType") == "And":
            parts = [part["FirstExpression"], part["SecondExpression"], *parts]
        else:
            found.append(part)
    return found


def inside(node: Any) -> Generator[Node, None, None]:
    """All nodes of a tree, in the order of its text."""
    if isinstance(node, dict):
        if "$type" in node:
            yield node
        for one in node.values():
            yield from inside(one)
    elif isinstance(node, list):
        for one in node:
            yield from inside(one)


def _is_about(condition: Node, alias: str, columns: set[str], rows: Rows) -> bool:
    """Whether it uses only the key of this table, and other rows that are already known."""
    is_one = False
    for one in inside(condition):
        if one["$type"] in _SUBQUERIES:
            return False
        if one["$type"] == "ColumnReferenceExpression":
            *named, column = (n["Value"] for n in one["MultiPartIdentifier"]["Identifiers"])
            own = named[0] == alias if named else column in columns
            if (own and column not in columns) or (not own and (not named or named[0] not in rows)):
                return False
            is_one |= own
    return is_one


def _is_aggregated(query: Node) -> bool:
    def found(node: Any) -> bool:
        if isinstance(node, list):
            return any(found(one) for one in node)
        if not isinstance(node, dict) or node.get("$type") in _SUBQUERIES:
            return False
        called = node["FunctionName"]["Value"] if node.get("$type") == "FunctionCall" else ""
        if called.upper() in _AGGREGATES and "OverClause" not in node:
            return True
        return any(found(one) for one in node.values())

    if "$aggregated" not in query:  # cached, because each row needs it
        query["$aggregated"] = found(query["SelectElements"])
    aggregated: bool = query["$aggregated"]
    return aggregated
