"""Verbs on messages while producers and consumers are at work: nothing lost, doubled or too new."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime

import pytest
from sqlalchemy import text

from console import sql
from console.actions import execute, plan
from console.actions.audit import Outcome
from console.actions.execute import Pace
from console.monitor.filters import parse
from tests.contract.client import Client, in_utc
from tests.contract.conftest import Use
from tests.contract.filled import seen
from tests.contract.test_actions import entries, mover
from tests.contract.variants import BEHAVIOURS, Variant

pytestmark = pytest.mark.thinned(3)

PUSHED = 240
Sender = tuple[int, int]


@dataclass
class Traffic:
    """Two producers and two consumers; what they were told."""

    client: Client
    pushed: list[Sender] = field(default_factory=list)
    finished: list[Sender] = field(default_factory=list)
    """Gone from the queue by a consumer's doing."""
    over: threading.Event = field(default_factory=threading.Event)

    def produce(self, producer: int) -> None:
        kind = self.client.queue.options["payload"]
        assert kind == "text"
        left = list(range(PUSHED // 2))
        while left:
            batch = left[:5]
            payloads = [f"{producer}/{number}" for number in batch]
            stored = self.client.push_many(payloads)
            taken = [n for n, id_ in zip(batch, stored, strict=True) if id_ is not None]
            self.pushed += [(producer, number) for number in taken]
            left = left[len(taken) :]

    def consume(self) -> None:
        queue = self.client.queue
        while not self.over.is_set():
            for number, message in enumerate(self.client.pop_many(3, "worker")):
                if not queue.finishes:
                    self.finished.append(told(message.payload))
                elif number == 1:
                    self.client.fail(message, "time-out")
                elif self.client.complete(message) and "done" not in queue.states:
                    self.finished.append(told(message.payload))


def told(payload: object) -> Sender:
    producer, _, number = str(payload).partition("/")
    return int(producer), int(number)


@dataclass(frozen=True)
class Archived:
    payload: str
    state: str
    since: datetime | None
    reason: str
    action_id: int | None


def archive_of(client: Client) -> list[Archived]:
    """What lies in the archive, but for what pops wrote there."""
    dialect = client.database.product.dialect
    names = (client.queue.schema, f"{client.queue.name}_archive")
    table = ".".join(sql.quote_identifier(dialect, name) for name in names)
    since = "CASE WHEN state IN ('done', 'error') THEN done_at ELSE pushed_at END"
    query = f"SELECT payload, state, {since}, reason, action_id FROM {table} WHERE reason <> 'pop'"
    with client.database.transaction("read the archive", read_only=True) as connection:
        rows = connection.execute(text(query.replace(":", "\\:"))).fetchall()
    return [Archived(*map(in_utc, row)) for row in rows]  # type: ignore[arg-type]


def lying(client: Client) -> list[Sender]:
    """Everything that is in the queue, in any state."""
    page = seen(client, limit=1000, payload_bytes=100)
    assert page.next is None
    return [told(message.payload) for message in page.messages]


@pytest.mark.parametrize("variant", BEHAVIOURS, ids=str)
def test_nothing_is_lost_doubled_or_too_new(use: Use, variant: Variant) -> None:
    client = use(variant)
    traffic = Traffic(client)
    verbs = [v for v in ("purge", "requeue", "archive") if v in client.queue.verbs]
    acted = Counter[str]()
    with ThreadPoolExecutor(4) as pool:
        producing = [pool.submit(traffic.produce, n) for n in range(2)]
        consuming = [pool.submit(traffic.consume) for _ in range(2)]
        try:
            while not all(one.done() for one in producing):
                for verb in verbs:
                    acted[verb] += run(client, verb)
                assert not any(one.done() for one in consuming)
        finally:
            traffic.over.set()
        for one in (*producing, *consuming):
            one.result()

    archived = archive_of(client)
    left = lying(client)
    came = Counter([*traffic.finished, *left, *(told(one.payload) for one in archived)])
    assert {who: count for who, count in came.items() if count > 1} == {}, "doubled"
    assert set(traffic.pushed) - set(came) == set(), "lost"
    assert set(came) - set(traffic.pushed) == set(), "from nowhere"
    cutoffs = {entry.action_id: entry.cutoff for entry in entries(client)}
    for row in archived:
        cutoff = cutoffs[row.action_id or 0]
        assert row.since is not None
        assert cutoff is not None
        assert row.since <= cutoff, "newer than the cut-off"
    assert len(archived) == acted["purge"] + acted["archive"]


def run(client: Client, verb: str) -> int:
    """Plan and do it, at most so many; how many it was done with."""
    moving = mover(client, verb)
    made = plan.make(client.database, moving, parse(["limit=7"]))
    done = execute.execute(client.database, moving, made, pace=Pace(batch=3))
    assert done.outcome is Outcome.DONE
    assert done.ledger.balanced
    return done.ledger.out


@pytest.mark.thinned(3)
@pytest.mark.parametrize("variant", BEHAVIOURS, ids=str)
def test_two_operators_never_do_a_thing_twice(use: Use, variant: Variant) -> None:
    client = use(variant)
    payloads = [f"0/{number}" for number in range(120)]
    assert None not in client.push_many(payloads)
    movers = [mover(client, "purge") for _ in range(2)]
    made = [plan.make(client.database, moving) for moving in movers]
    assert [one.count for one in made] == [120, 120]
    with ThreadPoolExecutor(2) as pool:
        done = list(
            pool.map(
                lambda pair: execute.execute(client.database, *pair, pace=Pace(batch=4)),
                zip(movers, made, strict=True),
            )
        )
    assert sum(one.ledger.out for one in done) == 120
    assert all(one.ledger.balanced for one in done)
    assert sorted(row.payload for row in archive_of(client)) == sorted(payloads)
    assert lying(client) == []
