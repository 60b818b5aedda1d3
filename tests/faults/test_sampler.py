"""The sampler while servers stop, fall silent and come back: no hang, no thread left over."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from queue import Empty, SimpleQueue
from typing import Self

import psycopg
import pytest
from psycopg.sql import SQL, Identifier
from sqlalchemy import make_url

from console.actions.install import install
from console.catalog import installed_queue
from console.designs import DESIGNS
from console.engines import Timeouts, open_database
from console.engines.embedded import EmbeddedServer
from console.errors import ConnectionFailedError
from console.monitor.sampler import Reading, Sampler
from console.monitor.snapshot import QueueSnapshot
from tests.proxy import Proxy
from tests.servers import PATIENCE_SECONDS, connect, fresh_database, value, wait_until

LIMIT = 2.0
"""The longest time of a sample."""
TIMEOUTS = Timeouts(connect_seconds=2, statement_seconds=LIMIT, lock_seconds=0.2)
SOON = LIMIT + 5.0
"""Within this the sampler reports an error, and stops."""
PATIENT = PATIENCE_SECONDS
"""For a slow machine."""


class Watch:
    """A running sampler and its readings."""

    def __init__(self, url: str) -> None:
        self._database = open_database(url, timeouts=TIMEOUTS)
        self._readings: SimpleQueue[Reading] = SimpleQueue()
        self.seen: list[Reading] = []
        self.sampler = Sampler(self._database, interval_seconds=0.05, timeouts=TIMEOUTS)

    def __enter__(self) -> Self:
        self.sampler.start(self._readings.put)
        return self

    def __exit__(self, *_: object) -> None:
        self.sampler.stop(PATIENT)
        self._database.close()

    def next(self, seconds: float = PATIENT) -> Reading:
        """The next reading."""
        try:
            self.seen.append(self._readings.get(timeout=seconds))
        except Empty:
            raise AssertionError(f"it said nothing for {seconds:g} s") from None
        return self.seen[-1]

    def until(self, condition: Callable[[Reading], bool], seconds: float = PATIENT) -> Reading:
        """The first matching reading from now on."""
        ends_at = time.monotonic() + seconds
        while True:
            reading = self.next(max(0.0, ends_at - time.monotonic()))
            if condition(reading):
                return reading
            if reading.error is not None:
                self.sampler.sample_now()

    def good(self) -> Reading:
        """The next successful sample."""
        return self.until(lambda reading: reading.error is None)

    def failure(self) -> Reading:
        """The next failed sample, which has to come in time."""
        return self.until(lambda reading: reading.error is not None, SOON)


@pytest.fixture
def url(own_server: EmbeddedServer) -> Iterator[str]:
    """A database with a ring and a fifo on a server that the test may end."""
    with ExitStack() as stack:
        found = stack.enter_context(fresh_database(own_server.url))
        # Before the database goes, its server must be there again.
        stack.callback(lambda: own_server.resume() if own_server.running else own_server.restart())
        install_some(found)
        yield found


def install_some(url: str) -> None:
    with closing(open_database(url)) as database:
        for name, options in (("fifo", {}), ("ring", {"size": "300"})):
            complete = DESIGNS[name].complete_options(options, "postgresql")
            install(database, installed_queue("public", name, DESIGNS[name], complete))


def push(url: str, count: int) -> None:
    """By a session that ends, and so reports its counters."""
    with connect(url) as connection:
        session = connection.info.backend_pid
        for name in ("fifo", "ring"):
            function = Identifier("public", f"{name}_push")
            connection.execute(
                SQL("SELECT count({}('x')) FROM generate_series(1, %s)").format(function), [count]
            )
    # A client that has closed does not wait for its session, which hands in its counters at its
    # end; until then rows are there that nobody has counted, and a rate is rightly unknown.
    there = f"SELECT count(*) FROM pg_stat_activity WHERE pid = {session}"
    wait_until(lambda: value(url, there) == 0, "the session that pushed has ended")


def by_name(reading: Reading) -> dict[str, QueueSnapshot]:
    return {queue.queue: queue for queue in reading.queues}


def ready(reading: Reading, count: int) -> bool:
    """Whether the sample succeeded and saw this many in both queues."""
    queues = by_name(reading)
    return reading.error is None and all(
        name in queues and queues[name].ready == count for name in ("fifo", "ring")
    )


def has_rates(reading: Reading) -> bool:
    return reading.error is None and all(
        queue.push_per_second is not None for queue in reading.queues
    )


def check_failure(reading: Reading, before: Reading) -> None:
    """It reports the error, and marks its figures as old."""
    assert isinstance(reading.error, ConnectionFailedError)
    assert reading.stale
    assert reading.queues == before.queues
    assert reading.taken_at == before.taken_at
    assert reading.taken_at is not None
    assert reading.age_seconds(reading.taken_at + 7.0) == 7.0
    assert reading.retry_seconds is not None


def check_rates(readings: list[Reading]) -> None:
    rates = [
        rate
        for reading in readings
        for queue in reading.queues
        for rate in (queue.push_per_second, queue.pop_per_second)
        if rate is not None
    ]
    assert all(rate >= 0 for rate in rates)


def samplers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("sampler")]


@pytest.mark.long
def test_the_server_stops_and_comes_back(own_server: EmbeddedServer, url: str) -> None:
    push(url, 3)
    with Watch(url) as watch:
        watch.until(lambda reading: ready(reading, 3))
        before = watch.until(has_rates)
        own_server.shut_down()
        failure = watch.failure()
        check_failure(failure, [r for r in watch.seen if r.error is None][-1])
        assert watch.failure().error is not None  # and again, after a pause
        own_server.restart()
        back = watch.good()
        assert ready(back, 3)
        # What was counted before says nothing about now: a gap, not a zero.
        assert all(queue.push_per_second is None for queue in back.queues)
        assert all("push_per_second" in queue.unknown for queue in back.queues)
        after = watch.until(has_rates)
        assert after.taken_at is not None
        assert before.taken_at is not None
        assert after.taken_at > before.taken_at
    check_rates(watch.seen)
    assert samplers() == []


def test_the_server_crashes_and_recovers(own_server: EmbeddedServer, url: str) -> None:
    """A crash skips numbers of a ring and resets the counters: no rate follows from that."""
    push(url, 5)
    with Watch(url) as watch:
        watch.until(lambda reading: ready(reading, 5))
        gap = by_name(watch.until(has_rates))["ring"].gap
        assert gap == 5
        own_server.kill()
        watch.failure()
        own_server.restart()
        back = watch.until(lambda reading: reading.error is None and bool(reading.queues))
        assert all(queue.push_per_second is None for queue in back.queues)
        after = by_name(watch.until(has_rates))
        assert {queue.push_per_second for queue in after.values()} == {0.0}
    check_rates(watch.seen)


@pytest.mark.parametrize("crash", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_restart_between_two_samples(own_server: EmbeddedServer, url: str, crash: bool) -> None:
    """The next sample finds a restarted server, with new counters, at the same address."""
    push(url, 50)
    with closing(open_database(url, timeouts=TIMEOUTS)) as database:
        sampler = Sampler(database, timeouts=TIMEOUTS)
        sampler.sample()
        assert has_rates(sampler.sample())
        if crash:
            own_server.kill()
        own_server.restart()
        push(url, 100)  # more than there were before, so that no counter seems to fall
        back = sampler.sample()
        # A crash moves the numbers of a ring ahead: some of its messages are orphans then.
        assert ready(back, 150) or crash
        assert all(queue.push_per_second is None for queue in back.queues)
        assert all(queue.push_per_second == 0.0 for queue in sampler.sample().queues)


@pytest.mark.long
def test_the_server_is_paused(own_server: EmbeddedServer, url: str) -> None:
    """It keeps the connection without responding: its own time-outs do not run either."""
    push(url, 3)
    with Watch(url) as watch:
        before = watch.until(lambda reading: ready(reading, 3))
        own_server.pause()
        failure = watch.failure()
        check_failure(failure, [r for r in watch.seen if r.error is None][-1])
        assert failure.error is not None
        assert "not answered" in failure.error.why
        assert before.queues
        # Now it cannot even connect.
        started = time.monotonic()
        watch.sampler.sample_now()
        assert watch.next().error is not None
        assert time.monotonic() - started < SOON
        own_server.resume()
        assert ready(watch.good(), 3)
        own_server.pause()
        watch.sampler.sample_now()
        check_it_ends_at_once(watch)
        own_server.resume()
    assert samplers() == []


def check_it_ends_at_once(watch: Watch) -> None:
    started = time.monotonic()
    watch.sampler.stop(PATIENT)
    assert not watch.sampler.running
    assert time.monotonic() - started < SOON


def test_it_ends_at_once_while_it_connects() -> None:
    """To a socket that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with Watch(f"postgresql+psycopg://u@127.0.0.1:{port}/d") as watch:
            assert watch.next(SOON).error is not None
            watch.sampler.sample_now()
            check_it_ends_at_once(watch)


def test_the_connection_is_cut(url: str) -> None:
    push(url, 3)
    with Proxy(url) as proxy, Watch(proxy.url) as watch:
        watch.until(lambda reading: ready(reading, 3))
        proxy.refuse()
        failure = watch.failure()
        check_failure(failure, [r for r in watch.seen if r.error is None][-1])
        proxy.let_in()
        assert ready(watch.good(), 3)
        proxy.cut()  # between two looks this one is not even noticed
        assert ready(watch.good(), 3)
        assert proxy.connections <= 2
    assert samplers() == []


@pytest.mark.long
def test_the_database_is_dropped_and_made_again(own_server: EmbeddedServer, url: str) -> None:
    name = Identifier(make_url(url).database or "")
    with Watch(url) as watch:
        watch.good()
        with connect(own_server.url) as connection:
            connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(name))
            failure = watch.failure()
            assert isinstance(failure.error, ConnectionFailedError)
            connection.execute(SQL("CREATE DATABASE {} TEMPLATE template0").format(name))
        assert watch.good().queues == ()
        install_some(url)
        watch.until(lambda reading: ready(reading, 0))


@pytest.mark.long
def test_there_are_too_many_connections(own_server: EmbeddedServer, url: str) -> None:
    with Watch(url) as watch, ExitStack() as others:
        watch.good()
        keeper = others.enter_context(connect(own_server.url))
        end_others = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'dbq-console'"
        )

        def take_every_place() -> None:
            ended = True
            while ended:  # else the last place may be the sampler's, and it looks on
                with pytest.raises(psycopg.OperationalError, match="too many clients"):  # noqa: PT012
                    while True:
                        others.enter_context(connect(own_server.url))
                ended = bool(keeper.execute(end_others).fetchall())

        def has_failed(reading: Reading) -> bool:
            if reading.error is None:  # it was connecting, and had no name yet to be found by
                take_every_place()
            return reading.error is not None

        take_every_place()
        failure = watch.until(has_failed)
        assert isinstance(failure.error, ConnectionFailedError)
        others.close()
        assert ready(watch.good(), 0)
