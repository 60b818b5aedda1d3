"""Error groups: a queue's error rows, grouped by the wording of their texts.

Rows are read in pages, newest first, with the beginning of their texts. They are grouped here,
since SQL Server cannot.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, tzinfo
from functools import partial

from console.catalog import Queue
from console.engines import Database
from console.errors import UsageError
from console.formats import UNKNOWN, moment
from console.monitor.filters import Filters
from console.monitor.message import Masks, PastAttempt, ReadBound, last_key, masked, pages
from console.monitor.messages import check, message_session, read_task
from console.monitor.scan_query import MessageSource, fetch
from console.monitor.scans import Scan, ScanKey, ScanRequest, scans_of
from console.monitor.wording import TEXT_LENGTH, group_key, group_wording

MOST_ERRORS = 1_000_000
"""Error rows that are counted at most."""
SECONDS_MOST = 60.0
"""After this time no further page is read."""
MOST_GROUPS = 1_000
"""Groups that are counted at most."""
_PAGE = 10_000
_SAMPLE_LENGTH = 1_000


@dataclass(frozen=True)
class ErrorRow:
    key_time: str | None
    key_id: str
    position: int
    id: str | None
    error: str | None
    done_at: datetime | None
    attempts: int | None


@dataclass(frozen=True)
class ErrorGroup:
    """Error rows whose texts have the same wording. None: not known."""

    wording: str
    """Masked, so that groups may look alike."""
    count: int
    first_at: datetime | None
    last_at: datetime | None
    attempts_least: int | None
    attempts_most: int | None
    sample_id: str | None
    """The newest, and the beginning of its text."""
    sample: str
    key: str
    """Of the unmasked wording: the value of the filter `error-group=`."""


@dataclass(frozen=True)
class ErrorGroups:
    """The error groups of a queue, the most frequent first."""

    queue: Queue
    groups: tuple[ErrorGroup, ...]
    counted: int
    """Error rows that were read, grouped or not."""
    ungrouped: int
    """Rows of further groups, beyond the highest number."""
    complete: bool
    """False: there are more, older error rows."""


def error_groups(database: Database, queue: Queue, *, masks: Masks = ()) -> ErrorGroups:
    """Groups the newest error rows, up to `MOST_ERRORS`. UsageError: it keeps no error texts."""
    _require_texts(queue)
    grouping = _Grouping(masks)
    bound = ReadBound(MOST_ERRORS, SECONDS_MOST)
    for rows in _pages(database, queue, bound):
        grouping.take(rows)
    ungrouped, complete = grouping.ungrouped, not bound.met
    return ErrorGroups(queue, grouping.groups(), grouping.counted, ungrouped, complete)


def _require_texts(queue: Queue) -> None:
    if "error" not in queue.states:
        of = queue.design
        deleted = f"A pop of the design {of.name} deletes its message: none can fail later."
        why = f"{of.errors_elsewhere}." if of.errors_elsewhere else deleted
        raise UsageError(f"The queue {queue.name!r} keeps no errors.", why=why)
    check(queue, Filters(state="error"))


def _pages(database: Database, queue: Queue, bound: ReadBound) -> Iterator[list[ErrorRow]]:
    with message_session(database, queue) as session:
        with session.transaction(read_task(queue)) as connection:
            source = MessageSource.of(connection, queue)

        def read(scan: Scan, key: ScanKey | None) -> list[ErrorRow]:
            request = ScanRequest(scan, read_limit=_PAGE, after=key, error_length=TEXT_LENGTH)
            with session.transaction(read_task(queue)) as connection:
                source.begin_read(connection, database)
                return fetch(connection, source, request, ErrorRow, "error_texts")

        def after(scan: Scan, rows: list[ErrorRow]) -> tuple[int, ScanKey | None]:
            return len(rows), None if len(rows) < _PAGE else last_key(scan, rows)

        for scan in [scan for scan in scans_of(queue) if scan.state == "error"]:
            if not bound.met:
                yield from pages(None, partial(read, scan), partial(after, scan), bound)


class _GroupCount:
    def __init__(self) -> None:
        self.count = 0
        self.times: tuple[datetime, datetime] | None = None
        self.attempts: tuple[int, int] | None = None
        self.sample: ErrorRow | None = None

    def add(self, row: ErrorRow) -> None:
        self.count += 1
        if row.attempts is not None:
            least, most = self.attempts or (row.attempts, row.attempts)
            self.attempts = min(least, row.attempts), max(most, row.attempts)
        at = row.done_at
        if self.sample is None or (at is not None and (self.times is None or at > self.times[1])):
            self.sample = row
        if at is not None:
            first, last = self.times or (at, at)
            self.times = min(first, at), max(last, at)


class _Grouping:
    """Counts rows by wording, in bounded memory."""

    def __init__(self, masks: Masks) -> None:
        self.counted = 0
        self.ungrouped = 0
        self._masks = masks
        self._groups: dict[str, _GroupCount] = {}

    def take(self, rows: list[ErrorRow]) -> None:
        self.counted += len(rows)
        for row in rows:
            wording = group_wording(row.error or "")
            group = self._groups.get(wording)
            if group is None:
                if len(self._groups) == MOST_GROUPS:
                    self.ungrouped += 1
                    continue
                group = self._groups[wording] = _GroupCount()
            group.add(row)

    def groups(self) -> tuple[ErrorGroup, ...]:
        """The most frequent first, then by wording."""
        by_count = sorted(self._groups.items(), key=lambda item: (-item[1].count, item[0]))
        return tuple(self._group(counted) for _, counted in by_count)

    def _group(self, counted: _GroupCount) -> ErrorGroup:
        first_at, last_at = counted.times or (None, None)
        least, most = counted.attempts or (None, None)
        sample = counted.sample
        raw = "" if sample is None else sample.error or ""
        text = masked(raw, self._masks)
        return ErrorGroup(
            wording=group_wording(text),
            count=counted.count,
            first_at=first_at,
            last_at=last_at,
            attempts_least=least,
            attempts_most=most,
            sample_id=None if sample is None else sample.id,
            sample=text[:_SAMPLE_LENGTH],
            key=group_key(raw),
        )


def filters_of(group: ErrorGroup) -> Filters:
    return Filters(state="error", error_group=group.key)


# Labels of messages, for the command line and screens. Texts of a message are untrusted: the caller
# escapes them.


def claimant(claimed_by: str | None) -> str:
    """The claimant, with the consumer's own name first."""
    if claimed_by is None:
        return UNKNOWN
    session, named, consumer = claimed_by.partition(" consumer=")
    return f"{consumer} ({session})" if named else claimed_by


def past_attempt(past: PastAttempt, zone: tzinfo | None) -> str:
    """`attempt 2, <time>, <claimant>: error <text>`."""
    number = UNKNOWN if past.attempts is None else past.attempts
    ended_at = UNKNOWN if past.at is None else moment(past.at, zone)
    ended = "released" if past.error is None else f"error {past.error}"
    return f"attempt {number}, {ended_at}, {claimant(past.claimed_by)}: {ended}"


def attempts_range(group: ErrorGroup) -> str:
    """How often the messages of a group were popped: `1`, `1 to 5`, `?`."""
    least, most = (
        UNKNOWN if n is None else str(n) for n in (group.attempts_least, group.attempts_most)
    )
    return least if least == most else f"{least} to {most}"
