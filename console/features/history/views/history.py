"""Show a queue over time from its recordings; no database is used."""

from collections.abc import Callable, Iterator, Sequence

from console.features.history.points import FINDING, NOTE, History, Mark, Point, history
from console.figures import CHARTS, GAP, LATENCY, LATENCY_KINDS, SHOWN, Unit
from console.formats import NOT_APPLICABLE, bare_moment, duration, first_line, plain
from console.views.view import Column, Display, Source, View, aligned

_SIGNS = {FINDING: "!", NOTE: "◆", "standby": "◇"}
_DRAWN = {figure for drawn in CHARTS.values() for figure in drawn}


def read(source: Source) -> History:
    """`source.values`: those of `history`."""
    return history(queue=source.name or "", schema=source.schema, **source.values)


def _columns(display: Display) -> Sequence[Column[Mark]]:
    """Of what happened."""
    return (
        Column("at", "when", lambda m: bare_moment(m.at, display.zone), "", 14, 19,
               at=lambda m: m.at),
        Column("lasted", "for", lambda m: m.lasted, "quiet", 5, 12, sort_key=lambda m: m.seconds),
        Column("name", "what", lambda m: f"{_SIGNS.get(m.kind, '▶')} {plain(m.name)}",
               lambda m: "warning" if m.kind == FINDING else "strong", 8, 26),
        Column("words", "", lambda m: first_line(m.words), "", 10, 200),
    )  # fmt: skip


def _by_key(result: History) -> dict[str, Mark]:
    """The newest first, each by a key that stays the same when others come."""
    return {repr((m.at, m.kind, m.name, m.words)): m for m in reversed(result.marks)}


def _text(result: History, display: Display) -> Iterator[str]:
    columns = [_figure("since", lambda point: bare_moment(point.at, display.zone))]
    for figure in SHOWN:
        if figure in _DRAWN:
            columns.append(_of(figure.title, figure.name, figure.unit))
        if figure is GAP and any(point.slowest for point in result.points):
            columns.append(_figure("slowest", lambda p: plain(p.slowest or NOT_APPLICABLE)))
    waits = [_of(kind, f"{kind}_p95_seconds", LATENCY) for kind in LATENCY_KINDS]
    known = [column for column in waits if {*map(column.value, result.points)} != {NOT_APPLICABLE}]
    yield from aligned([*columns, *known], result.points, display.zone)
    p95 = "; the highest p95 of waiting and processing" if known else ""
    step = duration(result.step_seconds)
    yield f"each line covers {step}: the highest count, age and gap, the mean rate{p95}"
    yield from marks(result, display)


def _of(title: str, name: str, unit: Unit) -> Column[Point]:
    def text(point: Point) -> str:
        value = point[name]
        return NOT_APPLICABLE if value is None else unit.text(value)

    return _figure(title, text)


def _figure(title: str, text: Callable[[Point], str]) -> Column[Point]:
    return Column(title, title, text, align_right=True)


def marks(result: History, display: Display) -> Iterator[str]:
    """What happened, a line each."""
    for mark in result.marks:
        yield plain(f"{mark.kind} {mark.name}: {mark.when(display)}: {mark.words}")


VIEW = View(
    "history",
    __doc__,
    read,
    _by_key,
    _columns,
    detail=Mark.detail,
    text=_text,
    json=History.as_json,
    drop_order=("lasted",),
)
"""Its rows are what happened; the verb prints the figures too, as charts or CSV, and a forecast."""
