"""The driver is killed at random points, under traffic; run again it finishes, all is there."""

import json
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from console.actions.purge import Purge
from console.actions.restore import Restore
from console.errors import BusyError, RefusedError
from console.pipeline.lake import Lake
from tests.contract.client import Client
from tests.pipeline.conftest import Use
from tests.pipeline.test_archive import act, execute_sql, payloads

PHASES = ("export", "verify", "delete", "withdraw")
DESIGNS = [("fifo", {"archive_at_pop": "on"}), ("split", {}), ("status", {})]
KILLS, LONG_KILLS = 3, 20
_DEADLINE_SECONDS = 600.0


def drive(client: Client, lake: Lake, *words: str) -> "subprocess.CompletedProcess[bytes]":
    """A run, with what kills it."""
    name = client.queue.name
    command = [sys.executable, "-m", "tests.pipeline.driver", client.url, name, lake.place, *words]
    return subprocess.run(command, capture_output=True, timeout=_DEADLINE_SECONDS, check=False)


class Traffic:
    """Producers, consumers, and operators who purge and restore, all at once."""

    def __init__(self, client: Client, most: int) -> None:
        self.client = client
        self._most = most
        self.sent: list[str] = []
        self.errors: list[BaseException] = []
        self._stop = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [
            threading.Thread(target=self._loop, args=(work,))
            for work in (self._produce, self._consume, self._operate)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
        assert not self.errors, self.errors

    def _loop(self, work: "object") -> None:
        try:
            while not self._stop.wait(0.03):
                try:
                    work()  # type: ignore[operator]
                except BusyError:
                    continue
        except BaseException as error:  # noqa: BLE001  # told where the thread is joined
            self.errors.append(error)

    def _produce(self) -> None:
        if len(self.sent) < self._most:
            more = [f"{len(self.sent) + number}" for number in range(11)]
            assert None not in self.client.push_many(more)
            self.sent += more

    def _consume(self) -> None:
        for message in self.client.pop_many(9):
            if self.client.queue.finishes:
                assert self.client.complete(message)

    def _operate(self) -> None:
        act_if_any(self.client, Purge)
        popped = not self.client.queue.finishes
        act_if_any(self.client, lambda source: Restore(source, popped=popped))


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
    traffic = Traffic(client, 3_000 if long else 300)
    dice = random.Random(f"archive {name}")
    first = [str(-number) for number in range(1, 100)]
    client.push_many(first)
    consume(client)
    counted = drive(client, lake)
    assert counted.returncode == 0, counted.stderr.decode()
    counts = json.loads(counted.stdout)
    killed = 0
    with traffic.running():
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
    assert found == Counter([*first, *traffic.sent])
    assert payloads(lake), "something went"
    left = [path for path in lake.files("") if "_tmp-" in path]
    assert len(left) <= killed, left


def consume(client: Client) -> None:
    for message in client.drain(100):
        if client.queue.finishes:
            client.complete(message)


@pytest.mark.long
@pytest.mark.parametrize("phase", PHASES)
def test_killed_on_spark_and_run_again(use: Use, tmp_path: Path, phase: str) -> None:
    """Tasks in processes of their own, which may outlive the driver for a moment."""
    pytest.importorskip("pyspark", reason="needs Spark: pip install 'dbq-console[pipeline]'")
    client, lake = use("fifo", archive_at_pop="on"), Lake(tmp_path / "lake")
    sent = [str(number) for number in range(400)]
    client.push_many(sent)
    client.drain()
    traffic = Traffic(client, 3_000)
    dice = random.Random(phase)
    with traffic.running():
        for _ in range(2):
            ended = drive(client, lake, phase, str(dice.randint(1, 60)), "--spark")
            assert ended.returncode in {0, -signal.SIGKILL}, ended.stderr.decode()
            last = drive(client, lake)
            assert last.returncode == 0, last.stderr.decode()
    assert drive(client, lake).returncode == 0
    assert everywhere(client, lake) == Counter([*sent, *traffic.sent])
