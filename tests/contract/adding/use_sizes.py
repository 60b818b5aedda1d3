"""The list sizes, on the command line and in the screens.

python -m tests.contract.adding.use_sizes URL
"""

import asyncio
import csv
import sys
from pathlib import Path

from textual.notifications import Notification
from textual.widgets import Input

from console.tui.tabs.tab import ListScreen, ListTab
from tests.cli.calls import Console
from tests.tui.acting import Acting, acting, database_at, make


def type_it(here: Console) -> None:
    assert "sizes          List the tables of a database with their sizes." in here.done(
        "--help"
    ).text.replace("  sizes", "sizes")
    text = here.done("sizes", "--help").text
    assert "dbq-console sizes orders" in text
    assert "--least N" in text
    lines = here.done("sizes").text.splitlines()
    assert lines[0].endswith(" rows")
    assert lines[1].split() == ["schema", "table", "size"]
    assert any(line.split()[:2] == ["public", "mail"] for line in lines[2:])
    (table,) = here.done("sizes", "mail", "--json").json["sizes"]
    assert (table["schema"], table["name"], table["bytes"] > 0) == ("public", "mail", True)
    assert here.done("sizes", "nothing").text == "No tables.\n"
    assert here.done("sizes", "--json", "--least", str(10**9)).json["sizes"] == []
    assert here("sizes", "--least", "x").status == 2


def shown(here: Acting) -> list[str]:
    """The names of the tables, from the top."""
    table = here.app.screen.query_one(ListTab).table
    return [table.cells(key)["name"].text for key in table.keys]


def messages(here: Acting) -> list[Notification]:
    return [*here.app._notifications]


async def press_it(url: str) -> None:
    with database_at(url) as database:
        for name in ("mail", "orders"):
            make(database, name, "fifo", {})
        async with acting(database, "mail", size=(120, 40)) as here:
            await here.press("colon", *"siz", "tab")
            assert here.app.screen.query_one(Input).value.strip() == "sizes"
            await here.press("enter")
            await here.until(lambda: here.is_at(ListScreen) and " rows" in here.picture)
            assert "Sizes of here" in here.picture
            assert not here.app.screen.show_vertical_scrollbar
            assert shown(here) == sorted(shown(here))
            assert {"mail", "orders"} < set(shown(here))
            await here.press("s", "s", "S")
            assert shown(here) == sorted(shown(here), reverse=True)
            assert "table ▼" in here.picture
            await here.press("slash", *"mail", "enter")
            assert set(shown(here)) >= {"mail"}
            assert "orders" not in shown(here)
            assert "filter mail: " in here.picture
            await here.press("g", "y")
            assert "table mail" in here.app.clipboard
            await here.press("escape", "g", "x", "x", "y", "E")
            assert len(here.app.clipboard.splitlines()) == 2
            await here.until(
                lambda: any("2 rows in" in notification.message for notification in messages(here))
            )
            (path,) = Path.cwd().glob("sizes-*.csv")
            with path.open() as file:
                rows = [*csv.DictReader(file)]
            assert [row["table"] for row in rows] == shown(here)[:2]
            await here.press("o")
            await here.until(lambda: "dbq-console" in here.picture)
            assert "sizes" in here.picture
            await here.press("escape", "question_mark")
            await here.until(lambda: "sort by the next column" in here.picture)
            await here.press("escape", "escape", "escape")
            await here.until(lambda: not here.is_at(ListScreen))


if __name__ == "__main__":
    asyncio.run(press_it(sys.argv[1]))
    type_it(Console(sys.argv[1]))
