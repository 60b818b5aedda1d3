"""The ring: slots and sequences that contradict themselves, no room; and its lost numbers."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from console.catalog import Kind, Queue
from console.designs import Flow
from console.doctor import ring_losses
from console.doctor.context import CheckContext, CheckGroup, can_query, command
from console.doctor.finding import Code, Finding
from console.doctor.lost_numbers import (
    LostKind,
    LostNumbers,
    ServerHistory,
    next_numbers,
    total,
    without_relay,
)
from console.doctor.repairs import relay
from console.doctor.ring_losses import Ring
from console.doctor.ring_repairs import AddSlots, CorrectRing
from console.doctor.slot_map import Missing, Structure, find_lost_numbers
from console.formats import duration, numbered
from console.monitor.limits import Severity

_STRANDED_SECONDS = 1.0
"""A message of a parked number that no pop takes for longer waits for its turn."""
_STANDSTILL_SECONDS = 1.0
"""A full ring from which nothing is popped for so long stands still."""

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
    judgement="its sequences belong to another program: ALTER SEQUENCE ... CACHE 1, while no "
    "caller runs",
    repair="doctor --fix --code: it corrects slots and sequences, then renumbers (relay)",
)
FULL = Code(
    "full",
    Severity.CRITICAL,
    "full: no push finds room, and nothing is popped",
    judgement="start the consumers, or enlarge the ring",
)
FILLING = Code(
    "filling",
    Severity.WARNING,
    "the ring is nearly full, or full while pops go on",
    judgement="add consumers, or enlarge the ring",
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
    "messages of parked numbers that no pop takes for longer than a second, while pops go on",
    repair="doctor --fix where holes are in the way; else relay, which renumbers all live messages",
)


@dataclass(frozen=True)
class _Broken:
    slot: int
    number: int | None
    reference_count: int
    wrong: str


@dataclass(frozen=True)
class _Stranded:
    number: int
    id: int
    pushed_at: datetime
    age_seconds: float
    next_pop: int
    turn: int | None


@dataclass(frozen=True)
class _Settings:
    sequence: str
    cached: int
    step: int
    cycles: bool


def _ring(context: CheckContext) -> Iterator[Finding]:
    if context.queue.kind is not Kind.INSTALLED:
        context.unseen.append(
            "lost numbers: callers of an adopted ring keep numbers on their side, so nothing that "
            "the database shows proves one lost"
        )
        if context.has("sequence_settings"):
            yield from _sequences(context)
        return
    if not can_query(context, "lost numbers", "lost"):
        return
    (life,) = context.ask(ServerHistory, "life")
    if life.recovering:
        context.unseen.append("lost numbers: a standby does not know its primary's sequences")
        return
    queue = context.queue
    rings = [_seen_as(context, queue, view, life) for view in queue.views]
    whole = rings[0]
    if queue.subscribers:
        whole = Ring(context, queue, queue, life, _structure(context), LostNumbers())
    slowest = min(rings, key=lambda ring: ring.now.next_pop)
    yield from _of_each(rings, ring_losses.beyond, ring_losses.orphans)
    yield from _of_each([whole], _slots, _missing)
    yield from _of_each(rings, *([_unseen_slots] if queue.subscribers else []), _behind)
    yield from _sequences(context)
    halves = list(ring_losses.astray(context))
    yield from (one for one in halves if one.code is ring_losses.SLOT)
    yield from _of_each([slowest], _room)
    yield from (one for one in halves if one.code is ring_losses.CONTENT)
    yield from _of_each(rings, _laps, ring_losses.spent, _stranded, ring_losses.holes)
    yield from _of_each(rings, ring_losses.voids)


def _structure(context: CheckContext) -> Structure:
    with without_relay(context) as connection:
        (now,) = context.fetch(connection, Structure, "structure")
    return now


def _seen_as(context: CheckContext, whole: Queue, view: Queue, life: ServerHistory) -> Ring:
    patience_seconds = context.patience_seconds / len(whole.views)
    with context.viewed_as(view, patience_seconds):
        now = _structure(context)
        # Behind the numbers in use, what looks lost would only be that.
        lost = LostNumbers() if now.behind else find_lost_numbers(context)
    of = f"{view.subscriber}: " * bool(view.subscriber)
    context.unseen.extend(of + line for line in lost.unseen())
    return Ring(context, whole, view, life, now, lost)


def _of_each(
    rings: Sequence[Ring], *checks: Callable[[Ring], Iterator[Finding]]
) -> Iterator[Finding]:
    """The findings of each check, the gravest of all subscribers first."""
    for check in checks:
        found: list[Finding] = []
        for ring in rings:
            with ring.context.viewed_as(ring.view):
                found += [one.for_subscriber(ring.view.subscriber) for one in check(ring)]
        yield from sorted(found, key=lambda one: -one.code.severity)


def _slots(ring: Ring) -> Iterator[Finding]:
    context, now = ring.context, ring.now
    if now.broken:
        samples = context.ask(_Broken, "broken_slots")
        yield Finding(
            MISMATCH,
            f"{numbered(now.broken, 'contradiction')} in slots"
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


def _missing(ring: Ring) -> Iterator[Finding]:
    context, now = ring.context, ring.now
    inside = now.slots - now.outside
    if inside == now.size and not now.outside:
        return
    missing = context.ask(Missing, "missing_slots") if inside < now.size else []
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
        consequence="pushes that draw a number of a missing slot find no room; the message that "
        "lay in it is lost. A relay with missing slots is refused",
        repair=CorrectRing(context.queue)
        if now.outside
        else AddSlots(context.queue, now.size - inside),
    )


def _unseen_slots(ring: Ring) -> Iterator[Finding]:
    """A subscriber pops by rows of its own, one a slot."""
    missing = ring.context.ask(Missing, "missing_slots")
    if count := sum(run.last - run.first + 1 for run in missing):
        yield Finding(
            MISSING,
            f"{numbered(count, 'slot')} of {ring.now.size:,} without its row in popped",
            evidence={"missing": [[run.first, run.last] for run in missing[:100]]},
            cause="rows were deleted, and not by a relay",
            consequence="it never pops what lies in these slots, and pushes do not wait for it",
            repair=AddSlots(ring.view, count),
        )


def _behind(ring: Ring) -> Iterator[Finding]:
    now = ring.now
    first = ring.view == ring.whole.views[0]
    behind = now.behind if first else now.pops_behind  # all have the pushes in common
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
            consequence="numbers are handed out twice: pushes meet slots that are taken, ids are "
            "no longer unique, pops miss messages",
            repair=CorrectRing(ring.whole),
        )


def _sequences(context: CheckContext) -> Iterator[Finding]:
    found: dict[str, _Settings] = {}
    for view in context.queue.views:
        with context.viewed_as(view):
            found |= {one.sequence: one for one in context.ask(_Settings, "sequence_settings")}
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
            cause="the sequence was altered, or made by an older version; on PostgreSQL every "
            "session caches numbers for itself, on SQL Server the server does for all",
            consequence="on PostgreSQL numbers come out of order, and a session that ends takes "
            "its cache with it; on SQL Server a crash skips the cache: orphans and holes, and a "
            "ring of fewer slots is full until a relay",
            repair=CorrectRing(context.queue) if installed else None,
        )


def _room(ring: Ring) -> Iterator[Finding]:
    context, now = ring.context, ring.now
    if now.gap < now.size and not context.thresholds.gap_share.exceeded(now.gap / now.size):
        return
    # Of a plain read of a sequence up to 32 may be too much: much in a small ring.
    now = replace(now, **vars(next_numbers(context)))
    share = now.gap / now.size
    exceeded = context.thresholds.gap_share.exceeded(share)
    if exceeded is None and share < 1:
        return
    still = share >= 1 and _stands_still(context, now)
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
        cause="more is pushed than popped" if not still else "no consumer pops",
        consequence="every push returns null: it is not stored"
        if share >= 1
        else "once it is full, pushes return null and are not stored",
        judgement="start or add consumers; or add slots: "
        + command(context.queue, "resize", str(2 * now.size)),
    )


def _stands_still(context: CheckContext, now: Structure) -> bool:
    """Whether a full ring is still full, and from the same number on, a moment later."""
    deadline = time.monotonic() + min(_STANDSTILL_SECONDS, context.patience_seconds)
    while True:
        later = next_numbers(context)
        if later.next_pop != now.next_pop or later.next_push - later.next_pop < now.size:
            return False
        if time.monotonic() >= deadline:
            return True
        context.pause(0.05)


def _laps(ring: Ring) -> Iterator[Finding]:
    now = ring.now
    # Pushes that race at full go a few numbers too far and say so: those are void.
    holes = total(ring.runs(LostKind.HOLE))
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
            repair=relay(ring.whole),
        )
    waiting = -now.gap
    if waiting > now.size and total(ring.runs(LostKind.SPENT)) <= now.size:
        yield Finding(
            AHEAD,
            f"the pops are {waiting:,} numbers ahead of the pushes, in {now.size:,} slots",
            evidence=numbers | {"parked": now.parked},
            cause="a sequence was changed, or table and sequences are from different moments",
            consequence="every pop checks parked numbers in vain",
            repair=relay(ring.whole),
        )


def _stranded(ring: Ring) -> Iterator[Finding]:
    context, now = ring.context, ring.now
    left, oldest_seconds = _left_by_pops(context)
    if left:
        numbers = [one.number for one in left]
        words = "message" if len(left) == 1 else "messages"
        holes = total(ring.runs(LostKind.PARKED_HOLE))
        yield Finding(
            STRANDED,
            f"{len(left):,} {words} of parked numbers that no pop takes, the oldest "
            f"{duration(oldest_seconds)} old",
            evidence={
                "count": len(left),
                "numbers": numbers[:100],
                "ids": [one.id for one in left[:100]],
                "oldest_seconds": oldest_seconds,
                "parked": now.parked,
                "parked_holes": holes,
            },
            cause=f"{now.parked:,} numbers are parked, and a pop checks 64 of them"
            + (f"; {holes:,} of them are holes" if holes else ""),
            consequence="they wait for their turn, and others overtake them",
            since=min(one.pushed_at for one in left),
            repair=ring.mend(LostKind.PARKED_HOLE) if holes else relay(ring.whole),
        )


def _left_by_pops(context: CheckContext) -> tuple[list[_Stranded], float]:
    """What lay there a second ago and still does, although pops came; and the highest age."""
    before = {
        one.number: one
        for one in context.ask(_Stranded, "stranded")
        if one.age_seconds >= _STRANDED_SECONDS
    }
    if not before:
        return [], 0.0
    time.sleep(_STRANDED_SECONDS)
    left = [
        one
        for one in context.ask(_Stranded, "stranded")
        if (was := before.get(one.number)) is not None
        and was.pushed_at == one.pushed_at
        and (was.next_pop, was.turn) != (one.next_pop, one.turn)
    ]
    return left, max((one.age_seconds for one in left), default=0.0)


CHECKS = CheckGroup(
    "the ring",
    (
        *(ring_losses.SPENT_BEYOND, ring_losses.ORPHAN, MISMATCH, MISSING, BEHIND, CACHED, FULL),
        *(ring_losses.SLOT, FILLING, ring_losses.CONTENT),
        *(LAPPED, AHEAD, ring_losses.SPENT, STRANDED, ring_losses.PILE),
        *(ring_losses.HOLE, ring_losses.STALE_VOID),
    ),
    {"the ring": _ring},
    lambda queue: queue.design.flow is Flow.NUMBERS,
)
