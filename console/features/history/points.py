"""A queue over time, from its recording: points of equal periods, for any span, and marks for what
happened to it. A period without samples has no point.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from console.errors import ConsoleError, UsageError
from console.features.history import reader
from console.features.history.reader import RecordReader, Rollups, Sources
from console.features.history.segments import (
    ACTIONS,
    FINDINGS,
    LINKS,
    PRIMARY,
    SAMPLES,
    STANDBY,
    RecordKind,
    TimeRange,
)
from console.figures import FIGURES, SAMPLE_LATENCY
from console.formats import NOT_APPLICABLE, UNKNOWN, duration, first_line, plain
from console.monitor.latency import FIGURES as LATENCIES
from console.monitor.subscribers import from_text
from console.views.view import Display, Part

if TYPE_CHECKING:
    import pyarrow as pa

STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
"""Lengths of a point, in seconds."""
MOST_POINTS = 10_000
FINDING, ACTION, NOTE = "finding", "action", "note"
Rows = Sequence[Mapping[str, Any]]
_SEVERITIES = ("", "note", "warning", "critical")

_KEPT = (*(figure for figure in FIGURES if figure.in_history), SAMPLE_LATENCY)
_HIGHEST = (*(figure.name for figure in _KEPT if not figure.unit.mean), *LATENCIES)
_MEAN = tuple(figure.name for figure in _KEPT if figure.unit.mean)
_SAMPLED = ("at", "schema", "queue", *_HIGHEST, *_MEAN, "next_seconds", "subscribers")


_LATE_PAUSES = 2.0
_LATE_SECONDS = 1.0
"""A sample was missed if the next comes later than this many pauses plus this many seconds."""


class NothingRecordedError(ConsoleError):
    exit_status = 1


@dataclass(frozen=True)
class Point:
    """One period. Counts, ages, gap, latencies: the highest; rates: the mean."""

    at: datetime
    samples: int
    figures: Mapping[str, float | None]
    """By name; None: not of this design, or not known in any sample."""
    pause_seconds: float | None = None
    """The longest pause that was planned after a sample; None: not recorded."""
    subscribers: Mapping[str, int] = field(default_factory=dict)
    """The gap of each subscriber of a ring; rollups have only that of the slowest."""

    def __getitem__(self, name: str) -> float | None:
        return self.figures[name]

    @property
    def slowest(self) -> str | None:
        return max(self.subscribers, key=lambda name: self.subscribers[name], default=None)

    def as_json(self) -> dict[str, object]:
        return {
            "at": self.at.isoformat(),
            "samples": self.samples,
            **{name: value for name, value in self.figures.items() if name not in LATENCIES},
            "pause_seconds": self.pause_seconds,
            **{name: self.figures[name] for name in LATENCIES},
            "subscribers": dict(self.subscribers),
        }


@dataclass(frozen=True)
class Mark:
    """An event: a finding, an action, an operator's note, or that the server was a standby."""

    at: datetime
    kind: str
    """`finding`, `action`, `note` or `standby`."""
    name: str
    """Its code, its verb, the author, or the connection."""
    words: str
    until: datetime | None = None
    """When it ended; None: not yet, as far as recorded. A note ends at once; of a standby, the last
    sample that was taken on it."""

    @property
    def seconds(self) -> float | None:
        """How long it lasted; None: not ended, or it is a note."""
        if self.until is None or self.kind == NOTE:
            return None
        return max(0.0, (self.until - self.at).total_seconds())

    @property
    def lasted(self) -> str:
        """Nothing for what was done in an instant, as a pause is: that lasts until it is ended."""
        seconds = self.seconds
        return NOT_APPLICABLE if seconds is None or seconds < 1 else duration(seconds)

    def when(self, display: Display) -> str:
        """From when to when."""
        ended = self.until not in {None, self.at}
        return display.moment(self.at) + (f" to {display.moment(self.until)}" if ended else "")

    def detail(self, display: Display) -> Sequence[Part]:
        return [
            (f"{self.kind} ", "quiet"),
            (plain(self.name), "strong"),
            (f"  {self.when(display)}\n{first_line(self.words)}", ""),
        ]

    def as_json(self) -> dict[str, object]:
        until = None if self.until is None else self.until.isoformat()
        return {**vars(self), "at": self.at.isoformat(), "until": until}


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
    tables: tuple[str, ...] = (reader.RAW,)
    """The sources of the points: `raw`, `minute`, `hour`, `day`."""

    @property
    def runs(self) -> tuple[tuple[Point, ...], ...]:
        """Points without missed samples in between. The long pauses of idle
        queues are no gaps."""
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
    """The shortest step for at most that many points."""
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
    """From recordings and, if one is named, the rollups of a lake.

    NothingRecordedError; UsageError: several queues have the name.
    """
    records = _Records(root, connection, span, step_for(span, most_points), lake)
    equal = {"queue": queue} if schema is None else {"queue": queue, "schema": schema}
    rows = records.rows(SAMPLES, equal)
    if not rows:
        raise NothingRecordedError(
            f"Nothing was recorded of {queue!r} on {connection!r} in that time.",
            why=records.skipped
            or f"The search was in {' and '.join(filter(None, (str(root), lake)))}.",
            next_step="The console records while it is open; dbq-console record always does.",
        )
    schema = sampled_schema(rows, queue)
    marks = [
        *findings_of(records.rows(FINDINGS, equal)),
        *_actions(records.reader.rows(ACTIONS, span), schema, queue),
        *_standbys(records.reader, span, records.sources.step_seconds),
    ]
    return History(
        connection,
        schema,
        queue,
        span,
        records.sources.step_seconds,
        tuple(points(rows, records.sources.step_seconds)),
        tuple(sorted(marks, key=lambda mark: mark.at)),
        records.skipped,
        records.sources.names,
    )


def sampled_schema(samples: Iterable[Mapping[str, Any]], queue: str) -> str:
    """The queue's, empty without samples. UsageError: several queues have the name."""
    schemas = sorted({row["schema"] or "" for row in samples})
    if len(schemas) > 1:
        raise UsageError(
            f"There are several queues {queue!r}.",
            why=f"In the schemas {', '.join(schemas)}.",
            next_step="Say which with --schema.",
        )
    return "".join(schemas)


class _Records:
    """The recordings and rollups of a connection in a span, each day once."""

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

    def _samples(self, equal: Mapping[str, str]) -> list[dict[str, Any]]:
        # With rollups, samples must keep their minutes: the rest of a day is found by them.
        step = self.sources.step_seconds
        if self._rollups is not None:
            step = min(step, 60)
        return thinned(self.reader.table(SAMPLES, self._span, _SAMPLED, **equal), step)

    def rows(self, kind: RecordKind, equal: Mapping[str, str]) -> list[Mapping[str, Any]]:
        """In order of time; a rollup row is at the beginning of its period."""
        raw: list[dict[str, Any]] = []
        if not self.sources.raw or not self.reader.is_recorded:
            pass
        elif kind is SAMPLES:
            raw = self._samples(equal)
        else:
            raw = self.reader.rows(kind, self._span, None, None, **equal)
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


def thinned(samples: "pa.Table", step_seconds: int) -> list[dict[str, Any]]:
    """Samples merged by period, which give the same points."""
    import pyarrow as pa  # noqa: PLC0415  # verbs shall start at once
    import pyarrow.compute  # noqa: PLC0415

    pc: Any = pyarrow.compute
    at = samples.column("at").cast(pa.int64())
    keys = {"period": pc.divide(at, step_seconds * 1_000_000)}
    # Only rows in which the same means are known can be merged.
    keys |= {f"no_{name}": pc.is_null(samples.column(name)) for name in _MEAN}
    for name, column in keys.items():
        samples = samples.append_column(name, column)
    highest = [(name, "max") for name in (*_HIGHEST, "next_seconds")]
    means = [(name, "mean") for name in _MEAN]
    others = [("at", "min"), ("at", "count"), ("subscribers", "distinct")]
    grouped = samples.group_by(["schema", "queue", *keys], use_threads=False)
    merged = grouped.aggregate([*highest, *means, *others])
    names = {f"{name}_{of}": name for name, of in (*highest, *means, *others)}
    names["at_count"] = "samples"
    merged = merged.rename_columns([names.get(name, name) for name in merged.column_names])
    rows: list[dict[str, Any]] = merged.to_pylist()
    for row in rows:
        row["subscribers"] = _gaps({"subscribers": text} for text in row["subscribers"])
    return rows


def points(rows: Iterable[Mapping[str, Any]], step_seconds: int) -> list[Point]:
    """From samples of one queue in order of time."""
    chunks: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        chunks.setdefault(int(row["at"].timestamp() // step_seconds), []).append(row)
    return [_point(chunk * step_seconds, seen) for chunk, seen in sorted(chunks.items())]


def _point(begin: int, seen: Sequence[Mapping[str, Any]]) -> Point:
    values: dict[str, float | None] = {}
    for name in _HIGHEST:
        known = [row[name] for row in seen if row.get(name) is not None]
        values[name] = max(known, default=None)
    for name in _MEAN:
        weighed = [(row[name], _weight(row)) for row in seen if row[name] is not None]
        values[name] = _mean(weighed) if weighed else None
    samples = sum(_weight(row) for row in seen)
    pause = max((row["next_seconds"] for row in seen if row.get("next_seconds")), default=None)
    at = datetime.fromtimestamp(begin, UTC)
    return Point(at, samples, values, pause, _gaps(seen))


def _gaps(rows: Iterable[Mapping[str, Any]]) -> Mapping[str, int]:
    """The highest of each subscriber, from recorded or merged samples."""
    highest: dict[str, int] = {}
    for row in rows:
        gaps = row.get("subscribers")
        if not isinstance(gaps, Mapping):
            gaps = {snapshot.subscriber: snapshot.gap for snapshot in from_text(gaps) or ()}
        for name, gap in gaps.items():
            if gap is not None:
                highest[name] = max(gap, highest.get(name, gap))
    return highest


def _weight(row: Mapping[str, Any]) -> int:
    """The number of samples in a row."""
    return max(1, int(row.get("samples") or 1))


def _mean(values: Sequence[tuple[float, int]]) -> float:
    return sum(value * weight for value, weight in values) / sum(w for _, w in values)


@dataclass(frozen=True)
class Spell:
    """A finding, from the first examination that had it to the first without it."""

    code: str
    began: datetime
    ended: datetime | None
    """None: not yet, as far as recorded."""
    severity: str
    """The highest."""
    summary: str
    """The last."""
    worsened: datetime | None = None
    first: bool = False
    """Whether the first examination of the time had it already: it is older."""
    times: int = 1
    """How often it began, of those that were joined."""


def spells(rows: Rows) -> list[Spell]:
    """From the findings of one queue, recorded or of a rollup, in order of time."""
    open_spells: dict[str, Spell] = {}
    ended: list[Spell] = []
    for number, (at, found) in enumerate(examinations(rows)):
        seen = {row["code"]: row for row in found if row["code"]}
        gone = [code for code in open_spells if code not in seen]
        ended += [replace(open_spells.pop(code), ended=at) for code in gone]
        for code, row in seen.items():
            severity, summary = row.get("severity") or "", row["summary"] or ""
            known = open_spells.get(code)
            if known is None:
                began = row.get("first_at") or at
                open_spells[code] = Spell(code, began, None, severity, summary, first=number == 0)
            elif rank(severity) > rank(known.severity):
                open_spells[code] = replace(known, severity=severity, summary=summary, worsened=at)
            else:
                open_spells[code] = replace(known, summary=summary)
    return sorted([*ended, *open_spells.values()], key=lambda spell: spell.began)


def rank(severity: str) -> int:
    return _SEVERITIES.index(severity) if severity in _SEVERITIES else 0


def findings_of(rows: Rows) -> list[Mark]:
    return [Mark(s.began, FINDING, s.code, s.summary, s.ended) for s in spells(rows)]


def examinations(rows: Rows) -> Iterator[tuple[datetime, Rows]]:
    """Findings or consumers that were seen at one time."""
    for at, of in groupby(rows, lambda row: row["at"]):
        yield at, list(of)


def last_known(rows: Rows) -> Rows:
    """Each action once, by its row that has an end or, without one, its last."""
    ordered = sorted(rows, key=lambda row: bool(row["ended_at"]))
    return list({row["action_id"]: row for row in ordered}.values())


def counts(row: Mapping[str, Any]) -> str:
    """Of an action; empty for a verb without messages, such as an installation."""
    done, planned = row["done"] or 0, row["planned"] or 0
    return f"{done:,} of {planned:,}" if done or planned else ""


def _actions(rows: Sequence[Mapping[str, Any]], schema: str, queue: str) -> list[Mark]:
    """Of the queue, and notes on the whole database."""
    of = (schema, queue)
    rows = [
        row
        for row in rows
        if (row["schema"] or "", row["queue"]) == of or (row["note"] and not row["queue"])
    ]
    return [
        Mark(row["at"], NOTE, row["operator"] or "", row["note"], row["at"])
        if row["note"]
        else Mark(
            row["at"],
            ACTION,
            row["verb"] or "",
            ", ".join(filter(None, (row["outcome"], counts(row), row["operator"]))),
            row["ended_at"],
        )
        for row in last_known(rows)
    ]


def _standbys(reader: RecordReader, span: TimeRange, step_seconds: int) -> Iterator[Mark]:
    """Where samples were taken on a standby, from the first to the last of them."""

    def thin(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The first, the one furthest behind, and the last of each period."""
        periods = groupby(rows, lambda row: row["at"].timestamp() // step_seconds)
        seen = (list(of) for _, of in periods)
        return [row for of in seen for row in (of[0], max(of, key=_lag), of[-1])]

    def rows(role: str) -> list[dict[str, Any]]:
        columns = ("at", "role", "upstream", "lag_seconds")
        return reader.rows(LINKS, span, columns, thin, role=role)

    if not (found := rows(STANDBY)):
        return
    found = sorted([*found, *rows(PRIMARY)], key=lambda row: row["at"])
    for role, of in groupby(found, lambda row: row["role"]):
        if role == STANDBY:
            seen = list(of)
            begin, end = seen[0]["at"], seen[-1]["at"]
            yield Mark(begin, "standby", reader.connection, _words_of_standby(seen), end)


def _lag(row: Mapping[str, Any]) -> float:
    return -1.0 if row["lag_seconds"] is None else row["lag_seconds"]


def _words_of_standby(rows: Sequence[Mapping[str, Any]]) -> str:
    """`taken on a standby of db1, at most 5 min behind`."""
    upstreams = ", ".join({row["upstream"]: None for row in rows if row["upstream"]})
    name = f"standby of {upstreams}" if upstreams else "standby"
    most = max(map(_lag, rows))
    lag = f"lag {UNKNOWN}" if most < 0 else f"at most {duration(most)} behind"
    return f"taken on a {name}, {lag if most else 'caught up'}"


def since(now: datetime, seconds: float) -> TimeRange:
    """The last seconds, up to and including now."""
    return TimeRange(now - timedelta(seconds=seconds), now + timedelta(microseconds=1))
