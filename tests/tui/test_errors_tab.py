"""The tab Errors: groups, their messages, actions on them."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from console.errors import ConnectionFailedError
from console.monitor.errors import ErrorGroup, ErrorGroups, filters_of
from console.monitor.wording import group_key
from console.tui.open_connection import OpenConnection
from console.tui.tabs.errors import ErrorsTab
from console.tui.text import TextView
from tests.tui.acting import database_at, make
from tests.tui.one_tab import KEY, Shown, one_tab
from tests.tui.test_messages import QUEUE

AT = datetime(2026, 3, 29, 2, 0, 0, tzinfo=UTC)


def group(wording: str, count: int = 1, sample: str = "") -> ErrorGroup:
    later = AT + timedelta(minutes=10)
    text = sample or wording
    return ErrorGroup(wording, count, AT, later, 1, 5, "17", text, group_key(text))


NO_ROUTE = group("no route to <ip>: <text> [bold]", 12, "no route to 10.0.0.7: 'x'\x1b [bold]")
TIMED_OUT = group("timed out", 3)


def groups(*found: ErrorGroup, complete: bool = True, ungrouped: int = 0) -> ErrorGroups:
    counted = sum(one.count for one in found) + ungrouped
    return ErrorGroups(QUEUE, found, counted, ungrouped, complete)


def head(shown: Shown[ErrorsTab]) -> str:
    return shown.tab.query_one("#errors-head", TextView).plain_text


async def test_groups_with_their_counts_times_attempts_and_samples() -> None:
    async with one_tab(ErrorsTab, size=(160, 48)) as shown:
        shown.tab.show_result(groups(NO_ROUTE, TIMED_OUT, complete=False, ungrouped=4))
        await shown.pilot.pause()
        assert "19 errors in 2 groups at least, the newest; older ones were not" in head(shown)
        for words in ("≈12", "03-29 02:00:00", "03-29 02:10:00", "1 to 5", "no route to <ip>"):
            assert words in shown.picture
        assert "newest, message 17: no route to 10.0.0.7: 'x'␛ [bold]" in shown.picture
        shown.tab.show_error(ConnectionFailedError("Could not look.", why="it is away"))
        await shown.pilot.pause()
        assert "it is away" in head(shown)
        assert "19 errors" in head(shown)


async def test_the_cursor_stays_on_its_group_and_acts_on_it() -> None:
    async with one_tab(ErrorsTab) as shown:
        shown.tab.show_result(groups(NO_ROUTE, TIMED_OUT))
        await shown.press("j")
        shown.tab.show_result(groups(group("new", 99), group("newer", 98), NO_ROUTE, TIMED_OUT))
        await shown.press("a")
        shown.tab.show_result(groups(NO_ROUTE))
        assert shown.tab.table.cells(TIMED_OUT.key)["count"].text == "0"
        await shown.press("a")
        assert (
            shown.navigator.went
            == [("actions", KEY, "state=error", f"error-group={TIMED_OUT.key}")] * 2
        )


async def test_without_errors_it_says_so() -> None:
    async with one_tab(ErrorsTab) as shown:
        shown.tab.show_result(groups())
        await shown.press("enter", "a", "y")
        assert "No errors." in head(shown)
        assert shown.navigator.went == []


def test_a_group_is_a_filter_of_its_own() -> None:
    assert filters_of(NO_ROUTE).words == ("state=error", f"error-group={NO_ROUTE.key}")
    masked = replace(NO_ROUTE, wording="***", sample="***")
    assert filters_of(masked) == filters_of(NO_ROUTE)


async def test_on_a_server_a_group_opens_to_its_messages(database_url: str) -> None:
    with database_at(database_url) as database:
        make(database, "mail", "claim", {})
        async with one_tab(ErrorsTab, connections=[OpenConnection("prod", database)]) as shown:
            tab = shown.tab
            tab.poll()
            await shown.until(lambda: tab.result is not None)
            assert "4 errors in 1 group" in head(shown)
            await shown.press("enter")
            await shown.until(lambda: len(tab.pane.table.keys) == 4)
            assert tab.is_open
            await shown.press("x", "a")
            (went,) = shown.navigator.went
            assert went[:2] == ("actions", KEY)
            assert [word.partition("=")[0] for word in went[2:]] == ["id"]
            await shown.press("escape", "escape")
            assert (tab.pane.display, tab.table.has_focus) == (False, True)
