"""Values that a column's type allows and nobody expects, in every column of an adopted table: every
verb shows and moves them, and the messages next to them."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest

from tests.cli.calls import Answer, Console
from tests.servers import Server, connect, execute, fresh_database, wait_until

pytestmark = pytest.mark.slow

TIMES = ("infinity", "-infinity", "57868-03-22 16:00:00", "0044-03-15 12:00:00 BC", "10000-01-01")
ENDS = ("294276-12-31 23:59:59.999999", "4713-01-01 00:00:00 BC")
DATES = ("infinity", "-infinity", "5874897-12-31", "4713-01-01 BC", "0044-03-15 BC")
ODD: Mapping[str, Sequence[str]] = {
    "timestamptz": (*TIMES, *ENDS),
    "timestamp": (*TIMES, *ENDS),
    "date": DATES,
    "moment": TIMES,
    "numeric": ("NaN", "Infinity", "-Infinity", "1e22", "-1.5", "1e-20", "9223372036854775808"),
    "float8": ("NaN", "Infinity", "-Infinity", "1e300", "-0"),
    "oid": ("4294967295", "2147483648"),
    "xid8": ("18446744073709551615", "9223372036854775808"),
    "bigint": ("9223372036854775807", "-9223372036854775808"),
    "integer": ("2147483647", "-2147483648"),
    "interval": ("178000000 years", "-178000000 years", "1 mon -1 day", "-00:00:00.000001"),
    "int[]": ("{}", "{NULL}", "{{1,2},{3,4}}", "[5:6]={1,2}"),
    "pair": ("(,)", '(1,"a,b")', "(2,)"),
    "letter": ("b", "B\n", ""),
    "bytea": ("\\x", "\\x00ff", "\\x0a27"),
    "uuid": ("00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"),
    "boolean": ("t", "f"),
    "xid": ("4294967295", "3"),
    "inet": ("::/0", "255.255.255.255/0"),
    "money": ("-92233720368547758.08", "0"),
    "bit(3)": ("000", "111"),
    "time": ("24:00:00", "00:00:00"),
    "json": (r'{"n": "\u0000"}', r'{"n": "\ud800"}', '{"n": 1e999999}', r'"\u0000"', "null"),
    "jsonb": ('{"n": 1e22}', "null", r'{"n": "\u00e9"}', "[]", '{"": null}'),
    "text": ("", "\x01\x7f", r"\u0000", "\U0001f468\u200d", "'; --", r'{"n": "\u0000"}'),
    "int4range": ("empty", "(,)"),
    "word": ("", "a\\xff", "x" * 2000),
    "past": ("-infinity", "0044-03-15 12:00:00 BC", "4713-01-01 00:00:00 BC"),
    "smallint": ("32767", "-32768"),
    "varchar(3)": ("", "\n"),
    "point": ("(NaN,Infinity)", "(0,-0)"),
    "regclass": ("pg_class", "pg_type"),
}
TYPES = r"""
CREATE TYPE pair AS (a integer, b text);
CREATE TYPE letter AS ENUM ('b', E'B\n', '');
CREATE DOMAIN moment AS timestamptz;
CREATE DOMAIN past AS moment CHECK (VALUE < '2100-01-01');
CREATE DOMAIN word AS text CHECK (VALUE <> 'no');
"""
TIME_TYPES = ("timestamptz", "timestamp", "date", "moment", "past")
NUMBER_TYPES = ("numeric", "float8", "oid", "bigint", "smallint", "xid", "regclass")
UNSORTED = {"int[]", "pair", "json", "xid", "point", "regclass"}
"""Types by which no list is ordered."""

KEPT = ("claimed_at", "claimed_by", "error", "attempts", "done_at")
DESIGNS = {
    "claim": ("id", "payload", "pushed_at", *KEPT),
    "status": ("id", "payload", "pushed_at", *KEPT, "status"),
    "pending": ("id", "payload", "pushed_at", "due_at"),
    "fifo": ("id", "payload", "pushed_at"),
    "heap": ("payload", "pushed_at"),
}
"""The roles of each; a column has the name of its role."""
TYPE_OF = {
    **dict.fromkeys(("pushed_at", "due_at", "claimed_at", "done_at"), "timestamptz"),
    **dict.fromkeys(("error", "claimed_by"), "text"),
    "id": "bigint",
    "payload": "jsonb",
    "attempts": "integer",
    "status": "integer",
}
READY: Mapping[str, str | None] = {
    "payload": '{"n": 7}',
    "pushed_at": "yesterday",
    "due_at": "yesterday",
    "attempts": "0",
    "status": "0",
    **dict.fromkeys(("claimed_at", "claimed_by", "error")),
    "done_at": None,
}
CLAIMED = {**READY, "claimed_at": "yesterday", "claimed_by": "w", "attempts": "1", "status": "1"}
FAILED = {**CLAIMED, "error": "no", "done_at": "today", "status": "4"}
STATES = {"ready": READY, "claimed": CLAIMED, "error": FAILED}

TIME_ROLES = ("pushed_at", "due_at", "claimed_at", "done_at")
CASES = [
    *(("claim", ("id",), type_) for type_ in ODD if type_ not in UNSORTED),
    *(("claim", ("payload", "claimed_by", "error"), type_) for type_ in ODD),
    *((design, TIME_ROLES, type_) for design in DESIGNS for type_ in TIME_TYPES),
    *((design, ("attempts",), type_) for design in ("claim", "status") for type_ in NUMBER_TYPES),
]


@pytest.fixture(scope="module")
def console(server: Server) -> Iterator[Console]:
    """With a queue of its own, which works whatever is next to it."""
    with fresh_database(server.url) as url:
        execute(url, TYPES)
        console = Console(url)
        console.done("install", "fifo", "well")
        console.done("push", "well", "x")
        yield console


def rows_of(design: str, odd: Sequence[str], type_: str) -> list[dict[str, str | None]]:
    """Each odd value in a message of each state, after a usual message of each."""
    states = STATES if "claimed_at" in DESIGNS[design] else {"ready": READY}
    if odd == ("id",):
        each = list(states.values())
        return [{**each[at % len(each)], "id": value} for at, value in enumerate(ODD[type_])]
    rows = [dict(row) for row in states.values()]
    for value in ODD[type_]:
        rows += [
            {**row, **{role: value for role in odd if row[role] is not None}}
            for row in states.values()
        ]
    return [{**row, "id": str(number)} for number, row in enumerate(rows)]


def create(console: Console, design: str, odd: Sequence[str], type_: str) -> int:
    """The table `odd` of that design, adopted; the number of its messages."""
    types = {role: type_ if role in odd else TYPE_OF[role] for role in DESIGNS[design]}
    rows = rows_of(design, odd, type_)
    with connect(console.url) as connection:
        connection.execute(b"DROP TABLE IF EXISTS odd")
        columns = ", ".join(f"{role} {of}" for role, of in types.items())
        connection.execute(f"CREATE TABLE odd ({columns})".encode())
        values = ", ".join(f"CAST(%s::text AS {of})" for of in types.values())
        for number, row in enumerate(rows):
            given = [row[role] for role in types]
            # What is usual is not of this type.
            if number < len(STATES) and ("payload" in odd or type_ == "regclass"):
                given = [ODD[type_][-1] if one in odd and row[one] else row[one] for one in types]
            connection.execute(f"INSERT INTO odd VALUES ({values})".encode(), given)
    words = [word for role in types for word in ("--map", f"{role}={role}")]
    console("forget", "odd")
    console.done("adopt", "odd", "--design", design, *words)
    return len(rows)


def works(console: Console, *words: str) -> Answer:
    answer = console(*words)
    assert answer.status in {0, 1}, answer
    return answer


def reading(design: str, payload: str) -> Iterator[list[str]]:
    for verb in ("status", "check", "messages"):
        yield [verb, "odd"]
    yield ["consumers", "odd", "--seconds", "0"]
    for verb in ("doctor", "report"):
        yield [verb, "odd", "--idle-for", "0s"]
    filters = ["newer=1h", "older=1h"]
    if "error" in DESIGNS[design]:
        yield ["errors", "odd"]
        filters += ["error~no", "claimed_by=w", "state=error"]
    if payload in {"json", "jsonb"}:
        filters += ["payload.n=7"]
    for one in filters:
        yield ["messages", "odd", "--filter", one]


def shown(console: Console, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = works(console, "messages", "odd", "--json", *words).json[
        "messages"
    ]
    return found


@pytest.mark.thinned(9)
@pytest.mark.parametrize(("design", "odd", "type_"), CASES, ids=str)
def test_every_verb_works_on_every_odd_value(
    console: Console, design: str, odd: Sequence[str], type_: str
) -> None:
    count = create(console, design, odd, type_)
    messages = shown(console, "--payload")
    assert len(messages) == count
    for words in reading(design, type_ if "payload" in odd else "jsonb"):
        works(console, *words)
    (examined,) = works(console, "doctor", "odd", "--idle-for", "0s", "--json").json["queues"]
    codes = [(one["code"], one["evidence"].get("time")) for one in examined["findings"]]
    far = {time for code, time in codes if code == "time_out_of_range"}
    assert far == ({*odd} & {*DESIGNS[design]} if odd == TIME_ROLES else set())
    for one in {message["id"] for message in messages[:: max(1, count // 3)]} - {None, ""}:
        assert [message["id"] for message in shown(console, "--filter", f"id={one}")] == [one]
    (status,) = works(console, "status", "odd", "--json").json["queues"]
    states = [message["state"] for message in messages]
    assert (status["problem"], status["ready"]) == ("", states.count("ready"))
    for verb, state in (("requeue", "error"), ("release", "claimed")):
        if "error" in DESIGNS[design]:
            options = ["--unknown"] if verb == "release" else []
            result = works(console, verb, "odd", *options, "--yes", "odd", "--json").json["result"]
            assert (result["done"], result["failed"]) == (states.count(state), {})
    if design == "pending":
        words = ["--filter", "state=scheduled", "--in", "1h", "--yes", "odd", "--json"]
        moved = works(console, "reschedule", "odd", *words).json["result"]
        assert (moved["done"], moved["failed"]) == (states.count("scheduled"), {})
    if design != "heap":
        done = 0
        for state in ("ready", "scheduled") if design == "pending" else ("ready",):
            words = [
                "purge",
                "odd",
                "--permanently",
                "--filter",
                f"state={state}",
                "--yes",
                "odd",
                "--json",
            ]
            done += works(console, *words).json["result"]["done"]
        assert done == count
    assert console.status("well")["ready"] == 1


FAR = ("57868-11-21 16:00:00+00", "0044-03-15 12:00:00+00 BC", "-infinity", "infinity")


@pytest.mark.parametrize("design", ["fifo", "pending", "claim", "split"])
def test_a_time_that_python_lacks_is_shown_as_the_server_writes_it(
    console: Console, design: str
) -> None:
    """Milliseconds taken for seconds: every verb reads, finds and moves the message."""
    name = f"far_{design}"
    console.done("install", design, name)
    table = f"{name}_meta" if design == "split" else name
    column = {"claim": "created_at", "split": "queue_date_time", "pending": "due_time"}.get(
        design, "pushed_at"
    )
    console.done("push", name, "-", "--lines", stdin=b"a\nb\nc\nd\ne\n")
    with connect(console.url) as connection:
        ids = [one for (one,) in connection.execute(f"SELECT id FROM {table}".encode())]
        for at, one in zip(FAR, ids, strict=False):
            query = f"UPDATE {table} SET {column} = %s WHERE id = %s"
            connection.execute(query.encode(), [at, one])
    role = "due_at" if design == "pending" else "pushed_at"
    listed = console.done("messages", name, "--json").json["messages"]
    assert {one["id"]: one[role] for one in listed if one["id"] != str(ids[4])} == {
        str(one): at for one, at in zip(ids[:4], FAR, strict=True)
    }
    for at, one in zip(FAR, ids, strict=False):
        (message,) = console.done("messages", name, "--filter", f"id={one}", "--json").json[
            "messages"
        ]
        assert message[role] == at
    for first, second in pairwise(listed):  # each is where the next page begins
        after = console.done("messages", name, "--limit", "1", "--json", "--after", first["key"])
        assert [message["id"] for message in after.json["messages"]] == [second["id"]]
    for words in (["status", name], ["doctor", name, "--idle-for", "0s"], ["check", name]):
        works(console, *words)
    if design == "pending":
        (examined,) = works(console, "doctor", name, "--idle-for", "0s", "--json").json["queues"]
        (far,) = [one for one in examined["findings"] if one["code"] == "time_out_of_range"]
        evidence = far["evidence"]
        assert evidence["ids"] == [str(ids[at]) for at in (3, 0, 1, 2)]  # the latest first
        assert (evidence["messages"], set(evidence["times"])) == (4, set(FAR))
        fix = ["--idle-for", "0s", "--fix", "--code", "time_out_of_range", "--yes", name]
        works(console, "doctor", name, *fix)
        again = console.done("messages", name, "--json").json["messages"]
        assert not {one["due_at"] for one in again} & {*FAR}

    def states() -> set[str]:
        return {one["state"] for one in console.done("messages", name, "--json").json["messages"]}

    # A mended message is due within a second or two: its state must not change between the calls.
    wait_until(lambda: "scheduled" not in states(), "all are due")
    shown = states()
    for state in shown:
        console.done("purge", name, "--filter", f"state={state}", "--yes", name)
    assert console.done("messages", name, "--json").json["messages"] == []
    for _ in shown:  # each restores one purge
        console.done("restore", name, "--yes", name)
    assert len(console.done("messages", name, "--json").json["messages"]) == 5
