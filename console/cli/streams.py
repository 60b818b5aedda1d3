"""The standard streams: results on stdout, narration on stderr, messages from stdin; signals."""

import errno
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import BinaryIO, TextIO

import click

from console.errors import ConsoleError, UsageError
from console.formats import plain_lines


class Stopped(KeyboardInterrupt):
    """SIGTERM or SIGHUP, handled like Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def status_of(stop: KeyboardInterrupt) -> int:
    """The exit status, as shells report it."""
    return 128 + (stop.number if isinstance(stop, Stopped) else signal.SIGINT)


@contextmanager
def stop_requested() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set, for verbs that run until then."""
    stop = threading.Event()
    with signals_handled(lambda _: stop.set()):
        yield stop


@contextmanager
def signals_handled(
    handler: Callable[[int], None],
    signals: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM),
    *,
    once: bool = False,
) -> Iterator[None]:
    """Ctrl-C and SIGTERM call the handler instead; `once`: only the first of each."""
    before = {number: signal.getsignal(number) for number in signals}

    def handle(number: int, _: FrameType | None) -> None:
        if once:
            signal.signal(number, before[signal.Signals(number)])
        handler(number)

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


class OutputError(ConsoleError):
    """The result could not be written; the verb has undone what it can."""


def put(result: bytes | str) -> None:
    """Write a part of the result to stdout and flush it.

    Bytes are written as they are; characters that the stream's encoding lacks are escaped.
    After a failure nothing more is written, not even what was buffered.
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
        closed.exit_status = 128 + signal.SIGPIPE  # as shells report a broken pipe
        raise closed from None
    except OSError as error:
        raise unwritten(error) from error
    except KeyboardInterrupt:
        _drop(out)
        raise


def unwritten(error: OSError) -> OutputError:
    """The failure of a write to stdout; nothing more is written, not even what was buffered."""
    if sys.stdout is not None:
        _drop(sys.stdout)
    return OutputError("The result could not be written.", why=error.strerror or "")


def put_script(script: str) -> None:
    """Exactly as it is for a program; a terminal shows control characters of names."""
    out = sys.stdout
    put(plain_lines(script) if out is not None and out.isatty() else script.encode())


def _write_all(out: BinaryIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        # Unbuffered (PYTHONUNBUFFERED), a signal or a closed pipe may cut a write short.
        written = out.write(rest)
        if not written:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        rest = rest[written:]
    out.flush()


def json_line(value: object) -> str:
    """One line of JSON, with characters escaped that a terminal would execute or hide."""
    text = json.dumps(value, ensure_ascii=False)
    return _CONTROLS.sub(lambda sign: f"\\u{ord(sign[0]):04x}", text)


# Invisible characters of Unicode with an effect on terminals; JSON itself escapes the others.
_CONTROLS = re.compile(
    "[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff]"
)


def narrate(text: str) -> None:
    """Write a message to stderr, with control characters made visible."""
    try:
        click.echo(plain_lines(text), err=True)
    except OSError:
        _drop(sys.stderr)


LINE_SECONDS = 2.0
"""Between two lines of progress, unless stderr is a terminal."""


def on_terminal() -> bool:
    """Whether somebody may watch what is narrated."""
    return sys.stderr is not None and sys.stderr.isatty()


class ThrottledLines:
    """Lines of progress, at most one in so many seconds."""

    def __init__(self, seconds: float = LINE_SECONDS) -> None:
        self._seconds = seconds
        self._next = time.monotonic() + seconds

    def show(self, text: str) -> None:
        """Narrate it, unless the last line is too recent."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._seconds
            narrate(text)


def narrate_interrupt(*notes: str) -> None:
    """Report the interrupt with its notes, on a new line."""
    echoed = on_terminal()  # "^C", without a new line
    narrate(("\n" if echoed else "") + " ".join(("Interrupted.", *notes)))


def input_message() -> bytes | None:
    """All of stdin as one message, without a final newline. None: stdin is empty."""
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
        raise ConsoleError("Stdin cannot be read.", why=error.strerror or "") from error


def _drop(stream: TextIO) -> None:
    """Discard the stream's buffer, so that the exit does not try to write it."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@dataclass
class Answers:
    """The JSON result of one call: what was written, and a plan held back until its end."""

    json: bool | None = None
    """Whether --json was given; None: the arguments are not parsed yet."""
    begun: bool = False
    """Whether a part of the result was written, so that no other may follow."""
    _held: Mapping[str, object] | None = None

    def give(self, value: object) -> None:
        """Write the result now."""
        self.begun = True
        put(json_line(value).encode() + b"\n")

    def hold(self, value: Mapping[str, object]) -> None:
        """Hold a plan back: if it is not run because of an error, both form one object."""
        self._held = value

    def end(self) -> None:
        """Write what is held back."""
        held, self._held = self._held, None
        if held is not None:
            self.give(held)

    def fail(self, error: Mapping[str, object]) -> None:
        """Write the error, together with a plan held back."""
        if self.begun or not (_json_in_arguments() if self.json is None else self.json):
            return
        held, self._held = self._held or {}, None
        with suppress(OutputError):  # a failure of stdout itself is reported on stderr
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
    """The same for an interrupted call."""
    return _object("Interrupted.", exit_status, why=why)


def _object(
    what: str, exit_status: int, *, why: str = "", next_step: str = ""
) -> dict[str, object]:
    return {"what": what, "why": why or None, "next_step": next_step or None, "exit": exit_status}


def _json_in_arguments() -> bool:
    """Whether --json is among the arguments, if click cannot parse them."""
    words = sys.argv[1:]
    return "--json" in words[: words.index("--") if "--" in words else None]
