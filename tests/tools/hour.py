"""Traffic for an hour with everything at work: what grows, and what becomes slower.

    python -m tests.tools.speed hour --seconds 3600 --design ring --design fifo

16 producers and 16 consumers use one queue as fast as they can, while a recorder, serve-metrics and
the screens watch it and a doctor examines it every minute.

Autovacuum comes once a minute (`autovacuum_naptime`). Until it comes, a pop of a table whose rows
die reads past more and more of them, so its rate falls by a third and rises again: a rate is of two
such rounds at least.
"""

import multiprocessing
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from multiprocessing.sharedctypes import SynchronizedArray
from multiprocessing.synchronize import Event
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeAlias

import psutil
from psycopg.sql import SQL, Identifier

from console.catalog import Queue
from console.engines import open_database
from console.features.demo.embedded import EmbeddedServer
from tests.cli.calls import COMMAND
from tests.faults.campaign_calls import Terminal
from tests.servers import connect, execute, fresh_database, wait_until
from tests.tools.queues import install_queue

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

_CLIENTS = 16
_ROOM = 2_000
"""Producers wait while this many messages are ready."""
_PAYLOAD = "x" * 300
_DOCTOR_EVERY = 60.0
_PART = 12
"""The beginning and the end are this part of the time: of an hour, five minutes each."""
_ROUNDS = 120.0
"""Seconds of two rounds of autovacuum: the beginning and the end are no shorter."""
_START = 10.0
"""Seconds until all programs work."""
Counts: TypeAlias = "SynchronizedArray[int]"
"""Pushed, for each producer; popped, for each consumer."""


@dataclass(frozen=True)
class Hour:
    design: str
    rates: tuple[float, float]
    """Popped messages a second, at the beginning and at the end."""
    table_bytes: tuple[int, int]
    """Of all the queue's tables and indexes, after the beginning and at the end."""
    memory: Mapping[str, tuple[float, float]]
    """Program -> MB after the beginning and at the end."""


def hours(designs: Sequence[str], seconds: float) -> Iterator[Hour]:
    with EmbeddedServer.start(settings={"max_connections": "200"}) as server:
        for name in designs:
            with fresh_database(server.url) as url:
                yield _hour(url, name, seconds)


def _hour(url: str, name: str, seconds: float) -> Hour:
    options = {"size": "20000"} if name == "ring" else {}
    with closing(open_database(url)) as database:
        queue = install_queue(database, "busy", name, **options)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        context = multiprocessing.get_context("forkserver")
        counts, over = context.Array("q", 2 * _CLIENTS, lock=False), context.Event()
        clients = _clients(url, queue, counts, over)
        watching = _watching(stack, {**os.environ, "DBQ_URL": url, "XDG_STATE_HOME": str(folder)})
        part = max(seconds / _PART, _ROUNDS)
        wait_until(lambda: sum(counts[_CLIENTS:]) > 0, "a message is popped")
        time.sleep(_START)
        first = _popped_in(counts, part)
        bytes_then, memory_then = _table_bytes(url), _memory(watching)
        time.sleep(max(0.0, seconds - 2 * part - _START))
        last = _popped_in(counts, part)
        memory = {of: (memory_then[of], now) for of, now in _memory(watching).items()}
        found = Hour(name, (first, last), (bytes_then, _table_bytes(url)), memory)
        over.set()
        for client in clients:
            client.join()
            assert client.exitcode == 0
    return found


def _clients(url: str, queue: Queue, counts: Counts, over: Event) -> "list[ForkServerProcess]":
    context = multiprocessing.get_context("forkserver")
    names = [f"{queue.name}_{verb}" for verb in ("push", "pop", "complete")]
    finishes = queue.finishes
    found = [
        context.Process(target=_run, args=(url, names, finishes, pushes, counts, over))
        for pushes in (True, False)
    ]
    for one in found:
        one.start()
    return found


def _run(
    url: str, names: Sequence[str], finishes: bool, pushes: bool, counts: Counts, over: Event
) -> None:
    """The producers, or the consumers: a thread each, on a connection each."""
    work = _push if pushes else _pop
    threads = [
        threading.Thread(target=work, args=(url, names, finishes, counts, number, over))
        for number in range(_CLIENTS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _push(
    url: str, names: Sequence[str], _: bool, counts: Counts, number: int, over: Event
) -> None:
    push = SQL("SELECT {}(%s)").format(Identifier(names[0]))
    with connect(url) as connection:
        while not over.is_set():
            if sum(counts[:_CLIENTS]) - sum(counts[_CLIENTS:]) > _ROOM:
                time.sleep(0.005)
                continue
            row = connection.execute(push, [_PAYLOAD]).fetchone()
            counts[number] += row is not None and row[0] is not None


def _pop(
    url: str, names: Sequence[str], finishes: bool, counts: Counts, number: int, over: Event
) -> None:
    of = SQL("SELECT id, attempts FROM {}()" if finishes else "SELECT id FROM {}()")
    pop = of.format(Identifier(names[1]))
    complete = SQL("SELECT {}(%s, %s)").format(Identifier(names[2]))
    with connect(url) as connection:
        while not over.is_set():
            rows = connection.execute(pop).fetchall()
            if not rows:
                time.sleep(0.005)
            for row in rows:
                if finishes:
                    connection.execute(complete, row)
                counts[_CLIENTS + number] += 1


def _popped_in(counts: Counts, seconds: float) -> float:
    before, began = sum(counts[_CLIENTS:]), time.perf_counter()
    time.sleep(seconds)
    popped: int = sum(counts[_CLIENTS:]) - before
    return popped / (time.perf_counter() - began)


def _watching(stack: ExitStack, environment: dict[str, str]) -> dict[str, psutil.Process]:
    """The programs at work until the stack ends; doctors follow one another."""
    found = {}
    for words in (("record",), ("serve-metrics", "--listen", "127.0.0.1:0")):
        process = subprocess.Popen(
            [*COMMAND, *words],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        stack.callback(_end, process)
        found[words[0]] = psutil.Process(process.pid)
    screens = Terminal(["--no-record"], environment)
    process = screens.begin()
    stack.callback(screens.end)
    stack.callback(_end, process)
    found["the screens"] = psutil.Process(process.pid)
    over = threading.Event()
    doctor = threading.Thread(target=_examine, args=(environment, over))
    doctor.start()
    stack.callback(doctor.join)
    stack.callback(over.set)
    return found


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    process.wait()


def _examine(environment: Mapping[str, str], over: threading.Event) -> None:
    while not over.wait(_DOCTOR_EVERY):
        command = [*COMMAND, "doctor", "--json"]
        subprocess.run(command, env=environment, check=False, stdout=subprocess.DEVNULL)


def _memory(watching: Mapping[str, psutil.Process]) -> dict[str, float]:
    return {name: process.memory_info().rss / 1e6 for name, process in watching.items()}


def _table_bytes(url: str) -> int:
    query = (
        "SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class AS c"
        " WHERE c.relkind = 'r' AND starts_with(c.relname, 'busy')"
    )
    row = execute(url, query)[0]
    assert row is not None
    return int(row[0])
