"""List operators' actions, newest first: who, when, what, how many. No payloads.

A running action whose session is closed was interrupted; its counts are what it had done.

\b
Examples:
  dbq-console audit orders --since 1d
  dbq-console audit --verb purge --json
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from console.catalog import audit
from console.catalog.audit import LIST_MOST, Entry, EntryFilter, Outcome
from console.errors import UsageError
from console.formats import duration, moment, plain
from console.monitor import owners
from console.verbs.index import VERBS
from console.verbs.parameters import DURATION, Parameter, WholeNumber
from console.views.view import Column, Display, Part, Source, Subject, View

if TYPE_CHECKING:
    from sqlalchemy import Connection

_MARKS = {"failed": "✖", "refused": "✖", "interrupted": "!", "stopped": "!", "running": "▶"}
_STYLES = {"failed": "critical", "refused": "critical", "interrupted": "warning"}


@dataclass(frozen=True)
class AuditRow:
    """One action of one connection."""

    entry: Entry
    alive: bool | None = None
    """For an unfinished action: whether its session still exists."""
    connection: str = ""
    """Its name, if there are several."""

    @property
    def key(self) -> str:
        """The row key. Action ids are unique per database only."""
        return repr((self.connection, self.entry.action_id))

    @property
    def outcome(self) -> str:
        """How it ended; the audit alone cannot tell that an action was interrupted."""
        if self.entry.outcome != Outcome.RUNNING.value:
            return self.entry.outcome
        return {False: "interrupted", None: "running?", True: "running"}[self.alive]

    @property
    def counts(self) -> str:
        entry = self.entry
        if entry.planned:
            return f"{entry.done:,} of {entry.planned:,}"
        return f"{entry.done:,}" if entry.done else ""

    @property
    def not_done(self) -> str:
        """What was skipped or failed."""
        kinds = ((self.entry.skipped, "skipped"), (self.entry.failed, "failed"))
        return ", ".join(f"{count:,} {word}" for count, word in kinds if count)

    @property
    def seconds(self) -> float:
        """From its beginning to its last batch."""
        return max(0.0, (self.entry.last_at - self.entry.started_at).total_seconds())

    @property
    def took(self) -> str:
        return duration(self.seconds)

    @property
    def queue(self) -> str:
        entry = self.entry
        return plain(f"{entry.schema}.{entry.queue}") if entry.queue else ""

    @property
    def about(self) -> str:
        return "  ".join(plain(text) for text in (self.entry.filters, self.entry.detail) if text)


def read(source: Source, label: str = "") -> tuple[AuditRow, ...]:
    """`label`: of the connection, if there are several."""
    wanted = dict(source.values)
    limit = wanted.pop("limit")
    with source.database.transaction("read the audit", read_only=True) as connection:
        entries = audit.entries(
            connection, EntryFilter(source.schema, source.name, **wanted), limit
        )
        alive = owners.alive(connection, entries)
        if not entries and (verb := wanted["verb"]) and verb not in _KNOWN:
            _require_recorded(connection, verb)
    return tuple(AuditRow(entry, alive.get(entry.action_id), label) for entry in entries)


_KNOWN = {*VERBS, "adopt", "export", "install", "repair"}
"""What the core records; a feature's jobs are known once they were recorded."""


def _require_recorded(connection: Connection, verb: str) -> None:
    """UsageError where no action of any queue has that verb."""
    if audit.entries(connection, EntryFilter(verb=verb), 1):
        return
    recorded = {entry.verb for entry in audit.entries(connection, EntryFilter())}
    raise UsageError(
        f"There is no verb {verb!r}.",
        why=f"Recorded are, here or elsewhere: {', '.join(sorted(_KNOWN | recorded))}.",
    )


def _columns(display: Display) -> Sequence[Column[AuditRow]]:
    def started(row: AuditRow) -> datetime:
        return row.entry.started_at

    return (
        Column("mark", "", lambda row: _MARKS.get(row.outcome, ""), _mark_style, max_width=1),
        display.time_column("when", "when", started, "quiet"),
        Column("verb", "verb", lambda row: plain(row.entry.verb), "strong", 7, 12),
        Column("connection", "connection", lambda row: plain(row.connection), "quiet", 8, 24),
        Column("queue", "queue", lambda row: row.queue, "", 14, 40),
        Column("outcome", "outcome", lambda row: plain(row.outcome), _style, 11, 12),
        Column(
            "done", "done", _done, "", 6, 14, align_right=True, sort_key=lambda row: row.entry.done
        ),
        Column(
            "planned", "planned", _planned, "quiet", 7, 14, align_right=True,
            sort_key=lambda row: row.entry.planned,
        ),
        Column("not_done", "skipped", lambda row: row.not_done, _not_done_style, 10, 28),
        Column(
            "took", "took", lambda row: row.took, "quiet", 9, 10, align_right=True,
            sort_key=lambda row: row.seconds,
        ),
        Column("operator", "by", lambda row: plain(row.entry.operator), "", 8, 26),
        Column(
            "action", "no.", lambda row: str(row.entry.action_id), "quiet", 3, 8, align_right=True,
            sort_key=lambda row: row.entry.action_id,
        ),
        Column("detail", "about", lambda row: row.about, "quiet", 10, 120),
    )  # fmt: skip


def _style(row: AuditRow) -> str:
    return _STYLES.get(row.outcome, "")


def _mark_style(row: AuditRow) -> str:
    return _style(row) or "quiet"


def _not_done_style(row: AuditRow) -> str:
    return "warning" if row.entry.failed else "quiet"


def _done(row: AuditRow) -> str:
    return f"{row.entry.done:,}" if row.entry.planned or row.entry.done else ""


def _planned(row: AuditRow) -> str:
    return f"{row.entry.planned:,}" if row.entry.planned else ""


def _line(row: AuditRow, display: Display) -> str:
    entry = row.entry
    of = f"{entry.verb} {row.queue}".rstrip()
    parts = (
        f"{entry.action_id:>6}  {moment(entry.started_at, display.zone)}  {of}: {row.outcome}",
        ", ".join(text for text in (row.counts, row.not_done) if text),
        f"in {row.took}",
        f"by {entry.operator} as {entry.database_user}",
        row.about,
    )
    return "  ".join(plain(part) for part in parts if part)


def _detail(row: AuditRow, display: Display) -> list[Part]:
    return [(_line(row, display).strip(), "")]


def _json(rows: Sequence[AuditRow]) -> Mapping[str, object]:
    return {"actions": [{**row.entry.as_json(), "alive": row.alive} for row in rows]}


VIEW = View(
    "audit",
    __doc__,
    read,
    lambda rows: {row.key: row for row in rows},
    _columns,
    subject=Subject.DATABASE,
    parameters=(
        Parameter("verb", "Only this verb.", metavar="V"),
        Parameter("operator", "Only by this operator: a part of user@host.", metavar="WHO"),
        Parameter("since", "Only actions begun within this time.", DURATION, metavar="T"),
        Parameter("running", "Only actions still running.", is_flag=True),
        Parameter(
            "limit", "At most this many, newest first.", WholeNumber(1, LIST_MOST), default="50",
            metavar="N",
        ),
    ),
    text=lambda rows, display: [_line(row, display) for row in rows] or ["No actions."],
    detail=_detail,
    json=_json,
    drop_order=(
        *("detail", "action", "took", "planned", "not_done", "operator", "connection", "done"),
    ),
)  # fmt: skip
"""Of a database, or of a queue that need not exist any more."""
