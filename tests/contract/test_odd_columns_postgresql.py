"""Columns of an adopted table: which types can be which role, and what is beside the roles."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.cli.calls import Answer, Console
from tests.contract.test_odd_values_postgresql import (
    DESIGNS,
    ODD,
    TIME_ROLES,
    TIME_TYPES,
    TYPE_OF,
    TYPES,
    UNSORTED,
)
from tests.servers import Server, execute, fresh_database, value

pytestmark = pytest.mark.slow

MORE_TYPES = """
CREATE DOMAIN small AS smallint CHECK (VALUE < 100);
"""
NUMBERS = frozenset(
    ("numeric", "float8", "oid", "xid", "bigint", "integer", "smallint", "regclass", "small")
)
SERVING = {
    **{role: {*TIME_TYPES} for role in TIME_ROLES},
    **dict.fromkeys(("status", "attempts"), NUMBERS),
}
"""Role -> the types that can have it; any type can have the others."""
ALL_TYPES = (*ODD, "small")
GENERATED = {
    "id": "7",
    "payload": "CAST('{}' AS jsonb)",
    "attempts": "3",
    "status": "1",
    **dict.fromkeys(TIME_ROLES, "timestamptz '2020-01-01Z'"),
    **dict.fromkeys(("error", "claimed_by"), "'x'"),
}


@pytest.fixture(scope="module")
def console(server: Server) -> Iterator[Console]:
    with fresh_database(server.url) as url:
        execute(url, TYPES + MORE_TYPES)
        yield Console(url)


def adopt(console: Console, design: str, columns: Mapping[str, str]) -> Answer:
    """The table `odd`, with a column that was dropped and some that are computed."""
    listed = ", ".join(f"{role} {type_}" for role, type_ in columns.items())
    execute(
        console.url,
        f"""DO $$ BEGIN DELETE FROM dbq.queue WHERE queue_name = 'odd';
            EXCEPTION WHEN undefined_table THEN NULL; END $$;
        DROP TABLE IF EXISTS odd;
        CREATE TABLE odd (gone date, {listed}, twice integer GENERATED ALWAYS AS (2) STORED,
            number bigint GENERATED ALWAYS AS IDENTITY, note text DEFAULT 'kept');
        ALTER TABLE odd DROP COLUMN gone""",
    )
    words = [word for role in columns for word in ("--map", f"{role}={role}")]
    return console("adopt", "odd", "--design", design, *words)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("role", ["id", "attempts", "status", *TIME_ROLES])
def test_a_column_whose_type_cannot_serve_is_refused_in_words(console: Console, role: str) -> None:
    (design, *_) = (one for one, roles in DESIGNS.items() if role in roles)
    for type_ in ALL_TYPES:
        types = {one: TYPE_OF[one] for one in DESIGNS[design]}
        answer = adopt(console, design, {**types, role: type_})
        serves = type_ not in UNSORTED if role == "id" else type_ in SERVING[role]
        assert (answer.status == 0) == serves, (type_, answer)
        if serves:
            continue
        assert answer.status == 2, answer
        assert f"The column '{role}' cannot be the {role} of a queue." in answer.err
        assert re.search(r"It is \S.*; the \w+: ", answer.err)
        assert "What serves is a column " in answer.err


def test_a_key_that_later_cannot_be_sorted_is_refused(console: Console) -> None:
    types = {one: TYPE_OF[one] for one in DESIGNS["fifo"]}
    assert adopt(console, "fifo", types).status == 0
    execute(console.url, "ALTER TABLE odd ALTER id TYPE json USING to_json(id)")
    console("messages", "odd").failed(4, "cannot be put in order")


def test_a_domain_is_named_with_the_type_below_it(console: Console) -> None:
    types = {**{one: TYPE_OF[one] for one in DESIGNS["status"]}, "status": "word"}
    assert "It is public.word, a text; " in adopt(console, "status", types).err


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("design", "role"),
    [(design, role) for design in ("claim", "status", "pending") for role in DESIGNS[design]],
)
def test_a_role_that_is_computed_is_read_and_its_change_refused_by_name(
    console: Console, design: str, role: str, tmp_path: Path
) -> None:
    types = {one: TYPE_OF[one] for one in DESIGNS[design]}
    computed = f"{types[role]} GENERATED ALWAYS AS ({GENERATED[role]}) STORED"
    adopted = adopt(console, design, {**types, role: computed})
    assert adopted.status == 0, adopted
    given = {one: value for one, value in GENERATED.items() if one in types and one != role}
    for number, status in enumerate((0, 1, 4)):
        values = given | {"id": str(number), "status": str(status)}
        if status < 4:
            values |= {"error": "NULL", "done_at": "NULL"}
        if status < 1:
            values |= {"claimed_at": "NULL", "claimed_by": "NULL"}
        row = {one: values[one] for one in given}
        execute(
            console.url, f"INSERT INTO odd ({', '.join(row)}) VALUES ({', '.join(row.values())})"
        )
    shown = console.done("messages", "odd", "--json", "--payload").json["messages"]
    assert len(shown) == 3
    reading = [["errors", "odd"]] if "error" in types else []
    for words in (*reading, ["doctor", "odd", "--idle-for", "0s"], ["status", "odd"]):
        assert console(*words).status in {0, 1}, words
    verbs = ["reschedule"] if design == "pending" else ["requeue", "release"]
    options = {"reschedule": ["--in", "1h"], "release": ["--unknown"]}
    options["requeue"] = ["--back"] if role == "pushed_at" else []
    for verb in verbs:
        plan = console.done(verb, "odd", *options[verb], "--json", "--dry-run").json["plan"]
        answer = console(verb, "odd", *options[verb], "--yes", "odd")
        refusal = f"The server computes the column '{role}', which {verb} writes: "
        assert [refusal in one for one in plan["obstacles"]] == [True] * (answer.status == 4)
        assert answer.status in {0, 1} or refusal in answer.err, answer
    assert value(console.url, "SELECT count(*) FROM odd WHERE twice = 2 AND note = 'kept'") == 3
    assert console("purge", "odd", "--permanently", "--yes", "odd").status in {0, 1}


@pytest.mark.parametrize("role", ["claimed_by", "done_at", "error"])
@pytest.mark.parametrize("verb", ["release", "requeue"])
def test_a_column_that_takes_no_null_refuses_the_plan(
    console: Console, role: str, verb: str
) -> None:
    types = {one: TYPE_OF[one] for one in DESIGNS["claim"]}
    assert adopt(console, "claim", {**types, role: f"{types[role]} NOT NULL"}).status == 0
    refused = console(verb, "odd", "--yes", "odd")
    expected = f"The column '{role}', which {verb} sets to NULL, is NOT NULL."
    assert (refused.status, expected in refused.err) == (4, True), refused


def test_an_id_that_the_server_numbers_stays_when_its_message_is_requeued(console: Console) -> None:
    """Of a table without claims: nothing but the error is written."""
    console("forget", "odd")
    execute(
        console.url,
        """DROP TABLE IF EXISTS odd;
        CREATE TABLE odd (id bigint GENERATED ALWAYS AS IDENTITY, payload text,
            status smallint, error text);
        INSERT INTO odd (status, error) VALUES (4, 'no'), (0, NULL)""",
    )
    roles = ("id", "payload", "status", "error")
    words = [word for role in roles for word in ("--map", f"{role}={role}")]
    console.done("adopt", "odd", "--design", "status", *words)
    assert console.done("requeue", "odd", "--yes", "odd", "--json").json["result"]["done"] == 1
    assert value(console.url, "SELECT min(id) FROM odd WHERE status = 0 AND error IS NULL") == 1


@pytest.mark.parametrize("type_", ["int[]", "pair", "json", "xid", "smallint", "bytea", "word"])
def test_an_error_of_any_type_is_shown(console: Console, type_: str) -> None:
    types = {one: TYPE_OF[one] for one in DESIGNS["claim"]}
    assert adopt(console, "claim", {**types, "error": type_}).status == 0
    value = {"smallint": "1", "word": "why"}.get(type_) or ODD[type_][1]
    execute(
        console.url,
        f"""INSERT INTO odd (id, payload, claimed_at, done_at, error)
        VALUES (1, '{{}}', now(), now(), CAST('{value}' AS {type_}))""",
    )
    (examined,) = console("doctor", "odd", "--idle-for", "0s", "--json").json["queues"]
    assert not [one for one in examined["unseen"] if "two samples" not in one]
    assert len(console.done("errors", "odd", "--json").json["groups"]) == 1


@pytest.mark.parametrize(
    "design", ["fifo", "claim", "status", "split", "pending", "ring in_hand=on"]
)
def test_columns_added_to_an_installed_queue_come_back_with_its_messages(
    console: Console, design: str
) -> None:
    """Of somebody else: the archive has none of them, and a computed one is never written."""
    shape = design.split(maxsplit=1)[0]
    name = f"own_{shape}"
    console.install(design, name)
    table = f"{name}_meta" if shape == "split" else name
    execute(
        console.url,
        f"""ALTER TABLE {table} ADD twice integer GENERATED ALWAYS AS (2) STORED,
            ADD number bigint GENERATED ALWAYS AS IDENTITY, ADD gone date, ADD note text DEFAULT '';
        ALTER TABLE {table} DROP COLUMN gone""",
    )
    console.done("push", name, "-", "--lines", stdin=b"a\nb\nc\n")
    before = console.done("messages", name, "--json", "--payload").json["messages"]
    console.done("purge", name, "--yes", name)
    assert console.done("messages", name, "--json").json["messages"] == []
    console.done("restore", name, "--yes", name)
    after = console.done("messages", name, "--json", "--payload").json["messages"]
    same = ("payload", "state", "attempts")
    assert [[one[key] for key in same] for one in after] == [
        [one[key] for key in same] for one in before
    ]
    assert len(console.popped(name, "--count", "3")) == 3
    assert console("doctor", name, "--idle-for", "0s").status in {0, 1}
