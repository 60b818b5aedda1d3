"""A paused queue: its pops find nothing, nobody meets an error, resume puts back what was; and who
is told of it."""

import itertools
import os
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from console import decisions
from console.actions import pause
from console.actions.upgrade import differences, upgrade
from console.designs import DESIGNS
from console.doctor.decisions import OVERDUE, UNDONE
from console.doctor.diagnose import diagnose
from console.doctor.finding import Diagnosis
from console.doctor.stopped_consumers import ConsumptionHistory
from console.engines import Database
from console.errors import RefusedError, UsageError
from console.metrics.exporter import ConnectionState, families
from console.monitor.limits import DEFAULTS, Limits
from console.monitor.sample import take_sample
from console.monitor.sampler import Reading
from console.monitor.snapshot import QueueSnapshot, snapshot
from console.rights import Rights
from console.verbs import get_verb
from console.verbs.verb import Target
from tests.cli.calls import call
from tests.contract.client import Client
from tests.contract.installs import installed
from tests.contract.traffic import at_work
from tests.contract.variants import Variant, default
from tests.servers import connect, value, wait_until
from tests.warm import Forked

HOW = ("ring", "fifo", "claim")
"""By number, by deletion, by claim: how a pop takes a message."""


def made(database: Database, design: str, *, name: str = "q", **options: str) -> Client:
    return installed(database, Variant(DESIGNS[design], options), name)


def code(client: Client) -> list[tuple[str, str, str, str]]:
    """Every function of the schema: its text, owner and rights."""
    with connect(client.url) as connection:
        return connection.execute(
            "SELECT oid::regprocedure::text, pg_get_functiondef(oid), proowner::regrole::text,"
            " proacl::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace ORDER BY 1"
        ).fetchall()


def stop(client: Client, seconds: float | None = None, *, push: bool = False) -> None:
    pause.pause(client.database, client.queue, reason="bad release", seconds=seconds, push=push)


def test_pops_of_a_paused_queue_are_empty_and_resume_restores_the_code(
    new_database: Database,
) -> None:
    for design in sorted(DESIGNS.keys() - {"broker"}):
        client = made(new_database, design, name=design, **default(design).given)
        before = code(client)
        client.push_many(client.payloads(*range(3)))
        stop(client)
        assert client.pop() is None
        assert client.pop_many(5) == []
        with connect(client.url) as connection:
            for call_of in ("pop()", "pop_many(3)"):
                taken = connection.execute(f"SELECT * FROM {design}_{call_of}".encode())
                assert taken.fetchall() == []
        assert client.push(client.payload(3)) is not None
        assert differences(new_database, client.queue) == []
        with pytest.raises(UsageError, match="paused already"):
            stop(client)
        pause.resume(new_database, client.queue)
        assert code(client) == before
        assert len(client.drain()) == 4
        with pytest.raises(UsageError, match="not paused"):
            pause.resume(new_database, client.queue)


def test_pushes_to_a_ring_can_be_paused(new_database: Database) -> None:
    client = made(new_database, "ring", size="10")
    before = code(client)
    stop(client, push=True)
    assert client.push(client.payload(0)) is None
    assert client.push_many(client.payloads(0, 1)) == [None, None]
    pause.resume(new_database, client.queue)
    assert code(client) == before
    assert client.push(client.payload(0)) is not None
    other = Target(new_database, Variant(DESIGNS["fifo"], {}).queue("public", "f", "postgresql"))
    with pytest.raises(UsageError, match="lose it"):
        get_verb("pause").plan(
            Target(new_database, other.queue, Rights.ADMIN),
            {"reason": None, "for": None, "push": True},
        )


def test_an_upgrade_keeps_the_pause_whatever_was_changed_meanwhile(new_database: Database) -> None:
    """Resume puts back the shipped code: of what was modified locally before, of what somebody
    replaced meanwhile, which it does not overwrite by itself, and of what somebody dropped."""
    client = made(new_database, "fifo")
    shipped = code(client)
    client.push(client.payload(0))
    text = {name: text for name, text, *_ in shipped}["q_pop()"]
    changed = text.replace("BEGIN", "BEGIN\n    -- of ours", 1)

    def upgraded(before: str, under: str) -> None:
        with connect(client.url) as connection:
            connection.execute(before.encode())
            stop(client)
            connection.execute(under.encode())
        if under == changed:
            with pytest.raises(RefusedError, match="has replaced q_pop"):
                pause.resume(new_database, client.queue)
            with new_database.transaction("read", read_only=True) as connection_:
                assert pause.replaced_functions(connection_, client.queue) == ["q_pop"]
        assert [one.name for one in differences(new_database, client.queue)] == ["q_pop"]
        upgrade(new_database, client.queue)
        assert differences(new_database, client.queue) == []
        assert client.pop() is None
        pause.resume(new_database, client.queue)
        assert code(client) == shipped

    for before, under in ((changed, ""), ("", changed), ("", "DROP FUNCTION public.q_pop")):
        upgraded(before, under)
    assert client.pop() is not None


def test_verbs_that_add_messages_are_refused_while_paused(new_database: Database) -> None:
    client = made(new_database, "fifo")
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
def test_pauses_under_traffic_cause_no_error_and_lose_no_message(
    new_database: Database, design: str, long: bool
) -> None:
    """Paused and resumed again and again under producers that ignore what push returns, consumers,
    transactions that stay open, upgrades, and consoles killed somewhere in the exchange."""
    client = made(new_database, design)
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
            upgrade(new_database, client.queue)
            pause.resume(new_database, client.queue)
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
        paused = decisions.find(connection, "pause", client.queue.schema, client.queue.name)
    if paused is not None:
        pause.resume(client.database, client.queue)


def test_a_console_killed_while_pausing_has_changed_nothing(new_database: Database) -> None:
    """The exchange is one transaction: cut off before its commit, nothing of it is there."""
    client = made(new_database, "fifo")
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


@pytest.fixture
def orders(new_database: Database) -> Client:
    """A queue with three messages."""
    client = made(new_database, "fifo", name="orders")
    client.push_many(client.payloads(*range(3)))
    return client


def examined(orders: Client) -> Diagnosis:
    (found,) = diagnose(
        orders.database, [orders.queue], consumption=ConsumptionHistory(0.0, waits=False)
    )
    return found


def test_a_sample_contains_the_decisions_about_a_queue(orders: Client) -> None:
    """Short and whole words, and JSON; nothing of it once it is taken back."""
    stop(orders, 7200.0)
    get_verb("protect").plan(
        Target(orders.database, orders.queue, Rights.ADMIN), {"reason": "audit"}
    ).run_to_end()
    sample = take_sample(orders.database)
    seen = snapshot(sample.queues[0], "c")
    paused = seen.paused
    assert paused is not None
    assert paused.until is not None
    assert paused.until > paused.since + timedelta(hours=1)
    who = paused.operator.partition("@")[0]
    assert paused.mark(paused.since + timedelta(minutes=12)) == f"PAUSED 12 min, {who}"
    assert [one.split()[0] for one in seen.marks] == ["PAUSED", "PROTECTED"]
    assert paused.shown.startswith(f"PAUSED by {paused.operator} since ")
    assert paused.shown.endswith(": bad release")
    assert [one.kind for one in seen.decisions] == ["pause", "protection"]
    assert _paused(seen) == ["orders"]
    pause.resume(orders.database, orders.queue)
    resumed = snapshot(take_sample(orders.database).queues[0], "c")
    assert [one.kind for one in resumed.decisions] == ["protection"]
    assert _paused(resumed) == []


def _paused(seen: QueueSnapshot) -> list[str]:
    state = ConnectionState(Reading("c", queues=(seen,)), 1.0)
    (found,) = (one for one in families([state]) if one.name == "dbq_queue_paused")
    return [one.labels["queue"] for one in found.samples]


def test_status_and_report_show_the_pause(orders: Client) -> None:
    stop(orders)
    found = call("status", "--url", orders.url).out
    assert b"orders: PAUSED by" in found
    assert b"bad release" in found
    (queue,) = call("status", "--json", "--url", orders.url).json["queues"]
    (one,) = queue["decisions"]
    assert one.keys() == {"kind", "operator", "since", "until", "reason", "push"}
    assert (one["kind"], one["reason"], one["until"], one["push"]) == (
        *("pause", "bad release"),
        *(None, False),
    )
    text = call("report", "orders", "--idle-for", "0s", "--url", orders.url).out
    assert b"**PAUSED by" in text


def test_an_overdue_pause_is_a_finding_and_not_a_stopped_consumer(orders: Client) -> None:
    stop(orders, 3600.0)
    watch = ConsumptionHistory(0.0, waits=False)
    for _ in range(2):
        (found,) = diagnose(orders.database, [orders.queue], consumption=watch)
        assert {"consumer_stopped", OVERDUE.name}.isdisjoint(f.code.name for f in found.findings)
    with connect(orders.url) as connection:
        connection.execute("UPDATE dbq.pause SET until = paused_at - interval '1 second'")
    (one,) = [f for f in examined(orders).findings if f.code is OVERDUE]
    assert "3 ready" in one.summary
    assert one.cause == "bad release"
    assert one.repair is not None
    assert one.repair.command.startswith("dbq-console resume orders")
    one.repair.run(orders.database)
    assert OVERDUE not in [f.code for f in examined(orders).findings]
    assert len(orders.drain()) == 3


def test_a_limit_reached_during_a_pause_names_the_pause_as_the_cause(orders: Client) -> None:
    stop(orders)
    (found,) = diagnose(
        orders.database,
        [orders.queue],
        thresholds_of=lambda _: replace(DEFAULTS, depth=Limits(1)),
        consumption=ConsumptionHistory(0.0, waits=False),
    )
    (one,) = [f for f in found.findings if f.code.name == "limit_reached"]
    assert one.cause.startswith("it is paused by")
    assert "resume orders" in one.judgement


def test_a_function_replaced_during_a_pause_is_a_finding_that_upgrade_repairs(
    orders: Client,
) -> None:
    """Though somebody put the very code back that is shipped: it pops, and resume refused."""
    with connect(orders.url) as connection:
        read = "SELECT pg_get_functiondef('orders_pop'::regproc)"
        (text,) = connection.execute(read).fetchone() or ()
        stop(orders)
        connection.execute(text)
    (one,) = [f for f in examined(orders).findings if f.code is UNDONE]
    assert one.evidence["functions"] == ["orders_pop"]
    assert one.repair is not None
    assert one.repair.command.startswith("dbq-console upgrade orders")
    assert "code_changed" not in {f.code.name for f in examined(orders).findings}
    upgrade(orders.database, orders.queue)
    assert orders.pop() is None
    assert differences(orders.database, orders.queue) == []
    assert UNDONE not in [f.code for f in examined(orders).findings]
    pause.resume(orders.database, orders.queue)
    assert len(orders.drain()) == 3
