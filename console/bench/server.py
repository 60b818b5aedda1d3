"""What a round costs the server: log, pages, processor; and what its sessions wait for."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from console import sql
from console.bench.names import application_name, load_name
from console.engines import Database, Product, open_database
from console.monitor.known_waits import explain, kind_of

_NOTHING = sql.Scope()


@dataclass(frozen=True)
class SeenWait:
    """How many sessions waited for it at a time, on average; None for both names: none waited."""

    kind: str | None
    wait: str | None
    average_sessions: float
    meaning: str | None

    @property
    def name(self) -> str:
        """For a table."""
        return ":".join(part for part in (self.kind, self.wait) if part) or "running"


@dataclass(frozen=True)
class Touched:
    """Pages looked at and rows updated in a queue's tables; None: the server does not say."""

    pages: int | None
    updates: int | None
    hot_updates: int | None


@dataclass(frozen=True)
class _Written:
    log_bytes: int | None


@dataclass(frozen=True)
class _Waiting:
    kind: str | None
    wait: str | None
    sessions: int


@dataclass(frozen=True)
class _Snapshot:
    xmin: str


class Looker:
    """One session beside the load, which asks what it costs."""

    def __init__(self, product: Product, connection: Connection, name: str) -> None:
        self._product = product
        self._connection = connection
        self._name = name
        self.looks = 0
        self._waits: Counter[tuple[str | None, str | None]] = Counter()

    def _fetch(self, row_type: type[sql.Row], of: str, /, **values: object) -> list[sql.Row]:
        statement = sql.statements(self._product.name, "bench")[of]
        return sql.fetch(self._connection, row_type, statement, _NOTHING, **values)

    def log_bytes(self) -> int | None:
        """Of the server's log so far; None: it does not say."""
        try:
            (row,) = self._fetch(_Written, "written")
        except DBAPIError:  # the login may not look at that
            return None
        return row.log_bytes

    def touched(self, schema: str, tables: Sequence[str]) -> Touched:
        """Of tables, since they are there."""
        names = self._product.array(tables)
        try:
            (row,) = self._fetch(Touched, "touched", schema=schema, names=names)
        except DBAPIError:
            return Touched(None, None, None)
        return row

    def look(self) -> None:
        """One look at what the load's sessions do."""
        try:
            seen = self._fetch(_Waiting, "waiting", name=self._name)
        except DBAPIError:
            return
        self.looks += 1
        for row in seen:
            self._waits[row.kind, row.wait] += row.sessions

    def waits(self) -> list[SeenWait] | None:
        """What was seen, the most frequent first; None: the sessions are hidden from this login."""
        if not self._waits:
            return None  # a load of which no session does anything is one that cannot be seen
        engine = self._product.name
        return [
            SeenWait(
                kind or kind_of(engine, wait),
                wait,
                round(sessions / self.looks, 3),
                explain(engine, kind, wait, None) if wait else None,
            )
            for (kind, wait), sessions in self._waits.most_common()
        ]

    def forget(self) -> None:
        """Begin to count anew."""
        self.looks = 0
        self._waits.clear()


@contextmanager
def looking(database: Database, token: str) -> Iterator[Looker]:
    """A session for the looks of a whole bench, by which others see that it runs."""
    url = database.complete_url().difference_update_query(("application_name",))
    own = open_database(
        url.render_as_string(hide_password=False),
        timeouts=database.timeouts,
        application_name=application_name(token),
        label=database.label,
    )
    try:
        with own.autocommit("look at the server's load", read_only=True) as connection:
            yield Looker(database.product, connection, load_name(token))
    finally:
        own.close()


@contextmanager
def old_transaction(database: Database) -> Iterator[Connection]:
    """One that keeps the server from clearing anything away that dies from now on."""
    statements = sql.statements(database.product.name, "bench")
    with database.autocommit("hold an old transaction", read_only=True) as connection:
        sql.run_script(connection, statements["begin_old"], _NOTHING)
        try:
            keep_old(database, connection)
            yield connection
        finally:
            sql.run_script(connection, statements["end_old"], _NOTHING)


def keep_old(database: Database, connection: Connection) -> str:
    """Say that it is still meant, before it counts as idle; the transaction that it keeps."""
    statement = sql.statements(database.product.name, "bench")["old_snapshot"]
    (row,) = sql.fetch(connection, _Snapshot, statement, _NOTHING)
    return row.xmin


def server_cpu_seconds(postmaster: int | None) -> float | None:
    """What the processes of a server on this machine have used so far; None: it is elsewhere."""
    if postmaster is None or not Path("/proc/self/stat").exists():
        return None
    ticks = 0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            # The program's name, in brackets, may hold anything.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        own, of_ended = fields[11:13], fields[13:15]
        if int(folder.name) == postmaster:
            ticks += sum(map(int, own + of_ended))
        elif int(fields[1]) == postmaster:
            ticks += sum(map(int, own))
    return ticks / os.sysconf("SC_CLK_TCK")
