"""history, forecasts, and what the doctor and status derive from them."""

import csv
import io
import math
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import psycopg
import pytest

from console import clock
from console.designs import Flow
from console.engines import open_database
from console.features.history import forecast_files, recorder, rollup_files
from console.features.history.forecast import hour_of
from console.features.history.reader import RecordReader
from console.features.history.segments import (
    ACTIONS,
    FINDINGS,
    SAMPLES,
    WAITS,
    RecordKind,
    TimeRange,
)
from console.features.lake.lake import Lake
from console.features.lake.rollup import forecast
from console.features.lake.rollup.table import RollupTable
from console.monitor.latency import FIGURES as LATENCIES
from console.monitor.latency import Latency, Percentiles
from console.monitor.rates import RateWindow, StatusRow
from tests.cli.calls import Console, call
from tests.cli.conftest import Install
from tests.pipeline import weekly
from tests.pipeline.recorded import put_days, sample, write
from tests.servers import PATIENCE_SECONDS, connect, wait_until
from tests.servers.cluster import s3_environment
from tests.tools.local_tasks import LocalTasks
from tests.tools.warm import Forked
from tests.tui.feeds import BEGIN, BEHIND, RecordedConnection, queue
from tests.unit.test_snapshot import NOTHING

_POINT = [
    *("at", "samples", "ready", "scheduled", "claimed", "stuck", "errors", "done", "age_seconds"),
    *("gap", "push_per_second", "pop_per_second", "latency_seconds", "pause_seconds"),
    *LATENCIES,
    "subscribers",
]


@contextmanager
def recording(console: Console, folder: Path) -> Iterator[Forked]:
    """`dbq-console record` while it runs, then SIGTERM. A test that fails shows its stderr."""
    arguments = ["record", "--url", console.url, "--recordings", str(folder)]
    environment = {**os.environ, "DBQ_INTERVAL": "0.2s"}
    with (
        tempfile.TemporaryFile() as errors,
        Forked(
            arguments, environment, stdout=subprocess.DEVNULL, stderr=errors.fileno()
        ) as process,
    ):
        try:
            yield process
        except BaseException:
            process.send_signal(signal.SIGABRT)  # it prints the stacks of its threads
            process.wait()
            errors.seek(0)
            print(errors.read().decode())
            raise
        process.terminate()


@contextmanager
def sleeping(console: Console) -> Iterator[None]:
    """A session that waits until the end of the block."""
    with connect(console.url) as connection, ThreadPoolExecutor(1) as pool:
        waits = pool.submit(connection.execute, "SELECT pg_sleep(600)")
        yield
        connection.cancel_safe()
        assert isinstance(waits.exception(30), psycopg.errors.QueryCanceled)


def rows(console: Console, folder: Path, kind: RecordKind) -> list[dict[str, object]]:
    """All recorded rows of a kind."""
    now = datetime.now(UTC)
    span = TimeRange(now - timedelta(days=1), now + timedelta(days=1))
    return RecordReader(folder, open_database(console.url).label).rows(kind, span)


def test_history_shows_the_samples_of_a_killed_recorder_and_of_the_next_one(
    console: Console, install: Install, tmp_path: Path
) -> None:
    name = install("ring", "size=100")
    console.done("push", name, "-", "--lines", stdin=b"one\ntwo\nthree\n")
    with sleeping(console), recording(console, tmp_path) as killed:
        for kind in (SAMPLES, FINDINGS, WAITS, ACTIONS):
            wait_until(lambda expected=kind: bool(rows(console, tmp_path, expected)), kind.name)  # type: ignore[misc]
        killed.kill()
        killed.wait()
    before = rows(console, tmp_path, SAMPLES)
    assert not list(tmp_path.glob("samples/*/*/*.parquet"))
    with recording(console, tmp_path) as process:
        more = len(before) + 3
        wait_until(lambda: len(rows(console, tmp_path, SAMPLES)) >= more, "more samples")
        console("record", "--recordings", str(tmp_path)).failed(4, "already being recorded")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
    assert list(tmp_path.glob("samples/*/*/*.parquet"))
    assert not list(tmp_path.glob("open/*/*.jsonl"))
    assert rows(console, tmp_path, SAMPLES)[: len(before)] == before

    where = ("--recordings", str(tmp_path), "--since", "1h")
    answer = console("history", name, *where, "--json").json
    assert (answer["queue"], answer["schema"], answer["step_seconds"]) == (name, "public", 1)
    assert answer["points"]
    for point in answer["points"]:
        assert list(point) == _POINT
        assert (point["ready"], point["gap"], point["claimed"]) == (3, 3, None)
    marks = {(mark["kind"], mark["name"]) for mark in answer["marks"]}
    assert ("action", "install") in marks
    table = console("history", name, *where)
    assert "the highest count" in table.text
    lines = list(csv.DictReader(io.StringIO(console("history", name, *where, "--csv").text)))
    assert list(lines[0]) == _POINT
    assert (lines[0]["ready"], lines[0]["claimed"]) == ("3", "")
    plot = console("history", name, *where, "--plot").text
    assert "depth" in plot
    assert "push/pop sequence gap" in plot
    assert "\x1b" not in plot


def test_history_without_recordings_names_the_verb_that_records(
    console: Console, install: Install, tmp_path: Path
) -> None:
    name = install("fifo")
    console("history", name, "--recordings", str(tmp_path)).failed(1, "dbq-console record")
    assert console("history", name, "--csv", "--plot").status == 2


def test_history_shows_latencies_only_where_they_were_known(tmp_path: Path) -> None:
    taken = RecordedConnection(tmp_path)
    known = Latency(Percentiles(0.1, 0.4, 2.0), Percentiles(unknown="complete deletes the message"))
    for second in range(20):
        taken.sample(second, queue("mail", latency=known), queue("other"))
    taken.close()
    since = str(math.ceil((datetime.now(UTC) - BEGIN).total_seconds() / 86_400) + 1)
    where = ("--recordings", str(tmp_path), "--since", f"{since}d")
    table = call("history", "mail", *where).text
    assert table.splitlines()[0].split()[-1] == "waiting"
    assert "400 ms" in table
    assert "the highest p95 of waiting and processing" in table
    assert "waiting" not in call("history", "other", *where).text
    plot = call("history", "mail", *where, "--plot").text
    assert "waiting_p99" in plot
    assert "processing" not in plot


def test_history_says_where_samples_were_taken_on_a_standby(tmp_path: Path) -> None:
    recorded = RecordedConnection(tmp_path)
    begin = (datetime.now(UTC) - BEGIN).total_seconds() - 60
    for second in range(10):
        recorded.sample(begin + second, queue("mail"), standby=BEHIND if second < 5 else None)
    recorded.close()
    where = ("--recordings", str(tmp_path))
    text = call("history", "mail", *where).text
    assert "standby prod: " in text
    assert ": taken on a standby of db1:5432, at most 5 min behind" in text
    (mark,) = call("history", "mail", *where, "--json").json["marks"]
    assert mark["kind"] == "standby"


HOURS = forecast_files.HOURS


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate state folder, and an hour that does not end during the test."""
    now = datetime.now(UTC)
    monkeypatch.setattr(clock, "utc", lambda: now)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def label(console: Console) -> str:
    database = open_database(console.url)
    database.close()
    return database.label


def write_forecast(console: Console, queue: str, pushes: float, pops: float) -> Lake:
    """Write four weeks of these rates, up to the last hour, and their forecast."""
    lake, connection = Lake(rollup_files.default_lake()), label(console)
    begin = hour_of(clock.utc()) - timedelta(hours=4 * HOURS + 1)
    counts = (np.full(4 * HOURS, one) for one in (pushes, pops))
    table = weekly.hours(*counts, begin=begin, queue=queue)
    put_days(lake, {begin.date(): {("samples", "hour"): table}}, connection=connection)
    rollups = RollupTable.open(lake)
    assert rollups is not None
    forecast.update(LocalTasks(), rollups, {connection: "UTC"})
    return lake


def record_hour(console: Console, queue: str, pushes: float, minutes: int = 60) -> None:
    """Record the last full hour, or its first minutes, with these pushes and as many pops."""
    at = (hour_of(clock.utc()) - timedelta(hours=1) - sample(0)["at"]).total_seconds()
    rates = {"push_per_second": pushes / 3600, "pop_per_second": pushes / 3600}
    samples = [{**sample(at + 60 * n, **rates), "queue": queue} for n in range(minutes)]
    write(recorder.folder(), SAMPLES, *samples, connection=label(console))


def test_the_doctor_reports_an_unusual_hour_as_a_note(console: Console, install: Install) -> None:
    name = install("fifo")
    write_forecast(console, name, 1_000, 1_000)
    record_hour(console, name, 50_000, minutes=20)
    assert console("doctor", name, "--json").json["queues"][0]["verdict"] == "all clear"
    record_hour(console, name, 50_000)
    answer = console("doctor", name, "--json")
    assert answer.status == 0  # a note
    (finding,) = answer.json["queues"][0]["findings"]
    assert (finding["code"], finding["severity"], finding["repair"]) == ("unusual", "note", None)
    evidence = finding["evidence"]
    assert evidence["pushes_seen"] == pytest.approx(50_000, rel=0.02)
    assert (evidence["pushes_low"], evidence["pushes_high"]) == (1_000, 1_000)
    assert evidence["weeks"] == 4
    began = hour_of(clock.utc()) - timedelta(hours=1)
    assert evidence["hour_of_week"] == f"{began:%A %H:%M} UTC"
    text = console("doctor", name).text
    assert "[unusual]" in text
    assert "needs your judgement: see what changed" in text
    assert f"history '{name}' --forecast 24h --plot" in text
    console.done("silence", "unusual", name, "--for", "4h", "--reason", "a sale")
    assert console("doctor", name, "--json").json["queues"][0]["verdict"] == "silenced"
    codes = {one["code"]: one for one in console("doctor", "--codes", "--json").json["codes"]}
    assert codes["unusual"]["severity"] == "note"


def test_history_of_a_lake_that_cannot_be_read_says_so(
    console: Console, install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = install("fifo")
    lake = write_forecast(console, name, 1_000, 1_000)
    record_hour(console, name, 1_000)
    assert console("history", name).status == 0
    log = Path(lake.path("rollup/_delta_log"))
    kept = log.rename(tmp_path / "kept")
    for damage in ("none", "empty", "torn"):
        if damage == "empty":
            log.mkdir()
        elif damage == "torn":
            torn(kept, log)
        broken = console("history", name, "--json")
        assert broken.status == 3, "no fewer points without a word"
        assert "The table rollup in the lake" in broken.err
        assert "put the folder rollup/_delta_log back" in broken.err
        assert list(broken.json) == ["error"]
    file = tmp_path / "file"
    file.write_text("")
    assert "It is a file" in console("history", name, "--lake", str(file)).err
    for lake_option in ("", " ", str(file)):
        assert console("history", name, "--lake", lake_option).status == 2
    for variable, value in s3_environment("http://127.0.0.1:9").items():
        monkeypatch.setenv(variable, value)
    console("history", name, "--lake", "s3://bucket/lake").failed(3, "cannot be reached")


def torn(log: Path, to: Path) -> None:
    to.rmdir()
    shutil.copytree(log, to)
    for document in to.iterdir():
        document.write_bytes(document.read_bytes()[:-9])


def test_status_shows_when_a_ring_will_be_full_by_its_forecast(
    console: Console, install: Install
) -> None:
    name = install("ring", "size=100")
    assert console("status", name, "--json").json["queues"][0]["full_in_expected"] is None
    write_forecast(console, name, 150, 100)
    (row,) = console("status", name, "--json").json["queues"]
    expected = row["full_in_expected"]
    assert expected["seconds"] == pytest.approx(7200, abs=1)
    assert f"{name}: full in at {expected['day']}'s rate: 02:00" in console("status", name).text
    console.done("push", name, "one")
    (row,) = console("status", name, "--json").json["queues"]
    assert row["full_in_expected"]["seconds"] == pytest.approx(7200 * 0.99, abs=1)


def test_a_queue_that_is_reinstalled_has_no_negative_rate() -> None:
    """Samples of numbers that begin again, rolled up and forecast."""
    window, rates = RateWindow(Flow.NUMBERS), []
    for number in range(4 * HOURS * 2):
        since = number % 100  # reinstalled after 100 samples
        rate = window.add(number * 1800.0, _ring(1 + 50 * since), counts_rows=True)
        rates.append((rate.push, rate.pop))
    known = [np.array(values, float) for values in zip(*rates, strict=True)]  # None as NaN
    assert 0 < np.isnan(known[0]).sum() < 20
    hours = [np.where(np.isnan(values[::2]), values[1::2], values[::2]) * 3600 for values in known]
    for row in forecast.table_of(weekly.hours(*hours), "UTC").to_pylist():
        assert row["weeks"] == 4
        assert [row[f"pushes_{bound}"] for bound in forecast_files.BOUNDS] == [100, 100, 100]
        assert row["net_median"] == 0


def _ring(number: int) -> StatusRow:
    return replace(NOTHING, next_push=number, next_pop=number, base=1, capacity=100)
