"""The verb `waits`: who waits for whom, and for what."""

import signal
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import click
from rich.cells import cell_len

from console.catalog import Queue
from console.cli.context import Call, Rights, complete_queues, verb_options
from console.cli.streams import narrate
from console.formats import count, duration, numbered, plain
from console.monitor import waits as words
from console.monitor.activity import Activity, Key
from console.monitor.wait_graph import Node
from console.monitor.waits import Wait, WaitReport, watch

_WIDTH = 80
_MOST = 8
"""So many trees, waiters of one session, other sessions and waits of a queue; --json has all."""
_DEEPEST = 40
"""Columns of branches before a line; what would stand deeper is counted."""


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
    """Who waits for whom at the queues, and for what: sessions, locks, waits.

    Looks several times a second at the server's own views and never at a queue. It shows the
    sessions that have locks of the queue and those bound to them by waiting. Between two
    transactions a session has no lock and is not seen. Values in statements are shown as `?`.
    Ctrl-C ends it early; what was seen until then is shown.

    \b
    Examples:
      dbq-console waits
      dbq-console waits orders --seconds 30 --json
    """
    database = call.database(Rights.READ_ONLY, "waits")
    queues = [call.find(database, name)] if name is not None else call.queues(database)
    with _ended_by_ctrl_c() as asked:
        if seconds > 0 and not call.json:
            narrate(f"Sampling for {duration(seconds)}.")
        report = watch(database, queues, seconds=seconds, sleep=asked.sleep, asked_to_end=asked)
    call.answer(report.as_json(), list(lines(report, queues, everything=name is None)))
    if asked():
        raise KeyboardInterrupt


class _Asked:
    """Whether somebody has asked to end it."""

    def __init__(self) -> None:
        self.yes = False

    def __call__(self) -> bool:
        return self.yes

    def sleep(self, seconds: float) -> None:
        """Not for longer than it takes to be asked."""
        ends_at = time.monotonic() + seconds
        while not self.yes and (left := ends_at - time.monotonic()) > 0:
            time.sleep(min(left, _HEARS_SECONDS))


_HEARS_SECONDS = 0.05


@contextmanager
def _ended_by_ctrl_c() -> Iterator[_Asked]:
    """The first Ctrl-C only asks, so that no sample is torn; the next one interrupts as ever."""
    asked = _Asked()
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield asked  # somebody else says what it means, or that it is to be ignored
        return

    def ask(number: int, _: FrameType | None) -> None:
        asked.yes = True
        signal.signal(number, signal.default_int_handler)

    signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def lines(report: WaitReport, queues: Sequence[Queue], *, everything: bool) -> Iterator[str]:
    """For a person. `everything`: not one queue was named, so the database is told about too."""
    whom = numbered(len(queues), "queue") if everything else f"{_name(queues[0])}"
    samples = numbered(report.samples, "sample")
    yield from _wrapped("", "", f"{whom}, {samples} in {duration(report.seconds)}")
    if report.samples:
        yield from _tree_lines(report)
        yield from _other_lines(report.activity)
    for queue in queues:
        found = [wait for wait in report.waits if wait.queue == queue]
        if found:
            yield from _wait_lines(f"Waits at {_name(queue)}", found)
    if everything and (found := [wait for wait in report.waits if wait.queue is None]):
        told = {(wait.kind, wait.wait) for wait in report.waits if wait.queue is not None}
        yield from _wait_lines("Waits in the whole database", found, told)
    if report.samples:
        yield ""
        for line in words.horizon(report):
            yield from _wrapped("", "  ", line)
    for why in report.missing.values():
        yield from _wrapped("Not visible: ", "  ", why)


def _name(queue: Queue) -> str:
    return f"{queue.name} ({queue.design.name})"


def _tree_lines(report: WaitReport) -> Iterator[str]:
    """Who waits for whom: what each one does, who it is, what it runs."""
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
    node: Node[Key], activity: Activity, head: str, below: str, told: Sequence[Key]
) -> Iterator[str]:
    """`head` stands before its first line, `below` before all others; `told`: whom it is under."""
    session = activity.by_key[node.key]
    doing = words.doing(session)
    others = [str(key) for key in session.blocked_by if key not in told]
    if node.cut:
        doing = f"in a DEADLOCK: {doing}"
    elif others and told:
        doing += f", and for {words.some(others)}"
    line = below + ("│ " if node.waiters else "  ")
    yield from _wrapped(head, line + "  ", f"{words.title(session)}  {doing}")
    yield from _wrapped(line, line + "  ", words.who(session))
    if session.query:
        yield from _wrapped(line, line + "  ", words.statement(session))
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
    """Who has locks of the queues, and neither waits nor is waited for."""
    bound = {key for session in activity.sessions for key in session.blocked_by}
    others = [s for s in activity.concerned if not s.blocked_by and s.key not in bound]
    if not others:
        return
    yield ""
    yield "Other sessions with locks there:"
    for session in others[:_MOST]:
        yield from _wrapped("", "    ", f"{words.title(session)}  {words.doing(session)}")
        yield from _wrapped("  ", "    ", f"{words.who(session)}; {words.locks(session)}")
        if session.query:
            yield from _wrapped("  ", "    ", words.statement(session))
    if (more := len(others) - _MOST) > 0:
        yield f"and {numbered(more, 'session')} more"


def _wait_lines(
    heading: str,
    waits: Sequence[Wait],
    told: Collection[tuple[str | None, str | None]] = (),
) -> Iterator[str]:
    """Each wait with how much of it there was, and what it means unless that was told before."""
    yield ""
    yield from _wrapped("", "", f"{heading}:")
    for wait in waits[:_MOST]:
        yield from _wrapped("  ", "    ", f"{words.name_of(wait)}  {words.amount(wait)}")
        if wait.meaning and (wait.kind, wait.wait) not in told:
            yield from _wrapped("    ", "    ", wait.meaning)
    if (more := len(waits) - _MOST) > 0:
        yield f"  and {numbered(more, 'wait')} more"


def _wrapped(head: str, below: str, text: str) -> Iterator[str]:
    """The text, made safe, in lines of 80 cells: `head` begins the first, `below` the others."""
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


COMMANDS = (waits,)
