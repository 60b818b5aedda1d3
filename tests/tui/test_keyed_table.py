"""The one table: its cursor is a key, whatever it is shown; what differs is a tuple of columns."""

import asyncio
import importlib
import pkgutil
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import console.tui
from console.tui.widgets.keyed_table import LEFT, Column, KeyedTable
from console.tui.widgets.messages import MarkedTable
from tests.tui.alone import alone

COLUMNS = (Column[str]("key", "key", str, least=3), Column[str]("state", "state", lambda _: "here"))
KEYS = "abcdefghijkl"
SHOWN = st.lists(st.sampled_from(KEYS), unique=True)
STEPS = st.one_of(
    st.tuples(st.just("show"), SHOWN),
    st.tuples(st.just("keep"), SHOWN),
    st.tuples(st.just("go"), st.sampled_from(["move(3)", "move(-1)", "last", "mark", "mark_to"])),
    st.tuples(st.just("size"), st.sampled_from([(80, 24), (20, 6), (160, 48)])),
)


def subclasses(of: type[Any]) -> set[str]:
    found: list[type[Any]] = of.__subclasses__()
    return {one.__name__ for one in found}.union(*map(subclasses, found))


def test_every_table_of_the_console_is_fed_by_columns() -> None:
    for module in pkgutil.walk_packages(console.tui.__path__, "console.tui."):
        importlib.import_module(module.name)
    # Rows are marked there; queues are sorted and grouped; a finding's words are never lost.
    assert subclasses(KeyedTable) == {"MarkedTable", "QueueTable", "FindingsTable"}


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEPS, min_size=5, max_size=30))
def test_the_cursor_and_the_marks_stay_on_their_keys(steps: list[tuple[str, object]]) -> None:
    asyncio.run(_scan(steps))


async def _scan(steps: list[tuple[str, object]]) -> None:
    async with alone() as opened:
        table = MarkedTable[str](COLUMNS, left="state")
        await opened.app.screen.mount(table)
        opened.app.screen.set_focus(table)
        table.show({key: key for key in KEYS})
        for step, value in steps:
            cursor, marks = table.cursor_key, set(table.marks)
            if step == "go":
                await table.run_action(str(value))
                continue
            if step == "size":
                assert isinstance(value, tuple)
                await opened.pilot.resize_terminal(*value)
                await opened.pilot.pause()
                assert table.cursor_key == cursor
                continue
            assert isinstance(value, list)
            table.show({key: key for key in value}, keep=step == "keep")
            held = {*marks, cursor} - {None} if step == "keep" else set()
            assert set(table.keys) == held | set(value)
            assert [key for key in table.keys if key in value] == value
            assert table.left == held - set(value)
            for key in table.keys:
                assert table.cells(key)["state"].text == (LEFT if key in table.left else "here")
            assert set(table.marks) == marks & set(table.keys)
            if cursor in table.keys:
                assert table.cursor_key == cursor
            assert table.row == table.cursor_key
