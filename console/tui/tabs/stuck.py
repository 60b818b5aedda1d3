"""The tab Stuck of a queue: claims, sessions that hold rows, and whether they are connected."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType

from console.actions.end_session import sessions_holding
from console.catalog import Kind, Queue
from console.engines import Database
from console.formats import UNKNOWN, duration, numbered
from console.monitor import waits as labels
from console.monitor.activity import Session
from console.monitor.owners import Claim, Claims, Evidence, claims_with_evidence
from console.tui.context import Context
from console.tui.findings import QueueKey
from console.tui.open_connection import OpenConnection
from console.tui.tabs.tab import TableTab
from console.tui.text import TextView, plain, style_of
from console.tui.widgets.keyed_table import Column, or_unknown
from console.tui.widgets.messages import MarkedTable

_OWNERS = {Evidence.GONE: "critical", Evidence.ALIVE: "", Evidence.UNKNOWN: "quiet"}


@dataclass(frozen=True)
class Row:
    """A claim, or a session that holds rows."""

    stuck: bool
    what: str
    held_for: str
    owner: str
    owner_style: str
    who: str
    where: str
    does: str
    tries: str = ""
    claim: Claim | None = None
    session: Session | None = None


COLUMNS: tuple[Column[Row], ...] = (
    Column("mark", "", lambda r: "!" if r.stuck else "", "warning", max_width=1),
    Column("what", "message", lambda r: r.what, lambda r: "strong" if r.session else "", 8, 36),
    Column(
        "for", "for", lambda r: r.held_for, lambda r: "warning" if r.stuck and r.claim else "",
        11, 22, align_right=True,
    ),
    Column("owner", "owner", lambda r: r.owner, lambda r: r.owner_style, 7, 12),
    Column("tries", "attempts", lambda r: r.tries, "quiet", 8, 8, align_right=True),
    Column("who", "who", lambda r: r.who, "", 8, 40),
    Column("where", "where", lambda r: r.where, "quiet", 8, 60),
    Column("does", "does", lambda r: r.does, lambda r: "quiet" if r.claim else "", 10, 200),
)  # fmt: skip
DROP_ORDER = ("tries", "where", "does")


def rows_of(claims: Iterable[Claim], holders: Iterable[Session], limit: float) -> dict[str, Row]:
    """By a key that stays the same; `limit`: the seconds after which a claim is stuck."""
    rows = {f"claim {one.id}": _of_claim(one, limit) for one in claims}
    return rows | {f"session {one.key!r}": _of_session(one, limit) for one in holders}


def _of_claim(claim: Claim, limit: float) -> Row:
    seconds = claim.claimed_seconds
    return Row(
        stuck=seconds is not None and seconds >= limit,
        what=plain(claim.id) or UNKNOWN,
        held_for=or_unknown(seconds, lambda seconds: duration(max(seconds, 0.0))),
        owner=claim.owner.value,
        owner_style=_OWNERS[claim.owner],
        who=plain(claim.consumer or ("" if claim.session else claim.claimed_by) or UNKNOWN),
        where=plain(claim.session or ""),
        does="its claim ends with its session" if claim.bound else "",
        tries=or_unknown(claim.attempts, str),
        claim=claim,
    )


def _of_session(session: Session, limit: float) -> Row:
    stuck = session.held_seconds is not None and session.held_seconds >= limit
    who = ", ".join(one for one in (session.application, session.user) if one)
    return Row(
        stuck=stuck,
        what=plain(labels.session_title(session)),
        held_for=session.held_for,
        owner="holds rows",
        owner_style="warning" if stuck else "",
        who=plain(who) or UNKNOWN,
        where=plain(session.client or "local"),
        does=plain(labels.session_activity(session)),
        session=session,
    )


def detail_of(row: Row, library: str = "") -> list[tuple[str, str]]:
    """All that is known about it. `library`: the one whose worker claimed it."""
    if row.session is not None:
        session = row.session
        parts = [
            (f"{plain(labels.session_title(session))}  ", "strong"),
            (
                plain(f"{labels.session_client(session)}; {labels.session_activity(session)}"),
                "",
            ),
            (f"\nlocks {plain(labels.lock_summary(session))}", ""),
        ]
        return (
            [*parts, (f"\n{plain(labels.session_statement(session))}", "quiet")]
            if session.query
            else parts
        )
    claim = row.claim
    if claim is None:
        return []
    ended = claim.bound and claim.owner is Evidence.GONE
    evidence = _CLAIM_ENDED if ended else _EVIDENCE[claim.owner]
    if claim.session_state is Evidence.GONE is not claim.owner:
        evidence = _SESSION_ENDED
    if library:
        evidence = _WORKERS[claim.owner].format(library)
    return [
        (evidence, ""),
        (f"\nmessage {plain(claim.id)}", "strong"),
        (f"  claimed by {plain(claim.claimed_by or UNKNOWN)}", "quiet"),
    ]


_SESSION_ENDED = (
    "The session that claimed it has ended. If its consumer connects through a pooler, it may "
    "still be working on it."
)
_CLAIM_ENDED = "The session that claimed it has ended, and so has the claim."
_WORKERS = {
    Evidence.GONE: "Its worker is gone: no heartbeat for longer than the threshold.",
    Evidence.ALIVE: "Its worker has a recent heartbeat: it may be working on it.",
    Evidence.UNKNOWN: "Only {} knows whether a worker is still working on it.",
}
_EVIDENCE = {
    Evidence.GONE: "The session that claimed it has ended. release returns it to the queue.",
    Evidence.ALIVE: "The session that claimed it is still connected: it may be working on it.",
    Evidence.UNKNOWN: "Whether the session that claimed it is still connected is not known.",
}


_UNMARK = "clear all marks"


@dataclass(frozen=True)
class QueueHolders:
    """None: the design has none."""

    claims: Claims | None
    holders: tuple[Session, ...] | None
    expires: bool = False
    """Whether claims end by themselves."""
    library: str = ""
    """Whose workers own the claims; empty: they are sessions of the server."""


def find(database: Database, queue: Queue, stuck_after_seconds: float) -> QueueHolders:
    claimed = (
        claims_with_evidence(database, queue, stuck_after_seconds)
        if "claimed" in queue.states
        else None
    )
    # Where a pop deletes its message, only an open transaction holds what is being worked on.
    held = not queue.finishes and queue.kind is not Kind.ARCHIVE
    holders = tuple(sessions_holding(database, queue)) if held else None
    of = queue.design
    return QueueHolders(claimed, holders, expires=of.claims_expire, library=of.library_name)


class StuckTab(TableTab[QueueHolders]):
    """Claims with the evidence about their owners; sessions that hold rows, where a pop deletes."""

    NAME: ClassVar[str] = "stuck"
    TITLE: ClassVar[str] = "Stuck"
    PACE_SECONDS: ClassVar[float] = 2.0
    COPIED: ClassVar[str] = "copied who holds it"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "unmark", _UNMARK, show=False, priority=True),
        Binding("q", "unmark", _UNMARK, show=False),
        Binding("a", "act", "actions", tooltip="act on these claims, or terminate this session"),
        Binding(
            "f", "free", "release gone", tooltip="release all claims whose consumer disconnected"
        ),
        Binding("y", "copy", "copy who holds it", show=False),
    ]

    table: MarkedTable[Row]

    def __init__(self, context: Context, key: QueueKey) -> None:
        super().__init__(context, key)
        self.table = MarkedTable[Row](COLUMNS, DROP_ORDER, removed_column="owner", id="stuck")

    @property
    def command(self) -> Sequence[str]:
        shows_claims = self.result is not None and self.result.claims is not None
        return ("messages", "--state", "claimed") if shows_claims else ("waits",)

    @property
    def stuck_after_seconds(self) -> float:
        if self.result is not None and self.result.expires:
            return float("inf")
        conn = self.conn
        limits = conn.thresholds_of(self.key[2]) if conn else None
        return limits.stuck_after_seconds if limits else float("inf")

    def read(self, conn: OpenConnection) -> QueueHolders:
        return find(conn.database, conn.find(*self.key[1:]), self.stuck_after_seconds)

    def show(self, result: QueueHolders) -> None:
        claimed = result.claims.claims if result.claims else ()
        rows = rows_of(claimed, result.holders or (), self.stuck_after_seconds)
        self.table.show(rows, keep=True)

    def detail(self) -> list[tuple[str, str]]:
        row, result = self.table.row, self.result
        return [] if row is None else detail_of(row, result.library if result is not None else "")

    def summary(self, head: TextView, result: QueueHolders) -> list[Text]:
        line = Text(no_wrap=True)
        if result.claims is not None:
            self._append_claims(line, head, result.claims)
        if result.holders is not None:
            line.append("   " if line else "")
            many = numbered(len(result.holders), "session")
            verb = "holds" if len(result.holders) == 1 else "hold"
            if result.holders:
                line.append(f"{many} {verb} rows", style_of(head, "strong"))
            else:
                line.append("No session holds rows.", style_of(head, "good"))
        if not line:
            line.append("Nothing can be stuck in this design.", style_of(head, "good"))
        if marks := self.table.marks:
            line.append(f"   {len(marks)} marked", style_of(head, "sorted"))
        self.append_time(line)
        return [line]

    def _append_claims(self, line: Text, head: TextView, claims: Claims) -> None:
        limit = self.stuck_after_seconds
        stuck = [claim for claim in claims.claims if (claim.claimed_seconds or 0.0) >= limit]
        more = " and more" if claims.more else ""
        if not claims.claims:
            line.append("No claims.", style_of(head, "good"))
            return
        line.append(f"{numbered(len(claims.claims), 'claim')}{more}", style_of(head, "strong"))
        if self.result is not None and self.result.expires:
            line.append("   each expires after its time-out", style_of(head, "good"))
            return
        since = duration(limit)
        if stuck:
            owners = ", ".join(
                f"{sum(c.owner is owner for c in stuck)} {owner.value}"
                for owner in Evidence
                if any(c.owner is owner for c in stuck)
            )
            line.append(
                f"   {len(stuck)} stuck over {since}: owner {owners}", style_of(head, "warning")
            )
        else:
            line.append(f"   none over {since}", style_of(head, "good"))

    def on_marked_table_marks_changed(self) -> None:
        self.draw_texts()
        self.refresh_bindings()

    def check_action(self, action: str, _parameters: object) -> bool | None:
        if action == "unmark":
            return self.is_mounted and bool(self.table.marks or self.table.all_matching)
        if action == "free":
            return self.result is None or self.result.claims is not None
        return True

    def action_unmark(self) -> None:
        self.table.clear_marks()

    def action_act(self) -> None:
        """Act on these claims, or terminate the session under the cursor."""
        if self.table.all_matching:
            self.navigator.open_actions(self.key, ["state=claimed"])
            return
        rows = self.table.selected_rows
        sessions = [row.session for row in rows if row.session is not None]
        ids = [f"id={row.claim.id}" for row in rows if row.claim is not None]
        if ids:
            self.navigator.open_actions(self.key, ids, "claimed")
        elif len(sessions) == 1:
            self.navigator.open_action(self.key, "end-session", session=str(sessions[0].key))
        elif sessions:
            self.notify("One session is terminated at a time: clear the marks.", markup=False)

    def action_free(self) -> None:
        self.navigator.open_action(self.key, "release")
