"""Waits, of a queue and of a connection: who waits for what and for whom."""

from typing import Any

import pytest

from console.engines import Database
from console.errors import TooSlowError
from console.monitor.activity import Activity, Lock, Session
from console.monitor.waits import HorizonRow, Wait, WaitReport
from console.tui.open_connection import OpenConnection
from console.tui.tabs import waits
from console.tui.tabs.tab import ListScreen
from console.tui.tabs.waits import WaitsTab
from console.tui.text import TextView
from console.tui.widgets.waits_chart import WaitsChart
from console.views.waits import wait_key
from tests.servers import connect
from tests.tui.acting import make
from tests.tui.one_tab import KEY, RecordingNavigator, one_tab
from tests.tui.opened import alone, threads_ended
from tests.tui.test_messages import QUEUE

LOCK = Lock("public", "mail", "mail", "relation", "ExclusiveLock", granted=True)
ROOT = Session(
    10,
    "client backend",
    user="ann",
    application="etl01\x1b",
    state="idle in transaction",
    state_seconds=60.0,
    transaction_seconds=61.0,
    query="LOCK TABLE mail",
    locks=(LOCK,),
)
WAITERS = tuple(
    Session(
        key,
        "client backend",
        user="app",
        state="active",
        wait_kind="Lock",
        wait="relation",
        wait_seconds=30.0,
        waits_for="RowExclusiveLock on relation mail",
        blocked_by=(10,),
        transaction_seconds=30.0,
        query="SELECT mail_pop()",
        locks=(LOCK,),
    )
    for key in (11, 12)
)
BEHIND = Session(13, "client backend", state="active", waits_for="x", blocked_by=(12,))
MEANS = "Waits for a lock on a whole table."
WAITS = (
    Wait(QUEUE, "Lock", "relation", 2, 1.0, 2.0, meaning=MEANS),
    Wait(QUEUE, "Client", "idle in transaction", 1, 0.5, 0.5),
    Wait(None, "Lock", "relation", 3, 1.0, 3.0, meaning=MEANS),
    Wait(None, None, None, 1, 0.1, 0.1),
    Wait(None, "LATCH", "LATCH_EX", ms=1500, count=40),
)


def report(*waits: Wait, sessions: tuple[Session, ...] = (), **more: Any) -> WaitReport:
    fields: dict[str, Any] = {
        "connection": "prod",
        "seconds": 2.0,
        "samples": 10,
        "waits": waits,
        "activity": Activity(sessions),
        "activity_at_sample": 1,
        "samples_with_waiters": 7,
        "horizon": (HorizonRow("client backend", "ann", 10, 5, 61.0),),
        "dead_rows": {("public", "mail"): 44},
        "missing": {},
    }
    return WaitReport(**fields | more)


FULL = report(*WAITS, sessions=(ROOT, *WAITERS, BEHIND))


def head(pane: WaitsTab) -> str:
    return pane.query_one("#waits-head", TextView).plain_text


def detail(pane: WaitsTab) -> str:
    return pane.query_one("#waits-detail", TextView).plain_text


async def test_a_queue_shows_its_own_waits_their_meaning_and_the_wait_tree() -> None:
    async with one_tab(WaitsTab, size=(160, 48)) as shown:
        pane = shown.tab
        await shown.show(FULL)
        assert "3 sessions wait for another" in head(pane)
        assert "in 7 of 10 samples" in head(pane)
        assert "Oldest snapshot: client backend ann" in head(pane)
        table, tree = pane.table, pane.waiters
        assert [table.cells(key)["wait"].text for key in table.keys] == [
            "Lock/relation",
            "Client/idle in transaction",
        ]
        assert MEANS in detail(pane)
        assert [tree.cells(key)["session"].text for key in tree.keys] == [
            "10",
            "├─ 11",
            "└─ 12",
            "   └─ 13",
        ]
        await shown.press("tab")
        assert "etl01␛, user ann" in detail(pane)
        assert "last: LOCK TABLE mail" in detail(pane)
        await shown.press("j", "a")
        assert shown.navigator.calls == [("end-session", KEY, ("session", "11"))]
        pane.show_result(report(sessions=(Session(9, locks=(LOCK,)), *WAITERS[::-1], ROOT)))
        await shown.press("a")
        pane.show_result(report(sessions=(Session(9, locks=(LOCK,)), ROOT)))
        await shown.press("a")
        assert shown.navigator.calls[1:] == [("end-session", KEY, ("session", "11"))] * 2
        assert pane.waiters.cells("11")["does"].text == "left"


async def test_a_failed_sample_is_a_gap_and_the_last_waits_stay_on_the_screen() -> None:
    async with one_tab(WaitsTab, size=(160, 48)) as shown:
        pane = shown.tab
        for _ in range(2):
            pane.show_result(FULL)
            pane.show_error(TooSlowError("Could not read the sessions.", why="1 s was over"))
        await shown.pilot.pause()
        assert "1 s was over" in head(pane)
        assert "3 sessions wait" in head(pane)
        chart = pane.query_one(WaitsChart)
        most, stacks = chart.stacks(5)
        assert most == 2.5
        assert stacks == [[4, 1, 0, 0, 0], None, [4, 1, 0, 0, 0]]
        assert chart.ranked == [wait_key(wait) for wait in WAITS[:2]]


async def test_a_connection_shows_all_waits_of_its_server_and_its_counters() -> None:
    async with alone("prod", size=(160, 48)) as console:
        navigator: Any = RecordingNavigator()
        console.app.context.navigator = navigator
        screen = ListScreen(console.app.context, WaitsTab, ("prod", "", ""))
        console.app.push_screen(screen)
        await console.pilot.pause()
        assert not screen.show_vertical_scrollbar, "the list scrolls, not the screen"
        assert "There is no such connection." in console.picture
        screen.tab.show_result(FULL)
        await console.pilot.pause()
        console.shows("? (hidden)", "LATCH/LATCH_EX", "1.5 s 40x", "Waits of prod")
        await console.press("tab", "a", "G", "a")
        assert navigator.calls == [("end-session", KEY, ("session", "10"))]


async def test_missing_rights_are_reported_and_deadlocks_and_long_chains_are_drawn() -> None:
    cycle = tuple(
        Session(key, state="active", blocked_by=(other,), locks=(LOCK,))
        for key, other in ((1, 2), (2, 1))
    )
    chain = tuple(Session(key, blocked_by=(key - 1,), locks=(LOCK,)) for key in range(101, 200))
    async with one_tab(WaitsTab) as shown:
        pane = shown.tab
        why = "this login lacks pg_read_all_stats"
        hidden = Wait(QUEUE, None, None, 1, 1.0, 1.0)
        await shown.show(report(hidden, sessions=(Session(10),), missing={"sessions": why}))
        assert f"Not visible: {why}" in head(pane)
        assert "? (hidden)" in shown.picture
        await shown.show(report(samples=0, missing={"waits": "the server has no such views"}))
        assert "Not visible: the server has no such views" in head(pane)
        assert "No session waits" not in head(pane)
        await shown.resize(50, 14)
        await shown.show(report(sessions=(*cycle, *chain)))
        cells = [pane.waiters.cells(key) for key in pane.waiters.keys]
        assert sum("DEADLOCK" in cell["does"].text for cell in cells) == 1
        assert len(cells) == 102


@pytest.mark.long
@pytest.mark.parametrize("ends", [False, True])
async def test_waits_are_shown_on_a_server_until_the_screen_closes(
    database: Database, database_url: str, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that holds the queue is the root; a closed screen sends no more queries."""
    monkeypatch.setattr(waits, "SAMPLE_SECONDS", 0.2)
    with connect(database_url) as holder:
        make(database, "mail", "fifo", {})
        holder.execute("BEGIN")
        holder.execute("LOCK TABLE mail IN SHARE MODE")
        async with alone("prod", connections=[OpenConnection("prod", database)]) as console:
            screen = ListScreen(console.app.context, WaitsTab, ("prod", "", ""))
            console.app.push_screen(screen)
            await console.pilot.pause()
            if ends:
                console.app.pop_screen()
                await console.until(screen.tab._stopped.is_set)
                threads_ended()
                return
            await console.until(lambda: screen.tab.result is not None)
            tree = screen.tab.waiters
            assert repr(holder.info.backend_pid) in tree.keys
            assert "No session waits for another." in head(screen.tab)
        threads_ended()
