"""What operators have decided of a queue and of findings, on every screen; the terminal's bell."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import pytest

from console.catalog import installed_queue
from console.decisions import Decision
from console.designs import design
from console.doctor.finding import Code, Diagnosis, Finding
from console.doctor.watcher import DoctorUpdate
from console.errors import ConsoleError
from console.monitor.limits import DEFAULTS, Limits, Severity
from console.monitor.sampler import Reading
from console.tui.context import NewDiagnoses
from console.tui.dialogs.finding import FindingDialog
from console.tui.open_connection import Recordings
from console.tui.store import Store, Traits
from console.tui.tabs.history import HistoryTab
from console.tui.widgets.charts import Chart
from tests.tui.alone import alone, conn, until
from tests.tui.feeds import AT_TWO, PAUSE, PROTECTION, queue
from tests.tui.one_tab import one_tab
from tests.tui.opened import Opened, opened
from tests.tui.recorded import BEGIN, Taken
from tests.tui.test_findings import BAD, GRAVE, diagnosis, finding, rows, told
from tests.tui.test_queue import open_queue, settled

AT = AT_TWO + timedelta(minutes=12)
WHOLE = "PAUSED by ann@etl01 since 2026-03-29 02:00:00 UTC, until 2026-03-29 04:00:00 UTC: bad"


async def test_the_overview_says_who_paused_a_queue_and_for_how_long() -> None:
    """In the row and below the table; on a narrow screen in few words."""
    async with opened(size=(160, 48)) as console:
        mail = queue("mail", "claim", decisions=(PAUSE, PROTECTION), moment=AT)
        await console.give(mail, queue("bills", decisions=(PROTECTION,), moment=AT))
        assert "mail » PAUSED 12 min, ann" in console.picture
        assert "bills » PROTECTED 12 min, bob" in console.picture
        await console.pilot.press("slash", *"mail", "enter")
        assert WHOLE in console.picture
        await console.pilot.resize_terminal(80, 24)
        await console.pilot.pause()
        assert "mail » PAUSED" in console.picture
        assert "PAUSED 12 min, ann  PROTECTED 12 min, bob" in console.picture


async def test_the_screen_of_a_queue_says_it_whatever_its_tab() -> None:
    async with opened(size=(160, 48)) as console:
        mail = queue("mail", "claim", decisions=(PAUSE,), moment=AT)
        await open_queue(console, "mail", "", mail)
        await settled(console.pilot)
        assert WHOLE in console.picture
        await console.pilot.resize_terminal(80, 24)
        await settled(console.pilot)
        assert "public.mail  claim  PAUSED 12 min, ann" in console.picture
        await console.give(queue("mail", "claim"))
        await settled(console.pilot)
        assert "PAUSED" not in console.picture


def test_short_marks_count_whole_seconds() -> None:
    assert PAUSE.mark(AT_TWO + timedelta(seconds=43.4)) == "PAUSED 43 s, ann"
    assert PAUSE.mark(AT_TWO - timedelta(seconds=1)) == "PAUSED 0 s, ann"


async def test_a_note_is_a_mark_on_every_chart_of_the_past(tmp_path: Path) -> None:
    """Of the whole database: on the charts of each queue, wherever the cursor is."""
    taken = Taken(tmp_path)
    for second in range(2400, 4440, 60):
        taken.look(second, queue("mail", ready=1, age_seconds=2.0), next_seconds=60.0)
    taken.noted(3000, "deployed 1.4")
    taken.close()
    async with one_tab(HistoryTab, size=(160, 48)) as shown:
        shown.app.context.recordings = Recordings(tmp_path)
        shown.tab.poll()
        await shown.until(lambda: shown.tab.result)
        (mark,) = shown.tab.result.marks if shown.tab.result else ()
        assert (mark.kind, mark.name, mark.words) == ("note", "ann", "deployed 1.4")
        drawings = [one.drawing for one in shown.tab.query(Chart) if one.display]
        at = (BEGIN + timedelta(seconds=3000)).timestamp()
        assert drawings
        assert all(one is not None and one.notes == (at,) for one in drawings)


SINCE = datetime(2026, 3, 29, 1, 0, tzinfo=UTC)


def decided(code: str, kind: str = "silence", severity: str = "") -> Decision:
    until = SINCE.replace(hour=5) if kind == "silence" else None
    why = ("ann@etl01", "ann", "consumers move", SINCE, until)
    return Decision(kind, code, "public", "mail", *why, push=False, severity=severity)


def seen(*silences: Decision, **figures: int) -> Store:
    deep = replace(DEFAULTS, depth=Limits(10, 100))
    store = Store({"a": 1.0}, now=0, traits={"a": Traits(thresholds=lambda _: deep)})
    store.add_reading(
        "a", Reading("a", (queue("mail", "fifo", silences=silences, **figures),)), at=0
    )
    return store


def test_it_is_shown_behind_all_others_and_the_queue_is_well() -> None:
    store = seen(decided("limit_reached"), ready=50)
    (view,) = store.findings(1)
    assert view.text == "silenced by ann@etl01: 50 ready (limit 10)"
    assert view.repair_text.endswith("until 2026-03-29 05:00:00 UTC: consumers move")
    (mail,) = store.queues(1)
    assert mail.level is Severity.OK
    assert store.needs_diagnosis("a", 100) == []
    grave = seen(decided("limit_reached"), ready=50, gap=100, capacity=100).findings(1)
    assert [view.level for view in grave] == [Severity.CRITICAL, Severity.WARNING]
    full = seen(decided("full"), gap=100, capacity=100)
    assert full.queues(1)[0].level is Severity.OK


def test_only_that_figure_and_only_while_it_is_no_graver() -> None:
    of_age = seen(decided("limit_reached:age"), ready=50).queues(1)[0]
    assert of_age.level is Severity.WARNING
    acknowledged = decided("limit_reached:depth", "acknowledge", "warning")
    assert seen(acknowledged, ready=50).queues(1)[0].level is Severity.OK
    assert seen(acknowledged, ready=150).queues(1)[0].level is Severity.CRITICAL


async def in_sight(console: Opened) -> None:
    known = (decided(GRAVE.name), decided(BAD.name, "acknowledge", "warning"))
    await console.give(queue("mail", silences=known))
    await told(console, diagnosis("mail", finding(GRAVE, "21 orphans"), finding(BAD, "4 claims")))


async def test_greyed_with_who_until_when_and_why() -> None:
    async with opened(size=(160, 48)) as console:
        await in_sight(console)
        first, second = rows(console)[:2]
        assert "silenced by ann@etl01: 21 orphans" in first
        assert "until 2026-03-29 05:00:00 UTC: consumers move" in first
        assert "acknowledged by ann@etl01: 4 claims" in second
        await opened_dialog(console)
        assert "silenced by ann@etl01 since 2026-03-29 01:00:00 UTC, until" in console.picture


async def opened_dialog(console: Opened) -> None:
    """Of the first finding."""
    console.app.open_finding(console.app.context.store.findings(console.clock.now)[0])
    await console.pilot.pause()


async def test_from_the_findings_dialog() -> None:
    """Its keys open the form, with the code; what is silenced can be unsilenced."""
    async with opened(size=(80, 24)) as console:
        opening: list[object] = []
        console.app.open_action = lambda *of, **given: opening.append((of[1], given))  # type: ignore[method-assign]
        await console.give(queue("mail"))
        await told(console, diagnosis("mail", finding(BAD, "4 claims")))
        for key, verb in (("s", "silence"), ("c", "ack")):
            await opened_dialog(console)
            await console.pilot.press(key)
            await console.pilot.pause()
            assert opening.pop() == (verb, {"code": BAD.name})
            assert not isinstance(console.app.screen, FindingDialog)
        await in_sight(console)
        await opened_dialog(console)
        assert "x unsilence" in console.picture
        await console.pilot.press("x")
        await console.pilot.pause()
        assert opening.pop() == ("unsilence", {"code": GRAVE.name})


ORPHAN = Finding(Code("orphan", Severity.CRITICAL, "messages that no pop asks for"), "21 orphans")
WORSE = Finding(Code("behind_pops", Severity.CRITICAL, "pops are ahead"), "so it is")
FIFO = design("fifo")
QUEUE = installed_queue("public", "mail", FIFO, FIFO.complete_options({}))
SILENCE = Decision("silence", "orphan", "", "", "ann", "ann", "known", AT_TWO, None, False, "")


def codes_in_sight(console: Opened) -> set[str]:
    rows = console.app.context.store.rows("prod")
    return {one.code for row in rows for one in row.findings if one.silenced is None}


async def examined(
    console: Opened, *findings: Finding, silenced: frozenset[str] = frozenset()
) -> None:
    came = DoctorUpdate((Diagnosis(QUEUE, findings),))
    console.app.post_message(NewDiagnoses("prod", came, console.clock.now, AT_TWO))
    names = {one.code.name for one in findings} - silenced
    await until(console, lambda: codes_in_sight(console) == names)
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
            await examined(console, ORPHAN)
            assert bell.call_count == 0  # it stands on the screen
            await examined(console, ORPHAN, WORSE)
            assert bell.call_count == wanted
            await examined(console, ORPHAN, WORSE)
            await examined(console, WORSE)
            assert bell.call_count == wanted
            console.feeds[0].give(queue("mail", silences=(SILENCE,)))
            await examined(console, WORSE, ORPHAN, silenced=frozenset({"orphan"}))
            assert bell.call_count == wanted
            console.feeds[0].give(queue("mail"))
            await examined(console, WORSE, ORPHAN)
            assert bell.call_count == 2 * wanted
