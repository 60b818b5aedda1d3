"""The ring's numbers, without a database: slots, gap, relay, and interleaved sessions.

The model is PostgreSQL's; SQL Server's procedures run as they are written, in tests/microsoft.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.faults.harness import model as ring_model
from tests.faults.harness.model import Live, Steps, Store, Transaction, finish

SIZES = st.integers(min_value=1, max_value=7)


@given(size=st.integers(1, 1000), next_pop=st.integers(1, 2**62), live=st.integers(0, 1000))
def test_messages_between_pop_and_push_have_distinct_slots(
    size: int, next_pop: int, live: int
) -> None:
    """Up to the number of slots, for any numbers: so a gap below the size means there is room."""
    numbers = range(next_pop, next_pop + min(size, live))
    assert len({number % size for number in numbers}) == len(numbers)
    assert all(0 <= number % size < size for number in numbers)


@given(
    numbers=st.sets(st.integers(1, 500), max_size=40),
    next_push=st.integers(1, 600),
    next_pop=st.integers(1, 600),
    spare=st.integers(-40, 40),
)
def test_a_relay_keeps_the_order_fits_the_new_size_and_raises_every_number(
    numbers: set[int], next_push: int, next_pop: int, spare: int
) -> None:
    """With lapped slots, orphans, and numbers far behind or ahead."""
    first = max([next_push, *(number + 1 for number in numbers)])
    store = Store(size=1000, next_push=first, next_pop=next_pop)
    store.slots = {number % 1000: Live(number, number, str(number)) for number in numbers}
    store.parked = {(number, number % 2 == 0) for number in range(next_pop)}
    new_size = max(1, len(numbers) + spare)
    before = (store.next_push, store.next_pop, dict(store.slots), set(store.parked))

    fits = store.relay(new_size)

    assert fits == (len(numbers) <= new_size)
    if not fits:
        assert (store.next_push, store.next_pop, store.slots, store.parked) == before
        return
    relaid = sorted(store.slots.items(), key=lambda item: item[1].message_id)
    assert [live.first_id for _, live in relaid] == sorted(numbers)
    assert [live.message_id for _, live in relaid] == list(range(store.next_pop, store.next_push))
    assert all(slot == live.message_id % new_size for slot, live in relaid)
    assert store.next_pop == store.base == max(before[0], before[1])
    assert store.next_push >= before[0]
    assert not store.parked


@given(size=SIZES, choices=st.lists(st.integers(0, 9), max_size=60))
def test_a_single_session_pops_everything_once_in_push_order(size: int, choices: list[int]) -> None:
    """One session without rollbacks: full at `size` messages exactly, empty at none."""
    store = Store(size)
    waiting: list[str] = []
    for serial, choice in enumerate(choices):
        tx = store.begin()
        if choice < 5:
            stored = finish(ring_model.push(tx, str(serial)))
            assert (stored is None) == (len(waiting) == size)
            waiting += [str(serial)] * (stored is not None)
        elif choice < 9:
            live = finish(ring_model.pop(tx))
            assert (live.payload if live else None) == (waiting.pop(0) if waiting else None)
        tx.commit()
        if choice == 9:
            assert store.relay(max(1, len(waiting)))
            store.relay(size)
        ids = [s.first_id for s in sorted(store.slots.values(), key=lambda s: s.message_id)]
        assert ids == sorted(ids), "first_id rises with the order, whatever a relay did"
        assert not store.parked


@given(size=SIZES, holes=st.integers(0, 12), orphans=st.integers(0, 12))
def test_lost_push_and_pop_numbers_never_stop_the_ring(size: int, holes: int, orphans: int) -> None:
    """Sequences skip numbers, as after a crash; a relay makes all messages reachable again."""
    store = Store(size)
    stored = _push_until_full(store, "before")
    for _ in range(holes):
        store.draw(push=True)
    for _ in range(orphans):
        store.draw(push=False)
    popped = drain(store)
    stored += _push_until_full(store, "after")
    popped += drain(store)
    assert len(popped) == len(set(popped))
    assert store.relay(max(size, len(store.slots)))
    popped += drain(store)
    assert sorted(popped) == sorted(stored)
    assert not store.slots
    assert store.gap == 0


@given(size=SIZES)
def test_a_number_both_parked_and_void_is_removed(size: int) -> None:
    """The push that could not use it and the early pop each leave a row; both are deleted."""
    store = Store(size)
    pairs = {(number, void) for number in range(1, 4) for void in (False, True)}
    store.parked = pairs | {(9, False), (8, True)}
    store.next_push = store.next_pop = 10
    tx = store.begin()
    assert finish(ring_model.pop(tx)) is None
    tx.commit()
    assert store.parked == {(9, False), (8, True)}


Calls = list[tuple[str, int]]
"""Of a transaction: (call, number of messages)."""

_KINDS = ("push", "pop", "push_many", "pop_many")


def check_interleaving(seed: int) -> None:
    """Statement by statement, with rollbacks and relays: what was committed is popped once.

    Relays run only when no transaction's lock would block them.
    """
    chance = Random(seed)
    store = Store(chance.randint(1, 7), chance=chance)
    committed = _Committed()
    running = [
        _session(store, committed, number, _transactions(chance))
        for number in range(chance.randint(2, 4))
    ]
    steps_between_relays = chance.choice([10, 30, 1000])
    while running:
        if chance.randrange(steps_between_relays):
            _step(running, chance.randrange(len(running)))
        elif not any(transaction.locks_parked for transaction in store.open):
            store.relay(chance.randint(1, 7))

    assert not store.locks
    assert store.relay(max(store.size, len(store.slots)))
    committed.popped += drain(store)
    assert sorted(committed.popped) == sorted(committed.pushed)
    assert not store.slots


def _transactions(chance: Random) -> list[tuple[Calls, int]]:
    """One session's transactions, each with how it ends (0: rollback)."""
    return [
        (
            [(chance.choice(_KINDS), chance.randint(1, 4)) for _ in range(chance.randint(1, 3))],
            chance.randint(0, 3),
        )
        for _ in range(chance.randint(1, 4))
    ]


@dataclass
class _Committed:
    pushed: list[str] = field(default_factory=list)
    popped: list[str] = field(default_factory=list)


def _step(running: list[Iterator[None]], position: int) -> None:
    try:
        next(running[position])
    except StopIteration:
        del running[position]


def _session(
    store: Store, committed: _Committed, session: int, transactions: list[tuple[Calls, int]]
) -> Iterator[None]:
    for serial, (calls, ending) in enumerate(transactions):
        tx = store.begin()
        pushed: list[str] = []
        popped: list[str] = []
        for index, (call, n) in enumerate(calls):
            name = f"{session}.{serial}.{index}"
            yield from _call(tx, call, [f"{name}.{i}" for i in range(n)], pushed, popped)
            yield
        if ending:
            tx.commit()
            committed.pushed += pushed
            committed.popped += popped
        else:
            tx.roll_back()
        yield


def _call(
    tx: Transaction, call: str, payloads: list[str], pushed: list[str], popped: list[str]
) -> Steps[None]:
    if call == "push":
        if (yield from ring_model.push(tx, payloads[0])) is not None:
            pushed.append(payloads[0])
    elif call == "push_many":
        stored = yield from ring_model.push_many(tx, payloads)
        pushed += [p for p, number in zip(payloads, stored, strict=True) if number is not None]
    elif call == "pop":
        live = yield from ring_model.pop(tx)
        popped += [live.payload] if live else []
    else:
        popped += [live.payload for live in (yield from ring_model.pop_many(tx, len(payloads)))]


def drain(store: Store) -> list[str]:
    """Pop until no number is left to draw, and no parked one has its message."""
    popped = []
    while True:
        tx = store.begin()
        live = finish(ring_model.pop(tx))
        tx.commit()
        if live is not None:
            popped.append(live.payload)
        elif store.gap <= 0:
            return popped


def test_interleaved_sessions_lose_and_duplicate_nothing(long: bool) -> None:
    """Their steps interleave at random, with relays in between."""
    for seed in range(100_000 if long else 1500):
        check_interleaving(seed)


def _push_until_full(store: Store, prefix: str) -> list[str]:
    stored: list[str] = []
    for serial in range(200):
        tx = store.begin()
        number = finish(ring_model.push(tx, f"{prefix} {serial}"))
        tx.commit()
        if number is None:
            break
        stored.append(f"{prefix} {serial}")
    return stored


@given(
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=20),
    first_turn=st.integers(0, 2**50),
    chance=st.randoms(use_true_random=False),
)
def test_each_chunk_of_parked_rows_gets_its_turn_while_the_table_grows_and_shrinks(
    sizes: list[int], first_turn: int, chance: Random
) -> None:
    """PostgreSQL: within the proven number of calls, whatever the table's size at each."""
    most = max(map(ring_model.most_turns, sizes))
    visited = {
        ring_model.chunk_of(turn, chance.choice(sizes))
        for turn in range(first_turn, first_turn + most)
    }
    assert visited >= set(range(min(sizes)))


@given(
    row=st.integers(0, 10_000),
    around=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), min_size=1, max_size=20),
    first_turn=st.integers(0, 2**50),
    chance=st.randoms(use_true_random=False),
)
def test_a_parked_row_gets_its_turn_whatever_rows_come_and_go_around_it(
    row: int, around: list[tuple[int, int]], first_turn: int, chance: Random
) -> None:
    """SQL Server: the first and the last chunk change, the row's own does not."""
    ranges = [(max(0, row - before), row + behind) for before, behind in around]
    most = max(ring_model.most_turns(last - first + 1) for first, last in ranges)
    visited = {
        ring_model.chunk_between(turn, *chance.choice(ranges))
        for turn in range(first_turn, first_turn + most)
    }
    assert row in visited
