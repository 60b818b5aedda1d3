"""Why and the timeline, as tabs of a queue; the screen of the handover."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Markdown

from console.catalog.audit import Entry
from console.features.history.segments import TimeRange
from console.features.why.events import Event
from console.features.why.explain import Explanation, Timeline, Where, explain
from console.features.why.handover import handover
from console.features.why.recorded import Catalog
from console.features.why.screens.handover import HandoverScreen
from console.features.why.tabs.timeline import TimelineTab
from console.features.why.tabs.why import WhyTab
from console.tui.dialogs.audit_entry import AuditEntryDialog
from console.tui.screens.queue import TABS, QueueScreen
from tests.tools.incidents import BEGIN, incident
from tests.tui.feeds import queue
from tests.tui.one_tab import KEY, one_tab
from tests.tui.opened import alone, conn

pytestmark = pytest.mark.slow

_NOW = BEGIN + timedelta(hours=3)


@pytest.fixture(scope="module")
def explanation(tmp_path_factory: pytest.TempPathFactory) -> Explanation:
    root = tmp_path_factory.mktemp("recorded")
    simulated = incident("consumers", 5)
    simulated.write(root)
    return explain(Where(root, "prod", "public", "orders"), simulated.now, simulated.now)


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_why_shows_causes_evidence_and_what_would_disprove_them(
    explanation: Explanation, size: tuple[int, int]
) -> None:
    async with one_tab(WhyTab, size=size) as shown:
        await shown.show(explanation)
        assert "possible cause" in shown.text_of("#why-head")
        assert "pop/s fell: usually" in shown.text_of("#why-head")
        detail = shown.text_of("#why-detail")
        assert "consumers disconnected: mailer" in detail
        assert "not this if: the same consumers are connected and pop" in detail
        await shown.pilot.press("enter")
        assert shown.navigator.calls == [("queue", KEY, "consumers")]


async def test_why_has_no_empty_table_where_nothing_is_to_explain(explanation: Explanation) -> None:
    async with one_tab(WhyTab) as shown:
        nothing: Any = {**vars(explanation), "causes": (), "changes": (), "harms": False}
        await shown.show(Explanation(**nothing))
        assert "nothing to explain" in shown.text_of("#why-head")
        assert not shown.tab.table.display


def _entry() -> Entry:
    return Entry(
        7, "public", "mail", "requeue", BEGIN, BEGIN, BEGIN, "ann@ops", "ann", "", "prod", "",
        None, 5, 5, 5, 0, 0, "done", "",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("event", "opens"),
    [
        (Event(BEGIN, "consumer", "mailer", "went", opens="consumers"), "consumers"),
        (Event(BEGIN, "finding", "error_burst", "warning: many", opens="errors"), "errors"),
        (Event(BEGIN, "figure", "age", "age rose", opens="history"), "history"),
        (Event(BEGIN, "connection", "prod", "lost"), "history"),
    ],
)
async def test_each_line_of_the_timeline_opens_what_it_is_about(event: Event, opens: str) -> None:
    async with one_tab(TimelineTab) as shown:
        span = TimeRange(BEGIN, _NOW)
        await shown.show(Timeline("public.mail on prod", span, (event,), Catalog()))
        assert shown.text_of("#timeline-head").startswith("1 event in the last 3 h")
        await shown.pilot.press("enter")
        assert shown.navigator.calls == [("queue", KEY, opens)]


async def test_an_action_opens_its_entry_of_the_audit_or_the_audit() -> None:
    async with one_tab(TimelineTab) as shown:
        span = TimeRange(BEGIN, _NOW)
        event = Event(BEGIN, "action", "requeue", "done", opens="audit", action_id=7)
        result = Timeline("public.mail on prod", span, (event,), Catalog())
        await shown.show(result)
        await shown.pilot.press("enter")
        assert shown.navigator.calls == [("open_audit", "prod", KEY)]
        known = Catalog(entries={7: _entry()})
        await shown.show(Timeline("public.mail on prod", span, (event,), known))
        await shown.pilot.press("enter")
        assert isinstance(shown.app.screen, AuditEntryDialog)


async def test_the_keys_of_a_queue_open_both_tabs_which_have_no_digit(tmp_path: Path) -> None:
    assert [tab.NAME for tab in TABS][9:] == ["consumers", "timeline", "why"]
    async with alone(connections=[conn()], recordings=tmp_path) as console:
        console.feed.give(queue("mail", ready=3))
        console.app.open_queue(KEY)
        await console.pilot.pause()
        for key, kind in (("Y", WhyTab), ("e", TimelineTab)):
            await console.pilot.press(key)
            await console.pilot.pause()
            screen = console.app.screen
            assert isinstance(screen, QueueScreen)
            assert isinstance(screen.tab, kind)
        assert "0 Cons Time" in console.picture
    async with alone(connections=[conn()], size=(160, 48)) as console:
        console.feed.give(queue("mail", ready=3))
        console.app.open_queue(KEY)
        await console.pilot.pause()
        assert "0 Consumers  e Timeline  Y Why" in console.picture


async def test_the_handover_of_all_connections_is_one_key_away(tmp_path: Path) -> None:
    recorded = tmp_path / "of another day"  # the console's own recorder removes what is so old
    incident("consumers", 5).write(recorded)
    async with alone(connections=[conn()], recordings=tmp_path / "own") as console:
        console.feed.give(queue("mail", ready=3))
        console.app.open_queue(KEY)
        await console.pilot.pause()
        await console.pilot.press("H")
        await console.pilot.pause()
        screen = console.app.screen
        assert isinstance(screen, HandoverScreen)
        await console.until(lambda: screen.text)
        assert screen.text.startswith("# Handover: prod")
        assert "the audit was not read" in screen.text
        await console.until(lambda: "Not over" in console.picture)
        found = handover(recorded, "prod", None, 8 * 3600.0, BEGIN + timedelta(hours=4))
        screen.show([found])
        await console.until(lambda: "public.orders" in screen.query_one(Markdown).source)
        await console.pilot.press("z")
        assert "the last 12h" in console.picture
