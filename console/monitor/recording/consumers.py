"""Consumers as they were recorded: for those that are gone, and for who has fallen silent."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from console.monitor.consumers import Consumer, Consumers
from console.monitor.recording.reader import RecordReader
from console.monitor.recording.segments import CONSUMERS, Row, TimeRange

GONE_SECONDS = 86_400.0
"""So long one that is gone is shown."""
NOT_RECORDED = (
    "nothing is recorded of it in the last day: a console that is open records, or dbq-console "
    "record"
)
_TEXTS = {"does", "identities"}
_FIGURES = [f.name for f in fields(Consumer) if f.name in {*CONSUMERS.columns} - _TEXTS]


def rows(found: Consumers, at: datetime, late: int) -> Iterator[Row]:
    """A look, as rows of CONSUMERS; `late`: the messages that waited for too long."""
    of = {"at": at, "schema": found.queue.schema, "queue": found.queue.name, "late": late}
    for one in found.consumers:
        figures = {name: getattr(one, name) for name in _FIGURES}
        texts = {"does": ",".join(one.does), "identities": "\n".join(one.identities)}
        yield {**of, **figures, **texts}
    if not found.consumers:
        yield {**of, **dict.fromkeys(_FIGURES), **dict.fromkeys(_TEXTS)}


def recorded(
    root: Path, connection: str, schema: str, queue: str, now: datetime
) -> list[dict[str, Any]]:
    """The rows of the queue in the last day, in order of time. Waits for the disk."""
    span = TimeRange(now - timedelta(seconds=GONE_SECONDS), now + timedelta(minutes=1))
    reader = RecordReader(root, connection)
    return reader.rows(CONSUMERS, span, schema=schema, queue=queue)


def latest(recorded_rows: Iterable[Mapping[str, Any]]) -> tuple[Consumer, ...]:
    """Each that was seen, as it was at last."""
    last = {}
    for row in recorded_rows:
        if (one := consumer_of(row)) is not None:
            last[one.who] = one
    return tuple(last.values())


def gone(seen: Collection[Consumer], there: Collection[Consumer]) -> tuple[Consumer, ...]:
    """Those that were there and are not now, who was seen last first."""
    whole = {one.name for one in (*seen, *there) if one.program or one.host}
    present = {one.who for one in there}
    found = [
        one
        for one in seen
        # Claims that outlived their session are told without where it was.
        if one.who not in present and (one.program or one.host or one.name not in whole)
    ]
    return tuple(sorted(found, key=lambda one: str(one.last_seen), reverse=True))


def consumer_of(row: Mapping[str, Any]) -> Consumer | None:
    """As it was; None: nobody was seen then."""
    does = tuple(filter(None, str(row.get("does") or "").split(",")))
    if not does and row.get("sessions") is None:
        return None
    figures = {name: row.get(name) for name in _FIGURES}
    identities = tuple(filter(None, str(row.get("identities") or "").split("\n")))
    seen = {"does": does, "identities": identities, "last_seen": row["at"]}
    return Consumer(**{**figures, **seen})
