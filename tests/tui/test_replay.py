"""The console on a recording: it shows what was recorded, and allows no action."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console import tui
from console.errors import UsageError
from console.features.history.points import NothingRecordedError
from console.features.history.recordings.player import (
    SPEEDS,
    Player,
    Replay,
    moment_of,
    open_replay,
)
from console.features.history.recordings.replay_app import ReplayApp
from console.features.history.recordings.seek import SeekDialog
from console.features.lake.screens import open_job
from console.features.presets.screens import open_adopt
from console.tui.findings import QueueKey
from console.tui.screens.overview import OverviewScreen
from console.tui.screens.queue import QueueScreen
from console.tui.series import SPANS
from tests.cli.calls import call
from tests.tui.feeds import BEGIN, BEHIND, RecordedConnection, queue
from tests.tui.opened import Running, threads_ended
from tests.tui.test_terminal import on_terminal, quit_at_once

pytestmark = pytest.mark.slow

PRAGUE = ZoneInfo("Europe/Prague")
MAIL = ("prod", "public", "mail")


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten minutes: idle at first, a second queue from 300 s, a finding from 360 to 480 s."""
    root = tmp_path_factory.mktemp("recordings")
    recorded = RecordedConnection(root)
    for second in range(0, 300, 5):
        recorded.sample(second, queue("mail", "claim", ready=1, errors=0), next_seconds=5.0)
    for second in range(300, 601):
        mail = queue("mail", "claim", ready=second, errors=0)
        recorded.sample(second, mail, queue("late", ready=7))
    for second in range(0, 601, 60):
        recorded.add_findings(second, "mail", ["claims_odd"] if 360 <= second < 480 else [])
    recorded.close()
    return root


@dataclass
class Played(Running):
    now: list[float]
    key: QueueKey = MAIL

    @property
    def at(self) -> float:
        replay = self.app.context.replay
        assert isinstance(replay, Replay)
        return (replay.player.at - BEGIN).total_seconds()

    def ready(self) -> int | None:
        store = self.app.context.store
        found = {view.key: view for view in store.queues(self.app.context.clock.monotonic())}
        return found[self.key].snapshot.ready if self.key in found else None

    async def reaches(self, seconds: float) -> None:
        await self.until(lambda: self.at == seconds and self.app.context.replay)
        await self.until(lambda: self.ready() is not None)

    async def plays(self, seconds: float) -> None:
        """Let this many seconds pass on the viewer's clock."""
        for _ in range(round(seconds * 2)):
            before = self.at
            self.now[0] += 0.5
            await self.until(partial(self._is_after, before))

    def _is_after(self, seconds: float) -> bool:
        return self.at > seconds


@asynccontextmanager
async def played(
    root: Path, at: str, size: tuple[int, int] = (80, 24), key: QueueKey = MAIL, **how: Any
) -> AsyncIterator[Played]:
    now = [0.0]
    replay = open_replay(root, at, UTC, lambda: now[0])
    app = ReplayApp(replay, **how)
    async with app.run_test(size=size) as pilot:
        found = Played(pilot, now, key)
        await found.until(lambda: found.ready() is not None)
        yield found
    threads_ended()


async def test_a_replay_shows_the_recorded_state_and_continues_to_the_end(recording: Path) -> None:
    async with played(recording, "01:07:30") as console:
        console.shows(
            "REPLAY ▶ 1x · 2026-03-29 01:07:30 UTC",
            "recorded 2026-03-29 01:00:00",
            "claims_odd it is",
        )
        assert console.ready() == 450
        await console.plays(3)
        assert (console.at, console.ready()) == (453, 453)
        await console.pilot.press("right_curly_bracket")
        await console.plays(1)
        assert (console.at, console.ready()) == (455, 455)
        await console.pilot.press("space")
        console.now[0] += 60
        await console.pilot.pause(0.3)
        assert console.at == 455
        assert "REPLAY ‖ 2x" in console.picture
        await console.pilot.press("full_stop", "full_stop", "greater_than_sign")
        await console.reaches(600)  # not beyond the end of the recording
        assert console.ready() == 600
        assert "REPLAY ■ end" in console.picture
        assert "claims_odd" not in console.picture


async def test_going_back_removes_later_queues_findings_and_figures(recording: Path) -> None:
    async with played(recording, "01:08:00") as console:
        assert {key[2] for key in _keys(console)} == {"mail", "late"}
        await console.pilot.press("comma", "comma")
        await console.reaches(460)
        assert "claims_odd it is" in console.picture
        await console.pilot.press("less_than_sign")
        await console.reaches(160)
        assert {key[2] for key in _keys(console)} == {"mail"}
        assert "claims_odd" not in console.picture
        series = console.app.context.store.series
        (run,) = series.runs(MAIL, "ready", SPANS[0], console.app.context.clock.monotonic())
        assert {value for _, value in run} == {1.0}, "something of later, or nothing of before"
        assert len(run) == 33, "an idle queue has gaps"


async def test_a_replay_says_where_a_server_was_a_standby(tmp_path: Path) -> None:
    recorded = RecordedConnection(tmp_path)
    current = replace(BEHIND, paused=False, receives=True, lag_seconds=0.0)
    for second in range(90):
        standby = BEHIND if second < 30 else current if second < 60 else None
        recorded.sample(second, queue("mail", ready=second), standby=standby)
    recorded.close()
    async with played(tmp_path, "01:00:20", (160, 48)) as console:
        console.shows("STANDBY 5 min behind", "standby of db1:5432, 5 min behind, replay is paused")
        assert "mail · 5 min" in console.picture, "figures carry their age"
        for _ in range(2):
            await console.pilot.press("full_stop")
        await console.reaches(40)
        assert "standby of db1:5432, caught up" in console.picture
        assert " behind" not in console.picture
        assert " old" not in console.picture
        for _ in range(3):
            await console.pilot.press("full_stop")
        await console.reaches(70)
        assert "STANDBY" not in console.picture
        assert "standby" not in console.picture


def _keys(console: Played) -> set[tuple[str, str, str]]:
    now = console.app.context.clock.monotonic()
    return {view.key for view in console.app.context.store.queues(now)}


async def test_a_connection_that_was_not_recorded_is_not_shown_as_lost(tmp_path: Path) -> None:
    """One was closed on purpose while the console continued with another; one had failed."""
    for name, last in (("closed", 60), ("prod", 600)):
        recorded = RecordedConnection(tmp_path, name)
        for second in range(0, last + 1, 5):
            recorded.sample(second, queue("mail", "claim", ready=1, errors=0), next_seconds=5.0)
        recorded.close()
    failed = RecordedConnection(tmp_path, "failed")
    failed.fail(0, "Could not look.")
    failed.close()
    async with played(tmp_path, "01:07:00", (160, 48)) as console:
        console.shows("closed  not recorded for 6 m", "failed  not recorded yet")
        assert "no answer" not in console.picture
        views = console.app.context.store.queues(console.app.context.clock.monotonic())
        assert [view.stale_seconds for view in views] == [360, None]
        assert console.app.context.store.findings(console.app.context.clock.monotonic()) == ()


async def test_a_replay_groups_the_connections_of_a_fleet(tmp_path: Path) -> None:
    """Whether it is configured here or not; many connections start folded, as in a live console."""
    names = [f"shops/host{number}" for number in range(9)]
    for name in (*names, "odd/one"):
        recorded = RecordedConnection(tmp_path, name)
        for second in (0, 30, 60, 90):
            recorded.sample(
                second, queue("mail", ready=2), queue("bills", ready=3), next_seconds=30.0
            )
        recorded.close()
    key = (names[0], "public", "mail")
    async with played(tmp_path, "01:01", (160, 48), key) as console:
        await console.until(lambda: "▾ shops: 9 connections, 18 queues" in console.picture)
        lines = [line.strip() for line in console.picture.splitlines()]
        assert any("odd/one: 2 queues" in line for line in lines)
        assert sum("▸ host" in line for line in lines) == 9
        assert any("▾ shops" in line and " 45 " in line for line in lines)
        await console.pilot.press("z", "z")  # only the groups
        await console.until(lambda: "▸ shops: 9 connections" in console.picture)
    profiles = {name: "eu" if name < "shops/host4" else "us" for name in names}
    async with played(tmp_path, "01:01", (160, 48), key, groups=profiles) as console:
        await console.until(lambda: "eu: 4 connections, 8 queues" in console.picture)
        assert "us: 5 connections, 10 queues" in console.picture


async def test_a_replay_goes_to_a_time_that_is_typed(recording: Path) -> None:
    async with played(recording, "01:01") as console:
        await console.pilot.press("at", *"01:20", "enter")
        assert console.is_at(SeekDialog)
        assert "Nothing is recorded at 2026-03-29 01:20:00 UTC" in console.picture
        await console.pilot.press(*["backspace"] * 5, *"1:05", "enter")
        await console.reaches(300)
        assert console.is_at(OverviewScreen)


async def test_a_replay_allows_no_action_and_names_what_was_not_recorded(recording: Path) -> None:
    async with played(recording, "01:07") as console:
        app = console.app
        openers: tuple[Callable[[], None], ...] = (
            lambda: app.open_actions(MAIL),
            lambda: app.open_action(MAIL, "purge"),
            lambda: app.open_waits("prod"),
            lambda: app.open_audit("prod"),
            lambda: app.open_install("prod"),
            lambda: open_adopt(app.context, "prod"),
            lambda: app.open_smoke(MAIL),
            lambda: app.run_command("runs"),
            lambda: app.run_command("bench nowhere"),
            lambda: open_job(app.context, "archive", MAIL),
            lambda: app.run_command("pipeline rollup"),
            lambda: app.open_message(MAIL, "1"),
            lambda: app.open_planned(MAIL, "release", {}),
            lambda: app.open_list("consumers", MAIL),
            lambda: app.examine(MAIL),
        )
        for open_it in openers:
            before = len(app._notifications)
            open_it()
            await console.pilot.pause()
            assert isinstance(app.screen, OverviewScreen)
            assert len(app._notifications) == before + 1
            assert "recording" in [*app._notifications][-1].message
        app.open_queue(MAIL, "messages")
        await console.until(lambda: "A recording has no messages" in console.picture)
        screen = app.screen
        assert isinstance(screen, QueueScreen)
        for index, tab in enumerate(screen._tabs):
            await screen.action_tab(index)
            await console.pilot.pause()
            if tab.NAME not in {"findings", "history", "timeline", "why"}:
                words = "has no slots" if tab.NAME == "slots" else "A recording has no"
                assert words in console.picture
        screen.show_tab("history")
        await console.until(lambda: "ready up to 420" in console.picture)
        assert "claims_odd" in console.picture


@given(
    st.lists(st.floats(-1e6, 1e6) | st.none(), max_size=20),
    st.lists(st.sampled_from([-1, 1]), max_size=20),
)
def test_a_player_never_leaves_its_recording(skips: list[float | None], steps: list[int]) -> None:
    last = BEGIN + timedelta(hours=1)
    now = [0.0]
    player = Player(BEGIN, BEGIN, last, lambda: now[0])
    for step in steps:
        player.change_speed(step)
        assert player.speed in SPEEDS
    for seconds in skips:
        if seconds is None:
            now[0] += 0.5
            player.advance_to(player.next_at)
        else:
            player.skip(seconds)
            assert player.target is not None
            player.arrive(player.target)
            assert player.target is None
        assert BEGIN <= player.at <= last


def at(day: int, hour: int, minute: int = 0) -> datetime:
    return datetime(2026, 3, day, hour, minute, tzinfo=UTC)


def test_a_time_without_a_date_is_the_last_one_in_the_recording() -> None:
    for text, zone, moment in (
        ("03:00", UTC, at(30, 3)),
        ("3:00:00", UTC, at(30, 3)),
        ("23:00", UTC, at(29, 23)),
        ("2026-03-29T03:00", UTC, at(29, 3)),
        ("2026-03-29 03:00", PRAGUE, at(29, 1)),
        ("2026-03-29T03:00-02:00", PRAGUE, at(29, 5)),
        ("04:00", PRAGUE, at(30, 2)),
    ):
        assert moment_of(text, at(28, 22), at(30, 10), zone) == moment
    for text in ("", "03", "noon", "25:00", "2026-13-01", "1:2:3:4"):
        with pytest.raises(UsageError, match="is not a time"):
            moment_of(text, at(28, 22), at(30, 10), UTC)


def test_a_replay_needs_a_recording_at_its_time(tmp_path: Path, recording: Path) -> None:
    with pytest.raises(UsageError, match="There is no folder"):
        open_replay(tmp_path / "nowhere", None, UTC, float)
    with pytest.raises(NothingRecordedError, match="Nothing is recorded in"):
        open_replay(tmp_path, None, UTC, float)
    with pytest.raises(
        NothingRecordedError, match="goes from 2026-03-29 01:00:00 UTC to"
    ) as caught:
        open_replay(recording, "2026-03-30T01:00", UTC, float)
    assert caught.value.exit_status == 1
    assert open_replay(recording, None, UTC, float).player.at == BEGIN


@pytest.mark.long
def test_a_replay_plays_in_a_terminal(recording: Path) -> None:
    words = ["-m", "console.cli", "--replay", str(recording), "--at", "01:07"]
    console = on_terminal(words)
    console.expect("REPLAY")
    console.expect("claims_odd it is")
    quit_at_once(console)


def test_wrong_options_of_a_replay_are_reported_before_anything_is_drawn(
    recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words, message in (
        (["--at", "03:00"], "--at goes with --replay"),
        (["--replay", str(recording), "designs"], "not for verbs"),
        (["--replay", str(recording), "--url", "postgresql://me@h/d"], "--url does not go with"),
    ):
        call(*words).failed(2, message)
    monkeypatch.setattr(tui, "require_terminal", lambda: None)
    call("--replay", str(recording), "--at", "12:00").failed(1, "Nothing is recorded at")
