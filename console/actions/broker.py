"""Service Broker's own ways: messages leave by RECEIVE alone, and what is stuck is no claim.

- purge takes from the beginning of each conversation, which is all that RECEIVE can;
- requeue switches a queue on again that poison messages have switched off;
- release ends the conversations that are over on the other side and hold nothing. One that a
  consumer has locked is a session's: end-session.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from console import catalog, sql
from console.actions import audit
from console.actions.execute import BATCH, Control
from console.actions.ledger import Ledger
from console.actions.plan import MANY_MESSAGES, require_verb
from console.actions.rows import CHANGED, Moved, Shelf, scope
from console.catalog import Kind, Queue
from console.engines import Database, Session, again
from console.errors import ConnectionFailedError, ConsoleError, RefusedError, UsageError
from console.monitor.broker import BrokerHealth, health
from console.monitor.figures import COUNTED
from console.monitor.filters import Filters
from console.monitor.message import Message
from console.monitor.walked import Source

_IN_ORDER = "RECEIVE takes from the beginning of a conversation, and leaves nothing before."


def require_from_the_front(verb: str, filters: Filters) -> None:
    """UsageError for filters that may leave a message and take one behind it."""
    filters.without(verb, ids=_IN_ORDER, newer=_IN_ORDER, payload=_IN_ORDER)


def receive(
    connection: Connection,
    source: Source,
    statement: sql.Statement,
    chosen: Sequence[Message],
    **bound: object,
) -> Ledger:
    """Take those that are still at the beginning of their conversations, in one transaction."""
    (moved,) = sql.fetch(
        connection,
        Moved,
        statement,
        scope(source, Shelf.TABLE),
        places=source.product.array([message.key.rpartition(",")[2] for message in chosen]),
        state="ready",
        **bound,
    )
    left = len(chosen) - moved.taken_out
    skipped = {CHANGED: left} if left else {}
    return Ledger(len(chosen), moved.taken_out, moved.put_in, skipped=skipped)


@dataclass(frozen=True)
class SwitchPlan:
    """What switching a queue on would do."""

    queue: Queue
    health: BrokerHealth
    wants_queue_name: bool

    @property
    def needed(self) -> bool:
        """Whether it is off."""
        return not (self.health.is_receive_enabled and self.health.is_enqueue_enabled)

    def lines(self) -> list[str]:
        """The plan in words."""
        if not self.needed:
            return [f"requeue {self.queue.label}: the queue is on, there is nothing to do"]
        return [
            f"requeue {self.queue.label}: the queue is off and is switched on again",
            "  ALTER QUEUE ... WITH STATUS = ON; no message is moved or changed",
            "  what waits to be sent to it is delivered then",
            "  if a poison message switched it off, that message is the next to be popped: "
            "five more pops of it that are rolled back switch the queue off again",
        ]

    def as_json(self) -> dict[str, object]:
        """Keys as they are documented."""
        return {
            "verb": "requeue",
            "queue": self.queue.name,
            "schema": self.queue.schema,
            "is_receive_enabled": self.health.is_receive_enabled,
            "is_enqueue_enabled": self.health.is_enqueue_enabled,
            "needed": self.needed,
            "confirmation": "name" if self.wants_queue_name else "y",
        }


def plan_switch(database: Database, queue: Queue) -> SwitchPlan:
    """Look whether the queue is on. Changes nothing."""
    _require_broker(queue, "requeue")
    with database.transaction(f"look at the queue {queue.name!r}") as connection:
        production = database.production or catalog.is_production(connection, database.product)
        return SwitchPlan(queue, health(connection, database.product, queue), production)


def switch_on(database: Database, queue: Queue) -> SwitchPlan:
    """Switch it on, where it is off; as it is afterwards."""
    planned = plan_switch(database, queue)
    if not planned.needed:
        return planned
    product = database.product
    subject = audit.Subject.of(database, queue, "requeue", detail="the queue is switched on")
    with audit.recorded(database, f"switch on the queue {queue.name!r}", subject) as act:
        enable = sql.statements(product.name, queue.design.name)["enable"]
        sql.run_script(act.connection, enable, queue.scope(product))
        found = health(act.connection, product, queue)
        if not (found.is_receive_enabled and found.is_enqueue_enabled):
            raise RefusedError(f"The queue {queue.name!r} is still off.", why=found.problem(None))
    return replace(planned, health=found)


@dataclass(frozen=True)
class _Over:
    conversations: int


@dataclass(frozen=True)
class _Ended:
    ended: int


@dataclass(frozen=True)
class ConversationsPlan:
    """What ending conversations would do. The count is of at most 10,001."""

    queue: Queue
    connection: str
    conversations: int
    production: bool

    @property
    def wants_queue_name(self) -> bool:
        """Whether `y` is not enough."""
        return self.production or self.conversations > MANY_MESSAGES

    def lines(self) -> list[str]:
        """The plan in words."""
        count = f"{self.conversations:,}"
        if self.conversations > COUNTED:
            count = f"more than {COUNTED:,}"
        return [
            f"release {self.queue.label}: {count} conversations are over on the other side",
            "  ended there or broken, without a message to be popped or sent: they are ended",
            "  one that a consumer holds is not among them: see waits, and end-session",
        ]

    def as_json(self) -> dict[str, object]:
        """Keys as they are documented."""
        return {
            "verb": "release",
            "queue": self.queue.name,
            "schema": self.queue.schema,
            "count": self.conversations,
            "confirmation": "name" if self.wants_queue_name else "y",
        }

    @property
    def subject(self) -> audit.Subject:
        """For the audit."""
        queue, detail = self.queue, "conversations that are over"
        return audit.Subject(
            "release",
            queue.schema,
            queue.name,
            self.connection,
            planned=self.conversations,
            detail=detail,
        )


def plan_conversations(database: Database, queue: Queue) -> ConversationsPlan:
    """Count them. Changes nothing."""
    _require_broker(queue, "release")
    product = database.product
    statement = sql.statements(product.name, queue.design.name)["over"]
    with database.transaction(f"look at the queue {queue.name!r}") as connection:
        production = database.production or catalog.is_production(connection, product)
        (found,) = sql.fetch(connection, _Over, statement, queue.scope(product))
    return ConversationsPlan(queue, database.label, found.conversations, production)


def end_conversations(
    database: Database,
    planned: ConversationsPlan,
    *,
    batch: int = BATCH,
    control: Control | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Ledger:
    """End those that are over, in batches, each its own transaction; how many were."""
    ending = _Ending(database, planned, batch, control or Control(), progress)
    return ending.all()


class _Ending:
    def __init__(
        self,
        database: Database,
        planned: ConversationsPlan,
        batch: int,
        control: Control,
        progress: Callable[[int], None],
    ) -> None:
        self._database = database
        self._planned = planned
        self._batch = batch
        self._control = control
        self._progress = progress
        self._doing = f"end conversations of {planned.queue.name!r}"
        self._ledger = Ledger()

    def all(self) -> Ledger:
        """Every batch; then how it ended is kept, as far as the connection allows."""
        product = self._database.product
        with self._database.session(self._doing) as session:
            with session.transaction(self._doing) as connection:
                record = audit.Record.begin(connection, product, self._planned.subject)
            try:
                outcome = self._batches(session, record)
            except ConnectionFailedError as error:
                record.told(audit.Outcome.FAILED, self._ledger, str(error))
                raise
            except (ConsoleError, KeyboardInterrupt) as error:
                stopped = isinstance(error, KeyboardInterrupt)
                outcome = audit.Outcome.STOPPED if stopped else audit.Outcome.FAILED
                self._end(session, record, outcome, str(error) or "interrupted")
                raise
            self._end(session, record, outcome, "")
        return self._ledger

    def _batches(self, session: Session, record: audit.Record) -> audit.Outcome:
        while not self._control.stopped:
            ended = again(lambda: self._one(session, record))
            self._ledger += ended
            self._progress(self._ledger.out)
            if ended.out < self._batch:
                return audit.Outcome.DONE
            self._control.wait(0.0)
        return audit.Outcome.STOPPED

    def _one(self, session: Session, record: audit.Record) -> Ledger:
        queue, product = self._planned.queue, self._database.product
        statement = sql.statements(product.name, queue.design.name)["end_over"]
        within = queue.scope(product)
        with session.transaction(self._doing) as connection:
            (found,) = sql.fetch(connection, _Ended, statement, within, n=self._batch)
            ledger = Ledger(found.ended, found.ended, found.ended)
            record.batch(connection, ledger)
        return ledger

    def _end(
        self, session: Session, record: audit.Record, outcome: audit.Outcome, problem: str
    ) -> None:
        with session.transaction(self._doing) as connection:
            record.end(connection, outcome, problem)
        record.told(outcome, self._ledger, problem)


def _require_broker(queue: Queue, verb: str) -> None:
    require_verb(queue, verb)
    if not queue.design.waits_itself:
        raise UsageError(f"The queue {queue.name!r} is none of Service Broker's.")
    if queue.kind is not Kind.INSTALLED:
        raise RefusedError(
            f"The queue {queue.name!r} was adopted.",
            why="Its switch and its conversations are its owner's.",
        )
