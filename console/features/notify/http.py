"""One POST: with verified TLS, without redirects, and with a short form of the answer."""

import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from email.message import Message as Headers
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from console.features.notify.sending import LOCAL, NotSentError

_SHOWN_BYTES = 300


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Headers,
        newurl: str,
    ) -> None:
        del req, fp, code, msg, headers, newurl


class _Connections:
    """The sockets of one request, which is ended at its deadline, however slowly they are fed."""

    def __init__(self, seconds: float) -> None:
        self.expired = False
        self._opened: list[_Kept] = []
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> "_Connections":
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def opening(self, kind: type["_Kept"]) -> Callable[..., HTTPConnection]:
        def connection(*words: Any, **named: Any) -> HTTPConnection:
            opened = kind(*words, **named)
            opened.connections = self
            self._opened.append(opened)
            return opened

        return connection

    def _end(self) -> None:
        self.expired = True
        for opened in self._opened:
            if (sock := opened.kept or opened.sock) is not None:
                with suppress(OSError):
                    # The base's: TLS would say farewell first.
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)


class _Kept(HTTPConnection):
    """urllib takes the socket away from a connection before it reads the answer."""

    kept: socket.socket | None = None
    connections: _Connections

    def connect(self) -> None:
        super().connect()
        self.kept = self.sock
        if self.connections.expired:  # before there was a socket to end
            self.close()
            raise TimeoutError


class _KeptSecure(_Kept, HTTPSConnection):
    """The same over TLS."""


class _Plain(urllib.request.HTTPHandler):
    def __init__(self, connections: _Connections) -> None:
        super().__init__()
        self._make = connections.opening(_Kept)

    def http_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(self._make, req)


class _Secure(urllib.request.HTTPSHandler):
    def __init__(self, connections: _Connections) -> None:
        # Created for each request: certificates are renewed while a recorder runs.
        self._trusted = ssl.create_default_context()
        super().__init__(context=self._trusted)
        self._make = connections.opening(_KeptSecure)

    def https_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(self._make, req, context=self._trusted)


def _proxies(url: str, *, secret: bool) -> dict[str, str]:
    """Of the environment; none for this machine, and none that would read a secret."""
    parts = urlsplit(url)
    if parts.hostname in LOCAL or (secret and parts.scheme == "http"):
        return {}
    return urllib.request.getproxies()


def post(
    url: str, data: bytes, headers: Mapping[str, str], secrets: Sequence[str], seconds: float
) -> str:
    """The answer. NotSentError, without the secrets. `seconds`: the time-out of it all."""
    with _Connections(seconds) as connections:
        try:
            request = urllib.request.Request(url, data, dict(headers), method="POST")  # noqa: S310
            opener = urllib.request.build_opener(
                _NoRedirects,
                urllib.request.ProxyHandler(_proxies(url, secret=any(secrets))),
                _Plain(connections),
                _Secure(connections),
            )
            with opener.open(request, timeout=seconds) as answer:
                return f"HTTP {answer.status}"
        except urllib.error.HTTPError as error:
            raise _refused(error, secrets) from None
        except (OSError, HTTPException, ValueError) as error:
            late = TimeoutError() if connections.expired else error
            raise NotSentError(_why(late, seconds)) from None


def _refused(error: urllib.error.HTTPError, secrets: Sequence[str]) -> NotSentError:
    """With the beginning of the answer, which may repeat secrets."""
    text = ""
    with suppress(OSError, HTTPException, ValueError), error:
        text = error.read(_SHOWN_BYTES).decode(errors="replace")
    words = text.split()[: -1 if len(text) == _SHOWN_BYTES else None]  # the last is cut
    text = " ".join("***" if _repeats(word, secrets) else word for word in words)
    text = "***" if _repeats(text, secrets) else text
    after = error.headers.get("Retry-After", "") if error.headers else ""
    why = f"answered HTTP {error.code}{f': {text}' if text else ''}"
    wait = float(after) if after.isascii() and after.isdigit() else 0.0
    return NotSentError(why, reached=True, retry_after=wait)


_PART = 5
"""Characters of a secret in a row that are a part of it; fewer may be chance."""


def _repeats(text: str, secrets: Sequence[str]) -> bool:
    """Whether it has a part of a secret, however it is escaped: the text may be cut anywhere."""
    shown = {_letters(text), _letters(unquote(text))}
    for secret in map(_letters, secrets):
        length = min(_PART, len(secret))
        parts = {secret[i : i + length] for i in range(len(secret) - length + 1)} - {""}
        if any(part in one for part in parts for one in shown):
            return True
    return False


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text)).casefold()


def _why(error: Exception, seconds: float) -> str:
    """Without the texts of other errors, which may have the address in them."""
    reason = getattr(error, "reason", error)
    if isinstance(error, ValueError):
        return "its address or its secret has characters that cannot be sent"
    if isinstance(reason, TimeoutError):
        return f"did not answer within {seconds:g} s"
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {reason.verify_message}"
    if isinstance(reason, ssl.SSLError):
        return f"TLS failed: {reason.reason or 'unknown'}"
    if isinstance(reason, OSError) and reason.strerror:
        return f"cannot be reached: {reason.strerror}"
    return f"its answer is not HTTP: {type(reason).__name__}"
