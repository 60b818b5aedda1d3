"""The ring's numbers, without a database: slots, gap, relay, and sessions that run in turns."""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults import ring_model, ring_model_mssql
from tests.faults.ring_interleaving import check_interleaving, drain
from tests.faults.ring_model import Live, Store, finish

SIZES = st.integers(min_value=1, max_value=7)
BOUNDED = settings(deadline=None, derandomize=True, database=None)
MODELS = {"postgresql": ring_model, "mssql": ring_model_mssql}
EACH_MODEL = pytest.mark.parametrize("engine", MODELS)


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


@EACH_MODEL
@BOUNDED
@given(size=SIZES, choices=st.lists(st.integers(0, 9), max_size=60))
def test_alone_everything_comes_once_in_the_order_of_the_pushes(
    engine: str, size: int, choices: list[int]
) -> None:
    """One session without rollbacks: full at `size` messages exactly, empty at none."""
    model: Any = MODELS[engine]
    store = model.Store(size)
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


@EACH_MODEL
@BOUNDED
@given(size=SIZES, holes=st.integers(0, 12), orphans=st.integers(0, 12))
def test_numbers_given_up_on_either_side_never_stop_the_ring(
    engine: str, size: int, holes: int, orphans: int
) -> None:
    """Sequences that skipped, as a crash makes them: a relay brings all messages back."""
    model: Any = MODELS[engine]
    store = model.Store(size)
    stored = _push_until_full(model, store, "before")
    for _ in range(holes):
        store.draw(push=True)
    for _ in range(orphans):
        store.draw(push=False)
    popped = drain(model, store)
    stored += _push_until_full(model, store, "after")
    popped += drain(model, store)
    assert len(popped) == len(set(popped))
    assert store.relay(max(size, len(store.slots)))
    popped += drain(model, store)
    assert sorted(popped) == sorted(stored)
    assert not store.slots
    assert store.gap == 0


@EACH_MODEL
@BOUNDED
@given(size=SIZES)
def test_a_number_both_parked_and_void_is_finished(engine: str, size: int) -> None:
    """The push that could not use it and the pop that came early each leave a row; both go."""
    model: Any = MODELS[engine]
    store = model.Store(size)
    pairs = {(number, void) for number in range(1, 4) for void in (False, True)}
    store.parked = pairs | {(9, False), (8, True)}
    store.next_push = store.next_pop = 10
    tx = store.begin()
    assert finish(model.pop(tx)) is None
    tx.commit()
    assert store.parked == {(9, False), (8, True)}


@EACH_MODEL
def test_sessions_in_any_turns_lose_and_double_nothing(engine: str, long: bool) -> None:
    """Every step of every session between any two of another's, and relays among them."""
    for seed in range(100_000 if long else 1500):
        check_interleaving(MODELS[engine], seed)


def test_a_relay_between_two_statements_of_a_call_would_be_counted() -> None:
    """SQL Server: so the lock of the first read has to last; tests/microsoft watches its hint."""
    assert not all(_is_right(ring_model_mssql, seed, keeps_its_lock=False) for seed in range(100))


def _is_right(model: Any, seed: int, **of_the_ring: bool) -> bool:
    try:
        check_interleaving(model, seed, **of_the_ring)
    except AssertionError:
        return False
    return True


def _push_until_full(model: Any, store: Store, prefix: str) -> list[str]:
    stored: list[str] = []
    for serial in range(200):
        tx = store.begin()
        number = finish(model.push(tx, f"{prefix} {serial}"))
        tx.commit()
        if number is None:
            break
        stored.append(f"{prefix} {serial}")
    return stored


@BOUNDED
@given(
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=20),
    first_turn=st.integers(0, 2**50),
    chance=st.randoms(use_true_random=False),
)
def test_each_chunk_of_parked_has_its_turn_while_the_table_grows_and_shrinks(
    sizes: list[int], first_turn: int, chance: Random
) -> None:
    """PostgreSQL: within the proven number of calls, whatever the table's size is at each."""
    most = max(map(ring_model.most_turns, sizes))
    met = {
        ring_model.chunk_of(turn, chance.choice(sizes))
        for turn in range(first_turn, first_turn + most)
    }
    assert met >= set(range(min(sizes)))


@BOUNDED
@given(
    row=st.integers(0, 10_000),
    around=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), min_size=1, max_size=20),
    first_turn=st.integers(0, 2**50),
    chance=st.randoms(use_true_random=False),
)
def test_a_row_of_parked_has_its_turn_whatever_comes_and_goes_around_it(
    row: int, around: list[tuple[int, int]], first_turn: int, chance: Random
) -> None:
    """SQL Server: first and last stretch change, the row's own does not."""
    ranges = [(max(0, row - before), row + behind) for before, behind in around]
    most = max(ring_model.most_turns(last - first + 1) for first, last in ranges)
    met = {
        ring_model.chunk_between(turn, *chance.choice(ranges))
        for turn in range(first_turn, first_turn + most)
    }
    assert row in met
