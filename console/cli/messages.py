"""Verbs on messages: push, pop."""

import base64
import os
import sys
from collections.abc import Sequence

import click

from console.actions import pop as popping
from console.actions import push as pushing
from console.catalog import Queue
from console.cli.context import DURATION, Call, Rights, verb_options
from console.cli.streams import OutputError, input_lines, json_line, narrate, put, whole_input
from console.errors import ConsoleError, UsageError


@click.command()
@click.argument("name")
@click.argument("payload", metavar="[PAYLOAD | -]", required=False)
@click.option("--lines", is_flag=True, help="With -: one message a line, in order.")
@click.option("--wait", type=DURATION, default="0s", help="How long to try where it is full.")
@verb_options
def push(call: Call, name: str, payload: str | None, lines: bool, wait: float) -> None:
    """Push a message, or many.

    `-` reads one message from stdin (a final newline is not part of it), with --lines one a line.
    A queue that is full is exit 1.

    \b
    Examples:
      dbq-console push orders '{"id": 1}'
      seq 100000 | dbq-console push orders - --lines --wait 10s
    """
    if payload is None:
        raise UsageError("No payload is given.", next_step="Give it, or - to read it from stdin.")
    if lines and payload != "-":
        raise UsageError("--lines goes with -, which reads stdin.")
    database = call.database(Rights.OPERATOR, "push")
    queue = call.find(database, name)
    if lines:
        payloads = (_payload(line, queue) for line in input_lines())
        pushed = pushing.push_all(database, queue, payloads, wait)
        call.answer(
            {"stored": pushed.stored, "full": pushed.full}, [f"{pushed.stored:,} messages stored"]
        )
        if pushed.full:
            narrate(
                f"The queue {name!r} is full: those from line {pushed.stored + 1:,} on are not in."
            )
            sys.exit(1)
        return
    raw = whole_input() if payload == "-" else _argument(payload)
    pushed_id = pushing.push_waiting(database, queue, _payload(raw, queue), wait)
    call.answer({"id": pushed_id}, [] if pushed_id is None else [pushed_id])
    if pushed_id is None:
        narrate(f"The queue {name!r} is full: the message was not stored.")
        sys.exit(1)


def _argument(payload: str) -> bytes:
    """The bytes that the shell handed over."""
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
            next_step="Use a queue with payload=bytes for it.",
        ) from None


@click.command()
@click.argument("name")
@click.option("--count", type=click.IntRange(min=1), default=1, help="How many, at most.")
@click.option("--wait", type=DURATION, default="0s", help="How long to wait for the first one.")
@click.option("--complete", is_flag=True, help="Finish the claims once they are written out.")
@click.option("--fail", "failure", metavar="TEXT", help="Turn the claims into errors instead.")
@verb_options
def pop(
    call: Call, name: str, count: int, wait: float, complete: bool, failure: str | None
) -> None:
    """Pop messages and print their payloads as they are, one a line.

    A design that deletes commits only when they are written, so a broken pipe loses nothing; one
    that keeps the row leaves them claimed unless --complete or --fail says more. Exit 1: nothing.

    \b
    Examples:
      dbq-console pop orders --count 10
      dbq-console pop mail --wait 30s --complete --json
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
    writer = _JsonWriter() if call.json else _PlainWriter()
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
    except (ConsoleError, KeyboardInterrupt):
        # What came before the failure is delivered: it shall be readable.
        if writer.started:
            writer.close()
        raise
    writer.close()
    if finish is not popping.Finish.NOTHING and popped.finished < popped.delivered:
        narrate(
            f"{popped.delivered - popped.finished:,} claims were no longer ours: "
            "somebody released or took them meanwhile."
        )
    if not popped.delivered:
        narrate(f"The queue {name!r} has nothing to pop now.")
        sys.exit(1)


class _PlainWriter:
    """Each payload as it is and a newline; what was delivered is out before the commit."""

    started = False

    def write(self, messages: Sequence[popping.Message]) -> None:
        self.started = True
        payloads = (message.payload for message in messages)
        put(b"".join((p if isinstance(p, bytes) else p.encode()) + b"\n" for p in payloads))

    def close(self) -> None:
        """Nothing follows the last message."""


class _JsonWriter:
    """One object, written batch by batch: what was delivered is out before the commit."""

    started = False

    def write(self, messages: Sequence[popping.Message]) -> None:
        objects = ", ".join(json_line(_message(m)) for m in messages)
        head = ", " if self.started else '{"messages": ['
        self.started = True
        put((head + objects).encode())

    def close(self) -> None:
        put(b"]}\n" if self.started else b'{"messages": []}\n')


def _message(message: popping.Message) -> dict[str, object]:
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


COMMANDS = (push, pop)
