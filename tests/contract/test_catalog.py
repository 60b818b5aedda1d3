"""Install and uninstall: completely or not at all, with a clear error for what is impossible.

At the end what only PostgreSQL can show: races, failures half-way, drops.
"""

import pytest
from sqlalchemy import Column, MetaData, Table, Text, insert, text
from sqlalchemy.schema import CreateTable

from console import catalog, sql
from console.actions import pop, push, relay
from console.actions.forget import forget
from console.actions.install import install, plan, uninstall
from console.catalog import Catalog, Kind, Queue, installed_queue, object_names
from console.designs import DESIGNS, Design, design
from console.engines import PRODUCTS, Database, Timeouts, open_database
from console.errors import BusyError, ConsoleError, RefusedError, UsageError
from console.plan import Plan
from tests.contract.client import Client
from tests.contract.conftest import ENGINES_UNDER_TEST, Use
from tests.contract.installs import all_designs, catalogued, default_of, run_concurrently
from tests.contract.leftovers import objects_of
from tests.contract.variants import (
    BEHAVIOURS,
    BEHAVIOURS_AND_PAYLOADS,
    DEFAULTS,
    Variant,
    long_except,
)


@pytest.mark.parametrize("engine", PRODUCTS)
def test_the_contract_is_run_on_the_engine(engine: str) -> None:
    if engine not in ENGINES_UNDER_TEST:
        pytest.skip(f"DBQ_TEST_{engine.upper()}_URL names no server: nothing was run on {engine}")


pytestmark = pytest.mark.thinned(3, payload=False)


def planned(client: Client, *, keep_archive: bool = False, with_messages: bool = False) -> Plan:
    return plan(
        client.database, client.queue, keep_archive=keep_archive, with_messages=with_messages
    )


ARCHIVING = [v for v in BEHAVIOURS if v.options.get("archive_at_pop") == "on"]


def make_table(database: Database, name: str) -> Table:
    table = Table(name, MetaData(), Column("x", Text), schema=database.product.default_schema)
    with database.transaction("make a table") as connection:
        connection.execute(CreateTable(table))
    return table


@pytest.mark.parametrize("variant", long_except(BEHAVIOURS_AND_PAYLOADS), ids=str)
def test_the_catalog_lists_an_installed_queue_and_uninstall_leaves_nothing(
    database: Database, use: Use, variant: Variant
) -> None:
    before = objects_of(database)
    client = use(variant)
    queue = client.queue
    found = catalogued(database, queue)
    assert found is not None
    assert (found.design, found.options, found.roles) == (queue.design, queue.options, queue.roles)
    assert (found.kind, found.version) == (Kind.INSTALLED, catalog.INTERFACE_VERSION)
    assert found.installed_by
    assert "@" in found.installed_from
    assert found.installed_at is not None
    client.push_many(client.payloads(*range(20)))
    client.pop_many(5)
    assert objects_of(database) > before

    counted = uninstall(database, queue, keep_archive=False, with_messages=True).data

    assert objects_of(database) == before
    assert catalogued(database, queue) is None
    assert counted["live"] == 15
    assert counted["claimed"] == (5 if variant.finishes else 0)
    assert counted["archived"] == (5 if variant.options.get("archive_at_pop") == "on" else 0)
    assert counted["lost"] == 15 + counted["claimed"] + counted["archived"]
    install(database, queue)  # and the name is free again
    assert client.drain() == []


@pytest.mark.parametrize("suffix", ["", "_archive", "_parked", "_meta", "_push_seq", "_waiting"])
def test_a_name_that_a_table_has_is_refused(database: Database, suffix: str) -> None:
    name = f"a table for{suffix}"
    table = make_table(database, name + suffix)
    with database.transaction("fill") as connection:
        connection.execute(insert(table).values(x="precious"))
    for of in all_designs(database):
        queue = default_of(database, of, name)
        if name + suffix not in object_names.of(database.product, queue):
            continue
        before = objects_of(database)
        with pytest.raises(UsageError, match="is taken") as caught:
            install(database, queue)
        assert "'" + name + suffix + "'" in caught.value.why
        assert objects_of(database) == before
        assert catalogued(database, queue) is None
    with database.transaction("look") as connection:
        assert connection.execute(table.select()).scalar_one() == "precious"


@pytest.mark.long
@pytest.mark.parametrize("of", DESIGNS.values(), ids=lambda of: of.name)
def test_two_queues_never_share_an_object(database: Database, of: Design) -> None:
    """`a` has a table `a_archive`, which a queue of that name would have too."""
    short = default_of(database, of, f"share {of.name}")
    long = default_of(database, of, short.name + "_archive")
    for first, second in ((short, long), (long, short)):
        install(database, first)
        Client(database, first).push("1")
        try:
            install(database, second)
        except UsageError:
            pass  # it says what is taken: see above
        else:
            Client(database, second).push("2")
            assert [m.payload for m in Client(database, second).drain()] == ["2"]
            uninstall(database, second, keep_archive=False, with_messages=True)
        assert [m.payload for m in Client(database, first).drain()] == ["1"]
        uninstall(database, first, keep_archive=False, with_messages=True)


def test_a_missing_schema_is_refused(database: Database) -> None:
    before = objects_of(database)
    for of in all_designs(database):
        queue = installed_queue("nowhere", "q", of, of.complete_options({}))
        with pytest.raises(UsageError, match="no schema 'nowhere'"):
            install(database, queue)
    assert objects_of(database) == before


def test_a_queue_cannot_have_the_name_of_a_catalog_table(database: Database) -> None:
    of = design("fifo")
    if database.product.name not in of.engines:
        pytest.skip("not on this engine")
    install(database, default_of(database, of, "bootstraps"))
    with pytest.raises(UsageError, match="is taken"):
        install(database, installed_queue("dbq", "queue", of, of.complete_options({})))


@pytest.mark.parametrize("of", DESIGNS.values(), ids=lambda of: of.name)
def test_only_one_of_several_concurrent_installs_of_a_name_succeeds(
    database: Database, of: Design
) -> None:
    queue = default_of(database, of, f"race {of.name}")
    outcomes = run_concurrently(*[lambda: install(database, queue)] * 4)
    assert outcomes.count(None) == 1
    errors = [outcome for outcome in outcomes if outcome is not None]
    assert {type(error) for error in errors} == {UsageError}
    client = Client(database, queue)
    client.push(client.payload(1))
    before = objects_of(database, with_own=True)
    for other in all_designs(database)[:2]:
        with pytest.raises(UsageError, match="already a queue named") as caught:
            install(database, default_of(database, other, queue.name))
        assert of.name in caught.value.why
    assert objects_of(database, with_own=True) == before
    assert len(client.drain()) == 1


@pytest.mark.parametrize("variant", DEFAULTS, ids=str)
def test_uninstall_drops_messages_only_if_the_operator_says_so(client: Client) -> None:
    """Even a message pushed after the plan; and an open pop is not interrupted."""
    database, queue = client.database, client.queue
    assert not planned(client).obstacles
    client.push_many(client.payloads(1))
    before = objects_of(database)
    with pytest.raises(RefusedError, match="still holds 1 message,"):
        uninstall(database, queue, keep_archive=False, with_messages=False)
    assert planned(client).obstacles
    assert not planned(client, with_messages=True).obstacles
    assert (planned(client).data["live"], planned(client).count) == (1, 1)
    client.push(client.payload(2))
    impatient = open_database(client.url, timeouts=Timeouts(lock_seconds=0.1))
    with database.transaction("pop") as connection:
        assert pop.pop_many(connection, queue, 1)
        with pytest.raises(BusyError):
            uninstall(impatient, queue, keep_archive=False, with_messages=True)
    impatient.close()
    assert objects_of(database) == before
    assert client.pop()
    assert planned(client).data["archived"] == 0
    assert queue.finishes or not planned(client).obstacles
    done = uninstall(database, queue, keep_archive=False, with_messages=True)
    assert done.data["lost"] == (2 if queue.finishes else 0)
    assert catalogued(database, queue) is None


@pytest.mark.parametrize("variant", ARCHIVING, ids=str)
def test_the_archive_can_be_kept(client: Client) -> None:
    database, queue = client.database, client.queue
    client.push_many(client.payloads(0, 1, 2))
    client.pop_many(2)
    kept, lost = (planned(client, keep_archive=keep).lines for keep in (True, False))
    assert "  1 message not popped yet" in kept
    assert "  2 archived messages: stay, listed as an archive" in kept
    assert "  2 archived messages: are dropped with it" in lost

    counted = uninstall(database, queue, keep_archive=True, with_messages=True).data

    assert (counted["live"], counted["archived"], counted["lost"]) == (1, 2, 1)
    left = catalogued(database, queue)
    assert left is not None
    assert left.kind is Kind.ARCHIVE
    with pytest.raises(UsageError, match="already a queue") as caught:
        install(database, queue)
    assert "keep-archive" in caught.value.why
    refuses_everything(database, left)
    counted = plan(database, left, keep_archive=False, with_messages=True).data
    assert (counted["live"], counted["archived"], counted["lost"]) == (0, 2, 2)
    uninstall(database, left, keep_archive=False, with_messages=True)
    assert catalogued(database, queue) is None
    install(database, queue)


def refuses_everything(database: Database, left: Queue) -> None:
    """An archive without its queue allows no pop, push or forget."""
    with pytest.raises(UsageError, match="only its archive is left"):
        pop.pop(database, left, lambda _: None)
    with pytest.raises(UsageError, match="only its archive is left"):
        push.push_waiting(database, left, "x", 0.0)
    with pytest.raises(UsageError, match="behind, unlisted"):
        forget(database, left)
    if "relay" in left.design.verbs:
        with pytest.raises(RefusedError):
            relay.relay(database, left, None)


def test_a_queue_is_found_by_name_with_or_without_its_schema(database: Database) -> None:
    of = all_designs(database)[0]
    queue = default_of(database, of, "findable")
    install(database, queue)
    with database.transaction("look") as connection:
        with pytest.raises(UsageError, match="no queue named 'findible'") as caught:
            catalog.find(connection, "findible")
        assert "findable" in caught.value.next_step
        with pytest.raises(UsageError, match="in schema 'elsewhere'"):
            catalog.find(connection, "findable", "elsewhere")
        assert catalog.find(connection, "findable", queue.schema).label == queue.label


def test_concurrent_first_installs_of_a_database_all_succeed(new_database: Database) -> None:
    queues = [default_of(new_database, of, of.name) for of in all_designs(new_database)[:6]]
    patient_database = waiting_for_locks(new_database, 120)
    outcomes = run_concurrently(
        *[lambda queue=queue: install(patient_database, queue) for queue in queues]
    )
    patient_database.close()
    assert outcomes == [None] * len(queues)
    assert all(catalogued(new_database, queue) for queue in queues)


def waiting_for_locks(database: Database, seconds: float) -> Database:
    """New connections with this lock timeout."""
    url = database.url.render_as_string(hide_password=False)
    return open_database(url, timeouts=Timeouts(lock_seconds=seconds))


def test_waiting_too_long_for_another_installer_is_an_error(new_database: Database) -> None:
    """The error does not blame missing rights to the audit."""
    impatient = waiting_for_locks(new_database, 0.05)
    with new_database.transaction("be the installer") as connection:
        sql.run(connection, "catalog.lock")
        with pytest.raises(BusyError, match="Another session holds the lock"):
            install(impatient, default_of(impatient, all_designs(impatient)[0], "orders"))
    impatient.close()


_TYPE = "CREATE TYPE public.q_archive AS ENUM ('a')"
"""Its name conflicts only after the queue's tables were created."""
_TRAP = """
    CREATE FUNCTION trap() RETURNS event_trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF EXISTS (SELECT FROM pg_proc WHERE proname = 'q_pop_many') THEN
            RAISE EXCEPTION 'the trap';
        END IF;
    END $$;
    CREATE EVENT TRIGGER trap ON ddl_command_end WHEN TAG IN ('CREATE FUNCTION')
        EXECUTE FUNCTION trap()
"""
"""Triggered by the queue's last function."""


@pytest.mark.parametrize("variant", DEFAULTS, ids=str)
def test_an_install_that_fails_late_leaves_nothing(
    new_database: Database, variant: Variant
) -> None:
    queue = variant.queue("public", "q")
    for obstacle, error, message in (
        (_TRAP, ConsoleError, "the trap"),
        (_TYPE, UsageError, "Could not install"),
    ):
        with new_database.transaction("put it in the way") as connection:
            connection.exec_driver_sql(obstacle)
        before = objects_of(new_database, with_own=True)
        with pytest.raises(error, match=message):
            install(new_database, queue)
        assert objects_of(new_database, with_own=True) == before
        assert catalogued(new_database, queue) is None


def test_an_uninstall_plan_says_that_the_database_is_production(new_database: Database) -> None:
    queue = default_of(new_database, all_designs(new_database)[0], "q")
    install(new_database, queue)
    with new_database.transaction("mark") as connection:
        connection.execute(text("INSERT INTO dbq.setting VALUES ('production', 'on')"))
    planned = plan(new_database, queue, keep_archive=False, with_messages=False)
    assert planned.lines.count("  PRODUCTION database") == 1


CHANGES = """
UPDATE dbq.queue SET version = 1
UPDATE dbq.queue SET version = 2
INSERT INTO dbq.setting VALUES ('production', 'on')
UPDATE dbq.setting SET value = 'off'
INSERT INTO dbq.pause VALUES ('public', 'a', now(), '', '', '', NULL, false, '{}')
UPDATE dbq.pause SET push = true
INSERT INTO dbq.protection (schema_name, queue_name, operator) VALUES ('public', 'a', 'i')
INSERT INTO dbq.silence (kind, code, operator) VALUES ('silence', 'x', 'i')
UPDATE dbq.silence SET until = now()
UPDATE dbq.queue SET kind = 'archive' WHERE queue_name = 'b'
DELETE FROM dbq.queue WHERE queue_name = 'b'
UPDATE dbq.queue SET options = options || '{"sha256": "0"}', kind = 'adopted'
ALTER TABLE a RENAME TO c; CREATE VIEW a AS SELECT 1 AS n; ALTER VIEW a OWNER TO pg_monitor
DROP TABLE dbq.silence, dbq.note
DELETE FROM dbq.queue
"""
"""A line for each. A view of somebody else in the place of a table changes no row."""
ACTION = """
    INSERT INTO dbq.action (schema_name, queue_name, verb, operator, session, connection)
    VALUES ('public', 'a', 'requeue', 'me', 'pid=1', 'here')
"""


def read_again(database: Database, kept: Catalog, after: str = "SELECT 1") -> Catalog:
    with database.transaction("change") as connection:
        connection.exec_driver_sql(f"SET LOCAL search_path = public; {after}")
    with database.transaction("look", read_only=True) as connection:
        return catalog.read(connection, kept)


def test_a_kept_catalog_is_read_again_after_each_change(new_database: Database) -> None:
    of = all_designs(new_database)[0]
    for name in ("a", "b"):
        install(new_database, default_of(new_database, of, name))
    kept = read_again(new_database, Catalog())
    for change in CHANGES.strip().splitlines():
        now = read_again(new_database, kept, change)
        assert now != kept, change
        assert now == read_again(new_database, Catalog()), change
        kept = now


def test_an_unchanged_catalog_is_kept_but_for_what_operators_do(new_database: Database) -> None:
    install(new_database, default_of(new_database, all_designs(new_database)[0], "a"))
    kept = read_again(new_database, Catalog())
    for change, done in (
        ("SELECT 1", []),
        (ACTION, [0]),
        ("UPDATE dbq.action SET done = 7", [7]),
        ("UPDATE dbq.action SET ended_at = now()", []),
    ):
        now = read_again(new_database, kept, change)
        assert now.queues is kept.queues
        assert [one.done for one in now.acting] == done


def test_where_tables_may_run_others_code_each_is_examined_each_time(
    new_database: Database,
) -> None:
    """As soon as anything in the database is not a superuser's, that is all that the rows say."""
    install(new_database, default_of(new_database, all_designs(new_database)[0], "a"))
    theirs = "CREATE VIEW {0} AS SELECT 1 AS n; ALTER VIEW {0} OWNER TO pg_monitor"
    kept = read_again(new_database, Catalog(), theirs.format("v"))
    now = read_again(new_database, kept, f"ALTER TABLE a RENAME TO c; {theirs.format('a')}")
    assert now.queues != kept.queues
    assert now == read_again(new_database, Catalog())


def test_a_database_without_a_catalog_has_no_queues(new_database: Database) -> None:
    with new_database.transaction("look") as connection:
        assert not catalog.has_catalog(connection)
        assert catalog.queues(connection) == []
        assert not catalog.is_production(connection)
        with pytest.raises(UsageError, match="no queue named"):
            catalog.find(connection, "q")


def test_a_queue_that_was_dropped_by_hand_can_be_forgotten(new_database: Database) -> None:
    of = all_designs(new_database)[0]
    queue = installed_queue("other", "q", of, of.complete_options({}))
    with new_database.transaction("make a schema") as connection:
        connection.execute(text("CREATE SCHEMA other"))
    install(new_database, queue)
    with pytest.raises(UsageError, match="behind, unlisted"):
        forget(new_database, queue)
    with new_database.transaction("drop") as connection:
        connection.execute(text("DROP SCHEMA other CASCADE"))
    forget(new_database, queue)
    assert catalogued(new_database, queue) is None
