"""The verbs of a Service Broker queue, which messages leave by RECEIVE only, and without claims.

- purge takes from the beginning of each conversation, as RECEIVE does;
- requeue enables a queue that poison messages have disabled;
- release ends conversations that the other side has ended and that hold nothing. One that a
  consumer has locked is for end-session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from console import sql
from console.actions import BATCH
from console.actions.availability import require_verb
from console.actions.rows import CHANGED, Moved, Storage, scope
from console.catalog import Kind, Queue, audit
from console.catalog.audit import Ledger, Outcome
from console.engines import Database, retry_transient
from console.errors import ConnectionFailedError, ConsoleError, RefusedError, UsageError
from console.figures import COUNTED
from console.formats import numbered
from console.monitor.filters import Filters
from console.monitor.message import Message
from console.monitor.rates import BrokerHealth, health
from console.monitor.scan_query import MessageSource
from console.plan import (
    MANY_MESSAGES,
    Control,
    OnProgress,
    Plan,
    Progress,
    Result,
    is_production,
    queue_plan,
    single_step,
)

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


def plan_enable(database: Database, queue: Queue) -> Plan:
    """requeue: enable a queue that poison messages have disabled."""
    health = _health(database, queue)
    lines = [
        f"requeue {queue.label}: the queue is disabled and is enabled again",
        "  ALTER QUEUE ... WITH STATUS = ON; no message is moved or changed",
        "  messages waiting to be sent to it are then delivered",
        "  if a poison message disabled it, that message is popped next: "
        "five more rollbacks of its pop disable the queue again",
    ]
    if health.enabled:
        lines = [f"requeue {queue.label}: the queue is enabled, there is nothing to do"]
    return queue_plan(
        database,
        queue,
        "requeue",
        lines,
        single_step(enable_queue, database, queue),
        needed=not health.enabled,
        stoppable=False,
        data=_enabled_as_json(queue, health, production=is_production(database)),
    )


def enable_queue(database: Database, queue: Queue) -> Result:
    """Enable the queue if it is disabled; its data are of its health afterwards."""
    broker_health, production = _health(database, queue), is_production(database)
    if broker_health.enabled:
        data = _enabled_as_json(queue, broker_health, production=production)
        return Result(Outcome.DONE, (f"{queue.label} was already enabled",), data=data)
    subject = audit.Subject.of(database, queue, "requeue", detail="the queue is enabled")
    with audit.recorded(database, f"enable the queue {queue.name!r}", subject) as act:
        sql.run(act.connection, f"{queue.design.name}.enable", queue.scope(database.product))
        broker_health = health(act.connection, queue)
        if not broker_health.enabled:
            raise RefusedError(
                f"The queue {queue.name!r} is still disabled.", why=broker_health.problem(None)
            )
    data = _enabled_as_json(queue, broker_health, production=production)
    return Result(Outcome.DONE, (f"{queue.label} is enabled",), done=1, data=data)


def _health(database: Database, queue: Queue) -> BrokerHealth:
    _require_broker(queue, "requeue")
    with database.transaction(f"read the queue {queue.name!r}") as connection:
        return health(connection, queue)


def _enabled_as_json(
    queue: Queue, health: BrokerHealth, *, production: bool
) -> Mapping[str, object]:
    return {
        "verb": "requeue",
        "queue": queue.name,
        "schema": queue.schema,
        "is_receive_enabled": health.is_receive_enabled,
        "is_enqueue_enabled": health.is_enqueue_enabled,
        "needed": not health.enabled,
        "confirmation": "name" if production else "y",
    }


def plan_end(database: Database, queue: Queue, batch: int | None = None) -> Plan:
    """release: end conversations that the other side has ended and that hold nothing."""
    _require_broker(queue, "release")
    with database.transaction(f"read the queue {queue.name!r}") as connection:
        count = sql.value(
            connection, int, f"{queue.design.name}.finished_conversations", queue.scope(connection)
        )
    shown = f"{count:,}" if count <= COUNTED else f"more than {COUNTED:,}"
    plan = queue_plan(
        database,
        queue,
        "release",
        [
            f"release {queue.label}: {shown} conversations were ended by the other side",
            "  ended or broken, with nothing left to pop or send: they are ended here too",
            "  one that a consumer holds is not included: see waits, and end-session",
        ],
        partial(end_conversations, database, queue, count, batch or BATCH),
        requires_name=count > MANY_MESSAGES,
        needed=count > 0,
        count=count,
    )
    data = {
        "verb": "release",
        "queue": queue.name,
        "schema": queue.schema,
        "count": count,
        "confirmation": "name" if plan.requires_name else "y",
    }
    return replace(plan, data=data)


def end_conversations(
    database: Database,
    queue: Queue,
    planned: int,
    batch: int,
    control: Control,
    on_progress: OnProgress,
) -> Result:
    """End the finished conversations in batches, each one transaction; records the outcome."""
    doing, statement = f"end conversations of {queue.name!r}", f"{queue.design.name}.end_finished"
    subject = audit.Subject.of(database, queue, "release", "conversations ended by the other side")
    subject = replace(subject, planned=planned)
    ledger, outcome = Ledger(), Outcome.STOPPED
    with database.session(doing) as session:
        with session.transaction(doing) as connection:
            record = audit.ActionRecord.begin(connection, subject)

        def once() -> Ledger:
            with session.transaction(doing) as connection:
                within = queue.scope(database.product)
                ended = sql.value(connection, int, statement, within, n=batch)
                record.batch(connection, counted := Ledger(ended, ended, ended))
            return counted

        def end(outcome: Outcome, problem: str = "") -> None:
            with session.transaction(doing) as connection:
                record.end(connection, outcome, problem)
            record.log_locally(outcome, ledger, problem)

        try:
            while outcome is not Outcome.DONE and not control.stopped:
                ended = retry_transient(once)
                ledger += ended
                on_progress(Progress(ledger.out, planned))
                if ended.out < batch:
                    outcome = Outcome.DONE
                else:
                    control.wait(0.0)
        except ConnectionFailedError as error:
            record.log_locally(Outcome.FAILED, ledger, str(error))
            raise
        except (ConsoleError, KeyboardInterrupt) as error:
            stopped = isinstance(error, KeyboardInterrupt)
            why = str(error) or "interrupted"
            end(Outcome.STOPPED if stopped else Outcome.FAILED, why)
            raise
        end(outcome)
    line = f"{queue.label}: {numbered(ledger.out, 'conversation')} ended"
    return Result(outcome, (line,), ledger, done=ledger.out, data={"ended": ledger.out})


def _require_broker(queue: Queue, verb: str) -> None:
    require_verb(queue, verb)
    if not queue.design.waits_itself:
        raise UsageError(f"The queue {queue.name!r} is not a Service Broker queue.")
    if queue.kind is not Kind.INSTALLED:
        raise RefusedError(
            f"The queue {queue.name!r} was adopted.",
            why="Only its owner enables it and ends its conversations.",
        )
