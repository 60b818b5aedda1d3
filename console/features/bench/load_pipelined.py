"""The load on PostgreSQL: many connections in one thread, prepared statements through libpq.

Each client has one call in flight. A driver that does more per call than libpq would measure
itself: `bench --against-pgbench` shows how close this comes to pgbench.
"""

import heapq
import select
import struct
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo
from sqlalchemy import make_url

from console.errors import ConnectionFailedError
from console.load.worker_round import (
    LONGEST_PAUSE_SECONDS,
    PAUSE_SECONDS,
    ConnectionLostError,
    WorkerRound,
    now_us,
)

_INTEGER, _INTEGERS = 23, 1007
_TEXT, _TEXTS = 25, 1009
_BIGINT = 20
_ARRAYS = {"bigint": (_BIGINT, 1016), "uuid": (2950, 2951)}
_AS_TEXT, _AS_BINARY = 0, 1
_STATEMENT_SECONDS = 5
"""A round must end: the server rolls longer calls back."""
_CONNECT_SECONDS = 10
_LONGEST_POLL_MS = 200
_GOOD = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)

Call = tuple[bytes, list[bytes | None], list[int]]
"""(name of a prepared statement, values, the format of each)."""

Answer = pq.abc.PGresult | None
"""None: the server rolled the call back, or after a pause."""

Steps = Generator["Call | float", Answer, None]
"""A client: yields calls, and pauses in seconds; receives answers."""


def connection_string(url: str, application_name: str) -> str:
    """libpq's, from SQLAlchemy's URL. Commits are durable whatever the login's defaults are."""
    parsed = make_url(url)
    arguments: dict[str, Any] = {k: v for k, v in parsed.query.items() if isinstance(v, str)}
    arguments |= parsed.translate_connect_args(username="user", database="dbname")
    options = (
        "-c search_path=pg_catalog,pg_temp",
        arguments.get("options", ""),
        "-c synchronous_commit=on",
        f"-c statement_timeout={_STATEMENT_SECONDS * 1000}",
        "-c client_encoding=UTF8",
    )
    arguments |= {"options": " ".join(filter(None, options)), "application_name": application_name}
    return make_conninfo("", **arguments, connect_timeout=_CONNECT_SECONDS)


def run_queue(worker_round: WorkerRound) -> None:
    """Push or pop with a design's public functions."""
    _run(worker_round, _producer if worker_round.task.produces else _consumer)


def run_updates(worker_round: WorkerRound) -> None:
    """The floor: update one row by its key per call."""
    _run(worker_round, _updater)


class _Client:
    """One connection and its steps."""

    def __init__(
        self,
        worker_round: WorkerRound,
        number: int,
        work: Callable[[WorkerRound, "_Client"], Steps],
    ) -> None:
        self.number = number
        conninfo = connection_string(worker_round.task.url, worker_round.task.application_name)
        self.connection = pq.PGconn.connect(conninfo.encode())
        if self.connection.status != pq.ConnStatus.OK:
            why = self.connection.get_error_message().strip()
            raise ConnectionFailedError("The bench could not connect.", why=why)
        self.steps = work(worker_round, self)

    def prepare(self, name: bytes, statement: object, types: list[int]) -> None:
        result = self.connection.prepare(name, str(statement).encode(), types)
        if result.status not in _GOOD:
            why = result.get_error_message().strip()
            raise ConnectionFailedError("The bench could not prepare its calls.", why=why)


def _run(worker_round: WorkerRound, work: Callable[[WorkerRound, _Client], Steps]) -> None:
    """Advance each client as soon as it has its answer, until all have ended."""
    clients = {}
    for number in worker_round.clients:
        client = _Client(worker_round, number, work)
        clients[client.connection.socket] = client
    later: list[tuple[float, int]] = []
    poll = select.poll()
    worker_round.begin()
    for socket in list(clients):
        poll.register(socket, select.POLLIN)
        _advance(clients, socket, None, later)
    while clients:
        wait_ms = _LONGEST_POLL_MS
        if later:
            wait_ms = min(wait_ms, max(0, int((later[0][0] - time.monotonic()) * 1000) + 1))
        for socket, _ in poll.poll(wait_ms):
            try:
                answered, answer = _answer(worker_round, clients[socket].connection)
            except ConnectionLostError as error:
                poll.unregister(socket)
                _end_lost(worker_round, clients.pop(socket), error)
                continue
            if answered and not _advance(clients, socket, answer, later):
                poll.unregister(socket)
        now = time.monotonic()
        while later and later[0][0] <= now:
            _, socket = heapq.heappop(later)
            if socket in clients and not _advance(clients, socket, None, later):
                poll.unregister(socket)


def _advance(
    clients: dict[int, _Client], socket: int, answer: Answer, later: list[tuple[float, int]]
) -> bool:
    """Run a client's next step. False: it has ended, and is closed."""
    client = clients[socket]
    try:
        step = client.steps.send(answer)
    except StopIteration:
        del clients[socket]
        client.connection.finish()
        return False
    if isinstance(step, float):
        heapq.heappush(later, (time.monotonic() + step, socket))
        return True
    name, values, formats = step
    # If it cannot be sent, reading the answer fails: the socket is ready for that at once.
    client.connection.send_query_prepared(name, values, formats, _AS_BINARY)
    return True


def _answer(worker_round: WorkerRound, connection: pq.abc.PGconn) -> tuple[bool, Answer]:
    """(whether the call has its answer, the answer)."""
    try:
        connection.consume_input()
        if connection.is_busy():
            return False, None
        result = connection.get_result()
        if result is None:
            return False, None
        connection.get_result()
    except psycopg.OperationalError as error:
        raise ConnectionLostError(str(error)) from error
    if result.status in _GOOD:
        return True, result
    why = result.get_error_message().strip()
    if connection.status != pq.ConnStatus.OK:
        raise ConnectionLostError(why)
    worker_round.failed(why)
    return True, None


def _end_lost(worker_round: WorkerRound, client: _Client, error: ConnectionLostError) -> None:
    worker_round.failed(str(error))
    try:
        client.steps.throw(error)
    except (ConnectionLostError, StopIteration):
        client.connection.finish()


def _producer(worker_round: WorkerRound, client: _Client) -> Steps:
    calls: Any = worker_round.task.settings["calls"]
    many = worker_round.task.batch > 1
    client.prepare(b"push", calls["push_many" if many else "push"], [_TEXTS if many else _TEXT])
    return _pushing(worker_round, client.number, worker_round.task.batch)


def _pushing(worker_round: WorkerRound, producer: int, batch: int) -> Steps:
    pause = PAUSE_SECONDS
    formats = [_AS_BINARY if batch > 1 else _AS_TEXT]
    while not worker_round.finished():
        if not worker_round.may_push():
            yield PAUSE_SECONDS
            continue
        payloads = worker_round.payloads(producer, batch)
        value = payloads[0] if batch == 1 else array_of(_TEXT, payloads)
        began = now_us()
        try:
            answer = yield b"push", [value], formats
        except ConnectionLostError:
            worker_round.push_in_doubt(producer, batch)
            return
        stored = 0 if answer is None else _stored(answer)
        worker_round.pushed(producer, stored, batch, began)
        if stored:
            pause = PAUSE_SECONDS
        else:
            yield pause
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)


def _stored(answer: pq.abc.PGresult) -> int:
    """A full ring does not store the last ones."""
    stored = answer.ntuples
    while stored and answer.get_value(stored - 1, 0) is None:
        stored -= 1
    return stored


def _consumer(worker_round: WorkerRound, client: _Client) -> Steps:
    calls: Any = worker_round.task.settings["calls"]
    batch = worker_round.task.batch
    many = "_many" if batch > 1 else ""
    client.prepare(b"pop", calls["pop" + many], [_INTEGER] if many else [])
    pop: Call = (b"pop", [struct.pack(">i", batch)], [_AS_BINARY]) if many else (b"pop", [], [])
    if not worker_round.task.settings["finishes"]:
        return _popping(worker_round, client.number, pop, None)
    id_type, ids_type = _ARRAYS[str(worker_round.task.settings["id_type"])]
    types = [ids_type, _INTEGERS] if many else [id_type, _INTEGER]
    client.prepare(b"complete", calls["complete" + many], types)
    return _popping(worker_round, client.number, pop, id_type)


def _popping(worker_round: WorkerRound, client: int, pop: Call, id_type: int | None) -> Steps:
    """`id_type`: of the claims to complete; None: nothing to complete."""
    pause = PAUSE_SECONDS
    while not worker_round.finished():
        began = now_us()
        done: Answer = None
        try:
            answer = yield pop
            took = now_us() - began
            payloads = _column(answer, 0)
            if payloads and id_type is not None:
                done = yield _completing(answer, id_type, many=worker_round.task.batch > 1)
        except ConnectionLostError:
            worker_round.pop_in_doubt(worker_round.task.batch)
            return
        if not payloads:
            worker_round.popped(client, [], began)
            yield pause
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            continue
        pause = PAUSE_SECONDS
        if id_type is not None:
            if done is None:  # rolled back: they stay claimed, and count as left
                continue
            missed = len(payloads) - int.from_bytes(done.get_value(0, 0) or b"", "big")
            worker_round.unfinished(missed)
        worker_round.popped(client, payloads, began, took)


def _completing(popped: Answer, id_type: int, *, many: bool) -> Call:
    ids, attempts = _column(popped, 1), _column(popped, 2)
    claims: list[bytes | None] = [ids[0], attempts[0]]
    if many:
        claims = [array_of(id_type, ids), array_of(_INTEGER, attempts)]
    return b"complete", claims, [_AS_BINARY] * 2


def _updater(worker_round: WorkerRound, client: _Client) -> Steps:
    settings: Any = worker_round.task.settings
    client.prepare(b"update", settings["calls"]["update_row"], [_TEXT, _BIGINT])
    # Each client has rows of its own: no lock waits are measured.
    offset = client.number + (0 if worker_round.task.produces else settings["producers"])
    return _updating(
        worker_round, client.number, range(offset, settings["rows"], settings["clients"])
    )


def _updating(worker_round: WorkerRound, client: int, rows: Sequence[int]) -> Steps:
    turn = 0
    while not worker_round.finished():
        payload = worker_round.payloads(client, 1)[0]
        row = struct.pack(">q", rows[turn % len(rows)])
        turn += 1
        began = now_us()
        try:
            answer = yield b"update", [payload, row], [_AS_TEXT, _AS_BINARY]
        except ConnectionLostError:
            return
        if answer is not None:
            worker_round.updated(client, began)


def _column(answer: Answer, column: int) -> list[bytes]:
    if answer is None:
        return []
    value = answer.get_value
    return [value(row, column) or b"" for row in range(answer.ntuples)]


def array_of(element_type: int, values: Sequence[bytes]) -> bytes:
    """A binary array of binary values, none of them null."""
    parts = [struct.pack(">iiIii", 1, 0, element_type, len(values), 1)]
    for value in values:
        parts += (struct.pack(">i", len(value)), value)
    return b"".join(parts)
