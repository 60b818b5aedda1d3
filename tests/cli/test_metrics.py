"""serve-metrics: real scrapes of a real server, and rules that Prometheus can read."""

import json
import re
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain_metrics
from psycopg.sql import SQL, Identifier
from sqlalchemy import make_url

from console.catalog import installed_queue
from console.designs import design
from console.doctor.finding import Diagnosis
from console.errors import ConnectionFailedError
from console.features.history.segments import snapshot_of
from console.features.metrics import exporter as exporter_module
from console.features.metrics.exporter import ConnectionState, address, families
from console.features.metrics.ready_made import Limited, alerts
from console.monitor.consumers import Consumer, Consumers
from console.monitor.limits import DEFAULTS
from console.monitor.sampler import Reading
from tests.cli.calls import Console, Process, call
from tests.cli.conftest import Install
from tests.cli.test_status import claimed_an_hour_ago
from tests.cli.verbs import FAIL_UNLESS_READ_ONLY, UNREACHABLE
from tests.servers import PATIENCE_SECONDS, connect, wait_until

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"
Found = dict[str, list[tuple[dict[str, str], float]]]
"""Name of a sample -> its labels and values."""


def scraped(url: str, accept: str = OPEN_METRICS) -> Found:
    at = urlsplit(url)
    with closing(
        HTTPConnection(at.hostname or "", at.port, timeout=PATIENCE_SECONDS)
    ) as connection:
        connection.request("GET", at.path, headers={"Accept": accept})
        answer = connection.getresponse()
        kind, text = answer.headers["Content-Type"], answer.read().decode()
    assert answer.status == 200
    parse = open_metrics if "openmetrics" in kind else plain_metrics
    assert ("openmetrics" in kind) == (accept == OPEN_METRICS)
    found: Found = {}
    for family in parse(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def figures(found: Found, queue: str) -> dict[str, float]:
    """Every figure of a queue without further labels."""
    return {
        name: number
        for name, samples in found.items()
        for labels, number in samples
        if labels.get("queue") == queue and not {"severity", "figure"} & set(labels)
    }


@contextmanager
def serving(console: Console, *words: str) -> Iterator[tuple[str, Process]]:
    """`serve-metrics` while it runs; its URL and process."""
    more = ("--listen", "127.0.0.1:0", "--interval", "200ms", *words, "--json")
    with console.process("serve-metrics", *more, unbuffered=True) as running:
        assert running.stdout is not None
        line = running.stdout.readline()
        assert line, running.stderr.read() if running.stderr else ""
        yield json.loads(line)["url"], running


def until(url: str, holds: Callable[[Found], bool], what: str) -> Found:
    """The first scrape that meets the condition."""
    last: list[Found] = []

    def scrape() -> bool:
        last[:] = [scraped(url)]
        return holds(last[0])

    wait_until(scrape, what)
    return last[0]


def is_up(found: Found) -> bool:
    return [number for _, number in found.get("dbq_up", [])] == [1.0]


def test_serve_metrics_exports_the_figures_of_a_real_server_until_sigterm(
    console: Console, install: Install
) -> None:
    claim, heap, ring = install("claim"), install("heap"), install("ring", "size=50")
    console.done("push", claim, "-", "--lines", stdin=b"1\n2\n")
    console.done("pop", claim, "--fail", "secret text")
    console.done("pop", claim)
    claimed_an_hour_ago(console, claim)
    console.done("push", claim, "4")
    console.done("push", ring, "x")
    with serving(console) as (url, running):
        found = until(
            url, lambda f: is_up(f) and "dbq_queue_findings" in f, "a look, and one of the doctor"
        )
        of_claim = figures(found, claim)
        expected = {"ready": 1, "claimed": 1, "stuck": 1, "error": 1}
        assert {n: of_claim[f"dbq_queue_{n}_messages"] for n in expected} == expected
        assert of_claim["dbq_queue_up"] == 1
        assert of_claim["dbq_queue_age_seconds"] > 0
        assert "dbq_queue_done_messages" not in of_claim
        of_heap = figures(found, heap)
        assert of_heap["dbq_queue_ready_messages"] == 0
        assert not {"dbq_queue_claimed_messages", "dbq_queue_gap_messages"} & set(of_heap)
        of_ring = figures(found, ring)
        assert of_ring["dbq_queue_gap_messages"] == 1
        assert of_ring["dbq_queue_capacity_messages"] == 50
        ((labels, _),) = [s for s in found["dbq_queue_up"] if s[0]["queue"] == ring]
        assert set(labels) == {"connection", "schema", "queue", "design"}
        assert (labels["schema"], labels["design"]) == ("public", "ring")
        severities = {
            labels["severity"]: number
            for labels, number in found["dbq_queue_findings"]
            if labels["queue"] == claim
        }
        assert severities.keys() == {"critical", "warning", "note"}
        assert severities["warning"] >= 1
        # All metrics that the alerts use are exported.
        text = "\n".join(alerts([Limited(None, DEFAULTS, {})], 5.0))
        used = {name for rule in rules(text) for name in re.findall(r"\bdbq_\w+", rule["expr"])}
        assert used <= set(found)
        assert len(used) >= 7
        # Counters increase with each push.
        pushed = of_ring["dbq_queue_pushed_messages_total"]
        console.done("push", ring, "-", "--lines", stdin=b"x\n" * 7)
        later = until(
            url,
            lambda f: figures(f, ring)["dbq_queue_pushed_messages_total"] > pushed,
            "pushes are counted",
        )
        assert figures(later, ring)["dbq_queue_pushed_messages_total"] == pushed + 7
        assert figures(later, ring)["dbq_queue_popped_messages_total"] == 0
        # The other format is served on request.
        assert figures(scraped(url, "text/plain"), heap) == figures(scraped(url), heap)
        running.send_signal(signal.SIGTERM)
        out, err = running.communicate(timeout=PATIENCE_SECONDS)
    assert (running.returncode, out) == (0, b"")
    assert b"Traceback" not in err
    assert b"Stopping" in err
    running.wait_for_no_session()


@pytest.mark.long
def test_an_unreadable_queue_has_no_figures_and_all_transactions_are_read_only(
    empty: Console,
) -> None:
    for name in ("sound", "gone"):
        empty.done("install", "fifo", name)
    with connect(empty.url) as connection:
        connection.execute(SQL("DROP TABLE {}").format(Identifier("public", "gone")))
        # Reading the catalog in a transaction that may write is an error.
        connection.execute(FAIL_UNLESS_READ_ONLY.encode())
    with serving(empty) as (url, _):
        found = until(url, lambda f: is_up(f) and "dbq_queue_findings" in f, "looks")
    assert figures(found, "sound")["dbq_queue_ready_messages"] == 0
    unread = {n: v for n, v in figures(found, "gone").items() if n != "dbq_queue_unexamined"}
    assert unread == {"dbq_queue_up": 0}


def test_consumers_are_counted_only_if_all_of_them_are_visible() -> None:
    queue = installed_queue("public", "mail", design("fifo"), {})
    snapshot = snapshot_of({"schema": "public", "queue": "mail", "pop_per_second": 3.0}, "here")
    both, pusher, gone = (
        Consumer(name, does, None, None, None, sessions, *[None] * 5)  # type: ignore[arg-type]
        for name, does, sessions in (
            ("a", ("pop", "push"), 2),
            ("b", ("push",), 3),
            ("c", ("pop",), 0),
        )
    )
    visible = Consumers(queue, datetime.now(UTC), (both, pusher, gone))
    hidden = replace(visible, missing={"sessions": "no right"})
    between = replace(visible, consumers=(pusher, gone))
    counted = {}
    for which, consumers in (("all", visible), ("hidden", hidden), ("between", between)):
        examined = Diagnosis(queue, (), figures=snapshot, consumers=consumers)
        state = ConnectionState(Reading("here", (snapshot,)), 1.0, [examined], 1.0)
        samples = [one for family in families([state]) for one in family.samples]
        counted[which] = {
            (one.name.removeprefix("dbq_queue_"), one.labels["does"]): one.value
            for one in samples
            if "does" in one.labels
        }
    assert counted["all"] == {
        ("consumers", "pop"): 1,
        ("consumers", "push"): 2,
        ("consumer_sessions", "pop"): 2,
        ("consumer_sessions", "push"): 5,
    }
    assert counted["hidden"] == {}, "a part of them would be a false figure"
    words = "messages are popped: whoever does it was there between two samples"
    assert {does for _, does in counted["between"]} == {"push"}, words


def test_counted_messages_are_whole_numbers() -> None:
    """Pops are half of the updates and deletes that the server counts."""
    mail = snapshot_of({"schema": "public", "queue": "mail", "ready": 7}, "here")
    reading = Reading("here", (replace(mail, pushed=12.0, popped=4.5),))
    values = {
        one.name: one.value
        for family in families([ConnectionState(reading, 1.0)])
        for one in family.samples
        if one.name.endswith("_messages_total")
    }
    assert values == {"dbq_queue_pushed_messages_total": 12, "dbq_queue_popped_messages_total": 4}


def test_a_lost_database_or_queue_keeps_none_of_its_last_figures() -> None:
    snapshot = snapshot_of({"schema": "public", "queue": "mail", "ready": 7}, "here")
    exported = []
    for reading in (
        Reading("here", (snapshot,)),
        Reading("here", (snapshot,), error=ConnectionFailedError("lost")),
        Reading("here", (replace(snapshot, problem="gone"),)),
    ):
        samples = [
            one for family in families([ConnectionState(reading, 1.0)]) for one in family.samples
        ]
        exported.append({one.name: one.value for one in samples if "queue" in one.labels})
        assert {one.value for one in samples if one.name == "dbq_up"} == {reading.error is None}
    assert exported[0]["dbq_queue_ready_messages"] == 7
    assert exported[1:] == [{"dbq_queue_up": 0}] * 2


@pytest.mark.long
def test_an_unreachable_database_is_down() -> None:
    with serving(Console(UNREACHABLE)) as (url, running):
        found = until(url, lambda f: "dbq_up" in f, "a scrape")
        assert [number for _, number in found["dbq_up"]] == [0.0]
        assert "dbq_last_sample_timestamp_seconds" not in found
        assert not any(name.startswith("dbq_queue") for name in found)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=PATIENCE_SECONDS)
    assert running.returncode == 0
    assert b"s3cr3t" not in err


@pytest.mark.long
def test_a_database_that_goes_down_has_no_figures_until_it_is_up_again(empty: Console) -> None:
    empty.done("install", "fifo", "q")
    with serving(empty) as (url, running):
        before = until(url, is_up, "a look")
        assert "dbq_queue_ready_messages" in figures(before, "q")
        name = make_url(empty.url).database or ""
        with connect(_maintenance_url(empty.url)) as connection:
            # New connections are refused, existing ones are terminated.
            allow = SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
            connection.execute(allow.format(Identifier(name), SQL("false")))
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = %s",
                (running.name,),
            )
            try:
                after = until(url, lambda f: f["dbq_up"][0][1] == 0, "it is down")
            finally:
                connection.execute(allow.format(Identifier(name), SQL("true")))
        assert figures(after, "q") == {"dbq_queue_up": 0}
        stamp = "dbq_last_sample_timestamp_seconds"
        assert after[stamp][0][1] >= before[stamp][0][1]
        until(url, is_up, "it is back")


def _maintenance_url(url: str) -> str:
    return make_url(url).set(database="postgres").render_as_string(hide_password=False)


def test_clients_that_send_nothing_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter_module, "REQUEST_SECONDS", 0.05)
    exporter = exporter_module.Exporter([], "127.0.0.1", 0)
    try:
        port = int(exporter.url.rpartition(":")[2].partition("/")[0])
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS) as silent:
            assert silent.recv(1) == b"", "the server has closed it"
    finally:
        exporter.stop()


def test_addresses_other_than_loopback_need_the_option_anywhere() -> None:
    for listen in ("0.0.0.0:0", "[::]:0", "example.invalid:9464"):
        call("serve-metrics", "--listen", listen, "--url", UNREACHABLE).failed(4, "--anywhere")
    assert address("[::]:1", anywhere=True) == ("::", 1)
    assert address("[::1]:9464", anywhere=False) == ("::1", 9464)
    assert address("localhost:0", anywhere=False) == ("localhost", 0)
    assert address("127.9.9.9:0", anywhere=False) == ("127.9.9.9", 0)


def test_wrong_use_of_serve_metrics_is_exit_2() -> None:
    for words in (
        *(["--listen", "9464"], ["--listen", "127.0.0.1:x"], ["--listen", "127.0.0.1:70000"]),
        *(["--interval", "1ms"], ["--rights", "admin"], ["--schema", "s"]),
    ):
        call("serve-metrics", "--url", UNREACHABLE, *words).failed(2)
    assert call("serve-metrics").status == 2
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        answer = call("serve-metrics", "--listen", taken, "--url", UNREACHABLE)
    assert (answer.status, answer.out, taken in answer.err) == (3, b"", True)


CONFIGURATION = """
errors = { warning = 5 }
[profiles.a]
url = "postgresql+psycopg://u@127.0.0.1:1/a"
depth = { warning = 100, critical = 1000 }
[profiles.a.queues.'it"s \\ {{ü😀}}']
depth = { warning = "off", critical = 7 }
[profiles.b]
url = "postgresql+psycopg://u@127.0.0.1:1/b"
group = "shop"
password = "prompt"
age = { critical = "10m" }
"""


def rules(text: str) -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(text)["groups"]
    found: list[dict[str, Any]] = group["rules"]
    for rule in found:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"[A-Z]\w+", rule["alert"])
        assert re.fullmatch(r"\d+[sm]", rule["for"])
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"]["summary"]
        assert rule["expr"].count("{") == rule["expr"].count("}")
    return found


def test_alerts_have_the_limits_of_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(CONFIGURATION)
    answer = call("serve-metrics", "--print-alerts", environment={"DBQ_CONFIG": str(file)})
    assert (answer.status, answer.err) == (0, "")
    found = [
        (rule["alert"], rule["labels"]["severity"], rule["expr"]) for rule in rules(answer.text)
    ]
    other = 'connection="a",queue!="it\\"s \\\\ {{ü😀}}"'
    own = 'connection="a",queue="it\\"s \\\\ {{ü😀}}"'
    depth = "dbq_queue_ready_messages"
    assert [one for one in found if one[0] == "DbqQueueDepth"] == [
        ("DbqQueueDepth", "warning", f"{depth}{{{other}}} >= 100"),
        ("DbqQueueDepth", "critical", f"{depth}{{{other}}} >= 1000"),
        ("DbqQueueDepth", "critical", f"{depth}{{{own}}} >= 7"),
    ]
    age = 'dbq_queue_age_seconds{connection="b"} >= 600'
    assert [one for one in found if one[0] == "DbqQueueAge"] == [("DbqQueueAge", "critical", age)]
    assert ("DbqConnectionDown", "critical", "dbq_up == 0") in found
    only = call(
        "serve-metrics", "--print-alerts", environment={"DBQ_CONFIG": str(file), "DBQ_PROFILE": "b"}
    )
    assert 'connection="a"' not in only.text
    of_group = call(
        *("serve-metrics", "--print-alerts", "--group", "shop"),
        environment={"DBQ_CONFIG": str(file)},
    )
    assert of_group.text == only.text


def test_an_unknown_group_is_exit_2_and_lists_the_groups(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(CONFIGURATION)
    for verb in ("serve-metrics", "record"):
        call(verb, "--group", "none", environment={"DBQ_CONFIG": str(file)}).failed(
            2, "Configured groups: shop."
        )
        call(verb, "--group", "shop", "--url", UNREACHABLE).failed(2, "--group")


def test_default_alerts_fire_after_five_minutes_and_not_for_single_errors() -> None:
    found = rules(call("serve-metrics", "--print-alerts", "--json").json["alerts"])
    assert {rule["for"] for rule in found} == {"5m"}
    assert not any("connection=" in rule["expr"] for rule in found), "they hold for all"
    assert not any(rule["alert"] == "DbqQueueErrors" for rule in found)
    assert [rule["expr"] for rule in found if rule["alert"] == "DbqQueueFindings"] == [
        'dbq_queue_findings{severity="critical"} >= 1',
        'dbq_queue_findings{severity="warning"} >= 1',
    ]
