"""Which messages an action is for: walked in one order, by keys, up to the action's cut-off."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from sqlalchemy import Connection

from console import sql
from console.actions import audit
from console.engines import Database, Session
from console.errors import UsageError
from console.monitor.filters import NOTHING, Filters
from console.monitor.message import ERROR_LENGTH, Message
from console.monitor.message import Wanted as Looked
from console.monitor.messages import check, check_payload, doing
from console.monitor.search import Search
from console.monitor.walked import Ask, Source, scope_of, values_of
from console.monitor.walks import By, Key, Walk


class Candidates(Protocol):
    """The messages that an action is for, in the order in which it takes them."""

    def next(self, most: int) -> list[Message]:
        """The next ones, at most so many; none: that was all."""
        ...


class Choice:
    """The messages of some states that match, oldest first. In the hands of one thread."""

    def __init__(
        self,
        database: Database,
        session: Session,
        source: Source,
        filters: Filters,
        states: Sequence[str],
        cutoff: datetime,
    ) -> None:
        """UsageError for filters that can mean nothing in one of the states."""
        if filters.keep_newest is not None and len(states) > 1:
            raise UsageError(
                "keep-newest wants one state.",
                why=f"They are taken one state after the other: {', '.join(states)}.",
                next_step="Say which with --filter state=...",
            )
        if filters.keep_newest is not None and len(filters.ids) > 1:
            raise UsageError(
                "keep-newest does not go with several ids.",
                why="They are taken one id after the other, whatever their ages.",
            )
        self._database = database
        self._session = session
        self._source = source
        bare = replace(filters, limit=None, keep_newest=None)
        for state in states:
            check(source.queue, replace(bare, state=state))
        each = source.known(bare).each
        self._left = [replace(one, state=state) for state in states for one in each]
        """What is still to be walked: each state by itself, and in it each id."""
        check_payload(source, bare)
        self._cutoff = cutoff
        self._after: str | None = None
        self._met: set[str | None] = set()
        self._beyond = 0
        """So many more are looked at, where nothing gives an order."""

    def next(self, most: int) -> list[Message]:
        """The next ones, at most so many; none: that was all."""
        while self._left:
            limit = most + self._beyond
            wanted = Looked(self._left[0], limit, oldest_first=True, moment=self._cutoff)
            search = Search(self._source, wanted, self._after)
            self._run(search)
            found = self._not_met(search.found)
            if search.next is not None:
                self._after = search.next.text
            elif search.complete:
                self._next_walk()
            elif found:
                # Nothing gives an order to go on in: from the beginning, as long as others come.
                found = found[:most]
                self._met.update(message.id for message in found)
            elif len(search.found) >= limit:
                self._beyond += limit
            else:
                self._next_walk()
            if found:
                return found
        return []

    def _not_met(self, found: Sequence[Message]) -> list[Message]:
        if any(message.id is None and not message.key for message in found):
            raise UsageError(
                f"Messages of {self._source.queue.name!r} cannot be told apart.",
                why="It was adopted without a column for the role id.",
                next_step="Forget it, and adopt it with --map id=COLUMN.",
            )
        return [message for message in found if message.id not in self._met]

    def _next_walk(self) -> None:
        self._left.pop(0)
        self._after = None
        self._met.clear()
        self._beyond = 0

    def _run(self, search: Search) -> None:
        while not search.ended:
            with self._session.transaction(doing(self._source.queue)) as connection:
                self._source.begin(connection, self._database)
                search.step(connection)


@dataclass(frozen=True)
class Taken:
    """Which rows of an archive, beside what filters say of a message; None: whatever it was."""

    action: int | None = None
    """The number of the action that took them."""
    reason: str | None = None
    """A text that their reason holds, capitals or not."""
    popped: bool = False
    """Those that a pop took, and no others; else, all but those."""


@dataclass(frozen=True)
class _ArchivedRow:
    position: int
    matches: bool
    archive_id: int
    id: str
    state: str
    pushed_at: datetime | None
    age_seconds: float
    due_at: datetime | None
    attempts: int
    claimed_at: datetime | None
    claimed_by: str | None
    done_at: datetime | None
    title: str | None
    payload_bytes: int | None
    error: str | None

    @property
    def message(self) -> Message:
        """The row as a message; its key is its place in the archive."""
        told = {name: value for name, value in vars(self).items() if name not in _PLACE}
        error = None if self.error is None else self.error[:ERROR_LENGTH]
        told |= {"key": str(self.archive_id), "error": error, "error_cut": error != self.error}
        return Message(**told, slot=None, number=None)


_PLACE = {"position", "matches", "archive_id"}
_READ_AT_ONCE = 5_000
"""So many rows of an archive one statement reads where not all of them match."""
_PURGES_AT_ONCE = 50_000


class ArchiveChoice:
    """The rows of a queue's archive that match, in the order in which they came into it.

    `older` and `newer` say how long they have been there. In the hands of one thread.
    """

    def __init__(
        self,
        database: Database,
        session: Session,
        source: Source,
        filters: Filters,
        taken: Taken,
        cutoff: datetime,
    ) -> None:
        """UsageError for filters that can mean nothing here."""
        check_payload(source, filters)
        filters = replace(source.known(filters), limit=None, keep_newest=None)
        self._filters, *self._others = filters.each
        self._database = database
        self._session = session
        self._source = source
        self._taken = taken
        self._cutoff = cutoff
        self._after = 0
        self._ended = False

    def next(self, most: int) -> list[Message]:
        """The next ones, at most so many; none: that was all."""
        while self._goes_on():
            look = max(most, _READ_AT_ONCE) if self._narrow else most
            with self._session.transaction(doing(self._source.queue)) as connection:
                self._source.begin(connection, self._database)
                rows = self._fetch(connection, look, most)
            if rows:
                self._after = rows[-1].archive_id
            self._ended = not rows or (len(rows) < most and rows[-1].position < look)
            if found := [row.message for row in rows if row.matches]:
                return found
        return []

    def _goes_on(self) -> bool:
        """For each id from the beginning: the archive has no index on them."""
        if self._ended and self._others:
            self._filters, self._after, self._ended = self._others.pop(0), 0, False
        return not self._ended

    @property
    def _narrow(self) -> bool:
        return self._filters != NOTHING or self._taken != Taken()

    def _fetch(self, connection: Connection, look: int, most: int) -> list[_ArchivedRow]:
        ask = Ask(
            Walk("archive", By.ID),
            look=look,
            n=most,
            after=Key("archive", id=str(self._after)),
            filters=self._filters,
            moment=self._cutoff,
            error_length=ERROR_LENGTH + 1,
        )
        conditions = {
            "by_state": _yes(self._filters.state is not None),
            "by_action": _yes(self._taken.action is not None),
            "by_reason": _yes(self._taken.reason is not None),
            "popped": _yes(self._taken.popped),
        }
        plain = scope_of(self._source, ask)
        return sql.fetch(
            connection,
            _ArchivedRow,
            sql.statements(self._source.product.name, "actions")["in_archive"],
            replace(plain, options={**plain.options, **conditions}),
            **{
                **values_of(self._source, ask),
                "state": self._filters.state,
                "action": self._taken.action,
                "reason": self._taken.reason,
            },
        )


@dataclass(frozen=True)
class _Purges:
    looked: int
    lowest: int | None
    action_id: int | None


def last_purge(
    database: Database, session: Session, source: Source, cutoff: datetime
) -> int | None:
    """The last purge of which the archive still has messages: the greatest number of one.

    Backwards, a part at a time. It ends early where the audit says that there was none later.
    """
    queue, product = source.queue, source.product
    statement = sql.statements(product.name, "actions")["purges"]
    greatest: int | None = None
    before: int | None = None
    with session.transaction(doing(queue)) as connection:
        wanted = audit.Wanted(queue.schema, queue.name, "purge")
        newest = next((e.action_id for e in audit.entries(connection, product, wanted, 1)), None)
    while True:
        with session.transaction(doing(queue)) as connection:
            source.begin(connection, database)
            (found,) = sql.fetch(
                connection,
                _Purges,
                statement,
                queue.scope(product),
                before=before,
                look=_PURGES_AT_ONCE,
                moment=cutoff,
            )
        met = [number for number in (greatest, found.action_id) if number is not None]
        greatest = max(met, default=None)
        if found.looked < _PURGES_AT_ONCE or (greatest is not None and greatest == newest):
            return greatest
        before = found.lowest


def _yes(condition: object) -> str:
    return "yes" if condition else "no"
