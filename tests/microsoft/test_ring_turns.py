"""A ring's procedures, interleaved at random: nothing is lost, doubled, or left over."""

import json
import re
from collections import Counter
from collections.abc import Callable
from itertools import count, islice
from random import Random

import pytest

from console.actions import install
from console.engines.mssql import PRODUCT
from tests.faults.harness.model import finish
from tests.microsoft.design_sessions import Installation, repair
from tests.microsoft.interpreter import Call, ThrownError
from tests.microsoft.ring_sessions import Run, Trees, ring, variant
from tests.microsoft.server import AttentionError
from tests.microsoft.tools import Tools

TreesOf = Callable[[str, int], Trees]
RingOf = Callable[[str, int], Installation]
SUBSCRIBED = [("plain", 3), ("archive", 2), ("apart", 3)]


def run(trees: Trees, seed: int, subscribers: int) -> Run:
    found = Run(trees, seed, subscribers)
    found.run_interleaved()
    found.pop_rest_and_check()
    return found


@pytest.mark.parametrize(
    ("kind", "subscribers"),
    [
        *(("plain", 0), ("archive", 0), ("apart", 0)),
        *(("plain", 3), ("archive", 2), ("apart", 3)),
        pytest.param("plain", 2, marks=pytest.mark.long),
        pytest.param("archive", 3, marks=pytest.mark.long),
        pytest.param("apart", 2, marks=pytest.mark.long),
    ],
)
def test_each_subscriber_gets_each_message_once(
    trees_of: TreesOf, kind: str, subscribers: int, long: bool
) -> None:
    seeds = (2000, 6) if subscribers else (5000, 30)
    for seed in range(seeds[0] if long else seeds[1]):
        found = run(trees_of(kind, subscribers), seed, subscribers)
        if kind != "plain":
            found.check_all_archived()


@pytest.mark.parametrize(("kind", "subscribers"), SUBSCRIBED)
def test_no_subscriber_loses_a_message_to_a_fail_over(
    trees_of: TreesOf, kind: str, subscribers: int, long: bool
) -> None:
    """Open transactions and the rest of each cache are lost at any step; a relay repairs it."""
    for seed in range(1000 if long else 6):
        found = Run(trees_of(kind, subscribers), seed, subscribers, fails_over=True)
        found.run_interleaved()
        found.pop_rest_and_check()


@pytest.mark.parametrize("kind", ["plain", "archive", "apart"])
def test_repairs_bring_each_subscriber_what_failovers_left(
    ring_of: RingOf, kind: str, long: bool
) -> None:
    """Without a relay: what each subscriber's lost numbers left behind is repaired, and popped."""
    made, repaired = ring_of(kind, 3), Counter[str]()
    for seed in range(500 if long else 6):
        found = Run(made.procedures, seed, 3, fails_over=True)
        found.run_interleaved()
        repaired += repair(made, found.server, found.call_alone)
        found.pop_rest_and_check(relays=False)
        assert not any(repair(made, found.server, found.call_alone).values()), "it was repaired"
    assert repaired["park_orphans"]
    assert repaired["drop_holes"] + repaired["void_holes"]


@pytest.mark.parametrize("how", ["attention", "failover"])
@pytest.mark.parametrize(("kind", "subscribers"), SUBSCRIBED)
def test_a_call_that_is_cut_did_nothing_or_everything_for_each_subscriber(
    trees_of: TreesOf, kind: str, subscribers: int, how: str, long: bool
) -> None:
    for call in CALLS:
        for is_open in (False, True):
            for steps in count(4, 1 if long else 31):
                found = Run(trees_of(kind, subscribers), 1, subscribers)
                if not cut(found, call, steps, how, is_open=is_open):
                    assert steps > 4
                    break


def cut(run: Run, call: str, steps: int, how: str, *, is_open: bool) -> bool:
    """End a call of the second subscriber after so many steps; False: it has fewer.

    What it had committed counts, nothing else; nothing may be lost.
    """
    name = run.names[1]
    assert run.relay(9)
    for payload in ("first", "next"):
        assert run.call_alone("push", payload=payload)
        run.pushed.append(payload)
    session = run.server.session()
    if is_open:
        session.begin()
        finish(run.call(session, "push", payload="before"))
    given = CALLS[call] | ({"subscriber": name} if call.startswith("pop") else {})
    other = run.call(session, call, **given)
    if sum(1 for _ in islice(other, steps)) < steps:
        return False
    if session.commits:
        rows = finish(other)
        if call.startswith("pop"):
            run.popped[name] += [row["payload"] for row in rows]
        else:
            run.pushed += json.loads(str(given.get("payloads", '["new"]')))
    elif how == "attention":
        with pytest.raises(AttentionError):
            other.throw(AttentionError)
        assert not session.depth
    else:
        other.close()
        run.server.fail_over()
    run.pop_rest_and_check()
    return True


CALLS: dict[str, dict[str, object]] = {
    "push": {"payload": "new"},
    "push_many": {"payloads": '["one", "two"]'},
    "pop": {},
    "pop_many": {"n": 3},
}


@pytest.mark.thinned(13)
@pytest.mark.parametrize("first", CALLS)
@pytest.mark.parametrize("second", CALLS)
@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("kind", ["plain", "archive", "apart"])
def test_no_call_waits_for_another_at_any_step(
    trees_of: TreesOf, kind: str, commits: bool, second: str, first: str
) -> None:
    """The first call runs between two steps of the second, and ends its transaction after it."""
    for steps in count():
        found = Run(trees_of(kind, 0), 0, 0)
        assert found.relay(7)
        late, one, two = (found.server.session() for _ in range(3))
        late.begin()
        finish(found.call(late, "push", payload="late"))
        assert not found.call_alone("pop"), "its number is parked"
        late.commit()
        for payload in ("next", "last"):
            assert found.call_alone("push", payload=payload)
        one.begin()
        other = found.call(two, second, **CALLS[second])
        if sum(1 for _ in islice(other, steps)) < steps:
            assert steps > 5
            return
        rows = finish(found.call(one, first, **CALLS[first]))
        ended = [(second, finish(other))]
        if commits:
            one.commit()
            ended.append((first, rows))
        else:
            one.roll_back()
            found.is_orderly = False
        found.pushed += ["late", "next", "last"]
        for name, came in ended:
            if name.startswith("pop"):
                found.popped[""] += [row["payload"] for row in came]
            else:
                assert all(row["id"] for row in came)
                found.pushed += json.loads(str(CALLS[name].get("payloads", '["new"]')))
        found.pop_rest_and_check()


def test_a_single_session_pops_everything_once_in_push_order(trees_of: TreesOf) -> None:
    """One session without rollbacks: full at `size` messages exactly, empty at none."""
    for seed in range(12):
        run = Run(trees_of("plain", 0), seed, 0)
        waiting: list[str] = []
        for serial in range(40):
            choice = run.chance.randrange(10)
            if choice < 5:
                (row,) = run.call_alone("push", payload=str(serial))
                assert (row["id"] is None) == (len(waiting) == run.size)
                waiting += [str(serial)] * (row["id"] is not None)
            elif choice < 9:
                assert [row["payload"] for row in run.call_alone("pop")] == waiting[:1]
                del waiting[:1]
            else:
                assert run.relay(max(1, len(waiting)))
                run.relay(run.chance.randint(1, 7))
            assert not run.server.tables["orders_parked"]


def test_lost_push_and_pop_numbers_never_stop_the_ring(trees_of: TreesOf) -> None:
    """Sequences skip numbers, as after a crash; a relay makes all messages reachable again."""
    for seed in range(12):
        run = Run(trees_of("plain", 0), seed, 0)
        for part in ("before", "after"):
            for serial in range(30):
                payload = f"{part} {serial}"
                run.pushed += [
                    payload for row in run.call_alone("push", payload=payload) if row["id"]
                ]
            if part == "before":
                run.server.sequences["orders_push_seq"] += run.chance.randint(0, 12)
                run.server.sequences["orders_pop_seq"] += run.chance.randint(0, 12)
            run.popped[""] += [row["payload"] for row in run.drain("")]
        run.is_orderly = False
        run.pop_rest_and_check()
        assert len(set(run.server.sequences.values())) == 1


@pytest.mark.parametrize(("kind", "subscribers"), [("plain", 0), ("archive", 2), ("apart", 0)])
@pytest.mark.parametrize("call", ["pop", "pop_many"])
def test_one_pop_gets_past_all_numbers_that_a_fail_over_skipped(
    trees_of: TreesOf, kind: str, subscribers: int, call: str
) -> None:
    """Of the push sequence it skips what is left of its cache; what is drawn of these is parked."""
    run = Run(trees_of(kind, subscribers), 1, subscribers)
    assert run.relay(30)
    given = {"n": 1} if call == "pop_many" else {}
    for name in run.names:
        assert not run.call_alone(call, subscriber=name, **given)
    run.server.sequences["orders_push_seq"] += 20
    assert run.call_alone("push", payload="behind them")
    run.server.sequences["orders_push_seq"] += 5
    for name in run.names:
        rows = run.call_alone(call, subscriber=name, **given)
        assert [row["payload"] for row in rows] == ["behind them"]
        assert not run.call_alone(call, subscriber=name, **given)
    parked = len(run.server.tables["orders_parked"])
    assert parked <= (20 + 8) * len(run.names)


def test_a_number_both_parked_and_void_is_removed(trees_of: TreesOf) -> None:
    """The push that could not use it and the early pop each leave a row; both are deleted."""
    run = Run(trees_of("plain", 0), 0, 0)
    pairs = [(number, void) for number in range(1, 4) for void in (0, 1)]
    rows = ({"number": number, "void": void} for number, void in [*pairs, (9, 0), (8, 1)])
    run.server.fill("orders_parked", *rows)
    run.server.sequences = dict.fromkeys(run.server.sequences, 9)
    assert not run.call_alone("pop")
    assert set(run.server.tables["orders_parked"]) == {(0, 9), (1, 8)}


def test_a_slot_without_its_content_is_not_popped(trees_of: TreesOf) -> None:
    run = Run(trees_of("apart", 0), 1, 0)
    assert run.relay(3)
    lost, here = (run.call_alone("push", payload=payload)[0]["id"] for payload in ("lost", "here"))
    contents = run.server.tables[f"orders_content_{lost % 2}"]
    assert contents.pop((lost,), None)
    assert [(row["id"], row["payload"]) for row in run.call_alone("pop")] == [(here, "here")]
    assert set(run.server.tables["orders_parked"]) == {(0, lost)}
    left = [row["first_id"] for row in run.server.tables["orders"].values()]
    assert sorted(filter(None, left)) == [lost]


def test_a_sweep_of_an_idle_ring_reads_no_slots(trees_of: TreesOf) -> None:
    call = Call(trees_of("archive", 2), "sweep", ring(Random(0), 4, 2).session())
    finish(call.run())
    tables = {"config", "subscribers", "swept", "parked"}
    assert set(call.read) == {f"orders_{table}" for table in tables}


def test_unknown_subscribers_cannot_pop(trees_of: TreesOf) -> None:
    for name in ("Billing", "somebody", None):
        for call, given in (("pop", {}), ("pop_many", {"n": 1})):
            session = ring(Random(0), 4, 2).session()
            with pytest.raises(ThrownError, match="has no subscriber"):
                finish(Call(trees_of("plain", 2), call, session, subscriber=name, **given).run())


_SUBSCRIBERS = r"\S+orders_subscribers\] AS b WITH \(ROWLOCK, READCOMMITTEDLOCK\)"
OF_SUBSCRIBERS = {
    "a push that skips locked rows of popped": (
        "push",
        rf"NOT EXISTS \(\s+SELECT 1 FROM {_SUBSCRIBERS}\s+WHERE NOT EXISTS \((.*?)"
        r"d\.message_id >= r\.message_id\s+\)\s+\)",
        r"NOT EXISTS (SELECT 1 FROM [sales].[orders_subscribers] AS b INNER JOIN "
        r"[sales].[orders_popped] AS d WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) "
        r"ON d.subscriber = b.number AND d.slot = r.slot AND d.message_id < r.message_id)",
    ),
    "a push that waits for pops": (
        "push",
        r"(orders_popped\] AS d WITH \(ROWLOCK, )READPAST, ",
        r"\1",
    ),
    "a push that checks only one subscriber": (
        "push",
        r"(WHERE )(NOT EXISTS \(\s+SELECT 1 FROM \S+popped)",
        r"\1b.number = 1 AND \2",
    ),
    "a void for only one subscriber": (
        "push",
        rf"CROSS JOIN {_SUBSCRIBERS}\s+WHERE NOT",
        "CROSS JOIN (SELECT 1 AS number) AS b WHERE NOT",
    ),
    "a pop with a number not its own": (
        "pop",
        r"@range_first_value = @range OUTPUT;\s+SET @drawn = ",
        "@range_first_value = @range OUTPUT; SET @drawn = 1 + ",
    ),
    "a pop that marks the rows of all subscribers": (
        "pop",
        r"WHERE d\.subscriber = @of AND",
        "WHERE",
    ),
    "a pop that does not mark": ("pop", r"SET message_id = @drawn,", "SET"),
    "a pop that parks for another subscriber": (
        "pop",
        r"SYSUTCDATETIME\(\), @of",
        "SYSUTCDATETIME(), 1",
    ),
    "a pop that drops the voids of all subscribers": (
        "pop",
        r"AND number = @drawn AND subscriber = @of",
        "AND number = @drawn",
    ),
}


PLANTED = {
    **{("plain", 2, what): mistake for what, mistake in OF_SUBSCRIBERS.items()},
    ("plain", 0, "no lasting lock on the configuration"): (
        *("push_many", "REPEATABLEREAD, ROWLOCK", "ROWLOCK"),
    ),
    ("plain", 0, "a push into a slot that is not free"): ("push", " AND reference_count = 0", ""),
    ("plain", 0, "a pop of any message in the slot"): (
        "pop",
        r" AND (r\.)?message_id = @drawn",
        "",
    ),
    ("plain", 0, "a pop that waits for a lock"): ("pop", "READPAST, ", ""),
    ("plain", 0, "a pop that parks nothing"): ("pop", "SELECT @drawn, 0", "SELECT @drawn, 1"),
    ("plain", 0, "an answer before the commit"): ("pop", r"COMMIT TRANSACTION;\s+EXEC", "EXEC"),
    ("apart", 0, "a push without its content"): (
        *("push", r"IF @id % [^\n]*\n[^\n]*VALUES[^\n]*\n", ""),
    ),
    ("apart", 0, "a pop that does not delete its content"): (
        *("pop", r"DELETE FROM \S+orders_content_[^\n]*", ""),
    ),
    ("apart", 0, "a pop that does not check for content"): (
        "pop",
        r"AND CASE r\.first_id.*?END = 1",
        "",
    ),
    ("apart", 0, "a push into the wrong table"): ("push", r"(IF @id % .*?)= 0", r"\1= 1"),
}


@pytest.mark.thinned(7)  # this tests the tests above
@pytest.mark.parametrize("mistake", PLANTED, ids=lambda mistake: mistake[2])
def test_a_planted_mistake_is_found(
    microsoft: Tools, trees_of: TreesOf, mistake: tuple[str, int, str]
) -> None:
    kind, subscribers, _ = mistake
    name, text, replacement = PLANTED[mistake]
    script = install.script(PRODUCT, variant(kind, subscribers).queue("sales", "orders", "mssql"))
    (batch,) = re.findall(rf"(?ms)^CREATE OR ALTER PROCEDURE \S+orders_{name}\]\n.*?^GO$", script)
    batch, replaced = re.subn(text, replacement, batch.removesuffix("GO"), flags=re.DOTALL)
    assert replaced
    wrong = trees_of(kind, subscribers) | {name: microsoft.tree(batch)}
    with pytest.raises((AssertionError, ThrownError)):  # noqa: PT012 - any of these
        if kind == "apart":
            test_a_slot_without_its_content_is_not_popped(lambda *_: wrong)
        for seed in range(150):
            run(wrong, seed, subscribers)
