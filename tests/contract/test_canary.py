"""A requeue with a canary: the results of the first messages decide about the rest."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import pytest
from sqlalchemy import Connection

from console.actions import execute
from console.actions.canary import CanaryTracker, CanaryVerdict
from console.actions.execute import CANARY_WAIT_SECONDS, Batching
from console.actions.pop import PoppedMessage
from console.catalog.audit import Outcome
from console.monitor.message import Message
from console.plan import Control, OnProgress, Progress, Result
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.message_actions import plan_lines, planned
from tests.contract.test_actions import action_for, contents
from tests.contract.traffic import at_work
from tests.contract.variants import BEHAVIOURS, Variant

pytestmark = [pytest.mark.slow, pytest.mark.thinned(3, payload=False)]
WITH_CLAIMS = [variant for variant in BEHAVIOURS if variant.finishes]
MESSAGES = 25
ENDLESS = 600.0
"""No test waits this long: each ends by what its workers do."""


@pytest.fixture(params=WITH_CLAIMS, ids=str)
def client(use: Use, request: pytest.FixtureRequest) -> Client:
    """A queue whose messages are all errors."""
    variant: Variant = request.param
    made = use(variant)
    made.push_many(made.payloads(*range(MESSAGES)))
    for taken in made.pop_many(MESSAGES):
        assert made.fail(taken, "no route")
    return made


def worker(
    client: Client, finish: Callable[[PoppedMessage], bool]
) -> AbstractContextManager[object]:
    """A consumer in a thread: it pops and finishes messages until the block ends."""

    def work() -> Iterator[None]:
        while True:
            for taken in client.pop_many(3):
                assert finish(taken)
            yield

    return at_work(work(), pause_seconds=0.01)


def requeued(
    client: Client,
    wait: float = ENDLESS,
    share: float = 0.0,
    on_progress: OnProgress = lambda _: None,
) -> Result:
    batching = Batching(canary=True, canary_wait=wait, canary_share=share)
    action_plan = execute.plan(client.database, action_for(client, "requeue"), batching=batching)
    return action_plan.run(Control(), on_progress)


def verdict_of(done: Result) -> CanaryVerdict | None:
    canary = done.data["canary"]
    return None if canary is None else canary["verdict"]


def ids(done: Result, what: str) -> list[str]:
    """Of the canary's messages: done, failed or waiting."""
    return list(done.data["canary"][what])


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of followed messages, per followed batch."""
    begun: list[int] = []
    begin = CanaryTracker.begin

    def counted(self: CanaryTracker, connection: Connection, messages: Sequence[Message]) -> None:
        begun.append(len(messages))
        begin(self, connection, messages)

    monkeypatch.setattr(CanaryTracker, "begin", counted)
    return begun


def test_a_successful_canary_lets_the_rest_follow(client: Client, followed: list[int]) -> None:
    with worker(client, client.complete):
        done = requeued(client)
    assert (done.outcome, verdict_of(done)) == (Outcome.DONE, CanaryVerdict.PASSED)
    assert (done.ledger.out, len(ids(done, "done"))) == (MESSAGES, 11)
    assert followed == [1, 10]
    assert not done.stopped_by_canary


def test_a_canary_that_fails_again_stops_the_requeue(client: Client, followed: list[int]) -> None:
    with worker(client, lambda taken: client.fail(taken, "still no route")):
        done = requeued(client)
    assert (done.outcome, verdict_of(done)) == (Outcome.STOPPED, CanaryVerdict.FAILED)
    assert (done.ledger.out, len(ids(done, "failed"))) == (1, 1)
    assert done.stopped_by_canary
    assert (
        f"message {ids(done, 'failed')[0]} failed again; the others are untouched" in done.problem
    )
    assert contents(client) == Counter(error=MESSAGES)
    action = action_for(client, "requeue")
    done = execute.execute(
        client.database, action, planned(client, action), batching=Batching(batch=5)
    )
    assert (done.ledger.out, followed) == (MESSAGES, [1]), "without a canary none is followed"


def test_a_given_share_of_canaries_may_fail(client: Client) -> None:
    popped_ids: list[str] = []

    def third_fails(taken: PoppedMessage) -> bool:
        popped_ids.append(taken.id)
        return client.fail(taken, "no") if len(popped_ids) == 3 else client.complete(taken)

    with worker(client, third_fails):
        done = requeued(client, share=0.2)
    assert (done.outcome, verdict_of(done)) == (Outcome.DONE, CanaryVerdict.PASSED)
    assert (len(ids(done, "done")), ids(done, "failed")) == (10, [popped_ids[2]])


def test_a_canary_without_a_result_is_unknown_and_stops_the_requeue(client: Client) -> None:
    done = requeued(client, wait=0)
    assert (done.outcome, verdict_of(done)) == (Outcome.STOPPED, CanaryVerdict.UNKNOWN)
    assert (done.ledger.out, len(ids(done, "waiting"))) == (1, 1)
    for words in ("no result of message", "is not known", "longer --canary-wait", "untouched"):
        assert words in done.problem
    assert contents(client) == Counter(ready=1, error=MESSAGES - 1)
    for taken in client.pop_many(1):
        assert client.fail(taken, "no route")
    # A claim is no result either.
    done = requeued(client, wait=0.001, on_progress=lambda now: _popped(client, now))
    assert verdict_of(done) is CanaryVerdict.UNKNOWN
    assert contents(client) == Counter(claimed=1, error=MESSAGES - 1)


def _popped(client: Client, now: Progress) -> None:
    if not now.text.startswith("canary"):
        assert len(client.pop_many(1)) == 1


def test_a_failed_canary_that_was_archived_counts_as_failed(client: Client) -> None:
    """A message that is gone counts as done, unless it was archived as an error."""

    def fail_and_archive(now: Progress) -> None:
        if now.text.startswith("canary"):
            return
        (taken,) = client.pop_many(1)
        assert client.fail(taken, "still no route")
        action = action_for(client, "archive")
        action_plan = planned(client, action, "state=error", f"id={taken.id}")
        assert execute.execute(client.database, action, action_plan).ledger.out == 1

    done = requeued(client, on_progress=fail_and_archive)
    assert (verdict_of(done), len(ids(done, "failed"))) == (CanaryVerdict.FAILED, 1)


def test_the_result_of_a_purged_canary_is_unknown(client: Client) -> None:
    def purge_ready(now: Progress) -> None:
        if not now.text.startswith("canary"):
            action = action_for(client, "purge")
            done = execute.execute(client.database, action, planned(client, action, "state=ready"))
            assert done.ledger.out == 1

    done = requeued(client, wait=0, on_progress=purge_ready)
    assert (verdict_of(done), len(ids(done, "waiting"))) == (CanaryVerdict.UNKNOWN, 1)


def test_only_a_requeue_has_a_verdict_and_the_plan_says_so(client: Client) -> None:
    for verb, words in {
        "requeue": "after 1 and after 10 it waits up to 30.0 s for their results, and stops if one",
        "purge": "without a verdict: purge has no results to wait for",
    }.items():
        action = action_for(client, verb)
        batching = Batching(canary=True, canary_wait=CANARY_WAIT_SECONDS)
        action_plan = execute.plan(client.database, action, batching=batching)
        assert any("canary: 1, then 10, then the rest" in line for line in action_plan.lines)
        assert words in "\n".join(action_plan.lines)
        assert "canary: " not in plan_lines(client, action)
    done = action_plan.run_to_end()
    assert (done.outcome, verdict_of(done), done.ledger.out) == (Outcome.DONE, None, MESSAGES)
