"""What a check gets: one queue, a read-only session, and what is known of the queue already."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from threading import Semaphore
from typing import TYPE_CHECKING, Any, TypeVar

from console import sql
from console.actions import maintenance
from console.catalog import Queue, lookups
from console.clock import elapsed, sleep, utc
from console.doctor.finding import Code, Finding
from console.engines import PRODUCTS, Database, Session, lock_limit
from console.errors import BusyError, ConnectionFailedError, ConsoleError
from console.monitor.activity import Activity, Objects, find_objects, sample_activity
from console.monitor.limits import DEFAULTS, Thresholds
from console.monitor.message import Masks
from console.monitor.sample_queries import limit_transaction
from console.monitor.snapshot import QueueSnapshot
from console.verbs.index import PROGRAM

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from console.monitor.past import Forecasts


Row = TypeVar("Row")

PATIENCE_SECONDS = 10.0
"""How long a proof waits for open transactions."""
STATEMENT_SECONDS = 5.0
"""Time-out of a statement that takes milliseconds."""
LOCK_SECONDS = 1.0
_LOCK_MET_SECONDS = 0.05
"""How long a check waits for a lock once the queue's figures, or another check, met one."""
_SHARED_SECONDS = 0.1
"""For so long several short reads of one queue are one transaction."""
MOST = 10_000
"""Rows are counted up to here; one more means "more than"."""


@dataclass
class CheckContext:
    """Of one diagnosis of one queue. It changes nothing."""

    database: Database
    session: Session
    queue: Queue
    snapshot: QueueSnapshot | None = None
    """Its latest figures, if there are any."""
    thresholds: Thresholds = DEFAULTS
    patience_seconds: float = PATIENCE_SECONDS
    masks: Masks = ()
    """What is hidden in the errors that a finding quotes."""
    unseen: list[str] = field(default_factory=list)
    """What could not be checked, and why. With any of these the queue is not "all clear"."""
    met_lock: bool = False
    """Whether somebody seems to have locked the queue's table."""
    clock_ahead: timedelta = timedelta()
    """How far the database's clock is ahead of ours."""
    forecasts: Forecasts | None = None
    beside: Sequence[Queue] = ()
    """The queues for which lookups are shared with it, itself among them; empty: it alone."""
    turn: Semaphore | None = None
    """Held while this one works; None: no other queue is checked at the same time."""
    _limited: tuple[ExitStack, Connection, float] | None = field(default=None, repr=False)
    """The open transaction of `limited_transaction`, and when it is to end."""
    _opened: ExitStack = field(default_factory=ExitStack, repr=False)

    @property
    def now(self) -> datetime:
        """By the database's clock."""
        return utc() + self.clock_ahead

    @cached_property
    def measures(self) -> maintenance.Measures:
        """Its tables and indexes, once for all checks."""
        with self.limited_transaction() as connection:
            return maintenance.measured(connection, self.database, self.queue)

    @cached_property
    def objects(self) -> Objects:
        queues = self.beside or [self.queue]
        return lookups.once("objects", lambda: find_objects(self.database, queues))

    @cached_property
    def activity(self) -> Activity:
        """The sessions at one moment, for all checks."""
        self.end_limited()  # it would be one of them
        return lookups.once("sessions", lambda: sample_activity(self.database, self.objects))

    def has(self, name: str) -> bool:
        """Whether the queue's design has that statement on this engine."""
        return sql.has(self.database.product, f"{self.queue.design.name}.{name}")

    def can_query(self, what: str, name: str) -> bool:
        """As `has`; where it has not, `what` is reported as unseen."""
        if not (available := self.has(name)):
            self.unseen.append(f"{what}: not examined on {self.database.product.title} yet")
        return available

    def query(
        self, row_type: type[Row], name: str, scope: sql.Scope | None = None, **values: object
    ) -> list[Row]:
        """The rows of a statement of the design, in its own transaction with short time-outs."""
        with self.limited_transaction() as connection:
            scope = scope or self.queue.scope(connection)
            return sql.rows(connection, row_type, self.statement(name), scope, **values)

    def query_unlimited(self, row_type: type[Row], name: str, **values: object) -> list[Row]:
        """The same without time-outs: of a whole ring, for example."""
        with self.transaction() as connection:
            return self.fetch(connection, row_type, name, **values)

    def fetch(
        self, connection: Connection, row_type: type[Row], name: str, **values: object
    ) -> list[Row]:
        scope = self.queue.scope(self.database.product)
        return sql.rows(connection, row_type, self.statement(name), scope, **values)

    def is_true(self, name: str) -> bool:
        """The result of a statement that returns one boolean."""
        with self.limited_transaction() as connection:
            scope = self.queue.scope(connection)
            return sql.value(connection, bool, self.statement(name), scope)

    def is_standby(self, what: str) -> bool:
        """Whether only the primary knows the sessions: then `what` is reported as unseen."""
        if not self.database.capabilities.read_only:
            return False
        if recovering := self.is_true("recovering"):
            self.unseen.append(f"{what}: a standby does not know its primary's sessions")
        return recovering

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Keep it short: callers and actions may wait for it."""
        self.end_limited()
        with self.session.transaction(self._activity) as connection:
            yield connection

    @contextmanager
    def limited_transaction(self) -> Iterator[Connection]:
        """With short time-outs. Several in a row are one, which ends soon: callers may wait."""
        if self._limited is None:
            opened = ExitStack()
            connection = opened.enter_context(self.session.transaction(self._activity))
            self._limited = opened, connection, elapsed() + _SHARED_SECONDS
            with self._ended_by_error():
                limit_transaction(connection, self.database, STATEMENT_SECONDS, LOCK_SECONDS)
        _, connection, until = self._limited
        with self._ended_by_error():
            yield connection
        if elapsed() >= until:
            self.end_limited()

    @contextmanager
    def _ended_by_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.end_limited(error)
            raise

    def end_limited(self, error: BaseException | None = None) -> None:
        """Also raises what the error, or one of the end itself, means to an operator."""
        if self._limited is not None:
            (opened, *_), self._limited = self._limited, None
            if error is None:
                opened.close()
            else:
                opened.__exit__(type(error), error, error.__traceback__)

    def pause(self, seconds: float) -> None:
        """Sleep. Meanwhile checks of other queues use the connection that this one frees."""
        if self.turn is None:
            sleep(seconds)
            return
        self.end_limited()
        self._opened.close()
        self.turn.release()
        try:
            sleep(seconds)
        finally:
            self.turn.acquire()
        session = self.database.session(self._activity, read_only=True)
        self.session = self._opened.enter_context(session)

    @contextmanager
    def viewed_as(self, view: Queue, patience_seconds: float | None = None) -> Iterator[None]:
        """In the body the queue is what one of its subscribers sees of it."""
        before = self.queue, self.patience_seconds
        self.queue = view
        self.patience_seconds = before[1] if patience_seconds is None else patience_seconds
        try:
            yield
        finally:
            self.queue, self.patience_seconds = before

    def for_each_view(self, check: Check) -> Iterator[Finding]:
        """The findings of each subscriber, named after it; of a queue without any, its own."""
        for view in self.queue.views:
            with self.viewed_as(view):
                findings = list(check(self))
            yield from (finding.for_subscriber(view.subscriber) for finding in findings)

    def statement(self, name: str) -> str:
        """Of the queue's design."""
        return f"{self.queue.design.name}.{name}"

    @property
    def _activity(self) -> str:
        return f"examine {self.queue.name!r}"


@contextmanager
def check_context(
    database: Database, queue: Queue, *, patience_seconds: float = PATIENCE_SECONDS, **known: Any
) -> Iterator[CheckContext]:
    """A context with a read-only session of its own; `known`: other fields of it."""
    with ExitStack() as opened:
        session = opened.enter_context(database.session(f"examine {queue.name!r}", read_only=True))
        context = CheckContext(
            database, session, queue, patience_seconds=patience_seconds, _opened=opened, **known
        )
        try:
            yield context
        except BaseException as error:
            context.end_limited(error)
            raise
        context.end_limited()


Check = Callable[[CheckContext], Iterator[Finding]]


@dataclass(frozen=True)
class CheckGroup:
    """Checks for one sort of fault."""

    codes: tuple[Code, ...]
    """Of all findings of these checks."""
    checks: Mapping[str, Check]
    """By what each examines."""
    applies: Callable[[Queue], bool] = lambda _: True

    def run(self, context: CheckContext) -> Iterator[Finding]:
        if self.applies(context.queue):
            for what, check in self.checks.items():
                yield from run_check(context, what, check)


def run_check(context: CheckContext, what: str, check: Check) -> Iterator[Finding]:
    """Its findings, dated. If it fails, `what` is reported as unseen, with the reason."""
    try:
        with lock_limit(_LOCK_MET_SECONDS if context.met_lock else None):
            for finding in check(context):
                yield finding.with_since(context.now)
    except ConnectionFailedError:
        raise
    except ConsoleError as error:
        context.met_lock = context.met_lock or isinstance(error, BusyError)
        context.unseen.append(f"{what}: {error.why or error.what}")


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 claim`, `17 claims`, `more than 10,000 claims`."""
    if number > MOST:
        return f"more than {MOST:,} {plural or noun + 's'}"
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def shortened(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"


def first_few(texts: Sequence[str], most: int = 2, between: str = "; ") -> str:
    """`this; that; 3 more`."""
    rest = len(texts) - most
    return between.join([*texts[:most], *([f"{rest} more"] if rest > 0 else [])])


_DEFAULT_SCHEMAS = {product.default_schema for product in PRODUCTS.values()}
_CONNECTION_OPTIONS: ContextVar[tuple[str, ...]] = ContextVar("connection options", default=())


@contextmanager
def with_connection_options(*options: str) -> Iterator[None]:
    """In the body `command` ends with these: `--profile shops/a`."""
    before = _CONNECTION_OPTIONS.set(options)
    try:
        yield
    finally:
        _CONNECTION_OPTIONS.reset(before)


def command(queue: Queue, verb: str, *words: str) -> str:
    """Of a verb that needs a confirmation it prints the plan."""
    schema = [] if queue.schema in _DEFAULT_SCHEMAS else ["--schema", queue.schema]
    options = [*schema, *_CONNECTION_OPTIONS.get()]
    # After "--" every word is an argument.
    parts = [*options, *words] if "--" in words else [*words, *options]
    return shlex.join([PROGRAM, verb, queue.name, *parts])
