"""Limits of a queue: properties of their judgement, and its texts."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import console
from console.config import load
from console.monitor.limits import DEFAULTS, Limits, Severity, Thresholds, judge
from console.monitor.sample import QueueSample
from console.monitor.snapshot import QueueSnapshot, snapshot
from tests.unit.test_snapshot import NOTHING, queue

QUIET = snapshot(QueueSample(queue("fifo"), NOTHING), "c")
COUNTS = st.none() | st.integers(0, 10**9)
SECONDS = st.none() | st.floats(0, 1e9)
FIGURES = {"depth": "ready", "age": "age_seconds", "errors": "errors"}


def limits_of(values: st.SearchStrategy[float]) -> st.SearchStrategy[Limits]:
    """As the configuration accepts them: critical is never below warning."""

    def ordered(pair: tuple[float | None, float | None]) -> Limits:
        low, high = pair
        return Limits(low, high if None in pair else max(low or 0, high or 0))

    return st.tuples(st.none() | values, st.none() | values).map(ordered)


AMOUNTS = limits_of(st.integers(1, 10**9))
THRESHOLDS = st.builds(
    Thresholds(300.0).with_limits,
    depth=AMOUNTS,
    age=limits_of(st.floats(0.001, 1e9)),
    gap_share=limits_of(st.floats(0.001, 1.0)),
    errors=AMOUNTS,
)
SNAPSHOTS = st.builds(
    lambda ready, age, errors, gap, capacity: replace(
        QUIET, ready=ready, age_seconds=age, errors=errors, gap=gap, capacity=capacity
    ),
    COUNTS,
    SECONDS,
    COUNTS,
    st.none() | st.integers(-100, 20_000),
    st.none() | st.integers(1, 10_000),
)


def test_there_is_one_scale_of_severity() -> None:
    """Figures, findings, queues and plugins share it, so nothing is translated."""
    own = Path(console.__file__).parent
    scales = [
        path for path in own.rglob("*.py") if re.search(r"^    CRITICAL = ", path.read_text(), re.M)
    ]
    assert scales == [own / "monitor" / "limits.py"]


def levels(sampled: QueueSnapshot, thresholds: Thresholds) -> dict[str, Severity]:
    exceededs = judge(sampled, thresholds)
    assert len({exceeded.figure for exceeded in exceededs}) == len(exceededs)
    return {exceeded.figure: exceeded.level for exceeded in exceededs}


@given(SNAPSHOTS, THRESHOLDS)
def test_every_reported_figure_has_reached_the_reported_limit(
    sampled: QueueSnapshot, thresholds: Thresholds
) -> None:
    found = judge(sampled, thresholds)
    assert [one.level for one in found] == sorted((one.level for one in found), reverse=True)
    for one in found:
        limits = thresholds[one.figure]
        assert one.value >= one.limit
        assert one.limit == (limits.critical if one.level is Severity.CRITICAL else limits.warning)
        assert one.text
        assert one.limit_text


@given(SNAPSHOTS, THRESHOLDS)
def test_every_figure_that_has_reached_a_limit_is_reported(
    sampled: QueueSnapshot, thresholds: Thresholds
) -> None:
    share = sampled.gap / sampled.capacity if sampled.gap is not None and sampled.capacity else None
    values = {"depth": sampled.ready, "age": sampled.age_seconds, "errors": sampled.errors}
    reported = levels(sampled, thresholds)
    for figure, value in (values | {"gap_share": share}).items():
        limits = thresholds[figure]
        reached = [x for x in (limits.warning, limits.critical) if None not in (x, value)]
        assert (figure in reported) == any((value or 0) >= (limit or 0) for limit in reached)


@given(SNAPSHOTS, THRESHOLDS, st.sampled_from(sorted(FIGURES)), st.integers(1, 10**6))
def test_a_higher_figure_is_never_less_severe(
    sampled: QueueSnapshot, thresholds: Thresholds, figure: str, more: int
) -> None:
    value = getattr(sampled, FIGURES[figure])
    changed: dict[str, Any] = {FIGURES[figure]: (value or 0) + more}
    worse = replace(sampled, **changed)
    before, after = levels(sampled, thresholds), levels(worse, thresholds)
    assert after.get(figure, Severity.OK) >= before.get(figure, Severity.OK)
    assert {k: v for k, v in after.items() if k != figure} == {
        k: v for k, v in before.items() if k != figure
    }


def test_the_defaults_are_those_of_the_configuration() -> None:
    assert load({"DBQ_CONFIG": "", "HOME": "/nowhere"}).defaults.thresholds == DEFAULTS


@pytest.mark.parametrize(
    ("figures", "text", "limit"),
    [
        ({"ready": 12_480}, "12,480 ready", "10,000"),
        ({"ready": 12_480, "estimated": ("ready",)}, "≈12 k ready", "10,000"),
        ({"age_seconds": 541.3}, "oldest 9 min 01 s", "1 min"),
        ({"errors": 6}, "6 in error", "1"),
        ({"gap": 9_999, "capacity": 10_000}, "99 % full", "29 %"),
        ({"gap": 10_001, "capacity": 10_000}, "full: it takes no more pushes", "29 %"),
    ],
)
def test_a_reached_limit_is_shown_as_text(figures: dict[str, Any], text: str, limit: str) -> None:
    low = Thresholds(300.0).with_limits(
        depth=Limits(10_000), age=Limits(60.0), gap_share=Limits(0.29), errors=Limits(1)
    )
    (one,) = judge(replace(QUIET, **figures), low)
    assert (one.text, one.limit_text) == (text, limit)
    has_no_limit_text = "full" in text or limit == "1"
    assert one.reason == (text if has_no_limit_text else f"{text} (limit {limit})")


def test_limits_have_a_stable_json_form() -> None:
    low = Thresholds(300.0).with_limits(depth=Limits(1, 5), errors=Limits(1))
    found = replace(QUIET, ready=7, errors=1).as_json(low)["limits"]
    assert found == [
        {"figure": "depth", "value": 7, "limit": 5, "level": "critical"},
        {"figure": "errors", "value": 1, "limit": 1, "level": "warning"},
    ]
