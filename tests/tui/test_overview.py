"""The first screen, key by key, on fake feeds."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from textual.widgets import Input

from console.catalog import Acting
from console.errors import ConnectionFailedError
from console.monitor.latency import Latency, Percentiles
from console.monitor.limits import Limits, Thresholds, ThresholdsOf
from console.monitor.sample import SessionsUsed
from console.monitor.sampler import Reading
from console.rights import ConnectionRights, Login, Rights
from console.tui.widgets.summary import KeyFooter
from tests.tui.feeds import BEHIND, broken, nine_queues, queue
from tests.tui.opened import opened
from tests.tui.test_findings import diagnosis, show_diagnoses
from tests.tui.test_lists import exported

pytestmark = pytest.mark.slow


async def test_the_overview_says_that_it_is_connecting_until_the_first_sample() -> None:
    async with opened(banner="demo", rights="admin") as console:
        assert "connecting" in console.text_of("#connections")
        assert "Searching for queues" in console.text_of("#empty")
        assert "all clear" not in console.picture
        await console.give(*nine_queues(), production=True)
        assert console.order[:3] == ["mail", "orders", "reports"]
        assert console.row("mail") == {
            "state": "!",
            "queue": "mail",
            "design": "claim",
            "ready": "≈12 k",
            "age": "9 min 01 s",
            "gap": "·",
            "stuck": "14",
            "errors": "6",
        }
        assert console.row("imports")["age"] == "?"
        assert "4 ms" in console.text_of("#connections")
        # All of them are visible at 80 by 24.
        for snapshot in nine_queues():
            assert f" {snapshot.queue} " in console.picture
        assert "? help" in console.picture


async def test_a_wide_screen_shows_every_column_and_a_narrow_one_hides_some() -> None:
    async with opened(size=(160, 48)) as console:
        await console.give(*nine_queues())
        row = console.row("orders")
        assert (row["push"], row["pop"], row["claimed"]) == ("812.0", "640.2", "·")
        assert row["full_in"] == "≈3.4 s"
        assert row["trend"].endswith("█")
        assert console.row("billing")["full_in"] == "·"
        await console.press("j", "j")
        await console.resize(80, 24)
        assert "trend" not in console.row("mail")
        assert console.row("mail")["errors"] == "6"
        await console.resize(160, 48)
        assert console.row("mail")["push"] == "51.3"
        assert console.cursor == "reports"


READER = Login(*[False] * 7)
WRITER = replace(READER, writes=True)


def read_only(login: Login | None) -> str:
    return ConnectionRights(Rights.READ_ONLY, login).words


async def test_production_and_a_read_only_session_of_a_login_that_can_write_are_shown() -> None:
    async with opened(rights={"prod-orders": read_only}) as console:
        assert "read-only" in console.text_of("#connections")
        assert "PRODUCTION" not in console.text_of("#connections")
        for columns, login in product((80, 160), (READER, WRITER)):
            await console.resize(columns, 24)
            console.feed.give(*nine_queues(), production=True, login=login)
            await console.pilot.pause()
            first, *below = console.text_of("#connections").splitlines()
            assert "read-only" in first
            assert "PRODUCTION" in first
            has_warning = login is WRITER
            assert len(below) == (has_warning and columns == 80)
            assert ("by this session only" in console.picture) == has_warning
            for snapshot in nine_queues():
                assert f" {snapshot.queue} " in console.picture
        await console.give(production=False)
        assert "PRODUCTION" not in console.text_of("#connections")


async def test_the_line_of_a_connection_says_what_its_server_is() -> None:
    async with opened(rights={"prod-orders": read_only}, size=(160, 48)) as console:

        async def line_of(**server: Any) -> str:
            reading = Reading("prod-orders", tuple(nine_queues()), latency_seconds=0.004, **server)
            console.feed.deliver(reading)
            await console.pilot.pause()
            return console.text_of("#connections")

        some = SessionsUsed(17, 97)
        assert "primary, 17 of 97 sessions, not pooled" in await line_of(sessions=some)
        assert "? of 97 sessions, pooled" in await line_of(
            sessions=SessionsUsed(None, 97), pooled=True
        )
        assert " old" not in console.picture
        for columns in (160, 80):
            await console.resize(columns, 48)
            behind = await line_of(sessions=some, standby=BEHIND)
            first = behind.splitlines()[0]
            assert "STANDBY 5 min behind" in first
            assert "read-only" in first
            words = "standby of db1:5432, 5 min behind, replay is paused, 17 of 97 sessions"
            assert words in behind
        assert "mail · 5 min" in console.picture, "figures carry their age"
        await console.press("enter")
        console.shows("STANDBY 5 min behind", "its server is a standby, figures are 5 min old")
        await console.press("escape")
        current = replace(BEHIND, paused=False, lag_seconds=0.0)
        await line_of(sessions=some, standby=current)
        await console.until(lambda: "STANDBY  4 ms" in console.text_of("#connections"))
        assert " old" not in console.picture
        promoted = await line_of(sessions=some, taken_at=5.0, promoted_at=5.0)
        assert "STANDBY" not in promoted
        assert "primary, promoted " in promoted
        (said,) = [notification.message for notification in console.app._notifications]
        assert said == "prod-orders was a standby and is a primary now."


async def test_each_connection_has_its_own_limits() -> None:
    nothing = Thresholds(300.0)
    low = nothing.with_limits(depth=Limits(5, 10))
    thresholds: dict[str, ThresholdsOf] = {"a": lambda name: low if name == "q" else nothing}
    async with opened("a", "b", size=(160, 24), thresholds=thresholds) as console:
        for feed in console.feeds:
            feed.give(queue("q", ready=7), queue("r", ready=7, errors=10))
        await console.pilot.pause()
        states = {name: console.row(name)["state"] for name in console.order}
    assert states == {"a › q": "!", "a › r": " ", "b › q": " ", "b › r": "!"}  # noqa: RUF001


async def test_u_switches_from_utc_to_the_machines_own_zone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "<here>-03:30")
    time.tzset()
    try:
        async with opened() as console:
            assert "02:14:07 UTC" in console.text_of("#connections")
            await console.press("u")
            assert "05:44:07 +03:30" in console.text_of("#connections")
    finally:
        monkeypatch.undo()
        time.tzset()


async def test_production_is_shown_beside_a_name_of_any_length() -> None:
    async with opened("a-host-of-a-very-long-name/database") as console:
        await console.give(production=True)
        for columns in (80, 60, 50):
            await console.resize(columns, 24)
            assert " PRODUCTION " in console.picture


async def test_a_database_without_queues_says_how_to_install_one() -> None:
    async with opened() as console:
        await console.give()
        assert "dbq-console install" in console.text_of("#empty")
        await console.press("j", "s", "slash", "x", "enter", "escape", "space", "space")
        await console.give(queue("first"))
        assert console.order == ["first"]
        assert console.cursor == "first"


async def test_a_lost_connection_makes_its_rows_stale_and_the_others_continue() -> None:
    async with opened("prod", "audit", size=(160, 48)) as console:
        await console.give(queue("orders", ready=1))
        console.feeds[1].give(queue("trail", ready=7))
        await console.pilot.pause()
        console.feeds[1].fail(retry_seconds=8)
        console.clock.now += 14
        await console.give(queue("orders", ready=2))
        assert "audit  lost 14 s, again now" in console.text_of("#connections")
        assert "connection refused" in console.text_of("#connections")
        assert console.row("prod › orders")["ready"] == "2"  # noqa: RUF001
        stale = console.row("audit › trail · 14 s old")  # noqa: RUF001
        assert (stale["state"], stale["ready"]) == ("✖", "7")
        assert "1 stale" in console.text_of("#summary")

        console.feeds[1].give(queue("trail", ready=8))
        await console.pilot.pause()
        assert console.row("audit › trail")["ready"] == "8"  # noqa: RUF001
        assert "stale" not in console.text_of("#summary")


async def test_a_connection_that_never_answered_says_so() -> None:
    async with opened() as console:
        console.feed.fail(ConnectionFailedError("Could not look.", why="no such host"))
        console.clock.now += 3
        await console.press("r")
        console.overview.draw()
        words = console.text_of("#connections")
        assert "no connection 3 s, again in 5 s" in words
        assert "no such host" in words
        assert "keeps trying" in console.text_of("#empty")


async def test_keys_move_the_cursor_and_sort_and_a_click_on_a_header_sorts() -> None:
    async with opened() as console:
        await console.give(*nine_queues())
        top = console.order
        for keys, at in (("j", 1), ("down", 2), ("k", 1), ("G", 8), ("up", 7), ("g", 0)):
            await console.press(keys)
            assert console.cursor == top[at], keys
            assert f"public.{top[at]}" in console.text_of("#detail")
        await console.press("end", "pageup")
        assert console.cursor == top[0]
        sorted_by = []
        for _ in range(8):
            sorted_by.append(console.table.sort_column.name)
            await console.press("s")
        assert sorted_by == ["state", "queue", "design", "ready", "age", "gap", "stuck", "errors"]
        assert console.table.sort_column.name == "state"
        await console.press("s")
        assert console.order == sorted(snapshot.queue for snapshot in nine_queues())
        assert "by name ▲" in console.text_of("#summary")
        await console.press("S")
        assert console.order == sorted((snapshot.queue for snapshot in nine_queues()), reverse=True)
        await console.pilot.click(console.table, offset=(40, 0))
        await console.pilot.pause()
        assert console.table.sort_column.name == "ready"
        assert console.order[0] == "mail"


async def test_the_filter_applies_at_every_letter_and_enter_keeps_it() -> None:
    async with opened() as console:
        await console.give(*nine_queues())
        await console.press("slash", *"re")
        assert set(console.order) == {"reports", "reminders"}
        await console.press("p", "enter")
        assert console.order == ["reports"]
        assert console.app.focused is console.table
        assert "1 of 9 match rep" in console.text_of("#summary")
        await console.give(*nine_queues()[:3])
        assert console.order == []
        assert "No queue matches" in console.text_of("#empty")
        await console.press("escape")
        assert len(console.order) == 3
        # Letters that are keys elsewhere are only letters here.
        await console.press("slash", *"srq/ ?+-jG")
        line = console.overview.query_one("#filter", Input)
        assert line.value == "srq/ ?+-jG"
        assert console.feed.samples_requested == 0
        assert console.table.sort_column.name == "state"
        await console.press("escape")
        assert (line.display, line.value) == (False, "")
        assert len(console.order) == 3
        # So are letters typed right after the slash, until Enter.
        for key in ("slash", "m", "a", "enter", "space"):
            console.app.simulate_key(key)
        await console.pilot.pause()
        await console.pilot.pause()
        assert console.order == ["mail"]
        assert "FROZEN" in console.text_of("#summary")


async def test_space_freezes_the_screen_but_not_the_sampling() -> None:
    async with opened() as console:
        await console.give(queue("q", ready=1))
        await console.press("space")
        console.clock.now += 9
        await console.give(queue("q", ready=5))
        assert console.row("q")["ready"] == "1"
        assert "FROZEN 9 s" in console.text_of("#summary")
        await console.press("s", "slash", "q", "enter")
        assert console.row("q")["ready"] == "1"
        await console.press("space")
        assert console.row("q")["ready"] == "5"
        assert "FROZEN" not in console.text_of("#summary")
        # A click on a key at the bottom presses it.
        keys = console.overview.query_one(KeyFooter)
        at = keys.render_line(0).text.index("freeze")
        await console.pilot.hover(KeyFooter, offset=(at, 0))
        assert keys.tooltip == "freeze the screen; sampling goes on"
        await console.pilot.click(KeyFooter, offset=(at, 0))
        await console.pilot.pause()
        assert console.overview.paused_at is not None


async def test_keys_switch_the_zone_sample_at_once_and_change_the_interval_within_limits() -> None:
    async with opened("a", "b", zone=ZoneInfo("Asia/Kathmandu")) as console:
        for _ in range(2):
            assert "07:59:07 +05:45" in console.text_of("#connections")
            await console.press("u")
            assert "02:14:07 UTC" in console.text_of("#connections")
            await console.press("u")
        await console.press("r")
        assert [feed.samples_requested for feed in console.feeds] == [1, 1]
        await console.press("plus")
        assert console.feed.interval_seconds == 2
        assert "every 2 s" in console.text_of("#connections")
        await console.press(*["plus"] * 9)
        assert console.feed.interval_seconds == 60
        await console.press(*["minus"] * 9)
        assert console.feed.interval_seconds == 0.5
        assert console.feed.samples_requested > 1


async def test_escape_goes_back_one_level_at_a_time_and_never_quits() -> None:
    async with opened() as console:
        await console.give(*nine_queues())
        await console.press("slash", "m", "enter", "question_mark")
        assert console.has_help_open()
        await console.press("escape")
        assert not console.has_help_open()
        assert len(console.order) < 9
        await console.press("q")
        assert len(console.order) == 9
        await console.press("escape", "q", "escape")
        assert console.app.is_running
        assert "Ctrl-Q quits" in console.text_of("#summary")


@pytest.mark.parametrize("before", [(), ("slash", "m"), ("question_mark",)])
async def test_ctrl_q_quits_from_anywhere(before: tuple[str, ...]) -> None:
    async with opened() as console:
        await console.give(*nine_queues())
        await console.press(*before)
        await console.pilot.press("ctrl+q")
        assert not console.app.is_running or console.app._exit
    assert console.feed.stopped


async def test_help_scrolls_in_a_small_terminal_and_figures_update_below_it() -> None:
    async with opened() as console:
        await console.give(queue("q", ready=1))
        await console.press("question_mark")
        assert "an estimate" not in console.picture
        await console.give(queue("q", ready=2))
        assert console.row("q")["ready"] == "2"
        console.app.screen.query_one("#help").scroll_to(y=25, animate=False)
        await console.press(*["j"] * 5)
        assert "an estimate" in console.picture
        await console.press("question_mark")
        assert not console.has_help_open()


async def test_readings_come_from_other_threads_and_are_dropped_after_the_end() -> None:
    async with opened() as console:
        threads = [
            threading.Thread(target=console.feed.give, args=(queue("q", ready=n),))
            for n in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        await console.pilot.pause()
        assert console.order == ["q"]
    late = threading.Thread(target=console.feed.give, args=(queue("q"),))
    late.start()
    late.join()


async def test_a_dropped_queue_leaves_the_cursor_on_the_row_that_moved_up() -> None:
    async with opened() as console:
        await console.give(queue("a"), queue("b"), queue("c"))
        await console.press("j")
        await console.give(queue("a"), queue("c"))
        assert console.cursor == "c"
        await console.give(queue("a"))
        assert console.cursor == "a"
        assert "public.a" in console.text_of("#detail")


async def test_new_rows_above_the_cursor_do_not_move_it_and_hidden_rows_are_up_to_date() -> None:
    async with opened() as console:
        names = [f"q{number:03}" for number in range(0, 200, 2)]
        await console.give(*(queue(name, ready=1) for name in names))
        await console.give(*(queue(name, ready=2) for name in names))
        await console.press("G", *["k"] * 5)
        lines = [line for line in console.picture.splitlines() if " q19" in line]
        assert len(lines) == 5
        assert all(" 2 " in line for line in lines)
        line = console.table.cursor_row - console.table.scroll_offset.y
        await console.give(*map(queue, ["p1", "p2", "p3", *names]))
        await console.pilot.pause()
        assert console.cursor == names[-6]
        assert console.table.cursor_row - console.table.scroll_offset.y == line


async def test_keys_act_on_the_queue_or_the_finding_under_the_cursor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[object, ...]] = []

    def record(name: str) -> Callable[..., None]:
        return lambda *given: calls.append((name, *given))

    async with opened("prod", "stage") as console:
        names = ("open_queue", "open_actions", "open_waits", "open_audit", "open_install")
        for name in (*names, "open_connections", "examine"):
            monkeypatch.setattr(console.app, name, record(name))
        await console.give(queue("orders"))
        console.feeds[1].give(queue("mail", errors=10))
        await console.pilot.pause()
        await console.press("G", "enter", "a", "d", "D", "w", "A", "i", "c")
        orders, mail = ("prod", "public", "orders"), ("stage", "public", "mail")
        assert calls == [
            ("open_queue", orders),
            ("open_actions", orders),
            ("examine", orders),
            ("examine",),
            ("open_waits", "prod"),
            ("open_audit", "prod"),
            ("open_install", "prod"),
            ("open_connections",),
        ]
        assert "the doctor is examining" in console.text_of("#summary")
        calls.clear()
        await console.press("tab", "a", "d", "w")
        assert calls == [("open_actions", mail), ("examine", mail), ("open_waits", "stage")]


async def test_a_row_and_the_line_below_show_actions_holders_waiting_times_and_errors() -> None:
    """Who acts on it, what sessions hold, how long messages wait, why it cannot be sampled."""
    acting = Acting("public", "mail", "requeue", "ann@etl01", "u", "pid=1 start=x", 64.0, 9, 4)
    waiting = Latency(Percentiles(0.1, 0.4, 2.0), Percentiles(unknown="it is deleted"))
    async with opened(size=(160, 48)) as console:
        await console.give(
            queue("bills", holders=3),
            queue("mail", "claim", acting=(acting,), latency=waiting),
            broken("secret", "fifo", "permission denied for table secret"),
        )
        assert console.cursor == "secret"
        row = console.row("secret")
        assert (row["state"], row["ready"], row["age"]) == ("!", "?", "?")
        assert "permission denied" in console.text_of("#detail")
        assert console.row("bills")["claimed"] == "3 held"
        assert "mail » requeue by ann@etl01, 1 min 04 s" in console.picture
        await console.press("G")
        assert "  waiting p95 400 ms" in console.text_of("#detail")
        assert "processing" not in console.text_of("#detail")
        await console.resize(80, 24)
        assert "mail » requeue" in console.picture


async def test_rows_stay_where_they_are_while_the_operator_is_reading() -> None:
    """As findings come and go; five seconds after the last key there is a new order."""
    names = ("alpha", "bravo", "carol", "delta")
    fine = [queue(name, "claim", stuck=0, errors=0) for name in names]
    bad = [*fine[:3], queue("delta", "claim", stuck=14, errors=0)]
    async with opened() as console:
        await console.give(*fine)
        assert console.order == [*names]
        await console.press("j", "j")
        top = console.table.region.y
        await console.give(*bad)
        assert console.row("delta")["state"] == "!"
        assert (console.order, console.cursor) == ([*names], "carol")
        assert console.table.region.y == top, "the findings above take no line from it either"
        assert "! 1 warning  Tab ↓1" in console.text_of("#summary")
        console.clock.now += 4
        await console.give(*bad, queue("echo", "claim", stuck=14))
        assert console.order == [*names, "echo"]
        console.clock.now += 2
        await console.give(*bad)
        assert (console.order[0], console.cursor) == ("delta", "carol")
        assert console.table.region.y > top


async def test_a_queue_that_is_full_soon_is_not_all_clear() -> None:
    figures = {"push_per_second": 812.0, "pop_per_second": 0.0, "capacity": 10_000}
    filling = queue("orders", "ring", ready=6_000, gap=6_000, **figures)
    async with opened() as console:
        console.app.context.store.expect_doctor("prod-orders")
        await console.give(filling)
        await show_diagnoses(console, diagnosis("orders"))
        assert "no findings, but orders is full in ≈4.9 s" in console.text_of("#summary")
        assert "all clear" not in console.picture
        console.app.open_queue(("prod-orders", "public", "orders"), "findings")
        await console.until(lambda: "Nothing found" in console.picture)
        assert "all clear" not in console.picture.lower()
        assert "But it is full in ≈4.9 s" in console.picture


async def test_the_queues_that_match_are_exported_and_a_name_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with opened("a") as console:
        console.feed.give(*(replace(snapshot, connection="a") for snapshot in nine_queues()))
        await console.pilot.pause()
        await console.press("slash", *"mail", "enter", "y", "E")
        assert console.app.clipboard == "public.mail"
        notes = console.app._notifications
        await console.until(
            lambda: any("1 row in" in notification.message for notification in notes)
        )
        (row,) = exported(tmp_path)
        assert (row["connection"], row["queue"], row["design"]) == ("a", "mail", "claim")
        assert (row["ready"], row["stuck"], row["gap"]) == ("≈12 k", "14", "·")
