"""What a ring has lost: numbers that will never be used or asked for, contents without a slot.

With content=apart a push writes both slot and content, and a pop removes both, each in one
transaction: only somebody who writes past the ring's functions, or half a restored backup, leaves
one without the other. So nothing is waited for: what is proven of one moment stays so.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from console import sql
from console.catalog import Queue
from console.doctor import lost_numbers
from console.doctor.context import CheckContext, counted
from console.doctor.finding import Code, Finding, Repair
from console.doctor.lost_numbers import (
    LossCause,
    LostKind,
    LostNumbers,
    NumberRange,
    ServerHistory,
    format_ranges,
    ranges_evidence,
    total,
    without_relay,
)
from console.doctor.repairs import DoctorRepair, RepairCounts, relay
from console.doctor.ring_repairs import Mend, mending
from console.doctor.slot_map import Structure
from console.engines import Database
from console.formats import duration, numbered
from console.monitor.limits import Severity

OLD_SECONDS = 3600.0
"""A hole that is parked for longer is examined by too many pops."""

SPENT_BEYOND = Code(
    "spent_beyond_ring",
    Severity.CRITICAL,
    "more pop numbers were consumed ahead of the pushes than the ring has slots: relay at once",
    repair="relay, which renumbers all live messages",
)
ORPHAN = Code(
    "orphan",
    Severity.CRITICAL,
    "orphans: messages whose pop number was consumed (drawn, and lost); no pop will ask for them",
    repair="doctor --fix: it parks their numbers, so that pops take them",
)
SPENT = Code(
    "spent",
    Severity.WARNING,
    "consumed pop numbers, not parked and not pushed yet: their messages will be orphans",
    repair="doctor --fix: it parks them, so that later pops take their messages",
)
PILE = Code(
    "holes_pile_up",
    Severity.WARNING,
    "more parked holes than slots, or one older than an hour: every pop checks them",
    repair="doctor --fix, and record by itself",
)
HOLE = Code(
    "hole",
    Severity.NOTE,
    "holes: consumed push numbers that will never have a message",
    repair="doctor --fix",
)
STALE_VOID = Code(
    "stale_void",
    Severity.NOTE,
    "void numbers (push numbers that could not be used) that no pop will ever drop",
    repair="doctor --fix",
)


@dataclass(frozen=True)
class Ring:
    """A ring as whoever pops from it has it: of several subscribers, one."""

    context: CheckContext
    whole: Queue
    view: Queue
    """The same where it has no subscribers."""
    life: ServerHistory
    now: Structure
    lost: LostNumbers

    def runs(self, *kinds: LostKind) -> list[NumberRange]:
        return [run for kind in kinds for run in self.lost.proven.get(kind, ())]

    def mend(self, *kinds: LostKind) -> Mend:
        counts = {kind: total(self.runs(kind)) for kind in kinds}
        found = {kind: count for kind, count in counts.items() if count}
        return Mend(self.view, found, self.context.patience_seconds)


def _lost(
    ring: Ring,
    code: Code,
    runs: Sequence[NumberRange],
    summary: str,
    consequence: str,
    repair: Repair,
    **evidence: object,
) -> Finding:
    """A finding on lost numbers: which they are, what became of them and since when."""
    found = lost_numbers.group_by_cause(runs, ring.life)
    ages = [run.since for run in runs if run.since is not None]
    told: dict[str, object] = {
        "causes": {
            loss.value: [[run.first, run.last] for run in some[:20]] for loss, some in found.items()
        }
    }
    crashed = LossCause.CRASH in found
    if crashed and ring.life.crashed_at is not None:
        told["crashed_at"] = ring.life.crashed_at.isoformat()
    return Finding(
        code,
        summary,
        evidence=ranges_evidence(runs) | evidence | told,
        cause=lost_numbers.describe_causes(found, ring.life),
        consequence=consequence,
        since=ring.life.crashed_at if crashed else min(ages, default=None),
        repair=repair,
    )


def beyond(ring: Ring) -> Iterator[Finding]:
    runs, size = ring.runs(LostKind.SPENT), ring.now.size
    if total(runs) > size:
        yield _lost(
            ring,
            SPENT_BEYOND,
            runs,
            f"{total(runs):,} pop numbers were consumed ahead of the pushes, in {size:,} slots",
            "the next messages fill the whole ring, and no pop asks for any of them",
            relay(ring.whole),
        )


def orphans(ring: Ring) -> Iterator[Finding]:
    if runs := ring.runs(LostKind.ORPHAN):
        yield _lost(
            ring,
            ORPHAN,
            runs,
            f"{numbered(total(runs), 'orphan')}: {format_ranges(runs)}",
            "no pop will ever ask for these messages, and each blocks its slot in every lap",
            ring.mend(LostKind.ORPHAN),
        )


def spent(ring: Ring) -> Iterator[Finding]:
    runs = ring.runs(LostKind.SPENT)
    if runs and total(runs) <= ring.now.size:
        count = numbered(total(runs), "consumed pop number")
        yield _lost(
            ring,
            SPENT,
            runs,
            f"{count} ahead of the pushes: {format_ranges(runs)}",
            "the messages that will get these numbers will be orphans",
            ring.mend(LostKind.SPENT),
        )


def holes(ring: Ring) -> Iterator[Finding]:
    now = ring.now
    parked, ahead = ring.runs(LostKind.PARKED_HOLE), ring.runs(LostKind.HOLE)
    runs = sorted([*parked, *ahead], key=lambda run: run.first)
    if not runs:
        return
    age_seconds = _oldest_seconds(ring, parked)
    old = age_seconds >= OLD_SECONDS
    pile = old or total(parked) > now.size
    age = f", the oldest parked for {duration(age_seconds)}" if old else ""
    yield _lost(
        ring,
        PILE if pile else HOLE,
        runs,
        f"{numbered(total(runs), 'hole')}: {format_ranges(runs)}{age}",
        "a pop that meets them spends a few milliseconds on each, and after eight it returns no "
        "row; nothing is lost",
        ring.mend(LostKind.PARKED_HOLE, LostKind.HOLE),
        parked=total(parked),
        not_drawn_yet=total(ahead),
    )


def _oldest_seconds(ring: Ring, parked: Sequence[NumberRange]) -> float:
    """How long the oldest hole is parked, by the server's clock; 0 where it cannot be long."""
    ages = [run.since for run in parked if run.since is not None]
    if not ages or (ring.now.parked_seconds or 0.0) < OLD_SECONDS:
        return 0.0
    with ring.context.moment() as connection:
        now = sql.value(connection, datetime, "actions.server_time")
    return (now - min(ages)).total_seconds()


def voids(ring: Ring) -> Iterator[Finding]:
    if runs := ring.runs(LostKind.VOID):
        count = numbered(total(runs), "void number")
        yield _lost(
            ring,
            STALE_VOID,
            runs,
            f"{count} that no pop will drop: {format_ranges(runs)}",
            "none but their rows",
            ring.mend(LostKind.VOID),
        )


SLOT = Code(
    "slot_without_content",
    Severity.CRITICAL,
    "slots whose content is gone: their messages are lost, and no pop takes them",
    judgement="insert the contents from a backup: then pops take them",
    repair="doctor --fix --code: it frees these slots, and counts what is lost",
)
CONTENT = Code(
    "content_without_slot",
    Severity.WARNING,
    "contents without a slot: messages that no pop will return",
    repair="doctor --fix: it moves them into the archive, for restore",
)


@dataclass(frozen=True)
class ContentMismatch:
    kind: str
    id: int
    found: int


@dataclass(frozen=True)
class _Way:
    """How the half of one kind is repaired."""

    statement: str
    does: str
    did: str
    noun: str
    unattended: bool


_WAYS = {
    "content": _Way(
        "archive_contents",
        "move {} without a slot into the archive; restore brings them back",
        "moved into the archive: {} without a slot",
        "content",
        unattended=True,
    ),
    "slot": _Way(
        "free_slots",
        "free {} whose message is lost; with a content from a backup a pop would take it",
        "freed: {} whose message is LOST",
        "slot",
        unattended=False,  # somebody may have that backup
    ),
}


@dataclass(frozen=True)
class RepairContents(DoctorRepair):
    """One statement in one transaction, which proves again what it changes."""

    queue: Queue
    kind: str
    count: int

    @property
    def unattended(self) -> bool:
        return _WAYS[self.kind].unattended

    @property
    def summary(self) -> str:
        return self._words(_WAYS[self.kind].does, self.count)

    def plan(self, database: Database) -> Sequence[str]:  # noqa: ARG002  # of the protocol
        return [self.summary]

    def run(self, database: Database) -> Sequence[str]:
        way = _WAYS[self.kind]
        with mending(database, self.queue, self.summary) as (act, scope):
            action, statement = act.record.action_id, f"{self.queue.design.name}.{way.statement}"
            n = sql.row(act.connection, RepairCounts, statement, scope, action_id=action)
            ledger = n.ledger("in another's hands")
            act.record.batch(act.connection, ledger.require_balance())
            act.detail = self._words(way.did, n.done)
        return [act.detail]

    def _words(self, text: str, count: int) -> str:
        return text.format(counted(count, _WAYS[self.kind].noun))


def astray(context: CheckContext) -> Iterator[Finding]:
    queue = context.queue
    if not queue.partitions:
        return
    with without_relay(context) as connection:
        rows = context.fetch(connection, ContentMismatch, "content_mismatches")
    for code, noun, what, consequence in (
        (
            SLOT,
            "slot",
            "without a content: lost messages",
            "their messages are lost; a slot that nobody frees takes a number at each lap",
        ),
        (
            CONTENT,
            "content",
            "without a slot",
            "no pop returns these messages, and nothing else removes them",
        ),
    ):
        if found := [row for row in rows if row.kind == noun]:
            count = found[0].found
            yield Finding(
                code,
                f"{counted(count, noun)} {what}",
                evidence={"count": count, "ids": [row.id for row in found]},
                cause="one of the two was deleted or restored by hand, past the ring's own "
                "functions",
                consequence=consequence,
                repair=RepairContents(queue, noun, count),
            )
