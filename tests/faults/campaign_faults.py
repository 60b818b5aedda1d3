"""Faults of a campaign: of the server, the network, sessions, processes; one at a time."""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
from psycopg.sql import SQL, Composed, Identifier

from tests.faults.harness.faults import backends, kill_backend
from tests.servers import connect

if TYPE_CHECKING:
    from tests.faults.campaign import Campaign

LONG_SECONDS = 75.0
"""The network is silent for longer than every time-out of the console."""
_TABLES = {"split": "_meta"}


def terminate(on: "Campaign") -> None:
    """pg_terminate_backend of up to three of its sessions."""
    with suppress(psycopg.Error), connect(on.url) as admin:
        pids = backends(on.url)
        for pid in on.dice.sample(pids, min(len(pids), on.dice.randint(1, 3))):
            admin.execute("SELECT pg_terminate_backend(%s)", [pid])


def kill_one_backend(on: "Campaign") -> None:
    """SIGKILL one session: the whole server crashes and recovers."""
    with suppress(psycopg.Error):
        kill_backend(on.url, on.dice)


def lock(on: "Campaign") -> None:
    """Lock a queue's table, as a migration does."""
    queue = on.dice.choice(list(on.queues.values()))
    mode = on.dice.choice(["ACCESS EXCLUSIVE", "SHARE ROW EXCLUSIVE", "EXCLUSIVE"])
    table = Identifier(queue.schema, f"{queue.name}{_TABLES.get(queue.design.name, '')}")
    _hold(on, SQL("LOCK TABLE {} IN {} MODE").format(table, SQL(mode)))


def pop_and_wait(on: "Campaign") -> None:
    """A consumer pops and does not commit."""
    queue = on.dice.choice(list(on.queues.values()))
    _hold(on, SQL("SELECT * FROM {}(3)").format(Identifier(f"{queue.name}_pop_many")))


def _hold(on: "Campaign", statement: Composed) -> None:
    with suppress(psycopg.Error):
        holder = connect(on.url)
        on.held.append(holder)
        holder.execute("SET lock_timeout = '2s'")
        holder.execute("BEGIN")
        holder.execute(statement)


def release_locks(on: "Campaign") -> None:
    """Roll back the open transactions."""
    for holder in on.held:
        with suppress(psycopg.Error):
            holder.rollback()
        holder.close()
    on.held.clear()


def end_all(on: "Campaign") -> None:
    """End all faults of server, network and clients."""
    on.resume_clients()
    on.proxy.let_in()
    on.proxy.thaw()
    on.server.resume()
    restart(on)
    release_locks(on)


def restart(on: "Campaign") -> None:
    """Start the server if it is down."""
    if not on.server.running:
        on.server.restart()


@dataclass(frozen=True)
class Fault:
    """How it begins, and how it ends unless it is momentary."""

    begin: Callable[["Campaign"], object]
    end: Callable[["Campaign"], object] = lambda _: None
    longest: float = 0.0
    """Seconds."""
    rate: int = 2
    breaks: bool = True
    """Whether connections may be lost."""


FAULTS: Mapping[str, Fault] = {
    "kill -9 server": Fault(lambda on: on.server.kill(), restart, 4.0, 3),
    "kill -9 backend": Fault(kill_one_backend),
    "restart server": Fault(lambda on: on.server.restart()),
    "pause server": Fault(lambda on: on.server.pause(), lambda on: on.server.resume(), 6.0),
    "end sessions": Fault(terminate, rate=4),
    "cut": Fault(lambda on: on.proxy.cut(), rate=4),
    "refuse": Fault(lambda on: on.proxy.refuse(), lambda on: on.proxy.let_in(), 5.0),
    "stall": Fault(lambda on: on.proxy.freeze(), lambda on: on.proxy.thaw(), 8.0, 3),
    "lock": Fault(lock, release_locks, 8.0, 3, breaks=False),
    "open pop": Fault(pop_and_wait, release_locks, 8.0, breaks=False),
    "kill -9 client": Fault(lambda on: on.kill_client(), rate=6, breaks=False),
    "pause client": Fault(
        lambda on: on.pause_client(), lambda on: on.resume_clients(), 60.0, 4, breaks=False
    ),
    "kill -9 operator": Fault(lambda on: on.kill_operator(), rate=6, breaks=False),
    "kill -9 service": Fault(lambda on: on.kill_service(), breaks=False),
    "kill -9 archive": Fault(lambda on: on.kill_archive(), rate=3, breaks=False),
    "long stall": Fault(
        lambda on: on.proxy.freeze(), lambda on: on.proxy.thaw(), LONG_SECONDS, rate=0
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
    rates = [fault.rate for fault in FAULTS.values()]
    planned: list[Planned] = []
    at = chance.uniform(0.2, 1.0) * pause
    while at < seconds:
        name = first.pop() if first else chance.choices(list(FAULTS), rates)[0]
        stalled = any(one.name == "long stall" for one in planned)
        if seconds > 8 * LONG_SECONDS and at > seconds / 4 and not stalled:
            name = "long stall"
        longest = min(FAULTS[name].longest, seconds / 8)
        lasts = longest if name == "long stall" else chance.uniform(0.1, 1) * longest
        planned.append(Planned(at, name, lasts))
        at += lasts + chance.uniform(0.2, 1.0) * pause
    return planned
