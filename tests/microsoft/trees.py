"""Mistakes that neither Microsoft's parsers nor the binder find, from ScriptDom's syntax trees.

A tree is a dictionary: `$type` is ScriptDom's class, every other key one of its properties. The
numbers in brackets are the server's errors.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Node = dict[str, Any]

_UNLOCKED = {"NoLock", "ReadUncommitted"}
_ISOLATION = (
    *({"NoLock", "ReadUncommitted"}, {"Serializable", "HoldLock"}),
    *({"RepeatableRead"}, {"ReadCommitted"}, {"ReadCommittedLock"}, {"Snapshot"}),
)
_GRANULARITY = ({"Rowlock"}, {"PagLock"}, {"TabLock"}, {"TabLockX"})
_LOCKING = {"Rowlock", "PagLock", "TabLock", "TabLockX", "UpdLock", "XLock", "ReadPast"}
_AGGREGATES = {"COUNT", "COUNT_BIG", "SUM", "MIN", "MAX", "AVG", "STRING_AGG", "CHECKSUM_AGG"}
_NO_SEQUENCE_IN = {
    **dict.fromkeys(("SearchedCaseExpression", "SimpleCaseExpression"), "CASE (11741)"),
    **dict.fromkeys(("CoalesceExpression", "NullIfExpression", "IIfCall"), "CASE (11741)"),
    **dict.fromkeys(("ScalarSubquery", "ExistsPredicate", "QueryDerivedTable"), "subquery (11719)"),
    **dict.fromkeys(("CommonTableExpression", "InlineDerivedTable"), "subquery (11719)"),
    **dict.fromkeys(("ViewStatementBody", "FunctionStatementBody"), "view or function (11719)"),
    **dict.fromkeys(("WhereClause", "HavingClause", "GroupByClause"), "WHERE (11720)"),
    **dict.fromkeys(("TopRowFilter", "OutputClause", "OutputIntoClause"), "TOP, OUTPUT (11720)"),
    **dict.fromkeys(("QualifiedJoin", "OrderByClause"), "ON, ORDER BY (11720)"),
    "BinaryQueryExpression": "UNION (11721)",
    "MergeSpecification": "MERGE (11742)",
}
"""Where NEXT VALUE FOR is refused: Microsoft's page "NEXT VALUE FOR", "Limitations"."""


def mistakes(tree: Node) -> list[str]:
    """Everything wrong in the tree of one text."""
    tables = {
        node["Body"]["VariableName"]["Value"].lower(): _columns_of_variable(node["Body"])
        for node, _ in _scan(tree, ())
        if node["$type"] == "DeclareTableVariableStatement"
    }
    found: list[str] = []
    for node, above in _scan(tree, ()):
        if check := _CHECKS.get(node["$type"]):
            found += check(node, above, tables)
    return found


def declared(tree: Node) -> set[str]:
    """The variables that a text declares, and its procedures' parameters."""
    kinds = {"DeclareVariableElement", "DeclareTableVariableBody", "ProcedureParameter"}
    nodes = (node for node, _ in _scan(tree, ()) if node["$type"] in kinds)
    return {node["VariableName"]["Value"].lower() for node in nodes}


Tables = Mapping[str, int]
"""Table variable, in lower case -> how many columns an INSERT fills."""
Above = tuple[Node, ...]
Check = Callable[[Node, Above, Tables], Iterator[str]]


def _scan(tree: Any, above: Above) -> Iterator[tuple[Node, Above]]:
    """Each node before its descendants, with its ancestors."""
    waiting: list[tuple[Any, Above]] = [(tree, above)]
    while waiting:
        node, above = waiting.pop()
        if isinstance(node, list):
            waiting += [(one, above) for one in reversed(node)]
        elif isinstance(node, dict) and "$type" in node:
            yield node, above
            inside = (*above, node)
            values = reversed(node.values())
            waiting += [(one, inside) for one in values if isinstance(one, dict | list)]


def _hints(node: Node, above: Above, tables: Tables) -> Iterator[str]:
    """Pairs of hints on one table that exclude each other (1047, 650, 1065)."""
    hints = {hint["HintKind"] for hint in node["TableHints"] if "HintKind" in hint}
    shown = f"{_name(node['SchemaObject'])} WITH ({', '.join(sorted(hints))})"
    for group in (_ISOLATION, _GRANULARITY):
        if sum(bool(one & hints) for one in group) > 1:
            yield f"hints conflict (1047): {shown}"
    if hints & _UNLOCKED and hints & _LOCKING:
        yield f"hints conflict (1047): {shown}"
    if "ReadPast" in hints and hints & {"Serializable", "HoldLock"}:
        yield f"READPAST at this isolation (650): {shown}"
    written = above[-1].get("Target") is node and above[-1]["$type"].endswith("Specification")
    if written and hints & _UNLOCKED:
        yield f"hint at what is written (1065): {shown}"


def _insert(node: Node, above: Above, tables: Tables) -> Iterator[str]:
    """An INSERT gives each of its columns a value (109, 110, 120, 121, 213)."""
    needed = len(node["Columns"]) or tables.get(_variable(node["Target"]))
    source = node["InsertSource"]
    if needed:
        for width in _widths_of_rows(source) | _widths(source.get("Select")):
            if width != needed:
                yield f"INSERT gives {width} values to {needed} columns: {_name(node['Target'])}"


def _insert_of_merge(node: Node, above: Above, tables: Tables) -> Iterator[str]:
    needed = len(node["Columns"])
    for width in _widths_of_rows(node["Source"]):
        if needed and width != needed:
            yield f"MERGE inserts {width} values into {needed} columns"


def _output_into(node: Node, above: Above, tables: Tables) -> Iterator[str]:
    """OUTPUT INTO fills the columns that it names, or all (121, 213)."""
    needed = len(node["IntoTableColumns"]) or tables.get(_variable(node["IntoTable"]))
    columns = node["SelectColumns"]
    if needed and not _starred(columns) and len(columns) != needed:
        yield f"OUTPUT gives {len(columns)} values to {needed} columns: {_name(node['IntoTable'])}"


def _union(node: Node, above: Above, tables: Tables) -> Iterator[str]:
    """The sides of a UNION have equally many columns (205)."""
    if len(_widths(node)) > 1:
        yield f"the sides of a UNION have {sorted(_widths(node))} columns"


def _named_columns(node: Node, above: Above, tables: Tables) -> Iterator[str]:
    """A list of columns is as long as what it names (8158, 8159)."""
    needed = len(node["Columns"])
    widths = _widths(node.get("QueryExpression")) | _widths_of_rows(node)
    if needed and widths - {needed}:
        yield f"{needed} names for {sorted(widths)} columns"


def _values(node: Node, above: Above, tables: Tables) -> Iterator[str]:
    """The rows of VALUES have equally many values (10709)."""
    if len(_widths_of_rows(node)) > 1:
        yield f"VALUES has rows of {sorted(_widths_of_rows(node))} values"


def _next_value(node: Node, above: Above, tables: Tables) -> Iterator[str]:
    """NEXT VALUE FOR is only where the server accepts it."""
    # A MERGE's INSERT, or a statement inside an IF, is a context of its own.
    for outer, inner in zip(reversed(above), (node, *reversed(above)), strict=False):
        kind = outer["$type"]
        if kind in _NO_SEQUENCE_IN and not (
            kind == "QualifiedJoin" and outer.get("SearchCondition") is not inner
        ):
            yield f"NEXT VALUE FOR within {_NO_SEQUENCE_IN[kind]}: {_name(node['SequenceName'])}"
        if kind in {"IfStatement", "WhileStatement"} and outer.get("Predicate") is inner:
            yield f"NEXT VALUE FOR in a condition (11720): {_name(node['SequenceName'])}"
        if kind == "FunctionCall":
            name = outer["FunctionName"]["Value"].upper()
            if name in _AGGREGATES | {"ISNULL", "CHOOSE"}:
                yield f"NEXT VALUE FOR within {name}: {_name(node['SequenceName'])}"
        if kind == "QuerySpecification":
            if outer.get("UniqueRowFilter") == "Distinct":
                yield f"NEXT VALUE FOR with DISTINCT (11721): {_name(node['SequenceName'])}"
            if "OrderByClause" in outer and "OverClause" not in node:
                yield f"NEXT VALUE FOR with ORDER BY (11723): {_name(node['SequenceName'])}"
        if kind.endswith("Statement"):
            break


def _where(node: Node, above: Above, tables: Tables) -> Iterator[str]:
    """No aggregate and no window function among the conditions on rows (147, 4108)."""
    for inner, between in _scan(node.get("SearchCondition"), ()):
        if inner["$type"] != "FunctionCall" or any(
            one["$type"] in {"ScalarSubquery", "ExistsPredicate", "QuerySpecification"}
            for one in between
        ):
            continue
        name = inner["FunctionName"]["Value"].upper()
        if "OverClause" in inner:
            yield f"window function in WHERE (4108): {name}"
        elif name in _AGGREGATES:
            yield f"aggregate in WHERE (147): {name}"


def _sample(node: Node, above: Above, tables: Tables) -> Iterator[str]:
    """TABLESAMPLE of a table, not of the server's own views (494)."""
    if "TableSampleClause" in node and _name(node["SchemaObject"]).lower().startswith("sys."):
        yield f"TABLESAMPLE of {_name(node['SchemaObject'])} (494)"


def _table(node: Node, above: Above, tables: Tables) -> Iterator[str]:
    yield from _hints(node, above, tables)
    yield from _sample(node, above, tables)


_OF_ANY_TYPE = {"DATABASEPROPERTYEX", "SERVERPROPERTY", "SESSION_CONTEXT", "CONNECTIONPROPERTY"}


def _compared(node: Node, above: Above, tables: Tables) -> Iterator[str]:
    """A sql_variant is equal to a text of the same collation only: cast it first."""
    for side in ("FirstExpression", "SecondExpression"):
        if _called(node[side]) in _OF_ANY_TYPE:
            yield f"{_called(node[side])} compared as a sql_variant"


def _json_in_order(node: Node, above: Above, tables: Tables) -> Iterator[str]:
    """What OR joins is evaluated in any order: OPENJSON fails on what ISJSON refuses (13609)."""
    if node.get("BinaryExpressionType") == "Or":
        checked = any(_called(inner) == "ISJSON" for inner, _ in _scan(node["FirstExpression"], ()))
        read = any(
            inner["$type"] == "OpenJsonTableReference"
            for inner, _ in _scan(node["SecondExpression"], ())
        )
        if checked and read:
            yield "ISJSON ... OR ... OPENJSON has no order (13609): two statements"


def _called(node: Node) -> str:
    """The name of the called function; empty: none."""
    return node["FunctionName"]["Value"].upper() if node["$type"] == "FunctionCall" else ""


_CHECKS: Mapping[str, Check] = {
    "NamedTableReference": _table,
    "InsertSpecification": _insert,
    "InsertMergeAction": _insert_of_merge,
    "OutputIntoClause": _output_into,
    "BinaryQueryExpression": _union,
    "CommonTableExpression": _named_columns,
    "QueryDerivedTable": _named_columns,
    "InlineDerivedTable": _named_columns,
    "ValuesInsertSource": _values,
    "NextValueForExpression": _next_value,
    "WhereClause": _where,
    "BooleanComparisonExpression": _compared,
    "BooleanBinaryExpression": _json_in_order,
}


def _widths(query: Node | None) -> set[int]:
    """How many columns a query returns; nothing if that depends on a table (`*`)."""
    if query is None:
        return set()
    if query["$type"] == "BinaryQueryExpression":
        return _widths(query["FirstQueryExpression"]) | _widths(query["SecondQueryExpression"])
    if query["$type"] == "QueryParenthesisExpression":
        return _widths(query["QueryExpression"])
    columns = query["SelectElements"]
    return set() if _starred(columns) else {len(columns)}


def _widths_of_rows(values: Node) -> set[int]:
    return {len(row["ColumnValues"]) for row in values.get("RowValues", [])}


def _starred(columns: list[Node]) -> bool:
    return any(column["$type"] == "SelectStarExpression" for column in columns)


def _columns_of_variable(body: Node) -> int:
    columns = body["Definition"]["ColumnDefinitions"]
    return sum(
        "IdentityOptions" not in column and "ComputedColumnExpression" not in column
        for column in columns
    )


def _variable(target: Node) -> str:
    """The variable that is written into; empty if it is a table."""
    if target["$type"] != "VariableTableReference":
        return ""
    name: str = target["Variable"]["Name"]
    return name.lower()


def _name(node: Node) -> str:
    """The name of a table, an object or a variable."""
    if node["$type"] == "VariableTableReference":
        return _variable(node)
    named = node.get("SchemaObject", node)
    return ".".join(one["Value"] for one in named["Identifiers"])
