"""The questions of `prove` that only SQL Server can answer, on a stand-in for its driver: what is
sent in which order, that each can be false, that a refusal is no answer, and that the proof's
databases are dropped."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import console
from console.actions.pop import PoppedMessage
from console.catalog import Queue, installed_queue
from console.designs import DESIGNS, Design, designs_on
from console.engines import Database
from console.engines.mssql.capabilities import capabilities_of
from console.engines.product import Capabilities
from console.errors import BusyError, ConsoleError, RefusedError
from console.features.prove import (
    asking,
    broker_questions,
    lock_questions,
    number_questions,
    role_questions,
    run,
    session_questions,
    site,
)
from console.features.prove.questions import try_question
from console.features.prove.site import Site
from console.features.prove.trial import Line, Outcome, Trial, require
from tests.unit.mssql_tools import ENTERPRISE, LABEL, Error, Odbc

HERE = {question.code: question for question in asking.QUESTIONS}
TEXT = "[{}] [Microsoft][ODBC Driver 18 for SQL Server][SQL Server]{} ({}) (SQLExecDirectW)"


def failure(number: int, text: str = "Something.", state: str = "42000") -> Error:
    return Error(state, TEXT.format(state, text, number))


LEVEL = failure(51002, "The session is at isolation level SERIALIZABLE or SNAPSHOT.|Why.|Next.")
LOCKED = failure(1222, "Lock request time out period exceeded.")
REFUSED = failure(229, "The EXECUTE permission was denied on the object.")
CANCELLED = Error("HYT00", "[HYT00] [Microsoft][ODBC Driver 18 for SQL Server]Query timeout (0)")
POPPED = (("id", "payload", "pushed_at", "attempts"), ("1", "0", "2026-01-01", 1))


def rows(columns: str, *values: object) -> list[Any]:
    """One row."""
    return [(tuple(columns.split()), values)]


class StubTrial(Trial):
    """A queue that behaves, so that the statements of a question decide."""

    left: Sequence[int] = ()
    """What a transaction that was rolled back has left, against all promises."""

    def push(self, count: int) -> list[int]:
        first, self._next = self._next, self._next + count
        return list(range(first, first + count))

    def pop(self, n: int, by: Queue | None = None) -> list[PoppedMessage]:  # noqa: ARG002
        return [PoppedMessage(str(number), "", None, 1) for number in range(n - 1)]  # type: ignore[arg-type]

    def figures(self) -> Any:
        return SimpleNamespace(next_push=1)

    def require_drained(self, expected: Sequence[int]) -> list[PoppedMessage]:
        require(not (self.left and not expected), f"{self.left} should not be there")
        return []

    def require_these(self, came: Sequence[int], expected: Sequence[int]) -> None:
        """As promised."""

    def numbers(self, messages: Sequence[PoppedMessage]) -> list[int]:
        return list(range(len(messages)))


Answers = dict[str, Any]
NORMAL: Answers = {
    "common.push": rows("id", "1"),
    "common.push_many": [(("id",), ("1",), ("2",), ("3",))],
    "common.pop": [POPPED],
    "prove.session": rows("session", "57"),
    "prove.roles_exist": rows("roles_exist", True),
    "prove.settings": rows("session isolation lock_timeout", "57", "2", "10000"),
    "prove.error_state": rows("error transactions", 0, 1),
    "prove.optimized_locking": rows("switched_on", True),
    "prove.conversation": rows("conversation", "a handle"),
    "catalog.relations": [(("name", "kind"),)],
}


@dataclass
class Case:
    """Answers that make a question true and false, and the statements that it sends."""

    true: Answers
    false: list[Answers]
    sent: str


def by_member(odbc: Odbc, role: str, otherwise: list[Any], refused: Error) -> list[Any]:
    """Another answer for a member of that role."""
    became = [text for text in odbc.sent if "EXECUTE AS USER" in text]
    return [refused] if f"_{role}'" in became[-1] else otherwise


ENDED = rows("ended", 1)
DONE = rows("acted", True)


def third_push_cancelled(odbc: Odbc) -> list[Any]:
    """The first two are the caller's own, into another queue."""
    every = [match[1] for text in odbc.sent if (match := LABEL.search(text))]
    ends = ("prove.error_state", "prove.lock_table")
    last = max(at for at, name in enumerate(every) if name in ends)
    return [CANCELLED] if every[last:].count("common.push") == 3 else NORMAL["common.push"]


CANCELLED_CALLS: Answers = {
    "common.push": third_push_cancelled,
    "common.pop": [CANCELLED],
    "common.push_many": [CANCELLED],
    "common.complete": [CANCELLED],
    "common.fail": [CANCELLED],
    "prove.pop_one": [CANCELLED],
}
HEALTH = (
    "is_receive_enabled is_enqueue_enabled broker_enabled conversations transmission "
    "transmission_status"
)
HEALTHY = rows(HEALTH, True, True, True, None, None, None)


def calls_of(of: Design) -> list[str]:
    """Those that the question about cancelled calls makes, with the labels of their statements."""
    finish = ["complete", "fail"] if of.keeps_row else []
    return ["push", "push_many", "pop_one", "pop", *finish]


def sent(odbc: Odbc, name: str) -> int:
    """How many statements of that name were sent."""
    return sum(f"/* dbq {name} */" in text for text in odbc.sent)


def disabled_after_five(odbc: Odbc) -> list[Any]:
    enabled = sent(odbc, "common.pop") < 5 or bool(sent(odbc, "broker.enable"))
    return rows(HEALTH, enabled, True, True, None, None, None)


def endpoints(*found: tuple[str, str]) -> list[Any]:
    return [(("side", "state"), *found)]


def states_by_what_was_sent(odbc: Odbc) -> list[Any]:
    """Kept by the session, ended by its other side, then replaced by the next push."""
    if not sent(odbc, "prove.end_conversation"):
        return endpoints(("initiator", "CO"), ("target", "CO"))
    if sent(odbc, "common.push") < 3:
        return endpoints(("initiator", "DI"), ("target", "CD"))
    return endpoints(("initiator", "CD"), ("initiator", "CO"), ("target", "CO"))


def left_open(odbc: Odbc) -> list[Any]:
    """The next push begins another one and does not end the old one."""
    if sent(odbc, "common.push") < 3:
        return states_by_what_was_sent(odbc)
    return endpoints(("initiator", "DI"), ("initiator", "CO"), ("target", "CO"))


def archived_when_enabled(odbc: Odbc) -> list[Any]:
    return rows("held", 3 if sent(odbc, "prove.activate") else 0)


CALLER = "make_caller impersonate push_many revert revert"
CASES = {
    "execute-alone": Case(
        {},
        [
            {"common.push_many": [REFUSED]},
            {"common.push_many": [(("id",), ("3",), ("1",), ("2",))]},
            {"common.push_many": [(("id",), ("1",), (None,), (None,))]},
        ],
        " ".join([CALLER] * 3),
    ),
    "performance-state": Case(
        {"prove.visible": rows("sessions connections texts locks requests", 1, 1, 1, 4, 9)},
        [
            {"prove.visible": rows("sessions connections texts locks requests", 1, 1, 1, 0, 9)},
            {"prove.visible": rows("sessions connections texts locks requests", 0, 1, 1, 4, 9)},
            {"prove.visible": [failure(4711)]},
            {"prove.visible": [failure(300, "VIEW SERVER STATE permission was denied.")]},
        ],
        "push session make_watcher impersonate_login visible revert revert",
    ),
    "no-escalation": Case(
        {"prove.table_locks": rows("locks", 0)},
        [{"prove.table_locks": rows("locks", 1)}],
        "allow_escalation delete_most table_locks",
    ),
    "smaller-cache": Case(
        {"next": (4, 4, 5)}, [{"next": (4, 54, 55)}, {"next": (4, 4, 55)}], "shrink_cache"
    ),
    "login-time": Case(
        {"prove.login_times": rows("seen later", 9, 0)},
        [{"prove.login_times": rows("seen later", 9, 2)}],
        "login_times",
    ),
    "error-after-batch": Case(
        {
            "prove.does_not_compile": [failure(207)],
            "prove.error_state": rows("error transactions", 207, 1),
        },
        [{"prove.does_not_compile": [failure(207)]}, {"prove.does_not_compile": [None]}],
        "does_not_compile error_state",
    ),
    "release-unheld": Case(
        {"prove.release_unheld": [failure(1223)]},
        [{"prove.release_unheld": [None]}, {"prove.release_unheld": [failure(4711)]}],
        "release_unheld error_state",
    ),
    "table-lock": Case(
        {"prove.lock_partitions": rows("partitions schedulers", 16, 16)},
        [
            {"prove.lock_partitions": rows("partitions schedulers", 1, 16)},
            {"prove.lock_partitions": rows("partitions schedulers", 0, 4)},
        ],
        "lock_table lock_partitions",
    ),
    "refused-levels": Case(
        {"common.push": [LEVEL], "common.pop": [LEVEL]},
        [
            {"common.push": [LOCKED], "common.pop": [LEVEL]},
            {"common.push": [LEVEL], "common.pop": [LOCKED]},
            {"common.push": [LEVEL]},
            {"common.push": [failure(4711)], "common.pop": [LEVEL]},
        ],
        " ".join(["lock_table push pop push pop"] * 4),
    ),
    "describe": Case(
        {"prove.described": rows("error", 11520)},
        [{"prove.described": rows("error", 0)}],
        "described",
    ),
    "own-row": Case(
        {"prove.own_row": rows("rows_seen", 1)},
        [{"prove.own_row": rows("rows_seen", 0)}],
        "impersonate own_row revert",
    ),
    "index-zero": Case(
        {"prove.physical_stats": rows("of_zero of_index", 0, 2)},
        [
            {"prove.physical_stats": rows("of_zero of_index", 1, 2)},
            {"prove.physical_stats": rows("of_zero of_index", 0, 0)},
        ],
        "physical_stats",
    ),
    "attention": Case(
        CANCELLED_CALLS,
        [
            {**CANCELLED_CALLS, "prove.pop_one": [None]},
            *(
                {**CANCELLED_CALLS, f"common.{name}": NORMAL[f"common.{name}"]}
                for name in ("push", "push_many", "pop")
            ),
            *({**CANCELLED_CALLS, f"common.{name}": DONE} for name in ("complete", "fail")),
            # A transaction that is gone, and half of what it did is not.
            {**CANCELLED_CALLS, "prove.error_state": rows("error transactions", 0, 0), "left": [0]},
        ],
        " ".join(
            " ".join(f"push push {call} error_state" for call in calls_of(of)).join(
                ["lock_table ", ""]
            )
            for of in designs_on("mssql").values()
            if not of.waits_itself
        ),
    ),
    "conversations": Case(
        {
            "prove.end_conversation": lambda odbc: by_member(odbc, "reader", ENDED, REFUSED),
            "broker.health": disabled_after_five,
        },
        [
            {"prove.end_conversation": ENDED, "broker.health": disabled_after_five},
            {"prove.end_conversation": [REFUSED], "broker.health": disabled_after_five},
            {"common.pop": [(POPPED[0],)]},
            {"broker.health": HEALTHY},
        ],
        " ".join(
            [
                *["pop"] * 5,
                "health health enable conversation",
                "roles_exist make_member impersonate end_conversation revert",
                "roles_exist make_member impersonate end_conversation revert revert",
            ]
        ),
    ),
    "conversation-states": Case(
        {"prove.conversation_states": states_by_what_was_sent, "prove.end_conversation": ENDED},
        [
            {"prove.conversation_states": endpoints(("initiator", "ER"))},
            {"prove.conversation_states": endpoints(("target", "CO"))},
            {
                "prove.conversation_states": endpoints(("initiator", "CO")),
                "prove.end_conversation": ENDED,
            },
            {"prove.conversation_states": left_open, "prove.end_conversation": ENDED},
        ],
        "push push conversation_states conversation end_conversation conversation_states "
        "conversation_states push conversation_states conversation_states",
    ),
    "activation": Case(
        {"prove.count_rows": archived_when_enabled},
        [{"prove.count_rows": rows("held", 3)}, {"prove.count_rows": rows("held", 0)}],
        "count_rows activate count_rows count_rows deactivate",
    ),
    "session-settings": Case(
        {"prove.identity_then_wait": [CANCELLED]},
        [
            {"prove.identity_then_wait": [None]},
            {"prove.identity_then_wait": [CANCELLED], "prove.identity_of_another": [failure(8107)]},
        ],
        "settings settings identity_then_wait settings identity_of_another",
    ),
    "open-transaction": Case(
        {"script": [failure(50000, "Nothing was done.")]},
        [
            {"script": [None]},
            {
                "script": [failure(50000, "Nothing was done.")],
                "prove.error_state": rows("error transactions", 0, 0),
            },
            {
                "script": [failure(50000, "Nothing was done.")],
                "catalog.relations": [(("name", "kind"), ("q_2", "table"))],
            },
        ],
        "push error_state relations",
    ),
}
"""Code of each question that SQL Server alone can answer."""


def labels(odbc: Odbc) -> list[str]:
    """The names of what was sent, of the queue's calls and of the proof."""
    every = (LABEL.search(text) for text in odbc.sent)
    names = [match[1] for match in every if match]
    return [name.partition(".")[2] for name in names if not name.startswith("bench")]


def answers(odbc: Odbc, given: Answers) -> Callable[[str], Sequence[Any]]:
    every = {**NORMAL, **given}

    def answer_of(batch: str) -> Sequence[Any]:
        match = LABEL.search(batch)
        name = match[1] if match else "script" if "dbq-console: " in batch else ""
        found = every.get(name, [None])
        return list(found(odbc) if callable(found) else found)

    return answer_of


@pytest.fixture
def place(mssql: Database, monkeypatch: pytest.MonkeyPatch) -> Site:
    vars(mssql)["capabilities"] = capabilities_of(ENTERPRISE)

    def trial(self: Site, design: str, **options: str) -> Trial:
        of = DESIGNS[design]
        chosen = of.complete_options(options, "mssql")
        return StubTrial(self.database, installed_queue("dbo", "q", of, chosen))

    monkeypatch.setattr(Site, "trial", trial)
    return Site(mssql, "dbo", "here", "0123abcd", print, own=True, roles=True)


def outcome(code: str, given: Answers, place: Site, odbc: Odbc, patch: pytest.MonkeyPatch) -> Line:
    patch.setattr(session_questions, "relay", lambda *_: None)
    patch.setattr(broker_questions, "_SOON_SECONDS", 0.0)
    patch.setattr(StubTrial, "left", given.get("left", ()))
    numbers = iter(given.get("next", (4, 4, 5)))
    patch.setattr(number_questions, "_next_push", lambda _: next(numbers))
    odbc.sent.clear()
    odbc.answer = answers(odbc, given)
    return try_question(HERE[code], place)


@pytest.mark.parametrize("code", CASES)
def test_a_question_sends_its_statements_in_order_and_is_proven(
    code: str, place: Site, odbc: Odbc, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = outcome(code, CASES[code].true, place, odbc, monkeypatch)
    expected = Outcome.NOT_APPLICABLE if code == "login-time" else Outcome.PROVEN
    assert line.outcome is expected, line
    assert " ".join(labels(odbc)) == CASES[code].sent


@pytest.mark.parametrize(
    ("code", "number"),
    [(code, number) for code, case in CASES.items() for number in range(len(case.false))],
)
def test_an_answer_of_another_kind_makes_it_false(
    code: str, number: int, place: Site, odbc: Odbc, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = outcome(code, CASES[code].false[number], place, odbc, monkeypatch)
    assert line.outcome is Outcome.FAILED, line


NOT_OF_THE_PROOF = {"push", "pop", "revert", "health", "enable"}


@pytest.mark.parametrize("code", sorted(CASES.keys() - {"attention"}))
def test_a_refusal_is_no_answer(
    code: str, place: Site, odbc: Odbc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a statement of the proof itself: of what a question is about, it is the answer."""
    own = [name for name in CASES[code].sent.split() if name not in NOT_OF_THE_PROOF]
    given = {**CASES[code].true, f"prove.{own[0]}": [REFUSED]}
    if code in {"error-after-batch", "release-unheld"}:
        given = {**CASES[code].true, "prove.error_state": [REFUSED]}
    line = outcome(code, given, place, odbc, monkeypatch)
    assert line.outcome in {Outcome.NOT_ANSWERED, Outcome.NOT_APPLICABLE}, line
    assert "permission was denied" in line.evidence


def test_each_question_of_sql_server_has_a_case() -> None:
    alone = {code for code, question in HERE.items() if question.engines == ("mssql",)}
    assert alone <= CASES.keys()


def test_every_question_is_for_sql_server() -> None:
    assert {"mssql"} <= set.intersection(*(set(one.engines) for one in asking.QUESTIONS))
    assert len({one.claim for one in asking.QUESTIONS}) == len(asking.QUESTIONS)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConsoleError("Could not.", why="Invalid length (537)"), Outcome.FAILED),
        (RefusedError("Could not.", why="No right."), Outcome.NOT_ANSWERED),
        (BusyError("Could not.", why="It took too long."), Outcome.NOT_ANSWERED),
    ],
)
def test_an_error_of_the_list_of_sessions_makes_held_lock_false(
    place: Site, odbc: Odbc, monkeypatch: pytest.MonkeyPatch, error: ConsoleError, expected: Outcome
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(lock_questions, "find_objects", lambda *_: None)
    monkeypatch.setattr(lock_questions, "sample_activity", fail)
    odbc.answer = answers(odbc, {})
    line = try_question(HERE["held-lock"], place)
    assert (line.outcome, error.why in line.evidence) == (expected, True), line
    assert labels(odbc) == ["session", "hold_lock"]
    assert "longer than 32 characters" in " ".join(odbc.sent)


def test_with_fewer_processors_table_lock_does_not_apply(place: Site, odbc: Odbc) -> None:
    odbc.answer = answers(odbc, {"prove.lock_partitions": rows("partitions schedulers", 1, 4)})
    line = try_question(HERE["table-lock"], place)
    assert (line.outcome, "4 schedulers" in line.evidence) == (Outcome.NOT_APPLICABLE, True)


def test_before_2022_performance_state_does_not_apply(place: Site) -> None:
    old = capabilities_of(replace(ENTERPRISE, version_number=150_004_000))
    vars(place.database)["capabilities"] = old
    line = try_question(HERE["performance-state"], place)
    assert (line.outcome, "2022" in line.evidence) == (Outcome.NOT_APPLICABLE, True)


def test_the_members_of_each_role_are_what_the_console_says_they_may(
    place: Site, odbc: Odbc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member of a database's role may not end sessions: that is a right of the server's."""
    said = iter((True, False, False, False))

    def login_can(*_: object) -> SimpleNamespace:
        return SimpleNamespace(ends_sessions=next(said))

    monkeypatch.setattr(role_questions, "login_can", login_can)
    monkeypatch.setattr(role_questions, "_ends_session", lambda *_, says: str(says))
    odbc.answer = answers(odbc, {})
    line = try_question(HERE["ends-sessions"], place)
    assert line.evidence == "True; False; False; False"
    became = [text for text in odbc.sent if "NO REVERT" in text]
    assert [text.partition("dbq_prove_0123abcd_")[2].partition("'")[0] for text in became] == [
        "reader",
        "operator",
        "admin",
    ]


def where(database: Database) -> Capabilities:
    """Each connection leads to the database that its URL names."""
    name = str(database.url.database)
    return capabilities_of(replace(ENTERPRISE, version_number=170_000_000, database=name))


def databases(odbc: Odbc) -> list[str]:
    """What was done to databases, in order."""
    words = ("CREATE DATABASE", "SINGLE_USER", "SET READ_COMMITTED", "OPTIMIZED_LOCKING", "COLLATE")
    return [word for text in odbc.sent for word in words if word in text]


@pytest.fixture
def asks(mssql: Database, odbc: Odbc, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Line]]:
    """Asks one question, which says in which database it is."""
    monkeypatch.setattr(site, "prepare_roles", lambda *_: True)
    monkeypatch.setattr(Database, "capabilities", property(where))
    monkeypatch.setattr(site, "drop_left_databases", lambda *_: None)

    def ask(say: Callable[[Site], str], given: Answers | None = None) -> list[Line]:
        odbc.sent.clear()
        odbc.answer = answers(odbc, given or {})
        question = replace(HERE["readpast"], ask=say)
        late = time.monotonic() + 60.0
        return list(asking.ask(mssql, "queues", [question], "0123abcd", late, print))

    return ask


def test_each_setting_has_a_database_that_is_dropped(
    asks: Callable[..., list[Line]], odbc: Odbc
) -> None:
    lines = asks(lambda here: str(here.database.url.database))
    assert [(line.design, line.evidence) for line in lines] == [
        ("row versions off", "dbq_prove_0123abcd_0"),
        ("row versions on", "dbq_prove_0123abcd_1"),
        ("case-sensitive collation", "dbq_prove_0123abcd_2"),
        ("optimized locking", "dbq_prove_0123abcd_3"),
    ]
    made, off = ["CREATE DATABASE"], "SET READ_COMMITTED"
    assert databases(odbc) == [
        *(*made, off, "SINGLE_USER"),
        *(*made, off, off, "SINGLE_USER"),
        *(*made, "COLLATE", off, "SINGLE_USER"),
        *(*made, off, off, "OPTIMIZED_LOCKING", "SINGLE_USER"),
    ]


def test_a_database_is_dropped_after_an_error_and_after_an_interrupt(
    asks: Callable[..., list[Line]], odbc: Odbc
) -> None:
    def interrupted(_: Site) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asks(interrupted)
    assert databases(odbc)[::2] == ["CREATE DATABASE", "SINGLE_USER"]
    # What is made in part too, if a setting fails.
    lines = asks(lambda _: "seen", {"prove.set_row_versions": [failure(5061)]})
    assert [line.outcome.value for line in lines] == [
        "proven",
        "not answered",
        "proven",
        "not answered",
    ]
    assert databases(odbc).count("CREATE DATABASE") == databases(odbc).count("SINGLE_USER") == 4


def test_without_the_right_the_operators_database_serves_and_nothing_is_dropped(
    asks: Callable[..., list[Line]], odbc: Odbc
) -> None:
    denied = failure(262, "CREATE DATABASE permission denied in database 'master'.")
    lines = asks(lambda here: str(here.own), {"prove.make_database": [denied]})
    assert [(line.design, line.evidence) for line in lines] == [(site.OPERATORS, "False")]
    assert databases(odbc) == ["CREATE DATABASE"]


def test_a_connection_that_leads_elsewhere_is_not_used_as_the_proofs_own(
    asks: Callable[..., list[Line]], odbc: Odbc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A URL's query may name a database too: 70 queues would stay there."""
    monkeypatch.setattr(Database, "capabilities", property(lambda _: capabilities_of(ENTERPRISE)))
    lines = asks(lambda here: str(here.own))
    assert [(line.design, line.evidence) for line in lines] == [(site.OPERATORS, "False")]
    assert databases(odbc).count("SINGLE_USER") == 1


@pytest.mark.parametrize("edition", [5, 12])
def test_in_the_cloud_no_database_is_made(mssql: Database, edition: int) -> None:
    """There each one costs money."""
    vars(mssql)["capabilities"] = capabilities_of(replace(ENTERPRISE, engine_edition=edition))
    assert "costs money" in site.why_no_database(mssql)


def test_the_report_can_be_read_without_this_project(place: Site, odbc: Odbc) -> None:
    odbc.answer = answers(odbc, {"prove.table_locks": rows("locks", 1)})
    lines = [try_question(HERE["no-escalation"], replace_label(place, label)) for label in "ab"]
    odbc.answer = answers(odbc, {"prove.table_locks": rows("locks", 0)})
    lines[1] = try_question(HERE["no-escalation"], replace_label(place, "b"))
    report = run.Report("here", "SQL Server 16", "dbo", datetime.now(UTC), 1.0, lines)
    text = "\n".join(report.markdown)
    question = HERE["no-escalation"]
    for words in (
        f"### no-escalation: {question.claim}",
        f"- Why it was asked: {question.leans}.",
        "- Seen in a: **failed**: after 4,000 rows",
        "- Seen in b: proven: 4,000 rows",
        f"- What follows: **False here**: {question.otherwise}.",
    ):
        assert words in text
    assert not report.ok


def replace_label(place: Site, label: str) -> Site:
    return replace(place, label=label)


def test_the_workflow_keeps_to_a_database_of_its_own() -> None:
    """From SQL Server 2017 on, as each role, with its reports kept; nothing runs in master."""
    text = (Path(console.__path__[0]).parent / ".github/workflows/mssql.yml").read_text()
    runs = re.sub(r"#.*", "", text)
    assert "/orders?" in runs
    assert not re.search(r"\bmaster\b", runs)
    for words in ('"2017", "2019", "2022", "2025"', "upload-artifact", "dbq_ci_operator", "prove"):
        assert words in runs
