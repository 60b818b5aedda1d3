"""Verbs on messages: push, pop, complete, fail."""

import base64
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

import click

from console.actions import pop as popping
from console.actions import push as pushing
from console.catalog import Queue
from console.cli.context import Call, as_command, queue_argument, verb_options
from console.cli.streams import (
    OutputError,
    error_json,
    input_lines,
    input_message,
    interrupt_json,
    json_line,
    narrate,
    put,
    status_of,
)
from console.errors import ConsoleError, UsageError
from console.formats import numbered
from console.rights import Rights
from console.verbs.push_pop import COMPLETE, FAIL, POP, PUSH

_SHOWN_IDS = 3
"""Ids shown of the claims that a pop leaves behind."""


def push(  # noqa: PLR0913  # a verb's options
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
    if lines and payload != "-":
        raise UsageError("--lines goes with -, which reads stdin.")
    if allow_empty and payload != "-":
        raise UsageError("--allow-empty goes with -, which reads stdin.")
    if lines and own_id is not None:
        raise UsageError("--id is for one message: it does not go with --lines.")
    more = pushing.PushExtras.read(due, title, own_id)
    database = call.database(Rights.OPERATOR, "push")
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
            narrate(
                f"The queue {name!r} is full: lines from {pushed.stored + 1:,} on were not stored."
            )
            sys.exit(1)
        return
    raw = _message_of_stdin(allow_empty) if payload == "-" else _argument(payload)
    pushed_id = pushing.push_waiting(database, queue, _payload(raw, queue), wait, more)
    call.answer({"id": pushed_id}, [] if pushed_id is None else [pushed_id])
    if pushed_id is None:
        narrate(f"The queue {name!r} is full: the message was not stored.")
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


def pop(
    call: Call,
    name: str,
    count: int,
    wait: float,
    subscriber: str | None,
    complete: bool,
    failure: str | None,
) -> None:
    """Pop messages and print their payloads unchanged, one per line.

    In --json a payload that is no UTF-8 is in base64, as its "encoding" says.

    A design that deletes commits only once they are written, so a broken pipe loses nothing. One
    that keeps the row leaves them claimed, unless --complete or --fail is given; the verbs
    complete and fail finish them later. Exit 1: nothing to pop.

    \b
    Examples:
      dbq-console pop orders --count 10
      dbq-console pop mail --wait 30s --complete --json
      dbq-console pop events --subscriber billing
    """
    if complete and failure is not None:
        raise UsageError("--complete and --fail exclude each other.")
    finish = popping.Finish.NOTHING
    if complete:
        finish = popping.Finish.COMPLETE
    elif failure is not None:
        finish = popping.Finish.FAIL
    database = call.database(Rights.OPERATOR, "pop")
    queue = call.find(database, name)
    if subscriber is not None:
        queue = queue.of(subscriber)
    writer = _JsonWriter(call) if call.json else _PlainWriter()
    try:
        popped = popping.pop(
            database,
            queue,
            writer.write,
            count=count,
            wait_seconds=wait,
            consumer=f"dbq-console {os.environ.get('USER', '')}".strip(),
            finish=finish,
            error=failure or "",
        )
    except OutputError:
        raise
    except (ConsoleError, KeyboardInterrupt) as error:
        # Messages before the failure are delivered: end the JSON properly.
        if writer.started:
            writer.close(error)
            _narrate_claimed(queue, finish, writer.claims)
        raise
    writer.close()
    _narrate_claimed(queue, finish, writer.claims)
    if finish is not popping.Finish.NOTHING and popped.finished < popped.delivered:
        lost = numbered(popped.delivered - popped.finished, "claim")
        narrate(f"Lost: {lost}, released or claimed by another consumer meanwhile.")
    if not popped.delivered:
        narrate(f"The queue {name!r} {popping.nothing_to_pop(database, queue)}.")
        sys.exit(1)


def _narrate_claimed(
    queue: Queue, finish: popping.Finish, claims: Sequence[popping.ClaimKey]
) -> None:
    """Show the command that finishes the messages left claimed."""
    if not claims or not queue.finishes or finish is not popping.Finish.NOTHING:
        return
    same = {claim.attempts for claim in claims}
    words = [queue.name, *(claim.id for claim in claims[:_SHOWN_IDS])]
    if len(same) == 1:
        words += ["--attempts", str(same.pop())]
    more = " ..." if len(claims) > _SHOWN_IDS else ""
    narrate(
        f"{numbered(len(claims), 'message')} of {queue.name!r} stay claimed until they are "
        "finished. When the work is done (or: fail ... --error TEXT):\n"
        f"  dbq-console complete {shlex.join(words)}{more}"
    )


class _Writer:
    """Writes messages before their commit, and remembers their claims."""

    def __init__(self) -> None:
        self.claims: list[popping.ClaimKey] = []

    @property
    def started(self) -> bool:
        return bool(self.claims)

    def wrote(self, messages: Sequence[popping.PoppedMessage]) -> None:
        self.claims += [popping.ClaimKey(one.id, one.attempts) for one in messages]


class _PlainWriter(_Writer):
    """Each payload unchanged, and a newline."""

    def write(self, messages: Sequence[popping.PoppedMessage]) -> None:
        self.wrote(messages)
        payloads = (message.payload for message in messages)
        put(b"".join((p if isinstance(p, bytes) else p.encode()) + b"\n" for p in payloads))

    def close(self, error: BaseException | None = None) -> None:
        """Nothing to write."""


class _JsonWriter(_Writer):
    """One object, written batch by batch."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self._call = call

    def write(self, messages: Sequence[popping.PoppedMessage]) -> None:
        objects = ", ".join(json_line(_message(m)) for m in messages)
        head = ", " if self.started else '{"messages": ['
        self._call.answers.begun = True
        self.wrote(messages)
        put((head + objects).encode())

    def close(self, error: BaseException | None = None) -> None:
        """End the object, with the error if there was one."""
        self._call.answers.begun = True
        head = "" if self.started else '{"messages": ['
        more = "" if error is None else f', "error": {json_line(_error(error))}'
        put(f"{head}]{more}}}\n".encode())


def _error(error: BaseException) -> Mapping[str, object]:
    if isinstance(error, ConsoleError):
        return error_json(error)
    assert isinstance(error, KeyboardInterrupt)  # noqa: S101  # nothing else is caught
    return interrupt_json(status_of(error))


def _message(message: popping.PoppedMessage) -> dict[str, object]:
    raw = isinstance(message.payload, bytes)
    return {
        "id": message.id,
        "payload": base64.b64encode(message.payload).decode()
        if isinstance(message.payload, bytes)
        else message.payload,
        "encoding": "base64" if raw else "text",
        "pushed_at": message.pushed_at.isoformat(),
        "attempts": message.attempts,
    }


def complete(
    call: Call, name: str, ids: Sequence[str], subscriber: str | None, attempts: int | None
) -> None:
    """Complete claimed messages by id.

    Does what the consumer that popped them would do, in one transaction. Exit 1: one of them was
    not claimed, or no longer by that claim; the others are completed.

    \b
    Examples:
      dbq-console complete mail 4711 4712
      dbq-console complete jobs 6f1f2a30-3c1e-4f0e-9f43-0c8d7a5b1e52 --attempts 1
    """
    _finish(call, name, ids, subscriber, attempts, popping.Finish.COMPLETE)


def fail(
    call: Call,
    name: str,
    ids: Sequence[str],
    error: str,
    subscriber: str | None,
    attempts: int | None,
) -> None:
    """Turn claimed messages into errors by id, for an operator to requeue.

    Does what the consumer that popped them would do, in one transaction. Exit 1: one of them was
    not claimed, or no longer by that claim; the others are errors now.

    \b
    Examples:
      dbq-console fail mail 4711 --error 'no such mailbox'
      dbq-console fail mail 4711 --error 'no such mailbox' --attempts 2 --json
    """
    _finish(call, name, ids, subscriber, attempts, popping.Finish.FAIL, error)


def _finish(
    call: Call,
    name: str,
    ids: Sequence[str],
    subscriber: str | None,
    attempts: int | None,
    how: popping.Finish,
    error: str = "",
) -> None:
    database = call.database(Rights.OPERATOR, how.value)
    queue = call.find(database, name)
    if subscriber is not None:
        queue = queue.of(subscriber)
    claims = popping.claims(database, queue, ids, attempts)
    acted = popping.finish_claims(database, queue, claims, how, error)
    left = [claim.id for claim, was in zip(claims, acted, strict=True) if not was]
    call.answer(
        {
            "queue": queue.name,
            "schema": queue.schema,
            "done": sum(acted),
            "messages": [
                {"id": claim.id, "acted": was} for claim, was in zip(claims, acted, strict=True)
            ],
        },
        [f"{_DID[how]} {sum(acted):,} of {numbered(len(claims), 'message')}"],
    )
    if left:
        by_that = "" if attempts is None else f" with attempts {attempts}"
        narrate(f"No longer claimed{by_that}, left unchanged: {', '.join(left)}.")
        sys.exit(1)


_DID = {popping.Finish.COMPLETE: "completed", popping.Finish.FAIL: "failed"}

_FLAGS_OF_PUSH = (
    click.Option(["--lines"], is_flag=True, help="With -: one message per line, in order."),
    click.Option(["--allow-empty"], is_flag=True, help="With -: push an empty stdin as a message."),
)
COMMANDS = (
    as_command(PUSH, verb_options(push), queue_argument(), *_FLAGS_OF_PUSH),
    as_command(POP, verb_options(pop), queue_argument()),
    as_command(COMPLETE, verb_options(complete), queue_argument()),
    as_command(FAIL, verb_options(fail), queue_argument()),
)
