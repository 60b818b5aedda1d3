"""A timeline, and an explanation, of one queue: read, put together, as JSON."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, tzinfo
from functools import cached_property
from pathlib import Path

from console.engines import Database
from console.errors import ConsoleError, UsageError
from console.features.history import forecast
from console.features.history.points import ACTION, NOTE, NothingRecordedError, spells
from console.features.history.reader import RecordReader
from console.features.history.rollup_files import existing_default_lake
from console.features.history.segments import TimeRange
from console.features.why.causes import Case, Cause, causes_of
from console.features.why.events import Event, events_of
from console.features.why.recorded import (
    Catalog,
    QueueRecord,
    minutes,
    read_catalog,
    read_queue,
    schema_of,
)
from console.features.why.usual import DAYS, SPAN, Change, Minutes, changes_of, values_of
from console.figures import AGE, ERRORS, GAP, POP, PUSH, READY
from console.formats import moment, numbered

_BESIDE = timedelta(minutes=15)
"""How long before the first change the events beside it begin..."""
_ACTED = timedelta(hours=2)
"""... and what people did."""
_WORTH = 0.25
"""A change by less than this part of what is usual is no event."""
_LATEST = timedelta(microseconds=1)


@dataclass(frozen=True)
class Where:
    """What is read: a queue, in the recordings of a connection and, unless it is of a replay or
    none is named, in its database."""

    root: Path | None
    connection: str
    schema: str | None
    queue: str
    database: Callable[[], Database] | None = None

    @cached_property
    def reader(self) -> RecordReader | None:
        return None if self.root is None else RecordReader(self.root, self.connection, once=True)


@dataclass(frozen=True)
class Timeline:
    where: str
    """The queue and its connection."""
    span: TimeRange
    events: tuple[Event, ...]
    catalog: Catalog
    skipped: str = ""

    @property
    def unread(self) -> str:
        return "; ".join(filter(None, (self.catalog.unread, self.skipped)))

    def as_json(self) -> dict[str, object]:
        return {
            "queue": self.where,
            "since": self.span.begin.isoformat(),
            "until": self.span.end.isoformat(),
            "events": [event.as_json() for event in self.events],
            "unread": self.unread,
        }


@dataclass(frozen=True)
class Explanation:
    where: str
    at: datetime
    basis: str
    """What is usual is from this; empty: nothing is known to be usual."""
    changes: tuple[Change, ...]
    """Figures that are outside their usual bands."""
    causes: tuple[Cause, ...]
    events: tuple[Event, ...]
    """Beside them: from shortly before the first change."""
    lasting: tuple[str, ...]
    """Codes of warnings, and worse, that have not ended."""
    harms: bool
    now: str
    """What the last recorded minute says of its traffic; empty: it says nothing."""
    minutes: int
    """How many were recorded."""
    unread: str = ""

    @property
    def verdict(self) -> str:
        if not self.basis and not self.causes:
            recorded = numbered(self.minutes, "recorded minute")
            return f"too little is known: {recorded}, and what is usual takes 16"
        if self.causes:
            count = numbered(len(self.causes), "possible cause")
            return f"{count}, likeliest first" if self.causes[1:] else count
        if self.harms:
            return "nothing here explains it"
        return "no figure is worse than usual: nothing to explain"

    def as_json(self, zone: tzinfo | None) -> dict[str, object]:
        return {
            "queue": self.where,
            "at": self.at.isoformat(),
            "usual": self.basis,
            "verdict": self.verdict,
            "findings": list(self.lasting),
            "changes": [change.as_json() for change in self.changes],
            "causes": [
                {
                    "code": cause.code,
                    "what": cause.what,
                    "at": cause.at.isoformat(),
                    "evidence": [said(one.at, one.words, zone) for one in cause.evidence],
                    "disproof": cause.disproof,
                    "follows": cause.follows,
                }
                for cause in self.causes
            ],
            "events": [event.as_json() for event in self.events],
            "unread": self.unread,
        }


def said(at: datetime | None, words: str, zone: tzinfo | None) -> str:
    return words if at is None else f"{moment(at, zone)}: {words}"


def timeline(where: Where, seconds: float, now: datetime) -> Timeline:
    """The last seconds. ConsoleError."""
    span = TimeRange(now - timedelta(seconds=seconds), now + _LATEST)
    # Figures need the hours before to know what is usual.
    record = _read(where, TimeRange(min(span.begin, now - SPAN), span.end), span.begin, now)
    changes, _ = _changes(where, record)
    events = events_of(record, _worth(changes))
    shown = tuple(event for event in events if (event.until or event.at) >= span.begin)
    return Timeline(_name(record), span, shown, record.catalog, record.skipped)


def explain(where: Where, at: datetime, now: datetime) -> Explanation:
    """Why it was not as usual at that time. ConsoleError."""
    span = TimeRange(at - SPAN, at + _LATEST)
    record = _read(where, span, span.begin, now)
    changes, basis = _changes(where, record)
    lasting = [change for change in changes if change.until is None]
    events = events_of(record, _worth(changes))
    in_force = [spell for spell in spells(record.findings) if spell.ended is None]
    case = Case(record, at, lasting, events, in_force)
    beside = [one for one in events if _is_beside(one, case, at)]
    return Explanation(
        _name(record), at, basis, tuple(lasting), tuple(causes_of(case)), tuple(beside),
        tuple(spell.code for spell in in_force if spell.severity != "note"),
        bool(case.harms), _now(record), len(record.points),
        "; ".join(filter(None, (record.catalog.unread, record.skipped))),
    )  # fmt: skip


def distinct(changes: Sequence[Change]) -> list[Change]:
    """Without a ring's gap beside its ready messages, which says the same twice."""
    known = {one.measure.name for one in changes}
    return [c for c in changes if c.measure.name != GAP.name or READY.name not in known]


def _worth(changes: Sequence[Change]) -> list[Event]:
    return [one.event for one in distinct(changes) if one.share >= _WORTH]


def _is_beside(event: Event, case: Case, at: datetime) -> bool:
    """What people did and noted counts for longer; a mere note of the doctor by its beginning."""
    before = _ACTED if event.kind in {ACTION, NOTE} else _BESIDE
    until = event.at if event.severity == "note" else event.until or at
    return until >= case.onset - before


def _now(record: QueueRecord) -> str:
    point = record.points[-1] if record.points else None
    shown = (READY, AGE, PUSH, POP, ERRORS) if point else ()
    values = [(one, point.figures.get(one.name)) for one in shown if point]
    return ", ".join(f"{one.title} {one.unit.text(v)}" for one, v in values if v is not None)


def _name(record: QueueRecord) -> str:
    return f"{record.schema}.{record.queue} on {record.connection}"


def _read(where: Where, span: TimeRange, since: datetime, now: datetime) -> QueueRecord:
    """NothingRecordedError: nothing is known of the queue at all."""
    schema, known = where.schema, Catalog()
    if where.database is not None:
        database = where.database()
        try:
            if schema is None:
                schema = schema_of(database, None, where.queue)
            known = read_catalog(database, since, now)
        except UsageError:
            raise
        except ConsoleError as error:
            known = Catalog(unread=f"the audit was not read: {error.why or error.what}")
    record = read_queue(where.reader, where.connection, schema, where.queue, span, known)
    if not record.points and not record.links and (where.database is None or known.unread):
        raise NothingRecordedError(
            f"Nothing was recorded of {where.queue!r} on {where.connection!r} in that time.",
            why=known.unread or f"Searched in {where.root}.",
            next_step="The console records while it is open; dbq-console record always does.",
        )
    return record


def _changes(where: Where, record: QueueRecord) -> tuple[list[Change], str]:
    if where.reader is None or not record.points:
        return [], ""
    known = forecast.Forecast()
    with suppress(ConsoleError):
        of = (record.connection, record.schema, record.queue)
        known = forecast.read(existing_default_lake(), *of)
    return changes_of(record, _earlier(where.reader, record), known)


def _earlier(reader: RecordReader, record: QueueRecord) -> dict[str, Sequence[Minutes]]:
    """The same hours of each of the last days."""
    found: dict[str, list[Minutes]] = defaultdict(list)
    span = TimeRange(record.span.end - (SPAN * 2 / 3), record.span.end)
    for days in range(1, DAYS + 1):
        back = timedelta(days=days)
        points = minutes(reader, record, TimeRange(span.begin - back, span.end - back))
        if points:
            past = replace(record, points=points, waits=(), links=(), consumers=())
            for name, values in values_of(past, points).items():
                if values:
                    found[name].append(values)
    return dict(found)
