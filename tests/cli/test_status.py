"""status, and reading on a read-only connection."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from psycopg.sql import SQL, Identifier
from sqlalchemy import make_url

from console.designs import DESIGNS, designs_on
from console.engines import Database
from console.errors import RefusedError
from tests.cli.calls import Answer, Console, call
from tests.cli.conftest import Install
from tests.servers import PATIENCE_SECONDS, connect

FIELDS = [
    *("queue", "design", "ready", "claimed", "stuck", "errors", "done", "scheduled"),
    *("age_seconds", "push_per_second", "pop_per_second", "gap", "capacity"),
    *("schema", "connection", "estimated", "unknown"),
    *("problem", "slow", "claims", "holders", "held_seconds", "held_by"),
    *("full_in_seconds", "full_in_soonest_seconds", "full_in_latest_seconds"),
    *("doubling_buys_seconds", "limits", "acting", "decisions", "latency", "subscribers"),
    "full_in_expected",
]
RATES = ["push_per_second", "pop_per_second"]
HAS = {
    "naive": {"ready"},
    "ring": {"ready", "gap", "capacity"},
    "heap": {"ready"},
    "fifo": {"ready"},
    "stack": {"ready"},
    "pending": {"ready", "scheduled"},
    "claim": {"ready", "claimed", "stuck", "errors"},
    "status": {"ready", "claimed", "stuck", "errors", "done"},
    "split": {"ready", "claimed", "stuck", "errors", "done"},
}
"""The counts that a queue of the design has; every one of them is known."""


Configured = Callable[..., Callable[..., Answer]]


def claimed_an_hour_ago(console: Console, name: str) -> None:
    with connect(console.url) as connection:
        table = Identifier("public", name)
        claimed = Identifier(DESIGNS["claim"].roles["claimed_at"])
        connection.execute(
            SQL("UPDATE {} SET {} = now() - interval '1 hour'").format(table, claimed)
        )


def counts(queue: dict[str, Any]) -> dict[str, Any]:
    return {field: queue[field] for field in [*FIELDS[2:8], "gap", "capacity"]}


@pytest.mark.long
def test_the_stable_object_of_every_design(empty: Console) -> None:
    for design in designs_on("postgresql"):
        empty.done("install", design, design)
    url = make_url(empty.url)
    answer = empty.done("status", "--json")
    assert (list(answer.json), answer.err) == (["queues", "connection"], "")
    queues = answer.json["queues"]
    assert [queue["design"] for queue in queues] == sorted(designs_on("postgresql"))
    for queue in queues:
        design = queue["design"]
        assert list(queue) == FIELDS
        assert (queue["queue"], queue["schema"]) == (design, "public")
        assert queue["connection"] == f"{url.host}:{url.port}/{url.database}"
        # One sample has no rates, and nothing that waits has no age.
        assert (queue["unknown"], queue["estimated"]) == (RATES, [])
        assert [queue[rate] for rate in RATES] == [None, None]
        assert queue["age_seconds"] is None
        known = {field for field, count in counts(queue).items() if count is not None}
        assert known == HAS[design]
        assert {counts(queue)[field] for field in HAS[design] - {"capacity"}} == {0}


def test_figures_of_queues_in_use(empty: Console) -> None:
    for design in designs_on("postgresql"):
        empty.done("install", design, design)
        empty.done("push", design, "-", "--lines", stdin=b"1\n2\n3\n4\n5\n6\n7\n8\n")
        empty.done("pop", design)
        if design in {"claim", "status", "split"}:
            empty.done("pop", design, "--count", "2", "--complete")
            empty.done("pop", design, "--fail", "no")
    with connect(empty.url) as connection:
        connection.execute("SELECT public.pending_push('later', now() + interval '1 day')")
    queues = {q["design"]: q for q in empty.done("status", "--json").json["queues"]}
    for design, queue in queues.items():
        kept = design in {"claim", "status", "split"}
        expected = dict.fromkeys(counts(queue)) | {"ready": 4 if kept else 7}
        if kept:
            expected |= {"claimed": 1, "stuck": 0, "errors": 1}
        if design in {"status", "split"}:
            expected["done"] = 2
        if design == "pending":
            expected["scheduled"] = 1
        if design == "ring":
            expected |= {"gap": 7, "capacity": 10_000}
        assert counts(queue) == expected
        if design == "heap":
            assert queue["unknown"] == ["age_seconds", *RATES]
        else:
            assert queue["unknown"] == RATES
            assert queue["age_seconds"] > 0


def test_the_table_says_what_is_unknown_and_what_does_not_apply(empty: Console) -> None:
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


@pytest.mark.long
def test_what_is_estimated_is_marked(empty: Console) -> None:
    empty.done("install", "fifo", "q")
    with connect(empty.url) as connection:
        connection.execute(
            "SELECT count(*) FROM public.q_push_many(array_fill('x'::text, '{10000}'))"
        )
        assert empty.status("q")["estimated"] == []
        assert empty.status("q")["ready"] == 10_000
        connection.execute("SELECT public.q_push('x')")
    seen = empty.status("q")
    assert seen["estimated"] == ["ready"]
    assert seen["ready"] >= 10_000
    assert "≈10 k" in empty.done("status").text


def test_a_sick_queue_is_exit_0_and_only_itself_unknown(empty: Console) -> None:
    for name in ("dropped", "sound"):
        empty.done("install", "claim", name)
    empty.done("push", "sound", "x")
    empty.done("pop", "sound", "--fail", "no")
    with connect(empty.url) as connection:
        connection.execute("DROP TABLE public.dropped")
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


def test_a_name_cannot_spoil_the_table(console: Console) -> None:
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
        looks: list[dict[str, Any]] = []
        while len(looks) < 2 or looks[-1]["push_per_second"] is None:
            line = watching.stdout.readline()
            assert line, "it ended by itself"
            (queue,) = json.loads(line)["queues"]
            assert queue["queue"] == name
            looks.append(queue)
        watching.send_signal(signal.SIGINT)
        _, err = watching.communicate(timeout=PATIENCE_SECONDS)
    assert looks[0]["unknown"] == RATES
    assert looks[-1]["unknown"] == []
    assert (watching.returncode, err) == (128 + signal.SIGINT, b"Interrupted.\n")


@pytest.fixture
def configured(console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configured:
    """Write a configuration: what stands in the profile `p`, and in its queues' tables."""

    def write(inside: str = "", **queues: str) -> Callable[..., Answer]:
        url = make_url(console.url)
        monkeypatch.setenv("PGPASSWORD", str(url.password))
        shown = url.set(password="").render_as_string(hide_password=False)
        tables = [f"[profiles.p.queues.'{name}']\n{text}" for name, text in queues.items()]
        file = tmp_path / "config.toml"
        file.write_text("\n".join((f"[profiles.p]\nurl = '{shown}'", inside, *tables)))
        monkeypatch.setenv("DBQ_CONFIG", str(file))
        return lambda *words: call(*words, "--profile", "p")

    return write


@pytest.mark.long
def test_the_limits_of_each_queue(
    console: Console, install: Install, configured: Configured
) -> None:
    deep, shallow = install("fifo"), install("fifo")
    for name in (deep, shallow):
        console.done("push", name, "-", "--lines", stdin=b"1\n2\n3\n4\n5\n")
    ask = configured("depth = { warning = 100 }", **{deep: "depth = { warning = 2, critical = 5 }"})
    found = ask("status", deep, shallow, "--json").json["queues"]
    limit = {"figure": "depth", "value": 5, "limit": 5, "level": "critical"}
    assert [queue["limits"] for queue in found] == [[limit], []]
    *lines, rights = ask("status", deep, shallow).text.splitlines()
    assert rights.startswith("This connection: read-only")
    assert f"{deep}: 5 ready (critical from 5)" in lines


@pytest.mark.long
def test_how_long_a_claim_of_each_queue_may_last(
    console: Console, install: Install, configured: Configured
) -> None:
    soon, late = install("claim"), install("claim")
    for name in (soon, late):
        console.done("push", name, "x")
        console.done("pop", name)
        claimed_an_hour_ago(console, name)
    ask = configured("stuck_after = '2h'", **{soon: "stuck_after = '30m'"})
    found = ask("status", soon, late, "--json").json["queues"]
    assert [queue["stuck"] for queue in found] == [1, 0]


def test_what_the_login_could_do_is_told_where_it_may_only_look(
    console: Console, install: Install
) -> None:
    name = install("fifo")
    looking = console.done("status", name, "--json", "--rights", "read-only").json["connection"]
    assert (looking["rights"], looking["enforced"]) == ("read-only", False)
    assert looking["can"][0] == "superuser"
    *_, last = console.done("status", name, "--rights", "read-only").text.splitlines()
    assert last == ("This connection: read-only by this session only; its login is a superuser.")
    connection = console.done("status", name, "--json").json["connection"]
    assert connection == looking | {"rights": "admin", "enforced": None}
    assert "This connection" not in console.done("status", name).text


def test_another_encoding_than_utf_8_gets_escapes(console: Console, install: Install) -> None:
    install("fifo")
    with console.process("status", encoding="ascii") as running:
        out, err = running.communicate(timeout=PATIENCE_SECONDS)
    assert (running.returncode, err) == (0, b"")
    assert b"\\xb7" in out


def test_the_output_is_nothing_but_the_result(console: Console, install: Install) -> None:
    """As processes, with what Python itself might say."""
    install("fifo")
    for arguments in (["status", "--json"], ["designs", "--json"]):
        answer = console.run(*arguments)
        assert (answer.status, answer.err) == (0, "")
        assert answer.json


LOOKING = {
    "status": ["{queue}"],
    "messages": ["{queue}", "--payload"],
    "errors": ["{queue}"],
    "waits": ["{queue}", "--seconds", "0"],
    "consumers": ["{queue}", "--seconds", "0"],
    "roles": [],
}


@pytest.mark.parametrize("design", [["ring", "in_hand=on"], ["claim"]], ids=["ring", "claim"])
def test_looking_wants_nothing_that_a_read_only_connection_refuses(
    console: Console, install: Install, design: list[str]
) -> None:
    name = install(*design)
    console.done("push", name, "x")
    for verb, needed in LOOKING.items():
        words = [word.format(queue=name) for word in needed]
        for options in ([], ["--json"]):
            assert console.done(verb, *words, *options, "--rights", "read-only").out, verb


def test_a_look_that_would_do_more_is_refused_before_the_server_is_asked(
    console: Console, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a mistake of ours: nothing relies on the server's read-only transactions alone."""
    name = install("fifo")
    looking = Database.session

    def forgetful(self: Database, doing: str, *, read_only: bool = False) -> object:
        return looking(self, doing)

    monkeypatch.setattr(Database, "session", forgetful)
    answer = console("status", name, "--rights", "read-only")
    assert (answer.status, answer.out) == (RefusedError.exit_status, b"")
    assert "This connection is read-only." in answer.err
