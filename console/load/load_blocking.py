"""The load on any engine: a thread per connection, with the engine's own driver."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from sqlalchemy import Connection, Row, text
from sqlalchemy.exc import DBAPIError

from console.engines import Product, Timeouts, open_database
from console.errors import ConnectionFailedError
from console.load.worker_round import (
    LONGEST_PAUSE_SECONDS,
    PAUSE_SECONDS,
    ConnectionLostError,
    WorkerRound,
    now_us,
)

_TIMEOUTS = Timeouts(connect_seconds=10, statement_seconds=5.0, lock_seconds=5.0)
"""A round must end."""


class Client(Protocol):
    """Pushes or pops, in one thread."""

    @property
    def worker_round(self) -> WorkerRound: ...

    @property
    def number(self) -> int:
        """Among the producers or consumers."""
        ...

    def push(self, payloads: Sequence[bytes]) -> int:
        """How many were stored: the first of them. ConnectionLostError."""
        ...

    def pop(self, n: int) -> Sequence[Any]:
        """At most so many. ConnectionLostError."""
        ...

    def finish(self, popped: Sequence[Any]) -> tuple[Sequence[bytes], int]:
        """(payloads of those whose completion was confirmed, number of claims that were gone)."""
        ...


@dataclass(frozen=True)
class _Client:
    """One connection, held by one thread."""

    worker_round: WorkerRound
    number: int
    product: Product
    connection: Connection

    def push(self, payloads: Sequence[bytes]) -> int:
        texts = [payload.decode() for payload in payloads]
        if len(texts) == 1:
            answer = self.call("push", payload=texts[0])
        else:
            answer = self.call("push_many", payloads=self.product.array(texts))
        return sum(row.id is not None for row in answer or ())

    def pop(self, n: int) -> Sequence[Any]:
        return (self.call("pop") if n == 1 else self.call("pop_many", n=n)) or ()

    def finish(self, popped: Sequence[Any]) -> tuple[Sequence[bytes], int]:
        if not self.worker_round.task.settings["finishes"]:
            return [row.payload.encode() for row in popped], 0
        finished, missed = [], 0
        for row in popped:
            answer = self.call("complete", id=row.id, attempts=row.attempts)
            if answer is not None:
                finished.append(row.payload.encode())
                missed += not answer[0].finished
        return finished, missed

    def call(self, name: str, **values: object) -> Sequence[Row[Any]] | None:
        """The rows; None: the server rolled it back. ConnectionLostError."""
        calls: Any = self.worker_round.task.settings["calls"]
        try:
            result = self.connection.execute(text(calls[name]), values)
            return result.fetchall() if result.returns_rows else []
        except DBAPIError as error:
            translated = self.product.translate(error, "call the queue")
            with self.worker_round.lock:
                self.worker_round.failed(str(translated))
            if isinstance(translated, ConnectionFailedError):
                raise ConnectionLostError from error
            return None


def run_queue(worker_round: WorkerRound) -> None:
    """Push or pop with a design's public functions."""
    _run(worker_round, produce if worker_round.task.produces else consume)


def run_updates(worker_round: WorkerRound) -> None:
    """The floor: update one row by its key per call."""
    _run(worker_round, _update)


def _run(worker_round: WorkerRound, work: Callable[[_Client], None]) -> None:
    task = worker_round.task
    with ExitStack() as stack:
        clients = []
        for number in worker_round.clients:
            database = open_database(
                task.url, timeouts=_TIMEOUTS, application_name=task.application_name
            )
            stack.callback(database.close)
            connection = stack.enter_context(database.autocommit("connect the bench"))
            clients.append(_Client(worker_round, number, database.product, connection))
        threads = [threading.Thread(target=work, args=(client,)) for client in clients]
        worker_round.begin()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def produce(client: Client) -> None:
    worker_round, producer = client.worker_round, client.number
    batch, pause = worker_round.task.batch, PAUSE_SECONDS
    while not worker_round.finished(producer):
        if not worker_round.may_push():
            time.sleep(PAUSE_SECONDS)
            continue
        payloads = worker_round.payloads(producer, batch)
        began = now_us()
        try:
            stored = client.push(payloads)
        except ConnectionLostError:
            with worker_round.lock:
                worker_round.push_in_doubt(producer, batch)
            return
        with worker_round.lock:
            worker_round.pushed(producer, stored, batch, began)
        pause = _rested(pause, idle=not stored)


def consume(client: Client) -> None:
    worker_round = client.worker_round
    batch, pause = worker_round.task.batch, PAUSE_SECONDS
    while not worker_round.finished():
        began = now_us()
        try:
            popped = client.pop(batch)
            took = now_us() - began
            payloads, missed = client.finish(popped)
        except ConnectionLostError:
            with worker_round.lock:
                worker_round.pop_in_doubt(batch)
            return
        with worker_round.lock:
            worker_round.unfinished(missed)
            worker_round.popped(client.number, payloads, began, took)
        pause = _rested(pause, idle=not popped)


def _update(client: _Client) -> None:
    worker_round = client.worker_round
    settings: Any = worker_round.task.settings
    offset = client.number + (0 if worker_round.task.produces else settings["producers"])
    rows = range(offset, settings["rows"], settings["clients"])
    turn = 0
    while not worker_round.finished():
        message = worker_round.payloads(client.number, 1)[0].decode()
        began = now_us()
        try:
            answer = client.call("update_row", slot=rows[turn % len(rows)], message=message)
        except ConnectionLostError:
            return
        turn += 1
        if answer is not None:
            with worker_round.lock:
                worker_round.updated(client.number, began)


def _rested(pause: float, *, idle: bool) -> float:
    """Wait if idle; returns how long to wait the next time."""
    if not idle:
        return PAUSE_SECONDS
    time.sleep(pause)
    return min(pause * 2, LONGEST_PAUSE_SECONDS)
