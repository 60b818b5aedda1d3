"""Names, payloads and errors that mean harm: shown as what they are, and nothing else happens."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from psycopg.sql import SQL, Identifier

from tests.cli.calls import Answer, Console
from tests.hostile import CANARY, TEXTS, obeyed, valid_texts
from tests.servers import connect, value

NAMES = {
    "terminal": "\x1b[2J\x9b1m\u202eq\nr' %s{x}:n\";--",
    "markup": "[red]x[/] | `y` **z** <b> # @late",
    "sql": f"a'\"; DROP TABLE {CANARY}; --$$",
    "formats": "%s {0} ${env:HOME} :n ::t \\",
}
REST = ("markup", "sql", "formats")
PAYLOADS = [text for text in TEXTS if "\0" not in text and "\ud800" not in text]
LOOKS = [
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
    """What came reaches no terminal as anything but signs, and no traceback is in it."""
    assert obeyed(answer.text) == [], answer
    assert obeyed(answer.err) == [], answer
    assert "Traceback" not in answer.err
    assert answer.status in {0, 1, 2, 4}, answer
    if answer.status in {2, 4}:
        assert answer.err.strip()
    return answer


@pytest.fixture(scope="module")
def canary(console: Console) -> Iterator[Console]:
    """A console on a database with something to lose, which is there at the end."""
    with connect(console.url) as connection:
        connection.execute(SQL("CREATE TABLE {} AS SELECT 1 AS n").format(Identifier(CANARY)))
    yield console
    assert value(console.url, f"SELECT count(*) FROM {CANARY}") == 1


@pytest.mark.parametrize(
    "kind", ["terminal", *(pytest.param(n, marks=pytest.mark.long) for n in REST)]
)
def test_a_hostile_queue_is_looked_at_without_harm(canary: Console, kind: str) -> None:
    name = NAMES[kind]
    canary.done("install", "status", name)
    one_line = [payload for payload in PAYLOADS if "\n" not in payload]
    canary.done("push", name, "-", "--lines", stdin="".join(f"{p}\n" for p in one_line).encode())
    for payload in set(PAYLOADS) - set(one_line):
        canary.done("push", name, "-", stdin=payload.encode() + b"\n")
    for text in TEXTS[:3]:
        harmless(canary("pop", name, "--fail", text, "--json"))
    harmless(canary("pop", name, "--json"))
    for look in LOOKS:
        words = [word.replace("NAME", name) for word in look]
        harmless(canary(*words))
        if look[:2] == [look[0], "NAME"]:
            answer = harmless(canary(*words, "--json"))
            assert not answer.out or answer.json
    shown = canary.done("messages", name, "--payload", "--json", "--payload-bytes", "9999").json
    assert {one["payload"] for one in shown["messages"]} == set(PAYLOADS)
    assert {one["error"] for one in shown["messages"]} == {None, *TEXTS[:3]}
    assert shown["queue"] == name
    harmless(canary("uninstall", name, "--with-messages", "--yes", name))


def test_what_a_server_says_of_a_hostile_payload_is_harmless(canary: Console) -> None:
    """PostgreSQL repeats what it could not read."""
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


def test_a_report_s_lines_are_its_own(canary: Console) -> None:
    """No name makes a heading, a table's column or an end of the code."""
    name = "x` | y\n# all clear ``"
    canary.done("install", "claim", name)
    canary.done("push", name, "x")
    canary.done("pop", name, "--fail", "\x1b[31m | `no`\n# fine")
    text = canary.done("report", name).text
    assert obeyed(text) == []
    heads = [line for line in text.splitlines() if line.startswith("#")]
    assert all("all clear" not in head or head.startswith("# public") for head in heads)
    (row,) = {line.count(" | ") for line in text.splitlines() if line.startswith("| ready")}
    assert row == 1
    canary.done("uninstall", name, "--with-messages", "--yes", name)


WORDS = valid_texts.filter(lambda text: not text.startswith("-"))


@pytest.fixture(scope="module")
def filled(canary: Console) -> Console:
    canary.done("install", "status", "q")
    canary.done("push", "q", "x")
    return canary


TEMPLATES = [
    ["messages", "q", "--filter", "?"],
    ["messages", "q", "--filter", "id=?", "--state", "?"],
    ["messages", "q", "--filter", "error~?", "--filter", "claimed_by=?", "--json"],
    ["messages", "q", "--filter", 'payload."?"=?', "--payload"],
    ["messages", "q", "--after", "?"],
    ["purge", "q", "--filter", "id=?", "--reason", "?", "--dry-run"],
    ["purge", "q", "--filter", "error~?", "--yes", "?"],
    ["requeue", "q", "--to", "?", "--dry-run"],
    ["restore", "q", "--reason", "?", "--dry-run"],
    ["archive", "q", "--filter", "@?", "--dry-run"],
    ["audit", "?", "--operator", "?", "--verb", "?"],
    ["end-session", "q", "?"],
    ["errors", "?", "--schema", "?"],
    ["history", "?", "--since", "?"],
]


def a_call(console: Console, template: list[str], fillings: list[str]) -> None:
    left = iter(fillings)
    words = [word.replace("?", next(left)) if "?" in word else word for word in template]
    harmless(console(*words))
    shown: Any = console.done("status", "q", "--json").json["queues"]
    assert shown[0]["ready"] == 1


@settings(max_examples=15)
@example(["messages", "q", "--filter", "?"], [f"id=x'; DROP TABLE {CANARY}; --", "", ""])
@given(template=st.sampled_from(TEMPLATES), fillings=st.lists(WORDS, min_size=3, max_size=3))
def test_no_words_do_more_than_they_say(
    filled: Console, template: list[str], fillings: list[str]
) -> None:
    a_call(filled, template, fillings)


@pytest.mark.long
@settings(max_examples=1000)
@given(template=st.sampled_from(TEMPLATES), fillings=st.lists(WORDS, min_size=3, max_size=3))
def test_no_words_do_more_than_they_say_at_length(
    filled: Console, template: list[str], fillings: list[str]
) -> None:
    a_call(filled, template, fillings)
