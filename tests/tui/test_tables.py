"""The table of every screen: its cursor is a key; which columns fit, and their order. On the
overview the cursor stays on its queue whatever refreshes, sorts, filters, groups and sizes come, so
that a key acts on the queue that the operator has seen under it."""

import asyncio
import importlib
import pkgutil
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from textual.widgets import Input

import console.tui
from console.catalog import installed_queue
from console.designs import design
from console.doctor.finding import Code, Diagnosis, Finding
from console.monitor.limits import Severity
from console.monitor.sampler import Reading
from console.tui.store import Store
from console.tui.views import QueueView
from console.tui.widgets.keyed_table import LEFT, KeyedTable, MarkedTable, cell_of, fit, sort_rows
from console.tui.widgets.queue_columns import COLUMNS, DROP_ORDER, SORTABLE, layout
from console.views.view import Column
from tests.tui.feeds import nine_queues, queue
from tests.tui.opened import Opened, alone, opened

TWO_COLUMNS = (
    Column[str]("key", "key", str, min_width=3),
    Column[str]("state", "state", lambda _: "here"),
)
KEYS = "abcdefghijkl"
SHOWN = st.lists(st.sampled_from(KEYS), unique=True)
STEPS = st.one_of(
    st.tuples(st.just("show"), SHOWN),
    st.tuples(st.just("keep"), SHOWN),
    st.tuples(st.just("go"), st.sampled_from(["move(3)", "move(-1)", "last", "mark", "mark_to"])),
    st.tuples(st.just("size"), st.sampled_from([(80, 24), (20, 6), (160, 48)])),
)


def subclasses(kind: type[Any]) -> set[str]:
    types: list[type[Any]] = kind.__subclasses__()
    return {one.__name__ for one in types}.union(*map(subclasses, types))


def test_the_console_has_only_four_specialized_tables() -> None:
    for module in pkgutil.walk_packages(console.tui.__path__, "console.tui."):
        importlib.import_module(module.name)
    # One marks rows, one does so only on demand, one groups queues, one never cuts a text.
    assert subclasses(KeyedTable) == {"MarkedTable", "ListTable", "QueueTable", "FindingsTable"}


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEPS, min_size=5, max_size=30))
def test_the_cursor_and_the_marks_stay_on_their_keys(steps: list[tuple[str, object]]) -> None:
    asyncio.run(_run_steps(steps))


async def _run_steps(steps: list[tuple[str, object]]) -> None:
    async with alone() as opened:
        table = MarkedTable[str](TWO_COLUMNS, removed_column="state")
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
                await opened.resize(*value)
                assert table.cursor_key == cursor
                continue
            assert isinstance(value, list)
            table.show({key: key for key in value}, keep=step == "keep")
            held = {*marks, cursor} - {None} if step == "keep" else set()
            assert set(table.keys) == held | set(value)
            assert [key for key in table.keys if key in value] == value
            assert table.removed == held - set(value)
            for key in table.keys:
                assert table.cells(key)["state"].text == (LEFT if key in table.removed else "here")
            assert set(table.marks) == marks & set(table.keys)
            if cursor in table.keys:
                assert table.cursor_key == cursor
            assert table.row == table.cursor_key


NEVER_DROPPED = ["state", "queue", "design", "ready", "age", "gap", "stuck", "errors"]


def names(width: int) -> list[str]:
    return [column.name for column in layout(width, {}, "state", descending=True)]


def views() -> tuple[QueueView, ...]:
    store = Store({"prod": 1.0}, now=0)
    store.add_reading("prod", Reading("prod", tuple(nine_queues())), at=0)
    return store.queues(0)


def test_eighty_columns_have_the_most_important_columns() -> None:
    assert names(79) == NEVER_DROPPED


def test_a_wide_screen_has_every_column() -> None:
    assert names(159) == [column.name for column in COLUMNS]


def test_columns_are_dropped_in_the_drop_order() -> None:
    dropped_at = {
        name: next(width for width in range(60, 200) if name in names(width)) for name in DROP_ORDER
    }
    widths = list(dropped_at.values())
    assert widths == sorted(widths, reverse=True)
    assert len(set(widths)) == len(widths)


@given(
    st.integers(60, 300),
    st.dictionaries(st.sampled_from([column.name for column in COLUMNS]), st.integers(0, 70)),
)
def test_a_layout_uses_the_width_and_keeps_the_columns_that_are_never_dropped(
    width: int, widest: dict[str, int]
) -> None:
    shown = layout(width, widest, "ready", descending=True)
    assert [column.name for column in shown if column.name in NEVER_DROPPED] == NEVER_DROPPED
    total = sum(column.width + 2 for column in shown)
    assert total == width or {column.name for column in shown} == set(NEVER_DROPPED)


def test_the_worst_comes_first_and_equals_keep_their_order() -> None:
    by_state = sort_rows(views(), SORTABLE[0].sort_key, descending=True)
    assert [view.label for view in by_state][:5] == [
        "mail",
        "orders",
        "reports",
        "billing",
        "imports",
    ]


def test_unknown_figures_come_last_in_either_order() -> None:
    age = next(column for column in SORTABLE if column.name == "age")
    for descending in (True, False):
        names = [view.label for view in sort_rows(views(), age.sort_key, descending=descending)]
        assert set(names[-3:]) == {"billing", "imports", "reports"}
    oldest_first = sort_rows(views(), age.sort_key, descending=True)
    assert oldest_first[0].label == "undo"


def test_a_long_queue_name_leaves_room_for_the_connection() -> None:
    store = Store({"production-east": 1.0, "stage": 1.0}, now=0)
    store.add_reading("production-east", Reading("", (queue("a-very-long-queue-name"),)), at=0)
    (view,) = store.queues(0)
    column = next(column for column in COLUMNS if column.name == "queue")
    assert cell_of(column, view, 60).text == "production-east › a-very-long-queue-name"  # noqa: RUF001
    assert cell_of(column, view, 20).text == "prod… › a-very-long…"  # noqa: RUF001


COLUMN_NAMES = ("a", "b", "c", "d")


def column(name: str, title: str, least: int = 1, most: int = 40) -> Column[str]:
    return Column(name, title, str, min_width=least, max_width=most)


ANY_COLUMNS = st.lists(
    st.builds(
        column,
        st.sampled_from(COLUMN_NAMES),
        st.sampled_from(["", "title"]),
        st.integers(1, 12),
        st.integers(12, 40),
    ),
    min_size=1,
    unique_by=lambda one: one.name,
)
WIDEST = st.fixed_dictionaries({name: st.integers(0, 60) for name in COLUMN_NAMES})


@given(ANY_COLUMNS, WIDEST, st.integers(0, 160), st.permutations(COLUMN_NAMES))
def test_columns_fit_if_enough_of_them_may_be_dropped(
    columns: list[Column[str]], widest: dict[str, int], room: int, drop_order: list[str]
) -> None:
    widest = {column.name: widest[column.name] for column in columns}
    found = fit(columns, widest, room, drop_order)
    order = [column.name for column in columns]
    assert [c.name for c in found] == [name for name in order if name in {c.name for c in found}]
    assert sum(one.width + 2 for one in found) <= max(room, 0), "all of them may be lost"
    least = {column.name: column.min_width for column in columns}
    assert all(one.width >= least[one.name] for one in found)


def test_columns_that_were_narrowed_get_spare_width_first() -> None:
    columns = (column("a", "a", 4, 20), column("b", "b", 4, 6), column("c", "c"))
    widest = {"a": 10, "b": 6, "c": 1}
    assert [column_layout.width for column_layout in fit(columns, widest, 40)] == [10, 6, 18]
    assert [column_layout.width for column_layout in fit(columns, widest, 20)] == [7, 6, 1]


NAMES = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "a.b", "[bold]", "'", "beta ")

snapshots = st.builds(
    lambda name, figures: replace(queue(name), **figures),
    st.sampled_from(NAMES),
    st.fixed_dictionaries(
        {
            "ready": st.integers(0, 3),
            "errors": st.sampled_from([None, 0, 1]),
            "stuck": st.sampled_from([None, 0, 1]),
            "schema": st.sampled_from(["public", "other"]),
        }
    ),
)
overview_steps = st.one_of(
    st.tuples(
        st.just("refresh"),
        st.lists(snapshots, max_size=20, unique_by=lambda one: (one.schema, one.queue)),
    ),
    st.tuples(st.just("sort"), st.none()),
    st.tuples(st.just("reverse"), st.none()),
    st.tuples(st.just("group"), st.none()),
    st.tuples(st.just("examine"), st.sampled_from(NAMES)),
    st.tuples(st.just("fail"), st.none()),
    st.tuples(st.just("pause"), st.none()),
    st.tuples(st.just("filter"), st.sampled_from(["", "a", "beta", "errors>0", "schema~pub"])),
    st.tuples(st.just("resize"), st.sampled_from([(80, 24), (160, 48), (100, 8), (60, 20)])),
    st.tuples(st.just("move"), st.sampled_from(["j", "k", "g", "G", "pagedown"])),
)

_SEVERE = Code("grave", Severity.CRITICAL, "")
_ALWAYS_SHOWN = 4
"""Characters of a name that stay, however narrow its column."""
_PAINTS_WITHIN_PAUSES = 250


def test_the_cursor_stays_on_its_queue_while_it_is_in_the_table(long: bool) -> None:
    @settings(
        max_examples=8 if long else 4,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.lists(overview_steps, min_size=3, max_size=25))
    def stays(done: list[tuple[str, Any]]) -> None:
        with pytest.MonkeyPatch.context() as monkeypatch:
            asyncio.run(_run_overview_steps(done, monkeypatch))

    stays()


async def _run_overview_steps(done: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened("a", "b", connections=[]) as console:
        acted_on: list[object] = []
        monkeypatch.setattr(console.app, "open_actions", acted_on.append)
        await console.give(*(queue(name) for name in NAMES))
        for step, value in done:
            before = console.table.queue_key
            await _do(console, step, value)
            after = console.table.queue_key
            shown = [view.key for view in console.table.shown]
            if step != "move" and before in shown:
                assert after == before, f"{step} {value} moved the cursor"
            on_a_group = console.table.grouped and after is None
            assert on_a_group or ((after in shown) if shown else (after is None))
            _agrees(console)
            await _is_painted(console)
            console.overview.action_actions()
            assert acted_on == ([after] if after is not None else [])
            acted_on.clear()


async def _do(console: Opened, step: str, value: Any) -> None:
    if step == "refresh":
        await console.give(*value)
    elif step == "filter":
        console.overview.query_one("#filter", Input).value = value
        await console.pilot.pause()
    elif step == "resize":
        await console.resize(*value)
    elif step == "fail":
        console.feed.fail()
        await console.pilot.pause()
    elif step == "examine":
        store, now = console.app.context.store, console.clock.now
        store.add_diagnoses("a", _diagnosed(value), now, console.clock.clock.utc())
        console.overview.draw()
        await console.pilot.pause()
    else:
        keys = {"sort": "s", "reverse": "S", "pause": "space", "group": "v"}
        await console.press(keys.get(step, value))


def _diagnosed(name: str) -> list[Diagnosis]:
    fifo = design("fifo", "postgresql")
    options = fifo.complete_options({}, "postgresql")
    queues = [installed_queue(schema, name, fifo, options) for schema in ("public", "other")]
    return [Diagnosis(queue, (Finding(_SEVERE, "something"),)) for queue in queues]


def _agrees(console: Opened) -> None:
    """The row that is drawn under the cursor is the queue that an action would change."""
    table = console.table
    shown = [repr(view.key) for view in table.shown]
    assert shown == [key for key in table.keys if key in shown]
    group_rows = [key for key in table.keys if key not in shown]
    with_queues = {view.connection for view in table.shown}
    named = {name for name in table.connections if table.filter.names(name)}
    assert len(group_rows) == (len(with_queues | named) if table.grouped else 0)
    if table.view is not None:
        assert repr(table.view.key) == table.cursor_key
        line = table.cursor_row - table.scroll_offset.y + 1
        drawn = table.render_line(line).text
        assert table.cells(table.keys[table.cursor_row])["queue"].text in drawn
        assert table.view.label[:_ALWAYS_SHOWN] in drawn
        assert 0 < line < max(2, table.scrollable_content_region.height), (
            "the cursor is out of sight"
        )


async def _is_painted(console: Opened) -> None:
    """Wait until no old line is on the screen: Textual paints soon after, on a timer."""
    for _ in range(_PAINTS_WITHIN_PAUSES):
        if not (old := _old_lines(console)):
            return
        await console.pilot.pause(0.02)
    pytest.fail(f"old lines are on the screen: {old}")


def _old_lines(console: Opened) -> list[str]:
    table = console.table
    on_screen = console.picture.splitlines()[table.region.y :]
    lines = [table.render_line(y).text for y in range(table.scrollable_content_region.height)]
    return [old for old, now in zip(on_screen, lines, strict=False) if not old.startswith(now)]
