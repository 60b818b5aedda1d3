"""A pending queue: popped by due time and never before it; reschedule changes the due time."""

import random
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg.sql import SQL, Identifier
from sqlalchemy import Connection

from console.actions import execute, message_action
from console.actions.execute import Batching
from console.actions.push import PushExtras, push_many_with
from console.actions.reschedule import THE_SAME, Reschedule
from console.actions.rows import CHANGED, Batch
from console.catalog.audit import Ledger, Outcome
from console.designs import DESIGNS, Order
from console.errors import UsageError
from console.monitor.filters import parse
from console.monitor.scan_query import locks_next
from console.plan import Result
from tests.contract.client import Client, call
from tests.contract.conftest import Use
from tests.contract.filled import read_messages
from tests.contract.message_actions import source_of
from tests.contract.messages import sender
from tests.contract.traffic import Traffic
from tests.contract.variants import BEHAVIOURS, Variant, long_except
from tests.servers import connect, wait_until

DUE = [v for v in BEHAVIOURS if v.order is Order.DUE]
ARCHIVED = Variant(DESIGNS["pending"], {"archive_at_pop": "on"})


def in_hours(hours: float) -> datetime:
    return datetime.now(UTC) + timedelta(hours=hours)


def rows(client: Client, query: str, table: str = "") -> list[tuple[Any, ...]]:
    name = Identifier(client.queue.schema, client.queue.name + table)
    with closing(connect(client.url)) as connection:
        return connection.execute(SQL(query).format(name)).fetchall()


@pytest.mark.parametrize(
    "batch", [0, 3, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 100))]
)
@pytest.mark.parametrize("variant", DUE, ids=str)
def test_due_messages_are_popped_by_due_time_and_the_others_stay(
    use_postgresql: Use, variant: Variant, batch: int
) -> None:
    client = use_postgresql(variant)
    for hours in (-1, 5, -3, -2, 0.5, -4):
        call(client, "push", payload=str(hours), due_time=in_hours(hours))
    call(client, "push_many", payloads=["-5", "-5 too"], due_time=in_hours(-5))
    call(client, "push_many", payloads=["6", "7"], due_time=in_hours(6))
    client.push("now")
    client.push_many(["now too", "and now"])

    if batch:
        popped = client.drain(batch)
    else:
        popped = [m for m in (client.pop() for _ in range(20)) if m is not None]

    due = ["-5", "-5 too", "-4", "-3", "-2", "-1", "now", "now too", "and now"]
    assert [message.payload for message in popped] == due
    status = client.status()
    assert (status.ready, status.scheduled) == (0, 4)
    assert [row[0] for row in rows(client, "SELECT payload FROM {} ORDER BY due_time")] == [
        "0.5",
        "5",
        "6",
        "7",
    ]


def test_a_scheduled_message_becomes_due(use_postgresql: Use) -> None:
    client = use_postgresql(ARCHIVED)
    call(client, "push", payload="later", due_time=in_hours(1))
    assert client.pop() is None
    assert client.pop_many(5) == []
    rows(client, "UPDATE {} SET due_time = clock_timestamp() RETURNING 1")
    assert [message.payload for message in client.pop_many(5)] == ["later"]


def test_messages_that_become_due_during_pops_are_popped_by_due_time_and_never_early(
    use_postgresql: Use,
) -> None:
    client = use_postgresql(ARCHIVED)
    random_numbers, pushed = random.Random(0), []
    for number in range(60):
        with client.database.transaction("push") as connection:
            later = PushExtras(due_in_seconds=random_numbers.random() / 2)
            pushed += push_many_with(connection, client.queue, client.payloads(number), later)
    popped_ids: list[str] = []

    def all_popped() -> bool:
        while messages := client.pop_many(3):
            popped_ids.extend(message.id for message in messages)
        return len(popped_ids) == 60

    wait_until(all_popped, "every message became due")
    assert sorted(popped_ids) == sorted(map(str, pushed))
    due = rows(client, "SELECT due_at FROM {} ORDER BY archive_id", "_archive")
    assert due == sorted(due)
    early = "SELECT id FROM {} WHERE done_at < due_at OR due_at < pushed_at"
    assert rows(client, early, "_archive") == []


LATER = datetime(2036, 1, 2, 3, 4, 5, tzinfo=UTC)
PUSHED = 200
PAST = datetime(2020, 1, 1, tzinfo=UTC)


def rescheduled(client: Client, action: Reschedule, *words: str, batch: int = 3) -> Result:
    action_plan = message_action.select(client.database, action, parse(words))
    return execute.execute(client.database, action, action_plan, batching=Batching(batch=batch))


def push(client: Client, *numbers: int, due: datetime | None = None) -> None:
    """Push messages with this due time, or due now."""
    with client.database.transaction("push") as connection:
        payloads = client.payloads(*numbers)
        assert push_many_with(connection, client.queue, payloads, PushExtras(due_at=due))


def due_of(client: Client) -> Counter[datetime | None]:
    return Counter(message.due_at for message in read_messages(client, limit=1000).messages)


@pytest.mark.parametrize("variant", DUE, ids=str)
def test_reschedule_changes_the_selected_messages_only(client: Client) -> None:
    push(client, *range(10))
    push(client, *range(10, 17), due=LATER - timedelta(days=1))
    push(client, *range(17, 20), due=LATER + timedelta(days=1))
    before = due_of(client)
    action = Reschedule(source_of(client), at=LATER)
    action_plan = message_action.select(
        client.database, action, parse(["state=scheduled", "limit=8"])
    )
    assert (action_plan.count, action_plan.by_state) == (8, {"scheduled": 8})
    assert "they run after 10 other messages due before that" in "\n".join(action_plan.consequences)
    assert "due 2036-01-02 03:04:05 UTC, in " in action_plan.consequences[0]
    assert due_of(client) == before, "a plan changes nothing"

    done = execute.execute(client.database, action, action_plan, batching=Batching(batch=3))

    assert (done.outcome, done.ledger.out) == (Outcome.DONE, 8)
    assert action_plan.detail == "to 2036-01-02 03:04:05 UTC"
    assert due_of(client)[LATER] == 8
    rest = due_of(client) - Counter({LATER: 8})
    assert rest == before - Counter({LATER - timedelta(days=1): 7, LATER + timedelta(days=1): 1})
    again = message_action.select(client.database, action, parse(["state=scheduled"]))
    assert (again.count, again.excluded) == (2, {THE_SAME: 8})
    assert len(client.drain(100)) == 10


def test_messages_rescheduled_to_the_past_are_due_at_once(use: Use) -> None:
    client = use(Variant(DESIGNS["pending"], {}))
    push(client, 1, 2, due=LATER)
    push(client, 3)
    action = Reschedule(source_of(client), at=PAST)
    action_plan = message_action.select(client.database, action, parse(["state=scheduled"]))
    assert "which is in the past: due at once" in action_plan.consequences[0]
    assert "after 0 other messages" in action_plan.consequences[1]
    execute.execute(client.database, action, action_plan)
    assert [m.payload for m in client.drain(10)] == [*client.payloads(1, 2, 3)]


def test_a_relative_due_time_starts_at_the_cut_off_and_is_a_whole_second(use: Use) -> None:
    client = use(Variant(DESIGNS["pending"], {}))
    push(client, 1, 2)
    action = Reschedule(source_of(client), in_seconds=3600)
    action_plan = message_action.select(client.database, action)
    execute.execute(client.database, action, action_plan)
    (due,) = due_of(client)
    assert due is not None
    assert due.microsecond == 0
    assert timedelta(0) <= due - action_plan.cutoff - timedelta(hours=1) < timedelta(seconds=1)
    assert client.pop() is None


def test_messages_changed_since_they_were_chosen_are_skipped(use: Use) -> None:
    """Where they are chosen only when they are locked, the other operator came first."""
    client = use(Variant(DESIGNS["pending"], {}))
    push(client, 1, 2, 3, due=LATER)
    other = Reschedule(source_of(client), at=LATER + timedelta(hours=1))

    class Late(Reschedule):
        """Another operator acts before they are locked."""

        def apply(self, connection: Connection, chosen: Batch, action_id: int) -> Ledger:
            assert rescheduled(client, other, "limit=2").ledger.out == 2
            return super().apply(connection, chosen, action_id)

    late = Late(source_of(client), at=LATER + timedelta(hours=2))
    done = rescheduled(client, late, batch=100)
    changed = 0 if locks_next(client.database.product) else 2
    assert done.ledger.skipped.get(CHANGED, 0) == changed
    assert done.ledger.out == 3 - changed
    left = {LATER + timedelta(hours=1): changed, LATER + timedelta(hours=2): 3 - changed}
    assert due_of(client) == {due: count for due, count in left.items() if count}


@pytest.mark.parametrize("variant", long_except(DUE[:1], DUE), ids=str)
def test_rescheduling_under_traffic_pops_each_message_once(client: Client) -> None:
    """To later and back to now, during traffic."""
    traffic = Traffic(client, per_producer=PUSHED // 2, pause_seconds=0.0)
    traffic.push([(9, number) for number in range(30)])
    assert rescheduled(client, Reschedule(source_of(client), at=LATER)).ledger.out == 30
    with traffic.running() as producing:
        while not all(one.done() for one in producing):
            for to in ({"in_seconds": 3600}, {"at": LATER}, {"in_seconds": 0}):
                action = Reschedule(source_of(client), **to)
                rescheduled(client, action, "limit=30", batch=7)
    rescheduled(client, Reschedule(source_of(client), at=PAST))
    assert len(traffic.pushed) == PUSHED + 30
    rest = Counter(sender(one.payload) for one in client.drain(100))
    traffic.balance(traffic.finished + rest)


def test_impossible_reschedules_are_refused(use: Use) -> None:
    client, fifo = use(Variant(DESIGNS["pending"], {})), use(Variant(DESIGNS["fifo"], {}))
    source = source_of(client)
    with pytest.raises(UsageError, match="has no verb reschedule"):
        Reschedule(source_of(fifo), at=LATER)
    with pytest.raises(UsageError, match="A due time is missing"):
        Reschedule(source)
    with pytest.raises(UsageError, match="--at and --in exclude each other"):
        Reschedule(source, at=LATER, in_seconds=1.0)
    with pytest.raises(UsageError, match="beyond the year 9999"):
        rescheduled(client, Reschedule(source, in_seconds=1e12))
    with pytest.raises(UsageError, match="keep-newest"):
        rescheduled(client, Reschedule(source, at=LATER), "keep-newest=5")
