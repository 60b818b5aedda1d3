"""A ring on a real server: install it, call it, read and repair it."""

import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import psycopg
from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from console import sql
from console.actions.install import install
from console.actions.relay import Measure, Relaid, relay
from console.catalog import Queue, find, installed_queue
from console.designs import DESIGNS
from console.engines import Database, open_database
from tests.faults.ring_model import Store, most_turns
from tests.servers import PATIENCE_SECONDS, connect, wait_until


@dataclass(frozen=True)
class Popped:
    """A row that pop returns."""

    id: int
    payload: str
    pushed_at: object
    attempts: int


@dataclass(frozen=True)
class Ring:
    """An installed ring, and how to reach it."""

    url: str
    database: Database
    queue: Queue

    def of(self, subscriber: str) -> "Ring":
        """The ring of one of its current subscribers, or the entire ring."""
        with self.database.transaction("read the catalog") as connection:
            now = find(connection, self.queue.name, self.queue.schema)
        return replace(self, queue=now.of(subscriber) if subscriber else now)

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

    def connect(self, *settings: str) -> psycopg.Connection:
        """A new autocommit session with these settings."""
        connection = connect(self.url)
        for setting in settings:
            connection.execute(SQL("SET {}").format(SQL(setting)))
        return connection

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

    def contents(self, connection: psycopg.Connection) -> dict[int, str]:
        """first_id -> message."""
        return dict(connection.execute(self.sql("SELECT * FROM {contents} AS c")).fetchall())

    def push(self, connection: psycopg.Connection, payload: str) -> int | None:
        """The number that push returned."""
        row = connection.execute(self.sql("SELECT {push}(%s)"), [payload]).fetchone()
        assert row is not None
        return row[0]  # type: ignore[no-any-return]

    def push_many(
        self, connection: psycopg.Connection, payloads: Sequence[str]
    ) -> list[int | None]:
        """The numbers that push_many returned."""
        rows = connection.execute(self.sql("SELECT * FROM {push_many}(%s)"), [list(payloads)])
        return [number for (number,) in rows]

    def pop(self, connection: psycopg.Connection) -> Popped | None:
        """One message."""
        marks = ", ".join("%s" for _ in self._subscriber_argument)
        rows = connection.execute(
            self.sql(f"SELECT * FROM {{pop}}({marks})"), self._subscriber_argument
        ).fetchall()
        assert len(rows) <= 1
        return Popped(*rows[0]) if rows else None

    def pop_many(self, connection: psycopg.Connection, n: int) -> list[Popped]:
        """At most n messages."""
        values = [n, *self._subscriber_argument]
        marks = ", ".join("%s" for _ in values)
        rows = connection.execute(self.sql(f"SELECT * FROM {{pop_many}}({marks})"), values)
        return [Popped(*row) for row in rows]

    def take(self, connection: psycopg.Connection, batch: int = 0) -> list[Popped]:
        """Pop with pop_many, at most this many; 0: with pop."""
        if batch:
            return self.pop_many(connection, batch)
        popped = self.pop(connection)
        return [popped] if popped else []

    def consume_numbers(self, connection: psycopg.Connection, side: str, count: int = 1) -> None:
        """Draw numbers without using them, like callers that roll back; `side`: push or pop."""
        draw = f"SELECT count(nextval({{{side}_name}})) FROM generate_series(1, %s)"
        connection.execute(self.sql(draw), [count])

    def relay(self, new_size: int | None = None) -> Relaid:
        return relay(self.database, self.queue, new_size)

    def measure(self) -> Measure:
        product = self.database.product
        with self.database.transaction("measure the ring") as connection:
            return sql.row(connection, Measure, "ring.measure", self.queue.scope(product))

    def parked(self, connection: psycopg.Connection) -> set[tuple[int, bool]]:
        """(number, void)."""
        query = "SELECT number, void FROM {parked}"
        query += f" WHERE subscriber = {self.number}" * bool(self.number)
        return set(connection.execute(self.sql(query)).fetchall())

    def most_turns(self, connection: psycopg.Connection) -> int:
        """After this many calls each parked number has had its turn, as ring/install.sql proves."""
        size = self.sql("SELECT pg_relation_size({parked_name}) / 1024")
        row = connection.execute(size).fetchone()
        assert row is not None
        return most_turns(row[0])

    def live(self, connection: psycopg.Connection) -> list[tuple[int, int, int, str]]:
        """(slot, message_id, first_id, message) in the order of the numbers."""
        return connection.execute(
            self.sql(
                "SELECT r.slot, r.message_id, r.first_id, c.message FROM {ring} AS r"
                " LEFT JOIN {contents} AS c ON r.first_id = c.first_id"
                " WHERE r.reference_count > 0" + self._is_owed + " ORDER BY r.message_id"
            )
        ).fetchall()

    def held(self, connection: psycopg.Connection) -> set[int]:
        """The numbers in slots, whether owed or not."""
        query = self.sql("SELECT message_id FROM {ring} WHERE message_id IS NOT NULL")
        return {number for (number,) in connection.execute(query)}

    def park_orphans(self, connection: psycopg.Connection) -> int:
        """The repair without its lock; only valid while no popping transaction is open."""
        repair = """
            INSERT INTO {parked} (number, void, parked_at)
            SELECT r.message_id, false, clock_timestamp() FROM {ring} AS r
            WHERE r.message_id < (SELECT last_value + is_called::int FROM {pop_seq})
            AND r.message_id >= (SELECT base FROM {config})
            ORDER BY r.message_id ON CONFLICT DO NOTHING
        """
        return connection.execute(self.sql(repair)).rowcount

    def is_drained(self, connection: psycopg.Connection) -> bool:
        """Whether no number is left to draw, and no parked one has its message."""
        waiting = """
            SELECT count(*) FROM {parked} AS p
            INNER JOIN {ring} AS r ON r.message_id = p.number WHERE NOT p.void
        """ + (f" AND p.subscriber = {self.number}" if self.number else "")
        row = connection.execute(self.sql(waiting)).fetchone()
        return self.measure().gap <= 0 and row == (0,)

    def drain(self, seconds: float = PATIENCE_SECONDS) -> list[Popped]:
        """Pop everything that can be popped."""
        is_drained: list[Popped] = []
        deadline = time.monotonic() + seconds
        with self.connect() as connection:
            while True:
                popped = self.pop_many(connection, 500)
                is_drained += popped
                if not popped and self.is_drained(connection):
                    return is_drained
                assert time.monotonic() < deadline, "the ring does not get empty"

    def set_state(self, connection: psycopg.Connection, store: Store) -> None:
        """Set it to the model's state, with messages in slots."""
        numbers = {slot: live.message_id for slot, live in store.slots.items()}
        with connection.transaction(), connection.cursor() as cursor:
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

    def fill(self, count: int) -> list[str]:
        """Push this many messages; their payloads."""
        texts = [f"message {number}" for number in range(count)]
        with self.connect() as connection:
            assert None not in self.push_many(connection, texts)
        return texts

    def texts(self) -> list[str]:
        """The payloads of everything that can be popped, in order."""
        return [message.payload for message in self.drain()]

    def close(self) -> None:
        self.database.close()


Make = Callable[..., Ring]
"""The fixture `make`."""

_numbers = itertools.count(1)


def make_ring(url: str, name: str = "", **options: object) -> Ring:
    """Install a ring; by default with a new name that needs quoting."""
    name = name or f"ring {next(_numbers)}"
    database = open_database(url)
    design = DESIGNS["ring"]
    given = {"consumers": "direct", **{key: str(value) for key, value in options.items()}}
    chosen = design.complete_options(given, "postgresql")
    queue = installed_queue("public", name, design, chosen)
    install(database, queue)
    return Ring(url, database, queue)


def set_sequences(ring: Ring, connection: psycopg.Connection, to: int) -> None:
    """Set both sequences, as if a long time had passed."""
    for side in ("push", "pop"):
        connection.execute(ring.sql(f"SELECT setval({{{side}_name}}, %s, false)"), [to])


def page_of_holes(ring: Ring, connection: psycopg.Connection) -> int:
    """Create a page of parked as after churn: the number at (0,258) has its message.

    28 holes at the first line pointers, dead ones after them, 100 holes from 158 to 257.
    """
    park = "INSERT INTO {parked} SELECT generate_series(%s::bigint, %s), false, now()"
    connection.execute(ring.sql("ALTER TABLE {parked} SET (autovacuum_enabled = off)"))
    set_sequences(ring, connection, 500)
    assert ring.push(connection, "late") == 500
    set_sequences(ring, connection, 1000)
    connection.execute(ring.sql(park), [1, 157])
    connection.execute(ring.sql("DELETE FROM {parked} WHERE number > 28"))
    assert len(ring.parked(connection)) == 28  # reading the full page prunes it
    connection.execute(ring.sql(park), [201, 300])
    connection.execute(ring.sql(park), [500, 500])
    rows = connection.execute(ring.sql("SELECT number, ctid::text FROM {parked}")).fetchall()
    ctids: dict[int, str] = dict(rows)
    assert [ctids[n] for n in (28, 201, 300, 500)] == [
        "(0,28)",
        "(0,158)",
        "(0,257)",
        "(0,258)",
    ]
    return 500


def wait_until_blocked(ring: Ring, waiter: psycopg.Connection) -> None:
    """Wait until the session waits for another one's lock."""
    blocked = "SELECT cardinality(pg_blocking_pids(%s)) > 0"
    with ring.connect() as observer:
        pid = waiter.info.backend_pid
        wait_until(lambda: observer.execute(blocked, [pid]).fetchone() == (True,), "it waits")


def wait_for_server(url: str) -> None:
    """Wait until it accepts connections, after its recovery."""

    def accepts() -> bool:
        with suppress(psycopg.OperationalError):
            connect(url).close()
            return True
        return False

    wait_until(accepts, "the server is back")
