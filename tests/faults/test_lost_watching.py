"""Programs that keep running while their connection is lost, and recover: sampler, screens,
recorder, `status --watch`."""

import re
import threading
import time
from pathlib import Path
from typing import IO

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from console import clock
from console.engines import Timeouts
from console.monitor.sampler import Reading, Sampler
from console.tui.dialogs.verbs import VerbsDialog
from tests.cli.calls import Console
from tests.faults.harness.connections import LOSSES, proxied, unencrypted_url
from tests.faults.test_sampler import install_queues, push
from tests.servers import Server, connect, execute, fresh_database, wait_until
from tests.servers.proxy import Proxy
from tests.tui.opened import Opened
from tests.tui.test_faults import MAIL, current_queues, cursor, queues_on, wait_for_text, watching

HASTY = Timeouts(connect_seconds=2, statement_seconds=1.0, lock_seconds=0.2)


@pytest.fixture
def url(database_url: str) -> str:
    """A database with a ring and a fifo."""
    install_queues(database_url)
    return database_url


# The sampler.


SLEPT = 8 * 3600.0


@pytest.mark.long
def test_ages_and_rates_include_the_time_that_the_machine_slept(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the machine wakes up, figures and rates are eight hours old."""
    slept = 0.0
    ticking = clock.elapsed
    for module in ("monitor.sample", "monitor.sample_queries"):
        monkeypatch.setattr(f"console.{module}.elapsed", lambda: ticking() + slept)
    with proxied(url, HASTY) as (proxy, database):
        sampler = Sampler(database, timeouts=HASTY)
        sampler.sample()
        before = sampler.sample()
        assert all(queue.push_per_second == 0.0 for queue in before.queues)
        proxy.freeze()
        push(url, 3600)
        slept = SLEPT
        assert SLEPT <= ticking() + slept - (before.taken_at or 0.0) < SLEPT + 60.0
        asleep = sampler.sample()
        assert asleep.error is not None
        assert SLEPT <= ticking() + slept - (asleep.taken_at or 0.0) < SLEPT + 60.0
        proxy.thaw()
        awake = sampler.sample()
        assert awake.error is None
        assert ticking() + slept - (awake.taken_at or 0.0) < 60.0
        # After a failed sample the rate is unknown. Otherwise it is the mean of the night.
        assert all(queue.push_per_second is None for queue in awake.queues)
        push(url, 3600)
        slept += SLEPT
        rates = [queue.push_per_second for queue in sampler.sample().queues]
        assert all(rate is not None and rate <= 3600 / SLEPT for rate in rates), rates


def test_the_clock_of_ages_continues_while_the_machine_sleeps() -> None:
    if not hasattr(time, "CLOCK_BOOTTIME"):
        pytest.skip("another system's clock")
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= clock.elapsed() <= time.clock_gettime(time.CLOCK_BOOTTIME)


# The screens.


PRESSES = 5


@pytest.mark.parametrize("loss", ["cut", pytest.param("silent", marks=pytest.mark.long)])
async def test_screens_disable_verbs_during_a_loss_and_recover_by_themselves(
    database_url: str, loss: str
) -> None:
    with (
        queues_on(database_url) as (_, _message),
        proxied(database_url, HASTY) as (proxy, database),
    ):
        async with watching(database) as console:
            await wait_for_text(console, "orders")
            await console.press("j")
            before = cursor(console)
            began, proxy.accepted = time.monotonic(), 0
            with LOSSES[loss](proxy):
                await console.until(lambda: "lost" in console.picture)
                assert current_queues(console) == []
                console.app.open_actions(MAIL)
                await console.pilot.pause()
                await assert_verbs_disabled(console)
                await console.press("escape")
                # Repeated key presses do not cause a storm of connections.
                for _ in range(PRESSES):
                    await console.press("r")
                # The sampler at each key and at most once a second, the doctor, the dialog.
                assert proxy.accepted <= PRESSES + 1.5 * (time.monotonic() - began) + 4
                assert cursor(console) == before
            # It recovers without a key press.
            await console.until(lambda: len(current_queues(console)) == 2)
            await console.until(lambda: "lost" not in console.picture)
            assert cursor(console) == before
            assert proxy.connections <= 8


async def assert_verbs_disabled(console: Opened) -> None:
    """All verbs are shown and disabled."""
    dialog = console.on_top(VerbsDialog)
    assert all(one.why_not for one in getattr(dialog, "choices", ()))


# Programs that run unattended.


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBQ_INTERVAL", "0.2s")


class StreamLines:
    """The lines of a stream, read as they come."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        assert stream is not None
        self.lines: list[str] = []
        self._stream = stream
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._stream:
            self.lines += [line.decode()]

    def wait(self, pattern: str, after: int = 0) -> int:
        """Wait until a line after `after` matches; the number of lines so far."""

        def matched() -> bool:
            return any(re.search(pattern, line) for line in self.lines[after:])

        wait_until(matched, pattern)
        return len(self.lines)


@pytest.mark.long
@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("loss", list(LOSSES))
def test_status_watch_continues_after_a_loss(url: str, loss: str) -> None:
    words = ("status", "--watch", "--json")
    with (
        Proxy(url) as proxy,
        Console(unencrypted_url(proxy)).process(*words, unbuffered=True) as process,
    ):
        out, err = StreamLines(process.stdout), StreamLines(process.stderr)
        out.wait('"fifo"')
        with LOSSES[loss](proxy):
            err.wait("Could not")
        after = len(out.lines)
        out.wait('"fifo"', after)


@pytest.mark.long
@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("loss", list(LOSSES))
def test_a_recorder_continues_after_a_loss(url: str, tmp_path: Path, loss: str) -> None:
    words = ("record", "--recordings", str(tmp_path))
    with (
        Proxy(url) as proxy,
        Console(unencrypted_url(proxy)).process(*words, unbuffered=True) as process,
    ):
        err = StreamLines(process.stderr)
        err.wait("Recording")
        wait_until(lambda: any(tmp_path.rglob("*")), "something is recorded")
        with LOSSES[loss](proxy):
            err.wait("Could not")
        err.wait("recording again")


# Another server behind the same address.


def test_after_a_failover_the_figures_are_those_of_the_new_server(url: str, server: Server) -> None:
    """The address belongs to another server, then to the first one again."""
    with fresh_database(server.url) as other:
        execute(other, "CREATE TABLE x ()")
        push(url, 5)
        with proxied(url, HASTY) as (proxy, database):
            sampler = Sampler(database, timeouts=HASTY)
            first = sampler.sample()
            assert {queue.ready for queue in first.queues} == {5}
            with connect(server.url) as connection:
                names = [one.rpartition("/")[2] for one in (url, other)]
                proxy.cut()
                swap(connection, *names)
            assert sampled(sampler).queues == ()
            proxy.cut()
            with connect(server.url) as connection:
                swap(connection, *names)
            assert {queue.ready for queue in sampled(sampler).queues} == {5}


def sampled(sampler: Sampler) -> Reading:
    """The first sample without an error: a busy machine may need longer than its time limits."""
    errors = []
    for _ in range(10):
        reading: Reading = sampler.sample()
        if reading.error is None:
            return reading
        errors.append(reading.error)
    raise AssertionError(errors)


def swap(connection: psycopg.Connection, one: str, two: str) -> None:
    """Rename two databases into each other."""
    connection.execute(
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = ANY(%s)",
        [[one, two]],
    )
    spare = f"{one}_spare"
    for names in ((one, spare), (two, one), (spare, two)):
        rename = SQL("ALTER DATABASE {} RENAME TO {}")
        connection.execute(rename.format(*map(Identifier, names)))
