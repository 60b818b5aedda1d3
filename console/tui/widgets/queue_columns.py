"""The columns of the queue table: what each shows, sorts by and needs, and which are lost first."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len

from console import formats
from console.tui.board import BUCKET_SECONDS, TREND_CELLS, QueueView
from console.tui.health import Level
from console.tui.text import figure, plain, shorten, sparkline, whole_seconds
from console.tui.widgets.keyed_table import Cell, TableColumn
from console.tui.widgets.tones import MARK

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


def _claimed(view: QueueView, width: int) -> Cell:
    """Where a pop deletes, what is worked on is held by an open transaction: `3 held`."""
    snapshot = view.snapshot
    if snapshot.claimed is None and "claimed" not in snapshot.unknown and snapshot.holders:
        held = f"{formats.count(snapshot.holders)} held"
        return Cell(held, "stale" if view.stale_seconds is not None else "")
    return _figure("claimed")(view, width)


def _claims(view: QueueView) -> Value:
    found = view.snapshot.claimed
    return found if found is not None else view.snapshot.holders or None


def _value(name: str) -> Callable[[QueueView], Value]:
    def value(view: QueueView) -> Value:
        found: float | None = getattr(view.snapshot, name)
        return found

    return value


def _mark(view: QueueView, _: int) -> Cell:
    return _mark_of(view.level)


def _mark_of(level: Level) -> Cell:
    return Cell(level.mark, _TONES[level])


def _name(view: QueueView, width: int) -> Cell:
    """The queue's name, after its connection's, with the mark of that, where there are several."""
    if not view.place:
        return _in_words(view, width)
    return marked(_in_words(view, width - len(MARK) if view.color else width), view.color)


def marked(cell: Cell, color: str) -> Cell:
    """The same behind the mark of its connection, if that has one."""
    return replace(cell, text=MARK + cell.text, mark=f"mark-{color}") if color else cell


def _in_words(view: QueueView, width: int) -> Cell:
    """What is stale says here how old it is, for this column is never lost."""
    if view.stale_seconds is None:
        return _acted_on(view, width) if view.snapshot.acting else Cell(_in_place(view, width))
    age = f" · {whole_seconds(view.stale_seconds)}" + (" old" if width >= 24 else "")
    return Cell(_in_place(view, max(4, width - cell_len(age))) + age, "stale")


def _acted_on(view: QueueView, width: int) -> Cell:
    """Who does what to it, in as many words as there is room for behind its name."""
    one = view.snapshot.acting[0]
    since = whole_seconds(one.since_seconds)
    name = f"{view.place}{_INSIDE}{view.label}" if view.place else view.label
    for words in (f"{one.verb} by {one.operator}, {since}", f"{one.verb} {since}", one.verb):
        told = plain(f" » {words}")
        if cell_len(name) + cell_len(told) <= width:
            return Cell(name + told, "strong")
    return Cell(_in_place(view, width - 2) + " »", "strong")


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
    QueueColumn("claimed", "claimed", 7, _claimed, _claims, "claimed"),
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


def group_cell(column: QueueColumn, name: str, views: Sequence[QueueView]) -> Cell:
    """What the line over the queues of one connection shows: its worst, and what adds up."""
    if column.name == "state":
        return _mark_of(max((view.level for view in views), default=Level.OK))
    if column.name == "queue":
        head = Cell(f"{name}: {formats.numbered(len(views), 'queue')}", "group")
        return marked(head, views[0].color)
    return Cell(_summed(_FIELDS[column.name], views) if column.name in _FIELDS else "", "group")


def _summed(name: str, views: Sequence[QueueView]) -> str:
    """The sum of a figure, where it is known of all that have it."""
    if any(name in view.snapshot.unknown for view in views):
        return formats.UNKNOWN
    values = [getattr(view.snapshot, name) for view in views]
    known = [value for value in values if value is not None]
    if not known:
        return ""
    if name.endswith("_per_second"):
        return formats.rate(sum(known))
    return formats.count(sum(known), estimated=any(name in v.snapshot.estimated for v in views))


_FIELDS = {name: name for name in ("ready", "claimed", "stuck", "errors")}
_FIELDS |= {"push": "push_per_second", "pop": "pop_per_second"}
"""Column -> the figure that adds up."""


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
    if "trend" in shown and spare < natural - needed["queue"]:
        needed["trend"] -= _TREND_STEP
        spare += _TREND_STEP
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
