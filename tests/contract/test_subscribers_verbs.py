"""Verbs on messages of a ring with subscribers: whose message each acts on, and whose stays."""

import itertools
import threading
from collections.abc import Iterator

import pytest

from console import verbs
from console.actions import pop, push
from console.actions.execute import Control
from console.actions.pop import PoppedMessage
from console.actions.rows import CHANGED
from console.errors import UsageError
from console.monitor.message import Message
from console.rights import Rights
from console.verbs.verb import Plan, Target, values_from_texts
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.filled import seen
from tests.contract.message_actions import archived
from tests.contract.test_subscribers_seen import made, popped
from tests.contract.traffic import at_work


def planned(client: Client, verb: str, subscriber: str = "", **texts: str) -> Plan:
    named = verbs.get_verb(verb)
    target = Target(client.database, client.queue, Rights.OPERATOR)
    return named.plan(target, values_from_texts(named, {"subscriber": subscriber, **texts}))


def held(client: Client, subscriber: str) -> dict[str | None, str]:
    """Of each message that the subscriber has: its state."""
    of = Client(client.database, client.queue.of(subscriber))
    found: list[Message] = list(seen(of, limit=100).messages)
    assert len({one.id for one in found}) == len(found)
    return {one.id: one.state for one in found}


@pytest.fixture
def both(use: Use) -> tuple[Client, list[str]]:
    """Three messages, claimed by each subscriber."""
    client = made(use, in_hand="on")
    ids = [str(number) for number in client.push_many(client.payloads(1, 2, 3))]
    for subscriber in ("billing", "search"):
        assert [one.id for one in popped(client, subscriber)] == ids
    return client, ids


def test_a_verb_acts_on_what_its_subscriber_has_in_hand(both: tuple[Client, list[str]]) -> None:
    client, (one, two, three) = both
    planned(client, "release", "search", force="yes", filter=f"id={one}").run_to_end()
    untouched = dict.fromkeys((one, two, three), "claimed")
    assert held(client, "billing") == untouched
    untouched |= {one: "ready"}
    planned(client, "complete", "billing", id=one).run_to_end()
    planned(client, "fail", "billing", id=f"{two} {three}", error="no").run_to_end()
    assert held(client, "billing") == {two: "error", three: "error"}
    assert held(client, "search") == untouched
    made = planned(client, "requeue", "billing", filter=f"id={two}")
    assert "(design ring, subscriber billing)" in made.lines[0]
    assert made.subject.detail == "subscriber billing"
    assert made.count == 1
    made.run_to_end()
    assert held(client, "billing") == {two: "ready", three: "error"}
    archived = planned(client, "archive", "billing")
    assert archived.count == 1
    archived.run_to_end()
    assert held(client, "billing") == {two: "ready"}
    assert held(client, "search") == untouched
    released = planned(client, "release", "search", force="yes", filter=f"id={two}")
    assert released.count == 1
    released.run_to_end()
    assert held(client, "search") == untouched | {two: "ready"}
    assert held(client, "billing") == {two: "ready"}
    # Each has its own again, as a second attempt, and no other gets it.
    assert [(m.id, m.attempts) for m in popped(client, "billing")] == [(two, 2)]
    assert [(m.id, m.attempts) for m in popped(client, "search")] == [(one, 2), (two, 2)]
    assert popped(client, "billing") == []


def test_whose_has_to_be_said(both: tuple[Client, list[str]]) -> None:
    client, (one, *_) = both
    for verb in ("complete", "fail", "release", "requeue", "archive"):
        texts = {"id": one, "error": "no"} if verb in {"complete", "fail"} else {}
        with pytest.raises(UsageError, match="has subscribers") as caught:
            planned(client, verb, **texts)
        assert "billing, search" in caught.value.next_step
        with pytest.raises(UsageError, match="has no subscriber"):
            planned(client, verb, "nobody", **texts)


def texts_of(found: list[PoppedMessage]) -> list[object]:
    return [one.payload for one in found]


@pytest.mark.parametrize(
    "more",
    [{"in_hand": "on"}, {"content": "apart", "partitions": "2", "archive_at_pop": "on"}],
    ids=["in_hand", "apart"],
)
def test_a_purge_lets_go_for_all_and_a_restore_is_for_all(use: Use, more: dict[str, str]) -> None:
    client = made(use, **more)
    payloads = client.payloads(1, 2, 3, 4)
    with client.database.transaction("push") as late:
        push.push(late, client.queue, payloads[0])
        assert popped(client, "search", 1) == []  # parked: it is not there yet
    client.push_many(payloads[1:])
    # The first is owed to both, has a number that is parked, and is held by who pops it.
    with client.database.transaction("pop") as other:
        assert len(pop.pop_many(other, client.queue.of("search"), 1, "worker")) == 1
        plan = planned(client, "purge")
        assert plan.count == 4
        assert any("all that have not popped it, of billing, search" in line for line in plan.lines)
        ledger = plan.run(Control(), lambda _: None).ledger
        assert ledger is not None
        assert (ledger.selected, ledger.out, ledger.into, ledger.skipped) == (4, 3, 3, {CHANGED: 1})
        other.rollback()
    for subscriber in ("billing", "search"):
        assert texts_of(popped(client, subscriber)) == payloads[:1]
    back = planned(client, "restore")
    assert back.count == 3
    assert any("every subscriber gets them" in line for line in back.lines)
    back.run_to_end()
    for subscriber in ("billing", "search"):
        assert texts_of(popped(client, subscriber)) == payloads[1:]
    # Their slots and numbers serve again, for more than a lap.
    for start in (10, 20, 30):
        lap = client.payloads(*range(start, start + 10))
        assert None not in client.push_many(lap)
        for subscriber in ("billing", "search"):
            assert texts_of(popped(client, subscriber)) == lap


def pushing(client: Client, pushed: list[object], full: threading.Event) -> Iterator[None]:
    for number in itertools.count():
        payload = client.payload(number)
        while client.push_many([payload]) == [None]:
            full.set()
            yield
        full.clear()
        pushed.append(payload)
        yield


@pytest.mark.long  # it purges until 200 messages were found
def test_a_purge_in_traffic_leaves_nobody_without_a_message(use: Use) -> None:
    # So many slots that a purge finds some that nobody has popped since it was planned.
    client = made(use, size="128")
    pushed: list[object] = []
    got: dict[str, list[object]] = {"billing": [], "search": []}
    full = threading.Event()

    def consumer(name: str) -> Iterator[None]:
        while True:
            if name == "billing" or full.is_set():  # the slower one, that there is what to purge
                got[name] += texts_of(popped(client, name, 3))
            yield

    purged, wanted = 0, 200
    with at_work(pushing(client, pushed, full), consumer("billing"), consumer("search")):
        for _ in range(1000):
            ledger = planned(client, "purge").run(Control(), lambda _: None).ledger
            purged += ledger.out if ledger else 0
            if purged >= wanted:
                break
    for name in got:
        while more := popped(client, name):
            got[name] += texts_of(more)
    away = [row["payload"] for row in archived(client)]
    assert len(away) == len(set(away)) == purged >= wanted
    for found in got.values():
        assert len(set(found)) == len(found)
        assert set(found) | set(away) == set(pushed)
    assert not set(got["billing"]) & set(got["search"]) & set(away), "archived, and owed to nobody"
