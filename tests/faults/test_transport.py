"""False servers, and a real one with TLS: 0.0.0.0 is this machine by an address that is not."""

import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import make_url

from console.engines import TRANSPORT, Database, open_database
from console.errors import ConnectionFailedError
from tests.cli.calls import call
from tests.servers import Server
from tests.servers.versions import debian_version, single

ELSEWHERE = "0.0.0.0"  # noqa: S104  # to connect to
SECRET = "hunter2-Sesame"
CLEAR, MD5 = (
    struct.pack("!ci", b"R", 8) + struct.pack("!i", 3),
    (struct.pack("!ci", b"R", 12) + struct.pack("!i", 5) + b"salt"),
)


@dataclass
class FalseServer:
    """Without encryption; it asks for the password, keeps what it is told, and hangs up."""

    asks: bytes
    port: int = 0
    received: bytearray = field(default_factory=bytearray)

    def serve(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(10)
        try:
            while True:
                length, code = struct.unpack("!ii", connection.recv(8, socket.MSG_WAITALL))
                connection.recv(length - 8, socket.MSG_WAITALL)
                if code == 196608:
                    break
                connection.sendall(b"N")
            connection.sendall(self.asks)
            self.received += connection.recv(1000)
        except (OSError, struct.error):
            return


@contextmanager
def false_server(asks: bytes) -> Iterator[FalseServer]:
    server = FalseServer(asks)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server.port = listening.getsockname()[1]
        thread = threading.Thread(target=server.serve, args=[listening])
        thread.start()
        try:
            yield server
        finally:
            listening.shutdown(socket.SHUT_RDWR)
    thread.join()


@contextmanager
def opened(url: str, *, production: bool = False) -> Iterator[Database]:
    with closing(open_database(url)) as database:
        database.production = production
        yield database


@pytest.mark.parametrize("asks", [CLEAR, MD5], ids=["clear", "md5"])
@pytest.mark.parametrize("production", [False, True])
@pytest.mark.parametrize("words", ["", "?sslmode=disable", "?sslmode=prefer"])
def test_a_false_server_that_does_not_encrypt_gets_no_password(
    asks: bytes, words: str, *, production: bool
) -> None:
    with false_server(asks) as server:
        url = f"postgresql://u:{SECRET}@{ELSEWHERE}:{server.port}/d{words}"
        with (
            opened(url, production=production) as database,
            pytest.raises(ConnectionFailedError) as refused,
        ):
            assert database.capabilities
    assert not server.received
    assert "sslmode=" in refused.value.next_step


def test_who_says_so_sends_it_as_before() -> None:
    with false_server(CLEAR) as server:
        url = f"postgresql://u:{SECRET}@{ELSEWHERE}:{server.port}/d?require_auth=password"
        with opened(url) as database, pytest.raises(ConnectionFailedError):
            assert database.capabilities
    assert SECRET.encode() in server.received


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an authority of its own, for that address."""
    path = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=test", "-addext", f"subjectAltName=IP:{ELSEWHERE}"),
            *("-keyout", path / "key.pem", "-out", path / "certificate.pem"),
        ],
        check=True,
        capture_output=True,
    )
    return path


@pytest.fixture(scope="module")
def with_tls(certificate: Path, server: Server) -> Iterator[str]:
    """The URL of a real server behind one end of TLS: its own build has none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "certificate.pem", certificate / "key.pem")
    behind = make_url(server.url)

    def serve(client: socket.socket) -> None:
        if client.recv(8, socket.MSG_PEEK)[4:] == struct.pack("!i", 80877103):
            client.recv(8)
            client.sendall(b"S")
            client = context.wrap_socket(client, server_side=True)
        with client, socket.create_connection((behind.host, behind.port)) as real:
            copying = threading.Thread(target=copy, args=[real, client])
            copying.start()
            copy(client, real)
            copying.join()

    def copy(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                threading.Thread(target=serve_quietly, args=[client], daemon=True).start()

    def serve_quietly(client: socket.socket) -> None:
        with suppress(OSError):
            serve(client)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        accepting = threading.Thread(target=accept)
        accepting.start()
        yield behind.set(port=listening.getsockname()[1]).render_as_string(hide_password=False)
        listening.shutdown(socket.SHUT_RDWR)
    accepting.join()


@pytest.fixture
def with_own_tls(certificate: Path) -> Iterator[str]:
    """The URL of Debian's server, which has TLS itself."""
    with single(debian_version()) as server:
        server.initialise(password=SECRET)
        for name in ("key.pem", "certificate.pem"):
            server.add(server.data, name, (certificate / name).read_bytes())
        server.start(ssl="on", ssl_cert_file="certificate.pem", ssl_key_file="key.pem")
        yield server.url


def test_a_server_s_own_tls_is_named_with_its_version(with_own_tls: str, certificate: Path) -> None:
    root = str(certificate / "certificate.pem")
    for production, checked in ((False, "not checked"), (True, "checked")):
        url = elsewhere(with_own_tls, **({"sslrootcert": root} if production else {}))
        with opened(url, production=production) as database:
            words = database.capabilities.facts[TRANSPORT]
            assert words == f"TLSv1.3, certificate {checked}"


def elsewhere(url: str, **query: str) -> str:
    changed = make_url(url).set(host=ELSEWHERE).update_query_dict(query)
    return changed.render_as_string(hide_password=False)


def test_a_connection_says_what_it_has(with_tls: str, certificate: Path, tmp_path: Path) -> None:
    root = str(certificate / "certificate.pem")
    with opened(elsewhere(with_tls)) as database:
        assert database.capabilities.facts[TRANSPORT] == "TLS, certificate not checked"
    with opened(elsewhere(with_tls, sslrootcert=root), production=True) as database:
        assert database.capabilities.facts[TRANSPORT] == "TLS, certificate checked"
    with opened(elsewhere(with_tls, sslmode="disable")) as database:
        assert database.capabilities.facts[TRANSPORT] == "not encrypted"
    with opened(with_tls) as database:
        assert database.capabilities.facts[TRANSPORT] == "TLS, certificate not checked"
    with opened(elsewhere(with_tls), production=True) as database:
        with pytest.raises(ConnectionFailedError) as refused:
            assert database.capabilities
        assert "sslrootcert=FILE" in refused.value.next_step
    file = tmp_path / "config.toml"
    url = make_url(elsewhere(with_tls, sslrootcert=root))
    file.write_text(
        f"[profiles.p]\nurl = '{url._replace(password=None).render_as_string()}'\n"
        "password = '${env:P}'\nproduction = true\n"
    )
    environment = {"DBQ_CONFIG": str(file), "P": str(url.password)}
    valid = call("config", "validate", environment=environment)
    assert "p: TLS, the certificate is checked (sslmode=verify-full)" in valid.text
    answer = call("doctor", "--profile", "p", "--idle-for", "0s", environment=environment)
    assert "connection: TLS, certificate checked" in answer.text
