"""Verbs on sessions: consumers, waits."""

import signal
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.cells import cell_len

from console.catalog import Queue
from console.cli.context import Call, aligned, complete_queues, queue_name, verb_options
from console.cli.streams import narrate, signals_handled
from console.engines import Database
from console.formats import count, duration, moment, numbered, plain, rate
from console.monitor import consumers as consumer_text
from console.monitor import waits as labels
from console.monitor.activity import Activity, Key
from console.monitor.consumer_watch import ConsumerWatch
from console.monitor.consumers import (
    NOT_RECORDED,
    Consumer,
    Consumers,
    disconnected,
    latest,
    recorded,
)
from console.monitor.figures import RateWindow, key_of
from console.monitor.recording.recorder import folder
from console.monitor.sample import take_sample
from console.monitor.wait_graph import Node
from console.monitor.waits import Wait, WaitReport, watch
from console.rights import Rights

_CLAIMS_SECONDS = 0.5
"""Between reads of claims; sessions, whose calls are shorter, are read several times as often."""
_HEADS = ("who", "does", "sessions", "connected", "last pop", "last call", "msg/s", "claims")


@click.command()
@queue_name
@click.option(
    "--seconds",
    type=click.FloatRange(0, 3600),
    default=3.0,
    show_default=True,
    metavar="N",
    help="How long to sample; 0: once, without a rate.",
)
@click.option(
    "--recordings",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="The recordings to find disconnected ones in. Default: in this user's state folder.",
)
@verb_options
def consumers(call: Call, name: str, seconds: float, recordings: Path | None) -> None:
    """Show a queue's consumers and producers, now and in the last day.

    They are read from the server's view of its sessions and locks, and from the owners named in
    claims. A session is recognised by a lock, its last statement or a claim; one that calls briefly
    and commits may be missed. Without claims that name a consumer, its last pop and rate are ?,
    with the reason. Disconnected ones come from the recordings.

    \b
    Examples:
      dbq-console consumers orders
      dbq-console consumers orders --seconds 30 --json
    """
    database = call.database(Rights.READ_ONLY, "consumers")
    queue = call.find(database, name)
    if seconds > 0 and not call.json:
        narrate(f"Sampling for {duration(seconds)}.")
    root = recordings or folder()
    seen = latest(recorded(root, database.label, queue.schema, queue.name, datetime.now(UTC)))
    found, samples, pop_rate = _sampled(database, queue, seconds, seen)
    left = disconnected(seen, found.consumers)
    answer = {"connection": database.label, "samples": samples, "pop_per_second": pop_rate}
    answer |= found.as_json() | {"gone": [one.as_json() for one in left], "recorded": bool(seen)}
    heading = f"{queue.name} ({queue.design.name}), {numbered(samples, 'sample')}"
    heading += "" if pop_rate is None else f": {rate(pop_rate)} messages popped a second"
    lines = [heading, *_consumer_lines(found), *_gone_lines(call, left, recorded=bool(seen))]
    call.answer(answer, [plain(line) for line in lines])


def _sampled(
    database: Database, queue: Queue, seconds: float, seen: Sequence[Consumer]
) -> tuple[Consumers, int, float | None]:
    """The consumers, the number of samples, and the queue's pop rate."""
    watch, window = ConsumerWatch(database), RateWindow(queue.design.flow)
    watch.recall(queue, seen)
    ends_at = time.monotonic() + seconds

    def pop_rate() -> float | None:
        sample = take_sample(database, only=[queue])
        (one,) = sample.queues
        at = one.taken_at or sample.taken_at
        return window.add(at, one.row, counts_rows=sample.counts_rows).pop

    samples = 1
    if seconds > 0:
        pop_rate()
    while (left := ends_at - time.monotonic()) > 0:
        watch.sample([queue], {})
        samples += 1 + watch.sample_sessions_for([queue], min(left, _CLAIMS_SECONDS))
    known = pop_rate() if seconds > 0 else None
    return watch.sample([queue], {key_of(queue): known})[key_of(queue)], samples, known


def _consumer_lines(found: Consumers) -> Iterator[str]:
    if found.consumers:
        rows = [_HEADS, *(_row(one, found.at) for one in found.consumers)]
        yield from aligned([[plain(cell) for cell in row] for row in rows], left=2)
        yield from (
            f"  {consumer_text.name(one)}: {consumer_text.client(one)}" for one in found.consumers
        )
    else:
        yield "No session was seen popping or pushing."
    yield from (f"? {why}" for why in consumer_text.unknown_reasons(found.consumers))
    yield from (f"Not visible: {what}: {why}" for what, why in found.missing.items())


def _row(one: Consumer, now: datetime) -> tuple[str, ...]:
    cells = (
        consumer_text.name(one),
        consumer_text.actions(one),
        consumer_text.sessions(one),
        consumer_text.ago(one.since, now),
    )
    seen = (consumer_text.last_pop(one, now), consumer_text.last_call(one, now))
    return (*cells, *seen, consumer_text.rate_estimate(one), consumer_text.claims(one))


def _gone_lines(call: Call, left: Sequence[Consumer], *, recorded: bool) -> Iterator[str]:
    if not recorded:
        yield f"Gone: ? ({NOT_RECORDED})"
        return
    yield f"Gone in the last day: {len(left)}"
    for one in left:
        seen = "" if one.last_seen is None else moment(one.last_seen, call.zone)
        what = f"{consumer_text.actions(one)}, last seen {seen}; {consumer_text.client(one)}"
        yield f"  {consumer_text.name(one)}: {what}"


_WIDTH = 80
_MOST = 8
"""Most trees, waiters of one session, other sessions and waits of a queue; --json has all."""
_DEEPEST = 40
"""Most columns of branches before a line; deeper sessions are only counted."""


@click.command()
@click.argument("name", required=False, shell_complete=complete_queues)
@click.option(
    "--seconds",
    type=click.FloatRange(0, 3600),
    default=5.0,
    show_default=True,
    metavar="N",
    help="How long to sample; 0: once.",
)
@verb_options
def waits(call: Call, name: str | None, seconds: float) -> None:
    """Show which sessions wait for which, and for what: sessions, locks, waits.

    It samples the server's own views several times a second, never a queue, and shows the sessions
    that hold locks on the queue and those connected to them by waiting. Between two
    transactions a session holds no lock and is not visible. Sessions of the console that only read
    are left out. Values in statements are shown as `?`.
    Ctrl-C ends it early and shows the result so far.

    \b
    Examples:
      dbq-console waits
      dbq-console waits orders --seconds 30 --json
    """
    database = call.database(Rights.READ_ONLY, "waits")
    queues = [call.find(database, name)] if name is not None else call.queues(database)
    with _stopped_by_ctrl_c() as stop:
        if seconds > 0 and not call.json:
            narrate(f"Sampling for {duration(seconds)}.")
        report = watch(
            database,
            queues,
            seconds=seconds,
            sleep=lambda seconds: _sleep(seconds, stop),
            stop_requested=stop.is_set,
        )
    call.answer(report.as_json(), list(lines(report, queues, everything=name is None)))
    if stop.is_set():
        raise KeyboardInterrupt


def _sleep(seconds: float, stop: threading.Event) -> None:
    """Sleep, or less if `stop` is set; its wait() could deadlock with a signal handler."""
    ends_at = time.monotonic() + seconds
    while not stop.is_set() and (left := ends_at - time.monotonic()) > 0:
        time.sleep(min(left, 0.05))


@contextmanager
def _stopped_by_ctrl_c() -> Iterator[threading.Event]:
    """The first Ctrl-C sets the event, so that no sample is interrupted; the next one interrupts.

    Another handler of SIGINT, which ignores it for instance, is left in place.
    """
    stop = threading.Event()
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield stop
        return
    with signals_handled(lambda _: stop.set(), (signal.SIGINT,), once=True):
        yield stop


def lines(report: WaitReport, queues: Sequence[Queue], *, everything: bool) -> Iterator[str]:
    """For a terminal. `everything`: no queue was named, so the whole database is included."""
    subject = numbered(len(queues), "queue") if everything else f"{_name(queues[0])}"
    samples = numbered(report.samples, "sample")
    yield from _wrapped("", "", f"{subject}, {samples} in {duration(report.seconds)}")
    if report.samples:
        yield from _tree_lines(report)
        yield from _other_lines(report.activity)
    for queue in queues:
        found = [wait for wait in report.waits if wait.queue == queue]
        if found:
            yield from _wait_lines(f"Waits at {_name(queue)}", found)
    if everything and (found := [wait for wait in report.waits if wait.queue is None]):
        explained = {(wait.kind, wait.wait) for wait in report.waits if wait.queue is not None}
        yield from _wait_lines("Waits in the whole database", found, explained)
    if report.samples:
        yield ""
        for line in labels.horizon_lines(report):
            yield from _wrapped("", "  ", line)
    for why in report.missing.values():
        yield from _wrapped("Not visible: ", "  ", why)


def _name(queue: Queue) -> str:
    return f"{queue.name} ({queue.design.name})"


def _tree_lines(report: WaitReport) -> Iterator[str]:
    """Who waits for whom: each session's wait, identity and statement."""
    activity = report.activity
    yield ""
    if not activity.trees:
        yield "No session waits for another."
        return
    samples = f"{count(report.samples_with_waiters)} of {numbered(report.samples, 'sample')}"
    yield f"Who waits for whom (seen in {samples}):"
    for tree in activity.trees[:_MOST]:
        yield from _node_lines(tree, activity, "", "", ())
    if (more := len(activity.trees) - _MOST) > 0:
        yield f"and {numbered(more, 'tree')} more"


def _node_lines(
    node: Node[Key], activity: Activity, head: str, below: str, parents: Sequence[Key]
) -> Iterator[str]:
    """`head` prefixes its first line, `below` all others; `parents`: the session above it."""
    session = activity.by_key[node.key]
    doing = labels.session_activity(session)
    others = [str(key) for key in session.blocked_by if key not in parents]
    if node.cut:
        doing = f"in a DEADLOCK: {doing}"
    elif others and parents:
        doing += f", and for {labels.first_three(others)}"
    line = below + ("│ " if node.waiters else "  ")
    yield from _wrapped(head, line + "  ", f"{labels.session_title(session)}  {doing}")
    yield from _wrapped(line, line + "  ", labels.session_client(session))
    if session.query:
        yield from _wrapped(line, line + "  ", labels.session_statement(session))
    shown = _MOST if len(below) < _DEEPEST else 0
    hidden = node.waiters[shown:]
    for number, waiter in enumerate(node.waiters[:shown], 1):
        last = number == len(node.waiters)
        yield from _node_lines(
            waiter,
            activity,
            below + ("└─ " if last else "├─ "),
            below + ("   " if last else "│  "),
            (node.key,),
        )
    if hidden:
        yield f"{below}└─ and {numbered(sum(it.size for it in hidden), 'session')} more"


def _other_lines(activity: Activity) -> Iterator[str]:
    """Sessions with locks on the queues that neither wait nor block."""
    bound = {key for session in activity.sessions for key in session.blocked_by}
    others = [s for s in activity.relevant_sessions if not s.blocked_by and s.key not in bound]
    if not others:
        return
    yield ""
    yield "Other sessions with locks there:"
    for session in others[:_MOST]:
        yield from _wrapped(
            "", "    ", f"{labels.session_title(session)}  {labels.session_activity(session)}"
        )
        yield from _wrapped(
            "  ", "    ", f"{labels.session_client(session)}; {labels.lock_summary(session)}"
        )
        if session.query:
            yield from _wrapped("  ", "    ", labels.session_statement(session))
    if (more := len(others) - _MOST) > 0:
        yield f"and {numbered(more, 'session')} more"


def _wait_lines(
    heading: str,
    waits: Sequence[Wait],
    explained: Collection[tuple[str | None, str | None]] = (),
) -> Iterator[str]:
    """Each wait with its amount, and its meaning unless it was explained before."""
    yield ""
    yield from _wrapped("", "", f"{heading}:")
    for wait in waits[:_MOST]:
        yield from _wrapped("  ", "    ", f"{labels.wait_name(wait)}  {labels.wait_amount(wait)}")
        if wait.meaning and (wait.kind, wait.wait) not in explained:
            yield from _wrapped("    ", "    ", wait.meaning)
    if (more := len(waits) - _MOST) > 0:
        yield f"  and {numbered(more, 'wait')} more"


def _wrapped(head: str, below: str, text: str) -> Iterator[str]:
    """The text without control characters, in lines of 80 cells: `head` begins the first, `below`
    the others."""
    line, start = head, True
    for word in _fitting(plain(text).split(" "), _WIDTH - max(cell_len(head), cell_len(below))):
        if not start and cell_len(line) + 1 + cell_len(word) > _WIDTH:
            yield line.rstrip()
            line, start = below, True
        line += word if start else f" {word}"
        start = False
    yield line.rstrip()


def _fitting(words: Iterable[str], width: int) -> Iterator[str]:
    """The words, those longer than a line in pieces."""
    width = max(width, 10)
    for word in words:
        piece = ""
        for sign in word:
            if cell_len(piece) + cell_len(sign) > width:
                yield piece
                piece = ""
            piece += sign
        yield piece


COMMANDS = (waits, consumers)
