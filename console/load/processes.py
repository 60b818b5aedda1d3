"""Child processes: a module of this package, with a pipe in each direction.

A child of ours receives its input, including passwords, through its pipe, never on its command
line. The pipe stays open: when it closes, because we exit or die, the child exits.
"""

import os
import select
import subprocess
import sys
import time
from contextlib import suppress
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
    """`python -m module words`. Its stderr is `stderr`, or ours."""
    return subprocess.Popen(
        # -P: ignore the current folder, which may contain another project's "console".
        [sys.executable, "-P", "-m", module, *words],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd="/",
        env=_environment(),
        start_new_session=True,  # Ctrl-C is for us: we stop the child
    )


def _environment() -> dict[str, str]:
    """Ours, with the location of this package, which may be a checkout."""
    root = str(Path(console.__file__).resolve().parent.parent)
    given = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([root, given] if given else [root])}


def send_line(process: "subprocess.Popen[bytes]", line: str) -> None:
    """Send it a line; ignored if it has exited."""
    pipe = process.stdin
    if pipe is not None:
        with suppress(BrokenPipeError):
            pipe.write(line.encode() + b"\n")
            pipe.flush()


def read_line(process: "subprocess.Popen[bytes]", deadline: float) -> str:
    """Its next line before the deadline (`time.monotonic`); empty if it exits or is late."""
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
    """Close the pipes of a finished process."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()
