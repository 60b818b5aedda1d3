"""Ready-made rules for Prometheus, with the limits that are configured."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from console.formats import count, duration
from console.monitor.limits import Limits, Thresholds

_STALE_INTERVALS = 20
"""An idle sampler samples up to 5 times less often; a longer silence is an outage."""
_STALE_LEAST_SECONDS = 120.0


_WARNING = 'severity="warning"'


@dataclass(frozen=True)
class Limited:
    """The limits of one connection, and of its queues that have some of their own."""

    connection: str | None
    """None: every connection that is not configured."""
    thresholds: Thresholds
    queues: Mapping[str, Thresholds]


LASTING = "5m"
"""What is over sooner needs nobody."""


@dataclass(frozen=True)
class _Rule:
    name: str
    severity: str
    expression: str
    summary: str
    lasting: str = LASTING


def alerts(limited: Sequence[Limited], interval_seconds: float) -> list[str]:
    """The lines of a rules file, in YAML."""
    stale = max(_STALE_LEAST_SECONDS, _STALE_INTERVALS * interval_seconds)
    rules = [
        *_always(stale),
        *(rule for one in limited for rule in _of_connection(one)),
    ]
    lines = ["groups:", "  - name: dbq-console", "    rules:"]
    for rule in rules:
        lines += [
            f"      - alert: {rule.name}",
            f"        expr: {_yaml(rule.expression)}",
            f"        for: {rule.lasting}",
            "        labels:",
            f"          severity: {rule.severity}",
            "        annotations:",
            f"          summary: {_yaml(rule.summary)}",
        ]
    return lines


_QUEUE = "{{ $labels.connection }}: {{ $labels.schema }}.{{ $labels.queue }}"


def _always(stale_seconds: float) -> Iterator[_Rule]:
    yield _Rule(
        "DbqConnectionDown",
        "critical",
        "dbq_up == 0",
        "{{ $labels.connection }}: dbq-console cannot sample its queues",
    )
    yield _Rule(
        "DbqSampleStale",
        "warning",
        f"time() - dbq_last_sample_timestamp_seconds > {stale_seconds:g}",
        "{{ $labels.connection }}: the figures are {{ $value | humanizeDuration }} old",
    )
    yield _Rule(
        "DbqQueueUnreadable",
        "warning",
        "dbq_queue_up == 0 and on (connection) dbq_up == 1",
        f"{_QUEUE} cannot be read",
    )
    yield _Rule(
        "DbqQueueStuck",
        "warning",
        "dbq_queue_stuck_messages >= 1",
        f"{_QUEUE}: {{{{ $value }}}} claims are stuck",
    )
    critical = 'dbq_queue_findings{severity="critical"} >= 1'
    yield _Rule("DbqQueueFindings", "critical", critical, _findings("critical"))


def _findings(severity: str) -> str:
    return f"{_QUEUE}: the doctor has {severity} findings: dbq-console doctor"


def _of_connection(one: Limited) -> Iterator[_Rule]:
    here = [] if one.connection is None else [f"connection={_promql(one.connection)}"]
    others = [f"queue!={_promql(name)}" for name in one.queues]
    yield from _of_limits([*here, *others], one.thresholds)
    for name, thresholds in one.queues.items():
        yield from _of_limits([*here, f"queue={_promql(name)}"], thresholds)


def _of_limits(matchers: Sequence[str], limits: Thresholds) -> Iterator[_Rule]:
    yield _of_warnings(matchers)
    where = ",".join(matchers)
    where = f"{{{where}}}" if where else ""
    yield from _rules(
        "DbqQueueDepth", f"dbq_queue_ready_messages{where}", limits.depth, "{{ $value }} ready"
    )
    yield from _rules(
        "DbqQueueAge",
        f"dbq_queue_age_seconds{where}",
        limits.age_seconds,
        "its oldest message has waited {{ $value | humanizeDuration }}",
    )
    # A share of them, where they have no limit of their own, is a finding of the doctor's.
    yield from _rules(
        "DbqQueueErrors", f"dbq_queue_error_messages{where}", limits.errors, "{{ $value }} in error"
    )
    yield from _rules(
        "DbqQueueFull",
        f"dbq_queue_gap_messages{where} / dbq_queue_capacity_messages{where}",
        limits.gap_share,
        "{{ $value | humanizePercentage }} of its slots are in use",
    )


def _of_warnings(matchers: Sequence[str]) -> _Rule:
    expression = f"dbq_queue_findings{{{','.join([*matchers, _WARNING])}}} >= 1"
    return _Rule("DbqQueueFindings", "warning", expression, _findings("warning"))


def _rules(
    name: str, figure: str, limits: Limits[int] | Limits[float], words: str
) -> Iterator[_Rule]:
    for severity, limit in (("warning", limits.warning), ("critical", limits.critical)):
        if limit is not None:
            expression = f"{figure} >= {_number(limit)}"
            summary = f"{_QUEUE}: {words} ({severity} from {_words(name, limit)} on)"
            yield _Rule(name, severity, expression, summary)


def _words(name: str, limit: float) -> str:
    if name == "DbqQueueFull":
        return f"{limit * 100:g} %"
    return duration(limit) if name == "DbqQueueAge" else count(int(limit))


def _number(limit: float) -> str:
    return str(limit) if isinstance(limit, int) else f"{limit:.15g}"


def _promql(text: str) -> str:
    """A string of PromQL: what is not ASCII stays, for JSON would make surrogates of it."""
    return '"' + "".join(json.dumps(s)[1:-1] if s.isascii() else s for s in text) + '"'


def _yaml(text: str) -> str:
    """A double-quoted scalar."""
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(sign: str) -> str:
    if sign in '"\\':
        return f"\\{sign}"
    return sign if sign.isprintable() else f"\\U{ord(sign):08X}"
