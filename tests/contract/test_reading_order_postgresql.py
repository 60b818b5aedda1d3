"""What begins while something is read is not taken for dead: who lives is read last, since a
transaction shows the sessions of its first reading."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from psycopg.sql import SQL, Identifier

from console.catalog import audit
from console.designs import DESIGNS
from console.engines import Database, open_database
from console.features.bench import peers
from console.features.bench.candidate import (
    PREFIX,
    PROOF_APPLICATION,
    PROOF_PREFIX,
    application_name,
    find_leftovers,
    new_token,
)
from console.features.prove.site import drop_left_databases
from console.monitor.memory import Memory
from console.monitor.owners import Evidence
from console.monitor.sample import take_sample
from tests.contract.conftest import Use
from tests.contract.variants import Variant
from tests.servers import at_statement, connect, value

Found = TypeVar("Found")
Begin = Callable[[], None]
PGMQ = """
CREATE SCHEMA pgmq;
CREATE TABLE pgmq.meta (queue_name text);
CREATE FUNCTION pgmq.drop_queue(name text) RETURNS boolean LANGUAGE sql
AS 'DELETE FROM pgmq.meta WHERE queue_name = name RETURNING true';
"""
"""What of pgmq is used to drop what earlier benches left."""


def each(read: Callable[[], Found], begin: Begin) -> Iterator[Found]:
    """What is read when something begins after the first statement, the second, and so on."""
    read()  # the first time reads more, which is kept
    for number in itertools.count(1):
        with at_statement(number, begin) as called:
            found = read()
        if not called():
            assert number > 2, "several statements read it"
            return
        yield found


@contextmanager
def runs(url: str, named: Callable[[str], str], make: Callable[[str], str]) -> Iterator[Begin]:
    """Begins runs that live until the end: a session of that name, then what they make."""
    connections = []

    def begin() -> None:
        token = new_token()
        connections.append(connection := connect(url))
        connection.execute("SELECT set_config('application_name', %s, false)", [named(token)])
        connection.execute(make(token).encode())

    try:
        yield begin
    finally:
        for connection in connections:
            connection.close()


def test_what_a_bench_makes_meanwhile_is_not_left_over(use_postgresql: Use) -> None:
    client = use_postgresql(Variant(DESIGNS["fifo"], {}))

    def make(token: str) -> str:
        return f"""CREATE SCHEMA {PREFIX}{token}_x;
            INSERT INTO dbq.queue (schema_name, queue_name, design, kind, options, roles, version)
            SELECT 'public', '{PREFIX}{token}', design, 'installed', options, roles, version
            FROM dbq.queue WHERE queue_name = '{client.queue.name}'"""

    with runs(client.url, application_name, make) as begin:
        for found in each(lambda: find_leftovers(client.database), begin):
            assert (found.queues, found.schemas) == ((), ())
    assert value(client.url, f"SELECT count(*) FROM pg_namespace WHERE nspname ~ '^{PREFIX}'")


def test_what_a_bench_of_pgmq_makes_meanwhile_is_not_dropped(new_database: Database) -> None:
    url = new_database.url.render_as_string(hide_password=False)
    with connect(url) as connection:
        connection.execute(PGMQ.encode())

    def make(token: str) -> str:
        return f"INSERT INTO pgmq.meta VALUES ('{PREFIX}{token}_pgmq')"

    begun = 0
    with runs(url, application_name, make) as begin:
        for _ in each(lambda: peers._drop_dead(new_database), begin):
            begun += 1
            assert value(url, "SELECT count(*) FROM pgmq.meta") == begun


def test_the_databases_that_a_proof_makes_meanwhile_are_not_dropped(new_database: Database) -> None:
    url = new_database.url.render_as_string(hide_password=False)
    reports: list[str] = []
    made: list[str] = []

    def make(token: str) -> str:
        made.append(f"{PROOF_PREFIX}{token}_x")
        return f"CREATE DATABASE {made[-1]} TEMPLATE template0 STRATEGY file_copy"

    try:
        with runs(url, lambda token: f"{PROOF_APPLICATION}{token}", make) as begin:
            for _ in each(lambda: drop_left_databases(new_database, reports.append), begin):
                assert not [line for line in reports if any(name in line for name in made)]
    finally:
        with connect(url) as connection:
            for name in made:
                connection.execute(SQL("DROP DATABASE IF EXISTS {}").format(Identifier(name)))


def test_who_claims_or_acts_during_a_sample_is_not_gone(use_postgresql: Use) -> None:
    client = use_postgresql(Variant(DESIGNS["claim"], {}))
    consumers = []
    operators = []
    memory = Memory()

    def begin() -> None:
        client.push(client.payload(0))
        consumers.append(consumer := connect(client.url))
        pop = Identifier(client.queue.schema, f"{client.queue.name}_pop")
        consumer.execute(SQL("SELECT FROM {}(bound => true)").format(pop))
        operators.append(operator := open_database(client.url))
        with operator.transaction("act") as connection:
            subject = audit.Subject.of(operator, client.queue, "requeue")
            audit.ActionRecord.begin(connection, subject)

    try:
        for sample in each(
            lambda: take_sample(client.database, only=[client.queue], memory=memory), begin
        ):
            (observed,) = sample.queues
            assert Evidence.GONE not in {claim.owner for claim in observed.claims or ()}
            assert memory.catalog is not None
            assert observed.acting == tuple(memory.catalog.acting)
        assert len(operators) > 3
    finally:
        for consumer in consumers:
            consumer.close()
        for operator in operators:
            operator.close()
