"""A verb's screen by its keys, on a real server: each stage, and what happens to data at each."""

import re
import threading
from contextlib import closing

import psycopg
import pytest
from textual.widgets import Input

from console.catalog import Acting, audit
from console.catalog.audit import Ledger, Outcome
from console.engines import Database
from console.errors import ConsoleError
from console.monitor.activity import find_objects, sample_activity
from console.plan import Control, OnProgress, Plan, Progress, Result
from console.rights import Rights
from console.tui.dialogs.dialog import CommandDialog, RunningDialog
from console.tui.screens.form import Stage
from console.tui.screens.overview import OverviewScreen
from console.tui.widgets.field import Field
from console.tui.widgets.summary import BackgroundLine
from console.verbs import get_verb
from console.verbs.verb import Target, values_from_texts
from tests.servers import PATIENCE_SECONDS, connect, wait_until
from tests.tui.acting import CLAIMED, FAILED, READY, acting, make, states
from tests.tui.feeds import queue as figures


@pytest.mark.parametrize(
    ("design_name", "options"),
    [pytest.param("naive", {}, marks=pytest.mark.long), ("ring", {"size": "40"})],
)
async def test_the_session_at_the_root_of_waits_is_ended_from_the_waits_tab(
    database: Database, database_url: str, design_name: str, options: dict[str, str]
) -> None:
    queue = make(database, "mail", design_name, options)

    def waits() -> bool:
        return sample_activity(database, find_objects(database, [queue])).waiting == 1

    with closing(connect(database_url)) as holder, closing(connect(database_url)) as waiter:
        holder.execute("CREATE TABLE elsewhere AS SELECT 1 AS id")
        for session, verb in ((holder, "mail_pop()"), (waiter, "mail_push('x')")):
            session.execute("BEGIN")
            session.execute(f"SELECT * FROM {verb}".encode())
        holder.execute("UPDATE elsewhere SET id = 2")
        waiter.pgconn.send_query(b"UPDATE elsewhere SET id = 3")
        wait_until(waits, "the other waits")
        async with acting(database, "mail", size=(160, 48)) as console:
            console.app.open_queue(console.key("mail"), "waits")
            await console.until(lambda: f"{holder.info.backend_pid}" in console.picture)
            console.app.screen.query_one("#waits-tree").focus()
            await console.press("a")
            await console.until(lambda: console.at(Stage.FORM))
            await console.press("enter")
            await console.until(lambda: console.at(Stage.PLAN))
            assert "a rollback brings" in console.picture
            assert ("stay consumed" in console.picture) == (design_name == "ring")
            await console.press("y", "enter")
            await console.wait_for_result()
            assert "is released" in console.text_of("#result-text")
        with pytest.raises(psycopg.OperationalError):
            holder.execute("SELECT 1")
    # The message that a ring's pop has drawn but not committed is an orphan.
    assert states(database, queue)["ready"] == READY - (design_name == "ring")


async def test_a_release_goes_by_keys_from_the_dialog_to_its_result(database: Database) -> None:
    queue = make(database, "mail", "claim", {})
    other = Acting(
        "public", "mail", "purge", "ann[b]@etl01", "ann", "pid=1", 64.0, planned=9_000, done=4_000
    )
    other_text = "! under purge by ann[b]@etl01 for 1 min 04 s, 4,000 of 9,000 done"
    async with acting(database, "mail") as console:
        console.feed.give(figures("mail", "claim", stuck=CLAIMED, errors=FAILED, acting=(other,)))
        await console.pilot.pause()
        console.app.open_actions(console.key("mail"), ("older=0s",))
        await console.until(lambda: bool(console.dialog.choices))
        assert other_text in console.picture, "who is at the queue stands on top"
        # The cursor begins at the verb that the figures suggest.
        await console.press("enter")
        await console.until(lambda: console.at(Stage.FORM))
        assert other_text in console.picture
        assert [field.field_name for field in console.screen.query(Field)][:2] == [
            "filter",
            "unknown",
        ]
        await console.press("tab", "tab", "space", "enter")
        await console.until(lambda: console.at(Stage.PLAN))
        assert "3 messages" in console.picture
        assert states(database, queue)["claimed"] == CLAIMED
        await console.press("y", "enter")
        await console.wait_for_result()
        assert "3 of 3 done" in console.text_of("#result-text")
        assert console.examined == [console.key("mail")]
        assert console.feed.samples_requested == 1
        await console.leave()
        assert console.is_at(OverviewScreen)
    assert states(database, queue)["ready"] == READY + CLAIMED


async def test_verbs_that_are_not_allowed_are_greyed_with_the_reason(database: Database) -> None:
    make(database, "mail", "claim", {})
    async with acting(database, "mail", rights=Rights.OPERATOR) as console:
        console.app.open_actions(console.key("mail"))
        await console.until(lambda: bool(console.dialog.choices))
        why = {choice.verb: choice.why_not for choice in console.dialog.choices}
        assert why["resize"] == "the design claim has no resize"
        assert why["upgrade"] == "it needs the right admin; this connection has operator"
        assert not why["release"]
        assert [why[name] for name in ("to lake", "from lake", "verify log")] == ["", "", ""]
        await console.press("end")  # there are more verbs than a small terminal shows
        await console.until(lambda: "it needs the right admin" in console.picture)
        console.feed.fail()
        await console.press("escape")
        console.app.open_actions(console.key("mail"))
        await console.until(lambda: bool(console.dialog.choices))
        assert all(choice.why_not for choice in console.dialog.choices)


async def test_escape_changes_nothing_at_any_stage_and_invalid_fields_show_their_error(
    database: Database,
) -> None:
    queue = make(database, "mail", "claim", {})
    before = states(database, queue)
    async with acting(database, "mail") as console:
        await console.open("mail", "purge", ("state=error",))
        await console.plan()
        await console.press(*"mail")
        await console.press("escape")
        assert console.screen.stage is Stage.FORM
        assert console.screen.form.values["filter"] == "state=error"
        await console.press("enter", "escape")
        await console.until(lambda: console.at(Stage.FORM))
        await console.press("escape")
        assert console.is_at(OverviewScreen)
        assert console.app.context.action_runs.all == ()
        screen = await console.open("mail", "purge", ("colour=red",), batch="0", rate="fast")
        await console.press("enter")
        assert screen.stage is Stage.FORM
        wrong = {
            field.field_name: str(field.query_one(".field-help").render())
            for field in screen.query(Field)
            if field.has_error
        }
        assert set(wrong) == {"filter", "batch", "rate"}
        assert "There is no filter 'colour='" in wrong["filter"]
        assert "1 to 4,000" in wrong["batch"]
        # An error that only the queue reveals comes from the plan; the form is shown again.
        for name, text in (("filter", "state=done"), ("batch", ""), ("rate", "")):
            screen.form[name].value = text
        await console.press("enter")
        await console.until(lambda: bool(console.text_of("#problem")))
        assert "'done'" in console.text_of("#problem")
        assert screen.stage is Stage.FORM
    assert states(database, queue) == before


async def test_production_requires_the_queues_name_and_the_equivalent_command_has_it(
    database: Database,
) -> None:
    queue = make(database, "mail", "claim", {})
    masks = (re.compile("bold"),)
    async with acting(database, "mail", production=True, size=(160, 24), masks=masks) as console:
        await console.open("mail", "purge", ("error~no [bold]good",), reason="ticket 4711")
        await console.press("ctrl+o")
        dialog = console.on_top(CommandDialog)
        assert dialog.command.startswith(
            "dbq-console purge mail --filter 'error~no [bold]good' --reason 'ticket 4711' --url"
        )
        assert "--yes" not in dialog.command
        assert console.app.clipboard == dialog.command
        await console.press("escape")
        await console.plan()
        await console.press("ctrl+o")
        assert "--yes mail" in console.app.clipboard
        await console.press("escape")
        assert "no [***]good" in console.picture
        await console.leave()
        await console.open("mail", "requeue", ("limit=1",))
        await console.plan()
        await console.press("y", "enter")
        assert console.screen.stage is Stage.PLAN
        assert "'y' does not match" in console.text_of("#plan-prompt")
        # A stale screen allows no action, even with the right word.
        console.feed.fail()
        await console.pilot.pause()
        console.screen.query_one("#confirm", Input).value = "mail"
        await console.press("enter")
        assert "no new figures" in console.text_of("#plan-prompt")
        assert console.app.context.action_runs.all == ()
        console.feed.give(figures("mail", "claim"))
        await console.pilot.pause()
        await console.confirm("mail")
    assert states(database, queue)["error"] == FAILED - 1


class Held:
    """An action that waits until the test lets it continue."""

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
        del control
        on_progress(Progress(1, 4, ledger=Ledger(1, 1, 1)))
        raise ConsoleError("Could not.", why="the cable", next_step="Look at it.")


def held(database: Database, name: str, work: "Held") -> Plan:
    queue = make(database, name, "fifo", {})
    subject = audit.Subject.of(database, queue, "purge")
    return Plan(subject, queue, ("purge",), requires_name=False, run=work.do, count=10_000)


async def test_an_action_continues_in_the_background_and_can_be_opened_again(
    database: Database,
) -> None:
    works = [Held(), Held()]
    plans = [held(database, f"q{n}", work) for n, work in enumerate(works)]
    async with acting(database, "q0", "q1") as console:
        for plan in plans:
            screen = await console.open(plan.queue.name, "purge")
            screen.show_plan(plan)
            await console.press("y", "enter")
            await console.until(lambda: console.at(Stage.RUNNING))
            await console.press("b")
            assert console.is_at(OverviewScreen)
        await console.until(lambda: "500 of 10,000" in console.line)
        assert console.line.startswith("▶ 2 actions are running here; purge q1")
        await console.press("b")
        assert console.is_at(RunningDialog)
        await console.press("enter")
        await console.until(lambda: console.at(Stage.RUNNING))
        assert "purge q0" in console.text_of("#progress")
        await console.press("p")
        assert "paused" in console.text_of("#progress")
        await console.press("p", "s")
        works[0].go.set()
        await console.wait_for_result()
        assert "500 of 10,000 done" in console.text_of("#result-text")
        await console.leave()
        # The other one ended unseen: the line says so until its result is opened.
        works[1].go.set()
        await console.until(lambda: "purge q1: 500 of 10,000, done" in console.line)
        await console.press("b")
        await console.wait_for_result()
        await console.leave()
        console.app.screen.draw()  # type: ignore[attr-defined]
        assert not console.app.screen.query_one(BackgroundLine).display
        # A failure is reported with its reason.
        screen = await console.open("q0", "purge")
        subject, queue = plans[0].subject, plans[0].queue
        screen.show_plan(Plan(subject, queue, (), requires_name=False, run=works[0].fail))
        await console.press("y", "enter")
        await console.wait_for_result()
        text = console.text_of("#result-text")
        assert text.startswith("purge q0: FAILED")
        assert "1 were done and counted before that" in text
        assert "the cable\nLook at it." in text
        await console.press("a")
        assert console.at(Stage.FORM), "it can be planned again"


async def test_remaining_messages_are_planned_again_but_nothing_for_an_uninstalled_queue(
    database: Database,
) -> None:
    queue = make(database, "mail", "claim", {})
    async with acting(database, "mail") as console:
        await console.open("mail", "requeue")
        await console.plan()
        assert console.screen.planned is not None
        assert console.screen.planned.count == FAILED
        # Another console requeues some of the rows first.
        requeue = get_verb("requeue")
        target = Target(database, queue, Rights.ADMIN)
        other = requeue.plan(target, values_from_texts(requeue, {"filter": "limit=3"}))
        assert other.run(Control(), lambda _: None).outcome is Outcome.DONE
        await console.confirm("y")
        assert "1 of 4 done" in console.text_of("#result-text")
        await console.press("a", "enter")
        await console.until(lambda: console.at(Stage.PLAN))
        assert "There is nothing to do" in console.picture
        assert states(database, queue)["ready"] == READY + FAILED
        await console.leave()
        await console.open("mail", "uninstall")
        await console.press("space")
        await console.plan()
        await console.confirm("mail")
        gone = f"uninstalled public.mail; {READY + FAILED + CLAIMED} messages were lost with it"
        assert gone in console.text_of("#result-text")
        assert "plan again" not in console.picture
        await console.press("a")
        assert console.screen.stage is Stage.RESULT


async def test_the_action_screen_works_in_terminals_of_any_size(database: Database) -> None:
    make(database, "mail", "claim", {})
    make(database, "orders", "ring", {"size": "20"})
    async with acting(database, "mail", "orders", size=(50, 14)) as console:
        console.app.open_actions(console.key("mail"))
        await console.until(lambda: bool(console.dialog.choices))
        await console.press("escape")
        await console.open("mail", "purge")
        await console.plan()
        await console.resize(160, 48)
        assert "To run it, type the queue's name" in console.picture
        await console.resize(20, 5)
        await console.leave()
        # A refused plan cannot be confirmed.
        await console.resize(80, 24)
        screen = await console.open("orders", "resize", size="5")
        await console.plan()
        assert "REFUSED: drain 2 messages first" in console.picture
        assert not screen.query_one("#confirm").display
        screen.confirm("orders")
        assert screen.running is None
