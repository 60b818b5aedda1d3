"""Latencies of sampled messages: which count, what is shown if there are too few, and how they
reach recordings, charts and metrics."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from console.catalog import Kind, Queue
from console.designs import DESIGNS
from console.features.history.points import points, thinned
from console.features.history.segments import samples, snapshot_of
from console.features.metrics.exporter import ConnectionState, families
from console.features.presets.designs import LIBRARIES
from console.monitor.latency import (
    EVERY_SECONDS,
    FEWEST,
    FIGURES,
    MOST,
    WITHIN_SECONDS,
    Latency,
    LatencySamples,
    Percentiles,
    TimesRow,
    impossible,
    statement_of,
)
from console.monitor.rates import key_of
from console.monitor.sampler import Reading
from tests.contract.variants import DEFAULTS
from tests.tui.feeds import queue as snapshot_named
from tests.unit.test_history import table_of

NOW = datetime(2026, 3, 29, 2, 14, 7, tzinfo=UTC)
(STATUS,) = (v.queue("public", "orders") for v in DEFAULTS if v.design.name == "status")
KNOWN = Latency(
    Percentiles(0.012, 0.03, 1.5, messages=200, period_seconds=240.2),
    Percentiles(unknown="complete deletes the message"),
)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def popped(number: int, waited: float, ago: float = 1.0) -> TimesRow:
    return TimesRow("public", "orders", f"{number}", waited, ago, None, None)


def waiting_after(samples: LatencySamples, *rows: TimesRow) -> Percentiles:
    samples.add([STATUS], rows)
    return samples.of(STATUS).waiting


def test_a_message_in_several_samples_counts_once_until_it_is_too_old(clock: Clock) -> None:
    samples = LatencySamples(clock)
    assert waiting_after(samples, *(popped(n, 1.0) for n in range(FEWEST))).messages == FEWEST
    clock.now += 10
    twice = [popped(n, 1.0, 11.0) for n in range(FEWEST)]
    percentiles = waiting_after(samples, *twice, *(popped(FEWEST + n, 3.0) for n in range(FEWEST)))
    assert (percentiles.messages, percentiles.p50, percentiles.p99) == (2 * FEWEST, 2.0, 3.0)
    assert percentiles.period_seconds == 11.0
    clock.now += WITHIN_SECONDS - 5
    percentiles = waiting_after(samples)
    assert (percentiles.messages, percentiles.p50) == (FEWEST, 3.0)
    clock.now += 10
    assert waiting_after(samples).messages == 0


def test_only_the_latest_messages_are_kept(clock: Clock) -> None:
    samples = LatencySamples(clock)
    for sample in range(3):
        clock.now += 10
        percentiles = waiting_after(
            samples, *(popped(sample * MOST + n, float(sample)) for n in range(MOST))
        )
    assert (percentiles.messages, percentiles.p50, percentiles.p99) == (MOST, 2.0, 2.0)


def test_too_few_messages_are_shown_with_their_number(clock: Clock) -> None:
    samples = LatencySamples(clock)
    percentiles = waiting_after(samples, *(popped(n, 1.0) for n in range(FEWEST - 1)))
    assert percentiles.values == (None, None, None)
    assert percentiles.text == "? (9 messages seen in 5 min, 10 are needed)"
    percentiles = waiting_after(samples, popped(FEWEST, 1.0))
    assert percentiles.text == "p50 1.0 s, p95 1.0 s, p99 1.0 s (10 messages of 1.0 s)"


def test_a_failed_read_makes_latencies_unknown_and_drops_earlier_messages(clock: Clock) -> None:
    samples = LatencySamples(clock)
    waiting_after(samples, *(popped(n, 1.0) for n in range(FEWEST)))
    samples.fail(STATUS)
    assert samples.of(STATUS).waiting.text == "? (it could not be read, or not in time)"
    assert waiting_after(samples).messages == 0


def test_a_sample_is_due_once_per_interval(clock: Clock) -> None:
    samples = LatencySamples(clock)
    assert [samples.due, samples.due] == [True, False]
    clock.now += EVERY_SECONDS
    assert samples.due


def test_a_removed_queue_is_forgotten(clock: Clock) -> None:
    samples = LatencySamples(clock)
    waiting_after(samples, *(popped(n, 1.0) for n in range(FEWEST)))
    samples.keep([key_of(STATUS)])
    assert samples.of(STATUS).waiting.messages == FEWEST
    samples.keep([])
    assert samples.of(STATUS).waiting.text == "? (not read yet)"


def adopted(design: str, *without: str) -> Queue:
    found_design = LIBRARIES.get(design) or DESIGNS[design]
    roles = {role: column for role, column in found_design.roles.items() if role not in without}
    return Queue("public", "theirs", found_design, {}, roles, Kind.ADOPTED)


def test_latencies_that_an_adopted_table_lacks_have_a_reason() -> None:
    no_end = "no index on the time of the end is known"
    assert impossible(adopted("status")) == ("", no_end)
    assert impossible(adopted("status", "pushed_at")) == ("no column is pushed_at", no_end)
    assert impossible(adopted("status", "claimed_at"))[0] == "no column is claimed_at"
    assert impossible(adopted("fifo")) == ("a pop deletes the message",) * 2
    for library in LIBRARIES:
        assert impossible(adopted(library))[0] == ""
        assert impossible(adopted(library))[1]
    assert statement_of(adopted("status", "claimed_at")) == ""
    assert statement_of(adopted("ring")) == ""


def test_waiting_and_processing_share_a_line_if_unknown_for_the_same_reason() -> None:
    assert KNOWN.labels_and_texts == (
        ("waiting", "p50 12 ms, p95 30 ms, p99 1.5 s (200 messages of 4 min)"),
        ("processing", "? (complete deletes the message)"),
    )
    both_unknown = Percentiles(unknown="a pop deletes the message")
    assert Latency(both_unknown, both_unknown).labels_and_texts == (
        ("waiting and processing", both_unknown.text),
    )


# Where they go.

QUEUE = replace(snapshot_named("orders"), latency=KNOWN)


def test_latencies_are_recorded_and_history_has_the_highest() -> None:
    (row,) = samples(Reading("x", (QUEUE,)), NOW)
    restored = snapshot_of(row, "x").latency
    assert restored is not None
    assert restored.figures == KNOWN.figures
    assert restored.processing.text == "? (not known then)"
    (without_latency,) = samples(Reading("x", (replace(QUEUE, latency=None),)), NOW)
    assert snapshot_of(without_latency, "x").latency is None
    slower = replace(QUEUE, latency=Latency(Percentiles(0.5, 0.6, 0.7), KNOWN.processing))
    rows = [dict(next(samples(Reading("x", (snapshot,)), NOW))) for snapshot in (QUEUE, slower)]
    old = {name: value for name, value in rows[0].items() if name not in FIGURES}
    for read in ([*rows, old], thinned(table_of([*rows, old]), 60)):
        (point,) = points(read, 60)
        assert (point["waiting_p50_seconds"], point["waiting_p99_seconds"]) == (0.5, 1.5)
        assert point["processing_p50_seconds"] is None


def test_metrics_have_a_series_per_quantile_and_none_for_unknown_latencies() -> None:
    state = ConnectionState(Reading("x", (QUEUE,)), sampled_at=1.0)
    found = {metric.name: metric for metric in families([state])}
    waiting = found["dbq_queue_waiting_seconds"].samples
    assert {(s.labels["quantile"], s.value) for s in waiting} == {
        ("0.5", 0.012),
        ("0.95", 0.03),
        ("0.99", 1.5),
    }
    assert found["dbq_queue_processing_seconds"].samples == []
