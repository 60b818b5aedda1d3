"""Who is told of findings, what it gets, and how that gets there: the terminal's bell, a program, a
webhook. As JSON, or as Slack or PagerDuty want it; never a payload."""

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Protocol
from urllib.parse import urlsplit

from console import processes
from console.errors import ConsoleError
from console.monitor.limits import Severity

SUMMARY_LENGTH = 500
"""Of a finding, at most."""
_PAGERDUTY_SUMMARY = 1024
TEST = "test"
"""The code of what `notify test` sends."""

Body = dict[str, object]


class NotSentError(Exception):
    """The receiver has not taken it; the text says why, and has no secret in it."""

    def __init__(self, why: str, *, reached: bool = False, retry_after: float = 0.0) -> None:
        super().__init__(why)
        self.reached = reached
        """Whether it has answered, that it does not want it."""
        self.retry_after = retry_after


@dataclass(frozen=True)
class Source:
    """The connection that it is about."""

    connection: str
    group: str | None = None
    production: bool = False


@dataclass(frozen=True)
class Event:
    """That a finding began, or that it ended."""

    key: str
    """The same of a finding's begin and end, and of each repetition; no other finding has it."""
    ended: bool
    schema: str
    queue: str
    code: str
    which: str
    severity: Severity
    summary: str
    begun_at: datetime
    ended_at: datetime | None = None

    def as_json(self, source: Source) -> Body:
        """The stable object that a program or a webhook gets."""
        return {
            "event": "ended" if self.ended else "begun",
            "key": self.key,
            "connection": source.connection,
            "group": source.group,
            "production": source.production,
            "schema": self.schema,
            "queue": self.queue,
            "code": self.code,
            "figure": self.which or None,
            "severity": self.severity.word,
            "summary": self.summary,
            "begun_at": self.begun_at.isoformat(),
            "ended_at": None if self.ended_at is None else self.ended_at.isoformat(),
        }


def key_of(place: Sequence[str], begun_at: datetime) -> str:
    """Of a finding that began then. `place`: connection, receiver, schema, queue, code, figure."""
    whole = json.dumps([*place, begun_at.timestamp()])
    return "dbq-" + hashlib.sha256(whole.encode(errors="surrogatepass")).hexdigest()[:40]


def example_events(place: Sequence[str], now: datetime) -> tuple[Event, Event]:
    """What `notify test` sends: that a finding has begun, and that it has ended."""
    begun = Event(
        key_of((*place, TEST), now),
        ended=False,
        schema="test",
        queue="test",
        code=TEST,
        which="",
        severity=Severity.CRITICAL,
        summary="a test of dbq-console notify test: nothing is wrong",
        begun_at=now,
    )
    return begun, replace(begun, ended=True, ended_at=now)


@dataclass(frozen=True)
class Message:
    """One request, and the events that have arrived with it."""

    body: Body
    events: tuple[Event, ...]


Template = Callable[[Source, Sequence[Event], str], Iterator[Message]]
"""The messages that tell of events, in their order; the last argument is the receiver's secret."""


def as_json(source: Source, events: Sequence[Event], _: str) -> Iterator[Message]:
    """All events in one object."""
    yield Message({"notifications": [one.as_json(source) for one in events]}, tuple(events))


def as_slack(source: Source, events: Sequence[Event], _: str) -> Iterator[Message]:
    """All events in one text, a line each, as Slack's incoming webhooks take it."""
    head = f"{source.connection}{' (PRODUCTION)' if source.production else ''}"
    lines = [f"*{_escaped(head)}*", *(_slack_line(one) for one in events)]
    yield Message({"text": "\n".join(lines)}, tuple(events))


def _slack_line(event: Event) -> str:
    grade = "ended" if event.ended else event.severity.word
    words = f"{event.schema}.{event.queue} {event.code}: {event.summary}"
    return f"{event.severity.mark.strip() if not event.ended else '✓'} {grade} {_escaped(words)}"


def _escaped(text: str) -> str:
    """`<!channel>` would call everybody."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


_PAGERDUTY = {Severity.CRITICAL: "critical", Severity.WARNING: "warning"}


def as_pagerduty(source: Source, events: Sequence[Event], secret: str) -> Iterator[Message]:
    """One request an event, by the Events API v2: it has no other grouping."""
    for one in events:
        told: Mapping[str, object] = one.as_json(source)
        body: Body = {
            "routing_key": secret,
            "event_action": "resolve" if one.ended else "trigger",
            "dedup_key": one.key,
            "client": "dbq-console",
            "payload": {
                "summary": f"{one.schema}.{one.queue}: {one.summary}"[:_PAGERDUTY_SUMMARY],
                "source": source.connection,
                "severity": _PAGERDUTY.get(one.severity, "info"),
                "timestamp": one.begun_at.isoformat(),
                "component": f"{one.schema}.{one.queue}",
                "group": source.group or source.connection,
                "class": one.code,
                "custom_details": told,
            },
        }
        yield Message(body, (one,))


TEMPLATES: Mapping[str, Template] = MappingProxyType(
    {"json": as_json, "slack": as_slack, "pagerduty": as_pagerduty}
)


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

    def accepts(self, queue: str, severity: Severity) -> bool:
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
