"""What kinds of errors a queue has: its error rows, grouped by the wording of their texts.

The rows come page after page, newest first, with the beginning of their texts; the wording is taken
here. A server would have to do it for every row just the same, and SQL Server has no means to.
"""

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from console.catalog import Queue
from console.engines import Database
from console.errors import UsageError
from console.monitor.filters import Filters
from console.monitor.message import MASKED, Masks, masked
from console.monitor.messages import check, doing, looking
from console.monitor.walked import Ask, Source, fetch
from console.monitor.walks import Key, Walk, walks_of
from console.monitor.wording import wording

MOST_ERRORS = 1_000_000
"""So many error rows are counted at most."""
SECONDS_MOST = 60.0
"""After this time no further page is read."""
MOST_GROUPS = 1_000
"""So many kinds are told apart at most."""
_PAGE = 10_000
TEXT_LENGTH = 2_000
"""So many characters of a text are read."""
WORDING_LENGTH = 300
"""So many characters of a wording are compared: what comes after them makes no other kind."""
_SAMPLE_LENGTH = 1_000
_MOST_KNOWN_TEXTS = 10_000


@dataclass(frozen=True)
class ErrorRow:
    """What the statement `error_texts` returns."""

    key_time: str | None
    key_id: str
    position: int
    id: str | None
    error: str | None
    done_at: datetime | None
    attempts: int | None


@dataclass(frozen=True)
class ErrorGroup:
    """Error rows whose texts have one wording. None: nothing tells it."""

    wording: str
    count: int
    first_at: datetime | None
    last_at: datetime | None
    attempts_least: int | None
    attempts_most: int | None
    sample_id: str | None
    """The newest of them, and the beginning of its text."""
    sample: str


@dataclass(frozen=True)
class ErrorGroups:
    """The kinds of errors of a queue, the most frequent first."""

    queue: Queue
    groups: tuple[ErrorGroup, ...]
    counted: int
    """Error rows that were read; those of all groups, and those in none."""
    ungrouped: int
    """Rows of further kinds, beyond those that are told apart."""
    complete: bool
    """False: there are more error rows, older than those that were counted."""


def error_groups(database: Database, queue: Queue, *, masks: Masks = ()) -> ErrorGroups:
    """Count the error rows by kind, newest first and up to `MOST_ERRORS`.

    Raises UsageError where the queue keeps no error texts.
    """
    _require_texts(queue)
    grouping = _Grouping(masks)
    complete = True
    for rows in _pages(database, queue):
        if rows is None:
            complete = False
            break
        grouping.take(rows)
    return ErrorGroups(queue, grouping.groups(), grouping.counted, grouping.ungrouped, complete)


def _require_texts(queue: Queue) -> None:
    if "error" not in queue.states:
        raise UsageError(
            f"The queue {queue.name!r} has no errors to look at.",
            why=f"A pop of the design {queue.design.name} ends its message: none can fail later.",
        )
    check(queue, Filters(state="error"))


def _pages(database: Database, queue: Queue) -> Iterator[list[ErrorRow] | None]:
    """The error rows, a page at a time; None at the end where there are more."""
    began, counted = time.monotonic(), 0
    with looking(database, queue) as session:
        with session.transaction(doing(queue)) as connection:
            source = Source.of(connection, database.product, queue)
        for walk in [walk for walk in walks_of(queue) if walk.state == "error"]:
            key: Key | None = None
            while True:
                if counted >= MOST_ERRORS or time.monotonic() - began > SECONDS_MOST:
                    yield None
                    return
                with session.transaction(doing(queue)) as connection:
                    source.begin(connection, database)
                    rows = _page(connection, source, walk, key)
                yield rows
                counted += len(rows)
                if len(rows) < _PAGE:
                    break
                last = max(rows, key=lambda row: row.position)
                key = Key(walk.name, last.key_time or "", last.key_id, walk.dated)


def _page(connection: Connection, source: Source, walk: Walk, after: Key | None) -> list[ErrorRow]:
    ask = Ask(walk, look=_PAGE, after=after, error_length=TEXT_LENGTH)
    return fetch(connection, source, ask, ErrorRow, "error_texts")


class _Counted:
    """One group while it is counted."""

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
    """Counts rows by wording, in memory that does not grow with their number."""

    def __init__(self, masks: Masks) -> None:
        self.counted = 0
        self.ungrouped = 0
        self._masks = masks
        self._groups: dict[str, _Counted] = {}
        self._wordings: dict[str, str] = {}

    def take(self, rows: list[ErrorRow]) -> None:
        """Count these too."""
        self.counted += len(rows)
        for row in rows:
            kind = self._wording(row.error or "")
            group = self._groups.get(kind)
            if group is None:
                if len(self._groups) == MOST_GROUPS:
                    self.ungrouped += 1
                    continue
                group = self._groups[kind] = _Counted()
            group.add(row)

    def _wording(self, text: str) -> str:
        found = self._wordings.get(text)
        if found is None:
            found = wording(masked(text, self._masks))[:WORDING_LENGTH]
            if len(self._wordings) < _MOST_KNOWN_TEXTS:
                self._wordings[text] = found
        return found

    def groups(self) -> tuple[ErrorGroup, ...]:
        """What was counted, the most frequent first, then by wording."""
        by_count = sorted(self._groups.items(), key=lambda item: (-item[1].count, item[0]))
        return tuple(self._group(kind, counted) for kind, counted in by_count)

    def _group(self, kind: str, counted: _Counted) -> ErrorGroup:
        first_at, last_at = counted.times or (None, None)
        least, most = counted.attempts or (None, None)
        sample = counted.sample
        text = "" if sample is None else masked(sample.error or "", self._masks)
        return ErrorGroup(
            wording=kind,
            count=counted.count,
            first_at=first_at,
            last_at=last_at,
            attempts_least=least,
            attempts_most=most,
            sample_id=None if sample is None else sample.id,
            sample=text[:_SAMPLE_LENGTH],
        )


_HOLES = re.compile(r"<(?:n|text|uuid|time|ip|address)>|" + re.escape(MASKED))
_MOST_PIECES = 4


def filters_of(group: ErrorGroup) -> Filters:
    """Filters that the group's messages match: by the longest pieces of the wording.

    Of another kind that has all of these pieces the messages match too: see `also_matching`.
    """
    sample = group.sample.casefold()
    pieces = (piece.strip() for piece in _HOLES.split(group.wording))
    # A wording has one blank where a text may have many, and it may be cut off anywhere.
    found = [piece for piece in pieces if len(piece) > 1 and piece.casefold() in sample]
    longest = sorted(found, key=len, reverse=True)[:_MOST_PIECES]
    return Filters(state="error", errors=tuple(dict.fromkeys(p for p in found if p in longest)))


def also_matching(group: ErrorGroup, groups: Sequence[ErrorGroup]) -> tuple[ErrorGroup, ...]:
    """The other groups whose messages match the group's filters too, as far as samples tell."""
    wanted = [piece.casefold() for piece in filters_of(group).errors]
    return tuple(
        other
        for other in groups
        if other != group and all(piece in other.sample.casefold() for piece in wanted)
    )
