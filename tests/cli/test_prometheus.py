"""The output for Prometheus and Grafana, read by their own models, parsers and programs."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import promql_parser
import pytest
import yaml  # type: ignore[import-untyped]
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from console.features.metrics.exporter import families
from tests.cli.calls import Console, call
from tests.cli.conftest import Install
from tests.cli.test_metrics import is_up, rules, serving, until
from tests.servers import PATIENCE_SECONDS, free_port, wait_until

VARIABLES = {"$__rate_interval": "1m", "$connection": ".*", "$schema": ".*", "$queue": ".*"}


def printed_dashboard() -> dict[str, Any]:
    answer = call("serve-metrics", "--print-dashboard")
    assert (answer.status, answer.err) == (0, "")
    model: dict[str, Any] = json.loads(answer.text)
    assert call("serve-metrics", "--print-dashboard", "--json").json == {"dashboard": model}
    return model


def queries(model: dict[str, Any]) -> list[str]:
    """All expressions of the panels, with values for the variables."""
    found = []
    for panel in model["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"]
            for name, value in VARIABLES.items():
                expression = expression.replace(name, value)
            found.append(expression)
    return found


def alert_rules() -> list[str]:
    return [rule["expr"] for rule in rules(call("serve-metrics", "--print-alerts").text)]


def contains(document: Any, part: Any) -> bool:
    """Whether nothing of `part` was dropped or changed; `document` may also have defaults."""
    if isinstance(part, dict):
        return all(
            key in document and contains(document[key], value) for key, value in part.items()
        )
    if isinstance(part, list):
        return len(document) == len(part) and all(map(contains, document, part))
    return bool(document == part)


def test_the_dashboard_conforms_to_grafanas_model() -> None:
    model = printed_dashboard()
    register_default_plugins()
    read = Dashboard.from_json(model)
    assert read.schema_version == model["schemaVersion"] == Dashboard().schema_version
    again = json.loads(JSONEncoder().encode(read))
    for panel in again["panels"]:
        # The model's defaults for what is not set.
        panel.setdefault("description", "")
        panel.setdefault("panels", [])
        for step in (
            panel.get("fieldConfig", {}).get("defaults", {}).get("thresholds", {}).get("steps", [])
        ):
            step.setdefault("value", None)
        panel.setdefault("fieldConfig", {}).setdefault("overrides", [])
    assert contains(again, model)
    positions = [panel["gridPos"] for panel in model["panels"]]
    taken = [
        (x, y)
        for at in positions
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(taken) == len(set(taken)), "panels lie on each other"
    assert max(at["x"] + at["w"] for at in positions) == 24


def test_every_expression_is_valid_and_uses_exported_metrics_and_labels() -> None:
    served = {
        f"{metric.name}_total" if metric.type == "counter" else metric.name: set(
            metric._labelnames  # type: ignore[attr-defined]  # its type does not tell
        )
        for metric in families(())
    }
    for expression in [*queries(printed_dashboard()), *alert_rules()]:
        promql_parser.parse(expression)
        names = re.findall(r"\bdbq_\w+", expression)
        assert names, expression
        labels = {label for name in names for label in served[name]}
        grouped = re.findall(r"by \(([\w, ]+)\)", expression)
        matched = re.findall(r"(\w+)=~?\"", expression)
        assert {*matched, *(one for group in grouped for one in group.split(", "))} <= labels, (
            expression
        )


def program(name: str) -> str:
    which = shutil.which(name)
    if which is None:
        pytest.skip(f"{name} is not installed (Debian's package: prometheus)")
    return which


RULES_TEST = """
rule_files: [rules.yml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - series: 'dbq_up{connection="a"}'
        values: '1 1 0x20'
      - series: 'dbq_queue_up{connection="b",schema="public",queue="q",design="ring"}'
        values: '0x30'
      - series: 'dbq_up{connection="b"}'
        values: '1x30'
    alert_rule_test:
      - eval_time: 6m
        alertname: DbqConnectionDown
        exp_alerts: []
      - eval_time: 8m
        alertname: DbqConnectionDown
        exp_alerts:
          - exp_labels: {severity: critical, connection: a}
            exp_annotations: {summary: 'a: dbq-console cannot sample its queues'}
      - eval_time: 10m
        alertname: DbqQueueUnreadable
        exp_alerts:
          - exp_labels: {severity: warning, connection: b, schema: public, queue: q, design: ring}
            exp_annotations: {summary: 'b: public.q cannot be read'}
  - interval: 1m
    input_series:
      - series: 'dbq_queue_gap_messages{connection="a",schema="s",queue="q",design="ring"}'
        values: '950x20'
      - series: 'dbq_queue_capacity_messages{connection="a",schema="s",queue="q",design="ring"}'
        values: '1000x20'
    alert_rule_test:
      - eval_time: 10m
        alertname: DbqQueueFull
        exp_alerts:
"""


def test_promtool_accepts_the_rules_and_their_unit_tests_pass(tmp_path: Path) -> None:
    promtool = program("promtool")
    text = call("serve-metrics", "--print-alerts").text
    (tmp_path / "rules.yml").write_text(text)
    full = [
        {
            "exp_labels": {**rule["labels"], "connection": "a", "schema": "s", "queue": "q"}
            | {"design": "ring"},
            "exp_annotations": {
                "summary": rule["annotations"]["summary"]
                .replace("{{ $labels.connection }}: {{ $labels.schema }}", "a: s")
                .replace("{{ $labels.queue }}", "q")
                .replace("{{ $value | humanizePercentage }}", "95%")
            },
        }
        for rule in rules(text)
        if rule["alert"] == "DbqQueueFull" and float(rule["expr"].rpartition(" ")[2]) <= 0.95
    ]
    assert full
    unit = yaml.safe_load(RULES_TEST)
    unit["tests"][1]["alert_rule_test"][0]["exp_alerts"] = full
    (tmp_path / "test.yml").write_text(yaml.safe_dump(unit))
    for words in (["check", "rules", "rules.yml"], ["test", "rules", "test.yml"]):
        done = subprocess.run(
            [promtool, *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "SUCCESS" in done.stdout


@contextmanager
def prometheus(folder: Path, scraped: str) -> Iterator[str]:
    """A Prometheus that scrapes one address each second; its own URL."""
    address = f"127.0.0.1:{free_port()}"
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "dbq", "static_configs": [{"targets": [scraped]}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with subprocess.Popen(
        [
            program("prometheus"),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
        ],
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            url = f"http://{address}"
            wait_until(lambda: is_ready(url), "Prometheus is ready")
            yield url
        finally:
            process.terminate()
            process.wait(PATIENCE_SECONDS)


def is_ready(address: str) -> bool:
    try:
        urlopen(f"{address}/-/ready", timeout=PATIENCE_SECONDS).close()  # noqa: S310  # it is http
    except OSError:  # it does not listen yet, or is not ready
        return False
    return True


def run_query(address: str, expression: str) -> list[dict[str, Any]]:
    url = f"{address}/api/v1/query?{urlencode({'query': expression})}"
    with urlopen(url, timeout=PATIENCE_SECONDS) as answer:  # noqa: S310  # it is http
        found = json.load(answer)
    assert found["status"] == "success"
    result: list[dict[str, Any]] = found["data"]["result"]
    return result


@pytest.mark.long
def test_the_dashboards_queries_have_results_in_a_real_prometheus(
    console: Console, install: Install, tmp_path: Path
) -> None:
    program("prometheus")
    queue = install("ring")
    console.done("push", queue, "one")
    with serving(console) as (url, _):
        until(url, is_up, "the first sample")
        scraped = url.removeprefix("http://").removesuffix("/metrics")
        with prometheus(tmp_path, scraped) as address:
            wait_until(
                lambda: bool(run_query(address, "dbq_queue_findings == 0")),
                "Prometheus has the doctor's figures",
            )
            wait_until(
                lambda: bool(run_query(address, "rate(dbq_queue_pushed_messages_total[1m])")),
                "two samples were scraped",
            )
            (depth,) = run_query(address, "dbq_queue_ready_messages")
            assert depth["metric"]["queue"] == queue
            assert depth["value"][1] == "1"
            given = {query: run_query(address, query) for query in queries(printed_dashboard())}
    without_result = [one for one, result in given.items() if not result]
    # Only figures that this ring does not have now have no result.
    for one in without_result:
        assert re.search(r"> 0|processing|waiting|scheduled|claimed|stuck|done|error|consumer", one)
    assert len(given) - len(without_result) >= 12
