"""Faults: of a queue in use, kept until their repair has run; of its server and its sessions."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg.errors import QueryCanceled

from console.features.demo.embedded import EmbeddedServer
from console.monitor.limits import DEFAULTS, Thresholds
from tests.contract.messages import message, sender
from tests.contract.traffic import Sender
from tests.contract.variants import Variant
from tests.faults.harness.queue import (
    CLAIM,
    CLAIMING,
    FIFO,
    HEAP,
    IN_HAND,
    MANY_ERRORS,
    NAIVE,
    PENDING,
    SPLIT,
    STACK,
    STATUS,
    STRICT,
    TWO_STEP,
    FaultyQueue,
)
from tests.servers import connect, execute, kill_session, value, wait_until

TAKEN = 3
"""Claims of a consumer that then dies, hangs or never finishes."""
SHORT_TERM = replace(DEFAULTS, stuck_after_seconds=0.5)


@dataclass
class Damage:
    """What a fault did to the queue, for the checks at the end."""

    lost: Sequence[Sender] = ()
    session: int | str | None = None
    """The session that holds rows; in some designs others wait for it and are found too."""


Cause = Callable[..., Iterator[Damage]]
Causes = Callable[..., AbstractContextManager[Damage]]
"""Causes it on a queue and keeps it until its repair has run."""


@dataclass(frozen=True)
class Fault:
    """A fault, its finding, and the verb that repairs it."""

    cause: Causes
    code: str
    verb: str
    variants: Sequence[Variant]
    thresholds: Thresholds = DEFAULTS
    left: Sequence[str] = ()
    """The findings that remain."""
    fails: bool = False
    """Calls are refused meanwhile."""


FAULTS: dict[str, Fault] = {}
"""By the name of what causes it."""


def fault(code: str, verb: str, *variants: Variant, **more: Any) -> Callable[[Cause], Causes]:
    """Enter it into FAULTS, for these variants."""

    def enter(cause: Cause) -> Causes:
        causes = contextmanager(cause)
        FAULTS[cause.__name__] = Fault(causes, code, verb, variants, **more)
        return causes

    return enter


@fault("claims_gone", "release", CLAIM, STATUS, SPLIT, TWO_STEP, IN_HAND)
def died(client: FaultyQueue) -> Iterator[Damage]:
    """A consumer with bound claims is killed."""
    client.die_with_claims(TAKEN)
    yield Damage()


@fault("claims_alive", "release", CLAIM, STATUS, SPLIT, TWO_STEP, IN_HAND)
def hangs(client: FaultyQueue) -> Iterator[Damage]:
    """A consumer works for an hour, and returns after its claims went to others."""
    with closing(connect(client.url)) as consumer:
        taken = client.popped_by(consumer, TAKEN)
        client.age(*(id_ for id_, _ in taken))
        yield Damage()
        complete = client.sql("SELECT {complete}(%s, %s)")
        for claim in taken:
            assert consumer.execute(complete, claim).fetchall() == [(False,)], (
                "the claim is no longer its own"
            )


@fault("claims_unknown", "release", CLAIM, STATUS, SPLIT, IN_HAND)
def pooled(client: FaultyQueue) -> Iterator[Damage]:
    """Claims of an owner that the server does not know."""
    yield _claimed_by(client, "the pooler")


@fault("claims_nobody", "release", CLAIM, STATUS, SPLIT, IN_HAND)
def anonymous(client: FaultyQueue) -> Iterator[Damage]:
    """Claims without a consumer's name."""
    yield _claimed_by(client, None)


def _claimed_by(client: FaultyQueue, owner: str | None) -> Damage:
    with connect(client.url) as consumer:
        ids = [id_ for id_, _ in client.popped_by(consumer, TAKEN)]
    client.run("UPDATE {table} SET claimed_by = %s WHERE CAST(id AS text) = ANY(%s)", owner, ids)
    client.age(*ids)
    return Damage()


def _hold(client: FaultyQueue, holder: psycopg.Connection) -> None:
    """Open a transaction whose push must stay invisible and whose pops must return."""
    holder.execute("BEGIN")
    client.popped_by(holder, TAKEN)
    holder.execute(client.sql("SELECT {push}(%s)"), ["undone"])


@fault(
    "rows_held",
    "end-session",
    NAIVE,
    HEAP,
    STRICT,
    STACK,
    PENDING,
    STATUS,
    CLAIM,
    thresholds=SHORT_TERM,
)
def left_open(client: FaultyQueue) -> Iterator[Damage]:
    with closing(connect(client.url)) as holder:
        _hold(client, holder)
        yield Damage(session=holder.info.backend_pid)


@fault(
    "prepared_forgotten", "end-session", NAIVE, STRICT, CLAIM, SPLIT, PENDING, thresholds=SHORT_TERM
)
def prepared(client: FaultyQueue) -> Iterator[Damage]:
    if value(client.url, "SHOW max_prepared_transactions") == "0":
        pytest.skip("this server prepares no transactions")
    with connect(client.url) as holder:
        _hold(client, holder)
        holder.execute("PREPARE TRANSACTION 'forgotten'")
    yield Damage(session="forgotten")


@fault("code_missing", "upgrade", NAIVE, HEAP, FIFO, *CLAIMING, fails=True)
def dropped_code(client: FaultyQueue) -> Iterator[Damage]:
    """Pops fail; with claims, completing fails too."""
    client.run("DROP FUNCTION {pop_many}")
    if client.queue.finishes:
        client.run("DROP FUNCTION {complete}")
    yield Damage()


@fault("code_missing", "upgrade", CLAIM, STATUS, SPLIT, IN_HAND, fails=True)
def dropped_column(client: FaultyQueue) -> Iterator[Damage]:
    """Every call that uses it fails."""
    client.run("ALTER TABLE {table} DROP COLUMN claimed_by")
    yield Damage()


@fault("code_changed", "upgrade", FIFO, HEAP, PENDING, CLAIM, STACK)
def changed_code(client: FaultyQueue) -> Iterator[Damage]:
    """Pops wait for one another."""
    client.change_code()
    yield Damage()


@fault("code_older", "upgrade", FIFO, SPLIT, CLAIM)
def older_code(client: FaultyQueue) -> Iterator[Damage]:
    """As a console of an older version left it."""
    client.make_older()
    with changed_code(client) as fault:
        yield fault


@fault("index_missing", "maintain", CLAIM, STATUS, SPLIT, IN_HAND)
def dropped_indexes(client: FaultyQueue) -> Iterator[Damage]:
    client.drop_indexes()
    yield Damage()


def _interrupted(client: FaultyQueue, statement: LiteralString, **more: str) -> None:
    """Run a statement that waits for an open transaction until its time-out."""
    with connect(client.url) as holder, connect(client.url) as builder:
        holder.execute("BEGIN")
        holder.execute(client.sql("LOCK TABLE {table} IN ROW EXCLUSIVE MODE"))
        builder.execute("SET statement_timeout = '200ms'")
        with pytest.raises(QueryCanceled):
            builder.execute(client.sql(statement, **more))
        holder.execute("ROLLBACK")


@fault("index_invalid", "maintain", CLAIM, STATUS, SPLIT)
def half_an_index(client: FaultyQueue) -> Iterator[Damage]:
    """The index that an interrupted CREATE INDEX CONCURRENTLY leaves."""
    index, *_ = client.indexes()
    (made,) = client.run("SELECT pg_get_indexdef(%s::regclass)", f'"{index}"')
    client.run("DROP INDEX {index}", index=index)
    again: LiteralString = str(made).replace("CREATE INDEX", "CREATE INDEX CONCURRENTLY", 1)
    _interrupted(client, again)
    yield Damage()


@fault("bloat", "maintain", CLAIM, STACK, SPLIT, FIFO)
def leftover_index(client: FaultyQueue) -> Iterator[Damage]:
    """The index that an interrupted REINDEX CONCURRENTLY leaves."""
    key = f"{client.queue.table}_pkey"
    _interrupted(client, "REINDEX INDEX CONCURRENTLY {key}", key=key)
    yield Damage()


@fault("bloat", "maintain", FIFO, PENDING, CLAIM)
def dead_rows(client: FaultyQueue, count: int = 12_000) -> Iterator[Damage]:
    """A push of several messages was rolled back."""
    kind = client.queue.options["payload"]
    many = [message(kind, 9, number) for number in range(count)]
    with connect(client.url) as producer:
        producer.execute("BEGIN")
        producer.execute(client.sql("SELECT {push_many}(%s::text[])"), [many])
        producer.execute("ROLLBACK")
    client.wait_for_dead_rows(count)
    yield Damage()


@fault("archive_lags", "archive", STATUS, SPLIT, TWO_STEP)
def old_and_done(client: FaultyQueue) -> Iterator[Damage]:
    """Make all done rows two days old; only these are archived."""
    aged = client.run(
        "UPDATE {table} SET done_at = done_at - interval '2 days' WHERE status = 2 RETURNING id"
    )
    yield Damage()
    assert aged
    assert sorted(client.run("SELECT id FROM {archive}")) == sorted(aged)
    assert not client.run("SELECT id FROM {table} WHERE id = ANY(%s)", aged)


@fault("payload_missing", "repair", SPLIT, thresholds=MANY_ERRORS, left=("payload_lost",))
def lost_payloads(client: FaultyQueue) -> Iterator[Damage]:
    """Delete the payloads of the newest ready messages."""
    taken: list[object] = []

    def some_deleted() -> bool:
        taken.extend(
            client.run(
                "DELETE FROM {data} AS d USING (SELECT id FROM {table} WHERE status = 0 "
                "ORDER BY queue_date_time DESC LIMIT 2 FOR UPDATE SKIP LOCKED) AS m "
                "WHERE d.id = m.id RETURNING d.text_data"
            )
        )
        return bool(taken)

    wait_until(some_deleted, "something is ready")
    yield Damage(lost=[sender(str(payload)) for payload in taken])


@fault("payload_missing", "repair", TWO_STEP, thresholds=MANY_ERRORS, left=("payload_lost",))
def claimed_incomplete(client: FaultyQueue) -> Iterator[Damage]:
    """Like `lost_payloads`, then claimed an hour ago by pops that returned nothing."""
    with lost_payloads(client) as fault:
        incomplete: LiteralString = (
            "SELECT CAST(m.id AS text) FROM {table} AS m WHERE m.status = %s "
            "AND NOT EXISTS (SELECT FROM {data} AS d WHERE d.id = m.id)"
        )

        def all_claimed() -> bool:
            return len(client.run(incomplete, 1)) == len(fault.lost)

        wait_until(all_claimed, "they are claimed")
        client.age(*client.run(incomplete, 1))
        yield fault


@fault("key_missing", "maintain", STACK, PENDING, CLAIM, STATUS, SPLIT, FIFO)
def dropped_key(client: FaultyQueue) -> Iterator[Damage]:
    client.run("ALTER TABLE {table} DROP CONSTRAINT {key}", key=f"{client.queue.table}_pkey")
    yield Damage()


# -- of the server


def backends(url: str) -> list[int]:
    """The other sessions on the database."""
    query = (
        "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"
        " AND datname = current_database() AND pid <> pg_backend_pid() ORDER BY pid"
    )
    return [pid for (pid,) in execute(url, query)]


def kill_backend(url: str, chance: random.Random) -> bool:
    """SIGKILL one of the sessions on the database: the server crashes and recovers."""
    pids = backends(url)
    return bool(pids) and kill_session(url, chance.choice(pids))


def crash(server: EmbeddedServer) -> None:
    """kill -9, then a start."""
    server.kill()
    server.restart()
