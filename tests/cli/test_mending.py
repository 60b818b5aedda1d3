"""restore, maintain, upgrade, end-session and what release says of sessions."""

from contextlib import closing

import pytest

from tests.cli.calls import Console
from tests.cli.conftest import Install
from tests.servers import connect


@pytest.fixture
def mail(console: Console, install: Install) -> str:
    """A fifo queue with 4 messages."""
    name = install("fifo")
    console.done("push", name, "-", "--lines", stdin=b"a\nb\nc\nd\n")
    return name


def test_a_purge_comes_back(console: Console, mail: str) -> None:
    console.done("purge", mail, "--yes", mail)
    assert console("restore", mail).status == 4
    assert console.status(mail)["ready"] == 0
    done = console.done("restore", mail, "--yes", "--json").json
    assert (done["done"], done["result"]["done"]) == (4, 4)
    assert console.drained(mail) == ["a", "b", "c", "d"]
    assert console.done("restore", mail, "--yes", "--json").json["result"]["done"] == 0


def test_restore_by_action(console: Console, mail: str) -> None:
    first = console.done("purge", mail, "--filter", "limit=1", "--yes", mail, "--json").json
    console.done("purge", mail, "--filter", "limit=1", "--yes", mail)
    action = str(first["result"]["action_id"])
    console.done("restore", mail, "--action", action, "--yes")
    assert console.drained(mail) == ["c", "d", "a"]


def test_errors_go_into_another_queue(console: Console, mail: str, install: Install) -> None:
    bad = install("claim")
    console.done("push", bad, "x")
    console.popped(bad, "--fail", "boom")
    assert console("requeue", bad, "--to", mail, "--back", "--yes").status == 2
    console.done("requeue", bad, "--to", mail, "--yes")
    assert console.drained(mail) == ["a", "b", "c", "d", "x"]
    assert console.status(bad)["errors"] == 0


@pytest.mark.long
@pytest.mark.parametrize("verb", ["maintain", "upgrade"])
def test_nothing_to_do_is_no_failure(console: Console, mail: str, verb: str) -> None:
    plain = console.done(verb, mail)
    assert (plain.err, plain.status) == ("", 0)
    assert console(verb, mail, "--yes", "another").status == 4
    assert console.done(verb, mail, "--dry-run", "--json").json["done"] == 0
    done = console.done(verb, mail, "--yes", "--json").json
    assert (done["done"], done["plan"]["needed"]) == (0, False)


def test_code_changed_by_hand_is_told_and_mended(console: Console, mail: str) -> None:
    with connect(console.url) as connection:
        connection.execute(
            f'CREATE OR REPLACE FUNCTION public."{mail}_push"(payload text) RETURNS bigint '
            "LANGUAGE sql AS 'SELECT 1::bigint'".encode()
        )
    plan = console.done("upgrade", mail, "--dry-run", "--json").json["plan"]
    assert plan["changed_by_hand"] is True
    assert f"{mail}_push" in console("upgrade", mail).text
    console.done("upgrade", mail, "--yes")
    console.done("push", mail, "e")
    assert console.drained(mail) == ["a", "b", "c", "d", "e"]


def test_a_session_that_holds_rows_is_told_and_ended(console: Console, mail: str) -> None:
    assert "No session holds rows" in console.done("release", mail).text
    with closing(connect(console.url)) as holder:
        holder.execute("BEGIN")
        holder.execute(f'SELECT * FROM "{mail}_pop"()'.encode())
        (pid,) = holder.execute("SELECT pg_backend_pid()").fetchone() or (0,)
        told = console("release", mail)
        assert told.status == 4
        assert f"end-session '{mail}' {pid}" in told.err
        plan = console("end-session", mail, str(pid), "--json")
        assert plan.status == 4
        assert plan.json["plan"]["session"] == pid
        ended = console.done("end-session", mail, str(pid), "--yes", "--json").json["result"]
        assert ended["ended"] is True
    assert console.drained(mail) == ["a", "b", "c", "d"]
    assert console("end-session", mail, str(pid), "--yes").status == 2


HELD = ["naive", "ring", "claim"]
ALSO = ["heap", "stack", "pending"]


@pytest.mark.long
@pytest.mark.parametrize(
    "design", [*HELD, *(pytest.param(one, marks=pytest.mark.long) for one in ALSO)]
)
def test_a_holder_is_named_and_ended_whatever_the_design(console: Console, design: str) -> None:
    name = f"held by {design}"
    console.done("install", design, name)
    console.done("push", name, "a")
    console.done("push", name, "b")
    with closing(connect(console.url)) as holder:
        holder.execute("BEGIN")
        holder.execute(f'SELECT * FROM "{name}_pop_many"(2)'.encode())
        pid = holder.info.backend_pid
        if design != "claim":
            told = console("release", name, "--json")
            assert (told.status, [one["session"] for one in told.json["holders"]]) == (4, [pid])
            plain = console("release", name)
            assert f"session {pid} " in plain.text
            assert f"end-session '{name}' {pid}" in plain.err
        assert console.status(name)["held_by"][0]["session"] == pid
        ended = console.done("end-session", name, str(pid), "--yes", "--json").json["result"]
        assert (ended["ended"], ended["freed"]) == (True, [name])
    assert console.status(name)["holders"] == 0


def test_a_session_that_has_nothing_to_do_with_it_is_not_ended(console: Console, mail: str) -> None:
    with connect(console.url) as other:
        (pid,) = other.execute("SELECT pg_backend_pid()").fetchone() or (0,)
        assert console("end-session", mail, str(pid), "--yes").status == 4
        assert other.execute("SELECT 1").fetchone() == (1,)
