"""Going through a queue's walks until a page is full, they end, or a bound is met."""

import time
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Connection

from console.catalog import Kind, Queue
from console.errors import UsageError
from console.monitor.filters import Filters
from console.monitor.message import Message, MessageRow, Wanted
from console.monitor.walked import Extent, Source, fetch
from console.monitor.walks import By, Key, Walk, read_key, walk_by_id, walks_of

READ_MOST = 50_000
"""So many messages one search reads at most, to find those that match."""
READ_AT_ONCE = 2_000
PAGES_MOST = 2_000
"""So many pages of a table without an index one search reads at most."""
PAGES_AT_ONCE = 32
SECONDS_MOST = 5.0
"""After this time a search begins no further statement."""


class Search:
    """The messages for one page, found a step at a time."""

    def __init__(self, source: Source, wanted: Wanted, after: str | None) -> None:
        filters = source.known(wanted.filters)
        if len(filters.ids) > 1:
            raise ValueError("one search is for one id")
        self.found: list[Message] = []
        self.next: Key | None = None
        """Where to go on; None: there is nothing more, or no order to go on in."""
        self.complete = True
        """False: it ended before the page was full, and there may be more."""
        self._source = source
        self._wanted = replace(wanted, filters=filters)
        self._walks = walks_for(source.queue, filters)
        self._at = 0
        self._key: Key | None = None
        if after is not None:
            self._at, self._key = read_key(after, self._walks)
            source.check(self._walks[self._at], self._key)
        self._last: Key | None = None
        self._installed = source.queue.kind is Kind.INSTALLED
        self._holes = 0
        self._spent = 0.0
        """1: all that may be read."""
        self._began = time.monotonic()
        self.ended = not self._walks

    def step(self, connection: Connection) -> None:
        """One statement further."""
        walk = self._walks[self._at]
        if walk.stretches:
            self._next_stretch(connection, walk)
        else:
            self._next_rows(connection, walk)
        late = time.monotonic() - self._began > SECONDS_MOST
        if not self.ended and (self._spent >= 1 or late):
            self._stop(walk=self._walks[self._at])

    @property
    def _room(self) -> int:
        """One more than the page takes says that it is not the last."""
        return self._wanted.limit - len(self.found) + 1

    def _next_rows(self, connection: Connection, walk: Walk) -> None:
        filters = self._wanted.filters
        ask = self._wanted.ask(walk, after=self._key if self._key and self._key.id else None)
        if filters.id is not None and walk == walk_by_id(self._source.queue):
            ask = self._wanted.ask(walk, after=Key(walk.name, id=filters.id), exactly=True)
        dense = not filters.narrowing and walk.name != "parked"
        ask = replace(ask, look=self._room if dense else READ_AT_ONCE, n=self._room)
        rows = fetch(connection, self._source, ask, MessageRow, "matching")
        more = bool(rows) and rows[-1].position >= ask.look
        if self._take(rows, walk) or (more and not rows[-1].key_id):
            self._end_full()
        elif more and not self.ended:
            self._key = rows[-1].key(walk)
            self._spent += ask.look / READ_MOST
        elif not self.ended:
            self._next_walk()

    def _next_stretch(self, connection: Connection, walk: Walk) -> None:
        extent = self._source.extent(connection)
        if extent.first is None or extent.last is None:
            self._take_any(connection, walk)
            return
        down = self._wanted.ask(walk).down
        room = PAGES_AT_ONCE if walk.by is By.PLACE else self._numbers()
        stretch = next_stretch(walk, extent, self._key, down=down, room=room)
        if stretch is None:
            self._next_walk()
            return
        number = self._number_of_the_id(walk)
        if number is not None and extent.first <= number <= extent.last:
            self._take(self._read(connection, walk, (number, number), extent), walk)
        if self.ended:
            return
        if self._take(self._read(connection, walk, stretch, extent), walk):
            self._end_full()
        elif not self.ended:
            self._key = beyond(walk, stretch, down=down)
            self._holes += 1
            most = PAGES_MOST if walk.by is By.PLACE else READ_MOST
            self._spent += (stretch[1] - stretch[0] + 1) / most

    def _read(
        self, connection: Connection, walk: Walk, stretch: tuple[int, int], extent: Extent
    ) -> list[MessageRow]:
        after = self._key if walk.by is By.PLACE and self._key and self._key.id else None
        ask = self._wanted.ask(walk, after=after)
        ask = replace(ask, stretch=stretch, slots=extent.slots, n=self._room)
        return fetch(connection, self._source, ask, MessageRow, "matching")

    def _number_of_the_id(self, walk: Walk) -> int | None:
        """Where a message of a ring is, unless a relay has moved it: looked at before the rest."""
        sought = self._wanted.filters.id
        first_look = self._key is None and self._installed
        return int(sought) if sought and first_look and walk.by is By.NUMBER else None

    def _numbers(self) -> int:
        """How many to read: what the page needs, and ever more where they turn out to be holes."""
        if self._wanted.filters.narrowing:
            return READ_AT_ONCE
        return min(READ_AT_ONCE, self._room << min(self._holes, 10))

    def _take_any(self, connection: Connection, walk: Walk) -> None:
        """What comes first where nothing gives an order: there is no place to go on from."""
        if walk.by is By.NUMBER:
            raise UsageError(
                f"The messages of {self._source.queue.name!r} cannot be found.",
                why="This login does not see the next numbers of the ring's sequences.",
                next_step="Ask for the right to see them.",
            )
        if self._key is not None:
            raise UsageError(f"The list of {self._source.queue.name!r} has no order to go on in.")
        look = READ_MOST if self._wanted.filters.narrowing else self._room
        ask = replace(self._wanted.ask(walk), look=look, n=self._room)
        rows = fetch(connection, self._source, ask, MessageRow, "matching")
        more = self._take(rows, walk)
        self.complete = not more and all(row.position < look for row in rows)
        self.ended = True

    def _take(self, rows: Sequence[MessageRow], walk: Walk) -> bool:
        """Put what matches on the page; whether there is one more than it takes."""
        state = self._wanted.filters.state
        for row in rows:
            if row.matches and state in (None, row.state):
                if len(self.found) == self._wanted.limit:
                    return True
                self.found.append(self._wanted.message(row, walk))
                self._last = row.key(walk)
                # The one with that id; of somebody else's table nobody knows that.
                self.ended = self._wanted.filters.id is not None and self._installed
        return False

    def _next_walk(self) -> None:
        self._at, self._key = self._at + 1, None
        self.ended = self._at == len(self._walks)

    def _end_full(self) -> None:
        """The page is full, and there is more."""
        self.ended = True
        if self._last is not None and self._last.id:
            self.next = self._last
        else:
            self.complete = False  # without ids there is no place to go on from

    def _stop(self, walk: Walk) -> None:
        """A bound is met."""
        if len(self.found) == self._wanted.limit:
            self._end_full()
            return
        self.next = self._key or Key(walk.name, dated=walk.dated)
        self.complete = False
        self.ended = True


def walks_for(queue: Queue, filters: Filters) -> tuple[Walk, ...]:
    """The walks in which messages can match."""
    walks = walks_of(queue)
    if filters.id is not None and (by_id := walk_by_id(queue)) is not None:
        # Who is in a slot of a ring has an id that no index knows.
        walks = (by_id, *(walk for walk in walks if walk.by in {By.NUMBER, By.ARRIVAL}))
    if filters.state is not None:
        return tuple(walk for walk in walks if walk.state in {"", filters.state})
    if filters.errors:
        return tuple(walk for walk in walks if walk.state in {"", "error"})
    if filters.claimed_by is not None:
        return tuple(walk for walk in walks if walk.state not in {"ready", "scheduled"})
    return walks


def next_stretch(
    walk: Walk, extent: Extent, key: Key | None, *, down: bool, room: int
) -> tuple[int, int] | None:
    """The next numbers or pages from a key on, at most `room` and of one lap; None: no more."""
    first, last, slots = extent.first or 0, extent.last or 0, extent.slots
    if key is not None and key.id:
        number, rest_of_page = number_of(key), walk.by is By.PLACE
        if rest_of_page and down:
            rest_of_page = not key.id.endswith((",0)", ",1)"))  # the first row of a page is its 1
        if down:
            last = min(last, number if rest_of_page else number - 1)
        else:
            first = max(first, number if rest_of_page else number + 1)
    if first > last:
        return None
    if down:
        lap = last - last % slots if slots else first
        return max(first, last - room + 1, lap), last
    lap = first - first % slots + slots - 1 if slots else last
    return first, min(last, first + room - 1, lap)


def beyond(walk: Walk, stretch: tuple[int, int], *, down: bool) -> Key:
    """The key after everything in a stretch."""
    first, last = stretch
    if walk.by is By.NUMBER:
        return Key(walk.name, id=str(first if down else last))
    return Key(walk.name, id=f"({first if down else last + 1},0)")


def number_of(key: Key) -> int:
    """The number, or the page of a place."""
    return int(key.id.strip("()").split(",")[0])
