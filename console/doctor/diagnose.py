"""All families on all queues: findings in order of gravity, and what could not be examined.

"All clear" is said only of a queue of which everything was examined.
"""

import contextvars
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Semaphore

from console.catalog import Queue
from console.designs import Flow
from console.doctor.checks import CHECK_GROUPS, CODES
from console.doctor.context import (
    PATIENCE_SECONDS,
    CheckContext,
    check_context,
    command,
)
from console.doctor.decisions import finished_acknowledgements
from console.doctor.finding import Diagnosis, Finding
from console.doctor.general import FULL_SHARE, fills
from console.doctor.silent_consumers import SILENT, ConsumerHistory, with_last_consumers
from console.doctor.stopped_consumers import (
    STOPPED,
    SUBSCRIBER,
    UNPROVEN,
    ConsumptionHistory,
    ConsumptionVerdict,
)
from console.doctor.unusual import TrafficForecasts
from console.engines import Database
from console.monitor.figures import Key, RateWindow, key_of
from console.monitor.limits import ThresholdsOf, defaults_of, silence_for
from console.monitor.message import Masks
from console.monitor.sample import DatabaseSample, QueueSample, take_sample
from console.monitor.snapshot import QueueSnapshot, snapshot

_TOGETHER = 16
"""Queues that wait at the same time, at most. One of them at a time is at work."""
_ALL = frozenset(code.name for code in CODES)
_RATE_STEPS = 4
_RATE_SECONDS = 1.5
"""A ring that may be full soon is sampled so often within this, for the range of its rates."""


def diagnose(  # noqa: PLR0913  # what is known from before
    database: Database,
    queues: Sequence[Queue] | None = None,
    *,
    thresholds_of: ThresholdsOf = defaults_of,
    patience_seconds: float = PATIENCE_SECONDS,
    snapshots: Sequence[QueueSnapshot] = (),
    masks: Masks = (),
    consumption: ConsumptionHistory | None = None,
    memory: ConsumerHistory | None = None,
    usual: TrafficForecasts | None = None,
) -> list[Diagnosis]:
    """What is wrong with the queues (None: with all). Changes nothing.

    `snapshots`: what a sampler has seen of them lately, for their rates. `consumption`: what
    earlier checks have shown of it; without one this check waits for its second sample. `memory`:
    the same of each consumer. `usual`: what to expect of their hours. Raises ConnectionFailedError;
    what else is in the way is told in `unseen`.
    """

    def sampled(some: Sequence[Queue] | None) -> DatabaseSample:
        return take_sample(
            database,
            only=some,
            stuck_after_seconds=lambda queue: thresholds_of(queue.name).stuck_after_seconds,
        )

    known = {(one.schema, one.queue): one for one in snapshots}
    consumption = ConsumptionHistory() if consumption is None else consumption
    first, consumed = consumption.watch(database, lambda: sampled(queues), thresholds_of, known)
    rated = _rated(first, known, sampled, min(patience_seconds, _RATE_SECONDS))
    memory = ConsumerHistory(database) if memory is None else memory
    late = {
        key
        for key, seen in rated.items()
        if not seen.paused and consumption.waits_long(seen, thresholds_of(seen.queue))
    }
    known_queues = [one.queue for one in first.queues if not one.queue.not_known]
    there, why_not = memory.look(known_queues, rated, late)
    turn = Semaphore()
    forecasts = {} if usual is None else usual.refreshed()

    def diagnosed(one: QueueSample) -> Diagnosis:
        if one.queue.not_known:
            return Diagnosis(one.queue, (), (one.queue.not_known,), unproven=_ALL)
        looked = check_context(
            database,
            one.queue,
            snapshot=rated[key_of(one.queue)],
            thresholds=thresholds_of(one.queue.name),
            patience_seconds=patience_seconds,
            masks=masks,
            clock_ahead=first.clock_ahead,
            turn=turn,
        )
        with turn, looked as context:
            key = key_of(one.queue)
            context.forecasts = usual
            silent = memory.silent(one.queue, rated[key], consumption.idle_for_seconds)
            diagnosis = _diagnosed(context, one, consumed[key], memory, silent, why_not)
            return replace(
                diagnosis,
                consumers=there.get(key),
                messages_late=key in late,
                forecast=forecasts.get(key),
            )

    return _overlapped(diagnosed, first.queues)


def _overlapped(
    diagnosed: Callable[[QueueSample], Diagnosis], samples: Sequence[QueueSample]
) -> list[Diagnosis]:
    """Each after the other, but where one waits the next goes on."""
    if len(samples) < 2:
        return [diagnosed(one) for one in samples]
    with ThreadPoolExecutor(min(len(samples), _TOGETHER), "doctor") as pool:
        # This thread's patience is theirs too.
        running = [pool.submit(contextvars.copy_context().run, diagnosed, one) for one in samples]
        try:
            return [one.result() for one in running]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _rated(
    first: DatabaseSample,
    known: Mapping[Key, QueueSnapshot],
    sampled: Callable[[Sequence[Queue]], DatabaseSample],
    seconds: float,
) -> dict[Key, QueueSnapshot]:
    """The figures with their rates, where somebody has those; a ring's, where they matter."""
    found = {key_of(one.queue): snapshot(one, first.connection) for one in first.queues}
    for key, seen in found.items():
        if before := known.get(key):
            found[key] = replace(
                seen,
                push_per_second=before.push_per_second,
                pop_per_second=before.pop_per_second,
                filling_per_second=before.filling_per_second,
            )
    filling = [one.queue for one in first.queues if may_fill(found[key_of(one.queue)])]
    windows = {key_of(queue): RateWindow(Flow.NUMBERS) for queue in filling}

    def add(at: DatabaseSample) -> None:
        for one in at.queues:
            if window := windows.get(key_of(one.queue)):
                rates = window.add(one.taken_at or at.taken_at, one.row, counts_rows=at.counts_rows)
                found[key_of(one.queue)] = snapshot(one, at.connection, rates)

    add(first)
    # Twice, where the first time says that it fills: what is so by chance is not so for long.
    for _ in range(2):
        for _ in range(_RATE_STEPS if filling else 0):
            time.sleep(seconds / _RATE_STEPS)
            add(sampled(filling))
        filling = [queue for queue in filling if fills(found[key_of(queue)])]
    return found


def may_fill(seen: QueueSnapshot) -> bool:
    """Whether it is worth a check of the rates of a ring."""
    if seen.push_per_second is not None or seen.gap is None or not seen.capacity:
        return False
    return FULL_SHARE <= seen.gap / seen.capacity < 1


def _diagnosed(
    context: CheckContext,
    sample: QueueSample,
    consumed: ConsumptionVerdict,
    memory: ConsumerHistory,
    silent: Finding | None,
    consumers_unseen: str,
) -> Diagnosis:
    queue = context.queue
    silences = sample.silences
    if sample.problem:
        context.unseen.append(f"its figures: {sample.problem}")
    elif sample.slow:
        context.unseen.append(f"its figures: {', '.join(sample.slow)} took too long to read")
    findings, unproven = _run_checks(context)
    if consumed.why:
        context.unseen.append(f"consumption not known: {consumed.why}")
    if consumed.findings:
        stopped = [with_last_consumers(one, memory.popped_last(queue)) for one in consumed.findings]
        findings += [one.with_since(context.now) for one in stopped]
    elif silent is not None:  # where all have stopped, that is told of each
        findings.append(silent)
    found = [
        replace(
            finding,
            silenced=silence_for(
                silences, finding.code.name, finding.code.severity, finding.subject
            ),
        )
        for finding in findings
    ]
    ordered = sorted(found, key=lambda one: (-one.effective_severity, -one.code.severity))
    told = tuple(_with_command(queue, finding) for finding in ordered)
    if consumed.state in UNPROVEN:
        unproven |= {STOPPED.name, SUBSCRIBER.name}
    if consumers_unseen:
        context.unseen.append(f"consumers: {consumers_unseen}")
    if consumers_unseen or memory.is_new(queue):
        unproven.add(SILENT.name)
    return Diagnosis(
        queue,
        told,
        tuple(dict.fromkeys(context.unseen)),
        context.snapshot,
        context.clock_ahead,
        tuple(finished_acknowledgements(silences, told, unproven.__contains__)),
        frozenset(unproven),
    )


def _run_checks(context: CheckContext) -> tuple[list[Finding], set[str]]:
    """What they found; the codes of which nobody knows, for they could not look."""
    findings: list[Finding] = []
    unproven = set(_ALL if context.unseen else ())
    for group in CHECK_GROUPS:
        seen = len(context.unseen)
        findings += group.run(context)
        if len(context.unseen) > seen:
            unproven |= {code.name for code in group.codes}
    return findings, unproven


def _with_command(queue: Queue, finding: Finding) -> Finding:
    """What only the doctor repairs, it repairs on the command line too."""
    if finding.repair is None:
        return finding
    if not queue.design.trusted:
        why = "nothing repairs a queue whose preset is not trusted (dbq-console preset list)"
        return replace(finding, repair=None, judgement=why)
    of = ("--subscriber", finding.subscriber) if finding.subscriber else ()
    fix = command(queue, "doctor", "--fix", "--code", finding.code.name, *of)
    return replace(finding, command=finding.repair.command or fix)
