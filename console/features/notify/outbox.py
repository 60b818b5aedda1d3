"""The notifications in the database: which recorder sends them, and what each target has received.

Only the recorder that holds the lease writes; the lease ends by the database's clock. What is not
marked as sent is sent again, with the same key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from console import catalog, sql
from console.catalog import audit
from console.catalog.leases import Lease
from console.doctor.finding import Diagnosis, Finding
from console.engines import Database, product_of
from console.errors import BusyError, RefusedError
from console.features.notify.targets import SUMMARY_LENGTH, Event, Target, key_of
from console.monitor.limits import Severity

if TYPE_CHECKING:
    from sqlalchemy import Connection

LEASE_SECONDS = 30.0
"""The longest time without notifications after a recorder was killed."""
MOST = 5_000
"""Unfinished notifications; further findings wait in the diagnoses."""
FORGOTTEN_SECONDS = 7 * 86_400.0

Identity = tuple[str, str]
"""Of a finding of one queue: its code and its subject."""
Pair = tuple[str, str]
"""Schema and name of a queue."""
_SEVERITIES = {one.word: one for one in Severity}


@dataclass(frozen=True)
class Entry:
    """A finding for one target, as the statement `unfinished` returns it."""

    notification_id: int
    event_key: str
    target: str
    schema: str
    queue: str
    code: str
    which: str
    severity: str
    summary: str
    begun_at: datetime
    ended_at: datetime | None
    sent_at: datetime | None
    tries: int

    @property
    def identity(self) -> Identity:
        return self.code, self.which

    @property
    def waits(self) -> bool:
        return self.sent_at is None or self.ended_at is not None

    @property
    def events(self) -> Iterator[Event]:
        severity = _SEVERITIES.get(self.severity, Severity.UNKNOWN)
        begun = Event(
            self.event_key,
            ended=False,
            schema=self.schema,
            queue=self.queue,
            code=self.code,
            which=self.which,
            severity=severity,
            summary=self.summary,
            begun_at=self.begun_at,
        )
        if self.sent_at is None:
            yield begun
        if self.ended_at is not None:
            yield replace(begun, ended=True, ended_at=self.ended_at)


@dataclass(frozen=True)
class New:
    target: str
    schema: str
    queue: str
    code: str
    which: str
    severity: str
    summary: str
    begun_at: datetime


@dataclass(frozen=True)
class Changes:
    begun: tuple[New, ...] = ()
    ended: tuple[Entry, ...] = ()
    withdrawn: tuple[Entry, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.begun or self.ended or self.withdrawn)


def changes(
    entries: Sequence[Entry],
    targets: Sequence[Target],
    diagnoses: Sequence[Diagnosis],
    now: datetime,
) -> Changes:
    """The findings that began and ended, by the newest diagnosis of each queue.

    A silenced finding is not sent, and is withdrawn if it was not tried yet; but the end of one
    that was sent is sent too, silenced or not. A finding that was not examined goes on.
    """
    begun: list[New] = []
    ended: list[Entry] = []
    withdrawn: list[Entry] = []
    for diagnosis in diagnoses:
        queue = diagnosis.queue
        here = (queue.schema, queue.name)
        there = _by_identity(diagnosis.findings)
        for target in targets:
            entries_here = _open(entries, target.name, here)
            for identity, finding in there.items():
                known = entries_here.get(identity)
                silenced = finding.silenced is not None
                if (
                    known is None
                    and not silenced
                    and target.accepts(queue.name, finding.effective_severity)
                ):
                    code, which = identity
                    severity = finding.code.severity.word
                    summary = finding.public_summary[:SUMMARY_LENGTH]
                    at = now + diagnosis.clock_ahead
                    begun.append(New(target.name, *here, code, which, severity, summary, at))
                elif known is not None and silenced and not known.tries:
                    withdrawn.append(known)
            ended += [
                entry
                for identity, entry in entries_here.items()
                if identity not in there and entry.code not in diagnosis.unproven
            ]
    return Changes(tuple(begun), tuple(ended), tuple(withdrawn))


def endings_of_missing_queues(
    entries: Sequence[Entry], targets: Sequence[Target], there: set[Pair]
) -> Changes:
    """The end of findings of queues that do not exist any more."""
    ours = {target.name for target in targets}
    ended = [
        entry
        for entry in entries
        if entry.target in ours
        and entry.ended_at is None
        and (entry.schema, entry.queue) not in there
    ]
    return Changes(ended=tuple(ended))


def _by_identity(findings: Sequence[Finding]) -> Mapping[Identity, Finding]:
    """The first of several with the same identity."""
    return {(finding.code.name, finding.subject): finding for finding in reversed(findings)}


def _open(entries: Sequence[Entry], target: str, here: Pair) -> Mapping[Identity, Entry]:
    return {
        entry.identity: entry
        for entry in entries
        if entry.target == target and (entry.schema, entry.queue) == here and entry.ended_at is None
    }


class Outbox:
    """The outbox of one database, for one recorder."""

    def __init__(self, database: Database, lease_seconds: float = LEASE_SECONDS) -> None:
        self._database = database
        name = "notifications"
        self.lease = Lease(database, name, lease_seconds, purpose=name, prepare=prepare)

    def unfinished(self) -> dict[int, Entry]:
        """By notification_id; old ones are deleted. ConsoleError."""
        with self._database.transaction("read the notifications") as connection:
            sql.values(connection, int, "notify.delete_old", seconds=FORGOTTEN_SECONDS)
            entries = sql.rows(connection, Entry, "notify.unfinished", n=MOST)
        return {entry.notification_id: entry for entry in entries}

    def write(self, made: Changes, entries: dict[int, Entry]) -> dict[int, Entry]:
        """The entries after the changes. ConsoleError."""
        after = dict(entries)
        with self._database.transaction("store notifications") as connection:
            for entry in made.ended:
                number = entry.notification_id
                for at in sql.values(connection, datetime, "notify.end", notification_id=number):
                    after[number] = replace(entry, ended_at=at)
            for entry in made.withdrawn:
                number = entry.notification_id
                sql.values(connection, int, "notify.withdraw", notification_id=number)
                after.pop(number)
            for new in made.begun[: max(0, MOST - len(after))]:
                entry = self._begun(new)
                values = {name: getattr(entry, name) for name in _KEPT}
                for number in sql.values(connection, int, "notify.begin", **values):
                    after[number] = replace(entry, notification_id=number)
        return after

    def _begun(self, new: New) -> Entry:
        subject = (self._database.label, new.target, new.schema, new.queue, new.code, new.which)
        key = key_of(subject, new.begun_at)
        return Entry(0, key, **vars(new), ended_at=None, sent_at=None, tries=0)

    def try_(self, numbers: Sequence[int]) -> dict[int, int]:
        """Record that they are being sent; the tries of each. ConsoleError."""
        with self._database.transaction("send notifications") as connection:
            return {
                number: tries
                for number in numbers
                for tries in sql.values(connection, int, "notify.try", notification_id=number)
            }

    def sent(self, arrived: Mapping[int, bool]) -> dict[int, datetime]:
        """Record what has arrived (`arrived`: its end too?); when each did first. ConsoleError."""
        with self._database.transaction("record what was sent") as connection:
            return {
                number: at
                for number, ended in arrived.items()
                for at in sql.values(
                    connection, datetime, "notify.sent", notification_id=number, ended=ended
                )
            }


_KEPT = (
    *("event_key", "target", "schema", "queue", "code", "which", "severity", "summary"),
    "begun_at",
)


def prepare(connection: Connection) -> None:
    """Create the table of notifications if needed. RefusedError."""
    from sqlalchemy.exc import DBAPIError  # noqa: PLC0415  # a verb imports what it uses

    if sql.value(connection, bool, "notify.exists"):
        return
    if not catalog.has_catalog(connection):
        raise NoCatalogError("This database has no queues yet.")
    doing = "create the table of notifications in this database's catalog"
    try:
        audit.complete_catalog(connection)
    except DBAPIError as error:
        raise product_of(connection).translate(error, doing) from error


class NoCatalogError(BusyError):
    """There is no queue yet."""


def lacks_rights(error: Exception) -> bool:
    """Whether it would be refused again."""
    return isinstance(error, RefusedError) and not isinstance(error, BusyError)
