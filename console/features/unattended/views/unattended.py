"""List what may be repaired without a person: which findings, by which policy, and why it is safe.

The policy is in the configuration: [profiles.NAME.unattended].
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from console import catalog, sql
from console.catalog import Kind, Queue, audit, decisions
from console.config.values import OFF
from console.features.unattended.policy import (
    CLAIMS_GONE,
    REPAIRABLE,
    USUAL_SECONDS,
    Past,
    Policy,
    Repairable,
    keeps_away,
    repairs_of,
    stops_of,
)
from console.formats import numbered, plain
from console.views.view import Column, Display, Part, Source, Subject, View

_HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class PolicyRow:
    """What the policy says of one kind of findings of a queue."""

    schema: str
    queue: str
    kind: Repairable
    policy: Policy
    now: str
    """`allowed`, `off`, or why it is left to a person."""
    repairs: int
    """In the last hour, of all kinds."""
    rows: int
    day: Sequence[Past] = field(default=(), compare=False)
    """The repairs of this kind within a day."""

    @property
    def left(self) -> str:
        """Of its budget."""
        policy = self.policy
        repairs = max(0, policy.repairs_per_hour - self.repairs)
        return f"{numbered(repairs, 'repair')}, {max(0, policy.rows_per_hour - self.rows):,} rows"


def read(source: Source) -> Sequence[PolicyRow]:
    database = source.database
    rows = []
    with database.transaction("read the audit", read_only=True) as connection:
        now = sql.value(connection, datetime, "actions.server_time")
        held = decisions.active(connection)
        audited = catalog.has_audit(connection)
        for queue in source.queues:
            of = audit.EntryFilter(queue.schema, queue.name, since=USUAL_SECONDS)
            entries = audit.entries(connection, of) if audited else []
            policy = Policy.of_settings(source.settings_of(queue.name))
            past, stops = repairs_of(entries), stops_of(entries, now)
            last = [one for one in past if now - one.at < _HOUR]
            for kind in REPAIRABLE:
                if not _concerns(queue, kind):
                    continue
                stopped = stops.get(kind.key)
                why = stopped[1].text if stopped else _why_not(queue, kind, policy, held)
                day = [r for r in past if r.kind == kind.key and now - r.at < 24 * _HOUR]
                rows.append(
                    PolicyRow(
                        queue.schema,
                        queue.name,
                        kind,
                        policy,
                        why or "allowed",
                        len(last),
                        sum(one.rows for one in last),
                        day,
                    )
                )
    return rows


def _concerns(queue: Queue, kind: Repairable) -> bool:
    """Whether such queues can have such findings."""
    if kind is CLAIMS_GONE:
        return "claimed" in queue.states and "release" in queue.verbs
    return queue.design.name == "ring" and queue.kind is Kind.INSTALLED


def _why_not(
    queue: Queue, kind: Repairable, policy: Policy, held: Sequence[decisions.Decision]
) -> str:
    if policy.value(kind) == OFF:
        return "off"
    for one in held:
        if keeps_away(one, queue):
            return f"left to a person: {one.words}"
    if queue.kind is Kind.ADOPTED and not policy.library_rule:
        return "left to a person: adopted, and its table does not say library_rule = true"
    return ""


def _columns(display: Display) -> Sequence[Column[PolicyRow]]:
    del display
    return (
        Column("queue", "queue", lambda row: plain(row.queue), "strong", 6, 30),
        Column("kind", "finding", lambda row: row.kind.key, "", 6, 12),
        Column("policy", "policy", lambda row: row.policy.value(row.kind), "", 6, 8),
        Column("now", "now", lambda row: plain(row.now), _style, 8, 60),
        Column("day", "24 h", lambda row: _day(row) or "-", "quiet", 4, 20, align_right=True),
        Column("left", "left this hour", lambda row: row.left, "quiet", 10, 28),
    )


def _style(row: PolicyRow) -> str:
    return {"allowed": "", "off": "quiet"}.get(row.now, "warning")


def _day(row: PolicyRow) -> str:
    return f"{sum(one.rows for one in row.day):,}" if row.day else ""


def _detail(row: PolicyRow, display: Display) -> Sequence[Part]:
    del display
    kind = row.kind
    return [
        (f"{', '.join(kind.codes)}: ", "strong"),
        (f"{kind.does}\n", ""),
        (f"safe: {kind.safe}", "quiet"),
    ]


def _text(rows: Sequence[PolicyRow], display: Display) -> Iterator[str]:
    for kind in REPAIRABLE:
        yield f"{kind.key} = {', '.join(f'{value!r}' for value in (OFF, *kind.values))}".replace(
            "'", '"'
        )
        yield f"  {', '.join(kind.codes)}: it {kind.does}"
        yield f"  safe: {kind.safe}"
    yield ""
    if rows:
        yield from VIEW.table(rows, display)
    else:
        yield "No queue here can have such findings."


def _json(rows: Sequence[PolicyRow]) -> Mapping[str, object]:
    kinds = [
        {
            "key": kind.key,
            "values": [OFF, *kind.values],
            "codes": list(kind.codes),
            "does": kind.does,
            "safe": kind.safe,
        }
        for kind in REPAIRABLE
    ]
    queues = [
        {
            "schema": row.schema,
            "queue": row.queue,
            "kind": row.kind.key,
            "policy": row.policy.value(row.kind),
            "now": row.now,
            "repairs_last_hour": row.repairs,
            "rows_last_hour": row.rows,
            "repairs_per_hour": row.policy.repairs_per_hour,
            "rows_per_hour": row.policy.rows_per_hour,
            "rows_last_day": sum(one.rows for one in row.day),
        }
        for row in rows
    ]
    return {"kinds": kinds, "queues": queues}


VIEW = View(
    "unattended",
    __doc__,
    read,
    lambda rows: {repr((row.schema, row.queue, row.kind.key)): row for row in rows},
    _columns,
    subject=Subject.DATABASE,
    empty="No queue here can have such findings.",
    detail=_detail,
    text=_text,
    json=_json,
    drop_order=("left", "day", "policy"),
)
"""Of a database, or of one queue."""
