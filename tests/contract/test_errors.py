"""Error groups, on every engine."""

from collections import Counter

import pytest

from console.actions import execute
from console.actions.archive import Archive
from console.actions.restore import Restore
from console.monitor.errors import error_groups
from tests.contract.client import Client
from tests.contract.filled import all_pages, ids_of, read_messages
from tests.contract.message_actions import plan_lines, planned
from tests.contract.test_actions import action_for, contents
from tests.contract.variants import BEHAVIOURS

WITH_CLAIMS = [variant for variant in BEHAVIOURS if variant.finishes]


@pytest.mark.thinned(3, payload=False)
@pytest.mark.parametrize("variant", WITH_CLAIMS, ids=str)
def test_errors_are_grouped_by_their_wording(client: Client) -> None:
    texts = [f"order {n} refused at 10:20:{n:02}" for n in range(10)] + ["no disk", ""]
    client.push_many(client.payloads(*range(len(texts))))
    for taken, text in zip(client.pop_many(50), texts, strict=True):
        assert client.fail(taken, text)
    found = error_groups(client.database, client.queue)
    assert (found.counted, found.ungrouped, found.complete) == (12, 0, True)
    assert [(group.wording, group.count) for group in found.groups] == [
        ("order <n> refused at <time>", 10),
        ("", 1),
        ("no disk", 1),
    ]
    first = found.groups[0]
    assert first.first_at is not None
    assert first.last_at is not None
    assert first.first_at < first.last_at
    assert (first.attempts_least, first.attempts_most) == (1, 1)
    assert first.sample == texts[9]
    assert first.sample_id in ids_of(read_messages(client, f"error~{texts[9]}"))


REFUSED = [f"HTTP 503 of\n  order {n}\tat 10:20:{n:02}: 'shop {n}'" for n in range(7)]
BLOCKED = [f"HTTP 451 of order {n} at 10:20:{n:02}: 'shop {n}'" for n in range(5)]


def failed(client: Client, texts: list[str]) -> dict[str, str]:
    """Messages that failed with these texts: their ids, each with its text."""
    client.push_many(client.payloads(*range(len(texts))))
    taken = client.pop_many(len(texts))
    for message, text in zip(taken, texts, strict=True):
        assert client.fail(message, text)
    return {popped_message.id: text for popped_message, text in zip(taken, texts, strict=True)}


def key_of(client: Client, words: str) -> str:
    (group,) = [g for g in error_groups(client.database, client.queue).groups if words in g.wording]
    return f"error-group={group.key}"


@pytest.mark.parametrize("variant", WITH_CLAIMS, ids=str)
def test_an_error_group_can_be_listed_requeued_archived_and_restored_alone(client: Client) -> None:
    texts = failed(client, [*REFUSED, *BLOCKED])
    key = key_of(client, "HTTP 503 of order")
    mine = {id_ for id_, text in texts.items() if text in REFUSED}
    assert {m.id for m in all_pages(client, key, limit=3)} == mine
    assert {m.id for m in all_pages(client, key, "newer=4h", limit=50)} == mine

    action = action_for(client, "requeue")
    action_plan = planned(client, action, key)
    assert (action_plan.count, action_plan.complete, len(action_plan.targets)) == (
        len(mine),
        True,
        len(mine),
    )
    assert "each by its id, attempts and error" in plan_lines(client, action, key)
    done = execute.execute(client.database, action, action_plan, batching=execute.Batching(batch=3))
    assert (done.ledger.out, done.ledger.selected) == (len(mine), len(mine))
    assert set(ids_of(read_messages(client, "state=error"))) == set(texts) - mine
    # Messages that failed again since the plan are skipped, and so are new ones of the group.
    for taken in client.pop_many(len(mine)):
        assert client.fail(taken, "no disk")
    failed(client, REFUSED[3:])
    again = execute.execute(client.database, action, action_plan)
    assert (again.ledger.out, again.ledger.skipped_count) == (0, len(mine))
    others = len(mine) + len(REFUSED[3:])
    assert contents(client) == Counter(error=others + len(BLOCKED))

    blocked = key_of(client, "HTTP 451")
    assert planned(client, action_for(client, "purge"), blocked).count == len(BLOCKED)
    archiving = action_for(client, "archive")
    assert isinstance(archiving, Archive)
    execute.execute(client.database, archiving, planned(client, archiving, blocked))
    assert contents(client) == Counter(error=others, archived=len(BLOCKED))
    execute.execute(client.database, archiving, planned(client, archiving, "state=error"))
    back = Restore(archiving.source, reason="")
    action_plan = planned(client, back, blocked)
    assert (action_plan.count, action_plan.targets) == (len(BLOCKED), ())
    assert execute.execute(client.database, back, action_plan).ledger.out == len(BLOCKED)
    assert {m.error for m in read_messages(client, "state=error").messages} == set(BLOCKED)


@pytest.mark.parametrize("variant", WITH_CLAIMS[:1], ids=str)
def test_a_plan_says_if_the_search_for_an_error_group_is_incomplete(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed(client, [*BLOCKED, *REFUSED])
    monkeypatch.setattr("console.monitor.scan_query.READ_AT_ONCE", 2)
    monkeypatch.setattr("console.monitor.scan_query.READ_MOST", 2)
    monkeypatch.setattr("console.actions.rows.MOST_ERRORS", 8)
    action = action_for(client, "requeue")
    key = key_of(client, "HTTP 503")
    action_plan = planned(client, action, key)
    assert not action_plan.complete
    assert 0 < action_plan.count < len(REFUSED)
    assert "the search was cut short: there may be more of this group" in plan_lines(
        client, action, key
    )
    assert execute.execute(client.database, action, action_plan).ledger.out == action_plan.count
    rest = planned(client, action, key, "limit=1")
    assert (rest.count, rest.complete) == (1, True)
