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

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from rich.cells import cell_len

from console.catalog import Queue
from console.formats import count, duration, numbered, plain
from console.monitor import waits as labels
from console.monitor.activity import Activity, Session
from console.monitor.row_holder import SessionKey
from console.monitor.wait_graph import Node
from console.monitor.waits import Wait, WaitReport, watch
from console.verbs.parameters import SECONDS_TYPE, Parameter
from console.views.view import WIDTH, Column, Display, Line, Part, Source, Subject, View, or_unknown

_RUNNING = "running"
_MOST = 8
"""Most trees, waiters of one session, other sessions and waits of a queue; --json has all."""
_DEEPEST = 40
"""Most columns of branches before a line; deeper sessions are only counted."""


def read(source: Source) -> WaitReport:
    seconds, queues = source.values["seconds"], source.queues
    if seconds > 0:
        source.on_wait(f"Sampling for {duration(seconds)}.")
    report = watch(
        source.database,
        queues,
        seconds=seconds,
        sleep=source.sleep,
        stop_requested=source.stop.is_set,
    )
    return replace(report, queues=tuple(queues), of_database=source.name is None)


def wait_key(wait: Wait) -> str:
    """The same in every sample; counters and sessions have lines of their own."""
    return repr((wait.kind, wait.wait, wait.share is None))


def _columns(display: Display) -> Sequence[Column[Wait]]:  # noqa: ARG001  # a view's
    return (
        Column("wait", "wait", lambda wait: plain(labels.wait_name(wait)), _wait_style, 12, 34),
        _number("at_a_time", "at a time", "average", "{:.1f}", 9),
        _number("share", "of samples", "share", "{:.0%}", 8),
        _number("sessions", "sessions", "sessions", "{:,}", 8),
        Column("waited", "waited", _waited, "", 9, 16, align_right=True, sort_key=attrgetter("ms")),
        Column("meaning", "means", lambda wait: plain(wait.meaning or ""), "quiet", 30, 300),
    )


def _number(name: str, title: str, of: str, form: str, width: int) -> Column[Wait]:
    """`of`: the attribute of a wait; None where it is not counted that way."""

    def value(wait: Wait) -> str:
        return or_unknown(getattr(wait, of), form.format, "")

    key = attrgetter(of)
    return Column(name, title, value, "", width, width, align_right=True, sort_key=key)


def _wait_style(wait: Wait) -> str:
    idle = wait.kind in {None, "Client", "Activity"} or wait.wait == _RUNNING
    return "quiet" if idle else "strong"


def _waited(wait: Wait) -> str:
    """Only for waits that the server counts, not for sampled ones."""
    if wait.share is not None:
        return ""
    return f"{duration((wait.ms or 0) / 1000)} {wait.count or 0:,}x"


@dataclass(frozen=True)
class Waiter:
    """A session in the tree of those that block each other."""

    session: Session
    branch: str = ""
    """Drawn before its name."""
    deadlock: bool = False
    in_tree: bool = False
    """Whether it waits or is waited for."""


def waiters(activity: Activity) -> dict[str, Waiter]:
    """By a key that stays the same: the blocking trees, then the other sessions."""
    rows = {}
    for node, branch in _branches(activity.trees):
        session = activity.by_key[node.key]
        rows[repr(node.key)] = Waiter(session, branch, node.cut, in_tree=True)
    for session in activity.relevant_sessions:
        rows.setdefault(repr(session.key), Waiter(session))
    return rows


def _name(row: Waiter) -> str:
    key = row.session.key
    return row.branch + plain(
        str(key) if isinstance(key, int) else labels.session_title(row.session)
    )


def _waited_for(row: Waiter) -> float | None:
    session = row.session
    return session.wait_seconds if session.waits_for else session.transaction_seconds


def _waits_for(row: Waiter) -> str:
    return or_unknown(_waited_for(row), lambda seconds: duration(max(seconds, 0.0)))


def _does(row: Waiter) -> str:
    doing = labels.session_activity(row.session)
    return plain(f"DEADLOCK: {doing}" if row.deadlock else doing)


def _does_style(row: Waiter) -> str:
    if row.deadlock:
        return "critical"
    return "warning" if row.in_tree and not row.session.blocked_by else ""


WAITERS: tuple[Column[Waiter], ...] = (
    Column("session", "session", _name, lambda row: "strong" if row.in_tree else "quiet", 12, 40),
    Column("for", "for", _waits_for, "", 9, 10, align_right=True, sort_key=_waited_for),
    Column("does", "does", _does, _does_style, 20, 80),
    Column("who", "who", lambda row: plain(labels.session_client(row.session)), "quiet", 12, 200),
)
_DEEPEST_BRANCH = 12
"""Branches are indented up to this depth."""


def _branches(trees: tuple[Node[SessionKey], ...]) -> Iterator[tuple[Node[SessionKey], str]]:
    """Every node with the branch drawn before it, from the top."""
    stack: list[tuple[Node[SessionKey], str, str]] = [(tree, "", "") for tree in reversed(trees)]
    while stack:
        node, branch, below = stack.pop()
        yield node, branch
        deep = len(below) >= 3 * _DEEPEST_BRANCH
        last = len(node.waiters) - 1
        for index, waiter in reversed(list(enumerate(node.waiters))):
            here = below + ("└─ " if index == last else "├─ ")
            under = below if deep else below + ("   " if index == last else "│  ")
            stack.append((waiter, here, under))


def _summary(report: WaitReport, display: Display) -> list[Line]:  # noqa: ARG001  # a view's
    first: list[Part] = []
    if report.samples and report.activity.trees:
        waiting = numbered(report.activity.waiting, "session")
        verb = "waits" if report.activity.waiting == 1 else "wait"
        observed = f" (in {report.samples_with_waiters} of {report.samples} samples)"
        first = [(f"{waiting} {verb} for another", "warning"), (observed, "quiet")]
    elif report.samples:
        first = [("No session waits for another.", "good")]
    horizon = labels.horizon_lines(report) if report.samples else ()
    missing = report.missing.values()
    return [
        first,
        *([(plain(text), "quiet")] for text in horizon),
        *([(f"Not visible: {plain(why)}", "warning")] for why in missing),
    ]


def _detail(wait: Wait, display: Display) -> list[Part]:  # noqa: ARG001  # a view's
    return [
        (f"{plain(labels.wait_name(wait))}  {labels.wait_amount(wait)}\n", "strong"),
        (plain(wait.meaning or "Nothing is known about this wait."), ""),
    ]


def session_detail(session: Session) -> list[Part]:
    """All that is known about it."""
    does = f"{labels.session_client(session)}; {labels.session_activity(session)}"
    parts = [(f"{plain(labels.session_title(session))}  ", "strong"), (plain(does), "")]
    if session.locks:
        parts.append((f"\nlocks {plain(labels.lock_summary(session))}", "quiet"))
    if session.query:
        parts.append((f"\n{plain(labels.session_statement(session))}", "quiet"))
    return parts


def lines(report: WaitReport, display: Display) -> Iterator[str]:  # noqa: ARG001  # a view's
    """For a terminal."""
    queues, everything = report.queues, report.of_database
    subject = numbered(len(queues), "queue") if everything else f"{_label(queues[0])}"
    samples = numbered(report.samples, "sample")
    yield from _wrapped("", "", f"{subject}, {samples} in {duration(report.seconds)}")
    if report.samples:
        yield from _tree_lines(report)
        yield from _other_lines(report.activity)
    for queue in queues:
        waits = [wait for wait in report.waits if wait.queue == queue]
        if waits:
            yield from _wait_lines(f"Waits at {_label(queue)}", waits)
    if everything and (waits := [wait for wait in report.waits if wait.queue is None]):
        explained = {(wait.kind, wait.wait) for wait in report.waits if wait.queue is not None}
        yield from _wait_lines("Waits in the whole database", waits, explained)
    if report.samples:
        yield ""
        for line in labels.horizon_lines(report):
            yield from _wrapped("", "  ", line)
    for why in report.missing.values():
        yield from _wrapped("Not visible: ", "  ", why)


def _label(queue: Queue) -> str:
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
    node: Node[SessionKey], activity: Activity, head: str, below: str, parents: Sequence[SessionKey]
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
    heading: str, waits: Sequence[Wait], explained: Collection[tuple[str | None, str | None]] = ()
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
    for word in _fitting(plain(text).split(" "), WIDTH - max(cell_len(head), cell_len(below))):
        if not start and cell_len(line) + 1 + cell_len(word) > WIDTH:
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


VIEW = View(
    "waits",
    __doc__,
    read,
    lambda report: {f"{wait.queue and wait.queue.label} {wait_key(wait)}": wait
                    for wait in report.waits},
    _columns,
    subject=Subject.DATABASE,
    parameters=(
        Parameter(
            "seconds", "How long to sample; 0: once.", SECONDS_TYPE, default="5.0", metavar="N"
        ),
    ),
    summary=_summary,
    detail=_detail,
    text=lines,
    json=WaitReport.as_json,
    drop_order=("meaning", "sessions", "trend", "waited"),
    stops=True,
)  # fmt: skip
