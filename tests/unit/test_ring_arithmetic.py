"""The ring's numbers, without a database: slots, gap, relay, and sessions that run in turns."""

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults import ring_model as model
from tests.faults.ring_model import Live, Store, Transaction, finish

SIZES = st.integers(min_value=1, max_value=7)
BOUNDED = settings(deadline=None, derandomize=True, database=None)


@BOUNDED
@given(size=st.integers(1, 1000), next_pop=st.integers(1, 2**62), live=st.integers(0, 1000))
def test_messages_between_pop_and_push_have_slots_of_their_own(
    size: int, next_pop: int, live: int
) -> None:
    """As many as the ring has slots, wherever the numbers stand: so a gap below size is room."""
    numbers = range(next_pop, next_pop + min(size, live))
    assert len({number % size for number in numbers}) == len(numbers)
    assert all(0 <= number % size < size for number in numbers)


@BOUNDED
@given(
    numbers=st.sets(st.integers(1, 500), max_size=40),
    next_push=st.integers(1, 600),
    next_pop=st.integers(1, 600),
    spare=st.integers(-40, 40),
)
def test_a_relay_keeps_the_order_fits_and_raises_every_number(
    numbers: set[int], next_push: int, next_pop: int, spare: int
) -> None:
    """Whatever lives where: lapped slots, orphans, numbers far behind or ahead."""
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
    laid = sorted(store.slots.items(), key=lambda item: item[1].message_id)
    assert [live.first_id for _, live in laid] == sorted(numbers)
    assert [live.message_id for _, live in laid] == list(range(store.next_pop, store.next_push))
    assert all(slot == live.message_id % new_size for slot, live in laid)
    assert store.next_pop == store.base == max(before[0], before[1])
    assert store.next_push >= before[0]
    assert not store.parked


@BOUNDED
@given(SIZES, st.lists(st.integers(0, 9), max_size=60))
def test_alone_everything_comes_once_in_the_order_of_the_pushes(
    size: int, choices: list[int]
) -> None:
    """One session without rollbacks: full at `size` messages exactly, empty at none."""
    store = Store(size)
    waiting: list[str] = []
    for serial, choice in enumerate(choices):
        tx = store.begin()
        if choice < 5:
            stored = finish(model.push(tx, str(serial)))
            assert (stored is None) == (len(waiting) == size)
            waiting += [str(serial)] * (stored is not None)
        elif choice < 9:
            live = finish(model.pop(tx))
            assert (live.payload if live else None) == (waiting.pop(0) if waiting else None)
        tx.commit()
        if choice == 9:
            assert store.relay(max(1, len(waiting)))
            store.relay(size)
        ids = [s.first_id for s in sorted(store.slots.values(), key=lambda s: s.message_id)]
        assert ids == sorted(ids), "first_id rises with the order, whatever a relay did"
        assert not store.parked


@BOUNDED
@given(SIZES, st.integers(0, 12), st.integers(0, 12))
def test_numbers_given_up_on_either_side_never_stop_the_ring(
    size: int, holes: int, orphans: int
) -> None:
    """Sequences that skipped, as a crash makes them: a relay brings all messages back."""
    store = Store(size)
    stored = _push_until_full(store, "before")
    for _ in range(holes):
        store.draw(push=True)
    for _ in range(orphans):
        store.draw(push=False)
    popped = _drain(store)
    stored += _push_until_full(store, "after")
    popped += _drain(store)
    assert len(popped) == len(set(popped))
    assert store.relay(max(size, len(store.slots)))
    popped += _drain(store)
    assert sorted(popped) == sorted(stored)
    assert not store.slots
    assert store.gap == 0


@BOUNDED
@given(SIZES)
def test_a_number_both_parked_and_void_is_finished(size: int) -> None:
    """The push that could not use it and the pop that came early each leave a row; both go."""
    store = Store(size)
    pairs = {(number, void) for number in range(1, 4) for void in (False, True)}
    store.parked = pairs | {(9, False), (8, True)}
    store.next_push = store.next_pop = 10
    tx = store.begin()
    assert finish(model.pop(tx)) is None
    tx.commit()
    assert store.parked == {(9, False), (8, True)}


Calls = list[tuple[str, int]]
"""What a transaction does: (call, how many messages), the last one says how it ends."""

_CALLS = st.lists(
    st.tuples(st.sampled_from(["push", "pop", "push_many", "pop_many"]), st.integers(1, 4)),
    min_size=1,
    max_size=3,
)
_TRANSACTIONS = st.lists(st.tuples(_CALLS, st.integers(0, 3)), min_size=1, max_size=4)


@given(
    size=SIZES,
    sessions=st.lists(_TRANSACTIONS, min_size=2, max_size=4),
    turns=st.lists(st.integers(0, 3), max_size=300),
    relay_size=SIZES,
)
def _sessions_in_any_turns(
    size: int, sessions: list[list[tuple[Calls, int]]], turns: list[int], relay_size: int
) -> None:
    """Interleaved statement by statement, with rollbacks: what committed comes out once."""
    store = Store(size)
    trace = _Trace()
    running = [_session(store, trace, number, work) for number, work in enumerate(sessions)]
    for turn in turns:
        if running:
            _step(running, turn % len(running))
    while running:
        _step(running, 0)

    assert not store.locks
    assert store.relay(max(relay_size, len(store.slots)))
    trace.popped += _drain(store)
    assert sorted(trace.popped) == sorted(trace.pushed)
    assert not store.slots


def test_sessions_in_any_turns_lose_and_double_nothing(long: bool) -> None:
    """Every step of every session between any two of another's."""
    bound = settings(BOUNDED, max_examples=10000 if long else 300)
    bound(_sessions_in_any_turns)()


class _Trace:
    """What committed transactions pushed and popped."""

    def __init__(self) -> None:
        self.pushed: list[str] = []
        self.popped: list[str] = []


def _step(running: list[Iterator[None]], position: int) -> None:
    try:
        next(running[position])
    except StopIteration:
        del running[position]


def _session(
    store: Store, trace: _Trace, session: int, transactions: list[tuple[Calls, int]]
) -> Iterator[None]:
    for serial, (calls, ending) in enumerate(transactions):
        tx = store.begin()
        pushed: list[str] = []
        popped: list[str] = []
        for place, (call, n) in enumerate(calls):
            name = f"{session}.{serial}.{place}"
            yield from _call(tx, call, [f"{name}.{i}" for i in range(n)], pushed, popped)
            yield
        if ending:
            tx.commit()
            trace.pushed += pushed
            trace.popped += popped
        else:
            tx.roll_back()
        yield


def _call(
    tx: Transaction, call: str, payloads: list[str], pushed: list[str], popped: list[str]
) -> model.Steps[None]:
    if call == "push":
        if (yield from model.push(tx, payloads[0])) is not None:
            pushed.append(payloads[0])
    elif call == "push_many":
        stored = yield from model.push_many(tx, payloads)
        pushed += [p for p, number in zip(payloads, stored, strict=True) if number is not None]
    elif call == "pop":
        live = yield from model.pop(tx)
        popped += [live.payload] if live else []
    else:
        popped += [live.payload for live in (yield from model.pop_many(tx, len(payloads)))]


def _push_until_full(store: Store, prefix: str) -> list[str]:
    stored: list[str] = []
    for serial in range(200):
        tx = store.begin()
        number = finish(model.push(tx, f"{prefix} {serial}"))
        tx.commit()
        if number is None:
            break
        stored.append(f"{prefix} {serial}")
    return stored


def _drain(store: Store) -> list[str]:
    """Pop until there is nothing: no number left to draw, no parked one with its message."""
    popped = []
    while True:
        tx = store.begin()
        live = finish(model.pop(tx))
        tx.commit()
        if live is not None:
            popped.append(live.payload)
        elif store.gap <= 0:
            return popped
