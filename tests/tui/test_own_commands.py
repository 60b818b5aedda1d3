"""A user's own commands on the row under the cursor."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.catalog import audit
from console.config import load
from console.config.file_reader import read
from console.errors import RefusedError, UsageError
from console.features.own_commands import rows
from console.features.own_commands.command import OwnCommand, run
from console.features.own_commands.configured import own_commands
from console.tui.dialogs.dialog import FactsDialog
from tests.tui.feeds import queue
from tests.tui.opened import opened

CUT = "\n... (cut)"
ECHO = f"{sys.executable} -c 'import sys; print(sys.argv[1:])'"
TABLES = f"""
[commands.show]
key = "L"
on = "queue"
run = "{ECHO} --queue={{queue}} {{schema}}"
[commands.logs]
key = "M"
run = "{ECHO} {{id}} --since {{claimed_at}}"
"""


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "config.toml"
    path.write_text(TABLES)
    monkeypatch.setenv("DBQ_CONFIG", str(path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    rows._commands.cache_clear()
    yield path
    rows._commands.cache_clear()


def command(line: str) -> OwnCommand:
    document = read(Path("x"), f"[commands.x]\nkey = 'L'\nrun = '''{line}'''\n")
    assert document.mistakes == ()
    (found,) = own_commands(replace(load({}), document=document))
    return found


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1))
def test_a_value_stays_one_argument_whatever_is_in_it(value: str) -> None:
    words = command("show --id={id} then").arguments({"id": value})
    assert words == ["show", f"--id={value}", "then"]


def test_a_value_never_becomes_an_option_and_none_is_left_out() -> None:
    with pytest.raises(RefusedError, match="begins with -"):
        command("show {id}").arguments({"id": "--delete"})
    with pytest.raises(RefusedError, match="no claimed_at"):
        command("show {claimed_at}").arguments({"id": "1", "claimed_at": None})
    at = datetime(2026, 3, 29, 1, tzinfo=UTC)
    assert command("a {claimed_at} {{}}").arguments({"claimed_at": at}) == [
        *("a", "2026-03-29T01:00:00+00:00", "{}")
    ]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ('key = "L"', "needs run"),
        ('run = "x"', "needs key"),
        ('key = "LL"\nrun = "x"', "must be one key"),
        ('key = "L"\nrun = "x {payload}"', "has {payload}; on a message there are"),
        ('key = "L"\nrun = "{id}"', "must name its program"),
        ('key = "L"\nrun = "x {id"', "brace that is not closed"),
        ('key = "L"\nrun = "x {id!r:>3}"', "has {id:>3}"),
    ],
)
def test_wrong_tables_are_mistakes(table: str, words: str) -> None:
    (mistake, *_) = read(Path("x"), f"[commands.x]\n{table}\n").mistakes
    assert words in mistake.text


def test_what_ran_is_in_the_audit_of_this_machine(configured: Path) -> None:
    del configured
    shown = command(f"{ECHO} {{id}}")
    output = run(shown, shown.arguments({"id": "a b"}), ("prod", "public", "mail"))
    assert output == "['a b']\n"
    with pytest.raises(UsageError, match="cannot be run"):
        run(shown, ["/nowhere/x"], ("prod", "public", "mail"))
    failed = run(shown, [sys.executable, "-c", "raise SystemExit(3)"], ("p", "s", "q"))
    assert failed.endswith("(exit 3)")
    lines = [json.loads(line) for line in audit.local_file().read_text().splitlines()]
    assert [(line["verb"], line["outcome"]) for line in lines] == [
        ("own command x", "done"),
        ("own command x", "failed"),
        ("own command x", "failed"),
    ]
    assert "'a b'" in lines[0]["detail"]


def test_output_is_bounded_while_it_is_read_and_a_program_that_does_not_end_is_killed(
    configured: Path,
) -> None:
    del configured
    written = "import sys; [sys.stdout.write('x' * 100_000) for _ in range(200)]"
    long = run(command("x"), [sys.executable, "-c", written], ("p", "s", "q"))
    assert (len(long), long[-12:]) == (1_000_000 + len(CUT), "x" * (12 - len(CUT)) + CUT)
    endless = replace(command("x"), seconds=0.5)
    for words in (["yes"], ["sleep", "1000"], ["sh", "-c", "exec >&-; exec sleep 1000"]):
        with pytest.raises(UsageError, match="was stopped"):
            run(endless, words, ("p", "s", "q"))


async def test_a_key_runs_it_on_the_queue_under_the_cursor(configured: Path) -> None:
    del configured
    async with opened("prod", size=(100, 30)) as console:
        await console.give(queue("mail"), queue("orders"))
        await console.press("down", "L")
        await console.until(lambda: console.is_at(FactsDialog))
        assert "['--queue=orders', 'public']" in console.picture
        await console.press("escape", "M")
        assert not console.is_at(FactsDialog), "it is about messages"
