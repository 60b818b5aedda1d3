"""Runs all checks on all queues; a queue is "all clear" only if everything was examined."""

from __future__ import annotations

import contextvars
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from threading import Semaphore
from typing import TYPE_CHECKING

from console.catalog import Kind, Queue, object_names
from console.catalog.lookups import Together, together
from console.designs import Flow
from console.doctor.checks import CHECK_GROUPS, CODES
from console.doctor.context import (
    LOCK_SECONDS,
    PATIENCE_SECONDS,
    STATEMENT_SECONDS,
    CheckContext,
    check_context,
    command,
)
from console.doctor.decisions import finished_acknowledgements
from console.doctor.finding import Diagnosis, Finding
from console.doctor.general import FULL_SHARE, fills
from console.doctor.silent_consumers import SILENT, ConsumerHistory, with_last_consumers
from console.doctor.stopped_consumers import (
    HEAD_STUCK,
    STOPPED,
    SUBSCRIBER,
    UNPROVEN,
    ConsumptionHistory,
    ConsumptionState,
    ConsumptionVerdict,
)
from console.engines import Database
from console.monitor.limits import ThresholdsOf, defaults_of, silence_for
from console.monitor.message import Masks
from console.monitor.past import Forecasts
from console.monitor.rates import QueueName, RateWindow, key_of
from console.monitor.sample import DatabaseSample, QueueSample, take_sample
from console.monitor.sample_queries import groups, limit_transaction
from console.monitor.sampler import REQUESTED, ROUTINE, SOON, WorkLimiter
from console.monitor.snapshot import QueueSnapshot, snapshot
from console.verbs import get_verb
from console.verbs.verb import words_from_texts

if TYPE_CHECKING:
    from sqlalchemy import Connection

_AT_ONCE = 16
"""Queues whose checks may wait at the same time. Only one of them works at a time."""
_ALL = frozenset(code.name for code in CODES)
OnKnown = Callable[[list[Diagnosis], float], None]
"""Called with the diagnoses but for their consumption, and the seconds until that is known."""
_RATE_STEPS = 4
_RATE_SECONDS = 1.5
"""A ring that may soon be full is sampled `_RATE_STEPS` times within this, for its rates."""


def diagnose(  # noqa: PLR0913  # what is known from before
    database: Database,
    queues: Sequence[Queue] | None = None,
    *,
    thresholds_of: ThresholdsOf = defaults_of,
    patience_seconds: float = PATIENCE_SECONDS,
    snapshots: Sequence[QueueSnapshot] = (),
    masks: Masks = (),
    consumption: ConsumptionHistory | None = None,
    consumers: ConsumerHistory | None = None,
    forecasts: Forecasts | None = None,
    on_known: OnKnown | None = None,
    turns: WorkLimiter | None = None,
) -> list[Diagnosis]:
    """What is wrong with the queues (None: all of them). Changes nothing.

    `snapshots`: recent ones, for their rates. `consumption`, `consumers`: what earlier calls saw;
    without `consumption` this call waits for its second sample. Raises ConnectionFailedError; any
    other obstacle is reported in `unseen`. `on_known`: called once, if it waits for long. `turns`:
    shared with diagnoses of other databases; none is taken while this one waits.
    """

    doctor = _Doctor(
        database,
        thresholds_of,
        patience_seconds,
        {(snapshot.schema, snapshot.queue): snapshot for snapshot in snapshots},
        masks,
        ConsumptionHistory() if consumption is None else consumption,
        ConsumerHistory(database) if consumers is None else consumers,
        forecasts,
    )

    def on_pending(
        latest: DatabaseSample, verdicts: Mapping[QueueName, ConsumptionVerdict], seconds: float
    ) -> None:
        if on_known is not None:
            with turn(_urgency(latest)):
                known_now = doctor.judge(latest, verdicts)
            on_known(known_now, seconds)

    def turn(why: int = REQUESTED) -> AbstractContextManager[None]:
        return nullcontext() if turns is None else turns.turn(why, lambda: False)

    latest, verdicts = doctor.consumption.watch(
        database,
        lambda only: doctor.sample(queues if only is None else only),
        thresholds_of,
        doctor.known,
        on_pending,
        turn,
    )
    with turn(_urgency(latest)):
        return doctor.judge(latest, verdicts)


def _urgency(sample: DatabaseSample) -> int:
    """Samples, whose time has come, go before all; then the databases that look worst."""
    bad = any(
        one.problem or (one.row and (one.row.errors or one.row.stuck)) for one in sample.queues
    )
    return SOON if bad else ROUTINE


@dataclass(frozen=True)
class _Doctor:
    """One diagnosis: what it is given, and what is known from before."""

    database: Database
    thresholds_of: ThresholdsOf
    patience_seconds: float
    known: Mapping[QueueName, QueueSnapshot]
    masks: Masks
    consumption: ConsumptionHistory
    consumers: ConsumerHistory
    forecasts: Forecasts | None

    def sample(self, some: Sequence[Queue] | None) -> DatabaseSample:
        return take_sample(
            self.database,
            only=some,
            stuck_after_seconds=lambda queue: self.thresholds_of(queue.name).stuck_after_seconds,
        )

    def judge(
        self, latest: DatabaseSample, verdicts: Mapping[QueueName, ConsumptionVerdict]
    ) -> list[Diagnosis]:
        seconds = min(self.patience_seconds, _RATE_SECONDS)
        figures = _with_rates(latest, self.known, self.sample, seconds)
        late = {
            key
            for key, seen in figures.items()
            if not seen.paused and self.consumption.waits_long(seen, self.thresholds_of(seen.queue))
        }
        readable = [sample.queue for sample in latest.queues if not sample.queue.not_readable]
        seen_consumers, consumers_unseen = self.consumers.update(readable, figures, late)
        forecasts = {} if self.forecasts is None else self.forecasts.refreshed()
        turn, shared = Semaphore(), _Shared(self.database, [one.queue for one in latest.queues])

        def diagnose_one(sample: QueueSample) -> Diagnosis:
            queue, key = sample.queue, key_of(sample.queue)
            if why := queue.not_readable:
                return Diagnosis(queue, (), (why,), unproven=_ALL)
            beside = shared.beside(queue)
            opened = self._context(sample, figures[key], latest.clock_ahead, turn, beside)
            with turn, together(shared.lookups(beside)), opened as context:
                silent = self.consumers.silent(
                    queue, figures[key], self.consumption.idle_for_seconds
                )
                diagnosis = _diagnose(
                    context, sample, verdicts[key], self.consumers, silent, consumers_unseen
                )
                return replace(
                    diagnosis,
                    consumers=seen_consumers.get(key),
                    messages_late=key in late,
                    forecast=forecasts.get(key),
                )

        return _each(latest.queues, diagnose_one)

    def _context(
        self,
        sample: QueueSample,
        seen: QueueSnapshot,
        clock_ahead: timedelta,
        turn: Semaphore,
        beside: Sequence[Queue],
    ) -> AbstractContextManager[CheckContext]:
        return check_context(
            self.database,
            sample.queue,
            snapshot=seen,
            thresholds=self.thresholds_of(sample.queue.name),
            patience_seconds=self.patience_seconds,
            masks=self.masks,
            met_lock=bool(sample.problem),
            clock_ahead=clock_ahead,
            forecasts=self.forecasts,
            turn=turn,
            beside=beside,
        )


class _Shared:
    """The queues in groups that share their lookups, and these."""

    def __init__(self, database: Database, queues: Sequence[Queue]) -> None:
        self._database = database
        known = [queue for queue in queues if not queue.not_readable]
        self._groups = {
            key_of(queue): group for group in groups(known, database.product) for queue in group
        }
        self._lookups: tuple[Sequence[Queue], Together] | None = None

    def beside(self, queue: Queue) -> Sequence[Queue]:
        return self._groups[key_of(queue)]

    def lookups(self, group: Sequence[Queue]) -> Together:
        if self._lookups is None or self._lookups[0] is not group or not self._lookups[1].fresh:
            self._lookups = group, self._new(group)
        return self._lookups[1]

    def _new(self, group: Sequence[Queue]) -> Together:
        names: defaultdict[str, set[str]] = defaultdict(set)
        for queue in group:
            if queue.kind is not Kind.ADOPTED:
                own = object_names.of(self._database.product, queue)
                names[queue.schema].update(("", queue.name, queue.table, *own))
        return Together({schema: frozenset(of) for schema, of in names.items()}, self._transaction)

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self._database.transaction("look up the queues", read_only=True) as connection:
            limit_transaction(connection, self._database, STATEMENT_SECONDS, LOCK_SECONDS)
            yield connection


def _each(
    queues: Sequence[QueueSample], diagnose_one: Callable[[QueueSample], Diagnosis]
) -> list[Diagnosis]:
    if len(queues) < 2:
        return [diagnose_one(sample) for sample in queues]
    with ThreadPoolExecutor(min(len(queues), _AT_ONCE), "doctor") as pool:
        # The copied context hands on this thread's `time_limit`.
        running = [
            pool.submit(contextvars.copy_context().run, diagnose_one, sample) for sample in queues
        ]
        try:
            return [future.result() for future in running]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _with_rates(
    latest: DatabaseSample,
    known: Mapping[QueueName, QueueSnapshot],
    sample: Callable[[Sequence[Queue]], DatabaseSample],
    seconds: float,
) -> dict[QueueName, QueueSnapshot]:
    """The figures, with their rates if these are known; those of a filling ring are measured."""
    figures = {key_of(one.queue): snapshot(one, latest.connection) for one in latest.queues}
    for key, seen in figures.items():
        if before := known.get(key):
            figures[key] = replace(
                seen,
                push_per_second=before.push_per_second,
                pop_per_second=before.pop_per_second,
                filling_per_second=before.filling_per_second,
                steps=before.steps,
            )
    filling = [one.queue for one in latest.queues if may_fill(figures[key_of(one.queue)])]
    windows = {key_of(queue): RateWindow(Flow.NUMBERS) for queue in filling}

    def add(at: DatabaseSample) -> None:
        for one in at.queues:
            if window := windows.get(key_of(one.queue)):
                rates = window.add(one.taken_at or at.taken_at, one.row, counts_rows=at.counts_rows)
                key = key_of(one.queue)
                figures[key] = replace(
                    snapshot(one, at.connection, rates), steps=figures[key].steps
                )

    add(latest)
    # If it fills, measure again: chance rarely lasts.
    for _ in range(2):
        for _ in range(_RATE_STEPS if filling else 0):
            time.sleep(seconds / _RATE_STEPS)
            add(sample(filling))
        filling = [queue for queue in filling if fills(figures[key_of(queue)])]
    return figures


def may_fill(seen: QueueSnapshot) -> bool:
    """Whether a ring's rates are worth measuring."""
    if seen.push_per_second is not None or seen.gap is None or not seen.capacity:
        return False
    return FULL_SHARE <= seen.gap / seen.capacity < 1


def _diagnose(
    context: CheckContext,
    sample: QueueSample,
    consumed: ConsumptionVerdict,
    consumers: ConsumerHistory,
    silent: Finding | None,
    consumers_unseen: str,
) -> Diagnosis:
    queue, silences = context.queue, sample.silences
    if sample.problem:
        context.unseen.append(f"its figures: {sample.problem}")
    elif sample.slow:
        context.unseen.append(f"its figures: {', '.join(sample.slow)} took too long to read")
    findings, unproven = _run_checks(context)
    not_known = f"consumption not known: {consumed.why}" if consumed.why else ""
    if not_known:
        context.unseen.append(not_known)
    if consumed.findings:
        last = consumers.popped_last(queue)
        findings += [
            with_last_consumers(finding, last).with_since(context.now)
            for finding in consumed.findings
        ]
    elif silent is not None:  # if all have stopped, the findings above name each
        findings.append(silent)
    findings = [
        replace(
            finding,
            silenced=silence_for(
                silences, finding.code.name, finding.code.severity, finding.subject
            ),
            runbook=context.thresholds.runbooks.get(finding.code.name, ""),
        )
        for finding in findings
    ]
    findings.sort(key=lambda finding: (-finding.effective_severity, -finding.code.severity))
    findings = [_with_command(queue, finding) for finding in findings]
    if consumed.state in UNPROVEN:
        unproven |= {STOPPED.name, HEAD_STUCK.name, SUBSCRIBER.name}
    if consumers_unseen:
        context.unseen.append(f"consumers: {consumers_unseen}")
    if consumers_unseen or consumers.is_new(queue):
        unproven.add(SILENT.name)
    return Diagnosis(
        queue,
        tuple(findings),
        tuple(dict.fromkeys(context.unseen)),
        context.snapshot,
        context.clock_ahead,
        tuple(finished_acknowledgements(silences, findings, unproven.__contains__)),
        frozenset(unproven),
        pending=not_known if consumed.state is ConsumptionState.PENDING else "",
    )


def _run_checks(context: CheckContext) -> tuple[list[Finding], set[str]]:
    """The findings, and the codes whose checks did not complete."""
    findings: list[Finding] = []
    unproven = set(_ALL if context.unseen else ())
    for group in CHECK_GROUPS:
        unseen = len(context.unseen)
        findings += group.run(context)
        if len(context.unseen) > unseen:
            unproven |= {code.name for code in group.codes}
    return findings, unproven


def _with_command(queue: Queue, finding: Finding) -> Finding:
    if finding.repair is None:
        return finding
    if not queue.design.trusted:
        why = "nothing repairs a queue whose preset is not trusted (dbq-console preset list)"
        return replace(finding, repair=None, judgement=why)
    doctor = get_verb("doctor")
    fix = command(queue, "doctor", *doctor.fixed, *words_from_texts(doctor, finding.repair_texts))
    return replace(finding, command=finding.repair.command or fix)
