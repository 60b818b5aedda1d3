"""What a bench found, for a terminal: a table, a chart, comparisons, what it ran on."""

import shutil
from collections.abc import Sequence

from console.bench.load import Load
from console.bench.ran_on import RanOn
from console.bench.results import (
    Comparison,
    Result,
    hot_share,
    log_bytes_per_message,
    pages_per_message,
)
from console.bench.words import checked, compared_lines, load_in_words, waits
from console.formats import NOT_APPLICABLE, UNKNOWN

_HEADS = (
    *("", "messages/s", "min", "max", "push ms", "p95", "p99", "pop ms", "p95", "p99"),
    *("way ms", "p95", "cpu server", "clients", "log B", "pages", "HOT"),
)


def lines(
    about: RanOn, load: Load, results: Sequence[Result], compared: Sequence[Comparison]
) -> list[str]:
    """All of it."""
    return [
        *_table(results),
        "",
        *_chart(results).splitlines(),
        "",
        *_block(waits(results)),
        *_curves(load, results),
        *_block(compared_lines(compared)),
        *checked(results),
        load_in_words(load),
        *about.lines,
    ]


def _block(shown: list[str]) -> list[str]:
    return [*shown, ""] if shown else []


def _table(results: Sequence[Result]) -> list[str]:
    rows = [_HEADS, *(_row(result) for result in results)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_HEADS))]
    shown = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        shown.append("  ".join(cells).rstrip())
    return shown


def _row(result: Result) -> tuple[str, ...]:
    spread = result.messages_per_second
    rates = (f"{value:,.0f}" for value in (spread.median, spread.min, spread.max))
    way = _latency(result, "way_ms")
    return (
        result.label,
        *rates,
        *_latency(result, "push_ms"),
        *_latency(result, "pop_ms"),
        *way[:2],
        _figure(result.server_cpu, "{:.2f}"),
        _figure(result.client_cpu, "{:.2f}"),
        _figure(result.median(log_bytes_per_message), "{:,.0f}"),
        _figure(result.median(pages_per_message), "{:,.1f}"),
        _figure(result.median(hot_share), "{:.0%}"),
    )


def _latency(result: Result, name: str) -> tuple[str, str, str]:
    found = result.latency(name)
    if found is None:
        return (NOT_APPLICABLE,) * 3
    return (f"{found.p50:,.2f}", f"{found.p95:,.2f}", f"{found.p99:,.2f}")


def _figure(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else form.format(value)


def _chart(results: Sequence[Result]) -> str:
    import plotext  # type: ignore[import-untyped]  # noqa: PLC0415  # verbs shall start at once

    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    plotext.clear_figure()
    plotext.theme("clear")
    labels = [result.label for result in results]
    rates = [round(result.messages_per_second.median) for result in results]
    plotext.simple_bar(labels, rates, width=width, title="messages a second")
    shown: str = plotext.uncolorize(plotext.build())
    return shown


def _curves(load: Load, results: Sequence[Result]) -> list[str]:
    """How each went on, where something made it slower and slower."""
    if not load.held_xmin:
        return []
    shown = ["messages a second, from the beginning of the measured time to its end:"]
    shown += [f"  {r.label}: {' '.join(f'{rate:,.0f}' for rate in r.curve)}" for r in results]
    return [*shown, ""]
