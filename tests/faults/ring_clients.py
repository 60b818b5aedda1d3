"""Client processes of rings, and the counts of what they pushed and popped."""

import json
import os
import random
import signal
import subprocess
import tempfile
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from psycopg.conninfo import make_conninfo

from console.actions.relay import Relaid
from console.errors import ConnectionFailedError, RefusedError, UsageError
from tests.faults import queue_client
from tests.faults.queue_client import Counts, Ledger
from tests.faults.ring_tools import Popped, Ring
from tests.servers import PATIENCE_SECONDS, connect, kill_session, wait_until
from tests.tools.warm import Forked

_LARGEST = 400
PRODUCER, CONSUMER = ["push", "push_many"], ["pop", "pop_many"]


@dataclass
class Clients:
    """The processes of one campaign and their logs."""

    folder: Path
    conninfo: str
    processes: list[Forked] = field(default_factory=list)

    @property
    def stop_file(self) -> Path:
        """When it exists, clients end."""
        return self.folder / "stop"

    def start(
        self,
        calls: Sequence[str],
        *,
        rings: Sequence[str],
        seed: int,
        name: str = "",
        **more: object,
    ) -> Forked:
        name = f"{name or 'client'}{len(self.processes)}"
        task = {
            "name": name,
            "conninfo": self.conninfo,
            "log": str(self.folder / f"{name}.log"),
            "stop": str(self.stop_file),
            "seed": seed,
            "rings": list(rings),
            "calls": list(calls),
            **more,
        }
        process = Forked(
            [],
            os.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=2,
            module=queue_client.__name__,
        )
        self.processes.append(process)
        assert process.stdin is not None
        with process.stdin:
            process.stdin.write(json.dumps(task).encode())
        return process

    def kill_one(self, chance: random.Random) -> None:
        """SIGKILL one of them; its current call is in doubt."""
        chance.choice(self.processes).kill()

    def finish(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Let all finish their transactions."""
        self.stop_file.touch()
        for process in self.processes:
            status = process.wait(seconds)
            assert status in {0, -signal.SIGKILL}, f"a client ended with {status}"

    def ledger(self, name: str = "", marks: Container[str] = ()) -> Ledger:
        """The ledger of the clients whose name starts with `name`."""
        return Ledger.read(sorted(self.folder.glob(f"{name}*.log")), marks)

    def kill_all(self, name: str) -> None:
        """SIGKILL those whose name starts with `name`."""
        for log in list(self.folder.glob(f"{name}*.log")):
            process = self.processes[int(log.stem.removeprefix(name))]
            process.kill()
            process.wait()

    def progress(self, name: str = "") -> int:
        """Bytes logged by those whose name starts with `name`: grows while calls succeed."""
        return sum(log.stat().st_size for log in self.folder.glob(f"{name}*.log"))


@contextmanager
def clients(url: str, options: str = "") -> Iterator[Clients]:
    """Clients, which are killed after the block; `options`: libpq's."""
    with connect(url) as connection:
        info = connection.info
        dsn = make_conninfo(info.dsn, password=info.password, options=options)
    with tempfile.TemporaryDirectory() as folder:
        started = Clients(Path(folder), dsn)
        try:
            yield started
        finally:
            for process in started.processes:
                process.kill()
                process.wait()


def traffic(
    workers: Clients, ring: Ring, chance: random.Random, *, producers: int = 4, consumers: int = 4
) -> None:
    """Start producers and consumers: transactions of up to 6 calls, 2 % rolled back."""
    for calls, how_many in ((PRODUCER, producers), (CONSUMER, consumers)):
        for _ in range(how_many):
            seed = chance.randrange(2**32)
            workers.start(calls, rings=[ring.queue.name], seed=seed, rolled_back=0.02)
    wait_for_progress(workers, 20_000)


def wait_for_progress(workers: Clients, more_bytes: int) -> None:
    """Wait until this many more bytes are logged, however long, while there is any progress."""

    def more_than(logged: int) -> Callable[[], bool]:
        return lambda: workers.progress() > logged

    now = workers.progress()
    wanted = now + more_bytes
    while now < wanted:
        wait_until(more_than(now), "the clients get on")
        now = workers.progress()


def try_relay(ring: Ring, chance: random.Random) -> Relaid | None:
    """Relay to a random size; None if it was refused or interrupted."""
    with suppress(RefusedError, UsageError, ConnectionFailedError):
        return ring.relay(chance.randint(1, _LARGEST))
    return None


def backends(url: str) -> list[int]:
    """The other sessions on the database."""
    query = (
        "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"
        " AND datname = current_database() AND pid <> pg_backend_pid() ORDER BY pid"
    )
    with connect(url) as connection:
        return [pid for (pid,) in connection.execute(query)]


def kill_backend(url: str, chance: random.Random) -> bool:
    """SIGKILL one of the sessions on the database: the server crashes and recovers."""
    pids = backends(url)
    return bool(pids) and kill_session(url, chance.choice(pids))


def settle(workers: Clients, *rings: Ring) -> Counts:
    """Stop the clients, recover all orphans with relays, drain; the counts."""
    workers.finish()
    drained = [payload for ring in rings for payload in _relay_and_drain(ring)]
    ledger = workers.ledger()
    assert not ledger.errors, ledger.errors[:5]
    return ledger.settle(drained)


def _relay_and_drain(ring: Ring) -> list[str]:
    """All live messages; the ring must be empty afterwards."""
    ring.relay()
    drained = [message.payload for message in (*_pop_all_parked(ring), *ring.drain())]
    after = ring.measure()
    assert (after.live, after.gap, after.parked, after.voids) == (0, 0, 0, 0), after
    with ring.connect() as connection:
        assert ring.contents(connection) == {}
    return drained


def _pop_all_parked(ring: Ring) -> list[Popped]:
    """Park all live messages among holes, in a churned table, and pop each of them."""
    poppeds: list[Popped] = []
    now = ring.measure()
    numbers = [*range(now.next_pop, now.next_push), *range(-300, 0)]
    random.Random(now.base).shuffle(numbers)
    with ring.connect() as connection:
        if now.gap > 0:
            connection.execute(ring.sql("SELECT setval({pop_name}, %s)"), [now.next_push - 1])
        park = "INSERT INTO {parked} SELECT unnest(%s::bigint[]), false, now()"
        connection.execute(ring.sql(park), [numbers])
        most = ring.most_turns(connection)
        for _ in range(most):
            poppeds += ring.pop_many(connection, 1000)
            if len(poppeds) == now.live:
                break
        assert len(poppeds) == now.live, f"{now.live - len(poppeds)} had no turn in {most} calls"
        connection.execute(ring.sql("DELETE FROM {parked} WHERE number < 0"))
    return poppeds
