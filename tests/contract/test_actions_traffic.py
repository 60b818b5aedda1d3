"""Verbs on messages while producers and consumers are at work: nothing lost, doubled or too new."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime

import pytest
from sqlalchemy import text

from console import sql
from console.actions import execute, plan
from console.actions.execute import Batching
from console.audit import Outcome
from console.monitor.filters import parse
from tests.contract.client import Client, in_utc
from tests.contract.conftest import Use
from tests.contract.filled import seen
from tests.contract.installs import done_together
from tests.contract.messages import sender
from tests.contract.test_actions import action_for, entries
from tests.contract.traffic import Sender, Traffic
from tests.contract.variants import BEHAVIOURS, Variant

pytestmark = pytest.mark.thinned(3)

PUSHED = 240


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
    return [sender(str(message.payload)) for message in page.messages]


@pytest.mark.parametrize("variant", BEHAVIOURS, ids=str)
def test_nothing_is_lost_doubled_or_too_new(use: Use, variant: Variant) -> None:
    client = use(variant)
    traffic = Traffic(client, most=PUSHED // 2, failed=0.3, pause_seconds=0.0)
    verbs = [v for v in ("purge", "requeue", "archive") if v in client.queue.verbs]
    acted = Counter[str]()
    with traffic.going_on() as producing:
        while not all(one.done() for one in producing):
            for verb in verbs:
                acted[verb] += run(client, verb)

    archived = archive_of(client)
    came = Counter([*lying(client), *(sender(one.payload) for one in archived)])
    if "done" not in client.queue.states:  # else it still lies there
        came += traffic.finished
    assert len(traffic.pushed) == PUSHED
    traffic.balance(came)
    cutoffs = {entry.action_id: entry.cutoff for entry in entries(client)}
    for row in archived:
        cutoff = cutoffs[row.action_id or 0]
        assert row.since is not None
        assert cutoff is not None
        assert row.since <= cutoff, "newer than the cut-off"
    assert len(archived) == acted["purge"] + acted["archive"]


def run(client: Client, verb: str) -> int:
    """Plan and do it, at most so many; how many it was done with."""
    action = action_for(client, verb)
    made = plan.make(client.database, action, parse(["limit=7"]))
    done = execute.execute(client.database, action, made, batching=Batching(batch=3))
    assert done.outcome is Outcome.DONE
    assert done.ledger.balanced
    return done.ledger.out


@pytest.mark.thinned(3)
@pytest.mark.parametrize("variant", BEHAVIOURS, ids=str)
def test_two_operators_never_do_a_thing_twice(use: Use, variant: Variant) -> None:
    client = use(variant)
    payloads = [str(payload) for payload in client.payloads(*range(120))]
    assert None not in client.push_many(payloads)
    actions = [action_for(client, "purge") for _ in range(2)]
    made = [plan.make(client.database, action) for action in actions]
    assert [one.count for one in made] == [120, 120]
    ledgers = done_together(client.database, actions, made)
    assert sum(ledger.out for ledger in ledgers) == 120
    assert all(ledger.balanced for ledger in ledgers)
    assert sorted(row.payload for row in archive_of(client)) == sorted(payloads)
    assert lying(client) == []
