"""The ring's campaign with subscribers: each one's four counts, and who comes and goes meanwhile.

`python -m tests.faults.subscriber_campaign --seeds N --seconds S --subscribers K`.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, field, fields, replace

from console.actions import subscribe as subscribing
from console.catalog import find
from console.engines.embedded import EmbeddedServer
from console.errors import BusyError, ConnectionFailedError, ConsoleError, RefusedError
from tests.faults.ring_campaign import (
    CONSUMER,
    PRODUCER,
    Clients,
    clients,
    kill_backend,
    try_relay,
    wait_for_progress,
)
from tests.faults.ring_ledger import Counts, Ledger
from tests.faults.ring_tools import Ring, make_ring, wait_for_server

_LATE = "late"
"""Subscribes under traffic, and stays."""
_BRIEF = "brief"
"""Subscribes and unsubscribes, again and again; nobody pops for it."""


@dataclass
class _Campaign:
    """One ring with its clients. `first`: subscriber -> from which push on it gets every message.

    One that began at the oldest message may get earlier ones too: those that still lay there.
    """

    ring: Ring
    of: Clients
    chance: random.Random
    first: dict[str, int]
    from_oldest: set[str] = field(default_factory=set)

    def join(self, subscriber: str, since: str) -> None:
        """Subscribe under traffic, and stay."""
        number = subscribing.subscribe(self.ring.database, self.ring.queue, subscriber, since)
        if since == "oldest":
            self.from_oldest.add(subscriber)
            number = self.ring.of(subscriber).measure().next_push
        self.first[subscriber] = number
        self.consume(subscriber, 2)

    def consume(self, subscriber: str, how_many: int) -> None:
        """Start consumers of the subscriber, whose logs begin with its name."""
        for _ in range(how_many):
            self.of.start(
                CONSUMER,
                rings=[self.ring.queue.name],
                seed=self.chance.randrange(2**32),
                name=f"{subscriber}.",
                rolled_back=0.02,
                subscriber=subscriber,
            )

    def kill_consumers(self, subscriber: str) -> None:
        """SIGKILL all that pop for the subscriber, and start others."""
        name = f"{subscriber}."
        killed = [log.stem for log in self.of.folder.glob(f"{name}*.log")]
        for one in killed:
            process = self.of.processes[int(one.rpartition(".")[2])]
            process.kill()
            process.wait()
        self.consume(subscriber, 2)

    def come_and_go(self) -> None:
        """A subscriber without consumers: what it owes is skipped, then it is let go."""
        try:
            subscribing.subscribe(self.ring.database, self.ring.queue, _BRIEF, "oldest")
            for to in ("older=1s", "now"):
                subscribing.skip(self.ring.database, self.now.queue, _BRIEF, to)
            subscribing.unsubscribe(self.ring.database, self.now.queue, _BRIEF)
        except (BusyError, ConnectionFailedError):
            pass

    @property
    def now(self) -> Ring:
        """With the subscribers that it has by now."""
        return self.ring.of(next(iter(self.first)))

    @property
    def whole(self) -> Ring:
        """The same, as all have it."""
        with self.ring.database.transaction("read the catalog") as connection:
            queue = find(connection, self.ring.queue.name, self.ring.queue.schema)
        return replace(self.ring, queue=queue)

    def counts(self, subscriber: str, *, relays: int, kills: int) -> Counts:
        """Drain it; what became of every message that it was to get."""
        mine = self.ring.of(subscriber)
        drained = [message.payload for message in mine.drain()]
        logs = [*self.of.folder.glob("push.*.log"), *self.of.folder.glob(f"{subscriber}.*.log")]
        ledger = Ledger.read(sorted(logs))
        assert not ledger.errors, ledger.errors[:5]
        first = self.first[subscriber]
        early = {text for text, number in ledger.numbers.items() if number < first}
        came = {*ledger.popped, *drained} & (early - ledger.doubtful.keys())
        if subscriber not in self.from_oldest:
            assert not came, f"{subscriber} began at {first} and got {sorted(came)[:5]}"
        ledger.acknowledged -= early
        ledger.doubtful.update(early)  # neither owed nor wrong, where they came by a retry
        counts = ledger.settle(drained, relays=relays, kills=kills)
        doubtful = counts.in_doubt - len(early)
        return Counts(counts.acknowledged, doubtful, counts.lost, counts.doubled, relays, kills)


def campaign(
    server: EmbeddedServer,
    seed: int,
    seconds: float,
    subscribers: int,
    repair: Callable[[Ring], object] | None = None,
    **options: str,
) -> Mapping[str, Counts]:
    """Pushers, two consumers a subscriber, relays, kills; of each subscriber the four counts.

    `repair`: what is done in the place of relays, and brings back as much as they do.
    """
    chance = random.Random(seed)
    url = server.create_database(f"subscribers_{seed}_{time.monotonic_ns()}")
    names = [f"s{number}" for number in range(subscribers)]
    size = chance.randint(20, 400)
    ring = make_ring(url, size=size, max_bytes=300, subscribers=",".join(names), **options)
    relays = 0
    try:
        with clients(url) as of:
            work = _Campaign(ring, of, chance, dict.fromkeys(names, 1))
            for _ in range(3):
                seed_of = chance.randrange(2**32)
                of.start(
                    PRODUCER, rings=[ring.queue.name], seed=seed_of, name="push.", rolled_back=0.02
                )
            for name in names:
                work.consume(name, 2)
            wait_for_progress(of, 20_000)
            kills: list[Callable[[], object]] = [
                lambda: kill_backend(ring, chance),
                lambda: work.kill_consumers(chance.choice(names)),
                of.processes[chance.randrange(3)].kill,
                server.kill,
            ]
            for number, kill in enumerate(kills):
                until = time.monotonic() + seconds / len(kills) * chance.uniform(0.2, 1)
                while time.monotonic() < until:
                    if repair is not None:
                        repair(work.whole)
                        continue
                    relays += try_relay(ring, chance) is not None
                    work.come_and_go()
                    wait_for_progress(of, 2_000)
                if number == 1:
                    work.join(_LATE, chance.choice(subscribing.FROM))
                kill()
                if not server.running:
                    server.restart()
                wait_for_server(url)
                wait_for_progress(of, 5_000)
            of.finish()
            _end_brief(work)
            if repair is None:
                ring.relay()
            else:
                repair(work.whole)
            told = {name: work.counts(name, relays=relays, kills=len(kills)) for name in work.first}
            after = work.now.measure()
            assert after.live == 0, after
            assert repair is not None or after.parked == 0, after
            return told
    finally:
        ring.close()


def _end_brief(work: _Campaign) -> None:
    """Where a kill came between."""
    try:
        now = work.now.queue
    except RefusedError:
        return
    if any(one.name == _BRIEF for one in now.subscribers):
        subscribing.unsubscribe(work.ring.database, now, _BRIEF)


def main() -> None:
    """Print a table, a subscriber of a campaign a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of traffic, for each seed")
    parser.add_argument("--subscribers", type=int, default=2)
    parser.add_argument("--content", default="slot", choices=("slot", "apart"))
    parser.add_argument("--archive-at-pop", default="off", choices=("off", "on"))
    chosen = parser.parse_args()
    options = {"content": chosen.content, "archive_at_pop": chosen.archive_at_pop}
    names = [column.name.replace("_", " ") for column in fields(Counts)]
    print("seed who  ", *(f"{name:>12}" for name in names))
    total = [0] * len(names)
    with EmbeddedServer.start() as server:
        for seed in range(1, chosen.seeds + 1):
            told = campaign(server, seed, chosen.seconds, chosen.subscribers, **options)
            for who, counts in told.items():
                total = [sum(pair) for pair in zip(total, astuple(counts), strict=True)]
                shown = (f"{count:12,}" for count in astuple(counts))
                print(f"{seed:4} {who:5}", *shown, flush=True)
    print(" all      ", *(f"{count:12,}" for count in total))


if __name__ == "__main__":
    try:
        main()
    except ConsoleError as error:
        sys.exit(str(error))
