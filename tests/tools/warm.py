"""Processes of the console that are forked after their imports, not started.

Importing the console takes a process half a second of CPU, and tests start hundreds. So each
process of the suite has a server process that imports it once and forks on request; others that
import what the lake's jobs need, or no more than what a copy of the console needs. A `Forked` is a
console like any other: with a pid that can be killed and stopped, its own streams and environment,
and the normal exit of an interpreter. Tests of the start itself, of a terminal, or of a command
line that others can see start a new process (`calls.COMMAND`).
"""

import atexit
import faulthandler
import gc
import importlib
import io
import json
import os
import pkgutil
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

_PAIR = struct.Struct("ii")
_LARGEST = 1 << 20
_READ = {"stdin": False, "stdout": True, "stderr": True}
"""Each stream, and whether this process reads it."""


class Forked:
    """A call of `dbq-console`, with the methods of a `subprocess.Popen` that tests use.

    `module`: the module whose `main` is called; by default the console's. `warm`: what has been
    imported before (`_WARM`).
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
        module: str = "console.cli",
        warm: str = "console",
    ) -> None:
        wanted = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
        self.returncode: Any = None
        """Its exit status, once it has ended; negative: the signal that ended it."""
        self._status, status = os.pipe()
        theirs, ours = [], dict[str, IO[bytes] | None]()
        for name, fd in wanted.items():
            their_fd, ours[name] = _stream(fd, read=_READ[name])
            theirs.append(their_fd)
        self.stdin, self.stdout, self.stderr = ours["stdin"], ours["stdout"], ours["stderr"]
        request = [list(arguments), dict(environment), str(Path.cwd()), module]
        socket.send_fds(_forker(warm), [json.dumps(request).encode()], [*theirs, status])
        for fd in (*theirs, status):
            os.close(fd)
        self.pid = self._receive()

    def _receive(self) -> int:
        kind, number = _PAIR.unpack(os.read(self._status, _PAIR.size))
        assert kind == len(_READ), "the forking process has ended"
        return int(number)

    def poll(self) -> int | None:
        """The exit status, if it has ended."""
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.returncode = self._receive()
            os.close(self._status)
        status: int | None = self.returncode
        return status

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; its exit status."""
        if self.returncode is None and not select.select([self._status], [], [], timeout)[0]:
            raise TimeoutError(f"process {self.pid} has not ended within {timeout} s")
        self.poll()
        return int(self.returncode)

    def communicate(self, given: bytes = b"", timeout: float | None = None) -> tuple[bytes, bytes]:
        """Send its input, read all its output, wait for its end."""
        found: dict[str, bytes] = {}

        def take(name: str, stream: IO[bytes]) -> None:
            found[name] = stream.read()

        reading = [
            threading.Thread(target=take, args=(name, stream), daemon=True)
            for name, stream in (("out", self.stdout), ("err", self.stderr))
            if stream is not None and not stream.closed
        ]
        for thread in reading:
            thread.start()
        if self.stdin is not None and not self.stdin.closed:
            with suppress(BrokenPipeError):  # it has ended, or closed its input
                self.stdin.write(given)
                self.stdin.close()
        self.wait(timeout)
        for thread in reading:
            thread.join(timeout)
        return found.get("out", b""), found.get("err", b"")

    def send_signal(self, number: int) -> None:
        """Does nothing if it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        self.wait()


def _stream(wanted: int, *, read: bool) -> tuple[int, IO[bytes] | None]:
    """The other process's end of a stream, and ours."""
    if wanted == subprocess.PIPE:
        out, into = os.pipe()
        return (into, os.fdopen(out, "rb")) if read else (out, os.fdopen(into, "wb"))
    if wanted == subprocess.DEVNULL:
        return os.open(os.devnull, os.O_RDWR), None
    return os.dup(wanted), None


@cache
def _forker(warm: str) -> socket.socket:
    """The socket to the forking process, which ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    running = subprocess.Popen(
        [sys.executable, "-m", "tests.tools.warm", str(theirs.fileno()), warm],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        env=os.environ | {"PYTHONIOENCODING": "utf-8"},
        start_new_session=True,  # it receives no Ctrl-C from the terminal of the tests
    )
    theirs.close()

    def end() -> None:
        ours.close()
        running.wait()

    atexit.register(end)
    return ours


def _serve(requests: socket.socket) -> str:
    """Fork on request; returns only in each forked process: the module whose `main` it runs."""
    while True:
        request, fds, _, _ = socket.recv_fds(requests, _LARGEST, len(_READ) + 1)
        if not request:
            os._exit(0)
        if os.fork() == 0:
            requests.close()
            _fork_and_report(fds[-1], fds[:-1])
            arguments, environment, folder, module = json.loads(request)
            _become(arguments, environment, folder, fds[:-1])
            return str(module)
        for fd in fds:
            os.close(fd)
        while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG):  # reap those that have ended
            pass


def _fork_and_report(status: int, streams: Sequence[int]) -> None:
    """Fork the console, report its pid and later its status; returns only in the console."""
    pid = os.fork()
    if pid == 0:
        os.close(status)
        return
    for fd in streams:
        os.close(fd)
    os.write(status, _PAIR.pack(len(_READ), pid))
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.write(status, _PAIR.pack(len(_READ), ended))
    os._exit(0)


def _become(
    arguments: list[str], environment: dict[str, str], folder: str, fds: Sequence[int]
) -> None:
    """Make this process as if it had been started with these."""
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["dbq-console", *arguments]
    sys.stdin = sys.__stdin__ = _text(0, sys.stdin)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _text(1, sys.stdout)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _text(2, sys.stderr)  # type: ignore[misc]


def _text(number: int, like: Any) -> io.TextIOWrapper:
    """A standard stream as a new interpreter creates it."""
    unbuffered = number > 0 and bool(os.environ.get("PYTHONUNBUFFERED"))
    binary: Any = io.FileIO(number, "rb" if number == 0 else "wb", closefd=False)
    if not unbuffered:
        binary = io.BufferedReader(binary) if number == 0 else io.BufferedWriter(binary)
    return io.TextIOWrapper(
        binary,
        os.environ.get("PYTHONIOENCODING") or like.encoding,
        like.errors,
        line_buffering=number == 2 or os.isatty(number),
        write_through=unbuffered,
    )


def _warm_up(warm: str) -> None:
    for name in _WARM[warm]:
        of_it = importlib.import_module(name)
        for module in pkgutil.iter_modules(of_it.__path__, f"{name}.") if name in _CONSOLE else ():
            if module.name not in _COLD:
                importlib.import_module(module.name)
    faulthandler.enable()  # a test that times out sends SIGABRT, to see where it hangs
    gc.collect()
    gc.freeze()


_PACKAGES = ("cli", "verbs", "doctor", "actions", "monitor", "designs", "engines")
_CONSOLE = tuple(f"console.{package}" for package in _PACKAGES)
_DRIVERS = ("psycopg", "sqlalchemy.dialects.postgresql.psycopg")
_LAKE = ("pyarrow.dataset", "deltalake", "pandas")
_WARM = {
    # What calls need that read or change queues: no screens, no Spark.
    "console": (*_CONSOLE, *_DRIVERS),
    "lake": (*_CONSOLE, *_DRIVERS, *_LAKE, "tests.pipeline.driver"),
    "copy": (*_DRIVERS, *_LAKE, "click", "textual.app", "textual.widgets", "pydantic", "pgqueuer"),
}
"""Name -> what is imported before a fork; `copy`: nothing of the console itself."""
_COLD = ("console.cli.__main__", "console.engines.mssql", "console.features.demo.embedded")

if __name__ == "__main__":
    _warm_up(sys.argv[2])
    importlib.import_module(_serve(socket.socket(fileno=int(sys.argv[1])))).main()
