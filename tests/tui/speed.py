"""How fast the console is, on a pseudo-terminal: `python -m tests.tui.speed [--seconds 20]`.

Fake feeds: what is measured is the console, no database. For 20, 100 and 500 queues at 1 Hz: from
the start of the process to the first figures; from a key to its paint; from Enter on a queue to its
complete screen; CPU and memory while no key is pressed and every figure changes, on the overview
(`idle`) and on a queue's screen (`queue`); and while no figure does (`still`).

`python -m tests.tui.speed --fleet 60 20` starts three servers, on them 60 databases with 20 queues
each, every database behind a proxy, and one console on all of them, every 5 s. After the
first figures of all it freezes a third of the hosts, and then lets them continue.

`python -m tests.tui.speed --beside-pg-activity PROGRAM --seconds 60` starts the demo's server and
traffic, and on it this console and pg_activity side by side, both once a second: CPU and memory of
each. PROGRAM is pg_activity, which `pip install pg_activity psycopg[binary]` installs into
its own environment.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pexpect  # type: ignore[import-untyped]
from sqlalchemy import make_url

from console.monitor.sampler import Reading
from console.monitor.snapshot import QueueSnapshot
from tests.tui.feeds import nine_queues

COLUMNS, LINES = 160, 48
_TICKS = os.sysconf("SC_CLK_TCK")
_WARM_UP_SECONDS = 10.0
_OPENINGS = 8


class ChangingFeed:
    """A feed whose figures all change with every reading or, if `still`, never."""

    interval_seconds = 1.0
    name = "speed"

    def __init__(self, count: int, *, still: bool = False) -> None:
        self._still = still
        models = nine_queues()
        self._queues = [
            replace(models[n % len(models)], queue=f"q{n:03}", errors=None, stuck=None, gap=None)
            for n in range(count)
        ]
        self._stop = threading.Event()

    def start(self, deliver: Callable[[Reading], None]) -> None:
        threading.Thread(target=self._run, args=(deliver,), daemon=True).start()

    def _run(self, deliver: Callable[[Reading], None]) -> None:
        random_numbers = random.Random(1)
        while not self._stop.is_set():
            deliver(Reading(self.name, tuple(self._changed(random_numbers)), latency_seconds=0.004))
            self._stop.wait(self.interval_seconds)

    def _changed(self, random_numbers: random.Random) -> list[QueueSnapshot]:
        if self._still:
            random_numbers = random.Random(1)
        return [
            replace(
                snapshot,
                ready=random_numbers.randrange(5_000),
                push_per_second=random_numbers.random() * 100,
                pop_per_second=random_numbers.random() * 100,
            )
            for snapshot in self._queues
        ]

    def sample_now(self) -> None:
        """The next reading comes soon anyway."""

    def stop(self, timeout_seconds: float = 0.0) -> None:  # noqa: ARG002  # of the protocol
        self._stop.set()


class KeyLatency(NamedTuple):
    """From a key to its paint."""

    seconds: float
    cpu_seconds: float
    """Of the thread that paints: what `seconds` would be on an idle machine."""

    @property
    def text(self) -> str:
        return f"{self.seconds * 1000:5.0f} ({self.cpu_seconds * 1000:3.0f}) ms"


def p95(keys: Sequence[KeyLatency]) -> KeyLatency:
    """Of each figure separately, not of one key."""
    at = int(len(keys) * 0.95)
    return KeyLatency(*(sorted(of)[at] for of in zip(*keys, strict=True)))


@dataclass(frozen=True)
class Speed:
    """The figures for this number of queues. Shares are of one core."""

    queues: int
    first_seconds: float
    first_cpu_seconds: float
    keys: Sequence["KeyLatency"]
    opened: Sequence["KeyLatency"]
    """From Enter to a queue's screen: of the first, then of the others."""
    idle_share: float
    queue_share: float
    still_share: float
    memory_mb: float
    """Before the first key."""
    memory_end_mb: float
    """At the end."""

    @property
    def key_p95(self) -> "KeyLatency":
        return p95(self.keys)

    @property
    def opening(self) -> "KeyLatency":
        """The medians of all but the first."""
        seconds, cpu = map(statistics.median, zip(*self.opened[1:], strict=True))
        return KeyLatency(seconds, cpu)

    @property
    def line(self) -> str:
        return (
            f"{self.queues:6}  {self.first_seconds:6.2f} s ({self.first_cpu_seconds:.2f})"
            f"  {self.key_p95.text}  {self.opened[0].text} {self.opening.text}"
            f"  {self.idle_share:6.1%}  {self.queue_share:6.1%}  {self.still_share:6.1%}"
            f"  {self.memory_mb:4.0f} to {self.memory_end_mb:.0f} MB"
        )


HEAD = (
    f"{COLUMNS}x{LINES}, 1 Hz; in brackets the CPU that it took\n"
    "queues  first figures         key p95     first queue    later ones    idle   queue   still"
    "  memory"
)


def measure(queues: int, seconds: float) -> Speed:
    """Measure a console in its own process, and one more whose figures never change."""
    began = time.perf_counter()
    console = _console(queues)
    console.expect("q000")
    first, first_cpu = time.perf_counter() - began, cpu_seconds(console.pid)
    console.expect(re.escape("public.q000"))
    idle, before = share(console, seconds), memory_mb(console.pid)
    keys = press_keys(console, [f"public.q{at:03}" for at in range(min(queues, 60))], seconds)
    opened = list(_opened(console))
    console.send("\r")
    in_queue = share(console, seconds)
    memory = memory_mb(console.pid)
    quit_console(console)
    console = _console(queues, "--still")
    console.expect(re.escape("public.q000"))
    still = share(console, seconds)
    quit_console(console)
    return Speed(queues, first, first_cpu, keys, opened, idle, in_queue, still, before, memory)


def _console(queues: int, *options: str) -> "pexpect.spawn[str]":
    return spawned([sys.executable, "-m", "tests.tui.speed", "--child", str(queues), *options])


def spawned(command: Sequence[str]) -> "pexpect.spawn[str]":
    """A console on a pseudo-terminal."""
    console = pexpect.spawn(
        command[0],
        [*command[1:]],
        dimensions=(LINES, COLUMNS),
        env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
        encoding="utf-8",
        codec_errors="replace",  # draining may cut a character in half
        timeout=60,
        maxread=65_536,
    )
    console.delaybeforesend = None
    return console


def quit_console(console: "pexpect.spawn[str]") -> None:
    console.send("\x11")
    console.expect(pexpect.EOF)


def share(console: "pexpect.spawn[str]", seconds: float) -> float:
    """The share of a core that it uses while its output is read, once earlier work is done."""
    _drain(console, 3.0)
    before, began = cpu_seconds(console.pid), time.perf_counter()
    _drain(console, seconds)
    return (cpu_seconds(console.pid) - before) / (time.perf_counter() - began)


def _drain(console: "pexpect.spawn[str]", seconds: float) -> None:
    """Read without `expect`, which would search all of it again at each piece."""
    ends = time.perf_counter() + seconds
    while (remaining := ends - time.perf_counter()) > 0:
        with contextlib.suppress(pexpect.TIMEOUT):
            console.read_nonblocking(65_536, timeout=remaining)
    console.buffer = ""


def _opened(console: "pexpect.spawn[str]") -> Iterator[KeyLatency]:
    """Time Enter on the queue under the cursor until its first tab has its text; then go back."""
    for _ in range(_OPENINGS):
        with _timed(console) as took:
            console.send("\r")
            console.expect("has not examined this queue")
        yield took[0]
        time.sleep(0.3)
        console.send("\x1b")
        console.expect("last [0-9]+ min")
        time.sleep(0.3)


def press_keys(
    console: "pexpect.spawn[str]", rows: Sequence[str], seconds: float
) -> list[KeyLatency]:
    """Move down and up through the table, from its first row; a key is painted when the line below
    names its row."""
    random_numbers = random.Random(2)
    found: list[KeyLatency] = []
    at, step = 0, 1
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        # At any moment between two refreshes, at the speed of a person.
        time.sleep(random_numbers.uniform(0.05, 0.35))
        at += step
        key = "j" if step > 0 else "k"
        if at in {0, len(rows) - 1}:
            step = -step
        with _timed(console) as took:
            console.send(key)
            console.expect(re.escape(rows[at]))
        found += took
    return found


@contextlib.contextmanager
def _timed(console: "pexpect.spawn[str]") -> Iterator[list[KeyLatency]]:
    took: list[KeyLatency] = []
    before, cpu_before = time.perf_counter(), thread_cpu_seconds(console.pid)
    yield took
    after, cpu_after = time.perf_counter(), thread_cpu_seconds(console.pid)
    took.append(KeyLatency(after - before, cpu_after - cpu_before))


def beside(program: str, seconds: float) -> None:
    """Measure this console and pg_activity on one busy server."""
    from console.features.demo.running import Demo  # noqa: PLC0415  # needs more than the console does

    with Demo() as demo:
        # The password is that of a server that ends with this.
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
            share, memory = (one.cpu_seconds - before[name]) / took, memory_mb(one.console.pid)
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
        return cpu_seconds(self.console.pid)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def thread_cpu_seconds(pid: int) -> float:
    """Of the first thread, more precise than ticks."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def memory_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(match[1]) / 1024 if match else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="of each measure, for each number"
    )
    parser.add_argument("--queues", type=int, nargs="*", default=[20, 100, 500])
    parser.add_argument(
        "--fleet", type=int, nargs=2, metavar=("HOSTS", "QUEUES"), help="real servers instead"
    )
    parser.add_argument("--child", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--still", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--beside-pg-activity", metavar="PROGRAM", help="on a live demo instead")
    parser.add_argument("--watch", metavar="URL", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.watch:
        from console import tui  # noqa: PLC0415  # its loading is measured
        from console.engines import open_database  # noqa: PLC0415

        tui.run([open_database(given.watch, label="demo")])
        return
    if given.fleet:
        from tests.tui.fleet import measure_fleet  # noqa: PLC0415  # as below

        hosts, queues = given.fleet
        for figure in measure_fleet(hosts, queues, given.seconds):
            print(figure.line, flush=True)
        return
    if given.beside_pg_activity:
        beside(given.beside_pg_activity, given.seconds)
        return
    if given.child:
        from console.tui import ConsoleApp  # noqa: PLC0415  # its loading is measured

        ConsoleApp([ChangingFeed(given.child, still=given.still)]).run()
        return
    print(HEAD)
    for queues in given.queues:
        print(measure(queues, given.seconds).line, flush=True)


if __name__ == "__main__":
    main()
