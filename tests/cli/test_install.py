"""install, --print, adopt, forget, roles."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import make_url

from console.designs import DESIGNS, designs_on
from console.engines import Database, open_database
from tests.cli.calls import Answer, Console, call
from tests.cli.conftest import Install
from tests.contract.leftovers import objects_of
from tests.contract.variants import ALL, DEFAULTS, Variant, on
from tests.servers import PATIENCE_SECONDS, connect, value

ODD = 'od"d; name'


@contextmanager
def opened(console: Console) -> Iterator[Database]:
    database = open_database(console.url)
    yield database
    database.close()


def objects(console: Console) -> set[str]:
    """What lies in the database outside schema dbq."""
    with opened(console) as database:
        return objects_of(database)


def options(variant: Variant) -> list[str]:
    return [word for k, v in variant.given.items() for word in ("--option", f"{k}={v}")]


@pytest.mark.long
def test_the_story_of_an_odd_name(empty: Console) -> None:
    before = objects(empty)
    installed = empty.run("install", "ring", ODD, "--option", "size=1000")
    assert (installed.status, installed.err) == (0, "")
    assert ODD in installed.text
    assert empty.run("push", ODD, "hello  ").out == b"1\n"
    assert empty.run("pop", ODD).out == b"hello  \n"
    assert empty("pop", ODD).status == 1
    empty.done("push", ODD, "stays")
    smoke = empty.run("smoke", ODD, "--json")
    assert (smoke.status, smoke.json["ok"], smoke.err) == (0, True, "")
    assert empty.status(ODD)["ready"] == 1
    assert empty("uninstall", ODD).status == 4
    assert empty.run("uninstall", ODD, "--yes", ODD).status == 4  # a message would be gone
    assert empty.run("uninstall", ODD, "--yes", ODD, "--with-messages").status == 0
    assert objects(empty) == before
    assert empty.done("status", "--json").json["queues"] == []


def test_the_result_of_install(console: Console) -> None:
    answer = console.done("install", "fifo", "result", "--option", "order=strict", "--json")
    url = make_url(console.url)
    assert answer.json == {
        "queue": "result",
        "schema": "public",
        "design": "fifo",
        "options": DESIGNS["fifo"].complete_options({"order": "strict"}),
        "connection": f"{url.host}:{url.port}/{url.database}",
    }


def test_names_that_are_taken(console: Console, install: Install) -> None:
    name = install("fifo")
    with connect(console.url) as connection:
        connection.execute('CREATE TABLE public."table_archive" (x int)')
        connection.execute("CREATE FUNCTION public.function_pop() RETURNS int RETURN 1")
    for taken, complaint in (
        (name, "already a queue"),
        ("table", "a table 'table_archive'"),
        ("function", "a function 'function_pop'"),
    ):
        before = objects(console)
        answer = console("install", "claim", taken)
        assert (answer.status, answer.out) == (2, b"")
        assert complaint in answer.err
        assert objects(console) == before


@pytest.mark.parametrize("schema", ["none", "", "x" * 64])
def test_a_schema_that_is_not_there(console: Console, schema: str) -> None:
    before = objects(console)
    answer = console("install", "fifo", "q", "--schema", schema)
    assert (answer.status, answer.out) == (2, b"")
    assert "schema" in answer.err
    assert objects(console) == before


def test_a_login_that_may_not_create(console: Console) -> None:
    url = make_url(console.url)
    role = f"reader of {url.database}"
    with connect(console.url) as connection:
        connection.execute(f"CREATE ROLE \"{role}\" LOGIN PASSWORD 'x'".encode())
        try:
            reader = url.set(username=role, password="x").render_as_string(hide_password=False)
            answer = call("install", "fifo", "q", "--url", reader)
            assert (answer.status, answer.out) == (4, b"")
            assert "This login may not write to dbq.action" in answer.err
        finally:
            connection.execute(f'DROP ROLE "{role}"'.encode())


RICH = [
    [v for v in on("postgresql", ALL) if v.design is design and len(v.given) > 2][number % 3]
    for number, design in enumerate(designs_on("postgresql").values())
]
"""Every design with as many options as go together, of one type of payload."""


def run_script(console: Console, script: bytes) -> None:
    """As `psql` runs it; where there is none, as one string that the server takes apart."""
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
        with connect(console.url) as connection:
            connection.execute(script)


@pytest.fixture(scope="module")
def printed(console: Console) -> Callable[[Variant, str], bytes]:
    def print_(variant: Variant, name: str) -> bytes:
        answer = call(
            *("install", variant.design.name, name, "--print", "--engine", "postgresql"),
            *options(variant),
        )
        assert (answer.status, answer.err) == (0, "")
        return answer.out

    return print_


def check_printed(
    console: Console, printed: Callable[[Variant, str], bytes], variant: Variant
) -> None:
    name = f":o'd\"d $dbq$ \\ {variant.design.name}"
    before = objects(console)
    run_script(console, printed(variant, name))
    console.done("push", name, "-", "--lines", stdin=b"1\n2\n3\n")
    taken = console.popped(name, "--count", "9")
    assert len(taken) == 3
    console.done("uninstall", name, "--with-messages", "--yes", name)
    assert objects(console) == before


def test_the_printed_script_of_every_design_works_where_nothing_was_before(
    empty: Console, printed: Callable[[Variant, str], bytes]
) -> None:
    for variant in on("postgresql", DEFAULTS):
        check_printed(empty, printed, variant)
        with connect(empty.url) as connection:
            connection.execute("DROP SCHEMA dbq CASCADE")


@pytest.mark.long
@pytest.mark.parametrize("variant", RICH, ids=str)
def test_the_printed_script_with_many_options_works(
    console: Console, printed: Callable[[Variant, str], bytes], variant: Variant
) -> None:
    check_printed(console, printed, variant)


def test_a_printed_script_is_all_or_nothing(
    console: Console, printed: Callable[[Variant, str], bytes]
) -> None:
    (ring,) = (v for v in DEFAULTS if v.design.name == "ring")
    script = printed(ring, "printed")
    run_script(console, script)
    before = objects(console)
    with pytest.raises(Exception, match=r"exit status 3|already exists"):
        run_script(console, script)
    with pytest.raises(Exception, match=r"exit status 3|already exists"):
        run_script(console, printed(ring, "printed").replace(b'"printed"', b'"printed2"', 3))
    assert objects(console) == before


@pytest.mark.long
def test_a_printed_queue_proves_itself(
    empty: Console, printed: Callable[[Variant, str], bytes]
) -> None:
    for variant in on("postgresql", DEFAULTS):
        if variant.design.name in {"ring", "claim"}:
            run_script(empty, printed(variant, variant.design.name))
            assert empty.done("smoke", variant.design.name, "--json").json["ok"]


def test_print_says_what_install_does(console: Console) -> None:
    """With --json it is one object; the engine may come from the URL; nothing is connected."""
    words = ["install", "fifo", ODD, "--print", "--schema", "s"]
    plain = call(*words, "--engine", "postgresql")
    answer = call(*words, "--json", "--url", "postgresql+psycopg://u@127.0.0.1:1/x")
    assert (plain.status, answer.status) == (0, 0)
    assert answer.json == {"queue": ODD, "schema": "s", "design": "fifo", "sql": plain.text}
    assert plain.text.startswith("-- ")
    assert '"s"."od""d; name_push"' in plain.text


@pytest.fixture
def jobs(empty: Console) -> Console:
    """Somebody's table, which follows the claim design."""
    with connect(empty.url) as connection:
        connection.execute(
            "CREATE TABLE public.jobs (job_id int PRIMARY KEY, made timestamptz, "
            "started timestamptz, body text, why text)"
        )
        connection.execute(
            "INSERT INTO public.jobs VALUES (1, now(), null, 'a', null), (2, now(), now(), 'b', "
            "null), (3, now(), now(), 'c', 'no'), (4, now(), now() - interval '1 h', 'd', null)"
        )
    return empty


MAPPED = ("--map", "id=job_id", "--map", "claimed_at=started", "--map", "payload=body")


def test_the_story_of_an_adopted_table(jobs: Console) -> None:
    before = objects(jobs)
    url = make_url(jobs.url)
    answer = jobs.done("adopt", "jobs", "--design", "claim", *MAPPED, "--json")
    assert answer.json == {
        "queue": "jobs",
        "schema": "public",
        "design": "claim",
        "table": "jobs",
        "only": None,
        "roles": {"id": "job_id", "claimed_at": "started", "payload": "body"},
        "connection": f"{url.host}:{url.port}/{url.database}",
    }
    seen = jobs.status("jobs")
    assert (seen["ready"], seen["claimed"], seen["stuck"]) == (1, 3, 1)
    assert (seen["errors"], seen["age_seconds"]) == (None, None)
    assert {"errors", "age_seconds"} <= set(seen["unknown"])
    for verb in (["push", "jobs", "x"], ["pop", "jobs"], ["uninstall", "jobs", "--yes", "jobs"]):
        refused = jobs(*verb)
        assert (refused.status, refused.out) == (2, b"")
        assert "adopted" in refused.err
    again = jobs("adopt", "jobs", "--design", "claim", *MAPPED)
    assert (again.status, again.out) == (2, b"")
    assert "forget" in again.err
    assert jobs("install", "fifo", "jobs").status == 2
    assert jobs.done("forget", "jobs", "--json").json == {
        "queue": "jobs",
        "schema": "public",
        "design": "claim",
        "plan": {},
        "done": 1,
        "result": {},
    }
    assert jobs("status", "jobs").status == 2
    more = (*MAPPED, "--map", "error=why", "--map", "pushed_at=made")
    jobs.done("adopt", "jobs", "--design", "claim", *more)
    seen = jobs.status("jobs")
    assert (seen["ready"], seen["claimed"], seen["stuck"], seen["errors"]) == (1, 2, 1, 1)
    assert seen["age_seconds"] >= 0
    jobs.done("forget", "jobs")
    assert objects(jobs) == before
    assert value(jobs.url, "SELECT count(*) FROM public.jobs") == 4


def refusal(answer: Answer, complaint: str) -> None:
    assert (answer.status, answer.out) == (2, b""), answer
    assert complaint in answer.err


def test_what_cannot_be_adopted(jobs: Console) -> None:
    claim = ["adopt", "jobs", "--design", "claim"]
    refusal(jobs(*claim, *MAPPED[:4]), "--map payload=COLUMN")
    refusal(jobs(*claim, *MAPPED, "--map", "error=nope"), "no column 'nope'")
    refusal(jobs(*claim, *MAPPED, "--map", "id=job_id"), "twice")
    refusal(jobs(*claim, *MAPPED, "--schema", "none"), "no schema 'none'")
    refusal(jobs("adopt", "public.jobs", "--design", "claim", *MAPPED), "taken whole")
    ring = ["slot=job_id", "id=job_id", "payload=body", "reference_count=job_id"]
    sequences = ["push_sequence=none", "pop_sequence=none"]
    words = ["adopt", "jobs", "--design", "ring"]
    for size, complaint in (("0", "size"), ("ten", "size"), ("9" * 5000, "size"), ("5", "'none'")):
        roles = [*ring, *sequences, f"size={size}"]
        refusal(jobs(*words, *(w for role in roles for w in ("--map", role))), complaint)
    assert jobs.done("status", "--json").json["queues"] == []


def test_an_adopted_ring_is_never_renumbered(empty: Console) -> None:
    with connect(empty.url) as connection:
        connection.execute(
            "CREATE TABLE public.loop (slot int, message_id int, message text, refs int)"
        )
        connection.execute("INSERT INTO public.loop VALUES (0, 4, 'x', 1), (1, null, null, 0)")
        connection.execute("CREATE SEQUENCE public.ins START 5")
        connection.execute("CREATE SEQUENCE public.outs START 4")
    roles = ("slot=slot", "id=message_id", "payload=message", "reference_count=refs", "size=2")
    mapped = [w for r in (*roles, "push_sequence=ins", "pop_sequence=outs") for w in ("--map", r)]
    empty.done("adopt", "loop", "--design", "ring", *mapped)
    seen = empty.status("loop")
    assert (seen["ready"], seen["gap"], seen["capacity"]) == (1, 1, 2)
    for verb in (["relay", "loop"], ["resize", "loop", "5"]):
        answer = empty(*verb, "--yes", "loop")
        assert (answer.status, answer.out) == (4, b"")
        assert "adopted" in answer.err


def test_forget_leaves_no_installed_queue_behind(console: Console, install: Install) -> None:
    name = install("fifo")
    refusal(console("forget", name), "uninstall")
    assert console.status(name)["ready"] == 0


def test_what_is_gone_by_hand_can_be_forgotten(console: Console, install: Install) -> None:
    name = install("heap")
    with connect(console.url) as connection:
        connection.execute(f'DROP TABLE public."{name}", public."{name}_archive"'.encode())
        for function in ("push", "push_many", "pop", "pop_many"):
            connection.execute(f'DROP FUNCTION public."{name}_{function}"'.encode())
    console.done("forget", name)
    assert name not in json.dumps(console.done("status", "--json").json)


def test_without_a_database_it_is_the_roles_alone() -> None:
    answer = call("roles", "--engine", "postgresql")
    assert (answer.status, answer.err) == (0, "")
    assert set(re.findall(r"CREATE ROLE (\w+)", answer.text)) == {
        "dbq_reader",
        "dbq_operator",
        "dbq_admin",
    }
    assert "_push" not in answer.text
    assert call("roles", "--engine", "postgresql", "--json").json == {"sql": answer.text}
    refused = call("roles")
    assert refused.status == 2
    assert "--engine" in refused.err


def test_with_a_database_it_has_the_rights_on_each_of_its_queues(empty: Console) -> None:
    empty.done("install", "ring", "orders", "--option", "size=10")
    empty.done("install", "fifo", 'od"d')
    script = empty.done("roles").text
    assert 'GRANT SELECT ON "public"."orders", "public"."orders_archive" TO dbq_reader' in script
    assert '"public"."od""d_pop_many"' in script
    assert "relay" in script
