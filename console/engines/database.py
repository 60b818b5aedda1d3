"""A database that the console talks to: connections with time-outs and translated errors."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from console import sql
from console.engines.product import Capabilities, Product, Timeouts
from console.errors import ConnectionFailedError, InDoubtError, RefusedError, TransientError

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine

# How long a thread waits for a server that may have fallen silent.
#
# A server's own time-outs end what it is slow at. Where it is paused, or the network swallows
# what it says, they do nothing: only the one who asks can give up. Engine modules look here
# while they wait.


@dataclass(frozen=True)
class _Patience:
    seconds: float
    ends_at: float
    given_up: Callable[[], bool]


_PATIENCE: ContextVar[_Patience | None] = ContextVar("patience", default=None)


def _never() -> bool:
    return False


@contextmanager
def patience(seconds: float, given_up: Callable[[], bool] = _never) -> Iterator[None]:
    """All that this thread asks of servers inside may take so long together.

    It ends earlier where `given_up` says so, or an outer patience ends.
    """
    outer = _PATIENCE.get()
    ends_at = time.monotonic() + seconds
    if outer is not None and outer.ends_at < ends_at:
        seconds, ends_at = outer.seconds, outer.ends_at
    told = given_up if outer is None else (lambda: given_up() or outer.given_up())
    token = _PATIENCE.set(_Patience(seconds, ends_at, told))
    try:
        yield
    finally:
        _PATIENCE.reset(token)


def patience_left() -> float | None:
    """Seconds until this thread should wait no longer; None: nobody has told it."""
    now = _PATIENCE.get()
    return None if now is None else now.ends_at - time.monotonic()


def why_not_wait() -> str:
    """Why this thread should wait no longer; nothing where it may."""
    now = _PATIENCE.get()
    if now is None:
        return ""
    if now.given_up():
        return "nobody waits for the answer any more"
    if time.monotonic() >= now.ends_at:
        return f"the server has not answered within {now.seconds:g} s"
    return ""


_UNHURRIED: ContextVar[bool] = ContextVar("unhurried", default=False)


@contextmanager
def unhurried() -> Iterator[None]:
    """What this thread asks inside may take hours: only a lost connection, or impatience, ends it.

    For statements that were freed of the server's own time-out.
    """
    token = _UNHURRIED.set(True)
    try:
        yield
    finally:
        _UNHURRIED.reset(token)


def is_unhurried() -> bool:
    return _UNHURRIED.get()


Result = TypeVar("Result")

_PAUSES_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.8)


def _always() -> bool:
    return True


def retry_transient(
    work: Callable[[], Result], *, while_true: Callable[[], bool] = _always
) -> Result:
    """What `work` returns, which must be one whole transaction or less than one.

    Runs it up to six times, as long as it ends with TransientError and `while_true` still holds.
    """
    for pause in _PAUSES_SECONDS:
        try:
            return work()
        except TransientError:
            if not while_true():
                raise
            # Two that were in each other's way must not meet again.
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  # no secret depends on it
    return work()


# Connecting to one database, a thread at a time.
#
# A server that was away meets one caller of each console and not all of them at once; and where
# that one cannot connect, those that waited behind it have their answer too.

Raw = TypeVar("Raw")

_LOOKS_EVERY_SECONDS = 0.1
"""At whether the thread still has patience."""


class ConnectLock:
    """Whose turn it is to connect."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures = 0
        self._error: Exception | None = None

    def connect(self, connect: Callable[[], Raw]) -> Raw:
        """What `connect` gives. Its error, or that of the one who tried while this one waited."""
        before = self._failures
        with self._turn():
            if self._error is not None and self._failures != before:
                raise _again(self._error)
            try:
                return connect()
            except Exception as error:
                # Who only lost patience has not found out how the server is.
                if not why_not_wait():
                    self._failures += 1
                    self._error = error
                raise

    @contextmanager
    def _turn(self) -> Iterator[None]:
        while not self._lock.acquire(timeout=_LOOKS_EVERY_SECONDS):
            if why_not_wait():
                break  # it connects no more: the driver says why
        else:
            try:
                yield
            finally:
                self._lock.release()
            return
        yield


def _again(error: Exception) -> Exception:
    """The same for another thread: one object in two would mix their tracebacks."""
    same = type(error)(*error.args)
    for note in getattr(error, "__notes__", ()):
        same.add_note(note)
    return same


def _dated_when_made(_raw: object, record: Any) -> None:
    """The pool dates a connection before it waits its turn to connect: whatever another found dead
    meanwhile would make this one, which the server has just answered, count as dead too."""
    record.starttime = time.time()


@dataclass(frozen=True)
class _Reader:
    """Whether this login may take the role that only looks, and whether it may do more itself."""

    takes_role: bool
    may_more: bool


def _become_oneself(*, conn: Connection, cursor: Any, context: Any, **_: object) -> None:
    """After a preset that is not trusted. Where it failed, the end of the transaction does it."""
    if getattr(context, "by_reader", False):
        with cursor.connection.cursor() as other:
            other.execute(sql.script("own.be_oneself", conn.dialect))


class Session:
    """A connection held by one thread."""

    def __init__(self, product: Product, connection: Connection, *, read_only: bool) -> None:
        self._product = product
        self._connection = connection
        self._read_only = read_only

    @contextmanager
    def transaction(self, doing: str) -> Iterator[Connection]:
        """As `Database.transaction`; what fails in it leaves the session to the next one."""
        from sqlalchemy.exc import DBAPIError  # noqa: PLC0415  # a verb imports what it uses

        try:
            with _transaction(self._product, self._connection, doing, read_only=self._read_only):
                yield self._connection
        except DBAPIError as error:
            raise self._product.translate(error, doing) from error


@contextmanager
def _transaction(
    product: Product, connection: Connection, doing: str, *, read_only: bool
) -> Iterator[None]:
    """Committed at the end. InDoubtError where nobody knows whether it was."""
    from sqlalchemy.exc import DBAPIError  # noqa: PLC0415  # a verb imports what it uses

    committing = False
    try:
        with connection.begin():
            yield
            if connection.invalidated:
                raise ConnectionFailedError(
                    f"Could not {doing}.",
                    why="The connection was lost; the server has rolled it back.",
                    next_step="Try again.",
                )
            committing = True
    except DBAPIError as error:
        told = product.translate(error, doing)
        if read_only or not committing or not isinstance(told, ConnectionFailedError):
            raise
        if isinstance(told, InDoubtError):
            raise told from error
        raise InDoubtError(
            told.what,
            why=f"{told.why} The answer to the commit was lost: it may have been done or not.",
            next_step="Check before you try again: dbq-console status, dbq-console audit",
        ) from error


class Database:
    """One database of one connection profile. Threads may share it; processes may not."""

    def __init__(
        self,
        product: Product,
        url: URL,
        *,
        timeouts: Timeouts,
        application_name: str,
        label: str,
        production: bool = False,
        read_only: bool = False,
        complete: Callable[[], URL] | None = None,
    ) -> None:
        """`complete` gives the URL with its secrets, where `url` is one without.

        `read_only`: only for looking, whatever the login may do and the server lets through.
        """
        self.product = product
        self.url = url
        self.label = label
        self.timeouts = timeouts
        self.remembered = False
        """Whether names of its queues are kept in this user's state, for the shell to complete."""
        self.production = production
        """Marked as production by its profile; its catalog may do so too."""
        self.read_only = read_only
        self._application_name = application_name
        self._complete = complete
        self._reader: _Reader | None = None

    @cached_property
    def _engine(self) -> Engine:
        """Made at the first use: a missing driver is an error of connecting, like any other."""
        from sqlalchemy import event  # noqa: PLC0415  # a verb imports what it uses

        engine = self.product.create_engine(
            self.complete_url(), self.timeouts, self._application_name
        )
        event.listen(engine, "connect", _dated_when_made)
        event.listen(engine, "before_cursor_execute", self._become_reader, named=True)
        event.listen(engine, "after_cursor_execute", _become_oneself, named=True)
        return engine

    def _become_reader(
        self, *, conn: Connection, cursor: Any, statement: str, context: Any, **_: object
    ) -> None:
        """What a preset says that its user has not trusted is run in read-only transactions, by a
        role that can do nothing else. RefusedError where there is no such role, or transaction."""
        # Each statement passes here: a search for a fixed text costs next to nothing.
        if sql.UNTRUSTED_MARK not in statement or not (found := sql.UNTRUSTED.search(statement)):
            return
        preset = found["preset"]
        options, wanted = conn.get_execution_options(), self.product.read_only_options
        if not wanted or any(options.get(name) != value for name, value in wanted.items()):
            raise RefusedError(
                f"The preset {preset!r} is not trusted: nothing is done by it.",
                why="Its user has not vouched for the file that it is now.",
                next_step="Read it, then: dbq-console preset trust FILE (dbq-console preset list)",
            )
        if self._reader is None:
            self._reader = sql.row(conn, _Reader, "own.reader")
        if self._reader.takes_role:
            cursor.execute(sql.script("own.be_reader", conn.dialect))
            context.by_reader = True
        elif self._reader.may_more:
            raise RefusedError(
                f"The preset {preset!r} is not trusted: by it the role dbq_reader looks, no other.",
                why="This login may do more than look, and there is no such role that it may take.",
                next_step="Make the roles (dbq-console roles), use a login that only looks, or "
                "read the file and trust it: dbq-console preset trust FILE",
            )

    def complete_url(self) -> URL:
        """The URL with its secrets: for drivers of other processes, never to be shown or kept."""
        return self.url if self._complete is None else self._complete()

    @cached_property
    def capabilities(self) -> Capabilities:
        """Probed at the first use, then kept."""
        with self.autocommit("read what the server supports", read_only=True) as connection:
            return self.product.capabilities(connection)

    @property
    def known_capabilities(self) -> Capabilities | None:
        """The same, without waiting; None: nobody has asked yet."""
        found: Capabilities | None = vars(self).get("capabilities")
        return found

    def probe_again(self) -> None:
        """At the next use: another server may be there now, or the same in another role."""
        vars(self).pop("capabilities", None)

    @contextmanager
    def transaction(
        self, doing: str, *, read_only: bool = False, isolation: str = "READ COMMITTED"
    ) -> Iterator[Connection]:
        """One transaction: committed at the end, rolled back on any error.

        `doing` completes "Could not ..." in the error that the operator sees. `isolation`: another
        level is for finding out what that does. InDoubtError where the connection was lost with
        the answer to the commit.
        """
        self._require(doing, read_only=read_only)
        with self._connected(doing, isolation) as connection:
            if read_only:
                connection.execution_options(**self.product.read_only_options)
            with _transaction(self.product, connection, doing, read_only=read_only):
                yield connection

    @contextmanager
    def session(self, doing: str, *, read_only: bool = False) -> Iterator[Session]:
        """One connection for several transactions at READ COMMITTED, one after the other."""
        self._require(doing, read_only=read_only)
        with self._connected(doing, "READ COMMITTED") as connection:
            if read_only:
                connection.execution_options(**self.product.read_only_options)
            yield Session(self.product, connection, read_only=read_only)

    @contextmanager
    def autocommit(self, doing: str, *, read_only: bool = False) -> Iterator[Connection]:
        """Each statement its own transaction; nothing stays open between two of them.

        `read_only` is the caller's word, here: the server does not hold it to that.
        """
        self._require(doing, read_only=read_only)
        with self._connected(doing, "AUTOCOMMIT") as connection:
            yield connection

    def _require(self, doing: str, *, read_only: bool) -> None:
        """A read-only transaction lets VACUUM's kin, NOTIFY and the end of sessions through, and
        not every engine has such transactions: so nothing but looking gets a connection at all."""
        if self.read_only and not read_only:
            raise RefusedError(
                f"Could not {doing}.",
                why="This connection is read-only.",
                next_step="Use a connection with more rights, or --rights.",
            )

    @contextmanager
    def _connected(self, doing: str, isolation: str) -> Iterator[Connection]:
        from sqlalchemy.exc import DBAPIError  # noqa: PLC0415  # a verb imports what it uses

        try:
            with retry_transient(lambda: self._open(doing)) as connection:
                yield connection.execution_options(isolation_level=isolation)
        except DBAPIError as error:
            raise self.product.translate(error, doing) from error

    def _open(self, doing: str) -> Connection:
        from sqlalchemy import exc  # noqa: PLC0415  # a verb imports what it uses

        try:
            return self._engine.connect()
        except exc.DBAPIError as error:
            self._forget_engine()
            raise self.product.translate(error, doing) from error
        except UnicodeError as error:  # of a host's name, before any server is asked
            raise ConnectionFailedError(
                f"Could not {doing}.",
                why=f"The host of the URL is not a valid host name: {error}",
                next_step="Check the host in the URL.",
            ) from error
        except exc.TimeoutError as error:
            raise ConnectionFailedError(
                f"Could not {doing}.",
                why="Every connection of this console's pool is busy.",
                next_step="Try again when the work that holds them is done.",
            ) from error

    def _forget_engine(self) -> None:
        """Where secrets can be looked up again, they are: a token may have expired meanwhile."""
        if self._complete is not None and (engine := vars(self).pop("_engine", None)):
            engine.dispose()

    def close(self) -> None:
        """Give all connections back to the server."""
        if engine := vars(self).get("_engine"):
            engine.dispose()
