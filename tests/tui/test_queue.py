"""The screen of one queue: its figures, its tabs, when they query, and a dropped queue."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from textual.pilot import Pilot
from textual.screen import Screen

from console.actions.upgrade import How, InstalledObject
from console.catalog import installed_queue
from console.designs import design
from console.doctor.finding import Code, Diagnosis, Finding
from console.monitor.limits import Severity
from console.monitor.snapshot import QueueSnapshot
from console.tui.dialogs.finding import FindingDialog
from console.tui.screens.audit import AuditTab
from console.tui.screens.queue import TABS, QueueScreen
from console.tui.tabs import sql as sql_tab
from console.tui.tabs.findings import FindingsTab
from console.tui.tabs.sql import CodeView, SqlTab, aligned
from console.tui.tabs.tab import TabBar
from console.tui.text import style_of
from console.tui.widgets.charts import Charts
from console.tui.widgets.keyed_table import KeyedTable
from console.tui.widgets.queue_detail import FiguresPanel
from console.views.audit import AuditRow
from tests.tools.queues import queue_of
from tests.tui.feeds import nine_queues, queue
from tests.tui.opened import Opened, opened
from tests.tui.test_audit import ENTRY, RUNNING

pytestmark = pytest.mark.slow

AT = datetime(2026, 3, 29, 1, 58, 11, tzinfo=UTC)


def key_of(name: str) -> tuple[str, str, str]:
    return ("prod-orders", "public", name)


async def settled(pilot: Pilot[None]) -> None:
    """Wait until tabs are mounted, drawn and focused."""
    for _ in range(3):
        await pilot.pause()


async def open_queue(
    console: Opened, name: str = "mail", tab: str = "", *queues: QueueSnapshot
) -> QueueScreen:
    await console.give(*(queues or nine_queues()))
    console.app.open_queue(key_of(name), tab)
    await settled(console.pilot)
    return console.on_top(QueueScreen)


def figures(screen: QueueScreen) -> str:
    return screen.query_one(FiguresPanel).plain_text


@pytest.fixture
def polled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tabs that were polled, in order."""
    found: list[str] = []
    for tab in TABS:
        for method in ("poll", "refresh_now"):
            monkeypatch.setattr(tab, method, lambda self: found.append(self.NAME))
    return found


# Figures.


async def test_exactly_the_figures_of_the_design_are_shown_with_their_age() -> None:
    async with opened(size=(160, 48)) as console:
        screen = await open_queue(console, "mail")
        shown = figures(screen)
        for words in (
            *("public.mail", "claim", "ready ≈12 k", "age 9 min 01 s", "push/s 51.3"),
            *("pop/s 48.8", "claimed 31", "stuck 14", "errors 6"),
            *("stuck after 5 min", "10 % in error", "14 stuck"),
        ):
            assert words in shown
        for words in ("gap", "full in", "scheduled", "done", "·"):
            assert words not in shown
        console.feed.fail()
        console.clock.now += 42
        await settled(console.pilot)
        screen.draw()
        assert "cannot be reached, figures are 42 s old" in figures(screen)
        assert "ready ≈12 k" in figures(screen)


async def test_a_ring_shows_when_it_is_full_and_the_headroom_of_twice_its_size() -> None:
    async with opened(size=(160, 48)) as console:
        ring = next(snapshot for snapshot in nine_queues() if snapshot.queue == "orders")
        filling = replace(ring, filling_per_second=(100.0, 200.0), holders=2, held_seconds=4000.0)
        screen = await open_queue(console, "orders", "", filling)
        shown = figures(screen)
        assert "gap 9,412 of 10,000" in shown
        assert "full in ≈3.4 s (2.9 s to 5.9 s)" in shown
        assert "headroom of twice the size 58.2 s" in shown
        assert "writers 2" in shown
        assert "90 % full (critical 100 %)" in shown
        screen.show_options(queue_of("orders", "ring", size="10000"))
        assert "size=10000" in figures(screen)
        # One more line of figures does not move the rest.
        await console.resize(80, 24)
        await settled(console.pilot)
        line = screen.query_one(TabBar).region.y
        await console.give(ring)
        assert screen.query_one(TabBar).region.y == line
        assert len(figures(screen).splitlines()) == screen.query_one(FiguresPanel).size.height


# Tabs.


async def test_tabs_are_chosen_by_digits_arrows_tab_and_clicks() -> None:
    async with opened() as console:
        screen = await open_queue(console, "orders", "sql")
        names = [tab.NAME for tab in screen._tabs]
        assert screen.tab is not None
        assert screen.tab.NAME == "sql"
        for number, name in enumerate(names[:10], start=1):
            await console.press(str(number % 10))
            assert name == screen.tab.NAME
            (shown,) = (tab for tab in screen._tabs if tab.display)
            assert shown is screen.tab
            await settled(console.pilot)
            assert screen.focused is None or shown in screen.focused.ancestors
        await console.press("1")
        assert names[0] == screen.tab.NAME
        screen.set_focus(screen.query_one(TabBar))
        await console.press("left")
        assert names[-1] == screen.tab.NAME
        await console.press("right", "right")
        assert names[1] == screen.tab.NAME
        await console.pilot.click(TabBar, offset=(3, 0))
        await console.pilot.pause()
        assert names[0] == screen.tab.NAME
        # However fast they are switched, one is visible.
        await asyncio.gather(*(screen.action_tab(number) for number in (1, 4, 2, 5, 3)))
        await settled(console.pilot)
        assert [tab.NAME for tab in screen._tabs if tab.display] == [names[3]]
        assert [tab.NAME for tab in screen._tabs if tab.shown] == [names[3]]
        assert screen.tab is screen._tabs[3]


ABSENT = {
    "fifo": {
        "3": "The design fifo keeps no errors: that is up to its consumers.",
        "6": "The design fifo has no slots: only rings do.",
    },
    "claim": {"6": "The design claim has no slots: only rings do."},
    "laravel": {
        "3": "Laravel keeps what failed in failed_jobs, a table of its own",
        "6": "The design laravel has no slots: only rings do.",
    },
    "ring": {"3": "The design ring keeps no errors: that is up to its consumers."},
}


TITLES = {
    "laravel": "3 Errs 4 Stuck 5 Waits 6 Slots 7 SQL 8 Audit 9 Hist 0 Cons",
    "fifo": "3 Errs 4 Stuck 5 Waits 6 Slots 7 SQL 8 Audit 9 Hist 0 Cons",
    "claim": "3 Errs 4 Stuck 5 Waits 6 Slots 7 SQL 8 Audit 9 Hist 0 Cons",
    "ring": "3 Errs 4 Stuck 5 Waits 6 Slots 7 SQL 8 Audit 9 Hist 0 Cons",
}


@pytest.mark.parametrize("design_", ABSENT)
async def test_a_digit_is_the_same_tab_for_every_design(design_: str) -> None:
    """A tab that the design does not have is greyed, and says why."""
    of_design = queue(
        "orders",
        design_,
        errors=0 if design_ == "claim" else None,
        capacity=9 if design_ == "ring" else None,
    )
    async with opened() as console:
        screen = await open_queue(console, "orders", "", of_design)
        assert isinstance(screen.tab, FindingsTab)
        # At 80 columns the titles are short, greyed ones first.
        assert f"1 Findings 2 Msgs {TITLES[design_]}" in console.picture
        line = screen.query_one(TabBar)
        grey = [span for span in line._shown.spans if span.style == style_of(line, "stale")]
        greyed = [line.plain_text[one.start] for one in grey]
        assert greyed == list(ABSENT[design_])
        for digit, why in ABSENT[design_].items():
            await console.press(digit)
            await settled(console.pilot)
            assert why in console.picture


async def test_only_the_visible_tab_is_polled_and_at_most_at_its_interval(
    polled: list[str],
) -> None:
    async with opened() as console:
        screen = await open_queue(console, "orders", "sql")
        assert polled == ["sql"]
        for _ in range(int(SqlTab.EVERY_SECONDS)):
            screen.draw()
            console.clock.now += 1
        assert polled == ["sql"]
        screen.draw()
        assert polled == ["sql"] * 2
        await console.press(str([tab.NAME for tab in screen._tabs].index("audit") + 1))
        assert polled == ["sql", "sql", "audit"]
        polled.clear()
        console.clock.now += 1000
        screen.draw()
        assert polled == ["audit"]
        await console.press("r")
        assert polled == ["audit"] * 2
        assert console.feed.samples_requested == 1
        # A paused screen does not change and polls nothing.
        await console.press("space")
        console.clock.now += 1000
        await console.give(*(replace(snapshot, ready=1) for snapshot in nine_queues()))
        assert "ready 9,412" in figures(screen)
        assert polled == ["audit"] * 2
        await console.press("space")
        assert "ready 1 " in figures(screen)
        assert polled == ["audit"] * 3
        # A covered one polls nothing until it is visible again.
        console.app.push_screen(Screen())
        await settled(console.pilot)
        assert screen.tab is not None
        assert not screen.tab.shown
        console.clock.now += 1000
        await console.give(*nine_queues())
        assert polled == ["audit"] * 3
        await console.app.pop_screen()
        await settled(console.pilot)
        assert polled == ["audit"] * 4
        assert screen.tab.shown


async def test_keys_act_on_this_queue_and_it_is_not_opened_twice() -> None:
    async with opened() as console:
        calls: list[tuple[object, ...]] = []
        for method in ("open_actions", "examine", "open_waits", "open_audit"):
            setattr(
                console.app,
                method,
                lambda *arguments, method=method: calls.append((method, *arguments)),
            )
        screen = await open_queue(console, "orders", "audit")
        await console.press("a", "d", "w", "A")
        key = key_of("orders")
        assert calls == [
            ("open_actions", key),
            ("examine", key),
            ("open_waits", "prod-orders"),
            ("open_audit", "prod-orders", key),
        ]
        before = len(console.app.screen_stack)
        console.app.open_queue(screen.key, "sql")
        await console.pilot.pause()
        assert len(console.app.screen_stack) == before
        assert screen.tab is not None
        assert screen.tab.NAME == "sql"
        console.app.open_queue(key_of("mail"))
        assert len(console.app.screen_stack) == before + 1


async def test_a_dropped_queue_says_since_when_and_keeps_its_figures(polled: list[str]) -> None:
    async with opened() as console:
        opened_actions: list[object] = []
        console.app.open_actions = opened_actions.append  # type: ignore[method-assign,assignment]
        screen = await open_queue(console, "orders", "slots")
        for _ in range(5):
            await console.give(*nine_queues())
            console.clock.now += 1
        await console.give(*(snapshot for snapshot in nine_queues() if snapshot.queue != "orders"))
        console.clock.now += 30
        screen.draw()
        assert screen.gone
        assert "no longer exists; last seen 02:13:36 UTC, 31 s ago" in figures(screen)
        assert "ready 9,412" in figures(screen)
        before = list(polled)
        await console.press("a", "r", "1", "z")
        assert opened_actions == []
        assert polled == before
        await console.give(*nine_queues())
        assert "no longer exists" not in figures(screen)


# Findings, SQL, audit.

ORPHAN = Code("orphan", Severity.CRITICAL, "messages that no pop asks for")
RING = design("ring")
QUEUE = installed_queue("public", "orders", RING, RING.complete_options({}, "postgresql"))


def diagnosed(console: Opened, *findings: Finding, unseen: tuple[str, ...] = ()) -> None:
    console.app.context.store.add_diagnoses(
        "prod-orders", [Diagnosis(QUEUE, findings, unseen)], console.clock.now, AT, next_seconds=60
    )


async def test_findings_show_evidence_cause_and_consequence_and_open_their_dialog() -> None:
    finding = Finding(
        ORPHAN,
        "21 orphans since the [crash]",
        {"numbers": [1023, 1043], "server": "\x1b[31mdb1"},
        cause="the server crashed",
        consequence="21 messages are never popped",
        since=AT,
    )
    async with opened(size=(120, 40)) as console:
        screen = await open_queue(console, "orders")
        console.shows("not examined", "94 % full")
        diagnosed(console, finding, unseen=("order of pops: \x1b[31mno right",))
        console.clock.now += 12
        screen.draw()
        await settled(console.pilot)
        assert "> 12 s" in console.picture
        await console.press("g")
        console.shows(
            *("✖", "21 orphans since the [crash]", "the server crashed"),
            *("21 messages are never popped", "1,023, 1,043", "2026-03-29 01:58:11 UTC"),
            *("ran 12 s ago", "not examined: order of pops"),
        )
        assert "\x1b" not in console.picture
        await console.press("enter")
        assert console.is_at(FindingDialog)


async def test_consumption_that_takes_a_second_sample_is_counted_down_to() -> None:
    first, other = "consumption not known: this is the first", "order of pops: no right"
    async with opened(size=(120, 40)) as console:
        screen = await open_queue(console, "orders")
        of = Diagnosis(QUEUE, (), (first, other), pending=first)
        store = console.app.context.store
        store.add_diagnoses("prod-orders", [of], console.clock.now, AT, next_seconds=30)
        await console.press("g")
        for passed, words in ((2, "consumption: asked again in 28 s"), (28, "asked again now")):
            console.clock.now += passed
            screen.draw()
            await settled(console.pilot)
            console.shows(words, f"not examined: {other}")
            assert first not in console.picture


async def test_all_clear_is_shown_only_after_a_complete_examination_without_notes() -> None:
    """As on the command line, where the verdict is "notes" if there are any."""
    all_clear = (queue("orders", "ring", ready=0, gap=0, capacity=10),)
    note = Finding(Code("waits", Severity.NOTE, ""), "1 session: idle in transaction")
    async with opened() as console:
        screen = await open_queue(console, "orders", "", *all_clear)
        for found, unseen, clear in (
            ((), ("claims: no right",), False),
            ((), (), True),
            ((note,), (), False),
        ):
            diagnosed(console, *found, unseen=unseen)
            screen.draw()
            await settled(console.pilot)
            assert ("All clear" in console.picture) == clear
            assert ("all clear" in figures(screen)) == clear
        assert "1 note" in figures(screen)


async def test_installed_sql_is_shown_beside_the_shipped_sql_if_it_differs() -> None:
    shipped = "BEGIN\n    RETURN '[bold]';\nEND"
    parts = (
        InstalledObject("function", "orders_push", shipped),
        InstalledObject(
            "function", "orders_pop", shipped.replace("RETURN", "PERFORM"), shipped, How.OTHER
        ),
        InstalledObject("function", "orders_relay", None, shipped, How.MISSING),
        InstalledObject("table", "orders", "slot bigint"),
    )
    async with opened() as console:
        screen = await open_queue(console, "orders", "sql")
        tab = screen.query_one(SqlTab)
        tab.show_result(sql_tab.QueueObjects("postgresql", parts))
        await settled(console.pilot)
        console.shows("2 of 4 differ", "RETURN '[bold]'")
        await console.press("j")
        for size, marked in (
            ((80, 24), [(True, False), (False, True)]),
            ((160, 48), [(True, True)]),
        ):
            await console.resize(*size)
            await settled(console.pilot)
            rows = [line for line in console.picture.splitlines() if "'[bold]'" in line]
            marks = [
                ("+ " in row and "PERFORM" in row, "- " in row and "RETURN" in row) for row in rows
            ]
            assert marks == marked
        await console.press("y")
        assert console.app.clipboard == parts[1].installed
        await console.press("j")
        assert "is missing" in console.picture
        await console.press("enter")
        assert isinstance(screen.focused, CodeView)


def test_lines_that_installed_and_shipped_sql_share_are_not_marked() -> None:
    blocks = aligned("a\nb\nc\nd", "a\nx\nc\nd\ne")
    assert [(b.same, b.installed, b.shipped) for b in blocks] == [
        (True, (0,), (0,)),
        (False, (1,), (1,)),
        (True, (2, 3), (2, 3)),
        (False, (), (4,)),
    ]


async def test_the_tab_audit_shows_who_did_what_and_what_was_interrupted() -> None:
    async with opened(size=(160, 48)) as console:
        screen = await open_queue(console, "orders", "audit")
        tab = screen.query_one(AuditTab)
        cut_off = replace(RUNNING, action_id=19)
        tab.show_result([AuditRow(RUNNING, True), AuditRow(cut_off, False), AuditRow(ENTRY)])
        await settled(console.pilot)
        console.shows("running", "interrupted", "done", "ann@etl01", "requeue", "3 actions")
        tab.show_result([])
        await settled(console.pilot)
        assert "The console has not done anything" in console.picture


@pytest.mark.parametrize("tab", range(len(TABS)))
async def test_at_80_by_24_every_tab_has_a_name_and_its_list_ten_lines(tab: int) -> None:
    async with opened(size=(80, 24)) as console:
        screen = await open_queue(console, "orders", TABS[tab].NAME)
        bar = screen.query_one(TabBar).plain_text
        for digit in "1234567890":
            after = bar.partition(f"{digit} ")[2]
            assert after[:2].isalpha(), (digit, bar)
        assert len(bar.rstrip()) <= 78
        assert screen.query_one("#tabs").size.height >= 15
        listed = screen._tabs[tab].query(KeyedTable)
        if TABS[tab].NAME in {"messages", "errors", "stuck", "consumers"} and listed:
            assert listed.first().size.height >= 10, console.picture
        await console.press("c")
        assert screen.query_one(Charts).display != TABS[tab].HAS_CHARTS


async def test_the_evidence_of_a_finding_says_of_when_it_is() -> None:
    finding = Finding(ORPHAN, "21 orphans", {"numbers": [1023, 1043]})
    async with opened(size=(120, 40)) as console:
        screen = await open_queue(console, "orders")
        diagnosed(console, finding)
        console.clock.now += 12
        screen.draw()
        await settled(console.pilot)
        await console.press("g")
        at = console.app.context.clock.utc() - timedelta(seconds=12)
        assert f"evidence  as of {console.app.context.moment(at)}" in console.picture
        await console.press("enter")
        await console.until(lambda: console.is_at(FindingDialog))
        assert f"as of {console.app.context.moment(at)}" in console.picture
