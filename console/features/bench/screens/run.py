"""One bench: its preview, its progress, its table and its remaining time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from console.catalog import every_queue
from console.catalog.audit import Outcome, Subject
from console.features.bench.action import (
    BenchCandidates,
    BenchEvent,
    BenchRequest,
    BenchStarted,
    BenchTask,
    RoundFinished,
    measure,
)
from console.features.bench.candidate import Candidate, Load
from console.features.bench.results import CandidateResult, log_bytes_per_message
from console.features.bench.rounds import HEAD_START_SECONDS, RoundProgress
from console.formats import duration, numbered
from console.plan import PRODUCTION, Control, OnProgress, Plan, Progress, Result, is_production
from console.tui.open_connection import OpenConnection
from console.views.view import Column, or_unknown

if TYPE_CHECKING:
    from console.features.bench.server import Environment
    from console.load.round_figures import RoundFigures


_MANY_NAMES = 12
_BETWEEN_ROUNDS_SECONDS = 1.5
"""To make a queue, measure its messages and drop it, until a round has been measured."""


def plan_bench(conn: OpenConnection, bench_run: "BenchRun") -> "BenchWork":
    """Ask the database which candidates can take part. Blocks; ConsoleError."""
    database, load, left_out = conn.database, bench_run.load, list[str]()
    candidates = BenchCandidates(database, database.product.default_schema, load, left_out.append)
    names = [
        f"{c.name} x{c.batch}" if c.batch > 1 else c.name
        for c in (entrant.candidate for entrant in candidates.entrants(bench_run.request))
    ]
    production = conn.production or is_production(database)
    lines = plan_lines(database.label, names, left_out, load, production=production)
    return bench_run.work(conn, tuple(lines), production=production)


def plan_lines(
    connection: str,
    candidates: Sequence[str],
    left_out: Sequence[str],
    load: Load,
    *,
    production: bool,
) -> list[str]:
    names = ", ".join(candidates[:_MANY_NAMES])
    more = len(candidates) - _MANY_NAMES
    seconds = _estimated_round_seconds(load) * load.rounds * len(candidates)
    return [
        *([PRODUCTION, ""] if production else []),
        f"{load.producers} connections push and {load.consumers} pop as fast as {connection} can: "
        "this uses all of the server's capacity. Everyone else working there will notice.",
        "",
        f"{numbered(load.rounds, 'round')} of each: {names}"
        f"{f' and {more} more' if more > 0 else ''}.",
        f"It takes about {duration(seconds)}.",
        "Every round uses a scratch queue of its own (dbq_bench_...), dropped when it ends. No "
        "other queue is touched.",
        *(["One transaction stays open: the server cannot remove dead rows."] * load.held_xmin),
        *(line for text in left_out for line in ["", *text.splitlines()]),
    ]


def _estimated_round_seconds(load: Load) -> float:
    """Its estimated seconds, before the first round is measured."""
    return load.warmup_seconds + load.seconds + HEAD_START_SECONDS + _BETWEEN_ROUNDS_SECONDS


Points = tuple[tuple[float, float], ...]
"""(moment by the context's clock, messages in the second before)."""


class BenchRun:
    """A bench that is running or finished. Written by its thread; screens only read."""

    def __init__(self, request: BenchRequest, load: Load, clock: Callable[[], float]) -> None:
        """`clock`: the context's."""
        self.request = request
        self.load = load
        self.environment: Environment | None = None
        """None until the first round is prepared."""
        self.live: RoundProgress | None = None
        """The current round; None between two."""
        self.messages: list[str] = []
        """Candidates left out, leftovers of earlier benches."""
        self.complete = False
        """Whether all rounds finished."""
        self.ended_at: float | None = None
        """None while running."""
        self._clock = clock
        self._rounds: dict[Candidate, list[RoundFigures]] = {}
        self._points: list[list[tuple[float, float]]] = []
        self._current_round: tuple[Candidate, int] | None = None
        self.began_at = self._last_at = clock()

    def on_event(self, event: BenchEvent) -> None:
        now = self._clock()
        match event:
            case BenchStarted(environment, candidates):
                self._rounds = {one: [] for one in candidates}
                self.began_at = self._last_at = now
                self.environment = environment
            case RoundProgress():
                if self._current_round != (event.candidate, event.round):
                    self._current_round = (event.candidate, event.round)
                    self._points.append([])
                self._points[-1].append((now, event.messages_per_second))
                self.live = event
            case RoundFinished(candidate, one):
                if self._current_round != (candidate, one.number):  # it took less than a second
                    self._points.append([(now, one.messages_per_second)])
                self._rounds[candidate].append(one)
                self._last_at, self.live = now, None
            case str():
                self.messages.append(event)

    @property
    def finished(self) -> bool:
        return self.ended_at is not None

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        return tuple(self._rounds)

    @property
    def results(self) -> tuple[CandidateResult, ...]:
        pairs = [(one, tuple(rounds)) for one, rounds in [*self._rounds.items()]]
        return tuple(CandidateResult(one, rounds) for one, rounds in pairs if rounds)

    @property
    def total(self) -> int:
        """Rounds of all candidates."""
        return len(self._rounds) * self.load.rounds

    @property
    def done(self) -> int:
        return sum(len(rounds) for rounds in self._rounds.values())

    @property
    def next_round(self) -> tuple[Candidate, int] | None:
        """The next candidate and its round number; None: all are done."""
        candidates = self.candidates
        if not candidates or self.done >= self.total:
            return None
        return candidates[self.done % len(candidates)], self.done // len(candidates) + 1

    @property
    def points(self) -> tuple[Points, ...]:
        return tuple(tuple(run) for run in self._points)

    def seconds_left(self) -> float | None:
        """The estimated remaining time; None: not known yet."""
        if self.environment is None:
            return None
        done = self.done
        round_seconds = (
            (self._last_at - self.began_at) / done if done else _estimated_round_seconds(self.load)
        )
        return max(0.0, round_seconds * (self.total - done) - (self._clock() - self._last_at))

    def work(
        self, conn: OpenConnection, lines: tuple[str, ...] = (), *, production: bool = False
    ) -> "BenchWork":
        """The bench as a plan."""

        def run(control: Control, on_progress: OnProgress) -> Result:
            database = conn.database
            url = database.complete_url().render_as_string(hide_password=False)
            schema = database.product.default_schema
            task = BenchTask(url, database.label, schema, self.request, self.load)

            def on_event(event: BenchEvent) -> None:
                self.on_event(event)
                on_progress(Progress(self.done, self.total or None, "bench"))

            try:
                self.complete = measure(task, control, on_event)
            finally:
                self.live, self.ended_at = None, self._clock()
            return self._result()

        label = conn.database.label
        return BenchWork(
            Subject("bench", "", "", label),
            every_queue(),
            lines,
            requires_name=production,
            run=run,
            about=("connection", label),
            bench_run=self,
        )

    def _result(self) -> Result:
        rounds = numbered(self.done, "round")
        if not self.complete:
            return Result(Outcome.STOPPED, (f"stopped after {rounds}; its queues are dropped",))
        bad = [result.label for result in self.results if not result.ok]
        if bad:
            return Result(Outcome.FAILED, (f"NOT OK: {', '.join(bad)}",))
        return Result(Outcome.DONE, (f"ok: {rounds}",))


@dataclass(frozen=True, kw_only=True)
class BenchWork(Plan):
    bench_run: BenchRun


_BAR_CELLS = 16


@dataclass(frozen=True)
class BenchRow:
    """A candidate, with medians of its finished rounds."""

    candidate: Candidate
    rounds: int
    """Planned."""
    max_rate: float
    """Messages a second of the fastest candidate."""
    running: bool = False
    result: CandidateResult | None = None
    live: RoundProgress | None = None
    """The last measured second, while it is running."""

    @property
    def rate(self) -> float | None:
        """Messages a second; the current ones during its first round."""
        if self.result is not None:
            return self.result.messages_per_second.median
        return self.live.messages_per_second if self.live else None


def lines_of(bench_run: BenchRun) -> dict[str, BenchRow]:
    """The rows of all candidates, in order."""
    results = {result.candidate: result for result in bench_run.results}
    rates = [result.messages_per_second.median for result in bench_run.results]
    rates += [bench_run.live.messages_per_second] if bench_run.live else []
    current = (
        None if bench_run.finished or bench_run.next_round is None else bench_run.next_round[0]
    )
    return {
        label(candidate): BenchRow(
            candidate,
            bench_run.load.rounds,
            max(rates, default=0.0),
            current == candidate,
            results.get(candidate),
            bench_run.live if current == candidate else None,
        )
        for candidate in bench_run.candidates
    }


def label(candidate: Candidate) -> str:
    """Its row's key, and its name there."""
    return CandidateResult(candidate, ()).label


def _mark(line: BenchRow) -> str:
    wrong = line.result is not None and not line.result.ok
    return "✖" if wrong else "▶" if line.running else ""


def _mark_style(line: BenchRow) -> str:
    return "critical" if line.result is not None and not line.result.ok else "good"


def _rate(line: BenchRow) -> str:
    return or_unknown(line.rate, "{:,.0f}".format, "")


def _bar(line: BenchRow) -> str:
    if not line.rate or not line.max_rate:
        return ""
    eighths = max(1, round(line.rate / line.max_rate * _BAR_CELLS * 8))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _rounds(line: BenchRow) -> str:
    return f"{0 if line.result is None else len(line.result.rounds)} of {line.rounds}"


def _of_result(
    name: str,
    title: str,
    value: Callable[[CandidateResult], str],
    style: str,
    least: int,
    most: int,
) -> Column[BenchRow]:
    """A figure that is known once a round is over."""
    return Column(
        name, title, lambda x: or_unknown(x.result, value, ""), style, least, most, align_right=True
    )


def _latency(name: str, cut: str, title: str) -> Column[BenchRow]:
    """Milliseconds; for pops the current ones, before the first round is over."""

    def value(line: BenchRow) -> str:
        if line.result is not None:
            percentiles = line.result.latency(f"{name}_ms")
        else:
            percentiles = line.live.pop_ms if line.live and name == "pop" else None
        return "" if percentiles is None else ms(getattr(percentiles, cut))

    least, most = (8, 8) if cut == "p50" else (6, 7)

    def style(line: BenchRow) -> str:
        return "trend" if line.result is None else ""

    return Column(f"{name}_{cut}", title, value, style, least, most, align_right=True)


def _cpu(seconds: float | None) -> str:
    return or_unknown(seconds, "{:.2f}".format)


def _log_bytes(result: CandidateResult) -> str:
    return or_unknown(result.median(log_bytes_per_message), "{:,.0f}".format)


COLUMNS: tuple[Column[BenchRow], ...] = (
    Column("mark", "", _mark, _mark_style, max_width=1),
    Column("name", "", lambda line: label(line.candidate), "strong", 8, 32),
    Column(
        "rate", "msgs/s", _rate, lambda line: "trend" if line.live else "", 7, 9, align_right=True
    ),
    Column("bar", "", _bar, "trend", _BAR_CELLS, _BAR_CELLS),
    Column("rounds", "rounds", _rounds, "quiet", 6, 7, align_right=True),
    _of_result("min", "min", lambda result: f"{result.messages_per_second.min:,.0f}", "", 7, 9),
    _of_result("max", "max", lambda result: f"{result.messages_per_second.max:,.0f}", "", 7, 9),
    *(
        _latency(name, cut, f"{title} p50" if cut == "p50" else cut)
        for name, title in (("push", "push"), ("pop", "pop"), ("end_to_end", "e2e"))
        for cut in ("p50", "p95", "p99")
    ),
    _of_result("server", "cpu srv", lambda result: _cpu(result.server_cpu), "quiet", 7, 7),
    _of_result("clients", "cpu cli", lambda result: _cpu(result.client_cpu), "quiet", 7, 7),
    _of_result("log", "log B", _log_bytes, "quiet", 6, 7),
)
DROP_ORDER = (
    *(
        "log",
        "clients",
        "server",
        "push_p95",
        "end_to_end_p99",
        "max",
        "min",
        "end_to_end_p95",
        "push_p99",
    ),
    *("end_to_end_p50", "push_p50", "rounds", "pop_p99", "pop_p95", "bar", "pop_p50"),
)


def ms(value: float) -> str:
    """Milliseconds, with three digits or more."""
    return f"{value:,.{2 if value < 10 else 1 if value < 100 else 0}f}"
