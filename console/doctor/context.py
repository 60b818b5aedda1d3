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
from typing import TYPE_CHECKING, Any, TypeVar

from console import sql
from console.catalog import Queue
from console.clock import utc
from console.doctor.finding import Code, Finding
from console.engines import Database, Session
from console.errors import ConnectionFailedError, ConsoleError
from console.monitor.limits import DEFAULTS, Thresholds
from console.monitor.message import Masks
from console.monitor.sample_queries import limit_transaction
from console.monitor.snapshot import QueueSnapshot

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from console.doctor.unusual import TrafficForecasts


Row = TypeVar("Row")

PATIENCE_SECONDS = 10.0
"""How long a proof waits for transactions that are open."""


@dataclass
class CheckContext:
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

    usual: TrafficForecasts | None = None
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
    def viewed_as(self, view: Queue, patience_seconds: float | None = None) -> Iterator[None]:
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
def check_context(
    database: Database,
    queue: Queue,
    *,
    snapshot: QueueSnapshot | None = None,
    thresholds: Thresholds = DEFAULTS,
    patience_seconds: float = PATIENCE_SECONDS,
    masks: Masks = (),
    clock_ahead: timedelta = timedelta(),
    turn: Semaphore | None = None,
) -> Iterator[CheckContext]:
    """A check, on a session of its own that the server holds to reading."""
    with ExitStack() as opened:
        session = opened.enter_context(database.session(f"examine {queue.name!r}", read_only=True))
        yield CheckContext(
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


Check = Callable[[CheckContext], Iterator[Finding]]


@dataclass(frozen=True)
class CheckGroup:
    """Checks of one sort of fault, for the queues that can have it."""

    what: str
    codes: tuple[Code, ...]
    """Of all its findings."""
    checks: Mapping[str, Check]
    """What each examines, in words, and the check."""
    applies: Callable[[Queue], bool] = lambda _: True

    def run(self, context: CheckContext) -> Iterator[Finding]:
        if self.applies(context.queue):
            for what, check in self.checks.items():
                yield from checked(context, what, check)


STATEMENT_SECONDS = 5.0
"""The time-out of one statement of the doctor; it takes milliseconds."""
LOCK_SECONDS = 1.0
MOST = 10_000
"""Rows are counted up to here; one more says: there are more."""


def checked(context: CheckContext, what: str, check: Check) -> Iterator[Finding]:
    """Its findings, dated; where it cannot look, `what` is told in `unseen` with the reason."""
    try:
        for finding in check(context):
            yield finding.with_since(context.now)
    except ConnectionFailedError:
        raise
    except ConsoleError as error:
        context.unseen.append(f"{what}: {error.why or error.what}")


def can_query(context: CheckContext, what: str, name: str) -> bool:
    """Whether the queue has that statement of the doctor's; else `what` is unseen."""
    if not (there := context.has(name)):
        product = context.database.product
        context.unseen.append(f"{what}: not examined on {product.title} yet")
    return there


def ask(
    context: CheckContext,
    row_type: type[Row],
    name: str,
    scope: sql.Scope | None = None,
    **values: object,
) -> list[Row]:
    """The rows of one statement of the doctor's, read by indexes and within its time-out."""
    with context.moment() as connection:
        limit_transaction(connection, context.database, STATEMENT_SECONDS, LOCK_SECONDS)
        within = scope or context.queue.scope(connection)
        of = f"{context.queue.design.name}.{name}"
        return sql.rows(connection, row_type, of, within, **values)


def whether(context: CheckContext, name: str) -> bool:
    """The answer of a statement of the doctor's that returns no more than yes or no."""
    with context.moment() as connection:
        limit_transaction(connection, context.database, STATEMENT_SECONDS, LOCK_SECONDS)
        of = f"{context.queue.design.name}.{name}"
        return sql.value(connection, bool, of, context.queue.scope(connection))


def follows(context: CheckContext, what: str) -> bool:
    """Whether this server follows another, which alone knows its sessions: `what` is unseen."""
    if not context.database.capabilities.read_only:
        return False
    if recovering := whether(context, "recovering"):
        context.unseen.append(f"{what}: a standby does not know its primary's sessions")
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
def with_connection_options(*words: str) -> Iterator[None]:
    """What `command` makes in the body names the connection by these: `--profile shops/a`."""
    before = _CONNECTION.set(words)
    try:
        yield
    finally:
        _CONNECTION.reset(before)


def command(queue: Queue, verb: str, *words: str) -> str:
    schema = [] if queue.schema in {"public", "dbo"} else ["--schema", queue.schema]
    return shlex.join(["dbq-console", verb, queue.name, *words, *schema, *_CONNECTION.get()])
