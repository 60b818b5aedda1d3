"""What a family of findings looks with: one queue, one session, what is known already."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from threading import Semaphore
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from console import sql
from console.catalog import Queue
from console.clock import utc
from console.doctor.finding import Code, Finding
from console.engines import Database, Session
from console.errors import ConnectionFailedError, ConsoleError
from console.formats import numbered
from console.monitor.limits import DEFAULTS, Thresholds
from console.monitor.message import Masks, Placed, ReadBound, last_key, pages
from console.monitor.sample_queries import be_careful
from console.monitor.scan_query import MessageSource, query, values_of
from console.monitor.scans import Scan, ScanKey, ScanRequest
from console.monitor.snapshot import QueueSnapshot

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from console.doctor.unusual import Usual


Row = TypeVar("Row")

PATIENCE_SECONDS = 10.0
"""How long a proof waits for transactions that are open."""


@dataclass
class Examination:
    """One check of one queue. It changes nothing."""

    database: Database
    session: Session
    queue: Queue
    snapshot: QueueSnapshot | None = None
    """Its figures a moment ago, where somebody took them."""
    thresholds: Thresholds = DEFAULTS
    patience_seconds: float = PATIENCE_SECONDS
    masks: Masks = ()
    """What is hidden of the errors that a finding quotes."""
    unseen: list[str] = field(default_factory=list)
    """What could not be examined, and why: with any of these nothing is all clear."""
    clock_ahead: timedelta = timedelta()
    """How far the database's clock is ahead of ours."""

    @property
    def now(self) -> datetime:
        """By the database's clock."""
        return utc() + self.clock_ahead

    usual: Usual | None = None
    """What is usual of the connection's queues, where somebody knows."""
    turn: Semaphore | None = None
    """Held while it works; None: nobody else examines at the same time."""
    _opened: ExitStack = field(default_factory=ExitStack, repr=False)

    def has(self, name: str) -> bool:
        """Whether the queue's design has that statement, on this engine."""
        return sql.has(self.database.product, f"{self.queue.design.name}.{name}")

    def ask(self, row_type: type[Row], name: str, **values: object) -> list[Row]:
        """The rows of one statement of the design's file, alone in its transaction: it sees what is
        committed when it begins, and keeps nothing."""
        with self.moment() as connection:
            return self.fetch(connection, row_type, name, **values)

    def pause(self, seconds: float) -> None:
        """Wait. Looks at other queues go on meanwhile, on the connection that this one leaves."""
        if self.turn is None:
            time.sleep(seconds)
            return
        self._opened.close()
        self.turn.release()
        try:
            time.sleep(seconds)
        finally:
            self.turn.acquire()
        session = self.database.session(self._doing, read_only=True)
        self.session = self._opened.enter_context(session)

    @contextmanager
    def seen_as(self, view: Queue, patience_seconds: float | None = None) -> Iterator[None]:
        """Meanwhile the queue is as one of its subscribers has it."""
        before = self.queue, self.patience_seconds
        self.queue = view
        self.patience_seconds = before[1] if patience_seconds is None else patience_seconds
        try:
            yield
        finally:
            self.queue, self.patience_seconds = before

    @contextmanager
    def moment(self) -> Iterator[Connection]:
        """A transaction for several statements; keep it short, callers and actions may wait."""
        with self.session.transaction(self._doing) as connection:
            yield connection

    def fetch(
        self, connection: Connection, row_type: type[Row], name: str, **values: object
    ) -> list[Row]:
        of, scope = f"{self.queue.design.name}.{name}", self.queue.scope(self.database.product)
        return sql.rows(connection, row_type, of, scope, **values)

    @property
    def _doing(self) -> str:
        return f"examine {self.queue.name!r}"


@contextmanager
def open_examination(
    database: Database,
    queue: Queue,
    *,
    snapshot: QueueSnapshot | None = None,
    thresholds: Thresholds = DEFAULTS,
    patience_seconds: float = PATIENCE_SECONDS,
    masks: Masks = (),
    clock_ahead: timedelta = timedelta(),
    turn: Semaphore | None = None,
) -> Iterator[Examination]:
    """A check, on a session of its own that the server holds to reading."""
    with ExitStack() as opened:
        session = opened.enter_context(database.session(f"examine {queue.name!r}", read_only=True))
        yield Examination(
            database,
            session,
            queue,
            snapshot,
            thresholds,
            patience_seconds,
            masks,
            clock_ahead=clock_ahead,
            turn=turn,
            _opened=opened,
        )


Check = Callable[[Examination], Iterator[Finding]]


@dataclass(frozen=True)
class Family:
    """Checks of one sort of fault, for the queues that can have it."""

    what: str
    codes: tuple[Code, ...]
    """Of all its findings."""
    checks: Mapping[str, Check]
    """What each examines, in words, and the check."""
    applies: Callable[[Queue], bool] = lambda _: True

    def examine(self, examination: Examination) -> Iterator[Finding]:
        if self.applies(examination.queue):
            for what, check in self.checks.items():
                yield from checked(examination, what, check)


STATEMENT_SECONDS = 5.0
"""The time-out of one statement of the doctor; it takes milliseconds."""
LOCK_SECONDS = 1.0
MOST = 10_000
"""Rows are counted up to here; one more says: there are more."""


def checked(examination: Examination, what: str, check: Check) -> Iterator[Finding]:
    """Its findings, dated; where it cannot look, `what` is told in `unseen` with the reason."""
    try:
        for finding in check(examination):
            yield finding.dated(examination.now)
    except ConnectionFailedError:
        raise
    except ConsoleError as error:
        examination.unseen.append(f"{what}: {error.why or error.what}")


def can_ask(examination: Examination, what: str, name: str) -> bool:
    """Whether the queue has that statement of the doctor's; else `what` is unseen."""
    if not (there := examination.has(name)):
        product = examination.database.product
        examination.unseen.append(f"{what}: not examined on {product.title} yet")
    return there


def ask(
    examination: Examination,
    row_type: type[Row],
    name: str,
    scope: sql.Scope | None = None,
    **values: object,
) -> list[Row]:
    """The rows of one statement of the doctor's, read by indexes and within its time-out."""
    with examination.moment() as connection:
        be_careful(connection, examination.database, STATEMENT_SECONDS, LOCK_SECONDS)
        within = scope or examination.queue.scope(connection)
        of = f"{examination.queue.design.name}.{name}"
        return sql.rows(connection, row_type, of, within, **values)


def whether(examination: Examination, name: str) -> bool:
    """The answer of a statement of the doctor's that returns no more than yes or no."""
    with examination.moment() as connection:
        be_careful(connection, examination.database, STATEMENT_SECONDS, LOCK_SECONDS)
        of = f"{examination.queue.design.name}.{name}"
        return sql.value(connection, bool, of, examination.queue.scope(connection))


def follows(examination: Examination, what: str) -> bool:
    """Whether this server follows another, which alone knows its sessions: `what` is unseen."""
    if not examination.database.capabilities.read_only:
        return False
    if recovering := whether(examination, "recovering"):
        examination.unseen.append(f"{what}: a standby does not know its primary's sessions")
    return recovering


def texts(value: Any) -> list[str]:
    """An array of a row: a list, or the JSON text of an engine that has no arrays."""
    found = json.loads(value) if isinstance(value, str) else value
    return [str(next(iter(it.values()))) if isinstance(it, dict) else str(it) for it in found or []]


def counted(number: int, noun: str, many: str = "") -> str:
    """`1 claim`, `17 claims`, `more than 10,000 claims`."""
    if number > MOST:
        return f"more than {MOST:,} {many or noun + 's'}"
    return f"{number:,} {noun if number == 1 else many or noun + 's'}"


def shortened(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"


def some(words: Sequence[str], most: int = 2, between: str = "; ") -> str:
    """The first few, and how many more there are: `this; that; 3 more`."""
    rest = len(words) - most
    return between.join([*words[:most], *([f"{rest} more"] if rest > 0 else [])])


_CONNECTION: ContextVar[tuple[str, ...]] = ContextVar("words of the connection", default=())


@contextmanager
def naming(*words: str) -> Iterator[None]:
    """What `command` makes in the body names the connection by these: `--profile shops/a`."""
    before = _CONNECTION.set(words)
    try:
        yield
    finally:
        _CONNECTION.reset(before)


def command(queue: Queue, verb: str, *words: str) -> str:
    schema = [] if queue.schema in {"public", "dbo"} else ["--schema", queue.schema]
    return shlex.join(["dbq-console", verb, queue.name, *words, *schema, *_CONNECTION.get()])


CHUNK_ROWS = 10_000
"""Rows that one statement reads."""
NEWEST = 2**63 - 1
"""No id is higher: where a scan from the newest down begins."""
MOST_ROWS = 1_000_000
"""So many are examined; the rest is told."""


class CountedRow(Placed, Protocol):
    """A row that tells how many its chunk has examined."""

    @property
    def looked(self) -> int: ...


AnyCountedRow = TypeVar("AnyCountedRow", bound=CountedRow)


def bound_of(examination: Examination) -> ReadBound:
    return ReadBound(MOST_ROWS, examination.patience_seconds)


def told(bound: ReadBound) -> str:
    return f"{numbered(int(bound.rows), 'row')} in {bound.took:.0f} s were"


def scanned(
    examination: Examination,
    what: str,
    scan: Scan,
    row_type: type[AnyCountedRow],
    last: str,
    **values: object,
) -> Iterator[AnyCountedRow]:
    """The rows that the statement `last` of common.sql tells of a scan.

    Those of each chunk end with its last one, whatever that is. What lies behind the bounds is
    told in `unseen`.
    """

    def read(key: ScanKey | None) -> list[AnyCountedRow]:
        return page(examination, scan, key, row_type, last, **values)

    def after(rows: list[AnyCountedRow]) -> tuple[int, ScanKey | None]:
        looked = max(rows, key=lambda row: row.position).looked if rows else 0
        return looked, None if looked < CHUNK_ROWS else last_key(scan, rows)

    bound = bound_of(examination)
    for rows in pages(None, read, after, bound):
        yield from rows
    if bound.met:
        state = f" of those that are {scan.state}" if scan.state else ""
        examination.unseen.append(f"{what}: {told(bound)} examined{state}, the others not")


def page(
    examination: Examination,
    scan: Scan,
    after: ScanKey | None,
    row_type: type[AnyCountedRow],
    last: str,
    **values: object,
) -> list[AnyCountedRow]:
    with examination.moment() as connection:
        source = MessageSource.of(connection, examination.queue)
        be_careful(connection, examination.database, STATEMENT_SECONDS, LOCK_SECONDS)
        source.pass_gate(connection)
        ask = ScanRequest(scan, look=CHUNK_ROWS, after=after)
        bound = values_of(source, ask) | values
        return sql.rows(connection, row_type, query(source, ask, last), **bound)
