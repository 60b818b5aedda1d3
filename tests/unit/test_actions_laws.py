"""Properties of ledgers, plans and batch sizes, for any numbers."""

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from console.actions import MOST_BATCH, execute
from console.actions.execute import CANARY, Batching
from console.actions.message_action import MessageAction, _Count
from console.actions.selected import SelectedMessages
from console.catalog import installed_queue
from console.catalog.audit import ImbalanceError, Ledger
from console.designs import design
from console.errors import UsageError
from console.monitor.filters import NOTHING, Filters
from console.monitor.message import Message
from console.plan import Control, Plan

COUNTS = st.dictionaries(st.sampled_from("abc"), st.integers(1, 1000), max_size=3)


@st.composite
def balanced(draw: st.DrawFn) -> Ledger:
    out, skipped, failed = draw(st.integers(0, 10**6)), draw(COUNTS), draw(COUNTS)
    selected = out + sum(skipped.values()) + sum(failed.values())
    return Ledger(selected, out, out, skipped, failed)


@given(st.lists(balanced()))
def test_a_sum_of_balanced_ledgers_is_balanced(ledgers: list[Ledger]) -> None:
    total = sum(ledgers, Ledger())
    assert total.require_balance() is total
    assert total.selected == sum(ledger.selected for ledger in ledgers)
    assert total.skipped_count == sum(ledger.skipped_count for ledger in ledgers)


@given(
    balanced(), st.sampled_from(["selected", "out", "into"]), st.integers(-1000, 1000).filter(bool)
)
def test_any_wrong_count_in_a_ledger_is_detected(
    ledger: Ledger, name: str, difference: int
) -> None:
    wrong = replace(ledger, **{name: getattr(ledger, name) + difference})
    with pytest.raises(ImbalanceError, match="DOES NOT BALANCE"):
        wrong.require_balance()


def plan_of(count: int, *, production: bool = False) -> Plan:
    claim = design("claim")
    queue = installed_queue("public", "mail", claim, claim.complete_options({}))
    selected = SelectedMessages(
        filters=NOTHING,
        states=("error",),
        cutoff=datetime(2026, 3, 29, 2, 14, 7, tzinfo=UTC),
        count=count,
        by_state={"error": count},
        totals={},
        excluded={},
        oldest_seconds=None,
        newest_seconds=None,
        payload_bytes=None,
        sample=(),
        detail="",
        production=production,
    )
    action: Any = SimpleNamespace(
        verb="requeue",
        source=SimpleNamespace(queue=queue),
        requires_name=False,
        script=lambda: "",
        in_queue=True,
    )
    database: Any = SimpleNamespace(label="here")
    with mock.patch.object(execute, "select", return_value=selected):
        return execute.plan(database, action)


@given(count=st.integers(0, 10**6), production=st.booleans())
@example(count=1_000, production=False)
@example(count=1_001, production=False)
def test_plans_for_many_messages_or_in_production_require_the_queue_name(
    count: int, production: bool
) -> None:
    plan = plan_of(count, production=production)
    assert plan.requires_name == (production or count > 1_000)
    assert plan.data["confirmation"] == ("name" if plan.requires_name else "y")
    assert plan.subject.planned == count


def numbered_message(number: int) -> Message:
    """The message at this position of a queue; actions take the oldest first."""
    empty = dict.fromkeys(Message.__dataclass_fields__)
    values = {"id": str(number), "state": "error", "age_seconds": 1e4 - number, "payload_bytes": 1}
    return Message(**{**empty, **values})  # type: ignore[arg-type]


@given(
    matching=st.integers(0, 300),
    excluded_every=st.integers(2, 9),
    limit=st.none() | st.integers(1, 300),
    keep=st.none() | st.integers(1, 300),
    at_once=st.integers(1, 50),
)
def test_a_plan_counts_exactly_what_would_be_done(
    matching: int, excluded_every: int, limit: int | None, keep: int | None, at_once: int
) -> None:
    messages = [numbered_message(number) for number in range(matching)]
    of_no_queue: Any = None
    action = MessageAction(of_no_queue)
    counted = _Count(Filters(limit=limit, keep_newest=keep), ("error",), action)
    at = 0
    while (most := counted.examine_next) and (chosen := messages[at : at + min(most, at_once)]):
        counted.add(chosen, {"why": [m for m in chosen if int(m.id or 0) % excluded_every == 0]})
        at += len(chosen)
    eligible = [m for m in messages if int(m.id or 0) % excluded_every]
    done = eligible[: max(0, len(eligible) - (keep or 0))][:limit]
    assert counted.by_state.total() == len(done) == counted.payload_bytes
    if done:
        assert (counted.oldest, counted.newest) == (done[0].age_seconds, done[-1].age_seconds)
        assert counted.sample == done[:3]
    if limit is not None and keep is None and len(done) == limit:
        assert at == int(done[-1].id or 0) + 1, "no more is looked at than is needed"


@given(
    batch=st.integers(1, MOST_BATCH),
    rate=st.none() | st.floats(0.1, 1e6),
    canary=st.booleans(),
    done=st.integers(0, 100),
)
def test_a_batch_is_never_larger_than_requested(
    batch: int, rate: float | None, canary: bool, done: int
) -> None:
    size = Batching(batch, rate, canary).sizes(done)
    assert size >= 1
    if canary and done < len(CANARY):
        assert size <= CANARY[done]
    else:
        assert size <= batch
    assert rate is None or size <= max(1, rate + 1)


@pytest.mark.parametrize(("batch", "rate"), [(0, None), (MOST_BATCH + 1, None), (1, 0.0), (1, -1)])
def test_invalid_batch_sizes_and_rates_are_refused(batch: int, rate: float | None) -> None:
    with pytest.raises(UsageError):
        Batching(batch, rate)


def test_a_paused_action_can_be_stopped() -> None:
    control = Control()
    control.pause()
    assert control.paused
    control.stop()
    control.wait(60)
    assert control.stopped
