"""`messages --export` in a process of its own: killed, without room, and by whom it may be."""

import json
import os
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from tests.cli.calls import COMMAND, Console
from tests.cli.conftest import Install
from tests.servers import PATIENCE_SECONDS, wait_until


def numbers(file: Path) -> list[str]:
    return [json.loads(line)["payload"].strip("x") for line in file.read_text().splitlines()]


def test_killed_in_the_middle_it_goes_on_to_each_message_once(
    console: Console, install: Install, tmp_path: Path
) -> None:
    name, file = install("fifo"), tmp_path / "all.jsonl"
    lines = "\n".join(map(str, range(100)))
    console.done("push", name, "-", "--lines", stdin=lines.encode())
    words = ("messages", name, "--export", str(file), "--payload")
    state = tmp_path / "all.jsonl.partial.state"
    with console.process(*words, "--rate", "10") as running:
        wait_until(state.exists, "a page is written")
        running.send_signal(signal.SIGKILL)
        running.wait(PATIENCE_SECONDS)
    before = json.loads(state.read_text())
    assert 0 < before["messages"] < 100
    assert not file.exists()
    console.done("push", name, "later")
    done = console.done(*words, "--json").json
    assert (done["messages"], done["resumed"], done["cutoff"]) == (
        100,
        before["messages"],
        before["cutoff"],
    )
    assert numbers(file) == [str(n) for n in range(100)]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == [file.name]
    again = console(*words)
    assert again.status == 2
    assert "is there already" in again.err


@pytest.mark.long
def test_no_room_is_said_and_it_goes_on_once_there_is(
    console: Console, install: Install, tmp_path: Path
) -> None:
    name, file = install("fifo"), tmp_path / "all.jsonl"
    lines = "\n".join(f"{n}{'x' * 1000}" for n in range(700))
    console.done("push", name, "-", "--lines", stdin=lines.encode())
    words = ["messages", name, "--export", str(file), "--payload", "--rate", "100000"]
    limited = subprocess.run(
        ["/bin/bash", "-c", 'ulimit -f 800; exec "$@"', "bash", *COMMAND, *words],
        env=os.environ | {"DBQ_URL": console.url},
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert limited.returncode == 2
    assert b"Could not write" in limited.stderr
    assert b"the same command goes on" in limited.stderr
    assert b"Traceback" not in limited.stderr
    assert not file.exists()
    assert console.done(*words, "--json").json["resumed"] == 500
    assert numbers(file) == [str(n) for n in range(700)]


def test_it_says_what_does_not_go_together(
    console: Console, install: Install, tmp_path: Path
) -> None:
    name, file = install("fifo"), str(tmp_path / "x.jsonl")
    for words, why in (
        (["--export", file, "--limit", "5"], "--limit"),
        (["--export", file, "--after", "ready", "--reverse"], "--after, --reverse"),
        (["--rate", "5"], "--rate goes with --export"),
        (["--export", file, "--rate", "0"], "above 0"),
    ):
        answer = console("messages", name, *words)
        assert answer.status == 2
        assert why in answer.err
    refused = console("messages", name, "--export", file, "--payload", "--rights", "read-only")
    assert refused.status == 4
    assert list(tmp_path.iterdir()) == []
    console.done("messages", name, "--export", file, "--rights", "read-only")
    assert Path(file).read_text() == ""
