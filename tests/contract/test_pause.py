"""A paused queue: its pops are empty, callers get no error, resume restores the code; and where the
pause is shown."""

import itertools
import os
import random
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
from psycopg.types.json import Jsonb
from sqlalchemy import make_url

from console.actions import pause
from console.actions.upgrade import differences, upgrade
from console.catalog import decisions
from console.designs import DESIGNS
from console.doctor.decisions import OVERDUE, UNDONE
from console.doctor.diagnose import diagnose
from console.doctor.finding import Diagnosis
from console.doctor.stopped_consumers import ConsumptionHistory
from console.engines import Database
from console.errors import RefusedError, UsageError
from console.features.metrics.exporter import ConnectionState, families
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
from tests.servers import connect, execute, login, value, wait_until
from tests.tools.repairs import carry_out
from tests.tools.warm import Forked

POP_KINDS = ("ring", "fifo", "claim")
"""Designs that pop by number, by deletion, by claim."""


def install_queue(database: Database, design: str, *, name: str = "q", **options: str) -> Client:
    return installed(database, Variant(DESIGNS[design], options), name)


def functions_of(client: Client) -> list[tuple[str, str, str, str]]:
    """All functions of the schema: their text, owners and rights."""
    return execute(
        client.url,
        "SELECT oid::regprocedure::text, pg_get_functiondef(oid), proowner::regrole::text,"
        " proacl::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace ORDER BY 1",
    )


def pause_queue(client: Client, seconds: float | None = None, *, push: bool = False) -> None:
    pause.pause(client.database, client.queue, reason="bad release", seconds=seconds, push=push)


def test_pops_of_a_paused_queue_are_empty_and_resume_restores_the_code(
    new_database: Database,
) -> None:
    for design in sorted(DESIGNS.keys() - {"broker"}):
        client = install_queue(new_database, design, name=design, **default(design).given)
        before = functions_of(client)
        client.push_many(client.payloads(*range(3)))
        pause_queue(client)
        assert client.pop() is None
        assert client.pop_many(5) == []
        with connect(client.url) as connection:
            for call_of in ("pop()", "pop_many(3)"):
                taken = connection.execute(f"SELECT * FROM {design}_{call_of}".encode())
                assert taken.fetchall() == []
        assert client.push(client.payload(3)) is not None
        assert differences(new_database, client.queue) == []
        with pytest.raises(UsageError, match="already paused"):
            pause_queue(client)
        pause.resume(new_database, client.queue)
        assert functions_of(client) == before
        assert len(client.drain()) == 4
        with pytest.raises(UsageError, match="not paused"):
            pause.resume(new_database, client.queue)


def test_pushes_to_a_ring_can_be_paused(new_database: Database) -> None:
    client = install_queue(new_database, "ring", size="10")
    before = functions_of(client)
    pause_queue(client, push=True)
    assert client.push(client.payload(0)) is None
    assert client.push_many(client.payloads(0, 1)) == [None, None]
    for more in (("one",), ("-", "--lines")):
        said = call("push", "q", *more, "--url", client.url, stdin=b"a\nb\n")
        assert said.status == 1
        assert "is paused, its pushes too, by" in said.err
        assert "full" not in said.err
    pause.resume(new_database, client.queue)
    assert functions_of(client) == before
    assert client.push(client.payload(0)) is not None
    other = Target(new_database, Variant(DESIGNS["fifo"], {}).queue("public", "f", "postgresql"))
    with pytest.raises(UsageError, match="lose it"):
        get_verb("pause").plan(
            Target(new_database, other.queue, Rights.ADMIN),
            {"reason": None, "for": None, "push": True},
        )


@pytest.mark.parametrize("prepared", [False, True])
def test_a_plan_counts_open_transactions_even_prepared_ones(
    new_database: Database, prepared: bool
) -> None:
    """They keep what they have popped: an operator must not take the queue for quiet."""
    client = install_queue(new_database, "fifo")
    if prepared and value(client.url, "SHOW max_prepared_transactions") == "0":
        pytest.skip("this server prepares no transactions")
    client.push_many(client.payloads(0, 1))
    with connect(client.url) as holder:
        holder.execute("BEGIN; SELECT id FROM q_pop()")
        if prepared:
            holder.execute("PREPARE TRANSACTION 'held'")
        counted = pause.callers(new_database, client.queue)
        holder.execute("ROLLBACK PREPARED 'held'" if prepared else "ROLLBACK")
    assert counted == 1
    assert pause.callers(new_database, client.queue) == 0


def test_an_upgrade_keeps_the_pause_whatever_was_changed_meanwhile(new_database: Database) -> None:
    """Resume restores the shipped code of functions that were modified locally before, replaced
    meanwhile, which it refuses to overwrite before an upgrade, or dropped."""
    client = install_queue(new_database, "fifo")
    shipped = functions_of(client)
    client.push(client.payload(0))
    text = {name: text for name, text, *_ in shipped}["q_pop()"]
    changed = text.replace("BEGIN", "BEGIN\n    -- of ours", 1)

    def upgraded(before: str, under: str) -> None:
        with connect(client.url) as connection:
            connection.execute(before.encode())
            pause_queue(client)
            connection.execute(under.encode())
        if under == changed:
            with pytest.raises(RefusedError, match="q_pop was replaced"):
                pause.resume(new_database, client.queue)
            with new_database.transaction("read", read_only=True) as connection_:
                assert pause.replaced_functions(connection_, client.queue) == ["q_pop"]
        assert [difference.name for difference in differences(new_database, client.queue)] == [
            "q_pop"
        ]
        upgrade(new_database, client.queue)
        assert differences(new_database, client.queue) == []
        assert client.pop() is None
        pause.resume(new_database, client.queue)
        assert functions_of(client) == shipped

    for before, under in ((changed, ""), ("", changed), ("", "DROP FUNCTION public.q_pop")):
        upgraded(before, under)
    assert client.pop() is not None


def test_verbs_that_add_messages_are_refused_while_paused(new_database: Database) -> None:
    client = install_queue(new_database, "fifo")
    url = client.url
    client.push(client.payload(0))
    assert call("purge", "q", "--yes", "q", "--url", url).status == 0
    words = ("--reason", "bad release", "--for", "2h")
    assert call("pause", "q", *words, "--yes", "y", "--url", url).status != 0
    assert call("pause", "q", *words, "--yes", "q", "--url", url).status == 0
    for arguments in (("restore", "q", "--yes", "q"), ("smoke", "q", "--live")):
        call(*arguments, "--url", url).failed(4, "bad release")
    assert call("pop", "q", "--url", url).status == 1
    assert call("resume", "q", "--yes", "--url", url).status == 0
    assert call("restore", "q", "--yes", "q", "--url", url).status == 0
    assert len(client.drain()) == 1


@pytest.mark.parametrize(
    "design",
    [pytest.param(name, marks=[pytest.mark.long] * (name != "ring")) for name in POP_KINDS],
)
def test_pauses_under_traffic_cause_no_error_and_lose_no_message(
    new_database: Database, design: str, long: bool
) -> None:
    """Paused and resumed repeatedly under producers that ignore what push returns, consumers, open
    transactions, upgrades, and consoles that are killed while they replace the code."""
    client = install_queue(new_database, design)
    before = functions_of(client)
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
        """Roll back or commit pops that stayed open while pauses began and ended."""
        # In a ring a rolled back pop leaves an orphan, which is no error of the pause.
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
    random_numbers = random.Random(callers)
    with at_work(*works, hold(), pause_seconds=0.01):
        for _ in range(rounds):
            wait_for_more(popped)
            _kill_while_pausing(client, random_numbers)
            pause_queue(client)
            wait_for_more(pushed)
            upgrade(new_database, client.queue)
            pause.resume(new_database, client.queue)
    popped.extend(str(one.payload) for one in client.drain())
    assert sorted(popped) == sorted(pushed)
    assert functions_of(client) == before


def _kill_while_pausing(client: Client, random_numbers: random.Random) -> None:
    """Kill a console at a random moment while it pauses the queue; undo a completed pause."""
    words = ("pause", "q", "--yes", "q", "--url", client.url)
    there = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'dbq-console%'"
    had = value(client.url, there)
    with Forked(words, os.environ) as child:
        wait_until(
            lambda: value(client.url, there) != had or child.poll() is not None, "it has connected"
        )
        time.sleep(random_numbers.random() * 0.3)  # a random moment: there is nothing to wait for
        child.kill()
    wait_until(lambda: value(client.url, there) == had, "its session is gone")
    with client.database.transaction("read", read_only=True) as connection:
        paused = decisions.find(connection, "pause", client.queue.schema, client.queue.name)
    if paused is not None:
        pause.resume(client.database, client.queue)


def test_a_console_killed_while_pausing_has_changed_nothing(new_database: Database) -> None:
    """Pausing is one transaction: interrupted before its commit it has no effect."""
    client = install_queue(new_database, "fifo")
    before = functions_of(client)
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    with connect(client.url) as holder, holder.transaction():
        holder.execute(
            "LOCK TABLE dbq.pause IN EXCLUSIVE MODE"
        )  # its row is written after the code is replaced
        words = ("pause", "q", "--yes", "q", "--url", client.url)
        with Forked(words, os.environ) as child:
            wait_until(lambda: value(client.url, waiting) != 0, "the pause waits")
            child.kill()
    wait_until(lambda: value(client.url, waiting) == 0, "its session is gone")
    assert functions_of(client) == before
    client.push(client.payload(0))
    assert client.pop() is not None


@pytest.fixture
def orders(new_database: Database) -> Client:
    """A queue with three messages."""
    client = install_queue(new_database, "fifo", name="orders")
    client.push_many(client.payloads(*range(3)))
    return client


def examined(orders: Client) -> Diagnosis:
    (diagnosis,) = diagnose(
        orders.database, [orders.queue], consumption=ConsumptionHistory(0.0, waits=False)
    )
    return diagnosis


def test_a_sample_contains_the_decisions_about_a_queue(orders: Client) -> None:
    """As short and full texts and as JSON, until they are revoked."""
    pause_queue(orders, 7200.0)
    get_verb("protect").plan(
        Target(orders.database, orders.queue, Rights.ADMIN), {"reason": "audit"}
    ).run_to_end()
    sample = take_sample(orders.database)
    observed = snapshot(sample.queues[0], "c")
    paused = observed.paused
    assert paused is not None
    assert paused.until is not None
    assert paused.until > paused.since + timedelta(hours=1)
    who = paused.operator.partition("@")[0]
    assert paused.mark(paused.since + timedelta(minutes=12)) == f"PAUSED 12 min, {who}"
    assert [mark.split()[0] for mark in observed.marks] == ["PAUSED", "PROTECTED"]
    assert paused.shown.startswith(f"PAUSED by {paused.operator} since ")
    assert paused.shown.endswith(": bad release")
    assert [decision.kind for decision in observed.decisions] == ["pause", "protection"]
    assert _paused(observed) == ["orders"]
    pause.resume(orders.database, orders.queue)
    resumed = snapshot(take_sample(orders.database).queues[0], "c")
    assert [decision.kind for decision in resumed.decisions] == ["protection"]
    assert _paused(resumed) == []


def _paused(observed: QueueSnapshot) -> list[str]:
    state = ConnectionState(Reading("c", queues=(observed,)), 1.0)
    (metric,) = (family for family in families([state]) if family.name == "dbq_queue_paused")
    return [sample.labels["queue"] for sample in metric.samples]


def test_status_and_report_show_the_pause(orders: Client) -> None:
    pause_queue(orders)
    out = call("status", "--url", orders.url).out
    assert b"orders: PAUSED by" in out
    assert b"bad release" in out
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
    pause_queue(orders, 3600.0)
    watch = ConsumptionHistory(0.0, waits=False)
    for _ in range(2):
        (diagnosis,) = diagnose(orders.database, [orders.queue], consumption=watch)
        assert {"consumer_stopped", OVERDUE.name}.isdisjoint(
            f.code.name for f in diagnosis.findings
        )
    execute(orders.url, "UPDATE dbq.pause SET until = paused_at - interval '1 second'")
    (finding,) = [f for f in examined(orders).findings if f.code is OVERDUE]
    assert "3 ready" in finding.summary
    assert finding.cause == "bad release"
    assert finding.repair is not None
    assert finding.repair.command.startswith("dbq-console resume orders")
    carry_out(finding.repair, orders.database)
    assert OVERDUE not in [f.code for f in examined(orders).findings]
    assert len(orders.drain()) == 3


def test_a_limit_reached_during_a_pause_names_the_pause_as_the_cause(orders: Client) -> None:
    pause_queue(orders)
    (diagnosis,) = diagnose(
        orders.database,
        [orders.queue],
        thresholds_of=lambda _: DEFAULTS.with_limits(depth=Limits(1)),
        consumption=ConsumptionHistory(0.0, waits=False),
    )
    (finding,) = [f for f in diagnosis.findings if f.code.name == "limit_reached"]
    assert finding.cause.startswith("it is paused by")
    assert "resume orders" in finding.judgement


def test_a_function_replaced_during_a_pause_is_a_finding_that_upgrade_repairs(
    orders: Client,
) -> None:
    """Even if the replacement is the shipped code: it pops, and resume refuses to run."""
    with connect(orders.url) as connection:
        read = "SELECT pg_get_functiondef('orders_pop'::regproc)"
        (text,) = connection.execute(read).fetchone() or ()
        pause_queue(orders)
        connection.execute(text)
    (finding,) = [f for f in examined(orders).findings if f.code is UNDONE]
    assert finding.evidence["functions"] == ["orders_pop"]
    assert finding.repair is not None
    assert finding.repair.command.startswith("dbq-console upgrade orders")
    assert "code_changed" not in {f.code.name for f in examined(orders).findings}
    upgrade(orders.database, orders.queue)
    assert orders.pop() is None
    assert differences(orders.database, orders.queue) == []
    assert UNDONE not in [f.code for f in examined(orders).findings]
    pause.resume(orders.database, orders.queue)
    assert len(orders.drain()) == 3


def test_what_another_login_wrote_into_the_record_is_not_run(new_database: Database) -> None:
    """Members of dbq_admin may write dbq.pause; whoever resumes may be a superuser."""
    client = install_queue(new_database, "fifo")
    before = functions_of(client)
    client.push(client.payload(0))
    pause_queue(client)
    ((recorded,),) = execute(client.url, "SELECT functions FROM dbq.pause")
    grants = ("GRANT USAGE ON SCHEMA dbq TO {}", "GRANT ALL ON dbq.pause TO {}")
    with login(client.url, *grants) as theirs, connect(theirs) as attacker:
        me = f'"{make_url(theirs).username}"'
        forged = {
            "body": f"BEGIN RESET ROLE; ALTER ROLE {me} SUPERUSER; RETURN; END",
            "id": "pg_catalog.now()",
        }
        for key, text in forged.items():
            changed = [{**one, key: text} for one in recorded]
            attacker.execute("UPDATE dbq.pause SET functions = %s", [Jsonb(changed)])
            with pytest.raises(RefusedError) as refused:
                pause.resume(new_database, client.queue)
            assert "is not what was there before the pause" in refused.value.why
        upgrade(new_database, client.queue)
        assert client.pop() is None, "still paused"
        more = f"ALTER ROLE {me} SUPERUSER; "
        changed = [{**one, "definition": more + one["definition"]} for one in recorded]
        attacker.execute("UPDATE dbq.pause SET functions = %s", [Jsonb(changed)])
        pause.resume(new_database, client.queue)
        query = "SELECT rolsuper FROM pg_roles WHERE rolname = current_user"
        assert attacker.execute(query).fetchone() == (False,)
    assert functions_of(client) == before
    assert client.pop() is not None


def test_resume_restores_a_locally_modified_function_with_all_its_settings(
    new_database: Database,
) -> None:
    """Another language, security definer, strict, a cost: what the original had."""
    client = install_queue(new_database, "fifo")
    execute(
        client.url,
        "DROP FUNCTION public.q_pop(); CREATE FUNCTION public.q_pop() RETURNS TABLE"
        " (id bigint, payload text, pushed_at timestamptz, attempts integer) LANGUAGE sql"
        " SECURITY DEFINER STRICT COST 7 ROWS 1 SET work_mem = '5MB' SET search_path = ''"
        " AS 'SELECT 1, ''$function$''::text, now(), 1 WHERE false'",
    )
    before = functions_of(client)
    pause_queue(client)
    assert functions_of(client) != before
    pause.resume(new_database, client.queue)
    assert functions_of(client) == before
