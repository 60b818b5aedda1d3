"""Processes of a test: programs in other languages, and workers that are killed at work."""

import multiprocessing
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any


@contextmanager
def foreign_process(
    words: Sequence[str], more: Mapping[str, str], folder: Path | None = None
) -> Iterator["subprocess.Popen[str]"]:
    """A program with `more` in its environment and stderr on stdout; killed at the end."""
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
_IMPORTED: list[str] = []


def forking_with(module: str) -> ForkServerContext:
    """Forks processes with this module imported too, which would take a new process a second."""
    _IMPORTED.append(module)
    _FORKING.set_forkserver_preload(_IMPORTED)
    return _FORKING


_PATIENCE_SECONDS = 120.0


def killed(work: Callable[..., object], *arguments: Any, number: int = 1) -> list[Any]:
    """Run `work(*arguments, pipe)` in a process; kill it after `number` reports and return them."""
    receiver, sender = _FORKING.Pipe(duplex=False)
    process = _FORKING.Process(target=work, args=(*arguments, sender), daemon=True)
    with closing(receiver):
        process.start()
        sender.close()
        try:
            reports = []
            for _ in range(number):
                assert receiver.poll(_PATIENCE_SECONDS), "it has reported nothing"
                reports.append(receiver.recv())
        finally:
            process.kill()
            process.join()
    assert process.exitcode == -signal.SIGKILL
    return reports
