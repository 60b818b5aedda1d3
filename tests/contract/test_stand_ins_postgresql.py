"""Queues of libraries that cannot run here: discovered, read and acted on, on tables like theirs.

They have their own pause, which workers like theirs respect.
"""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

import pytest
from psycopg.sql import SQL, Literal
from sqlalchemy import Engine, create_engine, event

from console.engines import Database, open_database
from console.features.presets import discovery
from tests.cli.calls import Console
from tests.contract import stand_in
from tests.contract.libraries import adopt, counts, discovered, figures, findings, listed, working
from tests.contract.packages import from_pip
from tests.contract.plans import Statement
from tests.contract.stand_in import HANGFIRE, RIVER, SOLID_QUEUE, StandIn
from tests.servers import Server, connect, fresh_database, value, wait_until

PACKAGE = "riverqueue==0.7.0"
REQUIRES = "greenlet>=3,<4"
"""It imports SQLAlchemy's asyncio, which needs this."""


class Send:
    """A job's arguments, as its client requires them."""

    kind = "send"

    def __init__(self, n: int) -> None:
        self.n = n

    def to_json(self) -> str:
        return json.dumps({"n": self.n})


@pytest.fixture
def river(console: Console, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Its package, with a `client` on tables like its own."""
    monkeypatch.syspath_prepend(from_pip(PACKAGE, REQUIRES))
    StandIn(console.url, "Theirs").create(RIVER)
    riverqueue: Any = import_module("riverqueue")
    engine = create_engine(console.url, connect_args={"options": '-c search_path="Theirs"'})
    driver = import_module("riverqueue.driver.riversqlalchemy").Driver(engine)
    riverqueue.client = riverqueue.Client(driver)
    yield riverqueue
    engine.dispose()


@pytest.mark.long
def test_jobs_of_rivers_own_client_are_shown_as_it_reports_them(
    console: Console, river: Any
) -> None:
    mail, report = river.InsertOpts(queue="mail"), river.InsertOpts(queue="report")
    later = river.InsertOpts(queue="mail", scheduled_at=datetime.now(UTC) + timedelta(hours=1))
    jobs = [river.client.insert(Send(n), insert_opts=mail).job for n in range(3)]
    jobs.append(river.client.insert(Send(3), insert_opts=later).job)
    many = [river.InsertManyParams(Send(n), insert_opts=report) for n in (4, 5)]
    assert river.client.insert_many(many) == 2
    theirs = stand_in.River(console.url)
    # Its clients in Go register the queues that they work on; none is running here.
    theirs.run("INSERT INTO river_queue (name) VALUES ('mail'), ('report')")

    found = discovered(console, "river")
    assert found["queues"] == ["mail", "report"]
    for command in found["commands"]:
        console.done(*command.split()[1:])
    assert [str(job.state) for job in jobs] == ["available"] * 3 + ["scheduled"]
    assert figures(console, "mail") == counts(3, 1, 0, 0, 0, 0)
    assert figures(console, "report") == counts(2, 0, 0, 0, 0, 0)
    assert figures(console, "river_job") == counts(5, 1, 0, 0, 0, 0)
    (message,) = listed(console, "mail", "--state", "scheduled", "--payload")
    assert (message["id"], message["title"]) == (str(jobs[3].id), jobs[3].kind)
    assert json.loads(message["payload"]) == jobs[3].args == {"n": 3}
    assert datetime.fromisoformat(message["due_at"]) == jobs[3].scheduled_at

    # Once they have failed they can be retried, with attempts counted as the client set them.
    fails = "UPDATE river_job SET state = 'discarded', attempt = max_attempts, finalized_at = now()"
    theirs.run(f"{fails} WHERE queue = 'report'")
    assert figures(console, "report") == counts(0, 0, 0, 0, 2, 0)
    theirs.note_runs()
    with theirs.working(), theirs.working():
        console.done("requeue", "report", "--yes")
        over = counts(0, 1, 0, 0, 0, 5)
        wait_until(lambda: figures(console, "river_job") == over, "all were run")
    assert [*theirs.runs().values()] == [1] * 5
    tries = "SELECT DISTINCT max_attempts FROM river_job WHERE queue = 'report'"
    assert theirs.rows(tries) == [(river.MAX_ATTEMPTS_DEFAULT + 1,)]


@pytest.fixture
def theirs(console: Console) -> StandIn:
    return StandIn(console.url, "Theirs")


def test_discover_adopts_all_that_it_found_after_the_plan(
    console: Console, theirs: StandIn
) -> None:
    theirs.create(RIVER + SOLID_QUEUE + HANGFIRE)
    planned = console("discover", "--adopt")
    assert planned.status == 4
    assert "adopt Theirs.river_job as river_job" in planned.out.decode()
    assert console.done("discover", "--adopt", "--dry-run", "--json").json["adopts"] == [
        *("job", "river_job", "solid_queue_jobs")
    ]
    assert console.done("status", "--json").json["queues"] == []
    console.done("discover", "--adopt", "--yes")
    found = console.done("status", "--json").json["queues"]
    assert {one["queue"] for one in found} == {"job", "river_job", "solid_queue_jobs"}
    assert "already adopted" in console.done("discover", "--adopt", "--yes").text
    assert console("discover", "--yes").status == 2


TABLES = 500
_MAKE = """
DO $$ BEGIN
    FOR n IN 1..{} LOOP
        EXECUTE format('CREATE TABLE app_%s (id bigint, name text, status text, payload jsonb,
            queue text, created_at timestamptz, attempts int, max_tries int)', n);
    END LOOP;
END $$
"""


@pytest.fixture
def database(server: Server) -> Iterator[Database]:
    with fresh_database(server.url) as url, closing(open_database(url)) as database:
        with connect(url) as connection:
            connection.execute(SQL(_MAKE).format(Literal(TABLES)))
            connection.execute(b"ANALYZE pg_catalog.pg_attribute, pg_catalog.pg_class")
        yield database


CODE_OF_OTHERS = {
    "pg_cast",
    "pg_inherits",
    "pg_proc",
    "pg_statistic_ext",
    "pg_type",
    "pg_authid",
    "pg_class",
}
"""Small relations of the server's catalog."""


def test_one_pass_over_the_catalog_finds_all_tables_with_the_columns_of_a_preset(
    database: Database,
) -> None:
    url = database.url.render_as_string(hide_password=False)
    theirs = StandIn(url, "Theirs")
    theirs.create(RIVER + SOLID_QUEUE + HANGFIRE)
    sent: list[tuple[str, Any]] = []

    def record(*called: Any) -> None:
        sent.append((called[2].removeprefix("/* dbq ").partition(" ")[0], called[2:4]))

    discovery.discover(database)
    event.listen(Engine, "before_cursor_execute", record)
    try:
        tables = discovery.discover(database)
    finally:
        event.remove(Engine, "before_cursor_execute", record)

    versions = {"hangfire": "23", "river": "7", "solid-queue": None}
    assert {table.of.name: table.version for table in tables} == versions
    labels = sorted(label for label, _ in sent if not label.startswith("catalog."))
    each = ["hangfire.queues", "river.queues", "preset.queues"]
    assert labels == sorted(
        [*each, *["preset.find"] * 3, "preset.recognised", *["preset.version"] * 3]
    )
    # The statement that checks every table reads their columns once and returns few rows; the
    # others look up one table by its name.
    sizes = "SELECT pg_relation_size('pg_attribute') / current_setting('block_size')::int"
    pages = int(str(value(url, sizes)))
    for label, (statement, parameters) in sent:
        if label not in {"preset.recognised", "preset.find"}:
            continue
        with database.transaction("explain", read_only=True) as connection:
            explain = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {statement}"
            (plan,) = connection.exec_driver_sql(explain, parameters).scalars().one()
        found_by = Statement(statement, plan["Plan"])
        read = found_by.sequential() - {"pg_namespace"}
        assert found_by.buffers < pages + 300, plan
        if label == "preset.find":
            # To a superuser: also what reading such a table would run, for all tables at once.
            assert read <= {"pg_attribute", *CODE_OF_OTHERS}, plan
            continue
        assert read == {"pg_attribute"}, plan
        scans = [node for node in found_by.nodes() if node["Node Type"] == "Seq Scan"]
        assert sum(scan["Actual Rows"] for scan in scans) < 60, json.dumps(plan)
    theirs.run("ALTER TABLE river_job DROP COLUMN kind")
    assert {table.of.name for table in discovery.discover(database)} == {"hangfire", "solid-queue"}


@contextmanager
def river_client(theirs: StandIn, queue: str, ran: Counter[str]) -> Iterator[None]:
    """Takes jobs of the queue until notified that it is paused: like producer.go, which reads
    paused_at once at its start and then listens."""
    with connect(theirs.url) as connection:
        connection.execute(b'SET search_path = "Theirs"')
        connection.execute(b'LISTEN "Theirs.river_control"')
        found = connection.execute(
            "SELECT paused_at IS NOT NULL FROM river_queue WHERE name = %s", [queue]
        )
        ((paused,),) = found.fetchall()

        def step() -> None:
            nonlocal paused
            for notification in connection.notifies(timeout=0.01, stop_after=1):
                event = json.loads(notification.payload)
                if event["queue"] in {"*", queue}:
                    paused = event["action"] == "pause"
            if not paused:
                taken = connection.execute(
                    "UPDATE river_job SET state = 'completed', finalized_at = now() WHERE id = ("
                    "SELECT id FROM river_job WHERE state = 'available' AND queue = %s "
                    "LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id",
                    [queue],
                )
                ran[queue] += len(taken.fetchall())

        with working(step):
            yield


def add_river(theirs: StandIn, queue: str, number: int) -> None:
    theirs.run(f"INSERT INTO river_job (queue) SELECT '{queue}' FROM generate_series(1, {number})")


@pytest.mark.long
def test_clients_of_river_are_notified_of_a_pause_and_wait(
    console: Console, theirs: StandIn
) -> None:
    theirs.create(RIVER)
    theirs.run("INSERT INTO river_queue (name) VALUES ('mail'), ('report')")
    for name in ("mail", "report"):
        console.done("adopt", name, "--preset", "river", "--queue", name)
    ran: Counter[str] = Counter()
    with river_client(theirs, "mail", ran), river_client(theirs, "report", ran):
        for name in ("mail", "report"):
            add_river(theirs, name, 3)
        wait_until(lambda: ran == {"mail": 3, "report": 3}, "both work")
        plan = console("pause", "mail")
        assert (plan.status, "QueuePause" in plan.text) == (4, True)
        console.done("pause", "mail", "--reason", "bad release", "--yes", "mail")
        assert console("pause", "mail", "--yes", "mail").status == 2
        (decision,) = console.status("mail")["decisions"]
        assert (decision["kind"], decision["reason"]) == ("pause", "bad release")
        paused = theirs.rows("SELECT name FROM river_queue WHERE paused_at IS NOT NULL")
        assert paused == [("mail",)]
        for name in ("mail", "report"):
            add_river(theirs, name, 3)
        wait_until(lambda: ran["report"] == 6, "the other one works")
        assert ran["mail"] == 3
        # A client that starts during the pause reads it from the table.
        with river_client(theirs, "mail", ran):
            console.done("resume", "mail", "--yes")
            wait_until(lambda: ran["mail"] == 6, "it goes on")
    assert ran == {"mail": 6, "report": 6}
    assert console.status("mail")["decisions"] == []
    assert theirs.rows("SELECT name FROM river_queue WHERE paused_at IS NOT NULL") == []


def test_all_of_rivers_queues_are_paused_at_once(console: Console, theirs: StandIn) -> None:
    theirs.create(RIVER)
    adopt(console, "river")
    console("pause", "jobs", "--yes", "jobs").failed(4, "River knows no such queue")
    theirs.run("INSERT INTO river_queue (name) VALUES ('mail'), ('report')")
    with connect(theirs.url) as listener:
        listener.execute(b'LISTEN "Theirs.river_control"')
        for verb in ("pause", "resume"):
            console.done(verb, "jobs", "--yes", "jobs")
            (notification,) = listener.notifies(timeout=60, stop_after=1)
            assert json.loads(notification.payload) == {"action": verb, "queue": "*"}
            (paused,) = theirs.rows("SELECT count(paused_at) FROM river_queue")
            assert paused == (2 if verb == "pause" else 0,)
    assert console("resume", "jobs", "--yes").status == 2


@pytest.mark.long
def test_workers_of_solid_queue_take_nothing_of_a_paused_queue(console: Console) -> None:
    theirs = stand_in.SolidQueue(console.url)
    theirs.create(SOLID_QUEUE)
    theirs.note_runs()
    theirs.run(
        "INSERT INTO solid_queue_jobs (queue_name) SELECT CASE WHEN n > 5 THEN 'report' "
        "ELSE 'mail' END FROM generate_series(1, 10) AS n"
    )
    adopt(console, "solid-queue", "mail")
    console("pause", "jobs", "--yes", "jobs").failed(4, "--queue")
    console.done("pause", "mail", "--yes", "mail")
    theirs.run(
        "INSERT INTO solid_queue_ready_executions (job_id, queue_name, created_at) "
        "SELECT id, queue_name, created_at FROM solid_queue_jobs"
    )
    with theirs.working():
        wait_until(lambda: len(theirs.runs()) == 5, "it works on the other queue")
        left = theirs.rows("SELECT count(*) FROM solid_queue_ready_executions")
        assert (left, min(map(int, theirs.runs()))) == ([(5,)], 6)
        console.done("resume", "mail", "--yes")
        wait_until(lambda: len(theirs.runs()) == 10, "it goes on")


def test_a_pause_by_the_librarys_own_tools_is_a_finding(console: Console, theirs: StandIn) -> None:
    theirs.create(SOLID_QUEUE)
    console.done("adopt", "mail", "--preset", "solid-queue", "--queue", "mail")
    assert not findings(console, "mail").keys() & {"paused_elsewhere", "pause_undone"}
    theirs.run("INSERT INTO solid_queue_pauses (queue_name, created_at) VALUES ('mail', now())")
    assert "paused_elsewhere" in findings(console, "mail")
    assert "it has been paused there since" in console("pause", "mail").text
    console.done("pause", "mail", "--yes", "mail")
    assert "paused_elsewhere" not in findings(console, "mail")
    theirs.run("DELETE FROM solid_queue_pauses")
    assert "pause_undone" in findings(console, "mail")
    console.done("resume", "mail", "--yes")
    assert "pause_undone" not in findings(console, "mail")


def test_a_job_of_solid_queue_has_one_state(console: Console, theirs: StandIn) -> None:
    """As its own Job#status has it, whatever executions a job was left with."""
    theirs.create(SOLID_QUEUE)
    theirs.run(
        """
        INSERT INTO solid_queue_jobs (arguments) SELECT '{}' FROM generate_series(1, 4);
        UPDATE solid_queue_jobs SET finished_at = timezone('UTC', now()) WHERE id = 1;
        INSERT INTO solid_queue_failed_executions (job_id, error, created_at)
        SELECT id, '{"message": "no"}', now() FROM solid_queue_jobs;
        INSERT INTO solid_queue_ready_executions (job_id, queue_name, created_at)
        VALUES (2, 'mail', now()), (1, 'mail', now());
        INSERT INTO solid_queue_claimed_executions (job_id, created_at) VALUES (3, now());
        INSERT INTO solid_queue_blocked_executions (job_id, queue_name, created_at)
        VALUES (4, 'mail', now());
        """
    )
    adopt(console, "solid-queue")
    assert figures(console, "jobs") == counts(1, 0, 1, 1, 1, 1)
    states = {message["id"]: message["state"] for message in listed(console, "jobs")}
    assert states == {"1": "done", "2": "ready", "3": "claimed", "4": "error"}
    assert len(listed(console, "jobs")) == 4


ARGUMENTS = (
    r'{"arguments":[{"z":1e22,"a":"\u0000 \\u0000","executions":7}],"executions":3,'
    r'"exception_executions":{"[IOError]":3},"locale":"\ud83d"}'
)


def test_json_that_no_cast_takes_blocks_no_job_of_solid_queue(
    console: Console, theirs: StandIn
) -> None:
    """Shown as it is written; and a requeue changes nothing but the two counters."""
    untouched = r'{"b": 1e22, "a": "\u0000", "executions": 0, "exception_executions": {}}'
    broken = '{"executions": 1, broken'
    theirs.create(SOLID_QUEUE)
    errors = [
        r'{"exception_class":"IOError","message":"bad \u0000 \ud83d \u00e9"}',
        "no JSON",
        r'{"exception_class": "E", "message": "two"}',
    ]
    for arguments, error in zip((ARGUMENTS, broken, untouched), errors, strict=True):
        theirs.rows(
            """
            WITH job AS (INSERT INTO solid_queue_jobs (arguments) VALUES (%s) RETURNING id)
            INSERT INTO solid_queue_failed_executions (job_id, error, created_at)
            SELECT id, %s, now() FROM job
            """,
            [arguments, error],
        )
    adopt(console, "solid-queue")
    shown = {one["id"]: one["error"] for one in listed(console, "jobs", "--payload")}
    assert shown == {"1": r"IOError: bad \u0000 \ud83d é", "2": "no JSON", "3": "E: two"}
    assert console("errors", "jobs").status == 0
    result = console("requeue", "jobs", "--yes", "--json").json["result"]
    assert (result["done"], sum(result["failed"].values())) == (2, 1)
    assert [why.startswith("message 2: ") for why in result["failed"]] == [True]
    assert figures(console, "jobs") == counts(2, 0, 0, 0, 1, 0)
    changed = ARGUMENTS.replace('"executions":3', '"executions":0')
    changed = changed.replace('{"[IOError]":3}', "{}")
    assert [
        one for (one,) in theirs.rows("SELECT arguments FROM solid_queue_jobs ORDER BY id")
    ] == [*(changed, broken, untouched)]


def test_texts_in_the_state_of_a_hangfire_job_end_no_statement(
    console: Console, theirs: StandIn
) -> None:
    """Its data is a text in older versions."""
    theirs.create(HANGFIRE)
    theirs.run("ALTER TABLE state ALTER data TYPE text")
    for data in (
        "no JSON",
        r'{"EnqueueAt": "\u0000"}',
        '{"EnqueueAt": "2026-02-30T00:00:00Z"}',
        None,
    ):
        theirs.rows(
            """
            WITH job AS (INSERT INTO job (statename) VALUES ('Scheduled') RETURNING id),
            state AS (INSERT INTO state (jobid, name, data) SELECT id, 'Scheduled', %s FROM job
                RETURNING id, jobid)
            SELECT * FROM state
            """,
            [data],
        )
    theirs.rows("UPDATE job SET stateid = (SELECT s.id FROM state AS s WHERE s.jobid = job.id)")
    theirs.rows(
        """UPDATE state SET data = '{"EnqueueAt": "2026-03-01T00:00:00Z"}' WHERE data IS NULL"""
    )
    adopt(console, "hangfire")
    due = [one["due_at"] for one in listed(console, "jobs")]
    assert due == [None, None, None, "2026-03-01T00:00:00+00:00"]
