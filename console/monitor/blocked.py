"""Who keeps others from a queue's table as a whole: DDL that waits, or that is not committed."""

from collections.abc import Sequence
from dataclasses import dataclass

from console.catalog import Queue
from console.engines import Database
from console.errors import ConnectionFailedError, ConsoleError
from console.formats import duration, numbered
from console.monitor.activity import Activity, Session, find_objects, sample_activity
from console.monitor.rates import QueueName, key_of
from console.monitor.wait_graph import Node

_WHOLE_TABLE = {"relation", "OBJECT"}
"""What is locked, in either engine's words. Calls of a queue do not wait for each other there."""


@dataclass(frozen=True)
class Blocked:
    """A tree of waits for a queue's table: whoever ends the root's transaction frees all."""

    root: Session
    waiters: tuple[Session, ...]
    """Those that wait for the root first."""

    @property
    def words(self) -> str:
        """`session 7 (ann, etl, local), idle in transaction for 5 min, stops session 8 (bob, psql,
        local) and 6 sessions behind it: the table is locked`."""
        root, first = self.root, self.waiters[0]
        seconds = root.transaction_seconds
        lasted = "" if seconds is None else f" for {duration(max(0.0, seconds))}"
        state = f", {root.state or 'state unknown'}, in a transaction{lasted},"
        behind = len(self.waiters) - 1
        more = f" and {numbered(behind, 'session')} behind it" if behind else ""
        stopped = f"{first.label} ({first.who}), which waits for {first.waits_for},"
        return f"{root.label} ({root.who}){state} stops {stopped}{more}".rstrip(",")

    @property
    def waited_seconds(self) -> float:
        return max(waiter.wait_seconds or 0.0 for waiter in self.waiters)


def blocked(database: Database, queues: Sequence[Queue]) -> dict[QueueName, Blocked]:
    """Of each of these queues whose table somebody waits for as a whole. Raises ConsoleError."""
    if not queues:
        return {}
    return blocked_in(sample_activity(database, find_objects(database, queues)), queues)


def blocked_in(activity: Activity, queues: Sequence[Queue]) -> dict[QueueName, Blocked]:
    """The same, of sessions that were sampled before."""
    found = {key_of(queue): _blocked(activity, key_of(queue)) for queue in queues}
    return {key: one for key, one in found.items() if one is not None}


def blocked_words(database: Database, queues: Sequence[Queue]) -> dict[QueueName, str]:
    """The same in words; nothing where the sessions cannot be read."""
    try:
        return {key: one.words for key, one in blocked(database, queues).items()}
    except ConnectionFailedError:
        raise
    except ConsoleError:
        return {}


def stopped_too(
    database: Database, queues: Sequence[Queue], one: Blocked, key: QueueName
) -> list[str]:
    """The other ones of these queues that the same session stops. Raises ConsoleError."""
    others = blocked(database, [queue for queue in queues if key_of(queue) != key])
    labels = {key_of(queue): queue.label for queue in queues}
    return [labels[of] for of, other in others.items() if other.root.key == one.root.key]


def _blocked(activity: Activity, key: QueueName) -> Blocked | None:
    """Without what waits behind the same root for other tables only."""
    for tree in activity.trees:
        here = [waiter for waiter in tree.waiters if _has_waiter(activity, waiter, key)]
        if here:
            stopped = (activity.by_key[node] for node in _layers(here))
            return Blocked(activity.by_key[tree.key], tuple(stopped))
    return None


def _has_waiter(activity: Activity, tree: Node[int | str], key: QueueName) -> bool:
    return any(_waits_for_table(activity.by_key[node], key) for node in _layers([tree]))


def _layers(trees: Sequence[Node[int | str]]) -> list[int | str]:
    """The sessions, those next to the roots first."""
    layer, layers = list(trees), list[int | str]()
    while layer:
        layers += [node.key for node in layer]
        layer = [waiter for node in layer for waiter in node.waiters]
    return layers


def _waits_for_table(session: Session, key: QueueName) -> bool:
    return any(
        not lock.granted and lock.lock in _WHOLE_TABLE and (lock.schema, lock.queue) == key
        for lock in session.locks
    )
