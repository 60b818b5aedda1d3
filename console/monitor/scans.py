"""The scans of a queue's messages: in the order of an index, from any key on.

Most queues have one scan per state. They follow from the design; the SQL is the statement
`messages` of its file.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum

from console.catalog import Kind, Queue
from console.designs import Flow, Order
from console.errors import UsageError
from console.monitor.filters import NOTHING, Filters

SINCE: Mapping[str, str] = {
    "ready": "pushed_at",
    "scheduled": "pushed_at",
    "claimed": "claimed_at",
    "error": "done_at",
    "done": "done_at",
}
"""State -> the role with the time since which a message is in it."""
_NEWEST_FIRST = {"error", "done"}
"""In other states, what is popped next or has waited longest comes first."""
_IN_HAND_ROLES = (
    *("id", "payload", "pushed_at", "attempts"),
    *("claimed_at", "claimed_by", "error", "done_at"),
)
"""The columns of a ring's <queue>_in_hand."""
EVERYTHING = 2**31 - 1
_TIME = re.compile(
    r"-?infinity|\d{4,7}-\d\d-\d\d"
    r"([ T]\d\d:\d\d(:\d\d(\.\d{1,9})?)?([+-]\d\d(:?\d\d){0,2}|Z)?)?( BC)?"
)


class By(Enum):
    ID = "id"
    TIME = "time"
    NUMBER = "number"
    """A ring's numbers, a chunk of slots at a time."""
    LOCATION = "location"
    """The row's location in the table (ctid), a chunk of pages at a time."""
    ARRIVAL = "arrival"
    """A number of the engine, which is not the message's id."""


@dataclass(frozen=True)
class Scan:
    """One index (or table) from end to end."""

    name: str
    """The state, if there is one; with the subscriber, if there is one: `claimed:billing`."""
    by: By
    state: str = ""
    """Of its messages; empty: of several states."""
    newest_first: bool = False
    dated: bool = True
    """False: the messages that lack the time by which the others are ordered."""
    in_hand: bool = False
    """Messages that were popped from a ring and are not finished."""
    subscriber: str = ""
    """If a ring is read as a whole: several may hold the same id."""
    by_age: bool = False
    """Whether it is ordered by the time since which messages are in their state."""
    statement: str = "messages"

    @property
    def condition(self) -> str:
        return self.name.partition(":")[0]

    @property
    def chunks(self) -> bool:
        """Whether it is read in chunks whose ends are known beforehand."""
        return self.by in {By.NUMBER, By.LOCATION}

    @property
    def of_slots(self) -> bool:
        """Whether its messages are in the slots of a ring."""
        return self.by in {By.NUMBER, By.ARRIVAL}

    def roles(self, queue: Queue) -> dict[str, str]:
        if self.in_hand:
            return {role: role for role in _IN_HAND_ROLES}
        return dict(queue.roles)


@dataclass(frozen=True)
class ScanKey:
    """A position in a scan: a message or, without an id, its beginning."""

    scan: str
    time: str = ""
    id: str = ""
    dated: bool = True
    same_time: bool = field(default=False, compare=False)
    """Whether all that was read before it, back to the key before, has its time."""

    @property
    def text(self) -> str:
        """`ready,,17`, `error,2026-11-21T19:07:45.12+00,17`; `error`: its beginning."""
        if self.dated and not self.id:
            return self.scan
        time = re.sub(r" (?=\d)", "T", self.time)
        return f"{self.scan},{time},{self.id}"


class Grouping(Enum):
    """What messages that are counted or chosen together have in common."""

    NO = "no"
    BY_CLAIMANT = "by_claimant"
    """Also the side of a limit in seconds on which the ages of their claims are."""
    BY_DUE = "by_due"
    """The side of a limit on which they are due."""
    BY_LABEL = "by_label"
    """What restore would do with them."""


@dataclass(frozen=True)
class ScanRequest:
    scan: Scan
    read_limit: int = EVERYTHING
    n: int = EVERYTHING
    """Matching messages that are returned at most."""
    after: ScanKey | None = None
    exactly: bool = False
    """Just the message at `after`."""
    reverse: bool = False
    filters: Filters = NOTHING
    moment: datetime | None = None
    """Ages are measured from then, without messages that changed state later. None: now."""
    payload_length: int | None = None
    """Length of each payload that is read; None: nothing."""
    error_length: int = 1000
    chunk: tuple[int, int] | None = None
    """The first and the last page, or number of one lap."""
    slots: int | None = None
    sizes: bool = True
    """Whether the sizes of payloads are read, where they are in the same table."""
    grouping: Grouping = Grouping.NO
    group_limit: object = None
    """Of the grouping: a time, or seconds."""
    groups: Sequence[str] = ()
    """The only ones; empty: all."""
    until: ScanKey | None = None
    """The last message."""
    same_time: bool = False
    """Only messages of the time of `after`, among the next rows of the table by key."""

    @property
    def down(self) -> bool:
        return self.scan.newest_first != self.reverse

    @property
    def sorted(self) -> str:
        """The order of its rows, as the condition in SQL."""
        if self.scan.by is By.LOCATION and self.chunk is None:
            return "no"
        by = "time" if self.scan.by is By.TIME else "id" if self.scan.dated else "undated"
        return f"{by}_{'down' if self.down else 'up'}"


@dataclass(frozen=True)
class Extent:
    """The ends of a scan by chunks; None: not known."""

    first: int | None
    last: int | None
    slots: int | None


def scans_of(queue: Queue) -> tuple[Scan, ...]:
    """In the order in which the queue's messages are shown."""
    design = queue.design
    if design.flow is Flow.NUMBERS:
        return _of_a_ring(queue)
    if design.keeps_row:
        return tuple(scan for state in _known_states(queue) for scan in _of_a_state(queue, state))
    if design.order is Order.DUE:
        return tuple(Scan(state, By.TIME, state) for state in queue.states)
    if design.order is Order.NONE:
        return (Scan("ready", By.LOCATION, "ready"),)
    if design.waits_itself:
        return (Scan("ready", By.ARRIVAL, "ready"),)
    return (Scan("ready", By.ID, "ready", newest_first=design.order is Order.LIFO),)


def scans_by_id(queue: Queue) -> tuple[Scan, ...]:
    """The scans in which an index finds a message by its id alone."""
    if queue.options.get("in_hand") == "on":
        return _in_hand(queue, "any", By.ID)
    if queue.design.keeps_row:
        return (Scan("any", By.ID),)
    (first, *others) = scans_of(queue)
    return (first,) if first.by is By.ID and not others else ()


def _of_a_ring(queue: Queue) -> tuple[Scan, ...]:
    """In the order of pops: in hand and ready again, then parked."""
    numbers = Scan("numbers", By.NUMBER, "ready")
    if queue.kind is Kind.ADOPTED:
        return (numbers,)
    slots = (Scan("parked", By.ARRIVAL, "ready", statement="parked_messages"), numbers)
    if queue.options.get("in_hand") != "on":
        return slots
    return (
        *_in_hand(queue, "in_hand", By.ID, "ready"),
        *slots,
        *_in_hand(queue, "claimed", By.TIME, "claimed"),
        *_in_hand(queue, "error", By.TIME, "error"),
    )


def _in_hand(queue: Queue, name: str, by: By, state: str = "") -> tuple[Scan, ...]:
    """One; for a ring as a whole one per subscriber, since ids are unique to a subscriber only."""
    scan = Scan(
        name,
        by,
        state,
        newest_first=state in _NEWEST_FIRST,
        in_hand=True,
        by_age=by is By.TIME,
        statement="in_hand_messages",
    )
    each = () if queue.subscriber else queue.subscribers
    named = (
        replace(scan, name=f"{name}:{subscriber.name}", subscriber=subscriber.name)
        for subscriber in each
    )
    return tuple(named) or (scan,)


def _known_states(queue: Queue) -> list[str]:
    """Without errors, if an adopted claim queue has no column for them."""
    has_errors = "status" in queue.roles or "error" in queue.roles
    return [state for state in queue.states if has_errors or state != "error"]


def _of_a_state(queue: Queue, state: str) -> list[Scan]:
    newest_first = state in _NEWEST_FIRST
    if queue.kind is Kind.ADOPTED:
        # Its indexes are not known; a table most likely has one on its key.
        scan = Scan(state, By.ID, state, newest_first)
        apart = state == "done" and queue.design.archives
        return [replace(scan, statement="archived_messages") if apart else scan]
    scans = [Scan(state, By.TIME, state, newest_first, by_age=True)]
    # A state set by hand may lack its time. For a claim, the time is the state.
    if state != "ready" and ("status" in queue.roles or state != "claimed"):
        scans.append(Scan(state, By.ID, state, newest_first, dated=False))
    return scans


def scans_for(queue: Queue, filters: Filters) -> tuple[Scan, ...]:
    scans = scans_of(queue)
    if filters.id is not None and (by_id := scans_by_id(queue)):
        # An index does not find ids in another table, nor in the slots of a ring.
        scans = (*by_id, *(scan for scan in scans if scan.statement != by_id[0].statement))
    if filters.state is not None:
        return tuple(scan for scan in scans if scan.state in {"", filters.state})
    if filters.errors or filters.error_group:
        return tuple(scan for scan in scans if scan.state in {"", "error"})
    if filters.claimed_by is not None:
        return tuple(scan for scan in scans if scan.state not in {"ready", "scheduled"})
    return scans


def read_key(text: str, scans: tuple[Scan, ...]) -> tuple[int, ScanKey]:
    """The index of the key's scan, and the key. UsageError if it is in none."""
    name, *key = text.split(",", 2)
    time, id_ = key if len(key) == 2 else ("", "")
    readable = len(key) != 1 and "\0" not in text and (not time or (id_ and _TIME.fullmatch(time)))
    for index, scan in enumerate(scans):
        if readable and scan.name == name and (not key or (scan.by is By.TIME) == bool(time)):
            return index, ScanKey(name, time, id_, scan.dated)
    raise UsageError(
        f"{text!r} is not a position in this list to continue from.",
        next_step="Give the key that the previous page ended with, and the same filters.",
    )


def next_chunk(
    scan: Scan, extent: Extent, key: ScanKey | None, *, down: bool, room: int
) -> tuple[int, int] | None:
    """The next numbers (of one lap) or pages after a key, at most `room`; None: no more."""
    first, last, slots = extent.first or 0, extent.last or 0, extent.slots
    if key is not None and key.id:
        number, rest_of_page = number_of(key), scan.by is By.LOCATION
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


def beyond(scan: Scan, chunk: tuple[int, int], *, down: bool) -> ScanKey:
    first, last = chunk
    if scan.by is By.NUMBER:
        return ScanKey(scan.name, id=str(first if down else last))
    return ScanKey(scan.name, id=f"({first if down else last + 1},0)")


def number_of(key: ScanKey) -> int:
    return int(key.id.strip("()").split(",")[0])
