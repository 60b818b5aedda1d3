"""Export one range: read the rows that match, write a Parquet file per day, then the manifest."""

from collections.abc import Callable, Collection, Iterator, Mapping
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
from console.errors import ConnectionFailedError, ConsoleError, RefusedError
from console.pipeline.archive import digests
from console.pipeline.archive.files import SCHEMA, Writer, conform, dates, pc
from console.pipeline.archive.plan import ArchivePlan, Range, scope
from console.pipeline.java import INSTALL
from console.pipeline.lake import Lake, unique_path
from console.pipeline.spark import Item

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
_OPTIONS = "-c timezone=UTC -c search_path=pg_catalog,pg_temp -c statement_timeout=0"


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


def items(  # all that a task needs
    product: Product,
    queue: Queue,
    url: str,
    lake: Lake,
    plan: ArchivePlan,
    ranges: list[Range],
    working: str,
) -> list[Item]:
    """A task per range, as JSON. `working`: the SQL that says whether the run goes on."""
    return [
        {
            "engine": product.name,
            "url": url,
            "lake": lake.location,
            "plan": {**plan.as_json(), "ranges": []},
            "range": part.as_json(),
            "working": working,
            "rows": _rows_text(product, queue, plan, part),
        }
        for part in ranges
    ]


def _rows_text(product: Product, queue: Queue, plan: ArchivePlan, part: Range) -> str:
    keys = {"after": str(part.after), "last": str(part.last)}
    within = scope(product, queue, part.source, **plan.values(part.source), **keys)
    return f"/* dbq pipeline.rows */ {sql.script('pipeline.rows', product.dialect, within)}"


def export(item: Item) -> dict[str, Any]:
    """The task; returns the range's manifest."""
    lake = Lake(item["lake"])
    fields = {key: value for key, value in item["plan"].items() if key not in {"format", "version"}}
    plan, part = ArchivePlan(**fields), Range(**item["range"])
    with reader(item["engine"], item["url"]) as source:
        _require_working(source, item)
        return _Export(lake, plan, part).run(source, item)


def _require_working(source: TaskReader, item: Item) -> None:
    """RefusedError where the run of this task has ended, or another one has taken its lease."""
    row = source.one(item["working"])
    if row is None or not row[0]:
        raise _too_late()


def _too_late() -> RefusedError:
    return RefusedError(
        "A task of the pipeline started too late.",
        why="Its run has ended, or another run has taken its place.",
        next_step="It changed nothing. Run the same command again: it continues.",
    )


def discard_files(lake: Lake, plan: ArchivePlan, numbers: Collection[int]) -> None:
    """The manifests of these ranges, which are damaged, and the files of attempts at them."""
    for number in numbers:
        lake.discard(plan.range_path(number))
    stems = tuple(f"{plan.stem(number)}{end}" for number in numbers for end in ".-")
    for path in lake.files(plan.folder) if stems else ():
        if path.rpartition("/")[2].removeprefix("_tmp-").startswith(stems):
            lake.discard(path)


class _Export:
    """Writes a range. All its files appear together, at the end, under names of their own; then its
    manifest, unless another attempt has put its own there: that one counts."""

    def __init__(self, lake: Lake, plan: ArchivePlan, part: Range) -> None:
        self._lake = lake
        self._plan = plan
        self._part = part
        self._writers: dict[str, tuple[str, Writer]] = {}
        """By date: the file's path, and its writer."""

    def run(self, source: TaskReader, item: Item) -> dict[str, Any]:
        """Write the files and the manifest; returns the range's manifest."""
        kind = self._plan.payload_kind
        with ExitStack() as files:
            with ExitStack() as writers:
                for rows in source.batches(item["rows"]):
                    for date, batch in by_date(conform(rows, kind)):
                        self._writer(date, files, writers).write(batch)
            _require_working(source, item)
        if not self._lake.can_replace:
            # The uploads took a while.
            _require_working(source, item)
        path = self._plan.range_path(self._part.number)
        self._lake.write_json(path, self._manifest(), once=True)
        return self._lake.read_json(path)

    def _writer(self, date: str, files: ExitStack, writers: ExitStack) -> Writer:
        if date not in self._writers:
            number = self._part.number
            path = unique_path(self._plan.data_path(date, number))
            temporary = f"_tmp-{self._plan.stem(number)}-{uuid4().hex}"
            file = files.enter_context(self._lake.writing(path, temporary=temporary))
            writer = Writer(file, self._plan.payload_kind)
            self._writers[date] = path, writers.enter_context(writer)
        return self._writers[date][1]

    def _manifest(self) -> dict[str, Any]:
        files = [
            {"path": path, "size": self._lake.size(path), **writer.digest.as_json()}
            for _, (path, writer) in sorted(self._writers.items())
        ]
        return range_manifest(self._plan, self._part, files)


def range_manifest(plan: ArchivePlan, part: Range, files: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "plan": plan.id,
        "range": part.number,
        "source": part.source,
        "payload_kind": plan.payload_kind,
        **{name: sum(file[name] for file in files) for name in ("rows", "bytes", "size")},
        "files": files,
    }


def by_date(batch: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
    days = dates(batch)
    distinct = pc.unique(days).to_pylist()
    if len(distinct) == 1:
        return [(str(distinct[0]), batch)]
    return [(str(day), batch.filter(pc.equal(days, pa.scalar(day, days.type)))) for day in distinct]


def is_manifest(manifest: Mapping[str, Any], plan: ArchivePlan, part: Range) -> bool:
    """Whether it is that of a range, with all that later phases use."""
    try:
        entries = [dict(file) for file in manifest["files"]]
        paths = [str(entry["path"]) for entry in entries]
    except (KeyError, TypeError, ValueError):
        return False
    counts = (manifest.get("rows"), manifest.get("bytes"), manifest.get("size"))
    key = (manifest.get("plan"), manifest.get("range"), manifest.get("source"))
    return (
        key == (plan.id, part.number, part.source)
        and all(isinstance(count, int) for count in counts)
        and all(digests.is_entry(entry, SCHEMA.names) for entry in entries)
        and all(path.startswith(plan.folder) for path in paths)
    )
