"""A receiver of webhooks that is down, slow, wrong or well, over HTTP or TLS."""

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass
class Receiver:
    """What has come, and how it answers."""

    status: int = 200
    said: str = "ok"
    headers: dict[str, str] = field(default_factory=dict)
    garbage: bool = False
    """Its answer is no HTTP."""
    silent: threading.Event | None = None
    """It answers when this is set."""
    requests: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    """The path, the head and the body of each."""
    url: str = ""

    @property
    def bodies(self) -> list[Any]:
        return [body for _, _, body in self.requests]

    @property
    def events(self) -> list[Any]:
        return [one for body in self.bodies for one in body["notifications"]]

    def told(self) -> list[tuple[str, str]]:
        return [(one["event"], one["code"]) for one in self.events]


@contextmanager
def receiving(
    receiver: Receiver, port: int = 0, certificate: Path | None = None
) -> Iterator[Receiver]:
    """It listens, for as long as this lasts. Only what it says yes to is kept."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if receiver.silent is not None:
                receiver.silent.wait()
            if receiver.garbage:
                self.wfile.write(b"\x00 this is no HTTP\r\n\r\n")
                return
            if receiver.status < 300:
                receiver.requests.append((self.path, dict(self.headers), body))
            self.send_response(receiver.status)
            for name, value in receiver.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(receiver.said.encode())

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Nowhere."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    scheme = "http"
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        scheme = "https"
    receiver.url = f"{scheme}://localhost:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield receiver
    finally:
        if receiver.silent is not None:
            receiver.silent.set()
        server.shutdown()
        server.server_close()
        thread.join()
