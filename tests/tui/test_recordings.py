"""The console records its samples while it runs; the tab History shows them."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pexpect  # type: ignore[import-untyped]
import pytest

from console.catalog import Queue
from console.designs import design
from console.doctor.finding import Code, Diagnosis, Finding
from console.doctor.watcher import DoctorUpdate
from console.features.history import segments
from console.features.history.forecast import Band, BandsOfHours, Expected, Forecast
from console.features.history.forecast_files import HOURS
from console.features.history.reader import RecordReader
from console.features.history.recorder import Recorder
from console.features.history.recordings import RETRY_SECONDS, ConnectionRecorder, Recordings
from console.features.history.segments import ALWAYS, FINDINGS, LINKS, SAMPLES
from console.features.history.tabs.history import HistoryTab
from console.monitor.latency import Latency, Percentiles
from console.monitor.limits import Severity
from console.monitor.sampler import Reading
from console.tui.text import Paragraph
from console.tui.widgets.charts import Chart, Drawing, y_limits
from tests.servers import wait_until
from tests.tui.feeds import BEGIN, RecordedConnection, queue
from tests.tui.one_tab import Shown, one_tab
from tests.tui.opened import alone, conn
from tests.tui.test_lists import exported
from tests.tui.test_terminal import install_queue, on_terminal

pytestmark = pytest.mark.slow

READING = Reading("prod", (queue("mail", ready=3),), next_seconds=1.0)


def wait_for(condition: Callable[[], object]) -> None:
    wait_until(lambda: bool(condition()), "it comes")


def is_empty(folder: Path) -> bool:
    return not any(folder.iterdir())


async def test_samples_and_findings_are_recorded_and_stopping_closes_the_segment(
    tmp_path: Path,
) -> None:
    async with alone(connections=[conn()], recordings=tmp_path) as console:
        console.feed.give(queue("mail", ready=3), queue("late"))
        quoted = {"first_error": "card 4111"}
        code = Code("odd", Severity.WARNING, "")
        finding = Finding(code, "it is odd; the first: card 4111", quoted)
        examined = DoctorUpdate(
            (Diagnosis(Queue("public", "mail", design("fifo"), {}, {}), (finding,)),)
        )
        console.app._on_examined("prod")(examined)
        reader = RecordReader(tmp_path, "prod")
        await console.until(lambda: reader.rows(FINDINGS, ALWAYS))
        console.app.open_connections()
        await console.pilot.pause()
        assert "recorded to" in console.picture
    recordings = console.app.context.recordings
    assert recordings is not None
    recordings.wait(60.0)
    assert not segments.open_segments(tmp_path, "prod"), "the segment is open still"
    assert {row["queue"] for row in reader.rows(SAMPLES, ALWAYS)} == {"mail", "late"}
    (kept,) = reader.rows(FINDINGS, ALWAYS)
    assert (kept["queue"], kept["code"], kept["summary"]) == ("mail", "odd", "it is odd")


@pytest.mark.parametrize("record", [True, False])
async def test_nothing_is_recorded_if_it_is_disabled(tmp_path: Path, *, record: bool) -> None:
    options: dict[str, Any] = {"recordings": tmp_path} if not record else {}
    async with alone(connections=[replace(conn(), record=record)], **options) as console:
        console.feed.give(queue("mail"))
        await console.pilot.pause()
        assert is_empty(tmp_path)
        console.app.open_connections()
        await console.pilot.pause()
        assert ("not recorded: record = false" in console.picture) is not record


async def test_a_problem_with_recording_is_on_the_screen(tmp_path: Path) -> None:
    wall = tmp_path / "wall"
    wall.write_text("a file")
    async with alone(connections=[conn()], recordings=wall) as console:
        console.feed.give(queue("mail"))
        await console.until(lambda: "! prod: not recorded:" in console.picture)
        assert "Not a directory" in console.picture


def test_one_console_records_and_the_next_takes_over(tmp_path: Path) -> None:
    now = [0.0]
    first = Recorder(tmp_path, "prod")
    other = ConnectionRecorder(tmp_path, conn(), lambda: now[0])
    other.on_reading(READING)
    assert (other.status, other.problem) == ("recorded by another console", "")
    first.close()
    other.on_reading(READING)
    assert other.status == "recorded by another console"
    now[0] += RETRY_SECONDS
    other.on_reading(READING)
    assert other.status == f"recorded to {tmp_path}"
    other.stop()
    other.wait(time.monotonic() + 60)
    assert len(RecordReader(tmp_path, "prod").rows(LINKS, ALWAYS)) == 1


def test_stopping_does_not_wait_for_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = threading.Event()
    monkeypatch.setattr(segments.Segment, "write", lambda *_: hangs.wait())
    recording = ConnectionRecorder(tmp_path, conn())
    for _ in range(2_000):  # more than the recorder buffers
        recording.on_reading(READING)
    assert recording.problem == "not recorded: the disk is too slow"
    recording.stop()
    recording.wait(time.monotonic() + 0.1)
    hangs.set()


def started(url: str, state: Path) -> "pexpect.spawn[str]":
    words = ["-m", "console.cli", "--url", url]
    return on_terminal(words, columns=100, XDG_STATE_HOME=str(state))


@pytest.mark.long
def test_a_segment_left_by_a_killed_console_is_closed_by_the_next(
    database_url: str, tmp_path: Path
) -> None:
    install_queue(database_url, "letters")
    root = tmp_path / "dbq-console" / "recordings"

    def kept() -> list[object]:
        names = segments.connections(root)
        return [
            row["at"] for name in names for row in RecordReader(root, name).rows(SAMPLES, ALWAYS)
        ]

    console = started(database_url, tmp_path)
    console.expect("letters")
    wait_for(kept)
    (name,) = segments.connections(root)
    console.kill(9)
    console.expect(pexpect.EOF)
    console.close()
    (segment,) = segments.open_segments(root, name)
    before = kept()
    with started(database_url, tmp_path) as second:
        second.expect("letters")
        wait_for(lambda: not segment.exists())
        assert [*segments.closed(root, SAMPLES, name)]
        assert kept()[: len(before)] == before
        second.send("\x11")
        second.expect(pexpect.EOF)
    wait_for(lambda: not segments.open_segments(root, name))


# The clock of the tests is at 02:14:07, the recording begins at 01:00.
LAST = 4_440


LATENCY = Latency(Percentiles(0.1, 0.4, 2.0), Percentiles())


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recordings:
    """Sampled from 01:40 to 01:55 and, idle, from 02:10 on."""
    root = tmp_path_factory.mktemp("recordings")
    recording = RecordedConnection(root)
    for second in range(2400, 3300, 10):
        mail = queue("mail", ready=second, age_seconds=2.0, latency=LATENCY)
        recording.sample(second, mail, next_seconds=10.0)
    for second in range(4200, LAST + 1, 60):
        recording.sample(second, queue("mail", ready=1), next_seconds=60.0)
    for second in (2400, 2460, 2520):
        recording.add_findings(second, "mail", ["odd"] if second == 2460 else [])
    recording.add_action(3000, "mail", "purge")
    recording.add_note(3060, "deployed 1.4")
    recording.close()
    return Recordings(root)


def charts(shown: Shown[HistoryTab]) -> list[Drawing]:
    drawings = [chart.drawing for chart in shown.tab.query(Chart) if chart.display]
    return [drawing for drawing in drawings if drawing is not None]


async def test_recorded_figures_are_drawn_with_their_gaps(recorded: Recordings) -> None:
    async with one_tab(HistoryTab) as shown:
        shown.app.context.recordings = recorded
        shown.tab.poll()
        await shown.until(lambda: shown.tab.result)
        for size, count in (((80, 24), 1), ((50, 14), 1), ((160, 48), 4)):
            await shown.resize(*size)
            await shown.until(lambda count=count: len(charts(shown)) == count)  # type: ignore[misc]
            first = charts(shown)[0]
            assert "up to 3.29 k" in "".join(text for text, _ in first.title)
            # Nothing was sampled for 15 minutes; the pauses of an idle database are no gaps.
            assert [len(run) for run in first.curves[0].runs] == [60, 5]
            # A note about the database is on the charts of each queue, wherever the cursor is.
            noted_at = (BEGIN + timedelta(seconds=3060)).timestamp()
            assert all(drawing.notes == (noted_at,) for drawing in charts(shown))
        (waiting,) = (
            drawing for drawing in charts(shown) if drawing.title[0][0] == "waiting p50, p95, p99 "
        )
        assert len(waiting.curves) == 3
        assert "up to 2 s" in waiting.title[1][0]


async def test_marks_have_details_and_another_span_is_read_again(recorded: Recordings) -> None:
    async with one_tab(HistoryTab, size=(100, 40)) as shown:
        shown.app.context.recordings = recorded
        shown.tab.poll()
        await shown.until(lambda: shown.tab.result)
        table = shown.tab.table
        detail = shown.tab.query_one("#history-detail", Paragraph)
        assert [table.cells(key)["name"].text for key in table.keys] == [
            "◆ ann",
            "▶ purge",
            "! odd",
        ]
        assert "deployed 1.4" in detail.plain_text
        table.move_cursor(1)
        await shown.pilot.pause()
        assert "ok, 3 of 3, ann" in detail.plain_text
        table.move_cursor(2)
        await shown.pilot.pause()
        assert "2026-03-29 01:41:00 UTC to 2026-03-29 01:42:00 UTC" in detail.plain_text
        drawing = charts(shown)[0]
        assert drawing.marker is not None
        assert drawing.moment.now - drawing.marker == pytest.approx(33 * 60 + 7, abs=1)
        first = shown.tab.result
        shown.tab.poll()
        assert not shown.tab._fetch.busy, "it is read again at once"
        for title in ("24 h", "7 d", "30 d", "1 h"):
            shown.tab.action_zoom(1)
            assert shown.tab.span.title == title
        await shown.until(lambda: shown.tab.result is not first)
        await shown.until(lambda: not shown.tab._fetch.busy)
        assert shown.tab.result is not None
        assert shown.tab.result.points == (first.points if first else ())


async def test_the_forecast_is_drawn_behind_the_rates_and_beyond_now(
    recorded: Recordings, monkeypatch: pytest.MonkeyPatch
) -> None:
    hour = Expected(Band(3_600, 14_400, 25_200), None, None)
    forecast = Forecast(dict.fromkeys(range(HOURS), hour), UTC, 8, 56, BEGIN)
    monkeypatch.setattr("console.features.history.tabs.history.read_forecast", lambda *_: forecast)
    async with one_tab(HistoryTab, size=(160, 48)) as shown:
        shown.app.context.recordings = recorded
        shown.tab.action_zoom(1)  # 24 h
        await shown.until(lambda: shown.tab.result)
        drawings = list(shown.tab._drawings())
        assert [drawing.title[0][0] for drawing in drawings[:3]] == [
            "ready ",
            "pushes/s ",
            "pops/s ",
        ]
        ready, pushes, pops = drawings[:3]
        assert (ready.ahead_seconds, pops.background) == (0, None)
        assert pushes.ahead_seconds == 6 * 3600
        assert isinstance(pushes.background, BandsOfHours)
        assert len(pushes.background.bands) == 24 + 6 + 1  # the first begins before the span
        assert y_limits(pushes)[1] >= 7.0
        await shown.until(lambda: "░" in shown.picture and "▒" in shown.picture)
        assert "90 % of such hours and their median, of 8 weeks" in shown.picture
        await shown.resize(80, 24)
        shown.tab.action_chart(1)
        await shown.until(lambda: "░" in shown.picture and "▒" in shown.picture)
        short = Forecast(days=12, why="no forecast: 12 days of history, 21 are needed")
        assert shown.tab.result is not None
        shown.tab.show_result((shown.tab.result, short))
        await shown.until(lambda: "12 days of history" in shown.picture)
        assert [drawing.title[0][0] for drawing in shown.tab._drawings()][1] == "push/s and pop/s "


@pytest.mark.parametrize("kept", [True, False])
async def test_an_empty_history_says_how_to_record(tmp_path: Path, *, kept: bool) -> None:
    async with one_tab(HistoryTab) as shown:
        shown.app.context.recordings = Recordings(tmp_path) if kept else None
        shown.tab.poll()
        shown.tab.draw(None, paused=False)
        words = "Nothing was recorded of 'mail'" if kept else "Nothing is recorded here."
        await shown.until(lambda: words in shown.picture)
        shown.shows("dbq-console record", "record = false")


async def test_what_happened_is_filtered_sorted_marked_copied_and_exported_as_any_list(
    recorded: Recordings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with one_tab(HistoryTab, size=(160, 48)) as shown:
        shown.app.context.recordings = recorded
        shown.tab.poll()
        await shown.until(lambda: shown.tab.result)
        table, notes = shown.tab.table, shown.app._notifications
        newest = [*table.keys]
        shown.app.screen.set_focus(table)
        await shown.press("s", "S")
        assert table.sort_column == "at"
        assert [*table.keys] == newest
        await shown.press("S")
        assert [*table.keys] == newest[::-1]
        await shown.press("slash", *"purge", "enter")
        assert [table.cells(key)["name"].text for key in table.keys] == ["▶ purge"]
        assert "filter purge: 1 row" in shown.picture
        await shown.press("y")
        assert "ok, 3 of 3, ann" in shown.app.clipboard
        await shown.press("E")
        await shown.until(lambda: any("1 row in" in notification.message for notification in notes))
        (row,) = exported(tmp_path)
        assert row["when"].startswith("2026-03-29T01:")
        await shown.press("escape", "x")
        assert len(table.keys) == 3
        assert "1 marked" in shown.picture
