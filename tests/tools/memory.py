"""The most memory that a call of each verb takes, on many messages and on large payloads.

python -m tests.tools.speed memory --rows 10000000
"""

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from console.actions.install import install
from console.catalog import Queue, installed_queue
from console.designs import design
from console.engines import open_database
from console.features.demo.embedded import EmbeddedServer
from tests.cli.calls import COMMAND
from tests.servers import connect, fresh_database
from tests.tools.filling import fill
from tests.tools.large import PATIENT, PAYLOAD, SETTINGS

_LARGE, _FEW = 50_000_000, 8
"""Bytes of a large payload, and how many of them."""
_READING = ("status deep", "check deep", "messages deep", "doctor deep", "report deep")
_EXPORT = "messages deep --payload --payload-bytes 10000000 --rate 1000000000 --export {folder}/{n}"


@dataclass(frozen=True)
class _Queue:
    """A queue of messages in one state, and calls, the last of which take all of them."""

    design: str
    state: str
    calls: Sequence[str]


QUEUES = (
    _Queue(
        "claim",
        "errors",
        (
            *(*_READING, "errors deep", f"{_EXPORT}.jsonl"),
            "requeue deep --yes deep",
            "purge deep --yes deep",
            "restore deep --yes deep",
        ),
    ),
    _Queue("status", "stuck", (*_READING, "release deep --unknown --force --yes deep")),
    _Queue("split", "done", (*_READING, "archive deep --yes deep")),
    _Queue("pending", "scheduled", (*_READING, "reschedule deep --in 1h --yes deep")),
    _Queue("fifo", "ready", (*_READING, "purge deep --permanently --yes deep")),
    _Queue("ring", "ready", (*_READING, "relay deep --yes deep", "purge deep --yes deep")),
)


@dataclass(frozen=True)
class Peak:
    call: str
    messages: str
    megabytes: float
    seconds: float
    status: int


def peaks(rows: int, designs: Sequence[str] = ()) -> Iterator[Peak]:
    """Of each call, on `rows` short messages, then on a few large ones; if none is given, of each
    design."""
    with EmbeddedServer.start(settings=SETTINGS) as server:
        for of in [one for one in QUEUES if not designs or one.design in designs]:
            for count, payload in ((rows, PAYLOAD), (_FEW, "x" * _LARGE)):
                yield from _peaks(server.url, of, count, payload)


def _peaks(server: str, of: _Queue, count: int, payload: str) -> Iterator[Peak]:
    with fresh_database(server) as url, TemporaryDirectory() as folder:
        queue = _filled(url, of, count, payload)
        each = f"{len(payload) / 1e6:.0f} MB" if len(payload) >= 1e6 else f"{len(payload)} bytes"
        messages = f"{count:,} {of.state} of {each}"
        for number, call in enumerate(of.calls):
            words = call.format(folder=folder, n=number).split()
            megabytes, seconds, status = _peak(words, url, Path(folder))
            shown = " ".join(call.partition(" deep")[::2]).split(" --rate")[0]
            yield Peak(f"{queue.design.name}: {shown}", messages, megabytes, seconds, status)


def _filled(url: str, of: _Queue, count: int, payload: str) -> Queue:
    kind = design(of.design)
    given = {"size": str(count)} if of.design == "ring" else {}
    queue = installed_queue("public", "deep", kind, kind.complete_options(given, "postgresql"))
    with closing(open_database(url, timeouts=PATIENT)) as database:
        install(database, queue)
    with connect(url) as connection:
        fill(connection, queue, {of.state: count}, payload)
        connection.execute("VACUUM ANALYZE")
    return queue


def _peak(words: Sequence[str], url: str, folder: Path) -> tuple[float, float, int]:
    """Megabytes, seconds and exit status of the call in a process of its own."""
    environment = {
        **os.environ,
        "DBQ_URL": url,
        "DBQ_STATEMENT_TIMEOUT": "1h",
        "XDG_STATE_HOME": str(folder),
    }
    began, most = time.perf_counter(), 0.0
    with subprocess.Popen(
        [*COMMAND, *words], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        # A child's rusage has its parent's memory of the moment of the fork.
        status = Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            with suppress(OSError, StopIteration):
                lines = status.read_text().splitlines()
                most = max(most, next(_kilobytes(line) for line in lines if "VmHWM" in line))
            time.sleep(0.02)
    return most / 1e3, time.perf_counter() - began, process.returncode


def _kilobytes(line: str) -> float:
    return float(line.split()[1])
