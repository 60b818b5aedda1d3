"""Programs that the configuration names: a password's, a receiver's."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress


@contextmanager
def program(
    words: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.DEVNULL,
    stderr: int = subprocess.DEVNULL,
) -> "Iterator[subprocess.Popen[bytes]]":
    """Run another program, without a shell. If the body fails, it is killed
    with all its children."""
    with subprocess.Popen(
        words,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=dict(environment),
        start_new_session=True,
    ) as running:
        try:
            yield running
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            raise
