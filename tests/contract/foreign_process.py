"""A program of another language, at work on a database."""

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


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
