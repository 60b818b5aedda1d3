"""install, --print, adopt, forget, roles."""

import re
import shutil
import subprocess
from contextlib import closing

import pytest
from sqlalchemy import make_url

from console.designs import DESIGNS, designs_on
from console.engines import open_database
from tests.cli.calls import Console, call
from tests.contract.leftovers import objects_of
from tests.contract.variants import ALL, DEFAULTS, Variant, on
from tests.servers import PATIENCE_SECONDS, connect, execute

ODD = 'od"d; name'


def objects(console: Console) -> set[str]:
    """The database's objects outside schema dbq."""
    with closing(open_database(console.url)) as database:
        return objects_of(database)


def test_install_describes_the_queue_and_refuses_the_name_of_a_function(console: Console) -> None:
    answer = console.done("install", "fifo", "result", "--option", "order=strict", "--json")
    url = make_url(console.url)
    assert answer.json == {
        "queue": "result",
        "schema": "public",
        "design": "fifo",
        "options": DESIGNS["fifo"].complete_options({"order": "strict"}),
        "connection": f"{url.host}:{url.port}/{url.database}",
    }
    with connect(console.url) as connection:
        connection.execute("CREATE FUNCTION function_pop() RETURNS int RETURN 1")
        console("install", "claim", "function").failed(2, "a function 'function_pop'")
        assert connection.execute("SELECT function_pop()").fetchone() == (1,)


WITH_MANY_OPTIONS = [
    [v for v in on("postgresql", ALL) if v.design is design and len(v.given) > 2][number % 3]
    for number, design in enumerate(designs_on("postgresql").values())
]
"""Every design with as many options as can be combined, with one type of payload."""


def run_script(console: Console, script: bytes) -> None:
    """Run it with `psql`; without psql, as one string that the server splits."""
    if psql := shutil.which("psql"):
        url = make_url(console.url).set(drivername="postgresql")
        subprocess.run(
            [psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", url.render_as_string(hide_password=False)],
            input=script,
            check=True,
            capture_output=True,
            timeout=PATIENCE_SECONDS,
        )
    else:
        execute(console.url, script)


def printed(variant: Variant, name: str) -> bytes:
    options = [word for k, v in variant.given.items() for word in ("--option", f"{k}={v}")]
    words = ("install", variant.design.name, name, "--print", "--engine", "postgresql")
    answer = call(*words, *options)
    assert (answer.status, answer.err) == (0, "")
    return answer.out


def check_printed(console: Console, variant: Variant) -> None:
    name = f":o'd\"d $dbq$ \\ {variant.design.name}"
    before = objects(console)
    run_script(console, printed(variant, name))
    console.done("push", name, "-", "--lines", stdin=b"1\n2\n3\n")
    taken = console.popped(name, "--count", "9")
    assert len(taken) == 3
    console.done("uninstall", name, "--with-messages", "--yes", name)
    assert objects(console) == before


def test_a_name_is_accepted_as_it_is_printed(empty: Console) -> None:
    empty.done("install", "claim", "mail")
    for verb in ("status", "doctor", "check", "messages", "sql push"):
        assert empty(*verb.split(), "public.mail").status in {0, 1}, verb
    empty.done("push", "public.mail", "a")
    empty.done("purge", "public.mail", "--yes", "mail")
    assert empty("status", "other.mail").status == 2
    empty("install", "claim", "public.more").failed(2, "install claim more --schema public")
    empty.done("install", "claim", "of.no.schema")
    empty.done("install", "claim", "public.mail", "--schema", "public")
    assert empty.done("status", "public.mail", "--json").json["queues"][0]["queue"] == "public.mail"


def test_the_printed_script_of_every_design_works_in_an_empty_database(empty: Console) -> None:
    for variant in on("postgresql", DEFAULTS):
        check_printed(empty, variant)
        execute(empty.url, "DROP SCHEMA dbq CASCADE")


@pytest.mark.long
@pytest.mark.parametrize("variant", WITH_MANY_OPTIONS, ids=str)
def test_the_printed_script_with_many_options_works(console: Console, variant: Variant) -> None:
    check_printed(console, variant)


def test_a_printed_script_is_all_or_nothing(console: Console) -> None:
    (ring,) = (v for v in DEFAULTS if v.design.name == "ring")
    script = printed(ring, "printed")
    run_script(console, script)
    before = objects(console)
    with pytest.raises(Exception, match=r"exit status 3|already exists"):
        run_script(console, script)
    with pytest.raises(Exception, match=r"exit status 3|already exists"):
        run_script(console, printed(ring, "printed").replace(b'"printed"', b'"printed2"', 3))
    assert objects(console) == before


def test_print_shows_the_sql_of_install() -> None:
    """With --json it is one object; the engine may come from the URL, without a connection."""
    words = ["install", "fifo", ODD, "--print", "--schema", "s"]
    plain = call(*words, "--engine", "postgresql")
    answer = call(*words, "--json", "--url", "postgresql+psycopg://u@127.0.0.1:1/x")
    assert (plain.status, answer.status) == (0, 0)
    assert answer.json == {"queue": ODD, "schema": "s", "design": "fifo", "sql": plain.text}
    assert plain.text.startswith("-- ")
    assert '"s"."od""d; name_push"' in plain.text


def test_print_can_leave_out_the_catalog() -> None:
    """For one who may install queues, and may not make the catalog again."""
    words = ["install", "fifo", "mail", "--print", "--engine", "postgresql"]
    complete, without = call(*words), call(*words, "--no-catalog")
    assert (complete.status, without.status) == (0, 0)
    made = "CREATE TABLE IF NOT EXISTS dbq.queue"
    assert (made in complete.text, made in without.text) == (True, False)
    assert "INSERT INTO dbq.queue" in without.text
    refused = call(
        "install", "fifo", "mail", "--no-catalog", "--url", "postgresql://u@127.0.0.1:1/x"
    )
    assert refused.status == 2
    assert b"--no-catalog goes with --print" in refused.err.encode()


def test_an_adopted_table_can_be_read_but_not_changed_and_be_forgotten(empty: Console) -> None:
    execute(
        empty.url,
        "CREATE TABLE jobs (job_id int PRIMARY KEY, started timestamptz, body text);"
        "INSERT INTO jobs VALUES (1, null, 'a'), (2, now(), 'b'),"
        " (3, now() - interval '1 h', 'c')",
    )
    roles = {"id": "job_id", "claimed_at": "started", "payload": "body"}
    mapped = [word for role in roles.items() for word in ("--map", "=".join(role))]
    named = {"queue": "jobs", "schema": "public", "design": "claim"}
    url = make_url(empty.url)
    answer = empty.done("adopt", "jobs", "--design", "claim", *mapped, "--json")
    assert answer.json == {
        **named,
        "table": "jobs",
        "only": None,
        "roles": roles,
        "connection": f"{url.host}:{url.port}/{url.database}",
        "search_path": "postgres, public",
    }
    status = empty.status("jobs")
    assert (status["ready"], status["claimed"], status["stuck"]) == (1, 2, 1)
    assert (status["errors"], status["age_seconds"]) == (None, None)
    assert {"errors", "age_seconds"} <= set(status["unknown"])
    for words, why in (
        *((["push", "jobs", "x"], "adopted"), (["pop", "jobs"], "adopted")),
        (["uninstall", "jobs", "--yes", "jobs"], "adopted"),
        (["adopt", "jobs", "--design", "claim", *mapped], "forget"),
    ):
        refused = empty(*words)
        assert (refused.status, refused.out, why in refused.err) == (2, b"", True)
    forgotten = empty.done("forget", "jobs", "--json").json
    assert forgotten == {**named, "plan": {}, "done": 1, "result": {}}
    assert empty("status", "jobs").status == 2


def test_roles_without_a_database_only_creates_the_roles() -> None:
    answer = call("roles", "--engine", "postgresql")
    assert (answer.status, answer.err) == (0, "")
    assert set(re.findall(r"CREATE ROLE (\w+)", answer.text)) == {
        "dbq_reader",
        "dbq_operator",
        "dbq_admin",
    }
    assert "_push" not in answer.text
    assert call("roles", "--engine", "postgresql", "--json").json == {"sql": answer.text}
    call("roles").failed(2, "--engine")


def test_roles_with_a_database_grants_the_rights_on_each_queue(empty: Console) -> None:
    empty.done("install", "ring", "orders", "--option", "size=10")
    empty.done("install", "fifo", 'od"d')
    script = empty.done("roles").text
    assert 'GRANT SELECT ON "public"."orders", "public"."orders_archive" TO dbq_reader' in script
    assert '"public"."od""d_pop_many"' in script
    assert "relay" in script
