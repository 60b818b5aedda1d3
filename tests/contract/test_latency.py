"""Waiting and processing times, from known delays that are written into the tables."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.sql import SQL, Identifier
from sqlalchemy import Column, MetaData, Table, select, text, update

from console.designs import DESIGNS
from console.engines import Database
from console.features.presets import adopt
from console.figures import PERCENTILES
from console.monitor.latency import EVERY_SECONDS, FEWEST, Latency, Percentiles, cuts, impossible
from console.monitor.memory import FIRST_PAUSE_SECONDS, Memory
from console.monitor.sample import take_sample
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.test_claims import claims_of
from tests.contract.variants import BEHAVIOURS, DEFAULTS, Variant, default
from tests.servers import connect

MESSAGES = 20
WAITED = [float(number + 1) for number in range(MESSAGES)]
WORKED = [(number + 1) / 4 for number in range(MESSAGES)]

WITH_CLAIMS = [v for v in BEHAVIOURS if v.finishes]
ARCHIVING = [v for v in BEHAVIOURS if v.options.get("archive_at_pop") == "on"]
WITHOUT_TIMES = [v for v in DEFAULTS if not v.finishes]


def latency(client: Client) -> Latency:
    found = client.snapshot().latency
    assert found is not None
    return found


def now_of(client: Client) -> datetime:
    """Now, by the server's clock."""
    moment = client.snapshot().moment
    assert moment is not None
    return moment


def set_times(client: Client, table: Table, popped_ago: float, *, ends: bool) -> None:
    """Set known times in each row: all popped `popped_ago` seconds ago."""
    popped = now_of(client) - timedelta(seconds=popped_ago)
    with client.database.transaction("date") as connection:
        ids = connection.execute(select(table.c.id).order_by(table.c.id)).scalars().all()
        for id_, waited, worked in zip(ids, WAITED, WORKED, strict=True):
            times = {"pushed_at": popped - timedelta(seconds=waited), "claimed_at": popped}
            if ends:
                times["done_at"] = popped + timedelta(seconds=worked)
            kept = {name: at for name, at in times.items() if name in table.c}
            connection.execute(update(table).where(table.c.id == id_).values(kept))


def popped(use: Use, variant: Variant, count: int = MESSAGES) -> Client:
    client = use(variant)
    client.push_many(client.payloads(*range(count)))
    assert len(client.pop_many(count)) == count
    return client


def rows_in_work(client: Client) -> Table:
    """Like claims_of, always with the push time."""
    table = claims_of(client)
    if "pushed_at" not in table.c:
        table.append_column(Column("pushed_at"))
    return table


def is_near(percentiles: Percentiles, seconds: Sequence[float], of: int = MESSAGES) -> bool:
    assert percentiles.unknown == ""
    assert percentiles.messages == of
    return percentiles.values == pytest.approx(cuts(seconds), abs=0.001)


@pytest.mark.long
@pytest.mark.parametrize("variant", WITH_CLAIMS, ids=str)
def test_claims_have_waiting_times_and_finished_ones_processing_times(client: Client) -> None:
    client.push_many(client.payloads(*range(MESSAGES)))
    messages = client.pop_many(MESSAGES)
    set_times(client, rows_in_work(client), 60.0, ends=False)
    found = latency(client)
    assert is_near(found.waiting, WAITED)
    assert found.waiting.period_seconds == pytest.approx(60.0, abs=20.0)
    assert found.processing.p50 is None
    assert found.processing.unknown

    keeps_done = "done" in client.queue.states
    for number, message in enumerate(messages):
        done = keeps_done and number % 2
        assert client.complete(message) if done else client.fail(message, "no")
    set_times(client, rows_in_work(client), 60.0, ends=True)
    found = latency(client)
    assert is_near(found.waiting, WAITED)
    if keeps_done:
        assert is_near(found.processing, WORKED)
    else:
        assert found.processing == Percentiles(unknown="complete deletes the message")


@pytest.mark.long
@pytest.mark.parametrize("variant", ARCHIVING, ids=str)
def test_messages_archived_at_pop_have_waiting_times(use: Use, variant: Variant) -> None:
    client = popped(use, variant)
    columns: list[Column[object]] = [Column(name) for name in ("id", "pushed_at", "archived_at")]
    if "due_at" in client.queue.roles:  # waiting starts at the due time
        columns.append(Column("due_at"))
    table = Table(f"{client.queue.name}_archive", MetaData(), *columns, schema=client.queue.schema)
    at = now_of(client) - timedelta(seconds=60)
    with client.database.transaction("date") as connection:
        ids = connection.execute(select(table.c.id)).scalars().all()
        for id_, waited in zip(ids, WAITED, strict=True):
            ready = at - timedelta(seconds=waited)
            values: dict[str, object] = {"pushed_at": ready, "archived_at": at}
            if "due_at" in table.c:
                values |= {"pushed_at": ready - timedelta(hours=1), "due_at": ready}
            connection.execute(update(table).where(table.c.id == id_).values(values))
    found = latency(client)
    assert is_near(found.waiting, WAITED)
    assert found.processing == Percentiles(unknown="a pop ends the message here")


@pytest.mark.parametrize("variant", WITHOUT_TIMES, ids=str)
def test_latency_is_unknown_with_a_reason_where_a_pop_deletes(use: Use, variant: Variant) -> None:
    client = popped(use, variant)
    found = latency(client)
    for of in (found.waiting, found.processing):
        assert (of.values, of.messages) == ((None, None, None), None)
        assert "a pop " in of.unknown
    assert impossible(client.queue) == (found.waiting.unknown, found.processing.unknown)


STATUS = default("status")


def test_too_few_or_too_old_messages_give_no_percentiles(use: Use) -> None:
    client = popped(use, STATUS, FEWEST - 1)
    percentiles = latency(client).waiting
    assert (percentiles.p99, percentiles.messages) == (None, FEWEST - 1)
    assert f"{FEWEST} are needed" in percentiles.unknown
    client.push_many(client.payloads(*range(MESSAGES - FEWEST + 1)))
    client.pop_many(MESSAGES)
    assert latency(client).waiting.messages == MESSAGES
    set_times(client, rows_in_work(client), 301.0, ends=False)
    assert latency(client).waiting.messages == 0


def test_later_attempts_and_push_times_in_the_future_are_ignored(use: Use) -> None:
    client = popped(use, STATUS)
    table = rows_in_work(client)
    set_times(client, table, 60.0, ends=False)
    with client.database.transaction("pop some again, push others later") as connection:
        ids = connection.execute(select(table.c.id).order_by(table.c.id)).scalars().all()
        again = update(table).where(table.c.id.in_(ids[:5])).values(attempts=2)
        connection.execute(again)
        tomorrow = now_of(client) + timedelta(days=1)
        future = update(table).where(table.c.id.in_(ids[5:7])).values(pushed_at=tomorrow)
        connection.execute(future)
    assert is_near(latency(client).waiting, WAITED[7:], of=MESSAGES - 7)


@pytest.mark.long
@pytest.mark.thinned(3, payload=False)
@pytest.mark.parametrize("variant", WITH_CLAIMS, ids=str)
@pytest.mark.parametrize("ends", [False, True])
def test_only_the_latest_messages_are_sampled(client: Client, *, ends: bool) -> None:
    client.push_many(client.payloads(*range(120)))
    for message in client.pop_many(120):
        assert not ends or client.fail(message, "no")
    table, now = rows_in_work(client), now_of(client)
    with client.database.transaction("date") as connection:
        ids = connection.execute(select(table.c.id).order_by(table.c.id)).scalars().all()
        for some, ago, waited in ((ids[20:], 200, 1), (ids[:20], 60, 1000)):
            popped_at = now - timedelta(seconds=ago)
            times = {"claimed_at": popped_at, "pushed_at": popped_at - timedelta(seconds=waited)}
            times |= {"done_at": popped_at} if ends else {}
            connection.execute(update(table).where(table.c.id.in_(some)).values(times))
    waiting = latency(client).waiting
    assert (waiting.messages, waiting.p50, waiting.p95) == (100, 1.0, 1000.0)


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=60))
def test_percentiles_equal_those_of_the_server(postgresql: Database, seconds: list[float]) -> None:
    with postgresql.transaction("ask", read_only=True) as connection:
        expected = connection.execute(
            text(
                "SELECT percentile_cont(CAST(:cuts AS float[])) WITHIN GROUP (ORDER BY s)"
                " FROM unnest(CAST(:seconds AS float[])) AS s"
            ),
            {"cuts": [percent / 100 for percent in PERCENTILES], "seconds": seconds},
        ).scalar_one()
    assert cuts(seconds) == pytest.approx(tuple(expected), rel=1e-9, abs=1e-9)


def test_claims_of_an_adopted_table_have_waiting_times(new_database: Database) -> None:
    roles = {"id": "id", "status": "state", "payload": "body", "pushed_at": "made"}
    mapped = {"jobs": roles | {"claimed_at": "taken"}, "tasks": roles}
    for name, of in mapped.items():
        with new_database.transaction("make their table") as connection:
            connection.execute(
                text(
                    f"CREATE TABLE public.{name} AS SELECT n AS id, 1 AS state, 'x' AS body,"
                    " now() - make_interval(secs => 60 + n) AS made,"
                    " now() - interval '60 s' AS taken FROM generate_series(1, 20) AS n"
                )
            )
        adopt.adopt(new_database, "public", name, DESIGNS["status"], of)
    latencies = {sample.queue.name: sample.latency for sample in take_sample(new_database).queues}
    assert latencies["jobs"] is not None
    assert is_near(latencies["jobs"].waiting, WAITED)
    assert latencies["jobs"].processing.unknown == "no index on the time of the end is known"
    assert latencies["tasks"] is not None
    assert latencies["tasks"].waiting.unknown == "no column is claimed_at"


def test_latency_that_cannot_be_read_in_time_is_unknown_and_read_less_often(
    use_postgresql: Use,
) -> None:
    client = popped(use_postgresql, ARCHIVING[0])
    archive = SQL("LOCK TABLE {}").format(
        Identifier(client.queue.schema, f"{client.queue.name}_archive")
    )
    now = [0.0]
    memory = Memory(lambda: now[0])

    def sample_waiting() -> Percentiles:
        (sampled,) = take_sample(client.database, only=[client.queue], memory=memory).queues
        assert sampled.row is not None
        assert sampled.latency is not None
        return sampled.latency.waiting

    assert sample_waiting().messages == MESSAGES
    now[0] += EVERY_SECONDS
    with connect(client.url) as other, other.transaction():
        other.execute(archive)
        assert sample_waiting().unknown == "it could not be read, or not in time"
        now[0] += FIRST_PAUSE_SECONDS
        assert sample_waiting().messages is None
    now[0] += FIRST_PAUSE_SECONDS
    assert sample_waiting().messages is None  # after a second failure the pause is longer
    now[0] += FIRST_PAUSE_SECONDS
    assert sample_waiting().messages == MESSAGES
