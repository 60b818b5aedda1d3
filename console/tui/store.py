"""The current state of every connection and queue, from the readings as they arrive.

Screens draw the views that the store returns; these are frozen, so a paused screen keeps them.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from console.doctor.finding import Diagnosis
from console.errors import ConnectionFailedError, ConsoleError
from console.monitor.limits import Severity, ThresholdsOf, defaults_of, judge
from console.monitor.sampler import Reading
from console.monitor.snapshot import QueueSnapshot
from console.rights import Login
from console.tui.findings import (
    PROBLEM,
    QueueKey,
    full_in_seconds,
    full_soon,
    queue_findings,
    sort_findings,
    sort_key,
)
from console.tui.series import Series
from console.tui.text import describe_error, first_line, plain, whole_seconds
from console.tui.views import (
    BUCKET_SECONDS,
    AllClear,
    ConnectionView,
    Link,
    QueueView,
    Trend,
    connection_finding,
)
from console.views.doctor import FindingKey, FindingView

SILENT_AFTER_SECONDS = 5.0
"""A connection that is this much later than its interval counts as silent."""

LATE_SECONDS = 60.0
"""The doctor counts as stopped when its next round is this late."""

REEXAMINE_SECONDS = 4.0
"""How soon the doctor may be run again for a finding that it did not explain."""

_BLIND = 0

RightsText = str | Callable[[Login | None], str]
"""A text on what may be done on a connection; or a function, until its login is known."""


@dataclass(frozen=True)
class Traits:
    """What is configured for a connection."""

    rights: RightsText = ""
    production: bool = False
    """In the configuration; the database may say so too."""
    thresholds: ThresholdsOf = defaults_of
    color: str = ""
    """Of the mark beside its name; empty: none."""
    group: str = ""
    """Empty: it belongs to none."""


@dataclass(frozen=True)
class _Diagnosed:
    """The doctor's result for one queue."""

    diagnosis: Diagnosis
    at: float
    moment: datetime
    """`at` as a time of day."""


@dataclass(frozen=True)
class _Row:
    """What is derived from a queue's last snapshot and diagnosis."""

    key: QueueKey
    label: str
    snapshot: QueueSnapshot
    full_in_seconds: float | None
    findings: tuple[FindingView, ...] = ()
    since: tuple[tuple[float, bool], ...] = ()
    """For each finding: since when by our clock, and whether it may be older."""
    examined: _Diagnosed | None = None
    """Where the doctor's findings come from."""

    def is_unchanged(
        self, label: str, snapshot: QueueSnapshot, examined: _Diagnosed | None
    ) -> bool:
        """Whether it can be kept. Never with findings or decisions, nor where a ring fills: their
        texts contain ages, which equal snapshots may differ in."""
        same = self.examined is examined and self.label == label
        ages = self.findings or snapshot.decisions or snapshot.filling is not None
        return same and not ages and self.snapshot == snapshot


@dataclass
class _Connection:
    """The state of one connection between readings."""

    name: str
    opened_at: float
    traits: Traits
    reading: Reading | None = None
    read_at: float = 0.0
    error: ConsoleError | None = None
    retry_at: float | None = None
    trends: dict[QueueKey, Trend] = field(default_factory=dict)
    rows: tuple[_Row, ...] = ()
    examined: dict[QueueKey, _Diagnosed] = field(default_factory=dict)
    first_seen: dict[FindingKey, tuple[float, bool]] = field(default_factory=dict)
    """Finding -> when it was first seen, and whether that was at the very first sample."""
    has_doctor: bool = False
    doctor_due_at: float | None = None
    doctor_error: ConsoleError | None = None
    examining: set[QueueKey] = field(default_factory=set)
    """Queues that the doctor was asked to examine and has not reported on yet."""
    drawn: tuple[object, tuple[_Row, ...], dict[QueueKey, QueueView]] = (None, (), {})
    """What the views of `queues` were made of, and those views."""


class Store:
    """All connections, in the order given."""

    def __init__(
        self,
        intervals: Mapping[str, float],
        now: float,
        traits: Mapping[str, Traits] | None = None,
        *,
        recorded: bool = False,
    ) -> None:
        """`recorded`: this is a replay; a missing reading means that nothing was recorded."""
        known = traits or {}
        self._connections = {
            name: _Connection(name, now, known.get(name, Traits())) for name in intervals
        }
        self.intervals = dict(intervals)
        """Connection -> the pause between two samples, in seconds."""
        self.series = Series()
        """The history of the figures, for charts."""
        self._recorded = recorded

    def add(self, name: str, interval_seconds: float, now: float, traits: Traits) -> None:
        """Add a connection, after the others."""
        self._connections[name] = _Connection(name, now, traits)
        self.intervals[name] = interval_seconds

    # Input.

    def add_reading(self, name: str, reading: Reading, at: float) -> None:
        """Add a reading that arrived at `at`."""
        connection = self._connections[name]
        self.series.add(name, reading, at, self.intervals[name])
        if reading.error is not None:
            connection.error = reading.error
            connection.retry_at = at + (reading.retry_seconds or 0.0)
            return
        first = connection.reading is None
        connection.reading, connection.read_at = reading, at
        connection.error = connection.retry_at = None
        trends = {}
        for snapshot in reading.queues:
            key = _key(name, snapshot)
            trends[key] = connection.trends.get(key) or Trend()
            trends[key].add(at, snapshot.ready)
        connection.trends = trends
        connection.examined = {
            k: diagnosed for k, diagnosed in connection.examined.items() if k in trends
        }
        self._judge(connection, at, first=first)

    def add_past_reading(self, name: str, reading: Reading, at: float) -> None:
        """Add an old reading, for charts and trends only; newer ones follow at once."""
        self.series.add(name, reading, at, self.intervals[name])
        if reading.error is None:
            trends = self._connections[name].trends
            for snapshot in reading.queues:
                trends.setdefault(_key(name, snapshot), Trend()).add(at, snapshot.ready)

    def expect_doctor(self, name: str) -> None:
        """A doctor will examine this connection's queues."""
        self._connections[name].has_doctor = True

    def mark_examining(self, name: str, key: QueueKey | None = None) -> None:
        """An examination was requested, of one queue or of all of a connection."""
        connection = self._connections[name]
        connection.examining |= {row.key for row in connection.rows} if key is None else {key}

    def add_diagnoses(
        self,
        name: str,
        diagnoses: Sequence[Diagnosis],
        at: float,
        moment: datetime,
        *,
        next_seconds: float | None = None,
        error: ConsoleError | None = None,
    ) -> None:
        """Add the doctor's results of the time `at`, which is also `moment`.

        `next_seconds`: until it examines all of them again; None: it is still running.
        """
        connection = self._connections[name]
        connection.has_doctor = True
        connection.doctor_error = error
        by_key = {
            (name, diagnosis.queue.schema, diagnosis.queue.name): diagnosis
            for diagnosis in diagnoses
        }
        is_finished = error is not None or (next_seconds is not None and not diagnoses)
        connection.examining = set() if is_finished else connection.examining - by_key.keys()
        connection.doctor_due_at = None if next_seconds is None else at + next_seconds
        firsts = by_key.keys() - connection.examined.keys()
        connection.examined |= {
            key: _Diagnosed(diagnosis, at, moment) for key, diagnosis in by_key.items()
        }
        if diagnoses:
            self._judge(connection, at, first=False, first_of=firsts)

    def _judge(
        self,
        connection: _Connection,
        at: float,
        *,
        first: bool,
        first_of: Collection[QueueKey] = (),
    ) -> None:
        """Derive the rows from the figures and the doctor's results."""
        if connection.reading is None:
            return
        names = Counter(snapshot.queue for snapshot in connection.reading.queues)
        rows = []
        first_seen: dict[FindingKey, tuple[float, bool]] = {}
        before = {row.key: row for row in connection.rows}
        for snapshot in connection.reading.queues:
            key = _key(connection.name, snapshot)
            examined = connection.examined.get(key)
            is_ambiguous = names[snapshot.queue] > 1
            label = plain(f"{snapshot.schema}.{snapshot.queue}" if is_ambiguous else snapshot.queue)
            row = before.get(key)
            if row is not None and row.is_unchanged(label, snapshot, examined):
                rows.append(row)
                continue
            judged = judge(snapshot, connection.traits.thresholds(snapshot.queue))
            diagnosis = None if examined is None else examined.diagnosis
            views = queue_findings(key, snapshot, judged, diagnosis)
            for view in views:
                first_seen[view.key] = connection.first_seen.get(view.key) or (
                    at,
                    first or key in first_of,
                )
            views, since = sort_findings(
                (view, _since(view, examined, at, first_seen[view.key])) for view in views
            )
            expected = _with_forecast(snapshot, examined, at)
            full_in = full_in_seconds(expected)
            rows.append(_Row(key, label, expected, full_in, views, since, examined))
        connection.rows, connection.first_seen = tuple(rows), first_seen

    # Output.

    def needs_diagnosis(self, name: str, now: float) -> list[QueueKey]:
        """Queues with findings from figures that the doctor has not examined yet."""
        connection = self._connections[name]
        return [
            row.key
            for row in connection.rows
            if (examined := connection.examined.get(row.key))
            and now - examined.at > REEXAMINE_SECONDS
            and any(
                finding_view.finding is None and finding_view.code != PROBLEM
                for finding_view in row.findings
            )
        ]

    def rows(self, name: str) -> tuple[_Row, ...]:
        """Its queues as last judged; empty before the first reading."""
        connection = self._connections.get(name)
        return () if connection is None else connection.rows

    def connections(self, now: float) -> tuple[ConnectionView, ...]:
        """All connections as of now."""
        return tuple(self._connection(connection, now) for connection in self._connections.values())

    def _connection(self, connection: _Connection, now: float) -> ConnectionView:
        reading, rights = connection.reading, connection.traits.rights
        last = connection.opened_at if reading is None else connection.read_at
        login = None if reading is None else reading.login
        link = self._link(connection, now)
        return ConnectionView(
            name=plain(connection.name),
            link=link,
            since_seconds=0.0 if link is Link.ALIVE else max(0.0, now - last),
            ever_answered=reading is not None,
            latency_seconds=None if reading is None else reading.latency_seconds,
            retry_in_seconds=None
            if connection.retry_at is None
            else max(0.0, connection.retry_at - now),
            production=connection.traits.production or (reading is not None and reading.production),
            rights=rights if isinstance(rights, str) else rights(login),
            why=first_line(connection.error.why or connection.error.what)
            if connection.error is not None
            else "",
            explanation="" if connection.error is None else describe_error(connection.error),
            color=connection.traits.color,
            group=connection.traits.group,
            standby=None if reading is None else reading.standby,
            server="" if reading is None else _server(reading, now),
        )

    def _link(self, connection: _Connection, now: float) -> Link:
        if connection.error is not None:
            if self._recorded and now > (connection.retry_at or 0.0) + SILENT_AFTER_SECONDS:
                return Link.UNRECORDED
            lost = isinstance(connection.error, ConnectionFailedError)
            return Link.LOST if lost else Link.FAILING
        if connection.reading is None:
            return Link.UNRECORDED if self._recorded else Link.OPENING
        # An idle database is sampled less often than its interval says.
        pause = max(self.intervals[connection.name], connection.reading.next_seconds or 0.0)
        if now - connection.read_at <= pause + SILENT_AFTER_SECONDS:
            return Link.ALIVE
        return Link.UNRECORDED if self._recorded else Link.SILENT

    def _link_and_age(self, connection: _Connection, now: float) -> tuple[Link, str, float | None]:
        """Its link; its name, if there are several; the age of figures that may be old."""
        link = self._link(connection, now)
        name = plain(connection.name) if len(self._connections) > 1 else ""
        silent = 0.0 if link is Link.ALIVE else max(0.0, now - connection.read_at)
        standby = None if connection.reading is None else connection.reading.standby
        if standby is not None and not standby.current:
            return link, name, silent + (standby.lag_seconds or 0.0)
        return link, name, None if link is Link.ALIVE else silent

    def queues(self, now: float) -> tuple[QueueView, ...]:
        """All queues of all connections as of now, in the order of the readings. Those without
        findings are made anew only when something happened: until then `examined_seconds` and
        `next_examination_seconds` are those of that moment."""
        return tuple(
            view
            for connection in self._connections.values()
            for view in self._kept_views(connection, now)
        )

    def _kept_views(self, connection: _Connection, now: float) -> Iterable[QueueView]:
        link, label, stale = self._link_and_age(connection, now)
        examining = frozenset(connection.examining)
        made_of = (link, label, stale, now // BUCKET_SECONDS, connection.doctor_due_at, examining)
        before, rows, views = connection.drawn
        if rows is not connection.rows or before != made_of:
            views = {view.key: view for view in self._queues_of(connection, now)}
        else:
            for row in rows:
                if row.findings:
                    views[row.key] = self._view(connection, row, now, link, label, stale)
        connection.drawn = (made_of, connection.rows, views)
        return views.values()

    def queue(self, key: QueueKey, now: float) -> QueueView | None:
        """One queue; None: it does not exist."""
        connection = self._connections.get(key[0])
        views = [] if connection is None else self._queues_of(connection, now, key)
        return views[0] if views else None

    def _queues_of(
        self, connection: _Connection, now: float, only: QueueKey | None = None
    ) -> list[QueueView]:
        link_and_age = self._link_and_age(connection, now)
        return [
            self._view(connection, row, now, *link_and_age)
            for row in connection.rows
            if only is None or row.key == only
        ]

    def _view(
        self,
        connection: _Connection,
        row: _Row,
        now: float,
        link: Link,
        connection_label: str,
        stale: float | None,
    ) -> QueueView:
        examined, due_at = connection.examined.get(row.key), connection.doctor_due_at
        return QueueView(
            key=row.key,
            label=row.label,
            snapshot=row.snapshot,
            full_in_seconds=row.full_in_seconds,
            trend=connection.trends[row.key].cells(now),
            connection_label=connection_label,
            color=connection.traits.color,
            stale_seconds=stale,
            link=link,
            diagnosis=examined.diagnosis if examined else None,
            examined_seconds=max(0.0, now - examined.at) if examined else None,
            examining=row.key in connection.examining,
            next_examination_seconds=None if due_at is None else max(0.0, due_at - now),
            findings=_dated(row, connection_label, stale, now) if row.findings else (),
        )

    def findings(self, now: float) -> tuple[FindingView, ...]:
        """All findings but notes: the most severe first, then those with a repair, then the
        oldest."""
        views = [
            view
            for connection in self._connections.values()
            for view in self._findings_of(connection, now)
            if view.level > Severity.NOTE
        ]
        return tuple(sorted(views, key=sort_key))

    def _findings_of(self, one: _Connection, now: float) -> list[FindingView]:
        _, connection_label, stale = self._link_and_age(one, now)
        views = [
            view
            for row in one.rows
            if row.findings
            for view in _dated(row, connection_label, stale, now)
        ]
        connection = self._connection(one, now)
        if connection.level > Severity.NOTE:
            views.append(connection_finding(one.name, connection))
        return views

    def all_clear(self, now: float) -> AllClear:
        """The text for an overview without findings."""
        reasons = []
        for connection in self._connections.values():
            if self._link(connection, now) is not Link.ALIVE:
                return AllClear("")
            working = (1, "the doctor is at work ...") if connection.examining else None
            why = working or self._why_not_examined(connection, now)
            if connection.rows and why:
                reasons.append(why)
            reasons += [
                (4, f"no findings, but {row.label} is {soon}")
                for row in connection.rows
                if (soon := full_soon(row.full_in_seconds))
            ]
        if not reasons:
            return AllClear("all clear", clear=True)
        rank, words = min(reasons)
        return AllClear(words, blind=rank == _BLIND)

    def _why_not_examined(self, connection: _Connection, now: float) -> tuple[int, str] | None:
        """Why a connection is not all clear; the most severe reason has the lowest number."""
        figures = "nothing wrong in the figures"
        on = f" on {plain(connection.name)}" if len(self._connections) > 1 else ""
        if not connection.has_doctor:
            return 3, figures
        if connection.doctor_error is not None:
            why = first_line(connection.doctor_error.why or connection.doctor_error.what)
            return _BLIND, f"the doctor failed{on}: {why}"
        unexamined = [
            (row.label, examined.diagnosis.unseen[0])
            for row in connection.rows
            if (examined := connection.examined.get(row.key)) and examined.diagnosis.unseen
        ]
        if unexamined:
            label, why = unexamined[0]
            label = f"{plain(connection.name)} {label}" if len(self._connections) > 1 else label
            more = f" (+{len(unexamined) - 1} more)" if len(unexamined) > 1 else ""
            return 1, f"not examined: {label}: {first_line(why)}{more}"
        if any(row.key not in connection.examined for row in connection.rows):
            return 2, f"{figures}; the doctor is at work ..."
        if connection.doctor_due_at is not None and now > connection.doctor_due_at + LATE_SECONDS:
            late = whole_seconds(now - min(result.at for result in connection.examined.values()))
            return _BLIND, f"the doctor has not run{on} for {late}"
        return None


def _key(connection: str, snapshot: QueueSnapshot) -> QueueKey:
    return (connection, snapshot.schema, snapshot.queue)


def _with_forecast(
    snapshot: QueueSnapshot, examined: _Diagnosed | None, at: float
) -> QueueSnapshot:
    """With the time to full by the usual traffic of these hours, if the doctor has a forecast."""
    if examined is None or examined.diagnosis.forecast is None:
        return snapshot
    now = examined.moment + timedelta(seconds=at - examined.at)
    return examined.diagnosis.forecast.with_filling(snapshot, now)


def _server(reading: Reading, now: float) -> str:
    """`primary, 17 of 97 sessions, pooled`; of a recording only that it was a standby."""
    if reading.sessions is None:
        return "" if reading.standby is None else reading.standby.words
    role = "primary"
    if reading.standby is not None:
        role = reading.standby.words
    elif reading.promoted_at is not None:
        role = f"primary, promoted {whole_seconds(max(0.0, now - reading.promoted_at))} ago"
    pooler = "pooled" if reading.pooled else "not pooled"
    return f"{role}, {reading.sessions.words}, {pooler}"


def _since(
    view: FindingView, examined: _Diagnosed | None, at: float, first_seen: tuple[float, bool]
) -> tuple[float, bool]:
    """Since when by our clock, and whether it may be older."""
    if view.since_seconds is not None:
        return at - view.since_seconds, False
    if view.finding is not None and view.finding.since is not None and examined is not None:
        now = examined.moment + examined.diagnosis.clock_ahead
        ago = (now - view.finding.since).total_seconds()
        return examined.at - max(0.0, ago), False
    return first_seen


def _dated(
    row: _Row, connection_label: str, stale: float | None, now: float
) -> tuple[FindingView, ...]:
    """A queue's findings as of now."""
    return tuple(
        replace(
            view,
            since_seconds=max(0.0, now - since),
            at_least=longer,
            label=row.label,
            connection_label=connection_label,
            stale_seconds=stale,
            diagnosed_seconds_ago=None
            if view.finding is None or view.live or row.examined is None
            else max(0.0, now - row.examined.at),
        )
        for view, (since, longer) in zip(row.findings, row.since, strict=True)
    )
