"""Queues of libraries: discovered, counted as they count, and acted on by their rules."""

import shlex
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url, text

from console import sql
from console.actions.availability import unavailable
from console.catalog import Kind, Queue, find
from console.engines import open_database
from console.errors import UsageError
from console.features.presets import discovery
from console.features.presets.designs import LIBRARIES, library
from console.figures import COUNTED
from console.monitor.memory import Memory
from console.monitor.rates import STATES
from console.monitor.sample import estimates, take_sample
from tests.cli.calls import Console, call
from tests.contract import python_libraries
from tests.contract.libraries import adopt, counts, error_group, figures, findings, listed
from tests.contract.plans import Statement
from tests.contract.python_libraries import PgQueuerApp, ProcrastinateApp
from tests.contract.stand_in import RIVER, StandIn


@pytest.fixture
def procrastinate(console: Console) -> ProcrastinateApp:
    return python_libraries.procrastinate(console.url)


@pytest.fixture
def pgqueuer(console: Console, request: pytest.FixtureRequest) -> PgQueuerApp:
    if "procrastinate" not in request.fixturenames:
        return python_libraries.pgqueuer(console.url)
    app = PgQueuerApp(console.url, "app", "shop_")  # beside its tables
    request.getfixturevalue("procrastinate")
    app.install()
    return app


def estimated(console: Console, name: str) -> dict[str, int]:
    """The estimates of a deep queue; of a small table, from all its pages."""
    with (
        closing(open_database(console.url)) as database,
        database.transaction("estimate", read_only=True) as connection,
    ):
        queue = find(connection, name)
        (sample,) = take_sample(database, only=[queue]).queues
        assert sample.row is not None
        known = [state for state in STATES if getattr(sample.row, state) is not None]
        many: dict[str, Any] = dict.fromkeys(known, COUNTED + 1)
        deep = replace(sample.row, **many)
        (found,) = estimates(connection, [(queue, deep)], Memory()).values()
    return {state: round(rows) for state, rows in found.items() if rows is not None}


def test_a_library_s_table_is_found_without_reading_the_columns_of_all_tables(
    console: Console,
) -> None:
    StandIn(console.url, "theirs").create(RIVER)
    (river,) = (of for of in LIBRARIES.values() if of.name == "river")
    columns: Any = river.found_by["columns"]
    values = {**river.found_by, "schema": "theirs", "columns": list(columns)}
    with (
        closing(open_database(console.url)) as database,
        database.transaction("find", read_only=True) as connection,
    ):
        query = sql.query("river.find", connection.dialect, sql.Scope({"design": "river"})).text
        explain = text(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}")
        (plan,) = connection.execute(explain, values).scalar_one()
    of_columns = [
        node
        for node in Statement(query, plan["Plan"]).nodes()
        if node.get("Relation Name") == "pg_attribute" and node["Actual Loops"]
    ]
    assert of_columns
    assert {node["Node Type"] for node in of_columns} == {"Index Scan"}


def test_both_libraries_are_discovered_and_figures_equal_their_own(
    console: Console, procrastinate: ProcrastinateApp, pgqueuer: PgQueuerApp
) -> None:
    procrastinate.defer("send", 5)
    procrastinate.defer("send", 2, fails=True)
    procrastinate.work()
    procrastinate.defer("send", 4)
    procrastinate.defer("send", 3, later=True)
    procrastinate.defer("report", 2)
    procrastinate.leave()
    procrastinate.silence()
    pgqueuer.enqueue("mail", 3)
    pgqueuer.work(works=False)
    pgqueuer.enqueue("mail", 6)
    pgqueuer.enqueue("mail", 2, later=True)
    pgqueuer.leave()
    pgqueuer.silence()
    pgqueuer.enqueue("report", 1)

    found = console.done("discover", "--json").json["found"]
    assert [(one["preset"], one["schema"], one["table"]) for one in found] == [
        ("pgqueuer", "app", "shop_pgqueuer"),
        ("procrastinate", "Their_Jobs", "procrastinate_jobs"),
    ]
    assert [one["queues"] for one in found] == [["mail", "report"], ["mails", "reports"]]
    for one in found:
        for command in one["commands"]:
            console.done(*shlex.split(command)[1:])

    with procrastinate.busy(), pgqueuer.busy():
        theirs = procrastinate.queues()
        for queue, stats in theirs.items():
            ours = figures(console, queue)
            assert ours["ready"] + ours["scheduled"] == stats["todo"]
            assert (ours["claimed"], ours["errors"]) == (stats["doing"], stats["failed"])
            assert ours["done"] == stats["succeeded"]
        assert figures(console, "mails")["scheduled"] == 3
        total = figures(console, "procrastinate_jobs")
        assert total["ready"] + total["scheduled"] == sum(its["todo"] for its in theirs.values())
        assert total["claimed"] == 2
        assert total["stuck"] == len(procrastinate.stalled()) == 1

        for name, entrypoint in (("shop_pgqueuer", None), ("mail", "mail"), ("report", "report")):
            sizes, ours = pgqueuer.size(entrypoint), figures(console, name)
            assert ours["ready"] + ours["scheduled"] == sizes.get("queued", 0)
            assert (ours["claimed"], ours["errors"]) == (
                sizes.get("picked", 0),
                sizes.get("failed", 0),
            )
        assert figures(console, "mail")["stuck"] == len(pgqueuer.stalled()) == 1
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
    shown = console.done("discover").text
    assert "procrastinate 3: Their_Jobs.procrastinate_jobs" in shown
    assert "adopted as app.mail, only mail" in shown


def test_failed_jobs_are_retried_by_procrastinates_own_function(
    console: Console, procrastinate: ProcrastinateApp
) -> None:
    failing = procrastinate.defer("send", 3, fails=True)
    procrastinate.work()
    (locked,) = procrastinate.defer("send", fails=True, queueing_lock="one")
    procrastinate.work()
    (waiting,) = procrastinate.defer("send", queueing_lock="one", later=True)
    procrastinate.defer("report")
    console.done("adopt", "mails", "--preset", "procrastinate", "--queue", "mails")

    errors = listed(console, "mails", "--state", "error", "--payload")
    assert sorted(int(error["id"]) for error in errors) == sorted([*failing, locked])
    assert all(error["title"] == "send" and '"fails": true' in error["payload"] for error in errors)
    count, sample = error_group(console, "mails")
    assert (count, "send failed" in sample) == (4, True)

    assert "procrastinate_retry_job_v2 does it" in console("requeue", "mails").text
    done = console.done("requeue", "mails", "--yes").text
    assert "another waiting job has its queueing_lock" in done
    by_id = {job.id: job for job in procrastinate.jobs()}
    assert [by_id[job].status for job in failing] == ["todo"] * 3
    # Only one job with this queueing_lock may wait: this one stays failed.
    assert by_id[locked].status == "failed"
    assert set(procrastinate.events(failing[0])[-2:]) == {"retried", "scheduled"}
    assert by_id[failing[0]].attempts == 2
    assert waiting in by_id
    procrastinate.work()
    assert figures(console, "mails")["errors"] == 4


def test_only_the_job_of_a_dead_worker_is_released(
    console: Console, procrastinate: ProcrastinateApp
) -> None:
    procrastinate.defer("report", 2)
    adopt(console, "procrastinate")
    (left,) = procrastinate.leave()
    procrastinate.silence()
    (claim,) = listed(console, "jobs", "--state", "claimed")
    assert (claim["id"], claim["claimed_by"]) == (str(left), "worker 1")
    # A starting worker removes the dead one: then the job has no owner.
    with procrastinate.busy():
        console.done("release", "jobs", "--yes")
        _, started, *rest = procrastinate.events(left)
        assert (started, sorted(rest)) == ("started", ["deferred_for_retry", "scheduled"])
        assert figures(console, "jobs") == counts(1, 0, 1, 0, 0, 0)
        plan = console.done("release", "jobs", "--dry-run").text
        assert "skipped: 1 their owner is alive" in plan
    assert console("doctor", "jobs", "--json").json["queues"][0]["unseen"] == []


@pytest.mark.long
def test_release_uses_the_same_stuck_threshold_as_status(
    console: Console, procrastinate: ProcrastinateApp, pgqueuer: PgQueuerApp, tmp_path: Path
) -> None:
    """Silent for 600 s a worker is not stuck by a threshold of 1 h, for 100 s it is by one of 40 s:
    in the plan, the claims, the doctor and the figures."""
    procrastinate.defer("report")
    procrastinate.leave()
    procrastinate.silence()
    pgqueuer.enqueue("mail")
    pgqueuer.leave()
    adopt(console, "procrastinate")
    console.done("adopt", "mails", "--preset", "pgqueuer")
    config = tmp_path / "config.toml"
    url = make_url(console.url)
    plain_url = url.set(password="").render_as_string(hide_password=False)

    def json_of(*words: str) -> Any:
        here = {"DBQ_CONFIG": str(config), "PGPASSWORD": str(url.password)}
        return call(*words, "--profile", "here", "--json", environment=here).json

    for silent, limit, stuck in ((600, "1h", 0), (100, "40s", 1)):
        procrastinate.silence(f"{silent} s")
        pgqueuer.run(f"UPDATE shop_pgqueuer SET heartbeat = now() - interval '{silent} s'")
        config.write_text(
            f"[profiles.here]\nurl = '{plain_url}'\nstuck_after = '{limit}'\nrights = 'operator'\n"
        )
        for name in ("jobs", "mails"):
            (found,) = json_of("status", name)["queues"]
            assert found["stuck"] == stuck
            (claim,) = found["claims"]
            assert claim["owner"] == ("gone" if stuck else "unknown")
            (worker,) = json_of("consumers", name, "--seconds", "0")["consumers"]
            assert (worker["claims"], worker["sessions"], worker["does"]) == (1, None, ["pop"])
            (examined,) = json_of("doctor", name)["queues"]
            assert json_of("report", name)["figures"]["stuck"] == stuck
            codes = {one["code"] for one in examined["findings"]}
            assert codes & {"claims_gone", "claims_unknown"} == (
                {"claims_gone"} if stuck else set()
            )
        assert json_of("release", "jobs", "--dry-run")["plan"]["count"] == stuck


@pytest.mark.long
def test_held_jobs_are_requeued_as_pgqueuer_does(console: Console, pgqueuer: PgQueuerApp) -> None:
    held = pgqueuer.enqueue("mail", 2)
    pgqueuer.work(works=False)
    pgqueuer.enqueue("mail", 2)
    pgqueuer.leave()
    console.done("adopt", "mails", "--preset", "pgqueuer", "--queue", "mail")
    count, sample = error_group(console, "mails")
    assert (count, "no host for" in sample) == (2, True)
    (error, _) = listed(console, "mails", "--state", "error", "--payload")
    assert error["title"] == "mail"
    console.done("requeue", "mails", "--yes")
    for job in held:
        assert pgqueuer.log(job)[-2:] == ["failed", "queued"]
    assert figures(console, "mails") == counts(3, 0, 1, 0, 0, None)
    pgqueuer.work(works=True)
    assert figures(console, "mails")["ready"] == 0
    assert pgqueuer.log(held[0])[-1] == "successful"


@pytest.mark.long
def test_procrastinate_jobs_retried_for_days_are_a_finding(
    console: Console, procrastinate: ProcrastinateApp
) -> None:
    (job, _) = procrastinate.defer("send_again", 2)
    procrastinate.work()
    procrastinate.defer("send", 1, later=True)
    adopt(console, "procrastinate", "reports")
    assert figures(console, "jobs")["scheduled"] == 3
    # Deferred days ago, but started only now: it has not been retried for long.
    past = """UPDATE procrastinate_events SET at = at - interval '3 d' WHERE {}"""
    procrastinate.run(past.format("type = 'deferred'"))
    assert "jobs_retrying" not in findings(console, "jobs")
    procrastinate.run(past.format(f"type <> 'deferred' AND job_id = {job}"))
    found = findings(console, "jobs")["jobs_retrying"]["evidence"]
    assert (found["jobs"], found["oldest_id"], found["most_attempts"]) == (1, str(job), 1)
    assert 3 * 86_400 <= found["oldest_seconds"] < 4 * 86_400
    assert "jobs_retrying" not in findings(console, "reports")


@pytest.mark.long
def test_pgqueuer_jobs_retried_for_days_are_a_finding(
    console: Console, pgqueuer: PgQueuerApp
) -> None:
    pgqueuer.enqueue("mail", 2)
    job, _ = pgqueuer.retry_later("mail"), pgqueuer.retry_later("mail")
    pgqueuer.enqueue("report", 1)
    adopt(console, "pgqueuer", "mail", "report")
    assert figures(console, "mail")["scheduled"] == 2
    past = "created = created - interval '3 d'"
    pgqueuer.run(f"UPDATE shop_pgqueuer SET {past}")
    assert "jobs_retrying" not in findings(console, "mail")
    pgqueuer.run(f"UPDATE shop_pgqueuer_log SET {past} WHERE job_id = {job}")
    found = findings(console, "mail")["jobs_retrying"]["evidence"]
    assert (found["jobs"], found["oldest_id"], found["most_attempts"]) == (1, str(job), 1)
    assert "jobs_retrying" not in findings(console, "report")


def test_verbs_that_a_library_does_not_allow_say_why(
    console: Console, procrastinate: ProcrastinateApp, pgqueuer: PgQueuerApp
) -> None:
    del procrastinate
    pgqueuer.enqueue("mail", 2)
    pgqueuer.leave()
    pgqueuer.silence()
    console.done("adopt", "mails", "--preset", "pgqueuer")
    adopt(console, "procrastinate")
    console("release", "mails", "--yes").failed(4, "heartbeat_timeout")
    console("purge", "mails", "--yes", "mails").failed(4, "logs each in its log table")
    console("purge", "mails", "--permanently", "--yes", "mails").failed(4, "log table")
    console("archive", "jobs", "--yes").failed(4, "remove_old_jobs")
    console("restore", "jobs", "--yes").failed(4, "procrastinate")
    console("smoke", "mails").failed(4, "not be one of the library's")
    for words in (["push", "mails", "x"], ["pop", "jobs"], ["upgrade", "jobs", "--yes"]):
        answer = console(*words)
        assert (answer.status in {2, 4}, answer.out) == (True, b""), answer
    assert console("uninstall", "jobs", "--yes", "jobs").status in {2, 4}
    console.done("forget", "mails")
    assert pgqueuer.size() == {"queued": 1, "picked": 1}


def _letters(words: str) -> str:
    """Compare names by letters only: Delayed::Job is delayed-job."""
    return "".join(filter(str.isalpha, words.casefold()))


@pytest.mark.parametrize("name", LIBRARIES)
def test_every_verb_is_available_or_has_a_reason(name: str) -> None:
    of = LIBRARIES[name]
    queue = Queue("s", "q", of, {"table": "t"}, dict(of.roles), kind=Kind.ADOPTED)
    for verb in ("requeue", "release", "purge", "archive", "restore", "pause", "resume"):
        why = unavailable(queue, verb)
        assert bool(why) != (verb in of.verbs)
        assert verb in of.verbs or _letters(name) in _letters(why)
    for verb in ("push", "pop", "smoke"):
        assert _letters(name) in _letters(unavailable(queue, verb))
    assert unavailable(queue, "maintain") == ""
    assert unavailable(queue, "forget") == ""
    if library(name, "mssql") is None:
        with pytest.raises(UsageError, match="postgresql only"):
            discovery.preset(name, "mssql")


def test_adopting_a_missing_or_ambiguous_table_is_refused(
    console: Console, procrastinate: ProcrastinateApp
) -> None:
    for words, complaint in {
        ("x", "--preset", "nope"): "pgqueuer, procrastinate",
        ("x", "--preset", "pgqueuer"): "discover",
        ("x", "--preset", "pgmq"): "queue 'x' of pgmq",
        ("x", "--preset", "procrastinate", "--schema", "public"): "Their_Jobs.procrastinate_jobs",
        ("x", "--preset", "procrastinate", "--design", "claim"): "exclude",
        ("x", "--design", "claim", "--queue", "mails"): "--preset",
        ("", "--preset", "procrastinate"): "name",
    }.items():
        console("adopt", *words).failed(2, complaint)
    ProcrastinateApp(console.url, "others").install()
    console("adopt", "x", "--preset", "procrastinate").failed(
        2, "Their_Jobs.procrastinate_jobs, others.procrastinate_jobs"
    )
    console.done("adopt", "x", "--preset", "procrastinate", "--schema", "others")
    assert "as 'x'" in console("adopt", "y", "--preset", "procrastinate", "--schema", "others").err
    assert procrastinate.jobs() == []


def test_ids_that_run_out_in_any_table_of_a_library_are_found(
    console: Console, pgqueuer: PgQueuerApp
) -> None:
    """Older pgqueuers' ids have four bytes, and the log draws one for each job that ends."""
    for table in ("shop_pgqueuer", "shop_pgqueuer_log"):
        pgqueuer.run(f"ALTER TABLE {table} ALTER id TYPE integer")
    console.done("adopt", "shop_pgqueuer", "--preset", "pgqueuer")
    pgqueuer.run("SELECT setval('shop_pgqueuer_id_seq', 2147483600)")
    pgqueuer.run("SELECT setval('shop_pgqueuer_log_id_seq', 2100000000)")
    found = findings(console, "shop_pgqueuer")
    (nearly,) = found["ids_nearly_used_up"]["evidence"]["columns"]
    (soon,) = found["ids_run_out"]["evidence"]["columns"]
    assert (nearly["column"], nearly["left"]) == ("app.shop_pgqueuer.id", 47)
    assert (soon["column"], soon["left"]) == ("app.shop_pgqueuer_log.id", 47_483_647)
    pgqueuer.run("SELECT setval('shop_pgqueuer_id_seq', 1, false)")
    pgqueuer.enqueue("mail", 3)
    pgqueuer.run("SELECT setval('shop_pgqueuer_id_seq', 1, false)")
    words = ("--fix", "--code", "id_sequence_behind", "--yes", "shop_pgqueuer")
    console("doctor", "shop_pgqueuer", *words)
    assert pgqueuer.enqueue("mail", 1) == [4]


def test_of_two_versions_in_two_schemas_one_must_be_named(console: Console) -> None:
    StandIn(console.url, "new").create(RIVER)
    StandIn(console.url, "theirs").create(
        RIVER + "ALTER TABLE river_job DROP COLUMN unique_states CASCADE"
    )
    found = console.done("discover", "--json").json["found"]
    assert [(one["preset"], one["schema"]) for one in found] == [
        ("river", "new"),
        ("river-0", "theirs"),
    ]
    console("adopt", "jobs", "--preset", "river").failed(2, "new.river_job, theirs.river_job")
    for schema, design in (("new", "river"), ("theirs", "river-0")):
        console.done("adopt", f"jobs {schema}", "--preset", "river", "--schema", schema)
        assert console.status(f"jobs {schema}")["design"] == design
