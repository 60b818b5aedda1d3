"""A small ring on PostgreSQL does, step for step, what the model of the protocol says."""

import psycopg
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
from tests.faults import ring_model as model
from tests.faults.ring_model import MOST_PARKED_READ, Store, Transaction, finish
from tests.faults.ring_tools import Make, Ring

SIZES = st.integers(1, 7)
FATES = st.sampled_from(["commit", "commit", "commit", "roll back", "savepoint"])
CALLS = st.lists(
    st.tuples(st.sampled_from(["push", "pop", "push_many", "pop_many"]), st.integers(0, 9)),
    min_size=1,
    max_size=4,
)


@pytest.fixture(params=["slot", pytest.param("apart", marks=pytest.mark.long)])
def ring(request: pytest.FixtureRequest, make: Make) -> Ring:
    """A ring to be laid out anew by every example."""
    return make(size=7, content=request.param)


def test_the_ring_does_what_the_model_says(ring: Ring, long: bool) -> None:
    """Nothing lost or doubled, full and empty only when true, numbers as the protocol has them."""
    with ring.connect() as connection:

        class Machine(RingMachine):
            def __init__(self) -> None:
                super().__init__(ring, connection)

        bounds = settings(
            deadline=None,
            derandomize=True,
            database=None,
            max_examples=400 if long else 6,
            stateful_step_count=50,
        )
        run_state_machine_as_test(Machine, settings=bounds)


PLACES = """
    SELECT number, (CAST(CAST(ctid AS text) AS point))[0], (CAST(CAST(ctid AS text) AS point))[1]
    FROM {parked} WHERE NOT void
"""
TURN = """
    SELECT s.last_value + CAST(s.is_called AS integer), pg_relation_size({parked_name}) / 1024
    FROM {turn_seq} AS s
"""


class RingMachine(RuleBasedStateMachine):
    """Makes the same call on the model and on the ring, and compares everything there is."""

    def __init__(self, ring: Ring, connection: psycopg.Connection) -> None:
        super().__init__()
        self.ring = ring
        self.connection = connection
        self.store = Store(1)
        self.serial = 0
        self.stored: set[str] = set()
        self.popped: list[str] = []
        self.passed_over: dict[int, int] = {}
        """How many calls in a row did not look at a parked number."""
        self.most_turns = 1

    @initialize(size=SIZES, first=st.integers(1, 30))
    def lay_out(self, size: int, first: int) -> None:
        """An empty ring of that size whose numbers start there."""
        self.store = Store(size, base=first, next_push=first, next_pop=first)
        self.ring.set_state(self.connection, self.store)

    @rule(calls=CALLS, fate=FATES)
    def work(self, calls: list[tuple[str, int]], fate: str) -> None:
        """A transaction of some calls; with a savepoint: only what came before it stays."""
        tx = self.store.begin()
        stored: list[str] = []
        popped: list[str] = []
        self.connection.execute("BEGIN")
        for position, (call, n) in enumerate(calls):
            undo = tx.savepoint()
            self.connection.execute("SAVEPOINT here")
            pushed_now, popped_now = self._call(tx, call, n)
            if fate == "savepoint" and position == len(calls) - 1:
                self.connection.execute("ROLLBACK TO here")
                undo()
            else:
                stored += pushed_now
                popped += popped_now
        if fate == "roll back":
            self.connection.execute("ROLLBACK")
            tx.roll_back()
            return
        self.connection.execute("COMMIT")
        tx.commit()
        self.stored |= set(stored)
        self.popped += popped

    def _call(self, tx: Transaction, call: str, n: int) -> tuple[list[str], list[str]]:
        """The call on both, compared; (what was stored, what was popped)."""
        if call.startswith("push"):
            payloads = self._payloads(n if call == "push_many" else 1)
            if call == "push_many":
                numbers = self.ring.push_many(self.connection, payloads)
                assert numbers == finish(model.push_many(tx, payloads))
            else:
                numbers = [self.ring.push(self.connection, payloads[0])]
                assert numbers == [finish(model.push(tx, payloads[0]))]
            stored = [p for p, number in zip(payloads, numbers, strict=True) if number is not None]
            assert stored == payloads[: len(stored)], "the last ones find no place, not the first"
            return stored, []
        if call == "pop" or n > 0:
            self._take_turns()
        if call == "pop_many":
            messages = self.ring.pop_many(self.connection, n)
            expected = finish(model.pop_many(tx, n))
        else:
            one = self.ring.pop(self.connection)
            messages = [one] if one else []
            live = finish(model.pop(tx))
            expected = [live] if live else []
        assert [(m.id, m.payload) for m in messages] == [(e.first_id, e.payload) for e in expected]
        return [], [message.payload for message in messages]

    def _take_turns(self) -> None:
        """The model checks where the ring will; no number is passed over for too many calls."""
        rows = self.connection.execute(self.ring.sql(PLACES)).fetchall()
        places = {number: (int(page), int(line)) for number, page, line in rows}
        row = self.connection.execute(self.ring.sql(TURN)).fetchone()
        assert row is not None
        turn, chunks = row
        parked_read = model.parked_read(places, turn, chunks) if places else []
        assert len(parked_read) <= MOST_PARKED_READ
        self.store.parked_to_read = parked_read
        self.most_turns = max(self.most_turns, model.most_turns(max(chunks, 1)))
        self.passed_over = {
            number: self.passed_over.get(number, 0) + 1
            for number in places
            if number not in parked_read
        }
        assert max(self.passed_over.values(), default=0) < self.most_turns

    def _payloads(self, n: int) -> list[str]:
        self.serial += n
        return [f"message {number}" for number in range(self.serial - n, self.serial)]

    @rule(size=SIZES)
    def relay(self, size: int) -> None:
        """Fits and keeps everything, or is refused and changes nothing."""
        if self.store.relay(size):
            relaid = self.ring.relay(size)
            assert (relaid.size_after, relaid.base) == (size, self.store.base)
        else:
            with pytest.raises(ConsoleError, match=r"Drain [0-9]+ messages"):
                self.ring.relay(size)

    @rule(push=st.booleans(), how_many=st.integers(1, 3))
    def give_up_numbers(self, push: bool, how_many: int) -> None:
        """As a caller that died between its draw and its write does, and as a crash does."""
        for _ in range(how_many):
            self.store.draw(push=push)
            self.ring.consume_numbers(self.connection, "push" if push else "pop")

    @rule(how_many=st.integers(1, 3))
    def pop_early(self, how_many: int) -> None:
        """As pops do that saw a push's number when the push had not yet written."""
        for _ in range(how_many):
            self._park(self.store.draw(push=False), void=False)
            self.ring.consume_numbers(self.connection, "pop")

    @rule(how_many=st.integers(25, 60), lost=st.integers(0, 60))
    def pops_run_ahead(self, how_many: int, lost: int) -> None:
        """More numbers are parked than one call reads, the lowest of them holes."""
        self.pop_early(how_many)
        self.give_up_numbers(push=True, how_many=min(lost, how_many))

    @rule(choice=st.integers(0, 9))
    def void_unseen(self, choice: int) -> None:
        """As a push does that could not use a number which a pop was parking at that moment."""
        live = {message.message_id for message in self.store.slots.values()}
        numbers = sorted(n for n, void in self.store.parked if not void and n not in live)
        numbers = [number for number in numbers if number < self.store.next_push]
        if numbers:
            self._park(numbers[choice % len(numbers)], void=True)

    def _park(self, number: int, *, void: bool) -> None:
        self.store.parked.add((number, void))
        insert = self.ring.sql("INSERT INTO {parked} VALUES (%s, %s, now()) ON CONFLICT DO NOTHING")
        self.connection.execute(insert, [number, void])

    @invariant()
    def agree(self) -> None:
        """Numbers, slots and parked are the model's; nothing is lost, nothing came twice."""
        now = self.ring.measure()
        store = self.store
        assert (now.size, now.base) == (store.size, store.base)
        assert (now.next_push, now.next_pop) == (store.next_push, store.next_pop)
        assert {
            slot: (number, first_id, text)
            for slot, number, first_id, text in self.ring.live(self.connection)
        } == {
            slot: (live.message_id, live.first_id, live.payload)
            for slot, live in store.slots.items()
        }
        assert self.ring.parked(self.connection) == store.parked
        assert self.ring.contents(self.connection) == {
            live.first_id: live.payload for live in store.slots.values()
        }
        live = [message.payload for message in store.slots.values()]
        assert sorted(live + self.popped) == sorted(self.stored)
