"""`record` and `history`: against a real server, with kills, by its first sight and its last."""

import csv
import io
import math
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg

from console.engines import open_database
from console.monitor.latency import FIGURES as LATENCIES
from console.monitor.latency import Latency, Percentiles
from console.monitor.recording.reader import RecordReader
from console.monitor.recording.segments import (
    ACTIONS,
    FINDINGS,
    SAMPLES,
    WAITS,
    RecordKind,
    TimeRange,
)
from tests.cli.calls import Console, call
from tests.cli.conftest import Install
from tests.servers import PATIENCE_SECONDS, connect, wait_until
from tests.tui.feeds import queue
from tests.tui.recorded import BEGIN, Taken
from tests.warm import Forked

_POINT = [
    *("at", "looks", "ready", "scheduled", "claimed", "stuck", "errors", "done", "age_seconds"),
    *("gap", "push_per_second", "pop_per_second", "latency_seconds", "pause_seconds"),
    *LATENCIES,
    "subscribers",
]


@contextmanager
def recording(console: Console, folder: Path) -> Iterator[Forked]:
    """`dbq-console record` while it runs; then it is asked to end, if it has not."""
    words = ["record", "--url", console.url, "--recordings", str(folder)]
    environment = {**os.environ, "DBQ_INTERVAL": "0.2s"}
    with Forked(words, environment, stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.terminate()


@contextmanager
def sleeping(console: Console) -> Iterator[None]:
    """A session that waits, for as long as this lasts."""
    with connect(console.url) as connection, ThreadPoolExecutor(1) as pool:
        waits = pool.submit(connection.execute, "SELECT pg_sleep(600)")
        yield
        connection.cancel_safe()
        assert isinstance(waits.exception(30), psycopg.errors.QueryCanceled)


def rows(console: Console, folder: Path, kind: RecordKind) -> list[dict[str, object]]:
    """Everything of a kind that is recorded."""
    now = datetime.now(UTC)
    span = TimeRange(now - timedelta(days=1), now + timedelta(days=1))
    return RecordReader(folder, open_database(console.url).label).rows(kind, span)


def test_recorded_killed_recorded_again_and_shown(
    console: Console, install: Install, tmp_path: Path
) -> None:
    name = install("ring", "size=100")
    console.done("push", name, "-", "--lines", stdin=b"one\ntwo\nthree\n")
    with sleeping(console), recording(console, tmp_path) as killed:
        for kind in (SAMPLES, FINDINGS, WAITS, ACTIONS):
            wait_until(lambda of=kind: bool(rows(console, tmp_path, of)), kind.name)  # type: ignore[misc]
        killed.kill()
        killed.wait()
    before = rows(console, tmp_path, SAMPLES)
    assert not list(tmp_path.glob("samples/*/*/*.parquet"))
    with recording(console, tmp_path) as process:
        more = len(before) + 3
        wait_until(lambda: len(rows(console, tmp_path, SAMPLES)) >= more, "more samples")
        second = console("record", "--recordings", str(tmp_path))
        assert second.status == 4
        assert "recorded already" in second.err
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


def test_history_without_a_record_says_where_one_would_come_from(
    console: Console, install: Install, tmp_path: Path
) -> None:
    name = install("fifo")
    answer = console("history", name, "--recordings", str(tmp_path))
    assert answer.status == 1
    assert "dbq-console record" in answer.err
    assert console("history", name, "--csv", "--plot").status == 2


def test_latencies_are_shown_where_they_were_known(tmp_path: Path) -> None:
    taken = Taken(tmp_path)
    told = Latency(Percentiles(0.1, 0.4, 2.0), Percentiles(unknown="complete deletes the message"))
    for second in range(20):
        taken.look(second, queue("mail", latency=told), queue("other"))
    taken.close()
    since = str(math.ceil((datetime.now(UTC) - BEGIN).total_seconds() / 86_400) + 1)
    where = ("--recordings", str(tmp_path), "--since", f"{since}d")
    table = call("history", "mail", *where).text
    assert table.splitlines()[0].split()[-1] == "waiting"
    assert "400 ms" in table
    assert "of waiting and processing the highest p95" in table
    assert "waiting" not in call("history", "other", *where).text
    plot = call("history", "mail", *where, "--plot").text
    assert "waiting_p99" in plot
    assert "processing" not in plot
