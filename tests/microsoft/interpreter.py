"""Runs procedures by their syntax trees, on the sessions of `server`.

A call is a generator. Where it yields, another session may continue: between two statements,
before each read of a row, and between a row's lock and the conditions on it. Tables are joined in
the order of the text, each searched by the conditions on its key: LOOP JOIN and FORCE ORDER.
"""
# ruff: noqa: N802 - methods are named as ScriptDom's classes

import re
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from typing import Any

from tests.microsoft.broker import Broker
from tests.microsoft.server import DeadlockError, Row, ServerError, Session
from tests.microsoft.trees import Node
from tests.microsoft.values import (
    ARITHMETIC,
    FUNCTIONS,
    Rows,
    Steps,
    Stored,
    alias_of,
    column_of,
    conjuncts,
    last,
    named_as,
    tables_in,
)

_NOTHING = {
    *("SetRowCountStatement", "SetCommandStatement"),
    *("SetTransactionIsolationLevelStatement", "IdentifierLiteral"),
}
_BRANCHES = {
    *("CreateOrAlterProcedureStatement", "AlterProcedureStatement", "BeginEndBlockStatement"),
    *("IfStatement", "WhileStatement"),
}
_ALTER_SEQUENCE = re.compile(
    r"ALTER SEQUENCE .*\[(\w+)\](?: INCREMENT BY 1 NO CYCLE)?"
    r"(?: RESTART WITH (-?\d+))?(?: CACHE (\d+))?"
)
_WRITING = {
    *("InsertStatement", "UpdateStatement", "DeleteStatement"),
    *("ReceiveStatement", "SendStatement", "BeginDialogStatement", "EndConversationStatement"),
}


class ThrownError(ServerError):
    """THROW."""


class Call(Broker):
    """One call of a procedure."""

    def __init__(
        self, procedures: Mapping[str, Node], name: str, session: Session, **given: Any
    ) -> None:
        (self._procedure,) = {**procedures, **session.server.procedures}[name]["Batches"][0][
            "Statements"
        ]
        super().__init__(session)
        self._procedures = procedures
        self._columns: dict[str, dict[str, Node | None]] = {}
        self._updatable: dict[str, Node] = {}
        """Common table expressions that the statement writes through."""
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
        xact_abort = self._session.xact_abort
        try:
            yield from self._statement(self._procedure)
        except ServerError as error:
            # rule: xact-abort, attention, deadlock
            if self._session.xact_abort or isinstance(error, DeadlockError):
                self._session.roll_back()
            raise
        finally:
            self._session.xact_abort = xact_abort  # rule: set-in-procedure
        return self.result

    # Statements: each returns how it ended, by break, continue or return; empty: at its end.

    def _statement(self, node: Node) -> Generator[None, None, str]:
        kind = node["$type"]
        if kind in _NOTHING:
            return ""
        if kind in {"BreakStatement", "ContinueStatement", "ReturnStatement"}:
            return str(kind)
        yield
        self._named, self._updatable = {}, {}
        specification = node.get("UpdateSpecification") or node.get("DeleteSpecification") or {}
        written = last(
            specification.get("Target", {}).get("SchemaObject", {"Identifiers": [{"Value": ""}]})
        )
        for one in node.get("WithCtesAndXmlNamespaces", {}).get("CommonTableExpressions", []):
            if one["ExpressionName"]["Value"] == written:
                self._updatable[written] = one["QueryExpression"]
            else:
                yield from self._common_table(one)
        steps = getattr(self, f"_{kind}")(node)
        ended_by: str = (
            yield from steps if kind in _BRANCHES else self._counted(node, steps)
        ) or ""
        return ended_by

    def _counted(self, node: Node, steps: Steps) -> Steps:
        """A statement is done or it is not; alone, it is a transaction (rule: statement)."""
        session, self._touches = self._session, False
        is_alone = not session.depth and node["$type"] in _WRITING
        if is_alone:
            session.begin()
        mark = session.mark()
        try:
            found = yield from steps
        except ServerError:
            session.undo(mark)  # rule: attention-in-statement
            if is_alone:
                session.roll_back()
            raise
        if is_alone:
            session.commit()
        if self._touches:
            self.counted.append(node["$type"])
        return found

    def _PredicateSetStatement(self, node: Node) -> Steps:
        yield from ()
        if "XactAbort" in node["Options"]:
            self._session.xact_abort = node["IsOn"]

    def _common_table(self, node: Node) -> Steps:
        name = node["ExpressionName"]["Value"]
        wide = name in {"ten", "many"}  # counts to 100,000,000 on a server
        self._named[name] = (
            [{"n": n} for n in range(1, 65)]
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
        self._columns[name] = defaults(columns)
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
        raise ThrownError(message)

    def _WaitForStatement(self, _: Node) -> Steps:
        yield

    def _ExecuteStatement(self, node: Node) -> Steps:
        called = node["ExecuteSpecification"]["ExecutableEntity"]
        if called["$type"] == "ExecutableStringList":
            (text,) = called["Strings"]
            yield from self.execute((yield from self._value(text)))
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
        if name.endswith("applock"):
            yield from self._application_lock(name, given["@Resource"], node)
            return
        other = Call(self._procedures, name.removeprefix("orders_"), self._session)
        other._given = given
        self.result += yield from other.run()
        self._touches = True

    def execute(self, text: str) -> Steps:
        """Dynamic SQL: a sequence restarts, or a procedure changes."""
        yield from ()
        server = self._session.server
        if match := _ALTER_SEQUENCE.fullmatch(text):
            if match[2]:
                server.restart(match[1], int(match[2]))
            if match[3]:
                server.caches[match[1]] = int(match[3])
            return
        assert server.parse is not None, text
        tree = server.parse(text)
        (procedure,) = tree["Batches"][0]["Statements"]
        name = last(procedure["ProcedureReference"]["Name"])
        server.procedures[name.removeprefix("orders_")] = tree
        server.definitions[name] = re.sub(
            r"^(CREATE OR )?ALTER\b", "CREATE", text
        )  # rule: definition

    _AlterProcedureStatement = _CreateOrAlterProcedureStatement

    def _application_lock(self, name: str, resource: str, node: Node) -> Steps:
        session = self._session
        if name == "sp_releaseapplock":
            assert session.server.application_locks.pop(resource, None) is session, (
                "not held (1223)"
            )
            return
        code = 0
        try:
            yield from self._waiting(partial(session.lock_application, resource))
        except DeadlockError:  # rule: application-lock
            code = -3
        self._values[node["ExecuteSpecification"]["Variable"]["Name"]] = code

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
                yield from self._waiting(partial(self._session.write, table, key, new))
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
        if "TopRowFilter" in node or alias_of(target) in self._updatable:
            query = self._updatable.get(alias_of(target), node)
            from_clause = query.get("FromClause", {"TableReferences": [target]})
            (table,) = from_clause["TableReferences"]
            alias, name = alias_of(target), last(table["SchemaObject"])
            found = yield from self._scan(table, query, {})
            key_of = self._session.server.key
            seen = [{**rows, alias: rows[alias_of(table)]} for rows in found]
            return [(rows, alias, name, key_of(name, rows[alias])) for rows in seen]
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
            yield from self._put(into["IntoTable"], columns, values)
        if "OutputClause" in node:
            columns = node["OutputClause"]["SelectColumns"]
            values = yield from self._each(columns, rows)
            self.result.append(dict(zip(map(named_as, columns), values, strict=True)))

    def _put(self, into: Node, columns: Sequence[str], values: Sequence[Any]) -> Steps:
        """The row as it is inserted, with its defaults and its number."""
        is_variable, server = into["$type"] == "VariableTableReference", self._session.server
        name = into["Variable"]["Name"] if is_variable else last(into["SchemaObject"])
        given = dict(zip(columns, values, strict=True))
        row: Row = {}
        for column, default in (
            (self._columns if is_variable else server.columns).get(name, {}).items()
        ):
            row[column] = None
            if default and column not in given:
                row[column] = yield from self._value(default)
        row |= given
        if is_variable:
            self._tables[name].append(row)
            return row
        self._touches = True
        if number := server.identities.get(name):
            # rule: identity
            self._identity = row[number] = server.draw(name)
            yield
        yield from self._waiting(partial(self._session.insert, name, row))
        return row

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
            row = yield from self._put(node["Target"], columns, values)
            yield from self._output(node, {"inserted": row})
        self._rowcount = len(given)


def defaults(columns: Sequence[Node]) -> dict[str, Node | None]:
    """Column -> its default, if it has one."""
    return {
        one["ColumnIdentifier"]["Value"]: one.get("DefaultConstraint", {}).get("Expression")
        for one in columns
    }
