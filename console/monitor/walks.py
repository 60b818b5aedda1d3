"""In which order the messages of a queue can be walked: by an index, from any key on.

A queue is a few walks, one after the other: one for each state, where an index serves it. Which
they are follows from what the design is; the SQL is the statement `messages` of its file.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from console.catalog import Kind, Queue
from console.designs import Flow, Order
from console.errors import UsageError

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
_TIME = re.compile(
    r"-?infinity|\d{4,6}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d{1,9})?)?([+-]\d\d(:?\d\d){0,2}|Z)?"
)


class By(Enum):
    """What a walk goes on by."""

    ID = "id"
    TIME = "time"
    """A time, and the id where several have the same."""
    NUMBER = "number"
    """A ring's numbers, one stretch of slots after the other."""
    PLACE = "place"
    """The place in the table, some pages after the other."""
    ARRIVAL = "arrival"
    """A number of the engine's own, which is not the message's id."""


@dataclass(frozen=True)
class Walk:
    """One index (or table) from its one end to the other."""

    name: str
    """As the conditions of the SQL call it; the state, where it has only one."""
    by: By
    state: str = ""
    """Of its messages; empty: theirs differ."""
    newest_first: bool = False
    dated: bool = True
    """False: those of the state that lack the time by which the others are in order."""
    in_hand: bool = False
    """What was popped from a ring and is not finished."""
    by_age: bool = False
    """Whether it is in the order of the time since which its messages are in their state."""
    statement: str = "messages"
    """In the design's file."""

    @property
    def stretches(self) -> bool:
        """Whether it goes on by stretches whose ends are known before they are read."""
        return self.by in {By.NUMBER, By.PLACE}

    def roles(self, queue: Queue) -> dict[str, str]:
        """What its messages tell: the columns by role."""
        if self.in_hand:
            return {role: role for role in _IN_HAND_ROLES}
        return dict(queue.roles)


@dataclass(frozen=True)
class Key:
    """A place in a walk: that of one message or, without an id, the walk's beginning."""

    walk: str
    time: str = ""
    id: str = ""
    dated: bool = True

    @property
    def text(self) -> str:
        """One word: `ready,,17`, `error,2026-11-21T19:07:45.12+00,17`; `error`: its beginning."""
        if self.dated and not self.id:
            return self.walk
        return f"{self.walk},{self.time.replace(' ', 'T')},{self.id}"


def walks_of(queue: Queue) -> tuple[Walk, ...]:
    """All walks of the queue, in the order in which its messages are shown."""
    design = queue.design
    if design.flow is Flow.NUMBERS:
        return _of_a_ring(queue)
    if design.keeps_row:
        return tuple(walk for state in _told(queue) for walk in _of_a_state(queue, state))
    if design.order is Order.DUE:
        return tuple(Walk(state, By.TIME, state) for state in queue.states)
    if design.order is Order.NONE:
        return (Walk("ready", By.PLACE, "ready"),)
    if design.waits_itself:
        return (Walk("ready", By.ARRIVAL, "ready"),)
    return (Walk("ready", By.ID, "ready", newest_first=design.order is Order.LIFO),)


def walk_by_id(queue: Queue) -> Walk | None:
    """The walk in which an id alone finds its message; None where no index has it."""
    if queue.options.get("in_hand") == "on":
        return _in_hand("any", By.ID)
    if queue.design.keeps_row:
        return Walk("any", By.ID)
    (first, *others) = walks_of(queue)
    return first if first.by is By.ID and not others else None


def _of_a_ring(queue: Queue) -> tuple[Walk, ...]:
    """What a pop takes first stands first: in hand and ready again, then parked."""
    numbers = Walk("numbers", By.NUMBER, "ready")
    if queue.kind is Kind.ADOPTED:
        return (numbers,)
    slots = (Walk("parked", By.ARRIVAL, "ready", statement="parked_messages"), numbers)
    if queue.options.get("in_hand") != "on":
        return slots
    return (
        _in_hand("in_hand", By.ID, "ready"),
        *slots,
        _in_hand("claimed", By.TIME, "claimed"),
        _in_hand("error", By.TIME, "error"),
    )


def _in_hand(name: str, by: By, state: str = "") -> Walk:
    return Walk(
        name,
        by,
        state,
        newest_first=state in _NEWEST_FIRST,
        in_hand=True,
        by_age=by is By.TIME,
        statement="in_hand_messages",
    )


def _told(queue: Queue) -> list[str]:
    """The states that can be told apart: nothing may say which rows of a claim queue failed."""
    told = "status" in queue.roles or "error" in queue.roles
    return [state for state in queue.states if told or state != "error"]


def _of_a_state(queue: Queue, state: str) -> list[Walk]:
    newest_first = state in _NEWEST_FIRST
    if queue.kind is Kind.ADOPTED:
        # Nobody knows its indexes; the key is what a table most likely has one on.
        return [Walk(state, By.ID, state, newest_first)]
    walks = [Walk(state, By.TIME, state, newest_first, by_age=True)]
    # Set by hand, a state may lack its time. Of a claim, the time is the state.
    if state != "ready" and ("status" in queue.roles or state != "claimed"):
        walks.append(Walk(state, By.ID, state, newest_first, dated=False))
    return walks


def read_key(text: str, walks: tuple[Walk, ...]) -> tuple[int, Key]:
    """Which of the walks a key is a place in, and the key. UsageError where it is in none."""
    name, *place = text.split(",", 2)
    time, id_ = place if len(place) == 2 else ("", "")
    readable = (
        len(place) != 1 and "\0" not in text and (not time or (id_ and _TIME.fullmatch(time)))
    )
    for at, walk in enumerate(walks):
        if readable and walk.name == name and (not place or (walk.by is By.TIME) == bool(time)):
            return at, Key(name, time, id_, walk.dated)
    raise UsageError(
        f"{text!r} is no place in this list to go on from.",
        next_step="Give the key that the page before ended with, and the same filters.",
    )
