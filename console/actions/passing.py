"""Messages in and out by hand, as works: push, pop."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from console.actions import pop, push
from console.actions.audit import Outcome
from console.actions.execute import Control
from console.actions.ledger import Ledger
from console.actions.work import Asked, Counted, Ended, Planned, Site, Tell, Told, whole
from console.errors import UsageError
from console.formats import parse_duration


def pushed(site: Site, asked: Asked, progress: Counted) -> Planned:
    del progress
    push.require_interface(site.queue)
    text = asked.text("payload")
    raw = text.encode()
    payload = raw if site.queue.options.get("payload") == "bytes" else text
    wait = parse_duration(asked.text("wait") or "0s")

    def do(control: Control, tell: Tell) -> Ended:
        del control, tell
        pushed = push.push_waiting(site.database, site.queue, payload, wait)
        if pushed is None:
            full = f"{site.queue.label} is full: the message was not stored"
            return Ended(Outcome.FAILED, (full,), Ledger(1, failed={"the queue is full": 1}))
        return Ended(Outcome.DONE, (f"stored, its id is {pushed}",), Ledger(1, 1, 1))

    lines = [
        f"push one message into {site.queue.label} (design {site.queue.design.name})",
        f"  its payload has {len(raw):,} bytes; consumers get it at once",
    ]
    return replace(whole(site, "push", lines, do), count=1)


def popped(site: Site, asked: Asked, progress: Counted) -> Planned:
    """Into a file: what a design deletes at pop is there before it is gone from here."""
    del progress
    push.require_interface(site.queue)
    path = str(Path(asked.text("file")).expanduser()) if asked.text("file") else ""
    count = asked.number("count") or 1
    failure = asked.text("fail")
    if not path:
        raise UsageError("pop wants the file into which the payloads are written.")
    if asked.flag("complete") and failure:
        raise UsageError("--complete and --fail exclude each other.")
    finish = pop.Finish.FAIL if failure else pop.Finish.NOTHING
    finish = pop.Finish.COMPLETE if asked.flag("complete") else finish
    if finish is not pop.Finish.NOTHING and not site.queue.finishes:
        raise UsageError(f"The queue {site.queue.name!r} keeps no popped messages to finish.")

    def do(control: Control, tell: Tell) -> Ended:
        del control
        with _PayloadFile(path) as written:

            def deliver(messages: Sequence[pop.Message]) -> None:
                written.write(messages)
                tell(Told(written.count, count))

            wait = parse_duration(asked.text("wait") or "0s")
            done = pop.pop(
                site.database,
                site.queue,
                deliver,
                count=count,
                wait_seconds=wait,
                consumer="dbq-console",
                finish=finish,
                error=failure,
            )
        n = done.delivered
        lines = [f"popped {n:,}, written to {path}" if n else "there is nothing to pop now"]
        if finish is not pop.Finish.NOTHING:
            lines.append(f"  {done.finished:,} claims finished")
        return Ended(Outcome.DONE, tuple(lines), Ledger(n, n, n))

    after = {
        pop.Finish.NOTHING: "they stay claimed" if site.queue.finishes else "they leave the queue",
        pop.Finish.COMPLETE: "they are completed once they are written",
        pop.Finish.FAIL: "they become errors once they are written",
    }
    lines = [
        f"pop {count:,} messages of {site.queue.label} (design {site.queue.design.name}), at most",
        f"  their payloads are added to {path}, one a line; {after[finish]}",
    ]
    return replace(whole(site, "pop", lines, do), count=count)


class _PayloadFile:
    """Payloads one a line, on the disk when `write` returns. Nobody else may read it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.count = 0

    def __enter__(self) -> "_PayloadFile":
        try:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise UsageError(
                f"{self._path!r} cannot be written.", why=error.strerror or ""
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def write(self, messages: Sequence[pop.Message]) -> None:
        texts = [
            m.payload if isinstance(m.payload, bytes) else m.payload.encode() for m in messages
        ]
        rest = memoryview(b"".join(text + b"\n" for text in texts))
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
            os.fsync(self._descriptor)
        except OSError as error:
            raise UsageError(
                f"{self._path!r} could not be written.", why=error.strerror or ""
            ) from error
        self.count += len(messages)
