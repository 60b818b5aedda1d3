"""The driver is killed at random points, under traffic; run again it finishes, all is there."""

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from console.actions.archive import Purge
from console.actions.restore import Restore
from console.errors import BusyError, RefusedError
from console.pipeline.lake import Lake
from tests.contract.client import Client
from tests.contract.messages import message
from tests.contract.traffic import Traffic
from tests.pipeline.archive_tools import act, execute_sql, payloads
from tests.pipeline.conftest import Use

PHASES = ("export", "verify", "delete", "withdraw")
DESIGNS = [("fifo", {"archive_at_pop": "on"}), ("split", {}), ("status", {})]
KILLS, LONG_KILLS = 3, 20
_DEADLINE_SECONDS = 600.0


def drive(client: Client, lake: Lake, *words: str) -> "subprocess.CompletedProcess[bytes]":
    """A run, with what kills it."""
    name = client.queue.name
    command = [
        sys.executable,
        "-m",
        "tests.pipeline.driver",
        name,
        lake.location,
        *words,
    ]
    environment = {**os.environ, "DBQ_URL": client.url}
    return subprocess.run(
        command, env=environment, capture_output=True, timeout=_DEADLINE_SECONDS, check=False
    )


def traffic_of(client: Client, most: int) -> Traffic:
    return Traffic(
        client,
        producers=1,
        consumers=1,
        batch=11,
        most=most,
        endures=(BusyError,),
        pause_seconds=0.03,
    )


def operate(client: Client) -> Iterator[None]:
    """Operators who purge and restore."""
    popped = not client.queue.finishes
    while True:
        with suppress(BusyError):
            act_if_any(client, Purge)
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


def everywhere(client: Client, lake: Lake) -> Counter[str]:
    """Payload -> how often it lies in the queue, in its archive and in the lake together."""
    tables = {"fifo": "<>", "status": "<>", "split": "<data>"}
    own = "payload" if client.queue.design.name == "fifo" else "text_data"
    found = Counter(payloads(lake))
    lying = [(own, tables[client.queue.design.name]), ("payload", "<archive>")]
    for column, table in lying:
        found.update(row[0] for row in execute_sql(client, f"SELECT {column} FROM {table}"))
    return found


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(name, options, id=name, marks=[pytest.mark.long] if number else [])
        for number, (name, options) in enumerate(DESIGNS)
    ],
)
def test_killed_anywhere_and_run_again(
    use: Use, tmp_path: Path, name: str, options: dict[str, str], long: bool
) -> None:
    client, lake = use(name, **options), Lake(tmp_path / "lake")
    traffic = traffic_of(client, 3_000 if long else 300)
    dice = random.Random(f"archive {name}")
    first = [str(payload) for payload in client.payloads(*range(99))]
    client.push_many(first)
    consume(client)
    counted = drive(client, lake)
    assert counted.returncode == 0, counted.stderr.decode()
    counts = json.loads(counted.stdout)
    killed = 0
    with traffic.going_on(operate(client)):
        for number in range(LONG_KILLS if long else KILLS):
            phase = PHASES[number % len(PHASES)] if long else PHASES[number and number + 1]
            steps = dice.randint(1, counts[phase])
            ended = drive(client, lake, phase, str(steps))
            assert ended.returncode in {0, -signal.SIGKILL}, ended.stderr.decode()
            killed += ended.returncode == -signal.SIGKILL
    assert killed, "none was killed"
    last = drive(client, lake)
    assert last.returncode == 0, last.stderr.decode()
    found = everywhere(client, lake)
    assert found == Counter([*first, *sent_by(traffic)])
    assert payloads(lake), "something went"
    left = [path for path in lake.files("") if "_tmp-" in path]
    assert len(left) <= killed, left


def consume(client: Client) -> None:
    for taken in client.drain(100):
        if client.queue.finishes:
            client.complete(taken)


@pytest.mark.long
@pytest.mark.parametrize("phase", PHASES)
def test_killed_on_spark_and_run_again(use: Use, tmp_path: Path, phase: str) -> None:
    """Tasks in processes of their own, which may outlive the driver for a moment."""
    pytest.importorskip("pyspark", reason="needs Spark: pip install 'dbq-console[pipeline]'")
    client, lake = use("fifo", archive_at_pop="on"), Lake(tmp_path / "lake")
    sent = [str(payload) for payload in client.payloads(*range(400))]
    client.push_many(sent)
    client.drain()
    traffic = traffic_of(client, 3_000)
    dice = random.Random(phase)
    with traffic.going_on(operate(client)):
        for _ in range(2):
            ended = drive(client, lake, phase, str(dice.randint(1, 60)), "--spark")
            assert ended.returncode in {0, -signal.SIGKILL}, ended.stderr.decode()
            last = drive(client, lake)
            assert last.returncode == 0, last.stderr.decode()
    assert drive(client, lake).returncode == 0
    assert everywhere(client, lake) == Counter([*sent, *sent_by(traffic)])
