"""Verbs on messages, for every design: the plan is what execute does, and each is accounted for."""

from collections import Counter

import pytest

from console import sql
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
from tests.contract.filled import fill, seen
from tests.contract.variants import TELLING, Variant

pytestmark = pytest.mark.thinned(3)

VERBS = ("purge", "archive", "requeue", "release")


def mover(client: Client, verb: str) -> Mover:
    """The verb on the queue; release takes every claim."""
    with client.database.transaction("look at the queue", read_only=True) as connection:
        source = Source.of(connection, client.database.product, client.queue)
    match verb:
        case "purge":
            return Purge(source)
        case "archive":
            return Archive(source)
        case "requeue":
            return Requeue(source)
    return Release(source, stuck_after_seconds=0.0, force=True)


def planned(client: Client, moving: Mover, *words: str) -> plan.Plan:
    return plan.make(client.database, moving, parse(words))


def contents(client: Client) -> Counter[str]:
    """How many messages are in each state, and in the archive."""
    found = Counter(message.state for message in seen(client, limit=1000).messages)
    return found + Counter({"archived": archived(client)})


def archived(client: Client) -> int:
    product = client.database.product
    statement = sql.statements(product.name, "common")["archived"]
    scope = client.queue.scope(product)
    with client.database.transaction("count", read_only=True) as connection:
        return int(connection.execute(sql.query(statement, product.dialect, scope)).scalar_one())


def having() -> list[tuple[Variant, str]]:
    """Each variant with each of the verbs that it has on messages: others release a session."""
    return [
        (variant, verb)
        for variant in TELLING
        for verb in VERBS
        if verb in variant.design.verbs_with(variant.options)
        and (verb not in {"requeue", "release"} or variant.finishes)
    ]


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("variant", "verb"), having(), ids=str)
def test_a_plan_is_what_execute_does(use: Use, variant: Variant, verb: str) -> None:
    client = use(variant)
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
    (entry,) = [entry for entry in entries(client) if entry.verb == verb]
    assert (entry.action_id, entry.verb, entry.done) == (done.action_id, verb, expected)
    assert (entry.planned, entry.outcome) == (expected, "done")
    assert not execute.execute(client.database, moving, planned(client, moving)).ledger.selected


def entries(client: Client) -> list[audit.Entry]:
    with client.database.transaction("read the audit", read_only=True) as connection:
        wanted = audit.Wanted(client.queue.schema, client.queue.name)
        return audit.entries(connection, client.database.product, wanted)
