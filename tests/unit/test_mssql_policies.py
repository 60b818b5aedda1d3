"""SQL Server hides rows by a security policy without a word: they are unknown, and not none."""

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from console import catalog
from console.actions import pop, push
from console.actions.message_action import deleted_along
from console.catalog import Kind, Queue, installed_queue
from console.catalog.decisions import CatalogContents
from console.catalog.relations import Column
from console.designs import DESIGNS
from console.doctor.diagnose import diagnose
from console.doctor.slot_map import read_slot_map
from console.engines import Database
from console.engines.mssql import PRODUCT
from console.engines.mssql.odbc import connection_string, target
from console.engines.standby import Standby
from console.errors import RefusedError, UsageError
from console.features.presets.adopt import preview
from console.monitor.consumer_watch import ClientRow, names_claims
from console.monitor.overdue import overdue
from console.monitor.rates import StatusRow
from console.monitor.sample import SessionsUsed, take_sample
from console.monitor.scan_query import MessageSource
from console.monitor.snapshot import snapshot
from console.rights import Login, Rights
from console.verbs import get_verb
from console.verbs.verb import Target
from tests.cli.calls import Console
from tests.unit.mssql_tools import ENTERPRISE, LABEL, SECRET, Odbc, open_mssql
from tests.unit.test_mssql_errors import numbered
from tests.unit.test_mssql_url import MICROSOFT

URL = f"mssql+pyodbc://somebody:{SECRET}@db.example/orders"
PERMITTED = f"{URL}?row_security=on"
WHY = "the security policy sec.only_mine may hide rows of app.TENANTS from this login"
PROBLEM = f"{WHY} (dbq-console help safety)"
NEXT = ("ALTER ANY SECURITY POLICY", "row_security=on")
OPTIONS = {"payload": "text", "max_bytes": "unlimited"}
RING = {
    "payload": "text",
    "max_bytes": "4000",
    "size": "100",
    "content": "slot",
    "in_hand": "off",
    "archive_at_pop": "off",
}
CATALOG = CatalogContents(
    present=True,
    version=1,
    audited=False,
    decided=True,
    identified=True,
    lakes=False,
    decisions_readable=False,
    guarded=True,
    runs=None,
)


def columns(row_type: type[Any]) -> tuple[str, ...]:
    return tuple(row_type.__dataclass_fields__)


STATUS = columns(StatusRow)


def installed(name: str, design: str = "claim") -> Queue:
    return installed_queue("app", name, DESIGNS[design], RING if design == "ring" else OPTIONS)


def adopted(name: str, table: str, design: str = "claim") -> Queue:
    roles = DESIGNS[design].roles
    return Queue("app", name, DESIGNS[design], {"table": table}, roles, kind=Kind.ADOPTED)


def serve(odbc: Odbc, queues: Sequence[Queue], *filtered: str) -> list[str]:
    """A server with these queues, and a policy on these tables; returns the statements' labels."""
    labels: list[str] = []
    rows = [
        {
            "schema": one.schema,
            "name": one.name,
            "design": one.design.name,
            "kind": one.kind,
            "options": json.dumps(dict(one.options)),
            "roles": json.dumps(dict(one.roles)),
            "version": one.version,
            "installed_by": "me",
            "installed_from": "here",
            "installed_at": None,
            "runs": None,
        }
        for one in queues
    ]
    state = {"incarnation": "since then", "sees_writers": False, "now": None}
    figures = [
        dict.fromkeys(STATUS)
        | {"schema": "app", "queue": one.name, "ready": 7 * (one.name == "other")}
        for one in queues
    ]
    found: dict[str, Any] = {
        "catalog.exists": [tuple(vars(CATALOG)), tuple(vars(CATALOG).values())],
        "catalog.queues": [tuple(rows[0]), *(tuple(row.values()) for row in rows)],
        "catalog.settings": [("name", "value")],
        "catalog.row_filters": [
            ("schema", "table", "policy"),
            *(("app", table, "sec.only_mine") for table in filtered),
        ],
        "server.capabilities": [tuple(vars(ENTERPRISE)), tuple(vars(ENTERPRISE).values())],
        "server.server_state": [tuple(state), tuple(state.values())],
        "server.standby": [columns(Standby)],
        "server.sessions_used": [columns(SessionsUsed), (None, 32_767)],
        "actions.server_time": [("server_time",), (datetime.now(UTC),)],
        "server.login_rights": [columns(Login), (True,) * len(columns(Login))],
        "activity.clients": [columns(ClientRow)],
        "catalog.columns": [columns(Column)],
        "monitor.status": [STATUS, *(tuple(row.values()) for row in figures)],
    }

    def answer(statement: str) -> Sequence[Any]:
        if (match := LABEL.match(statement)) is None:
            return []
        labels.append(match[1])
        return [found[match[1]]] if match[1] in found else []

    odbc.answer = answer
    return labels


@pytest.mark.parametrize(
    "queue",
    [
        *(installed("tenants", design) for design in ("claim", "ring", "fifo")),
        *(adopted("tenants", "Tenants", design) for design in ("claim", "fifo")),
    ],
    ids=lambda queue: f"{queue.kind} {queue.design.name}",
)
def test_figures_of_a_table_with_a_policy_are_unknown(
    odbc: Odbc, mssql: Database, queue: Queue
) -> None:
    """Whoever asks: the owner is filtered too. A queue beside it is counted."""
    serve(odbc, [queue, installed("other", "fifo")], "TENANTS")
    hidden, other = (snapshot(one, "orders") for one in take_sample(mssql).queues)
    assert (hidden.ready, hidden.claimed, hidden.age_seconds) == (None, None, None)
    assert hidden.problem == PROBLEM
    assert (other.ready, other.problem) == (7, "")


def test_the_tables_beside_the_main_one_count_and_others_do_not(
    odbc: Odbc, mssql: Database
) -> None:
    serve(odbc, [installed("tenants"), installed("other", "fifo")], "tenants_archive", "another")
    hidden, other = take_sample(mssql).queues
    assert hidden.problem == PROBLEM.replace("TENANTS", "tenants_archive")
    assert other.problem == ""


def test_nothing_else_is_sent_for_such_a_queue(odbc: Odbc, mssql: Database) -> None:
    labels = serve(odbc, [installed("tenants")], "TENANTS")
    take_sample(mssql)
    (diagnosis,) = diagnose(mssql)
    assert diagnosis.unseen == (PROBLEM,)
    assert not diagnosis.findings
    files = {label.partition(".")[0] for label in labels}
    assert files <= {"catalog", "server", "activity", "sessions", "roles"}, labels


def test_a_check_is_unknown_and_verbs_say_why(odbc: Odbc, tmp_path: Path) -> None:
    serve(odbc, [installed("tenants")], "TENANTS")
    theirs = Console(URL)
    (found,) = theirs.done("status", "tenants", "--json").json["queues"]
    assert (found["ready"], found["problem"]) == (None, PROBLEM)
    checked = theirs("check", "tenants")
    assert (checked.status, checked.text[:11]) == (1, "DBQ UNKNOWN")
    for words in (
        *(["messages", "tenants"], ["errors", "tenants"], ["stuck", "tenants"]),
        *(["release", "tenants"], ["purge", "tenants"], ["uninstall", "tenants"]),
        *(["pop", "tenants"], ["complete", "tenants", "1"], ["upgrade", "tenants"]),
        ["messages", "tenants", "--export", str(tmp_path / "all.jsonl")],
    ):
        theirs(*words).failed(4, WHY[1:], *NEXT)


@pytest.fixture
def filtered(odbc: Odbc, mssql: Database) -> Callable[[str], Queue]:
    """Looks up a queue of this design, whose table has a policy."""

    def look_up(design: str) -> Queue:
        serve(odbc, [installed("tenants", design)], "tenants", "tenants_data")
        return catalog.look_up(mssql, "tenants")

    return look_up


def test_what_reads_no_row_is_possible(filtered: Callable[[str], Queue], mssql: Database) -> None:
    """And a push, but into a ring: it would find its slot among the rows."""
    fifo, ring, claim = filtered("fifo"), filtered("ring"), filtered("claim")
    for verb in ("pause", "protect", "note", "doctor"):
        assert not get_verb(verb).unavailable(fifo)
    assert not get_verb("push").unavailable(fifo)
    push.require_interface(fifo)

    def overdue_of(queue: Queue) -> None:
        with mssql.transaction("look") as connection:
            overdue(connection, queue)

    for refused in (
        lambda: push.require_interface(ring),
        lambda: read_slot_map(mssql, ring),
        lambda: pop.pop(mssql, fifo, lambda _: None),
        lambda: pop.finish_claims(mssql, claim, [], pop.Finish.COMPLETE),
        lambda: MessageSource.installed(PRODUCT, fifo).check_visible(None),
        lambda: overdue_of(filtered("pending")),
        lambda: get_verb("relay").plan(Target(mssql, ring, Rights.ADMIN), {}),
    ):
        with pytest.raises(RefusedError) as error:
            refused()
        assert all(word in error.value.next_step for word in NEXT)
    assert not names_claims(claim, PRODUCT)
    assert get_verb("purge").unavailable(fifo).startswith("the security policy sec.only_mine")


def test_a_table_to_be_adopted_shows_no_part_of_its_rows(odbc: Odbc, mssql: Database) -> None:
    serve(odbc, [installed("other", "fifo")], "jobs")
    shown = preview(mssql, adopted("q", "jobs"))
    assert (shown.messages, shown.figures and shown.figures.ready) == ((), None)
    assert "sec.only_mine may hide rows of app.jobs" in shown.errors[0].why


def test_the_url_may_say_that_what_is_shown_is_wanted(odbc: Odbc) -> None:
    labels = serve(odbc, [installed("other", "fifo")], "other")
    with closing(open_mssql(PERMITTED)) as database:
        (found,) = take_sample(database).queues
    assert (found.row and found.row.ready, found.problem) == (7, "")
    assert "catalog.row_filters" not in labels
    passed = connection_string(target(database.url), MICROSOFT, "dbq-console")
    assert "row_security" not in passed


def test_row_security_is_on_or_off(odbc: Odbc) -> None:
    serve(odbc, [installed("other", "fifo")])
    database = open_mssql(f"{URL}?row_security=perhaps")
    with pytest.raises(UsageError, match="cannot be read") as error:
        take_sample(database)
    assert "on or off" in error.value.why
    with closing(open_mssql(f"{URL}?row_security=OFF")) as database:
        (found,) = take_sample(database).queues
    assert found.row


def test_what_the_server_changes_with_a_deleted_message_is_in_the_plan(
    odbc: Odbc, mssql: Database
) -> None:
    keys = [
        ("name", "of_table", "effect", "through", "of_messages"),
        ("FK_line", "dbo.line", "delete", "dbo.note", False),
        ("FK_note", "dbo.note", "delete", None, False),
        ("FK_seen", "dbo.seen", "default", None, False),
    ]
    triggers = [("name", "instead"), ("told", False), ("kept", True)]
    found = {"actions.cascades": keys, "actions.delete_triggers": triggers}

    def answer(statement: str) -> Sequence[Any]:
        match = LABEL.match(statement)
        return [found[match[1]]] if match and match[1] in found else []

    odbc.answer = answer
    source = MessageSource(PRODUCT, adopted("q", "jobs"), "text", "bigint")
    with mssql.session("plan", read_only=True) as session:
        lines, obstacles = deleted_along(session, source)
    assert lines == [
        "with each the server deletes the rows of dbo.line that refer to those of dbo.note: "
        "FK_line",
        "with each the server deletes the rows of dbo.note that refer to it: FK_note",
        "with each the server sets the reference of the rows of dbo.seen that refer to it to its "
        "default: FK_seen",
        "the server runs its DELETE triggers: told, kept (instead of the delete)",
    ]
    assert not obstacles


def test_a_write_that_a_block_predicate_refuses_says_what_to_do() -> None:
    text = "The target object 'jobs' has a block predicate that conflicts with this operation."
    error = numbered(33504, text)
    assert text in error.why
    assert "ALTER ANY SECURITY POLICY" in error.next_step
