"""notify=on: a push notifies waiting consumers, and no other sessions."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from console.actions import pop
from console.actions.pop import PoppedMessage, PopResult
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.variants import ALL, Variant
from tests.servers import connect, execute, value, wait_until

pytestmark = pytest.mark.thinned(3, payload=False)

NOTIFYING = [v for v in ALL if v.options.get("notify") == "on"]
WITHOUT_NOTIFY = [v for v in ALL if not v.given]


class Listener:
    """A session that receives the notifications of one queue."""

    def __init__(self, connection: psycopg.Connection, client: Client) -> None:
        self._connection = connection
        self._channel = client.queue.channel
        connection.execute(SQL("LISTEN {}").format(Identifier(self._channel)))

    def received(self) -> int:
        """The number of notifications since the last call."""
        # The server delivers in the order of commits: all others precede this mark.
        self._connection.execute("SELECT pg_notify(%s, 'mark')", [self._channel])
        for count, notification in enumerate(self._connection.notifies(timeout=60)):
            if notification.payload == "mark":
                return count
        raise AssertionError("the mark never came")


@contextmanager
def listening(client: Client) -> Iterator[Listener]:
    with closing(connect(client.url)) as connection:
        yield Listener(connection, client)


def call(connection: psycopg.Connection, client: Client, function: str) -> object:
    name = Identifier(client.queue.schema, f"{client.queue.name}_{function}")
    row = connection.execute(SQL("SELECT {}()").format(name)).fetchone()
    assert row is not None
    return row[0]


def waiting(client: Client) -> list[int]:
    """The registered sessions."""
    name = Identifier(client.queue.schema, f"{client.queue.name}_waiting")
    rows = execute(client.url, SQL("SELECT pid FROM {} ORDER BY pid").format(name))
    return [pid for (pid,) in rows]


@pytest.mark.thinned(3, payload=False)
@pytest.mark.parametrize("variant", NOTIFYING, ids=str)
def test_a_push_notifies_while_a_consumer_is_registered(
    use_postgresql: Use, variant: Variant
) -> None:
    client = use_postgresql(variant)
    with listening(client) as listener, closing(connect(client.url)) as waiter:
        client.push(client.payload(0))
        client.push_many(client.payloads(1, 2))
        assert listener.received() == 0  # no session waits: a push costs nothing

        assert call(waiter, client, "wait") == client.queue.channel
        client.push(client.payload(3))
        assert listener.received() == 1
        client.push_many(client.payloads(4, 5))
        assert listener.received() == 1
        client.push_many([])
        assert listener.received() == 0

        call(waiter, client, "wait_end")
        client.push(client.payload(6))
        client.push_many(client.payloads(7, 8))
        assert listener.received() == 0
    assert len(client.drain()) == 9


@pytest.mark.parametrize("variant", [v for v in NOTIFYING if "size" in v.options], ids=str)
def test_a_push_that_stores_nothing_sends_no_notification(
    use_postgresql: Use, variant: Variant
) -> None:
    client = use_postgresql(variant)
    client.push_many(client.payloads(*range(int(variant.options["size"]))))
    with listening(client) as listener, closing(connect(client.url)) as waiter:
        call(waiter, client, "wait")
        assert client.push(client.payload(0)) is None
        assert client.push_many(client.payloads(0, 1)) == [None, None]
        assert listener.received() == 0


@pytest.mark.parametrize("variant", NOTIFYING, ids=str)
def test_a_consumer_that_waits_is_registered_and_gets_what_is_pushed(
    use_postgresql: Use, variant: Variant
) -> None:
    client = use_postgresql(variant)
    got: list[PoppedMessage] = []

    def wait() -> PopResult:
        return pop.pop(client.database, client.queue, got.extend, wait_seconds=120.0)

    with listening(client) as listener, ThreadPoolExecutor(1) as pool:
        popped = pool.submit(wait)
        wait_until(lambda: len(waiting(client)) == 1, "the consumer is registered")
        client.push(client.payload(0))
        assert popped.result(timeout=120).delivered == 1
        assert listener.received() == 1
    assert [message.payload for message in got] == client.payloads(0)
    assert waiting(client) == []
    # A consumer whose wait times out leaves no registration either.
    assert pop.pop(client.database, client.queue, got.extend, wait_seconds=0.05) == PopResult(0)
    assert waiting(client) == []


@pytest.mark.parametrize("variant", NOTIFYING[:1], ids=str)
def test_registrations_of_sessions_that_died_are_removed_by_the_next_one(
    use_postgresql: Use, variant: Variant
) -> None:
    """Of two sessions that find the same dead one, neither waits for the other."""
    client = use_postgresql(variant)
    dead = connect(client.url)
    call(dead, client, "wait")
    pid = dead.info.backend_pid
    dead.close()
    assert waiting(client) == [pid]
    there = f"SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}"
    wait_until(lambda: value(client.url, there) == 0, "the session is gone")
    with closing(connect(client.url)) as first, closing(connect(client.url)) as second:
        second.execute("SET lock_timeout = '10s'")
        with first.transaction():
            call(first, client, "wait")
            call(first, client, "wait")  # a second registration changes nothing
            call(second, client, "wait")
        assert waiting(client) == sorted([first.info.backend_pid, second.info.backend_pid])


@pytest.mark.parametrize("variant", NOTIFYING[:1], ids=str)
def test_a_transaction_that_has_read_sessions_keeps_the_registrations_of_later_ones(
    use_postgresql: Use, variant: Variant
) -> None:
    """It would see the sessions of that first reading."""
    client = use_postgresql(variant)
    with closing(connect(client.url)) as first, ExitStack() as opened:
        with first.transaction():
            first.execute("SELECT FROM pg_stat_activity")
            later = opened.enter_context(closing(connect(client.url)))
            call(later, client, "wait")
            call(first, client, "wait")
        assert waiting(client) == sorted([first.info.backend_pid, later.info.backend_pid])


@pytest.mark.parametrize("variant", WITHOUT_NOTIFY, ids=str)
def test_without_the_option_there_is_neither_registration_nor_notification(
    use_postgresql: Use, variant: Variant
) -> None:
    client = use_postgresql(variant)
    with (
        closing(connect(client.url)) as connection,
        pytest.raises(psycopg.errors.UndefinedFunction),
    ):
        call(connection, client, "wait")
    with listening(client) as listener:
        client.push(client.payload(0))
        client.push_many(client.payloads(1, 2))
        assert listener.received() == 0
