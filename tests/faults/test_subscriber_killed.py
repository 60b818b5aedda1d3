"""A subscriber's consumers are killed: how long others continue, who is named, what skip does."""

import threading
from collections import Counter
from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import psycopg
import pytest

from tests.cli.calls import Console
from tests.faults.harness.client import payload
from tests.faults.harness.clients import Clients, clients
from tests.faults.harness.ring import Ring, make_ring
from tests.servers import wait_until

SEARCH, BILLING = "search", "billing"
_LAG = 20
"""The test pushes at most this many messages ahead of live subscribers."""
_AT_ONCE = 10


@pytest.fixture
def ring(database_url: str, long: bool) -> Iterator[Ring]:
    """With `--long` it takes a minute to fill it, at 33 messages per second."""
    size = 2_000 if long else 60
    made = make_ring(database_url, "events", size=size, subscribers=f"{BILLING},{SEARCH}")
    yield made
    made.close()


def consume(workers: Clients, subscriber: str) -> None:
    """Start two processes; each pop is its own transaction."""
    more = {"subscriber": subscriber, "largest_transaction": 1}
    workers.start(["pop"], "events", count=2, name=f"{subscriber}.", **more)


def popped(workers: Clients, subscriber: str) -> Counter[str]:
    return workers.ledger(f"{subscriber}.").popped


class Pusher:
    """Pushes one message after the other, never far ahead of the given subscribers."""

    def __init__(self, ring: Ring, connection: psycopg.Connection) -> None:
        self.connection = connection
        self.views = {name: ring.of(name) for name in (BILLING, SEARCH)}
        self.stored: list[str] = []
        self.texts = (payload("own", serial) for serial in count(1))

    def push(self, *subscribers: str, most: int | None = None, pause_seconds: float = 0.0) -> bool:
        """Push until a message is not stored, or `most` are; whether all were stored."""
        for number, text in enumerate(islice(self.texts, most)):
            if number % _AT_ONCE == 0:
                wait_until(
                    lambda: all(self.owed(subscriber) < _LAG for subscriber in subscribers),
                    "they get on",
                )
            if self.views[BILLING].push(text, on=self.connection) is None:
                return False
            self.stored.append(text)
            threading.Event().wait(pause_seconds)
        return True

    def owed(self, subscriber: str) -> int:
        """How many messages it has not popped, whatever numbers were drawn for them."""
        mine = self.views[subscriber]
        query = """
            SELECT count(*) FROM {ring} AS r INNER JOIN {popped} AS p ON p.slot = r.slot
            WHERE p.subscriber = %s AND r.reference_count > 0 AND r.message_id > p.message_id
        """
        (found,) = self.connection.execute(mine.sql(query), [mine.number]).fetchone() or (-1,)
        return int(found)


def status_of(console: Console, subscriber: str) -> dict[str, Any]:
    """The subscriber's part of `status`."""
    figures = console.status("events")["subscribers"]
    (found,) = (figure for figure in figures if figure["subscriber"] == subscriber)
    assert isinstance(found, dict)
    return found


def doctor_findings(console: Console, idle_seconds: float) -> dict[str, dict[str, Any]]:
    """The doctor's findings by code, all about the subscriber that was killed.

    A kill between a pop and its commit also leaves an orphan.
    """
    result = console("doctor", "events", "--json", "--idle-for", f"{idle_seconds}s")
    assert result.status == 1
    findings = result.json["queues"][0]["findings"]
    assert all(finding["summary"].startswith(f"{SEARCH}: ") for finding in findings)
    return {finding["code"]: finding for finding in findings}


def test_the_other_subscriber_continues_until_the_ring_is_full(ring: Ring, *, long: bool) -> None:
    console = Console(ring.url)
    size = int(ring.queue.options["size"])
    with ring.connect() as connection, clients(ring.url, marked=True) as workers:
        pusher = Pusher(ring, connection)
        consume(workers, BILLING)
        consume(workers, SEARCH)
        assert pusher.push(BILLING, SEARCH, most=100)
        workers.kill_all(f"{SEARCH}.")

        # It is named before it stops others.
        assert pusher.push(BILLING, most=size // 3, pause_seconds=0.03 * long)
        idle = 30.0 if long else 0.2
        wait_until(lambda: status_of(console, SEARCH)["age_seconds"] > idle, "messages wait for it")
        assert "subscriber_stopped" in doctor_findings(console, idle)

        assert not pusher.push(BILLING, pause_seconds=0.03 * long)
        assert pusher.owed(SEARCH) == size
        wait_until(lambda: pusher.owed(BILLING) == 0, "the other pops on")
        before = popped(workers, SEARCH)
        assert len(pusher.stored) - before.total() == size
        assert not pusher.push(most=1)

        # The console names it.
        for words in (console.done("status", "events").text, console("check", "events").text):
            assert "full: it takes no more pushes, search is slowest" in words
        found = doctor_findings(console, idle)
        assert found["full"]["severity"] == found["subscriber_stopped"]["severity"] == "critical"

        # skip frees the ring; the audit says how many.
        skipped = console.done("skip", "events", SEARCH, "--to", "now", "--yes", "events")
        assert f"search skipped {size:,} messages" in skipped.text
        (action, *_) = console.done("audit", "events", "--json").json["actions"]
        assert (action["verb"], action["selected"], action["done"]) == ("skip", size, size)
        assert f"{size:,} messages skipped, {size:,} of them archived" in action["detail"]
        query = ring.sql("SELECT payload FROM {archive} WHERE reason = 'skipped by search'")
        archived = Counter(text for (text,) in connection.execute(query))
        assert archived + before == Counter(pusher.stored)

        pushed = len(pusher.stored)
        assert pusher.push(BILLING, most=_LAG)
        consume(workers, SEARCH)
        assert pusher.push(BILLING, SEARCH, most=2 * size)
        wait_until(lambda: not pusher.owed(BILLING) + pusher.owed(SEARCH), "all is popped")
        workers.finish()
        assert popped(workers, BILLING) == Counter(pusher.stored)
        assert popped(workers, SEARCH) == before + Counter(pusher.stored[pushed:])
