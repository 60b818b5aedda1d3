"""Columns that share a line."""

from hypothesis import given
from hypothesis import strategies as st

from console.tui.widgets.keyed_table import Column, fit

NAMES = ("a", "b", "c", "d")


def column(name: str, title: str, least: int = 1, most: int = 40) -> Column[str]:
    return Column(name, title, str, least=least, most=most)


COLUMNS = st.lists(
    st.builds(
        column,
        st.sampled_from(NAMES),
        st.sampled_from(["", "title"]),
        st.integers(1, 12),
        st.integers(12, 40),
    ),
    min_size=1,
    unique_by=lambda one: one.name,
)
WIDEST = st.fixed_dictionaries({name: st.integers(0, 60) for name in NAMES})


@given(COLUMNS, WIDEST, st.integers(0, 160), st.permutations(NAMES))
def test_they_fit_wherever_losing_some_lets_them(
    columns: list[Column[str]], widest: dict[str, int], room: int, lost: list[str]
) -> None:
    widest = {one.name: widest[one.name] for one in columns}
    found = fit(columns, widest, room, lost)
    order = [one.name for one in columns]
    assert [c.name for c in found] == [name for name in order if name in {c.name for c in found}]
    assert sum(one.width + 2 for one in found) <= max(room, 0), "all of them may be lost"
    least = {one.name: one.least for one in columns}
    assert all(one.width >= least[one.name] for one in found)


def test_who_gave_way_gets_what_is_left_over_first() -> None:
    columns = (column("a", "a", 4, 20), column("b", "b", 4, 6), column("c", "c"))
    widest = {"a": 10, "b": 6, "c": 1}
    assert [one.width for one in fit(columns, widest, 40)] == [10, 6, 18]
    assert [one.width for one in fit(columns, widest, 20)] == [7, 6, 1]
