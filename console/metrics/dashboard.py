"""A dashboard for Grafana of what `serve-metrics` serves: its model as JSON."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SCHEMA_VERSION = 36
"""Of Grafana's dashboard model. A newer Grafana brings it up to its own when it is imported."""

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
    """Of a single figure: from which value on which colour, above green."""

    @property
    def height(self) -> int:
        return _STAT_HEIGHT if self.kind == "stat" else _CHART_HEIGHT


def _rate(counter: str) -> str:
    return f"rate(dbq_queue_{counter}_messages_total{_QUEUE}[$__rate_interval])"


def _state(name: str) -> tuple[str, str]:
    return f"sum(dbq_queue_{name}_messages{_QUEUE})", name


_PER_QUEUE = f"by ({_BY})"
_RED, _ORANGE = "red", "orange"
_ROWS: Mapping[str, Sequence[_Chart]] = {
    "Overview": (
        _Chart(
            "Connections down",
            [(f"sum(dbq_up{{{_SHOWN}}} == bool 0)", "down")],
            kind="stat",
            width=4,
            steps=[(_RED, 1)],
        ),
        _Chart(
            "Critical findings",
            [(f'sum(dbq_queue_findings{{{_SHOWN},severity="critical"}})', "critical")],
            kind="stat",
            width=4,
            steps=[(_RED, 1)],
        ),
        _Chart(
            "Warnings",
            [(f'sum(dbq_queue_findings{{{_SHOWN},severity="warning"}})', "warning")],
            kind="stat",
            width=4,
            steps=[(_ORANGE, 1)],
        ),
        _Chart(
            "Stuck claims",
            [(f"sum(dbq_queue_stuck_messages{{{_SHOWN}}})", "stuck")],
            kind="stat",
            width=4,
            steps=[(_ORANGE, 1)],
        ),
        _Chart(
            "Paused queues",
            [(f"sum(dbq_queue_paused{{{_SHOWN}}}) or 0 * sum(dbq_up{{{_SHOWN}}})", "paused")],
            kind="stat",
            width=4,
            steps=[(_ORANGE, 1)],
        ),
        _Chart(
            "Oldest figures",
            [(f"max(time() - dbq_last_sample_timestamp_seconds{{{_SHOWN}}})", "age")],
            unit="s",
            kind="stat",
            width=4,
            description="How long ago the connection that is behind most was sampled.",
            steps=[(_ORANGE, 120)],
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
            "Errors, the ten most",
            [(f"topk(10, dbq_queue_error_messages{{{_SHOWN}}} > 0)", _NAME)],
        ),
    ),
    "Queue": (
        _Chart(
            "Messages by state",
            [_state(name) for name in ("ready", "scheduled", "claimed", "stuck", "error", "done")],
            description="No line: the design has no such state, or it is not known.",
        ),
        _Chart(
            "Pushed and popped",
            [
                (f"sum({_rate('pushed')})", "pushed"),
                (f"sum({_rate('popped')})", "popped"),
            ],
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
            description="At the rates of now; no line: it is not filling.",
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
            description="dbq-console doctor tells what each proves, and its repair.",
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
    """To be imported as it is; which Prometheus, connection and queue are chosen there."""
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


def _panel(chart: _Chart, place: Mapping[str, int]) -> dict[str, Any]:
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
        "gridPos": dict(place),
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + at), "expr": expression, "legendFormat": legend}
            for at, (expression, legend) in enumerate(chart.queries)
        ],
    }
