"""Columns that share a line: which are lost where it is short, and how wide the rest is."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from console.tui.widgets.keyed_table import Cell, TableColumn

_PADDING = 2


@dataclass(frozen=True)
class Wish:
    """What a column would like: from `least`, where it must give way, to `most`."""

    name: str
    title: str
    least: int = 1
    most: int = 40
    right: bool = False


def fit(
    wishes: Sequence[Wish],
    rows: Iterable[Mapping[str, Cell]],
    room: int,
    lost_first: Sequence[str] = (),
) -> list[TableColumn]:
    """The columns for so many cells. One with nothing in it is lost before all others.

    Who is widest beyond its least gives way first; what is left over goes to those that gave way,
    then to the last column.
    """
    found = list(rows)
    widest = {
        wish.name: max((cell_len(row[wish.name].text) for row in found), default=0)
        for wish in wishes
    }
    empty = not any(widest.values())
    shown = [wish for wish in wishes if (wish.title if empty else widest[wish.name])]
    widths = {
        wish.name: max(wish.least, min(wish.most, max(widest[wish.name], cell_len(wish.title))))
        for wish in shown
    }
    least = {wish.name: min(wish.least, widths[wish.name]) for wish in shown}
    for lost in lost_first:
        if sum(least[wish.name] + _PADDING for wish in shown) <= room:
            break
        shown = [wish for wish in shown if wish.name != lost]
    names = [wish.name for wish in shown]
    while names and (over := sum(widths[name] + _PADDING for name in names) - room) > 0:
        name = max(names, key=lambda name: widths[name] - least[name])
        if widths[name] == least[name]:
            break
        widths[name] -= min(over, max(1, (widths[name] - least[name]) // 2))
    for wish in shown:
        spare = room - sum(widths[name] + _PADDING for name in names)
        wanted = min(wish.most, max(widest[wish.name], cell_len(wish.title)))
        widths[wish.name] += max(0, min(spare, wanted - widths[wish.name]))
    if names:
        widths[names[-1]] += max(0, room - sum(widths[name] + _PADDING for name in names))
    return [TableColumn(w.name, w.title, widths[w.name], right=w.right) for w in shown]
