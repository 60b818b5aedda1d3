"""Export one part of a plan: read its reserved rows, write a Parquet file per day."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

import pyarrow as pa
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from console import sql
from console.catalog import Queue
from console.engines import Product, Timeouts, open_database, product
from console.engines.bounded_connection import SOCKET
from console.engines.database import Database
from console.errors import ConnectionFailedError, ConsoleError
from console.features.lake.archive.files import SCHEMA, Writer, conform, dates, pc
from console.features.lake.archive.plan import LakePlan, Part
from console.features.lake.java import INSTALL
from console.features.lake.lake import Lake
from console.features.lake.spark import Item
from console.features.lake.table import folder_of, queue_value

_FETCHED = 5_000


class TaskReader(Protocol):
    """The connection in which a task takes its locks and reads."""

    def one(self, text: str) -> tuple[Any, ...] | None: ...

    def batches(self, text: str) -> Iterator[pa.RecordBatch]: ...


@dataclass
class _Adbc:
    """PostgreSQL through ADBC: a binary COPY."""

    connection: Any

    def one(self, text: str) -> tuple[Any, ...] | None:
        with self.connection.cursor() as cursor:
            cursor.execute(_copyable(text))
            row = cursor.fetchone()
        return None if row is None else tuple(row)

    def batches(self, text: str) -> Iterator[pa.RecordBatch]:
        with self.connection.cursor() as cursor:
            cursor.execute(_copyable(text))
            yield from cursor.fetch_record_batch()


@dataclass
class _Odbc:
    """SQL Server through pyodbc's rows."""

    connection: Any

    def one(self, text: str) -> tuple[Any, ...] | None:
        cursor = self.connection.cursor()
        try:
            cursor.execute(text)
            while cursor.description is None and cursor.nextset():
                pass
            row = cursor.fetchone()
        finally:
            cursor.close()
        return None if row is None else tuple(row)

    def batches(self, text: str) -> Iterator[pa.RecordBatch]:
        cursor = self.connection.cursor()
        try:
            cursor.execute(text)
            names = [column[0] for column in cursor.description]
            while fetched := cursor.fetchmany(_FETCHED):
                columns = zip(names, zip(*fetched, strict=True), strict=True)
                yield pa.RecordBatch.from_pydict({n: _column(n, list(v)) for n, v in columns})
        finally:
            cursor.close()


def _column(name: str, values: list[Any]) -> pa.Array:
    type_ = SCHEMA.field(name).type
    if pa.types.is_binary(type_):
        values = [value.encode() if isinstance(value, str) else value for value in values]
    if pa.types.is_timestamp(type_):
        # A time without a zone is UTC, as everywhere here.
        return pa.array(values, pa.timestamp("us")).cast(type_)
    return pa.array(values, type_)


def _copyable(text: str) -> str:
    """COPY takes a query without its semicolon."""
    return text.rstrip().removesuffix(";")


@contextmanager
def _libpq(url: str) -> Iterator[TaskReader]:
    try:
        from adbc_driver_postgresql import dbapi  # noqa: PLC0415  # the extra's
    except ImportError:
        raise ConsoleError(
            "The pipeline needs the ADBC driver of PostgreSQL, which is not installed.",
            next_step=f"Install it with: {INSTALL}",
        ) from None
    pooled = not conninfo_to_dict(url)["options"]
    try:
        with dbapi.connect(url, autocommit=not pooled) as connection:
            opened = _Adbc(connection)
            if pooled:
                opened.one(sql.script("server.task_settings", product("postgresql").dialect))
            yield opened
    except dbapi.OperationalError as error:
        raise ConnectionFailedError(
            "Could not read from the database.",
            why=_first_line(error),
            next_step="Check that the server runs, then run it again: it continues.",
        ) from error
    except dbapi.Error as error:
        raise ConsoleError(
            "Could not read from the database.",
            why=_first_line(error),
            next_step="What was done is kept: run the same command again to continue.",
        ) from error


@contextmanager
def _odbc(url: str) -> Iterator[TaskReader]:
    database = open_database(url, timeouts=Timeouts(statement_seconds=0))
    try:
        with database.autocommit("read what goes into the lake") as connection:
            yield _Odbc(connection.connection.driver_connection)
    finally:
        database.close()


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


_OPEN: dict[str, Callable[[str], Any]] = {"libpq": _libpq, "odbc": _odbc}


@contextmanager
def reader(engine: str, url: str) -> Iterator[TaskReader]:
    """A connection to the URL that `url_for_tasks` gave. ConnectionFailedError."""
    with _OPEN[product(engine).protocol](url) as opened:
        yield opened


def url_for_tasks(database: Database) -> str:
    """For the engine's reader, secrets included: never shown or stored."""
    return _URL[database.product.protocol](database)


# As the statement task_settings, which sets them behind a pooler.
# Where row security would hide rows, a read fails.
# Rows and keys are merged in the order of both indexes: the keys are too new for statistics.
_OPTIONS = (
    "-c timezone=UTC -c search_path=pg_catalog,pg_temp -c statement_timeout=0 "
    "-c row_security=off -c enable_nestloop=off -c enable_hashjoin=off"
)


def _libpq_url(database: Database) -> str:
    url = database.complete_url()
    query = {k: v if isinstance(v, str) else " ".join(v) for k, v in url.query.items()}
    options = query.pop("options", "")
    arguments = {
        "application_name": "dbq-console pipeline",
        # A read has no time limit: only the socket shows that the connection is lost.
        **SOCKET,
        "connect_timeout": str(database.timeouts.connect_seconds),
        **query,
        # A pooler would refuse them.
        "options": "" if database.pooled else f"{_OPTIONS} {options}".strip(),
        "client_encoding": "UTF8",
    }
    where = url.translate_connect_args(username="user", database="dbname")
    return make_conninfo(**where, **arguments)


def _odbc_url(database: Database) -> str:
    return database.complete_url().render_as_string(hide_password=False)


_URL: dict[str, Callable[[Database], str]] = {"libpq": _libpq_url, "odbc": _odbc_url}


def item(
    product: Product, queue: Queue, url: str, lake: Lake, plan: LakePlan, part: Part, others: str
) -> Item:
    """All that the task of a part needs, as JSON. `others`: whether the archive has columns of
    others, yes or no."""
    values = {"plan_id": str(plan.plan_id), "after": str(part.after), "last": str(part.last)}
    within = queue.scope(product, **values)
    options = {**within.options, "others": others}
    text = sql.script(
        "pipeline.rows", product.dialect, sql.Scope(within.values, options, within.roles)
    )
    return {
        "engine": product.name,
        "url": url,
        "lake": lake.location,
        "connection": plan.label,
        "queue": queue_value(queue.schema, queue.name),
        "stem": f"{plan.database.rpartition('/')[2][:8]}-{plan.serial:06}-{part.number:05}",
        "kind": queue.options.get("payload", "text"),
        "rows": f"/* dbq pipeline.rows */ {text}",
    }


def export(item: Item) -> dict[str, Any]:
    """The task: writes files, which no commit names yet; returns their entries."""
    with reader(item["engine"], item["url"]) as source:
        rows = (conform(batch, item["kind"]) for batch in source.batches(item["rows"]))
        return Export(item).run(rows)


class Export:
    """Writes a part: a file per day, under a name that no other attempt has."""

    def __init__(self, item: Item) -> None:
        self._item = item
        self._lake = Lake(item["lake"])
        self._files: dict[str, tuple[str, Writer]] = {}
        """By day: its path, and what writes it."""

    def run(self, rows: Iterable[pa.RecordBatch]) -> dict[str, Any]:
        with ExitStack() as files, ExitStack() as writers:
            for batch in rows:
                for date, of_day in by_date(batch):
                    self._of(date, files, writers).write(of_day)
        entries = [
            writer.entry(path, self._partition(date))
            for date, (path, writer) in sorted(self._files.items())
        ]
        return {
            "rows": sum(entry["rows"] for entry in entries),
            "bytes": sum(entry["bytes"] for entry in entries),
            "files": entries,
        }

    def _of(self, date: str, files: ExitStack, writers: ExitStack) -> Writer:
        if date not in self._files:
            stem = f"{self._item['stem']}-{uuid4().hex[:12]}"
            path = f"{folder_of(**self._partition(date))}/{stem}.parquet"
            opened = files.enter_context(self._lake.writing(path))
            self._files[date] = path, writers.enter_context(Writer(opened))
        return self._files[date][1]

    def _partition(self, date: str) -> dict[str, str]:
        return {"connection": self._item["connection"], "queue": self._item["queue"], "date": date}


def by_date(batch: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
    days = dates(batch)
    distinct = pc.unique(days).to_pylist()
    if len(distinct) == 1:
        return [(str(distinct[0]), batch)]
    return [(str(day), batch.filter(pc.equal(days, pa.scalar(day, days.type)))) for day in distinct]
