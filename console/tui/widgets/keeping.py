"""Rows that stay in a list though what they showed has left it: somebody is at them."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from console.tui.widgets.keyed_table import Cell

LEFT = "left"
"""In a row's own words: it is no longer in the list."""


def keys_with(now: Sequence[str], before: Sequence[str], held: Collection[str | None]) -> list[str]:
    """The keys of now; and those of before that are held though they went, at their places.

    Else the next key would hit whatever has come to where the cursor is.
    """
    there = set(now)
    below: dict[str | None, list[str]] = {}
    last: str | None = None
    for key in before:
        if key in there:
            last = key
        elif key in held:
            below.setdefault(last, []).append(key)
    order = list(below.get(None, ()))
    for key in now:
        order += [key, *below.get(key, ())]
    return order


def as_left(cells: dict[str, Cell], state: str) -> dict[str, Cell]:
    """The cells of such a row; `state` is the one that says it."""
    old = {name: replace(cell, tone="stale") for name, cell in cells.items()}
    return old | {state: Cell(LEFT, "stale")}
