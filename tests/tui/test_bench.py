"""The bench on the screen: a complete run, stopped ones, and logins that may not start one."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from console.engines import open_database
from console.errors import ConnectionFailedError
from console.features.bench.action import BenchRequest, BenchStarted, RoundFinished
from console.features.bench.candidate import APPLICATION, PREFIX, Candidate, Load
from console.features.bench.rounds import RoundProgress
from console.features.bench.screens import open_bench
from console.features.bench.screens.bench import BenchScreen, report
from console.features.bench.screens.run import BenchRun, plan_lines
from console.features.bench.server import Environment
from console.load.call_log import Latency
from console.load.round_figures import RoundFigures, RoundVerdict
from console.rights import Rights
from console.tui.dialogs.dialog import CommandDialog
from console.tui.jobs import ActionRun
from console.tui.open_connection import OpenConnection, url_options
from console.tui.screens.form import Stage
from console.tui.text import TextView
from tests.servers import value
from tests.tui.feeds import FakeClock
from tests.tui.opened import Opened, alone, conn

pytestmark = pytest.mark.slow

SMALL = {"designs": "ring", "producers": "2", "consumers": "2", "seconds": "1", "warmup": "0"}
LEFTOVERS = (
    rf"SELECT count(*) FROM pg_class WHERE relname LIKE '{PREFIX}%'",
    rf"SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE '{APPLICATION}%'",
)
RING = Candidate("ring", "ring", 1, "")
FIFO = Candidate("fifo", "fifo", 10, "")
MS = Latency(1.0, 2.0, 3.0)
ROUND = RoundFigures(
    1000.0, MS, MS, MS, (1000.0,), RoundVerdict(1000, 1000, 0, 0, 0, 0, 0, 0), 0, 0, 0, 0, (),
    1.0, 1.0, 1000, 1000,
)  # fmt: skip
MACHINE = {"cores": 2, "cpu": "a CPU", "memory_gib": 4, "system": "Linux 6"}
ABOUT = Environment(
    MACHINE, {"engine": "PostgreSQL", "version": "18", "embedded": False}, {"fsync": "on"}, {},
    durable=True,
)  # fmt: skip


@asynccontextmanager
async def console_on(url: str, **more: Any) -> AsyncIterator[Opened]:
    """A console on one real database."""
    database = open_database(url, label="prod")
    there = OpenConnection(
        "prod", database, Rights.ADMIN, cli_options=url_options(database), **more
    )
    try:
        async with alone(connections=[there], size=(160, 48)) as console:
            yield console
    finally:
        database.close()


async def bench_at(console: Opened, **options: str) -> BenchScreen:
    return await console.opens(BenchScreen, open_bench, console.app.context, "prod", **options)


def written(path: Path) -> bool:
    return path.exists() and path.read_text().endswith("\n")


async def begin(console: Opened, screen: BenchScreen, word: str = "y") -> None:
    """Make the plan, check that nothing runs yet, and confirm."""
    await console.until(lambda: screen.stage is Stage.FORM)
    await console.press("enter")
    await console.until(lambda: screen.stage is Stage.PLAN)
    assert not screen.runs
    screen.query_one("#confirm", Input).value = word
    await console.press("enter")


def fake(clock: FakeClock) -> BenchRun:
    load = Load(seconds=10.0, warmup_seconds=0.0, rounds=2)
    return BenchRun(BenchRequest(), load, clock.clock.monotonic)


@pytest.mark.long  # here the form has made-up figures; a real bench is in tests/bench
async def test_a_real_bench_goes_from_the_form_to_a_report(
    database_url: str, tmp_path: Path
) -> None:
    async with console_on(database_url) as console:
        screen = await bench_at(console, **SMALL, rounds="1")
        await begin(console, screen)
        await console.until(lambda: screen.stage is Stage.RESULT)
        bench_run = screen._bench_run
        assert bench_run is not None
        assert bench_run.complete
        assert (bench_run.done, bench_run.total) == (1, 1)
        assert bench_run.points
        (result,) = bench_run.results
        assert result.ok
        assert result.messages_per_second.median > 0
        row = screen.table.cells("ring")
        assert row["rounds"].text == "1 of 1"
        assert row["rate"].text == f"{result.messages_per_second.median:,.0f}"
        popped = result.verdict["popped"]
        console.shows(
            f"{popped:,} messages checked: none lost, duplicated",
            "2 producers, 2 consumers, 300 bytes",
            "cores",
        )
        assert [value(database_url, query) for query in LEFTOVERS] == [0, 0]
        for ending, begins in ((".svg", "<svg "), (".json", '{"ran_on"')):
            path = tmp_path / f"bench{ending}"
            await console.press("w")
            screen.query_one("#bench-file", Input).value = str(path)
            await console.press("enter")
            await console.until(lambda: not screen.query_one("#bench-file").display)
            await console.until(partial(written, path))
            assert path.read_text().startswith(begins)
        assert json.loads(path.read_text())["results"][0]["popped"] == popped


async def test_escape_stops_a_bench_and_its_queue_is_dropped(database_url: str) -> None:
    async with console_on(database_url) as console:
        one = {"producers": "1", "consumers": "1", "seconds": "60"}
        screen = await bench_at(console, **{**SMALL, **one})
        await begin(console, screen)
        await console.until(lambda: screen._bench_run is not None and screen._bench_run.live)
        assert value(database_url, LEFTOVERS[0]) != 0
        assert "ring, round 1 of 3" in console.picture
        await console.press("escape")
        assert console.is_at(BenchScreen)
        await console.until(lambda: screen.stage is Stage.RESULT)
        await console.pilot.pause()
        assert "stopped after 0 rounds" in console.picture
        # Its sessions end a moment after their clients have closed.
        await console.until(lambda: [value(database_url, query) for query in LEFTOVERS] == [0, 0])
        await console.press("escape")
        assert not console.is_at(BenchScreen)


@pytest.mark.long
async def test_a_bench_leaves_nothing_when_the_console_ends(database_url: str) -> None:
    async with console_on(database_url) as console:
        screen = await bench_at(console, **{**SMALL, "seconds": "60"})
        await begin(console, screen)
        await console.until(lambda: screen._bench_run is not None and screen._bench_run.live)
        running = console.app.context.action_runs
    running.wait(lambda _: None)
    assert [value(database_url, query) for query in LEFTOVERS] == [0, 0]


async def test_invalid_values_are_reported_and_a_production_database_requires_its_name(
    database_url: str,
) -> None:
    async with console_on(database_url, production=True) as console:
        screen = await bench_at(console, **{**SMALL, "designs": "rign"})
        await console.until(lambda: screen.stage is Stage.FORM)
        await console.press("enter")
        await console.until(lambda: "rign" in screen.query_one("#problem", TextView).plain_text)
        assert screen.stage is Stage.FORM
        screen.form["designs"].value, right = "ring", screen.form.fields[4].value
        screen.form.fields[4].value = "1,x"
        await console.press("enter")
        await console.pilot.pause()
        assert "must be whole numbers, such as 1 or 1,10,100" in console.picture
        screen.form.fields[4].value = right
        await begin(console, screen)
        console.shows("'y' does not match", "PRODUCTION database")
        assert "uses all of the server's capacity" in " ".join(console.picture.split())
        await console.press("escape")
        assert screen.stage is Stage.FORM
        assert not console.app.context.action_runs.all


async def test_a_bench_without_the_right_has_no_form() -> None:
    async with alone(connections=[conn(rights=Rights.OPERATOR)]) as console:
        screen = await bench_at(console)
        await console.press("enter")
        assert screen.stage is Stage.NOTHING
        assert "eeds the right admin" in console.picture
        assert not console.app.context.action_runs.all


async def test_a_bench_shows_its_progress_and_its_errors() -> None:
    async with alone(connections=[conn()], size=(80, 24)) as console:
        bench_run = fake(console.clock)
        bench_run.on_event(BenchStarted(ABOUT, (RING, FIFO)))
        bench_run.on_event(RoundFinished(RING, ROUND))
        for second in range(3):
            console.clock.now += 1.0
            bench_run.on_event(RoundProgress(FIFO, 1, 2, second, 2000.0 + second, MS))
        screen_of = partial(BenchScreen.of_run, console.app.context)
        running = ActionRun(
            1, ("prod", "", "prod"), "bench", bench_run.work(conn()), 0.0, screen_of
        )
        console.app.context.action_runs._all = [running]
        screen = await bench_at(console)
        assert screen._bench_run is bench_run
        table = screen.table
        console.shows(
            "fifo x10, round 1 of 2; 1 of 4 rounds, about 0 s left",
            "messages/s 2,002   fifo x10, second 3",
        )
        now = table.cells("fifo x10")
        assert [now[name].text for name in ("mark", "rate", "rounds", "pop_p95")] == [
            *("▶", "2,002", "0 of 2", "2.00")
        ]
        assert table.cells("ring")["rounds"].text == "1 of 2"
        bad = replace(
            ROUND, verdict=RoundVerdict(1000, 999, 0, 1, 0, 0, 0, 0), errors=("a\x1b[31m",)
        )
        bench_run.on_event(RoundFinished(FIFO, bad))
        bench_run.ended_at = console.clock.now
        running.error = ConnectionFailedError("It is gone.", why="b\x1b[31m")
        running.finished.set()
        screen.update_progress()
        await console.pilot.pause()
        assert "NOT OK: fifo x10: 1,000 pushed, 999 popped, 0 left, 1 lost" in " ".join(
            console.picture.split()
        )
        assert "error: fifo x10: a␛[31m" in console.picture
        assert table.cells("fifo x10")["mark"].text == "✖"
        console.shows("✖ It is gone.", "b␛[31m")


def test_the_remaining_time_is_estimated_from_finished_rounds() -> None:
    clock = FakeClock()
    bench_run = fake(clock)
    assert bench_run.seconds_left() is None
    bench_run.on_event(BenchStarted(ABOUT, (RING, FIFO)))
    assert bench_run.next_round == (RING, 1)
    before = bench_run.seconds_left()
    assert before is not None
    assert before >= 4 * 10
    clock.now += 12.0
    bench_run.on_event(RoundFinished(RING, ROUND))
    assert bench_run.next_round == (FIFO, 1)
    assert bench_run.seconds_left() == pytest.approx(3 * 12.0)
    clock.now += 2.0
    assert bench_run.seconds_left() == pytest.approx(34.0)
    for candidate in (FIFO, RING, FIFO):
        bench_run.on_event(RoundFinished(candidate, ROUND))
    assert [bench_run.done, bench_run.next_round] == [4, None]
    assert report(bench_run, ".svg").startswith("<svg ")


async def test_the_equivalent_command_of_a_bench_has_the_forms_values() -> None:
    async with alone(connections=[conn()]) as console:
        screen = await bench_at(console, designs="ring,fifo", rounds="5", **{"held-xmin": "yes"})
        await console.until(lambda: screen.stage is Stage.FORM)
        await console.press("ctrl+o")
        dialog = console.on_top(CommandDialog)
        expected = "dbq-console bench --profile prod --designs ring,fifo --rounds 5 --held-xmin"
        assert dialog.command == expected


def test_a_bench_says_what_it_will_do() -> None:
    why = ["stack is left out: why"]
    lines = plan_lines("prod", ["ring", "fifo"], why, Load(held_xmin=True), production=False)
    assert "3 rounds of each: ring, fifo." in lines
    assert "stack is left out: why" in lines
    assert any("stays open" in line for line in lines)
    assert not any("PRODUCTION" in line for line in lines)
