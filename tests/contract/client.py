"""One queue in use: each call is a committed transaction, through the console's own API."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier
from sqlalchemy import Connection, text

from console import sql
from console.actions import pop, push
from console.actions.pop import PoppedMessage
from console.actions.push import Payload
from console.catalog import Queue
from console.engines import Database
from console.monitor.memory import Memory
from console.monitor.rates import StatusRow
from console.monitor.sample import take_sample
from console.monitor.snapshot import QueueSnapshot, snapshot
from tests.contract.messages import message
from tests.servers import connect

_POP = {
    "postgresql": "SELECT CAST(id AS text), {payload}, pushed_at, attempts FROM {pop}()",
    "mssql": "EXEC {pop}",
}
"""How each engine calls a queue's `<queue>_pop`, which the console itself never does."""

_ENCODING = {"postgresql": "utf-8", "mssql": "utf-16-le"}
"""How each engine stores text, and so what max_bytes counts."""


@dataclass(frozen=True)
class Client:
    """Pushes to and pops from one queue."""

    database: Database
    queue: Queue

    @property
    def url(self) -> str:
        return self.database.url.render_as_string(hide_password=False)

    def payload(self, number: int) -> Payload:
        """The `number`-th message of a test, of the queue's payload type."""
        return message(self.queue.options["payload"], 0, number)

    def payloads(self, *numbers: int) -> list[Payload]:
        return [self.payload(number) for number in numbers]

    def size_of(self, payload: Payload) -> int:
        """In bytes, as the limit counts them."""
        if isinstance(payload, bytes):
            return len(payload)
        return len(payload.encode(_ENCODING[self.database.product.name]))

    def push(self, payload: Payload) -> str | None:
        with self.database.transaction("push") as connection:
            return push.push(connection, self.queue, payload)

    def push_many(self, payloads: Sequence[Payload]) -> list[str | None]:
        with self.database.transaction("push") as connection:
            return push.push_many(connection, self.queue, payloads)

    def pop_many(self, n: int, consumer: str | None = None) -> list[PoppedMessage]:
        with self.database.transaction("pop") as connection:
            popped = pop.pop_many(connection, self.queue, n, consumer)
            for other in self._others:
                assert pop.pop_many(connection, other, n, consumer) == popped
            return popped

    def pop(self) -> PoppedMessage | None:
        """By the queue's own `pop`, as any program calls it."""
        with self.database.transaction("pop") as connection:
            popped = call_pop(connection, self.queue)
            for other in self._others:
                assert call_pop(connection, other) == popped
            return popped

    @property
    def _others(self) -> list[Queue]:
        """The views of the other subscribers: each pops what the first one pops."""
        mine = self.queue.subscriber
        return [view for view in self.queue.views if mine and view.subscriber != mine]

    def drain(self, batch: int = 1000) -> list[PoppedMessage]:
        """Everything that can be popped now."""
        drained: list[PoppedMessage] = []
        while messages := self.pop_many(batch):
            drained += messages
        return drained

    def complete(self, message: PoppedMessage) -> bool:
        with self.database.transaction("complete") as connection:
            return pop.complete(connection, self.queue, message)

    def fail(self, message: PoppedMessage, error: str) -> bool:
        with self.database.transaction("fail") as connection:
            return pop.fail(connection, self.queue, message, error)

    def status(self, stuck_after_seconds: float = 300.0) -> StatusRow:
        """The queue's status row of a sample."""
        sample = take_sample(
            self.database, only=[self.queue], stuck_after_seconds=stuck_after_seconds
        )
        (observed,) = sample.queues
        assert observed.row is not None, observed.problem
        return observed.row

    def snapshot(self) -> QueueSnapshot:
        """The same as the screens show it."""
        (observed,) = take_sample(self.database, only=[self.queue]).queues
        return snapshot(observed, "test")


def sampled(
    database: Database, *queues: Queue, memory: Memory | None = None
) -> tuple[list[QueueSnapshot], float]:
    """One sample's snapshots, and how long it took; `memory` as a sampler has one."""
    sample = take_sample(database, only=queues, memory=memory)
    return [snapshot(observed, "test") for observed in sample.queues], sample.latency_seconds


def in_utc(value: object) -> object:
    """A time without a zone is UTC: not every engine's columns keep one."""
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return value


def call_pop(connection: Connection, queue: Queue) -> PoppedMessage | None:
    """Pop one message by calling `<queue>_pop` directly."""
    dialect = connection.dialect
    pop = ".".join(
        sql.quote_identifier(dialect, part) for part in (queue.schema, f"{queue.name}_pop")
    )
    payload = "payload" if queue.options["payload"] == "bytes" else "CAST(payload AS text)"
    call = _POP[dialect.name].format(pop=pop, payload=payload).replace(":", "\\:")
    if queue.subscriber:  # a name that needs no quoting
        call = call.removesuffix("()") + f"('{queue.subscriber}')"
    row = connection.execute(text(call)).one_or_none()
    if row is None:
        return None
    number, payload_of_it, pushed_at, attempts = row
    return PoppedMessage(str(number), payload_of_it, pushed_at.replace(tzinfo=UTC), attempts)


def call(client: Client, function: str, **arguments: object) -> list[tuple[Any, ...]]:
    """Call `<queue>_<function>` with named arguments, in a new session and transaction."""
    with closing(connect(client.url)) as connection:
        return call_in(connection, client, function, **arguments)


def call_in(
    connection: psycopg.Connection, client: Client, function: str, **arguments: object
) -> list[tuple[Any, ...]]:
    if client.queue.subscriber and not function.startswith("push"):
        arguments["subscriber"] = client.queue.subscriber
    name = Identifier(client.queue.schema, f"{client.queue.name}_{function}")
    named = SQL(", ").join(SQL("{} => %s").format(Identifier(key)) for key in arguments)
    query = SQL("SELECT * FROM {}({})").format(name, named)
    return connection.execute(query, list(arguments.values())).fetchall()
