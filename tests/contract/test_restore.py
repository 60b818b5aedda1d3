"""Restore: what was purged comes back whole, once, in its former state; nothing is ever lost."""

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.sql import SQL, Identifier
from sqlalchemy import Column, MetaData, Table, select

from console import audit, catalog
from console.actions import archive, execute, plan, push, relay
from console.actions.archive import Archive, Purge
from console.actions.execute import Pace, Result
from console.actions.install import uninstall
from console.actions.plan import Plan
from console.actions.requeue import Release
from console.actions.restore import FULL, GONE, Restore
from console.actions.rows import Choosing, Mover
from console.audit import Ledger
from console.catalog import Kind
from console.designs import Order
from console.errors import RefusedError, UsageError
from console.monitor.filters import parse
from console.monitor.message import Message
from console.monitor.scan_query import MessageSource
from tests.contract.calls_postgresql import call
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.filled import fill, seen
from tests.contract.installs import done_together
from tests.contract.variants import ALL, CORE, DEFAULTS, TELLING, Variant, mostly
from tests.servers import connect

pytestmark = pytest.mark.thinned(3)

HERE = [variant for variant in TELLING if variant.design.name != "broker"]
SMALL = [variant for variant in DEFAULTS if variant.design.name != "broker"]
KEEPING = [v for v in SMALL if v.finishes] + [
    v for v in ALL if v.given == {"size": "300", "in_hand": "on"}
]


def default(name: str, **given: str) -> Variant:
    """One design with some options."""
    (plain,) = (variant for variant in DEFAULTS if variant.design.name == name)
    return Variant(plain.design, {**plain.given, **given})


def source_of(client: Client) -> MessageSource:
    with client.database.transaction("read the queue", read_only=True) as connection:
        return MessageSource.of(connection, client.queue)


def planned(client: Client, moving: Mover, *words: str) -> Plan:
    return plan.make(client.database, moving, parse(words))


def run(client: Client, moving: Mover, *words: str, batch: int = 3) -> Result:
    """Plan, and do it: the plan has to be what is done, unless a ring was full."""
    made = planned(client, moving, *words)
    done = execute.execute(client.database, moving, made, pace=Pace(batch=batch))
    assert done.ledger.balanced
    if done.outcome is audit.Outcome.DONE:
        assert done.ledger.out == made.count
    return done


def purge(client: Client, *words: str, **options: Any) -> Result:
    return run(client, Purge(source_of(client), **options), *words)


def restore(client: Client, *words: str, **options: Any) -> Result:
    return run(client, Restore(source_of(client), **options), *words)


def held(client: Client) -> list[Message]:
    """All that is in the queue, with whole payloads, in the order in which it is walked."""
    return list(seen(client, limit=1000, payload_bytes=100_000).messages)


def whole(message: Message) -> Message:
    """What does not change while it lies there, and where it lies."""
    return replace(message, key="", age_seconds=None, slot=None, number=None)


def pushed_anew(message: Message) -> tuple[object, ...]:
    """What a push keeps."""
    return (message.state, message.payload, message.due_at, message.title)


def archive_of(client: Client) -> Table:
    told = ("id", "payload", "state", "claimed_at", "claimed_by", "error")
    names = ("archive_id", *told, "action_id", "reason", "archived_at")
    columns: list[Column[Any]] = [Column(name) for name in names]
    return Table(f"{client.queue.name}_archive", MetaData(), *columns, schema=client.queue.schema)


def archived(client: Client) -> list[dict[str, Any]]:
    table = archive_of(client)
    with client.database.transaction("look") as connection:
        rows = connection.execute(select(table).order_by(table.c.archive_id)).mappings().all()
    return [{str(name): value for name, value in row.items()} for row in rows]


def alter(client: Client, archive_id: int, **values: Any) -> None:
    """Change a row of the archive."""
    table = archive_of(client)
    with client.database.transaction("alter") as connection:
        row = table.c.archive_id == archive_id
        assert connection.execute(select(table.c.archive_id).where(row)).scalar_one() == archive_id
        connection.execute(table.update().where(row).values(**values))


def all_payloads(client: Client) -> Counter[object]:
    """Of the queue and of its archive together."""
    in_archive = (as_text(row["payload"]) for row in archived(client))
    return Counter(as_text(message.payload) for message in held(client)) + Counter(in_archive)


def entitle(client: Client) -> None:
    """Give every message a title of its own, where the design has titles."""
    if "status" not in client.queue.roles:
        return
    columns: list[Column[Any]] = [Column("id"), Column("title")]
    table = Table(client.queue.table, MetaData(), *columns, schema=client.queue.schema)
    with client.database.transaction("entitle") as connection:
        for id_ in connection.execute(select(table.c.id)).scalars().all():
            title = {"title": f"title of {id_} 😀"}
            connection.execute(table.update().where(table.c.id == id_).values(**title))


def no_incomplete(client: Client) -> None:
    """Of a split queue, no half of a message is left anywhere."""
    if client.queue.design.table_suffix == "":
        return
    found = []
    with client.database.transaction("look") as connection:
        for suffix in ("_meta", "_data"):
            name = client.queue.name + suffix
            table = Table(name, MetaData(), Column("id"), schema=client.queue.schema)
            found.append(sorted(connection.execute(select(table.c.id)).scalars().all()))
    assert found[0] == found[1]


def as_text(payload: object) -> object:
    """JSON comes as text, or as what its text says."""
    return repr(payload) if isinstance(payload, (list, dict)) else payload


def keeps(client: Client, message: Message) -> bool:
    """Whether such a message comes back as it was."""
    return client.queue.design.keeps_row or message.state == "error"


@pytest.mark.parametrize("variant", mostly([v for v in HERE if v in CORE], HERE), ids=str)
def test_what_was_purged_comes_back(use: Use, variant: Variant) -> None:
    client = use(variant)
    fill(client)
    entitle(client)
    if variant.order is Order.DUE:
        with client.database.transaction("push") as connection:
            for due_in, number in ((3600.0, 50), (7200.0, 51)):
                payloads = client.payloads(number)
                due = push.With(due_in_seconds=due_in)
                push.push_many_with(connection, client.queue, payloads, due)
    before = held(client)
    scheduled = purge(client, "state=scheduled").ledger.out if variant.order is Order.DUE else 0
    assert scheduled == (2 if variant.order is Order.DUE else 0)
    taken = purge(client).ledger.out
    assert len(archived(client)) == taken + scheduled > scheduled
    left = {message.id for message in held(client)}

    made = planned(client, Restore(source_of(client)))
    assert made.count == taken
    assert archived(client), "a plan changes nothing"
    done = restore(client)

    assert (done.outcome, done.ledger.out) == (audit.Outcome.DONE, taken)
    assert restore(client).ledger.out == scheduled
    assert archived(client) == []
    after = held(client)
    assert Counter(map(pushed_anew, after)) == Counter(map(pushed_anew, before))
    kept = [whole(message) for message in before if keeps(client, message)]
    assert [m for m in kept if m not in map(whole, after)] == []
    assert left <= {message.id for message in after}
    no_incomplete(client)
    again = restore(client)
    assert (again.ledger, again.plan.detail) == (Ledger(), "the archive has nothing from a purge")


@pytest.mark.parametrize("variant", SMALL, ids=str)
def test_the_old_order_is_kept(use: Use, variant: Variant) -> None:
    client = use(variant)
    client.push_many(client.payloads(*range(10)))
    purge(client)
    restore(client)
    came = [message.payload for message in client.drain(3)]
    expected = client.payloads(*range(10))
    if variant.order is Order.NONE:
        came, expected = sorted(map(str, came)), sorted(map(str, expected))
    assert came == (expected[::-1] if variant.order is Order.LIFO else expected)


def test_the_old_order_is_kept_wherever_the_rows_lie(use_postgresql: Use) -> None:
    """Rows that came late lie before the others, where vacuum has made room."""
    client = use_postgresql(default("fifo"))
    client.push_many(client.payloads(*range(8)))
    client.pop_many(4)
    with closing(connect(client.url)) as connection:
        connection.execute(
            SQL("VACUUM (INDEX_CLEANUP ON) {}").format(
                Identifier(client.queue.schema, client.queue.name)
            )
        )
    client.push_many(client.payloads(20, 21))
    made = plan.make(client.database, mover := Purge(source_of(client)))
    execute.execute(client.database, mover, made)
    restore(client)
    assert [m.payload for m in client.drain()] == client.payloads(4, 5, 6, 7, 20, 21)


@pytest.mark.parametrize("variant", KEEPING, ids=str)
def test_an_id_that_is_taken_is_replaced(use: Use, variant: Variant) -> None:
    """By a message in the queue, or by another row of the archive; a claim is an error now."""
    client = use(variant)
    filled = fill(client)
    before = all_payloads(client)
    errors = filled.ids["error"]
    purge(client, "state=error")
    one, two = archived(client)
    in_use = next(m for m in held(client) if m.state == "claimed").id
    key = one["id"].__class__
    alter(client, one["archive_id"], id=key(in_use), state="claimed")
    alter(client, two["archive_id"], id=key(in_use))
    made = planned(client, Restore(source_of(client)))
    assert "as they were: 0 with their id, 2 with a new one" in made.consequences
    assert "those that were claimed come back as errors" in made.consequences

    assert restore(client).ledger.out == 2

    ids = [message.id for message in held(client)]
    assert len(set(ids)) == len(ids)
    back = [message for message in held(client) if message.state == "error"]
    assert len(back) == 2
    assert not {message.id for message in back} & {*errors, in_use}
    assert all_payloads(client) == before
    no_incomplete(client)
    # Later pushes and pops meet no id that was given away.
    client.push_many(client.payloads(*range(70, 75)))
    assert len(client.drain(2)) >= 5
    if "relay" in client.queue.verbs:
        measure = relay.plan(client.database, client.queue, None).measure
        assert (measure.parked, measure.voids) == (0, 0)


@pytest.mark.parametrize("variant", KEEPING, ids=str)
def test_two_rows_of_the_archive_with_one_id(use: Use, variant: Variant) -> None:
    client = use(variant)
    fill(client)
    before = all_payloads(client)
    purge(client, "state=error")
    one, two = archived(client)
    alter(client, two["archive_id"], id=one["id"])
    assert restore(client).ledger.out == 2
    ids = [message.id for message in held(client)]
    assert len(set(ids)) == len(ids)
    assert str(one["id"]) in ids
    assert all_payloads(client) == before


def test_done_ones_come_back_done(use: Use) -> None:
    client = use(default("split"))
    fill(client)
    before = [whole(message) for message in held(client)]
    run(client, Archive(source_of(client), reason="Friday"))
    assert len(held(client)) < len(before)
    assert restore(client).plan.count == 0, "nothing was purged"
    restore(client, reason="friday")
    assert sorted(map(str, map(whole, held(client)))) == sorted(map(str, before))


def test_a_ring_that_is_too_full(use: Use) -> None:
    client = use(default("ring"))
    size = int(client.queue.options["size"])
    client.push_many(client.payloads(*range(20)))
    purge(client)
    made = planned(client, Restore(source_of(client)))
    assert f"needs 20 slots, {size - 20} are free" in made.consequences
    assert any("goes behind 0 messages" in line for line in made.consequences)
    client.drain()  # steps over the void numbers, so that a push counts them as free
    filler = client.payloads(*range(100, 100 + size - 8))
    assert None not in client.push_many(filler)

    made = planned(client, Restore(source_of(client)))
    assert made.obstacles == ("needs 20 slots, 8 are free",)
    with pytest.raises(RefusedError, match="cannot be done"):
        execute.execute(client.database, Restore(source_of(client)), made)
    assert len(archived(client)) == 20

    assert restore(client, "limit=5").ledger.out == 5
    client.drain()
    mover = Restore(source_of(client))
    made = planned(client, mover)
    assert (made.count, made.obstacles) == (15, ())
    assert None not in client.push_many(filler)  # after the plan: 8 slots are left

    done = execute.execute(client.database, mover, made, pace=Pace(batch=6))
    assert done.outcome is audit.Outcome.STOPPED
    assert FULL in done.problem
    assert (done.ledger.out, dict(done.ledger.failed)) == (8, {FULL: 4})
    assert len(archived(client)) == 7

    came = [message.payload for message in client.drain()]
    assert came == [*filler, *client.payloads(*range(5, 13))]
    assert restore(client).ledger.out == 7
    assert [m.payload for m in client.drain()] == client.payloads(*range(13, 20))


def test_a_ring_that_is_full_of_purged_numbers(use: Use) -> None:
    """The plan names the remedy, and it is one."""
    client = use(default("ring"))
    size = int(client.queue.options["size"])
    payloads = client.payloads(*range(size))
    client.push_many(payloads)
    purge(client, f"limit={size - 1}")
    made = planned(client, Restore(source_of(client)))
    assert made.obstacles == (
        f"needs {size - 1} slots, 0 are free; "
        f"a relay frees {size - 1} more, whose messages were purged",
    )
    relay.relay(client.database, client.queue, None)
    assert restore(client).ledger.out == size - 1
    assert [message.payload for message in client.drain()] == [payloads[-1], *payloads[:-1]]


def test_what_was_ready_again_in_hand_comes_back_there(use: Use) -> None:
    client = use(default("ring", in_hand="on"))
    client.push_many(client.payloads(*range(6)))
    client.pop_many(3, "worker-1")
    run(client, Release(source_of(client), stuck_after_seconds=0.0, force=True))
    before = [whole(message) for message in held(client)]
    assert Counter(message.attempts for message in before) == {1: 3, None: 3}
    purge(client, "limit=3")
    made = planned(client, Restore(source_of(client)))
    assert made.consequences == ("as they were: 3 with their id, 0 with a new one",)
    restore(client)
    assert [whole(message) for message in held(client)] == before
    assert [message.payload for message in client.drain()] == client.payloads(*range(6))


def test_what_is_never_due_is_never_due_again(use_postgresql: Use) -> None:
    client = use_postgresql(default("pending"))
    call(client, "push", payload="never", due_time="infinity")
    call(client, "push", payload="long ago", due_time="2001-02-03T04:05:06Z")
    before = [whole(message) for message in held(client)]
    assert purge(client).ledger.out == purge(client, "state=scheduled").ledger.out == 1
    assert {row["state"] for row in archived(client)} == {"ready", "scheduled"}
    assert restore(client).plan.by_state == {"scheduled": 1}
    assert restore(client).plan.by_state == {"ready": 1}
    assert [pushed_anew(m) for m in held(client)] == [pushed_anew(m) for m in before]
    assert [message.payload for message in client.drain()] == ["long ago"]


@pytest.mark.parametrize("variant", [default("fifo"), default("claim"), default("ring")], ids=str)
def test_what_is_over_the_limit_by_now_stays(use: Use, variant: Variant) -> None:
    client = use(variant)
    sizes = [client.size_of(payload) for payload in client.payloads(*range(3))]
    client.push_many(client.payloads(*range(3)))
    purge(client)
    limit = sorted(sizes)[1]
    options = {**client.queue.options, "max_bytes": str(limit)}
    smaller = Client(client.database, replace(client.queue, options=options))

    mover = Restore(source_of(smaller))
    made = planned(smaller, mover)
    assert made.left_alone == {f"over the queue's limit of {limit} bytes": 1}
    assert made.count == 2
    with client.database.session("act") as session:
        choice = mover.choice(
            Choosing(client.database, session, parse(()), mover.states, made.cutoff)
        )
        chosen = choice.next(10)
        with session.transaction("act") as connection:
            told = mover.act(connection, chosen, 0)
            connection.rollback()
    assert told == Ledger(3, 2, 2, failed=dict(made.left_alone))
    assert restore(smaller).ledger.out == 2
    assert len(archived(client)) == 1


@pytest.mark.parametrize("variant", [default("fifo"), default("split"), default("ring")], ids=str)
def test_two_operators_at_once(use: Use, variant: Variant) -> None:
    client = use(variant)
    client.push_many(client.payloads(*range(60)))
    before = all_payloads(client)
    purge(client)
    movers = [Restore(source_of(client)) for _ in range(2)]
    plans = [planned(client, mover) for mover in movers]
    ledgers = done_together(client.database, movers, plans)
    assert sum(ledger.out for ledger in ledgers) == 60
    assert all(set(ledger.skipped) <= {GONE} for ledger in ledgers)
    assert archived(client) == []
    assert all_payloads(client) == before


def test_a_row_in_other_hands_is_skipped(use: Use) -> None:
    client = use(default("fifo"))
    client.push_many(client.payloads(*range(4)))
    purge(client)
    table = archive_of(client)
    mover = Restore(source_of(client))
    made = planned(client, mover)
    with client.database.transaction("hold") as connection:
        first = select(table.c.archive_id).order_by(table.c.archive_id).limit(1)
        connection.execute(first.with_for_update())
        done = execute.execute(client.database, mover, made)
    assert (done.ledger.out, dict(done.ledger.skipped)) == (3, {GONE: 1})
    assert len(archived(client)) == 1


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("naive", "goes behind 7 messages"),
        ("fifo", "goes behind 7 messages"),
        ("stack", "runs next, before 7 older messages"),
        ("heap", "in no particular order"),
        ("pending", "each at its due time"),
        ("ring", "goes behind 7 messages"),
    ],
)
def test_a_plan_says_where_they_come(use: Use, name: str, line: str) -> None:
    client = use(default(name))
    client.push_many(client.payloads(*range(5)))
    purge(client)
    if name == "ring":
        client.drain()
    client.push_many(client.payloads(*range(10, 17)))
    made = planned(client, Restore(source_of(client)), "limit=4")
    assert f"4 are pushed again and get a new id; {line}" in made.consequences
    assert any(text.startswith("  in the archive for ") for text in made.lines())
    if name == "ring":
        assert any(text.startswith("needs 4 slots, ") for text in made.consequences)


@pytest.mark.parametrize("name", ["naive", "heap", "fifo", "stack", "pending", "ring"])
def test_what_was_popped_was_delivered(use: Use, name: str) -> None:
    client = use(default(name, archive_at_pop="on"))
    client.push_many(client.payloads(*range(6)))
    popped = client.pop_many(2)
    purge(client)
    ids = [f"id={message.id}" for message in popped]
    assert [planned(client, Restore(source_of(client)), word).count for word in ids] == [0, 0]
    assert restore(client, "newer=1h").ledger.out == 4
    assert restore(client).ledger.out == 0
    made = planned(client, Restore(source_of(client), popped=True))
    assert (made.count, made.detail) == (2, "popped messages")
    assert any("delivered once" in line for line in made.consequences)
    assert restore(client, ids[0], popped=True).ledger.out == 1
    assert [str(row["id"]) for row in archived(client)] == [popped[1].id]


def archive_four(client: Client) -> None:
    for message in client.pop_many(4):
        assert client.complete(message)
    assert run(client, Archive(source_of(client))).ledger.out == 4


def test_the_last_purge_is_what_is_meant(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the archive is read: a few rows at a time."""
    monkeypatch.setattr(archive, "_READ_AT_ONCE", 4)
    monkeypatch.setattr(archive, "_PURGES_AT_ONCE", 3)
    client = use(default("status"))
    client.push_many(client.payloads(*range(30)))
    archive_four(client)
    first = purge(client, "limit=9")
    second = purge(client, "limit=8", reason="stale: prices")
    archive_four(client)

    made = planned(client, Restore(source_of(client)))
    assert (made.count, made.detail) == (8, f"of action {second.action_id}, the last purge")
    assert planned(client, Restore(source_of(client)), "limit=3").count == 3
    assert planned(client, Restore(source_of(client)), "keep-newest=6").count == 2
    assert planned(client, Restore(source_of(client), action=first.action_id)).count == 9
    assert planned(client, Restore(source_of(client), reason="PRICES")).count == 8
    assert planned(client, Restore(source_of(client), reason="prices_")).count == 0
    assert planned(client, Restore(source_of(client)), "newer=1h").count == 25

    assert restore(client).ledger.out == 8
    made = planned(client, Restore(source_of(client)))
    assert (made.count, made.detail) == (9, f"of action {first.action_id}, the last purge")
    assert made.as_json()["detail"] == made.detail


def test_a_later_purge_is_not_in_the_plan(use: Use) -> None:
    client = use(default("fifo"))
    client.push_many(client.payloads(*range(9)))
    purge(client, "limit=4")
    mover = Restore(source_of(client))
    made = planned(client, mover)
    purge(client, "limit=2")
    done = execute.execute(client.database, Restore(source_of(client)), made)
    assert done.ledger.out == made.count == 4
    assert len(archived(client)) == 2

    made = planned(client, mover, "newer=1h")
    restore(client, "limit=1")
    purge(client, "limit=3")
    done = execute.execute(client.database, mover, made)
    assert (done.ledger.out, made.count) == (1, 2)
    assert len(archived(client)) == 3


def test_filters_on_the_archive(use: Use) -> None:
    client = use(default("claim", payload="json"))
    fill(client)
    purge(client)
    rows = archived(client)
    long_ago = rows[0]["archived_at"] - timedelta(hours=2)
    alter(client, rows[0]["archive_id"], archived_at=long_ago)
    errors = [row for row in rows if row["state"] == "error"]

    def count(*words: str) -> int:
        return planned(client, Restore(source_of(client)), *words).count

    assert count() == len(rows) == 7
    assert count("older=1h") == 1
    assert count("newer=1h") == 6
    assert count("state=error") == len(errors) == 2
    assert count("state=claimed") == count("state=done") == 0
    assert count("error~BOOM") == count("error~order 17", "error~second") == 2
    assert count("error~nothing") == 0
    assert count("claimed_by=worker-1") == 2
    assert count("claimed_by=worker") == 0
    assert count(f"id={str(rows[2]['id']).upper()}") == 1
    number = rows[3]["payload"][1]
    assert count(f"payload[1]={number}") == 1
    assert count("payload[1]=999", "newer=1h") == 0
    assert count("state=error", "limit=1") == 1
    odd = "'; DROP TABLE x; -- %s :name \\ \"é"
    assert count(f"error~{odd}") == count(f"claimed_by={odd}") == count(f"payload.a={odd}") == 0
    assert planned(client, Restore(source_of(client), reason=odd)).count == 0
    with pytest.raises(UsageError, match="not a key"):
        count("id=seventeen")
    with pytest.raises(UsageError, match="takes no messages in the state"):
        count("state=lost")


def test_paths_want_json(use: Use) -> None:
    client = use(default("fifo"))
    for mover in (Restore(source_of(client)), Purge(source_of(client))):
        with pytest.raises(UsageError, match="no payload with paths"):
            planned(client, mover, "payload.a=1")


def test_where_nothing_can_be_restored(use_postgresql: Use) -> None:
    client = use_postgresql(default("fifo"))
    product = client.database.product
    with pytest.raises(UsageError, match="Popped messages belong to no action"):
        Restore(source_of(client), action=1, popped=True)
    adopted = replace(client.queue, kind=Kind.ADOPTED)
    with pytest.raises(RefusedError, match="has no archive"):
        Restore(MessageSource(product, adopted, "text", "bigint"))
    uninstall(client.database, client.queue, keep_archive=True, with_messages=True)
    with client.database.transaction("look") as connection:
        left = catalog.find(connection, client.queue.name)
    with pytest.raises(UsageError, match="uninstalled") as told:
        Restore(MessageSource(product, left, "text", "bigint"))
    assert "push the payloads" in told.value.next_step
    uninstall(client.database, left, keep_archive=False, with_messages=True)


def test_a_batch_that_fails_leaves_all_in_the_archive(
    use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it is cut off: what was done is done and audited, the rest untouched."""
    client = use(default("status"))
    client.push_many(client.payloads(*range(10)))
    before = all_payloads(client)
    purge(client)
    mover = Restore(source_of(client))
    made = planned(client, mover)
    calls = iter(range(100))
    acting = mover.act

    def cut_off(*arguments: Any) -> Ledger:
        ledger = acting(*arguments)
        if next(calls) == 2:
            raise KeyboardInterrupt
        return ledger

    monkeypatch.setattr(mover, "act", cut_off)
    with pytest.raises(KeyboardInterrupt):
        execute.execute(client.database, mover, made, pace=Pace(batch=3))
    assert (len(held(client)), len(archived(client))) == (6, 4)
    assert restore(client).ledger.out == 4
    assert all_payloads(client) == before


Step = Callable[[Client], Result]
COUNTS = st.integers(1, 9)
STEPS = st.lists(
    st.one_of(
        COUNTS.map(lambda n: lambda client: purge(client, f"limit={n}")),
        COUNTS.map(lambda n: lambda client: purge(client, "state=ready", f"keep-newest={n}")),
        COUNTS.map(lambda n: lambda client: restore(client, f"limit={n}")),
        COUNTS.map(lambda n: lambda client: restore(client, "newer=1h", f"limit={n}")),
        st.just(restore),
        st.just(purge),
    ),
    max_size=6,
)


@pytest.mark.parametrize("variant", SMALL, ids=str)
def test_no_sequence_loses_or_doubles_anything(use: Use, variant: Variant) -> None:
    client = use(variant)
    fill(client)
    before = all_payloads(client)

    @settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
    @given(STEPS)
    def law(steps: list[Step]) -> None:
        for step in steps:
            step(client)
            assert all_payloads(client) == before
            no_incomplete(client)

    law()
