"""The verb `waits`: who waits for whom, and for what."""

import signal
import time
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import click

from console import catalog
from console.catalog import Kind, Queue
from console.cli.context import Call, Rights, verb_options
from console.cli.streams import narrate
from console.engines import Database
from console.formats import UNKNOWN, count, duration, plain
from console.monitor.activity import Activity, Key, Session
from console.monitor.forest import Node
from console.monitor.waits import Wait, WaitReport, watch

_WIDTH = 80
_MOST = 8
"""So many trees, waiters of one session, other sessions and waits of a queue; --json has all."""
_DEEPEST = 40
"""Columns of branches before a line; what would stand deeper is counted."""


@click.command()
@click.argument("name", required=False)
@click.option(
    "--seconds",
    type=click.FloatRange(0, 3600),
    default=5.0,
    show_default=True,
    metavar="N",
    help="How long to look; 0: once.",
)
@verb_options
def waits(call: Call, name: str | None, seconds: float) -> None:
    """Who waits for whom at the queues, and for what: sessions, locks, waits.

    Looks several times a second at the server's own views and never at a queue. It shows the
    sessions that have locks of the queue and those bound to them by waiting. Between two
    transactions a session has no lock and is not seen. Values in statements are shown as `?`.
    Ctrl-C ends the looking; what was seen until then is shown.

    \b
    Example: dbq-console waits orders --seconds 5
    """
    database = call.database(Rights.READ_ONLY, "waits")
    queues = [call.find(database, name)] if name is not None else _all(call, database)
    with _ended_by_ctrl_c() as asked:
        if seconds > 0 and not call.json:
            narrate(f"Looking for {duration(seconds)}.")
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
    """The first Ctrl-C only asks, so that no look is torn; the next one interrupts as ever."""
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


def _all(call: Call, database: Database) -> list[Queue]:
    with database.transaction("read the catalog", read_only=True) as connection:
        found = catalog.queues(connection, database.product)
    return [q for q in found if q.kind is not Kind.ARCHIVE and call.schema in (None, q.schema)]


def lines(report: WaitReport, queues: Sequence[Queue], *, everything: bool) -> Iterator[str]:
    """For a person. `everything`: not one queue was named, so the database is told about too."""
    whom = _numbered(len(queues), "queue") if everything else f"{_name(queues[0])}"
    looks = _numbered(report.samples, "look")
    yield from _wrapped("", "", f"{whom}, {looks} in {duration(report.seconds)}")
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
        yield from _horizon_lines(report)
    for why in report.missing.values():
        yield from _wrapped("Not seen: ", "  ", why)


def _name(queue: Queue) -> str:
    return f"{queue.name} ({queue.design.name})"


def _numbered(number: int, noun: str) -> str:
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def _tree_lines(report: WaitReport) -> Iterator[str]:
    """Who waits for whom: what each one does, who it is, what it runs."""
    activity = report.activity
    yield ""
    if not activity.trees:
        yield "Nobody waits for another session."
        return
    looks = f"{count(report.samples_with_waiters)} of {_numbered(report.samples, 'look')}"
    yield f"Who waits for whom (so in {looks}):"
    for tree in activity.trees[:_MOST]:
        yield from _node_lines(tree, activity, "", "", ())
    if (more := len(activity.trees) - _MOST) > 0:
        yield f"and {_numbered(more, 'tree')} more"


def _node_lines(
    node: Node[Key], activity: Activity, head: str, below: str, told: Sequence[Key]
) -> Iterator[str]:
    """`head` stands before its first line, `below` before all others; `told`: whom it is under."""
    session = activity.by_key[node.key]
    doing = _doing(session)
    others = [str(key) for key in session.blocked_by if key not in told]
    if node.cut:
        doing = f"in a DEADLOCK: {doing}"
    elif others and told:
        doing += f", and for {_some(others)}"
    line = below + ("│ " if node.waiters else "  ")
    yield from _wrapped(head, line + "  ", f"{_title(session)}  {doing}")
    yield from _wrapped(line, line + "  ", _who(session))
    if session.query:
        yield from _wrapped(line, line + "  ", _statement(session))
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
        yield f"{below}└─ and {_numbered(sum(it.size for it in hidden), 'session')} more"


def _other_lines(activity: Activity) -> Iterator[str]:
    """Who has locks of the queues, and neither waits nor is waited for."""
    bound = {key for session in activity.sessions for key in session.blocked_by}
    others = [s for s in activity.concerned if not s.blocked_by and s.key not in bound]
    if not others:
        return
    yield ""
    yield "Others that have locks there:"
    for session in others[:_MOST]:
        yield from _wrapped("", "    ", f"{_title(session)}  {_doing(session)}")
        yield from _wrapped("  ", "    ", f"{_who(session)}; {_locks(session)}")
        if session.query:
            yield from _wrapped("  ", "    ", _statement(session))
    if (more := len(others) - _MOST) > 0:
        yield f"and {_numbered(more, 'session')} more"


def _title(session: Session) -> str:
    if isinstance(session.key, str):
        return f"prepared transaction {session.key}"
    return f"session {session.key}"


def _doing(session: Session) -> str:
    """What it does, and for how long."""
    if session.waits_for is not None:
        doing = f"waits{_for(session.wait_seconds)} for {session.waits_for}"
    elif session.state is None:
        doing = "? (its state is not known)"
    else:
        doing = f"{session.state}{_for(session.state_seconds)}"
        if session.wait not in {None, session.state, "running"}:
            doing += f" ({session.wait_kind}/{session.wait})"
    so_long = (session.wait_seconds if session.waits_for else session.state_seconds) or 0.0
    if session.transaction_seconds is not None and session.transaction_seconds > so_long + 1.0:
        doing += f", transaction{_for(session.transaction_seconds)}"
    return doing


def _for(seconds: float | None) -> str:
    return f" for {duration(max(seconds, 0.0))}" if seconds is not None else ""


def _who(session: Session) -> str:
    """Whose it is; all of that is the client's own word."""
    if session.kind is None and session.user is None:
        return "ended meanwhile"
    names = [session.application] if session.application else []
    if session.kind not in {None, "client backend", "prepared transaction"}:
        names.append(str(session.kind))
    names.append(f"user {session.user if session.user else UNKNOWN}")
    if session.client:
        names.append(f"from {session.client}")
    return ", ".join(names)


def _statement(session: Session) -> str:
    text = session.query or ""
    return text if session.state == "active" else f"last: {text}"


def _locks(session: Session) -> str:
    modes: dict[str, list[str]] = {}
    for lock in session.locks:
        modes.setdefault(lock.object, []).append(lock.mode)
    return _some([f"{', '.join(dict.fromkeys(found))} on {name}" for name, found in modes.items()])


def _some(words: Sequence[str]) -> str:
    more = f" and {count(len(words) - 3)} more" if len(words) > 3 else ""
    return ", ".join(words[:3]) + more


def _wait_lines(
    heading: str,
    waits: Sequence[Wait],
    told: Collection[tuple[str | None, str | None]] = (),
) -> Iterator[str]:
    """Each wait with how much of it there was, and what it means unless that was told before."""
    yield ""
    yield from _wrapped("", "", f"{heading}:")
    for wait in waits[:_MOST]:
        name = f"{wait.kind}/{wait.wait}" if wait.wait is not None else f"{UNKNOWN} (hidden)"
        yield from _wrapped("  ", "    ", f"{name}  {_amount(wait)}")
        if wait.meaning and (wait.kind, wait.wait) not in told:
            yield from _wrapped("    ", "    ", wait.meaning)
    if (more := len(waits) - _MOST) > 0:
        yield f"  and {_numbered(more, 'wait')} more"


def _amount(wait: Wait) -> str:
    if wait.share is not None:
        sessions = _numbered(wait.sessions or 0, "session")
        return f"in {wait.share:.0%} of the looks, {sessions}, {wait.average:.1f} at a time"
    return f"{duration((wait.ms or 0) / 1000)} in {_numbered(wait.count or 0, 'wait')}"


def _horizon_lines(report: WaitReport) -> Iterator[str]:
    """What keeps dead rows, and how many there are."""
    for row in report.horizon[:1]:
        whose = f"{row.kind} {row.name}".strip()
        whose += f", session {row.session_id}" if row.session_id is not None else ""
        since = [duration(max(row.seconds, 0.0))] if row.seconds is not None else []
        if row.transactions is not None:
            since.append(_numbered(row.transactions, "transaction"))
        text = (
            f"Oldest snapshot: {whose}, {' and '.join(since)} ago; rows that died since are kept."
        )
        yield from _wrapped("", "  ", text)
    dead = [
        f"{name} {count(rows, estimated=True)}"
        for (_, name), rows in report.dead_rows.items()
        if rows
    ]
    if dead:
        yield from _wrapped("", "  ", f"Dead rows: {_some(dead)}")


def _wrapped(head: str, below: str, text: str) -> Iterator[str]:
    """The text, made safe, in lines of 80 cells: `head` begins the first, `below` the others."""
    line, start = head, True
    for word in _fitting(plain(text).split(" "), _WIDTH - max(_cells(head), _cells(below))):
        if not start and _cells(line) + 1 + _cells(word) > _WIDTH:
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
            if _cells(piece) + _cells(sign) > width:
                yield piece
                piece = ""
            piece += sign
        yield piece


def _cells(text: str) -> int:
    """Columns of a terminal that the text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(sign) else 1 + (unicodedata.east_asian_width(sign) in "WF")
        for sign in text
    )


COMMANDS = (waits,)
