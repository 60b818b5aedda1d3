"""The questions of `prove` about the server, on PostgreSQL: they hold on real ones, as the three
roles too, in a database that is dropped again; and each is false where a fault is planted.

For SQL Server, which is not to be had here: tests/unit/test_prove_mssql.py.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from console import catalog, sql
from console.actions.install import prepare_catalog, remove
from console.catalog import relations
from console.engines import Database, open_database
from console.errors import ConsoleError, UsageError
from console.features.bench.server import session_named
from console.features.prove import (
    asking,
    lock_questions,
    number_questions,
    role_questions,
    run,
    session_questions,
    site,
)
from console.features.prove.asking import QUESTIONS
from console.features.prove.questions import Question, try_question
from console.features.prove.site import Site
from console.features.prove.trial import Line, Outcome, Trial
from console.monitor.activity import Activity
from tests.servers import value
from tests.servers.versions import single

pytestmark = pytest.mark.slow

HERE = [question for question in QUESTIONS if "postgresql" in question.engines]
DATABASES = "SELECT count(*) FROM pg_database WHERE datname LIKE 'dbq\\_prove\\_%'"
MEMBERS = "SELECT count(*) FROM pg_roles WHERE rolname LIKE 'dbq\\_prove\\_%'"


def make_roles(database: Database) -> None:
    with database.transaction("make the roles") as connection:
        prepare_catalog(connection)
        sql.run(connection, "roles.roles", sql.Scope({"schema": "public"}))


@pytest.mark.parametrize("version", ["18", pytest.param("15", marks=pytest.mark.long)])
def test_every_question_that_applies_is_proven_and_nothing_is_left(version: str) -> None:
    with single(version) as server, closing(open_database(server.url)) as database:
        server.initialise()
        server.start()
        make_roles(database)
        reported: list[str] = []
        report = run.prove_designs(database, "public", "none", reported.append)
        seen = [(line.code, line.outcome) for line in report.lines]
        assert seen == [(question.code, Outcome.PROVEN) for question in HERE], report.markdown
        assert report.ok
        assert {line.design for line in report.lines} == {"a database of its own"}
        assert value(server.url, DATABASES) == 0
        assert value(server.url, MEMBERS) == 0
        for line in report.lines:
            assert all((line.evidence, line.leans, line.otherwise))


@pytest.fixture(scope="module")
def place() -> Iterator[Site]:
    """A database in which questions are asked, on a server of its own, for its roles."""
    with single("18") as server, closing(open_database(server.url)) as database:
        server.initialise()
        server.start()
        make_roles(database)
        yield Site(database, "public", "here", "0123abcd", print, own=True, roles=True)


Patch = pytest.MonkeyPatch


def planted(statement: str) -> Callable[[Patch], None]:
    """A fault in the database, as soon as the question's queue is there."""

    def plant(patch: Patch) -> None:
        def trial(self: Site, design: str, **options: str) -> Trial:
            made = of(self, design, **options)
            with self.database.transaction("plant a fault") as connection:
                connection.execute(text(statement.replace("{q}", made.installed.name)))
            return made

        of = Site.trial
        patch.setattr(Site, "trial", trial)

    return plant


def replaced(module: Any, name: str, make: Callable[..., object]) -> Callable[[Patch], None]:
    """Another function instead of one that the question calls; `make` gets that one first."""

    def plant(patch: Patch) -> None:
        before = getattr(module, name)
        patch.setattr(module, name, lambda *given, **more: make(before, *given, **more))

    return plant


def waits_as_long_as_it_takes(_: object, database: Database, queue: Any, __: object) -> None:
    """A relay that waits with its lock asked for, so that all callers stand behind it."""
    scope = queue.scope(database.product, relation=f"{queue.name}_config")
    with database.transaction("wait") as connection:
        sql.run(connection, "prove.lock_configuration", scope)


def without(statement: str) -> Callable[[Patch], None]:
    """That statement does nothing."""
    return replaced(
        sql,
        "run",
        lambda run, connection, of, *scope: (
            None if of == statement else run(connection, of, *scope)
        ),
    )


NO_RIGHT = {
    "as-reader": "GRANT ALL ON ALL TABLES IN SCHEMA public TO dbq_reader; "
    "GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO dbq_reader; "
    "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO dbq_reader",
    "as-operator": 'REVOKE DELETE ON public."{q}_archive" FROM dbq_operator',
    "as-admin": "REVOKE CREATE ON SCHEMA public FROM dbq_admin, PUBLIC",
    "admin-alone": "REVOKE CREATE ON SCHEMA public FROM dbq_admin, PUBLIC",
}
FALSE: dict[str, Callable[[Patch], None]] = {
    **{code: planted(statement) for code, statement in NO_RIGHT.items()},
    "held-lock": replaced(lock_questions, "sample_activity", lambda *_: Activity(())),
    "next-number": replaced(number_questions, "_next_push", lambda of, *given: of(*given) + 1),
    "readpast": replaced(lock_questions, "pop_many", lambda *_: []),
    "ends-sessions": replaced(
        role_questions, "login_can", lambda of, *given: replace(of(*given), ends_sessions=False)
    ),
    "session-settings": replaced(
        session_questions,
        "_settings",
        lambda of, *given: replace(of(*given), isolation=str(time.time())),
    ),
    "relay-beside": replaced(lock_questions, "relay", waits_as_long_as_it_takes),
    "row-of-configuration": without("prove.lock_configuration"),
    "catalog-during-ddl": replaced(relations, "named", lambda *_: []),
    "identity-order": replaced(number_questions, "push_many", lambda of, *given: of(*given)[::-1]),
    "sampling": replaced(
        session_questions, "take_sample", lambda of, *given, only: of(*given, only=only[1:])
    ),
}
"""Code of each question that PostgreSQL can answer, and what makes it false."""


@pytest.mark.parametrize("question", HERE, ids=[question.code for question in HERE])
def test_a_planted_fault_makes_it_false(
    place: Site, question: Question, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(lock_questions, "_LONG_SECONDS", 0.5)
    monkeypatch.setattr(session_questions, "_QUEUES", 3)
    FALSE[question.code](monkeypatch)
    line = try_question(question, place)
    assert line.outcome is Outcome.FAILED, line
    assert line.evidence
    monkeypatch.undo()
    with place.database.transaction("mend what was planted") as connection:
        sql.run(connection, "roles.roles", sql.Scope({"schema": "public"}))
        left = catalog.queues(connection)  # of the last question, which leaves them to the end
    for queue in left:
        remove(place.database, queue)


def test_each_question_has_a_fault_that_makes_it_false() -> None:
    assert {question.code for question in HERE} == FALSE.keys()


def not_answered(place: Site, ask: Callable[[Site], str], seconds: float = 5.0) -> Line:
    line = try_question(replace(HERE[0], ask=ask, most_seconds=seconds), place)
    assert line.outcome is Outcome.NOT_ANSWERED, line
    with place.question():
        assert place.trial("fifo").push(1) == [0], "the next question is asked"
    return line


def test_an_error_is_no_answer_and_not_the_end(place: Site) -> None:
    def ask(_: Site) -> str:
        raise ConsoleError("Could not ask.", why="The disk is full.")

    assert not_answered(place, ask).evidence == "Could not ask. The disk is full."
    assert "ValueError" in not_answered(place, lambda _: str(int("no number"))).evidence


def test_a_question_that_hangs_is_cut_off_and_its_queue_removed(place: Site) -> None:
    made: list[Trial] = []

    def ask(here: Site) -> str:
        made.append(here.trial("fifo"))
        with here.database.transaction("wait") as connection:
            connection.execute(text("SELECT pg_sleep(600)"))
        return "it ended"

    assert "has not answered within 1 s" in not_answered(place, ask, 1.0).evidence
    with place.database.transaction("look") as connection:
        listed = connection.execute(text("SELECT queue_name FROM dbq.queue")).scalars().all()
    assert made[0].installed.name not in listed


def test_a_login_that_may_make_no_database_uses_the_operators(place: Site) -> None:
    """As any user of a database: on scratch queues, without roles."""
    reported: list[str] = []
    with place.database.transaction("make a login") as connection:
        connection.execute(
            text("CREATE ROLE somebody LOGIN; GRANT CREATE ON SCHEMA public TO somebody")
        )
        connection.execute(text("GRANT CREATE ON DATABASE postgres TO somebody"))
        connection.execute(text("GRANT dbq_admin TO somebody"))
    url = place.database.url.set(username="somebody").render_as_string(hide_password=False)
    with closing(open_database(url)) as database:
        report = run.prove_designs(
            database, "public", "none", reported.append, "next-number,as-reader,sampling"
        )
    assert [(line.code, line.outcome) for line in report.lines] == [
        ("next-number", Outcome.PROVEN),
        ("as-reader", Outcome.NOT_APPLICABLE),
        ("sampling", Outcome.NOT_APPLICABLE),
    ], report.markdown
    assert {line.design for line in report.lines} == {site.OPERATORS}
    assert any("permission denied to create database" in line for line in reported)
    assert "## The server" in report.markdown


def test_a_database_that_a_killed_proof_left_is_dropped_and_that_of_a_running_one_is_not(
    place: Site,
) -> None:
    database, reported = place.database, list[str]()
    left, used = (f"dbq_prove_{token}_0" for token in ("aaaaaaaa", "bbbbbbbb"))
    with database.autocommit("leave two databases") as connection:
        for name in (left, used):
            sql.run(connection, "prove.make_database", sql.Scope({"database": name}))
    with session_named(database, "dbq-prove bbbbbbbb"):
        site.drop_left_databases(database, reported.append)
    with database.transaction("look", read_only=True) as connection:
        assert sql.values(connection, str, "prove.databases") == [used]
    assert reported == [f"An earlier proof left the database {left} behind: it is dropped."]
    site.drop_database(database, used)


def test_a_proof_that_begins_while_another_searches_keeps_its_database(
    place: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, used, values = place.database, "dbq_prove_bbbbbbbb_0", sql.values
    with ExitStack() as beside, monkeypatch.context() as meanwhile:

        def begin_behind(*of: Any) -> list[Any]:
            found = values(*of)
            if of[2] not in {"prove.databases", "bench.live_sessions"}:
                return found
            meanwhile.undo()
            beside.enter_context(session_named(database, "dbq-prove bbbbbbbb"))
            with database.autocommit("begin a proof") as connection:
                sql.run(connection, "prove.make_database", sql.Scope({"database": used}))
            return found

        meanwhile.setattr(sql, "values", begin_behind)
        site.drop_left_databases(database, lambda _: None)
        with database.transaction("look", read_only=True) as connection:
            assert sql.values(connection, str, "prove.databases") == [used]
        site.drop_database(database, used)


def test_the_database_is_dropped_after_an_error(place: Site) -> None:
    (setting,) = site.settings(place.database)
    with (
        pytest.raises(ZeroDivisionError),
        site.own_database(place.database, setting, "dbq_prove_cccccccc_0"),
    ):
        1 / 0  # noqa: B018
    with place.database.transaction("look", read_only=True) as connection:
        assert sql.values(connection, str, "prove.databases") == []


def test_a_code_that_does_not_exist_is_refused(place: Site) -> None:
    with pytest.raises(UsageError, match="held-lick"):
        asking.chosen("readpast,held-lick", place.database.product)
    assert asking.chosen("none", place.database.product) == ()


def test_questions_without_time_left_are_not_answered(place: Site) -> None:
    lines = list(asking._ask_in(place, HERE, time.monotonic()))
    assert {line.outcome for line in lines} == {Outcome.NOT_ANSWERED}
