"""The doctor's texts on a ring, without a server: causes, proofs that wait, plans, gaps."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.catalog import Queue, installed_queue
from console.designs import DESIGNS
from console.doctor import number_proof, repairs, slot_map
from console.doctor.context import CheckContext
from console.doctor.finding import Repair
from console.doctor.lost_numbers import (
    AHEAD,
    LossCause,
    ServerHistory,
    cause_of,
    describe_causes,
    group_by_cause,
)
from console.doctor.number_proof import (
    Drawer,
    LostKind,
    LostNumbers,
    NumberRange,
    Proof,
    Side,
    format_ranges,
    ranges_evidence,
    total,
)
from console.doctor.ring_repairs import AddSlots, CorrectRing, RepairNumbers
from console.doctor.slot_map import SlotRange

START = datetime(2026, 11, 21, 1, 58, 11, tzinfo=UTC)
QUEUE = installed_queue("public", "orders", DESIGNS["ring"], {})


def seconds(n: float) -> timedelta:
    return timedelta(seconds=n)


def server_history(
    *,
    checkpointer: float | None = 0.1,
    counters: float | None = -9999,
    rollbacks: int = 0,
    lost: int = 0,
) -> ServerHistory:
    """A server that started at START; its counters began this many seconds later."""
    return ServerHistory(
        START,
        None if checkpointer is None else START + seconds(checkpointer),
        None if counters is None else START + seconds(counters),
        1,
        rollbacks,
        lost,
    )


def lost_range(
    first: int, last: int, before: float | None = None, after: float | None = None
) -> NumberRange:
    """Lost numbers; the ones around them used this many seconds after START."""
    times = (None if at is None else START + seconds(at) for at in (before, after))
    return NumberRange("orphan", first, last, None, *times)


@pytest.mark.parametrize(
    ("server", "crashed_at"),
    [
        (server_history(), None),  # a clean start keeps the counters
        (server_history(counters=0.5), 0.1),  # recovery resets them
        (
            server_history(checkpointer=None, counters=0.5),
            0.0,
        ),  # where the login sees no checkpointer
        (server_history(checkpointer=None, counters=None), None),
        (server_history(counters=3600), None),  # somebody reset them later
        (
            server_history(checkpointer=500, counters=500.2),
            500,
        ),  # a backend crashed, the postmaster stayed
        (server_history(checkpointer=500, counters=-9999), 500),
    ],
)
def test_the_time_of_a_crash_follows_from_the_server_history(
    server: ServerHistory, crashed_at: float | None
) -> None:
    expected = None if crashed_at is None else START + seconds(crashed_at)
    assert server.crashed_at == expected


@pytest.mark.parametrize(
    ("lost", "server", "loss"),
    [
        (lost_range(507, 527, before=-5), server_history(counters=0.5), LossCause.CRASH),
        (lost_range(507, 527, before=-5, after=9), server_history(counters=0.5), LossCause.CRASH),
        (lost_range(507, 527), server_history(counters=0.5), LossCause.CRASH),
        (
            lost_range(507, 527, before=-5),
            server_history(counters=0.5, rollbacks=2),
            LossCause.CRASH,
        ),
        (
            lost_range(507, 527, after=9),
            server_history(counters=0.5, rollbacks=2),
            LossCause.UNKNOWN,
        ),  # or a rollback
        (lost_range(507, 527), server_history(counters=0.5, lost=1), LossCause.UNKNOWN),
        (
            lost_range(507, 507, before=-5),
            server_history(counters=0.5),
            LossCause.UNKNOWN,
        ),  # or a rollback before it
        (
            lost_range(507, 527, before=5),
            server_history(counters=0.5, rollbacks=2),
            LossCause.ROLLBACK,
        ),
        (
            lost_range(507, 527, after=-5),
            server_history(counters=0.5, rollbacks=2),
            LossCause.ROLLBACK,
        ),
        (lost_range(507, 507), server_history(rollbacks=2), LossCause.ROLLBACK),
        (lost_range(507, 507), server_history(rollbacks=2, lost=1), LossCause.EITHER),
        (lost_range(507, 507), server_history(rollbacks=1, lost=1), LossCause.DEATH),
        (lost_range(507, 507), server_history(), LossCause.UNKNOWN),
        (
            lost_range(1, AHEAD + 1, before=-5),
            server_history(counters=0.5, rollbacks=2),
            LossCause.BATCH,
        ),
    ],
)
def test_the_cause_of_a_loss(lost: NumberRange, server: ServerHistory, loss: LossCause) -> None:
    assert cause_of(lost, server) is loss


def test_causes_name_their_numbers() -> None:
    server = server_history(counters=0.5, rollbacks=3)
    found = group_by_cause(
        [lost_range(507, 527, before=-5), lost_range(600, 600, before=5)], server
    )
    assert list(found) == [LossCause.CRASH, LossCause.ROLLBACK]
    text = describe_causes(found, server)
    assert "21 (507-527): the server crashed before 2026-11-21 01:58:11 UTC" in text
    assert "1 (600): their callers rolled back (3 transactions" in text
    assert "timeline" not in text


def test_a_crash_before_a_loss_is_not_its_cause() -> None:
    """The server's counters are a moment late: the caller's own rollback may not be in them yet."""
    server = server_history(counters=0.5)
    text = describe_causes(group_by_cause([lost_range(600, 600, before=5)], server), server)
    not_known = "not known: the server's counters do not explain it (they lag by some seconds)"
    assert text == f"1 (600): {not_known}"
    assert "or the crash before 2026" in describe_causes(
        group_by_cause([lost_range(600, 600)], server), server
    )


def test_causes_mention_a_promotion_of_the_server() -> None:
    promoted = ServerHistory(START, START, None, 2, 0, 0)
    assert "timeline 2" in describe_causes(group_by_cause([lost_range(1, 99)], promoted), promoted)


RUNS = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 5)), max_size=150)


@given(RUNS)
def test_evidence_counts_all_ranges_and_lists_at_most_100(lengths: list[tuple[int, int]]) -> None:
    runs, at = [], 0
    for skipped, more in lengths:
        at += skipped + 1
        runs.append(lost_range(at, at + more))
        at += more
    evidence = ranges_evidence(runs)
    shown = evidence["numbers"]
    assert isinstance(shown, list)
    assert evidence["count"] == total(runs) == sum(more + 1 for _, more in lengths)
    assert shown == [[r.first, r.last] for r in runs][:100]
    assert evidence.get("runs_not_shown", 0) == len(runs) - len(shown)


def test_only_the_first_few_ranges_are_written_out() -> None:
    assert format_ranges([lost_range(507, 527), lost_range(530, 530)]) == "507-527, 530"
    assert (
        format_ranges([lost_range(n, n + 1) for n in range(0, 30, 3)], most=2)
        == "0-1, 3-4, and 16 more"
    )


def drawer(holder: str, side: str = "pop") -> Drawer:
    return Drawer(side, holder, 7, "anna", "worker", None, "active", 2.5, None)


def responses(*reads: Sequence[Drawer]) -> Callable[[], Sequence[Drawer]]:
    """The result of each read; the last one is repeated."""
    remaining = list(reads)
    return lambda: remaining.pop(0) if len(remaining) > 1 else remaining[0]


def test_later_transactions_are_not_waited_for() -> None:
    one, two, late = drawer("1/1"), drawer("2/2"), drawer("3/3")
    other_side = drawer("1/1", "push")
    read_drawers = responses(
        [one, two], [late, two], [late, two, other_side, one], [late, other_side]
    )
    # A finished one does not count again, even if its number is reused.
    assert number_proof.wait_for_drawers(read_drawers, 60) == []


def test_waiting_for_drawing_transactions_times_out() -> None:
    one = drawer("1/1")
    assert number_proof.wait_for_drawers(lambda: [one], 0.02) == [one]
    assert number_proof.wait_for_drawers(list, 60) == []


def test_unproven_numbers_are_reported_with_their_holder() -> None:
    held = Proof(100, 50, (drawer("1/1"),))
    assert held.drawers_of(Side.PUSH) == ()
    lost = LostNumbers(held, {}, {Side.POP: (lost_range(7, 9),), Side.PUSH: ()})
    (line,) = lost.unseen()
    assert line.startswith("3 pop numbers (7-9) may be held by pid 7 (anna, worker, local)")


def test_a_side_without_losses_in_the_first_read_is_not_proven(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor does it delay the other side: at the first read it had no losses."""
    orphan, hole = lost_range(7, 9), replace(lost_range(40, 40), kind="hole")
    reads = [[orphan], [orphan, hole]]
    waited_for: list[set[Side]] = []

    def prove(_: CheckContext, sides: set[Side]) -> Proof:
        waited_for.append(sides)
        return Proof(100, 50)

    monkeypatch.setattr(
        number_proof, "next_numbers", lambda _: number_proof.SequencePositions(90, 40)
    )
    monkeypatch.setattr(number_proof, "_read", lambda *_: reads.pop(0))
    monkeypatch.setattr(number_proof, "prove", prove)
    numbers = number_proof.find_lost_numbers(Mock(spec=CheckContext))
    assert waited_for == [{Side.POP}]
    assert {kind: runs for kind, runs in numbers.proven.items() if runs} == {
        LostKind.ORPHAN: (orphan,)
    }
    assert numbers.unseen() == []


def test_only_holes_and_parked_holes_are_losses_of_the_push_side() -> None:
    push_kinds = {kind for kind in LostKind if kind.side is Side.PUSH}
    assert push_kinds == {LostKind.HOLE, LostKind.PARKED_HOLE}


def test_repairs_of_a_ring_state_their_effect_and_confirmation() -> None:
    repair_numbers = RepairNumbers(QUEUE, {LostKind.ORPHAN: 21, LostKind.HOLE: 1_000})
    assert repair_numbers.summary == "park 21 orphans, make 1,000 holes void"
    relay, correct_ring = repairs.relay(QUEUE), CorrectRing(QUEUE)
    assert relay.command == "dbq-console relay orders"
    assert correct_ring.command == ""
    assert "relay" in correct_ring.summary
    all_repairs: list[Repair] = [repair_numbers, AddSlots(QUEUE, 4), relay, correct_ring]
    assert [repair.unattended for repair in all_repairs] == [True, True, False, False]
    assert (repair_numbers.requires_name, correct_ring.requires_name) == (False, True)
    assert all_repairs[1].summary == "add 4 empty slots"


def test_a_name_is_quoted_for_the_shell() -> None:
    odd = Queue("public", "my orders; rm", QUEUE.design, {}, QUEUE.roles)
    assert repairs.relay(odd).command == "dbq-console relay 'my orders; rm'"


@given(st.sets(st.integers(0, 20)), st.integers(1, 20))
def test_slots_without_a_row_are_missing(present: set[int], size: int) -> None:
    inside = sorted(slot for slot in present if slot < size)
    rows = [SlotRange(slot, slot, "free", 1, None, None) for slot in inside]
    complete = list(slot_map._with_gaps(rows, size))
    slots = [slot for r in complete for slot in range(r.first_slot, r.last_slot + 1)]
    assert slots == list(range(size))
    missing = sum(r.count for r in complete if r.state == "missing")
    assert missing == size - len(inside)
