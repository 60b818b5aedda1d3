"""What a bench found, for a terminal: a table, a chart, comparisons, what it ran on."""

import shutil
from collections.abc import Sequence

from console.bench.ran_on import RanOn
from console.bench.results import (
    Comparison,
    Result,
    hot_share,
    log_bytes_per_message,
    pages_per_message,
)
from console.bench.rounds import Load
from console.formats import NOT_APPLICABLE, UNKNOWN, numbered, plain

_HEADS = (
    *("", "messages/s", "min", "max", "push ms", "p95", "p99", "pop ms", "p95", "p99"),
    *("way ms", "p95", "cpu server", "clients", "log B", "pages", "HOT"),
)
_MANY_WAITS = 4


def lines(
    about: RanOn, load: Load, results: Sequence[Result], compared: Sequence[Comparison]
) -> list[str]:
    """All of it."""
    return [
        *_table(results),
        "",
        *_chart(results).splitlines(),
        "",
        *_waits(results),
        *_curves(load, results),
        *_compared(compared),
        *_checked(results),
        load_in_words(load),
        *about.lines,
    ]


def load_in_words(load: Load) -> str:
    """How much of what."""
    room = f"at most {load.room:,} messages waiting" if load.room else "no limit to what waits"
    held = "; one old transaction open" if load.held_xmin else ""
    rounds = (
        f"{numbered(load.rounds, 'round')} of {load.seconds:g} s after {load.warmup_seconds:g} s"
    )
    return (
        f"{load.producers} producers, {load.consumers} consumers, {load.payload} bytes, {room}; "
        f"{rounds} of warm-up{held}"
    )


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


def _waits(results: Sequence[Result]) -> list[str]:
    shown = []
    for result in results:
        found = result.waits()
        if found is None:
            shown.append(f"{result.label} waits: {UNKNOWN}")
            continue
        words = [f"{wait['wait']} {wait['average_sessions']}" for wait in found[:_MANY_WAITS]]
        shown.append(f"{result.label}: sessions at a time: {', '.join(words)}")
    return [*shown, ""] if shown else []


def _curves(load: Load, results: Sequence[Result]) -> list[str]:
    """How each went on, where something made it slower and slower."""
    if not load.held_xmin:
        return []
    shown = ["messages a second, from the beginning of the measured time to its end:"]
    shown += [f"  {r.label}: {' '.join(f'{rate:,.0f}' for rate in r.curve)}" for r in results]
    return [*shown, ""]


def _compared(compared: Sequence[Comparison]) -> list[str]:
    shown = [f"{one.ratio:8.2f}  {one.words}" for one in compared]
    return [*shown, ""] if shown else []


def _checked(results: Sequence[Result]) -> list[str]:
    """What became of the messages."""
    bad = [result for result in results if not result.ok]
    popped = sum(result.verdict["popped"] for result in results)
    shown = [f"{popped:,} messages checked: none lost, doubled, damaged or out of order"]
    if bad:
        shown = [f"NOT OK: {result.label}: {_counts(result)}" for result in bad]
    shown += [f"in doubt: {r.label}: {_counts(r)}" for r in results if r.verdict["in_doubt"]]
    shown += [f"error: {r.label}: {plain(error)}" for r in results for error in r.errors]
    return shown


def _counts(result: Result) -> str:
    return ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in result.verdict.items())
