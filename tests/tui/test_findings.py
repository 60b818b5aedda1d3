"""Findings on the overview and in their dialog: what is shown, and how one is repaired."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from console.actions.install import install
from console.actions.pop import pop_many
from console.actions.push import push_many
from console.catalog import Queue, installed_queue
from console.designs import design
from console.doctor.claims import GONE
from console.doctor.finding import Code, Diagnosis, Finding
from console.engines import Database, open_database
from console.errors import RefusedError
from console.monitor.limits import DEFAULTS, Severity
from console.monitor.owners import Holder
from console.monitor.sampler import Reading, Sampler
from console.monitor.snapshot import QueueSnapshot
from console.plan import Plan
from console.rights import Rights
from console.tui import ConsoleApp
from console.tui.context import Setup
from console.tui.dialogs.finding import FindingDialog
from console.tui.open_connection import OpenConnection
from console.tui.screens.form import Stage
from console.tui.screens.planned import ActionScreen
from console.tui.screens.queue import QueueScreen
from console.tui.store import Store
from console.tui.tabs.findings import FindingsTab, FindingsTable
from console.verbs.verb import Target
from tests.tui.feeds import queue
from tests.tui.opened import Opened, conn, opened, picture, threads_ended
from tests.tui.test_lists import exported

pytestmark = pytest.mark.slow

CRITICAL = Code("orphan", Severity.CRITICAL, "")
WARNING = Code("claims_gone", Severity.WARNING, "")
NOTE = Code("bloat", Severity.NOTE, "")
NOW = datetime(2026, 3, 29, 2, 14, 7, tzinfo=UTC)


@dataclass
class FakeRepair:
    """Only its form's screen may plan it."""

    queue: Queue
    rights: Rights = Rights.OPERATOR
    verb: str = "release"
    texts: Mapping[str, str] = field(default_factory=lambda: {"unknown": "yes"})
    summary: str = "release [bold] of them"
    command: str = "dbq-console release mail"
    unattended: bool = True

    def plan(self, target: Target) -> Plan:
        raise AssertionError(target)


def a_queue(name: str, kind: str = "claim") -> Queue:
    found = design(kind, "postgresql")
    given = {"consumers": "direct"} if found.has_option("consumers") else {}
    return installed_queue("public", name, found, found.complete_options(given))


def diagnosis(name: str, *findings: Finding, unseen: Sequence[str] = ()) -> Diagnosis:
    return Diagnosis(a_queue(name), findings, tuple(unseen))


def finding(
    code: Code,
    summary: str = "something",
    *,
    minutes: float | None = None,
    repair: FakeRepair | None = None,
    evidence: Mapping[str, object] | None = None,
) -> Finding:
    since = None if minutes is None else NOW - timedelta(minutes=minutes)
    return Finding(code, summary, evidence or {}, "its cause", "what comes of it", since, repair)


async def show_diagnoses(console: Opened, *diagnoses: Diagnosis, name: str = "prod-orders") -> None:
    """Add the doctor's diagnoses, and draw them."""
    store = console.app.context.store
    now = console.clock.now
    store.add_diagnoses(name, diagnoses, now, NOW, next_seconds=30.0)
    console.overview.draw()
    await console.pilot.pause()


def rows(console: Opened) -> list[str]:
    """The findings as they are drawn."""
    table = console.overview.query_one(FindingsTable)
    return [table.render_line(y).text for y in range(table.size.height)] if table.display else []


def dialog(console: Opened) -> FindingDialog:
    return console.on_top(FindingDialog)


async def test_findings_are_ordered_by_severity_then_repairable_then_oldest() -> None:
    async with opened(size=(160, 48)) as console:
        names = ("mail", "bills", "late")
        await console.give(queue("orders", "ring"), *map(queue, names))
        await show_diagnoses(
            console,
            diagnosis("mail", finding(WARNING, "stuck", minutes=3), finding(NOTE, "bloated")),
            diagnosis(
                "late",
                finding(WARNING, "repairable", minutes=1, repair=FakeRepair(a_queue("mail"))),
            ),
            diagnosis("bills", finding(WARNING, "held", minutes=40)),
            diagnosis(
                "orders", finding(CRITICAL, "21 orphans", repair=FakeRepair(a_queue("mail")))
            ),
        )
        shown = rows(console)
        assert [line.split()[:2] for line in shown] == [
            ["✖", "orders"],
            ["!", "late"],
            ["!", "bills"],
            ["!", "mail"],
        ]
        assert "release [bold] of them" in shown[0]
        assert "40 min" in shown[2]
        assert "✖ 1 critical  ! 3 warnings" in console.text_of("#summary")
        assert "bloated" not in console.picture
        assert console.row("orders")["state"] == "✖"


async def test_a_finding_of_the_figures_is_not_repeated_beside_the_doctors() -> None:
    async with opened() as console:
        mail = queue("mail", "claim", claimed=20, stuck=14, errors=16)
        await console.give(mail)
        assert len(rows(console)) == 2
        limit = finding(
            Code("limit_reached", Severity.WARNING, ""),
            "15 in error",
            evidence={"figure": "errors"},
        )
        await show_diagnoses(
            console, diagnosis("mail", finding(WARNING, "14 claims", minutes=1), limit)
        )
        shown = rows(console)
        assert len(shown) == 2
        assert "14 claims" in shown[0]
        # The present figure, not the one that the doctor saw.
        assert "6 in error" in shown[1]
        await console.give(replace(mail, claimed=0, stuck=0, errors=0))
        assert "FINDINGS" not in console.text_of("#summary")


async def test_all_clear_is_shown_only_after_every_queue_was_examined() -> None:
    async with opened() as console:
        console.app.context.store.expect_doctor("prod-orders")
        await console.give(queue("mail"), queue("bills"))
        assert "nothing wrong in the figures; the doctor is at work" in console.text_of("#summary")
        await show_diagnoses(console, diagnosis("mail"))
        assert "all clear" not in console.text_of("#summary")
        await show_diagnoses(console, diagnosis("bills", unseen=["claims: permission denied\nx"]))
        assert "not examined: bills: claims: permission" in console.text_of("#summary")
        await show_diagnoses(console, diagnosis("bills", finding(NOTE)))
        assert "all clear" in console.text_of("#summary")
        console.clock.now += 200
        await console.give(queue("mail"), queue("bills"))
        assert "the doctor has not run for 3 min 20 s" in console.text_of("#summary")
        store = console.app.context.store
        error = RefusedError("Could not look.", why="too many connections")
        store.add_diagnoses("prod-orders", [], console.clock.now, NOW, error=error)
        for errors in (0, 10):
            await console.give(queue("mail", errors=errors), queue("bills"))
            assert "the doctor failed: to" in console.text_of("#summary")
        console.feed.fail()
        await console.pilot.pause()
        assert "clear" not in console.text_of("#summary")
        assert "lost" in rows(console)[0]


async def test_a_failed_doctor_is_shown_with_the_name_of_its_connection() -> None:
    async with opened("orders", "mail") as console:
        store = console.app.context.store
        for name, feed in zip(("orders", "mail"), console.feeds, strict=True):
            store.expect_doctor(name)
            feed.give(queue("q"))
        error = RefusedError("Could not look.", why="too many connections")
        store.add_diagnoses("mail", [], console.clock.now, NOW, error=error)
        await console.give(queue("q"))
        assert "the doctor failed on mail: too many" in console.text_of("#summary")


async def test_findings_fill_rows_that_queues_leave_free_and_the_rest_is_counted() -> None:
    async with opened() as console:
        names = [f"q{number}" for number in range(13)]
        await console.give(*(queue(name, errors=10) for name in names))
        assert len(rows(console)) == 4
        assert "Tab ↓9" in console.text_of("#summary")
        for name in names:
            assert f" {name} " in "\n".join(console.picture.splitlines()[6:])
        await console.press("tab", "G")
        view = console.overview.query_one(FindingsTable).row
        assert view is not None
        assert view.label in rows(console)[-1]
        console.clock.now += 6  # it is not read any more
        # No row is hidden while others are empty.
        await console.give(queue("q0"))
        findings = [finding(WARNING, f"of q0 {number}", minutes=number) for number in range(1, 31)]
        for shown in (findings[:7], findings):
            await show_diagnoses(console, diagnosis("q0", *shown))
            for _ in range(3):
                console.overview.draw()
                await console.pilot.pause()
            assert ("Tab" in console.text_of("#summary")) == (shown is findings)
        assert console.table.size.height == 1 + console.table.HEADER_LINES, "empty rows"
        assert f"Tab ↓{30 - len(rows(console))}" in console.text_of("#summary")
        await console.press("tab", "G")
        assert "of q0 1 " in rows(console)[-1]


async def test_tab_goes_to_the_findings_and_back_and_the_cursor_stays_on_its_finding() -> None:
    async with opened() as console:
        await console.give(queue("a"), queue("b"), queue("c"))
        minutes = {"a": 3, "b": 2, "c": 1}
        found = {name: finding(WARNING, f"of {name}", minutes=m) for name, m in minutes.items()}
        await show_diagnoses(console, *(diagnosis(name, one) for name, one in found.items()))
        await console.press("tab", "j")
        table = console.overview.query_one(FindingsTable)
        assert table.has_focus
        assert table.row is not None
        assert table.row.label == "b"
        assert "of b" in console.text_of("#detail")
        await show_diagnoses(console, diagnosis("c", finding(CRITICAL, "now grave", minutes=9)))
        assert "of a" in rows(console)[0], "no line moves while it is read"
        console.clock.now += 6
        console.overview.draw()
        assert "now grave" in rows(console)[0]
        assert table.row.label == "b"
        await console.press("tab")
        assert console.app.focused is console.table


@asynccontextmanager
async def open_finding(repair: FakeRepair) -> AsyncIterator[Opened]:
    """The open dialog of a finding with a repair."""
    async with opened(connections=[conn("prod-orders", Rights.OPERATOR)]) as console:
        await console.give(queue("mail", "claim", claimed=4, stuck=4))
        await show_diagnoses(
            console, diagnosis("mail", finding(WARNING, "4 claims", minutes=3, repair=repair))
        )
        await console.press("tab", "enter")
        dialog(console)
        yield console


async def test_a_repair_is_planned_on_the_screen_of_its_verb() -> None:
    async with open_finding(FakeRepair(a_queue("mail"))) as console:
        console.shows("release [bold] of them", "r shows the plan")
        await console.press("r")
        screen = console.app.screen
        assert isinstance(screen, ActionScreen)
        assert (screen.verb.name, screen.key) == ("release", ("prod-orders", "public", "mail"))
        await console.press("escape")
        dialog(console)
        await console.until(lambda: "examining it again" in console.picture)
        console.clock.now += 1
        await show_diagnoses(console, diagnosis("mail", finding(WARNING, "2 claims")))
        await console.until(lambda: "still finds: 2 claims" in console.picture)
        console.clock.now += 1
        await show_diagnoses(console, diagnosis("mail"))
        await console.until(lambda: "no longer finds it" in console.picture)
        await console.press("escape")
        assert console.app.screen is console.overview


async def test_a_repair_without_its_right_is_refused_and_only_shown_as_a_command() -> None:
    async with open_finding(FakeRepair(a_queue("mail"), rights=Rights.ADMIN)) as console:
        assert "It needs the right admin; this connection has operator" in console.picture
        await console.press("r")
        dialog(console)
        await console.press("o")
        assert console.app.clipboard == "dbq-console release mail --profile prod-orders"


async def test_no_repair_is_planned_on_old_figures() -> None:
    async with open_finding(FakeRepair(a_queue("mail"))) as console:
        console.feed.fail()
        await console.until(lambda: "nothing is done on old figures" in console.picture)
        await console.press("r")
        dialog(console)
        await console.give(queue("mail", stuck=1))
        await console.until(lambda: "r shows the plan" in console.picture)


async def test_evidence_is_shown_escaped() -> None:
    odd = finding(
        WARNING,
        "[bold]\x1b[2J",
        evidence={"[red]who": [{"pid": 4711, "x": "\x1b[31m"}], "when": None, "n": 1.5},
    )
    async with opened(size=(50, 14)) as console:
        await console.give(queue("mail"))
        await show_diagnoses(console, diagnosis("mail", odd))
        await console.press("tab", "enter")
        dialog(console)
        await console.press("j", "pagedown", "k", "pageup")
        await console.resize(120, 40)
        console.shows("[bold]␛[2J", "[red]who: pid 4,711  x ␛[31m", "n: 1.5")


def codes(snapshot: QueueSnapshot, *findings: Finding) -> list[str]:
    """The codes shown for a queue with these figures and findings of the doctor."""
    store = Store({"a": 1.0}, now=0)
    store.add_reading("a", Reading("a", (snapshot,)), at=0)
    store.add_diagnoses("a", [diagnosis(snapshot.queue, *findings)], 0, NOW, next_seconds=30)
    return [view.code for view in store.findings(1)]


def test_findings_that_present_figures_disprove_are_hidden() -> None:
    held = finding(Code("rows_held", Severity.WARNING, ""), evidence={"session": 4711})
    forgotten = finding(Code("prepared_forgotten", Severity.WARNING, ""), evidence={"session": "x"})
    other = Holder(4712, "u", "a", "active", 1.0)
    same = Holder(4711, "u", "a", "active", 1.0)
    prepared = Holder("x", "u", None, None, 1.0)
    assert codes(queue("q", holders=None), held) == ["rows_held"]
    assert codes(queue("q", holders=0), held, forgotten) == []
    assert codes(queue("q", holders=1, held_by=(other,)), held) == []
    assert codes(queue("q", holders=1, held_by=(prepared,)), held, forgotten) == [
        "prepared_forgotten"
    ]
    assert codes(queue("q", holders=2, held_by=(other, same)), held) == ["rows_held"]
    # Not all holders are named: an unnamed one may be the session.
    assert codes(queue("q", holders=99, held_by=(other,)), held) == ["rows_held"]
    assert codes(queue("q", "claim", claimed=0), finding(WARNING)) == []
    assert codes(queue("q", "claim", claimed=None, unknown=("claimed",)), finding(WARNING)) == [
        WARNING.name
    ]
    # A burst of errors replaces the limit of errors.
    burst = finding(Code("error_burst", Severity.WARNING, ""))
    assert codes(queue("q", errors=12), burst) == ["error_burst"]
    assert codes(queue("q", errors=12)) == ["limit_reached"]


def test_a_full_ring_is_critical_even_if_the_doctor_saw_it_filling() -> None:
    filling = finding(Code("filling", Severity.WARNING, ""))
    store = Store({"a": 1.0}, now=0)
    full = queue("q", "ring", gap=100, capacity=100)
    store.add_reading("a", Reading("a", (full,)), at=0)
    store.add_diagnoses("a", [diagnosis("q", filling)], 0, NOW)
    assert [(view.code, view.level) for view in store.findings(1)] == [
        ("filling", Severity.CRITICAL)
    ]


def test_a_finding_lasts_since_the_servers_time_or_since_it_was_first_found() -> None:
    store = Store({"a": 60.0}, now=0)
    store.add_reading("a", Reading("a", (queue("q"),)), at=100)
    found_twice = finding(CRITICAL, minutes=2), finding(WARNING)
    store.add_diagnoses("a", [diagnosis("q", *found_twice)], 110, NOW)
    critical, warning = store.findings(115)
    assert (critical.since_seconds, critical.at_least) == (125.0, False)
    assert (warning.since_seconds, warning.at_least) == (5.0, True)
    store.add_reading("a", Reading("a", (queue("q", errors=10),)), at=120)
    store.add_diagnoses("a", [diagnosis("q", *found_twice)], 125, NOW + timedelta(seconds=15))
    found = {view.code: view for view in store.findings(130)}
    assert (found[WARNING.name].since_seconds, found[WARNING.name].at_least) == (20.0, True)
    assert (found["limit_reached"].since_seconds, found["limit_reached"].at_least) == (10.0, False)
    assert found[CRITICAL.name].since_seconds == 140.0


def stuck_queue(database: Database, url: str) -> Queue:
    """A queue with four claims of a session that the server has ended."""
    mail, victim = a_queue("mail"), open_database(url)
    install(database, mail)
    with database.transaction("push") as connection:
        push_many(connection, mail, ["a", "b", "c", "d"])
    with closing(victim), victim.session("claim") as session:
        with session.transaction("claim") as connection:
            assert len(pop_many(connection, mail, 4)) == 4
            pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        with database.autocommit("kill the owner") as connection:
            connection.exec_driver_sql(f"SELECT pg_terminate_backend({pid}, 10000)")
    return mail


async def test_a_few_keys_release_the_claims_whose_owner_is_gone(
    database: Database, database_url: str
) -> None:
    mail = stuck_queue(database, database_url)
    limits = replace(DEFAULTS, stuck_after_seconds=0.05)
    where = OpenConnection("here", database, Rights.OPERATOR, lambda _: limits)
    feed = Sampler(database, interval_seconds=0.1, stuck_after_seconds=0.05, name="here")
    app = ConsoleApp([feed], Setup(connections=[where]))
    async with app.run_test(size=(80, 24)) as pilot:
        console = Opened(pilot)
        table = console.overview.query_one(FindingsTable)
        await console.until(lambda: bool(table.row and table.row.code == GONE.name))
        await console.press("tab", "enter")
        dialog(console)
        await console.press("r")
        screen = app.screen
        assert isinstance(screen, ActionScreen)
        await console.until(lambda: screen.stage is Stage.PLAN)
        assert "4 messages" in picture(app)
        while screen.stage is not Stage.RESULT:
            # If a sample fails just then, nothing is done on old figures.
            await console.press("y", "enter")
        assert "4 done" in picture(app)
        await console.press("escape")
        await console.until(lambda: "no longer finds it" in picture(app))
    threads_ended()
    with database.transaction("pop") as connection:
        assert len(pop_many(connection, mail, 9)) == 4


async def test_the_findings_of_a_queue_are_sorted_filtered_copied_and_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with opened(size=(160, 48), connections=[conn("prod-orders")]) as console:
        await console.give(queue("mail"))
        found = (
            finding(CRITICAL, "21 orphans", repair=FakeRepair(a_queue("mail"))),
            finding(WARNING, "stuck", minutes=3),
            finding(NOTE, "bloated"),
        )
        await show_diagnoses(console, diagnosis("mail", *found))
        console.app.open_queue(("prod-orders", "public", "mail"), "findings")
        await console.until(lambda: console.is_at(QueueScreen))
        tab = console.on_top(QueueScreen).tab
        assert isinstance(tab, FindingsTab)
        await console.until(lambda: len(tab.table.keys) == 3)
        for column, first in (("level", "bloated"), ("summary", "21 orphans")):
            await console.press("s")
            assert tab.table.sort_column == column
            assert tab.finding is not None
            assert tab.table.rows[tab.table.keys[0]].summary == first
        await console.press("slash", *"orphans", "enter", "y", "E")
        assert console.app.clipboard.startswith("critical: 21 orphans [")
        assert "release [bold] of them" in console.app.clipboard
        notes = console.app._notifications
        await console.until(
            lambda: any("1 row in" in notification.message for notification in notes)
        )
        (row,) = exported(tmp_path)
        assert (row["level"], row["finding"]) == ("critical", "21 orphans")
        await console.press("escape", "x")
        assert "1 marked" in console.picture
        await console.press("enter")
        assert console.is_at(FindingDialog)


async def test_the_finding_of_a_refused_catalog_is_shown_in_full_with_what_to_do() -> None:
    """Its line on the overview is cut at the screen's edge."""
    error = RefusedError(
        "The catalog of this database is newer than this console, and cannot be read by it.",
        why="it was changed by version 4711.0 of the console, while this is version 1.0 of it",
        next_step="Install that version: pipx upgrade dbq-console",
    )
    async with opened(size=(80, 24)) as console:
        console.feed.fail(error)
        await console.pilot.pause()
        assert "this is version 1.0 of it" not in console.picture
        await console.press("tab", "enter")
        dialog(console)
        shown = " ".join(line.strip(" │┃▏▕") for line in console.picture.splitlines())
        for part in (error.what, error.why, error.next_step):
            assert part in " ".join(shown.split()), part
