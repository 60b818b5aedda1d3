"""The three standard streams: the result out, narration beside it, messages in."""

import errno
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, TextIO

import click

from console.errors import ConsoleError, UsageError
from console.formats import plain_lines


class OutputError(ConsoleError):
    """The result could not be written; what its verb could undo is undone."""


def put(result: bytes | str) -> None:
    """Write a part of the result to stdout; on return it has left this process.

    Bytes go out as they are; of a text, what the stream's encoding lacks goes out as an escape.
    After a failure nothing more of the result goes out, not even what was buffered.
    """
    out = sys.stdout
    if out is None:
        raise OutputError("The result cannot be written: stdout is closed.")
    data = result if isinstance(result, bytes) else result.encode(out.encoding, "backslashreplace")
    try:
        _write_all(out.buffer, data)
    except BrokenPipeError:
        _drop(out)
        closed = OutputError("The output was closed before everything was written.")
        closed.exit_status = 128 + signal.SIGPIPE  # what a shell says of any program in such a pipe
        raise closed from None
    except OSError as error:
        _drop(out)
        raise OutputError("The result could not be written.", why=error.strerror or "") from error
    except KeyboardInterrupt:
        _drop(out)
        raise


def _write_all(out: BinaryIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        # Unbuffered (PYTHONUNBUFFERED), it takes a part where a signal or a closed pipe ends it.
        taken = out.write(rest)
        if not taken:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        rest = rest[taken:]
    out.flush()


def json_line(value: object) -> str:
    """One line of JSON. What a terminal would obey or hide is an escape: the value is the same."""
    text = json.dumps(value, ensure_ascii=False)
    return _OBEYED.sub(lambda sign: f"\\u{ord(sign[0]):04x}", text)


# Unicode's signs that have no place, but on a terminal do something; JSON itself escapes the rest.
_OBEYED = re.compile(
    "[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff]"
)


def narrate(text: str) -> None:
    """A word to the person at the terminal; never part of the result.

    Names and a driver's words are in it: what a terminal would obey is made visible.
    """
    try:
        click.echo(plain_lines(text), err=True)
    except OSError:
        _drop(sys.stderr)


def narrate_interrupt(*notes: str) -> None:
    """Say that it was Ctrl-C, and what is to be known of that, on a line of its own."""
    echoed = sys.stderr is not None and sys.stderr.isatty()  # "^C", without a new line
    narrate(("\n" if echoed else "") + " ".join(("Interrupted.", *notes)))


def whole_input() -> bytes:
    """All of stdin as one message: a final newline is not part of it."""
    with _stdin() as source:
        data = source.read()
    return data[:-1] if data.endswith(b"\n") else data


def input_lines() -> Iterator[bytes]:
    """The lines of stdin, without their newlines."""
    with _stdin() as source:
        for line in source:
            yield line[:-1] if line.endswith(b"\n") else line


@contextmanager
def _stdin() -> Iterator[BinaryIO]:
    if sys.stdin is None:
        raise UsageError("There is nothing to read: stdin is closed.")
    try:
        yield sys.stdin.buffer
    except OSError as error:
        raise UsageError("Stdin cannot be read.", why=error.strerror or "") from error


def _drop(stream: TextIO) -> None:
    """What is still in the stream's buffer goes nowhere: the exit shall not try it again."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
