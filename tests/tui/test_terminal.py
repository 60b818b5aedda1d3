"""The console on a real terminal and a real server; random keys break and change nothing."""

import io
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pexpect  # type: ignore[import-untyped]
import pytest

from console import tui
from console.actions.pop import fail, pop_many
from console.actions.push import push_many
from console.catalog import Queue, audit
from console.engines import Database, open_database
from console.errors import UsageError
from console.features.demo.embedded import EmbeddedServer
from console.plan import Control
from console.rights import Rights
from console.verbs import get_verb
from console.verbs.verb import Target, values_from_texts
from tests.servers import PATIENCE_SECONDS, connect, execute, fresh_database, value, wait_until
from tests.tools import queues
from tests.tui.acting import make, states

pytestmark = pytest.mark.slow

_RUN = "import sys; from console import engines, tui; tui.run([engines.open_database(sys.argv[1])])"


def on_terminal(
    words: Sequence[str],
    columns: int = 80,
    lines: int = 24,
    folder: Path | None = None,
    **environment: str,
) -> "pexpect.spawn[str]":
    """Run Python with these arguments on a pseudo-terminal, in a folder."""
    return pexpect.spawn(
        sys.executable,
        [*words],
        dimensions=(lines, columns),
        env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "", **environment},
        cwd=folder,
        encoding="utf-8",
        timeout=PATIENCE_SECONDS,
    )


def spawn(url: str, columns: int = 80) -> "pexpect.spawn[str]":
    """Start the console."""
    return on_terminal(["-c", _RUN, url], columns)


def install_queue(url: str, name: str) -> None:
    with closing(open_database(url)) as database:
        queues.install_queue(database, name, "fifo")


def quit_at_once(console: "pexpect.spawn[str]") -> str:
    """Press Ctrl-Q, and return everything that is drawn after it."""
    started = time.monotonic()
    console.send("\x11")
    console.expect(pexpect.EOF)
    assert time.monotonic() - started < 5
    console.close()
    assert console.exitstatus == 0, console.before
    return console.before or ""


def test_a_queue_is_on_the_screen_and_ctrl_q_restores_the_terminal(database_url: str) -> None:
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
def test_a_signal_restores_the_terminal(database_url: str, ending: signal.Signals) -> None:
    console = spawn(database_url)
    console.expect("no queues here yet")
    console.kill(ending)
    console.expect(pexpect.EOF)
    assert "\x1b[?1049l" in (console.before or "")
    console.close()
    assert console.exitstatus == 0, console.before


@pytest.mark.long
def test_the_console_ends_when_its_terminal_is_closed(database_url: str) -> None:
    """It gets no signal: this is not its controlling terminal."""
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


@pytest.mark.long
def test_ctrl_q_quits_at_once_while_the_server_does_not_answer(own_server: EmbeddedServer) -> None:
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


@pytest.mark.long  # its picture is in `test_snapshots`
def test_no_color_removes_every_colour(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    console = spawn(database_url)
    console.expect("no queues here yet")
    drawn = (console.before or "") + quit_at_once(console)
    attributes = re.findall(r"\x1b\[([0-9;]*)m", drawn)
    codes = {int(code) for attribute in attributes for code in attribute.split(";") if code}
    assert codes
    assert not codes & {38, 48, *range(30, 38), *range(40, 48), *range(90, 98), *range(100, 108)}


def test_starting_without_a_terminal_is_a_usage_error_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(UsageError, match="needs a terminal") as caught:
        tui.run([])
    assert caught.value.exit_status == 2
    assert len(str(caught.value).splitlines()) == 1


_STARTED = "SELECT 1 FROM dbq.action WHERE outcome = 'running' AND done > 0"
_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


def test_ctrl_q_restores_the_terminal_and_stops_an_action_after_its_batch(
    database: Database, database_url: str
) -> None:
    """The same action again completes the rest."""
    queue = make(database, "mail", "claim", {})
    with database.transaction("fill") as connection:
        connection.exec_driver_sql("DELETE FROM public.mail")
        push_many(connection, queue, [f"m{n}" for n in range(90)])
        for message in pop_many(connection, queue, 90):
            assert fail(connection, queue, message, "boom")
    console = spawn(database_url)
    console.expect(" 90 ")
    # The dialog begins at requeue; in its form: batches of 10, 10 a second.
    console.send("a")
    console.expect("return errors")
    console.send("\r")
    console.expect("Enter makes the plan")
    console.send("\t\t\t10\t10\r")
    console.expect("type y and press Enter")
    console.send("y\r")
    console.expect("of 90")
    with connect(database_url) as monitor, connect(database_url) as other:
        wait_until(lambda: monitor.execute(_STARTED).fetchone() is not None, "a batch")
        other.execute("BEGIN")
        assert other.execute(f"{_STARTED} FOR UPDATE").fetchone() is not None
        wait_until(lambda: monitor.execute(_WAITING).fetchone() == (1,), "a batch kept out")
        console.send("\x11")
        console.expect(re.escape("\x1b[?1049l"))
        assert console.isalive(), "it did not wait for its batch"
        other.execute("ROLLBACK")
    console.expect("stopped, action")
    console.expect(re.compile(r"(\d+) of 90 done, 0 skipped, 0 failed"))
    done = int(console.match.group(1))
    console.wait()
    assert console.exitstatus == 0, console.before
    assert 0 < done < 90
    assert states_of(database_url) == {"ready": done, "error": 90 - done}
    with database.transaction("look", read_only=True) as connection:
        (entry,) = audit.entries(connection, audit.EntryFilter(verb="requeue"))
    assert (entry.outcome, entry.done, entry.planned) == ("stopped", done, 90)
    requeue = get_verb("requeue")
    rest = requeue.plan(Target(database, queue, Rights.ADMIN), values_from_texts(requeue, {}))
    ended = rest.run(Control(), lambda _: None)
    assert ended.ledger is not None
    assert ended.ledger.out == rest.count == 90 - done
    assert states_of(database_url) == {"ready": 90}


def states_of(url: str) -> dict[str, int]:
    """The messages of each state, counted in the table."""
    rows = execute(
        url,
        "SELECT CASE WHEN errors IS NULL THEN 'ready' ELSE 'error' END, count(*), "
        "count(DISTINCT id), count(DISTINCT attempts) FROM mail GROUP BY 1",
    )
    assert all(count == distinct and attempts == 1 for _, count, distinct, attempts in rows)
    return {state: count for state, count, _, _ in rows}


# Without the right to install, since Enter would start a smoke test, which is audited.
_AS_OPERATOR = """
import sys
from console import engines, tui
from console.rights import Rights
database = engines.open_database(sys.argv[1], label="here")
tui.run([database], interval_seconds=0.5, rights=Rights.OPERATOR)
"""
_DESIGNS = {
    "mail": ("claim", {}),
    "letters": ("fifo", {}),
    "orders": ("ring", {"size": "50"}),
    "reports": ("status", {}),
}
_UP, _DOWN, _RIGHT, _LEFT = (f"\x1b[{letter}" for letter in "ABCD")
_PALETTE = "\x10"
_KEYS = (
    *("\r", "\r", "\r", "\r", "\x1b", "\x1b", "\t", "\t", "\x1b[Z", " ", "\x7f"),
    *(_UP, _DOWN, _DOWN, _RIGHT, _LEFT, "\x1b[5~", "\x1b[6~", "\x1b[H", "\x1b[F"),
    # All but y, which confirms; a q after a colon would need an exclamation mark to quit.
    *"abcdefghijklmnopqrstuvwxzADGIRSX0123456789/:?+-[]<>*",
)
_ENOUGH_SECONDS = 60.0


def contents(database: Database, queues: list[Queue]) -> dict[str, Counter[str]]:
    """How many messages of each state each queue has."""
    return {queue.name: states(database, queue) for queue in queues}


def drain(console: "pexpect.spawn[str]", seconds: float) -> None:
    """Read what it draws until it draws nothing for that long."""
    try:
        while True:
            console.read_nonblocking(65_536, timeout=seconds)
    except pexpect.TIMEOUT:
        pass


def type_anything(console: "pexpect.spawn[str]", random_numbers: random.Random, count: int) -> str:
    """Type keys, slowly and in bursts; resize in the middle. Returns what was typed."""
    typed = []
    lines, columns = console.getwinsize()
    for number in range(count):
        if number == count // 2:
            console.setwinsize(72 - lines, 240 - columns)
        key = random_numbers.choice(_KEYS)
        typed.append(key)
        console.send(key)
        if random_numbers.random() < 0.02:
            console.send(_PALETTE)
            drain(console, 0.2)
            console.send("\x1b")
            drain(console, 0.2)
        if random_numbers.random() < 0.6:
            drain(console, random_numbers.choice([0.01, 0.05, 0.2]))
    return repr("".join(typed))


def text_of(drawn: io.StringIO) -> str:
    """What was drawn, without control sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn.getvalue())


def go_back_to_overview(console: "pexpect.spawn[str]") -> None:
    """Press Escape, level by level, until the overview says which key quits."""
    deadline = time.monotonic() + _ENOUGH_SECONDS
    while time.monotonic() < deadline:
        console.send("\x1b")
        if console.expect(["Ctrl-Q quits", pexpect.TIMEOUT], timeout=0.5) == 0:
            return
    pytest.fail("it does not come back to the overview")


@pytest.mark.parametrize(
    ("seed", "columns", "lines", "count"),
    [
        (1, 80, 24, 40),
        *(
            pytest.param(seed, *size, 300, marks=pytest.mark.long)
            for seed in (1, 2, 3)
            for size in ((80, 24), (160, 48))
        ),
    ],
)
def test_random_keys_break_nothing_and_change_nothing(
    database: Database,
    database_url: str,
    tmp_path: Path,
    seed: int,
    columns: int,
    lines: int,
    count: int,
) -> None:
    queues = [make(database, name, *of) for name, of in _DESIGNS.items()]
    before = contents(database, queues)
    actions = value(database_url, "SELECT count(*) FROM dbq.action")
    console = on_terminal(["-c", _AS_OPERATOR, database_url], columns, lines, tmp_path)
    console.delaybeforesend = None
    drawn = console.logfile_read = io.StringIO()
    console.expect("reports")
    try:
        typed = type_anything(console, random.Random(seed), count)
        go_back_to_overview(console)
        quit_at_once(console)
    except pexpect.EOF:
        pytest.fail(f"it ended: {text_of(drawn)[-6000:]}")
    words = text_of(drawn)
    assert "Traceback" not in words, typed
    assert "could not do that" not in words, typed
    assert contents(database, queues) == before, typed
    assert value(database_url, "SELECT count(*) FROM dbq.action") == actions, typed
