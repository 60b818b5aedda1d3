"""The lake on an object store: nothing half seen, nothing lost, nothing twice."""

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

from console import forecast_files, rollup_files
from console.actions.restore import Restore
from console.errors import ConsoleError, RefusedError, UsageError
from console.monitor.recording import forecast as expected
from console.monitor.recording.reader import Rollups
from console.monitor.recording.segments import SAMPLES, TimeRange
from console.pipeline import frames
from console.pipeline import lake as lakes
from console.pipeline.archive import files
from console.pipeline.archive.files import SCHEMA, pq
from console.pipeline.archive.plan import find_archive
from console.pipeline.lake import _LOGIN, Lake
from console.pipeline.rollup import forecast
from console.pipeline.rollup import job as rollups
from tests.contract.client import Client
from tests.local_tasks import LocalTasks
from tests.pipeline import weekly
from tests.pipeline.archive_tools import Between, act, everywhere, execute_sql, popped, run
from tests.pipeline.cluster import BUCKET, SECRET, object_store
from tests.pipeline.conftest import Use
from tests.pipeline.recorded import BEGIN, sample, write
from tests.pipeline.test_archive_killed import drive, killed_under_traffic
from tests.proxy import Fate, Proxy
from tests.servers import wait_until

KILLS = 12
PHASES = ("withdraw", "export", "delete", "verify")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    pytest.importorskip("moto")
    with object_store() as started:
        yield started


@pytest.fixture
def lake(endpoint: str, tmp_path: Path) -> Lake:
    return Lake(f"s3://{BUCKET}/{tmp_path.name}%20%C3%BC")


def rows_in_lake(lake: Lake, client: Client) -> Counter[str]:
    """What readers, who trust manifests, find of a queue; nothing of plans that are not done."""
    with suppress(RefusedError):
        of = find_archive(lake, None, None, client.queue.name)
        found = Counter[str]()
        for path in (path for paths in of.files.values() for path in paths):
            with lake.reading(path) as file:
                found.update(p.decode() for p in pq.read_table(file)["payload"].to_pylist())
        return found
    return Counter()


def unnamed(lake: Lake, client: Client) -> set[str]:
    of = find_archive(lake, None, None, client.queue.name)
    return set(lake.data_files("archive")) - {path for paths in of.files.values() for path in paths}


def test_an_object_is_there_whole_or_not_at_all(lake: Lake) -> None:
    def refuse(_: str) -> None:
        raise ZeroDivisionError

    lake.write_json("a/b.json", {"n": 1})
    with suppress(ZeroDivisionError), lake.writing("a/b.json") as file:
        file.write(b"half")
        raise ZeroDivisionError
    with suppress(ZeroDivisionError), lake.writing("a/c.parquet", check=refuse) as file:
        file.write(b"whole, and wrong")
    assert lake.files("") == ["a/b.json"]
    assert lake.read_json("a/b.json") == {"n": 1}
    lake.write_json("a/b.json", {"n": 2}, once=True)
    assert lake.read_json("a/b.json") == {"n": 1}
    names = {lake.new_path("x/a.parquet") for _ in range(9)}
    assert len(names) == 9
    assert all(name.startswith("x/a-") and name.endswith(".parquet") for name in names)


def test_all_who_use_a_lake_first_at_once_call_it_the_same(lake: Lake) -> None:
    same = Lake(lake.location.replace("s3://", "s3a://"))
    assert same._storage.new_id() == lake._storage.new_id() == lake.id() == same.id()
    assert Lake(lake.location + "-2").id() != lake.id()


def test_a_login_in_a_place_is_refused_and_not_shown() -> None:
    for place in (f"s3://key:{SECRET}@bucket/x", f"s3://bucket/x?secret_key={SECRET}&region=x"):
        with pytest.raises(UsageError, match="has a login") as error:
            Lake(place)
        assert SECRET not in str(error.value)
    assert not _LOGIN.search("abfss://container@account.dfs.core.windows.net/x"), "an address"


def test_what_an_object_store_refuses_is_reported_without_secrets(endpoint: str) -> None:
    nowhere = Lake("s3://no-such-bucket/x")
    with pytest.raises(ConsoleError, match="cannot be written") as error:
        nowhere.write_json("a.json", {})
    assert "NO_SUCH_BUCKET" in str(error.value)
    assert SECRET not in str(error.value)


@pytest.mark.long
def test_archive_names_its_files_and_withdraws_into_others(use: Use, lake: Lake) -> None:
    client = use("fifo", archive_at_pop="on")
    sent = popped(client, 30)
    before: set[str] = set()

    def restore() -> None:
        before.update(lake.data_files("archive"))
        act(client, lambda source: Restore(source, popped=True), "limit=5")

    done = run(client, lake, tasks=Between(files.verify, restore), range_rows=12)
    assert [(one.deleted, one.withdrawn) for one in done] == [(25, 5)]
    assert everywhere(client, rows_in_lake(lake, client)) == Counter(sent)
    after = set(lake.data_files("archive"))
    assert unnamed(lake, client) == set(), "no file that no manifest names stays"
    assert len(before - after) == 1, "the one with rows that were restored"
    assert after - before, "has not been overwritten"


@pytest.mark.long
def test_killed_anywhere_and_run_again(use: Use, lake: Lake) -> None:
    client, phases = use("fifo", archive_at_pop="on"), islice(cycle(PHASES), KILLS)
    sent, killed = killed_under_traffic(client, lake, random.Random("objects"), phases, 3_000)
    found = everywhere(client, rows_in_lake(lake, client))
    print(
        f"on S3: {killed} kills, {sent.total()} rows, {(sent - found).total()} lost, "
        f"{(found - sent).total()} doubled"
    )
    assert found == sent
    assert rows_in_lake(lake, client), "something went"
    assert unnamed(lake, client) == set()


def test_an_upload_that_is_cut_shows_nothing(
    use: Use, lake: Lake, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = use("fifo", archive_at_pop="on")
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
    assert lake.data_files("archive") == []
    assert rows_in_lake(lake, client) == Counter()
    assert execute_sql(client, "SELECT count(*) FROM <archive>") == [(len(sent),)]
    (done,) = run(client, lake)
    assert (done.exported, done.deleted) == (len(sent), len(sent))
    assert rows_in_lake(lake, client) == Counter(sent)


def backends(client: Client) -> set[int]:
    query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
    return {row[0] for row in execute_sql(client, query)}


@pytest.mark.long
def test_a_writer_that_comes_late_changes_nothing(use: Use, lake: Lake, endpoint: str) -> None:
    """It lost its sessions while it was putting its file; a successor has done all of it."""
    client = use("fifo", archive_at_pop="on")
    sent = popped(client, 30)
    mine = backends(client)
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
        for pid in backends(client) - mine:
            execute_sql(client, "SELECT pg_terminate_backend(:pid)", pid=pid)
        done = drive(client, lake)
        assert done.status == 0, done.err
        assert rows_in_lake(lake, client) == Counter(sent)
        proxy.thaw()
        _, err = late.communicate(timeout=120)
    assert late.returncode not in {0, None}, err
    assert everywhere(client, rows_in_lake(lake, client)) == Counter(sent)
    assert drive(client, lake).status == 0
    assert everywhere(client, rows_in_lake(lake, client)) == Counter(sent)


def test_rows_are_read_by_arrow(use: Use, lake: Lake) -> None:
    """As Spark's tasks do it where Spark has no jars."""
    client = use("fifo", archive_at_pop="on")
    sent = popped(client, 5)
    run(client, lake)
    (path,) = lake.data_files("archive")
    columns = {"id": "string", "payload": "binary", "none": "bigint", "due_at": "timestamp"}
    (batch,) = frames._rows(lake, path, columns)
    assert batch.schema.names == list(columns)
    assert [row["payload"].decode() for row in batch.to_pylist()] == sent
    assert batch.schema.field("due_at").type == SCHEMA.field("due_at").type


# -- rollups


def roll_up(lake: Lake, folder: Path) -> rollups.RollupResult:
    return rollups.rollup(lambda: nullcontext(LocalTasks()), lake, [str(folder)])


def rows_of(lake: Lake) -> dict[str, list[dict[str, Any]]]:
    """As the console's history reads them."""
    reader = Rollups(lake.location, "prod")
    span = TimeRange(BEGIN, datetime.max.replace(tzinfo=UTC, year=9000))
    days = reader.days()
    return {width: reader.rows("samples", width, days, span) for width in rollup_files.WIDTHS}


def recorded(folder: Path, *minutes: int) -> None:
    for minute in minutes:
        looks = range(60 * minute, 60 * minute + 60, 10)
        write(folder, SAMPLES, *(sample(at, ready=at, pop_per_second=float(at)) for at in looks))


def test_a_rollup_is_there_as_a_whole(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, local = tmp_path / "recordings", Lake(tmp_path / "lake")
    recorded(folder, 0, 1)
    roll_up(lake, folder)
    early = rows_of(lake)
    assert [len(rows) for rows in early.values()] == [2, 1, 1]
    recorded(folder, 2)

    # Killed before it could say so: all is as it was.
    publish = Lake.write_json
    monkeypatch.setattr(Lake, "write_json", lambda *_, **__: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        roll_up(lake, folder)
    assert rows_of(lake) == early
    assert len(lake.data_files("rollup")) == 6
    monkeypatch.setattr(Lake, "write_json", publish)

    # While one works another one does all of it.
    def both(*_: object, **how: object) -> None:
        monkeypatch.setattr(Lake, "write_json", publish)
        roll_up(lake, folder)
        publish(*_, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(Lake, "write_json", both)
    roll_up(lake, folder)
    roll_up(local, folder)
    assert rows_of(lake) == rows_of(local)
    assert [len(rows) for rows in rows_of(lake).values()] == [3, 1, 1]
    assert len(lake.data_files("rollup")) == 12
    assert not roll_up(lake, folder).selection.due

    # What nobody names any more goes a day later.
    monkeypatch.setattr(lakes, "_UNLISTED_SECONDS", -60.0)
    recorded(folder, 3)
    roll_up(lake, folder)
    assert len(lake.data_files("rollup")) == 3
    assert [len(rows) for rows in rows_of(lake).values()] == [4, 1, 1]


def hours_expected(lake: Lake) -> object:
    found = expected.read(lake.location, "prod", "public", "orders")
    return found.hours, found.weeks, found.last_day


@pytest.mark.long
def test_two_generations_of_every_day_have_the_forecast_of_a_folder(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three weeks, then what a second console saw of them."""
    folder, local = tmp_path / "recordings", Lake(tmp_path / "lake")
    seen = weekly.weeks("day and night", "by chance", 3, 6).reshape(-1, 24)
    weekly.record(folder, seen, seen)
    early = []
    for one in (local, lake):
        assert roll_up(one, folder).forecasts == {"prod": {"known": 1, "too_short": 0}}
        early.append(hours_expected(one))
    assert early[0] == early[1]

    # Each of its days is written and none published, then all; beside them lies what was before.
    weekly.record(folder, 3 * seen, seen, weekly.BEGIN + timedelta(minutes=5))
    with monkeypatch.context() as cut:
        cut.setattr(Lake, "write_json", lambda *_, **__: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            roll_up(lake, folder)
    forecast.update(LocalTasks(), lake, {"prod": "UTC"})
    assert hours_expected(lake) == early[0]
    for one in (local, lake):
        assert len(roll_up(one, folder).selection.due) == 21
    assert hours_expected(lake) == hours_expected(local) != early[0]
    hours = rollup_files.folder("hour", "samples", "prod")
    assert [len(one.data_files(hours)) for one in (local, lake)] == [21, 3 * 21]

    # A forecast that another one is just writing is not taken away, nor is it seen.
    place = forecast_files.folder("prod")
    with lake.writing(f"{place}/of-another.parquet") as file:
        file.write(b"PAR1")
    forecast.update(LocalTasks(), lake, {"prod": "UTC"})
    assert hours_expected(lake) == hours_expected(local)
    assert lake.exists(f"{place}/of-another.parquet")
    monkeypatch.setattr(lakes, "_UNLISTED_SECONDS", -60.0)
    forecast.update(LocalTasks(), lake, {"prod": "UTC"})
    assert len(lake.data_files(place)) == 2, "what the last two manifests name"
    assert hours_expected(lake) == hours_expected(local)
