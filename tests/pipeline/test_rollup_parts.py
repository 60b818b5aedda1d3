"""Rollups without Spark: percentile buckets, finding segments, and where history reads."""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.errors import UsageError
from console.features.history import lake_tables, rollup_files, segments
from console.features.history.points import history
from console.features.history.rollup_files import DayMadeOf
from console.features.history.segments import KINDS, SAMPLES, TimeRange
from console.features.lake.lake import Lake
from console.features.lake.rollup import job, segment_files, tables
from tests.pipeline.recorded import BEGIN, put_days, sample, write

DAY = BEGIN.date()


@given(st.lists(st.floats(1e-8, 1e6), min_size=1))
def test_a_bucket_represents_its_values_within_the_relative_error(values: list[float]) -> None:
    buckets = tables._bucket(pa.chunked_array([[*values, 0.0, -1.0, 1e-12]]))
    found = [rollup_files.value_of(bucket) for bucket in buckets.to_pylist()]
    for value, near in zip(values, found, strict=False):
        assert abs(near - value) <= rollup_files.RELATIVE_ERROR * value * (1 + 1e-9)
    assert found[-3:] == [0.0] * 3


def test_the_columns_read_are_those_that_the_recorder_writes() -> None:
    types = {"time": "timestamp", "text": "string", "count": "bigint", "number": "double"}
    for kind, columns in segment_files.COLUMNS.items():
        written = {
            name: types[kind_of_value] for name, kind_of_value in KINDS[kind].columns.items()
        }
        assert dict(columns).items() <= written.items()
    assert set(rollup_files.MEANS) < set(segment_files.COLUMNS["samples"])
    assert set(segment_files.COLUMNS) == set(rollup_files.KINDS)
    assert segment_files.VERSION == 1


def segment(name: str, first: float, last: float) -> segment_files.ClosedSegment:
    file = segment_files.SegmentFile("", name)
    begin, end = (BEGIN + timedelta(seconds=at) for at in (first, last))
    return segment_files.ClosedSegment((name,), file, 1, 1, begin, end)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50))))
def test_segments_of_one_source_never_overlap(spans: list[tuple[int, int]]) -> None:
    made = [segment(str(n), min(one), max(one)) for n, one in enumerate(spans)]
    sources: dict[int, list[segment_files.ClosedSegment]] = {}
    for with_source in segment_files.with_sources(made):
        sources.setdefault(with_source.source, []).append(with_source)
    for segments_of_source in sources.values():
        assert all(a.last < b.first for a, b in pairwise(segments_of_source))
    # As few as possible: as many as overlap at one moment.
    most = max((sum(s.first <= one.first <= s.last for s in made) for one in made), default=0)
    assert len(sources) == most


def test_the_same_segments_have_the_same_sources_in_any_order() -> None:
    made = [segment("a", 0, 9), segment("b", 5, 12), segment("c", 10, 20), segment("d", 21, 22)]
    one = {s.names[0]: s.source for s in segment_files.with_sources(made)}
    assert one == {s.names[0]: s.source for s in segment_files.with_sources(reversed(made))}
    assert one == {"a": 0, "b": 1, "c": 0, "d": 0}


def test_damaged_and_newer_files_are_counted_separately_and_older_ones_read(tmp_path: Path) -> None:
    write(tmp_path, SAMPLES, sample(1, ready=7))
    (good,) = (tmp_path / "samples").rglob("*.parquet")
    good.with_name("cut.parquet").write_bytes(good.read_bytes()[:-20])
    good.with_name("_tmp.parquet").write_bytes(b"")
    table = pq.read_table(good, partitioning=None)  # type: ignore[no-untyped-call]
    newer = table.replace_schema_metadata({"version": "2"})
    pq.write_table(newer, good.with_name("newer.parquet"))  # type: ignore[no-untyped-call]
    old = table.select(["at", "schema", "queue", "ready"]).cast(
        pa.schema(
            [
                ("at", pa.timestamp("us", "UTC")),
                ("schema", pa.string()),
                ("queue", pa.string()),
                ("ready", pa.int32()),
            ]
        )
    )
    pq.write_table(old, good.with_name("old.parquet"))  # type: ignore[no-untyped-call]
    (by_kind,) = segment_files.names([str(tmp_path)]).values()
    skipped = segment_files.SkippedFiles()
    sound = segment_files.readable_segments(by_kind["samples"], skipped)
    assert {name for segment in sound for name in segment.names} == {good.stem, "old"}
    assert skipped.as_json() == {"damaged": 1, "newer": 1}
    bad: list[str] = []
    rows = [
        row for b in segment_files.batches("samples", sound, bad.append) for row in b.to_pylist()
    ]
    assert [(row["ready"], row["gap"], row["source"]) for row in rows] == [
        (7, None, 0),
        (7, None, 1),
    ]
    assert not bad


def test_a_file_damaged_only_in_its_middle_is_reported(tmp_path: Path) -> None:
    write(tmp_path, SAMPLES, *(sample(at, ready=at) for at in range(200)))
    (path,) = (tmp_path / "samples").rglob("*.parquet")
    (by_kind,) = segment_files.names([str(tmp_path)]).values()
    sound = segment_files.readable_segments(by_kind["samples"], segment_files.SkippedFiles())
    data = bytearray(path.read_bytes())
    data[4:400] = b"\xff" * 396
    path.write_bytes(data)
    bad: list[str] = []
    assert not list(segment_files.batches("samples", sound, bad.append))
    assert len(bad) == 1


def test_a_copy_of_a_segment_in_another_folder_is_the_same_segment(tmp_path: Path) -> None:
    write(tmp_path / "a", SAMPLES, sample(1, ready=7))
    (path,) = (tmp_path / "a").rglob("*.parquet")
    copy = tmp_path / "b" / path.relative_to(tmp_path / "a")
    copy.parent.mkdir(parents=True)
    copy.write_bytes(path.read_bytes())
    path.write_bytes(b"damaged")
    (by_kind,) = segment_files.names([str(tmp_path / "a"), str(tmp_path / "b")]).values()
    (segment,) = segment_files.readable_segments(by_kind["samples"], segment_files.SkippedFiles())
    assert segment.file.folder == str(tmp_path / "b")


def test_a_folder_without_a_recording_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Nothing is recorded"):
        segment_files.names([str(tmp_path / "nowhere")])


def test_a_day_is_rolled_up_again_for_a_new_segment_and_kept_if_one_is_missing(
    tmp_path: Path,
) -> None:
    root = tmp_path / "recordings"

    def chosen(*known: str, damaged: Sequence[str] = (), days: job.Days | None = None) -> str:
        used, bad = (frozenset(("samples", name) for name in of) for of in (known, damaged))
        made = {("prod", DAY.isoformat()): DayMadeOf(used, bad)}
        selection = job.choose(made, segment_files.names([str(root)]), days)
        (word,) = (w for w in ("due", "unchanged", "kept") if getattr(selection, w))
        return word

    write(root, SAMPLES, sample(1, ready=7))
    (first,) = (root / "samples").rglob("*.parquet")
    assert chosen() == "due"
    assert chosen(first.stem) == "unchanged"
    named = job.Days(DAY, DAY)
    assert chosen(first.stem, days=named) == "due"
    write(root, SAMPLES, sample(2, ready=8))
    assert chosen(first.stem) == "due"
    assert chosen(first.stem, "gone") == "kept"
    assert chosen(first.stem, "gone", days=named) == "kept"
    first.write_bytes(b"damaged since")
    assert chosen(first.stem) == "kept"
    (second,) = {path.stem for path in (root / "samples").rglob("*.parquet")} - {first.stem}
    assert chosen(second, damaged=[first.stem]) == "unchanged"


# -- history from the tables


Rows = Mapping[tuple[str, str], list[dict[str, Any]]]


def put(lake: Path, rows: Rows, *names: str) -> None:
    """Commit the day, by kind and width, as made of these segments."""
    tables = {of: pa.Table.from_pylist(some) for of, some in rows.items()}
    put_days(Lake(lake), {DAY: tables}, *names)


def row(minute: int, samples: int, ready: int, rate: float) -> dict[str, Any]:
    return {
        "begin": BEGIN + timedelta(minutes=minute),
        "schema": "public",
        "queue": "orders",
        "design": "ring",
        "samples": samples,
        "ready_max": ready,
        "push_per_second_avg": rate,
    }


def time_range(hours: int = 24) -> TimeRange:
    return TimeRange(BEGIN, BEGIN + timedelta(hours=hours))


def test_a_day_that_only_the_lake_has_is_shown_from_its_minutes(tmp_path: Path) -> None:
    finding = {"schema": "public", "queue": "orders", "code": "hole", "summary": "one"}
    begin = BEGIN + timedelta(minutes=1)
    late = begin + timedelta(seconds=30)
    rows = {
        ("samples", "minute"): [row(0, 6, 5, 1.0), row(1, 2, 9, 5.0)],
        ("findings", "minute"): [{**finding, "begin": begin, "first_at": late}],
    }
    put(tmp_path, rows, "gone")
    span = time_range(1)
    result = history(tmp_path / "none", "prod", "orders", span, lake=str(tmp_path))
    assert result.step_seconds == 60
    assert result.tables == ("minute",)
    assert [(p.samples, p["ready"], p["push_per_second"]) for p in result.points] == [
        (6, 5, 1),
        (2, 9, 5),
    ]
    assert [(m.name, m.at) for m in result.marks] == [("hole", late)]
    wide = history(tmp_path, "prod", "orders", span, lake=str(tmp_path), most_points=12)
    (point,) = wide.points
    assert (wide.step_seconds, point.samples, point["ready"], point["push_per_second"]) == (
        300,
        8,
        9,
        2.0,
    )


def test_the_finest_table_within_the_maximum_of_points_is_used(tmp_path: Path) -> None:
    widths = (("minute", 1), ("hour", 2), ("day", 3))
    put(tmp_path, {("samples", w): [row(0, 1, ready, 1.0)] for w, ready in widths}, "gone")
    for most, width, ready in ((2000, "minute", 1), (24, "hour", 2), (1, "day", 3)):
        result = history(
            tmp_path, "prod", "orders", time_range(), lake=str(tmp_path), most_points=most
        )
        assert result.tables == (width,)
        assert result.points[0]["ready"] == ready


def test_history_reads_the_recording_and_the_lake_for_what_it_lacks(tmp_path: Path) -> None:
    root = tmp_path / "recordings"
    write(root, SAMPLES, sample(61, ready=70))
    (path,) = (root / "samples").rglob("*.parquet")

    def ready_points(*names: str, hours: int = 1) -> tuple[tuple[str, ...], list[float | None]]:
        put(tmp_path, {("samples", "minute"): [row(0, 6, 5, 1.0), row(1, 6, 6, 1.0)]}, *names)
        result = history(root, "prod", "orders", time_range(hours), lake=str(tmp_path))
        return result.tables, [point["ready"] for point in result.points]

    # All that the lake was made from is still here: its seconds are available.
    assert ready_points(path.stem) == (("raw",), [70])
    # For longer points the lake is as good, and faster.
    assert ready_points(path.stem, hours=200) == (("minute",), [6])
    # A part of it is gone here.
    assert ready_points(path.stem, "gone") == (("minute",), [5, 6])
    # Each has what the other lacks: no minute is shown twice.
    assert ready_points("gone") == (("raw", "minute"), [5, 70])
    # An open segment: its samples are nowhere else.
    opened = segments.Segment(root, "prod", datetime(2026, 3, 28, 1, tzinfo=UTC))
    opened.write(SAMPLES, [sample(3700, ready=99)])
    assert ready_points(path.stem, hours=2) == (("raw",), [70, 99])
    opened.close()


def test_a_damaged_file_of_the_rollups_is_skipped_and_counted(tmp_path: Path) -> None:
    write(tmp_path, SAMPLES, sample(1, ready=7))
    put(tmp_path, {("samples", "minute"): [row(0, 6, 5, 1.0)]}, "gone")
    for path in (tmp_path / "rollup").rglob("*.parquet"):
        path.write_bytes(b"PAR1")
    result = history(tmp_path, "prod", "orders", time_range(), lake=str(tmp_path))
    assert result.tables == ("raw",)
    assert "1 damaged files" in result.skipped


def test_history_says_why_a_lake_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, SAMPLES, sample(1, ready=7))
    (tmp_path / "lake" / "_manifests").mkdir(parents=True)

    def skipped() -> str:
        return history(
            tmp_path, "prod", "orders", time_range(), lake=str(tmp_path / "lake")
        ).skipped

    assert "older console: dbq-console pipeline rollup says what to do" in skipped()
    monkeypatch.setattr(lake_tables, "is_installed", lambda: False)
    assert "needs pip install 'dbq-console[pipeline]'" in skipped()


def test_days_are_parsed_from_the_command_line() -> None:
    from console.features.lake.cli.jobs import _days  # noqa: PLC0415

    assert _days("2026-03-28") == job.Days(DAY, DAY)
    assert _days("2026-03-28..2026-03-30") == job.Days(DAY, date(2026, 3, 30))
    for wrong in ("", "yesterday", "2026-03-30..2026-03-28"):
        with pytest.raises(UsageError):
            _days(wrong)
