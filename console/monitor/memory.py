"""What earlier samples showed about a database's queues, so that the next one costs less."""

import time
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from console import sql
from console.catalog import Catalog, Queue
from console.engines import Product
from console.figures import COUNTED
from console.monitor.latency import LatencySamples
from console.monitor.rates import MAY_BE_SLOW, QueueName, StatusRow, key_of

RECOUNT_EVERY = 10
"""A deep state is counted in one of this many samples, and estimated in the others."""

SURELY_DEEP = 2 * COUNTED
"""A state that is estimated at less than this is counted in every sample."""

FIRST_PAUSE_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 300.0
"""A figure that was too slow is left out for twice as long each time, up to this."""


_STATEMENTS = 10_000
"""How many statements are remembered as run."""


@dataclass(frozen=True)
class _Slow:
    """A figure that was too slow, or was not tried because others took all the time."""

    until: float
    pause: float
    tried: bool


@dataclass(frozen=True)
class _Deep:
    figures: tuple[str, ...]
    samples_left: int


class Memory:
    """About one database; used by one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._slow: dict[QueueName, dict[str, _Slow]] = {}
        self._deep: dict[QueueName, _Deep] = {}
        self._apart: dict[QueueName, str] = {}
        self._parts: dict[
            tuple[QueueName, str], tuple[Queue, Mapping[str, str], sql.UnionMember]
        ] = {}
        self._kept: dict[Hashable, tuple[float, Any]] = {}
        self._run: set[int] = set()
        self.latency = LatencySamples(clock)
        self.catalog = Catalog()
        """As last read."""

    def keep(self, queues: Iterable[Queue]) -> None:
        """Forget all queues but these."""
        known = {key_of(queue) for queue in queues}
        for kept in (self._slow, self._deep, self._apart):
            for key in kept.keys() - known:
                del kept[key]
        for part in [part for part in self._parts if part[0] not in known]:
            del self._parts[part]
        self.latency.keep(known)

    def part(
        self, product: Product, queue: Queue, name: str, values: Mapping[str, str]
    ) -> sql.UnionMember:
        """The rendered statement of the queue's design; rendered again only after a change."""
        key = (key_of(queue), name)
        kept = self._parts.get(key)
        if kept is None or kept[:2] != (queue, values):
            scope = queue.scope_of(name, product, **values)
            part = sql.part(f"{queue.design.name}.{name}", product.dialect, scope)
            kept = (queue, values, part)
            self._parts[key] = kept
        return kept[2]

    def kept(self, what: Hashable) -> Any:
        """The value under that name; None: there is none, or its time is over."""
        until, value = self._kept.get(what, (0.0, None))
        return value if until > self._clock() else None

    def keep_for(self, seconds: float, what: Hashable, value: object) -> None:
        """Keep what costs too much to be read in each sample."""
        now = self._clock()
        self._kept = {name: kept for name, kept in self._kept.items() if kept[0] > now}
        self._kept[what] = (now + seconds, value)

    def is_new(self, parts: Sequence[sql.UnionMember]) -> bool:
        """Whether these have not been read in one statement yet: the server compiles it first."""
        return hash(tuple(parts)) not in self._run

    def was_run(self, parts: Sequence[sql.UnionMember]) -> None:
        if len(self._run) >= _STATEMENTS:
            self._run.clear()
        self._run.add(hash(tuple(parts)))

    def left_out(self, queue: Queue) -> set[str]:
        deep = self._deep.get(key_of(queue))
        return {*self.slow(queue), *(deep.figures if deep is not None else ())}

    def slow(self, queue: Queue) -> tuple[str, ...]:
        """The figures that were or may be too slow."""
        known = self._slow.get(key_of(queue), {})
        return tuple(figure for figure in MAY_BE_SLOW if figure in known)

    def due(self, queue: Queue) -> tuple[str, ...]:
        """The slow figures that may be tried again."""
        return tuple(figure for figure in self.slow(queue) if self.may_try(queue, figure))

    def may_try(self, queue: Queue, what: str) -> bool:
        known = self._slow.get(key_of(queue), {}).get(what)
        return known is None or known.until <= self._clock()

    def was_slow(self, queue: Queue, figure: str) -> None:
        known = self._slow.setdefault(key_of(queue), {})
        before = known[figure].pause if figure in known else 0.0
        pause = min(max(2 * before, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
        known[figure] = _Slow(self._clock() + pause, pause, tried=True)

    def may_be_slow(self, queue: Queue, figures: Iterable[str], *, tried: bool = False) -> None:
        """Try them apart from other queues; `tried`: they were, but all together."""
        known = self._slow.setdefault(key_of(queue), {})
        for figure in figures:
            pause = known[figure].pause if figure in known else 0.0
            known[figure] = _Slow(self._clock(), pause, tried)

    def never_tried(self, queue: Queue) -> bool:
        """Whether some of its slow figures were never tried apart from other queues."""
        return any(not slow.tried for slow in self._slow.get(key_of(queue), {}).values())

    def was_quick(self, queue: Queue, figures: Iterable[str]) -> None:
        """Read them together with all others again."""
        known = self._slow.get(key_of(queue), {})
        for figure in figures:
            known.pop(figure, None)

    def apart(self, keys: Container[QueueName]) -> dict[QueueName, str]:
        """The queues whose last sample failed, and why; the latest failure last."""
        return {key: problem for key, problem in self._apart.items() if key in keys}

    def set_apart(self, queue: Queue, problem: str) -> None:
        """Read it alone from now on, so that it spoils no other queue's sample."""
        self.rejoin(queue)
        self._apart[key_of(queue)] = problem

    def rejoin(self, queue: Queue) -> None:
        """Read it together with all others again."""
        self._apart.pop(key_of(queue), None)

    def complete(self, queue: Queue, row: StatusRow) -> StatusRow:
        """Add what was left out: unknown if it is slow, "more than counted" if it is deep."""
        deep = self._deep.get(key_of(queue))
        known = {} if deep is None else dict.fromkeys(deep.figures, COUNTED + 1)
        return replace(row, **(known | dict.fromkeys(self.slow(queue))))  # type: ignore[arg-type]

    def keep_deep(
        self, queue: Queue, row: StatusRow, estimates: Mapping[str, float | None]
    ) -> bool:
        """Leave out the counts of deep states in the next samples.

        False: they were left out, but by the estimate they may no longer be deep.
        """
        over = row.over()
        known = self._deep.pop(key_of(queue), None)
        if any((estimates[state] or 0) < SURELY_DEEP for state in over):
            return known is None
        figures = (*over, "stuck") if (row.stuck or 0) > COUNTED else over
        if known is None:
            self._deep[key_of(queue)] = _Deep(figures, RECOUNT_EVERY - 1)
        elif known.samples_left > 1 and set(over) <= set(known.figures):
            self._deep[key_of(queue)] = replace(known, samples_left=known.samples_left - 1)
        return True
