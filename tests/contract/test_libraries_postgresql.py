"""Queues that libraries keep: found, told as they tell them, and acted on by their own rules."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from console.actions import libraries, works
from console.catalog import Kind, Queue, find
from console.designs import LIBRARIES
from console.engines import open_database
from console.errors import UsageError
from console.monitor import take_sample
from console.monitor.estimates import estimates
from tests.cli.calls import Answer, Console
from tests.contract.at_work import PgQueuerAtWork, ProcrastinateAtWork
from tests.servers import Server, connect, fresh_database, value

HERE = Path(__file__).parent
PGMQ = HERE.parent / "bench" / "pgmq_stand_in.sql"
GRAPHILE = HERE / "graphile_worker_stand_in.sql"
STUCK_SECONDS = 300.0


@pytest.fixture
def console(server: Server) -> Iterator[Console]:
    """The command line on a database of this test."""
    with fresh_database(server.url) as url:
        yield Console(url)


@pytest.fixture
def procrastinate(console: Console) -> ProcrastinateAtWork:
    """Its tables, in a schema that is on nobody's search path."""
    at_work = ProcrastinateAtWork(console.url, "Their_Jobs")
    at_work.install()
    return at_work


@pytest.fixture
def pgqueuer(console: Console) -> PgQueuerAtWork:
    """Its tables under a prefix of its own."""
    at_work = PgQueuerAtWork(console.url, "app", "shop_")
    at_work.install()
    return at_work


def run(console: Console, script: str) -> None:
    with connect(console.url) as connection:
        connection.execute(script.encode())


def figures(console: Console, name: str) -> dict[str, Any]:
    (found,) = console.done("status", name, "--json").json["queues"]
    assert not found["problem"]
    assert not found["slow"]
    return {one: found[one] for one in ("ready", "scheduled", "claimed", "stuck", "errors", "done")}


def estimated(console: Console, name: str) -> dict[str, int]:
    """What a deep queue's figures are made of; of a small table, by all its pages."""
    database = open_database(console.url)
    try:
        with database.transaction("estimate", read_only=True) as connection:
            queue = find(connection, database.product, name)
            (seen,) = take_sample(database, only=[queue]).queues
            assert seen.row is not None
            (found,) = estimates(connection, database.product, [(queue, seen.row)]).values()
    finally:
        database.close()
    return {state: round(rows) for state, rows in found.items() if rows is not None}


def refused(answer: Answer, *words: str) -> None:
    assert (answer.status, answer.out) == (4, b""), answer
    for word in words:
        assert word in answer.err


def listed(console: Console, name: str, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = console.done("messages", name, "--json", *words).json["messages"]
    return found


def test_both_are_found_at_work_and_their_figures_are_their_own(
    console: Console, procrastinate: ProcrastinateAtWork, pgqueuer: PgQueuerAtWork
) -> None:
    procrastinate.defer("send", 5)
    procrastinate.defer("send", 2, fails=True)
    procrastinate.work()
    procrastinate.defer("send", 4)
    procrastinate.defer("send", 3, later=True)
    procrastinate.defer("report", 2)
    procrastinate.leave("reports")
    pgqueuer.enqueue("mail", 3)
    pgqueuer.work(works=False)
    pgqueuer.enqueue("mail", 6)
    pgqueuer.enqueue("mail", 2, later=True)
    pgqueuer.leave("mail", beats=False)
    pgqueuer.enqueue("report", 1)

    found = console.done("discover", "--json").json["found"]
    assert [(one["preset"], one["schema"], one["table"]) for one in found] == [
        ("pgqueuer", "app", "shop_pgqueuer"),
        ("procrastinate", "Their_Jobs", "procrastinate_jobs"),
    ]
    assert [one["queues"] for one in found] == [["mail", "report"], ["mails", "reports"]]
    for one in found:
        for command in one["commands"]:
            console.done(*_words(command))

    with procrastinate.working(), pgqueuer.working():
        theirs = procrastinate.queues()
        for queue, stats in theirs.items():
            ours = figures(console, queue)
            assert ours["ready"] + ours["scheduled"] == stats["todo"]
            assert (ours["claimed"], ours["errors"]) == (stats["doing"], stats["failed"])
            assert ours["done"] == stats["succeeded"]
        assert figures(console, "mails")["scheduled"] == 3
        whole = figures(console, "procrastinate_jobs")
        assert whole["ready"] + whole["scheduled"] == sum(one["todo"] for one in theirs.values())
        assert whole["claimed"] == 2
        assert whole["stuck"] == len(procrastinate.stalled(STUCK_SECONDS)) == 1

        for name, entrypoint in (("shop_pgqueuer", None), ("mail", "mail"), ("report", "report")):
            sizes, ours = pgqueuer.size(entrypoint), figures(console, name)
            assert ours["ready"] + ours["scheduled"] == sizes.get("queued", 0)
            assert (ours["claimed"], ours["errors"]) == (
                sizes.get("picked", 0),
                sizes.get("failed", 0),
            )
        assert figures(console, "mail")["stuck"] == len(pgqueuer.stale(STUCK_SECONDS)) == 1
        assert figures(console, "mail")["scheduled"] == 2
        for name in ("mails", "procrastinate_jobs", "mail", "shop_pgqueuer"):
            counted = {k: v for k, v in figures(console, name).items() if v is not None}
            del counted["stuck"]
            assert estimated(console, name) == counted
    again = console.done("discover", "--json").json["found"]
    assert [one["commands"] for one in again] == [[], []]
    assert {a["queue"] for one in again for a in one["adopted"]} == {
        *("mail", "report", "shop_pgqueuer"),
        *("mails", "reports", "procrastinate_jobs"),
    }
    told = console.done("discover").text
    assert "procrastinate 3: Their_Jobs.procrastinate_jobs" in told
    assert "adopted as app.mail, only mail" in told


def _words(command: str) -> list[str]:
    return shlex.split(command)[1:]


def test_what_failed_is_retried_by_procrastinates_own_function(
    console: Console, procrastinate: ProcrastinateAtWork
) -> None:
    failing = procrastinate.defer("send", 3, fails=True)
    procrastinate.work()
    (locked,) = procrastinate.defer("send", fails=True, queueing_lock="one")
    procrastinate.work()
    (waiting,) = procrastinate.defer("send", queueing_lock="one", later=True)
    procrastinate.defer("report")
    console.done("adopt", "mails", "--preset", "procrastinate", "--queue", "mails")

    errors = listed(console, "mails", "--state", "error", "--payload")
    assert sorted(int(one["id"]) for one in errors) == sorted([*failing, locked])
    assert all(one["title"] == "send" and '"fails": true' in one["payload"] for one in errors)
    (group,) = console.done("errors", "mails", "--json").json["groups"]
    assert group["count"] == 4
    assert "send failed" in group["sample"]

    assert "procrastinate_retry_job_v2 does it" in console("requeue", "mails").text
    done = console.done("requeue", "mails", "--yes").text
    assert "another waiting job has its queueing_lock" in done
    by_id = {job.id: job for job in procrastinate.jobs()}
    assert [by_id[job].status for job in failing] == ["todo"] * 3
    # Only one of those that have a queueing lock may wait: it stays, and the others go.
    assert by_id[locked].status == "failed"
    assert set(procrastinate.events(failing[0])[-2:]) == {"retried", "scheduled"}
    assert by_id[failing[0]].attempts == 2
    assert waiting in by_id
    procrastinate.work()
    assert figures(console, "mails")["errors"] == 4


def test_a_job_that_a_worker_left_is_released_and_no_other(
    console: Console, procrastinate: ProcrastinateAtWork
) -> None:
    procrastinate.defer("report", 2)
    console.done("adopt", "jobs", "--preset", "procrastinate")
    left = procrastinate.leave("reports")
    (claim,) = listed(console, "jobs", "--state", "claimed")
    assert (claim["id"], claim["claimed_by"]) == (str(left), "worker 1")
    # A worker that begins strikes it off: then the job has none.
    with procrastinate.working():
        console.done("release", "jobs", "--yes")
        _, started, *rest = procrastinate.events(left)
        assert (started, sorted(rest)) == ("started", ["deferred_for_retry", "scheduled"])
        assert figures(console, "jobs") == {
            "ready": 1,
            "scheduled": 0,
            "claimed": 1,
            "stuck": 0,
            "errors": 0,
            "done": 0,
        }
        plan = console.done("release", "jobs", "--dry-run").text
        assert "left alone: 1 their owner is alive" in plan
    assert console("doctor", "jobs", "--json").json["queues"][0]["unseen"] == []


def test_what_is_held_is_requeued_as_pgqueuer_does_it(
    console: Console, pgqueuer: PgQueuerAtWork
) -> None:
    held = pgqueuer.enqueue("mail", 2)
    pgqueuer.work(works=False)
    (keyed,) = pgqueuer.enqueue("mail", key="one")
    pgqueuer.work(works=False)
    pgqueuer.enqueue("mail", key="one")
    pgqueuer.leave("mail", beats=True)
    console.done("adopt", "mails", "--preset", "pgqueuer", "--queue", "mail")
    (group,) = console.done("errors", "mails", "--json").json["groups"]
    assert group["count"] == 3
    assert "no host for" in group["sample"]
    console.done("requeue", "mails", "--yes")
    for job in held:
        assert pgqueuer.log(job)[-2:] == ["failed", "queued"]
    assert pgqueuer.log(keyed)[-1] == "failed"
    assert figures(console, "mails") == {
        "ready": 2,
        "scheduled": 0,
        "claimed": 1,
        "stuck": 0,
        "errors": 1,
        "done": None,
    }
    pgqueuer.work(works=True)
    assert figures(console, "mails")["ready"] == 0
    assert pgqueuer.log(held[0])[-1] == "successful"
    (stayed,) = listed(console, "mails", "--state", "error", "--payload")
    assert (stayed["id"], stayed["title"]) == (str(keyed), "mail")


def test_what_is_not_allowed_says_why(
    console: Console, procrastinate: ProcrastinateAtWork, pgqueuer: PgQueuerAtWork
) -> None:
    del procrastinate
    pgqueuer.enqueue("mail", 2)
    pgqueuer.leave("mail", beats=False)
    console.done("adopt", "mails", "--preset", "pgqueuer")
    console.done("adopt", "jobs", "--preset", "procrastinate")
    refused(console("release", "mails", "--yes"), "heartbeat_timeout")
    refused(console("purge", "mails", "--yes", "mails"), "logs each in its log table")
    refused(console("purge", "mails", "--permanently", "--yes", "mails"), "log table")
    refused(console("archive", "jobs", "--yes"), "remove_old_jobs")
    refused(console("restore", "jobs", "--yes"), "procrastinate")
    refused(console("smoke", "mails"), "none of the library's")
    for words in (["push", "mails", "x"], ["pop", "jobs"], ["upgrade", "jobs", "--yes"]):
        answer = console(*words)
        assert (answer.status in {2, 4}, answer.out) == (True, b""), answer
    assert console("uninstall", "jobs", "--yes", "jobs").status in {2, 4}
    console.done("forget", "mails")
    assert pgqueuer.size() == {"queued": 1, "picked": 1}


@pytest.mark.parametrize("name", LIBRARIES)
def test_every_verb_is_there_or_has_its_reason(name: str) -> None:
    of = LIBRARIES[name]
    queue = Queue("s", "q", of, {"table": "t"}, dict(of.roles), kind=Kind.ADOPTED)
    for verb in ("requeue", "release", "purge", "archive", "restore", "push", "pop", "smoke"):
        why = works.why_not(queue, verb)
        assert bool(why) != (verb in of.verbs)
        assert verb in of.verbs or name in why
    assert works.why_not(queue, "maintain") == ""
    assert works.why_not(queue, "forget") == ""
    with pytest.raises(UsageError, match="postgresql only"):
        libraries.preset(name, "mssql")


def test_adopting_what_is_not_there_or_not_one(
    console: Console, procrastinate: ProcrastinateAtWork
) -> None:
    for words, complaint in {
        ("x", "--preset", "nope"): "procrastinate, pgmq",
        ("x", "--preset", "pgqueuer"): "discover",
        ("x", "--preset", "pgmq"): "queue 'x' of pgmq",
        ("x", "--preset", "procrastinate", "--schema", "public"): "Their_Jobs.procrastinate_jobs",
        ("x", "--preset", "procrastinate", "--design", "claim"): "exclude",
        ("x", "--design", "claim", "--queue", "mails"): "--preset",
        ("", "--preset", "procrastinate"): "name",
    }.items():
        answer = console("adopt", *words)
        assert (answer.status, answer.out) == (2, b""), answer
        assert complaint in answer.err
    ProcrastinateAtWork(console.url, "others").install()
    answer = console("adopt", "x", "--preset", "procrastinate")
    assert answer.status == 2
    assert "Their_Jobs.procrastinate_jobs, others.procrastinate_jobs" in answer.err
    console.done("adopt", "x", "--preset", "procrastinate", "--schema", "others")
    assert "as 'x'" in console("adopt", "y", "--preset", "procrastinate", "--schema", "others").err
    assert procrastinate.jobs() == []


def test_a_stand_in_of_pgmq(console: Console) -> None:
    """Its documented table and functions; not the library."""
    run(console, "CREATE SCHEMA pgmq;" + PGMQ.read_text())
    run(
        console,
        """
        SELECT pgmq.create('orders'); SELECT pgmq.create('other');
        SELECT pgmq.send_batch('orders', ARRAY['{"n": 1}', '{"n": 2}', '{"n": 3}']::jsonb[]);
        SELECT count(*) FROM pgmq.read('orders', 3600, 1);
        INSERT INTO pgmq.q_orders (message, vt) VALUES ('{"n": 4}', now() + interval '1 h');
        """,
    )
    first, second = console.done("discover", "--json").json["found"]
    assert (first["queues"], second["queues"]) == (["orders"], ["other"])
    console.done(*_words(first["commands"][0]))
    console.done("adopt", "theirs", "--preset", "pgmq", "--queue", "Other")
    assert figures(console, "orders") == {
        "ready": 2,
        "scheduled": 1,
        "claimed": 1,
        # This version does not tell when a message was read.
        "stuck": None,
        "errors": None,
        "done": None,
    }
    assert figures(console, "theirs")["ready"] == 0
    assert estimated(console, "orders") == {"ready": 2, "scheduled": 1, "claimed": 1}
    (claim,) = listed(console, "orders", "--state", "claimed", "--payload")
    assert (claim["id"], claim["attempts"], claim["payload"]) == ("1", 1, '{"n": 1}')
    refused(console("requeue", "orders", "--yes"), "visible again")
    console.done("release", "orders", "--force", "--yes")
    assert figures(console, "orders")["claimed"] == 0
    assert value(console.url, "SELECT read_ct FROM pgmq.q_orders WHERE msg_id = 1") == 1
    assert value(console.url, "SELECT count(*) FROM pgmq.read('orders', 0, 9)") == 3


def test_a_stand_in_of_graphile_worker(console: Console) -> None:
    """Its published columns and functions; not the library."""
    run(console, GRAPHILE.read_text())
    (found,) = console.done("discover", "--json").json["found"]
    assert (found["preset"], found["queues"]) == ("graphile-worker", ["report", "send"])
    console.done("adopt", "jobs", "--preset", "graphile-worker")
    console.done("adopt", "send", "--preset", "graphile-worker", "--queue", "send")
    assert figures(console, "jobs") == {
        "ready": 3,
        "scheduled": 1,
        "claimed": 2,
        "stuck": 1,
        "errors": 3,
        "done": None,
    }
    assert estimated(console, "send") == {"ready": 2, "scheduled": 1, "claimed": 2, "errors": 2}
    (group,) = console.done("errors", "send", "--json").json["groups"]
    assert (group["count"], group["sample"]) == (2, "no host 8")
    refused(console("release", "jobs", "--yes"), "force_unlock_workers")
    console.done("requeue", "send", "--yes")
    assert figures(console, "jobs")["errors"] == 1
    jobs = "SELECT count(*) FROM graphile_worker._private_jobs WHERE is_available AND id IN (7, 8)"
    assert value(console.url, jobs) == 2


def test_rows_that_row_security_hides_are_not_told_as_none(console: Console) -> None:
    run(console, GRAPHILE.read_text())
    console.done("adopt", "jobs", "--preset", "graphile-worker")
    role = "dbq_test_hidden"
    run(
        console,
        f"""
        DROP ROLE IF EXISTS {role};
        CREATE ROLE {role} LOGIN PASSWORD 'x';
        GRANT USAGE ON SCHEMA graphile_worker, dbq TO {role};
        GRANT SELECT ON ALL TABLES IN SCHEMA graphile_worker, dbq TO {role};
        """,
    )
    url = make_url(console.url).set(username=role, password="x")
    theirs = Console(url.render_as_string(hide_password=False))
    (found,) = theirs.done("status", "jobs", "--json").json["queues"]
    assert (found["ready"], found["errors"]) == (None, None)
    assert {"ready", "scheduled", "claimed", "errors"} <= set(found["unknown"])
    run(console, f"DROP OWNED BY {role}; DROP ROLE {role};")
