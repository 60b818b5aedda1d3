"""The ring's proof on SQL Server (DESIGN section 5): two looks, a grace apart.

What looks lost is lost where it does so twice, and whoever may have drawn it has ended between the
looks. Every procedure of a ring locks its configuration before it draws, to the end of its
transaction: so who has drawn before the first look, and goes on, is a transaction that is older
than that look and holds a lock of the ring. Where this login does not see those, nothing is proven.

A file that has `drawers` tells more: `ring_proof` is its proof, and needs no grace.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from console import sql
from console.actions.relay import Blocker
from console.doctor import ring_proof
from console.doctor.look import Look
from console.doctor.ring_proof import Astray, Drawer, Losses, Proof, Run, Side

GRACE_SECONDS = 1.0
"""Between the looks, however fast everybody ends: the views of locks are not of one moment."""
_PAUSE = 0.1
_TICK = 0.1
"""The server's times of transactions are no finer than a few milliseconds; so much is enough."""


def prove(look: Look, sides: Iterable[Side] = tuple(Side)) -> Proof:
    """Wait until whoever has drawn by now is gone, as long as the look has patience."""
    if _tells_drawers(look):
        return ring_proof.prove(look, sides)
    drawn = ring_proof.next_numbers(look)
    return Proof(drawn.next_push, drawn.next_pop, _drawers(look, sides))


def losses(look: Look) -> Losses:
    """What is lost. Where nothing even looks like it, nobody is waited for."""
    if _tells_drawers(look):
        return ring_proof.losses(look)
    drawn = ring_proof.next_numbers(look)
    proof = Proof(drawn.next_push, drawn.next_pop)
    first = _read(look, proof)
    if not first:
        return ring_proof.sorted_out(proof, ())
    drawers = _drawers(look, {Astray(run.kind).side for run in first})
    proof = replace(proof, drawers=drawers)
    return ring_proof.sorted_out(proof, in_both(first, _read(look, proof)))


def _drawers(look: Look, sides: Iterable[Side]) -> tuple[Drawer, ...]:
    """Who is still open after the wait. Of which sequence somebody drew, no lock tells."""
    left = _outwait(lambda: look.ask(Blocker, "blockers"), look.patience_seconds)
    return tuple(_drawer(side, blocker) for side in sides for blocker in left)


def _read(look: Look, proof: Proof) -> list[Run]:
    with ring_proof.gated(look) as connection:
        return look.fetch(
            connection, Run, "lost", drawn_push=proof.drawn_push, drawn_pop=proof.drawn_pop
        )


def _tells_drawers(look: Look) -> bool:
    return "drawers" in sql.statements(look.database.product.name, look.queue.design.name)


def _outwait(open_now: Callable[[], Sequence[Blocker]], patience_seconds: float) -> list[Blocker]:
    """Those that were open at the beginning and are still there at the end; a grace is waited for
    at least, whatever the patience."""
    began = time.monotonic()
    while True:
        waited = time.monotonic() - began
        left = [one for one in open_now() if was_open(one, waited)]
        if waited >= (max(patience_seconds, GRACE_SECONDS) if left else GRACE_SECONDS):
            return left
        if any(map(_hidden, left)):
            return left
        time.sleep(_PAUSE)


def was_open(blocker: Blocker, waited_seconds: float) -> bool:
    """Whether the transaction may have begun before the wait did; of unknown age it may."""
    age = blocker.transaction_seconds
    return age is None or age >= waited_seconds - _TICK


def _hidden(blocker: Blocker) -> bool:
    """The row that stands for all that this login does not see: waiting tells nothing."""
    return blocker.pid is None and blocker.prepared_transaction is None


def _drawer(side: Side, blocker: Blocker) -> Drawer:
    holder = "" if blocker.pid is None else str(blocker.pid)
    return Drawer(side, holder, **vars(blocker))


def in_both(first: Sequence[Run], second: Sequence[Run]) -> list[Run]:
    """The runs of the second look, as far as their numbers looked lost in the first one too.

    A number may be another kind by then: a hole is parked once a pop has drawn it, a spent number
    is an orphan once its message is there. It is the same loss, of the same side.
    """
    found: list[Run] = []
    for side in Side:
        before = _joined(run for run in first if Astray(run.kind).side is side)
        for run in second:
            if Astray(run.kind).side is side:
                found += _clipped(run, before)
    return sorted(found, key=lambda run: (run.kind, run.first))


def _joined(runs: Iterable[Run]) -> list[tuple[int, int]]:
    """First and last numbers of stretches, in order, none of which touches another."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted((run.first, run.last) for run in runs):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return joined


def _clipped(run: Run, stretches: Sequence[tuple[int, int]]) -> list[Run]:
    """The parts of the run that lie in one of the stretches; times around it only at its ends."""
    parts = []
    for first, last in stretches:
        low, high = max(run.first, first), min(run.last, last)
        if low <= high:
            before = run.before_at if low == run.first else None
            after = run.after_at if high == run.last else None
            parts.append(Run(run.kind, low, high, run.since, before, after))
    return parts
