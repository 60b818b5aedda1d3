"""The figure `working`, claims that are not stuck, on every face.

python -m tests.contract.adding.use_working URL FOLDER
"""

import asyncio
import sys
from contextlib import closing, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from console.engines import open_database
from console.features.history.segments import SAMPLES, samples
from console.features.lake.lake import Lake
from console.features.lake.rollup import job
from console.features.metrics.exporter import ConnectionState, families
from console.monitor.sample import take_sample
from console.monitor.sampler import Reading
from console.monitor.snapshot import QueueSnapshot, snapshot
from tests.cli.calls import Console, call
from tests.pipeline.recorded import write
from tests.tools.local_tasks import LocalTasks
from tests.tui.feeds import queue
from tests.tui.opened import opened

AT = datetime(2026, 3, 28, 10, tzinfo=UTC)
SECONDS = 120


def ask(here: Console, configuration: Path) -> None:
    """`status` and `check`, with and without a limit of it."""
    here.done("install", "claim", "orders")
    here.done("install", "fifo", "plain")
    for payload in "abc":
        here.done("push", "orders", payload)
    here.done("pop", "orders", "--count", "2")
    claim, plain = here.done("status", "--json").json["queues"]
    assert (claim["working"], plain["working"]) == (2, None)
    assert "working" not in plain["unknown"]
    head, *rows = here.done("status").text.splitlines()
    end = head.index("working") + len("working")
    assert [row[:end].split()[-1] for row in rows] == ["2", "·"]

    assert here("check", "--max-working", "2").status == 0
    exceeded = here("check", "orders", "--max-working", "1", "--json")
    assert exceeded.status == 1
    (checked,) = exceeded.json["queues"]
    assert checked["figures"]["working"]["value"] == 2
    assert "2 working (critical from 2)" in here("check", "--max-working", "1").text
    configuration.write_text("working.warning = 1\n")
    limited = {"DBQ_CONFIG": str(configuration), "DBQ_URL": here.url}
    text = call("status", environment=limited).text
    assert "orders: 2 working (warning from 1)" in text
    rules = call("serve-metrics", "--print-alerts", environment=limited).text
    assert "dbq_queue_working_messages" in rules
    assert "DbqQueueWorking" in rules


def scrape(seen: QueueSnapshot) -> None:
    class Seen(Collector):
        def collect(self) -> object:  # type: ignore[override]
            return families([ConnectionState(Reading("prod", (seen,)), 1.0)])

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Seen())
    series = generate_latest(registry).decode()
    assert "# HELP dbq_queue_working_messages Claims at work." in series
    assert 'queue="orders",schema="public"} 2.0' in series.split("dbq_queue_working_messages{")[1]


def record(seen: QueueSnapshot, folder: Path) -> None:
    """Recorded, rolled up, and then shown from the recording and from the lake."""
    recordings, lake = folder / "recordings", folder / "lake"
    for second in range(0, SECONDS, 10):
        reading = Reading("prod", (replace(seen, working=second),))  # type: ignore[call-arg]
        write(recordings, SAMPLES, *samples(reading, AT + timedelta(seconds=second)))
    job.rollup(lambda: nullcontext(LocalTasks()), Lake(str(lake)), [str(recordings)])
    ago = f"{(datetime.now(UTC) - AT).total_seconds() + 60:.0f}s"
    for root in (recordings, folder / "gone"):
        shown = [
            "history",
            "orders",
            "--recordings",
            str(root),
            "--lake",
            str(lake),
            "--since",
            ago,
        ]
        points = call(*shown, "--json").json["points"]
        assert max(point["working"] for point in points) == SECONDS - 10
        table = call(*shown).text.splitlines()
        assert "working" in table[0].split()
        assert "working" in call(*shown, "--csv").text.splitlines()[0].split(",")
        assert "claims at work" in call(*shown, "--plot").text


async def look(seen: QueueSnapshot) -> None:
    """On the overview and on the queue's screen, and by a filter."""
    async with opened(size=(180, 40)) as console:
        await console.give(seen, queue("mail", "claim", claimed=0, stuck=0, errors=0))
        assert console.row("orders")["working"] == "2"
        await console.press("slash", *"working>1", "enter")
        assert console.order == ["orders"]
        await console.press("enter")
        assert "working 2" in console.picture


if __name__ == "__main__":
    url, own = sys.argv[1], Path(sys.argv[2])
    ask(Console(url), own / "config.toml")
    with closing(open_database(url)) as database:
        (orders, _) = (snapshot(one, "prod") for one in take_sample(database).queues)
    scrape(orders)
    record(orders, own)
    asyncio.run(look(orders))
