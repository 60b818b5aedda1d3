"""The messages of a lake: a Delta table, which every engine that knows Delta Lake can read.

    <lake>/messages/_delta_log/...                                    says which files are in it
    <lake>/messages/connection=C/queue=Q/date=D/<plan>-....parquet

A plan is one commit, whose application transaction is the catalog with the queue, and its version
the plan's serial number: so it is there once, however often it is tried.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from console.catalog import Queue
from console.errors import UsageError
from console.features.lake.delta import LakeTable, folder_value
from console.features.lake.lake import Lake

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER = "messages"
PARTITIONS = ("connection", "queue", "date")


@dataclass(frozen=True)
class LakeFile:
    """A file of the table. `path` begins at the lake."""

    path: str
    connection: str
    queue: str
    date: str
    rows: int
    size: int
    """In bytes."""


class MessagesTable(LakeTable):
    """The table of a lake, as its last commit left it when this object was made."""

    FOLDER = FOLDER
    PARTITIONS = PARTITIONS
    DESCRIPTION = "messages that dbq-console archived out of queue databases"

    @staticmethod
    def schema() -> pa.Schema:
        import pyarrow as pa  # noqa: PLC0415  # slow to import

        from console.features.lake.archive.files import SCHEMA  # noqa: PLC0415

        types = zip(PARTITIONS, (pa.string(), pa.string(), pa.date32()), strict=True)
        return pa.schema([*(pa.field(name, of) for name, of in types), *SCHEMA])

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
        return [
            LakeFile(
                file.path,
                **{name: file.partition[name] for name in PARTITIONS},
                rows=file.rows,
                size=file.size,
            )
            for file in self.entries()
        ]

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
    if table is None:
        raise no_table(lake)
    found = [(one, *names_of(value)) for one, value in table.queues()]
    found = [
        one
        for one in found
        if one[2] == queue and connection in {None, one[0]} and schema in {None, one[1]}
    ]
    if not found:
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


def no_table(lake: Lake) -> UsageError:
    if lake.names("archive"):
        return UsageError(
            f"The lake {lake.location} is of an older console.",
            why="It has archives, and no table of messages.",
            next_step="Replay what you need of it with that console.",
        )
    return UsageError(
        f"The lake {lake.location} has no archive yet.",
        next_step="Create it with: dbq-console pipeline archive QUEUE --lake PATH",
    )


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
    return "/".join((FOLDER, *(f"{name}={folder_value(value)}" for name, value in values)))
