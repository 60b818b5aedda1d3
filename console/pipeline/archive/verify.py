"""What lies in the lake, read back: the files of a range against its manifest."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from console.errors import ConsoleError
from console.pipeline import rows
from console.pipeline.archive.files import batches
from console.pipeline.arrow import pq
from console.pipeline.lake import Lake
from console.pipeline.session import Item


def items(lake: Lake, manifests: list[Mapping[str, Any]]) -> list[Item]:
    """A task a range."""
    return [{"lake": lake.place, "manifest": dict(manifest)} for manifest in manifests]


def verify(item: Item) -> dict[str, Any]:
    """The task: what is wrong with the files of one range; nothing: they say what was written."""
    lake, manifest = Lake(item["lake"]), item["manifest"]
    found, wrong = rows.Sum(), []
    for file in manifest["files"]:
        try:
            sums = read_sum(lake, file["path"], manifest["payload_kind"])
        except (OSError, ValueError, pa.ArrowException, ConsoleError) as error:
            wrong.append(f"{file['path']}: {_line(error)}")
            continue
        found += sums
        if sums != rows.Sum.of_json(file):
            told = rows.Sum.of_json(file)
            wrong.append(
                f"{file['path']}: {sums.rows:,} rows with {sums.bytes:,} bytes, "
                f"{told.rows:,} with {told.bytes:,} were written"
                + (", other values" if sums.rows == told.rows else "")
            )
    if not wrong and found != rows.Sum.of_json(manifest):
        wrong.append(f"range {manifest['range']}: the files are not what its manifest counts")
    return {"range": manifest["range"], **found.as_json(), "wrong": wrong}


def read_sum(lake: Lake, path: str, payload_kind: str) -> rows.Sum:
    """Of one file, read as it lies there. OSError, ArrowException: it is no such file."""
    found = rows.Sum()
    with lake.reading(path) as source, pq.ParquetFile(source) as file:
        if file.schema_arrow != rows.SCHEMA:
            raise ValueError("it has other columns than the archive's")
        if (file.schema_arrow.metadata or {}).get(rows.KIND) != payload_kind.encode():
            raise ValueError("it has another kind of payload than its manifest says")
        for batch in batches(file):
            found += rows.total(batch)
    return found


def _line(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "it is not there"
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
