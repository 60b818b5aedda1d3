"""The ring's protocol (DESIGN section 5) as a model in Python, statement by statement.

Every call is a generator that yields between two statements. Run to its end at once it is what
one session sees; stepped in turns with others it is what many sessions may do to each other. A
statement sees what is committed and its own transaction's work, as READ COMMITTED does.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

Result = TypeVar("Result")
Steps = Generator[None, None, Result]
Key = tuple[str, int, bool]
"""A row that can be locked: ("slot", slot, False) or ("parked", number, void)."""

MOST_PARKED_LOOKED_AT = 64
_LOWEST_LOOKED_AT = 24
_CHUNK = 40
"""So many line pointers of a page are one stretch of parked."""
_CHUNKS_ON_PAGE = 8
_PAGES = 4
_NEAR = 32
"""Batches from the end of the queue: so near, a batch looks before it draws."""
PUSH_TRIES = _TRIES = 8
_LOOKS = 4
_MOST_VOIDS = 1000


@dataclass(frozen=True)
class Live:
    """A message in its slot."""

    message_id: int
    first_id: int
    payload: str


@dataclass
class Store:
    """What is committed, the two sequences (which no rollback turns back), and who holds a lock."""

    size: int
    base: int = 1
    next_push: int = 1
    next_pop: int = 1
    slots: dict[int, Live] = field(default_factory=dict)
    parked: set[tuple[int, bool]] = field(default_factory=set)
    locks: dict[Key, "Transaction"] = field(default_factory=dict)
    open: list["Transaction"] = field(default_factory=list)
    chance: Random = field(default_factory=lambda: Random(1))
    """What decides where a server is free to do this or that."""
    look_at: list[int] | None = None
    """The parked numbers that the next pop looks at, where there are too many for one call."""
    held: set[int] | None = None
    """With subscribers: the numbers that are in slots, whoever owes them. A pop of many that asks
    how far messages have come does not ask whose they are: it draws numbers void to it as well."""

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
        """Renumber what lives; False, and nothing changed, where it is more than `new_size`."""
        assert not any(transaction.touched for transaction in self.open), "relay came too early"
        if len(self.slots) > new_size:
            return False
        self.base = max(self.next_push, self.next_pop)
        in_order = sorted(self.slots.values(), key=lambda live: live.message_id)
        self.slots = {
            number % new_size: Live(number, live.first_id, live.payload)
            for number, live in enumerate(in_order, self.base)
        }
        assert len(self.slots) == len(in_order), "two messages in one slot"
        self.size = new_size
        self.parked.clear()
        self.next_pop, self.next_push = self.base, self.base + len(in_order)
        return True


def most_turns(chunks: int) -> int:
    """In how many calls each stretch has its turn: the lowest power of two that is not less."""
    return 1 << (chunks - 1).bit_length()


def chunk_of(turn: int, chunks: int) -> int:
    """PostgreSQL's: counted from the beginning of the table."""
    return turn * 31 % most_turns(chunks) % chunks


def chunk_between(turn: int, first: int, last: int) -> int:
    """SQL Server's: counted from the first that has a row."""
    chunks = last - first + 1
    return first + (turn * 31 - first) % most_turns(chunks) % chunks


def looked_at(places: Mapping[int, tuple[int, int]], turn: int, chunks: int) -> list[int]:
    """The parked numbers (with page and line of their rows) that a pop with this turn looks at."""
    numbers = sorted(places)
    if len(numbers) <= MOST_PARKED_LOOKED_AT:
        return numbers
    page, on_page = divmod(chunk_of(turn, chunks), _CHUNKS_ON_PAGE)
    start, end = (page, on_page * _CHUNK + 1), (page + _PAGES, 0)
    in_turn = sorted((place, n) for n, place in places.items() if start <= place < end)
    return sorted({*numbers[:_LOWEST_LOOKED_AT], *(n for _, n in in_turn[:_CHUNK])})


class Transaction:
    """One session's work: invisible to others until it commits."""

    is_of_one_call = False
    """Whether its call began it, and so ends it: else it is the caller's."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.touched = False
        """Whether it holds the lock on parked, for which a relay waits."""
        self._slots: dict[int, Live | None] = {}
        self._parked: set[tuple[int, bool]] = set()
        self._unparked: set[tuple[int, bool]] = set()

    def slot(self, slot: int) -> Live | None:
        """What this transaction sees in a slot."""
        return self._slots[slot] if slot in self._slots else self.store.slots.get(slot)

    def parked(self) -> set[tuple[int, bool]]:
        """The rows of parked that this transaction sees."""
        return (self.store.parked | self._parked) - self._unparked

    def lock(self, key: Key) -> bool:
        """FOR UPDATE SKIP LOCKED: False where another transaction has the row."""
        return self.store.locks.setdefault(key, self) is self

    def lock_slot(self, slot: int) -> bool:
        """The same for a slot."""
        return self.lock(("slot", slot, False))

    def write(self, slot: int, live: Live | None) -> None:
        """Fill a slot that is free or empty one that is not."""
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
        """Delete those rows of parked that are there and that nobody holds; whether one was."""
        visible = self.parked()
        gone = {row for row in rows if row in visible and self.lock(("parked", *row))}
        self._unparked |= gone
        self._parked -= gone
        return bool(gone)

    def savepoint(self) -> Callable[[], None]:
        """How to roll back to this moment. Locks on rows that were taken since are given back."""
        kept = dict(self._slots), set(self._parked), set(self._unparked)
        held = self._held()

        def roll_back() -> None:
            self._slots, self._parked, self._unparked = kept
            self._give_back(self._held() - held)

        return roll_back

    def commit(self) -> None:
        """Everyone sees it from now on."""
        for slot, live in self._slots.items():
            if live is None:
                self.store.slots.pop(slot, None)
            else:
                self.store.slots[slot] = live
        self.store.parked = self.parked()
        self._end()

    def roll_back(self) -> None:
        """It never was; but the numbers that it drew are spent."""
        self._end()

    def _end(self) -> None:
        self._give_back(self._held())
        self.store.open.remove(self)

    def _held(self) -> set[Key]:
        return {key for key, holder in self.store.locks.items() if holder is self}

    def _give_back(self, keys: Iterable[Key]) -> None:
        for key in keys:
            del self.store.locks[key]


def push(tx: Transaction, payload: str) -> Steps[int | None]:
    """The number under which the message is stored; None where the ring is full."""
    store = tx.store
    tx.touched = True
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
    """A number for each payload; None for the last ones, which found no place."""
    store = tx.store
    tx.touched = True
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
    """The next message; None where there is none now."""
    store = tx.store
    early = yield from _pop_parked(tx, 1)
    if early:
        return early[0]
    tries = voids = 0
    while tries < _TRIES and voids < _MOST_VOIDS:
        next_pop = store.next_pop
        yield
        if next_pop >= store.next_push:
            assert store.gap <= 0, "said empty and was not"
            return None
        yield
        number = store.draw(push=False)
        for _ in range(_LOOKS):
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
    while tries < _TRIES and voids < _MOST_VOIDS:
        next_pop = store.next_pop
        yield
        gap = store.next_push - next_pop
        room = min(n - len(taken), gap)
        if room <= 0:
            break
        if room > 1 and gap < _NEAR * room:
            looks = 1 if tries + voids else 2
            room = yield from _drawn_for(tx, next_pop, room, gap, looks)
        numbers = []
        for _ in range(room):
            numbers.append(store.draw(push=False))
            yield
        missing = list(numbers)
        for _ in range(2):
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


def _drawn_for(tx: Transaction, next_pop: int, room: int, gap: int, looks: int) -> Steps[int]:
    """How many numbers: up to the last whose message is here; all where they are void or holes."""
    numbers = range(next_pop, next_pop + room)
    for _ in range(looks):
        ready = [number for number in numbers if _is_here(tx, number)]
        yield
        if ready:
            return max(ready) - next_pop + 1
    void = any((number, True) in tx.parked() for number in numbers)
    yield
    if void or any(_is_here(tx, next_pop + ahead) for ahead in range(room, gap)):
        return room
    return 1


def _is_here(tx: Transaction, number: int) -> bool:
    if tx.store.held is not None:
        return number in tx.store.held
    live = tx.slot(number % tx.store.size)
    return live is not None and live.message_id == number


def _pop_parked(tx: Transaction, n: int) -> Steps[list[Live]]:
    """Messages whose number was popped too early; where none is there, finish the void ones."""
    tx.touched = True
    numbers = tx.store.look_at
    if numbers is None:
        numbers = sorted(number for number, void in tx.parked() if not void)
        numbers = numbers[:MOST_PARKED_LOOKED_AT]
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
        seen = tx.parked()
        for number in numbers:
            pair = [(number, False), (number, True)]
            if seen.issuperset(pair) and all(tx.lock(("parked", *row)) for row in pair):
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
    """Run a call to its end, with nobody else between its statements."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
