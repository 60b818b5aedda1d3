"""Show what holds a queue's messages: claims, and sessions that hold rows.

The oldest claims first, with the evidence about their owners: gone, alive, unknown ("more" in
--json: there are younger ones). Where a pop deletes its message, the sessions whose open
transactions hold rows. A claim is stuck from stuck_after of the profile on, 5 minutes unless
set; one that ends by itself never is.

\b
Examples:
  dbq-console stuck mail
  dbq-console stuck mail --json
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf

from console.actions.end_session import sessions_holding
from console.catalog import Kind
from console.formats import UNKNOWN, duration, numbered, plain
from console.monitor import waits as labels
from console.monitor.activity import Session
from console.monitor.limits import DEFAULTS
from console.monitor.owners import Claim, Claims, Evidence, claims_with_evidence
from console.views.view import Column, Display, Line, Part, Source, View, or_unknown
from console.views.waits import session_detail

_OWNERS = {Evidence.GONE: "critical", Evidence.ALIVE: "", Evidence.UNKNOWN: "quiet"}


@dataclass(frozen=True)
class QueueHolders:
    """None: the design has none."""

    claims: Claims | None
    holders: tuple[Session, ...] | None
    expires: bool = False
    """Whether claims end by themselves."""
    library: str = ""
    """Whose workers own the claims; empty: they are sessions of the server."""
    stuck_after_seconds: float = DEFAULTS.stuck_after_seconds
    queue: str = ""
    design: str = ""

    @property
    def limit(self) -> float:
        """The seconds after which a claim is stuck."""
        return inf if self.expires else self.stuck_after_seconds


def read(source: Source) -> QueueHolders:
    database, queue = source.database, source.queue
    limit = source.thresholds_of(queue.name).stuck_after_seconds
    claimed = claims_with_evidence(database, queue, limit) if "claimed" in queue.states else None
    # Where a pop deletes its message, only an open transaction holds what is being worked on.
    held = not queue.finishes and queue.kind is not Kind.ARCHIVE
    holders = tuple(sessions_holding(database, queue)) if held else None
    of = queue.design
    return QueueHolders(
        claimed, holders, of.claims_expire, of.library_name, limit, queue.name, of.name
    )


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
    library: str = ""
    """The one whose worker claimed it."""

    @property
    def held_seconds(self) -> float | None:
        if self.session is not None:
            return self.session.held_seconds
        return None if self.claim is None else self.claim.claimed_seconds


def _columns(display: Display) -> Sequence[Column[Row]]:  # noqa: ARG001  # a view's
    return (
        Column("mark", "", lambda r: "!" if r.stuck else "", "warning", max_width=1),
        Column("what", "message", lambda r: r.what, lambda r: "strong" if r.session else "", 8, 36),
        Column(
            "for", "for", lambda r: r.held_for, lambda r: "warning" if r.stuck and r.claim else "",
            11, 22, align_right=True, sort_key=lambda r: r.held_seconds,
        ),
        Column("owner", "owner", lambda r: r.owner, lambda r: r.owner_style, 7, 12),
        Column("tries", "attempts", lambda r: r.tries, "quiet", 8, 8, align_right=True,
               sort_key=lambda r: r.claim and r.claim.attempts),
        Column("who", "who", lambda r: r.who, "", 8, 40),
        Column("where", "where", lambda r: r.where, "quiet", 8, 60),
        Column("does", "does", lambda r: r.does, lambda r: "quiet" if r.claim else "", 10, 200),
    )  # fmt: skip


def _rows(result: QueueHolders) -> dict[str, Row]:
    limit, library = result.limit, result.library
    claims = result.claims.claims if result.claims else ()
    rows = {f"claim {claim.id}": _of_claim(claim, limit, library) for claim in claims}
    return rows | {
        f"session {session.key!r}": _of_session(session, limit) for session in result.holders or ()
    }


def _of_claim(claim: Claim, limit: float, library: str) -> Row:
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
        library=library,
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


def _detail(row: Row, display: Display) -> list[Part]:  # noqa: ARG001  # a view's
    if row.session is not None:
        return session_detail(row.session)
    claim = row.claim
    if claim is None:
        return []
    ended = claim.bound and claim.owner is Evidence.GONE
    evidence = _CLAIM_ENDED if ended else _EVIDENCE[claim.owner]
    if claim.session_state is Evidence.GONE is not claim.owner:
        evidence = _SESSION_ENDED
    if row.library:
        evidence = _WORKERS[claim.owner].format(row.library)
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


def _summary(result: QueueHolders, display: Display) -> list[Line]:  # noqa: ARG001  # a view's
    parts = [] if result.claims is None else _claims(result, result.claims)
    if result.holders is not None:
        blanks = "   " if parts else ""
        verb = "holds" if len(result.holders) == 1 else "hold"
        held = f"{blanks}{numbered(len(result.holders), 'session')} {verb} rows"
        none = f"{blanks}No session holds rows."
        parts.append((held, "strong") if result.holders else (none, "good"))
    return [parts or [("Nothing can be stuck in this design.", "good")]]


def _claims(result: QueueHolders, claims: Claims) -> list[Part]:
    if not claims.claims:
        return [("No claims.", "good")]
    more = " and more" if claims.more else ""
    first = (f"{numbered(len(claims.claims), 'claim')}{more}", "strong")
    if result.expires:
        return [first, ("   each expires after its time-out", "good")]
    since = duration(result.limit)
    stuck = [claim for claim in claims.claims if (claim.claimed_seconds or 0.0) >= result.limit]
    if not stuck:
        return [first, (f"   none over {since}", "good")]
    owners = ", ".join(
        f"{sum(c.owner is owner for c in stuck)} {owner.value}"
        for owner in Evidence
        if any(c.owner is owner for c in stuck)
    )
    return [first, (f"   {len(stuck)} stuck over {since}: owner {owners}", "warning")]


def _json(result: QueueHolders) -> Mapping[str, object]:
    """None: the design has no claims; no session can hold its rows for long."""
    claims, holders = result.claims, result.holders
    return {
        "queue": result.queue,
        "design": result.design,
        "stuck_after_seconds": None if result.expires else result.stuck_after_seconds,
        "claims": None
        if claims is None
        else [
            {**asdict(claim), "stuck": (claim.claimed_seconds or 0.0) >= result.limit}
            for claim in claims.claims
        ],
        "more": claims is not None and claims.more,
        "sessions": None if holders is None else [session.as_json() for session in holders],
    }


VIEW = View(
    "stuck",
    __doc__,
    read,
    _rows,
    _columns,
    summary=_summary,
    detail=_detail,
    json=_json,
    drop_order=("tries", "where", "does"),
    removed_column="owner",
)
