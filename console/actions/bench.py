"""A bench of a database: its candidates and where each gets its queues; then all its rounds."""

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from console import object_names, processes
from console.actions.execute import Control
from console.actions.install import remove, require_server, scratch_queue
from console.bench import peers as others
from console.bench import queues
from console.bench.candidate import (
    Candidate,
    Load,
    ScratchQueue,
    drop_leftovers,
    find_leftovers,
    new_token,
)
from console.bench.results import CandidateResult
from console.bench.round_figures import RoundFigures
from console.bench.rounds import Bench, Entrant, RoundProgress
from console.bench.server import Environment, environment_of
from console.engines import Database, Timeouts, open_database
from console.errors import ConsoleError, UsageError

TIMEOUTS = Timeouts(statement_seconds=120.0, lock_seconds=60.0)
"""Making and dropping a ring of a million slots takes a while."""
ALL = "all"
NONE = "none"


@dataclass(frozen=True)
class BenchRequest:
    """Who shall take part, in the command line's words."""

    designs: str = ALL
    peers: str = NONE
    batches: tuple[int, ...] = (1,)
    ring_sizes: tuple[int, ...] = ()
    """None: a ring of the usual size."""
    floor: bool = False
    """Whether single-row updates by key take part too."""
    subscribers: int = 0
    """If any: a ring with so many beside as many rings, and no other design."""


class BenchPlan:
    """The candidates, and what provides the queue of each."""

    def __init__(
        self, database: Database, schema: str, load: Load, tell: Callable[[str], None]
    ) -> None:
        """`schema`: where the scratch queues go; `tell` hears who is left out, and why."""
        self._database = database
        self._load = load
        self._tell = tell
        self._token = new_token()
        self._queues = queues.DesignQueues(database, schema, self._token, scratch_queue)

    def entrants(self, wanted: BenchRequest) -> list[Entrant]:
        """The designs, then the peers, in each batch; last the floor. UsageError."""
        designs = self._fanout(wanted) if wanted.subscribers else self._designs(wanted)
        found = designs + self._peers(wanted)
        return [*found, self._floor()] if wanted.floor else found

    def _designs(self, wanted: BenchRequest) -> list[Entrant]:
        """In each batch; rings in each size."""
        product = self._database.product
        everything = wanted.designs == ALL
        chosen = queues.all_designs(product) if everything else wanted.designs.split(",")
        found: dict[Candidate, None] = {}
        for batch in wanted.batches:
            for words in chosen:
                sizes = wanted.ring_sizes if words.split(":")[0] == "ring" else ()
                for options in [{"size": str(size)} for size in sizes] or [{}]:
                    if one := self._candidate(words, batch, options, leave_out=everything):
                        found[one] = None
        return [Entrant(one, self._queues) for one in found]

    def _fanout(self, wanted: BenchRequest) -> list[Entrant]:
        provider, product = (
            queues.FanoutQueues(self._database, self._queues),
            self._database.product,
        )
        readers, room = wanted.subscribers, self._load.room
        sizes = [{"size": str(size)} for size in wanted.ring_sizes] or [{}]
        return [
            Entrant(one, provider)
            for batch in wanted.batches
            for size in sizes
            for one in queues.fanout_candidates(product, readers, batch, size, room)
        ]

    def _candidate(
        self, words: str, batch: int, options: dict[str, str], *, leave_out: bool
    ) -> Candidate | None:
        database = self._database
        try:
            one = queues.candidate(words, database.product, batch, options)
            queue = self._queues.queue(one, self._load.payload)
            object_names.check(database.product, queue)
            require_server(database, queue)
        except UsageError as error:
            if not leave_out:
                raise
            self._tell(f"{words} is left out: {error}")
            return None
        return one

    def _peers(self, wanted: BenchRequest) -> list[Entrant]:
        everything = wanted.peers == ALL
        named = [] if wanted.peers == NONE else wanted.peers.split(",")
        provider = others.PeerQueues(self._database, self._token)
        found: dict[Candidate, None] = {}
        for batch in wanted.batches:
            for name in others.NAMES if everything else named:
                one = others.candidate(name, batch)
                if why := others.why_unavailable(name, self._database):
                    if not everything:
                        raise UsageError(f"{name} cannot take part.", why=why)
                    self._tell(f"{name} is left out: {why}")
                    continue
                found[one] = None
        return [Entrant(one, provider) for one in found]

    def _floor(self) -> Entrant:
        """Updates of single rows."""
        load = self._load
        rows = queues.FloorTable(self._database, self._token, load.producers, load.consumers)
        return Entrant(queues.floor_candidate(self._database.product), rows)

    def run(
        self,
        entrants: list[Entrant],
        done: Callable[[Entrant, RoundFigures], None],
        *,
        live: Callable[[RoundProgress], None] = lambda _: None,
        postmaster: int | None = None,
        against_pgbench: bool = False,
    ) -> list[CandidateResult]:
        """All rounds; nothing of them is left. `done` hears of each round, `live` each second."""
        database = self._database
        drop_leftovers(database, find_leftovers(database), remove, self._tell)
        pgbench = _pgbench() if against_pgbench else None

        def after(candidate: Candidate, scratch: ScratchQueue, one: RoundFigures) -> RoundFigures:
            if pgbench is None or candidate.carries:
                return one
            rate = queues.pgbench_updates_per_second(
                pgbench, database.complete_url(), scratch, self._load.payload, self._load.seconds
            )
            return replace(one, pgbench_per_second=rate)

        runner = Bench(
            database, self._token, self._load, postmaster=postmaster, tell=live, after=after
        )
        found = runner.run(entrants, done)
        return [CandidateResult(candidate, tuple(rounds)) for candidate, rounds in found.items()]


def _pgbench() -> Path:
    from console.engines.embedded.cluster import client_program  # noqa: PLC0415

    return client_program("pgbench")


# A bench in a process of its own: `python -m console.actions.bench`.
#
# Weighing a round of millions of messages holds the interpreter for seconds, in which no screen
# moves. The process gets its task, with the database's password in it, by its standard input. That
# pipe then stays open: its end tells it to stop, whatever became of us, and it drops what it made.

_HEARS_STOP_SECONDS = 0.1


@dataclass(frozen=True)
class BenchTask:
    """What to measure, and where."""

    url: str
    """SQLAlchemy's, secrets included."""
    label: str
    """The connection's, for messages."""
    schema: str
    wanted: BenchRequest
    load: Load


@dataclass(frozen=True)
class Began:
    about: Environment
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True)
class Rounded:
    candidate: Candidate
    round: RoundFigures


Heard = Began | RoundProgress | Rounded | str
"""What comes of it meanwhile; words: who is left out, what was found."""


def measure(task: BenchTask, control: Control, hear: Callable[[Heard], None]) -> bool:
    """Do it; whether it came to its end, and was not stopped. ConsoleError.

    It comes back when the process has ended: then nothing of it is left.
    """
    with tempfile.TemporaryFile() as complaints:
        its_input, tells = Pipe(duplex=False)
        hears, its_output = Pipe(duplex=False)
        process = processes.start(
            "console.actions.bench",
            stdin=its_input.fileno(),
            stdout=its_output.fileno(),
            stderr=complaints,
        )
        its_input.close()
        its_output.close()
        try:
            with suppress(BrokenPipeError):  # it has ended: its word will not come
                tells.send(task)
            return _follow(tells, hears, control, hear)
        except EOFError:
            complaints.seek(0)
            said = complaints.read().decode(errors="replace").strip().splitlines()
            raise ConsoleError(
                "The process of the bench ended early.",
                why=said[-1] if said else "It was killed.",
                next_step="What it left behind is dropped by the next bench.",
            ) from None
        finally:
            tells.close()
            process.wait()
            hears.close()


def _follow(
    tells: Connection, hears: Connection, control: Control, hear: Callable[[Heard], None]
) -> bool:
    while True:
        if control.stopped and not tells.closed:
            tells.close()
        if not hears.poll(_HEARS_STOP_SECONDS):
            continue
        match hears.recv():
            case bool(whole):
                return whole
            case ConsoleError() as error:
                raise error
            case heard:
                hear(heard)


# The other side.


def main() -> int:
    """Bench what we are told to, and tell what comes of it; the exit status."""
    hears, tells = Connection(os.dup(0), writable=False), Connection(os.dup(1), readable=False)
    os.dup2(2, 1)  # whatever prints shall not speak in between
    try:
        task = hears.recv()
        threading.Thread(target=_stop_with, args=(hears,), daemon=True).start()
        _measure(task, tells.send)
        tells.send(True)  # noqa: FBT003  # that it came to its end
    except EOFError:
        return 1
    except KeyboardInterrupt:
        with suppress(BrokenPipeError):  # nobody is there any more
            tells.send(False)  # noqa: FBT003
    except ConsoleError as error:
        with suppress(BrokenPipeError):
            tells.send(error)
    return 0


def _measure(task: BenchTask, tell: Callable[[Heard], None]) -> None:
    database = open_database(task.url, timeouts=TIMEOUTS, label=task.label)
    try:
        plan = BenchPlan(database, task.schema, task.load, tell)
        entrants = plan.entrants(task.wanted)
        candidates = tuple(entrant.candidate for entrant in entrants)
        tell(Began(environment_of(database, embedded=False), candidates))
        plan.run(entrants, lambda entrant, one: tell(Rounded(entrant.candidate, one)), live=tell)
    finally:
        database.close()


def _stop_with(hears: Connection) -> None:
    with suppress(EOFError, OSError):
        hears.recv()
    main_thread = threading.main_thread().ident
    if main_thread is not None:
        # To that thread alone: it holds signals while it makes or drops a queue.
        signal.pthread_kill(main_thread, signal.SIGINT)


if __name__ == "__main__":
    # By its name: what it tells is of classes that the other side knows.
    from console.actions.bench import main as known

    sys.exit(known())
