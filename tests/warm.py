"""Processes of the console that have their imports behind them: forked, not started.

To import what the console is made of takes a process half a second of the processor, and tests
start hundreds. So each process of the suite has one that imports it once and forks what is asked
for. A `Forked` is the console in all else: a pid that can be killed and stopped, streams and an
environment of its own, and an interpreter that ends as any other. What is about the start itself,
a terminal or a command line that others can see starts one anew (`calls.COMMAND`).
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
"""Each stream, and whether it is read here."""


class Forked:
    """A call of `dbq-console`, with the methods of a `subprocess.Popen` that tests use.

    `module`: whose `main` is called, where it is not the console's.
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
    ) -> None:
        wanted = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
        self.returncode: Any = None
        """Its exit status, once it has ended; minus the signal that ended it."""
        self._status, status = os.pipe()
        theirs, ours = [], dict[str, IO[bytes] | None]()
        for name, fd in wanted.items():
            their_fd, ours[name] = _stream(fd, read=_READ[name])
            theirs.append(their_fd)
        self.stdin, self.stdout, self.stderr = ours["stdin"], ours["stdout"], ours["stderr"]
        asked = [list(arguments), dict(environment), str(Path.cwd()), module]
        socket.send_fds(_forker(), [json.dumps(asked).encode()], [*theirs, status])
        for fd in (*theirs, status):
            os.close(fd)
        self.pid = self._told()

    def _told(self) -> int:
        kind, number = _PAIR.unpack(os.read(self._status, _PAIR.size))
        assert kind == len(_READ), "what forks has ended"
        return int(number)

    def poll(self) -> int | None:
        """The exit status, where it has ended."""
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.returncode = self._told()
            os.close(self._status)
        status: int | None = self.returncode
        return status

    def wait(self, timeout: float | None = None) -> int:
        """Until it has ended."""
        if self.returncode is None and not select.select([self._status], [], [], timeout)[0]:
            raise TimeoutError(f"process {self.pid} has not ended within {timeout} s")
        self.poll()
        return int(self.returncode)

    def communicate(self, given: bytes = b"", timeout: float | None = None) -> tuple[bytes, bytes]:
        """Give it its input, take all that it writes, wait for its end."""
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
            with suppress(BrokenPipeError):  # it has ended before, or wants no more
                self.stdin.write(given)
                self.stdin.close()
        self.wait(timeout)
        for thread in reading:
            thread.join(timeout)
        return found.get("out", b""), found.get("err", b"")

    def send_signal(self, number: int) -> None:
        """Nothing, where it has ended."""
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
    """The end of a stream that the other process gets, and ours."""
    if wanted == subprocess.PIPE:
        out, into = os.pipe()
        return (into, os.fdopen(out, "rb")) if read else (out, os.fdopen(into, "wb"))
    if wanted == subprocess.DEVNULL:
        return os.open(os.devnull, os.O_RDWR), None
    return os.dup(wanted), None


@cache
def _forker() -> socket.socket:
    """What asks the process that forks; that ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    running = subprocess.Popen(
        [sys.executable, "-m", "tests.warm", str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        env=os.environ | {"PYTHONIOENCODING": "utf-8"},
        start_new_session=True,  # it hears no Ctrl-C of who runs the tests
    )
    theirs.close()

    def end() -> None:
        ours.close()
        running.wait()

    atexit.register(end)
    return ours


def _serve(asking: socket.socket) -> str:
    """Fork what is asked for; returns in each process that is to run, whose `main` it is."""
    while True:
        asked, fds, _, _ = socket.recv_fds(asking, _LARGEST, len(_READ) + 1)
        if not asked:
            os._exit(0)
        if os.fork() == 0:
            asking.close()
            _keep(fds[-1], fds[:-1])
            arguments, environment, folder, module = json.loads(asked)
            _become(arguments, environment, folder, fds[:-1])
            return str(module)
        for fd in fds:
            os.close(fd)
        while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG):  # of those that are done
            pass


def _keep(status: int, streams: Sequence[int]) -> None:
    """Fork the console, tell its pid and, in the end, its status; returns in the console only."""
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
    """This process is as one that was started with these."""
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


def _text(number: int, as_in: Any) -> io.TextIOWrapper:
    """A standard stream as an interpreter makes it when it starts."""
    at_once = number > 0 and bool(os.environ.get("PYTHONUNBUFFERED"))
    binary: Any = io.FileIO(number, "rb" if number == 0 else "wb", closefd=False)
    if not at_once:
        binary = io.BufferedReader(binary) if number == 0 else io.BufferedWriter(binary)
    return io.TextIOWrapper(
        binary,
        os.environ.get("PYTHONIOENCODING") or as_in.encoding,
        as_in.errors,
        line_buffering=number == 2 or os.isatty(number),
        write_through=at_once,
    )


def _warm_up() -> None:
    """Import what calls need that look at a queue or act on it: no screens, no Spark."""
    for package in _WARM:
        for module in pkgutil.iter_modules(
            importlib.import_module(package).__path__, f"{package}."
        ):
            if module.name not in _COLD:
                importlib.import_module(module.name)
    importlib.import_module("sqlalchemy.dialects.postgresql.psycopg")
    importlib.import_module("psycopg")
    faulthandler.enable()  # a test that waits in vain sends SIGABRT, to see where it hangs
    gc.collect()
    gc.freeze()


_PACKAGES = ("cli", "verbs", "prove", "doctor", "actions", "monitor", "designs", "engines")
_WARM = tuple(f"console.{package}" for package in _PACKAGES)
_COLD = ("console.cli.__main__", "console.engines.mssql", "console.engines.embedded")

if __name__ == "__main__":
    _warm_up()
    importlib.import_module(_serve(socket.socket(fileno=int(sys.argv[1])))).main()
