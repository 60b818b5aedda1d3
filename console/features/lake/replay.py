"""Replay: push archived messages into a queue again, each once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from console import sql
from console.actions.push import why_not_stored
from console.catalog import Kind, Queue, audit, require_rows
from console.catalog.audit import Ledger, Subject
from console.engines import Database, Product, Session
from console.errors import ConsoleError, RefusedError, UsageError
from console.features.lake import leases
from console.features.lake.lake import Lake
from console.features.lake.spark import Security
from console.features.lake.table import QueueArchive
from console.formats import numbered, plain
from console.plan import Plan, Result, job_plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row
    from sqlalchemy import Connection

VERB = "pipeline replay"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BATCH = 1_000
"""Messages a transaction."""


@dataclass(frozen=True)
class ArchivedMessages:
    """The messages of an archive that match, and the queue that gets them."""

    queue: Queue
    lake: str
    source: QueueArchive
    filters: tuple[str, ...]
    count: int
    """Including those replayed before."""
    oldest: str | None
    newest: str | None


def plan(
    database: Database,
    messages: ArchivedMessages,
    run: Callable[[], Result],
    spark: Security,
    *,
    production: bool,
) -> Plan:
    queue, of = messages.queue, messages.source
    source = f"{of.schema}.{of.queue} of {of.connection}"
    lines = [
        f"{VERB}: {numbered(messages.count, 'message')} of {plain(source)} "
        f"in {plain(messages.lake)}, pushed into {plain(queue.label)}"
    ]
    if messages.filters:
        lines.append(f"  that match {plain(' '.join(messages.filters))}")
    if messages.oldest:
        lines.append(f"  archived {messages.oldest} to {messages.newest} UTC")
    lines += ["  they get new ids; those replayed before are skipped", f"  {spark.line}"]
    data = {
        "verb": VERB,
        "queue": queue.name,
        "schema": queue.schema,
        "lake": messages.lake,
        "source": {"connection": of.connection, "schema": of.schema, "queue": of.queue},
        "filters": list(messages.filters),
        "count": messages.count,
        "oldest": messages.oldest,
        "newest": messages.newest,
        "spark": spark.as_json(),
    }
    subject, count = Subject.of(database, queue, VERB), messages.count
    return job_plan(subject, lines, run, data, queue=queue, rows=count, production=production)


@dataclass
class Replayed:
    action_id: int
    pushed: int = 0
    before: int = 0
    """Skipped: replayed by an earlier run."""
    full: int = 0
    """Not stored: the ring was full, or paused. The same command pushes them later."""
    problem: str = ""
    """Which of the two."""

    def as_json(self) -> dict[str, object]:
        """The stable object of `--json`."""
        return dict(vars(self))

    def lines(self) -> list[str]:
        lines = [f"pushed {self.pushed:,}; {self.before:,} were replayed before"]
        if self.full:
            lines.append(
                f"  the queue is {self.problem}: run the same command again once it is not"
            )
        return lines


def require_target(queue: Queue) -> None:
    """UsageError where nothing can be pushed into the queue, RefusedError where not all of it is
    seen."""
    require_rows(queue)
    if queue.kind is not Kind.INSTALLED:
        raise UsageError(
            f"Nothing can be pushed into {queue.name!r}: it is {queue.kind.value}.",
            next_step="Name an installed queue with --to.",
        )


def _require_kinds(queue: Queue, kinds: Iterable[str]) -> None:
    """UsageError where the queue cannot keep payloads of these kinds."""
    kept = queue.options.get("payload", "text")
    wrong = sorted(kind for kind in kinds if kind != kept)
    # Text can be stored as bytes; bytes have no known encoding.
    if wrong and kept != "bytes" and not (kept == "text" and "bytes" not in wrong):
        raise UsageError(
            f"The queue {queue.name!r} keeps {kept}, and the archive has {', '.join(wrong)}.",
            next_step=f"Replay into a queue with --option payload={wrong[0]}.",
        )


def find(
    queue: Queue, lake: Lake, source: QueueArchive, filters: Sequence[str], rows: DataFrame
) -> ArchivedMessages:
    """`rows`: the archived messages that match the filters."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  # the extra's

    at = F.col("archived_at")
    row = rows.agg(
        F.count_if(F.col("reason") == "copy").alias("copies"),
        F.collect_set(F.when(F.col("payload").isNull(), "bytes").otherwise(F.col("kind"))).alias(
            "kinds"
        ),
        F.count("*").alias("count"),
        F.min(at).cast("string").alias("oldest"),
        F.max(at).cast("string").alias("newest"),
    ).first()
    assert row is not None  # noqa: S101  # an aggregate has a row
    if row["copies"]:
        raise RefusedError(
            f"{source.queue!r} is not replayed: the lake has copies of another library's jobs.",
            why=f"Its workers take nothing out of {queue.name!r}, and may have the jobs still.",
            next_step="Enqueue what you need by the library itself: each job's payload and other "
            "columns are in the table messages of the lake (payload, more).",
        )
    _require_kinds(queue, row["kinds"])
    return ArchivedMessages(
        queue, lake.location, source, tuple(filters), row["count"], row["oldest"], row["newest"]
    )


def replay(
    database: Database,
    messages: ArchivedMessages,
    rows: Iterable[Row],
    *,
    on_progress: Callable[[int], object] = lambda _: None,
    batch: int = BATCH,
) -> Replayed:
    """Push the rows that were not pushed before, in order.

    A batch is one transaction: the push, the list of replayed messages, and the audit. So an
    interrupted run has done whole batches. RefusedError where another replay is running.
    """
    name = leases.lease_name("replay", messages.queue)
    refusal = RefusedError(
        f"Another replay into {messages.queue.name!r} is running.",
        next_step="Wait for its end: dbq-console audit --running",
    )
    with database.transaction("read the audit") as connection:
        audit.prepare_decisions(connection)
    with (
        leases.held(database, name, refusal) as lease,
        database.session("replay out of the lake") as session,
    ):
        run = _Replay(session, database, messages, lease)
        run.require_list()
        with run.action() as result:
            rest = iter(rows)
            while selected := list(islice(rest, batch)):
                run.push_batch(selected, result)
                on_progress(result.pushed + result.before)
                if result.full:
                    result.problem = why_not_stored(database, messages.queue)
                    break
    return result


class _Replay:
    def __init__(
        self,
        session: Session,
        database: Database,
        messages: ArchivedMessages,
        lease: leases.RunLease,
    ) -> None:
        self._session = session
        self._lease = lease
        self._database = database
        self._product: Product = database.product
        self._found = messages
        self._queue = messages.queue
        source = messages.source
        name = "\0".join((source.connection, source.schema, source.queue))
        digest = hashlib.sha256(name.encode()).hexdigest()[:40]
        self._key = {"lake": source.table_id, "source": digest}

    def require_list(self) -> None:
        """Create the list of replayed messages if needed. RefusedError without the right to."""
        with self._session.transaction("read the audit") as connection:
            audit.require(connection)
            present = sql.value(connection, bool, "replay.has_list")
            if not present:
                sql.run(connection, "replay.create_list")

    @contextmanager
    def action(self) -> Iterator[Replayed]:
        """The action in the audit; it ends as the body ends."""
        found = self._found
        source = f"{found.source.schema}.{found.source.queue} of {found.source.connection}"
        detail = f"{source} out of {found.lake}"
        subject = Subject.of(self._database, self._queue, VERB, detail)
        subject = replace(subject, filters=found.filters, planned=found.count)
        with self._session.transaction("begin an action") as connection:
            number = audit.begin(connection, subject)
        outcome = "failed"
        result = Replayed(number)
        try:
            yield result
            outcome = "stopped" if result.full else "done"
        except KeyboardInterrupt:
            outcome = "stopped"
            raise
        finally:
            with suppress(ConsoleError), self._session.transaction("end an action") as connection:
                audit.end(connection, number, outcome, detail)

    def push_batch(self, selected: Sequence[Row], result: Replayed) -> None:
        with self._session.transaction("replay a batch") as connection:
            self._lease.renew(connection)
            before = self._replayed(connection, [row["message"] for row in selected])
            # A lake that has a row twice has one message.
            once = {row["message"]: row for row in reversed(selected)}
            new = [row for row in selected if row is once[row["message"]]]
            new = [row for row in new if row["message"] not in before]
            stored = self._push(connection, new)
            if stored:
                self._record(connection, [row["message"] for row in stored], result.action_id)
            skipped = {"pushed before, or no room for it": len(selected) - len(stored)}
            ledger = Ledger(len(selected), len(stored), len(stored), skipped)
            audit.batch(connection, result.action_id, ledger)
        result.pushed += len(stored)
        result.before += len(selected) - len(new)
        result.full += len(new) - len(stored)

    def _replayed(self, connection: Connection, messages: Sequence[str]) -> set[str]:
        values = {**self._key, "messages": self._product.array(messages)}
        return set(sql.values(connection, str, "replay.replayed", **values))

    def _record(self, connection: Connection, messages: Sequence[str], action_id: int) -> None:
        values = {**self._key, "messages": self._product.array(messages)}
        count = sql.value(connection, int, "replay.record_replayed", action_id=action_id, **values)
        if count != len(messages):
            raise RefusedError(
                "A batch could not be written to the list of replayed messages: it was rolled "
                "back.",
                why=f"{count:,} of {len(messages):,} were written to dbq.replayed.",
            )

    def _push(self, connection: Connection, rows: Sequence[Row]) -> list[Row]:
        """The stored rows. Consecutive rows with the same title and due time go in one call."""
        stored: list[Row] = []
        for arguments, group in groupby(rows, key=self._arguments):
            together = list(group)
            payloads = [self._payload(row) for row in together]
            pushed: list[str | None] = sql.values(
                connection,
                str | None,
                "replay.push",
                self._queue.scope(self._product),
                payloads=self._product.array(payloads),
                **dict(arguments),
            )
            if len(pushed) != len(together):
                raise RefusedError(f"{self._queue.name!r} did not return a result for every push.")
            stored += [row for row, one in zip(together, pushed, strict=True) if one is not None]
            if None in pushed:
                break
        return stored

    def _arguments(self, row: Row) -> tuple[tuple[str, Any], ...]:
        """Of the design's push, besides payloads."""
        if "due" in self._queue.design.push_takes:
            due = row["due_us"]
            return (("due_at", None if due is None else _EPOCH + timedelta(microseconds=due)),)
        if "title" in self._queue.design.push_takes:
            return (("title", row["title"] or ""),)
        return ()

    def _payload(self, row: Row) -> str | bytes:
        data = bytes(row["payload"])
        return data if self._queue.options.get("payload") == "bytes" else data.decode()
