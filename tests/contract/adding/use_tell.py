"""The verb tell, on the command line and in the screens.

python -m tests.contract.adding.use_tell URL
"""

import asyncio
import sys

from textual.widgets import Input

from console.tui.screens.form import Stage
from tests.cli.calls import Console
from tests.tui.acting import acting, database_at, make


def type_it(here: Console) -> None:
    assert "Leave a word about it." in here.done("--help").text
    assert "dbq-console tell orders moved" in here.done("tell", "--help").text
    (design,) = here.done("designs", "fifo", "--json").json["designs"]
    assert "tell" in design["verbs"]["postgresql"]
    planned = here("tell", "mail", "moved", "--json")
    assert (planned.status, planned.json["plan"]) == (4, {"word": "moved"})
    done = here.done("tell", "mail", "moved", "--json", "--yes").json
    assert (done["done"], done["result"]) == (1, {"word": "moved"})
    assert here("tell", "mail").status == 2


async def press_it(url: str) -> None:
    with database_at(url) as database:
        make(database, "mail", "fifo", {})
        async with acting(database, "mail", size=(120, 40)) as here:
            await here.press("a")
            await here.until(lambda: "leave a word about it" in here.picture)
            await here.press("escape", "colon", "t", "e", "l", "tab")
            assert here.app.screen.query_one(Input).value == "tell "
            await here.press(*"mail moved", "enter")
            await here.until(lambda: here.at(Stage.FORM))
            assert "moved" in here.picture
            await here.press("enter")
            await here.until(lambda: here.at(Stage.PLAN))
            await here.press("ctrl+o")
            await here.until(lambda: "dbq-console tell" in here.picture)
            await here.press("escape")
            await here.confirm("y")
            assert "told moved" in here.picture
            await here.leave()


if __name__ == "__main__":
    asyncio.run(press_it(sys.argv[1]))
    type_it(Console(sys.argv[1]))
