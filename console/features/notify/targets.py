"""Targets of notifications: the terminal's bell, a program, a webhook; as JSON or in the format of
Slack or PagerDuty. A notification never has a payload."""

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

from console.config.programs import program
from console.errors import ConsoleError
from console.features.notify.sending import LOCAL, NotSentError
from console.monitor.limits import Severity

SUMMARY_LENGTH = 500
"""Of a finding."""
_PAGERDUTY_SUMMARY = 1024
TEST = "test"
"""The code of the events that `notify test` sends."""

Body = dict[str, object]


@dataclass(frozen=True)
class Source:
    connection: str
    group: str | None = None
    production: bool = False
    runbook_of: Callable[[str, str], str] = field(default=lambda _, __: "", compare=False)
    """Of a queue's finding, by the queue's name and the code; empty: it has none."""


@dataclass(frozen=True)
class Event:
    key: str
    """The same for a finding's begin, its end and each retry; unique to the finding."""
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
        """The stable object for programs and webhooks."""
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
            "runbook": source.runbook_of(self.queue, self.code) or None,
            "begun_at": self.begun_at.isoformat(),
            "ended_at": None if self.ended_at is None else self.ended_at.isoformat(),
        }


def key_of(subject: Sequence[str], begun_at: datetime) -> str:
    """`subject`: connection, target, schema, queue, code, figure."""
    identity = json.dumps([*subject, begun_at.timestamp()])
    return "dbq-" + hashlib.sha256(identity.encode(errors="surrogatepass")).hexdigest()[:40]


def example_events(subject: Sequence[str], now: datetime) -> tuple[Event, Event]:
    """What `notify test` sends: the beginning and the end of a finding."""
    begun = Event(
        key_of((*subject, TEST), now),
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
    body: Body
    events: tuple[Event, ...]


Template = Callable[[Source, Sequence[Event], str], Iterator[Message]]
"""The requests for events, in order; the last argument is the target's secret."""


def as_json(source: Source, events: Sequence[Event], _: str) -> Iterator[Message]:
    yield Message({"notifications": [event.as_json(source) for event in events]}, tuple(events))


def as_slack(source: Source, events: Sequence[Event], _: str) -> Iterator[Message]:
    """All events in one text, a line each, for Slack's incoming webhooks."""
    head = f"{source.connection}{' (PRODUCTION)' if source.production else ''}"
    lines = [f"*{_escaped(head)}*", *(_slack_line(source, event) for event in events)]
    yield Message({"text": "\n".join(lines)}, tuple(events))


def _slack_line(source: Source, event: Event) -> str:
    grade = "ended" if event.ended else event.severity.word
    words = f"{event.schema}.{event.queue} {event.code}: {event.summary}"
    if not event.ended and (runbook := source.runbook_of(event.queue, event.code)):
        words += f" (runbook: {runbook})"
    return f"{event.severity.mark.strip() if not event.ended else '✓'} {grade} {_escaped(words)}"


def _escaped(text: str) -> str:
    """`<!channel>` would notify everybody."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


_PAGERDUTY = {Severity.CRITICAL: "critical", Severity.WARNING: "warning"}


def as_pagerduty(source: Source, events: Sequence[Event], secret: str) -> Iterator[Message]:
    """One request per event, for the Events API v2."""
    for event in events:
        body: Body = {
            "routing_key": secret,
            "event_action": "resolve" if event.ended else "trigger",
            "dedup_key": event.key,
            "client": "dbq-console",
            "payload": {
                "summary": f"{event.schema}.{event.queue}: {event.summary}"[:_PAGERDUTY_SUMMARY],
                "source": source.connection,
                "severity": _PAGERDUTY.get(event.severity, "info"),
                "timestamp": event.begun_at.isoformat(),
                "component": f"{event.schema}.{event.queue}",
                "group": source.group or source.connection,
                "class": event.code,
                "custom_details": event.as_json(source),
            },
        }
        yield Message(body, (event,))


TEMPLATES: Mapping[str, Template] = MappingProxyType(
    {"json": as_json, "slack": as_slack, "pagerduty": as_pagerduty}
)


SECONDS = 10.0
"""The time-out of one delivery."""
SECRET = "{secret}"  # noqa: S105  # where it is put into a URL
SECRET_VARIABLE = "DBQ_NOTIFY_SECRET"  # noqa: S105  # the name of a variable
_HOST = re.compile(r"(?:\w+://)?(?:\$\{env:[^{}]*\}|[^/?#])*")
_LONG = 8
"""Characters of a path that may have a secret in it."""


class Receiver(Protocol):
    """Delivers messages."""

    @property
    def shown(self) -> str:
        """For display: without possible secrets."""

    def send(self, body: Body, secret: str, environment: Mapping[str, str]) -> str:
        """A short form of the answer. NotSentError."""


@dataclass(frozen=True)
class Bell:
    shown = "bell"

    def send(self, body: Body, secret: str, environment: Mapping[str, str]) -> str:
        del body, secret, environment
        if sys.stderr is None or not sys.stderr.isatty():
            return "there is no terminal, so nothing rings"
        with suppress(OSError):
            sys.stderr.write("\a")
            sys.stderr.flush()
        return "rung"


@dataclass(frozen=True, repr=False)
class Program:
    """A program that reads JSON from stdin, run without a shell."""

    words: tuple[str, ...]

    @property
    def shown(self) -> str:
        return f"exec:{self.words[0]}{' ***' if self.words[1:] else ''}"

    def send(self, body: Body, secret: str, environment: Mapping[str, str]) -> str:
        """Run it without the passwords in this console's environment."""
        variables = {**environment, **({SECRET_VARIABLE: secret} if secret else {})}
        try:
            with program(self.words, variables, stdin=subprocess.PIPE) as running:
                running.communicate(json.dumps(body).encode(), timeout=SECONDS)
        except subprocess.TimeoutExpired:
            raise NotSentError(f"did not end within {SECONDS:g} s") from None
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "its words contain NUL"
            raise NotSentError(f"cannot be run: {why}") from None
        if running.returncode:
            raise NotSentError(f"ended with exit status {running.returncode}", reached=True)
        return "exit status 0"


@dataclass(frozen=True, repr=False)
class Webhook:
    """An address that accepts JSON by POST; certificates are verified, redirects not followed."""

    written: str
    """The configured URL, with variables and SECRET."""
    fill: Callable[[str], str]
    """Replaces the variables. ConsoleError."""
    bearer: bool = False
    """Whether a secret that is not in the URL is a token in the header."""

    @property
    def shown(self) -> str:
        """All that follows the host may be secret."""
        host = _HOST.match(self.written)
        seen = host[0] if host else ""
        return f"webhook:{seen}{'/***' if seen != self.written else ''}"

    def send(self, body: Body, secret: str, environment: Mapping[str, str]) -> str:
        from console.features.notify import http  # noqa: PLC0415  # verbs shall start at once

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
        hidden = (path if len(path) >= _LONG else "", secret)
        return http.post(url, json.dumps(body).encode(), headers, hidden, SECONDS)


def wrong_address(url: str, *, secret: bool) -> str:
    """Why nothing is sent to the URL; empty: it is valid."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "is not a URL"
    if parts.scheme not in {"https", "http"} or not host:
        return "must begin with https:// or http:// and a host"
    if parts.username is not None or parts.password is not None:
        return "has a user or a password in it; say where it is with the key secret"
    if secret and parts.scheme == "http" and host not in LOCAL:
        return "must be https: there is a secret in what is sent"
    return ""


@dataclass(frozen=True, repr=False)
class Target:
    name: str
    receiver: Receiver
    template: str = "json"
    level: Severity = Severity.WARNING
    """The lowest severity that it gets."""
    queues: tuple[str, ...] = ("*",)
    """Patterns of names."""
    within_seconds: float = 30.0
    """Events within this time are sent together."""
    secret: Callable[[], str] = str
    """Called for each delivery. ConsoleError."""
    environment: Mapping[str, str] = field(default_factory=dict)

    def accepts(self, queue: str, severity: Severity) -> bool:
        """Whether it gets findings of that queue and severity."""
        return severity >= self.level and any(fnmatchcase(queue, one) for one in self.queues)

    def send(self, source: Source, events: Sequence[Event]) -> Iterator[tuple[Event, str]]:
        """Each event that has arrived, with the answer. NotSentError if one has not.

        After a refusal the other events are sent, except the end of the same finding; if the
        receiver cannot be reached, nothing more is.
        """
        if isinstance(self.receiver, Bell) and all(event.ended for event in events):
            yield from ((event, "nothing rings") for event in events)
            return
        try:
            secret = self.secret()
        except ConsoleError as error:
            raise NotSentError(f"{error.what} {error.why}".strip()) from None
        refused: dict[str, NotSentError] = {}
        for message in TEMPLATES[self.template](source, events, secret):
            if any(event.key in refused for event in message.events):
                continue
            try:
                answer = self.receiver.send(message.body, secret, self.environment)
            except NotSentError as error:
                if not error.reached or error.retry_after:
                    raise
                refused |= dict.fromkeys((event.key for event in message.events), error)
            else:
                yield from ((event, answer) for event in message.events)
        if refused:
            raise next(iter(refused.values()))
