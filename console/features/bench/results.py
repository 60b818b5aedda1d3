"""A bench's results: medians of each candidate's rounds, and comparisons."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from console.features.bench.queues import FLOOR
from console.load.call_log import Latency
from console.load.round_figures import RoundFigures

if TYPE_CHECKING:
    from console.features.bench.candidate import Candidate

_COUNTS = ("pushed", "popped", "left", "lost", "doubled", "damaged", "out_of_order", "in_doubt")
_MANY_WAITS = 8


@dataclass(frozen=True)
class Spread:
    """Over several rounds."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """At least one value."""
        return cls(statistics.median(values), min(values), max(values))

    def as_json(self) -> dict[str, float]:
        return {name: round(value, 1) for name, value in asdict(self).items()}


@dataclass(frozen=True)
class CandidateResult:
    """All rounds of one candidate."""

    candidate: Candidate
    rounds: tuple[RoundFigures, ...]

    @property
    def label(self) -> str:
        """For a row or a bar."""
        batch = self.candidate.batch
        return self.candidate.name + (f" x{batch}" if batch > 1 else "")

    @property
    def plain(self) -> tuple[RoundFigures, ...]:
        """Without a console beside them."""
        return tuple(one for one in self.rounds if not one.console)

    @property
    def messages_per_second(self) -> Spread:
        """For the floor, half the updates."""
        return Spread.of([self.rate(one) for one in self.plain])

    def rate(self, round_figures: RoundFigures) -> float:
        """A message takes at least two updates."""
        return round_figures.messages_per_second * (1.0 if self.candidate.carries else 0.5)

    @property
    def ok(self) -> bool:
        """Whether every message of every round arrived once, intact, and as promised."""
        return all(one.ok for one in self.rounds)

    @property
    def verdict(self) -> Mapping[str, int]:
        """Counts over all rounds."""
        total: Counter[str] = Counter(dict.fromkeys(_COUNTS, 0))
        for one in self.rounds:
            if one.verdict is not None:
                total.update({name: getattr(one.verdict, name) for name in _COUNTS})
        return dict(total)

    def latency(self, name: str) -> Latency | None:
        """Medians of `push_ms`, `pop_ms` or `end_to_end_ms`."""
        found = [
            value
            for round_figures in self.plain
            if (value := getattr(round_figures, name)) is not None
        ]
        if not found:
            return None
        cuts = ("p50", "p95", "p99")
        return Latency(*(round(statistics.median(getattr(f, c) for f in found), 3) for c in cuts))

    def median(self, figure: Callable[[RoundFigures], float | None]) -> float | None:
        """None where it is not known for any round."""
        found = [
            value for round_figures in self.plain if (value := figure(round_figures)) is not None
        ]
        return statistics.median(found) if found else None

    @property
    def errors(self) -> list[str]:
        return sorted({error for one in self.rounds for error in one.errors})

    @property
    def server_cpu(self) -> float | None:
        """Processors that the server kept busy; None: not known."""
        return self.median(lambda one: one.server_cpu)

    @property
    def disk_bytes(self) -> float | None:
        """Of tables and indexes, at the end of a round."""
        return self.median(lambda one: one.disk_bytes)

    @property
    def client_cpu(self) -> float | None:
        """Processors that the load kept busy."""
        return self.median(lambda one: _per_second(one, one.client_cpu_seconds))

    @property
    def curve(self) -> list[float]:
        """Messages per second in equal parts of the measured time: the medians."""
        parts = zip(*(one.curve for one in self.plain), strict=True)
        factor = 1.0 if self.candidate.carries else 0.5
        return [round(statistics.median(part) * factor, 1) for part in parts]

    @property
    def console_ratio(self) -> float | None:
        """Throughput with a console beside it, relative to that without."""
        watched = [self.rate(one) for one in self.rounds if one.console]
        plain = self.messages_per_second.median
        return statistics.median(watched) / plain if watched and plain else None

    @property
    def pgbench_ratio(self) -> float | None:
        """Updates of this load generator relative to pgbench's in the same round."""
        ratios = [
            r.messages_per_second / r.pgbench_per_second for r in self.plain if r.pgbench_per_second
        ]
        return statistics.median(ratios) if ratios else None

    def as_json(self) -> dict[str, object]:
        """The stable object of `bench --json`."""
        found: dict[str, object] = {
            "name": self.candidate.name,
            "design": self.candidate.design,
            "peer": self.candidate.peer,
            "options": dict(self.candidate.options),
            "batch": self.candidate.batch,
            "rounds": len(self.plain),
            "messages_per_second": self.messages_per_second.as_json(),
            "push_seconds": _as_json(self.latency("push_ms")),
            "pop_seconds": _as_json(self.latency("pop_ms")),
            "way_seconds": _as_json(self.latency("end_to_end_ms")),
            "order": self.candidate.order.value if self.candidate.carries else None,
            **(self.verdict if self.candidate.carries else {}),
            "errors": self.errors,
            "failed_calls": sum(round_figures.failed_calls for round_figures in self.rounds),
            "empty_pops": sum(round_figures.empty for round_figures in self.rounds),
            "full_pushes": sum(round_figures.full for round_figures in self.rounds),
            "cpu": {"server": _rounded(self.server_cpu), "clients": _rounded(self.client_cpu)},
            "log_bytes_per_message": _rounded(self.median(log_bytes_per_message), 0),
            "pages_per_message": _rounded(self.median(pages_per_message), 1),
            "hot_share": _rounded(self.median(hot_share), 4),
            "deliveries_per_message": self.candidate.readers,
            "disk_bytes": self.disk_bytes,
            "waits": self.waits(),
            "curve": self.curve,
            "ok": self.ok,
        }
        if (ratio := self.console_ratio) is not None:
            with_console = Spread.of(
                [self.rate(round_figures) for round_figures in self.rounds if round_figures.console]
            )
            found["console_at_1_hz"] = {
                "messages_per_second": with_console.as_json(),
                "ratio": round(ratio, 4),
            }
        if (ratio := self.pgbench_ratio) is not None:
            per_second = self.median(lambda round_figures: round_figures.pgbench_per_second)
            found["pgbench"] = {
                "updates_per_second": _rounded(per_second, 1),
                "ratio": round(ratio, 4),
            }
        return found

    def waits(self) -> list[dict[str, object]] | None:
        """What sessions were waiting for, or running; None: not known."""
        known = [
            round_figures.waits for round_figures in self.plain if round_figures.waits is not None
        ]
        seen: defaultdict[str, float] = defaultdict(float)
        meaning: dict[str, str | None] = {}
        for wait in itertools.chain.from_iterable(known):
            seen[wait.name] += wait.average_sessions / len(known)
            meaning[wait.name] = wait.meaning
        most = sorted(seen.items(), key=lambda it: -it[1])[:_MANY_WAITS]
        return (
            [
                {"wait": name, "average_sessions": round(average, 2), "meaning": meaning[name]}
                for name, average in most
            ]
            if known
            else None
        )


@dataclass(frozen=True)
class Comparison:
    """A ratio that the project has a target for."""

    description: str
    ratio: float

    def as_json(self) -> dict[str, object]:
        """Part of `bench --json`."""
        return {"ratio": round(self.ratio, 3), "of": self.description}


def comparisons(results: Sequence[CandidateResult]) -> list[Comparison]:
    """Those that the results allow, in messages per second."""
    rates = {(r.candidate.name, r.candidate.batch): r.messages_per_second.median for r in results}
    alone = [r for r in results if r.candidate.batch == 1]
    peers = [r.messages_per_second.median for r in alone if r.candidate.peer]
    pairs: list[tuple[str, float | None, float | None]] = []
    for (name, batch), rate in rates.items():
        if name == "ring":
            of = f"ring in batches of {batch}" if batch > 1 else "ring"
            pairs.append((f"{of} / naive, one at a time", rate, rates.get(("naive", 1))))
            if batch > 1:
                pairs.append((f"{of} / fifo so too", rate, rates.get(("fifo", batch))))
    ring = rates.get(("ring", 1))
    pairs.append(("ring / the best peer", ring, max(peers, default=None)))
    pairs.append(("ring / half the single-row updates by key", ring, rates.get((FLOOR, 1))))
    found = [Comparison(text, a / b) for text, a, b in pairs if a is not None and b]
    for result in results:
        if (ratio := result.pgbench_ratio) is not None:
            found.append(Comparison("load generator / pgbench, the same statement", ratio))
        if (ratio := result.console_ratio) is not None:
            text = f"{result.label}, the console beside it at 1 Hz / without"
            found.append(Comparison(text, ratio))
    return found


def log_bytes_per_message(round_figures: RoundFigures) -> float | None:
    """Of the server's log, in the measured time."""
    if round_figures.log_bytes_per_second is None or not round_figures.messages:
        return None
    return round_figures.log_bytes_per_second / round_figures.messages_per_second


def pages_per_message(round_figures: RoundFigures) -> float | None:
    """Of the queue's tables and indexes, for push and pop together."""
    pages = round_figures.table_activity.pages if round_figures.table_activity else None
    return (
        pages / round_figures.messages_total
        if pages is not None and round_figures.messages_total
        else None
    )


def hot_share(round_figures: RoundFigures) -> float | None:
    """The share of updates that changed no index."""
    touched = round_figures.table_activity
    if touched is None or touched.hot_updates is None or not touched.updates:
        return None
    return touched.hot_updates / touched.updates


def _per_second(round_figures: RoundFigures, cpu_seconds: float | None) -> float | None:
    return None if cpu_seconds is None else cpu_seconds / round_figures.seconds


def _rounded(value: float | None, digits: int = 2) -> float | None:
    return None if value is None else round(value, digits)


def _as_json(latency: Latency | None) -> Any:
    return None if latency is None else latency.seconds
