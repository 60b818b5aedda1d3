"""The messages of a lake: a Delta table, which every engine that knows Delta Lake can read.

    <lake>/messages/_delta_log/...                                    says which files are in it
    <lake>/messages/connection=C/queue=Q/date=D/<plan>-....parquet

A file that no commit names is invisible. A plan is one commit, whose application transaction is the
catalog with the queue, and its version the plan's serial number: so it is there once, however often
it is tried. Only the process of a job itself uses this module, never one that was forked: the
library's threads do not survive a fork.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from console.catalog import Queue
from console.errors import ConsoleError, RefusedError, UsageError
from console.pipeline.lake import DamagedError, Lake

if TYPE_CHECKING:
    from deltalake import DeltaTable

FOLDER = "messages"
PARTITIONS = ("connection", "queue", "date")
_CONFIGURATION = {"delta.checkpointInterval": "10"}
"""Whoever opens the table reads the commits since the last checkpoint, each a request to an object
store."""


_UNREADABLE = {"deletionVectors", "columnMapping"}
_LONGEST = 200
"""Characters of a folder's name; most filesystems take 255 bytes."""


@dataclass(frozen=True)
class LakeFile:
    """A file of the table. `path` begins at the lake."""

    path: str
    connection: str
    queue: str
    date: str


class MessagesTable:
    """The table of a lake, as its last commit left it when this object was made."""

    def __init__(self, lake: Lake, table: DeltaTable) -> None:
        self._lake = lake
        self._table = table

    @classmethod
    def open(cls, lake: Lake) -> MessagesTable | None:
        """None where the lake has none yet. DamagedError, UsageError."""
        from deltalake.exceptions import TableNotFoundError  # noqa: PLC0415  # the extra's

        with _translated(lake):
            try:
                table = _open(lake)
            except TableNotFoundError:
                if lake.names(f"{FOLDER}/_delta_log"):
                    raise
                return None
            _require_ours(lake, table)
        return cls(lake, table)

    @classmethod
    def create(cls, lake: Lake) -> MessagesTable:
        """Where there is none yet: of several processes that do it at the same time, one does."""
        from deltalake import DeltaTable, Schema  # noqa: PLC0415  # the extra's

        lake.make_folder(FOLDER)
        with _translated(lake), lake.masked():
            DeltaTable.create(
                _uri(lake),
                schema=Schema.from_arrow(_schema()),
                mode="ignore",
                partition_by=list(PARTITIONS),
                name="messages",
                description="messages that dbq-console archived out of queue databases",
                configuration=_CONFIGURATION,
                storage_options=_options(lake),
            )
            return cls(lake, _open(lake))

    @property
    def id(self) -> str:
        """The table's own: another table has another one."""
        return str(self._table.metadata().id)

    def last_serial(self, application: str) -> int:
        """Of the last plan of this catalog and queue that the table has; 0: of none."""
        with _translated(self._lake):
            return self._table.transaction_version(application) or 0

    def commit(self, application: str, serial: int, files: Sequence[Mapping[str, Any]]) -> bool:
        """Add files, all at once; whether this call did it. False: the table has the plan already.

        `files`: entries as `export` returns them.
        """
        from deltalake import CommitProperties, Transaction  # noqa: PLC0415  # the extra's
        from deltalake.exceptions import CommitFailedError  # noqa: PLC0415

        # The version is only enforced where the same handle has asked for it.
        with _translated(self._lake), self._lake.masked():
            if self.last_serial(application) >= serial:
                return False
            properties = CommitProperties(
                app_transactions=[Transaction(application, serial)],
                custom_metadata={"application": application, "serial": str(serial)},
            )
            try:
                self._table.create_write_transaction(
                    [_add(entry) for entry in files],
                    mode="append",
                    schema=self._table.schema(),
                    partition_by=list(PARTITIONS),
                    commit_properties=properties,
                )
            except CommitFailedError:
                self._table.update_incremental()
                if self.last_serial(application) >= serial:
                    return False
                raise
        return True

    def files(
        self, queue: str, connection: str | None = None, dates: tuple[str, str] = ("", "~")
    ) -> list[LakeFile]:
        """Those of a queue (`queue_value`), in the order of their paths."""
        return [
            file
            for file in self.all_files()
            if file.queue == queue
            and connection in {None, file.connection}
            and dates[0] <= file.date <= dates[1]
        ]

    def all_files(self) -> list[LakeFile]:
        import pyarrow as pa  # noqa: PLC0415  # slow to import

        with _translated(self._lake):
            rows = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        files = (
            LakeFile(
                f"{FOLDER}/{unquote(row['path'])}",
                row["partition.connection"],
                row["partition.queue"],
                str(row["partition.date"]),
            )
            for row in rows
        )
        return sorted(files, key=lambda file: file.path)

    def queues(self) -> list[tuple[str, str]]:
        """The connection and the queue (`queue_value`) of each that has rows."""
        return sorted({(file.connection, file.queue) for file in self.all_files()})


@dataclass(frozen=True)
class QueueArchive:
    """What the table has of a queue."""

    connection: str
    schema: str
    queue: str
    table_id: str
    files: tuple[str, ...]


def find_archive(
    lake: Lake, connection: str | None, schema: str | None, queue: str
) -> QueueArchive:
    """The archive of the one queue of that name. UsageError where there is none, or several."""
    table = MessagesTable.open(lake)
    found = [] if table is None else [(one, *names_of(value)) for one, value in table.queues()]
    found = [
        one
        for one in found
        if one[2] == queue and connection in {None, one[0]} and schema in {None, one[1]}
    ]
    if table is None and lake.names("archive"):
        raise UsageError(
            f"The lake {lake.location} is of an older console.",
            why="It has archives, and no table of messages.",
            next_step="Replay what you need of it with that console.",
        )
    if table is None or not found:
        raise UsageError(
            f"The lake {lake.location} has no archive of {queue!r}.",
            next_step=f"Create it with: dbq-console pipeline archive {shlex.quote(queue)}",
        )
    if len(found) > 1:
        names = ", ".join(f"{one[1]}.{one[2]} of {one[0]}" for one in found)
        raise UsageError(
            f"The lake {lake.location} has several archives of {queue!r}.",
            why=f"They are: {names}.",
            next_step="Choose one with --schema, and its connection with --from.",
        )
    of, its_schema, name = found[0]
    files = table.files(queue_value(its_schema, name), of)
    return QueueArchive(of, its_schema, name, table.id, tuple(file.path for file in files))


def application_of(catalog: str, queue: Queue) -> str:
    """The name of the transactions of a queue. `catalog`: the id of its database's catalog."""
    return f"dbq-console/{catalog}/{queue_value(queue.schema, queue.name)}"


def queue_value(schema: str, queue: str) -> str:
    """In the column `queue`: `schema.name`, with `%2E` for a dot inside either."""
    return ".".join(quote(part, safe=" ").replace(".", "%2E") for part in (schema, queue))


def names_of(value: str) -> tuple[str, str]:
    """Schema and name of the queue."""
    schema, _, name = value.partition(".")
    return unquote(schema), unquote(name)


def folder_of(connection: str, queue: str, date: str) -> str:
    """Of the files of a day, from the lake. The table says of which queue they are: of a name too
    long for a folder there is the beginning, and a digest."""
    values = zip(PARTITIONS, (connection, queue, date), strict=True)
    return "/".join((FOLDER, *(f"{name}={_folder_value(value)}" for name, value in values)))


def _folder_value(value: str) -> str:
    quoted = quote(value, safe="")
    if len(quoted) <= _LONGEST:
        return quoted
    beginning = re.sub("%.?$", "", quoted[: _LONGEST - 17])
    return f"{beginning}-{hashlib.sha256(value.encode()).hexdigest()[:16]}"


def _add(entry: Mapping[str, Any]) -> Any:
    from deltalake.transaction import AddAction  # noqa: PLC0415  # the extra's

    bounds = {"archive_id": entry["first"]}, {"archive_id": entry["last"]}
    statistics = {
        "numRecords": entry["rows"],
        "minValues": bounds[0],
        "maxValues": bounds[1],
        "nullCount": {"archive_id": 0},
    }
    return AddAction(
        path=entry["path"].removeprefix(f"{FOLDER}/"),
        size=entry["size"],
        partition_values=entry["partition"],
        modification_time=int(time.time() * 1_000),
        data_change=True,
        stats=json.dumps(statistics),
    )


def _schema() -> Any:
    import pyarrow as pa  # noqa: PLC0415  # slow to import

    from console.pipeline.archive.files import SCHEMA  # noqa: PLC0415

    types = zip(PARTITIONS, (pa.string(), pa.string(), pa.date32()), strict=True)
    return pa.schema([*(pa.field(name, of) for name, of in types), *SCHEMA])


def _require_ours(lake: Lake, table: DeltaTable) -> None:
    """DamagedError for a table that could not be read with this console's files in it."""
    from deltalake import Schema  # noqa: PLC0415  # the extra's

    columns = {field.name: str(field.type) for field in table.schema().fields}
    ours = {field.name: str(field.type) for field in Schema.from_arrow(_schema()).fields}
    partitions = table.metadata().partition_columns
    if not columns.items() >= ours.items() or tuple(partitions) != PARTITIONS:
        raise DamagedError(
            f"The table {lake.path(FOLDER)} is not of this console.",
            why=f"It has the columns {', '.join(sorted(columns))}, or others of their types, and "
            f"the partitions {', '.join(partitions) or '(none)'}.",
            next_step="Nothing was changed. Name another folder with --lake.",
        )
    # Under these a row of a file may be no row of the table.
    if unknown := _UNREADABLE.intersection(table.protocol().reader_features or ()):
        raise DamagedError(
            f"The table {lake.path(FOLDER)} has features that this console cannot read: "
            f"{', '.join(sorted(unknown))}.",
            why="Another program turned them on.",
            next_step="Nothing was changed. Drop them there (ALTER TABLE ... DROP FEATURE), or "
            "name another folder with --lake.",
        )


def _open(lake: Lake) -> DeltaTable:
    from deltalake import DeltaTable  # noqa: PLC0415  # the extra's

    return DeltaTable(_uri(lake), storage_options=_options(lake))


def _uri(lake: Lake) -> str:
    if lake.can_replace:
        return lake.path(FOLDER)
    return f"{urlsplit(lake.location).scheme}://{quote(lake.path(FOLDER))}"


def _options(lake: Lake) -> dict[str, str]:
    """What Arrow reads from the URI, by the names of the table's library; the rest both read from
    the environment."""
    if lake.can_replace:
        return {}
    query = {name: values[-1] for name, values in parse_qs(urlsplit(lake.location).query).items()}
    options = {}
    endpoint = query.get("endpoint_override") or os.environ.get("AWS_ENDPOINT_URL", "")
    if endpoint:
        if "://" not in endpoint:
            endpoint = f"{query.get('scheme', 'https')}://{endpoint}"
        options["AWS_ENDPOINT_URL"] = endpoint
        options["AWS_ALLOW_HTTP"] = str(endpoint.startswith("http://")).lower()
    if region := query.get("region") or os.environ.get("AWS_DEFAULT_REGION"):
        options["AWS_REGION"] = region
    return options


_DENIED = re.compile(r"denied|forbidden|permission|InvalidAccessKeyId|SignatureDoesNotMatch", re.I)
_FULL = re.compile(r"no space left|quota|disk full", re.I)


@contextmanager
def _translated(lake: Lake) -> Iterator[None]:
    """The library's errors as ConsoleErrors."""
    from deltalake.exceptions import DeltaError  # noqa: PLC0415  # the extra's

    try:
        yield
    except (DeltaError, OSError, ValueError) as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        what = f"The table of messages in the lake {lake.location} cannot be used."
        if _FULL.search(why):
            raise ConsoleError(
                f"The lake {lake.location} is full.",
                why=why,
                next_step="Nothing is lost. Make room, then run the same command again.",
            ) from error
        if isinstance(error, PermissionError) or _DENIED.search(why):
            raise RefusedError(
                what,
                why=why,
                next_step="Use a lake that this user may write to, or get the permission.",
            ) from error
        raise DamagedError(
            what,
            why=why,
            next_step="Nothing was deleted because of it. Check that the lake is reachable; if its "
            "log is damaged, put the folder messages/_delta_log back from a backup.",
        ) from error
