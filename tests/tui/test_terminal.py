"""The console on a real terminal and a real server."""

import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pexpect  # type: ignore[import-untyped]
import pytest

from console import tui
from console.actions.install import install
from console.catalog import installed_queue
from console.designs import design
from console.engines import open_database
from console.engines.embedded import EmbeddedServer
from console.errors import UsageError
from tests.servers import PATIENCE_SECONDS, fresh_database

_RUN = "import sys; from console import engines, tui; tui.run([engines.open_database(sys.argv[1])])"


def spawn(
    url: str, columns: int = 80, lines: int = 24, run: str = _RUN, folder: Path | None = None
) -> "pexpect.spawn[str]":
    """The console on a pseudo-terminal, in a folder."""
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": ""}
    return pexpect.spawn(
        sys.executable,
        ["-c", run, url],
        dimensions=(lines, columns),
        env=environment,
        cwd=folder,
        encoding="utf-8",
        timeout=PATIENCE_SECONDS,
    )


def install_queue(url: str, name: str) -> None:
    database = open_database(url)
    try:
        fifo = design("fifo", "postgresql")
        install(
            database, installed_queue("public", name, fifo, fifo.complete_options({}, "postgresql"))
        )
    finally:
        database.close()


def quit_at_once(console: "pexpect.spawn[str]") -> str:
    """Ctrl-Q, and everything that came after it."""
    started = time.monotonic()
    console.send("\x11")
    console.expect(pexpect.EOF)
    assert time.monotonic() - started < 5
    console.close()
    assert console.exitstatus == 0
    return console.before or ""


def test_a_queue_is_on_the_screen_and_ctrl_q_leaves_the_terminal_clean(database_url: str) -> None:
    install_queue(database_url, "[bold]letters")
    console = spawn(database_url)
    console.expect(re.escape("[bold]letters"))
    console.expect("Ctrl-Q|\\^q")
    console.send("?jjq/let\rsS +-r")
    last = quit_at_once(console)
    assert "\x1b[?1049l" in last, "the terminal was not given back"
    assert "Traceback" not in last


@pytest.mark.long
@pytest.mark.parametrize(
    "ending", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.long)]
)
def test_a_signal_gives_the_terminal_back(database_url: str, ending: signal.Signals) -> None:
    console = spawn(database_url)
    console.expect("no queues here yet")
    console.kill(ending)
    console.expect(pexpect.EOF)
    assert "\x1b[?1049l" in (console.before or "")
    console.close()
    assert console.exitstatus == 0


@pytest.mark.long
def test_a_terminal_that_goes_away_ends_the_console(database_url: str) -> None:
    """No signal tells it: it is not its controlling terminal."""
    ours, its = os.openpty()
    environment = {**os.environ, "TERM": "xterm-256color"}
    console = subprocess.Popen(
        [sys.executable, "-c", _RUN, database_url],
        stdin=its,
        stdout=its,
        stderr=its,
        env=environment,
        start_new_session=True,
    )
    os.close(its)
    try:
        shown = b""
        while b"no queues here yet" not in shown:
            shown += os.read(ours, 65536)
    finally:
        os.close(ours)
    try:
        console.wait(PATIENCE_SECONDS)
    finally:
        console.kill()


@pytest.mark.long  # each screen in `test_faults`
def test_the_server_may_die_and_come_back(own_server: EmbeddedServer) -> None:
    with fresh_database(own_server.url) as url:
        install_queue(url, "letters")
        console = spawn(url, columns=160)
        console.expect("letters")
        own_server.kill()
        console.expect("lost")
        console.expect("old")
        own_server.restart()
        console.send("r")
        console.expect("all clear")
        quit_at_once(console)


@pytest.mark.long
def test_it_quits_at_once_while_the_server_says_nothing(own_server: EmbeddedServer) -> None:
    with fresh_database(own_server.url) as url:
        install_queue(url, "letters")
        console = spawn(url)
        console.expect("letters")
        own_server.pause()
        try:
            console.expect("not answered within")
            quit_at_once(console)
        finally:
            own_server.resume()


@pytest.mark.long  # the picture of it in `test_snapshots`
def test_no_colours_means_none(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    console = spawn(database_url)
    console.expect("no queues here yet")
    drawn = (console.before or "") + quit_at_once(console)
    attributes = re.findall(r"\x1b\[([0-9;]*)m", drawn)
    codes = {int(code) for one in attributes for code in one.split(";") if code}
    assert codes
    assert not codes & {38, 48, *range(30, 38), *range(40, 48), *range(90, 98), *range(100, 108)}


def test_without_a_terminal_it_is_wrong_use_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(UsageError, match="needs a terminal") as caught:
        tui.run([])
    assert caught.value.exit_status == 2
    assert len(str(caught.value).splitlines()) == 1
