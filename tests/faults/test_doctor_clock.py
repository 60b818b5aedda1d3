"""A console whose clock is not the database's: since when is told by the database's."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import LiteralString

import pytest

from console.doctor.finding import Diagnosis
from console.doctor.stopped_consumers import ConsumptionHistory
from console.monitor.limits import DEFAULTS, Limits
from console.monitor.sample import take_sample
from console.monitor.sampler import Reading
from console.monitor.snapshot import snapshot
from console.tui.store import Store
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.variants import Variant
from tests.faults.queue_faults import FIFO, PENDING, diagnosis, filled, names, run, the

SKEWS = [timedelta(), timedelta(hours=2), timedelta(hours=-2)]
"""By so much this console's clock is ahead of the database's."""
WAITING = replace(DEFAULTS, age_seconds=Limits(0.01, None))
AGE = 1800.0


@pytest.fixture(params=SKEWS, ids=str)
def now(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> datetime:
    """The database's clock, as good as: both are this machine's."""
    for module in ("doctor.context", "monitor.sample_queries"):
        monkeypatch.setattr(f"console.{module}.utc", lambda: datetime.now(UTC) + request.param)
    return datetime.now(UTC)


def waiting(use: Use, of: Variant) -> Client:
    """Messages that have waited, and were due, for half an hour."""
    client = filled(use, of, 2)
    for column in ("pushed_at", *(["due_time"] if of is PENDING else [])):
        ago: LiteralString = "clock_timestamp() - interval '30 minutes'"
        run(client, "UPDATE {table} SET {column} = " + ago, column=column)
    return client


def told(client: Client) -> Diagnosis:
    consumption = ConsumptionHistory(0.05)
    return diagnosis(client.database, client.queue, WAITING, consumption=consumption)


def test_since_is_by_the_databases_clock(use: Use, now: datetime) -> None:
    client = waiting(use, FIFO)
    found = told(client)
    aged = the(found, "limit_reached")
    assert aged.since is not None
    assert abs(aged.since + timedelta(seconds=AGE) - now) < timedelta(minutes=5)
    # The screens count on from there by a clock of their own, which may be any.
    store = Store({"a": 1.0}, now=0)
    sample = take_sample(client.database, only=[client.queue])
    store.add_reading("a", Reading("a", (snapshot(sample.queues[0], "a"),)), at=100_000)
    store.add_diagnoses("a", [found], 100_000, now - found.clock_ahead)
    (row,) = store.queues(100_000)
    ages = {one.code: one.since_seconds or 0.0 for one in row.findings}
    # Since the messages came, or the server began to count: that may have been up for long.
    assert 0 < ages["consumer_stopped"] < 2 * AGE


@pytest.mark.usefixtures("now")
def test_a_stopped_consumer_of_pending_is_found_whatever_our_clock_says(use: Use) -> None:
    client = waiting(use, PENDING)
    found = told(client)
    assert "consumer_stopped" in names(found)
