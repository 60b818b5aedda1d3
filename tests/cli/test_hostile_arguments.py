"""No argument, however odd, ends a call in anything but an answer."""

import os

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from console.cli.verbs import cli
from tests.cli.calls import Answer, Console, call
from tests.cli.conftest import Install
from tests.cli.verbs import UNREACHABLE, refused, told_nothing_else

ODD = st.one_of(
    st.text(max_size=30),
    st.text(st.characters(codec=None, categories=["Cs", "Cc", "Po", "Sm"]), max_size=8),
    st.sampled_from(
        [
            *("-", "--", "--yes", "--json", "--lines", "--print", "--complete", "--schema", "-h"),
            *("--count", "--option", "--map", "id=id", "size=5"),
            *(
                "=",
                "0",
                "-1",
                "1e9",
                "fifo",
                "ring",
                "q",
                "\udcff",
                "a\udcffb",
                "\0",
                "\n",
                *("x" * 70, "9" * 5000),
            ),
        ]
    ),
)


# `record` and `serve-metrics` go on until they are ended, whether or not the database is there.
VERBS = st.sampled_from(sorted(cli.commands.keys() - {"demo", "smoke", "record", "serve-metrics"}))


def sane(answer: Answer) -> None:
    assert answer.status in {0, 1, 2, 3, 4}
    assert "Traceback" not in answer.err
    if answer.status in {2, 3}:
        assert answer.err.strip()
        told_nothing_else(answer)


@settings(deadline=None, max_examples=150)
@given(verb=VERBS, arguments=st.lists(ODD, max_size=6))
@example(verb="unsilence", arguments=["\ud800"])  # neither audit nor log could write it
def test_no_argument_breaks_a_call_without_a_database(verb: str, arguments: list[str]) -> None:
    sane(call(verb, *arguments, "--url", UNREACHABLE))


TEMPLATES = [
    ["status", "?"],
    ["status", "--schema", "?", "--"],
    ["push", "q", "--", "?"],
    ["push", "?", "--", "?"],
    ["pop", "?", "--schema", "?"],
    ["uninstall", "?", "--yes", "?"],
    ["uninstall", "q", "--yes", "?"],
    ["forget", "?"],
    ["relay", "?", "--dry-run"],
    ["install", "fifo", "--schema", "?", "--", "?"],
    ["install", "ring", "r", "--option", "?"],
    ["adopt", "--design", "fifo", "--map", "id=?", "--map", "payload=?", "--", "?"],
    ["adopt", "--design", "fifo", "--map", "id=id", "--map", "?", "--schema", "?", "q_archive"],
]


@pytest.fixture(scope="module")
def odd(console: Console) -> Console:
    console.done("install", "fifo", "q")
    return console


@settings(deadline=None, max_examples=80)
@given(template=st.sampled_from(TEMPLATES), fillings=st.lists(ODD, min_size=3, max_size=3))
def test_no_argument_breaks_a_call_of_a_database(
    odd: Console, template: list[str], fillings: list[str]
) -> None:
    left = iter(fillings)
    sane(odd(*(word.replace("?", next(left)) if "?" in word else word for word in template)))


def test_bytes_that_are_no_text_as_arguments(console: Console, install: Install) -> None:
    """As a shell in another encoding passes them."""
    text, raw = install("fifo"), install("fifo", "payload=bytes")
    bad = os.fsdecode(b"a\xff")
    refused(console("push", text, bad), 2, "UTF-8", "payload=bytes")
    refused(console("install", "fifo", bad), 2, "Unicode")
    refused(console("adopt", bad, "--design", "heap", "--map", "payload=a"), 2, "Unicode")
    refused(console("status", bad), 2)
    refused(console("status", text, "--schema", bad), 2)
    console.done("push", raw, bad)
    assert console.done("pop", raw).out == b"a\xff\n"
