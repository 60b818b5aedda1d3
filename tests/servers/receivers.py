"""A receiver of webhooks that is down, slow, faulty or healthy, over HTTP or TLS."""

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
    """What it has received, and how it responds."""

    status: int = 200
    response_text: str = "ok"
    headers: dict[str, str] = field(default_factory=dict)
    garbage: bool = False
    """Its response is not HTTP."""
    silent: threading.Event | None = None
    """It responds once this is set."""
    requests: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    """Path, headers and body of each."""
    url: str = ""

    @property
    def bodies(self) -> list[Any]:
        return [body for _, _, body in self.requests]

    @property
    def events(self) -> list[Any]:
        return [one for body in self.bodies for one in body["notifications"]]

    def events_and_codes(self) -> list[tuple[str, str]]:
        return [(event["event"], event["code"]) for event in self.events]


@contextmanager
def receiving(
    receiver: Receiver, port: int = 0, certificate: Path | None = None
) -> Iterator[Receiver]:
    """It listens during the block. Only requests that it accepts are kept."""

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
            self.wfile.write(receiver.response_text.encode())

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Log nothing."""

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
