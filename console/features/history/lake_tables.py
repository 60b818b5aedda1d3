"""Opens the Delta tables of a lake, and reads their files by Arrow: for consoles, without Spark.

Delta Lake's library is of the extra [pipeline].
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from console.errors import ConsoleError, RefusedError, UsageError

if TYPE_CHECKING:
    from deltalake import DeltaTable

_ATTEMPTS, _ATTEMPT_SECONDS = 2, 3.0
"""Of a request of Arrow's to an object store that does not respond."""
_LIMITS = {"connect_timeout": "4s", "timeout": "15s", "retry_timeout": "10s", "max_retries": "3"}
"""Of a request of the tables' library; `timeout` is for all of it."""
INSTALL = "pip install 'dbq-console[pipeline]'"


def is_installed() -> bool:
    """Whether this program can open a table."""
    return find_spec("deltalake") is not None


def filesystem(location: str) -> tuple[Any, str]:
    """Arrow's, and the lake's root in it. ValueError, OSError."""
    from pyarrow import fs  # noqa: PLC0415  # verbs shall start at once

    if "://" not in location:
        folder = Path(location).expanduser().absolute()
        if folder.is_file():
            raise ValueError("It is a file.")
        location = str(folder)
    # s3a and s3n are Hadoop's names.
    uri = re.sub(r"^s3[an]://", "s3://", location)
    files, root = fs.FileSystem.from_uri(uri)  # type: ignore[attr-defined]
    if files.type_name == "s3":
        files = _bounded(files)
    return files, root.rstrip("/")


def _bounded(files: Any) -> Any:
    """The same, which gives up sooner: a process that waits in it hears no signal. A URI cannot say
    so."""
    from pyarrow import fs  # noqa: PLC0415  # verbs shall start at once

    _, (found,) = files.__reduce__()
    found |= {"request_timeout": _ATTEMPT_SECONDS, "connect_timeout": _ATTEMPT_SECONDS}
    # A small file is one request, otherwise three.
    found |= {"allow_delayed_open": True}
    again = fs.AwsStandardS3RetryStrategy(_ATTEMPTS)  # type: ignore[attr-defined]
    return fs.S3FileSystem(**found, retry_strategy=again)  # type: ignore[attr-defined]


def is_local(files: Any) -> bool:
    return bool(files.type_name == "local")


@dataclass(frozen=True)
class TableFile:
    """`path` is the filesystem's; `partition`: its values as texts."""

    path: str
    partition: Mapping[str, str]
    rows: int
    size: int


class LakeReader:
    """UsageError: Arrow does not know the location. ConsoleError: it does not respond."""

    def __init__(self, location: str) -> None:
        self.location = location
        try:
            self.files, self.root = filesystem(location)
        except (ValueError, OSError, NotImplementedError) as error:
            raise unusable(location, error) from error

    def has(self, path: str) -> bool:
        """OSError."""
        return bool(self.files.get_file_info([f"{self.root}/{path}"])[0].type.value)

    def table(self, folder: str) -> list[TableFile] | None:
        """The files of a table at its last commit; None: there is no table. ConsoleError."""
        from deltalake.exceptions import DeltaError, TableNotFoundError  # noqa: PLC0415

        try:
            table = open_table(self.location, self.files, f"{self.root}/{folder}")
            return files_of(table, f"{self.root}/{folder}")
        except TableNotFoundError as error:
            if has_lost_log(self.files, self.root, folder):
                raise table_error(self.location, folder, error) from error
            return None
        except (DeltaError, OSError, ValueError) as error:
            raise table_error(self.location, folder, error) from error


def unusable(location: str, error: Exception) -> ConsoleError:
    """Where Arrow cannot open the location."""
    kind = ConsoleError if isinstance(error, OSError) else UsageError
    return kind(
        f"The lake {location!r} is not a usable location.",
        why=str(error),
        next_step="Name a folder, or a URI such as s3://bucket/folder.",
    )


def open_table(location: str, files: Any, path: str) -> DeltaTable:
    """`path`: of its folder, the filesystem's. The library's errors."""
    from deltalake import DeltaTable  # noqa: PLC0415  # the extra's

    return DeltaTable(table_uri(location, files, path), storage_options=options(location, files))


def has_lost_log(files: Any, root: str, folder: str) -> bool:
    """Whether the folder, in which is no table, has files of one. OSError."""
    from pyarrow import fs  # noqa: PLC0415  # verbs shall start at once

    below, older = (
        fs.FileSelector(f"{root}/{name}", allow_not_found=True, recursive=True)  # type: ignore[attr-defined]
        for name in (folder, "_manifests")
    )
    there = any(info.path.endswith((".json", ".parquet")) for info in files.get_file_info(below))
    return there and not files.get_file_info(older)


def files_of(table: DeltaTable, folder: str) -> list[TableFile]:
    """In the order of their paths."""
    import pyarrow as pa  # noqa: PLC0415  # slow to import

    start = "partition."
    files = [
        TableFile(
            f"{folder}/{unquote(row['path'])}",
            {name.removeprefix(start): str(of) for name, of in row.items() if start in name},
            row["num_records"] or 0,
            row["size_bytes"],
        )
        for row in pa.table(table.get_add_actions(flatten=True)).to_pylist()
    ]
    return sorted(files, key=lambda file: file.path)


def table_uri(location: str, files: Any, path: str) -> str:
    return path if is_local(files) else f"{urlsplit(location).scheme}://{quote(path)}"


def options(location: str, files: Any) -> dict[str, str]:
    """What Arrow reads from the URI, by the names of the table's library; the rest both read from
    the environment."""
    if is_local(files):
        return {}
    query = {name: values[-1] for name, values in parse_qs(urlsplit(location).query).items()}
    found = dict(_LIMITS)
    endpoint = query.get("endpoint_override") or os.environ.get("AWS_ENDPOINT_URL", "")
    if endpoint:
        if "://" not in endpoint:
            endpoint = f"{query.get('scheme', 'https')}://{endpoint}"
        found["AWS_ENDPOINT_URL"] = endpoint
        found["AWS_ALLOW_HTTP"] = str(endpoint.startswith("http://")).lower()
    if region := query.get("region") or os.environ.get("AWS_DEFAULT_REGION"):
        found["AWS_REGION"] = region
    return found


_DENIED = re.compile(r"denied|forbidden|permission|InvalidAccessKeyId|SignatureDoesNotMatch", re.I)
_FULL = re.compile(r"no space left|quota|disk full|os error (27|28|122)\b", re.I)
_UNREACHABLE = re.compile(
    r"error sending request|connection refused|dns error|NoSuchBucket|timed out", re.I
)


def table_error(
    location: str, folder: str, error: Exception, kind: type[ConsoleError] = ConsoleError
) -> ConsoleError:
    """The library's error for the operator; `kind`: where the table is damaged, or not in reach."""
    why, what = _on_one_line(error), f"The table {folder} in the lake {location} cannot be used."
    if _UNREACHABLE.search(why):
        return ConsoleError(
            f"The lake {location} cannot be reached.",
            why=why,
            next_step="Nothing was changed. Check its address, that its server runs and has this "
            "bucket, and this machine's network.",
        )
    if _FULL.search(why):
        return ConsoleError(
            f"The lake {location} is full.",
            why=why,
            next_step="Nothing is lost. Make room, then run the same command again.",
        )
    if isinstance(error, PermissionError) or _DENIED.search(why):
        return RefusedError(
            what, why=why, next_step="Use a lake that this user may use, or get the permission."
        )
    return kind(
        what,
        why=why,
        next_step="Nothing was deleted because of it. Check that the lake is reachable; if its log "
        f"is damaged, put the folder {folder}/_delta_log back from a backup.",
    )


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def _on_one_line(error: Exception) -> str:
    """The library says only below the first line what it was."""
    return " ".join(_COLOUR.sub("", str(error)).split()) or type(error).__name__


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
