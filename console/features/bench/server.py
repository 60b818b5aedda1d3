"""What a round costs the server (log, pages, processor, waits), and its environment."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import DBAPIError

from console import sql
from console.engines import Database, open_database, product_of
from console.features.bench.candidate import application_name, load_application_name
from console.load.round_figures import SampledWait, TableActivity
from console.monitor.known_waits import explain, wait_kind_of

if TYPE_CHECKING:
    from sqlalchemy import Connection

_LIBRARIES = ("dbq-console", "psycopg", "pyodbc", "procrastinate", "pgqueuer")


@dataclass(frozen=True)
class Environment:
    """This machine, and the server, which may be on another."""

    machine: Mapping[str, object]
    server: Mapping[str, object]
    settings: Mapping[str, object]
    versions: Mapping[str, str]
    durable: bool | None
    """Whether commits are on disk when they return; None: not known."""

    def as_json(self) -> dict[str, object]:
        """Part of `bench --json`."""
        return asdict(self)

    @property
    def lines(self) -> list[str]:
        machine = self.machine
        memory = f", {machine['memory_gib']} GiB" if machine["memory_gib"] else ""
        settings = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        durable = {True: "durable", False: "NOT DURABLE", None: "durable or not: ?"}[self.durable]
        return [
            f"on {machine['cores']} cores ({machine['cpu']}){memory}, {machine['system']}",
            f"{self.server['engine']} {self.server['version']}"
            f"{', embedded' if self.server['embedded'] else ''}: {durable}; {settings}",
            ", ".join(f"{name} {version}" for name, version in self.versions.items()),
        ]


@dataclass(frozen=True)
class _Setting:
    name: str
    value: str | None


def environment_of(database: Database, *, embedded: bool) -> Environment:
    with database.transaction("read the server's settings", read_only=True) as connection:
        rows = sql.rows(connection, _Setting, "bench.settings")
        durable: bool | None = sql.value(connection, bool | None, "bench.durable")
    return Environment(
        machine={
            "cores": os.cpu_count(),
            "cpu": _cpu(),
            "memory_gib": _memory_gib(),
            "system": f"{platform.system()} {platform.release()}",
        },
        server={
            "engine": database.product.title,
            "version": database.capabilities.server_version,
            "embedded": embedded,
        },
        settings={row.name: row.value for row in rows},
        versions={"Python": platform.python_version(), **_versions()},
        durable=durable,
    )


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    except (ValueError, OSError):
        return None


def _versions() -> dict[str, Any]:
    versions = {}
    for name in _LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


@dataclass(frozen=True)
class _Waiting:
    kind: str | None
    wait: str | None
    sessions: int


class LoadSampler:
    """Measures a round's costs, in a session of its own. `name`: of the load's sessions."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self._name = name
        self.samples = 0
        self._waits: Counter[tuple[str | None, str | None]] = Counter()

    def log_bytes(self) -> int | None:
        """Written by the server so far; None: not known."""
        try:
            written: int | None = sql.value(self._connection, int | None, "bench.bytes_written")
        except DBAPIError:  # no right to read it
            return None
        return written

    def table_activity(self, schema: str, tables: Sequence[str]) -> TableActivity:
        """Since the tables were created."""
        names = product_of(self._connection).array(tables)
        try:
            return sql.row(
                self._connection, TableActivity, "bench.page_accesses", schema=schema, names=names
            )
        except DBAPIError:
            return TableActivity(None, None, None)

    def disk_bytes(self, schema: str, tables: Sequence[str]) -> int | None:
        """Indexes included; None: not known."""
        names = product_of(self._connection).array(tables)
        try:
            return sql.value(self._connection, int | None, "bench.disk", schema=schema, names=names)
        except DBAPIError:
            return None

    def sample(self) -> None:
        """Count what the load's sessions are waiting for."""
        try:
            rows = sql.rows(self._connection, _Waiting, "bench.waiting", name=self._name)
        except DBAPIError:
            return
        self.samples += 1
        for row in rows:
            self._waits[row.kind, row.wait] += row.sessions

    def waits(self) -> list[SampledWait] | None:
        """The most frequent first; None: the sessions are hidden from this login."""
        if not self._waits:
            return None
        engine = self._connection.dialect.name
        return [
            SampledWait(
                kind or wait_kind_of(engine, wait),
                wait,
                round(sessions / self.samples, 3),
                explain(engine, kind, wait, None) if wait else None,
            )
            for (kind, wait), sessions in self._waits.most_common()
        ]

    def reset(self) -> None:
        self.samples = 0
        self._waits.clear()


@contextmanager
def sampling_session(database: Database, token: str) -> Iterator[LoadSampler]:
    """For a whole bench; its session shows others that the bench is running."""
    with session_named(database, application_name(token)) as connection:
        yield LoadSampler(connection, load_application_name(token))


@contextmanager
def session_named(database: Database, name: str) -> Iterator[Connection]:
    url = database.complete_url().difference_update_query(("application_name",))
    own = open_database(
        url.render_as_string(hide_password=False),
        timeouts=database.timeouts,
        application_name=name,
        label=database.label,
    )
    try:
        with own.autocommit("read the server's load", read_only=True) as connection:
            own.require_own_session("show others that this bench or proof is running")
            yield connection
    finally:
        own.close()


@contextmanager
def old_transaction(database: Database) -> Iterator[Connection]:
    """Keeps the server from removing row versions that become dead from now on."""
    with database.autocommit("hold an old transaction", read_only=True) as connection:
        sql.run(connection, "bench.begin_old")
        try:
            keep_open(connection)
            yield connection
        finally:
            sql.run(connection, "bench.end_old")


def keep_open(connection: Connection) -> str:
    """Keep an old transaction from timing out as idle; its snapshot."""
    return sql.value(connection, str, "bench.old_snapshot")


def server_cpu_seconds(postmaster: int | None) -> float | None:
    """Used so far by a server on this machine; None: it is elsewhere."""
    if postmaster is None or not Path("/proc/self/stat").exists():
        return None
    ticks = 0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            # The program's name, in brackets, may contain anything.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        own, of_ended = fields[11:13], fields[13:15]
        if int(folder.name) == postmaster:
            ticks += sum(map(int, own + of_ended))
        elif int(fields[1]) == postmaster:
            ticks += sum(map(int, own))
    return ticks / os.sysconf("SC_CLK_TCK")
