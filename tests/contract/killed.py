"""A worker in a process of its own, which is killed in the midst of its jobs."""

import multiprocessing
import signal
from collections.abc import Callable
from contextlib import closing
from typing import Any

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
