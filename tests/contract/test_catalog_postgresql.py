"""The catalog where only PostgreSQL's own means can show it: races, failures half-way, drops."""

import pytest
from sqlalchemy import text

from console import catalog, sql
from console.actions.adopt import forget
from console.actions.install import install, plan, uninstall
from console.catalog import installed_queue
from console.engines import Database, Timeouts, open_database
from console.errors import BusyError, ConsoleError, RefusedError, UsageError
from tests.contract.client import Client
from tests.contract.installs import all_designs, default_of, known, together
from tests.contract.leftovers import objects_of
from tests.contract.variants import DEFAULTS, Variant


def test_the_first_installs_of_a_database_all_at_once(virgin: Database) -> None:
    queues = [default_of(virgin, of, of.name) for of in all_designs(virgin)[:6]]
    patient = waiting_for_locks(virgin, 120)
    outcomes = together(*[lambda queue=queue: install(patient, queue) for queue in queues])
    patient.close()
    assert outcomes == [None] * len(queues)
    assert all(known(virgin, queue) for queue in queues)


def waiting_for_locks(database: Database, seconds: float) -> Database:
    """Connections of their own, which wait so long for a lock."""
    url = database.url.render_as_string(hide_password=False)
    return open_database(url, timeouts=Timeouts(lock_seconds=seconds))


def test_who_waits_too_long_for_another_installer_is_told_so(virgin: Database) -> None:
    """Nothing is said of rights to the audit, which nobody lacks."""
    hasty = waiting_for_locks(virgin, 0.05)
    with virgin.transaction("be the installer") as connection:
        sql.run(connection, "catalog.lock")
        with pytest.raises(BusyError, match="Another session holds the lock"):
            install(hasty, default_of(hasty, all_designs(hasty)[0], "orders"))
    hasty.close()


_TYPE = "CREATE TYPE public.q_archive AS ENUM ('a')"
"""Its name is met after the queue's own tables were made."""
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
"""Sprung by its last function."""


@pytest.mark.thinned(3, payload=False)
@pytest.mark.parametrize("variant", DEFAULTS, ids=str)
def test_an_install_that_fails_late_leaves_nothing(virgin: Database, variant: Variant) -> None:
    queue = variant.queue("public", "q")
    for obstacle, error, told in (
        (_TRAP, ConsoleError, "the trap"),
        (_TYPE, UsageError, "Could not install"),
    ):
        with virgin.transaction("put it in the way") as connection:
            connection.exec_driver_sql(obstacle)
        before = objects_of(virgin, with_own=True)
        with pytest.raises(error, match=told):
            install(virgin, queue)
        assert objects_of(virgin, with_own=True) == before
        assert known(virgin, queue) is None


def test_in_production_the_plan_says_so(virgin: Database) -> None:
    """And a single message counts."""
    queue = default_of(virgin, all_designs(virgin)[0], "q")
    install(virgin, queue)
    client = Client(virgin, queue)
    with virgin.transaction("mark") as connection:
        connection.execute(text("INSERT INTO dbq.setting VALUES ('production', 'on')"))
    assert not plan(virgin, queue, keep_archive=False).wants_with_messages
    client.push(client.payload(0))
    with pytest.raises(RefusedError):
        uninstall(virgin, queue, keep_archive=False, with_messages=False)
    assert "  PRODUCTION database" in plan(virgin, queue, keep_archive=False).lines()


def test_a_database_without_a_catalog(virgin: Database) -> None:
    with virgin.transaction("look") as connection:
        assert not catalog.has_catalog(connection)
        assert catalog.queues(connection) == []
        assert not catalog.is_production(connection)
        with pytest.raises(UsageError, match="no queue named"):
            catalog.find(connection, "q")


def test_a_queue_that_somebody_dropped_by_hand_can_be_forgotten(virgin: Database) -> None:
    of = all_designs(virgin)[0]
    queue = installed_queue("other", "q", of, of.complete_options({}))
    with virgin.transaction("make a schema") as connection:
        connection.execute(text("CREATE SCHEMA other"))
    install(virgin, queue)
    with pytest.raises(UsageError, match="behind, unlisted"):
        forget(virgin, queue)
    with virgin.transaction("drop") as connection:
        connection.execute(text("DROP SCHEMA other CASCADE"))
    forget(virgin, queue)
    assert known(virgin, queue) is None
