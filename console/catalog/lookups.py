"""Lookups for many queues at once: a doctor's, which examines one queue after another.

Outside of `together` each function here only calls what it is given.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from console.errors import ConnectionFailedError, ConsoleError

if TYPE_CHECKING:
    from sqlalchemy import Connection

Row = TypeVar("Row")
Value = TypeVar("Value")

FRESH_SECONDS = 10.0
"""No queue begins to be examined with lookups that are older."""


class Together:
    """What was looked up for some queues; used by one thread at a time."""

    def __init__(
        self,
        names: Mapping[str, frozenset[str]],
        transaction: Callable[[], AbstractContextManager[Connection]],
    ) -> None:
        """`names`: of all objects of the queues, by schema. `transaction`: with time-outs, apart
        from those of the queues, so that its failure is not theirs."""
        self._names = names
        self._transaction = transaction
        self._known: dict[Hashable, Any] = {}
        self._began = time.monotonic()

    @property
    def fresh(self) -> bool:
        return time.monotonic() - self._began < FRESH_SECONDS

    def once(self, what: Hashable, read: Callable[[], Value]) -> Value:
        if what not in self._known:
            self._known[what] = read()
        value: Value = self._known[what]
        return value

    def by_name(
        self,
        what: Hashable,
        schema: str,
        names: frozenset[str],
        read: Callable[[Connection, Sequence[str]], Sequence[Row]],
        name_of: Callable[[Row], str],
    ) -> list[Row] | None:
        """None: it cannot be read for all of them, as when somebody has locked one's table."""
        every = self._names.get(schema, names)
        every = every if every >= names else names

        def rows_by_name() -> Mapping[str, Sequence[Row]] | None:
            found: defaultdict[str, list[Row]] = defaultdict(list)
            try:
                with self._transaction() as connection:
                    for row in read(connection, sorted(every)):
                        found[name_of(row)].append(row)
            except ConnectionFailedError:
                raise
            except ConsoleError:
                return None
            return found

        known = self.once((what, schema, every), rows_by_name)
        return None if known is None else [r for name in sorted(names) for r in known.get(name, ())]


_TOGETHER: ContextVar[Together | None] = ContextVar("together", default=None)


@contextmanager
def together(shared: Together) -> Iterator[None]:
    """In the body what is the same for several queues is read once for all of them."""
    token = _TOGETHER.set(shared)
    try:
        yield
    finally:
        _TOGETHER.reset(token)


def once(what: Hashable, read: Callable[[], Value]) -> Value:
    """The result of `read`, which is the same for all queues of a database."""
    shared = _TOGETHER.get()
    return read() if shared is None else shared.once(what, read)


def prepare(what: Hashable, read: Callable[[], object]) -> None:
    """Look it up, for `known`, if it is for several queues."""
    if (shared := _TOGETHER.get()) is not None:
        shared.once(what, read)


def known(what: Hashable) -> Any:
    """What was prepared; None: nothing was."""
    shared = _TOGETHER.get()
    return None if shared is None else shared.once(what, lambda: None)


def by_name(
    connection: Connection,
    what: Hashable,
    schema: str,
    names: Sequence[str],
    read: Callable[[Connection, Sequence[str]], Sequence[Row]],
    name_of: Callable[[Row], str],
) -> Sequence[Row]:
    """The rows of `read` about these names of a schema. `what` it reads, with all but the names."""
    shared = _TOGETHER.get()
    if shared is not None:
        found = shared.by_name(what, schema, frozenset(names), read, name_of)
        if found is not None:
            return found
    return read(connection, names)
