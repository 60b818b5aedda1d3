"""The ring's proof on PostgreSQL (DESIGN section 5): which numbers are lost, which under way.

Each step is a statement of its own: read the next numbers; see who is open and has drawn; wait
until those are gone; read the state. What was drawn before the first step and is not there in the
last one will never come. That needs no grace, no evidence of a crash, and stops nobody.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from console import sql
from console.actions.relay import Blocker
from console.doctor.context import CheckContext
from console.formats import numbered

if TYPE_CHECKING:
    from sqlalchemy import Connection


_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 0.1
_SHOWN_RUNS = 100


class Side(StrEnum):
    PUSH = "push"
    POP = "pop"


class LostKind(StrEnum):
    """What may become of a number: see `lost` in ring.sql."""

    ORPHAN = "orphan"
    SPENT = "spent"
    VOID = "void"
    HOLE = "hole"
    PARKED_HOLE = "parked_hole"

    @property
    def side(self) -> Side:
        """Whose drawers have to be gone before it is proven."""
        return Side.PUSH if self in {LostKind.HOLE, LostKind.PARKED_HOLE} else Side.POP


@dataclass(frozen=True)
class SequencePositions:
    next_push: int
    next_pop: int


@dataclass(frozen=True)
class Drawer:
    """An open transaction that has drawn a number."""

    side: str
    holder: str
    """Its own name; empty: it stands for all that are hidden from this login."""
    pid: int | None
    user_name: str | None
    application_name: str | None
    client_address: str | None
    state: str | None
    transaction_seconds: float | None
    prepared_transaction: str | None

    @property
    def line(self) -> str:
        if not self.holder:
            return "transactions that this login may not see"
        words = {name: value for name, value in vars(self).items() if name not in _KEY}
        return Blocker(**words).line


_KEY = {"side", "holder"}


@dataclass(frozen=True)
class NumberRange:
    """Numbers in a row that went the same way."""

    kind: str
    first: int
    last: int
    since: datetime | None
    """The oldest push of an orphan; the oldest parking of a number."""
    before_at: datetime | None
    """When the number before them was used; None: not known any more."""
    after_at: datetime | None

    @property
    def count(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True)
class Proof:
    """Numbers below which everything is decided, where nobody is in the way."""

    drawn_push: int
    drawn_pop: int
    drawers: tuple[Drawer, ...] = ()
    """Who is still open after all patience."""

    def in_the_way(self, side: Side) -> tuple[Drawer, ...]:
        return tuple(drawer for drawer in self.drawers if drawer.side == side)


@dataclass(frozen=True)
class LostNumbers:
    """What is lost, proven, and what could not be told from work under way."""

    proof: Proof = Proof(0, 0)
    proven: Mapping[LostKind, tuple[NumberRange, ...]] = field(default_factory=dict)
    in_progress: Mapping[Side, tuple[NumberRange, ...]] = field(default_factory=dict)

    def unseen(self) -> list[str]:
        return [
            f"{numbered(total(runs), f'{side} number')} ({format_ranges(runs)}) may be held by "
            + "; ".join(drawer.line for drawer in self.proof.in_the_way(side))
            for side, runs in self.in_progress.items()
            if runs
        ]


def next_numbers(context: CheckContext) -> SequencePositions:
    (now,) = context.ask(SequencePositions, "next_numbers")
    return now


def prove(context: CheckContext, sides: Iterable[Side] = tuple(Side)) -> Proof:
    """Wait until whoever has drawn by now is gone, as long as the check has patience."""
    drawn = next_numbers(context)
    wanted = set(sides)

    def open_now() -> list[Drawer]:
        return [
            found for found in context.ask(Drawer, "drawing_transactions") if found.side in wanted
        ]

    left = _outwait(open_now, context.patience_seconds, context.pause)
    return Proof(drawn.next_push, drawn.next_pop, tuple(left))


def _outwait(
    open_now: Callable[[], Sequence[Drawer]],
    seconds: float,
    wait: Callable[[float], None] = time.sleep,
) -> list[Drawer]:
    """Those of the first check that are still there at the last."""
    deadline = time.monotonic() + seconds
    pause = _FIRST_PAUSE
    left = list(open_now())
    while left and time.monotonic() < deadline:
        wait(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE)
        before = {(drawer.side, drawer.holder) for drawer in left}
        left = [found for found in open_now() if (found.side, found.holder) in before]
    return left


def find_lost_numbers(context: CheckContext) -> LostNumbers:
    """What is lost. Where nothing even looks like it, nobody is waited for."""
    drawn = next_numbers(context)
    proof = Proof(drawn.next_push, drawn.next_pop)
    seen = _read(context, proof)
    # What a side shows only in the second look was not drawn in time to be waited for.
    sides = {LostKind(run.kind).side for run in seen}
    if seen:
        proof = prove(context, sides)
        seen = [run for run in _read(context, proof) if LostKind(run.kind).side in sides]
    return classify(proof, seen)


def classify(proof: Proof, seen: Sequence[NumberRange]) -> LostNumbers:
    """What looks lost: proven where nobody is in the way, else in progress."""
    proven: dict[LostKind, tuple[NumberRange, ...]] = {}
    in_progress: dict[Side, tuple[NumberRange, ...]] = {}
    for kind in LostKind:
        runs = tuple(run for run in seen if run.kind == kind)
        if proof.in_the_way(kind.side):
            in_progress[kind.side] = in_progress.get(kind.side, ()) + runs
        else:
            proven[kind] = runs
    return LostNumbers(proof, proven, in_progress)


@contextmanager
def without_relay(context: CheckContext) -> Iterator[Connection]:
    """A transaction that no relay comes into, for statements that read the whole ring."""
    with context.moment() as connection:
        design, scope = context.queue.design.name, context.queue.scope(connection)
        sql.values(connection, int, f"{design}.wait_for_relay", scope)  # never returns a row
        if sql.has(connection, f"{design}.disable_jit"):
            sql.values(connection, str, f"{design}.disable_jit", scope)
        yield connection


def _read(context: CheckContext, proof: Proof) -> list[NumberRange]:
    with without_relay(context) as connection:
        return context.fetch(
            connection, NumberRange, "lost", drawn_push=proof.drawn_push, drawn_pop=proof.drawn_pop
        )


def total(runs: Iterable[NumberRange]) -> int:
    return sum(run.count for run in runs)


def format_ranges(runs: Sequence[NumberRange], most: int = 5) -> str:
    """`507-527, 530`; the rest is counted."""
    words = [str(r.first) if r.count == 1 else f"{r.first}-{r.last}" for r in runs[:most]]
    if len(runs) > most:
        words.append(f"and {total(runs[most:]):,} more")
    return ", ".join(words)


def ranges_evidence(runs: Sequence[NumberRange]) -> dict[str, object]:
    """How many, and which: pairs of the first and the last of a run, the first hundred runs."""
    found: dict[str, object] = {
        "count": total(runs),
        "numbers": [[run.first, run.last] for run in runs[:_SHOWN_RUNS]],
    }
    if len(runs) > _SHOWN_RUNS:
        found["runs_not_shown"] = len(runs) - _SHOWN_RUNS
    return found


_STARTING = timedelta(seconds=60)
"""A server that recovers drops its counters within so much of its start."""
_AT_ONCE = timedelta(seconds=2)
"""A server that starts has its checkpointer within so much."""
AHEAD = 33
"""A crash of PostgreSQL loses at most so many numbers of a sequence with CACHE 1: those that it
logs ahead, and the one whose commit was not there yet."""


@dataclass(frozen=True)
class ServerHistory:
    """The server's own life, as far as this login may see it."""

    server_started: datetime
    checkpointer_started: datetime | None
    counts_since: datetime | None
    timeline: int | None
    rollbacks: int
    sessions_lost: int
    """Ended by their client's death, an error or an administrator, in this database."""
    recovering: bool = False
    """A standby, which does not know where its primary's sequences stand."""
    ahead: int = AHEAD
    """A crash loses at most so many numbers of a sequence at once."""

    @property
    def crashed_at(self) -> datetime | None:
        """When the server came back from its last crash; None: there is no sign of one.

        A clean start keeps the counters, recovery from a crash begins them anew. A backend that
        crashes takes the checkpointer with it, not the server. A server's very first start looks
        like a crash: only together with lost numbers from around that time does it tell one.
        """
        started = self.checkpointer_started or self.server_started
        if started - self.server_started > _AT_ONCE:
            return started
        if self.counts_since is None:
            return None
        anew = timedelta(0) <= self.counts_since - self.server_started <= _STARTING
        return started if anew else None


class LossCause(StrEnum):
    CRASH = "crash"
    ROLLBACK = "rollback"
    DEATH = "caller died"
    EITHER = "rollback or caller died"
    BATCH = "a batch rolled back, or a sequence moved"
    UNKNOWN = "unknown"


def cause_of(run: NumberRange, life: ServerHistory) -> LossCause:
    crash = life.crashed_at
    if crash is not None and run.count <= life.ahead and _may_be_of(run, crash):
        # A batch that was rolled back since looks alike, unless what came before it is known.
        alone = not life.rollbacks and not life.sessions_lost
        sure = run.count > 1 and (run.before_at is not None or alone)
        return LossCause.CRASH if sure else LossCause.UNKNOWN
    if run.count > life.ahead:
        return LossCause.BATCH
    if life.sessions_lost == 0:
        return LossCause.ROLLBACK if life.rollbacks else LossCause.UNKNOWN
    return LossCause.DEATH if life.rollbacks <= life.sessions_lost else LossCause.EITHER


def _may_be_of(run: NumberRange, crash: datetime) -> bool:
    """Whether the numbers around it were used before and after the crash; unknown times may be."""
    before = run.before_at is None or run.before_at <= crash
    after = run.after_at is None or run.after_at >= crash
    return before and after


def group_by_cause(
    runs: Sequence[NumberRange], history: ServerHistory
) -> dict[LossCause, list[NumberRange]]:
    found: dict[LossCause, list[NumberRange]] = {}
    for run in runs:
        found.setdefault(cause_of(run, history), []).append(run)
    return found


def describe_causes(causes: dict[LossCause, list[NumberRange]], history: ServerHistory) -> str:
    lines = [
        f"{total(runs):,} ({format_ranges(runs)}): {_describe(cause, runs, history)}"
        for cause, runs in causes.items()
    ]
    if history.timeline is not None and history.timeline > 1:
        lines.append(f"the server is on timeline {history.timeline}: it was promoted or restored")
    return "; ".join(lines)


def _describe(cause: LossCause, runs: Sequence[NumberRange], history: ServerHistory) -> str:
    crash = history.crashed_at
    at = "" if crash is None else f" before {crash:%Y-%m-%d %H:%M:%S} UTC"
    lost = f"{history.sessions_lost:,} sessions were lost in this database"
    rolled_back = f"{history.rollbacks:,} transactions were rolled back in this database"
    match cause:
        case LossCause.CRASH:
            text = f"the server crashed{at}; a sequence skips what it had logged or cached ahead"
        case LossCause.ROLLBACK:
            text = f"their callers rolled back ({rolled_back}); a sequence is never rolled back"
        case LossCause.DEATH:
            text = f"their callers died ({lost}); a sequence does not take its numbers back"
        case LossCause.EITHER:
            text = f"their callers rolled back or died ({rolled_back}, {lost})"
        case LossCause.BATCH:
            text = (
                "a batch was rolled back; or table and sequences are from different moments (a "
                "restored dump, a fail-over, a sequence set by hand)"
            )
        case LossCause.UNKNOWN if crash and any(_may_be_of(run, crash) for run in runs):
            text = f"a rollback, a caller's death, or the crash{at}"
        case _:
            text = "not known: nothing in the server's counters explains it"
    return text
