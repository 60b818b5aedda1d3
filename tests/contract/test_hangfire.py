"""Hangfire's queues on each of its engines, in tables like its own."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from console.engines import Database, open_database
from tests.cli.calls import Console
from tests.contract.libraries import adopt, counts, discovered, figures, findings, listed
from tests.contract.stand_in import HANGFIRE, HANGFIRE_MSSQL, StandIn
from tests.servers import fresh_database, fresh_mssql_database, url_of


@dataclass(frozen=True)
class HangfireTables:
    """Its tables in the schema `theirs`."""

    database: Database

    @property
    def is_postgresql(self) -> bool:
        return self.database.product.name == "postgresql"

    def run(self, *statements: str) -> None:
        with self.database.transaction("be Hangfire") as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    def install(self) -> None:
        url = self.database.url.render_as_string(hide_password=False)
        if self.is_postgresql:
            StandIn(url, "theirs").create(HANGFIRE)
        else:
            self.run("CREATE SCHEMA theirs", HANGFIRE_MSSQL.format(schema="theirs"))
            self.run('INSERT INTO theirs."schema" (version) VALUES (9)')

    def ago(self, seconds: float) -> str:
        """A literal for that time in its columns, which are UTC."""
        moment = datetime.now(UTC) - timedelta(seconds=seconds)
        return f"'{moment:%Y-%m-%dT%H:%M:%S}{'+00' if self.is_postgresql else ''}'"

    def job(self, id_: int, *states: tuple[str, float, dict[str, str]]) -> None:
        """Insert a job that entered each state the given seconds ago, and is in the last one."""
        last, number = states[-1], id_ * 10
        rows = ", ".join(
            f"({number + at}, {id_}, '{name}', {self.ago(seconds)}, '{json.dumps(data)}')"
            for at, (name, seconds, data) in enumerate(states)
        )
        state = number + len(states) - 1
        self.run(
            "INSERT INTO theirs.job (id, stateid, statename, createdat) "
            f"VALUES ({id_}, {state}, '{last[0]}', {self.ago(states[0][1])})",
            f"INSERT INTO theirs.state (id, jobid, name, createdat, data) VALUES {rows}",
        )

    def count(self, state: str) -> int:
        """Count jobs as its GetStatistics does."""
        query = f"SELECT count(id) FROM theirs.job WHERE statename = '{state}'"
        with self.database.transaction("count", read_only=True) as connection:
            return int(connection.exec_driver_sql(query).scalar_one())


@pytest.fixture
def theirs(request: pytest.FixtureRequest, database: Database) -> Iterator[HangfireTables]:
    """Its tables in a database of this test only."""
    here = fresh_database if database.product.name == "postgresql" else fresh_mssql_database
    server = (
        request.getfixturevalue("server").url
        if database.product.name == "postgresql"
        else url_of(database.product.name)
    )
    with here(server) as url:
        alone = open_database(url)
        try:
            found = HangfireTables(alone)
            found.install()
            yield found
        finally:
            alone.close()


@pytest.fixture
def console(theirs: HangfireTables) -> Console:
    return Console(theirs.database.url.render_as_string(hide_password=False))


def queued(queue: str = "mail", ago: float = 7200) -> tuple[str, float, dict[str, str]]:
    return ("Enqueued", ago, {"Queue": queue})


def test_jobs_are_shown_as_hangfire_counts_them(console: Console, theirs: HangfireTables) -> None:
    for number, queue in ((1, "mail"), (2, "mail"), (3, "report")):
        theirs.job(number, queued(queue))
    theirs.job(4, ("Scheduled", 3600, {"EnqueueAt": "2100-01-01T00:00:00.0000000Z"}))
    theirs.job(5, queued(), ("Scheduled", 3600, {"EnqueueAt": "4102444800000"}))
    theirs.job(6, queued(), ("Awaiting", 3600, {"ParentId": "5"}))
    for number, server in ((7, "alive"), (8, "silent"), (9, "struck off")):
        theirs.job(number, queued(), ("Processing", 3600, {"ServerId": server}))
    long = "no host 7" + "." * 5000
    error_data = {"ExceptionType": "System.IO.IOException", "ExceptionMessage": long}
    theirs.job(10, queued(), ("Failed", 60, error_data))
    theirs.job(11, queued("report"), ("Succeeded", 60, {}))
    theirs.job(12, queued(), ("Deleted", 60, {}))
    theirs.run(
        "INSERT INTO theirs.jobqueue (id, jobid, queue) VALUES (1, 1, 'mail'), (2, 2, 'mail'), "
        "(3, 3, 'report')",
        f"INSERT INTO theirs.jobqueue (id, jobid, queue, fetchedat) "
        f"VALUES (4, 7, 'mail', {theirs.ago(10)})",
        "INSERT INTO theirs.server (id, lastheartbeat) "
        f"VALUES ('alive', {theirs.ago(5)}), ('silent', {theirs.ago(3600)})",
    )
    found = discovered(console, "hangfire")
    assert found["version"] == ("23" if theirs.is_postgresql else "9")
    assert (found["schema"], found["queues"]) == ("theirs", ["mail", "report"])
    adopt(console, "hangfire", "mail")

    states = ("Enqueued", "Scheduled", "Awaiting", "Processing", "Failed", "Succeeded")
    own = {state: theirs.count(state) for state in states}
    scheduled = own["Scheduled"] + own["Awaiting"]
    assert (own["Enqueued"], scheduled, own["Processing"]) == (3, 3, 3)
    assert figures(console, "jobs") == counts(3, 3, 3, 2, own["Failed"], own["Succeeded"])
    assert figures(console, "mail") == counts(2, 2, 3, 2, 1, 0)
    claims = {one["id"]: one["claimed_by"] for one in listed(console, "jobs", "--state", "claimed")}
    assert claims == {"7": "alive", "8": "silent", "9": "struck off"}
    owners = {one["id"]: one["owner"] for one in console.status("jobs")["claims"]}
    assert owners == {"7": "alive", "8": "gone", "9": "gone"}
    due = {one["id"]: one["due_at"] for one in listed(console, "jobs", "--state", "scheduled")}
    assert due == {**dict.fromkeys("45", "2100-01-01T00:00:00+00:00"), "6": None}
    (group,) = console.done("errors", "jobs", "--json").json["groups"]
    assert group["sample"].startswith("System.IO.IOException: no host 7.")
    assert {one["title"] for one in listed(console, "jobs")} == {"Send"}
    assert "claims_gone" in findings(console, "jobs")
    for verb, words in {
        **dict.fromkeys(("requeue", "release"), "BackgroundJob.Requeue"),
        "purge": "BackgroundJob.Delete",
    }.items():
        console(verb, "jobs", "--yes", "jobs").failed(4, words)


def test_waiting_starts_when_a_job_was_last_enqueued(
    console: Console, theirs: HangfireTables
) -> None:
    for number in range(1, 22):
        taken = ("Processing", 5, {"ServerId": "s"})
        theirs.job(number, queued(ago=9000), queued(ago=3605), taken)
    adopt(console, "hangfire")
    waiting = console.status("jobs")["latency"]["waiting"]
    assert waiting["messages"] == 21
    assert 3599 <= waiting["p50_seconds"] <= 3601
