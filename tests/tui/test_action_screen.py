"""A verb's screen by its keys, on a real server: each stage, and what happens to data at each."""

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from textual.widgets import Input

from console import audit
from console.actions.execute import Control
from console.audit import Outcome
from console.catalog import Acting
from console.engines import Database
from console.errors import ConsoleError
from console.monitor.activity import find_objects, sample_activity
from console.rights import Rights
from console.tui.dialogs.dialog import CommandDialog, RunningDialog
from console.tui.screens.form import Stage
from console.tui.screens.overview import OverviewScreen
from console.tui.widgets.field import Field
from console.tui.widgets.summary import BackgroundLine
from console.verbs import get_verb
from console.verbs.verb import OnProgress, Plan, Progress, Result, Target, values_from_texts
from tests.servers import PATIENCE_SECONDS, connect, wait_until
from tests.tui.acting import CLAIMED, FAILED, READY, acting, database_at, make, states
from tests.tui.feeds import queue as figures

LISTS = {"waits": "#waits-tree", "stuck": "#stuck"}
"""Where sessions stand on a queue's screen, by the tab."""


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    with database_at(database_url) as found:
        yield found


@pytest.mark.parametrize(
    ("of", "options"),
    [pytest.param("naive", {}, marks=pytest.mark.long), ("ring", {"size": "40"})],
)
def test_from_the_holder_under_the_cursor_to_its_end(
    database: Database, database_url: str, of: str, options: dict[str, str]
) -> None:
    """By `a` on the root of Waits, and on the session in Stuck."""
    queue = make(database, "mail", of, options)

    async def end(tab: str, pid: int) -> None:
        async with acting(database, "mail", size=(160, 48)) as here:
            here.app.open_queue(here.key("mail"), tab)
            await here.until(lambda: f"{pid}" in here.picture, "the holder")
            here.app.screen.query_one(LISTS[tab]).focus()
            await here.pilot.press("a")
            await here.until(lambda: here.at(Stage.FORM), "a form")
            await here.pilot.press("enter")
            await here.until(lambda: here.at(Stage.PLAN), "a plan")
            assert "a rollback brings" in here.picture
            assert ("stay consumed" in here.picture) == (of == "ring")
            await here.pilot.press("y", "enter")
            await here.ended()
            assert "is released" in here.words("#result-words")

    def waits() -> bool:
        return sample_activity(database, find_objects(database, [queue])).waiting == 1

    with connect(database_url) as connection:
        connection.execute("CREATE TABLE elsewhere AS SELECT 1 AS id")
    for tab in LISTS:
        with closing(connect(database_url)) as holder, closing(connect(database_url)) as waiter:
            for session, verb in ((holder, "mail_pop()"), (waiter, "mail_push('x')")):
                session.execute("BEGIN")
                session.execute(f"SELECT * FROM {verb}".encode())
            holder.execute("UPDATE elsewhere SET id = 2")
            waiter.pgconn.send_query(b"UPDATE elsewhere SET id = 3")
            wait_until(waits, "the other waits")
            asyncio.run(end(tab, holder.info.backend_pid))
            with pytest.raises(psycopg.OperationalError):
                holder.execute("SELECT 1")
    # What a ring's pop has drawn and not committed is an orphan, for the doctor.
    assert states(database, queue)["ready"] == READY - (len(LISTS) if of == "ring" else 0)


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
            assert [field.field_name for field in here.screen.query(Field)][:2] == [
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
            assert here.feed.samples_requested == 1
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
            await here.pilot.press("end")  # there are more verbs than a small terminal shows
            await here.until(lambda: "it needs the right admin" in here.picture, "its reason")
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
            words = "! under purge by ann[b]@etl01 for 1 min 04 s, 4,000 of 9,000 done"
            assert words in here.picture
            await here.pilot.press("escape")
            await here.open("mail", "requeue")
            assert words in here.picture

    asyncio.run(go())


def test_escape_at_each_stage_does_nothing_and_what_cannot_be_read_is_said_under_its_field(
    database: Database,
) -> None:
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
            assert here.screen.form.values["filter"] == "state=error"
            await here.pilot.press("enter", "escape")
            await here.until(lambda: here.at(Stage.FORM), "the form again")
            await here.pilot.press("escape")
            await here.pilot.pause()
            assert isinstance(here.app.screen, OverviewScreen)
            assert here.app.context.action_runs.all == ()
            screen = await here.open("mail", "purge", ("colour=red",), batch="0", rate="fast")
            await here.pilot.press("enter")
            await here.pilot.pause()
            assert screen.stage is Stage.FORM
            wrong = {
                field.field_name: str(field.query_one(".field-help").render())
                for field in screen.query(Field)
                if field.has_error
            }
            assert set(wrong) == {"filter", "batch", "rate"}
            assert "There is no filter 'colour='" in wrong["filter"]
            assert "1 to 4,000" in wrong["batch"]
            # What only the queue can tell comes from the plan, and the form is there again.
            for name, text in (("filter", "state=done"), ("batch", ""), ("rate", "")):
                screen.form[name].value = text
            await here.pilot.press("enter")
            await here.until(lambda: bool(here.words("#problem")), "words")
            assert "'done'" in here.words("#problem")
            assert screen.stage is Stage.FORM

    asyncio.run(go())
    assert states(database, queue) == before


def test_a_production_connection_wants_the_name(database: Database) -> None:
    queue = make(database, "mail", "claim", {})

    async def go() -> None:
        async with acting(database, "mail", production=True) as here:
            await here.open("mail", "requeue", ("limit=1",))
            await here.plan()
            await here.pilot.press("y", "enter")
            await here.pilot.pause()
            assert here.screen.stage is Stage.PLAN
            assert "'y' does not match" in here.words("#ask")
            # A stale screen allows no action, the right word or not.
            here.feed.fail()
            await here.pilot.pause()
            here.screen.query_one("#confirm", Input).value = "mail"
            await here.pilot.press("enter")
            await here.pilot.pause()
            assert "no new figures" in here.words("#ask")
            assert here.app.context.action_runs.all == ()
            here.feed.give(figures("mail", "claim"))
            await here.pilot.pause()
            await here.confirm("mail")

    asyncio.run(go())
    assert states(database, queue)["error"] == FAILED - 1


def test_the_equivalent_command_is_shown_and_copied_and_masks_are_kept(database: Database) -> None:
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

    def do(self, control: Control, on_progress: OnProgress) -> Result:
        on_progress(Progress(500, 10_000))
        assert self.go.wait(PATIENCE_SECONDS)
        control.wait(0.0)
        if control.stopped:
            return Result(Outcome.STOPPED, ("500 of 10,000 done",))
        return Result(Outcome.DONE, ("all done",))

    def fail(self, control: Control, on_progress: OnProgress) -> Result:
        del control, on_progress
        raise ConsoleError("Could not.", why="the cable", next_step="Look at it.")


def held(database: Database, name: str, do: "Held") -> Plan:
    queue = make(database, name, "fifo", {})
    subject = audit.Subject.of(database, queue, "purge")
    return Plan(subject, queue, ("purge",), requires_name=False, run=do.do, count=10_000)


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
            assert here.line.startswith("▶ 2 actions are running here; purge q1")
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
            screen.show_plan(Plan(subject, queue, (), requires_name=False, run=works[0].fail))
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
            requeue = get_verb("requeue")
            target = Target(database, queue, Rights.ADMIN)
            other = requeue.plan(target, values_from_texts(requeue, {"filter": "limit=3"}))
            assert other.run(Control(), lambda _: None).outcome is Outcome.DONE
            await here.confirm("y")
            assert "1 of 4 done" in here.words("#result-words")
            await here.pilot.press("a", "enter")
            await here.until(lambda: here.at(Stage.PLAN), "a plan")
            assert "There is nothing to do" in here.picture

    asyncio.run(go())
    assert states(database, queue)["ready"] == READY + FAILED


def test_a_connection_that_is_cut_is_told_in_words(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make(database, "mail", "claim", {})
    cut = threading.Event()
    # Between two batches it waits for the cut: no rate is slow enough for every machine.
    monkeypatch.setattr(Control, "wait", lambda *_: cut.wait())

    async def go() -> None:
        async with acting(database, "mail") as here:
            await here.open("mail", "requeue", batch="1")
            await here.plan()
            await here.pilot.press("y", "enter")
            await here.until(lambda: "1 of 4" in here.words("#progress"), "the first batch")
            with database.transaction("cut") as connection:
                connection.exec_driver_sql(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE "
                    "datname = current_database() AND pid <> pg_backend_pid() "
                    "AND backend_type = 'client backend'"
                )
            cut.set()
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
            assert "To run it, type the queue's name" in here.picture
            await here.pilot.resize_terminal(20, 5)
            await here.out()
            # What stands in the way of a plan leaves nothing to be confirmed.
            await here.pilot.resize_terminal(80, 24)
            screen = await here.open("orders", "resize", size="5")
            await here.plan()
            assert "REFUSED: drain 2 messages first" in here.picture
            assert not screen.query_one("#confirm").display
            screen.confirm("orders")
            assert screen.running is None

    asyncio.run(go())


def test_nothing_is_planned_again_for_a_queue_that_is_gone(database: Database) -> None:
    make(database, "mail", "fifo", {})

    async def go() -> None:
        async with acting(database, "mail") as here:
            await here.open("mail", "uninstall")
            await here.pilot.press("space")
            await here.plan()
            await here.confirm("mail")
            assert "uninstalled public.mail; 7 messages were lost with it" in here.words(
                "#result-words"
            )
            assert "plan again" not in here.picture
            await here.pilot.press("a")
            assert here.screen.stage is Stage.RESULT

    asyncio.run(go())
