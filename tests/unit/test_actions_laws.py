"""The laws of ledgers, plans and paces, for any numbers."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.actions.execute import CANARY, MOST_BATCH, Control, Pace
from console.actions.ledger import ImbalanceError, Ledger
from console.actions.plan import MANY_MESSAGES, Plan
from console.catalog import installed_queue
from console.designs import design
from console.errors import UsageError
from console.monitor.filters import NOTHING, Filters

COUNTS = st.dictionaries(st.sampled_from("abc"), st.integers(1, 1000), max_size=3)


@st.composite
def balanced(draw: st.DrawFn) -> Ledger:
    out, skipped, failed = draw(st.integers(0, 10**6)), draw(COUNTS), draw(COUNTS)
    selected = out + sum(skipped.values()) + sum(failed.values())
    return Ledger(selected, out, out, skipped, failed)


@given(st.lists(balanced()))
def test_what_balances_batch_by_batch_balances_as_a_whole(ledgers: list[Ledger]) -> None:
    total = sum(ledgers, Ledger())
    assert total.require_balance() is total
    assert total.selected == sum(ledger.selected for ledger in ledgers)
    assert total.skipped_count == sum(ledger.skipped_count for ledger in ledgers)


@given(
    balanced(),
    st.sampled_from(["selected", "out", "into"]),
    st.integers(-1000, 1000).filter(bool),
)
def test_whatever_is_missing_or_too_much_is_seen(
    ledger: Ledger, name: str, difference: int
) -> None:
    wrong = replace(ledger, **{name: getattr(ledger, name) + difference})
    with pytest.raises(ImbalanceError, match="DOES NOT BALANCE"):
        wrong.require_balance()


def plan_of(
    matching: int, left_alone: int, filters: Filters = NOTHING, *, production: bool = False
) -> Plan:
    of = design("claim")
    queue = installed_queue("public", "mail", of, of.complete_options({}))
    now = datetime(2026, 3, 29, 2, 14, 7, tzinfo=UTC)
    counts = {"left": left_alone} if left_alone else {}
    states: dict[str, int] = {"error": matching}
    return Plan(
        verb="requeue",
        queue=queue,
        connection="here",
        production=production,
        filters=filters,
        states=("error",),
        cutoff=now,
        matching=matching,
        by_state=states,
        left_alone=counts,
        oldest_seconds=None,
        newest_seconds=None,
        payload_bytes=None,
        sample=(),
        sql="",
        wants_name=False,
        detail="",
    )


@given(
    matching=st.integers(0, 10**6),
    left=st.integers(0, 10**6),
    limit=st.none() | st.integers(1, 10**6),
    keep=st.none() | st.integers(1, 10**6),
    production=st.booleans(),
)
def test_a_plan_never_promises_more_than_there_is(
    matching: int, left: int, limit: int | None, keep: int | None, production: bool
) -> None:
    left = min(left, matching)
    plan = plan_of(matching, left, Filters(limit=limit, keep_newest=keep), production=production)
    assert 0 <= plan.count <= matching - left
    assert limit is None or plan.count <= limit
    assert keep is None or plan.count <= max(0, matching - keep)
    if limit is None and keep is None:
        assert plan.count == matching - left
    assert plan.wants_queue_name == (production or plan.count > MANY_MESSAGES)
    assert plan.subject.planned == plan.count


@given(
    batch=st.integers(1, MOST_BATCH),
    rate=st.none() | st.floats(0.1, 1e6),
    canary=st.booleans(),
    done=st.integers(0, 100),
)
def test_a_batch_is_never_larger_than_was_said(
    batch: int, rate: float | None, canary: bool, done: int
) -> None:
    size = Pace(batch, rate, canary).sizes(done)
    assert size >= 1
    if canary and done < len(CANARY):
        assert size <= CANARY[done]
    else:
        assert size <= batch
    assert rate is None or size <= max(1, rate + 1)


@pytest.mark.parametrize(("batch", "rate"), [(0, None), (MOST_BATCH + 1, None), (1, 0.0), (1, -1)])
def test_a_pace_that_cannot_be(batch: int, rate: float | None) -> None:
    with pytest.raises(UsageError):
        Pace(batch, rate)


def test_a_paused_action_hears_stop() -> None:
    control = Control()
    control.pause()
    assert control.paused
    control.stop()
    control.wait(60)
    assert control.stopped
