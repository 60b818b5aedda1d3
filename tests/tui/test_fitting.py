"""Columns that share a line."""

from hypothesis import given
from hypothesis import strategies as st

from console.tui.widgets.fitting import Wish, fit
from console.tui.widgets.keyed_table import Cell

NAMES = ("a", "b", "c", "d")
WISHES = st.lists(
    st.builds(
        Wish,
        st.sampled_from(NAMES),
        st.sampled_from(["", "title"]),
        st.integers(1, 12),
        st.integers(12, 40),
    ),
    min_size=1,
    unique_by=lambda wish: wish.name,
)
ROWS = st.lists(
    st.fixed_dictionaries({name: st.builds(Cell, st.text("x", max_size=60)) for name in NAMES})
)


@given(WISHES, ROWS, st.integers(0, 160), st.permutations(NAMES))
def test_they_fit_wherever_losing_some_lets_them(
    wishes: list[Wish], rows: list[dict[str, Cell]], room: int, lost: list[str]
) -> None:
    found = fit(wishes, rows, room, lost)
    order = [wish.name for wish in wishes]
    assert [c.name for c in found] == [name for name in order if name in {c.name for c in found}]
    assert sum(column.width + 2 for column in found) <= max(room, 0), "all of them may be lost"
    least = {wish.name: wish.least for wish in wishes}
    assert all(column.width >= least[column.name] for column in found)


def test_who_gave_way_gets_what_is_left_over_first() -> None:
    wishes = (Wish("a", "a", least=4, most=20), Wish("b", "b", least=4, most=6), Wish("c", "c"))
    rows = [{"a": Cell("x" * 10), "b": Cell("x" * 6), "c": Cell("x")}]
    assert [column.width for column in fit(wishes, rows, 40)] == [10, 6, 18]
    assert [column.width for column in fit(wishes, rows, 20)] == [7, 6, 1]
