"""What the console sees is recorded while it runs, by one console a connection."""

import os
import re
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pexpect  # type: ignore[import-untyped]
import pytest

from console.catalog import Queue
from console.designs import design
from console.doctor.finding import Code, Diagnosis, Finding
from console.doctor.watcher import Examined
from console.monitor.limits import Severity
from console.monitor.recording import segments
from console.monitor.recording.reader import RecordReader
from console.monitor.recording.recorder import Recorder
from console.monitor.recording.segments import ALWAYS, FINDINGS, LINKS, SAMPLES
from console.monitor.sampler import Reading
from console.tui.open_connection import RETRY_SECONDS, PlaceRecording
from tests.servers import PATIENCE_SECONDS, wait_until
from tests.tui.alone import alone, conn, until
from tests.tui.feeds import queue
from tests.tui.test_terminal import install_queue

READING = Reading("prod", (queue("mail", ready=3),), next_seconds=1.0)


def wait_for(condition: Callable[[], object]) -> None:
    wait_until(lambda: bool(condition()), "it comes")


def is_empty(folder: Path) -> bool:
    return not any(folder.iterdir())


async def test_what_comes_is_kept_and_stopping_closes_it(tmp_path: Path) -> None:
    async with alone(connections=[conn()], recordings=tmp_path) as console:
        console.feed.give(queue("mail", ready=3), queue("late"))
        quoted = {"first_error": "card 4111"}
        code = Code("odd", Severity.WARNING, "")
        finding = Finding(code, "it is odd; the first: card 4111", quoted)
        examined = Examined(
            (Diagnosis(Queue("public", "mail", design("fifo"), {}, {}), (finding,)),)
        )
        console.app._hearer("prod")(examined)
        reader = RecordReader(tmp_path, "prod")
        await until(console, lambda: reader.rows(FINDINGS, ALWAYS))
        console.app.open_connections()
        await console.pilot.pause()
        assert "recorded to" in console.picture
    recordings = console.app.context.recordings
    assert recordings is not None
    recordings.wait(60.0)
    assert not segments.leftovers(tmp_path, "prod"), "the segment is open still"
    assert {row["queue"] for row in reader.rows(SAMPLES, ALWAYS)} == {"mail", "late"}
    (kept,) = reader.rows(FINDINGS, ALWAYS)
    assert (kept["queue"], kept["code"], kept["summary"]) == ("mail", "odd", "it is odd")


@pytest.mark.parametrize("record", [True, False])
async def test_not_where_it_is_not_wanted(tmp_path: Path, *, record: bool) -> None:
    options: dict[str, Any] = {"recordings": tmp_path} if not record else {}
    async with alone(connections=[replace(conn(), record=record)], **options) as console:
        console.feed.give(queue("mail"))
        await console.pilot.pause()
        assert is_empty(tmp_path)
        console.app.open_connections()
        await console.pilot.pause()
        assert ("not recorded: record = false" in console.picture) is not record


async def test_what_stops_it_is_on_the_screen(tmp_path: Path) -> None:
    wall = tmp_path / "wall"
    wall.write_text("a file")
    async with alone(connections=[conn()], recordings=wall) as console:
        console.feed.give(queue("mail"))
        await until(console, lambda: "! prod: not recorded:" in console.picture)
        assert "Not a directory" in console.picture


def test_one_console_records_and_the_next_takes_over(tmp_path: Path) -> None:
    now = [0.0]
    first = Recorder(tmp_path, "prod")
    other = PlaceRecording(tmp_path, conn(), lambda: now[0])
    other.saw(READING)
    assert (other.words, other.problem) == ("recorded by another console", "")
    first.close()
    other.saw(READING)
    assert other.words == "recorded by another console"
    now[0] += RETRY_SECONDS
    other.saw(READING)
    assert other.words == f"recorded to {tmp_path}"
    other.end()
    other.wait(time.monotonic() + 60)
    assert len(RecordReader(tmp_path, "prod").rows(LINKS, ALWAYS)) == 1


def test_ending_waits_for_nobody_even_where_the_disk_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = threading.Event()
    monkeypatch.setattr(segments.Segment, "write", lambda *_: hangs.wait())
    recording = PlaceRecording(tmp_path, conn())
    for _ in range(2_000):  # more than may wait
        recording.saw(READING)
    assert recording.problem == "not recorded: the disk is too slow"
    recording.end()
    recording.wait(time.monotonic() + 0.1)
    hangs.set()


def started(url: str, state: Path) -> "pexpect.spawn[str]":
    environment = {**os.environ, "TERM": "xterm-256color", "XDG_STATE_HOME": str(state)}
    words = ["-m", "console.cli", "--url", url]
    return pexpect.spawn(
        sys.executable,
        words,
        dimensions=(24, 100),
        env=environment,
        encoding="utf-8",
        timeout=PATIENCE_SECONDS,
    )


@pytest.mark.long
def test_what_a_kill_leaves_the_next_start_closes(database_url: str, tmp_path: Path) -> None:
    install_queue(database_url, "letters")
    root = tmp_path / "dbq-console" / "recordings"

    def kept() -> list[object]:
        names = segments.connections(root)
        return [
            row["at"] for name in names for row in RecordReader(root, name).rows(SAMPLES, ALWAYS)
        ]

    console = started(database_url, tmp_path)
    console.expect("letters")
    wait_for(kept)
    (name,) = segments.connections(root)
    console.kill(9)
    console.expect(pexpect.EOF)
    console.close()
    (left,) = segments.leftovers(root, name)
    before = kept()
    with started(database_url, tmp_path) as second:
        second.expect("letters")
        wait_for(lambda: not left.exists())
        assert [*segments.closed(root, SAMPLES, name)]
        assert kept()[: len(before)] == before
        # Another one beside it looks all the same, and does not record.
        with started(database_url, tmp_path) as third:
            third.expect("letters")
            third.send("c")
            third.expect(re.escape("recorded by another console"))
            third.send("\x11")
            third.expect(pexpect.EOF)
        second.send("\x11")
        second.expect(pexpect.EOF)
    wait_for(lambda: not segments.leftovers(root, name))
