"""The lines above the queues of a connection and the connections of a group: totals, and which
connections do not answer. Those that do not answer add nothing to their group."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import is_
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from rich.cells import cell_len

from console import formats
from console.figures import BY_NAME
from console.monitor.limits import Severity
from console.tui.text import MARK, SEVERITY_STYLES, mark_style, plain, shorten, sparkline
from console.tui.views import ConnectionView, Link, QueueView, link_text, link_word
from console.tui.widgets.keyed_table import Cell

if TYPE_CHECKING:
    from console.tui.widgets.queue_columns import QueueColumn

T = TypeVar("T")

_STEP = "  "
"""The indent per level."""
_FOLDED, _OPEN = "▸ ", "▾ "
_TREND, _FULL_IN = "trend", "full_in"
_AT_MOST = "≤"
_KEPT_BUCKETS = 2
"""For how many buckets a queue's last count is used."""


@dataclass(frozen=True)
class Group:
    """Queues of one connection, or of all connections of a group."""

    title: str
    """Safe to show."""
    connections: tuple[ConnectionView, ...]
    queues: tuple[QueueView, ...]
    connection: str = ""
    """Empty: it is a group of connections."""
    under: str = ""
    """The key of the group above it."""
    below: tuple["Group", ...] = ()
    """Of a group, its connections: its totals are made of theirs."""
    _cache: dict[object, Any] = field(default_factory=dict, compare=False)

    @property
    def key(self) -> str:
        """Never equal to a queue's key."""
        return repr((self.connection,) if self.connection else ("", self.title))

    @property
    def depth(self) -> int:
        """0: a group of connections; 1: a connection."""
        return int(bool(self.connection))

    @cached_property
    def answering(self) -> int:
        """How many of the connections answer."""
        return sum(connection.link is Link.ALIVE for connection in self.connections)

    @cached_property
    def level(self) -> Severity:
        """The most severe below it."""
        levels = [one.level for one in (*self.connections, *(self.below or self.queues))]
        return max(levels, default=Severity.OK)

    @cached_property
    def stale(self) -> bool:
        """Whether none of its figures is current."""
        return self.answering == 0

    @cached_property
    def _parts(self) -> tuple["Group", ...]:
        """Of a group, the connections in its totals."""
        stale = {view.connection for view in self.queues if view.stale_seconds is not None}
        return tuple(one for one in self.below if one.connection not in stale)

    @cached_property
    def counted(self) -> tuple[QueueView, ...]:
        """The queues in its totals: in a group those of answering connections."""
        return self.queues if self.connection else tuple(v for o in self._parts for v in o.queues)

    def _own(self, value: Callable[[QueueView], T]) -> list[T]:
        """The values of its queues, if it is a connection: a group's are in its parts."""
        return [value(view) for view in self.queues] if self.connection else []

    def _kept(self, key: object, make: Callable[[], T]) -> T:
        if key not in self._cache:
            self._cache[key] = make()
        found: T = self._cache[key]
        return found

    def number(self, name: str) -> float | None:
        """A figure's sum, or the oldest age; None if no queue has it."""
        return self._kept(("number", name), lambda: self._number(name))

    def _number(self, name: str) -> float | None:
        values = [one.number(name) for one in self._parts]
        values += self._own(lambda view: getattr(view.snapshot, name))
        known = [value for value in values if value is not None]
        add_up = BY_NAME[name].add_up
        return add_up(known) if known and add_up else None

    def of_some(self, what: str) -> frozenset[str]:
        """The figures that are `unknown`, or `estimated`, for some of its queues."""

        def union() -> frozenset[str]:
            own = self._own(lambda view: getattr(view.snapshot, what))
            return frozenset().union(*(one.of_some(what) for one in self._parts), *own)

        return self._kept(what, union)

    def total(self, name: str) -> str:
        """The same as text; marked as a minimum if it is unknown for some queues."""
        return self._kept(("total", name), lambda: self._total(name))

    def _total(self, name: str) -> str:
        number, unknown = self.number(name), name in self.of_some("unknown")
        if number is None or (unknown and BY_NAME[name].may_be_negative):
            return formats.UNKNOWN if unknown or not self.counted else ""
        text = BY_NAME[name].unit.text(number, estimated=name in self.of_some("estimated"))
        return formats.AT_LEAST + text if unknown and text[0] != formats.ESTIMATE else text

    def trend(self, cells: int) -> tuple[int | None, ...]:
        """The sum of ready messages in the last buckets; None if it is unknown for a queue. Hosts
        are not sampled in step: a count holds for two more buckets."""
        return self._kept(("trend", cells), lambda: self._trend(cells))

    def _trend(self, cells: int) -> tuple[int | None, ...]:
        trends = [one.trend(cells) for one in self._parts]
        trends += self._own(lambda view: tuple(_fill_gaps(view.trend[-cells - _KEPT_BUCKETS :])))
        buckets = zip(*filter(None, trends), strict=True)
        return tuple(None if None in bucket else sum(bucket) for bucket in buckets)[-cells:]

    @cached_property
    def filling(self) -> tuple[QueueView, ...]:
        """Its rings that are known to fill, the first to be full first."""
        rings = [view for one in self._parts for view in one.filling]
        rings += [view for view in self._own(lambda view: view) if view.full_in_seconds is not None]
        return tuple(sorted(rings, key=lambda view: view.full_in_seconds or 0.0))

    def texts(self, column: "QueueColumn") -> frozenset[str]:
        """The column's, of all its queues."""

        def union() -> frozenset[str]:
            own = self._own(column.value)
            return frozenset(own).union(*(one.texts(column) for one in self._parts))

        return self._kept(("texts", column.name), union)

    def _full_in(self, column: "QueueColumn") -> str:
        """When the first of its rings is full; `≤` if that is unknown for some."""
        texts = self.texts(column)
        unknown = formats.UNKNOWN in texts
        if not self.filling:
            others = sorted(texts - {formats.NOT_APPLICABLE, formats.UNKNOWN})
            return formats.UNKNOWN if unknown or not self.counted else "".join(others)
        text = column.value(self.filling[0])
        estimate = text.startswith(formats.ESTIMATE)
        return _AT_MOST + text.removeprefix(formats.ESTIMATE) if unknown and estimate else text

    @property
    def summaries(self) -> tuple[str, ...]:
        """Its state, from the longest form to the shortest: none, as its mark and color tell it."""
        queues = formats.numbered(len(self.counted), "queue")
        if self.connection:
            (one,) = self.connections
            if one.link is Link.ALIVE:
                return queues, ""
            state = link_text(one, with_retry=False)
            why = f": {one.why}" if one.why else ""
            return link_text(one) + why, state + why, state, link_word(one), ""
        of = len(self.connections)
        some = f"{self.answering} of " if self.answering < of else ""
        connections = some + formats.numbered(of, "connection")
        return f"{connections}, {queues}", connections, f"{some}{of}"

    def name(self, width: int, mark: str) -> str:
        """The title and the state, in the longest form that leaves room for the title."""
        begin = _STEP * bool(self.under) + mark
        for summary in self.summaries:
            end = f": {summary}" if summary else ""
            room = width - cell_len(begin + end)
            if cell_len(self.title) <= room:
                break
        return begin + shorten(self.title, max(4, room)) + end

    def cell(self, column: "QueueColumn", width: int, *, folded: bool) -> Cell:
        """Its cell in a column."""
        style = "stale" if self.stale else "group"
        if column.name == "state":
            return Cell(self.level.mark, SEVERITY_STYLES.get(self.level, ""))
        if column.name == _TREND:
            return Cell(sparkline(self.trend(width)), "stale" if self.stale else "trend")
        if column.name != "queue":
            return Cell(self.text(column, width), style)
        mark, color = _FOLDED if folded else _OPEN, self.connections[0].color
        if not self.connection or not color:
            return Cell(self.name(width, mark), style)
        return Cell(MARK + self.name(width - len(MARK), mark), style, mark_style(color))

    def text(self, column: "QueueColumn", width: int) -> str:
        """The same as a text."""
        if column.name == "queue":
            return self.name(width, _OPEN)
        if column.name == _FULL_IN:
            return self._full_in(column)
        return self.total(column.sum_of) if column.sum_of else ""

    def sort_value(self, column: "QueueColumn") -> float | str | None:
        """Its value for sorting among other groups."""
        if column.name == "state":
            return float(self.level)
        if column.name == "queue":
            return self.title.casefold()
        if column.name == _FULL_IN:
            return self.filling[0].full_in_seconds if self.filling else None
        return self.number(column.sum_of) if column.sum_of else None


def connection_groups(
    connections: Mapping[str, ConnectionView],
    queues: Sequence[QueueView],
    is_named: Callable[[str], bool],
    before: Mapping[str, Group] = MappingProxyType({}),
) -> Iterator[Group]:
    """A line for each connection with some of these queues, or that matches by name: one that never
    answered has no known queues. `before`: earlier ones by connection, kept if nothing changed."""
    by_connection: dict[str, list[QueueView]] = {name: [] for name in connections}
    for view in queues:
        by_connection[view.connection].append(view)
    for name, own in by_connection.items():
        conn = connections[name]
        if own or is_named(name):
            under = _key_of(conn.group) if conn.group else ""
            title = plain(name.removeprefix(f"{conn.group}/"))
            group = Group(title, (conn,), tuple(own), name, under)
            kept = before.get(name)
            yield kept if kept is not None and _is_same(kept, group) else group


def _is_same(kept: Group, group: Group) -> bool:
    """Equal views may differ in ages."""
    views = kept.queues, group.queues
    return len(views[0]) == len(views[1]) and all(map(is_, *views)) and kept == group


def group_lines(
    connections: Mapping[str, ConnectionView], lines: Sequence[Group]
) -> Iterator[Group]:
    """A line for each group of these connections."""
    names = dict.fromkeys(group.connections[0].group for group in lines if group.under)
    for name in names:
        every = tuple(conn for conn in connections.values() if conn.group == name)
        below = tuple(one for one in lines if one.under == _key_of(name))
        yield Group(plain(name), every, tuple(v for o in below for v in o.queues), below=below)


def _key_of(group: str) -> str:
    return Group(plain(group), (), ()).key


def _fill_gaps(trend: Sequence[int | None]) -> list[int | None]:
    """With gaps of up to _KEPT_BUCKETS filled; empty if there are only gaps."""
    kept: list[int | None] = [*trend]
    if None not in kept:
        return kept
    last, age = None, 0
    for index, value in enumerate(kept):
        last, age = (last, age + 1) if value is None else (value, 0)
        kept[index] = last if age <= _KEPT_BUCKETS else None
    return kept if last is not None else []


GROUPS, CONNECTIONS, QUEUES = range(3)
"""The level down to which lines are visible."""


class Folding:
    """Which group lines are unfolded."""

    def __init__(self, depth: int) -> None:
        self.filtered = False
        """With a filter everything is unfolded at first."""
        self._depths = {False: depth, True: QUEUES}
        self._toggled: set[str] = set()
        """Groups that differ from the default of their depth."""

    def is_open(self, group: Group) -> bool:
        return (group.depth < self._depths[self.filtered]) != (group.key in self._toggled)

    def toggle(self, group: Group) -> None:
        self._toggled ^= {group.key}

    def fold(self, depth: int) -> None:
        """Fold all groups down to a level."""
        self._depths[self.filtered] = depth
        self._toggled.clear()

    def step(self, *, groups: bool) -> None:
        """Cycle: all unfolded, folded to the groups if there are any, to the connections."""
        steps = (GROUPS, CONNECTIONS, QUEUES) if groups else (CONNECTIONS, QUEUES)
        self.fold(steps[(steps.index(self._depths[self.filtered]) + 1) % len(steps)])
