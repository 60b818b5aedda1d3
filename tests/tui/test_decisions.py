"""What operators have decided of a queue, on every screen that shows it."""

from datetime import timedelta
from pathlib import Path

from console.tui.open_connection import Recordings
from console.tui.tabs.history import HistoryTab
from console.tui.widgets.charts import Chart
from tests.tui.feeds import AT_TWO, PAUSE, PROTECTION, queue
from tests.tui.one_tab import one_tab
from tests.tui.opened import opened
from tests.tui.recorded import BEGIN, Taken
from tests.tui.test_queue import open_queue, settled

AT = AT_TWO + timedelta(minutes=12)
WHOLE = "PAUSED by ann@etl01 since 2026-03-29 02:00:00 UTC, until 2026-03-29 04:00:00 UTC: bad"


async def test_the_overview_says_who_paused_a_queue_and_for_how_long() -> None:
    """In the row and below the table; on a narrow screen in few words."""
    async with opened(size=(160, 48)) as console:
        mail = queue("mail", "claim", decisions=(PAUSE, PROTECTION), moment=AT)
        await console.give(mail, queue("bills", decisions=(PROTECTION,), moment=AT))
        assert "mail » PAUSED 12 min, ann" in console.picture
        assert "bills » PROTECTED 12 min, bob" in console.picture
        await console.pilot.press("slash", *"mail", "enter")
        assert WHOLE in console.picture
        await console.pilot.resize_terminal(80, 24)
        await console.pilot.pause()
        assert "mail » PAUSED" in console.picture
        assert "PAUSED 12 min, ann  PROTECTED 12 min, bob" in console.picture


async def test_the_screen_of_a_queue_says_it_whatever_its_tab() -> None:
    async with opened(size=(160, 48)) as console:
        mail = queue("mail", "claim", decisions=(PAUSE,), moment=AT)
        await open_queue(console, "mail", "", mail)
        await settled(console.pilot)
        assert WHOLE in console.picture
        await console.pilot.resize_terminal(80, 24)
        await settled(console.pilot)
        assert "public.mail  claim  PAUSED 12 min, ann" in console.picture
        await console.give(queue("mail", "claim"))
        await settled(console.pilot)
        assert "PAUSED" not in console.picture


def test_short_marks_count_whole_seconds() -> None:
    assert PAUSE.mark(AT_TWO + timedelta(seconds=43.4)) == "PAUSED 43 s, ann"
    assert PAUSE.mark(AT_TWO - timedelta(seconds=1)) == "PAUSED 0 s, ann"


async def test_a_note_is_a_mark_on_every_chart_of_the_past(tmp_path: Path) -> None:
    """Of the whole database: on the charts of each queue, wherever the cursor is."""
    taken = Taken(tmp_path)
    for second in range(2400, 4440, 60):
        taken.look(second, queue("mail", ready=1, age_seconds=2.0), next_seconds=60.0)
    taken.noted(3000, "deployed 1.4")
    taken.close()
    async with one_tab(HistoryTab, size=(160, 48)) as shown:
        shown.app.context.recordings = Recordings(tmp_path)
        shown.tab.look()
        await shown.until(lambda: shown.tab.found)
        (mark,) = shown.tab.found.marks if shown.tab.found else ()
        assert (mark.kind, mark.name, mark.words) == ("note", "ann", "deployed 1.4")
        drawings = [one.drawing for one in shown.tab.query(Chart) if one.display]
        at = (BEGIN + timedelta(seconds=3000)).timestamp()
        assert drawings
        assert all(one is not None and one.noted == (at,) for one in drawings)
