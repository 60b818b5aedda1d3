"""The proof by two reads, without a server: whom it waits for, and what both reads show."""

import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.actions.relay import Blocker
from console.catalog import Queue, installed_queue
from console.designs import DESIGNS
from console.doctor import number_proof, ring
from console.doctor.context import CheckContext, check_context
from console.doctor.lost_numbers import ServerHistory
from console.doctor.number_proof import (
    LostKind,
    LostNumbers,
    NumberRange,
    SequencePositions,
    Side,
    in_both,
    was_open,
)
from console.doctor.ring import _Settings, _Stranded
from console.doctor.slot_map import Structure
from console.engines import PRODUCTS
from tests.unit.mssql_tools import LABEL, open_mssql, stand_in_for_pyodbc

AT = datetime(2026, 11, 21, 1, 58, 11, tzinfo=UTC)
HIDDEN = Blocker(None, None, None, None, None, None, None)
"""Stands for all that this login may not see: see `blockers` in queries/mssql/ring.sql."""


def run(kind: LostKind, first: int, last: int) -> NumberRange:
    return NumberRange(
        kind.value, first, last, AT, AT - timedelta(seconds=1), AT + timedelta(seconds=1)
    )


def blocker(seconds: float | None, pid: int | None = 7, prepared: str | None = None) -> Blocker:
    return Blocker(pid, "anna", "worker", None, "running", seconds, prepared)


@pytest.fixture(autouse=True)
def without_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(number_proof, "GRACE_SECONDS", 0.0)


def responses(*looks: Sequence[Blocker]) -> Callable[[], Sequence[Blocker]]:
    """The result of each read; the last one is repeated."""
    left = list(looks)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


RUNS = st.lists(
    st.builds(
        lambda kind, first, more: run(kind, first, first + more),
        st.sampled_from(LostKind),
        st.integers(0, 60),
        st.integers(0, 12),
    ),
    max_size=8,
)


def numbers(runs: Sequence[NumberRange], side: Side) -> set[int]:
    return {n for r in runs if LostKind(r.kind).side is side for n in range(r.first, r.last + 1)}


@given(RUNS, RUNS)
def test_only_what_both_reads_show_is_proven(
    first: list[NumberRange], second: list[NumberRange]
) -> None:
    both = in_both(first, second)
    for side in Side:
        assert numbers(both, side) == numbers(first, side) & numbers(second, side)
    for kept in both:
        of = [r for r in second if r.kind == kept.kind]
        assert any(r.first <= kept.first and kept.last <= r.last for r in of)


@given(RUNS)
def test_what_has_not_changed_is_kept_as_it_is(seen: list[NumberRange]) -> None:
    assert in_both(seen, seen) == sorted(seen, key=lambda r: (r.kind, r.first))


def test_a_number_may_be_another_kind_of_the_same_loss() -> None:
    hole, parked = run(LostKind.HOLE, 10, 12), run(LostKind.PARKED_HOLE, 10, 10)
    rest = run(LostKind.HOLE, 11, 12)
    assert in_both([hole], [parked, rest]) == [rest, parked]
    spent, orphan = run(LostKind.SPENT, 30, 31), run(LostKind.ORPHAN, 30, 30)
    assert in_both([spent], [orphan]) == [orphan]
    assert in_both([hole], [run(LostKind.ORPHAN, 10, 12)]) == []


def test_times_around_a_run_are_not_those_around_a_part_of_it() -> None:
    (part,) = in_both([run(LostKind.ORPHAN, 5, 6)], [run(LostKind.ORPHAN, 5, 9)])
    assert (part.first, part.last) == (5, 6)
    assert part.before_at is not None
    assert part.after_at is None


@pytest.mark.parametrize(
    ("seconds", "waited", "counts"),
    [
        (5.0, 1.0, True),
        (1.0, 1.0, True),  # it may have begun right before
        (0.5, 1.0, False),  # it began after the first context, so it has drawn after it
        (None, 1.0, True),  # of unknown age
    ],
)
def test_which_transactions_were_open_at_the_first_read(
    seconds: float | None, waited: float, *, counts: bool
) -> None:
    assert was_open(blocker(seconds), waited) is counts


def test_finished_transactions_are_not_waited_for() -> None:
    seen = responses([blocker(9.0)], [blocker(9.0)], [blocker(0.0)])
    assert number_proof.wait_for_blockers(seen, 60) == []


def test_the_reads_are_a_grace_period_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if no transaction is visible: one read may miss it."""
    monkeypatch.setattr(number_proof, "GRACE_SECONDS", 0.05)
    looks = []

    def nobody() -> list[Blocker]:
        looks.append(1)
        return []

    assert number_proof.wait_for_blockers(nobody, 0.0) == []
    assert len(looks) > 1


def test_patience_ends_and_names_the_open_transactions() -> None:
    old = blocker(9.0)
    assert number_proof.wait_for_blockers(lambda: [old], 0.02) == [old]
    prepared = blocker(None, pid=-2, prepared="6F9619FF")
    assert number_proof.wait_for_blockers(lambda: [prepared], 0.02) == [prepared]


def test_what_is_hidden_is_not_waited_for() -> None:
    """The patience would last for hours."""
    assert number_proof.wait_for_blockers(lambda: [HIDDEN], 9_999) == [HIDDEN]


class Fake:
    """A check context of a ring: the result of each statement, in order."""

    def __init__(
        self, engine: str, blockers: Sequence[Blocker], *lost: Sequence[NumberRange]
    ) -> None:
        self.database = SimpleNamespace(product=PRODUCTS[engine])
        self.queue: Queue = installed_queue("dbo", "orders", DESIGNS["ring"], {})
        self.patience_seconds = 0.02
        self.pause = time.sleep
        self.asked: list[str] = []
        self.blockers = blockers
        self.lost = list(lost)

    def has(self, name: str) -> bool:
        return CheckContext.has(cast("CheckContext", self), name)

    def query_unlimited(self, _: Any, name: str) -> list[Any]:
        self.asked.append(name)
        return [SequencePositions(100, 90)] if name == "next_numbers" else list(self.blockers)


def losses_of(fake: Any, patch: pytest.MonkeyPatch) -> LostNumbers:
    patch.setattr(number_proof, "_read", lambda context, _: context.lost.pop(0))
    return number_proof.find_lost_numbers(fake)


def test_two_reads_with_no_open_transaction_are_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [run(LostKind.ORPHAN, 5, 9), run(LostKind.HOLE, 95, 95)]
    fake = Fake("mssql", [], seen, [run(LostKind.ORPHAN, 5, 7)])
    found = losses_of(fake, monkeypatch)
    assert [(r.first, r.last) for r in found.proven[LostKind.ORPHAN]] == [(5, 7)]
    assert found.proven[LostKind.HOLE] == ()
    assert found.unseen() == []


def test_nothing_is_proven_over_an_open_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [run(LostKind.ORPHAN, 5, 9)]
    found = losses_of(Fake("mssql", [blocker(99.0)], seen, seen), monkeypatch)
    assert not any(found.proven.values())
    (line,) = found.unseen()
    assert line.startswith("5 pop numbers (5-9) may be held by pid 7 (anna, worker")


def test_without_the_right_to_see_them_nothing_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [run(LostKind.PARKED_HOLE, 5, 5)]
    found = losses_of(Fake("mssql", [HIDDEN], seen, seen), monkeypatch)
    assert not any(found.proven.values())
    (line,) = found.unseen()
    assert line.endswith("held by transactions that this login may not see")


def test_without_suspects_there_is_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake("mssql", [blocker(99.0)], [])
    found = losses_of(fake, monkeypatch)
    assert fake.asked == ["next_numbers"]
    assert not any(found.proven.values())
    assert found.unseen() == []


def test_where_drawers_are_known_there_is_no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(number_proof, "GRACE_SECONDS", 9_999.0)
    lost = [run(LostKind.ORPHAN, 5, 9)]
    fake = Fake("postgresql", [], lost, lost)
    assert losses_of(fake, monkeypatch).proven[LostKind.ORPHAN] == (*lost,)
    assert fake.asked == ["next_numbers", "next_numbers", "drawing_transactions"]


NUMBERS = {"next_push": 60_000, "next_pop": 528, "size": 100_000, "base": 1, "slots": 100_000}
STRUCTURE = {
    **dict.fromkeys((field.name for field in fields(Structure)), 0),
    **NUMBERS,
    "live": 493,
    "highest": 999,
    "parked_seconds": None,
}
LIFE = ServerHistory(AT, None, AT, None, 0, 0, False, 100_000)


def rows(*found: Any) -> list[Any]:
    """A server's response, made of rows."""
    names = tuple(field.name for field in fields(found[0]))
    return [(names, *(tuple(getattr(row, name) for name in names) for row in found))]


def test_a_crash_of_sql_server_explains_what_it_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the engine, with a server's responses: two reads, no open transaction."""
    odbc = stand_in_for_pyodbc(monkeypatch)
    early, late = AT - timedelta(hours=1), AT + timedelta(hours=1)
    told = {
        "ring.life": rows(LIFE),
        "ring.wait_for_relay": [(("number",), (1,))],
        "ring.stranded": [(tuple(field.name for field in fields(_Stranded)),)],
        "ring.structure": [(tuple(STRUCTURE), tuple(STRUCTURE.values()))],
        "ring.next_numbers": rows(SequencePositions(60_000, 528)),
        "ring.lost": rows(
            NumberRange("hole", 1_000, 59_999, None, early, late),
            NumberRange("orphan", 507, 527, early, early, late),
        ),
        "ring.blockers": rows(blocker(0.0)),
        "ring.sequence_settings": rows(_Settings("orders_push_seq", 1, 1, False)),
    }
    asked = []

    def answer(statement: str) -> list[Any]:
        if not (label := LABEL.match(statement)):
            return []
        asked.append(label[1])
        return told[label[1]]

    odbc.answer = answer
    database = open_mssql()
    with check_context(database, Fake("mssql", []).queue, patience_seconds=0.02) as context:
        found = {finding.code.name: finding for finding in ring.CHECKS.run(context)}
    database.close()
    assert context.unseen == []
    assert found["orphan"].summary == "21 orphans: 507-527"
    assert found["hole"].summary == "59,000 holes: 1000-59999"
    assert found["orphan"].since == found["hole"].since == AT
    assert "the server crashed before 2026-11-21 01:58:11 UTC" in found["hole"].cause
    assert asked.count("ring.lost") == 2
    assert "ring.blockers" in asked[asked.index("ring.lost") :]
    assert "ring.disable_jit" not in asked
