"""Upgrade: changed or older objects are replaced by the shipped ones; no message changes."""

import re
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import psycopg
import pytest
from psycopg.sql import SQL, Identifier
from sqlalchemy import make_url

from console import catalog
from console.actions.install import uninstall
from console.actions.upgrade import How, differences, plan, upgrade
from console.designs import DESIGNS
from console.engines import Database, open_database
from console.errors import ConsoleError, RefusedError, UsageError
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.filled import fill
from tests.contract.installs import installed
from tests.contract.message_actions import archived, entries
from tests.contract.traffic import Traffic
from tests.contract.variants import DEFAULTS, Variant, default, on
from tests.servers import connect, execute, login

pytestmark = pytest.mark.slow

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

    assert {d["name"] for d in done.data["differences"]} == set(reported)
    assert differences_of(client) == {}
    assert from_catalog(client).version == catalog.INTERFACE_VERSION
    with session(client) as connection:
        after = connection.execute(f'SELECT t FROM "{client.queue.table}" AS t').fetchall()
    assert after == before
    (entry,) = entries(client, "upgrade")
    assert (entry.outcome, name in entry.detail) == ("done", True)
    assert not upgrade(client.database, from_catalog(client)).done
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
        assert planned.data["triggers"] == ["bare"]
        assert any(line.startswith("  trigger bare runs with") for line in planned.lines)
        upgrade(client.database, from_catalog(client))
        path = f"SELECT proconfig FROM pg_proc WHERE proname = '{name}_push'"
        assert connection.execute(path.encode()).fetchone() == (
            ["search_path=pg_catalog, pg_temp"],
        )
        for trigger in ("bare", "own"):
            drop = f'DROP FUNCTION "{trigger} {name}" CASCADE'
            connection.execute(drop.encode())


@pytest.mark.parametrize(
    "change", ["COST 1", "STRICT", "LEAKPROOF", "PARALLEL SAFE", "ROWS 7", "STABLE"]
)
def test_what_a_function_tells_the_planner_is_compared_too(
    use_postgresql: Use, change: str
) -> None:
    """With a low cost it may be called for rows that a condition leaves out; STRICT, never."""
    client = use_postgresql(default("fifo"))
    with session(client) as connection:
        connection.execute(f'ALTER FUNCTION "{client.queue.name}_pop_many" {change}'.encode())
    assert differences_of(client) == {f"{client.queue.name}_pop_many": How.OTHER}
    upgrade(client.database, from_catalog(client))
    assert differences_of(client) == {}


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
    assert planned.data["changed_by_hand"] is False
    assert any("done_at is missing" in line for line in planned.lines)
    upgrade(client.database, from_catalog(client))
    with session(client) as connection:
        assert connection.execute(indexes, [name]).fetchone() == (1,)
    client.drain()


DEFAULTS_OF = """
SELECT a.attname, pg_get_expr(d.adbin, d.adrelid)
FROM pg_attribute AS a
LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = CAST(format('%%I', CAST(%s AS text)) AS regclass) AND a.attnum > 0
"""


@pytest.mark.parametrize("variant", on("postgresql", DEFAULTS), ids=str)
def test_defaults_of_columns_are_compared_and_put_back(
    use_postgresql: Use, variant: Variant
) -> None:
    """One that is missing, another, and one that the design has not."""
    client = use_postgresql(variant)
    fill(client)
    tables = [client.queue.table, f"{client.queue.name}_archive"]
    with session(client) as connection:
        for table in tables:
            before = connection.execute(DEFAULTS_OF, [table]).fetchall()
            changed = {}
            for column, default in before:
                kind = relation_types(connection, table)[column]
                if kind in {"text", "timestamp with time zone"}:
                    other = "'x'" if kind == "text" else "now()"
                    changed[f"{table}.{column}"] = How.OTHER
                    alter = f'ALTER TABLE "{table}" ALTER {column} SET DEFAULT {other}'
                elif default is not None:
                    changed[f"{table}.{column}"] = How.OTHER
                    alter = f'ALTER TABLE "{table}" ALTER {column} DROP DEFAULT'
                else:
                    continue
                connection.execute(alter.encode())
            assert differences_of(client) == changed
            planned = plan(client.database, from_catalog(client))
            assert planned.data["changed_by_hand"]
            assert sum(line.startswith("  default ") for line in planned.lines) == len(changed)
            upgrade(client.database, from_catalog(client))
            assert connection.execute(DEFAULTS_OF, [table]).fetchall() == before
            assert differences_of(client) == {}
    client.drain()


def relation_types(connection: psycopg.Connection, table: str) -> dict[str, str]:
    types = "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = %s"
    return dict(connection.execute(types, [table]).fetchall())


def test_missing_indexes_and_keys_are_created(use_postgresql: Use) -> None:
    """It used to say that the queue matches what this console installs."""
    client = use_postgresql(CLAIM)
    fill(client)
    name = client.queue.name
    indexes = "SELECT indexdef FROM pg_indexes WHERE tablename = %s ORDER BY indexdef"
    with session(client) as connection:
        complete = connection.execute(indexes, [name]).fetchall()
        connection.execute(f'ALTER TABLE "{name}" DROP CONSTRAINT "{name}_pkey"'.encode())
        connection.execute(f'DROP INDEX "{name}_done_at_idx"'.encode())
    assert set(differences_of(client).values()) == {How.MISSING}
    planned = plan(client.database, from_catalog(client))
    assert {line.split()[0] for line in planned.lines[1:-1]} == {"index", "key"}
    assert "callers continue" in planned.lines[-1]
    assert len(set(planned.lines)) == len(planned.lines), "each is listed once"
    upgrade(client.database, from_catalog(client))
    assert differences_of(client) == {}
    with session(client) as connection:
        assert connection.execute(indexes, [name]).fetchall() == complete


def test_a_key_that_cannot_be_created_is_named(use_postgresql: Use) -> None:
    client = use_postgresql(FIFO)
    client.push_many(client.payloads(1, 2))
    name = client.queue.name
    with session(client) as connection:
        connection.execute(f'ALTER TABLE "{name}" DROP CONSTRAINT "{name}_pkey"'.encode())
        connection.execute(f'UPDATE "{name}" SET id = 1'.encode())
    with pytest.raises(ConsoleError, match="not all of its indexes exist") as failed:
        upgrade(client.database, from_catalog(client))
    assert "unique index" in failed.value.why
    assert "doctor" in failed.value.next_step


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


def test_a_ring_that_lacks_the_turn_sequence_gets_it_with_its_rights(use_postgresql: Use) -> None:
    """With the rights of the pop sequence, without which a consumer's pop would be refused."""
    client = use_postgresql(RING)
    fill(client)
    name = client.queue.name
    turns = f'"{name}_turn_seq"'
    with login(client.url) as url, session(client) as connection:
        role = make_url(url).username
        connection.execute(f"DROP SEQUENCE {turns}")
        connection.execute("UPDATE dbq.queue SET version = 0 WHERE queue_name = %s", [name])
        connection.execute(f'GRANT USAGE, SELECT ON SEQUENCE "{name}_pop_seq" TO "{role}"')
        assert differences_of(client) == {f"{name}_turn_seq": How.MISSING, name: How.OLDER}
        planned = plan(client.database, from_catalog(client))
        assert planned.data["changed_by_hand"] is False
        assert any(f"sequence {name}_turn_seq is missing" in line for line in planned.lines)
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
            assert len(upgrade(client.database, from_catalog(client)).data["differences"]) == 2
            traffic.progress(20)
    assert differences_of(client) == {}
    traffic.settle()


PARTS = """
SELECT format('DROP TABLE dbq.%I CASCADE', c.relname) FROM pg_class AS c
WHERE c.relnamespace = 'dbq'::regnamespace AND c.relkind = 'r' AND c.relname <> 'queue'
UNION ALL SELECT format('ALTER TABLE dbq.%I DROP COLUMN %I CASCADE', c.relname, a.attname)
FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0
WHERE c.relnamespace = 'dbq'::regnamespace AND c.relkind = 'r'
UNION ALL SELECT format('ALTER TABLE %s ALTER %I DROP DEFAULT', d.adrelid::regclass, a.attname)
FROM pg_attrdef AS d JOIN pg_attribute AS a ON (a.attrelid, a.attnum) = (d.adrelid, d.adnum)
JOIN pg_class AS c ON c.oid = a.attrelid WHERE c.relnamespace = 'dbq'::regnamespace
UNION ALL SELECT format('DROP INDEX dbq.%I', c.relname)
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
WHERE c.relnamespace = 'dbq'::regnamespace
AND NOT EXISTS (SELECT FROM pg_constraint AS k WHERE k.conindid = c.oid)
UNION ALL SELECT format(action, p.oid::regprocedure)
FROM pg_proc AS p,
    (VALUES ('DROP FUNCTION %s CASCADE'), ('ALTER FUNCTION %s RESET ALL')) AS v (action)
WHERE p.pronamespace = 'dbq'::regnamespace
UNION ALL SELECT format('DROP TRIGGER %I ON %s', t.tgname, t.tgrelid::regclass)
FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
WHERE c.relnamespace = 'dbq'::regnamespace AND NOT t.tgisinternal
"""
"""Takes a part of the catalog away, each in turn."""
CATALOG = """
SELECT concat_ws(' ', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
    a.attidentity, pg_get_expr(d.adbin, d.adrelid))
FROM pg_class AS c
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE c.relnamespace = 'dbq'::regnamespace AND c.relkind = 'r'
UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'dbq'
UNION ALL SELECT concat_ws(' ', k.conrelid::regclass, k.conname, pg_get_constraintdef(k.oid))
FROM pg_constraint AS k WHERE k.connamespace = 'dbq'::regnamespace AND k.contype <> 'n'
UNION ALL SELECT pg_get_functiondef(p.oid) FROM pg_proc AS p
WHERE p.pronamespace = 'dbq'::regnamespace
UNION ALL SELECT pg_get_triggerdef(t.oid)
FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
WHERE c.relnamespace = 'dbq'::regnamespace AND NOT t.tgisinternal
"""
"""All that the catalog consists of."""


def catalog_of(url: str) -> set[str]:
    return {text for (text,) in execute(url, CATALOG)}


@contextmanager
def a_copy(database: Database) -> Iterator[str]:
    name = Identifier(made := f"copy_{secrets.token_hex(4)}")
    template = Identifier(database.url.database or "")
    with connect(database.url.set(database="postgres").render_as_string(False)) as server:
        server.autocommit = True
        # A pooler keeps its sessions, with which it could not be copied.
        ended = "SELECT pg_terminate_backend(pid, 9999) FROM pg_stat_activity WHERE datname = %s"
        server.execute(ended, [database.url.database])
        server.execute(SQL("CREATE DATABASE {} TEMPLATE {}").format(name, template))
        yield database.url.set(database=made).render_as_string(False)
        server.execute(SQL("DROP DATABASE {}").format(name))


NEEDED_AT_ALL = re.compile(r"ALTER TABLE dbq.(queue|catalog_id) DROP COLUMN")
NOT_TO_BE_FILLED = re.compile(
    r"(pause|protection) DROP COLUMN (schema_name|queue_name|operator|functions)"
    r"|(silence|note) DROP COLUMN (\w+_id|kind|code|operator|note)\b"
    r"|(lease|setting|catalog_id) DROP COLUMN \w+"
    r"|notification DROP COLUMN (notification_id|event_key|target|schema_name|queue_name|code"
    r"|severity|summary|begun_at)\b"
    r"|lake_plan DROP COLUMN (plan_id|schema_name|queue_name)\b|lake_row DROP COLUMN \w+"
    r"|action DROP COLUMN (action_id|schema_name|queue_name|verb|operator|session|connection)\b"
)
"""Columns whose values no default gives."""


def test_a_catalog_that_lacks_a_part_gets_it_from_an_upgrade(
    new_database: Database, long: bool
) -> None:
    """Each table, column, index, trigger and function in turn; or it is refused, in words."""
    client = installed(new_database, FIFO)
    with session(client) as connection:
        parts = [text for (text,) in connection.execute(PARTS).fetchall()]
    complete = catalog_of(client.url)
    new_database.close()  # or it could not be copied
    for part in parts[:: 1 if long else 6]:
        with a_copy(new_database) as copy:
            execute(copy, part)
            before = catalog_of(copy)
            with closing(open_database(copy)) as database:
                said = upgrade_and_say(Client(database, client.queue), part)
            if NEEDED_AT_ALL.match(part) or NOT_TO_BE_FILLED.search(part):
                assert said, part
                assert catalog_of(copy) == before, part
            else:
                assert not said, part
                assert catalog_of(copy) == complete, part


def upgrade_and_say(client: Client, part: str) -> str:
    """What refuses it; else the part that is missing was named before, and nothing is now."""
    refusal = ConsoleError if NEEDED_AT_ALL.match(part) else RefusedError
    try:
        assert differences_of(client), part
        upgrade(client.database, from_catalog(client))
    except refusal as error:
        return f"{error} {error.why}"
    assert differences_of(client) == {}, part
    return ""


def test_an_older_catalog_gets_the_tables_that_it_lacks(new_database: Database) -> None:
    client = installed(new_database, FIFO)
    for table in ("action", "notification", "lease", "catalog_id"):
        with session(client) as connection:
            connection.execute(SQL("DROP TABLE dbq.{}").format(Identifier(table)))
        assert differences_of(client) == {f"dbq.{table}": How.MISSING}
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


def test_an_older_catalog_of_somebody_else_is_theirs_to_upgrade(new_database: Database) -> None:
    client = installed(new_database, FIFO)
    with session(client) as connection:
        connection.execute("DROP TABLE dbq.notification")
    grants = (
        "GRANT ALL ON SCHEMA dbq, public TO {}",
        "GRANT ALL ON ALL TABLES IN SCHEMA dbq TO {}",
    )
    with (
        login(client.url, *grants) as url,
        closing(open_database(url)) as database,
        pytest.raises(RefusedError) as refused,
    ):
        upgrade(database, from_catalog(client))
    assert "upgrade --all" in refused.value.next_step
