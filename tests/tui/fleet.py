"""A fleet: databases with the same queues, each behind a proxy of its own, which is its host.

How fast the console is on it: `python -m tests.tui.speed --fleet 60 20`.
"""

import itertools
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from psycopg.sql import SQL, Identifier, Literal
from sqlalchemy import make_url

from console.actions.install import install
from console.catalog import Queue, installed_queue
from console.designs import design
from console.engines import open_database
from console.features.demo.embedded import EmbeddedServer
from tests.cli.calls import COMMAND
from tests.contract.traffic import at_work
from tests.servers import connect
from tests.servers.proxy import Proxy
from tests.tui.speed import (
    LINES,
    KeyLatency,
    cpu_seconds,
    memory_mb,
    p95,
    press_keys,
    quit_console,
    share,
    spawned,
)

NAME = "shops"
_PASSWORD = uuid4().hex
_DESIGNS = ("claim", "fifo", "ring", "status", "pending", "split", "heap", "stack", "naive")
_PATTERN = "pattern"
_SETTINGS = {"fsync": "off", "max_connections": "300", "shared_buffers": "64MB"}


@dataclass(frozen=True)
class Fleet:
    """Its hosts in the order of the configuration."""

    proxies: Sequence[Proxy]
    urls: Sequence[str]
    """Without the proxies."""
    queues: Sequence[Queue]
    """The same in each database."""
    environment: dict[str, str]
    """Configures it for a console, as the fleet NAME."""

    def title(self, index: int) -> str:
        """The host's label in its group."""
        return f"127.0.0.1:{self.proxies[index].port}"

    def traffic(self) -> AbstractContextManager[object]:
        """Push into each queue every 5 s."""
        hosts = itertools.cycle(range(len(self.urls)))
        return at_work(map(self.push, hosts), pause_seconds=5.0 / len(self.urls))

    def push(self, index: int) -> None:
        """Push a message into each queue of a host; pop one from each ring first."""
        with connect(self.urls[index]) as connection:
            for queue in self.queues:
                if queue.design.name == "ring":
                    pop = SQL("SELECT FROM {}()").format(Identifier("public", f"{queue.name}_pop"))
                    connection.execute(pop)
                push = SQL("SELECT {}({})").format(
                    Identifier("public", f"{queue.name}_push"), Literal("x")
                )
                connection.execute(push)


@contextmanager
def fleet_on(servers: Sequence[str], folder: Path, hosts: int, queues: int) -> Iterator[Fleet]:
    """`hosts` databases with `queues` queues each, distributed over the servers (URLs)."""
    made = [
        installed_queue(
            "public", f"q{number:02}", chosen, chosen.complete_options(options, "postgresql")
        )
        for number in range(queues)
        for chosen in [design(_DESIGNS[number % len(_DESIGNS)], "postgresql")]
        for options in [{"size": "50"} if chosen.name == "ring" else {}]
    ]
    with ExitStack() as opened:
        proxies, urls = [], []
        for number, server in enumerate(servers):
            own = [opened.enter_context(Proxy(server)) for _ in range(number, hosts, len(servers))]
            urls += _databases(server, made, [f"127.0.0.1:{one.port}" for one in own])
            proxies += own
        yield Fleet(proxies, urls, made, _configured(folder, proxies))


def _databases(server: str, queues: Sequence[Queue], names: Sequence[str]) -> list[str]:
    """Copies of one database, each named after its host."""
    at = make_url(server).set(drivername="postgresql+psycopg")
    with connect(server) as connection:
        role = SQL("CREATE ROLE {} SUPERUSER LOGIN PASSWORD {}")
        connection.execute(role.format(Identifier(NAME), Literal(_PASSWORD)))
        connection.execute(SQL("CREATE DATABASE {}").format(Identifier(_PATTERN)))
        pattern = open_database(at.set(database=_PATTERN).render_as_string(hide_password=False))
        for queue in queues:
            install(pattern, queue)
        pattern.close()
        for name in names:
            copy = SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy")
            connection.execute(copy.format(Identifier(name), Identifier(_PATTERN)))
    return [at.set(database=name).render_as_string(hide_password=False) for name in names]


def _configured(folder: Path, proxies: Sequence[Proxy]) -> dict[str, str]:
    file = folder / "config.toml"
    hosts = [f"127.0.0.1:{proxy.port}" for proxy in proxies]
    file.write_text(
        f'[fleets.{NAME}]\nurl = "postgresql+psycopg://{NAME}@{{host}}/{{host}}"\n'
        f'password = "${{env:FLEET_PASSWORD}}"\ninterval = "5s"\nhosts = {hosts}\n'
    )
    return {"DBQ_CONFIG": str(file), "FLEET_PASSWORD": _PASSWORD}


@dataclass(frozen=True)
class FleetFigure:
    """One figure of the console on a fleet, and its aim."""

    what: str
    value: float
    unit: str
    aim: float | None = None
    cpu: float | None = None
    """The CPU time, where `value` is a time."""

    @property
    def line(self) -> str:
        cpu = "" if self.cpu is None else f" ({self.cpu:.3g})"
        aim = "" if self.aim is None else f"aim {self.aim:g} {self.unit}"
        return f"{self.what:34}{f'{self.value:.3g}{cpu} {self.unit}':22}{aim}".rstrip()


def measure_fleet(hosts: int, queues: int, seconds: float) -> Iterator[FleetFigure]:
    """Measure with real servers, which share the processors with the console."""
    silent = hosts // 3
    with ExitStack() as opened:
        servers = [opened.enter_context(EmbeddedServer.start(settings=_SETTINGS)) for _ in "123"]
        # What closes the console's recordings outlives it.
        folder = Path(opened.enter_context(TemporaryDirectory(ignore_cleanup_errors=True)))
        fleet = opened.enter_context(
            fleet_on([server.url for server in servers], folder, hosts, queues)
        )
        opened.enter_context(fleet.traffic())
        os.environ.update({**fleet.environment, "XDG_STATE_HOME": str(folder)})
        began = time.perf_counter()
        console = spawned([*COMMAND, "--fleet", NAME])
        console.expect(f"{NAME}: {hosts} connections, {hosts * queues:,} queues", timeout=300)
        cpu = cpu_seconds(console.pid)
        yield FleetFigure("first figures of all", time.perf_counter() - began, "s", 4.0, cpu)
        yield FleetFigure("CPU, sampled every 5 s", share(console, seconds) * 100, "%", 15.0)
        rows = [NAME, *map(fleet.title, range(hosts))][: LINES // 2]
        yield _key("key to paint p95", p95(press_keys(console, rows, seconds)))
        yield FleetFigure("memory", memory_mb(console.pid), "MB", 250.0)
        console.send("g")
        for index in range(hosts - silent, hosts):
            fleet.proxies[index].freeze()
        began = time.perf_counter()
        console.expect(f"{hosts - silent} of {hosts} connections", timeout=300)
        yield FleetFigure(f"{silent} silent, said after", time.perf_counter() - began, "s")
        yield FleetFigure("CPU, a third silent", share(console, seconds) * 100, "%", 25.0)
        rows = [NAME, *map(fleet.title, range(hosts - silent, hosts))][: LINES // 2]
        yield _key("key to paint p95, a third silent", p95(press_keys(console, rows, seconds)))
        for index in range(hosts - silent, hosts):
            fleet.proxies[index].thaw()
        console.send("g")  # the cursor stays on its row, which is no longer among the first
        began = time.perf_counter()
        console.expect(f"{NAME}: {hosts} connections", timeout=300)
        yield FleetFigure("all back after", time.perf_counter() - began, "s")
        quit_console(console)


def _key(what: str, took: KeyLatency) -> FleetFigure:
    return FleetFigure(what, took.seconds * 1000, "ms", 60.0, took.cpu_seconds * 1000)
