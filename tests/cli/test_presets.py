"""`preset list | show | check | trust`, and queues adopted with a user's own preset."""

import random
import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from console.features.demo.embedded import EmbeddedServer
from console.features.presets.designs import own_file
from console.sql import templates
from tests.cli.own_presets import IS_READY, PRESET, TABLE, User, ready_if, run
from tests.contract.test_every_statement import labels_run
from tests.servers import connect, fresh_database

pytestmark = pytest.mark.slow

REFUSED_EXPRESSIONS = {
    "wipe()": "function wipe() does not exist",
    "public.wipe()": "a function that is VOLATILE (wipe): it may write",
    "CASE WHEN false THEN public.wipe() ELSE true END": "VOLATILE (wipe)",
    "m.wiped": "column m.wiped does not exist",
    "(SELECT s.yes FROM public.sly AS s)": "a function that is VOLATILE: it may write",
    "nextval('public.crates_id_seq') > 0": "VOLATILE (nextval)",
    "pg_terminate_backend(1)": "VOLATILE (pg_terminate_backend)",
    "set_config('role', 'none', true) = ''": "VOLATILE (set_config)",
    "clock_timestamp() > now()": "VOLATILE (clock_timestamp)",
    "EXISTS (WITH gone AS (DELETE FROM public.crates RETURNING 1) SELECT FROM gone)": (
        "WITH clause containing a data-modifying statement must be at the top level"
    ),
    "EXISTS (SELECT FROM public.crates FOR UPDATE)": "it locks rows (FOR UPDATE)",
    "EXISTS (SELECT 1 INTO other)": "SELECT ... INTO is not allowed here",
    "DELETE FROM crates": 'syntax error at or near "FROM"',
    "m.state = 'new' FROM crates": 'syntax error at or near "FROM"',
    "count(*) > 1": "aggregate functions are not allowed",
    "generate_series(1, 2) = 1": "set-returning functions are not allowed",
    "m.stat = 'new'": "column m.stat does not exist",
    "m.id": "must be type boolean",
}
REFUSED_TEXTS = {
    "1); DELETE FROM crates; --": "closes a bracket",
    "true; DELETE FROM crates": "a semicolon",
    "true -- x": "a comment",
    "true /* x": "a comment",
}
VERBS = (
    *("requeue crates --yes", "release crates --force --yes", "purge crates --yes crates"),
    *("purge crates --permanently --yes crates", "archive crates --yes", "restore crates --yes"),
    *("maintain crates --yes", "push crates x", "pop crates", "complete crates 1", "smoke crates"),
    *("fail crates 1 --error no", "pause crates --yes", "resume crates --yes", "upgrade crates"),
    *("uninstall crates --yes crates", "reschedule crates --at 12:00 --yes"),
)


@pytest.fixture
def url(module_server: EmbeddedServer) -> Iterator[str]:
    with fresh_database(module_server.url) as found:
        run(found, TABLE)
        yield found


@pytest.fixture
def ann(url: str, tmp_path: Path) -> User:
    return User(tmp_path / "ann", url).writes()


@pytest.fixture
def bob(url: str, tmp_path: Path) -> User:
    """Another operator with the same login."""
    return User(tmp_path / "bob", url)


def make_roles(user: User) -> None:
    run(user.url, user.done("roles").text)
    run(user.url, "GRANT SELECT ON crates, sly TO dbq_reader")


def figures(user: User, name: str = "crates") -> list[object]:
    (found,) = user.done("status", name, "--json").json["queues"]
    assert not found["problem"]
    return [found[one] for one in ("ready", "claimed", "stuck", "errors")]


def problem(user: User) -> str:
    (found,) = user.done("status", "crates", "--json").json["queues"]
    assert found["ready"] is None
    return str(found["problem"])


def test_check_reports_types_states_and_costs(ann: User) -> None:
    run(ann.url, "INSERT INTO crates (lane, state, body) VALUES ('a', 'lost', 'x')")
    json = ann.trusts().done("preset", "check", str(ann.file), "--json").json
    assert (json["table"], json["trusted"], json["problems"]) == ("crates", True, [])
    types = {one["name"]: one["type"] for one in json["fragments"]}
    assert types["is_ready"] == "boolean"
    assert types["claimed_at"] == "timestamp with time zone"
    assert types["release: who"] == "text"
    states = json["states"]
    assert (states["rows_read"], states["in_several"]) == (5, [])
    assert states["in_one"] == {"ready": 2, "claimed": 1, "error": 1}
    assert [(state["status"], state["rows"]) for state in states["in_none"]] == [("lost", 1)]
    costs = {one["figure"]: one for one in json["cost"]}
    assert "using crates_state_idx" in costs["ready"]["scan"]
    assert (costs["ready"]["rows"], costs["ready"]["pages"] > 0) == (2, True)
    assert '"problem" = (NULL)' in json["sql"]["requeue"]
    assert "untrusted" not in json["sql"]["requeue"]
    text = ann.done("preset", "check", "crate").text
    assert "note  in no state (status lost): 1, for example id 5" in text
    run(ann.url, "DROP INDEX crates_state_idx")
    assert "ready: Seq Scan, 1 page for 2 rows" in ann.done("preset", "check", "crate").text


def test_check_counts_rows_that_inherit_from_the_table(ann: User) -> None:
    run(ann.url, "CREATE TABLE heirs () INHERITS (crates)")
    run(ann.url, "INSERT INTO heirs (id, lane, state, body) VALUES (9, 'a', 'ready', 'x')")
    run(ann.url, "ANALYZE crates, heirs")
    json = ann.trusts().done("preset", "check", "crate", "--json").json
    assert (json["rows_estimated"], json["pages"]) == (5, 2)


def test_a_preset_whose_table_is_one_queue_names_no_column_of_queues(ann: User) -> None:
    ann.writes(PRESET.replace("-- queue: lane\n", "")).trusts()
    assert ann.done("preset", "check", "crate", "--json").json["problems"] == []
    ann.done("adopt", "crates", "--preset", "crate")
    assert figures(ann) == [2, 1, 1, 1]
    ann.done("requeue", "crates", "--yes")
    assert figures(ann) == [3, 1, 1, 0]


def test_an_expression_that_could_write_is_refused_before_it_runs(ann: User) -> None:
    make_roles(ann)
    for text, why in REFUSED_EXPRESSIONS.items():
        answer = ann.writes(ready_if(text))("preset", "check", "crate")
        assert answer.status in {1, 4}, text
        if "FOR UPDATE" not in text:
            assert why in answer.text, text
        ann.trusts()
        answer = ann("preset", "check", "crate")
        assert (answer.status, why in answer.text) == (1, True), (text, answer)
        assert "No problems." not in answer.text
        refused = ann("adopt", "crates", "--preset", "crate")
        assert (refused.status, why in refused.err) == (2, True), text
    for text, why in REFUSED_TEXTS.items():
        ann.writes(ready_if(text))
        for words in (["preset", "check", "crate"], ["preset", "trust", "crate"]):
            refused = ann(*words)
            assert (refused.status, why in refused.err) == (2, True), text
        assert why in ann.done("preset", "list").text
    assert run(ann.url, "SELECT count(*) FROM crates") == [(4,)]
    assert run(ann.url, "SELECT last_value FROM crates_id_seq") == [(4,)]


PIECES = (
    *("(", ")", "[", "]", "'", '"', "--", "/*", "*/", ";", "\\", "E", "U&", "$$", "$a$", ":", "\n"),
    *(" ", ",", "1", "2", "x", "a b", "{is_ready}", "''", '""', "FROM crates AS m", "OR true", "*"),
    *("1),(2", "1);SELECT (2", "1)AS a,(2", "UNION SELECT 2, 3", "SELECT 1", "AS a", "WITH"),
    *("RETURNING", "-", "/", "N", "B", "::", "\r"),
)


@pytest.mark.long
def test_an_accepted_text_is_always_a_single_expression(module_server: EmbeddedServer) -> None:
    """The server parses an accepted text, unless it refuses it, as one value in its place."""
    accepted = 0
    with connect(module_server.url) as connection:
        generator = random.Random(4711)
        for _ in range(20_000):
            text = "".join(generator.choices(PIECES, k=generator.randint(1, 7)))
            if own_file.wrong(text, set(), set()):
                continue
            try:
                rows = connection.execute(f"SELECT (\n{text}\n) AS first, 'last' AS last".encode())
                assert [one.name for one in rows.description or ()] == ["first", "last"], text
                assert rows.nextset() is None, text
                accepted += 1
            except psycopg.Error:
                continue
    assert accepted > 100


def test_a_preset_that_does_not_match_its_table_is_reported(ann: User) -> None:
    for line, why in {
        "problem = 7": "requeue: problem: CASE types text and integer cannot be matched",
        "probl = NULL": "requeue: probl: column m.probl does not exist",
        "problem = concat(public.wipe())": "requeue: problem: it calls a function that is VOLATILE",
    }.items():
        ann.writes(PRESET.replace("problem = NULL", line)).trusts()
        answer = ann("preset", "check", "crate")
        assert (answer.status, why in answer.text) == (1, True), answer
        assert why in ann("adopt", "crates", "--preset", "crate").err

    ann.writes(ready_if("m.state IN ('new', 'failed')")).trusts()
    answer = ann("preset", "check", "crate")
    assert (answer.status, "WRONG ready and error: 1, for example id 4" in answer.text) == (1, True)
    (message,) = ann("preset", "check", "crate", "--json").json["problems"]
    assert message == "1 row in two states at once, ready and error, such as the one with the id 4"
    ann("adopt", "crates", "--preset", "crate").failed(2, message)

    run(ann.url, "ALTER TABLE crates ALTER taken_at TYPE timestamp")
    answer = ann.writes().trusts()("preset", "check", "crate")
    assert answer.status == 1
    assert "WRONG claimed_at: it is timestamp without time zone, not a time" in answer.text
    assert "timezone('UTC', m.COLUMN)" in answer.text

    ann.writes(PRESET.replace("error=problem", "error=trouble"))
    for words in (["preset", "check", "crate"], ["adopt", "crates", "--preset", "crate"]):
        ann.trusts()(*words).failed(
            2, "There is no table of crate that this login may read.", "public.crates lacks trouble"
        )
    run(ann.url, "ALTER TABLE crates RENAME TO boxes")
    refused = ann.writes().trusts()("preset", "check", "crate")
    assert "public.boxes has them, under another name" in refused.err


def test_a_comparison_by_an_operator_of_an_extension_is_refused_unless_it_is_named(
    ann: User,
) -> None:
    """`citext = 'new'` would be a comparison of texts, which matches less than is meant."""
    run(ann.url, "CREATE SCHEMA ext; CREATE EXTENSION citext SCHEMA ext")
    run(ann.url, "ALTER TABLE crates ALTER state TYPE ext.citext")
    answer = ann.writes().trusts()("preset", "check", "crate")
    assert answer.status == 1
    assert "m.state has the type ext.citext: compare it as CAST(m.state AS text), or" in answer.text
    assert "m.state OPERATOR(ext.=) 'x'" in answer.text
    named = PRESET.replace("m.state =", "m.state OPERATOR(ext.=)")
    assert ann.writes(named).trusts()("preset", "check", "crate").status == 0
    ann.done("adopt", "crates", "--preset", "crate")
    assert ann.done("status", "crates", "--json").json["queues"][0]["ready"] == 2
    ann.done("requeue", "crates", "--yes")


def test_a_file_that_others_may_write_is_refused(ann: User) -> None:
    ann.trusts().done("adopt", "crates", "--preset", "crate")
    ann.file.chmod(0o666)
    why = f"others may write it (its mode is 0666): chmod go-w {ann.file}"
    assert why in ann.done("preset", "list").text
    for words in ("show crate", "check crate", "trust crate"):
        ann("preset", *words.split()).failed(4, why)
    assert ann("adopt", "more", "--preset", "crate").status == 4
    assert why in problem(ann)
    assert ann("requeue", "crates", "--yes").status == 4
    ann.file.chmod(0o600)
    assert figures(ann) == [2, 1, 1, 1]


def test_an_untrusted_preset_is_run_as_the_role_dbq_reader(ann: User, bob: User) -> None:
    shown = PRESET + "\n-- define: title\nCAST(current_user AS text)\n"
    ann.writes(shown).trusts().done("adopt", "crates", "--preset", "crate")
    (login,) = {message["title"] for message in messages(ann)}
    assert login != "dbq_reader"
    make_roles(ann)
    # The reader has no right to this table, which does not affect other queues.
    run(ann.url, "CREATE TABLE plain (id bigint, body text); INSERT INTO plain VALUES (1, 'x')")
    ann.done("adopt", "plain", "--design", "fifo", "--map", "id=id", "--map", "payload=body")
    bob.writes(shown)
    assert {one["queue"]: one["ready"] for one in bob.done("status", "--json").json["queues"]} == {
        "crates": 2,
        "plain": 1,
    }
    assert bob.done("preset", "list", "--json").json["own"][0]["trusted"] is False
    assert bob.done("preset", "check", "crate").text.count("You have not trusted it") == 1
    assert figures(bob) == [2, 1, 1, 1]
    assert {message["title"] for message in messages(bob)} == {"dbq_reader"}
    assert bob("doctor", "crates", "--idle-for", "0s").status in {0, 1}
    assert bob.done("errors", "crates").text
    before = run(bob.url, "SELECT * FROM crates ORDER BY id")
    for verb in VERBS:
        refused = bob(*verb.split())
        assert (refused.status in {2, 4}, refused.out) == (True, b""), refused
    bob("requeue", "crates", "--yes").failed(
        4, f"its preset crate is not trusted: dbq-console preset trust {bob.file}"
    )
    bob("adopt", "again", "--preset", "crate").failed(4, "not trusted")
    assert run(bob.url, "SELECT * FROM crates ORDER BY id") == before
    bob.trusts().done("requeue", "crates", "--yes")
    assert {message["title"] for message in messages(bob)} == {login}
    assert figures(bob) == [3, 1, 1, 0]


def test_a_login_that_may_write_and_cannot_be_the_reader_needs_a_trusted_preset(
    ann: User, tmp_path: Path
) -> None:
    ann.trusts().done("adopt", "crates", "--preset", "crate")
    users = {}
    for name, rights in (("looks", "SELECT"), ("works", "SELECT, INSERT")):
        login = f"{name}_{make_url(ann.url).database}"
        run(
            ann.url,
            f"CREATE ROLE {login} LOGIN PASSWORD 'x'; GRANT USAGE ON SCHEMA dbq TO {login};"
            f"GRANT SELECT ON ALL TABLES IN SCHEMA dbq TO {login};"
            f"GRANT {rights} ON crates TO {login}",
        )
        url = make_url(ann.url).set(username=login, password="x")
        users[name] = User(tmp_path / name, url.render_as_string(hide_password=False)).writes()
    assert figures(users["looks"]) == [2, 1, 1, 1]
    assert users["looks"]("preset", "check", "crate").status == 0
    users["works"]("preset", "check", "crate").failed(
        4,
        "only the role dbq_reader may use it",
        "it cannot switch to that role",
        "dbq-console roles",
    )
    assert "it cannot switch to that role" in problem(users["works"])
    assert users["works"]("messages", "crates").status == 4
    assert figures(users["works"].trusts()) == [2, 1, 1, 1]


def messages(user: User) -> list[dict[str, object]]:
    found: list[dict[str, object]] = user.done("messages", "crates", "--json").json["messages"]
    assert found
    return found


def test_two_operators_need_the_same_preset_for_a_queue(ann: User, bob: User) -> None:
    ann.trusts().done("adopt", "crates", "--preset", "crate")
    (kept,) = run(ann.url, "SELECT options ->> 'sha256', installed_from FROM dbq.queue")
    assert "preset crate is not here" in problem(bob)
    bob.writes(ready_if("m.state IN ('new', 'lost')")).trusts()
    for text in (
        problem(bob),
        bob("messages", "crates").err,
        bob("requeue", "crates", "--yes").err,
    ):
        assert "preset crate differs" in text
        assert f"{kept[1]} (login " in text
        assert f"adopted it from a file with SHA-256 {str(kept[0])[:12]}, yours has " in text
        assert "get that file, or forget the queue and adopt it with yours" in text
    for words in ("messages crates", "errors crates", "requeue crates --yes", "sql requeue crates"):
        refused = bob(*words.split())
        assert (refused.status in {2, 4}, refused.out) == (True, b""), refused
    assert figures(ann) == [2, 1, 1, 1]
    bob.done("forget", "crates")
    bob.done("adopt", "crates", "--preset", "crate")
    assert figures(bob) == [2, 1, 1, 1]
    assert "preset crate differs" in problem(ann)
    bob.writes()
    assert "preset crate differs" in problem(bob)


def test_a_missing_preset_does_not_affect_other_queues(ann: User) -> None:
    ann.trusts().done("adopt", "crates", "--preset", "crate")
    ann.done("install", "fifo", "orders")
    ann.done("push", "orders", "x")
    ann.forgets_all()
    found = {one["queue"]: one for one in ann.done("status", "--json").json["queues"]}
    assert (found["orders"]["ready"], found["crates"]["ready"]) == (1, None)
    assert found["crates"]["problem"].startswith("preset crate is not here: ")
    assert ann("check", "orders").status == 0
    assert "preset crate is not here" in ann("check").text
    assert ann.done("discover").text.startswith("Found no queue of a library with a preset")
    ann.done("forget", "crates")


def test_requeue_and_release_set_the_columns_named_by_the_preset(ann: User) -> None:
    ann.trusts().done("adopt", "crates", "--preset", "crate", "--queue", "a")
    assert figures(ann) == [1, 1, 1, 1]
    (found,) = ann.done("status", "crates", "--json").json["queues"]
    reason = found["latency"]["processing"]["unknown"]
    assert reason == "its preset does not say what is done"
    plan = ann.done("requeue", "crates", "--dry-run").text
    assert "by the columns that its preset sets" in plan
    ann.done("requeue", "crates", "--yes")
    ann.done("release", "crates", "--unknown", "--yes")
    rows = run(
        ann.url, "SELECT id, state, problem, taken_at, who FROM crates WHERE lane = 'a' ORDER BY id"
    )
    assert rows == [
        (1, "new", None, None, None),
        (3, "new", None, None, "w1, given up"),
        (4, "new", None, run(ann.url, "SELECT taken_at FROM crates WHERE id = 4")[0][0], "w1"),
    ]
    ann("purge", "crates", "--yes", "crates").failed(4, "only it adds and deletes rows")

    # A requeue after which the row is not ready is rolled back.
    run(ann.url, "UPDATE crates SET state = 'failed', problem = 'no' WHERE id = 4")
    ann.done("forget", "crates")
    ann.writes(PRESET.replace("state = 'new'\nproblem", "state = 'odd'\nproblem")).trusts()
    ann.done("adopt", "crates", "--preset", "crate")
    failed = ann("requeue", "crates", "--yes")
    assert failed.status != 0, failed
    assert run(ann.url, "SELECT state, problem FROM crates WHERE id = 4") == [("failed", "no")]


def test_discover_lists_and_adopts_queues_of_own_presets(ann: User) -> None:
    (found,) = ann.done("discover", "--json").json["found"]
    assert (found["preset"], found["queues"]) == ("crate", ["a", "b"])
    assert (found["file"], found["trusted"]) == (str(ann.file), False)
    assert "not trusted" in ann.done("discover").text
    assert "because its preset is not trusted" in ann.done("discover", "--adopt", "--yes").text
    assert not run(ann.url, "SELECT 1 FROM pg_namespace WHERE nspname = 'dbq'")
    ann.trusts().done("discover", "--adopt", "--yes")
    assert figures(ann) == [2, 1, 1, 1]


def test_show_describes_a_preset_and_trust_can_be_revoked(ann: User, bob: User) -> None:
    shown = ann.done("preset", "show", "crate").text
    assert "verbs: requeue, release, maintain, end-session" in shown
    assert "columns: body id lane problem state taken_at who" in shown
    assert "You have not trusted it" in shown
    assert re.search(r"is_ready:\n    m\.state = 'new'\n", shown)
    river = ann.done("preset", "show", "river", "--json").json
    assert (river["own"], "is_ready" in river["definitions"]) == (None, True)
    assert "JobRescuer" in river["refused"]["release"]
    outside = bob.writes().file
    text = ann.done("preset", "trust", str(outside)).text
    assert "It is not among your presets" in text
    ann.trusts()
    assert "trusted, SHA-256" in ann.done("preset", "list").text
    ann.done("preset", "trust", "crate", "--revoke")
    assert "You have not trusted it" in ann.done("preset", "list").text
    for words in ("check river", "trust river", "show nothing"):
        assert ann("preset", *words.split()).status == 2


def test_every_statement_of_own_presets_is_run(ann: User, bob: User) -> None:
    with labels_run() as labels:
        make_roles(ann)
        ann.done("preset", "check", "crate")
        ann.trusts().done("discover")
        ann.done("preset", "check", "crate")
        ann.done("adopt", "crates", "--preset", "crate")
        ann.done("requeue", "crates", "--yes")
        bob.writes(ready_if("public.wipe()"))("preset", "check", "crate")
        bob.writes(PRESET.replace("error=problem", "error=no"))("preset", "check", "crate")
    every = {statement.label for statement in templates.statements("postgresql", "own").values()}
    # These two run before and after another statement, on its cursor.
    assert every - labels == {"own.set_reader_role", "own.reset_role"}


assert IS_READY in PRESET
