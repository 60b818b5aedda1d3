"""How quick the console is, on a pseudo-terminal: `python -m tests.tui.speed [--seconds 20]`.

Fake feeds: what is measured is the console, no database. For 20, 100 and 500 queues at 1 Hz: from
the start of the process to the first figures; from a key to its paint; CPU and memory meanwhile.

`python -m tests.tui.speed --beside-pg-activity PROGRAM --seconds 60` starts the demo's server and
traffic, and on it this console and pg_activity side by side, both once a second: CPU and memory of
each. PROGRAM is pg_activity, which `pip install pg_activity psycopg[binary]` puts into an
environment of its own.
"""

import argparse
import contextlib
import os
import random
import re
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pexpect  # type: ignore[import-untyped]
from sqlalchemy import make_url

from console.monitor.sampler import Reading
from console.monitor.snapshot import QueueSnapshot
from tests.tui.feeds import nine

COLUMNS, LINES = 160, 48
_TICKS = os.sysconf("SC_CLK_TCK")
_WARM_UP_SECONDS = 10.0


class Tide:
    """A feed whose figures all change at every reading."""

    interval_seconds = 1.0
    name = "speed"

    def __init__(self, count: int) -> None:
        models = nine()
        self._queues = [
            replace(models[n % len(models)], queue=f"q{n:03}", errors=None, stuck=None, gap=None)
            for n in range(count)
        ]
        self._stop = threading.Event()

    def start(self, deliver: Callable[[Reading], None]) -> None:
        threading.Thread(target=self._run, args=(deliver,), daemon=True).start()

    def _run(self, deliver: Callable[[Reading], None]) -> None:
        chance = random.Random(1)
        while not self._stop.is_set():
            deliver(Reading(self.name, tuple(self._moved(chance)), latency_seconds=0.004))
            self._stop.wait(self.interval_seconds)

    def _moved(self, chance: random.Random) -> list[QueueSnapshot]:
        return [
            replace(
                one,
                ready=chance.randrange(5_000),
                push_per_second=chance.random() * 100,
                pop_per_second=chance.random() * 100,
            )
            for one in self._queues
        ]

    def sample_now(self) -> None:
        """It comes soon anyway."""

    def stop(self, timeout_seconds: float = 0.0) -> None:  # noqa: ARG002  # of the protocol
        self._stop.set()


@dataclass(frozen=True)
class Speed:
    """What was measured with so many queues."""

    queues: int
    first_seconds: float
    keys: Sequence[float]
    cpu_share: float
    memory_mb: float
    """After two seconds..."""
    memory_end_mb: float
    """... and at the end."""

    @property
    def line(self) -> str:
        ranked = sorted(self.keys)
        p50, p95 = statistics.median(ranked) * 1000, ranked[int(len(ranked) * 0.95)] * 1000
        memory = f"{self.memory_mb:4.0f} to {self.memory_end_mb:.0f} MB"
        return (
            f"{self.queues:6}  {self.first_seconds:12.2f} s  {p50:7.0f} ms  {p95:7.0f} ms"
            f"  {self.cpu_share:6.1%}  {memory}  {len(ranked):5}"
        )


def measure(queues: int, seconds: float) -> Speed:
    """A console of its own, in a process of its own."""
    began = time.perf_counter()
    console = pexpect.spawn(
        sys.executable,
        ["-m", "tests.tui.speed", "--child", str(queues)],
        dimensions=(LINES, COLUMNS),
        env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
        encoding="utf-8",
        timeout=60,
    )
    console.delaybeforesend = None
    console.expect("q000")
    first = time.perf_counter() - began
    console.expect(re.escape("public.q000"))
    time.sleep(2)
    spent, at, before = _cpu_seconds(console.pid), time.perf_counter(), _memory_mb(console.pid)
    keys = list(_keys(console, queues, seconds))
    share = (_cpu_seconds(console.pid) - spent) / (time.perf_counter() - at)
    memory = _memory_mb(console.pid)
    console.send("\x11")
    console.expect(pexpect.EOF)
    return Speed(queues, first, keys, share, before, memory)


def _keys(console: "pexpect.spawn[str]", queues: int, seconds: float) -> list[float]:
    """Down and up through the table; a key is painted when the line below names its queue."""
    chance = random.Random(2)
    found, at, step = [], 0, 1
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        # At any moment between two refreshes, and as quick as a hand is.
        time.sleep(chance.uniform(0.05, 0.35))
        at += step
        key = "j" if step > 0 else "k"
        if at in {0, min(queues, 60) - 1}:
            step = -step
        pressed = time.perf_counter()
        console.send(key)
        console.expect(re.escape(f"public.q{at:03}"))
        found.append(time.perf_counter() - pressed)
    return found


def beside(program: str, seconds: float) -> None:
    """This console and pg_activity on one busy server, for so long."""
    from console.demo import Demo  # noqa: PLC0415  # needs more than the console does

    with Demo() as demo:
        # The password is that of a server which lives as long as this.
        url = make_url(demo.url).set(drivername="postgresql").render_as_string(hide_password=False)
        commands = {
            "dbq-console": [sys.executable, "-m", "tests.tui.speed", "--watch", demo.url],
            "pg_activity": [program, "--refresh", "1", url],
        }
        watched = {name: _Watched(command) for name, command in commands.items()}
        time.sleep(_WARM_UP_SECONDS)
        before = {name: one.cpu_seconds for name, one in watched.items()}
        began = time.perf_counter()
        time.sleep(seconds)
        took = time.perf_counter() - began
        for name, one in watched.items():
            if not one.console.isalive():
                raise SystemExit(f"{name} ended before its time")
            share, memory = (one.cpu_seconds - before[name]) / took, _memory_mb(one.console.pid)
            print(f"{name:12}  {share:6.1%}  {memory:4.0f} MB  {one.drawn / 1000:8,.0f} kB drawn")
            one.console.close(force=True)


class _Watched:
    """A program on a pseudo-terminal that is read as fast as it writes."""

    def __init__(self, command: Sequence[str]) -> None:
        self.console = pexpect.spawn(
            command[0],
            [*command[1:]],
            dimensions=(LINES, COLUMNS),
            env={**os.environ, "TERM": "xterm-256color"},
        )
        self.drawn = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError, pexpect.EOF):
            while True:
                with contextlib.suppress(pexpect.TIMEOUT):
                    self.drawn += len(self.console.read_nonblocking(65_536, timeout=1))

    @property
    def cpu_seconds(self) -> float:
        return _cpu_seconds(self.console.pid)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _memory_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found[1]) / 1024 if found else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of keys, for each number")
    parser.add_argument("--queues", type=int, nargs="*", default=[20, 100, 500])
    parser.add_argument("--child", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--beside-pg-activity", metavar="PROGRAM", help="on a live demo instead")
    parser.add_argument("--watch", metavar="URL", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.watch:
        from console import tui  # noqa: PLC0415  # its loading is measured
        from console.engines import open_database  # noqa: PLC0415

        tui.run([open_database(given.watch, label="demo")])
        return
    if given.beside_pg_activity:
        beside(given.beside_pg_activity, given.seconds)
        return
    if given.child:
        from console.tui import ConsoleApp  # noqa: PLC0415  # its loading is measured

        ConsoleApp([Tide(given.child)]).run()
        return
    print(f"{COLUMNS}x{LINES}, every figure changes once a second")
    print("queues  first figures     key p50     key p95     CPU  memory           keys")
    for queues in given.queues:
        print(measure(queues, given.seconds).line, flush=True)


if __name__ == "__main__":
    main()
