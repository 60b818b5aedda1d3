"""The table parked: numbers whose message was not stored yet, and void numbers."""

import itertools
import random
from collections.abc import Iterator

import pytest

from tests.faults.harness.ring import Make, Ring, make_ring, page_of_holes, set_sequences

_numbers = itertools.count(1)


@pytest.fixture
def ring(rings_url: str) -> Iterator[Ring]:
    """A ring with a name that needs quoting everywhere."""
    name = f"a 'ring' of \"mine\" {next(_numbers)}"
    made = make_ring(rings_url, name, size=2000, max_bytes=50)
    yield made
    made.close()


def _pop_until_parked(ring: Ring) -> None:
    while ring.measure().gap > 0:
        assert ring.pop_many(100) == []


def test_a_late_commit_is_popped_late(ring: Ring) -> None:
    """No pop waits for an open push, so the order may differ from that of the numbers."""
    with ring.connect() as early, ring.connect() as late:

        def popped() -> list[int]:
            return [message.id for message in ring.take()]

        early.execute("BEGIN")
        assert ring.push("drawn first, committed last", on=early) == 1
        late.execute("BEGIN")
        assert ring.push("drawn second, committed second", on=late) == 2
        assert ring.push("drawn third, committed first") == 3

        # The pop draws numbers 1 and 2, whose messages are not stored yet: both are parked.
        assert popped() == [3]
        assert ring.parked() == {(1, False), (2, False)}
        assert popped() == []
        late.execute("COMMIT")
        assert ring.push("drawn fourth") == 4
        assert popped() == [2], "a parked number is popped first"
        early.execute("COMMIT")
        assert [popped(), popped(), popped()] == [[1], [4], []]
        assert ring.parked() == set()


@pytest.mark.long
@pytest.mark.parametrize("batch", [0, 5])
def test_a_late_message_among_hundreds_of_holes_is_popped(ring: Ring, batch: int) -> None:
    """A call reads 64 numbers, but all get their turn, however far apart they are."""
    with ring.connect() as late:
        ring.consume_numbers("push", 40)
        _pop_until_parked(ring)
        set_sequences(ring, 10_000_000)
        ring.consume_numbers("push", 150)
        late.execute("BEGIN")
        assert ring.push("late", on=late) == 10_000_150
        ring.consume_numbers("push", 150)
        _pop_until_parked(ring)
        set_sequences(ring, 2**40)
        ring.consume_numbers("push", 40)
        _pop_until_parked(ring)
        assert len(ring.parked()) == 381
        late.execute("COMMIT")
        for _ in range(3000):
            if found := ring.take(batch):
                assert found[0].payload == "late"
                break
        else:
            pytest.fail("a number had its message and never had its turn")
        assert len(ring.parked()) == 380
        assert (10_000_150, False) not in ring.parked()


@pytest.mark.parametrize("batch", [0, 5])
def test_a_parked_number_at_the_end_of_a_page_is_popped(ring: Ring, batch: int) -> None:
    """As after churn: starting among a page's first rows never reached it."""
    number = page_of_holes(ring)
    calls = ring.most_turns()
    assert calls == 8
    for _ in range(calls):
        if found := ring.take(batch):
            assert (found[0].id, found[0].payload) == (number, "late")
            break
    else:
        pytest.fail("a number had its message and never had its turn")
    assert len(ring.parked()) == 128


def _numbers_read(ring: Ring) -> set[int]:
    """The numbers that a call reads, if each has its message."""
    with ring.session.transaction(force_rollback=True):
        found = {message.id for message in ring.pop_many(1000)}
    assert len(found) <= 64
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))]
)
def test_each_parked_number_is_read_within_the_proven_number_of_calls(
    make: Make, seed: int
) -> None:
    """Wherever rows are, and while the table grows and shrinks between the calls."""
    chance = random.Random(seed)
    size = 4000
    ring = make(size=size, max_bytes=10)
    park = "INSERT INTO {parked} SELECT unnest(%s::bigint[]), false, now()"
    ring.push_many(["here"] * size)
    ring.execute("SELECT setval({pop_name}, %s)", size)
    numbers = list(range(1, size + 1))
    chance.shuffle(numbers)
    ring.execute(park, numbers)
    deleted = numbers[chance.randint(500, 3700) :]
    ring.execute("DELETE FROM {parked} WHERE number = ANY(%s)", deleted)
    kept = set(numbers) - set(deleted)
    if seed % 2:
        ring.execute("VACUUM {parked}")
    calls, read = 0, set[int]()
    most = ring.most_turns()
    while not kept <= read:
        assert calls < most, f"{len(kept - read)} of {len(kept)} numbers had no turn in {most}"
        read |= _numbers_read(ring)
        calls += 1
        if calls == 10:
            ring.execute(park, deleted)
            ring.execute("DELETE FROM {parked} WHERE number = ANY(%s)", deleted)
            most = max(most, ring.most_turns())
        if calls == 20:
            ring.execute("VACUUM {parked}")


def test_the_lowest_parked_numbers_are_popped_first(ring: Ring) -> None:
    """The lowest ones keep their order, so late messages are popped in order."""
    with ring.connect() as late:
        late.execute("BEGIN")
        numbers = ring.push_many([f"late {n}" for n in range(10)], on=late)
        ring.consume_numbers("push", 200)
        _pop_until_parked(ring)
        late.execute("COMMIT")
        assert [message.id for message in ring.pop_many(4)] == numbers[:4]
        for number in numbers[4:]:
            taken = ring.pop()
            assert taken is not None
            assert taken.id == number


def test_a_batch_draws_few_numbers_of_uncommitted_pushes(ring: Ring) -> None:
    """They are parked; after the commit every message is popped."""
    with ring.connect() as late:
        late.execute("BEGIN")
        numbers = ring.push_many([f"late {n}" for n in range(100)], on=late)
        assert ring.pop_many(100) == []
        assert len(ring.parked()) == 8, "one number per try of the call"
        late.execute("COMMIT")
        assert [message.id for message in ring.pop_many(100)] == numbers
        assert not ring.parked()


def test_a_batch_pops_messages_after_holes(ring: Ring) -> None:
    ring.consume_numbers("push", 300)
    after_holes = ring.push_many(["behind"] * 10)
    poppeds = [m for _ in range(3) for m in ring.pop_many(50)]
    assert [message.id for message in poppeds] == after_holes


@pytest.mark.parametrize("batch", [0, 1, 100])
def test_one_pop_gets_past_all_numbers_that_a_crash_skipped(ring: Ring, batch: int) -> None:
    """What it draws is parked, but not without end: only up to a message that is there."""
    ring.consume_numbers("push", 49)
    assert ring.push("behind them") == 50
    ring.consume_numbers("push", 49)
    assert [message.id for message in ring.take(batch)] == [50]
    at_most = 49 if batch < 2 else 50 + 49
    assert len(ring.parked()) <= at_most
    assert ring.take(batch) == []
    assert len(ring.parked()) <= at_most + 8


def test_a_batch_drops_all_voids_at_the_end_at_once(ring: Ring) -> None:
    voids = "INSERT INTO {parked} SELECT g, true, now() FROM generate_series(1, 300) AS g"
    ring.execute(voids)
    ring.consume_numbers("push", 300)
    assert ring.pop_many(100) == []
    assert ring.measure().gap == 0


@pytest.mark.long
@pytest.mark.parametrize("batch", [0, 100])
def test_a_call_that_has_dropped_a_thousand_voids_returns_nothing(ring: Ring, batch: int) -> None:
    """Voids do not count as tries, so a range of them does not stop pops for long."""
    voids = "INSERT INTO {parked} SELECT g, true, now() FROM generate_series(1, 1500) AS g"
    ring.execute(voids)
    ring.consume_numbers("push", 1500)
    assert ring.push("behind them") == 1501
    assert ring.take(batch) == []
    assert len(ring.parked()) == 500
    assert ring.measure().next_pop == 1001
    assert [one.payload for one in ring.take(batch)] == ["behind them"]
    assert ring.parked() == set()
    assert ring.take(batch) == []


def test_a_number_both_parked_and_void_is_removed(make: Make) -> None:
    """A pop parks it before the push that voids it has committed: both rows are removed later."""
    ring = make(size=2)
    assert ring.push_many(["one", "two"]) == [1, 2]
    with ring.undone() as caller:
        assert ring.pop(on=caller)  # "one" is an orphan then, in the slot of number 3
    assert ring.popped() == "two"
    with ring.connect() as pusher:
        pusher.execute("BEGIN")
        assert ring.push("four", on=pusher) == 4
        assert ring.pop() is None
        assert ring.parked() == {(3, False), (4, False)}
        pusher.execute("COMMIT")
        assert ring.parked() == {(3, False), (4, False), (3, True)}
        assert ring.popped() == "four"
        assert ring.parked() == {(3, False), (3, True)}
        assert ring.pop() is None
        assert ring.parked() == set()

        assert ring.park_orphans() == 1
        assert ring.texts() == ["one"]


def test_a_push_that_cannot_use_a_number_unparks_it(make: Make) -> None:
    """No void is recorded for a parked number, as deleting its row has the same effect."""
    ring = make(size=2)
    assert ring.push_many(["one", "two"]) == [1, 2]
    ring.consume_numbers("pop", 3)
    ring.execute("INSERT INTO {parked} VALUES (3, false, now())")
    # Numbers 1 and 2 are consumed and live, so both slots are full; number 3 is parked.
    assert ring.push("no place") is None
    assert (3, False) not in ring.parked()
    assert (3, True) not in ring.parked()
    assert ring.park_orphans() == 2
    assert ring.texts() == ["one", "two"]
