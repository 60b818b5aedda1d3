"""doctor and report from the command line."""

from typing import Any

import pytest

from console.doctor.checks import CODES
from tests.cli.calls import Console, call
from tests.cli.conftest import Install
from tests.servers import connect

KEYS = ["code", "severity", "since", "summary", "evidence", "cause", "consequence", "repair"]
KEYS += ["judgement", "estimated", "silenced"]


@pytest.fixture
def ring(console: Console, install: Install) -> str:
    """A ring of which a pop was rolled back: one message is an orphan, two lie behind it."""
    name = install("ring", "size=50")
    console.done("push", name, "-", "--lines", stdin=b"a\nb\nc\n")
    with connect(console.url) as connection:
        connection.execute("BEGIN")
        connection.execute(f'SELECT * FROM "{name}_pop"()'.encode())
        connection.execute("ROLLBACK")
    return name


def findings(answer: Any) -> list[dict[str, Any]]:
    """What was found; but that nobody pops, which is so where a test takes half a minute."""
    (queue,) = answer.json["queues"]
    found = queue["findings"]
    assert isinstance(found, list)
    assert answer.status == (1 if found else 0)
    return [one for one in found if one["code"] != "consumer_stopped"]


def test_all_clear(console: Console, install: Install) -> None:
    name = install("fifo")
    answer = console.done("doctor", name, "--json")
    (queue,) = answer.json["queues"]
    assert (queue["verdict"], queue["findings"], queue["unseen"]) == ("all clear", [], [])
    assert "all clear" in console.done("doctor", name).text


def test_an_orphan_is_proven_and_mended(console: Console, ring: str) -> None:
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


def test_fix_wants_one_queue(console: Console, ring: str) -> None:
    assert console("doctor", "--fix", "--yes", ring).status == 2
    assert console("doctor", ring, "--yes", ring).status == 2
    assert console("doctor", ring, "--fix", "--rights", "read-only").status == 4


def test_the_report_is_markdown_and_data_is_no_markup(console: Console, install: Install) -> None:
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
    found = console.done("report", name, "--json").json
    assert found["markdown"].strip() == text.strip()
    assert found["figures"]["errors"] == 1


def test_every_code_is_in_the_help() -> None:
    names = [code.name for code in CODES]
    assert len(set(names)) == len(names)
    told = call("doctor", "--help").text
    for code in CODES:
        assert code.name in told
        assert code.severity.word in told
