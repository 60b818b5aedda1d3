"""`sql VERB NAME` prints the statements that the verb sends."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, event
from sqlalchemy.engine import Engine

from console import sql
from console.cli.commands.sql import VERBS
from tests.cli.calls import Console
from tests.cli.conftest import Install
from tests.servers import connect, execute

_DRIVERS = re.compile(r"%\((\w+)\)s(?:::[A-Z ]+(?:\[\])?)?")
FILES = {"monitor", "actions", "common", "fifo", "ring", "split", "status", "claim", "pending"}


def plain(text: str) -> str:
    """Without comments, extra blanks and the driver's syntax."""
    text = re.sub(r"/\*.*?\*/|--[^\n]*", "", text)
    text = re.sub(r"\s+", " ", _DRIVERS.sub(r":\1", text).replace("%%", "%")).strip(" ;")
    union_of_one = re.match(r"\( ?SELECT", text)
    return text[1:-1].strip() if union_of_one else text


@contextmanager
def sent() -> Iterator[dict[str, str]]:
    """The statements of these files that are sent in the block: plain text -> name."""
    found: dict[str, str] = {}

    def before(_: Connection, __: object, statement: str, *rest: object) -> None:
        label = re.match(r"\s*/\* dbq ([\w.+]+) \*/", statement)
        if label and label[1].partition(".")[0] in FILES:
            found[plain(statement)] = label[1]

    event.listen(Engine, "before_cursor_execute", before)
    try:
        yield found
    finally:
        event.remove(Engine, "before_cursor_execute", before)


def shown(console: Console, verb: str, name: str) -> list[dict[str, Any]]:
    answer = console.done("sql", verb, name, "--json").json
    assert (answer["verb"], answer["queue"]) == (verb, name)
    found: list[dict[str, Any]] = answer["statements"]
    return found


ACTING = {
    "status": ((), {"estimate", "claims"}),
    "messages": ((), set[str]()),
    # Errors are counted, and read only if there are any.
    "purge": (
        ("--yes",),
        {
            "messages+common.chunk+common.matching of error",
            "messages+common.chunk+common.next_chosen+actions.lock_chosen_now+common.lock_next"
            " of error",
        },
    ),
    "restore": (("--yes",), {"restore_rows"}),
}
"""Verb -> its words, and the statements that it sends only if needed."""


@pytest.mark.parametrize("design", ["fifo", "pending", "ring", "claim", "status", "split"])
def test_the_printed_statements_are_those_that_are_sent(
    console: Console, install: Install, design: str
) -> None:
    name = install(design)
    for verb, (words, optional) in ACTING.items():
        console.done("push", name, "-", "--lines", stdin=b"one\ntwo\nthree\n")
        printed = {plain(one["sql"]): one["name"] for one in shown(console, verb, name)}
        with sent() as found:
            console.done(verb, name, *words, *([name] if words else []))
        mine = {
            text: label
            for text, label in found.items()
            if label.partition(".")[2] not in NOT_PRINTED
        }
        assert [label for text, label in mine.items() if text not in printed] == []
        unsent = {label for text, label in printed.items() if text not in mine}
        assert {label.partition(".")[2] for label in unsent} <= optional


def test_errors_and_requeue_send_what_is_printed_and_release_ends_with_its_update(
    console: Console, install: Install
) -> None:
    name = install("status")
    console.done("push", name, "-", "--lines", stdin=b"one\ntwo\n")
    console.done("pop", name, "--fail", "no")
    for verb in ("errors", "requeue"):
        printed = {plain(one["sql"]) for one in shown(console, verb, name)}
        with sent() as found:
            console.done(verb, name, *(["--yes", name] if verb == "requeue" else []))
        assert {
            t for t, label in found.items() if label.partition(".")[2] not in NOT_PRINTED
        } <= printed
    execute(
        console.url,
        f"UPDATE public.\"{name}\" SET status = 1, claimed_by = 'w',"
        " claimed_at = now() - interval '1 hour'",
    )
    released = shown(console, "release", name)
    with sent() as found:
        console.done("release", name, "--yes", name, "--force")
    locking = [text for text, label in found.items() if "common.lock_next" in label]
    assert locking
    assert {*locking} <= {plain(one["sql"]) for one in released}
    names = [one["name"] for one in released]
    assert [name.partition("+common.lock_next")[0] for name in names[-2:]] == [
        "monitor.messages+common.chunk+common.next_chosen+actions.lock_chosen_now",
        "actions.make_ready",
    ]


NOT_PRINTED = {"server_time", "target_state", "archive_end", "archived_after"}
"""Statements for the text of a plan and for a canary."""


def test_printed_statements_can_be_run_unchanged(console: Console, install: Install) -> None:
    """With quoted names, and psql's variables for bound values."""
    name = install("claim")
    text = console.done("sql", "status", name).text
    assert "-- monitor.status\n-- one row: counts" in text
    with connect(console.url) as connection:
        for part in re.split(r"^-- monitor\.\w+$", text, flags=re.MULTILINE)[1:]:
            assert connection.execute(part.encode()).description


def test_bound_parameters_have_their_names_and_types(console: Console, install: Install) -> None:
    name = install("pending")
    statements = shown(console, "purge", name)
    (move,) = [one for one in statements if one["name"] == "actions.archive_rows"]
    assert move["returns"].startswith("one row: how many messages left the queue")
    assert {"name": "locations", "type": "tid[]", "value": None} in move["parameters"]
    assert "-- binds :locations tid[]\n" in console.done("sql", "purge", name).text


def test_sql_shows_or_refuses_every_verb(console: Console, install: Install) -> None:
    name = install("ring", "in_hand=on")
    for verb in VERBS:
        answer = console("sql", verb, name)
        expected = 2 if verb in {"forget", "reschedule"} else 0
        assert answer.status == expected, (verb, answer.err)
    assert console("sql", "reschedule", install("pending")).status == 0
    assert console("sql", "archive", install("fifo")).status == 2
    assert console("sql", "smoke", name).status == 2
    assert {sql.statement("postgresql", "ring.relay").name} <= {
        one["name"].partition(".")[2] for one in shown(console, "relay", name)
    }


def test_what_a_verb_refuses_without_a_subscriber_is_not_printed(
    console: Console, install: Install
) -> None:
    name = install("ring", "subscribers=a,b", "in_hand=on", "size=20")
    for verb in ("pop", "complete", "fail"):
        console("sql", verb, name).failed(2, "with --subscriber: a, b")
        assert "''" not in console.done("sql", verb, name, "--subscriber", "b").text
