"""Calls that end early: a reader that goes away, a pop that is killed, a server that is silent.

The pipe holds one page and the reader takes what is in it before it closes, so what was delivered
is known to the byte: a message counts as delivered when its complete line was read.
"""

import fcntl
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.cli.calls import COMMAND, Console, Process
from tests.cli.conftest import Install
from tests.cli.verbs import PASSWORD, refused
from tests.servers import PATIENCE_SECONDS, value, wait_until

pytestmark = pytest.mark.slow

Fill = Callable[..., str]

TOTAL = 1300
LINE = 160
BATCH = 1000
DELETING = ["naive", "heap", "fifo", "stack", "pending", "ring", "ring archive_at_pop=on"]
KEEPING = ["claim", "status", "split", "ring in_hand=on"]


def payload(number: int) -> str:
    return f"{number:05} ".ljust(LINE - 1, "x")


def numbers(delivered: bytes) -> list[int]:
    """The messages that were read completely and unchanged."""
    *lines, rest = delivered.decode().split("\n")
    found = [int(line[:5]) for line in lines]
    assert lines == [payload(number) for number in found]
    assert rest in "".join(payload(int(rest[:5])) if len(rest) >= 5 else rest)
    return found


@pytest.fixture
def filled(console: Console, install: Install) -> Fill:
    """Install a queue and push messages, TOTAL unless given."""

    def make(kind: str, count: int = TOTAL) -> str:
        design, *options = kind.split()
        name = install(design, *options)
        stdin = "\n".join(payload(number) for number in range(count)).encode()
        console.done("push", name, "-", "--lines", stdin=stdin)
        return name

    return make


@dataclass
class Reader:
    """The reading end of a pipe, and the bytes read."""

    end: int
    got: bytes = b""

    def read(self, wanted: int) -> None:
        """Wait for this many more bytes."""
        wanted += len(self.got)
        while len(self.got) < wanted:
            data = os.read(self.end, min(wanted - len(self.got), 4096))
            assert data, "the pop ended early"
            self.got += data

    def drain(self) -> None:
        """Take what is in the pipe now."""
        os.set_blocking(self.end, False)
        with suppress(BlockingIOError):
            while data := os.read(self.end, 4096):
                self.got += data

    def close(self) -> None:
        os.close(self.end)
        self.end = -1


@contextmanager
def pop_into_a_pipe(
    console: Console, *arguments: str, unbuffered: bool = False
) -> Iterator[tuple[Process, Reader]]:
    """A pop of everything that writes into a pipe of one page."""
    end, stdout = os.pipe()
    fcntl.fcntl(stdout, fcntl.F_SETPIPE_SZ, 4096)
    reader = Reader(end)
    try:
        call = ("pop", "--count", "100000", *arguments)
        with console.process(*call, stdout=stdout, unbuffered=unbuffered) as popping:
            os.close(stdout)
            yield popping, reader
    finally:
        if reader.end >= 0:
            reader.close()


def stop(process: Process) -> None:
    """Suspend it, in the middle of a write or anywhere else."""
    process.send_signal(signal.SIGSTOP)
    frozen = psutil.Process(process.pid)
    wait_until(lambda: frozen.status() == psutil.STATUS_STOPPED, "it is stopped")


def break_pipe(
    console: Console, point: int, *arguments: str, unbuffered: bool = False
) -> list[int]:
    """Close the pipe after this many bytes; returns what was delivered."""
    with pop_into_a_pipe(console, *arguments, unbuffered=unbuffered) as (popping, reader):
        reader.read(point)
        stop(popping)
        reader.drain()
        reader.close()
        popping.send_signal(signal.SIGCONT)
        _, err = popping.communicate(timeout=PATIENCE_SECONDS)
    assert popping.returncode == 128 + signal.SIGPIPE
    assert err == b"The output was closed before everything was written.\n"
    return numbers(reader.got)


def kill(console: Console, point: int, *arguments: str) -> list[int]:
    """Kill the pop after this many bytes; returns what was delivered."""
    with pop_into_a_pipe(console, *arguments) as (popping, reader):
        reader.read(point)
        popping.kill()
        popping.wait(60)
        reader.drain()
        popping.wait_for_no_session()
    return numbers(reader.got)


def interrupt(console: Console, point: int, *arguments: str) -> list[int]:
    """Ctrl-C after this many bytes; returns what was delivered."""
    with pop_into_a_pipe(console, *arguments) as (popping, reader):
        reader.read(point)
        popping.send_signal(signal.SIGINT)
        _, err = popping.communicate(timeout=PATIENCE_SECONDS)
        reader.drain()
    *claimed, last = err.splitlines()
    assert (popping.returncode, last) == (128 + signal.SIGINT, b"Interrupted.")
    # It says how to finish messages only if some stay claimed.
    kept = arguments[0].startswith("claim") and "--complete" not in arguments
    assert [b"Claimed until finished" in line for line in claimed] == (
        [True, False] if kept else []
    )
    return numbers(reader.got)


End = Callable[..., list[int]]


def kinds_and_ends(kinds: list[str], interrupted: list[str]) -> pytest.MarkDecorator:
    """Every kind of queue with a broken pipe and with a kill, some with an interrupt."""
    found: list[tuple[str, End]] = [(kind, end) for kind in kinds for end in (break_pipe, kill)]
    found += [(kind, interrupt) for kind in interrupted]
    # One of three in the short tier: pipes and kills in turn.
    parameters = [
        pytest.param(
            *one, id=f"{one[0]}-{one[1].__name__}", marks=pytest.mark.long if n % 3 else ()
        )
        for n, one in enumerate(found)
    ]
    return pytest.mark.parametrize(("kind", "end"), parameters)


def random_point() -> int:
    """After some bytes, and with more to come."""
    return random.randrange(1, LINE * (TOTAL - 100))


def left_ready(console: Console, name: str) -> list[int]:
    return [int(text[:5]) for text in console.drained(name)]


def check_deleted(console: Console, name: str, delivered: list[int]) -> None:
    """Only delivered messages are gone; at most one batch is delivered and still there."""
    left = left_ready(console, name)
    assert len(set(left)) == len(left)
    assert len(set(delivered)) == len(delivered)
    assert set(left) | set(delivered) == set(range(TOTAL))
    assert len(set(left) & set(delivered)) <= BATCH
    assert (TOTAL - len(left)) % BATCH == 0
    assert console("pop", name).status == 1


@pytest.mark.thinned(3)
@kinds_and_ends(DELETING, ["fifo", "ring"])
def test_a_design_that_deletes_keeps_messages_that_were_not_delivered(
    console: Console, filled: Fill, kind: str, end: End
) -> None:
    name, point = filled(kind), random_point()
    delivered = end(console, point, name)
    if end is kill and kind.startswith("ring"):
        # The killed pop could not give its numbers back: its messages wait for a relay.
        console.done("relay", name, "--yes", name)
    check_deleted(console, name, delivered)
    if "archive_at_pop=on" in kind:
        assert value(console.url, f'SELECT count(*) FROM public."{name}_archive"') == TOTAL


@pytest.mark.long
@pytest.mark.thinned(3)
@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize(
    ("kind", "point"),
    [("fifo", 1), ("ring", 0), ("ring", BATCH * LINE), ("ring", BATCH * LINE + 1)],
)
def test_a_pipe_closed_at_the_edge_of_a_line_or_a_batch_loses_nothing(
    console: Console, filled: Fill, kind: str, point: int, unbuffered: bool
) -> None:
    """Also with unbuffered writes, of which the pipe takes only a part."""
    name = filled(kind)
    check_deleted(console, name, break_pipe(console, point, name, unbuffered=unbuffered))


@pytest.mark.long
@kinds_and_ends(KEEPING, ["claim"])
def test_a_design_that_keeps_messages_leaves_delivered_ones_claimed(
    console: Console, filled: Fill, kind: str, end: End
) -> None:
    name = filled(kind)
    delivered = end(console, random_point(), name)
    if end is kill and kind.startswith("ring"):
        console.done("relay", name, "--yes", name)
    status = console.status(name)
    assert status["ready"] + status["claimed"] == TOTAL
    left = left_ready(console, name)
    assert len(set(left)) == len(left) == status["ready"]
    assert not set(left) & set(delivered)
    assert status["claimed"] == TOTAL or status["claimed"] % BATCH == 0
    assert 0 <= status["claimed"] - len(delivered) <= BATCH


@kinds_and_ends(["ring in_hand=on"], ["claim", "ring in_hand=on"])
def test_only_delivered_messages_are_completed(
    console: Console, filled: Fill, kind: str, end: End
) -> None:
    name = filled(kind)
    delivered = end(console, random_point(), name, "--complete")
    if end is kill and kind.startswith("ring"):
        console.done("relay", name, "--yes", name)
    status = console.status(name)
    completed = TOTAL - status["ready"] - status["claimed"]
    assert completed % BATCH == 0
    assert completed <= len(delivered)
    assert status["claimed"] in {0, BATCH, TOTAL % BATCH}
    left = left_ready(console, name)
    assert len(left) == status["ready"]
    assert not set(left) & set(delivered)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "options"), [("fifo", []), ("ring", ["--json"])], ids=str)
def test_a_full_disk_is_reported_and_loses_nothing(
    console: Console, filled: Fill, kind: str, options: list[str]
) -> None:
    name = filled(kind, 9)
    with (
        Path("/dev/full").open("wb") as full,
        console.process("pop", name, *options, stdout=full.fileno()) as popping,
    ):
        _, err = popping.communicate(timeout=PATIENCE_SECONDS)
    assert popping.returncode == 3
    assert err == b"The result could not be written.\nNo space left on device\n"
    assert sorted(left_ready(console, name)) == list(range(9))


@pytest.mark.parametrize("arguments", [["--help"], ["pop", "--help"], ["--version"]], ids=str)
def test_help_on_a_full_disk_is_exit_3(arguments: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert ended.stderr == b"The result could not be written.\nNo space left on device\n"
    assert ended.returncode == 3


def test_a_closed_stdout_is_reported_and_loses_nothing(console: Console, filled: Fill) -> None:
    for kind in ("fifo", "ring", "claim"):
        name = filled(kind, 9)
        answer = console.run_with_closed("stdout", "pop", name)
        assert answer.status == 3
        assert answer.err == "The result cannot be written: stdout is closed.\n"
        assert sorted(left_ready(console, name)) == list(range(kind == "claim", 9))


@pytest.mark.long
def test_a_closed_stdin_is_reported(console: Console, install: Install) -> None:
    name = install("fifo")
    for options in ([], ["--lines"]):
        console.run_with_closed("stdin", "push", name, "-", *options).failed(2, "stdin is closed")


def test_a_plan_printed_into_a_closed_pipe_is_exit_141(console: Console, install: Install) -> None:
    name = install("fifo")
    end, stdout = os.pipe()
    os.close(end)
    with console.process("uninstall", name, stdout=stdout) as running:
        os.close(stdout)
        _, err = running.communicate(timeout=PATIENCE_SECONDS)
    assert running.returncode == 128 + signal.SIGPIPE
    assert b"Traceback" not in err
    assert console.status(name)["ready"] == 0


# -- interrupted while it loads; a server that never responds

_INTERRUPTED_WHILE_LOADING = """
import sys
class Interrupt:
    def find_spec(self, name, *_):
        if name == "console.cli.verbs":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from console.cli import main
main()
"""
_INTERRUPTED_IN_EXEC = """
import sys
class Interrupt:
    def find_spec(self, name, *_):
        if name == {name!r}:
            exec("import os, signal; os.kill(os.getpid(), signal.SIGINT)\\nwhile True: pass")
sys.meta_path.insert(0, Interrupt())
from console.cli import main
main()
"""


@pytest.mark.parametrize("name", ["console.cli.verbs", "console.monitor.sampler"])
def test_an_interrupt_while_a_dataclass_is_created_is_exit_130(tmp_path: Path, name: str) -> None:
    (tmp_path / "interrupted.py").write_text(_INTERRUPTED_IN_EXEC.format(name=name))
    done = subprocess.run(
        [sys.executable, "-m", "interrupted", "status", "--watch"],
        capture_output=True,
        check=False,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"Interrupted.\n")


def test_an_interrupt_while_the_program_loads_is_exit_130() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_WHILE_LOADING], capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"Interrupted.\n")


@pytest.mark.parametrize(("setting", "of_url"), [("2s", ""), ("600s", "?connect_timeout=2")])
def test_a_silent_server_ends_the_call_at_the_connect_timeout(
    monkeypatch: pytest.MonkeyPatch, setting: str, of_url: str
) -> None:
    """It accepts the connection and never responds. The URL's own timeout counts before others."""
    monkeypatch.setenv("DBQ_CONNECT_TIMEOUT", setting)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        at = f"127.0.0.1:{listener.getsockname()[1]}"
        url = f"postgresql+psycopg://u:{PASSWORD}@{at}/x{of_url}"
        refused(Console(url).run("status", "--json"), 3, "connection timeout expired")
