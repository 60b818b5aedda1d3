"""Upgrade: changed or older objects are replaced by the shipped ones; no message changes."""

from dataclasses import replace

import psycopg
import pytest
from psycopg.sql import SQL, Identifier
from sqlalchemy import make_url

from console import catalog
from console.actions.install import uninstall
from console.actions.upgrade import How, differences, plan, upgrade
from console.designs import DESIGNS
from console.engines import Database
from console.errors import RefusedError, UsageError
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.filled import fill
from tests.contract.installs import installed
from tests.contract.message_actions import archived, entries
from tests.contract.traffic import Traffic
from tests.contract.variants import DEFAULTS, Variant, default, on
from tests.servers import connect, login

CLAIM = Variant(DESIGNS["claim"], {"notify": "on"})
FIFO = Variant(DESIGNS["fifo"], {})
RING = default("ring")


def from_catalog(client: Client) -> catalog.Queue:
    """The queue as read from the catalog now."""
    with client.database.transaction("look", read_only=True) as connection:
        return catalog.find(connection, client.queue.name)


def session(client: Client) -> psycopg.Connection:
    return connect(client.url)


def differences_of(client: Client) -> dict[str, How]:
    return {d.name: d.how for d in differences(client.database, from_catalog(client))}


@pytest.mark.parametrize("variant", on("postgresql", DEFAULTS), ids=str)
def test_an_older_queue_is_upgraded_and_keeps_its_messages(
    use_postgresql: Use, variant: Variant
) -> None:
    client = use_postgresql(variant)
    fill(client)
    name = client.queue.name
    with session(client) as connection:
        connection.execute(
            f"""CREATE OR REPLACE FUNCTION "{name}_push"(payload text) RETURNS {_id(client)}
            LANGUAGE sql AS 'SELECT NULL::{_id(client)}'"""
            if variant.design.name not in {"claim", "status", "split", "pending"}
            else f"""DROP FUNCTION "{name}_push" """
        )
        connection.execute(f'DROP FUNCTION "{name}_push_many"')
        connection.execute(f'ALTER FUNCTION "{name}_pop" SET work_mem = 64')
        connection.execute(f'ALTER TABLE "{name}_archive" DROP COLUMN action_id')
        connection.execute("UPDATE dbq.queue SET version = 0 WHERE queue_name = %s", [name])
        before = connection.execute(f'SELECT t FROM "{client.queue.table}" AS t').fetchall()
    reported = differences_of(client)
    assert reported[f"{name}_push_many"] is How.MISSING
    assert reported[f"{name}_pop"] is How.OTHER
    assert reported[f"{name}_archive.action_id"] is How.MISSING
    assert reported[name] is How.OLDER
    assert f"{name}_push" in reported

    done = upgrade(client.database, from_catalog(client))

    assert {d.name for d in done.differences} == set(reported)
    assert differences_of(client) == {}
    assert from_catalog(client).version == catalog.INTERFACE_VERSION
    with session(client) as connection:
        after = connection.execute(f'SELECT t FROM "{client.queue.table}" AS t').fetchall()
    assert after == before
    (entry,) = entries(client, "upgrade")
    assert (entry.outcome, name in entry.detail) == ("done", True)
    assert not upgrade(client.database, from_catalog(client)).needed
    assert len(entries(client, "upgrade")) == 1, "nothing to do is no action"
    client.drain()
    assert archived(client) == [], "without archive_at_pop"


def _id(client: Client) -> str:
    return "uuid" if client.queue.design.id_type == "uuid" else "bigint"


def test_the_plan_names_triggers_that_would_get_another_search_path(use_postgresql: Use) -> None:
    """An older version's functions had their callers' path; so had the triggers that they fired."""
    client = use_postgresql(FIFO)
    name = client.queue.name
    function = "RETURNS trigger LANGUAGE plpgsql {} AS 'BEGIN RETURN NEW; END'"
    with session(client) as connection:
        for trigger, path in {"bare": "", "own": "SET search_path = public"}.items():
            connection.execute(
                f"""CREATE FUNCTION "{trigger} {name}"() {function.format(path)};
                CREATE TRIGGER {trigger} AFTER INSERT ON "{name}"
                EXECUTE FUNCTION "{trigger} {name}"()""".encode()
            )
        connection.execute(f'ALTER FUNCTION "{name}_push" RESET search_path'.encode())
        planned = plan(client.database, from_catalog(client))
        assert planned.triggers == ("bare",)
        assert any(line.startswith("  trigger bare runs with") for line in planned.lines())
        upgrade(client.database, from_catalog(client))
        path = f"SELECT proconfig FROM pg_proc WHERE proname = '{name}_push'"
        assert connection.execute(path.encode()).fetchone() == (
            ["search_path=pg_catalog, pg_temp"],
        )
        for trigger in ("bare", "own"):
            drop = f'DROP FUNCTION "{trigger} {name}" CASCADE'
            connection.execute(drop.encode())


def test_a_missing_column_is_restored_with_its_indexes(use_postgresql: Use) -> None:
    client = use_postgresql(CLAIM)
    fill(client)
    name = client.queue.name
    indexes = "SELECT count(*) FROM pg_indexes WHERE tablename = %s AND indexdef LIKE '%%done_at%%'"
    with session(client) as connection:
        assert connection.execute(indexes, [name]).fetchone() == (1,)
        connection.execute(f'ALTER TABLE "{name}" DROP COLUMN done_at, DROP COLUMN attempts')
        assert connection.execute(indexes, [name]).fetchone() == (0,)
    planned = plan(client.database, from_catalog(client))
    assert planned.changed_by_hand is False
    assert any("done_at is missing" in line for line in planned.lines())
    upgrade(client.database, from_catalog(client))
    with session(client) as connection:
        assert connection.execute(indexes, [name]).fetchone() == (1,)
    client.drain()


def test_an_upgrade_is_refused_if_a_missing_column_cannot_be_filled(use_postgresql: Use) -> None:
    client = use_postgresql(FIFO)
    fill(client)
    name = client.queue.name
    with session(client) as connection:
        connection.execute(f'ALTER TABLE "{name}" DROP COLUMN payload')
        connection.execute(f'ALTER FUNCTION "{name}_pop" RESET enable_seqscan')
    with pytest.raises(RefusedError, match="cannot be upgraded") as refused:
        upgrade(client.database, from_catalog(client))
    assert "payload" in refused.value.why
    assert differences_of(client)[f"{name}_pop"] is How.OTHER, "all of it or nothing"


def test_a_function_with_another_signature_is_replaced_and_keeps_its_rights(
    use_postgresql: Use,
) -> None:
    """Overloads of an older version are dropped; granted rights stay."""
    client = use_postgresql(FIFO)
    name = client.queue.name
    with login(client.url) as url, session(client) as connection:
        role = make_url(url).username
        connection.execute(f'DROP FUNCTION "{name}_pop_many"')
        for arguments in ("n bigint", "n integer, lax boolean"):
            signature = f'"{name}_pop_many"({arguments})'
            connection.execute(
                f"""CREATE FUNCTION {signature} RETURNS text LANGUAGE sql AS 'SELECT ''old''';
                REVOKE EXECUTE ON FUNCTION {signature} FROM PUBLIC;
                GRANT EXECUTE ON FUNCTION {signature} TO "{role}" """
            )
        assert differences_of(client) == {f"{name}_pop_many": How.OTHER_SIGNATURE}
        upgrade(client.database, from_catalog(client))
        assert differences_of(client) == {}
        rights = connection.execute(
            """SELECT has_function_privilege(%s, p.oid, 'EXECUTE'),
            has_function_privilege('public', p.oid, 'EXECUTE')
            FROM pg_proc AS p WHERE p.proname = %s""",
            [role, f"{name}_pop_many"],
        ).fetchall()
        assert rights == [(True, False)]


def test_a_ring_of_version_1_gets_the_turn_sequence_with_its_rights(
    use_postgresql: Use,
) -> None:
    """With the rights of the pop sequence, without which a consumer's pop would be refused."""
    client = use_postgresql(RING)
    fill(client)
    name = client.queue.name
    turns = f'"{name}_turn_seq"'
    with login(client.url) as url, session(client) as connection:
        role = make_url(url).username
        connection.execute(f"DROP SEQUENCE {turns}")
        connection.execute("UPDATE dbq.queue SET version = 1 WHERE queue_name = %s", [name])
        connection.execute(f'GRANT USAGE, SELECT ON SEQUENCE "{name}_pop_seq" TO "{role}"')
        assert differences_of(client) == {f"{name}_turn_seq": How.MISSING, name: How.OLDER}
        planned = plan(client.database, from_catalog(client))
        assert not planned.changed_by_hand
        assert any(f"sequence {name}_turn_seq is missing" in line for line in planned.lines())
        upgrade(client.database, from_catalog(client))
        assert differences_of(client) == {}
        park = f"""INSERT INTO "{name}_parked" SELECT -generate_series(1, 100), false, now()"""
        connection.execute(park)
        rights = "SELECT has_sequence_privilege(%s, %s, unnest(ARRAY['USAGE', 'SELECT']))"
        assert connection.execute(rights, [role, turns]).fetchall() == [(True,), (True,)]
        client.drain()
        connection.execute(
            f"DROP SEQUENCE {turns}"
        )  # a ring of that version can be uninstalled too
        uninstall(client.database, from_catalog(client), keep_archive=False, with_messages=True)


def test_upgrades_under_traffic_lose_no_message(use_postgresql: Use) -> None:
    """Functions are replaced and a column is added repeatedly, next to producers and consumers."""
    client = use_postgresql(CLAIM)
    name = client.queue.name
    traffic = Traffic(client, backlog=50)
    with traffic.running(min_finished=20):
        for _ in range(3):
            with session(client) as connection:
                connection.execute(f'ALTER FUNCTION "{name}_pop_many" SET work_mem = 64')
                connection.execute(f'ALTER TABLE "{name}_archive" DROP COLUMN action_id')
            assert len(upgrade(client.database, from_catalog(client)).differences) == 2
            traffic.progress(20)
    assert differences_of(client) == {}
    traffic.settle()


def test_an_older_catalog_gets_the_tables_that_it_lacks(new_database: Database) -> None:
    client = installed(new_database, FIFO)
    for table in ("action", "notification", "lease", "catalog_id"):
        with session(client) as connection:
            connection.execute(SQL("DROP TABLE dbq.{}").format(Identifier(table)))
        missing = {f"dbq.{table}", *(["dbq.check_action"] if table == "action" else [])}
        assert differences_of(client) == dict.fromkeys(missing, How.MISSING)
        upgrade(new_database, from_catalog(client))
        assert differences_of(client) == {}
        assert any(f"dbq.{table}" in entry.detail for entry in entries(client, "upgrade"))
    with session(client) as connection:
        assert connection.execute("SELECT count(*) FROM dbq.catalog_id").fetchone() == (1,)


def test_newer_and_adopted_queues_cannot_be_upgraded(use_postgresql: Use) -> None:
    client = use_postgresql(FIFO)
    newer = replace(client.queue, version=catalog.INTERFACE_VERSION + 1)
    with pytest.raises(RefusedError, match="newer"):
        upgrade(client.database, newer)
    adopted = replace(client.queue, kind=catalog.Kind.ADOPTED)
    with pytest.raises(UsageError, match="adopted"):
        plan(client.database, adopted)
