"""A verb's screen by its keys, on a real server: each stage, and what happens to data at each."""

import asyncio
import re
import threading
from collections.abc import Iterator

import pytest
from textual.widgets import Input

from console.actions import audit
from console.actions.audit import Outcome
from console.actions.execute import Control
from console.actions.work import Asked, Ended, Planned, Site, Tell, Told
from console.actions.works import planned
from console.catalog import Acting
from console.engines import Database
from console.errors import ConsoleError
from console.rights import Rights
from console.tui.dialogs.command import CommandDialog
from console.tui.dialogs.running import RunningDialog
from console.tui.screens.action import Stage
from console.tui.screens.overview import OverviewScreen
from console.tui.widgets.background_line import BackgroundLine
from console.tui.widgets.field_row import FieldRow
from tests.tui.acting import CLAIMED, FAILED, READY, acting, database_at, make, states
from tests.tui.feeds import queue as figures


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    with database_at(database_url) as found:
        yield found


def test_from_the_dialog_to_the_result_by_keys(database: Database) -> None:
    queue = make(database, "mail", "claim", {})

    async def go() -> None:
        async with acting(database, "mail") as here:
            here.feed.give(figures("mail", "claim", stuck=CLAIMED, errors=FAILED))
            await here.pilot.pause()
            here.app.open_actions(here.key("mail"), ("older=0s",))
            await here.until(lambda: bool(here.dialog.choices), "verbs")
            # The cursor begins at what the figures call for.
            await here.pilot.press("enter")
            await here.until(lambda: here.at(Stage.FORM), "a form")
            assert [row.field.name for row in here.screen.query(FieldRow)][:2] == [
                "filter",
                "unknown",
            ]
            await here.pilot.press("tab", "tab", "space", "enter")
            await here.until(lambda: here.at(Stage.PLAN), "a plan")
            assert "3 messages" in here.picture
            assert states(database, queue)["claimed"] == CLAIMED
            await here.pilot.press("y", "enter")
            await here.ended()
            assert "3 of 3 done" in here.words("#result-words")
            assert here.examined == [here.key("mail")]
            assert here.feed.looks == 1
            await here.out()
            assert isinstance(here.app.screen, OverviewScreen)

    asyncio.run(go())
    assert states(database, queue)["ready"] == READY + CLAIMED


def test_what_is_not_allowed_is_greyed_with_its_reason(database: Database) -> None:
    make(database, "mail", "claim", {})

    async def go() -> None:
        async with acting(database, "mail", rights=Rights.OPERATOR) as here:
            here.app.open_actions(here.key("mail"))
            await here.until(lambda: bool(here.dialog.choices), "verbs")
            why = {one.verb: one.why_not for one in here.dialog.choices}
            assert why["resize"] == "the design claim has no resize"
            assert why["upgrade"] == "it needs the right admin; this connection has operator"
            assert not why["release"]
            assert "it needs the right admin" in here.picture
            here.feed.fail()
            await here.pilot.press("escape")
            here.app.open_actions(here.key("mail"))
            await here.until(lambda: bool(here.dialog.choices), "verbs")
            assert all(one.why_not for one in here.dialog.choices)

    asyncio.run(go())


def test_who_is_at_the_queue_stands_on_top(database: Database) -> None:
    make(database, "mail", "claim", {})
    other = Acting(
        "public", "mail", "purge", "ann[b]@etl01", "ann", "pid=1", 64.0, planned=9_000, done=4_000
    )

    async def go() -> None:
        async with acting(database, "mail") as here:
            here.feed.give(figures("mail", "claim", acting=(other,)))
            await here.pilot.pause()
            here.app.open_actions(here.key("mail"))
            await here.until(lambda: bool(here.dialog.choices), "verbs")
            words = "! under purge by ann[b]@etl01 for 1 m 04 s, 4,000 of 9,000 done"
            assert words in here.picture
            await here.pilot.press("escape")
            await here.open("mail", "requeue")
            assert words in here.picture

    asyncio.run(go())


def test_escape_at_each_stage_does_nothing_to_data(database: Database) -> None:
    queue = make(database, "mail", "claim", {})
    before = states(database, queue)

    async def go() -> None:
        async with acting(database, "mail") as here:
            await here.open("mail", "purge", ("state=error",))
            await here.plan()
            await here.pilot.press(*"mail")
            await here.pilot.press("escape")
            await here.pilot.pause()
            assert here.screen.stage is Stage.FORM
            assert here.screen.said["filter"] == "state=error"
            await here.pilot.press("enter", "escape")
            await here.until(lambda: here.at(Stage.FORM), "the form again")
            await here.pilot.press("escape")
            await here.pilot.pause()
            assert isinstance(here.app.screen, OverviewScreen)
            assert here.app.desk.running.all == ()

    asyncio.run(go())
    assert states(database, queue) == before


def test_what_cannot_be_read_is_said_under_its_field(database: Database) -> None:
    make(database, "mail", "claim", {})

    async def go() -> None:
        async with acting(database, "mail") as here:
            screen = await here.open("mail", "purge", ("colour=red",), batch="0", rate="fast")
            await here.pilot.press("enter")
            await here.pilot.pause()
            assert screen.stage is Stage.FORM
            wrong = {
                row.field.name: row.query_one(".field-problem").said  # type: ignore[attr-defined]
                for row in screen.query(FieldRow)
                if row.query_one(".field-problem").display
            }
            assert set(wrong) == {"filter", "batch", "rate"}
            assert "There is no filter 'colour='" in wrong["filter"]
            assert "1 to 4,000" in wrong["batch"]
            # What only the queue can tell comes from the plan, and the form is there again.
            for row, text in zip(
                screen.query(FieldRow), ("state=done", "", "", "", ""), strict=False
            ):
                if row.field.name in {"filter", "batch", "rate"}:
                    row.query_one("Input").value = text  # type: ignore[attr-defined]
            await here.pilot.press("enter")
            await here.until(lambda: bool(here.words("#problem")), "words")
            assert "'done'" in here.words("#problem")
            assert screen.stage is Stage.FORM

    asyncio.run(go())


def test_a_production_connection_wants_the_name(database: Database) -> None:
    queue = make(database, "mail", "claim", {})

    async def go() -> None:
        async with acting(database, "mail", production=True) as here:
            await here.open("mail", "requeue", ("limit=1",))
            await here.plan()
            await here.pilot.press("y", "enter")
            await here.pilot.pause()
            assert here.screen.stage is Stage.PLAN
            assert "'y' is not it" in here.words("#ask")
            # A stale screen allows no action, the right word or not.
            here.feed.fail()
            await here.pilot.pause()
            here.screen.query_one("#confirm", Input).value = "mail"
            await here.pilot.press("enter")
            await here.pilot.pause()
            assert "no new figures" in here.words("#ask")
            assert here.app.desk.running.all == ()
            here.feed.give(figures("mail", "claim"))
            await here.pilot.pause()
            await here.confirm("mail")

    asyncio.run(go())
    assert states(database, queue)["error"] == FAILED - 1


def test_the_twin_is_shown_and_copied_and_masks_are_kept(database: Database) -> None:
    make(database, "mail", "claim", {})

    async def go() -> None:
        masks = (re.compile("bold"),)
        async with acting(database, "mail", size=(160, 24), masks=masks) as here:
            await here.open("mail", "purge", ("error~no [bold]good",), reason="ticket 4711")
            await here.pilot.press("ctrl+o")
            await here.pilot.pause()
            dialog = here.app.screen
            assert isinstance(dialog, CommandDialog)
            assert dialog.command.startswith(
                "dbq-console purge mail --filter 'error~no [bold]good' --reason 'ticket 4711' --url"
            )
            assert "--yes" not in dialog.command
            assert here.app.clipboard == dialog.command
            await here.pilot.press("escape")
            await here.plan()
            await here.pilot.press("ctrl+o")
            await here.pilot.pause()
            assert "--yes mail" in here.app.clipboard
            await here.pilot.press("escape")
            await here.pilot.pause()
            assert "no [***]good" in here.picture

    asyncio.run(go())


class Held:
    """A work that goes on batch by batch as the test lets it."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def do(self, control: Control, tell: Tell) -> Ended:
        tell(Told(500, 10_000))
        assert self.go.wait(20)
        control.wait(0.0)
        if control.stopped:
            return Ended(Outcome.STOPPED, ("500 of 10,000 done",))
        return Ended(Outcome.DONE, ("all done",))

    def fail(self, control: Control, tell: Tell) -> Ended:
        del control, tell
        raise ConsoleError("Could not.", why="the cable", next_step="Look at it.")


def held(database: Database, name: str, do: "Held") -> Planned:
    queue = make(database, name, "fifo", {})
    subject = audit.Subject.of(database, queue, "purge")
    return Planned(subject, queue, ("purge",), by_name=False, do=do.do, count=10_000)


def test_it_goes_on_in_the_background_and_is_found_again(database: Database) -> None:
    works = [Held(), Held()]
    plans = [held(database, f"q{n}", work) for n, work in enumerate(works)]

    async def go() -> None:
        async with acting(database, "q0", "q1") as here:
            for plan in plans:
                screen = await here.open(plan.queue.name, "purge")
                screen.show_plan(plan)
                await here.pilot.press("y", "enter")
                await here.until(lambda: here.at(Stage.RUNNING), "it runs")
                await here.pilot.press("b")
                await here.pilot.pause()
                assert isinstance(here.app.screen, OverviewScreen)
            await here.until(lambda: "500 of 10,000" in here.line, "the line at the bottom")
            assert here.line.startswith("▶ 2 actions run here; purge q1")
            await here.pilot.press("b")
            await here.pilot.pause()
            assert isinstance(here.app.screen, RunningDialog)
            await here.pilot.press("enter")
            await here.until(lambda: here.at(Stage.RUNNING), "the first of them")
            assert "purge q0" in here.words("#progress")
            await here.pilot.press("p")
            await here.pilot.pause()
            assert "paused" in here.words("#progress")
            await here.pilot.press("p", "s")
            works[0].go.set()
            await here.ended()
            assert "500 of 10,000 done" in here.words("#result-words")
            await here.out()
            # It ended while nobody looked: that is told until somebody has seen it.
            works[1].go.set()
            await here.until(lambda: "purge q1: 500 of 10,000, done" in here.line, "it has ended")
            await here.pilot.press("b")
            await here.ended()
            await here.out()
            here.app.screen.draw()  # type: ignore[attr-defined]
            assert not here.app.screen.query_one(BackgroundLine).display
            # What goes wrong is told in words.
            screen = await here.open("q0", "purge")
            subject, queue = plans[0].subject, plans[0].queue
            screen.show_plan(Planned(subject, queue, (), by_name=False, do=works[0].fail))
            await here.pilot.press("y", "enter")
            await here.ended()
            said = here.words("#result-words")
            assert said.startswith("purge q0: FAILED")
            assert "the cable\nLook at it." in said

    asyncio.run(go())


def test_another_console_was_quicker_with_some_of_the_rows(database: Database) -> None:
    queue = make(database, "mail", "claim", {})

    async def go() -> None:
        async with acting(database, "mail") as here:
            await here.open("mail", "requeue")
            await here.plan()
            assert here.screen.planned is not None
            assert here.screen.planned.count == FAILED
            other = planned(Site(database, queue, Rights.ADMIN), Asked("requeue", ("limit=3",)))
            assert other.do(Control(), lambda _: None).outcome is Outcome.DONE
            await here.confirm("y")
            assert "1 of 4 done" in here.words("#result-words")
            await here.pilot.press("a", "enter")
            await here.until(lambda: here.at(Stage.PLAN), "a plan")
            assert "There is nothing to do" in here.picture

    asyncio.run(go())
    assert states(database, queue)["ready"] == READY + FAILED


def test_a_row_that_changes_meanwhile_is_skipped_and_counted(database: Database) -> None:
    queue = make(database, "mail", "claim", {})

    async def go() -> None:
        async with acting(database, "mail") as here:
            await here.open("mail", "requeue")
            await here.plan()
            with database.transaction("another operator") as connection:
                connection.exec_driver_sql(
                    "SELECT FROM mail WHERE errors IS NOT NULL LIMIT 1 FOR UPDATE"
                )
                await here.confirm("y")
            assert "3 of 4 done, 1 skipped, 0 failed" in here.words("#result-words")

    asyncio.run(go())
    assert states(database, queue)["error"] == 1


def test_a_connection_that_is_cut_is_told_in_words(database: Database) -> None:
    queue = make(database, "mail", "claim", {})

    async def go() -> None:
        async with acting(database, "mail") as here:
            await here.open("mail", "requeue", batch="1", rate="2")
            await here.plan()
            await here.pilot.press("y", "enter")
            await here.until(lambda: "1 of 4" in here.words("#progress"), "the first batch")
            with database.transaction("cut") as connection:
                connection.exec_driver_sql(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE "
                    "datname = current_database() AND pid <> pg_backend_pid() "
                    "AND backend_type = 'client backend'"
                )
            await here.ended()
            said = here.words("#result-words")
            assert said.startswith("requeue mail: FAILED")
            assert "Traceback" not in said
            assert "were done and counted before that" in said
            await here.pilot.press("a", "enter")
            await here.until(lambda: here.at(Stage.PLAN), "a plan")
            await here.confirm("y")

    asyncio.run(go())
    assert states(database, queue)["ready"] == READY + FAILED


def test_no_size_of_a_terminal_breaks_it(database: Database) -> None:
    make(database, "mail", "claim", {})
    make(database, "orders", "ring", {"size": "20"})

    async def go() -> None:
        async with acting(database, "mail", "orders", size=(50, 14)) as here:
            here.app.open_actions(here.key("mail"))
            await here.until(lambda: bool(here.dialog.choices), "verbs")
            await here.pilot.press("escape")
            await here.open("mail", "purge")
            await here.plan()
            await here.pilot.resize_terminal(160, 48)
            assert "To do it, type the queue's name" in here.picture
            await here.pilot.resize_terminal(20, 5)
            await here.out()
            # What stands in the way of a plan leaves nothing to be confirmed.
            await here.pilot.resize_terminal(80, 24)
            screen = await here.open("orders", "resize", size="5")
            await here.plan()
            assert "REFUSED: drain 2 messages first" in here.picture
            assert not screen.query_one("#confirm").display
            screen._confirm("orders")
            assert screen.running is None

    asyncio.run(go())
