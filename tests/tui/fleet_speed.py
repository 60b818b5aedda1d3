"""How quick the console is on a fleet: `python -m tests.tui.speed --fleet 60 20`."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from console.engines.embedded import EmbeddedServer
from tests.tui.fleet import NAME, fleet_on
from tests.tui.speed import (
    LINES,
    Took,
    cpu_seconds,
    memory_mb,
    p95,
    press_keys,
    quit_console,
    share,
    spawned,
)

_SETTINGS = {"fsync": "off", "max_connections": "300", "shared_buffers": "64MB"}


@dataclass(frozen=True)
class FleetFigure:
    """One figure of the console on a fleet, and what is aimed at."""

    what: str
    value: float
    unit: str
    aim: float | None = None
    cpu: float | None = None
    """The CPU of it, where `value` is a time."""

    @property
    def line(self) -> str:
        cpu = "" if self.cpu is None else f" ({self.cpu:.3g})"
        aim = "" if self.aim is None else f"aim {self.aim:g} {self.unit}"
        return f"{self.what:34}{f'{self.value:.3g}{cpu} {self.unit}':22}{aim}".rstrip()


def measure_fleet(hosts: int, queues: int, seconds: float) -> Iterator[FleetFigure]:
    """What was seen, with real servers, which have the same processors."""
    silent = hosts // 3
    with ExitStack() as opened:
        servers = [opened.enter_context(EmbeddedServer.start(settings=_SETTINGS)) for _ in "123"]
        folder = Path(opened.enter_context(TemporaryDirectory()))
        fleet = opened.enter_context(fleet_on([one.url for one in servers], folder, hosts, queues))
        opened.enter_context(fleet.traffic())
        os.environ.update({**fleet.environment, "XDG_STATE_HOME": str(folder)})
        began = time.perf_counter()
        console = spawned([sys.executable, "-m", "console.cli", "--fleet", NAME])
        console.expect(f"{NAME}: {hosts} connections, {hosts * queues:,} queues", timeout=300)
        cpu = cpu_seconds(console.pid)
        yield FleetFigure("first figures of all", time.perf_counter() - began, "s", 5.0, cpu)
        yield FleetFigure("CPU, sampled every 5 s", share(console, seconds) * 100, "%", 25.0)
        rows = [NAME, *map(fleet.title, range(hosts))]
        rows = rows[: LINES // 2]
        yield _key("key to paint p95", p95(press_keys(console, rows, seconds)))
        yield FleetFigure("memory", memory_mb(console.pid), "MB", 250.0)
        console.send("g")
        for place in range(hosts - silent, hosts):
            fleet.proxies[place].freeze()
        began = time.perf_counter()
        console.expect(f"{hosts - silent} of {hosts} connections", timeout=300)
        yield FleetFigure(f"{silent} silent, said after", time.perf_counter() - began, "s")
        yield FleetFigure("CPU, a third silent", share(console, seconds) * 100, "%", 25.0)
        rows = [NAME, *map(fleet.title, range(hosts - silent, hosts))][: LINES // 2]
        yield _key("key to paint p95, a third silent", p95(press_keys(console, rows, seconds)))
        for place in range(hosts - silent, hosts):
            fleet.proxies[place].thaw()
        began = time.perf_counter()
        console.expect(f"{NAME}: {hosts} connections", timeout=300)
        yield FleetFigure("all back after", time.perf_counter() - began, "s")
        quit_console(console)


def _key(what: str, took: Took) -> FleetFigure:
    return FleetFigure(what, took.seconds * 1000, "ms", 60.0, took.cpu_seconds * 1000)
