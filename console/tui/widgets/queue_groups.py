"""Lines over the queues of a connection and over the connections of a group: what adds up of them,
and which of them do not answer. A connection that does not adds nothing to its group."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from rich.cells import cell_len

from console import formats
from console.monitor.limits import Severity
from console.tui.text import MARK, SEVERITY_STYLES, mark_style, plain, shorten, sparkline
from console.tui.views import ConnectionView, Link, QueueView, link_text
from console.tui.widgets.keyed_table import Cell

if TYPE_CHECKING:
    from console.tui.widgets.queue_columns import QueueColumn

_STEP = "  "
"""What is under a line stands so far to its right."""
_FOLDED, _OPEN = "▸ ", "▾ "
_OLDEST = "age_seconds"
_MAY_BE_NEGATIVE = "gap"
_TREND, _FULL_IN = "trend", "full_in"
_AT_MOST = "≤"
_KEPT = 2
"""For so many buckets a queue's last count holds."""


@dataclass(frozen=True)
class Group:
    """Queues of one connection, or of all connections of a group."""

    title: str
    """Safe to show."""
    connections: tuple[ConnectionView, ...]
    queues: tuple[QueueView, ...]
    connection: str = ""
    """The only one that it is of; empty: it is a group of them."""
    under: str = ""
    """The key of the line that it stands under."""
    _totals: dict[str, str] = field(default_factory=dict, compare=False)
    """What was added up already."""

    @property
    def key(self) -> str:
        """Of its line; no queue's."""
        return repr((self.connection,) if self.connection else ("", self.title))

    @property
    def depth(self) -> int:
        """How far it is from the top of what can be folded."""
        return int(bool(self.connection))

    @cached_property
    def answering(self) -> int:
        """How many of the connections do."""
        return sum(one.link is Link.ALIVE for one in self.connections)

    @cached_property
    def level(self) -> Severity:
        """The gravest there is below it."""
        queues = max((one.level for one in self.queues), default=Severity.OK)
        return max(queues, *(one.level for one in self.connections))

    @cached_property
    def stale(self) -> bool:
        """Whether none of its figures is of now."""
        return self.answering == 0

    @cached_property
    def counted(self) -> tuple[QueueView, ...]:
        """The queues that it adds up: of a group those whose connections answer."""
        if self.connection:
            return self.queues
        return tuple(one for one in self.queues if one.stale_seconds is None)

    def number(self, name: str) -> float | None:
        """A figure's sum, or the oldest age; None: there is none."""
        values = [getattr(view.snapshot, name) for view in self.counted]
        known = [value for value in values if value is not None]
        return None if not known else max(known) if name == _OLDEST else sum(known)

    def total(self, name: str) -> str:
        """The same in words; where it is not known of all queues that have it, as what it is at
        least."""
        if name not in self._totals:
            self._totals[name] = self._total(name)
        return self._totals[name]

    def _total(self, name: str) -> str:
        number = self.number(name)
        unknown = any(name in view.snapshot.unknown for view in self.counted)
        if number is None or (unknown and name == _MAY_BE_NEGATIVE):
            return formats.UNKNOWN if unknown or not self.counted else ""
        if name == _OLDEST:
            words = formats.duration(max(number, 0.0))
        elif name.endswith("_per_second"):
            words = formats.rate(number)
        else:
            estimated = any(name in view.snapshot.estimated for view in self.counted)
            words = formats.count(int(number), estimated=estimated)
        return formats.AT_LEAST + words if unknown and words[0] != formats.ESTIMATE else words

    def trend(self, cells: int) -> tuple[int | None, ...]:
        """What was ready in the last buckets, added up: None where that is not known of all, by a
        look in it or in one of the two before it. Hosts are not looked at in step."""
        seen = [kept for view in self.counted if (kept := _kept(view.trend[-cells - _KEPT :]))]
        added = (None if None in bucket else sum(bucket) for bucket in zip(*seen, strict=True))
        return tuple(added)[-cells:]

    @cached_property
    def filling(self) -> tuple[QueueView, ...]:
        """Of its rings those that are known to fill, the first to be full first."""
        found = [view for view in self.counted if view.full_in_seconds is not None]
        return tuple(sorted(found, key=lambda view: view.full_in_seconds or 0.0))

    def _full_in(self, column: "QueueColumn") -> str:
        """When the first of its rings is full; `≤` where that is not known of all."""
        told = {column.value(view) for view in self.counted}
        unknown = formats.UNKNOWN in told
        if not self.filling:
            others = sorted(told - {formats.NOT_APPLICABLE, formats.UNKNOWN})
            return formats.UNKNOWN if unknown or not self.counted else "".join(others)
        words = column.value(self.filling[0])
        estimate = words.startswith(formats.ESTIMATE)
        return _AT_MOST + words.removeprefix(formats.ESTIMATE) if unknown and estimate else words

    @property
    def summaries(self) -> tuple[str, ...]:
        """How it is, in less and less room."""
        queues = formats.numbered(len(self.counted), "queue")
        if self.connection:
            (one,) = self.connections
            if one.link is Link.ALIVE:
                return queues, ""
            told = link_text(one, again=False)
            why = f": {one.why}" if one.why else ""
            return link_text(one) + why, told + why, told
        of = len(self.connections)
        some = f"{self.answering} of " if self.answering < of else ""
        whole = some + formats.numbered(of, "connection")
        return f"{whole}, {queues}", whole, f"{some}{of}"

    def name(self, width: int, mark: str) -> str:
        """What its line is called; how it is is never cut off for its title."""
        begin = _STEP * bool(self.under) + mark
        for words in self.summaries:
            end = f": {words}" if words else ""
            room = width - cell_len(begin + end)
            if cell_len(self.title) <= room:
                break
        return begin + shorten(self.title, max(4, room)) + end

    def cell(self, column: "QueueColumn", width: int, *, folded: bool) -> Cell:
        """What it shows in a column."""
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
        """As what it stands among others of its kind."""
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
) -> Iterator[Group]:
    """A line for each connection that has some of these queues, or is named itself: of one that
    never answered nobody knows a queue."""
    found: dict[str, list[QueueView]] = {name: [] for name in connections}
    for view in queues:
        found[view.connection].append(view)
    for name, own in found.items():
        conn = connections[name]
        if own or is_named(name):
            under = _key_of(conn.group) if conn.group else ""
            title = plain(name.removeprefix(f"{conn.group}/"))
            yield Group(title, (conn,), tuple(own), name, under)


def group_lines(
    connections: Mapping[str, ConnectionView], lines: Sequence[Group]
) -> Iterator[Group]:
    """A line for each group of which one of these connections is."""
    names = dict.fromkeys(one.connections[0].group for one in lines if one.under)
    for name in names:
        every = tuple(conn for conn in connections.values() if conn.group == name)
        key = _key_of(name)
        yield Group(plain(name), every, tuple(v for o in lines if o.under == key for v in o.queues))


def _key_of(group: str) -> str:
    return Group(plain(group), (), ()).key


def _kept(trend: Sequence[int | None]) -> list[int | None]:
    """With the gaps closed that are no longer than _KEPT; empty where nothing was ever seen."""
    kept: list[int | None] = [*trend]
    if None not in kept:
        return kept
    last, age = None, 0
    for place, value in enumerate(kept):
        last, age = (last, age + 1) if value is None else (value, 0)
        kept[place] = last if age <= _KEPT else None
    return kept if last is not None else []


GROUPS, CONNECTIONS, QUEUES = range(3)
"""Down to where lines are in sight."""


class Folding:
    """Which lines are open: what is below them is in sight."""

    def __init__(self, depth: int) -> None:
        self.filtered = False
        """Of what is filtered all is in sight, whatever was folded before."""
        self._depths = {False: depth, True: QUEUES}
        self._turned: set[str] = set()
        """Those that are folded where others of their depth are open, or the other way round."""

    def is_open(self, group: Group) -> bool:
        return (group.depth < self._depths[self.filtered]) != (group.key in self._turned)

    def toggle(self, group: Group) -> None:
        """Fold the one, or open it."""
        self._turned ^= {group.key}

    def fold(self, depth: int) -> None:
        """All of them, down to there."""
        self._depths[self.filtered] = depth
        self._turned.clear()

    def step(self, *, groups: bool) -> None:
        """All open, then folded to the groups, where there are some, then to the connections."""
        steps = (GROUPS, CONNECTIONS, QUEUES) if groups else (CONNECTIONS, QUEUES)
        self.fold(steps[(steps.index(self._depths[self.filtered]) + 1) % len(steps)])
