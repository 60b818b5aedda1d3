"""Restore: purged messages are restored completely, once, in their former state; none is lost."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.sql import SQL, Identifier
from sqlalchemy import select

from console.actions import execute, push, relay
from console.actions.archive import Archive
from console.actions.execute import Batching
from console.actions.requeue import Release
from console.actions.restore import FULL, GONE, Restore
from console.catalog import audit
from console.catalog.audit import Ledger
from console.designs import Order
from console.errors import RefusedError
from console.monitor.message import Message
from console.plan import Result
from tests.contract.client import Client, call
from tests.contract.conftest import Use
from tests.contract.filled import fill
from tests.contract.installs import execute_concurrently
from tests.contract.message_actions import (
    SMALL,
    WITH_CLAIMS,
    all_messages,
    all_payloads,
    alter_archived,
    archive_of,
    archived,
    plan_restore,
    planned,
    purge,
    require_no_incomplete,
    restore,
    run,
    run_one_batch,
    set_titles,
    source_of,
    stable_fields,
)
from tests.contract.variants import BEHAVIOURS_AND_PAYLOADS, CORE, Variant, default, long_except
from tests.servers import connect

pytestmark = pytest.mark.thinned(3)

WITHOUT_BROKER = [variant for variant in BEHAVIOURS_AND_PAYLOADS if variant.design.name != "broker"]


def pushed_again(message: Message) -> tuple[object, ...]:
    """The fields that are kept by pushing a message again."""
    return (message.state, message.payload, message.due_at, message.title)


def keeps(client: Client, message: Message) -> bool:
    """Whether the message is restored unchanged."""
    return client.queue.design.keeps_row or message.state == "error"


@pytest.mark.parametrize(
    "variant", long_except([v for v in WITHOUT_BROKER if v in CORE], WITHOUT_BROKER), ids=str
)
def test_purged_messages_are_restored(client: Client, variant: Variant) -> None:
    fill(client)
    set_titles(client)
    if variant.order is Order.DUE:
        with client.database.transaction("push") as connection:
            for due_in, number in ((3600.0, 50), (7200.0, 51)):
                payloads = client.payloads(number)
                due = push.PushExtras(due_in_seconds=due_in)
                push.push_many_with(connection, client.queue, payloads, due)
    before = all_messages(client)
    scheduled = purge(client, "state=scheduled").ledger.out if variant.order is Order.DUE else 0
    assert scheduled == (2 if variant.order is Order.DUE else 0)
    taken = purge(client).ledger.out
    assert len(archived(client)) == taken + scheduled > scheduled
    left = {message.id for message in all_messages(client)}

    action_plan = plan_restore(client)
    assert action_plan.count == taken
    assert archived(client), "a plan changes nothing"
    done = restore(client)

    assert (done.outcome, done.ledger.out) == (audit.Outcome.DONE, taken)
    assert restore(client).ledger.out == scheduled
    assert archived(client) == []
    after = all_messages(client)
    assert Counter(map(pushed_again, after)) == Counter(map(pushed_again, before))
    kept = [stable_fields(message) for message in before if keeps(client, message)]
    assert [m for m in kept if m not in map(stable_fields, after)] == []
    assert left <= {message.id for message in after}
    require_no_incomplete(client)
    assert plan_restore(client).detail == "the archive has nothing from a purge"
    assert restore(client).ledger == Ledger()


@pytest.mark.parametrize("variant", SMALL, ids=str)
def test_restore_keeps_the_order(client: Client, variant: Variant) -> None:
    client.push_many(client.payloads(*range(10)))
    purge(client)
    restore(client)
    popped = [message.payload for message in client.drain(3)]
    expected = client.payloads(*range(10))
    if variant.order is Order.NONE:
        popped, expected = sorted(map(str, popped)), sorted(map(str, expected))
    assert popped == (expected[::-1] if variant.order is Order.LIFO else expected)


def test_restore_keeps_the_order_whatever_the_physical_order_of_rows(use_postgresql: Use) -> None:
    """Later rows are stored before the others, in space that vacuum freed."""
    client = use_postgresql(default("fifo"))
    client.push_many(client.payloads(*range(8)))
    client.pop_many(4)
    table = Identifier(client.queue.schema, client.queue.name)
    with connect(client.url) as connection:
        connection.execute(SQL("VACUUM (INDEX_CLEANUP ON) {}").format(table))
    client.push_many(client.payloads(20, 21))
    purge(client)
    restore(client)
    assert [m.payload for m in client.drain()] == client.payloads(4, 5, 6, 7, 20, 21)


@pytest.mark.parametrize("variant", WITH_CLAIMS, ids=str)
def test_an_id_that_is_taken_is_replaced(client: Client) -> None:
    """Taken by another archive row, or by a message in the queue; claims are restored as errors."""
    filled = fill(client)
    before = all_payloads(client)
    purge(client, "state=error")
    one, two = archived(client)
    alter_archived(client, two["archive_id"], id=one["id"])

    assert restore(client).ledger.out == 2

    ids = ids_of_all(client)
    assert str(one["id"]) in ids
    assert all_payloads(client) == before

    purge(client, "state=error")
    one, two = archived(client)
    in_use = next(m for m in all_messages(client) if m.state == "claimed").id
    key = one["id"].__class__
    alter_archived(client, one["archive_id"], id=key(in_use), state="claimed")
    alter_archived(client, two["archive_id"], id=key(in_use))
    action_plan = plan_restore(client)
    assert "as they were: 0 with their id, 2 with a new one" in action_plan.consequences
    assert "those that were claimed come back as errors" in action_plan.consequences

    assert restore(client).ledger.out == 2

    back = ids_of_all(client) - ids
    assert len(back) == 2
    errors = {message.id for message in all_messages(client) if message.state == "error"}
    assert errors == back
    assert not errors & {*filled.ids["error"], in_use}
    assert all_payloads(client) == before
    require_no_incomplete(client)
    # Later pushes and pops are not affected by the replaced ids.
    client.push_many(client.payloads(*range(70, 75)))
    assert len(client.drain(2)) >= 5
    if "relay" in client.queue.verbs:
        measure, _ = relay.measure(client.database, client.queue)
        assert (measure.parked, measure.voids) == (0, 0)


def ids_of_all(client: Client) -> set[str | None]:
    """The ids of all messages, which are unique."""
    ids = [message.id for message in all_messages(client)]
    assert len(set(ids)) == len(ids)
    return set(ids)


def test_done_messages_are_restored_as_done(use: Use) -> None:
    client = use(default("split"))
    fill(client)
    before = [stable_fields(message) for message in all_messages(client)]
    run(client, Archive(source_of(client), reason="Friday"))
    assert len(all_messages(client)) < len(before)
    assert plan_restore(client).count == restore(client).done == 0, "nothing was purged"
    restore(client, reason="friday")
    assert sorted(map(str, map(stable_fields, all_messages(client)))) == sorted(map(str, before))


def test_restore_stops_when_the_ring_is_full_and_can_be_continued(use: Use) -> None:
    client = use(default("ring"))
    size = int(client.queue.options["size"])
    client.push_many(client.payloads(*range(20)))
    purge(client)
    action_plan = plan_restore(client)
    assert f"needs 20 slots, {size - 20} are free" in action_plan.consequences
    assert any("goes behind 0 messages" in line for line in action_plan.consequences)
    client.drain()  # skips the void numbers, so that a push counts them as free
    filler = client.payloads(*range(100, 100 + size - 8))
    assert None not in client.push_many(filler)

    action_plan = plan_restore(client)
    assert action_plan.obstacles == ("needs 20 slots, 8 are free",)
    with pytest.raises(RefusedError, match="cannot be done"):
        execute.execute(client.database, Restore(source_of(client)), action_plan)
    assert len(archived(client)) == 20

    assert restore(client, "limit=5").ledger.out == 5
    client.drain()
    action = Restore(source_of(client))
    action_plan = planned(client, action)
    assert (action_plan.count, action_plan.obstacles) == (15, ())
    assert None not in client.push_many(filler)  # after the plan: 8 slots are left

    done = execute.execute(client.database, action, action_plan, batching=Batching(batch=6))
    assert done.outcome is audit.Outcome.STOPPED
    assert FULL in done.problem
    assert (done.ledger.out, dict(done.ledger.failed)) == (8, {FULL: 4})
    assert len(archived(client)) == 7

    popped = [message.payload for message in client.drain()]
    assert popped == [*filler, *client.payloads(*range(5, 13))]
    assert restore(client).ledger.out == 7
    assert [m.payload for m in client.drain()] == client.payloads(*range(13, 20))


def test_a_ring_full_of_purged_numbers_can_be_restored_after_a_relay(use: Use) -> None:
    """The plan names the solution, which works."""
    client = use(default("ring"))
    size = int(client.queue.options["size"])
    payloads = client.payloads(*range(size))
    client.push_many(payloads)
    purge(client, f"limit={size - 1}")
    action_plan = plan_restore(client)
    assert action_plan.obstacles == (
        f"needs {size - 1} slots, 0 are free; "
        f"a relay frees {size - 1} more, whose messages were purged",
    )
    relay.relay(client.database, client.queue, None)
    assert restore(client).ledger.out == size - 1
    assert [message.payload for message in client.drain()] == [payloads[-1], *payloads[:-1]]


def test_released_claims_of_a_ring_are_restored_as_released_claims(use: Use) -> None:
    client = use(default("ring", in_hand="on"))
    client.push_many(client.payloads(*range(6)))
    client.pop_many(3, "worker-1")
    run(client, Release(source_of(client), stuck_after_seconds=0.0, force=True))
    before = [stable_fields(message) for message in all_messages(client)]
    assert Counter(message.attempts for message in before) == {1: 3, None: 3}
    purge(client, "limit=3")
    action_plan = plan_restore(client)
    assert action_plan.consequences == ("as they were: 3 with their id, 0 with a new one",)
    restore(client)
    assert [stable_fields(message) for message in all_messages(client)] == before
    assert [message.payload for message in client.drain()] == client.payloads(*range(6))


def test_a_message_that_is_never_due_is_restored_as_never_due(use_postgresql: Use) -> None:
    client = use_postgresql(default("pending"))
    call(client, "push", payload="never", due_time="infinity")
    call(client, "push", payload="long ago", due_time="2001-02-03T04:05:06Z")
    before = [stable_fields(message) for message in all_messages(client)]
    assert purge(client).ledger.out == purge(client, "state=scheduled").ledger.out == 1
    assert {row["state"] for row in archived(client)} == {"ready", "scheduled"}
    for state in ("scheduled", "ready"):
        assert plan_restore(client).by_state == {state: 1}
        assert restore(client).done == 1
    assert [pushed_again(m) for m in all_messages(client)] == [pushed_again(m) for m in before]
    assert [message.payload for message in client.drain()] == ["long ago"]


@pytest.mark.parametrize("variant", [default("fifo"), default("claim"), default("ring")], ids=str)
def test_messages_over_a_lowered_size_limit_stay_in_the_archive(client: Client) -> None:
    sizes = [client.size_of(payload) for payload in client.payloads(*range(3))]
    client.push_many(client.payloads(*range(3)))
    purge(client)
    limit = sorted(sizes)[1]
    options = {**client.queue.options, "max_bytes": str(limit)}
    smaller = Client(client.database, replace(client.queue, options=options))

    action = Restore(source_of(smaller))
    action_plan = planned(smaller, action)
    assert action_plan.excluded == {f"over the queue's limit of {limit} bytes": 1}
    assert action_plan.count == 2
    assert run_one_batch(smaller, action, action_plan.cutoff) == Ledger(
        3, 2, 2, failed=dict(action_plan.excluded)
    )
    assert restore(smaller).ledger.out == 2
    assert len(archived(client)) == 1


@pytest.mark.parametrize("variant", [default("fifo"), default("claim")], ids=str)
def test_messages_over_the_limit_do_not_stand_in_for_those_that_were_planned(
    client: Client,
) -> None:
    """They are the first in the archive."""
    client.push_many(["x" * 500] * 10 + ["y"] * 10)
    purge(client)
    options = {**client.queue.options, "max_bytes": "100"}
    smaller = Client(client.database, replace(client.queue, options=options))
    assert restore(smaller).ledger == Ledger(10, 10, 10)
    assert len(archived(client)) == 10


@pytest.mark.parametrize("variant", [default("fifo"), default("split"), default("ring")], ids=str)
def test_two_concurrent_restores_restore_each_message_once(client: Client) -> None:
    client.push_many(client.payloads(*range(60)))
    before = all_payloads(client)
    purge(client)
    actions = [Restore(source_of(client)) for _ in range(2)]
    plans = [planned(client, action) for action in actions]
    ledgers = execute_concurrently(client.database, actions, plans)
    assert sum(ledger.out for ledger in ledgers) == 60
    assert all(set(ledger.skipped) <= {GONE} for ledger in ledgers)
    assert archived(client) == []
    assert all_payloads(client) == before


def test_an_archive_row_locked_by_another_session_is_skipped(use: Use) -> None:
    client = use(default("fifo"))
    client.push_many(client.payloads(*range(4)))
    purge(client)
    table = archive_of(client)
    action = Restore(source_of(client))
    action_plan = planned(client, action)
    with client.database.transaction("hold") as connection:
        first = select(table.c.archive_id).order_by(table.c.archive_id).limit(1)
        connection.execute(first.with_for_update())
        done = execute.execute(client.database, action, action_plan)
    assert (done.ledger.out, dict(done.ledger.skipped)) == (3, {GONE: 1})
    assert len(archived(client)) == 1


def test_messages_of_an_interrupted_batch_stay_in_the_archive(
    use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Completed batches are done and audited, the rest is unchanged."""
    client = use(default("status"))
    client.push_many(client.payloads(*range(10)))
    before = all_payloads(client)
    purge(client)
    action = Restore(source_of(client))
    action_plan = planned(client, action)
    calls = iter(range(100))
    apply_batch = action.apply

    def interrupted(*arguments: Any) -> Ledger:
        ledger = apply_batch(*arguments)
        if next(calls) == 2:
            raise KeyboardInterrupt
        return ledger

    monkeypatch.setattr(action, "apply", interrupted)
    with pytest.raises(KeyboardInterrupt):
        execute.execute(client.database, action, action_plan, batching=Batching(batch=3))
    assert (len(all_messages(client)), len(archived(client))) == (6, 4)
    assert restore(client).ledger.out == 4
    assert all_payloads(client) == before


def purge_all_but(client: Client, newest: int) -> Result:
    by_age = not source_of(client).why_not_by_age("ready")
    return purge(client, "state=ready", f"{'keep-newest' if by_age else 'limit'}={newest}")


Step = Callable[[Client], Result]
COUNTS = st.integers(1, 9)
STEPS = st.lists(
    st.one_of(
        COUNTS.map(lambda n: lambda client: purge(client, f"limit={n}")),
        COUNTS.map(lambda n: lambda client: purge_all_but(client, n)),
        COUNTS.map(lambda n: lambda client: restore(client, f"limit={n}")),
        COUNTS.map(lambda n: lambda client: restore(client, "newer=1h", f"limit={n}")),
        st.just(restore),
        st.just(purge),
    ),
    max_size=6,
)


@pytest.mark.parametrize("variant", SMALL, ids=str)
def test_no_sequence_of_purges_and_restores_loses_or_duplicates_a_message(client: Client) -> None:
    fill(client)
    before = all_payloads(client)

    @settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
    @given(STEPS)
    def check_steps(steps: list[Step]) -> None:
        for step in steps:
            step(client)
            assert all_payloads(client) == before
            require_no_incomplete(client)

    check_steps()
