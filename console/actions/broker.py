"""The verbs of a Service Broker queue, which messages leave by RECEIVE only, and without claims.

- purge takes from the beginning of each conversation, as RECEIVE does;
- requeue enables a queue that poison messages have disabled;
- release ends conversations that the other side has ended and that hold nothing. One that a
  consumer has locked is for end-session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from console import audit, catalog, sql
from console.actions import BATCH
from console.actions.availability import require_verb
from console.actions.rows import CHANGED, Moved, Storage, scope
from console.audit import Ledger
from console.catalog import Kind, Queue
from console.engines import Database, retry_transient
from console.errors import ConnectionFailedError, ConsoleError, RefusedError, UsageError
from console.figures import COUNTED
from console.monitor.filters import Filters
from console.monitor.message import Message
from console.monitor.rates import BrokerHealth, health
from console.monitor.scan_query import MessageSource
from console.plan import MANY_MESSAGES, Control

if TYPE_CHECKING:
    from sqlalchemy import Connection

_IN_ORDER = "RECEIVE takes from the beginning of a conversation, and leaves nothing before."


def require_from_the_front(verb: str, filters: Filters) -> None:
    """UsageError for filters that may skip a message and take a later one."""
    filters.without(verb, ids=_IN_ORDER, newer=_IN_ORDER, payload=_IN_ORDER)


def receive(
    connection: Connection,
    source: MessageSource,
    statement: str,
    chosen: Sequence[Message],
    **bound: object,
) -> Ledger:
    """Receive those that are still at the beginning of their conversations."""
    moved = sql.row(
        connection,
        Moved,
        statement,
        scope(source, Storage.TABLE),
        locations=source.product.array([message.key.rpartition(",")[2] for message in chosen]),
        state="ready",
        **bound,
    )
    left = len(chosen) - moved.taken_out
    skipped = {CHANGED: left} if left else {}
    return Ledger(len(chosen), moved.taken_out, moved.put_in, skipped=skipped)


@dataclass(frozen=True)
class SwitchPlan:
    queue: Queue
    health: BrokerHealth
    requires_queue_name: bool

    @property
    def needed(self) -> bool:
        return not (self.health.is_receive_enabled and self.health.is_enqueue_enabled)

    def lines(self) -> list[str]:
        if not self.needed:
            return [f"requeue {self.queue.label}: the queue is enabled, there is nothing to do"]
        return [
            f"requeue {self.queue.label}: the queue is disabled and is enabled again",
            "  ALTER QUEUE ... WITH STATUS = ON; no message is moved or changed",
            "  messages waiting to be sent to it are then delivered",
            "  if a poison message disabled it, that message is popped next: "
            "five more rollbacks of its pop disable the queue again",
        ]

    def as_json(self) -> dict[str, object]:
        return {
            "verb": "requeue",
            "queue": self.queue.name,
            "schema": self.queue.schema,
            "is_receive_enabled": self.health.is_receive_enabled,
            "is_enqueue_enabled": self.health.is_enqueue_enabled,
            "needed": self.needed,
            "confirmation": "name" if self.requires_queue_name else "y",
        }


def plan_switch(database: Database, queue: Queue) -> SwitchPlan:
    _require_broker(queue, "requeue")
    with database.transaction(f"read the queue {queue.name!r}") as connection:
        production = database.production or catalog.is_production(connection)
        return SwitchPlan(queue, health(connection, queue), production)


def enable_queue(database: Database, queue: Queue) -> SwitchPlan:
    """Enable the queue if it is disabled; its health afterwards."""
    planned = plan_switch(database, queue)
    if not planned.needed:
        return planned
    subject = audit.Subject.of(database, queue, "requeue", detail="the queue is enabled")
    with audit.recorded(database, f"enable the queue {queue.name!r}", subject) as act:
        sql.run(act.connection, f"{queue.design.name}.enable", queue.scope(database.product))
        found = health(act.connection, queue)
        if not (found.is_receive_enabled and found.is_enqueue_enabled):
            raise RefusedError(
                f"The queue {queue.name!r} is still disabled.", why=found.problem(None)
            )
    return replace(planned, health=found)


@dataclass(frozen=True)
class ConversationsPlan:
    queue: Queue
    connection: str
    conversations: int
    """Counted to 10,001."""
    production: bool

    @property
    def requires_queue_name(self) -> bool:
        return self.production or self.conversations > MANY_MESSAGES

    def lines(self) -> list[str]:
        count = f"{self.conversations:,}"
        if self.conversations > COUNTED:
            count = f"more than {COUNTED:,}"
        return [
            f"release {self.queue.label}: {count} conversations were ended by the other side",
            "  ended or broken, with nothing left to pop or send: they are ended here too",
            "  one that a consumer holds is not included: see waits, and end-session",
        ]

    def as_json(self) -> dict[str, object]:
        return {
            "verb": "release",
            "queue": self.queue.name,
            "schema": self.queue.schema,
            "count": self.conversations,
            "confirmation": "name" if self.requires_queue_name else "y",
        }

    @property
    def subject(self) -> audit.Subject:
        queue, detail = self.queue, "conversations ended by the other side"
        return audit.Subject(
            "release",
            queue.schema,
            queue.name,
            self.connection,
            planned=self.conversations,
            detail=detail,
        )


def plan_conversations(database: Database, queue: Queue) -> ConversationsPlan:
    _require_broker(queue, "release")
    with database.transaction(f"read the queue {queue.name!r}") as connection:
        production = database.production or catalog.is_production(connection)
        conversations = sql.value(
            connection, int, f"{queue.design.name}.finished_conversations", queue.scope(connection)
        )
    return ConversationsPlan(queue, database.label, conversations, production)


def end_conversations(
    database: Database,
    planned: ConversationsPlan,
    *,
    batch: int = BATCH,
    control: Control | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Ledger:
    """End the finished conversations in batches, each one transaction; records the outcome."""
    queue, control = planned.queue, control or Control()
    doing, statement = f"end conversations of {queue.name!r}", f"{queue.design.name}.end_finished"
    ledger, outcome = Ledger(), audit.Outcome.STOPPED
    with database.session(doing) as session:
        with session.transaction(doing) as connection:
            record = audit.ActionRecord.begin(connection, planned.subject)

        def once() -> Ledger:
            with session.transaction(doing) as connection:
                within = queue.scope(database.product)
                ended = sql.value(connection, int, statement, within, n=batch)
                record.batch(connection, counted := Ledger(ended, ended, ended))
            return counted

        def end(outcome: audit.Outcome, problem: str = "") -> None:
            with session.transaction(doing) as connection:
                record.end(connection, outcome, problem)
            record.log_locally(outcome, ledger, problem)

        try:
            while outcome is not audit.Outcome.DONE and not control.stopped:
                ended = retry_transient(once)
                ledger += ended
                progress(ledger.out)
                if ended.out < batch:
                    outcome = audit.Outcome.DONE
                else:
                    control.wait(0.0)
        except ConnectionFailedError as error:
            record.log_locally(audit.Outcome.FAILED, ledger, str(error))
            raise
        except (ConsoleError, KeyboardInterrupt) as error:
            stopped = isinstance(error, KeyboardInterrupt)
            why = str(error) or "interrupted"
            end(audit.Outcome.STOPPED if stopped else audit.Outcome.FAILED, why)
            raise
        end(outcome)
    return ledger


def _require_broker(queue: Queue, verb: str) -> None:
    require_verb(queue, verb)
    if not queue.design.waits_itself:
        raise UsageError(f"The queue {queue.name!r} is not a Service Broker queue.")
    if queue.kind is not Kind.INSTALLED:
        raise RefusedError(
            f"The queue {queue.name!r} was adopted.",
            why="Only its owner enables it and ends its conversations.",
        )
