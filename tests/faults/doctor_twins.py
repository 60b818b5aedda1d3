"""A ring and the model of its protocol, called alike: what becomes of the ring is known without it.

Only how far a crash threw the sequences, and what clients in processes of their own did, is read
from the ring's tables.
"""

import copy
import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg

from console.doctor.ring_proof import Astray, Side
from console.errors import RefusedError
from tests.faults import ring_model as model
from tests.faults.ring_ledger import Ledger
from tests.faults.ring_model import Live, Store, Transaction, finish
from tests.faults.ring_tools import Popped, Ring, make_ring
from tests.faults.ring_worker import payload
from tests.servers import wait_until

_NUMBERS = """
    SELECT c.size, c.base, a.last_value + a.is_called::int, b.last_value + b.is_called::int
    FROM {config} AS c, {push_seq} AS a, {pop_seq} AS b
"""


def astray(store: Store) -> dict[Astray, set[int]]:
    """The numbers that went astray where nobody is under way (DESIGN section 5)."""
    live = {message.message_id for message in store.slots.values()}
    waiting = {number for number, void in store.parked if not void}
    voids = {number for number, void in store.parked if void}
    return {
        Astray.ORPHAN: {number for number in live - waiting if number < store.next_pop},
        Astray.SPENT: set(range(store.next_push, store.next_pop)) - waiting,
        Astray.VOID: {number for number in voids - waiting if number < store.next_pop},
        Astray.HOLE: set(range(store.next_pop, store.next_push)) - live - voids,
        Astray.PARKED_HOLE: {n for n in waiting - live - voids if n < store.next_push},
    }


def left_behind(store: Store) -> tuple[set[int], set[int], set[int]]:
    """Orphans, holes and voids by trial: what stays in the model when all that can be is popped."""
    drained = copy.deepcopy(store)
    while True:
        tx = drained.begin()
        popped = finish(model.pop_many(tx, 500))
        tx.commit()
        if not popped and drained.gap <= 0:
            break
    return (
        {message.message_id for message in drained.slots.values()},
        {n for n, void in drained.parked if not void and n < store.next_push},
        {number for number, void in drained.parked if void},
    )


@dataclass
class InHand:
    """A row of in_hand."""

    payload: str
    attempts: int
    claimed: bool = True


@dataclass
class Open:
    """A transaction on the ring and on the model."""

    connection: psycopg.Connection
    tx: Transaction
    pushed: list[str] = field(default_factory=list)
    popped: list[tuple[Popped, int]] = field(default_factory=list)
    """Each with its number; 0: it came from in_hand."""
    drew: set[Side] = field(default_factory=set)
    prepared: str = ""


class Twins:
    """The ring, its model, and the transactions that are open on both."""

    def __init__(self, url: str, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        options = chance.choice([{}, {"archive_at_pop": "on"}, {"in_hand": "on"}])
        size = chance.choice([chance.randint(1, 8), chance.randint(9, 40)])
        self.ring: Ring = make_ring(url, f"ring {seed}", size=size, max_bytes=300, **options)
        self.in_hand = "in_hand" in options
        self.archives = "archive_at_pop" in options
        self.store = Store(size)
        self.hand: dict[int, InHand] = {}
        self.open: list[Open] = []
        self.free: list[psycopg.Connection] = []
        self.admin = self.ring.connect()
        self.ledger = Ledger()
        self.steps: Counter[str] = Counter()
        self.highest = 0
        """The highest number that was popped since the last relay."""
        self._serial = 0

    def begin(self) -> Open:
        """A transaction on a session of its own."""
        connection = self.free.pop() if self.free else self.ring.connect()
        connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        started = Open(connection, self.store.begin())
        self.open.append(started)
        return started

    def call(self, on: Open) -> None:
        """One call of the four, compared."""
        before = self.store.next_push, self.store.next_pop
        if self.chance.random() < 0.55:
            self._push(on)
        else:
            self._pop(on)
        if self.store.next_push != before[0]:
            on.drew.add(Side.PUSH)
        if self.store.next_pop != before[1]:
            on.drew.add(Side.POP)

    def _push(self, on: Open) -> None:
        count = self.chance.choice([1, 1, 1, self.chance.randint(2, 12)])
        texts = [payload("own", self._serial + n) for n in range(1, count + 1)]
        self._serial += count
        if count == 1:
            stored = [self.ring.push(on.connection, texts[0])]
            expected = [finish(model.push(on.tx, texts[0]))]
            self.steps["push"] += 1
        else:
            stored = self.ring.push_many(on.connection, texts)
            expected = finish(model.push_many(on.tx, texts))
            self.steps["push_many"] += 1
        assert stored == expected
        on.pushed += [text for text, n in zip(texts, stored, strict=True) if n is not None]

    def _pop(self, on: Open) -> None:
        if sum(not void for _, void in on.tx.parked()) > model.MOST_PARKED_LOOKED_AT:
            return  # which ones a pop looks at is then left to chance
        count = self.chance.choice([1, 1, 1, self.chance.randint(2, 12)])
        if count == 1:
            one = self.ring.pop(on.connection)
            came = [one] if one else []
        else:
            came = self.ring.pop_many(on.connection, count)
        self.steps["pop" if count == 1 else "pop_many"] += 1
        again = self._again(count)
        expected: list[Live] = []
        if count == 1 and not self.in_hand:
            live = finish(model.pop(on.tx))
            expected = [live] if live else []
        elif count > len(again):
            expected = finish(model.pop_many(on.tx, count - len(again)))
        wanted = [
            *((id_, self.hand[id_].payload) for id_ in again),
            *((live.first_id, live.payload) for live in expected),
        ]
        assert [(m.id, m.payload) for m in came] == wanted, (came, wanted)
        of = [*(0 for _ in again), *(live.message_id for live in expected)]
        on.popped += zip(came, of, strict=True)

    def _again(self, count: int) -> list[int]:
        """Which rows of in_hand the next pop of so many takes first."""
        held = {message.id for one in self.open for message, _ in one.popped}
        ready = {id_ for id_, row in self.hand.items() if not row.claimed}
        return sorted(ready - held)[:count]

    def end(self, it: Open, how: str) -> None:
        """Commit, roll back, or let its caller or its backend die."""
        self.steps[how] += 1
        if how == "prepare":
            it.prepared = f"{self.ring.queue.name} {self._serial} {len(self.open)}"
            it.connection.execute(f"PREPARE TRANSACTION '{it.prepared}'".encode())
            self.free.append(it.connection)
            return
        self.open.remove(it)
        if it.prepared:
            verb = "COMMIT" if how == "commit" else "ROLLBACK"
            self.admin.execute(f"{verb} PREPARED '{it.prepared}'".encode())
        elif how == "commit":
            it.connection.execute("COMMIT")
            self.free.append(it.connection)
        elif how == "roll back":
            it.connection.execute("ROLLBACK")
            self.free.append(it.connection)
        else:
            pid = it.connection.info.backend_pid
            if how == "terminate":
                self.admin.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
            it.connection.close()
            gone = "SELECT FROM pg_stat_activity WHERE pid = %s"
            wait_until(lambda: not self.admin.execute(gone, [pid]).fetchall(), "its backend ends")
        if how == "commit":
            it.tx.commit()
            self._account(it)
        else:
            it.tx.roll_back()

    def _account(self, it: Open) -> None:
        self.ledger.acknowledged.update(it.pushed)
        for message, number in it.popped:
            self.highest = max(self.highest, number)
            if not self.in_hand:
                self.ledger.popped[message.payload] += 1
            else:
                self.hand[message.id] = InHand(message.payload, message.attempts)

    def end_all(self) -> None:
        """Nobody is under way any more."""
        while self.open:
            self.end(self.open[0], self.chance.choice(["commit", "roll back"]))

    def relay(self, wanted: int | None) -> None:
        """Of both; refused where what is live does not fit."""
        if self.store.relay(wanted or self.store.size):
            self.steps["resize" if wanted else "relay"] += 1
            self.ring.relay(wanted)
            self.highest = 0
        else:
            self.steps["resize refused"] += 1
            with suppress(RefusedError):
                self.ring.relay(wanted)
                raise AssertionError("a resize below the live messages was not refused")

    def complete_one(self, id_: int) -> None:
        """A claim is finished; one that was released cannot."""
        row = self.hand[id_]
        call = self.ring.sql("SELECT {complete}(%s, %s)")
        (done,) = self.admin.execute(call, [id_, row.attempts]).fetchone() or (None,)
        assert done is row.claimed
        if done:
            self.steps["complete"] += 1
            self.ledger.popped[row.payload] += 1
            del self.hand[id_]

    def sessions_are_gone(self) -> None:
        """The server was down: only what was prepared is there still."""
        for it in [it for it in self.open if not it.prepared]:
            it.tx.roll_back()
            it.connection.close()
            self.open.remove(it)
        for connection in [*self.free, self.admin]:
            connection.close()
        self.free.clear()
        self.admin = self.ring.connect()

    def callers_leave(self) -> None:
        """Nobody lives who has claimed."""
        pids = [connection.info.backend_pid for connection in self.free]
        for connection in self.free:
            connection.close()
        self.free.clear()
        there = "SELECT FROM pg_stat_activity WHERE pid = ANY(%s)"
        wait_until(lambda: not self.admin.execute(there, [pids]).fetchall(), "callers leave")

    def waiting(self) -> int:
        """Parked numbers; of more than a pop looks at, chance has which it takes."""
        return sum(not void for _, void in self.store.parked)

    def _state(self) -> tuple[Any, ...]:
        store = self.store
        return (
            (store.size, store.base, store.next_push, store.next_pop),
            store.slots,
            store.parked,
            {id_: (row.payload, row.attempts, row.claimed) for id_, row in self.hand.items()},
        )

    def _real(self) -> tuple[Any, ...]:
        (now,) = self.admin.execute(self.ring.sql(_NUMBERS)).fetchall()
        live = {row[0]: Live(row[1], row[2], row[3]) for row in self.ring.live(self.admin)}
        rows = []
        if self.in_hand:
            columns = "id, payload, attempts, claimed_at IS NOT NULL"
            rows = self.admin.execute(
                self.ring.sql(f"SELECT {columns} FROM {{in_hand}}")
            ).fetchall()
        return (
            now,
            live,
            self.ring.parked(self.admin),
            {id_: tuple(row) for id_, *row in rows},
        )

    def agree(self) -> None:
        """The ring is as the model says."""
        for real, expected in zip(self._real(), self._state(), strict=True):
            assert real == expected, (real, expected)

    def read(self) -> None:
        """The model becomes as the ring is, where nobody is under way."""
        numbers_, live, parked, rows = self._real()
        size, base, next_push, next_pop = numbers_
        self.store = Store(size, base, next_push, next_pop, live, parked)
        self.hand = {id_: InHand(*row) for id_, row in rows.items()}
        self.highest = 0

    def close(self) -> None:
        """Give back what it holds."""
        for connection in [self.admin, *self.free, *(it.connection for it in self.open)]:
            connection.close()
        self.ring.close()
