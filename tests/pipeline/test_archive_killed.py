"""The driver is killed at random points under traffic; the next run finishes without loss."""

import random
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path

import pytest

from console.actions.archive import Archive, Purge
from console.actions.restore import Restore
from console.errors import BusyError, RefusedError
from console.features.lake.lake import Lake
from tests.cli.calls import Answer
from tests.contract.client import Client
from tests.contract.messages import message
from tests.contract.traffic import Traffic
from tests.pipeline.archive_tools import act, all_payloads, drive, payloads
from tests.pipeline.conftest import NewQueue

PHASES = ("reserve", "export", "verify", "commit", "delete")
DESIGNS = [("fifo", {"archive_at_pop": "on"}), ("split", {}), ("status", {})]
LONG_KILLS, SHORT_PHASES = 20, ("export", "commit", "delete")


def run_driver(client: Client, lake: Lake, *words: str) -> Answer:
    return drive(client.queue.name, lake, *words, url=client.url)


def traffic_of(client: Client, most: int) -> Traffic:
    return Traffic(
        client,
        producers=1,
        consumers=1,
        batch=11,
        per_producer=most,
        tolerated=(BusyError,),
        pause_seconds=0.03,
    )


def operate(client: Client) -> Iterator[None]:
    """Operators who purge and restore."""
    popped = not client.queue.finishes
    while True:
        with suppress(BusyError):
            act_if_any(client, Purge)
            if client.queue.finishes:
                act_if_any(client, Archive)
            act_if_any(client, lambda source: Restore(source, popped=popped))
        yield


def sent_by(traffic: Traffic) -> list[str]:
    kind = traffic.client.queue.options["payload"]
    return [str(message(kind, *one)) for one in traffic.pushed]


def act_if_any(client: Client, verb: object) -> None:
    try:
        act(client, verb, "limit=5")  # type: ignore[arg-type]
    except RefusedError:
        return


def consume(client: Client) -> None:
    for taken in client.drain(100):
        if client.queue.finishes:
            client.complete(taken)


def kill_under_traffic(
    client: Client, lake: Lake, rng: random.Random, phases: Iterable[str], most: int
) -> tuple[Counter[str], int]:
    """Runs that are killed in these phases, and a last one: payloads sent, number of kills."""
    first = [str(payload) for payload in client.payloads(*range(99))]
    client.push_many(first)
    consume(client)
    if client.queue.finishes:
        act(client, Archive)
    counted = run_driver(client, lake)
    assert counted.status == 0, counted.err
    counts = counted.json
    killed, traffic = 0, traffic_of(client, most)
    with traffic.running(operate(client)):
        for phase in phases:
            ended = run_driver(client, lake, phase, str(rng.randint(1, counts[phase])))
            assert ended.status in {0, -signal.SIGKILL}, ended.err
            killed += ended.status == -signal.SIGKILL
    assert killed, "none was killed"
    last = run_driver(client, lake)
    assert last.status == 0, last.err
    return Counter([*first, *sent_by(traffic)]), killed


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(name, options, id=name, marks=[pytest.mark.long] if number else [])
        for number, (name, options) in enumerate(DESIGNS)
    ],
)
def test_a_run_killed_anywhere_is_finished_by_the_next_without_loss(
    new_queue: NewQueue, tmp_path: Path, name: str, options: dict[str, str], long: bool
) -> None:
    client, lake = new_queue(name, **options), Lake(tmp_path / "lake")
    phases = islice(cycle(PHASES), LONG_KILLS) if long else SHORT_PHASES
    rng = random.Random(f"archive {name}")
    sent, _ = kill_under_traffic(client, lake, rng, phases, 3_000 if long else 300)
    assert all_payloads(client, payloads(lake)) == sent
    assert payloads(lake), "something went"


@pytest.mark.long
@pytest.mark.parametrize("phase", PHASES)
def test_a_run_killed_on_spark_is_finished_by_the_next_without_loss(
    new_queue: NewQueue, tmp_path: Path, phase: str
) -> None:
    """Its tasks are in separate processes, which may outlive the driver for a moment."""
    pytest.importorskip("pyspark", reason="needs Spark: pip install 'dbq-console[pipeline]'")
    client, lake = new_queue("fifo", archive_at_pop="on"), Lake(tmp_path / "lake")
    sent = [str(payload) for payload in client.payloads(*range(400))]
    client.push_many(sent)
    client.drain()
    traffic = traffic_of(client, 3_000)
    rng = random.Random(phase)
    with traffic.running(operate(client)):
        for _ in range(2):
            ended = run_driver(client, lake, phase, str(rng.randint(1, 60)), "--spark")
            assert ended.status in {0, -signal.SIGKILL}, ended.err
            last = run_driver(client, lake)
            assert last.status == 0, last.err
    assert run_driver(client, lake).status == 0
    assert all_payloads(client, payloads(lake)) == Counter([*sent, *sent_by(traffic)])
