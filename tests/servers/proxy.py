"""A TCP proxy between a client and its server, for a network that cuts, freezes or refuses."""

import select
import socket
import threading
from contextlib import suppress
from enum import Enum, auto
from typing import TYPE_CHECKING, Self

from sqlalchemy import make_url

if TYPE_CHECKING:
    from collections.abc import Callable

_CHUNK = 65536


class Fate(Enum):
    """What happens to a piece of data that a client sends."""

    PASSES = auto()
    CUT = auto()
    """It never arrives; both sides see the connection end."""
    UNANSWERED = auto()
    """It arrives, but not its response: the client sees the connection end."""
    FROZEN = auto()
    """As after `freeze`, beginning with this piece."""


def _passes(_: bytes) -> Fate:
    return Fate.PASSES


class Proxy:
    """Forwards to one server until closed. Its faults apply to all connections."""

    def __init__(self, url: str) -> None:
        self._url = make_url(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._flows = threading.Event()
        self._flows.set()
        self._refuses = False
        self.fate: Callable[[bytes], Fate] = _passes
        """Called for each piece that a client sends."""
        self.accepted = 0
        """How many connections were attempted, including refused ones."""
        self.forwarded = 0
        """Bytes, in both directions."""
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def url(self) -> str:
        """The server's URL through the proxy."""
        return self._url.set(host="127.0.0.1", port=self.port).render_as_string(hide_password=False)

    @property
    def connections(self) -> int:
        """How many are open through it."""
        with self._lock:
            return len(self._open) // 2

    def freeze(self) -> None:
        """Forward nothing from now on, without an error; new connections are accepted."""
        self._flows.clear()

    def thaw(self) -> None:
        """Undo `freeze`; held data is forwarded."""
        self._flows.set()

    def cut(self) -> None:
        """End all open connections."""
        with self._lock:
            cut, self._open = self._open, set()
        for one in cut:
            _hang_up(one)

    def shut(self) -> None:
        """End each new connection at once; open ones continue."""
        self._refuses = True

    def refuse(self) -> None:
        """`cut` and `shut`."""
        self.shut()
        self.cut()

    def let_in(self) -> None:
        """Undo `shut`."""
        self._refuses = False

    def close(self) -> None:
        self.refuse()
        self.thaw()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            if self._refuses:
                client.close()
                continue
            try:
                server = socket.create_connection((self._url.host or "", self._url.port or 5432))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open |= {client, server}
            self._start(self._forward_all, client, server)

    def _forward_all(self, client: socket.socket, server: socket.socket) -> None:
        other = {client: server, server: client}
        with client, server:
            try:
                while self._forward_next(client, other):
                    pass
            except OSError:
                pass
            with self._lock:
                self._open -= {client, server}

    def _forward_next(
        self, client: socket.socket, other: dict[socket.socket, socket.socket]
    ) -> bool:
        """Forward the next piece; False if one side has ended."""
        readable, _, _ = select.select(list(other), [], [])
        for one in readable:
            data = one.recv(_CHUNK)
            fate = self.fate(data) if one is client and data else Fate.PASSES
            if fate is Fate.FROZEN:
                self.freeze()
            self._flows.wait()
            if not data or fate is Fate.CUT:
                return False
            self.forwarded += len(data)
            other[one].sendall(data)
            if fate is Fate.UNANSWERED:
                other[one].recv(_CHUNK)  # the server has executed it, not only received it
                return False
        return True


def _hang_up(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
