"""What the figures of one queue say of it."""

from dataclasses import replace
from typing import Any

import pytest

from console.monitor.limits import DEFAULTS, Limits, Severity, Thresholds, judge
from console.monitor.snapshot import QueueSnapshot
from console.tui.findings import full_in_seconds, of_queue
from tests.tui.feeds import broken, queue

Said = list[tuple[Severity, str]]


def said(snapshot: QueueSnapshot, thresholds: Thresholds = DEFAULTS) -> Said:
    """What the figures alone say, the gravest first."""
    found = of_queue(("a", "public", "q"), snapshot, judge(snapshot, thresholds), None)
    return [(one.level, one.summary) for one in found]


def test_a_quiet_queue_is_fine() -> None:
    assert said(queue("q")) == []


@pytest.mark.parametrize(
    ("figures", "level", "reason"),
    [
        ({"stuck": 14}, Severity.WARNING, "14 stuck"),
        ({"errors": 9}, Severity.OK, None),
        ({"errors": 10}, Severity.WARNING, "10 in error (limit 10)"),
        ({"errors": 100, "ready": 901}, Severity.OK, None),
        ({"errors": 101, "ready": 901}, Severity.WARNING, "101 in error (limit 101)"),
        ({"gap": 89, "capacity": 100}, Severity.OK, None),
        ({"gap": 90, "capacity": 100}, Severity.WARNING, "90 % full"),
        ({"gap": 100, "capacity": 100}, Severity.CRITICAL, "full: it takes no more pushes"),
        ({"gap": -3, "capacity": 100}, Severity.OK, None),
    ],
)
def test_one_reason(figures: dict[str, Any], level: Severity, reason: str | None) -> None:
    assert said(queue("q", **figures)) == ([(level, reason)] if reason else [])


def test_the_gravest_reason_comes_first() -> None:
    assert said(queue("q", errors=20, stuck=1, gap=100, capacity=100)) == [
        (Severity.CRITICAL, "full: it takes no more pushes"),
        (Severity.WARNING, "1 stuck"),
        (Severity.WARNING, "20 in error (limit 10)"),
    ]


def test_a_queue_that_cannot_be_looked_at_says_why() -> None:
    why = "permission denied for table q"
    assert said(broken("q", "fifo", why)) == [(Severity.WARNING, f"cannot be sampled: {why}")]


def test_the_limits_are_those_of_the_configuration() -> None:
    deep = queue("q", ready=12_480, errors=2, gap=95, capacity=100)
    nothing = Thresholds(300.0, Limits(), Limits(), Limits(), Limits())
    assert said(deep, nothing) == []
    low = replace(nothing, depth=Limits(10, 10_000), errors=Limits(3))
    assert said(deep, low) == [(Severity.CRITICAL, "12,480 ready (limit 10,000)")]


def test_marks_differ_without_colour() -> None:
    assert [level.mark for level in Severity] == [" ", "·", "?", "!", "✖"]


@pytest.mark.parametrize(
    ("push", "pop", "gap", "seconds"),
    [
        (812.0, 640.0, 4_840, 30.0),
        (640.0, 812.0, 4_840, None),
        (640.0, 640.0, 4_840, None),
        (None, 640.0, 4_840, None),
        (640.0, 640.0, 10_000, 0.0),
    ],
)
def test_time_to_full(
    push: float | None, pop: float | None, gap: int, seconds: float | None
) -> None:
    ring = queue("r", "ring", push_per_second=push, pop_per_second=pop, gap=gap, capacity=10_000)
    assert full_in_seconds(ring) == seconds
    assert full_in_seconds(queue("f", push_per_second=9.0, pop_per_second=1.0)) is None
