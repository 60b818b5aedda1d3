"""A ring's traffic with relays or repairs, kills, changing subscribers: the four counts.

`python -m tests.faults.ring_campaign --seeds N --seconds S --subscribers K`; 0: a ring without.

Every transaction of a client inserts a mark into a table, so nothing stays in doubt: it is known
how often each message was pushed, and each subscriber must get it as often.
"""

import argparse
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, field, fields
from typing import Any

import psycopg

from console.actions import maintain, maintenance
from console.actions import subscribe as subscribing
from console.errors import BusyError, ConnectionFailedError, ConsoleError, RefusedError
from console.features.demo.embedded import EmbeddedServer
from tests.faults.harness.clients import CONSUMER, PRODUCER, Clients, clients
from tests.faults.harness.faults import kill_backend
from tests.faults.harness.ledger import Counts, Ledger, is_intact
from tests.faults.harness.ring import Ring, make_ring, wait_for_server
from tests.servers import fresh_database, wait_until

_LATE = "late"
"""Subscribes under traffic, and stays."""
_BRIEF = "brief"
"""Subscribes and unsubscribes repeatedly; has no consumers."""
_PUSHES = "push."
"""The prefix of producers' logs; see `_pops`."""
_STALLED_SECONDS = 0.2
OPTIONS: tuple[Mapping[str, str], ...] = (
    {},
    {"content": "apart"},
    {"archive_at_pop": "on"},
    {"content": "apart", "archive_at_pop": "on"},
    {"in_hand": "on"},
    {"content": "apart", "in_hand": "on"},
)
"""Of a seed's ring, in turn."""


def _pops(subscriber: str) -> str:
    """The prefix of its consumers' logs."""
    return f"pop.{subscriber}."


@dataclass
class _Campaign:
    """One ring and its clients. `first`: subscriber -> the first push that it must receive.

    Those that subscribed from the oldest message may receive earlier ones that still existed. A
    ring without subscribers has one without a name.
    """

    ring: Ring
    clients: Clients
    chance: random.Random
    repair: Callable[[Ring], object] | None
    first: dict[str, int]
    from_oldest: set[str] = field(default_factory=set)
    relays: int = 0
    kills: int = 0

    def start(self, calls: list[str], **more: Any) -> None:
        ring = self.ring.queue
        claims = [ring.name] * (ring.options["in_hand"] == "on")
        self.clients.start(calls, ring.name, rolled_back=0.02, claiming=claims, quiet=True, **more)

    def produce(self) -> None:
        self.start(PRODUCER, count=2, name=_PUSHES)

    def consume(self, subscriber: str) -> None:
        count = self.chance.randint(1, 2)
        self.start(CONSUMER, count=count, name=_pops(subscriber), subscriber=subscriber)

    def join(self, subscriber: str, since: str) -> None:
        """Subscribe under traffic, and stay."""
        number = subscribing.subscribe(self.ring.database, self.ring.queue, subscriber, since)
        if since == "oldest":
            self.from_oldest.add(subscriber)
            number = self.ring.of(subscriber).measure().next_push
        self.first[subscriber] = number
        self.consume(subscriber)
        self.wait_for(lambda: self.clients.progress(_pops(subscriber)) > 0)

    def wait_for(self, enough: Callable[[], bool]) -> None:
        """Wait; repair the ring if rolled back and killed pops have filled it."""
        before, since = self.clients.progress(), time.monotonic()

        def done_or_repaired() -> bool:
            nonlocal before, since
            if enough():
                return True
            if (now := self.clients.progress()) > before:
                before, since = now, time.monotonic()
            elif time.monotonic() - since > _STALLED_SECONDS:
                self.repair_all()
                since = time.monotonic()
            return False

        wait_until(done_or_repaired, "the clients get on")

    def progress(self, more_bytes: int) -> None:
        """Wait until producers and consumers have each logged this many more bytes."""
        logs = _PUSHES, _pops(next(iter(self.first)))
        wanted = [(name, self.clients.progress(name) + more_bytes) for name in logs]
        self.wait_for(lambda: all(self.clients.progress(name) >= least for name, least in wanted))

    def repair_all(self) -> None:
        """Relay, or run the doctor's repairs."""
        if self.repair is not None:
            self.repair(self.ring.of(""))
        else:
            self.relays += self.ring.try_relay(self.chance) is not None

    def kill_consumers(self) -> None:
        """Kill all of one subscriber and start new ones."""
        subscriber = self.chance.choice([*self.first])
        self.clients.kill_all(_pops(subscriber))
        self.consume(subscriber)

    def kill_producers(self) -> None:
        """Kill all producers and start new ones."""
        self.clients.kill_all(_PUSHES)
        self.produce()

    def subscribe_briefly(self) -> None:
        """Add a subscriber without consumers, skip what it is owed, then unsubscribe it."""
        if "" in self.first:
            return
        try:
            subscribing.subscribe(self.ring.database, self.ring.queue, _BRIEF, "oldest")
            for to in ("older=1s", "now"):
                subscribing.skip(self.ring.database, self.now.queue, _BRIEF, to)
            subscribing.unsubscribe(self.ring.database, self.now.queue, _BRIEF)
        except (BusyError, ConnectionFailedError):
            self.end_brief()

    def end_brief(self) -> None:
        """Unsubscribe it after an interruption."""
        try:
            now = self.now.queue
        except RefusedError:
            return
        if any(subscriber.name == _BRIEF for subscriber in now.subscribers):
            subscribing.unsubscribe(self.ring.database, now, _BRIEF)

    @property
    def now(self) -> Ring:
        """The ring with its current subscribers."""
        return self.ring.of(next(iter(self.first)))

    def settle(self) -> Mapping[str, Counts]:
        """Drain the ring; the counts of each subscriber."""
        self.clients.finish()
        self.end_brief()
        self.repair_all()
        if self.repair is None:
            self.relays += 1
            self.ring.relay()
        pushes = self._ledger(_PUSHES)
        counts = {}
        for name in self.first:
            pops = self._ledger(_pops(name))
            received = pops.popped + self.ring.of(name).left()
            counts[name] = self._counts(name, pushes, received, pushes.marked + pops.marked)
        self._assert_empty(Counter(text for text, _ in pushes.numbers))
        return counts

    def _ledger(self, name: str) -> Ledger:
        ledger = self.clients.ledger(name)
        assert not any((ledger.pushed_in_doubt, ledger.popped_in_doubt, ledger.unknown_in_doubt))
        return ledger

    def _counts(self, name: str, pushes: Ledger, received: Counter[str], doubt: int) -> Counts:
        damaged = [text for text in received if not is_intact(text)]
        assert not damaged, f"messages came damaged: {damaged[:5]!r}"
        first = self.first[name]
        owed = Counter(text for text, number in pushes.numbers if number >= first)
        early = Counter(text for text, number in pushes.numbers if number < first)
        lost = owed - received
        doubled = received - owed - (early if name in self.from_oldest else Counter())
        wrong = {text: (received[text], owed[text], early[text]) for text in lost + doubled}
        assert not wrong, (
            f"{name}: {{text: (received, owed, pushed before it subscribed)}}: {wrong}"
        )
        return Counts(owed.total(), doubt, lost.total(), doubled.total(), self.relays, self.kills)

    def _assert_empty(self, pushed: Counter[str]) -> None:
        """No message or content; each is in the archive once, as popped by all."""
        if self.repair is None:  # else there may be holes, at which a sweep stops
            self.ring.relay()
        maintained = maintenance.find(self.ring.database, self.now.queue)
        maintain.maintain(self.ring.database, maintained)
        after = self.now.measure()
        assert after.live == 0, after
        assert self.repair is not None or after.parked == 0, after
        if self.repair is not None:
            findings, _ = self.ring.of("").examine()
            assert not findings, [finding.summary for finding in findings]
            return
        assert self.ring.contents() == {}
        if self.ring.queue.options["archive_at_pop"] == "on":
            query = self.ring.sql("SELECT payload FROM {archive} WHERE reason = 'pop'")
            archived = Counter(text for (text,) in self.ring.session.execute(query))
            assert archived == pushed, (archived - pushed, pushed - archived)


def campaign(
    server: EmbeddedServer,
    seed: int,
    seconds: float,
    subscribers: int,
    repair: Callable[[Ring], object] | None = None,
    **options: str,
) -> Mapping[str, Counts]:
    """Run producers, consumers, relays and kills; the counts of each subscriber.

    `repair`: run instead of relays; must recover as much.
    """
    chance = random.Random(seed)
    names = [f"s{number}" for number in range(subscribers)] or [""]
    # A crash skips at most 33 numbers; more than a ring's size would need a relay.
    size = chance.randint(20 if repair is None else 64, 400)
    with fresh_database(server.url) as url:
        chosen = ",".join(names) or "none"
        ring = make_ring(url, size=size, max_bytes=300, subscribers=chosen, **options)
        try:
            with clients(url, chance, marked=True) as workers:
                work = _Campaign(ring, workers, chance, repair, dict.fromkeys(names, 1))
                work.produce()
                for name in names:
                    work.consume(name)
                work.progress(5_000)
                kills: list[Callable[[], object]] = [
                    lambda: kill_backend(url, chance),
                    work.kill_consumers,
                    work.kill_producers,
                    server.kill,
                ]
                chance.shuffle(kills)
                for number, kill in enumerate(kills):
                    until = time.monotonic() + seconds / len(kills) * chance.uniform(0.2, 1)
                    while True:
                        work.repair_all()
                        work.subscribe_briefly()
                        work.progress(1_000)
                        if time.monotonic() > until:
                            break
                    if number == 1 and subscribers:
                        work.join(_LATE, chance.choice(subscribing.FROM))
                    kill()
                    work.kills += 1
                    if not server.running:
                        server.restart()
                    wait_for_server(url)
                    work.progress(2_000)
                return work.settle()
        finally:
            ring.close()


def main() -> None:
    """Print a table, a line per subscriber; exit 1 if a seed failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0, help="of traffic, for each seed")
    parser.add_argument("--subscribers", type=int, default=2)
    parser.add_argument("--repair", choices=("relay", "doctor"), default="relay")
    chosen = parser.parse_args()
    names = [column.name.replace("_", " ") for column in fields(Counts)]
    repair = Ring.try_repairs if chosen.repair == "doctor" else None
    total, failed = [0] * len(names), []
    print("seed who  ", *(f"{name:>12}" for name in names))
    with EmbeddedServer.start() as server:
        for seed in range(chosen.first_seed, chosen.first_seed + chosen.seeds):
            options = OPTIONS[seed % len(OPTIONS)]
            try:
                results = campaign(
                    server, seed, chosen.seconds, chosen.subscribers, repair, **options
                )
            except (AssertionError, ConsoleError, psycopg.Error):
                failed.append(seed)
                print(f"seed {seed} failed:\n{traceback.format_exc()}", flush=True)
                wait_for_server(server.url)
                continue
            for subscriber, counts in results.items():
                total = [sum(pair) for pair in zip(total, astuple(counts), strict=True)]
                shown = (f"{count:12,}" for count in astuple(counts))
                print(f"{seed:4} {subscriber:5}", *shown, flush=True)
    print(" all      ", *(f"{count:12,}" for count in total))
    if failed:
        sys.exit(f"failed: {failed}")


if __name__ == "__main__":
    main()
