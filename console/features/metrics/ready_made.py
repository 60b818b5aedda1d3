"""For the metrics of `serve-metrics`: a dashboard for Grafana, as JSON, and alerting rules for
Prometheus from the configured limits."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from console.figures import CAPACITY, COUNTS, FULL, JUDGED, SECONDS, SHARE, Limit
from console.monitor.limits import Limits, Thresholds

SCHEMA_VERSION = 36
"""Of Grafana's dashboard model; newer versions of Grafana upgrade it on import."""

_WIDTH = 24
_CHART_HEIGHT = 8
_STAT_HEIGHT = 4
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_SHOWN = 'connection=~"$connection"'
_QUEUE = '{connection=~"$connection",schema=~"$schema",queue=~"$queue"}'
_BY = "connection, schema, queue"
_NAME = "{{connection}}: {{schema}}.{{queue}}"


@dataclass(frozen=True)
class _Chart:
    title: str
    queries: Sequence[tuple[str, str]]
    """Expression and legend of each."""
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    description: str = ""
    steps: Sequence[tuple[str, float]] = ()
    """Of a single figure: colours above green, and the values from which they apply."""

    @property
    def height(self) -> int:
        return _STAT_HEIGHT if self.kind == "stat" else _CHART_HEIGHT


def _rate(counter: str) -> str:
    return f"rate(dbq_queue_{counter}_messages_total{_QUEUE}[$__rate_interval])"


def _state(name: str) -> tuple[str, str]:
    return f"sum(dbq_queue_{name}_messages{_QUEUE})", name


def _stat(
    title: str,
    query: str,
    legend: str,
    colour: str,
    limit: float = 1,
    *,
    unit: str = "short",
    description: str = "",
) -> _Chart:
    """A single figure, coloured from the limit on."""
    return _Chart(title, [(query, legend)], unit, "stat", 4, description, [(colour, limit)])


_PER_QUEUE = f"by ({_BY})"
_RED, _ORANGE = "red", "orange"
_ROWS: Mapping[str, Sequence[_Chart]] = {
    "Overview": (
        _stat("Connections down", f"sum(dbq_up{{{_SHOWN}}} == bool 0)", "down", _RED),
        _stat(
            "Critical findings",
            f'sum(dbq_queue_findings{{{_SHOWN},severity="critical"}})',
            "critical",
            _RED,
        ),
        _stat(
            "Warnings",
            f'sum(dbq_queue_findings{{{_SHOWN},severity="warning"}})',
            "warning",
            _ORANGE,
        ),
        _stat("Stuck claims", f"sum(dbq_queue_stuck_messages{{{_SHOWN}}})", "stuck", _ORANGE),
        _stat(
            "Paused queues",
            f"sum(dbq_queue_paused{{{_SHOWN}}}) or 0 * sum(dbq_up{{{_SHOWN}}})",
            "paused",
            _ORANGE,
        ),
        _stat(
            "Oldest figures",
            f"max(time() - dbq_last_sample_timestamp_seconds{{{_SHOWN}}})",
            "age",
            _ORANGE,
            120,
            unit="s",
            description="How long ago the connection furthest behind was sampled.",
        ),
        _Chart(
            "Ready messages, the ten deepest",
            [(f"topk(10, dbq_queue_ready_messages{{{_SHOWN}}})", _NAME)],
        ),
        _Chart(
            "Age of the oldest ready message, the ten oldest",
            [(f"topk(10, dbq_queue_age_seconds{{{_SHOWN}}})", _NAME)],
            unit="s",
        ),
        _Chart(
            "Errors, the ten highest",
            [(f"topk(10, dbq_queue_error_messages{{{_SHOWN}}} > 0)", _NAME)],
        ),
    ),
    "Queue": (
        _Chart(
            "Messages by state",
            [_state(figure.gauge.removesuffix("_messages")) for figure in COUNTS],
            description="No line: the design has no such state, or it is not known.",
        ),
        _Chart(
            "Pushed and popped",
            [(f"sum({_rate('pushed')})", "pushed"), (f"sum({_rate('popped')})", "popped")],
            unit="cps",
        ),
        _Chart(
            "Age of the oldest ready message",
            [(f"max {_PER_QUEUE} (dbq_queue_age_seconds{_QUEUE})", _NAME)],
            unit="s",
        ),
        _Chart(
            "Waiting for the first pop",
            [
                (
                    f"max by ({_BY}, quantile) (dbq_queue_waiting_seconds{_QUEUE})",
                    _NAME + " {{quantile}}",
                )
            ],
            unit="s",
        ),
        _Chart(
            "Work on a message",
            [
                (
                    f"max by ({_BY}, quantile) (dbq_queue_processing_seconds{_QUEUE})",
                    _NAME + " {{quantile}}",
                )
            ],
            unit="s",
        ),
        _Chart(
            "Consumers and producers",
            [
                (f"sum by (does) (dbq_queue_consumers{_QUEUE})", "{{does}}: names"),
                (f"sum by (does) (dbq_queue_consumer_sessions{_QUEUE})", "{{does}}: sessions"),
                (f"sum(dbq_queue_open_transactions{_QUEUE})", "open transactions"),
            ],
        ),
    ),
    "Ring": (
        _Chart(
            "Push/pop sequence gap and slots",
            [
                (f"dbq_queue_gap_messages{_QUEUE}", _NAME + " gap"),
                (f"dbq_queue_capacity_messages{_QUEUE}", _NAME + " slots"),
            ],
        ),
        _Chart(
            "Slots in use",
            [(f"dbq_queue_gap_messages{_QUEUE} / dbq_queue_capacity_messages{_QUEUE}", _NAME)],
            unit="percentunit",
        ),
        _Chart(
            "Time to full",
            [
                (
                    f"(dbq_queue_capacity_messages{_QUEUE} - dbq_queue_gap_messages{_QUEUE})"
                    f" / ({_rate('pushed')} - {_rate('popped')} > 0)",
                    _NAME,
                )
            ],
            unit="s",
            description="At current rates; no line: it is not filling.",
        ),
    ),
    "Findings": (
        _Chart(
            "Findings by code",
            [
                (
                    f"sum by ({_BY}, code, severity) (dbq_queue_findings_by_code{_QUEUE}) > 0",
                    _NAME + " {{code}} ({{severity}})",
                )
            ],
            width=12,
            description="dbq-console doctor shows what each proves, and its repair.",
        ),
        _Chart(
            "Silenced, and not examined",
            [
                (
                    f"sum by ({_BY}, code) (dbq_queue_findings_silenced{_QUEUE}) > 0",
                    _NAME + " {{code}} silenced",
                ),
                (f"dbq_queue_unexamined{_QUEUE} > 0", _NAME + " not examined"),
            ],
            width=12,
        ),
    ),
}


def dashboard() -> dict[str, Any]:
    """Its variables choose the Prometheus, the connection and the queue."""
    return {
        "uid": "dbq-console",
        "title": "Queues in databases (dbq-console)",
        "tags": ["dbq-console"],
        "schemaVersion": SCHEMA_VERSION,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "type": "datasource",
                    "label": "Prometheus",
                    "query": "prometheus",
                },
                _variable("connection", "dbq_up"),
                _variable("schema", f"dbq_queue_up{{{_SHOWN}}}"),
                _variable("queue", f'dbq_queue_up{{{_SHOWN},schema=~"$schema"}}'),
            ]
        },
        "panels": [{**panel, "id": at} for at, panel in enumerate(_panels(), 1)],
    }


def _variable(label: str, of: str) -> dict[str, Any]:
    return {
        "name": label,
        "type": "query",
        "label": label,
        "datasource": _SOURCE,
        "query": f"label_values({of}, {label})",
        "refresh": 2,  # as the time range changes
        "sort": 1,
        "multi": True,
        "includeAll": True,
    }


def _panels() -> Iterator[dict[str, Any]]:
    y = 0
    for title, charts in _ROWS.items():
        yield {
            "type": "row",
            "title": title,
            "collapsed": False,
            "gridPos": {"h": 1, "w": _WIDTH, "x": 0, "y": y},
            "panels": [],
        }
        x, y, tallest = 0, y + 1, 0
        for chart in charts:
            if x + chart.width > _WIDTH:
                x, y, tallest = 0, y + tallest, 0
            yield _panel(chart, {"h": chart.height, "w": chart.width, "x": x, "y": y})
            x, tallest = x + chart.width, max(tallest, chart.height)
        y += tallest


def _panel(chart: _Chart, position: Mapping[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": chart.unit}
    if chart.steps:
        steps: list[dict[str, object]] = [{"value": None, "color": "green"}]
        steps += [{"value": value, "color": colour} for colour, value in chart.steps]
        defaults |= {
            "color": {"mode": "thresholds"},
            "thresholds": {"mode": "absolute", "steps": steps},
        }
    return {
        "type": chart.kind,
        "title": chart.title,
        "description": chart.description,
        "datasource": _SOURCE,
        "gridPos": dict(position),
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + at), "expr": expression, "legendFormat": legend}
            for at, (expression, legend) in enumerate(chart.queries)
        ],
    }


_STALE_INTERVALS = 20
"""An idle sampler pauses up to 5 times longer; more is an outage."""
_STALE_LEAST_SECONDS = 120.0


_WARNING = 'severity="warning"'


@dataclass(frozen=True)
class Limited:
    """The limits of one connection, and of its queues that have their own."""

    connection: str | None
    """None: every connection that is not configured."""
    thresholds: Thresholds
    queues: Mapping[str, Thresholds]


LASTING = "5m"
"""Shorter conditions raise no alert."""


@dataclass(frozen=True)
class _Rule:
    name: str
    severity: str
    expression: str
    summary: str
    lasting: str = LASTING


def alerts(limited: Sequence[Limited], interval_seconds: float) -> list[str]:
    stale = max(_STALE_LEAST_SECONDS, _STALE_INTERVALS * interval_seconds)
    rules = [*_always(stale), *(rule for one in limited for rule in _of_connection(one))]
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


_OF_QUEUE = "{{ $labels.connection }}: {{ $labels.schema }}.{{ $labels.queue }}"


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
        "DbqStandbyBehind",
        "warning",
        "dbq_figures_current == 0",
        "{{ $labels.connection }}: a standby that is too far behind shows the past",
    )
    yield _Rule(
        "DbqQueueUnreadable",
        "warning",
        "dbq_queue_up == 0 and on (connection) dbq_up == 1",
        f"{_OF_QUEUE} cannot be read",
    )
    yield _Rule(
        "DbqQueueStuck",
        "warning",
        "dbq_queue_stuck_messages >= 1",
        f"{_OF_QUEUE}: {{{{ $value }}}} claims are stuck",
    )
    critical = 'dbq_queue_findings{severity="critical"} >= 1'
    yield _Rule("DbqQueueFindings", "critical", critical, _findings("critical"))


def _findings(severity: str) -> str:
    return f"{_OF_QUEUE}: the doctor has {severity} findings: dbq-console doctor"


def _of_connection(limited: Limited) -> Iterator[_Rule]:
    here = [] if limited.connection is None else [f"connection={_promql(limited.connection)}"]
    others = [f"queue!={_promql(name)}" for name in limited.queues]
    yield from _of_limits([*here, *others], limited.thresholds)
    for name, thresholds in limited.queues.items():
        yield from _of_limits([*here, f"queue={_promql(name)}"], thresholds)


def _of_limits(matchers: Sequence[str], limits: Thresholds) -> Iterator[_Rule]:
    found = f"dbq_queue_findings{{{','.join([*matchers, _WARNING])}}} >= 1"
    yield _Rule("DbqQueueFindings", "warning", found, _findings("warning"))
    where = ",".join(matchers)
    where = f"{{{where}}}" if where else ""
    # Without limits of their own, the share of errors is a finding of the doctor.
    for limit, figure in JUDGED:
        if figure.gauge:
            series = f"dbq_queue_{figure.gauge}{where}"
            if limit is FULL:
                series += f" / dbq_queue_{CAPACITY.gauge}{where}"
            yield from _rules(limit, series, limits[limit.name])


def _rules(limit: Limit, series: str, limits: Limits) -> Iterator[_Rule]:
    name = "DbqQueueFull" if limit is FULL else f"DbqQueue{limit.name.title().replace('_', '')}"
    text = (limit.alert or limit.words).format(_VALUES.get(limit.unit, "{{ $value }}"))
    for severity, value in (("warning", limits.warning), ("critical", limits.critical)):
        if value is not None:
            since = f"{value * 100:g} %" if limit is FULL else limit.unit.text(value)
            summary = f"{_OF_QUEUE}: {text} ({severity} from {since} on)"
            yield _Rule(name, severity, f"{series} >= {_number(value)}", summary)


_VALUES = {SECONDS: "{{ $value | humanizeDuration }}", SHARE: "{{ $value | humanizePercentage }}"}


def _number(limit: float) -> str:
    return str(limit) if isinstance(limit, int) else f"{limit:.15g}"


def _promql(text: str) -> str:
    """A PromQL string; only ASCII is escaped, since JSON would make surrogates of the rest."""
    return '"' + "".join(json.dumps(s)[1:-1] if s.isascii() else s for s in text) + '"'


def _yaml(text: str) -> str:
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(sign: str) -> str:
    if sign in '"\\':
        return f"\\{sign}"
    return sign if sign.isprintable() else f"\\U{ord(sign):08X}"
