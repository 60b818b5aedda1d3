"""A worker in a process of its own, which is killed in the midst of its jobs."""

import multiprocessing
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def foreign_process(
    words: Sequence[str], more: Mapping[str, str], folder: Path | None = None
) -> Iterator["subprocess.Popen[str]"]:
    """It has `more` in its environment, what it writes comes by stdout, and it is killed."""
    with subprocess.Popen(
        words,
        cwd=folder,
        env={**os.environ, **more},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


_FORKING = multiprocessing.get_context("forkserver")
_PATIENCE_SECONDS = 120.0


def killed(work: Callable[..., object], *given: Any, number: int = 1) -> list[Any]:
    """What it told, `number` times; `work` gets what is given, and the pipe to tell it by."""
    ours, theirs = _FORKING.Pipe(duplex=False)
    process = _FORKING.Process(target=work, args=(*given, theirs), daemon=True)
    with closing(ours):
        process.start()
        theirs.close()
        try:
            found = []
            for _ in range(number):
                assert ours.poll(_PATIENCE_SECONDS), "it has said nothing"
                found.append(ours.recv())
        finally:
            process.kill()
            process.join()
    assert process.exitcode == -signal.SIGKILL
    return found
