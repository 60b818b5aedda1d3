"""What each of the three roles may do, held against the server: every statement on every object of
the catalog and of each design's queues, by SQL; all else is the server's own refusal."""

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import psycopg
import pytest

from console.actions import install
from tests.contract.test_rights_postgresql import Site, site
from tests.contract.variants import DEFAULTS, on
from tests.servers import connect

__all__ = ["site"]
ROLES = ("reader", "operator", "admin")
REFUSED = {"42501", "DBQ04"}
COLUMNS = """SELECT CAST(n.nspname AS text), CAST(c.relname AS text), CAST(c.relkind AS text),
    array_agg(CAST(a.attname AS text) ORDER BY a.attnum)
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE n.nspname IN ('dbq', 'public') AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
GROUP BY 1, 2, 3 ORDER BY 1, 2"""
FUNCTIONS = """SELECT CAST(n.nspname AS text), CAST(p.proname AS text),
    CAST(CAST(p.oid AS regprocedure) AS text), pg_get_functiondef(p.oid),
    format('SELECT %I.%I(%s)', n.nspname, p.proname, (
        SELECT string_agg(format('CAST(NULL AS %s)', CAST(t AS regtype)), ', ')
        FROM unnest(p.proargtypes) AS t
    ))
FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
WHERE n.nspname IN ('dbq', 'public') AND p.prokind = 'f' ORDER BY 1, 2"""


def on_table(name: str, columns: list[str]) -> Iterator[tuple[str, str]]:
    """What the right is called, and a statement that needs it and changes nothing."""
    yield "SELECT", f"SELECT FROM {name} LIMIT 0"
    for column in columns:
        yield (
            f"INSERT {column}",
            f'INSERT INTO {name} ("{column}") OVERRIDING SYSTEM VALUE '
            f'SELECT t."{column}" FROM {name} AS t WHERE false',
        )
        yield f"UPDATE {column}", f'UPDATE {name} SET "{column}" = DEFAULT WHERE false'
    yield "DELETE", f"DELETE FROM {name} WHERE false"
    yield "own", f"TRUNCATE {name} CASCADE"
    yield "own", f"ALTER TABLE {name} ADD x int"
    yield "own", f"ALTER TABLE {name} DISABLE TRIGGER ALL"
    yield "own", f"ALTER TABLE {name} ENABLE ROW LEVEL SECURITY"
    yield "own", f"ALTER TABLE {name} OWNER TO CURRENT_USER"
    yield "own", f"DROP TABLE {name} CASCADE"
    yield "own", f"CREATE POLICY p ON {name}"
    yield "own", f"CREATE RULE r AS ON DELETE TO {name} DO INSTEAD NOTHING"
    yield "own", f"CREATE INDEX ON {name} ((1))"
    yield "own", f"CREATE TABLE pg_temp.x () INHERITS ({name})"
    yield "own", f"COMMENT ON TABLE {name} IS 'x'"
    yield (
        "own",
        f"CREATE TRIGGER t BEFORE DELETE ON {name} "
        "EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    )


def on_sequence(name: str) -> Iterator[tuple[str, str]]:
    yield "SELECT", f"SELECT FROM {name}"
    yield "USAGE", f"SELECT nextval('{name}')"
    yield "UPDATE", f"SELECT setval('{name}', 1)"
    yield "own", f"ALTER SEQUENCE {name} RESTART"
    yield "own", f"DROP SEQUENCE {name} CASCADE"


class Session:
    """A login's, in which everything is undone."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self.connection = connection

    def refusal(self, statement: str) -> str:
        """The SQLSTATE; empty: it was done."""
        try:
            self.connection.execute(f"BEGIN; {statement}; ROLLBACK".encode())
        except psycopg.Error as error:
            self.connection.execute("ROLLBACK")
            return error.sqlstate or "?"
        return ""


@contextmanager
def session(site: Site, role: str) -> Iterator[Session]:
    with closing(connect(site.by[role].url.render_as_string(hide_password=False))) as connection:
        yield Session(connection)


EVERY = "*"
READS = {"SELECT": EVERY}
MOVES = READS | {"INSERT": EVERY, "UPDATE": EVERY, "DELETE": EVERY}
CATALOG: dict[str, dict[str, dict[str, str]]] = {
    "operator": {
        "action": {
            "INSERT": "schema_name queue_name verb operator session connection filters cutoff "
            "planned detail",
            "UPDATE": "last_at ended_at selected done skipped failed outcome detail",
        },
        "lake_plan": {"INSERT": EVERY, "UPDATE": EVERY},
        "lake_row": {"INSERT": EVERY, "DELETE": EVERY},
        "lease": {"INSERT": EVERY, "UPDATE": EVERY},
        "note": {"INSERT": "schema_name queue_name operator note"},
        "notification": {"INSERT": EVERY, "UPDATE": EVERY, "DELETE": EVERY},
        "protection": {"INSERT": "schema_name queue_name operator reason", "DELETE": EVERY},
        "silence": {
            "INSERT": "kind code schema_name queue_name severity operator reason until",
            "UPDATE": "ended_at ended_by",
        },
    },
    "admin": {
        "pause": {
            "INSERT": "schema_name queue_name operator reason until push functions",
            "UPDATE": "functions",
            "DELETE": EVERY,
        },
        "queue": {
            "INSERT": "schema_name queue_name design kind options roles version installed_from",
            "UPDATE": "schema_name queue_name design kind options roles version",
            "DELETE": EVERY,
        },
        "setting": {"INSERT": EVERY, "UPDATE": EVERY, "DELETE": EVERY},
    },
}
"""What a role may do in schema dbq besides reading it, and besides what the role above it may: the
columns of each right."""
ONLY_READ = ("_config", "_subscribers", "_swept")
"""Tables of a queue that the functions of its owner alone write."""
DRAWN = ("_push_seq", "_pop_seq", "_turn_seq", "naive_seq", "split_meta_id_seq")
"""Sequences from which the callers of a queue's functions draw; no other is an identity's own."""


def rights(role: str, schema: str, name: str, kind: str) -> dict[str, str]:
    if role == "reader":
        return READS
    if schema == "dbq":
        below = CATALOG["operator"].get(name, {})
        return READS | below | (CATALOG["admin"].get(name, {}) if role == "admin" else {})
    if kind == "S":
        return READS | ({"USAGE": EVERY} if name.endswith(DRAWN) else {})
    return READS if name.endswith(ONLY_READ) else MOVES


def allowed(found: dict[str, str], right: str) -> bool:
    what, _, column = right.partition(" ")
    columns = found.get(what)
    return columns is not None and (columns == EVERY or column in columns.split())


@pytest.mark.parametrize("role", ROLES)
def test_each_right_on_each_table_is_granted_or_refused_by_the_server(
    site: Site, role: str
) -> None:
    tried = 0
    with connect(site.url) as connection, session(site, role) as own:
        for schema, name, kind, columns in connection.execute(COLUMNS).fetchall():
            quoted = f'{schema}."{name}"'
            may = rights(role, schema, name, kind)
            statements = on_sequence(quoted) if kind == "S" else on_table(quoted, columns)
            for right, statement in statements:
                if (kind, right) == ("S", "USAGE") and allowed(may, right):
                    continue  # it draws a number, which nothing gives back: the next test
                state = own.refusal(statement)
                assert state in ({""} if allowed(may, right) else REFUSED), (statement, state)
                tried += 1
    assert tried > 1000


@pytest.mark.parametrize("role", ROLES)
def test_each_function_may_be_called_by_an_operator_and_changed_by_its_owner(
    site: Site, role: str
) -> None:
    with connect(site.url) as connection, session(site, role) as own:
        for schema, name, signature, definition, call in connection.execute(FUNCTIONS).fetchall():
            query = "SELECT has_function_privilege(%s, 'EXECUTE')"
            (may,) = own.connection.execute(query, [signature]).fetchone() or (None,)
            callers = {"admin"} if name.endswith("_relay") else {"operator", "admin"}
            assert may is (schema == "dbq" or role in callers), signature
            attempts = [definition, f"DROP FUNCTION {signature} CASCADE"]
            attempts += [f"ALTER FUNCTION {signature} {how}" for how in CHANGED]
            if schema == "dbq":
                assert own.refusal(call) == "0A000", "a trigger's function is called by no one"
            elif not may:
                attempts.append(call)
            assert [own.refusal(attempt) for attempt in attempts] == ["42501"] * len(attempts), (
                signature
            )


CHANGED = ("SECURITY DEFINER", "SET search_path = public", "OWNER TO CURRENT_USER", "RENAME TO x")
UPWARD = {
    "reader": ("dbq_operator", "dbq_admin", "pg_signal_backend"),
    "operator": ("dbq_admin",),
    "admin": (),
}
OTHERS = (
    "SET ROLE {superuser}",
    "SET SESSION AUTHORIZATION {superuser}",
    "SET LOCAL session_replication_role = replica",
    "ALTER ROLE CURRENT_USER SUPERUSER",
    "ALTER ROLE CURRENT_USER BYPASSRLS",
    "ALTER ROLE {superuser} SET search_path = public",
    "ALTER ROLE ALL SET search_path = public",
    "ALTER DATABASE rights SET search_path = public",
    "ALTER DATABASE rights OWNER TO CURRENT_USER",
    "CREATE ROLE somebody",
    "GRANT dbq_admin TO CURRENT_USER WITH ADMIN OPTION",
    "GRANT pg_execute_server_program TO CURRENT_USER",
    "COPY (SELECT 1) TO PROGRAM 'true'",
    "COPY (SELECT 1) TO '/tmp/x'",
    "SELECT pg_read_file('PG_VERSION')",
    "SELECT pg_reload_conf()",
    "SELECT FROM pg_authid",
    "CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE internal AS 'pg_backend_pid'",
    "CREATE EVENT TRIGGER e ON sql_drop EXECUTE FUNCTION event_trigger_in_event()",
    "CREATE CAST (text AS int) WITH INOUT",
    "CREATE TABLE dbq.x (x int)",
    "CREATE FUNCTION dbq.f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE TABLE pg_catalog.x (x int)",
    "ALTER SCHEMA dbq OWNER TO CURRENT_USER",
    "DROP SCHEMA dbq CASCADE",
    "ALTER SCHEMA public OWNER TO CURRENT_USER",
    "DROP SCHEMA public CASCADE",
    "ALTER DEFAULT PRIVILEGES FOR ROLE {superuser} GRANT ALL ON TABLES TO PUBLIC",
    "REASSIGN OWNED BY {superuser} TO CURRENT_USER",
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{superuser}'",
)
CREATES = ("CREATE TABLE public.x (x int)", "CREATE SCHEMA x", "CREATE TYPE public.x AS (x int)")


@pytest.mark.parametrize("role", ROLES)
def test_no_role_becomes_more_than_it_is(site: Site, role: str) -> None:
    superuser = site.by["owner"].url.username or ""
    attempts = [one.format(superuser=superuser) for one in OTHERS]
    attempts += [f"SET ROLE {above}" for above in UPWARD[role]]
    attempts += [f"GRANT {above} TO CURRENT_USER" for above in UPWARD[role]]
    with session(site, role) as own, connect(site.url):
        states = {attempt: own.refusal(attempt) for attempt in attempts}
        creates = {own.refusal(one) for one in CREATES}
    wrong = {one: state for one, state in states.items() if state != "42501"}
    assert not wrong
    assert creates == ({""} if role == "admin" else {"42501"})


def test_an_admin_may_run_the_printed_script_of_a_queue_that_leaves_out_the_catalog(
    site: Site,
) -> None:
    """The catalog's own statements are its owner's: a team that deploys by scripts is an admin."""
    product = site.by["admin"].product
    (fifo,) = (variant for variant in on("postgresql", DEFAULTS) if variant.design.name == "fifo")
    queue = fifo.queue("public", "printed")
    script = install.script(product, queue, makes_catalog=False)
    with_catalog = install.script(product, queue)
    with closing(connect(site.by["admin"].url.render_as_string(hide_password=False))) as admin:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="owner of"):
            admin.execute(with_catalog)
        admin.execute("ROLLBACK")
        admin.execute(script)
        admin.execute("SELECT public.printed_push('one')")
    install.uninstall(site.by["admin"], queue, keep_archive=False, with_messages=True)


@pytest.mark.parametrize("role", ROLES)
def test_no_right_is_passed_on(site: Site, role: str) -> None:
    """GRANT by a login that may not is a warning where it has the right itself."""
    acls = """SELECT array_agg(CAST(c.relacl AS text) ORDER BY c.oid) FROM pg_class AS c
        WHERE c.relnamespace IN ('dbq'::regnamespace, 'public'::regnamespace)"""
    with connect(site.url) as connection, session(site, role) as own:
        before = connection.execute(acls).fetchone()
        for schema, name, kind, _ in connection.execute(COLUMNS).fetchall():
            of = "SEQUENCE" if kind == "S" else "TABLE"
            for what in ("SELECT", "ALL"):
                for statement in (
                    f'GRANT {what} ON {of} {schema}."{name}" TO PUBLIC',
                    f'REVOKE {what} ON {of} {schema}."{name}" FROM dbq_reader',
                ):
                    with suppress(psycopg.errors.InsufficientPrivilege):
                        own.connection.execute(statement.encode())
        assert connection.execute(acls).fetchone() == before
