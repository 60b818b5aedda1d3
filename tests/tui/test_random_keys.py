"""Any keys, on a real terminal and a real server: nothing breaks, and nothing changes."""

import io
import random
import re
import time
from collections import Counter
from pathlib import Path

import pexpect  # type: ignore[import-untyped]
import pytest

from console.catalog import Queue
from console.engines import Database
from tests.servers import value
from tests.tui.acting import database_at, make, states
from tests.tui.test_terminal import quit_at_once, spawn

# Without the right to install: Enter begins a smoke test, which keeps a line of its own.
_RUN = """
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
    # All but y, which says yes; a q behind a colon would need an exclamation mark to quit.
    *"abcdefghijklmnopqrstuvwxzADGIRSX0123456789/:?+-[]<>*",
)
_ENOUGH_SECONDS = 60.0


def contents(database: Database, queues: list[Queue]) -> dict[str, Counter[str]]:
    """How many messages of each state each queue has."""
    return {queue.name: states(database, queue) for queue in queues}


def drain(console: "pexpect.spawn[str]", seconds: float) -> None:
    """Take what it draws, until it draws nothing for so long."""
    try:
        while True:
            console.read_nonblocking(65_536, timeout=seconds)
    except pexpect.TIMEOUT:
        pass


def type_anything(console: "pexpect.spawn[str]", chance: random.Random, count: int) -> str:
    """Keys, slowly and in bursts; another size in the middle. What was typed."""
    typed = []
    lines, columns = console.getwinsize()
    for number in range(count):
        if number == count // 2:
            console.setwinsize(72 - lines, 240 - columns)
        key = chance.choice(_KEYS)
        typed.append(key)
        console.send(key)
        if chance.random() < 0.02:
            console.send(_PALETTE)
            drain(console, 0.2)
            console.send("\x1b")
            drain(console, 0.2)
        if chance.random() < 0.6:
            drain(console, chance.choice([0.01, 0.05, 0.2]))
    return repr("".join(typed))


def words_of(drawn: io.StringIO) -> str:
    """What was written, without what moves the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn.getvalue())


def go_out(console: "pexpect.spawn[str]") -> None:
    """Escape goes out level by level; on the overview it tells what quits."""
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
def test_no_keys_break_it_or_change_anything(
    database_url: str, tmp_path: Path, seed: int, columns: int, lines: int, count: int
) -> None:
    with database_at(database_url) as database:
        queues = [make(database, name, *of) for name, of in _DESIGNS.items()]
        before = contents(database, queues)
        actions = value(database_url, "SELECT count(*) FROM dbq.action")
        console = spawn(database_url, columns, lines, _RUN, tmp_path)
        console.delaybeforesend = None
        drawn = console.logfile_read = io.StringIO()
        console.expect("reports")
        try:
            typed = type_anything(console, random.Random(seed), count)
            go_out(console)
            quit_at_once(console)
        except pexpect.EOF:
            pytest.fail(f"it ended: {words_of(drawn)[-6000:]}")
        words = words_of(drawn)
        assert "Traceback" not in words, typed
        assert "could not do that" not in words, typed
        assert contents(database, queues) == before, typed
        assert value(database_url, "SELECT count(*) FROM dbq.action") == actions, typed
