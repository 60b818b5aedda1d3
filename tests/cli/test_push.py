"""`push`: from the command line, from stdin as one message, from stdin line by line."""

import signal
import subprocess
from uuid import UUID

import pytest

from tests.cli.calls import Console
from tests.cli.conftest import Install
from tests.servers import PATIENCE_SECONDS, connect, execute, value, wait_until


def ready(console: Console, name: str) -> object:
    return value(console.url, f'SELECT count(*) FROM public."{name}"')


def test_push_prints_the_id(console: Console, install: Install) -> None:
    name = install("fifo")
    assert [console.done("push", name, "x").out for _ in range(2)] == [b"1\n", b"2\n"]
    answer = console.done("push", name, "x", "--json")
    assert (answer.json, answer.err) == ({"id": "3"}, "")
    uuid = console.done("push", install("claim"), "x").text
    assert len(uuid) == 37


def test_one_message_from_stdin_lacks_only_its_final_newline(
    console: Console, install: Install
) -> None:
    name = install("fifo")
    messages = {
        b"\n": "",
        b"a": "a",
        b"a\n": "a",
        b"a\n\n": "a\n",
        b"a\r\n": "a\r",
        b"\na\nb ": "\na\nb ",
        "ü 😀\n".encode(): "ü 😀",
    }
    for stdin in messages:
        console.done("push", name, "-", stdin=stdin)
    assert console.drained(name) == list(messages.values())


def test_payloads_are_stored_unchanged(console: Console, install: Install) -> None:
    name = install("fifo")
    payloads = ["", " ", "-x", "--json", "-- ", "[red]x[/]", "\x1b[31m", "{}", "%s :name", "a\tb"]
    for payload in payloads:
        console.done("push", name, "--", payload)
    assert console.drained(name) == payloads


def test_lines_are_stored_in_order_in_transactions_of_1000(
    console: Console, install: Install
) -> None:
    name = install("fifo")
    lines = [f"{number}" for number in range(2500)]
    answer = console.done("push", name, "-", "--lines", "--json", stdin="\n".join(lines).encode())
    assert (answer.json, answer.err) == ({"stored": 2500, "full": False}, "")
    with connect(console.url) as connection:
        query = f'SELECT count(*) FROM public."{name}" GROUP BY CAST(xmin AS text) ORDER BY min(id)'
        assert connection.execute(query.encode()).fetchall() == [(1000,), (1000,), (500,)]
    assert console.drained(name) == lines


def test_empty_lines_are_empty_messages(console: Console, install: Install) -> None:
    name = install("fifo")
    answer = console.done("push", name, "-", "--lines", stdin=b"\na\n\n\nb \r\nlast")
    assert answer.out == b"6 messages stored\n"
    assert console.drained(name) == ["", "a", "", "", "b \r", "last"]


def test_an_empty_stdin_pushes_nothing_unless_allowed(console: Console, install: Install) -> None:
    """`false | dbq-console push q -`: the program that should have written has failed."""
    name = install("fifo")
    for lines in ([], ["--lines"]):
        console("push", name, "-", *lines).failed(2, "stdin is empty", "--allow-empty")
    answer = console.done("push", name, "-", "--lines", "--allow-empty", "--json")
    assert answer.json == {"stored": 0, "full": False}
    assert ready(console, name) == 0
    assert console.done("push", name, "-", "--allow-empty").out == b"1\n"
    assert console.drained(name) == [""]


def test_options_that_a_design_does_not_have_are_usage_errors(
    console: Console, install: Install
) -> None:
    names = {design: install(design) for design in ("fifo", "pending", "status", "claim")}
    for option, whose in (
        *(("--due=1h", "pending"), ("--title=t", "status, split")),
        (f"--id={UUID(int=1)}", "claim"),
    ):
        for design in names.keys() - set(whose.split(", ")):
            for arguments in (["x"], *([] if "--id" in option else [["-", "--lines"]])):
                console("push", names[design], *arguments, option, stdin=b"x\n").failed(
                    2, f"in: {whose}."
                )
    assert {console.status(name)["ready"] for name in names.values()} == {0}


def test_due_title_and_id_are_stored_by_designs_that_have_them(
    console: Console, install: Install
) -> None:
    pending = install("pending")
    console.done("push", pending, "later", "--due", "1h")
    console.done("push", pending, "over", "--due", "2020-01-01T00:00Z")
    console.done("push", pending, "-", "--lines", "--due", "2h", stdin=b"a\nb\n")
    counts = console.status(pending)
    assert (counts["ready"], counts["scheduled"]) == (1, 3)
    assert console.drained(pending) == ["over"]
    hours = f"SELECT count(*) FROM \"{pending}\" WHERE due_time > now() + interval '61 minutes'"
    assert value(console.url, hours) == 2
    for design, table in (("status", "{}"), ("split", "{}_meta")):
        name = install(design)
        console.done("push", name, "x", "--title", "it's one")
        console.done("push", name, "-", "--lines", "--title", "two", stdin=b"y\n")
        titles = f"SELECT string_agg(title, ',' ORDER BY id) FROM \"{table.format(name)}\""
        assert value(console.url, titles) == "it's one,two"
    claim, own = install("claim"), "6f1f2a30-3c1e-4f0e-9f43-0c8d7a5b1e52"
    assert console.done("push", claim, "x", "--id", own).text == f"{own}\n"
    assert console("push", claim, "again", "--id", own).status == 2
    assert ready(console, claim) == 1


def test_any_bytes_can_be_pushed_to_a_queue_of_bytes(console: Console, install: Install) -> None:
    name = install("fifo", "payload=bytes")
    console.done("push", name, "-", stdin=b"\x00\xff\n\n")
    console.done("push", name, "-", "--lines", stdin=b"\x00\n\xff\xfe\r\n\n\x80")
    assert console.done("pop", name, "--count", "9").out == (
        b"\x00\xff\n\n" + b"\x00\n\xff\xfe\r\n\n\x80\n"
    )


def test_payloads_that_their_type_cannot_hold_are_usage_errors(
    console: Console, install: Install
) -> None:
    text, json, limited = install("fifo"), install("fifo", "payload=json"), install("naive")
    for name, stdin, complaint in (
        (text, b"secret\xff", "Byte 7 cannot be read as text"),
        (text, b"secret\0", "NUL"),
        (json, b"secret", "json"),
        (json, b'{"secret": "\\u0000"}', "character"),
        (limited, b"secret" * 2000, "8000 bytes"),
    ):
        answer = console("push", name, "-", stdin=stdin)
        assert (answer.status, answer.out) == (2, b"")
        assert complaint in answer.err
        assert "secret" not in answer.err
        assert ready(console, name) == 0


BAD_LINES = {"over the limit": b"x" * 9000, "not UTF-8": b"\xff", "not text": b"\0"}


@pytest.mark.parametrize("bad", BAD_LINES)
def test_a_bad_line_reports_how_many_messages_were_stored(
    console: Console, install: Install, bad: str
) -> None:
    name = install("naive")
    lines = [b"x"] * 1500 + [BAD_LINES[bad]] + [b"x"] * 1000
    answer = console("push", name, "-", "--lines", "--json", stdin=b"\n".join(lines))
    assert (answer.status, set(answer.json)) == (2, {"error"})
    assert "1,000 messages stored, those before line 1,001." in answer.err
    assert ready(console, name) == 1000
    console("push", name, "-", "--lines", stdin=BAD_LINES[bad]).failed(2, "No message was stored.")


_ENDS_ITS_SESSION = """
CREATE FUNCTION end_session() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$
"""


@pytest.fixture
def end_session(console: Console) -> str:
    """A trigger function that ends the session in which it runs."""
    execute(console.url, _ENDS_ITS_SESSION.replace("FUNCTION", "OR REPLACE FUNCTION"))
    return "EXECUTE FUNCTION end_session()"


LAST = "WHEN (new.payload = 'last')"


def test_a_connection_lost_before_a_commit_reports_how_many_messages_were_stored(
    console: Console, install: Install, end_session: str
) -> None:
    name = install("fifo")
    execute(
        console.url, f'CREATE TRIGGER t AFTER INSERT ON "{name}" FOR EACH ROW {LAST} {end_session}'
    )
    answer = console("push", name, "-", "--lines", stdin=b"x\n" * 1500 + b"last\n")
    assert (answer.status, answer.out) == (3, b"")
    assert "1,000 messages stored, those before line 1,001." in answer.err
    assert "doubt" not in answer.err
    assert ready(console, name) == 1000
    answer = console("push", name, "last")
    assert (answer.status, answer.out) == (3, b"")
    assert "doubt" not in answer.err


def test_a_connection_lost_during_a_commit_leaves_its_messages_in_doubt(
    console: Console, install: Install, end_session: str
) -> None:
    name = install("fifo")
    execute(
        console.url,
        f'CREATE CONSTRAINT TRIGGER t AFTER INSERT ON "{name}" '
        f"INITIALLY DEFERRED FOR EACH ROW {LAST} {end_session}",
    )
    console("push", name, "-", "--lines", stdin=b"x\n" * 1500 + b"last\n").failed(
        3,
        "1,000 messages stored, those before line 1,001.",
        "Those of lines 1,001 to 1,501 are in doubt",
    )
    console("push", name, "last").failed(3, "In doubt: it may have been stored.")


def test_a_full_ring_is_exit_1_and_reports_how_many_messages_were_stored(
    console: Console, install: Install
) -> None:
    name = install("ring", "size=5")
    answer = console("push", name, "-", "--lines", "--json", stdin=b"a\nb\nc\nd\ne\nf\ng\n")
    assert (answer.status, answer.json) == (1, {"stored": 5, "full": True})
    assert "full" in answer.err
    assert "lines from 6" in answer.err
    plain = console("push", name, "-", "--lines", stdin=b"f\n")
    assert (plain.status, plain.out) == (1, b"0 messages stored\n")
    single = console("push", name, "f", "--json")
    assert (single.status, single.json) == (1, {"id": None})
    assert "full" in single.err
    console("push", name, "f", "--wait", "50ms").failed(1)
    assert console.drained(name) == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize(
    "arguments", [["last"], pytest.param(["-", "--lines"], marks=pytest.mark.long)]
)
def test_wait_pushes_as_soon_as_there_is_room(
    console: Console, install: Install, arguments: list[str]
) -> None:
    name = install("ring", "size=2")
    console.done("push", name, "-", "--lines", stdin=b"a\nb\n")
    with console.process(
        "push", name, *arguments, "--wait", "60s", stdin=subprocess.PIPE
    ) as pushing:
        assert pushing.stdin is not None
        pushing.stdin.write(b"last\n")
        pushing.stdin.close()
        pushing.wait_for_session()
        # A push during a pop may have consumed a number for nothing, which only a later pop
        # drops: so pop until it is stored.
        taken: list[str] = []

        def is_stored() -> bool:
            taken.extend(console.drained(name))
            return pushing.poll() == 0

        wait_until(is_stored, "it is in")
    assert taken + console.drained(name) == ["a", "b", "last"]


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long)],
)
def test_an_interrupt_reports_how_many_messages_were_stored(
    console: Console, install: Install, number: int, status: int
) -> None:
    name = install("fifo")
    with console.process("push", name, "-", "--lines", stdin=subprocess.PIPE) as pushing:
        assert pushing.stdin is not None
        pushing.stdin.write(b"x\n" * 1001)
        pushing.stdin.flush()
        wait_until(lambda: ready(console, name) == 1000, "the first thousand is in")
        pushing.send_signal(number)
        _, err = pushing.communicate(timeout=PATIENCE_SECONDS)
    assert pushing.returncode == status
    assert err == b"Interrupted. 1,000 messages stored, those before line 1,001.\n"
    assert ready(console, name) == 1000
