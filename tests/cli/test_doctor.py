"""What `doctor` says while it waits for the second sample of the consumption."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.cli.calls import COMMAND, Console
from tests.cli.conftest import Install
from tests.servers import PATIENCE_SECONDS, execute

ERASED = b"\x1b[2K"
"""An erased line of a terminal."""


@pytest.fixture
def waiting(console: Console, install: Install) -> str:
    """A queue whose message has waited for an hour, and whose consumers never were there."""
    name = install("fifo")
    console.done("push", name, "x")
    execute(console.url, f"UPDATE \"{name}\" SET pushed_at = now() - interval '1 hour'")
    return name


def test_what_is_known_is_said_before_the_second_sample(console: Console, waiting: str) -> None:
    with console.process("doctor", waiting, "--idle-for", "50m") as doctor:
        assert doctor.stderr is not None
        head, *more = iter(doctor.stderr.readline, b"consumption: asked again in 50 min\n")
        doctor.send_signal(signal.SIGINT)
        out, err = doctor.communicate(timeout=PATIENCE_SECONDS)
    assert head.decode() == f"public.{waiting} (fifo): unknown\n"
    assert b"not examined: consumption not known: it takes two samples 50 min apart" in more[-1]
    assert (doctor.returncode, out, err) == (128 + signal.SIGINT, b"", b"Interrupted.\n")


def test_the_result_refines_what_was_known(console: Console, waiting: str) -> None:
    answer = console("doctor", waiting, "--idle-for", "2s")
    assert answer.status == 1
    assert "[consumer_stopped]" in answer.text
    assert "consumption not known" not in answer.text
    assert "[consumer_stopped]" not in answer.err
    assert "consumption: asked again in " in answer.err.splitlines()[-1]


def test_json_is_one_object_at_the_end(console: Console, waiting: str) -> None:
    answer = console("doctor", waiting, "--idle-for", "2s", "--json")
    (queue,) = answer.json["queues"]
    assert "consumer_stopped" in [one["code"] for one in queue["findings"]]
    assert answer.err == ""


def test_nothing_is_said_before_a_result_that_comes_at_once(
    console: Console, install: Install
) -> None:
    assert console.done("doctor", install("fifo"), "--idle-for", "50m").err == ""


@contextmanager
def on_a_terminal(console: Console, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The call with its stderr on a terminal, and the terminal's other end."""
    ours, its = os.openpty()
    environment = {**os.environ, "DBQ_URL": console.url, "TERM": "xterm-256color"}
    environment |= {"COLUMNS": "100", "LINES": "50"}
    with subprocess.Popen(
        [*COMMAND, *words], stdout=subprocess.PIPE, stderr=its, env=environment
    ) as call:
        os.close(its)
        try:
            yield call, ours
        finally:
            os.close(ours)
            call.kill()


def read_until(terminal: int, *words: bytes) -> bytes:
    shown = b""
    for word in words:
        while word not in shown:
            shown += os.read(terminal, 65536)
    return shown


def test_a_terminal_counts_down_and_replaces_what_was_known(console: Console, waiting: str) -> None:
    with on_a_terminal(console, "doctor", waiting, "--idle-for", "5s") as (call, terminal):
        counted = read_until(terminal, b"asked again in", ERASED)
        with suppress(OSError):  # its end
            while more := os.read(terminal, 65536):
                counted += more
        seconds = [int(of) for of in re.findall(rb"asked again in (\d) s", counted)]
        assert seconds == sorted(seconds, reverse=True)
        assert len(set(seconds)) > 1
        assert b"(fifo): unknown" in counted
        assert call.stdout is not None
        assert b"[consumer_stopped]" in call.stdout.read()


def test_what_was_known_stays_on_the_terminal_after_ctrl_c(console: Console, waiting: str) -> None:
    with on_a_terminal(console, "doctor", waiting, "--idle-for", "50m") as (call, terminal):
        shown = read_until(terminal, b"asked again in 50 min")
        call.send_signal(signal.SIGINT)
        shown += read_until(terminal, b"Interrupted.")
        assert call.wait(PATIENCE_SECONDS) == 128 + signal.SIGINT
        assert b"asked again" in shown.rpartition(ERASED)[2]


def test_the_confirmation_of_its_repairs(console: Console, install: Install) -> None:
    name = install("fifo")
    execute(console.url, f'DROP FUNCTION public."{name}_push_many"')
    doctor = ("doctor", name, "--idle-for", "0s")
    assert console(*doctor).status == 1
    assert console(*doctor, "--fix", "--code", "no_such_code").status == 2
    assert console(*doctor, "--dry-run").status == 2, "it goes with --fix"
    planned = console.done(*doctor, "--fix", "--dry-run", "--json").json
    assert [one["summary"] for one in planned["plan"]] == [
        "install the code of this console's version (upgrade)"
    ]
    for words, status in (([], 4), (["--yes"], 4), (["--yes", "other"], 4), (["--yes", name], 0)):
        assert console(*doctor, "--fix", *words).status == status, words
    nothing = console(*doctor, "--fix")
    assert (nothing.status, "without your judgement" in nothing.text) == (0, True)
