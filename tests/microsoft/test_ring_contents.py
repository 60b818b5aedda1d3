"""content=apart: push and pop as they are written, on a model of the server's locks; batches are
the model's. Who holds a slot alone touches its content: no content is ever waited for."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from console.actions import install
from console.designs import DESIGNS
from console.engines.mssql import PRODUCT
from tests.contract.variants import Variant
from tests.faults import ring_model_mssql as model
from tests.faults.ring_interleaving import check_interleaving
from tests.faults.ring_model import Live, Steps, finish
from tests.microsoft.procedures import Call, Row, Values, _column, _last
from tests.microsoft.test_ring import CALLS, _hints, _nodes, _table, procedures
from tests.microsoft.tools import Tools
from tests.microsoft.trees import Node

APART = Variant(DESIGNS["ring"], {"size": "300", "content": "apart", "partitions": "3"})
_PREFIX = "orders_content_"
_WAITS = {"Rowlock", "ReadCommittedLock"}
_PARTITIONS = 3


@dataclass
class Store(model.Store):
    """With the contents that are committed, by their first_id."""

    contents: dict[int, str] = field(default_factory=dict)

    def begin(self) -> "Transaction":
        transaction = Transaction(self)
        self.open.append(transaction)
        return transaction


class Transaction(model.Transaction):
    """Batches, which are the model's, write contents with slots; the text writes them itself."""

    store: Store
    is_of_text = False

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._contents: dict[int, str | None] = {}

    def content(self, number: int) -> str | None:
        for other in self.store.open:
            waits = other is not self and number in other._contents  # type: ignore[attr-defined]
            assert not waits, "a content is waited for"
        return self._contents.get(number, self.store.contents.get(number))

    def put(self, number: int, payload: str | None) -> None:
        assert (self.content(number) is None) != (payload is None), "a content was overwritten"
        self._contents[number] = payload

    def write(self, slot: int, live: Live | None) -> None:
        before = self.slot(slot)
        super().write(slot, live)
        if not self.is_of_text:
            changed = live or before
            assert changed is not None
            self.put(changed.first_id, live.payload if live else None)

    def fill(self, number: int, payload: str) -> None:
        """What the slot's message is, where a batch looks for it."""
        self.put(number, payload)
        slot = next(s for s, live in self._slots.items() if live and live.first_id == number)
        live = self._slots[slot]
        assert live is not None
        self._slots[slot] = replace(live, payload=payload)

    def commit(self) -> None:
        super().commit()
        self.store.contents.update({n: p for n, p in self._contents.items() if p is not None})
        for number, payload in self._contents.items():
            if payload is None:
                self.store.contents.pop(number, None)
        live = {one.first_id: one.payload for one in self.store.slots.values()}
        assert self.store.contents == live, "a half was committed"


class ApartCall(Call):
    """Knows the tables of contents too."""

    _tx: Transaction

    def run(self) -> Steps[list[dict[str, Any]]]:
        self._tx.is_of_text = True
        answer = yield from super().run()
        self._tx.is_of_text = False
        return answer

    def _ExecuteStatement(self, node: Node) -> Values:  # noqa: N802
        self._tx.is_of_text = False
        yield from super()._ExecuteStatement(node)

    def _content(self, query: Node, row: Row | None) -> list[Mapping[str, Any]] | None:
        """The content that a query seeks by its key; None: it is about another table."""
        if "FromClause" not in query:
            return None
        (table,) = query["FromClause"]["TableReferences"]
        name = _last(table["SchemaObject"])
        if not name.startswith(_PREFIX):
            return None
        assert _hints(table) == _WAITS
        where = query["WhereClause"]["SearchCondition"]
        number = finish(self._value(where["SecondExpression"], row))
        self._sought(name, number)
        payload = self._tx.content(number)
        self._touches = True
        return [] if payload is None else [{"content_id": number, "content": payload}]

    @staticmethod
    def _sought(name: str, number: int) -> None:
        assert number % _PARTITIONS == int(name.removeprefix(_PREFIX)), "the wrong partition"

    def _rows(self, query: Node) -> list[Row]:
        found = self._content(query, None)
        return super()._rows(query) if found is None else list(found)

    def _ScalarSubquery(self, node: Node, row: Row | None) -> Values:  # noqa: N802
        found = self._content(node["QueryExpression"], row)
        if found is None:
            return (yield from super()._ScalarSubquery(node, row))
        return 1 if found else None

    def _SimpleCaseExpression(self, node: Node, row: Row | None) -> Values:  # noqa: N802
        asked = yield from self._value(node["InputExpression"], row)
        for when in node["WhenClauses"]:
            if asked == (yield from self._value(when["WhenExpression"], row)):
                return (yield from self._value(when["ThenExpression"], row))
        return None

    def _InsertStatement(self, node: Node) -> Values:  # noqa: N802
        into = node["InsertSpecification"]
        name = _last(into["Target"]["SchemaObject"])
        if not name.startswith(_PREFIX):
            yield from super()._InsertStatement(node)
            return
        assert [_column(one) for one in into["Columns"]] == ["content_id", "content"]
        (given,) = into["InsertSource"]["RowValues"]
        number, payload = (finish(self._value(one)) for one in given["ColumnValues"])
        self._sought(name, number)
        self._tx.fill(number, payload)
        self._touches = True
        yield

    def _DeleteStatement(self, node: Node) -> Values:  # noqa: N802
        of = node["DeleteSpecification"]
        name = _last(of["Target"]["SchemaObject"])
        if not name.startswith(_PREFIX):
            yield from super()._DeleteStatement(node)
            return
        assert _hints(of["Target"]) == _WAITS
        number = finish(self._value(of["WhereClause"]["SearchCondition"]["SecondExpression"]))
        self._sought(name, number)
        self._tx.put(number, None)
        self._touches = True
        yield


@pytest.fixture(scope="module")
def ring(microsoft: Tools) -> dict[str, Node]:
    return procedures(microsoft, APART)


def as_written(ring: dict[str, Node]) -> Any:
    def push(tx: Transaction, payload: str) -> Steps[int | None]:
        (row,) = yield from ApartCall(ring["push"], tx, payload=payload).run()
        number: int | None = row["id"]
        return number

    def pop(tx: Transaction) -> Steps[Live | None]:
        rows = yield from ApartCall(ring["pop"], tx).run()
        return Live(rows[0]["id"], rows[0]["id"], rows[0]["payload"]) if rows else None

    return SimpleNamespace(
        Store=Store, push=push, pop=pop, push_many=model.push_many, pop_many=model.pop_many
    )


def test_the_text_in_any_turns_leaves_no_half(ring: dict[str, Node], long: bool) -> None:
    for seed in range(5000 if long else 200):
        check_interleaving(as_written(ring), seed)


def test_a_slot_without_its_content_is_not_popped(ring: dict[str, Node]) -> None:
    store = Store(size=3)
    for payload in ("lost", "here"):
        tx = store.begin()
        finish(ApartCall(ring["push"], tx, payload=payload).run())
        tx.commit()
    del store.contents[1]
    tx = store.begin()
    (row,) = finish(ApartCall(ring["pop"], tx).run())
    assert (row["id"], row["payload"]) == (2, "here")
    assert (1, False) in tx.parked()
    assert tx.slot(1) is not None


PLANTED = {
    "a push that leaves its content out": ("push", r"IF @id % [^\n]*\n[^\n]*VALUES[^\n]*\n", ""),
    "a pop that leaves its content there": ("pop", r"DELETE FROM \S+orders_content_[^\n]*", ""),
    "a pop that looks for no content": ("pop", r"AND CASE r\.first_id.*?END = 1", ""),
    "a push into the wrong table": ("push", r"(IF @id % .*?)= 0", r"\1= 1"),
}


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_seen(microsoft: Tools, mistake: str) -> None:
    name, text, instead = PLANTED[mistake]
    script = install.script(PRODUCT, APART.queue("sales", "orders", "mssql"))
    (batch,) = re.findall(rf"(?ms)^CREATE OR ALTER PROCEDURE \S+orders_{name}\]\n.*?^GO$", script)
    batch, replaced = re.subn(text, instead, batch.removesuffix("GO"), flags=re.DOTALL)
    assert replaced
    trees = procedures(microsoft, APART) | {name: microsoft.tree(batch)}
    with pytest.raises(AssertionError):  # noqa: PT012 - any of these
        test_a_slot_without_its_content_is_not_popped(trees)
        for seed in range(100):
            check_interleaving(as_written(trees), seed)


def test_contents_are_waited_for_and_slots_are_not(ring: dict[str, Node]) -> None:
    """In every call; a batch reads and deletes each by its key."""
    for name in CALLS:
        nodes = list(_nodes(ring[name]))
        filled = [node["Target"] for node in nodes if node["$type"] == "InsertSpecification"]
        contents = [node for node in nodes if _table(node).startswith(_PREFIX)]
        assert {_table(node) for node in contents} == {f"{_PREFIX}{n}" for n in range(_PARTITIONS)}
        assert all(_hints(node) == _WAITS for node in contents if node not in filled)
