"""An open console on a standby: each screen says so, and a promotion is noticed."""

import re
from contextlib import closing

import pytest

from console.engines import open_database
from tests.servers.versions import LONG_VERSIONS, streaming
from tests.tui.test_faults import FEW, KINDS, queues_on, watching

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("version", LONG_VERSIONS)
async def test_each_screen_says_what_its_server_is_until_it_is_promoted(
    version: str, *, long: bool
) -> None:
    with (
        streaming(version) as pair,
        queues_on(pair.primary.url) as (_, message),
        closing(open_database(pair.standby.url)) as database,
    ):
        pair.caught_up()
        async with watching(database) as console:
            await console.until(lambda: "STANDBY" in console.picture)
            pair.standby.run("SELECT pg_wal_replay_pause()")
            await console.until(lambda: re.search(r"STANDBY (paused|.* behind)", console.picture))
            depth = len(console.app.screen_stack)
            for kind in KINDS:
                if long or kind.name in FEW:
                    kind.open(console.app, message)
                    await console.press("r", "j")
                    assert "STANDBY" in console.picture, kind.name
                    while len(console.app.screen_stack) > depth:
                        console.app.pop_screen()
                    await console.pilot.pause()
            pair.standby.run("SELECT pg_wal_replay_resume()")
            pair.standby.run("SELECT pg_promote()")
            await console.until(lambda: "STANDBY" not in console.picture)
            messages = [notification.message for notification in console.app._notifications]
            assert messages == ["here was a standby and is a primary now."]
            assert "primary, promoted" in console.picture
