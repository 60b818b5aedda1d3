"""What a look at sessions and waits showed, in words: the same on the command line and on screens.

All texts of a session are its own or its client's: whoever shows them makes them safe first.
"""

from collections.abc import Iterator, Sequence

from console.formats import UNKNOWN, count, duration, numbered
from console.monitor.activity import Session
from console.monitor.waits import Wait, WaitReport


def some(words: Sequence[str]) -> str:
    """The first three, and how many more there are."""
    more = f" and {count(len(words) - 3)} more" if len(words) > 3 else ""
    return ", ".join(words[:3]) + more


def title(session: Session) -> str:
    """How it is called."""
    if isinstance(session.key, str):
        return f"prepared transaction {session.key}"
    return f"session {session.key}"


def doing(session: Session) -> str:
    """What it does, and for how long."""
    if session.waits_for is not None:
        words = f"waits{_for(session.wait_seconds)} for {session.waits_for}"
    elif session.state is None:
        words = "? (its state is not known)"
    else:
        words = f"{session.state}{_for(session.state_seconds)}"
        if session.wait not in {None, session.state, "running"}:
            words += f" ({session.wait_kind}/{session.wait})"
    so_long = (session.wait_seconds if session.waits_for else session.state_seconds) or 0.0
    if session.transaction_seconds is not None and session.transaction_seconds > so_long + 1.0:
        words += f", transaction{_for(session.transaction_seconds)}"
    return words


def _for(seconds: float | None) -> str:
    return f" for {duration(max(seconds, 0.0))}" if seconds is not None else ""


def who(session: Session) -> str:
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


def statement(session: Session) -> str:
    """What it runs, or ran last."""
    text = session.query or ""
    return text if session.state == "active" else f"last: {text}"


def locks(session: Session) -> str:
    """What it has locked of the queues, and how."""
    modes: dict[str, list[str]] = {}
    for lock in session.locks:
        modes.setdefault(lock.object, []).append(lock.mode)
    return some([f"{', '.join(dict.fromkeys(found))} on {name}" for name, found in modes.items()])


def name_of(wait: Wait) -> str:
    """`Lock/tuple`."""
    return f"{wait.kind}/{wait.wait}" if wait.wait is not None else f"{UNKNOWN} (hidden)"


def amount(wait: Wait) -> str:
    """How much of it there was."""
    if wait.share is not None:
        sessions = numbered(wait.sessions or 0, "session")
        return f"in {wait.share:.0%} of the looks, {sessions}, {wait.average:.1f} at a time"
    return f"{duration((wait.ms or 0) / 1000)} in {numbered(wait.count or 0, 'wait')}"


def horizon(report: WaitReport) -> Iterator[str]:
    """What keeps dead rows, and how many there are."""
    for row in report.horizon[:1]:
        whose = f"{row.kind} {row.name}".strip()
        whose += f", session {row.session_id}" if row.session_id is not None else ""
        since = [duration(max(row.seconds, 0.0))] if row.seconds is not None else []
        if row.transactions is not None:
            since.append(numbered(row.transactions, "transaction"))
        yield f"Oldest snapshot: {whose}, {' and '.join(since)} ago; rows that died since are kept."
    dead = [
        f"{name} {count(rows, estimated=True)}"
        for (_, name), rows in report.dead_rows.items()
        if rows
    ]
    if dead:
        yield f"Dead rows: {some(dead)}"
