"""A pause of what a library keeps is its own: read by workers that do as its own do."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cli.calls import Console
from tests.contract import stand_in
from tests.contract.libraries import adopt, findings, working
from tests.contract.stand_in import RIVER, SOLID_QUEUE, StandIn
from tests.servers import connect, wait_until


@pytest.fixture
def theirs(console: Console) -> StandIn:
    return StandIn(console.url, "Theirs")


@contextmanager
def river_client(theirs: StandIn, queue: str, ran: Counter[str]) -> Iterator[None]:
    """Takes jobs of the queue, as long as it was not told that this is paused: as producer.go does
    it, which reads paused_at once, when it begins, and listens from then on."""
    with connect(theirs.url) as connection:
        connection.execute(b'SET search_path = "Theirs"')
        connection.execute(b'LISTEN "Theirs.river_control"')
        found = connection.execute(
            "SELECT paused_at IS NOT NULL FROM river_queue WHERE name = %s", [queue]
        )
        ((paused,),) = found.fetchall()

        def step() -> None:
            nonlocal paused
            for told in connection.notifies(timeout=0.01, stop_after=1):
                event = json.loads(told.payload)
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
def test_clients_of_river_are_told_and_wait(console: Console, theirs: StandIn) -> None:
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
        # One that begins meanwhile reads it from the table.
        with river_client(theirs, "mail", ran):
            console.done("resume", "mail", "--yes")
            wait_until(lambda: ran["mail"] == 6, "it goes on")
    assert ran == {"mail": 6, "report": 6}
    assert console.status("mail")["decisions"] == []
    assert theirs.rows("SELECT name FROM river_queue WHERE paused_at IS NOT NULL") == []


def test_all_of_rivers_queues_are_paused_at_once(console: Console, theirs: StandIn) -> None:
    theirs.create(RIVER)
    adopt(console, "river")
    answer = console("pause", "jobs", "--yes", "jobs")
    assert (answer.status, "River knows no such queue" in answer.err) == (4, True)
    theirs.run("INSERT INTO river_queue (name) VALUES ('mail'), ('report')")
    with connect(theirs.url) as listener:
        listener.execute(b'LISTEN "Theirs.river_control"')
        for verb in ("pause", "resume"):
            console.done(verb, "jobs", "--yes", "jobs")
            (told,) = listener.notifies(timeout=60, stop_after=1)
            assert json.loads(told.payload) == {"action": verb, "queue": "*"}
            (paused,) = theirs.rows("SELECT count(paused_at) FROM river_queue")
            assert paused == (2 if verb == "pause" else 0,)
    assert console("resume", "jobs", "--yes").status == 2


@pytest.mark.long
def test_workers_of_solid_queue_take_nothing_of_a_paused_queue(
    console: Console, theirs: StandIn
) -> None:
    theirs.create(SOLID_QUEUE)
    theirs.run(
        "INSERT INTO solid_queue_jobs (queue_name) SELECT CASE WHEN n > 5 THEN 'report' "
        "ELSE 'mail' END FROM generate_series(1, 10) AS n"
    )
    adopt(console, "solid-queue", "mail")
    answer = console("pause", "jobs", "--yes", "jobs")
    assert (answer.status, "--queue" in answer.err) == (4, True)
    console.done("pause", "mail", "--yes", "mail")
    theirs.run(
        "INSERT INTO solid_queue_ready_executions (job_id, queue_name, created_at) "
        "SELECT id, queue_name, created_at FROM solid_queue_jobs"
    )
    ran: set[int] = set()
    with theirs.working(stand_in.SOLID_QUEUE_TAKES, stand_in.SOLID_QUEUE_ENDS, ran.add):
        wait_until(lambda: len(ran) == 5, "it works on the other queue")
        left = theirs.rows("SELECT count(*) FROM solid_queue_ready_executions")
        assert (left, min(ran)) == ([(5,)], 6)
        console.done("resume", "mail", "--yes")
        wait_until(lambda: len(ran) == 10, "it goes on")


def test_what_its_own_tools_do_is_seen(console: Console, theirs: StandIn) -> None:
    theirs.create(SOLID_QUEUE)
    console.done("adopt", "mail", "--preset", "solid-queue", "--queue", "mail")
    assert not findings(console, "mail").keys() & {"paused_elsewhere", "pause_undone"}
    theirs.run("INSERT INTO solid_queue_pauses (queue_name, created_at) VALUES ('mail', now())")
    assert "paused_elsewhere" in findings(console, "mail")
    assert "it is paused there since" in console("pause", "mail").text
    console.done("pause", "mail", "--yes", "mail")
    assert "paused_elsewhere" not in findings(console, "mail")
    theirs.run("DELETE FROM solid_queue_pauses")
    assert "pause_undone" in findings(console, "mail")
    console.done("resume", "mail", "--yes")
    assert "pause_undone" not in findings(console, "mail")
