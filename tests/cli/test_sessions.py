"""waits and consumers."""

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg.sql import SQL, Identifier
from sqlalchemy import make_url

from console.catalog import installed_queue
from console.designs import DESIGNS
from console.features.history.consumers import rows
from console.features.history.recorder import Recorder
from console.features.history.segments import CONSUMERS
from console.monitor.consumers import Consumer, Consumers
from tests.cli.calls import Console
from tests.cli.conftest import Install
from tests.cli.test_status import claimed_an_hour_ago
from tests.servers import PATIENCE_SECONDS, value, wait_until

FIELDS = [
    *("connection", "seconds", "samples", "samples_with_waiters", "waits"),
    *("activity_at_sample", "sessions", "tree", "horizon", "dead_rows", "missing", "standby"),
]
WAIT = [
    *("queue", "schema", "wait", "kind", "sessions", "share", "average_sessions", "waited_seconds"),
    *("count", "meaning"),
]
SESSION = [
    *("session", "kind", "database", "user", "application", "client", "state", "wait_kind", "wait"),
    *("wait_seconds", "waits_for", "transaction_seconds", "statement_seconds", "state_seconds"),
    *("query", "blocked_by", "locks"),
    *("has_locked_rows", "held_at_least_seconds", "held_at_most_seconds"),
]
LOCK = ["queue", "schema", "object", "lock", "mode", "granted"]


@contextmanager
def sessions(console: Console, *names: str) -> Iterator[list[psycopg.Connection]]:
    """One session for each name; all are rolled back at the end."""
    words = make_url(console.url).translate_connect_args(username="user", database="dbname")
    with ExitStack() as stack:
        yield [
            stack.enter_context(closing(psycopg.connect(**words, application_name=name)))
            for name in names
        ]


def pop(connection: psycopg.Connection, name: str) -> None:
    connection.execute(SQL("SELECT * FROM {}()").format(Identifier(f"{name}_pop")))


@contextmanager
def waiting(console: Console, name: str) -> Iterator[list[int]]:
    """One session holds the head of the queue, two wait for it; their ids, the holder's first."""
    console.done("push", name, "-", "--lines", stdin=b"one\ntwo\nthree\n")
    with sessions(console, "night shift", "worker 1", "worker 2") as (holder, *workers):
        pop(holder, name)
        threads = [threading.Thread(target=pop, args=(it, name), daemon=True) for it in workers]
        for number, thread in enumerate(threads, 1):
            thread.start()
            wait_until(lambda n=number: waiters(console) == n, "workers that wait")  # type: ignore[misc]
        yield [it.info.backend_pid for it in (holder, *workers)]
        holder.rollback()
        for thread, worker in zip(threads, workers, strict=True):
            thread.join(60.0)
            worker.rollback()


def waiters(console: Console) -> object:
    return value(
        console.url,
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'",
    )


def test_waits_shows_the_tree_of_sessions_that_wait_for_the_head_of_a_queue(
    console: Console, install: Install
) -> None:
    name = install("naive")
    with waiting(console, name) as (holder, first, second):
        answer = console.done("waits", name, "--seconds", "0.2")
        as_json = console.done("waits", name, "--seconds", "0.5", "--json")
    lines = answer.text.splitlines()
    assert lines[0].startswith(f"{name} (naive), ")
    at = next(n for n, line in enumerate(lines) if line.startswith(f"session {holder}  "))
    assert lines[at].startswith(f"session {holder}  idle in transaction for ")
    assert lines[at + 1].startswith("│ night shift, user ")
    assert lines[at + 2] == f'│ last: SELECT * FROM "{name}_pop"()'
    assert lines[at + 3].startswith(f"└─ session {first}  waits for ")
    assert lines[at + 3].endswith(" for ShareLock on transactionid")
    assert lines[at + 4].startswith("   │ worker 1, user ")
    assert lines[at + 6].startswith(f"   └─ session {second}  waits for ")
    assert f"Waits at {name} (naive):" in lines
    assert any(line.startswith("  Lock/transactionid  in 100% of the samples") for line in lines)
    assert any(line.startswith("Oldest snapshot: ") for line in lines)
    assert max(map(len, lines)) <= 80
    assert answer.err == "Sampling for 200 ms.\n"

    json = as_json.json
    assert (list(json), as_json.err, json["missing"]) == (FIELDS, "", [])
    assert json["samples"] == json["samples_with_waiters"] >= 1
    assert 0.4 < json["seconds"] < 5.0
    (root,) = json["tree"]
    last = {"session": second, "deadlock": False, "waiters": []}
    waiter = {"session": first, "deadlock": False, "waiters": [last]}
    assert root == {"session": holder, "deadlock": False, "waiters": [waiter]}
    by_key = {session["session"]: session for session in json["sessions"]}
    assert set(by_key) == {holder, first, second}
    assert all(list(session) == SESSION for session in by_key.values())
    assert all(list(lock) == LOCK for session in by_key.values() for lock in session["locks"])
    assert by_key[holder]["application"] == "night shift"
    assert (by_key[first]["blocked_by"], by_key[holder]["blocked_by"]) == ([holder], [])
    assert all(list(wait) == WAIT for wait in json["waits"])
    of_queue = [wait for wait in json["waits"] if wait["queue"] == name]
    assert ("Client", "idle in transaction", 1.0) in {
        (wait["kind"], wait["wait"], wait["share"]) for wait in of_queue
    }
    assert all(wait["meaning"] for wait in of_queue)
    assert {wait["queue"] for wait in json["waits"]} == {name, None}


def test_waits_without_a_name_covers_all_queues_and_the_database(empty: Console) -> None:
    for design in ("naive", "fifo"):
        empty.done("install", design, f"the {design}")
    with waiting(empty, "the naive"):
        text = empty.done("waits", "--seconds", "0").text
    assert text.startswith("2 queues, 1 sample in ")
    assert "Waits at the naive (naive):" in text
    assert "Waits at the fifo" not in text
    assert "Waits in the whole database:" in text
    # Each meaning is printed once.
    assert text.count("Part of the design") == 1
    assert text.count("Waits until another transaction ends") == 1


def test_waits_shows_a_session_whose_messages_others_skip(
    console: Console, install: Install
) -> None:
    name = install("heap")
    console.done("push", name, "x")
    with sessions(console, "night shift") as (holder,):
        pop(holder, name)
        pid = holder.info.backend_pid
        text = console.done("waits", name, "--seconds", "0").text
    assert "No session waits for another." in text
    assert f"session {pid}  idle in transaction for " in text
    words = " ".join(text.split())
    assert f"RowExclusiveLock, RowShareLock on {name}" in words
    assert "Others skip the messages it popped" in words


def test_waits_without_queues_or_without_waiting_sessions_is_exit_0(empty: Console) -> None:
    assert empty.done("waits", "--seconds", "0").text.startswith("0 queues, 1 sample")
    assert empty.done("waits", "--seconds", "0", "--json").json["sessions"] == []
    empty.done("install", "fifo", "q")
    for words in (["waits"], ["waits", "q"], ["waits", "--schema", "none"]):
        answer = empty.done(*words, "--seconds", "0")
        assert "No session waits for another." in answer.text
        assert (answer.err, "Waits at" in answer.text) == ("", False)
        assert empty.done(*words, "--seconds", "0", "--json").json["tree"] == []


def test_consoles_that_only_read_are_left_out(empty: Console) -> None:
    """Another console that looks is no wait of the clients; one that holds rows is."""
    empty.done("install", "naive", "q")
    empty.done("push", "q", "x")
    with sessions(empty, "dbq-console", "worker") as (console, worker):
        for session in (console, worker):
            session.execute("SELECT count(*) FROM q")
        json = empty.done("waits", "--seconds", "0", "--json").json
        assert [one["application"] for one in json["sessions"]] == ["worker"]
        in_transaction = [one for one in json["waits"] if one["wait"] == "idle in transaction"]
        assert {one["sessions"] for one in in_transaction} == {1}
        pop(console, "q")
        json = empty.done("waits", "--seconds", "0", "--json").json
        assert {one["application"] for one in json["sessions"]} == {"dbq-console", "worker"}
    with sessions(empty, "dbq-console") as (console,):
        console.execute("SELECT 1")
        assert empty.done("waits", "--seconds", "0", "--json").json["waits"] == []


def test_the_sampling_time_is_limited(console: Console) -> None:
    for seconds in ("-1", "x", "4000"):
        console("waits", "--seconds", seconds).failed(2)


def test_waits_prints_no_payloads_and_no_control_characters(
    console: Console, install: Install
) -> None:
    name = install("fifo")
    with sessions(console, "evil \x1b[2J name") as (pusher,):
        pusher.execute(SQL("SELECT {}('secret payload')").format(Identifier(f"{name}_push")))
        for options in ((), ("--json",)):
            answer = console.done("waits", name, "--seconds", "0", *options)
            assert f"{name}_push" in answer.text
            assert "secret" not in answer.text
            assert "\x1b" not in answer.text


def test_ctrl_c_ends_the_sampling_and_its_result_is_shown(
    console: Console, install: Install
) -> None:
    name = install("naive")
    with (
        waiting(console, name) as (holder, *_),
        console.process("waits", name, "--seconds", "3000") as sampling,
    ):
        assert sampling.stderr is not None
        assert sampling.stderr.readline() == b"Sampling for 50 min.\n"
        sampling.send_signal(signal.SIGINT)
        out, err = sampling.communicate(timeout=PATIENCE_SECONDS)
    assert (sampling.returncode, err) == (128 + signal.SIGINT, b"Interrupted.\n")
    assert f"session {holder}  idle in transaction for " in out.decode()


def test_the_samples_until_ctrl_c_are_one_json_object(
    console: Console, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = install("fifo")
    monkeypatch.setattr("time.sleep", lambda _: signal.raise_signal(signal.SIGINT))
    answer = console("waits", name, "--seconds", "3000", "--json")
    assert (answer.status, answer.err) == (128 + signal.SIGINT, "Interrupted.\n")
    assert list(answer.json) == FIELDS
    assert answer.json["samples"] == 1


CONSUMER_FIELDS = [
    *("connection", "samples", "pop_per_second", "queue", "schema", "design", "at", "consumers"),
    *("missing", "gone", "recorded", "standby"),
]


def test_consumers_prints_text_or_one_json_object(
    console: Console, install: Install, tmp_path: Path
) -> None:
    here = ["--recordings", str(tmp_path)]
    with sessions(console, "shop\x1b") as (shop,):
        shop.autocommit = True
        shop.execute("SET application_name = 'night shift'")
        for design, seconds in (("claim", "2"), ("fifo", "0")):
            name = install(design)
            console.done("push", name, "-", "--lines", stdin=b"one\ntwo\nthree\n")
            pop(shop, name)
            json = console.done("consumers", name, "--seconds", seconds, "--json", *here).json
            text = console.done("consumers", name, "--seconds", "0", *here).text
            assert list(json) == CONSUMER_FIELDS
            assert (json["samples"] > 1) == (seconds == "2")
            (one,) = [one for one in json["consumers"] if one["name"] == "night shift"]
            assert set(one) == {field.name for field in fields(Consumer)}
            assert (one["does"], one["sessions"]) == (["pop"], 1)
            claims = 1 if design == "claim" else None
            assert (one["claims"], one["last_pop"] is None) == (claims, design == "fifo")
            assert ("last_pop" in one["unknown"]) == (design == "fifo")
            assert "night shift  pops" in text
            unknown = "? last pop, messages a second, claims: a pop of fifo ends"
            assert (unknown in text) == (design == "fifo")
            assert "Gone: ? (nothing was recorded" in text
            assert (json["gone"], json["recorded"]) == ([], False)


def test_consumers_that_are_gone_come_from_the_recording(
    console: Console, install: Install, tmp_path: Path
) -> None:
    name, now = install("fifo"), datetime.now(UTC)
    here = ["--seconds", "0", "--recordings", str(tmp_path)]
    connection = console.done("consumers", name, "--json", *here).json["connection"]
    left = Consumer("mail\x1b", ("pop",), "p", "10.0.0.4", "ann", 2, now, None, now, None, None)
    queue = installed_queue("public", name, DESIGNS["fifo"], {})
    recorder = Recorder(tmp_path, connection)
    for hours in (30, 2):
        at = now - timedelta(hours=hours)
        who = left if hours == 2 else Consumer("long ago", *list(vars(left).values())[1:11])
        recorder.add(CONSUMERS, rows(Consumers(queue, at, (who,)), at, late=0))
    recorder.close()
    json = console.done("consumers", name, "--json", *here).json
    (one,) = json["gone"]
    assert (one["name"], one["host"], one["does"], one["sessions"]) == (
        *("mail\x1b", "10.0.0.4", ["pop"]),
        2,
    )
    assert one["last_seen"] == (now - timedelta(hours=2)).isoformat()
    text = console.done("consumers", name, *here).text
    assert "Gone in the last day: 1" in text
    assert "mail␛: pops, last seen" in text
    assert "10.0.0.4, p, user ann" in text
    assert "No session was seen popping or pushing." in text


def test_stuck_lists_claims_with_their_owners_and_sessions_that_hold_rows(
    console: Console, install: Install
) -> None:
    name = install("claim")
    console.done("push", name, "-", "--lines", stdin=b"a\nb\n")
    assert console.done("stuck", name).text == "No claims.\n"
    console.done("pop", name, "--count", "2")
    answer = console.done("stuck", name, "--json").json
    assert [*answer] == [
        *("queue", "design", "stuck_after_seconds", "claims", "more", "sessions", "standby")
    ]
    assert (answer["queue"], answer["design"], answer["sessions"]) == (name, "claim", None)
    assert (answer["stuck_after_seconds"], answer["more"]) == (300.0, False)
    assert [(one["owner"], one["stuck"]) for one in answer["claims"]] == [("unknown", False)] * 2
    claimed_an_hour_ago(console, name)
    head, titles, line, _ = console.done("stuck", name).text.splitlines()
    assert head == "2 claims   2 stuck over 5 min: owner 2 unknown"
    assert titles.split() == ["message", "for", "owner", "attempts", "who", "where", "does"]
    assert line.split()[1:4] == ["1", "h", "unknown"]
    holding = install("fifo")
    console.done("push", holding, "x")
    assert console.done("stuck", holding).text == "No session holds rows.\n"
    with sessions(console, "etl") as (session,):
        pop(session, holding)
        answer = console.done("stuck", holding, "--json").json
        assert (answer["claims"], answer["stuck_after_seconds"]) == (None, 300.0)
        assert [one["application"] for one in answer["sessions"]] == ["etl"]
        busy = console.done("busy", "--json").json["busy"]
        held = {one["queue"]: one for one in busy if one["message"] is None}
        assert "etl" in held[holding]["who"]
        assert [one["owner"] for one in busy if one["queue"] == name] == ["unknown"] * 2
        assert "holds rows" in console.done("busy", holding).text
