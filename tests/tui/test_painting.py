"""Only what has changed is painted, and nothing that is covered."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from textual._compositor import Compositor
from textual.css.stylesheet import Stylesheet
from textual.dom import DOMNode
from textual.geometry import Region, Size
from textual.screen import Screen
from textual.widget import Widget

from console.tui.screens.overview import OverviewScreen
from console.tui.screens.queue import QueueScreen
from console.tui.widgets.charts import Chart, Charts
from console.tui.widgets.queue_table import QueueTable
from console.tui.widgets.summary import KeyFooter
from tests.tui.feeds import nine_queues
from tests.tui.opened import Opened, opened

LARGE = (160, 48)


@contextmanager
def refreshed() -> Iterator[list[tuple[Widget, tuple[Region, ...]]]]:
    """The widgets that request to be painted again, and their regions: () is all of it."""
    found: list[tuple[Widget, tuple[Region, ...]]] = []
    refresh = Widget.refresh

    def recorded(self: Widget, *regions: Region, **options: Any) -> Widget:
        found.append((self, regions))
        return refresh(self, *regions, **options)

    with mock.patch.object(Widget, "refresh", recorded):
        yield found


async def open_queue(console: Opened) -> QueueScreen:
    await console.press("enter")
    return console.on_top(QueueScreen)


async def test_equal_figures_paint_nothing_and_changed_figures_only_their_row() -> None:
    async with opened(size=LARGE) as console:
        await console.give(*nine_queues())
        with refreshed() as found:
            await console.give(*nine_queues())
        assert found == []
        table, (first, *others) = console.table, nine_queues()
        index = table.keys.index(repr((console.feed.name, first.schema, first.queue)))
        assert first.push_per_second is not None
        with refreshed() as found:
            await console.give(replace(first, push_per_second=first.push_per_second + 1), *others)
        regions = [
            region for widget, of in found if isinstance(widget, QueueTable) for region in of
        ]
        assert [(region.y, region.height) for region in regions] == [
            (index + table.HEADER_LINES, 1)
        ]


async def test_a_chart_is_rebuilt_only_when_it_moves_by_a_cell_and_never_when_covered() -> None:
    async with opened(size=LARGE) as console:
        await console.give(*nine_queues())
        screen = await open_queue(console)
        await console.give(*nine_queues())
        chart = screen.query_one(Charts).shown[0]
        cell = screen.query_one(Charts).span.seconds / chart.size.width
        with mock.patch.object(Chart, "_built", return_value="") as built, refreshed() as found:
            console.clock.now += cell / 100
            await console.give(*(replace(snapshot, ready=7) for snapshot in nine_queues()))
            assert not built.called
            # The text on the line above it is updated.
            words = Region(0, 0, chart.size.width, 1)
            assert [of for widget, of in found if widget is chart] == [(words,)]
            console.clock.now += cell
            await console.give(*(replace(snapshot, ready=7) for snapshot in nine_queues()))
        assert built.call_count == len(screen.query_one(Charts).shown)
        # A covered screen is neither drawn nor painted.
        with (
            mock.patch.object(OverviewScreen, "draw_body") as drawn,
            mock.patch.object(Compositor, "render_full_update") as painted,
        ):
            await console.give(*(replace(snapshot, ready=8) for snapshot in nine_queues()))
            # Any message to it used to repaint both screens.
            handled = asyncio.Event()
            console.overview.call_later(handled.set)
            await handled.wait()
            await console.pilot.pause()
        assert not drawn.called
        assert not painted.called


async def test_times_update_without_samples_and_the_footer_when_its_keys_change() -> None:
    async with opened(rights="admin") as console:
        await console.give(*nine_queues())
        keys = console.overview.query_one(KeyFooter)
        with mock.patch.object(keys, "refresh", wraps=keys.refresh) as drawn_keys:
            await console.give(*nine_queues())
            drawn_keys.assert_not_called()
            await console.press("slash")
            drawn_keys.assert_called()
        with mock.patch.object(OverviewScreen, "draw_body") as drawn:
            console.overview.draw_times()
            assert not drawn.called
            console.overview.last_reading_at -= 2
            console.overview.draw_times()
            assert drawn.called


async def test_a_queue_opens_with_its_tab_and_each_widget_is_styled_once() -> None:
    async with opened(size=LARGE) as console:
        await console.give(*nine_queues())
        apply, styled = Stylesheet.apply, list[DOMNode]()

        def recorded(self: Stylesheet, node: DOMNode, **options: Any) -> None:
            styled.append(node)
            apply(self, node, **options)

        with (
            mock.patch.object(Stylesheet, "apply", recorded),
            mock.patch.object(QueueScreen, "action_tab") as mounted,
        ):
            screen = await open_queue(console)
        assert screen.tab is not None
        assert screen.tab.is_mounted
        assert not mounted.called
        widgets = Counter(node for node in styled if isinstance(node, Widget))
        assert screen in widgets
        # Being focused changes a style.
        assert {widget for widget, times in widgets.items() if times > 1} == {screen.focused}
        assert not [
            domnode for domnode in styled if any(c.startswith("text--") for c in domnode.classes)
        ]


async def test_a_screen_is_laid_out_once_for_its_size() -> None:
    async with opened(size=LARGE) as console:
        await console.give(*nine_queues())
        laid_out = Screen._refresh_layout
        with mock.patch.object(Screen, "_refresh_layout", autospec=True) as layouts:
            layouts.side_effect = laid_out
            screen = await open_queue(console)
            await console.pilot.pause()
            sizes = [call.args[1] for call in layouts.call_args_list if call.args[1:]]
            assert sizes == [Size(*LARGE)]
            await console.pilot.resize_terminal(100, 40)
            await console.pilot.pause()
        assert (screen.size, screen.query_one(KeyFooter).region.bottom) == (Size(100, 40), 40)


async def test_the_footer_gets_its_keys_without_a_query_of_all_widgets() -> None:
    async with opened(size=LARGE) as console:
        await console.give(*nine_queues())
        screen = await open_queue(console)
        for shown in (console.overview, screen):
            assert shown.active_bindings
            with mock.patch.object(DOMNode, "query") as walked:
                assert shown.active_bindings
            assert not walked.called
