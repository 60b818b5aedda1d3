"""The plan of a replay, and the replay itself."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from console import action_rows, sql
from console.catalog import Kind, Queue
from console.engines import Database, Product, Session
from console.errors import ConsoleError, RefusedError, UsageError
from console.formats import plain
from console.pipeline import guard
from console.pipeline.archived import Archived
from console.pipeline.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

VERB = "pipeline replay"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BATCH = 1_000
"""Messages a transaction."""


@dataclass(frozen=True)
class _Present:
    present: bool


@dataclass(frozen=True)
class _Message:
    message: str


@dataclass(frozen=True)
class _Count:
    count: int


@dataclass(frozen=True)
class _Pushed:
    id: str | None


@dataclass(frozen=True)
class Offer:
    """What a replay would do."""

    queue: Queue
    lake: str
    source: Archived
    filters: tuple[str, ...]
    count: int
    """Messages that match, those that were replayed before too."""
    oldest: str | None
    newest: str | None

    def lines(self) -> list[str]:
        """For the operator."""
        source = f"{self.source.schema}.{self.source.queue} of {self.source.connection}"
        lines = [
            f"{VERB}: {self.count:,} messages of {plain(source)} in {plain(self.lake)}, "
            f"pushed into {plain(self.queue.label)}"
        ]
        if self.filters:
            lines.append(f"  that match {plain(' '.join(self.filters))}")
        if self.oldest:
            lines.append(f"  archived {self.oldest} to {self.newest} UTC")
        lines.append("  they get new ids; those that were replayed before are left out")
        if self.source.unfinished:
            lines.append(f"  {self.source.unfinished} unfinished plans of the lake are left out")
        return lines

    def as_json(self) -> dict[str, Any]:
        """The stable object of `--json`."""
        return {
            "verb": VERB,
            "queue": self.queue.name,
            "schema": self.queue.schema,
            "lake": self.lake,
            "source": {
                "connection": self.source.connection,
                "schema": self.source.schema,
                "queue": self.source.queue,
            },
            "filters": list(self.filters),
            "count": self.count,
            "oldest": self.oldest,
            "newest": self.newest,
            "unfinished_plans": self.source.unfinished,
        }


@dataclass
class Done:
    """What came of it."""

    action_id: int
    pushed: int = 0
    before: int = 0
    """Left out: replayed by an earlier run."""
    full: int = 0
    """Not stored: the ring was full. The same command takes them when there is room."""

    def as_json(self) -> dict[str, int]:
        """The stable object of `--json`."""
        return dict(vars(self))

    def lines(self) -> list[str]:
        """For the operator."""
        lines = [f"pushed {self.pushed:,}; {self.before:,} were replayed before"]
        if self.full:
            lines.append(
                "  the ring is full: the same command takes the rest when there are free slots"
            )
        return lines


def require_target(queue: Queue, source: Archived) -> None:
    """UsageError where the queue takes no such messages."""
    if queue.kind is not Kind.INSTALLED:
        raise UsageError(
            f"Nothing can be pushed into {queue.name!r}: it is {queue.kind.value}.",
            next_step="Name an installed queue with --to.",
        )
    held = queue.options.get("payload", "text")
    wrong = [kind for kind in source.files if kind != held]
    # A text is bytes too; what bytes are as text nobody has said.
    if wrong and held != "bytes" and not (held == "text" and "bytes" not in wrong):
        raise UsageError(
            f"The queue {queue.name!r} keeps {held}, and the archive has {', '.join(wrong)}.",
            next_step=f"Replay into a queue with --option payload={wrong[0]}.",
        )


def offer(
    queue: Queue, lake: Lake, source: Archived, filters: Sequence[str], rows: "DataFrame"
) -> Offer:
    """The plan; `rows` are those that are meant."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  # the extra's

    require_target(queue, source)
    at = F.coalesce("archived_at", "done_at")
    found = rows.agg(
        F.count("*").alias("count"),
        F.min(at).cast("string").alias("oldest"),
        F.max(at).cast("string").alias("newest"),
    ).first()
    assert found is not None  # noqa: S101  # an aggregate has a row
    words = tuple(filters)
    return Offer(queue, lake.place, source, words, found["count"], found["oldest"], found["newest"])


def replay(
    database: Database,
    offered: Offer,
    lake: Lake,
    rows: Iterable["Row"],
    *,
    told: Callable[[int], object] = lambda _: None,
    batch: int = BATCH,
) -> Done:
    """Push rows, in their order, that were not pushed before. RefusedError beside another replay.

    Each batch is one transaction: its push, the list, and the audit. A run that is cut off has
    done whole batches.
    """
    lock = guard.resource("replay", lake.id(), offered.queue)
    with database.session("replay out of the lake") as session:
        replaying = _Replaying(session, database, offered, lake.id())
        with replaying.alone(lock):
            replaying.require_list()
            with replaying.action() as done:
                rest = iter(rows)
                while chosen := list(islice(rest, batch)):
                    replaying.one(chosen, done)
                    told(done.pushed + done.before)
                    if done.full:
                        break
    return done


class _Replaying:
    def __init__(self, session: Session, database: Database, offered: Offer, lake_id: str) -> None:
        self._session = session
        self._database = database
        self._product: Product = database.product
        self._offered = offered
        self._queue = offered.queue
        of = offered.source
        whole = "\0".join((of.connection, of.schema, of.queue))
        digest = hashlib.sha256(whole.encode()).hexdigest()[:40]
        self._where = {"lake": lake_id, "source": digest}

    @contextmanager
    def alone(self, lock: str) -> Iterator[None]:
        """While the body runs nobody else replays this lake into this queue."""
        with self._session.transaction("lock the replay") as connection:
            if not guard.held(connection, self._product, lock, "exclusive"):
                raise RefusedError(
                    f"Another replay into {self._queue.name!r} is running.",
                    next_step="Wait for its end: dbq-console audit --running",
                )
        try:
            yield
        finally:
            with suppress(ConsoleError), self._session.transaction("end the replay") as connection:
                guard.let_go(connection, self._product, lock, "exclusive")

    def require_list(self) -> None:
        """Make the list where there is none. RefusedError where this login may not."""
        with self._session.transaction("look at the audit") as connection:
            action_rows.require(connection, self._product)
            (found,) = sql.fetch(connection, _Present, self._statement("listed"), sql.Scope())
            if not found.present:
                sql.run_script(connection, self._statement("make_list"), sql.Scope())

    @contextmanager
    def action(self) -> Iterator[Done]:
        """The action in the audit; it ends as the body does."""
        offered = self._offered
        source = f"{offered.source.schema}.{offered.source.queue} of {offered.source.connection}"
        detail = f"{source} out of {offered.lake}"
        with self._session.transaction("begin an action") as connection:
            number = action_rows.begin(
                connection,
                self._product,
                VERB,
                schema=self._queue.schema,
                queue=self._queue.name,
                place=self._database.label,
                filters=" ".join(offered.filters),
                planned=offered.count,
                detail=detail,
            )
        outcome = "failed"
        done = Done(number)
        try:
            yield done
            outcome = "stopped" if done.full else "done"
        except KeyboardInterrupt:
            outcome = "stopped"
            raise
        finally:
            with suppress(ConsoleError), self._session.transaction("end an action") as connection:
                action_rows.end(connection, self._product, number, outcome, detail)

    def one(self, chosen: Sequence["Row"], done: Done) -> None:
        """One batch."""
        with self._session.transaction("replay a batch") as connection:
            known = self._known(connection, [row["message"] for row in chosen])
            fresh = [row for row in chosen if row["message"] not in known]
            stored = self._push(connection, fresh)
            if stored:
                self._remember(connection, [row["message"] for row in stored], done.action_id)
            action_rows.batch(
                connection,
                self._product,
                done.action_id,
                selected=len(chosen),
                done=len(stored),
                skipped=len(chosen) - len(stored),
            )
        done.pushed += len(stored)
        done.before += len(chosen) - len(fresh)
        done.full += len(fresh) - len(stored)

    def _known(self, connection: Connection, messages: Sequence[str]) -> set[str]:
        values = {**self._where, "messages": self._product.array(messages)}
        rows = sql.fetch(connection, _Message, self._statement("known"), sql.Scope(), **values)
        return {row.message for row in rows}

    def _remember(self, connection: Connection, messages: Sequence[str], action_id: int) -> None:
        values = {**self._where, "messages": self._product.array(messages)}
        statement = self._statement("remember")
        (kept,) = sql.fetch(
            connection, _Count, statement, sql.Scope(), action_id=action_id, **values
        )
        if kept.count != len(messages):
            raise RefusedError(
                "The list of what was replayed did not take a batch: it was undone.",
                why=f"{kept.count:,} of {len(messages):,} were written to dbq.replayed.",
            )

    def _push(self, connection: Connection, rows: Sequence["Row"]) -> list["Row"]:
        """Those that were stored. Messages in a row with the same title and due time go at once."""
        stored: list[Row] = []
        for more, group in groupby(rows, key=self._more):
            together = list(group)
            payloads = [self._payload(row) for row in together]
            pushed = sql.fetch(
                connection,
                _Pushed,
                self._statement("push"),
                self._queue.scope(self._product),
                payloads=self._product.array(payloads),
                **dict(more),
            )
            if len(pushed) != len(together):
                raise RefusedError(f"{self._queue.name!r} did not answer for every push.")
            stored += [row for row, one in zip(together, pushed, strict=True) if one.id is not None]
            if any(one.id is None for one in pushed):
                break
        return stored

    def _more(self, row: "Row") -> tuple[tuple[str, Any], ...]:
        """What the design's push takes beside payloads."""
        if self._queue.design.shape == "pending":
            due = row["due_us"]
            return (("due_at", None if due is None else _EPOCH + timedelta(microseconds=due)),)
        if self._queue.design.shape in {"status", "split"}:
            return (("title", row["title"] or ""),)
        return ()

    def _payload(self, row: "Row") -> str | bytes:
        data = bytes(row["payload"])
        return data if self._queue.options.get("payload") == "bytes" else data.decode()

    def _statement(self, name: str) -> sql.Statement:
        return sql.statements(self._product.name, "replay")[name]
