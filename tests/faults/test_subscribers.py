"""Subscribers of a ring: their transactions are independent; they are added, removed, skip."""

from functools import partial

import pytest

from console import sql
from console.actions import maintain, maintenance, pause, short_locks
from console.actions import pop as popping
from console.actions import subscribe as subscribing
from console.catalog.audit import Outcome
from console.errors import BusyError, RefusedError, UsageError
from console.plan import Control
from console.rights import Rights
from console.verbs import get_verb
from console.verbs.verb import Target, values_from_texts
from tests.faults.harness.ring import Make, Ring


@pytest.fixture
def make(make: Make) -> Make:
    """Creates rings of 20 slots, by default with the subscribers a and b."""
    return partial(make, subscribers="a,b")


@pytest.mark.parametrize("batch", [0, 3])
def test_an_open_transaction_of_a_subscriber_does_not_affect_another(
    make: Make, batch: int
) -> None:
    ring = make()
    texts = ring.fill(20)
    a, b = ring.of("a"), ring.of("b")

    with ring.connect() as first, ring.connect("lock_timeout = '1ms'") as second:
        first.execute("BEGIN")
        taken = [message.payload for message in a.take(batch, on=first)]
        assert taken == texts[: batch or 1]
        assert [message.payload for message in b.take(batch, on=second)] == taken
        assert ring.of("b").texts() == texts[len(taken) :]
        assert ring.push("one more", on=second) is None, "a has not committed"
        first.execute("ROLLBACK")
    ring.relay()
    assert ring.of("a").texts() == texts
    assert ring.push("one more") is not None
    assert ring.of("a").texts() == ring.of("b").texts() == ["one more"]


def test_messages_pushed_by_old_functions_are_kept_for_a_new_subscriber(make: Make) -> None:
    """A call that started before the subscribe continues with the functions of that time."""
    ring = make(subscribers="a")
    subscribing.subscribe(ring.database, ring.queue, "b", "now")
    with ring.database.transaction("the old text") as connection:
        sql.run(connection, "ring.functions", ring.queue.scope(connection))
    stored = []
    for number in range(60):
        if ring.push(f"message {number}") is not None:
            stored.append(f"message {number}")
        ring.of("a").pop_many(5)
    assert len(stored) == 20
    with ring.database.transaction("the new text") as connection:
        sql.run(connection, "ring.functions", ring.of("").queue.scope(connection))
    assert ring.of("b").texts() == stored
    assert ring.of("a").texts() == []
    assert ring.of("b").measure().parked == 0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("subscribe", {"subscriber": "c"}),
        ("unsubscribe", {"subscriber": "a"}),
        ("skip", {"subscriber": "a", "to": "now"}),
    ],
)
def test_an_open_transaction_blocks_a_change_of_subscribers_and_is_named(
    make: Make, monkeypatch: pytest.MonkeyPatch, name: str, words: dict[str, str]
) -> None:
    """By the plan, and again after some attempts; nothing is changed."""
    monkeypatch.setattr(short_locks, "_ATTEMPTS_SECONDS", 0.5)
    ring = make()
    ring.fill(3)
    target = Target(ring.database, ring.of("").queue, Rights.ADMIN)
    verb = get_verb(name)
    with ring.connect("application_name = 'holder of a lock'") as holder:
        holder.execute("BEGIN")
        ring.push("never committed", on=holder)
        plan = verb.plan(target, values_from_texts(verb, words))
        assert any("waits for pid" in line and "holder of a lock" in line for line in plan.lines)
        (blocker,) = plan.data["blockers"]
        assert blocker["application_name"] == "holder of a lock"
        assert any("for 0.2 s, in later attempts for up to 1 s" in line for line in plan.lines)
        with pytest.raises(BusyError) as raised:
            plan.run(Control(), lambda _: None)
        assert "holder of a lock" in raised.value.why
        holder.execute("ROLLBACK")
    assert [len(ring.of(one).texts()) for one in "ab"] == [3, 3]
    free = verb.plan(target, values_from_texts(verb, words))
    assert free.data["blockers"] == []


def test_subscribers_can_be_added_and_removed(make: Make) -> None:
    ring = make(subscribers="a")
    texts = ring.fill(10)
    with pytest.raises(UsageError, match="has subscribers"):
        popping.pop(ring.database, ring.queue, lambda _: None)
    assert ring.of("a").texts() == texts
    pause.pause(ring.database, ring.queue, reason="", seconds=None, push=False)
    assert subscribing.subscribe(ring.database, ring.queue, "late", "now") == 11
    assert subscribing.subscribe(ring.database, ring.queue, "early", "oldest") == 1
    assert ring.of("early").pop() is None, "it is still paused"
    pause.resume(ring.database, ring.of("").queue)
    more = ring.fill(5)
    assert ring.of("late").texts() == ring.of("a").texts() == more
    unsubscribed = subscribing.unsubscribe(ring.database, ring.queue, "early")
    assert unsubscribed.owed == 15
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
def test_skipped_messages_are_archived_and_their_slots_are_free(make: Make, content: str) -> None:
    ring = make(content=content)
    texts = ring.fill(20)
    assert ring.of("a").texts() == texts
    assert ring.push("no room") is None
    done = subscribing.skip(ring.database, ring.queue, "b", "16")
    assert (done.skipped, done.archived) == (15, 15)
    rows = ring.execute("SELECT payload, reason FROM {archive} ORDER BY 1")
    assert set(rows.fetchall()) == {(text, "skipped by b") for text in texts[:15]}
    assert ring.push("room") is not None
    assert ring.of("b").texts() == [*texts[15:], "room"]
    assert subscribing.skip(ring.database, ring.queue, "a", "now").skipped == 1
    assert ring.of("a").texts() == []
    assert ring.of("b").measure().live == 0


@pytest.mark.parametrize("content", ["slot", "apart"])
def test_an_idle_ring_archives_messages_popped_by_all_once(make: Make, content: str) -> None:
    ring = make(content=content, archive_at_pop="on")
    texts = ring.fill(20)
    archived = ring.sql("SELECT payload FROM {archive} ORDER BY id")
    assert ring.of("a").texts() == texts
    assert ring.session.execute(archived).fetchall() == []
    assert ring.of("b").texts() == texts
    ring.of("a").pop()
    assert [text for (text,) in ring.session.execute(archived)] == texts
    assert ring.contents() == {}
    more = ring.fill(20)
    for name in "ab":
        assert ring.of(name).texts() == more
    again = ring.fill(20)  # pushes that use the slots again archive their old messages
    assert [text for (text,) in ring.session.execute(archived)] == [*texts, *more]
    assert ring.of("b").texts() == again


def archived(ring: Ring) -> list[str]:
    query = ring.sql("SELECT payload FROM {archive} ORDER BY payload")
    return [payload for (payload,) in ring.session.execute(query)]


def test_a_slot_skipped_by_a_push_is_swept(make: Make) -> None:
    ring = make(archive_at_pop="on")
    texts = ring.fill(20)
    assert ring.of("a").texts() == texts
    with ring.connect() as late:
        late.execute("BEGIN")
        assert ring.of("b").pop(on=late) is not None
        assert ring.of("b").texts() == texts[1:]
        # The slot is not free, so 21 is void and the message gets 22.
        assert ring.push("passed") == 22
        late.execute("COMMIT")
    assert ring.of("a").texts() == ring.of("b").texts() == ["passed"]
    assert archived(ring) == sorted([*texts, "passed"])


@pytest.mark.parametrize("batch", [0, 3])
def test_messages_parked_during_a_sweep_are_swept_later(make: Make, batch: int) -> None:
    ring = make(archive_at_pop="on")
    a, b = ring.of("a"), ring.of("b")
    with ring.connect() as push, ring.connect() as first, ring.connect() as second:
        for connection in (push, first, second):
            connection.execute("BEGIN")
        assert ring.push("slow", on=push) == 1
        # Both draw its number and park it, in transactions that are not committed yet.
        assert (a.pop(on=first), b.pop(on=second)) == (None, None)
        assert ring.push("quick") is not None
        assert ring.of("a").texts() == ring.of("b").texts() == ["quick"]
        assert archived(ring) == ["quick"]
        for connection in (push, first, second):
            connection.execute("COMMIT")
    for one in (a, b):
        assert [message.payload for message in one.take(batch)] == ["slow"]
    assert ring.of("b").texts() == []
    assert archived(ring) == ["quick", "slow"]


@pytest.mark.parametrize("content", ["slot", "apart"])
def test_maintain_sweeps_messages_that_no_pop_has_swept(make: Make, content: str) -> None:
    ring = make(content=content, archive_at_pop="on")
    texts = ring.fill(20)
    archived = ring.sql("SELECT payload FROM {archive} ORDER BY id")
    for name, taken in (("a", 20), ("b", 19)):
        assert len(ring.of(name).pop_many(taken)) == taken
    planned = maintenance.find(ring.database, ring.queue)
    assert [(step.what, dict(step.figures)) for step in planned.steps] == [
        ("SWEEP", {"numbers": 19})
    ]
    assert maintain.maintain(ring.database, planned).outcome is Outcome.DONE
    assert [text for (text,) in ring.session.execute(archived)] == texts[:19]
    assert not maintenance.find(ring.database, ring.queue).needed
    assert ring.of("b").texts() == texts[19:]
