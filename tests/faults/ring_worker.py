"""One client of a ring, a process of its own that may be killed at any moment: run as a script.

It writes a line before what may commit and a line when it knows, so that whoever reads the log of
a killed client knows which call is in doubt. Imports nothing of the project: it starts often.
"""

import json
import random
import sys
import time
from dataclasses import asdict, dataclass, field
from io import FileIO
from pathlib import Path

import psycopg
from psycopg.sql import SQL, Identifier

BEFORE, DONE, UNDONE, ERROR = "before", "done", "undone", "error"


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


@dataclass
class Work:
    """What one transaction did, or may have done."""

    pushed: list[str] = field(default_factory=list)
    popped: list[str] = field(default_factory=list)
    unknown: int = 0
    """At most so many messages were popped by a call whose answer is not there yet."""


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
        self._serial = 0
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
            except psycopg.OperationalError as error:
                if error.sqlstate and error.sqlstate[:3] != "57P" and error.sqlstate[:2] != "08":
                    self._write(ERROR, text=f"{error.sqlstate} {error}")
                if self._in_flight and self._random.random() < 0.5:
                    self._again += self._in_flight
                self._in_flight = []
                time.sleep(0.05)
            except psycopg.Error as error:
                self._write(ERROR, text=f"{error.sqlstate} {error}")

    def _transaction(self, connection: psycopg.Connection) -> None:
        calls = self._random.randint(1, self._orders.largest_transaction)
        if calls == 1 and self._random.random() < 0.7:
            done = self._alone(connection)
        else:
            done = self._together(connection, calls)
        if not done:
            time.sleep(0.002)  # full or empty: the waiting is the caller's

    def _alone(self, connection: psycopg.Connection) -> bool:
        """One call that commits by itself: what it pops is not known before it has committed."""
        call = self._plan()
        self._in_flight = call.payloads
        unknown = 0 if call.payloads else call.n
        self._write(BEFORE, **asdict(Work(pushed=call.payloads, unknown=unknown)))
        done = _make(connection, call)
        self._write(DONE, **asdict(done))
        self._in_flight = []
        return bool(done.pushed or done.popped)

    def _together(self, connection: psycopg.Connection, calls: int) -> bool:
        """Several calls in one transaction, some of them rolled back to a savepoint."""
        work = Work()
        connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        for _ in range(calls):
            savepoint = self._random.random() < 0.4
            if savepoint:
                connection.execute("SAVEPOINT here")
            done = _make(connection, self._plan())
            if savepoint and self._random.random() < self._orders.rolled_back * 2:
                connection.execute("ROLLBACK TO here")
                continue
            work.pushed += done.pushed
            work.popped += done.popped
        if self._random.random() < self._orders.rolled_back:
            connection.execute("ROLLBACK")
            self._write(UNDONE, **asdict(work))
            return True
        self._in_flight = work.pushed
        self._write(BEFORE, **asdict(work))
        connection.execute("COMMIT")
        self._write(DONE, **asdict(work))
        self._in_flight = []
        return bool(work.pushed or work.popped)

    def _plan(self) -> Call:
        ring = self._random.choice(self._orders.rings)
        kind = self._random.choice(self._orders.calls)
        n = self._random.randint(1, self._orders.largest_batch) if kind.endswith("many") else 1
        payloads = [self._next_payload() for _ in range(n)] if kind.startswith("push") else []
        return Call(ring, kind, n, payloads)

    def _next_payload(self) -> str:
        if self._again:
            return self._again.pop()
        self._serial += 1
        return payload(self._orders.name, self._serial)

    def _write(self, kind: str, **values: object) -> None:
        self._log.write(json.dumps({"kind": kind, **values}).encode() + b"\n")


def _make(connection: psycopg.Connection, call: Call) -> Work:
    function = Identifier(f"{call.ring}_{call.kind}")
    argument: dict[str, list[object]] = {
        "push": [*call.payloads],
        "push_many": [call.payloads],
        "pop": [],
        "pop_many": [call.n],
    }
    values = argument[call.kind]
    statement = SQL("SELECT * FROM {}({})").format(function, SQL("%s" if values else ""))
    rows = connection.execute(statement, values).fetchall()
    if not call.payloads:
        return Work(popped=[row[1] for row in rows])
    stored = zip(call.payloads, rows, strict=True)
    return Work(pushed=[text for text, (number,) in stored if number is not None])


if __name__ == "__main__":
    given = Orders(**json.loads(sys.argv[1]))
    with FileIO(given.log, "ab") as own_log:
        Client(given, own_log).run()
