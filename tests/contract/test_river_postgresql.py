"""Jobs that River's own client in Python inserts; it has no workers, the tables are a stand-in."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

import pytest
from sqlalchemy import create_engine

from tests.cli.calls import Console
from tests.contract import stand_in
from tests.contract.fetched import from_pip
from tests.contract.figures import counts, figures
from tests.contract.stand_in import RIVER, StandIn
from tests.servers import wait_until

PACKAGE = "riverqueue==0.7.0"
WANTS = "greenlet>=3,<4"
"""It imports SQLAlchemy's asyncio, which is an extra of that."""


class Send:
    """A job's arguments, as its client wants them."""

    kind = "send"

    def __init__(self, n: int) -> None:
        self.n = n

    def to_json(self) -> str:
        return json.dumps({"n": self.n})


@pytest.fixture
def river(console: Console, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Its package, whose `client` is on tables like its own."""
    monkeypatch.syspath_prepend(from_pip(PACKAGE, WANTS))
    StandIn(console.url, "Theirs").install(RIVER)
    riverqueue: Any = import_module("riverqueue")
    engine = create_engine(console.url, connect_args={"options": '-c search_path="Theirs"'})
    driver = import_module("riverqueue.driver.riversqlalchemy").Driver(engine)
    riverqueue.client = riverqueue.Client(driver)
    yield riverqueue
    engine.dispose()


@pytest.mark.long
def test_what_its_own_client_inserts_is_told_as_it_tells_it(console: Console, river: Any) -> None:
    mail, report = river.InsertOpts(queue="mail"), river.InsertOpts(queue="report")
    later = river.InsertOpts(queue="mail", scheduled_at=datetime.now(UTC) + timedelta(hours=1))
    jobs = [river.client.insert(Send(n), insert_opts=mail).job for n in range(3)]
    jobs.append(river.client.insert(Send(3), insert_opts=later).job)
    many = [river.InsertManyParams(Send(n), insert_opts=report) for n in (4, 5)]
    assert river.client.insert_many(many) == 2
    theirs = StandIn(console.url, "Theirs")
    # Its clients in Go write down the queues that they work on; none is running here.
    theirs.run("INSERT INTO river_queue (name) VALUES ('mail'), ('report')")

    (found,) = console.done("discover", "--json").json["found"]
    assert (found["preset"], found["queues"]) == ("river", ["mail", "report"])
    for command in found["commands"]:
        console.done(*command.split()[1:])
    assert [str(job.state) for job in jobs] == ["available"] * 3 + ["scheduled"]
    assert figures(console, "mail") == counts(3, 1, 0, 0, 0, 0)
    assert figures(console, "report") == counts(2, 0, 0, 0, 0, 0)
    assert figures(console, "river_job") == counts(5, 1, 0, 0, 0, 0)
    listed = console.done("messages", "mail", "--state", "scheduled", "--payload", "--json").json
    (message,) = listed["messages"]
    assert (message["id"], message["title"]) == (str(jobs[3].id), jobs[3].kind)
    assert json.loads(message["payload"]) == jobs[3].args == {"n": 3}
    assert datetime.fromisoformat(message["due_at"]) == jobs[3].scheduled_at

    # And once they have failed, they are retried as any, its tries counted as it set them.
    fails = "UPDATE river_job SET state = 'discarded', attempt = max_attempts, finalized_at = now()"
    theirs.run(f"{fails} WHERE queue = 'report'")
    assert figures(console, "report") == counts(0, 0, 0, 0, 2, 0)
    ran: list[int] = []
    with theirs.working(stand_in.RIVER_TAKES, stand_in.RIVER_ENDS, ran.append):
        console.done("requeue", "report", "--yes")
        over = counts(0, 1, 0, 0, 0, 5)
        wait_until(lambda: figures(console, "river_job") == over, "all were run")
    assert len(ran) == len({*ran}) == 5
    tries = "SELECT DISTINCT max_attempts FROM river_job WHERE queue = 'report'"
    assert theirs.rows(tries) == [(river.MAX_ATTEMPTS_DEFAULT + 1,)]
