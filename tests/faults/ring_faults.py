"""Faults on a ring and its model: transactions with all ends, crashes, traffic, relays."""

from collections import Counter

from console.doctor.finding import Diagnosis
from console.doctor.number_proof import Side
from console.doctor.repairs import release_claims
from console.features.demo.embedded import EmbeddedServer
from tests.faults import ring_model as model
from tests.faults.modelled_ring import ModelledRing, ReaderModel
from tests.faults.queue_client import Ledger
from tests.faults.ring_clients import (
    CONSUMER,
    PRODUCER,
    Clients,
    clients,
    kill_backend,
    try_relay,
    wait_for_progress,
)
from tests.faults.ring_tools import wait_for_server
from tests.servers import wait_until
from tests.tools.repairs import carry_out

_MOST_WAITING = model.MOST_PARKED_READ - 16
_MOST_OPEN = 2
_EVENTS = ["client", "client", "terminate", "backend", "server", "relay"]


class RingFaults(ModelledRing):
    """Applies faults to a ring and its model."""

    def __init__(self, server: EmbeddedServer, url: str, seed: int, subscribers: int = 0) -> None:
        super().__init__(url, seed, subscribers)
        self.server = server
        self.skipped: dict[tuple[str, Side], set[int]] = {
            (reader.name, side): set() for reader in self.all for side in Side
        }
        """Numbers lost in crashes."""
        self.mixed = False
        """Client processes ran, so it is not known which of them lost a number."""

    def repair_all(self) -> Diagnosis:
        """Let the doctor repair all, when no transaction is open."""
        raise NotImplementedError

    def step(self, name: str) -> None:
        """One of `STEPS`, or a crash, restart or traffic; then ring and model must agree."""
        if self.waiting() > _MOST_WAITING:
            self.end_all()
            self.repair_all()
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
            self.server.kill()
            self.server.restart()
        else:
            assert kill_backend(self.ring.url, self.chance)
            wait_for_server(self.ring.url)
        self.end_sessions()

    def traffic(self) -> None:
        """Client processes, and one fault."""
        self.end_all()
        self.mixed = True
        if self.chance.random() < 0.7:  # else the ring may be full of orphans
            self.repair_all()
            self.relay(self.chance.randint(60, 200))
        with clients(self.ring.url) as workers:
            extra_client = self.chance.choice([("", PRODUCER), (self.all[0].name, CONSUMER)])
            for name, calls in (
                ("", PRODUCER),
                *((n, CONSUMER) for n in self.readers),
                extra_client,
            ):
                seed = self.chance.randrange(2**32)
                more = {"subscriber": name, "name": name and f"{name}."}
                workers.start(
                    calls, rings=[self.ring.queue.name], seed=seed, rolled_back=0.1, **more
                )
            wait_for_progress(workers, 20_000)
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
            workers.kill_one(self.chance)
        elif event == "terminate":
            others = "SELECT pid FROM pg_stat_activity WHERE xact_start < now() AND pid <> %s"
            for (pid,) in self.admin.execute(others, [self.admin.info.backend_pid]).fetchall()[:1]:
                self.admin.execute("SELECT pg_terminate_backend(%s)", [pid])
        elif event == "relay":
            try_relay(self.ring, self.chance)
        else:
            self._kill(event)
        wait_for_progress(workers, 5_000)

    def _wait_until_idle(self) -> None:
        """The backends of killed clients have ended."""
        busy = "SELECT FROM pg_stat_activity WHERE xact_start IS NOT NULL AND pid <> %s"
        busy += " AND datname = current_database() AND backend_type = 'client backend'"
        own = [self.admin.info.backend_pid]
        wait_until(lambda: not self.admin.execute(busy.encode(), own).fetchall(), "all is quiet")

    def _add_ledgers(self, reader: ReaderModel, pushes: Ledger, pops: Ledger) -> None:
        ledger = reader.ledger
        assert not pushes.errors + pops.errors, (pushes.errors + pops.errors)[:5]
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
        rows = self.admin.execute(self.ring.sql("SELECT payload FROM {archive}")).fetchall()
        archived = Counter(text for (text,) in rows)
        known = ledger.popped + pops.popped
        assert not known - archived, "popped, and not in the archive"
        doubt = pops.popped_in_doubt.total() + pops.unknown_in_doubt
        assert (archived - known).total() <= doubt
        ledger.popped = archived
