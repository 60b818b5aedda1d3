"""A queue over time, from its recording: as many points as are wanted, whatever the span.

A point is a period. Nothing is made up: where nothing was seen there is no point.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from console.errors import ConsoleError, UsageError
from console.monitor.latency import FIGURES as LATENCIES
from console.monitor.recording import reader
from console.monitor.recording.reader import RecordReader, Rollups, Sources
from console.monitor.recording.segments import ACTIONS, FINDINGS, SAMPLES, RecordKind, TimeRange
from console.monitor.subscribers import from_text

STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
"""How long a point may be, in seconds."""
MOST_POINTS = 10_000

_HIGHEST = (
    *("ready", "scheduled", "claimed", "stuck", "errors", "done", "age_seconds", "gap"),
    *LATENCIES,
)
_MEAN = ("push_per_second", "pop_per_second", "latency_seconds")


_LATE_PAUSES = 2.0
_LATE_SECONDS = 1.0
"""A sample that comes later than so many pauses, and this, after the one before: one was missed."""


class NothingRecordedError(ConsoleError):
    exit_status = 1


@dataclass(frozen=True)
class Point:
    """One period. Counts, ages, gap, latencies: the highest that was seen; rates: their mean.

    None: the design has it not, or nobody knew it at any look.
    """

    at: datetime
    """Its beginning."""
    looks: int
    ready: int | None
    scheduled: int | None
    claimed: int | None
    stuck: int | None
    errors: int | None
    done: int | None
    age_seconds: float | None
    gap: int | None
    push_per_second: float | None
    pop_per_second: float | None
    latency_seconds: float | None
    pause_seconds: float | None = None
    """The longest pause that was meant to follow a sample; None: the recording does not tell."""
    waiting_p50_seconds: float | None = None
    waiting_p95_seconds: float | None = None
    waiting_p99_seconds: float | None = None
    processing_p50_seconds: float | None = None
    processing_p95_seconds: float | None = None
    processing_p99_seconds: float | None = None
    subscribers: Mapping[str, int] = field(default_factory=dict)
    """The gap of each subscriber of a ring; empty too where a rollup tells only the slowest's."""

    @property
    def slowest(self) -> str | None:
        return max(self.subscribers, key=lambda name: self.subscribers[name], default=None)

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "at": self.at.isoformat()}


@dataclass(frozen=True)
class Mark:
    """Something that happened: a finding that came, an action, what an operator noted."""

    at: datetime
    until: datetime | None
    """When it was over; None: it was not, as far as was seen. A note is a moment."""
    kind: str
    """`finding`, `action` or `note`."""
    name: str
    """Its code, its verb, or who noted it."""
    words: str

    def as_json(self) -> dict[str, object]:
        until = None if self.until is None else self.until.isoformat()
        return {**asdict(self), "at": self.at.isoformat(), "until": until}


@dataclass(frozen=True)
class History:
    connection: str
    schema: str
    queue: str
    span: TimeRange
    step_seconds: int
    points: tuple[Point, ...]
    marks: tuple[Mark, ...]
    skipped: str = ""
    """What of the recording could not be read."""
    tables: tuple[str, ...] = (reader.RAW,)
    """Where the points are from: `raw`, `minute`, `hour`, `day`."""

    @property
    def runs(self) -> tuple[tuple[Point, ...], ...]:
        """The points that belong together: between two runs looks were missed.

        An idle queue is sampled seldom, and that is no gap.
        """
        runs: list[list[Point]] = []
        for point in self.points:
            if runs and self._follows(runs[-1][-1], point):
                runs[-1].append(point)
            else:
                runs.append([point])
        return tuple(map(tuple, runs))

    def _follows(self, before: Point, point: Point) -> bool:
        reach = self.step_seconds + (before.pause_seconds or 0.0) * _LATE_PAUSES + _LATE_SECONDS
        apart = (point.at - before.at).total_seconds()
        return apart <= max(1.5 * self.step_seconds, reach)

    def as_json(self) -> dict[str, object]:
        return {
            "connection": self.connection,
            "schema": self.schema,
            "queue": self.queue,
            "since": self.span.begin.isoformat(),
            "until": self.span.end.isoformat(),
            "step_seconds": self.step_seconds,
            "points": [point.as_json() for point in self.points],
            "marks": [mark.as_json() for mark in self.marks],
            "skipped": self.skipped,
            "tables": list(self.tables),
        }


def step_for(span: TimeRange, most_points: int) -> int:
    """The shortest step with which the span has at most so many points."""
    seconds = (span.end - span.begin).total_seconds()
    return next((step for step in STEPS if seconds / step <= most_points), STEPS[-1])


def history(
    root: Path,
    connection: str,
    queue: str,
    span: TimeRange,
    *,
    schema: str | None = None,
    most_points: int = MOST_POINTS,
    lake: str | None = None,
) -> History:
    """Read it, from the rollups of a lake too where one is named.

    NothingRecordedError; UsageError where several queues have the name.
    """
    told = _Told(root, connection, span, step_for(span, most_points), lake)
    equal = {"queue": queue} if schema is None else {"queue": queue, "schema": schema}
    rows = told.rows(SAMPLES, equal)
    if not rows:
        raise NothingRecordedError(
            f"Nothing is recorded of {queue!r} on {connection!r} in that time.",
            why=told.skipped
            or f"The search was in {' and '.join(filter(None, (str(root), lake)))}.",
            next_step="The console records while it is open; dbq-console record does so always.",
        )
    schemas = sorted({row["schema"] or "" for row in rows})
    if len(schemas) > 1:
        raise UsageError(
            f"There are several queues {queue!r}.",
            why=f"In the schemas {', '.join(schemas)}.",
            next_step="Say which with --schema.",
        )
    marks = [
        *_findings(told.rows(FINDINGS, equal)),
        *_actions(told.reader.rows(ACTIONS, span), schemas[0], queue),
    ]
    return History(
        connection,
        schemas[0],
        queue,
        span,
        told.sources.step_seconds,
        tuple(points(rows, told.sources.step_seconds)),
        tuple(sorted(marks, key=lambda mark: mark.at)),
        told.skipped,
        told.sources.names,
    )


class _Told:
    """What the recordings and the rollups of a connection say of a span, each day once."""

    def __init__(
        self, root: Path, connection: str, span: TimeRange, step_seconds: int, lake: str | None
    ) -> None:
        self.reader = RecordReader(root, connection)
        self._span = span
        self._rollups: Rollups | None = None
        self.sources = Sources({}, frozenset(span.days()), frozenset(), step_seconds)
        if lake is not None:
            self._rollups = Rollups(lake, connection, self.reader.skipped)
            made = self._rollups.days()
            self.sources = reader.choose_sources(root, connection, made, span, step_seconds)

    @property
    def skipped(self) -> str:
        return self.reader.skipped.text

    def _thin(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        # Where rollups tell the rest of a day, their minutes are found by those of the samples.
        step = self.sources.step_seconds if self._rollups is None else 1
        return thinned(rows, step)

    def rows(self, kind: RecordKind, equal: Mapping[str, str]) -> list[Mapping[str, Any]]:
        """In order of time. Those of a table begin where their period does."""
        thin = self._thin if kind is SAMPLES else None
        raw = []
        if self.sources.raw:
            raw = self.reader.rows(kind, self._span, None, thin, **equal)
        found: list[Mapping[str, Any]] = [r for r in raw if r["at"].date() in self.sources.raw]
        seen = [row["at"] for row in found]
        for width, days in self.sources.by_width.items():
            if self._rollups is None or not days:
                continue
            table = self._rollups.rows(kind.name, width, days, self._span, **equal)
            rows = reader.not_recorded(table, seen, self.sources.both)
            found += (
                reader.rollup_samples(rows) if kind is SAMPLES else reader.rollup_findings(rows)
            )
        return sorted(found, key=lambda row: row["at"])


def thinned(rows: Iterable[dict[str, Any]], step_seconds: int) -> list[dict[str, Any]]:
    """Samples with those of one period put together, so that points come out the same.

    A month of samples need not be in memory at once.
    """
    chunks: dict[tuple[object, ...], dict[str, Any]] = {}
    for row in rows:
        # Of a mean only those may be one row that know it, or do not, together.
        known = tuple(row[name] is None for name in _MEAN)
        chunk = int(row["at"].timestamp() // step_seconds)
        key = (row["schema"], row["queue"], chunk, known)
        one = chunks.get(key)
        if one is None:
            chunks[key] = {**row, "looks": _looks(row), "subscribers": _gaps([row])}
            continue
        looks = _looks(row)
        for name in _MEAN:
            if row[name] is not None:
                one[name] += (row[name] - one[name]) * looks / (one["looks"] + looks)
        for name in (*_HIGHEST, "next_seconds"):
            both = [value for value in (one.get(name), row.get(name)) if value is not None]
            one[name] = max(both, default=None)
        one["subscribers"] = _gaps([one, row])
        one["looks"] += looks
    return list(chunks.values())


def points(rows: Iterable[Mapping[str, Any]], step_seconds: int) -> list[Point]:
    """Samples of one queue, in order of time, as points."""
    chunks: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        chunks.setdefault(int(row["at"].timestamp() // step_seconds), []).append(row)
    return [_point(place * step_seconds, seen) for place, seen in sorted(chunks.items())]


def _point(begin: int, seen: Sequence[Mapping[str, Any]]) -> Point:
    values: dict[str, Any] = {}
    for name in _HIGHEST:
        known = [row[name] for row in seen if row.get(name) is not None]
        values[name] = max(known, default=None)
    for name in _MEAN:
        weighed = [(row[name], _looks(row)) for row in seen if row[name] is not None]
        values[name] = _mean(weighed) if weighed else None
    looks = sum(_looks(row) for row in seen)
    pause = max((row["next_seconds"] for row in seen if row.get("next_seconds")), default=None)
    at = datetime.fromtimestamp(begin, UTC)
    return Point(at=at, looks=looks, pause_seconds=pause, subscribers=_gaps(seen), **values)


def _gaps(rows: Iterable[Mapping[str, Any]]) -> Mapping[str, int]:
    """The highest of each subscriber, as samples have recorded it or as they were put together."""
    highest: dict[str, int] = {}
    for row in rows:
        told = row.get("subscribers")
        if not isinstance(told, Mapping):
            told = {one.subscriber: one.gap for one in from_text(told) or ()}
        for name, gap in told.items():
            if gap is not None:
                highest[name] = max(gap, highest.get(name, gap))
    return highest


def _looks(row: Mapping[str, Any]) -> int:
    """For how many samples a row stands: a sample for one."""
    return max(1, int(row.get("looks") or 1))


def _mean(values: Sequence[tuple[float, int]]) -> float:
    return sum(value * weight for value, weight in values) / sum(w for _, w in values)


def _findings(rows: Sequence[Mapping[str, Any]]) -> list[Mark]:
    """From the sample of which a finding was first seen to the first at which it was not."""
    marks: list[Mark] = []
    looks = sorted({row["at"] for row in rows})
    seen: dict[str, dict[datetime, Mapping[str, Any]]] = {}
    for row in rows:
        if row["code"]:
            seen.setdefault(row["code"], {})[row["at"]] = row
    for code, at in seen.items():
        begin: datetime | None = None
        for look in looks:
            if look in at and begin is None:
                begin = look
            elif look not in at and begin is not None:
                marks.append(_mark(code, at[begin], look))
                begin = None
        if begin is not None:
            marks.append(_mark(code, at[begin], None))
    return marks


def _mark(code: str, row: Mapping[str, Any], until: datetime | None) -> Mark:
    began = row.get("first_at") or row["at"]
    return Mark(began, until, "finding", code, row["summary"] or "")


def _actions(rows: Sequence[Mapping[str, Any]], schema: str, queue: str) -> list[Mark]:
    """Of the queue; and notes of the whole database."""
    of = (schema, queue)
    rows = [
        row
        for row in rows
        if (row["schema"] or "", row["queue"]) == of or (row["note"] and not row["queue"])
    ]
    # As it ended, where it has.
    last = {row["action_id"]: row for row in sorted(rows, key=lambda row: bool(row["ended_at"]))}
    return [
        Mark(row["at"], row["at"], "note", row["operator"] or "", row["note"])
        if row["note"]
        else Mark(
            row["at"],
            row["ended_at"],
            "action",
            row["verb"] or "",
            ", ".join(filter(None, (row["outcome"], _counts(row), row["operator"]))),
        )
        for row in last.values()
    ]


def _counts(row: Mapping[str, Any]) -> str:
    """Nothing of a verb that has no messages to count, such as an installation."""
    done, planned = row["done"] or 0, row["planned"] or 0
    return f"{done:,} of {planned:,}" if done or planned else ""


def since(now: datetime, seconds: float) -> TimeRange:
    """The last so many seconds, the moment of now included."""
    return TimeRange(now - timedelta(seconds=seconds), now + timedelta(microseconds=1))
