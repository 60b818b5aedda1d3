"""Foreign or damaged recordings: valid records are read, the others counted."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.features.history import segments
from console.features.history.points import History, history, since
from console.features.history.reader import RecordReader
from console.features.history.recorder import Recorder
from console.features.history.recordings.replay_thread import ConnectionRecording
from console.features.history.segments import ALWAYS, KINDS, LINKS, SAMPLES, VERSION
from tests.tools.hostile import COSTLY, outcome, texts

NOW = datetime(2026, 3, 29, 12, tzinfo=UTC)
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**63, -(2**63) - 1, 10**400, 0, -1]),
    st.floats(),
    texts,
    st.sampled_from(["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "12", "1e400"]),
    st.lists(st.none(), max_size=1),
    st.dictionaries(texts, st.none(), max_size=1),
)
TIMES = st.integers(0, 3600).map(lambda seconds: (NOW - timedelta(seconds=seconds)).isoformat())
COLUMNS = sorted({name for kind in KINDS.values() for name in kind.columns})
RECORDS = st.fixed_dictionaries(
    {
        "v": st.just(VERSION) | ODD,
        "of": st.sampled_from(sorted(KINDS)) | ODD,
        "at": TIMES | ODD,
        "queue": st.just("mail") | ODD,
        "schema": st.just("public") | ODD,
    },
    optional={name: ODD for name in COLUMNS if name not in {"at", "queue", "schema"}},
)
LINES = st.one_of(
    RECORDS.map(lambda record: json.dumps(record).encode()),
    st.binary(max_size=40).map(lambda data: data.replace(b"\n", b"")),
    st.just(b"[" * 100_000),
)


def read_everything(root: Path) -> None:
    """Uses every reader of a recording."""
    for kind in KINDS.values():
        RecordReader(root, "prod").rows(kind, ALWAYS)
        RecordReader(root, "prod").extent(kind)
    span = since(NOW + timedelta(seconds=1), 7200.0)
    found = outcome(lambda: history(root, "prod", "mail", span))
    if isinstance(found, History):
        json.dumps(found.as_json(), allow_nan=False)
    recording = ConnectionRecording(root, "prod")
    recording.before(NOW)
    recording.between(NOW, NOW + timedelta(seconds=5))


@COSTLY
@given(st.lists(LINES, max_size=8))
def test_any_line_is_read_or_counted(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    root = tmp_path_factory.mktemp("recordings")
    segment = segments.Segment(root, "prod", NOW)
    segment.leave()
    segment.path.write_bytes(b"".join(line + b"\n" for line in lines))
    found = segments.read_lines(segment.path)
    assert len(found.rows) + found.torn + found.newer == len(lines)
    read_everything(root)
    before = {kind.name: RecordReader(root, "prod").rows(kind, ALWAYS) for kind in KINDS.values()}
    segments.seal(root, "prod", segment.path)
    for kind in KINDS.values():
        reader = RecordReader(root, "prod")
        assert reader.rows(kind, ALWAYS) == before[kind.name]
        assert reader.skipped.text == ""
    read_everything(root)


def test_a_recorder_continues_after_a_damaged_segment(tmp_path: Path) -> None:
    segment = segments.Segment(tmp_path, "prod", NOW)
    segment.leave()
    null = {"v": 1, "of": "links", "at": None}
    far = {"v": 1, "of": "links", "at": "0001-01-01T00:00:00+14:00"}
    half = {"v": 1, "of": "links", "at": NOW.isoformat(), "error": "\ud800"}
    good = {"v": 1, "of": "links", "at": NOW.isoformat(), "queues": 1}
    text = "".join(json.dumps(one) + "\n" for one in (null, far, half, good))
    segment.path.write_text(text + "[" * 100_000 + "\n")
    recorder = Recorder(tmp_path, "prod", now=lambda: NOW)
    recorder.add(LINKS, [{"at": NOW, "queues": 2}])
    recorder.close()
    assert recorder.torn == 3
    rows = RecordReader(tmp_path, "prod").rows(LINKS, ALWAYS)
    assert sorted((row["queues"] or 0, row["error"]) for row in rows) == [
        (0, "?"),
        (1, None),
        (2, None),
    ]


def test_invalid_unicode_is_recorded_with_question_marks(tmp_path: Path) -> None:
    segment = segments.Segment(tmp_path, "prod", NOW)
    segment.write(LINKS, [{"at": NOW, "error": "half \ud83d"}, {"at": NOW, "error": "whole"}])
    assert segment.close().torn == 0
    rows = RecordReader(tmp_path, "prod").rows(LINKS, ALWAYS)
    assert [row["error"] for row in rows] == ["half ?", "whole"]


# Closed segments.

FOREIGN_COLUMNS: dict[str, pa.Array] = {
    "texts": pa.array(["x", "12", None]),
    "whole": pa.array([1, 2, None], pa.int64()),
    "wide": pa.array([2**64 - 1, 1, None], pa.uint64()),
    "floats": pa.array([float("inf"), float("nan"), 1.5]),
    "days": pa.array([NOW.date()] * 3, pa.date32()),
    "naive": pa.array([NOW.replace(tzinfo=None)] * 3, pa.timestamp("us")),
    "exact": pa.array([NOW] * 3, pa.timestamp("us", tz="UTC")),
    "nanos": pa.array([1_774_785_600_000_000_001] * 3, pa.timestamp("ns", tz="UTC")),
    "elsewhere": pa.array([NOW] * 3, pa.timestamp("us", tz="Nowhere/Else")),
    "far": pa.array([2**62] * 3, pa.timestamp("us", tz="UTC")),
    "lists": pa.array([[1], [], None]),
    "structs": pa.array([{"a": 1}] * 3),
    "bytes": pa.array([b"\xff", b"x", None]),
    "words": pa.array(["a", "b", "a"]).dictionary_encode(),
    "nothing": pa.nulls(3),
    "bits": pa.array([True, False, None]),
}


def closed(root: Path, kind: str, columns: dict[str, pa.Array]) -> None:
    """A file stored like a closed segment."""
    folder = root / kind / "connection=prod" / "date=2026-03-29"
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), folder / "stranger.parquet")  # type: ignore[no-untyped-call]


@pytest.mark.thinned(8)
@pytest.mark.parametrize("foreign_column", FOREIGN_COLUMNS)
def test_a_column_of_another_type_is_converted_or_its_file_is_skipped(
    tmp_path: Path, foreign_column: str
) -> None:
    """Each column of each kind."""
    mail = pa.array(["mail"] * 3)
    cases = [(kind, name) for kind in KINDS.values() for name in kind.columns]
    for number, (kind, name) in enumerate(cases):
        root = tmp_path / str(number)
        columns = {"at": FOREIGN_COLUMNS["exact"], "queue": mail, "schema": mail}
        columns = {one: column for one, column in columns.items() if one in kind.columns}
        closed(root, kind.name, {**columns, name: FOREIGN_COLUMNS[foreign_column]})
        reader = RecordReader(root, "prod")
        rows = reader.rows(kind, ALWAYS)
        assert len(rows) == 3 or reader.skipped.files == 1 or name == "at"
        for row in rows:
            assert isinstance(row["at"], datetime)
        if kind is SAMPLES and name in {"at", "ready", "age_seconds", "queue"}:
            read_everything(root)


FILES = st.tuples(
    st.sampled_from(sorted(KINDS)),
    st.dictionaries(
        st.sampled_from(COLUMNS) | texts.filter(str.isprintable).filter(bool),
        st.sampled_from(sorted(FOREIGN_COLUMNS)),
    ),
)


@COSTLY
@given(FILES)
def test_any_file_is_read_or_skipped(
    tmp_path_factory: pytest.TempPathFactory, file: tuple[str, dict[str, str]]
) -> None:
    root, (kind, names) = tmp_path_factory.mktemp("recordings"), file
    closed(
        root,
        kind,
        {name: FOREIGN_COLUMNS[foreign_column] for name, foreign_column in names.items()},
    )
    read_everything(root)


@COSTLY
@given(st.integers(0, 10_000), st.binary(max_size=20))
def test_a_truncated_or_damaged_file_is_read_or_skipped(
    tmp_path_factory: pytest.TempPathFactory, position: int, data: bytes
) -> None:
    root = tmp_path_factory.mktemp("recordings")
    segment = segments.Segment(root, "prod", NOW)
    row = {"at": NOW, "queue": "mail", "schema": "public", "ready": 1}
    segment.write(SAMPLES, [row])
    segment.close()
    ((_, path),) = segments.closed(root, SAMPLES, "prod")
    complete = path.read_bytes()
    position %= len(complete)
    path.write_bytes(complete[:position] + data)
    reader = RecordReader(root, "prod")
    assert len(reader.rows(SAMPLES, ALWAYS)) + reader.skipped.files == 1
    path.write_bytes(complete[:position] + data + complete[position + len(data) :])
    read_everything(root)


FOLDERS = ["connection=..%2F..%2Fx", "connection=%1b[2J", "connection=%ff", "connection=", "x"]


def test_folders_of_any_name_are_connections_or_ignored(tmp_path: Path) -> None:
    for name in FOLDERS:
        (tmp_path / "links" / name / "date=9999-99-99").mkdir(parents=True)
        (tmp_path / "links" / name / "date=9999-12-31").mkdir(parents=True)
    connections: list[Any] = segments.connections(tmp_path)
    assert connections == ["", "\x1b[2J", "../../x", "\ufffd"]
    for connection in connections:
        assert RecordReader(tmp_path, connection).extent(LINKS) is None
