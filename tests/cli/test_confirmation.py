"""`--yes`: nothing that destroys or renumbers happens without the right word."""

import json
from typing import Any

import pytest

from console.cli import planned
from tests.cli.calls import Answer, Console
from tests.cli.conftest import Install
from tests.servers import connect, execute, value


def only_planned(answer: Answer, *complaints: str) -> dict[str, Any]:
    """Exit 4, the plan on stdout, the reason on stderr; returns the plan."""
    assert answer.status == 4, answer
    json = answer.json
    assert json["done"] == 0
    assert json["error"]["exit"] == 4
    assert "Nothing was changed" in answer.err
    for complaint in complaints:
        assert complaint in answer.err
    plan = json["plan"]
    assert isinstance(plan, dict)
    return plan


VERBS = {"uninstall": ["--with-messages"], "relay": [], "resize": ["7"]}


@pytest.fixture
def ring(console: Console, install: Install) -> str:
    """A ring of 10 slots with 3 messages."""
    name = install("ring", "size=10")
    console.done("push", name, "-", "--lines", stdin=b"a\nb\nc\n")
    return name


def untouched(console: Console, ring: str) -> None:
    status = console.status(ring)
    assert (status["ready"], status["capacity"]) == (3, 10)
    assert console.drained(ring) == ["a", "b", "c"]


@pytest.mark.parametrize("verb", VERBS)
def test_uninstall_relay_and_resize_are_confirmed_only_by_the_queues_name(
    console: Console, ring: str, verb: str
) -> None:
    words = [verb, ring, *VERBS[verb]]
    plan = only_planned(console(*words, "--json"), f"--yes '{ring}'")
    assert plan["live"] == 3
    plain = console(*words)
    assert (plain.status, ring in plain.text) == (4, True)
    for yes in ([], ["--yes"], ["--yes", ring], ["--yes", "other"]):
        dry = console.done(*words, "--dry-run", "--json", *yes)
        assert (dry.json["done"], dry.json["plan"]["live"], dry.err) == (0, 3, "")
    # A bare --yes at the end of the line, or followed by an option.
    for line in (
        [*words, "--json", "--yes"],
        [*words, "--yes", "--json"],
        [verb, "--yes", "--json", ring, *VERBS[verb]],
    ):
        only_planned(console(*line), "needs the queue's name", f"--yes '{ring}'")
    # The schema is not part of the name.
    for word in ("yes", "", "RING", "ring", "-", f"public.{ring}"):
        answer = console(*words, "--json", "--yes", word)
        only_planned(answer, f"{word!r} is not the queue's name")
    answer = console(verb, "--yes", ring)  # the name is the word, so none is left
    assert (answer.status, answer.out, "NAME" in answer.err) == (2, b"", True)
    untouched(console, ring)


def test_yes_with_the_name_runs_the_verb(console: Console, ring: str) -> None:
    for arguments in (["--yes", ring], [f"--yes={ring}"]):
        done = console.done("relay", ring, "--json", *arguments)
        assert done.err == ""
        assert (done.json["queue"], done.json["done"]) == (ring, 1)
        assert {k: done.json["result"][k] for k in ("live", "size_after")} == {
            "live": 3,
            "size_after": 10,
        }
    resized = console.done("resize", ring, "7", "--yes", ring, "--json").json
    assert resized["result"]["size_after"] == 7
    assert "resized" in console.done("resize", ring, "10", "--yes", ring).text
    untouched(console, ring)
    console.done("push", ring, "last")
    done = console.done("uninstall", ring, "--with-messages", "--yes", ring, "--json")
    assert done.json["done"] == 1
    assert done.json["result"]["lost"] == 1
    assert console("status", ring).status == 2


def test_a_name_in_the_form_of_an_option_can_be_confirmed(console: Console) -> None:
    console.done("install", "fifo", "--", "-x")
    only_planned(console("uninstall", "--yes", "--json", "--", "-x"), "--yes=-x")
    console.done("uninstall", "--yes=-x", "--", "-x")


def test_shrinking_below_the_live_messages_says_how_many_to_drain(
    console: Console, ring: str
) -> None:
    for yes in ([], ["--yes"], ["--yes", ring]):
        answer = console("resize", ring, "2", *yes)
        assert (answer.status, "Drain 1 message first" in answer.err) == (4, True)
    refused = console("resize", ring, "2").text
    assert refused.startswith("resize ")
    assert "REFUSED: drain 1 " in refused
    plan = console.done("resize", ring, "2", "--dry-run", "--json").json["plan"]
    assert (plan["drain_first"], plan["new_size"], plan["size"]) == (1, 2, 10)
    done = console.done("resize", ring, "3", "--yes", ring, "--json").json
    assert done["result"]["size_after"] == 3
    assert console.drained(ring) == ["a", "b", "c"]


def test_only_rings_are_relaid(console: Console, install: Install) -> None:
    name = install("fifo")
    for verb in ("relay", "resize"):
        console(verb, name, *VERBS[verb], "--yes", name).failed(2, "is not a ring")


def test_the_plan_of_a_relay_names_the_blocking_sessions(console: Console, ring: str) -> None:
    with connect(console.url) as connection, connection.transaction():
        connection.execute(f'SELECT FROM public."{ring}"'.encode())
        pid = connection.info.backend_pid
        (blocker,) = console("relay", ring, "--json").json["plan"]["blockers"]
        assert blocker["pid"] == pid
        assert f"pid {pid}" in console("relay", ring).text


def test_uninstalling_even_one_message_needs_with_messages(
    console: Console, install: Install
) -> None:
    name = install("fifo")
    console.done("push", name, "-", "--lines", stdin=b"x\n")
    only_planned(console("uninstall", name, "--json"))
    assert "--with-messages" in console("uninstall", name).text
    assert "--yes" not in console("uninstall", name).err
    for options in (["--yes", name], ["--yes", name, "--keep-archive"]):
        console("uninstall", name, *options).failed(4, "1 message,", "--with-messages")
    for options in (["--yes"], ["--yes", "another"]):
        assert f"with: --with-messages --yes '{name}'" in console("uninstall", name, *options).err
        without = console("uninstall", name, "--with-messages", *options).err
        assert f"with: --yes '{name}'" in without
    only_planned(console("uninstall", name, "--with-messages", "--json"))
    assert console.status(name)["ready"] == 1
    done = console.done("uninstall", name, "--yes", name, "--with-messages", "--json")
    assert done.json["plan"]["lost"] == 1


def test_a_production_database_needs_with_messages_unless_the_queue_is_empty(
    empty: Console,
) -> None:
    empty.done("install", "fifo", "q")
    empty.done("install", "fifo", "drained")
    empty.done("push", "q", "x")
    execute(empty.url, "INSERT INTO dbq.setting (name, value) VALUES ('production', 'on')")
    assert "PRODUCTION" in empty("uninstall", "q").text
    assert empty("uninstall", "q", "--yes", "q").status == 4
    empty.done("uninstall", "q", "--yes", "q", "--with-messages")
    empty.done("uninstall", "drained", "--yes", "drained")


def test_a_kept_archive_occupies_its_name_until_it_is_uninstalled_too(
    console: Console, install: Install
) -> None:
    name = install("fifo", "archive_at_pop=on")
    console.done("push", name, "-", "--lines", stdin=b"x\ny\nz\n")
    console.done("pop", name, "--count", "2")
    console.done("uninstall", name, "--keep-archive", "--with-messages", "--yes", name)
    assert value(console.url, f'SELECT count(*) FROM public."{name}_archive"') == 2
    for verb in (
        ["push", name, "x"],
        *([one, name] for one in ("pop", "status", "forget", "messages")),
    ):
        console(*verb).failed(2, name)
    assert console("install", "fifo", name).status == 2
    plan = only_planned(console("uninstall", name, "--json"))
    assert (plan["live"], plan["archived"], plan["lost"]) == (0, 2, 2)
    console.done("uninstall", name, "--with-messages", "--yes", name)
    assert f'"{name}"' not in json.dumps(console.done("status", "--json").json)
    console.done("install", "fifo", name)


def test_the_relay_of_an_empty_ring_shows_no_range_of_numbers(
    console: Console, install: Install
) -> None:
    """Not "numbers 20,942 to 20,941"."""
    name = install("ring", "size=10")
    console.done("push", name, "x")
    console.done("pop", name)
    assert (
        "  no live messages; the next push is 2\n" in console.done("relay", name, "--dry-run").text
    )
    done = console.done("relay", name, "--yes", name).text
    assert done.endswith("  0 live messages; the next push is 2\n")


def test_counting_is_shown_once_a_second_on_a_terminal_and_never_in_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr("console.cli.streams.time.monotonic", lambda: now)
    for terminal, expected in ((True, ["4 counted", "8 counted", "12 counted"]), (False, [])):
        monkeypatch.setattr(planned, "on_terminal", lambda terminal=terminal: terminal)
        show = planned.show_count()
        for count in range(1, 14):
            now += 0.25
            show(count)
        assert capsys.readouterr().err.splitlines() == expected
