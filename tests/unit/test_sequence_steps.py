"""What two samples of a ring's sequences show: how far they went, and what nobody used of it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from console.catalog import installed_queue
from console.designs import DESIGNS
from console.doctor.lost_numbers import LossCause, ServerHistory, cause_of, jumps_of
from console.doctor.number_proof import NumberRange
from console.monitor.sample import DatabaseSample, QueueSample
from console.monitor.sequence_steps import (
    CHANGES,
    RECENT,
    SequenceHistory,
    SequenceKey,
    Step,
    Steps,
)
from console.monitor.subscribers import SubscriberRow, SubscriberRows
from tests.unit.test_snapshot import NOTHING

START = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
RING = installed_queue("public", "orders", DESIGNS["ring"], {})
PUSH, POP = SequenceKey("push"), SequenceKey("pop")
SILENT = ServerHistory(START - timedelta(days=9), None, None, None, 0, 0, ahead=100)
"""Of a server that counts nothing, and whose fail-over leaves its start as it was."""


class History:
    """Samples of one ring, a second apart."""

    def __init__(self) -> None:
        self.history = SequenceHistory()
        self.seconds = 0

    def sample(
        self, push: int | None, pop: int | None = 1, base: int = 1, server: str = "a"
    ) -> Steps:
        self.seconds += 1
        row = replace(NOTHING, next_push=push, next_pop=pop, base=base, capacity=100)
        return self.add(QueueSample(RING, row, moment=self.now), server)

    def add(self, sample: QueueSample, server: str = "a") -> Steps:
        taken = DatabaseSample("c", 0.0, 0.1, (sample,), True, False, incarnation=server)
        return self.history.add(taken).get((RING.schema, RING.name), {})

    @property
    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds)


def lost(first: int, last: int) -> NumberRange:
    return NumberRange("hole", first, last, None, None, None)


EVENTS = st.lists(
    st.tuples(st.sampled_from(["used", "skipped", "sample", "fail-over"]), st.integers(1, 40)),
    max_size=60,
)


@given(EVENTS)
def test_each_step_has_what_was_skipped_between_its_two_samples(
    events: list[tuple[str, int]],
) -> None:
    history, number, server, skipped = History(), 1, 0, 0
    ranges: list[NumberRange] = []
    expected: list[tuple[int, int, int]] = []
    steps = history.sample(number)[PUSH]
    since = number
    for event, count in [*events, ("sample", 1)]:
        if event == "sample":
            steps = history.sample(number, server=str(server))[PUSH]
            if number > since:
                expected.append((since, number, skipped))
            since, skipped = number, 0
        elif event == "fail-over":
            server += 1
        else:
            if event == "skipped":
                ranges.append(lost(number, number + count - 1))
                skipped += count
            number += count
    pairs = [(one.first, one.last) for one in ranges]
    moved = [step for step in steps if step.numbers]
    assert [(s.before.number, s.after.number, s.unused(pairs)) for s in moved] == expected
    assert sum(step.unused(pairs) for step in steps) == sum(one.count for one in ranges)
    assert all(0 <= step.unused(pairs) <= step.numbers for step in steps)
    assert {jump.unused for jump in jumps_of(steps, ranges)} <= {n for *_, n in expected}


def test_a_fail_over_is_named_with_both_numbers_and_times() -> None:
    history = History()
    history.sample(951)
    history.sample(952)
    (step, jump) = history.sample(1001, server="b")[PUSH]
    assert (step.numbers, step.server_changed) == (1, False)
    (found,) = jumps_of((step, jump), [lost(953, 1000)])
    assert found.words(PUSH) == (
        "the push sequence went from 952 at 12:00:02 UTC to 1,001 at 12:00:03 UTC, 49 numbers, and "
        "nobody used 48 of them; in between the server restarted, crashed or failed over"
    )
    assert found.as_json(PUSH) == {
        "sequence": "push",
        "from": 952,
        "from_at": "2026-11-21T12:00:02+00:00",
        "to": 1001,
        "to_at": "2026-11-21T12:00:03+00:00",
        "unused": 48,
        "server_changed": True,
        "reconnected": False,
    }
    assert cause_of(lost(953, 1000), SILENT) is LossCause.UNKNOWN
    assert cause_of(lost(953, 1000), SILENT, (step, jump)) is LossCause.SERVER_CHANGED
    assert cause_of(lost(953, 953), SILENT, (step, jump)) is LossCause.UNKNOWN, "or a rollback"
    assert cause_of(lost(950, 953), SILENT, (step, jump)) is LossCause.UNKNOWN, "not of one step"
    assert cause_of(lost(990, 1001), SILENT, (step, jump)) is LossCause.UNKNOWN, "not of one step"


def test_a_lost_connection_is_part_of_the_fact() -> None:
    history = History()
    history.sample(952)
    history.history.lost_connection()
    (step,) = history.sample(1001)[PUSH]
    (found,) = jumps_of((step,), [lost(953, 1000)])
    assert found.words(PUSH).endswith("48 of them; in between the connection was lost")
    assert cause_of(lost(953, 1000), SILENT, (step,)) is LossCause.UNKNOWN
    assert not history.sample(1002)[PUSH][-1].reconnected, "only the first sample after it"


def test_single_rollbacks_are_no_jumps() -> None:
    history = History()
    history.sample(1)
    steps = history.sample(9)[PUSH]
    assert jumps_of(steps, [lost(4, 4)]) == []
    assert len(jumps_of(steps, [lost(4, 4), lost(6, 6)])) == 1


def test_relays_and_restored_dumps_begin_anew() -> None:
    history = History()
    history.sample(1)
    assert len(history.sample(5)[PUSH]) == 1
    assert history.sample(200, base=150)[PUSH] == ()
    assert len(history.sample(210, base=150)[PUSH]) == 1
    assert history.sample(205, base=150)[PUSH] == ()


def test_a_standby_has_no_steps_and_a_failed_read_keeps_them() -> None:
    history = History()
    history.sample(1)
    assert history.sample(None, None) == {}
    assert [(s.before.number, s.after.number) for s in history.sample(5)[PUSH]] == [(1, 5)]
    assert history.add(QueueSample(RING, None, "locked")) == {}


def test_as_many_steps_are_kept_and_a_change_of_server_longer() -> None:
    history = History()
    steps: tuple[Step, ...] = ()
    for number in range(1, 4 * RECENT):
        steps = history.sample(number, server="ab"[number > RECENT])[PUSH]
    changes: list[Step] = [step for step in steps if step.server_changed]
    assert [(step.before.number, step.after.number) for step in changes] == [(RECENT, RECENT + 1)]
    assert len(steps) == RECENT + 1
    for number in range(3 * CHANGES):
        steps = history.sample(4 * RECENT, server=str(number))[PUSH]
    assert sum(step.server_changed for step in steps) == CHANGES


def test_each_subscriber_has_its_own_pops() -> None:
    ring, history = replace(RING, options={**RING.options, "subscribers": "a,b"}), History()
    row = replace(NOTHING, next_push=10, next_pop=4, base=1, capacity=100)
    for more in (0, 3):
        rows = tuple(
            SubscriberRow("public", "orders", name, 1, 10, pop, 0, 0, None)
            for name, pop in (("a", 4), ("b", 5 + more))
        )
        sample = QueueSample(ring, row, moment=START, subscribers=SubscriberRows(rows, 0.0))
        steps = history.add(sample)
    assert {key.words: len(found) for key, found in steps.items()} == {
        "the push sequence": 0,
        "the pop sequence of a": 0,
        "the pop sequence of b": 1,
    }
