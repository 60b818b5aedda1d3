"""Who is told, and how it gets there: the terminal's bell, a program, a webhook."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Protocol
from urllib.parse import urlsplit

from console import processes
from console.errors import ConsoleError
from console.monitor.limits import Severity
from console.notify.events import TEMPLATES, Body, Event, NotSentError, Source

SECONDS = 10.0
"""How long a receiver may take for each step: to be connected, to answer; a program altogether."""
SECRET = "{secret}"  # noqa: S105  # where it is put into a URL
SECRET_VARIABLE = "DBQ_NOTIFY_SECRET"  # noqa: S105  # the name of a variable
_HOST = re.compile(r"(?:\w+://)?(?:\$\{env:[^{}]*\}|[^/?#])*")
_LOCAL = {"localhost", "127.0.0.1", "::1"}


class Receiver(Protocol):
    """Where messages go."""

    @property
    def shown(self) -> str:
        """For people: without what may be secret."""

    def send(self, body: Body, secret: str, environment: Mapping[str, str]) -> str:
        """What it answered, in a few words. NotSentError."""


@dataclass(frozen=True)
class Bell:
    """That of the terminal in which the recorder runs."""

    shown = "bell"

    def send(self, body: Body, secret: str, environment: Mapping[str, str]) -> str:
        """Ring it."""
        del body, secret, environment
        if sys.stderr is None or not sys.stderr.isatty():
            return "there is no terminal, so nothing rings"
        with suppress(OSError):
            sys.stderr.write("\a")
            sys.stderr.flush()
        return "rung"


@dataclass(frozen=True, repr=False)
class Program:
    """A program that gets JSON on its stdin, run without a shell."""

    words: tuple[str, ...]

    @property
    def shown(self) -> str:
        """Its arguments may be secret."""
        return f"exec:{self.words[0]}{' ***' if self.words[1:] else ''}"

    def send(self, body: Body, secret: str, environment: Mapping[str, str]) -> str:
        """Run it. It does not see the passwords that this console has in its environment."""
        given = {**environment, **({SECRET_VARIABLE: secret} if secret else {})}
        try:
            with processes.program(self.words, given, stdin=subprocess.PIPE) as running:
                running.communicate(json.dumps(body).encode(), timeout=SECONDS)
        except subprocess.TimeoutExpired:
            raise NotSentError(f"did not end within {SECONDS:g} s") from None
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "its words hold NUL"
            raise NotSentError(f"cannot be run: {why}") from None
        if running.returncode:
            raise NotSentError(f"ended with exit status {running.returncode}", reached=True)
        return "exit status 0"


@dataclass(frozen=True, repr=False)
class Webhook:
    """An address that takes JSON by POST. Its certificate is verified, and no redirect followed."""

    written: str
    """As it was written: with variables, and SECRET where that is put in."""
    fill: Callable[[str], str]
    """Puts the variables in. ConsoleError."""
    bearer: bool = False
    """Whether a secret that has no other place is a token in the head."""

    @property
    def shown(self) -> str:
        """Whatever stands behind the host may be secret."""
        host = _HOST.match(self.written)
        seen = host[0] if host else ""
        return f"webhook:{seen}{'/***' if seen != self.written else ''}"

    def send(self, body: Body, secret: str, environment: Mapping[str, str]) -> str:
        """Post it."""
        from console.notify import http  # noqa: PLC0415  # verbs shall start at once

        del environment
        try:
            url = self.fill(self.written).replace(SECRET, secret)
        except ConsoleError as error:
            raise NotSentError(error.what) from None
        if why := wrong_address(url, secret=bool(secret)):
            raise NotSentError(f"its address {why}")
        headers = {"Content-Type": "application/json", "User-Agent": "dbq-console"}
        if secret and self.bearer and SECRET not in self.written:
            headers["Authorization"] = f"Bearer {secret}"
        path = url.partition("://")[2].partition("/")[2]
        return http.post(url, json.dumps(body).encode(), headers, (url, path, secret), SECONDS)


def wrong_address(url: str, *, secret: bool) -> str:
    """Why nothing is sent there; empty: it may be."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "is no URL"
    if parts.scheme not in {"https", "http"} or not host:
        return "must begin with https:// or http:// and a host"
    if parts.username is not None or parts.password is not None:
        return "has a user or a password in it; say where it is with the key secret"
    if secret and parts.scheme == "http" and host not in _LOCAL:
        return "must be https: there is a secret in what is sent"
    return ""


def _no_secret() -> str:
    return ""


@dataclass(frozen=True, repr=False)
class Target:
    """One who is told, as it is configured."""

    name: str
    receiver: Receiver
    template: str = "json"
    level: Severity = Severity.WARNING
    """From which severity on."""
    queues: tuple[str, ...] = ("*",)
    """Patterns of names."""
    within_seconds: float = 30.0
    """What comes within this time is sent together."""
    secret: Callable[[], str] = _no_secret
    """Looked up for each delivery. ConsoleError."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of a program."""

    def wants(self, queue: str, severity: Severity) -> bool:
        """Whether it is told of that."""
        return severity >= self.level and any(fnmatchcase(queue, one) for one in self.queues)

    def send(self, source: Source, events: Sequence[Event]) -> Iterator[tuple[Event, str]]:
        """Each event that has arrived, with what was answered. NotSentError where one has not.

        What a receiver refuses keeps nothing back but the end of the same finding; where it cannot
        be reached, no more is tried.
        """
        if isinstance(self.receiver, Bell) and all(one.ended for one in events):
            yield from ((one, "nothing rings") for one in events)
            return
        try:
            secret = self.secret()
        except ConsoleError as error:
            raise NotSentError(f"{error.what} {error.why}".strip()) from None
        refused: dict[str, NotSentError] = {}
        for message in TEMPLATES[self.template](source, events, secret):
            if any(one.key in refused for one in message.events):
                continue
            try:
                told = self.receiver.send(message.body, secret, self.environment)
            except NotSentError as error:
                if not error.reached or error.retry_after:
                    raise
                refused |= dict.fromkeys((one.key for one in message.events), error)
            else:
                yield from ((one, told) for one in message.events)
        if refused:
            raise next(iter(refused.values()))
