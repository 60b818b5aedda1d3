"""In which order the messages of a queue can be scanned: by an index, from any key on.

A queue is a few scans, one after the other: one for each state, where an index serves it. Which
they are follows from what the design is; the SQL is the statement `messages` of its file.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum

from console.catalog import Kind, Queue
from console.designs import Flow, Order
from console.errors import UsageError
from console.monitor.filters import MOST_PAYLOAD_FILTERS, NOTHING, Filters

SINCE: Mapping[str, str] = {
    "ready": "pushed_at",
    "scheduled": "pushed_at",
    "claimed": "claimed_at",
    "error": "done_at",
    "done": "done_at",
}
"""State -> the role whose time says since when a message is in it."""
_NEWEST_FIRST = {"error", "done"}
"""What happened last is asked for first; else, what will be popped or has waited longest."""
_IN_HAND_ROLES = (
    *("id", "payload", "pushed_at", "attempts"),
    *("claimed_at", "claimed_by", "error", "done_at"),
)
"""What a ring's <queue>_in_hand tells."""
_EVERYTHING = 2**31 - 1
_TIME = re.compile(
    r"-?infinity|\d{4,6}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d{1,9})?)?([+-]\d\d(:?\d\d){0,2}|Z)?"
)


class By(Enum):
    ID = "id"
    TIME = "time"
    """A time, and the id where several have the same."""
    NUMBER = "number"
    """A ring's numbers, one chunk of slots after the other."""
    LOCATION = "location"
    """The row's location in the table (ctid), a chunk of pages at a time."""
    ARRIVAL = "arrival"
    """A number of the engine's own, which is not the message's id."""


@dataclass(frozen=True)
class Scan:
    """One index (or table) from its one end to the other."""

    name: str
    """The state, where it has only one; of one subscriber's, with the name: `claimed:billing`."""
    by: By
    state: str = ""
    """Of its messages; empty: theirs differ."""
    newest_first: bool = False
    dated: bool = True
    """False: those of the state that lack the time by which the others are in order."""
    in_hand: bool = False
    """What was popped from a ring and is not finished."""
    subscriber: str = ""
    """Whose that is, where a ring is looked at as a whole: several may hold one id."""
    by_age: bool = False
    """Whether it is in the order of the time since which its messages are in their state."""
    statement: str = "messages"
    """In the design's file."""

    @property
    def condition(self) -> str:
        return self.name.partition(":")[0]

    @property
    def chunks(self) -> bool:
        """Whether it goes on by chunks whose ends are known before they are read."""
        return self.by in {By.NUMBER, By.LOCATION}

    def roles(self, queue: Queue) -> dict[str, str]:
        if self.in_hand:
            return {role: role for role in _IN_HAND_ROLES}
        return dict(queue.roles)


@dataclass(frozen=True)
class ScanKey:
    """A place in a scan: that of one message or, without an id, the scan's beginning."""

    scan: str
    time: str = ""
    id: str = ""
    dated: bool = True

    @property
    def text(self) -> str:
        """One word: `ready,,17`, `error,2026-11-21T19:07:45.12+00,17`; `error`: its beginning."""
        if self.dated and not self.id:
            return self.scan
        return f"{self.scan},{self.time.replace(' ', 'T')},{self.id}"


CONDITIONS: Mapping[str, tuple[str, ...]] = {
    "scan": (
        *("ready", "scheduled", "claimed", "error", "done"),
        *("any", "in_hand", "parked", "numbers"),
    ),
    "sorted": (
        *("no", "id_up", "id_down"),
        *("time_up", "time_down", "undated_up", "undated_down"),
    ),
    "start": ("beginning", "after", "exactly"),
    "by_age": ("scan", "row"),
    **dict.fromkeys(("body", "with_payload"), ("yes", "no")),
    **dict.fromkeys(("by_cutoff", "by_older", "by_newer", "by_id", "by_error"), ("yes", "no")),
    "hashed": ("yes", "no"),
    **dict.fromkeys(("by_claimed_by", "by_payload"), ("yes", "no")),
    **dict.fromkeys((f"by_payload_{n + 1}" for n in range(MOST_PAYLOAD_FILTERS)), ("yes", "no")),
}
"""What the statements over a scan may ask for in `-- when`, beside a queue's own options."""


@dataclass(frozen=True)
class ScanRequest:
    """What is asked of one scan."""

    scan: Scan
    read_limit: int = _EVERYTHING
    """At most so many messages are read."""
    n: int = _EVERYTHING
    """At most so many of those that match come back."""
    after: ScanKey | None = None
    exactly: bool = False
    """The message at `after` itself."""
    reverse: bool = False
    filters: Filters = NOTHING
    moment: datetime | None = None
    """Ages are measured from then, and what came into its state later is left out. None: now."""
    payload_length: int | None = None
    """So much of each payload; None: nothing of it."""
    error_length: int = 1000
    chunk: tuple[int, int] | None = None
    """The first and the last number or page; of numbers, those of one lap."""
    slots: int | None = None

    @property
    def down(self) -> bool:
        return self.scan.newest_first != self.reverse

    @property
    def sorted(self) -> str:
        """The order of its rows, as the conditions of the SQL call it."""
        if self.scan.by is By.LOCATION and self.chunk is None:
            return "no"
        by = "time" if self.scan.by is By.TIME else "id" if self.scan.dated else "undated"
        return f"{by}_{'down' if self.down else 'up'}"


@dataclass(frozen=True)
class Extent:
    """The ends of what a scan by chunks goes through; None where they cannot be told."""

    first: int | None
    last: int | None
    slots: int | None


def scans_of(queue: Queue) -> tuple[Scan, ...]:
    """All scans of the queue, in the order in which its messages are shown."""
    design = queue.design
    if design.flow is Flow.NUMBERS:
        return _of_a_ring(queue)
    if design.keeps_row:
        return tuple(scan for state in _told(queue) for scan in _of_a_state(queue, state))
    if design.order is Order.DUE:
        return tuple(Scan(state, By.TIME, state) for state in queue.states)
    if design.order is Order.NONE:
        return (Scan("ready", By.LOCATION, "ready"),)
    if design.waits_itself:
        return (Scan("ready", By.ARRIVAL, "ready"),)
    return (Scan("ready", By.ID, "ready", newest_first=design.order is Order.LIFO),)


def scans_by_id(queue: Queue) -> tuple[Scan, ...]:
    """The scans in which an id alone finds its message; none where no index has it."""
    if queue.options.get("in_hand") == "on":
        return _in_hand(queue, "any", By.ID)
    if queue.design.keeps_row:
        return (Scan("any", By.ID),)
    (first, *others) = scans_of(queue)
    return (first,) if first.by is By.ID and not others else ()


def _of_a_ring(queue: Queue) -> tuple[Scan, ...]:
    """What a pop takes first stands first: in hand and ready again, then parked."""
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
    """One; of a ring as a whole one for each of its subscribers, for an id is a key of each."""
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
    named = (replace(scan, name=f"{name}:{one.name}", subscriber=one.name) for one in each)
    return tuple(named) or (scan,)


def _told(queue: Queue) -> list[str]:
    """The states that can be told apart: nothing may say which rows of a claim queue failed."""
    told = "status" in queue.roles or "error" in queue.roles
    return [state for state in queue.states if told or state != "error"]


def _of_a_state(queue: Queue, state: str) -> list[Scan]:
    newest_first = state in _NEWEST_FIRST
    if queue.kind is Kind.ADOPTED:
        # Nobody knows its indexes; the key is what a table most likely has one on.
        scan = Scan(state, By.ID, state, newest_first)
        apart = state == "done" and queue.design.archives
        return [replace(scan, statement="archived_messages") if apart else scan]
    scans = [Scan(state, By.TIME, state, newest_first, by_age=True)]
    # Set by hand, a state may lack its time. Of a claim, the time is the state.
    if state != "ready" and ("status" in queue.roles or state != "claimed"):
        scans.append(Scan(state, By.ID, state, newest_first, dated=False))
    return scans


def scans_for(queue: Queue, filters: Filters) -> tuple[Scan, ...]:
    scans = scans_of(queue)
    if filters.id is not None and (by_id := scans_by_id(queue)):
        # It finds nothing in another table; who is in a slot of a ring has an id no index knows.
        scans = (*by_id, *(scan for scan in scans if scan.statement != by_id[0].statement))
    if filters.state is not None:
        return tuple(scan for scan in scans if scan.state in {"", filters.state})
    if filters.errors or filters.error_group:
        return tuple(scan for scan in scans if scan.state in {"", "error"})
    if filters.claimed_by is not None:
        return tuple(scan for scan in scans if scan.state not in {"ready", "scheduled"})
    return scans


def read_key(text: str, scans: tuple[Scan, ...]) -> tuple[int, ScanKey]:
    """Which of the scans a key is a place in, and the key. UsageError where it is in none."""
    name, *place = text.split(",", 2)
    time, id_ = place if len(place) == 2 else ("", "")
    readable = (
        len(place) != 1 and "\0" not in text and (not time or (id_ and _TIME.fullmatch(time)))
    )
    for at, scan in enumerate(scans):
        if readable and scan.name == name and (not place or (scan.by is By.TIME) == bool(time)):
            return at, ScanKey(name, time, id_, scan.dated)
    raise UsageError(
        f"{text!r} is not a place in this list to continue from.",
        next_step="Give the key that the page before ended with, and the same filters.",
    )


def next_chunk(
    scan: Scan, extent: Extent, key: ScanKey | None, *, down: bool, room: int
) -> tuple[int, int] | None:
    """The next numbers or pages from a key on, at most `room` and of one lap; None: no more."""
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
