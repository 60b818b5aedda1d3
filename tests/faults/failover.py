"""How soon a recorder brings a ring's orphans back into traffic after a crash, with nobody there.

`python -m tests.faults.failover --runs N --clients K`: K producers and K consumers on a ring, and
`dbq-console record` with a policy that allows it. The server is killed with -9 and started again;
the seconds are from its first accepted connection to the end of the last repair, by its own clock.
Afterwards every message is counted.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from console.features.demo.embedded import EmbeddedServer
from tests.cli.calls import COMMAND
from tests.faults.harness.clients import CONSUMER, PRODUCER, clients, settle
from tests.faults.harness.faults import crash
from tests.faults.harness.ring import Ring, make_ring, wait_for_server
from tests.servers import fresh_database, wait_until

POLICY = """
[profiles.shop]
url = "${env:SHOP_URL}"
rights = "operator"
[profiles.shop.unattended]
orphans = "always"
holes = "always"
claims_gone = "bound"
repairs_per_hour = 1000
rows_per_hour = 1_000_000
"""
_QUIET_SECONDS = 12.0
"""Without a further repair, and without a finding: all is back. Longer than between two proofs."""


@dataclass(frozen=True)
class Recovery:
    seconds: float | None
    """None: the crash left no orphan, and no consumed number that would become one."""
    repaired: int
    lost: int
    doubled: int
    acknowledged: int


@contextmanager
def recorder(url: str, folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """`dbq-console record` with a policy that allows every repair."""
    configuration = folder / "config.toml"
    configuration.write_text(POLICY)
    more = {"DBQ_CONFIG": str(configuration), "XDG_STATE_HOME": str(folder), "SHOP_URL": url}
    with subprocess.Popen(
        [*COMMAND, "record", "--profile", "shop"],
        env=os.environ | more,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        assert process.poll() is None, process.communicate()
        process.terminate()
        print(process.communicate()[1], file=sys.stderr)


def repaired(ring: Ring) -> tuple[int, float]:
    """How many numbers a recorder has parked or dropped, and how long ago it ended the last."""
    query = (
        "SELECT coalesce(sum(done), 0), extract(epoch FROM clock_timestamp() - max(ended_at))"
        " FROM dbq.action WHERE operator LIKE 'unattended %' AND detail LIKE '%orphans%'"
    )
    count, ago = ring.session.execute(query).fetchone() or (0, None)
    return int(count), float(ago or 0.0)


def recovery(server: EmbeddedServer, each: int, chance: random.Random) -> Recovery:
    """One crash under traffic, and its repairs."""
    with fresh_database(server.url) as url, tempfile.TemporaryDirectory() as folder:
        ring = make_ring(url, size=10_000, max_bytes=300)
        try:
            with clients(url, chance) as workers, recorder(url, Path(folder)):
                # Producers first: then the lost numbers are of messages that are there.
                for calls in (PRODUCER, CONSUMER):
                    workers.start(calls, ring.queue.name, count=each)
                    workers.wait_for_progress(100_000)
                crash(server)
                wait_for_server(url)
                began = time.monotonic()
                wait_until(lambda: _is_quiet(ring, began), "all is repaired", 120)
                count, ago = repaired(ring)
                seconds = time.monotonic() - began - ago if count else None
                counts = settle(workers, ring)
        finally:
            ring.close()
    return Recovery(seconds, count, counts.lost, counts.doubled, counts.acknowledged)


def _is_quiet(ring: Ring, began: float) -> bool:
    """Whether nothing was repaired for a while, and nothing is left to repair."""
    _, ago = repaired(ring)
    quiet = min(ago or _QUIET_SECONDS, time.monotonic() - began)
    time.sleep(0.5)  # it is the measured machine that polls
    return quiet >= _QUIET_SECONDS and not {"orphan", "spent"} & ring.findings().keys()


def main() -> None:
    """Print a line per run, and the seconds' minimum, median and maximum."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--clients", type=int, default=16, help="producers, and as many consumers")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    chance, found = random.Random(chosen.seed), []
    print(
        f"{'run':>4} {'seconds':>8} {'repaired':>9} {'acknowledged':>13} {'lost':>5} {'doubled':>8}"
    )
    for run in range(1, chosen.runs + 1):
        with EmbeddedServer.start() as server:
            one = recovery(server, chosen.clients, chance)
        found.append(one)
        seconds = "-" if one.seconds is None else f"{one.seconds:.1f}"
        print(
            f"{run:4} {seconds:>8} {one.repaired:9,} {one.acknowledged:13,} {one.lost:5,} "
            f"{one.doubled:8,}",
            flush=True,
        )
    times = [one.seconds for one in found if one.seconds is not None]
    if times:
        low, middle, high = min(times), statistics.median(times), max(times)
        print(f"seconds: {low:.1f} to {high:.1f}, median {middle:.1f}, in {len(times)} runs")
    sys.exit(any(one.lost or one.doubled for one in found))


if __name__ == "__main__":
    main()
