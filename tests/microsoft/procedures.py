"""The ring's push and pop as they are written: their syntax trees, run on the model of a server.

Only what these two use of T-SQL is known here. Where they stop, between two statements and between
a row's lock and the conditions on it, another session may go on (`ring_model_mssql`).
"""
# ruff: noqa: N802 - methods are named as ScriptDom's classes

import operator
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from tests.faults import ring_model_mssql
from tests.faults.ring_model import Live, Steps, finish
from tests.faults.ring_model_mssql import Transaction
from tests.microsoft.trees import Node

Row = Mapping[str, Any]
Values = Generator[None, None, Any]

_ARITHMETIC: Mapping[str, Callable[[int, int], int]] = {
    "Add": operator.add,
    "Subtract": operator.sub,
    "Multiply": operator.mul,
    "Modulo": operator.mod,
}
_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "Equals": operator.eq,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqualTo": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqualTo": operator.le,
}
_AT_ONCE = {
    **dict.fromkeys(("PredicateSetStatement", "SetRowCountStatement"), ""),
    "SetTransactionIsolationLevelStatement": "",
    "BreakStatement": "break",
    "ReturnStatement": "return",
}
_BRANCHES = {"BeginEndBlockStatement", "IfStatement", "WhileStatement"}
_LITERALS: Mapping[str, Callable[[Node], Any]] = {
    "IntegerLiteral": lambda node: int(node["Value"]),
    "StringLiteral": lambda node: node["Value"],
    "NullLiteral": lambda _: None,
}
_KEYS = {"orders": ["slot"], "orders_parked": ["void", "number"]}
_TABLES_READ_PAST = {"ReadPast", "Rowlock", "ReadCommittedLock"}


class Call:
    """One call of a procedure, in a transaction."""

    def __init__(self, tree: Node, tx: Transaction, **given: Any) -> None:
        self._body = tree["Batches"][0]["Statements"][0]["StatementList"]["Statements"]
        self._tx = tx
        tx.size = 0
        self._variables: dict[str, Any] = {f"@{name}": value for name, value in given.items()}
        self._rows_changed = 0
        self._touches = False
        self._committed = False
        self.answer: list[dict[str, Any]] = []
        self.working: list[str] = []
        """The statements that read or wrote a table or a sequence, began or ended a transaction."""

    def run(self) -> Steps[list[dict[str, Any]]]:
        """Every statement that is reached; the rows that the caller gets."""
        yield from self._block(self._body)
        return self.answer

    def _block(self, statements: Sequence[Node]) -> Generator[None, None, str]:
        """One after the other; how they were left: by break, by return, or at the end."""
        for statement in statements:
            if left := (yield from self._statement(statement)):
                return left
        return ""

    def _statement(self, node: Node) -> Generator[None, None, str]:
        kind = node["$type"]
        if kind in _AT_ONCE:
            return _AT_ONCE[kind]
        steps = getattr(self, f"_{kind}")(node)
        if kind in _BRANCHES:
            left: str = yield from steps
            return left
        yield from self._counted(node, steps)
        return ""

    def _counted(self, node: Node, steps: Values) -> Values:
        self._touches = False
        found = yield from steps
        if self._touches:
            self.working.append(node["$type"])
            yield
        return found

    # Statements.

    def _BeginEndBlockStatement(self, node: Node) -> Values:
        return (yield from self._block(node["StatementList"]["Statements"]))

    def _WhileStatement(self, node: Node) -> Values:
        while (yield from self._counted(node, self._holds(node["Predicate"]))):
            if left := (yield from self._statement(node["Statement"])):
                return left if left == "return" else ""
        return ""

    def _IfStatement(self, node: Node) -> Values:
        holds = yield from self._counted(node, self._holds(node["Predicate"]))
        then = node["ThenStatement"] if holds else node.get("ElseStatement")
        return (yield from self._statement(then)) if then else ""

    def _DeclareVariableStatement(self, node: Node) -> Values:
        for one in node["Declarations"]:
            value = (yield from self._value(one["Value"])) if "Value" in one else None
            self._variables.setdefault(one["VariableName"]["Value"], value)

    def _DeclareTableVariableStatement(self, _: Node) -> Values:
        yield from ()

    def _SetVariableStatement(self, node: Node) -> Values:
        name = node["Variable"]["Name"]
        value = yield from self._value(node["Expression"])
        added = node["AssignmentKind"] == "AddEquals"
        self._variables[name] = self._variables[name] + value if added else value

    def _BeginTransactionStatement(self, _: Node) -> Values:
        self._touches = True
        yield

    def _CommitTransactionStatement(self, _: Node) -> Values:
        self._touches = self._committed = True
        yield

    def _ThrowStatement(self, node: Node) -> Values:
        yield from ()
        raise AssertionError(node["Message"]["Value"])

    def _WaitForStatement(self, _: Node) -> Values:
        yield

    def _ExecuteStatement(self, node: Node) -> Values:
        """A batch of one; the caller gets its answer, so nothing may be left to commit."""
        called = node["ExecuteSpecification"]["ExecutableEntity"]
        assert _last(called["ProcedureReference"]["ProcedureReference"]["Name"]).endswith("many")
        assert self._committed, "an answer leaves before the commit"
        if self._tx.is_of_one_call:
            self._tx.touched = False
        self._touches = True
        yield
        taken = yield from ring_model_mssql.pop_many(self._tx, 1)
        self.answer = [{"id": live.first_id, "payload": live.payload} for live in taken]

    def _SelectStatement(self, node: Node) -> Values:
        query = node["QueryExpression"]
        rows = self._rows(query)
        elements = query["SelectElements"]
        if elements[0]["$type"] != "SelectSetVariable":
            assert self._committed, "an answer leaves before the commit"
            names = [one["ColumnName"]["Value"] for one in elements]
            for row in rows:
                values = [finish(self._value(one["Expression"], row)) for one in elements]
                self.answer.append(dict(zip(names, values, strict=True)))
            return
        in_any_order = self._tx.store.chance.sample(elements, len(elements))
        for row in rows:
            for one in in_any_order:
                value = yield from self._value(one["Expression"], row)
                self._variables[one["Variable"]["Name"]] = value

    def _UpdateStatement(self, node: Node) -> Values:
        node = node["UpdateSpecification"]
        where = node["WhereClause"]["SearchCondition"]
        key = self._key(node["Target"], where)
        (slot,) = key
        tx = self._tx
        self._touches = True
        self._rows_changed = 0
        if (yield from tx.lock_where(("slot", slot, False), lambda: self._is(slot, where))):
            row = self._slot(slot, tx.slot(slot))
            new = dict(row)
            for clause in node["SetClauses"]:
                value = finish(self._value(clause["NewValue"], row))
                if "Variable" in clause:
                    self._variables[clause["Variable"]["Name"]] = value
                else:
                    new[_column(clause["Column"])] = value
            assert new["reference_count"] in {0, 1}
            live = Live(new["message_id"], new["first_id"], new["message"])
            tx.write(slot, live if new["reference_count"] else None)
            self._rows_changed = 1

    def _DeleteStatement(self, node: Node) -> Values:
        node = node["DeleteSpecification"]
        void, number = self._key(node["Target"], node["WhereClause"]["SearchCondition"])
        self._touches = True
        self._rows_changed = int(self._tx.unpark([(number, bool(void))]))
        yield

    def _InsertStatement(self, node: Node) -> Values:
        node = node["InsertSpecification"]
        query = node["InsertSource"]["Select"]
        names = [_column(one) for one in node["Columns"]]
        for row in self._rows(query):
            values = [
                finish(self._value(one["Expression"], row)) for one in query["SelectElements"]
            ]
            new = dict(zip(names, values, strict=True))
            self._tx.park(new["number"], void=bool(new["void"]))
        self._touches = True
        yield

    # Rows.

    def _rows(self, query: Node) -> list[Row]:
        rows: list[Row] = [{}]
        if "FromClause" in query:
            (table,) = query["FromClause"]["TableReferences"]
            rows = self._read(table)
        if "WhereClause" not in query:
            return rows
        where = query["WhereClause"]["SearchCondition"]
        return [row for row in rows if finish(self._holds(where, row))]

    def _read(self, table: Node) -> list[Row]:
        tx, store = self._tx, self._tx.store
        hints = {one["HintKind"] for one in table["TableHints"]}
        self._touches = True
        name = _last(table["SchemaObject"])
        if name == "dm_exec_sessions":
            return [{"session_id": 1, "transaction_isolation_level": 2}]
        if name == "orders_config":
            if not tx.size:
                assert hints == {"RepeatableRead", "Rowlock"}, "the lock does not last"
            tx.hold_configuration()
            return [{"size": tx.size, "base": store.base}]
        assert tx.size, "something is read before the configuration"
        if name == "sequences":
            numbers = {"orders_push_seq": store.next_push, "orders_pop_seq": store.next_pop}
            return [{"object_id": one, "current_value": n - 1} for one, n in numbers.items()]
        assert hints == _TABLES_READ_PAST, f"{name} is read in another way"
        if name == "orders_parked":
            return [{"number": n, "void": int(void)} for n, void in sorted(tx.read_parked())]
        others = [other for other in store.open if other is not tx]
        free = [n for n in range(tx.size) if not any(n in other._slots for other in others)]
        return [self._slot(slot, tx.slot(slot)) for slot in free]

    def _slot(self, slot: int, live: Live | None) -> Row:
        return {
            "slot": slot,
            "message_id": live and live.message_id,
            "first_id": live and live.first_id,
            "time": "then",
            "message": live and live.payload,
            "reference_count": int(live is not None),
        }

    def _is(self, slot: int, where: Node) -> bool:
        held: bool = finish(self._holds(where, self._slot(slot, self._tx.slot(slot))))
        return held

    def _key(self, table: Node, where: Node) -> list[int]:
        """The row that is sought, by the whole key of its table."""
        assert {one["HintKind"] for one in table["TableHints"]} == _TABLES_READ_PAST
        given: dict[str, int] = {}
        parts = [where]
        while parts:
            part = parts.pop()
            if part["$type"] == "BooleanBinaryExpression":
                assert part["BinaryExpressionType"] == "And"
                parts += [part["FirstExpression"], part["SecondExpression"]]
            elif part["ComparisonType"] == "Equals":
                value = finish(self._value(part["SecondExpression"]))
                given[_column(part["FirstExpression"])] = value
        return [given[column] for column in _KEYS[_last(table["SchemaObject"])]]

    # Conditions: None is SQL's unknown, which no IF, WHILE or WHERE takes for true.

    def _holds(self, node: Node, row: Row | None = None) -> Values:
        return (yield from getattr(self, f"_{node['$type']}")(node, row))

    def _BooleanParenthesisExpression(self, node: Node, row: Row | None) -> Values:
        return (yield from self._holds(node["Expression"], row))

    def _BooleanNotExpression(self, node: Node, row: Row | None) -> Values:
        found = yield from self._holds(node["Expression"], row)
        return None if found is None else not found

    def _BooleanIsNullExpression(self, node: Node, row: Row | None) -> Values:
        return ((yield from self._value(node["Expression"], row)) is None) != node["IsNot"]

    def _ExistsPredicate(self, node: Node, _: Row | None) -> Values:
        yield from ()
        return bool(self._rows(node["Subquery"]["QueryExpression"]))

    def _BooleanBinaryExpression(self, node: Node, row: Row | None) -> Values:
        first = yield from self._holds(node["FirstExpression"], row)
        second = yield from self._holds(node["SecondExpression"], row)
        decides = node["BinaryExpressionType"] == "Or"
        if decides in {first, second}:
            return decides
        return None if None in {first, second} else not decides

    def _BooleanComparisonExpression(self, node: Node, row: Row | None) -> Values:
        first = yield from self._value(node["FirstExpression"], row)
        second = yield from self._value(node["SecondExpression"], row)
        unknown = first is None or second is None
        return None if unknown else _COMPARED[node["ComparisonType"]](first, second)

    # Values.

    def _value(self, node: Node, row: Row | None = None) -> Values:
        kind = node["$type"]
        if kind in _LITERALS:
            return _LITERALS[kind](node)
        if kind == "VariableReference":
            return self._variables[node["Name"]]
        if kind == "ColumnReferenceExpression":
            assert row is not None
            return row[_column(node)]
        return (yield from getattr(self, f"_{kind}")(node, row))

    def _ParenthesisExpression(self, node: Node, row: Row | None) -> Values:
        return (yield from self._value(node["Expression"], row))

    def _GlobalVariableExpression(self, node: Node, _: Row | None) -> Values:
        yield from ()
        return {"@@ROWCOUNT": self._rows_changed, "@@SPID": 1}[node["Name"]]

    def _BinaryExpression(self, node: Node, row: Row | None) -> Values:
        first = yield from self._value(node["FirstExpression"], row)
        second = yield from self._value(node["SecondExpression"], row)
        if first is None or second is None:
            return None
        return _ARITHMETIC[node["BinaryExpressionType"]](first, second)

    def _CastCall(self, node: Node, row: Row | None) -> Values:
        return int((yield from self._value(node["Parameter"], row)))

    def _SearchedCaseExpression(self, node: Node, row: Row | None) -> Values:
        (when,) = node["WhenClauses"]
        holds = yield from self._holds(when["WhenExpression"], row)
        chosen = when["ThenExpression"] if holds else node["ElseExpression"]
        return (yield from self._value(chosen, row))

    def _ScalarSubquery(self, node: Node, _: Row | None) -> Values:
        yield
        query = node["QueryExpression"]
        (found,) = self._rows(query)
        return (yield from self._value(query["SelectElements"][0]["Expression"], found))

    def _NextValueForExpression(self, node: Node, _: Row | None) -> Values:
        assert self._tx.size, "a number is drawn before the configuration is read"
        self._touches = True
        yield
        return self._tx.store.draw(push=_last(node["SequenceName"]).endswith("push_seq"))

    def _FunctionCall(self, node: Node, row: Row | None) -> Values:
        values = [finish(self._value(one, row)) for one in node["Parameters"]]
        yield from ()
        name = node["FunctionName"]["Value"]
        if name == "OBJECT_ID":
            return values[0].split("].[")[-1].rstrip("]")
        assert name in {"DATALENGTH", "SYSUTCDATETIME"}
        return 2 * len(values[0]) if values else "now"


def _last(name: Node) -> str:
    last: str = name["Identifiers"][-1]["Value"]
    return last


def _column(node: Node) -> str:
    return _last(node["MultiPartIdentifier"])
