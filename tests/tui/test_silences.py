"""What is silenced or acknowledged, on the screens: in grey, with who, until when and why."""

from dataclasses import replace
from datetime import UTC, datetime

from console.decisions import Decision
from console.monitor.limits import DEFAULTS, Limits, Severity
from console.monitor.sampler import Reading
from console.tui.dialogs.finding import FindingDialog
from console.tui.store import Store, Traits
from tests.tui.feeds import queue
from tests.tui.opened import Opened, opened
from tests.tui.test_findings import BAD, GRAVE, diagnosis, finding, rows, told

SINCE = datetime(2026, 3, 29, 1, 0, tzinfo=UTC)


def decided(code: str, kind: str = "silence", severity: str = "") -> Decision:
    until = SINCE.replace(hour=5) if kind == "silence" else None
    why = ("ann@etl01", "ann", "consumers move", SINCE, until)
    return Decision(kind, code, "public", "mail", *why, push=False, severity=severity)


def seen(*silences: Decision, **figures: int) -> Store:
    deep = replace(DEFAULTS, depth=Limits(10, 100))
    store = Store({"a": 1.0}, now=0, traits={"a": Traits(thresholds=lambda _: deep)})
    store.take("a", Reading("a", (queue("mail", "fifo", silences=silences, **figures),)), at=0)
    return store


def test_it_is_shown_behind_all_others_and_the_queue_is_well() -> None:
    store = seen(decided("limit_reached"), ready=50)
    (view,) = store.findings(1)
    assert view.words == "silenced by ann@etl01: 50 ready (limit 10)"
    assert view.mends.endswith("until 2026-03-29 05:00:00 UTC: consumers move")
    (mail,) = store.queues(1)
    assert mail.level is Severity.OK
    assert store.unexplained("a", 100) == []
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
