"""What all lists of the screens can do: sort, filter, mark, copy, export."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from textual.widgets import Input

from console.monitor.errors import ErrorGroup, ErrorGroups
from console.monitor.owners import Claims, Evidence
from console.tui.tabs.errors import ErrorsTab
from console.tui.tabs.messages import MessagesTab
from console.tui.tabs.stuck import StuckTab
from console.tui.tabs.waits import WaitsTab
from console.tui.widgets.keyed_table import LEFT, KeyedTable
from console.views.stuck import QueueHolders
from tests.tui.one_tab import KEY, Shown, one_tab
from tests.tui.opened import conn
from tests.tui.test_audit import AT
from tests.tui.test_messages import ABC, QUEUE, give
from tests.tui.test_tabs import ALIVE, BOUND, GONE, YOUNG
from tests.tui.test_waits import FULL

pytestmark = pytest.mark.slow

FEW = ErrorGroup("no route", 9, AT, AT, 1, 3, "17", "no route to h1", "a")
MANY = ErrorGroup("=cmd()", 1_200, AT, AT, None, None, "18", "=cmd()|'/c calc'", "b")
SOME = ErrorGroup("time out", 80, AT, AT, 2, 2, "19", "time out after 3 s", "c")


def groups(*shown: ErrorGroup) -> ErrorGroups:
    return ErrorGroups(QUEUE, shown, sum(group.count for group in shown), 0, complete=True)


def order(shown: Shown[ErrorsTab]) -> list[str]:
    return [*shown.tab.table.keys]


def exported(folder: Path) -> list[dict[str, str]]:
    """The rows of the only file, which is its user's own."""
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    with file.open() as lines:
        return [*csv.DictReader(lines)]


async def test_a_list_is_sorted_by_values_and_the_cursor_stays_on_its_row() -> None:
    async with one_tab(ErrorsTab, connections=[conn()], size=(120, 30)) as shown:
        await shown.show(groups(MANY, SOME, FEW))
        await shown.press("j")
        await shown.press("s")
        assert (order(shown), shown.tab.table.row) == (["a", "c", "b"], SOME)
        assert [
            column_layout.name for column_layout in shown.tab.table.laid_out if column_layout.sorted
        ] == ["count"]
        await shown.press("S")
        assert (order(shown), shown.tab.table.row) == (["b", "c", "a"], SOME)
        await shown.show(groups(MANY, replace(SOME, count=5_000), FEW))
        assert (order(shown), shown.tab.table.row) == (["c", "b", "a"], replace(SOME, count=5_000))
        for column in ("tries", "tries"):
            shown.tab.table.post_message(KeyedTable.TitleClicked(column))
            await shown.pilot.pause()
        assert order(shown) == ["a", "c", "b"], "unknown attempts are last in either direction"
        while shown.tab.table.sort_column:
            await shown.press("s")
        assert order(shown) == ["b", "c", "a"], "as they were read"
        await shown.press("S")
        assert order(shown) == ["a", "c", "b"], "and that reversed"


async def test_a_list_is_filtered_by_words_in_its_cells_and_details() -> None:
    async with one_tab(ErrorsTab, connections=[conn()], size=(120, 30)) as shown:
        await shown.show(groups(MANY, SOME, FEW))
        await shown.press("slash", *"ROUTE aq")
        assert order(shown) == []
        await shown.press("backspace", "backspace", "enter")
        assert order(shown) == ["a"]
        assert "3 groups" in shown.text_of("#errors-head")
        assert "filter ROUTE: 1 row" in shown.text_of("#errors-head")
        await shown.show(groups(MANY, FEW))
        assert order(shown) == ["a"], "also what is read later"
        await shown.press("slash", *"zz", "escape")
        assert order(shown) == ["b", "a"]
        assert not shown.tab.query_one("#filter", Input).display
        await shown.press("slash", *"after 3 s", "enter")
        await shown.show(groups(MANY, SOME, FEW))
        assert order(shown) == ["c"], "the sample is in no column"
        await shown.press("escape", "escape")
        assert order(shown) == ["b", "c", "a"]


async def test_marked_rows_are_copied_and_exported_and_a_file_is_never_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with one_tab(ErrorsTab, connections=[conn()], size=(120, 30)) as shown:
        await shown.show(groups(MANY, SOME, FEW))
        notes = shown.app._notifications
        await shown.press("x", "j", "x", "y")
        assert shown.app.clipboard == "=cmd()|'/c calc'\nno route to h1"
        assert "2 marked" in shown.text_of("#errors-head")
        await shown.press("E")
        await shown.until(
            lambda: any("2 rows in" in notification.message for notification in notes)
        )
        rows = exported(tmp_path)
        assert [row["errors"] for row in rows] == ["1,200", "9"]
        assert rows[0]["group"] == "'=cmd()", "no spreadsheet runs it"
        await shown.press("q", "E")
        assert not shown.tab.table.marks, "q goes back by one step"
        await shown.until(
            lambda: any("Could not write" in notification.message for notification in notes)
        )
        assert exported(tmp_path) == rows


async def test_a_working_directory_that_is_gone_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    async with one_tab(ErrorsTab, connections=[conn()]) as shown:
        await shown.show(groups(FEW))
        await shown.press("E")
        notes = shown.app._notifications
        await shown.until(
            lambda: any("Could not write" in notification.message for notification in notes)
        )


async def test_all_rows_are_only_those_that_are_shown() -> None:
    """An action on all of them would otherwise take those that the filter hides."""
    async with one_tab(StuckTab, connections=[conn()], size=(120, 30)) as shown:
        await shown.show(QueueHolders(Claims((GONE, BOUND, ALIVE, YOUNG), more=False), None))
        await shown.press("slash", *"gone", "enter", "asterisk", "a")
        assert shown.navigator.calls == [("actions", KEY, "id=1", "id=2")]
        await shown.show(QueueHolders(Claims((replace(GONE, owner=Evidence.ALIVE),), False), None))
        assert shown.tab.table.cells("claim 1")["owner"].text == "alive", "it has changed"
        assert shown.tab.table.cells("claim 2")["owner"].text == LEFT
        await shown.press("escape", "asterisk", "a")
        assert shown.navigator.calls[1:] == [("actions", KEY, "state=claimed")]
    async with one_tab(ErrorsTab, connections=[conn()]) as errors:
        await errors.show(groups(MANY, SOME, FEW))
        await errors.press("asterisk", "y")
        assert len(errors.app.clipboard.splitlines()) == 3
        await errors.press("asterisk")
        assert errors.tab.table.marks == ()


async def test_each_list_of_a_tab_is_sorted_and_copied_by_itself() -> None:
    async with one_tab(WaitsTab, size=(160, 48)) as shown:
        await shown.show(FULL)
        table, tree = shown.tab.table, shown.tab.waiters
        await shown.press("tab", "s", "s")
        assert (table.sort_column, tree.sort_column) == ("", "for")
        await shown.press("y")
        assert shown.app.clipboard.startswith("session ")
        await shown.press("shift+tab", "y")
        assert shown.app.clipboard.startswith("Lock/relation")


async def test_a_list_of_messages_is_exported_and_says_that_there_are_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with one_tab(MessagesTab, size=(160, 30)) as shown:
        pane, notes = shown.tab, shown.app._notifications
        await shown.press("E")
        assert not notes, "nothing has been read yet"
        give(pane, *(replace(message, pushed_at=AT) for message in ABC), more=True)
        await shown.press("E")
        await shown.until(lambda: notes)
        assert "messages --export FILE writes all" in next(iter(notes)).message
        rows = exported(tmp_path)
        assert [row["id"] for row in rows] == [*"abcdef"]
        assert {row["pushed"] for row in rows} == {AT.isoformat()}, "UTC, under a title without one"
        await shown.press("x", "x")
        shown.tab.context.clock = replace(shown.tab.context.clock, utc=lambda: AT)
        await shown.press("E")
        await shown.until(
            lambda: any(notification.message.startswith("2 rows") for notification in notes)
        )
        assert not any(
            "2 rows" in notification.message and "more" in notification.message
            for notification in notes
        )
