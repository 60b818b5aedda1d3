"""The list of messages: its rows, and that cursor and marks stay on their messages."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from textual import events
from textual.widgets import Input

from console.catalog import installed_queue
from console.designs import design
from console.engines import Database
from console.errors import ConnectionFailedError, UsageError
from console.filters import line_of, words_of
from console.monitor.filters import NOTHING, Filters, parse
from console.monitor.message import Message
from console.monitor.messages import Page
from console.monitor.scans import ScanKey
from console.tui.open_connection import OpenConnection
from console.tui.tabs.messages import LoadedPage, MessagesTab, PageRequest
from console.tui.widgets.keyed_table import LEFT, merge_keys
from console.views.messages import by_key
from tests.tui.acting import make
from tests.tui.feeds import queue
from tests.tui.one_tab import KEY, one_tab
from tests.tui.opened import opened

CLAIM = design("claim", "postgresql")
QUEUE = installed_queue("public", "mail", CLAIM, CLAIM.complete_options({}))
EMPTY = Message("", None, "ready", age_seconds=1.0, attempts=0, payload_bytes=9)


def message(name: str, state: str = "ready", **more: Any) -> Message:
    return replace(EMPTY, id=name, key=f"{state},,{name}", state=state, **more)


def page(*messages: Message, more: bool = False) -> Page:
    return Page(QUEUE, messages, ScanKey("ready", "", "z") if more else None, complete=True)


def give(pane: MessagesTab, *messages: Message, more: bool = False, again: bool = False) -> None:
    pane.show_page(LoadedPage(replace(pane.request, is_refresh=again), page(*messages, more=more)))


def requests_of(pane: MessagesTab, monkeypatch: pytest.MonkeyPatch) -> list[PageRequest]:
    """The pages that it requests from now on."""
    requests: list[PageRequest] = []
    monkeypatch.setattr(pane, "_load", lambda request, **_: requests.append(request))
    return requests


ABC = tuple(message(name) for name in "abcdef")


async def test_a_page_says_that_there_is_more_and_why_a_refresh_failed() -> None:
    async with one_tab(MessagesTab) as shown:
        give(shown.tab, *ABC, message("[bold]x", "error", error="no\x1b[31m route"), more=True)
        await shown.pilot.pause()
        assert "7 messages, more below" in shown.text_of(".pane-head")
        shown.shows("[bold]x", "no␛[31m route")
        await shown.press("enter")
        assert shown.navigator.calls == [("message", KEY, "ready,,a")]
        shown.tab.show_error(ConnectionFailedError("Could not look.", why="gone", next_step="wait"))
        await shown.pilot.pause()
        assert all(
            words in shown.text_of(".pane-head")
            for words in ("Could not look.", "gone", "wait", "as of")
        )
        assert "7 messages" in shown.text_of(".pane-head")


async def test_page_down_at_the_end_loads_the_next_page(monkeypatch: pytest.MonkeyPatch) -> None:
    async with one_tab(MessagesTab) as shown:
        pane = shown.tab
        give(pane, *ABC, more=True)
        requests = requests_of(pane, monkeypatch)
        await shown.press("pagedown")
        assert requests == []
        await shown.press("pagedown")
        (request,) = requests
        assert request.after == "ready,,z"
        pane.show_page(LoadedPage(request, page(message("g"))))
        await shown.pilot.pause()
        assert list(pane.table.keys) == [f"id={name}" for name in "abcdefg"]
        assert pane.table.cursor_key == "id=f"
        assert "7 messages" in shown.text_of(".pane-head")
        assert "more" not in shown.text_of(".pane-head")


async def test_marked_messages_become_filters_by_id_and_all_matching_the_lists_filter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with one_tab(MessagesTab) as shown:
        pane = shown.tab
        give(pane, *ABC)
        await shown.press("a")
        await shown.press("x", "j", "X", "a")
        assert "3 marked" in shown.text_of(".pane-head")
        await shown.press("escape", "shift+down", "a")
        await shown.press("asterisk")
        assert "all matching" in shown.text_of(".pane-head")
        await shown.press("a")
        filters = parse(["state=error", "error~no route"])
        pane.show_page(LoadedPage(PageRequest(filters, reverse=True), page(message("a", "error"))))
        await shown.press("asterisk", "a")
        assert [call[2:] for call in shown.navigator.calls] == [
            ("id=a",),
            ("id=a", "id=b", "id=c"),
            ("id=c", "id=d"),
            (),
            ("state=error", "error~no route"),
        ]
        assert "oldest first" in shown.text_of(".pane-head")
        assert 'filter "error~no route"' in shown.text_of(".pane-head")
        requests = requests_of(pane, monkeypatch)
        await shown.press("escape", "t")
        assert [request.filters for request in requests] == [Filters(state="ready")]


async def test_an_invalid_filter_is_reported_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with one_tab(MessagesTab) as shown:
        pane = shown.tab
        give(pane, *ABC)
        requests = requests_of(pane, monkeypatch)
        await shown.press("slash", *"statte=x", "enter")
        shown.shows("'statte=x' cannot be read", "Did you mean: state=S")
        assert (requests, pane.request.filters) == ([], NOTHING)
        pane.query_one(Input).value = "older=10m state=ready"
        await shown.press("enter")
        assert [request.filters for request in requests] == [Filters(state="ready", older=600.0)]
        assert pane.table.has_focus
        # A filter that only the queue can refuse changes nothing either.
        pane.show_error(UsageError("The queue 'mail' has no messages in a state 'x'."))
        assert pane.request.filters == NOTHING
        assert [*pane.table.keys] == [f"id={name}" for name in "abcdef"]
        assert "has no messages in a state" in shown.text_of(".pane-head")


async def test_letters_typed_into_the_filter_are_not_keys_however_fast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with one_tab(MessagesTab) as shown:
        pane = shown.tab
        give(pane, *ABC)
        requests = requests_of(pane, monkeypatch)
        await shown.press("slash", *"xatsqo/19", "escape")
        assert (requests, shown.navigator.calls, pane.table.marks) == ([], [], ())
        assert not pane.typing
        await shown.press("slash")
        for key in (*"id=17", "enter"):  # all of them before the first is handled
            character = None if key == "enter" else key
            shown.app.post_message(events.Key({"=": "equals_sign"}.get(key, key), character))
        await shown.until(lambda: requests)
        assert [request.filters for request in requests] == [Filters(ids=("17",))]
        screen = pane.screen
        assert shown.app.screen is screen
        await shown.press("escape", "escape")
        assert shown.app.screen is not screen


async def test_a_message_that_is_gone_keeps_its_row_while_marked_or_under_the_cursor() -> None:
    async with one_tab(MessagesTab) as shown:
        pane = shown.tab
        give(pane, *ABC)
        await shown.press("j", "x", "j")
        assert (pane.table.marks, pane.table.cursor_key) == (("id=b",), "id=d")
        give(pane, message("new"), message("a"), message("f"), again=True)
        await shown.pilot.pause()
        assert list(pane.table.keys) == [f"id={name}" for name in ("new", "a", "b", "d", "f")]
        assert (pane.table.marks, pane.table.cursor_key) == (("id=b",), "id=d")
        assert pane.table.cells("id=b")["state"].text == LEFT
        give(pane, message("b", "claimed"), again=True)
        assert pane.table.cells("id=b")["state"].text == "claimed"
        give(pane, message("f"))  # another list
        assert list(pane.table.keys) == ["id=f"]


def test_a_message_read_in_two_states_is_one_row() -> None:
    both = by_key([message("a"), message("b"), message("a", "claimed"), message("b")])
    assert [(key, one.state) for key, one in both.items()] == [
        ("id=a", "claimed"),
        ("id=b", "ready"),
        ("at=ready,,b", "ready"),
    ]


keys = st.lists(st.sampled_from("abcdefgh"), unique=True)


@given(keys, keys, st.sets(st.sampled_from("abcdefgh")))
def test_held_rows_keep_their_position(now: list[str], before: list[str], held: set[str]) -> None:
    order = merge_keys(now, before, held)
    assert sorted(order) == sorted({*now} | ({*before} & held))
    assert [key for key in order if key in now] == now
    for key in {*order} - {*now}:
        above = [other for other in before[: before.index(key)] if other in now]
        if above:
            assert order.index(above[-1]) < order.index(key)


steps = st.one_of(
    st.tuples(
        st.just("refresh"),
        st.lists(
            st.tuples(st.sampled_from("abcdefgh"), st.sampled_from(["ready", "claimed"])),
            max_size=8,
            unique_by=lambda one: one[0],
        ),
    ),
    st.tuples(st.just("press"), st.sampled_from(["j", "k", "G", "g", "x", "X", "pagedown"])),
    st.tuples(st.just("resize"), st.sampled_from([(80, 24), (40, 8), (160, 48)])),
)


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, min_size=4, max_size=20))
def test_no_refresh_moves_the_cursor_or_a_mark_to_another_message(
    done: list[tuple[str, Any]],
) -> None:
    async def run_steps() -> None:
        async with one_tab(MessagesTab) as shown:
            pane = shown.tab
            give(pane, *ABC)
            for step, value in done:
                table = pane.table
                before = (table.cursor_key, set(table.marks), {m.id for m in table.selected_rows})
                if step == "press":
                    await shown.press(value)
                    continue
                if step == "refresh":
                    give(pane, *(message(name, state) for name, state in value), again=True)
                else:
                    await shown.resize(*value)
                await shown.pilot.pause()
                meant = {m.id for m in table.selected_rows}
                after = (table.cursor_key, set(table.marks), meant)
                if before[0] is not None:
                    assert after == before

    asyncio.run(run_steps())


@given(st.lists(st.text(), max_size=4))
def test_a_filter_line_is_split_into_the_words_that_made_it(words: list[str]) -> None:
    assert words_of(line_of(words)) == words


def test_a_filter_line_is_split_as_a_shell_would() -> None:
    words = {
        'state=error  error~"no route"': ["state=error", "error~no route"],
        "'error~no route' id=17": ["error~no route", "id=17"],
        "error~'no route'": ["error~no route"],
        'payload."a b".c="1 2"': ['payload."a b".c=1 2'],
        "payload.items[0].sku=A1": ["payload.items[0].sku=A1"],
        "error~it's": ["error~it's"],
    }
    assert {line: words_of(line) for line in words} == words
    with pytest.raises(UsageError, match="cannot be read"):
        words_of('error~"no route')


async def test_messages_are_listed_and_filtered_on_a_server(database: Database) -> None:
    make(database, "mail", "claim", {})
    conn = OpenConnection("prod", database)
    async with one_tab(MessagesTab, connections=[conn]) as shown:
        pane = shown.tab
        pane.poll()
        await shown.until(lambda: pane.page is not None)
        states = [cell["state"].text for cell in map(pane.table.cells, pane.table.keys)]
        assert states == ["ready"] * 7 + ["claimed"] * 3 + ["error"] * 4
        await shown.press("slash", *"error~GOOD", "enter")
        await shown.until(lambda: len(pane.table.keys) == 4)
        await shown.press("slash", "ctrl+u", *"state=scheduled", "enter")
        await shown.until(lambda: "no messages in a state" in shown.text_of(".pane-head"))
        assert len(pane.table.keys) == 4
        await shown.press("escape", "escape")
        await shown.until(lambda: len(pane.table.keys) == 14)


async def test_a_filter_waits_for_the_first_figures_of_its_queue() -> None:
    async with opened() as console:
        console.app.open_messages(("prod-orders", "public", "mail"), ["state=error"])
        await console.pilot.pause()
        assert not console.app.screen.query(MessagesTab)
        await console.give(queue("mail", "claim", errors=2))
        await console.until(lambda: bool(console.app.screen.query(MessagesTab)))
        assert console.app.screen.query_one(MessagesTab).request.filters == Filters(state="error")
        console.app.open_messages(("prod-orders", "public", "mail"), ["state=claimed"])
        tab = console.app.screen.query_one(MessagesTab)
        await console.until(lambda: tab.first_filters == Filters(state="claimed"))


async def test_the_order_is_reversed_by_the_key_of_all_lists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with one_tab(MessagesTab) as shown:
        give(shown.tab, *ABC)
        requests = requests_of(shown.tab, monkeypatch)
        await shown.press("s", "S")
        assert [request.reverse for request in requests] == [True, True]
