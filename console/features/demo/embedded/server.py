"""The embedded server: start, kill, restart, pause, stop."""

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import psycopg
from psycopg.sql import SQL, Identifier
from sqlalchemy import URL

from console.errors import ConnectionFailedError, RefusedError, UsageError
from console.features.demo.embedded import cluster, guard
from console.features.demo.embedded.cluster import exclusive_access, private_folder, programs

_NAME_LIMIT_BYTES = 63
# Below the ephemeral range: an outgoing connection could take the port between kill and restart,
# and a client that connects to a dead ephemeral port can reach itself.
_PORTS = range(20000, 32768)
_RETRYABLE = ("could not bind", "is still in use")
_START_SECONDS = 120.0
_FAST_SECONDS = 30.0
_LEAVE_SECONDS = 10.0

_locks: set[int] = set()


def _close_locks_in_child() -> None:
    """A forked child must not keep the owner's locks."""
    for descriptor in _locks:
        os.close(descriptor)
    _locks.clear()


os.register_at_fork(after_in_child=_close_locks_in_child)


class EmbeddedServer:
    """A server and its instance folder, owned by the process that started it.

    A forked child may connect to it but neither ends it nor keeps it alive. Not thread-safe.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        cluster.check_settings(settings)
        self.port = 0
        self._settings = dict(settings)
        self._password = ""
        self._owner = os.getpid()
        self._folder: Path | None = None
        self._lock = -1
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(cls, *, settings: Mapping[str, str] | None = None) -> Self:
        """Start a server and wait until it accepts connections."""
        server = cls(settings or {})
        server._open()
        return server

    @property
    def url(self) -> str:
        """SQLAlchemy's URL of the database `postgres`, with the password."""
        return self._url_of("postgres")

    @property
    def pid(self) -> int:
        """The postmaster's, or the last one's if none is running."""
        return self._process.pid if self._process else 0

    @property
    def running(self) -> bool:
        """Whether there is a postmaster, even a paused one."""
        return self._process is not None and self._process.poll() is None

    @property
    def folder(self) -> Path | None:
        """The instance folder, with `data` and `postgresql.log` in it; None after `stop`."""
        return self._folder

    def create_database(self, name: str) -> str:
        """Create an empty database of exactly that name; its URL."""
        if not name or "\0" in name or len(name.encode()) > _NAME_LIMIT_BYTES:
            raise UsageError(
                f"{name!r} cannot be the name of a database.",
                why=f"A name has 1 to {_NAME_LIMIT_BYTES} bytes, none of them zero.",
            )
        try:
            with psycopg.connect(
                host=cluster.HOST,
                port=self.port,
                user=cluster.USER,
                password=self._password,
                dbname="postgres",
                connect_timeout=10,
                autocommit=True,
            ) as connection:
                connection.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
        except psycopg.errors.DuplicateDatabase as error:
            raise UsageError(f"The database {name!r} already exists.") from error
        except psycopg.Error as error:
            raise ConnectionFailedError(
                f"Could not create the database {name!r}.", why=str(error).strip()
            ) from error
        return self._url_of(name)

    def kill(self) -> None:
        """SIGKILL the postmaster, like a crash; returns when its children have ended too."""
        self._require_owner()
        if self._folder is None or self._process is None:
            return
        # A stopped postmaster forks no child between the listing and the kill.
        self._process.send_signal(signal.SIGSTOP)
        family = self._family() or guard.servers_of(self._folder)
        self._process.kill()
        self._process.wait()
        guard.signal_all(family, signal.SIGCONT)  # the children of a paused server
        # A busy backend does not notice that its postmaster is dead.
        guard.end_at_once(guard.wait_until_gone(family, _LEAVE_SECONDS))

    def restart(self) -> None:
        """Start again with the same data, port and password; shuts a running server down first."""
        self._require_owner()
        if self._folder is None:
            raise UsageError(
                "The embedded PostgreSQL cannot start again.",
                why="Its data was deleted when it was stopped.",
                next_step="Start a new one.",
            )
        if self.running:
            self.shut_down()
        else:
            self.kill()  # backends of a postmaster killed by others
        with _translated():
            self._launch(self._folder, _same_port(self.port))

    def shut_down(self) -> None:
        """Fast shutdown; the data stays for `restart`."""
        self._require_owner()
        if self._process is None or not self.running:
            return
        self._process.send_signal(signal.SIGINT)
        self.resume()
        try:
            self._process.wait(_FAST_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def stop(self) -> None:
        """Shut down and remove everything. Idempotent."""
        if self._folder is None or self._owner != os.getpid():
            return
        self.shut_down()
        self._discard()

    def pause(self) -> None:
        """Stop the postmaster and its backends (SIGSTOP): connections stay open, unresponsive."""
        self._require_owner()
        if self._process is not None and self.running:
            self._process.send_signal(signal.SIGSTOP)  # first, so that it forks no backend
            guard.signal_all(self._family(), signal.SIGSTOP)

    def resume(self) -> None:
        self._require_owner()
        if self.running:
            guard.signal_all(self._family(), signal.SIGCONT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _open(self) -> None:
        try:
            with _translated():
                folder = self._claim_folder()
                self._watchdog = _watch(folder)
                self._password = self._prepare(folder)
                self._launch(folder, _free_ports())
        except BaseException:
            self._discard()
            raise

    def _prepare(self, folder: Path) -> str:
        """Put the data into the instance folder; the password of the superuser."""
        return cluster.prepare(folder)

    def _claim_folder(self) -> Path:
        """A new instance folder, locked; also removes abandoned ones."""
        base = private_folder()
        with exclusive_access(base):
            where = programs(base)
            guard.sweep(base)
            prefix = guard.INSTANCES.replace("*", f"{os.getpid()}-")
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
            self._lock = guard.lock_folder(folder, wait=False)
            _locks.add(self._lock)
            self._folder = folder
        if os.geteuid() == 0:
            folder.chmod(0o711)  # the server's user may pass through it
        (folder / guard.PROGRAMS).symlink_to(where)
        return folder

    def _launch(self, folder: Path, ports: Iterable[int]) -> None:
        """Start on the first free port of these."""
        log = folder / "postgresql.log"
        output_text = ""
        for port in ports:
            self.port = port
            configuration = cluster.configure(folder, self._settings, port)
            # The server's user may pass through its folder, and so may others.
            descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(descriptor, "ab") as output:
                earlier = output.tell()
                self._process = subprocess.Popen(
                    [
                        str((folder / guard.PROGRAMS).resolve() / "postgres"),
                        "-D",
                        str((folder / guard.DATA).resolve()),
                        f"--config_file={configuration}",
                    ],
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    **cluster.server_process(),
                )
            if self._wait_until_ready(folder):
                return
            self.kill()
            output_text = log.read_bytes()[earlier:].decode(errors="replace")
            if not any(message in output_text for message in _RETRYABLE):
                break
        raise ConnectionFailedError(
            "The embedded PostgreSQL did not start.",
            why="\n".join(output_text.strip().splitlines()[-5:]) or "There was no free port.",
        )

    def _wait_until_ready(self, folder: Path) -> bool:
        """Until connections are accepted. False: the server has ended, or timed out."""
        status = folder / guard.DATA / "postmaster.pid"
        deadline = time.monotonic() + _START_SECONDS
        while self.running and time.monotonic() < deadline:
            try:
                lines = status.read_text().splitlines()
            except OSError:
                lines = []
            # Its eighth line is the state; pg_ctl waits for the same word.
            if lines[:1] == [str(self.pid)] and lines[7:8] and lines[7].strip() == "ready":
                return True
            time.sleep(0.02)
        return False

    def _discard(self) -> None:
        """End the instance, remove its folder, and let the watchdog end."""
        if self._folder is not None:
            guard.end_instance(self._folder)
            self._folder = None
            _locks.discard(self._lock)
            guard.unlock(self._lock)
        for child in (self._process, self._watchdog):
            if child is not None:
                child.wait()
        self._watchdog = None

    def _family(self) -> list[guard.Process]:
        """The postmaster and its children; empty if it has ended."""
        ours = (self.pid, os.getpid())
        return guard.family_of(
            process for process in guard.processes() if (process.pid, process.parent) == ours
        )

    def _require_owner(self) -> None:
        if self._owner != os.getpid():
            raise RefusedError(
                "This embedded PostgreSQL is not this process's own.",
                why=f"Process {self._owner} started it.",
            )

    def _url_of(self, database: str) -> str:
        return URL.create(
            "postgresql+psycopg",
            username=cluster.USER,
            password=self._password,
            host=cluster.HOST,
            port=self.port,
            database=database,
        ).render_as_string(hide_password=False)


def _watch(folder: Path) -> subprocess.Popen[bytes]:
    """Start the watchdog, in a session of its own so that it does not get the owner's Ctrl-C."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", guard.__file__, str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConnectionFailedError(
            "The embedded PostgreSQL could not be started.",
            why=str(error),
            next_step="Check the permissions, the free space and the mount options of that folder.",
        ) from error


def _free_ports() -> Iterator[int]:
    """Ports that were free just now, in random order, so that two starts rarely collide."""
    for port in random.sample(_PORTS, 200):
        with socket.socket() as probe:
            try:
                probe.bind((cluster.HOST, port))
            except OSError:
                continue
        yield port


def _same_port(port: int) -> Iterator[int]:
    """The same port, tried for ten seconds while another process may have it."""
    yield port
    for _ in range(20):
        time.sleep(0.5)
        yield port
