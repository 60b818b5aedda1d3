"""Whether pops go by their index, as PostgreSQL's planner says: faults made for real."""

from contextlib import closing

import pytest
from psycopg.sql import SQL, Identifier

from console.catalog import Kind, Queue, installed_queue
from console.designs import DESIGNS
from console.doctor import indexes
from console.doctor.consumption import Consumption
from console.doctor.examination import open_examination
from console.doctor.examine import examine
from console.doctor.finding import Finding
from console.engines import PRODUCTS, Database, open_database
from console.monitor.limits import Severity
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.variants import ALL, DEFAULTS, Variant
from tests.servers import connect, wait_until

PLANNED = [v for v in DEFAULTS if v.design.name not in {"heap", "ring", "broker"}]
PLANNED += [Variant(DESIGNS["split"], {"dequeue": "two_step"})]
CLAIM = Variant(DESIGNS["claim"], {})
FIFO = Variant(DESIGNS["fifo"], {})


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "ENOUGH_PAGES", 1)


def filled(use: Use, of: Variant) -> Client:
    client = use(of)
    assert None not in client.push_many(client.payloads(*range(50)))
    return client


def found(database: Database, queue: Queue) -> dict[str, Finding]:
    with open_examination(database, queue) as look:
        findings = {one.code.name: one for one in indexes.INDEXES.examine(look)}
        assert look.unseen == []
    return findings


def index_of_pop(client: Client) -> str:
    expected = indexes.of_pop(client.database.product, client.queue)
    assert expected is not None
    with connect(client.url) as connection:
        rows = connection.execute(
            "SELECT c.relname, pg_get_indexdef(c.oid) FROM pg_index AS i "
            "JOIN pg_class AS c ON c.oid = i.indexrelid WHERE i.indrelid = %s::regclass",
            [f'"{expected.table}"'],
        ).fetchall()
    condition = expected.condition.replace(" ", "").lower()
    (name,) = [
        name
        for name, made in rows
        if f"({', '.join(expected.columns)})" in made
        and condition in made.replace(" ", "").lower()
        and ("WHERE" in made) == bool(condition)
    ]
    return str(name)


def invalidate(client: Client, index: str) -> None:
    """As an interrupted REINDEX CONCURRENTLY or CREATE INDEX CONCURRENTLY leaves it."""
    with connect(client.url) as connection:
        connection.execute(
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = %s::regclass", [f'"{index}"']
        )


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("of", PLANNED, ids=str)
def test_a_pop_that_does_not_go_by_its_index(use: Use, of: Variant) -> None:
    client = filled(use, of)
    assert found(client.database, client.queue) == {}
    index = index_of_pop(client)
    invalidate(client, index)
    findings = found(client.database, client.queue)
    finding = findings.pop("index_unused")
    assert findings.keys() <= {"index_invalid"}
    assert finding.code.severity is Severity.WARNING
    assert f"{index} is invalid" in finding.cause
    assert finding.consequence
    assert {"Sort", "Seq Scan"} & {node["Node Type"] for node in plan_of(finding)}
    assert finding.repair is not None
    assert finding.repair.plan(client.database)
    assert finding.repair.run(client.database)
    assert found(client.database, client.queue) == {}


def plan_of(finding: Finding) -> list[dict[str, object]]:
    nodes = finding.evidence["plan"]
    assert isinstance(nodes, list)
    return nodes


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("of", [CLAIM, FIFO], ids=str)
def test_an_index_that_is_too_young_for_who_is_still_there(use: Use, of: Variant) -> None:
    """As a CREATE INDEX leaves it for as long as somebody may see rows of before."""
    client = filled(use, of)
    with closing(connect(client.url)) as older:
        older.execute("BEGIN")
        older.execute("SELECT pg_current_xact_id()")
        with connect(client.url) as connection:
            connection.execute(
                "UPDATE pg_index SET indcheckxmin = true WHERE indexrelid = %s::regclass",
                [f'"{index_of_pop(client)}"'],
            )
        (finding,) = found(client.database, client.queue).values()
        assert finding.code is indexes.UNUSED
        assert "an older transaction" in finding.cause
        assert finding.repair is None
    wait_until(lambda: not found(client.database, client.queue), "the older one has ended")


@pytest.mark.usefixtures("any_size")
def test_an_index_that_is_gone_is_told_once(use: Use) -> None:
    client = filled(use, CLAIM)
    with connect(client.url) as connection:
        connection.execute(SQL("DROP INDEX {}").format(Identifier(index_of_pop(client))))
    assert found(client.database, client.queue).keys() == {"index_missing"}


@pytest.mark.usefixtures("any_size")
def test_a_better_index_than_ours_will_do(use: Use) -> None:
    client = filled(use, CLAIM)
    index = index_of_pop(client)
    with connect(client.url) as connection:
        table = Identifier(client.queue.table)
        connection.execute(
            SQL(
                "CREATE INDEX ON {} (created_at, id, claimed_by) "
                "WHERE processing_started_at IS NULL"
            ).format(table)
        )
    invalidate(client, index)
    assert found(client.database, client.queue).keys() == {"index_invalid"}


@pytest.mark.parametrize("of", PLANNED, ids=str)
def test_a_short_queue_is_left_alone(use: Use, of: Variant) -> None:
    """Empty, and with a few messages, even where a read of all is what the planner chooses."""
    client = use(of)
    invalidate(client, index_of_pop(client))
    for _ in range(2):
        assert "index_unused" not in found(client.database, client.queue)
        client.push_many(client.payloads(*range(20)))


@pytest.mark.parametrize("of", PLANNED, ids=str)
def test_a_deep_queue_without_statistics_raises_no_alarm(use: Use, of: Variant) -> None:
    client = use(of)
    for _ in range(4):
        client.push_many(["x" * 500] * 1000)
    with connect(client.url) as connection:
        table = Identifier(client.queue.table)
        assert found(client.database, client.queue) == {}
        connection.execute(SQL("ANALYZE {}").format(table))
    assert len(client.pop_many(1000)) == 1000
    assert found(client.database, client.queue) == {}


def test_who_may_only_read_is_told_the_same(use: Use) -> None:
    client = filled(use, FIFO)
    with connect(client.url) as connection:
        connection.execute("DROP ROLE IF EXISTS dbq_test_reader")
        connection.execute("CREATE ROLE dbq_test_reader LOGIN PASSWORD 'reader'")
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA dbq, public TO dbq_test_reader")
        connection.execute("GRANT USAGE ON SCHEMA dbq TO dbq_test_reader")
    url = client.database.url.set(username="dbq_test_reader", password="reader")
    try:
        with closing(open_database(url.render_as_string(hide_password=False))) as reader:
            assert found(reader, client.queue) == {}
    finally:
        with connect(client.url) as connection:
            connection.execute("DROP OWNED BY dbq_test_reader")
            connection.execute("DROP ROLE dbq_test_reader")


@pytest.mark.parametrize("of", ALL, ids=str)
def test_every_pop_that_has_an_index_has_one_here(of: Variant) -> None:
    for engine in of.engines:
        if of.design.name == "broker":
            continue
        expected = indexes.of_pop(PRODUCTS[engine], of.queue("s", "q", engine))
        assert (expected is None) == (of.design.name in {"heap", "ring"})


def test_of_whom_it_is_looked_for() -> None:
    queue = installed_queue("s", "q", DESIGNS["fifo"], FIFO.options)
    assert indexes.INDEXES.applies(queue)
    assert not indexes.INDEXES.applies(Queue("s", "q", DESIGNS["fifo"], {}, {}, Kind.ADOPTED))


@pytest.mark.usefixtures("any_size")
def test_it_is_among_the_doctors_families(use: Use) -> None:
    client = filled(use, FIFO)
    invalidate(client, index_of_pop(client))
    (diagnosis,) = examine(
        client.database,
        [client.queue],
        patience_seconds=0.1,
        consumption=Consumption(3600.0, waits=False),
    )
    assert "index_unused" in [finding.code.name for finding in diagnosis.findings]
