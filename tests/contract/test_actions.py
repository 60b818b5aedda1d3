"""Verbs on messages: the plan says what execute does, the ledger accounts for each, for every design."""

from collections import Counter
from typing import Any

import pytest

from console.actions import audit, execute, plan
from console.actions.archive import Archive
from console.actions.plan import Mover
from console.actions.purge import Purge
from console.actions.release import Release
from console.actions.requeue import Requeue
from console.monitor.filters import parse
from console.monitor.walked import Source
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.filled import ERROR, fill, ids_of, seen
from tests.contract.variants import ALL, BEHAVIOURS, Variant

MOVERS = {
    "purge": Purge,
    "archive": Archive,
    "requeue": Requeue,
    "release": lambda source: Release(source, stuck_after_seconds=0.0, force=True),
}


def mover(client: Client, verb: str, **options: Any) -> Mover:
    with client.database.transaction("look at the queue", read_only=True) as connection:
        source = Source.of(connection, client.database.product, client.queue)
    made: Mover = MOVERS[verb](source, **options)
    return made


def planned(client: Client, moving: Mover, *words: str) -> plan.Plan:
    return plan.make(client.database, moving, parse(words))


def contents(client: Client) -> Counter[str]:
    """How many messages are in each state, and in the archive."""
    found = Counter(message.state for message in seen(client, limit=1000).messages)
    return found + Counter({"archived": archived(client)})


def archived(client: Client) -> int:
    product = client.database.product
    from console import sql
    from console.actions.uninstall import _Archived

    with client.database.transaction("count") as connection:
        statement = sql.statements(product.name, "common")["archived"]
        (row,) = sql.fetch(connection, _Archived, statement, client.queue.scope(product))
    return row.archived


@pytest.mark.parametrize("verb", MOVERS)
@pytest.mark.parametrize("variant", ALL, ids=str)
def test_a_plan_is_what_execute_does(use: Use, variant: Variant, verb: str) -> None:
    client = use(variant)
    if verb not in client.queue.verbs or (verb == "release" and not client.queue.finishes):
        pytest.skip(f"{variant.design.name} has no {verb}")
    filled = fill(client)
    before = contents(client)
    moving = mover(client, verb)
    made = planned(client, moving)
    expected = sum(len(filled.ids.get(state, ())) for state in moving.states)
    assert made.count == expected > 0
    assert contents(client) == before, "a plan changes nothing"

    done = execute.execute(client.database, moving, made, pace=execute.Pace(batch=3))

    assert done.outcome is audit.Outcome.DONE
    assert (done.ledger.out, done.ledger.skipped_count) == (expected, 0)
    moved = {state: len(filled.ids.get(state, ())) for state in moving.states}
    target = "ready" if verb in {"requeue", "release"} else "archived"
    after = before - Counter(moved) + Counter({target: expected})
    assert contents(client) == after
    (entry,) = _entries(client)
    assert (entry.action_id, entry.verb, entry.done) == (done.action_id, verb, expected)
    assert (entry.planned, entry.outcome) == (expected, "done")
    assert not execute.execute(client.database, moving, planned(client, moving)).ledger.selected


def _entries(client: Client) -> list[audit.Entry]:
    with client.database.transaction("read the audit", read_only=True) as connection:
        wanted = audit.Wanted(client.queue.schema, client.queue.name)
        return audit.entries(connection, client.database.product, wanted)
