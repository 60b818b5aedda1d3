"""Queues of any design, and the faults that SQL and sessions cause."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any, LiteralString

import psycopg
from psycopg.sql import SQL, Composed, Identifier

from console.actions import maintenance
from console.designs import DESIGNS
from console.monitor.limits import DEFAULTS, Limits
from tests.contract.client import Client
from tests.contract.variants import SMALL_RING, Variant
from tests.faults.harness.doctor import Examined
from tests.servers import connect, execute, wait_until

SOON = 0.05
"""A threshold that is exceeded at once."""
IMPATIENT = replace(DEFAULTS, stuck_after_seconds=SOON)
MANY_ERRORS = DEFAULTS.with_limits(errors_share=Limits())


def variant(design: str, **options: str) -> Variant:
    """Rings are small."""
    small = {"size": SMALL_RING} if design == "ring" else {}
    return Variant(DESIGNS[design], {**small, **options})


NAIVE, HEAP, FIFO, STACK, PENDING = map(variant, ("naive", "heap", "fifo", "stack", "pending"))
CLAIM, STATUS, SPLIT, RING = map(variant, ("claim", "status", "split", "ring"))
STRICT = variant("fifo", order="strict")
TWO_STEP = variant("split", dequeue="two_step")
IN_HAND = variant("ring", in_hand="on")
DELETING = [NAIVE, HEAP, FIFO, STACK, PENDING]
CLAIMING = [CLAIM, STATUS, SPLIT, TWO_STEP, IN_HAND]


class FaultyQueue(Examined, Client):
    """A queue in use, and what breaks it."""

    @property
    def claims_table(self) -> str:
        queue = self.queue
        return f"{queue.name}_in_hand" if queue.design.name == "ring" else queue.table

    def sql(self, statement: LiteralString, **more: str) -> Composed:
        """`{table}` becomes the table of its claims, `{x}` what is called <queue>_x."""
        queue = self.queue
        suffixes = ("complete", "data", "archive", "push", "push_many", "pop", "pop_many")
        names = {suffix: Identifier(queue.schema, f"{queue.name}_{suffix}") for suffix in suffixes}
        names["table"] = Identifier(queue.schema, self.claims_table)
        more_names = {key: Identifier(name) for key, name in more.items()}
        return SQL(statement).format(**names, **more_names)

    def run(self, statement: LiteralString, *values: object, **more: str) -> list[Any]:
        """Run the statement; the first column of its result."""
        with connect(self.url) as connection:
            done = connection.execute(self.sql(statement, **more), values or None)
            return [row[0] for row in done.fetchall()] if done.description else []

    def rows_changed(self, statement: LiteralString) -> int:
        """Run the statement; how many rows it changed."""
        with connect(self.url) as connection:
            return connection.execute(self.sql(statement)).rowcount

    def age(self, *ids: str) -> None:
        """Make the claims an hour older."""
        column = "processing_started_at" if self.queue.design.name == "claim" else "claimed_at"
        self.run(
            "UPDATE {table} SET {column} = {column} - interval '1 hour' "
            "WHERE CAST(id AS text) = ANY(%s)",
            list(ids),
            column=column,
        )

    def popped_by(
        self, connection: psycopg.Connection, count: int = 1, *, bound: bool = False
    ) -> list[tuple[str, int]]:
        """(id, attempts) of the messages that the session pops, next to others that pop too."""
        arguments = SQL("'worker-7', {}").format(bound) if self.queue.finishes else SQL("")
        pop = self.sql("SELECT CAST(id AS text), attempts FROM {pop}(") + arguments + SQL(")")
        taken: list[tuple[str, int]] = []

        def enough() -> bool:
            taken.extend(connection.execute(pop).fetchall())
            return len(taken) >= count

        wait_until(enough, "there is so much to take")
        return taken

    def end_session(self, victim: psycopg.Connection) -> None:
        """End a session; it has disconnected when this returns."""
        execute(self.url, "SELECT pg_terminate_backend(%s, 30000)", [victim.info.backend_pid])

    def die_with_claims(self, count: int = 1) -> list[str]:
        """A consumer with bound claims is killed; their ids."""
        with closing(connect(self.url)) as consumer:
            taken = self.popped_by(consumer, count, bound=True)
            self.end_session(consumer)
        return [id_ for id_, _ in taken]

    def indexes(self) -> list[str]:
        """Those that are not keys."""
        rows = self.run(
            "SELECT i.indexrelid::regclass::text FROM pg_index AS i "
            "JOIN pg_class AS t ON i.indrelid = t.oid "
            "WHERE starts_with(t.relname, %s) AND NOT i.indisunique ORDER BY 1",
            self.queue.name,
        )
        return [str(name).strip('"') for name in rows]

    def drop_indexes(self) -> None:
        """Drop all that are not keys."""
        for index in self.indexes():
            self.run("DROP INDEX {index}", index=index)

    def invalidate(self, index: str) -> None:
        """As after an interrupted CREATE INDEX CONCURRENTLY or REINDEX CONCURRENTLY."""
        self.run(
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = %s::regclass", f'"{index}"'
        )

    def drop_constraints(self, table: str, *kinds: str) -> int:
        """Drop a table's constraints of these types ('c', 'p', 'u'); how many there were."""
        names = self.run(
            "SELECT conname FROM pg_constraint WHERE contype = ANY(%s) AND conrelid = %s::regclass",
            list(kinds),
            f'"{table}"',
        )
        for name in names:
            self.run("ALTER TABLE {of} DROP CONSTRAINT {name}", of=table, name=str(name))
        return len(names)

    def change_code(self, *changes: tuple[str, str]) -> None:
        """Edit pop_many; by default so that pops wait for one another."""
        (made,) = self.run(
            "SELECT pg_get_functiondef(%s::regproc)", f'"{self.queue.name}_pop_many"'
        )
        text = str(made)
        for before, after in changes or ((" SKIP LOCKED", ""),):
            assert before in text
            text = text.replace(before, after)
        execute(self.url, text)

    def make_older(self) -> None:
        """As a console of an older version left it."""
        self.run("UPDATE dbq.queue SET version = 0 WHERE queue_name = %s", self.queue.name)

    def wait_for_dead_rows(self, count: int) -> None:
        """Wait until the server has counted the dead rows, which it does with a delay."""

        def counted() -> bool:
            return maintenance.measure(self.database, self.queue).dead_rows >= count

        wait_until(counted, "the server has counted the dead rows")


Use = Callable[..., FaultyQueue]
"""The fixture `use`: installs a variant, with so many messages."""
