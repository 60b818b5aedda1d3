"""One table of all queues: which are shown, in which order, in as many columns as there is room."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rich.cells import cell_len

from console import formats
from console.tui.store import BUCKET_SECONDS, TREND_CELLS, QueueKey, QueueView
from console.tui.text import (
    MARK,
    SEVERITY_TONES,
    color_tone,
    figure,
    plain,
    shorten,
    sparkline,
    whole_seconds,
)
from console.tui.views import Filter
from console.tui.widgets.keyed_table import Cell, Cells, Column, KeyedTable, LaidOut, total
from console.tui.widgets.subscribers import stands_out

_INSIDE = " › "  # noqa: RUF001  # not a greater-than sign: it stands between two names
_FAR_SECONDS = 30 * 86400.0
_TREND_STEP = 12
"""Trends are whole minutes wide."""
_UNBOUNDED = 1000

Value = float | str | None


@dataclass(frozen=True, kw_only=True)
class QueueColumn(Column[QueueView]):
    """One column. `key` is sorted by; None (not there, not known) always comes last."""

    key: Callable[[QueueView], Value] = field(compare=False)
    words: str
    """How the line above the table names the order by it."""
    descending: bool = True
    """Which way is the more telling one."""
    sum_of: str = ""
    """The figure that adds up over the queues of a connection."""


def _stale(view: QueueView) -> str:
    return "stale" if view.stale_seconds is not None else ""


def _figure(
    name: str,
    title: str,
    least: int,
    of: str = "",
    *,
    alarm: str = "",
    value: Callable[[QueueView], str] | None = None,
    key: Callable[[QueueView], Value] | None = None,
) -> QueueColumn:
    """A figure of the queue; with `alarm`, its tone as soon as it is not zero.

    `of`: its name in the snapshot, where the column has another.
    """
    of = of or name

    def number(view: QueueView) -> float | None:
        found: float | None = getattr(view.snapshot, of)
        return found

    text = value or (lambda view: figure(view.snapshot, of))

    def tone(view: QueueView) -> str:
        if view.stale_seconds is not None:
            return "stale"
        if alarm and number(view):
            return alarm
        return "quiet" if text(view) in {formats.NOT_APPLICABLE, "0", "0.0"} else ""

    return QueueColumn(
        name, title, text, tone, least, right=True,
        key=key or number, words=name, sum_of=of if of in _ADD_UP else "",
    )  # fmt: skip


_ADD_UP = {"ready", "claimed", "stuck", "errors", "push_per_second", "pop_per_second"}


def _claimed(view: QueueView) -> str:
    """Where a pop deletes, what is worked on is held by an open transaction: `3 held`."""
    snapshot = view.snapshot
    if snapshot.claimed is None and "claimed" not in snapshot.unknown and snapshot.holders:
        return f"{formats.count(snapshot.holders)} held"
    return figure(snapshot, "claimed")


def _claims(view: QueueView) -> Value:
    found = view.snapshot.claimed
    return found if found is not None else view.snapshot.holders or None


def _name(view: QueueView, width: int) -> str:
    """The queue's name, after its connection's, with the mark of that, where there are several."""
    if view.place and view.color:
        return MARK + _in_words(view, width - len(MARK))
    return _in_words(view, width)


def _name_tone(view: QueueView) -> str:
    snapshot = view.snapshot
    return _stale(view) or ("strong" if snapshot.acting or snapshot.decisions else "")


def _in_words(view: QueueView, width: int) -> str:
    """What is stale says here how old it is, for this column is never lost."""
    if view.stale_seconds is None:
        return _marked(view, width)
    age = f" · {whole_seconds(view.stale_seconds)}" + (" old" if width >= 24 else "")
    return _in_place(view, max(4, width - cell_len(age))) + age


def _marked(view: QueueView, width: int) -> str:
    """What was decided of it, else who does what to it, else which subscriber is behind, in as many
    words as there is room for behind its name; of two decisions the first, which is the pause."""
    snapshot, forms = view.snapshot, []
    if snapshot.decisions:
        told = snapshot.marks[0]
        forms = [told, told.split(",")[0], told.split()[0]]
    elif snapshot.acting:
        one = snapshot.acting[0]
        since = whole_seconds(one.since_seconds)
        forms = [f"{one.verb} by {one.operator}, {since}", f"{one.verb} {since}", one.verb]
    elif name := stands_out(snapshot):
        forms = [f"{name} is slowest", name]
    name = f"{view.place}{_INSIDE}{view.label}" if view.place else view.label
    for words in forms:
        told = plain(f" » {words}")
        if cell_len(name) + cell_len(told) <= width:
            return name + told
    return _in_place(view, width - 2) + " »" if forms else _in_place(view, width)


def _in_place(view: QueueView, width: int) -> str:
    """The name, after its connection where there are several: neither crowds the other out."""
    if not view.place or width < 12:
        return shorten(view.label, width)
    room = width - cell_len(_INSIDE)
    least = min(cell_len(view.place), room // 3)
    name = shorten(view.label, room - least)
    return shorten(view.place, room - cell_len(name)) + _INSIDE + name


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


def _full_in_tone(view: QueueView) -> str:
    if view.stale_seconds is not None:
        return "stale"
    seconds = view.full_in_seconds
    if view.snapshot.capacity is None or seconds is None:
        return "quiet"
    return "critical" if seconds == 0 else "warning" if seconds < 600 else ""


def _trend(view: QueueView, width: int) -> str:
    return sparkline(view.trend[-width:])


_STATE = QueueColumn(
    "state", "", lambda v: v.level.mark, lambda v: SEVERITY_TONES.get(v.level, ""),
    key=lambda v: float(v.level), words="state",
)  # fmt: skip
_QUEUE = QueueColumn(
    "queue", "queue", lambda v: _name(v, _UNBOUNDED), _name_tone, 16, within=_name,
    mark=lambda v: color_tone(v.color) if v.place else "",
    key=lambda v: v.label.casefold(), words="name", descending=False,
)  # fmt: skip
_DESIGN = QueueColumn(
    "design", "design", lambda v: v.snapshot.design, lambda v: _stale(v) or "quiet", 7,
    key=lambda v: v.snapshot.design, words="design", descending=False,
)  # fmt: skip
_TREND = QueueColumn(
    "trend", "last 2 min", lambda v: _trend(v, TREND_CELLS), lambda v: _stale(v) or "trend", 24,
    within=_trend, key=lambda _: None, words="",
)  # fmt: skip
_FULL_IN = QueueColumn(
    "full_in", "full in", _full_in, _full_in_tone, 12, right=True,
    key=lambda v: v.full_in_seconds, words="time to full", descending=False,
)  # fmt: skip

COLUMNS: tuple[QueueColumn, ...] = (
    _STATE,
    _QUEUE,
    _DESIGN,
    _figure("ready", "ready", 7),
    _figure("age", "age", 11, "age_seconds"),
    _figure("push", "push/s", 8, "push_per_second"),
    _figure("pop", "pop/s", 8, "pop_per_second"),
    _figure("gap", "gap", 7),
    _figure("claimed", "claimed", 7, value=_claimed, key=_claims),
    _figure("stuck", "stuck", 5, alarm="critical"),
    _figure("errors", "errors", 6, alarm="warning"),
    _TREND,
    _FULL_IN,
)
LOST_FIRST = ("trend", "full_in", "claimed", "pop", "push")
"""What a narrow screen does without, the least needed first."""
SORTABLE = tuple(column for column in COLUMNS if column is not _TREND)


def group_cell(column: QueueColumn, views: Sequence[QueueView]) -> Cell:
    """What the line over the queues of one connection shows: its worst, and what adds up."""
    if column is _STATE:
        return column.cell(max(views, key=lambda view: view.level), column.least)
    if column is _QUEUE:
        color = views[0].color
        name = f"{plain(views[0].connection)}: {formats.numbered(len(views), 'queue')}"
        return Cell((MARK if color else "") + name, "group", color_tone(color))
    return Cell(_summed(column.sum_of, views) if column.sum_of else "", "group")


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


def layout(
    width: int, widest: Mapping[str, int], sorted_by: str, *, descending: bool
) -> list[LaidOut[QueueView]]:
    """Which columns fit into so many cells, and how wide each is.

    `widest` says how much room each column's longest text of now would take.
    """
    needed = {column.name: max(column.least, widest.get(column.name, 0)) for column in COLUMNS}
    needed["trend"] = _TREND.least
    natural, needed["queue"] = needed["queue"], min(needed["queue"], 20)
    shown = [*COLUMNS]
    for lost in LOST_FIRST:
        if total(shown, needed) <= width:
            break
        shown = [column for column in shown if column.name != lost]
    spare = width - total(shown, needed)
    if _TREND in shown and spare < natural - needed["queue"]:
        needed["trend"] -= _TREND_STEP
        spare += _TREND_STEP
    needed["queue"] = max(16, needed["queue"] + min(spare, natural - needed["queue"]))
    spare = width - total(shown, needed)
    if _TREND in shown:
        steps = min(max(spare, 0), TREND_CELLS - needed["trend"]) // _TREND_STEP
        needed["trend"] += steps * _TREND_STEP
        spare = width - total(shown, needed)
    needed["queue"] += max(0, spare)
    return [
        _laid_out(column, needed[column.name], sorted_by, descending=descending) for column in shown
    ]


def _laid_out(
    column: QueueColumn, width: int, sorted_by: str, *, descending: bool
) -> LaidOut[QueueView]:
    title = column.title
    if column is _TREND:
        title = f"last {width * BUCKET_SECONDS / 60:.0f} min"
    is_sorted = column.name == sorted_by
    arrow = "▼" if descending else "▲"
    if is_sorted and title and len(title) < width:
        title = f"{title} {arrow}" if len(title) + 1 < width else f"{title}{arrow}"
    return LaidOut(column, width, title, is_sorted)


def ordered(
    views: Sequence[QueueView], column: QueueColumn, *, descending: bool
) -> list[QueueView]:
    """The views by a column; equals keep their order, and what has no value comes last."""
    keys = [(column.key(view), view) for view in views]
    known = sorted(
        ((key, view) for key, view in keys if key is not None),
        key=operator.itemgetter(0),
        reverse=descending,
    )
    return [view for _, view in known] + [view for key, view in keys if key is None]


_INDENT = "  "


class QueueTable(KeyedTable[QueueView]):
    """Give it queues by `show_queues`; sort and filter it; ask it which queue the cursor is on."""

    def __init__(self) -> None:
        super().__init__(COLUMNS, id="queues")
        self.views: tuple[QueueView, ...] = ()
        """All queues, shown or not."""
        self.filter = Filter()
        self.sort_column = SORTABLE[0]
        self.descending = SORTABLE[0].descending
        self.grouped = False
        """Whether the queues of each connection stand together, under a line of their own."""
        self._widest: dict[str, int] = {}
        self._measured = 0
        """How many queues there were when all of them were measured."""
        self._heads: dict[str, list[QueueView]] = {}
        """The line over each group -> its queues."""

    @property
    def shown(self) -> list[QueueView]:
        """The queues that the filter lets through, in the order of the table."""
        found: Sequence[QueueView] = self.views
        if self.filter:
            found = [view for view in found if self.filter.matches(view)]
        found = ordered(found, self.sort_column, descending=self.descending)
        return (
            [view for group in _groups(found).values() for view in group] if self.grouped else found
        )

    @property
    def count(self) -> int:
        return len(self.keys) - len(self._heads)

    @property
    def queue_key(self) -> QueueKey | None:
        view = self.view
        return view.key if view is not None else None

    @property
    def view(self) -> QueueView | None:
        """The queue under the cursor, as it is drawn; None on the line of a connection."""
        return None if self.cursor_key in self._heads else self.row

    @property
    def connection(self) -> str | None:
        """The connection under the cursor, or that of the queue there."""
        return None if self.row is None else self.row.connection

    def show_queues(self, views: Sequence[QueueView] | None = None) -> None:
        if views is not None:
            self.views = tuple(views)
        shown, self._heads = self.shown, {}
        rows: dict[str, QueueView] = {}
        for connection, group in (_groups(shown) if self.grouped else {"": shown}).items():
            if self.grouped:
                head = repr((connection,))
                self._heads[head], rows[head] = group, group[0]
            rows |= {repr(view.key): view for view in group}
        self.show(rows)

    def cells_of(self, key: str) -> Cells:
        if group := self._heads.get(key):
            shown = {one.name for one in self.laid_out}
            return tuple(group_cell(one, group) for one in COLUMNS if one.name in shown)
        view = self.rows[key]
        if self.grouped:
            view = replace(view, place="", label=_INDENT + view.label)
        return tuple(one.column.cell(view, one.width) for one in self.laid_out)

    def lay_out(self, room: int) -> Sequence[LaidOut[QueueView]]:
        """The title of the one that it is sorted by says so."""
        return layout(room, self.widest(), self.sort_column.name, descending=self.descending)

    def widest(self) -> dict[str, int]:
        """Columns only ever grow, so that nothing jumps to and fro with the figures.

        Of very many queues those in sight are measured, and all when there are others.
        """
        views: Sequence[QueueView] = self.views
        if len(views) == self._measured:
            top = self.scroll_offset.y
            in_sight = self.keys[top : top + self.size.height]
            views = [self.rows[key] for key in in_sight if key not in self._heads]
        self._measured = len(self.views)
        for column in COLUMNS:
            if column.name not in {"state", "trend"}:
                widest = max((cell_len(column.value(view)) for view in views), default=0)
                self._widest[column.name] = max(self._widest.get(column.name, 0), widest)
        return self._widest

    def sort_next(self) -> None:
        in_sight = {column.name for column in self.laid_out} | {self.sort_column.name}
        columns = [column for column in SORTABLE if column.name in in_sight]
        self.sort_by(columns[(columns.index(self.sort_column) + 1) % len(columns)].name)

    def sort_by(self, name: str) -> None:
        """Sort by a column the way that tells more; by the same one again, the other way round."""
        column = next((column for column in SORTABLE if column.name == name), None)
        if column is None:
            return
        same = column is self.sort_column
        self.descending = not self.descending if same else column.descending
        self.sort_column = column
        self.show_queues()

    def reverse(self) -> None:
        self.sort_by(self.sort_column.name)

    def group(self) -> None:
        self.grouped = not self.grouped
        self.show_queues()

    def on_resize(self) -> None:
        """In another width they may be narrower."""
        self._widest.clear()
        self._measured = 0
        super().on_resize()


def _groups(views: Sequence[QueueView]) -> Mapping[str, list[QueueView]]:
    """By connection, in the order of their names."""
    found: dict[str, list[QueueView]] = {name: [] for name in sorted({v.connection for v in views})}
    for view in views:
        found[view.connection].append(view)
    return found
