"""The tab History: charts of what was recorded, what happened, and how to get a recording."""

from datetime import UTC
from pathlib import Path

import pytest

from console.forecast_files import HOURS
from console.monitor.latency import Latency, Percentiles
from console.monitor.recording.forecast import Band, Expected, Forecast
from console.tui.open_connection import Recordings
from console.tui.tabs.history import HistoryTab
from console.tui.text import Paragraph
from console.tui.widgets.charts import Chart, extent
from tests.tui.feeds import queue
from tests.tui.one_tab import Shown, one_tab, until
from tests.tui.recorded import BEGIN, Taken

# The clock of the tests stands at 02:14:07, the recording begins at 01:00.
LAST = 4_440


LATENCY = Latency(Percentiles(0.1, 0.4, 2.0), Percentiles())


def recorded(root: Path) -> None:
    """Seen from 01:40 to 01:55 and, idle, from 02:10 on."""
    taken = Taken(root)
    for second in range(2400, 3300, 10):
        mail = queue("mail", ready=second, age_seconds=2.0, latency=LATENCY)
        taken.look(second, mail, next_seconds=10.0)
    for second in range(4200, LAST + 1, 60):
        taken.look(second, queue("mail", ready=1), next_seconds=60.0)
    for second in (2400, 2460, 2520):
        taken.found(second, "mail", ["odd"] if second == 2460 else [])
    taken.acted(3000, "mail", "purge")
    taken.close()


def charts(shown: Shown[HistoryTab]) -> list[Chart]:
    return [one for one in shown.tab.query(Chart) if one.display]


@pytest.mark.parametrize(("size", "seen"), [((80, 24), 1), ((160, 48), 4), ((50, 14), 1)])
async def test_what_was_recorded_is_drawn_and_gaps_are_gaps(
    tmp_path: Path, size: tuple[int, int], seen: int
) -> None:
    recorded(tmp_path)
    async with one_tab(HistoryTab, size=size) as shown:
        shown.app.context.recordings = Recordings(tmp_path)
        shown.tab.look()
        await shown.until(lambda: shown.tab.found)
        assert len(charts(shown)) == seen
        drawing = charts(shown)[0].drawing
        assert drawing is not None
        assert "up to 3.29 k" in "".join(text for text, _ in drawing.words)
        # Nothing was seen for a quarter of an hour; pauses that were meant are none.
        assert [len(run) for run in drawing.curves[0].runs] == [60, 5]
        told = [one.drawing for one in charts(shown) if one.drawing is not None]
        latencies = [one for one in told if one.words[0][0] == "waiting p50, p95, p99 "]
        assert [len(one.curves) for one in latencies] == ([3] if seen == 4 else [])
        assert all("up to 2 s" in one.words[1][0] for one in latencies)


async def test_marks_are_told_and_the_charts_point_at_them(tmp_path: Path) -> None:
    recorded(tmp_path)
    async with one_tab(HistoryTab, size=(100, 40)) as shown:
        shown.app.context.recordings = Recordings(tmp_path)
        shown.tab.look()
        await shown.until(lambda: shown.tab.found)
        table = shown.tab.table
        told = shown.tab.query_one("#history-told", Paragraph)
        assert [table.cells(key)["name"].text for key in table.keys] == ["▶ purge", "! odd"]
        assert "ok, 3 of 3, ann" in told.said
        table.move_cursor(1)
        await shown.pilot.pause()
        assert "2026-03-29 01:41:00 UTC to 2026-03-29 01:42:00 UTC" in told.said
        drawing = charts(shown)[0].drawing
        assert drawing is not None
        assert drawing.marked is not None
        assert drawing.moment.now - drawing.marked == pytest.approx(33 * 60 + 7, abs=1)


async def test_another_span_is_read_anew(tmp_path: Path) -> None:
    recorded(tmp_path)
    async with one_tab(HistoryTab) as shown:
        shown.app.context.recordings = Recordings(tmp_path)
        shown.tab.look()
        await shown.until(lambda: shown.tab.found)
        first = shown.tab.found
        shown.tab.look()
        assert not shown.tab._question.under_way, "it is read again at once"
        for title in ("24 h", "7 d", "30 d", "1 h"):
            shown.tab.action_zoom(1)
            assert shown.tab.span.title == title
        await shown.until(lambda: shown.tab.found is not first)
        await until(shown.pilot, lambda: not shown.tab._question.under_way)
        assert shown.tab.found is not None
        assert shown.tab.found.points == (first.points if first else ())


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_what_is_expected_stands_behind_the_rates_and_beyond_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    recorded(tmp_path)
    hour = Expected(Band(3_600, 14_400, 25_200), None, None)
    known = Forecast(dict.fromkeys(range(HOURS), hour), UTC, 8, 56, BEGIN)
    monkeypatch.setattr("console.tui.tabs.history.read_forecast", lambda *_: known)
    async with one_tab(HistoryTab, size=size) as shown:
        shown.app.context.recordings = Recordings(tmp_path)
        shown.tab.action_zoom(1)  # 24 h
        await shown.until(lambda: shown.tab.found)
        drawings = list(shown.tab._drawings())
        assert [one.words[0][0] for one in drawings[:3]] == ["ready ", "pushes/s ", "pops/s "]
        ready, pushes, pops = drawings[:3]
        assert (ready.ahead_seconds, pops.bands) == (0, ())
        assert pushes.ahead_seconds == 6 * 3600
        assert len(pushes.bands) == 24 + 6 + 1  # the first of them had begun before
        assert extent(pushes)[1] >= 7.0
        for _ in range(1 if size[0] == 80 else 0):
            shown.tab.action_chart(1)
        await shown.until(lambda: "░" in shown.picture and "▒" in shown.picture)
        assert "90 % of such hours and their median, of 8 weeks" in shown.picture
        short = Forecast(days=12, why="no forecast: 12 days of history, 21 are needed")
        assert shown.tab.found is not None
        shown.tab.show_found((shown.tab.found, short))
        await shown.until(lambda: "12 days of history" in shown.picture)
        assert [one.words[0][0] for one in shown.tab._drawings()][1] == "push/s and pop/s "


@pytest.mark.parametrize("kept", [True, False])
async def test_where_there_is_nothing_it_says_how_to_record(tmp_path: Path, *, kept: bool) -> None:
    async with one_tab(HistoryTab) as shown:
        shown.app.context.recordings = Recordings(tmp_path) if kept else None
        shown.tab.look()
        shown.tab.draw(None, paused=False)
        words = "Nothing is recorded of 'mail'" if kept else "Nothing is recorded here."
        await shown.until(lambda: words in shown.picture)
        assert "dbq-console record" in shown.picture
        assert "record = false" in shown.picture
