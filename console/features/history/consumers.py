"""Consumers and producers of a queue as they are recorded, and read again."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

from console.features.history.reader import RecordReader
from console.features.history.segments import CONSUMERS, Row, TimeRange
from console.monitor.consumers import Consumer, Consumers, PastSample

GONE_SECONDS = 86_400.0
"""How long a disconnected consumer is shown."""
_TEXTS = {"does", "identities"}
_FIGURES = [f.name for f in fields(Consumer) if f.name in {*CONSUMERS.columns} - _TEXTS]


def rows(consumers: Consumers, at: datetime, late: int) -> Iterator[Row]:
    """A sample as rows of CONSUMERS; `late`: the messages that waited for too long."""
    of = {"at": at, "schema": consumers.queue.schema, "queue": consumers.queue.name, "late": late}
    for consumer in consumers.consumers:
        figures = {name: getattr(consumer, name) for name in _FIGURES}
        texts = {"does": ",".join(consumer.does), "identities": "\n".join(consumer.identities)}
        yield {**of, **figures, **texts}
    if not consumers.consumers:
        yield {**of, **dict.fromkeys(_FIGURES), **dict.fromkeys(_TEXTS)}


def recorded(
    root: Path, connection: str, schema: str, queue: str, now: datetime
) -> list[PastSample]:
    """The queue's samples of the last day, in order of time. Reads from disk."""
    span = TimeRange(now - timedelta(seconds=GONE_SECONDS), now + timedelta(minutes=1))
    found = RecordReader(root, connection).rows(CONSUMERS, span, schema=schema, queue=queue)
    return [_sample(at, list(of)) for at, of in groupby(found, lambda row: row["at"])]


def _sample(at: datetime, seen: Sequence[Mapping[str, Any]]) -> PastSample:
    consumers = (consumer for row in seen if (consumer := _consumer(row)) is not None)
    return PastSample(at, tuple(consumers), any(row.get("late") for row in seen))


def _consumer(row: Mapping[str, Any]) -> Consumer | None:
    """None: no consumer was seen then."""
    does = tuple(filter(None, str(row.get("does") or "").split(",")))
    if not does and row.get("sessions") is None:
        return None
    figures = {name: row.get(name) for name in _FIGURES}
    identities = tuple(filter(None, str(row.get("identities") or "").split("\n")))
    seen = {"does": does, "identities": identities, "last_seen": row["at"]}
    return Consumer(**{**figures, **seen})
