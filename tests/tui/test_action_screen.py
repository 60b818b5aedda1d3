"""A verb's screen by its keys, on a real server: each stage, and what happens to data at each."""

import re
import threading
from contextlib import closing

import psycopg
import pytest
from textual.widgets import Input

from console import audit
from console.actions.execute import Control
from console.audit import Ledger, Outcome
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
        async with acting(database, "mail", size=(160, 48)) as here:
            here.app.open_queue(here.key("mail"), "waits")
            await here.until(lambda: f"{holder.info.backend_pid}" in here.picture)
            here.app.screen.query_one("#waits-tree").focus()
            await here.press("a")
            await here.until(lambda: here.at(Stage.FORM))
            await here.press("enter")
            await here.until(lambda: here.at(Stage.PLAN))
            assert "a rollback brings" in here.picture
            assert ("stay consumed" in here.picture) == (design_name == "ring")
            await here.press("y", "enter")
            await here.ended()
            assert "is released" in here.words("#result-text")
        with pytest.raises(psycopg.OperationalError):
            holder.execute("SELECT 1")
    # The message that a ring's pop has drawn but not committed is an orphan.
    assert states(database, queue)["ready"] == READY - (design_name == "ring")


async def test_a_release_by_keys_from_the_dialog_to_its_result(database: Database) -> None:
    queue = make(database, "mail", "claim", {})
    other = Acting(
        "public", "mail", "purge", "ann[b]@etl01", "ann", "pid=1", 64.0, planned=9_000, done=4_000
    )
    other_text = "! under purge by ann[b]@etl01 for 1 min 04 s, 4,000 of 9,000 done"
    async with acting(database, "mail") as here:
        here.feed.give(figures("mail", "claim", stuck=CLAIMED, errors=FAILED, acting=(other,)))
        await here.pilot.pause()
        here.app.open_actions(here.key("mail"), ("older=0s",))
        await here.until(lambda: bool(here.dialog.choices))
        assert other_text in here.picture, "who is at the queue stands on top"
        # The cursor begins at the verb that the figures suggest.
        await here.press("enter")
        await here.until(lambda: here.at(Stage.FORM))
        assert other_text in here.picture
        assert [field.field_name for field in here.screen.query(Field)][:2] == [
            "filter",
            "unknown",
        ]
        await here.press("tab", "tab", "space", "enter")
        await here.until(lambda: here.at(Stage.PLAN))
        assert "3 messages" in here.picture
        assert states(database, queue)["claimed"] == CLAIMED
        await here.press("y", "enter")
        await here.ended()
        assert "3 of 3 done" in here.words("#result-text")
        assert here.examined == [here.key("mail")]
        assert here.feed.samples_requested == 1
        await here.leave()
        assert here.is_at(OverviewScreen)
    assert states(database, queue)["ready"] == READY + CLAIMED


async def test_verbs_that_are_not_allowed_are_greyed_with_the_reason(database: Database) -> None:
    make(database, "mail", "claim", {})
    async with acting(database, "mail", rights=Rights.OPERATOR) as here:
        here.app.open_actions(here.key("mail"))
        await here.until(lambda: bool(here.dialog.choices))
        why = {one.verb: one.why_not for one in here.dialog.choices}
        assert why["resize"] == "the design claim has no resize"
        assert why["upgrade"] == "it needs the right admin; this connection has operator"
        assert not why["release"]
        await here.press("end")  # there are more verbs than a small terminal shows
        await here.until(lambda: "it needs the right admin" in here.picture)
        here.feed.fail()
        await here.press("escape")
        here.app.open_actions(here.key("mail"))
        await here.until(lambda: bool(here.dialog.choices))
        assert all(one.why_not for one in here.dialog.choices)


async def test_escape_changes_nothing_at_any_stage_and_invalid_fields_show_their_error(
    database: Database,
) -> None:
    queue = make(database, "mail", "claim", {})
    before = states(database, queue)
    async with acting(database, "mail") as here:
        await here.open("mail", "purge", ("state=error",))
        await here.plan()
        await here.press(*"mail")
        await here.press("escape")
        assert here.screen.stage is Stage.FORM
        assert here.screen.form.values["filter"] == "state=error"
        await here.press("enter", "escape")
        await here.until(lambda: here.at(Stage.FORM))
        await here.press("escape")
        assert here.is_at(OverviewScreen)
        assert here.app.context.action_runs.all == ()
        screen = await here.open("mail", "purge", ("colour=red",), batch="0", rate="fast")
        await here.press("enter")
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
        await here.press("enter")
        await here.until(lambda: bool(here.words("#problem")))
        assert "'done'" in here.words("#problem")
        assert screen.stage is Stage.FORM
    assert states(database, queue) == before


async def test_production_requires_the_queues_name_and_the_equivalent_command_has_it(
    database: Database,
) -> None:
    queue = make(database, "mail", "claim", {})
    masks = (re.compile("bold"),)
    async with acting(database, "mail", production=True, size=(160, 24), masks=masks) as here:
        await here.open("mail", "purge", ("error~no [bold]good",), reason="ticket 4711")
        await here.press("ctrl+o")
        dialog = here.on_top(CommandDialog)
        assert dialog.command.startswith(
            "dbq-console purge mail --filter 'error~no [bold]good' --reason 'ticket 4711' --url"
        )
        assert "--yes" not in dialog.command
        assert here.app.clipboard == dialog.command
        await here.press("escape")
        await here.plan()
        await here.press("ctrl+o")
        assert "--yes mail" in here.app.clipboard
        await here.press("escape")
        assert "no [***]good" in here.picture
        await here.leave()
        await here.open("mail", "requeue", ("limit=1",))
        await here.plan()
        await here.press("y", "enter")
        assert here.screen.stage is Stage.PLAN
        assert "'y' does not match" in here.words("#plan-prompt")
        # A stale screen allows no action, even with the right word.
        here.feed.fail()
        await here.pilot.pause()
        here.screen.query_one("#confirm", Input).value = "mail"
        await here.press("enter")
        assert "no new figures" in here.words("#plan-prompt")
        assert here.app.context.action_runs.all == ()
        here.feed.give(figures("mail", "claim"))
        await here.pilot.pause()
        await here.confirm("mail")
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
    async with acting(database, "q0", "q1") as here:
        for plan in plans:
            screen = await here.open(plan.queue.name, "purge")
            screen.show_plan(plan)
            await here.press("y", "enter")
            await here.until(lambda: here.at(Stage.RUNNING))
            await here.press("b")
            assert here.is_at(OverviewScreen)
        await here.until(lambda: "500 of 10,000" in here.line)
        assert here.line.startswith("▶ 2 actions are running here; purge q1")
        await here.press("b")
        assert here.is_at(RunningDialog)
        await here.press("enter")
        await here.until(lambda: here.at(Stage.RUNNING))
        assert "purge q0" in here.words("#progress")
        await here.press("p")
        assert "paused" in here.words("#progress")
        await here.press("p", "s")
        works[0].go.set()
        await here.ended()
        assert "500 of 10,000 done" in here.words("#result-text")
        await here.leave()
        # The other one ended unseen: the line says so until its result is opened.
        works[1].go.set()
        await here.until(lambda: "purge q1: 500 of 10,000, done" in here.line)
        await here.press("b")
        await here.ended()
        await here.leave()
        here.app.screen.draw()  # type: ignore[attr-defined]
        assert not here.app.screen.query_one(BackgroundLine).display
        # A failure is reported with its reason.
        screen = await here.open("q0", "purge")
        subject, queue = plans[0].subject, plans[0].queue
        screen.show_plan(Plan(subject, queue, (), requires_name=False, run=works[0].fail))
        await here.press("y", "enter")
        await here.ended()
        text = here.words("#result-text")
        assert text.startswith("purge q0: FAILED")
        assert "1 were done and counted before that" in text
        assert "the cable\nLook at it." in text
        await here.press("a")
        assert here.at(Stage.FORM), "it can be planned again"


async def test_remaining_messages_are_planned_again_but_nothing_for_an_uninstalled_queue(
    database: Database,
) -> None:
    queue = make(database, "mail", "claim", {})
    async with acting(database, "mail") as here:
        await here.open("mail", "requeue")
        await here.plan()
        assert here.screen.planned is not None
        assert here.screen.planned.count == FAILED
        # Another console requeues some of the rows first.
        requeue = get_verb("requeue")
        target = Target(database, queue, Rights.ADMIN)
        other = requeue.plan(target, values_from_texts(requeue, {"filter": "limit=3"}))
        assert other.run(Control(), lambda _: None).outcome is Outcome.DONE
        await here.confirm("y")
        assert "1 of 4 done" in here.words("#result-text")
        await here.press("a", "enter")
        await here.until(lambda: here.at(Stage.PLAN))
        assert "There is nothing to do" in here.picture
        assert states(database, queue)["ready"] == READY + FAILED
        await here.leave()
        await here.open("mail", "uninstall")
        await here.press("space")
        await here.plan()
        await here.confirm("mail")
        gone = f"uninstalled public.mail; {READY + FAILED + CLAIMED} messages were lost with it"
        assert gone in here.words("#result-text")
        assert "plan again" not in here.picture
        await here.press("a")
        assert here.screen.stage is Stage.RESULT


async def test_the_action_screen_works_in_terminals_of_any_size(database: Database) -> None:
    make(database, "mail", "claim", {})
    make(database, "orders", "ring", {"size": "20"})
    async with acting(database, "mail", "orders", size=(50, 14)) as here:
        here.app.open_actions(here.key("mail"))
        await here.until(lambda: bool(here.dialog.choices))
        await here.press("escape")
        await here.open("mail", "purge")
        await here.plan()
        await here.resize(160, 48)
        assert "To run it, type the queue's name" in here.picture
        await here.resize(20, 5)
        await here.leave()
        # A refused plan cannot be confirmed.
        await here.resize(80, 24)
        screen = await here.open("orders", "resize", size="5")
        await here.plan()
        assert "REFUSED: drain 2 messages first" in here.picture
        assert not screen.query_one("#confirm").display
        screen.confirm("orders")
        assert screen.running is None
