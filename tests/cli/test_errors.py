"""`errors`: what kinds of errors a queue has, counted."""

import re
from datetime import datetime
from typing import Any

import pytest
from psycopg.sql import SQL, Identifier, Literal

from console.designs import designs_on
from tests.cli.calls import Console
from tests.cli.conftest import Install
from tests.servers import connect

GROUP = [
    *("wording", "count", "first_at", "last_at", "attempts_least", "attempts_most"),
    *("sample_id", "sample", "key"),
]
KINDS = {
    "connection to <ip> timed out after <n> s": (
        "format('connection to 10.%s.%s.%s:%s timed out after %s s',"
        " n % 256, n % 7, n % 200, 1024 + n % 60000, n / 100.0)"
    ),
    "duplicate key violates <text>: Key (id)=(<n>) already exists.": (
        "format('duplicate key violates \"orders_%s\": Key (id)=(%s) already exists.', n % 99, n)"
    ),
    "order <uuid> not found in <text>": (
        "format('order %s not found in ''shop %s''', gen_random_uuid(), n % 100)"
    ),
    "HTTP 503 from https://api.example/<n>/items/<n> at <time>": (
        "format('HTTP 503 from https://api.example/v2/items/%s at %s', md5(n::text), now() - since)"
    ),
    "deadlock detected: process <n> waits for process <n>": (
        "format('deadlock detected: process %s waits for process %s', n, n + 1)"
    ),
    "KeyError: <text>": "format('KeyError: ''%s''', md5(n::text))",
    "payment <n> refused by bank at <time>": (
        "format('payment %s refused by bank at %s', n, to_char(now() - since, 'HH24:MI:SS'))"
    ),
    "mailbox <address> is full (<n> kB)": (
        "format('mailbox user%s@example.com is full (%s kB)', n, n % 5000)"
    ),
    "checksum <n> differs from <n>": (
        "format('checksum 0x%s differs from 0x%s', to_hex(n), to_hex(n * 7919))"
    ),
    "no route to [<ip>] since <time>": (
        "format('no route to [fe80::%s] since %s', to_hex(n % 65536),"
        " to_char(now() - since, 'Dy Mon DD HH24:MI:SS YYYY'))"
    ),
    "item <n> of batch <n> is too heavy": (
        "format(E'item %s\\n\\tof batch %s is too heavy', n, n / 100)"
    ),
    "disk quota of tenant <n> exceeded": "format('disk quota of tenant %s exceeded', n % 1000)",
}
"""Twelve kinds, each as SQL that makes a text of it with ids and times of its own."""
COLUMNS = {
    "claim": "id, created_at, processing_started_at, payload, attempts, errors, done_at",
    "status": "id, queue_date_time, claimed_at, text_data, attempts, errors, done_at, status",
}


def fill(console: Console, name: str, design: str, count: int) -> None:
    """Put errors of all kinds into the table, as so many failed messages leave them."""
    cases = " ".join(f"WHEN {at} THEN {text}" for at, text in enumerate(KINDS.values()))
    id_, status = ("gen_random_uuid()", "") if design == "claim" else ("n", ", 4")
    insert = (
        "INSERT INTO {} ({})"
        f" SELECT {id_}, now() - since * 2, now() - since * 1.5, 'x', 1 + n % 3,"
        f" CASE n % {len(KINDS)} {cases} END, now() - since{status}"
        " FROM (SELECT n, n * interval '0.5 s' AS since FROM generate_series(1::bigint, {}) AS n)"
        " AS failed"
    )
    table, columns = Identifier("public", name), SQL(COLUMNS[design])
    with connect(console.url) as connection:
        connection.execute(SQL(insert).format(table, columns, Literal(count)))


@pytest.mark.long
@pytest.mark.parametrize("design", ["status", pytest.param("claim", marks=pytest.mark.long)])
def test_any_number_of_errors_of_twelve_kinds_are_twelve_groups(
    console: Console, install: Install, design: str, long: bool
) -> None:
    name, count = install(design), 100_000 if long else 25_000
    fill(console, name, design, count)
    plain = console("errors", name)
    assert (plain.status, plain.err) == (0, "")
    assert plain.text.startswith(f"{count:,} errors in 12 groups.\n")
    assert all(len(line) <= 80 for line in plain.text.splitlines())

    found = console.done("errors", name, "--json").json
    assert list(found) == ["queue", "design", "groups", "counted", "ungrouped", "complete"]
    assert (found["counted"], found["ungrouped"], found["complete"]) == (count, 0, True)
    groups = {group["wording"]: group for group in found["groups"]}
    assert set(groups) == set(KINDS)
    assert sum(group["count"] for group in groups.values()) == count
    with connect(console.url) as connection:
        for at, wording in enumerate(KINDS):
            group = groups[wording]
            assert list(group) == GROUP
            check(group, at, count, connection, name)


def check(group: dict[str, Any], at: int, count: int, connection: Any, name: str) -> None:
    """Against an exact count of the rows that were made for this kind."""
    numbers = [n for n in range(1, count + 1) if n % len(KINDS) == at]
    assert group["count"] == len(numbers)
    assert (group["attempts_least"], group["attempts_most"]) == (
        min(1 + n % 3 for n in numbers),
        max(1 + n % 3 for n in numbers),
    )
    first, last = (datetime.fromisoformat(group[end]) for end in ("first_at", "last_at"))
    apart = (numbers[-1] - numbers[0]) * 0.5
    assert (last - first).total_seconds() == pytest.approx(apart)
    sample = connection.execute(
        SQL("SELECT errors, done_at FROM {} WHERE id::text = %s").format(
            Identifier("public", name)
        ),
        [group["sample_id"]],
    ).fetchone()
    assert sample == (group["sample"], last)


@pytest.mark.parametrize("design", sorted(designs_on("postgresql")))
def test_every_design_has_an_answer_or_says_why_not(
    console: Console, install: Install, design: str
) -> None:
    name = install(design)
    answer = console("errors", name, "--json")
    if design in {"claim", "status", "split"}:
        assert answer.status == 0
        assert answer.json == {
            "queue": name,
            "design": design,
            "groups": [],
            "counted": 0,
            "ungrouped": 0,
            "complete": True,
        }
        assert console.done("errors", name).text == "No errors.\n"
    else:
        assert answer.status == 2
        assert "keeps no errors" in answer.json["error"]["what"]
        assert "keeps no errors" in answer.err


def test_the_plain_answer(console: Console, install: Install) -> None:
    name = install("ring", "in_hand=on")
    texts = ["order 1 at 10:20:30 failed", "order 2 at 10:20:31 failed", "漢字\x1b[31m " * 30]
    console.done("push", name, "-", "--lines", stdin=b"1\n2\n3\n")
    for text in texts:
        console.done("pop", name, "--fail", text)
    head, *lines = console.done("errors", name).text.splitlines()
    assert head == "3 errors in 2 groups."
    assert lines[:3] == ["", "2  order <n> at <time> failed", lines[2]]
    assert lines[2].startswith("   20")
    assert lines[2].endswith(" UTC, attempts: 1")
    assert lines[3] == "   sample 2: order 2 at 10:20:31 failed"
    assert lines[4].startswith("   error-group=1-")
    assert lines[6].startswith("1  漢字␛[<n> ")
    assert "\x1b" not in "".join(lines)


def test_what_was_not_counted_is_told(
    console: Console, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = install("status")
    fill(console, name, "status", 600)
    monkeypatch.setattr("console.monitor.errors._PAGE", 100)
    monkeypatch.setattr("console.monitor.errors.MOST_ERRORS", 200)
    found = console.done("errors", name, "--json").json
    assert (found["counted"], found["complete"]) == (200, False)
    assert sum(group["count"] for group in found["groups"]) == 200
    oldest = min(group["first_at"] for group in found["groups"])
    with connect(console.url) as connection:
        newer = SQL("SELECT count(*) FROM {} WHERE done_at >= %s").format(Identifier(name))
        assert connection.execute(newer, [oldest]).fetchone() == (200,)
    text = console.done("errors", name).text
    assert text.startswith("200 errors in 12 groups, the newest; older ones")
    assert "\n≈17  " in text

    monkeypatch.setattr("console.monitor.errors.MOST_GROUPS", 5)
    found = console.done("errors", name, "--json").json
    assert len(found["groups"]) == 5
    assert found["ungrouped"] == 200 - sum(group["count"] for group in found["groups"])
    assert f"and ≈{found['ungrouped']} errors in other groups" in console.done("errors", name).text


@pytest.mark.long
def test_errors_that_all_failed_at_one_moment(
    console: Console, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many pages of them."""
    name = install("status")
    fill(console, name, "status", 600)
    monkeypatch.setattr("console.monitor.errors._PAGE", 100)
    with connect(console.url) as connection:
        connection.execute(SQL("UPDATE {} SET done_at = now()").format(Identifier(name)))
    found = console.done("errors", name, "--json").json
    assert (found["counted"], len(found["groups"]), found["complete"]) == (600, 12, True)


def test_a_kind_is_requeued_by_its_key(console: Console, install: Install) -> None:
    """One error of another code, one in several lines: each kind by itself."""
    name = install("claim")
    texts = ["HTTP 503 of\norder 1", "HTTP 503 of order 2", "HTTP 451 of order 1"]
    console.done("push", name, "-", "--lines", stdin=b"1\n2\n3\n")
    for text in texts:
        console.done("pop", name, "--fail", text)
    groups = console.done("errors", name, "--json").json["groups"]
    keys = {group["wording"]: group["key"] for group in groups}
    assert set(keys) == {"HTTP 503 of order <n>", "HTTP 451 of order <n>"}
    key = f"error-group={keys['HTTP 503 of order <n>']}"
    assert key in console.done("errors", name).text
    listed = console.done("messages", name, "--filter", key, "--json").json["messages"]
    assert {message["error"] for message in listed} == set(texts[:2])
    assert "error_hash" not in listed[0]
    done = console.done("requeue", name, "--filter", key, "--yes", "--json").json
    assert (done["plan"]["count"], done["plan"]["complete"]) == (2, True)
    (left,) = console.done("messages", name, "--state", "error", "--json").json["messages"]
    assert left["error"] == texts[2]

    other = console("requeue", name, "--filter", "error-group=99-" + "a" * 16, "--yes")
    assert other.status == 2
    assert "with other rules" in other.err
    assert console("messages", name, "--filter", key, "--filter", "state=ready").status == 2


def test_a_plan_with_a_limit_says_what_is_an_estimate(console: Console, install: Install) -> None:
    """It looks at no more than it needs: what else there is, the statistics tell."""
    name = install("status")
    fill(console, name, "status", 12_000)
    with connect(console.url) as connection:
        connection.execute(SQL("ANALYZE {}").format(Identifier(name)))
    words = ("requeue", name, "--filter", "limit=5", "--dry-run")
    assert re.search(r"  5 messages \(of ≈1[0-4] k error\)\n", console.done(*words).text)
    plan = console.done(*words, "--json").json["plan"]
    assert (plan["count"], plan["by_state"], plan["payload_bytes"]) == (5, {"error": 5}, 5)
    total = plan["totals"]["error"]
    assert (total["estimated"], total["count"]) == (True, pytest.approx(12_000, rel=0.2))
    whole = console.done("requeue", name, "--dry-run", "--json").json["plan"]
    assert whole["totals"] == {"error": {"count": 12_000, "estimated": False}}
    assert plan["newest_seconds"] > whole["newest_seconds"]
