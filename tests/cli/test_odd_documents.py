"""Documents that no console wrote, in the catalog and in files: one takes nothing else with it."""

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from console.actions.export import ExportState, _Partial
from console.errors import UsageError
from tests.cli.calls import Answer, Console
from tests.servers import connect, execute

pytestmark = pytest.mark.slow

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 10**20) | st.sampled_from(["", "apart", "text"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["payload", "id", "size", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)
OPTIONS = ["payload", "max_bytes", "size", "content", "partitions", "subscribers", "in_hand"]
FEW = 10
"""Examples in the short tier, each of several verbs on a server."""
ODD = st.sampled_from(["", "evil", "apart", "-1", "on", "a,a", "none", "1" * 30]) | JSON


def written(console: Console, column: str, document: Any) -> None:
    with connect(console.url) as connection:
        query = f"UPDATE dbq.queue SET {column} = %s WHERE queue_name = 'odd'"
        connection.execute(query.encode(), [json.dumps(document)])


def recorded(console: Console, column: str) -> Any:
    with connect(console.url) as connection:
        query = f"SELECT {column} FROM dbq.queue WHERE queue_name = 'odd'"
        (found,) = connection.execute(query.encode()).fetchone() or (None,)
    return found


def answered(answer: Answer) -> Answer:
    assert "Traceback" not in answer.err, answer
    assert "internal error" not in answer.err, answer
    return answer


def assert_the_other_works(console: Console) -> str:
    """What `status` says of the odd one."""
    queues = {one["queue"]: one for one in answered(console("status", "--json")).json["queues"]}
    assert (queues["well"]["ready"], queues["well"]["problem"]) == (1, "")
    found = answered(console("doctor", "--idle-for", "0s", "--json")).json["queues"]
    assert {one["queue"] for one in found} == {"odd", "well"}
    return str(queues["odd"]["problem"])


def with_two(console: Console, design: str) -> Console:
    console.done("install", design, "odd")
    console.done("install", "fifo", "well")
    console.done("push", "well", "x")
    return console


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("column", "document"),
    [
        ("options", {"payload": "evil"}),
        ("options", [1]),
        ("options", "text"),
        ("options", {"payload": "text", "max_bytes": "1000", "content": "apart"}),
        ("roles", {}),
        ("roles", "id"),
        ("roles", {"id": 5}),
    ],
)
def test_an_odd_row_of_the_catalog_is_one_queue_that_is_not_readable(
    empty: Console, column: str, document: Any
) -> None:
    console = with_two(empty, "ring")
    written(console, column, document)
    assert "not readable: " in assert_the_other_works(console)
    for words in (
        ["status", "odd"],
        ["doctor", "odd"],
        ["messages", "odd"],
        ["errors", "odd"],
        ["push", "odd", "x"],
        ["relay", "odd"],
        ["sql", "push", "odd"],
        ["uninstall", "odd"],
        ["report", "odd"],
        ["check", "odd"],
        ["discover"],
        ["roles"],
    ):
        answer = answered(console(*words))
        assert answer.status in {0, 1, 2, 3, 4}
    console.done("check", "well", "--max-depth", "5")
    assert answered(console("forget", "odd")).status == 0


@pytest.mark.parametrize("design", ["ring", pytest.param("split", marks=pytest.mark.long)])
def test_whatever_a_row_of_the_catalog_has_the_other_queue_works(
    empty: Console, design: str
) -> None:
    console = with_two(empty, design)
    before = {column: recorded(console, column) for column in ("options", "roles")}

    @settings(max_examples=FEW if settings().derandomize else 100)
    @given(st.sampled_from(["options", "roles"]), st.data())
    def check(column: str, data: st.DataObject) -> None:
        document: Any = data.draw(JSON)
        if data.draw(st.booleans()):
            document = dict(before[column])
            name = data.draw(st.sampled_from([*document, *OPTIONS]))
            if data.draw(st.booleans()):
                document[name] = data.draw(ODD)
            else:
                document.pop(name, None)
        written(console, column, document)
        assert_the_other_works(console)
        answered(console("messages", "odd"))
        written(console, column, before[column])

    check()


def test_whatever_a_message_s_history_has_the_message_is_shown(empty: Console) -> None:
    empty.done("install", "status", "q", "--option", "history=3")
    empty.done("push", "q", "a")
    empty.done("pop", "q", "--fail", "broken")
    (before,) = empty.done("messages", "q", "--filter", "id=1", "--json").json["messages"]
    assert [one["error"] for one in before["history"]] == ["broken"]

    @given(JSON | st.lists(st.fixed_dictionaries({"at": ODD, "error": ODD, "attempt": ODD})))
    def check(document: Any) -> None:
        execute(empty.url, "UPDATE q SET history = %s", [json.dumps(document)])
        (message,) = empty.done("messages", "q", "--filter", "id=1", "--json").json["messages"]
        assert message["state"] == "error"

    check()


def test_whatever_a_pause_has_the_other_queue_works(empty: Console) -> None:
    console = with_two(empty, "fifo")
    console.done("pause", "odd", "--yes", "odd")
    functions = st.lists(st.fixed_dictionaries({}, optional={"name": ODD, "definition": ODD}))

    @settings(max_examples=FEW if settings().derandomize else 100)
    @given(JSON | functions)
    def check(document: Any) -> None:
        execute(console.url, "UPDATE dbq.pause SET functions = %s", [json.dumps(document)])
        assert assert_the_other_works(console) == ""
        assert answered(console("resume", "odd", "--yes", "odd")).status in {0, 2, 3, 4}
        assert answered(console("upgrade", "odd", "--dry-run")).status in {0, 3, 4}

    check()


@pytest.mark.parametrize("moment", ["infinity", "-infinity", "20000-01-01", "0044-03-15 BC"])
def test_a_decision_with_a_time_that_python_lacks_takes_nothing_with_it(
    empty: Console, moment: str
) -> None:
    console = with_two(empty, "fifo")
    console.done("silence", "bloat", "odd")
    console.done("pause", "odd", "--yes", "odd")
    console.done("protect", "odd", "--yes")
    with connect(console.url) as connection:
        connection.execute("UPDATE dbq.silence SET until = %s", [moment])
        connection.execute("UPDATE dbq.pause SET until = %s, paused_at = %s", [moment, moment])
        connection.execute("UPDATE dbq.queue SET installed_at = %s", [moment])
        connection.execute("UPDATE dbq.action SET started_at = %s", [moment])
    assert_the_other_works(console)
    answered(console("audit", "--json"))


@given(JSON)
@example({"of": {}, "cutoff": "x", "bytes": "1"})
@example([])
def test_whatever_the_state_of_an_export_has_it_is_refused(document: Any) -> None:
    folder = Path(tempfile.mkdtemp())
    data = folder / "x.ndjson"
    with _Partial(data) as file:
        new = ExportState({"a": 1}, "2026-01-01")
        os.write(file._descriptor, b"x")
        file._state.write_text(json.dumps(document))
        with pytest.raises(UsageError):
            file.begin(new)
    shutil.rmtree(folder)


def test_a_superuser_does_not_read_a_table_that_has_become_a_view(empty: Console) -> None:
    """Its owner's functions would run with the superuser's rights."""
    console = with_two(empty, "split")
    with connect(console.url) as connection:
        connection.execute(
            """
            CREATE TABLE ran (n int);
            CREATE FUNCTION evil() RETURNS boolean LANGUAGE sql AS
                'INSERT INTO public.ran VALUES (1) RETURNING true';
            ALTER TABLE odd_meta RENAME TO aside;
            CREATE VIEW odd_meta AS SELECT a.* FROM aside AS a WHERE evil();
            INSERT INTO aside (title) VALUES ('x');
            """
        )
        assert (
            "no superuser reads it: that would run the view or foreign table"
            in assert_the_other_works(console)
        )
        for words in (["messages", "odd"], ["errors", "odd"], ["report", "odd"], ["pop", "odd"]):
            answered(console(*words))
        assert connection.execute("SELECT * FROM ran").fetchall() == []
