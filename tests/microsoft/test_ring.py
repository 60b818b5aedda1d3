"""The ring's procedures: what a call costs, the locks that its protocol wants, its own text run."""

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from console.actions import install
from console.engines.mssql import PRODUCT
from tests.contract.variants import ALL, Variant, on
from tests.faults import ring_model_mssql as model
from tests.faults.ring_interleaving import check_interleaving
from tests.faults.ring_model import Live, Steps, finish
from tests.microsoft.procedures import Call
from tests.microsoft.tools import Tools
from tests.microsoft.trees import Node

RINGS = [variant for variant in on("mssql", ALL) if variant.design.name == "ring"]
CALLS = ("push", "push_many", "pop", "pop_many")
OF_RING = {"orders", "orders_parked", "orders_in_hand"}
SKIPPING = {"Rowlock", "ReadPast", "ReadCommittedLock"}
LASTING = {"RepeatableRead", "Rowlock"}


def procedures(microsoft: Tools, variant: Variant) -> dict[str, Node]:
    """The syntax trees of a ring's procedures, by what they do."""
    script = install.script(PRODUCT, variant.queue("sales", "orders", "mssql"))
    found = {}
    for text in re.split(r"(?m)^GO$", script):
        if made := re.search(r"(?m)^CREATE OR ALTER PROCEDURE \[sales\]\.\[orders_(\w+)\]", text):
            found[made[1]] = microsoft.tree(text)
    return found


@pytest.fixture(scope="module")
def ring(microsoft: Tools) -> dict[str, Node]:
    """The procedures of a ring without options."""
    return procedures(microsoft, RINGS[0])


def called(tree: Node, store: model.Store, **given: str) -> tuple[list[dict[str, Any]], list[str]]:
    """What a call answers, and its working statements; committed."""
    tx = store.begin()
    tx.is_of_one_call = True
    call = Call(tree, tx, **given)
    answer = finish(call.run())
    tx.commit()
    return answer, call.working


def test_a_push_works_in_six_statements_and_a_pop_in_seven(ring: dict[str, Node]) -> None:
    """Nine and ten before. What reads or writes a table or a sequence, begins or commits."""
    store = model.Store(size=2)
    for payload in ("first", "second"):
        answer, working = called(ring["push"], store, payload=payload)
        assert (answer[0]["id"] is None, len(working)) == (False, 6)
    answer, working = called(ring["push"], store, payload="third")
    assert (answer, len(working), store.next_push) == ([{"id": None}], 6, 3), "no number for it"
    for payload in ("first", "second"):
        answer, working = called(ring["pop"], store)
        assert ([row["payload"] for row in answer], len(working)) == ([payload], 7)
    answer, working = called(ring["pop"], store)
    assert (answer, len(working), store.next_pop) == ([], 6, 3), "no number for it"


def test_a_batch_takes_over_where_something_is_parked(ring: dict[str, Node]) -> None:
    store = model.Store(size=3)
    store.parked.add((store.draw(push=False), False))
    called(ring["push"], store, payload="late")
    answer, working = called(ring["pop"], store)
    assert answer == [{"id": 1, "payload": "late"}]
    assert working[-2:] == ["CommitTransactionStatement", "ExecuteStatement"]
    assert not store.parked


def test_a_push_tries_a_slot_twice_that_is_locked_for_a_moment(ring: dict[str, Node]) -> None:
    """As long as a pop of another lap takes to see that it is not the right one."""
    store = model.Store(size=1)
    other, tx = store.begin(), store.begin()
    assert other.lock_slot(0)
    call = Call(ring["push"], tx, payload="here")
    steps = call.run()
    while "UpdateStatement" not in call.working:
        next(steps)
    del store.locks["slot", 0, False]
    assert finish(steps) == [{"id": 1}]
    assert call.working.count("UpdateStatement") == 2


def test_a_pop_locks_no_slot_of_a_push_in_flight(ring: dict[str, Node]) -> None:
    """It reads, waits, reads again and parks its number."""
    store = model.Store(size=3)
    store.draw(push=True)
    answer, working = called(ring["pop"], store)
    assert (answer, store.parked) == ([], {(1, False)})
    assert "UpdateStatement" not in working
    assert working.count("IfStatement") == 2


def as_written(ring: dict[str, Node]) -> Any:
    """A model whose push and pop are the text; batches are the model's."""

    def push(tx: model.Transaction, payload: str) -> Steps[int | None]:
        (row,) = yield from Call(ring["push"], tx, payload=payload).run()
        number: int | None = row["id"]
        return number

    def pop(tx: model.Transaction) -> Steps[Live | None]:
        rows = yield from Call(ring["pop"], tx).run()
        assert len(rows) <= 1
        return Live(rows[0]["id"], rows[0]["id"], rows[0]["payload"]) if rows else None

    return SimpleNamespace(
        Store=model.Store, push=push, pop=pop, push_many=model.push_many, pop_many=model.pop_many
    )


def test_the_text_in_any_turns_loses_and_doubles_nothing(ring: dict[str, Node], long: bool) -> None:
    for seed in range(5000 if long else 300):
        check_interleaving(as_written(ring), seed)


PLANTED = {
    "no lock on the configuration that lasts": ("push", "REPEATABLEREAD, ROWLOCK", "ROWLOCK"),
    "a push into a slot that is not free": ("push", " AND reference_count = 0", ""),
    "a pop of whatever lies there": ("pop", r" AND (r\.)?message_id = @drawn", ""),
    "a pop that waits for a lock": ("pop", "READPAST, ", ""),
    "a pop that parks nothing": ("pop", "SELECT @drawn, 0", "SELECT @drawn, 1"),
    "an answer before the commit": (
        "pop",
        r"COMMIT TRANSACTION;\s+EXEC",
        "EXEC",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_seen(microsoft: Tools, mistake: str) -> None:
    name, text, instead = PLANTED[mistake]
    script = install.script(PRODUCT, RINGS[0].queue("sales", "orders", "mssql"))
    trees = {}
    for one in CALLS:
        (batch,) = re.findall(
            rf"(?ms)^CREATE OR ALTER PROCEDURE \S+orders_{one}\]\n.*?^GO$", script
        )
        batch = batch.removesuffix("GO")
        if one == name:
            batch, replaced = re.subn(text, instead, batch)
            assert replaced
        trees[one] = microsoft.tree(batch)
    with pytest.raises(AssertionError):  # noqa: PT012 - any of these turns
        for seed in range(100):
            check_interleaving(as_written(trees), seed)


@pytest.mark.parametrize("variant", RINGS, ids=str)
def test_every_procedure_locks_as_the_protocol_wants(microsoft: Tools, variant: Variant) -> None:
    """So nothing has to ask for the isolation level, nor read the configuration again."""
    of_variant = procedures(microsoft, variant)
    for name in CALLS:
        nodes = list(_nodes(of_variant[name]))
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
        one_by_one = [
            node["Variable"]["Name"]
            for node in nodes
            if node["$type"] == "SetVariableStatement"
            and any(_table(one) == "sequences" for one in _nodes(node))
        ]
        in_order = ["@next_push", "@next_pop"]
        assert one_by_one == (in_order if name.startswith("push") else in_order[::-1])


_DRAWS = {"NextValueForExpression", "ExecuteStatement"}


def _nodes(node: Any) -> Iterator[Node]:
    """All of a tree, in the order of its text."""
    if isinstance(node, list):
        for one in node:
            yield from _nodes(one)
    elif isinstance(node, dict):
        if "$type" in node:
            yield node
        for one in node.values():
            yield from _nodes(one)


def _table(node: Node) -> str:
    if node["$type"] != "NamedTableReference":
        return ""
    name: str = node["SchemaObject"]["Identifiers"][-1]["Value"]
    return name


def _hints(node: Node) -> set[str]:
    return {hint["HintKind"] for hint in node["TableHints"] if "HintKind" in hint}
