"""The ring's procedures: what a call costs, and the locks that its protocol needs."""

from collections.abc import Callable

import pytest

from tests.contract.variants import ALL, Variant, on
from tests.faults.ring_model import finish
from tests.microsoft.interpreter import Call
from tests.microsoft.ring_sessions import Run, Trees, procedures, ring
from tests.microsoft.server import Row
from tests.microsoft.tools import Tools
from tests.microsoft.trees import Node
from tests.microsoft.values import inside, last

Read = Callable[[str, int], Trees]
RINGS = [variant for variant in on("mssql", ALL) if variant.design.name == "ring"]
CALLS = ("push", "push_many", "pop", "pop_many")
OF_RING = {"orders", "orders_parked", "orders_in_hand"}
SKIPPING = {"Rowlock", "ReadPast", "ReadCommittedLock"}
WAITING = {"Rowlock", "ReadCommittedLock"}
LASTING = {"RepeatableRead", "Rowlock"}


def called(found: Run, name: str, **given: str) -> tuple[list[Row], list[str]]:
    """What a call answers, and its working statements."""
    call = Call(found._trees, name, found.server.session(), **given)
    finish(call.run())
    return call.answer, call.working


def of_size(read: Read, size: int) -> Run:
    found = Run(read("plain", 0), 0, 0)
    found.server = ring(found.chance, size, 0)
    return found


def test_a_push_works_in_six_statements_and_a_pop_in_seven(read: Read) -> None:
    """What reads or writes a table or a sequence, begins or commits."""
    two = of_size(read, 2)
    for payload in ("first", "second"):
        answer, working = called(two, "push", payload=payload)
        assert (answer[0]["id"] is None, len(working)) == (False, 6)
    answer, working = called(two, "push", payload="third")
    assert (answer, len(working)) == ([{"id": None}], 6)
    assert two.server.sequences["orders_push_seq"] == 2, "no number for it"
    for payload in ("first", "second"):
        answer, working = called(two, "pop")
        assert ([row["payload"] for row in answer], len(working)) == ([payload], 7)
    answer, working = called(two, "pop")
    assert (answer, len(working)) == ([], 6)
    assert two.server.sequences["orders_pop_seq"] == 2, "no number for it"


def test_a_batch_takes_over_where_something_is_parked(read: Read) -> None:
    three = of_size(read, 3)
    three.server.sequences["orders_pop_seq"] = 1
    three.server.fill("orders_parked", {"number": 1, "void": 0})
    three.now("push", payload="late")
    answer, working = called(three, "pop")
    assert [(row["id"], row["payload"]) for row in answer] == [(1, "late")]
    assert working[-2:] == ["CommitTransactionStatement", "ExecuteStatement"]
    assert not three.server.tables["orders_parked"]


def test_a_push_tries_a_slot_twice_that_is_locked_for_a_moment(read: Read) -> None:
    """As long as a pop of another lap takes to see that it is not the right one."""
    one = of_size(read, 1)
    other = one.server.session()
    other.begin()
    assert other.lock("orders", (0,), skips=True)
    call = Call(read("plain", 0), "push", one.server.session(), payload="here")
    steps = call.run()
    while "UpdateStatement" not in call.working:
        next(steps)
    other.roll_back()
    assert finish(steps) == [{"id": 1}]
    assert call.working.count("UpdateStatement") == 2


def test_a_pop_locks_no_slot_of_a_push_in_flight(read: Read) -> None:
    """It reads, waits, reads again and parks its number."""
    three = of_size(read, 3)
    three.server.sequences["orders_push_seq"] = 1
    answer, working = called(three, "pop")
    assert (answer, set(three.server.tables["orders_parked"])) == ([], {(0, 1)})
    assert "UpdateStatement" not in working
    assert working.count("IfStatement") == 2


@pytest.mark.parametrize("variant", RINGS, ids=str)
def test_every_procedure_locks_as_the_protocol_wants(microsoft: Tools, variant: Variant) -> None:
    """So nothing has to ask for the isolation level, nor read the configuration again."""
    of_variant = procedures(microsoft, variant)
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
        assert (_table(first), _hints(first)) == ("orders_config", LASTING), name
        assert [_table(node) for node in tables].count("orders_config") == 1
        drawn = min(kinds.index(kind) for kind in kinds if kind in _DRAWS)
        assert nodes.index(first) < drawn, "a number is drawn before the configuration is held"
        filled = [node["Target"] for node in nodes if node["$type"] == "InsertSpecification"]
        for node in tables:
            if _table(node) in OF_RING and node not in filled:
                assert _hints(node) >= SKIPPING, f"{name}: {_table(node)}"
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
        # Whoever holds a slot alone touches its content: these may be waited for.
        assert all(_hints(node) == WAITING for node in contents if node not in filled)
        one_by_one = [
            node["Variable"]["Name"]
            for node in nodes
            if node["$type"] == "SetVariableStatement"
            and any(_table(one) == "sequences" for one in inside(node))
        ]
        in_order = ["@next_push", "@next_pop"]
        assert one_by_one == (in_order if name.startswith("push") else in_order[::-1])


_DRAWS = {"NextValueForExpression", "ExecuteStatement"}


def _table(node: Node) -> str:
    return last(node["SchemaObject"]) if node["$type"] == "NamedTableReference" else ""


def _hints(node: Node) -> set[str]:
    return {hint["HintKind"] for hint in node["TableHints"] if "HintKind" in hint}
