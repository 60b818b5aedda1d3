"""The client processes of a scenario."""

import json
import os
import random
import signal
import subprocess
import tempfile
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from psycopg.conninfo import make_conninfo

from tests.faults.harness import client
from tests.faults.harness.ledger import Counts, Ledger
from tests.faults.harness.ring import Ring
from tests.servers import PATIENCE_SECONDS, connect, execute, wait_until
from tests.tools.warm import Forked

PRODUCER, CONSUMER = ["push", "push_many"], ["pop", "pop_many"]
_MARKS = "marks"


@dataclass
class Clients:
    """The processes and their logs."""

    folder: Path
    conninfo: str
    url: str = ""
    chance: random.Random = field(default_factory=random.Random)
    marked: bool = False
    """Every transaction inserts a mark into a table, so that none stays in doubt."""
    processes: list[Forked] = field(default_factory=list)

    def start(
        self,
        calls: Sequence[str],
        *rings: str,
        count: int = 1,
        name: str = "client",
        **more: object,
    ) -> None:
        """Start so many. `name`: how their logs begin; `more`: other fields of `ClientTask`."""
        for _ in range(count):
            own = f"{name}{len(self.processes)}"
            task = {
                "name": own,
                "conninfo": self.conninfo,
                "log": str(self.folder / f"{own}.log"),
                "stop": str(self.folder / "stop"),
                "seed": self.chance.randrange(2**32),
                "rings": rings,
                "calls": calls,
                "marks": _MARKS * self.marked,
                **more,
            }
            process = Forked(
                [],
                os.environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=2,
                module=client.__name__,
            )
            self.processes.append(process)
            assert process.stdin is not None
            with process.stdin:
                process.stdin.write(json.dumps(task).encode())

    def any(self) -> Forked:
        """One that has not ended."""
        return self.chance.choice([one for one in self.processes if one.poll() is None])

    def kill_all(self, name: str) -> None:
        """SIGKILL those whose name starts with `name`."""
        for log in list(self.folder.glob(f"{name}*.log")):
            process = self.processes[int(log.stem.removeprefix(name))]
            process.kill()
            process.wait()

    def finish(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Let all finish their transactions."""
        (self.folder / "stop").touch()
        for process in self.processes:
            status = process.wait(seconds)
            assert status in {0, -signal.SIGKILL}, f"a client ended with {status}"

    def ledger(self, name: str = "") -> Ledger:
        """The ledger of the clients whose name starts with `name`; none saw an error."""
        marks: Container[str] = ()
        if self.marked:
            marks = {mark for (mark,) in execute(self.url, f"SELECT mark FROM {_MARKS}")}
        ledger = Ledger.read(sorted(self.folder.glob(f"{name}*.log")), marks)
        assert not ledger.errors, ledger.errors[:5]
        return ledger

    def progress(self, name: str = "") -> int:
        """Bytes logged by those whose name starts with `name`: grows while calls succeed."""
        return sum(log.stat().st_size for log in self.folder.glob(f"{name}*.log"))

    def wait_for_progress(self, more_bytes: int) -> None:
        """Wait until this many more bytes are logged, however long, while there is any progress."""

        def more_than(logged: int) -> Callable[[], bool]:
            return lambda: self.progress() > logged

        now = self.progress()
        wanted = now + more_bytes
        while now < wanted:
            wait_until(more_than(now), "the clients get on")
            now = self.progress()


@contextmanager
def clients(
    url: str, seed: int | random.Random = 0, *, options: str = "", marked: bool = False
) -> Iterator[Clients]:
    """Clients, which are killed after the block; `options`: libpq's."""
    chance = seed if isinstance(seed, random.Random) else random.Random(seed)
    with connect(url) as connection:
        info = connection.info
        conninfo = make_conninfo(info.dsn, password=info.password, options=options)
        if marked:
            connection.execute(f"CREATE TABLE {_MARKS} (mark text)")
    with tempfile.TemporaryDirectory() as folder:
        started = Clients(Path(folder), conninfo, url, chance, marked)
        try:
            yield started
        finally:
            for process in started.processes:
                process.kill()
                process.wait()


def settle(workers: Clients, *rings: Ring) -> Counts:
    """Stop the clients, recover all orphans with relays, drain; the counts."""
    workers.finish()
    drained = [message.payload for ring in rings for message in ring.relay_and_drain()]
    return workers.ledger().settle(drained)
