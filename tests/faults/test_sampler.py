"""The sampler while servers stop, hang and come back: it never hangs, no thread is left."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Self

import pytest
from psycopg.sql import SQL, Identifier
from sqlalchemy import make_url

from console.doctor.diagnose import diagnose
from console.doctor.finding import Finding
from console.doctor.sessions import PREPARED
from console.engines import Database, Timeouts, open_database
from console.errors import ConnectionFailedError
from console.features.demo.embedded import EmbeddedServer
from console.monitor.limits import DEFAULTS
from console.monitor.sampler import Reading, Sampler
from console.monitor.snapshot import QueueSnapshot
from tests.contract.client import Client
from tests.servers import (
    PATIENCE_SECONDS,
    connect,
    ensure_running,
    execute,
    fresh_database,
    restart_as_standby,
    value,
    wait_until,
)
from tests.servers.proxy import Proxy
from tests.tools.queues import install_queue
from tests.tools.repairs import carry_out

pytestmark = pytest.mark.slow

LIMIT = 2.0
"""The longest time of a sample."""
TIMEOUTS = Timeouts(connect_seconds=2, statement_seconds=LIMIT, lock_seconds=0.2)
SOON = LIMIT + 5.0
"""Within this time the sampler reports an error, and stops."""
PATIENT = PATIENCE_SECONDS
"""For a slow machine."""


class RunningSampler:
    """A running sampler and its readings."""

    def __init__(self, url: str) -> None:
        self._database = open_database(url, timeouts=TIMEOUTS)
        self._readings: SimpleQueue[Reading] = SimpleQueue()
        self.readings: list[Reading] = []
        self.sampler = Sampler(self._database, interval_seconds=0.05, timeouts=TIMEOUTS)

    def __enter__(self) -> Self:
        self.sampler.start(self._readings.put)
        return self

    def __exit__(self, *_: object) -> None:
        """No thread is left, and no rate was negative."""
        self.sampler.stop(PATIENT)
        self._database.close()
        assert not [one for one in threading.enumerate() if one.name.startswith("sampler")]
        queues = [queue for reading in self.readings for queue in reading.queues]
        rates = [rate for q in queues for rate in (q.push_per_second, q.pop_per_second) if rate]
        assert min(rates, default=0.0) >= 0

    def next(self, seconds: float = PATIENT) -> Reading:
        """The next reading."""
        try:
            self.readings.append(self._readings.get(timeout=seconds))
        except Empty:
            raise AssertionError(f"no reading for {seconds:g} s") from None
        return self.readings[-1]

    def until(self, condition: Callable[[Reading], bool], seconds: float = PATIENT) -> Reading:
        """The first matching reading from now on."""
        ends_at = time.monotonic() + seconds
        while True:
            reading = self.next(max(0.0, ends_at - time.monotonic()))
            if condition(reading):
                return reading
            if reading.error is not None:
                self.sampler.sample_now()

    def next_success(self) -> Reading:
        """The next successful sample."""
        return self.until(lambda reading: reading.error is None)

    def next_failure(self) -> Reading:
        """The next failed sample, which has to come in time."""
        return self.until(lambda reading: reading.error is not None, SOON)

    def next_lost(self) -> Reading:
        """The next failed sample: it has the error, and the old figures marked as such."""
        failure, before = self.next_failure(), [r for r in self.readings if r.error is None][-1]
        assert isinstance(failure.error, ConnectionFailedError)
        assert (failure.queues, failure.taken_at) == (before.queues, before.taken_at)
        assert failure.taken_at is not None
        assert failure.retry_seconds is not None
        return failure


@pytest.fixture
def url(own_server: EmbeddedServer) -> Iterator[str]:
    """A database with a ring and a fifo on a server that the test may end."""
    with fresh_database(own_server.url) as url, ExitStack() as at_the_end:
        at_the_end.callback(ensure_running, own_server)  # or it could not be dropped
        install_queues(url)
        yield url


def install_queues(url: str) -> None:
    with closing(open_database(url)) as database:
        install_queue(database, "fifo", "fifo")
        install_queue(database, "ring", "ring", size="300")


def push(url: str, count: int) -> None:
    """Push in a session that ends, and so reports its counters."""
    with connect(url) as connection:
        session = connection.info.backend_pid
        for name in ("fifo", "ring"):
            function = Identifier("public", f"{name}_push")
            connection.execute(
                SQL("SELECT count({}('x')) FROM generate_series(1, %s)").format(function), [count]
            )
    # A closed client does not wait for the end of its session, which reports its counters only
    # then; until then rows exist that are not counted, and a rate is rightly unknown.
    session_count = f"SELECT count(*) FROM pg_stat_activity WHERE pid = {session}"
    wait_until(lambda: value(url, session_count) == 0, "the session that pushed has ended")


def by_name(reading: Reading) -> dict[str, QueueSnapshot]:
    return {queue.queue: queue for queue in reading.queues}


def ready(reading: Reading, count: int) -> bool:
    """Whether the sample succeeded, with this many messages ready in both queues."""
    queues = by_name(reading)
    return reading.error is None and all(
        name in queues and queues[name].ready == count for name in ("fifo", "ring")
    )


def has_rates(reading: Reading) -> bool:
    return reading.error is None and all(
        queue.push_per_second is not None for queue in reading.queues
    )


def test_no_rate_spans_a_crash_of_the_server(own_server: EmbeddedServer, url: str) -> None:
    """A crash skips numbers of a ring and resets the counters, which must not become rates."""
    push(url, 5)
    with RunningSampler(url) as running:
        running.until(lambda reading: ready(reading, 5))
        gap = by_name(running.until(has_rates))["ring"].gap
        assert gap == 5
        own_server.kill()
        failure = running.next_lost()
        running.next_failure()  # and again, after a pause
        own_server.restart()
        back = running.until(lambda reading: reading.error is None and bool(reading.queues))
        # Unknown, not zero.
        assert all(queue.push_per_second is None for queue in back.queues)
        assert all("push_per_second" in queue.unknown for queue in back.queues)
        after = running.until(has_rates)
        assert {queue.push_per_second for queue in after.queues} == {0.0}
        assert failure.taken_at is not None
        assert after.taken_at is not None
        assert after.taken_at > failure.taken_at


@pytest.mark.parametrize("crash", [pytest.param(False, marks=pytest.mark.long), True])
def test_no_rate_spans_a_restart_between_two_samples(
    own_server: EmbeddedServer, url: str, crash: bool
) -> None:
    """The next sample finds a restarted server, with new counters, at the same address."""
    push(url, 50)
    with closing(open_database(url, timeouts=TIMEOUTS)) as database:
        sampler = Sampler(database, timeouts=TIMEOUTS)
        sampler.sample()
        assert has_rates(sampler.sample())
        if crash:
            own_server.kill()
        own_server.restart()
        push(url, 100)  # more than before, so that no counter decreases
        back = sampler.sample()
        # A crash moves the sequences of a ring ahead, so some of its messages become orphans.
        assert ready(back, 150) or crash
        assert all(queue.push_per_second is None for queue in back.queues)
        assert all(queue.push_per_second == 0.0 for queue in sampler.sample().queues)


@pytest.mark.long
def test_a_paused_server_is_an_error_until_it_resumes(own_server: EmbeddedServer, url: str) -> None:
    """It keeps the connection without responding; its own time-outs do not run either."""
    push(url, 3)
    with RunningSampler(url) as running:
        before = running.until(lambda reading: ready(reading, 3))
        own_server.pause()
        failure = running.next_lost()
        assert failure.error is not None
        assert "not answered" in failure.error.why
        assert before.queues
        # Now it cannot even connect.
        started = time.monotonic()
        running.sampler.sample_now()
        assert running.next().error is not None
        assert time.monotonic() - started < SOON
        own_server.resume()
        assert ready(running.next_success(), 3)
        own_server.pause()
        running.sampler.sample_now()
        check_it_stops_at_once(running)
        own_server.resume()


def check_it_stops_at_once(running: RunningSampler) -> None:
    started = time.monotonic()
    running.sampler.stop(PATIENT)
    assert not running.sampler.running
    assert time.monotonic() - started < SOON


def test_the_sampler_stops_at_once_while_it_connects() -> None:
    """It connects to a socket that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with RunningSampler(f"postgresql+psycopg://u@127.0.0.1:{port}/d") as running:
            assert running.next(SOON).error is not None
            running.sampler.sample_now()
            check_it_stops_at_once(running)


def test_the_sampler_reconnects_after_its_connection_was_cut(url: str) -> None:
    push(url, 3)
    with Proxy(url) as proxy, RunningSampler(proxy.url) as running:
        running.until(lambda reading: ready(reading, 3))
        proxy.refuse()
        running.next_lost()
        proxy.let_in()
        assert ready(running.next_success(), 3)
        proxy.cut()  # between two samples this is not even noticed
        assert ready(running.next_success(), 3)
        assert proxy.connections <= 2


def test_a_prepared_transaction_is_shown_as_a_holder(own_server: EmbeddedServer, url: str) -> None:
    """It holds rows without a session, also after a crash; the doctor rolls it back on request."""
    push(url, 2)
    with connect(url) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT id FROM public.fifo_pop()")
        connection.execute("PREPARE TRANSACTION 'left ''behind'")
    check_holder(url)
    own_server.kill()
    own_server.restart()
    check_holder(url)

    def forgotten(stuck_after_seconds: float) -> list[Finding]:
        thresholds = replace(DEFAULTS, stuck_after_seconds=stuck_after_seconds)
        diagnoses = diagnose(database, thresholds_of=lambda _: thresholds, patience_seconds=0.1)
        return [
            one for diagnosis in diagnoses for one in diagnosis.findings if one.code is PREPARED
        ]

    with closing(open_database(url)) as database:
        assert not forgotten(3600.0)
        wait_until(lambda: bool(forgotten(0.01)), "it is old")
        (finding,) = forgotten(0.01)
        assert finding.evidence["session"] == "left 'behind"
        assert finding.repair is not None
        assert not finding.repair.unattended
        carry_out(finding.repair, database)
        assert not forgotten(0.01)
    assert value(url, "SELECT count(*) FROM pg_prepared_xacts") == 0


def check_holder(url: str) -> None:
    with closing(open_database(url)) as database:
        fifo = by_name(Sampler(database).sample())["fifo"]
    (holder,) = fifo.held_by
    assert fifo.holders == 1
    assert holder.session == "left 'behind"
    assert (holder.user_name, holder.state) == ("postgres", None)
    assert holder.transaction_seconds is not None
    assert fifo.held_seconds == holder.held_at_least_seconds
    assert holder.held_for.startswith("at least ")


@pytest.mark.long
def test_the_sampler_continues_after_its_database_was_recreated(
    own_server: EmbeddedServer, url: str
) -> None:
    name = Identifier(make_url(url).database or "")
    with RunningSampler(url) as running:
        running.next_success()
        with connect(own_server.url) as connection:
            connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(name))
            failure = running.next_failure()
            assert isinstance(failure.error, ConnectionFailedError)
            connection.execute(SQL("CREATE DATABASE {} TEMPLATE template0").format(name))
        assert running.next_success().queues == ()
        install_queues(url)
        running.until(lambda reading: ready(reading, 0))


# On a standby, stored data is visible, but figures that only the primary has are unknown.


@pytest.fixture
def standby(own_server: EmbeddedServer) -> Iterator[Database]:
    """A database with messages in it, on a server that recovers and never becomes a primary."""
    with fresh_database(own_server.url) as url:
        install_queues(url)
        push(url, 7)
        with closing(open_database(url)) as database:
            client = Client(database, install_queue(database, "claim", "claim"))
            client.push_many(["a", "b"])
            client.pop_many(1)
        own_server.shut_down()
        signal = restart_as_standby(own_server)
        try:
            with closing(open_database(url)) as database:
                yield database
        finally:
            own_server.shut_down()
            signal.unlink(missing_ok=True)
            own_server.restart()


def test_a_standby_shows_all_figures_but_those_of_its_primary(standby: Database) -> None:
    assert execute(standby.url.render_as_string(hide_password=False), "SELECT pg_is_in_recovery()")[
        0
    ] == (True,)
    sampler = Sampler(standby, timeouts=TIMEOUTS)
    for _ in range(2):
        reading = sampler.sample()
        assert reading.error is None
        claim, fifo, ring = sorted(reading.queues, key=lambda queue: queue.queue)
        assert fifo.ready == 7
        assert fifo.age_seconds is not None
        # Its sequences are up to 32 ahead of the numbers drawn, and it counts no rows.
        assert unknown(ring) >= {"ready", "gap", "age_seconds", "push_per_second", "holders"}
        assert unknown(fifo) == {"push_per_second", "pop_per_second", "holders"}
        assert ring.capacity == 300
        assert (claim.ready, claim.claimed) == (1, 1)
        assert claim.claims is not None
        assert [one.owner for one in claim.claims] == ["unknown"]  # a session of the primary's
    assert "rates" in standby.capabilities.missing
    for diagnosis in diagnose(
        standby, thresholds_of=lambda _: replace(DEFAULTS, stuck_after_seconds=0)
    ):
        assert diagnosis.verdict == "unknown", diagnosis.findings
        assert "its primary's" in "\n".join(diagnosis.unseen)


def unknown(queue: QueueSnapshot) -> set[str]:
    for figure in queue.unknown:
        assert getattr(queue, figure) is None
    return set(queue.unknown)


def test_a_promoted_standby_shows_all_figures(standby: Database) -> None:
    sampler = Sampler(standby, timeouts=TIMEOUTS)
    assert "gap" in unknown(sampler.sample().queues[-1])
    execute(standby.url.render_as_string(hide_password=False), "SELECT pg_promote()")

    def all_known() -> bool:
        reading = sampler.sample()
        return reading.error is None and all(queue.unknown == () for queue in reading.queues)

    wait_until(all_known, "nothing is unknown any more")
