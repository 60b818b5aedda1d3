"""The tab Consumers: who is there, who has left, and why a figure is not known."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from console.catalog import installed_queue
from console.designs import design
from console.errors import RefusedError
from console.monitor.consumers import Consumer, Consumers
from console.tui.tabs.consumers import ConsumersTab, SeenConsumers
from console.tui.text import TextView
from tests.servers import connect
from tests.tui.acting import database_at, make
from tests.tui.alone import conn
from tests.tui.one_tab import KEY, Shown, one_tab

AT = datetime(2026, 3, 29, 2, 14, 7, tzinfo=UTC)
QUEUE = installed_queue("public", "mail", design("claim"), {})
NIGHT = Consumer(
    *("night\x1b shift", ("pop",), "worker", "10.0.0.4", "ann", 3),
    since=AT - timedelta(hours=2),
    last_pop=AT - timedelta(seconds=5),
    last_call=AT,
    messages_per_second=12.5,
    claims=4,
    estimated=("messages_per_second", "claims"),
)
PUSHER = Consumer(
    *("shop", ("push",), "shop", "10.0.0.5", "web", 1, AT, None, AT, None, None),
    unknown={"last_pop": "no row tells who pushed it"},
)
LEFT = replace(NIGHT, name="day shift", last_seen=AT - timedelta(hours=1))


def said(shown: Shown[ConsumersTab], part: str) -> str:
    return shown.tab.query_one(f"#consumers-{part}", TextView).plain_text


async def test_who_is_there_and_who_has_left() -> None:
    async with one_tab(ConsumersTab, connections=[conn()], size=(160, 48)) as shown:
        found = Consumers(QUEUE, AT, (NIGHT, PUSHER), {"sessions": "no right to see others"})
        shown.tab.show_error(RefusedError("Could not look."))
        shown.tab.show_result(SeenConsumers(found, (LEFT,)))
        await shown.pilot.pause()
        assert "1 consumer, 1 producer seen   1 gone in a day" in said(shown, "head")
        assert "Not visible: no right to see others" in said(shown, "head")
        for words in ("night␛ shift", "pops", "5.0 s", "≈12.5", "≈4", "2 h", "10.0.0.4, worker"):
            assert words in shown.picture
        assert "day shift" in shown.picture
        assert "03-29 01:14:07" in shown.picture
        await shown.press("a", "j", "a")
        assert "no row tells who pushed it" in said(shown, "detail")
        assert shown.navigator.went == [
            ("actions", KEY, "state=claimed", "claimed_by=night\x1b shift")
        ], "who has no claims has nothing to act on"
        # The row stays the operator's, whoever comes and goes.
        shown.tab.show_result(SeenConsumers(replace(found, consumers=(PUSHER,)), (NIGHT, LEFT)))
        await shown.pilot.pause()
        assert shown.tab.table.row is not None
        assert shown.tab.table.row.consumer is PUSHER


async def test_on_a_small_screen_and_when_nobody_is_known() -> None:
    async with one_tab(ConsumersTab, connections=[conn()]) as shown:
        shown.tab.show_result(SeenConsumers(Consumers(QUEUE, AT), None))
        await shown.pilot.pause()
        assert "Nobody seen yet" in said(shown, "head")
        assert "gone: ? (not recorded)" in said(shown, "head")
        shown.tab.show_result(SeenConsumers(Consumers(QUEUE, AT, (NIGHT,)), ()))
        await shown.pilot.pause()
        for words in ("night␛ shift", "last pop", "msg/s", "claims"):
            assert words in shown.picture


async def test_on_a_server_it_remembers_whom_it_has_seen(database_url: str) -> None:
    with database_at(database_url) as database:
        make(database, "letters", "fifo", {})
        here = conn().__class__("prod", database)
        letters = ("prod", "public", "letters")
        with connect(database_url) as taker:
            async with one_tab(ConsumersTab, key=letters, connections=[here]) as shown:
                taker.execute("SELECT * FROM letters_pop()")
                shown.tab.poll()
                await shown.until(lambda: shown.tab.result is not None)
                (one,) = shown.tab.result.now.consumers if shown.tab.result else ()
                assert (one.does, one.sessions) == (("pop",), 1)
                taker.execute("SELECT 1")  # it says nothing of the queue any more
                before = shown.tab.result
                shown.tab.reload()
                await shown.until(lambda: shown.tab.result is not before)
                (one,) = shown.tab.result.now.consumers if shown.tab.result else ()
                assert one.does == ("pop",)
