"""Oban's own jobs: its statements make and end them, and the console shows the same."""

import pytest

from tests.cli.calls import Console
from tests.contract.libraries import adopt, counts, discovered, figures, listed, planned
from tests.contract.oban_library import ObanApp, installed
from tests.servers import value

JOBS = "their_oban.oban_jobs"


@pytest.fixture
def oban(console: Console) -> ObanApp:
    return ObanApp(console.url, "their_oban", installed())


def test_the_version_of_its_tables_is_read_from_their_comment(
    console: Console, oban: ObanApp
) -> None:
    """Elixir's migrations store it there; Python's do not."""
    oban.install()
    for comment, version in ((None, None), ("'14'", "14"), ("'jobs of 2 shops'", None)):
        if comment:
            oban.run(f"COMMENT ON TABLE oban_jobs IS {comment}")
        assert discovered(console, "oban")["version"] == version
        version_shown = "oban_jobs, table version 14" in console.done("discover").text
        assert version_shown == (version is not None)


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
