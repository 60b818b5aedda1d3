"""Charts: curves, axes and time zones; when a ring will be full by its usual rates."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from console.catalog import installed_queue
from console.clock import scale, scale_count, scale_seconds, short_count, short_seconds, ticks
from console.designs import design
from console.doctor.finding import Diagnosis
from console.features.history.forecast import Band, Expected, Forecast
from console.features.history.forecast_files import HOURS
from console.monitor.latency import Latency, Percentiles
from console.monitor.limits import DEFAULTS
from console.monitor.sampler import Reading
from console.monitor.snapshot import QueueSnapshot
from console.tui.screens.queue import QueueScreen
from console.tui.series import SPANS, Series
from console.tui.store import Store
from console.tui.views import QueueView
from console.tui.widgets.charts import Chart, Charts, ChartTime, Drawing, drawings, y_limits
from console.tui.widgets.keyed_table import cell_of
from console.tui.widgets.queue_columns import COLUMNS
from console.tui.widgets.queue_detail import FiguresPanel, pieces
from tests.tui.feeds import nine_queues, queue
from tests.tui.opened import Opened, invisible, opened

KEY = ("prod-orders", "public", "orders")
AT = datetime(2026, 3, 29, 2, 14, 7, tzinfo=UTC)


def ring(**figures: object) -> QueueSnapshot:
    (snapshot,) = (nine_queue for nine_queue in nine_queues() if nine_queue.queue == "orders")
    return replace(snapshot, **figures)  # type: ignore[arg-type]


def drawn(*samples: tuple[float, QueueSnapshot], now: float, span: int = 0) -> list[Drawing]:
    series = Series()
    for at, snapshot in samples:
        series.add(KEY[0], Reading("x", (snapshot,), latency_seconds=0.004), at, 1.0)
    return drawings(series, KEY, samples[-1][1], SPANS[span], ChartTime(now, AT, UTC))


@given(st.floats(1e-6, 1e12))
def test_an_axis_ends_at_a_round_figure_not_below_the_highest_value(highest: float) -> None:
    for by in (scale, scale_count, scale_seconds):
        assert by(highest) >= highest * (1 - 1e-9)
    assert scale(highest) <= highest * 2.51
    assert scale_count(highest) / 2 == round(scale_count(highest) / 2) or highest > 10


def test_figures_beside_an_axis_are_short() -> None:
    counts = [short_count(one) for one in (0, 0.5, 812, 2500, 10_000, 1.2e6, -4000)]
    assert counts == ["0", "0.5", "812", "2.5 k", "10 k", "1.2 M", "-4 k"]
    times = [short_seconds(one) for one in (0, 0.005, 2.5, 240, 7200, 172_800)]
    assert times == ["0", "5 ms", "2.5 s", "4 min", "2 h", "2 d"]


@given(
    st.sampled_from(SPANS),
    st.integers(20, 200),
    st.datetimes(datetime(2026, 1, 1), datetime(2026, 12, 31), timezones=st.just(UTC)),  # noqa: DTZ001
    st.integers(-12 * 60, 14 * 60).map(lambda m: timezone(timedelta(minutes=m))),
)
def test_times_along_a_chart_are_whole_minutes_in_the_zone_and_fit(
    span: object, width: int, utc: datetime, zone: tzinfo
) -> None:
    positions, labels = ticks(span.seconds, width, utc, zone)  # type: ignore[attr-defined]
    assert all(-span.seconds <= position <= 0 for position in positions)  # type: ignore[attr-defined]
    assert len(labels) * 9 <= max(9, width) + 9
    for position, label in zip(positions, labels, strict=True):
        wall = (utc + timedelta(seconds=position)).astimezone(zone)
        assert label == f"{wall + timedelta(microseconds=500):%H:%M}"
        assert (wall + timedelta(microseconds=500)).second == 0


def test_a_chart_begins_at_zero_unless_a_figure_is_negative() -> None:
    depth, _, gap, _ = drawn((1000, ring(ready=3, gap=-7)), (1001, ring(ready=5, gap=5)), now=1001)
    assert y_limits(depth) == (0, 6)
    assert y_limits(gap) == (-8, 6)


def test_a_ring_has_a_chart_of_its_gap_others_of_their_age_and_a_heap_of_neither() -> None:
    def heads(snapshot: QueueSnapshot) -> list[str]:
        series = Series()
        return [d.title[0][0].strip() for d in drawings(series, KEY, snapshot, SPANS[0], NOW)]

    assert heads(ring()) == ["ready", "▄ push/s", "gap", "sample latency"]
    assert heads(queue("q")) == ["ready", "▄ push/s", "age of the oldest", "sample latency"]
    assert heads(queue("q", "heap")) == ["ready", "▄ push/s", "sample latency"]
    for name in ("pgmq", "graphile-worker", "wheel"):
        assert heads(queue("q", name)), "a library, or a design that is not known"


def latency(p50: float | None = 0.1, messages: int | None = 40) -> Latency:
    known = Percentiles(p50, p50 and 2 * p50, p50 and 3 * p50, messages, 60.0)
    why = "a pop deletes the message" if messages is None else "too few"
    return Latency(
        known if p50 else replace(known, unknown=why),
        Percentiles(unknown="complete deletes the message"),
    )


def test_latencies_have_a_chart_where_the_design_can_have_them() -> None:
    def waiting(*latencies: Latency) -> list[Drawing]:
        samples = [(1000.0 + n, ring(latency=one)) for n, one in enumerate(latencies)]
        drawings = drawn(*samples, now=1000.0 + len(latencies))
        heads = [drawing.title[0][0].strip() for drawing in drawings]
        assert "processing" not in heads
        return [drawing for drawing, head in zip(drawings, heads, strict=True) if head == "waiting"]

    (found,) = waiting(latency(0.1), latency(0.2))
    assert [[round(v, 2) for _, v in c.runs[0]] for c in found.curves] == [
        [0.1, 0.2],
        [0.2, 0.4],
        [0.3, 0.6],
    ]
    assert "".join(text for text, _ in found.title) == (
        "waiting ▄ p50 200 ms  ⠒⠒ p95 400 ms  ⠒⠒ p99 600 ms"
    )
    (found,) = waiting(latency(0.1), latency(None), latency(0.1))
    assert [len(curve.runs) for curve in found.curves] == [2, 2, 2]
    (few,) = waiting(latency(None))
    assert "".join(text for text, _ in few.title) == "waiting ? (too few)"
    assert waiting(latency(None, messages=None)) == []


async def test_latencies_are_shown_as_figures_and_in_a_chart() -> None:
    async with opened(size=(80, 40)) as console:
        history(console, 1, 2, 3, latency=latency())
        screen = await open_orders(console)
        figures = screen.query_one(FiguresPanel).plain_text
        assert "waiting p50 100 ms, p95 200 ms, p99 300 ms (40 messages of 1 min)" in figures
        assert "processing ? (complete deletes the message)" in figures
        titles = shown(screen)
        for _ in range(4):
            await console.press("right_square_bracket")
            titles += shown(screen)
        assert titles == ["ready", "▄", "gap", "waiting", "sample"]
        await console.press("left_square_bracket")
        assert "waiting ▄ p50 100 ms" in console.picture
        await console.resize(160, 48)
        assert len({chart.region for chart in screen.query_one(Charts).shown}) == 5
        assert all(chart.region.height >= 7 for chart in screen.query_one(Charts).shown)


NOW = ChartTime(1000.0, AT, UTC)


def history(console: Opened, *readies: int | None, **figures: object) -> None:
    """Add a sample each second; None adds none."""
    for ready in readies:
        if ready is not None:
            reading = Reading("x", (ring(ready=ready, **figures),), latency_seconds=0.004)
            console.app.context.store.add_reading(KEY[0], reading, console.clock.now)
        console.clock.now += 1


async def open_orders(console: Opened, tab: str = "findings") -> QueueScreen:
    return await console.opens(QueueScreen, console.app.open_queue, KEY, tab)


def text_of(chart: Chart) -> str:
    return "\n".join(chart.render_line(y).text for y in range(chart.size.height))


def shown(screen: QueueScreen) -> list[str]:
    """The first words of the visible charts."""
    return [text_of(chart).split()[0] for chart in screen.query_one(Charts).shown]


async def test_a_time_without_samples_is_blank_in_a_chart() -> None:
    async with opened(size=(80, 40)) as console:
        history(console, *[5] * 60, *[None] * 120, *[5] * 60)
        screen = await open_orders(console)
        (chart,) = screen.query_one(Charts).shown
        lowest = text_of(chart).splitlines()[-3]
        bars = lowest.partition("┤")[2]
        assert bars.strip("█▌▐▙▟▄▖▗ ") == ""
        filled = [column for column, cell in enumerate(bars) if cell != " "]
        blanks = bars[filled[0] : filled[-1]].count(" ")
        assert 0.3 < blanks / len(bars) < 0.5
        assert filled[-1] - filled[0] > 0.7 * len(bars)


def test_a_depth_of_zero_is_drawn_as_zero_and_not_as_a_gap() -> None:
    samples = [(1000.0 + n, ring(ready=5 if n < 10 else 0)) for n in range(60)]
    depth, *_ = drawn(*samples, now=1060)
    (run,) = depth.curves[0].runs
    assert {value for _, value in run} == {0, 5}


async def test_a_small_screen_has_one_chart_at_a_time_and_c_hides_it() -> None:
    async with opened(size=(80, 40), zone=ZoneInfo("Asia/Kathmandu")) as console:
        history(console, 1, 2, 3)
        screen = await open_orders(console)
        titles = shown(screen)
        for key in (*["right_square_bracket"] * 4, "left_square_bracket"):
            await console.press(key)
            titles += shown(screen)
        assert titles == ["ready", "▄", "gap", "sample", "ready", "sample"]
        console.shows("chart 4 of 4", "gap 9,412 of 10,000", " 07:5")
        await console.press("u")
        assert " 02:1" in console.picture
        for title in ("5 min ·", "1 h ·", "24 h ·", "5 min ·"):
            assert title in console.picture
            await console.press("z")
        before = screen.query_one("#tabs").size.height
        await console.press("c")
        assert shown(screen) == []
        assert screen.query_one("#tabs").size.height > before
        await console.press("c")
        assert shown(screen) == ["sample"]


async def test_a_large_screen_has_all_charts_and_no_size_is_too_small() -> None:
    async with opened(size=(160, 48)) as console:
        history(console, 1, push_per_second=None, pop_per_second=None)
        screen = await open_orders(console)
        rates = text_of(screen.query_one(Charts).shown[1])
        assert "nothing sampled yet" in rates
        assert "┤" not in rates
        history(console, 1, 2, 3)
        screen.draw()
        await console.pilot.pause()
        assert shown(screen) == ["ready", "▄", "gap", "sample"]
        assert invisible(console.app) == []
        assert "02:14" in console.picture
        regions = [chart.region for chart in screen.query_one(Charts).shown]
        assert len({region.x for region in regions}) == len({region.y for region in regions}) == 2
        for size in ((80, 24), (50, 14), (20, 10), (3, 3), (80, 24)):
            await console.resize(*size)
            await console.press("right_square_bracket", "z")
        assert shown(screen) == [], "the lines are the list's"
        await console.resize(80, 40)
        assert shown(screen) == ["▄"]


MONDAY = datetime(2026, 3, 23, 9, 20, tzinfo=UTC)
HOUR = Expected(Band(900, 1_000, 1_100), Band(400, 500, 600), Band(400, 500, 600))
KNOWN = Forecast(dict.fromkeys(range(HOURS), HOUR), UTC, 8, 56, MONDAY)
RING = installed_queue("public", "orders", design("ring"), {})


def view(sampled: QueueSnapshot, known: Forecast | None, at: float = 10.0) -> QueueView:
    """The view of a queue that has a second sample, and a forecast from the doctor."""
    store = Store({"prod": 1.0}, 0.0)
    store.add_reading("prod", Reading("prod", (sampled,)), 0.0)
    store.add_diagnoses(
        "prod", [Diagnosis(RING, (), forecast=known)], 0.0, MONDAY, next_seconds=30.0
    )
    store.add_reading("prod", Reading("prod", (replace(sampled, ready=1),)), at)
    (queue_view,) = store.queues(at)
    return queue_view


def full_in(shown_view: QueueView) -> tuple[str, str]:
    """When the ring is full: in the overview's column, and in the queue's figures."""
    (column,) = (queue_column for queue_column in COLUMNS if queue_column.name == "full_in")
    figures = {name: words for name, words, _ in pieces(shown_view.snapshot, DEFAULTS, 160)}
    return cell_of(column, shown_view, column.min_width).text, figures.get(
        "full in", figures.get("filling", "")
    )


def filling_ring(push: float | None, pop: float | None) -> QueueSnapshot:
    return queue("orders", "ring", gap=0, capacity=2_000, push_per_second=push, pop_per_second=pop)


def test_a_ring_that_is_not_filling_shows_when_it_usually_would_be_full() -> None:
    draining = filling_ring(0.1, 0.4)
    assert full_in(view(draining, None)) == ("not filling", "no")
    assert full_in(view(draining, Forecast(why="12 days"))) == ("not filling", "no")
    assert full_in(view(draining, KNOWN)) == ("≈4 h", "at Monday's rate: 04:00")
    assert full_in(view(filling_ring(None, None), KNOWN)) == ("≈4 h", "at Monday's rate: 04:00")


def test_the_estimate_at_the_present_rate_is_always_shown() -> None:
    soon, slowly = filling_ring(2.0, 1.0), filling_ring(0.2, 0.1)
    assert (
        full_in(view(soon, KNOWN)) == full_in(view(soon, None)) == ("≈33 min 20 s", "≈33 min 20 s")
    )
    assert full_in(view(slowly, None))[1] == "≈5 h 33 min"
    assert full_in(view(slowly, KNOWN)) == ("≈4 h", "≈5 h 33 min; at Monday's rate: 04:00")
