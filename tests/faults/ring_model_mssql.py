"""The ring's procedures on SQL Server (queries/mssql/ring.sql) as a model, step by step.

As `ring_model`, with that server's locks: an UPDATE, DELETE or UPDLOCK locks a row before it
evaluates its conditions, and releases it if they do not hold; rows locked by others are skipped
(READPAST). A plain read only skips rows that others have written.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from tests.faults import ring_model
from tests.faults.ring_model import MOST_PARKED_READ, Key, Live, Steps

_TRIES = 8
_CHECKS = 2
_MOST_VOIDS = 1000


@dataclass
class Store(ring_model.Store):
    """Chance decides in which order one query reads two numbers."""

    keeps_its_lock: bool = True
    """Whether the first read's lock lasts until the transaction ends (REPEATABLEREAD)."""

    def begin(self) -> "Transaction":
        """A new transaction."""
        transaction = Transaction(self)
        self.open.append(transaction)
        return transaction

    def draw_many(self, count: int, *, push: bool) -> range:
        """sp_sequence_get_range."""
        first = self.draw(push=push)
        for _ in range(count - 1):
            self.draw(push=push)
        return range(first, first + count)


class Transaction(ring_model.Transaction):
    store: Store
    size = 0
    """The ring's, as the current call has read it."""

    def hold_configuration(self) -> None:
        """The first statement of each call: reads the ring's size, and keeps the lock."""
        self.touched = self.store.keeps_its_lock
        self.size = self.store.size

    def read(self, slot: int) -> Live | None:
        """SELECT ... WITH (READPAST, READCOMMITTEDLOCK); None also where another has written."""
        if any(slot in other._slots for other in self.store.open if other is not self):
            return None
        return self.slot(slot)

    def has(self, number: int) -> bool:
        """Whether this number's message is in its slot, by such a read."""
        live = self.read(number % self.size)
        return live is not None and live.message_id == number

    def read_parked(self) -> set[tuple[int, bool]]:
        """The parked numbers, by such a read."""
        others = (other for other in self.store.open if other is not self)
        return self.parked().difference(*(other._unparked for other in others))

    def lock_where(self, key: Key, holds: Callable[[], bool]) -> Steps[bool]:
        """Lock first, then evaluate; other sessions may run in between."""
        holder = self.store.locks.get(key)
        if holder not in {None, self}:
            return False
        self.store.locks[key] = self
        yield
        if holds():
            return True
        if holder is None:
            del self.store.locks[key]
        return False

    def park(self, number: int, *, void: bool) -> None:
        """INSERT ... WHERE NOT EXISTS: no other transaction may be deleting that key."""
        for other in self.store.open:
            assert other is self or (number, void) not in other._unparked, "an insert waits"
        super().park(number, void=void)

    def take(self, numbers: Iterable[int]) -> Steps[list[Live]]:
        """UPDATE of the slots with these numbers' messages; returns those."""
        taken = []
        for number in numbers:
            slot = number % self.size
            if (yield from self.lock_where(("slot", slot, False), partial(self._is_in, number))):
                live = self.slot(slot)
                assert live is not None
                self.write(slot, None)
                taken.append(live)
        return taken

    def _is_in(self, number: int) -> bool:
        live = self.slot(number % self.size)
        return live is not None and live.message_id == number

    def lock_free(self, number: int) -> Steps[bool]:
        """Lock the slot of a push number, if it is free."""
        slot = number % self.size
        return (yield from self.lock_where(("slot", slot, False), lambda: self.slot(slot) is None))


def push(tx: Transaction, payload: str) -> Steps[int | None]:
    """The number under which the message is stored; None where the ring is full."""
    store = tx.store
    tx.hold_configuration()
    yield
    next_push, next_pop = yield from _both(store)
    for attempt in range(_TRIES):
        yield
        if attempt or next_push - next_pop >= tx.size:
            next_push = store.next_push
            yield
            next_pop = store.next_pop
            if next_push - next_pop >= tx.size:
                assert store.gap >= tx.size, "said full and was not"
                return None
            yield
        number = store.draw(push=True)
        for _ in range(_CHECKS):
            yield
            if (yield from tx.lock_free(number)):
                tx.write(number % tx.size, Live(number, number, payload))
                return number
        yield
        if not tx.unpark([(number, False)]):
            yield
            tx.park(number, void=True)
    return None


def push_many(tx: Transaction, payloads: Sequence[str]) -> Steps[list[int | None]]:
    """A number for each payload; None for the last ones, which did not fit."""
    store = tx.store
    tx.hold_configuration()
    wanted = len(payloads)
    yield
    room = yield from _room(tx, wanted)
    if room <= 0:
        return [None] * wanted
    yield
    numbers = store.draw_many(room, push=True)
    free: list[int] = []
    for _ in range(_CHECKS):
        yield
        free = []
        for number in numbers:
            if (yield from tx.lock_free(number)):
                free.append(number)
        if len(free) == room:
            break
    yield
    for number, payload in zip(free, payloads, strict=False):
        tx.write(number % tx.size, Live(number, number, payload))
    yield
    unused = [number for number in numbers if number not in free]
    met = [number for number in unused if tx.unpark([(number, False)])]
    yield
    for number in unused:
        if number not in met:
            tx.park(number, void=True)
    return [*free, *[None] * (wanted - len(free))]


def _room(tx: Transaction, wanted: int) -> Steps[int]:
    """How many numbers a batch draws."""
    next_push, next_pop = yield from _both(tx.store)
    if next_push - next_pop > tx.size - wanted:
        yield
        next_push = tx.store.next_push
        yield
        next_pop = tx.store.next_pop
    room = min(tx.size - (next_push - next_pop), tx.size, wanted)
    if room < min(tx.size, wanted):
        assert tx.size - tx.store.gap <= room, "said full and was not"
    return room


def pop(tx: Transaction) -> Steps[Live | None]:
    """The next message; None where there is none now."""
    store = tx.store
    tx.hold_configuration()
    yield
    next_push, next_pop = yield from _both(store)
    yield
    if any(not void for _, void in tx.read_parked()):
        if tx.is_of_one_call:
            tx.touched = False  # COMMIT: a relay may come between
        yield
        early = yield from pop_many(tx, 1)
        return early[0] if early else None
    tries = voids = 0
    while tries < _TRIES and voids < _MOST_VOIDS:
        if tries + voids or next_pop >= next_push:
            next_pop = store.next_pop
            yield
            next_push = store.next_push
            if next_pop >= next_push:
                assert store.gap <= 0, "said empty and was not"
                return None
        yield
        number = store.draw(push=False)
        for _ in range(_CHECKS):
            yield
            if tx.has(number):
                yield
                if taken := (yield from tx.take([number])):
                    return taken[0]
            yield
            if tx.unpark([(number, True)]):
                voids += 1
                break
        else:
            yield
            tx.park(number, void=False)
            tries += 1
    return None


def pop_many(tx: Transaction, n: int) -> Steps[list[Live]]:
    """At most `n` messages, in the order of their numbers."""
    store = tx.store
    tx.hold_configuration()
    yield
    taken = yield from _pop_parked(tx, n)
    tries = voids = 0
    while len(taken) < n and tries < _TRIES and voids < _MOST_VOIDS:
        next_push, next_pop = yield from _both(store)
        if next_pop >= next_push:
            yield
            next_pop = store.next_pop
            yield
            next_push = store.next_push
        room = min(next_push - next_pop, n - len(taken), tx.size)
        if room <= 0:
            assert store.gap <= 0, "said empty and was not"
            break
        yield
        numbers = store.draw_many(room, push=False)
        found = yield from _take_range(tx, numbers)
        taken += found
        if len(found) == room:
            continue
        missing = [m for m in numbers if m not in {live.message_id for live in found}]
        yield
        finished = [number for number in missing if tx.unpark([(number, True)])]
        yield
        for number in missing:
            if number not in finished:
                tx.park(number, void=False)
        if taken:
            break
        voids += len(finished)
        tries += len(finished) < len(missing)
    return sorted(taken, key=lambda live: live.message_id)


def _both(store: Store) -> Steps[tuple[int, int]]:
    """Both next numbers by one query, which may read them in either order."""
    if store.chance.random() < 0.5:
        next_push = store.next_push
        yield
        return next_push, store.next_pop
    next_pop = store.next_pop
    yield
    return store.next_push, next_pop


def _take_range(tx: Transaction, numbers: range) -> Steps[list[Live]]:
    """Near the end of the queue only from the first message to the last."""
    found: list[Live] = []
    is_near = tx.store.chance.random() < 0.5
    for _ in range(_CHECKS):
        yield
        span = list(numbers)
        if is_near:
            here = [number for number in numbers if tx.has(number)]
            span = [number for number in numbers if here and here[0] <= number <= here[-1]]
            yield
        found += yield from tx.take(span)
        if len(found) == len(numbers):
            break
    return found


def _pop_parked(tx: Transaction, n: int) -> Steps[list[Live]]:
    """Messages whose number was popped too early; if there are none, finish void numbers."""
    numbers = sorted(number for number, void in tx.read_parked() if not void)
    numbers = numbers[:MOST_PARKED_READ]
    if n <= 0 or not numbers:
        return []
    yield
    here = [number for number in numbers if tx.has(number)][:n]
    held = [
        number
        for number in here
        if (number, False) in tx.parked() and tx.lock(("parked", number, False))
    ]
    yield
    taken = yield from tx.take(held)
    yield
    tx.unpark((live.message_id, False) for live in taken)
    if taken:
        return taken
    seen = tx.read_parked()
    held = [
        number
        for number in numbers
        if seen.issuperset({(number, False), (number, True)}) and tx.lock(("parked", number, False))
    ]
    yield
    finished = [number for number in held if tx.unpark([(number, True)])]
    yield
    tx.unpark((number, False) for number in finished)
    return []
