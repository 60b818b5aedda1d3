"""The columns of the queue table, their layout and sort keys."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rich.cells import cell_len

from console import formats
from console.figures import CLAIMED, SHOWN, Figure
from console.monitor.snapshot import QueueSnapshot
from console.monitor.subscribers import SubscriberSnapshot
from console.tui.findings import full_soon
from console.tui.text import (
    MARK,
    SEVERITY_STYLES,
    mark_style,
    plain,
    shorten,
    sparkline,
    whole_seconds,
)
from console.tui.views import BUCKET_SECONDS, TREND_CELLS, QueueView
from console.tui.widgets.keyed_table import ColumnLayout, title_with_arrow, total_width
from console.views.view import Column

_INSIDE = " › "  # noqa: RUF001  # not a greater-than sign: it separates two names
_FAR_SECONDS = 30 * 86400.0
_TREND_STEP = 12
"""Trends are whole minutes wide."""
_UNBOUNDED = 1000

Value = float | str | None


@dataclass(frozen=True, kw_only=True)
class QueueColumn(Column[QueueView]):
    """A column. A `sort_key` of None (not applicable, unknown) always comes last."""

    sort_key: Callable[[QueueView], Value] = field(compare=False)
    sort_label: str
    """Names the sort order in the line above the table."""
    descending: bool = True
    """Its default direction."""
    sum_of: str = ""
    """The figure whose sum is shown for a group; for the age the oldest."""


def _stale(view: QueueView) -> str:
    return "stale" if view.stale_seconds is not None else ""


def _figure(of: Figure) -> QueueColumn:
    def number(view: QueueView) -> float | None:
        value: float | None = getattr(view.snapshot, of.name)
        return value

    def known_text(view: QueueView) -> str:
        return view.snapshot.text_of(of.name)

    text, key = (_claimed, _claims) if of is CLAIMED else (known_text, number)

    def style(view: QueueView) -> str:
        if view.stale_seconds is not None:
            return "stale"
        if of.alarm and number(view):
            return of.alarm
        return "quiet" if text(view) in {formats.NOT_APPLICABLE, "0", "0.0"} else ""

    return QueueColumn(
        of.key, of.title, text, style, of.width, align_right=True,
        sort_key=key, sort_label=of.key, sum_of=of.name if of.add_up else "",
    )  # fmt: skip


def _claimed(view: QueueView) -> str:
    """If a pop deletes, open transactions hold what is being processed: `3 held`."""
    snapshot = view.snapshot
    if snapshot.claimed is None and "claimed" not in snapshot.unknown and snapshot.holders:
        return f"{formats.count(snapshot.holders)} held"
    return snapshot.text_of("claimed")


def _claims(view: QueueView) -> Value:
    claimed = view.snapshot.claimed
    return claimed if claimed is not None else view.snapshot.holders or None


def _name(view: QueueView, width: int) -> str:
    """The queue's name; after its connection's mark and name if there are several."""
    if view.connection_label and view.color:
        return MARK + _name_with_age(view, width - len(MARK))
    return _name_with_age(view, width)


def _name_style(view: QueueView) -> str:
    snapshot = view.snapshot
    return _stale(view) or ("strong" if snapshot.acting or snapshot.decisions else "")


def _name_with_age(view: QueueView, width: int) -> str:
    """With the age if it is stale: this column is never dropped."""
    if view.stale_seconds is None:
        return _marked(view, width)
    age = f" · {whole_seconds(view.stale_seconds)}" + (" old" if width >= 24 else "")
    return _qualified_name(view, max(4, width - cell_len(age))) + age


LONGEST_SUBSCRIBER = 20
"""Cells of its name."""


def slowest_first(snapshot: QueueSnapshot) -> list[SubscriberSnapshot]:
    """Those with an unknown gap come first."""

    def behind(subscriber_snapshot: SubscriberSnapshot) -> float:
        return float("inf") if subscriber_snapshot.gap is None else subscriber_snapshot.gap

    return sorted(snapshot.subscribers or (), key=behind, reverse=True)


def notable_slowest(snapshot: QueueSnapshot) -> str:
    """The slowest subscriber if it is clearly the one that fills the ring, else empty: of two that
    are about equally fast each is behind at times."""
    if snapshot.slowest is None:
        return ""
    gap, *others = [subscriber_snapshot.gap or 0 for subscriber_snapshot in slowest_first(snapshot)]
    alone = gap > 2 * max(others, default=0) + 1
    return snapshot.slowest.subscriber if alone or gap * 10 >= (snapshot.capacity or 1) else ""


def _marked(view: QueueView, width: int) -> str:
    """The name, followed by its first decision (a pause comes first), a running action or its
    slowest subscriber, in the longest form that fits."""
    snapshot, forms = view.snapshot, []
    if snapshot.decisions:
        mark = snapshot.marks[0]
        forms = [mark, mark.split(",")[0], mark.split()[0]]
    elif snapshot.acting:
        acting = snapshot.acting[0]
        since = whole_seconds(acting.since_seconds)
        forms = [
            f"{acting.verb} by {acting.operator}, {since}",
            f"{acting.verb} {since}",
            acting.verb,
        ]
    elif name := notable_slowest(snapshot):
        forms = [f"{name} is slowest", name]
    name = f"{view.connection_label}{_INSIDE}{view.label}" if view.connection_label else view.label
    for words in forms:
        suffix = plain(f" » {words}")
        if cell_len(name) + cell_len(suffix) <= width:
            return name + suffix
    return _qualified_name(view, width - 2) + " »" if forms else _qualified_name(view, width)


def _qualified_name(view: QueueView, width: int) -> str:
    """The name, after its connection's if there are several; both stay recognizable."""
    if not view.connection_label or width < 12:
        return shorten(view.label, width)
    room = width - cell_len(_INSIDE)
    least = min(cell_len(view.connection_label), room // 3)
    name = shorten(view.label, room - least)
    return shorten(view.connection_label, room - cell_len(name)) + _INSIDE + name


def _full_in(view: QueueView) -> str:
    if view.snapshot.capacity is None:
        unknown = "capacity" in view.snapshot.unknown
        return formats.UNKNOWN if unknown else formats.NOT_APPLICABLE
    if view.full_in_seconds is None:
        rates = (view.snapshot.push_per_second, view.snapshot.pop_per_second)
        known = view.snapshot.gap is not None and None not in rates
        return "not filling" if known else formats.UNKNOWN
    if view.full_in_seconds == 0:
        return "full"
    if view.full_in_seconds > _FAR_SECONDS:
        return "> 30 d"
    return formats.ESTIMATE + formats.duration(view.full_in_seconds)


def _full_in_style(view: QueueView) -> str:
    if view.stale_seconds is not None:
        return "stale"
    seconds = view.full_in_seconds
    if view.snapshot.capacity is None or seconds is None:
        return "quiet"
    return "critical" if seconds == 0 else "warning" if full_soon(seconds) else ""


def _trend(view: QueueView, width: int) -> str:
    return sparkline(view.trend[-width:])


_STATE = QueueColumn(
    "state", "", lambda v: v.level.mark, lambda v: SEVERITY_STYLES.get(v.level, ""),
    sort_key=lambda v: float(v.level), sort_label="state",
)  # fmt: skip
_QUEUE = QueueColumn(
    "queue", "queue", lambda v: _name(v, _UNBOUNDED), _name_style, 16, fit_value=_name,
    first_char_style=lambda v: mark_style(v.color) if v.connection_label else "",
    sort_key=lambda v: v.label.casefold(), sort_label="name", descending=False,
)  # fmt: skip
_DESIGN = QueueColumn(
    "design", "design", lambda v: v.snapshot.design, lambda v: _stale(v) or "quiet", 7,
    sort_key=lambda v: v.snapshot.design, sort_label="design", descending=False,
)  # fmt: skip
_TREND = QueueColumn(
    "trend", "last 2 min", lambda v: _trend(v, TREND_CELLS), lambda v: _stale(v) or "trend", 24,
    fit_value=_trend, sort_key=lambda _: None, sort_label="",
)  # fmt: skip
_FULL_IN = QueueColumn(
    "full_in", "full in", _full_in, _full_in_style, 12, align_right=True,
    sort_key=lambda v: v.full_in_seconds, sort_label="time to full", descending=False,
)  # fmt: skip

COLUMNS: tuple[QueueColumn, ...] = (
    _STATE,
    _QUEUE,
    _DESIGN,
    *(_figure(figure) for figure in SHOWN if figure.width),
    _TREND,
    _FULL_IN,
)
_OPTIONAL = [figure.key for figure in SHOWN if figure.width and not figure.narrow]
DROP_ORDER = ("trend", "full_in", *reversed(_OPTIONAL))
"""Dropped on a narrow screen, the least important first."""
SORTABLE = tuple(column for column in COLUMNS if column is not _TREND)


def layout(
    width: int, widest: Mapping[str, int], sorted_by: str, *, descending: bool, folded: bool = False
) -> list[ColumnLayout[QueueView]]:
    """The columns that fit into `width` cells, with their widths.

    `widest`: the cells of each column's longest text. `folded`: there are lines of connections and
    groups only, which have no design.
    """
    needed = {column.name: max(column.min_width, widest.get(column.name, 0)) for column in COLUMNS}
    needed["trend"] = _TREND.min_width
    natural, needed["queue"] = needed["queue"], min(needed["queue"], 20)
    shown = [column for column in COLUMNS if not (folded and column is _DESIGN)]
    for lost in DROP_ORDER:
        if total_width(shown, needed) <= width:
            break
        shown = [column for column in shown if column.name != lost]
    spare = width - total_width(shown, needed)
    if _TREND in shown and spare < natural - needed["queue"]:
        needed["trend"] -= _TREND_STEP
        spare += _TREND_STEP
    needed["queue"] = max(16, needed["queue"] + min(spare, natural - needed["queue"]))
    spare = width - total_width(shown, needed)
    if _TREND in shown:
        steps = min(max(spare, 0), TREND_CELLS - needed["trend"]) // _TREND_STEP
        needed["trend"] += steps * _TREND_STEP
        spare = width - total_width(shown, needed)
    needed["queue"] += max(0, spare)
    return [
        _laid_out(column, needed[column.name], sorted_by, descending=descending) for column in shown
    ]


def _laid_out(
    column: QueueColumn, width: int, sorted_by: str, *, descending: bool
) -> ColumnLayout[QueueView]:
    title = column.title
    if column is _TREND:
        title = f"last {width * BUCKET_SECONDS / 60:.0f} min"
    is_sorted = column.name == sorted_by
    if is_sorted:
        title = title_with_arrow(title, width, descending=descending)
    return ColumnLayout(column, width, title, is_sorted)
