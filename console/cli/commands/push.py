"""Push one or more messages.

`-` reads one message from stdin (without a final newline), with --lines one per line.
An empty stdin usually means that an earlier command in the pipe failed: exit 2, and nothing is
pushed, unless --allow-empty. A full queue is exit 1.

\b
Examples:
  dbq-console push orders '{"id": 1}'
  dbq-console push timers '{"id": 1}' --due 10m
  seq 100000 | dbq-console push orders - --lines --wait 10s
"""

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

from console.actions import push as pushing
from console.catalog import Queue
from console.cli.command import NAME
from console.cli.context import Call
from console.cli.streams import input_lines, input_message, narrate
from console.errors import UsageError
from console.formats import numbered
from console.verbs.parameters import Parameter
from console.verbs.push_pop import PUSH


def _run(  # noqa: PLR0913  # a verb's options
    call: Call,
    *,
    name: str,
    payload: str,
    lines: bool,
    wait: float,
    due: str | None,
    title: str | None,
    own_id: str | None,
    allow_empty: bool,
) -> None:
    if lines and payload != "-":
        raise UsageError("--lines goes with -, which reads stdin.")
    if allow_empty and payload != "-":
        raise UsageError("--allow-empty goes with -, which reads stdin.")
    if lines and own_id is not None:
        raise UsageError("--id is for one message: it does not go with --lines.")
    more = pushing.PushExtras.read(due, title, own_id)
    database = call.database()
    queue = call.find(database, name)
    if lines:
        given = input_lines() if allow_empty else _not_empty(input_lines())
        payloads = (_payload(line, queue) for line in given)
        pushed = pushing.push_all(database, queue, payloads, wait, more)
        call.answer(
            {"stored": pushed.stored, "full": pushed.full},
            [f"{numbered(pushed.stored, 'message')} stored"],
        )
        if pushed.full:
            why = pushing.why_not_stored(database, queue)
            rest = f"lines from {pushed.stored + 1:,} on were not stored"
            narrate(f"The queue {name!r} is {why}: {rest}.")
            sys.exit(1)
        return
    raw = _message_of_stdin(allow_empty) if payload == "-" else _argument(payload)
    pushed_id = pushing.push_waiting(database, queue, _payload(raw, queue), wait, more)
    call.answer({"id": pushed_id}, [] if pushed_id is None else [pushed_id])
    if pushed_id is None:
        why = pushing.why_not_stored(database, queue)
        narrate(f"The queue {name!r} is {why}: the message was not stored.")
        sys.exit(1)


def _message_of_stdin(allow_empty: bool) -> bytes:
    found = input_message()
    if found is None and not allow_empty:
        raise _empty_input()
    return found or b""


def _not_empty(lines: Iterator[bytes]) -> Iterable[bytes]:
    first = next(lines, None)
    if first is None:
        raise _empty_input()
    return chain([first], lines)


def _empty_input() -> UsageError:
    return UsageError(
        "Nothing was pushed: stdin is empty.",
        why="The command that should have written to it may have failed.",
        next_step="To push an empty message, use --allow-empty.",
    )


def _argument(payload: str) -> bytes:
    """The bytes that the shell passed."""
    try:
        return os.fsencode(payload)
    except UnicodeEncodeError:
        raise UsageError("The payload is not valid Unicode.") from None


def _payload(data: bytes, queue: Queue) -> pushing.Payload:
    if queue.options.get("payload") == "bytes":
        return data
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(
            "The payload is not valid UTF-8.",
            why=f"Byte {error.start + 1:,} cannot be read as text.",
            next_step="Use a queue with payload=bytes.",
        ) from None


_PARAMETERS = (
    NAME,
    Parameter("lines", "With -: one message per line, in order.", is_flag=True),
    Parameter("allow-empty", "With -: push an empty stdin as a message.", is_flag=True),
    *PUSH.parameters,
)
COMMAND = replace(PUSH, run=_run, help=__doc__, parameters=_PARAMETERS)
