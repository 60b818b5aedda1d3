"""Each key that a tab shows does something in it, and lists share their keys."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.screen import Screen

from console.monitor.consumers import Consumers
from console.monitor.owners import Claims
from console.monitor.wording import RULES
from console.tui import ConsoleApp
from console.tui.commands import BY_NAME
from console.tui.screens.audit import AuditTab
from console.tui.screens.help import keys_of
from console.tui.screens.overview import KEYS, OverviewScreen
from console.tui.screens.queue import TABS, QueueScreen
from console.tui.tabs.consumers import ConsumersTab
from console.tui.tabs.errors import ErrorsTab
from console.tui.tabs.messages import MessagesTab, PageRequest
from console.tui.tabs.slots import SlotsTab
from console.tui.tabs.stuck import StuckTab
from console.tui.tabs.tab import QueueTab
from console.tui.tabs.waits import WaitsTab
from console.tui.widgets.browser import Browser
from console.views.audit import AuditRow
from console.views.consumers import SampledConsumers
from console.views.stuck import QueueHolders
from tests.tui.feeds import nine_queues
from tests.tui.one_tab import Shown, one_tab
from tests.tui.opened import Running, conn, opened
from tests.tui.test_audit import ENTRY, INSTALL, RUNNING
from tests.tui.test_lists import FEW, MANY, SOME, groups
from tests.tui.test_messages import ABC, QUEUE, give, requests_of
from tests.tui.test_tabs import ALIVE, BOUND, DEPARTED, GONE, NIGHT, PUSHER, SEEN_AT
from tests.tui.test_waits import FULL
from tests.tui.tour import HERE, SCREENS

pytestmark = pytest.mark.slow

RESULTS: dict[type[QueueTab], Any] = {
    ErrorsTab: groups(*(replace(one, key=f"{RULES}-{one.key * 16}") for one in (MANY, SOME, FEW))),
    StuckTab: QueueHolders(Claims((GONE, BOUND, ALIVE), more=False), None),
    WaitsTab: FULL,
    AuditTab: [AuditRow(RUNNING), AuditRow(ENTRY), AuditRow(INSTALL)],
    ConsumersTab: SampledConsumers(Consumers(QUEUE, SEEN_AT, (NIGHT, PUSHER)), (DEPARTED,)),
}
LIST_KEYS = {"/", "s", "S", "y", "E", "x", "*"}
MARKS = {"mark", "mark_all"}


async def fill(shown: Shown[Any], monkeypatch: pytest.MonkeyPatch) -> Sequence[PageRequest]:
    """Three rows, the cursor on the second; the requests of a list of messages."""
    requests: Sequence[PageRequest] = ()
    if isinstance(shown.tab, MessagesTab):
        give(shown.tab, *ABC[:3])
        requests = requests_of(shown.tab, monkeypatch)
    else:
        await shown.show(RESULTS[type(shown.tab)])
    shown.tab.table.move_cursor(1)
    await shown.pilot.pause()
    return requests


def keys_shown(shown: Shown[Any]) -> list[str]:
    """Those of the tab and of marks; tables move by their own, tested there."""
    return [
        binding.key
        for node, binding, enabled, _ in shown.app.screen.active_bindings.values()
        if enabled and (node is shown.tab or binding.action in MARKS)
    ]


@pytest.mark.parametrize("kind", [*RESULTS, MessagesTab])
async def test_each_key_of_a_list_does_something(
    kind: type[QueueTab], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    connections = [] if kind is WaitsTab else [conn()]
    async with one_tab(kind, connections=connections, size=(160, 48)) as shown:
        await fill(shown, monkeypatch)
        keys = keys_shown(shown)
        names = {
            name
            for names, _ in keys_of(shown.app.screen.active_bindings.values())
            for name in names.split()
        }
        assert names >= LIST_KEYS
        for key in keys:
            await shown.renew()
            shown.app.copy_to_clipboard("")
            shown.app.clear_notifications()
            requests = await fill(shown, monkeypatch)

            def seen(shown: Shown[Any] = shown, requests: Sequence[Any] = requests) -> list[object]:
                return [
                    shown.picture, shown.app.clipboard, len(shown.app._notifications),
                    shown.app.screen.focused, shown.tab.table.cursor_key, [*requests],
                    [*shown.navigator.calls], [*shown.app.screen_stack],
                ]  # fmt: skip

            before = seen()
            await shown.press(key)
            await shown.until(lambda before=before, seen=seen: seen() != before)  # type: ignore[misc]


@pytest.mark.parametrize("kind", TABS)
async def test_each_key_of_a_tab_has_its_action(kind: type[QueueTab]) -> None:
    async with opened(connections=[conn("prod-orders")], size=(160, 48)) as console:
        console.feed.give(*nine_queues())
        await console.pilot.pause()
        name = "orders" if kind is SlotsTab else "mail"
        console.app.open_queue(("prod-orders", "public", name), kind.NAME)
        await console.until(lambda: console.is_at(QueueScreen))
        screen = console.on_top(QueueScreen)
        await console.until(lambda: isinstance(screen.tab, kind) and screen.tab.is_composed)
        if issubclass(kind, Browser):
            assert screen.active_bindings.keys() >= {"slash", "s", "S", "y", "E", "x", "asterisk"}
        assert without_action(console) == []


def without_action(console: Running) -> list[tuple[str, str]]:
    """The keys of the screen on top that Textual would ignore: their action does not exist."""
    named: dict[str, object] = {"app": console.app, "screen": console.app.screen}
    found = []
    for node, binding, _, _ in console.app.screen.active_bindings.values():
        namespace, _, action = binding.action.rpartition(".")
        name, target = action.partition("(")[0], named.get(namespace, node)
        if not any(hasattr(target, f"{prefix}action_{name}") for prefix in ("", "_")):
            found.append((binding.key, binding.action))
    return found


@pytest.mark.parametrize("name", ["overview", *SCREENS])
async def test_each_key_of_a_screen_has_its_action(name: str) -> None:
    async with opened(HERE, connections=[conn(HERE)], size=(160, 48)) as console:
        console.feed.give(*(replace(nine_queue, connection=HERE) for nine_queue in nine_queues()))
        await console.pilot.pause()
        before = console.app.screen
        if name in SCREENS:
            SCREENS[name](console.app, (HERE, "public", "mail"))
            await console.until(lambda: console.app.screen is not before)
            await console.pilot.pause()
        assert console.app.screen.active_bindings
        assert without_action(console) == []


@pytest.mark.parametrize("screen", [OverviewScreen, QueueScreen])
def test_the_keys_of_features_are_free_and_open_a_command(screen: type[Screen[None]]) -> None:
    """A key that is taken would silently do what it did before."""
    for key in KEYS:
        taken = [
            binding.description
            for owner in (screen, ConsoleApp)
            for binding in owner._merge_bindings().key_to_bindings.get(key.key, [])
            if binding.action != f"feature('{key.key}')"
        ]
        assert taken == [], f"{key.key} for {key.command} is taken: choose another"
        assert key.command in BY_NAME, f"no COMMANDS of a feature's screens have {key.command}"
