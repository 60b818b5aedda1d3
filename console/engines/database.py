"""A database of a connection profile: connections with timeouts and translated errors."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from console import sql
from console.engines.product import Capabilities, Product, Timeouts
from console.engines.standby import Standby, read_standby
from console.errors import (
    ConnectionFailedError,
    ConsoleError,
    InDoubtError,
    ReadOnlyError,
    RefusedError,
    TransientError,
    UsageError,
)

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine
    from sqlalchemy.exc import DBAPIError

# A client-side limit for what a thread runs on servers. A server's own timeouts do nothing while it
# is paused or the network drops its packets, so engine modules check this limit while they wait.


@dataclass(frozen=True)
class _TimeLimit:
    seconds: float
    ends_at: float
    cancelled: Callable[[], bool]


_TIME_LIMIT: ContextVar[_TimeLimit | None] = ContextVar("time_limit", default=None)


@contextmanager
def time_limit(
    seconds: float, cancelled: Callable[[], bool] = lambda: False, *, beyond: bool = False
) -> Iterator[None]:
    """Limit the total time that this thread spends on servers in the block.

    The limit is over earlier if `cancelled` returns True or an outer limit is reached; `beyond`: an
    outer one may be, as what it has cut off still has to be recorded.
    """
    outer = _TIME_LIMIT.get()
    ends_at = time.monotonic() + seconds
    if outer is not None and outer.ends_at < ends_at and not beyond:
        seconds, ends_at = outer.seconds, outer.ends_at
    either = cancelled if outer is None else (lambda: cancelled() or outer.cancelled())
    token = _TIME_LIMIT.set(_TimeLimit(seconds, ends_at, either))
    try:
        yield
    finally:
        _TIME_LIMIT.reset(token)


def time_left() -> float | None:
    """Seconds left of this thread's limit; None: it has none."""
    now = _TIME_LIMIT.get()
    return None if now is None else now.ends_at - time.monotonic()


def reason_to_stop() -> str:
    """Why this thread should wait no longer; empty while it may."""
    now = _TIME_LIMIT.get()
    if now is None:
        return ""
    if now.cancelled():
        return "the answer is no longer needed"
    if time.monotonic() >= now.ends_at:
        return f"the server has not answered within {now.seconds:g} s"
    return ""


_LOCK_LIMIT: ContextVar[float | None] = ContextVar("lock_limit", default=None)


@contextmanager
def lock_limit(seconds: float | None) -> Iterator[None]:
    """Transactions of this thread wait at most so long for a lock in the block; None: as usual."""
    token = _LOCK_LIMIT.set(seconds)
    try:
        yield
    finally:
        _LOCK_LIMIT.reset(token)


def within_lock_limit(usual: float) -> float:
    """For those who set the time-out of locks themselves."""
    limit = _LOCK_LIMIT.get()
    return usual if limit is None else min(limit, usual)


_NO_TIMEOUT: ContextVar[bool] = ContextVar("no_timeout", default=False)


@contextmanager
def no_timeout() -> Iterator[None]:
    """Statements of this thread may take hours in the block; only `time_limit` or a lost connection
    ends them. For statements without the server's timeout."""
    token = _NO_TIMEOUT.set(True)
    try:
        yield
    finally:
        _NO_TIMEOUT.reset(token)


def has_no_timeout() -> bool:
    return _NO_TIMEOUT.get()


Result = TypeVar("Result")

_PAUSES_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.8)


def retry_transient(
    work: Callable[[], Result], *, while_true: Callable[[], bool] = lambda: True
) -> Result:
    """Run `work`, at most one transaction, up to six times while it raises TransientError and
    `while_true` holds."""
    for pause in _PAUSES_SECONDS:
        try:
            return work()
        except TransientError:
            if not while_true():
                raise
            # Jitter: two that deadlocked must not collide again.
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  # no secret depends on it
    return work()


Raw = TypeVar("Raw")

_POLL_SECONDS = 0.1
"""How often a waiting thread checks its time limit."""


class ConnectLock:
    """Lets one thread at a time connect to a database.

    A server that comes back gets one connection attempt per console, not all at once; if that one
    fails, the threads waiting behind it get its error.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures = 0
        self._error: Exception | None = None

    def connect(self, connect: Callable[[], Raw]) -> Raw:
        """The result of `connect`; or its error, or that of another thread's attempt meanwhile."""
        before = self._failures
        with self._turn():
            if self._error is not None and self._failures != before:
                raise _copy(self._error)
            try:
                return connect()
            except Exception as error:
                # A thread that only ran out of time knows nothing about the server.
                if not reason_to_stop():
                    self._failures += 1
                    self._error = error
                raise

    @contextmanager
    def _turn(self) -> Iterator[None]:
        while not self._lock.acquire(timeout=_POLL_SECONDS):
            if reason_to_stop():
                break  # the driver raises the error
        else:
            try:
                yield
            finally:
                self._lock.release()
            return
        yield


def _copy(error: Exception) -> Exception:
    """The error for another thread: one object in two threads would mix their tracebacks."""
    same = type(error)(*error.args)
    for note in getattr(error, "__notes__", ()):
        same.add_note(note)
    return same


def _set_start_time(_raw: object, record: Any) -> None:
    """The pool dates a connection before it waits for ConnectLock: if another connection was found
    dead meanwhile, this new one would be discarded too."""
    record.starttime = time.time()


@dataclass(frozen=True)
class _Reader:
    """Whether this login may take the reader role, and whether it may do more than read itself."""

    takes_role: bool
    may_more: bool


def _reset_role(*, conn: Connection, cursor: Any, context: Any, **_: object) -> None:
    """After a statement of an untrusted preset. If that failed, the rollback does it."""
    if getattr(context, "by_reader", False):
        with cursor.connection.cursor() as other:
            other.execute(sql.script("own.reset_role", conn.dialect))


class Session:
    """A connection held by one thread."""

    def __init__(self, database: Database, connection: Connection, *, read_only: bool) -> None:
        self._database = database
        self._connection = connection
        self._read_only = read_only

    @contextmanager
    def transaction(self, doing: str) -> Iterator[Connection]:
        """As `Database.transaction`; the session stays usable after an error."""
        from sqlalchemy.exc import DBAPIError  # noqa: PLC0415  # a verb imports what it uses

        try:
            with _transaction(
                self._database.product, self._connection, doing, read_only=self._read_only
            ):
                yield self._connection
        except DBAPIError as error:
            raise self._database.failure(error, doing, read_only=self._read_only) from error


@contextmanager
def _transaction(
    product: Product, connection: Connection, doing: str, *, read_only: bool
) -> Iterator[None]:
    """Commits at the end. InDoubtError if it is unknown whether the commit happened."""
    from sqlalchemy.exc import DBAPIError  # noqa: PLC0415  # a verb imports what it uses

    committing = False
    try:
        with connection.begin():
            if (seconds := _LOCK_LIMIT.get()) is not None:
                product.limit_locks(connection, seconds)
            yield
            if connection.invalidated:
                raise ConnectionFailedError(
                    f"Could not {doing}.",
                    why="The connection was lost; the transaction was rolled back.",
                    next_step="Try again.",
                )
            committing = True
    except DBAPIError as error:
        failure = product.translate(error, doing)
        if read_only or not committing or not isinstance(failure, ConnectionFailedError):
            raise
        if isinstance(failure, InDoubtError):
            raise failure from error
        raise InDoubtError(
            failure.what,
            why=f"{failure.why} The answer to the commit was lost: "
            "it may or may not have been done.",
            next_step="Check before you try again: dbq-console status, dbq-console audit",
        ) from error


CONSUMERS = "dbq_consumers"
"""The execution option of each connection with the profile's word on how consumers connect."""
ROW_SECURITY = "dbq_row_security"
"""That of a product whose server cannot refuse to hide rows: the URL says that what is left is
wanted."""


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
        """`complete` returns the URL with its secrets if `url` has none. `read_only`: refuse
        everything but reading, whatever the login may do."""
        self.product = product
        self.url = url
        self.label = label
        self.timeouts = timeouts
        self.remembered = False
        """Whether its queue names are saved for shell completion."""
        self.production = production
        """Marked as production by its profile; the catalog may do so, too."""
        self.read_only = read_only
        self.pooled = False
        """A pooler stands before the server, by the profile's word or, once connected, proven:
        sessions are shared with others, and each transaction may have another one."""
        self.seen_standby: Standby | None = None
        """What the last sample found it to be; None: a primary, or no sample yet."""
        self.consumers = ""
        """How its consumers connect, by its profile: `direct`, or not said."""
        self.application_name = application_name
        self._complete = complete
        self._reader: _Reader | None = None

    @cached_property
    def _engine(self) -> Engine:
        """Created at first use, so that a missing driver is an error of connecting."""
        from sqlalchemy import event  # noqa: PLC0415  # a verb imports what it uses

        engine = self.product.create_engine(
            self.complete_url, self.timeouts, self.application_name, pooled=self.pooled
        )
        engine.update_execution_options(**{CONSUMERS: self.consumers})
        event.listen(engine, "connect", self._note_pooler)
        event.listen(engine, "connect", _set_start_time)
        event.listen(engine, "before_cursor_execute", self._set_reader_role, named=True)
        event.listen(engine, "after_cursor_execute", _reset_role, named=True)
        return engine

    def _note_pooler(self, raw: object, _record: object) -> None:
        self.pooled = self.pooled or getattr(raw, "pooled", False)

    def _set_reader_role(
        self, *, conn: Connection, cursor: Any, statement: str, context: Any, **_: object
    ) -> None:
        """Run the SQL of an untrusted preset in read-only transactions as the reader role only.
        RefusedError without such a role or transaction."""
        if sql.UNTRUSTED_MARK not in statement or not (match := sql.UNTRUSTED.search(statement)):
            return
        preset = match["preset"]
        options, wanted = conn.get_execution_options(), self.product.read_only_options
        if not wanted or any(options.get(name) != value for name, value in wanted.items()):
            raise RefusedError(
                f"The preset {preset!r} is not trusted: nothing is done with it.",
                why="Its user has not approved the file as it is now.",
                next_step="Read it, then: dbq-console preset trust FILE (dbq-console preset list)",
            )
        if self._reader is None:
            self._reader = sql.row(conn, _Reader, "own.reader")
        if self._reader.takes_role:
            cursor.execute(sql.script("own.set_reader_role", conn.dialect))
            context.by_reader = True
        elif self._reader.may_more:
            raise RefusedError(
                f"The preset {preset!r} is not trusted: only the role dbq_reader may use it.",
                why="This login can do more than read, and it cannot switch to that role.",
                next_step="Create the roles (dbq-console roles), use a login that only reads, or "
                "read the file and trust it: dbq-console preset trust FILE",
            )

    def complete_url(self) -> URL:
        """The URL with its secrets, for drivers of other processes; never show or store it."""
        url = self.url if self._complete is None else self._complete()
        return self.product.secured(url, production=self.production)

    @cached_property
    def capabilities(self) -> Capabilities:
        """Read at first use, then cached."""
        with self.autocommit("read what the server supports", read_only=True) as connection:
            return self.product.capabilities(connection)

    @property
    def known_capabilities(self) -> Capabilities | None:
        """The cached capabilities; None: not read yet."""
        found: Capabilities | None = vars(self).get("capabilities")
        return found

    def standby(self) -> Standby | None:
        """What this server is behind its primary, now; None: it is a primary. ConsoleError."""
        with self.transaction("read whether the server is a standby", read_only=True) as connection:
            return read_standby(self.product, connection)

    @property
    def lag(self) -> timedelta:
        """How long ago the moment was that the last sample is of: more than nothing on a standby
        that is behind."""
        return timedelta() if self.seen_standby is None else self.seen_standby.ago

    def require_primary(self, doing: str) -> None:
        """RefusedError on a standby, which names its primary where the server tells it."""
        if (standby := self.standby()) is not None:
            raise standby.refusal(doing)

    @property
    def connected(self) -> bool:
        """Whether anything was asked of the server yet."""
        return "_engine" in vars(self)

    def forget_capabilities(self) -> None:
        """Read them again at the next use: after a failover it may be another server."""
        vars(self).pop("capabilities", None)

    @contextmanager
    def transaction(
        self, doing: str, *, read_only: bool = False, isolation: str = "READ COMMITTED"
    ) -> Iterator[Connection]:
        """One transaction: committed at the end, rolled back on any error.

        `doing` completes "Could not ..." in the operator's error. InDoubtError if the connection
        was lost during the commit.
        """
        self._require(doing, read_only=read_only)
        with self._connected(doing, isolation, read_only=read_only) as connection:
            if read_only:
                connection.execution_options(**self.product.read_only_options)
            with _transaction(self.product, connection, doing, read_only=read_only):
                yield connection

    @contextmanager
    def session(self, doing: str, *, read_only: bool = False) -> Iterator[Session]:
        """One connection for several transactions at READ COMMITTED, one after the other."""
        self._require(doing, read_only=read_only)
        with self._connected(doing, "READ COMMITTED", read_only=read_only) as connection:
            if read_only:
                connection.execution_options(**self.product.read_only_options)
            yield Session(self, connection, read_only=read_only)

    @contextmanager
    def autocommit(
        self, doing: str, *, read_only: bool = False, needs_session: bool = True
    ) -> Iterator[Connection]:
        """Each statement is a transaction of its own. `read_only` is not enforced by the server.

        Behind a pooler, where no setting would hold, all are one transaction instead; RefusedError
        there if the statements cannot run in one or need their session afterwards.
        """
        self._require(doing, read_only=read_only)
        with self._connected(doing, "AUTOCOMMIT", read_only=read_only) as connection:
            if not self.pooled:
                yield connection
                return
            if needs_session and not read_only:
                self.require_own_session(doing)
            connection.execution_options(isolation_level="READ COMMITTED")
            with _transaction(self.product, connection, doing, read_only=read_only):
                yield connection

    def require_own_session(self, doing: str) -> None:
        """RefusedError behind a pooler. Known once connected."""
        if self.pooled:
            raise RefusedError(
                f"Could not {doing}.",
                why="This connection goes through a pooler, and this needs a session of its own: "
                "it cannot run in a transaction, or it relies on the session's settings.",
                next_step="Connect to the server itself, past the pooler "
                "(dbq-console help connections).",
            )

    def _require(self, doing: str, *, read_only: bool) -> None:
        """A read-only transaction would not stop VACUUM, NOTIFY or ending sessions, and not every
        engine has one: so a read-only database gives no connection for anything but reading."""
        if self.read_only and not read_only:
            raise RefusedError(
                f"Could not {doing}.",
                why="This connection is read-only.",
                next_step="Use a connection with more rights, or --rights.",
            )

    @contextmanager
    def _connected(self, doing: str, isolation: str, *, read_only: bool) -> Iterator[Connection]:
        from sqlalchemy.exc import DBAPIError  # noqa: PLC0415  # a verb imports what it uses

        try:
            with retry_transient(lambda: self._open(doing)) as connection:
                yield connection.execution_options(isolation_level=isolation)
        except DBAPIError as error:
            raise self.failure(error, doing, read_only=read_only) from error

    def failure(self, error: DBAPIError, doing: str, *, read_only: bool) -> ConsoleError:
        """The driver's error for an operator; a standby's refusal of a write names its primary.
        While reading, a value that does not fit is one that is stored, not one that was given."""
        console_error = self.product.translate(error, doing)
        if read_only and console_error.of_a_row and isinstance(console_error, UsageError):
            step = "A value that is stored there cannot be read; filters can leave its message out."
            return ConsoleError(console_error.what, why=console_error.why, next_step=step)
        if isinstance(console_error, ReadOnlyError):
            with suppress(ConsoleError):
                return (
                    console_error if (standby := self.standby()) is None else standby.refusal(doing)
                )
        return console_error

    def _open(self, doing: str) -> Connection:
        from sqlalchemy import exc  # noqa: PLC0415  # a verb imports what it uses

        try:
            return self._engine.connect()
        except exc.DBAPIError as error:
            self._forget_engine()
            raise self.product.translate(error, doing) from error
        except UnicodeError as error:  # in the host name
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
        """So that secrets are looked up again: a token may have expired."""
        if self._complete is not None and (engine := vars(self).pop("_engine", None)):
            engine.dispose()

    def close(self) -> None:
        """Close all connections."""
        if engine := vars(self).get("_engine"):
            engine.dispose()
