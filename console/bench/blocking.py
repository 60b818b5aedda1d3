"""The load on any engine: a thread a connection, which waits for its answer in the driver."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, text
from sqlalchemy.exc import DBAPIError

from console.bench.shift import LONGEST_PAUSE_SECONDS, PAUSE_SECONDS, Shift, now_us
from console.engines import Product, Timeouts, open_database
from console.errors import ConnectionFailedError

_TIMEOUTS = Timeouts(connect_seconds=10, statement_seconds=5.0, lock_seconds=5.0)
"""A round has to end."""


class LostError(Exception):
    """The connection is gone, with the answer to the call that was under way."""


@dataclass(frozen=True)
class _Client:
    """One connection, in the hands of one thread."""

    shift: Shift
    number: int
    product: Product
    connection: Connection

    def call(self, name: str, **values: object) -> Sequence[Row[Any]] | None:
        """What a call gave; None: the server refused and undid it. LostError."""
        calls: Any = self.shift.task.settings["calls"]
        try:
            result = self.connection.execute(text(calls[name]), values)
            return result.fetchall() if result.returns_rows else []
        except DBAPIError as error:
            told = self.product.translate(error, "call the queue")
            with self.shift.lock:
                self.shift.failed(str(told))
            if isinstance(told, ConnectionFailedError):
                raise LostError from error
            return None


def run_queue(shift: Shift) -> None:
    """Push or pop through a design's public functions."""
    _run(shift, _push if shift.task.produces else _pop)


def run_updates(shift: Shift) -> None:
    """The floor: rows of a table written anew by their key, one a call."""
    _run(shift, _update)


def _run(shift: Shift, work: Callable[[_Client], None]) -> None:
    task = shift.task
    with ExitStack() as stack:
        clients = []
        for number in shift.clients:
            database = open_database(
                task.url, timeouts=_TIMEOUTS, application_name=task.application_name
            )
            stack.callback(database.close)
            connection = stack.enter_context(database.autocommit("connect the bench"))
            clients.append(_Client(shift, number, database.product, connection))
        threads = [threading.Thread(target=work, args=(client,)) for client in clients]
        shift.begin()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _push(client: _Client) -> None:
    shift, producer, batch = client.shift, client.number, client.shift.task.batch
    pause = PAUSE_SECONDS
    while not shift.over():
        if not shift.may_push():
            time.sleep(PAUSE_SECONDS)
            continue
        payloads = [payload.decode() for payload in shift.payloads(producer, batch)]
        asked = now_us()
        try:
            if batch == 1:
                answer = client.call("push", payload=payloads[0])
            else:
                answer = client.call("push_many", payloads=client.product.array(payloads))
        except LostError:
            with shift.lock:
                shift.push_in_doubt(producer, batch)
            return
        stored = sum(row.id is not None for row in answer or ())
        with shift.lock:
            shift.pushed(producer, stored, batch, asked)
        pause = _rested(pause, idle=not stored)


def _pop(client: _Client) -> None:
    shift, batch = client.shift, client.shift.task.batch
    finishes = shift.task.settings["finishes"]
    pause = PAUSE_SECONDS
    while not shift.over():
        asked = now_us()
        try:
            answer = client.call("pop") if batch == 1 else client.call("pop_many", n=batch)
            took = now_us() - asked
            popped = list(answer or ())
            missed = 0
            if finishes:
                popped, missed = _finish(client, popped)
        except LostError:
            with shift.lock:
                shift.pop_in_doubt(batch)
            return
        with shift.lock:
            shift.unfinished(missed)
            shift.popped(client.number, [row.payload.encode() for row in popped], asked, took)
        pause = _rested(pause, idle=not popped)


def _finish(client: _Client, popped: list[Row[Any]]) -> tuple[list[Row[Any]], int]:
    """Those whose end was heard (the others stay claimed), and of how many no claim was found."""
    finished, missed = [], 0
    for row in popped:
        answer = client.call("complete", id=row.id, attempts=row.attempts)
        if answer is not None:
            finished.append(row)
            missed += not answer[0].finished
    return finished, missed


def _update(client: _Client) -> None:
    shift = client.shift
    settings: Any = shift.task.settings
    offset = client.number + (0 if shift.task.produces else settings["producers"])
    rows = range(offset, settings["rows"], settings["clients"])
    turn = 0
    while not shift.over():
        message = shift.payloads(client.number, 1)[0].decode()
        asked = now_us()
        try:
            answer = client.call("update_row", slot=rows[turn % len(rows)], message=message)
        except LostError:
            return
        turn += 1
        if answer is not None:
            with shift.lock:
                shift.updated(client.number, asked)


def _rested(pause: float, *, idle: bool) -> float:
    """Wait where there was nothing to do; how long to wait the next time."""
    if not idle:
        return PAUSE_SECONDS
    time.sleep(pause)
    return min(pause * 2, LONGEST_PAUSE_SECONDS)
