"""Many connections: groups with totals, folded and unfolded, and hosts that do not answer."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from console.config import load
from console.engines import open_database
from console.errors import ConnectionFailedError
from console.monitor.snapshot import QueueSnapshot
from console.tui import app_on
from console.tui.open_connection import OpenConnection
from console.tui.text import sparkline
from console.tui.views import Link
from tests.servers.postgresql import CopiedServer
from tests.tui.feeds import queue
from tests.tui.fleet import NAME, Fleet, fleet_on
from tests.tui.opened import Opened, opened, threads_ended

pytestmark = pytest.mark.slow

NOBODY = "postgresql+psycopg://u@127.0.0.1:1/d"


def connections(*names: str) -> list[OpenConnection]:
    """`shops/a` is in the group `shops`, `a` in none."""
    return [
        OpenConnection(name, open_database(NOBODY, label=name), group=name.rpartition("/")[0])
        for name in names
    ]


@asynccontextmanager
async def grouped(*names: str, size: tuple[int, int] = (160, 48)) -> AsyncIterator[Opened]:
    """A console on feeds of these names that starts grouped."""
    async with opened(*names, size=size, connections=connections(*names), by_group=True) as console:
        yield console


async def test_a_group_totals_the_connections_that_answer_and_counts_them() -> None:
    async with grouped("shops/a", "shops/b", "shops/c") as console:
        assert console.order[0] == "▾ shops: 0 of 3 connections, 0 queues"
        assert console.row(console.order[0])["ready"] == "?"
        ring = queue("r", "ring", ready=1, gap=4, capacity=9, age_seconds=30.0)
        await console.give(queue("q", "claim", ready=2, stuck=1, errors=3, age_seconds=9.0), ring)
        console.feeds[1].give(queue("q", ready=5, age_seconds=90.0))
        await console.pilot.pause()
        assert console.order == [
            "▾ shops: 2 of 3 connections, 3 queues",
            "  ▸ a: 2 queues",
            "  ▸ b: 1 queue",
            "  ▸ c: connecting",
        ]
        row = console.row(console.order[0])
        assert (row["ready"], row["age"], row["gap"]) == ("8", "1 min 30 s", "4")
        assert (row["stuck"], row["errors"]) == ("1", "3")
        console.feeds[1].fail(ConnectionFailedError("Could not sample.", why="it is silent"))
        await console.pilot.pause()
        console.clock.now += 7
        await console.give(queue("q", "claim", ready=2), ring)
        # The worst is first; one that does not answer adds nothing, and keeps its old figures.
        assert console.order[:2] == [
            "▾ shops: 1 of 3 connections, 2 queues",
            "  ▸ b: lost 7 s, again in 1 s: it is silent",
        ]
        assert console.row(console.order[0])["ready"] == "3"
        assert console.row(console.order[1])["ready"] == "5"
        assert "2 of 3 connections" not in console.picture
        # Lines of connections have no design, and leave its room to the others.
        assert "design" not in console.row(console.order[1])
        await console.press("z")
        assert console.row(console.order[1])["design"] == ""


async def test_a_lost_host_keeps_its_name_on_a_narrow_terminal_and_the_detail_says_why() -> None:
    names = ("shops/berlin-03", "shops/db-hamburg-17.example", "shops/c")
    async with grouped(*names, size=(80, 24)) as console:
        for feed in console.feeds:
            feed.give(queue("q"))
        await console.pilot.pause()
        assert console.text_of("#detail").startswith("shops  all of them answer")
        for feed in console.feeds[:2]:
            feed.fail(ConnectionFailedError("Could not sample.", why="it is silent"))
        await console.pilot.pause()
        console.clock.now += 67
        console.feeds[2].give(queue("q"))
        await console.pilot.pause()
        assert console.order == [
            "▾ shops: 1 of 3 connections",
            "  ▸ berlin-03: lost",
            "  ▸ db-hamburg-17.example",
            "  ▸ c: 1 queue",
        ]
        assert "no answer: berlin-03, db-hamburg-17.example" in console.text_of("#detail")
        await console.press("j", "j")
        head = console.text_of("#detail").splitlines()[0]
        assert head == "shops/db-hamburg-17.example  Could not sample. it is silent"


async def test_a_folded_row_has_the_trend_of_all_and_the_first_ring_to_be_full() -> None:
    async with grouped("shops/a", "shops/b", "shops/c", size=(200, 48)) as console:
        filling = ring("fills", gap=40, push_per_second=1.0)  # 60 slots left, one a second
        later = ring("later", gap=10, push_per_second=1.0)
        for ready in (10, 20, 30):
            console.feeds[0].give(queue("p", ready=ready), later)
            if ready != 20:  # sampled half as often
                console.feeds[1].give(queue("q", ready=40 - ready), filling)
            await console.pilot.pause()
            console.clock.now += 5
        both, one, other, dead = (line(console, title) for title in ("shops", "a", "b", "c"))
        trends = [row["trend"].lstrip() for row in (both, one, other)]
        assert trends == [*map(sparkline, ([40, 50, 40], [10, 20, 30], [30, 30, 10]))]
        assert dead["trend"].strip() == ""
        times = [row["full_in"] for row in (both, one, other, dead)]
        assert times == ["≈1 min", "≈1 min 30 s", "≈1 min", "?"]
        # One ring is unknown: the estimate is an upper limit.
        blind = ring("blind", gap=None, unknown=("gap",))
        console.feeds[1].give(filling, blind)
        await console.pilot.pause()
        assert line(console, "shops")["full_in"] == "≤1 min"
        console.feeds[0].give(queue("p"))
        console.feeds[1].give(ring("idle", gap=1))
        await console.pilot.pause()
        times = [line(console, title)["full_in"] for title in ("shops", "a", "b", "c")]
        assert times == ["not filling", "", "not filling", "?"]
        # A total without the unknown figures is a lower limit.
        unknown = queue("h", "heap", ready=2, gap=None, unknown=("age_seconds", "gap"))
        silent = ring("r", ready=None, gap=4, unknown=("ready",))
        await console.give(unknown, queue("q", ready=3, age_seconds=60.0), silent)
        row = line(console, "a")
        assert (row["ready"], row["age"], row["gap"]) == ("≥5", "≥1 min", "?")


async def test_a_missing_sample_is_a_gap_in_the_trend_of_all() -> None:
    async with grouped("shops/a", "shops/b", size=(200, 48)) as console:
        for at in range(6):
            console.feeds[0].give(queue("p", ready=5))
            if at in {0, 5}:
                console.feeds[1].give(queue("q", ready=5))
            await console.pilot.pause()
            console.clock.now += 5
        trend = line(console, "shops")["trend"]
        assert trend.lstrip() == sparkline([10, 10, 10, None, None, 10])


def line(console: Opened, title: str) -> dict[str, str]:
    """The cells of the row of a group or of a connection."""
    (name,) = (name for name in console.order if name.lstrip(" ▸▾").startswith(f"{title}:"))
    return console.row(name)


def ring(name: str, **figures: Any) -> QueueSnapshot:
    rates = {"push_per_second": 0.0, "pop_per_second": 0.0, "capacity": 100}
    return queue(name, "ring", **{"ready": None, **rates, **figures})


async def test_folding_keeps_the_cursor_on_its_key() -> None:
    names = ("mail/x", "shops/a", "shops/b")
    async with grouped(*names) as console:
        for feed in console.feeds:
            feed.give(queue("p"), queue("q"))
        await console.pilot.pause()
        await console.press("j", "j", "j", "enter")
        assert console.order[3:6] == ["  ▾ a: 2 queues", "    p", "    q"]
        await console.press("j", "j")
        assert console.table.queue_key == ("shops/a", "public", "q")
        await console.press("z")  # all unfolded
        assert console.table.queue_key == ("shops/a", "public", "q")
        await console.press("z")  # only the groups
        assert console.order == [
            "▸ mail: 1 connection, 2 queues",
            "▸ shops: 2 connections, 4 queues",
        ]
        assert console.table.group is not None
        assert console.table.group.title == "shops"
        await console.press("z")
        assert len(console.order) == 5
        assert console.table.group.title == "shops"
        await console.press("v")
        assert len(console.order) == 6


async def test_rows_that_match_a_filter_are_shown_in_folded_groups() -> None:
    async with grouped("shops/a", "shops/b", "shops/c") as console:
        await console.give(queue("mail"), queue("bills", errors=2))
        console.feeds[1].give(queue("mail"))
        await console.pilot.pause()
        await console.press("slash", *"bills", "enter")
        assert console.order == [
            "▾ shops: 2 of 3 connections, 1 queue",
            "  ▾ a: 1 queue",
            "    bills",
        ]
        assert "1 of 3 match bills" in console.text_of("#summary")
        await console.press("escape", "slash", *"/c", "enter")
        assert console.order[1:] == ["  ▾ c: connecting"]
        await console.press("escape")
        assert len(console.order) == 4


async def test_a_group_takes_no_action_and_forms_name_the_connection_and_the_queue() -> None:
    async with grouped("shops/a", "shops/b") as console:
        for feed in console.feeds:
            feed.give(queue("mail", "claim", errors=2))
        await console.pilot.pause()
        depth = len(console.app.screen_stack)
        for key in "adwBio":
            await console.press(key)
            assert "first" in console.text_of("#summary"), key
            assert len(console.app.screen_stack) == depth
        await console.press("j", "w")
        assert console.app.screen.connection == "shops/a"  # type: ignore[attr-defined]
        await console.press("escape", "z", "G", "a")
        assert "Actions on public.mail on shops/b" in console.picture
        await console.press("escape")
        key_ = console.table.queue_key
        assert key_ == ("shops/b", "public", "mail")
        console.app.open_action(key_, "requeue")
        await console.pilot.pause()
        assert "requeue public.mail on shops/b" in console.picture


async def test_of_many_connections_the_worst_or_the_screens_own_is_shown() -> None:
    names = [f"shops/{number}" for number in range(12)]
    async with grouped(*names) as console:
        for feed in console.feeds:
            feed.give(queue("mail"), production=feed.name == "shops/7")
        console.feeds[3].fail()
        await console.until(lambda: "PRODUCTION among them" in console.picture)
        first, second = console.text_of("#connections").splitlines()
        assert "shops/3  lost" in first  # the worst
        assert "+ 11 more connections, all of them answer" in second
        console.app.open_queue(("shops/7", "public", "mail"))
        others = "+ 11 more connections, 1 of them do not answer"
        await console.until(lambda: others in console.picture)
        first, second, *_ = console.picture.splitlines()
        assert "shops/7" in first
        assert "PRODUCTION " in first
        assert others in second


@asynccontextmanager
async def on_fleet(fleet: Fleet) -> AsyncIterator[Opened]:
    """A console that samples all hosts often."""
    profiles = load({**fleet.environment, "DBQ_INTERVAL": "0.5s"}).in_fleet(NAME)
    app = app_on(profiles, config_path=None, by_group=True)
    async with app.run_test(size=(160, 48)) as pilot:
        yield Opened(pilot)
    threads_ended()


@pytest.mark.long
@pytest.mark.parametrize(
    ("hosts", "queues", "silent"), [(6, 3, 2), pytest.param(60, 20, 20, marks=pytest.mark.long)]
)
async def test_hosts_that_fall_silent_do_not_delay_the_others(
    tmp_path: Path, hosts: int, queues: int, silent: int
) -> None:
    with (
        CopiedServer.start(settings={"max_connections": "400"}) as server,
        fleet_on([server.url], tmp_path, hosts, queues) as fleet,
    ):
        async with on_fleet(fleet) as console:
            await console.until(lambda: head(console).startswith(f"▾ {NAME}: {hosts} conn"))
            for proxy in fleet.proxies[-silent:]:
                proxy.freeze()
            dead = {f"{NAME}/{fleet.title(index)}" for index in range(hosts - silent, hosts)}
            remaining = (
                f"{hosts - silent} of {hosts} connections, {(hosts - silent) * queues:,} queues"
            )
            await console.until(
                lambda: remaining in head(console) and not_answering(console) == dead
            )
            # Hosts that do not answer are first, and say since when.
            for words in console.order[1 : 1 + silent]:
                assert "no answer" in words or "lost" in words
            await console.press("g", "j", "j")
            assert console.table.cursor_row == 2
            # The others are sampled as before.
            before = console.row(head(console))["ready"]
            fleet.push(0)
            await console.until(lambda: console.row(head(console))["ready"] != before)
            await console.until(lambda: not_answering(console) == dead)
            for proxy in fleet.proxies[-silent:]:
                proxy.thaw()
            await console.press("r")
            await console.until(lambda: not not_answering(console))
            await console.until(lambda: head(console).startswith(f"▾ {NAME}: {hosts} conn"))


def head(console: Opened) -> str:
    """The title of the group's row."""
    return console.order[0]


def not_answering(console: Opened) -> set[str]:
    store = console.app.context.store
    views = store.connections(console.app.context.clock.monotonic())
    return {
        connection_view.name for connection_view in views if connection_view.link is not Link.ALIVE
    }


async def test_queues_are_grouped_by_connection_with_totals() -> None:
    async with opened("prod", "stage", size=(160, 48)) as console:
        await console.give(queue("a", ready=2), queue("b", ready=3, unknown=("age_seconds",)))
        console.feeds[1].give(queue("c", ready=None, unknown=("ready",)))
        await console.pilot.pause()
        await console.press("s", "j", "v")
        assert console.cursor == "b"
        assert console.order == ["▾ prod: 2 queues", "  a", "  b", "▾ stage: 1 queue", "  c"]
        assert console.row("▾ prod: 2 queues")["ready"] == "5"
        assert console.row("▾ prod: 2 queues")["push"] == "8.0"
        assert console.row("▾ stage: 1 queue")["ready"] == "?"
        await console.press("k", "k")
        assert console.cursor == ""
        await console.press("a")
        assert "choose a queue" in console.text_of("#summary")
        await console.press("v")
        assert len(console.order) == 3


async def test_a_host_that_is_connecting_is_not_said_to_give_no_answer() -> None:
    async with grouped("shops/a", "shops/b", size=(120, 40)) as console:
        console.feeds[0].give(queue("q"))
        await console.pilot.pause()
        assert console.text_of("#detail").splitlines()[0].split() == ["shops", "connecting"]
