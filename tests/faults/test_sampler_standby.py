"""On a standby, stored data are visible, and what only the primary knows is unknown."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from console.actions.install import install
from console.catalog import installed_queue
from console.designs.shipped import CLAIM
from console.doctor.diagnose import diagnose
from console.engines import Database, open_database
from console.engines.embedded import EmbeddedServer
from console.monitor.limits import DEFAULTS
from console.monitor.sampler import Sampler
from console.monitor.snapshot import QueueSnapshot
from tests.contract.client import Client
from tests.faults.test_sampler import TIMEOUTS, install_some, push
from tests.servers import connect, fresh_database, wait_until


@pytest.fixture
def standby(own_server: EmbeddedServer) -> Iterator[Database]:
    """A database with messages in it, on a server that recovers and never becomes a primary."""
    with fresh_database(own_server.url) as url:
        install_some(url)
        push(url, 7)
        with closing(open_database(url)) as database:
            claims = installed_queue(
                "public", "claim", CLAIM, CLAIM.complete_options({}, "postgresql")
            )
            install(database, claims)
            client = Client(database, claims)
            client.push_many(["a", "b"])
            client.pop_many(1)
        own_server.shut_down()
        assert own_server.folder is not None
        signal = own_server.folder / "data" / "standby.signal"
        signal.touch()
        signal.chmod(0o644)
        own_server.restart()
        try:
            with closing(open_database(url)) as database:
                yield database
        finally:
            own_server.shut_down()
            signal.unlink(missing_ok=True)
            own_server.restart()


def test_a_standby_tells_what_it_can(standby: Database) -> None:
    with connect(standby.url.render_as_string(hide_password=False)) as connection:
        assert connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,)
    sampler = Sampler(standby, timeouts=TIMEOUTS)
    for _ in range(2):
        reading = sampler.sample()
        assert reading.error is None
        claim, fifo, ring = sorted(reading.queues, key=lambda queue: queue.queue)
        assert fifo.ready == 7
        assert fifo.age_seconds is not None
        # Its sequences are up to 32 ahead of what was drawn, and it counts no rows.
        assert unknown(ring) >= {"ready", "gap", "age_seconds", "push_per_second", "holders"}
        assert unknown(fifo) == {"push_per_second", "pop_per_second", "holders"}
        assert ring.capacity == 300
        assert (claim.ready, claim.claimed) == (1, 1)
        assert claim.claims is not None
        assert [one.owner for one in claim.claims] == ["unknown"]  # a session of the primary's
    assert "rates" in standby.capabilities.missing
    for one in diagnose(standby, thresholds_of=lambda _: replace(DEFAULTS, stuck_after_seconds=0)):
        assert one.verdict == "unknown", one.findings
        assert "its primary's" in "\n".join(one.unseen)


def unknown(seen: QueueSnapshot) -> set[str]:
    for figure in seen.unknown:
        assert getattr(seen, figure) is None
    return set(seen.unknown)


def test_a_standby_that_becomes_the_primary_tells_all(standby: Database) -> None:
    sampler = Sampler(standby, timeouts=TIMEOUTS)
    assert "gap" in unknown(sampler.sample().queues[-1])
    with connect(standby.url.render_as_string(hide_password=False)) as connection:
        connection.execute("SELECT pg_promote()")

    def tells_all() -> bool:
        reading = sampler.sample()
        return reading.error is None and all(queue.unknown == () for queue in reading.queues)

    wait_until(tells_all, "nothing is unknown any more")
