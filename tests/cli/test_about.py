"""What the program prints about itself: help, versions, completion; its log."""

import json
import logging
import multiprocessing
import os
import pty
import re
import shutil
import stat
import subprocess
from contextlib import closing, suppress
from pathlib import Path
from unittest import mock

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from rich.cells import cell_len
from sqlalchemy import make_url

from console.cli.about import _commit
from console.cli.commands.completion import SHELLS
from console.cli.commands.help import complete_topics, rendered
from console.cli.logs import LogFile, error_text, logging_to_file
from console.cli.verbs import cli
from console.designs import DESIGNS
from console.doctor.checks import CODES
from console.engines import open_database
from console.errors import ConnectionFailedError, UsageError
from console.help import topics
from console.monitor.sample import take_sample
from tests.cli.calls import Console, call, command
from tests.cli.conftest import Install
from tests.cli.verbs import UNREACHABLE
from tests.tools.warm import Forked

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z \d+ (\w+) console[\w.]*: (.*)")


def test_version_lists_the_libraries_in_use() -> None:
    answer = call("--version")
    assert (answer.status, answer.err) == (0, "")
    found = dict(line.split(" ", 1) for line in answer.text.splitlines())
    assert re.match(r"\d+\.\d+\.\d+", found["dbq-console"])
    assert re.match(r"3\.\d+\.\d+", found["Python"])
    assert re.match(r"\d+\.\d+.*libpq \d+", found["psycopg"])
    assert {"platform", "pyodbc", "SQLAlchemy", "Textual"} <= set(found)


def test_the_commit_is_known_if_pip_recorded_it() -> None:
    installed = {"url": "x", "vcs_info": {"vcs": "git", "commit_id": "abc123"}}
    assert _commit(json.dumps(installed)) == "abc123"
    editable = json.dumps({"url": "file:///x", "dir_info": {"editable": True}})
    assert {_commit(written) for written in (editable, None, "not json", "[]")} == {""}


def test_completion_prints_a_script_that_its_shell_accepts(tmp_path: Path) -> None:
    for shell in SHELLS:
        answer = call("completion", shell)
        assert answer.status == 0
        assert "_DBQ_CONSOLE_COMPLETE" in answer.text
        if which := shutil.which(shell):
            script = tmp_path / shell
            script.write_text(answer.text)
            subprocess.run([which, "-n", script], check=True, capture_output=True)
    assert call("completion", "tcsh").status == 2


def completed(*words: str) -> list[str]:
    shell = ShellComplete(cli, {}, "dbq-console", "_DBQ_CONSOLE_COMPLETE")
    return [item.value for item in shell.get_completions(list(words[:-1]), words[-1])]


def test_verbs_profiles_designs_and_options_are_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[profiles.orders]\nurl = "postgresql+psycopg://u@127.0.0.1:1/d"\n')

    monkeypatch.setenv("DBQ_CONFIG", str(file))

    assert completed("serve") == ["serve-metrics"]
    assert completed("status", "--profile", "or") == ["orders"]
    assert completed("install", "cl") == ["claim"]
    assert completed("smoke", "--design", "r") == ["ring"]
    assert completed("install", "fifo", "q", "--option", "or") == ["order="]
    assert completed("install", "fifo", "q", "--option", "order=") == ["order=lax", "order=strict"]
    file.write_text("nonsense")
    assert completed("status", "--profile", "or") == []
    assert completed("status", "or") == []


def test_queue_names_are_completed_from_the_last_status_without_connecting(
    console: Console, install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    name = install("fifo")

    with closing(open_database(console.url)) as without_profile:
        take_sample(without_profile)
    assert completed("status", "fi") == []
    console.done("status")
    refuse = mock.Mock(side_effect=AssertionError("it connects"))
    with mock.patch("console.engines.database.Database.transaction", refuse):
        for before in (["status"], ["pop"], ["requeue"], ["audit"], ["pipeline", "archive"]):
            assert name in completed(*before, "fi")
        assert name in completed("--url", console.url, "status", "fi")
        assert name in completed("purge", "--url", console.url, "fi")
        assert completed("status", "--url", UNREACHABLE, "fi") == []
        assert completed("install", "fifo", "fi") == []
    (file,) = (tmp_path / "dbq-console" / "queues").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert str(make_url(console.url).password) not in file.read_text()
    console.done("uninstall", name, "--yes", name)
    console.done("status")
    assert name not in completed("status", "fi")


def lines(path: Path) -> list[tuple[str, str]]:
    found = []
    for line in path.read_text().splitlines():
        match = LINE.fullmatch(line)
        assert match, line
        found.append((match[1], match[2]))
    return found


def test_failures_are_logged_and_successes_only_on_request(
    tmp_path: Path, console: Console, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path = tmp_path / "dbq-console" / "dbq-console.log"
    name = install("fifo", "payload=json")
    console.done("status", name)
    assert not path.exists()
    call("status", "--url", UNREACHABLE)
    ((level, words),) = lines(path)
    assert level == "WARNING"
    assert words.startswith("status: exit 3, ConnectionFailedError: Could not ")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert console("push", name, '{"Pl4nted": ').status == 2  # no JSON: the server repeats it
    assert console("--log-level", "debug", "push", name, '{"Pl4nted": 1}').status == 0
    assert console("--log-level", "debug", "pop", name, "--url", "nonsense Pl4nted").status == 2
    found = lines(path)
    assert ("INFO", "push begins") in found
    assert re.fullmatch(r"push: done, after \d+\.\d s", found[2][1])
    assert found[-1][1].startswith("pop: exit 2, UsageError, after")
    assert "Pl4nted" not in path.read_text()
    assert "s3cr3t" not in path.read_text()


def test_the_configuration_sets_the_log_file_and_its_level(tmp_path: Path) -> None:
    file, log = tmp_path / "config.toml", tmp_path / "own" / "x.log"
    environment = {"DBQ_CONFIG": str(file), "XDG_STATE_HOME": str(tmp_path / "state")}
    file.write_text(f"log_file = '{log}'\nlog_level = 'info'\n")
    assert call("designs", environment=environment).status == 0
    assert [level for level, _ in lines(log)] == ["INFO", "INFO"]
    call("designs", environment=environment | {"DBQ_LOG_LEVEL": "error"})
    call("--log-level", "error", "designs", environment=environment)
    assert len(lines(log)) == 2
    file.write_text("log_file = 'off'\nlog_level = 'debug'\n")
    call("designs", environment=environment)
    assert not (tmp_path / "state").exists()
    file.write_text("log_level = 'loud'\n")
    call("config", "validate", environment=environment).failed(2, "log_level")
    assert call("designs", environment=environment).status == 0
    file.write_text("[profiles.p]\nurl = 'postgresql+psycopg://u@h/d'\nlog_level = 'info'\n")
    assert "only at the top" in call("config", "validate", environment=environment).err
    assert call("--log-level", "loud", "designs").status == 2


def test_a_log_that_cannot_be_written_does_not_disturb_a_verb(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = {"DBQ_LOG_FILE": str(tmp_path / "file" / "x.log"), "DBQ_LOG_LEVEL": "debug"}
    answer = call("designs", "--json", environment=log)
    assert (answer.status, answer.err) == (0, "")
    assert answer.json["designs"]


def test_an_exception_is_logged_without_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DBQ_LOG_FILE", str(tmp_path / "x.log"))
    with logging_to_file("error"):
        try:
            try:
                int("Pl4nted")
            except ValueError as error:
                raise RuntimeError("Pl4nted too") from error
        except RuntimeError:
            logging.getLogger("console.x").exception("it failed\nfor good")
        logging.getLogger("sqlalchemy.engine").error("INSERT Pl4nted")
    ((level, words),) = lines(tmp_path / "x.log")
    assert level == "ERROR"
    assert words.startswith("it failed␊for good␊RuntimeError at test_about.py:")
    assert "; after ValueError at test_about.py:" in words
    assert "Pl4nted" not in words
    failed = ConnectionFailedError("Could not look.", why="Pl4nted", next_step="Pl4nted")
    assert error_text(failed) == "ConnectionFailedError: Could not look."
    assert error_text(UsageError("'Pl4nted' is no duration.")) == "UsageError"


def _write(path: Path, number: int, count: int, kept: int = 200) -> None:
    handler = LogFile(path, most_bytes=2_000, kept=kept)
    logger = logging.Logger(f"console.{number}")
    logger.addHandler(handler)
    for line in range(count):
        logger.warning("%d-%d %s", number, line, "x" * 40)
    handler.close()


def test_processes_sharing_a_log_lose_no_line_and_keep_a_limited_number_of_files(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.log"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(path, n, 150)) for n in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    files = [
        one
        for one in tmp_path.iterdir()
        if one.name.startswith("x.log") and not one.name.endswith(".lock")
    ]
    assert len(files) > 5
    logged = [words.split()[0] for file in files for _, words in lines(file)]
    assert sorted(logged) == sorted(f"{n}-{line}" for n in range(3) for line in range(150))
    assert all(file.stat().st_size < 4_000 for file in files)
    _write(tmp_path / "few.log", 0, 100, kept=2)
    few = {one.name for one in tmp_path.glob("few*")}
    assert few == {"few.log", "few.log.1", "few.log.2", "few.log.lock"}


NO_CONNECTION = {"DBQ_URL": "", "DBQ_PROFILE": ""}


def test_help_lists_the_topics_and_prints_each_as_markdown_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    listed = call("help")
    assert (listed.status, listed.err) == (0, "")
    lines = listed.text.splitlines()[: len(topics())]
    for (name, topic), line in zip(topics().items(), lines, strict=True):
        assert (line.split("  ")[0], topic.summary in line) == (name, True)
        answer = call("help", name)
        assert (answer.status, answer.err, answer.text) == (0, "", topic.text)
        shown = rendered(topic.text)
        assert "…" not in shown, "nothing is cut"
        assert "| ---" not in shown
        assert max(map(cell_len, shown.splitlines())) <= 80, name
    assert call("help", "--json").json == {
        "topics": [{"topic": one.name, "summary": one.summary} for one in topics().values()]
    }
    page = topics()["designs"]
    json = call("help", "designs", "--json").json
    assert json == {"topic": "designs", "summary": page.summary, "text": page.text}


def test_an_unknown_topic_suggests_similar_topics_or_the_help_of_a_verb() -> None:
    for name, suggested in (
        *(("connection", "connections"), ("desings", "designs"), ("xyzzy", "pipeline")),
        ("requeue", "dbq-console requeue --help"),
    ):
        answer = call("help", name)
        assert (answer.status, answer.text, suggested in answer.err) == (2, "", True)


def test_a_topic_is_formatted_on_a_terminal() -> None:
    shown = on_a_terminal("help", "metrics")
    assert "\x1b[" in shown
    assert "```" not in shown
    assert "dbq_last_examination_timestamp_seconds" in shown


def on_a_terminal(*words: str) -> str:
    """What is printed on a terminal of 80 columns."""
    terminal, output = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    environment.pop("NO_COLOR", None)
    read = bytearray()
    with Forked(words, environment, stdout=output) as running, suppress(OSError):
        os.close(output)
        while part := os.read(terminal, 65_536):  # OSError: its end on Linux
            read += part
    os.close(terminal)
    assert running.returncode == 0
    return read.decode()


def test_topics_are_completed() -> None:
    context = cli.make_context("dbq-console", ["help"], resilient_parsing=True)
    parameter = command("help").params[0]
    assert complete_topics(context, parameter, "conn") == ["connections"]
    done = CliRunner().invoke(
        cli,
        env={
            "_DBQ_CONSOLE_COMPLETE": "bash_complete",
            "COMP_WORDS": "dbq-console help co",
            "COMP_CWORD": "2",
        },
        prog_name="dbq-console",
    )
    expected = ("configuration", "connections", "consumers")
    assert done.output.split() == [f"plain,{topic}" for topic in expected]


def test_the_page_of_a_design_has_all_that_its_definition_says() -> None:
    for name, design in DESIGNS.items():
        answer = call("designs", name, environment=NO_CONNECTION)
        assert (answer.status, answer.err) == (0, "")
        page = " ".join(answer.text.split())
        for words in (
            design.title,
            design.source,
            design.summary,
            design.advice,
            design.details,
            design.order.promise,
        ):
            assert " ".join(words.split()) in page
        for option in design.options:
            assert f"--option {option.name}={option.default}" in page
            assert option.range in page
        assert f"states: {' '.join(design.states)}" in page
        assert f"verbs: {' '.join(design.verbs)}" in page
        for order in design.option_orders.values():
            assert order.promise in page
        (found,) = call("designs", name, "--json").json["designs"]
        shown = [found[key] for key in ("design", "details", "order")]
        assert shown == [name, design.details, design.order.value]
    answer = call("designs", "fifos")
    assert (answer.status, answer.text, "fifo" in answer.err) == (2, "", True)


def test_codes_are_printed_with_their_meanings_and_repairs() -> None:
    answer = call("doctor", "--codes", environment=NO_CONNECTION)
    assert (answer.status, answer.err) == (0, "")
    page = " ".join(answer.text.split())
    found = call("doctor", "--codes", "--json", environment=NO_CONNECTION).json["codes"]
    assert [one["code"] for one in found] == [code.name for code in CODES]
    for code, one in zip(CODES, found, strict=True):
        assert f"{code.name}: {code.severity.word} {code.meaning}" in page
        assert (one["severity"], one["meaning"]) == (code.severity.word, code.meaning)
        assert one["repair"] or one["judgement"]
        for words in (one["repair"], one["judgement"]):
            assert words is None or " ".join(words.split()) in page
    for more in (["q"], ["q", "--fix"], ["--yes"], ["--code", "orphan"]):
        answer = call("doctor", "--codes", *more, environment=NO_CONNECTION)
        assert (answer.status, answer.text) == (2, ""), "it goes with nothing else"
