"""A ring next to the model of its protocol: every call is made on both and compared, as are faults:
transactions with all ends, crashes, traffic, relays.

Only how far a crash moved the sequences, and what client processes did, is read from the ring's
tables.
"""

import copy
import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg

from console.doctor.number_proof import LostKind, Side
from console.doctor.repairs import release_claims
from console.errors import RefusedError
from console.features.demo.embedded import EmbeddedServer
from tests.faults.harness import model
from tests.faults.harness.client import payload
from tests.faults.harness.clients import CONSUMER, PRODUCER, Clients, clients
from tests.faults.harness.faults import crash, kill_backend
from tests.faults.harness.ledger import Ledger
from tests.faults.harness.model import Live, Store, Transaction, finish
from tests.faults.harness.ring import Popped, Ring, make_ring, wait_for_server
from tests.servers import wait_until
from tests.tools.repairs import carry_out

_MOST_WAITING = model.MOST_PARKED_READ - 16
_MOST_OPEN = 2
_EVENTS = ["client", "client", "terminate", "backend", "server", "relay"]

_NUMBERS = """
    SELECT c.size, c.base, a.last_value + a.is_called::int, b.last_value + b.is_called::int
    FROM {config} AS c, {push_seq} AS a, {pop_seq} AS b
"""


def lost_numbers(store: Store) -> dict[LostKind, set[int]]:
    """The lost numbers by kind, while no transaction is open."""
    live = {message.message_id for message in store.slots.values()}
    waiting = {number for number, void in store.parked if not void}
    voids = {number for number, void in store.parked if void}
    return {
        LostKind.ORPHAN: {number for number in live - waiting if number < store.next_pop},
        LostKind.SPENT: set(range(store.next_push, store.next_pop)) - waiting,
        LostKind.VOID: {number for number in voids - waiting if number < store.next_pop},
        LostKind.HOLE: set(range(store.next_pop, store.next_push)) - live - voids,
        LostKind.PARKED_HOLE: {n for n in waiting - live - voids if n < store.next_push},
    }


def unpoppable_numbers(store: Store) -> tuple[set[int], set[int], set[int]]:
    """Orphans, holes and voids by trial: what is left in a drained copy of the model."""
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
    """A row of the table in_hand."""

    payload: str
    attempts: int
    claimed: bool = True


@dataclass
class OpenTransaction:
    """A transaction on the ring and on the model."""

    connection: psycopg.Connection
    txs: dict[str, Transaction]
    pushed: list[str] = field(default_factory=list)
    popped: list[tuple[str, Popped, int]] = field(default_factory=list)
    """(reader, message, number); number 0: from in_hand."""
    drawn: set[tuple[str, Side]] = field(default_factory=set)
    prepared: str = ""

    @property
    def all(self) -> list[Transaction]:
        return [*self.txs.values()]


class ReaderModel:
    """The model of a ring as its consumers, or one subscriber's, see it."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.name = ring.queue.subscriber
        self.store = Store(int(ring.queue.options["size"]))
        self.in_hand_rows: dict[int, InHand] = {}
        self.ledger = Ledger()
        self.highest = 0
        """The highest number popped since the last relay."""

    @property
    def waiting(self) -> int:
        """How many numbers are parked; of more than MOST_PARKED_READ a pop reads random ones."""
        return sum(not void for _, void in self.store.parked)

    def state(self) -> tuple[Any, ...]:
        """The state of the model."""
        store = self.store
        return (
            (store.size, store.base, store.next_push, store.next_pop),
            store.slots,
            store.parked,
            {
                id_: (row.payload, row.attempts, row.claimed)
                for id_, row in self.in_hand_rows.items()
            },
        )

    def real(self) -> tuple[Any, ...]:
        """The same of the real ring."""
        ring = self.ring
        (now,) = ring.execute(_NUMBERS).fetchall()
        rows = []
        if ring.queue.options["in_hand"] == "on":
            query = "SELECT id, payload, attempts, claimed_at IS NOT NULL FROM {in_hand}"
            query += f" WHERE subscriber = {ring.number}" * bool(self.name)
            rows = ring.execute(query).fetchall()
        return (
            now,
            {row[0]: Live(row[1], row[2], row[3]) for row in ring.live()},
            ring.parked(),
            {id_: tuple(row) for id_, *row in rows},
        )

    def assert_equal(self) -> None:
        """Assert that the ring is in the model's state."""
        for real, expected in zip(self.real(), self.state(), strict=True):
            assert real == expected, (self.name, real, expected)

    def read(self) -> None:
        """Set the model to the ring's state, when no transaction is open."""
        (size, base, next_push, next_pop), live, parked, rows = self.real()
        self.store = Store(size, base, next_push, next_pop, live, parked)
        self.in_hand_rows = {id_: InHand(*row) for id_, row in rows.items()}
        self.highest = 0

    def next_in_hand(self, count: int, held: set[int]) -> list[int]:
        """The rows of in_hand that the next pop of `count` messages takes first."""
        ready = {id_ for id_, row in self.in_hand_rows.items() if not row.claimed}
        return sorted(ready - held)[:count]

    def complete(self, id_: int) -> bool:
        """Complete a claim; False if it had been released."""
        row = self.in_hand_rows[id_]
        values = [*([self.name] if self.name else []), id_, row.attempts]
        call = f"SELECT {{complete}}({', '.join(['%s'] * len(values))})"
        ((done,),) = self.ring.execute(call, *values).fetchall()
        assert done is row.claimed
        if row.claimed:
            self.ledger.popped[row.payload] += 1
            del self.in_hand_rows[id_]
        return bool(done)


class ModelledRing:
    """The ring, its model, the transactions that are open on both, and faults."""

    def __init__(self, server: EmbeddedServer, url: str, seed: int, subscribers: int = 0) -> None:
        self.server = server
        self.chance = chance = random.Random(seed)
        # With subscribers an empty pop may sweep: until its transaction ends it locks free slots,
        # which the model does not know.
        chosen = [{}, {"in_hand": "on"}, *([{"archive_at_pop": "on"}] if not subscribers else [])]
        options = chance.choice(chosen)
        size = chance.choice([chance.randint(1, 8), chance.randint(9, 40)])
        names = [f"s{number}" for number in range(1, subscribers + 1)]
        given = {"subscribers": ",".join(names)} if names else {}
        self.ring: Ring = make_ring(
            url, f"ring {seed} {subscribers}", size=size, max_bytes=300, **options, **given
        )
        self.in_hand = "in_hand" in options
        self.archives = "archive_at_pop" in options
        rings = [self.ring.of(name) for name in names] or [self.ring]
        self.readers = {ring.queue.subscriber: ReaderModel(ring) for ring in rings}
        self.open: list[OpenTransaction] = []
        self.free: list[psycopg.Connection] = []
        self.steps: Counter[str] = Counter()
        self._serial = 0
        self.skipped: dict[tuple[str, Side], set[int]] = {
            (reader.name, side): set() for reader in self.all for side in Side
        }
        """Numbers lost in crashes."""
        self.mixed = False
        """Client processes ran, so it is not known which of them lost a number."""

    @property
    def all(self) -> list[ReaderModel]:
        """In the order of the subscribers."""
        return [*self.readers.values()]

    @property
    def stores(self) -> list[Store]:
        """The models."""
        return [one.store for one in self.all]

    def begin(self) -> OpenTransaction:
        """Begin a transaction on its own session."""
        connection = self.free.pop() if self.free else self.ring.connect()
        connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        started = OpenTransaction(
            connection, {model.name: model.store.begin() for model in self.all}
        )
        self.open.append(started)
        return started

    def call(self, on: OpenTransaction) -> None:
        """Make one of the four calls on both, and compare."""
        reader = self.chance.choice(self.all)
        before = reader.store.next_push, reader.store.next_pop
        if self.chance.random() < 0.55:
            self._push(on)
        else:
            self._pop(on, reader)
        if reader.store.next_push != before[0]:
            on.drawn |= {(model.name, Side.PUSH) for model in self.all}
        if reader.store.next_pop != before[1]:
            on.drawn.add((reader.name, Side.POP))

    def _push(self, on: OpenTransaction) -> None:
        count = self.chance.choice([1, 1, 1, self.chance.randint(2, 12)])
        texts = [payload("own", self._serial + n) for n in range(1, count + 1)]
        self._serial += count
        if count == 1:
            stored = [self.ring.push(texts[0], on=on.connection)]
            expected = [model.push_to_all(on.all, texts[0])]
            self.steps["push"] += 1
        else:
            stored = self.ring.push_many(texts, on=on.connection)
            expected = model.push_many_to_all(on.all, texts)
            self.steps["push_many"] += 1
        assert stored == expected, (stored, expected)
        on.pushed += [text for text, n in zip(texts, stored, strict=True) if n is not None]

    def _pop(self, on: OpenTransaction, reader: ReaderModel) -> None:
        tx = on.txs[reader.name]
        if sum(not void for _, void in tx.parked()) > model.MOST_PARKED_READ:
            return  # a pop then reads random ones
        count = self.chance.choice([1, 1, 1, self.chance.randint(2, 12)])
        reader.store.held = reader.ring.held(on=on.connection) if reader.name else None
        popped = reader.ring.take(count if count > 1 else 0, on=on.connection)
        self.steps["pop" if count == 1 else "pop_many"] += 1
        next_in_hand = reader.next_in_hand(count, self.held(reader))
        expected: list[Live] = []
        if count == 1 and not self.in_hand:
            live = finish(model.pop(tx))
            expected = [live] if live else []
        elif count > len(next_in_hand):
            expected = finish(model.pop_many(tx, count - len(next_in_hand)))
        wanted = [
            *((id_, reader.in_hand_rows[id_].payload) for id_ in next_in_hand),
            *((live.first_id, live.payload) for live in expected),
        ]
        assert [(m.id, m.payload) for m in popped] == wanted, (popped, wanted)
        numbers = [*(0 for _ in next_in_hand), *(live.message_id for live in expected)]
        on.popped += [(reader.name, *pair) for pair in zip(popped, numbers, strict=True)]

    def held(self, reader: ReaderModel) -> set[int]:
        """The ids of messages popped by open transactions."""
        return {
            m.id
            for transaction in self.open
            for name, m, _ in transaction.popped
            if name == reader.name
        }

    def end(self, opened: OpenTransaction, how: str) -> None:
        """Commit, roll back, or kill its connection or backend."""
        self.steps[how] += 1
        if how == "prepare":
            opened.prepared = f"{self.ring.queue.name} {self.steps[how]}"
            opened.connection.execute(f"PREPARE TRANSACTION '{opened.prepared}'".encode())
            self.free.append(opened.connection)
            return
        self.open.remove(opened)
        if opened.prepared:
            verb = "COMMIT" if how == "commit" else "ROLLBACK"
            self.ring.session.execute(f"{verb} PREPARED '{opened.prepared}'".encode())
        elif how == "commit":
            opened.connection.execute("COMMIT")
            self.free.append(opened.connection)
        elif how == "roll back":
            opened.connection.execute("ROLLBACK")
            self.free.append(opened.connection)
        else:
            pid = opened.connection.info.backend_pid
            if how == "terminate":
                self.ring.execute("SELECT pg_terminate_backend(%s, 5000)", pid)
            opened.connection.close()
            self._wait_for_end(pid)
        for tx in opened.all:
            if how == "commit":
                tx.commit()
            else:
                tx.roll_back()
        if how == "commit":
            self._account(opened)

    def _account(self, opened: OpenTransaction) -> None:
        for reader in self.all:
            reader.ledger.acknowledged.update(opened.pushed)
        for name, message, number in opened.popped:
            reader = self.readers[name]
            reader.highest = max(reader.highest, number)
            if not self.in_hand:
                reader.ledger.popped[message.payload] += 1
            else:
                reader.in_hand_rows[message.id] = InHand(message.payload, message.attempts)

    def end_all(self) -> None:
        while self.open:
            self.end(self.open[0], self.chance.choice(["commit", "roll back"]))

    def relay(self, wanted: int | None) -> None:
        """Relay both; refused if the live messages do not fit."""
        if model.relay(self.stores, wanted or self.stores[0].size):
            self.steps["resize" if wanted else "relay"] += 1
            self.ring.relay(wanted)
            for reader in self.all:
                reader.highest = 0
        else:
            self.steps["resize refused"] += 1
            with suppress(RefusedError):
                self.ring.relay(wanted)
                raise AssertionError("a resize below the live messages was not refused")

    def complete_one(self, reader: ReaderModel, id_: int) -> None:
        self.steps["complete"] += reader.complete(id_)

    def end_sessions(self) -> None:
        """After the server was down: only prepared transactions are left."""
        for opened in [opened for opened in self.open if not opened.prepared]:
            for tx in opened.all:
                tx.roll_back()
            opened.connection.close()
            self.open.remove(opened)
        for connection in self.free:
            connection.close()
        self.free.clear()

    def close_callers(self) -> None:
        """Close all sessions that have claims."""
        pids = [connection.info.backend_pid for connection in self.free]
        for connection in self.free:
            connection.close()
        self.free.clear()
        self._wait_for_end(*pids)

    def _wait_for_end(self, *pids: int) -> None:
        of = "SELECT FROM pg_stat_activity WHERE pid = ANY(%s)"
        wait_until(lambda: not self.ring.execute(of, list(pids)).fetchall(), "their backends end")

    def waiting(self) -> int:
        """The most parked numbers of any reader."""
        return max(reader.waiting for reader in self.all)

    def assert_equal(self) -> None:
        """Assert that the ring is in the model's state."""
        for reader in self.all:
            reader.assert_equal()

    def read(self) -> None:
        """Set the models to the ring's state, when no transaction is open."""
        for reader in self.all:
            reader.read()

    def close(self) -> None:
        for connection in [*self.free, *(opened.connection for opened in self.open)]:
            connection.close()
        self.ring.close()

    # -- faults

    def try_repairs(self) -> None:
        """Let the doctor diagnose and repair in between, after ending open transactions."""
        raise NotImplementedError

    def step(self, name: str) -> None:
        """One of `STEPS`, or a crash, restart or traffic; then ring and model must agree."""
        if self.waiting() > _MOST_WAITING:
            self.try_repairs()
        getattr(self, name)()
        self.assert_equal()

    def burst(self) -> None:
        """Several committed transactions of one call."""
        for _ in range(self.chance.randint(1, 12)):
            opened = self.begin()
            self.call(opened)
            self.end(opened, "commit")

    def transaction(self) -> None:
        """Several calls, some rolled back to a savepoint; then any end, or none yet."""
        ends = ["commit", "roll back", "roll back", "terminate", "hang up"]
        if len(self.open) < _MOST_OPEN:
            ends += ["leave open", "leave open", "prepare"]
        opened = self.begin()
        for _ in range(self.chance.randint(1, 4)):
            undone = self.chance.random() < 0.15
            undo = [tx.savepoint() for tx in opened.all]
            kept = list(opened.pushed), list(opened.popped)
            opened.connection.execute("SAVEPOINT here")
            self.call(opened)
            if undone:
                self.steps["roll back to savepoint"] += 1
                opened.connection.execute("ROLLBACK TO here")
                for tx_undone in undo:
                    tx_undone()
                opened.pushed, opened.popped = kept
        how = self.chance.choice(ends)
        if how != "leave open":
            self.end(opened, how)

    def end_one(self) -> None:
        """End one that was left open or prepared."""
        if self.open:
            opened = self.chance.choice(self.open)
            ends = ["commit", "commit", "roll back", *(["terminate"] * (not opened.prepared))]
            self.end(opened, self.chance.choice(ends))

    def resize(self) -> None:
        """Relay to a random size, if the live messages fit."""
        self.end_all()
        self.relay(self.chance.choice([None, self.chance.randint(1, 50)]))

    def release(self) -> None:
        """Release all claims by force: they can no longer be completed."""
        if not self.in_hand:
            return
        self.end_all()
        for reader in self.all:
            if any(row.claimed for row in reader.in_hand_rows.values()):
                repair = release_claims(reader.ring.queue, 0.0, "alive")
                carry_out(repair, self.ring.database)
                self.steps["release"] += 1
            for row in reader.in_hand_rows.values():
                row.claimed = False

    def complete(self) -> None:
        """Complete some claims; released ones cannot be."""
        for reader in self.all:
            held = self.held(reader)
            for id_ in list(reader.in_hand_rows):
                if id_ not in held and self.chance.random() < 0.5:
                    self.complete_one(reader, id_)

    def restart(self) -> None:
        """A clean restart skips no number."""
        self.steps["restart"] += 1
        self.server.restart()
        self.end_sessions()

    def crash(self) -> None:
        """kill -9 of the server or of one backend, which makes the whole server recover."""
        victim = self.chance.choice(["server", "backend"])
        self.steps[f"kill -9: {victim}"] += 1
        self._kill(victim)
        for reader in self.all:
            now, store = reader.ring.measure(), reader.store
            self.skipped[reader.name, Side.PUSH].update(range(store.next_push, now.next_push))
            self.skipped[reader.name, Side.POP].update(range(store.next_pop, now.next_pop))
            assert now.next_push <= store.next_push + 33
            assert now.next_pop <= store.next_pop + 33
            store.next_push, store.next_pop = now.next_push, now.next_pop

    def _kill(self, victim: str) -> None:
        if victim == "server":
            crash(self.server)
        else:
            assert kill_backend(self.ring.url, self.chance)
            wait_for_server(self.ring.url)
        self.end_sessions()

    def traffic(self) -> None:
        """Client processes, and one fault."""
        self.end_all()
        self.mixed = True
        if self.chance.random() < 0.7:  # else the ring may be full of orphans
            self.try_repairs()
            self.relay(self.chance.randint(60, 200))
        with clients(self.ring.url, self.chance) as workers:
            extra_client = self.chance.choice([("", PRODUCER), (self.all[0].name, CONSUMER)])
            consumers = [(name, CONSUMER) for name in self.readers]
            for name, calls in (("", PRODUCER), *consumers, extra_client):
                more: dict[str, Any] = {
                    "subscriber": name,
                    "name": f"{name}." if name else "client",
                }
                workers.start(calls, self.ring.queue.name, rolled_back=0.1, **more)
            workers.wait_for_progress(20_000)
            event = self.chance.choice(_EVENTS)
            self.steps[f"traffic: {event}"] += 1
            self._cause(workers, event)
            workers.finish()
            pushes = workers.ledger("client")
            found = {
                reader.name: workers.ledger(f"{reader.name}." * bool(reader.name))
                for reader in self.all
            }
        self._wait_until_idle()
        for reader in self.all:
            self._add_ledgers(reader, pushes, found[reader.name])
        self.read()

    def _cause(self, workers: Clients, event: str) -> None:
        if event == "client":
            workers.any().kill()
        elif event == "terminate":
            self.ring.execute(
                "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity"
                " WHERE xact_start < now() AND pid <> pg_backend_pid() LIMIT 1)"
            )
        elif event == "relay":
            self.ring.try_relay(self.chance)
        else:
            self._kill(event)
        workers.wait_for_progress(5_000)

    def _wait_until_idle(self) -> None:
        """The backends of killed clients have ended."""
        busy = (
            "SELECT FROM pg_stat_activity WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid()"
            " AND datname = current_database() AND backend_type = 'client backend'"
        )
        wait_until(lambda: not self.ring.execute(busy).fetchall(), "all is quiet")

    def _add_ledgers(self, reader: ReaderModel, pushes: Ledger, pops: Ledger) -> None:
        ledger = reader.ledger
        ledger.acknowledged |= pushes.acknowledged
        ledger.pushed_in_doubt += pushes.pushed_in_doubt
        ledger.tries += pushes.tries
        if self.in_hand:  # a popped message stays until it is completed, in doubt or not
            return
        if not self.archives:
            ledger.popped += pops.popped
            ledger.popped_in_doubt += pops.popped_in_doubt
            ledger.unknown_in_doubt += pops.unknown_in_doubt
            return
        # The archive shows which of the pops in doubt were committed.
        archived = Counter(text for (text,) in self.ring.execute("SELECT payload FROM {archive}"))
        known = ledger.popped + pops.popped
        assert not known - archived, "popped, and not in the archive"
        doubt = pops.popped_in_doubt.total() + pops.unknown_in_doubt
        assert (archived - known).total() <= doubt
        ledger.popped = archived
