"""install, --print, adopt, forget, roles."""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import make_url

from console.designs import DESIGNS, designs_on
from console.engines import Database, open_database
from tests.cli.calls import Console, call
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
