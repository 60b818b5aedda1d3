"""One bench: what is wanted, what it would do, what came of it so far, how long the rest takes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from console import catalog
from console.actions.audit import Outcome
from console.actions.bench import Plan, Wanted
from console.actions.bench_apart import Began, Heard, Rounded, Task, measure
from console.actions.execute import Control
from console.actions.work import Ended, Tell, Told
from console.bench.contestant import Contestant
from console.bench.load import Load
from console.bench.results import Result
from console.bench.rounds import HEAD_START_SECONDS, Live
from console.errors import UsageError
from console.formats import numbered
from console.rights import Rights
from console.tui.actions.bench import FORM
from console.tui.places import Place

if TYPE_CHECKING:
    from console.bench.measured import Round
    from console.bench.ran_on import RanOn

_BETWEEN_ROUNDS_SECONDS = 1.5
"""Making a queue, weighing the messages, dropping it: until a round has shown how long."""


def why_not(place: Place | None) -> str:
    """Why none can be begun on a connection; empty: it can."""
    if place is None:
        return "there is no such connection here"
    if place.rights < Rights.ADMIN:
        return f"it needs the right admin; this connection has {place.rights.word}"
    return ""


def wanted(said: Mapping[str, str]) -> tuple[Wanted, Load]:
    """What a form says, which has been checked field by field. UsageError."""
    text = {one.name: said.get(one.name, "").strip() or one.default for one in FORM.fields}
    load = Load(
        producers=int(text["producers"]),
        consumers=int(text["consumers"]),
        payload=int(text["payload"]),
        seconds=float(text["seconds"]),
        warmup_seconds=float(text["warmup"]),
        rounds=int(text["rounds"]),
        held_xmin=text["held-xmin"] == "yes",
    )
    batches, sizes = _numbers("batch", text["batch"]), _numbers("ring-size", text["ring-size"])
    return Wanted(text["designs"], text["peers"], batches, sizes), load


def _numbers(name: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isascii() and part.isdecimal() and int(part) for part in parts):
        raise UsageError(f"{name}: it wants whole numbers, as 1 or 1,10,100.")
    return tuple(dict.fromkeys(int(part) for part in parts))


@dataclass(frozen=True)
class Prospect:
    """What a bench would do, to be read before it begins."""

    labels: tuple[str, ...]
    """Who takes part."""
    left_out: tuple[str, ...]
    production: bool
    seconds: float
    """About how long it takes."""


def prospect(place: Place, who: Wanted, load: Load) -> Prospect:
    """Ask the database who can take part. Waits; ConsoleError."""
    database, left_out = place.database, list[str]()
    plan = Plan(database, database.product.default_schema, load, left_out.append)
    entrants = [entrant.contestant for entrant in plan.entrants(who)]
    with database.transaction("read the catalog", read_only=True) as connection:
        marked = catalog.is_production(connection, database.product)
    return Prospect(
        tuple(f"{c.name} x{c.batch}" if c.batch > 1 else c.name for c in entrants),
        tuple(left_out),
        production=marked or place.production or database.production,
        seconds=_of_a_round(load) * load.rounds * len(entrants),
    )


def _of_a_round(load: Load) -> float:
    """About how many seconds one takes, before any has shown it."""
    return load.warmup_seconds + load.seconds + HEAD_START_SECONDS + _BETWEEN_ROUNDS_SECONDS


Points = tuple[tuple[float, float], ...]
"""Moments of the desk's clock, each with the messages through in the second before."""


class Course:
    """One bench that runs, or ran. Its thread writes; the screen only reads."""

    def __init__(self, wanted: Wanted, load: Load, clock: Callable[[], float]) -> None:
        """`clock`: the desk's."""
        self.wanted = wanted
        self.load = load
        self.about: RanOn | None = None
        """None: the first round is not yet prepared."""
        self.live: Live | None = None
        """The round that runs; None between two."""
        self.said: list[str] = []
        """Who is left out, what earlier benches left."""
        self.whole = False
        """Whether all rounds came to their end."""
        self.ended_at: float | None = None
        """None: it still runs."""
        self._clock = clock
        self._rounds: dict[Contestant, list[Round]] = {}
        self._points: list[list[tuple[float, float]]] = []
        self._of: tuple[Contestant, int] | None = None
        self.began_at = self._last_at = clock()

    def take(self, heard: Heard) -> None:
        """What the bench tells."""
        now = self._clock()
        match heard:
            case Began(about, contestants):
                self._rounds = {one: [] for one in contestants}
                self.began_at = self._last_at = now
                self.about = about
            case Live():
                if self._of != (heard.contestant, heard.round):
                    self._of = (heard.contestant, heard.round)
                    self._points.append([])
                self._points[-1].append((now, heard.messages_per_second))
                self.live = heard
            case Rounded(contestant, one):
                if self._of != (contestant, one.number):  # it was over before a second was
                    self._points.append([(now, one.messages_per_second)])
                self._rounds[contestant].append(one)
                self._last_at, self.live = now, None
            case str():
                self.said.append(heard)

    @property
    def over(self) -> bool:
        """Whether it has ended, however."""
        return self.ended_at is not None

    @property
    def contestants(self) -> tuple[Contestant, ...]:
        """All of them, in turn."""
        return tuple(self._rounds)

    @property
    def results(self) -> tuple[Result, ...]:
        """Of those of which a round is over."""
        found = [(one, tuple(rounds)) for one, rounds in [*self._rounds.items()]]
        return tuple(Result(one, rounds) for one, rounds in found if rounds)

    @property
    def total(self) -> int:
        """Rounds of all contestants."""
        return len(self._rounds) * self.load.rounds

    @property
    def done(self) -> int:
        """Rounds that are over."""
        return sum(len(rounds) for rounds in self._rounds.values())

    @property
    def next(self) -> tuple[Contestant, int] | None:
        """Whose turn it is, and the number of the round; None: nobody's."""
        contestants = self.contestants
        if not contestants or self.done >= self.total:
            return None
        return contestants[self.done % len(contestants)], self.done // len(contestants) + 1

    @property
    def points(self) -> tuple[Points, ...]:
        """Messages a second, round by round."""
        return tuple(tuple(run) for run in self._points)

    def seconds_left(self) -> float | None:
        """About how long the rest takes; None: not known yet."""
        if self.about is None:
            return None
        done = self.done
        a_round = (self._last_at - self.began_at) / done if done else _of_a_round(self.load)
        return max(0.0, a_round * (self.total - done) - (self._clock() - self._last_at))

    def work(self, place: Place) -> "BenchWork":
        """The bench as any other work that runs in this console."""

        def do(control: Control, tell: Tell) -> Ended:
            database = place.database
            url = database.complete_url().render_as_string(hide_password=False)
            schema = database.product.default_schema
            task = Task(url, database.label, schema, self.wanted, self.load)

            def hear(heard: Heard) -> None:
                self.take(heard)
                tell(Told(self.done, self.total or None, "bench"))

            try:
                self.whole = measure(task, control, hear)
            finally:
                self.live, self.ended_at = None, self._clock()
            return self._ended()

        return BenchWork(self, do)

    def _ended(self) -> Ended:
        rounds = numbered(self.done, "round")
        if not self.whole:
            return Ended(Outcome.STOPPED, (f"stopped after {rounds}; its queues are dropped",))
        bad = [result.label for result in self.results if not result.ok]
        if bad:
            return Ended(Outcome.FAILED, (f"NOT OK: {', '.join(bad)}",))
        return Ended(Outcome.DONE, (f"ok: {rounds}",))


@dataclass(frozen=True)
class BenchWork:
    """A bench among what runs in this console."""

    course: Course
    do: Callable[[Control, Tell], Ended]
    verb: str = field(default="bench", init=False)
    count: int | None = field(default=None, init=False)
