"""What others have written is run as they mean it: triggers, constraints and types of adopted
tables, whose functions name their tables without a schema, under the path of the table's owner."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest
from sqlalchemy import make_url

from console.actions.archive import Purge
from console.actions.forget import forget
from console.actions.message_action import MessageAction
from console.actions.requeue import Release, Requeue, RequeueTo
from console.actions.reschedule import Reschedule
from console.catalog import look_up
from console.clock import utc
from console.designs import DESIGNS
from console.engines import Database, open_database
from console.errors import ConsoleError, RefusedError
from console.features.presets.adopt import adopt
from console.monitor.scan_query import MessageSource
from tests.contract.client import Client
from tests.contract.installs import installed
from tests.contract.message_actions import plan_lines, planned, run, source_of
from tests.contract.variants import default
from tests.servers import connect, execute, login, value

TABLE = """
CREATE TABLE jobs (
    id bigint PRIMARY KEY, body text NOT NULL, at timestamptz NOT NULL, due timestamptz NOT NULL,
    taken timestamptz, who text, why text, CONSTRAINT known CHECK (is_known(id))
);
CREATE TABLE log (moment text, by text, path text);
CREATE FUNCTION write_log() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO log VALUES (TG_NAME, current_user, current_setting('search_path'));
    RETURN NEW;
END $$;
INSERT INTO jobs VALUES
    (1, 'a', now(), now(), NULL, NULL, NULL), (2, 'b', now(), now(), now(), 'w', 'no'),
    (3, 'c', now(), now(), now(), 'w', 'no'),
    (4, 'd', now(), now(), now() - interval '1 h', 'w', NULL);
CREATE TRIGGER "BEFORE STATEMENT" BEFORE UPDATE OR DELETE ON jobs FOR EACH STATEMENT
    EXECUTE FUNCTION write_log();
CREATE TRIGGER "BEFORE ROW" BEFORE UPDATE ON jobs FOR EACH ROW EXECUTE FUNCTION write_log();
CREATE TRIGGER "AFTER ROW" AFTER UPDATE OR DELETE ON jobs FOR EACH ROW EXECUTE FUNCTION write_log();
CREATE TRIGGER "AFTER STATEMENT" AFTER UPDATE OR DELETE ON jobs FOR EACH STATEMENT
    EXECUTE FUNCTION write_log();
CREATE CONSTRAINT TRIGGER "DEFERRED" AFTER UPDATE OR DELETE ON jobs DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION write_log();
"""
KNOWN = """
CREATE TABLE known (id bigint);
INSERT INTO known SELECT generate_series(1, 9);
CREATE FUNCTION is_known(bigint) RETURNS boolean LANGUAGE sql STABLE AS
    'SELECT EXISTS (SELECT FROM known AS k WHERE k.id = $1)';
"""
TRIGGERS = {"BEFORE STATEMENT", "BEFORE ROW", "AFTER ROW", "AFTER STATEMENT", "DEFERRED"}
ROLES = {"id": "id", "payload": "body", "pushed_at": "at", "claimed_at": "taken"}
ROLES |= {"claimed_by": "who", "error": "why"}


@dataclass(frozen=True)
class Theirs:
    """A database with a table of others, whose owner has a search path of their own."""

    url: str
    owner: str
    database: Database


@pytest.fixture
def theirs(new_database: Database) -> Iterator[Theirs]:
    url = new_database.url.render_as_string(hide_password=False)
    with login(url) as owners:
        owner = make_url(owners).username or ""
        with connect(url) as connection:
            connection.execute(f"CREATE SCHEMA app AUTHORIZATION {owner}".encode())
            connection.execute(f"ALTER ROLE {owner} SET search_path = app".encode())
        execute(owners, KNOWN + TABLE)
        yield Theirs(url, owner, new_database)


def adopted(theirs: Theirs, design: str) -> Client:
    roles = ROLES if design == "claim" else {"id": "id", "payload": "body", "due_at": "due"}
    return Client(theirs.database, adopt(theirs.database, "app", "jobs", DESIGNS[design], roles))


def other_queue(client: Client) -> MessageSource:
    return source_of(installed(client.database, default("fifo"), "target"))


ACTIONS: dict[str, Callable[[Client], MessageAction]] = {
    "requeue": lambda client: Requeue(source_of(client)),
    "release": lambda client: Release(source_of(client), stuck_after_seconds=1.0, unknown=True),
    "purge": lambda client: Purge(source_of(client), permanently=True),
    "requeue to": lambda client: RequeueTo(source_of(client), to=other_queue(client)),
    "reschedule": lambda client: Reschedule(source_of(client), at=utc()),
}


def logged(url: str) -> list[tuple[str, str, str]]:
    return execute(url, "SELECT moment, by, path FROM app.log")


@pytest.mark.parametrize("verb", ACTIONS)
def test_triggers_that_name_their_tables_without_a_schema_run(theirs: Theirs, verb: str) -> None:
    """Of each kind, as the owner of the table: not as a superuser who acts on it."""
    client = adopted(theirs, "pending" if verb == "reschedule" else "claim")
    if verb == "requeue to":
        with pytest.raises(RefusedError, match="a superuser's rights"):
            run(client, ACTIONS[verb](client))
        return
    done = run(client, ACTIONS[verb](client))
    assert done.ledger.out > 0
    found = logged(theirs.url)
    assert {moment for moment, *_ in found} == TRIGGERS - (
        {"BEFORE ROW"} if verb == "purge" else set()
    )
    assert {(by, path) for _, by, path in found} == {(theirs.owner, "app")}
    with theirs.database.transaction("look") as connection:
        path = connection.exec_driver_sql("SHOW search_path").scalar()
    assert path == "pg_catalog, pg_temp", "nothing is left behind"


@pytest.mark.parametrize(
    ("moment", "how"),
    [
        *((one, "RESET ROLE") for one in sorted(TRIGGERS - {"AFTER STATEMENT"})),
        ("AFTER ROW", "SET SESSION AUTHORIZATION DEFAULT"),
        ("AFTER ROW", "PERFORM set_config('role', session_user, false)"),
        ("DEFERRED", "PERFORM set_config('session_authorization', session_user, true)"),
    ],
)
def test_no_trigger_gets_back_the_rights_of_a_superuser(
    theirs: Theirs, moment: str, how: str
) -> None:
    client = adopted(theirs, "claim")
    execute(
        theirs.url,
        f"CREATE OR REPLACE FUNCTION app.write_log() RETURNS trigger LANGUAGE plpgsql AS $$"
        f" BEGIN IF TG_NAME = '{moment}' THEN {how}; ALTER ROLE {theirs.owner} SUPERUSER;"
        f" END IF; RETURN NEW; END $$",
    )
    with pytest.raises(ConsoleError, match="security-definer"):
        run(client, Requeue(source_of(client)))
    assert not value(theirs.url, f"SELECT rolsuper FROM pg_roles WHERE rolname = '{theirs.owner}'")


@pytest.mark.parametrize("verb", ["requeue", "requeue to"])
@pytest.mark.parametrize("member", [False, True])
def test_a_login_that_may_not_be_the_owner_acts_as_itself(
    theirs: Theirs, verb: str, member: bool
) -> None:
    """It is no member, or it may create nothing temporary. With `--to` it always does."""
    client = adopted(theirs, "claim")
    to = other_queue(client)
    grants = ["GRANT USAGE ON SCHEMA app, dbq TO {}", "GRANT ALL ON ALL TABLES IN SCHEMA app TO {}"]
    grants += ["GRANT ALL ON ALL TABLES IN SCHEMA dbq, public TO {}"]
    if member:
        grants += [f"GRANT {theirs.owner} TO {{}}"]
    with login(theirs.url, *grants) as url, closing(open_database(url)) as database:
        name = value(theirs.url, "SELECT quote_ident(current_database())")
        execute(theirs.url, f"REVOKE TEMPORARY ON DATABASE {name} FROM PUBLIC")
        mine = Client(database, client.queue)
        source = source_of(mine)
        run(mine, RequeueTo(source, to=to) if verb == "requeue to" else Requeue(source))
        assert {(by, path) for _, by, path in logged(theirs.url)} == {
            (database.url.username, "app")
        }


def test_a_failing_deferred_trigger_undoes_the_batch(theirs: Theirs) -> None:
    client = adopted(theirs, "claim")
    execute(
        theirs.url,
        "CREATE OR REPLACE FUNCTION app.write_log() RETURNS trigger LANGUAGE plpgsql AS $$"
        " BEGIN IF TG_NAME = 'DEFERRED' THEN RAISE 'not this one'; END IF; RETURN NEW; END $$",
    )
    with pytest.raises(Exception, match="not this one"):
        run(client, Requeue(source_of(client)))
    with connect(theirs.url) as connection:
        failed = "SELECT count(*) FROM app.jobs WHERE why IS NOT NULL"
        assert connection.execute(failed).fetchone() == (2,)


def test_the_search_path_of_an_adoption_is_recorded_and_can_be_given(theirs: Theirs) -> None:
    of, where = DESIGNS["claim"], ("app", "jobs")
    assert adopt(theirs.database, *where, of, ROLES).options["search_path"] == "app"
    forget(theirs.database, look_up(theirs.database, "jobs"))
    execute(
        theirs.url,
        f"""CREATE SCHEMA more AUTHORIZATION {theirs.owner}; SET ROLE {theirs.owner};
            CREATE TABLE more.log (LIKE app.log)""",
    )
    queue = adopt(theirs.database, *where, of, ROLES, "more, app")
    assert queue.options["search_path"] == "more, app"
    client = Client(theirs.database, queue)
    run(client, Requeue(source_of(client)))
    assert value(theirs.url, "SELECT count(*) > 0 FROM more.log") is True
    assert logged(theirs.url) == []


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ((), "{owner}, public"),
        (("DATABASE {database} SET search_path = d",), "d"),
        (("DATABASE {database} SET search_path = d", "ROLE {owner} SET search_path = r"), "r"),
        (
            (
                "ROLE {owner} SET search_path = r",
                "ROLE {owner} IN DATABASE {database} SET search_path = 'In It', \"$user\"",
            ),
            '"In It", {owner}',
        ),
    ],
)
def test_the_search_path_is_that_of_a_new_session_of_the_owner(
    theirs: Theirs, settings: tuple[str, ...], path: str
) -> None:
    names = {"owner": theirs.owner, "database": theirs.database.url.database}
    with connect(theirs.url) as connection:
        connection.execute(f"ALTER ROLE {theirs.owner} RESET search_path".encode())
        for setting in settings:
            connection.execute(f"ALTER {setting.format(**names)}".encode())
    found = adopt(theirs.database, "app", "jobs", DESIGNS["claim"], ROLES).options["search_path"]
    assert found == path.format(**names)


@pytest.mark.parametrize("verb", ["purge", "requeue to"])
@pytest.mark.parametrize("through", ["jobs", "link"])
def test_what_a_foreign_key_deletes_with_a_message_is_said_or_refused(
    theirs: Theirs, verb: str, through: str
) -> None:
    """Rows of others are named; messages that nobody selected, here a claimed one, stay."""
    client = adopted(theirs, "claim")
    as_owner = f"SET ROLE {theirs.owner}; "
    execute(
        theirs.url,
        as_owner + "CREATE TABLE app.note (job bigint REFERENCES app.jobs ON DELETE CASCADE)",
    )
    action = ACTIONS[verb](client)
    assert "the rows of app.note that refer to it: note_job_fkey" in plan_lines(client, action)
    assert not planned(client, action).obstacles
    execute(
        theirs.url,
        as_owner + "CREATE TABLE app.link (id bigint PRIMARY KEY, job bigint REFERENCES app.jobs"
        " ON DELETE CASCADE); ALTER TABLE app.jobs ADD parent bigint"
        f" REFERENCES app.{through} ON DELETE CASCADE",
    )
    assert "jobs_parent_fkey, ON DELETE CASCADE" in "".join(planned(client, action).obstacles)
    with pytest.raises(RefusedError, match="messages that refer to it"):
        run(client, action)
    assert value(theirs.url, "SELECT count(*) FROM app.jobs") == 4


@pytest.mark.parametrize("table", ["jobs", "few"])
@pytest.mark.parametrize("has_key", ["jobs", "few"])
def test_messages_of_partitions_that_a_foreign_key_deletes_are_refused(
    new_database: Database, table: str, has_key: str
) -> None:
    """Whichever is adopted and has the key, the partitioned table or its partition."""
    url = new_database.url.render_as_string(hide_password=False)
    execute(
        url,
        "CREATE TABLE jobs (id bigint PRIMARY KEY, body text, at timestamptz, taken timestamptz,"
        " who text, why text, parent bigint) PARTITION BY RANGE (id);"
        "CREATE TABLE few PARTITION OF jobs FOR VALUES FROM (0) TO (9);"
        "CREATE TABLE note (job bigint REFERENCES few ON DELETE CASCADE);"
        "INSERT INTO jobs VALUES (1, 'a', now(), NULL, NULL, NULL, NULL),"
        " (2, 'b', now(), now(), 'w', NULL, 1)",
    )
    client = Client(new_database, adopt(new_database, "public", table, DESIGNS["claim"], ROLES))
    action = ACTIONS["purge"](client)
    assert plan_lines(client, action).count("the rows of public.note that refer to it") == 1
    assert not planned(client, action).obstacles
    parent = "FOREIGN KEY (parent) REFERENCES jobs ON DELETE CASCADE"
    execute(url, f"ALTER TABLE {has_key} ADD {parent}")
    (obstacle,) = planned(client, action).obstacles
    assert f"{has_key}_parent_fkey" in obstacle
    with pytest.raises(RefusedError, match="messages that refer to it"):
        run(client, action)


def test_what_else_the_server_changes_with_a_message_that_is_deleted_is_said(
    theirs: Theirs,
) -> None:
    """References that are set, keys of tables whose rows go along, DELETE triggers by name; not
    keys that do nothing, nor triggers that are off or for something else."""
    client = adopted(theirs, "claim")
    before = plan_lines(client, ACTIONS["purge"](client))
    assert "refer" not in before
    assert "told" not in before
    # NOT ENFORCED is PostgreSQL 18's.
    idle = (
        "CASCADE NOT ENFORCED"
        if theirs.database.capabilities.version_number >= 180000
        else "NO ACTION"
    )
    execute(
        theirs.url,
        f"SET ROLE {theirs.owner}; "
        "CREATE TABLE app.note (id bigint PRIMARY KEY,"
        " job bigint REFERENCES app.jobs ON DELETE CASCADE);"
        "CREATE TABLE app.line (note bigint REFERENCES app.note ON DELETE CASCADE);"
        "CREATE TABLE app.mark (note bigint REFERENCES app.note ON DELETE SET NULL);"
        "CREATE TABLE app.seen (job bigint DEFAULT 0 REFERENCES app.jobs ON DELETE SET DEFAULT,"
        " mark bigint REFERENCES app.jobs ON DELETE RESTRICT);"
        "CREATE TABLE app.idle (job bigint);"
        "ALTER TABLE app.idle ADD CONSTRAINT idle_job FOREIGN KEY (job) REFERENCES app.jobs"
        f" ON DELETE {idle};"
        "ALTER TABLE app.jobs ADD parent bigint REFERENCES app.jobs ON DELETE SET NULL;"
        "CREATE FUNCTION app.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN OLD; END';"
        + "".join(
            f"CREATE TRIGGER {name} {when} ON app.jobs {each} EXECUTE FUNCTION app.nothing();"
            for name, when, each in (
                ("kept", "BEFORE DELETE OR UPDATE", "FOR EACH ROW"),
                ("told", "AFTER DELETE", ""),
                ("idle_trigger", "AFTER DELETE", ""),
                ("born", "AFTER INSERT", ""),
            )
        )
        + "ALTER TABLE app.jobs DISABLE TRIGGER idle_trigger",
    )
    for action in (ACTIONS["purge"](client), ACTIONS["requeue to"](client)):
        assert not planned(client, action).obstacles
        found = plan_lines(client, action)
        for line in (
            "the server deletes the rows of app.note that refer to it: note_job_fkey",
            "deletes the rows of app.line that refer to those of app.note: line_note_fkey",
            "sets the reference of the rows of app.mark that refer to those of app.note to NULL: "
            "mark_note_fkey",
            "sets the reference of the rows of app.jobs that refer to it to NULL: jobs_parent_fkey",
            "sets the reference of the rows of app.seen that refer to it to its default: "
            "seen_job_fkey",
            "the server runs its DELETE triggers: ",
            ", kept, told\n",
        ):
            assert line in found
        for unsaid in ("app.idle", "seen_mark", "born", "idle_trigger"):
            assert unsaid not in found
