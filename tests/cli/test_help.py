"""The verb `help`, and what prints the pages that stand in code."""

import os
import pty
import subprocess

import pytest
from click.testing import CliRunner
from rich.cells import cell_len

from console.cli.topics import complete_topics, laid_out
from console.cli.verbs import cli
from console.designs import DESIGNS
from console.doctor.checks import CODES
from console.help import topics
from tests.cli.calls import COMMAND, call, command

NO_CONNECTION = {"DBQ_URL": "", "DBQ_PROFILE": ""}


def test_help_alone_lists_the_topics() -> None:
    answer = call("help")
    assert (answer.status, answer.err) == (0, "")
    lines = answer.text.splitlines()
    for one, line in zip(topics().values(), lines, strict=False):
        assert line.split("  ")[0] == one.name
        assert one.summary in line
    assert call("help", "--json").json == {
        "topics": [{"topic": one.name, "summary": one.summary} for one in topics().values()]
    }


@pytest.mark.parametrize("name", topics())
def test_a_topic_is_markdown_as_it_stands_where_nobody_reads_it(name: str) -> None:
    answer = call("help", name)
    assert (answer.status, answer.err, answer.text) == (0, "", topics()[name].text)


def test_a_topic_for_programs() -> None:
    page = topics()["designs"]
    found = call("help", "designs", "--json").json
    assert found == {"topic": "designs", "summary": page.summary, "text": page.text}


def test_a_topic_is_laid_out_on_a_terminal() -> None:
    shown = on_a_terminal("help", "metrics")
    assert "\x1b[" in shown
    assert "```" not in shown
    assert "dbq_last_examination_timestamp_seconds" in shown


@pytest.mark.parametrize("name", topics())
def test_no_topic_is_cut_at_80_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = laid_out(topics()[name].text)
    assert "…" not in shown
    assert "| ---" not in shown
    assert max(map(cell_len, shown.splitlines())) <= 80


def on_a_terminal(*words: str) -> str:
    """What is printed on a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen([*COMMAND, *words], stdout=theirs, env=environment) as running:
        os.close(theirs)
        read = bytearray()
        try:
            while part := os.read(ours, 65_536):
                read += part
        except OSError:  # its end, on Linux
            pass
    os.close(ours)
    assert running.returncode == 0
    return read.decode()


@pytest.mark.parametrize(
    ("name", "suggested"),
    [("connection", "connections"), ("desings", "designs"), ("xyzzy", "pipeline")],
)
def test_an_unknown_topic_names_what_is_near(name: str, suggested: str) -> None:
    answer = call("help", name)
    assert (answer.status, answer.text) == (2, "")
    assert suggested in answer.err


def test_a_verb_is_no_topic_and_says_where_its_help_is() -> None:
    answer = call("help", "requeue")
    assert answer.status == 2
    assert "dbq-console requeue --help" in answer.err


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
    topics = ("configuration", "connections", "consumers")
    assert done.output.split() == [f"plain,{topic}" for topic in topics]


@pytest.mark.parametrize("name", DESIGNS)
def test_the_page_of_a_design_has_all_that_code_says_of_it(name: str) -> None:
    of = DESIGNS[name]
    answer = call("designs", name, environment=NO_CONNECTION)
    assert (answer.status, answer.err) == (0, "")
    page = " ".join(answer.text.split())
    for words in (of.title, of.source, of.summary, of.advice, of.details, of.order.promise):
        assert " ".join(words.split()) in page
    for option in of.options:
        assert f"--option {option.name}={option.default}" in page
        assert option.range in page
    assert f"states: {' '.join(of.states)}" in page
    assert f"verbs: {' '.join(of.verbs)}" in page
    for order in of.option_orders.values():
        assert order.promise in page
    (found,) = call("designs", name, "--json").json["designs"]
    assert (found["design"], found["details"], found["order"]) == (
        name,
        of.details,
        of.order.value,
    )


def test_an_unknown_design_has_no_page() -> None:
    answer = call("designs", "fifos")
    assert (answer.status, answer.text) == (2, "")
    assert "fifo" in answer.err


def test_the_codes_are_printed_with_what_they_mean_and_what_repairs_them() -> None:
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


@pytest.mark.parametrize("words", [["q"], ["q", "--fix"], ["--yes"], ["--code", "orphan"]])
def test_codes_go_with_nothing_else(words: list[str]) -> None:
    answer = call("doctor", "--codes", *words, environment=NO_CONNECTION)
    assert (answer.status, answer.text) == (2, "")
