"""The ring's protocol as a model in Python, statement by statement.

Every call is a generator that yields between statements. Run to its end it behaves as a single
session; interleaved with others, as concurrent sessions. A statement sees committed data and its
own transaction's changes, as with READ COMMITTED.

With subscribers each has a ring of its own, and pushes go to all of them. They share the size and
the push numbers, and a slot is free only if it is free for all. Those calls are not interleaved.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

Result = TypeVar("Result")
Steps = Generator[None, None, Result]
Key = tuple[str, int, bool]
"""A row that can be locked: ("slot", slot, False) or ("parked", number, void)."""

MOST_PARKED_READ = 64
_LOWEST_READ = 24
_CHUNK = 40
"""Line pointers of a page that make up one chunk of parked."""
_CHUNKS_ON_PAGE = 8
_PAGES = 4
_NEAR = 32
"""A batch that is at most this many batches from the end checks for messages before it draws."""
_TRIES = 8
_CHECKS = 4
_MOST_DRAWN = 1000


@dataclass(frozen=True)
class Live:
    """A message in its slot."""

    message_id: int
    first_id: int
    payload: str


@dataclass
class Store:
    """The committed data, the two sequences (not transactional), and the row locks."""

    size: int
    base: int = 1
    next_push: int = 1
    next_pop: int = 1
    slots: dict[int, Live] = field(default_factory=dict)
    parked: set[tuple[int, bool]] = field(default_factory=set)
    locks: dict[Key, "Transaction"] = field(default_factory=dict)
    open: list["Transaction"] = field(default_factory=list)
    chance: Random = field(default_factory=lambda: Random(1))
    """Decides what a server decides arbitrarily."""
    parked_to_read: list[int] | None = None
    """The parked numbers that the next pop reads, where there are too many for one call."""
    held: set[int] | None = None
    """With subscribers: the numbers in slots, of any subscriber. A pop_many that looks for the last
    stored message ignores whose they are, so it also draws numbers that are void to it."""

    @property
    def gap(self) -> int:
        """The push/pop sequence gap."""
        return self.next_push - self.next_pop

    def begin(self) -> "Transaction":
        """A new transaction."""
        transaction = Transaction(self)
        self.open.append(transaction)
        return transaction

    def draw(self, *, push: bool) -> int:
        """nextval of one of the sequences."""
        if push:
            self.next_push += 1
            return self.next_push - 1
        self.next_pop += 1
        return self.next_pop - 1

    def relay(self, new_size: int) -> bool:
        """Renumber the live messages; False and no change if they are more than `new_size`."""
        assert not any(transaction.locks_parked for transaction in self.open), (
            "relay came too early"
        )
        return relay([self], new_size)


def most_turns(chunks: int) -> int:
    """After this many calls each chunk has had its turn: the next power of two."""
    return 1 << (chunks - 1).bit_length()


def chunk_of(turn: int, chunks: int) -> int:
    """The chunk for a turn on PostgreSQL, counted from the start of the table."""
    return turn * 31 % most_turns(chunks) % chunks


def chunk_between(turn: int, first: int, last: int) -> int:
    """The chunk for a turn on SQL Server, counted from the first chunk with a row."""
    chunks = last - first + 1
    return first + (turn * 31 - first) % most_turns(chunks) % chunks


def parked_read(positions: Mapping[int, tuple[int, int]], turn: int, chunks: int) -> list[int]:
    """The parked numbers (with page and line of their rows) that a pop with this turn reads."""
    numbers = sorted(positions)
    if len(numbers) <= MOST_PARKED_READ:
        return numbers
    page, on_page = divmod(chunk_of(turn, chunks), _CHUNKS_ON_PAGE)
    start, end = (page, on_page * _CHUNK + 1), (page + _PAGES, 0)
    in_turn = sorted((position, n) for n, position in positions.items() if start <= position < end)
    return sorted({*numbers[:_LOWEST_READ], *(n for _, n in in_turn[:_CHUNK])})


class Transaction:
    """Its changes are invisible to others until it commits."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.locks_parked = False
        """Whether it locks the table parked, which a relay waits for."""
        self._slots: dict[int, Live | None] = {}
        self._parked: set[tuple[int, bool]] = set()
        self._unparked: set[tuple[int, bool]] = set()

    def slot(self, slot: int) -> Live | None:
        return self._slots[slot] if slot in self._slots else self.store.slots.get(slot)

    def parked(self) -> set[tuple[int, bool]]:
        """The rows of parked visible to this transaction."""
        return (self.store.parked | self._parked) - self._unparked

    def lock(self, key: Key) -> bool:
        """FOR UPDATE SKIP LOCKED: False if another transaction has locked the row."""
        return self.store.locks.setdefault(key, self) is self

    def lock_slot(self, slot: int) -> bool:
        """The same for a slot."""
        return self.lock(("slot", slot, False))

    def write(self, slot: int, live: Live | None) -> None:
        """Fill a free slot or empty a filled one."""
        assert self.store.locks[("slot", slot, False)] is self, "written without its lock"
        assert (self.slot(slot) is None) != (live is None), "a message was overwritten"
        self._slots[slot] = live

    def park(self, number: int, *, void: bool) -> None:
        """Insert a row into parked, ON CONFLICT DO NOTHING."""
        row = (number, void)
        for other in self.store.open:
            assert other is self or row not in other._parked, "an insert waits for another"
        if row not in self.parked():
            self._parked.add(row)
            self._unparked.discard(row)

    def unpark(self, rows: Iterable[tuple[int, bool]]) -> bool:
        """Delete those rows of parked that exist and are not locked; whether there was one."""
        visible = self.parked()
        deleted = {row for row in rows if row in visible and self.lock(("parked", *row))}
        self._unparked |= deleted
        self._parked -= deleted
        return bool(deleted)

    def savepoint(self) -> Callable[[], None]:
        """A function that rolls back to this savepoint, and releases row locks taken since."""
        kept = dict(self._slots), set(self._parked), set(self._unparked)
        held = self._held()

        def roll_back() -> None:
            self._slots, self._parked, self._unparked = kept
            self._release(self._held() - held)

        return roll_back

    def commit(self) -> None:
        for slot, live in self._slots.items():
            if live is None:
                self.store.slots.pop(slot, None)
            else:
                self.store.slots[slot] = live
        self.store.parked = self.parked()
        self._end()

    def roll_back(self) -> None:
        """Its numbers stay consumed."""
        self._end()

    def _end(self) -> None:
        self._release(self._held())
        self.store.open.remove(self)

    def _held(self) -> set[Key]:
        return {key for key, holder in self.store.locks.items() if holder is self}

    def _release(self, keys: Iterable[Key]) -> None:
        for key in keys:
            del self.store.locks[key]


def push(tx: Transaction, payload: str) -> Steps[int | None]:
    """The number under which the message is stored; None if the ring is full."""
    store = tx.store
    tx.locks_parked = True
    for _ in range(_TRIES):
        next_push = store.next_push
        yield
        if next_push - store.next_pop >= store.size:
            assert store.gap >= store.size, "said full and was not"
            return None
        yield
        number = store.draw(push=True)
        yield
        slot = number % store.size
        if tx.slot(slot) is None and tx.lock_slot(slot):
            yield
            tx.write(slot, Live(number, number, payload))
            return number
        yield
        if not tx.unpark([(number, False)]):
            tx.park(number, void=True)
        yield
    return None


def push_many(tx: Transaction, payloads: Sequence[str]) -> Steps[list[int | None]]:
    """A number for each payload; None for the last ones, which did not fit."""
    store = tx.store
    tx.locks_parked = True
    next_push = store.next_push
    yield
    room = min(len(payloads), store.size, store.size - (next_push - store.next_pop))
    numbers = []
    for _ in range(room):
        numbers.append(store.draw(push=True))
        yield
    found: dict[int, int] = {}
    for _ in range(2):
        for number in numbers:
            slot = number % store.size
            if slot not in found and tx.slot(slot) is None and tx.lock_slot(slot):
                found[slot] = number
        yield
    filled = sorted(found.values())
    for number, payload in zip(filled, payloads, strict=False):
        tx.write(number % store.size, Live(number, number, payload))
    yield
    for number in numbers:
        if number not in filled and not tx.unpark([(number, False)]):
            tx.park(number, void=True)
    return [*filled, *[None] * (len(payloads) - len(filled))]


def pop(tx: Transaction) -> Steps[Live | None]:
    """The next message; None if there is none now."""
    store = tx.store
    from_parked = yield from _pop_parked(tx, 1)
    if from_parked:
        return from_parked[0]
    tries = voids = 0
    while tries + voids < _MOST_DRAWN:
        next_pop = store.next_pop
        yield
        if next_pop >= store.next_push:
            assert store.gap <= 0, "said empty and was not"
            return None
        yield
        if tries >= _TRIES and _ready_from(tx, next_pop) is None:
            return None
        number = store.draw(push=False)
        for _ in range(_CHECKS if tries < _TRIES else 1):
            yield
            if live := _take(tx, number):
                return live
            yield
            if tx.unpark([(number, True)]):
                voids += 1
                break
        else:
            tx.park(number, void=False)
            tries += 1
    return None


def pop_many(tx: Transaction, n: int) -> Steps[list[Live]]:
    """At most `n` messages, in the order of their numbers."""
    store = tx.store
    taken = yield from _pop_parked(tx, n)
    tries = voids = 0
    while tries + voids < _MOST_DRAWN:
        next_pop = store.next_pop
        yield
        gap = store.next_push - next_pop
        room = min(n - len(taken), gap)
        if room <= 0:
            break
        if tries >= _TRIES and _ready_from(tx, next_pop) is None:
            break
        if room > 1 and gap < _NEAR * room:
            checks = 1 if tries + voids else 2
            room = yield from _numbers_to_draw(tx, next_pop, room, gap, checks)
        numbers = []
        for _ in range(room):
            numbers.append(store.draw(push=False))
            yield
        missing = list(numbers)
        for _ in range(2 if tries < _TRIES else 1):
            now = [live for number in missing if (live := _take(tx, number))]
            taken += now
            missing = [m for m in missing if m not in {live.message_id for live in now}]
            yield
        known = [number for number in missing if tx.unpark([(number, True)])]
        for number in missing:
            if number not in known:
                tx.park(number, void=False)
        if taken:
            break
        voids += len(known)
        tries += len(known) < len(missing)
    return sorted(taken, key=lambda live: live.message_id)


def _ready_from(tx: Transaction, next_pop: int) -> int | None:
    """The lowest number from there on whose message is stored."""
    numbers = range(next_pop, tx.store.next_push)
    return next((number for number in numbers if _is_stored(tx, number)), None)


def _numbers_to_draw(
    tx: Transaction, next_pop: int, room: int, gap: int, checks: int
) -> Steps[int]:
    """How many numbers to draw: up to the last stored message; all if they are void or holes."""
    numbers = range(next_pop, next_pop + room)
    for _ in range(checks):
        ready = [number for number in numbers if _is_stored(tx, number)]
        yield
        if ready:
            return max(ready) - next_pop + 1
    void = any((number, True) in tx.parked() for number in numbers)
    yield
    if void or any(_is_stored(tx, next_pop + ahead) for ahead in range(room, gap)):
        return room
    return 1


def _is_stored(tx: Transaction, number: int) -> bool:
    if tx.store.held is not None:
        return number in tx.store.held
    live = tx.slot(number % tx.store.size)
    return live is not None and live.message_id == number


def _pop_parked(tx: Transaction, n: int) -> Steps[list[Live]]:
    """Messages whose number was popped too early; if there are none, remove void numbers."""
    tx.locks_parked = True
    numbers = tx.store.parked_to_read
    if numbers is None:
        numbers = sorted(number for number, void in tx.parked() if not void)
        numbers = numbers[:MOST_PARKED_READ]
    yield
    if n <= 0:
        return []
    taken: list[Live] = []
    for number in numbers:
        live = tx.slot(number % tx.store.size)
        if (
            len(taken) < n
            and live is not None
            and live.message_id == number
            and (number, False) in tx.parked()
            and tx.lock(("parked", number, False))
            and _take(tx, number)
        ):
            tx.unpark([(number, False)])
            taken.append(live)
    yield
    if not taken:
        visible = tx.parked()
        for number in numbers:
            pair = [(number, False), (number, True)]
            if visible.issuperset(pair) and all(tx.lock(("parked", *row)) for row in pair):
                tx.unpark(pair)
        yield
    return taken


def _take(tx: Transaction, number: int) -> Live | None:
    slot = number % tx.store.size
    live = tx.slot(slot)
    if live is None or live.message_id != number or not tx.lock_slot(slot):
        return None
    tx.write(slot, None)
    return live


def finish(steps: Steps[Result]) -> Result:
    """Run a call to its end, without interleaving."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def _gap(txs: Sequence[Transaction]) -> int:
    return max(tx.store.gap for tx in txs)


def _draw(txs: Sequence[Transaction]) -> int:
    (number,) = {tx.store.draw(push=True) for tx in txs}
    return number


def _is_free(txs: Sequence[Transaction], slot: int) -> bool:
    """Whether the slot is free for all; if so, lock it."""
    if any(tx.slot(slot) is not None for tx in txs):
        return False
    return all(tx.lock_slot(slot) for tx in txs)


def _write(txs: Sequence[Transaction], number: int, payload: str) -> None:
    for tx in txs:
        tx.write(number % tx.store.size, Live(number, number, payload))


def _leave_out(txs: Sequence[Transaction], number: int) -> None:
    """A number without a message: unpark it if it is parked, else mark it as void."""
    for tx in txs:
        if not tx.unpark([(number, False)]):
            tx.park(number, void=True)


def push_to_all(txs: Sequence[Transaction], payload: str) -> int | None:
    """The number under which the message is stored; None if the ring is full."""
    size = txs[0].store.size
    for _ in range(_TRIES):
        if _gap(txs) >= size:
            return None
        number = _draw(txs)
        if _is_free(txs, number % size):
            _write(txs, number, payload)
            return number
        _leave_out(txs, number)
    return None


def push_many_to_all(txs: Sequence[Transaction], payloads: Sequence[str]) -> list[int | None]:
    """A number for each payload; None for the last ones, which did not fit."""
    size = txs[0].store.size
    room = min(len(payloads), size, size - _gap(txs))
    numbers = [_draw(txs) for _ in range(room)]
    filled = [number for number in numbers if _is_free(txs, number % size)]
    for number, payload in zip(filled, payloads, strict=False):
        _write(txs, number, payload)
    for number in numbers:
        if number not in filled:
            _leave_out(txs, number)
    return [*filled, *[None] * (len(payloads) - len(filled))]


def relay(stores: Sequence[Store], new_size: int) -> bool:
    """Renumber what is owed to any subscriber; False and no change if it is over `new_size`.

    Each continues at the first message owed to it; later ones that it has popped are void.
    """
    live = sorted({slot.message_id for store in stores for slot in store.slots.values()})
    if len(live) > new_size:
        return False
    base = max(max(store.next_push, store.next_pop) for store in stores)
    next_push = base + len(live)
    renumbered = dict(zip(live, range(base, next_push), strict=True))
    for store in stores:
        owed = [
            Live(renumbered[slot.message_id], slot.first_id, slot.payload)
            for slot in store.slots.values()
        ]
        ids = {one.message_id for one in owed}
        store.slots = {one.message_id % new_size: one for one in owed}
        store.size, store.base, store.next_push = new_size, base, next_push
        store.next_pop = min(ids, default=next_push)
        store.parked = {(n, True) for n in range(store.next_pop, next_push) if n not in ids}
    return True
