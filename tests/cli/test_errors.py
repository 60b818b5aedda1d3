"""`errors`: a queue's errors in groups, counted."""

from datetime import datetime

import pytest
from psycopg.sql import SQL, Identifier, Literal

from tests.cli.calls import Console
from tests.cli.conftest import Install
from tests.servers import connect, execute

GROUP = [
    *("wording", "count", "first_at", "last_at", "attempts_least", "attempts_most"),
    *("sample_id", "sample", "key"),
]
KINDS = {
    "order <uuid> not found in <text>": (
        "format('order %s not found in ''shop %s''', gen_random_uuid(), n % 100)"
    ),
    "HTTP 503 from https://api.example/<n>/items/<n> at <time>": (
        "format('HTTP 503 from https://api.example/v2/items/%s at %s', md5(n::text), now() - since)"
    ),
    "item <n> of batch <n> is too heavy": (
        "format(E'item %s\\n\\tof batch %s is too heavy', n, n / 100)"
    ),
}
"""For each wording, SQL that makes such a text with new ids and times."""


def fill(console: Console, name: str, count: int) -> None:
    """Put errors of all kinds into a `status` queue, as failed messages do."""
    cases = " ".join(f"WHEN {at} THEN {text}" for at, text in enumerate(KINDS.values()))
    insert = (
        "INSERT INTO {} (id, queue_date_time, claimed_at, text_data, attempts, errors, done_at,"
        " status) SELECT n, now() - since * 2, now() - since * 1.5, 'x', 1 + n % 5,"
        f" CASE n % {len(KINDS)} {cases} END, now() - since, 4"
        " FROM (SELECT n, n * interval '0.5 s' AS since FROM generate_series(1::bigint, {}) AS n)"
        " AS failed"
    )
    execute(console.url, SQL(insert).format(Identifier("public", name), Literal(count)))


def test_errors_lists_groups_or_says_that_the_design_keeps_no_errors(
    console: Console, install: Install
) -> None:
    for design in ("fifo", "ring", "split"):
        name = install(design)
        answer = console("errors", name, "--json")
        if design == "split":
            nothing = {"groups": [], "counted": 0, "ungrouped": 0, "complete": True}
            assert answer.status == 0
            assert answer.json == {"queue": name, "design": design, **nothing, "standby": None}
            assert console.done("errors", name).text == "No errors.\n"
        else:
            assert answer.status == 2
            assert "keeps no errors" in answer.json["error"]["what"]
            assert "keeps no errors" in answer.err


def test_errors_prints_the_groups_with_times_and_samples(
    console: Console, install: Install
) -> None:
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


def test_errors_are_counted_over_many_pages_and_limits_are_reported(
    console: Console, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = install("status")
    fill(console, name, 600)
    monkeypatch.setattr("console.monitor.errors._PAGE", 100)
    assert console.done("errors", name).text.startswith("600 errors in 3 groups.\n")
    json = console.done("errors", name, "--json").json
    shown = ["queue", "design", "groups", "counted", "ungrouped", "complete", "standby"]
    assert list(json) == shown
    assert (json["counted"], json["ungrouped"], json["complete"]) == (600, 0, True)
    assert {group["wording"]: group["count"] for group in json["groups"]} == dict.fromkeys(
        KINDS, 200
    )
    for group in json["groups"]:
        assert list(group) == GROUP
        assert (group["attempts_least"], group["attempts_most"]) == (1, 5)
        first, last = (datetime.fromisoformat(group[end]) for end in ("first_at", "last_at"))
        assert (last - first).total_seconds() == pytest.approx(199 * 3 * 0.5)

    monkeypatch.setattr("console.monitor.errors.MOST_ERRORS", 200)
    json = console.done("errors", name, "--json").json
    assert (json["counted"], json["complete"]) == (200, False)
    assert sum(group["count"] for group in json["groups"]) == 200
    oldest = min(group["first_at"] for group in json["groups"])
    with connect(console.url) as connection:
        newer = SQL("SELECT count(*) FROM {} WHERE done_at >= %s").format(Identifier(name))
        assert connection.execute(newer, [oldest]).fetchone() == (200,)
    text = console.done("errors", name).text
    assert text.startswith("200 errors in 3 groups, the newest; older ones")
    assert "\n≈67  " in text

    monkeypatch.setattr("console.monitor.errors.MOST_GROUPS", 2)
    json = console.done("errors", name, "--json").json
    assert len(json["groups"]) == 2
    assert json["ungrouped"] == 200 - sum(group["count"] for group in json["groups"])
    assert f"and ≈{json['ungrouped']} errors in other groups" in console.done("errors", name).text

    monkeypatch.undo()
    monkeypatch.setattr("console.monitor.errors._PAGE", 100)
    with connect(console.url) as connection:  # all failed at the same moment
        connection.execute(SQL("UPDATE {} SET done_at = now()").format(Identifier(name)))
    json = console.done("errors", name, "--json").json
    assert (json["counted"], len(json["groups"]), json["complete"]) == (600, 3, True)


def test_an_error_group_is_requeued_by_its_key(console: Console, install: Install) -> None:
    name = install("claim")
    texts = ["HTTP 503 of\norder 1", "HTTP 503 of order 2", "HTTP 451 of order 1"]
    console.done("push", name, "-", "--lines", stdin=b"1\n2\n3\n")
    for text in texts:
        console.done("pop", name, "--fail", text)
    keys = {g["wording"]: g["key"] for g in console.done("errors", name, "--json").json["groups"]}
    key = f"error-group={keys['HTTP 503 of order <n>']}"
    assert key in console.done("errors", name).text
    listed = console.done("messages", name, "--filter", key, "--json").json["messages"]
    assert {message["error"] for message in listed} == set(texts[:2])
    assert "error_hash" not in listed[0]
    done = console.done("requeue", name, "--filter", key, "--yes", "--json").json
    assert (done["plan"]["count"], done["plan"]["complete"]) == (2, True)
    console("requeue", name, "--filter", "error-group=99-" + "a" * 16, "--yes").failed(
        2, "with other rules"
    )
    assert console("messages", name, "--filter", key, "--filter", "state=ready").status == 2
