"""Whether queues are within their limits, for monitoring plugins and cron.

What has a limit and is not known is neither good nor bad: it is UNKNOWN, never taken for zero.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from console.formats import UNKNOWN, count, plain
from console.monitor.limits import Exceeded, Level, Limits, Thresholds
from console.monitor.snapshot import QueueSnapshot


class State(Enum):
    """As monitoring plugins say it, with the exit status that they give it."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3

    @property
    def word(self) -> str:
        """As `--json` has it."""
        return self.name.lower()


_BY_GRAVITY = (State.OK, State.UNKNOWN, State.WARNING, State.CRITICAL)
_OF_LEVEL = {
    Level.OK: State.OK,
    Level.WARNING: State.WARNING,
    Level.CRITICAL: State.CRITICAL,
}


@dataclass(frozen=True)
class Most:
    """What may be at most, by the command line; None: the configured limits hold."""

    depth: int | None = None
    age_seconds: float | None = None
    errors: int | None = None
    stuck: int | None = None


STUCK = Limits(warning=1)
"""A claim that lasts too long is worth a warning, as it is to the doctor."""


@dataclass(frozen=True)
class Figure:
    """One figure of a queue, judged."""

    name: str
    """As the configuration names it, and `stuck`."""
    value: float | None
    """None: not known."""
    limits: Limits[int] | Limits[float]
    estimated: bool = False

    @property
    def state(self) -> State:
        """UNKNOWN only where a limit would have to be judged."""
        if self.value is None:
            return State.OK if self.limits == Limits() else State.UNKNOWN
        found = self.exceeded
        return State.OK if found is None else _OF_LEVEL[found.level]

    @property
    def exceeded(self) -> Exceeded | None:
        """The limit that is reached."""
        found = self.limits.exceeded(self.value)  # type: ignore[arg-type]  # both are numbers
        if found is None or self.value is None:
            return None
        return Exceeded(self.name, self.value, found[1], found[0], self.estimated)

    @property
    def words(self) -> str:
        """`12,480 ready (critical from 10,000 on)`, `age ?`."""
        if self.value is None:
            return f"{self.name} {UNKNOWN}"
        shown = Exceeded(self.name, self.value, 0, Level.OK, self.estimated).words
        found = self.exceeded
        return shown if found is None else f"{shown} ({found.level.word} from {_limit(found)} on)"

    def perfdata(self, label: str) -> str:
        """`'orders depth'=12480;;9999;0;`: U where it is not known."""
        unit = {"age": "s", "gap_share": "%"}.get(self.name, "")
        value = "U" if self.value is None else f"{self._scaled(self.value)}{unit}"
        low, high = (self._range(one) for one in (self.limits.warning, self.limits.critical))
        least = "" if self.name == "gap_share" else "0"
        return f"'{label} {self.name}'={value};{low};{high};{least};"

    def _range(self, limit: float | None) -> str:
        """What is still good, as plugins write it. They take N for good, we "from N on" for bad."""
        if limit is None:
            return ""
        if self.name in {"age", "gap_share"}:
            return f"@{self._scaled(limit)}:"
        return f"{limit - 1:.0f}"

    def _scaled(self, number: float) -> str:
        if self.name == "gap_share":
            number *= 100
        return f"{number:.3f}".rstrip("0").rstrip(".")


def _limit(found: Exceeded) -> str:
    return count(int(found.limit)) if found.figure == "stuck" else found.limit_words


@dataclass(frozen=True)
class Checked:
    """One queue, judged."""

    queue: str
    schema: str
    design: str
    figures: tuple[Figure, ...]
    problem: str = ""
    """Why nothing of it is known."""

    @property
    def state(self) -> State:
        """The gravest of its figures."""
        return gravest(
            [*(one.state for one in self.figures), *[State.UNKNOWN] * bool(self.problem)]
        )

    @property
    def words(self) -> str:
        """What is wrong; where nothing is, the figures."""
        wrong = [one.words for one in self.figures if one.state is not State.OK]
        if self.problem:
            return plain(self.problem)
        return ", ".join(wrong or [one.words for one in self.figures])

    def as_json(self) -> dict[str, object]:
        """The stable object of `check --json`."""
        return {
            "queue": self.queue,
            "schema": self.schema,
            "design": self.design,
            "status": self.state.word,
            "problem": self.problem,
            "figures": {
                one.name: {
                    "value": one.value,
                    "status": one.state.word,
                    "warning": one.limits.warning,
                    "critical": one.limits.critical,
                    "estimated": one.estimated,
                }
                for one in self.figures
            },
        }


def gravest(states: Sequence[State]) -> State:
    """Of none, OK."""
    return max(states, key=_BY_GRAVITY.index, default=State.OK)


def check(seen: QueueSnapshot, thresholds: Thresholds, most: Most) -> Checked:
    """Judge one queue. A figure that its design has not is left out."""
    figures = tuple(_figures(seen, thresholds, most))
    return Checked(seen.queue, seen.schema, seen.design, figures, seen.problem)


def _figures(seen: QueueSnapshot, thresholds: Thresholds, most: Most) -> Iterator[Figure]:
    found: tuple[tuple[str, str, Limits[int] | Limits[float]], ...] = (
        ("depth", "ready", _counted(most.depth, thresholds.depth)),
        ("age", "age_seconds", _lasting(most.age_seconds, thresholds.age_seconds)),
        ("errors", "errors", _counted(most.errors, thresholds.errors)),
        ("stuck", "stuck", _counted(most.stuck, STUCK)),
    )
    for name, field, limits in found:
        value = getattr(seen, field)
        if value is not None or field in seen.unknown:
            yield Figure(name, value, limits, field in seen.estimated)
    if seen.gap is not None and seen.capacity:
        # Below 0 poppers wait ahead: nothing of it is in use.
        yield Figure("gap_share", max(0.0, seen.gap / seen.capacity), thresholds.gap_share)
    elif {"gap", "capacity"} & {*seen.unknown}:
        yield Figure("gap_share", None, thresholds.gap_share)


def _counted(most: int | None, configured: Limits[int]) -> Limits[int]:
    """At most so many: one more is critical."""
    return configured if most is None else Limits(critical=most + 1)


def _lasting(most: float | None, configured: Limits[float]) -> Limits[float]:
    return configured if most is None else Limits(critical=most)
