"""Proof by two reads, without a server: what it waits for, and what both reads show."""

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
"""All transactions hidden from this login: see `blockers` in queries/mssql/ring/relay.sql."""


def number_range(kind: LostKind, first: int, last: int) -> NumberRange:
    return NumberRange(
        kind.value, first, last, AT, AT - timedelta(seconds=1), AT + timedelta(seconds=1)
    )


def blocker(seconds: float | None, pid: int | None = 7, prepared: str | None = None) -> Blocker:
    return Blocker(pid, "anna", "worker", None, "running", seconds, prepared)


@pytest.fixture(autouse=True)
def no_grace_period(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(number_proof, "GRACE_SECONDS", 0.0)


def responses(*reads: Sequence[Blocker]) -> Callable[[], Sequence[Blocker]]:
    """The result of each read; the last one is repeated."""
    remaining = list(reads)
    return lambda: remaining.pop(0) if len(remaining) > 1 else remaining[0]


RUNS = st.lists(
    st.builds(
        lambda kind, first, more: number_range(kind, first, first + more),
        st.sampled_from(LostKind),
        st.integers(0, 60),
        st.integers(0, 12),
    ),
    max_size=8,
)


def numbers(runs: Sequence[NumberRange], side: Side) -> set[int]:
    return {n for r in runs if LostKind(r.kind).side is side for n in range(r.first, r.last + 1)}


@given(RUNS, RUNS)
def test_only_numbers_lost_in_both_reads_are_proven(
    first: list[NumberRange], second: list[NumberRange]
) -> None:
    both = in_both(first, second)
    for side in Side:
        assert numbers(both, side) == numbers(first, side) & numbers(second, side)
    for kept in both:
        same_kind = [r for r in second if r.kind == kept.kind]
        assert any(r.first <= kept.first and kept.last <= r.last for r in same_kind)


@given(RUNS)
def test_unchanged_ranges_are_kept(ranges: list[NumberRange]) -> None:
    assert in_both(ranges, ranges) == sorted(ranges, key=lambda r: (r.kind, r.first))


def test_a_lost_number_may_change_its_kind_between_the_reads() -> None:
    hole, parked = number_range(LostKind.HOLE, 10, 12), number_range(LostKind.PARKED_HOLE, 10, 10)
    rest = number_range(LostKind.HOLE, 11, 12)
    assert in_both([hole], [parked, rest]) == [rest, parked]
    spent, orphan = number_range(LostKind.SPENT, 30, 31), number_range(LostKind.ORPHAN, 30, 30)
    assert in_both([spent], [orphan]) == [orphan]
    assert in_both([hole], [number_range(LostKind.ORPHAN, 10, 12)]) == []


def test_a_shortened_range_loses_the_time_at_its_cut_end() -> None:
    (part,) = in_both([number_range(LostKind.ORPHAN, 5, 6)], [number_range(LostKind.ORPHAN, 5, 9)])
    assert (part.first, part.last) == (5, 6)
    assert part.before_at is not None
    assert part.after_at is None


@pytest.mark.parametrize(
    ("seconds", "waited", "expected"),
    [
        (5.0, 1.0, True),
        (1.0, 1.0, True),  # it may have begun right before
        (0.5, 1.0, False),  # it began after the first read, so it drew after it
        (None, 1.0, True),  # of unknown age
    ],
)
def test_transactions_open_at_the_first_read_are_recognized_by_their_age(
    seconds: float | None, waited: float, *, expected: bool
) -> None:
    assert was_open(blocker(seconds), waited) is expected


def test_finished_transactions_are_not_waited_for() -> None:
    read_blockers = responses([blocker(9.0)], [blocker(9.0)], [blocker(0.0)])
    assert number_proof.wait_for_blockers(read_blockers, 60) == []


def test_the_reads_are_a_grace_period_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if no transaction is visible: one read may miss it."""
    monkeypatch.setattr(number_proof, "GRACE_SECONDS", 0.05)
    reads = []

    def no_blockers() -> list[Blocker]:
        reads.append(1)
        return []

    assert number_proof.wait_for_blockers(no_blockers, 0.0) == []
    assert len(reads) > 1


def test_waiting_times_out_and_returns_the_open_transactions() -> None:
    old = blocker(9.0)
    assert number_proof.wait_for_blockers(lambda: [old], 0.02) == [old]
    prepared = blocker(None, pid=-2, prepared="6F9619FF")
    assert number_proof.wait_for_blockers(lambda: [prepared], 0.02) == [prepared]


def test_hidden_transactions_are_not_waited_for() -> None:
    """It would wait for hours."""
    assert number_proof.wait_for_blockers(lambda: [HIDDEN], 9_999) == [HIDDEN]


class FakeContext:
    """A check context of a ring: the result of each statement, in order."""

    def __init__(
        self, engine: str, blockers: Sequence[Blocker], *lost: Sequence[NumberRange]
    ) -> None:
        self.database = SimpleNamespace(product=PRODUCTS[engine])
        self.queue: Queue = installed_queue("dbo", "orders", DESIGNS["ring"], {})
        self.patience_seconds = 0.02
        self.pause = time.sleep
        self.statements: list[str] = []
        self.blockers = blockers
        self.lost = list(lost)

    def has(self, name: str) -> bool:
        return CheckContext.has(cast("CheckContext", self), name)

    def query_unlimited(self, _: Any, name: str) -> list[Any]:
        self.statements.append(name)
        return [SequencePositions(100, 90)] if name == "next_numbers" else list(self.blockers)


def losses_of(fake: Any, patch: pytest.MonkeyPatch) -> LostNumbers:
    patch.setattr(number_proof, "_read", lambda context, _: context.lost.pop(0))
    return number_proof.find_lost_numbers(fake)


def test_two_reads_without_an_open_transaction_are_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = [number_range(LostKind.ORPHAN, 5, 9), number_range(LostKind.HOLE, 95, 95)]
    fake = FakeContext("mssql", [], lost, [number_range(LostKind.ORPHAN, 5, 7)])
    numbers = losses_of(fake, monkeypatch)
    assert [(r.first, r.last) for r in numbers.proven[LostKind.ORPHAN]] == [(5, 7)]
    assert numbers.proven[LostKind.HOLE] == ()
    assert numbers.unseen() == []


def test_nothing_is_proven_while_a_transaction_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = [number_range(LostKind.ORPHAN, 5, 9)]
    numbers = losses_of(FakeContext("mssql", [blocker(99.0)], lost, lost), monkeypatch)
    assert not any(numbers.proven.values())
    (line,) = numbers.unseen()
    assert line.startswith("5 pop numbers (5-9) may be held by pid 7 (anna, worker")


def test_nothing_is_proven_if_transactions_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = [number_range(LostKind.PARKED_HOLE, 5, 5)]
    numbers = losses_of(FakeContext("mssql", [HIDDEN], lost, lost), monkeypatch)
    assert not any(numbers.proven.values())
    (line,) = numbers.unseen()
    assert line.endswith("held by transactions that this login may not see")


def test_without_lost_numbers_there_is_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeContext("mssql", [blocker(99.0)], [])
    numbers = losses_of(fake, monkeypatch)
    assert fake.statements == ["next_numbers"]
    assert not any(numbers.proven.values())
    assert numbers.unseen() == []


def test_no_grace_period_is_needed_if_drawing_transactions_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(number_proof, "GRACE_SECONDS", 9_999.0)
    lost = [number_range(LostKind.ORPHAN, 5, 9)]
    fake = FakeContext("postgresql", [], lost, lost)
    assert losses_of(fake, monkeypatch).proven[LostKind.ORPHAN] == (*lost,)
    assert fake.statements == ["next_numbers", "next_numbers", "drawing_transactions"]


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


def test_a_crash_of_sql_server_explains_the_lost_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the engine, with a server's responses: two reads, no open transaction."""
    odbc = stand_in_for_pyodbc(monkeypatch)
    early, late = AT - timedelta(hours=1), AT + timedelta(hours=1)
    results = {
        "ring.server_start": rows(LIFE),
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
    statements = []

    def answer(statement: str) -> list[Any]:
        if not (label := LABEL.match(statement)):
            return []
        statements.append(label[1])
        return results[label[1]]

    odbc.answer = answer
    database = open_mssql()
    with check_context(database, FakeContext("mssql", []).queue, patience_seconds=0.02) as context:
        found = {finding.code.name: finding for finding in ring.CHECKS.run(context)}
    database.close()
    assert context.unseen == []
    assert found["orphan"].summary == "21 orphans: 507-527"
    assert found["hole"].summary == "59,000 holes: 1000-59999"
    assert found["orphan"].since == found["hole"].since == AT
    assert "the server crashed before 2026-11-21 01:58:11 UTC" in found["hole"].cause
    assert statements.count("ring.lost") == 2
    assert "ring.blockers" in statements[statements.index("ring.lost") :]
    assert "ring.disable_jit" not in statements
