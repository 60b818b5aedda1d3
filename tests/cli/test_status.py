"""status, and reading on a read-only connection."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from psycopg.sql import SQL, Identifier
from sqlalchemy import make_url

from console.designs import DESIGNS
from console.engines import Database
from console.errors import RefusedError
from tests.cli.calls import Console, call, profile
from tests.cli.conftest import Install
from tests.servers import PATIENCE_SECONDS, connect, execute

FIELDS = [
    *("queue", "design", "ready", "scheduled", "claimed", "stuck", "errors", "done"),
    *("age_seconds", "push_per_second", "pop_per_second", "gap", "capacity"),
    *("holders", "held_seconds", "schema", "connection", "estimated", "unknown"),
    *("problem", "slow", "claims", "held_by"),
    *("full_in_seconds", "full_in_soonest_seconds", "full_in_latest_seconds"),
    *("doubling_buys_seconds", "limits", "acting", "decisions", "latency", "subscribers"),
    "full_in_expected",
]
RATES = ["push_per_second", "pop_per_second"]


def claimed_an_hour_ago(console: Console, name: str) -> None:
    with connect(console.url) as connection:
        table = Identifier("public", name)
        claimed = Identifier(DESIGNS["claim"].roles["claimed_at"])
        connection.execute(
            SQL("UPDATE {} SET {} = now() - interval '1 hour'").format(table, claimed)
        )


def counts(queue: dict[str, Any]) -> dict[str, Any]:
    return {field: queue[field] for field in [*FIELDS[2:8], "gap", "capacity"]}


def test_the_json_object_of_a_queue_has_the_figures_of_its_design(empty: Console) -> None:
    for design in ("heap", "pending", "ring", "status"):
        empty.done("install", design, design)
        empty.done("push", design, "-", "--lines", stdin=b"1\n2\n3\n4\n5\n6\n7\n8\n")
        empty.done("pop", design)
    empty.done("pop", "status", "--count", "2", "--complete")
    empty.done("pop", "status", "--fail", "no")
    empty.done("push", "pending", "later", "--due", "1d")
    url = make_url(empty.url)
    answer = empty.done("status", "--json")
    assert (list(answer.json), answer.err) == (["queues", "connection", "standby"], "")
    expected: dict[str, dict[str, int]] = {
        "heap": {"ready": 7},
        "pending": {"ready": 7, "scheduled": 1},
        "ring": {"ready": 7, "gap": 7, "capacity": 10_000},
        "status": {"ready": 4, "claimed": 1, "stuck": 0, "errors": 1, "done": 2},
    }
    for queue, (design, known) in zip(answer.json["queues"], expected.items(), strict=True):
        assert list(queue) == FIELDS
        assert [queue[key] for key in ("queue", "schema", "design")] == [design, "public", design]
        assert queue["connection"] == f"{url.host}:{url.port}/{url.database}"
        assert counts(queue) == dict.fromkeys(counts(queue)) | known
        # One sample has no rates.
        assert [queue[rate] for rate in RATES] == [None, None]
        age = ["age_seconds"] if design == "heap" else []
        assert (queue["unknown"], queue["estimated"]) == ([*age, *RATES], [])
        assert (queue["age_seconds"] is None) == bool(age)


def test_the_table_distinguishes_unknown_and_inapplicable_figures(empty: Console) -> None:
    empty.done("install", "heap", "h")
    empty.done("install", "ring", "r", "--option", "size=20000")
    empty.done("push", "h", "x")
    head, heap, ring = empty.done("status").text.splitlines()
    assert head.split() == [
        *("queue", "design", "ready", "age", "push/s", "pop/s"),
        *("gap", "claimed", "stuck", "errors", "done", "due"),
    ]
    assert heap.split() == ["h", "heap", "1", "?", "?", "?", *"······"]
    assert ring.split() == ["r", "ring", "0", "·", "?", "?", "0", *"·····"]


def test_an_unreadable_queue_is_exit_0_and_does_not_affect_others(empty: Console) -> None:
    for name in ("dropped", "sound"):
        empty.done("install", "claim", name)
    empty.done("push", "sound", "x")
    empty.done("pop", "sound", "--fail", "no")
    execute(empty.url, "DROP TABLE public.dropped")
    dropped, sound = empty.done("status", "--json").json["queues"]
    assert counts(dropped) == dict.fromkeys(counts(dropped))
    assert dropped["unknown"] == [
        *("ready", "claimed", "stuck", "errors", "age_seconds"),
        *(*RATES, "claims"),
    ]
    assert dropped["problem"] == 'relation "public.dropped" does not exist'
    assert (sound["errors"], sound["ready"]) == (1, 0)
    text = empty.done("status").text
    assert 'dropped: relation "public.dropped" does not exist' in text


def test_queues_are_chosen_by_name(console: Console, install: Install) -> None:
    first, second, _ = (install("fifo") for _ in range(3))
    found = console.done("status", second, first, "--json").json["queues"]
    assert [queue["queue"] for queue in found] == [second, first]


def test_a_queue_name_cannot_break_the_table(console: Console) -> None:
    name = "line\nbreak \x1b[31m"
    console.done("install", "fifo", name)
    answer = console.done("status", name)
    assert "line\ufffdbreak \ufffd[31m fifo" in answer.text
    assert "\x1b" not in answer.text
    assert console.status(name)["queue"] == name


@pytest.mark.long
def test_watch_has_rates_and_ends_by_ctrl_c(console: Console, install: Install) -> None:
    install("ring")
    name = install("fifo")
    with console.process("status", name, "--watch", "--json") as watching:
        assert watching.stdout is not None
        samples: list[dict[str, Any]] = []
        while len(samples) < 2 or samples[-1]["push_per_second"] is None:
            line = watching.stdout.readline()
            assert line, "it ended by itself"
            (queue,) = json.loads(line)["queues"]
            assert queue["queue"] == name
            samples.append(queue)
        watching.send_signal(signal.SIGINT)
        _, err = watching.communicate(timeout=PATIENCE_SECONDS)
    assert samples[0]["unknown"] == RATES
    assert samples[-1]["unknown"] == []
    assert (watching.returncode, err) == (128 + signal.SIGINT, b"Interrupted.\n")


@pytest.mark.long
def test_each_queue_has_its_own_limits(
    console: Console, install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict, lenient = install("claim"), install("claim")
    for name in (strict, lenient):
        console.done("push", name, "first")
        console.done("pop", name)
        claimed_an_hour_ago(console, name)
        console.done("push", name, "-", "--lines", stdin=b"1\n2\n3\n4\n5\n")
    own = [
        *("depth.warning = 100", "stuck_after = '2h'", f"[profiles.p.queues.'{strict}']"),
        *("depth = { warning = 2, critical = 5 }", "stuck_after = '30m'"),
    ]
    text, password = profile(console.url, "p", *own)
    monkeypatch.setenv("PW", password)
    file = tmp_path / "config.toml"
    file.write_text(text)
    monkeypatch.setenv("DBQ_CONFIG", str(file))
    words = ("status", strict, lenient, "--profile", "p")
    found = call(*words, "--json").json["queues"]
    assert [queue["stuck"] for queue in found] == [1, 0]
    limit = {"figure": "depth", "value": 5, "limit": 5, "level": "critical"}
    assert limit in found[0]["limits"]
    assert found[1]["limits"] == []
    *lines, rights = call(*words).text.splitlines()
    assert rights.startswith("This connection: read-only")
    assert any(line.startswith(f"{strict}: 5 ready (critical from 5)") for line in lines), lines


def test_a_read_only_connection_shows_what_its_login_could_do(
    console: Console, install: Install
) -> None:
    name = install("fifo")
    read_only = console.done("status", name, "--json", "--rights", "read-only").json["connection"]
    assert (read_only["rights"], read_only["enforced"]) == ("read-only", False)
    assert read_only["can"][0] == "superuser"
    *_, last = console.done("status", name, "--rights", "read-only").text.splitlines()
    assert last == ("This connection: read-only by this session only; its login is a superuser.")
    connection = console.done("status", name, "--json").json["connection"]
    assert connection == read_only | {"rights": "admin", "enforced": None}
    assert "This connection" not in console.done("status", name).text


def test_an_encoding_other_than_utf_8_gets_escapes(console: Console, install: Install) -> None:
    install("fifo")
    with console.process("status", encoding="ascii") as running:
        out, err = running.communicate(timeout=PATIENCE_SECONDS)
    assert (running.returncode, err) == (0, b"")
    assert b"\\xb7" in out


def test_the_output_is_only_the_result(console: Console, install: Install) -> None:
    """In separate processes, where Python itself might print something."""
    install("fifo")
    for arguments in (["status", "--json"], ["designs", "--json"]):
        answer = console.run(*arguments)
        assert (answer.status, answer.err) == (0, "")
        assert answer.json


def test_a_session_that_could_write_is_refused_to_a_read_only_connection(
    console: Console, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even by our own mistake: nothing relies on the server's read-only transactions alone."""
    name = install("fifo")
    session = Database.session

    def forgetful(self: Database, doing: str, *, read_only: bool = False) -> object:
        return session(self, doing)

    monkeypatch.setattr(Database, "session", forgetful)
    answer = console("status", name, "--rights", "read-only")
    assert (answer.status, answer.out) == (RefusedError.exit_status, b"")
    assert "This connection is read-only." in answer.err


def test_a_queue_that_is_named_twice_is_shown_once(console: Console, install: Install) -> None:
    name = install("fifo")
    assert len(console.done("status", name, name, "--json").json["queues"]) == 1
