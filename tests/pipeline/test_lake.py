"""The lake: files are complete or absent, and failures and damage are reported."""

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from console.errors import ConsoleError, RefusedError, UsageError
from console.features.lake import runs
from console.features.lake.archive import files
from console.features.lake.archive.files import pq
from console.features.lake.lake import DamagedError, Lake
from console.features.lake.table import MessagesTable, find_archive
from tests.tools.hostile import texts


class Failing:
    """A filesystem whose writes fail after this many bytes."""

    def __init__(self, files: Any, number: int, after: int = 0) -> None:
        self._files = files
        self.number = number
        self.left = after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    @contextmanager
    def open_output_stream(self, path: str) -> Iterator["FailingFile"]:
        with self._files.open_output_stream(path) as file:
            yield FailingFile(self, file)


class FailingFile:
    def __init__(self, of: Failing, file: Any) -> None:
        self._of = of
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: Any) -> int:
        self._of.left -= len(data)
        if self._of.left < 0:
            raise OSError(self._of.number, os.strerror(self._of.number))
        return int(self._file.write(data))


def fail(lake: Lake, number: int, after: int = 0) -> None:
    """From now on only this many bytes can be written."""
    lake._storage.files = Failing(lake.filesystem, number, after)


def modes(lake: Lake) -> tuple[set[int], set[int]]:
    """Of its files, and of its folders."""
    root = Path(lake.location)
    paths = [root, *root.rglob("*")]
    mode = {path: path.stat().st_mode & 0o7777 for path in paths}
    return {mode[path] for path in paths if path.is_file()}, {
        mode[path] for path in paths if path.is_dir()
    }


def test_only_its_user_can_read_a_lake_unless_its_group_may(lake: Lake) -> None:
    before = os.umask(0)
    try:
        for at in (lake, Lake(lake.location + " of a group")):
            at.write_json("a/b/c.json", {})
            assert modes(at) == ({0o600}, {0o700})
        at.open_to_group()
        assert modes(at) == ({0o660}, {0o2770})
        again = Lake(at.location)
        again.write_json("d/e.json", {})
        assert modes(again) == ({0o660}, {0o2770}), "every process knows it"
    finally:
        os.umask(before)


def test_a_table_of_another_program_is_refused(lake: Lake) -> None:
    of_others = pa.table({"id": [1], "body": ["x"]})
    write_deltalake(Path(lake.location) / "messages", of_others)
    with pytest.raises(DamagedError, match="is not of this console"):
        MessagesTable.open(lake)


def test_a_lake_of_an_older_console_is_refused_with_the_next_step(lake: Lake) -> None:
    lake.write_json("archive/connection=c/queue=public.mail/date=2026-03-29/a.parquet", {})
    with pytest.raises(UsageError, match="older console") as error:
        find_archive(lake, None, None, "mail")
    assert error.value.next_step


def test_a_file_is_complete_or_absent(lake: Lake) -> None:
    lake.write_json("a/b.json", {"n": 1})
    with suppress(ZeroDivisionError), lake.writing("a/b.json") as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert lake.read_json("a/b.json") == {"n": 1}
    assert lake.files("a") == ["a/b.json"]
    lake.write_json("a/b.json", {"n": 2})
    assert lake.read_json("a/b.json") == {"n": 2}


def test_readers_find_only_files_of_data(lake: Lake) -> None:
    for path in ("x/date=1/a.parquet", "x/_tmp-a.parquet", "x/.a.parquet", "x/_m/b.parquet"):
        lake.write_json(path, {})
    assert lake.data_files("x") == ["x/date=1/a.parquet"]
    assert lake.names("x") == [".a.parquet", "_m", "_tmp-a.parquet", "date=1"]
    assert lake.files("nowhere") == lake.names("nowhere") == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_reported_and_leaves_nothing(lake: Lake, number: int) -> None:
    lake.write_json("a.json", {"n": 1})
    fail(lake, number, after=2)
    with pytest.raises(ConsoleError, match="is full") as error:
        lake.write_json("a.json", {"n": 22})
    assert "Nothing is lost" in str(error.value)
    assert Lake(lake.location).names("") == ["a.json"]
    assert Lake(lake.location).read_json("a.json") == {"n": 1}


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_lake_that_may_not_be_written_is_refused(lake: Lake, number: int) -> None:
    fail(lake, number)
    with pytest.raises(RefusedError, match="cannot be written"):
        lake.write_json("a.json", {"n": 1})


def test_a_damaged_manifest_is_reported(lake: Lake) -> None:
    for content in (b'{"half": ', b"[1]", b"\xff\xfe"):
        with lake.writing("a.json") as file:
            file.write(content)
        with pytest.raises(DamagedError, match=r"a\.json is damaged"):
            lake.read_json("a.json")
    with pytest.raises(FileNotFoundError):
        lake.read_json("b.json")


def test_an_unsupported_location_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="not a usable location"):
        Lake("nothing://somewhere/else")


def test_a_location_is_a_folder_or_a_uri(tmp_path: Path) -> None:
    folder = tmp_path / "a b%20ü"
    Lake(folder).write_json("x.json", {"n": 1})
    assert json.loads((folder / "x.json").read_text()) == {"n": 1}
    assert Lake(folder.as_uri()).read_json("x.json") == {"n": 1}


def test_files_are_written_and_read_in_bounded_batches(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range of large payloads is never completely in memory."""
    monkeypatch.setattr(files, "_GROUP_BYTES", 30_000)
    monkeypatch.setattr(files, "_READ_BYTES", 30_000)
    row = dict.fromkeys(files.SCHEMA.names) | {"id": "1", "state": "done", "attempts": 1}
    found = [{**row, "archive_id": n, "payload_bytes": os.urandom(10_000)} for n in range(20)]
    with lake.writing("a.parquet") as file, files.Writer(file) as writer:
        for one in found:
            writer.write(pa.RecordBatch.from_pylist([one], files.SCHEMA))
    with lake.reading("a.parquet") as opened, pq.ParquetFile(opened) as parquet:
        assert parquet.metadata.num_row_groups >= 5
        read = list(files.batches(parquet))
    assert [one for batch in read for one in batch.to_pylist()] == found
    assert max(batch.num_rows for batch in read) <= 5
    entry = {"path": "a.parquet", **writer.digest.as_json()}
    assert files.verify({"lake": lake.location, "files": [entry]})["wrong"] == []


# -- files of runs that others have written or damaged

NOW = datetime(2026, 3, 29, 12, tzinfo=UTC)
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.just("../../../x"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=3,
)


def put(lake: Lake, path: str, content: object) -> None:
    data = json.dumps(content).encode()
    with lake.writing(path) as file:
        file.write(data)


def changed(content: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """With some of its values changed or removed."""
    return {name: value for name, value in (content | changes).items() if value != "gone"}


@pytest.mark.parametrize("path", ["../x", "a/../../x", "a/..", ".."])
def test_no_path_leads_out_of_a_lake(lake: Lake, path: str) -> None:
    outside = Path(lake.location).parent / "x"
    outside.write_text("{}")
    for call in (lake.remove, lake.read_json, lake.size, lake.files, lake.names):
        with pytest.raises(DamagedError, match="outside it"):
            call(path)
    with pytest.raises(DamagedError, match="outside it"):
        lake.write_json(path, {})
    assert outside.read_text() == "{}"
    assert lake.path("a/..b/c..").endswith("/a/..b/c..")


def test_json_nested_too_deeply_is_reported_as_damaged(lake: Lake) -> None:
    with lake.writing("a.json") as file:
        file.write(b"[" * 200_000)
    with pytest.raises(DamagedError, match="damaged"):
        lake.read_json("a.json")


RUN = {
    "format": 1,
    "verb": "archive",
    "began_at": NOW.isoformat(),
    "words": ["pipeline", "archive"],
    "status": 0,
    "result": {"done": True, "result": {"exported": 1, "bytes": 2}},
}
FIELDS = [name for name in runs.Run.__dataclass_fields__ if name not in {"id", "alive"}]


@settings(max_examples=100)
@given(st.dictionaries(st.sampled_from([*FIELDS, "more"]), ODD | st.just("gone"), max_size=3))
def test_a_changed_file_of_a_run_is_read_or_counted_as_unreadable(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]
) -> None:
    root = tmp_path_factory.mktemp("runs")
    (root / "20260329T120000.0Z-ab.json").write_text(json.dumps(changed(RUN, changes)))
    found = runs.read(root)
    assert len(found.runs) + found.unreadable == 1
    for run in found.runs:
        json.dumps(run.as_json(NOW))
        assert isinstance(run.moved, str)
        assert isinstance(run.running, bool)
