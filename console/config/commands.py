"""Programs that the configuration names: `command:PROGRAM ...`, run without a shell."""

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from console.config.kinds import WrongValueError

COMMAND_SECONDS = 60.0
"""How long a command may take: somebody may have to unlock a key."""


def command_words(text: str) -> tuple[str, ...]:
    """What comes after `command:`. Raises WrongValueError."""
    try:
        words = tuple(shlex.split(text))
    except ValueError:
        raise WrongValueError('wants "command:PROGRAM ..."; a quote is not closed') from None
    if not words:
        raise WrongValueError('wants "command:PROGRAM ..."')
    return words


def output(words: tuple[str, ...], environment: Mapping[str, str]) -> tuple[str, str]:
    """What it prints, or why there is nothing. Its complaints are shown nowhere.

    No error leaves this: those of `subprocess` hold the output, which may be a password.
    """
    try:
        with _process(words, environment) as running:
            printed, _ = running.communicate(timeout=COMMAND_SECONDS)
    except (OSError, ValueError) as error:
        return "", f"cannot be run: {getattr(error, 'strerror', None) or 'it holds NUL'}"
    except subprocess.TimeoutExpired:
        return "", f"did not end within {COMMAND_SECONDS:g} s"
    if running.returncode:
        return "", f"ended with exit status {running.returncode}"
    try:
        return printed.decode(), ""
    except UnicodeDecodeError:
        return "", "printed what is not UTF-8"


@contextmanager
def _process(
    words: tuple[str, ...], environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """The running command, which ends with all that it started, however this ends."""
    with subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
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
