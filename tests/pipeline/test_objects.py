"""The lake on an object store: nothing incomplete is visible, nothing is lost or doubled."""

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import pytest

from console.errors import ConsoleError, RefusedError, UsageError
from console.features.history import forecast as expected
from console.features.history.points import history
from console.features.history.segments import SAMPLES, TimeRange
from console.features.lake import frames
from console.features.lake.archive.files import SCHEMA
from console.features.lake.lake import _LOGIN, Lake
from console.features.lake.table import MessagesTable
from tests.contract.client import Client
from tests.pipeline import weekly
from tests.pipeline.archive_tools import all_payloads, execute_sql, payloads, push_and_pop, run
from tests.pipeline.conftest import NewQueue
from tests.pipeline.recorded import BEGIN, all_rows, sample, write
from tests.pipeline.test_archive_killed import kill_under_traffic, run_driver
from tests.pipeline.test_rollups import Between, roll_up
from tests.servers import wait_until
from tests.servers.cluster import BUCKET, SECRET, object_store
from tests.servers.proxy import Fate, Proxy

pytestmark = pytest.mark.slow

KILLS = 12
PHASES = ("commit", "export", "delete", "verify", "reserve")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    pytest.importorskip("moto")
    with object_store() as started:
        yield started


@pytest.fixture
def lake(endpoint: str, tmp_path: Path) -> Lake:
    return Lake(f"s3://{BUCKET}/{tmp_path.name}%20%C3%BC")


def rows_in_lake(lake: Lake, client: Client) -> Counter[str]:
    """Rows of a queue that readers of the table find."""
    del client
    return payloads(lake)


def test_an_object_is_complete_or_absent(lake: Lake) -> None:
    lake.write_json("a/b.json", {"n": 1})
    with suppress(ZeroDivisionError), lake.writing("a/b.json") as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert lake.files("") == ["a/b.json"]
    assert lake.read_json("a/b.json") == {"n": 1}


def test_a_location_with_a_login_is_refused_without_showing_it() -> None:
    for location in (f"s3://key:{SECRET}@bucket/x", f"s3://bucket/x?secret_key={SECRET}&region=x"):
        with pytest.raises(UsageError, match="has a login") as error:
            Lake(location)
        assert SECRET not in str(error.value)
    assert not _LOGIN.search("abfss://container@account.dfs.core.windows.net/x"), "an address"


def test_errors_of_an_object_store_are_reported_without_secrets(endpoint: str) -> None:
    nowhere = Lake("s3://no-such-bucket/x")
    with pytest.raises(ConsoleError, match="cannot be written") as error:
        nowhere.write_json("a.json", {})
    assert "NO_SUCH_BUCKET" in str(error.value)
    assert SECRET not in str(error.value)


@pytest.mark.long
def test_a_run_killed_anywhere_is_finished_by_the_next_without_loss(
    new_queue: NewQueue, lake: Lake
) -> None:
    client, phases = new_queue("fifo", archive_at_pop="on"), islice(cycle(PHASES), KILLS)
    sent, killed = kill_under_traffic(client, lake, random.Random("objects"), phases, 3_000)
    found = all_payloads(client, rows_in_lake(lake, client))
    print(
        f"on S3: {killed} kills, {sent.total()} rows, {(sent - found).total()} lost, "
        f"{(found - sent).total()} doubled"
    )
    assert found == sent
    assert rows_in_lake(lake, client), "something went"


def test_an_interrupted_upload_leaves_nothing_visible(
    new_queue: NewQueue, lake: Lake, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = new_queue("fifo", archive_at_pop="on")
    sent = [random.Random(n).randbytes(15_000).hex() for n in range(200)]
    client.push_many(sent)
    assert len(client.drain()) == len(sent)
    with Proxy(endpoint) as proxy:
        passed = 0

        def cut(data: bytes) -> Fate:
            nonlocal passed
            passed += len(data)
            return Fate.CUT if passed > 1_000_000 else Fate.PASSES

        proxy.fate = cut
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        with pytest.raises(ConsoleError, match="cannot be written") as error:
            run(client, lake)
        assert SECRET not in str(error.value)
        assert passed > 1_000_000
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    assert lake.data_files("messages") == []
    assert rows_in_lake(lake, client) == Counter()
    assert execute_sql(client, "SELECT count(*) FROM <archive>") == [(len(sent),)]
    (done,) = run(client, lake)
    assert (done.exported, done.deleted) == (len(sent), len(sent))
    assert rows_in_lake(lake, client) == Counter(sent)


@pytest.mark.long
def test_a_late_writer_changes_nothing(new_queue: NewQueue, lake: Lake, endpoint: str) -> None:
    """Its machine stood still while it put its file; a successor has finished the run."""
    client = new_queue("fifo", archive_at_pop="on")
    sent = push_and_pop(client, 30)
    reached: list[bytes] = []

    def freeze(data: bytes) -> Fate:
        if reached or not data.startswith((b"PUT", b"POST")) or b"/date" not in data[:500]:
            return Fate.PASSES
        reached.append(data)
        return Fate.FROZEN

    with Proxy(endpoint) as proxy:
        proxy.fate = freeze
        words = [client.queue.name, lake.location]
        late = subprocess.Popen(
            [sys.executable, "-m", "tests.pipeline.driver", *words],
            env={
                **os.environ,
                "DBQ_URL": client.url,
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}",
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        wait_until(lambda: bool(reached), "it puts its file")
        late.send_signal(signal.SIGSTOP)
        execute_sql(client, "UPDATE dbq.lease SET until = now(), holder = 'gone'")
        done = run_driver(client, lake)
        assert done.status == 0, done.err
        assert rows_in_lake(lake, client) == Counter(sent)
        late.send_signal(signal.SIGCONT)
        proxy.thaw()
        _, err = late.communicate(timeout=120)
    assert late.returncode not in {0, None}, err
    assert all_payloads(client, rows_in_lake(lake, client)) == Counter(sent)
    assert run_driver(client, lake).status == 0
    assert all_payloads(client, rows_in_lake(lake, client)) == Counter(sent)


@pytest.mark.long
def test_a_call_to_a_store_that_hangs_is_given_up(
    lake: Lake, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a run that is stopped does not wait for minutes: libraries hear no signal."""
    MessagesTable.create(lake)
    hanging: list[bytes] = []

    def freeze(data: bytes) -> Fate:
        hanging.append(data)
        return Fate.FROZEN

    with Proxy(endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        through = Lake(lake.location)
        table = MessagesTable.open(through)
        assert table is not None
        proxy.fate = freeze
        calls: dict[str, Callable[[], object]] = {
            "table": partial(table.last_serial, "a"),
            "files": partial(through.files, ""),
        }
        for name, call in calls.items():
            hanging.clear()
            proxy.thaw()
            with pytest.raises(ConsoleError, match="cannot be") as error:
                call()
            assert error.value.next_step, name
            assert 1 <= len(hanging) <= 2, name
        proxy.thaw()


def test_the_requests_of_a_run_do_not_grow_with_its_plans(
    new_queue: NewQueue, lake: Lake, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = new_queue("fifo", archive_at_pop="on")
    counts: list[int] = []
    for _ in range(13):
        push_and_pop(client, 3)
        requests = 0

        def count(data: bytes) -> Fate:
            nonlocal requests
            requests += data.split(b" ", 1)[0] in {b"GET", b"PUT", b"HEAD", b"POST", b"DELETE"}
            return Fate.PASSES

        with Proxy(endpoint) as proxy:
            proxy.fate = count
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
            run(client, lake)
            monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        counts.append(requests)
    print(f"requests of each run: {counts}")
    assert rows_in_lake(lake, client).total() == 39
    assert max(counts[7:]) <= max(counts[:7]), "a checkpoint ends what a reader has to read"
    # Delta Lake's library takes 21 of them where the last commit has a checkpoint: 13 to open the
    # table, 3 to ask for its transaction, 5 to commit.
    assert min(counts[4:]) <= 25
    assert sum(counts[4:12]) / 8 <= 34


def test_a_plan_is_there_once_however_many_commit_it_at_the_same_time(lake: Lake) -> None:
    """None of them asked for the transaction after the others had committed."""
    MessagesTable.create(lake)
    tables = [MessagesTable.open(lake) for _ in range(3)]
    assert [table.last_serial("a") for table in tables if table] == [0, 0, 0]
    file = {
        "path": "messages/one.parquet",
        "size": 1,
        "rows": 1,
        "partition": {"connection": "c", "queue": "q", "date": "2026-01-01"},
    }
    done = [table.commit("a", 1, [file]) for table in tables if table]
    assert done == [True, False, False]
    other = MessagesTable.open(lake)
    assert other is not None
    assert tables[1] is not None
    assert other.commit("b", 1, [{**file, "path": "messages/two.parquet"}])
    assert tables[1].commit("a", 2, [{**file, "path": "messages/three.parquet"}])
    messages_table = MessagesTable.open(lake)
    assert messages_table is not None
    assert len(messages_table.all_files()) == 3


def test_rows_are_read_by_arrow(new_queue: NewQueue, lake: Lake) -> None:
    """As Spark's tasks do if Spark has no jars."""
    client = new_queue("fifo", archive_at_pop="on")
    sent = push_and_pop(client, 5)
    run(client, lake)
    (path,) = lake.data_files("messages")
    columns = {"id": "string", "payload": "string", "none": "bigint", "due_at": "timestamp"}
    (batch,) = frames._rows(lake, path, columns)
    assert batch.schema.names == list(columns)
    assert [row["payload"] for row in batch.to_pylist()] == sent
    assert batch.schema.field("due_at").type == SCHEMA.field("due_at").type


# -- rollups


def record_minutes(folder: Path, *minutes: int) -> None:
    for minute in minutes:
        times = range(60 * minute, 60 * minute + 60, 10)
        write(folder, SAMPLES, *(sample(at, ready=at, pop_per_second=float(at)) for at in times))


def test_a_rollup_becomes_visible_all_at_once(lake: Lake, tmp_path: Path) -> None:
    folder, local = tmp_path / "recordings", Lake(tmp_path / "lake")
    record_minutes(folder, 0, 1)
    roll_up(lake, folder)
    early = all_rows(lake)
    assert [len(rows) for rows in early.values()] == [1, 1, 2, 2]
    record_minutes(folder, 2)
    # Killed before its commit: nothing has changed. While one works another one finishes it.
    with pytest.raises(ZeroDivisionError):
        roll_up(lake, folder, Between(lambda: 1 // 0))
    assert all_rows(lake) == early
    with pytest.raises(RefusedError, match="Another run changed"):
        roll_up(lake, folder, Between(lambda: roll_up(lake, folder)))
    roll_up(local, folder)
    assert all_rows(lake) == all_rows(local) != early
    assert not roll_up(lake, folder).selection.due
    span = TimeRange(BEGIN, BEGIN + timedelta(days=1))
    found = history(tmp_path / "none", "prod", "orders", span, lake=lake.location)
    assert [(point.samples, point["ready"]) for point in found.points] == [
        (6, 50),
        (6, 110),
        (6, 170),
    ]


@pytest.mark.long
def test_a_forecast_of_an_object_store_equals_that_of_a_folder(lake: Lake, tmp_path: Path) -> None:
    folder, found = tmp_path / "recordings", []
    pushes = weekly.weeks("day and night", "by chance", 3, 6).reshape(-1, 24)
    weekly.record(folder, pushes, pushes)
    for one in (Lake(tmp_path / "lake"), lake):
        assert roll_up(one, folder).forecasts == {"prod": {"known": 1, "too_short": 0}}
        known = expected.read(one.location, "prod", "public", "orders")
        found.append((known.hours, known.weeks, known.last_day))
    assert found[0] == found[1]
