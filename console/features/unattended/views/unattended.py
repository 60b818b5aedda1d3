"""List what may be repaired without a person: which findings, by which policy, and why it is safe.

The policy is in the configuration: [profiles.NAME.unattended].
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from console.catalog import Kind, Queue, decisions
from console.config.values import OFF
from console.features.unattended import audited
from console.features.unattended.policy import (
    CLAIMS_GONE,
    REPAIRABLE,
    Audited,
    Past,
    Policy,
    Repairable,
    why_not,
)
from console.formats import numbered, plain
from console.monitor.limits import is_about, silences_of
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
        held = decisions.active(connection)
        for queue in source.queues:
            policy = Policy.of_settings(source.settings_of(queue.name))
            past = audited.read(connection, queue)
            last, day = past.within(_HOUR), past.within(24 * _HOUR)
            for kind in REPAIRABLE:
                if not _concerns(queue, kind):
                    continue
                why = why_not(queue, kind, policy, held, database) or _silenced(queue, kind, held)
                now = _now(kind, policy, past, why)
                of_kind = [one for one in day if one.kind == kind.key]
                used = sum(one.rows for one in last)
                name = (queue.schema, queue.name)
                rows.append(PolicyRow(*name, kind, policy, now, len(last), used, of_kind))
    return rows


def _silenced(queue: Queue, kind: Repairable, held: Sequence[decisions.Decision]) -> str:
    about = (
        f"{code} is {one.words}"
        for one in silences_of(held, queue)
        for code in kind.codes
        if is_about(one, code)
    )
    return next(about, "")


def _now(kind: Repairable, policy: Policy, past: Audited, why: str) -> str:
    if policy.value(kind) == OFF:
        return "off"
    if stopped := past.stops.get(kind.key):
        return stopped[1].text
    return f"left to a person: {why}" if why else "allowed"


def _concerns(queue: Queue, kind: Repairable) -> bool:
    """Whether such queues can have such findings."""
    if kind is CLAIMS_GONE:
        return "claimed" in queue.states and "release" in queue.verbs
    return queue.design.name == "ring" and queue.kind is Kind.INSTALLED


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
