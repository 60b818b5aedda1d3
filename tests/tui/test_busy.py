"""Who works on what, over all queues of all connections."""

from dataclasses import replace
from typing import Any

from console.features.busy.screens.busy import BusyScreen
from console.features.busy.views.busy import VIEW, BusyRow, rows_of
from console.monitor.owners import Claim, Evidence, Holder
from console.tui.screens.queue import QueueScreen
from tests.tui.feeds import queue
from tests.tui.opened import opened

OLD = Claim("m-1", 600.0, "pid=1 start=2 bound consumer=w\x1b7", 3, "pid=1 start=2", bound=True,
            consumer="w\x1b7", owner=Evidence.GONE)  # fmt: skip
YOUNG = Claim("m-2", 2.0, None, 1)
HOLDER = Holder(
    session=4711,
    user_name="app",
    application_name="mailer",
    state="idle in transaction",
    transaction_seconds=70.0,
    held_at_least_seconds=60.0,
    held_at_most_seconds=60.0,
)
JOBS = queue("jobs", "status", claims=(OLD, YOUNG), claimed=5)
MAIL = queue("mail", held_by=(HOLDER,))
NOT_READ = queue("news", "claim", problem="its table is locked")


def test_the_longest_held_come_first_and_what_is_not_known_has_its_reason() -> None:
    rows = rows_of([NOT_READ, MAIL, JOBS])
    assert [(row.queue, row.message, row.held_seconds) for row in rows[:3]] == [
        ("jobs", "m-1", 600.0),
        ("mail", None, 60.0),
        ("jobs", "m-2", 2.0),
    ]
    assert [row.why_unknown for row in rows[3:]] == [
        "its table is locked",
        "not in a sample: 3 further claims, held for less long; see stuck",
    ]
    listed: Any = VIEW.as_json(rows)["busy"]
    assert listed[0]["owner"] == "gone"
    assert len(VIEW.rows(rows)) == 5


def test_a_prepared_transaction_is_named_as_one() -> None:
    (row,) = rows_of([queue("mail", held_by=(replace(HOLDER, session="order-17"),))])
    assert row.who == "prepared transaction 'order-17', mailer, app"


def queue_of(screen: BusyScreen) -> str:
    row: BusyRow | None = screen.table.row
    return "" if row is None else row.queue


async def test_one_screen_for_all_connections_and_the_message_one_key_away() -> None:
    async with opened("prod", "test", size=(120, 30)) as console:
        await console.give(JOBS)
        console.feeds[1].give(MAIL)
        await console.pilot.pause()
        await console.press("W")
        screen = console.on_top(BusyScreen)
        assert "3 held in 2 queues" in console.picture
        assert "w\x1b7" not in console.picture
        await console.press("down")
        assert queue_of(screen) == "mail"
        await console.give(queue("jobs", "status", claims=(YOUNG,), claimed=1))
        screen.reload()
        await console.pilot.pause()
        assert queue_of(screen) == "mail", "the cursor stays on its row"
        await console.press("enter")
        assert console.on_top(QueueScreen).key == ("test", "public", "mail")
        await console.press("escape")
        await console.press("slash", *"m-2", "enter", "enter")
        assert console.on_top(QueueScreen).key == ("prod", "public", "jobs")
