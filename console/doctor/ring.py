"""Checks of a ring: contradictory slots and sequences, no room, lost numbers."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from console.catalog import Kind, Queue
from console.designs import Flow
from console.doctor import lost_numbers as lost
from console.doctor.context import CheckContext, CheckGroup
from console.doctor.finding import Code, Finding
from console.doctor.lost_numbers import RingState, ServerHistory
from console.doctor.number_proof import (
    LostKind,
    LostNumbers,
    find_lost_numbers,
    next_numbers,
    total,
    without_relay,
)
from console.doctor.repairs import relay, resize
from console.doctor.ring_repairs import AddSlots, CorrectRing
from console.doctor.slot_map import Structure
from console.formats import duration, numbered
from console.monitor.limits import Severity

_STRANDED_SECONDS = 1.0
"""A message of a parked number that no pop takes for longer is stranded."""
_STANDSTILL_SECONDS = 1.0
"""After this long without a pop, a full ring has come to a standstill."""

MISMATCH = Code(
    "slot_mismatch",
    Severity.CRITICAL,
    "slots that contradict their number or reference count",
    repair="doctor --fix --code: it corrects slots and sequences, then renumbers (relay)",
)
MISSING = Code(
    "slot_count",
    Severity.CRITICAL,
    "more or fewer slots than the ring's size",
    repair="doctor --fix: it adds empty slots; slots outside the ring: doctor --fix --code: "
    "it corrects slots and sequences, then renumbers (relay)",
)
BEHIND = Code(
    "sequence_behind",
    Severity.CRITICAL,
    "sequences below numbers already in use, as after a restored dump",
    repair="doctor --fix --code: it corrects slots and sequences, then renumbers (relay)",
)
CACHED = Code(
    "sequence_cached",
    Severity.CRITICAL,
    "sequences that cache numbers per session, cache too many, have another step, or cycle",
    judgement="the sequences belong to another program: ALTER SEQUENCE ... CACHE 1, while no "
    "caller runs",
    repair="doctor --fix --code: it corrects slots and sequences, then renumbers (relay)",
)
FULL = Code(
    "full",
    Severity.CRITICAL,
    "full: no push finds room, and nothing is popped",
    judgement="start the consumers",
    repair="resize, to twice the slots",
)
FILLING = Code(
    "filling",
    Severity.WARNING,
    "the ring is nearly full, or full while pops continue",
    judgement="add consumers",
    repair="resize, to twice the slots",
)
LAPPED = Code(
    "lapped",
    Severity.WARNING,
    "the pushes are more than a lap ahead, because of numbers without messages",
    repair="relay, which renumbers all live messages",
)
AHEAD = Code(
    "pop_ahead",
    Severity.WARNING,
    "the pops are more than a lap ahead of the pushes",
    repair="relay, which renumbers all live messages",
)
STRANDED = Code(
    "parked_stranded",
    Severity.WARNING,
    "messages of parked numbers that no pop has taken for over a second, while pops continue",
    repair="doctor --fix if holes are in the way; else relay, which renumbers all live messages",
)


@dataclass(frozen=True)
class _MissingSlots:
    first: int
    last: int


@dataclass(frozen=True)
class _ContradictorySlot:
    slot: int
    number: int | None
    reference_count: int
    wrong: str


@dataclass(frozen=True)
class _Stranded:
    number: int
    id: int
    pushed_at: datetime
    age_seconds: float | None
    """None: pushed at -infinity."""
    next_pop: int
    turn: int | None


@dataclass(frozen=True)
class _Settings:
    sequence: str
    cached: int
    step: int
    cycles: bool


def _check_ring(context: CheckContext) -> Iterator[Finding]:
    if context.queue.kind is not Kind.INSTALLED:
        context.unseen.append(
            "lost numbers: callers of an adopted ring keep numbers on their side, so nothing in "
            "the database proves one lost"
        )
        if context.has("sequence_settings"):
            yield from _check_sequences(context)
        return
    if not context.can_query("lost numbers", "lost"):
        return
    (history,) = context.query_unlimited(ServerHistory, "server_start")
    if history.recovering:
        context.unseen.append("lost numbers: a standby does not know its primary's sequences")
        return
    queue = context.queue
    rings = [_read_view(context, queue, view, history) for view in queue.views]
    ring_state = rings[0]
    if queue.subscribers:
        structure = _read_structure(context)
        ring_state = RingState(context, queue, queue, history, structure, LostNumbers())
    slowest = min(rings, key=lambda ring: ring.now.next_pop)
    yield from _check_each(rings, lost.check_spent_beyond_ring, lost.check_orphans)
    yield from _check_each([ring_state], _check_slots, _check_slot_count)
    if queue.subscribers:
        yield from _check_each(rings, _check_popped_rows)
    yield from _check_each(rings, _check_behind)
    yield from _check_sequences(context)
    contents = list(lost.check_contents(context))
    yield from (finding for finding in contents if finding.code is lost.SLOT)
    yield from _check_each([slowest], _check_room)
    yield from (finding for finding in contents if finding.code is lost.CONTENT)
    yield from _check_each(
        rings, _check_laps, lost.check_spent, _check_stranded, lost.check_holes, lost.check_voids
    )


def _read_structure(context: CheckContext) -> Structure:
    with without_relay(context) as connection:
        (structure,) = context.fetch(connection, Structure, "structure")
    return structure


def _read_view(
    context: CheckContext, queue: Queue, view: Queue, history: ServerHistory
) -> RingState:
    patience_seconds = context.patience_seconds / len(queue.views)
    with context.viewed_as(view, patience_seconds):
        now = _read_structure(context)
        # With a sequence behind the numbers in use, these would look lost.
        numbers = LostNumbers() if now.behind else find_lost_numbers(context)
    prefix = f"{view.subscriber}: " * bool(view.subscriber)
    context.unseen.extend(prefix + line for line in numbers.unseen())
    return RingState(context, queue, view, history, now, numbers)


def _check_each(
    rings: Sequence[RingState], *checks: Callable[[RingState], Iterator[Finding]]
) -> Iterator[Finding]:
    """The findings of each check, the most severe of all subscribers first."""
    for check in checks:
        findings: list[Finding] = []
        for ring in rings:
            with ring.context.viewed_as(ring.view):
                findings += [
                    finding.for_subscriber(ring.view.subscriber) for finding in check(ring)
                ]
        yield from sorted(findings, key=lambda finding: -finding.code.severity)


def _check_slots(ring: RingState) -> Iterator[Finding]:
    context, now = ring.context, ring.now
    if now.contradictions:
        samples = context.query_unlimited(_ContradictorySlot, "broken_slots")
        yield Finding(
            MISMATCH,
            f"{numbered(now.contradictions, 'contradiction')} in slots"
            + (f": {samples[0].wrong} (slot {samples[0].slot})" if samples else ""),
            evidence={
                "misplaced": now.misplaced,
                "miscounted": now.miscounted,
                "below_base": now.below_base,
                "slots": [vars(sample) for sample in samples],
            },
            cause="rows were changed without the ring's own functions",
            consequence="pops do not find messages in them, or pushes find no room",
            repair=CorrectRing(context.queue),
        )


def _check_slot_count(ring: RingState) -> Iterator[Finding]:
    context, now = ring.context, ring.now
    inside = now.slots - now.outside
    if inside == now.size and not now.outside:
        return
    missing = context.query_unlimited(_MissingSlots, "missing_slots") if inside < now.size else []
    yield Finding(
        MISSING,
        f"{inside:,} slots of {now.size:,}"
        + (f", and {now.outside:,} outside the ring" if now.outside else ""),
        evidence={
            "slots": now.slots,
            "size": now.size,
            "outside": now.outside,
            "missing": [[run.first, run.last] for run in missing[:100]],
        },
        cause="rows were deleted or added, and not by a relay",
        consequence="pushes that draw a number of a missing slot find no room; the message in it "
        "is lost. A relay with missing slots is refused",
        repair=CorrectRing(context.queue)
        if now.outside
        else AddSlots(context.queue, now.size - inside),
    )


def _check_popped_rows(ring: RingState) -> Iterator[Finding]:
    """A subscriber has rows of its own, one for each slot."""
    missing = ring.context.query_unlimited(_MissingSlots, "missing_slots")
    if count := sum(run.last - run.first + 1 for run in missing):
        yield Finding(
            MISSING,
            f"{numbered(count, 'slot')} of {ring.now.size:,} without its row in popped",
            evidence={"missing": [[run.first, run.last] for run in missing[:100]]},
            cause="rows were deleted, and not by a relay",
            consequence="it never pops the messages in these slots, and pushes do not wait for it",
            repair=AddSlots(ring.view, count),
        )


def _check_behind(ring: RingState) -> Iterator[Finding]:
    now = ring.now
    first = ring.view == ring.queue.views[0]
    behind = now.behind if first else now.pops_behind  # all share the pushes
    if behind:
        yield Finding(
            BEHIND,
            f"a sequence is behind: next push {now.next_push:,}, next pop {now.next_pop:,}, but "
            + ", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in behind.items()),
            evidence={
                "next_push": now.next_push,
                "next_pop": now.next_pop,
                "base": now.base,
                **behind,
            },
            cause="table and sequences are from different moments: a restored dump, or a sequence "
            "set by hand",
            consequence="numbers are handed out twice: pushes meet occupied slots, ids are no "
            "longer unique, pops miss messages",
            repair=CorrectRing(ring.queue),
        )


def _check_sequences(context: CheckContext) -> Iterator[Finding]:
    found: dict[str, _Settings] = {}
    for view in context.queue.views:
        with context.viewed_as(view):
            found |= {
                settings.sequence: settings
                for settings in context.query_unlimited(_Settings, "sequence_settings")
            }
    wrong = [s for s in found.values() if s.cached > 1 or s.step != 1 or s.cycles]
    if wrong:
        installed = context.queue.kind is Kind.INSTALLED
        yield Finding(
            CACHED,
            "; ".join(
                f"{s.sequence}: CACHE {s.cached}, INCREMENT {s.step}" + (", CYCLE" * s.cycles)
                for s in wrong
            ),
            evidence={"sequences": [vars(setting) for setting in wrong]},
            cause="the sequence was altered, or created by an older version; on PostgreSQL each "
            "session caches numbers, on SQL Server the server does",
            consequence="on PostgreSQL numbers come out of order, and a session that ends loses "
            "its cache; on SQL Server a crash skips the cache: orphans and holes, and a ring with "
            "fewer slots is full until a relay",
            repair=CorrectRing(context.queue) if installed else None,
        )


def _check_room(ring: RingState) -> Iterator[Finding]:
    context, now = ring.context, ring.now
    if now.gap < now.size and not context.thresholds["gap_share"].exceeded(now.gap / now.size):
        return
    # A plain read of a sequence may be up to 32 too high, which matters in a small ring.
    now = replace(now, **vars(next_numbers(context)))
    share = now.gap / now.size
    exceeded = context.thresholds["gap_share"].exceeded(share)
    if exceeded is None and share < 1:
        return
    still = share >= 1 and _at_standstill(context, now)
    level = exceeded[0] if exceeded else Severity.CRITICAL
    evidence = {
        "gap": now.gap,
        "size": now.size,
        "live": now.live,
        "next_push": now.next_push,
        "next_pop": now.next_pop,
        "full_in_seconds": None if context.snapshot is None else context.snapshot.full_in_seconds,
    }
    yield Finding(
        FULL if still else FILLING,
        f"{now.gap:,} of {now.size:,} numbers are in use"
        + (": full, and nothing is popped" if still else ": full" if share >= 1 else ""),
        evidence=evidence | {"level": level.word},
        cause="no consumer pops" if still else "more is pushed than popped",
        consequence="every push returns null: it is not stored"
        if share >= 1
        else "once it is full, pushes return null and are not stored",
        repair=resize(ring.queue, now.size),
    )


def _at_standstill(context: CheckContext, now: Structure) -> bool:
    """Whether a full ring is still full a moment later, with the same next pop."""
    deadline = time.monotonic() + min(_STANDSTILL_SECONDS, context.patience_seconds)
    while True:
        later = next_numbers(context)
        if later.next_pop != now.next_pop or later.next_push - later.next_pop < now.size:
            return False
        if time.monotonic() >= deadline:
            return True
        context.pause(0.05)


def _check_laps(ring: RingState) -> Iterator[Finding]:
    now = ring.now
    # Pushes that race at full draw a few numbers too many and mark them void.
    holes = total(ring.ranges(LostKind.HOLE))
    over = now.gap - now.voids_ahead - now.size
    numbers = {"next_push": now.next_push, "next_pop": now.next_pop, "size": now.size}
    if over > 0 and holes >= over:
        yield Finding(
            LAPPED,
            f"the pushes are {now.gap:,} numbers ahead in {now.size:,} slots, {holes:,} of them "
            "without a message",
            evidence=numbers | {"live": now.live, "holes": holes},
            cause="a sequence skipped numbers: see the holes",
            consequence=f"pushes return null although only {now.live:,} messages are in the ring",
            repair=relay(ring.queue),
        )
    waiting = -now.gap
    if waiting > now.size and total(ring.ranges(LostKind.SPENT)) <= now.size:
        yield Finding(
            AHEAD,
            f"the pops are {waiting:,} numbers ahead of the pushes, in {now.size:,} slots",
            evidence=numbers | {"parked": now.parked},
            cause="a sequence was changed, or table and sequences are from different moments",
            consequence="every pop checks parked numbers in vain",
            repair=relay(ring.queue),
        )


def _check_stranded(ring: RingState) -> Iterator[Finding]:
    context, now = ring.context, ring.now
    left = _stranded_messages(context)
    if left:
        oldest = min(left, key=lambda stranded: stranded.pushed_at)
        age = oldest.age_seconds
        old = "there since -infinity" if age is None else f"{duration(age)} old"
        holes = total(ring.ranges(LostKind.PARKED_HOLE))
        yield Finding(
            STRANDED,
            f"{numbered(len(left), 'message')} of parked numbers that no pop takes, "
            f"the oldest {old}",
            evidence={
                "count": len(left),
                "numbers": [stranded.number for stranded in left[:100]],
                "ids": [stranded.id for stranded in left[:100]],
                "oldest_seconds": age,
                "parked": now.parked,
                "parked_holes": holes,
            },
            cause=f"{now.parked:,} numbers are parked, and a pop checks 64 of them"
            + (f"; {holes:,} of them are holes" if holes else ""),
            consequence="they wait for their turn, and other messages overtake them",
            since=oldest.pushed_at,
            repair=ring.repair(LostKind.PARKED_HOLE) if holes else relay(ring.queue),
        )


def _stranded_messages(context: CheckContext) -> list[_Stranded]:
    """Those that are still there a second later, although messages were popped meanwhile."""
    before = {
        stranded.number: stranded
        for stranded in context.query_unlimited(_Stranded, "stranded")
        if stranded.age_seconds is None or stranded.age_seconds >= _STRANDED_SECONDS
    }
    if not before:
        return []
    time.sleep(_STRANDED_SECONDS)
    return [
        stranded
        for stranded in context.query_unlimited(_Stranded, "stranded")
        if (was := before.get(stranded.number)) is not None
        and was.pushed_at == stranded.pushed_at
        and (was.next_pop, was.turn) != (stranded.next_pop, stranded.turn)
    ]


CHECKS = CheckGroup(
    (
        *(lost.SPENT_BEYOND, lost.ORPHAN, MISMATCH, MISSING, BEHIND, CACHED, FULL),
        *(lost.SLOT, FILLING, lost.CONTENT),
        *(LAPPED, AHEAD, lost.SPENT, STRANDED, lost.PILE),
        *(lost.HOLE, lost.STALE_VOID),
    ),
    {"the ring": _check_ring},
    lambda queue: queue.design.flow is Flow.NUMBERS,
)
