"""Runs the rounds: each on a scratch queue of its own, its clients in worker processes."""

import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self

from console.engines import Database
from console.errors import ConnectionFailedError
from console.features.bench.candidate import (
    Candidate,
    Load,
    QueueProvider,
    ScratchQueue,
    load_application_name,
)
from console.features.bench.sampler_process import console_beside
from console.features.bench.server import (
    LoadSampler,
    keep_open,
    old_transaction,
    sampling_session,
    server_cpu_seconds,
)
from console.load import processes
from console.load.call_log import CallLog, Latency, codes_and_times, filler
from console.load.round_figures import RoundFigures, RoundVerdict, judge, measured
from console.load.worker_round import SharedCounters, Times, WorkerTask, now_us

_READY_SECONDS = 30.0
_DONE_SECONDS = 8.0


class Workers:
    """The worker processes of a round; none is left when the context ends."""

    def __init__(self, tasks: Sequence[WorkerTask]) -> None:
        self._workers = [_Worker(task) for task in tasks]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.kill()

    def wait_until_ready(self) -> None:
        """All have their connections. ConnectionFailedError."""
        self._wait_for("ready", time.monotonic() + _READY_SECONDS)

    def go(self, times: Times) -> None:
        for worker in self._workers:
            worker.send(json.dumps(asdict(times)))

    def call_logs(self, stop_us: int) -> list[CallLog]:
        """Once all have ended. ConnectionFailedError."""
        self._wait_for("done", stop_us / 1e6 + _DONE_SECONDS)
        return [CallLog.load(Path(worker.task.call_log)) for worker in self._workers]

    def _wait_for(self, state: str, deadline: float) -> None:
        for worker in self._workers:
            line = worker.line(deadline)
            if line != state:
                raise ConnectionFailedError(
                    f"A process of the bench failed before it was {state}.", why=worker.why(line)
                )


class _Worker:
    def __init__(self, task: WorkerTask) -> None:
        self.task = task
        self._errors = Path(f"{task.call_log}.err")
        with self._errors.open("wb") as errors:
            self._process = processes.start("console.features.bench.worker", stderr=errors)
        self.send(json.dumps(asdict(task)))

    def send(self, line: str) -> None:
        processes.send_line(self._process, line)

    def line(self, deadline: float) -> str:
        """The next line of its output; empty where it ended or was late."""
        return processes.read_line(self._process, deadline)

    def why(self, line: str) -> str:
        """What went wrong, after an unexpected line."""
        if line.startswith("failed "):
            return line.removeprefix("failed ")
        errors = self._errors.read_text(errors="replace").strip().splitlines()
        return errors[-1] if errors else "It was too slow, or was killed."

    def kill(self) -> None:
        processes.kill(self._process)


__all__ = ["Bench", "Entrant", "Load", "QueueProvider", "RoundProgress"]

HEAD_START_SECONDS = 0.5
"""Of producers before consumers, so that there is something to pop."""
_BEGIN_SECONDS = 0.1
_SAMPLE_SECONDS = 0.25
_KEEP_OPEN_SECONDS = 30.0
_LAST_COSTS_SHARE = 0.05
"""Of the measured time, before its end: a session's costs are uncounted for a moment when it ends.
"""
_CURVE_POINTS = 20


@dataclass(frozen=True)
class RoundProgress:
    """Once a second."""

    candidate: Candidate
    round: int
    rounds: int
    second: int
    """Of the round; negative during the warm-up."""
    messages_per_second: float
    """In the last second."""
    pop_ms: Latency | None
    """Of recent pops, in the slowest process."""


@dataclass(frozen=True)
class Entrant:
    """A candidate, and what creates its queues."""

    candidate: Candidate
    provider: QueueProvider


AfterRound = Callable[[Candidate, ScratchQueue, RoundFigures], RoundFigures]
"""Measures more on the same scratch queue before it is dropped."""


class Bench:
    """All rounds of all candidates."""

    def __init__(
        self,
        database: Database,
        token: str,
        load: Load,
        *,
        postmaster: int | None = None,
        on_progress: Callable[[RoundProgress], None] = lambda _: None,
        after: AfterRound = lambda _, __, round_figures: round_figures,
    ) -> None:
        """`postmaster`: the server's process, if it is on this machine."""
        self._database = database
        self._token = token
        self._load = load
        self._postmaster = postmaster
        self._on_progress = on_progress
        self._after = after

    def run(
        self, entrants: Sequence[Entrant], done: Callable[[Entrant, RoundFigures], None]
    ) -> dict[Candidate, list[RoundFigures]]:
        """Round 1 of all, round 2 of all...: so a disturbance of the machine affects all."""
        found: dict[Candidate, list[RoundFigures]] = {entrant.candidate: [] for entrant in entrants}
        consoles = (False, True) if self._load.with_console else (False,)
        with sampling_session(self._database, self._token) as sampler:
            for number in range(1, self._load.rounds + 1):
                # In alternating order: neither is always the later one.
                for console in consoles if number % 2 else consoles[::-1]:
                    for entrant in entrants:
                        round_figures = self._round(entrant, number, sampler, console=console)
                        found[entrant.candidate].append(round_figures)
                        done(entrant, round_figures)
        return found

    def _round(
        self, entrant: Entrant, number: int, sampler: LoadSampler, *, console: bool
    ) -> RoundFigures:
        candidate, load = entrant.candidate, self._load
        with ExitStack() as stack:
            scratch = stack.enter_context(entrant.provider.scratch(candidate, load.payload))
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dbq-bench-")))
            if console:
                stack.enter_context(console_beside(self._database, folder))
            tasks = self._tasks(candidate, scratch, folder)
            counters = SharedCounters(folder / "board", len(tasks))
            stack.callback(counters.close)
            with Workers(tasks) as workers:
                workers.wait_until_ready()
                times = self._times()
                workers.go(times)
                server_cpu, log_bytes = self._follow(candidate, number, counters, times, sampler)
                call_logs = workers.call_logs(times.stop)
            table_activity = sampler.table_activity(scratch.schema, scratch.tables)
            disk_bytes = sampler.disk_bytes(scratch.schema, scratch.tables)
            round_figures = self._figures(candidate, scratch, call_logs, times)
            round_figures = replace(
                round_figures,
                number=number,
                console=console,
                waits=sampler.waits(),
                server_cpu=server_cpu,
                log_bytes_per_second=log_bytes,
                table_activity=table_activity,
                disk_bytes=disk_bytes,
            )
            return self._after(candidate, scratch, round_figures)

    def _times(self) -> Times:
        produce = now_us() + round(_BEGIN_SECONDS * 1e6)
        consume = produce + round(HEAD_START_SECONDS * 1e6)
        measure = consume + round(self._load.warmup_seconds * 1e6)
        return Times(produce, consume, measure, measure + round(self._load.seconds * 1e6))

    def _tasks(self, candidate: Candidate, scratch: ScratchQueue, folder: Path) -> list[WorkerTask]:
        load = self._load
        readers = scratch.readers
        least = 2 * load.producers * candidate.batch * len(readers)
        room = load.room and max(load.room, least)
        url = self._database.complete_url().render_as_string(hide_password=False)
        tasks: list[WorkerTask] = []
        shared = max(1, load.consumers // len(readers))
        sides = [(True, load.producers, 0, scratch.settings)]
        sides += [
            (False, shared, at * shared, reader.settings) for at, reader in enumerate(readers)
        ]
        for produces, clients, before, settings in sides:
            for first, count in _shares(clients):
                tasks.append(
                    WorkerTask(
                        driver=candidate.driver,
                        settings=settings,
                        produces=produces,
                        url=url,
                        application_name=load_application_name(self._token),
                        first=before + first,
                        clients=count,
                        batch=candidate.batch,
                        payload=load.payload,
                        room=room,
                        readers=len(readers),
                        counters=str(folder / "board"),
                        row=len(tasks),
                        call_log=str(folder / f"journal-{len(tasks)}"),
                    )
                )
        return tasks

    def _follow(
        self,
        candidate: Candidate,
        number: int,
        counters: SharedCounters,
        times: Times,
        sampler: LoadSampler,
    ) -> tuple[float | None, float | None]:
        """Until the round's end: measure costs, report progress."""
        load = self._load
        with ExitStack() as stack:
            old = None
            if load.held_xmin:
                old = stack.enter_context(old_transaction(self._database))
            kept = time.monotonic()
            _sleep_until(times.consume)
            sampler.reset()
            before = after = None
            popped, second = counters.popped, -round(load.warmup_seconds)
            next_sample, next_second = times.measure, times.consume + 1_000_000
            last_costs = times.stop - round((times.stop - times.measure) * _LAST_COSTS_SHARE)
            while (now := now_us()) < times.stop:
                if before is None and now >= times.measure:
                    before = self._costs(sampler)
                if after is None and now >= last_costs:
                    after = self._costs(sampler)
                if now >= next_sample:
                    sampler.sample()
                    next_sample = now + round(_SAMPLE_SECONDS * 1e6)
                if now >= next_second:
                    self._on_progress(_live(candidate, number, load, second, counters, popped))
                    popped, second = counters.popped, second + 1
                    next_second += 1_000_000
                if old is not None and time.monotonic() - kept > _KEEP_OPEN_SECONDS:
                    keep_open(old)
                    kept = time.monotonic()
                waiting_for = [next_second, next_sample, times.stop]
                _sleep_until(min(waiting_for if after else [*waiting_for, last_costs]))
        if before is None or after is None or not before.at_us < after.at_us < times.stop:
            return _NO_RATES  # this process was delayed
        return _rates(before, after)

    def _costs(self, sampler: LoadSampler) -> "_Costs":
        log_bytes = sampler.log_bytes()
        return _Costs(server_cpu_seconds(self._postmaster), log_bytes, now_us())

    def _figures(
        self, candidate: Candidate, scratch: ScratchQueue, call_logs: list[CallLog], times: Times
    ) -> RoundFigures:
        merged = CallLog.merged(call_logs)
        if not candidate.carries:
            return measured(merged, None, None, times, _CURVE_POINTS)
        rest = filler(self._load.payload)
        producers = _processes(self._load.producers)
        pushes, pops = call_logs[:producers], call_logs[producers:]
        each = len(pops) // len(scratch.readers)
        verdicts = []
        for at, reader in enumerate(scratch.readers):
            own = CallLog.merged([*pushes, *pops[at * each : (at + 1) * each]])
            codes, _ = codes_and_times(own.heads)
            left, left_codes = reader.left(rest), partial(reader.left_codes, rest)
            verdicts.append(judge(own, codes.to_pylist(), left, left_codes, candidate.order))
        _, pushed_us = codes_and_times(merged.heads)
        return measured(merged, RoundVerdict.together(verdicts), pushed_us, times, _CURVE_POINTS)


@dataclass(frozen=True)
class _Costs:
    """Of the server so far; None: not known."""

    cpu_seconds: float | None
    log_bytes: int | None
    at_us: int


_NO_RATES = (None, None)


def _rates(before: _Costs, after: _Costs) -> tuple[float | None, float | None]:
    """(processors kept busy, bytes of log per second)."""
    seconds = (after.at_us - before.at_us) / 1e6
    cpu = log = None
    if before.cpu_seconds is not None and after.cpu_seconds is not None:
        cpu = (after.cpu_seconds - before.cpu_seconds) / seconds
    if before.log_bytes is not None and after.log_bytes is not None:
        log = (after.log_bytes - before.log_bytes) / seconds
    return cpu, log


def _live(
    candidate: Candidate,
    number: int,
    load: Load,
    second: int,
    counters: SharedCounters,
    before: int,
) -> RoundProgress:
    took = max(counters.took()[_processes(load.producers) :])
    pop_ms = Latency(*(cut / 1000 for cut in took)) if any(took) else None
    through = float(counters.popped - before)
    return RoundProgress(candidate, number, load.rounds, second, through, pop_ms)


def _processes(clients: int) -> int:
    """For one side: a Python thread drives more connections than half the cores can serve."""
    return max(1, min(clients, (os.cpu_count() or 2) // 2))


def _shares(clients: int) -> list[tuple[int, int]]:
    """(first client, how many) for each process of a side."""
    processes = _processes(clients)
    bounds = [clients * part // processes for part in range(processes + 1)]
    return [(a, b - a) for a, b in itertools.pairwise(bounds)]


def _sleep_until(at_us: int) -> None:
    time.sleep(max(0.0, (at_us - now_us()) / 1e6))
