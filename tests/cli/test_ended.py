"""Calls that end before they have an answer: interrupted, or where a server says nothing."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.calls import Answer
from tests.cli.verbs import PASSWORD, refused
from tests.servers import PATIENCE_SECONDS
from tests.warm import Forked


@pytest.fixture(scope="module", autouse=True)
def call_of_a_silent_server(long: bool) -> Iterator[Forked]:
    """A call to a server that takes the connection and never says a word; it waits meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        limit = "10s" if long else "2s"
        url = f"postgresql+psycopg://somebody:{PASSWORD}@127.0.0.1:{port}/x"
        environment = {**os.environ, "DBQ_CONNECT_TIMEOUT": limit}
        with Forked(["status", "--json", "--url", url], environment) as running:
            try:
                yield running
            finally:
                running.kill()


_INTERRUPTED_WHILE_LOADING = """
import sys
class Interrupt:
    def find_spec(self, name, *_):
        if name == "console.cli.verbs":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from console.cli import main
main()
"""
_INTERRUPTED_IN_EXEC = """
import sys
class Interrupt:
    def find_spec(self, name, *_):
        if name == {name!r}:
            exec("import os, signal; os.kill(os.getpid(), signal.SIGINT)\\nwhile True: pass")
sys.meta_path.insert(0, Interrupt())
from console.cli import main
main()
"""


@pytest.mark.parametrize("name", ["console.cli.verbs", "console.monitor.sampler"])
def test_an_interrupt_while_a_dataclass_is_made_is_an_exit_status(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "interrupted.py").write_text(_INTERRUPTED_IN_EXEC.format(name=name))
    done = subprocess.run(
        [sys.executable, "-m", "interrupted", "status", "--watch"],
        capture_output=True,
        check=False,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"Interrupted.\n")


def test_an_interrupt_while_the_program_still_loads() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_WHILE_LOADING], capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"Interrupted.\n")


def test_a_silent_server_ends_the_call_at_its_time_out(
    call_of_a_silent_server: Forked,
) -> None:
    out, err = call_of_a_silent_server.communicate(timeout=PATIENCE_SECONDS)
    refused(Answer(call_of_a_silent_server.returncode, out, err.decode()), 3, "Could not")
