"""`pop`: what is printed, how much is taken, and the states afterwards."""

import base64
import json
import shlex
import signal
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.cli.calls import Console
from tests.cli.conftest import Install
from tests.servers import PATIENCE_SECONDS, connect, execute, value, wait_until


def make(install: Install, kind: str, *options: str) -> str:
    return install(*kind.split(), *options)


def fill(console: Console, name: str, *payloads: str) -> None:
    stdin = "".join(f"{payload}\n" for payload in payloads).encode()
    console.done("push", name, "-", "--lines", stdin=stdin)


def states(console: Console, name: str) -> dict[str, Any]:
    status = console.status(name)
    return {state: status[state] for state in ("ready", "claimed", "errors", "done")}


def test_payloads_are_printed_unchanged_each_with_a_newline(
    console: Console, install: Install
) -> None:
    name = install("fifo")
    payloads = [
        "",
        "[bold]x[/bold]",
        "\x1b[31mred\x1b[0m",
        " ü 😀  ",
        "two\nlines",
        "\r",
        '{"a": 1}',
    ]
    for payload in payloads:
        console.done("push", name, "--", payload)
    answer = console.done("pop", name, "--count", "100")
    assert answer.out == "".join(f"{payload}\n" for payload in payloads).encode()
    assert answer.err == ""


def test_bytes_are_printed_unchanged(console: Console, install: Install) -> None:
    name = install("fifo", "payload=bytes")
    for stdin in (b"\x00\xff", b"\n", b"\n\n"):
        console.done("push", name, "-", stdin=stdin)
    assert console.done("pop", name, "--count", "3").out == b"\x00\xff\n\n\n\n"


def test_the_json_object_of_a_message_has_stable_keys(console: Console, install: Install) -> None:
    before = datetime.now(UTC) - timedelta(minutes=5)
    for kind, sent, payload, encoding in (
        ("fifo", b"[b]\xc3\xbc\n", "[b]ü", "text"),
        ("fifo payload=json", b'{"b":1,  "a": 12345678901234567890}', None, "text"),
        ("fifo payload=bytes", b"\x00\xff", base64.b64encode(b"\x00\xff").decode(), "base64"),
        ("fifo payload=bytes", b"plain", base64.b64encode(b"plain").decode(), "base64"),
        ("claim payload=bytes", b"\n", "", "base64"),
    ):
        name = make(install, kind)
        pushed = console.done("push", name, "-", "--json", stdin=sent).json["id"]
        answer = console.done("pop", name, "--json")
        (message,) = answer.json["messages"]
        assert list(message) == ["id", "payload", "encoding", "pushed_at", "attempts"]
        assert (message["id"], message["encoding"], message["attempts"]) == (pushed, encoding, 1)
        pushed_at = datetime.fromisoformat(message["pushed_at"])
        assert pushed_at.utcoffset() == timedelta(0)
        assert before < pushed_at < datetime.now(UTC) + timedelta(minutes=5)
        if payload is None:
            assert isinstance(message["payload"], str)
            assert json.loads(message["payload"]) == {"b": 1, "a": 12345678901234567890}
        else:
            assert message["payload"] == payload


def test_nothing_to_pop_is_exit_1(console: Console, install: Install) -> None:
    for kind in ("fifo", "claim", "ring"):
        name = make(install, kind)
        for options in ([], ["--count", "5", "--wait", "30ms"]):
            console("pop", name, *options).failed(1, "nothing to pop")
            answer = console("pop", name, "--json", *options)
            assert (answer.status, answer.json) == (1, {"messages": []})


def test_a_pop_of_a_paused_queue_says_that_it_is_paused_and_by_whom(
    console: Console, install: Install
) -> None:
    name = make(install, "fifo")
    fill(console, name, "one")
    console.done("pause", name, "--reason", "a release", "--yes", name)
    console("pop", name).failed(
        1, f"The queue '{name}' is paused by ", ": a release. Ask them; then: dbq-console resume"
    )
    console.done("resume", name, "--yes", name)
    assert console.done("pop", name).out == b"one\n"


def test_count_is_the_maximum_of_messages_taken(console: Console, install: Install) -> None:
    name = install("fifo")
    fill(console, name, *"abcde")
    assert console.done("pop", name).out == b"a\n"
    assert console.done("pop", name, "--count", "2").out == b"b\nc\n"
    assert console.done("pop", name, "--count", "3000000000").out == b"d\ne\n"


def test_a_count_over_1000_is_popped_in_transactions_of_1000(
    console: Console, install: Install
) -> None:
    name = install("fifo", "archive_at_pop=on")
    numbers = [f"{number}" for number in range(2400)]
    fill(console, name, *numbers)
    taken = console.popped(name, "--count", "2345")
    assert [message["payload"] for message in taken] == numbers[:2345]
    rows = execute(
        console.url,
        f'SELECT count(*) FROM public."{name}_archive" '
        "GROUP BY CAST(xmin AS text) ORDER BY min(id)",
    )
    assert rows == [(1000,), (1000,), (345,)]
    assert console.drained(name) == numbers[2345:]


def test_a_message_that_is_kept_stays_claimed_until_it_is_finished(
    console: Console, install: Install
) -> None:
    name = install("split")
    fill(console, name, *"abcdef")
    assert console.done("pop", name).out == b"a\n"
    assert states(console, name) == {"ready": 5, "claimed": 1, "errors": 0, "done": 0}
    owner = value(console.url, f'SELECT max(claimed_by) FROM public."{name}_meta"')
    assert str(owner).endswith("consumer=dbq-console")
    assert console.done("pop", name, "--count", "2", "--complete").out == b"b\nc\n"
    assert states(console, name) == {"ready": 3, "claimed": 1, "errors": 0, "done": 2}
    answer = console.done("pop", name, "--count", "2", "--fail", "no 'good'", "--json")
    assert [message["payload"] for message in answer.json["messages"]] == ["d", "e"]
    assert states(console, name) == {"ready": 1, "claimed": 1, "errors": 2, "done": 2}
    console.done("pop", name, "--fail", "")
    assert states(console, name) == {"ready": 0, "claimed": 1, "errors": 3, "done": 2}
    query = f"SELECT string_agg(errors, ',' ORDER BY id) FROM public.\"{name}_meta\""
    assert value(console.url, query) == "no 'good',no 'good',"


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", ["fifo", "fifo notify=on", "claim notify=on", "ring notify=on"])
def test_wait_takes_the_first_message_that_arrives(
    console: Console, install: Install, kind: str
) -> None:
    name = make(install, kind)
    with console.process("pop", name, "--wait", "60s", "--count", "5") as popping:
        popping.wait_for_session()
        console.done("push", name, "x")
        out, err = popping.communicate(timeout=PATIENCE_SECONDS)
    assert (popping.returncode, out) == (0, b"x\n")
    assert (b"Claimed until finished" in err) is kind.startswith("claim")


@pytest.mark.long
@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", ["fifo", "fifo notify=on"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_wait_leaves_nothing_behind(
    console: Console, install: Install, kind: str, number: signal.Signals
) -> None:
    name = make(install, kind)
    waiting = f'SELECT count(*) FROM public."{name}_waiting"'
    with console.process("pop", name, "--wait", "60s") as popping:
        popping.wait_for_session()
        if "notify" in kind:
            wait_until(lambda: value(console.url, waiting) == 1, "it waits")
        popping.send_signal(number)
        out, err = popping.communicate(timeout=PATIENCE_SECONDS)
    assert (popping.returncode, out, err) == (128 + number, b"", b"Interrupted.\n")
    if "notify" in kind:
        assert value(console.url, waiting) == 0


def test_messages_that_a_pop_leaves_claimed_are_reported_and_can_be_finished(
    console: Console, install: Install
) -> None:
    name = install("ring", "in_hand=on")
    fill(console, name, *"abcdefgh")
    answer = console.done("pop", name)
    assert answer.out == b"a\n"
    assert "1 message of" in answer.err
    assert "Claimed until finished" in answer.err
    command = shlex.split(answer.err.splitlines()[-1])
    assert console.done(*command[1:]).text == "completed 1 of 1 message\n"
    assert states(console, name)["claimed"] == 0
    six = console.done("pop", name, "--count", "6", "--json")
    assert "6 messages of" in six.err
    assert six.err.rstrip().endswith("...")
    ids = [message["id"] for message in six.json["messages"]]
    json = console.done("complete", name, ids[0], ids[1], ids[0], "--json").json
    assert json == {
        "queue": name,
        "schema": "public",
        "done": 2,
        "messages": [{"id": ids[0], "acted": True}, {"id": ids[1], "acted": True}],
    }
    assert console.done("fail", name, *ids[2:4], "--error", "no 'good'").out
    assert (states(console, name)["claimed"], states(console, name)["errors"]) == (2, 2)
    again = console("complete", name, ids[1], ids[4], "--json")
    assert (again.status, again.json["done"]) == (1, 1)
    assert ids[1] in again.err
    assert ids[4] not in again.err
    wrong = console("fail", name, ids[5], "--error", "x", "--attempts", "2")
    assert (wrong.status, wrong.text) == (1, "failed 0 of 1 message\n")
    for words in (("complete", name), ("fail", name, "--error", "no")):
        for key in ("mail-4711", "9223372036854775808"):
            wrong = console(*words, ids[5], key)
            assert (wrong.status, wrong.out, "payload" in wrong.err) == (2, b"", False)
            assert f"'{key}' is not a key of the queue '{name}'" in wrong.err
            assert "A key of it looks like 4711" in wrong.err
    assert states(console, name)["claimed"] == 1
    console.done("complete", name, ids[5], "--attempts", "1")
    assert states(console, name)["claimed"] == 0
    assert console.done("pop", name, "--complete").err == ""


def test_complete_and_fail_are_for_designs_with_claims(console: Console, install: Install) -> None:
    for kind in ("fifo", "ring"):
        name = make(install, kind)
        fill(console, name, "x")
        for words in (["complete", name, "1"], ["fail", name, "1", "--error", "x"]):
            console(*words).failed(2, "deletes a message when it is popped")
        for finish in (["--complete"], ["--fail", "no"]):
            answer = console("pop", name, *finish, "--json")
            assert (answer.status, set(answer.json)) == (2, {"error"})
        assert console.drained(name) == ["x"]


_BREAKS = """
CREATE OR REPLACE FUNCTION break() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE 'this row cannot be deleted'; END $$
"""


def test_a_failed_batch_leaves_the_output_of_the_batches_before_it_readable(
    console: Console, install: Install
) -> None:
    numbers = [f"{number}" for number in range(1, 2001)]
    for options in ([], ["--json"]):
        name = install("fifo")
        fill(console, name, *numbers)
        with connect(console.url) as connection:
            connection.execute(_BREAKS)
            connection.execute(
                f'CREATE TRIGGER t BEFORE DELETE ON public."{name}" FOR EACH ROW '
                "WHEN (old.id = 1500) EXECUTE FUNCTION break()".encode()
            )
        answer = console("pop", name, "--count", "2000", *options)
        assert answer.status == 3
        assert "this row cannot be deleted" in answer.err
        if options:
            assert [m["payload"] for m in answer.json["messages"]] == numbers[:1000]
            assert answer.json["error"]["exit"] == 3
        else:
            assert answer.text.split() == numbers[:1000]
        again = console("pop", name, "--count", "2000", *options)
        assert (again.status, b"payload" in again.out) == (3, False)
        assert value(console.url, f'SELECT count(*) FROM public."{name}"') == 1000


def test_claims_lost_before_they_could_be_finished_are_reported(
    console: Console, install: Install
) -> None:
    name = install("claim")
    console.done("push", name, "-", stdin=b"x" * 1_000_000)
    with console.process("pop", name, "--complete") as popping:
        # The claim is committed; its delivery waits for a reader.
        wait_until(lambda: console.status(name)["claimed"] == 1, "it is claimed")
        execute(console.url, f'UPDATE public."{name}" SET attempts = 2')
        out, err = popping.communicate(timeout=PATIENCE_SECONDS)
    assert (popping.returncode, len(out)) == (0, 1_000_001)
    assert b"Lost: 1 claim, released or claimed by another consumer meanwhile" in err
    assert states(console, name)["claimed"] == 1


def test_the_shown_command_finishes_the_claims_of_a_subscriber(
    console: Console, install: Install
) -> None:
    name = install("ring", "subscribers=a,b", "in_hand=on", "size=20")
    fill(console, name, "x", "y")
    answer = console.done("pop", name, "--count", "2", "--subscriber", "a")
    shown = answer.err.splitlines()[-1].strip()
    program, *words = shlex.split(shown)
    assert program == "dbq-console"
    console.done(*words)
    assert console("pop", name, "--subscriber", "a").status == 1
    assert console.done("pop", name, "--subscriber", "b").text == "x\n"
