"""The finished jobs of a library's table: which there are, and which a lake has already."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset

from console import sql
from console.catalog import Kind, Queue, audit, require_rows
from console.errors import RefusedError
from console.features.lake.archive import files
from console.features.lake.archive.files import pc
from console.features.lake.lake import DamagedError, Lake
from console.features.lake.table import MessagesTable, queue_value

if TYPE_CHECKING:
    from console.engines import Database, Product

dataset: Any = pyarrow.dataset

OVERLAP_SECONDS = 3_600.0
"""A client may set the time of finishing by its own clock, and write it later."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""The day of jobs without a time of finishing that a file can hold."""
ALWAYS = "-infinity"
_VALUES = {"what": "rows", "pruned": "no", "since": ALWAYS, "before": ALWAYS, "most": "0"}
JobKey = tuple[str, int | None, int]
"""Id, attempt, and microseconds of the time of finishing."""


@dataclass(frozen=True)
class Source:
    """A library's table as a lake knows it."""

    queue: Queue
    label: str
    """Of the connection."""
    database: str
    """Its identity, with the timeline of the server."""
    kind: str
    """Of payloads."""
    columns: tuple[str, ...]
    """Those of the library's table that are no columns of the lake."""
    detached: tuple[str, ...] = ()
    """Former partitions of the table, by what they have for `only` of the queue."""

    @property
    def application(self) -> str:
        """The name of the transactions: of another database or table it is another one, so that
        a run begins anew."""
        of = "\0".join((*self.described.values(), self.queue.part, self.queue.design.name))
        digest = hashlib.sha256(of.encode()).hexdigest()[:32]
        return f"dbq-console/copy {digest}/{queue_value(self.queue.schema, self.queue.name)}"

    @property
    def described(self) -> dict[str, str]:
        """Kept with each commit."""
        table = queue_value(self.queue.schema, self.queue.table)
        return {"connection": self.label, "database": self.database, "table": table}

    def detached_application(self, detached: str) -> str:
        """The transaction that says that all of a former partition is in the lake."""
        return f"{self.application}/detached/{detached}"

    def left(self, table: MessagesTable | None) -> list[str]:
        """The former partitions that are not in the lake as a whole: nothing is added to them."""
        if table is None:
            return list(self.detached)
        return [
            name for name in self.detached if not table.last_serial(self.detached_application(name))
        ]

    def since(self, table: MessagesTable | None) -> str:
        """The moment from which a run reads, as the statements take it."""
        until = 0 if table is None else table.last_serial(f"{self.application}/until")
        if not until:
            return ALWAYS
        return str(EPOCH + timedelta(microseconds=until) - timedelta(seconds=OVERLAP_SECONDS))

    def text(self, database: Database, statement: str, **values: str) -> str:
        """The statement with its values as literals: a task binds none."""
        given = {**_VALUES, **values}
        columns = {f"column_{n}": name for n, name in enumerate(self.columns)}
        columns["columns"] = str(len(self.columns))
        within = self.queue.scope(database.product, **given, **columns)
        options = {**within.options, **given, "payload": self.kind}
        within = sql.Scope(within.values, options, within.roles)
        name = f"{self.queue.design.name}.{statement}"
        return f"/* dbq {name} */ {sql.script(name, database.product.dialect, within)}"


def require_finished(product: Product, queue: Queue) -> None:
    """RefusedError where the queue has no finished rows that could be copied."""
    of = queue.design
    what = f"There is nothing to copy of {queue.name!r}."
    if queue.kind is not Kind.ADOPTED:
        raise RefusedError(
            what,
            why="It is a queue of this console: what is done goes into its archive.",
            next_step="Leave --copy and --prune out; done messages go there by the verb archive.",
        )
    if not of.library:
        raise RefusedError(
            what,
            why=f"A table that was adopted with the design {of.name} has no known time at which "
            "a row is finished for good.",
            next_step="Describe it in a preset of your own, with is_done and done_at: dbq-console "
            "help presets",
        )
    if not of.finished:
        why = f"{of.library} keeps no finished jobs, or not the time at which they were."
        raise RefusedError(what, why=why)
    if not sql.has(product, "preset.finished_rows"):
        raise RefusedError(what, why=f"A copy is not offered on {product.title}.")
    if not of.trusted:
        raise RefusedError(
            f"The preset {of.name!r} is not trusted: nothing is copied by it.",
            next_step="Read it, then: dbq-console preset trust FILE (dbq-console preset list)",
        )


def source_of(database: Database, queue: Queue) -> Source:
    """RefusedError where the queue has no finished rows that could be copied."""
    require_finished(database.product, queue)
    require_rows(queue)
    with database.transaction("read the audit", read_only=True) as connection:
        audit.require(connection)
    with database.transaction("read the catalog") as connection:
        audit.prepare_lakes(connection)
        identity = sql.value(connection, str, "catalog.identity")
        timeline = sql.value(connection, str, "copy.timeline")
        of, within = queue.design, queue.scope(connection)
        kind = sql.value(connection, str, f"{of.name}.payload_kind", within)
        names = sql.values(connection, str, f"{of.name}.finished_columns", within)
        detached = sql.values(connection, str, f"{of.name}.detached", within)
        # The payload of an own preset may be a part of its column.
        same = {queue.roles["id"], "" if of.file else queue.roles["payload"]}
    columns = tuple(name for name in names if name not in same)
    database_of = f"{identity}/{timeline}"
    return Source(queue, database.label, database_of, kind, columns, tuple(detached))


def lake_batches(
    lake: Lake, paths: Sequence[str], columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """DamagedError."""
    try:
        found = dataset.dataset(
            [lake.path(path) for path in paths],
            schema=files.SCHEMA,
            format="parquet",
            filesystem=lake.filesystem,
        )
        yield from found.to_batches(columns=columns)
    except (OSError, ValueError) as error:
        raise DamagedError(
            f"The rows of the lake {lake.location} cannot be read.",
            why=str(error).splitlines()[0],
            next_step="Nothing was changed. Put the file back from a backup of the lake.",
        ) from error


def keys_of(batch: pa.RecordBatch) -> list[JobKey]:
    names = batch.schema.names
    attempts = batch.column("attempts").to_pylist() if "attempts" in names else None
    times = pc.cast(batch.column("archived_at"), files.TIME).cast(pa.int64()).to_pylist()
    ids = batch.column("id").to_pylist()
    return list(zip(ids, attempts or [None] * len(ids), times, strict=True))
