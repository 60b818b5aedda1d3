"""A recording as points: nothing is invented, and no peak is lost."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.errors import UsageError
from console.features.history import segments
from console.features.history.points import (
    STEPS,
    NothingRecordedError,
    history,
    points,
    since,
    step_for,
    thinned,
)
from console.features.history.segments import (
    ACTIONS,
    FINDINGS,
    LINKS,
    SAMPLES,
    RecordKind,
    TimeRange,
)

BEGIN = datetime(2026, 3, 29, 0, 30, tzinfo=UTC)
HOURS = TimeRange(BEGIN, BEGIN + timedelta(hours=3))


def sample(seconds: float, **figures: Any) -> dict[str, Any]:
    blank = dict.fromkeys(SAMPLES.columns)
    at = BEGIN + timedelta(seconds=seconds)
    return {**blank, "at": at, "schema": "public", "queue": "orders", "design": "ring", **figures}


def write(root: Path, kind: RecordKind, *rows: dict[str, Any], connection: str = "prod") -> None:
    segment = segments.Segment(root, connection, BEGIN)
    segment.write(kind, rows)
    segment.close()


def table_of(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), segments.schema(SAMPLES))


counts = st.none() | st.integers(0, 10**12)


@given(st.lists(st.tuples(st.integers(0, 10_000), counts)), st.sampled_from(STEPS))
def test_each_step_keeps_its_highest_value_and_gaps_stay_gaps(
    sampled: list[tuple[int, int | None]], step: int
) -> None:
    rows = [
        sample(at, ready=ready, push_per_second=None)
        for at, ready in sorted(sampled, key=lambda s: s[0])
    ]
    found = points(rows, step)
    assert sum(point.samples for point in found) == len(rows)
    begins = [point.at.timestamp() for point in found]
    assert begins == sorted(set(begins))
    for point in found:
        begin = point.at.timestamp()
        inside = [r["ready"] for r in rows if begin <= r["at"].timestamp() < begin + step]
        assert inside
        assert point["ready"] == max((r for r in inside if r is not None), default=None)
        assert point["push_per_second"] is None


@given(st.lists(st.floats(0, 1e9), min_size=1))
def test_a_rate_is_a_mean_between_its_extremes(rates: list[float]) -> None:
    (point,) = points([sample(0, pop_per_second=rate) for rate in rates], 60)
    assert point["pop_per_second"] is not None
    assert min(rates) * (1 - 1e-9) <= point["pop_per_second"] <= max(rates) * (1 + 1e-9)


rates = st.none() | st.floats(0, 1e6)


@given(st.lists(st.tuples(st.integers(0, 600), counts, rates)), st.sampled_from(STEPS))
def test_thinned_rows_give_the_same_points(
    sampled: list[tuple[int, int | None, float | None]], step: int
) -> None:
    rows = [
        sample(at, ready=ready, pop_per_second=rate, next_seconds=1.0)
        for at, ready, rate in sorted(sampled, key=lambda one: one[0])
    ]
    from_all, from_thinned = points(rows, step), points(thinned(table_of(rows), step), step)
    for one, other in zip(from_all, from_thinned, strict=True):
        rates = {"pop_per_second": other["pop_per_second"]}
        assert replace(one, figures={**one.figures, **rates}) == other
        assert one["pop_per_second"] == pytest.approx(other["pop_per_second"], rel=1e-6, abs=1e-9)


def test_an_announced_pause_is_no_gap(tmp_path: Path) -> None:
    write(tmp_path, SAMPLES, *(sample(at, next_seconds=60.0) for at in (0, 60, 120, 400, 460)))
    found = history(tmp_path, "prod", "orders", HOURS)
    assert [len(run) for run in found.runs] == [3, 2]


@given(st.integers(1, 400 * 86_400), st.integers(1, 10_000))
def test_the_step_is_the_shortest_that_fits(seconds: int, most: int) -> None:
    step = step_for(since(BEGIN, seconds), most)
    assert step == STEPS[-1] or seconds / step <= most * (1 + 1e-6)
    shorter = [one for one in STEPS if one < step]
    assert not shorter or seconds / shorter[-1] > most * (1 - 1e-6)


def test_a_finding_lasts_from_its_first_diagnosis_to_the_first_without_it(tmp_path: Path) -> None:
    write(tmp_path, SAMPLES, sample(0, ready=1))
    diagnoses: list[dict[str, Any]] = []
    for minute, codes in enumerate(([], ["orphan"], ["orphan", "hole"], ["hole"], [], ["orphan"])):
        at = BEGIN + timedelta(minutes=minute)
        one = {"at": at, "schema": "public", "queue": "orders", "verdict": "critical"}
        diagnoses += [{**one, "code": code, "summary": f"{code} {minute}"} for code in codes] or [
            one
        ]
    write(tmp_path, FINDINGS, *diagnoses)
    found = history(tmp_path, "prod", "orders", HOURS)
    minutes = [
        (
            mark.name,
            (mark.at - BEGIN).seconds // 60,
            None if mark.until is None else (mark.until - BEGIN).seconds // 60,
        )
        for mark in found.marks
    ]
    assert minutes == [("orphan", 1, 3), ("hole", 2, 4), ("orphan", 5, None)]


def test_an_action_is_shown_once_with_its_outcome(tmp_path: Path) -> None:
    write(tmp_path, SAMPLES, sample(0, ready=1))
    one = {"at": BEGIN, "schema": "public", "queue": "orders", "action_id": 7, "verb": "purge"}
    ended = {"ended_at": BEGIN + timedelta(seconds=9), "outcome": "done", "done": 30, "planned": 30}
    write(tmp_path, ACTIONS, {**one, "outcome": "running"})
    write(tmp_path, ACTIONS, {**one, **ended, "operator": "ann@host"})
    (mark,) = history(tmp_path, "prod", "orders", HOURS).marks
    assert (mark.name, mark.words, mark.until) == (
        "purge",
        "done, 30 of 30, ann@host",
        BEGIN + timedelta(seconds=9),
    )


def test_an_action_without_messages_has_no_counts(tmp_path: Path) -> None:
    write(tmp_path, SAMPLES, sample(0, ready=1))
    install = {"at": BEGIN, "schema": "public", "queue": "orders", "action_id": 1}
    write(tmp_path, ACTIONS, {**install, "verb": "install", "outcome": "done", "operator": "ann"})
    assert [mark.words for mark in history(tmp_path, "prod", "orders", HOURS).marks] == [
        "done, ann"
    ]


def test_a_history_says_which_samples_were_taken_on_a_standby(tmp_path: Path) -> None:
    stretches: dict[int, tuple[str | None, float | None]]
    stretches = {100: ("standby", 2.5), 160: ("standby", None), 200: ("primary", None)}
    stretches |= {220: (None, None), 260: ("standby", 0.0), 290: ("primary", None)}
    stretches |= {400: ("standby", None)}
    rows = [
        {"at": BEGIN + timedelta(seconds=at), "role": role, "lag_seconds": lag, "upstream": "db1"}
        for at, (role, lag) in stretches.items()
    ]
    write(tmp_path, LINKS, *rows)
    write(tmp_path, SAMPLES, *map(sample, stretches))
    found = history(tmp_path, "prod", "orders", HOURS)
    on = "taken on a standby of db1"
    assert [(mark.kind, mark.name, mark.words) for mark in found.marks] == [
        ("standby", "prod", f"{on}, at most 2.5 s behind"),
        ("standby", "prod", f"{on}, caught up"),
        ("standby", "prod", f"{on}, lag ?"),
    ]
    seconds = [
        ((mark.at - BEGIN).total_seconds(), (mark.until - BEGIN).total_seconds())
        for mark in found.marks
        if mark.until is not None
    ]
    assert seconds == [(100, 160), (260, 260), (400, 400)]


def test_missing_and_ambiguous_recordings_are_errors(tmp_path: Path) -> None:
    write(tmp_path, SAMPLES, sample(0, ready=1), sample(0, schema="other"))
    with pytest.raises(NothingRecordedError):
        history(tmp_path, "prod", "nope", HOURS)
    with pytest.raises(NothingRecordedError):
        history(tmp_path, "stage", "orders", HOURS)
    with pytest.raises(UsageError, match="several"):
        history(tmp_path, "prod", "orders", HOURS)
    assert history(tmp_path, "prod", "orders", HOURS, schema="other").points[0]["ready"] is None
