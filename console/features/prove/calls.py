"""Claims about push and pop: order, rollback, kill, isolation, full, empty."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from console.actions.pop import PoppedMessage, pop_many
from console.actions.push import push_many
from console.actions.smoke import smoke_scratch
from console.catalog import Queue
from console.designs import Order
from console.engines import Database
from console.errors import BusyError, ConnectionFailedError, ConsoleError
from console.features.prove.trial import Claim, Trial, require
from console.formats import numbered
from console.monitor.rates import StatusRow
from console.plan import Control

_MESSAGES = 5
_MESSAGES_PER_LEVEL = 20
_CONSUMERS = 2
_REQUIRED_LEVEL = "READ COMMITTED"
"""Every design has to work at this level; at others a pop may be refused, if that costs nothing."""
_MOST_SECONDS = 10.0
"""For consumers that block each other; then the rest is popped by one."""


def _order(trial: Trial) -> str:
    seen = smoke_scratch(trial.database, trial.installed, trial.queue.design.name, Control())
    figures = (
        f"{seen.messages} messages, 3 producers, 3 consumers: lost {seen.lost}, doubled "
        f"{seen.doubled}, damaged {seen.damaged}, out of order ({seen.order}) {seen.out_of_order}"
    )
    require(seen.ok, "; ".join((figures, *seen.errors)))
    return figures


def _pop_rolled_back(trial: Trial) -> str:
    sent = trial.push(_MESSAGES)
    with trial.database.transaction("pop and roll back") as connection:
        taken = trial.numbers(pop_many(connection, trial.queue, 2, "prove"))
        connection.rollback()
    require(len(taken) == 2, f"a pop of 2 gave {len(taken)}")
    parked = ""
    if trial.draws_numbers:
        left = trial.figures().ready
        require(left == _MESSAGES - 2, f"{left} of {_MESSAGES} ready, though 2 are consumed")
        parked = f", after the repair: {trial.require_repaired('orphan')[1]}"
    came = trial.require_drained(sent)
    attempts = {message.attempts for message in came}
    require(attempts == {1}, f"attempts {sorted(attempts)}, though they were never popped before")
    return f"2 popped and rolled back, {len(came)} of {len(sent)} came{parked}"


def _push_rolled_back(trial: Trial) -> str:
    before = trial.push(1)
    with trial.database.transaction("push and roll back") as connection:
        trial.push_one(connection)
        push_many(connection, trial.queue, trial.payloads(2))
        connection.rollback()
    came = trial.require_drained(before + trial.push(1))
    return f"3 pushed and rolled back, {len(came)} pushed and committed: {len(came)} came"


def _killed(trial: Trial) -> str:
    sent = trial.push(_MESSAGES)
    taken: list[PoppedMessage] = []
    with trial.killed() as connection:
        taken += pop_many(connection, trial.queue, 2, "prove")
        trial.push_one(connection)
    require(len(taken) == 2, f"a pop of 2 gave {len(taken)}")
    if trial.draws_numbers:
        trial.require_repaired("orphan")
    came = trial.require_drained(sent)
    return f"killed after it popped 2 and pushed 1: {len(came)} of {len(sent)} came, of its own 0"


@dataclass
class _Consumer:
    """Pops at an isolation level, in a thread of its own, until all are popped."""

    trial: Trial
    level: str
    popped: list[PoppedMessage]
    """By all consumers."""
    until: float
    refused: str = ""
    retries: int = 0

    def run(self) -> None:
        """ConnectionFailedError, DisprovedError."""
        while not self.refused:
            self.try_once()
            if len(self.popped) >= _MESSAGES_PER_LEVEL or time.monotonic() >= self.until:
                return

    def try_once(self) -> None:
        try:
            with self.trial.database.transaction("pop", isolation=self.level) as connection:
                came = pop_many(connection, self.trial.queue, 1, "prove")
            self.popped += came
        except BusyError:
            self.retries += 1
        except ConnectionFailedError:
            raise
        except ConsoleError as error:
            self.refused = error.why or error.what


def isolated(level: str) -> Callable[[Trial], str]:
    """The proof with several consumers at an isolation level."""

    def prove(trial: Trial) -> str:
        before = trial.figures()
        pushed = _push_at(trial, level)
        sent = trial.push(_MESSAGES_PER_LEVEL - len(pushed))
        popped: list[PoppedMessage] = []
        until = time.monotonic() + _MOST_SECONDS
        consumers = [_Consumer(trial, level, popped, until) for _ in range(_CONSUMERS)]
        with ThreadPoolExecutor(_CONSUMERS, "consumer") as pool:
            for future in [pool.submit(consumer.run) for consumer in consumers]:
                future.result()
        at_level = len(popped)
        trial.finish(popped)
        refused = next((one.refused for one in consumers if one.refused), "")
        if refused and not at_level and trial.draws_numbers:
            after = trial.figures()
            require(after.next_pop == before.next_pop, "a refused pop has consumed a number")
        retries = sum(one.retries for one in consumers)
        require(at_level or refused or retries, "no message was popped")
        require(level != _REQUIRED_LEVEL or not refused, f"a pop was refused: {refused}")
        came = trial.numbers([*popped, *trial.drain()])
        # The order is not defined between two consumers.
        newest_first = trial.queue.design.order_with(trial.queue.options) is Order.LIFO
        trial.require_these(sorted(came, reverse=newest_first), pushed + sent)
        trial.require_others_get(pushed + sent)
        refusal = f"; refused: {' '.join(refused.split())}" if refused else ""
        return (
            f"{numbered(len(came), 'message')}, each once: {at_level} by {_CONSUMERS} consumers at "
            f"this level, {retries} retried{refusal}"
        )

    return prove


def _push_at(trial: Trial, level: str) -> list[int]:
    """The number that a push at this level stored; none if it is refused."""
    number = trial.pushed
    try:
        with trial.database.transaction("push", isolation=level) as connection:
            stored = push_many(connection, trial.queue, trial.payloads(1))
    except ConsoleError:
        return []
    require(stored != [None], "a push was not stored")
    return [number]


def levels(database: Database) -> Sequence[str]:
    """The isolation levels to prove the designs at."""
    there = database.product.dialect.get_isolation_level_values(None)  # type: ignore[arg-type]
    return [level for level in (_REQUIRED_LEVEL, "SERIALIZABLE", "SNAPSHOT") if level in there]


def _full(trial: Trial) -> str:
    size = int(trial.queue.options["size"])
    sent = trial.push(size)
    before = trial.figures()
    with trial.database.transaction("push into a full queue") as connection:
        ids = [trial.push_one(connection)]
        ids += push_many(connection, trial.queue, trial.payloads(3))
    require(ids == [None] * 4, f"a full queue of {size} stored {4 - ids.count(None)} of 4")
    consumed = _consumed_when_full(before, trial.figures(), size)
    came = trial.require_drained(sent)
    return f"{size} stored, then 0 of 4, {consumed} consumed; {len(came)} came"


def _consumed_when_full(before: StatusRow, after: StatusRow, size: int) -> str:
    """The numbers that pushes into a full queue consumed. Pops that raced each other may wait
    ahead of the pushes; the distance of the sequences is smaller by these, and as many pushes
    notice only at the slot that it is taken."""
    if before.next_push is None or before.next_pop is None:
        return "no number"
    numbers = (after.next_push, after.next_pop)
    free = max(size - (before.next_push - before.next_pop), 0)
    consumed = (after.next_push or 0) - before.next_push
    require(
        0 <= consumed <= free and after.next_pop == before.next_pop,
        f"numbers went on from {(before.next_push, before.next_pop)} to {numbers}",
    )
    return numbered(consumed, "number") if consumed else "no number"


def _grows(queue: Queue) -> str:
    return "" if "size" in queue.options else "its tables grow: it is never full"


def _empty(trial: Trial) -> str:
    before = trial.figures()
    came = [*trial.pop(1), *trial.pop(100)]
    require(not came, f"an empty queue gave {len(came)}")
    after = trial.figures()
    require(after.ready == 0, f"{after.ready} ready in an empty queue")
    numbers = (after.next_push, after.next_pop)
    earlier = (before.next_push, before.next_pop)
    require(numbers == earlier, f"numbers went on from {earlier} to {numbers}")
    sent = trial.push(1)
    if before.next_push is not None:
        drawn = trial.figures().next_push
        require(drawn == before.next_push + 1, f"{before.next_push} was next, then {drawn}")
    trial.require_drained(sent)
    return "2 pops gave no row, no error, no number consumed; then 1 pushed: 1 came"


def claims(database: Database) -> list[Claim]:
    return [
        Claim("an empty queue answers with no row", _empty),
        Claim("every message once, intact, in the promised order", _order),
        Claim("a full queue answers that it is", _full, _grows),
        Claim("a pop that is rolled back takes nothing", _pop_rolled_back),
        Claim("a push that is rolled back leaves nothing", _push_rolled_back),
        Claim("a session that is killed takes and leaves nothing", _killed),
        *(
            Claim(f"{level}: each message to one consumer", isolated(level))
            for level in levels(database)
        ),
    ]
