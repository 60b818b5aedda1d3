"""Whatever refreshes, sorts, filters, groups and sizes come, the cursor stays on its queue.

So a key hits the queue that the operator has seen under it.
"""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from textual.widgets import Input

from console.catalog import installed_queue
from console.designs import design
from console.doctor.finding import Code, Diagnosis, Finding
from console.monitor.limits import Severity
from tests.tui.feeds import queue
from tests.tui.opened import Opened, opened

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
steps = st.one_of(
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
    st.tuples(st.just("filter"), st.sampled_from(["", "a", "beta", "errors:>0", "schema:pub"])),
    st.tuples(st.just("resize"), st.sampled_from([(80, 24), (160, 48), (100, 8), (60, 20)])),
    st.tuples(st.just("move"), st.sampled_from(["j", "k", "g", "G", "pagedown"])),
)

_GRAVE = Code("grave", Severity.CRITICAL, "")
_ALWAYS_SHOWN = 4
"""Characters of a name that stay, however narrow its column."""
_PAINTS_WITHIN_PAUSES = 250


def test_the_cursor_stays_on_its_queue_while_it_is_in_the_table(long: bool) -> None:
    @settings(
        max_examples=8 if long else 4,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.lists(steps, min_size=3, max_size=25))
    def stays(done: list[tuple[str, Any]]) -> None:
        with pytest.MonkeyPatch.context() as monkeypatch:
            asyncio.run(_scan(done, monkeypatch))

    stays()


async def _scan(done: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened("a", "b", connections=[]) as console:
        hit: list[object] = []
        monkeypatch.setattr(console.app, "open_actions", hit.append)
        await console.give(*(queue(name) for name in NAMES))
        for step, value in done:
            before = console.table.queue_key
            await _do(console, step, value)
            after = console.table.queue_key
            shown = [view.key for view in console.table.shown]
            if step != "move" and before in shown:
                assert after == before, f"{step} {value} moved the cursor"
            on_a_head = console.table.grouped and after is None
            assert on_a_head or ((after in shown) if shown else (after is None))
            _agrees(console)
            await _is_painted(console)
            console.overview.action_actions()
            assert hit == ([after] if after is not None else [])
            hit.clear()


async def _do(console: Opened, step: str, value: Any) -> None:
    if step == "refresh":
        await console.give(*value)
    elif step == "filter":
        console.overview.query_one("#filter", Input).value = value
        await console.pilot.pause()
    elif step == "resize":
        await console.pilot.resize_terminal(*value)
        await console.pilot.pause()
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
    return [Diagnosis(one, (Finding(_GRAVE, "something"),)) for one in queues]


def _agrees(console: Opened) -> None:
    """The row that is drawn under the cursor is the queue that an action would hit."""
    table = console.table
    shown = [repr(view.key) for view in table.shown]
    assert shown == [key for key in table.keys if key in shown]
    heads = [key for key in table.keys if key not in shown]
    with_queues = {view.connection for view in table.shown}
    named = {name for name in table.connections if table.filter.names(name)}
    assert len(heads) == (len(with_queues | named) if table.grouped else 0)
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
    """No old line stays on the screen. Textual paints on a timer of its own, soon after."""
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
