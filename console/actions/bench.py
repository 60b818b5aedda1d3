"""A bench of a database: who takes part, on which ground; then all its rounds. Nothing is left."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from console import catalog
from console.actions.install import require_server
from console.actions.scratch import remove, scratch_queue
from console.bench import floor, queues
from console.bench import peers as others
from console.bench.contestant import Contestant, Scratch
from console.bench.measured import Round
from console.bench.names import new_token
from console.bench.results import Result
from console.bench.rounds import Bench, Entrant, Live, Load
from console.bench.schemas import drop_leftovers, leftovers
from console.engines import Database, Timeouts
from console.errors import UsageError

TIMEOUTS = Timeouts(statement_seconds=120.0, lock_seconds=60.0)
"""Making and dropping a ring of a million slots takes a while."""
ALL = "all"
NONE = "none"


@dataclass(frozen=True)
class Wanted:
    """Who shall take part, in the command line's words."""

    designs: str = ALL
    peers: str = NONE
    batches: tuple[int, ...] = (1,)
    ring_sizes: tuple[int, ...] = ()
    """None: a ring of the usual size."""
    floor: bool = False
    """Whether single-row updates by key take part too."""


class Plan:
    """Who takes part, on which ground."""

    def __init__(
        self, database: Database, schema: str, load: Load, tell: Callable[[str], None]
    ) -> None:
        """`schema`: where the scratch queues go; `tell` hears who is left out, and why."""
        self._database = database
        self._load = load
        self._tell = tell
        self._token = new_token()
        self._queues = queues.Queues(database, schema, self._token, scratch_queue)

    def entrants(self, wanted: Wanted) -> list[Entrant]:
        """The designs, then the peers, in each batch; last the floor. UsageError."""
        found = self._designs(wanted) + self._peers(wanted)
        return [*found, self._floor()] if wanted.floor else found

    def _designs(self, wanted: Wanted) -> list[Entrant]:
        """In each batch; rings in each size."""
        product = self._database.product
        everything = wanted.designs == ALL
        chosen = queues.all_designs(product) if everything else wanted.designs.split(",")
        found: dict[Contestant, None] = {}
        for batch in wanted.batches:
            for words in chosen:
                sizes = wanted.ring_sizes if words.split(":")[0] == "ring" else ()
                for options in [{"size": str(size)} for size in sizes] or [{}]:
                    if one := self._contestant(words, batch, options, leave_out=everything):
                        found[one] = None
        return [Entrant(one, self._queues) for one in found]

    def _contestant(
        self, words: str, batch: int, options: dict[str, str], *, leave_out: bool
    ) -> Contestant | None:
        database = self._database
        try:
            one = queues.contestant(words, database.product, batch, options)
            queue = self._queues.queue(one, self._load.payload)
            catalog.check_names(database.product, queue)
            require_server(database, queue)
        except UsageError as error:
            if not leave_out:
                raise
            self._tell(f"{words} is left out: {error}")
            return None
        return one

    def _peers(self, wanted: Wanted) -> list[Entrant]:
        """Other people's queues, in each batch."""
        everything = wanted.peers == ALL
        named = [] if wanted.peers == NONE else wanted.peers.split(",")
        ground = others.Peers(self._database, self._token)
        found: dict[Contestant, None] = {}
        for batch in wanted.batches:
            for name in others.NAMES if everything else named:
                one = others.contestant(name, batch)
                if why := others.lacking(name, self._database):
                    if not everything:
                        raise UsageError(f"{name} cannot take part.", why=why)
                    self._tell(f"{name} is left out: {why}")
                    continue
                found[one] = None
        return [Entrant(one, ground) for one in found]

    def _floor(self) -> Entrant:
        """Updates of single rows."""
        load = self._load
        rows = floor.Rows(self._database, self._token, load.producers, load.consumers)
        return Entrant(floor.contestant(self._database.product), rows)

    def run(
        self,
        entrants: list[Entrant],
        done: Callable[[Entrant, Round], None],
        *,
        live: Callable[[Live], None] = lambda _: None,
        postmaster: int | None = None,
        against_pgbench: bool = False,
    ) -> list[Result]:
        """All rounds; nothing of them is left. `done` hears of each round, `live` each second."""
        database = self._database
        drop_leftovers(database, leftovers(database), remove, self._tell)
        pgbench = _pgbench() if against_pgbench else None

        def after(scratch: Scratch, one: Round) -> Round:
            if pgbench is None or not isinstance(scratch, floor.ScratchRows):
                return one
            rate = floor.pgbench_updates_per_second(
                pgbench, database.complete_url(), scratch, self._load.payload, self._load.seconds
            )
            return replace(one, pgbench_per_second=rate)

        runner = Bench(
            database, self._token, self._load, postmaster=postmaster, tell=live, after=after
        )
        found = runner.run(entrants, done)
        return [Result(contestant, tuple(rounds)) for contestant, rounds in found.items()]


def _pgbench() -> Path:
    from console.engines.embedded.binaries import client_program  # noqa: PLC0415

    return client_program("pgbench")
