"""Messages in and out by hand: push, pop, complete, fail."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from console.actions import pop, push
from console.catalog import Queue
from console.catalog.audit import Ledger, Outcome
from console.errors import ConsoleError, UsageError
from console.formats import numbered
from console.plan import Control, OnProgress, Plan, Progress, Result, single_step
from console.verbs.command import Params
from console.verbs.parameters import SUBSCRIBER, WAIT, Parameter, Placement, WholeNumber, argument
from console.verbs.verb import Target, Verb

_SHOWN_IDS = 5


def _plan_push(target: Target, values: Params) -> Plan:
    push.require_interface(target.queue)
    text: str = values["payload"]
    raw = text.encode()
    payload = raw if target.queue.options.get("payload") == "bytes" else text
    more = push.PushExtras.read(values["due"], values["title"], values["own_id"])
    more.require_supported(target.queue)
    when = "when it is due" if "due" in more.given else "at once"
    lines = [
        f"push one message into {target.queue.label} (design {target.queue.design.name})",
        f"  its payload has {len(raw):,} bytes; consumers get it {when}",
    ]
    run = single_step(_push, target, payload, values["wait"], more)
    return target.planned("push", lines, run, count=1)


def _push(target: Target, payload: push.Payload, wait: float, more: push.PushExtras) -> Result:
    pushed = push.push_waiting(target.database, target.queue, payload, wait, more)
    if pushed is None:
        why = push.why_not_stored(target.database, target.queue)
        line = f"{target.queue.label} is {why}: the message was not stored"
        return Result(Outcome.FAILED, (line,), Ledger(1, failed={f"the queue is {why}": 1}))
    return Result(Outcome.DONE, (f"stored, its id is {pushed}",), Ledger(1, 1, 1))


def _plan_pop(target: Target, values: Params) -> Plan:
    """Messages are written to a file before the pop commits, if the design deletes them at pop."""
    push.require_interface(target.queue)
    if not values["file"]:
        raise UsageError("pop needs a file to write the payloads to.")
    target = target.for_subscriber(values)
    pop.require_subscriber(target.queue)
    path = str(Path(values["file"]).expanduser())
    finish = finish_of(values)
    if finish is not pop.Finish.NOTHING and not target.queue.finishes:
        raise UsageError(f"The queue {target.queue.name!r} keeps no popped messages to complete.")
    after = {
        pop.Finish.NOTHING: "they stay claimed"
        if target.queue.finishes
        else "they leave the queue",
        pop.Finish.COMPLETE: "they are completed once they are written",
        pop.Finish.FAIL: "they become errors once they are written",
    }
    count: int = values["count"]
    lines = [
        f"pop {numbered(count, 'message')} of {target.queue.label} (design "
        f"{target.queue.design.name}), "
        "at most",
        f"  their payloads are appended to {path}, one per line; {after[finish]}",
    ]
    run = partial(_pop, target, path, finish, values)
    return target.planned("pop", lines, run, count=count)


def finish_of(values: Params) -> pop.Finish:
    """From --complete and --fail. UsageError."""
    if values["complete"] and values["failure"]:
        raise UsageError("--complete and --fail exclude each other.")
    if values["complete"]:
        return pop.Finish.COMPLETE
    return pop.Finish.FAIL if values["failure"] else pop.Finish.NOTHING


def _pop(
    target: Target,
    path: str,
    finish: pop.Finish,
    values: Params,
    control: Control,
    on_progress: OnProgress,
) -> Result:
    del control
    with _PayloadFile(path) as file:

        def deliver(messages: Sequence[pop.PoppedMessage]) -> None:
            file.write(messages)
            on_progress(Progress(file.count, values["count"]))

        done = pop.pop(
            target.database,
            target.queue,
            deliver,
            count=values["count"],
            wait_seconds=values["wait"],
            consumer="dbq-console",
            finish=finish,
            error=values["failure"] or "",
        )
    n = done.delivered
    if n:
        lines = [f"popped {n:,}, written to {path}"]
    else:
        lines = [f"it {pop.nothing_to_pop(target.database, target.queue)}"]
    if finish is not pop.Finish.NOTHING:
        lines.append(f"  {numbered(done.finished, 'claim')} finished")
    return Result(Outcome.DONE, tuple(lines), Ledger(n, n, n))


class _PayloadFile:
    """A file of payloads, one a line, synced to disk by `write`; readable by its owner only."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.count = 0

    def __enter__(self) -> "_PayloadFile":
        try:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConsoleError(
                f"{self._path!r} cannot be written.", why=error.strerror or ""
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def write(self, messages: Sequence[pop.PoppedMessage]) -> None:
        texts = [
            m.payload if isinstance(m.payload, bytes) else m.payload.encode() for m in messages
        ]
        rest = memoryview(b"".join(text + b"\n" for text in texts))
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
            os.fsync(self._descriptor)
        except OSError as error:
            raise ConsoleError(
                f"{self._path!r} could not be written.", why=error.strerror or ""
            ) from error
        self.count += len(messages)


def _plan_finish(how: pop.Finish, target: Target, values: Params) -> Plan:
    """complete and fail: finish single messages instead of the consumer that popped them."""
    attempts: int | None = values["attempts"]
    target = target.for_subscriber(values)
    claims = pop.claims(target.database, target.queue, values["ids"], attempts)
    ids = [claim.id for claim in claims]
    stays = "they stay, as done" if "done" in target.queue.states else "they leave the queue"
    after = stays if how is pop.Finish.COMPLETE else "they wait as errors for an operator"
    by_that = "" if attempts is None else f" and their claim has the number {attempts}"
    lines = [
        f"{how.value} {numbered(len(ids), 'message')} of {target.queue.label}"
        f"{target.queue.subscriber_suffix}",
        f"  {', '.join(ids[:_SHOWN_IDS])}{', ...' if len(ids) > _SHOWN_IDS else ''}",
        f"  those still claimed by then{by_that}: {after}",
        "  the consumer that popped them can no longer finish them",
    ]
    run = single_step(_finish, target, how, claims, values.get("error") or "")
    return target.planned(how.value, lines, run, count=len(ids))


def _finish(target: Target, how: pop.Finish, claims: Sequence[pop.ClaimKey], error: str) -> Result:
    acted = pop.finish_claims(target.database, target.queue, claims, how, error)
    done, n = sum(acted), len(claims)
    left = [claim_key.id for claim_key, was in zip(claims, acted, strict=True) if not was]
    lines = [f"{how.value} {target.queue.label}{target.queue.subscriber_suffix}: {done:,} of {n:,}"]
    lines += [f"  no longer claimed, left unchanged: {', '.join(left)}"] if left else []
    skipped = {"not claimed (any more)": len(left)} if left else {}
    return Result(Outcome.DONE, tuple(lines), Ledger(n, done, done, skipped=skipped), done=done)


def _finishes(queue: Queue) -> bool:
    return queue.finishes


def _push_takes(name: str, queue: Queue) -> bool:
    return name in queue.design.push_takes


PUSH = Verb(
    "push",
    make_plan=_plan_push,
    parameters=(
        argument("payload", "The message.", metavar="(PAYLOAD | -)"),
        WAIT,
        Parameter(
            "due",
            "Design pending: 10m from now, or a time: 2026-03-29T08:00Z.",
            metavar="T",
            applies=partial(_push_takes, "due"),
        ),
        Parameter(
            "title",
            "Designs status and split.",
            metavar="TEXT",
            applies=partial(_push_takes, "title"),
        ),
        Parameter(
            "id",
            "Design claim: its id, instead of a new one.",
            metavar="UUID",
            applies=partial(_push_takes, "id"),
            dest="own_id",
        ),
    ),
    confirmed=False,
)

POP = Verb(
    "pop",
    make_plan=_plan_pop,
    parameters=(
        Parameter(
            "file", "Payloads are appended to it.", placement=Placement.REDIRECTION, required=True
        ),
        Parameter(
            "count", "How many, at most.", WholeNumber(1, 2**63 - 1), default="1", metavar="N"
        ),
        WAIT,
        SUBSCRIBER,
        Parameter(
            "complete",
            "Complete the claims once they are written.",
            is_flag=True,
            applies=_finishes,
        ),
        Parameter(
            "fail",
            "Turn the claims into errors instead.",
            metavar="TEXT",
            applies=_finishes,
            dest="failure",
        ),
    ),
    confirmed=False,
)

_IDS = argument("id", "Of messages that are claimed.", multiple=True, metavar="ID...", dest="ids")
_ATTEMPTS = Parameter(
    "attempts",
    "Only the claim with this number, as returned by pop, not a later one.",
    WholeNumber(1),
    metavar="N",
)

COMPLETE = Verb(
    "complete",
    make_plan=partial(_plan_finish, pop.Finish.COMPLETE),
    parameters=(_IDS, SUBSCRIBER, _ATTEMPTS),
    confirmed=False,
)

FAIL = Verb(
    "fail",
    make_plan=partial(_plan_finish, pop.Finish.FAIL),
    parameters=(
        _IDS,
        Parameter("error", "The error text.", metavar="TEXT", required=True),
        SUBSCRIBER,
        _ATTEMPTS,
    ),
    confirmed=False,
)
