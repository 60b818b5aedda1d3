"""A message for several readers: a ring with subscribers, beside a ring for each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from console import sql
from console.bench.candidate import Candidate
from console.bench.queues import Queues, ScratchQueue, call_text, driver
from console.catalog import Queue, installed_queue
from console.designs import design
from console.engines import Database, Product
from console.errors import UsageError


def candidates(
    product: Product, readers: int, batch: int, options: Mapping[str, str], room: int
) -> list[Candidate]:
    """Both. UsageError where a ring could get full."""
    of = design("ring", product.name)
    names = ",".join(f"s{number}" for number in range(1, readers + 1))
    found = []
    for name, given in (
        (f"ring subscribers={readers}", {**options, "subscribers": names}),
        (f"{readers} rings", dict(options)),
    ):
        complete = of.complete_options(given, product.name)
        if int(complete["size"]) < 2 * room:
            raise UsageError(
                f"A ring of {complete['size']} slots is too small for --subscribers.",
                next_step=f"Give --ring-size {2 * room} at least, or less --room.",
            )
        one = Candidate(
            name,
            of.name,
            batch,
            driver(product, "run_queue"),
            of.order_with(complete),
            given,
            readers=readers,
        )
        found.append(one)
    return found


class Fanout:
    """Where they get their rings."""

    def __init__(self, database: Database, queues: Queues) -> None:
        self._database = database
        self._queues = queues

    @contextmanager
    def scratch(self, candidate: Candidate, payload: int) -> Iterator[ScratchFanout]:
        """The ring, or all of them, for one round."""
        one = self._queues.queue(candidate, payload)
        rings = [one] if one.subscribers else [_numbered(one, n) for n in _numbers(candidate)]
        with ExitStack() as stack:
            for ring in rings:
                stack.enter_context(self._queues.scratching(self._database, ring))
            yield ScratchFanout(self._database, one, rings, candidate)


def _numbers(candidate: Candidate) -> range:
    return range(1, candidate.readers + 1)


def _numbered(ring: Queue, number: int) -> Queue:
    return installed_queue(ring.schema, f"{ring.name}_{number}", ring.design, ring.options)


@dataclass(frozen=True)
class ScratchFanout:
    """The ring or rings of one round."""

    database: Database
    one: Queue
    """The ring, or what the names of all rings begin with."""
    rings: Sequence[Queue]
    candidate: Candidate

    @property
    def readers(self) -> Sequence[ScratchQueue]:
        """What each reads from."""
        views = [view for ring in self.rings for view in ring.views]
        return [ScratchQueue(self.database, view, self.candidate.driver) for view in views]

    @property
    def settings(self) -> Mapping[str, object]:
        """The calls of who pushes: into all rings by one statement, so in one transaction."""
        if self.one.subscribers:
            return self.readers[0].settings
        product = self.database.product
        each = ",".join(f"s{number}:{number}" for number in _numbers(self.candidate))
        scope = self.one.scope(product, subscribers=each)
        calls = {
            name: call_text(
                sql.query(f"bench.{name}_each", product.dialect, scope), self.candidate.driver
            )
            for name in ("push", "push_many")
        }
        return {**self.readers[0].settings, "calls": calls}

    @property
    def schema(self) -> str:
        """Where the tables are."""
        return self.one.schema

    @property
    def tables(self) -> Sequence[str]:
        """All names that they can have."""
        found = (ScratchQueue(self.database, one, self.candidate.driver) for one in self.rings)
        return [name for one in found for name in one.tables]
