"""Pictures of the screens, one for each state: fixed size, fixed clock, posted data.

Update: --snapshot-update.
"""

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from console.monitor.messages import Page
from console.monitor.snapshot import QueueSnapshot
from console.rights import Rights
from console.tui import ConsoleApp
from console.tui.context import Setup
from console.tui.dialogs.finding import FindingDialog
from console.tui.screens import audit
from console.tui.screens.audit import AuditScreen
from console.tui.screens.connections import ConnectionsScreen
from console.tui.screens.install import InstallScreen
from console.tui.screens.message import FIRST_BYTES, MessageScreen, ReadMessage
from console.tui.screens.queue import TABS
from console.tui.tabs.messages import LoadedPage, MessagesTab
from console.tui.tabs.slots import QueueSlotMap, SlotsTab
from console.views.audit import AuditRow
from tests.tui.feeds import FakeClock, FakeFeed, nine_queues, queue
from tests.tui.opened import Bare, Opened, conn, invisible
from tests.tui.test_audit import AT, ENTRY, INSTALL, RUNNING
from tests.tui.test_findings import NOW, WARNING, FakeRepair, a_queue, diagnosis, finding
from tests.tui.test_messages import QUEUE, message
from tests.tui.test_slots import MAP
from tests.tui.test_slots import QUEUE as RING

Compare = Callable[..., bool]
Run = Callable[[Opened], Awaitable[None]]

MAIL = ("prod", "public", "mail")
ORDERS = ("prod", "public", "orders")
SMALL, LARGE = (80, 24), (160, 48)


def matches_picture(
    compare: Compare,
    run: Run | None = None,
    size: tuple[int, int] = SMALL,
    names: Sequence[str] = ("prod-orders",),
    kind: type[ConsoleApp] = ConsoleApp,
    **options: Any,
) -> bool:
    """Whether the picture after `run` equals the stored one."""
    clock = FakeClock()
    feeds = [FakeFeed(name) for name in names]
    app = kind(feeds, Setup(clock=clock.clock, **options))

    async def before(pilot: Pilot[Any]) -> None:
        await pilot.pause()
        if run is not None:
            await run(Opened(pilot, feeds, clock))
        await pilot.pause()
        await pilot.pause()
        assert app.no_color or invisible(app) == []

    return compare(app, terminal_size=size, run_before=before)


def give_varying_depths(console: Opened) -> None:
    """Four minutes of readings that rise and fall, so that trends have a shape."""
    for second in range(0, 240, 5):
        high = 0.5 + 0.5 * math.sin(second / 25) ** 2
        console.feed.give(*(_scaled(snapshot, high) for snapshot in nine_queues()))
        console.clock.now += 5


def _scaled(snapshot: QueueSnapshot, high: float) -> QueueSnapshot:
    return replace(snapshot, ready=snapshot.ready and int(snapshot.ready * high))


# The overview.


def test_overview_at_80_by_24(snap_compare: Compare) -> None:
    async def run(console: Opened) -> None:
        give_varying_depths(console)
        await console.give(*nine_queues(), production=True)
        await console.press("j")

    assert matches_picture(snap_compare, run, rights="operator", banner="demo: a banner")


def test_overview_at_160_by_48_with_a_lost_connection(snap_compare: Compare) -> None:
    async def run(console: Opened) -> None:
        prod, stage, audited = console.feeds
        audited.give(queue("trail", "claim", claimed=2, stuck=0, errors=0, ready=4_711))
        await console.pilot.pause()
        give_varying_depths(console)
        prod.give(*nine_queues(), production=True)
        stage.give(queue("orders", "ring", ready=3, gap=3, capacity=100), queue("[bold]x"))
        audited.fail(retry_seconds=22)
        console.clock.now += 2
        await console.pilot.pause()
        await console.press("s")

    assert matches_picture(
        snap_compare, run, LARGE, ("prod-orders", "stage", "audit"), rights="operator"
    )


def test_paused_and_filtered(snap_compare: Compare) -> None:
    async def run(console: Opened) -> None:
        await console.give(*nine_queues())
        await console.press("space", "slash", *"errors>0", "enter", "j")
        console.clock.now += 65
        await console.give(*nine_queues())

    assert matches_picture(snap_compare, run)


def test_help(snap_compare: Compare) -> None:
    async def run(console: Opened) -> None:
        await console.give(*nine_queues())
        await console.press("question_mark")

    assert matches_picture(snap_compare, run, (80, 48))


def test_nothing_configured(snap_compare: Compare) -> None:
    assert matches_picture(
        snap_compare, names=(), config_path=Path("~/.config/dbq-console/config.toml")
    )


def test_without_colours(snap_compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def run(console: Opened) -> None:
        give_varying_depths(console)
        await console.give(*nine_queues(), production=True)
        await console.press("space")

    assert matches_picture(snap_compare, run)


# The other screens.


@pytest.fixture
def screen_matches(snap_compare: Compare, monkeypatch: pytest.MonkeyPatch) -> Callable[..., bool]:
    """As `matches_picture`, without an overview and without queries."""
    for tab in TABS:
        monkeypatch.setattr(tab, "poll", lambda _: None)
    monkeypatch.setattr(audit, "read_all", lambda *_: audit.AuditEntries())
    monkeypatch.setattr(MessageScreen, "_load", lambda *_, **__: None)

    def compare(run: Run, size: tuple[int, int] = SMALL, **options: Any) -> bool:
        return matches_picture(snap_compare, run, size, ("prod",), Bare, rights="admin", **options)

    return compare


async def tab_of(console: Opened, key: tuple[str, str, str], name: str) -> Any:
    """The screen of a queue with this tab, drawn."""
    console.app.open_queue(key, name)
    for _ in range(4):
        await console.pilot.pause()
    return console.app.screen


def add_repairable_finding(console: Opened) -> None:
    """Add a finding of the doctor that has a repair."""
    repair = FakeRepair(a_queue("mail"))
    found = finding(WARNING, "14 claims whose consumer disconnected", minutes=3, repair=repair)
    console.app.context.store.add_diagnoses(
        "prod", [diagnosis("mail", found)], console.clock.now, NOW, next_seconds=30.0
    )


MESSAGES = (
    message("4711", "error", error="no route\nto host", age_seconds=3_912.0, attempts=3),
    message("4712", "error", error="[bold]\x1b[31mbad", age_seconds=64.0, attempts=1),
    message("4713", "claimed", claimed_by="pid=4711 start=x consumer=etl", age_seconds=541.0),
    *(message(f"48{number}", age_seconds=60.0 - number, pushed_at=AT) for number in range(10, 40)),
)


def test_messages(screen_matches: Callable[..., bool]) -> None:
    async def run(console: Opened) -> None:
        await console.give(*nine_queues())
        pane = (await tab_of(console, MAIL, "messages")).query_one(MessagesTab)
        pane.show_page(LoadedPage(pane.request, Page(QUEUE, MESSAGES, None, complete=True)))
        await console.pilot.pause()
        await console.press("x", "j", "x", "j")

    assert screen_matches(run)


def test_slots(screen_matches: Callable[..., bool]) -> None:
    async def run(console: Opened) -> None:
        await console.give(*nine_queues())
        screen = await tab_of(console, ORDERS, "slots")
        screen.query_one(SlotsTab).show_result(QueueSlotMap(RING, MAP))
        await console.pilot.pause()
        await console.press("n")

    assert screen_matches(run, LARGE)


def test_a_message_with_json(screen_matches: Callable[..., bool]) -> None:
    text = '{"order": 12345678901234567890, "price": 1.10, "lines": [{"sku": "[bold]"}, null]}'

    async def run(console: Opened) -> None:
        screen = await console.opens(MessageScreen, console.app.open_message, MAIL, "error,,17")
        failed = replace(MESSAGES[0], pushed_at=AT, claimed_by="pid=4711 start=x consumer=etl")
        complete_message = replace(failed, payload=text, payload_bytes=len(text))
        screen.show_result(ReadMessage(complete_message, payload_bytes=FIRST_BYTES))
        await console.until(lambda: screen.view.layout_result and not screen.view.laying_out)

    assert screen_matches(run)


def test_a_finding_with_a_repair(screen_matches: Callable[..., bool]) -> None:
    async def run(console: Opened) -> None:
        await console.give(*nine_queues())
        add_repairable_finding(console)
        finding_views = console.app.context.store.findings(console.clock.now)
        await console.opens(
            FindingDialog,
            console.app.open_finding,
            next(
                finding_view for finding_view in finding_views if finding_view.code == WARNING.name
            ),
        )
        await console.until(lambda: "shows the plan" in console.picture)

    assert screen_matches(run, connections=(conn(),))


def test_install(screen_matches: Callable[..., bool]) -> None:
    async def run(console: Opened) -> None:
        console.app.open_install("prod")
        await console.pilot.pause()
        assert console.is_at(InstallScreen)

    assert screen_matches(run, connections=(conn(),))


def test_audit(screen_matches: Callable[..., bool]) -> None:
    async def run(console: Opened) -> None:
        console.app.open_audit("prod")
        await console.pilot.pause()
        later = replace(RUNNING, started_at=AT + timedelta(minutes=9))
        lines = (AuditRow(later, alive=False), AuditRow(ENTRY), AuditRow(INSTALL))
        screen = console.on_top(AuditScreen)
        await console.until(lambda: not screen._fetch.busy)
        screen.show(audit.AuditEntries(lines))

    assert screen_matches(run, connections=(conn(),))


def test_connections(screen_matches: Callable[..., bool]) -> None:
    async def run(console: Opened) -> None:
        console.feed.give(*nine_queues(), production=True)
        console.app.open_connections()
        await console.pilot.pause()
        assert console.is_at(ConnectionsScreen)

    url = "postgresql+psycopg://ops@db1/orders"
    here = replace(conn(rights=Rights.OPERATOR), url=url, origin="config.toml:3")
    assert screen_matches(run, connections=(here,))
