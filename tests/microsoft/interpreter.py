"""Runs procedures by their syntax trees, on the sessions of `server`.

A call is a generator. Where it yields, another session may continue: between two statements,
before each read of a row, and between a row's lock and the conditions on it. Tables are joined in
the order of the text, each searched by the conditions on its key: LOOP JOIN and FORCE ORDER.
"""
# ruff: noqa: N802 - methods are named as ScriptDom's classes

import re
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from tests.microsoft.server import Row, Session
from tests.microsoft.trees import Node
from tests.microsoft.values import (
    ARITHMETIC,
    FUNCTIONS,
    Rows,
    Steps,
    Stored,
    Values,
    alias_of,
    column_of,
    conjuncts,
    last,
    named_as,
    tables_in,
)

_NOTHING = {
    *("PredicateSetStatement", "SetRowCountStatement", "SetCommandStatement"),
    *("SetTransactionIsolationLevelStatement", "IdentifierLiteral"),
}
_BRANCHES = {
    *("CreateOrAlterProcedureStatement", "BeginEndBlockStatement"),
    *("IfStatement", "WhileStatement"),
}
_RESTART = re.compile(r"ALTER SEQUENCE .*\[(\w+)\] RESTART WITH (-?\d+) CACHE \d+")


class ThrownError(Exception):
    """THROW; everything is rolled back."""


class Call(Values):
    """One call of a procedure."""

    def __init__(
        self, procedures: Mapping[str, Node], name: str, session: Session, **given: Any
    ) -> None:
        (self._procedure,) = procedures[name]["Batches"][0]["Statements"]
        super().__init__(session)
        self._procedures = procedures
        self._columns: dict[str, list[str]] = {}
        self._depth = session.depth
        self._given = {f"@{one}": value for one, value in given.items()}
        self.result: list[Row] = []
        self.counted: list[str] = []
        """The statements that read or wrote a table or a sequence, began or ended a transaction."""

    def run(self) -> Steps:
        """Runs the procedure; returns the rows that the caller gets."""
        for one in self._procedure["Parameters"]:
            name = one["VariableName"]["Value"]
            default = (yield from self._value(one["Value"])) if "Value" in one else None
            self._values[name] = self._given.get(name, default)
        yield from self._statement(self._procedure)
        return self.result

    # Statements: each returns how it ended, by break, continue or return; empty: at its end.

    def _statement(self, node: Node) -> Generator[None, None, str]:
        kind = node["$type"]
        if kind in _NOTHING:
            return ""
        if kind in {"BreakStatement", "ContinueStatement", "ReturnStatement"}:
            return str(kind)
        yield
        self._named = {}
        for one in node.get("WithCtesAndXmlNamespaces", {}).get("CommonTableExpressions", []):
            yield from self._common_table(one)
        steps = getattr(self, f"_{kind}")(node)
        ended_by: str = (
            yield from steps if kind in _BRANCHES else self._counted(node, steps)
        ) or ""
        return ended_by

    def _counted(self, node: Node, steps: Steps) -> Steps:
        self._touches = False
        found = yield from steps
        if self._touches:
            self.counted.append(node["$type"])
        return found

    def _common_table(self, node: Node) -> Steps:
        name = node["ExpressionName"]["Value"]
        wide = name in {"ten", "many"}  # counts to 100,000,000 on a server
        self._named[name] = (
            [{"n": n} for n in range(1, 33)]
            if wide
            else (yield from self._derived(node["QueryExpression"], {}))
        )

    def _CreateOrAlterProcedureStatement(self, node: Node) -> Steps:
        return (yield from self._block(node["StatementList"]["Statements"]))

    def _BeginEndBlockStatement(self, node: Node) -> Steps:
        return (yield from self._block(node["StatementList"]["Statements"]))

    def _block(self, statements: Sequence[Node]) -> Steps:
        for statement in statements:
            if ended_by := (yield from self._statement(statement)):
                return ended_by
        return ""

    def _IfStatement(self, node: Node) -> Steps:
        holds = yield from self._counted(node, self._value(node["Predicate"]))
        then = node["ThenStatement"] if holds else node.get("ElseStatement")
        return (yield from self._statement(then)) if then else ""

    def _WhileStatement(self, node: Node) -> Steps:
        while (yield from self._counted(node, self._value(node["Predicate"]))):
            ended_by = yield from self._statement(node["Statement"])
            if ended_by == "ReturnStatement":
                return ended_by
            if ended_by == "BreakStatement":
                break
        return ""

    def _DeclareVariableStatement(self, node: Node) -> Steps:
        for one in node["Declarations"]:
            value = (yield from self._value(one["Value"])) if "Value" in one else None
            self._values[one["VariableName"]["Value"]] = value

    def _DeclareTableVariableStatement(self, node: Node) -> Steps:
        yield from ()
        name = node["Body"]["VariableName"]["Value"]
        columns = node["Body"]["Definition"]["ColumnDefinitions"]
        self._columns[name] = [column["ColumnIdentifier"]["Value"] for column in columns]
        self._tables[name] = []

    def _SetVariableStatement(self, node: Node) -> Steps:
        value = yield from self._value(node["Expression"])
        name = node["Variable"]["Name"]
        kind = node["AssignmentKind"].removesuffix("Equals") or "Equals"
        self._values[name] = ARITHMETIC[kind](self._values[name], value)

    def _BeginTransactionStatement(self, _: Node) -> Steps:
        yield from ()
        self._touches = True
        self._session.begin()

    def _CommitTransactionStatement(self, _: Node) -> Steps:
        yield from ()
        self._touches = True
        self._session.commit()

    def _ThrowStatement(self, node: Node) -> Steps:
        message = yield from self._value(node["Message"])
        self._session.roll_back()
        raise ThrownError(message)

    def _WaitForStatement(self, _: Node) -> Steps:
        yield

    def _ExecuteStatement(self, node: Node) -> Steps:
        called = node["ExecuteSpecification"]["ExecutableEntity"]
        if called["$type"] == "ExecutableStringList":
            (text,) = called["Strings"]
            sequence, value = _groups(_RESTART, (yield from self._value(text)))
            # This is the next number drawn.
            self._session.server.sequences[sequence] = int(value) - 1
            return
        given = {}
        for one in called["Parameters"]:
            given[one["Variable"]["Name"]] = yield from self._value(one["ParameterValue"])
        name = last(called["ProcedureReference"]["ProcedureReference"]["Name"])
        if name == "sp_sequence_get_range":
            self._require_configuration("a number is drawn")
            self._touches = True
            sequence = FUNCTIONS["OBJECT_ID"](given["@sequence_name"])
            first = self._session.draw(sequence, given["@range_size"])
            (out,) = (one for one in called["Parameters"] if one["IsOutput"])
            self._values[out["ParameterValue"]["Name"]] = first
            return
        other = Call(self._procedures, name.removeprefix("orders_"), self._session)
        other._given = given
        self.result += yield from other.run()
        self._touches = True

    def _SelectStatement(self, node: Node) -> Steps:
        query = node["QueryExpression"]
        found = yield from self._query(query, {})
        elements = query["SelectElements"]
        if elements[0]["$type"] == "SelectSetVariable":
            for rows in found:
                for one in self._session.server.chance.sample(elements, len(elements)):
                    value = yield from self._value(one["Expression"], rows)
                    self._values[one["Variable"]["Name"]] = value
            return
        assert self._session.depth == self._depth, "an answer leaves before the commit"
        for rows in found:
            values = yield from self._each(elements, rows)
            self.result.append(dict(zip(map(named_as, elements), values, strict=True)))

    def _UpdateStatement(self, node: Node) -> Steps:
        node = node["UpdateSpecification"]
        changed = 0
        for rows, alias, table, key in (yield from self._targets(node)):
            new = dict(rows[alias])
            for one in node["SetClauses"]:
                value = yield from self._value(one["NewValue"], rows)
                if "Variable" in one:
                    self._values[one["Variable"]["Name"]] = value
                else:
                    new[column_of(one["Column"])] = value
            yield from self._output(node, {**rows, "deleted": rows[alias], "inserted": new})
            if key is None:
                rows[alias].update(new)
            else:
                self._session.write(table, key, new)
            changed += 1
        self._rowcount = changed

    def _DeleteStatement(self, node: Node) -> Steps:
        node = node["DeleteSpecification"]
        changed = 0
        for rows, alias, table, key in (yield from self._targets(node)):
            yield from self._output(node, {**rows, "deleted": rows[alias]})
            if key is None:
                self._tables[table].remove(rows[alias])
            else:
                self._session.write(table, key, None)
            changed += 1
        self._rowcount = changed

    def _targets(self, node: Node) -> Steps:
        """For each row to write: all rows joined with it, the alias, the table and the key."""
        target = node["Target"]
        sources = node["FromClause"]["TableReferences"] if "FromClause" in node else [target]
        self._locked = {}
        self._written = alias_of(target)
        found = yield from self._joined(sources, conjuncts(node.get("WhereClause")), {})
        self._written = ""
        targets: dict[Any, tuple[Rows, str, str, Any]] = {}
        for rows in found:
            row = rows[alias_of(target)]
            if isinstance(row, Stored):
                key = self._session.server.key(row.table, row)
                targets.setdefault(key, (rows, alias_of(target), row.table, key))
            else:
                source = next(
                    one for one in tables_in(sources) if alias_of(one) == alias_of(target)
                )
                name = source["Variable"]["Name"]
                targets.setdefault(id(row), (rows, alias_of(target), name, None))
        # Locked rows that do not meet the conditions are released.
        for key, release in self._locked.items():
            if key not in targets:
                release()
        return list(targets.values())

    def _output(self, node: Node, rows: Rows) -> Steps:
        if "OutputIntoClause" in node:
            into = node["OutputIntoClause"]
            values = yield from self._each(into["SelectColumns"], rows)
            columns = [column_of(one) for one in into["IntoTableColumns"]]
            self._put(into["IntoTable"], columns, values)

    def _put(self, into: Node, columns: Sequence[str], values: Sequence[Any]) -> None:
        row = dict(zip(columns, values, strict=True))
        if into["$type"] == "VariableTableReference":
            name = into["Variable"]["Name"]
            self._tables[name].append(dict.fromkeys(self._columns[name]) | row)
            return
        self._touches = True
        self._session.insert(last(into["SchemaObject"]), row)

    def _InsertStatement(self, node: Node) -> Steps:
        node = node["InsertSpecification"]
        columns = [column_of(one) for one in node["Columns"]]
        source = node["InsertSource"]
        if source["$type"] == "ValuesInsertSource":
            given = []
            for row in source["RowValues"]:
                given.append((yield from self._each(row["ColumnValues"], {})))  # noqa: PERF401
        else:
            given = [
                list(row.values())
                for row in (yield from self._derived(source["Select"], {}, positions=True))
            ]
        for values in given:
            self._put(node["Target"], columns, values)
        self._rowcount = len(given)


def _groups(pattern: re.Pattern[str], text: str) -> tuple[str, ...]:
    match = pattern.fullmatch(text)
    assert match, text
    return match.groups()
