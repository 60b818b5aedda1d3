"""A client of queues: a process that may be killed at any moment.

It reads its task from stdin, to keep the password off the command line. It logs a line before each
commit and a line after it, so that the log of a killed client shows which call is in doubt.
"""

import json
import random
import sys
import time
from dataclasses import asdict, dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

import psycopg
from psycopg.sql import SQL, Composed, Identifier

BEFORE, DONE, UNDONE, LOST, ERROR = "before", "done", "undone", "lost", "error"
_ABANDONED, _FAILED = 0.02, 0.05
"""Shares of the claims that are abandoned, and that fail."""


@dataclass(frozen=True)
class ClientTask:
    name: str
    """Unique in a campaign: payloads begin with it."""
    conninfo: str
    log: str
    stop: str
    """A file: the client ends when it exists."""
    seed: int
    rings: list[str]
    calls: list[str]
    """Of push, push_many, pop, pop_many, chosen at random."""
    largest_transaction: int = 6
    """Calls per transaction; 1: autocommit."""
    rolled_back: float = 0.0
    """Share of the transactions, and of the calls in savepoints, that are rolled back."""
    largest_batch: int = 5
    retried: float = 0.5
    """Share of the pushes in doubt that are retried."""
    one_queue: bool = False
    """Each transaction is on one queue only."""
    log_before_commit: bool = False
    """No pop autocommits: popped messages are logged before the commit."""
    pause_seconds: float = 0.0
    """Between two transactions."""
    claiming: list[str] = field(default_factory=list)
    """Queues whose pops are claims: a message counts as popped once it is completed."""
    works_seconds: float = 0.0
    """At most so long between a claim and its end."""
    claims_hold: bool = False
    """Nobody may release a claim of a session that is connected."""
    kept: list[str] = field(default_factory=list)
    """Queues where popped messages are still in the queue or its archive."""
    subscriber: str = ""
    """The one that it pops for."""
    prepares: bool = True
    """Whether statements are prepared, which some poolers do not carry."""
    marks: str = ""
    """A table (mark text): every transaction inserts a row, so no commit stays in doubt."""
    quiet: bool = False
    """Transactions that moved no message are not logged."""
    expected_errors: list[str] = field(default_factory=list)
    """SQLSTATEs of expected errors that roll a transaction back."""


@dataclass
class Work:
    """What one transaction did, or may have done."""

    pushed: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    """What push returned for each of them, once known."""
    popped: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    """Popped too, but the row stays."""
    unknown: int = 0
    """The most messages that a call without a response may have popped."""
    mark: str = ""


@dataclass(frozen=True)
class Call:
    ring: str
    kind: str
    n: int
    payloads: list[str]


def payload(name: str, serial: int) -> str:
    """A text that shows if a part of it is missing."""
    return f"{name}/{serial}/" + "x" * (serial * 37 % 200) + "/"


class Client:
    """One connection, one transaction at a time."""

    def __init__(self, task: ClientTask, log: FileIO) -> None:
        self._task = task
        self._random = random.Random(task.seed)
        self._log = log
        self._stop = Path(task.stop)
        self._serial = self._mark_number = 0
        self._to_retry: list[str] = []
        """Pushes in doubt, to be retried."""
        self._in_flight: list[str] = []

    def run(self) -> None:
        """Run until the file `stop` exists; reconnect whenever the connection breaks."""
        while not self._stop.exists():
            try:
                with psycopg.connect(self._task.conninfo, autocommit=True) as connection:
                    if not self._task.prepares:
                        connection.prepare_threshold = None
                    while not self._stop.exists():
                        self._transaction(connection)
                        time.sleep(self._task.pause_seconds)
            except psycopg.OperationalError as error:
                state = error.sqlstate or ""
                if state in self._task.expected_errors:
                    self._write(UNDONE, refused=state, text=str(error))
                elif state and state[:3] != "57P" and state[:2] != "08":
                    self._write(ERROR, text=f"{state} {error}")
                else:
                    self._write(LOST)
                if self._in_flight and self._random.random() < self._task.retried:
                    self._to_retry += self._in_flight
                self._in_flight = []
                time.sleep(0.05)
            except psycopg.Error as error:
                self._write(ERROR, text=f"{error.sqlstate} {error}")

    def _transaction(self, connection: psycopg.Connection) -> None:
        calls = self._random.randint(1, self._task.largest_transaction)
        queues = self._task.rings
        if self._task.one_queue:
            queues = [self._random.choice(queues)]
        if _pops(self._task.calls) and queues[0] in self._task.claiming:
            done = self._claim_and_complete(connection, queues)
        elif calls == 1 and self._random.random() < 0.7 and not self._must_log_before_commit():
            done = self._autocommit(connection, queues)
        else:
            done = self._in_transaction(connection, queues, calls)
        if not done:
            time.sleep(0.002)  # full or empty: the caller has to wait

    @property
    def _subscriber_argument(self) -> list[object]:
        return [self._task.subscriber] if self._task.subscriber else []

    def _must_log_before_commit(self) -> bool:
        return bool(self._task.marks) or (self._task.log_before_commit and _pops(self._task.calls))

    def _mark(self, connection: psycopg.Connection, work: Work) -> None:
        if self._task.marks:
            self._mark_number += 1
            work.mark = f"{self._task.name} {self._mark_number}"
            into = SQL("INSERT INTO {} VALUES (%s)").format(Identifier(self._task.marks))
            connection.execute(into, [work.mark])

    def _autocommit(self, connection: psycopg.Connection, queues: list[str]) -> bool:
        """One autocommitted call: its popped messages are not known before the commit."""
        call = self._plan(queues)
        self._in_flight = call.payloads
        unknown = 0 if call.payloads or call.ring in self._task.kept else call.n
        self._write(BEFORE, **asdict(Work(pushed=call.payloads, unknown=unknown)))
        done = self._execute(connection, call)
        self._write(DONE, **asdict(done))
        self._in_flight = []
        return bool(done.pushed or done.popped or done.kept)

    def _claim_and_complete(self, connection: psycopg.Connection, queues: list[str]) -> bool:
        """Claim, then complete most claims in a transaction."""
        call = self._plan(queues)
        rows = self._claim(connection, call)
        fate = self._random.random()
        if not rows or fate < _ABANDONED:
            return bool(rows)
        work = Work()
        time.sleep(self._random.uniform(0.0, self._task.works_seconds))
        connection.execute("BEGIN")
        for id_, text, _, attempts in rows:
            if self._random.random() < _FAILED:
                why = [*self._subscriber_argument, id_, "no reason", attempts]
                self._finish(connection, call.ring, "fail", why)
            elif self._finish(
                connection, call.ring, "complete", [*self._subscriber_argument, id_, attempts]
            ):
                (work.kept if call.ring in self._task.kept else work.popped).append(text)
        if fate > 1 - self._task.rolled_back:
            connection.execute("ROLLBACK")
            return True
        self._mark(connection, work)
        self._write(BEFORE, **asdict(work))
        connection.execute("COMMIT")
        self._write(DONE, **asdict(work))
        return True

    def _claim(self, connection: psycopg.Connection, call: Call) -> list[tuple[Any, ...]]:
        """Pop messages, with claims bound to this session."""
        values: list[object] = [*self._subscriber_argument, self._task.name, True]
        if call.kind == "pop_many":
            values.insert(0, call.n)
        return connection.execute(_statement(call.ring, call.kind, values), values).fetchall()

    def _finish(
        self, connection: psycopg.Connection, queue: str, kind: str, values: list[object]
    ) -> bool:
        """Complete or fail a claim; whether it still existed."""
        row = connection.execute(_statement(queue, kind, values), values).fetchone()
        done = row is not None and bool(row[0])
        if self._task.claims_hold and not done:
            self._write(ERROR, text=f"{kind} of {values!r}: its claim was released")
        return done

    def _in_transaction(
        self, connection: psycopg.Connection, queues: list[str], calls: int
    ) -> bool:
        """Several calls in one transaction, some rolled back to a savepoint."""
        work = Work()
        connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        for _ in range(calls):
            savepoint = self._random.random() < 0.4
            if savepoint:
                connection.execute("SAVEPOINT here")
            done = self._execute(connection, self._plan(queues))
            if savepoint and self._random.random() < self._task.rolled_back * 2:
                connection.execute("ROLLBACK TO here")
                continue
            work.pushed += done.pushed
            work.numbers += done.numbers
            work.popped += done.popped
            work.kept += done.kept
        if self._random.random() < self._task.rolled_back:
            connection.execute("ROLLBACK")
            self._write(UNDONE, **asdict(work))
            return True
        some = bool(work.pushed or work.popped or work.kept)
        if not some and self._task.quiet:
            connection.execute("COMMIT")
            return False
        self._mark(connection, work)
        self._in_flight = work.pushed
        self._write(BEFORE, **asdict(work))
        connection.execute("COMMIT")
        self._write(DONE, **asdict(work))
        self._in_flight = []
        return some

    def _plan(self, queues: list[str]) -> Call:
        ring = self._random.choice(queues)
        kind = self._random.choice(self._task.calls)
        n = self._random.randint(1, self._task.largest_batch) if kind.endswith("many") else 1
        payloads = [self._next_payload() for _ in range(n)] if kind.startswith("push") else []
        return Call(ring, kind, n, payloads)

    def _next_payload(self) -> str:
        if self._to_retry:
            return self._to_retry.pop()
        self._serial += 1
        return payload(self._task.name, self._serial)

    def _execute(self, connection: psycopg.Connection, call: Call) -> Work:
        argument: dict[str, list[object]] = {
            "push": [*call.payloads],
            "push_many": [call.payloads],
            "pop": [*self._subscriber_argument],
            "pop_many": [call.n, *self._subscriber_argument],
        }
        values = argument[call.kind]
        rows = connection.execute(_statement(call.ring, call.kind, values), values).fetchall()
        if not call.payloads:
            texts = [row[1] for row in rows]
            return Work(kept=texts) if call.ring in self._task.kept else Work(popped=texts)
        stored = [
            (text, number)
            for text, (number,) in zip(call.payloads, rows, strict=True)
            if number is not None
        ]
        numbers = [number for _, number in stored if isinstance(number, int)]
        return Work(pushed=[text for text, _ in stored], numbers=numbers)

    def _write(self, kind: str, **values: object) -> None:
        self._log.write(json.dumps({"kind": kind, **values}).encode() + b"\n")


def _pops(calls: list[str]) -> bool:
    return all(call.startswith("pop") for call in calls)


def _statement(queue: str, kind: str, values: list[object]) -> Composed:
    marks = SQL(", ").join([SQL("%s")] * len(values))
    return SQL("SELECT * FROM {}({})").format(Identifier(f"{queue}_{kind}"), marks)


def main() -> None:
    task = ClientTask(**json.load(sys.stdin))
    with FileIO(task.log, "ab") as own_log:
        Client(task, own_log).run()
