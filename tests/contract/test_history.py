"""The option history: the earlier attempts of a message, in its own row."""

import re
from dataclasses import replace

import pytest

from console.actions import execute, upgrade
from console.actions.requeue import Release, Requeue
from console.designs import DESIGNS
from console.errors import UsageError
from console.monitor.errors import past_attempt
from console.monitor.message import Message
from console.monitor.messages import follow, message
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.filled import read_messages
from tests.contract.message_actions import source_of
from tests.contract.variants import SMALL_RING, Variant

ATTEMPTS_KEPT = 3
WITH_HISTORY = [
    Variant(DESIGNS["claim"], {"history": str(ATTEMPTS_KEPT)}),
    Variant(DESIGNS["status"], {"history": str(ATTEMPTS_KEPT)}),
    Variant(DESIGNS["split"], {"history": str(ATTEMPTS_KEPT)}),
    Variant(DESIGNS["ring"], {"history": str(ATTEMPTS_KEPT), "in_hand": "on", "size": SMALL_RING}),
]


def requeued(client: Client) -> None:
    action = Requeue(source_of(client))
    assert execute.plan(client.database, action).run_to_end().done


def released(client: Client) -> None:
    action = Release(source_of(client), stuck_after_seconds=0.0, force=True)
    assert execute.plan(client.database, action).run_to_end().done


def failed(client: Client, error: str) -> Message:
    """Pop a message as this worker and fail it; the message as read by its id."""
    (taken,) = client.pop_many(1, f"worker-{error}")
    assert client.fail(taken, error)
    (message,) = read_messages(client, f"id={taken.id}").messages
    return message


@pytest.mark.parametrize("variant", WITH_HISTORY, ids=str)
def test_the_last_attempts_are_kept_with_error_and_consumer(client: Client) -> None:
    client.push(client.payload(1))
    first = failed(client, "e1")
    assert first.history is not None
    assert [(one.error, one.attempts) for one in first.history] == [("e1", 1)]
    assert "consumer=worker-e1" in str(first.history[0].claimed_by)
    assert first.done_at is not None
    assert first.history[0].at is not None
    assert abs((first.history[0].at - first.done_at).total_seconds()) < 1
    requeued(client)
    client.pop_many(1, "sleeper")
    released(client)
    failed(client, "e3")
    requeued(client)
    last = failed(client, "x" * 1_500)
    ends = [("x" * 1_000, 4), ("e3", 3), (None, 2)]
    assert [(one.error, one.attempts) for one in last.history or ()] == ends
    assert past_attempt((last.history or ())[2], None).endswith(": released")
    same = message(client.database, client.queue, last.key)
    assert same is not None
    assert same.history == last.history
    masks = [re.compile("x+|e3")]
    hidden = follow(client.database, client.queue, last.key, masks=masks)
    assert hidden is not None
    assert [one.error for one in hidden.history or ()] == ["***", "***", None]
    assert not upgrade.plan(client.database, client.queue).needed
    requeued(client)
    (taken,) = client.pop_many(1)
    assert client.complete(taken)


@pytest.mark.long
@pytest.mark.parametrize("variant", WITH_HISTORY, ids=str)
def test_without_the_option_there_is_no_history(use: Use, variant: Variant) -> None:
    given = {name: value for name, value in variant.given.items() if name != "history"}
    client = use(replace(variant, given=given))
    client.push(client.payload(1))
    found = failed(client, "e1")
    assert found.history is None
    assert "history" not in found.as_json(with_payload=False)


def test_history_of_a_ring_requires_in_hand() -> None:
    with pytest.raises(UsageError, match="history requires in_hand=on"):
        DESIGNS["ring"].complete_options({"history": "5"})
