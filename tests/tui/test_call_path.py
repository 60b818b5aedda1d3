"""A queue's name from the screens to the SQL: `tests/tools/call_path.py` counts the path's files.

The statements of the dialog, of the plan and of the run are each sent in their own thread; the
dialog and the form are not on its stack. The doctor runs at the same time.
"""

import threading

from sqlalchemy import Engine, event

from console.engines import Database
from console.tui.screens.form import Stage
from tests.tools.call_path import MOST, files_on_call_path
from tests.tui.acting import FAILED, acting, make, states


async def test_the_name_of_a_queue_passes_few_files_to_its_sql(database: Database) -> None:
    catalogs = 0

    def sent(_: object, __: object, statement: str, *___: object) -> None:
        nonlocal catalogs
        is_job = threading.current_thread().name == "job"
        catalogs += is_job and "catalog.queues " in statement

    queue = make(database, "mail", "status", {})
    async with acting(database, "mail") as console:
        event.listen(Engine, "before_cursor_execute", sent)
        try:
            with files_on_call_path("mail", "job", "requeue mail") as files:
                console.app.open_actions(console.key("mail"), ("limit=1",), "error")
                await console.until(lambda: bool(console.dialog.choices))
                await console.press("enter")
                await console.until(lambda: console.at(Stage.FORM))
                assert catalogs == 1, "the dialog has looked the queue up"
                await console.plan()
                await console.confirm("mail")
        finally:
            event.remove(Engine, "before_cursor_execute", sent)
    assert states(database, queue)["error"] == FAILED - 1
    assert len(files) <= MOST, "\n".join(sorted(files))
