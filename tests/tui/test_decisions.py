"""Operators' decisions about a queue and its findings, on every screen; the terminal's bell."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from unittest import mock

import pytest

from console.catalog import installed_queue
from console.catalog.decisions import Decision
from console.designs import design
from console.doctor.finding import Code, Diagnosis, Finding
from console.doctor.watcher import DoctorUpdate
from console.errors import ConsoleError
from console.monitor.limits import DEFAULTS, Limits, Severity
from console.monitor.sampler import Reading
from console.tui.context import NewDiagnoses
from console.tui.dialogs.finding import FindingDialog
from console.tui.store import Store, Traits
from tests.tui.feeds import AT_TWO, PAUSE, PROTECTION, queue
from tests.tui.opened import Opened, alone, conn, opened
from tests.tui.test_findings import CRITICAL, WARNING, diagnosis, finding, rows, show_diagnoses
from tests.tui.test_queue import open_queue, settled

AT = AT_TWO + timedelta(minutes=12)
PAUSE_TEXT = "PAUSED by ann@etl01 since 2026-03-29 02:00:00 UTC, until 2026-03-29 04:00:00 UTC: bad"


async def test_each_screen_says_who_paused_a_queue_and_for_how_long() -> None:
    """In its row, below the table, and on its own screen; shorter in a narrow terminal."""
    async with opened(size=(160, 48)) as console:
        mail = queue("mail", "claim", decisions=(PAUSE, PROTECTION), moment=AT)
        await console.give(mail, queue("bills", decisions=(PROTECTION,), moment=AT))
        console.shows("mail » PAUSED 12 min, ann", "bills » PROTECTED 12 min, bob")
        await console.press("slash", *"mail", "enter")
        assert PAUSE_TEXT in console.picture
        await console.resize(80, 24)
        console.shows("mail » PAUSED", "PAUSED 12 min, ann  PROTECTED 12 min, bob")
        await open_queue(console, "mail", "", replace(mail, decisions=(PAUSE,)))
        assert "public.mail  claim  PAUSED 12 min, ann" in console.picture
        await console.resize(160, 48)
        await settled(console.pilot)
        assert PAUSE_TEXT in console.picture
        await console.give(queue("mail", "claim"))
        await settled(console.pilot)
        assert "PAUSED" not in console.picture


def test_short_marks_count_whole_seconds() -> None:
    assert PAUSE.mark(AT_TWO + timedelta(seconds=43.4)) == "PAUSED 43 s, ann"
    assert PAUSE.mark(AT_TWO - timedelta(seconds=1)) == "PAUSED 0 s, ann"


SINCE = datetime(2026, 3, 29, 1, 0, tzinfo=UTC)


def decided(code: str, kind: str = "silence", severity: str = "") -> Decision:
    until = SINCE.replace(hour=5) if kind == "silence" else None
    why = ("ann@etl01", "ann", "consumers move", SINCE, until)
    return Decision(kind, code, "public", "mail", *why, push=False, severity=severity)


def store_with(*silences: Decision, **figures: int) -> Store:
    deep = DEFAULTS.with_limits(depth=Limits(10, 100))
    store = Store({"a": 1.0}, now=0, traits={"a": Traits(thresholds=lambda _: deep)})
    store.add_reading(
        "a", Reading("a", (queue("mail", "fifo", silences=silences, **figures),)), at=0
    )
    return store


def test_a_silenced_finding_is_shown_last_and_its_queue_is_ok() -> None:
    store = store_with(decided("limit_reached"), ready=50)
    (view,) = store.findings(1)
    assert view.text == "silenced by ann@etl01: 50 ready (limit 10)"
    assert view.repair_text.endswith("until 2026-03-29 05:00:00 UTC: consumers move")
    (mail,) = store.queues(1)
    assert mail.level is Severity.OK
    assert store.needs_diagnosis("a", 100) == []
    severe = store_with(decided("limit_reached"), ready=50, gap=100, capacity=100).findings(1)
    assert [view.level for view in severe] == [Severity.CRITICAL, Severity.WARNING]
    assert [view.style for view in severe] == ["critical", "quiet"]
    full = store_with(decided("full"), gap=100, capacity=100)
    assert full.queues(1)[0].level is Severity.OK


def test_a_decision_covers_only_its_figure_and_no_higher_severity() -> None:
    of_age = store_with(decided("limit_reached:age"), ready=50).queues(1)[0]
    assert of_age.level is Severity.WARNING
    acknowledged = decided("limit_reached:depth", "acknowledge", "warning")
    assert store_with(acknowledged, ready=50).queues(1)[0].level is Severity.OK
    assert store_with(acknowledged, ready=150).queues(1)[0].level is Severity.CRITICAL


async def open_first(console: Opened) -> None:
    """The dialog of the first finding."""
    console.app.open_finding(console.app.context.store.findings(console.clock.now)[0])
    await console.pilot.pause()


async def show_decided(console: Opened) -> None:
    known = (decided(CRITICAL.name), decided(WARNING.name, "acknowledge", "warning"))
    await console.give(queue("mail", silences=known))
    await show_diagnoses(
        console, diagnosis("mail", finding(CRITICAL, "21 orphans"), finding(WARNING, "4 claims"))
    )


async def test_keys_decide_about_a_finding_which_then_shows_who_until_when_and_why() -> None:
    """The keys open the form, with the code; a silenced finding can be unsilenced."""
    async with opened() as console:
        opened_forms: list[object] = []
        console.app.open_action = lambda *of, **given: opened_forms.append((of[1], given))  # type: ignore[method-assign]
        await console.give(queue("mail"))
        await show_diagnoses(console, diagnosis("mail", finding(WARNING, "4 claims")))
        for key, verb in (("s", "silence"), ("c", "ack")):
            await open_first(console)
            await console.press(key)
            assert opened_forms.pop() == (verb, {"code": WARNING.name})
            assert not console.is_at(FindingDialog)
        await console.resize(160, 48)
        await show_decided(console)
        first, second = rows(console)[:2]
        assert "silenced by ann@etl01: 21 orphans" in first
        assert "until 2026-03-29 05:00:00 UTC: consumers move" in first
        assert "acknowledged by ann@etl01: 4 claims" in second
        await open_first(console)
        console.shows("silenced by ann@etl01 since 2026-03-29 01:00:00 UTC, until", "x unsilence")
        await console.press("x")
        assert opened_forms.pop() == ("unsilence", {"code": CRITICAL.name})


ORPHAN = Finding(Code("orphan", Severity.CRITICAL, "messages that no pop asks for"), "21 orphans")
WORSE = Finding(Code("behind_pops", Severity.CRITICAL, "pops are ahead"), "so it is")
FIFO = design("fifo")
QUEUE = installed_queue("public", "mail", FIFO, FIFO.complete_options({}))
SILENCE = Decision("silence", "orphan", "", "", "ann", "ann", "known", AT_TWO, None, False, "")


def unsilenced_codes(console: Opened) -> set[str]:
    rows = console.app.context.store.rows("prod")
    return {one.code for row in rows for one in row.findings if one.silenced is None}


async def examined(
    console: Opened, *findings: Finding, silenced: frozenset[str] = frozenset()
) -> None:
    update = DoctorUpdate((Diagnosis(QUEUE, findings),))
    console.app.post_message(NewDiagnoses("prod", update, console.clock.now, AT_TWO))
    names = {one.code.name for one in findings} - silenced
    await console.until(lambda: unsilenced_codes(console) == names)
    await console.pilot.pause()


@pytest.mark.parametrize("wanted", [True, False])
async def test_the_bell_rings_once_for_each_new_finding_and_not_for_the_first_ones(
    wanted: bool,
) -> None:
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
            assert bell.call_count == 0  # it was there from the start
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
