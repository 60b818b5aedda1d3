"""What a superuser reads runs nothing of a login with fewer rights: not by a view, nor by an index
or a cast, which the planner and the console call for whoever reads; not in a queue that an admin
has installed, in a table that was adopted, in one that is found, nor in the catalog."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from console.cli.commands.roles import role_script
from console.engines import PRODUCTS
from console.features.demo.embedded import EmbeddedServer
from tests.cli.calls import Answer, Console
from tests.contract.planted_names import REPORTING
from tests.servers import connect, execute, fresh_database, login, statements_sent

pytestmark = pytest.mark.slow

QUIET = """
CREATE FUNCTION public.quiet(bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS
    $$ BEGIN PERFORM public.ran('index'); RETURN $1; END $$;
"""
INDEXED = QUIET + "CREATE INDEX ON public.evil ((id + public.quiet(1)))"
CODE = {
    "a function in an index": INDEXED,
    "a function in an index's condition": QUIET
    + "CREATE INDEX ON public.evil (id) WHERE id > public.quiet(1)",
    "a function in a statistic": QUIET
    + "CREATE STATISTICS public.s ON (id + public.quiet(1)), payload FROM public.evil",
    "an operator in an index": QUIET
    + """CREATE OPERATOR public.### (RIGHTARG = bigint, FUNCTION = public.quiet);
    CREATE INDEX ON public.evil ((id + (OPERATOR(public.###) 1::bigint)))""",
    "a function in an index of a child": QUIET
    + """CREATE TABLE public.child () INHERITS (public.evil);
    CREATE INDEX ON public.child ((id + public.quiet(1)))""",
    "a cast": """
    CREATE TYPE public.word AS ENUM ('x');
    CREATE FUNCTION public.spelt(public.word) RETURNS text LANGUAGE plpgsql AS
        $$ BEGIN PERFORM public.ran('cast'); RETURN 'x'; END $$;
    CREATE CAST (public.word AS text) WITH FUNCTION public.spelt(public.word);
    ALTER TABLE public.evil ALTER payload TYPE public.word USING 'x'""",
    "a view": """
    ALTER TABLE public.evil RENAME TO aside;
    CREATE VIEW public.evil AS SELECT a.* FROM public.aside AS a WHERE public.ran('view')""",
}
"""What the owner of the table `evil` does to it."""
READING: tuple[str, ...] = (
    "status",
    "messages evil --payload",
    "errors evil",
    "check",
    "report evil",
)
READING += ("doctor --idle-for 0s", "doctor evil --idle-for 0s", "discover", "consumers evil")
TAKES = "INSERT INTO dbq.queue (schema_name, queue_name, design, kind, options, roles, version) "
VIEW = """VALUES ('public', 'evil', 'fifo', 'adopted', '{"view": "yes"}',
    '{"id": "id", "payload": "payload"}', 1)"""


@dataclass(frozen=True)
class Site:
    superuser: Console
    reader: Console
    admin: Console
    file: Path

    def plant(self, script: str) -> None:
        execute(self.admin.url, script)
        self.file.write_text("")

    @property
    def ran(self) -> str:
        return self.file.read_text()


@pytest.fixture
def site(module_server: EmbeddedServer, report: Path) -> Iterator[Site]:
    """The queue `evil` of a member of dbq_admin, which has a message; who runs `ran` reports it if
    that is a superuser."""
    with ExitStack() as stack:
        url = stack.enter_context(fresh_database(module_server.url))
        superuser = Console(url)
        superuser.done("install", "fifo", "mail")
        with connect(url) as connection:
            connection.execute(role_script(PRODUCTS["postgresql"], "public", []).encode())
            connection.execute(REPORTING.format(report=report).encode())
        logins = [
            Console(stack.enter_context(login(url, f"GRANT dbq_{role} TO {{}}")))
            for role in ("reader", "admin")
        ]
        logins[1].done("install", "fifo", "evil")
        logins[1].done("push", "evil", "x")
        yield Site(superuser, logins[0], logins[1], report)
        execute(url, "DROP TYPE IF EXISTS public.word CASCADE")


def read_all(console: Console) -> dict[str, Answer]:
    answers = {words: console(*words.split()) for words in READING}
    assert not any("Traceback" in answer.err for answer in answers.values())
    return answers


@pytest.mark.parametrize("code", CODE)
def test_a_superuser_reads_nothing_that_runs_others_code(site: Site, code: str) -> None:
    site.plant(CODE[code])
    seen = read_all(site.superuser)["status"]
    assert site.ran == ""
    assert "no superuser reads it: that would run the" in seen.text + seen.err
    assert "mail" in seen.text
    assert "no superuser" not in site.reader.done("status").text, "a reader reads it"


@pytest.mark.parametrize(
    ("made", "searched"),
    {
        "CREATE FUNCTION public.f() RETURNS int LANGUAGE sql AS 'SELECT 1'": False,
        "CREATE FUNCTION public.f() RETURNS int LANGUAGE sql AS 'SELECT 1';"
        "ALTER FUNCTION public.f() OWNER TO {}": True,
        "CREATE VIEW public.v AS SELECT 1 AS n": True,
        "CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w;"
        "CREATE FOREIGN TABLE public.t (n int) SERVER s": True,
    }.items(),
)
def test_code_of_others_is_searched_where_there_can_be_any(
    database_url: str, made: str, *, searched: bool
) -> None:
    """To plan the search takes most of a verb's time: a database without any is spared it."""
    superuser = Console(database_url)
    superuser.done("install", "fifo", "mail")
    with login(database_url, made) as other, statements_sent() as sent:
        superuser.done("status")
        assert any("WITH RECURSIVE others" in statement for statement in sent) == searched
        sent.clear()
        Console(other)("status")
        assert not any("WITH RECURSIVE others" in statement for statement in sent)


def test_a_cast_of_somebody_else_hides_no_queue(site: Site) -> None:
    """A cast between two types can be made by the owner of either."""
    site.plant(
        CODE["a cast"].replace("ALTER TABLE public.evil ALTER", "CREATE TABLE t (a int); --")
    )
    assert "no superuser" not in site.superuser.done("status").text


def test_such_a_table_runs_where_a_superuser_reads_it(site: Site) -> None:
    site.plant(INDEXED)
    execute(site.superuser.url, "SELECT FROM public.evil")
    assert site.ran == "index\n"


def test_a_row_of_an_admin_does_not_say_that_a_view_may_be_read(site: Site) -> None:
    site.plant("DELETE FROM dbq.queue WHERE queue_name = 'evil'")
    site.plant(CODE["a view"] + ";" + TAKES + VIEW)
    read_all(site.superuser)
    assert site.ran == ""


def test_a_table_with_the_columns_of_a_library_is_not_found(site: Site) -> None:
    site.plant(
        QUIET
        + """CREATE TABLE public.delayed_jobs (
        id bigint PRIMARY KEY, priority int, attempts int, handler text, last_error text,
        run_at timestamp, locked_at timestamp, failed_at timestamp, locked_by text, queue text,
        created_at timestamp, updated_at timestamp);"""
    )
    assert "delayed_jobs" in site.superuser.done("discover").text
    site.plant("CREATE INDEX ON public.delayed_jobs ((id + public.quiet(1)))")
    assert "delayed_jobs" not in site.superuser.done("discover").text
    assert site.ran == ""


def test_a_catalog_of_others_runs_nothing(site: Site, module_server: EmbeddedServer) -> None:
    """Of the owner of a database, which the superuser of its server looks after."""
    with fresh_database(module_server.url) as url, login(url) as owners:
        name = owners.split("//")[1].split(":")[0]
        with connect(url) as connection:
            words = f"GRANT CREATE ON DATABASE {connection.info.dbname} TO {name};"
            connection.execute(f"{words} GRANT CREATE ON SCHEMA public TO {name}".encode())
            connection.execute(REPORTING.format(report=site.file).encode())
        Console(owners).done("install", "fifo", "mail")
        assert Console(url).done("status")
        execute(
            owners,
            """ALTER TABLE dbq.queue RENAME TO aside;
                CREATE VIEW dbq.queue AS SELECT a.* FROM dbq.aside AS a WHERE public.ran('view')""",
        )
        for words in READING:
            answer = Console(url)(*words.split())
            assert "No superuser reads the catalog" in answer.text + answer.err, words
        assert site.ran == ""
