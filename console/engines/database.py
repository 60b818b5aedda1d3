"""A database that the console talks to: connections with time-outs and translated errors."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from console.engines.product import Capabilities, Product, Timeouts
from console.engines.retry import again
from console.errors import ConnectionFailedError, InDoubtError, RefusedError


class Session:
    """A connection in the hands of one thread."""

    def __init__(self, product: Product, connection: Connection, *, read_only: bool) -> None:
        self._product = product
        self._connection = connection
        self._read_only = read_only

    @contextmanager
    def transaction(self, doing: str) -> Iterator[Connection]:
        """As `Database.transaction`; what fails in it leaves the session to the next one."""
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
    committing = False
    try:
        with connection.begin():
            yield
            if connection.invalidated:
                raise ConnectionFailedError(
                    f"Could not {doing}.",
                    why="The connection was lost; the server has undone it.",
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
            next_step="Look before you try again: dbq-console status, dbq-console audit",
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
        self.production = production
        """Marked as production by its profile; its catalog may do so too."""
        self.read_only = read_only
        self._application_name = application_name
        self._complete = complete

    @cached_property
    def _engine(self) -> Engine:
        """Made at the first use: a missing driver is an error of connecting, like any other."""
        return self.product.create_engine(
            self.complete_url(), self.timeouts, self._application_name
        )

    def complete_url(self) -> URL:
        """The URL with its secrets: for drivers of other processes, never to be shown or kept."""
        return self.url if self._complete is None else self._complete()

    @cached_property
    def capabilities(self) -> Capabilities:
        """Probed at the first use, then kept."""
        with self.autocommit("look at what the server can do", read_only=True) as connection:
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
    def transaction(self, doing: str, *, read_only: bool = False) -> Iterator[Connection]:
        """One transaction at READ COMMITTED: committed at the end, rolled back on any error.

        `doing` completes "Could not ..." in the error that the operator sees. InDoubtError where
        the connection was lost with the answer to the commit.
        """
        self._require(doing, read_only=read_only)
        with self._connected(doing, "READ COMMITTED") as connection:
            if read_only:
                connection.execution_options(**self.product.read_only_options)
            with _transaction(self.product, connection, doing, read_only=read_only):
                yield connection

    @contextmanager
    def session(self, doing: str, *, read_only: bool = False) -> Iterator["Session"]:
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
                next_step="Use a connection with more rights, or --rights, if that is meant.",
            )

    @contextmanager
    def _connected(self, doing: str, isolation: str) -> Iterator[Connection]:
        try:
            with again(lambda: self._open(doing)) as connection:
                yield connection.execution_options(isolation_level=isolation)
        except DBAPIError as error:
            raise self.product.translate(error, doing) from error

    def _open(self, doing: str) -> Connection:
        try:
            return self._engine.connect()
        except DBAPIError as error:
            self._forget_engine()
            raise self.product.translate(error, doing) from error
        except UnicodeError as error:  # of a host's name, before any server is asked
            raise ConnectionFailedError(
                f"Could not {doing}.",
                why=f"The host of the URL is no name of a host: {error}",
                next_step="Check the host in the URL.",
            ) from error
        except PoolTimeoutError as error:
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
