"""Calls that end before they have an answer: interrupted, or where a server says nothing."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.calls import call
from tests.cli.verbs import PASSWORD, refused

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


def test_a_silent_server_ends_the_call_at_its_time_out() -> None:
    """It takes the connection and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"postgresql+psycopg://u:{PASSWORD}@127.0.0.1:{listener.getsockname()[1]}/x"
        environment = {"DBQ_CONNECT_TIMEOUT": "2s"}
        answer = call("status", "--json", "--url", url, environment=environment)
    refused(answer, 3, "Could not")
