"""Subscribers of a ring: none meets another one's transaction; they come, go and skip."""

from functools import partial

import pytest

from console import sql
from console.actions import maintain, maintain_plan, pause
from console.actions import pop as popping
from console.actions import subscribe as subscribing
from console.audit import Outcome
from console.errors import RefusedError, UsageError
from tests.faults.ring_tools import Make, Ring


@pytest.fixture
def make(make: Make) -> Make:
    """Makes a ring of 20 slots with the subscribers a and b, unless others are given."""
    return partial(make, subscribers="a,b")


@pytest.mark.parametrize("batch", [0, 3])
def test_an_open_transaction_of_one_is_not_met_by_the_other(make: Make, batch: int) -> None:
    ring = make()
    texts = ring.fill(20)
    a, b = ring.of("a"), ring.of("b")

    with ring.connect() as first, ring.connect("lock_timeout = '1ms'") as second:
        first.execute("BEGIN")
        taken = [message.payload for message in a.take(first, batch)]
        assert taken == texts[: batch or 1]
        assert [message.payload for message in b.take(second, batch)] == taken
        assert ring.of("b").texts() == texts[len(taken) :]
        assert ring.push(second, "one more") is None, "a has not committed"
        first.execute("ROLLBACK")
    ring.relay()
    assert ring.of("a").texts() == texts
    with ring.connect() as connection:
        assert ring.push(connection, "one more") is not None
    assert ring.of("a").texts() == ring.of("b").texts() == ["one more"]


def test_what_an_old_text_pushes_is_kept_for_who_has_subscribed_since(make: Make) -> None:
    """A call that began before the subscribe goes on with the functions that were there."""
    ring = make(subscribers="a")
    subscribing.subscribe(ring.database, ring.queue, "b", "now")
    with ring.database.transaction("the old text") as connection:
        sql.run(connection, "ring.functions", ring.queue.scope(connection))
    stored = []
    with ring.connect() as connection:
        for number in range(60):
            if ring.push(connection, f"message {number}") is not None:
                stored.append(f"message {number}")
            ring.of("a").pop_many(connection, 5)
    assert len(stored) == 20
    with ring.database.transaction("the new text") as connection:
        sql.run(connection, "ring.functions", ring.of("").queue.scope(connection))
    assert ring.of("b").texts() == stored
    assert ring.of("a").texts() == []
    assert ring.of("b").measure().parked == 0


def test_subscribers_come_and_go(make: Make) -> None:
    ring = make(subscribers="a")
    texts = ring.fill(10)
    with pytest.raises(UsageError, match="has subscribers"):
        popping.pop(ring.database, ring.queue, lambda _: None)
    assert ring.of("a").texts() == texts
    pause.pause(ring.database, ring.queue, reason="", seconds=None, push=False)
    assert subscribing.subscribe(ring.database, ring.queue, "late", "now") == 11
    assert subscribing.subscribe(ring.database, ring.queue, "early", "oldest") == 1
    with ring.connect() as connection:
        assert ring.of("early").pop(connection) is None, "the pause goes on"
    pause.resume(ring.database, ring.of("").queue)
    more = ring.fill(5)
    assert ring.of("late").texts() == ring.of("a").texts() == more
    gone = subscribing.unsubscribe(ring.database, ring.queue, "early")
    assert gone.owed == 15
    assert subscribing.subscribe(ring.database, ring.queue, "again", "now") == 16
    assert ring.of("").queue.options["subscribers"] == "a,late,again:4"
    assert ring.fill(20)
    with pytest.raises(UsageError, match="no subscriber 'early'"):
        ring.of("early")
    for name in ("a", "late"):
        subscribing.unsubscribe(ring.database, ring.queue, name)
    with pytest.raises(RefusedError, match="last subscriber"):
        subscribing.unsubscribe(ring.database, ring.queue, "again")
    assert len(ring.of("again").texts()) == 20


@pytest.mark.parametrize("content", ["slot", "apart"])
def test_what_is_skipped_is_in_the_archive_and_free(make: Make, content: str) -> None:
    ring = make(content=content)
    texts = ring.fill(20)
    assert ring.of("a").texts() == texts
    with ring.connect() as connection:
        assert ring.push(connection, "no room") is None
        done = subscribing.skip(ring.database, ring.queue, "b", "16")
        assert (done.skipped, done.archived) == (15, 15)
        rows = connection.execute(ring.sql("SELECT payload, reason FROM {archive} ORDER BY 1"))
        assert set(rows.fetchall()) == {(text, "skipped by b") for text in texts[:15]}
        assert ring.push(connection, "room") is not None
    assert ring.of("b").texts() == [*texts[15:], "room"]
    assert subscribing.skip(ring.database, ring.queue, "a", "now").skipped == 1
    assert ring.of("a").texts() == []
    assert ring.of("b").measure().live == 0


@pytest.mark.parametrize("content", ["slot", "apart"])
def test_an_idle_ring_archives_what_all_have_popped_once(make: Make, content: str) -> None:
    ring = make(content=content, archive_at_pop="on")
    texts = ring.fill(20)
    with ring.connect() as connection:
        archived = ring.sql("SELECT payload FROM {archive} ORDER BY id")
        assert ring.of("a").texts() == texts
        assert connection.execute(archived).fetchall() == []
        assert ring.of("b").texts() == texts
        ring.of("a").pop(connection)
        assert [text for (text,) in connection.execute(archived)] == texts
        assert ring.contents(connection) == {}
        more = ring.fill(20)
        for name in "ab":
            assert ring.of(name).texts() == more
        again = ring.fill(20)  # the pushes that use the slots again archive what was there
        assert [text for (text,) in connection.execute(archived)] == [*texts, *more]
        assert ring.of("b").texts() == again


def archived(ring: Ring) -> list[str]:
    with ring.connect() as connection:
        query = ring.sql("SELECT payload FROM {archive} ORDER BY payload")
        return [payload for (payload,) in connection.execute(query)]


def test_a_slot_that_a_push_passed_over_is_swept(make: Make) -> None:
    ring = make(archive_at_pop="on")
    texts = ring.fill(20)
    assert ring.of("a").texts() == texts
    with ring.connect() as late, ring.connect() as other:
        late.execute("BEGIN")
        assert ring.of("b").pop(late) is not None
        assert ring.of("b").texts() == texts[1:]
        # Its slot is not free: 21 is void, and 22 is the number of what is pushed.
        assert ring.push(other, "passed") == 22
        late.execute("COMMIT")
    assert ring.of("a").texts() == ring.of("b").texts() == ["passed"]
    assert archived(ring) == sorted([*texts, "passed"])


@pytest.mark.parametrize("batch", [0, 3])
def test_what_was_parked_while_a_sweep_passed_is_swept(make: Make, batch: int) -> None:
    ring = make(archive_at_pop="on")
    a, b = ring.of("a"), ring.of("b")
    with ring.connect() as push, ring.connect() as first, ring.connect() as second:
        for connection in (push, first, second):
            connection.execute("BEGIN")
        assert ring.push(push, "slow") == 1
        # Both draw its number, and park it in transactions that nobody sees yet.
        assert (a.pop(first), b.pop(second)) == (None, None)
        with ring.connect() as other:
            assert ring.push(other, "quick") is not None
        assert ring.of("a").texts() == ring.of("b").texts() == ["quick"]
        assert archived(ring) == ["quick"]
        for connection in (push, first, second):
            connection.execute("COMMIT")
    with ring.connect() as connection:
        for one in (a, b):
            assert [message.payload for message in one.take(connection, batch)] == ["slow"]
    assert ring.of("b").texts() == []
    assert archived(ring) == ["quick", "slow"]


@pytest.mark.parametrize("content", ["slot", "apart"])
def test_maintain_sweeps_what_no_pop_came_to(make: Make, content: str) -> None:
    ring = make(content=content, archive_at_pop="on")
    texts = ring.fill(20)
    with ring.connect() as connection:
        archived = ring.sql("SELECT payload FROM {archive} ORDER BY id")
        for name, taken in (("a", 20), ("b", 19)):
            assert len(ring.of(name).pop_many(connection, taken)) == taken
        planned = maintain_plan.plan(ring.database, ring.queue)
        assert [(step.what, dict(step.figures)) for step in planned.steps] == [
            ("SWEEP", {"numbers": 19})
        ]
        assert maintain.maintain(ring.database, planned).outcome is Outcome.DONE
        assert [text for (text,) in connection.execute(archived)] == texts[:19]
    assert not maintain_plan.plan(ring.database, ring.queue).needed
    assert ring.of("b").texts() == texts[19:]
