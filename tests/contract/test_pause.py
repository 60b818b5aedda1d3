"""A paused queue: its pops find nothing, nobody meets an error, and resume puts back what was."""

import itertools
import os
import random
import time
from collections.abc import Iterator

import pytest

from console import decisions
from console.actions import pause
from console.actions.install import install
from console.actions.upgrade import differences, upgrade
from console.designs import DESIGNS
from console.engines import Database
from console.errors import RefusedError, UsageError
from console.rights import Rights
from console.verbs import named
from console.verbs.verb import Target
from tests.cli.calls import call
from tests.contract.client import Client
from tests.contract.traffic import at_work
from tests.contract.variants import Variant
from tests.servers import connect, value, wait_until
from tests.warm import Forked

HOW = ("ring", "fifo", "claim")
"""By number, by deletion, by claim: how a pop takes a message."""


def made(database: Database, design: str, **options: str) -> Client:
    client = Client(database, Variant(DESIGNS[design], options).queue("public", "q", "postgresql"))
    install(database, client.queue)
    return client


def code(client: Client) -> list[tuple[str, str, str, str]]:
    """Every function of the schema: its text, owner and rights."""
    with connect(client.url) as connection:
        return connection.execute(
            "SELECT oid::regprocedure::text, pg_get_functiondef(oid), proowner::regrole::text,"
            " proacl::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace ORDER BY 1"
        ).fetchall()


def stop(client: Client, *, push: bool = False) -> None:
    pause.pause(client.database, client.queue, reason="bad release", seconds=None, push=push)


@pytest.mark.parametrize("design", sorted(DESIGNS.keys() - {"broker"}))
def test_pops_find_nothing_and_resume_puts_back_every_byte(virgin: Database, design: str) -> None:
    client = made(virgin, design)
    before = code(client)
    client.push_many(client.payloads(*range(3)))
    stop(client)
    assert client.pop() is None
    assert client.pop_many(5) == []
    with connect(client.url) as connection:
        assert connection.execute("SELECT * FROM q_pop()").fetchall() == []
        assert connection.execute("SELECT * FROM q_pop_many(3)").fetchall() == []
    assert client.push(client.payload(3)) is not None
    assert differences(virgin, client.queue) == []
    with pytest.raises(UsageError, match="paused already"):
        stop(client)
    pause.resume(virgin, client.queue)
    assert code(client) == before
    assert len(client.drain()) == 4
    with pytest.raises(UsageError, match="not paused"):
        pause.resume(virgin, client.queue)


def test_a_ring_can_be_paused_at_its_push(virgin: Database) -> None:
    client = made(virgin, "ring", size="10")
    before = code(client)
    stop(client, push=True)
    assert client.push(client.payload(0)) is None
    assert client.push_many(client.payloads(0, 1)) == [None, None]
    pause.resume(virgin, client.queue)
    assert code(client) == before
    assert client.push(client.payload(0)) is not None
    other = Target(virgin, Variant(DESIGNS["fifo"], {}).queue("public", "f", "postgresql"))
    with pytest.raises(UsageError, match="lose it"):
        named("pause").plan(
            Target(virgin, other.queue, Rights.ADMIN), {"reason": None, "for": None, "push": True}
        )


def test_an_upgrade_keeps_the_pause(virgin: Database) -> None:
    """What was modified locally is replaced under it, and resume puts back the new code."""
    client = made(virgin, "fifo")
    shipped = code(client)
    client.push(client.payload(0))
    with connect(client.url) as connection:
        (text,) = connection.execute("SELECT pg_get_functiondef('q_pop'::regproc)").fetchone() or ()
        connection.execute(text.replace("BEGIN", "BEGIN\n    -- of ours", 1))
    stop(client)
    assert [one.name for one in differences(virgin, client.queue)] == ["q_pop"]
    upgrade(virgin, client.queue)
    assert differences(virgin, client.queue) == []
    assert client.pop() is None
    pause.resume(virgin, client.queue)
    assert code(client) == shipped
    assert client.pop() is not None


def test_what_somebody_replaced_under_the_pause_is_not_overwritten(virgin: Database) -> None:
    client = made(virgin, "fifo")
    shipped = {name: text for name, text, *_ in code(client)}
    stop(client)
    with connect(client.url) as connection:
        connection.execute(shipped["q_pop()"].replace("BEGIN", "BEGIN\n    -- a hot fix", 1))
    with pytest.raises(RefusedError, match="has replaced q_pop"):
        pause.resume(virgin, client.queue)
    with virgin.transaction("read", read_only=True) as connection:
        assert pause.undone(connection, client.queue) == ["q_pop"]
    assert [one.name for one in differences(virgin, client.queue)] == ["q_pop"]
    upgrade(virgin, client.queue)
    pause.resume(virgin, client.queue)
    assert {name: text for name, text, *_ in code(client)} == shipped


def test_what_somebody_dropped_under_the_pause_differs_and_upgrade_installs_it(
    virgin: Database,
) -> None:
    client = made(virgin, "fifo")
    before = code(client)
    stop(client)
    with connect(client.url) as connection:
        connection.execute("DROP FUNCTION public.q_pop")
    assert [one.name for one in differences(virgin, client.queue)] == ["q_pop"]
    upgrade(virgin, client.queue)
    assert client.pop() is None
    pause.resume(virgin, client.queue)
    assert code(client) == before


def test_what_brings_messages_is_refused(virgin: Database) -> None:
    client = made(virgin, "fifo")
    url = client.url
    client.push(client.payload(0))
    assert call("purge", "q", "--yes", "q", "--url", url).status == 0
    words = ("--reason", "bad release", "--for", "2h")
    assert call("pause", "q", *words, "--yes", "y", "--url", url).status != 0
    assert call("pause", "q", *words, "--yes", "q", "--url", url).status == 0
    for arguments in (("restore", "q", "--yes", "q"), ("smoke", "q", "--live")):
        found = call(*arguments, "--url", url)
        assert found.status == 4
        assert "bad release" in found.err
    assert call("pop", "q", "--url", url).status == 1
    assert call("resume", "q", "--yes", "--url", url).status == 0
    assert call("restore", "q", "--yes", "q", "--url", url).status == 0
    assert len(client.drain()) == 1


@pytest.mark.parametrize(
    "design", [pytest.param(name, marks=[pytest.mark.long] * (name != "ring")) for name in HOW]
)
def test_callers_at_work_meet_no_error(virgin: Database, design: str, long: bool) -> None:
    """Paused and resumed again and again under producers that ignore what push returns, consumers,
    transactions that stay open, upgrades, and consoles killed somewhere in the exchange."""
    client = made(virgin, design)
    before = code(client)
    callers, rounds = (16, 60) if long else (2, 2)
    popped: list[str] = []
    pushed: list[str] = []

    def produce(producer: int) -> Iterator[None]:
        with connect(client.url) as connection:
            for number in itertools.count():
                connection.execute("SELECT q_push(%s)", (f"{producer}:{number}",), prepare=True)
                pushed.append(f"{producer}:{number}")
                yield

    def consume() -> Iterator[None]:
        with connect(client.url) as connection:
            while True:
                rows = connection.execute("SELECT payload FROM q_pop_many(5)", prepare=True)
                popped.extend(payload for (payload,) in rows)
                yield

    def hold() -> Iterator[None]:
        """What it popped it gives back, or keeps, while pauses come and go."""
        # A ring's number is consumed for nothing by a pop that is rolled back: an orphan, no error.
        ends = ("COMMIT",) if design == "ring" else ("ROLLBACK", "COMMIT")
        with connect(client.url) as connection:
            for end in itertools.cycle(ends):
                connection.execute("BEGIN")
                taken = connection.execute("SELECT payload FROM q_pop_many(3)").fetchall()
                try:
                    yield
                    yield
                finally:
                    connection.execute(end)
                    popped.extend(payload for (payload,) in taken if end == "COMMIT")

    def wait_for_more(of: list[str]) -> None:
        had = len(of)
        wait_until(lambda: len(of) > had, "the callers get on")

    works = [produce(number) for number in range(callers)]
    works += [consume() for _ in range(callers)]
    dice = random.Random(callers)
    with at_work(*works, hold(), pause_seconds=0.01):
        for _ in range(rounds):
            wait_for_more(popped)
            _killed_somewhere(client, dice)
            stop(client)
            wait_for_more(pushed)
            upgrade(virgin, client.queue)
            pause.resume(virgin, client.queue)
    popped.extend(str(one.payload) for one in client.drain())
    assert sorted(popped) == sorted(pushed)
    assert code(client) == before


def _killed_somewhere(client: Client, dice: random.Random) -> None:
    """A console that pauses the queue, killed at any moment; what it may have done is undone."""
    words = ("pause", "q", "--yes", "q", "--url", client.url)
    there = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'dbq-console%'"
    had = value(client.url, there)
    with Forked(words, os.environ) as child:
        wait_until(
            lambda: value(client.url, there) != had or child.poll() is not None, "it has connected"
        )
        time.sleep(dice.random() * 0.3)  # nothing to wait for: anywhere in what it does
        child.kill()
    wait_until(lambda: value(client.url, there) == had, "its session is gone")
    with client.database.transaction("read", read_only=True) as connection:
        paused = decisions.of(connection, "pause", client.queue.schema, client.queue.name)
    if paused is not None:
        pause.resume(client.database, client.queue)


def test_a_console_killed_in_the_midst_has_paused_nothing(virgin: Database) -> None:
    """The exchange is one transaction: cut off before its commit, nothing of it is there."""
    client = made(virgin, "fifo")
    before = code(client)
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    with connect(client.url) as holder, holder.transaction():
        holder.execute("LOCK TABLE dbq.pause IN EXCLUSIVE MODE")  # its row comes after the exchange
        words = ("pause", "q", "--yes", "q", "--url", client.url)
        with Forked(words, os.environ) as child:
            wait_until(lambda: value(client.url, waiting) != 0, "the pause waits")
            child.kill()
    wait_until(lambda: value(client.url, waiting) == 0, "its session is gone")
    assert code(client) == before
    client.push(client.payload(0))
    assert client.pop() is not None
