"""One client of rings, or of queues of any design: a process that may be killed at any moment.

Its orders are its input, so that no password stands on a command line.

It writes a line before what may commit and a line when it knows, so that whoever reads the log of
a killed client knows which call is in doubt.
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
"""Share of the claims that nobody finishes, and of those that fail."""


@dataclass(frozen=True)
class Orders:
    """What a client is told to do."""

    name: str
    """Its payloads begin with it, so it is the only one of a campaign."""
    conninfo: str
    log: str
    stop: str
    """A file: the client ends when it is there."""
    seed: int
    rings: list[str]
    calls: list[str]
    """Which of push, push_many, pop, pop_many it makes, at random."""
    largest_transaction: int = 6
    """Calls in one transaction; 1: every call commits by itself."""
    rolled_back: float = 0.0
    """Share of the transactions, and of the calls in savepoints, that are rolled back."""
    largest_batch: int = 5
    sent_again: float = 0.5
    """Share of the pushes in doubt that are sent once more."""
    apart: bool = False
    """A transaction is on one of the queues only."""
    known: bool = False
    """No pop commits by itself: what it took is known before."""
    rest_seconds: float = 0.0
    """Between two transactions."""
    finished: list[str] = field(default_factory=list)
    """Queues whose pops are claims: a message counts as popped when it is complete."""
    kept: list[str] = field(default_factory=list)
    """Queues in which, or in whose archive, what was popped can still be seen."""
    subscriber: str = ""
    """For whom it pops, where the ring has subscribers."""
    marks: str = ""
    """A table (mark text): every transaction leaves a row in it, so no commit stays in doubt."""
    quiet: bool = False
    """Nothing is logged of a transaction that pushed and popped nothing."""
    endured: list[str] = field(default_factory=list)
    """SQLSTATEs of errors that undo a transaction and are nobody's fault: noted as undone."""


@dataclass
class Work:
    """What one transaction did, or may have done."""

    pushed: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    """What push returned for each of them, once that is known."""
    popped: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    """Popped too, but a row of it stays."""
    unknown: int = 0
    """At most so many messages were popped by a call whose answer is not there yet."""
    mark: str = ""


@dataclass(frozen=True)
class Call:
    """One call of a ring's function."""

    ring: str
    kind: str
    n: int
    payloads: list[str]


def payload(name: str, serial: int) -> str:
    """A message that shows when a part of it is missing."""
    return f"{name}/{serial}/" + "x" * (serial * 37 % 200) + "/"


class Client:
    """One connection at a time, one transaction after the other."""

    def __init__(self, orders: Orders, log: FileIO) -> None:
        self._orders = orders
        self._random = random.Random(orders.seed)
        self._log = log
        self._stop = Path(orders.stop)
        self._serial = self._marked = 0
        self._again: list[str] = []
        """Pushes in doubt, to be sent once more."""
        self._in_flight: list[str] = []

    def run(self) -> None:
        """Until the file `stop` is there; connects again whenever the connection breaks."""
        while not self._stop.exists():
            try:
                with psycopg.connect(self._orders.conninfo, autocommit=True) as connection:
                    while not self._stop.exists():
                        self._transaction(connection)
                        time.sleep(self._orders.rest_seconds)
            except psycopg.OperationalError as error:
                state = error.sqlstate or ""
                if state in self._orders.endured:
                    self._write(UNDONE, refused=state, text=str(error))
                elif state and state[:3] != "57P" and state[:2] != "08":
                    self._write(ERROR, text=f"{state} {error}")
                else:
                    self._write(LOST)
                if self._in_flight and self._random.random() < self._orders.sent_again:
                    self._again += self._in_flight
                self._in_flight = []
                time.sleep(0.05)
            except psycopg.Error as error:
                self._write(ERROR, text=f"{error.sqlstate} {error}")

    def _transaction(self, connection: psycopg.Connection) -> None:
        calls = self._random.randint(1, self._orders.largest_transaction)
        queues = self._orders.rings
        if self._orders.apart:
            queues = [self._random.choice(queues)]
        if _pops(self._orders.calls) and queues[0] in self._orders.finished:
            done = self._finishing(connection, queues)
        elif calls == 1 and self._random.random() < 0.7 and not self._must_know():
            done = self._alone(connection, queues)
        else:
            done = self._together(connection, queues, calls)
        if not done:
            time.sleep(0.002)  # full or empty: the waiting is the caller's

    @property
    def _mine(self) -> list[object]:
        return [self._orders.subscriber] if self._orders.subscriber else []

    def _must_know(self) -> bool:
        return bool(self._orders.marks) or (self._orders.known and _pops(self._orders.calls))

    def _mark(self, connection: psycopg.Connection, work: Work) -> None:
        """In the transaction that did this work."""
        if self._orders.marks:
            self._marked += 1
            work.mark = f"{self._orders.name} {self._marked}"
            into = SQL("INSERT INTO {} VALUES (%s)").format(Identifier(self._orders.marks))
            connection.execute(into, [work.mark])

    def _alone(self, connection: psycopg.Connection, queues: list[str]) -> bool:
        """One call that commits by itself: what it pops is not known before it has committed."""
        call = self._plan(queues)
        self._in_flight = call.payloads
        unknown = 0 if call.payloads or call.ring in self._orders.kept else call.n
        self._write(BEFORE, **asdict(Work(pushed=call.payloads, unknown=unknown)))
        done = self._make(connection, call)
        self._write(DONE, **asdict(done))
        self._in_flight = []
        return bool(done.pushed or done.popped or done.kept)

    def _finishing(self, connection: psycopg.Connection, queues: list[str]) -> bool:
        """Claim, and complete most of it in a transaction: the claims are in the queue's hands."""
        call = self._plan(queues)
        rows = self._claimed(connection, call)
        fate = self._random.random()
        if not rows or fate < _ABANDONED:
            return bool(rows)
        work = Work()
        connection.execute("BEGIN")
        for id_, text, _, attempts in rows:
            if self._random.random() < _FAILED:
                why = [*self._mine, id_, "no reason", attempts]
                self._finish(connection, call.ring, "fail", why)
            elif self._finish(connection, call.ring, "complete", [*self._mine, id_, attempts]):
                (work.kept if call.ring in self._orders.kept else work.popped).append(text)
        if fate > 1 - self._orders.rolled_back:
            connection.execute("ROLLBACK")
            return True
        self._mark(connection, work)
        self._write(BEFORE, **asdict(work))
        connection.execute("COMMIT")
        self._write(DONE, **asdict(work))
        return True

    def _claimed(self, connection: psycopg.Connection, call: Call) -> list[tuple[Any, ...]]:
        """What a pop got, bound to this session."""
        values: list[object] = [*self._mine, self._orders.name, True]
        if call.kind == "pop_many":
            values.insert(0, call.n)
        return connection.execute(_statement(call.ring, call.kind, values), values).fetchall()

    def _finish(
        self, connection: psycopg.Connection, queue: str, kind: str, values: list[object]
    ) -> bool:
        """Whether the claim was still there."""
        row = connection.execute(_statement(queue, kind, values), values).fetchone()
        return row is not None and bool(row[0])

    def _together(self, connection: psycopg.Connection, queues: list[str], calls: int) -> bool:
        """Several calls in one transaction, some of them rolled back to a savepoint."""
        work = Work()
        connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        for _ in range(calls):
            savepoint = self._random.random() < 0.4
            if savepoint:
                connection.execute("SAVEPOINT here")
            done = self._make(connection, self._plan(queues))
            if savepoint and self._random.random() < self._orders.rolled_back * 2:
                connection.execute("ROLLBACK TO here")
                continue
            work.pushed += done.pushed
            work.numbers += done.numbers
            work.popped += done.popped
            work.kept += done.kept
        if self._random.random() < self._orders.rolled_back:
            connection.execute("ROLLBACK")
            self._write(UNDONE, **asdict(work))
            return True
        some = bool(work.pushed or work.popped or work.kept)
        if not some and self._orders.quiet:
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
        kind = self._random.choice(self._orders.calls)
        n = self._random.randint(1, self._orders.largest_batch) if kind.endswith("many") else 1
        payloads = [self._next_payload() for _ in range(n)] if kind.startswith("push") else []
        return Call(ring, kind, n, payloads)

    def _next_payload(self) -> str:
        if self._again:
            return self._again.pop()
        self._serial += 1
        return payload(self._orders.name, self._serial)

    def _make(self, connection: psycopg.Connection, call: Call) -> Work:
        argument: dict[str, list[object]] = {
            "push": [*call.payloads],
            "push_many": [call.payloads],
            "pop": [*self._mine],
            "pop_many": [call.n, *self._mine],
        }
        values = argument[call.kind]
        rows = connection.execute(_statement(call.ring, call.kind, values), values).fetchall()
        if not call.payloads:
            texts = [row[1] for row in rows]
            return Work(kept=texts) if call.ring in self._orders.kept else Work(popped=texts)
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
    """Do what the input says."""
    given = Orders(**json.load(sys.stdin))
    with FileIO(given.log, "ab") as own_log:
        Client(given, own_log).run()
