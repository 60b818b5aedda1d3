"""Hostile names, payloads and arguments, and a catalog entry that this version does not know."""

import io
import json
import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from psycopg.sql import SQL, Identifier

from console.cli.streams import put_script
from console.cli.verbs import cli
from console.figures import FIGURES
from tests.cli.calls import Answer, Console, call
from tests.cli.conftest import Install
from tests.cli.verbs import UNREACHABLE, assert_no_result, refused
from tests.servers import execute, value
from tests.tools.hostile import CANARY, TEXTS, control_characters, valid_texts

pytestmark = pytest.mark.slow

NAMES = {
    "terminal": "\x1b[2J\x9b1m\u202eq\nr' %s{x}:n\";--",
    "markup": "[red]x[/] | `y` **z** <b> # @late",
    "sql": f"a'\"; DROP TABLE {CANARY}; --$$",
    "formats": "%s {0} ${env:HOME} :n ::t \\",
}
REST = ("markup", "sql", "formats")
PAYLOADS = [text for text in TEXTS if "\0" not in text and "\ud800" not in text]
HARMLESS_CALLS = [
    ["status", "NAME"],
    ["status"],
    ["messages", "NAME", "--payload"],
    ["messages", "NAME", "--state", "error"],
    ["errors", "NAME"],
    ["report", "NAME"],
    ["doctor", "NAME"],
    ["check", "NAME"],
    ["check", "--plugin"],
    ["waits", "NAME", "--seconds", "0"],
    ["consumers", "NAME", "--seconds", "0"],
    ["audit"],
    ["requeue", "NAME"],
    ["purge", "NAME", "--dry-run"],
    ["release", "NAME", "--dry-run"],
    ["archive", "NAME", "--dry-run"],
    ["uninstall", "NAME"],
    ["maintain", "NAME", "--dry-run"],
    ["status", "NAME\x1b[1m"],
    ["messages", "NAME", "--filter", "id=NAME"],
    ["messages", "NAME", "--filter", "NAME"],
    ["messages", "NAME", "--after", "NAME"],
    ["push", "NAME", "NAME", "--rights", "read-only"],
]


def harmless(answer: Answer) -> Answer:
    """The output has no characters that a terminal would obey, and no traceback."""
    assert control_characters(answer.text) == [], answer
    assert control_characters(answer.err) == [], answer
    assert "Traceback" not in answer.err
    assert answer.status in {0, 1, 2, 4}, answer
    if answer.status in {2, 4}:
        assert answer.err.strip()
    return answer


@pytest.fixture(scope="module")
def canary(console: Console) -> Iterator[Console]:
    """A console on a database with a table that must still be there at the end."""
    execute(console.url, SQL("CREATE TABLE {} AS SELECT 1 AS n").format(Identifier(CANARY)))
    yield console
    assert value(console.url, f"SELECT count(*) FROM {CANARY}") == 1


@pytest.mark.parametrize(
    "kind", ["terminal", *(pytest.param(n, marks=pytest.mark.long) for n in REST)]
)
def test_a_hostile_queue_is_displayed_without_harm(canary: Console, kind: str) -> None:
    name = NAMES[kind]
    canary.done("install", "status", name)
    one_line = [payload for payload in PAYLOADS if "\n" not in payload]
    canary.done("push", name, "-", "--lines", stdin="".join(f"{p}\n" for p in one_line).encode())
    for payload in set(PAYLOADS) - set(one_line):
        canary.done("push", name, "-", stdin=payload.encode() + b"\n")
    for text in TEXTS[:3]:
        harmless(canary("pop", name, "--fail", text, "--json"))
    harmless(canary("pop", name, "--json"))
    for template in HARMLESS_CALLS:
        words = [word.replace("NAME", name) for word in template]
        harmless(canary(*words))
        if template[:2] == [template[0], "NAME"]:
            answer = harmless(canary(*words, "--json"))
            assert not answer.out or answer.json
    shown = canary.done("messages", name, "--payload", "--json", "--payload-bytes", "9999").json
    assert {one["payload"] for one in shown["messages"]} == set(PAYLOADS)
    assert {one["error"] for one in shown["messages"]} == {None, *TEXTS[:3]}
    assert shown["queue"] == name
    harmless(canary("uninstall", name, "--with-messages", "--yes", name))


def test_server_errors_about_a_hostile_payload_are_harmless(canary: Console) -> None:
    """PostgreSQL repeats what it could not parse."""
    canary.done("install", "fifo", "json", "--option", "payload=json")
    for payload in PAYLOADS[::3]:
        answer = harmless(canary("push", "json", "-", stdin=payload.encode() + b"\n"))
        assert answer.status == 2 or _is_json(payload)
    harmless(canary("push", "json", "-", stdin=b"[" * 100_000))
    harmless(canary("messages", "json", "--filter", "payload.a=\x1b[31m"))


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def test_a_hostile_name_cannot_change_the_structure_of_a_report(canary: Console) -> None:
    """No name adds a heading or a table column, or ends the code."""
    name = "x` | y\n# all clear ``"
    canary.done("install", "claim", name)
    canary.done("push", name, "x")
    canary.done("pop", name, "--fail", "\x1b[31m | `no`\n# fine")
    text = canary.done("report", name).text
    assert control_characters(text) == []
    heads = [line for line in text.splitlines() if line.startswith("#")]
    assert all("all clear" not in head or head.startswith("# public") for head in heads)
    (row,) = {line.count(" | ") for line in text.splitlines() if line.startswith("| ready")}
    assert row == 1
    canary.done("uninstall", name, "--with-messages", "--yes", name)


WORDS = valid_texts.filter(lambda text: not text.startswith("-"))


@pytest.fixture(scope="module")
def filled(canary: Console) -> Console:
    canary.done("install", "status", "mail")
    canary.done("push", "mail", "x")
    canary.done("install", "fifo", "odd")
    return canary


TEMPLATES = [
    ["messages", "mail", "--filter", "?"],
    ["messages", "mail", "--filter", "id=?", "--state", "?"],
    ["messages", "mail", "--filter", "error~?", "--filter", "claimed_by=?", "--json"],
    ["messages", "mail", "--filter", 'payload."?"=?', "--payload"],
    ["messages", "mail", "--after", "?"],
    ["purge", "mail", "--filter", "id=?", "--reason", "?", "--dry-run"],
    ["purge", "mail", "--filter", "error~?", "--yes", "?"],
    ["requeue", "mail", "--to", "?", "--dry-run"],
    ["restore", "mail", "--reason", "?", "--dry-run"],
    ["archive", "mail", "--filter", "@?", "--dry-run"],
    ["audit", "?", "--operator", "?", "--verb", "?"],
    ["end-session", "mail", "?"],
    ["errors", "?", "--schema", "?"],
    ["history", "?", "--since", "?"],
    ["status", "?"],
    ["status", "--schema", "?", "--"],
    ["push", "odd", "--", "?"],
    ["push", "?", "--", "?"],
    ["pop", "?", "--schema", "?"],
    ["uninstall", "?", "--yes", "?"],
    ["uninstall", "odd", "--yes", "?"],
    ["forget", "?"],
    ["relay", "?", "--dry-run"],
    ["install", "fifo", "--schema", "?", "--", "?"],
    ["install", "ring", "r", "--option", "?"],
    ["adopt", "--design", "fifo", "--map", "id=?", "--map", "payload=?", "--", "?"],
    ["adopt", "--design", "fifo", "--map", "id=id", "--map", "?", "--schema", "?", "odd_archive"],
]


ODD = st.one_of(
    st.text(max_size=30),
    st.text(st.characters(codec=None, categories=["Cs", "Cc", "Po", "Sm"]), max_size=8),
    st.sampled_from(
        [
            *("-", "--", "--yes", "--json", "--lines", "--print", "--complete", "--schema", "-h"),
            *("--count", "--option", "--map", "id=id", "size=5", "=", "0", "-1", "1e9", "fifo"),
            *("ring", "q", "\udcff", "a\udcffb", "\0", "\n", "x" * 70, "9" * 5000),
        ]
    ),
)


# `record` and `serve-metrics` run until they are stopped, with or without the database.
VERBS = st.sampled_from(sorted(cli.commands.keys() - {"demo", "smoke", "record", "serve-metrics"}))


def sane(answer: Answer) -> None:
    assert answer.status in {0, 1, 2, 3, 4}
    assert "Traceback" not in answer.err
    if answer.status in {2, 3}:
        assert answer.err.strip()
        assert_no_result(answer)


@settings(max_examples=100)
@given(verb=VERBS, arguments=st.lists(ODD, max_size=6))
@example(verb="unsilence", arguments=["\ud800"])  # neither audit nor log could write it
def test_no_argument_breaks_a_call_without_a_database(verb: str, arguments: list[str]) -> None:
    sane(call(verb, *arguments, "--url", UNREACHABLE))


@settings(max_examples=25 if settings().derandomize else 500)
@example(["messages", "mail", "--filter", "?"], [f"id=x'; DROP TABLE {CANARY}; --", "", ""])
@given(template=st.sampled_from(TEMPLATES), fillings=st.lists(WORDS | ODD, min_size=3, max_size=3))
def test_hostile_words_have_no_side_effects(
    filled: Console, template: list[str], fillings: list[str]
) -> None:
    left = iter(fillings)
    words = [word.replace("?", next(left)) if "?" in word else word for word in template]
    sane(harmless(filled(*words)))
    assert filled.status("mail")["ready"] == 1


def test_arguments_that_are_not_text_are_refused_except_as_payload_of_bytes(
    console: Console, install: Install
) -> None:
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


STRANGE = """
INSERT INTO dbq.queue (schema_name, queue_name, design, kind, options, roles, version) VALUES
('public', 'strange', 'wheel', 'adopted', '{"payload": {"a": 1}}', '[]', 7),
('public', 'built', 'wheel', 'installed', '{"payload": "xml"}', '{}', 7)
"""


def test_an_unknown_design_does_not_affect_other_queues(empty: Console) -> None:
    empty.done("install", "fifo", "orders")
    empty.done("push", "orders", "x")
    execute(empty.url, STRANGE)

    found = {one["queue"]: one for one in empty.done("status", "--json").json["queues"]}
    assert found["orders"]["ready"] == 1
    for name in ("strange", "built"):
        assert found[name]["problem"] == "design wheel is not known here"
        assert found[name]["design"] == "wheel"
        assert set(found[name]["unknown"]) == {
            figure.name for figure in FIGURES if not figure.optional
        } | {"claims"}
    text = empty.done("status").text
    assert "design wheel is not known here" in text
    assert empty.done("status", "strange", "--json").json["queues"][0]["ready"] is None
    assert empty.done("discover", "--json").json["found"] == []

    examined = {
        one["queue"]: one for one in empty("doctor", "--idle-for", "0s", "--json").json["queues"]
    }
    assert examined["orders"]["findings"] == []
    assert examined["strange"]["unseen"] == ["design wheel is not known here"]
    assert "UNKNOWN strange: design wheel is not known here" in empty("check").text
    assert empty("check", "orders").status == 0
    for words in (["waits", "--seconds", "0.2"], ["audit"], ["roles"], ["report", "strange"]):
        assert empty(*words).status in {0, 1}, words
    for words in (
        ["messages", "strange"],
        ["push", "strange", "x"],
        ["requeue", "strange", "--yes"],
        ["maintain", "strange"],
        ["uninstall", "built", "--yes", "built"],
        ["forget", "built"],
    ):
        empty(*words).failed(4, "design wheel is not known here")
    empty.done("forget", "strange")
    empty.done("install", "claim", "more")


def test_a_report_escapes_the_verbs_and_outcomes_of_the_audit(empty: Console) -> None:
    empty.done("install", "fifo", "q")
    execute(empty.url, "UPDATE dbq.action SET verb = '<b>x</b> | [y](z)', outcome = '`done`'")
    (line,) = [one for one in empty.done("report", "q").text.splitlines() if "x\\<" in one]
    assert r"| \<b\>x\</b\> \| \[y\](z) | \`done\` |" in line


def test_a_script_shows_control_characters_to_a_terminal_and_is_exact_for_a_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for terminal, written in ((True, b'"a\xe2\x90\x9b[2J"\n'), (False, b'"a\x1b[2J"\n')):
        out = io.TextIOWrapper(io.BytesIO(), "utf-8")
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(out, "isatty", lambda terminal=terminal: terminal)
        put_script('"a\x1b[2J"\n')
        assert out.buffer.getvalue() == written
