"""The lake: files are whole or not there, and what fails says why."""

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from console.errors import ConsoleError, RefusedError, UsageError
from console.pipeline.archive import files
from console.pipeline.archive.digests import ColumnDigests
from console.pipeline.archive.files import pq
from console.pipeline.lake import DamagedError, Lake


class Failing:
    """A filesystem whose writes fail after so many bytes."""

    def __init__(self, files: Any, number: int, after: int = 0) -> None:
        self._files = files
        self.number = number
        self.left = after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    @contextmanager
    def open_output_stream(self, path: str) -> Iterator["Failing"]:
        with self._files.open_output_stream(path) as file:
            self._file = file
            yield self

    def write(self, data: Any) -> int:
        self.left -= len(data)
        if self.left < 0:
            raise OSError(self.number, os.strerror(self.number))
        return int(self._file.write(data))


def fail(lake: Lake, number: int, after: int = 0) -> None:
    """From now on no more than so many bytes can be written."""
    lake._storage.files = Failing(lake.filesystem, number, after)


def test_its_id_is_made_once(lake: Lake) -> None:
    assert lake.id() == Lake(lake.location).id()
    assert Lake(lake.location + "-2").id() != lake.id()


def test_a_folder_of_another_program_is_refused(lake: Lake) -> None:
    lake.write_json("_lake.json", {"format": "something else"})
    with pytest.raises(DamagedError, match="not a lake of this console"):
        lake.id()


def test_a_file_is_whole_or_not_there(lake: Lake) -> None:
    lake.write_json("a/b.json", {"n": 1})
    with suppress(ZeroDivisionError), lake.writing("a/b.json") as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert lake.read_json("a/b.json") == {"n": 1}
    assert lake.files("a") == ["a/b.json"]
    lake.write_json("a/b.json", {"n": 2}, once=True)
    assert lake.read_json("a/b.json") == {"n": 1}
    lake.write_json("a/b.json", {"n": 2})
    assert lake.read_json("a/b.json") == {"n": 2}


def test_readers_see_data_only(lake: Lake) -> None:
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


def test_an_unsupported_location_is_wrong_use() -> None:
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
    """A range of large payloads is never in memory as a whole."""
    monkeypatch.setattr(files, "_GROUP_BYTES", 30_000)
    monkeypatch.setattr(files, "_READ_BYTES", 30_000)
    row = dict.fromkeys(files.SCHEMA.names) | {"id": "1", "state": "done", "attempts": 1}
    found = [{**row, "archive_id": n, "payload": os.urandom(10_000)} for n in range(20)]
    with lake.writing("a.parquet") as file, files.Writer(file, "bytes") as writer:
        for one in found:
            writer.write(pa.RecordBatch.from_pylist([one], files.SCHEMA))
    with lake.reading("a.parquet") as opened, pq.ParquetFile(opened) as parquet:
        assert parquet.metadata.num_row_groups >= 5
        read = list(files.batches(parquet))
    assert [one for batch in read for one in batch.to_pylist()] == found
    assert max(batch.num_rows for batch in read) <= 5
    assert (
        files.read(lake, "a.parquet", "bytes", ColumnDigests()).as_json() == writer.digest.as_json()
    )


def test_the_lock_admits_one_run(lake: Lake) -> None:
    with lake.locked("rollup"):
        with (
            pytest.raises(RefusedError, match="Another rollup"),
            Lake(lake.location).locked("rollup"),
        ):
            pass
        with Lake(lake.location).locked("another"):
            pass
    with Lake(lake.location).locked("rollup"):
        pass
    assert not lake.data_files("")
