"""The console's processes in a campaign: calls, services, and their output."""

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import termios
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from tests.cli.calls import COMMAND

MAY_EXIT_1 = frozenset({"pop", "push", "doctor", "check", "smoke", "history"})
"""Verbs whose exit status may be 1, for a negative or an empty result."""
_PATIENCE_SECONDS = 30.0
"""Within which a service has to end after a signal."""
_SCRAPE_SECONDS = 10.0
_AFTERMATH_SECONDS = 3.0
_BEGIN_SECONDS = 5.0
_MOST_KEPT = 2_000_000


@dataclass
class Defects:
    """Counts and descriptions of defects."""

    secret: bytes
    folder: Path
    """Of outputs worth reading."""
    counts: Counter[str] = field(default_factory=Counter)
    descriptions: list[str] = field(default_factory=list)

    def add(self, kind: str, words: str, *outputs: Path) -> None:
        """Keeps its outputs."""
        self.counts[kind] += 1
        self.descriptions.append(f"{kind}: {words}")
        for path in outputs:
            if path.exists():
                self.folder.mkdir(exist_ok=True)
                path.rename(self.folder / path.name)

    def search(self, data: bytes, where: str) -> None:
        """Search the console's output for secrets and tracebacks."""
        if self.secret in data:
            self.add("secrets", where)
        if b"Traceback (most recent call last)" in data:
            self.add("tracebacks", where)


class FaultTimes:
    """When connections may be lost, so that a lost one is no defect."""

    def __init__(self) -> None:
        self._times: list[tuple[float, float]] = []
        self._since: float | None = None

    def begin(self) -> None:
        self._since = time.monotonic()

    def end(self) -> None:
        """Its effects may be reported for some seconds more."""
        if self._since is not None:
            self._times.append((self._since, time.monotonic() + _AFTERMATH_SECONDS))
            self._since = None

    def overlap(self, begins: float, ends: float) -> bool:
        """Whether a fault was active between two times of `time.monotonic`."""
        now = [] if self._since is None else [(self._since, float("inf"))]
        return any(begin < ends and end > begins for begin, end in [*self._times, *now])


@dataclass(frozen=True)
class Order:
    words: Sequence[str]
    seconds: float = 60.0
    """Its time-out."""
    may_be_wrong: bool = False
    """Exit 2 is a valid result: its queue may be gone, or exist already."""
    may_die: bool = False
    """It kills itself at some point."""
    payloads: Sequence[str] = ()

    @property
    def verb(self) -> str:
        return " ".join(self.words[:2]) if self.words[0] == "pipeline" else self.words[0]


@dataclass
class Call:
    """A running call."""

    order: Order
    process: "subprocess.Popen[bytes]"
    out: Path
    err: Path
    began: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    killed: bool = False
    stderr: bytes = b""
    """Its stderr, once it has ended."""

    @classmethod
    def begin(
        cls,
        order: Order,
        path: Path,
        environment: Mapping[str, str],
        program: Sequence[str] = COMMAND,
    ) -> Self:
        """Start it; its output goes to files next to `path`."""
        out, err = path.with_suffix(".out"), path.with_suffix(".err")
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                [*program, *order.words],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        return cls(order, process, out, err)

    def kill(self) -> None:
        """SIGKILL, with all its children."""
        self.killed = True
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def poll(self, defects: Defects) -> bool:
        """Whether it has ended; after its time-out it is killed, and counted as a defect."""
        if self.process.poll() is None:
            if time.monotonic() < self.began + self.order.seconds * _load_factor():
                return False
            self.kill()
            defects.add("hangs", f"{self.description} had not ended after {self.order.seconds:g} s")
        self.ended = time.monotonic()
        return True

    @property
    def status(self) -> int:
        """Its exit status; negative: the signal that ended it."""
        return self.process.returncode

    @property
    def description(self) -> str:
        return f"{' '.join(self.order.words)} ({self.out.stem})"

    def check(self, defects: Defects, fault_times: FaultTimes) -> bytes:
        """Check status and output, and remove its files; its stdout."""
        out, err = self.out.read_bytes(), self.err.read_bytes()
        self.stderr = err
        defects.search(out, f"stdout of {self.description}")
        defects.search(err, f"stderr of {self.description}")
        died = self.order.may_die and self.status == -signal.SIGKILL
        if not (self.killed or died) and (why := self._wrong_exit(out, fault_times)):
            defects.add(
                "exits", f"{self.description}: {why}; {_last_line(err)}", self.out, self.err
            )
        for path in (self.out, self.err):
            path.unlink(missing_ok=True)
        return out

    def _wrong_exit(self, out: bytes, fault_times: FaultTimes) -> str:
        """What is wrong with its exit status or output; empty: nothing."""
        allowed = {0, 3, 4} | ({1} if self.order.verb in MAY_EXIT_1 else set())
        allowed |= {2} if self.order.may_be_wrong else set()
        if self.status not in allowed:
            return f"exit {self.status}"
        if self.status == 3 and not fault_times.overlap(self.began, self.ended):
            return "exit 3 without a fault"
        if "--json" in self.order.words and self.status == 0 and not _is_object(out):
            return "no JSON object on stdout"
        return ""


def _load_factor() -> float:
    """A factor for time-outs, 1 to 4: the load per processor."""
    return min(max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)), 4.0)


def _is_object(out: bytes) -> bool:
    try:
        return isinstance(json.loads(out), dict)
    except ValueError:
        return False


def _last_line(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    return " / ".join(lines[-2:])[:300]


class Service:
    """A process that runs until it gets a signal; after a kill it is started again."""

    def __init__(self, name: str, begin: Callable[[], "subprocess.Popen[bytes]"]) -> None:
        self.name = name
        self._begin = begin
        self.process = begin()
        self.began = time.monotonic()
        self.starts = 1
        self.killed = False

    def restart_if_ended(self, defects: Defects, fault_times: FaultTimes) -> None:
        """Start it again if it has ended: a defect, unless it was killed or could not start."""
        status = self.process.poll()
        if status is None:
            return
        begun_at = self.began + _BEGIN_SECONDS * _load_factor()
        could_not_begin = status == 3 and fault_times.overlap(self.began, begun_at)
        if not (self.killed or could_not_begin):
            defects.add("services", f"{self.name} ended by itself with {status}")
        self.killed = False
        self.process, self.began = self._begin(), time.monotonic()
        self.starts += 1

    def kill(self) -> None:
        self.killed = True
        self.process.kill()

    def end(self, defects: Defects, stop: Callable[[], object] | None = None) -> None:
        """After a signal it has to end with status 0."""
        if self.killed or self.process.poll() is not None:
            self.process.wait()
            return
        (stop or self.process.terminate)()
        try:
            status = self.process.wait(_PATIENCE_SECONDS * _load_factor())
        except subprocess.TimeoutExpired:
            defects.add(
                "hangs", f"{self.name} had not ended {_PATIENCE_SECONDS:g} s after its signal"
            )
            self.process.kill()
            self.process.wait()
        else:
            begun = time.monotonic() - self.began > _BEGIN_SECONDS
            if status and (begun or status != -signal.SIGTERM):
                defects.add("services", f"{self.name} ended after its signal with {status}")


class Terminal:
    """The screens on a pseudo-terminal, for random keys."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self._words, self._environment = words, environment
        self._ours = -1
        self._reader: threading.Thread | None = None
        self.output = bytearray()
        """The latest output."""

    def begin(self) -> "subprocess.Popen[bytes]":
        self.end()
        self._ours, child_end = pty.openpty()
        fcntl.ioctl(child_end, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 110, 0, 0))
        process = subprocess.Popen(
            [*COMMAND, *self._words],
            env={**self._environment, "TERM": "xterm-256color"},
            stdin=child_end,
            stdout=child_end,
            stderr=child_end,
            start_new_session=True,
        )
        os.close(child_end)
        self._reader = threading.Thread(target=self._read, args=(self._ours,), daemon=True)
        self._reader.start()
        return process

    def press(self, keys: bytes) -> None:
        """Does nothing if it has ended."""
        with suppress(OSError):
            os.write(self._ours, keys)

    def quit(self) -> None:
        self.press(b"\x11")

    def _read(self, ours: int) -> None:
        with suppress(OSError):
            while drawn := os.read(ours, 65536):
                self.output += drawn
                if len(self.output) > _MOST_KEPT:
                    del self.output[: _MOST_KEPT // 2]

    def end(self) -> None:
        """Its process has ended; the rest of its output may be lost."""
        if self._reader is not None:
            self._reader.join(5)
            os.close(self._ours)
            self._reader = None


class Watch:
    """Checks during the campaign: command lines of all processes, and metrics."""

    def __init__(self, defects: Defects, metrics: Callable[[], str]) -> None:
        self._defects = defects
        self._metrics = metrics
        self._ends = threading.Event()
        self._reported: set[bytes] = set()
        self.scrapes: Counter[str] = Counter()
        self._threads = [
            threading.Thread(target=self._repeat, args=(work, seconds), daemon=True)
            for work, seconds in ((self._command_lines, 0.5), (self._scrape, 1.0))
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join(2 * _SCRAPE_SECONDS)

    def _repeat(self, work: Callable[[], None], seconds: float) -> None:
        while not self._ends.wait(seconds):
            work()

    def _command_lines(self) -> None:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                line = path.read_bytes()
                if self._defects.secret in line and line not in self._reported:
                    self._reported.add(line)
                    words = line.replace(self._defects.secret, b"***").split(b"\0")
                    self._defects.add("secrets", f"command line {words!r}"[:300])

    def _scrape(self) -> None:
        if not (url := self._metrics()):
            return
        try:
            at = urlsplit(url)
            with closing(
                HTTPConnection(at.hostname or "", at.port, timeout=_SCRAPE_SECONDS)
            ) as line:
                line.request("GET", at.path)
                self._defects.search(line.getresponse().read(), "metrics")
            self.scrapes["answered"] += 1
        except TimeoutError:
            self._defects.add("hangs", "a scrape was not answered")
        except (OSError, HTTPException):  # it is being restarted
            self.scrapes["not running"] += 1
