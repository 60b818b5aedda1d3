"""Judging the order of pops in pieces says what judging it whole says."""

import math
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from console.designs import Order
from console.designs import order as whole
from console.pipeline.verify import Front, before, judge

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
logs = st.lists(st.tuples(st.integers(0, 20), st.none() | st.integers(0, 8)), max_size=25)


@given(logs, st.integers(1, 6))
def test_pieces_are_judged_as_the_whole(log: list[tuple[int, int | None]], size: int) -> None:
    pops = [
        whole.Pop(number, None if at is None else BEGIN + timedelta(seconds=at))
        for number, at in log
    ]
    expected = [one.pop for one in whole.judge(pops, Order.LAX).overtaken]
    points = [(number, math.nan if at is None else float(at)) for number, at in log]
    pieces = [points[at : at + size] for at in range(0, len(points), size)]
    fronts = []
    for piece in pieces:
        front = Front()
        for point in piece:
            front.add(point)
        fronts.append(front.points)
    found = [
        by
        for piece, so_far in zip(pieces, before(fronts), strict=True)
        for by in judge(piece, Front(so_far))
    ]
    assert [pop for pop, by in zip(pops, found, strict=True) if by] == expected


def test_a_front_is_short_where_numbers_rise_with_time() -> None:
    front = Front()
    for number in range(1000):
        front.add((number, float(number)))
    assert front.points == [(999, 999.0)]
    assert front.overtook((990, 990.0)) == 9
