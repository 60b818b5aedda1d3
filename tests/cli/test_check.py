"""check: exit statuses, the summary and its performance data, and what is not known."""

import re

from hypothesis import given
from hypothesis import strategies as st

from console.cli.check import Checked, Figure
from console.monitor.limits import Limits, Severity
from tests.cli.calls import Console, call
from tests.cli.conftest import Install
from tests.cli.test_status import claimed_an_hour_ago
from tests.cli.verbs import UNREACHABLE
from tests.servers import connect

PERFDATA = re.compile(r"'(?:[^'=]|'')+'=(?:U|-?\d+(?:\.\d+)?(?:s|%)?);[@:\d.]*;[@:\d.]*;0?;(?: |$)")


def perfdata(line: str) -> dict[str, str]:
    """What stands behind the one "|" of a summary, by its label."""
    text, bar, data = line.partition(" | ")
    assert "|" not in text
    assert bool(bar) == bool(data)
    assert "".join(PERFDATA.findall(data)) == data
    return {
        label.strip("'"): values
        for label, _, values in (one.rpartition("=") for one in re.findall(r"'.*?'=\S+", data))
    }


def test_within_limits_and_too_much(console: Console, install: Install) -> None:
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


def test_errors_and_stuck_claims_are_a_warning_unless_a_limit_is_said(
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


def test_what_is_not_known_is_no_zero(console: Console, install: Install) -> None:
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


def test_what_cannot_be_read_is_unknown_and_no_queue_at_all_is_not_fine(empty: Console) -> None:
    assert empty("check").text == "DBQ UNKNOWN - there are no queues here\n"
    assert (empty("check").status, empty("check", "--plugin").status) == (1, 3)
    for name in ("sound", "gone"):
        empty.done("install", "fifo", name)
    with connect(empty.url) as connection:
        connection.execute("DROP TABLE public.gone")
    answer = empty("check", "--plugin", "--json")
    assert (answer.status, answer.json["status"]) == (3, "unknown")
    found = {queue["queue"]: queue for queue in answer.json["queues"]}
    assert [found[name]["status"] for name in ("sound", "gone")] == ["ok", "unknown"]
    assert "does not exist" in found["gone"]["problem"]
    assert {figure["value"] for figure in found["gone"]["figures"].values()} == {None}


def test_no_connection() -> None:
    answer = call("check", "--url", UNREACHABLE)
    assert (answer.status, answer.out) == (3, b"")
    plugin = call("check", "--plugin", "--url", UNREACHABLE)
    assert (plugin.status, plugin.err) == (3, "")
    assert plugin.text.startswith("DBQ UNKNOWN - Could not ")
    assert plugin.text.count("\n") == 1
    assert call("check", "--plugin", "--json", "--url", UNREACHABLE).json["queues"] == []


def test_wrong_use(console: Console) -> None:
    for words in (["--max-depth", "-1"], ["--max-age", "soon"], ["none such"]):
        answer = console("check", *words)
        assert (answer.status, answer.out) == (2, b"")


def test_a_name_cannot_spoil_the_performance_data(console: Console) -> None:
    name = "o'q = |\n50%"
    console.done("install", "fifo", name)
    answer = console.done("check", name)
    first, _ = answer.text.splitlines()
    assert perfdata(first)
    assert "o''q _ ¦" in first


def test_a_ring_that_is_full(console: Console) -> None:
    console.done("install", "ring", "small", "--option", "size=4")
    console.done("push", "small", "-", "--lines", stdin=b"1\n2\n3\n4\n")
    answer = console("check", "small", "--plugin")
    assert answer.status == 2
    assert "full: it takes no more pushes (critical from 100 %)" in answer.text
    assert perfdata(answer.text.splitlines()[0])["small gap_share"] == "100%;@90:;@100:;;"


LIMITS = st.one_of(st.none(), st.integers(1, 50))


@given(st.one_of(st.none(), st.integers(0, 60)), LIMITS, LIMITS)
def test_laws_of_a_figure(value: int | None, warning: int | None, critical: int | None) -> None:
    one = Figure("depth", value, Limits(warning, critical))
    if warning is None and critical is None:
        assert one.severity is Severity.OK
    elif value is None:
        assert one.severity is Severity.UNKNOWN
    elif critical is not None and value >= critical:
        assert one.severity is Severity.CRITICAL
    elif warning is not None and value >= warning:
        assert one.severity is Severity.WARNING
    else:
        assert one.severity is Severity.OK
    # What a plugin's reader makes of the ranges is the same.
    _, low, high, *_ = one.perfdata("q").rpartition("=")[2].split(";")
    if value is not None:
        assert (one.severity is Severity.CRITICAL) == (high != "" and value > int(high))
        if one.severity is not Severity.CRITICAL:
            assert (one.severity is Severity.WARNING) == (low != "" and value > int(low))
    else:
        assert "=U;" in one.perfdata("q")


BY_SEVERITY = {
    Severity.CRITICAL: Figure("depth", 9, Limits(1, 2)),
    Severity.WARNING: Figure("depth", 1, Limits(1, 2)),
    Severity.UNKNOWN: Figure("depth", None, Limits(1, 2)),
    Severity.OK: Figure("depth", 0, Limits(1, 2)),
}
"""The gravest first."""


@given(st.lists(st.sampled_from([*BY_SEVERITY])))
def test_the_gravest_is_never_hidden(severities: list[Severity]) -> None:
    figures = tuple(BY_SEVERITY[one] for one in severities)
    found = Checked("mail", "public", "fifo", figures).severity
    assert found is next((one for one in BY_SEVERITY if one in severities), Severity.OK)
