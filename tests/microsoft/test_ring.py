"""The ring's procedures: what a call costs, and the locks that its protocol needs."""

from collections.abc import Callable

import pytest

from tests.contract.variants import ALL, Variant, on
from tests.faults.harness.model import finish
from tests.microsoft.design_sessions import Installation
from tests.microsoft.interpreter import Call
from tests.microsoft.ring_sessions import Run, Trees, ring
from tests.microsoft.server import Row
from tests.microsoft.tools import Tools
from tests.microsoft.trees import Node
from tests.microsoft.values import inside, last

TreesOf = Callable[[str, int], Trees]
RINGS = [variant for variant in on("mssql", ALL) if variant.design.name == "ring"]
CALLS = ("push", "push_many", "pop", "pop_many")
RING_TABLES = {"orders", "orders_parked", "orders_in_hand"}
SKIP_HINTS = {"Rowlock", "ReadPast", "ReadCommittedLock"}
WAIT_HINTS = {"Rowlock", "ReadCommittedLock"}
HOLD_HINTS = {"RepeatableRead", "Rowlock"}


def called(run: Run, name: str, **given: str) -> tuple[list[Row], list[str]]:
    """A call's result, and its counted statements."""
    call = Call(run._trees, name, run.server.session(), **given)
    finish(call.run())
    return call.result, call.counted


def ring_of_size(trees_of: TreesOf, size: int) -> Run:
    run = Run(trees_of("plain", 0), 0, 0)
    run.server = ring(run.chance, size, 0)
    return run


def test_a_push_takes_six_statements_and_a_pop_seven(trees_of: TreesOf) -> None:
    """Counted: statements that read or write a table or a sequence, begin or commit."""
    two = ring_of_size(trees_of, 2)
    for payload in ("first", "second"):
        result, counted = called(two, "push", payload=payload)
        assert (result[0]["id"] is None, len(counted)) == (False, 6)
    result, counted = called(two, "push", payload="third")
    assert (result, len(counted)) == ([{"id": None}], 6)
    assert two.server.sequences["orders_push_seq"] == 2, "no number for it"
    for payload in ("first", "second"):
        result, counted = called(two, "pop")
        assert ([row["payload"] for row in result], len(counted)) == ([payload], 7)
    result, counted = called(two, "pop")
    assert (result, len(counted)) == ([], 6)
    assert two.server.sequences["orders_pop_seq"] == 2, "no number for it"


def test_a_pop_calls_pop_many_if_a_number_is_parked(trees_of: TreesOf) -> None:
    three = ring_of_size(trees_of, 3)
    three.server.sequences["orders_pop_seq"] = 1
    three.server.fill("orders_parked", {"number": 1, "void": 0})
    three.call_alone("push", payload="late")
    result, counted = called(three, "pop")
    assert [(row["id"], row["payload"]) for row in result] == [(1, "late")]
    assert counted[-2:] == ["CommitTransactionStatement", "ExecuteStatement"]
    assert not three.server.tables["orders_parked"]


def test_a_push_tries_a_briefly_locked_slot_twice(trees_of: TreesOf) -> None:
    """Locked while a pop of another lap finds that it is the wrong slot."""
    run = ring_of_size(trees_of, 1)
    other = run.server.session()
    other.begin()
    assert other.lock("orders", (0,), skips=True)
    call = Call(trees_of("plain", 0), "push", run.server.session(), payload="here")
    steps = call.run()
    while "UpdateStatement" not in call.counted:
        next(steps)
    other.roll_back()
    assert finish(steps) == [{"id": 1}]
    assert call.counted.count("UpdateStatement") == 2


def test_a_pop_locks_no_slot_of_a_push_in_flight(trees_of: TreesOf) -> None:
    """It reads, waits, reads again and parks its number."""
    three = ring_of_size(trees_of, 3)
    three.server.sequences["orders_push_seq"] = 1
    result, counted = called(three, "pop")
    assert (result, set(three.server.tables["orders_parked"])) == ([], {(0, 1)})
    assert "UpdateStatement" not in counted
    assert counted.count("IfStatement") == 2


@pytest.mark.parametrize("variant", RINGS, ids=str)
def test_every_procedure_locks_as_the_protocol_requires(microsoft: Tools, variant: Variant) -> None:
    """So none has to query the isolation level, or to read the configuration again."""
    of_variant = Installation(variant, microsoft.tree).procedures
    for name in CALLS:
        nodes = list(inside(of_variant[name]))
        kinds = [node["$type"] for node in nodes]
        if name == "pop" and "UpdateStatement" not in kinds:
            continue  # in_hand=on: it is a batch of one
        (level,) = (n for n in nodes if n["$type"] == "SetTransactionIsolationLevelStatement")
        assert level["Level"] == "ReadCommitted"
        begun = kinds.index("BeginTransactionStatement")
        assert kinds.index("SetTransactionIsolationLevelStatement") < begun
        tables = [node for node in nodes if node["$type"] == "NamedTableReference"]
        first = next(node for node in nodes[begun:] if node["$type"] == "NamedTableReference")
        assert (_table(first), _hints(first)) == ("orders_config", HOLD_HINTS), name
        assert [_table(node) for node in tables].count("orders_config") == 1
        drawn = min(kinds.index(kind) for kind in kinds if kind in _DRAWS)
        assert nodes.index(first) < drawn, "a number is drawn before the configuration is held"
        inserted_into = [node["Target"] for node in nodes if node["$type"] == "InsertSpecification"]
        for node in tables:
            if _table(node) in RING_TABLES and node not in inserted_into:
                assert _hints(node) >= SKIP_HINTS, f"{name}: {_table(node)}"
        assert not {_table(node) for node in tables} & {"dm_exec_sessions"} or (
            variant.given.get("in_hand") == "on" and name == "pop_many"
        ), "only a claim asks who its session is"
        if name in {"push", "pop"}:
            assert "DeclareTableVariableStatement" not in kinds
        contents = [node for node in tables if _table(node).startswith("orders_content_")]
        partitions = int(variant.given.get("partitions", 0))
        assert {_table(node) for node in contents} == {
            f"orders_content_{n}" for n in range(partitions)
        }
        # Whether a slot that is not held yet has its content: another pop may be taking both.
        checked = [
            table
            for query in nodes
            if query["$type"] == "ScalarSubquery" and _selects_one(query)
            for table in inside(query)
        ]
        for node in contents:
            if node not in inserted_into:
                # Only the holder of a slot takes its content, so that lock may be waited for.
                assert _hints(node) == (SKIP_HINTS if node in checked else WAIT_HINTS)
        sequences_read = [
            node["Variable"]["Name"]
            for node in nodes
            if node["$type"] == "SetVariableStatement"
            and any(_table(one) == "sequences" for one in inside(node))
        ]
        in_order = ["@next_push", "@next_pop"]
        assert sequences_read == (in_order if name.startswith("push") else in_order[::-1])


_DRAWS = {"NextValueForExpression", "ExecuteStatement"}


def _table(node: Node) -> str:
    return last(node["SchemaObject"]) if node["$type"] == "NamedTableReference" else ""


def _selects_one(query: Node) -> bool:
    """SELECT 1: whether a row is there."""
    found = query["QueryExpression"].get("SelectElements", [])
    return [one.get("Expression", {}).get("Value") for one in found] == ["1"]


def _hints(node: Node) -> set[str]:
    return {hint["HintKind"] for hint in node["TableHints"] if "HintKind" in hint}
