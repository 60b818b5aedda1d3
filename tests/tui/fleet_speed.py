"""How quick the console is on a fleet: `python -m tests.tui.speed --fleet 60 20`."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from console.engines.embedded import EmbeddedServer
from tests.tui.fleet import NAME, fleet_on
from tests.tui.speed import (
    LINES,
    cpu_seconds,
    memory_mb,
    p95,
    press_keys,
    quit_console,
    share,
    spawned,
)

_SETTINGS = {"fsync": "off", "max_connections": "300", "shared_buffers": "64MB"}


def measure_fleet(hosts: int, queues: int, seconds: float) -> Iterator[str]:
    """Lines of what was seen, with real servers, which have the same processors."""
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
        yield f"first figures of all  {time.perf_counter() - began:6.2f} s ({cpu:.2f})"
        yield f"idle                  {share(console, seconds):6.1%}"
        rows = [NAME, *map(fleet.title, range(hosts))]
        rows = rows[: LINES // 2]
        yield f"key p95               {p95(press_keys(console, rows, seconds)).words}"
        yield f"memory                {memory_mb(console.pid):4.0f} MB"
        console.send("g")
        for place in range(hosts - silent, hosts):
            fleet.proxies[place].freeze()
        began = time.perf_counter()
        console.expect(f"{hosts - silent} of {hosts} connections", timeout=300)
        yield f"{silent} silent, said after {time.perf_counter() - began:5.1f} s"
        yield f"CPU meanwhile         {share(console, seconds):6.1%}"
        rows = [NAME, *map(fleet.title, range(hosts - silent, hosts))][: LINES // 2]
        yield f"key p95 meanwhile     {p95(press_keys(console, rows, seconds)).words}"
        for place in range(hosts - silent, hosts):
            fleet.proxies[place].thaw()
        began = time.perf_counter()
        console.expect(f"{NAME}: {hosts} connections", timeout=300)
        yield f"all back after        {time.perf_counter() - began:5.1f} s"
        quit_console(console)
