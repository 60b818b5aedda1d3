"""Requeue to another queue: an error becomes one new message there, or stays an error."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from console.actions import execute
from console.actions.execute import Batching
from console.actions.push import Payload
from console.actions.requeue import FULL, RequeueTo
from console.actions.rows import CHANGED
from console.catalog import Kind, audit
from console.catalog.audit import Ledger
from console.errors import RefusedError, UsageError
from console.plan import Result
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.filled import fill
from tests.contract.installs import execute_concurrently
from tests.contract.message_actions import (
    SMALL,
    WITH_CLAIMS,
    all_messages,
    planned,
    require_no_incomplete,
    run_one_batch,
    set_titles,
    source_of,
    stable_fields,
)
from tests.contract.variants import Variant, default

pytestmark = pytest.mark.thinned(3)


def to(client: Client, target: Client) -> RequeueTo:
    return RequeueTo(source_of(client), to=source_of(target))


def requeue(client: Client, target: Client, *words: str) -> Result:
    action = to(client, target)
    action_plan = planned(client, action, *words)
    return execute.execute(client.database, action, action_plan, batching=Batching(batch=3))


def failed(client: Client, *payloads: Payload) -> None:
    """Push messages and fail all of them."""
    assert None not in client.push_many(payloads)
    for message in client.pop_many(len(payloads)):
        assert client.fail(message, "no")


def in_state(client: Client, state: str) -> Counter[object]:
    return Counter(message.payload for message in all_messages(client) if message.state == state)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("target", SMALL, ids=lambda variant: f"to-{variant}")
@pytest.mark.parametrize("variant", WITH_CLAIMS, ids=str)
def test_errors_become_messages_of_the_other_queue(
    use: Use, variant: Variant, target: Variant
) -> None:
    client, other = use(variant), use(target)
    fill(client)
    failed(client, *client.payloads(*range(20, 26)))
    other.push_many(other.payloads(90, 91))
    there = in_state(other, "ready")
    before = all_messages(client)
    errors = Counter(message.payload for message in before if message.state == "error")
    action_plan = planned(client, to(client, other))
    assert action_plan.count == errors.total() == 8
    assert any("behind 2 that are ready" in line for line in action_plan.consequences)
    assert any("attempts start at 0" in line for line in action_plan.consequences)
    assert list(map(stable_fields, all_messages(client))) == list(map(stable_fields, before)), (
        "a plan changes nothing"
    )

    done = requeue(client, other)

    assert (done.outcome, done.ledger.out, action_plan.detail) == (
        audit.Outcome.DONE,
        8,
        f"to {other.queue.label}",
    )
    assert {m.id for m in all_messages(client)} == {m.id for m in before if m.state != "error"}
    assert in_state(other, "ready") == there + errors
    require_no_incomplete(client)
    require_no_incomplete(other)
    assert requeue(client, other).ledger == Ledger()
    popped = other.drain(3)
    assert {message.attempts for message in popped} == {1}
    assert len(popped) == 10


def test_titles_are_kept_and_the_plan_shows_the_push(use: Use) -> None:
    client, other = use(default("split")), use(default("status"))
    fill(client)
    set_titles(client)
    errors = [message for message in all_messages(client) if message.state == "error"]
    assert f"{other.queue.name}_push" in to(client, other).script()
    requeue(client, other)
    assert {(m.title, m.payload) for m in all_messages(other)} == {
        (m.title, m.payload) for m in errors
    }
    assert len({m.title for m in all_messages(other)}) == 2


@pytest.mark.parametrize(
    ("here", "there"), [("json", "text"), ("json", "json"), ("bytes", "bytes")]
)
def test_payloads_of_compatible_types_are_moved_unchanged(use: Use, here: str, there: str) -> None:
    client, other = use(default("claim", payload=here)), use(default("fifo", payload=there))
    failed(client, *client.payloads(*range(5)))
    errors = in_state(client, "error")
    assert requeue(client, other).ledger.out == 5
    assert in_state(other, "ready") == errors


@pytest.mark.thinned(2)
@pytest.mark.parametrize("target", [default("fifo"), default("ring")], ids=str)
@pytest.mark.parametrize("variant", WITH_CLAIMS, ids=str)
def test_only_valid_json_goes_from_text_into_json(
    use: Use, client: Client, target: Variant
) -> None:
    other = use(replace(target, given={**target.given, "payload": "json"}))
    good = ['{"a": 1}', "17", '"x"', "[]", '{"ü": "\\u00e9"}']
    bad = ["{", "", "{'a': 1}", "[1,]", "NaN", "1 2"]
    if client.database.product.name == "postgresql":
        bad[3] = '"\\u0000"'  # valid JSON, but not valid jsonb
    failed(client, good[0], *bad[:3], *good[1:4], *bad[3:], good[4])
    action = to(client, other)
    action_plan = planned(client, action)
    (reason,) = action_plan.excluded
    assert reason == f"no json payload, as {other.queue.name} requires"
    assert (action_plan.count, action_plan.excluded[reason]) == (5, 6)

    assert run_one_batch(client, action, action_plan.cutoff) == Ledger(11, 5, 5, failed={reason: 6})
    done = execute.execute(client.database, action, action_plan, batching=Batching(batch=4))
    assert done.ledger == Ledger(5, 5, 5)
    assert in_state(client, "error") == Counter(bad)
    popped = [json.loads(str(message.payload)) for message in other.drain()]
    assert popped == [json.loads(text) for text in good]


@pytest.mark.parametrize("variant", WITH_CLAIMS, ids=str)
def test_messages_over_the_size_limit_of_the_target_stay(use: Use, client: Client) -> None:
    limit = str(client.size_of("x" * 10))
    other = use(default("ring", max_bytes=limit))
    failed(client, "short", "ü" * 11, "x" * 10, "x" * 11)
    action = to(client, other)
    action_plan = planned(client, action)
    reason = f"over {other.queue.name}'s limit of {limit} bytes"
    assert (action_plan.count, action_plan.excluded) == (2, {reason: 2})
    assert run_one_batch(client, action, action_plan.cutoff) == Ledger(4, 2, 2, failed={reason: 2})
    other = use(default("ring", max_bytes=limit))
    assert requeue(client, other).ledger.out == 2
    assert in_state(client, "error") == Counter(["ü" * 11, "x" * 11])
    assert in_state(other, "ready") == Counter(["short", "x" * 10])


@pytest.mark.parametrize("variant", WITH_CLAIMS, ids=str)
def test_requeue_stops_when_the_target_ring_is_full_and_can_be_continued(
    use: Use, variant: Variant
) -> None:
    client, other = use(variant), use(default("ring"))
    size = int(other.queue.options["size"])
    failed(client, *client.payloads(*range(12)))
    filler = other.payloads(*range(100, 100 + size - 7))
    assert None not in other.push_many(filler)
    action = to(client, other)
    action_plan = planned(client, action)
    assert action_plan.obstacles == (f"{other.queue.name} needs 12 slots, 7 are free",)
    with pytest.raises(RefusedError, match="cannot be done"):
        execute.execute(client.database, action, action_plan)

    assert requeue(client, other, "limit=2").ledger.out == 2
    other.drain()
    action_plan = planned(client, action)
    assert (action_plan.count, action_plan.obstacles) == (10, ())
    assert None not in other.push_many(filler)
    done = execute.execute(client.database, action, action_plan, batching=Batching(batch=4))

    assert done.outcome is audit.Outcome.STOPPED
    assert "is full" in done.problem
    assert (done.ledger.out, dict(done.ledger.failed)) == (7, {FULL: 1})
    assert in_state(client, "error") == Counter(client.payloads(9, 10, 11))
    popped = [message.payload for message in other.drain()]
    assert Counter(popped) == Counter([*filler, *client.payloads(*range(2, 9))])
    assert requeue(client, other).ledger.out == 3


def test_a_failed_push_rolls_back_its_batch(use_postgresql: Use) -> None:
    """The target has a lower size limit than the catalog says."""
    client, other = (
        use_postgresql(default("status")),
        use_postgresql(default("fifo", max_bytes="5")),
    )
    failed(client, "one", "two", "three and more", "four")
    options = {**other.queue.options, "max_bytes": "unlimited"}
    mistaken = Client(other.database, replace(other.queue, options=options))
    with pytest.raises(UsageError, match="over the limit"):
        requeue(client, mistaken)
    assert len(all_messages(client)) == 4
    assert all_messages(other) == []
    assert requeue(client, other).ledger.out == 3


@pytest.mark.parametrize("variant", WITH_CLAIMS, ids=str)
def test_two_concurrent_requeues_move_each_message_once(use: Use, variant: Variant) -> None:
    client, other = use(variant), use(default("fifo"))
    payloads = client.payloads(*range(60))
    failed(client, *payloads)
    actions = [to(client, other) for _ in range(2)]
    plans = [planned(client, action) for action in actions]
    ledgers = execute_concurrently(client.database, actions, plans)
    assert sum(ledger.out for ledger in ledgers) == 60
    assert all(set(ledger.skipped) <= {CHANGED} for ledger in ledgers)
    assert all_messages(client) == []
    assert in_state(other, "ready") == Counter(payloads)


def test_errors_of_an_adopted_queue_can_be_moved_but_it_cannot_be_a_target(
    use_postgresql: Use,
) -> None:
    """Errors can go from an adopted queue to an installed one, never the other way."""
    client, other = use_postgresql(default("status")), use_postgresql(default("ring"))
    failed(client, *client.payloads(*range(3)))
    theirs = Client(client.database, replace(client.queue, kind=Kind.ADOPTED, options={}))
    assert requeue(theirs, other).ledger.out == 3
    assert in_state(other, "ready") == Counter(client.payloads(*range(3)))
    with pytest.raises(UsageError, match="adopted"):
        to(use_postgresql(default("claim")), theirs)


def test_incompatible_sources_and_targets_are_refused(use: Use) -> None:
    client, same = use(default("claim")), use(default("claim", payload="bytes"))
    with pytest.raises(UsageError, match="same queue"):
        to(client, client)
    for one, another in ((client, same), (same, client)):
        with pytest.raises(UsageError, match="cannot go into"):
            to(one, another)
    left = Client(same.database, replace(same.queue, kind=Kind.ARCHIVE))
    with pytest.raises(UsageError, match="only its archive"):
        to(client, left)
    with pytest.raises(UsageError, match="no verb requeue"):
        to(use(default("fifo")), client)
