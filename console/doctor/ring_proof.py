"""The ring's proof on PostgreSQL (DESIGN section 5): which numbers are lost, which under way.

Each step is a statement of its own: read the next numbers; see who is open and has drawn; wait
until those are gone; read the state. What was drawn before the first step and is not there in the
last one will never come. That needs no grace, no evidence of a crash, and stops nobody.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from sqlalchemy import Connection

from console import sql
from console.actions.relay import Blocker
from console.doctor.look import Look

_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 0.1
_SHOWN_RUNS = 100


class Side(StrEnum):
    """Which of the two sequences."""

    PUSH = "push"
    POP = "pop"


class Astray(StrEnum):
    """What may become of a number: see `lost` in ring.sql."""

    ORPHAN = "orphan"
    SPENT = "spent"
    VOID = "void"
    HOLE = "hole"
    PARKED_HOLE = "parked_hole"

    @property
    def side(self) -> Side:
        """Whose drawers have to be gone before it is proven."""
        return Side.PUSH if self in {Astray.HOLE, Astray.PARKED_HOLE} else Side.POP


@dataclass(frozen=True)
class Gate:
    """The row that `gate` never returns."""

    number: int


@dataclass(frozen=True)
class Numbers:
    """Where both sequences stand."""

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
        """Who it is, in words."""
        if not self.holder:
            return "transactions that this login may not see"
        words = {name: value for name, value in vars(self).items() if name not in _KEY}
        return Blocker(**words).line


_KEY = {"side", "holder"}


@dataclass(frozen=True)
class Run:
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
        """How many numbers."""
        return self.last - self.first + 1


@dataclass(frozen=True)
class Proof:
    """Numbers below which everything is decided, where nobody is in the way."""

    drawn_push: int
    drawn_pop: int
    drawers: tuple[Drawer, ...] = ()
    """Who is still open after all patience."""

    def in_the_way(self, side: Side) -> tuple[Drawer, ...]:
        """Of one side; nobody: it is proven."""
        return tuple(drawer for drawer in self.drawers if drawer.side == side)


@dataclass(frozen=True)
class Losses:
    """What is lost, proven, and what could not be told from work under way."""

    proof: Proof = Proof(0, 0)
    proven: Mapping[Astray, tuple[Run, ...]] = field(default_factory=dict)
    in_progress: Mapping[Side, tuple[Run, ...]] = field(default_factory=dict)

    def unseen(self) -> list[str]:
        """What could not be proven, in words."""
        return [
            f"{total(runs):,} {side} numbers ({spelled(runs)}) may be in the hands of "
            + "; ".join(drawer.line for drawer in self.proof.in_the_way(side))
            for side, runs in self.in_progress.items()
            if runs
        ]


def next_numbers(look: Look) -> Numbers:
    """Where they stand, exactly."""
    (now,) = look.ask(Numbers, "next_numbers")
    return now


def prove(look: Look, sides: Iterable[Side] = tuple(Side)) -> Proof:
    """Wait until whoever has drawn by now is gone, as long as the look has patience."""
    drawn = next_numbers(look)
    wanted = set(sides)

    def open_now() -> list[Drawer]:
        return [found for found in look.ask(Drawer, "drawers") if found.side in wanted]

    left = _outwait(open_now, look.patience_seconds)
    return Proof(drawn.next_push, drawn.next_pop, tuple(left))


def _outwait(open_now: Callable[[], Sequence[Drawer]], seconds: float) -> list[Drawer]:
    """Those of the first look that are still there at the last."""
    deadline = time.monotonic() + seconds
    pause = _FIRST_PAUSE
    left = list(open_now())
    while left and time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE)
        before = {(drawer.side, drawer.holder) for drawer in left}
        left = [found for found in open_now() if (found.side, found.holder) in before]
    return left


def losses(look: Look) -> Losses:
    """What is lost. Where nothing even looks like it, nobody is waited for."""
    drawn = next_numbers(look)
    proof = Proof(drawn.next_push, drawn.next_pop)
    seen = _read(look, proof)
    # What a side shows only in the second look was not drawn in time to be waited for.
    sides = {Astray(run.kind).side for run in seen}
    if seen:
        proof = prove(look, sides)
        seen = [run for run in _read(look, proof) if Astray(run.kind).side in sides]
    return sorted_out(proof, seen)


def sorted_out(proof: Proof, seen: Sequence[Run]) -> Losses:
    """What looks lost: proven where nobody is in the way, else in progress."""
    proven: dict[Astray, tuple[Run, ...]] = {}
    in_progress: dict[Side, tuple[Run, ...]] = {}
    for kind in Astray:
        runs = tuple(run for run in seen if run.kind == kind)
        if proof.in_the_way(kind.side):
            in_progress[kind.side] = in_progress.get(kind.side, ()) + runs
        else:
            proven[kind] = runs
    return Losses(proof, proven, in_progress)


@dataclass(frozen=True)
class _Setting:
    jit: str


@contextmanager
def gated(look: Look) -> Iterator[Connection]:
    """A transaction that no relay comes into, for statements that read the whole ring."""
    with look.moment() as connection:
        look.fetch(connection, Gate, "gate")
        if "calm" in sql.statements(look.database.product.name, look.queue.design.name):
            look.fetch(connection, _Setting, "calm")
        yield connection


def _read(look: Look, proof: Proof) -> list[Run]:
    with gated(look) as connection:
        return look.fetch(
            connection, Run, "lost", drawn_push=proof.drawn_push, drawn_pop=proof.drawn_pop
        )


def total(runs: Iterable[Run]) -> int:
    """How many numbers."""
    return sum(run.count for run in runs)


def spelled(runs: Sequence[Run], most: int = 5) -> str:
    """`507-527, 530`; the rest is counted."""
    words = [str(r.first) if r.count == 1 else f"{r.first}-{r.last}" for r in runs[:most]]
    if len(runs) > most:
        words.append(f"and {total(runs[most:]):,} more")
    return ", ".join(words)


def as_evidence(runs: Sequence[Run]) -> dict[str, object]:
    """How many, and which: pairs of the first and the last of a run, the first hundred runs."""
    found: dict[str, object] = {
        "count": total(runs),
        "numbers": [[run.first, run.last] for run in runs[:_SHOWN_RUNS]],
    }
    if len(runs) > _SHOWN_RUNS:
        found["runs_not_shown"] = len(runs) - _SHOWN_RUNS
    return found
