"""Pictures of the screens behind the overview, one for each state: posted data, a fixed clock."""

import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.screen import Screen

from console.monitor.messages import Page
from console.rights import Rights
from console.tui import ConsoleApp
from console.tui.context import Setup
from console.tui.dialogs.audit_entry import AuditRow
from console.tui.dialogs.finding import FindingDialog, Phase
from console.tui.open_connection import OpenConnection
from console.tui.screens import audit
from console.tui.screens.audit import AuditScreen
from console.tui.screens.connections import ConnectionsScreen
from console.tui.screens.install import InstallScreen
from console.tui.screens.message import FIRST_BYTES, MessageScreen, ReadMessage
from console.tui.screens.queue import TABS
from console.tui.tabs.messages import LoadedPage, MessagesTab
from console.tui.tabs.slots import QueueSlotMap as SlotsFound
from console.tui.tabs.slots import SlotsTab
from tests.tui.alone import Bare
from tests.tui.alone import conn as no_place
from tests.tui.feeds import FakeClock, FakeFeed, nine
from tests.tui.opened import invisible
from tests.tui.test_audit import AT, ENTRY, INSTALL, RUNNING
from tests.tui.test_findings import BAD, NOW, FakeRepair, diagnosis, finding
from tests.tui.test_messages import QUEUE, message
from tests.tui.test_slots import MAP
from tests.tui.test_slots import QUEUE as RING

Compare = Callable[..., bool]
Run = Callable[[Pilot[Any], ConsoleApp, FakeFeed, FakeClock], Awaitable[None]]

MAIL = ("prod", "public", "mail")
ORDERS = ("prod", "public", "orders")
SMALL, LARGE = (80, 24), (160, 48)


@pytest.fixture(autouse=True)
def _no_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    for tab in TABS:
        monkeypatch.setattr(tab, "poll", lambda _: None)
    monkeypatch.setattr(audit, "read_all", lambda *_: audit.AuditEntries())
    monkeypatch.setattr(MessageScreen, "_load", lambda *_, **__: None)


def taken(
    compare: Compare,
    run: Run,
    size: tuple[int, int] = SMALL,
    connections: tuple[OpenConnection, ...] = (),
) -> bool:
    """The picture at the end of `run`, beside the one that is kept."""
    clock, feed = FakeClock(), FakeFeed("prod")
    app = Bare([feed], Setup(connections, clock.clock, rights="admin"))

    async def before(pilot: Pilot[Any]) -> None:
        await pilot.pause()
        await run(pilot, app, feed, clock)
        await pilot.pause()
        await pilot.pause()
        assert invisible(app) == []

    return compare(app, terminal_size=size, run_before=before)


def five_minutes(feed: FakeFeed, clock: FakeClock) -> None:
    """A tide, with twenty seconds in which nobody looked."""
    for second in range(300):
        tide = 0.5 + 0.5 * math.sin(second / 40) ** 2
        if not 140 <= second < 160:
            feed.give(*(_moved(one, tide) for one in nine()))
        clock.now += 1
    feed.give(*nine())


def _moved(one: Any, tide: float) -> Any:
    known = ("ready", "gap", "age_seconds", "push_per_second")
    values = {name: getattr(one, name) for name in known}
    moved = {name: type(it)(it * tide) for name, it in values.items() if it is not None}
    return replace(one, **moved)


async def tab_of(pilot: Pilot[Any], app: ConsoleApp, key: tuple[str, str, str], name: str) -> Any:
    """A queue's tab, drawn."""
    app.open_queue(key, name)
    for _ in range(4):
        await pilot.pause()
    return app.screen


def on_top(app: ConsoleApp, kind: type[Screen[Any]]) -> Any:
    assert isinstance(app.screen, kind)
    return app.screen


@pytest.mark.long
@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["80x24", "160x48"])
def test_a_queue_with_charts(snap_compare: Compare, size: tuple[int, int]) -> None:
    async def run(pilot: Pilot[Any], app: ConsoleApp, feed: FakeFeed, clock: FakeClock) -> None:
        five_minutes(feed, clock)
        await pilot.pause()
        found = finding(
            BAD, "14 claims whose consumer disconnected", minutes=3, repair=FakeRepair()
        )
        store = app.context.store
        store.add_diagnoses("prod", [diagnosis("mail", found)], clock.now, NOW, next_seconds=30.0)
        await tab_of(pilot, app, MAIL, "findings")

    assert taken(snap_compare, run, size)


MESSAGES = (
    message("4711", "error", error="no route\nto host", age_seconds=3_912.0, attempts=3),
    message("4712", "error", error="[bold]\x1b[31mbad", age_seconds=64.0, attempts=1),
    message("4713", "claimed", claimed_by="pid=4711 start=x consumer=etl", age_seconds=541.0),
    *(message(f"48{number}", age_seconds=60.0 - number, pushed_at=AT) for number in range(10, 40)),
)


def test_messages(snap_compare: Compare) -> None:
    async def run(pilot: Pilot[Any], app: ConsoleApp, feed: FakeFeed, _: FakeClock) -> None:
        feed.give(*nine())
        await pilot.pause()
        screen = await tab_of(pilot, app, MAIL, "messages")
        pane = screen.query_one(MessagesTab)
        pane.show_page(LoadedPage(pane.request, Page(QUEUE, MESSAGES, None, complete=True)))
        await pilot.pause()
        await pilot.press("x", "j", "x", "j")

    assert taken(snap_compare, run)


def test_slots(snap_compare: Compare) -> None:
    async def run(pilot: Pilot[Any], app: ConsoleApp, feed: FakeFeed, _: FakeClock) -> None:
        feed.give(*nine())
        await pilot.pause()
        screen = await tab_of(pilot, app, ORDERS, "slots")
        screen.query_one(SlotsTab).show_result(SlotsFound(RING, MAP))
        await pilot.pause()
        await pilot.press("n")

    assert taken(snap_compare, run, LARGE)


def test_a_message_with_json(snap_compare: Compare) -> None:
    text = '{"order": 12345678901234567890, "price": 1.10, "lines": [{"sku": "[bold]"}, null]}'

    async def run(pilot: Pilot[Any], app: ConsoleApp, _: FakeFeed, clock: FakeClock) -> None:
        del clock
        app.open_message(MAIL, "error,,17")
        await pilot.pause()
        screen = on_top(app, MessageScreen)
        failed = replace(MESSAGES[0], pushed_at=AT, claimed_by="pid=4711 start=x consumer=etl")
        told = replace(failed, payload=text, payload_bytes=len(text))
        screen.show_result(ReadMessage(told, payload_bytes=FIRST_BYTES))
        while not screen.view.layout_result or screen.view.laying_out:
            await pilot.pause(0.01)

    assert taken(snap_compare, run)


def test_the_plan_of_a_repair(snap_compare: Compare) -> None:
    async def run(pilot: Pilot[Any], app: ConsoleApp, feed: FakeFeed, clock: FakeClock) -> None:
        feed.give(*nine())
        await pilot.pause()
        found = finding(
            BAD, "14 claims whose consumer disconnected", minutes=3, repair=FakeRepair()
        )
        store = app.context.store
        store.add_diagnoses("prod", [diagnosis("mail", found)], clock.now, NOW, next_seconds=30.0)
        view = next(one for one in store.findings(clock.now) if one.code == BAD.name)
        app.open_finding(view)
        await pilot.pause()
        dialog = on_top(app, FindingDialog)
        while dialog.phase is not Phase.PLANNED:
            await pilot.pause(0.01)

    assert taken(snap_compare, run, connections=(no_place(),))


def test_install(snap_compare: Compare) -> None:
    async def run(pilot: Pilot[Any], app: ConsoleApp, _: FakeFeed, clock: FakeClock) -> None:
        del clock
        app.open_install("prod")
        await pilot.pause()
        on_top(app, InstallScreen)

    assert taken(snap_compare, run, connections=(no_place(),))


def test_audit(snap_compare: Compare) -> None:
    async def run(pilot: Pilot[Any], app: ConsoleApp, _: FakeFeed, clock: FakeClock) -> None:
        del clock
        app.open_audit("prod")
        await pilot.pause()
        later = replace(RUNNING, started_at=AT + timedelta(minutes=9))
        lines = (AuditRow(later, alive=False), AuditRow(ENTRY), AuditRow(INSTALL))
        screen = on_top(app, AuditScreen)
        while screen._fetch.busy:
            await pilot.pause(0.01)
        screen.show(audit.AuditEntries(lines))

    assert taken(snap_compare, run, connections=(no_place(),))


def test_connections(snap_compare: Compare) -> None:
    async def run(pilot: Pilot[Any], app: ConsoleApp, feed: FakeFeed, _: FakeClock) -> None:
        feed.give(*nine(), production=True)
        app.open_connections()
        await pilot.pause()
        on_top(app, ConnectionsScreen)

    here = replace(
        no_place(rights=Rights.OPERATOR),
        url="postgresql+psycopg://ops@db1/orders",
        origin="config.toml:3",
    )
    assert taken(snap_compare, run, connections=(here,))
