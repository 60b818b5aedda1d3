"""The ring: numbers that went astray, slots and sequences that contradict themselves, no room."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from console import sql
from console.catalog import Kind
from console.doctor import ring_causes as causes
from console.doctor.finding import Code, Finding, Severity
from console.doctor.look import Look
from console.doctor.ring_causes import Life, Loss
from console.doctor.ring_grace import losses
from console.doctor.ring_map import Missing
from console.doctor.ring_proof import (
    Astray,
    Losses,
    Run,
    as_evidence,
    gated,
    next_numbers,
    spelled,
    total,
)
from console.doctor.ring_repairs import AddSlots, Mend, Renumber
from console.formats import duration
from console.monitor.limits import Level

OLD_SECONDS = 3600.0
"""A hole that is parked for longer is looked at by too many pops."""
_STANDSTILL_SECONDS = 1.0
"""A full ring from which nothing is popped for so long stands still."""

SPENT_BEYOND = Code(
    "spent_beyond_ring",
    Severity.CRITICAL,
    "more pop numbers are spent ahead of the pushes than the ring has slots: relay at once",
)
ORPHAN = Code(
    "orphan", Severity.CRITICAL, "messages whose pop number is spent: no pop will ask for them"
)
MISMATCH = Code(
    "slot_mismatch", Severity.CRITICAL, "slots that contradict their number or reference count"
)
MISSING = Code("slot_count", Severity.CRITICAL, "not as many slots as the ring's size")
BEHIND = Code(
    "sequence_behind",
    Severity.CRITICAL,
    "sequences that stand below numbers already in use, as after a dump was restored",
)
CACHED = Code(
    "sequence_cached",
    Severity.CRITICAL,
    "sequences that hand out numbers per session, by another step, or again from the start",
)
FULL = Code("full", Severity.CRITICAL, "no push finds room, and nothing is popped")
FILLING = Code("filling", Severity.WARNING, "the ring is nearly full, or full while pops go on")
LAPPED = Code(
    "lapped",
    Severity.WARNING,
    "the pushes are more than a lap ahead, over numbers without messages",
)
AHEAD = Code("pop_ahead", Severity.WARNING, "the pops are more than a lap ahead of the pushes")
SPENT = Code(
    "spent",
    Severity.WARNING,
    "pop numbers that are spent, not parked and not pushed yet: orphans to be",
)
PILE = Code(
    "holes_pile_up",
    Severity.WARNING,
    "more parked holes than slots, or one older than an hour: every pop looks at them",
)
HOLE = Code("hole", Severity.NOTE, "spent push numbers that will never have a message")
STALE_VOID = Code("stale_void", Severity.NOTE, "void numbers that no pop will ever drop")

CODES: tuple[Code, ...] = (
    *(SPENT_BEYOND, ORPHAN, MISMATCH, MISSING, BEHIND, CACHED, FULL),
    *(FILLING, LAPPED, AHEAD, SPENT, PILE),
    *(HOLE, STALE_VOID),
)
"""In the order in which they are found, the gravest first."""


@dataclass(frozen=True)
class Structure:
    """The ring's numbers and slots at one moment."""

    next_push: int
    next_pop: int
    size: int
    base: int
    slots: int
    outside: int
    live: int
    misplaced: int
    miscounted: int
    below_base: int
    highest: int
    parked: int
    voids: int
    voids_ahead: int
    """Void numbers that no pop has drawn yet."""
    highest_parked: int
    highest_void: int
    parked_seconds: float | None
    """How long the oldest parked number is parked."""

    @property
    def gap(self) -> int:
        """The push/pop sequence gap."""
        return self.next_push - self.next_pop

    @property
    def broken(self) -> int:
        """How many contradictions its slots have; one slot may have several."""
        return self.misplaced + self.miscounted + self.below_base

    @property
    def behind(self) -> dict[str, int]:
        """Numbers in use that a sequence has not reached, by what they are of."""
        pushed = {
            "highest_message": self.highest,
            "highest_void": self.highest_void,
            "base": self.base - 1,
        }
        popped = {"highest_parked": self.highest_parked, "base_of_pops": self.base - 1}
        return {name: n for name, n in pushed.items() if n >= self.next_push} | {
            name: n for name, n in popped.items() if n >= self.next_pop
        }


@dataclass(frozen=True)
class _Broken:
    slot: int
    number: int | None
    reference_count: int
    wrong: str


@dataclass(frozen=True)
class _Moment:
    moment: datetime


@dataclass(frozen=True)
class _Settings:
    sequence: str
    cached: int
    step: int
    cycles: bool


def examine(look: Look) -> Iterator[Finding]:
    """Every finding on a ring, the gravest first. What cannot be told goes to `look.unseen`."""
    if look.queue.kind is not Kind.INSTALLED:
        look.unseen.append(
            "lost numbers: callers of an adopted ring keep numbers on their side, so nothing that "
            "the database shows proves one lost"
        )
        if _can(look, "sequence_settings"):
            yield from _sequences(look)
        return
    if not _can(look, "lost"):
        look.unseen.append(f"lost numbers: not looked for on {look.database.product.title} yet")
        return
    (life,) = look.ask(Life, "life")
    if life.recovering:
        look.unseen.append("lost numbers: a standby does not know its primary's sequences")
        return
    with gated(look) as connection:
        (now,) = look.fetch(connection, Structure, "structure")
    # Behind the numbers in use, what looks lost would only be that.
    lost = Losses() if now.behind else losses(look)
    look.unseen.extend(lost.unseen())
    ring = _Ring(look, life, now, lost)
    for found in (
        *(_beyond, _orphans, _slots, _missing, _behind),
        *(_sequences_of, _room, _laps, _spent, _holes, _voids),
    ):
        yield from found(ring)


@dataclass(frozen=True)
class _Ring:
    """All that was looked at."""

    look: Look
    life: Life
    now: Structure
    lost: Losses

    def runs(self, *kinds: Astray) -> list[Run]:
        """Those that are proven."""
        return [run for kind in kinds for run in self.lost.proven.get(kind, ())]

    def mend(self, *kinds: Astray) -> Mend:
        """What puts all of these right."""
        counts = {kind: total(self.runs(kind)) for kind in kinds}
        found = {kind: count for kind, count in counts.items() if count}
        return Mend(self.look.queue, found, self.look.patience_seconds)


def _can(look: Look, statement: str) -> bool:
    return statement in sql.statements(look.database.product.name, look.queue.design.name)


@dataclass(frozen=True)
class _Told:
    """Cause and age of lost numbers."""

    cause: str
    since: datetime | None
    evidence: dict[str, object]
    crash: bool


def _told(life: Life, runs: Sequence[Run]) -> _Told:
    found = causes.causes(runs, life)
    ages = [run.since for run in runs if run.since is not None]
    evidence: dict[str, object] = {
        "causes": {
            loss.value: [[run.first, run.last] for run in some[:20]] for loss, some in found.items()
        }
    }
    crashed = Loss.CRASH in found
    if crashed and life.crashed_at is not None:
        evidence["crashed_at"] = life.crashed_at.isoformat()
    since = life.crashed_at if crashed else min(ages, default=None)
    return _Told(causes.told(found, life), since, evidence, crashed)


def _beyond(ring: _Ring) -> Iterator[Finding]:
    look, now = ring.look, ring.now
    runs = ring.runs(Astray.SPENT)
    if total(runs) > now.size:
        told = _told(ring.life, runs)
        yield Finding(
            SPENT_BEYOND,
            f"{total(runs):,} pop numbers are spent ahead of the pushes, in {now.size:,} slots",
            evidence=as_evidence(runs) | told.evidence,
            cause=told.cause,
            consequence="the next messages fill the whole ring, and no pop asks for any of them",
            since=told.since,
            repair=Renumber(look.queue),
        )


def _orphans(ring: _Ring) -> Iterator[Finding]:
    runs = ring.runs(Astray.ORPHAN)
    if runs:
        told = _told(ring.life, runs)
        yield Finding(
            ORPHAN,
            f"{_counted(runs, 'orphan')}: {spelled(runs)}",
            evidence=as_evidence(runs) | told.evidence,
            cause=told.cause,
            consequence="no pop will ever ask for these messages, and each keeps its slot from "
            "every lap that comes",
            since=told.since,
            repair=ring.mend(Astray.ORPHAN),
        )


def _slots(ring: _Ring) -> Iterator[Finding]:
    look, now = ring.look, ring.now
    if now.broken:
        samples = look.ask(_Broken, "broken_slots")
        yield Finding(
            MISMATCH,
            f"{now.broken:,} contradictions in slots"
            + (f": {samples[0].wrong} (slot {samples[0].slot})" if samples else ""),
            evidence={
                "misplaced": now.misplaced,
                "miscounted": now.miscounted,
                "below_base": now.below_base,
                "slots": [vars(sample) for sample in samples],
            },
            cause="rows were changed by something else than the ring's own functions",
            consequence="pops do not find messages in them, or pushes no room",
            repair=Renumber(look.queue, straighten=True),
        )


def _missing(ring: _Ring) -> Iterator[Finding]:
    look, now = ring.look, ring.now
    inside = now.slots - now.outside
    if inside == now.size and not now.outside:
        return
    missing = look.ask(Missing, "missing_slots") if inside < now.size else []
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
        cause="rows were deleted or added by something else than a relay",
        consequence="pushes that draw a number of a missing slot find no room; what lay in it is "
        "lost. A relay with missing slots is refused",
        repair=Renumber(look.queue, straighten=True)
        if now.outside
        else AddSlots(look.queue, now.size - inside),
    )


def _behind(ring: _Ring) -> Iterator[Finding]:
    look, now = ring.look, ring.now
    if now.behind:
        yield Finding(
            BEHIND,
            f"a sequence is behind: next push {now.next_push:,}, next pop {now.next_pop:,}, but "
            + ", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in now.behind.items()),
            evidence={
                "next_push": now.next_push,
                "next_pop": now.next_pop,
                "base": now.base,
                **now.behind,
            },
            cause="table and sequences are of different moments: a dump restored, or a sequence "
            "set by hand",
            consequence="numbers are handed out twice: pushes meet slots that are taken, ids are "
            "no longer unique, pops pass messages by",
            repair=Renumber(look.queue, straighten=True),
        )


def _sequences(look: Look) -> Iterator[Finding]:
    found = look.ask(_Settings, "sequence_settings")
    wrong = [s for s in found if s.cached > 1 or s.step != 1 or s.cycles]
    if wrong:
        installed = look.queue.kind is Kind.INSTALLED
        yield Finding(
            CACHED,
            "; ".join(
                f"{s.sequence}: CACHE {s.cached}, INCREMENT {s.step}" + (", CYCLE" * s.cycles)
                for s in wrong
            ),
            evidence={"sequences": [vars(setting) for setting in wrong]},
            cause="the sequence was altered; on PostgreSQL every session caches numbers for itself",
            consequence="numbers come in no order at all, and a session that ends takes its cache "
            "with it: orphans and holes",
            repair=Renumber(look.queue, straighten=True) if installed else None,
        )


def _sequences_of(ring: _Ring) -> Iterator[Finding]:
    return _sequences(ring.look)


def _room(ring: _Ring) -> Iterator[Finding]:
    look, now = ring.look, ring.now
    if now.gap < now.size and not look.thresholds.gap_share.exceeded(now.gap / now.size):
        return
    # Of a plain look at a sequence up to 32 may be too much: much in a small ring.
    now = replace(now, **vars(next_numbers(look)))
    share = now.gap / now.size
    exceeded = look.thresholds.gap_share.exceeded(share)
    if exceeded is None and share < 1:
        return
    still = share >= 1 and _stands_still(look, now)
    level = exceeded[0] if exceeded else Level.CRITICAL
    evidence = {
        "gap": now.gap,
        "size": now.size,
        "live": now.live,
        "next_push": now.next_push,
        "next_pop": now.next_pop,
        "full_in_seconds": None if look.snapshot is None else look.snapshot.full_in_seconds,
    }
    yield Finding(
        FULL if still else FILLING,
        f"{now.gap:,} of {now.size:,} numbers are in use"
        + (": full, and nothing is popped" if still else ": full" if share >= 1 else ""),
        evidence=evidence | {"level": level.word},
        cause="more is pushed than popped" if not still else "no consumer pops",
        consequence="every push returns null: it is not stored"
        if share >= 1
        else "when it is full, pushes return null and are not stored",
    )


def _stands_still(look: Look, now: Structure) -> bool:
    """Whether a full ring is still full, and from the same number on, a moment later."""
    deadline = time.monotonic() + min(_STANDSTILL_SECONDS, look.patience_seconds)
    while True:
        later = next_numbers(look)
        if later.next_pop != now.next_pop or later.next_push - later.next_pop < now.size:
            return False
        if time.monotonic() >= deadline:
            return True
        time.sleep(0.05)


def _laps(ring: _Ring) -> Iterator[Finding]:
    look, now = ring.look, ring.now
    # Pushes that race at full go a few numbers too far and say so: those are void.
    holes = total(ring.runs(Astray.HOLE))
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
            repair=Renumber(look.queue),
        )
    waiting = -now.gap
    if waiting > now.size and total(ring.runs(Astray.SPENT)) <= now.size:
        yield Finding(
            AHEAD,
            f"the pops are {waiting:,} numbers ahead of the pushes, in {now.size:,} slots",
            evidence=numbers | {"parked": now.parked},
            cause="a sequence was moved, or table and sequences are of different moments",
            consequence="every pop looks at parked numbers in vain",
            repair=Renumber(look.queue),
        )


def _spent(ring: _Ring) -> Iterator[Finding]:
    now = ring.now
    runs = ring.runs(Astray.SPENT)
    if runs and total(runs) <= now.size:
        told = _told(ring.life, runs)
        yield Finding(
            SPENT,
            f"{_counted(runs, 'spent pop number')} ahead of the pushes: {spelled(runs)}",
            evidence=as_evidence(runs) | told.evidence,
            cause=told.cause,
            consequence="the messages that will get these numbers will be orphans",
            since=told.since,
            repair=ring.mend(Astray.SPENT),
        )


def _holes(ring: _Ring) -> Iterator[Finding]:
    now = ring.now
    parked, ahead = ring.runs(Astray.PARKED_HOLE), ring.runs(Astray.HOLE)
    runs = sorted([*parked, *ahead], key=lambda run: run.first)
    if not runs:
        return
    age_seconds = _oldest_seconds(ring, parked)
    old = age_seconds >= OLD_SECONDS
    pile = old or total(parked) > now.size
    told = _told(ring.life, runs)
    age = f", the oldest parked for {duration(age_seconds)}" if old else ""
    yield Finding(
        PILE if pile else HOLE,
        f"{_counted(runs, 'hole')}: {spelled(runs)}{age}",
        evidence=as_evidence(runs)
        | {"parked": total(parked), "not_drawn_yet": total(ahead)}
        | told.evidence,
        cause=told.cause,
        consequence="a pop that meets them spends a few milliseconds on each, and after eight it "
        "returns no row; nothing is lost",
        since=told.since,
        repair=ring.mend(Astray.PARKED_HOLE, Astray.HOLE),
    )


def _oldest_seconds(ring: _Ring, parked: Sequence[Run]) -> float:
    """How long the oldest hole is parked, by the server's clock; 0 where it cannot be long."""
    ages = [run.since for run in parked if run.since is not None]
    if not ages or (ring.now.parked_seconds or 0.0) < OLD_SECONDS:
        return 0.0
    (now,) = ring.look.ask(_Moment, "moment", "actions")
    return (now.moment - min(ages)).total_seconds()


def _voids(ring: _Ring) -> Iterator[Finding]:
    runs = ring.runs(Astray.VOID)
    if runs:
        told = _told(ring.life, runs)
        yield Finding(
            STALE_VOID,
            f"{_counted(runs, 'void number')} that no pop will drop: {spelled(runs)}",
            evidence=as_evidence(runs) | told.evidence,
            cause=told.cause,
            consequence="none but their rows",
            since=told.since,
            repair=ring.mend(Astray.VOID),
        )


def _counted(runs: Sequence[Run], noun: str) -> str:
    count = total(runs)
    return f"{count:,} {noun}" + "s" * (count != 1)
