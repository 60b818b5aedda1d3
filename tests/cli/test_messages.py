"""messages and messages --export."""

import base64
import json
import os
import re
import signal
import stat
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from psycopg.sql import SQL, Identifier

from console.designs import designs_on
from tests.cli.calls import COMMAND, Console
from tests.cli.conftest import Install
from tests.cli.verbs import refused
from tests.servers import PATIENCE_SECONDS, connect, execute, wait_until

FIELDS = [
    *("key", "id", "state", "pushed_at", "age_seconds", "due_at", "attempts"),
    *("claimed_at", "claimed_by", "done_at", "error", "error_cut", "title"),
    *("slot", "number", "payload_bytes"),
]
WITH_PAYLOAD = [*FIELDS, "payload", "encoding", "payload_cut"]
DESIGNS = sorted(designs_on("postgresql"))


def listed(console: Console, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = console.done("messages", *arguments, "--json").json["messages"]
    return found


def push(console: Console, name: str, *payloads: str) -> None:
    lines = "".join(f"{payload}\n" for payload in payloads).encode()
    console.done("push", name, "-", "--lines", stdin=lines)


def test_payloads_are_encoded_as_pop_encodes_them(console: Console, install: Install) -> None:
    odd = 'say "é 😀" \\ \x1b[31m'
    document = '{"big": 12345678901234567890.10, "text": "\\u0007"}'
    payloads = {"text": odd, "json": document, "bytes": odd}
    for kind, payload in payloads.items():
        name = install("fifo", f"payload={kind}")
        push(console, name, payload)
        (shown,) = listed(console, name, "--payload")
        assert list(shown) == WITH_PAYLOAD
        (popped,) = console.popped(name)
        assert {key: shown[key] for key in ("id", "payload", "encoding", "pushed_at")} == {
            key: popped[key] for key in ("id", "payload", "encoding", "pushed_at")
        }
        assert shown["payload_cut"] is False
    push(console, name, "é" * 2000)
    (shown,) = listed(console, name, "--payload")
    assert (base64.b64decode(shown["payload"]), shown["payload_cut"]) == ("é".encode() * 500, True)
    (shown,) = listed(console, name, "--payload-bytes", "5")
    assert base64.b64decode(shown["payload"]) == ("é" * 3).encode()[:5]


def test_messages_are_listed_by_state_and_by_filter(console: Console, install: Install) -> None:
    name = install("status", "payload=json")
    push(console, name, '{"n": 1}', '{"n": 2}', '{"n": 3}', '{"n": 4}')
    console.done("pop", name)
    console.done("pop", name, "--fail", "boom 17")
    console.done("pop", name, "--complete")

    def ids(*arguments: str) -> list[str]:
        return [message["id"] for message in listed(console, name, *arguments)]

    assert ids() == ["4", "1", "2", "3"]
    assert ids("--reverse") == ["4", "1", "2", "3"]
    for state, expected in {"ready": "4", "claimed": "1", "error": "2", "done": "3"}.items():
        assert ids("--state", state) == ids("--filter", f"state={state}") == [expected]
    assert ids("--filter", "id=3") == ["3"]
    assert ids("--filter", "error~BOOM", "--filter", "newer=1h") == ["2"]
    assert ids("--filter", "payload.n=4") == ["4"]
    assert ids("--filter", "older=1h") == ids("--filter", "id=99") == []
    assert ids("--state", "error", "--filter", "payload.n=1") == []


@pytest.mark.long
def test_columns_fit_80_characters_and_control_characters_are_escaped(
    console: Console, install: Install
) -> None:
    odd = "é 漢字 \x1b[31m \x07 line\u2028end " * 20
    for design in DESIGNS:
        name = install(design)
        push(console, name, *[f"{odd} {number}" for number in range(4)])
        if design in {"claim", "status", "split"}:
            console.done("pop", name)
            console.done("pop", name, "--fail", f"bad\n{odd}")
        for arguments in ([], ["--payload"], ["--payload", "--state", "ready"]):
            answer = console.done("messages", name, *arguments)
            lines = answer.text.splitlines()
            assert all(width(line) <= 80 for line in lines), lines
            assert not set(answer.text) & {"\x1b", "\x07", "\u2028"}
            assert lines[0].startswith("id")
            assert ("payload" in answer.text) == bool(arguments)
            assert answer.err == ""


def width(line: str) -> int:
    return sum(2 if "\u2e80" <= sign <= "\u9fff" or sign > "\uffff" else 1 for sign in line)


def test_the_plain_table_shows_claims_errors_and_payloads(
    console: Console, install: Install
) -> None:
    name = install("claim")
    push(console, name, "one", "two\tthree")
    console.done("pop", name, "--fail", "boom")
    head, ready, _, *rest = console.done("messages", name, "--payload").text.splitlines()
    assert head.split() == ["id", "state", "age", "attempts", "bytes"]
    assert ready.split()[1:] == ["ready", *ready.split()[2:4], "0", "9"]
    assert rest[0] == "        two␉three"
    assert rest[1].split()[1] == "error"
    assert rest[2].startswith("    claimed 20")
    assert "by dbq-console" in rest[2]
    assert rest[3:] == ["    error boom", "    payload:", "        one"]


def test_unknown_values_are_question_marks_and_inapplicable_ones_dots(empty: Console) -> None:
    empty.done("install", "split", "s")
    empty.done("install", "ring", "r", "--option", "in_hand=on")
    for name in ("s", "r"):
        push(empty, name, "x", "y")
        empty.done("pop", name)
    with connect(empty.url) as connection:
        connection.execute("CREATE TABLE public.theirs (body text)")
        connection.execute("INSERT INTO public.theirs VALUES ('x')")
    empty.done("adopt", "theirs", "--design", "heap", "--map", "payload=body")
    head, split, *_ = empty.done("messages", "s").text.splitlines()
    assert split.split()[head.split().index("bytes") + 1] == "?"  # an age contains a blank
    head, in_slot, in_hand, _ = empty.done("messages", "r").text.splitlines()
    heads = ["id", "number", "slot", "state", "age", "attempts", "bytes", "pushed", "UTC"]
    assert head.split() == heads
    assert in_slot.split()[:4] == ["2", "2", "2", "ready"]
    assert in_hand.split()[:4] == ["1", "·", "·", "claimed"]
    assert in_slot.split()[6] == "·"
    head, theirs = empty.done("messages", "theirs").text.splitlines()
    assert theirs.split() == ["?", "ready", "?", "1", "?"]
    (shown,) = listed(empty, "theirs")
    assert (shown["id"], shown["pushed_at"], shown["age_seconds"]) == (None, None, None)


def test_the_json_object_has_the_position_at_which_to_continue(
    console: Console, install: Install
) -> None:
    name = install("fifo")
    none = console.done("messages", name, "--json")
    nothing: dict[str, Any] = {"messages": [], "next": None, "complete": True, "standby": None}
    assert none.json == {"queue": name, "design": "fifo", **nothing}
    push(console, name, *"abc")
    answer = console.done("messages", name, "--limit", "2", "--json")
    assert (list(answer.json), answer.err) == (list(none.json), "")
    assert [list(message) for message in answer.json["messages"]] == [FIELDS, FIELDS]
    (rest,) = listed(console, name, "--after", answer.json["next"])
    assert (rest["id"], rest["state"]) == ("3", "ready")
    assert rest["pushed_at"].endswith("+00:00")
    answer = console.done("messages", name, "--limit", "2")
    assert len(answer.text.splitlines()) == 3
    assert answer.err == "There is more: --after ready,,2\n"
    answer = console.done("messages", name, "--limit", "2", "--after", "ready,,2")
    assert (len(answer.text.splitlines()), answer.err) == (2, "")
    assert console.done("messages", name, "--after", "ready,,3").text == "No messages.\n"


def test_a_search_that_stopped_early_says_so_and_can_be_continued(
    console: Console, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = install("fifo")
    push(console, name, *map(str, range(40)))
    monkeypatch.setattr("console.monitor.scan_query.READ_AT_ONCE", 10)
    monkeypatch.setattr("console.monitor.scan_query.READ_MOST", 20)
    answer = console.done("messages", name, "--filter", "older=1h")
    assert answer.text == "No messages so far.\n"
    assert answer.err.endswith("--after ready,,20\n")
    json = console.done("messages", name, "--filter", "older=1h", "--json").json
    assert (json["messages"], json["next"], json["complete"]) == ([], "ready,,20", False)
    after = ["--after", "ready,,20"]
    json = console.done("messages", name, "--filter", "older=1h", *after, "--json").json
    assert json["next"] == "ready,,40"


def test_a_list_without_an_order_says_that_there_is_more(empty: Console) -> None:
    execute(
        empty.url,
        "CREATE VIEW public.theirs AS SELECT repeat('x', 90) || n AS id, 'x' AS body"
        " FROM generate_series(1, 5) AS n",
    )
    empty.done("adopt", "theirs", "--design", "heap", "--map", "payload=body", "--map", "id=id")
    answer = empty.done("messages", "theirs", "--limit", "3")
    assert len(answer.text.splitlines()) == 4
    assert "no order to continue in" in answer.err
    assert answer.text.splitlines()[1].startswith("x" * 39 + "…  ready")
    json = empty.done("messages", "theirs", "--limit", "3", "--json").json
    assert (len(json["messages"]), json["next"], json["complete"]) == (3, None, False)
    assert empty.done("messages", "theirs").err == ""


MISTAKES = {
    "--limit 0": "0",
    "--limit 1001": "1001",
    "--payload-bytes 0": "0",
    "--payload-bytes 10000000": "at most 10 with --limit",
    "--state nowhere": "states of the design",
    "--state ready --state error --filter state=ready": "both",
    "--filter colour=red": "Filters: state=S",
    "--filter limit=5": "--limit",
    "--filter keep-newest=5": "does not apply to messages",
    "--filter payload.a=1": "needs JSON",
    "--filter id=x": "is not a key of the queue",
    "--after nowhere": "not a position in this list",
}


def test_wrong_use_of_messages_is_exit_2(console: Console, install: Install) -> None:
    name = install("status")
    for mistake, complaint in MISTAKES.items():
        refused(console("messages", name, *mistake.split()), 2, complaint)


def test_configured_masks_hide_parts_of_payloads_and_errors_until_revealed(
    console: Console, install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = install("claim")
    push(console, name, "card 4111111111111111 of somebody")
    console.done("pop", name, "--fail", "card 4111111111111111 refused")
    file = tmp_path / "config.toml"
    file.write_text(r"masks = ['\d{13,16}']")
    monkeypatch.setenv("DBQ_CONFIG", str(file))
    (shown,) = listed(console, name, "--payload")
    assert (shown["payload"], shown["error"]) == ("card *** of somebody", "card *** refused")
    (cut,) = listed(console, name, "--payload-bytes", "9")
    assert cut["payload"] == "card *** "
    for verb in ("messages", "errors"):
        for options in ([], ["--json"]):
            answer = console.done(verb, name, *options).text
            assert "4111" not in answer
            assert "***" in answer
    named = (f"--filter=id={shown['id']}", "--reveal")
    (revealed,) = listed(console, name, "--payload", *named)
    assert revealed["payload"] == "card 4111111111111111 of somebody"
    assert revealed["error"] == "card 4111111111111111 refused"
    entries = json.loads(console.done("audit", name, "--verb", "reveal", "--json").out)["actions"]
    assert [(entry["verb"], entry["outcome"]) for entry in entries] == [("reveal", "done")]
    assert console("messages", name, *named, "--rights", "read-only").status == 4
    assert console("messages", name, "--reveal").status == 2


def test_times_are_in_the_configured_zone_and_show_its_offset(
    console: Console, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DBQ_DISPLAY_ZONE", "Asia/Kathmandu")
    name = install("claim")
    push(console, name, "x")
    console.done("pop", name, "--fail", "boom")
    *_, claimed, _ = console.done("messages", name).text.splitlines()
    assert re.fullmatch(r"    claimed \d{4}-\d\d-\d\d \d\d:\d\d:\d\d \+05:45 by .*", claimed)
    assert console.done("errors", name).text.count(" +05:45") == 2
    (shown,) = listed(console, name)
    assert shown["claimed_at"].endswith("+00:00")
    at = datetime.fromisoformat(shown["claimed_at"]).replace(microsecond=0)
    assert datetime.fromisoformat(claimed.split(" by ")[0].removeprefix("    claimed ")) == at


def test_times_with_different_offsets_show_one_each(
    console: Console, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DBQ_DISPLAY_ZONE", "Europe/Prague")
    name = install("pending")
    due = {"winter": "2099-01-01 12:00Z", "summer": "2099-07-01 12:00Z"}
    with connect(console.url) as connection:
        push_due = SQL("SELECT public.{}(%s, %s)").format(Identifier(f"{name}_push"))
        connection.execute(push_due, ["x", due["winter"]])
        head, line = console.done("messages", name).text.splitlines()
        assert "scheduled +01:00" in head
        assert "2099-01-01 13:00:00  " in line
        connection.execute(push_due, ["x", due["summer"]])
    head, *lines = console.done("messages", name).text.splitlines()
    assert re.search(r"scheduled +pushed \+0[12]:00$", head)
    assert [line.split("2099")[1][:21] for line in lines] == [
        "-01-01 13:00:00 +01:0",
        "-07-01 14:00:00 +02:0",
    ]


def numbers(file: Path) -> list[str]:
    return [json.loads(line)["payload"].strip("x") for line in file.read_text().splitlines()]


def test_a_killed_export_is_resumed_and_has_each_message_once(
    console: Console, install: Install, tmp_path: Path
) -> None:
    name, file = install("fifo"), tmp_path / "all.jsonl"
    lines = "\n".join(map(str, range(100)))
    console.done("push", name, "-", "--lines", stdin=lines.encode())
    words = ("messages", name, "--export", str(file), "--payload")
    state = tmp_path / "all.jsonl.partial.state"
    with console.process(*words, "--rate", "10") as running:
        wait_until(state.exists, "a page is written")
        running.send_signal(signal.SIGKILL)
        running.wait(PATIENCE_SECONDS)
    before = json.loads(state.read_text())
    assert 0 < before["messages"] < 100
    assert not file.exists()
    console.done("push", name, "later")
    done = console.done(*words, "--json").json
    assert (done["messages"], done["resumed"], done["cutoff"]) == (
        100,
        before["messages"],
        before["cutoff"],
    )
    assert numbers(file) == [str(n) for n in range(100)]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    console(*words).failed(2, "already exists")


@pytest.mark.slow
def test_an_export_without_disk_space_says_so_and_can_be_resumed(
    console: Console, install: Install, tmp_path: Path
) -> None:
    name, file = install("fifo"), tmp_path / "all.jsonl"
    lines = "\n".join(f"{n}{'x' * 1000}" for n in range(700))
    console.done("push", name, "-", "--lines", stdin=lines.encode())
    words = ["messages", name, "--export", str(file), "--payload", "--rate", "2000"]
    limited = subprocess.run(
        ["/bin/bash", "-c", 'ulimit -f 800; exec "$@"', "bash", *COMMAND, *words],
        env=os.environ | {"DBQ_URL": console.url},
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert limited.returncode == 3
    assert b"Could not write" in limited.stderr
    assert b"the same command continues" in limited.stderr
    assert b"Traceback" not in limited.stderr
    assert not file.exists()
    assert console.done(*words, "--json").json["resumed"] == 500
    assert numbers(file) == [str(n) for n in range(700)]


def test_export_refuses_options_that_exclude_each_other_and_needs_a_right_for_payloads(
    console: Console, install: Install, tmp_path: Path
) -> None:
    name, file = install("fifo"), str(tmp_path / "x.jsonl")
    for words, why in (
        (["--export", file, "--limit", "5"], "--limit"),
        (["--export", file, "--after", "ready", "--reverse"], "--after, --reverse"),
        (["--rate", "5"], "--rate goes with --export"),
        (["--export", file, "--rate", "0"], "above 0"),
    ):
        console("messages", name, *words).failed(2, why)
    console("messages", name, "--export", file, "--payload", "--rights", "read-only").failed(4)
    assert list(tmp_path.iterdir()) == []
    console.done("messages", name, "--export", file, "--rights", "read-only")
    assert Path(file).read_text() == ""
