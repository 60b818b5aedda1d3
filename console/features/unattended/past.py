"""What a policy would have done in the time that recordings tell of."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from console.catalog.audit import is_agent
from console.doctor.checks import CODES
from console.features.history.points import Mark, findings_of
from console.features.history.reader import RecordReader
from console.features.history.segments import ACTIONS, FINDINGS, TimeRange
from console.features.unattended.policy import AGAIN_SECONDS, Audited, Past, Policy, Stop, must_stop
from console.monitor.limits import Severity

_COUNT = re.compile(r"(?:[^:]*: )?([\d,]+) ")
_SEVERITIES = {code.name: code.severity for code in CODES}


@dataclass(frozen=True)
class PastFinding:
    """A finding of the policy's kinds, from its beginning to its end."""

    schema: str
    queue: str
    code: str
    kind: str
    at: datetime
    until: datetime | None
    """None: not yet, as far as recorded."""
    rows: int | None
    left: str
    """Why it would have been left to a person; empty: it would have been repaired."""
    operator: str
    """Who acted on the queue before it ended; empty: nobody, or not known."""
    sooner_seconds: float
    """How much sooner it would have been repaired."""
    wakes: bool
    """Whether it is a warning or critical."""

    def as_json(self) -> dict[str, object]:
        until = None if self.until is None else self.until.isoformat()
        return {**vars(self), "at": self.at.isoformat(), "until": until}


@dataclass(frozen=True)
class DryRun:
    connection: str
    span: TimeRange
    findings: tuple[PastFinding, ...]
    skipped: str = ""

    @property
    def repaired(self) -> list[PastFinding]:
        return [one for one in self.findings if not one.left]

    @property
    def not_woken(self) -> int:
        return sum(one.wakes for one in self.repaired)


def dry_run(
    reader: RecordReader,
    span: TimeRange,
    policy_of: Callable[[str], Policy],
    name: str | None = None,
) -> DryRun:
    """Reads from disk. `policy_of` a queue's name; `name`: only of the queues with that name."""
    equal: dict[str, str] = {} if name is None else {"queue": name}
    by_queue: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in reader.rows(FINDINGS, span, None, None, **equal):
        by_queue[row["schema"] or "", row["queue"] or ""].append(row)
    actions = reader.rows(ACTIONS, span)
    found: list[PastFinding] = []
    for key, rows in by_queue.items():
        of_queue = [one for one in actions if (one["schema"] or "", one["queue"] or "") == key]
        found += _of_queue(key, findings_of(rows), of_queue, policy_of(key[1]), span)
    ordered = tuple(sorted(found, key=lambda one: one.at))
    return DryRun(reader.connection, span, ordered, reader.skipped.text)


def _of_queue(
    key: tuple[str, str],
    marks: Sequence[Mark],
    actions: Sequence[Mapping[str, Any]],
    policy: Policy,
    span: TimeRange,
) -> Iterator[PastFinding]:
    """In order of time, within the policy's budget."""
    done: list[Past] = []
    stopped: dict[str, tuple[datetime, Stop]] = {}
    for mark in sorted(marks, key=lambda one: one.at):
        kind = policy.kind_of(mark.name)
        repaired_at = mark.at + timedelta(seconds=AGAIN_SECONDS)
        if kind is None or (mark.until is not None and mark.until <= repaired_at):
            continue
        match = _COUNT.match(mark.words)
        rows = int(match[1].replace(",", "")) if match else None
        persons = [row["at"] for row in actions if row["at"] <= mark.at and _of_person(row)]
        acted = max(persons, default=None)
        since, stop = stopped.pop(kind.key, (repaired_at, None))
        if stop is None or stop.is_over(since, repaired_at, acted):
            audited = Audited(repaired_at, done, person=acted)
            since, stop = repaired_at, must_stop(policy, kind, (), rows or 0, audited)
        if stop is not None:
            stopped[kind.key] = (since, stop)
        if stop is None:
            done.append(Past(repaired_at, kind.key, rows or 1))
        end = mark.until or span.end
        yield PastFinding(
            *key,
            code=mark.name,
            kind=kind.key,
            at=mark.at,
            until=mark.until,
            rows=rows,
            left="" if stop is None else stop.reason,
            operator=_who_acted(actions, mark.at, end),
            sooner_seconds=max(0.0, (end - repaired_at).total_seconds()),
            wakes=_SEVERITIES.get(mark.name, Severity.NOTE) >= Severity.WARNING,
        )


def _who_acted(actions: Sequence[Mapping[str, Any]], begin: datetime, end: datetime) -> str:
    """The last one before the finding ended."""
    names = [row["operator"] for row in actions if begin <= row["at"] <= end and _of_person(row)]
    return str(names[-1]) if names else ""


def _of_person(row: Mapping[str, Any]) -> bool:
    return bool(row["operator"]) and not is_agent(row["operator"])
