"""Receivers that are slow or talkative, and proxies of the environment."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.features.notify import http
from console.features.notify.sending import NotSentError
from tests.servers.receivers import Receiver, receiving

SECRET = "Qx7Rk2Vb9Lm4"


@contextmanager
def dribbling(byte: bytes = b"x") -> Iterator[str]:
    """A receiver that answers with a byte every 20 ms, for ever."""
    stop = threading.Event()

    def serve() -> None:
        with suppress_errors(), listening.accept()[0] as connection:
            connection.sendall(b"HTTP/1.1 500 no\r\n\r\n" if byte == b"b" else b"HTTP/1.1 ")
            while not stop.wait(0.02):
                connection.sendall(byte)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        finally:
            stop.set()
            thread.join()


@contextmanager
def suppress_errors() -> Iterator[None]:
    try:
        yield
    except OSError:
        return


@pytest.mark.parametrize("byte", [b"x", b"b"], ids=["status line", "body"])
def test_a_receiver_that_dribbles_its_answer_is_left_at_the_deadline(byte: bytes) -> None:
    """Each byte arrives long before the time-out of one step."""
    with dribbling(byte) as url, pytest.raises(NotSentError):
        http.post(url, b"{}", {}, ("", ""), 0.3)


def test_a_deadline_that_is_over_before_the_connection_is_open_ends_it_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine: else nothing would end it any more."""
    create = socket.create_connection

    def slowly(*words: Any, **named: Any) -> socket.socket:
        opened = create(*words, **named)
        assert ended.wait(10)
        return opened

    def end(connections: http._Connections) -> None:
        original(connections)
        ended.set()

    ended, original = threading.Event(), http._Connections._end
    monkeypatch.setattr(http._Connections, "_end", end)
    monkeypatch.setattr(socket, "create_connection", slowly)
    with dribbling() as url, pytest.raises(NotSentError):
        http.post(url, b"{}", {}, ("", ""), 0.1)


def test_this_machine_is_not_reached_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with receiving(Receiver()) as receiver:
        assert http.post(receiver.url, b"{}", {}, ("", SECRET), 5.0) == "HTTP 200"
    assert http._proxies("http://other.example/", secret=True) == {}
    assert http._proxies("https://other.example/", secret=True)["https"] == "http://127.0.0.1:9"


@given(st.integers(0, 295), st.sampled_from(["", "%", "-", " ", "\\", '"']))
def test_no_part_of_a_secret_is_in_an_error(at: int, between: str) -> None:
    """Wherever the answer is cut, and whatever escapes it."""
    repeated = "." * at + between.join(SECRET) + "x" * 300
    with (
        receiving(Receiver(status=403, response_text=repeated)) as receiver,
        pytest.raises(NotSentError) as refused,
    ):
        http.post(receiver.url, b"{}", {}, ("", SECRET), 5.0)
    text = "".join(filter(str.isalnum, str(refused.value)))
    assert not any(SECRET[i : i + 5] in text for i in range(len(SECRET) - 4))
    assert "answered HTTP 403" in str(refused.value)
