"""Which pops were overtaken, as `console.designs.pops` judges it, for logs of any length.

A pop is overtaken where one that ran before it has a higher number and was not pushed earlier. Of
all that ran before only those matter that no other of them outdoes in both: the front, which is one
pop long where numbers rise with time. So a log can be judged in pieces: first the front of each,
then each piece with the fronts of those before it.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

Point = tuple[int, float]
"""A number, and when it was pushed: in any unit, as long as it rises; NaN: nobody wrote it down."""


class Front:
    """The pops that could overtake one that comes now."""

    def __init__(self, points: Iterable[Point] = ()) -> None:
        self._points: list[Point] = []
        for point in points:
            self.add(point)

    @property
    def points(self) -> list[Point]:
        """None of them outdoes another in both."""
        return list(self._points)

    def add(self, point: Point) -> None:
        """A pop that has run."""
        number, pushed = point[0], math.inf if math.isnan(point[1]) else point[1]
        if any(n >= number and p >= pushed for n, p in self._points):
            return
        self._points = [(n, p) for n, p in self._points if n > number or p > pushed]
        self._points.append((number, pushed))

    def overtook(self, point: Point) -> int:
        """By how many numbers the farthest of them overtook it; 0: none did."""
        number, pushed = point[0], -math.inf if math.isnan(point[1]) else point[1]
        return max((n - number for n, p in self._points if n > number and p >= pushed), default=0)


def judge(points: Iterable[Point], front: Front) -> Iterator[int]:
    """Of each pop, in the order in which they ran, by how far it was overtaken; 0: it was not."""
    for point in points:
        yield front.overtook(point)
        front.add(point)


def before(fronts: Sequence[Sequence[Point]]) -> list[list[Point]]:
    """Of each piece of a log the front of all that ran before it, from the pieces' own fronts."""
    found: list[list[Point]] = []
    so_far = Front()
    for one in fronts:
        found.append(so_far.points)
        for point in one:
            so_far.add(point)
    return found
