"""Older versions of libraries: recognised, named, read; verbs by their own rule, or refused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.calls import Console
from tests.contract.libraries import (
    Tables,
    adopt,
    counts,
    discovered,
    error_group,
    figures,
    findings,
    listed,
)
from tests.contract.node_libraries import GraphileApp
from tests.contract.packages import NodeTables, from_npm, from_pip
from tests.contract.stand_in import RIVER, StandIn

SCHEMA = "theirs"

BOSS_9 = """
import PgBoss from "pg-boss";
const boss = new PgBoss({ connectionString: process.env.URL, schema: process.env.SCHEMA,
    noSupervisor: true, noScheduling: true });
await boss.start();
for (let n = 0; n < 4; n++) await boss.send("mail", { n }, { retryLimit: 0 });
const [failed, done] = await boss.fetch("mail", 2);
await boss.fail(failed.id, new Error("no host 7")); await boss.complete(done.id);
await boss.fetch("mail", 1);
await boss.send("mail", { n: 5 }, { startAfter: 3600 });
process.exit(0);
"""
BOSS_10 = """
const loaded = await import("pg-boss"); const PgBoss = loaded.PgBoss ?? loaded.default;
const boss = new PgBoss({ connectionString: process.env.URL, schema: process.env.SCHEMA,
    supervise: false, schedule: false });
await boss.start();
await boss.createQueue("mail", { name: "mail", retryLimit: 0 });
for (let n = 0; n < 4; n++) await boss.send("mail", { n }, { retryLimit: 0 });
const [failed, done] = await boss.fetch("mail", { batchSize: 2 });
await boss.fail("mail", failed.id, new Error("no host 7")); await boss.complete("mail", done.id);
await boss.fetch("mail", { batchSize: 1 });
await boss.send("mail", { n: 5 }, { startAfter: 3600 });
process.exit(0);
"""
_BOSS_RETRIES = """
const loaded = await import("pg-boss"); const PgBoss = loaded.PgBoss ?? loaded.default;
const boss = new PgBoss({ connectionString: process.env.URL, schema: process.env.SCHEMA,
    supervise: false, schedule: false });
await boss.start();
const jobs = await boss.fetch("mail", { batchSize: 9 });
for (const job of jobs) await boss.complete("mail", job.id);
process.exit(0);
"""


def refused(console: Console, verb: str, *words: str) -> None:
    answer = console(verb, "jobs", "--yes", "jobs")
    assert answer.status == 4, answer
    assert all(word in answer.err for word in words), answer.err


def run_node(boss: NodeTables, script: str) -> None:
    with boss.process(script) as process:
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0, out


@pytest.mark.long
def test_pg_boss_9_is_read_and_its_verbs_are_refused_by_name(console: Console) -> None:
    boss = NodeTables(console.url, SCHEMA, from_npm("pg-boss", "9.0.3"))
    run_node(boss, BOSS_9)
    found = discovered(console, "pg-boss-9")
    assert (found["library"], found["version"]) == ("pg-boss 9 and earlier", "20")
    assert found["queues"] == ["mail"]
    # Whoever names the library gets the version that is there.
    console.done("adopt", "jobs", "--preset", "pg-boss")
    assert figures(console, "jobs") == counts(1, 1, 1, 0, 1, 1)
    assert console.status("jobs")["design"] == "pg-boss-9"
    assert error_group(console, "jobs")[1].startswith("no host")
    for verb in ("requeue", "release"):
        refused(console, verb, "pg-boss 9 and earlier", "12.19")
    boss.run("UPDATE job SET startedon = now() - interval '1 h' WHERE state = 'active'")
    boss.run(
        "UPDATE job SET startafter = now() - interval '1 h', createdon = now() - interval '1 d'"
    )
    assert figures(console, "jobs")["stuck"] == 1
    assert findings(console, "jobs")["messages_overdue"]["evidence"]["messages"] == 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("version", "tables"), [("10.4.2", "24"), ("11.1.2", "26"), ("12.18.3", None)]
)
def test_pg_boss_10_to_12_18_is_read_and_requeued_by_its_own_rule(
    console: Console, version: str, tables: str | None
) -> None:
    boss = NodeTables(console.url, SCHEMA, from_npm("pg-boss", version))
    run_node(boss, BOSS_10)
    found = discovered(console, "pg-boss-11")
    assert found["library"] == "pg-boss 10 to 12.18"
    assert tables in (None, found["version"])
    adopt(console, "pg-boss", "mail")
    for name in ("jobs", "mail"):
        assert figures(console, name) == counts(1, 1, 1, 0, 1, 1)
    refused(console, "release", "pg-boss 10 to 12.18")
    console.done("requeue", "jobs", "--yes")
    assert figures(console, "jobs") == counts(2, 1, 1, 0, 0, 1)
    run_node(boss, _BOSS_RETRIES)
    assert figures(console, "jobs") == counts(0, 1, 1, 0, 0, 3)


def test_the_release_of_procrastinate_3_0_is_refused(console: Console) -> None:
    package = from_pip("procrastinate==3.0.0")
    theirs = Tables(console.url, SCHEMA)
    theirs.create((package / "procrastinate" / "sql" / "schema.sql").read_text())
    theirs.run(
        """
        INSERT INTO procrastinate_jobs (queue_name, task_name) VALUES ('mail', 'send');
        UPDATE procrastinate_jobs SET status = 'doing'
        """
    )
    assert discovered(console, "procrastinate-2")["library"] == "procrastinate 1, 2 and 3.0"
    adopt(console, "procrastinate")
    assert figures(console, "jobs") == counts(0, 0, 1, 0, 0, 0)
    refused(console, "release", "no function", "procrastinate_retry_job")


@pytest.mark.parametrize("version", [pytest.param("1.1.2", marks=pytest.mark.long), "2.15.1"])
def test_procrastinate_1_and_2_are_read_and_released_by_their_own_function(
    console: Console, version: str
) -> None:
    package = from_pip(f"procrastinate=={version}")
    theirs = Tables(console.url, SCHEMA)
    theirs.create((package / "procrastinate" / "sql" / "schema.sql").read_text())
    theirs.run(
        """
        INSERT INTO procrastinate_jobs (queue_name, task_name, scheduled_at)
        VALUES ('mail', 'send', NULL), ('mail', 'send', NULL), ('mail', 'send', NULL),
            ('mail', 'send', now() + interval '1 h'), ('report', 'send', NULL);
        UPDATE procrastinate_jobs SET status = 'doing' WHERE id < 4;
        UPDATE procrastinate_jobs SET status = 'failed' WHERE id = 1;
        UPDATE procrastinate_jobs SET status = 'succeeded' WHERE id = 2
        """
    )
    found = discovered(console, "procrastinate-2")
    assert (found["library"], found["queues"]) == ("procrastinate 1, 2 and 3.0", ["mail", "report"])
    adopt(console, "procrastinate", "mail")
    assert figures(console, "jobs") == counts(1, 1, 1, 0, 1, 1)
    assert figures(console, "mail") == counts(0, 1, 1, 0, 1, 1)
    refused(console, "requeue", "procrastinate 2")
    refused(console, "pause", "procrastinate has no pause")
    theirs.run("UPDATE procrastinate_events SET at = at - interval '1 h'")
    assert figures(console, "jobs")["stuck"] == 1
    assert "claims_unknown" in findings(console, "jobs")
    console.done("release", "jobs", "--unknown", "--yes")
    assert figures(console, "jobs") == counts(2, 1, 0, 0, 1, 1)
    ((attempts,),) = theirs.rows("SELECT attempts FROM procrastinate_jobs WHERE id = 3")
    assert attempts == 1


def install_of(package: Path, script: str) -> str:
    """What the package prints as its installation."""
    environment = {**os.environ, "PYTHONPATH": str(package)}
    words = [sys.executable, "-c", script]
    return subprocess.run(words, check=True, capture_output=True, text=True, env=environment).stdout


@pytest.mark.parametrize(
    "version", ["0.8.10", pytest.param("0.12.0", marks=pytest.mark.long), "0.15.0"]
)
def test_pgqueuer_before_0_20_is_read_and_its_verbs_are_refused_by_name(
    console: Console, version: str
) -> None:
    package = from_pip(f"pgqueuer=={version}")
    theirs = Tables(console.url, SCHEMA)
    install = "from pgqueuer.queries import *; print(QueryBuilder().create_install_query())"
    theirs.create(install_of(package, install))
    theirs.run(
        """
        INSERT INTO pgqueuer (priority, status, entrypoint) VALUES (0, 'queued', 'mail'),
            (0, 'queued', 'report'), (0, 'picked', 'mail');
        UPDATE pgqueuer SET updated = now() - interval '1 h' WHERE status = 'picked'
        """
    )
    if version != "0.8.10":
        theirs.run("UPDATE pgqueuer SET heartbeat = updated")
    found = discovered(console, "pgqueuer-0")
    assert (found["library"], found["queues"]) == ("pgqueuer before 0.20", ["mail", "report"])
    adopt(console, "pgqueuer", "mail")
    assert figures(console, "jobs") == counts(2, 0, 1, 1, None, None)
    assert figures(console, "mail") == counts(1, 0, 1, 1, None, None)
    assert len(listed(console, "jobs")) == 3
    assert findings(console, "jobs")
    for verb in ("requeue", "release", "pause"):
        refused(console, verb, "pgqueuer")


@pytest.mark.parametrize("version", ["0.26.3"])
def test_pgqueuer_0_20_and_later_has_the_present_preset(console: Console, version: str) -> None:
    package = from_pip(f"pgqueuer=={version}")
    install = """
import sys, types
# It does not import what Python 3.11 has itself.
sys.modules["async_timeout"] = types.ModuleType("async_timeout")
sys.modules["async_timeout"].timeout = None
from pgqueuer.qb import *
print(QueryBuilderEnvironment().build_install_query())
"""
    theirs = Tables(console.url, SCHEMA)
    theirs.create(install_of(package, install))
    theirs.run("INSERT INTO pgqueuer (priority, status, entrypoint) VALUES (0, 'queued', 'mail')")
    assert discovered(console, "pgqueuer")["library"] == "pgqueuer 0.20 and later"
    adopt(console, "pgqueuer")
    assert figures(console, "jobs")["ready"] == 1


@pytest.mark.long
def test_graphile_worker_0_15_is_read_and_its_verbs_are_refused_by_name(console: Console) -> None:
    app = GraphileApp(console.url, SCHEMA, from_npm("graphile-worker", "0.15.1"))
    app.install()
    app.add_job("send")
    app.add_job("send", run_at="now() + interval '1 h'")
    app.add_job("report", queue_name="'one'")
    app.run("UPDATE jobs SET attempts = max_attempts, last_error = 'no host 7' WHERE id = 1")
    app.run("UPDATE job_queues SET locked_at = now() - interval '1 h', locked_by = 'w'")
    found = discovered(console, "graphile-worker-15")
    assert found["library"] == "graphile-worker 0.14 and 0.15"
    adopt(console, "graphile-worker", "send")
    assert figures(console, "jobs") == counts(1, 1, 0, 0, 1, None)
    assert figures(console, "send") == counts(0, 1, 0, 0, 1, None)
    assert error_group(console, "send") == (1, "no host 7")
    assert findings(console, "jobs")["queue_locked"]["evidence"]["waiting"] == 1
    refused(console, "requeue", "graphile-worker 0.14 and 0.15")


@pytest.mark.long
def test_graphile_worker_before_0_14_is_read_and_its_verbs_are_refused_by_name(
    console: Console,
) -> None:
    app = GraphileApp(console.url, SCHEMA, from_npm("graphile-worker", "0.13.0"))
    app.install()
    app.add_job("send")
    app.add_job("send", run_at="now() + interval '1 h'")
    app.add_job("report")
    app.run("UPDATE jobs SET attempts = max_attempts, last_error = 'no host 7' WHERE id = 1")
    app.run("UPDATE jobs SET locked_at = now() - interval '1 h', locked_by = 'w' WHERE id = 3")
    found = discovered(console, "graphile-worker-0")
    assert found["library"] == "graphile-worker before 0.14"
    assert found["queues"] == ["report", "send"]
    adopt(console, "graphile-worker", "send")
    assert figures(console, "jobs") == counts(0, 1, 1, 1, 1, None)
    assert error_group(console, "send") == (1, "no host 7")
    refused(console, "requeue", "this version")


def test_river_before_0_12_is_read_and_its_verbs_are_refused_by_name(console: Console) -> None:
    theirs = StandIn(console.url, SCHEMA)
    theirs.create(RIVER)
    theirs.run(
        """
        DROP TABLE river_queue;
        ALTER TABLE river_job DROP COLUMN unique_states;
        INSERT INTO river_job (queue, state, attempted_at, attempted_by) VALUES
            ('mail', 'available', NULL, NULL), ('report', 'running', now(), '{one}')
        """
    )
    found = discovered(console, "river-0")
    assert (found["library"], found["queues"]) == ("River before 0.12", ["mail", "report"])
    adopt(console, "river", "mail")
    assert figures(console, "jobs") == counts(1, 0, 1, 0, 0, 0)
    for verb in ("requeue", "pause", "release"):
        refused(console, verb, "River")
    refused(console, "requeue", "River before 0.12", "River 0.12 and later only")


def test_of_two_versions_in_two_schemas_one_must_be_named(console: Console) -> None:
    StandIn(console.url, "new").create(RIVER)
    StandIn(console.url, SCHEMA).create(
        RIVER + "ALTER TABLE river_job DROP COLUMN unique_states CASCADE"
    )
    found = console.done("discover", "--json").json["found"]
    assert [(one["preset"], one["schema"]) for one in found] == [
        ("river", "new"),
        ("river-0", SCHEMA),
    ]
    answer = console("adopt", "jobs", "--preset", "river")
    assert (answer.status, "new.river_job, theirs.river_job" in answer.err) == (2, True)
    for schema, design in (("new", "river"), (SCHEMA, "river-0")):
        console.done("adopt", f"jobs {schema}", "--preset", "river", "--schema", schema)
        assert console.status(f"jobs {schema}")["design"] == design
