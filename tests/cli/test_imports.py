"""What a call imports, and through how many files the name of a queue passes."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

from console.cli.verbs import cli
from console.verbs import get_verb
from console.verbs.index import VERBS
from tests.cli.calls import Console, command
from tests.cli.conftest import Install
from tests.tools.call_path import MOST, files_on_call_path

HEAVY = {
    *("asyncio", "psycopg", "pyodbc", "sqlalchemy", "sqlalchemy.dialects.postgresql"),
    *("sqlalchemy.dialects.mssql", "numpy", "pandas", "pyarrow", "pyspark"),
    *("plotext", "prometheus_client", "rich.console", "textual"),
    *(
        "console.tui",
        "console.features.demo.running",
        "console.features.lake.spark",
        "console.doctor.diagnose",
    ),
}
POSTGRESQL = {"asyncio", "psycopg", "sqlalchemy", "sqlalchemy.dialects.postgresql"}
"""Imported with a connection; asyncio by psycopg."""

CALLS = """
import json, os, sys

heavy, calls = json.loads(sys.argv[1])
answers = os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_RDWR), 1)
for words in calls:
    before = set(sys.modules)
    sys.argv = ["dbq-console", *words]
    from console.cli import main

    try:
        main()
    except SystemExit as end:
        found = sorted((set(sys.modules) - before) & set(heavy))
        print(json.dumps([end.code, found]), file=answers)
"""


def imported(
    *calls: tuple[str, ...],
    environment: dict[str, str] | None = None,
    status: int = 0,
    heavy: Collection[str] = HEAVY,
) -> list[set[str]]:
    """The heavy modules that each call has imported, one call after the other in one process."""
    done = subprocess.run(
        [sys.executable, "-c", CALLS, json.dumps([sorted(heavy), calls])],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **(environment or {})},
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one[0] for one in found] == [status] * len(calls), (found, done.stderr)
    return [set(modules) for _, modules in found]


@pytest.mark.long
def test_calls_without_a_connection_import_no_driver() -> None:
    calls: list[tuple[str, ...]] = [
        *[("--help",), ("completion", "bash"), ("designs",), ("designs", "ring"), ("help",)],
        *[("config", "show"), ("config", "path"), ("install", "--help"), ("pipeline", "--help")],
        *[(verb, "--help") for verb in cli.commands],
    ]
    assert dict(zip(calls, imported(*calls), strict=True)) == {words: set() for words in calls}


def test_the_list_of_verbs_and_the_version_import_nothing_that_a_verb_uses() -> None:
    used = {"console.catalog", "console.config", "console.designs", "console.actions.execute"}
    found = imported(("--help",), ("--version",), ("completion", "bash"), heavy=used | HEAVY)
    assert found == [set()] * 3
    assert imported(("--version",), heavy={"subprocess"}) == [set()]  # it runs no program


def test_only_a_list_of_verbs_reads_the_files_of_verbs() -> None:
    code = (
        "import sys; read = set()\n"
        "sys.addaudithook(lambda event, of: event == 'open' and read.add(str(of[0])))\n"
        "sys.argv = ['dbq-console', *{words}]\n"
        "from console.cli import main\n"
        "try: main()\n"
        "except SystemExit: print(*read, sep='\\n')"
    )
    of_verbs = re.compile(r"/(?:commands|views)/[a-z]\w*\.py$", re.MULTILINE)
    for words, few in ((["--help"], False), (["--version"], True), (["completion", "bash"], True)):
        call = [sys.executable, "-c", code.format(words=words)]
        done = subprocess.run(call, capture_output=True, text=True, check=True)
        read = {name.rpartition("/")[2] for name in of_verbs.findall(done.stdout)}
        assert (len(read) < 3) == few, read


@pytest.mark.long
@pytest.mark.parametrize(
    "line", ["st", "requeue ", "requeue --f", "install ring x --option ", "status --url x --p"]
)
def test_completion_imports_nothing_heavy(line: str) -> None:
    words = f"dbq-console {line}"
    environment = {
        "_DBQ_CONSOLE_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    assert imported((), environment=environment) == [set()]


@pytest.mark.long
def test_a_verb_on_a_database_imports_its_driver_and_what_it_uses(
    console: Console, install: Install
) -> None:
    connection = ("--url", console.url)
    name = install("fifo")
    found = imported(
        ("status", *connection),
        ("check", *connection),
        ("push", name, "x", *connection),
        ("messages", name, *connection),
        ("purge", name, "--dry-run", *connection),
        ("pop", name, *connection),
        ("doctor", *connection),
    )
    assert found == [POSTGRESQL, *[set()] * 5, {"console.doctor.diagnose"}]


def test_a_verb_on_postgresql_imports_nothing_for_what_it_does_not_read(console: Console) -> None:
    of_others = {"configparser", "console.engines.mssql.odbc", "fractions", "tomllib"}
    (found,) = imported(("status", "--url", console.url), heavy=of_others)
    assert found == set()


def test_history_without_recordings_imports_no_driver_and_no_arrow(
    console: Console, tmp_path: Path
) -> None:
    found = imported(
        ("history", "any", "--url", console.url, "--recordings", str(tmp_path)), status=1
    )
    assert found == [{"sqlalchemy", "asyncio"}]  # for its URL


def test_doctor_without_recordings_imports_no_arrow(
    console: Console, install: Install, tmp_path: Path
) -> None:
    name = install("fifo")
    console.done("push", name, "x")
    call = ("doctor", name, "--idle-for", "500ms", "--url", console.url)
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    found = imported(call, environment=environment, status=1, heavy={"pyarrow"})
    assert found == [set()]


def test_the_list_of_verbs_has_the_summary_of_each_verb() -> None:
    for name, listed in cli.commands.items():
        line = listed.get_short_help_str(limit=1_000)
        assert command(name).name == name
        verb = get_verb(name) if name in VERBS else None
        if command(name).help != getattr(verb, "help", None):
            assert line == command(name).get_short_help_str(limit=1_000)
        else:  # its summary is shorter than its help
            assert verb is not None
            assert line == f"{verb.summary[:1].upper()}{verb.summary[1:]}."


@pytest.mark.long
def test_the_first_screens_import_nothing_of_the_others() -> None:
    absent = [
        *("sqlalchemy", "psycopg", "pyarrow", "plotext", "console.actions.execute"),
        *("console.doctor.diagnose", "console.verbs.messages", "console.tui.screens.help"),
    ]
    code = f"import sys, console.tui; print([m for m in {absent} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_name_of_a_queue_passes_through_few_files_until_its_sql(
    console: Console, install: Install
) -> None:
    name = install("status")
    console.done("push", name, "-", "--lines", stdin=b"1\n2\n3\n")
    console.done("pop", name, "--count", "2", "--fail", "no route")
    with files_on_call_path(name) as files:
        console.done("requeue", name, "--filter", "limit=1", "--yes", name)
    assert len(files) <= MOST, "\n".join(sorted(files))
