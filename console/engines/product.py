"""The interface of an engine module: everything that differs between database products."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from console.errors import ConsoleError

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine
    from sqlalchemy.engine.interfaces import Dialect
    from sqlalchemy.exc import DBAPIError


UNREACHABLE = (
    "Check that the server runs and that host, port and network are right, then try again."
)
THIS_MACHINE = "this machine"
TRANSPORT = "transport"
"""The fact that says how a connection is encrypted, and whether the server's certificate is."""
LOCKED = (
    "Another session holds the lock; nothing was changed. Try again, or find out who: "
    "dbq-console stuck, then the queue's name."
)
ALREADY_STORED = "A message with that id already exists; it was not stored twice."


def behind_sequence(name: str) -> str:
    """The next step where a drawn id is taken; `name`: the queue's, or empty: not known."""
    where = f"dbq-console doctor {shlex.quote(name)}" if name else "dbq-console doctor"
    return f"Nothing was stored. Find out whether a sequence is behind its table: {where}"


@dataclass(frozen=True)
class Timeouts:
    """How long the console waits for a server before it reports an error."""

    connect_seconds: int = 10
    statement_seconds: float = 30.0
    """0: no limit."""
    lock_seconds: float = 5.0


@dataclass(frozen=True)
class ServerProbe:
    """What a server and login are."""

    server_version: str
    version_number: int
    """Comparable: 180006 for PostgreSQL 18.6."""
    database: str
    database_user: str
    read_only: bool
    """The server refuses writes (a standby, or default_transaction_read_only), or it is a copy."""
    sees_all_sessions: bool
    may_create: bool
    counts_rows: bool
    """The server has the row counters from which rates are computed."""
    encoding: str


@dataclass(frozen=True)
class Capabilities(ServerProbe):
    """What a server and login can do, read once per connection profile."""

    missing: Mapping[str, str]
    """Missing feature -> reason."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Further properties of the server (edition, isolation...)."""


class Cleaner(StrEnum):
    """What removes dead rows, which decides the maintenance."""

    VACUUM = "vacuum"
    GHOST_CLEANUP = "ghost cleanup"


class Product(Protocol):
    name: str
    title: str
    default_schema: str
    """Of new queues."""
    others_schema: str
    """Where others keep their tables, unless said otherwise."""
    name_limit: int
    """The longest identifier, in the units of `name_length`."""
    name_unit: str
    """What `name_length` counts, for messages."""
    payload_types: Mapping[str, str]
    """The option `payload` -> the column's type."""
    id_types: Mapping[str, str]
    """A design's `id_type` -> the column's type, by a name that can be quoted."""
    time_types: Sequence[str]
    """Types of a column that can say when, the usual first."""
    number_types: Sequence[str]
    """Types of a column that are compared with whole numbers, the usual first."""
    unsorted_types: Sequence[str]
    """Types by which rows cannot be sorted, where the server's catalog does not tell."""
    narrow_types: Sequence[str]
    """Types of texts that give way to the type in which texts are sent."""
    protocol: str
    """How bulk data is read and pushed: `libpq` or `odbc`."""
    cleaner: Cleaner
    online_index: tuple[str, str]
    """What of a statement that creates an index is replaced by what, so that callers continue."""
    keeps_definitions: bool
    """The server stores a function's whole definition as sent, not only its body."""
    key_by_hand: str
    """How an operator restores a missing key; empty: the doctor does."""
    sampled_together: int
    """Queues in one statement of a sample: with more, a planner takes longer for each."""
    first_run_seconds: float
    """How long the first run of such a statement may take: the server compiles it."""
    holders_every_seconds: float
    """How long a sampler shows the same open transactions: what reading them costs."""
    time_indexes_have_keys: bool
    """Whether in an index of a time the rows of one time are in the order of their keys."""
    escalates_locks: bool
    """A statement that locks thousands of rows and keys may get a lock of the whole table."""
    sql_lexer: str
    code_lexer: str
    """The Pygments lexers of its SQL and of its functions' language."""

    @property
    def dialect(self) -> Dialect: ...

    read_only_options: Mapping[str, bool]
    """Execution options of SQLAlchemy that make the server refuse writes in a transaction."""

    def name_length(self, name: str) -> int: ...

    def as_script(self, head: str, pieces: Sequence[str]) -> str:
        """One script, of one transaction, for the engine's own client."""
        ...

    def array(self, values: Sequence[str | bytes]) -> object:
        """Payloads as the single argument of push_many."""
        ...

    def label(self, url: URL) -> str:
        """The name of a connection without a profile: no user, no password."""
        ...

    def secured(self, url: URL, *, production: bool) -> URL:
        """The URL with what protects its connection, unless it says otherwise itself."""
        ...

    def protection(self, url: URL, *, production: bool) -> str:
        """What a connection by this URL will have of encryption, in words."""
        ...

    def create_engine(
        self,
        complete_url: Callable[[], URL],
        timeouts: Timeouts,
        application_name: str,
        *,
        pooled: bool = False,
    ) -> Engine:
        """`complete_url`: the URL with its secrets, called again for those that expire. `pooled`: a
        pooler is known to stand before the server."""
        ...

    def reports_primary(self, connection: Connection) -> bool:
        """Whether the server has said by itself that it is no standby; else it has to be asked."""
        ...

    def capabilities(self, connection: Connection) -> Capabilities: ...

    def translate(self, error: DBAPIError, doing: str) -> ConsoleError: ...

    def limit_locks(self, connection: Connection, seconds: float) -> None:
        """Wait at most so long for a lock, in this transaction."""
        ...

    def wait_for_notification(self, connection: Connection, seconds: float) -> None: ...

    def permission_warnings(self, connection: Connection) -> AbstractContextManager[list[str]]:
        """Collects, in the block, what the server skips for lack of rights with a mere warning."""
        ...
