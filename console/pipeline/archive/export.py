"""One range into the lake: read under the predicate, written a file a day, told in its manifest."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

import pyarrow as pa
from psycopg.conninfo import make_conninfo

from console import sql
from console.catalog import Queue
from console.engines import Product, Timeouts, open_database, product
from console.engines.bounded_connection import SOCKET
from console.engines.database import Database
from console.errors import ConnectionFailedError, ConsoleError, RefusedError, UsageError
from console.pipeline import locks
from console.pipeline.archive.files import SCHEMA, Writer, conform, dates, pc
from console.pipeline.archive.plan import ArchivePlan, Range, scope
from console.pipeline.java import INSTALL
from console.pipeline.lake import Lake
from console.pipeline.spark import Item

_FETCHED = 5_000
_OTHER_SECONDS = 60.0
_POLL_SECONDS = 0.5


class TaskReader(Protocol):
    """A connection in which a task locks and reads."""

    def one(self, text: str) -> tuple[Any, ...] | None: ...

    def batches(self, text: str) -> Iterator[pa.RecordBatch]:
        """All rows of a statement, a part at a time."""
        ...


@dataclass
class _Adbc:
    """PostgreSQL through ADBC, which copies in binary."""

    connection: Any

    def one(self, text: str) -> tuple[Any, ...] | None:
        with self.connection.cursor() as cursor:
            cursor.execute(_bare(text))
            found = cursor.fetchone()
        return None if found is None else tuple(found)

    def batches(self, text: str) -> Iterator[pa.RecordBatch]:
        with self.connection.cursor() as cursor:
            cursor.execute(_bare(text))
            yield from cursor.fetch_record_batch()


@dataclass
class _Odbc:
    """SQL Server through the driver's own rows."""

    connection: Any

    def one(self, text: str) -> tuple[Any, ...] | None:
        cursor = self.connection.cursor()
        try:
            cursor.execute(text)
            while cursor.description is None and cursor.nextset():
                pass
            found = cursor.fetchone()
        finally:
            cursor.close()
        return None if found is None else tuple(found)

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
    wanted = SCHEMA.field(name).type
    if pa.types.is_binary(wanted):
        values = [value.encode() if isinstance(value, str) else value for value in values]
    if pa.types.is_timestamp(wanted):
        # A time without a zone is UTC, as everywhere here.
        return pa.array(values, pa.timestamp("us")).cast(wanted)
    return pa.array(values, wanted)


def _bare(text: str) -> str:
    """What can be copied: a query, without what ends it."""
    return text.rstrip().removesuffix(";")


@contextmanager
def _libpq(url: str) -> Iterator[TaskReader]:
    try:
        from adbc_driver_postgresql import dbapi  # noqa: PLC0415  # the extra's
    except ImportError:
        raise UsageError(
            "The pipeline needs the ADBC driver of PostgreSQL, which is not installed.",
            next_step=f"Install it with: {INSTALL}",
        ) from None
    try:
        with dbapi.connect(url, autocommit=True) as connection:
            yield _Adbc(connection)
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
    """A connection to read from, by `url_for_tasks`. ConnectionFailedError."""
    with _OPEN[product(engine).protocol](url) as opened:
        yield opened


def url_for_tasks(database: Database) -> str:
    """Where to connect, with secrets, as the engine's reader takes it. Never shown or kept."""
    return _URL[database.product.protocol](database)


def _libpq_url(database: Database) -> str:
    url = database.complete_url()
    query = {k: v if isinstance(v, str) else " ".join(v) for k, v in url.query.items()}
    given = query.pop("options", "")
    arguments = {
        "application_name": "dbq-console pipeline",
        # It reads for as long as there is something to read: only the socket tells of an end.
        **SOCKET,
        "connect_timeout": str(database.timeouts.connect_seconds),
        **query,
        "options": f"-c timezone=UTC -c statement_timeout=0 {given}".strip(),
        "client_encoding": "UTF8",
    }
    where = url.translate_connect_args(username="user", database="dbname")
    return make_conninfo(**where, **arguments)


def _odbc_url(database: Database) -> str:
    return database.complete_url().render_as_string(hide_password=False)


_URL: dict[str, Callable[[Database], str]] = {"libpq": _libpq_url, "odbc": _odbc_url}


def items(  # noqa: PLR0913  # what a task needs comes from everywhere
    product: Product,
    queue: Queue,
    url: str,
    lake: Lake,
    plan: ArchivePlan,
    ranges: list[Range],
    *,
    work: str,
    action_id: int,
    clean: bool,
) -> list[Item]:
    """A task a range: all that it needs, in plain words."""
    return [
        {
            "engine": product.name,
            "url": url,
            "lake": lake.location,
            "plan": {**plan.as_json(), "ranges": []},
            "range": part.as_json(),
            "hold": locks.lock_text(product, work, "shared"),
            "hold_range": locks.lock_text(product, f"{work} {part.number}", "exclusive"),
            "action": locks.action_text(product, action_id),
            "rows": _rows_text(product, queue, plan, part),
            "clean": clean,
        }
        for part in ranges
    ]


def _rows_text(product: Product, queue: Queue, plan: ArchivePlan, part: Range) -> str:
    keys = {"after": str(part.after), "last": str(part.last)}
    within = scope(product, queue, part.source, **plan.values(part.source), **keys)
    return f"/* dbq pipeline.rows */ {sql.script('pipeline.rows', product.dialect, within)}"


def export(item: Item) -> dict[str, Any]:
    """The task. What it returns is the range's manifest."""
    lake = Lake(item["lake"])
    told = {key: value for key, value in item["plan"].items() if key not in {"format", "version"}}
    plan, part = ArchivePlan(**told), Range(**item["range"])
    with reader(item["engine"], item["url"]) as source:
        _require_run(source, item)
        if item["clean"]:
            remove_files(lake, plan, part.number)
        return _Export(lake, plan, part).run(source, item)


def _require_run(source: TaskReader, item: Item) -> None:
    """RefusedError where the run that this task belongs to is over, or works on the range twice."""
    deadline = time.monotonic() + _OTHER_SECONDS
    while not _got(source, item["hold_range"]):
        # A task of an executor that was lost holds it until the server has seen its end.
        _require_action(source, item)
        if time.monotonic() >= deadline:
            raise _over()
        time.sleep(_POLL_SECONDS)
    if not _got(source, item["hold"]):
        raise _over()
    _require_action(source, item)


def _got(source: TaskReader, lock: str) -> bool:
    found = source.one(lock)
    return found is not None and bool(found[0])


def _require_action(source: TaskReader, item: Item) -> None:
    found = source.one(item["action"])
    if found is None or found[1]:
        raise _over()


def _over() -> RefusedError:
    return RefusedError(
        "A task of the pipeline started too late.",
        why="Its run has ended, or another task does its work.",
        next_step="It changed nothing. Run the same command again: it continues.",
    )


def remove_files(lake: Lake, plan: ArchivePlan, number: int) -> None:
    """What an attempt that has no manifest left."""
    stem = plan.stem(number)
    for path in lake.files(plan.folder):
        name = path.rsplit("/", 1)[-1]
        if name.startswith((f"{stem}.", f"{stem}-", f"_tmp-{stem}-")):
            lake.remove(path)


class _Export:
    """A range while it is written. The files come to be together, at the end."""

    def __init__(self, lake: Lake, plan: ArchivePlan, part: Range) -> None:
        self._lake = lake
        self._plan = plan
        self._part = part
        self._writers: dict[str, tuple[str, Writer]] = {}
        """By date, with the file's path."""

    def run(self, source: TaskReader, item: Item) -> dict[str, Any]:
        """All of it; the manifest, which is in the lake then."""
        kind = self._plan.payload_kind
        with ExitStack() as files:
            with ExitStack() as writers:
                for read in source.batches(item["rows"]):
                    for date, batch in by_date(conform(read, kind)):
                        self._writer(date, files, writers).write(batch)
            # The session has held its lock until here: no successor has begun.
            _require_action(source, item)
        if not self._lake.can_replace:
            # It took its time to put them.
            _require_action(source, item)
        manifest = self._manifest()
        self._lake.write_json(self._plan.range_path(self._part.number), manifest)
        return manifest

    def _writer(self, date: str, files: ExitStack, writers: ExitStack) -> Writer:
        if date not in self._writers:
            number = self._part.number
            path = self._lake.new_path(self._plan.data_path(date, number))
            temporary = f"_tmp-{self._plan.stem(number)}-{uuid4().hex}"
            file = files.enter_context(self._lake.writing(path, temporary=temporary))
            writer = Writer(file, self._plan.payload_kind)
            self._writers[date] = path, writers.enter_context(writer)
        return self._writers[date][1]

    def _manifest(self) -> dict[str, Any]:
        files = []
        for _, (path, writer) in sorted(self._writers.items()):
            files.append({"path": path, "size": self._lake.size(path), **writer.contents.as_json()})
        return range_manifest(self._plan, self._part, files)


def range_manifest(plan: ArchivePlan, part: Range, files: list[dict[str, Any]]) -> dict[str, Any]:
    """What a range's manifest says: of each file, and of all of them."""
    return {
        "plan": plan.id,
        "range": part.number,
        "source": part.source,
        "payload_kind": plan.payload_kind,
        **{name: sum(file[name] for file in files) for name in ("rows", "bytes", "size")},
        "files": files,
    }


def by_date(batch: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
    """The rows of each day; mostly a batch is of one."""
    days = dates(batch)
    found = pc.unique(days).to_pylist()
    if len(found) == 1:
        return [(str(found[0]), batch)]
    return [(str(day), batch.filter(pc.equal(days, pa.scalar(day, days.type)))) for day in found]
