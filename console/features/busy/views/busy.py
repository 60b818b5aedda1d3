"""Show who works on what now: claims, and sessions whose open transactions hold rows.

Of each queue the ten that are held the longest, as a sample has them; a queue of which a sample
cannot tell has a row with ? and the reason. With NAME only of that queue.

\b
Examples:
  dbq-console busy
  dbq-console busy mail --json
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from console.formats import UNKNOWN, duration, numbered, plain
from console.monitor.activity import label_of
from console.monitor.owners import Claim, Evidence, Holder
from console.monitor.sample import take_sample
from console.monitor.snapshot import QueueSnapshot, snapshot
from console.views.view import Column, Display, Line, Part, Source, Subject, View, or_unknown

_STYLES = {Evidence.GONE: "critical", Evidence.ALIVE: "", Evidence.UNKNOWN: "quiet"}


@dataclass(frozen=True)
class BusyRow:
    """A message that is worked on, or a session that holds rows; or why this is not known."""

    connection: str
    schema: str
    queue: str
    message: str | None = None
    """Its id; None: the session deletes what it pops."""
    who: str = ""
    held_seconds: float | None = None
    attempts: int | None = None
    owner: Evidence | None = None
    does: str = ""
    why_unknown: str = ""

    @property
    def key(self) -> str:
        what = (self.message, self.who) if not self.why_unknown else ("?",)
        return repr((self.connection, self.schema, self.queue, *what))


def read(source: Source) -> Sequence[BusyRow]:
    only = None if source.name is None else [source.queue]
    sample = take_sample(source.database, only=only)
    return rows_of(snapshot(one, sample.connection) for one in sample.queues)


def rows_of(snapshots: Iterable[QueueSnapshot]) -> list[BusyRow]:
    """The longest held first, then what is not known."""
    rows = [row for seen in snapshots for row in _of_queue(seen)]
    return sorted(rows, key=lambda row: (bool(row.why_unknown), -(row.held_seconds or 0.0)))


def _of_queue(seen: QueueSnapshot) -> Iterator[BusyRow]:
    of = (seen.connection, seen.schema, seen.queue)
    for claim in seen.claims or ():
        yield _of_claim(of, claim)
    for holder in seen.held_by:
        yield _of_holder(of, holder)
    if seen.problem:
        yield BusyRow(*of, why_unknown=seen.problem)
    elif seen.claims is None and "claimed" in seen.unknown:
        yield BusyRow(*of, why_unknown="its claims are not known: see its figures")
    elif seen.claimed and (left := seen.claimed - len(seen.claims or ())) > 0:
        more = f"{numbered(left, 'further claim')}, held for less long"
        yield BusyRow(*of, why_unknown=f"not in a sample: {more}; see stuck")


def _of_claim(of: tuple[str, str, str], claim: Claim) -> BusyRow:
    return BusyRow(
        *of,
        message=claim.id,
        who=claim.consumer or claim.session or claim.claimed_by or "",
        held_seconds=claim.claimed_seconds,
        attempts=claim.attempts,
        owner=claim.owner,
        does="its claim ends with its session" if claim.bound else "",
    )


def _of_holder(of: tuple[str, str, str], holder: Holder) -> BusyRow:
    names = (holder.application_name, holder.user_name)
    who = ", ".join([label_of(holder.session), *filter(None, names)])
    return BusyRow(*of, who=who, held_seconds=holder.held_seconds, does=holder.state or "")


def _columns(display: Display) -> Sequence[Column[BusyRow]]:
    del display
    return (
        Column("connection", "connection", lambda r: plain(r.connection), "quiet", 8, 16),
        Column("queue", "queue", lambda r: plain(r.queue), "strong", 6, 24),
        Column("message", "message", _message, "", 7, 36),
        Column("for", "for", lambda r: or_unknown(r.held_seconds, duration), "", 8, 14,
               align_right=True, sort_key=lambda r: r.held_seconds),
        Column("who", "who", lambda r: plain(r.who) or UNKNOWN, "", 8, 44),
        Column("owner", "owner", lambda r: "" if r.owner is None else r.owner.value,
               lambda r: "" if r.owner is None else _STYLES[r.owner], 7, 7),
        Column("attempts", "attempts", lambda r: "" if r.attempts is None else str(r.attempts),
               "quiet", 8, 8, align_right=True, sort_key=lambda r: r.attempts),
        Column("does", "", lambda r: plain(r.why_unknown or r.does),
               lambda r: "warning" if r.why_unknown else "quiet", 10, 80),
    )  # fmt: skip


def _message(row: BusyRow) -> str:
    if row.why_unknown:
        return UNKNOWN
    return "holds rows" if row.message is None else plain(row.message)


def _summary(rows: Sequence[BusyRow], display: Display) -> Sequence[Line]:
    del display
    known = [row for row in rows if not row.why_unknown]
    queues = len({(row.connection, row.schema, row.queue) for row in known})
    if not known:
        return [[(VIEW.empty, "")]]
    return [[(f"{len(known):,} held in {numbered(queues, 'queue')}", "strong")]]


def _detail(row: BusyRow, display: Display) -> Sequence[Part]:
    del display
    words = f"  {row.does}" if row.does else ""
    text = row.why_unknown or f"{row.who or UNKNOWN} holds {_message(row)}{words}"
    return [(plain(f"{row.connection} {row.schema}.{row.queue}: {text}"), "")]


def _json(rows: Sequence[BusyRow]) -> Mapping[str, object]:
    return {"busy": [{**vars(row), "owner": row.owner and row.owner.value} for row in rows]}


VIEW = View(
    "busy",
    __doc__,
    read,
    lambda rows: {row.key: row for row in rows},
    _columns,
    subject=Subject.DATABASE,
    empty="No claim, and no open transaction that holds rows of a queue.",
    summary=_summary,
    detail=_detail,
    json=_json,
    drop_order=("does", "attempts", "connection", "owner"),
)
"""Of a database, or of one queue."""
