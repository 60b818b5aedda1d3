"""A smoke test on the screen: live, stopped, failed."""

import asyncio

import pytest

from console.actions import smoke
from console.actions.smoke_result import SmokeProgress, SmokeResult
from console.bench.call_log import Latency
from console.engines import open_database
from console.rights import Rights
from console.tui.open_connection import OpenConnection
from console.tui.screens.smoke import SmokeScreen, Trial
from tests.tui.alone import alone, conn, until
from tests.tui.test_terminal import install_queue


async def test_a_smoke_test_can_be_stopped_and_leaves_nothing(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smoke, "_MESSAGES_EACH", 100_000)
    database = open_database(database_url, label="prod")
    async with alone(connections=[OpenConnection("prod", database, Rights.ADMIN)]) as console:
        await asyncio.to_thread(install_queue, database_url, "orders")
        console.app.open_smoke(("prod", "public", "orders"))
        await console.pilot.pause()
        screen = console.app.screen
        assert isinstance(screen, SmokeScreen)
        await console.press("enter")
        await until(console, lambda: screen._trial is not None and screen._trial.progress)
        await console.press("t")
        await until(console, lambda: not screen.runs)
        await console.pilot.pause()
        assert "stopped" in console.picture
        with database.transaction("look", read_only=True) as connection:
            left = connection.exec_driver_sql(
                "SELECT count(*) FROM pg_class WHERE starts_with(relname, 'dbq_smoke_')"
            ).scalar_one()
        assert left == 0
    database.close()


async def test_what_a_smoke_test_found_wrong_is_said() -> None:
    async with alone(connections=[conn()]) as console:
        console.app.open_smoke(("prod", "public", "orders"))
        await console.pilot.pause()
        screen = console.app.screen
        assert isinstance(screen, SmokeScreen)
        trial = Trial()
        latency = Latency(1.0, 2.0, 3.0)
        trial.take(SmokeProgress(100, 40, 340, 2.0, latency, latency))
        trial.result = SmokeResult(
            "orders", "fifo", "lax", 340, 3, 0, 0, 0, 0, latency, latency, ("boom\x1b[31m",)
        )
        screen._trial = trial
        screen.draw()
        await console.pilot.pause()
        assert "NOT OK" in console.picture
        assert "lost          3" in console.picture
        assert "boom␛[31m" in console.picture
        assert "40 of 340" in console.picture


async def test_without_the_right_no_smoke_test_begins() -> None:
    async with alone(connections=[conn(rights=Rights.READ_ONLY)]) as console:
        console.app.open_smoke(("prod", "public", "orders"))
        await console.press("enter")
        await console.pilot.pause()
        assert "needs the right admin" in console.picture
        assert not console.app.context.running.all
