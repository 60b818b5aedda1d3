"""Who waits for whom at a queue, on every engine: holders and waiters that are really there."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest

from console.monitor.activity import Activity, find_objects, sample_activity
from console.monitor.waits import Wait, watch
from tests.contract.client import Client, call_pop
from tests.contract.conftest import Use
from tests.contract.variants import BEHAVIOURS, DEFAULTS, Variant, mostly
from tests.servers import wait_until

pytestmark = pytest.mark.usefixtures("sees_sessions")

WAITING = [variant for variant in BEHAVIOURS if variant.waits]
SKIPPING = [
    variant for variant in BEHAVIOURS if not variant.waits and not variant.design.waits_itself
]


@contextmanager
def popping(client: Client, consumers: int) -> Iterator[None]:
    """Consumers that pop one message each, side by side; at the end they must be done."""
    threads = [threading.Thread(target=client.pop, daemon=True) for _ in range(consumers)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join(60.0)
            assert not thread.is_alive()


@contextmanager
def held(client: Client) -> Iterator[None]:
    """A transaction that has popped a message, until the end."""
    with client.database.transaction("pop") as connection:
        assert call_pop(connection, client.queue)
        yield


def seen(client: Client, enough: Callable[[Activity], bool]) -> Activity:
    """A sample of the queue's sessions in which there is enough to see."""
    objects = find_objects(client.database, [client.queue])
    activity = Activity(())

    def is_enough() -> bool:
        nonlocal activity
        activity = sample_activity(client.database, objects)
        return enough(activity)

    wait_until(is_enough, "what is waited for here")
    return activity


def at(client: Client, waits: Sequence[Wait]) -> dict[str | None, Wait]:
    """The waits at the queue, by name."""
    return {wait.wait: wait for wait in waits if wait.queue == client.queue}


def push_some(client: Client) -> None:
    client.push_many(client.payloads(*range(5)))


@pytest.mark.parametrize("variant", WAITING, ids=str)
def test_who_holds_the_head_is_the_root_and_the_others_wait_below(
    use: Use, variant: Variant
) -> None:
    client = use(variant)
    push_some(client)
    with ExitStack() as consumers, held(client):
        consumers.enter_context(popping(client, 3))
        activity = seen(client, lambda a: a.waiting == 3)
        report = watch(client.database, [client.queue], seconds=0.5, interval_seconds=0.05)
    (tree,) = activity.trees
    root = activity.by_key[tree.key]
    assert (tree.size, tree.cut) == (4, False)
    assert (root.state, root.wait, root.blocked_by) == ("idle in transaction",) * 2 + ((),)
    assert (client.queue.schema, client.queue.name) in root.queues
    assert root.transaction_seconds is not None
    waiters = [activity.by_key[node.key] for node in tree.waiters]
    assert waiters
    assert all(waiter.wait_kind == "Lock" and waiter.waits_for for waiter in waiters)
    assert all((waiter.wait_seconds or 0.0) < 60.0 for waiter in waiters)
    assert report.activity.trees
    assert report.samples_with_waiters == report.samples >= 1
    found = at(client, report.waits)
    idle = found.pop("idle in transaction")
    assert (idle.kind, idle.share, idle.sessions, idle.average) == ("Client", 1.0, 1, 1.0)
    locks = [wait for wait in found.values() if wait.share is not None]
    assert {wait.kind for wait in locks} == {"Lock"}
    assert sum(wait.average or 0.0 for wait in locks) == pytest.approx(3.0)
    assert all(wait.meaning for wait in (idle, *locks))


@pytest.mark.long
@pytest.mark.parametrize("variant", mostly(DEFAULTS, SKIPPING), ids=str)
def test_where_locked_rows_are_skipped_the_holder_is_seen_and_nobody_waits(
    use: Use, variant: Variant
) -> None:
    client = use(variant)
    push_some(client)
    objects = find_objects(client.database, [client.queue])
    assert not sample_activity(client.database, objects).relevant_sessions, "between transactions"
    with held(client):
        with popping(client, 2):
            pass
        activity = seen(client, lambda a: bool(a.relevant_sessions))
        (holder,) = activity.relevant_sessions
    assert (holder.state, activity.trees) == ("idle in transaction", ())
    assert {(lock.schema, lock.queue) for lock in holder.locks} == {
        (client.queue.schema, client.queue.name)
    }


@pytest.mark.parametrize("variant", SKIPPING[:1] + WAITING[:1], ids=str)
def test_a_session_counts_for_the_queues_that_it_touches_and_no_others(
    use: Use, variant: Variant
) -> None:
    touched, other = use(variant), use(variant)
    push_some(touched)
    with held(touched):
        report = watch(touched.database, [touched.queue, other.queue], seconds=0)
    assert at(touched, report.waits)
    assert not at(other, report.waits)
    assert [wait.wait for wait in report.waits if wait.queue is None] == ["idle in transaction"]
