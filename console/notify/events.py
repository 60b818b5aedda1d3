"""What a receiver is told of findings: as JSON, or as Slack or PagerDuty want it. No payload."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType

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
