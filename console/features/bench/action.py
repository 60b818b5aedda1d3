"""Bench a database: choose the candidates, provide their queues, run all rounds."""

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

from console.actions.install import remove, require_server, scratch_queue
from console.catalog import object_names
from console.designs import designs_on
from console.engines import Database, Timeouts, open_database
from console.errors import ConsoleError, UsageError
from console.features.bench import peers as others
from console.features.bench import queues
from console.features.bench.candidate import (
    Candidate,
    Load,
    ScratchQueue,
    drop_leftovers,
    find_leftovers,
    new_token,
)
from console.features.bench.results import CandidateResult
from console.features.bench.rounds import Bench, Entrant, RoundProgress
from console.features.bench.server import Environment, environment_of
from console.load import processes
from console.load.round_figures import RoundFigures
from console.plan import Control

TIMEOUTS = Timeouts(statement_seconds=120.0, lock_seconds=60.0)
"""Creating and dropping a ring of a million slots takes a while."""
ALL = "all"
NONE = "none"


@dataclass(frozen=True)
class BenchRequest:
    """Who takes part, as given on the command line."""

    designs: str = ALL
    peers: str = NONE
    batches: tuple[int, ...] = (1,)
    ring_sizes: tuple[int, ...] = ()
    """Empty: the default size."""
    floor: bool = False
    """Also single-row updates by key."""
    subscribers: int = 0
    """Above 0: only a ring with this many subscribers, compared with as many rings."""


class BenchCandidates:
    """The candidates, and what provides the queue of each."""

    def __init__(
        self, database: Database, schema: str, load: Load, on_note: Callable[[str], None]
    ) -> None:
        """`schema`: of the scratch queues; `on_note` gets who is left out, and why."""
        self._database = database
        self._load = load
        self._on_note = on_note
        self._token = new_token()
        self._queues = queues.DesignQueues(database, schema, self._token, scratch_queue)

    def entrants(self, wanted: BenchRequest) -> list[Entrant]:
        """Designs, then peers, at each batch size; last the floor. UsageError."""
        designs = self._fanout(wanted) if wanted.subscribers else self._designs(wanted)
        found = designs + self._peers(wanted)
        return [*found, self._floor()] if wanted.floor else found

    def _designs(self, wanted: BenchRequest) -> list[Entrant]:
        """At each batch size; rings also in each size."""
        product = self._database.product
        everything = wanted.designs == ALL
        chosen = list(designs_on(product.name)) if everything else wanted.designs.split(",")
        found: dict[Candidate, None] = {}
        for batch in wanted.batches:
            for words in chosen:
                sizes = wanted.ring_sizes if words.split(":")[0] == "ring" else ()
                for options in [{"size": str(size)} for size in sizes] or [{}]:
                    if one := self._candidate(words, batch, options, leave_out=everything):
                        found[one] = None
        return [Entrant(candidate, self._queues) for candidate in found]

    def _fanout(self, wanted: BenchRequest) -> list[Entrant]:
        provider, product = (
            queues.FanoutQueues(self._database, self._queues),
            self._database.product,
        )
        readers, room = wanted.subscribers, self._load.room
        sizes = [{"size": str(size)} for size in wanted.ring_sizes] or [{}]
        return [
            Entrant(candidate, provider)
            for batch in wanted.batches
            for size in sizes
            for candidate in queues.fanout_candidates(product, readers, batch, size, room)
        ]

    def _candidate(
        self, words: str, batch: int, options: dict[str, str], *, leave_out: bool
    ) -> Candidate | None:
        database = self._database
        try:
            candidate = queues.candidate(words, database.product, batch, options)
            queue = self._queues.queue(candidate, self._load.payload)
            object_names.check(database.product, queue)
            require_server(database, queue)
        except UsageError as error:
            if not leave_out:
                raise
            self._on_note(f"{words} is left out: {error}")
            return None
        return candidate

    def _peers(self, wanted: BenchRequest) -> list[Entrant]:
        everything = wanted.peers == ALL
        named = [] if wanted.peers == NONE else wanted.peers.split(",")
        provider = others.PeerQueues(self._database, self._token)
        found: dict[Candidate, None] = {}
        for batch in wanted.batches:
            for name in others.NAMES if everything else named:
                candidate = others.candidate(name, batch)
                if why := others.why_unavailable(name, self._database):
                    if not everything:
                        raise UsageError(f"{name} cannot take part.", why=why)
                    self._on_note(f"{name} is left out: {why}")
                    continue
                found[candidate] = None
        return [Entrant(one, provider) for one in found]

    def _floor(self) -> Entrant:
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
        """All rounds; leaves nothing behind. `done` is called each round, `live` each second."""
        database = self._database
        drop_leftovers(database, find_leftovers(database), remove, self._on_note)
        pgbench = _pgbench() if against_pgbench else None

        def after(
            candidate: Candidate, scratch: ScratchQueue, round_figures: RoundFigures
        ) -> RoundFigures:
            if pgbench is None or candidate.carries:
                return round_figures
            rate = queues.pgbench_updates_per_second(
                pgbench, database.complete_url(), scratch, self._load.payload, self._load.seconds
            )
            return replace(round_figures, pgbench_per_second=rate)

        runner = Bench(
            database, self._token, self._load, postmaster=postmaster, on_progress=live, after=after
        )
        found = runner.run(entrants, done)
        return [CandidateResult(candidate, tuple(rounds)) for candidate, rounds in found.items()]


def _pgbench() -> Path:
    from console.features.demo.embedded.cluster import client_program  # noqa: PLC0415

    return client_program("pgbench")


# A bench in a process of its own: `python -m console.features.bench.action`.
#
# Judging a round of millions of messages blocks the interpreter, and so every screen, for seconds.
# The process gets its task, database password included, by standard input. The pipe then stays
# open: when it is closed, also by our death, the process stops and drops its scratch queues.

_POLL_SECONDS = 0.1


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
class BenchStarted:
    about: Environment
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True)
class RoundFinished:
    candidate: Candidate
    round: RoundFigures


BenchEvent = BenchStarted | RoundProgress | RoundFinished | str
"""Reports of the process. A text: who is left out, what was left behind."""


def measure(task: BenchTask, control: Control, on_event: Callable[[BenchEvent], None]) -> bool:
    """Run it; False if it was stopped. ConsoleError.

    Returns after the process has ended: nothing of it is left.
    """
    with tempfile.TemporaryFile() as stderr:
        child_input, requests = Pipe(duplex=False)
        events, child_output = Pipe(duplex=False)
        process = processes.start(
            "console.features.bench.action",
            stdin=child_input.fileno(),
            stdout=child_output.fileno(),
            stderr=stderr,
        )
        child_input.close()
        child_output.close()
        try:
            with suppress(BrokenPipeError):  # it has ended without a result
                requests.send(task)
            return _follow(requests, events, control, on_event)
        except EOFError:
            stderr.seek(0)
            lines = stderr.read().decode(errors="replace").strip().splitlines()
            raise ConsoleError(
                "The process of the bench ended early.",
                why=lines[-1] if lines else "It was killed.",
                next_step="What it left behind is dropped by the next bench.",
            ) from None
        finally:
            requests.close()
            process.wait()
            events.close()


def _follow(
    requests: Connection,
    events: Connection,
    control: Control,
    on_event: Callable[[BenchEvent], None],
) -> bool:
    while True:
        if control.stopped and not requests.closed:
            requests.close()
        if not events.poll(_POLL_SECONDS):
            continue
        match events.recv():
            case bool(whole):
                return whole
            case ConsoleError() as error:
                raise error
            case event:
                on_event(event)


# In that process.


def main() -> int:
    """Read a task, run it, report; the exit status."""
    requests, events = Connection(os.dup(0), writable=False), Connection(os.dup(1), readable=False)
    os.dup2(2, 1)  # print() must not write into the pipe
    try:
        task = requests.recv()
        threading.Thread(target=_stop_with, args=(requests,), daemon=True).start()
        _measure(task, events.send)
        events.send(True)  # noqa: FBT003  # finished
    except EOFError:
        return 1
    except KeyboardInterrupt:
        with suppress(BrokenPipeError):  # the other side has ended
            events.send(False)  # noqa: FBT003
    except ConsoleError as error:
        with suppress(BrokenPipeError):
            events.send(error)
    return 0


def _measure(task: BenchTask, report: Callable[[BenchEvent], None]) -> None:
    database = open_database(task.url, timeouts=TIMEOUTS, label=task.label)
    try:
        candidates = BenchCandidates(database, task.schema, task.load, report)
        entrants = candidates.entrants(task.wanted)
        names = tuple(entrant.candidate for entrant in entrants)
        report(BenchStarted(environment_of(database, embedded=False), names))
        candidates.run(
            entrants,
            lambda one, figures: report(RoundFinished(one.candidate, figures)),
            live=report,
        )
    finally:
        database.close()


def _stop_with(requests: Connection) -> None:
    with suppress(EOFError, OSError):
        requests.recv()
    main_thread = threading.main_thread().ident
    if main_thread is not None:
        # To that thread only: it defers signals while it creates or drops a queue.
        signal.pthread_kill(main_thread, signal.SIGINT)


if __name__ == "__main__":
    # Imported by name: the other side unpickles classes of this module.
    from console.features.bench.action import main as imported

    sys.exit(imported())
