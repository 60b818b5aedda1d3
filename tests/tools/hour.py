"""Traffic for an hour with everything at work: what grows, and what becomes slower.

    python -m tests.tools.speed hour --seconds 3600 --design ring --design fifo
    python -m tests.tools.speed hour --seconds 3600 --together         the queues of all designs

16 producers and 16 consumers use a queue as fast as they can, while a recorder, serve-metrics and
the screens watch its database and a doctor examines it every minute.

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
from tests.servers import connect, fresh_database, wait_until
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
    """Program -> MB after the beginning and at the end; the same for all designs used together."""


def hours(designs: Sequence[str], seconds: float, together: bool) -> Iterator[Hour]:
    """One design after another, or the queues of all in one database at the same time."""
    at_once = [designs] if together else [[name] for name in designs]
    sessions = 2 * _CLIENTS * len(at_once[0]) + 100
    with EmbeddedServer.start(settings={"max_connections": str(sessions)}) as server:
        for names in at_once:
            with fresh_database(server.url) as url:
                yield from _hour(url, names, seconds)


def _hour(url: str, names: Sequence[str], seconds: float) -> list[Hour]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        context = multiprocessing.get_context("forkserver")
        counts = {name: context.Array("q", 2 * _CLIENTS, lock=False) for name in names}
        over, clients = context.Event(), []
        with closing(open_database(url)) as database:
            for name in names:
                options = {"size": "20000"} if name == "ring" else {}
                queue = install_queue(database, name, name, **options)
                clients += _clients(url, queue, counts[name], over)
        watching = _watching(stack, {**os.environ, "DBQ_URL": url, "XDG_STATE_HOME": str(folder)})
        part = max(seconds / _PART, _ROUNDS)
        wait_until(lambda: all(map(_popped, counts.values())), "each queue's messages are popped")
        time.sleep(_START)
        first = _rates(counts, part)
        bytes_then, memory_then = _table_bytes(url, names), _memory(watching)
        time.sleep(max(0.0, seconds - 2 * part - _START))
        last = _rates(counts, part)
        bytes_now = _table_bytes(url, names)
        memory = {of: (memory_then[of], now) for of, now in _memory(watching).items()}
        over.set()
        for client in clients:
            client.join()
            assert client.exitcode == 0
    return [
        Hour(name, (first[name], last[name]), (bytes_then[name], bytes_now[name]), memory)
        for name in names
    ]


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


def _popped(counts: Counts) -> int:
    return sum(counts[_CLIENTS:])


def _rates(counts: Mapping[str, Counts], seconds: float) -> dict[str, float]:
    """Popped messages a second of each queue, in the next so many seconds."""
    before, began = {name: _popped(of) for name, of in counts.items()}, time.perf_counter()
    time.sleep(seconds)
    took = time.perf_counter() - began
    return {name: (_popped(of) - before[name]) / took for name, of in counts.items()}


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


def _table_bytes(url: str, names: Sequence[str]) -> dict[str, int]:
    query = (
        "SELECT q.name, sum(pg_total_relation_size(c.oid))::bigint FROM unnest(%s::text[]) AS q "
        "(name) JOIN pg_class AS c ON c.relkind = 'r' AND starts_with(c.relname, q.name) GROUP BY 1"
    )
    with connect(url) as connection:
        return dict(connection.execute(query, [list(names)]).fetchall())
