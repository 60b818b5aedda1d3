"""graphile-worker's own jobs: its workers make and end them, and the console shows the same."""

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta

import pytest

from tests.cli.calls import Console
from tests.contract.libraries import (
    adopt,
    counts,
    discovered,
    error_group,
    figures,
    findings,
    listed,
    planned,
)
from tests.contract.packages import NodeTables, from_npm
from tests.servers import Server, fresh_database, login, value, wait_until

_WORKER = """
import { run, runOnce } from "graphile-worker";
await (process.env.STAYS ? run : runOnce)({
    pollInterval: 100,
    connectionString: process.env.URL,
    schema: process.env.SCHEMA,
    noHandleSignals: true,
    taskList: {
        send: async (payload, helpers) => {
            if (payload.fails) throw new Error(`no host ${payload.n}`);
            const ran = "INSERT INTO public.ran VALUES ($1)";
            if (payload.told) await helpers.query(ran, [payload.n]);
        },
        hang: async () => { console.log("TAKEN"); await new Promise((go) => setTimeout(go, 1e8)); },
    },
});
"""


class GraphileApp(NodeTables):
    """Its tables, and the calls of an application."""

    def install(self) -> None:
        """Run its own migrations."""
        cli = self.folder / "node_modules" / "graphile-worker" / "dist" / "cli.js"
        words = [str(cli), "--schema-only", "--schema", self.schema, "--connection", self.uri]
        subprocess.run([self.node, *words], check=True, capture_output=True, timeout=120)

    def empty(self) -> None:
        """Remove all jobs and the console's catalog."""
        tables = "_private_jobs, _private_job_queues, _private_tasks"
        self.run(f"TRUNCATE {tables} CASCADE; DROP SCHEMA IF EXISTS dbq CASCADE")

    def add(self, task: str, payload: str = "{}", **more: str) -> int:
        """Add a job with its add_job; the id."""
        named = "".join(f", {name} => {value}" for name, value in more.items())
        ((job,),) = self.rows(f"SELECT id FROM add_job('{task}', '{payload}'{named})")
        return int(job)

    def work(self) -> None:
        """Run a worker until all due jobs are done."""
        with self.process(_WORKER) as worker:
            worker.communicate(timeout=120)
            assert worker.returncode == 0

    def leave(self) -> None:
        """A worker is killed while it runs a job that hangs."""
        with self.process(_WORKER) as worker:
            assert worker.stdout is not None
            assert any("TAKEN" in line for line in worker.stdout)
            worker.send_signal(signal.SIGKILL)

    def working(self) -> AbstractContextManager["subprocess.Popen[str]"]:
        """A worker runs jobs until it is killed at the end of the block."""
        return self.process(_WORKER, STAYS="yes")


JOBS = '"Their_Worker"._private_jobs'


@pytest.fixture(scope="module")
def module_app(server: Server) -> Iterator[GraphileApp]:
    with fresh_database(server.url) as url:
        app = GraphileApp(url, "Their_Worker", from_npm("graphile-worker"))
        app.install()
        yield app


@pytest.fixture
def graphile(module_app: GraphileApp) -> GraphileApp:
    """Its tables, with no jobs yet."""
    module_app.empty()
    return module_app


@pytest.fixture
def console(graphile: GraphileApp) -> Console:
    """The command line on its database."""
    return Console(graphile.url)


@pytest.mark.long
def test_jobs_are_discovered_and_counted(console: Console, graphile: GraphileApp) -> None:
    graphile.add("send")
    graphile.add("send", '{"fails": true, "n": 8}', max_attempts="1")
    graphile.add("send", '{"fails": true, "n": 9}')
    graphile.run(
        """
        ALTER TABLE _private_jobs DISABLE TRIGGER USER;
        UPDATE _private_jobs
        SET created_at = now() - interval '3 h', updated_at = now() - interval '3 h';
        """
    )
    before = datetime.now(UTC)
    graphile.work()
    graphile.run("ALTER TABLE _private_jobs ENABLE TRIGGER USER")
    # Its retry is due after a few seconds, which the next steps may take on a busy machine.
    later = "UPDATE _private_jobs SET run_at = now() + interval '1 h' WHERE attempts < max_attempts"
    graphile.run(later)
    for _ in range(2):
        graphile.add("send")
    graphile.add("report")
    graphile.add("send", run_at="now() + interval '1 h'")
    found = discovered(console, "graphile-worker")
    assert found["queues"] == ["hang", "report", "send"]
    assert int(found["version"]) >= 18
    adopt(console, "graphile-worker", "send")
    assert figures(console, "jobs") == counts(3, 2, 0, 0, 1, None)
    assert figures(console, "send") == counts(2, 2, 0, 0, 1, None)
    assert error_group(console, "send") == (1, "no host 8")
    (error,) = listed(console, "jobs", "--state", "error")
    failed = datetime.fromisoformat(error["done_at"])
    assert before - timedelta(seconds=5) <= failed <= datetime.now(UTC) + timedelta(seconds=5)
    answer = console("release", "jobs", "--yes")
    assert answer.status == 4
    assert 'SELECT "Their_Worker".force_unlock_workers' in answer.err
    console.done("requeue", "send", "--yes")
    assert figures(console, "jobs")["errors"] == 0
    assert value(console.url, f"SELECT count(*) FROM {JOBS} WHERE is_available") == 6


@pytest.mark.long
def test_failed_jobs_are_rescheduled_once_each_while_workers_run(
    console: Console, graphile: GraphileApp
) -> None:
    for n in range(40):
        graphile.add("send", f'{{"fails": true, "n": {n}}}', max_attempts="1")
    graphile.work()
    graphile.run(
        """
        CREATE TABLE public.ran (n integer);
        UPDATE _private_jobs SET payload = payload::jsonb - 'fails' || '{"told": true}';
        """
    )
    adopt(console, "graphile-worker")
    assert figures(console, "jobs")["errors"] == 40
    with graphile.working(), graphile.working():
        console.done("requeue", "jobs", "--yes")
        left = f"SELECT count(*) FROM {JOBS}"
        wait_until(lambda: value(console.url, left) == 0, "its workers ran what was rescheduled")
    ran = "SELECT count(*) || ' ' || count(DISTINCT n) FROM public.ran"
    assert value(console.url, ran) == "40 40"


@pytest.mark.long
def test_a_job_that_the_library_retired_by_its_key_is_not_run_again(
    console: Console, graphile: GraphileApp
) -> None:
    old = graphile.add("hang", '{"price": 1}', job_key="'article'")
    graphile.leave()
    new = graphile.add("hang", '{"price": 2}', job_key="'article'")
    graphile.run("SELECT force_unlock_workers(array_agg(locked_by)) FROM _private_jobs")
    failed = graphile.add("send", '{"fails": true, "n": 1}', max_attempts="1")
    graphile.run(f"UPDATE _private_jobs SET run_at = now() + interval '1 h' WHERE id = {new}")
    graphile.work()
    adopt(console, "graphile-worker")
    assert figures(console, "jobs")["errors"] == 2
    plan = planned(console, "requeue", "jobs")
    assert plan["count"] == 1
    assert plan["skipped"] == {"retired by their job key: a newer job has taken their place": 1}
    console.done("requeue", "jobs", "--yes")
    ran = f"SELECT string_agg(id::text, ' ' ORDER BY id) FROM {JOBS} WHERE is_available"
    assert value(console.url, ran) == f"{new} {failed}"
    left = f"SELECT attempts >= max_attempts FROM {JOBS} WHERE id = {old}"
    assert value(console.url, left) is True


def test_locked_queues_and_jobs_retried_for_days_are_findings(
    console: Console, graphile: GraphileApp
) -> None:
    graphile.add("hang", queue_name="'articles'")
    graphile.add("send", queue_name="'articles'")
    graphile.leave()
    graphile.add("send", '{"fails": true, "n": 1}')
    graphile.work()
    adopt(console, "graphile-worker")
    assert not {"queue_locked", "jobs_retrying"} & set(findings(console, "jobs"))
    graphile.run(
        """
        UPDATE _private_job_queues SET locked_at = now() - interval '1 h';
        UPDATE _private_jobs SET locked_at = now() - interval '1 h' WHERE locked_at IS NOT NULL;
        UPDATE _private_jobs SET created_at = now() - interval '3 d';
        """
    )
    found = findings(console, "jobs")
    locked = found["queue_locked"]
    assert (locked["evidence"]["queue_name"], locked["evidence"]["waiting"]) == ("articles", 1)
    assert 'SELECT "Their_Worker".force_unlock_workers(ARRAY[' in locked["judgement"]
    assert found["jobs_retrying"]["evidence"]["jobs"] == 1
    assert locked["evidence"]["locked_by"] in found["claims_unknown"]["cause"]
    assert "4 hours after they were locked" in found["claims_unknown"]["consequence"]
    assert found["claims_unknown"]["repair"] is None
    for at, seconds in (
        ("1950-01-01Z", pytest.approx(time.time() + 631152000, abs=600)),
        ("-infinity", None),
    ):
        graphile.run(f"UPDATE _private_job_queues SET locked_at = '{at}'")
        assert findings(console, "jobs")["queue_locked"]["evidence"]["seconds"] == seconds


def test_figures_that_row_security_hides_are_unknown_and_not_zero(
    console: Console, graphile: GraphileApp
) -> None:
    graphile.add("send")
    adopt(console, "graphile-worker")
    schemas = 'SCHEMA "Their_Worker", dbq TO {}'
    grants = (f"GRANT USAGE ON {schemas}", f"GRANT SELECT ON ALL TABLES IN {schemas}")
    with login(console.url, *grants) as url:
        theirs = Console(url)
        (found,) = theirs.done("status", "jobs", "--json").json["queues"]
        assert (found["ready"], found["errors"]) == (None, None)
        assert {"ready", "scheduled", "claimed", "errors"} <= set(found["unknown"])
        for words in (["messages", "jobs"], ["errors", "jobs"], ["requeue", "jobs", "--dry-run"]):
            answer = theirs(*words, "--rights", "operator")
            assert (answer.status, answer.out) == (4, b""), answer
            assert "Row security hides the jobs" in answer.err
        (examined,) = theirs("doctor", "jobs", "--idle-for", "0s", "--json").json["queues"]
        assert [one for one in examined["unseen"] if "ow security hides" in one]


def test_ids_that_run_out_in_its_private_tables_are_found(
    console: Console, graphile: GraphileApp
) -> None:
    """Each add_job draws an id of four bytes for its named queue, though that exists already."""
    adopt(console, "graphile-worker")
    for _ in range(3):
        graphile.add("send", queue_name="'one'")
    (sequence,) = graphile.rows("SELECT pg_get_serial_sequence('_private_job_queues', 'id')")
    graphile.rows("SELECT setval(CAST(%s AS regclass), 2147483640)", sequence)
    (column,) = findings(console, "jobs")["ids_nearly_used_up"]["evidence"]["columns"]
    assert column["column"] == f"{graphile.schema}._private_job_queues.id"
    assert column["left"] == 7
