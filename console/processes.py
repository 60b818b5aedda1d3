"""Processes beside this one: a module of this package, with a pipe to it and one back; a program of
somebody else's.

What one of ours has to know, a database's password with it, goes down the pipe to it, never onto
its command line. That pipe then stays open: its end tells it to leave, whatever became of us.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import console


def start(
    module: str,
    *words: str,
    stdin: int = subprocess.PIPE,
    stdout: int = subprocess.PIPE,
    stderr: IO[bytes] | None = None,
) -> "subprocess.Popen[bytes]":
    """`python -m module words`. What it complains of goes to `stderr`, or to where ours goes."""
    return subprocess.Popen(
        # -P: not the folder in which the user is; another project's "console" may lie there.
        [sys.executable, "-P", "-m", module, *words],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd="/",
        env=_environment(),
        start_new_session=True,  # a Ctrl-C is for us: we end it in good order
    )


def _environment() -> dict[str, str]:
    """Ours, and the place where this package was found, which may be a checkout."""
    place = str(Path(console.__file__).resolve().parent.parent)
    given = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([place, given] if given else [place])}


def send_line(process: "subprocess.Popen[bytes]", line: str) -> None:
    """One line to it. Nothing where it has ended: then its word will not come."""
    pipe = process.stdin
    if pipe is not None:
        with suppress(BrokenPipeError):
            pipe.write(line.encode() + b"\n")
            pipe.flush()


def read_line(process: "subprocess.Popen[bytes]", deadline: float) -> str:
    """The next line that it says by then (`time.monotonic`); empty where it ended or was late."""
    output = process.stdout
    if output is None:
        return ""
    wait = max(0.0, deadline - time.monotonic())
    if not select.select([output], [], [], wait)[0]:
        return ""
    return os.read(output.fileno(), 10_000).decode(errors="replace").strip()


def kill(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    close(process)


def close(process: "subprocess.Popen[bytes]") -> None:
    """The pipes of a process that has ended."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()


@contextmanager
def program(
    words: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.DEVNULL,
) -> "Iterator[subprocess.Popen[bytes]]":
    """Somebody else's, run without a shell; where the body fails it ends with all that it started.
    Its complaints are shown nowhere."""
    with subprocess.Popen(
        words,
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.DEVNULL,
        env=dict(environment),
        start_new_session=True,
    ) as running:
        try:
            yield running
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            raise
