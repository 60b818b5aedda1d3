"""What happened, one list in order of time: each event says what it is about, and what opens it."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby, pairwise
from typing import Any

from console.catalog import audit
from console.features.history.points import (
    ACTION,
    FINDING,
    NOTE,
    Mark,
    Rows,
    Spell,
    counts,
    examinations,
    rank,
    spells,
)
from console.features.history.segments import STANDBY
from console.features.why.recorded import QueueRecord
from console.formats import UNKNOWN, duration, numbered

UNATTENDED = "unattended"
CONSUMER, CONNECTION, FIGURE, RECORDING = "consumer", "connection", "figure", "recording"
ONE_FAILED = "one sample failed"
_OF_ERRORS = {"error_burst", "poison", "head_stuck"}
_SOON = timedelta(minutes=5)
"""A finding that comes back within this is one that comes and goes."""
_GAP = timedelta(minutes=3)
"""Minutes without a sample that are worth a line."""
SILENT_SECONDS = 120.0
"""A consumer that popped before, and has not for this long while messages wait, is silent."""


@dataclass(frozen=True)
class Event(Mark):
    """`name`: also a consumer, a connection, a figure. `until`: None of what has no end."""

    severity: str = ""
    """Of a finding: the highest that it had."""
    opens: str = ""
    """The tab that shows what it is about."""
    action_id: int | None = None
    done: int = 0
    """By an action: messages, numbers."""
    queue: str = ""
    """Its schema and name; empty: it is about the connection."""


def joined(found: Iterable[Spell]) -> list[Spell]:
    """Those of a code that came back soon after they ended, as one."""
    last: dict[str, Spell] = {}
    apart: list[Spell] = []
    for spell in found:
        before = last.pop(spell.code, None)
        if before and before.ended and spell.began - before.ended <= _SOON:
            last[spell.code] = replace(
                before,
                ended=spell.ended,
                severity=max(before.severity, spell.severity, key=rank),
                summary=spell.summary,
                times=before.times + 1,
                worsened=before.worsened or spell.worsened,
            )
            continue
        apart += [before] if before else []
        last[spell.code] = spell
    return sorted([*apart, *last.values()], key=lambda spell: spell.began)


def finding_events(rows: Rows) -> Iterator[Event]:
    of_queue = defaultdict(list)
    for row in rows:
        of_queue[f"{row['schema'] or ''}.{row['queue']}"].append(row)
    for queue, found in of_queue.items():
        for spell in joined(spells(found)):
            tab = "errors" if spell.code in _OF_ERRORS else "findings"
            now = ", now" if spell.ended is None else ""
            words = f"{spell.severity}{now}: {spell.summary}"
            before = " (it was there before)" if spell.first else ""
            before += f" (on and off, {spell.times} times)" if spell.times > 1 else ""
            yield Event(
                spell.began, FINDING, spell.code, words + before, spell.ended, spell.severity,
                tab, queue=queue,
            )  # fmt: skip
            if spell.worsened is not None:
                yield Event(
                    spell.worsened, FINDING, spell.code, f"worsened: now {spell.severity}",
                    spell.ended, spell.severity, tab, queue=queue,
                )  # fmt: skip


def action_events(rows: Rows, begin: datetime) -> Iterator[Event]:
    """`begin`: of the time; earlier ones are not its events."""
    for row in rows:
        if row["at"] < begin:
            continue
        by, queue = row["operator"] or UNKNOWN, ""
        if row["queue"]:
            queue = f"{row['schema'] or ''}.{row['queue']}"
        about = {"queue": queue, "action_id": row["action_id"], "opens": "audit"}
        if row["note"]:
            yield Event(row["at"], NOTE, by, row["note"], row["at"], **about)
            continue
        words = ", ".join(filter(None, (row["outcome"], counts(row), f"by {by}")))
        kind = UNATTENDED if audit.is_agent(row["operator"]) else ACTION
        verb = row["verb"] or UNKNOWN
        yield Event(row["at"], kind, verb, words, row["ended_at"], done=row["done"] or 0, **about)


def of_queue(rows: Rows, schema: str, queue: str) -> list[Mapping[str, Any]]:
    """Actions on the queue, and those that are about the whole database."""
    return [
        row
        for row in rows
        if not row["queue"] or (row["schema"] or "", row["queue"]) == (schema, queue)
    ]


def link_events(rows: Rows, connection: str) -> Iterator[Event]:
    """Lost connections, and servers that were replaced by others."""
    runs = [(error, list(of)) for error, of in groupby(rows, lambda row: row["error"] or "")]
    for number, (error, of) in enumerate(runs):
        if error:
            back = runs[number + 1][1][0]["at"] if number + 1 < len(runs) else None
            lasted = "" if back is None else f"; back after {_lasted(of[0]['at'], back)}"
            if len(of) == 1:
                yield Event(of[0]["at"], CONNECTION, connection, f"{ONE_FAILED}: {error}", back)
            else:
                words = f"lost: {error}{lasted}"
                yield Event(of[0]["at"], CONNECTION, connection, words, back, "critical")
    for before, row in pairwise(row for row in rows if row["role"]):
        if before["role"] != row["role"]:
            role = "is a standby now" if row["role"] == STANDBY else "is a primary now"
            yield Event(row["at"], CONNECTION, connection, f"failover: the server {role}")
        elif before["upstream"] != row["upstream"]:
            words = f"follows {row['upstream'] or UNKNOWN} now, before {before['upstream']}"
            yield Event(row["at"], CONNECTION, connection, f"failover: the standby {words}")


def _lasted(begin: datetime, end: datetime) -> str:
    return duration((end - begin).total_seconds())


def gap_events(record: QueueRecord) -> Iterator[Event]:
    """Times without a sample, except lost connections, which have a line of their own."""
    lost = [row["at"] for row in record.links if row["error"]]
    for before, point in pairwise(record.points):
        pause = timedelta(seconds=2 * (before.pause_seconds or 0.0))
        if point.at - before.at > max(_GAP, pause) and not any(
            before.at <= at <= point.at for at in lost
        ):
            words = f"nothing was recorded for {_lasted(before.at, point.at)}"
            yield Event(before.at, RECORDING, record.connection, words, point.at)


@dataclass(frozen=True)
class _Seen:
    sessions: int
    since: datetime | None
    last_pop: datetime | None
    last_call: datetime | None
    pops: bool
    host: str


def _seen(rows: Rows) -> dict[tuple[str | None, ...], _Seen]:
    found = {}
    for row in rows:
        does = str(row["does"] or "").split(",")
        if row["sessions"] and row["does"]:
            identity = tuple(row[name] for name in ("name", "program", "host", "user"))
            found[identity] = _Seen(
                row["sessions"], row["since"], row["last_pop"], row["last_call"], "pop" in does,
                row["host"] or "",
            )  # fmt: skip
    return found


def consumer_events(rows: Rows) -> Iterator[Event]:
    """Consumers and producers that came, disconnected, restarted or fell silent. What only one of
    two examinations says is not believed."""
    seen = [(at, any(row["late"] for row in of), _seen(of)) for at, of in examinations(rows)]
    known: dict[tuple[str | None, ...], _Seen] = dict(seen[0][2]) if seen else {}
    silent: set[tuple[str | None, ...]] = set()
    for (at, late, now), (_, _, after) in zip(seen, [*seen[1:], *seen[-1:]], strict=True):
        for identity in {**known, **now, **after}:
            is_now, was, then = now.get(identity), known.get(identity), after.get(identity)
            if (was is None) == (is_now is None) != (then is None):
                continue  # it changes with the next one
            yield from _changed(at, identity, was, is_now, then)
            if is_now is not None and (is_now.sessions == (then or is_now).sessions or was is None):
                known[identity] = is_now
            elif is_now is None and then is None:
                known.pop(identity, None)
            fell = is_now is not None and late and _is_silent(is_now, at)
            if fell and identity not in silent and is_now is not None and is_now.last_pop:
                silent.add(identity)
                words = f"last pop{_at(is_now)}; still connected, and messages wait"
                yield _consumer(is_now.last_pop, identity, words)
            elif not fell:
                silent.discard(identity)


def _is_silent(consumer: _Seen, at: datetime) -> bool:
    since = consumer.last_pop
    return consumer.pops and since is not None and (at - since).total_seconds() > SILENT_SECONDS


def _changed(
    at: datetime,
    identity: tuple[str | None, ...],
    was: _Seen | None,
    now: _Seen | None,
    then: _Seen | None,
) -> Iterator[Event]:
    """`then`: in the examination after it."""
    if was is None and now is not None and then is not None:
        yield _consumer(at, identity, f"came: {numbered(now.sessions, 'session')}{_at(now)}")
    elif was is not None and now is None and then is None:
        yield _consumer(
            at, identity, f"disconnected: {numbered(was.sessions, 'session')}{_at(was)}"
        )
    elif was and now and then and now.sessions == then.sessions:
        if now.sessions < was.sessions:
            gone = was.sessions - now.sessions
            words = f"{gone} of {numbered(was.sessions, 'session')} disconnected{_at(now)}"
            yield _consumer(at, identity, words)
        elif now.sessions > was.sessions:
            came = now.sessions - was.sessions
            yield _consumer(at, identity, f"{numbered(came, 'more session')} came{_at(now)}")
        elif was.since and now.since and now.since > was.since:
            words = f"restarted: all its {numbered(now.sessions, 'session')} are new{_at(now)}"
            yield _consumer(now.since, identity, words)


def _at(of: _Seen) -> str:
    return f" at {of.host}" if of.host else ""


def _consumer(at: datetime, identity: tuple[str | None, ...], words: str) -> Event:
    name = next((one for one in identity if one), UNKNOWN)
    return Event(at, CONSUMER, name, words, opens="consumers")


def events_of(record: QueueRecord, changes: Iterable[Event] = ()) -> list[Event]:
    """Of one queue, in order of time; `changes`: of its figures."""
    begin = record.span.begin
    actions = of_queue(record.catalog.actions, record.schema, record.queue)
    found = [
        *finding_events(record.findings),
        *action_events(actions, begin),
        *link_events(record.links, record.connection),
        *gap_events(record),
        *consumer_events(record.consumers),
        *changes,
    ]
    return sorted((one for one in found if one.at in record.span), key=lambda one: one.at)
