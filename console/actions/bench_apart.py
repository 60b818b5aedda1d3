"""A bench in a process of its own: `python -m console.actions.bench_apart`.

Weighing a round of millions of messages holds the interpreter for seconds, in which no screen
moves. The process gets its task, with the database's password in it, by its standard input. That
pipe then stays open: its end tells it to stop, whatever became of us, and it drops what it made.
"""

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from console import processes
from console.actions.bench import TIMEOUTS, Plan, Wanted
from console.actions.execute import Control
from console.bench.contestant import Contestant
from console.bench.load import Load
from console.bench.measured import Round
from console.bench.ran_on import RanOn, ran_on
from console.bench.rounds import Live
from console.engines import open_database
from console.errors import ConsoleError

_HEARS_STOP_SECONDS = 0.1


@dataclass(frozen=True)
class Task:
    """What to measure, and where."""

    url: str
    """SQLAlchemy's, secrets included."""
    label: str
    """The connection's, for messages."""
    schema: str
    wanted: Wanted
    load: Load


@dataclass(frozen=True)
class Began:
    """The rounds begin."""

    about: RanOn
    contestants: tuple[Contestant, ...]


@dataclass(frozen=True)
class Rounded:
    """A round is over."""

    contestant: Contestant
    round: Round


Heard = Began | Live | Rounded | str
"""What comes of it meanwhile; words: who is left out, what was found."""


def measure(task: Task, control: Control, hear: Callable[[Heard], None]) -> bool:
    """Do it; whether it came to its end, and was not stopped. ConsoleError.

    It comes back when the process has ended: then nothing of it is left.
    """
    with tempfile.TemporaryFile() as complaints:
        its_input, tells = Pipe(duplex=False)
        hears, its_output = Pipe(duplex=False)
        process = processes.start(
            "console.actions.bench_apart",
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
                "The process of the bench ended before its time.",
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


def _measure(task: Task, tell: Callable[[Heard], None]) -> None:
    database = open_database(task.url, timeouts=TIMEOUTS, label=task.label)
    try:
        plan = Plan(database, task.schema, task.load, tell)
        entrants = plan.entrants(task.wanted)
        contestants = tuple(entrant.contestant for entrant in entrants)
        tell(Began(ran_on(database, embedded=False), contestants))
        plan.run(entrants, lambda entrant, one: tell(Rounded(entrant.contestant, one)), live=tell)
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
    from console.actions.bench_apart import main as known

    sys.exit(known())
