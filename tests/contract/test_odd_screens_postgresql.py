"""Every screen of a queue that is full of odd values: nothing fails, values are shown as the
server writes them, and the list is sorted and filtered by them."""

import logging
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing

import pytest

from console.engines import open_database
from console.tui.screens.queue import TABS
from tests.cli.calls import Console
from tests.contract.test_odd_values_postgresql import CASES, FAR, console, create
from tests.servers import connect
from tests.tui import tour
from tests.tui.opened import Running

pytestmark = pytest.mark.slow

__all__ = ["console"]
WRONG = ("Could not", "Traceback", "unexpected", "cannot be sampled")


@asynccontextmanager
async def screen_of(console: Console) -> AsyncIterator[Running]:
    with closing(open_database(console.url)) as database:
        async with tour.console_on(database, size=(200, 40)) as running:
            yield running


def times_in(picture: str) -> list[str]:
    """The last time of each line, as far as it is an odd one."""
    matches = [
        re.search(f"  ({'|'.join(map(re.escape, FAR))}) *$", line) for line in picture.splitlines()
    ]
    return [match[1] for match in matches if match]


async def tour_of(console: Console, name: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What each screen shows."""
    pictures = []
    with caplog.at_level(logging.ERROR):
        async with screen_of(console) as running:

            async def seen(what: str) -> None:
                await running.until(tour.has_read)
                for bad in WRONG:
                    assert bad not in running.picture, f"{what}:\n{running.picture}"
                pictures.append(running.picture)

            key = (tour.HERE, "public", name)
            await seen("overview")
            await tour.queue_tour(running, key, seen)
            await tour.screens_tour(running, key, seen)
            await running.press("escape")
    assert not caplog.records
    assert len(pictures) == len(TABS) + len(tour.SCREENS) + 4
    return pictures


async def test_our_own_queue_with_odd_times(
    console: Console, caplog: pytest.LogCaptureFixture
) -> None:
    console.done("install", "pending", "shown")
    console.done("push", "shown", "-", "--lines", stdin=b"a\nb\nc\nd\n")
    with connect(console.url) as connection:
        for number, at in enumerate(FAR, 1):
            update = b"UPDATE shown SET due_time = %s, pushed_at = %s WHERE id = %s"
            connection.execute(update, [at, at, number])
    pictures = await tour_of(console, "shown", caplog)
    assert any("before the year 1 or after 9999" in picture for picture in pictures)
    order = [FAR[2], FAR[1], FAR[0], FAR[3]]
    async with screen_of(console) as running:

        async def lists(*times: str) -> None:
            await running.until(lambda: times_in(running.picture) == [*times])

        running.app.open_queue((tour.HERE, "public", "shown"), "messages")
        await lists(*order)
        await running.press("s")
        await lists(FAR[1], FAR[2], FAR[3], FAR[0])  # each state from its last message
        await running.press("s")
        for words, times in (("state=ready", order[:2]), ("state=scheduled", order[2:])):
            await running.press("slash", "ctrl+u", *words, "enter")
            await lists(*times)
        await running.press("slash", "ctrl+u", *"older=1h", "enter")
        await running.until(tour.has_read)
        assert FAR[1] in times_in(running.picture)
        assert FAR[3] not in times_in(running.picture)


@pytest.mark.long
@pytest.mark.parametrize(("design", "odd", "type_"), CASES, ids=str)
async def test_an_adopted_table_of_odd_values(
    console: Console, caplog: pytest.LogCaptureFixture, design: str, odd: Sequence[str], type_: str
) -> None:
    create(console, design, odd, type_)
    await tour_of(console, "odd", caplog)
