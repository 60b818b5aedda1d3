"""Which run may work on a queue: the one that holds its lease.

Its successor takes over the row of the queue's plan, which each transaction that deletes has
locked: so a run that lost it changes nothing more.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from console import sql
from console.catalog import Queue, audit
from console.catalog.leases import Lease
from console.engines import Database
from console.errors import ConsoleError, RefusedError
from console.features.lake.runs import process_start

if TYPE_CHECKING:
    from sqlalchemy import Connection

SECONDS = 30.0
"""A run killed on another machine keeps its successor waiting for at most so long."""
_POLL_SECONDS = 0.2
_HOLDER = re.compile(r".* pid (?P<pid>\d+) \((?P<born>.*) in (?P<machine>.*)\) \w+", re.DOTALL)


def lease_name(kind: str, queue: Queue) -> str:
    """Short, however long the names in it."""
    identity = "\0".join((kind, queue.schema, queue.name))
    return f"pipeline {hashlib.sha256(identity.encode()).hexdigest()[:40]}"


class RunLease(Lease):
    """A lease that a run has."""

    def __init__(self, database: Database, name: str, refusal: RefusedError) -> None:
        super().__init__(database, name, SECONDS, purpose="the run", me=_our_name())
        self._refusal = refusal
        self._turn = threading.Lock()
        """One connection is enough for all threads that renew it."""

    def take(self) -> None:
        """RefusedError where its holder is at work: a process of this machine, or one that renews
        it. That of a killed one is taken at once or, where it ran elsewhere, once it has ended."""
        until: datetime | None = None
        gone = ""
        while not self.hold(gone):
            lives = _lives(self.holder)
            if lives or until not in {None, self.until}:
                self._refusal.why = f"It is {self.holder.partition(' (')[0]}."
                raise self._refusal
            until, gone = self.until, self.holder if lives is False else ""
            if not gone:
                time.sleep(_POLL_SECONDS)

    def renew(self, connection: Connection) -> None:
        """In the caller's transaction, which it guards to its end. RefusedError where it is
        another's."""
        values = {"name": self.name, "holder": self.me, "seconds": self.seconds}
        if not sql.values(connection, str, "catalog.lease_renew", **values):
            raise RefusedError(
                "This run was stopped: another one has taken its lease.",
                why=f"It was not renewed for {SECONDS:g} s: this machine or the database stood "
                "still.",
                next_step="What was done is kept, and the other run goes on from there.",
            )

    def require(self) -> None:
        """The same in a transaction of its own."""
        with self._turn, self.database.transaction("renew the lease of the run") as connection:
            self.renew(connection)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """While the body runs, a thread renews it; then it is given back."""
        ended = threading.Event()

        def loop() -> None:
            while not ended.wait(SECONDS / 3):
                # Whether it is lost is seen by what needs it.
                with suppress(ConsoleError):
                    self.require()

        thread = threading.Thread(target=loop, name="dbq lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            with suppress(ConsoleError):
                self.give_back()


@contextmanager
def held(database: Database, name: str, refusal: RefusedError) -> Iterator[RunLease]:
    """The lease is ours while the body runs. `refusal` where another process has it."""
    lease = RunLease(database, name, refusal)
    lease.take()
    with lease.kept():
        yield lease


def _our_name() -> str:
    born = process_start(os.getpid()) or ""
    machine = f"({born} in {_processes()})"
    return f"{audit.operator()} pid {os.getpid()} {machine} {secrets.token_hex(4)}"


def _processes() -> str:
    """Among which processes a pid counts, with the boot in `process_start`; empty: not known."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _lives(holder: str) -> bool | None:
    """Whether a process of this machine exists; None: it is of another one, or that is not
    known."""
    match, here = _HOLDER.fullmatch(holder), _processes()
    boot = (process_start(os.getpid()) or "").partition(" ")[0]
    if match is None or not here or not boot:
        return None
    if (match["machine"], match["born"].partition(" ")[0]) != (here, boot):
        return None
    return process_start(int(match["pid"])) == match["born"]


def already_running(queue: Queue) -> RefusedError:
    return RefusedError(
        f"Another run is archiving the queue {queue.name!r}.",
        next_step="Wait until it ends; the next run finishes whatever it leaves.",
    )
