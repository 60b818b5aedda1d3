"""Oban's own jobs: its statements make and end them, and the console shows the same."""

from collections import Counter

import pytest

from tests.cli.calls import Console
from tests.contract.libraries import (
    adopt,
    counts,
    discovered,
    error_group,
    figures,
    listed,
    planned,
)
from tests.contract.oban_library import ObanApp, installed
from tests.servers import value

JOBS = "their_oban.oban_jobs"


@pytest.fixture
def oban(console: Console) -> ObanApp:
    return ObanApp(console.url, "their_oban", installed())


def filled(oban: ObanApp) -> None:
    oban.insert("mail", 7)
    oban.insert("mail", 2, later=True)
    oban.insert("report", 3)
    producer = oban.begin("mail")
    first, second, third = producer.fetch(3)
    producer.end(first, "completed")
    producer.end(second, "discarded", "no host 8")
    oban.execute("cancel_many_jobs", ids=[producer.fetch(1)[0][0]])
    oban.execute("cancel_many_jobs", ids=oban.insert("mail", 1))
    assert third[1] == "executing"


@pytest.mark.long
def test_job_counts_equal_those_of_oban(console: Console, oban: ObanApp) -> None:
    oban.install()
    filled(oban)
    assert discovered(console, "oban")["queues"] == ["mail", "report"]
    # Elixir's migrations store the version in a comment on the table; Python's do not.
    for comment, version in ((None, None), ("'14'", "14"), ("'jobs of 2 shops'", None)):
        if comment:
            oban.run(f"COMMENT ON TABLE oban_jobs IS {comment}")
        assert discovered(console, "oban")["version"] == version
        version_shown = "oban_jobs, table version 14" in console.done("discover").text
        assert version_shown == (version is not None)
    adopt(console, "oban", "mail", "report")
    theirs: Counter[tuple[str, str]] = Counter()
    every = ["available", "scheduled", "retryable", "executing", "discarded", "completed"]
    for state, queue, number in oban.execute("count_jobs", states=every):
        theirs[queue, state] += number
        theirs["jobs", state] += number
    for name in ("jobs", "mail", "report"):
        scheduled = theirs[name, "scheduled"] + theirs[name, "retryable"]
        assert figures(console, name) == counts(
            theirs[name, "available"],
            scheduled,
            theirs[name, "executing"],
            0,
            theirs[name, "discarded"],
            theirs[name, "completed"],
        )
    assert theirs["jobs", "executing"] == 2
    assert error_group(console, "mail") == (1, "no host 8")


def test_only_jobs_of_a_dead_producer_are_rescued(console: Console, oban: ObanApp) -> None:
    oban.install()
    oban.insert("mail", 6)
    oban.run("UPDATE oban_jobs SET max_attempts = 5 WHERE id % 3 > 0")
    dead, alive = oban.begin("mail"), oban.begin("mail")
    left = [job[0] for job in dead.fetch(3)]
    alive.fetch(3)
    oban.run("UPDATE oban_jobs SET attempted_at = attempted_at - interval '1 h'")
    oban.execute("delete_producer", uuid=dead.uuid)
    adopt(console, "oban")
    assert figures(console, "jobs")["stuck"] == 6
    (examined,) = console("doctor", "jobs", "--json").json["queues"]
    assert "claims_gone" in {one["code"] for one in examined["findings"]}
    plan = console.done("release", "jobs", "--dry-run").text
    assert "skipped: 3 their owner is alive" in plan
    console.done("release", "jobs", "--yes")
    states = f"SELECT string_agg(id || ' ' || state, ', ' ORDER BY id) FROM {JOBS} WHERE id < 4"
    assert value(console.url, states) == "1 available, 2 available, 3 discarded"
    assert left == [1, 2, 3]
    assert value(console.url, f"SELECT meta ->> 'rescued' FROM {JOBS} WHERE id = 1") == "1"


@pytest.mark.long
def test_elixirs_tables_are_monitored_and_acted_on(console: Console, oban: ObanApp) -> None:
    oban.install(elixir=True)
    oban.insert("mail", 3)
    oban.run(
        """
        UPDATE oban_jobs SET state = 'executing', attempt = 1, attempted_at = timezone('UTC',
            now() - interval '1 h'),
            attempted_by = '{node@host,uuid}' WHERE id = 1;
        UPDATE oban_jobs SET state = 'discarded', attempt = 1, discarded_at = timezone('UTC',
            now()),
            errors = ARRAY['{"attempt": 1, "at": "2026-01-01T00:00:00Z",
                "error": "no host 9"}']::jsonb[] WHERE id = 2;
        """
    )
    adopt(console, "oban")
    assert figures(console, "jobs") == counts(1, 0, 1, 1, 1, 0)
    (error,) = listed(console, "jobs", "--state", "error")
    assert error["error"] == "no host 9"
    console.done("requeue", "jobs", "--yes")
    assert value(console.url, f"SELECT meta FROM {JOBS} WHERE id = 2") == {}
    assert planned(console, "release", "jobs")["count"] == 0
    console.done("release", "jobs", "--unknown", "--yes")
    assert figures(console, "jobs") == counts(2, 0, 0, 0, 1, 0)
