"""A model of the rows that a session of SQL Server sees and locks, for procedures that run at READ
COMMITTED. `rule:` names the line of `rules.RULES` that a part of it follows.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.microsoft.trees import Node

Row = dict[str, Any]
Key = tuple[str, tuple[Any, ...]]
"""A table, and the values of its clustered key."""


class WaitsError(AssertionError):
    """A statement would wait for another session's transaction."""

    def __init__(self, what: str, holder: "Session") -> None:
        super().__init__(what)
        self.holder = holder


class BusyError(Exception):
    """A table lock is not granted at once (1222)."""


class ServerError(Exception):
    """An error that ends the statement; under XACT_ABORT it rolls the transaction back."""


class DeadlockError(ServerError):
    """1205: the victim's transaction is rolled back, whatever XACT_ABORT says (rule: deadlock)."""


class AttentionError(ServerError):
    """The client cancels the call."""


@dataclass(frozen=True)
class Index:
    """An index that a statement may name."""

    table: str
    columns: tuple[str, ...]
    filter: Node | None = None


IDENTITY_CACHE = 1000


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
    may_wait: bool = False
    """A statement that has to wait for another transaction does so; otherwise it is a mistake."""
    columns: dict[str, dict[str, Node | None]] = field(default_factory=dict)
    """Table -> column -> its default, if it has one."""
    identities: dict[str, str] = field(default_factory=dict)
    """Table -> the column that numbers its rows."""
    indexes: dict[str, Index] = field(default_factory=dict)
    caches: dict[str, int] = field(default_factory=dict)
    """Sequence, or table with an identity -> the numbers in its cache."""
    application_locks: dict[str, "Session"] = field(default_factory=dict)
    clock: int = 0
    """Half microseconds."""
    procedures: dict[str, Node] = field(default_factory=dict)
    definitions: dict[str, str] = field(default_factory=dict)
    parse: Callable[[str], Node] | None = None
    _reserved: dict[str, int] = field(default_factory=dict)
    """The last number of the cache in use."""

    def __post_init__(self) -> None:
        for table in self.keys:
            self.tables.setdefault(table, {})

    def key(self, table: str, row: Row) -> tuple[Any, ...]:
        return tuple(row[column] for column in self.keys[table])

    def fill(self, table: str, *rows: Row) -> None:
        """Rows that are committed already."""
        self.tables[table].update({self.key(table, row): row for row in rows})

    def session(self, number: int = 50) -> "Session":
        return Session(self, number)

    def now(self) -> int:
        self.clock += 1
        return self.clock // 2

    def draw(self, numbers: str, count: int = 1) -> int:
        """The first of `count` numbers (rule: drawn-stays, cache)."""
        self.sequences[numbers] += count
        last = self.sequences[numbers]
        if last > self._reserved.get(numbers, 0):
            self._reserved[numbers] = last - 1 + self.caches.get(numbers, 1)
        return last - count + 1

    def restart(self, sequence: str, value: int) -> None:
        """The next draw gives this value (rule: restart)."""
        self.sequences[sequence] = value - 1
        self._reserved.pop(sequence, None)

    def fail_over(self) -> None:
        """Another replica goes on (rule: fail-over)."""
        for session in list(self.open):
            session.roll_back()
        self.application_locks.clear()
        for numbers, last in self._reserved.items():
            self.sequences[numbers] = max(self.sequences[numbers], last)
        self._reserved.clear()


class Session:
    """One session, and its transaction if it has one."""

    def __init__(self, server: Server, number: int = 1) -> None:
        self.server = server
        self.number = number
        """@@SPID."""
        self.depth = 0
        """@@TRANCOUNT."""
        self.xact_abort = False
        self.waits_for: Session | None = None
        self.commits = 0
        """The commits that changed a row."""
        self._changed: dict[Key, Row | None] = {}
        self._ghosts: dict[Key, list[Row]] = {}
        """Versions of rows that this transaction has written over (rule: ghost)."""
        self._shared: set[str] = set()
        self._ranges: list[tuple[str, tuple[Any, ...] | None]] = []
        """Of HOLDLOCK: an index, and the last key of the range; None: the end of the index."""

    def begin(self) -> None:
        self.depth += 1
        if self.depth == 1:
            self.server.open.append(self)

    def commit(self) -> None:
        """Only the outermost one commits (rule: nesting)."""
        assert self.depth
        self.depth -= 1
        if not self.depth:
            self.commits += bool(self._changed)
            for (table, key), row in self._changed.items():
                if row is None:
                    self.server.tables[table].pop(key, None)
                else:
                    self.server.tables[table][key] = row
            self._end()

    def roll_back(self) -> None:
        """On request, or because the caller died; all levels (rule: nesting)."""
        self._end()

    def mark(self) -> dict[Key, Row | None]:
        """For `undo`, if the statement fails (rule: statement)."""
        return dict(self._changed)

    def undo(self, mark: dict[Key, Row | None]) -> None:
        self._changed = mark

    def wait_for(self, error: WaitsError) -> None:
        """Wait for the session that holds the lock; the last of a circle is the victim."""
        if not self.server.may_wait:
            raise error
        self.waits_for = other = error.holder
        while other.waits_for is not None and other is not self:
            other = other.waits_for
        if other is self:
            self.waits_for = None
            raise DeadlockError(str(error))

    def lock_application(self, name: str) -> None:
        """Until the end of the transaction (rule: application-lock)."""
        holder = self.server.application_locks.setdefault(name, self)
        if holder is not self:
            raise WaitsError(f"the application lock {name}", holder)

    def _end(self) -> None:
        self.depth = 0
        self.server.locks = {key: s for key, s in self.server.locks.items() if s is not self}
        self._changed = {}
        self._ghosts.clear()
        self._shared.clear()
        self._ranges.clear()
        self.waits_for = None
        held = self.server.application_locks
        self.server.application_locks = {n: s for n, s in held.items() if s is not self}
        if self in self.server.open:
            self.server.open.remove(self)

    def _others(self) -> Iterator["Session"]:
        return (session for session in self.server.open if session is not self)

    def hold(self, table: str) -> None:
        """A shared lock that lasts to the end of the transaction (rule: repeatable-read)."""
        self._shared.add(table)

    def lock_table(self, table: str) -> None:
        """TABLOCKX, or BusyError (rule: table-lock)."""
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
        """The row; None if it does not exist or is skipped (rule: read-committed, readpast)."""
        for other in self._others():
            if (table, key) in other._changed:
                if dirty:  # rule: nolock
                    return other._changed[table, key]
                if not skips:
                    raise WaitsError(f"a read of {table} {key}", other)
                return None
        return self._own(table, key)

    def _own(self, table: str, key: tuple[Any, ...]) -> Row | None:
        if (table, key) in self._changed:
            return self._changed[table, key]
        return self.server.tables[table].get(key)

    def lock(self, table: str, key: tuple[Any, ...], *, skips: bool) -> Callable[[], None] | None:
        """An update lock; returns a function that releases it, if new. None: the row is skipped.

        Rules: update-lock, readpast, released-unmatched.
        """
        holder = self.server.locks.get((table, key))
        if holder is self:
            return lambda: None
        if holder is not None:
            if not skips:
                raise WaitsError(f"a write to {table} {key}", holder)
            return None
        self.server.locks[table, key] = self

        def release() -> None:
            if (table, key) not in self._changed:
                self.server.locks.pop((table, key), None)

        return release

    def write(self, table: str, key: tuple[Any, ...], row: Row | None) -> None:
        """Write a row that it has locked."""
        assert self.server.locks[table, key] is self
        if row is not None:
            self._require_no_range(table, key, row)
        if before := self._changed.get((table, key)):
            self._ghosts.setdefault((table, key), []).append(before)
        self._changed[table, key] = row

    def insert(self, table: str, row: Row) -> None:
        key = self.server.key(table, row)
        for other in self._others():
            if (table, key) in other._changed or self.server.locks.get((table, key)) is other:
                raise WaitsError(f"an insert into {table} {key}", other)
        self._require_no_range(table, key, row)
        assert self._own(table, key) is None, f"{table} {key} is there twice (2627)"
        self.server.locks[table, key] = self
        self._changed[table, key] = row

    def hold_range(self, index: str, last: tuple[Any, ...] | None) -> None:
        """HOLDLOCK up to a key, or to the end, which another range may hold (rule: range)."""
        if last is None:
            for other in self._others():
                if (index, None) in other._ranges:
                    raise WaitsError(f"the end of {index}", other)
        self._ranges.append((index, last))

    def _require_no_range(self, table: str, key: tuple[Any, ...], row: Row) -> None:
        """Ours are of rows that are in their index for as long as they are new or ready."""
        for other in self._others():
            for name, last in other._ranges:
                index = self.server.indexes[name]
                if index.table == table and self._own(table, key) is None:
                    position = (*(row[column] for column in index.columns), *key)
                    if last is None or position <= last:
                        raise WaitsError(f"an insert into a range of {name}", other)

    def draw(self, sequence: str, count: int = 1) -> int:
        return self.server.draw(sequence, count)

    def positions(self, table: str, columns: tuple[str, ...]) -> Iterator[tuple[Any, list[Row]]]:
        """Of each row in an index: where it is, and its versions, which may differ."""
        for key in self.all_keys(table):
            found = [self.server.tables[table].get(key)]
            for session in self.server.open:
                found.append(session._changed.get((table, key)))
                found += session._ghosts.get((table, key), [])
            versions = [row for row in reversed(found) if row]
            if versions:
                where = (*(versions[0][column] for column in columns), *key)
                yield (where, key), versions
