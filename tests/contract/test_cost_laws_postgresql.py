"""The laws of cost: what a sample, a page of messages and each verb may cost, whatever the depth.

Every queue is filled with 1,000 and with 100,000 messages. Statements, pages and rows are those
that the server counts (pg_stat_statements), bytes those that pass a proxy; no clock decides.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from console.actions import execute, rows
from console.actions.archive import Archive, Purge
from console.actions.execute import Batching
from console.actions.export import PAYLOAD_BYTES, ExportRequest, export
from console.actions.message_action import MessageAction
from console.actions.requeue import Release, Requeue
from console.actions.reschedule import Reschedule
from console.actions.restore import Restore
from console.designs import DESIGNS
from console.engines import Database, open_database
from console.monitor import message_count, messages
from console.monitor.filters import NOTHING
from console.monitor.memory import Memory
from console.monitor.sample import take_sample
from console.monitor.scan_query import MessageSource
from tests.contract.client import Client
from tests.contract.installs import installed
from tests.contract.message_actions import source_of
from tests.contract.variants import Variant
from tests.servers import connect, fresh_database
from tests.servers.postgresql import CopiedServer
from tests.servers.proxy import Proxy
from tests.tools.filling import fill

DEPTHS = 1_000, 100_000
BATCH = 1_000
PAYLOAD = "0123456789abcdef"


class Cost(NamedTuple):
    statements: float
    pages: float
    """Of 8 kB, from the cache or not."""
    entries: float
    """Of indexes, and rows of tables, read by a scan, dead ones too: a page has hundreds."""
    rows: float
    """Returned or changed."""
    bytes: float
    """Sent and received."""


class Law(NamedTuple):
    """The most that it may cost: `always`, and `each` for every message of the queue."""

    always: Cost
    each: Cost


def law(*always: float, each: tuple[float, ...] = (0,) * 5) -> Law:
    return Law(Cost._make(always), Cost._make(each))


A_BATCH = 10 / BATCH
"""Statements and rows of a verb, whose batches are `BATCH` messages: it reads none of them."""
A_CHUNK = 5 / message_count.ROWS_AT_ONCE
"""Those of a plan, which counts in chunks and reads only the messages of its sample."""
LAWS = {
    # Statements, pages, entries, rows, bytes.
    "sample": law(32, 1_000, 40_000, 130, 52_000),
    "the sampler's next sample": law(28, 850, 20_000, 28, 46_000),
    "three pages of messages": law(24, 46, 220, 165, 95_000),
    "three pages of messages of heap": law(18, 125, 12_500, 165, 45_000),
    "export": law(30, 700, 600, 20, 20_000, each=(0.003, 0.12, 1.1, 1.01, 260)),
    "export of heap": law(30, 700, 600, 20, 20_000, each=(0.003, 0.1, 8.5, 1.01, 200)),
    "export of split": law(30, 700, 600, 20, 20_000, each=(7 / 500, 3.3, 2.1, 1.01, 260)),
    "plan": law(30, 500, 600, 20, 40_000, each=(A_CHUNK, 0.05, 2.1, A_CHUNK, 0.3)),
    "plan of purge of ring": law(30, 500, 600, 20, 40_000, each=(A_CHUNK, 0.09, 1.1, A_CHUNK, 0.3)),
    "plan of restore": law(45, 3_600, 2_000, 30, 45_000, each=(A_CHUNK, 1.2, 2.7, A_CHUNK, 0.3)),
    "plan of restore of claim": law(45, 1_200, 600, 30, 45_000, each=(A_CHUNK, 7, 4, A_CHUNK, 0.3)),
    "requeue": law(25, 500, 600, 20, 35_000, each=(A_BATCH, 14, 1.3, A_BATCH, 32)),
    "release": law(25, 500, 600, 20, 35_000, each=(A_BATCH, 16.5, 2.3, A_BATCH, 32)),
    "archive": law(25, 500, 600, 20, 35_000, each=(A_BATCH, 11, 1.3, A_BATCH, 32)),
    "purge": law(25, 500, 1_200, 20, 35_000, each=(A_BATCH, 11, 1.3, A_BATCH, 34)),
    "purge of ring": law(25, 500, 600, 20, 35_000, each=(0.012, 22, 2.3, A_BATCH, 36)),
    "purge of heap": law(25, 500, 600, 20, 35_000, each=(A_BATCH, 11, 7, A_BATCH, 32)),
    # The first two batches read all, each of the others only its own.
    "plan of one time": law(30, 500, 1_200, 20, 40_000, each=(A_CHUNK, 0.09, 4.1, A_CHUNK, 0.3)),
    "release of one time": law(25, 500, 600, 20, 35_000, each=(A_BATCH, 17, 5.1, A_BATCH, 32)),
    "requeue of one time": law(25, 500, 600, 20, 35_000, each=(A_BATCH, 14, 4.1, A_BATCH, 32)),
    "archive of one time": law(25, 500, 600, 20, 35_000, each=(A_BATCH, 13, 4.1, A_BATCH, 32)),
    # Each batch asks first which of the claimants are in it.
    "plan of many claimants": law(
        30, 500, 1_200, 320, 70_000, each=(A_CHUNK, 0.09, 4.1, A_CHUNK, 0.3)
    ),
    "release of many claimants": law(30, 500, 600, 350, 90_000, each=(0.014, 16, 7.4, 0.31, 80)),
    "reschedule": law(25, 500, 600, 20, 35_000, each=(A_BATCH, 10, 1.3, A_BATCH, 32)),
    "restore": law(40, 1_500, 600, 25, 50_000, each=(0.018, 9.5, 10.5, A_BATCH, 36)),
    "restore of claim": law(40, 1_500, 600, 25, 50_000, each=(0.018, 20, 12.5, A_BATCH, 36)),
}
"""What, or what of a design that differs -> its law."""

ACTIONS: Mapping[str, Callable[[MessageSource], MessageAction]] = {
    "requeue": Requeue,
    "release": partial(Release, stuck_after_seconds=0.0, unknown=True),
    "archive": Archive,
    "purge": Purge,
    "reschedule": partial(Reschedule, in_seconds=60.0),
    "restore": Restore,
}
CASES = [
    ("naive", "ready", "purge"),
    ("ring", "ready", "purge restore"),
    ("heap", "ready", "purge"),
    ("fifo", "ready", "purge restore"),
    ("stack", "ready", ""),
    ("pending", "scheduled", "reschedule"),
    ("claim", "errors", "requeue purge restore"),
    ("status", "done", "archive"),
    ("split", "claimed", "release"),
    pytest.param("fifo", "ready", "export", marks=pytest.mark.slow),
    pytest.param("ring", "ready", "export", marks=pytest.mark.slow),
    pytest.param("heap", "ready", "export", marks=pytest.mark.slow),
    pytest.param("split", "claimed", "export", marks=pytest.mark.slow),
]
"""Design, the state of its messages, what is done with them in turn."""


@pytest.fixture(scope="module")
def counting_server() -> Iterator[CopiedServer]:
    settings = {"shared_preload_libraries": "pg_stat_statements", "autovacuum": "off"}
    with CopiedServer.start(settings=settings) as server:
        yield server


@pytest.fixture
def url(counting_server: CopiedServer) -> Iterator[str]:
    """An empty database: each queue in a database makes all samples there cost a little more."""
    with fresh_database(counting_server.url) as url:
        with connect(url) as connection:
            connection.execute("CREATE EXTENSION pg_stat_statements")
        yield url


SPENT = """SELECT sum(calls)::int, sum(shared_blks_hit + shared_blks_read)::int, sum(rows)::int
FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat_statements%'
    AND dbid = (SELECT oid FROM pg_database WHERE datname = current_database())"""


ENTRIES = """SELECT (SELECT sum(seq_tup_read) FROM pg_stat_user_tables)::int
    + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes)::int"""

REPORT = "SELECT pg_stat_force_next_flush()"
"""What a session has read is else counted a second later, or when it ends."""


@dataclass
class Meter:
    """Counts what a database does for those who use it through the proxy."""

    connection: psycopg.Connection
    database: Database
    proxy: Proxy
    costs: dict[str, Cost] = field(default_factory=dict)

    @contextmanager
    def count(self, what: str) -> Iterator[None]:
        entries = self._entries()
        self.connection.execute("SELECT pg_stat_statements_reset()")
        before = self.proxy.forwarded
        yield
        forwarded = self.proxy.forwarded - before
        (spent,) = self.connection.execute(SPENT).fetchall()
        statements, pages, returned = spent
        entries = self._entries() - entries
        self.costs[what] = Cost(statements, pages, entries, returned, forwarded)

    def _entries(self) -> int:
        with self.database.transaction("report") as connection:
            connection.exec_driver_sql(REPORT)
        ((read,),) = self.connection.execute(ENTRIES).fetchall()
        return int(read)


@pytest.mark.parametrize(("design", "state", "verbs"), CASES)
def test_costs_keep_their_laws(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, design: str, state: str, verbs: str
) -> None:
    for module in (messages, message_count, rows):  # a slow machine would begin more of them
        monkeypatch.setattr(module, "TRANSACTION_SECONDS", math.inf)
    broken: list[str] = []
    for depth in DEPTHS:
        given = {"size": str(2 * depth), "max_bytes": "20"} if design == "ring" else {}
        variant = Variant(DESIGNS[design], given)
        with (
            connect(url) as own,
            connect(url) as old,
            Proxy(url) as proxy,
            closing(open_database(proxy.url)) as through,
        ):
            client = installed(through, variant, f"{design} {depth}")
            fill(own, client.queue, {state: depth}, PAYLOAD)
            own.execute(REPORT)
            # It keeps all dead rows: no scan gets shorter by what earlier batches removed.
            old.execute("BEGIN; SELECT txid_current(); SELECT 1 FROM pg_class")
            meter = Meter(own, through, proxy)
            look(client, meter)
            for verb in verbs.split():
                if verb == "export":
                    write(client, meter, tmp_path / f"{depth}.csv")
                else:
                    act(client, meter, verb, depth)
        broken += broken_laws(meter, design, depth)
    assert not broken, "\n".join(broken)


def broken_laws(meter: Meter, design: str, depth: int) -> Iterator[str]:
    for what, cost in meter.costs.items():
        kept = LAWS.get(f"{what} of {design}") or LAWS.get(what)
        kept = kept or LAWS.get(f"plan of {design}") or LAWS["plan"]
        most = Cost(*(always + depth * each for always, each in zip(*kept, strict=True)))
        if not all(one <= limit for one, limit in zip(cost, most, strict=True)):
            yield f"{what} of {depth:,} messages: {cost}, at most {most}"


@pytest.mark.parametrize(
    ("design", "state", "verb", "claimants"),
    [
        ("split", "claimed", "release", 1),
        ("ring", "claimed", "release", 300),
        ("claim", "errors", "requeue", 1),
        ("status", "done", "archive", 1),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("ring", "claimed", "release", 1),
                ("claim", "claimed", "release", 1),
                ("claim", "claimed", "release", 300),
                ("status", "claimed", "release", 1),
                ("status", "errors", "requeue", 1),
            )
        ),
    ],
)
def test_messages_of_one_time_cost_as_those_of_many(
    url: str, monkeypatch: pytest.MonkeyPatch, design: str, state: str, verb: str, claimants: int
) -> None:
    """As after an UPDATE of all, which gives them one time."""
    for module in (messages, message_count, rows):
        monkeypatch.setattr(module, "TRANSACTION_SECONDS", math.inf)
    broken: list[str] = []
    for depth in (1_000, 20_000):
        given = {"size": "16", "in_hand": "on"} if design == "ring" else {}
        with connect(url) as own, Proxy(url) as proxy, closing(open_database(proxy.url)) as through:
            client = installed(through, Variant(DESIGNS[design], given), f"{design} {depth}")
            fill(own, client.queue, {state: depth}, PAYLOAD)
            time_role = "claimed_at" if state == "claimed" else "done_at"
            popped = client.queue.scope_of("times", through.product)
            update = SQL(
                "UPDATE {} SET {} = now() - interval '1 hour',"
                " claimed_by = 'w' || abs(hashtext(id::text)) % {}"
            )
            table = Identifier(client.queue.schema, popped.values["table"])
            own.execute(update.format(table, Identifier(popped.roles[time_role]), claimants))
            own.execute(REPORT)
            meter = Meter(own, through, proxy)
            act(client, meter, verb, depth)
        broken += broken_laws(meter, "one time" if claimants == 1 else "many claimants", depth)
    assert not broken, "\n".join(broken)


def test_of_messages_of_one_time_none_is_left_among_many_others(url: str) -> None:
    """Too few of the next rows by key are theirs: the index of times is read."""
    with connect(url) as own, closing(open_database(url)) as database:
        client = installed(database, Variant(DESIGNS["status"], {}), "sparse")
        fill(own, client.queue, {"ready": 33_000}, PAYLOAD)
        own.execute(
            """UPDATE sparse
            SET status = 1, claimed_by = 'w', claimed_at = now() - interval '1 hour'
            WHERE id % 11 = 0 OR id > 32900"""
        )
        release = ACTIONS["release"](source_of(client))
        plan = execute.plan(database, release, batching=Batching(BATCH))
        assert plan.count == plan.run_to_end().done == 3_090
        counted = own.execute("SELECT status, count(*) FROM sparse GROUP BY status").fetchall()
        assert counted == [(0, 33_000)]


def look(client: Client, meter: Meter) -> None:
    database, queue, memory = client.database, client.queue, Memory()
    take_sample(database, only=[queue])  # the first one of a session costs more
    for what in ("sample", "the sampler's next sample"):
        with meter.count(what):
            take_sample(database, only=[queue], memory=memory)
    with meter.count("three pages of messages"):
        first = messages.read_page(database, queue)
        assert first.next is not None
        messages.read_page(database, queue, after=first.next.text)
        messages.read_page(database, queue, reverse=True)


def write(client: Client, meter: Meter, path: Path) -> None:
    with meter.count("export"):
        export(client.database, ExportRequest(client.queue, NOTHING, path, PAYLOAD_BYTES, rate=1e9))


def act(client: Client, meter: Meter, verb: str, depth: int) -> None:
    action = ACTIONS[verb](source_of(client))
    with meter.count(f"plan of {verb}"):
        plan = execute.plan(client.database, action, batching=Batching(BATCH))
    with meter.count(verb):
        assert plan.run_to_end().done == depth
