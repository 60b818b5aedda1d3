"""The tabs Stuck, Errors and Consumers: what they show of a queue, and actions on it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from console.engines import Database
from console.errors import ConnectionFailedError, RefusedError
from console.monitor.activity import Lock, Session
from console.monitor.consumers import Consumer, Consumers
from console.monitor.errors import ErrorGroup, ErrorGroups, filters_of
from console.monitor.owners import Claim, Claims, Evidence
from console.monitor.wording import group_key
from console.tui.open_connection import OpenConnection
from console.tui.tabs.consumers import ConsumersTab
from console.tui.tabs.errors import ErrorsTab
from console.tui.tabs.stuck import StuckTab
from console.views.consumers import SampledConsumers
from console.views.stuck import QueueHolders
from tests.servers import connect
from tests.tui.acting import make
from tests.tui.one_tab import KEY, one_tab
from tests.tui.opened import conn
from tests.tui.test_messages import QUEUE

pytestmark = pytest.mark.slow

OURS = "pid=4711 start=x consumer="
GONE = Claim("1", 900.0, f"{OURS}etl\x1b", 3, "pid=4711 start=x", False, "etl\x1b", Evidence.GONE)
BOUND = Claim("2", 600.0, "pid=1 start=y bound", 1, "pid=1 start=y", True, None, Evidence.GONE)
ALIVE = Claim("3", 400.0, f"{OURS}w", 1, "pid=9 start=z", False, "w", Evidence.ALIVE)
YOUNG = Claim("4", 3.0, "somebody", None)
HOLDER = Session(
    key=815,
    kind="client backend",
    user="ann",
    application="psql",
    state="idle in transaction",
    state_seconds=2_472.0,
    transaction_seconds=2_472.0,
    query="SELECT ? FROM billing_pop()",
    locks=(Lock("public", "mail", "mail", "relation", "RowExclusiveLock", granted=True),),
)
PREPARED = Session(key="[b]forgotten", kind="prepared transaction", transaction_seconds=90.0)


async def test_claims_are_shown_with_the_evidence_about_their_owners() -> None:
    async with one_tab(StuckTab, connections=[conn()]) as shown:
        shown.tab.show_error(RefusedError("Could not look."))
        await shown.show(QueueHolders(Claims((GONE, BOUND, ALIVE, YOUNG), more=True), None))
        assert "4 claims and more   3 stuck over 5 min: owner 2 gone, 1 alive" in shown.text_of(
            "#stuck-head"
        )
        shown.shows("15 min", "gone", "alive", "unknown", "etl␛", "somebody")
        assert "The session that claimed it has ended" in shown.text_of("#stuck-detail")
        await shown.press("j")
        assert "so has the claim" in shown.text_of("#stuck-detail")
        await shown.press("x", "x", "a", "escape", "a", "f")
        assert shown.navigator.calls == [
            ("actions", KEY, "id=2", "id=3"),
            ("actions", KEY, "id=4"),
            ("release", KEY),
        ]
        shown.tab.show_result(QueueHolders(Claims((GONE,), more=False), None, library="River"))
        await shown.press("g", "y")
        assert "Its worker is gone" in shown.text_of("#stuck-detail")
        assert shown.app.clipboard == shown.text_of("#stuck-detail"), (
            "what is copied is what is shown"
        )


async def test_the_cursor_stays_on_its_claim_and_an_empty_tab_says_why() -> None:
    async with one_tab(StuckTab, connections=[conn()]) as shown:
        shown.tab.show_result(QueueHolders(Claims((), more=False), ()))
        await shown.press("a", "y")
        assert "No claims." in shown.text_of("#stuck-head")
        assert "No session holds rows." in shown.text_of("#stuck-head")
        shown.tab.show_result(QueueHolders(None, None))
        assert "Nothing can be stuck in this design." in shown.text_of("#stuck-head")
        assert shown.navigator.calls == []
        shown.tab.show_result(QueueHolders(Claims((GONE, BOUND, ALIVE), more=False), None))
        await shown.press("j", "j")
        shown.tab.show_result(QueueHolders(Claims((BOUND, ALIVE, YOUNG), more=False), ()))
        await shown.press("a")
        shown.tab.show_result(QueueHolders(Claims((BOUND, YOUNG), more=False), ()))
        assert shown.tab.table.cells("claim 3")["owner"].text == "left"
        await shown.press("a")
        assert shown.navigator.calls == [("actions", KEY, "id=3")] * 2


async def test_sessions_that_hold_rows_can_be_ended() -> None:
    async with one_tab(StuckTab, connections=[conn()], size=(160, 48)) as shown:
        await shown.show(QueueHolders(None, (HOLDER, PREPARED)))
        assert "2 sessions hold rows" in shown.text_of("#stuck-head")
        shown.shows("session 815", "41 min 12 s", "psql, ann", "idle in transaction")
        assert "prepared transaction [b]forgotten" in shown.picture
        assert "last: SELECT ? FROM billing_pop()" in shown.text_of("#stuck-detail")
        await shown.press("a", "j", "a", "g", "x", "x", "a")  # no action on two marked sessions
        assert shown.navigator.calls == [
            ("end-session", KEY, ("session", "815")),
            ("end-session", KEY, ("session", "[b]forgotten")),
        ]


AT = datetime(2026, 3, 29, 2, 0, 0, tzinfo=UTC)


def group(wording: str, count: int = 1, sample: str = "") -> ErrorGroup:
    later = AT + timedelta(minutes=10)
    text = sample or wording
    return ErrorGroup(wording, count, AT, later, 1, 5, "17", text, group_key(text))


NO_ROUTE = group("no route to <ip>: <text> [bold]", 12, "no route to 10.0.0.7: 'x'\x1b [bold]")
TIMED_OUT = group("timed out", 3)


def groups(*error_groups: ErrorGroup, complete: bool = True, ungrouped: int = 0) -> ErrorGroups:
    counted = sum(group.count for group in error_groups) + ungrouped
    return ErrorGroups(QUEUE, error_groups, counted, ungrouped, complete)


async def test_error_groups_have_counts_times_attempts_and_a_sample() -> None:
    async with one_tab(ErrorsTab, size=(160, 48)) as shown:
        await shown.show(groups(NO_ROUTE, TIMED_OUT, complete=False, ungrouped=4))
        assert "19 errors in 2 groups at least, the newest; older ones were not" in shown.text_of(
            "#errors-head"
        )
        shown.shows("≈12", "03-29 02:00:00", "03-29 02:10:00", "1 to 5", "no route to <ip>")
        assert "newest, message 17: no route to 10.0.0.7: 'x'␛ [bold]" in shown.picture
        shown.tab.show_error(ConnectionFailedError("Could not look.", why="it is away"))
        await shown.pilot.pause()
        assert "it is away" in shown.text_of("#errors-head")
        assert "19 errors" in shown.text_of("#errors-head")


async def test_the_cursor_stays_on_its_error_group_and_actions_apply_to_it() -> None:
    async with one_tab(ErrorsTab) as shown:
        shown.tab.show_result(groups())
        await shown.press("enter", "a", "y")
        assert "No errors." in shown.text_of("#errors-head")
        assert shown.navigator.calls == []
        shown.tab.show_result(groups(NO_ROUTE, TIMED_OUT))
        await shown.press("j")
        shown.tab.show_result(groups(group("new", 99), group("newer", 98), NO_ROUTE, TIMED_OUT))
        await shown.press("a")
        shown.tab.show_result(groups(NO_ROUTE))
        assert shown.tab.table.cells(TIMED_OUT.key)["count"].text == "0"
        await shown.press("a")
        acted = ("actions", KEY, "state=error", f"error-group={TIMED_OUT.key}")
        assert shown.navigator.calls == [acted] * 2


def test_an_error_group_is_a_filter_even_if_its_text_is_masked() -> None:
    assert filters_of(NO_ROUTE).words == ("state=error", f"error-group={NO_ROUTE.key}")
    masked = replace(NO_ROUTE, wording="***", sample="***")
    assert filters_of(masked) == filters_of(NO_ROUTE)


SEEN_AT = datetime(2026, 3, 29, 2, 14, 7, tzinfo=UTC)
NIGHT = Consumer(
    *("night\x1b shift", ("pop",), "worker", "10.0.0.4", "ann", 3),
    since=SEEN_AT - timedelta(hours=2),
    last_pop=SEEN_AT - timedelta(seconds=5),
    last_call=SEEN_AT,
    messages_per_second=12.5,
    claims=4,
    estimated=("messages_per_second", "claims"),
)
PUSHER = Consumer(
    *("shop", ("push",), "shop", "10.0.0.5", "web", 1, SEEN_AT, None, SEEN_AT, None, None),
    unknown={"last_pop": "no row says who pushed it"},
)
DEPARTED = replace(NIGHT, name="day shift", last_seen=SEEN_AT - timedelta(hours=1))


async def test_consumers_are_listed_whether_present_or_gone_and_an_empty_list_says_why() -> None:
    async with one_tab(ConsumersTab, connections=[conn()], size=(160, 48)) as shown:
        consumers = Consumers(
            QUEUE, SEEN_AT, (NIGHT, PUSHER), {"sessions": "no right to see others"}
        )
        shown.tab.show_error(RefusedError("Could not look."))
        await shown.show(SampledConsumers(consumers, (DEPARTED,)))
        head = shown.text_of("#consumers-head")
        assert "1 consumer, 1 producer seen   1 gone in the last day" in head
        assert "Not visible: no right to see others" in shown.text_of("#consumers-head")
        shown.shows("night␛ shift", "pops", "5.0 s", "≈12.5", "≈4", "2 h", "10.0.0.4, worker")
        shown.shows("day shift", "03-29 01:14:07")
        await shown.press("G", "a", "g", "a", "j", "a")
        assert "no row says who pushed it" in shown.text_of("#consumers-detail")
        assert shown.navigator.calls == [
            ("actions", KEY, "state=claimed", "claimed_by=night\x1b shift")
        ], "who has left or has no claims has nothing to act on"
        # The cursor stays on its row, whoever comes and goes.
        await shown.show(
            SampledConsumers(replace(consumers, consumers=(PUSHER,)), (NIGHT, DEPARTED))
        )
        assert shown.tab.table.row is not None
        assert shown.tab.table.row.consumer is PUSHER
        await shown.resize(80, 24)
        await shown.show(SampledConsumers(Consumers(QUEUE, SEEN_AT), None))
        assert "No session seen yet" in shown.text_of("#consumers-head")
        assert "gone: ? (not recorded)" in shown.text_of("#consumers-head")
        await shown.show(SampledConsumers(Consumers(QUEUE, SEEN_AT, (NIGHT,)), ()))
        shown.shows("night␛ shift", "last pop", "msg/s", "claims")
        # Only its claims are left: the list shows it as gone, and so it counts.
        left = replace(NIGHT, sessions=0)
        for gone, words in (
            ((), "1 gone in the last day"),
            ((DEPARTED,), "2 gone in the last day"),
            ((replace(NIGHT, program="worker"),), "1 gone in the last day"),
            (None, "gone: 1 and ? (not recorded)"),
        ):
            await shown.show(SampledConsumers(Consumers(QUEUE, SEEN_AT, (left,)), gone))
            assert words in shown.text_of("#consumers-head")


async def test_stuck_errors_and_consumers_are_shown_on_a_server(
    database: Database, database_url: str
) -> None:
    with connect(database_url) as taker:
        make(database, "mail", "claim", {})
        make(database, "letters", "fifo", {})
        here, letters = [OpenConnection("prod", database)], ("prod", "public", "letters")
        async with one_tab(StuckTab, connections=here) as claims:
            claims.tab.poll()
            await claims.until(lambda: claims.tab.result is not None)
            assert "3 claims" in claims.text_of("#stuck-head")
            table = claims.tab.table
            assert {row["who"].text for row in map(table.cells, table.keys)} == {"tester"}
        async with one_tab(ErrorsTab, connections=here) as errors:
            tab = errors.tab
            tab.poll()
            await errors.until(lambda: tab.result is not None)
            assert "4 errors in 1 group" in errors.text_of("#errors-head")
            await errors.press("enter")
            await errors.until(lambda: len(tab.pane.table.keys) == 4)
            assert tab.is_open
            await errors.press("x", "a")
            (call,) = errors.navigator.calls
            assert call[:2] == ("actions", KEY)
            assert [word.partition("=")[0] for word in call[2:]] == ["id"]
            await errors.press("escape", "escape")
            assert (tab.pane.display, tab.table.has_focus) == (False, True)
        taker.execute("BEGIN")
        taker.execute("SELECT * FROM letters_pop()")
        async with one_tab(StuckTab, key=letters, connections=here) as holders:
            holders.tab.poll()
            await holders.until(lambda: holders.tab.result is not None)
            assert "1 session holds rows" in holders.text_of("#stuck-head")
            await holders.press("a")
            assert holders.navigator.calls[0][2] == ("session", str(taker.info.backend_pid))
        taker.execute("COMMIT")
        async with one_tab(ConsumersTab, key=letters, connections=here) as consumers:
            taker.execute("SELECT * FROM letters_pop()")
            consumers.tab.poll()
            await consumers.until(lambda: consumers.tab.result is not None)
            (consumer,) = consumers.tab.result.now.consumers if consumers.tab.result else ()
            assert (consumer.does, consumer.sessions) == (("pop",), 1)
            taker.execute("SELECT 1")  # its last statement is no longer about the queue
            before = consumers.tab.result
            consumers.tab.reload()
            await consumers.until(lambda: consumers.tab.result is not before)
            (consumer,) = consumers.tab.result.now.consumers if consumers.tab.result else ()
            assert consumer.does == ("pop",), "it remembers whom it has seen"
