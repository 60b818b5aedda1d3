"""What a bench found so far: one line a contestant, with a bar as long as it is fast."""

from console.bench.contestant import Contestant
from console.bench.results import Result, log_bytes_per_message
from console.formats import UNKNOWN
from console.tui.bench import Course
from console.tui.widgets.fitting import Wish
from console.tui.widgets.keyed_table import Cell
from console.tui.widgets.list_table import ListTable

_BAR_CELLS = 16
_LATENCIES = (("push", "push_ms"), ("pop", "pop_ms"), ("way", "way_ms"))
_CUTS = ("p50", "p95", "p99")
_WISHES = (
    Wish("mark", "", most=1),
    Wish("name", "", least=8, most=32),
    Wish("rate", "msgs/s", least=7, most=9, right=True),
    Wish("bar", "", least=_BAR_CELLS, most=_BAR_CELLS),
    Wish("rounds", "rounds", least=6, most=7, right=True),
    Wish("min", "min", least=7, most=9, right=True),
    Wish("max", "max", least=7, most=9, right=True),
    *(
        wish
        for name, _ in _LATENCIES
        for wish in (
            Wish(f"{name}_p50", f"{name} p50", least=8, most=8, right=True),
            Wish(f"{name}_p95", "p95", least=6, most=7, right=True),
            Wish(f"{name}_p99", "p99", least=6, most=7, right=True),
        )
    ),
    Wish("server", "cpu srv", least=7, most=7, right=True),
    Wish("clients", "cpu cli", least=7, most=7, right=True),
    Wish("log", "log B", least=6, most=7, right=True),
)
_LOST_FIRST = (
    *("log", "clients", "server", "push_p95", "way_p99", "max", "min", "way_p95", "push_p99"),
    *("way_p50", "push_p50", "rounds", "pop_p99", "pop_p95", "bar", "pop_p50"),
)


class BenchTable(ListTable):
    """Milliseconds; medians of the rounds that are over."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  # Textual's own name
        super().__init__(_WISHES, _LOST_FIRST, id=id)

    def show_course(self, course: Course) -> None:
        """All who take part, in turn."""
        results = {result.contestant: result for result in course.results}
        live = course.live
        rates = [_rate(result) for result in results.values()]
        most = max([*rates, live.messages_per_second if live else 0.0], default=0.0)
        whose = course.next
        rows = {}
        for one in course.contestants:
            runs = not course.over and whose is not None and whose[0] == one
            rows[label(one)] = _row(course, one, results.get(one), most, runs=runs)
        self.show_rows(rows)


def label(contestant: Contestant) -> str:
    """Its row's key, and its name there."""
    return Result(contestant, ()).label


def _rate(result: Result) -> float:
    return result.messages_per_second.median


def _row(
    course: Course, one: Contestant, result: Result | None, most: float, *, runs: bool
) -> dict[str, Cell]:
    live = course.live if runs else None
    good = result is None or result.ok
    rate = None if result is None else _rate(result)
    shown = live.messages_per_second if live and rate is None else rate
    done = 0 if result is None else len(result.rounds)
    mark = Cell("✖", "critical") if not good else Cell("▶" if runs else "", "good")
    row = {
        "mark": mark,
        "name": Cell(label(one), "strong"),
        "rate": Cell("" if shown is None else f"{shown:,.0f}", "trend" if live else ""),
        "bar": Cell(_bar(shown, most), "trend"),
        "rounds": Cell(f"{done} of {course.load.rounds}", "quiet"),
        "min": Cell(""),
        "max": Cell(""),
        **{f"{name}_{cut}": Cell("") for name, _ in _LATENCIES for cut in _CUTS},
        **dict.fromkeys(("server", "clients", "log"), Cell("", "quiet")),
    }
    if result is None:
        if live and live.pop_ms is not None:
            for cut in _CUTS:
                row[f"pop_{cut}"] = Cell(ms(getattr(live.pop_ms, cut)), "trend")
        return row
    spread = result.messages_per_second
    row["min"], row["max"] = Cell(f"{spread.min:,.0f}"), Cell(f"{spread.max:,.0f}")
    for name, of in _LATENCIES:
        if (found := result.latency(of)) is not None:
            for cut in _CUTS:
                row[f"{name}_{cut}"] = Cell(ms(getattr(found, cut)))
    row["server"] = Cell(_figure(result.server_cpu, "{:.2f}"), "quiet")
    row["clients"] = Cell(_figure(result.client_cpu, "{:.2f}"), "quiet")
    row["log"] = Cell(_figure(result.median(log_bytes_per_message), "{:,.0f}"), "quiet")
    return row


def _bar(rate: float | None, most: float) -> str:
    if not rate or not most:
        return ""
    eighths = max(1, round(rate / most * _BAR_CELLS * 8))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def ms(value: float) -> str:
    """Milliseconds, three digits of them or more."""
    return f"{value:,.{2 if value < 10 else 1 if value < 100 else 0}f}"


def _figure(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else form.format(value)
