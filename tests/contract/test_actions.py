"""Verbs on messages, for every design: execute does what is planned, each message is counted."""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from console.actions import execute
from console.actions.archive import Archive, Purge
from console.actions.execute import Batching
from console.actions.message_action import MessageAction
from console.actions.requeue import Release, Requeue
from console.catalog import audit
from console.catalog.audit import Outcome
from console.figures import COUNTED
from console.formats import count
from console.monitor.sample import take_sample
from console.monitor.snapshot import snapshot
from tests.contract.client import Client, in_utc
from tests.contract.filled import fill, read_messages
from tests.contract.installs import execute_concurrently
from tests.contract.message_actions import (
    all_messages,
    archived,
    entries,
    plan_lines,
    planned,
    source_of,
)
from tests.contract.messages import sender
from tests.contract.traffic import Sender, Traffic
from tests.contract.variants import BEHAVIOURS, BEHAVIOURS_AND_PAYLOADS, Variant

pytestmark = pytest.mark.thinned(3)

VERBS = ("purge", "archive", "requeue", "release")


def action_for(client: Client, verb: str) -> MessageAction:
    """The verb on the queue; release takes every claim."""
    source = source_of(client)
    match verb:
        case "purge":
            return Purge(source)
        case "archive":
            return Archive(source)
        case "requeue":
            return Requeue(source)
    return Release(source, stuck_after_seconds=0.0, force=True)


def contents(client: Client) -> Counter[str]:
    """How many messages are in each state, and in the archive."""
    found = Counter(message.state for message in read_messages(client, limit=1000).messages)
    return found + Counter({"archived": len(archived(client))})


def variants_with_verbs() -> Iterator[tuple[Variant, str]]:
    """Each variant with each of its verbs on messages: designs without claims release sessions.

    The first verb differs between variants, as the short tier takes few others.
    """
    for number, variant in enumerate(BEHAVIOURS_AND_PAYLOADS):
        verbs = [
            verb
            for verb in VERBS
            if verb in variant.design.verbs_with(variant.options)
            and (verb not in {"requeue", "release"} or variant.finishes)
        ]
        first = number % len(verbs)
        yield from ((variant, verb) for verb in (*verbs[first:], *verbs[:first]))


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("variant", "verb"), variants_with_verbs(), ids=str)
def test_execute_does_what_the_plan_says(client: Client, verb: str) -> None:
    filled = fill(client)
    before = contents(client)
    action = action_for(client, verb)
    action_plan = planned(client, action)
    expected = sum(len(filled.ids.get(state, ())) for state in action.states)
    assert action_plan.count == expected > 0
    assert contents(client) == before, "a plan changes nothing"

    done = execute.execute(client.database, action, action_plan, batching=execute.Batching(batch=3))

    assert done.outcome is audit.Outcome.DONE
    assert (done.ledger.out, done.ledger.skipped_count) == (expected, 0)
    moved = {state: len(filled.ids.get(state, ())) for state in action.states}
    target = "ready" if verb in {"requeue", "release"} else "archived"
    after = before - Counter(moved) + Counter({target: expected})
    assert contents(client) == after
    (entry,) = entries(client, verb)
    assert (entry.action_id, entry.verb, entry.done) == (done.action_id, verb, expected)
    assert (entry.planned, entry.outcome) == (expected, "done")
    assert not execute.execute(client.database, action, planned(client, action)).ledger.selected


@pytest.mark.parametrize("variant", [v for v in BEHAVIOURS_AND_PAYLOADS if v.finishes], ids=str)
def test_a_plan_with_a_limit_describes_only_the_selected_messages(client: Client) -> None:
    client.push_many(client.payloads(*range(9)))
    for taken in client.pop_many(9):
        assert client.fail(taken, "no route")
    action = action_for(client, "requeue")
    every = planned(client, action)
    failed_at = sorted(m.done_at for m in read_messages(client).messages if m.done_at is not None)
    three = planned(client, action, "limit=3")
    assert (three.count, three.by_state) == (3, {"error": 3})
    assert (three.totals["error"].count, three.totals["error"].estimated) == (9, False)
    assert "3 messages (of 9 error)" in plan_lines(client, action, "limit=3")
    assert three.oldest_seconds == pytest.approx((three.cutoff - failed_at[0]).total_seconds())
    assert three.newest_seconds == pytest.approx((three.cutoff - failed_at[2]).total_seconds())
    if every.payload_bytes is not None and three.payload_bytes is not None:
        assert 0 < three.payload_bytes < every.payload_bytes
    narrow = planned(client, action, "limit=3", "error~route")
    assert (narrow.count, narrow.totals) == (3, {})
    assert "the first that match; further matches were not counted" in plan_lines(
        client, action, "limit=3", "error~route"
    )
    kept = planned(client, action, "keep-newest=7")
    assert (kept.count, kept.totals["error"].count) == (2, 9)
    assert kept.newest_seconds == pytest.approx((kept.cutoff - failed_at[1]).total_seconds())
    done = execute.execute(client.database, action, three)
    assert done.ledger.out == 3


@pytest.mark.parametrize(
    "variant", [v for v in BEHAVIOURS_AND_PAYLOADS if v.design.name in {"fifo", "status"}], ids=str
)
def test_the_total_in_a_plan_with_a_limit_equals_that_of_a_sample(client: Client) -> None:
    deep = COUNTED + 50
    client.push_many(client.payloads(*range(deep)))
    (sample,) = take_sample(client.database, only=[client.queue]).queues
    shown = snapshot(sample, client.database.label)
    total = planned(client, action_for(client, "purge"), "limit=3", "state=ready").totals["ready"]
    assert (total.count, total.estimated) == (shown.ready, "ready" in shown.estimated)
    assert total.estimated
    assert total.text == count(deep, estimated=True)


PUSHED = 240


def archived_by_actions(client: Client) -> list[dict[str, Any]]:
    return [row for row in archived(client) if row["reason"] != "pop"]


def senders(client: Client) -> list[Sender]:
    """Senders of all messages in the queue, in any state."""
    return [sender(str(message.payload)) for message in all_messages(client)]


@pytest.mark.parametrize("variant", BEHAVIOURS, ids=str)
def test_actions_under_traffic_lose_nothing_and_respect_the_cut_off(client: Client) -> None:
    traffic = Traffic(client, per_producer=PUSHED // 2, failed=0.3, pause_seconds=0.0)
    verbs = [v for v in ("purge", "requeue", "archive") if v in client.queue.verbs]
    acted = Counter[str]()
    with traffic.running() as producing:
        while not all(one.done() for one in producing):
            for verb in verbs:
                acted[verb] += act_on_seven(client, verb)

    rows = archived_by_actions(client)
    found = Counter([*senders(client), *(sender(row["payload"]) for row in rows)])
    if "done" not in client.queue.states:  # else it is still in the queue
        found += traffic.finished
    assert len(traffic.pushed) == PUSHED
    traffic.balance(found)
    cutoffs = {entry.action_id: entry.cutoff for entry in entries(client)}
    for row in rows:
        since = in_utc(row["done_at" if row["state"] in {"done", "error"} else "pushed_at"])
        cutoff = cutoffs[row["action_id"]]
        assert isinstance(since, datetime)
        assert cutoff is not None
        assert since <= cutoff, "newer than the cut-off"
    assert len(rows) == acted["purge"] + acted["archive"]


def act_on_seven(client: Client, verb: str) -> int:
    """Plan and run it for at most seven messages; the number done."""
    action = action_for(client, verb)
    action_plan = planned(client, action, "limit=7")
    done = execute.execute(client.database, action, action_plan, batching=Batching(batch=3))
    assert done.outcome is Outcome.DONE
    assert done.ledger.balanced
    return done.ledger.out


@pytest.mark.thinned(3)
@pytest.mark.parametrize("variant", BEHAVIOURS, ids=str)
def test_two_concurrent_purges_archive_each_message_once(client: Client) -> None:
    payloads = [str(payload) for payload in client.payloads(*range(120))]
    assert None not in client.push_many(payloads)
    actions = [action_for(client, "purge") for _ in range(2)]
    plans = [planned(client, action) for action in actions]
    assert [plan.count for plan in plans] == [120, 120]
    ledgers = execute_concurrently(client.database, actions, plans)
    assert sum(ledger.out for ledger in ledgers) == 120
    assert all(ledger.balanced for ledger in ledgers)
    assert sorted(row["payload"] for row in archived_by_actions(client)) == sorted(payloads)
    assert all_messages(client) == []
