"""A bench's results as lines of text, for the command line and the screen, and as an SVG: bars of
messages per second, curves over time, the environment."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from console.features.bench.candidate import Load
from console.features.bench.results import (
    CandidateResult,
    Comparison,
    comparisons,
    log_bytes_per_message,
)
from console.formats import UNKNOWN, numbered, plain

if TYPE_CHECKING:
    from console.features.bench.server import Environment

_MANY_WAITS = 4


def describe_load(load: Load) -> str:
    room = (
        f"at most {load.room:,} messages waiting" if load.room else "no limit on messages waiting"
    )
    held = "; one old transaction open" if load.held_xmin else ""
    rounds = (
        f"{numbered(load.rounds, 'round')} of {load.seconds:g} s after {load.warmup_seconds:g} s"
    )
    return (
        f"{load.producers} producers, {load.consumers} consumers, {load.payload} bytes, {room}; "
        f"{rounds} of warm-up{held}"
    )


def as_json(
    about: Environment, load: Load, results: Sequence[CandidateResult]
) -> dict[str, object]:
    """The stable object of `bench --json`."""
    return {
        "ran_on": about.as_json(),
        "load": asdict(load),
        "results": [result.as_json() for result in results],
        "comparisons": [comparison.as_json() for comparison in comparisons(results)],
    }


def wait_lines(results: Sequence[CandidateResult]) -> list[str]:
    """For each candidate, what sessions were waiting for."""
    shown = []
    for result in results:
        waits = result.waits()
        if waits is None:
            shown.append(f"{result.label} waits: {UNKNOWN}")
            continue
        texts = [f"{wait['wait']} {wait['average_sessions']}" for wait in waits[:_MANY_WAITS]]
        shown.append(f"{result.label}: sessions at a time: {', '.join(texts)}")
    return shown


def comparison_lines(compared: Sequence[Comparison]) -> list[str]:
    return [f"{comparison.ratio:8.2f}  {comparison.description}" for comparison in compared]


def verdict_lines(results: Sequence[CandidateResult]) -> list[str]:
    bad = [result for result in results if not result.ok]
    popped = sum(result.verdict["popped"] for result in results)
    shown = [
        f"{numbered(popped, 'message')} checked: none lost, duplicated, damaged or out of order"
    ]
    if bad:
        shown = [f"NOT OK: {result.label}: {_counts(result)}" for result in bad]
    shown += [f"in doubt: {r.label}: {_counts(r)}" for r in results if r.verdict["in_doubt"]]
    shown += [f"error: {r.label}: {plain(error)}" for r in results for error in r.errors]
    return shown


def delivery_lines(results: Sequence[CandidateResult]) -> list[str]:
    """With several readers per message: the cost of each delivery."""
    shown = []
    for result in results:
        if result.candidate.readers > 1:
            log, disk = result.median(log_bytes_per_message), result.disk_bytes
            log_bytes = UNKNOWN if log is None else f"{log:,.0f}"
            size = UNKNOWN if disk is None else f"{disk / 2**20:,.1f}"
            shown.append(
                f"{result.label}: {result.messages_per_second.median:,.0f} deliveries a second, "
                f"{log_bytes} bytes of log a delivery, {size} MiB on disk"
            )
    return shown


def _counts(result: CandidateResult) -> str:
    return ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in result.verdict.items())


_WIDTH = 900
_LABEL = 210
_BAR = 26
_CURVES = 220
_MARGIN = 20
_LINE = 18
_COLOURS = (
    *("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e"),
    *("#17becf", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22"),
)
_PLAIN = "#bbbbbb"
"""Of a bar without a curve."""
_LEGEND_COLUMNS = 4
_LINE_LENGTH = 130
_STYLE = (
    "text{font:13px sans-serif;fill:#222}.head{font-weight:bold;font-size:15px}"
    ".small{font-size:11px;fill:#555}.spread{stroke:#222;stroke-width:1.5}"
)


def svg(
    about: Environment,
    load: str,
    results: Sequence[CandidateResult],
    compared: Sequence[Comparison],
) -> str:
    page = _Page()
    page.text("Messages a second through the queue (median; line: lowest to highest round)", "head")
    page.text(load, "small")
    shown = _with_curve(results)
    colours = {
        candidate_result.label: colour
        for candidate_result, colour in zip(shown, _COLOURS, strict=False)
    }
    _bars(page, results, colours)
    page.skip(_LINE)
    those = "" if len(shown) == len(results) else f", of the {len(shown)} fastest"
    page.text(f"Messages a second, over the measured time{those}", "head")
    _curves(page, shown, colours)
    if compared:
        page.text("Compared", "head")
        for comparison in compared:
            page.text(f"{comparison.ratio:,.2f}   {comparison.description}")
        page.skip(_LINE)
    page.text("Ran on", "head")
    for line in about.lines:
        for part in _wrapped(line):
            page.text(part, "small")
    return page.render()


def _with_curve(results: Sequence[CandidateResult]) -> list[CandidateResult]:
    """The fastest ones, as many as there are colours."""
    fastest = sorted(
        results,
        key=lambda candidate_result: candidate_result.messages_per_second.median,
        reverse=True,
    )
    kept = {candidate_result.label for candidate_result in fastest[: len(_COLOURS)]}
    return [candidate_result for candidate_result in results if candidate_result.label in kept]


class _Page:
    """Lines from the top to the bottom."""

    def __init__(self) -> None:
        self.y = _MARGIN
        self._parts: list[str] = []

    def skip(self, height: int) -> None:
        self.y += height

    def add(self, element: str) -> None:
        self._parts.append(element)

    def text(self, words: str, style: str = "") -> None:
        self.y += _LINE
        self.add(_text(_MARGIN, self.y, words, style))

    def render(self) -> str:
        height = self.y + _MARGIN
        size = f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
        return "\n".join(
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
                f"<style>{_STYLE}</style>",
                f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
                *self._parts,
                "</svg>\n",
            )
        )


def _bars(page: _Page, results: Sequence[CandidateResult], colours: Mapping[str, str]) -> None:
    most = max((result.messages_per_second.max for result in results), default=0) or 1
    across = _WIDTH - _LABEL - 2 * _MARGIN - 90
    page.skip(10)
    for result in results:
        spread = result.messages_per_second
        middle = page.y + _BAR // 2
        ends = [_LABEL + round(across * value / most) for value in (spread.min, spread.max)]
        width = round(across * spread.median / most)
        page.add(_text(_MARGIN, middle + 4, result.label))
        page.add(
            f'<rect x="{_LABEL}" y="{page.y + 4}" width="{width}" height="{_BAR - 8}" '
            f'fill="{colours.get(result.label, _PLAIN)}"/>'
        )
        page.add(
            f'<line class="spread" x1="{ends[0]}" x2="{ends[1]}" y1="{middle}" y2="{middle}"/>'
        )
        page.add(_text(max(ends) + 8, middle + 4, f"{spread.median:,.0f}"))
        page.skip(_BAR)


def _curves(page: _Page, results: Sequence[CandidateResult], colours: Mapping[str, str]) -> None:
    page.skip(12)
    top, bottom = page.y, page.y + _CURVES
    left, right = _MARGIN + 60, _WIDTH - _MARGIN
    most = max((max(result.curve, default=0) for result in results), default=0) or 1
    for part in range(5):
        y = bottom - round(_CURVES * part / 4)
        page.add(f'<line x1="{left}" x2="{right}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        page.add(_text(_MARGIN, y + 4, f"{most * part / 4:,.0f}", "small"))
    for result in results:
        points = " ".join(_points(result.curve, (left, right, top, bottom), most))
        page.add(
            f'<polyline points="{points}" fill="none" stroke-width="2" '
            f'stroke="{colours[result.label]}">'
            f"<title>{html.escape(result.label)}</title></polyline>"
        )
    seconds = max(
        (round_figures.seconds for result in results for round_figures in result.plain), default=0
    )
    page.skip(_CURVES)
    page.add(_text(right - 60, bottom + 16, f"{seconds:,.0f} s", "small"))
    page.skip(_LINE)
    across = (_WIDTH - 2 * _MARGIN) // _LEGEND_COLUMNS
    for number, result in enumerate(results):
        row, column = divmod(number, _LEGEND_COLUMNS)
        x, y = _MARGIN + column * across, page.y + (row + 1) * _LINE
        colour = colours[result.label]
        page.add(f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{colour}"/>')
        page.add(_text(x + 20, y, result.label, "small"))
    page.skip(-(-len(results) // _LEGEND_COLUMNS) * _LINE)
    page.skip(_LINE)


def _points(curve: Sequence[float], box: tuple[int, int, int, int], most: float) -> Iterator[str]:
    left, right, top, bottom = box
    for at, value in enumerate(curve):
        x = left + (right - left) * (at + 0.5) / len(curve)
        yield f"{x:.1f},{bottom - (bottom - top) * value / most:.1f}"


def _text(x: int, y: int, words: str, style: str = "") -> str:
    named = f' class="{style}"' if style else ""
    return f'<text x="{x}" y="{y}"{named}>{html.escape(words)}</text>'


def _wrapped(line: str) -> Iterator[str]:
    while len(line) > _LINE_LENGTH:
        cut = line.rfind(" ", 0, _LINE_LENGTH) if " " in line[:_LINE_LENGTH] else _LINE_LENGTH
        yield line[:cut]
        line = line[cut:].lstrip()
    yield line
