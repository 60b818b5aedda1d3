"""Faults of a campaign: of the server, the network, sessions, processes; one at a time."""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import psycopg
from psycopg.sql import SQL, Composed, Identifier

from console.catalog import Queue
from console.features.demo.embedded import EmbeddedServer
from tests.faults.harness.faults import backends, kill_backend
from tests.servers import connect
from tests.servers.proxy import Proxy

LONG_SECONDS = 75.0
"""The network is silent for longer than every time-out of the console."""
_TABLES = {"split": "_meta"}


class Processes(Protocol):
    def kill_client(self) -> None: ...
    def kill_operator(self) -> None: ...
    def kill_service(self) -> None: ...
    def kill_archive(self) -> None: ...
    def pause_client(self) -> Callable[[], None]: ...


@dataclass
class Target:
    """Everything that faults can affect."""

    server: EmbeddedServer
    proxy: Proxy
    url: str
    """A direct connection, not through the proxy."""
    queues: Mapping[str, Queue]
    processes: Processes
    chance: random.Random
    held: list[psycopg.Connection] = field(default_factory=list)
    paused: list[Callable[[], None]] = field(default_factory=list)
    """What lets each paused client go on."""

    def restart(self) -> None:
        """Start the server if it is down."""
        if not self.server.running:
            self.server.restart()

    def terminate(self) -> None:
        """pg_terminate_backend of up to three of its sessions."""
        with suppress(psycopg.Error), connect(self.url) as admin:
            pids = backends(self.url)
            for pid in self.chance.sample(pids, min(len(pids), self.chance.randint(1, 3))):
                admin.execute("SELECT pg_terminate_backend(%s)", [pid])

    def kill_backend(self) -> None:
        """SIGKILL one session: the whole server crashes and recovers."""
        with suppress(psycopg.Error):
            kill_backend(self.url, self.chance)

    def lock(self) -> None:
        """Lock a queue's table, as a migration does."""
        queue = self.chance.choice(list(self.queues.values()))
        mode = self.chance.choice(["ACCESS EXCLUSIVE", "SHARE ROW EXCLUSIVE", "EXCLUSIVE"])
        table = Identifier(queue.schema, f"{queue.name}{_TABLES.get(queue.design.name, '')}")
        self._hold(SQL("LOCK TABLE {} IN {} MODE").format(table, SQL(mode)))

    def pop_and_wait(self) -> None:
        """A consumer pops and does not commit."""
        queue = self.chance.choice(list(self.queues.values()))
        self._hold(SQL("SELECT * FROM {}(3)").format(Identifier(f"{queue.name}_pop_many")))

    def _hold(self, statement: Composed) -> None:
        with suppress(psycopg.Error):
            holder = connect(self.url)
            self.held.append(holder)
            holder.execute("SET lock_timeout = '2s'")
            holder.execute("BEGIN")
            holder.execute(statement)

    def release_locks(self) -> None:
        """Roll back the open transactions."""
        for holder in self.held:
            with suppress(psycopg.Error):
                holder.rollback()
            holder.close()
        self.held.clear()

    def pause_client(self) -> None:
        self.paused.append(self.processes.pause_client())

    def resume_clients(self) -> None:
        while self.paused:
            self.paused.pop()()

    def end_all_faults(self) -> None:
        """End all faults of server, network and clients."""
        self.resume_clients()
        self.proxy.let_in()
        self.proxy.thaw()
        self.server.resume()
        self.restart()
        self.release_locks()


@dataclass(frozen=True)
class Fault:
    """How it begins, and how it ends unless it is momentary."""

    begin: Callable[[Target], object]
    end: Callable[[Target], object] = lambda _: None
    longest: float = 0.0
    """Seconds."""
    rate: int = 2
    breaks: bool = True
    """Whether connections may be lost."""


FAULTS: Mapping[str, Fault] = {
    "kill -9 server": Fault(lambda target: target.server.kill(), Target.restart, 4.0, 3),
    "kill -9 backend": Fault(Target.kill_backend, rate=2),
    "restart server": Fault(lambda target: target.server.restart(), rate=2),
    "pause server": Fault(
        lambda target: target.server.pause(), lambda target: target.server.resume(), 6.0, 2
    ),
    "end sessions": Fault(Target.terminate, rate=4),
    "cut": Fault(lambda target: target.proxy.cut(), rate=4),
    "refuse": Fault(
        lambda target: target.proxy.refuse(), lambda target: target.proxy.let_in(), 5.0, 2
    ),
    "stall": Fault(
        lambda target: target.proxy.freeze(), lambda target: target.proxy.thaw(), 8.0, 3
    ),
    "lock": Fault(Target.lock, Target.release_locks, 8.0, 3, breaks=False),
    "open pop": Fault(Target.pop_and_wait, Target.release_locks, 8.0, 2, breaks=False),
    "kill -9 client": Fault(lambda target: target.processes.kill_client(), rate=6, breaks=False),
    "pause client": Fault(Target.pause_client, Target.resume_clients, 60.0, rate=4, breaks=False),
    "kill -9 operator": Fault(
        lambda target: target.processes.kill_operator(), rate=6, breaks=False
    ),
    "kill -9 service": Fault(lambda target: target.processes.kill_service(), rate=2, breaks=False),
    "kill -9 archive": Fault(lambda target: target.processes.kill_archive(), rate=3, breaks=False),
    "long stall": Fault(
        lambda target: target.proxy.freeze(),
        lambda target: target.proxy.thaw(),
        LONG_SECONDS,
        rate=0,
    ),
}


ALWAYS = ("kill -9 server", "end sessions", "kill -9 client", "cut", "kill -9 operator")
"""Faults of every campaign, however short."""


@dataclass(frozen=True)
class Planned:
    at: float
    """Seconds after the start."""
    name: str
    lasts: float


def plan(chance: random.Random, seconds: float, pause: float) -> Sequence[Planned]:
    """One fault at a time, `pause` seconds between two at most; first ALWAYS in some order.

    In a long campaign one stall lasts longer than all time-outs.
    """
    first = chance.sample(ALWAYS, len(ALWAYS))
    planneds: list[Planned] = []
    at = chance.uniform(0.2, 1.0) * pause
    while at < seconds:
        name = first.pop() if first else _random_fault(chance)
        if (
            seconds > 8 * LONG_SECONDS
            and at > seconds / 4
            and not _contains(planneds, "long stall")
        ):
            name = "long stall"
        longest = min(FAULTS[name].longest, seconds / 8)
        lasts = longest if name == "long stall" else chance.uniform(0.1, 1) * longest
        planneds.append(Planned(at, name, lasts))
        at += lasts + chance.uniform(0.2, 1.0) * pause
    return planneds


def _random_fault(chance: random.Random) -> str:
    return chance.choices(list(FAULTS), [fault.rate for fault in FAULTS.values()])[0]


def _contains(planneds: Sequence[Planned], name: str) -> bool:
    return any(planned.name == name for planned in planneds)
