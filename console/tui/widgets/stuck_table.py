"""Claims and sessions that hold rows, a line each, and what is known of each in words."""

from collections.abc import Iterable
from dataclasses import dataclass

from console.formats import UNKNOWN, duration
from console.monitor import wait_words as words
from console.monitor.activity import Session
from console.monitor.owners import Claim, Evidence
from console.tui.text import plain
from console.tui.widgets.fitting import Wish
from console.tui.widgets.keyed_table import Cell
from console.tui.widgets.list_table import ListTable
from console.tui.widgets.marked_table import MARK_WIDTH, MarkedTable

_WISHES = (
    Wish("mark", "", most=1),
    Wish("what", "message", least=8, most=36),
    Wish("for", "for", least=9, most=10, right=True),
    Wish("owner", "owner", least=7, most=12),
    Wish("tries", "tries", least=2, most=5, right=True),
    Wish("who", "who", least=8, most=40),
    Wish("where", "where", least=8, most=60),
    Wish("does", "does", least=10, most=200),
)
_LOST_FIRST = ("tries", "where", "does")
_OWNERS = {Evidence.GONE: "critical", Evidence.ALIVE: "", Evidence.UNKNOWN: "quiet"}


@dataclass(frozen=True)
class Row:
    """A claim, or a session, as it was seen last."""

    cells: dict[str, Cell]
    claim: Claim | None = None
    session: Session | None = None


class StuckTable(ListTable, MarkedTable):
    """Claims and sessions, a line each."""

    TAKEN = ListTable.TAKEN + MARK_WIDTH

    def __init__(self) -> None:
        super().__init__(_WISHES, _LOST_FIRST, id="stuck")


def rows_of(claims: Iterable[Claim], holders: Iterable[Session], limit: float) -> dict[str, Row]:
    """By what stays the same; `limit`: from so many seconds on it is stuck."""
    rows = {f"claim {c.id}": Row(_claim_cells(c, limit), claim=c) for c in claims}
    return rows | {f"session {s.key!r}": Row(_session_cells(s, limit), session=s) for s in holders}


def _claim_cells(claim: Claim, limit: float) -> dict[str, Cell]:
    seconds = claim.claimed_seconds
    stuck = seconds is not None and seconds >= limit
    who = claim.consumer or ("" if claim.session else claim.claimed_by) or UNKNOWN
    return {
        "mark": Cell("!" if stuck else "", "warning"),
        "what": Cell(plain(claim.id) or UNKNOWN),
        "for": Cell(
            UNKNOWN if seconds is None else duration(max(seconds, 0.0)), "warning" if stuck else ""
        ),
        "owner": Cell(claim.owner.value, _OWNERS[claim.owner]),
        "tries": Cell(UNKNOWN if claim.attempts is None else str(claim.attempts), "quiet"),
        "who": Cell(plain(who)),
        "where": Cell(plain(claim.session or ""), "quiet"),
        "does": Cell("" if not claim.bound else "its claim ends with its session", "quiet"),
    }


def _session_cells(session: Session, limit: float) -> dict[str, Cell]:
    seconds = session.transaction_seconds
    stuck = seconds is not None and seconds >= limit
    who = ", ".join(one for one in (session.application, session.user) if one)
    return {
        "mark": Cell("!" if stuck else "", "warning"),
        "what": Cell(plain(words.title(session)), "strong"),
        "for": Cell(UNKNOWN if seconds is None else duration(max(seconds, 0.0))),
        "owner": Cell("holds rows", "warning" if stuck else ""),
        "tries": Cell(""),
        "who": Cell(plain(who) or UNKNOWN),
        "where": Cell(plain(session.client or "local"), "quiet"),
        "does": Cell(plain(words.doing(session))),
    }


def detail_of(row: Row) -> list[tuple[str, str]]:
    """All that is known of it: words, each with a tone."""
    if row.session is not None:
        session = row.session
        said = [
            (f"{plain(words.title(session))}  ", "strong"),
            (plain(f"{words.who(session)}; {words.doing(session)}"), ""),
            (f"\nlocks {plain(words.locks(session))}", ""),
        ]
        return [*said, (f"\n{plain(words.statement(session))}", "quiet")] if session.query else said
    claim = row.claim
    if claim is None:
        return []
    ended = claim.bound and claim.owner is Evidence.GONE
    return [
        (_EVIDENCE_ENDED if ended else _EVIDENCE[claim.owner], ""),
        (f"\nmessage {plain(claim.id)}", "strong"),
        (f"  claimed by {plain(claim.claimed_by or UNKNOWN)}", "quiet"),
    ]


_EVIDENCE_ENDED = "The session that claimed it is gone, and the claim with it: it is nobody's."
_EVIDENCE = {
    Evidence.GONE: "The session that claimed it is gone. release gives it back to the queue.",
    Evidence.ALIVE: "The session that claimed it is still there: it may be at work on it.",
    Evidence.UNKNOWN: "Nobody can tell whether the session that claimed it is still there.",
}
