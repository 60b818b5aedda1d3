"""The handover of a shift: what happened to all queues of connections, as Markdown."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

from console.catalog.decisions import Decision
from console.doctor.report import escaped
from console.engines import Database
from console.errors import ConsoleError
from console.features.history import forecast
from console.features.history.points import ACTION, FINDING, NOTE, Rows
from console.features.history.reader import RecordReader
from console.features.history.rollup_files import existing_default_lake
from console.features.history.segments import ACTIONS, FINDINGS, SAMPLES, TimeRange, snapshot_of
from console.features.why.events import (
    CONNECTION,
    UNATTENDED,
    Event,
    action_events,
    finding_events,
    link_events,
)
from console.features.why.recorded import Catalog, links, merged, read_catalog
from console.figures import AGE, ERRORS, POP, PUSH, READY, Figure
from console.formats import UNKNOWN, duration, moment, numbered

SECONDS = 8 * 3600.0
_AHEAD = timedelta(hours=8)
"""What the forecast is given for."""
_SEVERE = ("critical", "warning")
_SHOWN: tuple[Figure, ...] = (READY, AGE, PUSH, POP, ERRORS)
_AT_ONCE = 64
_ACTIONS = 40
_LATEST = timedelta(microseconds=1)
_LATELY = timedelta(minutes=15)
"""Samples that are read for the last figures; all of them where there are none so late."""
_LATE = timedelta(minutes=5)
"""Older figures are said to be old."""


@dataclass(frozen=True)
class Repeated:
    """A finding of one queue over the time: all its spells."""

    queue: str
    code: str
    severity: str
    times: int
    seconds: float
    """Of all spells together."""
    first: datetime
    last: datetime
    until: datetime | None
    """When the last one ended; None: not yet."""
    words: str
    examined: datetime
    """When the queue was, for the last time."""


@dataclass(frozen=True)
class Handover:
    """Of one connection."""

    connection: str
    span: TimeRange
    findings: tuple[Repeated, ...] = ()
    """Warnings and worse, those that last first."""
    events: tuple[Event, ...] = ()
    """Lost connections, failovers."""
    unattended: tuple[Event, ...] = ()
    actions: tuple[Event, ...] = ()
    """What operators did, and their notes."""
    decisions: tuple[Decision, ...] = ()
    """In force now."""
    figures: Rows = ()
    """The last sample of each queue."""
    forecasts: tuple[tuple[str, str], ...] = ()
    """Queue -> what its coming hours bring."""
    unread: tuple[str, ...] = ()
    audited: bool = True
    """Whether the audit and the decisions were read."""

    def as_json(self) -> dict[str, object]:
        def times(row: object) -> dict[str, object]:
            return {
                name: value.isoformat() if isinstance(value, datetime) else value
                for name, value in vars(row).items()
            }

        return {
            "connection": self.connection,
            "since": self.span.begin.isoformat(),
            "until": self.span.end.isoformat(),
            "findings": [times(one) for one in self.findings],
            "events": [one.as_json() for one in self.events],
            "unattended": [one.as_json() for one in self.unattended],
            "actions": [one.as_json() for one in self.actions],
            "decisions": [times(one) for one in self.decisions],
            "forecasts": [{"queue": queue, "words": words} for queue, words in self.forecasts],
            "unread": list(self.unread),
        }


def handover(
    root: Path | None,
    connection: str,
    database: Callable[[], Database] | None,
    seconds: float,
    now: datetime,
    queue: str | None = None,
) -> Handover:
    """Reads recordings, and the audit and the decisions of the database. Never fails: what could
    not be read is said. `queue`: only this one."""
    span = TimeRange(now - timedelta(seconds=seconds), now + _LATEST)
    known, unread = Catalog(unread="the audit was not read: there is only a recording"), []
    if database is not None:
        try:
            known = read_catalog(database(), span.begin, now)
        except ConsoleError as error:
            known = Catalog(unread=f"the audit was not read: {error.why or error.what}")
    equal = {} if queue is None else {"queue": queue}
    found: list[Event] = []
    examined: dict[str, datetime] = {}
    figures: Rows = ()
    rows: Rows = known.actions
    if root is not None and (reader := RecordReader(root, connection, once=True)).is_recorded:
        lately = TimeRange(max(span.begin, now - _LATELY), span.end)
        figures = _newest(
            reader.rows(SAMPLES, lately, None, _newest, **equal)
            or reader.rows(SAMPLES, span, None, _newest, **equal)
        )
        findings = reader.rows(FINDINGS, span, None, None, **equal)
        examined = {f"{row['schema'] or ''}.{row['queue']}": row["at"] for row in findings}
        found += finding_events(findings)
        found += link_events(links(reader, span), connection)
        rows = merged(reader.rows(ACTIONS, span), known.actions)
        unread.append(reader.skipped.text)
    if not figures:
        unread.append("nothing was recorded here: findings and figures are not known")
    own = [row for row in rows if queue is None or row["queue"] in {queue, "", None}]
    acted = [*action_events(own, span.begin)]
    events = sorted(found, key=lambda one: one.at)
    return Handover(
        connection, span,
        tuple(_repeated([e for e in events if e.kind == FINDING], examined)),
        tuple(e for e in events if e.kind == CONNECTION),
        tuple(e for e in acted if e.kind == UNATTENDED),
        tuple(e for e in acted if e.kind in {ACTION, NOTE}),
        tuple(d for d in known.decisions if queue is None or d.queue in {queue, ""}),
        sorted(figures, key=lambda row: (row["schema"] or "", row["queue"])),
        tuple(_forecasts(connection, now, queue, figures)),
        tuple(filter(None, (known.unread, *unread))),
        not known.unread,
    )  # fmt: skip


def together(jobs: Sequence[Callable[[], Handover]]) -> list[Handover]:
    """In their order; no connection waits for another."""
    with ThreadPoolExecutor(max(1, min(_AT_ONCE, len(jobs))), "handover") as pool:
        return list(pool.map(lambda job: job(), jobs))


def _newest(rows: Rows) -> list[dict[str, Any]]:
    """The last row of each queue."""
    last = {(row["schema"], row["queue"]): dict(row) for row in sorted(rows, key=_at)}
    return list(last.values())


def _at(row: Mapping[str, Any]) -> datetime:
    at: datetime = row["at"]
    return at


def _repeated(events: Sequence[Event], examined: Mapping[str, datetime]) -> Iterator[Repeated]:
    """`examined`: when each queue was, for the last time."""
    by_code: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in events:
        if event.severity in _SEVERE and not event.words.startswith("worsened"):
            by_code[event.queue, event.name].append(event)
    found = []
    for (queue, code), of in by_code.items():
        last_seen = examined[queue]
        lengths = (((one.until or last_seen) - one.at).total_seconds() for one in of)
        severity = min((one.severity for one in of), key=_SEVERE.index)
        words = of[-1].words.partition(": ")[2]
        first, last = of[0].at, of[-1]
        seconds, end = sum(lengths), last.until
        found.append(
            Repeated(queue, code, severity, len(of), seconds, first, last.at, end, words, last_seen)
        )
    yield from sorted(
        found, key=lambda r: (r.until is not None, _SEVERE.index(r.severity), -r.seconds)
    )


def _forecasts(
    connection: str, now: datetime, queue: str | None, figures: Rows
) -> Iterator[tuple[str, str]]:
    """What is usual in the coming hours; and when a ring is full, by that or by its last sample."""
    known: dict[tuple[str, str], forecast.Forecast] = {}
    with suppress(ConsoleError):
        known = forecast.of_all(existing_default_lake(), connection)
    for (schema, name), expected in sorted(known.items()):
        words = _expected(expected, now) if queue in {None, name} else ""
        if words:
            yield f"{schema}.{name}", words
    for row in figures:
        key = row["schema"] or "", row["queue"]
        seen = snapshot_of(row, connection)
        filling = known.get(key, forecast.Forecast()).filling(seen, now)
        seconds = seen.full_in_seconds if filling is None else filling.seconds
        if seconds is not None and seconds <= _AHEAD.total_seconds() and now - _at(row) <= _LATE:
            rate = "its last rates" if filling is None else f"{filling.day}'s rates"
            yield ".".join(key), f"full in {duration(seconds)} at {rate}"


def _expected(expected: forecast.Forecast, now: datetime) -> str:
    """Empty: nothing is known."""
    begin = forecast.hour_of(now) + timedelta(hours=1)
    hours = [one for _, one in expected.between(begin, begin + _AHEAD)]
    sums = []
    for measure in ("pushes", "pops"):
        bands = [band for one in hours if (band := getattr(one, measure)) is not None]
        if bands:
            median, high = (sum(getattr(band, of) for band in bands) for of in ("median", "high"))
            sums.append(f"{median:,.0f} {measure} (at most {high:,.0f})")
    if not sums or not expected.holds(now):
        return ""
    return f"in the {len(hours)} hours from the next full one: {', '.join(sums)}"


def markdown(handovers: Sequence[Handover], zone: tzinfo | None) -> str:
    """What a channel takes: no payload, no error text."""
    lines: list[str] = []
    for one in handovers:
        lines += [
            f"# Handover: {escaped(one.connection)}", "",
            f"From {moment(one.span.begin, zone)} to {moment(one.span.end, zone)}.", "",
        ]  # fmt: skip
        lines += [f"**{escaped(words)}**\n" for words in one.unread]
        lines += [*_now(one, zone), *_happened(one, zone), *_done(one, zone), *_ahead(one, zone)]
    return "\n".join(lines).rstrip("\n") + "\n"


def _section(title: str, lines: Sequence[str], nothing: str) -> Iterator[str]:
    yield f"## {title}"
    yield ""
    yield from lines or [nothing]
    yield ""


def _now(one: Handover, zone: tzinfo | None) -> Iterator[str]:
    lasting = []
    for r in one.findings:
        if r.until is None:
            is_old = one.span.end - r.examined > _LATE
            late = f"; not examined since {moment(r.examined, zone)}" if is_old else ""
            lasting.append(f"- {_of(r, zone)}{late}")
    nothing = "No warning lasts." if one.figures else UNKNOWN
    yield from _section("Not over", lasting, nothing)
    if not one.figures:
        return
    yield f"| queue | {' | '.join(figure.title for figure in _SHOWN)} |"
    yield f"| --- |{' ---: |' * len(_SHOWN)}"
    for row in one.figures:
        old = one.span.end - _at(row)
        late = f" ({duration(old.total_seconds())} ago)" if old > _LATE else ""
        seen = snapshot_of(row, one.connection)
        cells = (seen.text_of(figure.name) for figure in _SHOWN)
        name = escaped(f"{row['schema']}.{row['queue']}")
        yield f"| {name}{late} | {' | '.join(cells)} |"
    yield ""


def _happened(one: Handover, zone: tzinfo | None) -> Iterator[str]:
    ended = [f"- {_of(r, zone)}" for r in one.findings if r.until is not None]
    events = [f"- {moment(e.at, zone)}: {escaped(e.words)}" for e in one.events]
    nothing = "Nothing worse than a note." if one.figures else UNKNOWN
    yield from _section("Happened, and is over", [*events, *ended], nothing)


def _of(repeated: Repeated, zone: tzinfo | None) -> str:
    r = repeated
    length = duration(r.seconds)
    if r.times > 1:
        when = f"{r.times} times since {moment(r.first, zone)}, {length} in all"
    elif r.until is None:
        when = f"since {moment(r.first, zone)}, {length}"
    else:
        when = f"{moment(r.first, zone)}, for {length}"
    return f"**{escaped(r.queue)}** {r.severity} `{r.code}`: {escaped(r.words)} ({when})"


def _done(one: Handover, zone: tzinfo | None) -> Iterator[str]:
    by_verb: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in one.unattended:
        by_verb[event.name, event.queue].append(event)
    unattended = [
        f"- {escaped(verb)} of **{escaped(queue or 'the database')}**: "
        f"{numbered(len(of), 'time')}, {sum(e.done for e in of):,} in all, "
        f"the last at {moment(of[-1].at, zone)}"
        for (verb, queue), of in by_verb.items()
    ]
    nothing = "Nothing." if one.audited else UNKNOWN
    yield from _section("Repaired unattended", unattended, nothing)
    actions = [_action(event, zone) for event in one.actions]
    if len(actions) > _ACTIONS:
        more = len(actions) - _ACTIONS
        actions = [f"- {more} earlier: dbq-console audit", *actions[-_ACTIONS:]]
    yield from _section("Done by operators", actions, nothing)
    decisions = [f"- {_decision(d, zone)}" for d in one.decisions]
    if one.audited:
        nothing = "Nothing is paused, protected, silenced or acknowledged."
    yield from _section("In force, and until when", decisions, nothing)


def _action(event: Event, zone: tzinfo | None) -> str:
    queue = f" of **{escaped(event.queue)}**" if event.queue else ""
    what = f"{escaped(event.name)}{queue}"
    if event.kind == NOTE:
        what = f"note{queue} by {escaped(event.name)}"
    return f"- {moment(event.at, zone)}: {what}: {escaped(event.words)}"


def _decision(decision: Decision, zone: tzinfo | None) -> str:
    d = decision
    queue = f"{d.schema}.{d.queue}" if d.queue else "every queue"
    code = f" `{d.code}`" if d.code else ""
    if d.until is not None:
        until = f"until {moment(d.until, zone)}"
    else:
        until = "until it ends or worsens" if d.kind == "acknowledge" else "until it is revoked"
    reason = f": {escaped(d.reason)}" if d.reason else ""
    since = moment(d.since, zone)
    by = f"{d.state} by {escaped(d.operator)}"
    return f"**{escaped(queue)}**{code} {by} since {since}, {until}{reason}"


def _ahead(one: Handover, zone: tzinfo | None) -> Iterator[str]:
    lines = [f"- **{escaped(queue)}**: {escaped(words)}" for queue, words in one.forecasts]
    ends = [d for d in one.decisions if d.until is not None and d.until <= one.span.end + _AHEAD]
    lines += [f"- {moment(d.until, zone)}: {_ending(d)}" for d in ends if d.until is not None]
    nothing = "No forecast: dbq-console pipeline rollup makes one from 3 weeks of recordings."
    yield from _section("Ahead", lines, nothing)


def _ending(decision: Decision) -> str:
    queue = escaped(f"{decision.schema}.{decision.queue}") if decision.queue else "every queue"
    code = f" `{decision.code}`" if decision.code else ""
    return f"**{queue}**{code} is no longer {decision.state}"
