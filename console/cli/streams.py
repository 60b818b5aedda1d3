"""The three standard streams: the result out, narration beside it, messages in."""

import errno
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import BinaryIO, TextIO

import click

from console.errors import ConsoleError, UsageError
from console.formats import plain_lines


class Stopped(KeyboardInterrupt):
    """SIGTERM or SIGHUP: undone and given back is what Ctrl-C would have undone."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def status_of(stop: KeyboardInterrupt) -> int:
    """The exit status, as a shell says it."""
    return 128 + (stop.number if isinstance(stop, Stopped) else signal.SIGINT)


@contextmanager
def asked_to_end() -> Iterator[threading.Event]:
    """Set by Ctrl-C and SIGTERM: for what goes on until somebody ends it."""
    ended = threading.Event()
    with heard(lambda _: ended.set()):
        yield ended


@contextmanager
def heard(tell: Callable[[int], None], *, once: bool = False) -> Iterator[None]:
    """Ctrl-C and SIGTERM are told and cut nothing off; `once`: the second of a kind does again."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, _: FrameType | None) -> None:
        if once:
            signal.signal(number, before[signal.Signals(number)])
        tell(number)

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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


LINE_SECONDS = 2.0
"""Between two lines of progress, where stderr is no terminal."""


class LinesNowAndThen:
    """How far something is that takes its time."""

    def __init__(self) -> None:
        self._next = time.monotonic() + LINE_SECONDS

    def say(self, text: str) -> None:
        """Narrate it, unless something was a moment ago."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_SECONDS
            narrate(text)


def narrate_interrupt(*notes: str) -> None:
    """Say that it was Ctrl-C, and what is to be known of that, on a line of its own."""
    echoed = sys.stderr is not None and sys.stderr.isatty()  # "^C", without a new line
    narrate(("\n" if echoed else "") + " ".join(("Interrupted.", *notes)))


def whole_input() -> bytes | None:
    """All of stdin as one message: a final newline is not part of it. None: there is nothing."""
    with _stdin() as source:
        data = source.read()
    if not data:
        return None
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


@dataclass
class Answers:
    """What one call has put of its result on stdout, and what it holds back until its end."""

    json: bool | None = None
    """Whether the call said --json; None: its words were not understood so far."""
    begun: bool = False
    """Whether a part of the result is out: then nothing else follows it."""
    _held: Mapping[str, object] | None = None

    def give(self, value: object) -> None:
        """The result, at once."""
        self.begun = True
        put(json_line(value).encode() + b"\n")

    def hold(self, value: Mapping[str, object]) -> None:
        """A plan: why it is not carried out, where that is an error, shall stand in one object
        with it."""
        self._held = value

    def end(self) -> None:
        """Give what is held back."""
        held, self._held = self._held, None
        if held is not None:
            self.give(held)

    def fail(self, error: Mapping[str, object]) -> None:
        """Give the error, with the plan where there is one. What is wrong with stdout is told
        already, or less than this."""
        if self.begun or not (_said_json() if self.json is None else self.json):
            return
        held, self._held = self._held or {}, None
        with suppress(OutputError):
            self.give({**held, "error": error})


def error_json(error: ConsoleError | click.ClickException) -> dict[str, object]:
    """The stable object of an error."""
    if isinstance(error, ConsoleError):
        return _object(error.what, error.exit_status, why=error.why, next_step=error.next_step)
    next_step = ""
    if isinstance(error, click.UsageError) and error.ctx is not None:
        next_step = f"See: {error.ctx.command_path} --help"
    return _object(error.format_message(), error.exit_code, next_step=next_step)


def interrupt_json(exit_status: int, why: str = "") -> dict[str, object]:
    """The same of a call that was cut off from outside."""
    return _object("Interrupted.", exit_status, why=why)


def _object(
    what: str, exit_status: int, *, why: str = "", next_step: str = ""
) -> dict[str, object]:
    return {"what": what, "why": why or None, "next_step": next_step or None, "exit": exit_status}


def _said_json() -> bool:
    """For words that click does not understand: whether --json is among them, before a `--`."""
    words = sys.argv[1:]
    return "--json" in words[: words.index("--") if "--" in words else None]
