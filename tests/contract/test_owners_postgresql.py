"""The catalog and the audit, written by logins with few rights: no row names what its writer does
not own, nothing is granted on it, and an entry of the audit is its login's own."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass

import psycopg
import pytest

from console import sql
from console.actions.upgrade import differences, upgrade
from console.catalog import audit, look_up, object_names, queues
from console.cli.commands.roles import role_script
from console.designs import DESIGNS
from console.engines import PRODUCTS, Database, open_database
from console.errors import RefusedError
from console.features.demo.embedded import EmbeddedServer
from console.features.presets.adopt import adopt
from tests.contract.client import Client
from tests.contract.installs import installed
from tests.contract.variants import ALL, default, on
from tests.servers import connect, execute, fresh_database, login, value

PRODUCT = PRODUCTS["postgresql"]
SECRETS = """
CREATE TABLE public.secrets (id bigint, payload text, pushed_at timestamptz);
INSERT INTO public.secrets VALUES (1, 'secret', now());
"""
SECRET_QUEUE = default("fifo").queue("public", "secrets", "postgresql")
AROUND = f"""
{sql.script("common.archive", PRODUCT.dialect, SECRET_QUEUE.scope(PRODUCT))}
CREATE FUNCTION public.secrets_push(text) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint';
CREATE FUNCTION public.secrets_push_many(text[]) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint';
CREATE FUNCTION public.secrets_pop() RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint';
CREATE FUNCTION public.secrets_pop_many(integer) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint';
"""
ROW = """INSERT INTO dbq.queue (schema_name, queue_name, design, kind, options, roles, version)
SELECT 'public', 'secrets', 'fifo', %s, q.options, q.roles, 1 FROM dbq.queue AS q
WHERE q.queue_name = 'mail'"""


@dataclass(frozen=True)
class Site:
    url: str
    owner: Database
    by: dict[str, Database]

    def session(self, who: str) -> psycopg.Connection:
        return connect(self.by[who].url.render_as_string(hide_password=False))


@pytest.fixture
def site(module_server: EmbeddedServer) -> Iterator[Site]:
    with ExitStack() as stack:
        url = stack.enter_context(fresh_database(module_server.url))
        owner = stack.enter_context(closing(open_database(url)))
        installed(owner, default("fifo"), "mail")
        with connect(url) as connection:
            connection.execute(role_script(PRODUCT, "public", []).encode())
            connection.execute(SECRETS.encode())
        by = {}
        for who in ("reader", "operator", "admin"):
            theirs = stack.enter_context(login(url, f"GRANT dbq_{who} TO {{}}"))
            by[who] = stack.enter_context(closing(open_database(theirs)))
        yield Site(url, owner, by)


def printed(database: Database) -> str:
    with database.transaction("read the catalog", read_only=True) as connection:
        return role_script(PRODUCT, "public", queues(connection), connection)


def readable(site: Site, table: str) -> object:
    return value(site.url, f"SELECT has_table_privilege('dbq_reader', '{table}', 'SELECT')")


def test_a_row_names_only_what_its_writer_owns(site: Site) -> None:
    with site.session("admin") as admin:
        admin.execute(AROUND.encode())
        with pytest.raises(psycopg.Error, match=r"public\.secrets belongs to") as refused:
            admin.execute(ROW, ["installed"])
        assert refused.value.sqlstate == "DBQ04"
        with pytest.raises(psycopg.Error, match=r"public\.secrets belongs to"):
            admin.execute(ROW, ["adopted"])
        with pytest.raises(psycopg.Error, match=r"public\.secrets belongs to"):
            admin.execute("UPDATE dbq.queue SET queue_name = 'secrets'")
        assert admin.execute("UPDATE dbq.queue SET version = 0").rowcount == 1


def test_nothing_is_granted_on_what_a_row_names_of_somebody_else(site: Site) -> None:
    """A row of an older catalog, which checked nothing: neither `roles` nor `upgrade` grants."""
    with site.session("admin") as admin, connect(site.url) as connection:
        admin.execute(AROUND.encode())
        connection.execute(ROW, ["installed"])
    script = printed(site.owner)
    assert "-- public.secrets (not yours): secrets_archive belongs to dbq_test_" in script
    assert '\nGRANT SELECT ON "public"."mail"' in script.replace("    GRANT", "GRANT")
    execute(site.url, script)
    with pytest.raises(RefusedError, match="belong to several logins"):
        upgrade(site.owner, look_up(site.owner, "secrets"))
    assert (readable(site, "secrets"), readable(site, "mail")) == (False, True)


def test_the_rights_on_an_adopted_table_are_printed_for_its_owner(site: Site) -> None:
    with login(site.url) as theirs, connect(site.url) as connection:
        name = theirs.split("//")[1].split(":")[0]
        connection.execute(f"CREATE SCHEMA app AUTHORIZATION {name}".encode())
        connection.execute(
            f"CREATE TABLE app.jobs (id bigint, body text); ALTER TABLE app.jobs OWNER TO {name};"
            "GRANT USAGE ON SCHEMA app TO dbq_admin; GRANT SELECT ON app.jobs TO dbq_admin".encode()
        )
        queue = adopt(
            site.by["admin"], "app", "jobs", DESIGNS["fifo"], {"id": "id", "payload": "body"}, "app"
        )
        found = look_up(site.owner, queue.name)
        assert "search_path" not in found.options, "only the owner says under which path"
        script = printed(site.owner)
        assert f"-- app.jobs (adopted): jobs belongs to {name}, who has to run this:" in script
        assert '-- GRANT SELECT ON "app"."jobs" TO dbq_reader;' in script


def test_an_operator_cannot_rewrite_the_audit(site: Site) -> None:
    operator = Client(site.by["operator"], look_up(site.by["operator"], "mail"))
    subject = audit.Subject.of(operator.database, operator.queue, "purge")
    owners = Client(site.owner, operator.queue)
    with owners.database.transaction("act") as connection:
        others = audit.ActionRecord.begin(connection, subject)
    with operator.database.transaction("act") as connection:
        mine = audit.ActionRecord.begin(connection, subject)
        mine.batch(connection, audit.Ledger(1, 1, 1))
        mine.end(connection, audit.Outcome.DONE)
        timed = audit.ActionRecord.begin(connection, subject)
    with site.session("operator") as session:
        change = "UPDATE dbq.action SET last_at = %s, ended_at = %s WHERE action_id = %s"
        session.execute(change, ["infinity", "2001-01-01", timed.action_id])
        for change in (
            "UPDATE dbq.action SET detail = 'x' WHERE action_id = %s",
            "UPDATE dbq.action SET database_user = 'ann' WHERE action_id = %s",
            "UPDATE dbq.action SET started_at = now() WHERE action_id = %s",
            "DELETE FROM dbq.action WHERE action_id = %s",
        ):
            for action in (mine.action_id, others.action_id):
                with pytest.raises(psycopg.Error):
                    session.execute(change.encode(), [action])
        for forged in (
            "INSERT INTO dbq.action (schema_name, queue_name, verb, operator, session, connection,"
            " database_user) VALUES ('', '', '', '', '', '', 'ann')",
            "INSERT INTO dbq.note (operator, note, noted_at) VALUES ('', '', '2001-01-01')",
            "UPDATE dbq.note SET note = ''",
            "UPDATE dbq.silence SET operator = ''",
            "INSERT INTO dbq.protection (schema_name, queue_name, operator, database_user)"
            " VALUES ('public', 'mail', '', 'ann')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                session.execute(forged.encode())
    (entry,) = [one for one in _entries(site.owner) if one.action_id == mine.action_id]
    assert (entry.outcome, entry.database_user) == ("done", operator.database.url.username)
    (entry,) = [one for one in _entries(site.owner) if one.action_id == timed.action_id]
    assert entry.ended_at == entry.last_at > entry.started_at, "the server's times"


def _entries(database: Database) -> list[audit.Entry]:
    with database.transaction("read the audit", read_only=True) as connection:
        return audit.entries(connection, audit.EntryFilter())


def test_an_upgrade_adds_the_checks_to_an_older_catalog(site: Site) -> None:
    execute(
        site.url,
        "DROP FUNCTION dbq.check_action, dbq.check_queue CASCADE;"
        "GRANT INSERT, UPDATE ON dbq.action TO dbq_operator, dbq_admin",
    )
    mail = look_up(site.owner, "mail")
    assert [difference.name for difference in differences(site.owner, mail)] == ["dbq.check_action"]
    upgrade(site.owner, mail)
    assert differences(site.owner, mail) == []
    query = "SELECT has_table_privilege('dbq_admin', 'dbq.action', 'UPDATE')"
    assert value(site.url, query) is False


def test_the_names_of_a_queues_objects_are_known_to_the_check() -> None:
    scope = default("fifo").queue("s", "q", "postgresql").scope(PRODUCT)
    script = sql.script("roles.others", PRODUCT.dialect, scope)
    ((first, second), *_) = re.findall(r"~ '(\^\(\|_.*?)'\s*'(.*?)'", script)
    for variant in on("postgresql", ALL):
        for name in object_names.of(PRODUCT, variant.queue("s", "q", "postgresql")):
            assert re.fullmatch(first + second, name.removeprefix("q")), name
