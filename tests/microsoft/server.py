"""A model of the rows that a session of SQL Server sees and locks, for procedures that run at READ
COMMITTED and skip locked rows. A statement that would wait for another transaction fails.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

Row = dict[str, Any]
Key = tuple[str, tuple[Any, ...]]
"""A table, and the values of its clustered key."""


class WaitsError(AssertionError):
    """A statement would wait for another session's transaction."""


class BusyError(Exception):
    """A table lock is not granted at once (1222)."""


@dataclass
class Server:
    """What is committed, and which session has locked which row."""

    keys: Mapping[str, tuple[str, ...]]
    chance: Random
    tables: dict[str, dict[tuple[Any, ...], Row]] = field(default_factory=dict)
    sequences: dict[str, int] = field(default_factory=dict)
    """Current values. Drawn numbers stay drawn, whatever happens to the transaction."""
    locks: dict[Key, "Session"] = field(default_factory=dict)
    """Update locks, which become exclusive where the row is written."""
    open: list["Session"] = field(default_factory=list)

    def __post_init__(self) -> None:
        for table in self.keys:
            self.tables.setdefault(table, {})

    def key(self, table: str, row: Row) -> tuple[Any, ...]:
        return tuple(row[column] for column in self.keys[table])

    def fill(self, table: str, *rows: Row) -> None:
        """Rows that are committed already."""
        self.tables[table].update({self.key(table, row): row for row in rows})

    def session(self) -> "Session":
        return Session(self)


class Session:
    """One session, and its transaction if it has one."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.depth = 0
        """@@TRANCOUNT."""
        self._changed: dict[Key, Row | None] = {}
        self._shared: set[str] = set()

    def begin(self) -> None:
        self.depth += 1
        if self.depth == 1:
            self.server.open.append(self)

    def commit(self) -> None:
        assert self.depth
        self.depth -= 1
        if not self.depth:
            for (table, key), row in self._changed.items():
                if row is None:
                    self.server.tables[table].pop(key, None)
                else:
                    self.server.tables[table][key] = row
            self._end()

    def roll_back(self) -> None:
        """On request, or because the caller died; drawn numbers stay drawn."""
        self._end()

    def _end(self) -> None:
        self.depth = 0
        self.server.locks = {key: s for key, s in self.server.locks.items() if s is not self}
        self._changed.clear()
        self._shared.clear()
        if self in self.server.open:
            self.server.open.remove(self)

    def _others(self) -> Iterator["Session"]:
        return (session for session in self.server.open if session is not self)

    def hold(self, table: str) -> None:
        """A shared lock that lasts to the end of the transaction."""
        self._shared.add(table)

    def lock_table(self, table: str) -> None:
        """TABLOCKX, or BusyError."""
        for other in self._others():
            if table in other._shared or any(table == name for name, _ in other._changed):
                raise BusyError(table)
        if any(name == table and s is not self for (name, _), s in self.server.locks.items()):
            raise BusyError(table)

    def all_keys(self, table: str) -> list[tuple[Any, ...]]:
        """The keys of rows that exist for any session, in order."""
        found = set(self.server.tables[table])
        for session in self.server.open:
            found |= {key for name, key in session._changed if name == table}
        return sorted(found)

    def read(self, table: str, key: tuple[Any, ...], *, skips: bool, dirty: bool) -> Row | None:
        """The row; None if it does not exist or is skipped."""
        for other in self._others():
            if (table, key) in other._changed:
                if dirty:
                    return other._changed[table, key]
                if not skips:
                    raise WaitsError(f"a read of {table} {key}")
                return None
        return self._own(table, key)

    def _own(self, table: str, key: tuple[Any, ...]) -> Row | None:
        if (table, key) in self._changed:
            return self._changed[table, key]
        return self.server.tables[table].get(key)

    def lock(self, table: str, key: tuple[Any, ...], *, skips: bool) -> Callable[[], None] | None:
        """An update lock; returns a function that releases it, if new. None: the row is skipped."""
        holder = self.server.locks.get((table, key))
        if holder is self:
            return lambda: None
        if holder is not None:
            if not skips:
                raise WaitsError(f"a write to {table} {key}")
            return None
        self.server.locks[table, key] = self

        def release() -> None:
            if (table, key) not in self._changed:
                self.server.locks.pop((table, key), None)

        return release

    def write(self, table: str, key: tuple[Any, ...], row: Row | None) -> None:
        """Write a row that it has locked."""
        assert self.server.locks[table, key] is self
        self._changed[table, key] = row

    def insert(self, table: str, row: Row) -> None:
        key = self.server.key(table, row)
        for other in self._others():
            if (table, key) in other._changed or self.server.locks.get((table, key)) is other:
                raise WaitsError(f"an insert into {table} {key}")
        assert self._own(table, key) is None, f"{table} {key} is there twice (2627)"
        self.server.locks[table, key] = self
        self._changed[table, key] = row

    def draw(self, sequence: str, count: int = 1) -> int:
        """Draw `count` numbers; the first of them."""
        self.server.sequences[sequence] += count
        return self.server.sequences[sequence] - count + 1
