"""Segments and the recorder: what was written can be read, whatever was cut off."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.errors import ConnectionFailedError, RefusedError
from console.features.history import segments
from console.features.history.reader import RecordReader
from console.features.history.recorder import Bounds, Recorder, prune
from console.features.history.segments import (
    ACTIONS,
    FINDINGS,
    KINDS,
    LINKS,
    SAMPLES,
    RecordKind,
    TimeRange,
)
from console.monitor.sampler import Reading
from tests.servers import wait_until
from tests.tools.hostile import COSTLY
from tests.tui.feeds import BEHIND, nine_queues, queue

NOW = datetime(2026, 3, 29, 0, 59, 58, 123456, tzinfo=UTC)
ALWAYS = TimeRange(datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC))
BY_TYPE: dict[str, st.SearchStrategy[Any]] = {
    segments.TEXT: st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    segments.COUNT: st.integers(-(2**63), 2**63 - 1),
    segments.NUMBER: st.floats(allow_nan=False, allow_infinity=False),
    segments.TIME: st.timedeltas(timedelta(0), timedelta(days=40_000)).map(
        lambda since: datetime(1990, 1, 1, tzinfo=UTC) + since
    ),
}


def wait_for(condition: Callable[[], bool]) -> None:
    wait_until(condition, "it comes")


@st.composite
def row(draw: st.DrawFn, kind: RecordKind) -> dict[str, Any]:
    values = {
        name: draw(st.none() | BY_TYPE[column_type])
        for name, column_type in kind.columns.items()
        if name != "at"
    }
    return {"at": draw(BY_TYPE[segments.TIME]), **values}


@st.composite
def some_rows(draw: st.DrawFn) -> tuple[RecordKind, list[dict[str, Any]]]:
    kind = draw(st.sampled_from(sorted(KINDS.values(), key=lambda kind: kind.name)))
    return kind, draw(st.lists(row(kind), max_size=5))


@COSTLY
@given(st.lists(some_rows(), max_size=4), st.text(min_size=1, max_size=20), st.booleans())
def test_rows_of_open_and_closed_segments_can_be_read(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[tuple[RecordKind, list[dict[str, Any]]]],
    connection: str,
    close: bool,
) -> None:
    root = tmp_path_factory.mktemp("recordings")
    segment = segments.Segment(root, connection, NOW)
    for kind, rows in batches:
        segment.write(kind, rows)
    if close:
        assert not segment.close().torn
    for kind in KINDS.values():
        reader = RecordReader(root, connection)
        written = [row for its_kind, rows in batches for row in rows if its_kind is kind]
        assert reader.rows(kind, ALWAYS) == sorted(written, key=lambda one: one["at"])
        assert reader.skipped.text == ""
    if not close:
        segment.close()


@given(st.integers(0, 400))
def test_a_torn_segment_keeps_every_complete_line(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    root = tmp_path_factory.mktemp("recordings")
    segment = segments.Segment(root, "prod", NOW)
    rows = [{"at": NOW, "latency_seconds": 0.5, "queues": number} for number in range(4)]
    segment.write(LINKS, rows)
    data = segment.path.read_bytes()
    segment.path.write_bytes(data[: min(cut, len(data))])
    complete = data[:cut].count(b"\n")
    lines = segment.close()
    assert len(lines.rows) == complete
    assert lines.torn == (0 if data[:cut].endswith(b"\n") or not data[:cut] else 1)
    read = RecordReader(root, "prod").rows(LINKS, ALWAYS)
    assert [one["queues"] for one in read] == list(range(complete))


def test_a_crash_while_a_segment_is_closed_duplicates_no_rows(tmp_path: Path) -> None:
    segment = segments.Segment(tmp_path, "prod", NOW)
    segment.write(LINKS, [{"at": NOW, "queues": 1}])
    copy = segment.path.read_bytes()
    segment.close()
    segment.path.write_bytes(copy)  # as if its removal, the last step, had not happened
    assert len(RecordReader(tmp_path, "prod").rows(LINKS, ALWAYS)) == 1
    Recorder(tmp_path, "prod", now=lambda: NOW).close()
    assert not segments.open_segments(tmp_path, "prod")
    assert len(RecordReader(tmp_path, "prod").rows(LINKS, ALWAYS)) == 1


def test_lines_of_a_newer_console_and_damaged_files_are_skipped_and_counted(tmp_path: Path) -> None:
    segment = segments.Segment(tmp_path, "prod", NOW)
    segment.write(LINKS, [{"at": NOW, "queues": 1}])
    newer = {"v": segments.VERSION + 1, "of": "links", "at": NOW.isoformat()}
    with segment.path.open("a") as file:
        file.write(json.dumps(newer) + "\n" + "{]\n" + '{"v": 1, "of": "links"}\n')
    lines = segment.close()
    assert (len(lines.rows), lines.newer, lines.torn) == (1, 1, 2)
    folder = tmp_path / "links" / "connection=prod" / "date=2026-03-29"
    (folder / "half.parquet").write_bytes(b"PAR1 and then nothing")
    (folder / ".draft.parquet").write_bytes(b"nobody reads this")
    reader = RecordReader(tmp_path, "prod")
    assert [row["queues"] for row in reader.rows(LINKS, ALWAYS)] == [1]
    assert reader.skipped.text == "skipped: 1 damaged files"


def test_a_segment_over_midnight_goes_to_both_days(tmp_path: Path) -> None:
    segment = segments.Segment(tmp_path, "prod", NOW)
    late = datetime(2026, 3, 29, 23, 59, 59, 999999, tzinfo=UTC)
    segment.write(LINKS, [{"at": late}, {"at": late + timedelta(microseconds=1)}])
    segment.close()
    days = [f"{day}" for day, _ in segments.closed(tmp_path, LINKS, "prod")]
    assert days == ["2026-03-29", "2026-03-30"]


def test_an_older_file_that_lacks_a_column_can_be_read(tmp_path: Path) -> None:
    segment = segments.Segment(tmp_path, "prod", NOW)
    segment.write(LINKS, [{"at": NOW, "queues": 3}])
    segment.close()
    ((_, path),) = segments.closed(tmp_path, LINKS, "prod")
    table = pq.read_table(path, partitioning=None)  # type: ignore[no-untyped-call]
    pq.write_table(table.drop_columns(["error", "role"]), path)  # type: ignore[no-untyped-call]
    reader = RecordReader(tmp_path, "prod")
    (read,) = reader.rows(LINKS, ALWAYS)
    assert (read["queues"], read["error"]) == (3, None)
    assert segments.standby_of(read) is None
    assert reader.rows(LINKS, ALWAYS, role="standby") == []
    assert reader.skipped.text == "", "it is older, not damaged"


def test_the_recorder_writes_samples_and_failures(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "prod")
    recorder.reading(Reading("prod", tuple(nine_queues()), latency_seconds=0.004))
    error = ConnectionFailedError("Could not sample the queues.", why="password=secret")
    recorder.reading(Reading("prod", error=error))
    recorder.close()
    reader = RecordReader(tmp_path, "prod")
    links = reader.rows(LINKS, ALWAYS)
    assert [link["error"] for link in links] == [None, "Could not sample the queues."]
    recorded = [segments.snapshot_of(row, "") for row in reader.rows(SAMPLES, ALWAYS)]
    expected = [replace(snapshot, claims=None, held_by=(), slow=()) for snapshot in nine_queues()]
    assert recorded == expected
    assert recorder.problem == ""


def test_the_recorder_writes_whether_the_server_was_a_standby(tmp_path: Path) -> None:
    unknown = replace(BEHIND, receives=None, lag_seconds=None, upstream=None)
    given = [BEHIND, replace(BEHIND, paused=False, receives=False), unknown, None]
    recorder = Recorder(tmp_path, "prod")
    for standby in given:
        recorder.reading(Reading("prod", standby=standby))
    recorder.reading(Reading("prod", standby=BEHIND, error=ConnectionFailedError("It is lost.")))
    recorder.close()
    links = RecordReader(tmp_path, "prod").rows(LINKS, ALWAYS)
    assert [link["role"] for link in links] == ["standby", "standby", "standby", "primary", None]
    for row, standby in zip(links, [*given, None], strict=True):
        read = segments.standby_of(row)
        if standby is None:
            assert read is None
        else:
            assert read == replace(standby, now=row["at"], received=None, replayed=None)


def test_a_connection_has_at_most_one_recorder(tmp_path: Path) -> None:
    first = Recorder(tmp_path, "prod")
    other = Recorder(tmp_path, "stage")
    with pytest.raises(RefusedError, match="already being recorded"):
        Recorder(tmp_path, "prod")
    first.close()
    Recorder(tmp_path, "prod").close()
    other.close()


def test_an_unwritable_folder_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("no folder")
    with pytest.raises(Exception, match="Could not record"):
        Recorder(path, "prod")


@pytest.mark.parametrize("error", [OSError(28, "No space left"), TypeError("No space left")])
def test_a_write_that_fails_is_reported_and_recording_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    failing = [True]
    write = segments.Segment.write

    def sometimes(self: segments.Segment, kind: RecordKind, rows: Any) -> None:
        if failing[0]:
            raise error
        write(self, kind, rows)

    monkeypatch.setattr(segments.Segment, "write", sometimes)
    monkeypatch.setattr("console.features.history.recorder._RETRY_SECONDS", 0.0)
    recorder = Recorder(tmp_path, "prod", now=lambda: NOW)
    recorder.reading(Reading("prod", (queue("orders"),)))
    wait_for(lambda: "No space left" in recorder.problem)
    failing[0] = False
    recorder.add(LINKS, [{"at": NOW}])
    wait_for(lambda: recorder.problem == "")
    recorder.close()
    assert recorder.dropped == 2
    assert len(RecordReader(tmp_path, "prod").rows(LINKS, ALWAYS)) == 1


def test_a_segment_that_cannot_be_sealed_waits_for_the_next_recorder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(segments, "seal", Mock(side_effect=pa.ArrowInvalid("not today")))
        for number in range(2):
            recorder = Recorder(tmp_path, "prod", now=lambda: NOW)
            wait_for(lambda current=recorder, n=number: ("not today" in current.problem) == bool(n))  # type: ignore[misc]
            recorder.add(LINKS, [{"at": NOW}])
            recorder.close()
            assert "not today" in recorder.problem
    assert len(segments.open_segments(tmp_path, "prod")) == 2
    Recorder(tmp_path, "prod", now=lambda: NOW).close()
    assert not segments.open_segments(tmp_path, "prod")
    assert len(RecordReader(tmp_path, "prod").rows(LINKS, ALWAYS)) == 2


def test_a_write_that_fails_in_the_middle_leaves_no_half_line(tmp_path: Path) -> None:
    segment = segments.Segment(tmp_path, "prod", NOW)
    segment.write(LINKS, [{"at": NOW, "queues": 1}])
    file = segment._file

    class Half:
        def write(self, data: bytes) -> int:
            if len(data) < 20:
                raise OSError(28, "No space left on device")
            return file.write(data[: len(data) // 2])

        def __getattr__(self, name: str) -> Any:
            return getattr(file, name)

    segment._file = Half()  # type: ignore[assignment]
    with pytest.raises(OSError, match="No space"):
        segment.write(LINKS, [{"at": NOW, "queues": 2}])
    segment._file = file
    segment.write(LINKS, [{"at": NOW, "queues": 3}])
    assert [one["queues"] for _, one in segment.close().rows] == [1, 3]


def test_the_oldest_files_are_pruned_first_by_age_and_size(tmp_path: Path) -> None:
    for days in range(6):
        at = NOW - timedelta(days=days)
        segment = segments.Segment(tmp_path, "prod", at)
        segment.write(LINKS, [{"at": at, "queues": days}])
        segment.write(FINDINGS, [{"at": at, "verdict": "all clear"}])
        segment.close()
    files = [
        path for kind in (LINKS, FINDINGS) for _, path in segments.closed(tmp_path, kind, "prod")
    ]
    size = max(path.stat().st_size for path in files)
    assert prune(tmp_path, "prod", Bounds(keep_seconds=3.5 * 86400), NOW) == 2
    left = [row["queues"] for row in RecordReader(tmp_path, "prod").rows(LINKS, ALWAYS)]
    assert left == [4, 3, 2, 1, 0]
    prune(tmp_path, "prod", Bounds(most_bytes=4 * size), NOW)
    left = [row["queues"] for row in RecordReader(tmp_path, "prod").rows(LINKS, ALWAYS)]
    assert left == [1, 0]
    assert not list(tmp_path.glob("*/connection=prod/date=2026-03-24"))


def test_no_record_kind_has_a_column_for_payloads() -> None:
    columns = {name for kind in KINDS.values() for name in kind.columns}
    assert not columns & {"payload", "title", "filters", "detail", "claimed_by", "error_text"}
    assert set(ACTIONS.columns) >= {"verb", "outcome", "done"}


def test_recordings_are_private_to_their_owner(tmp_path: Path) -> None:
    root = tmp_path / "new"
    segment = segments.Segment(root, "prod", NOW)
    segment.write(LINKS, [{"at": NOW}])
    assert segment.path.parent.stat().st_mode & 0o077 == 0
    segment.close()


def test_reading_an_hour_does_not_open_the_whole_day(tmp_path: Path) -> None:
    """Segments are chosen by name, also one that a suspended machine wrote to for hours."""
    midnight = datetime(2026, 3, 28, tzinfo=UTC)
    begins = [midnight + timedelta(minutes=5 * number) for number in range(5 * 12)]
    asleep = begins[16]  # no other one began for three hours: this one has their rows
    for at in begins:
        if asleep < at < asleep + timedelta(hours=3):
            continue
        segment = segments.Segment(tmp_path, "prod", at)
        last = at + (timedelta(hours=2.9) if at == asleep else timedelta(minutes=4))
        segment.write(segments.SAMPLES, [{"at": moment, "queue": "q"} for moment in (at, last)])
        segment.close()
    opened: list[str] = []

    class Counting(RecordReader):
        def _closed(
            self, kind: Any, paths: Sequence[Path], *more: Any, **how: Any
        ) -> list[pa.Table]:
            opened.extend(path.stem for path in paths)
            return super()._closed(kind, paths, *more, **how)

    all_rows = RecordReader(tmp_path, "prod").rows(segments.SAMPLES, segments.ALWAYS, ["at"])
    for hour in range(5):
        begin = midnight + timedelta(hours=hour)
        span = segments.TimeRange(begin, begin + timedelta(hours=1))
        opened.clear()
        rows = Counting(tmp_path, "prod").rows(segments.SAMPLES, span, ["at"])
        assert rows == [row for row in all_rows if row["at"] in span]
        assert len(opened) <= 18


# -- the segments of a past day, merged

NEXT_DAY = datetime(2026, 3, 29, tzinfo=UTC)


def record_day(root: Path, *, first: int = 0, last: int = 12) -> None:
    """A segment every two hours of 2026-03-28."""
    for number in range(first, last):
        at = NEXT_DAY - timedelta(hours=24 - 2 * number)
        times = [at + timedelta(minutes=20 * part) for part in range(6)]
        segment = segments.Segment(root, "prod", at)
        rows = [
            {"at": moment, "queue": name, "ready": 1}
            for moment in times
            for name in ("b", "a", "ü")
        ]
        segment.write(SAMPLES, rows)
        segment.write(LINKS, [{"at": moment, "queues": number} for moment in times])
        waits = [{"at": times[0], "wait": "x"}, {"at": times[1], "queue": "a"}]
        segment.write(segments.WAITS, waits)
        segment.close()


def read_all(root: Path) -> tuple[Any, ...]:
    reader = RecordReader(root, "prod")
    rows = {name: reader.rows(kind, ALWAYS) for name, kind in KINDS.items()}
    for some in rows.values():
        some.sort(key=lambda row: (row["at"], str(row)))
    return rows, reader.extent(LINKS), reader.skipped


def files_of(root: Path, kind: RecordKind = SAMPLES) -> list[Path]:
    return sorted((root / kind.name).rglob("[!.]*.parquet"))


def test_the_segments_of_a_past_day_become_one_file_sorted_by_queue(tmp_path: Path) -> None:
    record_day(tmp_path)
    names, before = {path.stem for path in files_of(tmp_path)}, read_all(tmp_path)
    segments.merge(tmp_path, "prod", (NEXT_DAY - timedelta(days=1)).date())
    assert len(files_of(tmp_path)) == 12, "the day is not past yet"
    segments.merge(tmp_path, "prod", NEXT_DAY.date())
    assert read_all(tmp_path) == before
    (merged,) = files_of(tmp_path)
    table = pq.read_table(merged, partitioning=None)  # type: ignore[no-untyped-call]
    rows = [(row["queue"], row["at"]) for row in table.to_pylist()]
    assert rows == sorted(rows)
    assert segments.names_in(merged) == names
    # A segment of that day that is sealed later stays beside it.
    record_day(tmp_path, last=1)
    late = read_all(tmp_path)
    assert len(late[0]["links"]) == len(before[0]["links"]) + 6
    segments.merge(tmp_path, "prod", NEXT_DAY.date())
    assert len(files_of(tmp_path)) == 2
    assert read_all(tmp_path) == late


def test_a_merge_that_is_interrupted_anywhere_changes_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_day(tmp_path)
    before = read_all(tmp_path)
    unlink = Path.unlink

    def spared(path: Path, *, missing_ok: bool = False) -> None:
        if not path.name.startswith("."):
            raise OSError("cut")
        unlink(path, missing_ok=missing_ok)

    for method, cut in (("replace", Mock(side_effect=OSError("cut"))), ("unlink", spared)):
        with monkeypatch.context() as patch:
            patch.setattr(Path, method, cut)
            with pytest.raises(OSError, match="cut"):
                segments.merge(tmp_path, "prod", NEXT_DAY.date())
        assert read_all(tmp_path) == before
    assert len(files_of(tmp_path)) == 13
    segments.merge(tmp_path, "prod", NEXT_DAY.date())
    assert len(files_of(tmp_path)) == len(files_of(tmp_path, LINKS)) == 1
    assert read_all(tmp_path) == before


def test_what_is_damaged_or_of_two_consoles_is_not_merged(tmp_path: Path) -> None:
    record_day(tmp_path)
    broken = files_of(tmp_path)[3]
    broken.write_bytes(broken.read_bytes()[:-30])
    before = read_all(tmp_path)
    assert before[2].files == 1
    segments.merge(tmp_path, "prod", NEXT_DAY.date())
    assert len(files_of(tmp_path)) == 2
    assert broken in files_of(tmp_path)
    assert read_all(tmp_path) == before
    for _ in range(2):
        record_day(tmp_path / "two")
    segments.merge(tmp_path / "two", "prod", NEXT_DAY.date())
    assert len(files_of(tmp_path / "two")) == 24


def test_a_merge_of_many_rows_takes_some_queues_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_day(tmp_path)
    before = read_all(tmp_path)
    monkeypatch.setattr(segments, "_AT_ONCE", 1)
    segments.merge(tmp_path, "prod", NEXT_DAY.date())
    assert read_all(tmp_path) == before
    (merged,) = files_of(tmp_path)
    assert pq.read_metadata(merged).num_row_groups == 3  # type: ignore[no-untyped-call]


def test_the_recorder_merges_days_that_are_past(tmp_path: Path) -> None:
    record_day(tmp_path)
    for hour, count in ((0.5, 12), (1.5, 1)):
        at = NEXT_DAY + timedelta(hours=hour)
        recorder = Recorder(tmp_path, "prod", now=lambda at=at: at)  # type: ignore[misc]
        recorder.add(LINKS, [{"at": at}])
        recorder.close()
        assert len(files_of(tmp_path)) == count


def test_what_is_merged_while_it_is_read_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_day(tmp_path)
    before = read_all(tmp_path)
    listed = segments.closed

    def merging(*of: Any) -> list[Any]:
        found = list(listed(*of))
        segments.merge(tmp_path, "prod", NEXT_DAY.date())
        return found

    monkeypatch.setattr(segments, "closed", merging)
    assert RecordReader(tmp_path, "prod").rows(LINKS, ALWAYS) == before[0]["links"]
    assert len(files_of(tmp_path)) == 1
