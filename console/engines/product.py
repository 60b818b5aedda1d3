"""What an engine module must offer: everything that differs between database products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from console.errors import ConsoleError

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine
    from sqlalchemy.engine.interfaces import Dialect
    from sqlalchemy.exc import DBAPIError


UNREACHABLE = (
    "Check that the server runs and that host, port and network are right, then try again."
)


@dataclass(frozen=True)
class Timeouts:
    """How long the console waits for a server before it says so."""

    connect_seconds: int = 10
    statement_seconds: float = 30.0
    """0: there is no end."""
    lock_seconds: float = 5.0


@dataclass(frozen=True)
class Capabilities:
    """What one server and login can do, probed once when the connection is opened."""

    server_version: str
    version_number: int
    """Comparable: 180006 for PostgreSQL 18.6."""
    database: str
    database_user: str
    read_only: bool
    """The server itself takes no writes (a standby, or default_transaction_read_only)."""
    sees_all_sessions: bool
    may_create: bool
    counts_rows: bool
    """The server keeps the row counters that rates are taken from."""
    encoding: str
    missing: Mapping[str, str]
    """What cannot be shown or done -> why."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What else tells this server from others of the engine (edition, isolation...)."""


class Product(Protocol):
    name: str
    title: str
    default_schema: str
    name_limit: int
    """The longest identifier, in the units of `name_length`."""
    name_unit: str
    """What `name_length` counts, for messages."""
    payload_types: Mapping[str, str]
    """The option `payload` -> the column's type."""
    id_types: Mapping[str, str]
    """A design's `id_type` -> the column's type, by the name that may stand in quotes."""
    protocol: str
    """How bulk is read and pushed: `libpq` or `odbc`."""
    cleaner: str
    """What clears dead rows away, and so what maintenance is: `vacuum` or `ghost cleanup`."""
    keeps_definitions: bool
    """The server keeps a function's whole definition as it was sent, not only its body."""
    key_by_hand: str
    """How an operator makes a missing key again; empty: the doctor makes it."""
    sql_lexer: str
    code_lexer: str
    """What Pygments calls its SQL, and the language of its functions."""

    @property
    def dialect(self) -> Dialect: ...

    read_only_options: Mapping[str, bool]
    """Execution options of SQLAlchemy that make the server refuse writes in a transaction."""

    def name_length(self, name: str) -> int: ...

    def as_script(self, head: str, pieces: Sequence[str]) -> str:
        """One script, of one transaction, for the engine's own client."""
        ...

    def array(self, values: Sequence[str | bytes]) -> object:
        """Many payloads as the one value that push_many takes."""
        ...

    def label(self, url: URL) -> str:
        """How a connection is called where no profile names it: no user, no password."""
        ...

    def create_engine(self, url: URL, timeouts: Timeouts, application_name: str) -> Engine: ...

    def capabilities(self, connection: Connection) -> Capabilities: ...

    def translate(self, error: DBAPIError, doing: str) -> ConsoleError: ...

    def wait_for_notification(self, connection: Connection, seconds: float) -> None: ...

    def refusals(self, connection: Connection) -> AbstractContextManager[list[str]]:
        """What the server refuses meanwhile and only warns of, as if it had been done."""
        ...
