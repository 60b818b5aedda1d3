"""graphile-worker's own jobs: its workers make and end them, and the console tells the same."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import make_url

from tests.cli.calls import Console
from tests.contract.at_work_graphile import GraphileAtWork
from tests.contract.fetched import from_npm
from tests.contract.figures import counts, figures, sampled_error
from tests.servers import Server, fresh_database, value, wait_until

JOBS = '"Their_Worker"._private_jobs'


@pytest.fixture(scope="module")
def its_tables(server: Server) -> Iterator[GraphileAtWork]:
    with fresh_database(server.url) as url:
        at_work = GraphileAtWork(url, from_npm("graphile-worker"))
        at_work.install()
        yield at_work


@pytest.fixture
def graphile(its_tables: GraphileAtWork) -> GraphileAtWork:
    """Its tables, with no jobs yet."""
    its_tables.empty()
    return its_tables


@pytest.fixture
def console(graphile: GraphileAtWork) -> Console:
    """The command line on its database."""
    return Console(graphile.url)


def findings(console: Console, name: str) -> dict[str, dict[str, Any]]:
    (examined,) = console("doctor", name, "--idle-for", "0s", "--json").json["queues"]
    return {one["code"]: one for one in examined["findings"]}


@pytest.mark.long
def test_its_jobs_are_found_and_told_as_they_are(
    console: Console, graphile: GraphileAtWork
) -> None:
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
    # Its retry is due after some seconds, which a busy machine takes for what comes.
    later = "UPDATE _private_jobs SET run_at = now() + interval '1 h' WHERE attempts < max_attempts"
    graphile.run(later)
    for _ in range(2):
        graphile.add("send")
    graphile.add("report")
    graphile.add("send", run_at="now() + interval '1 h'")
    (found,) = console.done("discover", "--json").json["found"]
    assert (found["preset"], found["queues"]) == ("graphile-worker", ["hang", "report", "send"])
    assert int(found["version"]) >= 18
    console.done("adopt", "jobs", "--preset", "graphile-worker")
    console.done("adopt", "send", "--preset", "graphile-worker", "--queue", "send")
    assert figures(console, "jobs") == counts(3, 2, 0, 0, 1, None)
    assert figures(console, "send") == counts(2, 2, 0, 0, 1, None)
    assert sampled_error(console, "send") == (1, "no host 8")
    (error,) = console.done("messages", "jobs", "--state", "error", "--json").json["messages"]
    failed = datetime.fromisoformat(error["done_at"])
    assert before - timedelta(seconds=5) <= failed <= datetime.now(UTC) + timedelta(seconds=5)
    answer = console("release", "jobs", "--yes")
    assert answer.status == 4
    assert 'SELECT "Their_Worker".force_unlock_workers' in answer.err
    console.done("requeue", "send", "--yes")
    assert figures(console, "jobs")["errors"] == 0
    assert value(console.url, f"SELECT count(*) FROM {JOBS} WHERE is_available") == 6


@pytest.mark.long
def test_what_failed_is_rescheduled_once_each_under_its_workers(
    console: Console, graphile: GraphileAtWork
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
    console.done("adopt", "jobs", "--preset", "graphile-worker")
    assert figures(console, "jobs")["errors"] == 40
    with graphile.working(), graphile.working():
        console.done("requeue", "jobs", "--yes")
        left = f"SELECT count(*) FROM {JOBS}"
        wait_until(lambda: value(console.url, left) == 0, "its workers ran what was rescheduled")
    ran = "SELECT count(*) || ' ' || count(DISTINCT n) FROM public.ran"
    assert value(console.url, ran) == "40 40"


@pytest.mark.long
def test_a_job_that_the_library_retired_by_its_key_is_not_run_again(
    console: Console, graphile: GraphileAtWork
) -> None:
    old = graphile.add("hang", '{"price": 1}', job_key="'article'")
    graphile.leave()
    new = graphile.add("hang", '{"price": 2}', job_key="'article'")
    graphile.run("SELECT force_unlock_workers(array_agg(locked_by)) FROM _private_jobs")
    failed = graphile.add("send", '{"fails": true, "n": 1}', max_attempts="1")
    graphile.run(f"UPDATE _private_jobs SET run_at = now() + interval '1 h' WHERE id = {new}")
    graphile.work()
    console.done("adopt", "jobs", "--preset", "graphile-worker")
    assert figures(console, "jobs")["errors"] == 2
    plan = console.done("requeue", "jobs", "--dry-run", "--json").json["plan"]
    assert plan["count"] == 1
    assert plan["left_alone"] == {"retired by their job key: a newer job has taken their place": 1}
    console.done("requeue", "jobs", "--yes")
    ran = f"SELECT string_agg(id::text, ' ' ORDER BY id) FROM {JOBS} WHERE is_available"
    assert value(console.url, ran) == f"{new} {failed}"
    left = f"SELECT attempts >= max_attempts FROM {JOBS} WHERE id = {old}"
    assert value(console.url, left) is True


def test_what_a_killed_worker_leaves_and_what_is_tried_for_days_are_findings(
    console: Console, graphile: GraphileAtWork
) -> None:
    graphile.add("hang", queue_name="'articles'")
    graphile.add("send", queue_name="'articles'")
    graphile.leave()
    graphile.add("send", '{"fails": true, "n": 1}')
    graphile.work()
    console.done("adopt", "jobs", "--preset", "graphile-worker")
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


def test_rows_that_row_security_hides_are_not_told_as_none(
    console: Console, graphile: GraphileAtWork
) -> None:
    graphile.add("send")
    console.done("adopt", "jobs", "--preset", "graphile-worker")
    role = "dbq_test_hidden"
    graphile.run(
        f"""
        DROP ROLE IF EXISTS {role};
        CREATE ROLE {role} LOGIN PASSWORD 'x';
        GRANT USAGE ON SCHEMA "Their_Worker", dbq TO {role};
        GRANT SELECT ON ALL TABLES IN SCHEMA "Their_Worker", dbq TO {role};
        """
    )
    url = make_url(console.url).set(username=role, password="x")
    theirs = Console(url.render_as_string(hide_password=False))
    try:
        (found,) = theirs.done("status", "jobs", "--json").json["queues"]
        assert (found["ready"], found["errors"]) == (None, None)
        assert {"ready", "scheduled", "claimed", "errors"} <= set(found["unknown"])
        for words in (["messages", "jobs"], ["errors", "jobs"], ["requeue", "jobs", "--dry-run"]):
            answer = theirs(*words, "--rights", "operator")
            assert (answer.status, answer.out) == (4, b""), answer
            assert "Row security hides the jobs" in answer.err
        (examined,) = theirs("doctor", "jobs", "--idle-for", "0s", "--json").json["queues"]
        assert [one for one in examined["unseen"] if "ow security hides" in one]
    finally:
        graphile.run(f"DROP OWNED BY {role}; DROP ROLE {role};")
