"""The columns of the queue table: what each shows, sorts by and needs, and which are lost first."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from console import formats
from console.tui.board import BUCKET_SECONDS, TREND_CELLS, QueueView
from console.tui.health import Level
from console.tui.text import figure, shorten, sparkline, whole_seconds
from console.tui.widgets.keyed_table import Cell, TableColumn

_TONES = {Level.OK: "", Level.WARNING: "warning", Level.CRITICAL: "critical"}
_PADDING = 2
_INSIDE = " › "  # noqa: RUF001  # not a greater-than sign: it stands between two names
_FAR_SECONDS = 30 * 86400.0
_TREND_STEP = 12
"""Trends are whole minutes wide."""

Value = float | str | None


@dataclass(frozen=True)
class QueueColumn:
    """One column. `value` is sorted by; None (not there, not known) always comes last."""

    name: str
    title: str
    least: int
    cell: Callable[[QueueView, int], Cell]
    """What it shows of a queue in so many cells of width."""
    value: Callable[[QueueView], Value]
    words: str
    """How the line above the table names the order by it."""
    right: bool = True
    descending: bool = True
    """Which way is the more telling one."""


def _figure(name: str) -> Callable[[QueueView, int], Cell]:
    def cell(view: QueueView, _: int) -> Cell:
        text = figure(view.snapshot, name)
        if view.stale_seconds is not None:
            return Cell(text, "stale")
        return Cell(text, "quiet" if text in {formats.NOT_APPLICABLE, "0", "0.0"} else "")

    return cell


def _alarming(name: str, tone: str) -> Callable[[QueueView, int], Cell]:
    """A figure that has a colour of its own as soon as it is not zero."""
    plainly = _figure(name)

    def cell(view: QueueView, width: int) -> Cell:
        alarm = bool(getattr(view.snapshot, name)) and view.stale_seconds is None
        found = plainly(view, width)
        return Cell(found.text, tone) if alarm else found

    return cell


def _value(name: str) -> Callable[[QueueView], Value]:
    def value(view: QueueView) -> Value:
        found: float | None = getattr(view.snapshot, name)
        return found

    return value


def _mark(view: QueueView, _: int) -> Cell:
    return Cell(view.level.mark, _TONES[view.level])


def _name(view: QueueView, width: int) -> Cell:
    """The queue's name; what is stale says here how old it is, for this column is never lost."""
    if view.stale_seconds is None:
        return Cell(_in_place(view, width))
    age = f" · {whole_seconds(view.stale_seconds)}" + (" old" if width >= 24 else "")
    return Cell(_in_place(view, max(4, width - cell_len(age))) + age, "stale")


def _in_place(view: QueueView, width: int) -> str:
    """The name, after its connection where there are several: neither crowds the other out."""
    if not view.place or width < 12:
        return shorten(view.label, width)
    room = width - cell_len(_INSIDE)
    least = min(cell_len(view.place), room // 3)
    name = shorten(view.label, room - least)
    return shorten(view.place, room - cell_len(name)) + _INSIDE + name


def _design(view: QueueView, _: int) -> Cell:
    return Cell(view.snapshot.design, "quiet" if view.stale_seconds is None else "stale")


def _full_in(view: QueueView, _: int) -> Cell:
    tone = "stale" if view.stale_seconds is not None else ""
    if view.snapshot.capacity is None:
        unknown = "capacity" in view.snapshot.unknown
        text = formats.UNKNOWN if unknown else formats.NOT_APPLICABLE
        return Cell(text, tone or "quiet")
    if view.full_in_seconds is None:
        rates = (view.snapshot.push_per_second, view.snapshot.pop_per_second)
        known = view.snapshot.gap is not None and None not in rates
        return Cell("never" if known else formats.UNKNOWN, tone or "quiet")
    if view.full_in_seconds == 0:
        return Cell("full", tone or "critical")
    if view.full_in_seconds > _FAR_SECONDS:
        return Cell("> 30 d", tone)
    soon = "warning" if view.full_in_seconds < 600 else ""
    return Cell(formats.ESTIMATE + formats.duration(view.full_in_seconds), tone or soon)


def _trend(view: QueueView, width: int) -> Cell:
    tone = "stale" if view.stale_seconds is not None else "trend"
    return Cell(sparkline(view.trend[-width:]), tone)


_QUEUE = QueueColumn(
    "queue", "queue", 16, _name, lambda v: v.label.casefold(), "name", right=False, descending=False
)
_TREND = QueueColumn("trend", "last 2 m", 24, _trend, _value("ready"), "ready", right=False)

COLUMNS: tuple[QueueColumn, ...] = (
    QueueColumn("state", "", 1, _mark, lambda v: float(v.level), "state", right=False),
    _QUEUE,
    QueueColumn(
        "design",
        "design",
        7,
        _design,
        lambda v: v.snapshot.design,
        "design",
        right=False,
        descending=False,
    ),
    QueueColumn("ready", "ready", 7, _figure("ready"), _value("ready"), "ready"),
    QueueColumn("age", "age", 9, _figure("age_seconds"), _value("age_seconds"), "age"),
    QueueColumn("push", "push/s", 8, _figure("push_per_second"), _value("push_per_second"), "push"),
    QueueColumn("pop", "pop/s", 8, _figure("pop_per_second"), _value("pop_per_second"), "pop"),
    QueueColumn("gap", "gap", 7, _figure("gap"), _value("gap"), "gap"),
    QueueColumn("claimed", "claimed", 7, _figure("claimed"), _value("claimed"), "claimed"),
    QueueColumn("stuck", "stuck", 5, _alarming("stuck", "critical"), _value("stuck"), "stuck"),
    QueueColumn("errors", "errors", 6, _alarming("errors", "warning"), _value("errors"), "errors"),
    _TREND,
    QueueColumn(
        "full_in",
        "full in",
        10,
        _full_in,
        lambda v: v.full_in_seconds,
        "time to full",
        descending=False,
    ),
)
LOST_FIRST = ("trend", "full_in", "claimed", "pop", "push")
"""What a narrow screen does without, the least needed first."""
SORTABLE = tuple(column for column in COLUMNS if column is not _TREND)


def layout(
    width: int, widest: Mapping[str, int], sorted_by: str, *, descending: bool
) -> list[tuple[QueueColumn, TableColumn]]:
    """Which columns fit into so many cells, and how wide each is.

    `widest` says how much room each column's longest text of now would take.
    """
    needed = {column.name: max(column.least, widest.get(column.name, 0)) for column in COLUMNS}
    needed["trend"] = _TREND.least
    natural, needed["queue"] = needed["queue"], min(needed["queue"], 20)
    shown = [column.name for column in COLUMNS]
    for lost in LOST_FIRST:
        if _total(shown, needed) <= width:
            break
        shown.remove(lost)
    spare = width - _total(shown, needed)
    needed["queue"] = max(16, needed["queue"] + min(spare, natural - needed["queue"]))
    spare = width - _total(shown, needed)
    if "trend" in shown:
        steps = min(max(spare, 0), TREND_CELLS - needed["trend"]) // _TREND_STEP
        needed["trend"] += steps * _TREND_STEP
        spare = width - _total(shown, needed)
    needed["queue"] += max(0, spare)
    return [
        (column, _laid_out(column, needed[column.name], sorted_by, descending=descending))
        for column in COLUMNS
        if column.name in shown
    ]


def _total(names: Sequence[str], widths: Mapping[str, int]) -> int:
    return sum(widths[name] + _PADDING for name in names)


def _laid_out(column: QueueColumn, width: int, sorted_by: str, *, descending: bool) -> TableColumn:
    title = column.title
    if column is _TREND:
        title = f"last {width * BUCKET_SECONDS / 60:.0f} m"
    is_sorted = column.name == sorted_by
    arrow = "▼" if descending else "▲"
    if is_sorted and title and len(title) < width:
        title = f"{title} {arrow}" if len(title) + 1 < width else f"{title}{arrow}"
    return TableColumn(column.name, title, width, right=column.right, sorted=is_sorted)


def ordered(
    views: Sequence[QueueView], column: QueueColumn, *, descending: bool
) -> list[QueueView]:
    """The views by a column; equals keep their order, and what has no value comes last."""
    with_value = [view for view in views if column.value(view) is not None]
    without = [view for view in views if column.value(view) is None]

    def value(view: QueueView) -> float | str:
        found = column.value(view)
        return 0.0 if found is None else found

    return sorted(with_value, key=value, reverse=descending) + without
