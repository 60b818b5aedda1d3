"""A ring on a real server: install it, call it, break it, read and repair it."""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from random import Random
from select import select
from typing import Any

import psycopg
from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from console import sql
from console.actions.relay import Measure, Relaid, relay
from console.catalog import Queue
from console.doctor.context import check_context
from console.doctor.finding import Finding
from console.doctor.ring import CHECKS
from console.engines import Database, open_database
from console.errors import BusyError, ConnectionFailedError, RefusedError, UsageError
from tests.faults.harness.doctor import Examined
from tests.faults.harness.model import Store, most_turns
from tests.servers import PATIENCE_SECONDS, connect, wait_until
from tests.tools.queues import install_queue
from tests.tools.repairs import carry_out

On = psycopg.Connection | None
"""The session of a call; None: the ring's own."""


_LARGEST = 400


@dataclass(frozen=True)
class Popped:
    """A row that pop returns."""

    id: int
    payload: str
    pushed_at: object
    attempts: int


@dataclass(frozen=True)
class Ring(Examined):
    """An installed ring. Its calls run in its own session, unless `on` is another one."""

    url: str
    database: Database
    queue: Queue
    _session: list[psycopg.Connection] = field(default_factory=list)
    """None or one; shared by the rings of all subscribers."""

    def of(self, subscriber: str) -> "Ring":
        """The ring of one of its current subscribers, or the entire ring."""
        return replace(self, queue=self.known.of(subscriber) if subscriber else self.known)

    @property
    def _subscriber_argument(self) -> list[str]:
        """The extra argument of its pops."""
        return [self.queue.subscriber] if self.queue.subscriber else []

    @property
    def number(self) -> int:
        """The subscriber's number; 0: without subscribers."""
        known = self.queue.subscribers
        return next((one.number for one in known if one.name == self.queue.subscriber), 0)

    @property
    def _is_owed(self) -> str:
        """A condition on slot r: owed by this subscriber."""
        owed = " AND r.message_id > (SELECT p.message_id FROM {popped} AS p WHERE p.slot = r.slot"
        return f"{owed} AND p.subscriber = {self.number})" * bool(self.number)

    @property
    def session(self) -> psycopg.Connection:
        """Its own, autocommit; a new one after the server has ended the last."""
        # An idle one is readable only if the server has ended it.
        if self._session and (self._session[0].closed or select([self._session[0]], [], [], 0)[0]):
            self._session.pop().close()
        if not self._session:
            self._session.append(self.connect())
        return self._session[0]

    def execute(self, text: str, *values: object) -> psycopg.Cursor:
        """Run a statement with the ring's names."""
        return self.session.execute(self.sql(text), values or None)

    def connect(self, *settings: str) -> psycopg.Connection:
        """A new autocommit session with these settings."""
        connection = connect(self.url)
        for setting in settings:
            connection.execute(SQL("SET {}").format(SQL(setting)))
        return connection

    @contextmanager
    def undone(self) -> Iterator[psycopg.Connection]:
        """A session's transaction that is rolled back, and counted by the server at once."""
        with self.connect() as session:
            with session.transaction(force_rollback=True):
                yield session
            session.execute("SELECT pg_stat_force_next_flush()")

    def sql(self, text: str) -> Composed:
        """`text` with {push}, {ring}, {parked}... replaced by the ring's quoted names."""
        schema, name = self.queue.schema, self.queue.name
        words = [
            *("push", "push_many", "pop", "pop_many", "complete", "fail", "relay"),
            *("config", "parked", "push_seq", "pop_seq", "turn_seq", "in_hand", "archive"),
        ]
        names: dict[str, Composable] = {
            word: Identifier(schema, f"{name}_{word}") for word in words
        }
        for side in ("push", "pop"):  # as text, for nextval
            names[f"{side}_name"] = Literal(names[f"{side}_seq"].as_string())
        names["parked_name"] = Literal(names["parked"].as_string())
        names["contents"] = self._contents
        if self.number:
            names["pop_seq"] = Identifier(schema, self.queue.roles["pop_sequence"])
            names["pop_name"] = Literal(names["pop_seq"].as_string())
        for word in ("subscribers", "popped"):
            names[word] = Identifier(schema, f"{name}_{word}")
        return SQL(text).format(ring=Identifier(schema, name), **names)

    @property
    def content_tables(self) -> list[Identifier]:
        """Empty if messages are in the slots."""
        schema, name = self.queue.schema, self.queue.name
        numbers = range(self.queue.partitions)
        return [Identifier(schema, f"{name}_content_{number}") for number in numbers]

    @property
    def _contents(self) -> Composable:
        """(first_id, message) of all messages, wherever they are stored."""
        tables = self.content_tables
        if not tables:
            slots = SQL("(SELECT first_id, message FROM {} WHERE reference_count > 0)")
            return slots.format(Identifier(self.queue.schema, self.queue.name))
        each = SQL("SELECT content_id AS first_id, content AS message FROM {}")
        return SQL("({})").format(SQL(" UNION ALL ").join(map(each.format, tables)))

    def contents(self) -> dict[int, str]:
        """first_id -> message."""
        return dict(self.execute("SELECT * FROM {contents} AS c").fetchall())

    def _call(self, function: str, values: Sequence[object], on: On) -> list[tuple[Any, ...]]:
        call = f"SELECT * FROM {{{function}}}({', '.join(['%s'] * len(values))})"
        return (on or self.session).execute(self.sql(call), values).fetchall()

    def push(self, payload: str, on: On = None) -> int | None:
        """The number that push returned."""
        ((number,),) = self._call("push", [payload], on)
        return None if number is None else int(number)

    def push_many(self, payloads: Sequence[str], on: On = None) -> list[int | None]:
        """The numbers that push_many returned."""
        return [number for (number,) in self._call("push_many", [list(payloads)], on)]

    def pop(self, on: On = None) -> Popped | None:
        """One message."""
        rows = self._call("pop", self._subscriber_argument, on)
        assert len(rows) <= 1
        return Popped(*rows[0]) if rows else None

    def popped(self, on: On = None) -> str | None:
        """The payload of one message."""
        message = self.pop(on)
        return message.payload if message else None

    def pop_many(self, n: int, on: On = None) -> list[Popped]:
        """At most n messages."""
        rows = self._call("pop_many", [n, *self._subscriber_argument], on)
        return [Popped(*row) for row in rows]

    def take(self, batch: int = 0, on: On = None) -> list[Popped]:
        """Pop with pop_many, at most this many; 0: with pop."""
        if batch:
            return self.pop_many(batch, on)
        popped = self.pop(on)
        return [popped] if popped else []

    def consume_numbers(self, side: str, count: int = 1) -> None:
        """Draw numbers without using them, like callers that roll back; `side`: push or pop."""
        self.execute(f"SELECT count(nextval({{{side}_name}})) FROM generate_series(1, %s)", count)

    def relay(self, new_size: int | None = None) -> Relaid:
        return relay(self.database, self.queue, new_size)

    def try_relay(self, chance: Random) -> Relaid | None:
        """Relay to a random size; None if it was refused or interrupted."""
        with suppress(RefusedError, UsageError, ConnectionFailedError):
            return self.relay(chance.randint(1, _LARGEST))
        return None

    def measure(self) -> Measure:
        product = self.database.product
        with self.database.transaction("measure the ring") as connection:
            return sql.row(connection, Measure, "ring.measure", self.queue.scope(product))

    def in_hand(self) -> Counter[str]:
        """The payloads of messages that were popped and not completed."""
        query = "SELECT payload FROM {in_hand}"
        query += f" WHERE subscriber = {self.number}" * bool(self.number)
        return Counter(text for (text,) in self.execute(query))

    def parked(self) -> set[tuple[int, bool]]:
        """(number, void)."""
        query = "SELECT number, void FROM {parked}"
        query += f" WHERE subscriber = {self.number}" * bool(self.number)
        return set(self.execute(query).fetchall())

    def most_turns(self) -> int:
        """After this many calls each parked number has had its turn, as ring/install.sql proves."""
        ((chunks,),) = self.execute("SELECT pg_relation_size({parked_name}) / 1024").fetchall()
        return most_turns(chunks)

    def live(self) -> list[tuple[int, int, int, str]]:
        """(slot, message_id, first_id, message) in the order of the numbers."""
        return self.execute(
            "SELECT r.slot, r.message_id, r.first_id, c.message FROM {ring} AS r"
            " LEFT JOIN {contents} AS c ON r.first_id = c.first_id"
            " WHERE r.reference_count > 0" + self._is_owed + " ORDER BY r.message_id"
        ).fetchall()

    def held(self, on: On = None) -> set[int]:
        """The numbers in slots, whether owed or not."""
        query = self.sql("SELECT message_id FROM {ring} WHERE message_id IS NOT NULL")
        return {number for (number,) in (on or self.session).execute(query)}

    def park_orphans(self) -> int:
        """The repair without its lock; only valid while no popping transaction is open."""
        repair = """
            INSERT INTO {parked} (number, void, parked_at)
            SELECT r.message_id, false, clock_timestamp() FROM {ring} AS r
            WHERE r.message_id < (SELECT last_value + is_called::int FROM {pop_seq})
            AND r.message_id >= (SELECT base FROM {config})
            ORDER BY r.message_id ON CONFLICT DO NOTHING
        """
        return self.execute(repair).rowcount

    def is_drained(self) -> bool:
        """Whether no number is left to draw, and no parked one has its message."""
        waiting = """
            SELECT count(*) FROM {parked} AS p
            INNER JOIN {ring} AS r ON r.message_id = p.number WHERE NOT p.void
        """ + (f" AND p.subscriber = {self.number}" if self.number else "")
        return self.measure().gap <= 0 and self.execute(waiting).fetchone() == (0,)

    def drain(self, seconds: float = PATIENCE_SECONDS) -> list[Popped]:
        """Pop everything that can be popped."""
        drained: list[Popped] = []
        deadline = time.monotonic() + seconds
        while True:
            popped = self.pop_many(500)
            drained += popped
            if not popped and self.is_drained():
                return drained
            assert time.monotonic() < deadline, "the ring does not get empty"

    def left(self) -> Counter[str]:
        """Pop everything; the payloads of it, or of all that was not completed."""
        drained = self.drain()
        return self.in_hand() if self.queue.finishes else Counter(m.payload for m in drained)

    def relay_and_drain(self) -> list[Popped]:
        """All live messages; the ring must be empty afterwards."""
        self.relay()
        drained = [*self._pop_all_parked(), *self.drain()]
        after = self.measure()
        assert (after.live, after.gap, after.parked, after.voids) == (0, 0, 0, 0), after
        assert self.contents() == {}
        return drained

    def _pop_all_parked(self) -> list[Popped]:
        """Park all live messages among holes, in a churned table, and pop each of them."""
        poppeds: list[Popped] = []
        now = self.measure()
        numbers = [*range(now.next_pop, now.next_push), *range(-300, 0)]
        Random(now.base).shuffle(numbers)
        if now.gap > 0:
            self.execute("SELECT setval({pop_name}, %s)", now.next_push - 1)
        self.execute("INSERT INTO {parked} SELECT unnest(%s::bigint[]), false, now()", numbers)
        most = self.most_turns()
        for _ in range(most):
            poppeds += self.pop_many(1000)
            if len(poppeds) == now.live:
                break
        assert len(poppeds) == now.live, f"{now.live - len(poppeds)} had no turn in {most} calls"
        self.execute("DELETE FROM {parked} WHERE number < 0")
        return poppeds

    def set_state(self, store: Store) -> None:
        """Set it to the model's state, with messages in slots."""
        numbers = {slot: live.message_id for slot, live in store.slots.items()}
        with self.session.transaction(), self.session.cursor() as cursor:
            for statement in (
                "DELETE FROM {ring}",
                "DELETE FROM {parked}",
                f"UPDATE {{config}} SET size = {store.size}, base = {store.base}",
                f"SELECT setval({{push_name}}, {store.next_push}, false)",
                f"SELECT setval({{pop_name}}, {store.next_pop}, false)",
            ):
                cursor.execute(self.sql(statement))
            for table in self.content_tables:
                cursor.execute(SQL("DELETE FROM {}").format(table))
            slots = self.sql(
                "INSERT INTO {ring} (slot, message_id, first_id, time, reference_count)"
                " SELECT s, n, n, now(), (n IS NOT NULL)::int"
                " FROM (SELECT %s::bigint AS s, %s::bigint AS n)"
            )
            cursor.executemany(slots, [(slot, numbers.get(slot)) for slot in range(store.size)])
            messages = self.sql("UPDATE {ring} SET message = %s WHERE slot = %s")
            cursor.executemany(messages, [(m.payload, slot) for slot, m in store.slots.items()])
            park = self.sql("INSERT INTO {parked} VALUES (%s, %s, now())")
            cursor.executemany(park, sorted(store.parked))

    def fill(self, count: int, popped: int = 0) -> list[str]:
        """Push this many messages, pop the first ones; the payloads that are left."""
        sent = [f"message {number}" for number in range(1, count + 1)]
        for start in range(0, count, 500):
            assert None not in self.push_many(sent[start : start + 500])
        taken = [self.pop() for _ in range(popped)]
        assert [message.payload for message in taken if message] == sent[:popped]
        return sent[popped:]

    def texts(self) -> list[str]:
        """The payloads of everything that can be popped, in order."""
        return [message.payload for message in self.drain()]

    def close(self) -> None:
        """Close all its connections; the next call opens a new one."""
        for session in self._session:
            session.close()
        self.database.close()

    # -- the doctor

    def examine(self, patience_seconds: float = 10.0) -> tuple[list[Finding], list[str]]:
        """The findings, and the parts that could not be checked."""
        known = {"patience_seconds": patience_seconds}
        with check_context(self.database, self.queue, **known) as context:
            findings = list(CHECKS.run(context))
        assert {finding.code for finding in findings} <= set(CHECKS.codes)
        assert findings == sorted(findings, key=lambda finding: -finding.code.severity)
        return findings, context.unseen

    def findings(self) -> dict[str, Finding]:
        """The findings by code; everything could be checked."""
        findings, unseen = self.examine()
        assert unseen == []
        by_code = {finding.code.name: finding for finding in findings}
        assert len(by_code) == len(findings)
        return by_code

    def finds(self, *codes: str) -> dict[str, Finding]:
        """The findings, which are these, in this order."""
        found = self.findings()
        assert tuple(found) == codes
        return found

    def repair_all(self) -> list[str]:
        """Run all unattended repairs; their lines."""
        return [
            line
            for finding in self.findings().values()
            if finding.repair is not None and finding.repair.unattended
            for line in self.repair(finding)
        ]

    def repair_until_clear(self, finding: Finding) -> None:
        """Run the repair of one finding, then the unattended ones; afterwards nothing is wrong."""
        assert self.repair(finding)
        self.repair_all()
        assert self.findings() == {}

    def try_repairs(self) -> int:
        """How many repairs changed something; those blocked by an open transaction are skipped."""
        done = 0
        findings, _ = self.examine(patience_seconds=2.0)
        for finding in findings:
            assert finding.code.name not in {"slot_mismatch", "slot_count", "sequence_behind"}
            if finding.repair is not None and finding.repair.unattended:
                with suppress(BusyError):
                    done += bool(carry_out(finding.repair, self.database))
        return done


Make = Callable[..., Ring]
"""The fixture `make`."""

_numbers = itertools.count(1)


def make_ring(url: str, name: str = "", **options: object) -> Ring:
    """Install a ring; by default with a new name that needs quoting."""
    name = name or f"ring {next(_numbers)}"
    database = open_database(url)
    given = {"consumers": "direct", **{key: str(value) for key, value in options.items()}}
    return Ring(url, database, install_queue(database, name, "ring", **given))


def set_sequences(ring: Ring, to: int) -> None:
    """Set both sequences, as if a long time had passed."""
    for side in ("push", "pop"):
        ring.execute(f"SELECT setval({{{side}_name}}, %s, false)", to)


def page_of_holes(ring: Ring) -> int:
    """Create a page of parked as after churn: the number at (0,258) has its message.

    28 holes at the first line pointers, dead ones after them, 100 holes from 158 to 257.
    """
    park = "INSERT INTO {parked} SELECT generate_series(%s::bigint, %s), false, now()"
    ring.execute("ALTER TABLE {parked} SET (autovacuum_enabled = off)")
    set_sequences(ring, 500)
    assert ring.push("late") == 500
    set_sequences(ring, 1000)
    ring.execute(park, 1, 157)
    ring.execute("DELETE FROM {parked} WHERE number > 28")
    assert len(ring.parked()) == 28  # reading the full page prunes it
    ring.execute(park, 201, 300)
    ring.execute(park, 500, 500)
    ctids: dict[int, str] = dict(ring.execute("SELECT number, ctid::text FROM {parked}").fetchall())
    assert [ctids[n] for n in (28, 201, 300, 500)] == ["(0,28)", "(0,158)", "(0,257)", "(0,258)"]
    return 500


def wait_until_blocked(ring: Ring, waiter: psycopg.Connection) -> None:
    """Wait until the session waits for another one's lock."""
    blocked = "SELECT cardinality(pg_blocking_pids(%s)) > 0"
    pid = waiter.info.backend_pid
    wait_until(lambda: ring.execute(blocked, pid).fetchone() == (True,), "it waits")


def wait_for_server(url: str) -> None:
    """Wait until it accepts connections, after its recovery."""

    def accepts() -> bool:
        with suppress(psycopg.OperationalError):
            connect(url).close()
            return True
        return False

    wait_until(accepts, "the server is back")
