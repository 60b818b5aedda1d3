"""A user's own command: a list of arguments, filled with the values of a row. Never a shell."""

import os
import selectors
import shlex
import string
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from console.catalog import audit
from console.catalog.audit import Outcome, Subject
from console.clock import elapsed
from console.config.passwords import COMMAND_SECONDS
from console.config.programs import program
from console.errors import RefusedError, UsageError

MESSAGE, QUEUE, FINDING = "message", "queue", "finding"
_OF_QUEUE = ("connection", "schema", "queue")
PLACEHOLDERS: Mapping[str, tuple[str, ...]] = {
    QUEUE: _OF_QUEUE,
    FINDING: (*_OF_QUEUE, "code", "summary"),
    MESSAGE: (
        *_OF_QUEUE,
        *("id", "state", "pushed_at", "due_at", "claimed_at", "claimed_by", "done_at", "attempts"),
        "error",
    ),
}
"""What a command is about -> the values that it can name. Times are ISO 8601, UTC."""
LONGEST_SECONDS = 600.0
DEFAULT_SECONDS = f"{COMMAND_SECONDS:.0f}s"
_MOST_BYTES = 1_000_000
"""Of its output; the rest is read and dropped."""
_CHUNK_BYTES = 65_536

Values = Mapping[str, object]
"""By the names of PLACEHOLDERS; None: not known, or the row has none."""


@dataclass(frozen=True)
class OwnCommand:
    name: str
    key: str
    on: str
    """One of PLACEHOLDERS."""
    words: tuple[str, ...]
    seconds: float
    """After that it is ended."""

    def arguments(self, values: Values) -> list[str]:
        """RefusedError where the row lacks a value, or a value would be read as an option."""
        return [_filled(word, values) for word in self.words]


def placeholders(word: str) -> Iterator[str]:
    """The names in braces. ValueError where a brace is not closed."""
    for _, name, form, conversion in string.Formatter().parse(word):
        if name is not None:
            yield name if not (form or conversion) else f"{name}:{form}"


def _filled(word: str, values: Values) -> str:
    filled = ""
    for literal, name, _, _ in string.Formatter().parse(word):
        filled += literal
        if name is not None:
            filled += _text(name, values.get(name))
    # What others have written may not become an option.
    if filled.startswith("-") and not word.startswith("-"):
        raise RefusedError(
            "Nothing was run.",
            why=f"The value {filled!r} begins with -: the program would take it for an option.",
            next_step="Write it behind an option in the configuration: --id={id}",
        )
    return filled


def _text(name: str, value: object) -> str:
    if value is None:
        raise RefusedError("Nothing was run.", why=f"This row has no {name}.")
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return str(value)


def run(command: OwnCommand, words: list[str], subject: tuple[str, str, str]) -> str:
    """Its output, also that of a program that failed. `subject`: connection, schema, queue; for
    this machine's audit. UsageError where it cannot be run."""
    line = shlex.join(words)
    connection, schema, queue = subject
    of = Subject(f"own command {command.name}", schema, queue, connection, detail=line)
    try:
        with program(
            words, os.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as running:
            printed = _output(running, command.seconds)
    except subprocess.TimeoutExpired:
        audit.log_locally(of, Outcome.STOPPED)
        why = f"It did not end within {command.seconds:g} s, and was killed."
        raise UsageError(f"{command.name} was stopped.", why=why) from None
    except (OSError, ValueError) as error:
        audit.log_locally(of, Outcome.FAILED)
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{words[0]} cannot be run.", why=why) from None
    audit.log_locally(of, Outcome.FAILED if running.returncode else Outcome.DONE)
    text = printed[:_MOST_BYTES].decode(errors="replace")
    cut = "\n... (cut)" if len(printed) > _MOST_BYTES else ""
    ended = f"\n(exit {running.returncode})" if running.returncode else ""
    return f"{text}{cut}{ended}"


def _output(running: subprocess.Popen[bytes], seconds: float) -> bytes:
    """At most a byte more than is shown, so that it is known to be cut. TimeoutExpired."""
    pipe: Any = running.stdout
    printed, deadline = b"", elapsed() + seconds
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while selector.select(max(0.0, deadline - elapsed())):
            if not (chunk := os.read(pipe.fileno(), _CHUNK_BYTES)):
                break
            printed += chunk[: _MOST_BYTES + 1 - len(printed)]
    running.wait(max(0.0, deadline - elapsed()))
    return printed
