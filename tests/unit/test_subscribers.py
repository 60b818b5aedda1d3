"""Subscribers' figures: the slowest one, in texts, in recordings, in metrics."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from console.cli.commands.check import check
from console.features.history import segments
from console.features.history.points import history, points, since, thinned
from console.features.metrics.exporter import ConnectionState, families
from console.formats import UNKNOWN
from console.monitor.limits import DEFAULTS, judge
from console.monitor.sampler import Reading
from console.monitor.subscribers import SubscriberSnapshot, from_text, to_text
from tests.tui.feeds import queue
from tests.unit.test_history import table_of

AT = datetime(2026, 3, 29, 1, 0, tzinfo=UTC)
BILLING = SubscriberSnapshot("billing", 3, 3, 1.5, 40.0, 0, None, popped=70.0)
SEARCH = SubscriberSnapshot("search", 95, 90, 7.25, 0.0, 2, 12.5, popped=0.0)
RING = queue("events", "ring", gap=95, capacity=100, subscribers=(BILLING, SEARCH))


def test_the_limit_of_a_ring_names_its_slowest_subscriber() -> None:
    (found,) = judge(RING, DEFAULTS)
    assert found.text == "95 % full, search is slowest"
    checked = check(RING, DEFAULTS, {})
    assert "95 % full, search is slowest" in checked.words
    assert checked.as_json()["figures"]["gap_share"]["subscriber"] == "search"  # type: ignore[index]
    alone = replace(RING, subscribers=None)
    assert [exceeded.text for exceeded in judge(alone, DEFAULTS)] == ["95 % full"]


def test_no_subscriber_is_slowest_while_a_gap_is_unknown() -> None:
    assert replace(RING, subscribers=(BILLING, replace(SEARCH, gap=None))).slowest is None


def test_metrics_have_a_series_for_each_known_figure_of_a_subscriber() -> None:
    idle = replace(BILLING, age_seconds=None, ready=0)
    snapshot = replace(RING, subscribers=(idle, SEARCH))
    state = ConnectionState(Reading("prod", (snapshot,)), sampled_at=1.0)
    found = {
        (sample.name, sample.labels["subscriber"]): sample.value
        for family in families([state])
        for sample in family.samples
        if "subscriber" in sample.labels
    }
    assert found == {
        ("dbq_subscriber_gap_messages", "billing"): 3,
        ("dbq_subscriber_gap_messages", "search"): 95,
        ("dbq_subscriber_ready_messages", "billing"): 0,
        ("dbq_subscriber_ready_messages", "search"): 90,
        ("dbq_subscriber_parked_pops", "billing"): 0,
        ("dbq_subscriber_parked_pops", "search"): 2,
        ("dbq_subscriber_age_seconds", "search"): 7.25,
        ("dbq_subscriber_popped_messages_total", "billing"): 70,
        ("dbq_subscriber_popped_messages_total", "search"): 0,
    }


def test_a_recording_keeps_subscribers_and_an_older_one_has_none(tmp_path: Path) -> None:
    reading = Reading("prod", (RING,), latency_seconds=0.1, next_seconds=1.0)
    slower = replace(RING, subscribers=(BILLING, replace(SEARCH, gap=7)))
    segment = segments.Segment(tmp_path, "prod", AT)
    for sample in (reading, replace(reading, queues=(slower,))):
        segment.write(segments.SAMPLES, segments.samples(sample, AT))
    segment.close()
    found = history(tmp_path, "prod", "events", since(AT, 60.0))
    (point,) = found.points
    assert point.subscribers == {"billing": 3, "search": 95}
    assert point.slowest == "search"
    (row,) = segments.samples(reading, AT)
    assert segments.snapshot_of(row, "prod").subscribers == RING.subscribers
    older = {name: value for name, value in row.items() if name != "subscribers"}
    assert segments.snapshot_of(older, "prod").subscribers is None
    rows = [{**dict.fromkeys(segments.SAMPLES.columns), **one} for one in (dict(row), older)]
    assert points(rows, 60) == points(thinned(table_of(rows), 60), 60)


def test_the_text_of_a_full_subscriber_says_full_once() -> None:
    snapshot = replace(SEARCH, full_in_seconds=0.0)
    assert snapshot.text.endswith(", full")
    assert "full in" not in snapshot.text
    assert ", age 7.2 s, " in snapshot.text
    assert f", age {UNKNOWN}, " in replace(snapshot, age_seconds=None).text


@pytest.mark.parametrize(
    "text",
    [
        *("{", "3", "[3]", "[{}]", '[{"subscriber": "a"}]', "[" * 9999),
        json.dumps([{**BILLING.as_json(), "subscriber": 3}]),
        json.dumps([{**BILLING.as_json(), "gap": "many"}]),
        to_text([BILLING]).replace("40.0", "NaN"),
    ],
)
def test_an_invalid_record_of_subscribers_is_none(text: str) -> None:
    assert from_text(text) is None
