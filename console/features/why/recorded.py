"""What recordings, the audit and the catalog have of queues over a time."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from console import catalog
from console.catalog import audit, decisions
from console.catalog.decisions import Decision
from console.engines import Database
from console.errors import ConsoleError
from console.features.history import recording
from console.features.history.points import Point, Rows, last_known, points, sampled_schema, thinned
from console.features.history.reader import RecordReader
from console.features.history.segments import (
    ACTIONS,
    CONSUMERS,
    FINDINGS,
    LINKS,
    SAMPLES,
    WAITS,
    TimeRange,
)
from console.figures import FIGURES, SAMPLE_LATENCY
from console.monitor.latency import FIGURES as LATENCIES

MINUTE = 60
_ACTIONS_BACK = timedelta(days=30)
"""How far back a pause that is still in force is searched for."""
_SAMPLED = (
    *("at", "schema", "queue", "next_seconds", "subscribers"),
    *(figure.name for figure in FIGURES if figure.in_history),
    SAMPLE_LATENCY.name,
    *LATENCIES,
)


@dataclass(frozen=True)
class Catalog:
    """What a database's audit and catalog say; empty where they were not read."""

    actions: Rows = ()
    """As rows of ACTIONS, in order of time."""
    decisions: Sequence[Decision] = ()
    """In force now."""
    entries: Mapping[int, audit.Entry] = field(default_factory=dict)
    """The actions of the audit by their ids."""
    unread: str = ""
    """Why they were not read."""


def read_catalog(database: Database, since: datetime, now: datetime) -> Catalog:
    """Never fails: what could not be read is said."""
    seconds = max(0.0, (now - since).total_seconds())
    try:
        with database.transaction("read the audit", read_only=True) as connection:
            entries = audit.entries(connection, audit.EntryFilter(since=seconds))
            active = decisions.active(connection)
    except ConsoleError as error:
        return Catalog(unread=f"the audit was not read: {error.why or error.what}")
    rows = [recording.action(entry) for entry in reversed(entries)]
    return Catalog(rows, active, {entry.action_id: entry for entry in entries})


@dataclass(frozen=True)
class QueueRecord:
    """One queue and its connection over a time. Rows are in order of time."""

    connection: str
    schema: str
    queue: str
    span: TimeRange
    points: Sequence[Point] = ()
    """Of a minute each."""
    capacity: float | None = None
    """A ring's slots, in the last sample."""
    problems: Sequence[tuple[datetime, str]] = ()
    """Why samples could not read it, each since when, until the end of the time."""
    findings: Rows = ()
    links: Rows = ()
    """The first and the last of those that say the same."""
    waits: Rows = ()
    """Of its own sessions."""
    consumers: Rows = ()
    catalog: Catalog = Catalog()
    skipped: str = ""


def read_queue(
    reader: RecordReader | None,
    connection: str,
    schema: str | None,
    queue: str,
    span: TimeRange,
    of_database: Catalog,
) -> QueueRecord:
    """UsageError: several queues have the name."""
    if reader is None:
        return QueueRecord(connection, schema or "", queue, span, catalog=of_database)
    equal = {"queue": queue} if schema is None else {"queue": queue, "schema": schema}
    samples = thinned(reader.table(SAMPLES, span, _SAMPLED, **equal), MINUTE)
    sampled = sampled_schema(samples, queue)
    back = TimeRange(min(span.begin, span.end - _ACTIONS_BACK), span.end)
    actions = merged(reader.rows(ACTIONS, back), of_database.actions)
    marks = reader.rows(SAMPLES, span, ("at", "capacity", "problem"), _first_and_last, **equal)
    return QueueRecord(
        connection,
        sampled if schema is None else schema,
        queue,
        span,
        points(sorted(samples, key=lambda row: row["at"]), MINUTE),
        marks[-1]["capacity"] if marks else None,
        _problems(marks),
        reader.rows(FINDINGS, span, None, None, **equal),
        links(reader, span),
        reader.rows(WAITS, span, None, None, **equal),
        reader.rows(CONSUMERS, span, None, None, **equal),
        Catalog(actions, of_database.decisions, of_database.entries, of_database.unread),
        reader.skipped.text,
    )


def minutes(reader: RecordReader, record: QueueRecord, span: TimeRange) -> list[Point]:
    """The points of the same queue in another time."""
    equal = {"schema": record.schema, "queue": record.queue}
    rows = thinned(reader.table(SAMPLES, span, _SAMPLED, **equal), MINUTE)
    return points(sorted(rows, key=lambda row: row["at"]), MINUTE)


def merged(recorded: Rows, read: Rows) -> Rows:
    """Each action once, as it was known last."""
    return sorted(last_known([*recorded, *read]), key=lambda row: row["at"])


def links(reader: RecordReader, span: TimeRange) -> Rows:
    """The samples of a connection, the first and the last of those that say the same."""
    columns = ("at", "error", "role", "upstream")
    found = reader.rows(LINKS, span, columns, _ends_of_links)
    return _ends_of_links(found)


def _ends_of_links(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return _ends(rows, lambda row: (row["error"], row["role"], row["upstream"]))


def _first_and_last(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return _ends(rows, lambda row: (row["capacity"], row["problem"]))


def _ends(rows: list[dict[str, Any]], same: Any) -> list[dict[str, Any]]:
    runs = (list(of) for _, of in groupby(rows, same))
    return [row for of in runs for row in (of if len(of) == 1 else (of[0], of[-1]))]


def _problems(marks: Iterable[Mapping[str, Any]]) -> list[tuple[datetime, str]]:
    """Of the last samples, if they have one."""
    runs = [(words, next(of)["at"]) for words, of in groupby(marks, lambda row: row["problem"])]
    last = runs[-1:]
    return [(at, words) for words, at in last if words]


def schema_of(database: Database, schema: str | None, queue: str) -> str:
    """UsageError: there is no such queue."""
    return catalog.look_up(database, queue, schema, any_design=True).schema
