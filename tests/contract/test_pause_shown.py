"""What a pause and a protection show: in a sample, in status and report, to the doctor."""

from dataclasses import replace
from datetime import timedelta

from console.actions import pause
from console.actions.install import install
from console.actions.upgrade import differences, upgrade
from console.designs import DESIGNS
from console.doctor.consumption import Consumption
from console.doctor.decisions import OVERDUE, UNDONE
from console.doctor.examine import examine
from console.doctor.finding import Diagnosis
from console.engines import Database
from console.metrics.exporter import ConnectionState, families
from console.monitor.limits import DEFAULTS, Limits
from console.monitor.sample import take_sample
from console.monitor.sampler import Reading
from console.monitor.snapshot import QueueSnapshot, snapshot
from console.rights import Rights
from console.verbs import named
from console.verbs.verb import Target
from tests.cli.calls import call
from tests.contract.client import Client
from tests.contract.variants import Variant
from tests.servers import connect


def made(database: Database, *, waiting: int = 3) -> Client:
    client = Client(database, Variant(DESIGNS["fifo"], {}).queue("public", "orders", "postgresql"))
    install(database, client.queue)
    client.push_many(client.payloads(*range(waiting)))
    return client


def stop(client: Client, seconds: float | None = None) -> None:
    pause.pause(client.database, client.queue, reason="bad release", seconds=seconds, push=False)


def examined(client: Client) -> Diagnosis:
    (found,) = examine(client.database, [client.queue], consumption=Consumption(0.0, waits=False))
    return found


def test_a_sample_says_who_decided_what_of_a_queue(virgin: Database) -> None:
    """Short and whole words, and JSON; nothing of it once it is taken back."""
    client = made(virgin)
    stop(client, 7200.0)
    named("protect").plan(Target(virgin, client.queue, Rights.ADMIN), {"reason": "audit"}).done()
    sample = take_sample(virgin)
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
    pause.resume(virgin, client.queue)
    resumed = snapshot(take_sample(virgin).queues[0], "c")
    assert [one.kind for one in resumed.decisions] == ["protection"]
    assert _paused(resumed) == []


def _paused(seen: QueueSnapshot) -> list[str]:
    state = ConnectionState(Reading("c", queues=(seen,)), 1.0)
    (found,) = (one for one in families([state]) if one.name == "dbq_queue_paused")
    return [one.labels["queue"] for one in found.samples]


def test_status_and_report_say_it(virgin: Database) -> None:
    client = made(virgin)
    stop(client)
    found = call("status", "--url", client.url).out
    assert b"orders: PAUSED by" in found
    assert b"bad release" in found
    (queue,) = call("status", "--json", "--url", client.url).json["queues"]
    (one,) = queue["decisions"]
    assert one.keys() == {"kind", "operator", "since", "until", "reason", "push"}
    assert (one["kind"], one["reason"], one["until"], one["push"]) == (
        *("pause", "bad release"),
        *(None, False),
    )
    text = call("report", "orders", "--idle-for", "0s", "--url", client.url).out
    assert b"**PAUSED by" in text


def test_a_pause_that_lasts_too_long_is_a_finding_and_no_stopped_consumer(virgin: Database) -> None:
    client = made(virgin)
    stop(client, 3600.0)
    watch = Consumption(0.0, waits=False)
    for _ in range(2):
        (found,) = examine(virgin, [client.queue], consumption=watch)
        assert {"consumer_stopped", OVERDUE.name}.isdisjoint(f.code.name for f in found.findings)
    with connect(client.url) as connection:
        connection.execute("UPDATE dbq.pause SET until = paused_at - interval '1 second'")
    (one,) = [f for f in examined(client).findings if f.code is OVERDUE]
    assert "3 ready" in one.summary
    assert one.cause == "bad release"
    assert one.repair is not None
    assert one.repair.command.startswith("dbq-console resume orders")
    one.repair.run(virgin)
    assert OVERDUE not in [f.code for f in examined(client).findings]
    assert len(client.drain()) == 3


def test_a_limit_that_a_pause_brings_says_so(virgin: Database) -> None:
    client = made(virgin)
    stop(client)
    (found,) = examine(
        virgin,
        [client.queue],
        thresholds_of=lambda _: replace(DEFAULTS, depth=Limits(1)),
        consumption=Consumption(0.0, waits=False),
    )
    (one,) = [f for f in found.findings if f.code.name == "limit_reached"]
    assert one.cause.startswith("it is paused by")
    assert "resume orders" in one.judgement


def test_a_function_replaced_under_the_pause_is_a_finding_that_upgrade_repairs(
    virgin: Database,
) -> None:
    """Though somebody put the very code back that is shipped: it pops, and resume refused."""
    client = made(virgin)
    with connect(client.url) as connection:
        read = "SELECT pg_get_functiondef('orders_pop'::regproc)"
        (text,) = connection.execute(read).fetchone() or ()
        stop(client)
        connection.execute(text)
    (one,) = [f for f in examined(client).findings if f.code is UNDONE]
    assert one.evidence["functions"] == ["orders_pop"]
    assert one.repair is not None
    assert one.repair.command.startswith("dbq-console upgrade orders")
    assert "code_changed" not in {f.code.name for f in examined(client).findings}
    upgrade(virgin, client.queue)
    assert client.pop() is None
    assert differences(virgin, client.queue) == []
    assert UNDONE not in [f.code for f in examined(client).findings]
    pause.resume(virgin, client.queue)
    assert len(client.drain()) == 3
