"""What a ring has lost: numbers that will never be used, and contents without their slots."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from console import sql
from console.catalog import Queue
from console.doctor.context import CheckContext, counted
from console.doctor.finding import Code, Finding, Repair
from console.doctor.number_proof import (
    LostKind,
    LostNumbers,
    NumberRange,
    Side,
    format_ranges,
    ranges_evidence,
    total,
    without_relay,
)
from console.doctor.repairs import relay
from console.doctor.ring_repairs import RepairContents, RepairNumbers
from console.doctor.slot_map import Structure
from console.formats import duration, numbered
from console.monitor.limits import Severity
from console.monitor.sequence_steps import SequenceKey, Step

OLD_SECONDS = 3600.0
"""A hole parked for longer slows down too many pops."""

SPENT_BEYOND = Code(
    "spent_beyond_ring",
    Severity.CRITICAL,
    "more pop numbers were consumed ahead of the pushes than the ring has slots: relay at once",
    repair="relay, which renumbers all live messages",
)
ORPHAN = Code(
    "orphan",
    Severity.CRITICAL,
    "orphans: messages whose pop number was consumed and lost; no pop will fetch them",
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
    repair="doctor --fix, and record automatically",
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

_COUNTERS_RESET = timedelta(seconds=60)
"""A server that recovers from a crash resets its counters within this time of its start."""
_CHECKPOINTER_START = timedelta(seconds=2)
"""A server that starts has its checkpointer within this time."""
_JUMPS_SHOWN = 3
AHEAD = 33
"""A crash of PostgreSQL loses at most this many numbers of a sequence with CACHE 1: those that it
logs ahead, and the one whose commit was not there yet."""


@dataclass(frozen=True)
class ServerHistory:
    """What the server did, as far as this login may see it."""

    server_started: datetime
    checkpointer_started: datetime | None
    counts_since: datetime | None
    timeline: int | None
    rollbacks: int
    sessions_lost: int
    """Ended by their client's death, an error or an administrator, in this database."""
    recovering: bool = False
    """A standby, which does not know its primary's sequences."""
    ahead: int = AHEAD
    """A crash loses at most this many numbers of a sequence at once."""

    @property
    def crashed_at(self) -> datetime | None:
        """When the server came back from its last crash; None: there is no sign of one.

        A clean start keeps the counters, recovery from a crash resets them. A backend that crashes
        takes the checkpointer with it, not the server. A server's very first start looks like a
        crash: it only counts as one together with numbers lost at around that time.
        """
        started = self.checkpointer_started or self.server_started
        if started - self.server_started > _CHECKPOINTER_START:
            return started
        if self.counts_since is None:
            return None
        reset = timedelta(0) <= self.counts_since - self.server_started <= _COUNTERS_RESET
        return started if reset else None


class LossCause(StrEnum):
    CRASH = "crash"
    ROLLBACK = "rollback"
    DEATH = "caller died"
    EITHER = "rollback or caller died"
    SERVER_CHANGED = "restart or fail-over"
    BATCH = "a batch rolled back, or a sequence moved"
    UNKNOWN = "unknown"


def cause_of(lost: NumberRange, history: ServerHistory, steps: Sequence[Step] = ()) -> LossCause:
    """`steps`: of its sequence, from sample to sample."""
    crash = history.crashed_at
    near_crash = crash is not None and lost.count <= history.ahead and _fits(lost, crash)
    if near_crash:
        # A batch rolled back since then looks the same, unless what came before it is known.
        quiet = not history.rollbacks and not history.sessions_lost
        sure = lost.count > 1 and (lost.before_at is not None or quiet)
        if sure:
            return LossCause.CRASH
    # One number may also be of a caller who rolled back just before or after.
    if 1 < lost.count <= history.ahead and any(
        step.server_changed and step.covers(lost.first, lost.last) for step in steps
    ):
        return LossCause.SERVER_CHANGED
    if near_crash:
        return LossCause.UNKNOWN
    if lost.count > history.ahead:
        return LossCause.BATCH
    if history.sessions_lost == 0:
        return LossCause.ROLLBACK if history.rollbacks else LossCause.UNKNOWN
    return LossCause.DEATH if history.rollbacks <= history.sessions_lost else LossCause.EITHER


def _fits(lost: NumberRange, crash: datetime) -> bool:
    """Whether the numbers around it were, or may have been, used before and after the crash."""
    before = lost.before_at is None or lost.before_at <= crash
    after = lost.after_at is None or lost.after_at >= crash
    return before and after


def group_by_cause(
    ranges: Sequence[NumberRange], history: ServerHistory, steps: Sequence[Step] = ()
) -> dict[LossCause, list[NumberRange]]:
    groups: dict[LossCause, list[NumberRange]] = {}
    for numbers in ranges:
        groups.setdefault(cause_of(numbers, history, steps), []).append(numbers)
    return groups


def describe_causes(groups: dict[LossCause, list[NumberRange]], history: ServerHistory) -> str:
    lines = [
        f"{total(ranges):,} ({format_ranges(ranges)}): {_describe(cause, ranges, history)}"
        for cause, ranges in groups.items()
    ]
    if history.timeline is not None and history.timeline > 1:
        lines.append(f"the server is on timeline {history.timeline}: it was promoted or restored")
    return "; ".join(lines)


def _describe(cause: LossCause, ranges: Sequence[NumberRange], history: ServerHistory) -> str:
    crash = history.crashed_at
    at = "" if crash is None else f" before {crash:%Y-%m-%d %H:%M:%S} UTC"
    lost = f"{history.sessions_lost:,} sessions were lost in this database"
    rolled_back = f"{history.rollbacks:,} transactions were rolled back in this database"
    match cause:
        case LossCause.CRASH:
            text = f"the server crashed{at}; a sequence skips what it had logged or cached ahead"
        case LossCause.ROLLBACK:
            text = f"their callers rolled back ({rolled_back}); a sequence never rolls back"
        case LossCause.DEATH:
            text = f"their callers died ({lost}); a sequence does not take its numbers back"
        case LossCause.EITHER:
            text = f"their callers rolled back or died ({rolled_back}, {lost})"
        case LossCause.SERVER_CHANGED:
            text = (
                "the server restarted, crashed or failed over between two samples; a sequence "
                "skips what it had logged or cached ahead"
            )
        case LossCause.BATCH:
            text = (
                "a batch was rolled back; or table and sequences are from different moments (a "
                "restored dump, a fail-over, a sequence set by hand)"
            )
        case LossCause.UNKNOWN if crash and any(_fits(numbers, crash) for numbers in ranges):
            text = f"a rollback, a caller's death, or the crash{at}"
        case _ if history.checkpointer_started is None:
            # SQL Server counts neither, and a fail-over leaves its start as it was.
            text = (
                "a rollback, a caller's death, or a crash or fail-over, which skips up to "
                f"{history.ahead:,} numbers that the sequence had cached; this server counts none "
                "of these"
            )
        case _:
            # A session reports its rollbacks when it ends, or up to ten seconds after them.
            text = "not known: the server's counters do not explain it (they lag by some seconds)"
    return text


@dataclass(frozen=True)
class Jump:
    """Between two samples a sequence went further than its callers took it."""

    step: Step
    unused: int

    def words(self, sequence: SequenceKey) -> str:
        """A fact, with what the two samples read."""
        before, after = self.step.before, self.step.after
        text = (
            f"{sequence.words} went from {before.number:,} at {before.at:%H:%M:%S} UTC to "
            f"{after.number:,} at {after.at:%H:%M:%S} UTC, {self.step.numbers:,} numbers, and "
            f"nobody used {self.unused:,} of them"
        )
        if self.step.server_changed:
            return f"{text}; in between the server restarted, crashed or failed over"
        return f"{text}; in between the connection was lost" if self.step.reconnected else text

    def as_json(self, sequence: SequenceKey) -> dict[str, object]:
        before, after = self.step.before, self.step.after
        return {
            "sequence": sequence.side,
            "from": before.number,
            "from_at": before.at.isoformat(),
            "to": after.number,
            "to_at": after.at.isoformat(),
            "unused": self.unused,
            "server_changed": self.step.server_changed,
            "reconnected": self.step.reconnected,
        }


def jumps_of(steps: Sequence[Step], lost: Sequence[NumberRange]) -> list[Jump]:
    """The largest, in order of time. A single unused number is a caller who rolled back."""
    ranges = [(numbers.first, numbers.last) for numbers in lost]
    jumps = [Jump(step, step.unused(ranges)) for step in steps]
    largest = sorted(jumps, key=lambda jump: -jump.unused)[:_JUMPS_SHOWN]
    return [jump for jump in jumps if jump in largest and jump.unused > 1]


@dataclass(frozen=True)
class RingState:
    """A ring as its consumers see it; of several subscribers, as one of them does."""

    context: CheckContext
    queue: Queue
    view: Queue
    """The same as `queue` if it has no subscribers."""
    history: ServerHistory
    now: Structure
    lost: LostNumbers

    def ranges(self, kind: LostKind) -> list[NumberRange]:
        return list(self.lost.proven.get(kind, ()))

    def steps(self, side: Side) -> tuple[SequenceKey, tuple[Step, ...]]:
        """How far the sequence of that side went from sample to sample."""
        key = SequenceKey(side.value, self.view.subscriber * (side is Side.POP))
        seen = self.context.snapshot
        steps = None if seen is None else seen.steps
        return key, () if steps is None else steps.get(key, ())

    def repair(self, *kinds: LostKind) -> RepairNumbers:
        counts = {kind: total(self.ranges(kind)) for kind in kinds}
        found = {kind: count for kind, count in counts.items() if count}
        patience = self.context.patience_seconds
        return RepairNumbers(self.view, found, patience, self.lost.proof)


def _finding(
    ring: RingState,
    code: Code,
    ranges: Sequence[NumberRange],
    summary: str,
    consequence: str,
    repair: Repair,
    **evidence: object,
) -> Finding:
    sequence, steps = ring.steps(LostKind(ranges[0].kind).side)
    causes = group_by_cause(ranges, ring.history, steps)
    jumps = jumps_of(steps, ranges)
    crash = ring.history.crashed_at if LossCause.CRASH in causes else None
    evidence |= {
        "causes": {
            cause.value: [[numbers.first, numbers.last] for numbers in some[:20]]
            for cause, some in causes.items()
        }
    }
    if jumps:
        evidence["jumps"] = [jump.as_json(sequence) for jump in jumps]
    if crash is not None:
        evidence["crashed_at"] = crash.isoformat()
    times = [numbers.since for numbers in ranges if numbers.since is not None]
    return Finding(
        code,
        summary,
        evidence=ranges_evidence(ranges) | evidence,
        cause="; ".join(
            [describe_causes(causes, ring.history), *(jump.words(sequence) for jump in jumps)]
        ),
        consequence=consequence,
        since=crash or min(times, default=None),
        repair=repair,
    )


def check_spent_beyond_ring(ring: RingState) -> Iterator[Finding]:
    ranges, size = ring.ranges(LostKind.SPENT), ring.now.size
    if total(ranges) > size:
        yield _finding(
            ring,
            SPENT_BEYOND,
            ranges,
            f"{total(ranges):,} pop numbers were consumed ahead of the pushes, in {size:,} slots",
            "the next messages fill the whole ring, and no pop fetches any of them",
            relay(ring.queue),
        )


def check_orphans(ring: RingState) -> Iterator[Finding]:
    if ranges := ring.ranges(LostKind.ORPHAN):
        yield _finding(
            ring,
            ORPHAN,
            ranges,
            f"{numbered(total(ranges), 'orphan')}: {format_ranges(ranges)}",
            "no pop will ever fetch these messages, and each blocks its slot on every lap",
            ring.repair(LostKind.ORPHAN),
        )


def check_spent(ring: RingState) -> Iterator[Finding]:
    ranges = ring.ranges(LostKind.SPENT)
    if ranges and total(ranges) <= ring.now.size:
        count = numbered(total(ranges), "consumed pop number")
        yield _finding(
            ring,
            SPENT,
            ranges,
            f"{count} ahead of the pushes: {format_ranges(ranges)}",
            "the messages that will get these numbers will be orphans",
            ring.repair(LostKind.SPENT),
        )


def check_holes(ring: RingState) -> Iterator[Finding]:
    parked, ahead = ring.ranges(LostKind.PARKED_HOLE), ring.ranges(LostKind.HOLE)
    ranges = sorted([*parked, *ahead], key=lambda numbers: numbers.first)
    if not ranges:
        return
    age_seconds = _oldest_seconds(ring, parked)
    old = age_seconds >= OLD_SECONDS
    pile = old or total(parked) > ring.now.size
    age = f", the oldest parked for {duration(age_seconds)}" if old else ""
    yield _finding(
        ring,
        PILE if pile else HOLE,
        ranges,
        f"{numbered(total(ranges), 'hole')}: {format_ranges(ranges)}{age}",
        "a pop that meets them spends a few milliseconds on each of the first eight, and parks all "
        "of them until they are repaired; nothing is lost",
        ring.repair(LostKind.PARKED_HOLE, LostKind.HOLE),
        parked=total(parked),
        not_drawn_yet=total(ahead),
    )


def _oldest_seconds(ring: RingState, parked: Sequence[NumberRange]) -> float:
    """How long the oldest hole has been parked, by the server's clock; 0 if not for long."""
    times = [numbers.since for numbers in parked if numbers.since is not None]
    if not times or (ring.now.parked_seconds or 0.0) < OLD_SECONDS:
        return 0.0
    with ring.context.transaction() as connection:
        now = sql.value(connection, datetime, "actions.server_time")
    return (now - min(times)).total_seconds()


def check_voids(ring: RingState) -> Iterator[Finding]:
    if ranges := ring.ranges(LostKind.VOID):
        count = numbered(total(ranges), "void number")
        yield _finding(
            ring,
            STALE_VOID,
            ranges,
            f"{count} that no pop will drop: {format_ranges(ranges)}",
            "none but their rows",
            ring.repair(LostKind.VOID),
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


def check_contents(context: CheckContext) -> Iterator[Finding]:
    """With content=apart a push writes slot and content in one transaction, and a pop removes both
    in one. So a part without the other was not written by the ring's functions, and no wait is
    needed to prove it."""
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
            "their messages are lost; a slot that is never freed takes a number on each lap",
        ),
        (
            CONTENT,
            "content",
            "without a slot",
            "no pop returns these messages, and nothing else removes them",
        ),
    ):
        if mismatches := [row for row in rows if row.kind == noun]:
            count = mismatches[0].found
            yield Finding(
                code,
                f"{counted(count, noun)} {what}",
                evidence={"count": count, "ids": [row.id for row in mismatches]},
                cause="one of the two was deleted or restored by hand, without the ring's own "
                "functions",
                consequence=consequence,
                repair=RepairContents(queue, noun, count),
            )
