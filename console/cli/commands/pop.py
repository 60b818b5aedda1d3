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

import base64
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from console.actions import pop as popping
from console.catalog import Queue
from console.cli.command import NAME
from console.cli.context import Call
from console.cli.streams import (
    OutputError,
    error_json,
    interrupt_json,
    json_line,
    narrate,
    put,
    status_of,
)
from console.errors import ConsoleError, UsageError
from console.formats import numbered
from console.verbs.push_pop import POP

_SHOWN_IDS = 3
"""Ids shown of the claims that a pop leaves behind."""


def _run(
    call: Call,
    name: str,
    count: int,
    wait: float,
    subscriber: str | None,
    complete: bool,
    failure: str | None,
) -> None:
    if complete and failure is not None:
        raise UsageError("--complete and --fail exclude each other.")
    finish = popping.Finish.NOTHING
    if complete:
        finish = popping.Finish.COMPLETE
    elif failure is not None:
        finish = popping.Finish.FAIL
    database = call.database()
    queue = call.find(database, name, subscriber=subscriber)
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
    if queue.subscriber:
        words += ["--subscriber", queue.subscriber]
    if len(same) == 1:
        words += ["--attempts", str(same.pop())]
    more = " ..." if len(claims) > _SHOWN_IDS else ""
    narrate(
        f"Claimed until finished: {numbered(len(claims), 'message')} of {queue.name!r}. When the "
        "work is done (or: fail ... --error TEXT):\n"
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
        self.claims += [popping.ClaimKey(message.id, message.attempts) for message in messages]


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


COMMAND = replace(POP, run=_run, help=__doc__, parameters=(NAME, *POP.parameters))
