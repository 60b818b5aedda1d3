"""A small ring on PostgreSQL behaves exactly like the model of the protocol, step by step."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from console.errors import ConsoleError
from tests.faults.harness import model
from tests.faults.harness.model import MOST_PARKED_READ, Store, Transaction, finish
from tests.faults.harness.modelled import ReaderModel
from tests.faults.harness.ring import Make, Ring

SIZES = st.integers(1, 7)
FATES = st.sampled_from(["commit", "commit", "commit", "roll back", "savepoint"])
CALLS = st.lists(
    st.tuples(st.sampled_from(["push", "pop", "push_many", "pop_many"]), st.integers(0, 9)),
    min_size=1,
    max_size=4,
)


@pytest.fixture(params=["slot", pytest.param("apart", marks=pytest.mark.long)])
def ring(request: pytest.FixtureRequest, make: Make) -> Ring:
    """A ring that every example sets to a new state."""
    return make(size=7, content=request.param)


def test_a_ring_behaves_like_its_model(ring: Ring, long: bool) -> None:
    """Nothing is lost or doubled, full and empty are true, numbers are those of the protocol."""

    class Machine(RingMachine):
        def __init__(self) -> None:
            super().__init__(ring)

    bounds = settings(
        deadline=None,
        derandomize=True,
        database=None,
        max_examples=400 if long else 6,
        stateful_step_count=50,
    )
    run_state_machine_as_test(Machine, settings=bounds)


PARKED_POSITIONS = """
    SELECT number, (CAST(CAST(ctid AS text) AS point))[0], (CAST(CAST(ctid AS text) AS point))[1]
    FROM {parked} WHERE NOT void
"""
TURN = """
    SELECT s.last_value + CAST(s.is_called AS integer), pg_relation_size({parked_name}) / 1024
    FROM {turn_seq} AS s
"""


class RingMachine(RuleBasedStateMachine):
    """Makes each call on the model and on the ring, and compares their entire states."""

    def __init__(self, ring: Ring) -> None:
        super().__init__()
        self.ring = ring
        self.reader = ReaderModel(ring)
        self.serial = 0
        self.stored: set[str] = set()
        self.popped: list[str] = []
        self.calls_unread: dict[int, int] = {}
        """Parked number -> how many calls in a row have not read it."""
        self.most_turns = 1

    @initialize(size=SIZES, first=st.integers(1, 30))
    def set_up_ring(self, size: int, first: int) -> None:
        """An empty ring of that size whose numbers start at `first`."""
        self.reader.store = Store(size, base=first, next_push=first, next_pop=first)
        self.ring.set_state(self.reader.store)

    @rule(calls=CALLS, fate=FATES)
    def work(self, calls: list[tuple[str, int]], fate: str) -> None:
        """A transaction of some calls; `savepoint`: the last one is rolled back."""
        tx = self.reader.store.begin()
        stored: list[str] = []
        popped: list[str] = []
        self.ring.execute("BEGIN")
        for position, (call, n) in enumerate(calls):
            undo = tx.savepoint()
            self.ring.execute("SAVEPOINT here")
            pushed_now, popped_now = self._call(tx, call, n)
            if fate == "savepoint" and position == len(calls) - 1:
                self.ring.execute("ROLLBACK TO here")
                undo()
            else:
                stored += pushed_now
                popped += popped_now
        if fate == "roll back":
            self.ring.execute("ROLLBACK")
            tx.roll_back()
            return
        self.ring.execute("COMMIT")
        tx.commit()
        self.stored |= set(stored)
        self.popped += popped

    def _call(self, tx: Transaction, call: str, n: int) -> tuple[list[str], list[str]]:
        """Make the call on both and compare; (stored, popped)."""
        if call.startswith("push"):
            payloads = self._payloads(n if call == "push_many" else 1)
            if call == "push_many":
                numbers = self.ring.push_many(payloads)
                assert numbers == finish(model.push_many(tx, payloads))
            else:
                numbers = [self.ring.push(payloads[0])]
                assert numbers == [finish(model.push(tx, payloads[0]))]
            stored = [p for p, number in zip(payloads, numbers, strict=True) if number is not None]
            assert stored == payloads[: len(stored)], "only the last ones may not fit"
            return stored, []
        if call == "pop" or n > 0:
            self._set_parked_read()
        if call == "pop_many":
            messages = self.ring.pop_many(n)
            expected = finish(model.pop_many(tx, n))
        else:
            popped = self.ring.pop()
            messages = [popped] if popped else []
            live = finish(model.pop(tx))
            expected = [live] if live else []
        assert [(m.id, m.payload) for m in messages] == [(e.first_id, e.payload) for e in expected]
        return [], [message.payload for message in messages]

    def _set_parked_read(self) -> None:
        """Let the model read the rows that the ring will; each within `most_turns` calls."""
        rows = self.ring.execute(PARKED_POSITIONS).fetchall()
        positions = {number: (int(page), int(line)) for number, page, line in rows}
        row = self.ring.execute(TURN).fetchone()
        assert row is not None
        turn, chunks = row
        parked_read = model.parked_read(positions, turn, chunks) if positions else []
        assert len(parked_read) <= MOST_PARKED_READ
        self.reader.store.parked_to_read = parked_read
        self.most_turns = max(self.most_turns, model.most_turns(max(chunks, 1)))
        self.calls_unread = {
            number: self.calls_unread.get(number, 0) + 1
            for number in positions
            if number not in parked_read
        }
        assert max(self.calls_unread.values(), default=0) < self.most_turns

    def _payloads(self, n: int) -> list[str]:
        self.serial += n
        return [f"message {number}" for number in range(self.serial - n, self.serial)]

    @rule(size=SIZES)
    def relay(self, size: int) -> None:
        """It fits and keeps everything, or is refused and changes nothing."""
        if self.reader.store.relay(size):
            relaid = self.ring.relay(size)
            assert (relaid.size_after, relaid.base) == (size, self.reader.store.base)
        else:
            with pytest.raises(ConsoleError, match=r"Drain [0-9]+ messages"):
                self.ring.relay(size)

    @rule(push=st.booleans(), how_many=st.integers(1, 3))
    def lose_numbers(self, push: bool, how_many: int) -> None:
        """Like a caller that dies after drawing numbers, or like a crash."""
        for _ in range(how_many):
            self.reader.store.draw(push=push)
            self.ring.consume_numbers("push" if push else "pop")

    @rule(how_many=st.integers(1, 3))
    def pop_early(self, how_many: int) -> None:
        """Like pops that draw a push's number before the push has written."""
        for _ in range(how_many):
            self._park(self.reader.store.draw(push=False), void=False)
            self.ring.consume_numbers("pop")

    @rule(how_many=st.integers(25, 60), lost=st.integers(0, 60))
    def pops_run_ahead(self, how_many: int, lost: int) -> None:
        """Park more numbers than one call reads, the lowest of them holes."""
        self.pop_early(how_many)
        self.lose_numbers(push=True, how_many=min(lost, how_many))

    @rule(choice=st.integers(0, 9))
    def void_parked_number(self, choice: int) -> None:
        """Like a push that cannot use a number which a pop is parking at the same time."""
        live = {message.message_id for message in self.reader.store.slots.values()}
        numbers = sorted(n for n, void in self.reader.store.parked if not void and n not in live)
        numbers = [number for number in numbers if number < self.reader.store.next_push]
        if numbers:
            self._park(numbers[choice % len(numbers)], void=True)

    def _park(self, number: int, *, void: bool) -> None:
        self.reader.store.parked.add((number, void))
        insert = "INSERT INTO {parked} VALUES (%s, %s, now()) ON CONFLICT DO NOTHING"
        self.ring.execute(insert, number, void)

    @invariant()
    def ring_equals_model(self) -> None:
        """Numbers, slots and parked are the model's; nothing is lost or doubled."""
        self.reader.assert_equal()
        store = self.reader.store
        assert self.ring.contents() == {
            live.first_id: live.payload for live in store.slots.values()
        }
        live = [message.payload for message in store.slots.values()]
        assert sorted(live + self.popped) == sorted(self.stored)
