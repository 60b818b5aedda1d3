"""check, the doctor and the report: exit statuses, figures, unknown values; also for a fleet."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import make_url

from console.cli.commands.check import Checked, CheckedFigure
from console.doctor.checks import CODES
from console.figures import LIMITS as CONFIGURED
from console.monitor.limits import Limits, Severity
from tests.cli.calls import Console, call
from tests.cli.conftest import Install
from tests.cli.test_status import claimed_an_hour_ago
from tests.cli.verbs import UNREACHABLE
from tests.servers import connect, execute

PERFDATA = re.compile(r"'(?:[^'=]|'')+'=(?:U|-?\d+(?:\.\d+)?(?:s|%)?);[@:\d.]*;[@:\d.]*;0?;(?: |$)")


def perfdata(line: str) -> dict[str, str]:
    """The performance data after the only "|" of a summary, by label."""
    text, bar, data = line.partition(" | ")
    assert "|" not in text
    assert bool(bar) == bool(data)
    assert "".join(PERFDATA.findall(data)) == data
    return {
        label.strip("'"): values
        for label, _, values in (one.rpartition("=") for one in re.findall(r"'.*?'=\S+", data))
    }


def test_check_compares_figures_with_the_given_limits(console: Console, install: Install) -> None:
    name = install("fifo")
    console.done("push", name, "-", "--lines", stdin=b"x\nx\nx\n")
    answer = console.done("check", name, "--max-depth", "3", "--max-age", "1h")
    first, queue = answer.text.splitlines()
    assert first.startswith("DBQ OK - 1 queue within limits | ")
    found = perfdata(first)
    assert found[f"{name} depth"] == "3;;3;0;"
    assert found[f"{name} age"].endswith("s;;@3600:;0;")
    assert queue.startswith(f"OK {name}: 3 ready, oldest ")
    assert "errors" not in answer.text
    for plugin, status in ([], 1), (["--plugin"], 2):
        answer = console("check", name, "--max-depth", "2", *plugin)
        assert (answer.status, answer.err) == (status, "")
        first, queue = answer.text.splitlines()
        critical = f"DBQ CRITICAL - 1 critical of 1 queue: {name}: 3 ready (critical from"
        assert first.startswith(critical)
        assert perfdata(first)[f"{name} depth"] == "3;;2;0;"
        assert queue == f"CRITICAL {name}: 3 ready (critical from 3)"


def test_errors_and_stuck_claims_are_a_warning_unless_a_limit_is_given(
    console: Console, install: Install
) -> None:
    name = install("claim")
    console.done("push", name, "-", "--lines", stdin=b"x\n" * 11)
    console.done("pop", name, "--count", "10", "--fail", "no")
    console.done("pop", name)
    claimed_an_hour_ago(console, name)
    assert console("check", name).status == 1
    answer = console("check", name, "--plugin", "--json")
    assert (answer.status, answer.json["status"]) == (1, "warning")
    (queue,) = answer.json["queues"]
    assert list(queue) == ["queue", "schema", "design", "status", "problem", "figures"]
    states = {name: figure["status"] for name, figure in queue["figures"].items()}
    # Nothing waits, so nothing has an age.
    assert states == {"depth": "ok", "errors": "warning", "stuck": "warning"}
    assert queue["figures"]["stuck"] == {
        "value": 1,
        "status": "warning",
        "warning": 1,
        "critical": None,
        "estimated": False,
        "silenced": None,
        "subscriber": None,
    }
    console.done("check", name, "--max-errors", "10", "--max-stuck", "1")
    assert console("check", name, "--max-stuck", "0", "--plugin").status == 2


def test_an_unknown_age_is_not_taken_for_zero(console: Console, install: Install) -> None:
    name = install("heap")
    console.done("push", name, "-", "--lines", stdin=b"x\nx\nx\n")
    fine = console.done("check", name)
    assert f"OK {name}: 3 ready, age ?" in fine.text
    answer = console("check", name, "--max-age", "1h")
    assert answer.status == 1
    first, queue = answer.text.splitlines()
    assert first.startswith("DBQ UNKNOWN - 1 unknown of 1 queue")
    assert perfdata(first)[f"{name} age"] == "U;;@3600:;0;"
    assert queue == f"UNKNOWN {name}: age ?"
    assert console("check", name, "--max-age", "1h", "--plugin").status == 3


def test_an_unreadable_queue_is_unknown_and_so_is_a_database_without_queues(empty: Console) -> None:
    assert empty("check").text == "DBQ UNKNOWN - there are no queues here\n"
    assert (empty("check").status, empty("check", "--plugin").status) == (1, 3)
    for name in ("sound", "gone"):
        empty.done("install", "fifo", name)
    execute(empty.url, "DROP TABLE public.gone")
    answer = empty("check", "--plugin", "--json")
    assert (answer.status, answer.json["status"]) == (3, "unknown")
    found = {queue["queue"]: queue for queue in answer.json["queues"]}
    assert [found[name]["status"] for name in ("sound", "gone")] == ["ok", "unknown"]
    assert "does not exist" in found["gone"]["problem"]
    assert {figure["value"] for figure in found["gone"]["figures"].values()} == {None}


def test_check_without_a_connection_is_exit_3() -> None:
    call("check", "--url", UNREACHABLE).failed(3)
    plugin = call("check", "--plugin", "--url", UNREACHABLE)
    assert (plugin.status, plugin.err) == (3, "")
    assert plugin.text.startswith("DBQ UNKNOWN - Could not ")
    assert plugin.text.count("\n") == 1
    assert call("check", "--plugin", "--json", "--url", UNREACHABLE).json["queues"] == []


def test_wrong_use_of_check_is_exit_2(console: Console) -> None:
    for words in (["--max-depth", "-1"], ["--max-age", "soon"], ["none such"]):
        console("check", *words).failed(2)


def test_a_queue_name_cannot_break_the_performance_data(console: Console) -> None:
    name = "o'q = |\n50%"
    console.done("install", "fifo", name)
    answer = console.done("check", name)
    first, _ = answer.text.splitlines()
    assert perfdata(first)
    assert "o''q _ ¦" in first


def test_a_full_ring_is_critical(console: Console) -> None:
    console.done("install", "ring", "small", "--option", "size=4")
    console.done("push", "small", "-", "--lines", stdin=b"1\n2\n3\n4\n")
    answer = console("check", "small", "--plugin")
    assert answer.status == 2
    assert "full: it takes no more pushes (critical from 100 %)" in answer.text
    assert perfdata(answer.text.splitlines()[0])["small gap_share"] == "100%;@90:;@100:;;"


DEPTH = CONFIGURED["depth"]
LIMITS = st.one_of(st.none(), st.integers(1, 50))


@given(st.one_of(st.none(), st.integers(0, 60)), LIMITS, LIMITS)
def test_the_ranges_of_the_performance_data_agree_with_the_severity(
    value: int | None, warning: int | None, critical: int | None
) -> None:
    one = CheckedFigure(DEPTH, value, Limits(warning, critical))
    shown = one.perfdata("q")
    if value is None:
        limited = (warning, critical) != (None, None)
        assert one.severity is (Severity.UNKNOWN if limited else Severity.OK)
        assert "=U;" in shown
        return
    _, low, high, *_ = shown.rpartition("=")[2].split(";")
    if high != "" and value > int(high):
        assert one.severity is Severity.CRITICAL
    else:
        above = low != "" and value > int(low)
        assert one.severity is (Severity.WARNING if above else Severity.OK)


BY_SEVERITY = {
    Severity.CRITICAL: CheckedFigure(DEPTH, 9, Limits(1, 2)),
    Severity.WARNING: CheckedFigure(DEPTH, 1, Limits(1, 2)),
    Severity.UNKNOWN: CheckedFigure(DEPTH, None, Limits(1, 2)),
    Severity.OK: CheckedFigure(DEPTH, 0, Limits(1, 2)),
}
"""The most severe first."""


@given(st.lists(st.sampled_from([*BY_SEVERITY])))
def test_a_queue_has_the_severity_of_its_most_severe_figure(severities: list[Severity]) -> None:
    figures = tuple(BY_SEVERITY[one] for one in severities)
    severity = Checked("mail", "public", "fifo", figures).severity
    assert severity is next((one for one in BY_SEVERITY if one in severities), Severity.OK)


# -- the doctor and the report

KEYS = ["code", "severity", "since", "summary", "evidence", "cause", "consequence", "repair"]
KEYS += ["judgement", "runbook", "estimated", "silenced"]


@pytest.fixture
def ring(console: Console, install: Install) -> str:
    """A ring with a pop that was rolled back: one message is an orphan, two come after it."""
    name = install("ring", "size=50")
    console.done("push", name, "-", "--lines", stdin=b"a\nb\nc\n")
    with connect(console.url) as connection:
        connection.execute("BEGIN")
        connection.execute(f'SELECT * FROM "{name}_pop"()'.encode())
        connection.execute("ROLLBACK")
    return name


def findings(answer: Any) -> list[dict[str, Any]]:
    """The findings, without consumer_stopped, which is true after half a minute."""
    (queue,) = answer.json["queues"]
    found = queue["findings"]
    assert isinstance(found, list)
    assert answer.status == (1 if found else 0)
    return [one for one in found if one["code"] != "consumer_stopped"]


def test_the_doctor_finds_nothing_in_a_new_queue(console: Console, install: Install) -> None:
    name = install("fifo")
    answer = console.done("doctor", name, "--json")
    (queue,) = answer.json["queues"]
    assert (queue["verdict"], queue["findings"], queue["unseen"]) == ("all clear", [], [])
    assert "all clear" in console.done("doctor", name).text


def test_an_orphan_is_proven_and_repaired(console: Console, ring: str) -> None:
    (orphans,) = findings(console("doctor", ring, "--json"))
    assert list(orphans) == KEYS
    assert "orphan" in orphans["code"]
    assert "1" in str(orphans["evidence"])
    assert orphans["repair"]["unattended"] is True

    planned = console("doctor", ring, "--fix", "--json")
    assert planned.status == 4
    assert planned.json["done"] == 0
    assert console("doctor", ring, "--fix", "--yes").status == 4
    assert console("doctor", ring, "--fix", "--dry-run").status in {0, 1}
    assert findings(console("doctor", ring, "--json")) != []

    assert findings(console("doctor", ring, "--fix", "--yes", ring, "--json")) == []
    assert sorted(console.drained(ring)) == ["a", "b", "c"]
    verbs = {one["verb"] for one in console.done("audit", ring, "--json").json["actions"]}
    assert len(verbs) > 1
    again = console.done("doctor", ring, "--fix", "--yes", ring, "--json")
    assert findings(again) == [], "nothing to repair is an answer too"


def test_fix_needs_one_queue_and_the_right(console: Console, ring: str) -> None:
    assert console("doctor", "--fix", "--yes", ring).status == 2
    assert console("doctor", ring, "--yes", ring).status == 2
    assert console("doctor", ring, "--fix", "--rights", "read-only").status == 4


def test_the_report_is_markdown_with_escaped_data(console: Console, install: Install) -> None:
    name = install("claim")
    console.done("push", name, "secret payload")
    console.popped(name, "--fail", "<b>`# | boom`")
    text = console.done("report", name).text
    assert text.startswith(f"# public.{name}")
    assert "| errors | 1 |" in text
    assert "| waiting | ? (1 message seen in 5 min, 10 are needed) |" in text
    assert "| processing | ? (complete deletes the message) |" in text
    assert "secret payload" not in text
    assert "<b>" not in text.replace("\\<b\\>", "")
    json = console.done("report", name, "--json").json
    assert json["markdown"].strip() == text.strip()
    assert json["figures"]["errors"] == 1


def test_every_code_is_in_the_help() -> None:
    text = call("doctor", "--help").text
    for code in CODES:
        assert code.name in text
        assert code.severity.word in text


# -- a fleet: one answer per connection, whatever happens to the others


@pytest.fixture
def fleet(console: Console, tmp_path: Path) -> dict[str, str]:
    """A fleet's configuration: the same server twice, and a host where nothing listens."""
    at = make_url(console.url)
    url = f"postgresql+psycopg://{at.username}@{{host}}/{at.database}"
    hosts = [f"127.0.0.1:{at.port}", f"localhost:{at.port}", "127.0.0.1:1"]
    file = tmp_path / "config.toml"
    file.write_text(f'[fleets.shops]\nurl = "{url}"\npassword = "${{env:PW}}"\nhosts = {hosts}\n')
    return {"DBQ_CONFIG": str(file), "PW": str(at.password)}


def test_a_fleet_has_an_answer_for_each_connection(
    console: Console, install: Install, fleet: dict[str, str]
) -> None:
    queue = install("claim")
    console.done("push", queue, "one")
    words = ("status", queue, "--fleet", "shops", "--json")
    answer = call(*words, environment=fleet)
    assert answer.status == 3
    first, second, dead = answer.json["connections"]
    for one in (first, second):
        assert one["exit"] == 0
        assert [(row["queue"], row["ready"]) for row in one["queues"]] == [(queue, 1)]
    assert [one["profile"].partition("/")[0] for one in (first, second, dead)] == ["shops"] * 3
    assert dead["exit"] == 3
    assert "refused" in dead["error"]["why"]
    for verb, statuses in (
        (("check", queue, "--max-depth", "0"), [1, 1, 3]),
        (("doctor", queue, "--idle-for", "0s"), [0, 0, 3]),
    ):
        answer = call(*verb, "--group", "shops", "--json", environment=fleet)
        assert [one["exit"] for one in answer.json["connections"]] == statuses
        assert answer.status == 3
    text = call(*words[:-1], environment=fleet)
    assert text.text.count(f"  {queue} ") == 2
    assert "shops/127.0.0.1:1:\n  " in text.text


@pytest.mark.long
@pytest.mark.usefixtures("ring")
def test_repairs_proposed_for_a_fleet_name_the_connection(
    console: Console, fleet: dict[str, str]
) -> None:
    """For a single connection the command line already names it."""
    words = ("doctor", "--idle-for", "0s", "--json")
    answer = call(*words, "--fleet", "shops", environment=fleet)
    *reached, dead = answer.json["connections"]
    for one in reached:
        found = [finding for queue in one["queues"] for finding in queue["findings"]]
        commands = [finding["repair"]["command"] for finding in found if finding["repair"]]
        assert commands
        assert all(text.endswith(f" --profile {one['profile']}") for text in commands), commands
    assert "error" in dead
    assert "--profile" not in console("doctor", "--idle-for", "0s").text


def test_wrong_use_of_a_fleet_is_exit_2(fleet: dict[str, str]) -> None:
    for words in (
        ("status", "--watch", "--fleet", "shops"),
        ("check", "--plugin", "--group", "shops"),
        ("doctor", "x", "--fix", "--fleet", "shops"),
        ("status", "--fleet", "shops", "--group", "shops"),
        ("status", "--fleet", "shops", "--profile", "a"),
        ("status", "--fleet", "none"),
    ):
        call(*words, environment=fleet).failed(2)
