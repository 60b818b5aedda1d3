"""The finding errors_no_good: the doctor shows it, its repair is run by `--fix` and by keys.

python -m tests.contract.adding.use_no_good URL
"""

import asyncio
import sys

from console.monitor.sampler import Sampler
from console.rights import Rights
from console.tui import ConsoleApp
from console.tui.context import Setup
from console.tui.dialogs.finding import FindingDialog
from console.tui.open_connection import OpenConnection
from console.tui.screens.form import Stage
from console.tui.screens.planned import ActionScreen
from console.tui.tabs.findings import FindingsTable
from tests.cli.calls import Console
from tests.tui.acting import FAILED, database_at, make, states
from tests.tui.opened import Opened, threads_ended

CODE = "errors_no_good"


def type_it(here: Console, name: str) -> None:
    assert CODE in here.done("doctor", "--help").text
    (code,) = (
        one for one in here.done("doctor", "--codes", "--json").json["codes"] if one["code"] == CODE
    )
    assert code["severity"] == "warning"
    answer = here("doctor", name, "--idle-for", "0s")
    assert answer.status == 1
    assert f"warning: {FAILED} errors are no good [{CODE}]" in answer.text
    assert f"dbq-console requeue {name} --filter state=error" in answer.text
    planned = here("doctor", name, "--fix", "--dry-run", "--idle-for", "0s", "--json").json
    assert [one["summary"] for one in planned["plan"]] == ["requeue them"]
    fixed = here("doctor", name, "--fix", "--yes", name, "--idle-for", "0s", "--json").json
    assert fixed["done"] == 1
    assert CODE not in str(fixed["queues"])
    assert here.status(name)["errors"] == 0


async def press_it(url: str) -> None:
    with database_at(url) as database:
        mail = make(database, "mail", "claim", {})
        where = OpenConnection("here", database, Rights.OPERATOR)
        feed = Sampler(database, interval_seconds=0.1, name="here")
        app = ConsoleApp([feed], Setup(connections=[where]))
        async with app.run_test(size=(80, 24)) as pilot:
            console = Opened(pilot)
            table = console.overview.query_one(FindingsTable)
            await console.until(lambda: any(row.code == CODE for row in table.rows.values()))
            await console.press("tab")
            while table.row is not None and table.row.code != CODE:
                await console.press("j")
            await console.press("enter")
            assert console.is_at(FindingDialog)
            assert "requeue them" in console.picture
            await console.press("r")
            screen = console.on_top(ActionScreen)
            await console.until(lambda: screen.stage is Stage.PLAN)
            assert f"{FAILED} messages" in console.picture
            while screen.stage is not Stage.RESULT:
                await console.press("y", "enter")
            await console.press("escape")
            await console.until(lambda: "no longer finds it" in console.picture)
        threads_ended()
        assert "error" not in states(database, mail)


if __name__ == "__main__":
    asyncio.run(press_it(sys.argv[1]))
    with database_at(sys.argv[1]) as other:
        make(other, "orders", "claim", {})
    type_it(Console(sys.argv[1]), "orders")
