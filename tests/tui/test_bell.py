"""The terminal's bell: at a critical finding that was not there at the first look."""

from unittest import mock

import pytest

from console.catalog import installed_queue
from console.decisions import Decision
from console.designs import design
from console.doctor.finding import Code, Diagnosis, Finding
from console.doctor.watcher import Examined
from console.errors import ConsoleError
from console.monitor.limits import Severity
from console.tui.context import DiagnosesCame
from tests.tui.alone import alone, conn, until
from tests.tui.feeds import AT_TWO, queue
from tests.tui.opened import Opened

GRAVE = Finding(Code("orphan", Severity.CRITICAL, "messages that no pop asks for"), "21 orphans")
WORSE = Finding(Code("behind_pops", Severity.CRITICAL, "pops are ahead"), "so it is")
FIFO = design("fifo")
QUEUE = installed_queue("public", "mail", FIFO, FIFO.complete_options({}))
SILENCE = Decision("silence", "orphan", "", "", "ann", "ann", "known", AT_TWO, None, False, "")


def shown(console: Opened) -> set[str]:
    rows = console.app.context.store.rows("prod")
    return {one.code for row in rows for one in row.findings if one.silenced is None}


async def examined(
    console: Opened, *findings: Finding, silenced: frozenset[str] = frozenset()
) -> None:
    came = Examined((Diagnosis(QUEUE, findings),))
    console.app.post_message(DiagnosesCame("prod", came, console.clock.now, AT_TWO))
    names = {one.code.name for one in findings} - silenced
    await until(console, lambda: shown(console) == names)
    await console.pilot.pause()


@pytest.mark.parametrize("wanted", [True, False])
async def test_it_rings_once_for_what_is_new_and_not_for_what_was_there(wanted: bool) -> None:
    async with alone(connections=[conn(bell=wanted)]) as console:
        with (
            mock.patch.object(console.app, "bell") as bell,
            mock.patch(
                "console.doctor.watcher.Doctor.queues", side_effect=ConsoleError("not here")
            ),
        ):
            console.feeds[0].give(queue("mail"))
            await console.pilot.pause()
            await examined(console, GRAVE)
            assert bell.call_count == 0  # it stands on the screen
            await examined(console, GRAVE, WORSE)
            assert bell.call_count == wanted
            await examined(console, GRAVE, WORSE)
            await examined(console, WORSE)
            assert bell.call_count == wanted
            console.feeds[0].give(queue("mail", silences=(SILENCE,)))
            await examined(console, WORSE, GRAVE, silenced=frozenset({"orphan"}))
            assert bell.call_count == wanted
            console.feeds[0].give(queue("mail"))
            await examined(console, WORSE, GRAVE)
            assert bell.call_count == 2 * wanted
