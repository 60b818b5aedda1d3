"""graphile-worker's own jobs: its workers make and end them, and the console shows the same."""

import time

import pytest

from tests.cli.calls import Console
from tests.contract.libraries import adopt, findings
from tests.contract.node_libraries import GraphileApp, graphile_worker
from tests.servers import login

JOBS = '"Their_Worker"._private_jobs'


@pytest.fixture
def graphile(console: Console) -> GraphileApp:
    return graphile_worker(console.url)


def test_locked_queues_and_jobs_retried_for_days_are_findings(
    console: Console, graphile: GraphileApp
) -> None:
    graphile.add_job("hang", queue_name="'articles'")
    graphile.add_job("send", queue_name="'articles'")
    graphile.leave(1)
    graphile.add_job("send", '{"fails": true, "n": 1}')
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
    graphile.add_job("send")
    adopt(console, "graphile-worker")
    schemas = 'SCHEMA "Their_Worker", dbq TO {}'
    grants = (f"GRANT USAGE ON {schemas}", f"GRANT SELECT ON ALL TABLES IN {schemas}")
    with login(console.url, *grants) as url:
        theirs = Console(url)
        (found,) = theirs.done("status", "jobs", "--json").json["queues"]
        assert (found["ready"], found["errors"]) == (None, None)
        assert {"ready", "scheduled", "claimed", "errors"} <= set(found["unknown"])
        for words in (["messages", "jobs"], ["errors", "jobs"], ["requeue", "jobs", "--dry-run"]):
            theirs(*words, "--rights", "operator").failed(4, "Row security hides the jobs")
        (examined,) = theirs("doctor", "jobs", "--idle-for", "0s", "--json").json["queues"]
        assert [one for one in examined["unseen"] if "ow security hides" in one]


def test_ids_that_run_out_in_its_private_tables_are_found(
    console: Console, graphile: GraphileApp
) -> None:
    """Each add_job draws an id of four bytes for its named queue, though that exists already."""
    adopt(console, "graphile-worker")
    for _ in range(3):
        graphile.add_job("send", queue_name="'one'")
    (sequence,) = graphile.rows("SELECT pg_get_serial_sequence('_private_job_queues', 'id')")
    graphile.rows("SELECT setval(CAST(%s AS regclass), 2147483640)", sequence)
    (column,) = findings(console, "jobs")["ids_nearly_used_up"]["evidence"]["columns"]
    assert column["column"] == f"{graphile.schema}._private_job_queues.id"
    assert column["left"] == 7
