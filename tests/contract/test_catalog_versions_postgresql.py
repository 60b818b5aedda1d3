"""Catalogs of released versions: each is read as dumped, and gets what this version has; what is
older or newer is refused by name.

`catalogs/N.sql` is `pg_dump --inserts` of a database as version N left it: two queues, one paused
and one protected, with messages, an archive, a silence, a note and the audit of it all."""

import re
from pathlib import Path
from typing import Any

import pytest

from console import sql
from console.catalog.decisions import CATALOG_VERSION
from console.engines import product
from tests.cli.calls import Console
from tests.contract.test_upgrade_postgresql import catalog_of
from tests.servers import Server, execute, fresh_database

pytestmark = pytest.mark.slow

DUMPS = Path(__file__).parent / "catalogs"
QUEUES = ("held", "mail")


def json_of(console: Console, *words: str) -> Any:
    return console.done(*words, "--json").json


@pytest.mark.parametrize("version", range(1, CATALOG_VERSION + 1))
def test_a_catalog_of_each_version_works_and_loses_nothing(
    version: int, console: Console, server: Server
) -> None:
    execute(console.url, (DUMPS / f"{version}.sql").read_bytes())
    console.done("upgrade", "--all", "--yes")
    with fresh_database(server.url) as url:
        Console(url).done("install", "fifo", "new")
        assert catalog_of(console.url) == catalog_of(url)
    states = {one["queue"]: one for one in json_of(console, "status")["queues"]}
    assert {name: states[name]["ready"] for name in QUEUES} == {"held": 3, "mail": 2}
    kinds = {d["kind"] for state in states.values() for d in state["decisions"]}
    assert kinds == {"pause", "protection"}
    notes = json_of(console, "report", "mail", "--idle-for", "0s")["notes"]
    assert [one["note"] for one in notes] == ["deployed 1.4"]
    verbs = [one["verb"] for one in json_of(console, "audit", "mail")["actions"]]
    assert "purge" in verbs
    console.done("resume", "held", "--yes", "held")
    console.done("restore", "mail", "--yes", "mail")
    popped = {name: console.done("pop", name, "--count", "9").text.split() for name in QUEUES}
    assert {name: sorted(texts) for name, texts in popped.items()} == {
        "held": ["h0", "h1", "h2"],
        "mail": ["m0", "m1", "m2"],
    }


@pytest.mark.parametrize(
    ("comment", "words"),
    [
        ("NULL; DROP TABLE dbq.lake_row", "made before the first release"),
        ("'something'; DROP TABLE dbq.lake_plan", "made before the first release"),
        ("'catalog 0 of dbq-console'", "made before the first release"),
        (f"'catalog {CATALOG_VERSION + 1} of dbq-console'", "Use the console that made it"),
    ],
)
def test_a_catalog_of_another_console_is_refused_by_name(
    comment: str, words: str, console: Console
) -> None:
    console.done("install", "fifo", "mail")
    execute(console.url, f"COMMENT ON SCHEMA dbq IS {comment}")
    before = catalog_of(console.url)
    for call in (
        *(["status"], ["doctor"], ["upgrade", "--all", "--yes"], ["install", "fifo", "other"]),
        *(["push", "mail", "x"], ["pop", "mail"], ["audit"], ["note", "x", "mail"]),
    ):
        answer = console(*call)
        assert answer.status in {3, 4}, (call, answer)
        assert words in answer.text + answer.err, (call, answer)
    assert catalog_of(console.url) == before


def test_a_catalog_that_lost_its_comment_is_of_the_first_version(console: Console) -> None:
    """As one that was restored without comments: it lacks nothing else."""
    console.done("install", "fifo", "mail")
    execute(console.url, "COMMENT ON SCHEMA dbq IS NULL")
    console.done("push", "mail", "x")
    assert console.done("pop", "mail").out == b"x\n"


@pytest.mark.parametrize("engine", ["postgresql", "mssql"])
def test_the_catalog_is_made_with_its_version(engine: str) -> None:
    text = "\n".join(sql.batches("catalog.bootstrap", product(engine).dialect))
    assert re.search(
        rf"'catalog {CATALOG_VERSION} of dbq-console'|@value = {CATALOG_VERSION},", text
    )
